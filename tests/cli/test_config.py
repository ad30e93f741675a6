"""Settings from flags, the environment and the defaults."""

from __future__ import annotations

import pytest

from queen_actors.config import Settings, load


def test_an_empty_environment_gives_the_defaults() -> None:
    """Nothing set, and variables set to nothing, are the defaults; so are those that Kubernetes sets for a service."""
    assert load({}) == Settings()
    environ = {"QUEEN_ACTORS_PORT": "", "QUEEN_ACTORS_SERVICE_HOST": "10.0.0.1", "HOST": "elsewhere"}
    environ |= {"QUEEN_ACTORS_SERVICE_PORT_HTTP": "6632", "QUEEN_ACTORS_PORT_6632_TCP_ADDR": "10.0.0.1"}
    assert load(environ) == Settings()


def test_every_field_has_a_variable() -> None:
    """Numbers, booleans, lists and paths are read from the text of the environment."""
    settings = load(
        {
            "QUEEN_ACTORS_DATA": "/somewhere",
            "QUEEN_ACTORS_HOST": "0.0.0.0",
            "QUEEN_ACTORS_PORT": "7000",
            "QUEEN_ACTORS_SUBSCRIPTION_MODE": "new",
            "QUEEN_ACTORS_JOURNAL_ROLL_SECONDS": "2.5",
            "QUEEN_ACTORS_SNAPSHOT_BYTES": "1000000",
            "QUEEN_ACTORS_ALLOWED_ORIGINS": "https://a.example, https://b.example",
            "QUEEN_ACTORS_ACCESS_LOG": "true",
            "QUEEN_ACTORS_LOG_LEVEL": "debug",
        }
    )
    assert settings == Settings(
        data="/somewhere",
        host="0.0.0.0",
        port=7000,
        subscription_mode="new",
        journal_roll_seconds=2.5,
        snapshot_bytes=1_000_000,
        allowed_origins=("https://a.example", "https://b.example"),
        access_log=True,
        log_level="debug",
    )


def test_flags_win_over_the_environment() -> None:
    """A flag that was given wins; one that was not leaves the environment's value."""
    environ = {"QUEEN_ACTORS_PORT": "7000", "QUEEN_ACTORS_HOST": "0.0.0.0"}
    settings = load(environ, port=0, host=None)
    assert (settings.port, settings.host) == (0, "0.0.0.0")


def test_port_is_the_platforms_variable_and_ours_wins_over_it() -> None:
    """`PORT`, as process managers set it, is the port unless `QUEEN_ACTORS_PORT` says another."""
    assert load({"PORT": "5000"}).port == 5000
    assert load({"PORT": "5000", "QUEEN_ACTORS_PORT": "7000"}).port == 7000


def test_memory_keeps_no_data_directory() -> None:
    """`memory`, as a flag or a variable, is a broker without a directory; a directory given as a flag wins over it."""
    assert load({}, memory=True).data is None
    environ = {"QUEEN_ACTORS_MEMORY": "1", "QUEEN_ACTORS_DATA": "/somewhere"}
    assert load(environ).data is None
    assert load(environ, data="/elsewhere").data == "/elsewhere"
    assert load({"QUEEN_ACTORS_MEMORY": "0", "QUEEN_ACTORS_DATA": "/somewhere"}, memory=False).data == "/somewhere"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("QUEEN_ACTORS_PORT", "tcp://10.0.0.1:6632"),
        ("QUEEN_ACTORS_PORT", "65536"),
        ("PORT", "-1"),
        ("QUEEN_ACTORS_SUBSCRIPTION_MODE", "some"),
        ("QUEEN_ACTORS_SHUTDOWN_SECONDS", "nan"),
        ("QUEEN_ACTORS_SNAPSHOT_BYTES", "0"),
        ("QUEEN_ACTORS_MEMORY", "perhaps"),
    ],
)
def test_a_wrong_value_is_named(name: str, value: str) -> None:
    """The error names the variable and its value, so that one line is enough to mend it."""
    with pytest.raises(ValueError, match=rf"^{name}={value}: "):
        load({name: value})


def test_what_a_word_may_be_is_told() -> None:
    """Where there are some words to choose from, the error has them."""
    with pytest.raises(ValueError, match=r"^QUEEN_ACTORS_LOG_LEVEL=loud: expected one of debug, info, warning, error$"):
        load({"QUEEN_ACTORS_LOG_LEVEL": "loud"})


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("QUEEN_ACTORS_DTAA", "QUEEN_ACTORS_DATA"),
        ("QUEEN_ACTORS_JOURNAL_ROLL_SECOND", "QUEEN_ACTORS_JOURNAL_ROLL_SECONDS"),
        ("QUEEN_ACTORS_IN_MEMORY", "QUEEN_ACTORS_MEMORY"),
        ("QUEEN_ACTORS_data", "QUEEN_ACTORS_DATA"),
    ],
)
def test_a_mistyped_variable_is_refused(name: str, nearest: str) -> None:
    """A variable of ours that is no setting would do nothing: it is named, with the one that was meant."""
    with pytest.raises(ValueError, match=rf"^{name} is no setting; the nearest is {nearest}\."):
        load({name: "x"})


def test_variables_of_trials_are_no_settings() -> None:
    """What the crash points and the tests read may be in a server's environment."""
    names = ("FAULT", "STEPS", "SEEDS", "KILLS")
    assert load({f"QUEEN_ACTORS_{name}": "1" for name in names}) == Settings()

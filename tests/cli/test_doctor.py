"""`queen-actors doctor`: what it prints, and its exit codes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import trio

from queen_actors import open_broker
from queen_actors.broker import running
from queen_actors.cli import main
from queen_actors.config import Settings
from queen_actors.storage import DurableStore


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data directory with a message; no variable says where."""
    for name in ("QUEEN_ACTORS_DATA", "QUEEN_ACTORS_ENCRYPTION_KEY"):
        monkeypatch.delenv(name, raising=False)

    async def fill() -> None:
        async with open_broker(tmp_path / "data") as queen:
            await queen.queue("orders").push({"data": 1})

    trio.run(fill)
    return tmp_path / "data"


def journal(data: Path) -> Path:
    return max(data.glob("journal-*.log"))


def test_healthy(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Code 0, and what is there."""
    assert main(["doctor", "--data", str(data)]) == 0
    said, errors = capsys.readouterr()
    assert said.startswith(f"{data}: healthy\n")
    assert "1 journal, 0 segments, 0 snapshots; the log reaches to position" in said
    assert errors == ""


def test_problems_and_their_repair(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Code 1 with the file and what can be done; with --repair it says what it did, and code 0 when all is well."""
    with journal(data).open("r+b") as file:
        file.seek(0, 2)
        file.write(b"torn")
    assert main(["doctor", "--data", str(data)]) == 1
    said = capsys.readouterr().out
    assert f"- {journal(data).name} ends in" in said
    assert "The next start cuts them off; so does a repair, which keeps a copy." in said
    assert main(["doctor", "--data", str(data), "--repair"]) == 0
    said = capsys.readouterr().out
    assert "repaired:" in said
    assert "it is kept as" in said
    assert said.endswith("healthy now\n")
    assert main(["doctor", "--data", str(data)]) == 0


def test_what_cannot_be_repaired(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Code 1, nothing is touched, and the advice is there."""
    content = bytearray(journal(data).read_bytes())
    content[4096 + 20] ^= 1
    journal(data).write_bytes(content)
    assert main(["doctor", "--data", str(data), "--repair"]) == 1
    said = capsys.readouterr().out
    assert "nothing was repaired" in said
    assert "Restore the data directory from a backup" in said
    assert journal(data).read_bytes() == bytes(content)


def test_it_cannot_look(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Code 2 with a sentence: no directory, a setting that is none."""
    assert main(["doctor", "--data", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err == f"queen-actors: There is no directory {tmp_path / 'none'}.\n"


def test_in_use(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Code 2 while a broker runs, and its process is named."""

    async def look() -> int:
        async with running(DurableStore(str(data)), Settings(data=str(data))):
            return await trio.to_thread.run_sync(main, ["doctor", "--data", str(data)])

    assert trio.run(look) == 2
    assert "in use by process" in capsys.readouterr().err


def test_the_environment_says_where_and_with_which_key(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Settings are read as `serve` reads them, and a wrong one is refused with code 2."""
    monkeypatch.setenv("QUEEN_ACTORS_DATA", str(data))
    assert main(["doctor"]) == 0
    assert str(data) in capsys.readouterr().out
    monkeypatch.setenv("QUEEN_ACTORS_ENCRYPTION_KEY", "short")
    assert main(["doctor"]) == 2
    assert "QUEEN_ACTORS_ENCRYPTION_KEY" in capsys.readouterr().err


def test_encrypted_payloads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the broker encrypted needs the broker's key; another one is told from the right one."""
    key, other = "11" * 32, "22" * 32
    monkeypatch.setenv("QUEEN_ACTORS_ENCRYPTION_KEY", key)

    async def fill() -> None:
        async with open_broker(tmp_path / "data", encryption_key=key) as queen:
            await queen.queue("secrets").config({"encryptionEnabled": True}).create()
            await queen.queue("secrets").push({"data": "hush"})

    trio.run(fill)
    command = ["doctor", "--data", str(tmp_path / "data")]
    assert main(command) == 0
    assert "1 payload encrypted" in capsys.readouterr().out
    monkeypatch.setenv("QUEEN_ACTORS_ENCRYPTION_KEY", other)
    assert main(command) == 1
    assert "does not open" in capsys.readouterr().out
    monkeypatch.delenv("QUEEN_ACTORS_ENCRYPTION_KEY")
    assert main(command) == 1
    assert "QUEEN_ACTORS_ENCRYPTION_KEY" in capsys.readouterr().out
    assert sys.exc_info() == (None, None, None)

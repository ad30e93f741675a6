"""The SDK's streams against a durable server that dies under them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sdk_kit import Play
from server_process import ServerProcess


class Supervised:
    """A server that is started again whenever it dies. Its process id is in a file."""

    def __init__(self, server: ServerProcess, pidfile: Path) -> None:
        self._server = server
        self._pidfile = pidfile
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._restart)

    def __enter__(self) -> Supervised:
        self._start()
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._watch.join()
        self._server.stop()

    def _start(self) -> None:
        self._server.start()
        new = self._pidfile.with_suffix(".new")
        new.write_text(str(self._server.pid))
        new.replace(self._pidfile)

    def _restart(self) -> None:
        while not self._over.wait(0.05):
            if self._server.died:
                self._start()


@pytest.fixture
def durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ServerProcess]:
    """A server on a data directory, whose scenarios may kill it: `SERVER_PIDFILE` tells them whom."""
    server = ServerProcess(tmp_path / "server.log", tmp_path / "data")
    monkeypatch.setenv("SERVER_PIDFILE", str(tmp_path / "pid"))
    with Supervised(server, tmp_path / "pid"):
        yield server


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "functions",
    [["windows_and_reductions"], ["a_gate"], ["registration", "a_sink_is_drained_while_the_stream_runs"]],
    ids=lambda functions: functions[0],
)
def test_streams(play: Play, durable: ServerProcess, functions: list[str]) -> None:
    """What their docstrings say."""
    for function, error in play("stream_queries", functions, durable).items():
        assert not error, f"{function}: {error}"

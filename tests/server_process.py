"""The real server as a process of its own, for tests that drive it from outside."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx

START_SECONDS = 120.0
_reserved: list[socket.socket] = []


def free_port() -> int:
    """A port that nobody else gets for as long as this process runs, and on which a server of ours can listen, again
    and again.

    It stays bound, with SO_REUSEADDR and without a listener. A port that were let go could be given to whoever connects
    somewhere meanwhile, or even to a client that tries to reach the server which is not there: connected to itself, it
    would hold the port against the server."""
    reservation = socket.socket()
    reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reservation.bind(("127.0.0.1", 0))
    _reserved.append(reservation)
    port: int = reservation.getsockname()[1]
    return port


class ServerProcess:
    """`queen-actors serve` on a free port; in memory, or with a data directory that the next start finds again."""

    def __init__(self, log: Path, data: Path | None = None, **settings: object) -> None:
        """Settings by their names, given to it through its environment."""
        self._environment = {f"QUEEN_ACTORS_{name.upper()}": str(value) for name, value in settings.items()}
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._where = ["--memory"] if data is None else ["--data", str(data)]
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Return when it answers. Raises AssertionError, with its log, when it does not."""
        command = [sys.executable, "-m", "queen_actors", "serve", *self._where, "--port", str(self.port)]
        environment = {**os.environ, **self._environment}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                if httpx.get(f"{self.url}/health", trust_env=False).status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.02)
        self.kill()
        raise AssertionError(f"the server did not start:\n{self._log.read_text(errors='replace')}")

    @property
    def pid(self) -> int:
        assert self._process is not None, "it is not running"
        return self._process.pid

    @property
    def died(self) -> bool:
        """It was started, and ended by itself or by somebody else."""
        return self._process is not None and self._process.poll() is not None

    def stop(self) -> None:
        """SIGTERM, and wait for its end."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(START_SECONDS)
            finally:
                self.kill()

    def kill(self) -> None:
        """SIGKILL, as a power cut would have it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def environment(server: ServerProcess) -> dict[str, str]:
    """What a client process gets: ours, without proxies between it and the server, with the helpers of this folder, and
    the server's `SERVER_PID`."""
    ours = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**ours, "PYTHONPATH": path, "SERVER_PID": str(server.pid)}

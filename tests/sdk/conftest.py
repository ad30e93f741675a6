"""The published Python SDK against the real server. It is asyncio's and takes over the signal handlers of its process,
so each scenario runs in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sdk_kit import Play
from server_process import ServerProcess, environment

SCENARIO_SECONDS = 60.0


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server in memory for all scenarios, which keep apart by the names that they use."""
    server = ServerProcess(tmp_path_factory.mktemp("sdk") / "server.log")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def play() -> Play:
    """Run `module.function` against a server; it fails with what the scenario printed."""

    def run(module: str, function: str, server: ServerProcess) -> None:
        command = [
            sys.executable,
            "-W",
            "error",
            str(Path(__file__).with_name("play.py")),
            module,
            function,
            server.url,
        ]
        ended = subprocess.run(
            command, env=environment(server), capture_output=True, text=True, timeout=SCENARIO_SECONDS, check=False
        )
        assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"

    return run

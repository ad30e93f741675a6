"""The published Python SDK against the real server. It is asyncio's and takes over the signal handlers of its process,
so the scenarios of each module run in a process of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sdk_kit import Play
from server_process import ServerProcess, environment

PROCESS_SECONDS = 300.0
PROCESSES = 3
"""Side by side: most of the time the scenarios wait."""


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server in memory for all scenarios, which keep apart by the names that they use."""
    server = ServerProcess(tmp_path_factory.mktemp("sdk") / "server.log", encryption_key="5e" * 32)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def play() -> Play:
    """Run functions of a module one after the other in one process: what went wrong with each, "" for nothing."""

    def run(module: str, functions: list[str], server: ServerProcess) -> dict[str, str]:
        script = Path(__file__).with_name("play.py")
        command = [sys.executable, "-W", "error", str(script), server.url, module, *functions]
        try:
            ended = subprocess.run(
                command, env=environment(server), capture_output=True, text=True, timeout=PROCESS_SECONDS, check=False
            )
        except subprocess.TimeoutExpired as late:
            output = (late.stdout or b"").decode() if isinstance(late.stdout, bytes) else late.stdout or ""
            ended = subprocess.CompletedProcess(command, -1, output, "it did not end in time")
        reports = [json.loads(line[8:]) for line in ended.stdout.splitlines() if line.startswith("REPORT: ")]
        told = {report["function"]: report["error"] for report in reports}
        return {function: told.get(function, ended.stderr or "it was never reached") for function in functions}

    return run


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, server: ServerProcess, play: Play) -> dict[tuple[str, str], str]:
    """Every scenario that this session selected, played; each module in the order of its tests."""
    selected: dict[str, list[str]] = {}
    for item in request.session.items:
        if isinstance(item, pytest.Function) and item.originalname == "test_scenario":
            selected.setdefault(item.callspec.params["module"], []).append(item.callspec.params["function"])
    with ThreadPoolExecutor(PROCESSES) as pool:
        played = pool.map(lambda module: play(module, selected[module], server), selected)
    return {
        (module, function): error
        for module, told in zip(selected, played, strict=True)
        for function, error in told.items()
    }

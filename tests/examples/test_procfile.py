"""What `honcho start` runs: a broker, a producer and a consumer that one can watch."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from server_process import free_port

ROOT = Path(__file__).parents[2]
PROGRAMS = {"queen-actors": [sys.executable, "-m", "queen_actors"], "python": [sys.executable]}
SECONDS = 120.0


class Procfile:
    """Its commands, each with its output in a file, against a port of our own."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.commands = dict(line.split(": ", 1) for line in (ROOT / "Procfile").read_text().splitlines())
        self.started: dict[str, subprocess.Popen[bytes]] = {}
        self._directory, self._stack, self._port = directory, stack, free_port()

    def start(self, name: str) -> None:
        command = self.commands[name].replace("6632", str(self._port)).replace("examples/", f"{ROOT}/examples/")
        program, *arguments = shlex.split(command)
        url = f"http://127.0.0.1:{self._port}"
        environ = {**os.environ, "QUEEN_URL": url, "PYTHONPATH": str(ROOT), "NO_PROXY": "127.0.0.1"}
        with (self._directory / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                PROGRAMS[program] + arguments, cwd=self._directory, env=environ, stdout=log, stderr=log
            )
        self.started[name] = self._stack.enter_context(process)
        self._stack.callback(process.kill)

    def told(self, name: str) -> str:
        return (self._directory / f"{name}.log").read_text(errors="replace")

    def wait(self, until: Callable[[], bool], running: tuple[str, ...]) -> None:
        """Raises AssertionError, with what all of them told, when it takes too long or one of these ends before."""
        deadline = time.monotonic() + SECONDS
        while not until():
            ended = [name for name in running if self.started[name].poll() is not None]
            if ended or time.monotonic() > deadline:
                told = "\n".join(f"--- {name}\n{self.told(name)}" for name in self.started)
                raise AssertionError(f"{', '.join(ended) + ' ended' if ended else 'it took too long'}:\n{told}")
            time.sleep(0.02)


@pytest.fixture
def procfile(tmp_path: Path) -> Iterator[Procfile]:
    with ExitStack() as stack:
        yield Procfile(tmp_path, stack)


def shipped(told: str) -> list[tuple[int, str]]:
    """The number and the customer of each order that the consumer ships, in its order."""
    found = re.findall(r"^shipped (\{.*\}) of (customer-\d)\n", told, re.MULTILINE)
    return [(json.loads(order)["number"], customer) for order, customer in found]


def test_the_procfile(procfile: Procfile) -> None:
    """Its three commands, started in any order, with the broker last and late: the others say that they wait for it.
    Orders are shipped, in order for each customer; when the broker is stopped, the consumer says so in a line."""
    assert list(procfile.commands) == ["broker", "producer", "consumer"]
    procfile.start("consumer")
    procfile.start("producer")
    waiting = ("consumer", "producer")
    procfile.wait(lambda: all("waiting for the broker at http" in procfile.told(name) for name in waiting), waiting)
    procfile.start("broker")
    wanted = {(0, "customer-0"), (1, "customer-1"), (3, "customer-0")}
    procfile.wait(lambda: wanted <= set(shipped(procfile.told("consumer"))), tuple(procfile.started))
    orders = shipped(procfile.told("consumer"))
    for customer in ("customer-0", "customer-1", "customer-2"):
        numbers = [number for number, of in orders if of == customer]
        assert numbers == list(range(int(customer[-1]), 3 * len(numbers), 3))
    procfile.started["broker"].terminate()
    procfile.wait(lambda: procfile.started["consumer"].poll() is not None, ("producer",))
    told = procfile.told("consumer")
    assert told.splitlines()[-1].startswith("the broker has ended the connection: "), told
    assert "Traceback" not in told
    procfile.wait(lambda: procfile.started["broker"].poll() is not None, ("producer",))
    assert procfile.started["broker"].returncode == 0
    assert "Traceback" not in procfile.told("producer")

"""`queen-actors serve` on one data directory, with limits so small that every kind of file comes and goes, to be
killed and started again."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from queen_actors.limits import SHUTDOWN_SECONDS

from .phased import PHASES
from .stopwatch import Stopwatch

READY_SECONDS = 30.0
STOP_SECONDS = SHUTDOWN_SECONDS + 1.0
"""How soon a stop is over, by the stopwatch."""
HANG_SECONDS = 30.0
"""What is waited for that, on the clock: threads that stand in line together may stop the other one."""
FAULT = "QUEEN_ACTORS_FAULT"
FAULT_STATUS = 137
LOOK_SECONDS = 0.0001
STOP_LOOK_SECONDS = 0.02


class NotReady(Exception):
    """The process ended before it was ready; the text has its status and what it said."""


class Node:
    """The process of one data directory; at most one at a time."""

    program: Sequence[str] = ("-m", "queen_actors")
    """What Python runs."""

    def __init__(self, directory: Path, **settings: str) -> None:
        self.data = directory / "data"
        self.port = 0
        self._log = directory / "server.log"
        self._variables = {f"QUEEN_ACTORS_{name.upper()}": value for name, value in settings.items()}
        self._process: subprocess.Popen[bytes] | None = None
        self.environment: dict[str, str] = {}
        """Variables beside the settings."""
        self.slate: Path | None = None
        """Where `phased.py` writes what it is about, when that is the program."""
        self._struck = False

    @property
    def pid(self) -> int:
        return self._running.pid

    def spawn(self, fault: str | None = None) -> None:
        """Begin to start it, with a named point at which it is to die, perhaps."""
        ours = {
            name: value for name, value in os.environ.items() if name != "PORT" and not name.startswith("QUEEN_ACTORS_")
        }
        variables = {**ours, **self._variables, **self.environment, **({FAULT: fault} if fault else {})}
        command = [sys.executable, *self.program, "serve", "--port", "0", "--data", str(self.data)]
        self._struck = False
        if self.slate is not None:
            self.slate.write_bytes(bytes(len(PHASES)))
            variables["CRASH_SLATE"] = str(self.slate)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, env=variables
            )

    def ready(self) -> None:
        """Wait for the line that says where it is. Raises NotReady."""
        process = self._running
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
        if found is None:
            status = process.wait(READY_SECONDS)
            raise NotReady(f"status {status}: {line}{self._log.read_text(errors='replace')[-2000:]}")
        self.port = int(found[1])

    def start(self) -> float:
        """Spawn, wait until it is ready; returns how many seconds that took, without those in which it had no
        processor. Raises NotReady."""
        watch = Stopwatch()
        self.spawn()
        watch.add(self._running.pid)
        self.ready()
        return watch.seconds()

    def kill(self) -> bool:
        """SIGKILL. Returns whether it was there to be killed, and not dead already."""
        process = self._running
        there = self._struck or process.poll() is None
        process.kill()
        self._reap()
        return there

    def strike(self, phase: str, seconds: float) -> None:
        """SIGKILL as soon as its slate tells that phase; nothing when it does not within that time."""
        assert self.slate is not None
        number, until = PHASES.index(phase), time.monotonic() + seconds
        with self.slate.open("rb", buffering=0) as slate:
            while time.monotonic() < until:
                if os.pread(slate.fileno(), len(PHASES), 0)[number]:
                    self._struck = self._running.poll() is None
                    self._running.kill()
                    return
                time.sleep(LOOK_SECONDS)

    def about(self) -> list[str]:
        """What it was about when it died."""
        slate = b"" if self.slate is None else self.slate.read_bytes()
        return [phase for phase, times in zip(PHASES, slate, strict=False) if times]

    def wait(self, seconds: float) -> int | None:
        """Its status, when it ends within that time."""
        try:
            return self._running.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def stop(self) -> str:
        """SIGTERM. What was wrong with how it ended, empty when it ended in time and with status 0."""
        process = self._running
        watch, took, told = Stopwatch(process.pid), 0.0, time.monotonic()
        process.send_signal(signal.SIGTERM)
        while took <= STOP_SECONDS and time.monotonic() < told + HANG_SECONDS:
            time.sleep(STOP_LOOK_SECONDS)
            seconds = watch.seconds()  # of one that is gone it would know no more how long it stood in line
            if process.poll() is not None:
                break
            took = seconds
        status = process.poll()
        process.kill()
        self._reap()
        if status is None:
            return f"was not over after {took:.1f} s, {time.monotonic() - told:.1f} s on the clock"
        return f"ended with status {status}" if status else ""

    def close(self) -> None:
        """Nothing of it is left behind."""
        if self._process is not None:
            self.kill()

    def _reap(self) -> None:
        process = self._running
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
        self._process = None

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "it was not started"
        return self._process

    def said(self) -> str:
        """What it logged, over all its lives."""
        return self._log.read_text(errors="replace")

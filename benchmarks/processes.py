"""Server processes of a run, and what the system tells of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from faces import hold
from msgspec import Struct

_TICKS = os.sysconf("SC_CLK_TCK")
HEARTBEAT = {"QUEEN_ACTORS_HEARTBEAT_SECONDS": "3600"}
"""The lean client answers no pings."""
_PLAIN = str(Path(__file__).parent / "plain.py")


class Process(Struct):
    """A running server."""

    port: int
    pid: int

    def cpu(self) -> float:
        """Processor seconds so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def rss(self) -> int:
        """Resident bytes now."""
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text())
        return 0 if found is None else int(found[1]) * 1024


@contextmanager
def started(command: Sequence[str], **environment: str) -> Generator[Process]:
    """A server that says where it listens in its first line; it is stopped, and waited for, when the block ends."""
    running = subprocess.Popen(command, stdout=subprocess.PIPE, env=os.environ | environment)
    try:
        assert running.stdout is not None
        found = re.search(rb"http://[^:]+:(\d+)", running.stdout.readline())
        hold(found is not None)
        yield Process(0 if found is None else int(found[1]), running.pid)
    finally:
        running.terminate()
        running.wait(30)


@contextmanager
def broker(data: str | Path) -> Generator[Process]:
    """`queen-actors serve` over a data directory."""
    command = [sys.executable, "-m", "queen_actors", "serve", "--port", "0", "--data", str(data)]
    with started(command, **HEARTBEAT) as process:
        yield process


@contextmanager
def plain(*arguments: str) -> Generator[Process]:
    """`plain.py`."""
    with started([sys.executable, _PLAIN, *arguments]) as process:
        yield process

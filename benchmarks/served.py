"""A `queen-actors serve` in a process of its own, and what the system tells of it: for runs that watch a server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import trio
from faces import hold
from msgspec import Struct
from transports import Http, wire

START_SECONDS = 300.0  # a log with a million partitions takes its time

_MAIN = """
import sys
from queen_actors import limits
limits.ACK_WINDOW_SECONDS = int(sys.argv.pop(1))
from queen_actors.cli import main
main()
"""


class Served(Struct, frozen=True):
    """A running server."""

    port: int
    pid: int
    data: Path

    @asynccontextmanager
    async def connect(self) -> AsyncGenerator[Http]:
        """A connection of one's own."""
        async with wire(self.port, alone=False) as one:
            yield Http(one)

    def rss(self) -> int:
        """Resident memory now, in bytes."""
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text())
        hold(found is not None)
        return 0 if found is None else int(found[1]) * 1024

    def descriptors(self) -> int:
        """Open file descriptors."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def size(self) -> tuple[int, int]:
        """Bytes in the data directory, and how many files that is."""
        sizes: list[int] = []
        for path in self.data.rglob("*"):
            try:
                sizes.append(path.stat().st_size if path.is_file() else 0)
            except FileNotFoundError:  # upkeep has removed it just now
                continue
        return sum(sizes), len(sizes)


@asynccontextmanager
async def serving(data: Path, *, ack_window: int | None = None, **settings: int | str) -> AsyncGenerator[Served]:
    """A server over `data` on a free port, with these settings; it is stopped when the block ends.

    `ack_window` in seconds instead of the floor under which the index of messages is never pruned (15 minutes): a run
    that is to reach its steady state sooner sets it.
    """
    serve = ["serve", "--port", "0", "--data", str(data)]
    if ack_window is None:
        command = [sys.executable, "-m", "queen_actors", *serve]
    else:
        command = [sys.executable, "-c", _MAIN, str(ack_window), *serve]
    environment = os.environ | {f"QUEEN_ACTORS_{name.upper()}": str(value) for name, value in settings.items()}
    async with trio.open_nursery() as nursery:
        process = await nursery.start(
            partial(trio.run_process, command, stdout=subprocess.PIPE, env=environment, check=False)
        )
        try:
            line = b""
            with trio.fail_after(START_SECONDS):
                while not line.endswith(b"\n"):
                    part = await process.stdout.receive_some()
                    hold(bool(part))
                    line += part
            found = re.search(rb"http://[^:]+:(\d+)", line)
            hold(found is not None)
            yield Served(0 if found is None else int(found[1]), process.pid, data)
        finally:
            process.terminate()

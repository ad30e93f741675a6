"""Pauses of the whole process (SIGSTOP), longer than every lease, and jumps of the wall clock, under load."""

from __future__ import annotations

import os
import signal
import struct
import time
from functools import partial
from pathlib import Path
from typing import ClassVar

import trio

from .campaign import Campaign, stories
from .node import Node
from .power import NoCompiler, build_shim
from .summary import Summary

PAUSES = (0.1, 0.3, 1.2, 2.5, 6.0, 8.0)
"""Seconds; leases and permits of the load live 1 to 5 (a fifth of the default's, as these are of 40 s)."""
LONG = (20.0, 40.0)
"""Seconds, between; longer than what a client waits for an answer, too."""
LONG_EVERY = 25
"""One in so many pauses of a campaign is a long one."""
PAUSES_PER_ROUND = 3
JUMPS = (3600, -3600, 86_400, -86_400, 0, 60, -1)
"""Seconds that the wall clock is off."""
JUMPS_PER_ROUND = 8


class PauseCampaign(Campaign):
    """One data directory's story of pauses."""

    reconnects: ClassVar[bool] = True
    start_kill_share: ClassVar[float] = 0.0

    async def trouble(self) -> None:
        for _ in range(PAUSES_PER_ROUND):
            await trio.sleep(self.chance.uniform(0.2, 1.2))
            os.kill(self.node.pid, signal.SIGSTOP)
            began = time.monotonic()
            long = self.summary.counts["pauses"] % LONG_EVERY == LONG_EVERY - 1
            await trio.sleep(self.chance.uniform(*LONG) if long else self.chance.choice(PAUSES))
            self.world.history.pauses.append((began, time.monotonic()))
            os.kill(self.node.pid, signal.SIGCONT)
            self.summary.counts["pauses"] += 1
            self.summary.counts["long_pauses"] += long
        await trio.sleep(self.chance.uniform(0.2, 1.5))


async def pauses(directory: Path, seed: int, count: int) -> Summary:
    """So many pauses."""
    summary = Summary("pauses", seed)
    await stories(PauseCampaign, directory, summary, -(-count // PAUSES_PER_ROUND))
    return summary


# -- the wall clock ----------------------------------------------------------------------------------------------------


class Wall:
    """The wall clock of a process, off by so many seconds; its monotonic clock is the machine's."""

    def __init__(self, directory: Path, shim: Path) -> None:
        self._file = directory.resolve() / "wall"
        self.environment = {"LD_PRELOAD": str(shim), "SHIM_CLOCK": str(self._file)}
        self._file.write_bytes(bytes(8))

    def set(self, seconds: int) -> None:
        """From now on."""
        with self._file.open("r+b") as file:
            file.write(struct.pack("=q", seconds))


class ClockCampaign(Campaign):
    """One data directory's story of a wall clock that jumps while the broker is under load.

    A start finds the clock right: how much of a lease was over while nobody watched only the wall clock can tell.
    """

    reconnects: ClassVar[bool] = True
    start_kill_share: ClassVar[float] = 0.0

    def __init__(self, directory: Path, seed: int, summary: Summary, *, shim: Path, program: list[str]) -> None:
        self._wall = Wall(directory, shim)
        self._program = program
        super().__init__(directory, seed, summary)

    def make_node(self, **settings: str) -> Node:
        node = Node(self.directory, **settings)
        node.environment = self._wall.environment
        node.program = self._program or node.program
        return node

    async def trouble(self) -> None:
        off = 0
        for _ in range(JUMPS_PER_ROUND):
            await trio.sleep(self.chance.uniform(0.1, 0.6))
            off = self.chance.choice([one for one in JUMPS if one != off])
            self._wall.set(off)
            self.summary.counts["jumps"] += 1
        await trio.sleep(0.2)

    async def after_death(self) -> None:
        self._wall.set(0)


async def clock(directory: Path, seed: int, count: int, program: list[str] | None = None) -> Summary:
    """So many jumps. `program`: what Python runs in place of the broker's own start."""
    summary = Summary("clock", seed)
    try:
        shim = await trio.to_thread.run_sync(build_shim, directory)
    except NoCompiler as error:
        summary.not_run.append(f"clock jumps: {error}")
        return summary
    make = partial(ClockCampaign, shim=shim, program=program or [])
    await stories(make, directory, summary, -(-count // JUMPS_PER_ROUND))
    return summary

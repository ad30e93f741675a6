"""Upkeep: payloads of sealed messages leave memory, index windows are pruned, idle actors are packed away."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import trio

from queen_actors.domain.effects import Effect, SealedRun
from queen_actors.domain.partition import window_of

from .core import Core

INTERVAL_SECONDS = 5.0
IDLE_SECONDS = 30.0
"""An actor that nobody has used for so long is packed away."""
STEP = 2000
"""How many actors are looked at before others may run: a few milliseconds."""


class Upkeep:
    """The housekeeping of one broker."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._cached: deque[tuple[SealedRun, int]] = deque()
        self._cached_bytes = 0
        self._used: dict[int, float] = {}

    def observe(self, effect: Effect) -> None:
        """An effect was applied: its partition is in use."""
        pid: int | None = getattr(effect, "pid", None)
        if pid is not None:
            self._used[pid] = trio.current_time()

    def reset(self) -> None:
        """The directory was read from the log: everything in memory counts as used now."""
        now = trio.current_time()
        self._used = dict.fromkeys(self._core.directory.active, now)
        self._cached.clear()
        self._cached_bytes = 0

    def evict(self, runs: Sequence[SealedRun]) -> None:
        """The store has sealed these messages: they stay in memory while the cache has room, oldest seal out first."""
        for run in runs:
            partition = self._core.directory.partition(run.pid)
            if partition is None:
                continue
            found = partition.in_memory(run.first, run.last - run.first + 1, 1 << 62) or ()
            size = sum(len(record.payload) + 200 for record in found)
            self._cached.append((run, size))
            self._cached_bytes += size
        while self._cached and self._cached_bytes > self._core.settings.record_cache_bytes:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        run, size = self._cached.popleft()
        self._cached_bytes -= size
        partition = self._core.directory.partition(run.pid)
        if partition is not None:
            partition.evict(run.first, run.last)
            self._used.setdefault(run.pid, trio.current_time())

    async def run(self) -> None:
        """Prune and passivate, a little at a time; for ever."""
        while True:
            await trio.sleep(INTERVAL_SECONDS)
            self.passivate()
            await trio.lowlevel.checkpoint()

    def passivate(self, *, everything: bool = False) -> int:
        """Prune the windows of partitions that nobody used for a while, and pack away those that are idle then."""
        before = trio.current_time() - (0 if everything else IDLE_SECONDS)
        if everything:
            while self._cached:
                self._drop_oldest()
        directory = self._core.directory
        now = self._core.clock.now()
        idle = [pid for pid, at in self._used.items() if at <= before][: None if everything else STEP]
        packed: list[int] = []
        for pid in idle:
            del self._used[pid]
            partition = directory.active.get(pid)
            if partition is None:
                continue
            partition.prune(now - window_of(directory.queue_of(partition).options))
            if partition.idle:
                packed.append(pid)
        return directory.passivate(packed)

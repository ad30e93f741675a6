"""Upkeep: payloads of sealed messages leave memory, index windows are pruned, idle actors are packed away."""

from __future__ import annotations

import sys
from collections import OrderedDict, deque
from collections.abc import Sequence
from copy import copy
from functools import cache
from typing import Any, TypeVar

import trio

from queen_actors.domain.effects import Appended, CursorDropped, CursorPut, PartitionPut, SealedRun
from queen_actors.domain.partition import PartitionState, packed_tail, window_of
from queen_actors.values import SECOND

from .core import Core

INTERVAL_SECONDS = 5.0
IDLE = 30 * SECOND
"""An actor that nobody has used for so long is packed away."""
PRUNE = 60 * SECOND
"""How often the index window of a partition in use is pruned: what is outdated is at most this much more."""
STEP = 2000
"""How many actors are looked at before others may run: a few milliseconds."""

MOST_ACTIVE = 50_000
"""Partitions unpacked at a time, about; more than a kilobyte each. A push brings each one of its own back: 10 us."""
MESSAGE_COST, PARTITION_COST = 250, 800
"""Bytes that a message takes in memory beyond its payload, and a partition that is there for its messages' sake."""
SWEPT_PAGES = 4
"""How many pages of packed partitions are swept at a time: of a million each one every 20 minutes."""

SLIM_BYTES, SLIM_RATIO = 1 << 16, 400
"""A table is copied when it is larger than this, and takes so many bytes for each of its entries."""

_Table = TypeVar("_Table", bound=dict[int, Any])


def slim(table: _Table) -> _Table:
    """The table, copied when it has become much emptier than it was: a dictionary never gives room back by itself."""
    size = sys.getsizeof(table)
    return copy(table) if size > SLIM_BYTES and size > SLIM_RATIO * len(table) else table


class Upkeep:
    """The housekeeping of one broker."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._cached: deque[tuple[SealedRun, int]] = deque()
        self._cached_bytes = 0
        self._used: OrderedDict[int, int] = OrderedDict()
        """When each active partition was last used, least recently used first."""
        self._page = -1
        """The page of packed partitions that was swept last."""
        self._windows: OrderedDict[int, int] = OrderedDict()
        """When the index window of each partition that gets messages is to be pruned next, soonest first."""

    def observe(self, effect: Appended | CursorPut | CursorDropped | PartitionPut) -> None:
        """An effect was applied: its partition is in use."""
        pid, now, used = effect.pid, self._core.directory.last_instant, self._used
        used[pid] = now
        used.move_to_end(pid)
        if len(used) > MOST_ACTIVE:
            self._relieve()
        if pid not in self._windows and isinstance(effect, Appended):
            self._windows[pid] = now + PRUNE

    def _relieve(self) -> None:
        """More partitions are in use than are to be in memory: the least recently used one makes room."""
        pid, _ = self._used.popitem(last=False)
        if self._core.directory.passivate((pid,), light=True):
            self._windows.pop(pid, None)  # else it is back when `_prune` or `_drop_oldest` have made it little

    def _use(self, pid: int) -> None:
        self._used[pid] = self._core.clock.now()
        self._used.move_to_end(pid)

    def reset(self) -> None:
        """The directory was read from the log: everything in memory counts as used now."""
        now = self._core.clock.now()
        active = self._core.directory.active
        self._used = OrderedDict.fromkeys(active, now)
        self._windows = OrderedDict.fromkeys(active, now + PRUNE)
        self._cached.clear()
        self._cached_bytes = 0

    def evict(self, runs: Sequence[SealedRun]) -> None:
        """The store has sealed these messages: they stay in memory while the cache has room, oldest seal out first."""
        for run in runs:
            size = self._size(run)
            if not size:
                continue  # deleted, or packed away without its messages: nothing of it is in memory
            self._cached.append((run, size))
            self._cached_bytes += size
        while self._cached and self._cached_bytes > self._core.settings.record_cache_bytes:
            self._drop_oldest()

    def _size(self, run: SealedRun) -> int:
        """Bytes that the messages of a run take in memory."""
        directory = self._core.directory
        partition = directory.active.get(run.pid)
        if partition is None:
            packed = directory.packed.get(run.pid)
            return 0 if packed is None else packed_tail(packed)
        found = partition.in_memory(run.first, run.last - run.first + 1, 1 << 62) or ()
        return sum(len(record.payload) + MESSAGE_COST for record in found) + (PARTITION_COST if found else 0)

    def _drop_oldest(self) -> None:
        run, size = self._cached.popleft()
        self._cached_bytes -= size
        self._core.directory.evict(run.pid, run.last)
        if run.pid in self._core.directory.active:
            self._used.setdefault(run.pid, self._core.clock.now())

    async def run(self) -> None:
        """Prune and passivate, a little at a time; for ever."""
        while True:
            await trio.sleep(INTERVAL_SECONDS)
            self._prune()
            await trio.lowlevel.checkpoint()
            while self.passivate():
                await trio.lowlevel.checkpoint()
            for _ in range(SWEPT_PAGES):
                self._sweep()
                await trio.lowlevel.checkpoint()

    def _prune(self) -> None:
        """Windows of partitions in use grow with every message: forget what nobody can ask for any more."""
        now = self._core.clock.now()
        directory = self._core.directory
        for _ in range(STEP):
            pid, at = next(iter(self._windows.items()), (0, now + 1))
            if at > now:
                return
            del self._windows[pid]
            partition = directory.active.get(pid)
            if partition is not None:
                self._prune_one(partition)
                if partition.remembers:
                    self._windows[pid] = now + PRUNE
                if partition.idle:
                    self._used.setdefault(pid, now)

    def _sweep(self) -> None:
        """The packed ones of the next page, in turns: their windows end while nobody uses them."""
        directory = self._core.directory
        self._page = directory.packed.after(self._page)
        now = self._core.clock.now()

        @cache
        def before(qid: int) -> int:
            return now - window_of(directory.queues[directory.queue_names[qid]].options)

        for pid, packed in directory.packed.page(self._page):
            directory.prune(pid, packed, before)

    def _prune_one(self, partition: PartitionState) -> None:
        window = window_of(self._core.directory.queue_of(partition).options)
        partition.prune(self._core.clock.now() - window)

    def passivate(self, *, everything: bool = False) -> int:
        """Prune the windows of partitions that nobody used for a while, and pack away those that are idle then.
        Returns how many were packed."""
        directory = self._core.directory
        for pid in directory.woken:
            if pid not in self._used:
                self._use(pid)
        directory.woken.clear()
        now = self._core.clock.now()
        before = now - (0 if everything else IDLE)
        if everything:
            while self._cached:
                self._drop_oldest()
        packed: list[int] = []
        for _ in range(len(self._used) if everything else STEP):
            pid, at = next(iter(self._used.items()), (0, before + 1))
            if at > before:
                break
            del self._used[pid]
            partition = directory.active.get(pid)
            if partition is None:
                continue
            self._prune_one(partition)
            if partition.idle:
                packed.append(pid)
            else:
                self._used[pid] = now  # to be looked at again
        count = directory.passivate(packed)
        for pid in packed:
            self._windows.pop(pid, None)
        if packed:
            directory.active = slim(directory.active)
            self._used, self._windows = slim(self._used), slim(self._windows)
        return count

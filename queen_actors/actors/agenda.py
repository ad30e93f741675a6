"""An agenda: what is to be done when, taken in order of time by one task that sleeps until the next is due."""

from __future__ import annotations

import heapq
from collections.abc import Iterable

import trio

from queen_actors.ports import Clock

Item = tuple[str, str]
"""What is due: two names; items that are due at the same instant are taken in the order of their names."""


class Agenda:
    """Items by the instant at which they are due. An item stands in it once, at the earliest instant that was asked
    for, and cannot be taken back: who gets it checks that it is due indeed, and adds it again if it is not."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[tuple[int, Item]] = []
        self._at: dict[Item, int] = {}
        self._poke = trio.Event()

    def __len__(self) -> int:
        return len(self._at)

    def add(self, at: int, item: Item) -> None:
        """`item` is due at `at` (microseconds), if it is not due earlier; wakes the task when it is the next."""
        known = self._at.get(item)
        if known is not None and known <= at:
            return
        self._at[item] = at
        heapq.heappush(self._heap, (at, item))
        if self._heap[0] == (at, item):
            self._poke.set()

    def replace(self, items: Iterable[tuple[int, Item]]) -> None:
        """Start over with these: after the state was read from the log."""
        self._heap = []
        self._at = {}
        for at, item in items:
            self.add(at, item)
        self._poke.set()

    async def due(self, limit: int) -> list[Item]:
        """Wait until something is due, then take up to `limit` of what is due, in order. Never early."""
        while True:
            taken = self._take(self._clock.now(), limit)
            if taken:
                return taken
            self._poke = trio.Event()
            if not self._heap:
                await self._poke.wait()
                continue
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._until, self._heap[0][0], nursery.cancel_scope)
                await self._poke.wait()
                nursery.cancel_scope.cancel()

    def _take(self, now: int, limit: int) -> list[Item]:
        taken: list[Item] = []
        while self._heap and self._heap[0][0] <= now and len(taken) < limit:
            at, item = heapq.heappop(self._heap)
            if self._at.get(item) == at:  # else it was asked for earlier, and has been taken then
                del self._at[item]
                taken.append(item)
        return taken

    async def _until(self, at: int, scope: trio.CancelScope) -> None:
        await self._clock.sleep_until(at)
        scope.cancel()

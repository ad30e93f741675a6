"""An agenda: what is to be done when, taken in order of time by one task that sleeps until the next is due."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

import trio

from queen_actors.ports import Clock

T = TypeVar("T")
Item = tuple[str, str]
"""What is due: two names; items that are due at the same instant are taken in the order of their names."""
SLACK = 64
"""How many outdated entries a heap may hold before it is made anew, whatever its size."""


class Deadlines(Generic[T]):
    """Items by instant. An item stands in it once, at the earliest instant that was asked for.

    Whatever was asked for and is outdated takes at most as much memory again as what is not: items come and go by the
    million (a timer that is scheduled for a month ahead and cancelled a second later), so nothing may be left over.
    """

    __slots__ = ("_at", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[int, Any]] = []
        self._at: dict[T, int] = {}

    def __len__(self) -> int:
        return len(self._at)

    def add(self, at: int, item: T) -> bool:
        """`item` is due at `at`, if it is not due earlier; whether it is the next of all now."""
        known = self._at.get(item)
        if known is not None and known <= at:
            return False
        self._at[item] = at
        heapq.heappush(self._heap, (at, item))
        self._tidy()
        return self._heap[0][0] == at

    def discard(self, item: T) -> None:
        """Nothing is to be done about `item` any more."""
        if self._at.pop(item, None) is not None:
            self._tidy()

    def clear(self) -> None:
        self._heap.clear()
        self._at.clear()

    @property
    def next_at(self) -> int | None:
        """When the next item is due, or None when there is none."""
        heap = self._heap
        while heap and self._at.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def take(self, now: int, limit: int) -> list[T]:
        """Take out up to `limit` items that are due at `now`, in order."""
        taken: list[T] = []
        heap, at = self._heap, self._at
        while heap and heap[0][0] <= now and len(taken) < limit:
            due, item = heapq.heappop(heap)
            if at.get(item) == due:
                del at[item]
                taken.append(item)
        return taken

    def _tidy(self) -> None:
        if len(self._heap) > 2 * len(self._at) + SLACK:
            self._heap = [(at, item) for item, at in self._at.items()]
            heapq.heapify(self._heap)


class Agenda:
    """Deadlines with somebody who waits for them. Who gets an item checks that it is due indeed, and adds it again if
    it is not."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._deadlines: Deadlines[Item] = Deadlines()
        self._poke = trio.Event()

    def __len__(self) -> int:
        return len(self._deadlines)

    def add(self, at: int, item: Item) -> None:
        """`item` is due at `at` (microseconds), if it is not due earlier; wakes the task when it is the next."""
        if self._deadlines.add(at, item):
            self._poke.set()

    def discard(self, item: Item) -> None:
        """Nothing is to be done about `item` any more."""
        self._deadlines.discard(item)

    def replace(self, items: Iterable[tuple[int, Item]]) -> None:
        """Start over with these: after the state was read from the log."""
        self._deadlines.clear()
        for at, item in items:
            self._deadlines.add(at, item)
        self._poke.set()

    async def due(self, limit: int) -> list[Item]:
        """Wait until something is due, then take up to `limit` of what is due, in order. Never early; always a
        checkpoint, so that a long agenda does not keep everybody else waiting."""
        await trio.lowlevel.checkpoint()
        while True:
            taken = self._deadlines.take(self._clock.now(), limit)
            if taken:
                return taken
            self._poke = trio.Event()
            at = self._deadlines.next_at
            if at is None:
                await self._poke.wait()
                continue
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._until, at, nursery.cancel_scope)
                await self._poke.wait()
                nursery.cancel_scope.cancel()

    async def _until(self, at: int, scope: trio.CancelScope) -> None:
        await self._clock.sleep_until(at)
        scope.cancel()

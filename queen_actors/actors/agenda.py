"""An agenda: what is to be done when, taken in order of time by one task that sleeps until the next is due."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import trio
from sortedcontainers import SortedList

from queen_actors.ports import Clock

T = TypeVar("T")
Item = tuple[str, str]
"""What is due: two names; items that are due at the same instant are taken in the order of their names."""
SLOT_BITS = 30
"""A slot of time is 2**30 microseconds, 18 minutes: what lies at least a whole one ahead is far off."""
SHORT = 512
"""Names of one kind and slot that are kept as a plain list."""
STEP = 500
"""Items that come near before others may run: a millisecond."""
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


class Far:
    """Items whose time is far off, by the slot of time in which it lies: 8 bytes each beyond their texts.

    Millions of timers and keys wait for hours and days, and most are cancelled or written again before their time:
    an entry of `Deadlines` takes 250 bytes. Here only the names are kept, in order, so that whoever knows when an item
    was due can take it out.
    """

    __slots__ = ("_count", "_slots", "next_slot")

    def __init__(self) -> None:
        self._slots: dict[int, dict[str, list[str] | SortedList[str]]] = {}
        self._count = 0
        self.next_slot: int | None = None
        """The first slot that has an item."""

    def __len__(self) -> int:
        return self._count

    def add(self, at: int, item: Item) -> bool:
        """`item` is due at `at`; whether its slot is the first of all now."""
        slot, (kind, name) = at >> SLOT_BITS, item
        names = self._slots.setdefault(slot, {}).setdefault(kind, [])
        if isinstance(names, list):
            place = bisect_left(names, name)
            if place < len(names) and names[place] == name:
                return False
            names.insert(place, name)
            if len(names) > SHORT:
                self._slots[slot][kind] = SortedList(names)
        elif name not in names:
            names.add(name)
        else:
            return False
        self._count += 1
        if self.next_slot is None or slot < self.next_slot:
            self.next_slot = slot
            return True
        return False

    def discard(self, at: int, item: Item) -> None:
        """Take out an item that was added with this instant, if it is there."""
        slot, (kind, name) = at >> SLOT_BITS, item
        names = self._slots.get(slot, {}).get(kind)
        if names is None:
            return
        place = bisect_left(names, name) if isinstance(names, list) else names.bisect_left(name)
        if place < len(names) and names[place] == name:
            del names[place]
            self._count -= 1
            self._tidy(slot, kind)

    def take(self, limit: int) -> list[Item]:
        """Take out up to `limit` items of the first slot, in no order of time."""
        slot = self.next_slot
        if slot is None:
            return []
        kind, names = next(iter(self._slots[slot].items()))
        taken = [names.pop() for _ in range(min(limit, len(names)))]
        self._count -= len(taken)
        self._tidy(slot, kind)
        return [(kind, name) for name in taken]

    def _tidy(self, slot: int, kind: str) -> None:
        kinds = self._slots[slot]
        if not kinds[kind]:
            del kinds[kind]
            if not kinds:
                del self._slots[slot]
                if slot == self.next_slot:
                    self.next_slot = min(self._slots, default=None)


class Agenda:
    """Deadlines with somebody who waits for them. Who gets an item checks that it is due indeed, and adds it again if
    it is not."""

    def __init__(self, clock: Clock, due_of: Callable[[Item], int | None] | None = None) -> None:
        """`due_of` says when an item is due, or None when nothing is to be done about it: with it, items that are far
        off are kept as `Far`."""
        self._clock = clock
        self._due_of = due_of
        self._deadlines: Deadlines[Item] = Deadlines()
        self._far = Far()
        self._edge = 0
        """The first slot whose items are `far`; it moves on with the time."""
        self._poke = trio.Event()

    def __len__(self) -> int:
        return len(self._deadlines) + len(self._far)

    def add(self, at: int, item: Item, before: int | None = None) -> None:
        """`item` is due at `at` (microseconds), if it is not due earlier; wakes the task when it is the next. `before`
        is when it was due until now, if it was, and is so no more."""
        far = self._due_of is not None and at >> SLOT_BITS >= self._far_from()
        if before is not None:
            if far and at >> SLOT_BITS == before >> SLOT_BITS:
                return  # it is where it belongs
            self.discard(item, before)
        if self._far.add(at, item) if far else self._deadlines.add(at, item):
            self._poke.set()

    def discard(self, item: Item, before: int | None = None) -> None:
        """Nothing is to be done any more about `item`, which was due at `before`."""
        self._deadlines.discard(item)
        if before is not None and len(self._far):
            self._far.discard(before, item)

    def replace(self, items: Iterable[tuple[int, Item]]) -> None:
        """Start over with these: after the state was read from the log."""
        self._deadlines.clear()
        self._far = Far()
        for at, item in items:
            self.add(at, item)
        self._poke.set()

    def _far_from(self) -> int:
        if not len(self._far):
            self._edge = (self._clock.now() >> SLOT_BITS) + 2
        return self._edge

    async def _come_near(self) -> None:
        """Items of which the slot is near by now become deadlines, some at a time."""
        assert self._due_of is not None
        self._edge = near = max(self._edge, (self._clock.now() >> SLOT_BITS) + 2)
        while self._far.next_slot is not None and self._far.next_slot < near:
            for item in self._far.take(STEP):
                at = self._due_of(item)
                if at is not None:
                    self._deadlines.add(at, item)
            await trio.lowlevel.checkpoint()

    @property
    def _wake_at(self) -> int | None:
        """When something is due, or becomes near: whole slots before it is due."""
        at, slot = self._deadlines.next_at, self._far.next_slot
        coming = None if slot is None else (slot - 1) << SLOT_BITS
        return min((one for one in (at, coming) if one is not None), default=None)

    async def due(self, limit: int) -> list[Item]:
        """Wait until something is due, then take up to `limit` of what is due, in order. Never early; always a
        checkpoint, so that a long agenda does not keep everybody else waiting."""
        await trio.lowlevel.checkpoint()
        while True:
            if len(self._far):
                await self._come_near()
            taken = self._deadlines.take(self._clock.now(), limit)
            if taken:
                return taken
            self._poke = trio.Event()
            at = self._wake_at
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

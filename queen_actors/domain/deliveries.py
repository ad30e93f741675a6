"""What the groups of an ephemeral queue have before them, and what is with their consumers (`domain/ephemeral.py`)."""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Iterator

from msgspec import Struct


class Message(Struct):
    """A message as it waits; `owed` is how many groups have not finished it."""

    number: int
    partition: str
    payload: bytes
    at: int
    owed: int = 0


class Cursor:
    """One group in one partition: what it was never given, and what comes back to it, each by its number."""

    __slots__ = ("again", "again_order", "attempts", "ready")

    def __init__(self) -> None:
        self.ready: deque[Message] = deque()
        self.again: dict[int, Message] = {}
        self.again_order: list[int] = []
        """A heap of the numbers in `again`, and of some that have left it."""
        self.attempts: dict[int, int] = {}

    @property
    def available(self) -> int:
        return len(self.ready) + len(self.again)

    def put_back(self, message: Message) -> None:
        self.again[message.number] = message
        heapq.heappush(self.again_order, message.number)

    def take(self) -> Message:
        """The first of what is available: what comes back is older than what was never given."""
        while self.again_order:
            message = self.again.pop(heapq.heappop(self.again_order), None)
            if message is not None:
                return message
        return self.ready.popleft()

    def lose(self, message: Message) -> bool:
        """The oldest message of all is gone; was it available?"""
        self.attempts.pop(message.number, None)
        if self.again.pop(message.number, None) is not None:
            return True
        if self.ready and self.ready[0] is message:
            self.ready.popleft()
            return True
        return False


class Group:
    """One group: its cursors where there is something, in the order in which they are served next."""

    __slots__ = ("available", "cursors", "skipped", "turn")

    def __init__(self) -> None:
        self.cursors: dict[str, Cursor] = {}
        self.turn: OrderedDict[str, None] = OrderedDict()
        self.available = 0
        self.skipped = 0

    def cursor(self, partition: str) -> Cursor:
        found = self.cursors.get(partition)
        if found is None:
            found = self.cursors[partition] = Cursor()
        return found

    def more(self, partition: str) -> None:
        self.available += 1
        self.turn[partition] = None

    def less(self, partition: str) -> None:
        self.available -= 1
        if not self.cursors[partition].available:
            self.turn.pop(partition, None)

    def tidy(self, partition: str, leased: bool) -> None:
        """A cursor with nothing in it is none; `leased`: something of it is with a consumer."""
        cursor = self.cursors.get(partition)
        if cursor is not None and not leased and not cursor.available:
            del self.cursors[partition]


_Held = tuple[str, int]
"""(group, number) of a message that is with a consumer."""


class Leases:
    """What is with consumers, until when. The heap has outdated entries, at most as many as there are others."""

    __slots__ = ("_counts", "_ends", "_heap")

    def __init__(self) -> None:
        self._ends: dict[_Held, int] = {}
        self._heap: list[tuple[int, _Held]] = []
        self._counts: dict[tuple[str, str], int] = {}

    def add(self, group: str, message: Message, end: int) -> None:
        held = (group, message.number)
        self._ends[held] = end
        heapq.heappush(self._heap, (end, held))
        place = (group, message.partition)
        self._counts[place] = self._counts.get(place, 0) + 1
        if len(self._heap) > 2 * len(self._ends) + 64:
            self._heap = [(end, held) for held, end in self._ends.items()]
            heapq.heapify(self._heap)

    def remove(self, group: str, message: Message) -> bool:
        """The consumer has it no more; had it?"""
        if self._ends.pop((group, message.number), None) is None:
            return False
        place = (group, message.partition)
        self._counts[place] -= 1
        if not self._counts[place]:
            del self._counts[place]
        return True

    def held(self, group: str, partition: str) -> bool:
        return (group, partition) in self._counts

    @property
    def next_end(self) -> int | None:
        while self._heap and self._ends.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now: int) -> Iterator[_Held]:
        """What has run out; each must be removed before the next is asked for."""
        while (end := self.next_end) is not None and end <= now:
            yield self._heap[0][1]

    def clear(self) -> None:
        self._ends.clear()
        self._heap.clear()
        self._counts.clear()

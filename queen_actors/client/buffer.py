"""What has come and waits for the user: in the order of coming, or, for several workers, by partition.

A partition's next messages are handed out when those before them are settled or lost. So the messages of one partition
are handled one after the other, whoever handles them, and those of several at once.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Protocol

from .message import Message


class Buffer(Protocol):
    """Messages that are here. Nothing of it waits; what is in it is bounded by the subscription's credit."""

    def __len__(self) -> int: ...

    @property
    def ready(self) -> bool:
        """Whether `take` has something to give."""
        ...

    def add(self, message: Message) -> None:
        """One more of its partition, behind those that are here."""
        ...

    def take(self, most: int) -> list[Message]:
        """Hand out at least one message, and `most` at most. There must be one that is ready."""
        ...

    def drop(self, stale: Callable[[Message], bool]) -> None:
        """Forget messages that were not handed out."""
        ...

    def settled(self, message: Message, completed: bool) -> None:
        """A message that was handed out has its verdict."""
        ...

    def lost(self, gone: Callable[[Message], bool]) -> None:
        """What was handed out, and of which this is true, is not to be waited for."""
        ...


class InOrder:
    """As they came, whoever asks."""

    def __init__(self) -> None:
        self._messages: deque[Message] = deque()

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def ready(self) -> bool:
        """As `Buffer.ready`."""
        return bool(self._messages)

    def add(self, message: Message) -> None:
        """As `Buffer.add`."""
        self._messages.append(message)

    def take(self, most: int) -> list[Message]:
        """As `Buffer.take`: of any partitions."""
        return [self._messages.popleft() for _ in range(min(most, len(self._messages)))]

    def drop(self, stale: Callable[[Message], bool]) -> None:
        """As `Buffer.drop`."""
        self._messages = deque(message for message in self._messages if not stale(message))

    def settled(self, message: Message, completed: bool) -> None:
        """Nobody waits for it here."""

    def lost(self, gone: Callable[[Message], bool]) -> None:
        """Nobody waits for it here."""


class Lanes:
    """A lane for each partition, of which at most `workers` are handed out at once; each has its turn."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._lanes: dict[str, deque[Message]] = {}
        self._free: OrderedDict[str, None] = OrderedDict()
        """Partitions with messages here of which none is out, in the order of their turns."""
        self._out: dict[str, Message] = {}
        """The last message of each partition that is handed out and not settled."""
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def ready(self) -> bool:
        """As `Buffer.ready`."""
        return bool(self._free) and len(self._out) < self._workers

    def add(self, message: Message) -> None:
        """As `Buffer.add`."""
        partition = message.partition_id
        self._lanes.setdefault(partition, deque()).append(message)
        self._size += 1
        if partition not in self._out:
            self._free[partition] = None

    def take(self, most: int) -> list[Message]:
        """As `Buffer.take`: of one partition, and one lease."""
        partition, _ = self._free.popitem(last=False)
        lane = self._lanes[partition]
        lease = lane[0].lease_id
        taken: list[Message] = []
        while lane and len(taken) < most and lane[0].lease_id == lease:
            taken.append(lane.popleft())
        if not lane:
            del self._lanes[partition]
        self._out[partition] = taken[-1]
        self._size -= len(taken)
        return taken

    def drop(self, stale: Callable[[Message], bool]) -> None:
        """As `Buffer.drop`."""
        for partition, lane in list(self._lanes.items()):
            kept = deque(message for message in lane if not stale(message))
            self._size -= len(lane) - len(kept)
            if kept:
                self._lanes[partition] = kept
            else:
                del self._lanes[partition]
                self._free.pop(partition, None)

    def settled(self, message: Message, completed: bool) -> None:
        """As `Buffer.settled`; an ack settles the earlier ones of its partition, any other verdict ends the lease."""
        last = self._out.get(message.partition_id)
        if last is not None and last.lease_id == message.lease_id and not (completed and message.offset < last.offset):
            self._let_go(message.partition_id)

    def lost(self, gone: Callable[[Message], bool]) -> None:
        """As `Buffer.lost`."""
        for partition, last in list(self._out.items()):
            if gone(last):
                self._let_go(partition)

    def _let_go(self, partition: str) -> None:
        del self._out[partition]
        if partition in self._lanes:
            self._free[partition] = None

"""Which partitions have something for which group, and who waits for it.

For each (queue, group) that consumes there is an index of ready partitions, served round robin, and of partitions
that become ready at a known time (a lease ends, a delay or a quiet window is over). Neither is in the log: they are
made from the partitions' states, and a pop never looks at partitions that have nothing for it.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator

import trio

from queen_actors.domain.effects import CursorPut, QueueOptions
from queen_actors.domain.partition import PartitionState
from queen_actors.domain.queue import QueueState
from queen_actors.errors import Overloaded
from queen_actors.limits import PARKED_POPS_PER_QUEUE
from queen_actors.values import SECOND


def visible_at(partition: PartitionState, head: int, options: QueueOptions) -> int:
    """When the message at `head` may be delivered: its delay and the partition's quiet window are over then (7.4)."""
    at = 0
    if options.delayed_processing_seconds:
        entry = partition.entry(head)  # None: older than the index window, which is longer than any delay
        if entry is not None:
            at = entry.ts + options.delayed_processing_seconds * SECOND
    if options.window_buffer_seconds:
        at = max(at, partition.last_ts + options.window_buffer_seconds * SECOND)
    return at


def claimable_at(partition: PartitionState, cursor: CursorPut, options: QueueOptions, now: int) -> int | None:
    """When the group can take something from the partition: not after `now` means at once, None not until a push."""
    if cursor.lease_id and cursor.lease_expires > now:
        return cursor.lease_expires
    head = partition.floor(cursor.committed) + 1
    if head >= partition.next_offset:
        return None
    return visible_at(partition, head, options)


class GroupIndex:
    """The partitions of one queue as one group sees them."""

    __slots__ = ("_due", "_later", "group", "queue", "ready")

    def __init__(self, queue: str, group: str) -> None:
        self.queue = queue
        self.group = group
        self.ready: OrderedDict[int, None] = OrderedDict()  # O(1) at both ends, unlike a dict
        self._later: list[tuple[int, int]] = []
        self._due: dict[int, int] = {}

    def is_ready(self, pid: int) -> None:
        """Something may be there for the group: the next pop looks."""
        self.ready[pid] = None

    def rest(self, pid: int) -> None:
        """Nothing is there until something happens to the partition."""
        self.ready.pop(pid, None)

    def later(self, pid: int, at: int) -> None:
        """Nothing is there before `at`."""
        self.ready.pop(pid, None)
        known = self._due.get(pid)
        if known is None or at < known:
            self._due[pid] = at
            heapq.heappush(self._later, (at, pid))

    def promote(self, now: int) -> list[int]:
        """Those whose time has come are ready again."""
        found: list[int] = []
        while self._later and self._later[0][0] <= now:
            at, pid = heapq.heappop(self._later)
            if self._due.get(pid) == at:
                del self._due[pid]
                self.ready[pid] = None
                found.append(pid)
        return found

    @property
    def next_at(self) -> int | None:
        return self._later[0][0] if self._later else None

    def round(self) -> Iterator[int]:
        """The ready partitions once around; one that is looked at goes to the end of the line."""
        for _ in range(len(self.ready)):
            pid = next(iter(self.ready), None)
            if pid is None:
                return
            self.ready.move_to_end(pid)
            yield pid


class Waiter:
    """A parked pop."""

    __slots__ = ("event", "group", "namespace", "partition", "queue", "task")

    def __init__(
        self, group: str, queue: str | None, partition: str | None, namespace: str | None, task: str | None
    ) -> None:
        self.group = group
        self.queue = queue
        self.partition = partition
        self.namespace = namespace
        self.task = task
        self.event = trio.Event()

    def wants(self, queue: QueueState) -> bool:
        """For a discovery pop: is this queue one of those that it asked for?"""
        return queue.matches(self.namespace, self.task)


_Place = tuple[str, str | None]
"""(group, partition or None for any): pops that wait for the same thing."""
_Line = OrderedDict[Waiter, None]
"""First come, first served; a woken pop has left the line."""


class Waiters:
    """Parked pops. One ready partition wakes one of them for each group; who finds nothing parks again."""

    def __init__(self) -> None:
        self._queues: dict[str, dict[_Place, _Line]] = {}
        self._discovery: dict[str, _Line] = {}

    def park(self, waiter: Waiter) -> None:
        """Raises Overloaded when more wait for this queue (or for any by discovery) than may."""
        if waiter.queue is not None:
            places = self._queues.setdefault(waiter.queue, {})
            line = places.setdefault((waiter.group, waiter.partition), OrderedDict())
        else:
            line = self._discovery.setdefault(waiter.group, OrderedDict())
        if len(line) >= PARKED_POPS_PER_QUEUE:
            raise Overloaded("too many pops wait for this queue already")
        line[waiter] = None

    def leave(self, waiter: Waiter) -> None:
        """It waits no more: it was woken, its time is over, or its caller is gone."""
        if waiter.queue is None:
            line = self._discovery.get(waiter.group)
            if line is not None:
                line.pop(waiter, None)
                if not line:
                    del self._discovery[waiter.group]
            return
        places = self._queues.get(waiter.queue)
        if places is None:
            return
        place = (waiter.group, waiter.partition)
        line = places.get(place)
        if line is not None:
            line.pop(waiter, None)
            if not line:
                del places[place]
                if not places:
                    del self._queues[waiter.queue]

    def wake(self, queue: QueueState, partition: str, group: str | None = None) -> None:
        """The partition may have something: for `group`, or for every group (None)."""
        places = self._queues.get(queue.name)
        if places is not None:
            for (waiting, wanted), line in places.items():
                if line and (group is None or waiting == group) and (wanted is None or wanted == partition):
                    line.popitem(last=False)[0].event.set()
        if self._discovery:
            lines = self._discovery if group is None else {group} & self._discovery.keys()
            for name in lines:
                line = self._discovery[name]
                waiter = next((waiter for waiter in line if waiter.wants(queue)), None)
                if waiter is not None:
                    del line[waiter]
                    waiter.event.set()

    def wake_all(self) -> None:
        """Everything may have changed: after a reload, or because the broker stops."""
        lines = [line for places in self._queues.values() for line in places.values()]
        for line in (*lines, *self._discovery.values()):
            while line:
                line.popitem(last=False)[0].event.set()

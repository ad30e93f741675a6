"""Which partitions have something for which group, and who waits for it.

For each (queue, group) that consumes there is an index of ready partitions, served round robin, and of partitions
that become ready at a known time (a lease ends, a delay or a quiet window is over). Neither is in the log: they are
made from the partitions' states, and a pop never looks at partitions that have nothing for it.
"""

from __future__ import annotations

import sys
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

import trio

from queen_actors.domain.effects import CursorPut, QueueOptions
from queen_actors.domain.partition import PartitionState
from queen_actors.domain.queue import QueueState
from queen_actors.errors import Overloaded
from queen_actors.limits import PARKED_POPS_PER_QUEUE
from queen_actors.values import SECOND

from .agenda import Deadlines


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

    __slots__ = ("_later", "_unseen", "group", "pauses", "queue", "ready", "start", "whole")

    def __init__(self, queue: str, group: str, pauses: tuple[int, int]) -> None:
        self.queue = queue
        self.group = group
        self.ready: OrderedDict[int, None] = OrderedDict()  # O(1) at both ends, unlike a dict
        self._unseen = array("q")
        self._later: Deadlines[int] = Deadlines()
        self.whole = False
        """Whether every partition of the queue was taken in; pops of one partition each do not need that."""
        self.pauses = pauses
        self.start: tuple[str, int] | None = None
        """Delay and window, and the registered start, under which partitions were put aside: when these change, what
        was put aside must be looked at again."""

    @property
    def any(self) -> bool:
        """May any partition have something?"""
        return bool(self.ready or self._unseen)

    @property
    def unseen(self) -> int:
        """How many partitions were not looked at yet."""
        return len(self._unseen)

    def all_ready(self, pids: Iterable[int]) -> None:
        """Something may be in each of these. They come into the line as they are looked at: there may be millions."""
        self._unseen = array("q", pids)
        self._unseen.reverse()

    def is_ready(self, pid: int) -> None:
        """Something may be there for the group: the next pop looks."""
        self.ready[pid] = None

    def rest(self, pid: int) -> None:
        """Nothing is there until something happens to the partition."""
        self.ready.pop(pid, None)

    def later(self, pid: int, at: int) -> bool:
        """Nothing is there before `at`; whether that is the next time of all now."""
        self.ready.pop(pid, None)
        return self._later.add(at, pid)

    def due(self, now: int, limit: int) -> list[int]:
        """Take out up to `limit` of those whose time has come; they are `is_ready`, `later` or `rest` after that."""
        return self._later.take(now, limit)

    @property
    def next_at(self) -> int | None:
        return self._later.next_at

    def round(self, unseen: int = sys.maxsize, loaded: Iterable[int] = ()) -> Iterator[int]:
        """The ready partitions once around: those that something was `loaded` of, those that were not looked at yet (up
        to so many of them), then the least recently looked at. What is not taken out of the line, or `passed`, is the
        next again."""
        seen_before = len(self.ready)
        for known in loaded:
            if known in self.ready:
                seen_before -= 1
                yield known
        left = max(0, len(self._unseen) - unseen)
        while len(self._unseen) > left:
            new = self._unseen.pop()
            if new not in self.ready:
                self.ready[new] = None
                self.ready.move_to_end(new, last=False)
                yield new
        for _ in range(seen_before):
            pid = next(iter(self.ready), None)
            if pid is None:
                return
            yield pid

    def first(self, pid: int) -> None:
        """It could not be served this time: it is the next to be looked at."""
        if pid in self.ready:
            self.ready.move_to_end(pid, last=False)

    def passed(self, pid: int) -> None:
        """It was looked at: it goes to the end of the line."""
        if pid in self.ready:
            self.ready.move_to_end(pid)


Labels = tuple[str | None, str | None]
"""What a discovery pop asks for: (namespace, task), None for any."""


class Bell:
    """A `trio.Event` for one task that waits, in a quarter of the memory: there may be 20,000 of them."""

    __slots__ = ("_rung", "_task")

    def __init__(self) -> None:
        self._rung = False
        self._task: trio.lowlevel.Task | None = None

    def is_set(self) -> bool:
        return self._rung

    def set(self) -> None:
        """Wake who waits, and let nobody wait any more."""
        self._rung = True
        if self._task is not None:
            trio.lowlevel.reschedule(self._task)
            self._task = None

    async def wait(self) -> None:
        """Return when it is set. Always a checkpoint."""
        if self._rung:
            await trio.lowlevel.checkpoint()
            return
        assert self._task is None, "a bell is one task's"
        self._task = trio.lowlevel.current_task()

        def abort(_: trio.lowlevel.RaiseCancelT) -> trio.lowlevel.Abort:
            self._task = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)


class Waiter:
    """A pop that waits: for a queue, and perhaps for one partition of it, or for whatever has these labels. `event` is
    that of its present turn in a line."""

    __slots__ = ("event", "group", "labels", "partition", "queue")

    def __init__(
        self, group: str, queue: str | None, partition: str | None, namespace: str | None, task: str | None
    ) -> None:
        self.group = group
        self.queue = queue
        self.partition = partition
        self.labels: Labels = (namespace or None, task or None)
        self.event = Bell()


_Line = OrderedDict[Waiter, None]
"""First come, first served; a woken pop has left the line."""
_Place = TypeVar("_Place")


class Lines(Generic[_Place]):
    """Lines by group, and within a group by what is waited for."""

    __slots__ = ("groups", "seated", "seats")

    def __init__(self) -> None:
        self.groups: dict[str, dict[_Place, _Line]] = {}
        self.seats = 0
        """How many pops wait, those included that were woken and look."""
        self.seated: dict[str, int] = {}
        """How many of them by group."""

    def enter(self, group: str) -> None:
        if self.seats >= PARKED_POPS_PER_QUEUE:
            raise Overloaded("too many pops wait for this queue already")
        self.seats += 1
        self.seated[group] = self.seated.get(group, 0) + 1

    def exit(self, group: str) -> None:
        self.seats -= 1
        self.seated[group] -= 1
        if not self.seated[group]:
            del self.seated[group]

    def park(self, place: _Place, waiter: Waiter) -> None:
        self.groups.setdefault(waiter.group, {}).setdefault(place, OrderedDict())[waiter] = None

    def leave(self, place: _Place, waiter: Waiter) -> None:
        line = self.groups.get(waiter.group, {}).get(place)
        if line is not None and waiter in line:
            del line[waiter]
            self._tidy(waiter.group, place)

    def wake(self, group: str, place: _Place, *, everybody: bool = False) -> None:
        """Wake who is first in one line, or all of it."""
        line = self.groups.get(group, {}).get(place)
        if line is None:
            return
        for _ in range(len(line) if everybody else 1):
            line.popitem(last=False)[0].event.set()
        self._tidy(group, place)

    def wake_all(self) -> None:
        for group, places in list(self.groups.items()):
            for place in list(places):
                self.wake(group, place, everybody=True)

    def _tidy(self, group: str, place: _Place) -> None:
        places = self.groups[group]
        if not places[place]:
            del places[place]
            if not places:
                del self.groups[group]


class Waiters:
    """Parked pops. One ready partition wakes one of them for each group; who finds nothing parks again."""

    def __init__(self) -> None:
        self._queues: dict[str, Lines[str | None]] = {}
        self._discovery: Lines[Labels] = Lines()

    @property
    def any(self) -> bool:
        """Does any pop wait?"""
        return bool(self._queues or self._discovery.seats)

    def __len__(self) -> int:
        """How many pops wait."""
        return self._discovery.seats + sum(lines.seats for lines in self._queues.values())

    def enter(self, waiter: Waiter) -> None:
        """A pop is going to wait, for as long as until it `leaves`, perhaps many times in between. Raises Overloaded
        when more wait for this queue (or for any by discovery) than may."""
        self._lines(waiter).enter(waiter.group)

    def park(self, waiter: Waiter) -> None:
        """Stand in line, at its end; `waiter.event` is set, and the line left, when there may be something."""
        waiter.event = Bell()
        if waiter.queue is None:
            self._discovery.park(waiter.labels, waiter)
        else:
            self._queues[waiter.queue].park(waiter.partition, waiter)

    def step_out(self, waiter: Waiter) -> None:
        """Stand in line no more: it was woken, its time is over, or its caller is gone."""
        if waiter.queue is None:
            self._discovery.leave(waiter.labels, waiter)
        else:
            self._queues[waiter.queue].leave(waiter.partition, waiter)

    def leave(self, waiter: Waiter) -> None:
        """It waits no more at all."""
        lines = self._lines(waiter)
        lines.exit(waiter.group)
        if waiter.queue is not None and not lines.seats:
            del self._queues[waiter.queue]

    def seated(self, queue: str, group: str) -> bool:
        """Does any pop of the group wait for this queue, or look whether it has something?"""
        lines = self._queues.get(queue)
        return (lines is not None and group in lines.seated) or group in self._discovery.seated

    def _lines(self, waiter: Waiter) -> Lines[str | None] | Lines[Labels]:
        if waiter.queue is None:
            return self._discovery
        return self._queues.setdefault(waiter.queue, Lines())

    def wake(self, queue: QueueState, partition: str, group: str | None = None) -> None:
        """The partition may have something: for `group`, or for every group (None)."""
        lines = self._queues.get(queue.name)
        if lines is not None:
            for name in list(lines.groups) if group is None else (group,):
                lines.wake(name, None)
                lines.wake(name, partition)
        self._discover(queue, group)

    def wake_line(self, queue: QueueState, group: str | None = None) -> None:
        """Every partition may have something: for `group`, or for every group (None)."""
        lines = self._queues.get(queue.name)
        if lines is not None:
            for name in list(lines.groups) if group is None else (group,):
                for place in list(lines.groups.get(name, ())):
                    lines.wake(name, place)
        self._discover(queue, group)

    def _discover(self, queue: QueueState, group: str | None) -> None:
        if self._discovery.seats:
            for name in list(self._discovery.groups) if group is None else (group,):
                for labels in _labels(queue):
                    self._discovery.wake(name, labels)

    def wake_group(self, queue: QueueState, group: str) -> None:
        """Whoever waits in this group has to come in anew."""
        lines = self._queues.get(queue.name)
        if lines is not None:
            for place in list(lines.groups.get(group, ())):
                lines.wake(group, place, everybody=True)
        for labels in _labels(queue):
            self._discovery.wake(group, labels, everybody=True)

    def wake_all(self) -> None:
        """Everything may have changed: after a reload, or because the broker stops."""
        for lines in self._queues.values():
            lines.wake_all()
        self._discovery.wake_all()


def _labels(queue: QueueState) -> Iterator[Labels]:
    """The labels under which a discovery pop finds this queue (`QueueState.matches`)."""
    namespace, task = queue.put.namespace, queue.put.task
    yield None, None
    if namespace:
        yield namespace, None
        if task:
            yield namespace, task
    if task:
        yield None, task

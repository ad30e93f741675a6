"""What is ready for whom: the indexes of every consuming group, kept in step with the log, and the parked pops."""

from __future__ import annotations

from collections.abc import Iterable

from queen_actors.domain.cursor import Claim
from queen_actors.domain.effects import (
    Appended,
    CursorDropped,
    CursorPut,
    Effect,
    GroupDropped,
    GroupPut,
    QueueDropped,
    QueueOptions,
    QueuePut,
)
from queen_actors.domain.partition import PartitionState
from queen_actors.domain.queue import QueueState

from .acks import Acks
from .agenda import Agenda
from .core import Core
from .queue import GroupIndex, Waiters, claimable_at

STEP = 1000
"""How many partitions of one group are promoted before others may run: a few milliseconds."""


class Ready:
    """The indexes of one broker. They are made at a group's first pop, and are nothing but a reading of the state. One
    that is not `whole` is there for the times at which something is to be looked at, and goes with the last of them."""

    def __init__(self, core: Core, acks: Acks) -> None:
        self._core = core
        self._acks = acks
        self._indexes: dict[str, dict[str, GroupIndex]] = {}
        self._agenda = Agenda(core.clock)
        self.waiters = Waiters()

    def index(self, queue: QueueState, group: GroupPut, *, whole: bool) -> GroupIndex:
        """The group's index; at its first `whole` use every partition of the queue may have something for it."""
        if self._core.directory.queues.get(queue.name) is not queue:
            return GroupIndex(
                queue.name, group.group, _pauses(queue.options)
            )  # the queue is only about to be made: it has no partition
        index = self._indexes.get(queue.name, {}).get(group.group) or self._new(queue, group.group)
        if index.start is None:
            index.start = (group.mode, group.from_ts)
        if whole and not index.whole:
            index.whole = True
            index.all_ready(queue.partitions.values())
            self._keep(index)
        return index

    def _new(self, queue: QueueState, group: str) -> GroupIndex:
        """One that is not kept yet: pops of one partition name any group, and need none where nothing is to come."""
        return GroupIndex(queue.name, group, _pauses(queue.options))

    def _keep(self, index: GroupIndex) -> None:
        self._indexes.setdefault(index.queue, {})[index.group] = index

    def _known(self, queue: QueueState, group: str) -> GroupIndex:
        index = self._indexes.get(queue.name, {}).get(group)
        if index is None:
            index = self._new(queue, group)
            self._keep(index)
        return index

    def left(self, group: str, claims: Iterable[Claim]) -> bool:
        """Has one of the queues that were just claimed from something more for the group?"""
        indexes = (self._indexes.get(name, {}).get(group) for name in {claim.queue for claim in claims})
        return any(index is not None and index.any for index in indexes)

    def aside(self, index: GroupIndex, pid: int, at: int | None) -> None:
        """The partition has nothing for the group before `at`, or (None) until something happens to it."""
        if at is None:
            index.rest(pid)
        else:
            if not index.whole:
                self._keep(index)
            if index.later(pid, at):
                self._arm(index)

    def promote(self, queue: QueueState, index: GroupIndex, now: int) -> None:
        """Partitions whose time has come: whoever held them is told, and whoever waits for them looks."""
        directory = self._core.directory
        for pid in index.due(now, STEP):
            if directory.at_rest(pid, index.group):
                index.rest(pid)  # its lease was given back long ago: it is not to be unpacked for the time that it had
                continue
            partition = directory.partition(pid)
            if partition is None:
                continue
            self._acks.expire(partition, index.group, now)
            cursor = partition.cursors.get(index.group)
            at = now if cursor is None else claimable_at(partition, cursor, queue.options, now)
            if at is None or at > now:
                self.aside(index, pid, at)
            else:
                self._free(partition, index.group)
        self._arm(index)
        if not index.whole and index.next_at is None:
            self._indexes.get(queue.name, {}).pop(index.group, None)

    def _arm(self, index: GroupIndex) -> None:
        """See to it that somebody looks when the next of its partitions becomes ready."""
        at = index.next_at
        if at is not None:
            self._agenda.add(at, (index.queue, index.group))

    async def run(self) -> None:
        """Wake parked pops when a lease ends, a delay is over or a quiet window has passed; for ever."""
        while True:
            for name, group in await self._agenda.due(1):
                queue = self._core.directory.queues.get(name)
                index = self._indexes.get(name, {}).get(group)
                if queue is not None and index is not None:
                    self.promote(queue, index, self._core.clock.now())

    # -- what happens ----------------------------------------------------------------------------------------------

    def observe(self, effect: Effect) -> None:
        """An effect was applied: who may have something to take now? Of what most effects are, tell `appended` and
        `moved`."""
        directory = self._core.directory
        if isinstance(effect, CursorDropped):
            partition = directory.partition(effect.pid)
            if partition is not None:
                self._free(partition, effect.group)
        elif isinstance(effect, GroupPut):
            self._registered(effect)
        elif isinstance(effect, GroupDropped):
            name = directory.queue_names.get(effect.qid)
            if name is not None:
                self._indexes.get(name, {}).pop(effect.group, None)
                self.waiters.wake_group(directory.queues[name], effect.group)
        elif isinstance(effect, QueueDropped):
            self._indexes.pop(effect.name, None)
        elif isinstance(effect, QueuePut):
            self._configured(directory.queues[effect.name])

    def appended(self, effect: Appended) -> None:
        """Messages were appended."""
        directory = self._core.directory
        partition = directory.active[effect.pid]
        name = directory.queue_names[partition.qid]
        indexes = self._indexes.get(name)
        if indexes is not None:
            for index in indexes.values():
                if index.whole:
                    index.is_ready(partition.pid)
        if self.waiters.any:
            self.waiters.wake(directory.queues[name], partition.name)

    def moved(self, cursor: CursorPut) -> None:
        """A cursor was put: it has a lease, or what it has not committed is free."""
        partition = self._core.directory.partition(cursor.pid)
        if partition is None:
            return
        if not cursor.lease_id:
            if partition.floor(cursor.committed) + 1 < partition.next_offset:
                self._free(partition, cursor.group)
            return
        queue = self._core.directory.queue_of(partition)
        index = self._indexes.get(queue.name, {}).get(cursor.group)
        self.aside(self._known(queue, cursor.group) if index is None else index, cursor.pid, cursor.lease_expires)

    def _free(self, partition: PartitionState, group: str) -> None:
        queue = self._core.directory.queue_of(partition)
        index = self._indexes.get(queue.name, {}).get(group)
        if index is not None and index.whole:
            index.is_ready(partition.pid)
        self.waiters.wake(queue, partition.name, group)

    def _registered(self, group: GroupPut) -> None:
        """A registration that moved: later first contacts may find more."""
        name = self._core.directory.queue_names.get(group.qid)
        index = self._indexes.get(name or "", {}).get(group.group)
        if name is None or index is None or index.start == (group.mode, group.from_ts):
            return
        index.start = (group.mode, group.from_ts)
        self._all(self._core.directory.queues[name], index)

    def _configured(self, queue: QueueState) -> None:
        """Options changed: delays and windows may be shorter now, and labels may suit another pop."""
        pauses = _pauses(queue.options)
        for index in self._indexes.get(queue.name, {}).values():
            if index.pauses != pauses:
                index.pauses = pauses
                self._all(queue, index)
        if queue.partitions:
            self.waiters.wake_line(queue)

    def _all(self, queue: QueueState, index: GroupIndex) -> None:
        if index.whole:
            index.all_ready(queue.partitions.values())
        self.waiters.wake_line(queue, index.group)

    def reset(self) -> None:
        """The directory was read again from the log: every index is made anew, and every parked pop looks again."""
        directory = self._core.directory
        self._indexes.clear()
        self._agenda.replace(())
        for pid, group in self._acks.holds():  # their sessions are told when they expire, whoever pops then
            partition = directory.partition(pid)
            if partition is not None:
                index = self._known(directory.queue_of(partition), group)
                self.aside(index, pid, partition.cursors[group].lease_expires)
        self.waiters.wake_all()


def _pauses(options: QueueOptions) -> tuple[int, int]:
    return options.delayed_processing_seconds, options.window_buffer_seconds

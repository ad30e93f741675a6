"""Retention: messages that nobody may read any more leave the log (`wire-messaging.md` 21).

Each partition of a queue with a limit stands in an agenda for the time at which its oldest message passes the limit, so
that a sweep looks only at partitions that have something to lose. What lies below a partition's `log_start` is gone for
every reader; the store drops a segment when nothing in it lies above.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum

from queen_actors.domain.cursor import overtaken
from queen_actors.domain.effects import (
    Appended,
    Effect,
    PartitionPut,
    QueueDropped,
    QueueOptions,
    QueuePut,
    Recent,
    Record,
)
from queen_actors.domain.partition import PartitionState
from queen_actors.errors import QueenError
from queen_actors.values import SECOND

from .agenda import Agenda
from .core import Core, Draft
from .partition import Producers, offset_at

SWEEP = 256
"""How many partitions one sweep looks at before others may run."""
AGAIN = 5 * SECOND
"""How soon a partition is looked at again that keeps, for now, what is older than its limit (a consumer is behind)."""


class Rule(Enum):
    """Which of the messages that are too old go."""

    ANY = "any"
    FINISHED = "what every cursor has committed"
    UNFINISHED = "what one cursor has not committed, or nobody has touched"


def limits_of(options: QueueOptions) -> Iterator[tuple[int, Rule]]:
    """The limits that are on: ages in microseconds."""
    if options.retention_enabled and options.retention_seconds > 0:
        yield options.retention_seconds * SECOND, Rule.ANY
    if options.retention_enabled and options.completed_retention_seconds > 0:
        yield options.completed_retention_seconds * SECOND, Rule.FINISHED
    if options.max_wait_seconds > 0:
        yield options.max_wait_seconds * SECOND, Rule.UNFINISHED


def bounded(rule: Rule, partition: PartitionState, at: int) -> int:
    """How far the start may move when the messages below `at` are too old."""
    committed = [cursor.committed for cursor in partition.cursors.values()]
    if rule is Rule.FINISHED:
        return min([at, *(offset + 1 for offset in committed)]) if committed else partition.log_start
    if rule is Rule.UNFINISHED and committed and min(committed) >= at - 1:
        return partition.log_start  # all of it was consumed in time: it waits no more
    return at


class Retention:
    """The sweeping of one broker's partitions."""

    def __init__(self, core: Core, producers: Producers) -> None:
        self._core = core
        self._producers = producers
        self._agenda = Agenda(core.clock)
        self._ages: dict[int, int] = {}
        """The lowest limit of each queue that has one, by its number."""

    def observe(self, effect: Effect) -> None:
        """An effect was applied: is there something with an age limit now?"""
        if isinstance(effect, Appended):
            if not self._ages:
                return
            partition = self._core.directory.partition(effect.pid)
            age = None if partition is None else self._ages.get(partition.qid)
            if age is not None:
                self._agenda.add(effect.records[0].ts + age, ("partition", str(effect.pid)))
        elif isinstance(effect, QueuePut):
            self._plan_all(effect.name)
        elif isinstance(effect, QueueDropped):
            self._ages.pop(effect.qid, None)

    def reset(self) -> None:
        """The directory was read from the log: every partition with a limit is looked at soon."""
        self._agenda.replace(())
        self._ages.clear()
        for name in list(self._core.directory.queues):
            self._plan_all(name)

    def _plan_all(self, name: str) -> None:
        queue = self._core.directory.queues[name]
        age = min((age for age, _ in limits_of(queue.options)), default=None)
        if age is None:
            self._ages.pop(queue.put.qid, None)
            return
        self._ages[queue.put.qid] = age
        now = self._core.clock.now()
        for pid in queue.partitions.values():
            self._agenda.add(now, ("partition", str(pid)))

    async def run(self) -> None:
        """Move the start of partitions past what is too old; for ever."""
        while True:
            due = [int(pid) for _, pid in await self._agenda.due(SWEEP)]
            try:
                await self._sweep(due)
            except QueenError:  # the log takes no writes now: later
                for pid in due:
                    self._agenda.add(self._core.clock.now() + AGAIN, ("partition", str(pid)))

    async def _sweep(self, pids: list[int]) -> None:
        core = self._core
        await core.turn(())
        now = core.clock.now()
        sealed = {pid: await self._sealed(pid, now) for pid in pids}
        await core.turn(())
        draft = Draft(core)
        for pid, told in sealed.items():
            partition = core.directory.partition(pid)
            if partition is None:
                continue
            start = self._start(partition, now, told)
            if start > partition.log_start:
                draft.add(_cut(partition, start))
        core.commit(draft)
        for pid in pids:
            await self._look_again(pid, now)
        await core.log.durable()

    async def _sealed(self, pid: int, now: int) -> dict[int, int]:
        """By age, the first offset that is not older, where only the store can tell."""
        found: dict[int, int] = {}
        partition = self._core.directory.partition(pid)
        if partition is None:
            return found
        base = partition.base
        for age, _ in limits_of(self._core.directory.queue_of(partition).options):
            if offset_at(partition, now - age) is None:
                at = await self._producers.first_offset_at(pid, now - age)
                found[age] = base if at is None else at
        return found

    def _start(self, partition: PartitionState, now: int, sealed: Mapping[int, int]) -> int:
        """Where the partition begins when every limit is applied at `now`, by the cursors as they are at the decision:
        an ack may have been refused, or a group moved back, while the store was asked."""
        start = partition.log_start
        for age, rule in limits_of(self._core.directory.queue_of(partition).options):
            at = offset_at(partition, now - age)
            if at is None:
                at = sealed.get(age, partition.log_start)
            start = max(start, bounded(rule, partition, at))
        return min(start, partition.next_offset)

    async def _look_again(self, pid: int, now: int) -> None:
        """When the oldest message that is left passes a limit; soon, where it has passed one and is kept for now."""
        partition = self._core.directory.partition(pid)
        if partition is None or partition.next_offset == partition.log_start:
            return
        head: Record | Recent | None = partition.entry(partition.log_start)
        if head is None:  # in a segment, and outside the index window
            first = partition.log_start
            found = await self._producers.fetch(pid, first, 1, 1)
            head = found[0] if found else None
            partition = self._core.directory.partition(pid)
            if head is None or partition is None:
                return
        for age, rule in limits_of(self._core.directory.queue_of(partition).options):
            at = head.ts + age
            self._agenda.add(at if rule is Rule.ANY or at > now else now + AGAIN, ("partition", str(pid)))


def _cut(partition: PartitionState, start: int) -> Iterator[Effect]:
    """The partition starts at `start`; groups that were behind are moved on, and a lease of what is gone ends."""
    yield PartitionPut(partition.pid, partition.qid, partition.name, partition.created_at, start)
    for cursor in partition.cursors.values():
        if cursor.committed < start - 1:
            yield overtaken(cursor, start - 1)

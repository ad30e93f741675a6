"""Groups and queues as a whole: what operators and dashboards read.

Everything here looks at every partition of what it is asked about. It does so without waking packed ones, gives way
often, and waits at the end until what it shows is durable.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import trio

from queen_actors.domain.cursor import fresh, leased, processing
from queen_actors.domain.effects import CursorPut
from queen_actors.domain.overview import BesideQueues, GroupLine, PartitionDepth, PartitionLag, QueueDepth, QueueLine
from queen_actors.domain.partition import PartitionState
from queen_actors.domain.queue import QueueState, first_wanted, pending
from queen_actors.values import QUEUE_MODE

from .core import Core
from .partition import Producers, offset_at

STEP = 500
"""How many partitions are looked at before others may run: a millisecond or two."""


class Overview:
    """The reading of one broker's queues and groups."""

    def __init__(self, core: Core, producers: Producers) -> None:
        self._core = core
        self._producers = producers

    async def _partitions(self, queue: QueueState) -> AsyncIterator[PartitionState]:
        for place, pid in enumerate(queue.partitions.values()):
            if place % STEP == STEP - 1:
                await trio.lowlevel.checkpoint()
            partition = self._core.directory.peek(pid)
            if partition is not None:
                yield partition

    # -- groups ----------------------------------------------------------------------------------------------------

    async def lags(self, group: str | None = None) -> list[PartitionLag]:
        """Every cursor, or those of one group, with how far it is behind."""
        return await self._core.seen(lambda: self._lags(group))

    async def _lags(self, group: str | None) -> list[PartitionLag]:
        found: list[PartitionLag] = []
        for queue in list(self._core.directory.queues.values()):
            async for partition in self._partitions(queue):
                wanted = [cursor for cursor in partition.cursors.values() if group is None or cursor.group == group]
                found += [await self._lag(queue, partition, cursor) for cursor in wanted]
        return found

    async def _lag(self, queue: QueueState, partition: PartitionState, cursor: CursorPut) -> PartitionLag:
        lag = pending(partition.next_offset, partition.log_start, cursor)
        oldest = await self._written(partition, partition.floor(cursor.committed) + 1) if lag else None
        live = leased(cursor, self._core.clock.now())
        return PartitionLag(
            queue.name,
            partition.name,
            partition.pid,
            cursor.group,
            cursor.lease_id if live else "",
            live,
            cursor.committed,
            lag,
            oldest,
        )

    async def _written(self, partition: PartitionState, offset: int) -> int | None:
        """When the message at this offset was appended."""
        entry = partition.entry(offset)
        if entry is not None:
            return entry.ts
        found = await self._producers.read(partition, offset, 1, 1)
        return found[0].ts if found else None

    async def groups(self) -> list[GroupLine]:
        """One line for each group in each queue where it has a cursor."""
        return await self._core.seen(self._groups)

    async def _groups(self) -> list[GroupLine]:
        lines: dict[tuple[str, str], list[PartitionLag]] = {}
        for lag in await self._lags(None):
            lines.setdefault((lag.queue, lag.group), []).append(lag)
        return [self._line(queue, group, lags) for (queue, group), lags in lines.items()]

    def _line(self, name: str, group: str, lags: list[PartitionLag]) -> GroupLine:
        queue = self._core.directory.queues.get(name)
        return GroupLine(
            group,
            name,
            None if queue is None else queue.groups.get(group),
            len({lag.lease_id for lag in lags if lag.leased}),
            len(lags),
            sum(1 for lag in lags if lag.lag),
            sum(lag.lag for lag in lags),
            min((lag.oldest for lag in lags if lag.oldest is not None), default=None),
        )

    # -- queues ----------------------------------------------------------------------------------------------------

    async def queues(self) -> list[QueueLine]:
        """Every queue with its counts, newest first."""
        return await self._core.seen(self._queues)

    async def _queues(self) -> list[QueueLine]:
        found = [await self._queue(queue) for queue in list(self._core.directory.queues.values())]
        found.sort(key=lambda line: (line.view.created_at, line.view.qid), reverse=True)
        return found

    async def queues_and_groups(self) -> tuple[list[QueueLine], list[GroupLine]]:
        """Both lists."""

        async def look() -> tuple[list[QueueLine], list[GroupLine]]:
            return await self._queues(), await self._groups()

        return await self._core.seen(look)

    async def _queue(self, queue: QueueState) -> QueueLine:
        now = self._core.clock.now()
        count = total = waiting = busy = 0
        async for partition in self._partitions(queue):
            named = [cursor for group, cursor in partition.cursors.items() if group != QUEUE_MODE]
            cursors = named or list(partition.cursors.values())
            count += 1
            total += partition.next_offset - partition.log_start
            lags = [pending(partition.next_offset, partition.log_start, cursor) for cursor in cursors]
            waiting += max(lags, default=partition.next_offset - partition.log_start)
            busy += max((processing(cursor, now) for cursor in cursors), default=0)
        return QueueLine(queue.view(), count, total, waiting, busy, len(queue.dead))

    async def depth(self, name: str, group: str) -> QueueDepth | None:
        """What the group has before it in each partition; None when there is no such queue."""
        return await self._core.seen(lambda: self._depth(name, group))

    async def _depth(self, name: str, group: str) -> QueueDepth | None:
        queue = self._core.directory.queues.get(name)
        if queue is None:
            return None
        now = self._core.clock.now()
        known = queue.groups.get(group)
        found: list[PartitionDepth] = []
        async for partition in self._partitions(queue):
            cursor = partition.cursors.get(group)
            if cursor is None:
                cursor = fresh(partition.pid, group, await self._start(queue, partition, group))
            left = pending(partition.next_offset, partition.log_start, cursor)
            found.append(PartitionDepth(partition.name, left, min(processing(cursor, now), left)))
        return QueueDepth(name, group, known is not None and known.conflation, tuple(found))

    async def _start(self, queue: QueueState, partition: PartitionState, group: str) -> int:
        """The committed offset with which the group would start in a partition that it has not touched."""
        known = queue.groups.get(group)
        since = None if known is None else first_wanted(known)
        if since is None:
            return partition.log_start - 1
        at = offset_at(partition, since)
        if at is None:
            at = await self._producers.first_offset_at(partition.pid, since)
        return (partition.base if at is None else at) - 1

    async def sizes(self, name: str) -> dict[str, int] | None:
        """Payload bytes that are kept, by partition; None when there is no such queue."""
        return await self._core.seen(lambda: self._sizes(name))

    async def _sizes(self, name: str) -> dict[str, int] | None:
        queue = self._core.directory.queues.get(name)
        if queue is None:
            return None
        found: dict[str, int] = {}
        async for partition in self._partitions(queue):
            found[partition.name] = sum(len(record.payload) for record in partition.tail)
            first = partition.sealed_end
            if first > partition.log_start:
                sealed = await self._producers.size(partition.pid, partition.log_start, first - 1)
                found[partition.name] += sealed
        return found

    # -- what needs no partition -----------------------------------------------------------------------------------

    def conflating(self, group: str) -> list[str]:
        """The queues in which the group conflates."""
        queues = self._core.directory.queues.values()
        return [queue.name for queue in queues if group in queue.groups and queue.groups[group].conflation]

    def rows(self) -> BesideQueues:
        """The keys, unswept ones included, and the pending timers."""
        namespaces, timers = self._core.directory.namespaces.values(), self._core.directory.timers.values()
        return BesideQueues(
            sum(map(len, namespaces)),
            sum(namespace.size for namespace in namespaces),
            sum(map(len, timers)),
            sum(queue.size for queue in timers),
        )

"""Reading without a lease or a cursor: by offset, by change, by list (`wire-messaging.md` 14, 15 and 16)."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import trio

from queen_actors import limits
from queen_actors.domain.cursor import leased
from queen_actors.domain.effects import DeadLetterPut, Record, TracePut
from queen_actors.domain.overview import (
    ChangedPage,
    ChangedPartition,
    Fetched,
    FetchEntry,
    ListedMessage,
    MessageFilter,
    TraceName,
)
from queen_actors.domain.partition import PartitionState
from queen_actors.domain.queue import QueueState
from queen_actors.values import QUEUE_MODE, SECOND

from .arrivals import Arrivals
from .core import Core
from .log import deferral
from .partition import Producers, offset_at

STEP = 500
"""How many partitions are looked at before others may run."""


class Reads:
    """The offset readers, lists and traces of one broker."""

    def __init__(self, core: Core, producers: Producers, arrivals: Arrivals) -> None:
        self._core = core
        self._producers = producers
        self._arrivals = arrivals

    # -- by offset -------------------------------------------------------------------------------------------------

    async def fetch(self, entries: Sequence[FetchEntry], max_bytes: int, min_bytes: int, wait: int) -> list[Fetched]:
        """Records of each entry from its offset on, exactly one answer per entry and in their order.

        Waits up to `wait` microseconds until there are at least `min_bytes` of payload.
        """
        later, asked = deferral.get(), trio.current_time()
        if later is not None and wait:  # when it is made again, it waits until it would have
            _, asked = later.asked = later.asked or (0, asked)
        deadline = asked + wait / SECOND
        with self._arrivals.watch(entry.queue for entry in entries) as watch:
            while True:
                watch.clear()
                if later is not None:
                    later.position = 0  # of what it saw the last time nothing is told
                found = await self._core.seen(lambda: self._fetch(entries, max_bytes))
                size = sum(len(record.payload) for answer in found for record in answer.records)
                enough = size >= min_bytes or any(answer.error for answer in found)
                if enough or trio.current_time() >= deadline:
                    return found
                with trio.move_on_at(deadline):
                    await watch.wait()

    async def _fetch(self, entries: Sequence[FetchEntry], max_bytes: int) -> list[Fetched]:
        found: list[Fetched] = []
        room = max_bytes
        for entry in entries:  # where there is no room left, an entry before this one got data
            answer = await self._fetch_one(entry, min(entry.max_bytes, room))
            room -= sum(len(record.payload) for record in answer.records)
            found.append(answer)
        return found

    async def _fetch_one(self, entry: FetchEntry, room: int) -> Fetched:
        directory = self._core.directory
        queue = directory.queues.get(entry.queue)
        if queue is None:
            return Fetched(entry, (), 0, 0, "UNKNOWN_TOPIC_OR_PARTITION")
        pid = queue.partitions.get(entry.partition)
        partition = None if pid is None else directory.peek(pid)
        if partition is None:
            return Fetched(entry, (), 0, 0)
        end, start = partition.next_offset, partition.log_start
        if not start <= entry.offset <= end:
            return Fetched(entry, (), end, start, "OFFSET_OUT_OF_RANGE")
        records: tuple[Record, ...] = ()
        if room > 0:
            records = await self._producers.read(partition, entry.offset, limits.FETCH_RECORDS, room)
        return Fetched(entry, self._core.cipher.plain_all(records), end, start)

    # -- by change -------------------------------------------------------------------------------------------------

    async def changed(self, wanted: Sequence[tuple[str, int, int, int]]) -> list[ChangedPage | None]:
        """For each queue, instant `since`, partition id `after` and limit: partitions of the queue, in the order of
        their creation, that were written at or after `since`; those behind `after`. None when there is no such
        queue."""

        async def look() -> list[ChangedPage | None]:
            return [await self._changed(*one) for one in wanted]

        return await self._core.seen(look)

    async def _changed(self, queue: str, since: int, after: int, limit: int) -> ChangedPage | None:
        safe = self._core.clock.now()  # what is written while this looks around may be missed
        state = self._core.directory.queues.get(queue)
        if state is None:
            return None
        found: list[ChangedPartition] = []
        more = False
        for place, pid in enumerate(state.partitions.behind(after)):
            if place % STEP == STEP - 1:
                await trio.lowlevel.checkpoint()
            partition = self._core.directory.peek(pid)
            if partition is None or partition.last_ts < since:
                continue
            if len(found) == limit:
                more = True
                break
            last = partition.last_ts or None
            found.append(ChangedPartition(partition.name, pid, partition.next_offset - 1, partition.log_start, last))
        return ChangedPage(tuple(found), found[-1].pid if more else None, safe)

    # -- by list ---------------------------------------------------------------------------------------------------

    async def messages(self, wanted: MessageFilter) -> list[ListedMessage]:
        """Messages that fit, newest first: `offset` of them left out, `limit` at the most."""
        return await self._core.seen(lambda: self._messages(wanted))

    async def _messages(self, wanted: MessageFilter) -> list[ListedMessage]:
        queues = [
            queue
            for queue in self._core.directory.queues.values()
            if (wanted.queue is None or queue.name == wanted.queue) and queue.matches(wanted.namespace, wanted.task)
        ]
        places: list[tuple[int, QueueState, PartitionState]] = []
        for queue in queues:
            for count, pid in enumerate(queue.partitions.values()):
                if count % STEP == STEP - 1:
                    await trio.lowlevel.checkpoint()
                partition = self._core.directory.peek(pid)
                if partition is None or partition.last_ts < wanted.since:
                    continue
                if wanted.partition is None or partition.name == wanted.partition:
                    places.append((partition.last_ts, queue, partition))
        places.sort(key=lambda place: place[0], reverse=True)
        newest: list[tuple[int, int, int, ListedMessage]] = []
        count = wanted.offset + wanted.limit
        for last, queue, partition in places:
            if len(newest) == count and last < newest[0][0]:
                break
            for listed in await self._listed(queue, partition, wanted, count):
                heapq.heappush(newest, (listed.record.ts, partition.pid, listed.record.offset, listed))
                if len(newest) > count:
                    heapq.heappop(newest)
        return [row[3] for row in sorted(newest, reverse=True)][wanted.offset :]

    async def appended(self, first: int, step: int, count: int) -> list[int]:
        """How many of the messages that are kept were appended in each of `count` intervals of `step` microseconds."""
        return await self._core.seen(lambda: self._appended(first, step, count))

    async def _appended(self, first: int, step: int, count: int) -> list[int]:
        found = [0] * count
        for queue in list(self._core.directory.queues.values()):
            for place, pid in enumerate(queue.partitions.values()):
                if place % STEP == STEP - 1:
                    await trio.lowlevel.checkpoint()
                partition = self._core.directory.peek(pid)
                if partition is None or partition.last_ts < first:
                    continue
                edges = [await self._offset_at(partition, first + place * step) for place in range(count + 1)]
                for place in range(count):
                    found[place] += edges[place + 1] - edges[place]
        return found

    async def _listed(
        self, queue: QueueState, partition: PartitionState, wanted: MessageFilter, count: int
    ) -> list[ListedMessage]:
        """The newest `count` messages of one partition that fit."""
        first = await self._offset_at(partition, wanted.since)
        end = partition.next_offset if wanted.until is None else await self._offset_at(partition, wanted.until + 1)
        letters = {letter.record.offset: letter for letter in queue.dead.values() if letter.pid == partition.pid}
        found: list[ListedMessage] = []
        while end > first and len(found) < count:
            begin = max(first, end - limits.MESSAGES_PAGE_MAX)
            page: list[Record] = []
            while begin < end:
                step = await self._producers.read(partition, begin, end - begin, limits.POP_BYTES)
                if not step:
                    break
                page.extend(step)
                begin = step[-1].offset + 1
            for record in reversed(page):
                listed = self._status(queue, partition, record, letters.get(record.offset))
                if wanted.status is None or listed.status == wanted.status:
                    found.append(listed)
            end = max(first, end - limits.MESSAGES_PAGE_MAX)
        return found[:count]

    async def _offset_at(self, partition: PartitionState, ts: int) -> int:
        at = offset_at(partition, ts)
        if at is None:
            at = await self._producers.first_offset_at(partition.pid, ts)
        return max(partition.base if at is None else at, partition.log_start)

    def _status(
        self, queue: QueueState, partition: PartitionState, record: Record, letter: DeadLetterPut | None
    ) -> ListedMessage:
        now = self._core.clock.now()
        cursors = list(partition.cursors.values())
        deciding = [cursor for cursor in cursors if cursor.group != QUEUE_MODE] or cursors
        done = sum(1 for cursor in deciding if cursor.committed >= record.offset)
        covering = [c for c in cursors if leased(c, now) and c.committed < record.offset <= c.batch_end]
        if letter is not None:
            status = "dead_letter"
        elif deciding and done == len(deciding):
            status = "completed"
        else:
            status = "processing" if covering else "pending"
        lease = min((cursor.lease_expires for cursor in covering), default=None)
        groups = sum(1 for cursor in cursors if cursor.group != QUEUE_MODE)
        mode = len(cursors) > groups
        plain = self._core.cipher.plain(record)
        return ListedMessage(queue.view(), partition.name, partition.pid, plain, status, done, groups, lease, mode)

    # -- traces ----------------------------------------------------------------------------------------------------

    async def traces(
        self, *, pid: int | None = None, txn: str | None = None, name: str | None = None
    ) -> list[TracePut]:
        """Trace events of one message, or under one name, newest first."""

        def find() -> list[TracePut]:
            return [
                trace
                for trace in reversed(self._core.directory.traces)
                if (pid is None or trace.pid == pid)
                and (txn is None or trace.txn == txn)
                and (name is None or name in trace.names)
            ]

        return await self._core.look(find)

    async def trace_names(self) -> list[TraceName]:
        """Every name under which there are trace events, the last used first."""
        rows = await self._core.look(self._trace_names)
        return sorted(rows, key=lambda row: row.last_seen, reverse=True)

    def _trace_names(self) -> list[TraceName]:
        counts: dict[str, tuple[int, set[tuple[int, str]], int]] = {}
        for trace in self._core.directory.traces:
            for name in trace.names:
                count, messages, _ = counts.get(name, (0, set(), 0))
                messages.add((trace.pid, trace.txn))
                counts[name] = (count + 1, messages, trace.created_at)
        return [TraceName(name, count, len(messages), last) for name, (count, messages, last) in counts.items()]

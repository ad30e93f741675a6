"""What operators and tools read: queues, dead letters, single messages; and trace events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import trio
from msgspec.structs import replace

from queen_actors import limits
from queen_actors.domain.cursor import leased, processing
from queen_actors.domain.effects import CursorPut, DeadLetterPut, Record, TracePut
from queen_actors.domain.partition import PartitionState
from queen_actors.domain.queue import (
    DeadLetterView,
    GroupPosition,
    MessageView,
    PartitionView,
    QueueState,
    QueueView,
    pending,
)
from queen_actors.values import QUEUE_MODE

from .core import Core, Draft
from .partition import Producers

STEP = 500
"""How many partitions are looked at before others may run: a millisecond or two."""


class Views:
    """The reading side of one broker. Every reply waits until what it shows is durable."""

    def __init__(self, core: Core, producers: Producers) -> None:
        self._core = core
        self._producers = producers

    async def queue(self, name: str) -> QueueView | None:
        """The queue with the counts of each of its partitions; None when there is none."""
        return await self._core.seen(lambda: self._queue(name))

    async def _queue(self, name: str) -> QueueView | None:
        state = self._core.directory.queues.get(name)
        return None if state is None else state.view(await self._partitions(state))

    async def _partitions(self, state: QueueState) -> tuple[PartitionView, ...]:
        now = self._core.clock.now()
        dead = Counter(letter.pid for letter in state.dead.values())
        found: list[PartitionView] = []
        for place, pid in enumerate(state.partitions.values()):
            if place % STEP == STEP - 1:
                await trio.lowlevel.checkpoint()
            partition = self._core.directory.peek(pid)
            if partition is not None:
                found.append(_counts(partition, dead[pid], now))
        return tuple(found)

    async def dead_letters(
        self,
        *,
        queue: str | None,
        group: str | None,
        partition: str | None,
        since: int | None,
        until: int | None,
        limit: int,
        offset: int,
    ) -> tuple[list[DeadLetterView], int]:
        """One page, newest first, and how many match in all (11)."""

        def find() -> list[DeadLetterView]:
            return [
                view
                for view in self._letters(queue)
                if (group is None or view.letter.group == group)
                and (partition is None or view.partition == partition)
                and (since is None or view.letter.failed_at >= since)
                and (until is None or view.letter.failed_at <= until)
            ]

        found = await self._core.look(find)
        found.sort(key=lambda view: (view.letter.failed_at, view.letter.id), reverse=True)
        page = [self._plain(view) for view in found[offset : offset + limit]]
        return page, len(found)

    def _letters(self, queue: str | None) -> Iterator[DeadLetterView]:
        directory = self._core.directory
        for name in directory.queues if queue is None else {queue} & directory.queues.keys():
            for letter in directory.queues[name].dead.values():
                place = directory.peek(letter.pid)
                yield DeadLetterView(name, "" if place is None else place.name, letter)

    def _plain(self, view: DeadLetterView) -> DeadLetterView:
        letter = view.letter
        return replace(view, letter=replace(letter, record=self._core.cipher.plain(letter.record)))

    async def message(self, pid: int, txn: str) -> MessageView | None:
        """One message by its partition and transaction id, also when only its dead letter is left (14)."""
        return await self._core.seen(lambda: self._found(pid, txn))

    async def _found(self, pid: int, txn: str) -> MessageView | None:
        record = await self._record(pid, txn)
        partition = self._core.directory.partition(pid)
        if partition is None:
            return None
        queue = self._core.directory.queue_of(partition)
        letter = next((d for d in queue.dead.values() if d.pid == pid and d.record.txn == txn), None)
        if record is None and letter is not None:
            record = letter.record
        return None if record is None else self._message(queue, partition, self._core.cipher.plain(record), letter)

    async def _record(self, pid: int, txn: str) -> Record | None:
        partition = self._core.directory.partition(pid)
        if partition is None:
            return None
        known = partition.known(txn)
        if isinstance(known, Record):
            return known
        offset = await self._producers.find(pid, txn) if known is None else known.offset
        if offset is None or offset < partition.log_start:
            return None
        found = await self._producers.fetch(pid, offset, 1, limits.POP_BYTES)
        return found[0] if found and found[0].txn == txn else None

    def _message(
        self, queue: QueueState, partition: PartitionState, record: Record, letter: DeadLetterPut | None
    ) -> MessageView:
        now = self._core.clock.now()
        groups = tuple(_position(cursor, record.offset, now) for cursor in partition.cursors.values())
        named = [group for group in groups if group.name != QUEUE_MODE]
        deciding = named or groups
        if letter is not None:
            status = "dead_letter"
        elif deciding and all(group.consumed for group in deciding):
            status = "completed"
        elif any(group.lease_expires_at is not None for group in groups):
            status = "processing"
        else:
            status = "pending"
        return MessageView(
            queue.view(),
            partition.name,
            partition.pid,
            record,
            status,
            None if letter is None else letter.error,
            max((cursor.retries for cursor in partition.cursors.values()), default=0)
            if letter is None
            else letter.retry_count,
            groups,
            len(named) < len(groups),
        )

    async def trace(
        self,
        *,
        pid: int | None,
        txn: str,
        group: str,
        names: tuple[str, ...],
        event: str,
        data: bytes,
        worker: str | None,
    ) -> str | None:
        """Write one trace event (15); its id, or None when there is no such partition."""
        await self._core.turn()
        if pid is None or self._core.directory.partition(pid) is None:
            await self._core.log.durable()
            return None
        draft = Draft(self._core)
        mid = self._core.ids.uuid(draft.now)
        draft.effects.append(TracePut(mid, pid, txn, group, names, event, data, worker, draft.now))
        self._core.commit(draft)
        await self._core.log.durable()
        return mid


def _counts(partition: PartitionState, dead: int, now: int) -> PartitionView:
    """Queue level counts go by the named group that is furthest behind, or by queue mode when there is none (13)."""
    named = [cursor for name, cursor in partition.cursors.items() if name != QUEUE_MODE]
    cursors: list[CursorPut | None] = list(named or partition.cursors.values()) or [None]
    total = partition.next_offset - partition.log_start
    left = [pending(partition.next_offset, partition.log_start, cursor) for cursor in cursors]
    worst = max(left)
    busy = max((processing(cursor, now) for cursor in cursors if cursor is not None), default=0)
    first, last = partition.entry(partition.log_start), partition.last_ts or None
    return PartitionView(
        partition.pid,
        partition.name,
        partition.created_at,
        total,
        worst,
        busy,
        total - worst,
        dead,
        last,
        None if first is None else first.ts,
    )


def _position(cursor: CursorPut, offset: int, now: int) -> GroupPosition:
    covered = leased(cursor, now) and cursor.committed < offset <= cursor.batch_end
    return GroupPosition(
        cursor.group, cursor.committed, offset <= cursor.committed, cursor.lease_expires if covered else None
    )

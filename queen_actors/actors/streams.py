"""Streaming queries: registration, reads of their state, and the cycle, which is one step of the log."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from msgspec.structs import replace

from queen_actors.domain import streams as rules
from queen_actors.domain.effects import CursorPut
from queen_actors.domain.partition import PartitionState, PushItem
from queen_actors.domain.queue import QueueState
from queen_actors.domain.streams import (
    Cycle,
    Cycled,
    CycleRefused,
    Mismatch,
    PositionAck,
    Register,
    Registered,
    Settled,
    StateOp,
    StateRead,
    StateRow,
    StreamState,
)
from queen_actors.errors import NotFound

from .core import Core, Draft
from .mailbox import Key
from .partition import Producers


class Streams:
    """The streaming queries of one broker."""

    def __init__(self, core: Core, producers: Producers) -> None:
        self._core = core
        self._producers = producers

    async def register(self, command: Register) -> Registered | Mismatch:
        """Register a query, whose source is created if need be; again with the same shape, it goes on where it was."""
        core = self._core
        await core.turn([("queue", command.source)])
        draft = Draft(core)
        known = core.directory.streams.named(command.name)
        queue = draft.queue(command.source)
        new_id = partial(core.ids.uuid, draft.now)
        reply, put = rules.register(None if known is None else known.put, command, queue.put.qid, draft.now, new_id)
        if put is not None:
            draft.effects.append(put)
        if isinstance(reply, Registered):
            core.commit(draft)
        await core.log.durable()
        return reply

    async def read(self, asked: StateRead) -> list[StateRow]:
        """State rows, in the order of their keys. Raises NotFound for an unknown query, or a partition not its own."""

        def find() -> list[StateRow] | NotFound:
            try:
                stream, _, _ = self._find(asked.query, asked.pid)
            except NotFound as missing:
                return missing
            return stream.read(asked, self._plain)

        found = await self._core.look(find)
        if isinstance(found, NotFound):
            raise found
        return found

    async def cycle(self, cycle: Cycle, *, producer: str | None = None) -> Cycled | CycleRefused:
        """State, pushes and the positional ack in one step, or none of them. Raises NotFound as `read` does."""
        core = self._core
        try:
            _, queue, partition = self._find(cycle.query, cycle.pid)
            await core.turn(_keys(cycle, queue, partition) if core.turns.busy else ())
            draft = Draft(core)
            reply = self._decide(draft, cycle, producer)
            if isinstance(reply, Cycled):
                core.commit(draft)
        except NotFound:
            await core.log.durable()
            raise
        await core.log.durable()
        return reply

    def _decide(self, draft: Draft, cycle: Cycle, producer: str | None) -> Cycled | CycleRefused:
        stream, queue, partition = self._find(cycle.query, cycle.pid)
        settled = self._settle(draft, stream, partition, cycle)
        if isinstance(settled, CycleRefused):
            return settled
        ops = [self._sealed(op) for op in cycle.ops] if queue.options.encryption_enabled else cycle.ops
        changes = rules.change(stream, partition.pid, ops, draft.now, strict=cycle.ack is None)
        if isinstance(changes, CycleRefused):
            return changes
        draft.add(changes)
        items = [replace(item, partition=item.partition or partition.name, producer=producer) for item in cycle.pushes]
        pushed = self._producers.decide(draft, items) if items else ()
        return Cycled(queue.name, len(cycle.ops), tuple(pushed), settled)

    def _settle(
        self, draft: Draft, stream: StreamState, partition: PartitionState, cycle: Cycle
    ) -> Settled | CycleRefused | None:
        if cycle.ack is None:
            return None
        cursor = partition.cursors.get(cycle.group)
        offset = None if cursor is None else _named(partition, cursor, cycle.ack)
        settled = rules.settle(cursor, cycle.ack, cycle.release, draft.now, offset)
        if isinstance(settled, Settled):
            if settled.cursor is not cursor:
                draft.effects.append(settled.cursor)
            if stream.put.group != cycle.group:
                draft.effects.append(replace(stream.put, group=cycle.group, updated_at=draft.now))
        return settled

    def _find(self, query: str, pid: int) -> tuple[StreamState, QueueState, PartitionState]:
        directory = self._core.directory
        stream = directory.streams.get(query)
        partition = directory.partition(pid)
        if stream is None or partition is None or partition.qid != stream.put.qid:
            raise NotFound("not found")
        return stream, directory.queue_of(partition), partition

    def _sealed(self, op: StateOp) -> StateOp:
        """What was made of encrypted payloads is encrypted too."""
        return op if op.value is None else replace(op, value=self._core.cipher.seal(op.value))

    def _plain(self, row: StateRow) -> StateRow:
        return replace(row, value=self._core.cipher.open(row.value))


def _named(partition: PartitionState, cursor: CursorPut, ack: PositionAck) -> int | None:
    """The place of the message that the ack names: where its count leads, if that message has the id; otherwise that of
    one that is done, if one has it. Several messages may."""
    at = cursor.marker + ack.count - 1
    there = partition.entry(at)
    if there is not None and there.txn == ack.txn:
        return at
    return partition.resolve([ack.txn], cursor.committed, cursor.committed, {})[0]


def _keys(cycle: Cycle, queue: QueueState, partition: PartitionState) -> Iterator[Key]:
    """The actors that the cycle touches."""
    yield "partition", f"{queue.name}\x00{partition.name}"
    for item in cycle.pushes:
        yield "partition", _place(item, partition)


def _place(item: PushItem, source: PartitionState) -> str:
    return f"{item.queue}\x00{item.partition or source.name}"

"""The ways into a broker: calls on it in this process, or through the real wire. Both note answers in the same plain
values, so that an auditor need not know which way a call went."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, Protocol, TypeVar

from queen_actors.broker import Broker
from queen_actors.domain.cursor import Ack, PopReply, PopRequest
from queen_actors.domain.kv import GetResult, KvOp, KvResult, Precondition, WriteResult
from queen_actors.domain.locks import Acquire, LockOp, LockResult
from queen_actors.domain.partition import PushItem
from queen_actors.domain.queue import Configure
from queen_actors.domain.timers import TimerOp
from queen_actors.domain.transaction import Committed, Transaction
from queen_actors.errors import Overloaded, QueenError, StorageFailed, StorageFull, Unavailable

T = TypeVar("T")


class Refused(Exception):
    """It is certain that nothing of the call was applied."""


class Unanswered(Exception):
    """Whether the call was applied is not known."""


class Broken(AssertionError):
    """The broker answered with a fault of its own, or with what no client was promised."""


class Face(Protocol):
    """One client's way in. Each call returns plain values, or raises Refused, Unanswered or Broken.

    push: (txn, status, offset, id) for each item. pop: (lease, claims), a claim being (queue, partition, pid, attempt,
    records), a record (offset, txn, id, payload, ts). ack: (success, noop, dlq, lease released) for each. kv:
    "precondition", or for a write (applied, value, version), for a read None or (value, version), and for a read of
    many the rows (key, value, version). locks: (ok, token, already, slot). timers: (status, message id, due) of a
    schedule, (status, txn) of a cancel. transaction: (True, kv) or (False, reason).
    """

    async def push(self, items: Sequence[PushItem]) -> Any: ...
    async def pop(self, request: PopRequest) -> Any: ...
    async def ack(self, acks: Sequence[Ack]) -> Any: ...
    async def release(self, lease: str) -> Any: ...
    async def extend(self, lease: str, seconds: int) -> Any: ...
    async def kv(self, ops: Sequence[KvOp]) -> Any: ...
    async def locks(self, ops: Sequence[LockOp]) -> Any: ...
    async def acquire(self, op: Acquire, wait: int) -> Any: ...
    async def timers(self, ops: Sequence[TimerOp]) -> Any: ...
    async def transaction(self, bundle: Transaction) -> Any: ...
    async def configure(self, command: Configure) -> Any: ...
    async def delete_queue(self, queue: str) -> Any: ...
    async def seek(self, group: str, queue: str, to: int | None) -> Any: ...
    async def delete_group(self, group: str, queue: str) -> Any: ...


async def _asked(call: Awaitable[T]) -> T:
    try:
        return await call
    except (StorageFull, Overloaded) as error:
        raise Refused(error.code) from None
    except (StorageFailed, Unavailable) as error:
        raise Unanswered(error.code) from None
    except QueenError as error:
        raise Broken(f"I17 no call of these is wrong: {error.status} {error.code} {error}") from error


class Direct:
    """Calls on the broker in this process."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    async def push(self, items: Sequence[PushItem]) -> Any:
        found = await _asked(self.broker.push(items))
        return [(o.txn, o.status, o.offset, o.message_id) for o in found]

    async def pop(self, request: PopRequest) -> Any:
        return noted_pop(await _asked(self.broker.pop(request)))

    async def ack(self, acks: Sequence[Ack]) -> Any:
        return [(o.success, o.noop, o.dlq, o.lease_released) for o in await _asked(self.broker.ack(acks))]

    async def release(self, lease: str) -> Any:
        return await _asked(self.broker.release(lease))

    async def extend(self, lease: str, seconds: int) -> Any:
        return (await _asked(self.broker.extend(lease, seconds))).renewed

    async def kv(self, ops: Sequence[KvOp]) -> Any:
        return noted_kv(await _asked(self.broker.kv(ops)))

    async def locks(self, ops: Sequence[LockOp]) -> Any:
        return [_noted_lock(result) for result in await _asked(self.broker.locks(ops))]

    async def acquire(self, op: Acquire, wait: int) -> Any:
        return [_noted_lock(await _asked(self.broker.acquire(op, wait)))]

    async def timers(self, ops: Sequence[TimerOp]) -> Any:
        found = await _asked(self.broker.timers(ops))
        return [(r.status, r.txn) if r.deliver_at is None else (r.status, r.message_id, r.deliver_at) for r in found]

    async def transaction(self, bundle: Transaction) -> Any:
        found = await _asked(self.broker.transaction(bundle))
        return (True, noted_kv(list(found.kv))) if isinstance(found, Committed) else (False, found.reason)

    async def configure(self, command: Configure) -> Any:
        await _asked(self.broker.configure(command))

    async def delete_queue(self, queue: str) -> Any:
        return await _asked(self.broker.delete_queue(queue))

    async def seek(self, group: str, queue: str, to: int | None) -> Any:
        return await _asked(self.broker.seek(group, queue, None, to))

    async def delete_group(self, group: str, queue: str) -> Any:
        return (await _asked(self.broker.delete_group(group, queue, metadata=True))).partitions


def noted_pop(reply: PopReply) -> Any:
    return reply.lease_id, [
        (c.queue, c.partition, c.pid, c.attempt, [(r.offset, r.txn, r.id, r.payload, r.ts) for r in c.records])
        for c in reply.claims
    ]


def noted_kv(found: Sequence[KvResult] | Precondition) -> Any:
    return "precondition" if isinstance(found, Precondition) else [_noted_result(result) for result in found]


def _noted_result(result: KvResult) -> Any:
    if isinstance(result, WriteResult):
        return result.applied, result.value, result.version
    if isinstance(result, GetResult):
        return None if result.row is None else (result.row.value, result.row.version)
    return [(row.key, row.row.value, row.row.version) for row in result.rows]


def _noted_lock(result: LockResult) -> Any:
    return result.ok, result.token, result.already, result.slot

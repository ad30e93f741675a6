"""The ways into a broker: calls on it in this process, or through the real wire. Both note answers in the same plain
values, so that an auditor need not know which way a call went."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar

import trio

from queen_actors.actors.subscription import Subscription, subscribed
from queen_actors.broker import Broker
from queen_actors.domain.cursor import Ack, Claim, PopReply, PopRequest
from queen_actors.domain.ephemeral import EphemeralPop
from queen_actors.domain.kv import GetResult, KvOp, KvResult, Precondition, WriteResult
from queen_actors.domain.locks import Acquire, LockOp, LockResult
from queen_actors.domain.partition import PushItem
from queen_actors.domain.queue import Configure
from queen_actors.domain.streams import Cycle, Cycled, Register, Registered
from queen_actors.domain.subscription import Terms
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


Deal = Callable[[str, list[Any]], Awaitable[None]]


class Face(Protocol):
    """One client's way in. Each call returns plain values, or raises Refused, Unanswered or Broken.

    push: (txn, status, offset, id) for each item. pop: (lease, claims), a claim being (queue, partition, pid, attempt,
    records), a record (offset, txn, id, payload, ts). ack: (success, noop, dlq, lease released) for each. kv:
    "precondition", or for a write (applied, value, version, reason), for a read None or (value, version), and for a
    read of many the rows (key, value, version). locks: (ok, token, already, slot). timers: (status, message id, due)
    of a schedule, (status, txn) of a cancel. transaction: (True, kv) or (False, reason). cycle: True, or the reason of
    its refusal. `subscribe` hands (lease, claims) to `deal` until it is cancelled, or the connection is gone.
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
    async def subscribe(self, terms: Terms, deal: Deal) -> None: ...
    async def register(self, command: Register) -> Any: ...
    async def cycle(self, cycle: Cycle) -> Any: ...
    async def push_ephemeral(self, queue: str, payload: bytes) -> Any: ...
    async def pop_ephemeral(self, queue: str, group: str) -> Any: ...

    # Only on the wire
    async def ask(self, op: str, fields: dict[str, Any]) -> Any:
        """An op by its fields: (status, body)."""
        ...

    async def in_line(self, fields: dict[str, Any], placed: Callable[[], None]) -> Any:
        """As `locks`, of a `lock.acquire`. `placed` is called when a later request on the same connection is answered:
        from then on the acquire stands in the line, if it was not granted."""
        ...

    async def event(self) -> dict[str, Any]:
        """The next event of the WebSocket. Whoever is cancelled has taken nothing."""
        ...

    def hang_up(self) -> None:
        """End the connection."""
        ...


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

    async def subscribe(self, terms: Terms, deal: Deal) -> None:
        try:
            async with subscribed(self.broker, terms) as subscription:
                failed = await _deliver(subscription, deal)
        except QueenError as error:  # at its beginning or its end
            raise Unanswered(error.code) from None
        raise failed

    async def register(self, command: Register) -> Any:
        found = await _asked(self.broker.streams.register(command))
        assert isinstance(found, Registered), "one name, one shape"
        return found.id

    async def cycle(self, cycle: Cycle) -> Any:
        found = await _asked(self.broker.streams.cycle(cycle))
        return True if isinstance(found, Cycled) else found.reason

    async def push_ephemeral(self, queue: str, payload: bytes) -> Any:
        await trio.lowlevel.checkpoint()
        return self.broker.ephemeral.push(queue, "one", [payload])

    async def pop_ephemeral(self, queue: str, group: str) -> Any:
        found = await _asked(self.broker.ephemeral.pop(EphemeralPop(queue, group=group, batch=3, auto_ack=True)))
        return [message.payload for message in found]

    async def ask(self, op: str, fields: dict[str, Any]) -> Any:
        raise Refused(_WIRE_ONLY)

    async def in_line(self, fields: dict[str, Any], placed: Callable[[], None]) -> Any:
        raise Refused(_WIRE_ONLY)

    async def event(self) -> dict[str, Any]:
        raise Refused(_WIRE_ONLY)

    def hang_up(self) -> None:
        return


_WIRE_ONLY = "only on the wire"


async def _deliver(subscription: Subscription, deal: Deal) -> Exception:
    """Hand on what comes; returns why nothing more does."""
    while True:
        try:
            deliveries = await _asked(subscription.next())
        except (Refused, Unanswered) as error:
            return error
        for delivery in deliveries:
            await deal(delivery.lease_id, [noted_claim(delivery.claim)])


def noted_pop(reply: PopReply) -> Any:
    return reply.lease_id, [noted_claim(claim) for claim in reply.claims]


def noted_claim(claim: Claim) -> Any:
    records = [(r.offset, r.txn, r.id, r.payload, r.ts) for r in claim.records]
    return claim.queue, claim.partition, claim.pid, claim.attempt, records


def noted_kv(found: Sequence[KvResult] | Precondition) -> Any:
    return "precondition" if isinstance(found, Precondition) else [_noted_result(result) for result in found]


def _noted_result(result: KvResult) -> Any:
    if isinstance(result, WriteResult):
        return result.applied, result.value, result.version, result.reason
    if isinstance(result, GetResult):
        return None if result.row is None else (result.row.value, result.row.version)
    return [(row.key, row.row.value, row.row.version) for row in result.rows]


def _noted_lock(result: LockResult) -> Any:
    return result.ok, result.token, result.already, result.slot

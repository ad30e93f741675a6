"""`POST /api/v1/transaction` (`wire-kv-locks-timers-transactions.md`, section 5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from queen_actors import limits
from queen_actors.domain.cursor import Ack, AckOutcome
from queen_actors.domain.partition import PushItem, PushOutcome
from queen_actors.domain.transaction import Committed, PositionCommit, RolledBack, Transaction
from queen_actors.errors import BadRequest, QueenError, TooLarge
from queen_actors.values import DEFAULT_PARTITION, QUEUE_MODE

from .ack import ack_status
from .frames import TXN_TOO_LONG, Malformed, check_name, check_names, check_utf8, decode, encode, parse_pid
from .kv import parse_kv_ops
from .kv_results import KvElement, kv_element, lost_detail
from .push import Item, push_items
from .timers import TimerElement, parse_timer_ops, rider_element


class _Operation(Struct, rename="camel"):
    """A push (with `items`, or one item inline) or an ack."""

    type: str
    items: list[Item] | UnsetType = UNSET
    queue: str | UnsetType = UNSET
    payload: Raw | UnsetType = UNSET
    partition: str | None = None
    transaction_id: str | None = None
    trace_id: Any = None
    partition_id: Any = None
    consumer_group: str | None = None
    lease_id: str | None = None
    status: Any = None
    error: Any = None


class _Position(Struct, rename="camel"):
    queue: str
    consumer_group: str
    offset: Annotated[int, Meta(ge=0, le=limits.INT64_MAX)] | None
    partition: str | None = None


class _Body(Struct, rename="camel"):
    operations: list[_Operation] | None = None
    required_leases: list[str] | None = None
    kv: list[Raw] | None = None
    timers: list[Raw] | None = None
    positions: list[_Position] | None = None


class _Pushed(Struct, rename="camel"):
    index: int
    type: str
    success: bool
    transaction_id: str
    message_id: str
    queue_name: str
    duplicate: bool | UnsetType = UNSET


class _Acked(Struct, rename="camel"):
    index: int
    type: str
    success: bool
    transaction_id: str
    error: None
    dlq: bool


class _Positioned(Struct, rename="camel"):
    index: int
    op_index: int
    type: str
    success: bool


class _Answer(Struct, rename="camel"):
    """Both answers; what only a rollback says is left out of a commit. `results` always is there."""

    transaction_id: str
    success: bool
    results: list[_Pushed | _Acked | _Positioned | KvElement | TimerElement]  # only ever encoded
    reason: str | UnsetType = UNSET
    error: str | UnsetType = UNSET
    ok: bool | UnsetType = UNSET
    failed_index: int | UnsetType = UNSET
    kv_reason: str | UnsetType = UNSET
    version: int | UnsetType = UNSET
    value: Raw | UnsetType = UNSET


_body = msgspec.json.Decoder(_Body)


def parse_transaction(
    body: bytes, horizon: int, producer: str | None = None, more: Sequence[PushItem] = ()
) -> Transaction:
    """The bundle, its riders parsed first (5.2). `horizon`: the longest delay of a timer, in microseconds; `more`:
    pushes that come behind the body's own operations.

    Raises BadRequest, TooLarge and Forbidden; `render_refusal` says which of them have the body of 5.4.
    """
    try:
        check_utf8(body)
        parsed = decode(_body, body)
    except (Malformed, msgspec.ValidationError) as wrong:
        raise BadRequest(f"the body is not a transaction: {wrong}") from None
    timers = parse_timer_ops(parsed.timers, horizon) if parsed.timers else ()
    kv = parse_kv_ops(parsed.kv, in_transaction=True) if parsed.kv else ()
    positions = [_position(position) for position in parsed.positions] if parsed.positions else ()
    if len(positions) > limits.TRANSACTION_POSITIONS:
        raise BadRequest(f"{len(positions)} positions; {limits.TRANSACTION_POSITIONS} is the most")
    steps: list[PushItem | Ack] = []
    for operation in parsed.operations or ():
        if operation.type == "ack":
            steps.append(_ack(operation))
        else:
            steps += _pushes(operation)
    steps += more
    if len(steps) + len(timers) > limits.TRANSACTION_STEPS:
        raise BadRequest(
            f"{len(steps)} pushes and acks and {len(timers)} timers; {limits.TRANSACTION_STEPS} is the most"
        )
    if not (steps or kv or timers or positions):
        raise BadRequest("the transaction is empty")
    leases = tuple(parsed.required_leases or ())
    return Transaction(tuple(steps), leases, tuple(kv), tuple(timers), tuple(positions), producer)


def _pushes(operation: _Operation) -> list[PushItem]:
    if operation.type != "push":
        raise BadRequest(f"unknown operation type: {operation.type[:80]!r}")
    if operation.items is not UNSET:
        return push_items(operation.items)
    if operation.queue is UNSET or operation.payload is UNSET:
        raise BadRequest("a push needs `items`, or a `queue` and a `payload` (null is a payload)")
    inline = (operation.partition, operation.transaction_id, operation.trace_id)
    return push_items([Item(operation.queue, operation.payload, *inline)])


def _ack(operation: _Operation) -> Ack:
    if operation.transaction_id is None:
        raise BadRequest("an ack needs a `transactionId`")
    pid = parse_pid(operation.partition_id) if isinstance(operation.partition_id, str) else None
    if pid is None:
        raise BadRequest("an ack needs the `partitionId` that pop gave, decimal digits in a string")
    group = operation.consumer_group or QUEUE_MODE
    if group is not QUEUE_MODE:
        check_name("consumer group", group)
    error = operation.error
    if error is not None and not isinstance(error, str):
        error = encode(error).decode()
    status = ack_status(operation.status)
    return Ack(operation.transaction_id, pid, group, status, operation.lease_id or None, error or None)


def _position(position: _Position) -> PositionCommit:
    partition = position.partition or DEFAULT_PARTITION
    check_names(position.queue, partition, position.consumer_group)
    return PositionCommit(position.queue, position.consumer_group, partition, position.offset)


def render_committed(reply: Committed, transaction_id: str) -> bytes:
    """The flat results: steps, then kv, timers and positions, each rider with its place among its own kind (5.3)."""
    steps: list[Any] = [_step(index, step) for index, step in enumerate(reply.steps)]
    return encode(_Answer(transaction_id, True, steps + render_riders(reply)))


def render_riders(reply: Committed) -> list[Any]:
    """The elements of the riders, whose flat indexes follow those of the steps."""
    first = len(reply.steps)
    results: list[Any] = []
    for op_index, result in enumerate(reply.kv):
        results.append(kv_element(first + len(results), result, op_index))
    for op_index, timer in enumerate(reply.timers):
        results.append(rider_element(timer, first + len(results), op_index))
    for op_index in range(reply.positions):
        results.append(_Positioned(first + len(results), op_index, "position", True))
    return results


def _step(index: int, step: PushOutcome | AckOutcome) -> _Pushed | _Acked:
    if isinstance(step, AckOutcome):
        return _Acked(index, "ack", True, step.txn, None, step.dlq)
    pushed = _Pushed(index, "push", True, step.txn, step.message_id, step.queue)
    if step.status == "duplicate":
        pushed.duplicate = True
    return pushed


def render_rolled_back(reply: RolledBack, transaction_id: str) -> bytes:
    """200: nothing of it happened, and why (5.4). A lost precondition says which, unless the value is too long."""
    answer = _Answer(transaction_id, False, [], reply.reason, reply.error)
    if reply.failed_index is not None:
        lost = lost_detail(reply.failed_index, reply.kv_reason or "", reply.version, reply.value)
        if lost is not None:
            answer.ok, answer.failed_index, answer.kv_reason = False, lost.failed_index, lost.kv_reason
            answer.version, answer.value = lost.version, lost.value
    return encode(answer)


def refusal_reason(error: QueenError) -> str | None:
    """The reason in the 5.4 body of a malformed bundle; None when the answer has the shared error shape instead (5.5):
    a name or a transactionId that is too long, a binary body that cannot be read, and
    everything that is not the bundle's fault."""
    if isinstance(error, TooLarge):
        return error.reason
    if error.status not in (400, 403) or error.code in (TXN_TOO_LONG, "bad_body"):
        return None
    reason = error.reason
    if reason is None:
        return "bad_request" if error.status == 400 else None
    if reason.startswith("kv_") or reason in ("timers_server_owned_field", "timers_horizon"):
        return reason
    return "bad_request"


def render_refusal(error: QueenError, reason: str, transaction_id: str) -> bytes:
    """The body of a bundle that was refused for its shape (5.5)."""
    return encode(_Answer(transaction_id, False, [], reason, error.detail))


REQUEST, POSITION, STEPS = _Body, _Position, (_Pushed, _Acked, _Positioned)
"""The records of this module, for the protocol's description."""

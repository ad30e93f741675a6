"""`/streams/v1/*`: registration of a query, reads of its state, and the cycle (`wire-messaging.md`, section 17)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from queen_actors import limits
from queen_actors.domain.partition import PushItem
from queen_actors.domain.streams import (
    Cycle,
    Cycled,
    CycleRefused,
    Mismatch,
    PositionAck,
    Register,
    Registered,
    StateOp,
    StateRead,
    StateRow,
    group_of,
)
from queen_actors.errors import BadRequest, NotFound, TooLarge
from queen_actors.values import QUEUE_MODE

from .ack import ack_status
from .frames import (
    Malformed,
    check_name,
    check_names,
    check_txn,
    check_utf8,
    decode,
    encode,
    is_uuid,
    parse_pid,
    zulu_time,
)

T = TypeVar("T")


class _Register(Struct):
    name: str = ""
    source_queue: str = ""
    config_hash: str = ""
    sink_queue: str | None = None
    reset: bool | None = None


class _Read(Struct):
    query_id: str = ""
    partition_id: Any = None
    keys: list[str] | None = None
    key_prefix: str | None = None
    ripe_at_or_before: float | None = None


class _Op(Struct):
    type: str
    key: str
    value: Raw | UnsetType = UNSET


class _Push(Struct, rename="camel"):
    queue: str
    payload: Raw
    partition: str | None = None
    transaction_id: str | None = None
    trace_id: Any = None


class _Ack(Struct, rename="camel"):
    transaction_id: str | None = None
    lease_id: str | None = None
    status: Any = None
    count: Annotated[int, Meta(ge=0, le=limits.INT64_MAX)] | None = None


class _Cycle(Struct):
    query_id: str = ""
    partition_id: Any = None
    consumer_group: str | None = None
    state_ops: list[_Op] | None = None
    push_items: list[_Push] | None = None
    ack: _Ack | None = None
    release_lease: bool | None = None


_register = msgspec.json.Decoder(_Register)
_read = msgspec.json.Decoder(_Read)
_cycle = msgspec.json.Decoder(_Cycle)


def _decoded(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """Raises BadRequest: `bad_body` when it is not JSON, `bad_request` when it has another shape."""
    try:
        check_utf8(body)
        return decode(decoder, body)
    except Malformed as wrong:
        raise BadRequest(f"the body is not JSON: {wrong}", code="bad_body") from None
    except msgspec.ValidationError as wrong:
        raise BadRequest(str(wrong)) from None


def parse_register(body: bytes) -> Register:
    """Raises BadRequest, and TooLarge on names over their budget."""
    parsed = _decoded(_register, body)
    for field in ("name", "source_queue", "config_hash"):
        if not getattr(parsed, field):
            raise BadRequest(f"{field} is required")
    check_names(parsed.source_queue, group=group_of(parsed.name))
    sink = parsed.sink_queue or None
    if sink is not None:
        check_names(sink)
    return Register(parsed.name, parsed.source_queue, parsed.config_hash, sink, bool(parsed.reset))


def _address(query: str, partition_id: Any) -> tuple[str, int]:
    if not query:
        raise BadRequest("query_id is required")
    if partition_id is None or partition_id == "":
        raise BadRequest("partition_id is required")
    pid = parse_pid(partition_id)
    if pid is None:
        raise NotFound("not found")
    return query, pid


def parse_state_read(body: bytes) -> StateRead:
    """Raises BadRequest, and NotFound for a partition that cannot be."""
    parsed = _decoded(_read, body)
    keys = tuple(parsed.keys or ())
    if len(keys) > limits.STREAM_OPS:
        raise BadRequest(f"{len(keys)} keys; {limits.STREAM_OPS} is the most")
    address = _address(parsed.query_id, parsed.partition_id)
    return StateRead(*address, keys, parsed.key_prefix or "", parsed.ripe_at_or_before)


def render_state(rows: Sequence[StateRow]) -> bytes:
    shown = [{"key": row.key, "value": Raw(row.value), "updated_at": zulu_time(row.updated_at)} for row in rows]
    return encode({"success": True, "rows": shown})


def render_registered(reply: Registered) -> bytes:
    return encode(
        {
            "success": True,
            "query_id": reply.id,
            "name": reply.name,
            "config_hash": reply.config_hash,
            "fresh": reply.fresh,
            "reset": reply.reset,
        }
    )


def render_mismatch(reply: Mismatch) -> bytes:
    """The body of the 409."""
    return encode({"success": False, "query_id": reply.id, "name": reply.name, "error": reply.error})


def parse_cycle(body: bytes) -> Cycle:
    """Raises BadRequest, TooLarge, and NotFound for a partition that cannot be."""
    parsed = _decoded(_cycle, body)
    query, pid = _address(parsed.query_id, parsed.partition_id)
    group = parsed.consumer_group or QUEUE_MODE
    check_name("consumer group", group)
    ops, items = parsed.state_ops or [], parsed.push_items or []
    if len(ops) > limits.STREAM_OPS:
        raise TooLarge(f"{len(ops)} state_ops; one cycle takes at most {limits.STREAM_OPS}")
    if len(items) > limits.PUSH_ITEMS:
        raise TooLarge(f"{len(items)} push_items; one cycle takes at most {limits.PUSH_ITEMS}")
    return Cycle(
        query,
        pid,
        group,
        tuple(_state_op(op) for op in ops),
        tuple(_push_item(item) for item in items),
        None if parsed.ack is None else _position(parsed.ack),
        parsed.release_lease is not False,
    )


def _state_op(op: _Op) -> StateOp:
    if not op.key or "\0" in op.key:
        raise BadRequest("the key of a state op is a text of at least one character, without NUL")
    if 4 * len(op.key) > limits.STREAM_KEY_BYTES and len(op.key.encode()) > limits.STREAM_KEY_BYTES:
        raise TooLarge(f"a state key takes at most {limits.STREAM_KEY_BYTES} bytes")
    if op.type == "delete":
        return StateOp(op.key, None)
    if op.type != "upsert":
        raise BadRequest(f"unknown state op: {op.type[:80]!r}")
    return StateOp(op.key, b"null" if op.value is UNSET else bytes(op.value))


def _push_item(item: _Push) -> PushItem:
    check_names(item.queue, item.partition or None)
    txn = item.transaction_id or None
    if txn is not None:
        check_txn(txn)
    trace = item.trace_id if item.trace_id is not None and is_uuid(item.trace_id) else None
    return PushItem(item.queue, item.partition or "", bytes(item.payload), txn, trace)


def _position(ack: _Ack) -> PositionAck:
    return PositionAck(ack.transaction_id or "", ack.lease_id or "", ack_status(ack.status), ack.count or 0)


def render_cycle(cycle: Cycle, reply: Cycled | CycleRefused) -> bytes:
    """Both are a 200: the worker reads `success`."""
    if isinstance(reply, CycleRefused):
        return encode({"success": False, "error": reply.error, "reason": reply.reason})
    pushed = [
        {
            "queueName": outcome.queue,
            "messageId": outcome.message_id,
            "transactionId": outcome.txn,
            "status": outcome.status,
        }
        for outcome in reply.pushes
    ]
    ack = reply.ack
    settled = None
    if ack is not None:
        settled = {"success": True, "count": ack.count, "lease_released": ack.released, "dlq": False}
    return encode(
        {
            "success": True,
            "query_id": cycle.query,
            "partition_id": str(cycle.pid),
            "queueName": reply.queue,
            "state_ops_applied": reply.ops,
            "push_results": pushed,
            "ack_result": settled,
        }
    )


REQUESTS = {"register": _Register, "read": _Read, "cycle": _Cycle}
"""The records of this module, for the protocol's description."""

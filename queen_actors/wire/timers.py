"""The timer routes (`wire-kv-locks-timers-transactions.md`, section 4)."""

from __future__ import annotations

import base64
import binascii
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import zstandard
from msgspec import UNSET, Raw, Struct, UnsetType

from queen_actors import limits
from queen_actors.domain.effects import TimerPut
from queen_actors.domain.timers import Cancel, Schedule, TimerOp, TimerPage, TimerResult
from queen_actors.errors import Forbidden, TooLarge
from queen_actors.values import DEFAULT_PARTITION, MILLISECOND, SECOND

from .frames import (
    as_text,
    check_budget,
    check_name,
    encode,
    is_json,
    op_fields,
    parse_operations,
    query_int,
    refusal,
    zulu_time,
)

_SERVER_OWNED = frozenset(
    spelling
    for camel, snake in (
        ("producerSub", "producer_sub"),
        ("messageId", "message_id"),
        ("tenant", "tenant"),
        ("tenantId", "tenant_id"),
        ("deliverAt", "deliver_at"),
        ("delaySeconds", "delay_seconds"),
        ("attempts", "attempts"),
        ("claimToken", "claim_token"),
        ("claimedUntil", "claimed_until"),
    )
    for spelling in (camel, snake)
)
_Fields = dict[str, Any]


class TimerElement(Struct, rename="camel"):
    """One element of 4.4; the last three only in a transaction."""

    ok: bool
    status: str
    queue: str
    timer_key: str
    txn: str | None
    message_id: str | UnsetType = UNSET
    deliver_at: str | UnsetType = UNSET
    index: int | UnsetType = UNSET
    op_index: int | UnsetType = UNSET
    type: str | UnsetType = UNSET


class _Pending(Struct, rename="camel"):
    """A pending timer as peek and list show it; `found` and `payload` in a peek only."""

    queue: str
    timer_key: str
    partition: str
    deliver_at: str
    txn: str
    message_id: str
    encrypted: bool
    producer_sub: str | None
    attempts: int
    last_error: str | None
    created_at: str
    updated_at: str
    payload_zstd: bool = False
    claimed: bool = False
    found: bool | UnsetType = UNSET
    payload: str | UnsetType = UNSET


def parse_timers(body: bytes, horizon: int) -> list[TimerOp]:
    """The ops of `POST /api/v1/timers`; `horizon` is the longest delay, in microseconds. Raises the refusals of 4.5."""
    raws = parse_operations(body, "timers")
    if len(raws) > limits.TIMER_OPS_PER_CALL:
        raise refusal("timers", "too_many_ops", f"{len(raws)} operations; {limits.TIMER_OPS_PER_CALL} is the most")
    return parse_timer_ops(raws, horizon, payload_bytes=limits.TIMER_PAYLOAD_BYTES)


def parse_timer_ops(raws: Sequence[Raw], horizon: int, *, payload_bytes: int = limits.BODY_BYTES) -> list[TimerOp]:
    """Ops of a call; a transaction's have no bound on one payload but that of the whole call."""
    commands: list[TimerOp] = []
    seen: set[tuple[str, str]] = set()
    room = limits.BODY_BYTES
    for raw in raws:
        op = _command(op_fields(raw), horizon, min(payload_bytes, room), whole_call=room < payload_bytes)
        if (op.queue, op.key) in seen:
            raise refusal("timers", "bad_op", f"the timer {op.key[:80]!r} is named twice in one call")
        seen.add((op.queue, op.key))
        if isinstance(op, Schedule):
            room -= len(op.payload)
        commands.append(op)
    return commands


def _command(fields: _Fields | None, horizon: int, payload_bytes: int, *, whole_call: bool) -> TimerOp:
    if fields is None:
        raise refusal("timers", "bad_op", "an operation must be an object")
    for name in fields:
        if name.startswith("_") or name in _SERVER_OWNED:
            raise refusal("timers", "server_owned_field", f"`{name[:80]}` is the broker's own")
    word = as_text(fields.get("op"))
    if word not in ("schedule", "reschedule", "cancel"):
        raise refusal("timers", "bad_op", f"unknown op: {str(word)[:80]!r}")
    queue, key = check_timer(fields.get("queue"), fields.get("timerKey"))
    if word == "cancel":
        txn = fields.get("txn")
        if txn is not None and not isinstance(txn, str):
            raise refusal("timers", "bad_op", "`txn` must be a string")
        return Cancel(queue, key, txn)
    partition = _partition(queue, fields.get("partition"))
    delay = _delay(fields.get("delayMs"), horizon)
    txn = fields.get("txn")
    if not isinstance(txn, str) or not 1 <= len(txn.encode()) <= limits.TXN_BYTES:
        raise refusal("timers", "bad_op", f"`txn` must be a string of 1 to {limits.TXN_BYTES} bytes")
    zstd, encrypted = _flag(fields, "payloadZstd"), _flag(fields, "encrypted")
    payload = _payload(fields.get("payload"), payload_bytes, zstd=zstd, whole_call=whole_call)
    return Schedule(queue, key, payload, delay, txn, partition, encrypted)


def check_timer(queue: Any, key: Any) -> tuple[str, str]:
    """A timer's identity: the queue by its own rules, the key any text of at least one character."""
    if not isinstance(queue, str) or not queue:
        raise refusal("timers", "queue_required", "a timer needs the queue that it fires into")
    check_name("queue name", queue)
    if not isinstance(key, str) or not key:
        raise refusal("timers", "bad_op", "`timerKey` must be a text of at least one character")
    check_budget(queue, key)
    return queue, key


def _partition(queue: str, value: Any) -> str:
    if value is None:
        return DEFAULT_PARTITION
    if not isinstance(value, str) or not value:
        raise refusal("timers", "bad_op", "`partition` must be a text of at least one character")
    check_name("partition name", value)
    check_budget(queue, value)
    return value


def _delay(value: Any, horizon: int) -> int:
    """Microseconds, fractions of a millisecond included; how long ago a timer was due is kept up to the horizon."""
    if type(value) not in (int, float) or (isinstance(value, float) and math.isnan(value)):
        raise refusal("timers", "delay_required", "`delayMs` must be a number: the delay from now in milliseconds")
    delay: int | float = value * MILLISECOND
    if delay > horizon:
        raise Forbidden(
            f"a timer may be at most {horizon // (86_400 * SECOND)} days ahead",
            code="timer_horizon_exceeded",
            reason="timers_horizon",
        )
    return max(-horizon, round(max(-horizon, delay)))


def _flag(fields: _Fields, name: str) -> bool:
    value = fields.get(name)
    if value is not None and not isinstance(value, bool):
        raise refusal("timers", "bad_op", f"`{name}` must be true or false")
    return value is True


def _payload(value: Any, most: int, *, zstd: bool, whole_call: bool) -> bytes:
    """The message's JSON text. Bytes that are no JSON are delivered as a JSON string, or as null when they are not
    even text (section 9, point 2)."""
    if not isinstance(value, str):
        raise refusal("timers", "payload_required", "`payload` must be a string: the message in base64")
    try:
        data = base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise refusal("timers", "payload_not_base64", "`payload` is not standard base64") from None
    if zstd:
        data = _decompress(data, most)
    if len(data) > most:
        reason = "timers_call_too_large" if whole_call else "timers_payload_too_large"
        raise TooLarge(f"the payload is over {most} bytes", code="payload_too_large", reason=reason)
    if is_json(data):
        return data
    try:
        return encode(data.decode())
    except UnicodeDecodeError:
        return b"null"


def _decompress(data: bytes, most: int) -> bytes:
    """At most one byte more than may be, so that a small body cannot ask for much memory."""
    try:
        with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data), read_across_frames=False) as reader:
            return reader.read(most + 1)
    except zstandard.ZstdError as wrong:
        raise refusal("timers", "bad_op", f"`payload` is not a zstd frame: {wrong}") from None


def render_timers(results: Sequence[TimerResult]) -> bytes:
    """`{"results": [...]}` in input order."""
    return encode({"results": [timer_element(result) for result in results]})


def render_timer(result: TimerResult) -> bytes:
    """The DELETE route's answer: the element itself."""
    return encode(timer_element(result))


def timer_element(result: TimerResult) -> TimerElement:
    element = TimerElement(result.ok, result.status, result.queue, result.key, result.txn)
    if result.message_id is not None:
        element.message_id = result.message_id
    if result.deliver_at is not None:
        element.deliver_at = zulu_time(result.deliver_at)
    return element


def rider_element(result: TimerResult, index: int, op_index: int) -> TimerElement:
    """The element inside a transaction's answer (5.3)."""
    element = timer_element(result)
    element.index, element.op_index, element.type = index, op_index, "timer"
    return element


def parse_list(query: Mapping[str, str]) -> tuple[str | None, int]:
    """`after` (exclusive) and `limit`, which is 100 when it cannot be read, clamped to 1...1000."""
    text = query.get("limit", "")
    limit = limits.TIMER_PAGE_DEFAULT
    if text.lstrip("-").isdecimal():
        limit = query_int(query, "limit", limits.TIMER_PAGE_DEFAULT, 1, limits.TIMER_PAGE_MAX)
    return query.get("after"), limit


def parse_count(query: Mapping[str, str]) -> str:
    """The prefix of `?mode=count`. Raises the count-mode refusals of 4.5."""
    if query["mode"] != "count":
        raise refusal("timers", "read_mode_unknown", f"unknown mode: {query['mode'][:80]!r}")
    if "after" in query or "limit" in query:
        raise refusal("timers", "count_page_parameters", "a count has no pages: leave out `after` and `limit`")
    prefix = query.get("prefix")
    if not prefix:
        raise refusal("timers", "count_prefix_required", "give the `prefix` of the keys to count")
    if "\0" in prefix:
        raise refusal("timers", "count_prefix_invalid", "the prefix contains a NUL")
    if len(prefix.encode()) > limits.TIMER_COUNT_PREFIX_BYTES:
        raise refusal("timers", "count_prefix_too_long", f"{limits.TIMER_COUNT_PREFIX_BYTES} bytes is the most")
    return prefix


def render_peek(queue: str, key: str, timer: TimerPut | None) -> bytes:
    """A pending timer with its payload, or `found: false`."""
    if timer is None:
        return encode({"found": False, "queue": queue, "timerKey": key})
    shown = _pending(timer)
    shown.found, shown.payload = True, base64.b64encode(timer.payload).decode()
    return encode(shown)


def render_page(page: TimerPage) -> bytes:
    """The rows of a list, in byte order of their keys."""
    rows = [_pending(timer) for timer in page.rows]
    return encode({"rows": rows, "truncated": page.truncated, "nextAfter": page.next_after})


def _pending(timer: TimerPut) -> _Pending:
    return _Pending(
        queue=timer.queue,
        timer_key=timer.key,
        partition=timer.partition,
        deliver_at=zulu_time(timer.due),
        txn=timer.txn,
        message_id=timer.message_id,
        encrypted=timer.encrypted,
        producer_sub=timer.producer,
        attempts=timer.attempts,
        last_error=timer.last_error,
        created_at=zulu_time(timer.created_at),
        updated_at=zulu_time(timer.updated_at),
    )


PENDING = _Pending
"""A record of this module, for the protocol's description."""

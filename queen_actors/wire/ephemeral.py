"""`/api/v1/ephemeral/*` (`wire-messaging.md`, section 18)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

from queen_actors import limits
from queen_actors.domain.ephemeral import (
    Depth,
    EphemeralAck,
    EphemeralMessage,
    EphemeralPop,
    EphemeralView,
    Options,
)
from queen_actors.errors import BadRequest
from queen_actors.values import DEFAULT_PARTITION, MILLISECOND, QUEUE_MODE, SECOND

from .ack import ack_status
from .frames import Malformed, check_names, check_utf8, decode, encode, query_bool, query_int

T = TypeVar("T")
CODE = "ephemeral_bad_request"
NOT_FOUND = "ephemeral_queue_not_found"


class Push(Struct, frozen=True):
    """All of these or none."""

    queue: str
    partition: str
    payloads: tuple[bytes, ...]


class Acks(Struct, frozen=True):
    queue: str
    group: str
    acks: tuple[EphemeralAck, ...]


_Count = Annotated[int, Meta(ge=0)]


class _Window(Struct, forbid_unknown_fields=True):
    ms: _Count | None = None
    count: _Count | None = None


class _Options(Struct, rename="camel", forbid_unknown_fields=True):
    """Null is the default, and so is 0 where nothing could be held or leased with it."""

    max_bytes: _Count | None = None
    max_length: _Count | None = None
    policy: Literal["reject", "dropOldest"] | None = None
    ttl_seconds: _Count | None = None
    lease_seconds: _Count | None = None
    retry_limit: _Count | None = None
    window_buffer: _Window | None = None


class _Configure(Struct):
    queue: str
    options: _Options | None = None


class _Message(Struct):
    payload: Raw


class _Push(Struct):
    queue: str
    messages: list[_Message]
    partition: str | None = None


class _Ack(Struct):
    id: str
    status: Any = None


class _Acks(Struct):
    queue: str
    acks: list[_Ack]
    group: str | None = None


class _Queue(Struct):
    queue: str


_configure = msgspec.json.Decoder(_Configure)
_push = msgspec.json.Decoder(_Push)
_acks = msgspec.json.Decoder(_Acks)
_queue = msgspec.json.Decoder(_Queue)


def bad_request(detail: str) -> BadRequest:
    """The 400 of this family."""
    return BadRequest(detail, code=CODE)


def _decoded(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    try:
        check_utf8(body)
        return decode(decoder, body)
    except (Malformed, msgspec.ValidationError) as wrong:
        raise bad_request(f"the body is not what this route takes: {wrong}") from None


def check(queue: str, partition: str | None = None, group: str | None = None) -> None:
    """The names of a call. Raises BadRequest, and TooLarge over their budget."""
    if not queue:
        raise bad_request("queue is required")
    try:
        check_names(queue, partition, group)
    except BadRequest as wrong:
        raise bad_request(wrong.detail) from None


def parse_configure(body: bytes) -> tuple[str, Options]:
    """The queue and its options, clamped to what the broker allows. Raises BadRequest; an unknown option is one."""
    parsed = _decoded(_configure, body)
    check(parsed.queue)
    return parsed.queue, _options(parsed.options or _Options())


def _options(given: _Options) -> Options:
    window = given.window_buffer or _Window()
    retries = limits.EPHEMERAL_RETRIES if given.retry_limit is None else given.retry_limit
    lease = given.lease_seconds or limits.EPHEMERAL_LEASE_SECONDS
    return Options(
        max_bytes=min(given.max_bytes or limits.EPHEMERAL_QUEUE_BYTES, limits.EPHEMERAL_BYTES),
        max_length=min(given.max_length or limits.EPHEMERAL_QUEUE_MESSAGES, limits.EPHEMERAL_QUEUE_MESSAGES_MAX),
        drop_oldest=given.policy == "dropOldest",
        ttl=min(given.ttl_seconds or 0, limits.TTL_SECONDS_MAX) * SECOND,
        lease=min(lease, limits.EPHEMERAL_LEASE_SECONDS_MAX) * SECOND,
        retry_limit=min(retries, limits.EPHEMERAL_RETRIES_MAX),
        window=min(window.ms or 0, limits.EPHEMERAL_WINDOW_MS_MAX) * MILLISECOND,
        window_count=min(window.count or 0, limits.EPHEMERAL_ITEMS),
    )


def parse_push(body: bytes) -> Push:
    """Raises BadRequest."""
    parsed = _decoded(_push, body)
    partition = parsed.partition or DEFAULT_PARTITION
    check(parsed.queue, partition)
    if len(parsed.messages) > limits.EPHEMERAL_ITEMS:
        raise bad_request(f"{len(parsed.messages)} messages; {limits.EPHEMERAL_ITEMS} is the most")
    return Push(parsed.queue, partition, tuple(bytes(message.payload) for message in parsed.messages))


def parse_pop(query: Mapping[str, str]) -> EphemeralPop:
    """Raises BadRequest."""
    queue, partition = query.get("queue") or "", query.get("partition") or None
    group = query.get("group") or QUEUE_MODE
    check(queue, partition, group)
    try:
        batch = query_int(query, "batch", 1, 1, limits.EPHEMERAL_ITEMS)
        wait = 0
        if query_bool(query, "wait"):
            timeout = query_int(query, "timeout", limits.POP_WAIT_MS_DEFAULT, 0, limits.EPHEMERAL_WAIT_MS_MAX)
            wait = timeout * MILLISECOND
        return EphemeralPop(queue, partition, group, batch, wait, query_bool(query, "autoAck"))
    except BadRequest as wrong:
        raise bad_request(wrong.detail) from None


def parse_acks(body: bytes) -> Acks:
    """Raises BadRequest."""
    parsed = _decoded(_acks, body)
    group = parsed.group or QUEUE_MODE
    check(parsed.queue, None, group)
    if len(parsed.acks) > limits.EPHEMERAL_ITEMS:
        raise bad_request(f"{len(parsed.acks)} acks; {limits.EPHEMERAL_ITEMS} is the most")
    acks = tuple(EphemeralAck(ack.id, ack_status(ack.status) == "completed") for ack in parsed.acks)
    return Acks(parsed.queue, group, acks)


def parse_reset(body: bytes) -> str:
    """The queue to empty. Raises BadRequest."""
    queue = _decoded(_queue, body).queue
    check(queue)
    return queue


def _shown(options: Options) -> dict[str, Any]:
    return {
        "maxBytes": options.max_bytes,
        "maxLength": options.max_length,
        "policy": "dropOldest" if options.drop_oldest else "reject",
        "ttlSeconds": options.ttl // SECOND,
        "leaseSeconds": options.lease // SECOND,
        "retryLimit": options.retry_limit,
        "windowBuffer": {"ms": options.window // MILLISECOND, "count": options.window_count},
    }


def _tier(view: EphemeralView) -> str:
    return "declared" if view.declared else "implicit"


def render_configured(view: EphemeralView) -> bytes:
    return encode({"queue": view.queue, "options": _shown(view.options), "declared": True})


def render_pop(queue: str, messages: Sequence[EphemeralMessage]) -> bytes:
    """An empty list when there were none: this family has no 204."""
    shown = [
        {"id": m.id, "partition": m.partition, "attempts": m.attempts, "payload": Raw(m.payload)} for m in messages
    ]
    return encode({"queue": queue, "messages": shown})


def render_acks(acks: Acks, outcomes: Sequence[str]) -> bytes:
    """One result for each, in order."""
    results = [{"id": ack.id, "outcome": outcome} for ack, outcome in zip(acks.acks, outcomes, strict=True)]
    return encode({"results": results})


def render_views(views: Sequence[EphemeralView], cost: int) -> bytes:
    """`cellBytes`: the memory that all of them take."""
    rows = [
        {
            "queue": view.queue,
            "tier": _tier(view),
            "depth": view.length,
            "bytes": view.bytes,
            "partitions": view.partitions,
            "groups": view.groups,
            "drops": {"bounds": view.drops.bounds, "ttl": view.drops.ttl, "retry": view.drops.retry},
            "options": _shown(view.options),
        }
        for view in views
    ]
    return encode({"queues": rows, "count": len(rows), "cellBytes": cost})


def render_depth(view: EphemeralView, depth: Depth, group: str | None) -> bytes:
    return encode(
        {
            "queue": view.queue,
            "group": group,
            "tier": _tier(view),
            "pending": depth.pending,
            "partitionsPending": sum(1 for partition in depth.partitions if partition.pending),
            "bytes": view.bytes,
            "partitions": [
                {"partition": p.partition, "pending": p.pending, "bytes": p.bytes} for p in depth.partitions
            ],
            "groups": [{"group": g.group, "pending": g.pending, "skipped": g.skipped} for g in depth.groups],
        }
    )


REQUESTS = {"configure": _Configure, "push": _Push, "acks": _Acks, "queue": _Queue}
"""The records of this module, for the protocol's description."""

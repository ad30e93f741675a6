"""The pop routes (`wire-messaging.md`, section 7)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import ClassVar

from msgspec import UNSET, Raw, Struct, UnsetType

from queen_actors import limits
from queen_actors.domain.cursor import Claim, PopReply, PopRequest
from queen_actors.errors import BadRequest
from queen_actors.values import MILLISECOND, QUEUE_MODE, SECOND, parse_instant

from .frames import Unsuccessful, check_name, check_names, encode, query_bool, query_int, zulu_time

_LEASE_SECONDS_MAX = 10**9  # an instant that is still a date


class BadPop(Unsuccessful):
    """A pop that cannot be, answered in the route's own shape (7.1, 7.7)."""

    extra: ClassVar[Mapping[str, object]] = {"messages": ()}


class Message(Struct, rename="camel", gc=False):
    """One delivered message. `timer_key` is told on the WebSocket only, and only when a timer fired the message."""

    id: str
    transaction_id: str
    trace_id: str | None
    data: Raw
    producer_sub: str | None
    created_at: str
    partition_id: str
    partition: str
    lease_id: str
    consumer_group: str
    delivery_attempt: int
    offset: int
    timer_key: str | UnsetType = UNSET


class TailMessage(Struct, rename="camel", gc=False):
    """One message as a tail gives it: without what belongs to a lease (websocket.md 4)."""

    id: str
    transaction_id: str
    trace_id: str | None
    data: Raw
    producer_sub: str | None
    created_at: str
    partition_id: str
    partition: str
    offset: int
    timer_key: str | UnsetType = UNSET


class _Popped(Struct, rename="camel"):
    success: bool
    queue: str | None
    partition: str | None
    partition_id: str | None
    lease_id: str
    consumer_group: str
    messages: list[Message]
    partitions_claimed: int
    conflation: bool | UnsetType = UNSET
    conflation_conflict: bool | UnsetType = UNSET


def parse_pop(query: Mapping[str, str], queue: str | None = None, partition: str | None = None) -> PopRequest:
    """The request of a pop: pinned with a partition, wildcard with only a queue, discovery with neither.

    `autopilot` and `frames` are declined by being ignored (7.8, 7.9). Raises BadPop.
    """
    try:
        return _request(query, queue, partition)
    except BadPop:
        raise
    except BadRequest as wrong:
        raise BadPop(wrong.detail, code=wrong.code) from None


def _request(query: Mapping[str, str], queue: str | None, partition: str | None) -> PopRequest:
    named_group = query.get("consumerGroup") or None
    group = named_group or QUEUE_MODE
    namespace = task = None
    if queue is None:
        namespace, task = query.get("namespace") or None, query.get("task") or None
        if namespace is None and task is None:
            raise BadPop("namespace or task is required")
        check_name("consumer group", group)
    else:
        check_names(queue, partition, group)
    auto_ack = query_bool(query, "autoAck")
    conflation = query_bool(query, "conflation")
    if conflation and (named_group is None or auto_ack):
        raise BadPop("conflation requires consumerGroup, and no autoAck: it is a property of a group's leased delivery")
    wait = 0
    if query_bool(query, "wait"):
        wait = query_int(query, "timeout", limits.POP_WAIT_MS_DEFAULT, 1, limits.POP_WAIT_MS_MAX) * MILLISECOND
    partitions = None
    if query.get("partitions"):
        partitions = query_int(query, "partitions", 1, 1, limits.POP_PARTITIONS_MAX)
    return PopRequest(
        queue=queue,
        partition=partition,
        namespace=namespace,
        task=task,
        group=group,
        batch=query_int(query, "batch", limits.POP_BATCH_DEFAULT, 1, limits.POP_BATCH_MAX),
        partitions=partitions,
        wait=wait,
        auto_ack=auto_ack,
        lease=query_int(query, "leaseSeconds", 0, 0, _LEASE_SECONDS_MAX) * SECOND,
        subscription_mode=query.get("subscriptionMode") or None,
        subscription_from=_subscription_from(query.get("subscriptionFrom")),
        conflation=conflation,
    )


def _subscription_from(text: str | None) -> str | None:
    if not text or text.lower() == "now":
        return text or None
    try:
        parse_instant(text)
    except ValueError:
        raise BadPop(f"subscriptionFrom must be `now` or an ISO 8601 instant: {text[:80]!r}") from None
    return text


created_at = lru_cache(1024)(zulu_time)
"""When a message was pushed: messages of one push share their instant, and its spelling costs more than a message."""


def messages_of(claim: Claim, lease_id: str, group: str, *, timer_keys: bool = False) -> list[Message]:
    """A claim's messages in offset order, each with all that its ack needs. With `timer_keys` a message that a timer
    fired says so (websocket.md 3)."""
    pid, partition, attempt = str(claim.pid), claim.partition, claim.attempt
    messages: list[Message] = []
    for record in claim.records:
        messages.append(
            Message(
                record.id,
                record.txn,
                record.trace,
                Raw(record.payload),
                record.producer,
                created_at(record.ts),
                pid,
                partition,
                lease_id,
                group,
                attempt,
                record.offset,
            )
        )
        if timer_keys and record.timer_key is not None:
            messages[-1].timer_key = record.timer_key
    return messages


def tail_messages_of(claim: Claim) -> list[TailMessage]:
    """A claim's messages in offset order, as a tail gives them."""
    pid, partition = str(claim.pid), claim.partition
    messages: list[TailMessage] = []
    for record in claim.records:
        message = TailMessage(
            record.id,
            record.txn,
            record.trace,
            Raw(record.payload),
            record.producer,
            created_at(record.ts),
            pid,
            partition,
            record.offset,
        )
        if record.timer_key is not None:
            message.timer_key = record.timer_key
        messages.append(message)
    return messages


def render_pop(reply: PopReply, request: PopRequest) -> bytes | None:
    """The body of the 200, or None for a 204: nothing was delivered and nothing about conflation is to be echoed."""
    if not reply.claims and not reply.conflation and not reply.conflict:
        return None
    first = reply.claims[0] if reply.claims else None
    popped = _Popped(
        success=True,
        queue=first.queue if first else request.queue,
        partition=first.partition if first else request.partition,
        partition_id=str(first.pid) if first else None,
        lease_id=reply.lease_id,
        consumer_group=reply.group,
        messages=[],
        partitions_claimed=len(reply.claims),
    )
    for claim in reply.claims:
        popped.messages.extend(messages_of(claim, reply.lease_id, reply.group))
    if reply.conflation:
        popped.conflation = True
    if reply.conflict:
        popped.conflation_conflict = True
    return encode(popped)

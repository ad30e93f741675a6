"""Queues and their configuration, dead letters, single messages and traces (`wire-messaging.md` 5, 11 to 15)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec
from msgspec import Raw, Struct

from queen_actors import limits
from queen_actors.domain.effects import QueueOptions
from queen_actors.domain.queue import (
    CONFIGURE_DEFAULTS,
    Configure,
    DeadLetterView,
    MessageView,
    PartitionView,
    QueueView,
)
from queen_actors.errors import BadRequest
from queen_actors.values import QUEUE_MODE, parse_instant

from .frames import (
    Malformed,
    check_name,
    check_names,
    check_utf8,
    encode,
    parse_object,
    parse_pid,
    query_int,
    raw_object,
    scalar,
    zulu_time,
)

_SECONDS_MAX = 10**9  # an instant that is still a date
_COUNT_MAX = (1 << 53) - 1  # what every client's numbers hold


class IntegerRule(Struct, frozen=True):
    """An option that is a whole number."""

    field: str
    low: int = 0
    high: int = _COUNT_MAX
    strict: bool = False
    """Whether a number outside is refused; otherwise it is clamped."""


_INTEGERS = {
    "leaseTime": IntegerRule("lease_seconds", high=_SECONDS_MAX),
    "retryLimit": IntegerRule("retry_limit"),
    "retryDelay": IntegerRule("retry_delay_ms"),
    "delayedProcessing": IntegerRule("delayed_processing_seconds", high=_SECONDS_MAX),
    "windowBuffer": IntegerRule("window_buffer_seconds", high=_SECONDS_MAX),
    "retentionSeconds": IntegerRule("retention_seconds", high=_SECONDS_MAX),
    "completedRetentionSeconds": IntegerRule("completed_retention_seconds", high=_SECONDS_MAX),
    "maxWaitTimeSeconds": IntegerRule("max_wait_seconds", high=_SECONDS_MAX),
    "dedupWindowSeconds": IntegerRule("dedup_window_seconds", high=_SECONDS_MAX),
    "minPopWaitTime": IntegerRule("min_pop_wait_ms", high=60_000),
    "priority": IntegerRule("priority", low=-_COUNT_MAX),
    "maxSize": IntegerRule("max_size"),
    "ttl": IntegerRule("ttl_seconds"),
    "retentionSinkHoldMaxSeconds": IntegerRule("retention_sink_hold_max_seconds", 60, 31_536_000, strict=True),
    "deliveryLimit": IntegerRule("delivery_limit"),
}
_BOOLEANS = {
    "deadLetterQueue": "dead_letter_queue",
    "dlqAfterMaxRetries": "dlq_after_max_retries",
    "retentionEnabled": "retention_enabled",
    "encryptionEnabled": "encryption_enabled",
}
_TEXTS = {"retentionSinkHold": "retention_sink_hold"}
_SINK = re.compile(r"[A-Za-z0-9._-]{0,64}\Z")
_FIELDS = {**{name: rule.field for name, rule in _INTEGERS.items()}, **_BOOLEANS, **_TEXTS}


def parse_configure(body: bytes) -> Configure:
    """The queue, its labels and the options that the body names, in `options` or at its top. Raises BadRequest."""
    fields = parse_object(body)
    queue = fields.get("queue")
    if not isinstance(queue, str):
        raise BadRequest("queue must be a string")
    check_names(queue)
    mode = fields.get("mode")
    if mode not in (None, "merge", "replace"):
        raise BadRequest("mode must be merge or replace")
    given: object = fields.get("options")
    if given is None or given == []:  # an empty object as PHP spells it
        given = {}
    if not isinstance(given, dict):
        raise BadRequest("options must be an object")
    inside = cast("dict[str, Any]", given)
    named = {**fields, **inside}
    options = {_FIELDS[name]: _option(name, value) for name, value in named.items() if name in _FIELDS}
    return Configure(
        queue,
        options,
        _label("namespace", fields, inside),
        _label("task", fields, inside),
        replace=mode == "replace",
    )


def _label(name: str, fields: Mapping[str, Any], options: Mapping[str, Any]) -> str | None:
    """A label of the options, else a non-empty one at the top; None when it is not named."""
    if name in options:
        label = options[name]
        if label is None:
            return ""
        if not isinstance(label, str):
            raise BadRequest(f"{name} must be a string")
        check_name(name, label)
        return label
    label = fields.get(name)
    if not isinstance(label, str) or not label:
        return None
    check_name(name, label)
    return label


def _option(name: str, value: Any) -> int | bool | str:
    """An option's value; an explicit null is its default (5)."""
    if value is None:
        default: int | bool | str = getattr(CONFIGURE_DEFAULTS, _FIELDS[name])
        return default
    if name in _BOOLEANS:
        if not isinstance(value, bool):
            raise BadRequest(f"{name} must be a boolean")
        return value
    if name in _TEXTS:
        if not isinstance(value, str) or not _SINK.match(value):
            raise BadRequest(f"{name} must be up to 64 of the characters A-Z a-z 0-9 . _ -")
        return value
    rule = _INTEGERS[name]
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not int:
        raise BadRequest(f"{name} must be an integer")
    clamped = max(rule.low, min(value, rule.high))
    if rule.strict and clamped != value:
        raise BadRequest(f"{name} must be {rule.low} to {rule.high}")
    return clamped


def render_configured(view: QueueView) -> bytes:
    """The answer of configure: every option, as it now is."""
    return encode(
        {
            "configured": True,
            "queueId": view.uid,
            "partitionId": None,
            "queue": view.name,
            "namespace": view.namespace,
            "task": view.task,
            "storage": "segments",
            "options": options_of(view.options),
        }
    )


def options_of(options: QueueOptions) -> dict[str, int | bool | str]:
    """Every option under the wire's name."""
    shown: dict[str, int | bool | str] = {name: getattr(options, field) for name, field in _FIELDS.items()}
    shown["maxQueueSize"] = options.max_size
    return shown


def render_queue(view: QueueView) -> bytes:
    """`GET /api/v1/resources/queues/:q` (13). `retainedBytes` is null: the route `/sizes` counts bytes."""
    partitions = [_partition(partition) for partition in view.partitions]
    counts = ("total", "pending", "processing", "completed", "deadLetter")
    totals = {name: sum(partition["messages"][name] for partition in partitions) for name in counts}
    return encode(
        {
            "id": view.uid,
            "name": view.name,
            "namespace": view.namespace,
            "task": view.task,
            "createdAt": zulu_time(view.created_at),
            "options": options_of(view.options),
            "partitions": partitions,
            "segments": {"segments": 0, "messages": totals["total"]},
            "totals": {**totals, "failed": None},
            "retainedBytes": None,
        }
    )


def _partition(view: PartitionView) -> dict[str, Any]:
    messages = {
        "total": view.total,
        "pending": view.pending,
        "processing": view.processing,
        "completed": view.completed,
        "failed": None,
        "deadLetter": view.dead_letter,
    }
    return {
        "id": str(view.pid),
        "name": view.name,
        "createdAt": zulu_time(view.created_at),
        "messages": messages,
        "stats": messages,
        "cursor": {"totalConsumed": view.completed, "batchesConsumed": 0},
        "lastActivity": None if view.last_activity is None else zulu_time(view.last_activity),
        "oldestMessage": None if view.oldest is None else zulu_time(view.oldest),
        "newestMessage": None if view.last_activity is None or not view.total else zulu_time(view.last_activity),
        "retainedBytes": None,
    }


def render_deleted(queue: str, existed: bool) -> bytes:
    """Always a 200: a queue that was not there is deleted too (12)."""
    answer: dict[str, Any] = {"deleted": existed, "existed": existed, "queue": queue}
    if not existed:
        answer["message"] = "Queue not found"
    return encode(answer)


class LettersQuery(Struct, frozen=True):
    """What `GET /api/v1/dlq` asks for; instants in microseconds."""

    queue: str | None
    group: str | None
    partition: str | None
    since: int | None
    until: int | None
    limit: int
    offset: int


def parse_letters(query: Mapping[str, str]) -> LettersQuery:
    """Raises BadRequest."""
    return LettersQuery(
        queue=query.get("queue"),
        group=query.get("consumerGroup") or None,
        partition=query.get("partition") or None,
        since=_instant(query, "from"),
        until=_instant(query, "to"),
        limit=query_int(query, "limit", limits.DLQ_PAGE_DEFAULT, 1, limits.DLQ_PAGE_MAX),
        offset=query_int(query, "offset", 0, 0, _COUNT_MAX),
    )


def _instant(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name)
    if not text:
        return None
    try:
        return parse_instant(text)
    except ValueError:
        raise BadRequest(f"{name} must be an ISO 8601 instant: {text[:80]!r}") from None


class _Letter(Struct, rename="camel"):
    id: str
    queue: str
    partition: str
    partition_id: str
    created_at: str
    consumer_group: str
    offset: int
    message_id: str
    transaction_id: str
    data: Raw
    payload: Raw
    error_message: str
    retry_count: int
    failed_at: str


def render_letters(letters: Sequence[DeadLetterView], total: int, asked: LettersQuery) -> bytes:
    """One page, newest first; `total` counts all that match (11)."""
    page = {"limit": asked.limit, "offset": asked.offset}
    return encode({"messages": [_letter(view) for view in letters], "total": total, "pagination": page})


def _letter(view: DeadLetterView) -> _Letter:
    letter, record = view.letter, view.letter.record
    return _Letter(
        id=letter.id,
        queue=view.queue,
        partition=view.partition,
        partition_id=str(letter.pid),
        created_at=zulu_time(record.ts),
        consumer_group=letter.group,
        offset=record.offset,
        message_id=record.id,
        transaction_id=record.txn,
        data=Raw(record.payload),
        payload=Raw(record.payload),
        error_message=letter.error,
        retry_count=letter.retry_count,
        failed_at=zulu_time(letter.failed_at),
    )


def render_message(view: MessageView) -> bytes:
    """`GET /api/v1/messages/:pid/:txn` (14)."""
    record, queue = view.record, view.queue
    named = [group for group in view.groups if group.name != QUEUE_MODE]
    kinds = {(False, False): "none", (True, False): "queue", (False, True): "bus", (True, True): "hybrid"}
    groups = [
        {
            "name": group.name,
            "committed": group.committed,
            "consumed": group.consumed,
            "leaseExpiresAt": None if group.lease_expires_at is None else zulu_time(group.lease_expires_at),
        }
        for group in view.groups
    ]
    return encode(
        {
            "id": record.id,
            "transactionId": record.txn,
            "data": Raw(record.payload),
            "payload": Raw(record.payload),
            "traceId": record.trace,
            "producerSub": record.producer,
            "createdAt": zulu_time(record.ts),
            "offset": record.offset,
            "partitionId": str(view.pid),
            "partition": view.partition,
            "queue": queue.name,
            "queuePath": f"{queue.name}/{view.partition}",
            "namespace": queue.namespace,
            "task": queue.task,
            "status": view.status,
            "errorMessage": view.error,
            "retryCount": view.retry_count,
            "isEncrypted": record.encrypted,
            "queueConfig": options_of(queue.options),
            "mode": {
                "hasQueueMode": view.queue_mode,
                "busGroupsCount": len(named),
                "type": kinds[view.queue_mode, bool(named)],
            },
            "consumerGroups": groups,
        }
    )


class Trace(Struct, frozen=True):
    """One trace event that a client reports (15); `pid` None when none, or none that can be, was given."""

    pid: int | None
    txn: str
    group: str
    names: tuple[str, ...]
    event: str
    data: bytes
    worker: str | None


def parse_trace(body: bytes) -> Trace:
    """Camel case and snake case are read alike. Raises BadRequest."""
    try:
        check_utf8(body)
        raws = raw_object(body)
    except (Malformed, msgspec.ValidationError) as wrong:
        raise BadRequest(f"the body must be a JSON object: {wrong}", code="bad_body") from None
    data = bytes(raws.pop("data", Raw(b"null")))
    fields = {name: scalar(raw) for name, raw in raws.items()}

    def first(*names: str) -> Any:
        return next((fields[name] for name in names if fields.get(name) is not None), None)

    txn = first("transactionId", "transaction_id")
    if not isinstance(txn, str) or not txn:
        raise BadRequest("transactionId is required")
    names: Any = first("traceNames", "trace_names", "names")
    texts = {
        "group": first("consumerGroup", "consumer_group"),
        "event": first("eventType", "event_type", "type"),
        "worker": first("worker", "workerId", "worker_id"),
    }
    for name, text in texts.items():
        if text is not None and not isinstance(text, str):
            raise BadRequest(f"{name} must be a string")
    try:
        names = msgspec.convert([names] if isinstance(names, str) else () if names is None else names, tuple[str, ...])
    except msgspec.ValidationError:
        raise BadRequest("traceNames must be an array of strings") from None
    pid = parse_pid(first("partitionId", "partition_id"))
    return Trace(pid, txn, texts["group"] or QUEUE_MODE, names, texts["event"] or "info", data, texts["worker"])


LETTER, OPTIONS = _Letter, (_INTEGERS, _BOOLEANS, _TEXTS)
"""The records of this module, for the protocol's description."""

"""Reading by offset, by change and by list; traces (`wire-messaging.md` 14, 15 and 16)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Raw, Struct

from queen_actors import limits
from queen_actors.domain.effects import TracePut
from queen_actors.domain.overview import ChangedPage, Fetched, FetchEntry, ListedMessage, MessageFilter, TraceName
from queen_actors.errors import BadRequest
from queen_actors.values import DEFAULT_PARTITION, MILLISECOND, SECOND, parse_instant

from .frames import encode, is_array, is_int, parse_object, query_int, zulu_time

_OFFSET_MAX = (1 << 53) - 1
_CURSOR = re.compile(r"p([0-9]{1,18})\Z")


class FetchRequest(Struct, frozen=True):
    """`wait` in microseconds."""

    entries: tuple[FetchEntry, ...]
    max_bytes: int
    min_bytes: int
    wait: int


def parse_fetch(body: bytes) -> FetchRequest:
    """Raises BadRequest."""
    fields = parse_object(body)
    entries = _entries(fields, limits.FETCH_ENTRIES)
    return FetchRequest(
        tuple(_fetch_entry(entry) for entry in entries),
        _number(fields, "maxBytes", limits.FETCH_BYTES, 1, limits.FETCH_BYTES),
        _number(fields, "minBytes", 1, 0, limits.FETCH_BYTES),
        _number(fields, "maxWaitMs", 0, 0, limits.FETCH_WAIT_MS_MAX) * MILLISECOND,
    )


def _entries(fields: Mapping[str, Any], most: int) -> list[dict[str, Any]]:
    entries = fields.get("entries")
    if not is_array(entries) or not all(isinstance(entry, dict) for entry in entries):
        raise BadRequest("entries must be an array of objects")
    if len(entries) > most:
        raise BadRequest(f"at most {most} entries fit into one call", code="too_large")
    return entries


def _fetch_entry(entry: Mapping[str, Any]) -> FetchEntry:
    queue, partition = entry.get("queue"), entry.get("partition")
    if not isinstance(queue, str) or not isinstance(partition, str | None):
        raise BadRequest("an entry's queue and partition must be strings")
    offset = entry.get("offset", 0)
    if not is_int(offset) or offset < 0:
        raise BadRequest("an entry's offset must be an integer, 0 or more")
    most = _number(entry, "maxBytes", limits.FETCH_BYTES, 1, limits.FETCH_BYTES)
    return FetchEntry(queue, partition or DEFAULT_PARTITION, offset, most)


def _number(fields: Mapping[str, Any], name: str, default: int, low: int, high: int) -> int:
    value = fields.get(name)
    if value is None:
        return default
    if type(value) is not int:
        raise BadRequest(f"{name} must be an integer")
    return max(low, min(value, high))


class _Record(Struct, rename="camel", gc=False):
    offset: int
    transaction_id: str
    payload: Raw
    ts: str


class _Answer(Struct, rename="camel", omit_defaults=True):
    queue: str
    partition: str
    records: tuple[_Record, ...]
    high_watermark: int
    log_start_offset: int
    error: str | None = None


def render_fetched(answers: Sequence[Fetched]) -> bytes:
    """Exactly one entry for each that was asked for, in their order."""
    return encode({"entries": [_fetched(answer) for answer in answers]})


def _fetched(answer: Fetched) -> _Answer:
    records = tuple(_Record(r.offset, r.txn, Raw(r.payload), zulu_time(r.ts)) for r in answer.records)
    entry = answer.entry
    return _Answer(entry.queue, entry.partition, records, answer.high_watermark, answer.log_start, answer.error)


class ChangedEntry(Struct, frozen=True):
    """One queue's change list from `since` (microseconds) and behind partition id `after` on; `after` None: the
    caller's cursor is none of ours."""

    queue: str
    since: int
    after: int | None
    limit: int


def parse_changed(body: bytes) -> list[ChangedEntry]:
    """Raises BadRequest."""
    return [_changed_entry(entry) for entry in _entries(parse_object(body), limits.FETCH_ENTRIES)]


def _changed_entry(entry: Mapping[str, Any]) -> ChangedEntry:
    queue, since, after = entry.get("queue"), entry.get("since"), entry.get("after")
    if not isinstance(queue, str):
        raise BadRequest("an entry's queue must be a string")
    limit = _number(entry, "limit", limits.CHANGED_PAGE_MAX, 1, limits.CHANGED_PAGE_MAX)
    known = _CURSOR.match(after) if isinstance(after, str) else None
    place = 0 if after is None else int(known[1]) if known is not None else None
    return ChangedEntry(queue, _instant("since", since) or 0, place, limit)


def _instant(name: str, text: object) -> int | None:
    if text is None or text == "":
        return None
    if not isinstance(text, str):
        raise BadRequest(f"{name} must be a string: an ISO 8601 instant")
    try:
        return parse_instant(text)
    except ValueError:
        raise BadRequest(f"{name} must be an ISO 8601 instant: {text[:80]!r}") from None


def render_changed(entries: Sequence[ChangedEntry], pages: Sequence[ChangedPage | None], now: int) -> bytes:
    """`safeTime` is the earliest of the pages': every write up to it is in the answer."""
    safe = min((page.safe_time for page in pages if page is not None), default=now)
    rows = [_changed(entry, page) for entry, page in zip(entries, pages, strict=True)]
    return encode({"safeTime": zulu_time(safe), "safeTimeDegraded": False, "entries": rows})


def _changed(entry: ChangedEntry, page: ChangedPage | None) -> dict[str, Any]:
    if entry.after is None:
        return {"queue": entry.queue, "error": "BAD_CURSOR"}
    if page is None:
        return {"queue": entry.queue, "error": "UNKNOWN_TOPIC_OR_PARTITION"}
    partitions = [
        {
            "name": partition.name,
            "id": str(partition.pid),
            "lastOffset": partition.last_offset,
            "logStart": partition.log_start,
            "lastWriteAt": None if partition.last_write is None else zulu_time(partition.last_write),
        }
        for partition in page.partitions
    ]
    return {"queue": entry.queue, "partitions": partitions, "next": None if page.after is None else f"p{page.after}"}


_STATUSES = ("pending", "processing", "completed", "dead_letter")


def parse_messages(query: Mapping[str, str], now: int) -> MessageFilter:
    """Without a start, the last hour. Raises BadRequest."""
    since = _instant("from", query.get("from"))
    status = query.get("status") or None
    if status is not None and status not in _STATUSES:
        raise BadRequest(f"status must be one of {', '.join(_STATUSES)}")
    return MessageFilter(
        queue=query.get("queue") or None,
        partition=query.get("partition") or None,
        namespace=query.get("namespace") or None,
        task=query.get("task") or None,
        status=status,
        since=now - limits.MESSAGES_SINCE_SECONDS * SECOND if since is None else since,
        until=_instant("to", query.get("to")),
        limit=query_int(query, "limit", limits.MESSAGES_PAGE_DEFAULT, 1, limits.MESSAGES_PAGE_MAX),
        offset=query_int(query, "offset", 0, 0, limits.MESSAGES_OFFSET_MAX),
    )


def render_messages(messages: Sequence[ListedMessage], wanted: MessageFilter) -> bytes:
    """One page, newest first; `total` is the page's."""
    mode = any(message.queue_mode for message in messages)
    groups = max((message.groups for message in messages), default=0)
    kind = {(False, False): "none", (True, False): "queue", (False, True): "bus", (True, True): "hybrid"}
    return encode(
        {
            "messages": [_listed(message) for message in messages],
            "total": len(messages),
            "pagination": {"limit": wanted.limit, "offset": wanted.offset},
            "mode": {"hasQueueMode": mode, "busGroupsCount": groups, "type": kind[mode, groups > 0]},
        }
    )


def _listed(message: ListedMessage) -> dict[str, Any]:
    record, queue = message.record, message.queue
    lease = message.lease_expires_at
    return {
        "id": record.id,
        "transactionId": record.txn,
        "data": Raw(record.payload),
        "payload": Raw(record.payload),
        "traceId": record.trace,
        "producerSub": record.producer,
        "createdAt": zulu_time(record.ts),
        "offset": record.offset,
        "queue": queue.name,
        "partition": message.partition,
        "partitionId": str(message.pid),
        "status": message.status,
        "queueStatus": message.status,
        "busStatus": {"consumedBy": message.consumed_by, "totalGroups": message.groups},
        "queuePath": f"{queue.name}/{message.partition}",
        "namespace": queue.namespace,
        "task": queue.task,
        "queuePriority": queue.options.priority,
        "payloadAvailable": True,
        "leaseExpiresAt": None if lease is None else zulu_time(lease),
        "isEncrypted": record.encrypted,
    }


class Page(Struct, frozen=True):
    """Which part of a list: `limit` rows behind the first `offset`."""

    limit: int
    offset: int


def parse_page(query: Mapping[str, str]) -> Page:
    """Raises BadRequest."""
    return Page(
        query_int(query, "limit", limits.TRACES_PAGE_DEFAULT, 1, limits.TRACES_PAGE_MAX),
        query_int(query, "offset", 0, 0, _OFFSET_MAX),
    )


def render_traces(traces: Sequence[TracePut], page: Page) -> bytes:
    """The page twice, as `traces` and `events`; the rows' keys in both spellings."""
    rows = [_trace(trace) for trace in traces[page.offset : page.offset + page.limit]]
    pagination = {"limit": page.limit, "offset": page.offset}
    return encode({"traces": rows, "events": rows, "total": len(traces), "pagination": pagination})


def _trace(trace: TracePut) -> dict[str, Any]:
    at = zulu_time(trace.created_at)
    return {
        "id": trace.id,
        "traceId": trace.id,
        "trace_id": trace.id,
        "transactionId": trace.txn,
        "transaction_id": trace.txn,
        "partitionId": str(trace.pid),
        "partition_id": str(trace.pid),
        "consumerGroup": trace.group,
        "consumer_group": trace.group,
        "traceNames": trace.names,
        "trace_names": trace.names,
        "eventType": trace.event,
        "event_type": trace.event,
        "data": Raw(trace.data),
        "workerId": trace.worker,
        "worker_id": trace.worker,
        "createdAt": at,
        "created_at": at,
    }


def render_trace_names(names: Sequence[TraceName], page: Page) -> bytes:
    """Trace names, the last used first."""
    rows = [
        {
            "trace_name": row.name,
            "trace_count": row.traces,
            "message_count": row.messages,
            "last_seen": zulu_time(row.last_seen),
        }
        for row in names[page.offset : page.offset + page.limit]
    ]
    pagination = {"limit": page.limit, "offset": page.offset}
    return encode({"trace_names": rows, "total": len(names), "pagination": pagination})


FETCHED = _Answer
"""A record of this module, for the protocol's description."""

"""What each route takes and answers, in words and record types: the description of the HTTP API beside the route table.

A route without an entry here, and an entry without a route, fail a test.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from queen_actors import limits
from queen_actors.wire import (
    ack,
    ephemeral,
    kv_results,
    locks,
    push,
    queue,
    reads,
    streams,
    timers,
    transaction,
)

from . import shapes as s
from . import shapes_admin as a
from . import shapes_ops as o

Schema = Mapping[str, Any]


class AnyOf(Struct, frozen=True):
    """One of these; records need no tag."""

    of: Sequence[Any]


class ListOf(Struct, frozen=True):
    of: Any


class Fields(Struct, frozen=True):
    """An object with these; the name of one that may be absent ends in `?`."""

    of: Mapping[str, Any]


class Body(Struct, frozen=True):
    """A request's body: a type, `AnyOf`, `ListOf` or `Fields`."""

    of: Any
    required: bool = True
    empty: bool = False
    """`[]` and `null` count as an empty object."""
    binary: bool = False
    """Also in the binary form (`application/x-queen-push`)."""


class Described(Struct, frozen=True):
    """`answers`: the shape of each success, None for no body; `refusals`: of a status, the shape that is answered
    beside the common errors. `query`: the parameters, those with a `!` required. `media`: of the 200, unless JSON."""

    tag: str
    summary: str
    answers: Mapping[int, Any]
    query: Mapping[str, Schema] = {}
    body: Body | None = None
    refusals: Mapping[int, Any] = {}
    media: str = "application/json"


def _number(low: int, high: int, default: int | None = None) -> Schema:
    told = f"A number; what lies outside of {low} to {high} counts as the nearest of them."
    schema = {"anyOf": [{"type": "number"}, {"const": ""}], "description": told}
    return schema if default is None else {**schema, "default": default}


def _wait(high: int) -> Schema:
    told = f"With `wait`, a number of milliseconds up to {high}, by default {limits.POP_WAIT_MS_DEFAULT}; else ignored."
    return {"description": told}


_TEXT: Schema = {"type": "string"}
_FLAG: Schema = {"anyOf": [{"type": "boolean"}, {"enum": ["", "0", "1"]}], "description": "Empty is the default."}
_TIME: Schema = {"type": "string", "description": "An ISO 8601 instant; empty is none."}
_PAGE = {
    "limit": _number(1, limits.TRACES_PAGE_MAX, limits.TRACES_PAGE_DEFAULT),
    "offset": _number(0, (1 << 53) - 1, 0),
}
_POP: Mapping[str, Schema] = {
    "consumerGroup": _TEXT,
    "batch": _number(1, limits.POP_BATCH_MAX, limits.POP_BATCH_DEFAULT),
    "partitions": _number(1, limits.POP_PARTITIONS_MAX),
    "wait": _FLAG,
    "timeout": _wait(limits.POP_WAIT_MS_MAX),
    "autoAck": _FLAG,
    "leaseSeconds": _number(0, 10**9, 0),
    "subscriptionMode": {"type": "string", "description": "`all`, `new` or `new-only`."},
    "subscriptionFrom": {"type": "string", "description": "`now`, or an ISO 8601 instant."},
    "conflation": _FLAG,
}
_KV_RESULTS = Fields({"results": ListOf(AnyOf(kv_results.ELEMENTS))})
_KV_ELEMENT = AnyOf((*kv_results.ELEMENTS, kv_results.LOST))
_ROLLBACK = {
    "reason?": str,
    "error?": str,
    "ok?": bool,
    "failedIndex?": int,
    "kvReason?": str,
    "version?": int,
    "value?": Any,
}
_STEP = AnyOf((*transaction.STEPS, *kv_results.ELEMENTS, timers.TimerElement))
_BUNDLE = Fields({"transactionId": str, "success": bool, "results": ListOf(_STEP), **_ROLLBACK})
_COUNTED = Fields(
    {
        "transactionId": str,
        "success": bool,
        "results": ListOf(_STEP),
        "pushed": int,
        "duplicate": int,
        "acked": int,
    }
)
_TRANSACTION = Fields(
    {
        "operations?": list[dict[str, Any]] | None,
        "requiredLeases?": list[str] | None,
        "kv?": AnyOf((ListOf(AnyOf(o.KV_RIDERS)), None)),
        "timers?": AnyOf((ListOf(AnyOf(o.TIMER_OPERATIONS)), None)),
        "positions?": AnyOf((ListOf(transaction.POSITION), None)),
    }
)
_INTEGERS, _BOOLEANS, _TEXTS = queue.OPTIONS
_NOTHING = Annotated[list[Any], Meta(max_length=0)]


def _whole(rule: queue.IntegerRule) -> Any:
    """What lies outside is refused when the option is strict, else counts as the nearest that it may be."""
    return AnyOf((Annotated[int, Meta(ge=rule.low, le=rule.high)] if rule.strict else int, None))


_OPTIONS = Fields(
    {
        **{f"{name}?": _whole(rule) for name, rule in _INTEGERS.items()},
        **{f"{name}?": bool | None for name in _BOOLEANS},
        **{f"{name}?": str | None for name in _TEXTS},
        "namespace?": str | None,
        "task?": str | None,
    }
)
# At the top a label counts only when it is a text that is not empty; an option may stand there too
_CONFIGURE = Fields(
    {
        "queue": str,
        "mode?": Literal["merge", "replace"] | None,
        "options?": AnyOf((_OPTIONS, _NOTHING, None)),
        **_OPTIONS.of,
        "namespace?": Any,
        "task?": Any,
    }
)
_SEEK = AnyOf((s.SeekEnd, s.SeekTime, Annotated[dict[str, Any], Meta(max_length=0)]))
_NO_QUEUE = {404: s.Error}


def _operations(kind: Any) -> Body:
    return Body(AnyOf((ListOf(kind), Fields({"operations": ListOf(kind)}))))


_MESSAGES: Mapping[str, Described] = {
    "POST /api/v1/push": Described(
        "messages",
        "Append messages, in order. One result for each, when all are durable.",
        {201: AnyOf((push.PUSHED, s.PushCounts))},
        body=Body(push.REQUEST, binary=True),
    ),
    "GET /api/v1/pop": Described(
        "messages",
        "Lease messages of any queue with these labels. 204: there are none.",
        {200: s.Popped, 204: None},
        query={**_POP, "namespace": _TEXT, "task": _TEXT},
    ),
    "GET /api/v1/pop/queue/*queue": Described(
        "messages", "Lease messages of a queue. 204: there are none.", {200: s.Popped, 204: None}, query=_POP
    ),
    "GET /api/v1/pop/queue/*queue/partition/*partition": Described(
        "messages", "Lease messages of one partition. 204: there are none.", {200: s.Popped, 204: None}, query=_POP
    ),
    "POST /api/v1/ack": Described(
        "messages", "Settle one message, or many.", {200: ack.SETTLED}, body=Body(AnyOf((ack.BATCH, ack.ONE)))
    ),
    "POST /api/v1/ack/batch": Described(
        "messages", "Settle many messages, or one.", {200: ack.SETTLED}, body=Body(AnyOf((ack.BATCH, ack.ONE)))
    ),
    "POST /api/v1/lease/:lease/extend": Described(
        "messages", "Hold a lease for longer.", {200: s.Extended}, body=Body(s.Seconds, required=False, empty=True)
    ),
    "GET /api/v1/messages": Described(
        "messages",
        "Messages, newest first; without `from`, those of the last hour.",
        {200: s.MessageList},
        query={
            **dict.fromkeys(("queue", "partition", "namespace", "task"), _TEXT),
            "status": {"type": "string", "enum": ["", "pending", "processing", "completed", "dead_letter"]},
            "from": _TIME,
            "to": _TIME,
            "limit": _number(1, limits.MESSAGES_PAGE_MAX, limits.MESSAGES_PAGE_DEFAULT),
            "offset": _number(0, limits.MESSAGES_OFFSET_MAX, 0),
        },
    ),
    "GET /api/v1/messages/:partition/*transaction": Described(
        "messages", "One message.", {200: s.OneMessage}, refusals=_NO_QUEUE
    ),
    "POST /api/v1/fetch": Described(
        "messages",
        "Read by offset, without a lease; it may wait for so many bytes.",
        {200: Fields({"entries": list[reads.FETCHED]})},
        body=Body(s.Fetch),
    ),
    "POST /api/v1/partitions/changed": Described(
        "messages", "Which partitions were written to since.", {200: s.ChangedAnswers}, body=Body(s.Changed)
    ),
    "GET /api/v1/dlq": Described(
        "dead letters",
        "Dead letters, newest first.",
        {200: Fields({"messages": ListOf(queue.LETTER), "total": int, "pagination": s.Page})},
        query={
            **dict.fromkeys(("queue", "consumerGroup", "partition"), _TEXT),
            "from": _TIME,
            "to": _TIME,
            "limit": _number(1, limits.DLQ_PAGE_MAX, limits.DLQ_PAGE_DEFAULT),
            "offset": _number(0, (1 << 53) - 1, 0),
        },
    ),
    "DELETE /api/v1/dlq": Described(
        "dead letters",
        "Remove a queue's dead letters.",
        {200: s.Purged},
        query={"queue!": {"type": "string", "minLength": 1}, "consumerGroup": _TEXT},
    ),
    "POST /api/v1/dlq/:letter/replay": Described(
        "dead letters",
        "Push a dead letter again.",
        {200: s.Replayed},
        body=Body(s.Redirect, required=False, empty=True),
        refusals={404: s.Gone},
    ),
    "POST /api/v1/messages/:partition/*transaction/retry": Described(
        "dead letters",
        "Push the dead letter of a message again.",
        {200: s.Replayed},
        body=Body(s.Redirect, required=False, empty=True),
        refusals={404: s.Gone},
    ),
    "DELETE /api/v1/messages/:partition/*transaction": Described(
        "dead letters",
        "Remove the dead letters of a message.",
        {200: s.LetterRemoved},
        refusals={404: s.LetterNotThere},
    ),
    "POST /api/v1/traces": Described(
        "traces",
        "Report a step of a message's life.",
        {201: s.Traced},
        body=Body(s.TraceEvent),
        refusals={404: s.Unsuccessful},
    ),
    "GET /api/v1/traces/names": Described(
        "traces", "Names of traces, the last used first.", {200: s.TraceNames}, _PAGE
    ),
    "GET /api/v1/traces/by-name/*name": Described("traces", "The traces of a name.", {200: s.Traces}, _PAGE),
    "GET /api/v1/traces/:partition/*transaction": Described(
        "traces", "The traces of a message.", {200: s.Traces}, _PAGE
    ),
}

_STATE: Mapping[str, Described] = {
    "POST /api/v1/kv": Described(
        "keys",
        "Keys and values, in one atomic step. Without `results`: a `required` condition was lost, nothing happened.",
        {200: AnyOf((_KV_RESULTS, kv_results.LOST))},
        body=_operations(AnyOf(o.KV_OPERATIONS)),
    ),
    "GET /api/v1/kv/:ns/*key": Described("keys", "One key; `ETag` is its version.", {200: _KV_ELEMENT}),
    "PUT /api/v1/kv/:ns/*key": Described("keys", "Write one key.", {200: _KV_ELEMENT}, body=Body(o.KvPut)),
    "DELETE /api/v1/kv/:ns/*key": Described(
        "keys", "Delete one key.", {200: _KV_ELEMENT}, body=Body(o.KvDelete, required=False)
    ),
    "POST /api/v1/locks": Described(
        "locks",
        "Permits of locks and semaphores.",
        {200: Fields({"results": list[locks.LockElement]})},
        body=_operations(AnyOf(o.LOCK_OPERATIONS)),
    ),
    "POST /api/v1/timers": Described(
        "timers",
        "Schedule and cancel messages for later.",
        {200: Fields({"results": list[timers.TimerElement]})},
        body=_operations(AnyOf(o.TIMER_OPERATIONS)),
    ),
    "GET /api/v1/timers/:queue": Described(
        "timers",
        "A page of a queue's pending timers, in the order of their keys; with `mode=count`, how many have a prefix.",
        {
            200: AnyOf(
                (Fields({"rows": list[timers.PENDING], "truncated": bool, "nextAfter": str | None}), s.TimerCount)
            )
        },
        query={
            "after": _TEXT,
            "limit": {"description": "1 to 1000; 100 when it cannot be read."},
            "mode": {"type": "string", "enum": ["", "count"]},
            "prefix": _TEXT,
        },
    ),
    "GET /api/v1/timers/:queue/*key": Described(
        "timers", "One pending timer.", {200: AnyOf((timers.PENDING, s.NoTimer))}
    ),
    "DELETE /api/v1/timers/:queue/*key": Described(
        "timers", "Cancel a timer.", {200: timers.TimerElement}, query={"txn": _TEXT}
    ),
    "POST /api/v1/transaction": Described(
        "transactions",
        "Pushes, acks, keys and timers that happen together or not at all. A rollback is a 200 with its reason.",
        {200: AnyOf((_BUNDLE, _COUNTED))},
        body=Body(_TRANSACTION, binary=True),
        refusals={400: _BUNDLE, 403: _BUNDLE, 413: _BUNDLE},
    ),
}

_ADMIN: Mapping[str, Described] = {
    "POST /api/v1/configure": Described(
        "queues", "Create or change a queue.", {200: a.Configured}, body=Body(_CONFIGURE)
    ),
    "GET /api/v1/resources/queues": Described("queues", "Every queue.", {200: a.Queues}),
    "GET /api/v1/resources/queues/*queue": Described("queues", "One queue.", {200: a.OneQueue}, refusals=_NO_QUEUE),
    "DELETE /api/v1/resources/queues/*queue": Described(
        "queues", "Delete a queue and all that is in it.", {200: a.QueueDeleted}
    ),
    "GET /api/v1/resources/queues/*queue/depth": Described(
        "queues", "What waits for a group.", {200: a.Depth}, query={"group": _TEXT}, refusals=_NO_QUEUE
    ),
    "GET /api/v1/resources/queues/*queue/sizes": Described(
        "queues", "Bytes that are kept.", {200: a.Sizes}, refusals=_NO_QUEUE
    ),
    "GET /api/v1/resources/overview": Described("queues", "Everything in figures.", {200: a.Overview}),
    "GET /api/v1/resources/namespaces": Described("queues", "The namespaces of queues.", {200: a.Namespaces}),
    "GET /api/v1/resources/tasks": Described("queues", "The tasks of queues.", {200: a.Tasks}),
    "GET /api/v1/consumer-groups": Described("groups", "Every group of every queue.", {200: list[s.Group]}),
    "GET /api/v1/consumer-groups/lagging": Described(
        "groups",
        "What is behind by at least so much, oldest first.",
        {200: list[s.Lagging]},
        query={"minLagSeconds": _number(0, 10**9, 3600)},
    ),
    "GET /api/v1/consumer-groups/*group": Described(
        "groups", "A group, by queue.", {200: dict[str, s.GroupQueue]}, refusals=_NO_QUEUE
    ),
    "DELETE /api/v1/consumer-groups/*group": Described(
        "groups", "Delete a group in every queue.", {200: s.GroupDeleted}, query={"deleteMetadata": _FLAG}
    ),
    "DELETE /api/v1/consumer-groups/*group/queues/*queue": Described(
        "groups", "Delete a group in one queue.", {200: s.GroupDeleted}, query={"deleteMetadata": _FLAG}
    ),
    "POST /api/v1/consumer-groups/*group/queues/*queue/seek": Described(
        "groups",
        "Move a group's cursors.",
        {200: s.Sought},
        body=Body(_SEEK, required=False, empty=True),
        refusals={404: s.SeekNotFound},
    ),
    "POST /api/v1/consumer-groups/*group/queues/*queue/partitions/*partition/seek": Described(
        "groups",
        "Move a group's cursor of one partition.",
        {200: s.Sought},
        body=Body(_SEEK, required=False, empty=True),
        refusals={404: s.SeekNotFound},
    ),
    "POST /api/v1/consumer-groups/*group/subscription": Described(
        "groups", "Move where a group begins.", {200: s.SubscriptionMoved}, body=Body(s.Subscription)
    ),
    "GET /health": Described("operation", "Is it ready?", {200: a.Health}),
    "HEAD /health": Described("operation", "Is it ready?", {200: None}),
    "GET /metrics": Described("operation", "Figures as JSON.", {200: a.Metrics}),
    "GET /metrics/prometheus": Described(
        "operation", "Figures for Prometheus.", {200: str}, media="text/plain; version=0.0.4; charset=utf-8"
    ),
    "GET /api/v1/status": Described("operation", "Queues and figures.", {200: a.Status}),
    "GET /api/v1/status/queues": Described("operation", "Every queue.", {200: a.StatusQueues}),
    "GET /api/v1/status/queues/*queue": Described("operation", "One queue.", {200: a.StatusQueue}, refusals=_NO_QUEUE),
    "GET /api/v1/status/analytics": Described(
        "operation",
        "Messages by when they were appended.",
        {200: a.Analytics},
        query={"interval": {"type": "string", "description": "minute, hour (also for any other word) or day."}},
    ),
    "POST /api/v1/stats/refresh": Described("operation", "Nothing to do: counts are exact.", {200: a.Refreshed}),
    "GET /api/v1/analytics/system-metrics": Described("operation", "The process.", {200: a.ProcessMetrics}),
    "GET /api/v1/analytics/worker-metrics": Described("operation", "The process.", {200: a.ProcessMetrics}),
    "GET /api/v1/ws": Described(
        "operation", "The WebSocket; without the upgrade, a 426.", {101: None}, refusals={426: s.Error}
    ),
}

_REST: Mapping[str, Described] = {
    "POST /streams/v1/queries": Described(
        "streams",
        "Register a query.",
        {200: a.StreamRegistered},
        body=Body(streams.REQUESTS["register"]),
        refusals={409: a.StreamMismatch},
    ),
    "POST /streams/v1/state/get": Described(
        "streams",
        "Rows of a query's state.",
        {200: a.StreamState},
        body=Body(streams.REQUESTS["read"]),
        refusals=_NO_QUEUE,
    ),
    "POST /streams/v1/cycle": Described(
        "streams",
        "State, pushes and an ack, together or not at all. A refused cycle is a 200 without success.",
        {200: AnyOf((a.StreamCycled, a.StreamRefused))},
        body=Body(streams.REQUESTS["cycle"]),
        refusals=_NO_QUEUE,
    ),
    "POST /api/v1/ephemeral/configure": Described(
        "queues in memory",
        "Declare a queue.",
        {201: a.EphemeralConfigured},
        body=Body(ephemeral.REQUESTS["configure"]),
    ),
    "POST /api/v1/ephemeral/push": Described(
        "queues in memory",
        "Push messages: all or none.",
        {201: a.EphemeralPushed},
        body=Body(ephemeral.REQUESTS["push"]),
    ),
    "GET /api/v1/ephemeral/pop": Described(
        "queues in memory",
        "Lease messages; none is an empty list.",
        {200: a.EphemeralPopped},
        query={
            "queue!": {"type": "string", "minLength": 1},
            "partition": _TEXT,
            "group": _TEXT,
            "batch": _number(1, limits.EPHEMERAL_ITEMS, 1),
            "wait": _FLAG,
            "timeout": _wait(limits.EPHEMERAL_WAIT_MS_MAX),
            "autoAck": _FLAG,
        },
    ),
    "POST /api/v1/ephemeral/ack": Described(
        "queues in memory", "Settle messages.", {200: a.EphemeralAcked}, body=Body(ephemeral.REQUESTS["acks"])
    ),
    "POST /api/v1/ephemeral/reset": Described(
        "queues in memory", "Empty a queue.", {200: a.EphemeralReset}, body=Body(ephemeral.REQUESTS["queue"])
    ),
    "DELETE /api/v1/ephemeral/queue/*queue": Described(
        "queues in memory", "Delete a queue.", {200: a.EphemeralDeleted}
    ),
    "GET /api/v1/ephemeral/queues": Described("queues in memory", "Every queue.", {200: a.EphemeralQueues}),
    "GET /api/v1/ephemeral/queues/*queue/depth": Described(
        "queues in memory",
        "What waits for a group.",
        {200: a.EphemeralDepth},
        query={"group": _TEXT},
        refusals=_NO_QUEUE,
    ),
}

_FILES = {
    "queen.js": ("The module for browsers.", "text/javascript; charset=utf-8"),
    "example.html": ("A page that shows it.", "text/html; charset=utf-8"),
    "asyncapi.json": ("The WebSocket protocol, as AsyncAPI.", "application/json"),
    "openapi.json": ("This document.", "application/json"),
}
_STATIC = {
    f"{method} /static/{name}": Described(
        "operation",
        summary,
        {200: None if method == "HEAD" else dict[str, Any] if name.endswith(".json") else str, 304: None},
        media=media,
    )
    for name, (summary, media) in _FILES.items()
    for method in ("GET", "HEAD")
}

DESCRIBED: Mapping[str, Described] = {**_MESSAGES, **_STATE, **_ADMIN, **_REST, **_STATIC}
"""By `METHOD pattern`, as in the route table."""

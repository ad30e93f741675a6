"""The operations and events of `queen.v1` in words and examples (`websocket.md`), for the protocol's description.

The fields of what the WebSocket reads and tells itself are those of its record types; for the rest this names them. A
test sends every example, in this order, to a real server, and compares what it says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from queen_actors.wire import delivery, locks, socket, watch

Example = Mapping[str, Any]

RECORDS: Mapping[str, type[Struct]] = {**socket.REQUESTS, **watch.REQUESTS}
EVENT_RECORDS: Mapping[str, type[Struct]] = {
    **socket.EVENTS,
    **delivery.EVENTS,
    **watch.EVENTS,
    "lock": locks.LockEvent,
}


class Operation(Struct, frozen=True):
    """`fields`: the JSON type of each, those with a `!` required; of ops that have no record type. `request` and `body`
    are examples: what is sent beside `id` and `op`, and what its reply has in `body`."""

    summary: str
    request: Example
    body: Any
    fields: Mapping[str, str] = {}
    status: int = 200


class Told(Struct, frozen=True):
    """An event, and an example of it."""

    summary: str
    example: Example


_AT = "2026-10-22T10:00:00.000Z"
_MESSAGE = {
    "id": "01a22897-14dc-7001-8ebf-4203c164db56",
    "transactionId": "order-1",
    "traceId": None,
    "data": {"amount": 120},
    "producerSub": None,
    "createdAt": _AT,
    "partitionId": "1",
    "partition": "customer-42",
    "leaseId": "01a22897-14dd-7001-93b1-2e5b38859cf6",
    "consumerGroup": "billing",
    "deliveryAttempt": 1,
    "offset": 0,
}
_LEASED = ("leaseId", "consumerGroup", "deliveryAttempt")
_TAILED = {name: value for name, value in _MESSAGE.items() if name not in _LEASED}
_PERMIT = {
    "index": 0,
    "op": "acquire",
    "name": "daily-report",
    "acquired": True,
    "slot": 0,
    "token": 17,
    "owner": "w1",
    "guard": {"op": "check", "ns": "queen-locks", "key": "daily-report#0", "expect": 17, "required": True},
}
_ROW = {"key": "customer-42", "value": {"items": 3}, "version": 7, "expiresAt": None, "updatedAt": _AT}

OPERATIONS: Mapping[str, Operation] = {
    "ping": Operation("Is the broker there? Answered by the event `pong`.", {}, None),
    "auth": Operation(
        "Say who you are, as the first frame, where neither a header nor a subprotocol did.",
        {"token": "eyJhbGciOiJIUzI1NiJ9.e30.c2ln"},
        {"authenticated": True},
    ),
    "configure": Operation(
        "As `POST /api/v1/configure`: create or change a queue.",
        {"queue": "orders", "options": {"leaseTime": 60, "retryLimit": 3}},
        {"queue": "orders", "configured": True, "options": {"leaseTime": 60, "retryLimit": 3}},
        {"queue!": "string", "options": "object", "namespace": "string", "task": "string", "mode": "string"},
    ),
    "push": Operation(
        "As `POST /api/v1/push`: append items, in order; durable when it is answered.",
        {
            "items": [
                {
                    "queue": "orders",
                    "partition": "customer-42",
                    "transactionId": "order-1",
                    "payload": {"amount": 120},
                }
            ]
        },
        [{"index": 0, "status": "queued", "transaction_id": "order-1", "queueName": "orders", "offset": 0}],
        {"items!": "array"},
        201,
    ),
    "pop": Operation(
        "As `GET /api/v1/pop...`: lease messages once; it may wait.",
        {"queue": "orders", "partition": "customer-42", "consumerGroup": "billing", "batch": 10},
        {"success": True, "queue": "orders", "partition": "customer-42", "messages": [_MESSAGE]},
        {
            "queue": "string",
            "partition": "string",
            "namespace": "string",
            "task": "string",
            "consumerGroup": "string",
            "batch": "integer",
            "partitions": "integer",
            "wait": "boolean",
            "timeout": "integer",
            "autoAck": "boolean",
            "leaseSeconds": "integer",
            "subscriptionMode": "string",
            "subscriptionFrom": "string",
            "conflation": "boolean",
        },
    ),
    "extend": Operation(
        "As `POST /api/v1/lease/:id/extend`: hold a lease for longer.",
        {"leaseId": "01a22897-14dd-7001-93b1-2e5b38859cf6", "seconds": 60},
        {"success": True, "leaseId": "01a22897-14dd-7001-93b1-2e5b38859cf6", "newExpiresAt": _AT},
        {"leaseId!": "string", "seconds": "integer"},
    ),
    "ack": Operation(
        "As `POST /api/v1/ack/batch`: settle delivered messages; one verdict for each.",
        {
            "consumerGroup": "billing",
            "acknowledgments": [
                {
                    "transactionId": "order-1",
                    "partitionId": "1",
                    "leaseId": "01a22897-14dd-7001-93b1-2e5b38859cf6",
                    "status": "completed",
                }
            ],
        },
        [{"index": 0, "transactionId": "order-1", "success": True, "error": None, "dlq": False}],
        {"acknowledgments!": "array", "consumerGroup": "string"},
    ),
    "kv": Operation(
        "As `POST /api/v1/kv`: keys and values, in one atomic step.",
        {
            "operations": [
                {"op": "put", "ns": "carts", "key": "customer-42", "value": {"items": 3}, "ttlSeconds": 604800}
            ]
        },
        {"results": [{"index": 0, "op": "put", "key": "customer-42", "applied": True, "version": 7}]},
        {"operations!": "array"},
    ),
    "locks": Operation(
        "As `POST /api/v1/locks`: permits of locks and semaphores. One that is acquired here is watched here.",
        {"operations": [{"op": "acquire", "name": "daily-report", "ttlSeconds": 30, "owner": "w1"}]},
        {"results": [_PERMIT]},
        {"operations!": "array"},
    ),
    "timers": Operation(
        "As `POST /api/v1/timers`: schedule and cancel messages for later. The payload is JSON text in base64.",
        {
            "operations": [
                {
                    "op": "schedule",
                    "queue": "reminders",
                    "timerKey": "cart-1",
                    "payload": "eyJjYXJ0IjoxfQ==",
                    "delayMs": 5000,
                    "txn": "cart-1",
                }
            ]
        },
        {
            "results": [
                {"ok": True, "status": "scheduled", "queue": "reminders", "timerKey": "cart-1", "deliverAt": _AT}
            ]
        },
        {"operations!": "array"},
    ),
    "timer.get": Operation(
        "As `GET /api/v1/timers/:queue/:key`: one pending timer.",
        {"queue": "reminders", "timerKey": "cart-1"},
        {"found": True, "queue": "reminders", "timerKey": "cart-1", "payload": "eyJjYXJ0IjoxfQ==", "deliverAt": _AT},
        {"queue!": "string", "timerKey!": "string"},
    ),
    "timer.list": Operation(
        "As `GET /api/v1/timers/:queue`: a page of a queue's pending timers.",
        {"queue": "reminders", "limit": 100},
        {"rows": [{"timerKey": "cart-1", "deliverAt": _AT}], "truncated": False, "nextAfter": None},
        {"queue!": "string", "after": "string", "limit": "integer", "mode": "string", "prefix": "string"},
    ),
    "transaction": Operation(
        "As `POST /api/v1/transaction`: pushes, acks, keys and timers that happen together or not at all.",
        {
            "operations": [{"type": "push", "items": [{"queue": "invoices", "payload": {"amount": 120}}]}],
            "kv": [{"op": "incr", "ns": "sums", "key": "billed", "delta": 120, "forever": True}],
        },
        {"success": True, "transactionId": "01a22897-14dc-7001-8ebf-4203c164db56", "results": [{"index": 0}]},
        {
            "operations": "array",
            "requiredLeases": "array",
            "kv": "array",
            "timers": "array",
            "positions": "array",
        },
    ),
    "subscribe": Operation(
        "Consume under leases that live with the connection. Deliveries are `messages` events.",
        {"sub": "s1", "queue": "orders", "group": "billing", "credit": 100, "batch": 100, "leaseSeconds": 60},
        {"sub": "s1", "consumerGroup": "billing"},
    ),
    "credit": Operation(
        "So many messages more may be under way, of an `autoAck` subscription or a tail.",
        {"sub": "s1", "add": 50},
        {"sub": "s1"},
    ),
    "unsubscribe": Operation(
        "End a subscription, and give back what it has leased; or end a tail.", {"sub": "s1"}, {"sub": "s1"}
    ),
    "tail": Operation(
        "Read without a lease, from `now`, `start`, an instant, or the next offset of each partition.",
        {"sub": "t1", "queue": "orders", "from": {"customer-42": 0}, "credit": 1000},
        {"sub": "t1", "from": {"customer-42": 0}},
    ),
    "watch": Operation(
        "Follow a key, or the keys under a prefix. With `fromVersion`, what has changed since then, and no rows.",
        {"watch": "w1", "ns": "carts", "prefix": "customer-"},
        {"watch": "w1", "version": 7, "rows": [_ROW]},
        {"ns!": "string", "key": "string", "prefix": "string"},
    ),
    "unwatch": Operation("End a watch.", {"watch": "w1"}, {"watch": "w1"}),
    "lock.acquire": Operation(
        "Wait in a fair line for a permit. With `session` it lives with the connection.",
        {"name": "nightly", "ttlSeconds": 30, "owner": "w1", "limit": 1, "waitSeconds": 60, "session": True},
        _PERMIT,
        {
            "name!": "string",
            "ttlSeconds!": "integer",
            "owner": "string",
            "limit": "integer",
            "waitSeconds": "number",
            "session": "boolean",
        },
    ),
}

_LEASE = {"partition": "customer-42", "partitionId": "1", "leaseId": _MESSAGE["leaseId"]}

EVENTS: Mapping[str, Told] = {
    "welcome": Told(
        "The server's first frame.",
        {
            "event": "welcome",
            "protocol": socket.PROTOCOL,
            "version": "0.1.0",
            "session": "01a22897-14dc-7001-8ebf-4203c164db56",
            "heartbeatSeconds": 20,
            "maxFrameBytes": 8388608,
            "now": _AT,
        },
    ),
    "messages": Told(
        "A delivery under a lease: messages of one partition, in the order of their offsets.",
        {
            "event": "messages",
            "sub": "s1",
            "queue": "orders",
            **_LEASE,
            "consumerGroup": "billing",
            "messages": [_MESSAGE],
        },
    ),
    "tailMessages": Told(
        "What a tail reads: the same without a lease.",
        {
            "event": "messages",
            "sub": "t1",
            "queue": "orders",
            "partition": "customer-42",
            "partitionId": "1",
            "messages": [_TAILED],
        },
    ),
    "gap": Told(
        "Retention has removed what the tail was to read: from the first to the last missing offset.",
        {"event": "gap", "sub": "t1", "partition": "customer-42", "from": 17, "to": 41},
    ),
    "lease": Told(
        "A lease ended before its messages were settled: expired, seek, deleted or maxLease.",
        {"event": "lease", "sub": "s1", "state": "lost", "reason": "expired", **_LEASE},
    ),
    "kv": Told(
        "Keys that changed: put, delete or expire. `coalesced`: only the latest state of each; `gap`: what changed "
        "meanwhile is not known any more, and `rows` is what is there.",
        {
            "event": "kv",
            "watch": "w1",
            "changes": [
                {"op": "put", "key": "customer-42", "value": {"items": 4}, "version": 8, "expiresAt": None},
                {"op": "expire", "key": "customer-7", "value": None, "version": 9, "expiresAt": None},
            ],
        },
    ),
    "lock": Told(
        "A permit that was acquired on this connection is lost: expired, deleted or taken.",
        {"event": "lock", "name": "daily-report", "state": "lost", "token": 17, "slot": 0, "reason": "expired"},
    ),
    "pong": Told("The answer to `ping`, with its `id` if it had one.", {"event": "pong", "id": 7}),
    "error": Told(
        "A request without an `id` failed, or a subscription, a tail or a watch (`sub`) cannot go on.",
        {
            "event": "error",
            "op": "subscribe",
            "sub": "s1",
            "status": 404,
            "error": {"error": "there is no subscription 's1' on this connection"},
        },
    ),
}

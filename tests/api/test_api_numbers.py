"""Every number of the HTTP API, in bodies and in queries: what the OpenAPI description allows is taken, what it forbids
is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema_rs
import pytest

from queen_actors.api.openapi import document
from queen_actors.api.routes import TABLE
from queen_actors.wire.frames import encode

VIRTUAL_TIME = True
DOCUMENT: dict[str, Any] = json.loads(encode(document(TABLE)))
HUGE = "1" + "0" * 30
ODD = (
    *("-1", "0", "1", "7", "-0.5", "0.5", "1.0", "1e3", "1e400", "-1e400", HUGE, f"-{HUGE}", "9223372036854775808"),
    *("20241231", "true", "false", '"5"', '""', "null", "[]", "{}"),
)
BEYOND = ("1e400", "-1e400")
"""No double holds them: schemas say nothing, and nothing may break."""
WITH_A_POINT = ("1.0", "1e3")
"""To a schema they are integers. The wire refuses them in places: `30.0` is no time to live of a lock (3.2)."""
KV = [
    {"op": "get", "ns": "n", "key": "k"},
    {"op": "getMany", "ns": "n", "keys": ["k"]},
    {"op": "getPrefix", "ns": "n", "prefix": "k", "limit": 5},
    {"op": "put", "ns": "n", "key": "k", "value": 1, "ttlSeconds": 60, "expect": 0},
    {"op": "putIfAbsent", "ns": "n", "key": "k", "value": 1, "ttlSeconds": 60, "expect": 0},
    {"op": "delete", "ns": "n", "key": "k", "expect": 1},
    {"op": "incr", "ns": "n", "key": "k", "delta": 1, "min": -10, "max": 10, "ttlSeconds": 60},
    {"op": "check", "ns": "n", "key": "k", "expect": 1},
]
LOCKS = [
    {"op": "acquire", "name": "l", "ttlSeconds": 30, "limit": 2},
    {"op": "renew", "name": "l", "ttlSeconds": 30, "token": 1, "slot": 0},
    {"op": "release", "name": "l", "token": 1, "slot": 0},
    {"op": "get", "name": "l"},
]
TIMERS = [
    {"op": "schedule", "queue": "q", "timerKey": "t", "payload": "MQ==", "delayMs": 5, "txn": "x"},
    {"op": "reschedule", "queue": "q", "timerKey": "t", "payload": "MQ==", "delayMs": 5, "txn": "x"},
    {"op": "cancel", "queue": "q", "timerKey": "t"},
]
IGNORED = (
    "limit",
    "expect",
    "delta",
    "min",
    "max",
    "ttlSeconds",
    "token",
    "slot",
    "delayMs",
    "payloadZstd",
    "required",
)
"""Names of other operations' fields, which an operation that does not read them ignores."""
REFUSED = {"incr": {"expect"}, "schedule": {"payloadZstd"}, "reschedule": {"payloadZstd"}}
"""But for these: one is refused, the other is read."""
OPTIONS = {
    **dict.fromkeys(("leaseTime", "retryLimit", "retryDelay", "delayedProcessing", "windowBuffer"), 1),
    **dict.fromkeys(("retentionSeconds", "completedRetentionSeconds", "maxWaitTimeSeconds", "dedupWindowSeconds"), 1),
    **dict.fromkeys(("minPopWaitTime", "priority", "maxSize", "ttl", "deliveryLimit"), 1),
    "retentionSinkHoldMaxSeconds": 60,
}
TRACE = {
    **dict.fromkeys(("consumerGroup", "eventType", "traceNames", "worker")),
    "transactionId": "t",
    "partitionId": "PID",
    "data": 1,
}
CYCLE = {"query_id": "QUERY", "partition_id": "PID", "ack": {"transaction_id": "t", "lease_id": "l", "count": 1}}
WINDOW = {"ms": 1, "count": 1}
MEMORY = {"maxBytes": 1, "maxLength": 1, "ttlSeconds": 1, "leaseSeconds": 1, "retryLimit": 1, "windowBuffer": WINDOW}
BODIES: Mapping[str, list[dict[str, Any]]] = {
    "POST /api/v1/kv": [{"operations": [op]} for op in KV],
    "PUT /api/v1/kv/{ns}/{key}": [{"value": 1, "ttlSeconds": 60, "expect": 0}],
    "DELETE /api/v1/kv/{ns}/{key}": [{"expect": 1}],
    "POST /api/v1/locks": [{"operations": [op]} for op in LOCKS],
    "POST /api/v1/timers": [{"operations": [op]} for op in TIMERS],
    "POST /api/v1/transaction": [
        *({"kv": [op]} for op in KV if op["op"] != "getPrefix"),
        *({"timers": [op]} for op in TIMERS),
        {"positions": [{"queue": "q", "consumerGroup": "g", "offset": 0}]},
    ],
    "POST /api/v1/lease/{lease}/extend": [{"seconds": 5}],
    "POST /api/v1/fetch": [
        {
            "entries": [{"queue": "q", "partition": None, "offset": 0, "maxBytes": 9}],
            "maxBytes": 9,
            "minBytes": 0,
            "maxWaitMs": 1,
        }
    ],
    "POST /api/v1/partitions/changed": [{"entries": [{"queue": "q", "limit": 1, "since": None}]}],
    "POST /api/v1/traces": [TRACE],
    "POST /api/v1/configure": [
        {"queue": "q", "options": None},
        {"queue": "q", "options": OPTIONS},
        {"queue": "q", **OPTIONS},
    ],
    "POST /streams/v1/state/get": [{"query_id": "QUERY", "partition_id": "PID", "ripe_at_or_before": 1}],
    "POST /streams/v1/cycle": [CYCLE],
    "POST /api/v1/ephemeral/configure": [{"queue": "m", "options": MEMORY}],
}
PATHS = {"{ns}": "n", "{key}": "k", "{lease}": "l", "{queue}": "q", "{partition}": "1", "{transaction}": "t"}


def resolved(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    while "$ref" in schema:
        schema = DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


def numbers(schema: Mapping[str, Any]) -> Iterator[str]:
    """The names of the numbers that such a body may have."""
    schema = resolved(schema)
    for one in schema.get("anyOf", ()):
        yield from numbers(one)
    if "items" in schema:
        yield from numbers(schema["items"])
    for name, one in schema.get("properties", {}).items():
        kinds = [resolved(kind).get("type") for kind in (one, *one.get("anyOf", ()))]
        if "integer" in kinds or "number" in kinds:
            yield name
        yield from numbers(one)


def operations() -> Iterator[tuple[str, Mapping[str, Any]]]:
    for path, item in DOCUMENT["paths"].items():
        for method, operation in item.items():
            yield f"{method.upper()} {path}", operation


def body_schema(operation: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    schema: Mapping[str, Any] = found.get("schema", {})
    return schema


TEXTS = {"ns", "key", "keys", "prefix", "since", "partitionId"}
"""Texts, with rules of their own: some of these a number may stand for."""


def test_every_number_is_tried_here() -> None:
    """No route's body has a number that the bodies here do not have."""
    for name, operation in operations():
        wanted = set(numbers(body_schema(operation))) - TEXTS
        tried = {field for body in BODIES.get(name, ()) for field in re.findall(r'"(\w+)":', json.dumps(body))}
        assert wanted - tried == set(), name


def marked(node: Any) -> Iterator[tuple[bool, Any]]:
    """The body with a mark in the place of each number, of what may be a null, and of the numbers that an operation
    does not read; and whether the description knows all that is refused there."""
    if isinstance(node, list):
        for index, one in enumerate(node):
            yield from ((exact, [*node[:index], other, *node[index + 1 :]]) for exact, other in marked(one))
    elif isinstance(node, dict):
        more = [name for name in IGNORED if "op" in node and name not in REFUSED.get(node["op"], ())]
        for name in dict.fromkeys([*node, *more]):
            value = node.get(name)
            if isinstance(value, dict | list) and name not in TEXTS:
                yield from ((exact, {**node, name: other}) for exact, other in marked(value))
            elif name in TEXTS or value is None or (type(value) is int and name not in ("value", "data")):
                exact = name not in TEXTS and (name not in node or value is not None)
                yield exact, {**node, name: "~"}


def pointed(text: str) -> bool:
    return any(re.search(rf": {odd}[,}}]", text) for odd in WITH_A_POINT)


def variants(body: dict[str, Any]) -> Iterator[tuple[bool, str]]:
    """The body's text with each number in turn in each odd way."""
    for exact, other in marked(body):
        text = json.dumps(other)
        yield from ((exact, text.replace('"~"', odd)) for odd in ODD)


@pytest.mark.parametrize("name", BODIES)
async def test_numbers_in_a_body(client: Any, name: str) -> None:
    """Each number of a body, negative, broken, huge, as a text and as what is none: the answer is a success exactly
    when the description allows the body, but that it may refuse a whole number with a point."""
    schema = body_schema(dict(operations())[name])
    check = jsonschema_rs.Draft202012Validator({**schema, "components": DOCUMENT["components"]})
    await client.push("q", 1)
    _, changed = await client.post("/api/v1/partitions/changed", {"entries": [{"queue": "q"}]})
    pid = changed["entries"][0]["partitions"][0]["id"]
    query = {"name": "s", "source_queue": "q", "config_hash": "h"}
    _, registered = await client.post("/streams/v1/queries", query)
    method, _, path = name.partition(" ")
    for piece, value in PATHS.items():
        path = path.replace(piece, value)
    wrong, verdicts = [], set()
    for body in BODIES[name]:
        for exact, template in ((None, json.dumps(body)), *variants(body)):
            text = template.replace('"PID"', f'"{pid}"').replace('"QUERY"', f'"{registered["query_id"]}"')
            reply = await client.reply(method, path, text.encode())
            taken, allowed = reply.status < 300, check.is_valid(json.loads(text))
            verdicts.add(taken)
            if reply.status >= 500:
                wrong.append(f"{reply.status}: {text}")
            elif exact is None:
                assert taken, (text, reply.body)
            elif any(beyond in text for beyond in BEYOND):
                continue
            elif taken and not allowed:
                wrong.append(f"taken: {text}")
            elif exact and allowed and not taken and not pointed(text) and reply.status != 403:  # 403: a policy's bound
                wrong.append(f"{reply.status}: {text}: {reply.body[:200]!r}")
    assert wrong == []
    assert verdicts == {True, False}


QUERIES = [
    (name, one["name"])
    for name, operation in operations()
    for one in operation["parameters"]
    if one["in"] == "query" and {"type": "number"} in one["schema"].get("anyOf", ())
]


@pytest.mark.parametrize(("name", "field"), QUERIES)
async def test_numbers_in_a_query(client: Any, name: str, field: str) -> None:
    """A number in a query, of any size and sign, counts as the nearest that there is; what is no number is refused."""
    method, _, path = name.partition(" ")
    for piece, value in {**PATHS, "{name}": "n"}.items():
        path = path.replace(piece, value)
    for text in ("-1", "0", "7", "0.5", "-0.5", "1e3", "1e-3", "1e400", HUGE, f"-{HUGE}", ""):
        reply = await client.reply(method, f"{path}?queue=q&namespace=n&{field}={text}")
        assert reply.status < 300, (text, reply.body)
    for text in ("true", "null", "five", "1,5", "0x10", "--1", "1e", "[]", "NaN", "Infinity"):
        reply = await client.reply(method, f"{path}?queue=q&namespace=n&{field}={text}")
        assert reply.status == 400, (text, reply.body)

"""websocket.md, section 2: each op is its HTTP route, to the byte.

Two brokers that are alike to the last id are asked the same: one over a WebSocket, one over HTTP.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import pytest
from serve_kit import Peer as HttpPeer
from socket_peer import SOME_DAY, House, Peer, acks, house, items

from queen_actors.values import SECOND

VIRTUAL_TIME = True

PAYLOAD = base64.b64encode(b'{"n": 1.50}').decode()
QUEUE, KEY = "orders/eu ?#é", "order/9137 x?"
MICROSECONDS = re.compile(r"\.\d{6}Z")
"""How often others asked the same clock, which gives no instant twice."""
Known = dict[str, Any]
"""Bodies of earlier replies, by the name of their step."""


class Step(NamedTuple):
    """One request, as it is sent over a socket and as it is sent over HTTP."""

    op: str
    fields: Callable[[Known], dict[str, Any]]
    method: str
    target: Callable[[Known], str]
    body: bool = True
    name: str = ""


def post(op: str, path: str, name: str = "", **fields: Any) -> Step:
    """An op whose fields are the body of a POST."""
    return Step(op, lambda _: fields, "POST", lambda _: f"/api/v1/{path}", name=name)


def pop(path: str, place: dict[str, Any], name: str = "", **query: Any) -> Step:
    target = f"/api/v1/pop{path}?{urlencode(query)}"
    return Step("pop", lambda _: {**place, **query}, "GET", lambda _: target, False, name)


def schedule(key: str, **more: Any) -> dict[str, Any]:
    return {
        "op": "schedule",
        "queue": QUEUE,
        "timerKey": key,
        "payload": PAYLOAD,
        "delayMs": 60_000,
        "txn": key,
        **more,
    }


def put(key: str, **more: Any) -> dict[str, Any]:
    return {"op": "put", "ns": "n", "key": key, "value": {"b": 1.50, "a": [None, "é"]}, "forever": True, **more}


AT_QUEUE = f"/queue/{quote(QUEUE, safe='')}"
TIMERS = f"/api/v1/timers/{quote(QUEUE, safe='')}"
LOCK = {"op": "acquire", "name": "l", "ttlSeconds": 30}
TIMER_PAGE = urlencode({"after": "a", "limit": 1})

STEPS = [
    post("configure", "configure", queue=QUEUE, namespace="ns", task="t", options={"leaseTime": 7, "retryLimit": 1}),
    post("configure", "configure", queue="", options={}),
    post("configure", "configure", queue="q", options={"leaseTime": "long"}),
    post("push", "push", "pushed", items=items(QUEUE, 1, {"n": 2.50}, "é", 4, 5, partition="p/1") + items(QUEUE, 6)),
    post("push", "push", items=[{"queue": QUEUE, "payload": 1, "transactionId": "t"}] * 2),
    post("push", "push", items=[]),
    post("push", "push", items="none"),
    post("push", "push", items=[{"payload": 1}]),
    pop(
        f"{AT_QUEUE}/partition/p%2F1",
        {"queue": QUEUE, "partition": "p/1"},
        "popped",
        batch=2,
        consumerGroup="g",
        subscriptionMode="all",
    ),
    pop(AT_QUEUE, {"queue": QUEUE}, batch=10, partitions=4, consumerGroup="g2", autoAck="true"),
    pop("", {}, namespace="ns", task="t", batch=3, leaseSeconds=9),
    pop(AT_QUEUE, {"queue": QUEUE}, wait="true", timeout=10, consumerGroup="g2"),
    pop(AT_QUEUE, {"queue": QUEUE}, consumerGroup="late", subscriptionMode="new"),
    pop(AT_QUEUE, {"queue": QUEUE}, consumerGroup="later", subscriptionFrom="2100-01-01T00:00:00Z"),
    pop(AT_QUEUE, {"queue": QUEUE}, consumerGroup="newest", conflation="true", partitions=1),
    pop("/queue/none", {"queue": "none"}),
    pop("", {}),
    pop(AT_QUEUE, {"queue": QUEUE}, batch="many"),
    Step(
        "extend",
        lambda known: {"leaseId": known["popped"]["leaseId"], "seconds": 100},
        "POST",
        lambda known: f"/api/v1/lease/{known['popped']['leaseId']}/extend",
    ),
    Step("extend", lambda _: {"leaseId": "a/b%?#"}, "POST", lambda _: "/api/v1/lease/a%2Fb%25%3F%23/extend"),
    Step("extend", lambda _: {"leaseId": "x", "seconds": "y"}, "POST", lambda _: "/api/v1/lease/x/extend"),
    Step(
        "ack",
        lambda known: {
            "acknowledgments": acks(known["popped"], 0) + acks(known["popped"], 1, status="failed"),
            "consumerGroup": "g",
        },
        "POST",
        lambda _: "/api/v1/ack/batch",
    ),
    Step(
        "ack",
        lambda known: {"acknowledgments": acks(known["popped"], 1), "consumerGroup": "g"},
        "POST",
        lambda _: "/api/v1/ack/batch",
    ),
    post("ack", "ack/batch", acknowledgments={}),
    post(
        "kv",
        "kv",
        operations=[put("a"), put("b", expect=5), {"op": "incr", "ns": "n", "key": "c", "delta": 2, "forever": True}],
    ),
    post("kv", "kv", operations=[{"op": "get", "ns": "n", "key": "a"}, {"op": "getPrefix", "ns": "n", "prefix": "a"}]),
    post("kv", "kv", operations=[put("a", expect=77, required=True)]),
    post("kv", "kv", operations=[{"op": "get", "ns": "", "key": "a"}]),
    post("kv", "kv"),
    post("locks", "locks", operations=[{**LOCK, "owner": "o"}, {**LOCK, "name": "m", "limit": 2}]),
    post("locks", "locks", operations=[{**LOCK, "owner": "other"}, {"op": "get", "name": "m"}]),
    post("locks", "locks", operations=[{"op": "acquire", "name": "l"}]),
    post("timers", "timers", operations=[schedule("a"), schedule(KEY), schedule("z", delayMs=-1)]),
    post("timers", "timers", operations=[schedule("a"), schedule(KEY), schedule("z")]),
    Step(
        "timer.get",
        lambda _: {"queue": QUEUE, "timerKey": KEY},
        "GET",
        lambda _: f"{TIMERS}/{quote(KEY, safe='')}",
        False,
    ),
    Step("timer.get", lambda _: {"queue": QUEUE, "timerKey": "no"}, "GET", lambda _: f"{TIMERS}/no", False),
    Step("timer.list", lambda _: {"queue": QUEUE}, "GET", lambda _: TIMERS, False),
    Step(
        "timer.list",
        lambda _: {"queue": QUEUE, "after": "a", "limit": 1},
        "GET",
        lambda _: f"{TIMERS}?{TIMER_PAGE}",
        False,
    ),
    post("timers", "timers", operations=[{"op": "cancel", "queue": QUEUE, "timerKey": KEY}]),
    post("timers", "timers", operations=[{"op": "cancel", "queue": QUEUE, "timerKey": KEY}]),
    Step(
        "transaction",
        lambda _: {
            "operations": [{"type": "push", "items": items(QUEUE, 7, partition="p2")}],
            "requiredLeases": [],
            "kv": [put("d")],
            "timers": [schedule("later")],
        },
        "POST",
        lambda _: "/api/v1/transaction",
    ),
    post("transaction", "transaction", operations=[{"type": "push", "items": items("q", 1)}], requiredLeases=["gone"]),
    post(
        "transaction",
        "transaction",
        operations=[{"type": "push", "items": items("q", 1)}],
        kv=[put("d", expect=1, required=True)],
    ),
    post("transaction", "transaction", operations=[{"type": "jump"}]),
    post("transaction", "transaction"),
]
OPS = ("push", "pop", "ack", "extend", "transaction", "kv", "locks", "timers", "timer.get", "timer.list", "configure")


def at_its_instant(hall: House, number: int) -> None:
    """How often the time was asked for before makes no difference."""
    hall.broker.clock.advance_to(SOME_DAY + (number + 1) * SECOND)


async def over_socket(hall: House) -> list[str]:
    """The replies as they came."""
    peer = await hall.peer()
    known: Known = {}
    for number, step in enumerate(STEPS):
        at_its_instant(hall, number)
        await peer.say({"id": number, "op": step.op, **step.fields(known)})
        reply = await peer.reply(number)
        known[step.name] = reply.get("body")
    return peer.raw_texts[1:]


async def over_http(hall: House) -> list[str]:
    """The answers, as replies of a socket would have them."""
    await hall.peer()  # which is an id, and an instant
    peer = HttpPeer(await hall.stream())
    known: Known = {}
    replies: list[str] = []
    for number, step in enumerate(STEPS):
        at_its_instant(hall, number)
        body = step.fields(known) if step.body else None
        status, _, told = await peer.request(step.method, step.target(known), body)
        known[step.name] = json.loads(told or b"null")
        ok = "true" if status < 400 else "false"
        face = "body" if status < 400 else "error"
        replies.append(f'{{"id":{number},"ok":{ok},"status":{status},"{face}":{told.decode() or "null"}}}')
    return replies


@pytest.mark.parametrize("op", OPS)
async def test_an_op_answers_what_its_route_answers(op: str) -> None:
    """The same status and the same body, to the byte (but for the microseconds of an instant), whether it succeeds or
    fails; and the same is true afterwards: what later steps read, ids included, is what is read over HTTP."""
    async with house(seed=7) as hall:
        told = await over_socket(hall)
    async with house(seed=7) as hall:
        expected = await over_http(hall)
    assert {step.op for step in STEPS} == set(OPS)
    pairs = zip(STEPS, told, expected, strict=True)
    found = [
        (MICROSECONDS.sub("Z", said), MICROSECONDS.sub("Z", wanted)) for step, said, wanted in pairs if step.op == op
    ]
    for said, wanted in found:
        assert said == wanted
    assert {json.loads(said)["ok"] for said, _ in found} >= {True}


async def test_a_cancelled_timer_is_as_the_route_leaves_it(hall: House) -> None:
    """`timers` with `cancel` does what `DELETE /api/v1/timers/...` does: each finds nothing of what the other took."""
    peer, http = await hall.peer(), HttpPeer(await hall.stream())
    for key in ("a", "b"):
        assert (await peer.ask("timers", operations=[schedule(key)]))["ok"]
    cancel = [{"op": "cancel", "queue": QUEUE, "timerKey": "a"}]
    assert (await peer.ask("timers", operations=cancel))["body"]["results"][0]["status"] == "cancelled"
    _, again = await http.json("DELETE", f"{TIMERS}/a")
    assert (await http.json("DELETE", f"{TIMERS}/b"))[0] == 200
    gone = [{"op": "cancel", "queue": QUEUE, "timerKey": "b"}]
    (found,) = (await peer.ask("timers", operations=gone))["body"]["results"]
    assert found["status"] == again["status"]
    assert (await peer.ask("timer.list", queue=QUEUE))["body"]["rows"] == []


async def test_the_same_port_serves_both(hall: House) -> None:
    """HTTP and WebSockets come to one listener; what one of them wrote the other reads."""
    http = HttpPeer(await hall.stream())
    assert (await http.json("POST", "/api/v1/push", {"items": items("q", 1)}))[0] == 201
    peer: Peer = await hall.peer()
    assert (await peer.ask("pop", queue="q", autoAck=True))["body"]["messages"][0]["data"] == 1
    assert (await peer.ask("push", items=items("q", 2)))["ok"]
    _, popped = await http.json("GET", "/api/v1/pop/queue/q?autoAck=true")
    assert popped["messages"][0]["data"] == 2

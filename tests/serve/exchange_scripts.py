"""What clients say to a broker, one request after another: each script stores, delivers and settles, and is refused.

A script is the same on every lane: it takes what it needs (a lease, a version) from the answers that it got, and says
what status it expects of each.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import trio
import trio.testing


class Talk(Protocol):
    """The client of one server. What is answered is recorded."""

    async def says(self, status: int, method: str, target: str, body: Any = None) -> Any:
        """Ask; the status must be this one. Gives the decoded body, None for an empty one."""
        ...

    async def post(self, status: int, name: str, body: Any) -> Any:
        """`says` of a POST under /api/v1."""
        ...

    async def pop(self, status: int, target: str) -> list[Any]:
        """`says` of a GET under /api/v1/pop; gives the messages."""
        ...

    async def beside(self) -> Talk:
        """A client on a connection of its own."""
        ...


Script = Callable[[Talk], Awaitable[None]]


def b64(value: Any) -> str:
    return base64.b64encode(json.dumps(value).encode()).decode()


def item(number: int, queue: str = "q", **more: Any) -> dict[str, Any]:
    return {"queue": queue, "payload": {"n": number}, "transactionId": f"t{number}", **more}


def ack(message: Any, status: str = "completed", **more: Any) -> dict[str, Any]:
    return {**{name: message[name] for name in ("transactionId", "partitionId", "leaseId")}, "status": status, **more}


async def pushes(talk: Talk) -> None:
    """New, known and repeated messages, partitions, and bodies that are none."""
    await talk.post(201, "push", {"items": [item(1), item(2, partition="p"), item(1), item(3, "r")]})
    await talk.post(201, "push", {"items": [item(1), item(4, traceId="0197f0de-0000-7000-8000-00000000aaaa")]})
    await talk.post(201, "push", {"items": [{"queue": "q", "payload": None}, {"queue": "é/ü", "payload": "\u2028"}]})
    await talk.post(400, "push", b'{"items":')
    await talk.post(400, "push", b"\xff")
    await talk.post(400, "push", {"items": [{"payload": 1}]})
    await talk.post(400, "push", {"items": [item(9), {"queue": "q"}]})
    await talk.post(413, "push", {"items": [item(9, "q" * 500)]})
    await talk.says(405, "PUT", "/api/v1/push", {"items": [item(9)]})
    await talk.says(200, "GET", "/api/v1/resources/queues/q/depth")
    await talk.says(404, "GET", "/api/v1/resources/queues/nothing")


async def pops(talk: Talk) -> None:
    """Of a queue, a partition, a namespace and a group; leased, taken for good, empty and refused."""
    await talk.pop(204, "queue/q")
    await talk.post(201, "push", {"items": [item(number) for number in range(1, 5)]})
    first = await talk.pop(200, "queue/q?batch=1")
    assert [message["data"] for message in first] == [{"n": 1}]
    await talk.pop(204, "queue/q")
    await talk.post(200, "ack", ack(first[0]))
    assert len(await talk.pop(200, "queue/q?batch=2&autoAck=true")) == 2
    await talk.pop(200, "queue/q/partition/Default?leaseSeconds=7")
    await talk.pop(204, "queue/q/partition/other")
    assert len(await talk.pop(200, "queue/q?consumerGroup=g&subscriptionMode=all")) == 4
    await talk.pop(204, "queue/q?consumerGroup=late&subscriptionMode=new")
    await talk.post(200, "configure", {"queue": "s", "namespace": "n", "task": "t", "options": {"leaseTime": 9}})
    await talk.post(201, "push", {"items": [item(1, "s"), item(2, "s", partition="p")]})
    assert len(await talk.pop(200, "?namespace=n&task=t&partitions=2")) == 2
    await talk.pop(400, "")
    await talk.pop(400, "queue/q?conflation=true")
    await talk.pop(200, "queue/q?consumerGroup=c&conflation=true&subscriptionMode=all")
    await talk.pop(200, "queue/q?consumerGroup=c&conflation=true")
    await talk.says(405, "POST", "/api/v1/pop/queue/q", {})


async def waits(talk: Talk) -> None:
    """Pops that wait: in vain, with something there, and for what another client pushes or gives back."""
    await talk.pop(204, "queue/q?wait=true&timeout=20")
    await talk.post(201, "push", {"items": [item(0)]})
    await talk.pop(200, "queue/q?wait=true&autoAck=true")
    for number, terms in enumerate(("queue/q", "queue/q/partition/p", "?namespace=n", "queue/q?consumerGroup=g")):
        await talk.post(200, "configure", {"queue": "q", "namespace": "n"})
        if "consumerGroup" in terms:
            await talk.pop(204, f"{terms}&subscriptionMode=new")
        waiting, found = await talk.beside(), list[Any]()
        async with trio.open_nursery() as nursery:

            async def wait(waiting: Talk = waiting, terms: str = terms, found: list[Any] = found) -> None:
                found += await waiting.pop(200, f"{terms}{'&' if '?' in terms else '?'}wait=true&timeout=30000")

            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked(0.02)
            await talk.post(201, "push", {"items": [item(100 + number, partition="p")]})
        (message,) = found
        more = {"consumerGroup": "g"} if "consumerGroup" in terms else {}
        await talk.post(200, "ack", ack(message, **more))
    await talk.post(201, "push", {"items": [item(200)]})
    (held,) = await talk.pop(200, "queue/q")
    waiting = await talk.beside()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(waiting.pop, 200, "queue/q?wait=true")
        await trio.testing.wait_all_tasks_blocked(0.02)
        await talk.post(200, "ack", ack(held, "retry"))


async def acks(talk: Talk) -> None:
    """One and many, each status, twice, of nothing, and with what is no lease; then what became of them."""
    await talk.post(200, "configure", {"queue": "q", "options": {"retryLimit": 1}})
    await talk.post(201, "push", {"items": [item(number) for number in range(1, 7)]})
    messages = await talk.pop(200, "queue/q")
    await talk.post(200, "ack", ack(messages[0]))
    await talk.post(200, "ack", ack(messages[0]))
    await talk.post(200, "ack", ack(messages[1], leaseId="0197f0de-0000-7000-8000-00000000aaaa"))
    await talk.post(200, "ack", ack({**messages[1], "transactionId": "ghost"}))
    await talk.post(200, "ack", ack(messages[1], consumerGroup="other"))
    await talk.post(200, "ack/batch", {"acknowledgments": [ack(messages[1]), ack(messages[2], "failed", error="bad")]})
    messages = await talk.pop(200, "queue/q")
    assert [message["transactionId"] for message in messages] == ["t3", "t4", "t5", "t6"]
    batch = [ack(messages[0], "failed"), ack(messages[1], "dlq", error="no"), ack(messages[2])]
    await talk.post(200, "ack/batch", {"acknowledgments": batch, "consumerGroup": None})
    await talk.says(200, "GET", "/api/v1/dlq?queue=q")
    for body in (b"{", b"[1]", {"transactionId": 1}, {"acknowledgments": [{"status": "completed"}]}):
        await talk.post(400, "ack/batch", body)
    await talk.post(400, "ack", {"partitionId": messages[0]["partitionId"]})
    partition = messages[0]["partitionId"]
    await talk.says(200, "GET", f"/api/v1/messages/{partition}/t1")
    await talk.says(404, "GET", f"/api/v1/messages/{partition}/ghost")
    await talk.says(200, "GET", "/api/v1/resources/queues/q/depth")
    await talk.says(200, "DELETE", "/api/v1/resources/queues/q")
    await talk.pop(204, "queue/q")


async def leases(talk: Talk) -> None:
    """Made longer, by default and by so much, and refused."""
    await talk.post(201, "push", {"items": [item(1)]})
    (message,) = await talk.pop(200, "queue/q?leaseSeconds=10")
    for body in (None, b"[]", {}, {"seconds": 300}):
        await talk.post(200, f"lease/{message['leaseId']}/extend", body)
    await talk.post(200, "lease/none/extend", None)
    await talk.post(400, f"lease/{message['leaseId']}/extend", b'{"seconds":')
    await talk.post(400, f"lease/{message['leaseId']}/extend", {"seconds": "x"})
    await talk.post(200, "ack", ack(message))
    await talk.post(200, f"lease/{message['leaseId']}/extend", {})


async def keys(talk: Talk) -> None:
    """In batches and by their paths, with conditions that hold and that do not."""
    put = {"op": "put", "ns": "n", "key": "k", "value": {"a": 1.50}, "ttlSeconds": 600}
    (stored,) = (await talk.post(200, "kv", {"operations": [put]}))["results"]
    version = stored["version"]
    await talk.post(200, "kv", {"operations": [{"op": "get", "ns": "n", "key": "k"}]})
    for _ in range(2):  # the second has lost
        await talk.post(200, "kv", {"operations": [{**put, "value": 2, "expect": version}]})
    await talk.post(200, "kv", [{**put, "expect": version, "required": True}])
    absent = {"op": "putIfAbsent", "ns": "n", "key": "once", "value": [], "forever": True}
    for _ in range(2):
        await talk.post(200, "kv", {"operations": [absent, {"op": "get", "ns": "n", "key": "k"}]})
    count = {"op": "incr", "ns": "n", "key": "c", "delta": 3, "max": 4, "ttlSeconds": 60}
    for _ in range(2):
        await talk.post(200, "kv", {"operations": [count, {"op": "getPrefix", "ns": "n", "prefix": "c"}]})
    await talk.post(400, "kv", {"operations": [count, count]})
    await talk.post(200, "kv", {"operations": [{"op": "delete", "ns": "n", "key": name} for name in ("c", "none")]})
    await talk.says(200, "PUT", "/api/v1/kv/n/a%2Fb", {"value": "é", "forever": True})
    for path in ("a/b", "none"):
        await talk.says(200, "GET", f"/api/v1/kv/n/{path}")
        await talk.says(200, "DELETE", f"/api/v1/kv/n/{path}", {})
    await talk.says(400, "GET", "/api/v1/kv/n/k?x=1")
    await talk.post(413, "kv", {"operations": [{**put, "value": "x" * 70_000}]})
    for body in (b"{", {"operations": [{"op": "frob"}]}, {"operations": [{**put, "ttlSeconds": "x"}]}):
        await talk.post(400, "kv", body)
    await talk.post(400, "kv", {"operations": [{"op": "put", "ns": "n", "key": "k", "value": 1}]})
    await talk.says(405, "PATCH", "/api/v1/kv/n/k", {})


async def locks(talk: Talk) -> None:
    """Taken, held by another, lengthened, given back, taken again; and refused."""
    take = {"op": "acquire", "name": "l", "ttlSeconds": 300, "owner": "me"}
    (held,) = (await talk.post(200, "locks", {"operations": [take]}))["results"]
    (other,) = (await talk.post(200, "locks", [{**take, "owner": "you"}]))["results"]
    assert (held["acquired"], other["acquired"]) == (True, False)
    renew = {"op": "renew", "name": "l", "token": held["token"], "ttlSeconds": 600}
    (renewed, lost) = [(await talk.post(200, "locks", [renew]))["results"][0] for _ in range(2)]
    assert (renewed["renewed"], lost["renewed"]) == (True, False)
    await talk.post(200, "locks", [{"op": "get", "name": "l"}, {"op": "get", "name": "none"}])
    for _ in range(2):
        await talk.post(200, "locks", [{"op": "release", "name": "l", "token": renewed["token"]}])
    for owner in "ab":
        await talk.post(200, "locks", [{**take, "owner": owner}, {**take, "name": "other", "owner": owner}])
    await talk.post(400, "locks", [take, take])
    for body in (b"nothing", {"operations": [{"op": "acquire"}]}, [{**take, "ttlSeconds": 0}], [{**take, "limit": 0}]):
        await talk.post(400, "locks", body)


async def timers(talk: Talk) -> None:
    """Scheduled, moved, listed, counted, cancelled, delivered; and refused."""
    later = {"op": "schedule", "queue": "q", "timerKey": "k", "payload": b64(1), "delayMs": 600_000, "txn": "t1"}
    await talk.post(200, "timers", {"operations": [later, {**later, "timerKey": "k/2", "partition": "p"}]})
    for txn in ("t1", "other"):
        await talk.post(200, "timers", [{**later, "txn": txn}])
    await talk.post(400, "timers", [later, later])
    await talk.post(200, "timers", [{**later, "op": "reschedule", "txn": "t2", "delayMs": 1_200_000}])
    for path in ("q/k", "q/none", "q?limit=1", "q?mode=count&prefix=k", "none"):
        await talk.says(200, "GET", f"/api/v1/timers/{path}")
    for path in ("q/k?txn=t1", "q/k?txn=t2", "q/k?txn=t2"):
        await talk.says(200, "DELETE", f"/api/v1/timers/{path}")
    await talk.post(200, "timers", [{**later, "timerKey": "soon", "delayMs": 1, "txn": "due"}])
    await talk.pop(200, "queue/q?wait=true")
    await talk.post(403, "timers", [later, {**later, "delayMs": 91 * 86_400_000}])
    await talk.says(400, "GET", "/api/v1/timers/q?mode=sum")
    await talk.says(400, "DELETE", "/api/v1/timers/q/")
    for body in (b"[", [{"op": "frob"}], [{**later, "payload": "*"}]):
        await talk.post(400, "timers", body)


async def transactions(talk: Talk) -> None:
    """Committed with everything in them; rolled back for a key, an acknowledgment and a duplicate; and refused."""
    await talk.post(201, "push", {"items": [item(1), item(2)]})
    messages = await talk.pop(200, "queue/q?batch=1")
    settle = {"type": "ack", **ack(messages[0])}
    once = {"op": "putIfAbsent", "ns": "n", "key": "k", "value": True, "ttlSeconds": 600, "required": True}
    timer = {"op": "schedule", "queue": "q", "timerKey": "k", "payload": b64(1), "delayMs": 600_000, "txn": "t"}
    bundle = {
        "operations": [settle, {"type": "push", "items": [item(3, "r"), item(3, "r"), item(4, "r", partition="p")]}],
        "requiredLeases": [messages[0]["leaseId"]],
        "kv": [{"op": "put", "ns": "n", "key": "o", "value": 1, "forever": True}, once],
        "timers": [timer],
    }
    committed = await talk.post(200, "transaction", bundle)
    assert (committed["success"], len(committed["results"])) == (True, 7)
    lost = [
        bundle,
        {"operations": [{"type": "push", "queue": "x", "payload": 1}], "kv": [once]},
        {"operations": [{"type": "push", "items": [item(3, "r")]}]},
        {"operations": [{**settle, "transactionId": "ghost"}, {"type": "push", "queue": "x", "payload": 1}]},
    ]
    for body in lost:
        assert (await talk.post(200, "transaction", body))["success"] is False
    await talk.pop(204, "queue/x")
    await talk.pop(200, "queue/r?partitions=2")
    await talk.says(200, "GET", "/api/v1/timers/q/k")
    await talk.post(200, "kv", [{"op": "get", "ns": "n", "key": name} for name in ("o", "k")])
    await talk.pop(200, "queue/q")
    for refused in (b"{", b"", {}, {"operations": [{"type": "frob"}]}, {"operations": [{"type": "push"}]}):
        await talk.post(400, "transaction", refused)
    await talk.post(413, "transaction", {"kv": [{**once, "value": "x" * 70_000}]})
    await talk.post(413, "transaction", {"operations": [{"type": "push", "queue": "q" * 500, "payload": 1}]})
    await talk.post(403, "transaction", {"timers": [{**timer, "delayMs": 91 * 86_400_000}]})


async def expiries(talk: Talk) -> None:
    """What comes to its end by itself: a lease, a key, a lock; and a timer while a pop waits for it. In an hour."""
    await talk.post(201, "push", {"items": [item(1)]})
    (message,) = await talk.pop(200, "queue/q?leaseSeconds=300")
    await talk.post(200, "kv", [{"op": "put", "ns": "n", "key": "k", "value": 1, "ttlSeconds": 300}])
    take = {"op": "acquire", "name": "l", "ttlSeconds": 300, "owner": "me"}
    (held,) = (await talk.post(200, "locks", [take]))["results"]
    await trio.sleep(600)
    talk = await talk.beside()  # the connection was idle for too long
    await talk.post(200, "ack", ack(message))
    (again,) = await talk.pop(200, "queue/q?leaseSeconds=300")
    assert again["deliveryAttempt"] == 2
    await talk.post(200, "kv", [{"op": "get", "ns": "n", "key": "k"}])
    await talk.post(200, "locks", [{"op": "renew", "name": "l", "token": held["token"], "ttlSeconds": 300}])
    (other,) = (await talk.post(200, "locks", [{**take, "owner": "you"}]))["results"]
    assert other["acquired"] is True
    timer = {"op": "schedule", "queue": "s", "timerKey": "k", "payload": b64(1), "delayMs": 20_000, "txn": "t"}
    await talk.post(200, "timers", [timer])
    started = trio.current_time()
    await talk.pop(200, "queue/s?wait=true&timeout=60000")
    assert 20 <= trio.current_time() - started < 21
    waiting = await talk.beside()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(waiting.pop, 204, "queue/q?wait=true&timeout=60000")
        await trio.testing.wait_all_tasks_blocked()
        await talk.post(200, "ack", ack(again))


BRIEF: tuple[Script, ...] = (pushes, pops, waits, acks, leases, keys, locks, timers, transactions)
"""Each takes no time to speak of."""

LONG: tuple[Script, ...] = (expiries,)
"""On a virtual clock."""

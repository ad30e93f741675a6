"""websocket.md: nothing is said, delivered or told before it is on the disk. In each test the disk takes its time."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from socket_peer import House, Peer, acks, house, items

from queen_actors.storage.memory import Faults

VIRTUAL_TIME = True

DISK_SECONDS = 2.0
PUT = {"op": "put", "ns": "n", "key": "k", "value": 2, "forever": True}
TIMER = {"op": "schedule", "queue": "q", "timerKey": "new", "payload": "MQ==", "delayMs": 60_000, "txn": "new"}


async def furnished(hall: House) -> tuple[Peer, dict[str, Any]]:
    """A peer, and what it popped of a queue where there is more of everything that the ops below ask for."""
    peer = await hall.peer()
    await peer.ask("push", items=items("q", 1, 2, 3))
    await peer.ask("timers", operations=[{**TIMER, "timerKey": "old", "txn": "old"}])
    popped = await peer.ask("pop", queue="q", consumerGroup="g", subscriptionMode="all")
    return peer, popped["body"]


@pytest.mark.parametrize(
    "op",
    [
        "push",
        "pop",
        "pop autoAck",
        "pop wait",
        "ack",
        "nack",
        "extend",
        "transaction",
        "kv",
        "locks",
        "timers",
        "timers cancel",
        "configure",
        "subscribe",
        "lock.acquire",
        "lock.acquire session",
    ],
)
async def test_no_op_says_ok_before_the_disk_has_it(op: str) -> None:
    """Whatever a request changes: its reply waits for the commit, and no longer."""
    faults = Faults()
    async with house(faults=faults) as hall:
        peer, popped = await furnished(hall)
        lock = {"name": "l", "owner": "o", "ttlSeconds": 30}
        requests: dict[str, dict[str, Any]] = {
            "push": {"items": items("q", 4)},
            "pop": {"queue": "q", "consumerGroup": "other", "subscriptionMode": "all"},
            "pop autoAck": {"queue": "q", "autoAck": True},
            "pop wait": {"queue": "q", "wait": True},
            "ack": {"acknowledgments": acks(popped, 0), "consumerGroup": "g"},
            "nack": {"acknowledgments": acks(popped, 0, status="failed"), "consumerGroup": "g"},
            "extend": {"leaseId": popped["leaseId"], "seconds": 600},
            "transaction": {"operations": [{"type": "push", "items": items("q", 4)}]},
            "kv": {"operations": [PUT]},
            "locks": {"operations": [{"op": "acquire", **lock}]},
            "timers": {"operations": [TIMER]},
            "timers cancel": {"operations": [{"op": "cancel", "queue": "q", "timerKey": "old"}]},
            "configure": {"queue": "q", "options": {"leaseTime": 9}},
            "subscribe": {"sub": "s", "queue": "q", "group": "fresh", "credit": 0},
            "lock.acquire": lock,
            "lock.acquire session": {**lock, "session": True},
        }
        faults.latency = DISK_SECONDS
        began = trio.current_time()
        reply = await peer.ask("ack" if op == "nack" else op.partition(" ")[0], **requests[op])
        assert reply["ok"], reply
        assert trio.current_time() - began == pytest.approx(DISK_SECONDS)


@pytest.mark.parametrize(
    ("write", "read"),
    [
        ({"op": "push", "items": items("q", 4)}, {"op": "tail", "sub": "t", "queue": "q"}),
        ({"op": "push", "items": items("q", 4)}, {"op": "pop", "queue": "q", "partition": "none"}),
        ({"op": "kv", "operations": [PUT]}, {"op": "kv", "operations": [{"op": "get", "ns": "n", "key": "k"}]}),
        ({"op": "kv", "operations": [PUT]}, {"op": "watch", "watch": "w", "ns": "n", "key": "k"}),
        ({"op": "timers", "operations": [TIMER]}, {"op": "timer.get", "queue": "q", "timerKey": "new"}),
        ({"op": "timers", "operations": [TIMER]}, {"op": "timer.list", "queue": "q"}),
    ],
    ids=lambda request: request["op"],
)
async def test_no_read_shows_what_a_crash_could_take_back(write: dict[str, Any], read: dict[str, Any]) -> None:
    """What is read behind a write shows it, and so is answered no sooner."""
    faults = Faults()
    async with house(faults=faults) as hall:
        peer, _ = await furnished(hall)
        faults.latency = DISK_SECONDS
        began = trio.current_time()
        await peer.say({"id": 1, **write}, {"id": 2, **read})
        assert (await peer.reply(2))["ok"]
        assert trio.current_time() - began == pytest.approx(DISK_SECONDS)


async def test_an_auto_acked_message_comes_when_its_cursor_is_durable() -> None:
    """With `autoAck` the frame leaves when the cursor behind its messages is on the disk; one that the disk refuses is
    never sent, and its messages come when there is room again."""
    faults = Faults()
    async with house(faults=faults) as hall:
        peer, other = await hall.peer(), await hall.peer()
        await other.ask("push", items=items("q", 1, partition="a"))
        await peer.ask("subscribe", sub="s", queue="q", autoAck=True, credit=0)
        faults.latency = DISK_SECONDS
        began = trio.current_time()
        await peer.say({"op": "credit", "sub": "s", "add": 1})
        assert (await peer.event("messages"))["messages"][0]["data"] == 1
        assert trio.current_time() - began == pytest.approx(DISK_SECONDS)
        faults.latency = 0.0
        await other.ask("push", items=items("q", 2, partition="a"))
        faults.full = True
        await peer.say({"op": "credit", "sub": "s", "add": 1})
        await trio.sleep(5)
        assert peer.events("messages") == []
        faults.full = False
        assert (await peer.event("messages"))["messages"][0]["data"] == 2


@pytest.mark.parametrize("kind", ["lease", "autoAck", "tail", "watch", "timer", "lock"])
async def test_everything_that_is_told_comes_with_its_commit(kind: str) -> None:
    """A pushed message, a fired timer, a changed key, a lost permit: not before it is on the disk, and in the moment in
    which it is."""
    faults = Faults()
    async with house(faults=faults) as hall:
        peer, other = await hall.peer(), await hall.peer()
        event = {"watch": "kv", "lock": "lock"}.get(kind, "messages")
        waits = [DISK_SECONDS]
        if kind == "tail":
            await peer.ask("tail", sub="s", queue="q")
        elif kind == "watch":
            await peer.ask("watch", watch="w", ns="n", key="k")
        elif kind == "lock":
            await peer.ask("lock.acquire", name="l", owner="o", ttlSeconds=600)
        else:
            await peer.ask("subscribe", sub="s", queue="q", autoAck=kind == "autoAck")
            waits.append(2 * DISK_SECONDS)  # its lease, or its cursor, in the same commit or in the next
        faults.latency = DISK_SECONDS
        began = trio.current_time()
        if kind == "watch":
            await other.say({"op": "kv", "operations": [PUT]})
        elif kind == "lock":
            await other.say({"op": "kv", "operations": [{"op": "delete", "ns": "queen-locks", "key": "l#0"}]})
        elif kind == "timer":
            await other.say({"op": "timers", "operations": [{**TIMER, "delayMs": 5000}]})
            waits = [5 + wait for wait in waits]
        else:
            await other.say({"op": "push", "items": items("q", 1)})
        await peer.event(event)
        assert round(trio.current_time() - began, 2) in waits


@pytest.mark.parametrize("how", ["deleted by another", "released by its holder"])
async def test_a_permit_whose_end_the_disk_refused_is_still_held(how: str) -> None:
    """Nothing is told of an end that did not happen; the permit is renewed as before, and its real end is told."""
    faults = Faults()
    async with house(faults=faults) as hall:
        peer, other = await hall.peer(), await hall.peer()
        lock = {"name": "l", "owner": "o", "ttlSeconds": 10, "session": True}
        granted = (await peer.ask("lock.acquire", **lock))["body"]
        faults.full = True
        delete = [{"op": "delete", "ns": "queen-locks", "key": "l#0"}]
        if how == "deleted by another":
            reply = await other.ask("kv", operations=delete)
        else:
            reply = await peer.ask("locks", operations=[{"op": "release", "name": "l", "token": granted["token"]}])
        assert reply["status"] == 507
        faults.full = False
        await trio.sleep(60)
        assert peer.events("lock") == []
        assert (await other.ask("kv", operations=delete))["ok"]
        lost = await peer.event("lock")
        assert (lost["token"], lost["reason"]) == (granted["token"], "deleted")

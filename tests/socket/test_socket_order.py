"""websocket.md, section 2: what is sent first takes effect first, and what is told is on the disk."""

from __future__ import annotations

from typing import Any

import pytest
from socket_peer import Peer, house, items

from queen_actors.config import Settings
from queen_actors.storage.memory import Faults

VIRTUAL_TIME = True


async def taken(peer: Peer, id: str) -> list[Any]:
    """The payloads that a pop got."""
    reply = await peer.reply(id)
    return [message["data"] for message in reply["body"]["messages"]]


# -- the order of effects ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stored", [False, True])
async def test_a_pop_that_may_wait_has_its_turn_before_what_follows_it(stored: bool) -> None:
    """What is there for it is its own, and not the next request's, although it need not wait; also when its message
    must be read from the store first."""
    settings = Settings(data=None, record_cache_bytes=1) if stored else Settings(data=None)
    async with house(settings) as hall:
        peer = await hall.peer()
        await peer.ask("push", items=items("q", *range(80)))
        if stored:
            await hall.broker.seal()
            await hall.broker.passivate()
        pop = {"op": "pop", "queue": "q", "batch": 1, "autoAck": True}
        for n in range(0, 80, 2):
            await peer.say({**pop, "id": "first", "wait": True}, {**pop, "id": "second"})
            assert await taken(peer, "first") == [n]
            assert await taken(peer, "second") == [n + 1]


async def test_requests_of_all_kinds_take_effect_in_the_order_sent() -> None:
    """Each of these needs what the ones before it did, and undoes some of it; none waits for a reply, and the disk is
    slow. Their replies, of which each tells of the same things as the one before it, come in that order too."""
    put = {"op": "put", "ns": "n", "key": "k", "value": 1, "forever": True}
    timer = {"op": "schedule", "queue": "q", "timerKey": "t", "payload": "MQ==", "delayMs": 60_000, "txn": "t"}
    pop = {"op": "pop", "queue": "q", "batch": 1, "autoAck": True}
    requests: list[dict[str, Any]] = [
        {"op": "configure", "queue": "q", "options": {"leaseTime": 7}},
        {"op": "push", "items": items("q", 1, 2, 3, 4)},
        {**pop},
        {**pop, "wait": True},
        {"op": "transaction", "operations": [{"type": "push", "items": items("q", 5)}], "kv": [put]},
        {"op": "kv", "operations": [{"op": "incr", "ns": "n", "key": "k", "delta": 1, "forever": True}]},
        {"op": "kv", "operations": [{"op": "get", "ns": "n", "key": "k"}]},
        {"op": "watch", "watch": "w", "ns": "n", "key": "k"},
        {"op": "unwatch", "watch": "w"},
        {"op": "kv", "operations": [{"op": "delete", "ns": "n", "key": "k"}]},
        {"op": "lock.acquire", "name": "l", "owner": "o", "ttlSeconds": 30},
        {"op": "locks", "operations": [{"op": "get", "name": "l"}]},
        {"op": "timers", "operations": [timer]},
        {"op": "timer.get", "queue": "q", "timerKey": "t"},
        {"op": "timers", "operations": [{"op": "cancel", "queue": "q", "timerKey": "t"}]},
        {"op": "timer.list", "queue": "q"},
        {"op": "tail", "sub": "t", "queue": "q", "from": "start", "credit": 0},
        {"op": "credit", "sub": "t", "add": 2},
        {"op": "unsubscribe", "sub": "t"},
        {"op": "subscribe", "sub": "s", "queue": "q", "group": "g", "credit": 0},
        {"op": "credit", "sub": "s", "add": 1},
        {"op": "unsubscribe", "sub": "s"},
        {**pop, "wait": True},
        {**pop},
        {**pop},
        {**pop},
    ]
    for latency in (0.0, 0.05) * 10:
        async with house(faults=Faults(latency=latency)) as hall:
            peer = await hall.peer()
            await peer.say(*[{**request, "id": number} for number, request in enumerate(requests)])
            replies = [await peer.expect(lambda message: "id" in message) for _ in requests]
            assert all(reply["ok"] for reply in replies)
            assert [reply["id"] for reply in replies] == list(range(len(requests)))
            body = {number: reply["body"] for number, reply in enumerate(replies)}
            popped = [body[n]["messages"][0]["data"] for n in (2, 3, 22, 23, 24)]
            assert (popped, body[25]) == ([1, 2, 3, 4, 5], None)
            assert (body[5]["results"][0]["value"], body[6]["results"][0]["value"]) == (2, 2)
            assert body[7]["rows"][0]["value"] == 2
            assert body[11]["results"][0]["holders"][0]["owner"] == "o"
            assert body[13]["found"]
            assert body[15]["rows"] == []
            assert body[16]["from"] == {"Default": 0}


async def test_what_follows_a_refused_request_is_refused_after_it() -> None:
    """Credit for a subscription that could not be made is for none, and neither reply comes before the other's."""
    for _ in range(10):
        faults = Faults(latency=0.05)
        async with house(faults=faults) as hall:
            peer = await hall.peer()
            await peer.say(
                {"id": 0, "op": "subscribe", "sub": "s", "queue": "q", "group": "g"},
                {"id": 1, "op": "credit", "sub": "s", "add": 1},
                {"id": 2, "op": "unsubscribe", "sub": "s"},
            )
            faults.full = True
            replies = [await peer.expect(lambda message: "id" in message) for _ in range(3)]
            assert [(reply["id"], reply["status"]) for reply in replies] == [(0, 507), (1, 404), (2, 404)]

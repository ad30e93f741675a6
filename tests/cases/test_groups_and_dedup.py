"""A16 to A31: groups, purges, ordering keys, subscriptions, dedup, and timers inside a step."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from socket_peer import House
from trio.testing import MockClock
from wire_kit import Wire, schedule


def data(messages: list[Any]) -> list[Any]:
    return [message["data"] for message in messages]


async def test_a16_deleting_a_group_loses_no_work(wire: Wire) -> None:
    """A group leases 5 and is deleted: its old acks are refused one by one; made again with `all`, it gets all 5."""
    await wire.push("q", *range(5))
    held = await wire.pop("q", consumerGroup="g", subscriptionMode="all", batch=5)
    assert data(held) == [0, 1, 2, 3, 4]
    await wire.ok("DELETE", "/api/v1/consumer-groups/g")
    entries = await wire.ack(*((message, "completed") for message in held), group="g")
    assert [entry["success"] for entry in entries] == [False] * 5
    again = await wire.pop("q", consumerGroup="g", subscriptionMode="all", batch=5)
    assert [(message["data"], message["deliveryAttempt"]) for message in again] == [(n, 1) for n in range(5)]


@pytest.mark.slow
async def test_a17_what_was_purged_does_not_come_back(server: Any) -> None:
    """Of 10, 3 were given back and 3 are held when the queue is deleted, and the broker is killed: after the start
    nothing is there, and a late ack is refused like any other, without a 500."""
    async with server.wire() as wire:
        await wire.push("q", *range(10))
        nacked = await wire.pop("q", batch=3)
        await wire.ack((nacked[0], "failed"))
        held = await wire.pop("q", batch=3)
        assert data(held) == [0, 1, 2]
        await wire.ok("DELETE", "/api/v1/resources/queues/q")
        await server.kill()
        await server.start()
    async with server.wire() as wire:
        assert (await wire.request("GET", "/api/v1/resources/queues/q/depth")).status == 404
        for ack in (*((message, "completed") for message in held), (nacked[0], "failed")):
            (entry,) = await wire.ack(ack)
            assert entry["success"] is False
        assert await wire.pop("q") == []
        depth = await wire.ok("GET", "/api/v1/resources/queues/q/depth")
        assert (depth["pending"], depth["processing"], depth["ready"]) == (0, 0, 0)
        assert await wire.dead_letters("q") == []


async def test_a19_a_nack_blocks_its_key_and_the_dead_letter_frees_it(timed: Wire, autojump_clock: MockClock) -> None:
    """The head of partition A fails until it is dead; partition B and group g2 flow meanwhile, and the next of A is
    delivered only then."""
    await timed.configure("q", retryLimit=2)
    for partition in "ab":
        await timed.push("q", *(f"{partition}{n}" for n in range(3)), partition=partition, txn=partition)
    for attempt in (1, 2, 3):
        (head,) = await timed.pop("q", "a", batch=1, consumerGroup="g1")
        assert (head["data"], head["deliveryAttempt"]) == ("a0", attempt)
        assert await timed.pop("q", "a", batch=1, consumerGroup="g1") == [], "its key is blocked"
        (other,) = await timed.pop("q", "b", batch=1, consumerGroup="g1")
        assert other["data"] == f"b{attempt - 1}"
        await timed.ack((other, "completed"), group="g1")
        (mine,) = await timed.pop("q", "a", batch=1, consumerGroup="g2")
        assert mine["data"] == f"a{attempt - 1}"
        await timed.ack((mine, "completed"), group="g2")
        (entry,) = await timed.ack((head, "failed", "bad"), group="g1")
        assert entry["dlq"] is (attempt == 3)
    assert data(await timed.pop("q", "a", consumerGroup="g1")) == ["a1", "a2"]
    (letter,) = await timed.dead_letters("q")
    assert (letter["data"], letter["consumerGroup"]) == ("a0", "g1")


async def test_a21_a_subscription_begins_when_it_is_acknowledged(hall: House, autojump_clock: MockClock) -> None:
    """A new group of mode `new`: what is pushed after the reply, and before any credit was granted, all arrives."""
    peer, other = await hall.peer(), await hall.peer()
    await other.ask("push", items=[{"queue": "q", "payload": "before"}])
    reply = await peer.ask("subscribe", sub="s", queue="q", group="g", subscriptionMode="new", credit=0)
    assert reply["ok"]
    for n in range(10):
        await other.ask("push", items=[{"queue": "q", "payload": n, "partition": f"p{n % 3}"}])
    await trio.sleep(5)
    assert peer.events("messages") == []
    await peer.ask("credit", sub="s", add=100)
    await trio.sleep(5)
    found = [message["data"] for event in peer.events("messages") for message in event["messages"]]
    assert sorted(found) == list(range(10))


@pytest.mark.slow
@pytest.mark.parametrize("restarted", [True, False], ids=["killed between", "without a restart"])
async def test_a26_dedup_answers_the_same_across_a_kill(server: Any, restarted: bool) -> None:
    """A repeat is told the original's offset and id; a deleted queue has forgotten it. A restart changes neither."""

    async def again() -> Any:
        if restarted:
            await server.kill()
            await server.start()
        async with server.wire() as wire:
            (outcome,) = await wire.push("q", "x", txn="X")
        return outcome

    async with server.wire() as wire:
        await wire.push("q", "first", txn="other")
        (first,) = await wire.push("q", "x", txn="X")
    repeat = await again()
    assert (repeat["status"], repeat["message_id"], repeat["offset"]) == ("duplicate", first["message_id"], 1)
    async with server.wire() as wire:
        await wire.ok("DELETE", "/api/v1/resources/queues/q")
    anew = await again()
    assert (anew["status"], anew["offset"]) == ("queued", 0)
    assert anew["message_id"] != first["message_id"]


async def test_a29_every_item_answers_its_own_status(wire: Wire) -> None:
    """[new, old, new, new again in this request]: queued, duplicate, queued, duplicate, with the originals' offsets."""
    (old,) = await wire.push("q", "old", txn="a")
    names = ["b", "a0", "c", "b"]
    items = [{"queue": "q", "payload": n, "transactionId": name} for n, name in enumerate(names)]
    answer = await wire.ok("POST", "/api/v1/push", {"items": items}, status=201)
    assert [row["status"] for row in answer] == ["queued", "duplicate", "queued", "duplicate"]
    assert [row["offset"] for row in answer] == [1, 0, 2, 1]
    assert answer[1]["message_id"] == old["message_id"]
    assert answer[3]["message_id"] == answer[0]["message_id"]
    assert [row["index"] for row in answer] == [0, 1, 2, 3]
    assert data(await wire.pop("q")) == ["old", 0, 2]


async def test_a31_timers_share_the_fate_of_their_step(timed: Wire, autojump_clock: MockClock) -> None:
    """A step that rolls back has scheduled nothing and cancelled nothing."""
    await timed.put("gate", 1)
    lost = {"op": "putIfAbsent", "ns": "ns", "key": "gate", "value": 2, "forever": True, "required": True}
    await timed.timers(schedule("q", "stays", "it fires", 2000))
    for op in (schedule("q", "never", "x", 1000), {"op": "cancel", "queue": "q", "timerKey": "stays"}):
        reply = await timed.transaction(
            operations=[{"type": "push", "queue": "other", "payload": 1}], kv=[lost], timers=[op]
        )
        assert (reply["success"], reply["reason"]) == (False, "kv_precondition")
    assert (await timed.ok("GET", "/api/v1/timers/q/never"))["found"] is False
    assert (await timed.ok("GET", "/api/v1/timers/q/stays"))["found"] is True
    await trio.sleep(3)
    assert data(await timed.pop("q")) == ["it fires"]
    assert await timed.pop("other") == []

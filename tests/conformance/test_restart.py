"""What a restart must not change: the same store, a second broker."""

from __future__ import annotations

from typing import Any

import trio
from trio.testing import MockClock
from wire_kit import direct, schedule

from queen_actors.actors.clock import TrioClock
from queen_actors.storage.memory import MemoryStore


async def test_everything_is_as_it_was(durable: MemoryStore) -> None:
    """Keys, locks, timers, queues, dead letters and registrations read the same from the second broker."""
    async with direct(durable) as wire:
        await wire.configure("q", leaseTime=500, retryLimit=0)
        await wire.push("q", *range(5))
        messages = await wire.pop("q", consumerGroup="g", subscriptionMode="all", batch=3)
        await wire.ack((messages[0], "completed"), (messages[1], "dlq", "bad"), group="g")
        await wire.timers(schedule("q", "k", {"n": 1}, 600_000, partition="p"))
        for key in "abc":
            await wire.put(key, {"key": key}, ttlSeconds=600)
        await wire.kv1("delete", "ns", "b")
        await wire.lock("acquire", "held", ttlSeconds=600, owner="me")
        before = await wire.state("q")
        message = await wire.message(messages[0]["partitionId"], "t0")
    async with direct(durable.reopen()) as wire:
        assert await wire.state("q") == before
        assert await wire.message(messages[0]["partitionId"], "t0") == message
        assert (await wire.lock("acquire", "held", ttlSeconds=5, owner="me"))["already"] is True
        again = await wire.pop("q", consumerGroup="g")
        assert [found["data"] for found in again] == [2, 3, 4]


async def test_leases_retries_and_attempts_survive(durable: MemoryStore, autojump_clock: MockClock) -> None:
    """A lease goes on under its id, the attempt count with it, and a spent budget stays spent (A05)."""
    clock = TrioClock()
    async with direct(durable, clock) as wire:
        await wire.configure("q", leaseTime=100, retryLimit=2)
        await wire.push("q", "poison")
        for _ in range(2):
            (message,) = await wire.pop("q")
            await wire.ack((message, "failed", "broken"))
        (message,) = await wire.pop("q", leaseSeconds=50)
        assert message["deliveryAttempt"] == 3
    store = durable.reopen()
    async with direct(store, clock) as wire:
        assert await wire.pop("q") == []
        extended = await wire.ok("POST", f"/api/v1/lease/{message['leaseId']}/extend", {"seconds": 60})
        assert extended["renewed"] == 1
        await trio.sleep(55)
        assert await wire.pop("q") == []
        await trio.sleep(5.1)
        (message,) = await wire.pop("q")
        assert message["deliveryAttempt"] == 4
    async with direct(store.reopen(), clock) as wire:
        (entry,) = await wire.ack((message, "failed", "broken for good"))
        assert (entry["success"], entry["dlq"]) == (True, True)
        assert (await wire.dead_letters("q"))[0]["errorMessage"] == "broken for good"


async def test_a_settled_lease_is_remembered(durable: MemoryStore) -> None:
    """The repeat of the ack that settled a batch is a success after a restart, too."""
    async with direct(durable) as wire:
        await wire.push("q", 1)
        (message,) = await wire.pop("q")
        await wire.ack((message, "completed"))
    async with direct(durable.reopen()) as wire:
        (entry,) = await wire.ack((message, "completed"))
        assert (entry["success"], entry["leaseReleased"]) == (True, True)


async def test_dedup_answers_the_same(durable: MemoryStore, autojump_clock: MockClock) -> None:
    """The original's id and offset, for as long as the window lasts (A26)."""
    clock = TrioClock()
    async with direct(durable, clock) as wire:
        (first,) = await wire.push("q", 1, txn="x")
        await wire.pop("q", autoAck=True)
    store = durable.reopen()
    async with direct(store, clock) as wire:
        (again,) = await wire.push("q", 2, txn="x")
        assert (again["status"], again["message_id"], again["offset"]) == ("duplicate", first["message_id"], 0)
        await trio.sleep(3601)
    async with direct(store.reopen(), clock) as wire:
        assert (await wire.push("q", 3, txn="x"))[0]["status"] == "queued"


async def test_what_a_delete_removed_stays_away(durable: MemoryStore) -> None:
    """A deleted queue, group and key do not come back (A17)."""
    async with direct(durable) as wire:
        await wire.push("q", *range(10))
        (message, *_) = await wire.pop("q", batch=3)
        await wire.push("kept", 1)
        await wire.pop("kept", autoAck=True, consumerGroup="g", subscriptionMode="all")
        await wire.ok("DELETE", "/api/v1/resources/queues/q")
        await wire.ok("DELETE", "/api/v1/consumer-groups/g")
    async with direct(durable.reopen()) as wire:
        assert (await wire.request("GET", "/api/v1/resources/queues/q")).status == 404
        assert await wire.pop("q", consumerGroup="g", subscriptionMode="all") == []
        assert (await wire.ack((message, "completed")))[0]["success"] is False
        assert len(await wire.pop("kept", consumerGroup="g", subscriptionMode="all")) == 1


async def test_rolled_back_work_leaves_nothing_behind(durable: MemoryStore) -> None:
    """Neither in the broker that refused it nor in the next one: its transaction ids are free, its keys are absent."""
    push: Any = {"type": "push", "items": [{"queue": "q", "payload": 1, "transactionId": "once"}]}
    lost = {"op": "check", "ns": "ns", "key": "k", "expect": 9, "required": True}
    async with direct(durable) as wire:
        assert (await wire.transaction(operations=[push], kv=[lost]))["success"] is False
        assert (await wire.transaction(operations=[push]))["success"] is True
        assert (await wire.transaction(operations=[push]))["reason"] == "duplicate"
    async with direct(durable.reopen()) as wire:
        assert (await wire.transaction(operations=[push]))["reason"] == "duplicate"
        (message,) = await wire.pop("q")
        assert (message["transactionId"], message["offset"]) == ("once", 0)

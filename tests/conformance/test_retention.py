"""Retention and cursors (wire-messaging.md, section 21)."""

from __future__ import annotations

from typing import Any

import trio
from trio.testing import MockClock
from wire_kit import Wire, direct

from queen_actors.actors.clock import TrioClock
from queen_actors.storage.memory import MemoryStore


def data(messages: list[Any]) -> list[Any]:
    return [message["data"] for message in messages]


async def test_retention_by_age(timed: Wire, autojump_clock: MockClock) -> None:
    """`retentionEnabled` and `retentionSeconds`: older messages go, whatever the cursors say; the rest stays."""
    await timed.configure("q", retentionEnabled=True, retentionSeconds=10)
    await timed.push("q", *range(100), txn="old")
    await trio.sleep(60)
    await timed.push("q", "young", txn="n")
    await trio.sleep(5)
    messages = await timed.pop("q", batch=200)
    assert [(message["data"], message["offset"]) for message in messages] == [("young", 100)]


async def test_retention_has_a_gate(timed: Wire, autojump_clock: MockClock) -> None:
    """Without `retentionEnabled` the two numbers mean nothing; with all of them zero nothing is ever deleted."""
    await timed.configure("gate", retentionSeconds=10, completedRetentionSeconds=10)
    await timed.configure("zero", retentionEnabled=True)
    for queue in ("gate", "zero"):
        await timed.push(queue, 1)
        await timed.pop(queue, autoAck=True)
    await trio.sleep(80_000)
    for queue in ("gate", "zero"):
        assert data(await timed.pop(queue, consumerGroup="g", subscriptionMode="all")) == [1]


async def test_retention_of_what_everybody_has_finished(timed: Wire, autojump_clock: MockClock) -> None:
    """`completedRetentionSeconds`: the slowest cursor holds it."""
    await timed.configure("q", retentionEnabled=True, completedRetentionSeconds=10)
    await timed.push("q", *range(4))
    await timed.pop("q", autoAck=True, consumerGroup="fast", subscriptionMode="all")
    await timed.pop("q", autoAck=True, consumerGroup="slow", subscriptionMode="all", batch=2)
    await trio.sleep(60)
    late = await timed.pop("q", consumerGroup="late", subscriptionMode="all")
    assert data(late) == [2, 3]
    assert data(await timed.pop("q", consumerGroup="slow")) == [2, 3]


async def test_messages_that_waited_too_long(timed: Wire, autojump_clock: MockClock) -> None:
    """`maxWaitTimeSeconds` needs no gate."""
    await timed.configure("q", maxWaitTimeSeconds=10)
    await timed.push("q", *range(100))
    await trio.sleep(15.1)
    assert await timed.pop("q", batch=200) == []


async def test_a_lease_that_retention_overtakes(timed: Wire, autojump_clock: MockClock) -> None:
    """The range that is lost is skipped silently: the group goes on with what came later."""
    await timed.configure("q", retentionEnabled=True, retentionSeconds=10, leaseTime=300)
    await timed.push("q", 1, txn="old")
    (message,) = await timed.pop("q")
    await trio.sleep(60)
    await timed.push("q", 2, txn="new")
    await timed.ack((message, "completed"))
    await trio.sleep(300)
    await timed.push("q", 3, txn="newest")
    assert data(await timed.pop("q")) == [3]


async def test_an_ack_is_recognised_long_after_the_dedup_window(timed: Wire, autojump_clock: MockClock) -> None:
    """A message that waited for hours, and was leased for hours, is acked like any other."""
    await timed.configure("q", dedupWindowSeconds=1, leaseTime=20_000)
    await timed.push("q", 1, 2, 3)
    await trio.sleep(10_000)
    first, second, third = await timed.pop("q")
    await trio.sleep(10_000)
    assert (await timed.ack((first, "completed"), (second, "failed", "why")))[1]["success"] is True
    assert await timed.committed(first) == 0
    again = await timed.pop("q")
    assert data(again) == [2, 3]
    assert (await timed.ack((again[1], "completed")))[0]["success"] is True
    assert third["offset"] == 2


async def test_one_transaction_id_many_times(timed: Wire, autojump_clock: MockClock) -> None:
    """Without a dedup window the id names the message of the leased span."""
    await timed.configure("q", dedupWindowSeconds=0)
    for n in range(3):
        await timed.push("q", n)
    for n in range(3):
        (message,) = await timed.pop("q", batch=1)
        assert (message["data"], message["transactionId"]) == (n, "t0")
        (entry,) = await timed.ack((message, "completed"))
        assert (entry["success"], entry["noop"], entry["leaseReleased"]) == (True, False, True)
        assert (await timed.pop("q", "nothing")) == []
    assert await timed.pop("q") == []


async def test_a_repeat_of_a_removed_message_is_still_a_duplicate(timed: Wire, autojump_clock: MockClock) -> None:
    """21: the dedup index is kept for the window, whatever retention removes: the original id and offset are told."""
    await timed.configure("q", retentionEnabled=True, retentionSeconds=10, dedupWindowSeconds=1800)
    first, second = await timed.push("q", 1, 2)
    await trio.sleep(60)
    assert await timed.pop("q") == []
    again = await timed.push("q", 1, 2, 3)
    assert [(row["status"], row["message_id"], row["offset"]) for row in again[:2]] == [
        ("duplicate", first["message_id"], 0),
        ("duplicate", second["message_id"], 1),
    ]
    assert (again[2]["status"], again[2]["offset"]) == ("queued", 2)
    assert data(await timed.pop("q")) == [3]
    await trio.sleep(1800)
    (anew,) = await timed.push("q", 1)
    assert (anew["status"], anew["offset"]) == ("queued", 3)


async def test_a_late_ack_of_a_removed_message(timed: Wire, autojump_clock: MockClock) -> None:
    """It is no error: nothing is left to do. What is left of the batch is acked under the lease as ever."""
    await timed.configure("q", retentionEnabled=True, retentionSeconds=10, leaseTime=300)
    await timed.push("q", 1, txn="old")
    await trio.sleep(5)
    await timed.push("q", 2, txn="new")
    old, new = await timed.pop("q", batch=2)
    await trio.sleep(7)
    (entry,) = await timed.ack((old, "completed"))
    assert (entry["success"], entry["noop"], entry["error"]) == (True, True, None)
    (entry,) = await timed.ack((new, "completed"))
    assert (entry["success"], entry["noop"], entry["leaseReleased"]) == (True, False, True)
    await timed.push("q", 3, txn="gone")
    (gone,) = await timed.pop("q")
    await trio.sleep(60)
    for _ in range(2):
        (entry,) = await timed.ack((gone, "completed"))
        assert (entry["success"], entry["error"]) == (True, None)
    (entry,) = await timed.ack({"transactionId": "gone0", "partitionId": gone["partitionId"], "status": "completed"})
    assert (entry["success"], entry["noop"]) == (True, True)
    await timed.push("q", 4, txn="later")
    assert data(await timed.pop("q")) == [4]


async def test_nobody_reads_what_was_removed(timed: Wire, autojump_clock: MockClock) -> None:
    """The index keeps ids, not messages: lists, reads by id and by offset, new groups and counts leave them out."""
    await timed.configure("q", retentionEnabled=True, retentionSeconds=10)
    await timed.push("q", *range(5), txn="old")
    (before,) = await timed.pop("q", batch=1)
    await trio.sleep(20)
    await timed.push("q", "young", txn="new")
    listed = (await timed.ok("GET", "/api/v1/messages?queue=q"))["messages"]
    assert [row["data"] for row in listed] == ["young"]
    assert (await timed.request("GET", f"/api/v1/messages/{before['partitionId']}/old0")).status == 404
    asked = {"entries": [{"queue": "q", "partition": "Default", "offset": offset} for offset in (0, 5)]}
    low, high = (await timed.ok("POST", "/api/v1/fetch", asked))["entries"]
    assert (low["error"], low["records"], low["logStartOffset"]) == ("OFFSET_OUT_OF_RANGE", [], 5)
    assert [record["payload"] for record in high["records"]] == ["young"]
    assert data(await timed.pop("q", consumerGroup="g", subscriptionMode="all")) == ["young"]
    for start in ("1970-01-01T00:00:00Z", before["createdAt"].replace("+", "%2B")):
        assert data(await timed.pop("q", consumerGroup=f"from {start}", subscriptionFrom=start)) == ["young"]
    await timed.ok("POST", "/api/v1/consumer-groups/g/queues/q/seek", {"timestamp": "1970-01-01T00:00:00Z"})
    assert data(await timed.pop("q", consumerGroup="g")) == ["young"]
    depth = await timed.ok("GET", "/api/v1/resources/queues/q/depth?group=new")
    assert (depth["pending"], depth["processing"], depth["ready"]) == (1, 0, 1)
    assert (await timed.ok("GET", "/api/v1/resources/queues/q/sizes"))["partitions"] == {"Default": len('"young"')}


async def test_the_index_of_removed_messages_outlives_a_restart(
    durable: MemoryStore, autojump_clock: MockClock
) -> None:
    """And the packing of an idle partition."""
    clock = TrioClock()
    async with direct(durable, clock) as wire:
        await wire.configure("q", retentionEnabled=True, retentionSeconds=10, dedupWindowSeconds=3600)
        (first,) = await wire.push("q", 1)
        await trio.sleep(30)
        assert await wire.pop("q", consumerGroup="g", subscriptionMode="all") == []
        await durable.seal()
        await trio.sleep(300)
        assert (await wire.push("q", 1))[0]["status"] == "duplicate"
    store = durable.reopen()
    async with direct(store, clock) as wire:
        for _ in range(2):
            (again,) = await wire.push("q", 1)
            assert (again["status"], again["message_id"], again["offset"]) == ("duplicate", first["message_id"], 0)
            await trio.sleep(300)
        assert await wire.pop("q") == []
        await trio.sleep(3600)
        (anew,) = await wire.push("q", 1)
        assert (anew["status"], anew["offset"]) == ("queued", 1)


async def test_what_was_consumed_in_time_waited_not_too_long(timed: Wire, autojump_clock: MockClock) -> None:
    """`maxWaitTimeSeconds` removes what waits: messages that every cursor has passed stay for who comes later; one
    consumer that is behind, or none at all, and they go."""
    await timed.configure("q", maxWaitTimeSeconds=10)
    await timed.push("q", 1, 2)
    assert data(await timed.pop("q", autoAck=True)) == [1, 2]
    await trio.sleep(30)
    assert data(await timed.pop("q", consumerGroup="late", subscriptionMode="all", batch=1, leaseSeconds=3)) == [1]
    await trio.sleep(30)
    assert data(await timed.pop("q", consumerGroup="later", subscriptionMode="all")) == []


async def test_retention_with_segments(durable: MemoryStore, autojump_clock: MockClock) -> None:
    """Also what has left the index window, and was read back from a segment, goes when its time has come."""
    async with direct(durable) as wire:
        await wire.configure("q", retentionEnabled=True, retentionSeconds=10_000, dedupWindowSeconds=10)
        await wire.push("q", 1, txn="a")
        await trio.sleep(4000)
        await wire.push("q", 2, txn="b")
        await durable.seal()
        await trio.sleep(5900)
        assert data(await wire.pop("q", consumerGroup="g", subscriptionMode="all")) == [1, 2]
        await trio.sleep(200)
        assert data(await wire.pop("q", consumerGroup="h", subscriptionMode="all")) == [2]
        await trio.sleep(4000)
        assert data(await wire.pop("q", consumerGroup="i", subscriptionMode="all")) == []


async def test_retention_that_is_turned_on_later(timed: Wire, autojump_clock: MockClock) -> None:
    """It holds for what is there already; turned off, nothing more goes."""
    await timed.push("q", 1)
    await trio.sleep(100)
    await timed.configure("q", retentionEnabled=True, retentionSeconds=50)
    await trio.sleep(1)
    assert await timed.pop("q") == []
    await timed.push("q", 2, txn="x")
    await timed.configure("q", retentionEnabled=False)
    await trio.sleep(1000)
    assert data(await timed.pop("q")) == [2]

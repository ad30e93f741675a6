"""Retention and cursors (wire-messaging.md, section 21)."""

from __future__ import annotations

from typing import Any

import trio
from trio.testing import MockClock
from wire_kit import Wire


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

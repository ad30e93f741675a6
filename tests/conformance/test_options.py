"""Queue options are honoured, not only stored (wire-messaging.md 5). Leases, retries, flags, delays, windows and dedup
have tests beside the routes that they change; retention has its own file."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock
from wire_kit import Wire


def data(messages: list[Any]) -> list[Any]:
    return [message["data"] for message in messages]


async def timed_pop(wire: Wire, queue: str | None, **query: Any) -> tuple[float, list[Any]]:
    """How long the pop took, and what it brought."""
    began = trio.current_time()
    found = data(await wire.pop(queue, **query))
    return round(trio.current_time() - began, 2), found


async def test_min_pop_wait_time(timed: Wire, autojump_clock: MockClock) -> None:
    """A poll that waits is held for so long that its answer carries more; not beyond its own timeout, not when the
    batch is full, and never one that does not wait. By discovery too."""
    body = {"queue": "q", "namespace": "n", "options": {"minPopWaitTime": 800}}
    await timed.ok("POST", "/api/v1/configure", body)

    async def pushes() -> None:
        for n in range(1, 4):
            await trio.sleep(0.3)
            await timed.push("q", n, txn=f"{n}-")

    await timed.push("q", 0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pushes)
        assert await timed_pop(timed, "q", wait=True, batch=10, consumerGroup="a") == (0.8, [0, 1, 2])
    assert await timed_pop(timed, "q", wait=True, batch=4, consumerGroup="b", subscriptionMode="all") == (
        0,
        [0, 1, 2, 3],
    )
    assert await timed_pop(timed, "q", wait=True, timeout=200, consumerGroup="c") == (0.2, [0, 1, 2, 3])
    assert await timed_pop(timed, "q", consumerGroup="d") == (0, [0, 1, 2, 3])
    assert await timed_pop(timed, None, namespace="n", wait=True, consumerGroup="e") == (0.8, [0, 1, 2, 3])


@pytest.mark.parametrize("kind", ["lease that ends", "retry"])
async def test_the_delivery_limit_and_its_reason(timed: Wire, autojump_clock: MockClock, kind: str) -> None:
    """A message that kills its workers circles `deliveryLimit` times; then it is dead-lettered with the reason, and
    the next one is delivered as attempt 1. Nobody was charged a retry."""
    await timed.configure("q", deliveryLimit=3, leaseTime=10, retryLimit=100)
    await timed.push("q", "killer", "next")
    for attempt in (1, 2, 3):
        (message,) = await timed.pop("q", batch=1)
        assert (message["data"], message["deliveryAttempt"]) == ("killer", attempt)
        if kind == "retry":
            await timed.ack((message, "retry"))
        else:
            await trio.sleep(11)
    (message,) = await timed.pop("q", batch=1)
    assert (message["data"], message["deliveryAttempt"]) == ("next", 1)
    (letter,) = await timed.dead_letters("q")
    assert (letter["data"], letter["retryCount"]) == ("killer", 0)
    assert letter["errorMessage"] == "Delivery limit of 3 reached without an acknowledgment"


async def test_the_delivery_limit_is_20_and_can_be_off(timed: Wire, autojump_clock: MockClock) -> None:
    """The default holds for queues that nobody configured; 0 is no limit."""
    await timed.configure("off", deliveryLimit=0)
    for queue in ("implicit", "off"):
        await timed.push(queue, 1)
        for attempt in range(1, 21):
            (message,) = await timed.pop(queue)
            assert message["deliveryAttempt"] == attempt
            await timed.ack((message, "retry"))
    assert await timed.pop("implicit") == []
    assert len(await timed.dead_letters("implicit")) == 1
    for attempt in range(21, 60):
        (message,) = await timed.pop("off")
        assert message["deliveryAttempt"] == attempt
        await timed.ack((message, "retry"))


async def test_what_is_stored_and_not_enforced(timed: Wire, autojump_clock: MockClock) -> None:
    """`priority`, `ttl`, `maxSize`, `retryDelay` and the sink hold are shown as they were set, and change nothing."""
    options = {"priority": -5, "ttl": 1, "maxSize": 1, "retryDelay": 60_000, "retentionSinkHold": "s3"}
    shown = (await timed.configure("q", **options))["options"]
    assert {name: shown[name] for name in options} == options
    assert shown["maxQueueSize"] == 1
    await timed.push("q", 1, 2, 3)
    await trio.sleep(100)
    messages = await timed.pop("q")
    assert data(messages) == [1, 2, 3]
    await timed.ack((messages[0], "failed"))
    assert data(await timed.pop("q")) == [1, 2, 3], "at once"


async def test_options_may_change_under_way(timed: Wire, autojump_clock: MockClock) -> None:
    """A delay that is taken back lets go of what waits, and wakes who waits for it; a shorter lease holds for the next
    claim; the retry limit is that of the nack."""
    await timed.configure("q", delayedProcessing=3600, leaseTime=100, retryLimit=5)
    await timed.push("q", 1)
    found: list[tuple[float, list[Any]]] = []

    async def poll() -> None:
        found.append(await timed_pop(timed, "q", wait=True))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(poll)
        await trio.sleep(2)
        await timed.configure("q", delayedProcessing=0, leaseTime=1, retryLimit=0)
    assert found == [(2, [1])]
    await trio.sleep(1.5)
    (message,) = await timed.pop("q")
    (entry,) = await timed.ack((message, "failed"))
    assert entry["dlq"] is True


async def test_labels_lead_a_discovery_poll_to_queues_made_later(timed: Wire, autojump_clock: MockClock) -> None:
    """It long-polls like the others: a dotted name, a configure that gives a queue the label, and a replaced label."""
    await timed.push("plain", "mine")
    for make in (
        lambda: timed.push("acme.mail.one", "dotted"),
        lambda: timed.ok("POST", "/api/v1/configure", {"queue": "plain", "namespace": "acme"}),
    ):
        found: list[tuple[float, list[Any]]] = []

        async def poll(found: list[tuple[float, list[Any]]] = found) -> None:
            found.append(await timed_pop(timed, None, namespace="acme", wait=True, autoAck=True))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(poll)
            await trio.sleep(3)
            await make()
        assert found[0][0] == 3
        assert len(found[0][1]) == 1
    await timed.ok("POST", "/api/v1/configure", {"queue": "plain", "mode": "replace"})
    await timed.push("plain", "not of acme any more", txn="x")
    assert await timed.pop(None, namespace="acme") == []

"""A63: every way in which a message appears wakes who waits for it, over HTTP and over a WebSocket."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from socket_peer import House
from trio.testing import MockClock
from wire_kit import Wire, schedule

LATE_SECONDS = 0.5
Cause = Callable[[Wire], Awaitable[Any]]


async def a_push(wire: Wire) -> None:
    await wire.push("q", "m")


async def a_push_in_a_transaction(wire: Wire) -> None:
    assert (await wire.transaction(operations=[{"type": "push", "queue": "q", "payload": "m"}]))["success"]


async def a_timer(wire: Wire) -> None:
    await wire.timers(schedule("q", "k", "m", 0))


async def a_timer_of_a_transaction(wire: Wire) -> None:
    assert (await wire.transaction(operations=[], timers=[schedule("q", "k", "m", 0)]))["success"]


async def take(wire: Wire, **query: Any) -> Any:
    """A message that is pushed and taken before anybody waits."""
    await wire.push("q", "m")
    (message,) = await wire.pop("q", consumerGroup="g", **query)
    return message


def settled(status: str) -> Callable[[Wire], Awaitable[Cause]]:
    async def before(wire: Wire) -> Cause:
        message = await take(wire)

        async def cause(wire: Wire) -> None:
            await wire.ack((message, status), group="g")

        return cause

    return before


async def a_replay(wire: Wire) -> Cause:
    message = await take(wire)
    await wire.ack((message, "dlq"), group="g")
    (letter,) = await wire.dead_letters("q")

    async def cause(wire: Wire) -> None:
        await wire.ok("POST", f"/api/v1/dlq/{letter['id']}/replay")

    return cause


async def a_lease_that_ends(wire: Wire) -> Cause:
    await take(wire, leaseSeconds=5)

    async def cause(wire: Wire) -> None:
        await trio.sleep(5 - (trio.current_time() - began))

    began = trio.current_time()
    return cause


async def a_seek(wire: Wire) -> Cause:
    message = await take(wire)
    await wire.ack((message, "completed"), group="g")

    async def cause(wire: Wire) -> None:
        await wire.ok("POST", "/api/v1/consumer-groups/g/queues/q/seek", {"timestamp": "2000-01-01T00:00:00Z"})

    return cause


async def an_ack_of_the_head(wire: Wire) -> Cause:
    """The rest of the partition was blocked behind a batch of one."""
    await wire.push("q", "head", txn="h")
    (head,) = await wire.pop("q", consumerGroup="g", batch=1)
    await wire.push("q", "m")

    async def cause(wire: Wire) -> None:
        await wire.ack((head, "completed"), group="g")

    return cause


def at_once(cause: Cause) -> Callable[[Wire], Awaitable[Cause]]:
    async def before(_: Wire) -> Cause:
        await trio.lowlevel.checkpoint()
        return cause

    return before


CAUSES = {
    "push, and so a queue that is made after the wait began": at_once(a_push),
    "push in a transaction": at_once(a_push_in_a_transaction),
    "timer": at_once(a_timer),
    "timer of a transaction": at_once(a_timer_of_a_transaction),
    "replay": a_replay,
    "nack": settled("failed"),
    "retry": settled("retry"),
    "lease that ends": a_lease_that_ends,
    "seek": a_seek,
    "ack of the head": an_ack_of_the_head,
}


@pytest.mark.parametrize("face", ["long poll", "websocket"])
@pytest.mark.parametrize("before", CAUSES.values(), ids=CAUSES)
async def test_a63_every_way_a_message_appears_wakes(
    hall: House, http_of: Wire, autojump_clock: MockClock, before: Callable[[Wire], Awaitable[Cause]], face: str
) -> None:
    """Delivered within half a second of the cause, to a poll and to a subscription that were there before it."""
    cause = await before(http_of)
    happened: list[float] = []
    delivered: list[tuple[float, list[Any]]] = []

    async def poll() -> None:
        messages = await http_of.pop("q", consumerGroup="g", wait=True, timeout=30_000)
        delivered.append((trio.current_time(), [message["data"] for message in messages]))

    async def subscribe() -> None:
        peer = await hall.peer()
        await peer.ask("subscribe", sub="s", queue="q", group="g")
        messages = (await peer.event("messages"))["messages"]
        delivered.append((trio.current_time(), [message["data"] for message in messages]))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(poll if face == "long poll" else subscribe)
        await trio.sleep(2)
        assert delivered == []
        await cause(http_of)
        happened.append(trio.current_time())
    ((at, what),) = delivered
    assert what == ["m"]
    assert at - happened[0] < LATE_SECONDS

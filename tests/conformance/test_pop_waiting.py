"""Long polls (wire-messaging.md, section 7.5): everything that must wake one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock
from wire_kit import Wire, schedule


def data(messages: list[Any]) -> list[Any]:
    return [message["data"] for message in messages]


Act = Callable[[Wire], Awaitable[Any]]


async def leased(wire: Wire) -> Any:
    await wire.configure("q", leaseTime=40)
    await wire.push("q", 1, txn="first")
    return (await wire.pop("q", batch=1))[0]


async def wakes(wire: Wire, act: Callable[[], Awaitable[Any]], **query: Any) -> list[Any]:
    """What a parked pop of `q` gets within half a second after `act`."""
    found: list[Any] = []
    done = trio.Event()

    async def poll() -> None:
        queue = query.pop("queue", "q")
        found.extend(await wire.pop(queue, query.pop("partition", None), wait=True, timeout=20_000, **query))
        done.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(poll)
        await trio.sleep(1)
        assert not done.is_set()
        await act()
        with trio.fail_after(0.5):
            await done.wait()
    return found


@pytest.mark.parametrize(
    "query",
    [{}, {"partition": "p"}, {"queue": None, "namespace": "n"}, {"queue": None, "task": "t"}],
    ids=["wildcard", "pinned", "namespace", "task"],
)
async def test_a_push_wakes_every_kind_of_pop(timed: Wire, autojump_clock: MockClock, query: dict[str, Any]) -> None:
    """Also the discovery pops (decisions.md)."""
    await timed.ok("POST", "/api/v1/configure", {"queue": "q", "namespace": "n", "task": "t"})
    assert data(await wakes(timed, lambda: timed.push("q", 1, partition="p"), **query)) == [1]


async def test_an_ack_wakes(timed: Wire, autojump_clock: MockClock) -> None:
    """What was behind the leased span is next."""
    message = await leased(timed)
    await timed.push("q", 2, txn="second")
    assert data(await wakes(timed, lambda: timed.ack((message, "completed")))) == [2]


@pytest.mark.parametrize("status", ["failed", "retry"])
async def test_a_nack_wakes(timed: Wire, autojump_clock: MockClock, status: str) -> None:
    """The message comes again at once, as its second attempt."""
    message = await leased(timed)
    (again,) = await wakes(timed, lambda: timed.ack((message, status)))
    assert (again["data"], again["deliveryAttempt"]) == (1, 2)


async def test_the_end_of_a_lease_wakes(timed: Wire, autojump_clock: MockClock) -> None:
    """At its time, and not before."""
    await leased(timed)
    started = trio.current_time()
    (again,) = await timed.pop("q", wait=True, timeout=60_000)
    assert (again["data"], again["deliveryAttempt"]) == (1, 2)
    assert 39.9 < trio.current_time() - started < 40.1


async def test_a_timer_wakes(timed: Wire, autojump_clock: MockClock) -> None:
    """On an idle broker, a long poll gets what a timer brings."""
    await timed.configure("q")
    found = await wakes(timed, lambda: timed.timers(schedule("q", "k", 1, 300)))
    assert data(found) == [1]


async def test_a_seek_wakes(timed: Wire, autojump_clock: MockClock) -> None:
    """A group moved back has messages again."""
    message = await leased(timed)
    await timed.ack((message, "completed"))
    seek = {"timestamp": "2020-01-01T00:00:00Z"}
    path = "/api/v1/consumer-groups/__QUEUE_MODE__/queues/q/seek"
    assert data(await wakes(timed, lambda: timed.ok("POST", path, seek))) == [1]


async def test_a_group_that_is_deleted_wakes(timed: Wire, autojump_clock: MockClock) -> None:
    """Its leases are gone: what it held is delivered to whoever polls in that name."""
    await timed.push("q", 1)
    assert await timed.pop("q", consumerGroup="g", subscriptionMode="all", leaseSeconds=600)
    act = lambda: timed.ok("DELETE", "/api/v1/consumer-groups/g")  # noqa: E731
    assert data(await wakes(timed, act, consumerGroup="g", subscriptionMode="all")) == [1]


@pytest.mark.parametrize("query", [{"partition": "p"}, {"queue": None, "namespace": "n"}], ids=["pinned", "discovery"])
async def test_a_queue_that_is_created_later_wakes(
    timed: Wire, autojump_clock: MockClock, query: dict[str, Any]
) -> None:
    """Polls park for a queue that nobody knows yet."""

    async def create() -> None:
        await timed.ok("POST", "/api/v1/configure", {"queue": "q", "namespace": "n"})
        await timed.push("q", 1, partition="p")

    assert data(await wakes(timed, create, **query)) == [1]


async def test_the_end_of_a_delay_wakes(timed: Wire, autojump_clock: MockClock) -> None:
    """A long poll that began before the delayed push gets it when the delay is over."""
    await timed.configure("q", delayedProcessing=5)
    found: list[Any] = []

    async def poll() -> None:
        found.extend(await timed.pop("q", wait=True, timeout=30_000))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(poll)
        await trio.sleep(1)
        await timed.push("q", 1)
        started = trio.current_time()
    assert data(found) == [1]
    assert 4.9 < trio.current_time() - started < 5.1


async def test_one_message_goes_to_one_of_many_polls(timed: Wire, autojump_clock: MockClock) -> None:
    """The others stay parked, and each later message finds one of them."""
    found: list[Any] = []

    async def poll() -> None:
        found.append(data(await timed.pop("q", wait=True, timeout=10_000)))

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(poll)
        await trio.sleep(1)
        for n in range(4):
            await timed.push("q", n, partition=f"p{n}")
            await trio.sleep(0.1)
            assert len(found) == n + 1
    assert sorted(found) == [[], [], [], [], [], [], [0], [1], [2], [3]]


async def test_a_poll_whose_caller_is_gone_leases_nothing(timed: Wire, autojump_clock: MockClock) -> None:
    """A push right after its end goes to the next poll, at its first attempt."""
    with trio.move_on_after(1):
        await timed.pop("q", wait=True, timeout=20_000)
    await timed.push("q", 1)
    (message,) = await timed.pop("q")
    assert message["deliveryAttempt"] == 1


async def test_parked_polls_share_one_push(timed: Wire, autojump_clock: MockClock) -> None:
    """Ten polls that commit at delivery, and one push of ten messages to one partition: each gets one at once."""
    await timed.configure("q")
    found: list[Any] = []

    async def poll() -> None:
        found.extend(data(await timed.pop("q", wait=True, timeout=20_000, autoAck=True, batch=1)))

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(poll)
        await trio.sleep(1)
        await timed.push("q", *range(10))
        await trio.sleep(0.1)
        assert sorted(found) == list(range(10))


async def test_polls_of_every_group_wake(timed: Wire, autojump_clock: MockClock) -> None:
    """One push wakes one poll of each group, a group that began as `new` on an empty queue included (A21)."""
    found: dict[str, Any] = {}

    async def poll(group: str, mode: str) -> None:
        query = {"consumerGroup": group, "subscriptionMode": mode}
        found[group] = data(await timed.pop("q", wait=True, timeout=20_000, **query))

    async with trio.open_nursery() as nursery:
        for group, mode in (("", "all"), ("a", "all"), ("b", "new"), ("c", "new")):
            nursery.start_soon(poll, group, mode)
        await trio.sleep(1)
        await timed.push("q", 1)
        await trio.sleep(0.1)
        assert found == {"": [1], "a": [1], "b": [1], "c": [1]}


async def test_a_wide_queue_is_drained_by_parked_polls(timed: Wire, autojump_clock: MockClock) -> None:
    """Fifty partitions, five polls that come back at once: every message once, and no partition starves."""
    seen: list[Any] = []

    async def worker() -> None:
        while messages := await timed.pop("q", wait=True, timeout=2000, batch=3, leaseSeconds=30):
            seen.extend((message["partition"], message["data"]) for message in messages)
            entries = await timed.ack(*((message, "completed") for message in messages))
            assert all(entry["success"] for entry in entries)

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(worker)
        for n in range(20):
            await trio.sleep(0.01)
            for p in range(50):
                await timed.push("q", n, partition=f"p{p}", txn=f"t{n}-")
    assert len(seen) == len(set(seen)) == 1000
    for p in range(50):
        assert [value for name, value in seen if name == f"p{p}"] == list(range(20))


async def test_a_timer_outlives_its_queue(timed: Wire, autojump_clock: MockClock) -> None:
    """A queue that was deleted is made again by the timer that fires into it."""
    await timed.push("q", "old")
    await timed.timers(schedule("q", "k", "fired", 1000))
    await timed.ok("DELETE", "/api/v1/resources/queues/q")
    assert data(await timed.pop("q", wait=True, timeout=5000)) == ["fired"]

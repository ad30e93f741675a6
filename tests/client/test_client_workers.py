"""`consume` with workers: concurrency, order within each partition, verdicts, and leases that are lost meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing
from client_fakes import FakeFeed, FakeTransport

from queen_actors import ConnectionFailed, open_broker
from queen_actors.client import Message, Queen, serving

Handler = Callable[[Message], Awaitable[object]]


class Consumer:
    """A consumer on a feed that a test fills."""

    def __init__(self, queen: Queen, transport: FakeTransport, nursery: trio.Nursery) -> None:
        self._queen = queen
        self._transport = transport
        self._nursery = nursery
        self.done = trio.Event()

    async def start(self, handler: Handler, workers: int, limit: int | None = None) -> FakeFeed:
        async def consume() -> None:
            await self._queen.queue("q").consume(handler, group="g", workers=workers, limit=limit)
            self.done.set()

        self._nursery.start_soon(consume)
        await trio.testing.wait_all_tasks_blocked()
        assert self._transport.feed is not None
        return self._transport.feed


@asynccontextmanager
async def consumer() -> AsyncIterator[Consumer]:
    transport = FakeTransport()
    async with serving(transport) as queen, trio.open_nursery() as nursery:
        yield Consumer(queen, transport, nursery)
        nursery.cancel_scope.cancel()


def verdicts(feed: FakeFeed) -> list[tuple[str, str]]:
    return [(ack["transactionId"], ack["status"]) for acks, _ in feed.acks for ack in acks]


async def test_partitions_side_by_side_each_in_order(autojump_clock: trio.testing.MockClock) -> None:
    """As many handlers as there are workers, never two of one partition, and each partition in its order."""
    running: list[str] = []
    seen: dict[str, list[int]] = {}
    most = 0

    async def handle(message: Message) -> None:
        nonlocal most
        assert message.partition_id not in running
        running.append(message.partition_id)
        most = max(most, len(running))
        await trio.sleep(1)
        seen.setdefault(message.partition_id, []).append(message.offset)
        running.remove(message.partition_id)

    async with consumer() as one:
        began = trio.current_time()
        feed = await one.start(handle, workers=3, limit=20)
        for partition in "abcd":
            feed.deliver(0, 1, 2, 3, 4, lease=f"L{partition}", partition=partition)
        await one.done.wait()
        assert seen == {partition: [0, 1, 2, 3, 4] for partition in "abcd"}
        assert most == 3
        assert 7 <= trio.current_time() - began <= 8
        assert len(verdicts(feed)) == 20


async def test_one_partition_keeps_one_worker(autojump_clock: trio.testing.MockClock) -> None:
    """A partition with much to do does not keep the others waiting."""
    seen: list[tuple[str, int]] = []

    async def handle(message: Message) -> None:
        await trio.sleep(10 if message.partition_id == "slow" else 0.1)
        seen.append((message.partition_id, message.offset))

    async with consumer() as one:
        feed = await one.start(handle, workers=2)
        feed.deliver(0, 1, 2, lease="L1", partition="slow")
        feed.deliver(0, 1, 2, lease="L2", partition="fast")
        await trio.sleep(1)
        assert seen == [("fast", 0), ("fast", 1), ("fast", 2)]
        await trio.sleep(30)
        assert seen[3:] == [("slow", 0), ("slow", 1), ("slow", 2)]


async def test_a_failure_drops_what_comes_again(autojump_clock: trio.testing.MockClock) -> None:
    """A nack ends the lease of its partition: what lies here after it is not handled now, for it is delivered again;
    other partitions go on."""
    seen: list[tuple[str, int]] = []

    async def handle(message: Message) -> None:
        await trio.sleep(1)
        seen.append((message.partition_id, message.offset))
        if (message.partition_id, message.offset, message.lease_id) == ("a", 1, "L1"):
            raise ValueError("no")

    async with consumer() as one:
        feed = await one.start(handle, workers=2)
        feed.deliver(0, 1, 2, 3, lease="L1", partition="a")
        feed.deliver(0, 1, lease="L2", partition="b")
        await trio.sleep(10)
        assert sorted(seen) == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
        assert ("t1", "failed") in verdicts(feed)
        feed.deliver(1, 2, lease="L3", partition="a")
        await trio.sleep(10)
        assert seen[4:] == [("a", 1), ("a", 2)]


@pytest.mark.parametrize("lost", [("L1", "a"), ("L1", None), (None, None)])
async def test_a_lost_lease_cancels_the_handler(
    autojump_clock: trio.testing.MockClock, lost: tuple[str | None, str | None]
) -> None:
    """Before it can ack; what lies here under the same lease is dropped too, and the worker goes on."""
    cancelled: list[int] = []
    finished: list[tuple[str, int]] = []

    async def handle(message: Message) -> None:
        try:
            await trio.sleep(5)
        except trio.Cancelled:
            cancelled.append(message.offset)
            raise
        finished.append((message.lease_id, message.offset))

    async with consumer() as one:
        feed = await one.start(handle, workers=2)
        feed.deliver(0, 1, 2, lease="L1", partition="a")
        await trio.sleep(1)
        assert feed.sink is not None
        feed.sink.lost(*lost, "expired")
        await trio.sleep(1)
        assert cancelled == [0]
        feed.deliver(0, lease="L4", partition="a")
        await trio.sleep(20)
        assert finished == [("L4", 0)]
        assert verdicts(feed) == [("t0", "completed")]


async def test_the_limit_ends_idle_workers(autojump_clock: trio.testing.MockClock) -> None:
    """After so many messages it returns, though workers wait for more; a failed one counts."""
    handled: list[int] = []

    async def handle(message: Message) -> None:
        handled.append(message.offset)
        await trio.sleep(1)
        if message.offset == 1:
            raise ValueError("no")

    async with consumer() as one:
        feed = await one.start(handle, workers=5, limit=3)
        feed.deliver(0, lease="L1", partition="a")
        feed.deliver(1, lease="L2", partition="b")
        await trio.sleep(5)
        assert not one.done.is_set()
        feed.deliver(2, 3, lease="L3", partition="c")
        await one.done.wait()
        assert sorted(handled) == [0, 1, 2]


async def test_the_subscriptions_end_comes_out_bare(autojump_clock: trio.testing.MockClock) -> None:
    """The broker's error ends all workers, and is raised as it is."""

    async def handle(message: Message) -> None:
        await trio.sleep_forever()

    transport = FakeTransport()
    async with serving(transport) as queen:

        async def consume() -> None:
            await queen.queue("q").consume(handle, workers=3)

        async def fail() -> None:
            await trio.sleep(1)
            assert transport.feed is not None
            transport.feed.deliver(0)
            await trio.sleep(1)
            transport.feed.break_off()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)
            with pytest.raises(ConnectionFailed):
                await consume()


async def test_workers_must_be_some() -> None:
    async with open_broker() as queen:

        async def handle(message: Message) -> None:
            raise AssertionError("never")

        with pytest.raises(ValueError, match="workers"):
            await queen.queue("q").consume(handle, workers=0)


async def test_workers_against_a_broker() -> None:
    """Everything is handled once, in order within each partition, also when some of it fails at first."""
    failed: set[int] = set()
    seen: dict[str, list[int]] = {}

    async with open_broker() as queen:
        for number in range(60):
            await queen.queue("q").partition(f"p{number % 6}").push(number)

        async def handle(message: Message) -> None:
            await trio.sleep(0.001)
            if message.data % 10 == 7 and message.data not in failed:
                failed.add(message.data)
                raise ValueError("at first")
            seen.setdefault(message.partition, []).append(message.data)

        with trio.fail_after(30):
            await queen.queue("q").consume(handle, group="g", workers=4, limit=66)
        assert seen == {f"p{first}": list(range(first, 60, 6)) for first in range(6)}

"""Workers, by `consume` and by iterating: concurrency, order within each partition, verdicts, and lost leases."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing
from client_fakes import FakeFeed, FakeTransport

from queen_actors import ConnectionFailed, open_broker
from queen_actors.client import Message, Queen, Subscription, serving

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


# -- iterated by whoever wants to: what is out at once, and in which order ---------------------------------------------


class Course:
    """What workers did: never two of one partition at once, how many at once, and in which order."""

    def __init__(self) -> None:
        self.running: list[str] = []
        self.seen: dict[str, list[int]] = {}
        self.most = 0

    async def work(self, message: Message, seconds: float = 1) -> None:
        assert message.partition_id not in self.running
        self.running.append(message.partition_id)
        self.most = max(self.most, len(self.running))
        await trio.sleep(seconds)
        self.running.remove(message.partition_id)
        self.seen.setdefault(message.partition_id, []).append(message.offset)

    @property
    def count(self) -> int:
        return sum(map(len, self.seen.values()))


@asynccontextmanager
async def workers(many: int, **choices: Any) -> AsyncIterator[tuple[Subscription, FakeFeed]]:
    transport = FakeTransport()
    async with serving(transport) as queen, queen.queue("q").subscribe(workers=many, **choices) as messages:
        assert transport.feed is not None
        yield messages, transport.feed


def fill(feed: FakeFeed, partitions: str, offsets: range) -> None:
    for partition in partitions:
        feed.deliver(*offsets, lease=f"L{partition}", partition=partition)


async def test_several_tasks_iterate_one_subscription(autojump_clock: trio.testing.MockClock) -> None:
    """Each takes the next message of a partition that nobody works on."""
    course = Course()

    async with workers(3) as (messages, feed), trio.open_nursery() as nursery:

        async def work() -> None:
            async for message in messages:
                await course.work(message)
                await message.ack()

        for _ in range(3):
            nursery.start_soon(work)
        fill(feed, "abcd", range(5))
        await trio.sleep(6.5)
        assert course.count < 20
        await trio.sleep(2)
        assert course.seen == {partition: [0, 1, 2, 3, 4] for partition in "abcd"}
        assert course.most == 3
        nursery.cancel_scope.cancel()


async def test_a_task_for_each_message(autojump_clock: trio.testing.MockClock) -> None:
    """One loop that starts a task for each message has no more of them than there are workers, in order as well."""
    course = Course()

    async with workers(2) as (messages, feed), trio.open_nursery() as nursery:

        async def work(message: Message) -> None:
            await course.work(message)
            await message.ack()
            if course.count == 12:
                nursery.cancel_scope.cancel()

        fill(feed, "abc", range(4))
        async for message in messages:
            nursery.start_soon(work, message)
    assert course.seen == {partition: [0, 1, 2, 3] for partition in "abc"}
    assert course.most == 2


@pytest.mark.parametrize("verdict", ["nack", "retry", "dead_letter"])
async def test_a_verdict_lets_the_partition_go_on(autojump_clock: trio.testing.MockClock, verdict: str) -> None:
    """It ends the lease: what lies behind it is dropped, and what comes under the next lease is handed out."""
    async with workers(2) as (messages, feed):
        fill(feed, "a", range(3))
        message = await messages.receive()
        with trio.move_on_after(1) as waiting:
            await messages.receive()
        assert waiting.cancelled_caught, "its partition is taken"
        await getattr(message, verdict)()
        assert messages.waiting == 0
        feed.deliver(0, 1, lease="L2", partition="a")
        again = await messages.receive()
        assert (again.offset, again.lease_id) == (0, "L2")
        await message.ack()  # of the lease that is over: it settles nothing of the new one
        with trio.move_on_after(1) as waiting:
            await messages.receive()
        assert waiting.cancelled_caught


@pytest.mark.parametrize("lost", [("La", "a"), ("La", None), (None, None)])
async def test_a_lost_lease_lets_the_partition_go_on(
    autojump_clock: trio.testing.MockClock, lost: tuple[str | None, str | None]
) -> None:
    """Whoever has the message cannot settle it any more."""
    async with workers(2) as (messages, feed):
        fill(feed, "a", range(3))
        message = await messages.receive()
        assert feed.sink is not None
        feed.sink.lost(*lost, "expired")
        assert messages.lost_reason(message) == "expired"
        feed.deliver(0, lease="L2", partition="a")
        assert (await messages.receive()).lease_id == "L2"


async def test_a_batch_is_of_one_partition(autojump_clock: trio.testing.MockClock) -> None:
    """And the partition goes on when the last of the batch is settled, not before."""
    async with workers(2) as (messages, feed):
        fill(feed, "ab", range(5))
        first = await messages.receive_batch(3)
        second = await messages.receive_batch(10)
        assert [(one.partition_id, one.offset) for one in first] == [("a", 0), ("a", 1), ("a", 2)]
        assert [(one.partition_id, one.offset) for one in second] == [("b", at) for at in range(5)]
        await first[1].ack()
        with trio.move_on_after(1) as waiting:
            await messages.receive()
        assert waiting.cancelled_caught
        await messages.ack(first[2])
        assert [one.offset for one in await messages.receive_batch(10)] == [3, 4]


async def test_what_needs_no_ack_is_acked_all_the_same(autojump_clock: trio.testing.MockClock) -> None:
    """With `auto_ack` an ack only says that it is done: the broker is not asked. Another verdict is refused."""
    async with workers(2, auto_ack=True) as (messages, feed):
        fill(feed, "a", range(3))
        for offset in range(3):
            message = await messages.receive()
            assert message.offset == offset
            assert await message.ack() if offset != 1 else not await message.nack("no")
        assert feed.acks == []


async def test_a_partition_waits_for_its_handler(autojump_clock: trio.testing.MockClock) -> None:
    """`each`: also for one that acks its message itself and goes on, and for one that ends slowly though its lease is
    lost."""
    course = Course()

    async def handle(message: Message) -> None:
        await message.ack()
        await course.work(message)

    async with workers(2) as (messages, feed):
        fill(feed, "a", range(3))
        await messages.each(handle, limit=3)
        assert course.seen == {"a": [0, 1, 2]}
        fill(feed, "b", range(1))

        async def linger(message: Message) -> None:
            try:
                await trio.sleep(100)
            finally:
                with trio.CancelScope(shield=True):
                    await course.work(message, 5)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(messages.each, linger)
            await trio.sleep(1)
            assert feed.sink is not None
            feed.sink.lost("Lb", "b", "expired")
            feed.deliver(0, lease="L2", partition="b")
            await trio.sleep(4)
            assert course.running == ["b"]
            assert messages.waiting == 1
            with pytest.raises(RuntimeError, match="handler already"):
                await messages.each(handle)
            await trio.sleep(2)
            assert messages.waiting == 0
            nursery.cancel_scope.cancel()


async def test_no_partition_takes_the_credit_of_all(autojump_clock: trio.testing.MockClock) -> None:
    """The credit is shared out: a delivery takes no more than a worker's part of it."""
    async with workers(8) as (_, feed):
        assert (feed.wanted.credit, feed.wanted.batch) == (100, 12)
    async with workers(8, credit=16, batch=50) as (_, feed):
        assert (feed.wanted.credit, feed.wanted.batch) == (16, 2)
    async with workers(300) as (_, feed):
        assert (feed.wanted.credit, feed.wanted.batch) == (300, 1)


@pytest.mark.parametrize("settle", ["transaction", "queen"])
async def test_settled_elsewhere(settle: str) -> None:
    """A message that a transaction acks, or `queen.ack`, is settled as well as by itself."""
    async with open_broker() as queen:
        await queen.queue("q").push([0, 1, 2])
        async with queen.queue("q").subscribe(group="g", workers=2) as messages:
            with trio.fail_after(5):
                for number in range(3):
                    message = await messages.receive()
                    assert message.data == number
                    if settle == "queen":
                        assert await queen.ack(message)
                    else:
                        assert await queen.transaction().ack(message).queue("done").push(number).commit()


async def test_tasks_against_a_broker() -> None:
    """Sixty messages of six partitions, four tasks, failures among them: all handled, in their order."""
    failed: set[int] = set()
    seen: dict[str, list[int]] = {}

    async with open_broker() as queen, trio.open_nursery() as nursery:
        for number in range(60):
            await queen.queue("q").partition(f"p{number % 6}").push(number)

        async def work(messages: Subscription) -> None:
            async for message in messages:
                await trio.sleep(0.001)
                if message.data % 10 == 7 and message.data not in failed:
                    failed.add(message.data)
                    await message.nack("at first")
                    continue
                seen.setdefault(message.partition, []).append(message.data)
                await message.ack()
                if sum(map(len, seen.values())) == 60:
                    nursery.cancel_scope.cancel()

        subscription = queen.queue("q").subscribe(group="g", workers=4)
        with trio.fail_after(30):
            async with subscription as messages, trio.open_nursery() as pool:
                for _ in range(4):
                    pool.start_soon(work, messages)
    assert seen == {f"p{first}": list(range(first, 60, 6)) for first in range(6)}
    assert len(failed) == 6

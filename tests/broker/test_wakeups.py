"""Every way in which a parked pop comes to have something to take ends its wait, at the right instant (A12, A49, A63).

Time is virtual: `trio.current_time()` tells exactly when a wait ended.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.lowlevel
from broker_kit import ack, configure, during, pop, push, schedule, started, txns
from msgspec.structs import replace
from trio.testing import MockClock

from queen_actors.broker import Broker
from queen_actors.domain.cursor import Ack, PopReply
from queen_actors.domain.partition import PushItem
from queen_actors.domain.queue import Configure
from queen_actors.domain.timers import Schedule
from queen_actors.domain.transaction import PositionCommit, Transaction

Action = Callable[[Broker], Awaitable[Any]]
PLACES = [
    {"queue": "a.b.q"},
    {"queue": "a.b.q", "partition": "p"},
    {"queue": None, "namespace": "a"},
    {"queue": None, "task": "b"},
    {"queue": None, "namespace": "a", "task": "b"},
]
IDS = ["wildcard", "pinned", "namespace", "task", "both labels"]
pinned_too = pytest.mark.parametrize("place", PLACES, ids=IDS)


async def woken_at(broker: Broker, place: dict[str, Any], then: Action, after: float = 1) -> tuple[float, PopReply]:
    """Park a pop, do something after a second; how long it waited, and its answer."""
    start = trio.current_time()
    ended: list[float] = []

    async def parked() -> PopReply:
        reply = await pop(broker, wait=60, **place)
        ended.append(trio.current_time() - start)
        return reply

    reply = await during(parked, lambda: then(broker), after)
    return round(ended[0], 3), reply


async def nothing(broker: Broker) -> None:
    """Only time passes."""
    await trio.lowlevel.checkpoint()


@pinned_too
@pytest.mark.parametrize("known", [True, False], ids=["known queue", "queue created after parking"])
async def test_a_push(autojump_clock: MockClock, place: dict[str, Any], known: bool) -> None:
    async with started() as broker:
        if known:
            await configure(broker, "a.b.q")
        waited, reply = await woken_at(broker, place, lambda b: push(b, "m", queue="a.b.q"))
        assert (waited, txns(reply)) == (1, ["m"])


@pinned_too
async def test_a_push_in_a_transaction(autojump_clock: MockClock, place: dict[str, Any]) -> None:
    async with started() as broker:
        bundle = Transaction(steps=(PushItem("a.b.q", "p", b"1", txn="m"),))
        waited, reply = await woken_at(broker, place, lambda b: b.transaction(bundle))
        assert (waited, txns(reply)) == (1, ["m"])


@pinned_too
async def test_a_timer(autojump_clock: MockClock, place: dict[str, Any]) -> None:
    """A49: scheduled while the broker is idle, by itself or in a transaction."""
    async with started() as broker:
        await trio.sleep(5)
        waited, reply = await woken_at(broker, place, lambda b: schedule(b, "k", 0.5, queue="a.b.q"))
        assert (waited, txns(reply)) == (1.5, ["k"])
        await ack(broker, reply)
        bundle = Transaction(timers=(Schedule("a.b.q", "k2", b"1", 500_000, "m2", "p"),))
        waited, reply = await woken_at(broker, place, lambda b: b.transaction(bundle))
        assert (waited, txns(reply)) == (1.5, ["m2"])


@pinned_too
@pytest.mark.parametrize("status", ["failed", "retry"])
async def test_a_nack(autojump_clock: MockClock, place: dict[str, Any], status: str) -> None:
    async with started() as broker:
        await push(broker, "m", queue="a.b.q")
        held = await pop(broker, "a.b.q")
        waited, reply = await woken_at(broker, place, lambda b: ack(b, held, status))
        assert (waited, txns(reply), reply.claims[0].attempt) == (1, ["m"], 2)


@pinned_too
async def test_an_ack_that_frees_the_next(autojump_clock: MockClock, place: dict[str, Any]) -> None:
    async with started() as broker:
        await push(broker, "m", "n", queue="a.b.q")
        held = await pop(broker, "a.b.q", batch=1)
        waited, reply = await woken_at(broker, place, lambda b: ack(b, held))
        assert (waited, txns(reply)) == (1, ["n"])


@pinned_too
async def test_a_lease_that_expires(autojump_clock: MockClock, place: dict[str, Any]) -> None:
    """I4: after its time, and not before."""
    async with started() as broker:
        await push(broker, "m", queue="a.b.q")
        await pop(broker, "a.b.q", lease=7_000_000)
        waited, reply = await woken_at(broker, place, nothing)
        assert (waited, txns(reply), reply.claims[0].attempt) == (7, ["m"], 2)


@pinned_too
async def test_a_lease_that_was_extended(autojump_clock: MockClock, place: dict[str, Any]) -> None:
    """It ends when the last extension does, once."""
    async with started() as broker:
        await push(broker, "m", queue="a.b.q")
        held = await pop(broker, "a.b.q", lease=3_000_000)

        async def extend(b: Broker) -> None:
            assert (await b.extend(held.lease_id, 5)).renewed == 1
            await trio.sleep(1)
            assert (await b.extend(held.lease_id, 9)).renewed == 1

        waited, _ = await woken_at(broker, place, extend)
        assert waited == 11


@pinned_too
async def test_a_release(autojump_clock: MockClock, place: dict[str, Any]) -> None:
    async with started() as broker:
        await push(broker, "m", queue="a.b.q")
        held = await pop(broker, "a.b.q")
        waited, reply = await woken_at(broker, place, lambda b: b.release(held.lease_id))
        assert (waited, txns(reply)) == (1, ["m"])


@pinned_too
async def test_a_seek(autojump_clock: MockClock, place: dict[str, Any]) -> None:
    async with started() as broker:
        await push(broker, "m", queue="a.b.q")
        await ack(broker, await pop(broker, "a.b.q"))
        waited, reply = await woken_at(broker, place, lambda b: b.seek("__QUEUE_MODE__", "a.b.q", None, 0))
        assert (waited, txns(reply)) == (1, ["m"])


@pinned_too
async def test_a_position_that_moves_back(autojump_clock: MockClock, place: dict[str, Any]) -> None:
    async with started() as broker:
        await push(broker, "m", queue="a.b.q")
        await ack(broker, await pop(broker, "a.b.q"))
        bundle = Transaction(positions=(PositionCommit("a.b.q", "__QUEUE_MODE__", "p", 0),))
        waited, reply = await woken_at(broker, place, lambda b: b.transaction(bundle))
        assert (waited, txns(reply)) == (1, ["m"])


@pinned_too
@pytest.mark.parametrize("metadata", [True, False])
async def test_a_group_that_is_deleted(autojump_clock: MockClock, place: dict[str, Any], metadata: bool) -> None:
    """A16: its leases are free, and it starts afresh."""
    async with started() as broker:
        await push(broker, "m", queue="a.b.q")
        held = await pop(broker, "a.b.q", group="g")
        waited, reply = await woken_at(
            broker, {**place, "group": "g"}, lambda b: b.delete_group("g", None, metadata=metadata)
        )
        assert (waited, txns(reply), reply.claims[0].attempt) == (1, ["m"], 1)
        assert await ack(broker, held) == [False]


@pinned_too
async def test_a_delay_that_is_over(autojump_clock: MockClock, place: dict[str, Any]) -> None:
    """A12: waiting is not leasing: delivered once, when it is due."""
    async with started() as broker:
        await configure(broker, "a.b.q", delayed_processing_seconds=3, lease_seconds=1)
        waited, reply = await woken_at(broker, place, lambda b: push(b, "m", queue="a.b.q"))
        assert (waited, txns(reply), reply.claims[0].attempt) == (4, ["m"], 1)


@pinned_too
async def test_a_window_that_is_quiet(autojump_clock: MockClock, place: dict[str, Any]) -> None:
    """Each write starts the window anew; then everything comes at once."""
    async with started() as broker:
        await configure(broker, "a.b.q", window_buffer_seconds=3)

        async def writes(b: Broker) -> None:
            for name in ("m", "n", "o"):
                await push(b, name, queue="a.b.q")
                await trio.sleep(2)

        waited, reply = await woken_at(broker, place, writes)
        assert (waited, txns(reply)) == (8, ["m", "n", "o"])


@pinned_too
async def test_a_configure_that_shortens_the_delay(autojump_clock: MockClock, place: dict[str, Any]) -> None:
    async with started() as broker:
        await configure(broker, "a.b.q", delayed_processing_seconds=50)
        await push(broker, "m", queue="a.b.q")
        waited, _ = await woken_at(broker, place, lambda b: configure(b, "a.b.q", delayed_processing_seconds=5))
        assert waited == 5
        await push(broker, "n", queue="a.b.q", partition="p")
        again = {**place, "group": "g"}
        waited, _ = await woken_at(broker, again, lambda b: configure(b, "a.b.q", delayed_processing_seconds=0))
        assert waited == 0


async def test_a_configure_that_gives_the_labels(autojump_clock: MockClock) -> None:
    """A queue with messages that a discovery pop finds from now on."""
    async with started() as broker:
        await push(broker, "m", queue="plain")

        async def label(b: Broker) -> None:
            await b.configure(Configure("plain", {}, namespace="ns"))

        waited, reply = await woken_at(broker, {"queue": None, "namespace": "ns"}, label)
        assert (waited, txns(reply)) == (1, ["m"])


@pytest.mark.parametrize("place", PLACES[:1] + PLACES[2:], ids=IDS[:1] + IDS[2:])
async def test_a_subscription_that_is_moved_back(autojump_clock: MockClock, place: dict[str, Any]) -> None:
    """10: later first contacts start there; the partition had none yet."""
    async with started() as broker:
        await push(broker, "m", queue="a.b.q")
        new = {**place, "group": "g", "subscription_mode": "new"}
        waited, reply = await woken_at(broker, new, lambda b: b.move_subscription("g", 0))
        assert (waited, txns(reply)) == (1, ["m"])


@pinned_too
async def test_a_queue_that_is_deleted_and_made_again(autojump_clock: MockClock, place: dict[str, Any]) -> None:
    """The wait goes on, over the deletion, and a `new` group misses nothing that came into the second queue."""
    async with started() as broker:
        await push(broker, "old", queue="a.b.q")
        await ack(broker, await pop(broker, "a.b.q", group="g"))

        async def again(b: Broker) -> None:
            assert await b.delete_queue("a.b.q")
            await trio.sleep(1)
            assert await b.queue_view("a.b.q") is None
            await push(b, "m", queue="a.b.q")

        waited, reply = await woken_at(broker, {**place, "group": "g", "subscription_mode": "new"}, again)
        assert (waited, txns(reply)) == (2, ["m"])


@pinned_too
async def test_a_new_group_hears_what_comes_while_it_waits(autojump_clock: MockClock, place: dict[str, Any]) -> None:
    """A21: what was there before is not wanted, what comes after is, also for a pop of one partition."""
    async with started() as broker:
        await push(broker, "old", queue="a.b.q")
        new = {**place, "group": "g", "subscription_mode": "new"}
        waited, reply = await woken_at(broker, new, lambda b: push(b, "m", queue="a.b.q"))
        assert (waited, txns(reply)) == (1, ["m"])


async def test_a_new_group_of_one_partition_begins_at_its_first_pop(autojump_clock: MockClock) -> None:
    """It is not registered: its cursor remembers where it began, for the pops after this one (7.6)."""
    async with started() as broker:
        await push(broker, "old")
        new: dict[str, Any] = {"partition": "p", "group": "g", "subscription_mode": "new"}
        assert txns(await pop(broker, **new)) == []
        await push(broker, "m")
        assert txns(await pop(broker, **new)) == ["m"]


async def test_a_transaction_that_rolls_back_beside_a_parked_pop(autojump_clock: MockClock) -> None:
    """A message that a transaction held for a while, and left, is taken as soon as it is free."""
    async with started() as broker:
        await push(broker, "m")
        held = await pop(broker)
        bundle = Transaction(steps=(Ack("m", held.claims[0].pid, "__QUEUE_MODE__", lease_id="other"),))

        async def roll_back(b: Broker) -> None:
            await b.transaction(bundle)
            await b.release(held.lease_id)

        waited, _ = await woken_at(broker, {"queue": "q"}, roll_back)
        assert waited == 1


async def test_a_head_at_the_delivery_limit_gives_way(autojump_clock: MockClock) -> None:
    """`deliveryLimit`: the head is dead-lettered, and the very pop that did it gets what is behind, or waits on."""
    async with started() as broker:
        await configure(broker, delivery_limit=1, lease_seconds=1)
        await push(broker, "poison", "m")
        await pop(broker, batch=1)
        waited, reply = await woken_at(broker, {"batch": 1, "queue": "q"}, nothing)
        assert (waited, txns(reply)) == (1, ["m"])
        letters, total = await broker.dead_letters(queue="q")
        assert (total, letters[0].letter.record.txn) == (1, "poison")


async def test_the_wait_is_over(autojump_clock: MockClock) -> None:
    """Nothing came: an empty answer at the deadline, and no lease."""
    async with started() as broker:
        start = trio.current_time()
        reply = await pop(broker, wait=7)
        assert trio.current_time() - start == pytest.approx(7)
        assert reply == replace(reply, lease_id="", claims=())
        assert broker.statistics().leases == 0


async def test_one_message_wakes_one_pop(autojump_clock: MockClock) -> None:
    """The others wait on, in the order in which they came; the next message is the next one's."""
    async with started() as broker:
        got: list[tuple[int, list[str], float]] = []

        async def consumer(number: int) -> None:
            reply = await pop(broker, wait=60, batch=1)
            got.append((number, txns(reply), trio.current_time() - start))

        start = trio.current_time()
        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(consumer, number)
                await trio.sleep(0.1)
            for number in range(3):
                await push(broker, f"m{number}", partition=f"p{number}")
                await trio.sleep(1)
        assert [(number, names) for number, names, _ in got] == [(0, ["m0"]), (1, ["m1"]), (2, ["m2"])]


async def test_one_push_of_many_partitions_serves_many_pops(autojump_clock: MockClock) -> None:
    """Whoever claims passes the wake-up on while something is left."""
    async with started() as broker:
        got: list[str] = []

        async def consumer() -> None:
            got.extend(txns(await pop(broker, wait=60)))

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(consumer)
            await trio.sleep(1)
            await broker.push([PushItem("q", f"p{number}", b"1", txn=str(number)) for number in range(20)])
            await trio.sleep(1)
            assert len(got) == 20
        assert sorted(got, key=int) == [str(number) for number in range(20)]


async def test_every_lease_that_expires_at_one_instant(autojump_clock: MockClock) -> None:
    """Many partitions at once: each serves a parked pop."""
    async with started() as broker:
        await broker.push([PushItem("q", f"p{number}", b"1", txn=str(number)) for number in range(30)])
        for _ in range(30):
            await pop(broker, lease=5_000_000)
        got: list[str] = []

        async def consumer() -> None:
            got.extend(txns(await pop(broker, wait=60)))

        async with trio.open_nursery() as nursery:
            start = trio.current_time()
            for _ in range(30):
                nursery.start_soon(consumer)
        assert sorted(got, key=int) == [str(number) for number in range(30)]
        assert trio.current_time() - start < 5.1

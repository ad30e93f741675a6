"""`minPopWaitTime` (wire-messaging.md 5): a pop that waits is held for a while, so that one answer carries more."""

from __future__ import annotations

from functools import partial

import trio
from broker_kit import ack, configure, cursor, pop, push, started, txns
from trio.testing import MockClock

from queen_actors.broker import Broker
from queen_actors.domain.cursor import PopReply


async def timed_pop(broker: Broker, wait: float, **fields: object) -> tuple[float, PopReply]:
    """How long the pop took, and its answer."""
    began = trio.current_time()
    reply = await pop(broker, wait=wait, **fields)
    return round(trio.current_time() - began, 3), reply


async def push_later(broker: Broker, *times: float, partition: str = "p") -> None:
    """A message at each of these seconds from now, named after it."""
    began = trio.current_time()
    for at in times:
        await trio.sleep_until(began + at)
        await push(broker, f"at {at}", partition=partition)


async def test_the_batch_grows_while_the_pop_is_held(autojump_clock: MockClock) -> None:
    """What is there at once is not delivered before the time is over; what came meanwhile is in the same answer."""
    async with started() as broker, trio.open_nursery() as nursery:
        await configure(broker, min_pop_wait_ms=1500)
        await push(broker, "first")
        nursery.start_soon(partial(push_later, broker, 0.5, 1, 2))
        assert cursor(broker) is None
        waited, reply = await timed_pop(broker, 30, batch=10)
        assert (waited, txns(reply)) == (1.5, ["first", "at 0.5", "at 1"])
        assert all(await ack(broker, reply))


async def test_the_time_runs_from_when_the_pop_began(autojump_clock: MockClock) -> None:
    """A message that comes after it is delivered at once."""
    async with started() as broker, trio.open_nursery() as nursery:
        await configure(broker, min_pop_wait_ms=1500)
        nursery.start_soon(push_later, broker, 4)
        waited, reply = await timed_pop(broker, 30, batch=10)
        assert (waited, txns(reply)) == (4, ["at 4"])


async def test_a_full_batch_is_not_held(autojump_clock: MockClock) -> None:
    """Neither one that is full at once, nor one that becomes so."""
    async with started() as broker, trio.open_nursery() as nursery:
        await configure(broker, min_pop_wait_ms=1500)
        await push(broker, "a", "b")
        assert (await timed_pop(broker, 30, batch=2, group="g"))[0] == 0
        nursery.start_soon(push_later, broker, 0.5, 1)
        waited, reply = await timed_pop(broker, 30, batch=3)
        assert (waited, txns(reply)) == (0.5, ["a", "b", "at 0.5"])


async def test_a_pop_is_never_held_beyond_its_own_wait(autojump_clock: MockClock) -> None:
    """It then answers with what there is; one that does not wait is not held at all."""
    async with started() as broker:
        await configure(broker, min_pop_wait_ms=1500)
        await push(broker, "a")
        waited, reply = await timed_pop(broker, 0.7, batch=10, group="g")
        assert (waited, txns(reply)) == (0.7, ["a"])
        waited, reply = await timed_pop(broker, 0, batch=10)
        assert (waited, txns(reply)) == (0, ["a"])


async def test_who_is_held_has_nothing_leased(autojump_clock: MockClock) -> None:
    """Another may take the messages meanwhile, and the held pop waits on; when it gives up, the next one is told."""
    async with started() as broker, trio.open_nursery() as nursery:
        await configure(broker, min_pop_wait_ms=1500)
        await push(broker, "a")
        with trio.move_on_after(1):
            await timed_pop(broker, 30, batch=10)
        assert cursor(broker) is None
        found: list[tuple[float, PopReply]] = []

        async def held() -> None:
            found.append(await timed_pop(broker, 30, batch=10))

        nursery.start_soon(held)
        await trio.sleep(1)
        assert txns(await pop(broker, batch=10)) == ["a"]
        await trio.sleep(4)
        await push(broker, "b", partition="other")
        await trio.sleep(0.1)
        assert [(waited, txns(reply)) for waited, reply in found] == [(5, ["b"])]


async def test_a_held_pop_that_is_cancelled_leaves_its_turn_to_the_next(autojump_clock: MockClock) -> None:
    """A63: the one behind it in the line gets the messages when its own time is over."""
    async with started() as broker, trio.open_nursery() as nursery:
        await configure(broker, min_pop_wait_ms=1500)
        found: list[tuple[float, PopReply]] = []
        first = trio.CancelScope()

        async def leaving() -> None:
            with first:
                await timed_pop(broker, 30, batch=10)

        async def staying() -> None:
            found.append(await timed_pop(broker, 30, batch=10))

        nursery.start_soon(leaving)
        await trio.sleep(0.1)
        nursery.start_soon(staying)
        await trio.sleep(0.1)
        await push(broker, "a")
        await trio.sleep(0.5)
        first.cancel()
        await trio.sleep(2)
        assert [(waited, txns(reply)) for waited, reply in found] == [(1.5, ["a"])]


async def test_wide_pops_and_conflation(autojump_clock: MockClock) -> None:
    """Partitions come in while the pop is held; a group that takes the newest of each takes the newest at the end."""
    async with started() as broker, trio.open_nursery() as nursery:
        await configure(broker, min_pop_wait_ms=1000)
        await push(broker, "old", partition="p0")
        nursery.start_soon(partial(push_later, broker, 0.3, partition="p0"))
        nursery.start_soon(partial(push_later, broker, 0.6, partition="p1"))
        waited, reply = await timed_pop(broker, 30, batch=10, partitions=4, group="g", conflation=True)
        assert (waited, sorted(txns(reply))) == (1, ["at 0.3", "at 0.6"])


async def test_a_broker_that_stops_does_not_hold(autojump_clock: MockClock) -> None:
    """What is there is answered, or given up, at once."""
    ended: list[float] = []
    async with trio.open_nursery() as nursery:
        async with started() as broker:
            await configure(broker, min_pop_wait_ms=60_000)
            await push(broker, "a")

            async def held() -> None:
                await timed_pop(broker, 60, batch=10)
                ended.append(trio.current_time())

            nursery.start_soon(held)
            await trio.sleep(1)
        assert trio.current_time() < 2
    assert ended[0] < 2

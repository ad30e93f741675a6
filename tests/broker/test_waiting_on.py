"""Who only waits, or only looks, is not refused because the disk refused what somebody else wrote."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
import trio
from broker_kit import SECOND, ack, pop, push, started, txns
from trio.testing import MockClock

from queen_actors.actors import locks
from queen_actors.actors.log import Deferral, deferral
from queen_actors.broker import Broker
from queen_actors.client import Queen
from queen_actors.domain.cursor import PopRequest
from queen_actors.domain.effects import Entry
from queen_actors.domain.kv import Get, Put
from queen_actors.domain.locks import Acquire, Release
from queen_actors.domain.overview import FetchEntry
from queen_actors.domain.watch import WatchTerms
from queen_actors.errors import StorageFull, Unavailable
from queen_actors.ports import Recovered, Recovery
from queen_actors.serve.deferring import durable
from queen_actors.storage.memory import MemoryStore
from queen_actors.testing.memory import MemoryLog, memory_broker

VIRTUAL_TIME = True
ROOM = 3.0
"""Seconds that the disk is full."""


class SlowlyRefusing(MemoryStore):
    """A full disk says so after a second; reading the log again takes `reading` seconds."""

    def __init__(self, *, retain: bool, reading: float = 0) -> None:
        super().__init__(retain=retain)
        self.reading = reading

    async def open(self, recovery: Recovery) -> Recovered:
        if self.faults.full:
            await trio.sleep(self.reading)
        return await super().open(recovery)

    async def commit(self, entries: Sequence[Entry], done: Callable[[], None] | None = None) -> None:
        if self.faults.full:
            with trio.CancelScope(shield=True):
                await trio.sleep(1)
        await super().commit(entries, done)


async def refused(write: Awaitable[Any]) -> None:
    """The write comes at a full disk."""
    with pytest.raises(StorageFull):
        await write


async def full_for_a_while(store: MemoryStore, write: Callable[[], Awaitable[Any]]) -> None:
    """The disk is full from this write on, for a while."""
    await trio.sleep(1)
    store.faults.full = True
    await refused(write())
    await trio.sleep(ROOM)
    store.faults.full = False
    await trio.sleep(ROOM)


async def popped(broker: Broker) -> list[str]:
    return txns(await pop(broker, wait=60))


async def popped_at_delivery(broker: Broker) -> list[str]:
    return txns(await pop(broker, wait=60, auto_ack=True))


async def popped_together(broker: Broker) -> list[str]:
    replies = await broker.pops(PopRequest("q", wait=60 * SECOND), 9)
    return [txn for reply in replies for txn in txns(reply)]


async def fetched(broker: Broker) -> list[str]:
    entry = FetchEntry("q", "p", 1, 1 << 20)
    (found,) = await broker.reads.fetch([entry], 1 << 20, 1, 60 * SECOND)
    return [record.txn for record in found.records]


@pytest.mark.parametrize("wait", [popped, popped_at_delivery, popped_together, fetched])
async def test_a_push_that_is_refused_refuses_nobody_who_waits(
    autojump_clock: MockClock, wait: Callable[[Broker], Awaitable[list[str]]]
) -> None:
    """It woke them, and they were on its heels: they wait on, and get what comes when there is room."""
    store = MemoryStore(retain=True)
    found: list[list[str]] = []

    async def waiting(broker: Broker) -> None:
        found.append(await wait(broker))

    async with started(store) as broker:
        await push(broker, "before")
        await ack(broker, await pop(broker))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(waiting, broker)
            await full_for_a_while(store, lambda: push(broker, "refused"))
            assert found == []
            await push(broker, "good")
        assert found == [["good"]]
        assert trio.current_time() < 60


@pytest.mark.parametrize("defers", [False, True])
async def test_what_a_fetch_saw_in_vain_is_not_held_against_it(autojump_clock: MockClock, defers: bool) -> None:
    """It looked at a partition while the push into another one was on its way to be refused, and found nothing. What it
    finds later hangs on nothing of that, also when its lane sees to it that what is told is durable."""
    store = MemoryStore(retain=True)
    found: list[list[str]] = []

    async def waiting(broker: Broker) -> None:
        later = Deferral()
        if defers:
            deferral.set(later)
        records = await fetched(broker)
        await durable(later, lambda: None)
        found.append(records)

    async with started(store) as broker:
        await push(broker, "before")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(waiting, broker)
            await full_for_a_while(store, lambda: push(broker, "refused", partition="another"))
            assert found == []
            await push(broker, "good")
        assert found == [["good"]]


async def test_a_pop_that_waits_sits_out_the_refusal_of_its_own_claim(autojump_clock: MockClock) -> None:
    """It found something at once: it gets that when there is room, and within its wait nothing else is said. One whose
    wait ends meanwhile has found nothing; one that does not wait is refused."""
    store = MemoryStore(retain=True)
    found: dict[float, tuple[list[str], float]] = {}

    async def waiting(broker: Broker, wait: float) -> None:
        found[wait] = txns(await pop(broker, wait=wait)), trio.current_time()

    async with started(store) as broker:
        await push(broker, "m")
        store.faults.full, start = True, trio.current_time()
        await refused(pop(broker))
        store.faults.full = False
        await trio.sleep(ROOM)
        async with trio.open_nursery() as nursery:
            store.faults.full, start = True, trio.current_time()
            nursery.start_soon(waiting, broker, 1)
            nursery.start_soon(waiting, broker, 60)
            await trio.sleep(ROOM)
            assert found == {1: ([], start + 1)}
            store.faults.full = False
        assert found[60][0] == ["m"]
        assert found[60][1] < start + 2 * ROOM
        assert len(broker._pops.ready.waiters) == 0


async def test_who_is_granted_by_a_refused_release_stands_in_line_again(autojump_clock: MockClock) -> None:
    """At the place of before: those who came behind, while the disk was full too, are granted after them."""
    store = MemoryStore(retain=True)
    order: list[str] = []

    async def waiting(broker: Broker, owner: str) -> None:
        result = await broker.acquire(Acquire("l", 60 * SECOND, owner), 50 * SECOND)
        assert result.ok
        order.append(owner)
        await broker.locks([Release("l", result.token, result.slot)])

    async with started(store) as broker:
        (held,) = await broker.locks([Acquire("l", 600 * SECOND, "other")])
        release = Release("l", held.token, held.slot)
        async with trio.open_nursery() as nursery:
            for owner in ("first", "second"):
                nursery.start_soon(waiting, broker, owner)
                await trio.sleep(0.1)
            store.faults.full = True
            await refused(broker.locks([release]))
            await trio.sleep(1)
            nursery.start_soon(waiting, broker, "third")
            await trio.sleep(ROOM)
            store.faults.full = False
            await trio.sleep(ROOM)
            assert order == []
            await broker.locks([release])
        assert order == ["first", "second", "third"]


async def test_many_who_are_granted_in_vain_go_back_into_the_line_together(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where those of a long line stand is looked at once for all who come back, not once for each; and they are served
    in their order, before those who have waited on."""
    looks = 0
    place = vars(locks._Waiter)["number"]

    def look(waiter: Any) -> int:
        nonlocal looks
        looks += 1
        number: int = place.__get__(waiter)
        return number

    counted = type("Waiter", (locks._Waiter,), {"number": property(look, place.__set__)})
    many = 40
    store = SlowlyRefusing(retain=True)
    order: list[str] = []

    async def waiting(broker: Broker, owner: str) -> None:
        assert (await broker.acquire(Acquire("l", 600 * SECOND, owner, many), 50 * SECOND)).ok
        order.append(owner)

    async with started(store) as broker:
        held = [(await broker.locks([Acquire("l", 600 * SECOND, f"h{n}", many)]))[0] for n in range(many)]
        monkeypatch.setattr(locks, "_Waiter", counted)
        async with trio.open_nursery() as nursery:
            for n in range(2 * many):
                nursery.start_soon(waiting, broker, f"w{n:02}")
                await trio.sleep(0.01)
            looks = 0
            store.faults.full = True
            for each in held:
                nursery.start_soon(refused, broker.locks([Release("l", each.token, each.slot)]))
            await trio.sleep(ROOM)
            assert len(broker._locks._lines["l"]) == 2 * many
            store.faults.full = False
            await trio.sleep(ROOM)
            assert order == []
            assert looks < 10 * many
            for each in held:
                await broker.locks([Release("l", each.token, each.slot)])
            await trio.sleep(1)
            assert order == [f"w{n:02}" for n in range(many)]
            nursery.cancel_scope.cancel()


async def test_an_acquire_whose_wait_is_over_at_the_refusal_is_refused(autojump_clock: MockClock) -> None:
    """It has nothing left to wait; and who is granted at once is refused as any write is."""
    store = MemoryStore(retain=True)
    async with started(store) as broker:
        await push(broker, "m")
        store.faults.full = True
        await refused(broker.acquire(Acquire("l", 60 * SECOND, "me"), 50 * SECOND))
        store.faults.full = False
        await trio.sleep(ROOM)
        assert (await broker.acquire(Acquire("l", 60 * SECOND, "you"), 0)).ok


async def test_a_watch_tells_what_became_of_a_refused_write(autojump_clock: MockClock) -> None:
    """`next` is not refused with it: it begins again with the rows that there are. A `get` in the commit of a refused
    `put` looks again."""
    store = MemoryStore(retain=True)
    async with started(store) as broker:
        await broker.kv([Put("ns", "k", b"1", None)])
        watch = broker.watch(WatchTerms("ns", "k"))
        await watch.open()
        found: list[Any] = []

        async def waiting(wait: Callable[[], Awaitable[Any]]) -> None:
            found.append(await wait())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(waiting, watch.next)
            await trio.sleep(1)
            store.faults.full = True
            nursery.start_soon(refused, broker.kv([Put("ns", "k", b"2", None)]))
            await trio.lowlevel.checkpoint()
            nursery.start_soon(waiting, lambda: broker.kv([Get("ns", "k")]))
            await trio.sleep(ROOM)
        (got,), (news,) = sorted(found, key=lambda one: hasattr(one[0], "rows"))
        assert got.row.value == b"1"
        assert [row.row.value for row in news.rows] == [b"1"]


async def test_a_watch_that_could_not_be_opened_is_not_there(autojump_clock: MockClock) -> None:
    """What it saw was refused, and reading the state again takes longer than anybody waits for it: it is told so, and
    what changes from then on is noted for nobody."""
    store = SlowlyRefusing(retain=True, reading=40)
    async with started(store) as broker:
        await broker.kv([Put("ns", "k", b"1", None)])
        store.faults.full = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(refused, broker.kv([Put("ns", "k", b"2", None)]))
            await trio.sleep(0.5)
            with pytest.raises(Unavailable):
                await broker.watch(WatchTerms("ns", "k")).open()
            assert len(broker._watches) == 0
        store.faults.full = False
        await trio.sleep(60)


async def test_a_client_in_the_process_goes_on_after_a_full_disk(autojump_clock: MockClock) -> None:
    """Its subscription and its watch, as those over a socket do."""
    log = MemoryLog()
    got: list[str] = []

    async def consume(queen: Queen) -> None:
        async with queen.queue("q").subscribe(group="g", subscription_mode="all") as messages:
            async for message in messages:
                got.append(message.data)
                await message.ack()

    async def look(queen: Queen) -> None:
        async with queen.kv.watch("ns", key="k") as changes:
            while True:
                got.append((await anext(changes)).op)

    async with memory_broker(log) as queen, trio.open_nursery() as nursery:
        queue = queen.queue("q")
        await queue.push("before")
        nursery.start_soon(consume, queen)
        nursery.start_soon(look, queen)
        await trio.sleep(1)
        log.faults.full = True
        nursery.start_soon(refused, queue.push("refused"))
        await refused(queen.kv.put("ns", "k", 1, forever=True))
        await trio.sleep(ROOM)
        log.faults.full = False
        await trio.sleep(ROOM)
        got.clear()
        await queue.push("good")
        await queen.kv.put("ns", "k", 2, forever=True)
        await trio.sleep(1)
        assert sorted(got) == ["good", "put"]
        nursery.cancel_scope.cancel()


async def test_who_is_told_in_anothers_look_that_it_is_over_is_not_looked_for(autojump_clock: MockClock) -> None:
    """A look that ends another one's wait: what was deferred there is told nobody, and its task goes on once."""
    store = MemoryStore(retain=True)
    left: list[str] = []
    async with started(store) as broker:
        store.faults.latency = 1
        scope = trio.CancelScope()

        async def other() -> None:
            later = Deferral()
            deferral.set(later)
            with scope:
                await push(broker, "m")
                await durable(later, lambda: left.append("told"))

        def first() -> bool:
            scope.cancel()
            return False

        broker.look(first)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(other)
        assert scope.cancelled_caught
        assert left == []
        assert not broker.awaited

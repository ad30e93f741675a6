"""What happens by itself: timers fire, keys expire, partitions are packed away (A12, A31, A49, A51, A52, I9, I10)."""

from __future__ import annotations

import random

import pytest
import trio
from broker_kit import SECOND, ack, pop, push, records, schedule, started, txns
from trio.testing import MockClock

from queen_actors.actors.clock import TrioClock
from queen_actors.broker import running
from queen_actors.domain.kv import Get, Put
from queen_actors.domain.partition import PushItem
from queen_actors.domain.timers import Cancel, Schedule
from queen_actors.domain.transaction import RolledBack, Transaction
from queen_actors.storage.memory import Faults, MemoryStore
from queen_actors.testing.state import state_of


async def test_timers_fire_once_and_never_early(autojump_clock: MockClock) -> None:
    """At its due time, under the promised id and transaction id, into its partition; then it is pending no more."""
    async with started() as broker:
        rng = random.Random(3)
        due: dict[str, int] = {}
        for number in range(300):
            delay = int(rng.random() * 20 * SECOND)
            (result,) = await broker.timers([Schedule("q", f"k{number}", b"1", delay, f"t{number}", f"p{number % 7}")])
            assert result.deliver_at is not None
            due[f"t{number}"] = result.deliver_at
        await trio.sleep(30)
        got = [record for _ in range(7) for record in records(await pop(broker, batch=1000))]
        assert {record.txn for record in got} == set(due)
        assert len(got) == 300
        assert all(0 <= record.ts - due[record.txn] < 50_000 for record in got)
        assert await broker.timer_count("q", "") == 0


async def test_timers_of_one_partition_come_in_order_of_their_due_times(autojump_clock: MockClock) -> None:
    """Also when the broker was down over all of them (4.8)."""
    store = MemoryStore(retain=True)
    async with started(store) as broker:
        for number in random.Random(1).sample(range(600), 600):
            await schedule(broker, f"k{number:03}", 100 + number / 100)
    await trio.sleep(1000)
    async with started(store.reopen()) as broker:
        await trio.sleep(1)
        assert txns(await pop(broker, batch=1000)) == [f"k{number:03}" for number in range(600)]


async def test_a51_a_moved_timer_takes_the_last_payload(autojump_clock: MockClock) -> None:
    async with started() as broker:
        for number in range(10):
            await broker.timers([Schedule("q", "k", b"%d" % number, SECOND // 2, f"t{number}")])
            await trio.sleep(0.1)
        assert txns(await pop(broker)) == []
        start = trio.current_time()
        reply = await pop(broker, wait=9)
        assert [record.payload for record in records(reply)] == [b"9"]
        assert trio.current_time() - start >= 0.399
        await trio.sleep(9)
        await ack(broker, reply)
        assert txns(await pop(broker)) == []


async def test_a52_cancel_and_fire_race(autojump_clock: MockClock) -> None:
    """500 timers: what was cancelled is not delivered, and the rest is."""
    async with started() as broker:
        for number in range(500):
            await schedule(broker, f"k{number}", 1 + number / 1000)
        await trio.sleep(0.99)
        cancelled: set[str] = set()
        for number in random.Random(2).sample(range(500), 500):
            (result,) = await broker.timers([Cancel("q", f"k{number}")])
            if result.status == "cancelled":
                cancelled.add(f"k{number}")
            await trio.sleep(0.001)
        await trio.sleep(5)
        delivered = set(txns(await pop(broker, batch=1000)))
        assert delivered | cancelled == {f"k{number}" for number in range(500)}
        assert delivered & cancelled == set()
        assert delivered
        assert cancelled


async def test_a31_timers_share_the_fate_of_their_transaction(autojump_clock: MockClock) -> None:
    async with started() as broker:
        await schedule(broker, "kept", 5)
        lost = (Put("ns", "k", b"1", None, expect=9, required=True),)
        for op in (Schedule("q", "new", b"1", SECOND, "new"), Cancel("q", "kept")):
            assert isinstance(await broker.transaction(Transaction(kv=lost, timers=(op,))), RolledBack)
        assert await broker.timer("q", "new") is None
        await trio.sleep(9)
        assert txns(await pop(broker)) == ["kept"]


async def test_a_timer_whose_message_is_there_already(autojump_clock: MockClock) -> None:
    """4.7: nothing is appended, and the timer is done."""
    async with started() as broker:
        await push(broker, "t")
        await schedule(broker, "k", 1, txn="t")
        await trio.sleep(2)
        assert await broker.timer("q", "k") is None
        assert txns(await pop(broker)) == ["t"]


async def test_many_timers_do_not_keep_others_waiting(autojump_clock: MockClock) -> None:
    """Thousands due at one instant are fired in steps, with a commit and other callers in between."""
    store = MemoryStore(retain=True, faults=Faults(latency=0.01))
    async with started(store) as broker:
        await broker.timers([Schedule("q", f"k{number}", b"1", SECOND, f"t{number}") for number in range(3000)])
        await trio.sleep(1.005)
        start = trio.current_time()
        await push(broker, "m", queue="other")
        assert trio.current_time() - start < 0.05
        await trio.sleep(1)
        assert await broker.timer_count("q", "") == 0


async def test_expired_keys_are_swept(autojump_clock: MockClock) -> None:
    """Never returned after their time, gone from memory soon after, and never swept when they were renewed."""
    async with started() as broker:
        await broker.kv([Put("ns", f"k{number}", b"1", SECOND) for number in range(200)])
        await broker.kv([Put("ns", "renewed", b"1", SECOND)])
        await trio.sleep(0.5)
        await broker.kv([Put("ns", "renewed", b"2", 5 * SECOND), Put("ns", "kept", b"1", None)])
        await trio.sleep(0.6)
        (result,) = await broker.kv([Get("ns", "k7")])  # type: ignore[misc]  # one op: results
        assert getattr(result, "row", 0) is None
        await trio.sleep(0.5)
        assert len(broker._core.directory.namespaces["ns"]) == 2
        await trio.sleep(5)
        assert len(broker._core.directory.namespaces["ns"]) == 1


async def test_agendas_do_not_keep_what_is_over(autojump_clock: MockClock) -> None:
    """Timers far ahead and keys with long lifetimes that come and go leave nothing behind."""
    async with started() as broker:
        for number in range(2000):
            await schedule(broker, f"k{number}", 80 * 86400)
            await broker.timers([Cancel("q", f"k{number}")])
            await broker.kv([Put("ns", f"k{number % 10}", b"1", (3600 if number % 2 else 1800) * SECOND)])
        assert len(broker._timers._agenda) == 0
        assert len(broker._timers._agenda._deadlines._heap) < 200
        assert len(broker._keys._agenda._deadlines._heap) < 200


async def test_windows_of_busy_partitions_are_pruned(autojump_clock: MockClock) -> None:
    """A partition that is never idle forgets what nobody can ask for any more, and stays bounded."""
    store = MemoryStore(retain=True, seal_seconds=30)
    async with started(store, record_cache_bytes=1) as broker:
        for number in range(1500):
            await push(broker, f"m{number}")
            await trio.sleep(10)
        found = broker._core.directory.find("q", "p")
        assert found is not None
        assert len(found.tail) < 10
        assert len(found.txns) == len(found.tail)
        assert len(list(found.index)) < 3600 / 10 + 30


async def test_idle_partitions_are_packed_and_nothing_is_lost(autojump_clock: MockClock) -> None:
    """Also those that were only looked at; what a packed one is asked afterwards is as before."""
    store = MemoryStore(retain=True)
    async with started(store, record_cache_bytes=1) as broker:
        await broker.push([PushItem("q", f"p{place}", b"1", txn="m") for place in range(50)])
        await store.seal()
        before = state_of(broker)
        await trio.sleep(60)
        assert broker.statistics().partitions_active == 0
        await broker.queue_view("q")
        assert broker.statistics().partitions_active == 0
        await broker.seek("nobody", "q", "p3", None)
        assert broker.statistics().partitions_active == 1
        assert await broker.message(7, "m") is not None
        await trio.sleep(60)
        assert broker.statistics().partitions_active == 0
        await broker.delete_group("nobody", "q", metadata=True)
        assert state_of(broker) == before
        (outcome,) = await broker.push([PushItem("q", "p9", b"1", txn="m")])
        assert outcome.status == "duplicate"
        reply = await pop(broker, partitions=50)
        assert len(reply.claims) == 50


async def test_a_pop_holds_no_partition_over_a_wait(autojump_clock: MockClock) -> None:
    """A partition is packed away, and brought back as another object, while a pop reads from it: the claim is made
    on the one that counts."""
    store = MemoryStore(retain=True, faults=Faults(read_latency=5))
    async with started(store) as broker:
        await push(broker, "m", "n")
        await store.seal()
        await broker.passivate()
        async with trio.open_nursery() as nursery:
            replies = []

            async def popping() -> None:
                replies.append(await pop(broker))

            nursery.start_soon(popping)
            await trio.sleep(1)
            await broker.passivate()
            await push(broker, "o")
        assert txns(replies[0]) == ["m", "n"]
        assert await ack(broker, replies[0]) == [True, True]
        assert txns(await pop(broker)) == ["o"]


@pytest.mark.parametrize("wall", [-(10**9), 0, 10], ids=["wall clock set back", "on time", "later"])
async def test_a_lifetime_is_kept_over_a_restart(autojump_clock: MockClock, wall: int) -> None:
    """Expiries are instants in the log; time never goes back at a restart, whatever the wall says (I19's kind)."""
    store = MemoryStore(retain=True)
    async with started(store) as broker:
        await broker.kv([Put("ns", "k", b"1", 1010 * SECOND)])
        await trio.sleep(1000)
        await broker.kv([Put("ns", "other", b"1", None)])
        last = broker.clock.now()
    clock = TrioClock(last + wall * SECOND)
    async with running(store.reopen(), clock=clock) as broker:
        assert broker.clock.now() > last - 10
        (result,) = await broker.kv([Get("ns", "k")])  # type: ignore[misc]  # one op: results
        assert (getattr(result, "row", None) is not None) == (wall <= 0)
        await trio.sleep(11)
        (result,) = await broker.kv([Get("ns", "k")])  # type: ignore[misc]  # one op: results
        assert getattr(result, "row", 0) is None

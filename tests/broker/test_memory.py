"""What is packed away: under pressure together with its messages, and what it forgets while nobody uses it."""

from __future__ import annotations

import random

import pytest
import trio
from broker_kit import ack, configure, pop, push, started
from trio.testing import MockClock

from queen_actors.actors import upkeep
from queen_actors.domain.cursor import Ack, PopRequest
from queen_actors.domain.partition import LIGHT, PushItem, packed_oldest, packed_tail
from queen_actors.storage.memory import MemoryStore
from queen_actors.testing.state import state_of
from queen_actors.values import SECOND


async def test_the_end_of_leases_that_were_given_back_unpacks_nothing(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partitions that were consumed and packed away stay so when the time of their leases is over, but for one whose
    lease was kept: its message is delivered again."""
    monkeypatch.setattr(upkeep, "MOST_ACTIVE", 8)
    async with started(MemoryStore(), record_cache_bytes=1) as broker:
        directory = broker._core.directory
        for number in range(100):
            await push(broker, f"m{number}", partition=f"p{number}")
        for number in range(100):
            reply = await broker.pop(PopRequest("q", batch=1, group="g", subscription_mode="all", lease=20 * SECOND))
            (claim,) = reply.claims
            if number:
                await broker.ack([Ack(claim.records[0].txn, claim.pid, "g", lease_id=reply.lease_id)])
        assert len(directory.active) <= 8 + 2
        begun = trio.current_time()
        reply = await broker.pop(PopRequest("q", batch=1, group="g", wait=60 * SECOND))
        assert 19 < trio.current_time() - begun < 21
        assert [record.txn for claim in reply.claims for record in claim.records] == ["m0"]
        await trio.sleep(1)  # the others' times are over too
        assert len(directory.active) <= 8 + 3
        await push(broker, "more", partition="p50")
        reply = await broker.pop(PopRequest("q", batch=1, group="g"))
        assert [record.txn for claim in reply.claims for record in claim.records] == ["more"]


async def test_more_partitions_than_are_to_be_in_memory(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The least recently used are packed with their messages at once: repeats are recognised, everything is delivered
    in order, seals take the payloads out of the packed ones, and a restart finds the same state."""
    monkeypatch.setattr(upkeep, "MOST_ACTIVE", 8)
    rng, pushed = random.Random(1), dict[str, list[str]]()
    store = MemoryStore(retain=True)
    async with started(store, record_cache_bytes=1) as broker:
        directory = broker._core.directory
        for number in range(1200):
            place = f"p{rng.randrange(60)}"
            txn = f"m{number}"
            if place == "p0":  # more than it may be packed with
                await push(broker, *(f"{txn}.{part}" for part in range(LIGHT)), partition=place)
                pushed.setdefault(place, []).extend(f"{txn}.{part}" for part in range(LIGHT))
            else:
                await push(broker, txn, partition=place)
                pushed.setdefault(place, []).append(txn)
            if rng.random() < 0.2:
                again = rng.choice(pushed[place])
                (outcome,) = await broker.push([PushItem("q", place, b"1", txn=again)])
                assert (outcome.status, outcome.offset) == ("duplicate", pushed[place].index(again))
            if number % 300 == 299:
                await store.seal()
                kept = [packed_tail(packed) for pid in directory.packed if (packed := directory.packed.get(pid))]
                assert kept, "most are packed"
                assert not any(kept), "what is sealed is not kept in memory"
        await push(broker, "last", partition="p1")
        pushed["p1"].append("last")
        assert len(directory.active) <= 8 + 2
        assert len(directory.active) + len(directory.packed) == 60
        before = state_of(broker)
        got: dict[str, list[str]] = {}
        for _ in range(40):
            reply = await pop(broker, batch=1000, partitions=7)
            for claim in reply.claims:
                got.setdefault(claim.partition, []).extend(record.txn for record in claim.records)
            assert all(await ack(broker, reply))
        assert got == pushed
    async with started(store.reopen()) as broker:
        after = state_of(broker)
        assert {pid: place[:6] for pid, place in after["partitions"].items()} == {
            pid: place[:6] for pid, place in before["partitions"].items()
        }
        assert (await pop(broker)).claims == ()


async def test_packed_partitions_forget_in_time(autojump_clock: MockClock) -> None:
    """The index of a partition that nobody uses is over with its window, also when it was packed long before."""
    store = MemoryStore(retain=True)
    async with started(store, record_cache_bytes=1) as broker:
        await configure(broker, "short", dedup_window_seconds=0)
        for queue in ("q", "short"):
            await broker.push([PushItem(queue, f"p{place}", b"1", txn="m") for place in range(1500)])
        await store.seal()
        directory = broker._core.directory

        def remembering(queue: str) -> int:
            pids = directory.queues[queue].partitions.values()
            return sum(packed_oldest(directory.packed.get(pid) or b"") is not None for pid in pids)

        await trio.sleep(60)
        assert len(directory.packed) == 3000
        assert (remembering("q"), remembering("short")) == (1500, 1500)
        await trio.sleep(900)
        assert (remembering("q"), remembering("short")) == (1500, 0)
        (outcome,) = await broker.push([PushItem("q", "p1499", b"1", txn="m")])
        assert outcome.status == "duplicate"
        await trio.sleep(2600 + 100)
        assert remembering("q") == 0
        (outcome,) = await broker.push([PushItem("q", "p1499", b"1", txn="m")])
        assert outcome.status == "queued"

"""What a pop takes: order, fairness, caps, where groups start, segments, limits, conflation (A14, A16, A19, I1, I2)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import trio
from broker_kit import QUEUE_MODE, SECOND, ack, configure, cursor, pop, push, records, started, txns
from trio.testing import MockClock

from queen_actors.domain.cursor import Ack
from queen_actors.domain.partition import PushItem
from queen_actors.errors import Overloaded
from queen_actors.storage.memory import Faults, MemoryStore
from queen_actors.values import iso_zulu


async def test_partitions_take_turns(autojump_clock: MockClock) -> None:
    """One message at a time, nothing leased: no partition is served twice before every other was served once."""
    async with started() as broker:
        for number in range(12):
            await broker.push([PushItem("q", f"p{place}", b"1", txn=f"{place}.{number}") for place in range(5)])
        for _ in range(12):
            served = [(await pop(broker, batch=1, auto_ack=True)).claims[0].partition for _ in range(5)]
            assert sorted(served) == [f"p{place}" for place in range(5)]


@pytest.mark.parametrize("width", [1, 2, 3])
async def test_messages_in_segments_take_their_turn_too(autojump_clock: MockClock, width: int) -> None:
    """A partition whose messages have to be read first is not passed over for as long as others come in."""
    store = MemoryStore(retain=True, faults=Faults(read_latency=0.01))
    async with started(store) as broker:
        await push(broker, "old", partition="sealed")
        await store.seal()
        await broker.passivate()
        for number in range(20):
            await broker.push([PushItem("q", f"hot{place}", b"1", txn=f"{place}.{number}") for place in range(3)])
        seen: list[str] = []
        for _ in range(4):
            seen += txns(await pop(broker, batch=width, partitions=width, auto_ack=True))
        assert "old" in seen


async def test_queues_take_turns_in_discovery(autojump_clock: MockClock) -> None:
    async with started() as broker:
        for place in range(4):
            await push(broker, *map(str, range(40)), queue=f"ns.t.{place}")
        served = Counter(
            [(await pop(broker, None, namespace="ns", batch=1, auto_ack=True)).claims[0].queue for _ in range(40)]
        )
        assert set(served.values()) == {10}


async def test_caps_of_a_pop(autojump_clock: MockClock) -> None:
    """7.2: `batch` is global, over at most `partitions` partitions, one by default; one lease for all."""
    async with started() as broker:
        for place in range(5):
            await push(broker, *map(str, range(100)), partition=f"p{place}")
        reply = await pop(broker, batch=10, partitions=5)
        assert len(records(reply)) == 10
        await broker.release(reply.lease_id)
        reply = await pop(broker, batch=100)
        assert (len(records(reply)), len(reply.claims)) == (100, 1)
        await broker.release(reply.lease_id)
        reply = await pop(broker, batch=250, partitions=5)
        assert [len(claim.records) for claim in reply.claims] == [100, 100, 50]
        assert await broker.release(reply.lease_id) == 3


async def test_a_pop_ends_before_it_is_too_big(autojump_clock: MockClock) -> None:
    """At least one message, and about eight megabytes of payload."""
    async with started() as broker:
        await push(broker, *map(str, range(9)), payload=b'"' + b"x" * (3 << 20) + b'"')
        assert len(records(await pop(broker))) == 2
        await push(broker, "big", partition="big", payload=b'"' + b"x" * (20 << 20) + b'"')
        assert txns(await pop(broker, partition="big")) == ["big"]


async def test_strict_order_per_partition(autojump_clock: MockClock) -> None:
    """Nothing beyond a leased span goes to anyone else of the group; another group has its own cursor."""
    async with started() as broker:
        await push(broker, "a", "b", "c")
        first = await pop(broker, batch=2)
        assert txns(first) == ["a", "b"]
        assert txns(await pop(broker)) == []
        assert txns(await pop(broker, group="g")) == ["a", "b", "c"]
        await ack(broker, first)
        assert txns(await pop(broker)) == ["c"]


async def test_a19_a_failing_head_blocks_its_partition_only(autojump_clock: MockClock) -> None:
    """Retries, then the DLQ; meanwhile the other partition and the other group flow; then the next message comes."""
    async with started() as broker:
        await configure(broker, retry_limit=2)
        await push(broker, "bad", "next", partition="A")
        await push(broker, "x", partition="B")
        for attempt in (1, 2, 3):
            reply = await pop(broker, partition="A", batch=1)
            assert (txns(reply), reply.claims[0].attempt) == (["bad"], attempt)
            if attempt == 1:
                assert txns(await pop(broker, partitions=9)) == ["x"]
                assert txns(await pop(broker, partition="A", group="g2")) == ["bad", "next"]
            await broker.ack([Ack("bad", reply.claims[0].pid, QUEUE_MODE, "failed", reply.lease_id, "boom")])
        assert txns(await pop(broker, partition="A")) == ["next"]
        letters, total = await broker.dead_letters(queue="q")
        assert (total, letters[0].letter.error, letters[0].letter.group) == (1, "boom", QUEUE_MODE)


async def test_a16_a_deleted_group_starts_afresh(autojump_clock: MockClock) -> None:
    async with started() as broker:
        await push(broker, *"abcde")
        held = await pop(broker, group="g")
        deleted = await broker.delete_group("g", None, metadata=True)
        assert (deleted.partitions, deleted.registrations, deleted.queues) == (1, 1, ("q",))
        assert await ack(broker, held) == [False] * 5
        assert txns(await pop(broker, group="g", subscription_mode="all")) == list("abcde")
        assert (await broker.delete_group("nobody", None, metadata=True)).queues == ()


async def test_a_deleted_queue_is_gone_for_whoever_held_it(autojump_clock: MockClock) -> None:
    """A17: late acks are refused item by item; the name begins again, with other partitions."""
    async with started() as broker:
        await push(broker, *"abc")
        held = await pop(broker, group="g")
        assert await broker.delete_queue("q")
        assert not await broker.delete_queue("q")
        outcomes = await broker.ack([Ack("a", held.claims[0].pid, "g", lease_id=held.lease_id)])
        assert outcomes[0].error == f"no partition {held.claims[0].pid}"
        assert (await broker.extend(held.lease_id, 9)).renewed == 0
        assert txns(await pop(broker, group="g")) == []
        await push(broker, "a")
        fresh = await pop(broker, group="g")
        assert (txns(fresh), records(fresh)[0].offset) == (["a"], 0)
        assert fresh.claims[0].pid > held.claims[0].pid


@pytest.mark.parametrize("sealed", [False, True])
async def test_where_groups_start(autojump_clock: MockClock, sealed: bool) -> None:
    """7.6: all, new, timestamp; over messages in memory and in segments that have left the index."""
    store = MemoryStore(retain=True)
    async with started(store) as broker:
        await configure(broker, dedup_window_seconds=0)
        for number in range(4):
            await push(broker, f"m{number}", f"n{number}")
            await trio.sleep(1000)
        middle = iso_zulu(broker.clock.now() - 2500 * SECOND)
        if sealed:
            await store.seal()
            await broker.passivate()
            await trio.sleep(1)
            await broker.passivate()
        assert txns(await pop(broker, group="all")) == [f"{w}{n}" for n in range(4) for w in "mn"]
        assert txns(await pop(broker, group="new", subscription_mode="new")) == []
        assert txns(await pop(broker, group="ts", subscription_from=middle)) == ["m2", "n2", "m3", "n3"]
        assert txns(await pop(broker, group="pinned", partition="p", subscription_from=middle)) == [
            "m2",
            "n2",
            "m3",
            "n3",
        ]
        await push(broker, "after", partition="later")
        assert txns(await pop(broker, group="new")) == ["after"]
        await push(broker, "after too")
        assert txns(await pop(broker, group="new")) == ["after too"]


async def test_a_registration_holds_until_the_group_is_deleted(autojump_clock: MockClock) -> None:
    async with started() as broker:
        await push(broker, "old")
        assert txns(await pop(broker, group="g", subscription_mode="new")) == []
        assert txns(await pop(broker, group="g", subscription_mode="all")) == []
        await broker.delete_group("g", "q", metadata=True)
        assert txns(await pop(broker, group="g", subscription_mode="all")) == ["old"]


async def test_a_pinned_pop_creates_nothing(autojump_clock: MockClock) -> None:
    """7.4: neither queue nor partition; a wildcard pop creates the queue and registers the group."""
    async with started() as broker:
        assert txns(await pop(broker, "nope", partition="p", group="g")) == []
        assert await broker.queue_view("nope") is None
        assert txns(await pop(broker, "a.b.c", group="g")) == []
        view = await broker.queue_view("a.b.c")
        assert view is not None
        assert (view.namespace, view.task, view.options.lease_seconds) == ("a", "b", 60)


async def test_messages_from_segments_and_memory(autojump_clock: MockClock) -> None:
    """A backlog that is half sealed and out of memory: everything comes once, in order, and is acked by its id."""
    store = MemoryStore(retain=True, faults=Faults(read_latency=0.01))
    async with started(store) as broker:
        await configure(broker, dedup_window_seconds=0)
        for number in range(30):
            await push(broker, f"m{number}")
        await store.seal()
        await broker.passivate()
        await trio.sleep(4000)
        await broker.passivate()
        for number in range(30, 40):
            await push(broker, f"m{number}")
        got: list[str] = []
        while len(got) < 40:
            reply = await pop(broker, batch=7)
            got += txns(reply)
            for record in records(reply):  # one by one
                acked = await broker.ack([Ack(record.txn, reply.claims[0].pid, QUEUE_MODE, lease_id=reply.lease_id)])
                assert acked[0].success
        assert got == [f"m{number}" for number in range(40)]


async def test_sealed_messages_are_dead_lettered_with_their_payload(autojump_clock: MockClock) -> None:
    """A05: the letter keeps payload and error, also of a batch that has left memory."""
    store = MemoryStore(retain=True)
    async with started(store) as broker:
        await configure(broker, retry_limit=0, dedup_window_seconds=0)
        await push(broker, *map(str, range(50)), payload=b'{"x":1}')
        await store.seal()
        await broker.passivate()
        await trio.sleep(4000)
        await broker.passivate()
        reply = await pop(broker)
        assert await ack(broker, reply, "failed") == [True] * 50
        letters, total = await broker.dead_letters(queue="q", limit=100)
        assert total == 50
        assert {letter.letter.record.payload for letter in letters} == {b'{"x":1}'}


async def test_retention_below_a_lease(autojump_clock: MockClock) -> None:
    """21: what is gone is skipped; acks of it do not hang, nor do they fail the rest."""
    store = MemoryStore(retain=True)
    async with started(store) as broker:
        await configure(broker, retry_limit=0, retention_enabled=True, retention_seconds=100, dedup_window_seconds=0)
        await push(broker, "a", "b")
        await trio.sleep(50)
        await push(broker, "c")
        reply = await pop(broker, lease=4000 * SECOND)
        assert txns(reply) == ["a", "b", "c"]
        await store.seal()
        await broker.passivate()
        await trio.sleep(70)
        with trio.fail_after(5):
            outcomes = await ack(broker, reply, "failed")
        assert outcomes[2] is True
        assert txns(await pop(broker)) == []
        await push(broker, "d")
        assert txns(await pop(broker)) == ["d"]


async def test_the_delivery_limit_over_a_backlog(autojump_clock: MockClock) -> None:
    """A whole queue of messages that kill their worker ends in the DLQ, one head after the other."""
    async with started() as broker:
        await configure(broker, delivery_limit=2, lease_seconds=1)
        await push(broker, *"abc")
        attempts: list[tuple[str, int]] = []
        while True:
            reply = await pop(broker, batch=1, wait=5)
            if not reply.claims:
                break
            attempts.append((txns(reply)[0], reply.claims[0].attempt))
        assert attempts == [(name, attempt) for name in "abc" for attempt in (1, 2)]
        _, total = await broker.dead_letters(queue="q")
        assert total == 3


async def test_conflation(autojump_clock: MockClock) -> None:
    """7.7: the newest of each partition, the span leased and committed with it, wide by default; the stored group
    decides, and says so."""
    async with started() as broker:
        for place in range(3):
            await push(broker, "a", "b", "c", partition=f"p{place}")
        reply = await pop(broker, group="g", conflation=True)
        assert (txns(reply), reply.conflation, reply.conflict) == (["c", "c", "c"], True, False)
        assert await ack(broker, reply) == [True] * 3
        empty = await pop(broker, group="g", conflation=True)
        assert (empty.claims, empty.conflation, empty.lease_id) == ((), True, "")
        await pop(broker, group="plain")
        other = await pop(broker, group="plain", conflation=True)
        assert (other.conflation, other.conflict) == (False, True)


async def test_a_conflated_backlog_in_segments(autojump_clock: MockClock) -> None:
    """Of a long span only its newest message is read, delivered, and known to its ack."""
    store = MemoryStore(retain=True)
    async with started(store) as broker:
        await configure(broker, dedup_window_seconds=0)
        await push(broker, *map(str, range(300)), payload=b'"' + b"x" * 100_000 + b'"')
        await store.seal()
        await broker.passivate()
        await trio.sleep(4000)
        await broker.passivate()
        reply = await pop(broker, group="g", conflation=True)
        assert txns(reply) == ["299"]
        assert await ack(broker, reply) == [True]
        found = cursor(broker, "g")
        assert found is not None
        assert found.committed == 299


async def test_a_delay_hides_the_young(autojump_clock: MockClock) -> None:
    """A batch ends at the first message that is not due; a conflating group gets the newest that is."""
    async with started() as broker:
        await configure(broker, delayed_processing_seconds=10)
        await push(broker, "a", "b")
        await trio.sleep(6)
        await push(broker, "c")
        await trio.sleep(5)
        assert txns(await pop(broker)) == ["a", "b"]
        assert txns(await pop(broker, group="g", conflation=True)) == ["b"]


async def test_too_many_parked_pops_are_refused(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound for each queue, whatever partitions its pops name: 429, and nobody who waits is harmed."""
    monkeypatch.setattr("queen_actors.actors.queue.PARKED_POPS_PER_QUEUE", 5)
    async with started() as broker, trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(lambda n=number: pop(broker, wait=50, partition=f"p{n}"))
        await trio.sleep(1)
        with pytest.raises(Overloaded):
            await pop(broker, wait=50)
        assert txns(await pop(broker)) == []
        nursery.cancel_scope.cancel()


async def test_names_are_any_text(autojump_clock: MockClock) -> None:
    """Queues, partitions and groups whose names share letters and separators do not meet."""
    names = ["a", "a\x01b", "a/b", "a b", "", "é", "😀", "%00", "a.b.c", "q" * 300]
    async with started() as broker:
        for name in names:
            for partition in ("x", name):
                await push(broker, f"{name}:{partition}", queue=name, partition=partition or "Default")
        for name in names:
            for group in ("g", f"{name}\x01g"):
                reply = await pop(broker, name, group=group, partitions=9)
                assert {txn.split(":")[0] for txn in txns(reply)} == {name}
                assert all(await ack(broker, reply))


async def test_auto_ack_is_durable_before_delivery(autojump_clock: MockClock) -> None:
    """8.5: nothing is leased, and a restart delivers nothing of it again."""
    store = MemoryStore(retain=True)
    async with started(store) as broker:
        await push(broker, "a", "b")
        reply = await pop(broker, auto_ack=True, batch=1)
        assert (txns(reply), reply.lease_id, reply.claims[0].attempt) == (["a"], "", 1)
    async with started(store.reopen()) as broker:
        assert txns(await pop(broker)) == ["b"]


async def test_a05_counts_survive(autojump_clock: MockClock) -> None:
    """Attempts and retries live in the broker: two failures, a restart, and the next one past the limit is dead."""
    store = MemoryStore(retain=True)
    async with started(store) as broker:
        await configure(broker, retry_limit=2)
        await push(broker, "poison", payload=b'{"k":1}')
        for attempt in (1, 2):
            reply = await pop(broker)
            assert reply.claims[0].attempt == attempt
            await ack(broker, reply, "failed")
    async with started(store.reopen()) as broker:
        reply = await pop(broker)
        assert reply.claims[0].attempt == 3
        await broker.ack([Ack("poison", reply.claims[0].pid, QUEUE_MODE, "failed", reply.lease_id, "why")])
        (letter,), _ = await broker.dead_letters()
        assert (letter.letter.record.payload, letter.letter.error) == (b'{"k":1}', "why")


async def test_a26_dedup_is_the_same_after_a_restart(autojump_clock: MockClock) -> None:
    """The original's id and offset, from memory, from a segment, and after a restart of either."""
    store = MemoryStore(retain=True)
    results: list[Any] = []
    for sealed in (False, True, True):
        async with started(store) as broker:
            (outcome,) = await broker.push([PushItem("q", "p", b"1", txn="X")])
            results.append((outcome.message_id, outcome.offset))
            assert outcome.status == ("duplicate" if len(results) > 1 else "queued")
            if sealed:
                await store.seal()
                await broker.passivate()
        store = store.reopen()
    assert len(set(results)) == 1

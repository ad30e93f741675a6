"""Transaction ids that several messages of a lease have: without a dedup window, or repeated after it while a backlog
waits. An ack names a message by its id, and settles the first of them that it can mean (`wire-messaging.md` 8.2)."""

from __future__ import annotations

import pytest
import trio
from broker_kit import SECOND, ack, configure, cursor, pop, push, started, txns

from queen_actors.broker import Broker
from queen_actors.domain.cursor import Ack, PopReply
from queen_actors.domain.partition import PushItem
from queen_actors.domain.streams import Cycle, Cycled, CycleRefused, PositionAck, Register, Registered
from queen_actors.domain.transaction import Committed, Transaction
from queen_actors.storage.memory import MemoryStore

PLACES = {"memory": (0, 0), "index": (0, 4), "straddling": (0, 2), "store": (4, 4)}
"""Where the leased messages are: the first offset that is remembered, and the first with its payload in memory."""


async def prepared(broker: Broker, store: MemoryStore, place: str) -> PopReply:
    """Messages a, b, a, c are leased: all of them in memory, or sealed, as a whole or in part, with the index of their
    ids still in memory or not."""
    await configure(broker, dedup_window_seconds=0)
    await push(broker, "a", "b")
    if place == "straddling":
        await store.seal()
    await push(broker, "a", "c")
    if place in ("index", "store"):
        await store.seal()
        await broker.passivate()
    if place == "store":
        await trio.sleep(2000)
    found = await pop(broker, group="g", lease=30 * SECOND)
    assert txns(found) == ["a", "b", "a", "c"]
    if place == "straddling":
        await broker.passivate()
    partition = broker._core.directory.find("q", "p")
    assert partition is not None
    assert (partition.base, partition.sealed_end) == PLACES[place]
    return found


async def settled(broker: Broker, reply: PopReply, *named: str, status: str = "completed") -> list[bool]:
    acks = [Ack(txn, reply.claims[0].pid, reply.group, status, reply.lease_id) for txn in named]
    return [outcome.success for outcome in await broker.ack(acks)]


async def left(broker: Broker) -> list[str]:
    """What the group has not settled."""
    found: list[str] = []
    while more := txns(await pop(broker, group="g", auto_ack=True)):
        found += more
    return found


def committed(broker: Broker) -> int:
    found = cursor(broker, "g")
    assert found is not None
    return found.committed


@pytest.mark.parametrize("place", PLACES)
async def test_an_ack_skips_no_message_that_has_a_later_ones_id_behind_it(place: str, autojump_clock: object) -> None:
    """One ack of `a` settles the first `a`; when its consumer is gone, everything behind it is delivered again."""
    store = MemoryStore(retain=True)
    async with started(store) as broker:
        leased = await prepared(broker, store, place)
        assert await settled(broker, leased, "a") == [True]
        assert committed(broker) == 0
        await trio.sleep(31)
        assert await left(broker) == ["b", "a", "c"]


@pytest.mark.parametrize("place", PLACES)
async def test_each_ack_of_an_id_settles_one_message(place: str, autojump_clock: object) -> None:
    """One after the other, or in one call: what is settled is all that was named, and the lease ends with the last."""
    store = MemoryStore(retain=True)
    async with started(store) as broker:
        leased = await prepared(broker, store, place)
        for txn, done in (("a", 0), ("b", 1), ("a", 2), ("b", 2)):
            assert await settled(broker, leased, txn) == [True]
            assert committed(broker) == done
        await trio.sleep(31)
        again = await pop(broker, group="g")
        assert txns(again) == ["c"]
        await push(broker, "a", "a")
        assert all(await ack(broker, again))
        last = await pop(broker, group="g")
        assert all(await ack(broker, last))
        assert committed(broker) == 5
        assert all(await ack(broker, last)), "a repeat of what settled the lease"
        assert txns(await pop(broker, group="g")) == []


@pytest.mark.parametrize("place", PLACES)
async def test_a_whole_delivery_with_an_id_twice_is_settled_whole(place: str, autojump_clock: object) -> None:
    """The usual answer of a consumer: every message that it was handed, in one call; in whatever order."""
    store = MemoryStore(retain=True)
    async with started(store) as broker:
        leased = await prepared(broker, store, place)
        assert await settled(broker, leased, "b", "a", "c", "a") == [True] * 4
        after = cursor(broker, "g")
        assert after is not None
        assert (after.committed, after.lease_id) == (3, "")


@pytest.mark.parametrize("place", PLACES)
async def test_the_first_of_two_with_one_id_is_filed(place: str, autojump_clock: object) -> None:
    """A `dlq` takes the message that it means, not a later one that was not even looked at."""
    store = MemoryStore(retain=True)
    async with started(store) as broker:
        leased = await prepared(broker, store, place)
        assert await settled(broker, leased, "a", status="dlq") == [True]
        letters, _ = await broker.dead_letters()
        assert [view.letter.record.offset for view in letters] == [0]
        assert await left(broker) == ["b", "a", "c"]


async def test_a_late_ack_of_what_is_done_succeeds_although_its_id_is_there_again(autojump_clock: object) -> None:
    """At or below the cursor: no fault of its consumer, who did not see the answer; fenced it settles nothing more."""
    async with started() as broker:
        await configure(broker, dedup_window_seconds=0)
        await push(broker, "a", "b")
        leased = await pop(broker, group="g")
        assert all(await ack(broker, leased))
        await push(broker, "x", "a")
        assert all(await ack(broker, leased))
        assert committed(broker) == 1
        await pop(broker, group="g", batch=1)
        outcomes = await broker.ack([Ack("a", leased.claims[0].pid, "g")])
        assert (outcomes[0].success, outcomes[0].noop, committed(broker)) == (True, True, 1)


async def test_a_conflating_group_settles_what_it_was_handed(autojump_clock: object) -> None:
    """Only the newest message was delivered: that is the one that an ack names, though an older one has its id."""
    async with started() as broker:
        await configure(broker, dedup_window_seconds=0)
        await push(broker, "a", "b", "a")
        found = await pop(broker, group="g", conflation=True)
        assert txns(found) == ["a"]
        assert await settled(broker, found, "a") == [True]
        after = cursor(broker, "g")
        assert after is not None
        assert (after.committed, after.lease_id) == (2, "")


async def test_a_transaction_settles_the_first_one_too(autojump_clock: object) -> None:
    """Together with what it pushes."""
    async with started() as broker:
        await configure(broker, dedup_window_seconds=0)
        await push(broker, "a", "b", "a")
        leased = await pop(broker, group="g")
        step = Ack("a", leased.claims[0].pid, "g", "completed", leased.lease_id)
        reply = await broker.transaction(Transaction(steps=(step, PushItem("other", "p", b"1", txn="made"))))
        assert isinstance(reply, Committed)
        assert committed(broker) == 0


async def test_ids_repeated_after_the_window_while_a_backlog_waits(autojump_clock: object) -> None:
    """It takes no window of zero: a consumer that is behind by more than the window finds the same."""
    async with started() as broker:
        await configure(broker, dedup_window_seconds=60)
        await push(broker, "a", "b")
        await trio.sleep(61)
        await push(broker, "a")
        leased = await pop(broker, group="g")
        assert await settled(broker, leased, "a") == [True]
        assert committed(broker) == 0


async def test_a_cycle_that_is_sent_again_settles_nothing_more(autojump_clock: object) -> None:
    """A stream's ack goes by its count, and its id tells a cycle that was applied before from the next one: also where
    a message behind it has that id."""
    async with started() as broker:
        await configure(broker, dedup_window_seconds=0)
        await push(broker, "a", "b", "a", "c")
        query = await broker.streams.register(Register("query", "q", "shape"))
        assert isinstance(query, Registered)
        leased = await pop(broker, group="g")
        pid = leased.claims[0].pid

        async def cycle(txn: str, count: int) -> bool:
            step = Cycle(query.id, pid, "g", (), (), PositionAck(txn, leased.lease_id, "completed", count), False)
            reply = await broker.streams.cycle(step)
            assert isinstance(reply, Cycled | CycleRefused)
            return isinstance(reply, Cycled)

        assert await cycle("a", 1)
        assert not await cycle("a", 1), "the answer was lost: it is sent again"
        assert committed(broker) == 0
        assert await cycle("a", 2)
        assert committed(broker) == 2


@pytest.mark.parametrize("partition", ["", "p"], ids=["queue", "pinned"])
async def test_what_an_unregistered_conflating_group_was_handed_is_known(
    partition: str, autojump_clock: object
) -> None:
    """A pop of one partition registers no group: its lease is of the newest message all the same."""
    async with started() as broker:
        await configure(broker, dedup_window_seconds=0)
        await push(broker, "a", "b", "a")
        pinned = {"partition": partition} if partition else {}
        leased = await pop(broker, group="h", conflation=True, lease=30 * SECOND, **pinned)
        assert await settled(broker, leased, "a", status="dlq") == [True]
        letters, _ = await broker.dead_letters()
        assert [view.letter.record.offset for view in letters] == [2]
        await trio.sleep(31)
        assert txns(await pop(broker, group="h", conflation=True, **pinned)) == []


@pytest.mark.parametrize("place", PLACES)
async def test_a_letter_is_filed_whichever_message_it_comes_to(place: str, autojump_clock: object) -> None:
    """What the other acks of a call settle may make an ack mean a later message of its id: that one is filed then."""
    store = MemoryStore(retain=True)
    async with started(store) as broker:
        leased = await prepared(broker, store, place)
        pid = leased.claims[0].pid
        acks = [Ack("b", pid, "g", "completed", leased.lease_id), Ack("a", pid, "g", "dlq")]
        assert [outcome.dlq for outcome in await broker.ack(acks)] == [False, True]
        letters, _ = await broker.dead_letters()
        assert [view.letter.record.offset for view in letters] == [2]


@pytest.mark.parametrize("place", PLACES)
async def test_of_several_words_for_one_id_the_graver_counts(place: str, autojump_clock: object) -> None:
    """Nothing tells which word is for which message: none that was given up may count as done, and be in no letter."""
    store = MemoryStore(retain=True)
    async with started(store) as broker:
        leased = await prepared(broker, store, place)
        pid = leased.claims[0].pid
        words = (("a", "dlq"), ("b", "completed"), ("a", "completed"), ("c", "completed"))
        await broker.ack([Ack(txn, pid, "g", word, leased.lease_id) for txn, word in words])
        letters, _ = await broker.dead_letters()
        assert sorted(view.letter.record.offset for view in letters) == [0, 2]
        assert committed(broker) == 3


async def test_one_repeated_id_costs_the_others_nothing(autojump_clock: object) -> None:
    """Acks of ids that are there once go their short way; and so do all, when the first of a pair has left memory."""
    store = MemoryStore(retain=True)
    async with started(store) as broker:
        await configure(broker, dedup_window_seconds=0)
        await push(broker, "a", "b", "a", "c")
        partition = broker._core.directory.find("q", "p")
        assert partition is not None
        assert partition.repeats == {"a": [0, 2]}
        assert partition.unique(("b", "c"), 0)
        assert not partition.unique(("b", "a"), 0)
        partition.evict(0)
        assert partition.repeats is None
        assert partition.unique(("b", "a"), 1)
        assert not partition.unique(("b",), 0), "what lies below may have that id, too"

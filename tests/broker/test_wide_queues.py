"""A group's first pops of a queue with many partitions."""

from __future__ import annotations

import pytest
import trio
from broker_kit import QUEUE_MODE, ack, pop, push, started, txns
from trio.testing import MockClock

from queen_actors.actors.pops import LOOKS
from queen_actors.broker import Broker
from queen_actors.domain.cursor import PopReply
from queen_actors.domain.effects import Record
from queen_actors.domain.partition import PushItem
from queen_actors.storage.memory import MemoryStore

VIRTUAL_TIME = True
MANY = 6 * LOOKS


async def furnish(broker: Broker) -> None:
    """One message in each of many partitions, which are packed away then."""
    await broker.push([PushItem("q", f"p{number}", b"1", txn=f"m{number}") for number in range(MANY)])
    directory = broker._core.directory
    directory.passivate(list(directory.active), light=True)
    assert not directory.active
    await trio.sleep(1)


async def test_a_pop_that_finds_nothing_lets_others_run_and_unpacks_nothing(autojump_clock: MockClock) -> None:
    """A group that begins at the end looks at every partition, some at a time; what is pushed meanwhile came after it,
    also into a partition that it has looked at."""
    turns = 0
    async with started(MemoryStore()) as broker:
        await furnish(broker)
        directory = broker._core.directory
        replies: list[PopReply] = []

        async def first() -> None:
            replies.append(await pop(broker, group="late", subscription_mode="new"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(first)
            while "late" not in directory.queues["q"].groups:
                await trio.lowlevel.checkpoint()
            nursery.start_soon(push, broker, "during")
            while not replies:
                turns += 1
                await trio.lowlevel.checkpoint()
        assert turns >= MANY // LOOKS - 2
        assert len(directory.active) <= 1
        found = [*txns(replies[0]), *txns(await pop(broker, group="late"))]
        assert found == ["during"]


@pytest.mark.parametrize("group", ["g", QUEUE_MODE])
async def test_what_lies_in_the_last_partition_is_found(autojump_clock: MockClock, group: str) -> None:
    """Behind many that have been settled by the group, in the first pop after the state was read again."""
    store = MemoryStore(retain=True)
    async with started(store) as broker:
        await furnish(broker)
        while (reply := await pop(broker, group=group, batch=MANY, partitions=MANY)).claims:
            await ack(broker, reply)
        await push(broker, "last", partition=f"p{MANY - 1}")
    async with started(store.reopen()) as broker:
        assert txns(await pop(broker, group=group)) == ["last"]
        assert txns(await pop(broker, group=group)) == []


async def test_who_is_cancelled_while_he_looks_leaves_the_rest_to_the_next(autojump_clock: MockClock) -> None:
    """A parked pop was woken to look everywhere, and goes before it has: the next in line does, and finds what there
    is."""
    found: list[tuple[str, list[str]]] = []
    scopes = {"going": trio.CancelScope(), "staying": trio.CancelScope()}

    async def waiting(broker: Broker, name: str) -> None:
        with scopes[name]:
            found.append((name, txns(await pop(broker, group="g", subscription_mode="new", wait=60))))

    async with started(MemoryStore()) as broker:
        await furnish(broker)
        before = broker.clock.now()
        await push(broker, "last", partition=f"p{MANY - 1}")
        await trio.sleep(1)
        async with trio.open_nursery() as nursery:
            for name in scopes:
                nursery.start_soon(waiting, broker, name)
                await trio.sleep(1)
            index = broker._pops.ready._indexes["q"]["g"]
            assert index.unseen == 0
            nursery.start_soon(broker.move_subscription, "g", before)
            while not 0 < index.unseen < MANY:
                await trio.lowlevel.checkpoint()
            scopes["going"].cancel()
        assert found == [("staying", ["last"])]
        assert trio.current_time() < 10


async def test_a_first_pop_reads_no_more_than_it_takes(autojump_clock: MockClock) -> None:
    """Of a sealed queue of which nothing is in memory: what was read for it is looked at before what nobody has looked
    at yet. Each message comes once."""
    store = MemoryStore(retain=True)
    async with started(store, record_cache_bytes=0) as broker:
        sent = [f"m{number}" for number in range(20)]
        await broker.push([PushItem("q", f"p{place % 10}", b"1", txn=txn) for place, txn in enumerate(sent)])
        await store.seal()
        reads, read = 0, store.read

        async def counted(pid: int, first: int, last: int, max_bytes: int) -> list[Record]:
            nonlocal reads
            reads += 1
            return await read(pid, first, last, max_bytes)

        store.read = counted  # type: ignore[method-assign]
        found: list[str] = []
        for pops in range(1, 11):
            reply = await pop(broker, group="g", batch=2)
            assert len(txns(reply)) == 2
            assert reads <= pops
            found += txns(reply)
        assert sorted(found) == sorted(sent)

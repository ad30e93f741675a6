"""Several pops of one subscriber, decided in one go (`Broker.pops`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest
import trio
import trio.testing
from broker_kit import SECOND, ack, configure, pop, push, started, txns
from trio.testing import MockClock

from queen_actors import limits
from queen_actors.broker import Broker
from queen_actors.domain.cursor import PopReply, PopRequest
from queen_actors.domain.partition import PushItem
from queen_actors.errors import StorageFull
from queen_actors.storage.memory import Faults, MemoryStore

VIRTUAL_TIME = True


async def pops(broker: Broker, messages: int, *, batch: int = 2, wait: float = 0, **fields: object) -> list[PopReply]:
    """`wait` in seconds."""
    return await broker.pops(PopRequest("q", batch=batch, wait=int(wait * SECOND), **fields), messages)  # type: ignore[arg-type]


def found(replies: Sequence[PopReply]) -> list[list[str]]:
    """What each has, whichever partition came first."""
    return sorted(txns(reply) for reply in replies)


async def spread(broker: Broker, partitions: int, each: int) -> None:
    for number in range(partitions):
        await push(broker, *[f"{number}.{place}" for place in range(each)], partition=f"p{number}")


async def test_what_is_ready_is_claimed_in_one_commit(autojump_clock: MockClock) -> None:
    """Each has a lease of its own, and as much as one pop may have."""
    async with started(MemoryStore(retain=True, faults=Faults(latency=1.0))) as broker:
        await spread(broker, 3, 3)
        before = trio.current_time()
        replies = await pops(broker, 100)
        assert trio.current_time() - before == 1.0
        assert found(replies) == [["0.0", "0.1"], ["1.0", "1.1"], ["2.0", "2.1"]]
        assert len({reply.lease_id for reply in replies}) == 3
        for reply in replies:
            assert all(await ack(broker, reply))
        assert found(await pops(broker, 100)) == [["0.2"], ["1.2"], ["2.2"]]
        assert broker.counts.messages_delivered == 9


@pytest.mark.parametrize(("messages", "expected"), [(1, [1]), (2, [2]), (3, [2, 1]), (5, [2, 2, 1]), (6, [2, 2, 2])])
async def test_never_more_than_asked_for(autojump_clock: MockClock, messages: int, expected: list[int]) -> None:
    """The last pop has what is left of the number."""
    async with started() as broker:
        await spread(broker, 4, 2)
        assert [len(txns(reply)) for reply in await pops(broker, messages)] == expected


async def test_auto_ack_delivers_a_partition_on(autojump_clock: MockClock) -> None:
    """Nothing is leased, so one partition may come more than once; nothing comes twice."""
    async with started() as broker:
        await spread(broker, 1, 5)
        first, second = await pops(broker, 4, auto_ack=True)
        assert (txns(first), txns(second)) == (["0.0", "0.1"], ["0.2", "0.3"])
        assert found(await pops(broker, 4, auto_ack=True)) == [["0.4"]]


async def test_only_the_first_is_waited_for(autojump_clock: MockClock) -> None:
    """What there is by then comes with it."""
    async with started() as broker, trio.open_nursery() as nursery:
        nursery.start_soon(partial(push, broker, "a", "b", "c", partition="late"))
        assert found(await pops(broker, 10, wait=9)) == [["a", "b"]]
        assert trio.current_time() < 1
        assert found(await pops(broker, 10, wait=2)) == [[]]
        assert trio.current_time() == pytest.approx(2, abs=0.1)


async def test_payloads_are_bounded_together(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """When they have so much no other follows; the next call has the rest."""
    monkeypatch.setattr(limits, "POPS_AT_ONCE_BYTES", 250)
    async with started() as broker:
        for number in range(4):
            await push(broker, f"m{number}", partition=f"p{number}", payload=b'"%s"' % (b"x" * 98))
        assert [len(txns(reply)) for reply in await pops(broker, 10)] == [1, 1, 1]
        assert [len(txns(reply)) for reply in await pops(broker, 10)] == [1]


async def test_who_waits_for_the_same_gets_its_share(autojump_clock: MockClock) -> None:
    """One that is woken does not take what the next in line could have."""
    async with started() as broker, trio.open_nursery() as nursery:
        got: list[list[list[str]]] = []

        async def subscriber() -> None:
            got.append(found(await pops(broker, 100, wait=9)))

        for _ in range(3):
            nursery.start_soon(subscriber)
        await trio.testing.wait_all_tasks_blocked()
        await broker.push([item for number in range(3) for item in _two(number)])
    assert sorted(got) == [[["0.0", "0.1"]], [["1.0", "1.1"]], [["2.0", "2.1"]]]


def _two(number: int) -> list[PushItem]:
    return [PushItem("q", f"p{number}", b"1", txn=f"{number}.{place}") for place in range(2)]


async def test_who_is_cancelled_holds_nothing(autojump_clock: MockClock) -> None:
    """No lease of them is left, and no attempt is counted."""
    store = MemoryStore(retain=True)
    async with started(store) as broker:
        await spread(broker, 3, 2)
        store.faults.latency = 1.0
        with trio.move_on_after(0.5) as scope:
            await pops(broker, 100)
        assert scope.cancelled_caught
        assert broker.statistics().leases == 0
        again = await pops(broker, 100)
        assert found(again) == [["0.0", "0.1"], ["1.0", "1.1"], ["2.0", "2.1"]]
        assert {claim.attempt for reply in again for claim in reply.claims} == {1}


async def test_a_full_disk_refuses_all_of_them(autojump_clock: MockClock) -> None:
    """Nothing is leased, and nothing is lost, when there is room again."""
    store = MemoryStore(retain=True)
    async with started(store) as broker:
        await spread(broker, 3, 2)
        store.faults.full = True
        with pytest.raises(StorageFull):
            await pops(broker, 100)
        store.faults.full = False
        await trio.sleep(2)
        assert broker.statistics().leases == 0
        assert len(found(await pops(broker, 100))) == 3


async def test_a_batch_that_is_to_be_fuller_is_not_claimed_along(autojump_clock: MockClock) -> None:
    """`minPopWaitTime`: what is behind a full batch waits for its own time."""
    async with started() as broker:
        await configure(broker, min_pop_wait_ms=1500)
        await push(broker, "a", "b", partition="p0")
        await push(broker, "c", partition="p1")
        assert found(await pops(broker, 100, wait=9)) == [["a", "b"]]
        assert broker.statistics().leases == 1
        assert found(await pops(broker, 100, wait=9)) == [["c"]]
        assert trio.current_time() == pytest.approx(1.5, abs=0.1)


async def test_what_lies_on_the_disk_is_read_for_the_next_call(autojump_clock: MockClock) -> None:
    """What is in memory does not wait for it, and in the end all comes, each message once."""
    store = MemoryStore(retain=True, faults=Faults(read_latency=0.01))
    async with started(store) as broker:
        await spread(broker, 3, 2)
        await store.seal()
        await broker.passivate()
        await push(broker, "new", partition="in memory")
        seen: list[str] = []
        while len(seen) < 7:
            replies = await pops(broker, 100, wait=1)
            seen += [txn for reply in replies for txn in txns(reply)]
        assert sorted(seen) == [*[f"{number}.{place}" for number in range(3) for place in range(2)], "new"]


async def test_a_pop_beside_them_finds_the_rest(autojump_clock: MockClock) -> None:
    """Leases are those of every consumer of the group."""
    async with started() as broker:
        await spread(broker, 3, 2)
        assert len(await pops(broker, 4)) == 2
        assert len(txns(await pop(broker, batch=10))) == 2
        assert txns(await pop(broker, batch=10)) == []

"""What is gone stays gone, although somebody waits for it, looks at it, or was about to be told of it."""

from __future__ import annotations

import pytest
import trio
from broker_kit import SECOND, ack, during, pop, push, started, txns

from queen_actors.domain.cursor import LeaseEnd, PopRequest
from queen_actors.errors import StorageFull
from queen_actors.ports import Recovery
from queen_actors.storage.memory import MemoryStore

FOREVER = 1000 * SECOND


async def test_a_pop_that_waits_brings_no_deleted_queue_back(autojump_clock: object) -> None:
    """Neither when its wait is over nor when it is woken; the next call makes the queue again, as a first one does."""
    async with started() as broker:
        found = await during(lambda: pop(broker, "gone", wait=10), lambda: broker.delete_queue("gone"))
        assert found.claims == ()
        assert trio.current_time() >= 10
        assert await broker.queue_view("gone") is None
        await pop(broker, "gone")
        assert await broker.queue_view("gone") is not None


async def test_a_pop_that_waits_finds_what_comes_into_a_queue_made_anew(autojump_clock: object) -> None:
    """It waits for the name: what is pushed under it after the deletion is its to take."""
    async with started() as broker:

        async def anew() -> None:
            await broker.delete_queue("q")
            await trio.sleep(1)
            await push(broker, "m")

        assert txns(await during(lambda: pop(broker, "q", wait=10), anew)) == ["m"]
        assert trio.current_time() < 10


async def test_who_is_gone_claims_nothing(autojump_clock: object) -> None:
    """A connection was closed while it waited for messages: they go to the next in line, at once."""
    async with started() as broker:
        ends: list[LeaseEnd] = []
        session = broker.open_session(ends.append)
        replies: list[tuple[str, list[str]]] = []

        async def wait(name: str, request: PopRequest) -> None:
            replies.append((name, txns(await broker.pop(request))))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, "gone", PopRequest(queue="q", group="g", wait=FOREVER, session=session))
            await trio.sleep(1)
            nursery.start_soon(wait, "next", PopRequest(queue="q", group="g", wait=FOREVER))
            await trio.sleep(1)
            await broker.close_session(session)
            await push(broker, "m")
        assert sorted(replies) == [("gone", []), ("next", ["m"])]
        assert trio.current_time() < 3
        assert ends == []


async def test_a_lease_that_is_withdrawn_while_the_state_is_read_again_is_given_back(autojump_clock: object) -> None:
    """Its messages could not be handed over just when the directory was empty, because the disk had refused somebody
    else's write: they are free as soon as there is room, not when the lease is over, and this was no delivery."""
    store = MemoryStore(retain=True)
    async with started(store) as broker:
        await push(broker, "m")
        ends: list[LeaseEnd] = []
        session = broker.open_session(ends.append)
        leased = await pop(broker, lease=600 * SECOND, session=session)
        open_at_once = store.open

        async def slowly(recovery: Recovery) -> object:
            await trio.sleep(1)
            return await open_at_once(recovery)

        store.open = slowly  # type: ignore[method-assign, assignment]
        store.faults.full = True
        with pytest.raises(StorageFull):
            await push(broker, "refused")
        await trio.sleep(0.5)
        assert broker._core.log.reloading
        broker._acks.withdraw(leased.lease_id)
        await trio.sleep(2)
        store.faults.full = False
        found = await pop(broker, wait=10)
        assert txns(found) == ["m"]
        assert found.claims[0].attempt == 1
        assert trio.current_time() < 10
        assert ends == []


async def test_groups_that_read_one_partition_leave_nothing_behind(autojump_clock: object) -> None:
    """Any name may be asked for, of a partition that is there or not: what is kept for one of them goes with its last
    lease, whether the group was deleted, has settled what it had, or never had anything."""
    async with started() as broker:
        await push(broker, "m")
        for number in range(20):
            await pop(broker, partition="nowhere", group=f"none{number}")
            await pop(broker, partition="p", group=f"left{number}")
            await pop(broker, partition="p", group=f"deleted{number}")
            await broker.delete_group(f"deleted{number}", None, metadata=True)
            settled = await pop(broker, partition="p", group=f"settled{number}")
            assert all(await ack(broker, settled))
            assert (await pop(broker, partition="p", group=f"settled{number}")).claims == ()
        await pop(broker, group="registered")
        await trio.sleep(3600)
        assert list(broker._pops.ready._indexes["q"]) == ["registered"]


async def test_a_group_of_one_partition_is_woken_when_its_lease_is_over(autojump_clock: object) -> None:
    """Again and again, although nothing is kept of it in between."""
    async with started() as broker:
        await push(broker, "m")
        for attempt in range(1, 4):
            found = await pop(broker, partition="p", group="g", wait=100, lease=10 * SECOND)
            assert (txns(found), found.claims[0].attempt) == (["m"], attempt)
            assert trio.current_time() < 10 * attempt
        assert all(await ack(broker, found))
        assert txns(await during(lambda: pop(broker, partition="p", group="g", wait=100), lambda: push(broker, "n")))

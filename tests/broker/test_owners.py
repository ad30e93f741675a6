"""An owner is one, by however many calls it asks: what one of them was told that it holds is not taken from it when
another one is cancelled."""

from __future__ import annotations

import pytest
import trio
from broker_kit import SECOND, started

from queen_actors.actors.permits import holding
from queen_actors.broker import Broker
from queen_actors.domain.locks import Acquire, GetLock, LockResult, Release
from queen_actors.errors import StorageFull
from queen_actors.storage.memory import MemoryStore

MINE = Acquire("l", 60 * SECOND, "me")
WAIT = 50 * SECOND


async def holder(broker: Broker) -> str | None:
    (found,) = await broker.locks([GetLock("l")])
    return found.holders[0].owner if found.holders else None


def decided_holder(broker: Broker) -> str | None:
    """Whom the lock was given, durable or not."""
    holders = broker._core.directory.lock("l").holders(broker.clock.now())
    return holders[0].owner if holders else None


async def granted_in_line(broker: Broker, store: MemoryStore, second: bool) -> list[LockResult]:
    """Somebody waits for a lock and is cancelled between its grant and the disk; in between the same owner may have
    asked again, and waited no longer than the disk takes. What the second one was told."""
    (other,) = await broker.locks([Acquire("l", 60 * SECOND, "other")])
    told: list[LockResult] = []
    scope = trio.CancelScope()

    async def first() -> None:
        with scope:
            await broker.acquire(MINE, WAIT)

    async def again() -> None:
        told.append(await broker.acquire(MINE, WAIT))

    store.faults.latency = 1
    async with trio.open_nursery() as nursery:
        nursery.start_soon(first)
        await trio.sleep(0.1)
        if second:
            nursery.start_soon(again)
            await trio.sleep(0.1)
        nursery.start_soon(broker.locks, [Release("l", other.token, other.slot)])
        await trio.sleep(0.5)
        scope.cancel()
    return told


async def test_a_grant_that_nobody_came_for_is_the_same_owners_who_was_told_of_it(autojump_clock: object) -> None:
    """The first was cancelled; the second, told that the owner has it already, keeps it for its whole lifetime."""
    store = MemoryStore(retain=True)
    async with started(store) as broker:
        (told,) = await granted_in_line(broker, store, second=True)
        assert (told.ok, told.already) == (True, True)
        await trio.sleep(50)
        assert await holder(broker) == "me"
        (released,) = await broker.locks([Release("l", told.token, told.slot)])
        assert released.ok


async def test_a_grant_that_nobody_came_for_is_given_back(autojump_clock: object) -> None:
    """The control: nobody else was told of it, and it is free at once."""
    store = MemoryStore(retain=True)
    async with started(store) as broker:
        assert await granted_in_line(broker, store, second=False) == []
        await trio.sleep(3)
        assert await holder(broker) is None


@pytest.mark.parametrize(("granted", "asking"), [(0.5, 0.5), (0.3, 0.5), (0.5, 0.3)])
@pytest.mark.parametrize("in_line", [False, True])
async def test_who_went_before_the_answer_relies_on_nothing(
    autojump_clock: object, granted: float, asking: float, in_line: bool
) -> None:
    """A client waits in line and asks once more when it has been granted, and all of it is cancelled before the disk
    has the grant, in whatever order: the lock is free at once, and not when its lifetime is over."""
    store = MemoryStore(retain=True)
    async with started(store) as broker:
        (other,) = await broker.locks([Acquire("l", 60 * SECOND, "other")])
        store.faults.latency = 1

        async def cancelled(after: float, again: bool) -> None:
            with trio.move_on_after(after) as scope:
                if again and not in_line:
                    await broker.locks([MINE])
                else:
                    await broker.acquire(MINE, WAIT)
            assert scope.cancelled_caught

        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancelled, 0.2 + granted, False)
            await trio.sleep(0.1)
            nursery.start_soon(broker.locks, [Release("l", other.token, other.slot)])
            await trio.sleep(0.1)
            assert decided_holder(broker) == "me"
            nursery.start_soon(cancelled, asking, True)
        await trio.sleep(3)
        assert await holder(broker) is None
        assert broker._locks._assured == {}


async def test_a_permit_that_lives_with_a_connection_ends_with_it(autojump_clock: object) -> None:
    """That is what was asked for, also when the same owner has asked without a connection since; and nothing is kept of
    that."""
    async with started() as broker:
        permits = broker.permits(lambda permit, reason: None)
        holding.set(permits)
        bound = await broker.acquire(MINE, 0, session=True)
        holding.set(None)
        (told,) = await broker.locks([MINE])
        assert (told.already, told.token) == (True, bound.token)
        await permits.close()
        assert await holder(broker) is None
        assert broker._locks._assured == {}


async def test_what_the_disk_refused_assures_nobody(autojump_clock: object) -> None:
    """A grant that was refused is forgotten with what was said of it: the token may come again for another."""
    store = MemoryStore(retain=True)
    async with started(store) as broker:
        store.faults.full = True
        refused: list[StorageFull] = []

        async def ask() -> None:
            with pytest.raises(StorageFull) as error:
                await broker.locks([MINE])
            refused.append(error.value)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            nursery.start_soon(ask)
        assert len(refused) == 2
        store.faults.full = False
        await trio.sleep(5)
        assert await holder(broker) is None
        assert broker._locks._assured == {}

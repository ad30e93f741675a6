"""A grant to who waits in a line, and what the log makes of it."""

from __future__ import annotations

import pytest
import trio
from broker_kit import SECOND, push, started
from trio.testing import MockClock

from queen_actors import limits
from queen_actors.broker import Broker
from queen_actors.domain.locks import Acquire, LockResult
from queen_actors.errors import QueenError, StorageFull, Unavailable
from queen_actors.storage.memory import Faults, MemoryStore

VIRTUAL_TIME = True


async def test_a_grant_is_not_refused_for_what_came_behind_it(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two who wait are granted in one go, and the disk takes the first grant only: the first has its permit, now and
    after a restart, and the second has none, and waits on."""
    monkeypatch.setattr(limits, "GROUP_ENTRIES", 1)
    store = MemoryStore(retain=True, faults=Faults(latency=0.1))
    answers: dict[str, LockResult] = {}

    async def wait(broker: Broker, owner: str) -> None:
        answers[owner] = await broker.acquire(Acquire("l", 900 * SECOND, owner, 2), 60 * SECOND)

    def fill_up(_: int) -> None:
        store.faults.full = b"second" not in store.durable.groups[-1] and b"first" in store.durable.groups[-1]

    def owners(broker: Broker) -> list[str]:
        return [holder.owner for holder in broker._core.directory.lock("l").holders(broker.clock.now())]

    async with started(store) as broker:
        async with trio.open_nursery() as nursery:
            for owner in ("one", "two"):
                nursery.start_soon(broker.locks, [Acquire("l", 5 * SECOND, owner, 2)])
        broker._core.log.on_commit.insert(0, fill_up)
        async with trio.open_nursery() as nursery:
            for owner in ("first", "second"):
                nursery.start_soon(wait, broker, owner)
                await trio.sleep(0.5)
            await trio.sleep(8)
            assert list(answers) == ["first"]
            assert answers["first"].ok
            assert owners(broker) == ["first"]
            async with started(store.reopen()) as again:
                assert owners(again) == ["first"]
            store.faults.full = False
        assert answers["second"].ok
        assert owners(broker) == ["first", "second"]


async def test_who_waits_when_the_broker_stops_is_not_told_of_a_holder_that_is_not_there(
    autojump_clock: MockClock,
) -> None:
    """The permit that it waits for has run out, and a full disk kept it from being granted. When the broker stops, the
    wait ends early: `held` would be wrong, for nobody holds the lock, so it gets 503 and may ask again. Who waits for a
    lock that somebody does hold is told by whom."""
    store = MemoryStore(retain=True)
    answers: dict[str, LockResult | QueenError] = {}

    async def wait(broker: Broker, name: str) -> None:
        try:
            answers[name] = await broker.acquire(Acquire(name, 900 * SECOND, "waiter", 1), 60 * SECOND)
        except QueenError as refusal:
            answers[name] = refusal

    async with trio.open_nursery() as nursery, started(store) as broker:
        await broker.locks([Acquire("free", 5 * SECOND, "before", 1), Acquire("taken", 900 * SECOND, "holder", 1)])
        for name in ("free", "taken"):
            nursery.start_soon(wait, broker, name)
        await trio.sleep(2)
        store.faults.full = True
        with pytest.raises(StorageFull):
            await push(broker, "m")  # from now on the log takes nothing, and no grant either
        await trio.sleep(8)
        assert not answers
        assert not broker._core.directory.lock("free").holders(broker.clock.now())
    ended = answers["free"]
    assert isinstance(ended, Unavailable)
    assert (ended.status, ended.code) == (503, "retry")
    held = answers["taken"]
    assert isinstance(held, LockResult)
    assert (held.reason, [holder.owner for holder in held.holders]) == ("held", ["holder"])

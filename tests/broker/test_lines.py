"""A grant to who waits in a line, and what the log makes of it."""

from __future__ import annotations

import pytest
import trio
from broker_kit import SECOND, started
from trio.testing import MockClock

from queen_actors import limits
from queen_actors.broker import Broker
from queen_actors.domain.locks import Acquire, LockResult
from queen_actors.errors import QueenError, StorageFull
from queen_actors.storage.memory import Faults, MemoryStore

VIRTUAL_TIME = True


async def test_a_grant_is_not_refused_for_what_came_behind_it(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two who wait are granted in one go, and the disk takes the first grant only: the first has its permit, now and
    after a restart, and the second is refused and has none."""
    monkeypatch.setattr(limits, "GROUP_ENTRIES", 1)
    store = MemoryStore(retain=True, faults=Faults(latency=0.1))
    answers: dict[str, LockResult | QueenError] = {}

    async def wait(broker: Broker, owner: str) -> None:
        try:
            answers[owner] = await broker.acquire(Acquire("l", 900 * SECOND, owner, 2), 60 * SECOND)
        except QueenError as refusal:
            answers[owner] = refusal

    def fill_up(_: int) -> None:
        store.faults.full = b"second" not in store.durable.groups[-1] and b"first" in store.durable.groups[-1]

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
            store.faults.full = False
        granted, refused = answers["first"], answers["second"]
        assert isinstance(granted, LockResult)
        assert granted.ok
        assert isinstance(refused, StorageFull)
        await trio.sleep(2)
        assert [holder.owner for holder in broker._core.directory.lock("l").holders(broker.clock.now())] == ["first"]
    async with started(store.reopen()) as broker:
        assert [holder.owner for holder in broker._core.directory.lock("l").holders(broker.clock.now())] == ["first"]

"""Tails, watches and permits that live with a connection, on the broker itself: what they cost, and a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from broker_kit import SECOND, push, started
from trio.testing import MockClock

from queen_actors.actors.permits import Permit, Permits, holding
from queen_actors.broker import Broker, running
from queen_actors.config import Settings
from queen_actors.domain.cursor import Claim
from queen_actors.domain.kv import Put
from queen_actors.domain.locks import Acquire
from queen_actors.domain.partition import PushItem
from queen_actors.domain.subscription import TailTerms
from queen_actors.domain.watch import WatchTerms
from queen_actors.storage import store_of


async def test_a_wake_up_of_a_tail_costs_what_changed(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many partitions the queue has: a push to two of them looks at those two."""
    async with started() as broker:
        await broker.push([PushItem("q", f"p{number}", b"0") for number in range(5000)])
        tail = broker.tail(TailTerms("q"))
        assert len(await tail.open()) == 5000
        directory = broker._core.directory
        looked: list[int] = []
        peek = directory.peek

        def watched(pid: int) -> Any:
            looked.append(pid)
            return peek(pid)

        monkeypatch.setattr(directory, "peek", watched)
        await push(broker, "a", partition="p17")
        await push(broker, "b", partition="p42")
        found = await tail.next()
        assert {one.partition for one in found} == {"p17", "p42"}
        assert len(set(looked)) == 2
        assert tail.statistics().behind == 0
        tail.close()
        assert len(broker._tails) == 0


async def test_a_cancelled_read_of_a_tail_moves_nothing(autojump_clock: MockClock) -> None:
    """Who is cancelled while it waits or reads gets the same messages the next time."""
    async with started() as broker:
        tail = broker.tail(TailTerms("q", start="start"))
        await tail.open()
        with trio.move_on_after(1):
            await tail.next()
        await push(broker, "a", "b")
        with trio.CancelScope() as scope:
            scope.cancel()
            await tail.next()
        assert tail.statistics().behind == 1
        (claim,) = await tail.next()
        assert isinstance(claim, Claim)
        assert [record.txn for record in claim.records] == ["a", "b"]


async def test_a_watch_goes_on_after_a_cancelled_read(autojump_clock: MockClock) -> None:
    """Nothing is missed for it, and nothing told twice."""
    async with started() as broker:
        watch = broker.watch(WatchTerms("n", "k"))
        await watch.open()
        await broker.kv([Put("n", "k", b"1", None)])
        with trio.CancelScope() as scope:
            scope.cancel()
            await watch.next()
        await broker.kv([Put("n", "k", b"2", None)])
        values = [change.value for _ in range(2) for news in await watch.next() for change in news.changes]
        assert values == [b"1", b"2"]


def nothing_lost(permit: Permit, reason: str) -> None:
    raise AssertionError((permit, reason))


async def hold(broker: Broker, ttl: int) -> Permits:
    permits = broker.permits(nothing_lost)
    holding.set(permits)
    assert (await broker.acquire(Acquire("l", ttl, "w"), 0, session=True)).ok
    return permits


async def test_a_permit_that_lived_on_is_the_same_after_a_restart(tmp_path: Path) -> None:
    """The lifetime that began again is in the log, under the same token: in the journal and in a sealed segment."""
    settings = Settings(data=str(tmp_path))
    for sealed in (False, True):
        async with running(store_of(settings), settings) as broker:
            permits = await hold(broker, 60 * SECOND)
            (permit,) = permits._held.values()
            await broker._locks.extend([permit])
            await broker._locks.extend([permit])
            expires, token = permit.expires_at, permit.token
            if sealed:
                await broker.seal()
        async with running(store_of(settings), settings) as broker:
            row = broker._core.directory.lock("l").slots[0]
            assert (row.expires_at, row.version) == (expires, token)
            assert expires is not None
            assert row.updated_at < expires - 59 * SECOND
            await broker._locks.give_back([permit])
            assert len(broker._core.directory.lock("l")) == 0

"""Sweeps of retention that wait for the store, and what happens meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio
from broker_kit import ack, configure, pop, push, started, txns
from trio.testing import MockClock

from queen_actors.broker import Broker
from queen_actors.domain.partition import PushItem
from queen_actors.storage.memory import MemoryStore

AGE = 10_000


class Asked(MemoryStore):
    """A store that lets something happen while it is asked for the first message of an instant."""

    meanwhile: Callable[[int], Awaitable[object]] | None = None

    async def first_offset_at(self, pid: int, ts: int) -> int | None:
        if self.meanwhile is not None:
            await self.meanwhile(pid)
        return await super().first_offset_at(pid, ts)


async def finished(broker: Broker, store: MemoryStore) -> None:
    """Two partitions of which every message was consumed, is sealed, and has left the index of recent ones; the first
    message of each is as old as the limit soon."""
    await configure(
        broker, retention_enabled=True, completed_retention_seconds=AGE, dedup_window_seconds=10, lease_seconds=60
    )
    await broker.push([PushItem("q", place, b"1", txn=f"{place}0") for place in ("a", "b")])
    await trio.sleep(4000)
    for place in ("a", "b"):
        await push(broker, f"{place}1", partition=place)
        assert all(await ack(broker, await pop(broker, partition=place, batch=10, group="g")))
    await store.seal()
    await trio.sleep(5000)


async def test_a_group_that_moves_back_during_a_sweep_keeps_its_messages(autojump_clock: MockClock) -> None:
    """`completedRetentionSeconds` takes what every group has finished when the sweep decides, not when it began
    to look. The group is moved back after the first partition was looked at, while the store is asked of another."""
    store = Asked(retain=True)
    async with started(store, record_cache_bytes=0) as broker:
        await finished(broker, store)
        asked: list[int] = []

        async def meanwhile(pid: int) -> None:
            asked.append(pid)
            if len(asked) == 2:
                assert await broker.seek("g", "q", None, 0) == 2

        store.meanwhile = meanwhile
        await trio.sleep(2000)
        assert len(asked) >= 2
        for place in ("a", "b"):
            assert txns(await pop(broker, partition=place, batch=10, group="g")) == [f"{place}0", f"{place}1"]

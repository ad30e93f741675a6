"""The store in memory: the contract, and its fault switches."""

from __future__ import annotations

from typing import Literal

import pytest
import trio
from contract import StoreContract
from storage_kit import Model, entry, kv

from queen_actors.errors import StorageFailed, StorageFull
from queen_actors.ports import SealedRun, Store
from queen_actors.storage import Faults, MemoryStore


class TestMemoryStore(StoreContract):
    """The contract with retained bytes."""

    @pytest.fixture(autouse=True)
    def _bytes(self) -> None:
        self._store = MemoryStore(retain=True)

    def make(self) -> Store:
        return self._store.reopen()


async def test_without_retain_nothing_is_kept() -> None:
    """In production it counts, keeps no group, and finds nothing at an open."""
    store = MemoryStore()
    await store.open(Model())
    await store.commit([entry(1, kv("a", 1))])
    assert store.statistics().position == 1
    assert store.statistics().journal_bytes == 0
    assert store.durable.groups == []
    await store.close()
    again = store.reopen()
    assert (await again.open(Model())).position == 0


async def test_a_full_disk_refuses_and_lets_go_again() -> None:
    """While `full` is set a commit keeps nothing; afterwards commits go on where they were."""
    faults = Faults()
    store = MemoryStore(retain=True, faults=faults)
    await store.open(Model())
    await store.commit([entry(1, kv("a", 1))])
    faults.full = True
    with pytest.raises(StorageFull):
        await store.commit([entry(2, kv("b", 2))])
    faults.full = False
    await store.commit([entry(3, kv("c", 3))])
    model = Model()
    assert (await store.reopen().open(model)).position == 2
    assert [step.now for step in model.entries] == [1, 3]


@pytest.mark.parametrize(("fate", "kept"), [("kept", 2), ("lost", 1)])
async def test_a_failed_commit_ends_the_store(fate: Literal["kept", "lost"], kept: int) -> None:
    """After a commit of unknown outcome everything is refused; the entries are durable, or not, as was asked for."""
    faults = Faults()
    store = MemoryStore(retain=True, faults=faults)
    await store.open(Model())
    await store.commit([entry(1, kv("a", 1))])
    faults.fail = fate
    with pytest.raises(StorageFailed):
        await store.commit([entry(2, kv("b", 2))])
    for call in (store.commit([entry(3)]), store.read(1, 0, 0, 1), store.seal()):
        with pytest.raises(StorageFailed):
            await call
    assert (await store.reopen().open(Model())).position == kept


async def test_latency_passes_on_the_clock_of_the_run(autojump_clock: trio.testing.MockClock) -> None:
    """A commit takes the latency that is set, in virtual time, also when its scope is cancelled."""
    store = MemoryStore(retain=True, faults=Faults(latency=5.0))
    await store.open(Model())
    began = trio.current_time()
    with trio.move_on_after(1):
        await store.commit([entry(1)])
    assert trio.current_time() - began == 5
    delays = iter([1.0, 2.0])
    store.faults.latency = lambda: next(delays)
    await store.commit([entry(2)])
    await store.commit([entry(3)])
    assert trio.current_time() - began == 8
    assert len(store.durable.groups) == 3


@pytest.mark.parametrize("keep", [False, True])
async def test_a_crash_during_a_commit(autojump_clock: trio.testing.MockClock, keep: bool) -> None:
    """A crash ends the commit under way at once; its group is durable as a whole or not at all."""
    store = MemoryStore(retain=True, faults=Faults(latency=10.0))
    await store.open(Model())

    async def commit() -> None:
        with pytest.raises(StorageFailed):
            await store.commit([entry(1), entry(2)])
        assert trio.current_time() < began + 5

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(commit)
        await trio.sleep(1)
        store.crash(keep=keep)
    with pytest.raises(StorageFailed):
        await store.commit([entry(3)])
    with pytest.raises(StorageFailed):
        await store.open(Model())
    assert (await store.reopen().open(Model())).position == (2 if keep else 0)


async def test_maintain_seals_on_the_clock(autojump_clock: trio.testing.MockClock) -> None:
    """With `seal_seconds` everything retained becomes sealed again and again."""
    from storage_kit import Workload

    store = MemoryStore(retain=True, seal_seconds=10)
    await store.open(Model())
    work = Workload(1)
    told: list[SealedRun] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.maintain, told.extend)
        for _ in range(3):
            await store.commit(work.entries(20))
            await trio.sleep(10.5)
            assert store.statistics().journal_bytes == 0
        nursery.cancel_scope.cancel()
    assert sum(run.last - run.first + 1 for run in told) == sum(map(len, work.model.messages.values()))

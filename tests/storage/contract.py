"""What every store promises, as tests; a subclass says how to make one and how to open the same bytes again."""

from __future__ import annotations

import pytest
import trio
from storage_kit import Model, Workload, assert_same, cursor, entry, kv, queue, record

from queen_actors.domain.effects import Appended, Counters, Entry, KvDropped, PartitionPut, QueueDropped, Record
from queen_actors.errors import StorageFailed
from queen_actors.ports import SealedRun, Store


class StoreContract:
    """Subclasses give `make`, a new store over the same durable bytes at each call."""

    def make(self) -> Store:
        raise NotImplementedError

    async def test_an_empty_store_recovers_nothing(self) -> None:
        """A first open finds no entry, position 0 and counters at 0."""
        store, model = self.make(), Model()
        recovered = await store.open(model)
        assert (recovered.position, recovered.counters, recovered.cut_bytes) == (0, Counters(), 0)
        assert not model.entries
        assert not model.restored
        await store.close()

    async def test_what_was_committed_is_recovered(self) -> None:
        """After a close, an open gives back every entry in order, the counters, the position and the last instant."""
        store = self.make()
        await store.open(Model())
        groups = [
            [entry(10, kv("a", 1), version=1)],
            [entry(20, kv("b", 2), version=2), entry(30, kv("c", 3), version=3)],
        ]
        for group in groups:
            await store.commit(group)
        assert store.statistics().position == 3
        assert store.statistics().groups == 2
        await store.close()
        store, model = self.make(), Model()
        recovered = await store.open(model)
        assert model.entries == [step for group in groups for step in group]
        assert (recovered.position, recovered.last_instant) == (3, 30)
        assert recovered.counters == Counters(3, 1, 1)
        await store.close()

    async def test_positions_go_on_after_an_open(self) -> None:
        """Entries of several lives of the broker are one log."""
        for life in range(1, 4):
            store, model = self.make(), Model()
            assert (await store.open(model)).position == life - 1
            await store.commit([entry(life, kv("k", life), version=life)])
            await store.close()
        store, model = self.make(), Model()
        assert (await store.open(model)).position == 3
        assert model.things == {("kv", ("n", "k")): kv("k", 3)}
        await store.close()

    async def test_a_commit_of_nothing(self) -> None:
        """An empty group changes nothing, and leaves a log that opens."""
        store = self.make()
        await store.open(Model())
        await store.commit([])
        await store.commit([entry(1, kv("a", 1))])
        await store.commit([])
        await store.close()
        store, model = self.make(), Model()
        assert (await store.open(model)).position == 1
        await store.close()

    async def test_a_cancelled_commit_finishes(self) -> None:
        """A commit under way when its scope is cancelled is made durable, and the cancellation is not lost."""
        store = self.make()
        await store.open(Model())
        with trio.CancelScope() as scope:
            scope.cancel()
            await store.commit([entry(1, kv("a", 1))])
            committed = True
            await trio.lowlevel.checkpoint()
        assert scope.cancelled_caught
        assert committed
        await store.close()
        store, model = self.make(), Model()
        assert (await store.open(model)).position == 1
        await store.close()

    async def test_a_closed_store_refuses(self) -> None:
        """After a close, and before an open, everything but a close raises StorageFailed."""
        store = self.make()
        with pytest.raises(StorageFailed):
            await store.commit([entry(1)])
        await store.open(Model())
        await store.close()
        await store.close()
        for call in (
            store.commit([entry(1)]),
            store.read(1, 0, 1, 1),
            store.first_offset_at(1, 0),
            store.find(1, "t"),
            store.size(1, 0, 1),
            store.seal(),
        ):
            with pytest.raises(StorageFailed):
                await call

    async def test_sealed_messages_are_read_in_order(self) -> None:
        """After a seal every message reads as it was written, over the borders of what was sealed together."""
        store = self.make()
        await store.open(Model())
        await store.commit([entry(1, queue(), PartitionPut(1, 1, "p", 1, 0), PartitionPut(2, 1, "o", 1, 0))])
        written = [record(offset, 100 + offset, b'"%d"' % offset) for offset in range(30)]
        for start in range(0, 30, 10):
            for part in (written[start : start + 4], written[start + 4 : start + 10]):
                await store.commit([entry(100 + start, Appended(1, tuple(part)), Appended(2, (record(start),)))])
            await store.seal()
        assert await store.read(1, 0, 29, 1 << 20) == written
        assert await store.read(1, 7, 23, 1 << 20) == written[7:24]
        assert await store.read(1, 28, 99, 1 << 20) == written[28:]
        assert await store.read(3, 0, 29, 1 << 20) == []
        await store.close()

    async def test_a_read_ends_at_its_bytes(self) -> None:
        """A read gives at least one message, and no message more once its bytes are used up."""
        store = self.make()
        await store.open(Model())
        sizes = [100, 100, 100, 5_000, 1]
        records = tuple(record(offset, 5, b"1" * size) for offset, size in enumerate(sizes))
        await store.commit([entry(1, queue(), PartitionPut(1, 1, "p", 1, 0), Appended(1, records))])
        await store.seal()
        assert [r.offset for r in await store.read(1, 0, 9, 0)] == [0]
        assert [r.offset for r in await store.read(1, 0, 9, 250)] == [0, 1]
        assert [r.offset for r in await store.read(1, 0, 9, 300)] == [0, 1, 2]
        assert [r.offset for r in await store.read(1, 3, 9, 10)] == [3]
        assert [r.offset for r in await store.read(1, 0, 9, 6_000)] == [0, 1, 2, 3, 4]
        await store.close()

    async def test_the_first_offset_at_an_instant(self) -> None:
        """The first sealed message at or after an instant, over segments; None behind the last."""
        store = self.make()
        await store.open(Model())
        await store.commit([entry(1, queue(), PartitionPut(1, 1, "p", 1, 0))])
        for offset in range(6):
            await store.commit([entry(offset, Appended(1, (record(offset, 100 * (offset // 2)),)))])
            if offset % 3 == 2:
                await store.seal()
        assert [await store.first_offset_at(1, ts) for ts in (0, 1, 100, 101, 200, 201)] == [0, 2, 2, 4, 4, None]
        assert await store.first_offset_at(2, 0) is None
        await store.close()

    async def test_finding_and_measuring_sealed_messages(self) -> None:
        """A transaction id gives the last offset that has it; the size is of payloads in a range."""
        store = self.make()
        await store.open(Model())
        await store.commit([entry(1, queue(), PartitionPut(1, 1, "p", 1, 0), PartitionPut(2, 1, "o", 1, 0))])
        for offset in range(6):
            message = Record(offset, 5, f"id-{offset}", f"txn-{offset % 4}", b"1" * (offset + 1))
            await store.commit([entry(offset, Appended(1, (message,)))])
            if offset % 3 == 2:
                await store.seal()
        assert [await store.find(1, f"txn-{number}") for number in range(5)] == [4, 5, 2, 3, None]
        assert await store.find(2, "txn-1") is None
        assert [await store.size(1, first, 9) for first in (0, 2, 5, 6)] == [21, 18, 6, 0]
        assert await store.size(1, 1, 3) == 9
        await store.close()

    async def test_maintain_is_told_what_was_sealed(self) -> None:
        """`evict` hears of each run, after which the run can be read."""
        store = self.make()
        await store.open(Model())
        told: list[SealedRun] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.maintain, told.extend)
            await trio.testing.wait_all_tasks_blocked()
            await store.commit([entry(1, queue(), PartitionPut(1, 1, "p", 1, 0), Appended(1, (record(0), record(1))))])
            await store.seal()
            assert told == [SealedRun(1, 0, 1, 1_000, 1_000)]
            assert len(await store.read(1, 0, 1, 1 << 20)) == 2
            nursery.cancel_scope.cancel()
        await store.close()

    async def test_recovery_gives_sealed_and_recent_messages(self) -> None:
        """An open tells where sealed messages lie, and gives the index of those in the window that was asked for."""
        store = self.make()
        await store.open(Model())
        await store.commit([entry(1, queue(), PartitionPut(1, 1, "p", 1, 0))])
        await store.commit([entry(2, Appended(1, tuple(record(offset, offset) for offset in range(10))))])
        await store.seal()
        await store.commit([entry(3, Appended(1, (record(10, 10),)), version=9)])
        await store.close()
        store, model = self.make(), Model(since=7)
        recovered = await store.open(model)
        assert recovered.position == 3
        assert recovered.counters.version == 9
        assert model.runs == [SealedRun(1, 0, 9, 0, 9)]
        assert sorted(model.index[1]) == [7, 8, 9, 10]
        assert len(model.entries) == 1
        await store.close()

    async def test_counters_outlive_everything_else(self) -> None:
        """The counters are those of the last entry, although all that they counted was deleted and sealed."""
        store = self.make()
        await store.open(Model())
        steps = [
            Entry(1, Counters(7, 1, 1), (queue(), PartitionPut(1, 1, "p", 1, 0), kv("a", 7), cursor(1, "g", 0))),
            Entry(2, Counters(8, 1, 1), (KvDropped("n", "a", 8, False), QueueDropped(1, "q"))),
        ]
        for step in steps:
            await store.commit([step])
        await store.seal()
        await store.close()
        store, model = self.make(), Model()
        recovered = await store.open(model)
        assert recovered.counters == Counters(8, 1, 1)
        assert recovered.last_instant == 2
        assert model.things == {}
        await store.close()

    @pytest.mark.parametrize("seed", range(3))
    async def test_recovery_is_identity(self, seed: int) -> None:
        """Whatever was committed and sealed, and whenever it was closed, what is recovered is the state before."""
        work = Workload(seed)
        for life in range(3):
            store, model = self.make(), Model()
            await store.open(model)
            await assert_same(store, model, work.model)
            for _ in range(4):
                await store.commit(work.entries(25))
                if (seed + life) % 3:
                    await store.seal()
            await store.close()
        store, model = self.make(), Model()
        await store.open(model)
        await assert_same(store, model, work.model)
        await store.close()

"""A file that gets its name and is not taken over: the store either knows it, or there is none."""

from __future__ import annotations

import errno
import itertools
import os
import pathlib
from typing import Any

import duckdb
import pytest
from storage_kit import FaultyOps, Model, Workload, assert_same, entry, queue, record

from queen_actors.domain.effects import Appended, Effect, PartitionPut
from queen_actors.errors import StorageFailed, Unavailable
from queen_actors.storage import DurableStore
from queen_actors.storage import upkeep as upkeep_module
from queen_actors.storage.segments import Interrupted
from queen_actors.storage.upkeep import Upkeep


class Unflushed(FaultyOps):
    """A file system whose directory cannot be flushed behind the publication of a file of one kind, so many times."""

    def __init__(self, kind: str, times: int, *codes: int) -> None:
        """`codes`: of the errors, one after the other and then again; EIO without."""
        super().__init__()
        self._kind = kind
        self.times = times
        self._codes = itertools.cycle(codes or (errno.EIO,))
        self.published: list[str] = []

    def rename(self, source: str, target: str) -> None:
        super().rename(source, target)
        if os.path.basename(source).startswith(self._kind):
            self.published.append(target)

    def sync_directory(self, path: str) -> None:
        if self.published and self.times:
            self.times -= 1
            raise OSError(next(self._codes), "no")
        super().sync_directory(path)


def upkeep(store: DurableStore) -> Upkeep:
    assert store._open is not None
    return store._open.upkeep


def names(path: pathlib.Path) -> list[str]:
    """Of the segments."""
    return sorted(file.name for file in path.glob("segment-*"))


def part(pid: int, log_start: int = 0) -> PartitionPut:
    return PartitionPut(pid, 1, f"p{pid}", 1, log_start)


async def step(store: DurableStore, model: Model, *effects: Effect) -> None:
    """Commit the effects and seal them into a segment of their own."""
    entries = [entry(1_000, *effects)]
    model.take(entries)
    await store.commit(entries)
    await store.seal()


async def worth_a_merge(path: pathlib.Path, ops: FaultyOps) -> tuple[DurableStore, Model]:
    """A store with nine segments, whose first may be dropped before long."""
    store, model = DurableStore(str(path), ops=ops), Model()
    await store.open(Model())
    await step(store, model, queue(), part(1), part(2), Appended(1, (record(0),)))
    for offset in range(8):
        await step(store, model, Appended(2, (record(offset),)))
    return store, model


async def goes_on(path: pathlib.Path, store: DurableStore, model: Model) -> None:
    """Merge again, within other bounds; the log opens, and holds what it should."""
    await step(store, model, part(1, 1))
    await step(store, model, Appended(2, (record(8),)))
    await upkeep(store).take_snapshot()
    await store.close()
    recovered = Model()
    await store.open(recovered)
    await assert_same(store, recovered, model)
    await store.close()


async def test_a_merge_whose_name_cannot_be_made_durable(tmp_path: pathlib.Path) -> None:
    """It is taken back, and tried again with the next snapshot."""
    ops = Unflushed("merge", 1)
    store, model = await worth_a_merge(tmp_path, ops)
    with pytest.raises(OSError, match="no"):
        await upkeep(store).take_snapshot()
    assert os.path.basename(ops.published[0]) not in names(tmp_path)
    await goes_on(tmp_path, store, model)


async def test_a_merge_that_cannot_be_read(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its messages lie is known before it has a name: without memory for that, there is no merge."""
    ops = Unflushed("merge", 0)
    store, model = await worth_a_merge(tmp_path, ops)

    def too_little(*_: object) -> None:
        raise duckdb.OutOfMemoryException("failed to allocate")

    with monkeypatch.context() as patch:
        patch.setattr(upkeep_module, "read_runs", too_little)
        with pytest.raises(duckdb.Error):
            await upkeep(store).take_snapshot()
    assert not ops.published
    await goes_on(tmp_path, store, model)


@pytest.mark.parametrize("codes", [(errno.EIO,), (errno.EIO, errno.EMFILE), (errno.EMFILE, errno.EIO)])
@pytest.mark.parametrize("kind", ["merge", "snapshot", "segment"])
async def test_a_file_that_cannot_be_taken_back(tmp_path: pathlib.Path, kind: str, codes: tuple[int, ...]) -> None:
    """When it is not known whether it has its name, the store ends, and the next start finds the log whole."""
    ops = Unflushed(kind, 0, *codes)
    store, model = await worth_a_merge(tmp_path, ops)
    ops.published.clear()
    ops.times = 2
    act = step(store, model, Appended(2, (record(8),))) if kind == "segment" else upkeep(store).take_snapshot()
    with pytest.raises(StorageFailed, match="durable under its name"):
        await act
    await store.close()
    recovered = Model()
    await store.open(recovered)
    await assert_same(store, recovered, model)
    await store.close()


@pytest.mark.parametrize("kind", ["merge", "snapshot", "segment"])
async def test_a_file_without_a_descriptor_to_flush_its_name_with(tmp_path: pathlib.Path, kind: str) -> None:
    """Connections may have taken the last descriptor: that says nothing against the disk. It is made again later."""
    ops = Unflushed(kind, 0, errno.EMFILE)
    store, model = await worth_a_merge(tmp_path, ops)
    ops.published.clear()
    ops.times = 2
    act = step(store, model, Appended(1, (record(1),))) if kind == "segment" else upkeep(store).take_snapshot()
    with pytest.raises((OSError, Unavailable), match="no"):
        await act
    assert os.path.basename(ops.published[0]) not in os.listdir(tmp_path)
    await store.seal()
    await goes_on(tmp_path, store, model)


@pytest.mark.parametrize("failure", ["memory", "interrupted", "directory"])
async def test_a_seal_that_fails_late_leaves_one_segment(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    """A seal that is repeated after it failed, or was interrupted, at the last step publishes its segment once."""
    ops, work = Unflushed("segment", 1 if failure == "directory" else 0), Workload(5)
    store = DurableStore(str(tmp_path), ops=ops)
    await store.open(Model())
    await store.commit(work.entries(50))

    def fails(*_: Any) -> None:
        raise Interrupted if failure == "interrupted" else duckdb.OutOfMemoryException("failed to allocate")

    with monkeypatch.context() as patch:
        if failure != "directory":
            patch.setattr(upkeep_module, "read_runs", fails)
        with pytest.raises(StorageFailed if failure == "interrupted" else Unavailable):
            await store.seal()
    assert not names(tmp_path)
    store._failure = None  # as when the interruption was that of a cancelled caller
    await store.seal()
    assert len(names(tmp_path)) == 1
    await store.close()
    recovered = Model()
    await store.open(recovered)
    await assert_same(store, recovered, work.model)
    await store.close()

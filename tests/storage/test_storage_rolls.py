"""A roll that fails: nothing is answered behind it, and the next start finds a log that it can read."""

from __future__ import annotations

import errno
import pathlib
import threading
from collections.abc import Awaitable

import pytest
import trio
import trio.testing
from storage_kit import FaultyOps, Model, entry, kv

from queen_actors.domain.effects import encode_entries
from queen_actors.errors import DataDirectoryError, StorageFailed
from queen_actors.storage import DurableStore
from queen_actors.storage.doctor import examine
from queen_actors.storage.fileops import FileOps
from queen_actors.storage.journal import JournalWriter


class Held(FaultyOps):
    """A file system on which one step of a roll waits until it is let go, and fails then."""

    def __init__(self, step: str) -> None:
        super().__init__()
        self._step = step
        self.armed = False
        self.begun, self.go_on = threading.Event(), threading.Event()

    def _passes(self, step: str) -> None:
        if self.armed and step == self._step:
            self.begun.set()
            assert self.go_on.wait(60)
            self.armed = False
            raise OSError(errno.EMFILE if step == "directory" else errno.EIO, "no")

    def sync_directory(self, path: str) -> None:
        self._passes("directory")
        super().sync_directory(path)

    def sync_data(self, fd: int) -> None:
        self._passes("note")
        super().sync_data(fd)

    def truncate(self, fd: int, length: int) -> None:
        self._passes("end")
        super().truncate(fd, length)


@pytest.mark.parametrize("step", ["directory", "note", "end"])
async def test_nothing_is_answered_behind_a_roll_that_failed(tmp_path: pathlib.Path, step: str) -> None:
    """A commit that waits in line behind a roll is refused when that fails, with the new journal there already; what
    was answered is there at the next start."""
    ops = Held(step)
    store = DurableStore(str(tmp_path), ops=ops)
    await store.open(Model())
    await store.commit([entry(1, kv("a", 1))])
    ops.armed, behind = True, threading.Event()

    async def fails(call: Awaitable[None]) -> None:
        with pytest.raises(StorageFailed):
            await call

    assert store._open is not None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fails, store.seal())
        await trio.to_thread.run_sync(ops.begun.wait, 60)
        nursery.start_soon(fails, store.commit([entry(2, kv("b", 2))]))
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(store._open.committer.run, behind.set)
        await trio.testing.wait_all_tasks_blocked()
        ops.go_on.set()
        assert behind.wait(60)  # all of them are over before this thread hears of the first
    await store.close()
    store, model = DurableStore(str(tmp_path)), Model()
    assert (await store.open(model)).position == 1
    await store.close()


def left(path: pathlib.Path, groups: int = 2) -> pathlib.Path:
    """Begin a log of groups with one entry each, and an empty journal behind the first of them."""
    (path / "FORMAT").write_text("queen-actors data directory, format 1\n")
    writer = JournalWriter.create(FileOps(), str(path / f"journal-{0:020}.log"), 0)
    for number in range(groups):
        writer.append(encode_entries([entry(number + 1)]), 1)
    writer.finish()
    empty = path / f"journal-{1:020}.log"
    JournalWriter.create(FileOps(), str(empty), 1).close()
    return empty


@pytest.mark.parametrize("torn", [b"", b"\x40\x01\x00\x00half a frame"])
async def test_a_journal_that_a_failed_roll_left_is_dropped(tmp_path: pathlib.Path, torn: bytes) -> None:
    """An empty newest journal that the log has gone past is no reason to refuse a start, nor is a group that was
    under way in the one before it."""
    empty = left(tmp_path)
    older = tmp_path / f"journal-{0:020}.log"
    older.write_bytes(older.read_bytes() + torn)
    report = examine(str(tmp_path), repair=False)
    assert all(finding.harmless for finding in report.findings), report.findings
    store, model = DurableStore(str(tmp_path)), Model()
    recovered = await store.open(model)
    assert (recovered.position, recovered.cut_bytes) == (2, len(torn))
    assert not empty.exists()
    await store.commit([entry(3)])
    await store.close()
    model = Model()
    assert (await store.open(model)).position == 3
    assert [step.now for step in model.entries] == [1, 2, 3]
    await store.close()


@pytest.mark.parametrize("behind", ["frames", "bytes", "nothing"])
async def test_a_journal_that_holds_something_is_not_dropped(tmp_path: pathlib.Path, behind: str) -> None:
    """A newest journal from elsewhere is refused as before, and so is one that is not the newest."""
    empty = left(tmp_path)
    if behind == "frames":
        writer = JournalWriter.resume(FileOps(), str(empty), 1, 1, 4096)
        writer.append(encode_entries([entry(9)]), 1)
        writer.close()
    elif behind == "bytes":
        data = bytearray(empty.read_bytes())
        data[5000] = 7
        empty.write_bytes(data)
    else:
        JournalWriter.create(FileOps(), str(tmp_path / f"journal-{2:020}.log"), 2).close()
    with pytest.raises(DataDirectoryError, match=r"begins at 1|ends in"):
        await DurableStore(str(tmp_path)).open(Model())
    assert empty.exists()

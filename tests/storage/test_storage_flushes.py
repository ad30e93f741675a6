"""A disk that does not write what it failed to flush, as Linux has it: the pages are taken for written, and are read
back from the cache until the power goes."""

from __future__ import annotations

import errno
import os
import pathlib
from collections.abc import Sequence

import pytest
import trio
from storage_kit import FaultyOps, Model, Workload, assert_same

from queen_actors.errors import DataDirectoryError, StorageFailed
from queen_actors.storage import DurableStore


class Disk(FaultyOps):
    """Remembers of each journal which bytes are in the cache alone: a flush writes what was written since the one
    before, and when it fails, that is never written any more, but for what is written again."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = False
        self._unflushed: dict[int, dict[int, int]] = {}
        self._lost: dict[int, dict[int, int]] = {}
        """By inode and offset: the byte that is on the disk."""

    def write(self, fd: int, parts: Sequence[bytes], offset: int) -> int:
        data = b"".join(parts)
        found = os.pread(fd, len(data), offset).ljust(len(data), b"\0")
        inode = os.fstat(fd).st_ino
        lost, unflushed = self._lost.setdefault(inode, {}), self._unflushed.setdefault(inode, {})
        for at, before in enumerate(found, offset):
            unflushed.setdefault(at, lost.pop(at, before))
        return super().write(fd, parts, offset)

    def sync_data(self, fd: int) -> None:
        self._flush(fd)
        super().sync_data(fd)

    def sync(self, fd: int) -> None:
        self._flush(fd)
        super().sync(fd)

    def _flush(self, fd: int) -> None:
        unflushed = self._unflushed.pop(os.fstat(fd).st_ino, {})
        if self.fails:
            self.fails = False
            self._lost.setdefault(os.fstat(fd).st_ino, {}).update(unflushed)
            raise OSError(errno.EIO, "no")

    def cut_power(self, path: pathlib.Path) -> None:
        """The cache is gone."""
        for file in path.glob("journal-*"):
            data = bytearray(file.read_bytes())
            inode = file.stat().st_ino
            for at, byte in (self._lost.get(inode, {}) | self._unflushed.get(inode, {})).items():
                if at < len(data):
                    data[at] = byte
            file.write_bytes(data)


@pytest.mark.parametrize("allocates", [True, False])
@pytest.mark.parametrize("payload_bytes", [40, 20_000])
async def test_a_group_whose_flush_failed_is_written_again(
    tmp_path: pathlib.Path, allocates: bool, payload_bytes: int
) -> None:
    """A store that ends with a failed flush may find the group when it opens the next time. Then it is on the disk
    before anything is answered that stands on it."""
    disk, work = Disk(), Workload(1, payload_bytes, calm=True)
    disk.can_allocate = allocates
    store = DurableStore(str(tmp_path), ops=disk)
    await store.open(Model())
    await store.commit(work.entries(5))
    disk.fails = True
    with pytest.raises(StorageFailed, match="Flushing"):
        await store.commit(work.entries(5))
    await store.close()
    recovered = Model()
    assert (await store.open(recovered)).position == 10
    await assert_same(store, recovered, work.model)
    await store.commit(work.entries(1))
    await store.close()
    await trio.to_thread.run_sync(disk.cut_power, tmp_path)
    recovered = Model()
    assert (await store.open(recovered)).position == 11
    await assert_same(store, recovered, work.model)
    await store.close()


async def test_an_open_that_cannot_flush_is_refused(tmp_path: pathlib.Path) -> None:
    """It shows nothing that may be lost; the next one tries again."""
    disk, work = Disk(), Workload(1, calm=True)
    store = DurableStore(str(tmp_path), ops=disk)
    await store.open(Model())
    await store.commit(work.entries(5))
    await store.close()
    disk.fails = True
    with pytest.raises(DataDirectoryError, match="cannot be used"):
        await store.open(Model())
    assert (await store.open(Model())).position == 5
    await store.close()
    await trio.to_thread.run_sync(disk.cut_power, tmp_path)
    recovered = Model()
    assert (await store.open(recovered)).position == 5
    await assert_same(store, recovered, work.model)
    await store.close()

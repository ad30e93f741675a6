"""What a start does with the directory before it reads the log: whom it keeps out, what it makes durable, what it
removes, and what it says of the note of the log's end."""

from __future__ import annotations

import fcntl
import logging
import os
import pathlib
import shutil

import pytest
from storage_kit import FaultyOps, Model, Workload

from queen_actors.errors import DataDirectoryError
from queen_actors.storage import DurableStore
from queen_actors.storage.directory import FORMAT_LINE, DataDirectory, holding
from queen_actors.storage.fileops import FileOps


class Synced(FileOps):
    """Tells which directories were made durable, and dies before one, as a power cut would have it."""

    def __init__(self, dies_before: pathlib.Path | None = None) -> None:
        self.synced: list[str] = []
        self._dies_before = dies_before

    def sync_directory(self, path: str) -> None:
        if path == str(self._dies_before):
            raise OSError(5, "Input/output error")
        self.synced.append(path)
        super().sync_directory(path)

    def unlink(self, path: str) -> None:
        self.synced.append(f"without {os.path.basename(path)}")
        super().unlink(path)


async def filled(path: pathlib.Path) -> DurableStore:
    """A store, open, with a log of five entries."""
    store = DurableStore(str(path))
    await store.open(Model())
    await store.commit(Workload(1, calm=True).entries(5))
    return store


async def test_a_directory_whose_lock_file_is_gone_is_in_use_all_the_same(tmp_path: pathlib.Path) -> None:
    """LOCK can be removed, or be missing in a copy; another broker is kept out by the directory itself, and so is a
    broker while the doctor is at work."""
    store = await filled(tmp_path)
    (tmp_path / "LOCK").unlink()
    with pytest.raises(DataDirectoryError, match=r"in use\."):
        DataDirectory.take(str(tmp_path), FileOps())
    with pytest.raises(DataDirectoryError, match=r"in use\..*files change while it runs"), holding(str(tmp_path)):
        pass
    assert not (tmp_path / "LOCK").exists()
    await store.close()
    with holding(str(tmp_path)):
        assert not (tmp_path / "LOCK").exists()
        with pytest.raises(DataDirectoryError, match="in use"):
            DataDirectory.take(str(tmp_path), FileOps())
    DataDirectory.take(str(tmp_path), FileOps()).release()
    assert (tmp_path / "LOCK").read_text() == f"{os.getpid()}\n"


async def test_a_directory_that_is_locked_by_no_broker(tmp_path: pathlib.Path) -> None:
    """`flock DATA queen-actors serve` locks the directory before the broker can: the refusal names no process that is
    gone."""
    store = await filled(tmp_path)
    await store.close()
    (tmp_path / "LOCK").write_text("4194303\n")
    other = os.open(tmp_path, os.O_RDONLY)
    try:
        fcntl.flock(other, fcntl.LOCK_EX)
        for held in (lambda: DataDirectory.take(str(tmp_path), FileOps()), lambda: holding(str(tmp_path)).__enter__()):
            with pytest.raises(DataDirectoryError, match=r"in use: another process .* or `flock` does\.") as caught:
                held()
            assert "4194303" not in caught.value.detail
    finally:
        os.close(other)
    DataDirectory.take(str(tmp_path), FileOps()).release()


async def test_a_broker_that_holds_the_lock_file_alone_keeps_others_out(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a file system locks no directories, LOCK does as it always did."""
    flock = __import__("fcntl").flock

    def no_directories(fd: int, operation: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            raise OSError(9, "Bad file descriptor")
        flock(fd, operation)

    monkeypatch.setattr("fcntl.flock", no_directories)
    store = await filled(tmp_path)
    in_use = f"in use by process {os.getpid()}"
    with pytest.raises(DataDirectoryError, match=in_use):
        DataDirectory.take(str(tmp_path), FileOps())
    with pytest.raises(DataDirectoryError, match=in_use), holding(str(tmp_path)):
        pass
    await store.close()
    with holding(str(tmp_path)), pytest.raises(DataDirectoryError, match=in_use):
        DataDirectory.take(str(tmp_path), FileOps())
    DataDirectory.take(str(tmp_path), FileOps()).release()


def test_a_lock_that_cannot_be_written_to_is_given_back(tmp_path: pathlib.Path) -> None:
    """A start that fails there leaves no descriptor behind, and the next can have the directory."""
    ops = FaultyOps()
    ops.truncate_error = 5
    before = os.listdir("/proc/self/fd")
    with pytest.raises(DataDirectoryError, match="cannot be used"):
        DataDirectory.take(str(tmp_path), ops)
    assert len(os.listdir("/proc/self/fd")) == len(before)
    ops.truncate_error = None
    DataDirectory.take(str(tmp_path), ops).release()
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_nothing_is_written_into_a_directory_of_another_format(tmp_path: pathlib.Path) -> None:
    """FORMAT is judged before LOCK is touched: it may be the lock of another program."""
    (tmp_path / "FORMAT").write_text("their format 7\n")
    (tmp_path / "LOCK").write_text("their lock: host=a pid=1\n")
    with pytest.raises(DataDirectoryError, match="their format 7"):
        DataDirectory.take(str(tmp_path), FileOps())
    assert (tmp_path / "LOCK").read_text() == "their lock: host=a pid=1\n"
    (tmp_path / "LOCK").unlink()
    with pytest.raises(DataDirectoryError, match="their format 7"):
        DataDirectory.take(str(tmp_path), FileOps())
    assert os.listdir(tmp_path) == ["FORMAT"]


def test_the_directories_that_are_made_are_durable_before_anything_is_in_them(tmp_path: pathlib.Path) -> None:
    """Each directory above is made durable, also those that a start made which was cut short."""
    path = tmp_path / "a" / "b" / "data"
    for dies_before in (tmp_path, tmp_path / "a", tmp_path / "a" / "b"):
        with pytest.raises(DataDirectoryError, match="Input/output"):
            DataDirectory.take(str(path), Synced(dies_before))
        assert not (path / "FORMAT").exists()
    ops = Synced()
    DataDirectory.take(str(path), ops).release()
    assert {str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "b"), str(path)} <= set(ops.synced)
    assert (path / "FORMAT").read_text() == FORMAT_LINE


def test_a_name_given_before_a_death_is_durable_before_anything_is_removed(tmp_path: pathlib.Path) -> None:
    """Every start makes the directory's names durable, and its own, first: what it then removes may be what one of
    those names stands for."""
    DataDirectory.take(str(tmp_path), FileOps()).release()
    (tmp_path / "segment-00000000000000000007.duckdb.tmp").write_text("half")
    ops = Synced()
    DataDirectory.take(str(tmp_path), ops).release()
    directory, above = str(tmp_path), str(tmp_path.parent)
    assert ops.synced == [directory, above, "without segment-00000000000000000007.duckdb.tmp"]


async def test_only_our_own_unfinished_files_are_removed(tmp_path: pathlib.Path) -> None:
    """What is called `.tmp` and is none of the broker's stays, be it a directory, and is no reason to refuse."""
    store = await filled(tmp_path)
    await store.close()
    ours = ["segment-00000000000000000007.duckdb.tmp", "merge-00000000000000000000.duckdb.tmp", "FORMAT.tmp"]
    ours += ["snapshot-00000000000000000009.duckdb.tmp.wal", "journal-00000000000000000009.log.tmp"]
    for name in (*ours, "theirs.tmp", "export.duckdb.tmp"):
        (tmp_path / name).write_text("half")
    (tmp_path / "x.tmp").mkdir()
    (tmp_path / "x.tmp" / "thesis.txt").write_text("mine")
    await store.open(Model())
    await store.close()
    assert not [name for name in ours if (tmp_path / name).exists()]
    assert (tmp_path / "theirs.tmp").exists()
    assert (tmp_path / "export.duckdb.tmp").exists()
    assert (tmp_path / "x.tmp" / "thesis.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"\xaa" * 8192, "cannot be read"), (bytes(8192), "does not say"), (b"", "does not say"), (None, "does not say")],
)
async def test_a_note_of_the_logs_end_that_is_bad_or_missing_is_said(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture, content: bytes | None, says: str
) -> None:
    """The open goes on without it, and the log has a warning, because a lost end would not be noticed; a directory
    that is new, or whose first start was cut short, has nothing to note."""
    caplog.set_level(logging.WARNING)
    copy = tmp_path / "copy"
    store = await filled(tmp_path / "data")
    await store.close()
    shutil.copytree(tmp_path / "data", copy)
    (copy / "POSITION").unlink()
    if content is not None:
        (copy / "POSITION").write_bytes(content)
    for name in os.listdir(tmp_path / "data"):
        if name.startswith("journal-"):
            (tmp_path / "data" / name).unlink()
    (tmp_path / "data" / "POSITION").write_bytes(b"")
    await store.open(Model())
    await store.close()
    assert caplog.messages == []
    store = DurableStore(str(copy))
    assert (await store.open(Model())).position == 5
    await store.close()
    assert [message for message in caplog.messages if says in message and "POSITION" in message]

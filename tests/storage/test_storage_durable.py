"""The durable store: the contract in a directory, its faults, and what it refuses to open."""

from __future__ import annotations

import errno
import os
import pathlib
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import duckdb
import pytest
import trio
from contract import StoreContract
from storage_kit import FaultyOps, Model, Workload, assert_same, entry, kv, queue, record

from queen_actors import limits
from queen_actors.domain.effects import Appended, PartitionPut
from queen_actors.errors import DataDirectoryError, StorageFailed, StorageFull, Unavailable
from queen_actors.ports import SealedRun, Store
from queen_actors.storage import DurableStore, doctor, durable, segments
from queen_actors.storage.journal import PAGE


class TestDurableStore(StoreContract):
    """The contract in a directory."""

    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: pathlib.Path) -> None:
        self._path = str(tmp_path / "data")

    def make(self) -> Store:
        return DurableStore(self._path)


class TestDurableStoreThatRollsAndSnapshots(StoreContract):
    """The same with journals and snapshots so small that every test passes through them."""

    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: pathlib.Path) -> None:
        self._path = str(tmp_path / "data")

    def make(self) -> Store:
        return SnapshotsAtEverySeal(self._path, roll_bytes=5_000, snapshot_bytes=1)


class SnapshotsAtEverySeal(DurableStore):
    """Does the whole of the upkeep whenever it seals."""

    async def seal(self) -> None:
        await super().seal()
        assert self._open is not None
        if self._open.upkeep.snapshot_due():
            await self._open.upkeep.take_snapshot()


async def opened(path: pathlib.Path, **options: Any) -> tuple[DurableStore, Model]:
    store, model = DurableStore(str(path), **options), Model()
    await store.open(model)
    return store, model


def journals(path: pathlib.Path) -> list[pathlib.Path]:
    return sorted(path.glob("journal-*.log"))


def damage(path: pathlib.Path) -> None:
    """Overwrite the only segment."""
    (segment,) = path.glob("segment-*")
    segment.write_bytes(b"x" * 20_000)


async def test_one_write_and_one_flush_for_each_group(tmp_path: pathlib.Path) -> None:
    """A group of any number of entries costs one write and one fdatasync."""
    ops = FaultyOps()
    store, _ = await opened(tmp_path, ops=ops)
    await store.commit([entry(0)])
    ops.calls.clear()
    for size in (1, 10, 300):
        await store.commit([entry(number, kv("k", number)) for number in range(size)])
    assert ops.calls == ["write", "sync_data"] * 3
    await store.close()


@pytest.mark.parametrize("room", [0, 1, 17, 60])
async def test_a_full_disk_is_a_clean_refusal(tmp_path: pathlib.Path, room: int) -> None:
    """A write that found no room, or not enough, leaves no trace; the next commit goes on when there is room."""
    ops = FaultyOps()
    store, _ = await opened(tmp_path, ops=ops)
    await store.commit([entry(1, kv("a", 1))])
    ops.room = room
    for _ in range(2):
        with pytest.raises(StorageFull):
            await store.commit([entry(2, kv("b" * 100, 2))])
        ops.room = 0
    ops.room = None
    await store.commit([entry(3, kv("c", 3))])
    await store.close()
    store, model = await opened(tmp_path)
    assert [step.now for step in model.entries] == [1, 3]
    await store.close()


@pytest.mark.parametrize("switch", ["sync_error", "write_error", "truncate_error"])
async def test_an_unknown_outcome_ends_the_store(tmp_path: pathlib.Path, switch: str) -> None:
    """After a failed flush, a failed write, or a write that could not be taken back, everything is refused; the next
    open finds what was acknowledged."""
    ops = FaultyOps()
    store, _ = await opened(tmp_path, ops=ops)
    await store.commit([entry(1, kv("a", 1))])
    if switch == "truncate_error":
        ops.room = 5
    setattr(ops, switch, errno.EIO)
    with pytest.raises(StorageFailed):
        await store.commit([entry(2, kv("b", 2))])
    setattr(ops, switch, None)
    ops.room = None
    for call in (store.commit([entry(3)]), store.read(1, 0, 0, 1), store.seal(), store.first_offset_at(1, 0)):
        with pytest.raises(StorageFailed):
            await call
    await store.close()
    store, model = await opened(tmp_path)
    assert [step.now for step in model.entries][:1] == [1]
    assert len(model.entries) <= 2
    await store.close()


async def test_without_allocation_commits_work(tmp_path: pathlib.Path) -> None:
    """On a file system that cannot allocate ahead, the journal simply grows."""
    ops = FaultyOps()
    ops.can_allocate = False
    store, _ = await opened(tmp_path, ops=ops, roll_bytes=20_000)
    work = Workload(3)
    for _ in range(20):
        await store.commit(work.entries(20))
    await store.close()
    assert "allocate" in ops.calls
    store, model = await opened(tmp_path)
    await assert_same(store, model, work.model)
    await store.close()


async def test_a_second_process_is_refused(tmp_path: pathlib.Path) -> None:
    """While one process has the directory, another gets a sentence with its id; afterwards it may have it."""
    store, _ = await opened(tmp_path)
    with pytest.raises(DataDirectoryError, match=f"in use by process {os.getpid()}"):
        await opened(tmp_path)
    script = (
        "import sys, trio; from queen_actors.storage import DurableStore; from queen_actors.errors import QueenError\n"
        "sys.path.insert(0, sys.argv[2]); from storage_kit import Model\n"
        "try: trio.run(DurableStore(sys.argv[1]).open, Model())\n"
        "except QueenError as error: print(error.code, error.detail)\n"
    )
    arguments = [sys.executable, "-c", script, str(tmp_path), str(pathlib.Path(__file__).parent)]
    other = await trio.run_process(arguments, capture_stdout=True)
    assert other.stdout.decode().startswith("data_directory ")
    assert f"in use by process {os.getpid()}" in other.stdout.decode()
    await store.close()
    other = await trio.run_process(arguments, capture_stdout=True)
    assert other.stdout == b""


@pytest.mark.parametrize(
    ("line", "says"),
    [("queen-actors data directory, format 99\n", "format 99"), ("", "''"), ("something else", "something else")],
)
async def test_an_unknown_format_is_refused(tmp_path: pathlib.Path, line: str, says: str) -> None:
    """A FORMAT that is not ours is named, and nothing is touched."""
    store, _ = await opened(tmp_path)
    await store.close()
    (tmp_path / "FORMAT").write_text(line)
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(DataDirectoryError, match=says):
        await opened(tmp_path)
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize("line", [None, "", "queen-actors data dmrectory, format 1\n"])
async def test_a_format_that_is_lost_or_damaged_names_the_doctor(tmp_path: pathlib.Path, line: str | None) -> None:
    """What can be done is in the sentence, and is enough: the doctor writes it again, and then it opens."""
    store, _ = await opened(tmp_path)
    await store.close()
    if line is None:
        (tmp_path / "FORMAT").unlink()
    else:
        (tmp_path / "FORMAT").write_text(line)
    with pytest.raises(DataDirectoryError, match=f"kept as it is.*`queen-actors doctor --data {tmp_path}`.*--repair"):
        await opened(tmp_path)
    assert doctor.examine(str(tmp_path), repair=True).left == []
    store, _ = await opened(tmp_path)
    await store.close()


async def test_a_directory_of_something_else_is_refused(tmp_path: pathlib.Path) -> None:
    """A directory that holds other files is not taken for a data directory, and nothing is put into it."""
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(DataDirectoryError, match=r"thesis\.txt"):
        await opened(tmp_path)
    assert (tmp_path / "thesis.txt").read_text() == "mine"
    assert os.listdir(tmp_path) == ["thesis.txt"]


async def test_a_path_that_cannot_be_a_directory(tmp_path: pathlib.Path) -> None:
    """What the system says about the path is in the sentence."""
    (tmp_path / "file").write_text("")
    with pytest.raises(DataDirectoryError, match="cannot be used"):
        await opened(tmp_path / "file")


async def test_unfinished_files_are_removed(tmp_path: pathlib.Path) -> None:
    """Temporary files of a process that died are gone after an open."""
    store, _ = await opened(tmp_path)
    await store.close()
    leftovers = ["segment-1.duckdb.tmp", "segment-1.duckdb.tmp.wal", "journal-7.log.tmp"]
    for name in leftovers:
        (tmp_path / name).write_text("half")
    store, _ = await opened(tmp_path)
    assert not set(leftovers) & set(os.listdir(tmp_path))
    await store.close()


async def test_a_store_can_be_opened_again(tmp_path: pathlib.Path) -> None:
    """The same object, closed and opened, recovers; opening it twice is a mistake that is named."""
    store, _ = await opened(tmp_path)
    await store.commit([entry(1, kv("a", 1))])
    with pytest.raises(RuntimeError):
        await store.open(Model())
    await store.close()
    model = Model()
    assert (await store.open(model)).position == 1
    await store.close()


async def test_age_rolls_the_journal(tmp_path: pathlib.Path) -> None:
    """A journal that holds something is sealed when it is old, without anyone asking; an empty one is left alone."""
    store, _ = await opened(tmp_path, roll_seconds=0.05)
    told: list[SealedRun] = []
    sealed = trio.Event()

    def evict(runs: Sequence[SealedRun]) -> None:
        told.extend(runs)
        sealed.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.maintain, evict)
        await store.commit([entry(1, queue(), PartitionPut(1, 1, "p", 1, 0), Appended(1, (record(0),)))])
        with trio.fail_after(60):
            await sealed.wait()
        assert told == [SealedRun(1, 0, 0, 1_000, 1_000)]
        assert len(await store.read(1, 0, 0, 100)) == 1
        nursery.cancel_scope.cancel()
    await store.close()


async def test_size_rolls_the_journal_while_commits_go_on(tmp_path: pathlib.Path) -> None:
    """Commits, rolls, seals, snapshots and drops side by side lose nothing."""
    store, _ = await opened(tmp_path, roll_bytes=30_000, snapshot_bytes=100_000)
    work = Workload(11, payload_bytes=200)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.maintain, lambda runs: None)
        for _ in range(60):
            await store.commit(work.entries(15))
        await store.seal()
        nursery.cancel_scope.cancel()
    await store.close()
    store, model = await opened(tmp_path)
    assert model.restored
    await assert_same(store, model, work.model)
    await store.close()


async def test_a_seal_that_fails_is_tried_again(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without room or memory for a segment the journal is kept, commits go on, and a later seal does it."""
    store, _ = await opened(tmp_path)
    work = Workload(5)
    await store.commit(work.entries(50))

    def no_room(*_: object) -> None:
        raise duckdb.IOException("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(segments, "build", no_room)
        with pytest.raises(Unavailable, match="No space left"):
            await store.seal()
    await store.commit(work.entries(50))
    assert len(journals(tmp_path)) == 2
    await store.seal()
    assert len(journals(tmp_path)) == 1
    await store.close()
    store, model = await opened(tmp_path)
    assert not model.entries
    await assert_same(store, model, work.model)
    await store.close()


async def test_upkeep_that_fails_is_tried_again(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What upkeep could not do it does a little later, for as long as it takes, and the store goes on meanwhile."""
    monkeypatch.setattr(durable, "RETRY_SECONDS", 0.01)
    ops = FaultyOps()
    store, _ = await opened(tmp_path, ops=ops, roll_seconds=0.01)
    build, sealed, attempts = segments.build, trio.Event(), 0

    def sometimes(*arguments: Any) -> object:
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            (tmp_path / "segment-1.duckdb.tmp").write_text("half")
            raise duckdb.OutOfMemoryException("failed to allocate")
        return build(*arguments)

    monkeypatch.setattr(segments, "build", sometimes)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.maintain, lambda runs: sealed.set())
        work = Workload(5)
        await store.commit(work.entries(50))
        with trio.fail_after(60):
            await sealed.wait()
        assert attempts == 3
        assert not [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]
        nursery.cancel_scope.cancel()
    await store.close()
    store, model = await opened(tmp_path)
    await assert_same(store, model, work.model)
    await store.close()


async def test_a_segment_that_cannot_be_read_ends_the_store(tmp_path: pathlib.Path) -> None:
    """A read that fails also with a new instance of DuckDB raises StorageFailed, and so does everything after it."""
    store, _ = await opened(tmp_path)
    await store.commit([entry(1, queue(), PartitionPut(1, 1, "p", 1, 0), Appended(1, (record(0),)))])
    await store.seal()
    damage(tmp_path)
    with pytest.raises(StorageFailed, match="Reading a segment"):
        await store.read(1, 0, 0, 100)
    with pytest.raises(StorageFailed):
        await store.commit([entry(2)])
    assert store.statistics().position == 1
    await store.close()


async def test_a_cancelled_seal_can_be_repeated(tmp_path: pathlib.Path) -> None:
    """Cancelling a seal ends it soon and leaves the log whole; the next one finishes."""
    store, _ = await opened(tmp_path)
    work = Workload(6)
    for _ in range(20):
        await store.commit(work.entries(100))
    with trio.move_on_after(0.02):
        await store.seal()
    await store.seal()
    assert len(journals(tmp_path)) == 1
    await store.close()
    store, model = await opened(tmp_path)
    await assert_same(store, model, work.model)
    await store.close()


async def test_no_room_for_the_next_journal(tmp_path: pathlib.Path) -> None:
    """When the disk has no room for a new journal file, the present one goes on as long as it can."""
    ops = FaultyOps()
    store, _ = await opened(tmp_path, ops=ops, roll_bytes=4_500)
    for number in range(20):
        await store.commit([entry(number, kv(f"key-{number}", number))])
    assert len(journals(tmp_path)) > 1
    before = len(journals(tmp_path))
    ops.room = 2_000
    for number in range(20, 30):
        await store.commit([entry(number, kv(f"key-{number}", number))])
    assert len(journals(tmp_path)) == before
    with pytest.raises(Unavailable, match="no room for a new journal"):
        await store.seal()
    ops.room = 50
    with pytest.raises(StorageFull):
        await store.commit([entry(50, kv("k" * 100, 50))])
    ops.room = None
    await store.commit([entry(99, kv("last", 99))])
    await store.close()
    store, model = await opened(tmp_path)
    assert model.entries[-1].now == 99
    await store.close()


async def test_a_full_disk_is_opened(tmp_path: pathlib.Path) -> None:
    """Without room for a new journal file, an open goes on with the last one; with room, so do commits, and nothing
    that was refused is there."""
    ops = FaultyOps()
    store, _ = await opened(tmp_path, ops=ops)
    await store.commit([entry(1, kv("a", 1))])
    await store.close()
    ops.room = 0
    for _ in range(2):
        store, model = await opened(tmp_path, ops=ops)
        assert [step.now for step in model.entries] == [1]
        with pytest.raises(StorageFull):
            await store.commit([entry(2, kv("b", 2))])
        await store.close()
    store, _ = await opened(tmp_path, ops=ops)
    ops.room = None
    for number in (3, 4):
        await store.commit([entry(number, kv("c", number))])
    await store.seal()
    await store.commit([entry(5, kv("d", 5))])
    await store.close()
    store, model = await opened(tmp_path)
    assert store.statistics().position == 4
    assert {key: effect.version for (_, (_, key)), effect in model.things.items()} == {"a": 1, "c": 4, "d": 5}
    await store.close()


async def test_a_full_disk_is_opened_behind_an_empty_journal(tmp_path: pathlib.Path) -> None:
    """A start that wrote nothing has left a journal without entries: on a full disk the log goes on in that one, and
    not in the one before it, which would then overtake it and be refused at the next start."""
    ops = FaultyOps()
    store, _ = await opened(tmp_path, ops=ops)
    await store.commit([entry(1, kv("a", 1))])
    await store.close()
    store, _ = await opened(tmp_path, ops=ops)
    await store.close()
    for version in (2, 3):
        ops.room = 0
        store, _ = await opened(tmp_path, ops=ops)
        ops.room = None
        await store.commit([entry(version, kv(f"k{version}", version))])
        await store.close()
    store, model = await opened(tmp_path)
    assert [effect.version for effect in model.things.values()] == [1, 2, 3]
    await store.close()


async def test_a_full_disk_with_an_empty_log_is_told(tmp_path: pathlib.Path) -> None:
    """With no journal at all there is none to go on with: the open is refused, and says to make room; nothing was
    changed, and with room it opens."""
    ops = FaultyOps()
    ops.room = 0
    with pytest.raises(DataDirectoryError, match=r"is full, and a start needs a few KiB\. Make room, and start again"):
        await opened(tmp_path, ops=ops)
    ops.room = None
    store, _ = await opened(tmp_path, ops=ops)
    await store.commit([entry(1, kv("a", 1))])
    await store.close()


async def test_commits_slow_down_when_sealing_is_far_behind(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits to be sealed lies in memory: when it is more than may, a pause follows each commit, but not its
    answer, until the sealing has caught up."""
    monkeypatch.setattr(limits, "UNSEALED_BYTES", 0)
    monkeypatch.setattr(durable, "BRAKE_SECONDS", 0.3)
    store = DurableStore(str(tmp_path), roll_bytes=1)
    await store.open(Model())

    async def commit(number: int) -> tuple[float, float]:
        """When the commit was told, and when it returned, after its begin."""
        begin, told = trio.current_time(), list[float]()
        await store.commit([entry(number, kv("k", number))], lambda: told.append(trio.current_time() - begin))
        return told[0], trio.current_time() - begin

    assert store._open is not None
    while len(store._open.upkeep.rolled) < 3:
        await commit(1)
    told, returned = await commit(2)
    assert returned - told >= 0.3
    await store.seal()
    assert not store._open.upkeep.rolled
    monkeypatch.setattr(durable, "BRAKE_SECONDS", 3600.0)  # with a pause now, the test would not end
    await commit(3)
    await store.close()


async def test_short_journals_do_not_slow_commits_down(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What counts is the bytes that wait to be sealed, not how many journals they lie in."""
    monkeypatch.setattr(durable, "BRAKE_SECONDS", 3600.0)
    store = DurableStore(str(tmp_path), roll_seconds=0.01)
    await store.open(Model())
    assert store._open is not None

    async def no_room(evict: object) -> None:
        raise OSError(errno.ENOSPC, "no room for a segment")

    monkeypatch.setattr(store._open.upkeep, "seal", no_room)
    monkeypatch.setattr(durable, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(durable, "RETRY_SECONDS_MAX", 0.01)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.maintain, lambda runs: None)
        number = 0
        while len(store._open.upkeep.rolled) < 14:  # eleven of 64 MiB would be too much
            number += 1
            await store.commit([entry(number, kv("k", number))])
            await trio.sleep(0.02)
        nursery.cancel_scope.cancel()
    await store.close()


async def test_a_disk_that_is_full_for_the_note_of_a_roll(tmp_path: pathlib.Path) -> None:
    """There is room for a new journal's page and for nothing more, not even for what is overwritten, as file systems
    have it that never write in place: the roll holds, what comes is refused cleanly, and a start works too."""
    ops = FaultyOps()
    store, _ = await opened(tmp_path, ops=ops)
    await store.commit([entry(1, kv("a", 1))])
    ops.room = PAGE
    await store.seal()
    with pytest.raises(StorageFull):
        await store.commit([entry(2, kv("b", 2))])
    await store.close()
    ops.room = PAGE + len(f"{os.getpid()}\n")  # the lock file holds that
    store, model = await opened(tmp_path, ops=ops)
    assert model.restored == [kv("a", 1)]
    ops.room = None
    await store.commit([entry(3, kv("c", 3))])
    await store.close()


async def test_what_is_recovered_is_made_durable(tmp_path: pathlib.Path) -> None:
    """A process that died may have left its last frames in the system's cache: an open flushes the journal before
    anything can be answered, also where nothing was allocated ahead that would have to be cut off."""

    class Flushes(FaultyOps):
        def __init__(self) -> None:
            super().__init__()
            self.can_allocate = False
            self.flushed: list[int] = []

        def sync(self, fd: int) -> None:
            if os.path.samestat(os.fstat(fd), os.stat(tmp_path / "journal-00000000000000000000.log")):
                self.flushed.append(fd)
            super().sync(fd)

    ops = Flushes()
    store, _ = await opened(tmp_path)
    await store.commit([entry(1, kv("a", 1))])
    await store.close()
    store, _ = await opened(tmp_path, ops=ops)
    assert len(ops.flushed) == 1
    await store.close()


async def test_an_empty_commit_asks_for_room(tmp_path: pathlib.Path) -> None:
    """After a refusal an empty group is refused until there is room for what was refused, also after another open; it
    leaves nothing in the log."""
    ops = FaultyOps()
    store, _ = await opened(tmp_path, ops=ops)
    await store.commit([entry(1, kv("a", 1))])
    ops.room = 100
    with pytest.raises(StorageFull):
        await store.commit([entry(2, *(kv("b" * 100, number) for number in range(50_000)))])
    for _ in range(2):
        with pytest.raises(StorageFull):
            await store.commit([])
        await store.close()
        await store.open(Model())
    ops.room = None
    await store.commit([])
    await store.close()
    store, model = await opened(tmp_path)
    assert [step.now for step in model.entries] == [1]
    await store.close()


async def test_an_exception_of_the_recovery_gives_the_directory_back(tmp_path: pathlib.Path) -> None:
    """What a recovery raises comes out of `open`, and the directory is free again."""
    store, _ = await opened(tmp_path)
    await store.commit([entry(1)])
    await store.close()

    class Failing(Model):
        def entry(self, entry: object) -> None:
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await DurableStore(str(tmp_path)).open(Failing())
    store, model = await opened(tmp_path)
    assert len(model.entries) == 1
    await store.close()


def test_the_store_works_in_a_second_run(tmp_path: pathlib.Path) -> None:
    """A store is not tied to the event loop that made it."""
    store = DurableStore(str(tmp_path))
    for life in range(2):

        async def run(life: int = life) -> int:
            position = (await store.open(Model())).position
            await store.commit([entry(life)])
            await store.close()
            return position

        assert trio.run(run) == life


def test_the_programs_of_this_test_run() -> None:
    """The interpreter that the tests start finds the package."""
    done = subprocess.run([sys.executable, "-c", "import queen_actors.storage"], check=False)
    assert done.returncode == 0

"""The small parts: the worker thread, the notes of the last position, and the tables made from the effects."""

from __future__ import annotations

import errno
import gc
import os
import pathlib
import threading
import time
import weakref
from collections.abc import AsyncGenerator

import pytest
import trio
import trio.testing
from storage_kit import Workload, queue

from queen_actors.domain.effects import Appended, DeadLetterPut, QueueDropped, TracePut
from queen_actors.ports import SealedRun
from queen_actors.storage import schema
from queen_actors.storage import worker as workers
from queen_actors.storage.directory import DataDirectory, file_checksum
from queen_actors.storage.fileops import FileOps
from queen_actors.storage.reader import RunIndex
from queen_actors.storage.upkeep import EVICT_MESSAGES, pieces
from queen_actors.storage.worker import Worker


@pytest.fixture(params=sorted({False, hasattr(os, "eventfd")}))
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The way back from a worker's thread: where there are eventfds, and where there are none."""
    monkeypatch.setattr(workers, "_EVENTFD", request.param)


@pytest.mark.usefixtures("way")
async def test_calls_run_in_order_on_one_thread() -> None:
    """Results and exceptions come back to the task that asked; the calls keep their order."""
    worker = Worker("test")
    order: list[int] = []

    async def ask(number: int) -> None:
        name = await worker.run(lambda: (order.append(number), threading.current_thread().name)[1])
        assert name == "test"

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(ask, number)
    assert sorted(order) == list(range(20))

    def fail() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await worker.run(fail)
    worker.stop()


@pytest.mark.usefixtures("way")
async def test_a_cancelled_call_is_waited_for_and_hurried() -> None:
    """A cancellation calls `hurry`, and shows after the call has ended."""
    worker = Worker("test")
    hurried = threading.Event()
    with trio.move_on_after(0.01) as scope:
        assert await worker.run(lambda: hurried.wait(60), hurry=hurried.set)
        await trio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    worker.stop()


@pytest.mark.usefixtures("way")
async def test_an_idle_worker_keeps_nothing_alive() -> None:
    """What a call returned and closed over can be collected when it is done."""

    class Thing:
        pass

    worker = Worker("test")
    thing = Thing()
    gone = weakref.ref(thing)
    await worker.run(lambda held=thing: None)  # type: ignore[misc]  # mypy cannot infer a default
    del thing
    await worker.run(lambda: None)
    for _ in range(100):
        gc.collect()
        if gone() is None:
            break
        await trio.sleep(0.01)
    assert gone() is None
    worker.stop()


@pytest.mark.usefixtures("way")
def test_a_worker_outlives_the_loop_that_left_it() -> None:
    """A call whose task is gone with its loop does no harm."""
    worker = Worker("test")

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(worker.run, lambda: time.sleep(0.01))

    trio.run(main)
    trio.run(main)
    worker.stop()
    worker._thread.join(60)
    assert not worker._thread.is_alive()


@pytest.mark.usefixtures("way")
def test_a_loop_that_ends_waits_for_its_calls() -> None:
    """A system task that is at a call gets its result, and may make more; so may a generator that is finalized."""
    worker, begun, go_on, results = Worker("test"), threading.Event(), threading.Event(), []

    def held() -> int:
        begun.set()
        return int(go_on.wait(60))

    async def call() -> None:
        results.append(await worker.run(held))
        results.append(await worker.run(lambda: 2))

    async def late() -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            other = Worker("late")
            results.append(await other.run(lambda: 3))
            other.stop()

    async def main() -> object:
        trio.lowlevel.spawn_system_task(call)
        await trio.testing.wait_all_tasks_blocked()
        assert begun.wait(60)
        generator = late()
        await anext(generator)
        threading.Timer(0.2, go_on.set).start()
        return generator

    # In a thread of its own, so that a loop that never ends fails the test
    loop = threading.Thread(target=trio.run, args=(main,), daemon=True)
    loop.start()
    loop.join(20)
    assert not loop.is_alive()
    assert results == [1, 2, 3]
    worker.stop()


async def test_a_worker_does_without_a_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has none left calls its threads all the same."""

    def none_left(_: trio.lowlevel.TrioToken) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    worker = Worker("test")
    monkeypatch.setattr(workers, "_EVENTFD", True)
    monkeypatch.setattr(workers, "_Eventfd", none_left)
    assert await worker.run(lambda: 1) == 1
    worker.stop()


@pytest.mark.usefixtures("way")
def test_a_worker_leaves_no_descriptor() -> None:
    """Neither when it is stopped, nor when its loop ends before that; and the next loop can use it."""

    def descriptors() -> int:
        return len(os.listdir("/dev/fd"))

    async def use(worker: Worker) -> None:
        for number in range(3):
            assert await worker.run(lambda number=number: number) == number  # type: ignore[misc]

    async def stop() -> None:
        before, worker = descriptors(), Worker("test")
        await use(worker)
        worker.stop()
        worker._thread.join(60)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert descriptors() == before

    trio.run(stop)
    before, left = descriptors(), Worker("test")
    trio.run(use, left)
    trio.run(use, left)
    left.stop()
    left._thread.join(60)
    assert not left._thread.is_alive()
    assert descriptors() == before


@pytest.fixture
def directory(tmp_path: pathlib.Path) -> DataDirectory:
    return DataDirectory.take(str(tmp_path / "data"), FileOps())


def test_the_greater_note_of_the_position_counts(directory: DataDirectory) -> None:
    """Two slots, flushed and not: the one that goes further is believed."""
    assert directory.noted_position() == (0, 0)
    directory.note_position(5, 0, flush=True)
    assert directory.noted_position() == (5, 0)
    directory.note_position(9, 0, flush=False)
    assert directory.noted_position() == (9, 0)
    directory.note_position(12, 12, flush=True)
    assert directory.noted_position() == (12, 12)
    directory.release()
    directory.release()


def test_a_torn_note_is_no_note(directory: DataDirectory) -> None:
    """A slot whose checksum does not fit is passed over, whichever byte of it is wrong."""
    directory.note_position(5, 1, flush=True)
    directory.note_position(9, 1, flush=False)
    path = pathlib.Path(directory.path) / "POSITION"
    whole = path.read_bytes()
    for at in range(4096, 4096 + 28):
        data = bytearray(whole)
        data[at] ^= 64
        path.write_bytes(data)
        assert directory.noted_position() == (5, 1)
    path.write_bytes(b"")
    assert directory.noted_position() == (0, 0)
    directory.release()


def test_names_of_files_are_read_back(directory: DataDirectory) -> None:
    """The listing has the files of each kind by position, and passes over what is none of the log's."""
    files = [directory.segment_file(7, 1_000_000, 0xABC), directory.segment_file(0, 7, 1)]
    snapshot = directory.snapshot_file(7, 0xFFFFFFFF)
    for path in [*(file.path for file in files), snapshot.path, directory.journal_path(9), directory.path + "/notes"]:
        pathlib.Path(path).write_bytes(b"1234")
    listing = directory.listing()
    assert listing.segments == sorted(files)
    assert listing.snapshots == [snapshot]
    assert [file.first for file in listing.journals] == [9]
    assert file_checksum(snapshot.path) == 0x9BE3E0A3
    directory.release()


def test_every_effect_has_its_row_and_comes_back() -> None:
    """A segment's row gives the very effect that it was made of, and so does a snapshot's for a put."""
    work = Workload(1)
    seen: set[type] = set()
    for step in work.entries(2_000):
        for effect in step.effects:
            if isinstance(effect, Appended):
                continue
            table = schema.table_of(effect)
            row = table.row(3, effect)
            assert len(row) == len(table.segment_columns)
            assert table.segment_effect(row) == effect
            if type(effect) is table.put:
                assert table.put_effect(row[2 : 2 + len(table.columns)]) == effect
            seen.add(type(effect))
    assert seen == {kind for table in schema.TABLES for kind in (table.put, table.drop) if kind is not None}
    assert {DeadLetterPut, TracePut, QueueDropped} <= seen


def test_the_format_of_the_files_has_not_changed() -> None:
    """The tables follow from the effects' fields. Whoever changes those changes the data directory's format: raise
    `directory.FORMAT_LINE`, then write the new fingerprint here."""
    assert schema.FINGERPRINT == 649_234_968
    assert schema.QUEUES.row(0, queue())[2] == 1


def test_an_index_of_a_million_partitions_is_small() -> None:
    """A run takes 40 bytes, and is found at once."""
    from queen_actors.storage.directory import SegmentFile

    index = RunIndex(SegmentFile(0, 1, 0, "s"))
    index.extend([(pid, 0, 3, 4 * pid, 10, 20 + pid) for pid in range(100_000)])
    arrays = (index._pids, index._firsts, index._lasts, index._starts, index._last_ts)
    assert sum(array.buffer_info()[1] * array.itemsize for array in arrays) == 40 * 100_000
    assert [(run.first, run.last, run.start) for run in index.runs(77_777, 1, 9)] == [(1, 3, 4 * 77_777 + 1)]
    assert list(index.runs(100_000, 0, 9)) == []
    run = index.first_at(5, 25)
    assert run is not None
    assert run.start == 20
    assert index.first_at(5, 26) is None


def test_long_runs_are_told_in_pieces() -> None:
    """What is to be evicted comes with a bounded number of messages at a time, each once and in order."""
    runs = [SealedRun(1, 5, 5, 0, 9), SealedRun(2, 0, 2 * EVICT_MESSAGES + 10, 0, 9), SealedRun(3, 7, 900, 0, 9)]
    runs += [SealedRun(pid, 0, 0, 0, 9) for pid in range(4, 3_000)]
    told = list(pieces(runs))
    assert [(run.pid, offset) for piece in told for run in piece for offset in range(run.first, run.last + 1)] == [
        (run.pid, offset) for run in runs for offset in range(run.first, run.last + 1)
    ]
    sizes = [sum(run.last - run.first + 1 for run in piece) for piece in told]
    assert max(sizes) == EVICT_MESSAGES
    assert len(sizes) < 10
    assert list(pieces([])) == []

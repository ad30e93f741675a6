"""Snapshots, drops and merges: what falls away, what stays, and that nobody can tell by reading."""

from __future__ import annotations

import os
import pathlib

import duckdb
import pytest
import trio
from msgspec.structs import replace
from storage_kit import Model, Workload, assert_same, cursor, dead_letter, entry, kv, queue, record

from queen_actors.domain.effects import (
    Appended,
    Effect,
    GroupPut,
    KvDropped,
    PartitionPut,
    QueueDropped,
    QueueOptions,
    QueuePut,
    Record,
    TimerDropped,
    TimerPut,
    TracePut,
)
from queen_actors.errors import DataDirectoryError, Unavailable
from queen_actors.limits import TRACE_SECONDS
from queen_actors.ports import SealedRun
from queen_actors.storage import DurableStore, compaction, duck, segments
from queen_actors.storage import upkeep as upkeep_module
from queen_actors.storage.upkeep import Upkeep


def upkeep(store: DurableStore) -> Upkeep:
    assert store._open is not None
    return store._open.upkeep


async def opened(path: pathlib.Path) -> tuple[DurableStore, Model]:
    store, model = DurableStore(str(path)), Model()
    await store.open(model)
    return store, model


async def step(store: DurableStore, *effects: Effect, now: int = 1_000) -> None:
    """Commit the effects and seal them into a segment of their own."""
    await store.commit([entry(now, *effects)])
    await store.seal()


def names(path: pathlib.Path, kind: str) -> list[str]:
    return sorted(name for name in os.listdir(path) if name.startswith(kind))


def partition(pid: int, qid: int = 1, log_start: int = 0) -> PartitionPut:
    return PartitionPut(pid, qid, f"p{pid}", 5, log_start)


def timer(key: str) -> TimerPut:
    return TimerPut("q", key, "p", 99, "t", "m", b"1", False, None, 0, None, 1, 1)


async def test_a_snapshot_holds_what_is_there(tmp_path: pathlib.Path) -> None:
    """After a snapshot the restored effects are one put for each thing that exists, and nothing else."""
    store, _ = await opened(tmp_path)
    await step(store, queue(), partition(1), kv("a", 1), kv("b", 2), timer("x"), timer("y"), cursor(1, "g", 3))
    await step(store, kv("a", 3), KvDropped("n", "b", 4, True), TimerDropped("q", "x", True), cursor(1, "g", 5))
    await upkeep(store).take_snapshot()
    await step(store, kv("c", 5), KvDropped("n", "a", 6, False))
    await upkeep(store).take_snapshot()
    await store.close()
    store, model = await opened(tmp_path)
    assert model.restored == [queue(), partition(1), cursor(1, "g", 5), kv("c", 5), timer("y")]
    await store.close()


async def test_a_segment_tells_first_and_last_in_their_places(tmp_path: pathlib.Path) -> None:
    """What stands between two effects of a thing, and names it, is restored between them; the last is what holds."""
    store, _ = await opened(tmp_path)
    steps: list[Effect] = [
        queue(),
        partition(1),
        kv("a", 1),
        cursor(1, "g", 1),
        KvDropped("n", "a", 2, False),
        kv("a", 3),
        partition(1, log_start=2),
        QueueDropped(1, "q"),
    ]
    await step(store, *steps)
    await store.close()
    store, model = await opened(tmp_path)
    assert model.restored == [effect for effect in steps if not isinstance(effect, KvDropped)]
    assert set(model.things.values()) == {kv("a", 3)}
    await upkeep(store).take_snapshot()
    await store.close()
    store, model = await opened(tmp_path)
    assert model.restored == [kv("a", 3)]
    await store.close()


async def test_everything_of_a_deleted_queue_falls_away(tmp_path: pathlib.Path) -> None:
    """With a queue go its partitions, groups, cursors, traces and dead letters; another queue of its name stays."""
    store, _ = await opened(tmp_path)
    trace = TracePut("tr", 1, "t", "g", (), "info", b"1", None, 5)
    group = GroupPut(1, "g", "all", 0, False, 5)
    kept: list[Effect] = [
        queue(2),
        GroupPut(2, "g", "all", 0, False, 5),
        partition(2, 2),
        cursor(2, "g", 1),
        dead_letter(2, 2, 2),
        TracePut("tr2", 2, "t", "g", ("a",), "info", b"1", "w", 5),
    ]
    await step(store, queue(1), partition(1), Appended(1, (record(0),)), cursor(1, "g", 1), dead_letter(1, 1, 1))
    await step(store, trace, group, partition(3), cursor(3, "g", 1), dead_letter(3, 1, 3), *kept)
    await upkeep(store).take_snapshot()
    await step(store, cursor(1, "h", 2), dead_letter(4, 1, 3), QueueDropped(1, "q"), queue(5))
    await upkeep(store).take_snapshot()
    await store.close()
    store, model = await opened(tmp_path)
    assert sorted(map(repr, model.restored)) == sorted(map(repr, [*kept, queue(5)]))
    assert model.runs == []
    assert names(tmp_path, "segment") == []
    await store.close()


async def test_old_traces_fall_away(tmp_path: pathlib.Path) -> None:
    """A snapshot keeps a trace for as long as traces are kept, counted back from its own instant."""
    store, _ = await opened(tmp_path)
    end = 1_000_000_000_000
    traces = [
        TracePut(f"tr{number}", 1, "t", "g", (), "info", b"1", None, end - TRACE_SECONDS * 1_000_000 + number)
        for number in (-1, 0, 1)
    ]
    await step(store, queue(), partition(1), *traces, now=end)
    await upkeep(store).take_snapshot()
    await store.close()
    store, model = await opened(tmp_path)
    assert [effect.id for effect in model.restored if isinstance(effect, TracePut)] == ["tr0", "tr1"]
    await store.close()


async def test_a_dead_letter_without_a_queue_stays(tmp_path: pathlib.Path) -> None:
    """What belongs to no queue that was dropped is kept, whether or not the log has the queue."""
    store, _ = await opened(tmp_path)
    await step(store, dead_letter(1, 0, 0))
    await upkeep(store).take_snapshot()
    await step(store, kv("a", 1))
    await upkeep(store).take_snapshot()
    await store.close()
    store, model = await opened(tmp_path)
    assert dead_letter(1, 0, 0) in model.restored
    await store.close()


async def test_segments_without_a_live_message_are_dropped(tmp_path: pathlib.Path) -> None:
    """A segment goes when all its messages are below their partition's log_start, and not a message sooner."""
    store, _ = await opened(tmp_path)
    await step(store, queue(), partition(1), partition(2), Appended(1, (record(0), record(1))))
    await step(store, Appended(1, (record(2), record(3))), Appended(2, (record(0),)))
    await step(store, Appended(1, (record(4),)), partition(1, log_start=2))
    assert len(names(tmp_path, "segment")) == 3
    await upkeep(store).take_snapshot()
    assert len(names(tmp_path, "segment")) == 2
    assert await store.read(1, 0, 9, 1 << 20) == [record(2), record(3), record(4)]
    await step(store, partition(1, log_start=4))
    await upkeep(store).take_snapshot()
    assert len(names(tmp_path, "segment")) == 2
    await step(store, partition(2, log_start=1))
    await upkeep(store).take_snapshot()
    assert len(names(tmp_path, "segment")) == 1
    assert await store.read(1, 0, 9, 1 << 20) == [record(4)]
    assert store.statistics().segments == 1
    await store.close()
    store, model = await opened(tmp_path)
    assert model.runs == [SealedRun(1, 4, 4, 1_000, 1_000)]
    assert len(names(tmp_path, "snapshot")) == 1
    await store.close()


async def test_small_neighbours_are_merged(tmp_path: pathlib.Path) -> None:
    """Many small segments behind a snapshot become one, with the messages that may still be read, in order."""
    store, _ = await opened(tmp_path)
    await step(store, queue(), partition(1), partition(2))
    for offset in range(10):
        await step(store, Appended(1, (record(offset),)), Appended(2, (record(offset, 2_000 + offset),)))
    await step(store, partition(1, log_start=4))
    await upkeep(store).take_snapshot()
    assert len(names(tmp_path, "segment")) == 1
    assert [r.offset for r in await store.read(1, 0, 99, 1 << 20)] == [4, 5, 6, 7, 8, 9]
    assert await store.read(2, 0, 99, 1 << 20) == [record(offset, 2_000 + offset) for offset in range(10)]
    assert await store.first_offset_at(2, 2_005) == 5
    await step(store, Appended(2, (record(10, 3_000),)))
    assert len(await store.read(2, 5, 10, 1 << 20)) == 6
    await store.close()
    store, model = await opened(tmp_path)
    assert len([run for run in model.runs if run.pid == 1]) == 1
    assert len(await store.read(2, 0, 10, 1 << 20)) == 11
    await store.close()


async def test_a_merged_segment_needs_its_snapshot(tmp_path: pathlib.Path) -> None:
    """A merge keeps messages alone, so without the snapshot the log does not open."""
    store, _ = await opened(tmp_path)
    await step(store, queue(), partition(1), Appended(1, (record(0),)))
    for offset in range(1, 10):
        await step(store, Appended(1, (record(offset),)))
    await upkeep(store).take_snapshot()
    await store.close()
    (tmp_path / names(tmp_path, "snapshot")[0]).unlink()
    with pytest.raises(DataDirectoryError, match="a snapshot is missing"):
        await opened(tmp_path)


def test_what_is_worth_a_merge() -> None:
    """Neighbours are joined when they are many and small, or when half a file's worth of them is dead."""
    from queen_actors.storage.directory import SegmentFile

    files = [SegmentFile(n, n + 1, 0, f"s{n}") for n in range(20)]

    def groups(sizes: list[int], live: dict[int, int]) -> list[list[int]]:
        chosen = files[: len(sizes)]
        found = compaction.groups_to_merge(
            chosen,
            {(n, n + 1): live.get(n, 100) for n in range(len(sizes))},
            dict.fromkeys(chosen, 100),
            {file.path: size for file, size in zip(chosen, sizes, strict=True)},
            1_000,
        )
        return [[file.first for file in group] for group in found]

    assert groups([1_000] * 5, {}) == []
    assert groups([10] * 7, {}) == []
    assert groups([10] * 8, {}) == [list(range(8))]
    assert groups([900, 900], {0: 10, 1: 10}) == [[0, 1]]
    assert groups([900, 900, 900], {0: 60, 2: 100}) == []
    assert groups([900, 900, 900], {0: 40}) == [[0]]
    assert groups([1_000, *[50] * 9], {}) == [list(range(1, 10))]


async def test_upkeep_beside_reads(tmp_path: pathlib.Path) -> None:
    """Reads give the same messages before, during and after snapshots, drops and merges."""
    store, _ = await opened(tmp_path)
    work = Workload(21)
    for _ in range(12):
        await store.commit(work.entries(40))
        await store.seal()
    live = work.model.live_index()
    done = trio.Event()

    async def read() -> None:
        while not done.is_set():
            for pid, messages in live.items():
                found = await store.read(pid, min(messages), max(messages), 1 << 30)
                assert found == [work.model.messages[pid][offset] for offset in messages]

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await upkeep(store).take_snapshot()
        done.set()
    assert len(names(tmp_path, "segment")) < 12
    await store.close()
    store, model = await opened(tmp_path)
    await assert_same(store, model, work.model)
    await store.close()


async def test_what_makes_a_snapshot_due(tmp_path: pathlib.Path) -> None:
    """The sealed log since the last one: its bytes against the bound and the last snapshot's, or its many files."""
    store = DurableStore(str(tmp_path), snapshot_bytes=1 << 30)
    await store.open(Model())
    await step(store, kv("a", 1))
    assert not upkeep(store).snapshot_due()
    keeper = upkeep(store)
    keeper.sizes[keeper.since[0].path] = 1 << 31
    assert keeper.snapshot_due()
    keeper.sizes[keeper.since[0].path] = 10
    keeper.since *= 64
    assert keeper.snapshot_due()
    keeper.since = keeper.since[:1]
    await store.close()


async def test_offsets_with_a_gap_are_runs_of_their_own(tmp_path: pathlib.Path) -> None:
    """A partition whose offsets jump is read right on both sides of the jump."""
    store, _ = await opened(tmp_path)
    await step(store, queue(), partition(1), Appended(1, (record(0), record(1), record(7), record(8))))
    assert [r.offset for r in await store.read(1, 1, 7, 1 << 20)] == [1, 7]
    await store.close()
    store, model = await opened(tmp_path)
    assert [(run.first, run.last) for run in model.runs] == [(0, 1), (7, 8)]
    await store.close()


async def test_a_segment_larger_than_a_piece(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages and state of many pieces, in entries of any size, all arrive."""
    monkeypatch.setattr(segments, "PIECE", 7)
    monkeypatch.setattr(segments, "FLUSH", 20)
    monkeypatch.setattr(segments, "WAITING", 3)
    store, _ = await opened(tmp_path)
    work = Workload(4)
    await store.commit(work.entries(300))
    await store.seal()
    await store.close()
    store, model = await opened(tmp_path)
    assert not model.entries
    await assert_same(store, model, work.model)
    await store.close()


async def test_every_kind_of_message_is_sealed_as_it_was(tmp_path: pathlib.Path) -> None:
    """Messages with and without a transaction id of their own, a trace, a producer, a timer's key or a sealed payload,
    one beside the other in two partitions, are read from the segment as they were appended."""
    store, _ = await opened(tmp_path)
    kinds = [
        {},
        {"txn": "own"},
        {"txn": ""},
        {"trace": "t", "txn": "own"},
        {"producer": ""},
        {"timer_key": "k"},
        {"encrypted": True},
        {"payload": b""},
    ]
    messages = tuple(
        replace(Record(offset, 7, f"id-{offset}", f"id-{offset}", b"1"), **kinds[offset % len(kinds)])  # type: ignore[arg-type]
        for offset in range(3 * len(kinds))
    )
    await store.commit([entry(1, queue(1, "q"), partition(7), partition(8))])
    for message in messages:
        await store.commit([entry(2, Appended(8, (message,)), Appended(7, (message,)))])
    await store.seal()
    for pid in (7, 8):
        assert tuple(await store.read(pid, 0, len(messages), 10**6)) == messages
    await store.close()


async def test_sealing_is_frugal_while_that_is_enough(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal is sealed with little memory; where that is not enough, as for large messages, with all there is, and
    the same comes of it, now and for those behind it."""
    store, _ = await opened(tmp_path)
    given: list[int] = []
    connect = duck.connect

    def noted(memory_mb: int, spill: str) -> duckdb.DuckDBPyConnection:
        given.append(memory_mb)
        return connect(memory_mb, spill)

    monkeypatch.setattr(duck, "connect", noted)
    await step(store, queue(1, "q"), partition(7), Appended(7, (record(0, payload=b"1"),)))
    monkeypatch.setattr(upkeep_module, "SEAL_MEMORY_MB", 1)
    large = b'"' + os.urandom(2_000_000).hex().encode() + b'"'
    await step(store, Appended(7, (record(1, payload=large),)))
    await step(store, Appended(7, (record(2, payload=b"3"),)))
    assert given == [64, 1 + 3, 384, 384]
    assert [found.payload for found in await store.read(7, 0, 2, 10**9)] == [b"1", large, b"3"]
    await store.close()


async def test_what_retention_removed_is_remembered_for_its_window(tmp_path: pathlib.Path) -> None:
    """21: the index entries of removed messages outlive the segment they lay in, through snapshot after snapshot, each
    told once; those of a queue that was deleted, and those whose window is over, do not."""
    options = QueueOptions(dedup_window_seconds=1000)
    short = QueuePut(2, "short", "u", "", "", QueueOptions(dedup_window_seconds=0), 1)
    second, start = 1_000_000, 1_000_000_000

    async def told(since: int = 0) -> dict[int, list[int]]:
        await store.close()
        model = Model(since)
        await store.open(model)
        return {pid: list(messages) for pid, messages in model.index.items()}

    def messages(pid: int, first: int, at: int) -> Appended:
        return Appended(pid, tuple(record(offset, at) for offset in range(first, first + 3)))

    store, _ = await opened(tmp_path)
    queues = replace(queue(), options=options), short, queue(3, "gone")
    await step(store, *queues, partition(1), partition(2, 2), partition(3, 3), now=start)
    await step(store, *(messages(pid, 0, start) for pid in (1, 2, 3)), now=start)
    await step(store, messages(1, 3, start + 50 * second), now=start + 50 * second)
    await upkeep(store).take_snapshot()
    moved = partition(1, log_start=5), partition(2, 2, log_start=3), partition(3, 3, log_start=3)
    await step(store, *moved, QueueDropped(3, "gone"), now=start + 60 * second)
    assert await told() == {1: [0, 1, 2, 3, 4, 5], 2: [0, 1, 2], 3: [0, 1, 2]}
    await upkeep(store).take_snapshot()
    assert len(names(tmp_path, "segment")) == 1, "the one with the message that is left"
    assert await told() == {1: [0, 1, 2, 3, 4, 5], 2: [0, 1, 2]}
    assert await told(start + 1) == {1: [3, 4, 5]}
    await step(store, partition(1, log_start=6), now=start + 901 * second)
    await upkeep(store).take_snapshot()
    assert len(names(tmp_path, "segment")) == 0
    assert await told() == {1: [0, 1, 2, 3, 4, 5]}
    await step(store, kv("a", 1), now=start + 1_001 * second)
    await upkeep(store).take_snapshot()
    assert await told() == {1: [3, 4, 5]}
    await step(store, kv("b", 2), now=start + 2_000 * second)
    await upkeep(store).take_snapshot()
    assert await told() == {}
    await store.close()


async def test_a_stop_while_failed_work_is_tidied_up(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work that failed has closed its DuckDB connection; a cancellation that comes then has nothing to interrupt, and
    does not raise: it would leave the tasks of the cancelled nursery running for ever."""
    store, _ = await opened(tmp_path / "data")
    await store.commit([entry(1_000, queue())])
    stopped: list[bool] = []

    def tidy_up() -> None:
        upkeep(store).stop()
        stopped.append(True)

    monkeypatch.setattr(upkeep(store)._directory, "remove_unfinished_builds", tidy_up)

    def fail(*_: object) -> None:
        raise OSError("no room")

    monkeypatch.setattr(segments, "build", fail)
    with pytest.raises(Unavailable, match="no room"):
        await store.seal()
    assert stopped == [True]
    await store.close()


def test_an_interruption_of_a_closed_connection_is_none() -> None:
    """Whoever stops the work cannot know whether its connection is still open."""
    pace, connection = segments.Pace(), duckdb.connect()
    pace.working_on(connection)
    connection.close()
    pace.stop()
    with pytest.raises(segments.Interrupted):
        pace.give_way()

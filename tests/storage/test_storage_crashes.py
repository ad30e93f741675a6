"""A crash between any two steps: at every named point the data directory is copied as `kill -9` would leave it, and
each copy must open by itself with every acknowledged entry, and at most the group that was under way besides."""

from __future__ import annotations

import os
import pathlib
import shutil
import sys
from collections.abc import Callable

import pytest
import trio
from storage_kit import Model, Workload, assert_same

from queen_actors.domain.effects import Entry
from queen_actors.errors import DataDirectoryError
from queen_actors.storage import DurableStore, compaction, faultpoints
from queen_actors.storage.directory import DataDirectory
from queen_actors.storage.fileops import FileOps
from queen_actors.storage.sql import query


class Crashes:
    """Copies of a data directory, each with what had been acknowledged when it was taken."""

    def __init__(self, path: pathlib.Path, copies: pathlib.Path) -> None:
        self.kinds: tuple[str, ...] = ("",)
        """Beginnings of the points at which a copy is taken."""
        self._path = path
        self._copies = copies
        self.acknowledged: list[Entry] = []
        self.under_way: list[Entry] = []
        self.taken: list[tuple[str, pathlib.Path, int, int]] = []
        """Point, copy, entries acknowledged, entries acknowledged or under way."""

    def __call__(self, point: str) -> None:
        if not point.startswith(self.kinds):
            return
        copy = self._copies / f"{len(self.taken):04}-{point}"
        shutil.copytree(self._path, copy)
        acknowledged = len(self.acknowledged)
        self.taken.append((point, copy, acknowledged, acknowledged + len(self.under_way)))

    async def commit(self, store: DurableStore, entries: list[Entry]) -> None:
        """Commit, and note the acknowledgement."""
        self.under_way = entries
        await store.commit(entries)
        self.acknowledged += entries
        self.under_way = []

    async def check(self) -> set[str]:
        """Open every copy, the first of each point twice; the points that were passed."""
        seen: set[str] = set()
        for point, copy, low, high in self.taken:
            opens = 1 if point in seen else 2
            seen.add(point)
            for _ in range(opens):
                store, model = DurableStore(str(copy)), Model()
                position = (await store.open(model)).position
                assert low <= position <= high, f"at {copy.name}"
                assert position in (low, high), f"at {copy.name}: a group was torn"
                expected = Model()
                expected.take([*self.acknowledged, *self.under_way][:position])
                await assert_same(store, model, expected)
                await store.close()
            shutil.rmtree(copy)
        return seen


@pytest.fixture
def crashes(tmp_path: pathlib.Path) -> Crashes:
    (tmp_path / "copies").mkdir()
    return Crashes(tmp_path / "data", tmp_path / "copies")


async def test_a_crash_between_any_two_steps_of_the_upkeep(tmp_path: pathlib.Path, crashes: Crashes) -> None:
    """Seals, snapshots and drops, over two lives of the store."""
    work = Workload(2, payload_bytes=20)
    crashes.kinds = "segment", "snapshot", "drop"
    with faultpoints.watching(crashes):
        for _ in range(2):
            store = DurableStore(str(tmp_path / "data"), snapshot_bytes=1)
            await store.open(Model())
            for _ in range(2):
                await crashes.commit(store, work.entries(20))
                await store.seal()
            assert store._open is not None
            await store._open.upkeep.take_snapshot()
            await crashes.commit(store, work.entries(2))
            await store.close()
    passed = await crashes.check()
    assert passed >= {point for point in faultpoints.POINTS if point.partition(".")[0] in ("segment", "snapshot")}


async def test_a_crash_between_any_two_steps_of_a_merge(
    tmp_path: pathlib.Path, crashes: Crashes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While segments are merged and the merged ones removed, the messages are there once."""
    monkeypatch.setattr(compaction, "MERGE_FILES", 3)
    work = Workload(9, payload_bytes=20, calm=True)
    crashes.kinds = "merge", "drop"
    store = DurableStore(str(tmp_path / "data"), snapshot_bytes=1)
    await store.open(Model())
    for _ in range(5):
        await crashes.commit(store, work.entries(40))
        await store.seal()
    assert store._open is not None
    with faultpoints.watching(crashes):
        await store._open.upkeep.take_snapshot()
    await store.close()
    passed = await crashes.check()
    assert passed >= {point for point in faultpoints.POINTS if point.partition(".")[0] in ("merge", "drop")}


async def test_a_crash_while_commits_roll_the_journal(tmp_path: pathlib.Path, crashes: Crashes) -> None:
    """At each step of a commit and of a roll the acknowledged entries are there, and the group under way or not."""
    work = Workload(3, payload_bytes=20)
    with faultpoints.watching(crashes):
        store = DurableStore(str(tmp_path / "data"), roll_bytes=6_000)
        await store.open(Model())
        for _ in range(12):
            await crashes.commit(store, work.entries(8))
        await store.close()
    points = [point for point, *_ in crashes.taken]
    assert points.count("journal.append.synced") == 12
    assert points.count("journal.create.done") > 2
    passed = await crashes.check()
    groups = ("journal.append", "journal.create", "journal.finish", "position")
    assert passed >= {point for point in faultpoints.POINTS if point.startswith(groups)}


async def test_a_crash_while_a_torn_end_is_cut(tmp_path: pathlib.Path, crashes: Crashes) -> None:
    """A recovery that itself is interrupted is repeated by the next."""
    path = tmp_path / "data"
    store = DurableStore(str(path))
    await store.open(Model())
    work = Workload(4)
    await crashes.commit(store, work.entries(10))
    await store.close()
    (path / "POSITION").unlink()
    (journal,) = path.glob("journal-*.log")
    whole = journal.read_bytes()
    end = next(at for at in range(4096, len(whole)) if not any(whole[at:]))
    journal.write_bytes(whole[: end + 3] + b"\x99half a frame")
    with faultpoints.watching(crashes):
        await store.open(Model())
        await store.close()
    assert "journal.cut.truncated" in await crashes.check()


async def test_a_crash_during_the_sealing_of_sql(tmp_path: pathlib.Path, crashes: Crashes) -> None:
    """What `queen-actors sql` does before it answers can be interrupted too."""
    path = tmp_path / "data"
    store = DurableStore(str(path))
    work = Workload(5)
    for _ in range(3):
        await store.open(Model())
        await crashes.commit(store, work.entries(20))
        await store.close()
    with faultpoints.watching(crashes):
        _, rows = await trio.to_thread.run_sync(query, str(path), "SELECT count(*) FROM messages")
    assert rows == [(sum(map(len, work.model.live_index().values())),)]
    await crashes.check()
    assert not list(path.glob("journal-*1*.log"))


def test_a_crash_while_a_directory_is_begun(tmp_path: pathlib.Path) -> None:
    """A directory whose making was interrupted anywhere is simply made again."""
    path = str(tmp_path / "data")
    steps: list[str] = []

    class Stops(FileOps):
        def __init__(self, after: int) -> None:
            self._left = after

        def _step(self, name: str) -> None:
            if self._left == 0:
                raise InterruptedError(name)
            self._left -= 1
            steps.append(name)

        def open(self, path: str) -> int:
            self._step("open")
            return super().open(path)

        def rename(self, source: str, target: str) -> None:
            self._step("rename")
            super().rename(source, target)

        def sync_directory(self, path: str) -> None:
            self._step("sync")
            super().sync_directory(path)

    for after in range(20):
        try:
            DataDirectory.take(path, Stops(after)).release()
            break
        except DataDirectoryError as error:
            assert isinstance(error.__cause__, InterruptedError)  # noqa: PT017
    assert os.path.exists(os.path.join(path, "FORMAT"))
    assert "rename" in steps


@pytest.mark.parametrize(
    "point", ["journal.append.written:5", "journal.create.renamed:3", "segment.renamed:1", "segment.checkpointed:2"]
)
async def test_the_process_dies_at_the_point(tmp_path: pathlib.Path, point: str) -> None:
    """With QUEEN_ACTORS_FAULT the process ends with status 137, and what it acknowledged is there."""
    script = """
import sys, trio
from queen_actors.storage import DurableStore
from storage_kit import Model, Workload
async def main():
    store, work = DurableStore(sys.argv[1], roll_bytes=3_000), Workload(1)
    await store.open(Model())
    for _ in range(10):
        await store.commit(work.entries(5))
        print("acknowledged", flush=True)
        await store.seal()
trio.run(main)
"""
    here = str(pathlib.Path(__file__).parent)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([here, *sys.path]), faultpoints.VARIABLE: point}
    process = await trio.run_process(
        [sys.executable, "-c", script, str(tmp_path)], env=environment, capture_stdout=True, check=False
    )
    assert process.returncode == 137
    acknowledged = 5 * process.stdout.count(b"acknowledged")
    store, model = DurableStore(str(tmp_path)), Model()
    position = (await store.open(model)).position
    assert acknowledged <= position <= acknowledged + 5
    expected = Workload(1)
    expected.entries(position)
    await assert_same(store, model, expected.model)
    await store.close()


@pytest.mark.parametrize("text", ["nowhere:1", "segment.start", "segment.start:0", "segment.start:x"])
def test_a_fault_that_cannot_be(text: str) -> None:
    """A point that does not exist, or a count that is none, is refused when the program starts."""
    with pytest.raises(ValueError, match="one of the points"):
        faultpoints._parse(text)


def test_watching_ends(tmp_path: pathlib.Path) -> None:
    """Outside `watching` nothing is armed, and the innermost watcher is the one that is told."""
    told: list[str] = []
    outer: Callable[[str], None] = told.append
    with faultpoints.watching(outer):
        assert faultpoints.armed
        with faultpoints.watching(lambda point: None):
            faultpoints.passage("segment.start")
        faultpoints.passage("segment.filled")
    assert told == ["segment.filled"]
    assert not faultpoints.armed

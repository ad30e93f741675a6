"""Files that lie over each other at a start: what a death left over goes when the whole log has been read and others
have all that is in it, and what is of another log is refused with every file kept."""

from __future__ import annotations

import errno
import os
import pathlib
import shutil
from collections.abc import Callable, Sequence

import pytest
import trio
from storage_kit import Model, Workload, assert_same, entry, kv, queue, record

from queen_actors.domain.effects import Appended, Counters, Effect, Entry, PartitionPut, QueueDropped
from queen_actors.errors import DataDirectoryError
from queen_actors.storage import DurableStore, compaction, faultpoints
from queen_actors.storage.directory import SegmentFile
from queen_actors.storage.fileops import FileOps
from queen_actors.storage.sql import query


def files(path: pathlib.Path, kind: str) -> list[pathlib.Path]:
    return sorted(path.glob(f"{kind}-*"))


def bounds(file: pathlib.Path) -> tuple[int, int]:
    _, first, last, _ = file.name.split("-")
    return int(first), int(last)


async def sealed(path: pathlib.Path, seed: int = 1, counts: Sequence[int] = (20,)) -> Workload:
    """A directory with a segment of so many entries each; the journal of each, as it was, lies in `journals` beside."""
    store, work = DurableStore(str(path), snapshot_bytes=1), Workload(seed, calm=True)
    await store.open(Model())
    for count in counts:
        await store.commit(work.entries(count))
        journals = path.with_name("journals")
        journals.mkdir(exist_ok=True)
        shutil.copy(files(path, "journal")[-1], journals)
        await store.seal()
    await store.close()
    return work


async def merged(
    path: pathlib.Path, point: str, seed: int = 9, counts: Sequence[int] = (40, 40, 40, 40, 40)
) -> Workload:
    """A directory as a death at this point of a merge leaves it, with a segment of so many entries each."""
    original = path.with_name(f"{path.name}-original")
    work = await sealed(original, seed, counts)
    store = DurableStore(str(original), snapshot_bytes=1)
    await store.open(Model())

    def copy(passed: str) -> None:
        if passed == point and not path.exists():
            shutil.copytree(original, path, ignore=shutil.ignore_patterns("spill"))

    assert store._open is not None
    with faultpoints.watching(copy):
        await store._open.upkeep.take_snapshot()
    await store.close()
    return work


@pytest.fixture(autouse=True)
def few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "MERGE_FILES", 3)


async def refused(path: pathlib.Path, match: str) -> None:
    """An open raises, with this in the sentence, and changes no file; nor does a look by SQL."""

    def contents() -> dict[str, bytes]:
        return {name: (path / name).read_bytes() for name in os.listdir(path) if name != "LOCK"}

    before = contents()
    with pytest.raises(DataDirectoryError, match=match):
        await DurableStore(str(path)).open(Model())
    assert contents() == before
    with pytest.raises(DataDirectoryError, match=match):
        await trio.to_thread.run_sync(query, str(path), "SELECT 1")
    assert contents() == before


async def recovers(path: pathlib.Path, work: Workload) -> None:
    store, model = DurableStore(str(path)), Model()
    await store.open(model)
    await assert_same(store, model, work.model)
    await store.close()


async def test_what_a_merge_left_over_goes_when_all_was_read(tmp_path: pathlib.Path) -> None:
    """With the snapshot that the merge went by, the merged segment is read, and its parts are removed."""
    path = tmp_path / "data"
    work = await merged(path, "merge.published")
    shutil.copytree(path, tmp_path / "fewer")
    files(tmp_path / "fewer", "segment")[2].unlink()
    for copy in (path, tmp_path / "fewer"):
        await recovers(copy, work)
        assert [bounds(file) for file in files(copy, "segment")] == [(0, 200)]


@pytest.mark.parametrize("how", ["end", "snapshot"])
async def test_nothing_goes_when_the_start_is_refused(tmp_path: pathlib.Path, how: str) -> None:
    """A log whose end is lost, or whose snapshot is damaged, keeps what a merge left over."""
    path = tmp_path / "data"
    await merged(path, "merge.published")
    if how == "end":
        for file in files(path, "journal"):
            file.unlink()
        await refused(path, "newest journal")
    else:
        (snapshot,) = files(path, "snapshot")
        data = bytearray(snapshot.read_bytes())
        data[5000] ^= 1
        snapshot.write_bytes(data)
        await refused(path, "is damaged")


async def test_without_the_snapshot_the_parts_of_a_merge_are_read(tmp_path: pathlib.Path) -> None:
    """They alone have the state then, and the messages too: the merged segment goes. Without one of them the state is
    lost, and all is kept."""
    path = tmp_path / "data"
    work = await merged(path, "merge.published")
    files(path, "snapshot")[0].unlink()
    shutil.copytree(path, tmp_path / "fewer")
    files(tmp_path / "fewer", "segment")[2].unlink()
    await refused(tmp_path / "fewer", "holds messages alone")
    await recovers(path, work)
    assert len(files(path, "segment")) == 5
    await recovers(path, work)


@pytest.mark.parametrize("snapshot", [True, False])
async def test_a_merged_segment_of_another_log_is_refused(tmp_path: pathlib.Path, *, snapshot: bool) -> None:
    """It has the positions of those that lie inside it, and not their messages."""
    path, other = tmp_path / "data", tmp_path / "other"
    work = await merged(path, "merge.published")
    await merged(other, "merge.published", seed=10)
    mine, foreign = (next(file for file in files(at, "segment") if bounds(file) == (0, 200)) for at in (path, other))
    mine.unlink()
    shutil.copy(foreign, path)
    if not snapshot:
        files(path, "snapshot")[0].unlink()
    await refused(path, "overlap" if snapshot else "holds messages alone")
    (path / foreign.name).unlink()
    await recovers(path, work)


async def test_segments_of_the_same_positions_are_of_one_log_or_refused(tmp_path: pathlib.Path) -> None:
    """One of another log is not taken for a leftover; one that was made again of the same journal is."""
    path, other, again = tmp_path / "data", tmp_path / "other", tmp_path / "again"
    work = await sealed(path)
    await sealed(other, seed=2)
    (mine,), (foreign,) = files(path, "segment"), files(other, "segment")
    assert bounds(mine) == bounds(foreign)
    shutil.copy(foreign, path)
    await refused(path, "overlap")
    (path / foreign.name).unlink()

    await sealed(again)
    (same,) = files(again, "segment")
    assert same.name != mine.name  # DuckDB gives each file an id of its own
    shutil.copy(same, path)
    await recovers(path, work)
    assert len(files(path, "segment")) == 1


async def test_a_segment_that_was_merged_alone(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A merge of one segment has the same positions: the one that has all that is in both is read."""
    monkeypatch.setattr(compaction, "MERGE_FILES", 1)
    path = tmp_path / "data"
    work = await merged(path, "merge.published", counts=(30,))
    before = {file.name for file in files(tmp_path / "data-original", "segment")}
    assert [bounds(file) for file in files(path, "segment")] == [(0, 30), (0, 30)]
    await recovers(path, work)
    (kept,) = files(path, "segment")
    assert kept.name not in before  # the original went with the merge that the copy was taken of


def whole(journal: pathlib.Path) -> None:
    del journal


def torn(journal: pathlib.Path) -> None:
    data = journal.read_bytes().rstrip(b"\0")
    journal.write_bytes(data[: len(data) - 9])


def longer(journal: pathlib.Path) -> None:
    """A commit that a death cut short."""
    journal.write_bytes(journal.read_bytes().rstrip(b"\0") + b"half")


def empty(journal: pathlib.Path) -> None:
    journal.write_bytes(journal.read_bytes()[:4096])


@pytest.mark.parametrize("damage", [whole, torn, empty])
async def test_a_journal_that_was_sealed_goes(tmp_path: pathlib.Path, damage: Callable[[pathlib.Path], None]) -> None:
    """A death came before it was removed; also when its segment was merged with others meanwhile, and also when it
    cannot be read to its end any more."""
    path = tmp_path / "data"
    work = await sealed(path, counts=(20, 20))
    for number, journal in enumerate(files(tmp_path / "journals", "journal")):
        shutil.copy(journal, path)
        damage(path / journal.name)
        await recovers(path, work)
        assert not (path / journal.name).exists(), number


@pytest.mark.parametrize("damage", [whole, torn, longer])
async def test_a_journal_of_an_older_copy_is_set_aside(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture, damage: Callable[[pathlib.Path], None]
) -> None:
    """A copy that was laid over an older one has a sealed journal as it was before it was done. The start goes on and
    says so, and the file is kept."""
    path = tmp_path / "data"
    work = await sealed(path, counts=(20, 20))
    other = tmp_path / "older" / "data"
    other.parent.mkdir()
    await sealed(other, counts=(15,))
    (journal,) = files(other.with_name("journals"), "journal")
    for number in (1, 2):  # the second time beside what the first set aside
        shutil.copy(journal, path)
        damage(path / journal.name)
        before = (path / journal.name).read_bytes()
        await recovers(path, work)
        assert not (path / journal.name).exists()
        assert (path / f"{journal.name}.kept-{number}").read_bytes() == before
        assert f"{journal.name}.kept-{number}" in caplog.text


async def test_journals_whose_segments_were_dropped_long_ago_are_set_aside(tmp_path: pathlib.Path) -> None:
    """Nothing says any more that these were sealed, and nobody can read what was in them."""
    path = tmp_path / "data"
    store, model = DurableStore(str(path), snapshot_bytes=1), Model()
    await store.open(Model())
    for number in range(1, 9):
        step = entry(1_000 + number, kv("k", number), version=number)
        model.take([step])
        await store.commit([step])
        if number == 2:
            shutil.copy(files(path, "journal")[0], tmp_path)
        await store.seal()
        assert store._open is not None
        await store._open.upkeep.take_snapshot()
    await store.close()
    (journal,) = files(tmp_path, "journal")
    shutil.copy(journal, path)
    work = Workload(1)
    work.model = model
    await recovers(path, work)
    assert files(path, "journal")[0].name == f"{journal.name}.kept-1"


async def test_a_journal_of_another_log_whose_segment_was_merged(tmp_path: pathlib.Path) -> None:
    """A merged segment has messages alone, and those say that it is not of this log."""
    path = tmp_path / "data"
    work = await merged(path, "drop.segment_removed")
    other = tmp_path / "other" / "data"
    other.parent.mkdir()
    await sealed(other, seed=77, counts=(30,))
    (journal,) = files(other.with_name("journals"), "journal")
    shutil.copy(journal, path)
    await refused(path, "no segment was made of what it holds")
    (path / journal.name).unlink()
    await recovers(path, work)


async def test_a_journal_whose_segment_was_merged_is_set_aside(tmp_path: pathlib.Path) -> None:
    """The merged segment reaches over it, and has messages alone: no death leaves this, but a copy may have it."""
    path = tmp_path / "data"
    work = await merged(path, "drop.segment_removed")
    journal = files(tmp_path / "journals", "journal")[1]
    shutil.copy(journal, path)
    await recovers(path, work)
    assert (path / f"{journal.name}.kept-1").exists()
    assert not (path / journal.name).exists()


async def test_a_journal_whose_segment_is_gone_is_set_aside(tmp_path: pathlib.Path) -> None:
    """Nothing in it could be read any more, and the snapshot says that its positions were sealed."""
    path = tmp_path / "data"
    store, model = DurableStore(str(path), snapshot_bytes=1), Model()
    await store.open(Model())
    for number in range(1, 9):
        step = entry(1_000 + number, kv("k", number), version=number)
        model.take([step])
        await store.commit([step])
    (journal,) = files(path, "journal")
    shutil.copy(journal, tmp_path)
    await store.seal()
    assert store._open is not None
    await store._open.upkeep.take_snapshot()
    await store.close()
    assert files(path, "segment") == []
    shutil.copy(tmp_path / journal.name, path)
    work = Workload(1)
    work.model = model
    await recovers(path, work)
    assert (path / f"{journal.name}.kept-1").exists()
    assert not (path / journal.name).exists()


async def test_a_journal_that_is_not_what_was_sealed_is_refused(tmp_path: pathlib.Path) -> None:
    """A journal that goes on beyond its segment, or holds other steps, and one that a snapshot of another log lies
    over, are kept: they may hold what was answered."""
    path = tmp_path / "data"
    work = await sealed(path)
    for seed, count in ((1, 25), (2, 20), (2, 15), (2, 5)):
        other = tmp_path / f"other-{seed}-{count}" / "data"
        other.parent.mkdir()
        await sealed(other, seed=seed, counts=(count,))
        (journal,) = files(other.with_name("journals"), "journal")
        shutil.copy(journal, path)
        for damage in (whole, longer):
            damage(path / journal.name)
            await refused(path, "no segment was made of what it holds")
        (path / journal.name).unlink()
    await recovers(path, work)

    store = DurableStore(str(tmp_path / "keys"), snapshot_bytes=1)
    await store.open(Model())
    await store.commit([entry(1_000 + number, kv(f"k{number}", number), version=number) for number in range(1, 41)])
    await store.seal()
    assert store._open is not None
    await store._open.upkeep.take_snapshot()
    await store.close()
    (journal,) = files(tmp_path / "journals", "journal")
    for file in (*files(path, "segment"), *files(path, "journal")):
        file.unlink()
    shutil.copy(journal, path)
    shutil.copy(files(tmp_path / "keys", "snapshot")[0], path)
    await refused(path, "no segment was made of what it holds")


@pytest.mark.parametrize("end", [PartitionPut(1, 1, "p", 5, 40), QueueDropped(1, "q")], ids=["retention", "deleted"])
async def test_a_journal_of_another_log_that_nothing_speaks_against(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, end: Effect
) -> None:
    """This log's retention is past its offsets, or its queue is gone, so that nothing can be compared: it is kept."""
    monkeypatch.setattr(compaction, "MERGE_FILES", 1)
    made = (queue(1), queue(2, "r"), PartitionPut(1, 1, "p", 5, 0), PartitionPut(2, 2, "r", 5, 0))
    steps = [Entry(2_000, Counters(0, 2, 2), made)]
    for number in range(50):
        both = Appended(1, (record(number),)), Appended(2, (record(number),))
        steps.append(Entry(2_001 + number, Counters(0, 2, 2), both))
    path, model = tmp_path / "data", Model()
    store = DurableStore(str(path), snapshot_bytes=1)
    await store.open(Model())
    for group in (steps, [Entry(3_000, Counters(0, 2, 2), (end,))]):
        model.take(group)
        await store.commit(group)
    await store.seal()
    assert store._open is not None
    await store._open.upkeep.take_snapshot()
    await store.close()
    other = DurableStore(str(tmp_path / "other"))
    await other.open(Model())
    await other.commit([entry(1_000, queue(1), PartitionPut(1, 1, "p", 5, 0))])
    await other.commit([entry(1_001 + number, Appended(1, (record(number),))) for number in range(30)])
    await other.close()
    (journal,) = files(tmp_path / "other", "journal")
    shutil.copy(journal, path)
    await recovers(path, worked(model))
    assert (path / f"{journal.name}.kept-1").read_bytes() == journal.read_bytes()


def worked(model: Model) -> Workload:
    work = Workload(1)
    work.model = model
    return work


async def keys(path: pathlib.Path, name: str, counts: Sequence[int], *, snapshot: bool) -> pathlib.Path:
    """A log of keys alone, each commit a step for each; its journal, as it was before it was sealed."""
    store, number = DurableStore(str(path), snapshot_bytes=1), 0
    await store.open(Model())
    for count in counts:
        await store.commit([entry(1_000 + n, kv(f"{name}{n}", n), version=n) for n in range(number, number + count)])
        number += count
    (journal,) = files(path, "journal")
    kept = shutil.copy(journal, path.with_name(f"{name}-{journal.name}"))
    if snapshot:
        await store.seal()
        assert store._open is not None
        await store._open.upkeep.take_snapshot()
    await store.close()
    return pathlib.Path(kept)


@pytest.mark.parametrize("whose", ["mine", "other"])
async def test_a_journal_of_keys_beside_a_snapshot(tmp_path: pathlib.Path, whose: str) -> None:
    """The versions that it gave to its keys say whether the snapshot is of the same log: if so, it is set aside; if
    not, refused, whichever of the two does not belong here."""
    path = tmp_path / "data"
    await keys(path, "mine", (60,), snapshot=True)
    journal = await keys(tmp_path / "older", whose, (30,), snapshot=False)
    shutil.copy(journal, path / f"journal-{0:020}.log")
    if whose == "other":
        await refused(path, "no segment was made of what it holds")
        return
    store, model = DurableStore(str(path)), Model()
    await store.open(model)
    await store.close()
    assert len(model.things) == 60
    assert files(path, "journal")[0].name.endswith(".kept-1")


async def test_a_full_disk_has_no_name_for_what_is_set_aside(tmp_path: pathlib.Path) -> None:
    """It does no harm where it is, and the start goes on."""
    path = tmp_path / "data"
    await keys(path, "mine", (60,), snapshot=True)
    journal = await keys(tmp_path / "older", "mine", (30,), snapshot=False)
    shutil.copy(journal, path / f"journal-{0:020}.log")

    class Full(FileOps):
        def rename(self, source: str, target: str) -> None:
            if ".kept-" in target:
                raise OSError(errno.ENOSPC, "No space left on device")
            super().rename(source, target)

    for ops in (Full(), FileOps()):
        store, model = DurableStore(str(path), ops=ops), Model()
        await store.open(model)
        await store.close()
        assert len(model.things) == 60
    assert files(path, "journal")[0].name.endswith(".kept-1")


async def test_a_merge_takes_no_more_files_than_there_are_descriptors_for() -> None:
    """Segments of which hardly anything is still read need next to nothing, and yet each takes a descriptor."""
    many = [SegmentFile(n, n + 1, 0, f"s{n}") for n in range(200)]
    live = {(file.first, file.last): 1 for file in many}
    totals, sizes = dict.fromkeys(many, 1_000), dict.fromkeys((file.path for file in many), 1_000_000)
    groups = list(compaction.groups_to_merge(many, live, totals, sizes, 1 << 30))
    assert [len(group) for group in groups] == [64, 64, 64, 8]
    assert [file for group in groups for file in group] == many

"""The doctor decides what is safe when it has seen everything: a repair takes away no last copy of anything, and no
proof that something is lost."""

from __future__ import annotations

import os
import pathlib
import shutil
import struct

import pytest
from storage_kit import Model, Workload
from test_storage_doctor import contents, flip, looked, opens
from test_storage_recovery import files, recovers

from queen_actors.errors import DataDirectoryError
from queen_actors.storage import DurableStore, compaction, doctor, faultpoints
from queen_actors.storage.directory import holding, noted_slots
from queen_actors.storage.doctor import Report, examine, told


async def written(path: pathlib.Path, roll_bytes: int = 1 << 30) -> Workload:
    """A directory to which three groups of five entries were committed, and its work."""
    store, work = DurableStore(str(path), roll_bytes=roll_bytes), Workload(1, calm=True)
    await store.open(Model())
    for _ in range(3):
        await store.commit(work.entries(5))
    await store.close()
    return work


async def sealed(path: pathlib.Path, seed: int = 1) -> tuple[pathlib.Path, Workload]:
    """A directory with one segment, and its work."""
    store, work = DurableStore(str(path)), Workload(seed, calm=True)
    await store.open(Model())
    await store.commit(work.entries(20))
    await store.seal()
    await store.close()
    (segment,) = files(path, "segment")
    return segment, work


def untouched(path: pathlib.Path) -> Report:
    """A repair finds what a look finds, and changes nothing, nor says that it did."""
    before, report = contents(path), looked(path)
    repaired = examine(str(path), repair=True)
    assert contents(path) == before
    assert (repaired.done, repaired.left) == ([], report.findings)
    assert report.findings
    return report


def said(path: pathlib.Path, report: Report) -> str:
    return "\n".join(told(str(path), report, repaired=False))


def ends(journal: pathlib.Path) -> list[int]:
    """The bytes at which the frames of a journal end."""
    data, at, found = journal.read_bytes(), 4096, []
    while at + 16 <= len(data) and (length := struct.unpack_from("<I", data, at)[0]):
        at += 16 + length
        found.append(at)
    return found


async def test_a_lost_end_stays_known(tmp_path: pathlib.Path) -> None:
    """With one note that cannot be read, the other one says that steps are lost: a repair leaves it."""
    await written(tmp_path)
    (journal,) = files(tmp_path, "journal")
    journal.write_bytes(journal.read_bytes()[: ends(journal)[1]])
    flip(tmp_path / "POSITION", 4096 + 10)
    assert "15 was committed: 5 steps that were answered are missing" in said(tmp_path, untouched(tmp_path))
    assert max(slot for slot in noted_slots(str(tmp_path / "POSITION")) if isinstance(slot, tuple)) == (15, 0)
    assert await opens(tmp_path) is None


async def test_a_lost_newest_journal_stays_known(tmp_path: pathlib.Path) -> None:
    """The same when the whole newest journal is gone, and all before it is sealed."""
    store, work = DurableStore(str(tmp_path)), Workload(1, calm=True)
    await store.open(Model())
    await store.commit(work.entries(5))
    await store.seal()
    await store.commit(work.entries(5))
    await store.close()
    files(tmp_path, "journal")[-1].unlink()
    flip(tmp_path / "POSITION", 4096 + 10)
    assert "10 was committed: 5 steps" in said(tmp_path, untouched(tmp_path))
    assert await opens(tmp_path) is None


async def test_a_journal_whose_segment_is_lost_is_kept(tmp_path: pathlib.Path) -> None:
    """A snapshot covers it, and the segment with its messages is gone: nothing else has them."""
    path = tmp_path / "data"
    store, work = DurableStore(str(path), snapshot_bytes=1), Workload(1, calm=True)
    await store.open(Model())
    await store.commit(work.entries(20))
    (journal,) = files(path, "journal")
    content = journal.read_bytes()
    await store.seal()
    assert store._open is not None
    await store._open.upkeep.take_snapshot()
    await store.close()
    journal.write_bytes(content)
    journal.chmod(0o640)  # as a copy of the directory has it that was made twice
    whole = shutil.copytree(path, tmp_path / "whole")
    (journal, _) = files(path, "journal")
    files(path, "segment")[0].unlink()
    report = untouched(path)
    assert f"{journal.name} holds the positions behind 0 up to 20, and no good segment" in said(path, report)
    assert f"{journal.name}: removed" in examine(str(whole), repair=True).done  # with the segment there, it goes
    await recovers(whole, work)


async def merging(path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> tuple[pathlib.Path, Workload]:
    """A directory as a crash leaves it between the publishing of a merged segment and the removal of its parts."""
    monkeypatch.setattr(compaction, "MERGE_FILES", 3)
    crashed = path.with_name(f"{path.name}-crashed")
    store, work = DurableStore(str(path), snapshot_bytes=1), Workload(9, 20, calm=True)
    await store.open(Model())
    for _ in range(4):
        await store.commit(work.entries(40))
        await store.seal()

    def watch(point: str) -> None:
        if point == "merge.published" and not crashed.exists():
            shutil.copytree(path, crashed, ignore=shutil.ignore_patterns("spill"))

    assert store._open is not None
    with faultpoints.watching(watch):
        await store._open.upkeep.take_snapshot()
    await store.close()
    return crashed, work


async def test_the_parts_of_a_merge(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a good snapshot they go, a damaged one of them too. Without it they alone have the state: they stay, the
    merged segment goes, and a damaged snapshot is made again from them. They also stand in for a merged segment that
    is damaged itself."""
    crashed, work = await merging(tmp_path / "data", monkeypatch)
    for how in ("good", "damaged", "missing", "bad part", "bad merge"):
        path = shutil.copytree(crashed, tmp_path / how)
        (snapshot,) = files(path, "snapshot")
        if how == "missing":
            snapshot.unlink()
        elif how == "damaged":
            flip(snapshot, 5000)
        wide, *parts = sorted(files(path, "segment"), key=lambda file: -int(file.name[29:49]) + int(file.name[8:28]))
        if how.startswith("bad"):
            flip(wide if how == "bad merge" else parts[1], 5000)
        harmless = all(finding.harmless for finding in looked(path).findings)
        assert (await opens(shutil.copytree(path, tmp_path / f"copy-{how}")) is not None) is harmless
        repaired = examine(str(path), repair=True)
        assert repaired.left == [], how
        there = {file for file in files(path, "segment") if ".kept-" not in file.name}
        assert there == ({wide} if how in ("good", "bad part") else set(parts)), how
        await recovers(path, work)


async def test_two_segments_with_the_same_positions(tmp_path: pathlib.Path) -> None:
    """One of another log is told, whichever comes first by its name, and both stay."""
    paths = tmp_path / "mine", tmp_path / "other"
    mine, _ = await sealed(paths[0])
    other, _ = await sealed(paths[1], 2)
    assert mine.name != other.name
    whole = {segment: segment.read_bytes() for segment in (mine, other)}
    for path, foreign in zip(paths, (other, mine), strict=True):  # a name ends in a checksum: either may be the first
        (path / foreign.name).write_bytes(whole[foreign])
        (path / foreign.name).chmod(0o640)
        assert "overlap: one of them does not belong here" in said(path, untouched(path))


async def test_what_a_merge_of_one_segment_leaves(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the same positions, and fewer messages or none less: of the two, the one that has everything stays."""
    path = tmp_path / "data"
    _, work = await sealed(path)
    store = DurableStore(str(path), snapshot_bytes=1)
    await store.open(Model())
    assert store._open is not None
    monkeypatch.setattr(compaction, "MERGE_FILES", 1)
    (segment,) = files(path, "segment")
    whole = segment.read_bytes()
    await store._open.upkeep.take_snapshot()
    await store.close()
    (merged,) = files(path, "segment")
    assert merged != segment
    segment.write_bytes(whole)
    segment.chmod(0o640)
    repaired = examine(str(path), repair=True)
    assert (repaired.left, repaired.done) == ([], [f"{merged.name}: removed"])
    await recovers(path, work)


async def test_somebody_elses_directory(tmp_path: pathlib.Path) -> None:
    """A name like those of the log is not enough: it is refused, and nothing in it is touched."""
    (tmp_path / "spill").mkdir()
    (tmp_path / "dir.tmp").mkdir()
    for name in ("spill/thesis.tex", "dir.tmp/x", "draft.tmp", "journal-2024-05.md", "FORMAT", f"journal-{7:020}.log"):
        (tmp_path / name).write_text("mine")
    before = contents(tmp_path)
    with pytest.raises(DataDirectoryError, match="no data directory of a broker"):
        examine(str(tmp_path), repair=True)
    assert contents(tmp_path) == before


async def test_other_files_in_a_directory_of_ours(tmp_path: pathlib.Path) -> None:
    """They are told, and stay, whatever they end in: a repair removes what the broker and DuckDB call their own."""
    work = await written(tmp_path)
    ours = ["FORMAT.tmp", f"merge-{3:020}.duckdb.tmp", f"merge-{3:020}.duckdb.tmp.wal", f"journal-{9:020}.log.tmp"]
    theirs = ["draft.tmp", "segment-x.duckdb.tmp", "journal-2024-05.log"]
    for name in (*ours, *theirs):
        (tmp_path / name).write_text("x")
        (tmp_path / name).chmod(0o666)
    (tmp_path / f"segment-{1:020}.duckdb.tmp").mkdir()
    (tmp_path / "spill").mkdir()
    (tmp_path / "spill" / "thesis.tex").write_text("mine")
    before = contents(tmp_path)
    repaired = examine(str(tmp_path), repair=True)
    assert repaired.left == []
    assert sorted(repaired.done) == sorted(f"{name}: removed" for name in ours)
    assert contents(tmp_path) == {name: what for name, what in before.items() if name not in ours}
    for name in ("draft.tmp is none", "spill/thesis.tex is none", "journal-2024-05.log is none"):
        assert name in said(tmp_path, repaired)
    await recovers(tmp_path, work)


async def test_a_remedy_that_fails_is_told(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are done and told, once each; after a failure at the log itself nothing else of it is touched."""
    work = await written(tmp_path)
    (journal,) = files(tmp_path, "journal")
    with journal.open("ab") as file:
        file.write(b"\x10\0\0\0half a frame")
    (tmp_path / "FORMAT").unlink()
    (tmp_path / "FORMAT.tmp").write_text("x")
    (tmp_path / "LOCK").chmod(0o666)
    os.symlink(tmp_path, tmp_path / "spill")

    def full(*_: object) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(doctor, "_write_format", full)
    repaired = examine(str(tmp_path), repair=True)
    assert repaired.done == [
        "FORMAT: could not be mended: [Errno 28] No space left on device",
        "LOCK: its mode is 0640 now",
        "FORMAT.tmp: removed",
    ]
    assert {finding.remedy for finding in repaired.left} == {"format", "cut"}
    monkeypatch.undo()
    assert examine(str(tmp_path), repair=True).left == []
    (tmp_path / "spill").unlink()
    await recovers(tmp_path, work)


@pytest.mark.parametrize("older", ["damaged", "whole"])
async def test_an_end_that_was_answered_is_not_cut(tmp_path: pathlib.Path, older: str) -> None:
    """The note knows it, whether or not the journals before it are whole; they are told as what they are."""
    await written(tmp_path, roll_bytes=4097)
    journals = files(tmp_path, "journal")
    assert len(journals) == 3
    if older == "damaged":
        flip(journals[0], 10)
    journals[-1].write_bytes(journals[-1].read_bytes()[: ends(journals[-1])[-1] - 7])
    text = said(tmp_path, untouched(tmp_path))
    assert "10 was committed" not in text
    assert "15 was committed: 5 steps that were answered are missing" in text
    assert ("the checksum of its first page does not fit" in text) is (older == "damaged")


async def test_a_torn_end_is_left_while_more_is_wrong(tmp_path: pathlib.Path) -> None:
    """Nothing of the log is touched as long as not all of it can be read; permissions are mended all the same."""
    await written(tmp_path, roll_bytes=4097)
    journals = files(tmp_path, "journal")
    flip(journals[0], 4096 + 30)
    with journals[-1].open("ab") as file:
        file.write(b"\x10\0\0\0half a frame")
    journals[1].chmod(0o666)
    bytes_ = [journal.read_bytes() for journal in journals]
    report = examine(str(tmp_path), repair=True)
    assert report.done == [f"{journals[1].name}: its mode is 0640 now"]
    assert [journal.read_bytes() for journal in journals] == bytes_
    assert "because of what else is wrong" in said(tmp_path, looked(tmp_path))


async def test_a_stale_snapshot_stands_in_for_none(tmp_path: pathlib.Path) -> None:
    """An older snapshot that nothing follows is of no use: the damaged newest one stays under its name."""
    store, work = DurableStore(str(tmp_path), snapshot_bytes=1), Workload(1, calm=True)
    await store.open(Model())
    await store.commit(work.entries(20))
    await store.seal()
    assert store._open is not None
    await store._open.upkeep.take_snapshot()
    (old,) = files(tmp_path, "snapshot")
    kept = old.read_bytes()
    for _ in range(8):
        await store.commit(work.entries(20))
        await store.seal()
    await store._open.upkeep.take_snapshot()
    await store.close()
    (new,) = files(tmp_path, "snapshot")
    flip(new, 5000)
    old.write_bytes(kept)
    old.chmod(0o640)
    assert f"{new.name} has other bytes" in said(tmp_path, looked(tmp_path))
    assert "nowhere else" in said(tmp_path, untouched(tmp_path))
    assert await opens(tmp_path) is None


@pytest.mark.parametrize("kind", ["POSITION", "FORMAT", "LOCK", "journal", "segment", "snapshot"])
async def test_a_pipe_in_a_files_place(tmp_path: pathlib.Path, kind: str) -> None:
    """The doctor does not wait for somebody to write into it: it says that it is no file."""
    _, work = await sealed(tmp_path)
    store = DurableStore(str(tmp_path), snapshot_bytes=1)
    await store.open(Model())
    assert store._open is not None
    await store._open.upkeep.take_snapshot()
    await store.commit(work.entries(5))
    await store.close()
    file = tmp_path / kind if kind.isupper() else files(tmp_path, kind)[-1]
    file.unlink()
    os.mkfifo(file, 0o640)
    assert f"{file.name} is no regular file" in said(tmp_path, untouched(tmp_path))


async def test_a_journal_of_a_roll_that_failed(tmp_path: pathlib.Path) -> None:
    """It begins before the log's end and holds nothing: the doctor says of it what a start does with it."""
    work = await written(tmp_path)
    store = DurableStore(str(tmp_path / "other"))
    await store.open(Model())
    await store.commit(Workload(2, calm=True).entries(12))
    await store.close()
    await store.open(Model())
    await store.close()
    empty = files(tmp_path / "other", "journal")[-1]
    shutil.move(empty, tmp_path / empty.name)
    shutil.rmtree(tmp_path / "other")
    report = looked(tmp_path)
    assert [(finding.name, finding.remedy, finding.harmless) for finding in report.findings] == [
        (empty.name, "remove", True)
    ]
    assert examine(str(tmp_path), repair=True).left == []
    await recovers(tmp_path, work)


async def test_a_directory_without_lock_is_held_all_the_same(tmp_path: pathlib.Path) -> None:
    """A LOCK that was removed, or not copied, keeps neither the doctor from a broker's directory nor the reverse."""
    work = await written(tmp_path)
    (tmp_path / "LOCK").unlink()
    store = DurableStore(str(tmp_path))
    await store.open(Model())
    (tmp_path / "LOCK").unlink()
    (tmp_path / f"segment-{3:020}.duckdb.tmp").write_text("being built")
    before = contents(tmp_path)
    with pytest.raises(DataDirectoryError, match="in use"):
        examine(str(tmp_path), repair=True)
    assert contents(tmp_path) == before
    await store.close()
    (tmp_path / "LOCK").unlink(missing_ok=True)
    with holding(str(tmp_path)):
        assert await opens(tmp_path) is None
    assert examine(str(tmp_path), repair=True).left == []
    await recovers(tmp_path, work)


async def test_a_journal_that_a_start_sets_aside(tmp_path: pathlib.Path) -> None:
    """What a start keeps, because it may not be what was sealed, a repair does not remove, and both say so."""
    _, work = await sealed(tmp_path / "data")
    other = DurableStore(str(tmp_path / "other"))
    same = Workload(1, calm=True)
    await other.open(Model())
    await other.commit(same.entries(10))
    await other.commit(same.entries(10))  # the same entries, in other frames
    await other.close()
    (journal,) = files(tmp_path / "other", "journal")
    shutil.copy(journal, tmp_path / "data")
    report = untouched(tmp_path / "data")
    assert all(finding.harmless for finding in report.findings)
    assert f"{journal.name} holds what lies in" in said(tmp_path / "data", report)
    assert "A repair leaves it; a start sets it aside, and keeps it." in said(tmp_path / "data", report)
    await recovers(tmp_path / "data", work)
    assert (tmp_path / "data" / f"{journal.name}.kept-1").exists()
    assert f"{journal.name}.kept-1 was set aside" in said(tmp_path / "data", looked(tmp_path / "data"))


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_journal_that_does_not_belong_here_while_more_is_wrong(tmp_path: pathlib.Path, seed: int) -> None:
    """A damaged snapshot can be made again; the journal of an older copy stays where it is all the same, and beside one
    of another log, which a start refuses, nothing is repaired."""
    path = tmp_path / "data"
    store, work = DurableStore(str(path), snapshot_bytes=1), Workload(1, calm=True)
    await store.open(Model())
    await store.commit(work.entries(20))
    await store.seal()
    assert store._open is not None
    await store._open.upkeep.take_snapshot()
    await store.close()
    other, entries = DurableStore(str(tmp_path / "other")), Workload(seed, calm=True)
    await other.open(Model())
    for _ in range(2):
        await other.commit(entries.entries(10))
    await other.close()
    (journal,) = files(tmp_path / "other", "journal")
    shutil.copy(journal, path)
    flip(files(path, "snapshot")[0], 5_000)
    if seed == 2:
        assert "it is of another log" in said(path, untouched(path))
        return
    repaired = examine(str(path), repair=True)
    assert any("made again" in sentence for sentence in repaired.done)
    assert (path / journal.name).read_bytes() == journal.read_bytes()
    await recovers(path, work)
    assert (path / f"{journal.name}.kept-1").exists()

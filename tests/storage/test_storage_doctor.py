"""The doctor: each kind of damage is told with its file, what is safe is repaired, what an open accepts is harmless."""

from __future__ import annotations

import fcntl
import os
import pathlib
import random
import re
import shutil
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import trio
from storage_kit import Model, Workload, assert_same, cursor, entry, kv
from test_storage_recovery import files, fill, frames, recovers

from queen_actors.domain.effects import Appended, PartitionPut, Record, TimerPut
from queen_actors.errors import DataDirectoryError, QueenError
from queen_actors.storage import DurableStore, segments
from queen_actors.storage.directory import DataDirectory, JournalFile
from queen_actors.storage.doctor import Report, examine, told
from queen_actors.storage.fileops import FileOps

Damage = Callable[[pathlib.Path], None]


def contents(path: pathlib.Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(file.relative_to(path)): (file.read_bytes(), file.stat().st_mode)
        for file in path.rglob("*")
        if file.is_file()
    }


def looked(path: pathlib.Path) -> Report:
    """Examine, and check that a look changes nothing."""
    before = contents(path)
    report = examine(str(path))
    assert contents(path) == before
    return report


def flip(file: pathlib.Path, at: int) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 0x40
    file.write_bytes(data)


async def opens(path: pathlib.Path) -> Model | None:
    """What an open recovers, or None when it refuses."""
    store, model = DurableStore(str(path)), Model()
    try:
        await store.open(model)
    except QueenError:
        return None
    await store.close()
    return model


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, tuple[pathlib.Path, Workload]]:
    """A data directory with a snapshot and one without, each with the work that is in it: to be copied."""
    found = {}
    for snapshot in (True, False):
        path = tmp_path_factory.mktemp("filled") / "data"
        work = trio.run(partial(fill, path, seals=3, snapshot=snapshot))
        journal = newest_journal(path)
        journal.write_bytes(frames(journal))  # without the room that was allocated ahead
        found[snapshot] = (path, work)
    return found


Fill = Callable[..., Workload]


@pytest.fixture
def filled(made: dict[bool, tuple[pathlib.Path, Workload]]) -> Fill:
    """Makes a copy."""

    def copy(path: pathlib.Path, *, snapshot: bool = True) -> Workload:
        source, work = made[snapshot]
        shutil.copytree(source, path, dirs_exist_ok=True)
        return work

    return copy


def newest_journal(path: pathlib.Path) -> pathlib.Path:
    return files(path, "journal")[-1]


def tear(path: pathlib.Path) -> None:
    with newest_journal(path).open("ab") as file:
        file.write(b"\x10\0\0\0half a frame")


def lose_end(path: pathlib.Path) -> None:
    journal = newest_journal(path)
    journal.write_bytes(journal.read_bytes()[:-7])


def damage_middle(path: pathlib.Path) -> None:
    flip(files(path, "journal")[0], 4096 + 30)


def tear_older(path: pathlib.Path) -> None:
    journal = files(path, "journal")[0]
    journal.write_bytes(journal.read_bytes() + b"\x01tail")


def rename_journal(path: pathlib.Path) -> None:
    journal = files(path, "journal")[1]
    journal.rename(path / "journal-00000000000000000601.log")


def swap_bytes(kind: str) -> Damage:
    return lambda path: flip(files(path, kind)[-1], 5000)


def remove(kind: str, place: int) -> Damage:
    return lambda path: files(path, kind)[place].unlink()


def write(name: str, data: bytes) -> Damage:
    return lambda path: void((path / name).write_bytes(data))


def void(_: object) -> None:
    return None


def directory_instead(path: pathlib.Path) -> None:
    journal = files(path, "journal")[1]
    journal.unlink()
    journal.mkdir()


def loosen(path: pathlib.Path) -> None:
    files(path, "segment")[0].chmod(0o644)


def spill(path: pathlib.Path) -> None:
    (path / "spill" / "build").mkdir(parents=True)
    (path / "spill" / "build" / "duckdb_temp_block-7.block").write_bytes(b"x")


KINDS: dict[str, tuple[Damage, str, bool]] = {
    "a torn end": (tear, r"journal-0*700\.log ends in 16 bytes from byte \d+ on that are no whole frame", True),
    "a lost end": (lose_end, r"the log ends at position 760 at byte \d+, and 780 was committed: 20 steps", False),
    "a flipped bit before good frames": (damage_middle, r"journal-0*540\.log is damaged: the bytes at 4096", False),
    "a torn older journal": (tear_older, r"journal-0*540\.log ends in 5 bytes from byte \d+ .* a newer journal", False),
    "a renamed journal": (rename_journal, r"says of itself that it begins at position 620: it was renamed", False),
    "a flipped bit in a segment": (swap_bytes("segment"), r"segment-\S+ has other bytes than those", False),
    "a flipped bit in a snapshot": (swap_bytes("snapshot"), r"snapshot-\S+ has other bytes than those", False),
    "a damaged first page": (
        lambda path: flip(newest_journal(path), 2), r"journal-0*700\.log is damaged: its first page is not", False,
    ),
    "a damaged position of the first page": (
        lambda path: flip(newest_journal(path), 13), r"the checksum of its first page does not fit", False,
    ),
    "an empty journal": (lambda path: newest_journal(path).write_bytes(b"") and None, r"its first page is not", False),
    "a missing journal": (remove("journal", 1), r"begins at position 700, and the log before it ends at 620", False),
    "a missing newest journal": (remove("journal", 2), r"the log ends at position 700 .* 780 was committed", False),
    "a missing segment": (remove("segment", 1), r"journal-0*540\.log begins at position 540, .* at 360", False),
    "a missing segment of messages": (remove("segment", 0), r"segment of positions 180 to 360 is missing", False),
    "a missing snapshot": (remove("snapshot", 0), r"begins at position 180, and the log before it ends at 0", False),
    "a missing FORMAT": (lambda path: (path / "FORMAT").unlink(), r"FORMAT is missing", True),
    "a damaged FORMAT": (write("FORMAT", b"\xff\x00queen"), r"FORMAT reads .* which is no format", True),
    "a missing POSITION": (lambda path: (path / "POSITION").unlink(), r"POSITION does not say how far", True),
    "a damaged POSITION": (write("POSITION", b"x" * 4124), r"POSITION does not say how far", True),
    "a damaged note": (lambda path: flip(path / "POSITION", 12), r"POSITION has a note that cannot", True),
    "unfinished work": (write("segment-00000000000000000007.duckdb.tmp", b"x"), r"is unfinished work", True),
    "a spill directory": (spill, r"spill is unfinished work", True),
    "loose permissions": (loosen, r"segment-\S+ may be used by others .* its mode is 0644", True),
    "a directory in a file's place": (directory_instead, r"journal-0*620\.log is no regular file", False),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
async def test_a_kind_of_damage(tmp_path: pathlib.Path, filled: Fill, kind: str) -> None:
    """Each is told with its file; a repair mends what is safe, and then everything is there; it leaves alone what is
    not; an open accepts exactly what the doctor calls harmless."""
    damage, said, repairable = KINDS[kind]
    path = tmp_path / "data"
    work = filled(path)
    assert looked(path).findings == []
    if kind == "a damaged note":
        store = DurableStore(str(path))
        await store.open(Model())
        await store.close()
        # the second slot is written while a broker runs
        with (path / "POSITION").open("r+b") as file:
            page = file.read(28)
            file.seek(4096)
            file.write(page)
    damage(path)
    report = looked(path)
    assert report.findings
    assert re.search(said, "\n".join(told(str(path), report, repaired=False)))
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    harmless = all(finding.harmless for finding in report.findings)
    assert (await opens(copy) is not None) is harmless
    before = contents(path)
    repaired = examine(str(path), repair=True)
    if repairable:
        assert repaired.left == []
        assert repaired.done
        await recovers(path, work)
    else:
        assert repaired.left
        assert repaired.done == []
        assert contents(path) == before


async def test_a_cut_keeps_a_copy(tmp_path: pathlib.Path, filled: Fill) -> None:
    """The journal as it was lies beside the one that was cut, byte for byte, and an open does not mind it."""
    work = filled(tmp_path)
    tear(tmp_path)
    torn = newest_journal(tmp_path).read_bytes()
    examine(str(tmp_path), repair=True)
    (kept,) = files(tmp_path, "*.kept")
    assert kept.read_bytes() == torn
    assert looked(tmp_path).findings == []
    await recovers(tmp_path, work)


async def make_snapshot(path: pathlib.Path) -> tuple[pathlib.Path, int]:
    """Seal everything and publish a snapshot of it, and go no further, as a crash at that moment would; the snapshot,
    and how many segments it was made from."""
    store = DurableStore(str(path), snapshot_bytes=1 << 40)
    await store.open(Model())
    await store.seal()
    assert store._open is not None
    upkeep = store._open.upkeep
    since = list(upkeep.since)
    made = await upkeep._run(lambda: upkeep._build_snapshot(upkeep.snapshot, since))
    await store.close()
    return pathlib.Path(made.path), len(since)


async def test_a_snapshot_is_made_again(tmp_path: pathlib.Path) -> None:
    """A damaged snapshot whose segments are all there is made again from them; the damaged one is kept."""
    path = tmp_path / "data"
    work = await fill(path, seals=3)
    snapshot, count = await make_snapshot(path)
    flip(snapshot, 6000)
    damaged = snapshot.read_bytes()
    assert [finding.remedy for finding in looked(path).findings] == ["rebuild"]
    assert await opens(shutil.copytree(path, tmp_path / "copy")) is None
    repaired = examine(str(path), repair=True)
    assert repaired.left == []
    assert any(f"made again from {count} segments" in sentence for sentence in repaired.done)
    assert [kept.read_bytes() for kept in files(path, "*.kept")] == [damaged]
    await recovers(path, work)


async def test_a_damaged_segment_gives_way_to_its_journal(tmp_path: pathlib.Path) -> None:
    """A segment that was published before its journal was removed, and is damaged: the journal stands in for it."""
    work = Workload(5)
    store = DurableStore(str(tmp_path), roll_bytes=1 << 30)
    await store.open(Model())
    await store.commit(work.entries(50))
    await store.close()
    (journal,) = files(tmp_path, "journal")
    whole = frames(journal)
    store = DurableStore(str(tmp_path))
    await store.open(Model())
    await store.seal()
    await store.close()
    journal.write_bytes(whole)
    journal.chmod(0o640)
    (segment,) = files(tmp_path, "segment")
    flip(segment, 5000)
    report = looked(tmp_path)
    assert [(finding.name, finding.remedy) for finding in report.findings] == [(segment.name, "aside")]
    assert examine(str(tmp_path), repair=True).left == []
    await recovers(tmp_path, work)


async def test_an_older_snapshot_serves(tmp_path: pathlib.Path) -> None:
    """When an older snapshot and what follows it are there, a damaged newer one is harmless, and set aside."""
    path = tmp_path / "data"
    work = await fill(path, seals=2, snapshot=True)
    newer, _ = await make_snapshot(path)
    assert len(files(path, "snapshot")) == 2
    flip(newer, 6000)
    found = [(finding.name, finding.remedy, finding.harmless) for finding in looked(path).findings]
    assert found == [(newer.name, "aside", True)]
    await recovers(shutil.copytree(path, tmp_path / "copy"), work)
    assert examine(str(path), repair=True).left == []
    await recovers(path, work)


async def test_files_that_a_crash_left(tmp_path: pathlib.Path) -> None:
    """A journal whose segment is there, and a segment that a merge has taken in, are harmless, and go."""
    work = Workload(6)
    store = DurableStore(str(tmp_path))
    await store.open(Model())
    await store.commit(work.entries(30))
    await store.close()
    (journal,) = files(tmp_path, "journal")
    whole = frames(journal)
    store = DurableStore(str(tmp_path))
    await store.open(Model())
    await store.seal()
    await store.close()
    journal.write_bytes(whole)
    journal.chmod(0o640)
    report = looked(tmp_path)
    assert [(finding.name, finding.remedy, finding.harmless) for finding in report.findings] == [
        (journal.name, "remove", True)
    ]
    repaired = examine(str(tmp_path), repair=True)
    assert (repaired.left, repaired.done) == ([], [f"{journal.name}: removed"])
    await recovers(tmp_path, work)


@pytest.mark.parametrize("seed", range(8))
async def test_any_damage_is_told(tmp_path: pathlib.Path, filled: Fill, seed: int) -> None:
    """Bytes changed, cut off or added anywhere, files removed: what the doctor calls healthy or harmless an open
    accepts, with everything that was answered; whatever an open refuses has a finding that says so."""
    random_ = random.Random(seed)
    source = tmp_path / "source"
    work = filled(source, snapshot=seed % 2 == 0)
    for number in range(6):
        path = tmp_path / f"data-{number}"
        shutil.copytree(source, path)
        names = sorted(name for name in os.listdir(path) if name != "LOCK")
        for _ in range(random_.randint(1, 2)):
            file = path / random_.choice(names)
            if not file.exists():
                continue
            data = file.read_bytes()
            at = random_.randrange(len(data) or 1)
            match random_.randrange(5):
                case 0:
                    file.unlink()
                case 1:
                    file.write_bytes(data[:at])
                case 2:
                    file.write_bytes(data + random_.randbytes(random_.randint(1, 300)))
                case 3:
                    file.write_bytes(data[:at] + bytes(min(len(data) - at, 512)) + data[at + 512 :])
                case _:
                    flip(file, at)
        refused = [finding for finding in looked(path).findings if not finding.harmless]
        copy = tmp_path / f"copy-{number}"
        shutil.copytree(path, copy)
        if refused:
            assert await opens(copy) is None, refused
        else:
            await recovers(copy, work)
        if not examine(str(path), repair=True).left:
            await recovers(path, work)


async def test_encrypted_payloads_need_their_key(tmp_path: pathlib.Path) -> None:
    """Wherever they lie, in the journal or sealed: without the key, or with a wrong one, it is told."""
    secret = b"\0E1" + b"s" * 40
    store = DurableStore(str(tmp_path))
    await store.open(Model())
    timer = TimerPut("q", "t", "p", 99, "t", "m", secret, True, None, 0, None, 1, 1)
    await store.commit([entry(1, PartitionPut(1, 1, "p", 1, 0), Appended(1, (Record(0, 1, "i", "t", secret),)))])
    await store.commit([entry(2, timer, kv("k", 1), cursor(1, "g", 0))])
    for _ in ("journal", "segment"):
        await store.close()
        report = looked(tmp_path)
        assert [finding.sentence for finding in report.findings] == [
            "holds 2 payloads encrypted with a key, and there is none here"
        ]
        assert examine(str(tmp_path), repair=True).left == report.findings

        def wrong(_: bytes) -> Any:
            raise QueenError("another key")

        assert "the key does not open" in examine(str(tmp_path), wrong).findings[0].sentence
        opened: list[bytes] = []
        assert examine(str(tmp_path), opened.append).findings == []
        assert opened == [secret]
        store = DurableStore(str(tmp_path))
        await store.open(Model())
        await store.seal()
    await store.close()


async def test_what_cannot_be_looked_at(tmp_path: pathlib.Path, filled: Fill) -> None:
    """No directory, one of something else, one that a broker has open, one of another version: said, and left alone."""
    with pytest.raises(DataDirectoryError, match="There is no directory"):
        examine(str(tmp_path / "none"))
    with pytest.raises(DataDirectoryError, match="no data directory of a broker"):
        examine(str(tmp_path))
    path = tmp_path / "data"
    filled(path)
    store = DurableStore(str(path))
    await store.open(Model())
    with pytest.raises(DataDirectoryError, match=f"in use by process {os.getpid()}"):
        examine(str(path), repair=True)
    await store.close()
    (path / "FORMAT").write_text("queen-actors data directory, format 9\n")
    with pytest.raises(DataDirectoryError, match="format 9"):
        examine(str(path), repair=True)


async def test_the_directory_is_locked_meanwhile(tmp_path: pathlib.Path, filled: Fill) -> None:
    """No broker can open the directory while the doctor works on it; afterwards one can."""
    work = filled(tmp_path)
    tried: list[object] = []

    def decrypt(_: bytes) -> None:
        with (tmp_path / "LOCK").open("rb") as lock:
            with pytest.raises(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            tried.append(lock)

    store = DurableStore(str(tmp_path))
    await store.open(Model())
    secret = Appended(10_000, (Record(0, 1, "i", "t", b"\0E1" + b"s" * 40),))
    await store.commit([entry(10**6, PartitionPut(10_000, 1, "p", 1, 0), secret)])
    await store.close()
    assert examine(str(tmp_path), decrypt).findings == []
    assert tried
    assert await opens(tmp_path) is not None
    assert work.model.things


async def test_all_problems_are_told_at_once(tmp_path: pathlib.Path, filled: Fill) -> None:
    """Where an open stops at the first, the doctor goes on; a repair does its part and says what is left."""
    filled(tmp_path)
    for damage in (swap_bytes("segment"), damage_middle, loosen, write("FORMAT.tmp", b"")):
        damage(tmp_path)
    report = looked(tmp_path)
    assert len(report.findings) == 4
    repaired = examine(str(tmp_path), repair=True)
    assert {finding.remedy for finding in report.findings} == {None, "restrict", "remove"}
    assert len(repaired.left) == 2
    assert len(repaired.done) == 2


async def test_every_file_is_for_its_user_and_group_alone(tmp_path: pathlib.Path, filled: Fill) -> None:
    """Journals, segments, snapshots and merged segments alike are made without any right for others."""
    filled(tmp_path)
    assert {file.stat().st_mode & 0o777 for file in files(tmp_path, "*")} | {
        file.stat().st_mode & 0o777 for file in (tmp_path / "FORMAT", tmp_path / "POSITION", tmp_path / "LOCK")
    } == {0o640}


async def test_a_refused_open_names_the_doctor(tmp_path: pathlib.Path, filled: Fill) -> None:
    """The sentence with which a start refuses a damaged log says what to run."""
    filled(tmp_path)
    swap_bytes("segment")(tmp_path)
    with pytest.raises(DataDirectoryError, match=rf"queen-actors doctor --data {re.escape(str(tmp_path))}"):
        await DurableStore(str(tmp_path)).open(Model())


async def test_a_rebuild_that_fails_leaves_the_file(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be made again has its name back, and is told as before."""
    work = Workload(7)
    store = DurableStore(str(tmp_path))
    await store.open(Model())
    await store.commit(work.entries(20))
    await store.seal()
    assert store._open is not None
    await store._open.upkeep.take_snapshot()
    await store.close()
    (snapshot,) = files(tmp_path, "snapshot")
    flip(snapshot, 6000)
    before = contents(tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(segments, "make_file", full)
    repaired = examine(str(tmp_path), repair=True)
    assert [finding.remedy for finding in repaired.left] == ["rebuild"]
    assert contents(tmp_path) == before
    monkeypatch.undo()
    held = DataDirectory(FileOps(), str(tmp_path), -1, -1)
    assert JournalFile(20, held.journal_path(20)) in held.listing().journals
    assert examine(str(tmp_path), repair=True).left == []
    store, model = DurableStore(str(tmp_path)), Model()
    await store.open(model)
    await assert_same(store, model, work.model)
    await store.close()

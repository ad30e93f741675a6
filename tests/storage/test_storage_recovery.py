"""What an open refuses, each time with the files kept, and what it repairs by itself."""

from __future__ import annotations

import os
import pathlib
import shutil

import pytest
from storage_kit import Model, Workload, assert_same

from queen_actors.errors import DataDirectoryError, StorageFailed
from queen_actors.storage import DurableStore, recovery
from queen_actors.storage.journal import JournalReader


async def fill(path: pathlib.Path, *, seals: int, entries: int = 60, snapshot: bool = False) -> Workload:
    """A data directory with this many segments and, behind them, entries in three journals."""
    store = DurableStore(str(path), roll_bytes=1 << 30, snapshot_bytes=1)
    await store.open(Model())
    work = Workload(seals, payload_bytes=200)
    for number in range(seals):
        for _ in range(3):
            await store.commit(work.entries(entries))
        await store.seal()
        if snapshot and number == seals // 2:
            await take_snapshot(store)
    for life in range(3):
        for _ in range(4):
            await store.commit(work.entries(20))
        await store.close()
        if life < 2:
            await store.open(Model())
    return work


async def take_snapshot(store: DurableStore) -> None:
    assert store._open is not None
    await store._open.upkeep.take_snapshot()


async def refused(path: pathlib.Path, match: str) -> None:
    """An open raises, with this in the sentence, and changes no file."""
    before = {name: (path / name).read_bytes() for name in os.listdir(path) if name != "LOCK"}
    with pytest.raises(DataDirectoryError, match=match):
        await DurableStore(str(path)).open(Model())
    assert {name: (path / name).read_bytes() for name in os.listdir(path) if name != "LOCK"} == before


async def recovers(path: pathlib.Path, work: Workload) -> Model:
    store, model = DurableStore(str(path)), Model()
    await store.open(model)
    await assert_same(store, model, work.model)
    await store.close()
    return model


def files(path: pathlib.Path, kind: str) -> list[pathlib.Path]:
    return sorted(path.glob(f"{kind}-*"))


def frames(journal: pathlib.Path) -> bytes:
    """The bytes of a journal up to the end of its last frame."""
    reader = JournalReader(str(journal))
    for _ in reader.frames():
        pass
    return journal.read_bytes()[: reader.end]


async def test_a_missing_file_is_refused_whichever_it_is(tmp_path: pathlib.Path) -> None:
    """Without any one of the journals and segments that the state needs, the open is refused; with it, it works."""
    work = await fill(tmp_path / "data", seals=3)
    needed = files(tmp_path / "data", "segment") + files(tmp_path / "data", "journal")
    assert len(needed) == 6
    for file in needed:
        away = tmp_path / "away"
        shutil.move(file, away)
        await refused(tmp_path / "data", "missing|ends at position")
        shutil.move(away, file)
    await recovers(tmp_path / "data", work)


async def test_a_missing_old_segment_is_refused(tmp_path: pathlib.Path) -> None:
    """A snapshot knows which segments behind it hold messages that may still be read."""
    work = await fill(tmp_path, seals=3, snapshot=True)
    (snapshot,) = files(tmp_path, "snapshot")
    segments = [file for file in files(tmp_path, "segment") if file.name.split("-")[2] <= snapshot.name.split("-")[1]]
    shutil.move(segments[0], tmp_path.parent / "one")
    await refused(tmp_path, "is missing, and .* says that it holds messages")
    shutil.move(tmp_path.parent / "one", segments[0])
    model = await recovers(tmp_path, work)
    assert model.restored


@pytest.mark.parametrize("kind", ["segment", "snapshot"])
async def test_a_flipped_bit_in_a_sealed_file_is_refused(tmp_path: pathlib.Path, kind: str) -> None:
    """The checksum in a file's name is of all its bytes."""
    work = await fill(tmp_path, seals=2, snapshot=True)
    for file in files(tmp_path, kind):
        whole = file.read_bytes()
        for at in (0, len(whole) // 3, len(whole) // 2, len(whole) - 1):
            data = bytearray(whole)
            data[at] ^= 16
            file.write_bytes(data)
            await refused(tmp_path, "is damaged")
        file.write_bytes(whole[:-1])
        await refused(tmp_path, "is damaged")
        file.write_bytes(whole)
    await recovers(tmp_path, work)


async def test_old_segments_beyond_the_budget_are_checked_behind_the_open(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an open has no time to check, the upkeep does, and ends the store when bytes are wrong."""
    await fill(tmp_path, seals=3, snapshot=True)
    monkeypatch.setattr(recovery, "VERIFY_BYTES", 0)
    oldest = files(tmp_path, "segment")[0]
    data = bytearray(oldest.read_bytes())
    data[-9] ^= 1
    oldest.write_bytes(data)
    store = DurableStore(str(tmp_path))
    await store.open(Model())
    with pytest.raises(StorageFailed, match="is damaged"):
        await store.maintain(lambda runs: None)
    with pytest.raises(StorageFailed, match="is damaged"):
        await store.commit([])
    await store.close()


async def test_a_torn_end_of_the_newest_journal_is_cut(tmp_path: pathlib.Path) -> None:
    """An unfinished commit goes, everything before it stays, and what was cut is reported once."""
    work = await fill(tmp_path, seals=1)
    (tmp_path / "POSITION").unlink()
    newest = files(tmp_path, "journal")[-1]
    newest.write_bytes(frames(newest) + b"\x40\x01\x00\x00half a frame")
    store, model = DurableStore(str(tmp_path)), Model()
    assert (await store.open(model)).cut_bytes == 16
    await assert_same(store, model, work.model)
    await store.close()
    assert (await store.open(Model())).cut_bytes == 0
    await store.close()


async def test_a_torn_end_of_an_older_journal_is_refused(tmp_path: pathlib.Path) -> None:
    """Only the newest journal can have been written to when the power went."""
    await fill(tmp_path, seals=1)
    older = files(tmp_path, "journal")[-2]
    older.write_bytes(frames(older) + b"\x40\x01\x00\x00half a frame")
    await refused(tmp_path, "a newer journal follows")


async def test_a_lost_end_of_the_newest_journal_is_noticed(tmp_path: pathlib.Path) -> None:
    """After a clean stop the log knows how far it reached: cut at any frame, or flipped in the last, it is refused."""
    work = await fill(tmp_path, seals=1)
    newest = files(tmp_path, "journal")[-1]
    whole = newest.read_bytes()
    used = len(frames(newest))
    for end in range(4096, used, 997):
        newest.write_bytes(whole[:end])
        await refused(tmp_path, "was committed")
    data = bytearray(whole)
    data[used - 3] ^= 4
    newest.write_bytes(data)
    await refused(tmp_path, "was committed")
    newest.write_bytes(whole)
    await recovers(tmp_path, work)


async def test_a_renamed_journal_is_refused(tmp_path: pathlib.Path) -> None:
    """A journal says of itself where it begins."""
    await fill(tmp_path, seals=0)
    first, second = files(tmp_path, "journal")[:2]
    second.unlink()
    first.rename(second)
    await refused(tmp_path, "missing|renamed")


async def test_overlapping_segments_are_refused(tmp_path: pathlib.Path) -> None:
    """Files of two histories in one directory are not mixed."""
    await fill(tmp_path, seals=2)
    one, two = files(tmp_path, "segment")
    first, last = one.name.split("-")[1:3]
    shutil.copy(two, tmp_path / f"segment-{int(first) + 5:020}-{int(last) + 5:020}-{two.name[-15:]}")
    await refused(tmp_path, "overlap")


async def test_an_older_snapshot_serves_when_the_newest_is_damaged(tmp_path: pathlib.Path) -> None:
    """As long as the segments since the older one are there, the state is made from that."""
    store = DurableStore(str(tmp_path))
    await store.open(Model())
    work = Workload(8)
    await store.commit(work.entries(100))
    await store.seal()
    await take_snapshot(store)
    (old,) = files(tmp_path, "snapshot")
    shutil.copy(old, tmp_path.parent / old.name)
    await store.commit(work.entries(20))
    await store.seal()
    held = files(tmp_path, "segment")
    await take_snapshot(store)
    assert files(tmp_path, "segment") == held
    await store.close()
    (new,) = files(tmp_path, "snapshot")
    shutil.move(tmp_path.parent / old.name, old)
    data = bytearray(new.read_bytes())
    data[100] ^= 1
    new.write_bytes(data)
    await recovers(tmp_path, work)


async def test_a_file_of_another_duckdb_is_named(tmp_path: pathlib.Path) -> None:
    """A file with the right checksum that DuckDB cannot read says so, with its version."""
    from queen_actors.storage.directory import file_checksum

    await fill(tmp_path, seals=1)
    (segment,) = files(tmp_path, "segment")
    data = bytearray(segment.read_bytes())
    data[12] = 0xEE
    segment.write_bytes(data)
    segment.rename(tmp_path / f"{segment.name[:-15]}{file_checksum(str(segment)):08x}.duckdb")
    await refused(tmp_path, r"DuckDB \d.* cannot open")

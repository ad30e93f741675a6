"""The journal's frames: what is read back from a file that was torn, flipped, cut or lost."""

from __future__ import annotations

import pathlib
import struct
import zlib

import pytest

from queen_actors.errors import DataDirectoryError, TooLarge
from queen_actors.storage import journal
from queen_actors.storage.fileops import FileOps
from queen_actors.storage.journal import PAGE, JournalReader, JournalWriter, cut

BODIES = [b"first", b"the second, longer one", b"3", b"fourth" * 30, b"last of them"]
HEAD = 16


def write(path: pathlib.Path, bodies: list[bytes] = BODIES, first: int = 7, *, finish: bool = True) -> list[int]:
    """A journal of these bodies, two entries each; where each frame begins, and where the last one ends."""
    writer = JournalWriter.create(FileOps(), str(path), first)
    starts = [writer.end]
    for body in bodies:
        writer.append(body, 2)
        starts.append(writer.end)
    if finish:
        writer.finish()
    else:
        writer.close()
    return starts


def read(path: pathlib.Path) -> tuple[list[bytes], JournalReader]:
    reader = JournalReader(str(path))
    frames = list(reader.frames())
    assert [position for position, _ in frames] == [reader.first + 2 * n for n in range(1, len(frames) + 1)]
    return [body for _, body in frames], reader


def test_frames_come_back(tmp_path: pathlib.Path) -> None:
    """What was appended is read, and the end is where the writer said."""
    starts = write(tmp_path / "j")
    bodies, reader = read(tmp_path / "j")
    assert bodies == BODIES
    assert (reader.first, reader.position, reader.end, reader.torn) == (7, 17, starts[-1], 0)
    assert (tmp_path / "j").stat().st_size == starts[-1]


def test_space_allocated_ahead_is_a_clean_end(tmp_path: pathlib.Path) -> None:
    """The zeros behind the last frame of a journal that was not ended are not damage and not torn."""
    starts = write(tmp_path / "j", finish=False)
    assert (tmp_path / "j").stat().st_size > starts[-1]
    bodies, reader = read(tmp_path / "j")
    assert bodies == BODIES
    assert reader.torn == 0


@pytest.mark.parametrize("zeros", [0, 5_000])
def test_torn_at_every_byte(tmp_path: pathlib.Path, zeros: int) -> None:
    """However much of the last frame reached the disk, the frames before it are read, and the rest is torn."""
    path = tmp_path / "j"
    starts = write(path)
    whole = path.read_bytes()
    for end in range(starts[-2], starts[-1]):
        path.write_bytes(whole[:end] + bytes(zeros))
        bodies, reader = read(path)
        assert bodies == BODIES[:-1]
        assert reader.end == starts[-2]
        assert reader.torn == len(whole[starts[-2] : end].rstrip(b"\0"))
        cut(FileOps(), str(path), reader.end)
        assert path.read_bytes() == whole[: starts[-2]]


def test_pages_that_arrived_out_of_order(tmp_path: pathlib.Path) -> None:
    """A last frame of which the first page is missing and later ones are there is torn, not damage."""
    path = tmp_path / "j"
    starts = write(path, [*BODIES, b"x" * 20_000])
    data = bytearray(path.read_bytes())
    data[starts[-2] : starts[-2] + 4096] = bytes(4096)
    path.write_bytes(data + bytes(5_000))
    bodies, reader = read(path)
    assert bodies == BODIES
    assert reader.torn == 16 + 20_000


def test_a_flipped_bit_is_noticed_wherever_it_is(tmp_path: pathlib.Path) -> None:
    """In the last frame it makes a torn end; in any frame before, damage that is refused with the file kept."""
    path = tmp_path / "j"
    starts = write(path)
    whole = path.read_bytes()
    for at in range(starts[0], starts[-1]):
        data = bytearray(whole)
        data[at] ^= 1 << (at % 8)
        path.write_bytes(data)
        if at >= starts[-2]:
            bodies, reader = read(path)
            assert bodies == BODIES[:-1]
            assert reader.torn
        else:
            with pytest.raises(DataDirectoryError, match="a whole one follows"):
                read(path)
            assert path.read_bytes() == data


@pytest.mark.parametrize("first", [0, 65_530, 65_536, (1 << 32) - 3, 1 << 40])
def test_damage_is_told_from_a_torn_end_at_any_position(tmp_path: pathlib.Path, first: int) -> None:
    """A good frame behind a bad one is found whatever its sequence looks like, also behind zeroed pages."""
    path = tmp_path / "j"
    starts = write(path, first=first)
    for begin, end in ((starts[0], starts[1]), (starts[1], starts[3]), (starts[0], starts[4])):
        data = bytearray(path.read_bytes())
        data[begin:end] = bytes(end - begin)
        damaged = tmp_path / "damaged"
        damaged.write_bytes(data + bytes(100))
        with pytest.raises(DataDirectoryError, match="damaged"):
            read(damaged)


def test_every_bit_of_the_header_counts(tmp_path: pathlib.Path) -> None:
    """A header with a flipped bit is refused, and so is a file too short to have one."""
    path = tmp_path / "j"
    write(path)
    whole = path.read_bytes()
    for at in range(24):
        data = bytearray(whole)
        data[at] ^= 1 << (at % 8)
        path.write_bytes(data)
        with pytest.raises(DataDirectoryError):
            JournalReader(str(path))
    for size in (0, 1, 20, 23):
        path.write_bytes(whole[:size])
        with pytest.raises(DataDirectoryError):
            JournalReader(str(path))


def test_another_journal_format_is_named(tmp_path: pathlib.Path) -> None:
    """The sentence says which format the file has; a bit that was flipped there is damage, and no other format."""
    path = tmp_path / "j"
    write(path)
    data = bytearray(path.read_bytes())
    data[8:12] = struct.pack("<I", 9)
    path.write_bytes(data)
    with pytest.raises(DataDirectoryError, match="the checksum of its first page does not fit"):
        JournalReader(str(path))
    data[20:24] = struct.pack("<I", zlib.crc32(data[:20]))
    path.write_bytes(data)
    with pytest.raises(DataDirectoryError, match="format 9"):
        JournalReader(str(path))


def test_a_frame_too_large_is_refused_before_it_is_written(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group over the bound leaves the journal as it was."""
    monkeypatch.setattr(journal, "FRAME_BYTES_MAX", 100)
    writer = JournalWriter.create(FileOps(), str(tmp_path / "j"), 0)
    with pytest.raises(TooLarge):
        writer.append(b"x" * 101, 1)
    writer.append(b"x" * 100, 1)
    writer.finish()
    assert JournalReader(str(tmp_path / "j")).first == 0
    assert [body for _, body in JournalReader(str(tmp_path / "j")).frames()] == [b"x" * 100]


def test_a_journal_larger_than_what_is_allocated_at_once(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room is allocated ahead again and again, for frames of any size."""
    monkeypatch.setattr(journal, "ALLOCATE_BYTES", 1_000)
    bodies = [b"x" * size for size in (10, 900, 5_000, 1, 1_000, 984)]
    starts = write(tmp_path / "j", bodies, finish=False)
    reader = JournalReader(str(tmp_path / "j"))
    assert [body for _, body in reader.frames()] == bodies
    assert (tmp_path / "j").stat().st_size >= starts[-1]
    assert starts[0] == PAGE


@pytest.mark.parametrize("last", [False, True])
def test_the_end_can_be_given_up_of_the_last_journal_alone(tmp_path: pathlib.Path, *, last: bool) -> None:
    """A refusal says to cut a file only where the log then goes on: not before another journal, and not for a page that
    would be kept."""
    starts = write(tmp_path / "j")
    whole = (tmp_path / "j").read_bytes()
    damaged = bytearray(whole)
    damaged[starts[1] + HEAD] ^= 1
    (tmp_path / "j").write_bytes(damaged)
    with pytest.raises(DataDirectoryError) as refused:
        list(JournalReader(str(tmp_path / "j"), last=last).frames())
    assert (f"truncate the file to {starts[1]} bytes, and delete the file POSITION" in refused.value.detail) is last
    assert "from a backup" in refused.value.detail
    damaged = bytearray(whole)
    damaged[20] ^= 1
    (tmp_path / "j").write_bytes(damaged)
    with pytest.raises(DataDirectoryError, match="from a backup") as refused:
        JournalReader(str(tmp_path / "j"), last=last)
    assert "truncate" not in refused.value.detail

"""The data directory: its lock, its format, its files' names, and the last position that it is known to hold.

    LOCK       held with flock by the process that has the directory open, as is the directory itself, because LOCK can
               be removed; its text is that process's id
    FORMAT     one line, the format of everything beside it
    POSITION   two slots of `magic | position u64 | journal u64 | crc32 u32`, one page each: how far the log is known
               to reach, and the name of the newest journal. The first slot is flushed at every roll and at a clean
               stop, the second is written without a flush about once a second; both only after what they speak of
               was durable, so a log that ends before the greater of them has lost something.
    journal-<first>.log                         entries behind position <first>
    segment-<first>-<last>-<crc32>.duckdb       entries behind <first> up to <last>
    snapshot-<last>-<crc32>.duckdb              the state as of <last>
    <one of these>.tmp, merge-<first>.duckdb.tmp, their .wal, spill/
                                                unfinished work, removed at the next open

The CRC-32 in a name is that of the whole file, which is never written again.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import shutil
import struct
import zlib
from collections.abc import Generator
from typing import Literal, NamedTuple

from msgspec import Struct

from queen_actors import limits
from queen_actors.errors import DataDirectoryError

from . import faultpoints
from .fileops import FULL, FileOps

_log = logging.getLogger(__name__)

FORMAT_LINE = "queen-actors data directory, format 1\n"
ANY_FORMAT = re.compile(r"queen-actors data directory, format [0-9]+\n")

_SLOT = struct.Struct("<8sQQ")
_SLOT_MAGIC = b"QNACTPOS"
_SLOT_BYTES = 4096
_CRC = struct.Struct("<I")
_NAMES = re.compile(
    r"journal-(?P<journal>\d{20})\.log"
    r"|segment-(?P<first>\d{20})-(?P<last>\d{20})-(?P<segment_crc>[0-9a-f]{8})\.duckdb"
    r"|snapshot-(?P<snapshot>\d{20})-(?P<snapshot_crc>[0-9a-f]{8})\.duckdb"
)
KEPT = ".kept-"
"""What the name of a file that was set aside goes on with."""
_UNFINISHED = re.compile(
    r"(segment|merge|snapshot)-[0-9]+\.duckdb\.tmp(\.[a-z.]+)?|journal-[0-9]+\.log\.tmp|FORMAT\.tmp"
)
"""What the broker's own unfinished files are called, with what DuckDB puts beside one."""


class JournalFile(NamedTuple):
    """A journal by its name."""

    first: int
    path: str


class SegmentFile(NamedTuple):
    """A segment by its name: it holds the entries behind `first` up to `last`."""

    first: int
    last: int
    checksum: int
    path: str


class SnapshotFile(NamedTuple):
    """A snapshot by its name: the state as of `last`."""

    last: int
    checksum: int
    path: str


class Listing(Struct, frozen=True):
    """The files of the log, each kind sorted by position."""

    journals: list[JournalFile]
    segments: list[SegmentFile]
    snapshots: list[SnapshotFile]


class DataDirectory:
    """A data directory that this process holds."""

    def __init__(self, ops: FileOps, path: str, lock: int, position_file: int, own: int = -1) -> None:
        """`lock` and `own`: the descriptors of LOCK and of the directory itself, both locked; -1 for none."""
        self.ops = ops
        self.path = path
        self.spill = os.path.join(path, "spill")
        self._lock = lock
        self._own = own
        self._position_file = position_file

    @classmethod
    def take(cls, path: str, ops: FileOps, *, create: bool = True) -> DataDirectory:
        """Lock the directory and check its format; unfinished files are removed. Raises DataDirectoryError."""
        path = os.path.abspath(path)
        try:
            if create:
                os.makedirs(path, mode=0o750, exist_ok=True)
            elif not os.path.isfile(os.path.join(path, "FORMAT")):
                raise DataDirectoryError(f"{path} is no data directory of a broker: it has no FORMAT file.")
            with contextlib.ExitStack() as undo:
                own = _lock_itself(path, _CHOOSE)
                if own >= 0:
                    undo.callback(ops.close, own)
                begun = _is_begun(path)  # before anything is written into what may be somebody else's
                lock = _take_lock(path, ops)
                undo.callback(ops.close, lock)
                if not begun:
                    _begin(path, ops)
                position_file = ops.open(os.path.join(path, "POSITION"))
                undo.callback(ops.close, position_file)
                # What a process renamed before it died is made durable before anything is removed that it stands for
                ops.sync_directory(path)
                _sync_above(path, ops, all_of_them=False)
                directory = cls(ops, path, lock, position_file, own)
                directory._remove_unfinished()
                undo.pop_all()
                return directory
        except OSError as error:
            raise unusable(path, error) from error

    def release(self) -> None:
        """Let another process take the directory; safe to call twice."""
        if self._lock >= 0:
            shutil.rmtree(self.spill, ignore_errors=True)
            self.ops.close(self._position_file)
            self.ops.close(self._lock)
            self._lock = -1
            if self._own >= 0:
                self.ops.close(self._own)

    def listing(self) -> Listing:
        """What is there now."""
        found = Listing([], [], [])
        for name in os.listdir(self.path):
            match = _NAMES.fullmatch(name)
            if match is None:
                continue
            path, part = os.path.join(self.path, name), match.groupdict()
            if part["journal"] is not None:
                found.journals.append(JournalFile(int(part["journal"]), path))
            elif part["first"] is not None:
                checksum = int(part["segment_crc"], 16)
                found.segments.append(SegmentFile(int(part["first"]), int(part["last"]), checksum, path))
            else:
                found.snapshots.append(SnapshotFile(int(part["snapshot"]), int(part["snapshot_crc"], 16), path))
        for files in (found.journals, found.segments, found.snapshots):
            files.sort()
        return found

    def journal_path(self, first: int) -> str:
        return os.path.join(self.path, f"journal-{first:020}.log")

    def segment_file(self, first: int, last: int, checksum: int) -> SegmentFile:
        """The segment of this range and content, by the path that it is to have."""
        name = f"segment-{first:020}-{last:020}-{checksum:08x}.duckdb"
        return SegmentFile(first, last, checksum, os.path.join(self.path, name))

    def snapshot_file(self, last: int, checksum: int) -> SnapshotFile:
        """The snapshot as of `last` with this content, by the path that it is to have."""
        return SnapshotFile(last, checksum, os.path.join(self.path, f"snapshot-{last:020}-{checksum:08x}.duckdb"))

    def note_position(self, position: int, journal: int, *, flush: bool) -> None:
        """Write down that the log reaches to `position`, which is durable, and that `journal` is its newest file.

        Without `flush` an error is of no consequence; with it OSError is raised.
        """
        record = _SLOT.pack(_SLOT_MAGIC, position, journal)
        page = record + _CRC.pack(zlib.crc32(record))
        if not flush:
            with contextlib.suppress(OSError):  # a note that was not taken is an old note: still true
                self.ops.write(self._position_file, (page,), _SLOT_BYTES)
            return
        self.ops.write(self._position_file, (page,), 0)
        if faultpoints.armed:
            faultpoints.passage("position.written")
        self.ops.sync_data(self._position_file)
        if faultpoints.armed:
            faultpoints.passage("position.synced")

    def noted_position(self, reached: int = 0) -> tuple[int, int]:
        """The greatest position that was written down, and the newest journal's; (0, 0) when there is no note.

        A log that reaches to `reached` has one: that there is none, or that one cannot be read, is said in the log.
        """
        slots = _slots(self._position_file)
        notes = [note for note in slots if note is not None and note != "empty"]
        path = os.path.join(self.path, "POSITION")
        if None in slots:
            _log.warning("%s has a note that cannot be read: a lost end of the log may not be noticed", path)
        elif reached and not notes:
            _log.warning("%s does not say how far the log reaches: a lost end of it is not noticed", path)
        return max(notes, default=(0, 0))

    def remove_unfinished_builds(self) -> None:
        """Give back the room of a file that could not be built. An error here is of no consequence."""
        for name in unfinished(self.path):
            if ".duckdb." in name:
                with contextlib.suppress(OSError):
                    self.ops.unlink(os.path.join(self.path, name))

    def _remove_unfinished(self) -> None:
        shutil.rmtree(self.spill, ignore_errors=True)
        for name in unfinished(self.path):
            self.ops.unlink(os.path.join(self.path, name))


def unfinished(path: str) -> list[str]:
    """The names of the broker's own unfinished files in the directory; what else is called so is none of its. Raises
    OSError."""
    with os.scandir(path) as found:
        return sorted(
            one.name for one in found if _UNFINISHED.fullmatch(one.name) and one.is_file(follow_symlinks=False)
        )


Note = tuple[int, int]


def noted_slots(path: str) -> list[Note | Literal["empty"] | None]:
    """The notes of a POSITION file: (position, journal), or "empty" where none was written, or None for one that
    cannot be read. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _slots(fd)
    finally:
        os.close(fd)


def _slots(fd: int) -> list[Note | Literal["empty"] | None]:
    found: list[Note | Literal["empty"] | None] = []
    for offset in (0, _SLOT_BYTES):
        page = os.pread(fd, _SLOT.size + _CRC.size, offset)
        if not page.strip(b"\0"):
            found.append("empty")
            continue
        whole = len(page) == _SLOT.size + _CRC.size and page.startswith(_SLOT_MAGIC)
        if whole and _CRC.unpack_from(page, _SLOT.size)[0] == zlib.crc32(page[: _SLOT.size]):
            _, position, journal = _SLOT.unpack_from(page)
            found.append((position, journal))
        else:
            found.append(None)
    return found


def unusable(path: str, error: Exception) -> DataDirectoryError:
    """What an open raises when the system, or DuckDB, refuses it a file."""
    if isinstance(error, OSError) and error.errno in FULL:
        return DataDirectoryError(
            f"The disk that holds the data directory {path} is full, and a start needs a few KiB. Make room, and start "
            "again; nothing was changed."
        )
    return DataDirectoryError(f"The data directory {path} cannot be used: {error}.")


def file_checksum(path: str) -> int:
    """The CRC-32 of a whole file. Raises OSError."""
    checksum = 0
    with open(path, "rb", buffering=0) as file:
        while block := file.read(limits.MIB):
            checksum = zlib.crc32(block, checksum)
    return checksum


_CHOOSE = "One process at a time may have it open: stop that one, or choose another directory."
_CHANGING = "Stop that one first: its files change while it runs."


@contextlib.contextmanager
def holding(path: str) -> Generator[None]:
    """Keep brokers out of the directory meanwhile, without writing anything. Raises DataDirectoryError when one is in,
    OSError."""
    with contextlib.ExitStack() as held:
        own = _lock_itself(path, _CHANGING)
        if own >= 0:
            held.callback(os.close, own)
        with contextlib.suppress(FileNotFoundError):
            lock = os.open(os.path.join(path, "LOCK"), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            held.callback(os.close, lock)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise _in_use(path, _CHANGING) from error
        yield


def _lock_itself(path: str, advice: str) -> int:
    """The directory's own descriptor, locked: it cannot be removed and made anew as LOCK can.

    -1 where a file system locks no directories, as NFS does not: LOCK alone has to do there. Raises DataDirectoryError
    when it is in use, OSError.
    """
    own = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(own, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(own)
        raise _in_use(path, advice) from error
    except OSError:
        os.close(own)
        return -1
    return own


def _take_lock(path: str, ops: FileOps) -> int:
    lock = ops.open(os.path.join(path, "LOCK"))
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise _in_use(path, _CHOOSE) from error
        ops.truncate(lock, 0)
        with contextlib.suppress(OSError):  # a full disk has no room for it; the lock holds without
            ops.write(lock, (f"{os.getpid()}\n".encode(),), 0)
    except BaseException:
        ops.close(lock)
        raise
    return lock


def _in_use(path: str, advice: str) -> DataDirectoryError:
    """The text of LOCK is the holder's id, or that of the last one, when something else holds the directory."""
    by = ""
    with contextlib.suppress(OSError, ValueError):
        lock = os.open(os.path.join(path, "LOCK"), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            holder = int(os.pread(lock, 32, 0))
        finally:
            os.close(lock)
        is_there = _is_alive(holder)
        by = f" by process {holder}" if is_there else ": another process has it locked, as a doctor or `flock` does"
    return DataDirectoryError(f"The data directory {path} is in use{by}. {advice}")


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:  # somebody else's
        return True
    except (OSError, OverflowError):
        return False
    return True


def _is_begun(path: str) -> bool:
    """Whether the directory has our format; False for one that nothing is in yet. Raises DataDirectoryError for one of
    another format, or of something else; OSError."""
    _check_ours(path)
    format_path = os.path.join(path, "FORMAT")
    try:
        with open(format_path, encoding="utf-8", errors="replace") as file:
            line = file.read(200)
    except FileNotFoundError:
        return False
    if line == FORMAT_LINE:
        return True
    said = f"{format_path} reads {line.strip()!r}, and this version reads {FORMAT_LINE.strip()!r}."
    if ANY_FORMAT.fullmatch(line):
        raise DataDirectoryError(f"{said} Open the directory with the version that wrote it, or choose another one.")
    raise DataDirectoryError(f"{said} That is no format: the file is damaged, and kept as it is. {_ask(path)}")


def _ask(path: str) -> str:
    return (
        f"`queen-actors doctor --data {path}` says whether the log is whole, and with `--repair` writes the FORMAT "
        "file again when a journal says what it was."
    )


def _check_ours(path: str) -> None:
    """Raise DataDirectoryError for a directory of something else, before anything is written into it."""
    others = [name for name in os.listdir(path) if name not in ("LOCK", "POSITION", "FORMAT.tmp", "lost+found")]
    if others and not os.path.exists(os.path.join(path, "FORMAT")):
        said = f"{path} has no FORMAT file but is not empty (it holds {sorted(others)[0]!r})."
        if any(_NAMES.fullmatch(name) for name in others):
            raise DataDirectoryError(f"{said} Everything is kept as it is. {_ask(path)}")
        raise DataDirectoryError(f"{said} Choose an empty or a new directory.")


def _begin(path: str, ops: FileOps) -> None:
    """Give an empty directory our format, and make the directory itself durable first: also the directories above it,
    of which some may have been made now, or by a start that was cut short."""
    format_path = os.path.join(path, "FORMAT")
    _sync_above(path, ops, all_of_them=True)
    position = ops.open(os.path.join(path, "POSITION"))
    ops.close(position)
    temporary = ops.open(format_path + ".tmp")
    try:
        ops.truncate(temporary, 0)
        ops.write(temporary, (FORMAT_LINE.encode(),), 0)
        ops.sync(temporary)
    finally:
        ops.close(temporary)
    ops.rename(format_path + ".tmp", format_path)
    ops.sync_directory(path)


def _sync_above(path: str, ops: FileOps, *, all_of_them: bool) -> None:
    """Make the directory's name durable, and with `all_of_them` the names above, up to where a file system begins."""
    at = os.path.realpath(path)
    while not os.path.ismount(at):
        at = os.path.dirname(at)
        with contextlib.suppress(PermissionError):  # one we may not read: its owner made it durable
            ops.sync_directory(at)
        if not all_of_them:
            return

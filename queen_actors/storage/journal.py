"""The journal: the log's tail as a file of frames, one per group commit.

A file is named by the position it begins behind. It starts with one page of its own, `magic | format u32 |
position u64 | crc32 u32`, which no later write touches, and goes on with frames (all integers little-endian):

    length u32 | crc32 u32 | sequence u64 | body (`length` bytes: the group's entries)

`sequence` is the position after the frame: the position before it plus the entries in it. The CRC covers length,
sequence and body. Behind the last frame lie zeros (space that was allocated ahead) or nothing.

Reading tells three ends apart. A clean end: zeros or nothing. A torn end: bytes that are no frame, with no frame
behind them: a group whose commit never returned, to be cut. Damage: bytes that are no frame, and a frame behind.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from collections.abc import Iterator

from queen_actors import limits
from queen_actors.errors import DataDirectoryError, StorageFailed, StorageFull, TooLarge

from . import faultpoints
from .fileops import FULL, FileOps

FORMAT = 1
PAGE = 4096
ALLOCATE_BYTES = 4 * limits.MIB  # what is allocated ahead: a commit then changes no file size, 0.08 against 0.13 ms
FRAME_BYTES_MAX = 256 * limits.MIB  # four of the largest request bodies; a longer length is no length

_MAGIC = b"QNACTLOG"
_HEADER = struct.Struct("<8sIQ")
_HEAD = struct.Struct("<IIQ")
_COVERED = struct.Struct("<IQ")
_CRC = struct.Struct("<I")
_SEARCH = 1 << 20  # how far behind a bad frame's position the position of a good one is looked for


def _checksum(sequence: int, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(_COVERED.pack(len(body), sequence)))


class JournalWriter:
    """The newest journal file, open for appending. Not thread-safe: one thread at a time."""

    def __init__(self, ops: FileOps, fd: int, path: str, first: int, allocated: int, *, allocates: bool) -> None:
        """`allocated`: up to which byte there is room for certain; `allocates`: whether more can be asked for."""
        self._ops = ops
        self._fd = fd
        self._allocated = allocated
        self._allocates = allocates
        self.path = path
        self.first = first
        self.position = first
        self.end = PAGE
        """Bytes up to the end of the last frame."""

    @classmethod
    def create(cls, ops: FileOps, path: str, first: int) -> JournalWriter:
        """A new file behind position `first`, durable under its name.

        Raises OSError, leaving no file behind, or StorageFailed when it has its name and may not be durable.
        """
        if faultpoints.armed:
            faultpoints.passage("journal.create.start")
        temporary = path + ".tmp"
        fd = ops.create(temporary)
        try:
            header = _HEADER.pack(_MAGIC, FORMAT, first)
            page = (header + _CRC.pack(zlib.crc32(header))).ljust(PAGE, b"\0")
            if ops.write(fd, (page,), 0) != PAGE:
                raise OSError(min(FULL), "no room for a journal's first page")
            allocates, allocated = _allocate(ops, fd, PAGE, ALLOCATE_BYTES)
            ops.sync(fd)
            if faultpoints.armed:
                faultpoints.passage("journal.create.synced")
            ops.rename(temporary, path)
        except OSError:
            ops.close(fd)
            ops.unlink(temporary)
            raise
        if faultpoints.armed:
            faultpoints.passage("journal.create.renamed")
        try:
            ops.sync_directory(os.path.dirname(path))
        except OSError as error:
            ops.close(fd)
            raise StorageFailed(f"Making {path} durable under its name failed: {error}.") from error
        if faultpoints.armed:
            faultpoints.passage("journal.create.done")
        return cls(ops, fd, path, first, allocated, allocates=allocates)

    @classmethod
    def resume(cls, ops: FileOps, path: str, first: int, position: int, end: int) -> JournalWriter:
        """Go on with a file whose last frame ends at byte `end`, its length, and at `position`. Raises OSError."""
        writer = cls(ops, ops.open(path), path, first, end, allocates=True)
        writer.position, writer.end = position, end
        return writer

    def append(self, body: bytes, entries: int) -> None:
        """Make one frame durable: one write, one fdatasync.

        Raises TooLarge or StorageFull when nothing was written, StorageFailed when that is not known: the file must
        then not be used any more.
        """
        if faultpoints.armed:
            faultpoints.passage("journal.append.start")
        if len(body) > FRAME_BYTES_MAX:
            raise TooLarge(f"One commit holds {len(body)} bytes; at most {FRAME_BYTES_MAX} fit into the log at once.")
        sequence = self.position + entries
        head = _HEAD.pack(len(body), _checksum(sequence, body), sequence)
        total = len(head) + len(body)
        if self.end + total > self._allocated:
            self._allocate(max(ALLOCATE_BYTES, self.end + total - self._allocated))
        try:
            written = self._ops.write(self._fd, (head, body), self.end)
        except OSError as error:
            if error.errno not in FULL:
                raise StorageFailed(f"Writing to {self.path} failed: {error}.") from error
            written = 0
        if written != total:
            self._take_back()
            raise self._full()
        if faultpoints.armed:
            faultpoints.passage("journal.append.written")
        try:
            self._ops.sync_data(self._fd)
        except OSError as error:
            raise StorageFailed(f"Flushing {self.path} to the disk failed: {error}.") from error
        if faultpoints.armed:
            faultpoints.passage("journal.append.synced")
        self.end += total
        self.position = sequence

    def probe(self, length: int) -> None:
        """Is there room for a body of this length? Raises StorageFull, StorageFailed.

        Where room cannot be asked for, it is said to be there: the next append shows.
        """
        if self._allocates and not self._allocate(self.end + _HEAD.size + length - self._allocated):
            raise self._full()

    def finish(self) -> None:
        """Give back what was allocated ahead and close the file; its frames are durable already. Raises OSError."""
        try:
            self._ops.truncate(self._fd, self.end)
            if faultpoints.armed:
                faultpoints.passage("journal.finish.truncated")
            self._ops.sync(self._fd)
        finally:
            self.close()

    def close(self) -> None:
        """Let go of the file as it is."""
        if self._fd >= 0:
            self._ops.close(self._fd)
            self._fd = -1

    def _full(self) -> StorageFull:
        return StorageFull(f"The disk that holds {self.path} is full; nothing was committed. Make room, and retry.")

    def _allocate(self, length: int) -> bool:
        """Ask for room behind what is allocated; False when there is not so much, or it cannot be asked for."""
        if length <= 0:
            return True
        if not self._allocates:
            return False
        before = self._allocated
        try:
            self._allocates, self._allocated = _allocate(self._ops, self._fd, before, length)
        except OSError as error:
            raise StorageFailed(f"Allocating room for {self.path} failed: {error}.") from error
        return self._allocated > before

    def _take_back(self) -> None:
        try:
            self._ops.truncate(self._fd, self.end)
        except OSError as error:
            raise StorageFailed(f"Taking back an unfinished write to {self.path} failed: {error}.") from error
        self._allocated = self.end


def _allocate(ops: FileOps, fd: int, start: int, length: int) -> tuple[bool, int]:
    """Whether room can be asked for ahead on this file system, and up to where there is some now. Raises OSError.

    Too little room for that is no error: the write itself shows whether there is enough for one frame.
    """
    try:
        allocates = ops.allocate(fd, start, length)
    except OSError as error:
        if error.errno not in FULL:
            raise
        return True, start
    return allocates, start + length if allocates else start


class JournalReader:
    """Reads one journal file. When `frames` is exhausted, `position`, `end` and `torn` say where and how it ended."""

    def __init__(self, path: str, *, last: bool = False) -> None:
        """Reads and checks the first page. Raises DataDirectoryError when it is not a journal's.

        `last`: nothing of the log follows this file, so that what it holds can be given up from a place on.
        """
        self.path = path
        self._last = last
        self.end = PAGE
        self.last_frame = PAGE
        """The byte at which the last frame begins; `end` when there is none."""
        self.torn = 0
        """Bytes of a torn end behind `end`: what a cut would remove."""
        with open(path, "rb") as file:
            page = file.read(_HEADER.size + _CRC.size)
        magic, version = page[:8], page[8:12]
        if len(page) < _HEADER.size + _CRC.size or magic != _MAGIC:
            raise self._damage("its first page is not that of a journal")
        if _CRC.unpack_from(page, _HEADER.size)[0] != zlib.crc32(page[: _HEADER.size]):
            raise self._damage("the checksum of its first page does not fit")
        if int.from_bytes(version, "little") != FORMAT:
            raise DataDirectoryError(
                f"{path} has journal format {int.from_bytes(version, 'little')}; this version reads format {FORMAT}. "
                "Open the directory with the version that wrote it."
            )
        self.first: int = _HEADER.unpack_from(page)[2]
        self.position = self.first

    def frames(self) -> Iterator[tuple[int, bytes]]:
        """The position after each frame and its body, in order. Raises DataDirectoryError on damage."""
        size = os.path.getsize(self.path)
        with open(self.path, "rb", buffering=limits.MIB) as file:
            file.seek(self.end)
            while len(head := file.read(_HEAD.size)) == _HEAD.size:
                length, checksum, sequence = _HEAD.unpack(head)
                if length > FRAME_BYTES_MAX or length > size - self.end - _HEAD.size or sequence <= self.position:
                    break
                body = file.read(length)
                if len(body) != length or _checksum(sequence, body) != checksum:
                    break
                self.last_frame = self.end
                self.end += _HEAD.size + length
                self.position = sequence
                yield sequence, body
        self._judge_end(size)

    def _judge_end(self, size: int) -> None:
        """Set `torn`, or raise DataDirectoryError when a whole frame lies behind the end of the good ones."""
        with open(self.path, "rb") as file:
            file.seek(self.end)
            rest = file.read().rstrip(b"\0")
        if not rest:
            return
        found = _frame_in(rest + bytes(size - self.end - len(rest)), len(rest), self.position + 1)
        if found is not None:
            raise self._damage(
                f"the bytes at {self.end} are no frame, but at {self.end + found} a whole one follows, so that this is "
                "not the unfinished end of a crash",
                f"; or, to give up what the log holds from there on, keep a copy of the directory, truncate the file "
                f"to {self.end} bytes, and delete the file POSITION"
                if self._last
                else "",
            )
        self.torn = len(rest)

    def _damage(self, what: str, otherwise: str = "") -> DataDirectoryError:
        return DataDirectoryError(
            f"{self.path} is damaged: {what}. The file is kept as it is. Restore the data directory, or this file "
            f"alone, from a backup{otherwise}."
        )


def _frame_in(rest: bytes, end: int, low: int) -> int | None:
    """Where before `end` of `rest` a whole frame with a sequence of at least `low` begins, if one does.

    The upper six bytes of a sequence are the same for 65,536 positions on end, so a search for them finds every
    candidate at the speed of the regular expression engine.
    """
    uppers = {struct.pack("<Q", at)[2:] for at in range(low, low + _SEARCH + 65_536, 65_536)}
    candidates = re.compile(b"(?=" + b"|".join(re.escape(upper) for upper in sorted(uppers)) + b")")
    for match in candidates.finditer(rest, _HEAD.size - 6, end + _HEAD.size):
        start = match.start() - (_HEAD.size - 6)
        length, checksum, sequence = _HEAD.unpack_from(rest, start)
        if sequence < low or length > len(rest) - start - _HEAD.size:
            continue
        if _checksum(sequence, rest[start + _HEAD.size : start + _HEAD.size + length]) == checksum:
            return start
    return None


def cut(ops: FileOps, path: str, end: int, last_frame: int | None = None) -> None:
    """Remove what lies behind the last frame, a torn end or zeros, for good. Raises OSError.

    `last_frame`: the byte at which that frame begins, if it may be one whose flush failed. It is written again then:
    Linux takes what it failed to write for written, shows it to readers, and flushes it no more. It is one frame at
    most, because a store ends with the first flush that fails.
    """
    fd = ops.open(path)
    try:
        if last_frame is not None and last_frame < end:
            try:
                ops.write(fd, (os.pread(fd, end - last_frame, last_frame),), last_frame)
            except OSError as error:  # some file systems need room for that; without it, it is as durable as it was
                if error.errno not in FULL:
                    raise
        ops.truncate(fd, end)
        if faultpoints.armed:
            faultpoints.passage("journal.cut.truncated")
        ops.sync(fd)
    finally:
        ops.close(fd)

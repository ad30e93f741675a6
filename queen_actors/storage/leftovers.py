"""Files that lie over each other: which of them the log is read from, and which were left over when a process died.

A merge gives its segment a name and then removes those that it was made from; a seal does so with its journal. What
is left over is so only if all that may be wanted of it is shown to be in another file, and that is good. Whatever
cannot be explained so is of another log, and refused with every file kept.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise

import duckdb
import msgspec

from queen_actors.domain.effects import Appended, Entry, decode_entries
from queen_actors.errors import DataDirectoryError, StorageFailed

from . import duck, segments
from .directory import JournalFile, SegmentFile, SnapshotFile, file_checksum
from .journal import JournalReader
from .segments import Meta

MEMORY_MB = 256  # for the keys of the messages of one merge: a few dozen MiB
_KEPT = "Every file is kept as it is. Restore the data directory from a backup"


def damaged(file: SegmentFile | SnapshotFile) -> DataDirectoryError:
    """What is raised for a file whose bytes are not those that its name says."""
    return DataDirectoryError(
        f"{file.path} is damaged: its bytes do not have the checksum that its name says. The file is kept as it is. "
        "Restore it, or the whole data directory, from a backup."
    )


def without_state(file: SegmentFile) -> DataDirectoryError:
    """What is raised for a merged segment that the state would have to be read from."""
    return DataDirectoryError(
        f"{file.path} holds messages alone, and no snapshot has the state that was in it: a snapshot is missing. "
        f"{_KEPT}."
    )


@contextmanager
def sorting_out(snapshot: SnapshotFile | None, spill: str) -> Generator[SortingOut]:
    """Give a `SortingOut` that goes by this snapshot, whose bytes are right. Nothing of `spill` remains that was not
    there before."""
    was_there = os.path.exists(spill)
    sorting = SortingOut(snapshot, os.path.join(spill, "sort"))
    try:
        yield sorting
    finally:
        sorting.close()
        if not was_there:
            shutil.rmtree(spill, ignore_errors=True)


class SortingOut:
    """Looks into files that lie over each other. Every method may raise DataDirectoryError, OSError, duckdb.Error."""

    def __init__(self, snapshot: SnapshotFile | None, spill: str) -> None:
        self._snapshot = snapshot
        self._spill = spill
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._aliases: dict[str, str] = {}

    def segments(self, files: Iterable[SegmentFile]) -> tuple[list[SegmentFile], list[SegmentFile]]:
        """The segments that the log is read from, in order, and those that are left over."""
        ordered = sorted(files, key=lambda file: (file.first, -file.last))
        if all(file.last <= following.first for file, following in pairwise(ordered)):
            return ordered, []
        kept: list[SegmentFile] = []
        left: list[SegmentFile] = []
        while ordered:
            wide, *rest = ordered
            inside = [file for file in rest if file.first < wide.last]
            ordered = rest[len(inside) :]
            for file in inside:
                if file.last > wide.last:
                    raise _overlap(wide, file)
            more_kept, more_left = self._one_of(wide, inside)
            kept += more_kept
            left += more_left
        return kept, left

    def journals(self, files: Sequence[JournalFile], sealed: Sequence[SegmentFile]) -> list[JournalFile]:
        """Of these journals, which begin before the end of what is sealed, those that are not shown to be what was
        sealed and yet hold nothing that is missing: a copy of the directory that was laid over an older copy has them.

        Raises DataDirectoryError for one that holds anything else: it is of another log.
        """
        aside: list[JournalFile] = []
        for file in files:
            end, last, length = _read(file)
            if end == file.first and length is not None:
                continue  # it holds nothing
            wanted = f"journal_{file.first}"
            try:
                if self._is_sealed(file, end, last, length, sealed, wanted):
                    continue
                if not self._is_older(file, end, last, sealed, wanted):
                    raise DataDirectoryError(
                        f"{file.path} begins before the position up to which the log is sealed, and no segment was "
                        f"made of what it holds: it is of another log, or what is sealed is. {_KEPT}; or, when it is "
                        "certain that the journal does not belong here, move it elsewhere."
                    )
            finally:
                self._connected().execute(f"DROP TABLE IF EXISTS {wanted}")
            aside.append(file)
        return aside

    def close(self) -> None:
        """Let go of the files."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # -- segments ------------------------------------------------------------------------------------------------------

    def _one_of(
        self, wide: SegmentFile, inside: Sequence[SegmentFile]
    ) -> tuple[Sequence[SegmentFile], Sequence[SegmentFile]]:
        """What to keep and what is left over of a segment and those that lie inside it."""
        if not inside:
            return [wide], []
        if not _is_good(wide):
            raise damaged(wide)
        twins = [wide, *(file for file in inside if (file.first, file.last) == (wide.first, wide.last))]
        if len(twins) > 1:
            whole = next((file for file in twins if all(self._has_all_of(file, other) for other in twins)), None)
            if whole is None:
                raise _overlap(twins[0], twins[1])
            kept, left = self._one_of(whole, [file for file in inside if file not in twins])
            return kept, [*left, *(file for file in twins if file is not whole)]
        if self._stands_for(wide, inside):
            return [wide], inside
        parts, more = self.segments(inside)
        if not self._is_made_of(wide, parts):
            if not self._meta(wide).journal_bytes and (self._snapshot is None or self._snapshot.last < wide.last):
                raise without_state(wide)
            raise _overlap(wide, inside[0])
        return parts, [wide, *more]

    def _has_all_of(self, file: SegmentFile, other: SegmentFile) -> bool:
        """Whether two segments of the same positions are of one log, and the first has all that is in the other."""
        if file is other:
            return True
        for one in (file, other):
            if not _is_good(one):
                raise damaged(one)
        mine, its = self._meta(file), self._meta(other)
        if its.journal_bytes:
            return mine == its
        return _end(mine) == _end(its) and not self._lacks(file, other)

    def _stands_for(self, wide: SegmentFile, inside: Sequence[SegmentFile]) -> bool:
        """Whether a merge made the segment, a snapshot has the state that was in those, and the segment has of their
        messages all that the snapshot's partitions still have. One of them that is damaged is nothing to go by."""
        meta = self._meta(wide)
        if self._snapshot is None or wide.last > self._snapshot.last or meta.journal_bytes:
            return False
        for part in filter(_is_good, inside):
            its = self._meta(part)
            if part.last == wide.last and _end(its) != _end(meta):
                return False
            if _beyond(_end(its), _end(meta)) or self._lacks(wide, part, by=self._snapshot):
                return False
        return True

    def _is_made_of(self, wide: SegmentFile, parts: Sequence[SegmentFile]) -> bool:
        """Whether a merge made the segment of these, which are all there, so that they have all that is in it."""
        meta = self._meta(wide)
        whole = parts[0].first == wide.first and parts[-1].last == wide.last
        if meta.journal_bytes or not whole or any(one.last != after.first for one, after in pairwise(parts)):
            return False
        for part in parts:
            if not _is_good(part):
                raise damaged(part)
        return _end(self._meta(parts[-1])) == _end(meta) and not self._lacks(parts, wide)

    def _lacks(
        self, having: SegmentFile | Sequence[SegmentFile], of: SegmentFile, by: SnapshotFile | None = None
    ) -> bool:
        """Is there a message in `of`, and still in a partition of `by`, that none of `having` has?"""
        files = [having] if isinstance(having, SegmentFile) else having
        return self._any_lacking(f"{self._attached(of.path)}.messages", files, by)

    def _any_lacking(self, table: str, having: Iterable[SegmentFile], by: SnapshotFile | None) -> bool:
        """The same, of a table with the messages' partitions, offsets and ids."""
        wanted = f'SELECT m.pid, m."offset", m.id FROM {table} m'
        if by is not None:
            wanted += f' JOIN {self._attached(by.path)}.partitions p ON p.pid = m.pid AND m."offset" >= p.log_start'
        had = [f'SELECT pid, "offset", id FROM {self._attached(file.path)}.messages' for file in having]
        query = f"SELECT 1 FROM ({wanted})"
        if had:
            query += f' ANTI JOIN ({" UNION ALL ".join(had)}) USING (pid, "offset", id)'
        return self._connected().execute(f"{query} LIMIT 1").fetchone() is not None

    # -- journals ------------------------------------------------------------------------------------------------------

    def _is_sealed(
        self,
        file: JournalFile,
        end: int,
        last: _End,
        length: int | None,
        sealed: Sequence[SegmentFile],
        wanted: str,
    ) -> bool:
        """Whether all that the journal holds lies in a segment, or did until nobody could read it any more."""
        if length is None:
            return False  # it cannot be read to its end
        for segment in sealed:
            if segment.first > file.first or segment.last < end:
                continue
            meta = self._meta(segment)
            if meta.journal_bytes:
                if (segment.first, segment.last, meta.journal_bytes) == (file.first, end, length):
                    return last == _end(meta)
            elif not _beyond(last, _end(meta)):
                return not self._lacks_of(file, end, sealed, wanted)
        if self._snapshot is None or _beyond(last, _end(self._meta(self._snapshot))):
            return False
        alias = self._attached(self._snapshot.path)
        known = f"SELECT 1 FROM {alias}.segments WHERE (first, last) = (?, ?)"
        if self._connected().execute(known, [file.first, end]).fetchone() is None:
            return False
        return not self._lacks_of(file, end, sealed, wanted)

    def _is_older(self, file: JournalFile, end: int, last: _End, sealed: Sequence[SegmentFile], wanted: str) -> bool:
        """Whether the journal, as far as it can be read, ends before what is sealed does, by its position and by all
        that only rises, and has no message that is missing there."""
        ends: list[SegmentFile | SnapshotFile] = list(sealed)
        if self._snapshot is not None:
            ends.append(self._snapshot)
        newest = max(ends, key=lambda one: one.last)
        if end > newest.last or _beyond(last, _end(self._meta(newest))):
            return False
        return not self._lacks_of(file, end, sealed, wanted)

    def _lacks_of(self, file: JournalFile, end: int, sealed: Sequence[SegmentFile], wanted: str) -> bool:
        """Has the journal a message that is in no segment, and that a snapshot from behind its end does not say was
        removed? The messages are put into the table `wanted`, if they are not there."""
        connection = self._connected()
        if not connection.execute("SELECT 1 FROM duckdb_tables() WHERE table_name = ?", [wanted]).fetchall():
            connection.execute(f'CREATE TEMP TABLE {wanted} (pid BIGINT, "offset" BIGINT, id VARCHAR)')
            segments.append(connection, wanted, _messages(file), segments.Pace(hurried=True))
        over = [segment for segment in sealed if segment.first < end and file.first < segment.last]
        removed = self._snapshot if self._snapshot is not None and end <= self._snapshot.last else None
        return self._any_lacking(wanted, over, removed)

    # -- files ---------------------------------------------------------------------------------------------------------

    def _connected(self) -> duckdb.DuckDBPyConnection:
        if self._connection is None:
            self._connection = duck.connect(MEMORY_MB, self._spill)
        return self._connection

    def _attached(self, path: str) -> str:
        alias = self._aliases.get(path)
        if alias is None:
            alias = self._aliases[path] = f"sort_{len(self._aliases)}"
            duck.attach(self._connected(), path, alias)
        return alias

    def _meta(self, file: SegmentFile | SnapshotFile) -> Meta:
        alias = self._attached(file.path)
        try:
            return segments.read_meta(self._connected(), alias)
        except StorageFailed as error:
            raise damaged(file) from error


def _is_good(file: SegmentFile) -> bool:
    return file_checksum(file.path) == file.checksum


_End = tuple[int, int, int, int]


def _end(meta: Meta) -> _End:
    """The counters and the instant where a file of the log ends: of one log, they are so at that position alone."""
    return meta.version, meta.pid, meta.qid, meta.instant


def _beyond(one: _End, other: _End) -> bool:
    """Is one end, by any of what only rises, behind the other?"""
    return any(a > b for a, b in zip(one, other, strict=True))


def _read(file: JournalFile) -> tuple[int, _End, int | None]:
    """The position and the counters at which a journal ends, as far as it can be read, and its bytes up to there; None
    for these when it is not whole."""
    end, last, length = file.first, b"", None
    with suppress(DataDirectoryError):
        reader = JournalReader(file.path)
        if reader.first == file.first:
            for end, last in reader.frames():  # noqa: B007 - the last ones are what is asked for
                pass
            length = None if reader.torn else reader.end
    try:
        entries: Sequence[Entry] = decode_entries(last) if last else ()
    except msgspec.DecodeError:
        return end, (0, 0, 0, 0), None
    if not entries:
        return end, (0, 0, 0, 0), length
    entry = entries[-1]
    return end, (entry.counters.version, entry.counters.pid, entry.counters.qid, entry.now), length


def _messages(file: JournalFile) -> Generator[tuple[int, int, str]]:
    """Partition, offset and id of every message of a journal, as far as it can be read."""
    with suppress(DataDirectoryError, msgspec.DecodeError):
        for _, body in JournalReader(file.path).frames():
            for entry in decode_entries(body):
                for effect in entry.effects:
                    if isinstance(effect, Appended):
                        yield from ((effect.pid, record.offset, record.id) for record in effect.records)


def _overlap(one: SegmentFile, other: SegmentFile) -> DataDirectoryError:
    return DataDirectoryError(f"{one.path} and {other.path} overlap: one of them does not belong here. {_KEPT}.")

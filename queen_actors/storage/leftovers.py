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
from typing import NamedTuple

import duckdb
import msgspec

from queen_actors.domain.effects import Appended, Effect, Entry, KvPut, QueuePut, decode_entries
from queen_actors.errors import DataDirectoryError, StorageFailed

from . import duck, segments
from .directory import JournalFile, SegmentFile, SnapshotFile, file_checksum
from .journal import JournalReader
from .segments import Meta

MEMORY_MB = 256  # for the keys of the messages of one merge: a few dozen MiB
_OTHER_KEY = """
    SELECT 1 FROM (SELECT version, ns, key FROM {0}.kv WHERE {1}) ANTI JOIN journal_keys USING (version, ns, key)
    WHERE version > ? AND version <= ? LIMIT 1
"""
"""A key that was given one of the journal's versions, and is not in it."""
_OTHER_QUEUE = "SELECT 1 FROM {0}.queues q JOIN journal_queues j ON q.qid = j.qid AND q.uid <> j.uid LIMIT 1"
"""A queue that was given the number of one in the journal."""
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
        self._names = 0

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
        """Of these journals, which begin before the end of what is sealed, those that no segment of the same positions
        was made of, and that yet have nothing in them that speaks against what is sealed: a copy of the directory that
        was laid over an older copy has them.

        Raises DataDirectoryError for one that has: it is of another log, or of the same log where that went on
        otherwise.
        """
        aside: list[JournalFile] = []
        for file in files:
            held = _read(file)
            if held.end == file.first and held.bytes is not None:
                continue  # it holds nothing
            if self._is_sealed(file, held, sealed):
                continue
            if not self._is_older(file, held, sealed):
                raise DataDirectoryError(
                    f"{file.path} begins before the position up to which the log is sealed, and no segment was made of "
                    f"what it holds: it is of another log, or what is sealed is. {_KEPT}; or, when it is certain that "
                    "the journal does not belong here, move it elsewhere."
                )
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
            self._detach(part)  # there may be many, and each takes a descriptor
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

    def _is_sealed(self, file: JournalFile, held: _Held, sealed: Sequence[SegmentFile]) -> bool:
        """Whether a segment was made of the whole journal. It goes before that is merged with others, or dropped."""
        for segment in sealed:
            if (segment.first, segment.last) == (file.first, held.end):
                meta = self._meta(segment)
                return meta.journal_bytes == held.bytes and held.last == _end(meta)
        return False

    def _is_older(self, file: JournalFile, held: _Held, sealed: Sequence[SegmentFile]) -> bool:
        """Whether the journal, as far as it can be read, ends before what is sealed does, by its position and by all
        that only rises, and everything that can be compared is there as it is here."""
        ends: list[SegmentFile | SnapshotFile] = list(sealed)
        if self._snapshot is not None:
            ends.append(self._snapshot)
        newest = max(ends, key=lambda one: one.last)
        if held.end > newest.last or _beyond(held.last, _end(self._meta(newest))):
            return False
        over = [segment for segment in sealed if segment.first < held.end and file.first < segment.last]
        behind = self._snapshot if self._snapshot is not None and held.end <= self._snapshot.last else None
        states = [(self._attached(one.path), "NOT dropped") for one in over if self._meta(one).journal_bytes]
        if behind is not None:
            states.append((self._attached(behind.path), "true"))
        self._load(file)
        return not self._any_lacking("journal_messages", over, behind) and not any(
            self._is_otherwise(*state, held) for state in states
        )

    def _is_otherwise(self, alias: str, there: str, held: _Held) -> bool:
        """Has the attached file, in the rows of things that are `there`, given away numbers otherwise than the journal
        that was loaded?"""
        connection = self._connected()
        keys = connection.execute(_OTHER_KEY.format(alias, there), [held.version, held.last[0]]).fetchone()
        return keys is not None or connection.execute(_OTHER_QUEUE.format(alias)).fetchone() is not None

    def _load(self, file: JournalFile) -> None:
        """Put into tables what of a journal, as far as it can be read, can be compared: messages, and the numbers that
        keys and queues were given."""
        connection, pace = self._connected(), segments.Pace(hurried=True)
        connection.execute('CREATE OR REPLACE TABLE journal_messages (pid BIGINT, "offset" BIGINT, id VARCHAR)')
        connection.execute("CREATE OR REPLACE TABLE journal_keys (version BIGINT, ns VARCHAR, key VARCHAR)")
        connection.execute("CREATE OR REPLACE TABLE journal_queues (qid BIGINT, uid VARCHAR)")
        with (
            segments.Rows(connection, "journal_messages", pace) as messages,
            segments.Rows(connection, "journal_keys", pace) as keys,
            segments.Rows(connection, "journal_queues", pace) as queues,
        ):
            for effect in _effects(file):
                if isinstance(effect, Appended):
                    for record in effect.records:
                        messages.add((effect.pid, record.offset, record.id))
                elif isinstance(effect, KvPut):
                    keys.add((effect.version, effect.ns, effect.key))
                elif isinstance(effect, QueuePut):
                    queues.add((effect.qid, effect.uid))

    # -- files ---------------------------------------------------------------------------------------------------------

    def _connected(self) -> duckdb.DuckDBPyConnection:
        if self._connection is None:
            self._connection = duck.connect(MEMORY_MB, self._spill)
        return self._connection

    def _attached(self, path: str) -> str:
        alias = self._aliases.get(path)
        if alias is None:
            alias = f"sort_{self._names}"
            self._names += 1
            duck.attach(self._connected(), path, alias)
            self._aliases[path] = alias
        return alias

    def _detach(self, file: SegmentFile) -> None:
        alias = self._aliases.pop(file.path, None)
        if alias is not None:
            duck.detach(self._connected(), alias)

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


class _Held(NamedTuple):
    """What a journal holds, as far as it can be read: the position where it ends, the version counter behind its first
    entry, the counters and the instant behind its last; and its bytes up to there, None when it is not whole."""

    end: int
    version: int
    last: _End
    bytes: int | None


def _read(file: JournalFile) -> _Held:
    end, version, last = file.first, 0, (0, 0, 0, 0)
    with suppress(DataDirectoryError, msgspec.DecodeError):
        reader = JournalReader(file.path)
        if reader.first == file.first:
            first: Entry | None = None
            newest = b""
            try:
                for end, newest in reader.frames():  # noqa: B007 - the last one is what is asked for
                    if first is None:
                        first = decode_entries(newest)[0]
                        version = first.counters.version
            finally:
                if newest:
                    entry = decode_entries(newest)[-1]
                    last = (entry.counters.version, entry.counters.pid, entry.counters.qid, entry.now)
            return _Held(end, version, last, None if reader.torn else reader.end)
    return _Held(end, version, last, None)


def _effects(file: JournalFile) -> Generator[Effect]:
    """The effects of a journal, as far as it can be read."""
    with suppress(DataDirectoryError, msgspec.DecodeError):
        for _, body in JournalReader(file.path).frames():
            for entry in decode_entries(body):
                yield from entry.effects


def _overlap(one: SegmentFile, other: SegmentFile) -> DataDirectoryError:
    return DataDirectoryError(f"{one.path} and {other.path} overlap: one of them does not belong here. {_KEPT}.")

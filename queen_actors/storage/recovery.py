"""What an open reads before the journals: which snapshot and segments there are, whether they fit, and their rows.

The log is the newest snapshot, the segments since, and the journals, each beginning where the one before it ends;
beside them lie the segments from before the snapshot that still hold messages. What does not fit together, or whose
bytes are not those that its name says, is refused with the files kept.
"""

from __future__ import annotations

import heapq
import logging
import os
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import duckdb
from msgspec import Struct

from queen_actors import limits
from queen_actors.domain.effects import Effect
from queen_actors.errors import DataDirectoryError
from queen_actors.ports import Recent, SealedRun

from . import duck, leftovers, schema, segments
from .directory import KEPT, DataDirectory, JournalFile, Listing, SegmentFile, SnapshotFile, file_checksum
from .fileops import FULL
from .reader import RunIndex, read_recent, read_runs
from .segments import Meta, Pace

_log = logging.getLogger(__name__)

CHUNK = 2_000  # rows handed over at a time
VERIFY_BYTES = 512 * limits.MIB
"""Of the segments from before the snapshot so much is checked at an open, newest first: half a second. The rest is
checked in the background; a snapshot and the segments since are always checked."""


class Plan(Struct, frozen=True):
    """What is sealed: the state is `snapshot` and `since`, the messages lie in `behind` and `since`."""

    snapshot: SnapshotFile | None
    behind: list[SegmentFile]
    since: list[SegmentFile]
    unchecked: list[SegmentFile]
    """Segments of `behind` whose bytes are still to be checked."""
    sizes: dict[str, int]
    """Bytes of each of those files, by path."""
    left: list[str]
    """Paths of segments that nothing is read from, because others have what is in them: to be removed, by `clear`, when
    the whole log could be read."""

    aside: frozenset[str] = frozenset()
    """Paths of journals from before what is sealed that are not shown to be in it: to be set aside, by `clear`."""

    @property
    def position(self) -> int:
        """The last position that is sealed."""
        if self.since:
            return self.since[-1].last
        return self.snapshot.last if self.snapshot else 0

    @property
    def segments(self) -> list[SegmentFile]:
        return [*self.behind, *self.since]


def plan(directory: DataDirectory, listing: Listing) -> Plan:
    """Choose and check the sealed files, and see that the journals which they supersede hold nothing else. Nothing is
    changed. Raises DataDirectoryError, OSError, duckdb.Error."""
    snapshot = _newest_snapshot(listing)
    start = snapshot.last if snapshot else 0
    with leftovers.sorting_out(snapshot, directory.spill) as sorting:
        files, left = sorting.segments(listing.segments)
    behind = [file for file in files if file.last <= start]
    since = [file for file in files if file.last > start]
    position = start
    for file in since:
        if file.first != position:
            raise DataDirectoryError(
                f"The log goes on at position {position}, and {file.path} begins at {file.first}: a file between them "
                "is missing. Every file is kept as it is. Restore the data directory from a backup."
            )
        check(file)
        position = file.last
    paths = [file.path for file in files] + ([snapshot.path] if snapshot else [])
    sizes = {path: os.path.getsize(path) for path in paths}
    room = VERIFY_BYTES
    unchecked: list[SegmentFile] = []
    for file in reversed(behind):
        room -= sizes[file.path]
        if room >= 0:
            check(file)
        else:
            unchecked.append(file)
    with leftovers.sorting_out(snapshot, directory.spill) as sorting:
        aside = sorting.journals([file for file in listing.journals if file.first < position], files)
    left_over = [file.path for file in left]
    return Plan(snapshot, behind, since, unchecked, sizes, left_over, frozenset(file.path for file in aside))


def clear(directory: DataDirectory, found: Plan, superseded: Sequence[JournalFile] = ()) -> None:
    """Remove what is left over, when the whole log has been read without it: also these journals, but for those that
    are set aside. Raises OSError."""
    for path in (*found.left, *(file.path for file in superseded if file.path not in found.aside)):
        directory.ops.unlink(path)
    for path in sorted(found.aside):
        kept = next(name for number in count(1) if not os.path.lexists(name := f"{path}{KEPT}{number}"))
        try:
            directory.ops.rename(path, kept)
        except OSError as error:
            if error.errno not in FULL:
                raise
            kept = path  # a full disk may have no room for a name: it does no harm where it is
        _log.warning(
            "%s is from before what is sealed, and it is not shown that this has all of it; the log is whole without "
            "it, and it is kept as %s",
            path,
            kept,
        )


def check(file: SegmentFile | SnapshotFile) -> None:
    """Raise DataDirectoryError when the file's bytes are not those that were published."""
    if file_checksum(file.path) != file.checksum:
        raise leftovers.damaged(file)


def _newest_snapshot(listing: Listing) -> SnapshotFile | None:
    """The newest snapshot whose bytes are right. Raises DataDirectoryError when there are some, and none is right."""
    failure: DataDirectoryError | None = None
    for snapshot in reversed(listing.snapshots):
        try:
            check(snapshot)
        except DataDirectoryError as error:
            _log.error("%s", error.detail)
            failure = failure or error
            continue
        return snapshot
    if failure is not None:
        raise failure
    return None


class SealedLog:
    """Reads the sealed part of the log, in one thread: the state, then where messages lie, then the recent ones."""

    def __init__(self, found: Plan) -> None:
        self._found = found
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._aliases: dict[str, str] = {}
        self.index: list[RunIndex] = []
        """Where the messages of each segment lie; whole when `runs` is exhausted."""

    def start(self, memory_mb: int, spill: str) -> Meta:
        """Attach what the state is read from, and check that no segment is missing.

        The meta row of the newest file: the counters and the instant where the journals begin. Raises
        DataDirectoryError, OSError, duckdb.Error.
        """
        newest = self._found.since[-1] if self._found.since else self._found.snapshot
        if newest is None:
            return segments.NO_META
        self._connection = duck.connect(memory_mb, spill)
        if self._found.snapshot is not None:
            self._require_held(self._attach(self._found.snapshot.path), self._found.snapshot)
        for segment in self._found.since:
            if not segments.read_meta(self._connection, self._attach(segment.path)).journal_bytes:
                raise leftovers.without_state(segment)
        return segments.read_meta(self._connection, self._attach(newest.path))

    def state(self) -> Iterator[list[Effect]]:
        """Every effect but `Appended`, oldest first, some at a time."""
        snapshot = self._found.snapshot
        if snapshot is not None:
            for table in schema.TABLES:
                columns, alias = schema.names(table.columns), self._attach(snapshot.path)
                cursor = self._connected.execute(f"SELECT {columns} FROM {alias}.{table.name}")
                while rows := cursor.fetchmany(CHUNK):
                    yield [table.put_effect(row) for row in rows]
        for segment in self._found.since:
            alias = self._attach(segment.path)
            streams = [self._rows(alias, table) for table in schema.TABLES]
            chunk: list[Effect] = []
            for _, table, row in heapq.merge(*streams, key=lambda item: item[0]):
                chunk.append(table.segment_effect(row))
                if len(chunk) == CHUNK:
                    yield chunk
                    chunk = []
            yield chunk

    def runs(self) -> Iterator[list[SealedRun]]:
        """Where every sealed message lies, each partition's in offset order."""
        pace = Pace(hurried=True)
        for segment in self._found.segments:
            index = RunIndex(segment)
            self.index.append(index)
            yield from read_runs(self._connected, self._attach(segment.path), index, pace)
            self._detach_behind(segment)

    def recent(self, since: int) -> Iterator[list[Recent]]:
        """The sealed messages from this instant on, each partition's in offset order: first those that the snapshot
        remembers, because retention had removed them; a segment may have them still."""
        removed = ""
        if self._found.snapshot is not None:
            snapshot = self._attach(self._found.snapshot.path)
            yield from read_recent(self._connected, f"{snapshot}.recent", since)
            self._connected.execute(
                "CREATE OR REPLACE TEMP TABLE removed AS "
                f"SELECT pid, log_start FROM {snapshot}.partitions WHERE log_start > 0"
            )
            removed = 'ANTI JOIN removed ON removed.pid = m.pid AND m."offset" < removed.log_start'
        for index in self.index:
            if index.last_ts >= since:
                segment = self._attach(index.segment.path)
                yield from read_recent(self._connected, f"(SELECT m.* FROM {segment}.messages m {removed})", since)
                self._detach_behind(index.segment)

    def close(self) -> None:
        """Let go of the files."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def _connected(self) -> duckdb.DuckDBPyConnection:
        assert self._connection is not None
        return self._connection

    def _attach(self, path: str) -> str:
        alias = self._aliases.get(path)
        if alias is None:
            alias = f"open_{len(self._aliases)}"
            try:
                duck.attach(self._connected, path, alias)
            except duckdb.Error as error:
                raise DataDirectoryError(
                    f"DuckDB {duckdb.__version__} cannot open {path}, whose bytes are as they were written: {error}. "
                    "Open the directory with the version that wrote it, or a newer one."
                ) from error
            self._aliases[path] = alias
        return alias

    def _detach_behind(self, segment: SegmentFile) -> None:
        """Old segments may be many: let go of each when it has been read."""
        if segment in self._found.behind:
            duck.detach(self._connected, self._aliases.pop(segment.path))

    def _rows(self, alias: str, table: schema.Table) -> Iterator[tuple[int, schema.Table, tuple[Any, ...]]]:
        cursor = self._connected.cursor()
        cursor.execute(f"SELECT {schema.names(table.segment_columns)} FROM {alias}.{table.name} ORDER BY seq")
        while rows := cursor.fetchmany(CHUNK):
            for row in rows:
                yield row[0], table, row
        cursor.close()

    def _require_held(self, alias: str, snapshot: SnapshotFile) -> None:
        held = self._connected.execute(f"SELECT first, last FROM {alias}.segments WHERE live > 0 ORDER BY first")
        for first, last in held.fetchall():
            if not any(file.first <= first and last <= file.last for file in self._found.behind):
                raise DataDirectoryError(
                    f"The segment of positions {first} to {last} is missing, and {snapshot.path} says that it holds "
                    "messages. Every file is kept as it is. Restore the data directory from a backup."
                )

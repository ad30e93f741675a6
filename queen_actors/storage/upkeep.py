"""The work behind the log's back: rolled journals become segments, segments a snapshot, and files nobody needs go.

All of it runs on a thread of its own. What fails for want of room or memory leaves the log as it was, and is tried
again; what shows that a file does not hold what it should raises StorageFailed.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import NamedTuple, TypeVar

import duckdb
import msgspec
import trio

from queen_actors import limits
from queen_actors.errors import DataDirectoryError, StorageFailed
from queen_actors.ports import SealedRun

from . import compaction, duck, faultpoints, recovery, segments, snapshots
from .directory import DataDirectory, JournalFile, SegmentFile, SnapshotFile
from .reader import Reader, RunIndex, read_runs
from .segments import Interrupted, Pace
from .worker import Worker

T = TypeVar("T")
Evict = Callable[[Sequence[SealedRun]], None]

SEAL_MEMORY_MB = 64
"""What sealing may take beside as much as the journal is long: DuckDB sorts on the disk then, and is not slower."""
EVICT_MESSAGES = 1_000  # told to be evicted at a time: a few milliseconds of Trio's thread
SNAPSHOT_SEGMENTS = 64  # so many segments since the last snapshot call for the next, however small they are


class Rolled(NamedTuple):
    """A journal that is written to no more, and the position at which it ends."""

    journal: JournalFile
    last: int
    bytes: int


class Upkeep:
    """Keeps the sealed part of one open data directory."""

    def __init__(
        self,
        directory: DataDirectory,
        reader: Reader,
        reading: Worker,
        *,
        memory_mb: int,
        merge_bytes: int,
        snapshot_bytes: int,
    ) -> None:
        self._directory = directory
        self._reader = reader
        self._reading = reading
        self._memory_mb = memory_mb
        self._merge_bytes = merge_bytes
        self._snapshot_bytes = snapshot_bytes
        self._pace = Pace()
        self._hurried = self._stopped = False
        self._frugal = True
        self.worker = Worker("queen-actors-upkeep")
        self.rolled: deque[Rolled] = deque()
        """Journals to be sealed, oldest first; the committing thread adds to it."""
        self.snapshot: SnapshotFile | None = None
        self.behind: list[SegmentFile] = []
        self.since: list[SegmentFile] = []
        self.unchecked: list[SegmentFile] = []
        self._doomed: dict[str, str] = {}
        """Files that are to be removed, by path, each with the fault point that is passed then."""
        self.sizes: dict[str, int] = {}
        """Bytes of each of those files, by path."""

    def adopt(self, found: recovery.Plan) -> None:
        """Start from what an open found."""
        self.snapshot = found.snapshot
        self.behind = list(found.behind)
        self.since = list(found.since)
        self.unchecked = list(found.unchecked)
        self.sizes = dict(found.sizes)

    def stop(self) -> None:
        """End what is under way as soon as may be; everything after it is refused with StorageFailed."""
        self._stopped = True
        self._pace.stop()

    async def check_next(self) -> None:
        """Check the bytes of one of the segments that the open left unchecked. Raises StorageFailed, OSError."""
        if self.unchecked:
            file = self.unchecked[-1]
            await self._run(partial(recovery.check, file))
            self.unchecked.pop()

    async def seal(self, evict: Evict | None) -> None:
        """Seal the oldest rolled journal, if there is one. Raises StorageFailed, OSError, duckdb.Error."""
        if not self.rolled:
            return
        rolled = self.rolled[0]
        self._hurried = len(self.rolled) > 2
        segment, index, runs = await self._run(partial(self._build_segment, rolled))
        self._reader.index = [*self._reader.index, index]
        self.since.append(segment)
        self.rolled.popleft()
        with trio.CancelScope(shield=True):  # short, and nobody would do it later
            if evict is not None:
                for chunk in runs:
                    for piece in pieces(chunk):
                        evict(piece)
                        await trio.lowlevel.checkpoint()
            await self._run(partial(self._remove, [rolled.journal.path], "segment.journal_removed"))

    def snapshot_due(self) -> bool:
        """Whether the log since the last snapshot is long enough to be worth the next."""
        size = sum(self.sizes[file.path] for file in self.since)
        before = self.sizes[self.snapshot.path] if self.snapshot else 0
        return size > max(self._snapshot_bytes, before) or len(self.since) >= SNAPSHOT_SEGMENTS

    async def take_snapshot(self) -> None:
        """Make a snapshot of all that is sealed, and remove what it replaces. Raises as `seal`."""
        await self.remove_left()  # a journal that is there must find its segment, or its row, at the next start
        if not self.since:
            return
        old, since = self.snapshot, list(self.since)
        self.snapshot = await self._run(partial(self._build_snapshot, old, since))
        self.behind += since
        del self.since[: len(since)]
        await self._run(self._remove_old_snapshots)
        live = await self._run(self._live)
        await self._forget([file for file in self.behind if live.get((file.first, file.last)) == 0])
        await self._merge(live)

    async def _merge(self, live: dict[tuple[int, int], int]) -> None:
        totals = {index.segment: index.messages for index in self._reader.index}
        for group in list(compaction.groups_to_merge(self.behind, live, totals, self.sizes, self._merge_bytes)):
            merged, index = await self._run(partial(self._build_merged, group))
            at = self.behind.index(group[0])
            self.behind.insert(at, merged)
            self._reader.index = sorted(
                [*(kept for kept in self._reader.index if kept.segment not in group), index],
                key=lambda kept: kept.segment.first,
            )
            await self._forget(group)

    async def _forget(self, files: Sequence[SegmentFile]) -> None:
        """Remove segments that nothing needs any more."""
        if not files:
            return
        gone = set(files)
        self._reader.index = [index for index in self._reader.index if index.segment not in gone]
        self.behind = [file for file in self.behind if file not in gone]
        self.unchecked = [file for file in self.unchecked if file not in gone]
        for file in files:
            await self._reading.run(partial(self._reader.detach, file))
        await self._run(partial(self._remove, [file.path for file in files], "drop.segment_removed"))

    async def _run(self, call: Callable[[], T]) -> T:
        """Run in the upkeep's thread; a cancellation ends the work early, and then shows itself here."""
        if self._stopped:
            raise StorageFailed("The store is closed.")
        self._pace = pace = Pace(self._hurried)
        try:
            return await self.worker.run(lambda: _translated(call), hurry=pace.stop)
        except Interrupted:
            await trio.lowlevel.checkpoint()
            raise StorageFailed("The store is closed.") from None

    @contextmanager
    def _connection(self, memory_mb: int | None = None) -> Generator[duckdb.DuckDBPyConnection]:
        """An instance for one piece of work: what goes wrong in it, and the memory it took, go with it."""
        self._pace.give_way()
        connection = duck.connect(memory_mb or self._memory_mb, os.path.join(self._directory.spill, "build"))
        self._pace.working_on(connection)
        try:
            yield connection
        except BaseException:
            self._pace.working_on(None)
            connection.close()
            self._directory.remove_unfinished_builds()
            raise
        finally:
            self._pace.working_on(None)
            connection.close()

    def _build_segment(self, rolled: Rolled) -> tuple[SegmentFile, RunIndex, list[list[SealedRun]]]:
        if self._frugal:
            with suppress(duckdb.OutOfMemoryException):
                little = min(SEAL_MEMORY_MB + rolled.bytes // limits.MIB, self._memory_mb)
                return self._build_segment_within(rolled, little)
            self._frugal = False  # large messages: what comes now is likely to be as these were
        return self._build_segment_within(rolled, self._memory_mb)

    def _build_segment_within(
        self, rolled: Rolled, memory_mb: int
    ) -> tuple[SegmentFile, RunIndex, list[list[SealedRun]]]:
        with self._connection(memory_mb) as connection:
            look = _Look(connection, self._pace, rolled)
            segment = segments.build(self._directory, rolled.journal, connection, self._pace, look)
            self.sizes[segment.path] = look.bytes
            return segment, look.index, look.runs

    def _build_snapshot(self, old: SnapshotFile | None, since: Sequence[SegmentFile]) -> SnapshotFile:
        with self._connection() as connection:
            snapshot = snapshots.build(self._directory, old, since, self.behind, connection, self._pace)
            self.sizes[snapshot.path] = os.path.getsize(snapshot.path)
            return snapshot

    def _build_merged(self, group: Sequence[SegmentFile]) -> tuple[SegmentFile, RunIndex]:
        assert self.snapshot is not None
        with self._connection() as connection:
            look = _Look(connection, self._pace)
            merged = compaction.merge(self._directory, self.snapshot, group, connection, self._pace, look)
            self.sizes[merged.path] = look.bytes
            return merged, look.index

    def _live(self) -> dict[tuple[int, int], int]:
        assert self.snapshot is not None
        with self._connection() as connection:
            return compaction.live_counts(connection, self.snapshot)

    def _remove_old_snapshots(self) -> None:
        assert self.snapshot is not None
        newest = self.snapshot.last
        old = [file.path for file in self._directory.listing().snapshots if file.last < newest]
        self._remove(old, "snapshot.old_removed")

    async def remove_left(self) -> None:
        """Try again to remove what could not be removed. Raises OSError."""
        if self._doomed:
            await self._run(partial(self._remove, (), ""))

    def _remove(self, paths: Sequence[str], point: str) -> None:
        """Remove these files, and what is left of those before; all are tried. Raises the first OSError."""
        self._doomed |= dict.fromkeys(paths, point)
        failure: OSError | None = None
        for path, passed in list(self._doomed.items()):
            try:
                with suppress(FileNotFoundError):
                    self._directory.ops.unlink(path)
            except OSError as error:
                failure = failure or error
                continue
            del self._doomed[path]
            self.sizes.pop(path, None)
            if faultpoints.armed:
                faultpoints.passage(passed)
        self._directory.ops.sync_directory(self._directory.path)
        if failure is not None:
            raise failure


class _Look:
    """Reads what is needed of a new segment before it has its name: from then on it belongs to the log, and nothing
    may keep the store from knowing it."""

    index: RunIndex
    runs: list[list[SealedRun]]
    bytes: int

    def __init__(self, connection: duckdb.DuckDBPyConnection, pace: Pace, rolled: Rolled | None = None) -> None:
        """`rolled`: the journal that the segment has to reach the end of."""
        self._connection = connection
        self._pace = pace
        self._rolled = rolled

    def __call__(self, segment: SegmentFile, path: str) -> None:
        """Raises StorageFailed, OSError, duckdb.Error, Interrupted."""
        rolled = self._rolled
        if rolled is not None and segment.last != rolled.last:
            raise StorageFailed(
                f"{rolled.journal.path} was read to position {segment.last}, and {rolled.last} was committed."
            )
        self.index = RunIndex(segment)
        self.bytes = os.path.getsize(path)
        duck.attach(self._connection, path, "new")
        self.runs = list(read_runs(self._connection, "new", self.index, self._pace))
        duck.detach(self._connection, "new")


def pieces(runs: Sequence[SealedRun]) -> Iterator[list[SealedRun]]:
    """The runs, long ones in parts, with at most `EVICT_MESSAGES` messages at a time."""
    piece: list[SealedRun] = []
    room = EVICT_MESSAGES
    for run in runs:
        first = run.first
        while run.last - first >= room:
            yield [*piece, msgspec.structs.replace(run, first=first, last=first + room - 1)]
            first, piece, room = first + room, [], EVICT_MESSAGES
        if first <= run.last:
            piece.append(msgspec.structs.replace(run, first=first))
            room -= run.last - first + 1
    if piece:
        yield piece


def _translated(call: Callable[[], T]) -> T:
    try:
        return call()
    except duckdb.InterruptException:
        raise Interrupted from None
    except (DataDirectoryError, msgspec.DecodeError) as error:
        raise StorageFailed(str(error)) from error

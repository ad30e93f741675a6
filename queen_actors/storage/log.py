"""What a store has between `open` and `close`: the directory, the journal that is written, what is sealed, and the
three threads that do the work: one commits, one reads sealed messages, one keeps the files."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import trio

from queen_actors import limits
from queen_actors.domain.effects import Entry
from queen_actors.errors import StorageFailed, StorageFull
from queen_actors.ports import Recovered, Recovery

from . import duck, recovery
from .directory import DataDirectory, JournalFile
from .fileops import FULL
from .journal import PAGE, JournalWriter
from .reader import Reader
from .tail import JournalTail
from .upkeep import Rolled, Upkeep
from .worker import Worker

T = TypeVar("T")


class Log:
    """The log of one data directory while it is open."""

    def __init__(self, directory: DataDirectory, committer: Worker, memory_mb: int, snapshot_bytes: int) -> None:
        self.directory = directory
        self.committer = committer
        self.reading = Worker("queen-actors-read")
        self.reader = Reader(memory_mb // duck.SHARES, directory.spill)
        self.memory_mb = memory_mb - memory_mb // duck.SHARES
        self.upkeep = Upkeep(
            directory,
            self.reader,
            self.reading,
            memory_mb=self.memory_mb,
            merge_bytes=limits.JOURNAL_ROLL_BYTES,
            snapshot_bytes=snapshot_bytes,
        )
        self._writer: JournalWriter | None = None
        self.due = trio.Event()
        """Set when there is a rolled journal to seal, or something that is still to be noted."""
        self.dirty_since: float | None = None
        """Since when, on Trio's clock, the newest journal holds anything. The thread that commits says so, as it is the
        one that knows."""
        self.groups = 0
        self.noted_at = -math.inf
        """When, on Trio's clock, it was last written down how far the log reaches."""
        self.unnoted = False
        """Whether the log has gone on since then."""

    @property
    def writer(self) -> JournalWriter:
        assert self._writer is not None
        return self._writer

    async def recover(self, sink: Recovery) -> Recovered:
        """Pour everything into the recovery, and begin a new journal behind it. Raises DataDirectoryError, OSError,
        duckdb.Error."""
        worker = self.upkeep.worker
        listing = await worker.run(self.directory.listing)
        found = await worker.run(lambda: recovery.plan(self.directory, listing))
        sealed = recovery.SealedLog(found)
        spill = os.path.join(self.directory.spill, "build")
        try:
            meta = await worker.run(lambda: sealed.start(self.memory_mb, spill))
            await _pour(worker, sealed.state(), sink.restore)
            since = sink.recent_since()
            await _pour(worker, sealed.runs(), sink.sealed)
            await _pour(worker, sealed.recent(since), sink.recent)
        finally:
            await worker.run(sealed.close)
        self.reader.index = sealed.index
        self.upkeep.adopt(found)

        def take(entries: Sequence[Entry]) -> None:
            for entry in entries:
                sink.entry(entry)

        tail = JournalTail(self.directory, listing.journals, found.position)
        await _pour(worker, tail.chunks(), take)
        await worker.run(lambda: self._begin(tail, found))
        if self.writer.position > self.writer.first:
            self.dirty_since = trio.current_time()
        instant = max(tail.last_instant, meta.instant)
        return Recovered(tail.counters or meta.counters, tail.position, instant, tail.cut_bytes)

    def _begin(self, tail: JournalTail, found: recovery.Plan) -> None:
        tail.finish()
        recovery.clear(self.directory, found, tail.superseded)
        ops, rolled = self.directory.ops, list(tail.kept)
        try:
            self._writer = JournalWriter.create(ops, self.directory.journal_path(tail.position), tail.position)
            self._note(tail.position)
        except OSError as error:
            # A full disk has no room for a new journal, and what is there can still be read: the newest one goes on,
            # which may be one that nothing was written to yet
            if error.errno not in FULL or self._writer is not None or not (rolled or tail.empty):
                raise
            file, position = (tail.empty, tail.position) if tail.empty else rolled.pop()
            end = PAGE if tail.empty else tail.last_end
            self._writer = JournalWriter.resume(ops, file.path, file.first, position, end)
        for file, last in rolled:
            self.upkeep.rolled.append(Rolled(file, last, os.path.getsize(file.path)))
        if self.upkeep.rolled:
            self.due.set()

    def append(self, body: bytes, count: int, now: float) -> None:
        """Make one group durable, at this instant of Trio's clock. Raises as `JournalWriter.append`."""
        self.writer.append(body, count)
        self.groups += 1
        if self.dirty_since is None:
            self.dirty_since = now

    def note(self, now: float) -> None:
        """Write down how far the log reaches, without a flush. An error is of no consequence."""
        self.directory.note_position(self.writer.position, self.writer.first, flush=False)
        self.noted_at = now
        self.unnoted = False

    def roll(self) -> None:
        """Begin the next journal file, if the present one holds anything.

        Raises StorageFull when there is no room for it: the present one goes on as before; StorageFailed.
        """
        writer = self.writer
        if writer.end == PAGE:
            return
        path = self.directory.journal_path(writer.position)
        try:
            fresh = JournalWriter.create(self.directory.ops, path, writer.position)
        except OSError as error:
            if error.errno in FULL:
                raise StorageFull(f"The disk that holds {path} is full: there is no room for a new journal.") from error
            raise StorageFailed(f"Beginning a new journal file failed: {error}.") from error
        try:
            self._note(writer.position)
            writer.finish()
        except OSError as error:
            fresh.close()
            raise StorageFailed(f"Ending a journal file failed: {error}.") from error
        self._writer = fresh
        self.dirty_since = None
        self.unnoted = False
        self.upkeep.rolled.append(Rolled(JournalFile(writer.first, writer.path), writer.position, writer.end))

    def _note(self, position: int) -> None:
        """Write down that the newest journal begins behind `position`. On a full disk the note before stays, which is
        still true: some file systems need room even for what they overwrite. Raises OSError."""
        try:
            self.directory.note_position(position, position, flush=True)
        except OSError as error:
            if error.errno not in FULL:
                raise

    async def close(self, healthy: bool) -> None:
        """Let go of everything, writing down where the log ends if it is known."""

        def note() -> None:
            with contextlib.suppress(OSError):  # the log is durable without this note
                self.directory.note_position(self.writer.position, self.writer.first, flush=True)

        self.upkeep.stop()
        if healthy:
            await self.committer.run(note)
        await self.reading.run(self.reader.close)
        await self.upkeep.worker.run(lambda: None)
        self.let_go()

    def let_go(self) -> None:
        """End the threads and give back the directory."""
        for worker in (self.committer, self.reading, self.upkeep.worker):
            worker.stop()
        if self._writer is not None:
            self._writer.close()
        self.directory.release()


async def _pour(worker: Worker, chunks: Iterator[Sequence[T]], sink: Callable[[Sequence[T]], None]) -> None:
    """Let the worker read chunk after chunk, and hand each over in Trio's own thread."""
    while (chunk := await worker.run(lambda: next(chunks, None))) is not None:
        sink(chunk)
        await trio.lowlevel.checkpoint()

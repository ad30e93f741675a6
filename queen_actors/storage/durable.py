"""The durable store: a journal file for the log's tail, DuckDB segments and snapshots for the rest."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import trio

from queen_actors import limits
from queen_actors.domain.effects import Counters, Entry, Record, encode_entries
from queen_actors.errors import DataDirectoryError, StorageFailed
from queen_actors.ports import Recovered, Recovery, SealedRun, StoreStatistics

from .directory import DataDirectory
from .fileops import FULL, FileOps
from .journal import PAGE, JournalWriter
from .recovery import JournalTail
from .worker import Worker

T = TypeVar("T")

NOTE_SECONDS = 1.0  # how old the note of the last position may be: bounds what a lost end can hide


class DurableStore:
    """A `ports.Store` in a directory. After `close` it can be opened again."""

    def __init__(
        self,
        directory: str,
        *,
        roll_bytes: int = limits.JOURNAL_ROLL_BYTES,
        roll_seconds: float = limits.JOURNAL_ROLL_SECONDS,
        snapshot_bytes: int = limits.SNAPSHOT_BYTES,
        memory_limit_mb: int = 512,
        ops: FileOps | None = None,
    ) -> None:
        self._path = directory
        self._roll_bytes = roll_bytes
        self._roll_seconds = roll_seconds
        self._ops = ops or FileOps()
        self._directory: DataDirectory | None = None
        self._writer: JournalWriter | None = None
        self._committer: Worker | None = None
        self._failure: str | None = "The store is not open."
        self._groups = 0
        self._noted_at = 0.0
        self._rolled_bytes = 0

    async def open(self, recovery: Recovery) -> Recovered:
        """Take the directory, recover, and be ready for `commit`. Raises DataDirectoryError."""
        assert self._committer is None, "open is called on an open store"
        self._committer = worker = Worker("queen-actors-log")
        try:
            directory = await worker.run(lambda: DataDirectory.take(self._path, self._ops))
            self._directory = directory
            listing = await worker.run(directory.listing)
            tail = JournalTail(directory, listing.journals, 0)
            recovery.restore(())
            recovery.recent_since()
            chunks = tail.chunks()
            while (chunk := await worker.run(lambda: next(chunks, None))) is not None:
                for entry in chunk:
                    recovery.entry(entry)
            await worker.run(lambda: self._start(directory, tail))
        except BaseException as error:
            self._let_go()
            if isinstance(error, OSError):
                raise DataDirectoryError(f"The data directory {self._path} cannot be used: {error}.") from error
            raise
        self._failure = None
        return Recovered(tail.counters or Counters(), tail.position, tail.last_instant, tail.cut_bytes)

    def _start(self, directory: DataDirectory, tail: JournalTail) -> None:
        tail.finish()
        self._writer = JournalWriter.create(self._ops, directory.journal_path(tail.position), tail.position)
        directory.note_position(tail.position, tail.position, flush=True)

    async def commit(self, entries: Sequence[Entry]) -> None:
        """Make the group durable; see `ports.Store`. It cannot be cancelled while it is under way."""
        body, count = encode_entries(entries), len(entries)
        await self._run(lambda: self._append(body, count))

    def _append(self, body: bytes, count: int) -> None:
        writer = self._writer
        if self._failure is not None or writer is None:
            raise StorageFailed(self._failure or "The store is closed.")
        try:
            if writer.end >= self._roll_bytes + PAGE:
                writer = self._roll(writer)
            writer.append(body, count)
        except StorageFailed as error:
            self._failure = error.detail
            raise
        self._groups += 1
        now = time.monotonic()
        if now - self._noted_at >= NOTE_SECONDS and self._directory is not None:
            self._directory.note_position(writer.position, writer.first, flush=False)
            self._noted_at = now

    def _roll(self, writer: JournalWriter) -> JournalWriter:
        """Begin the next journal file; when the disk has no room for it the present one goes on."""
        directory = self._directory
        assert directory is not None
        try:
            fresh = JournalWriter.create(self._ops, directory.journal_path(writer.position), writer.position)
        except OSError as error:
            if error.errno in FULL:
                return writer
            raise StorageFailed(f"Beginning a new journal file failed: {error}.") from error
        try:
            directory.note_position(writer.position, writer.position, flush=True)
            writer.finish()
        except OSError as error:
            fresh.close()
            raise StorageFailed(f"Ending a journal file failed: {error}.") from error
        self._rolled_bytes += writer.end
        self._writer = fresh
        return fresh

    async def read(self, pid: int, first: int, last: int, max_bytes: int) -> list[Record]:
        await trio.lowlevel.checkpoint()
        return []

    async def first_offset_at(self, pid: int, ts: int) -> int | None:
        await trio.lowlevel.checkpoint()
        return None

    async def maintain(self, evict: Callable[[Sequence[SealedRun]], None]) -> None:
        await trio.sleep_forever()

    async def seal(self) -> None:
        await trio.lowlevel.checkpoint()

    def statistics(self) -> StoreStatistics:
        """Figures since the store was opened."""
        writer = self._writer
        return StoreStatistics(
            position=writer.position if writer else 0,
            groups=self._groups,
            journal_bytes=writer.end if writer else 0,
            segments=0,
            segment_bytes=0,
            snapshots=0,
        )

    async def close(self) -> None:
        """Let go of the directory. What was committed stays; safe to call twice."""
        with trio.CancelScope(shield=True):
            if self._committer is not None:
                await self._committer.run(self._finish)
        self._let_go()
        await trio.lowlevel.checkpoint()

    def _finish(self) -> None:
        if self._failure is None and self._directory is not None and self._writer is not None:
            with contextlib.suppress(OSError):  # the log is durable without this note
                self._directory.note_position(self._writer.position, self._writer.first, flush=True)

    def _let_go(self) -> None:
        self._failure = self._failure or "The store is closed."
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        if self._directory is not None:
            self._directory.release()
            self._directory = None
        if self._committer is not None:
            self._committer.stop()
            self._committer = None

    async def _run(self, call: Callable[[], T]) -> T:
        if self._committer is None:
            raise StorageFailed(self._failure or "The store is closed.")
        return await self._committer.run(call)

"""The durable store: a journal file for the log's tail, DuckDB segments and snapshots for the rest."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import duckdb
import trio

from queen_actors import limits
from queen_actors.domain.effects import Entry, Record, encode_entries
from queen_actors.errors import DataDirectoryError, StorageFailed, StorageFull, Unavailable
from queen_actors.ports import Recovered, Recovery, SealedRun, StoreStatistics

from .directory import DataDirectory, unusable
from .fileops import FileOps
from .log import Log
from .upkeep import Evict, Rolled
from .worker import Worker

_log = logging.getLogger(__name__)
T = TypeVar("T")

NOTE_SECONDS = 1.0  # how old the note of the last position may be: bounds what a lost end can hide
BRAKE_SECONDS = 0.05  # between commits while sealing is far behind: it needs the interpreter too
RETRY_SECONDS, RETRY_SECONDS_MAX = 1.0, 60.0  # between attempts at upkeep that failed


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
        """`roll_bytes`, `roll_seconds`: when a journal file is full, or old; `snapshot_bytes`: how much sealed log
        calls for a snapshot; `memory_limit_mb`: what DuckDB may use, three quarters of it only while it builds."""
        self._path = directory
        self._roll_bytes = roll_bytes
        self._roll_seconds = roll_seconds
        self._snapshot_bytes = snapshot_bytes
        self._memory_mb = memory_limit_mb
        self._ops = ops or FileOps()
        self._failure: str | None = "The store is not open."
        self._open: Log | None = None
        self._refused = 0  # bytes of the group that a full disk refused: an empty commit asks for so much room
        self._evict: Evict | None = None
        self._sealing = trio.Lock()

    async def open(self, recovery: Recovery) -> Recovered:
        """Take the directory, recover, and be ready for `commit`. Raises DataDirectoryError."""
        if self._open is not None:
            raise RuntimeError("open was called on an open store")
        committer = Worker("queen-actors-log")
        try:
            directory = await committer.run(lambda: DataDirectory.take(self._path, self._ops))
        except BaseException:
            committer.stop()
            raise
        self._open = opened = Log(directory, committer, self._memory_mb, self._snapshot_bytes)
        try:
            recovered = await opened.recover(recovery)
        except (OSError, duckdb.Error) as error:
            opened.let_go()
            self._open = None
            raise unusable(self._path, error) from error
        except DataDirectoryError as error:
            opened.let_go()
            self._open = None
            raise DataDirectoryError(
                f"{error.detail} `queen-actors doctor --data {self._path}` lists all that is wrong with the directory."
            ) from error
        except BaseException:
            opened.let_go()
            self._open = None
            raise
        self._failure = None
        return recovered

    async def commit(self, entries: Sequence[Entry], done: Callable[[], None] | None = None) -> None:
        """Make the group durable; see `ports.Store`. It cannot be cancelled while it is under way."""
        opened = self._opened()
        if not entries:
            if self._refused:
                await self._commit(opened, lambda: self._probe(opened))
            else:
                await trio.lowlevel.cancel_shielded_checkpoint()
            return
        body, count, now = encode_entries(entries), len(entries), trio.current_time()
        unnoted = await self._commit(opened, lambda: self._append(opened, body, count, now), then=done)
        if unnoted or opened.upkeep.rolled:
            opened.due.set()
        if _bytes(opened.upkeep.rolled, 2) > limits.UNSEALED_BYTES:
            with trio.CancelScope(shield=True):  # short; the group is durable and told
                await trio.sleep(BRAKE_SECONDS)

    async def _commit(self, opened: Log, call: Callable[[], T], then: Callable[[], None] | None = None) -> T:
        """Run what changes the journal, in the thread that commits. When it fails so that the journal's end is not
        known, calls that wait behind it already are refused: none of them may go on there."""

        def guarded() -> T:
            if self._failure is not None:
                raise StorageFailed(self._failure)
            try:
                return call()
            except StorageFailed as error:
                self._end(opened, error.detail)
                raise

        return await opened.committer.run(guarded, then=then)

    def _append(self, opened: Log, body: bytes, count: int, now: float) -> bool:
        """Whether it is not written down that the log reaches so far, and was written down what it reached before."""
        try:
            if opened.writer.end >= self._roll_bytes:
                with contextlib.suppress(StorageFull):  # the present file may still have room for this group
                    opened.roll()
            opened.append(body, count, now)
        except StorageFull:
            self._refused = len(body)
            raise
        if now - opened.noted_at >= NOTE_SECONDS:
            opened.note(now)
            return False
        before, opened.unnoted = opened.unnoted, True
        return not before

    def _probe(self, opened: Log) -> None:
        opened.writer.probe(self._refused)
        self._refused = 0

    async def read(self, pid: int, first: int, last: int, max_bytes: int) -> list[Record]:
        """Sealed messages; see `ports.Store`."""
        opened = self._opened()
        return await self._read(opened, lambda: opened.reader.read(pid, first, last, max_bytes))

    async def first_offset_at(self, pid: int, ts: int) -> int | None:
        """The first sealed offset of the partition at or after the instant, or None."""
        opened = self._opened()
        return await self._read(opened, lambda: opened.reader.first_offset_at(pid, ts))

    async def find(self, pid: int, txn: str) -> int | None:
        """The partition's last sealed offset with this transaction id, or None."""
        opened = self._opened()
        return await self._read(opened, lambda: opened.reader.find(pid, txn))

    async def size(self, pid: int, first: int, last: int) -> int:
        """Payload bytes of sealed messages."""
        opened = self._opened()
        return await self._read(opened, lambda: opened.reader.size(pid, first, last))

    async def _read(self, opened: Log, call: Callable[[], T]) -> T:
        try:
            return await opened.reading.run(call)
        except (OSError, duckdb.Error) as error:
            detail = f"Reading a segment of {self._path} failed: {error}."
            self._end(opened, detail)
            raise StorageFailed(detail) from error

    async def maintain(self, evict: Callable[[Sequence[SealedRun]], None]) -> None:
        """Seal, snapshot and drop files in the background, for ever, and write down how far the log reached before
        nothing was committed for a while. Raises StorageFailed."""
        self._evict = evict
        retry = RETRY_SECONDS
        while True:
            opened = self._opened()
            opened.due = trio.Event()
            wait = self._roll_seconds
            try:
                await self._maintain(opened)
                retry = RETRY_SECONDS
                if opened.upkeep.rolled or opened.upkeep.unchecked:
                    continue
            except (OSError, duckdb.Error, StorageFull) as error:
                _log.warning("upkeep of %s failed and is tried again in %.0f s: %s", self._path, retry, error)
                wait = retry
                retry = min(2 * retry, RETRY_SECONDS_MAX)
                await trio.sleep(wait)
                continue
            if opened.dirty_since is not None:
                wait = opened.dirty_since + self._roll_seconds - trio.current_time()
            if opened.unnoted:
                wait = min(wait, opened.noted_at + NOTE_SECONDS - trio.current_time())
            with trio.move_on_after(max(0.0, wait)):
                await opened.due.wait()

    async def _maintain(self, opened: Log) -> None:
        try:
            if opened.unnoted and (now := trio.current_time()) >= opened.noted_at + NOTE_SECONDS:
                await self._commit(opened, lambda: opened.note(now))
            async with self._sealing:
                self._require(opened)
                if opened.dirty_since is not None and trio.current_time() >= opened.dirty_since + self._roll_seconds:
                    await self._roll(opened)
                await opened.upkeep.seal(self._evict)
                await opened.upkeep.remove_left()
                if opened.upkeep.snapshot_due():
                    await opened.upkeep.take_snapshot()
                await opened.upkeep.check_next()
        except StorageFailed as error:
            self._end(opened, error.detail)
            raise

    async def seal(self) -> None:
        """Roll the journal now and seal all of it. Raises Unavailable when that failed and will be tried again."""
        opened = self._opened()
        async with self._sealing:
            self._require(opened)
            try:
                await self._roll(opened)
                for _ in range(len(opened.upkeep.rolled)):
                    await opened.upkeep.seal(self._evict)
            except StorageFailed as error:
                self._end(opened, error.detail)
                raise
            except (OSError, duckdb.Error, StorageFull) as error:
                raise Unavailable(
                    f"Sealing the journal of {self._path} failed: {str(error).rstrip('.')}. It is kept."
                ) from error

    async def _roll(self, opened: Log) -> None:
        """Begin a new journal file if the present one holds anything. Raises StorageFull, StorageFailed."""
        await self._commit(opened, opened.roll)

    def statistics(self) -> StoreStatistics:
        """Figures since the store was opened; they can be had after a failure too, until it is closed."""
        opened = self._open
        if opened is None:
            raise StorageFailed(self._failure or "The store is not open.")
        upkeep = opened.upkeep
        files = [*upkeep.behind, *upkeep.since]
        return StoreStatistics(
            position=opened.writer.position,
            groups=opened.groups,
            journal_bytes=opened.writer.end + _bytes(upkeep.rolled),
            segments=len(files),
            segment_bytes=sum(upkeep.sizes[file.path] for file in files),
            snapshots=1 if upkeep.snapshot else 0,
        )

    async def close(self) -> None:
        """Let go of the directory. What was committed stays; safe to call twice."""
        opened, self._open = self._open, None
        healthy, self._failure = self._failure is None, self._failure or "The store is closed."
        with trio.CancelScope(shield=True):
            if opened is not None:
                await opened.close(healthy)
            else:
                await trio.lowlevel.checkpoint()

    def _opened(self) -> Log:
        if self._failure is not None or self._open is None:
            raise StorageFailed(self._failure or "The store is not open.")
        return self._open

    def _require(self, opened: Log) -> None:
        """Raise StorageFailed when this log was closed meanwhile."""
        if self._open is not opened:
            raise StorageFailed(self._failure or "The store was closed.")

    def _end(self, opened: Log, failure: str) -> None:
        """Refuse everything from now on, if it is still this log that is open."""
        if self._open is opened:
            self._failure = failure


def _bytes(rolled: Iterable[Rolled], behind: int = 0) -> int:
    """What rolled journals take, but for the first ones. The committing thread may append one meanwhile."""
    return sum([one.bytes for one in tuple(rolled)[behind:]])

"""What the outside fulfils: a clock, ids and a durable log. Everything above is a function of these and its input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from .domain.effects import Counters, Effect, Entry, Recent, Record, SealedRun

__all__ = ["Clock", "Ids", "Recent", "Recovered", "Recovery", "SealedRun", "Store", "StoreStatistics"]


class Clock(Protocol):
    """Time for the whole broker: anchored to the wall once, then carried by the monotonic clock."""

    def now(self) -> int:
        """The instant, microseconds since the epoch; each call gives a later one than every call before it."""
        ...

    def advance_to(self, at: int) -> None:
        """From here on `now` is later than `at`: the log's last instant, so that time does not go back at a restart."""
        ...

    async def sleep_until(self, at: int) -> None:
        """Return when `now` has reached `at`, never before."""
        ...


class Ids(Protocol):
    """Everything random. A seeded one makes a run of the broker reproducible."""

    def uuid(self, now: int) -> str:
        """A new UUID version 7 in its canonical spelling: ids made later sort later."""
        ...

    def choose(self, below: int) -> int:
        """A number 0 <= n < below."""
        ...


class Recovery(Protocol):
    """Where a store pours what it holds when it is opened, in this order: `restore` for the state before the tail,
    `sealed` and `recent` for messages that lie in segments, then `entry` for each entry of the tail."""

    def restore(self, effects: Sequence[Effect]) -> None:
        """Effects other than `Appended`, oldest first: a snapshot's rows, then the segments' rows behind it."""
        ...

    def recent_since(self) -> int:
        """Asked after `restore`: sealed messages with `ts` at or after this instant are wanted as `recent`."""
        ...

    def sealed(self, runs: Sequence[SealedRun]) -> None:
        """Messages that lie in segments; runs of one partition come in offset order.

        They may reach below the partition's `log_start`, and name partitions that are gone: leave those out, here and
        in `recent`.
        """
        ...

    def recent(self, messages: Sequence[Recent]) -> None:
        """Sealed messages with `ts` at or after `recent_since()`; each partition's in offset order."""
        ...

    def entry(self, entry: Entry) -> None:
        """One entry of the journal, oldest first; apply its effects (`Appended` included) and take its counters."""
        ...


class StoreStatistics(Struct, frozen=True):
    """What a store has done since it was opened; sizes in bytes."""

    position: int
    groups: int
    journal_bytes: int
    segments: int
    segment_bytes: int
    snapshots: int


class Store(Protocol):
    """One durable log of entries. Called from one Trio task at a time except `read` and `first_offset_at`."""

    async def open(self, recovery: Recovery) -> Recovered:
        """Take the directory, recover, and be ready for `commit`. Raises DataDirectoryError."""
        ...

    async def commit(self, entries: Sequence[Entry], done: Callable[[], None] | None = None) -> None:
        """Make the group durable: when this returns, it survives a crash, and whole entries only. `done` is called as
        soon as that is so, in Trio's thread and before this returns; not when it raises.

        Raises StorageFull when it is certain that nothing was committed, StorageFailed when that is not known; after
        StorageFailed the store refuses everything. An empty group changes nothing; after StorageFull it asks whether
        there is room again for what was refused.
        """
        ...

    async def read(self, pid: int, first: int, last: int, max_bytes: int) -> list[Record]:
        """Sealed messages `first`..`last`, in offset order, at least one, and no more after `max_bytes` of payload.

        Offsets that retention has removed are left out. Raises StorageFailed.
        """
        ...

    async def first_offset_at(self, pid: int, ts: int) -> int | None:
        """The first sealed offset of the partition whose `ts` is at or after this instant, or None."""
        ...

    async def find(self, pid: int, txn: str) -> int | None:
        """The last sealed offset of the partition with this transaction id, or None. Slower than `read`: a search."""
        ...

    async def size(self, pid: int, first: int, last: int) -> int:
        """Payload bytes of the sealed messages `first`..`last` of the partition."""
        ...

    async def maintain(self, evict: Callable[[Sequence[SealedRun]], None]) -> None:
        """Seal, snapshot and drop files in the background, for ever; `evict` is told of each run that got sealed."""
        ...

    async def seal(self) -> None:
        """Roll the journal now and seal all of it: segments and SQL are then up to the second.

        Raises Unavailable when it cannot be done now: the journal is kept, and `maintain` tries again.
        """
        ...

    def statistics(self) -> StoreStatistics: ...

    async def close(self) -> None:
        """Let go of the directory. What was committed stays; safe to call twice. Then `open` may be called again."""
        ...


class Recovered(Struct, frozen=True):
    """What `open` found: the counters, the last position, the last instant, and what it did about a torn tail."""

    counters: Counters
    position: int
    last_instant: int
    cut_bytes: int = 0

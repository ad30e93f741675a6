"""The store in memory: the log of a broker without a data directory, and the one on which simulations run.

It runs inline, in the caller's task and without threads, so that a run on a virtual clock is a function of its seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import trio

from queen_actors.domain.effects import Appended, Counters, Effect, Entry, Record, decode_entries, encode_entries
from queen_actors.errors import StorageFailed, StorageFull
from queen_actors.ports import Recent, Recovered, Recovery, SealedRun, StoreStatistics


@dataclass(slots=True)
class Faults:
    """Switches that a test sets while the store is in use; each holds until it is set back."""

    full: bool = False
    """Commits are refused with StorageFull: nothing of them is kept."""
    fail: Literal["kept", "lost"] | None = None
    """The next commit ends in StorageFailed, its entries durable or not, and the store refuses everything after it."""
    latency: float | Callable[[], float] = 0.0
    """Seconds of Trio's clock that a commit takes, or a function that gives them for each commit."""
    read_latency: float = 0.0
    """Seconds that a read of sealed messages takes."""


class DurableBytes:
    """What survives a crash of a `MemoryStore`: encoded groups, the first `sealed` of them as if in segments."""

    __slots__ = ("groups", "sealed")

    def __init__(self) -> None:
        self.groups: list[bytes] = []
        self.sealed = 0


class MemoryStore:
    """A `ports.Store` in memory.

    By default it retains nothing: a commit is counted and forgotten, nothing is ever sealed, and an `open` finds an
    empty log. With `retain` it keeps every group, and `reopen()` gives a store that recovers from them; `maintain`
    then seals all there is every `seal_seconds`, if that is given.
    """

    def __init__(
        self,
        retain: bool = False,
        faults: Faults | None = None,
        *,
        seal_seconds: float | None = None,
        durable: DurableBytes | None = None,
    ) -> None:
        self.faults = faults or Faults()
        self.durable = durable or DurableBytes()
        self._retain = retain
        self._seal_seconds = seal_seconds
        self._failure: str | None = "The store is not open."
        self._crashed = trio.Event()
        self._crash_keeps = False
        self._evict: Callable[[Sequence[SealedRun]], None] | None = None
        self._position = 0
        self._groups = 0
        self._messages: dict[int, list[Record]] = {}
        """The sealed messages of each partition, in offset order."""

    def reopen(self) -> MemoryStore:
        """A new store, not yet open, over the bytes that this one made durable."""
        return MemoryStore(self._retain, self.faults, seal_seconds=self._seal_seconds, durable=self.durable)

    def crash(self, *, keep: bool = False) -> None:
        """The process dies here: what is not durable is lost, and this store refuses everything from now on.

        A commit under way ends in StorageFailed; `keep` says whether its group had reached the disk already.
        """
        self._crash_keeps = keep
        self._failure = "The store has crashed."
        self._crashed.set()

    async def open(self, recovery: Recovery) -> Recovered:
        """Recover what is durable, and be ready for `commit`. Raises StorageFailed after a crash: see `reopen`."""
        await trio.lowlevel.checkpoint()
        if self._crashed.is_set():
            self._refuse()
        counters, instant = Counters(), 0
        self._messages.clear()
        sealed = [decode_entries(body) for body in self.durable.groups[: self.durable.sealed]]
        recovery.restore(
            [e for group in sealed for entry in group for e in entry.effects if not isinstance(e, Appended)]
        )
        since = recovery.recent_since()
        recovery.sealed(self._take_in(e for group in sealed for entry in group for e in entry.effects))
        recovery.recent(
            [
                Recent(pid, record.offset, record.ts, record.txn, record.id)
                for pid, records in self._messages.items()
                for record in records
                if record.ts >= since
            ]
        )
        tail = [decode_entries(body) for body in self.durable.groups[self.durable.sealed :]]
        for group in tail:
            for entry in group:
                recovery.entry(entry)
        self._position = 0
        for group in (*sealed, *tail):
            self._position += len(group)
            for entry in group:
                counters, instant = entry.counters, max(instant, entry.now)
        self._failure = None
        return Recovered(counters, self._position, instant)

    async def commit(self, entries: Sequence[Entry], done: Callable[[], None] | None = None) -> None:
        """Make the group durable; see `ports.Store`. It cannot be cancelled while it is under way."""
        self._refuse()
        if self.faults.full:
            await trio.lowlevel.cancel_shielded_checkpoint()
            raise StorageFull("The disk is full; nothing was committed.")
        if not entries:
            await trio.lowlevel.cancel_shielded_checkpoint()
            return
        body = encode_entries(entries)
        latency = self.faults.latency() if callable(self.faults.latency) else self.faults.latency
        with trio.CancelScope(shield=True):
            if latency > 0:
                with trio.move_on_after(latency):
                    await self._crashed.wait()
            else:
                await trio.lowlevel.checkpoint()
        if self._crashed.is_set():
            if self._crash_keeps:
                self._keep(body, len(entries))
            self._refuse()
        if self.faults.fail is not None:
            if self.faults.fail == "kept":
                self._keep(body, len(entries))
            self.faults.fail = None
            self._failure = "A write failed, and what became of it is not known."
            self._refuse()
        self._keep(body, len(entries))
        if done is not None:
            done()

    async def read(self, pid: int, first: int, last: int, max_bytes: int) -> list[Record]:
        """Sealed messages; see `ports.Store`."""
        await trio.sleep(self.faults.read_latency)
        self._refuse()
        found: list[Record] = []
        room = max_bytes
        for record in self._messages.get(pid, ()):
            if first <= record.offset <= last:
                room -= len(record.payload)
                if room < 0 and found:
                    break
                found.append(record)
        return found

    async def first_offset_at(self, pid: int, ts: int) -> int | None:
        """The first sealed offset at or after the instant, or None."""
        await trio.lowlevel.checkpoint()
        self._refuse()
        return next((record.offset for record in self._messages.get(pid, ()) if record.ts >= ts), None)

    async def find(self, pid: int, txn: str) -> int | None:
        """The last sealed offset with this transaction id, or None."""
        await trio.lowlevel.checkpoint()
        self._refuse()
        return max((record.offset for record in self._messages.get(pid, ()) if record.txn == txn), default=None)

    async def size(self, pid: int, first: int, last: int) -> int:
        """Payload bytes of sealed messages."""
        await trio.lowlevel.checkpoint()
        self._refuse()
        return sum(len(r.payload) for r in self._messages.get(pid, ()) if first <= r.offset <= last)

    async def maintain(self, evict: Callable[[Sequence[SealedRun]], None]) -> None:
        """Seal every `seal_seconds`, for ever; without it do nothing, for ever."""
        self._evict = evict
        while self._seal_seconds is not None:
            await trio.sleep(self._seal_seconds)
            await self.seal()
        await trio.sleep_forever()

    async def seal(self) -> None:
        """Seal all that is retained."""
        await trio.lowlevel.checkpoint()
        self._refuse()
        fresh = self.durable.groups[self.durable.sealed :]
        self.durable.sealed = len(self.durable.groups)
        entries = [entry for body in fresh for entry in decode_entries(body)]
        runs = self._take_in(effect for entry in entries for effect in entry.effects)
        if runs and self._evict is not None:
            self._evict(runs)

    def statistics(self) -> StoreStatistics:
        """Figures since the store was opened; `journal_bytes` is what is retained and not sealed."""
        tail = self.durable.groups[self.durable.sealed :]
        return StoreStatistics(
            position=self._position,
            groups=self._groups,
            journal_bytes=sum(map(len, tail)),
            segments=min(1, self.durable.sealed),
            segment_bytes=sum(map(len, self.durable.groups)) - sum(map(len, tail)),
            snapshots=0,
        )

    async def close(self) -> None:
        """Refuse everything from now on; what is retained stays."""
        self._failure = self._failure or "The store is closed."
        await trio.lowlevel.cancel_shielded_checkpoint()

    def _keep(self, body: bytes, entries: int) -> None:
        self._position += entries
        self._groups += 1
        if self._retain:
            self.durable.groups.append(body)

    def _take_in(self, effects: Iterable[Effect]) -> list[SealedRun]:
        """Add messages to the sealed ones; the runs that came in, one for each partition."""
        fresh: dict[int, list[Record]] = {}
        for effect in effects:
            if isinstance(effect, Appended):
                fresh.setdefault(effect.pid, []).extend(effect.records)
        for pid, records in fresh.items():
            self._messages.setdefault(pid, []).extend(records)
        return [
            SealedRun(pid, records[0].offset, records[-1].offset, records[0].ts, records[-1].ts)
            for pid, records in sorted(fresh.items())
        ]

    def _refuse(self) -> None:
        if self._failure is not None:
            raise StorageFailed(self._failure)

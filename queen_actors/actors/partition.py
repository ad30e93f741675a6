"""Producers: messages into partitions, and sealed messages out of the store."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from msgspec.structs import replace

from queen_actors import limits
from queen_actors.domain.effects import Appended, Record
from queen_actors.domain.partition import PartitionState, PushItem, PushOutcome
from queen_actors.errors import StorageFailed, Unavailable
from queen_actors.values import SECOND

from .core import Core, Draft

FEW = 8
"""So few messages are found again as quickly as they are looked up."""


class Producers:
    """The pushes of one broker."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._place: tuple[int, ...] = ()
        self._records: tuple[Record, ...] = ()
        """What was asked for last, and what it was; their bytes, and whether they are in the clear."""
        self._size = 0
        self._clear = True

    async def push(self, items: Sequence[PushItem]) -> list[PushOutcome]:
        """Append each item to its partition, in order; all of the call is one step of the log."""
        core = self._core
        await core.turn(
            {("partition", f"{item.queue}\x00{item.partition}") for item in items} if core.turns.busy else ()
        )
        draft = Draft(core)
        outcomes = self.decide(draft, items)
        core.commit(draft)
        await core.log.durable()
        return outcomes

    def decide(self, draft: Draft, items: Sequence[PushItem]) -> list[PushOutcome]:
        """What each item comes to, in the items' order; the effects go into the draft."""
        if len(items) == 1:
            return self._into(draft, items[0].queue, items[0].partition, items)
        places: dict[tuple[str, str], list[int]] = {}
        for place, item in enumerate(items):
            places.setdefault((item.queue, item.partition), []).append(place)
        if len(places) == 1:
            return self._into(draft, items[0].queue, items[0].partition, items)
        if len(places) == len(items):
            return [self._into(draft, item.queue, item.partition, (item,))[0] for item in items]
        outcomes: list[PushOutcome | None] = [None] * len(items)
        for (queue, partition), where in places.items():
            group = self._into(draft, queue, partition, [items[place] for place in where])
            for place, outcome in zip(where, group, strict=True):
                outcomes[place] = outcome
        return [outcome for outcome in outcomes if outcome is not None]

    def _into(self, draft: Draft, queue_name: str, partition_name: str, items: Sequence[PushItem]) -> list[PushOutcome]:
        queue = draft.queue(queue_name)
        partition = draft.partition(queue, partition_name)
        options = queue.put.options
        window = options.dedup_window_seconds * SECOND
        if options.encryption_enabled:
            items = [self._sealed(item) for item in items]
        outcomes, records = partition.push(items, draft.now, window, self._core.ids.uuid)
        if records:
            draft.effects.append(Appended(partition.pid, records))
        return outcomes

    def _sealed(self, item: PushItem) -> PushItem:
        return replace(item, payload=self._core.cipher.seal(item.payload), encrypted=True)

    async def read(self, partition: PartitionState, first: int, count: int, max_bytes: int) -> tuple[Record, ...]:
        """Up to `count` messages from `first` on, from memory or from the store; empty when there are none."""
        last = min(first + count, partition.next_offset) - 1
        first = max(first, partition.log_start)
        if last < first:
            return ()
        found = partition.in_memory(first, last - first + 1, max_bytes)
        if found is not None:
            return found
        with self._reading():
            return tuple(await self._core.store.read(partition.pid, first, last, max_bytes))

    def in_memory(self, partition: PartitionState, first: int, count: int, max_bytes: int) -> tuple[Record, ...] | None:
        """`PartitionState.in_memory`: groups that are at the same place, one after the other, get the same tuple."""
        count = min(count, partition.next_offset - first)
        if count < FEW:
            return partition.in_memory(first, count, max_bytes)
        place = (partition.pid, first, count, max_bytes, self._core.log.reloads)
        if place != self._place:
            records = partition.in_memory(first, count, max_bytes)
            if records is None:
                return None
            self._place, self._records, self._size = place, records, _size(records)
            self._clear = not any(record.encrypted for record in records)
        return self._records

    def size_of(self, records: tuple[Record, ...]) -> int:
        """Their bytes of payload."""
        return self._size if records is self._records else _size(records)

    def clear(self, records: tuple[Record, ...]) -> bool:
        """Is none of them encrypted?"""
        if records is self._records:
            return self._clear
        for record in records:  # noqa: SIM110 - most are one, which a generator costs more than
            if record.encrypted:
                return False
        return True

    async def fetch(self, pid: int, first: int, count: int, max_bytes: int) -> tuple[Record, ...]:
        """`read` by the partition's number; empty when there is no such partition (any more)."""
        partition = self._core.directory.partition(pid)
        return () if partition is None else await self.read(partition, first, count, max_bytes)

    async def index(self, pid: int, first: int, last: int) -> dict[str, Sequence[int]]:
        """The offsets of a span by transaction id."""
        found: dict[str, list[int] | tuple[int]] = {}
        while first <= last:
            records = await self.fetch(pid, first, last - first + 1, limits.POP_BYTES)
            for record in records:
                known = found.get(record.txn)
                if isinstance(known, list):
                    known.append(record.offset)
                else:  # most ids are there once, and a tuple of one is the smallest sequence
                    found[record.txn] = (record.offset,) if known is None else [*known, record.offset]
            if not records:
                break
            first = records[-1].offset + 1
        return {**found}

    async def find_all(self, pid: int, offsets: Sequence[int]) -> dict[int, Record | None]:
        """The messages of ascending offsets, read in runs of neighbours. What retention has removed is None."""
        loaded: dict[int, Record | None] = {}
        place = 0
        while place < len(offsets):
            first, run = offsets[place], 1
            while place + run < len(offsets) and offsets[place + run] == first + run:
                run += 1
            found = await self.fetch(pid, first, run, limits.POP_BYTES)
            loaded.update({record.offset: record for record in found})
            last = found[-1].offset if found else first
            while place < len(offsets) and offsets[place] <= last:
                loaded.setdefault(offsets[place], None)
                place += 1
        return loaded

    async def first_offset_at(self, pid: int, ts: int) -> int | None:
        """What the store says: the first sealed offset at or after the instant, or None."""
        with self._reading():
            return await self._core.store.first_offset_at(pid, ts)

    async def find(self, pid: int, txn: str) -> int | None:
        """What the store says: the last sealed offset of this transaction id, or None."""
        with self._reading():
            return await self._core.store.find(pid, txn)

    async def size(self, pid: int, first: int, last: int) -> int:
        """What the store says: payload bytes of these sealed messages."""
        with self._reading():
            return await self._core.store.size(pid, first, last)

    @contextmanager
    def _reading(self) -> Generator[None]:
        """The store is closed for a moment while the state is read again: no fault, and the call may be repeated."""
        try:
            yield
        except StorageFailed:
            if not self._core.log.full:
                raise
            raise Unavailable("the disk is full, and the state is being read again", code="retry") from None


def _size(records: Sequence[Record]) -> int:
    return sum([len(record.payload) for record in records])


def offset_at(partition: PartitionState, ts: int) -> int | None:
    """The first offset whose `ts` is at or after this instant, or None when only the store can tell."""
    return partition.offset_at(ts)

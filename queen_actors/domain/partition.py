"""A partition: an ordered log with a dedup window (`wire-messaging.md`, sections 2, 6 and 21)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from struct import Struct as Layout

import msgspec
from msgspec import Struct

from queen_actors.limits import ACK_WINDOW_SECONDS, POP_BATCH_MAX
from queen_actors.values import SECOND

from .effects import CursorPut, PartitionPut, QueueOptions, Recent, Record, SealedRun
from .recents import PAGE_BYTES, Recents, oldest, row_of

LIGHT = 16
"""Messages with which a partition may be packed: unpacking them is to cost little more than an append."""


class PushItem(Struct, frozen=True, gc=False):
    """One message to append. `payload` is JSON text; without `txn` the broker uses the id that it mints, and without
    `id` it mints one. `timer_key` only when a timer fires."""

    queue: str
    partition: str
    payload: bytes
    txn: str | None = None
    trace: str | None = None
    id: str | None = None
    timer_key: str | None = None
    producer: str | None = None
    encrypted: bool = False


class PushOutcome(Struct, frozen=True, gc=False):
    """What became of one item: `status` queued, duplicate (with the original's id and offset) or failed."""

    queue: str
    txn: str
    message_id: str
    offset: int
    status: str
    error: str | None = None


def window_of(options: QueueOptions) -> int:
    """How long, in microseconds, a message's index entry is needed after it was appended: for dedup, for acks that
    come late (8.2), and to know when a delayed message becomes visible."""
    return SECOND * max(
        options.dedup_window_seconds,
        ACK_WINDOW_SECONDS,
        options.delayed_processing_seconds,
        options.window_buffer_seconds,
    )


class PartitionState:
    """The messages that are in memory, the index of recent ones, and the groups' cursors.

    `tail` has the messages whose payloads are in memory: the last ones, without a gap. `index` has an entry for each
    message before them that is sealed, or that retention took, and whose time in the index is not over: a repeated push
    and a late ack find it. From `log_start` on its entries have no gap and end where the tail begins.
    """

    __slots__ = (
        "created_at",
        "cursors",
        "index",
        "last_ts",
        "log_start",
        "name",
        "next_offset",
        "pid",
        "qid",
        "repeats",
        "tail",
        "txns",
    )

    def __init__(self, pid: int, qid: int, name: str, created_at: int, log_start: int = 0) -> None:
        self.pid = pid
        self.qid = qid
        self.name = name
        self.created_at = created_at
        self.log_start = log_start
        self.next_offset = log_start
        self.last_ts = 0
        self.index = Recents()
        self.tail: list[Record] = []
        self.txns: dict[str, int] = {}
        """The latest offset in the tail of each transaction id."""
        self.repeats: dict[str, list[int]] | None = None
        """All offsets in the tail of the transaction ids that are there more than once; mostly there are none."""
        self.cursors: dict[str, CursorPut] = {}

    # -- what is known ---------------------------------------------------------------------------------------------

    @property
    def sealed_end(self) -> int:
        """The offset of the first message whose payload is in memory, or the next one."""
        return self.next_offset - len(self.tail)

    @property
    def base(self) -> int:
        """The first offset that is remembered and kept; those from `log_start` up to it lie in segments."""
        end = self.sealed_end
        first = self.index.first() if self.index.last >= self.log_start else None
        return end if first is None else max(first, self.log_start)

    def entry(self, offset: int) -> Record | Recent | None:
        """What is remembered of an offset that is kept, or None when it was forgotten (or does not exist)."""
        place = offset - self.sealed_end
        if place >= 0:
            return self.tail[place] if place < len(self.tail) else None
        return self.index.at(offset, self.pid) if offset >= self.log_start else None

    def known(self, txn: str) -> Record | Recent | None:
        """The latest message of this transaction id that is remembered, also one that retention has removed."""
        offset = self.txns.get(txn)
        if offset is not None:
            return self.tail[offset - self.sealed_end]
        return self.index.find(txn, self.pid) if self.index else None

    @property
    def remembers(self) -> bool:
        """Is there an index entry that `prune` may forget in time?"""
        return bool(self.tail or self.index)

    def resolve(
        self, txns: Sequence[str], committed: int, end: int | None, leased: Mapping[str, Sequence[int]]
    ) -> list[int | None]:
        """The offsets that the acks of one call mean. Messages inside `(committed, end]`, the leased span, come first.

        Of several in there that have one id the first is meant, and by the next ack of the call the next: what is acked
        too early takes what lies before it along. Outside of the span it is one that is done already, if there is one.
        `leased` is an index of the span's messages, as far as the caller has one; None when neither it nor the index
        knows the id.
        """
        last = self.next_offset - 1 if end is None else end
        spanned = self.occurrences(set(txns), committed, last, leased)
        outside = {txn for txn, offsets in spanned.items() if not offsets}
        done = self.occurrences(outside, max(committed - POP_BATCH_MAX, -1), committed, leased) if outside else {}
        named = dict.fromkeys(spanned, 0)
        found: list[int | None] = []
        for txn in txns:
            offsets = spanned[txn]
            if offsets:
                found.append(offsets[min(named[txn], len(offsets) - 1)])
                named[txn] += 1
            else:
                found.append(done[txn][-1] if done[txn] else self.offset_of(txn))
        return found

    def occurrences(
        self, txns: Set[str], after: int, last: int, leased: Mapping[str, Sequence[int]]
    ) -> dict[str, list[int]]:
        """Where in `(after, last]` each of these transaction ids is, as far as it is remembered or in `leased`."""
        found = {txn: {*leased.get(txn, ()), self.txns.get(txn, -1)} for txn in txns}
        if after < self.index.last:
            for txn, places in found.items():
                places.update(self.index.offsets(txn))
        if self.repeats:
            for txn in txns & self.repeats.keys():
                found[txn].update(self.repeats[txn])
        return {txn: sorted([place for place in places if after < place <= last]) for txn, places in found.items()}

    def unique(self, txns: Iterable[str], first: int) -> bool:
        """Is it certain that each of these transaction ids is that of one message from `first` on?"""
        if first < self.sealed_end:
            return False
        return not self.repeats or self.repeats.keys().isdisjoint(txns)

    def offset_of(self, txn: str) -> int | None:
        """The offset of `known`."""
        offset = self.txns.get(txn)
        if offset is None and self.index:
            found = self.index.find(txn, self.pid)
            return None if found is None else found.offset
        return offset

    def floor(self, committed: int) -> int:
        """A committed offset with what retention removed counted as passed."""
        return max(committed, self.log_start - 1)

    def offset_at(self, ts: int) -> int | None:
        """The first offset whose `ts` is at or after this instant, or None when only the store can tell."""
        if self.last_ts < ts:
            return self.next_offset
        base = self.base
        oldest = self.entry(base)
        if base <= self.log_start or (oldest is not None and oldest.ts < ts):
            found = self.index.since(ts) if self.index.last >= self.log_start else None
            if found is not None:
                return max(found, base)
            return self.sealed_end + bisect_left(self.tail, ts, key=lambda record: record.ts)
        return self.log_start if self.created_at >= ts else None

    def in_memory(self, first: int, count: int, max_bytes: int) -> tuple[Record, ...] | None:
        """Up to `count` messages from `first` on, at least one, within `max_bytes`; None when the first is sealed."""
        place, found, size = first - self.sealed_end, list[Record](), 0
        if place < 0:
            return None
        for record in self.tail[place : place + count]:
            size += len(record.payload)
            if found and size > max_bytes:
                break
            found.append(record)
        return tuple(found) or None

    # -- decide ----------------------------------------------------------------------------------------------------

    def push(
        self, items: Sequence[PushItem], now: int, dedup_window: int, new_id: Callable[[int], str]
    ) -> tuple[list[PushOutcome], tuple[Record, ...]]:
        """Which items are new and which repeat a transaction id inside the window (microseconds); 6.2 and 6.3."""
        outcomes: list[PushOutcome] = []
        records: list[Record] = []
        fresh: dict[str, Record] = {}
        offset, since = self.next_offset, now - dedup_window
        for item in items:
            txn = item.txn
            if txn and dedup_window:
                seen: Record | Recent | None = fresh.get(txn)
                if seen is None:
                    seen = self.known(txn)
                    if seen is not None and seen.ts < since:
                        seen = None
                if seen is not None:
                    outcomes.append(PushOutcome(item.queue, txn, seen.id, seen.offset, "duplicate"))
                    continue
            mid = item.id or new_id(now)
            txn = txn or mid
            record = Record(
                offset, now, mid, txn, item.payload, item.trace, item.producer, item.timer_key, item.encrypted
            )
            fresh[txn] = record
            records.append(record)
            outcomes.append(PushOutcome(item.queue, txn, mid, offset, "queued"))
            offset += 1
        return outcomes, tuple(records)

    # -- apply -----------------------------------------------------------------------------------------------------

    def append(self, records: Sequence[Record]) -> None:
        """Apply `Appended`: the offsets continue the partition, in the log's order."""
        assert records[0].offset == self.next_offset, "a partition's offsets have no gap"
        self.tail.extend(records)
        self._note(records)
        self.next_offset = records[-1].offset + 1
        self.last_ts = records[-1].ts

    def _note(self, records: Sequence[Record]) -> None:
        """Take the records' transaction ids to where those of the tail are."""
        txns = self.txns
        for record in records:
            txn, offset = record.txn, record.offset
            before = txns.setdefault(txn, offset)
            if before != offset:
                if self.repeats is None:
                    self.repeats = {}
                self.repeats.setdefault(txn, [before]).append(offset)
                txns[txn] = offset

    def put_cursor(self, effect: CursorPut) -> None:
        """Apply `CursorPut`."""
        self.cursors[effect.group] = effect

    def drop_cursor(self, group: str) -> None:
        """Apply `CursorDropped`."""
        self.cursors.pop(group, None)

    def cut(self, log_start: int) -> None:
        """Apply a `PartitionPut` that moved the start: what lies below it is gone, but for its index entries."""
        self._shorten(log_start - self.sealed_end)
        self.log_start = log_start
        self.next_offset = max(self.next_offset, log_start)

    # -- what recovery and the store tell ---------------------------------------------------------------------------

    def restore_run(self, run: SealedRun) -> None:
        """Messages that lie in a segment: they exist, and are read when somebody asks."""
        self.next_offset = max(self.next_offset, run.last + 1)
        self.last_ts = max(self.last_ts, run.last_ts)

    def restore_recent(self, message: Recent) -> None:
        """A sealed message that is still inside its window; they come in offset order. Those from `log_start` on end
        at the last message and have no gap. One is told of it and of its run, or of it alone."""
        self.index.append(message)
        self.next_offset = max(self.next_offset, message.offset + 1)
        self.last_ts = max(self.last_ts, message.ts)

    def evict(self, last: int) -> int:
        """The messages up to `last` lie in segments now: drop their payloads. Returns the bytes let go."""
        return self._shorten(last + 1 - self.sealed_end)

    def _shorten(self, count: int) -> int:
        """Keep no more of the tail's first messages than their index entries."""
        if count <= 0:
            return 0
        gone = self.tail[:count]
        for record in gone:
            self.index.append(record)
            if self.txns.get(record.txn) == record.offset:
                del self.txns[record.txn]
        if self.repeats:
            self._forget(gone)
        del self.tail[:count]
        return sum(len(record.payload) for record in gone)

    def _forget(self, gone: Sequence[Record]) -> None:
        """These are no longer in the tail; an id that is there once only is no repeat."""
        assert self.repeats is not None, "asked for by the caller"
        for record in gone:
            offsets = self.repeats.get(record.txn)
            if offsets is not None:
                offsets.remove(record.offset)
                if len(offsets) == 1:
                    del self.repeats[record.txn]
        self.repeats = self.repeats or None

    def prune(self, since: int) -> None:
        """Forget the index entries of messages that were appended before `since`, but for those in memory."""
        self.index.prune(since)

    @property
    def idle(self) -> bool:
        """Nothing of it needs memory but what `pack` keeps."""
        return not self.tail and self.index.small

    @property
    def light(self) -> bool:
        """Is it little enough to be packed together with its messages, when memory is short?"""
        return len(self.tail) <= LIGHT and self.index.small

    def pack(self) -> bytes:
        """The whole state in as few bytes as it takes; only of one that is `idle` or `light`."""
        name, rows = self.name.encode("utf-8", "surrogatepass"), self.index.rows
        cursors = _packer.encode(list(self.cursors.values())) if self.cursors else b""
        tail = _packer.encode(self.tail) if self.tail else b""
        head = _HEAD.pack(
            self.qid, self.created_at, self.log_start, self.next_offset, self.last_ts, len(name), len(rows), len(tail)
        )
        return b"".join((head, name, rows, tail, cursors))

    @classmethod
    def unpack(cls, pid: int, packed: bytes) -> PartitionState:
        """The inverse of `pack`."""
        qid, created_at, log_start, next_offset, last_ts, name, rows, tail = _HEAD.unpack_from(packed)
        rows_at = _HEAD.size + name
        self = cls(pid, qid, packed_name(packed), created_at, log_start)
        self.next_offset, self.last_ts = next_offset, last_ts
        if rows:
            self.index = Recents(packed[rows_at : rows_at + rows])
        if tail:
            self.tail = _unpacker_of_tail.decode(memoryview(packed)[rows_at + rows : rows_at + rows + tail])
            self._note(self.tail)
        self.cursors = {cursor.group: cursor for cursor in packed_cursors(packed)}
        return self


def packed_new(put: PartitionPut) -> bytes:
    """A partition as it was created, packed."""
    name = put.name.encode("utf-8", "surrogatepass")
    return _HEAD.pack(put.qid, put.created_at, put.log_start, put.log_start, 0, len(name), 0, 0) + name


def packed_with_run(packed: bytes, run: SealedRun) -> bytes:
    """`restore_run` of a packed partition."""
    qid, created_at, log_start, next_offset, last_ts, *sizes = _HEAD.unpack_from(packed)
    next_offset, last_ts = max(next_offset, run.last + 1), max(last_ts, run.last_ts)
    return _HEAD.pack(qid, created_at, log_start, next_offset, last_ts, *sizes) + packed[_HEAD.size :]


def packed_with_recent(packed: bytes, message: Recent) -> bytes | None:
    """`restore_recent` of a packed partition, or None when it is too much for a packed one."""
    qid, created_at, log_start, next_offset, last_ts, name, rows, tail = _HEAD.unpack_from(packed)
    if rows >= PAGE_BYTES:
        return None
    row, end = row_of(message), _HEAD.size + name + rows
    next_offset, last_ts = max(next_offset, message.offset + 1), max(last_ts, message.ts)
    head = _HEAD.pack(qid, created_at, log_start, next_offset, last_ts, name, rows + len(row), tail)
    return b"".join((head, packed[_HEAD.size : end], row, packed[end:]))


def packed_with_cursor(packed: bytes, cursor: CursorPut) -> bytes:
    """`put_cursor` of a packed partition."""
    *_, name, rows, tail = _HEAD.unpack_from(packed)
    cursors = {known.group: known for known in packed_cursors(packed)} | {cursor.group: cursor}
    return packed[: _HEAD.size + name + rows + tail] + _packer.encode(list(cursors.values()))


def packed_cursors(packed: bytes) -> list[CursorPut]:
    """The groups' cursors in a packed partition."""
    *_, name, rows, tail = _HEAD.unpack_from(packed)
    at = _HEAD.size + name + rows + tail
    return _unpacker.decode(memoryview(packed)[at:]) if at < len(packed) else []


def packed_name(packed: bytes) -> str:
    """The name of a packed partition."""
    return packed[_HEAD.size : _HEAD.size + _NAME.unpack_from(packed, _NAME_AT)[0]].decode("utf-8", "surrogatepass")


def packed_start(packed: bytes) -> int:
    """The first offset that a packed partition keeps."""
    start: int = _START.unpack_from(packed, _START_AT)[0]
    return start


def packed_end(packed: bytes) -> int:
    """The next offset of a packed partition."""
    end: int = _START.unpack_from(packed, _END_AT)[0]
    return end


def packed_last(packed: bytes) -> int:
    """When the last message of a packed partition was appended."""
    last: int = _START.unpack_from(packed, _LAST_AT)[0]
    return last


def packed_oldest(packed: bytes) -> tuple[int, int] | None:
    """The queue of a packed partition, and when the first message of its index was appended; None without one."""
    qid, *_, name, rows, _ = _HEAD.unpack_from(packed)
    return (qid, oldest(packed, _HEAD.size + name)) if rows else None


def packed_tail(packed: bytes) -> int:
    """The bytes that the messages take with which a partition was packed."""
    size: int = _HEAD.unpack_from(packed)[-1]
    return size


_HEAD = Layout("<QQQQQHII")
"""qid, created_at, log_start, next_offset, last_ts, bytes of the name, of the index, of the tail; behind them the name,
the index' rows, the tail and the cursors as msgpack arrays, or nothing where there are none."""
_NAME, _NAME_AT = Layout("<H"), 40
_START, _START_AT, _END_AT, _LAST_AT = Layout("<Q"), 16, 24, 32
_packer = msgspec.msgpack.Encoder()
_unpacker_of_tail: msgspec.msgpack.Decoder[list[Record]] = msgspec.msgpack.Decoder(list[Record])
_unpacker: msgspec.msgpack.Decoder[list[CursorPut]] = msgspec.msgpack.Decoder(list[CursorPut])

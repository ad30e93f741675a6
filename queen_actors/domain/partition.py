"""A partition: an ordered log with a dedup window (`wire-messaging.md`, sections 2, 6 and 21)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile

import msgspec
from msgspec import Struct

from queen_actors.limits import ACK_WINDOW_SECONDS
from queen_actors.values import SECOND

from .effects import CursorPut, QueueOptions, Recent, Record, SealedRun


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

    `window` covers the offsets `base` .. `next_offset - 1`: a `Record` where the payload is in memory, a `Recent`
    where it lies in a segment. Offsets from `log_start` up to `base` lie in segments and have left the window.
    `removed` has the entries of messages that retention took before their time in the index was over: nobody can read
    them, and a repeated push or a late ack still finds them.
    """

    __slots__ = (
        "base",
        "created_at",
        "cursors",
        "last_ts",
        "log_start",
        "name",
        "next_offset",
        "pid",
        "qid",
        "removed",
        "txns",
        "window",
    )

    def __init__(self, pid: int, qid: int, name: str, created_at: int, log_start: int = 0) -> None:
        self.pid = pid
        self.qid = qid
        self.name = name
        self.created_at = created_at
        self.log_start = log_start
        self.next_offset = log_start
        self.last_ts = 0
        self.base = log_start
        self.window: list[Record | Recent] = []
        self.removed: dict[int, Recent] = {}
        self.txns: dict[str, int] = {}
        self.cursors: dict[str, CursorPut] = {}

    # -- what is known ---------------------------------------------------------------------------------------------

    def entry(self, offset: int) -> Record | Recent | None:
        """The window's entry of an offset, or None when it has left the window (or does not exist)."""
        place = offset - self.base
        return self.window[place] if 0 <= place < len(self.window) else None

    def known(self, txn: str) -> Record | Recent | None:
        """The latest message of this transaction id that is remembered, also one that retention has removed."""
        offset = self.txns.get(txn)
        return None if offset is None else self.entry(offset) or self.removed.get(offset)

    @property
    def remembers(self) -> bool:
        """Is there an index entry that `prune` may forget in time?"""
        return bool(self.window or self.removed)

    def resolve(self, txn: str, committed: int, end: int | None, leased: Mapping[str, int]) -> int | None:
        """The offset that an ack of `txn` means. A message inside `(committed, end]`, the leased span, comes first.

        `leased` is an index of the span's messages, as far as its caller has one; None when neither it nor the window
        knows the id.
        """
        recent = self.txns.get(txn)
        if recent is not None and recent > committed and (end is None or recent <= end):
            return recent
        return leased.get(txn, recent)

    def floor(self, committed: int) -> int:
        """A committed offset with what retention removed counted as passed."""
        return max(committed, self.log_start - 1)

    def in_memory(self, first: int, count: int, max_bytes: int) -> tuple[Record, ...] | None:
        """Up to `count` messages from `first` on, at least one, within `max_bytes`; None when the first is sealed."""
        place, found, size = first - self.base, list[Record](), 0
        if place < 0:
            return None
        for record in self.window[place : place + count]:
            if not isinstance(record, Record):
                break
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
        if len(items) == 1:
            item = items[0]
            if not item.txn or item.txn not in self.txns:  # nothing that it could repeat: so are almost all
                record = _recorded(item, self.next_offset, now, item.id or new_id(now))
                return [PushOutcome(item.queue, record.txn, record.id, record.offset, "queued")], (record,)
        outcomes: list[PushOutcome] = []
        records: list[Record] = []
        fresh: dict[str, Record] = {}
        offset, txns, since = self.next_offset, self.txns, now - dedup_window
        for item in items:
            txn = item.txn
            if txn:
                seen: Record | Recent | None = fresh.get(txn)
                if seen is None and txn in txns and dedup_window:
                    seen = self.known(txn)
                    if seen is not None and seen.ts < since:
                        seen = None
                if seen is not None and dedup_window:
                    outcomes.append(PushOutcome(item.queue, txn, seen.id, seen.offset, "duplicate"))
                    continue
            mid = item.id or new_id(now)
            record = _recorded(item, offset, now, mid)
            fresh[record.txn] = record
            records.append(record)
            outcomes.append(PushOutcome(item.queue, record.txn, mid, offset, "queued"))
            offset += 1
        return outcomes, tuple(records)

    # -- apply -----------------------------------------------------------------------------------------------------

    def append(self, records: Sequence[Record]) -> None:
        """Apply `Appended`: the offsets continue the partition, in the log's order."""
        assert records[0].offset == self.next_offset, "a partition's offsets have no gap"
        if not self.window:
            self.base = self.next_offset
        self.window.extend(records)
        txns = self.txns
        for record in records:
            txns[record.txn] = record.offset
        self.next_offset = records[-1].offset + 1
        self.last_ts = records[-1].ts

    def put_cursor(self, effect: CursorPut) -> None:
        """Apply `CursorPut`."""
        self.cursors[effect.group] = effect

    def drop_cursor(self, group: str) -> None:
        """Apply `CursorDropped`."""
        self.cursors.pop(group, None)

    def cut(self, log_start: int) -> None:
        """Apply a `PartitionPut` that moved the start: what lies below it is gone, but for its index entries."""
        self.log_start = log_start
        self.next_offset = max(self.next_offset, log_start)
        gone = self.window[: max(log_start - self.base, 0)]
        self.removed.update((record.offset, _recent(self.pid, record)) for record in gone)
        del self.window[: len(gone)]
        self.base += len(gone)
        if not self.window:
            self.base = max(self.base, log_start)

    # -- what recovery and the store tell ---------------------------------------------------------------------------

    def restore_run(self, run: SealedRun) -> None:
        """Messages that lie in a segment: they exist, and are read when somebody asks."""
        self.next_offset = max(self.next_offset, run.last + 1)
        self.last_ts = max(self.last_ts, run.last_ts)
        if not self.window:
            self.base = self.next_offset

    def restore_recent(self, message: Recent) -> None:
        """A sealed message that is still inside its window; they come in offset order. Those from `log_start` on end
        at the last message and have no gap."""
        if message.offset < self.log_start:
            self.removed[message.offset] = message
        else:
            if not self.window:
                self.base = message.offset
            self.window.append(message)
        self.txns[message.txn] = message.offset

    def evict(self, first: int, last: int) -> int:
        """The messages `first`..`last` lie in a segment now: drop their payloads. Returns the bytes let go."""
        freed = 0
        for place in range(max(first - self.base, 0), min(last - self.base + 1, len(self.window))):
            record = self.window[place]
            if isinstance(record, Record):
                freed += len(record.payload)
                self.window[place] = _recent(self.pid, record)
        return freed

    def prune(self, since: int) -> None:
        """Forget the index entries of sealed and of removed messages that were appended before `since`."""
        outdated = list(takewhile(lambda message: message.ts < since, self.removed.values()))
        for message in outdated:
            del self.removed[message.offset]
        sealed = list(takewhile(lambda r: isinstance(r, Recent) and r.ts < since, self.window))
        del self.window[: len(sealed)]
        self.base += len(sealed)
        for record in (*outdated, *sealed):
            if self.txns.get(record.txn) == record.offset:
                del self.txns[record.txn]

    @property
    def idle(self) -> bool:
        """Nothing of it needs memory but what `pack` keeps."""
        return not any(isinstance(record, Record) for record in reversed(self.window))

    def pack(self) -> bytes:
        """The whole state in as few bytes as it takes; only of an `idle` one."""
        recent = [(r.ts, r.txn, r.id) for r in self.window]
        removed = [(r.offset, r.ts, r.txn, r.id) for r in self.removed.values()]
        cursors = list(self.cursors.values())
        head = (self.qid, self.name, self.created_at, self.log_start, self.next_offset, self.last_ts)
        return _packer.encode((*head, self.base, recent, removed, cursors))

    @classmethod
    def unpack(cls, pid: int, packed: bytes) -> PartitionState:
        """The inverse of `pack`."""
        qid, name, created, log_start, next_offset, last_ts, base, recent, removed, cursors = _unpacker.decode(packed)
        self = cls(pid, qid, name, created, log_start)
        self.next_offset, self.last_ts, self.base = next_offset, last_ts, base
        for offset, ts, txn, mid in removed:
            self.removed[offset] = Recent(pid, offset, ts, txn, mid)
            self.txns[txn] = offset
        for place, (ts, txn, mid) in enumerate(recent):
            self.window.append(Recent(pid, base + place, ts, txn, mid))
            self.txns[txn] = base + place
        self.cursors = {cursor.group: cursor for cursor in cursors}
        return self


def _recorded(item: PushItem, offset: int, now: int, id: str) -> Record:
    return Record(
        offset, now, id, item.txn or id, item.payload, item.trace, item.producer, item.timer_key, item.encrypted
    )


def _recent(pid: int, record: Record | Recent) -> Recent:
    return Recent(pid, record.offset, record.ts, record.txn, record.id) if isinstance(record, Record) else record


_packer = msgspec.msgpack.Encoder()
_Index = list[tuple[int, str, str]]
_Removed = list[tuple[int, int, str, str]]
_Packed = tuple[int, str, int, int, int, int, int, _Index, _Removed, list[CursorPut]]
_unpacker: msgspec.msgpack.Decoder[_Packed] = msgspec.msgpack.Decoder(_Packed)

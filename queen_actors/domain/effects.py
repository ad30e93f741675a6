"""The rows of the log. Each effect is an after-image: it carries the whole new state of the thing it names, so the
latest effect of a thing wins, and replaying any suffix of the log over a snapshot gives the same state.

An effect is one msgpack array whose first element is its tag; the tags are part of the format of the data directory
(`storage/`), so a tag is never used again for something else.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct


class Record(Struct, frozen=True, array_like=True, gc=False):
    """One message as it lies in its partition. `payload` is the JSON text as it was sent."""

    offset: int
    ts: int
    id: str
    txn: str
    payload: bytes
    trace: str | None = None
    producer: str | None = None
    timer_key: str | None = None
    encrypted: bool = False


class Appended(Struct, frozen=True, array_like=True, tag=1, gc=False):
    """Messages were appended to a partition; their offsets continue it without a gap, in one call's one `ts`."""

    pid: int
    records: tuple[Record, ...]


class PartitionPut(Struct, frozen=True, array_like=True, tag=2, gc=False):
    """A partition exists; offsets below `log_start` are gone by retention."""

    pid: int
    qid: int
    name: str
    created_at: int
    log_start: int


class QueueOptions(Struct, frozen=True, array_like=True, gc=False):
    """Options of `wire-messaging.md` section 5; the defaults here are those of an implicit creation."""

    lease_seconds: int = 60
    retry_limit: int = 3
    retry_delay_ms: int = 1000
    dead_letter_queue: bool = True
    dlq_after_max_retries: bool = True
    delayed_processing_seconds: int = 0
    window_buffer_seconds: int = 0
    retention_enabled: bool = False
    retention_seconds: int = 0
    completed_retention_seconds: int = 0
    max_wait_seconds: int = 0
    dedup_window_seconds: int = 3600
    min_pop_wait_ms: int = 0
    priority: int = 0
    max_size: int = 0
    ttl_seconds: int = 3600
    encryption_enabled: bool = False
    retention_sink_hold: str = ""
    retention_sink_hold_max_seconds: int = 0
    delivery_limit: int = 20


class QueuePut(Struct, frozen=True, array_like=True, tag=3, gc=False):
    """A queue exists with these options; `qid` is this incarnation of the name."""

    qid: int
    name: str
    uid: str
    namespace: str
    task: str
    options: QueueOptions
    created_at: int


class QueueDropped(Struct, frozen=True, array_like=True, tag=4, gc=False):
    """The queue is gone with its partitions, messages, cursors, registrations, dead letters and streaming queries."""

    qid: int
    name: str


class GroupPut(Struct, frozen=True, array_like=True, tag=5, gc=False):
    """A consumer group is registered with a queue. `mode`: all, new or timestamp; `from_ts` for the last two."""

    qid: int
    group: str
    mode: str
    from_ts: int
    conflation: bool
    created_at: int


class GroupDropped(Struct, frozen=True, array_like=True, tag=6, gc=False):
    """The registration is gone; its cursors go with effects of their own."""

    qid: int
    group: str


class CursorPut(Struct, frozen=True, array_like=True, tag=7, gc=False):
    """Where one group stands in one partition, and its lease. See `domain/cursor.py` for the fields."""

    pid: int
    group: str
    committed: int
    lease_id: str
    lease_expires: int
    batch_end: int
    retries: int
    marker: int
    attempts: int
    settled_lease: str
    session: bool


class CursorDropped(Struct, frozen=True, array_like=True, tag=8, gc=False):
    """The group has no cursor in the partition any more."""

    pid: int
    group: str


class KvPut(Struct, frozen=True, array_like=True, tag=9, gc=False):
    """A key has this value and version; `expires_at` None means for ever. A permit is such a row (wire 3.5)."""

    ns: str
    key: str
    value: bytes
    version: int
    expires_at: int | None
    created_at: int
    updated_at: int


class KvDropped(Struct, frozen=True, array_like=True, tag=10, gc=False):
    """A key is gone: deleted, or (`expired`) swept after its lifetime. `version` is the log's version counter."""

    ns: str
    key: str
    version: int
    expired: bool


class TimerPut(Struct, frozen=True, array_like=True, tag=11, gc=False):
    """A timer is pending: it becomes the message `message_id` of (queue, partition) at `due`."""

    queue: str
    key: str
    partition: str
    due: int
    txn: str
    message_id: str
    payload: bytes
    encrypted: bool
    producer: str | None
    attempts: int
    last_error: str | None
    created_at: int
    updated_at: int


class TimerDropped(Struct, frozen=True, array_like=True, tag=12, gc=False):
    """The timer is pending no more: it was cancelled, or (`fired`) its message was appended beside this effect."""

    queue: str
    key: str
    fired: bool


class DeadLetterPut(Struct, frozen=True, array_like=True, tag=13, gc=False):
    """One group's dead letter: a copy of the message, which outlives the log's own."""

    id: str
    qid: int
    pid: int
    group: str
    record: Record
    error: str
    retry_count: int
    failed_at: int


class DeadLetterDropped(Struct, frozen=True, array_like=True, tag=14, gc=False):
    """The dead letter was replayed or purged."""

    id: str
    qid: int


class TracePut(Struct, frozen=True, array_like=True, tag=15, gc=False):
    """One trace event of a message (`wire-messaging.md` 15)."""

    id: str
    pid: int
    txn: str
    group: str
    names: tuple[str, ...]
    event: str
    data: bytes
    worker: str | None
    created_at: int


class StreamPut(Struct, frozen=True, array_like=True, tag=16, gc=False):
    """A streaming query is registered: it reads the queue `qid` as `group` (`wire-messaging.md` 17).

    `state` names its state rows: a reset gives it another, and the rows of the one before are gone by that.
    """

    id: str
    qid: int
    name: str
    config_hash: str
    sink: str | None
    group: str
    state: str
    created_at: int
    updated_at: int


class StreamDropped(Struct, frozen=True, array_like=True, tag=17, gc=False):
    """The query is gone with its state rows."""

    id: str
    qid: int


class StreamRowPut(Struct, frozen=True, array_like=True, tag=18, gc=False):
    """One row of a query's state, of one partition of its queue; `value` is JSON text as it was sent."""

    state: str
    pid: int
    key: str
    value: bytes
    updated_at: int


class StreamRowDropped(Struct, frozen=True, array_like=True, tag=19, gc=False):
    """The state row is gone."""

    state: str
    pid: int
    key: str


Effect = (
    Appended
    | PartitionPut
    | QueuePut
    | QueueDropped
    | GroupPut
    | GroupDropped
    | CursorPut
    | CursorDropped
    | KvPut
    | KvDropped
    | TimerPut
    | TimerDropped
    | DeadLetterPut
    | DeadLetterDropped
    | TracePut
    | StreamPut
    | StreamDropped
    | StreamRowPut
    | StreamRowDropped
)


class Counters(Struct, frozen=True, array_like=True, gc=False):
    """What must never be given out twice, whatever rows were deleted since: the highest number given out of each."""

    version: int = 0
    pid: int = 0
    qid: int = 0


class Entry(Struct, frozen=True, array_like=True, gc=False):
    """One step of the log: all of it holds or none of it. `counters` is their state after the step."""

    now: int
    counters: Counters
    effects: tuple[Effect, ...]


class SealedRun(Struct, frozen=True, gc=False):
    """Messages `first`..`last` of a partition that the store can `read`, and that need not be kept in memory."""

    pid: int
    first: int
    last: int
    first_ts: int
    last_ts: int


class Recent(Struct, frozen=True, gc=False):
    """A message still inside its dedup and ack window: the index entry that recovery gives back."""

    pid: int
    offset: int
    ts: int
    txn: str
    id: str


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[tuple[Entry, ...]] = msgspec.msgpack.Decoder(tuple[Entry, ...])


def encode_entries(entries: Any) -> bytes:
    """The entries of one group commit as the body of one journal frame."""
    return _encoder.encode(entries)


def decode_entries(body: bytes | memoryview) -> tuple[Entry, ...]:
    """The inverse; raises msgspec.DecodeError (of which ValidationError is one) on bytes that are not entries."""
    return _decoder.decode(body)

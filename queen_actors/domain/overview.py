"""What operators read about groups and queues as a whole (`wire-messaging.md` 10, 13 and 14)."""

from __future__ import annotations

from msgspec import Struct

from .effects import GroupPut, Record
from .queue import QueueView


class PartitionLag(Struct, frozen=True):
    """One group in one partition. `oldest`: when the first message that it has not finished was appended."""

    queue: str
    partition: str
    pid: int
    group: str
    lease_id: str
    leased: bool
    committed: int
    lag: int
    oldest: int | None


class GroupLine(Struct, frozen=True):
    """One group in one queue."""

    group: str
    queue: str
    registration: GroupPut | None
    members: int
    cursors: int
    lagging: int
    lag: int
    oldest: int | None


class QueueLine(Struct, frozen=True):
    """One queue and its counts over all partitions; those of the group that is furthest behind."""

    view: QueueView
    partitions: int
    total: int
    pending: int
    processing: int
    dead_letter: int


class BesideQueues(Struct, frozen=True):
    """What a broker keeps beside its queues: how many keys and pending timers, and their bytes."""

    keys: int
    key_bytes: int
    timers: int
    timer_bytes: int


class PartitionDepth(Struct, frozen=True):
    """How much of one partition a group has before it: `ready` is what is not under a lease."""

    name: str
    pending: int
    processing: int

    @property
    def ready(self) -> int:
        return self.pending - self.processing


class QueueDepth(Struct, frozen=True):
    """How much of a queue a group has before it; `conflation`: it takes one message of each partition at a time."""

    queue: str
    group: str
    conflation: bool
    partitions: tuple[PartitionDepth, ...]


class ListedMessage(Struct, frozen=True):
    """One row of the message list. `status` as in `MessageView`; `consumed_by` of `groups` groups have finished it."""

    queue: QueueView
    partition: str
    pid: int
    record: Record
    status: str
    consumed_by: int
    groups: int
    lease_expires_at: int | None
    queue_mode: bool


class MessageFilter(Struct, frozen=True):
    """What a message list asks for; instants in microseconds, both inclusive."""

    queue: str | None
    partition: str | None
    namespace: str | None
    task: str | None
    status: str | None
    since: int
    until: int | None
    limit: int
    offset: int


class FetchEntry(Struct, frozen=True):
    """Records of one partition from `offset` on, within `max_bytes` of payload (16)."""

    queue: str
    partition: str
    offset: int
    max_bytes: int


class Fetched(Struct, frozen=True):
    """The answer to one entry. `high_watermark`: the next offset to be given; `error`: the wire's word."""

    entry: FetchEntry
    records: tuple[Record, ...]
    high_watermark: int
    log_start: int
    error: str | None = None


class TraceName(Struct, frozen=True):
    """One name under which there are trace events."""

    name: str
    traces: int
    messages: int
    last_seen: int


class ChangedPartition(Struct, frozen=True):
    """One partition of an offset reader's change list (16)."""

    name: str
    pid: int
    last_offset: int
    log_start: int
    last_write: int | None


class ChangedPage(Struct, frozen=True):
    """One page of a change list. `after`: where the next one starts, None at the end; `safe_time`: every write up to
    this instant is in the list."""

    partitions: tuple[ChangedPartition, ...]
    after: int | None
    safe_time: int

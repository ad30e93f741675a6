"""Bodies that have no record type of their own in `wire/`, as record types: for the description of the HTTP API.

Nothing is encoded with these. A test compares them with every answer that the tests of this project see, both ways: a
field that is missing here, or that does not come, fails it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET as ABSENT
from msgspec import Meta, Raw, Struct, UnsetType

from queen_actors import limits

Instant = Annotated[str, Meta(description="ISO 8601, UTC")]
Count = Annotated[int, Meta(ge=0, le=limits.INT64_MAX)]


class Error(Struct):
    """Refusals, and calls that failed. `code` is for programs; a 404 of something that is named has none."""

    error: str
    code: str | UnsetType = ABSENT
    reason: str | UnsetType = ABSENT
    detail: str | UnsetType = ABSENT
    path: str | UnsetType = ABSENT
    success: bool | UnsetType = ABSENT
    messages: list[Any] | UnsetType = ABSENT


# -- messages ----------------------------------------------------------------------------------------------------------


class Message(Struct, rename="camel"):
    """A delivered message, with all that its ack needs. `data` is the payload as it was pushed."""

    id: str
    transaction_id: str
    trace_id: str | None
    data: Raw
    producer_sub: str | None
    created_at: Instant
    partition_id: str
    partition: str
    lease_id: str
    consumer_group: str
    delivery_attempt: int
    offset: int


class Popped(Struct, rename="camel"):
    """Messages under one lease. `queue` and `partition` are those of the first message."""

    success: bool
    queue: str | None
    partition: str | None
    partition_id: str | None
    lease_id: str
    consumer_group: str
    messages: list[Message]
    partitions_claimed: int
    conflation: bool | UnsetType = ABSENT
    conflation_conflict: bool | UnsetType = ABSENT


class PushCounts(Struct):
    """The answer to a binary push that asked for counts."""

    count: int
    queued: int
    duplicate: int
    error: int


class Seconds(Struct):
    """At least one is granted; by default 60."""

    seconds: int | None = None


class Extended(Struct):
    """`success` is false when the lease is over: then it has no expiry."""

    leaseId: str
    success: bool
    renewed: int
    newExpiresAt: Instant | None
    expiresAt: Instant | None
    lease_expires_at: Instant | None


class Page(Struct):
    limit: int
    offset: int


class Purged(Struct, rename="camel"):
    success: bool
    queue: str
    consumer_group: str | None
    deleted: int


class Redirect(Struct):
    """Where to, when not to its own place."""

    queue: str | None = None
    partition: str | None = None


class ReplayedAs(Struct):
    index: int
    message_id: str
    transaction_id: str
    queueName: str
    status: str
    offset: int


class Replayed(Struct, rename="camel"):
    """`result` is moved, or duplicate: the message was pushed before, and the dead letter stays."""

    success: bool
    result: Literal["moved", "duplicate"]
    queue: str
    partition: str
    consumer_group: str
    dlq_id: str
    original_transaction_id: str
    replayed_as: ReplayedAs
    dlq_row_removed: bool


class Gone(Struct):
    """There is no such dead letter, or no longer."""

    success: bool
    result: str
    error: str


class LetterRemoved(Struct, rename="camel"):
    success: bool
    partition_id: str
    transaction_id: str
    deleted: int


class LetterNotThere(Struct, rename="camel"):
    success: bool
    error: str
    message: str
    partition_id: str
    transaction_id: str


class Mode(Struct, rename="camel"):
    has_queue_mode: bool
    bus_groups_count: int
    type: Literal["none", "queue", "bus", "hybrid"]


class MessageGroup(Struct, rename="camel"):
    name: str
    committed: int
    consumed: bool
    lease_expires_at: Instant | None


class OneMessage(Struct, rename="camel"):
    id: str
    transaction_id: str
    data: Raw
    payload: Raw
    trace_id: str | None
    producer_sub: str | None
    created_at: Instant
    offset: int
    partition_id: str
    partition: str
    queue: str
    queue_path: str
    namespace: str
    task: str
    status: str
    error_message: str | None
    retry_count: int | None
    is_encrypted: bool
    queue_config: dict[str, int | bool | str]
    mode: Mode
    consumer_groups: list[MessageGroup]


class BusStatus(Struct, rename="camel"):
    consumed_by: int
    total_groups: int


class ListedMessage(Struct, rename="camel"):
    id: str
    transaction_id: str
    data: Raw
    payload: Raw
    trace_id: str | None
    producer_sub: str | None
    created_at: Instant
    offset: int
    queue: str
    partition: str
    partition_id: str
    status: str
    queue_status: str
    bus_status: BusStatus
    queue_path: str
    namespace: str
    task: str
    queue_priority: int
    payload_available: bool
    lease_expires_at: Instant | None
    is_encrypted: bool


class MessageList(Struct):
    """Newest first; `total` is the page's."""

    messages: list[ListedMessage]
    total: int
    pagination: Page
    mode: Mode


class TraceEvent(Struct, rename="camel"):
    """A step of a message's life that a client reports. Snake case is read alike."""

    transaction_id: str
    partition_id: str | Count | None = None
    consumer_group: str | None = None
    trace_names: list[str] | str | None = None
    event_type: str | None = None
    data: Any = None
    worker: str | None = None


class Traced(Struct, rename="camel"):
    success: bool
    trace_id: str


class Unsuccessful(Struct):
    success: bool
    error: str


class Trace(Struct):
    id: str
    traceId: str
    trace_id: str
    transactionId: str
    transaction_id: str
    partitionId: str
    partition_id: str
    consumerGroup: str
    consumer_group: str
    traceNames: list[str]
    trace_names: list[str]
    eventType: str
    event_type: str
    data: Raw
    workerId: str | None
    worker_id: str | None
    createdAt: Instant
    created_at: Instant


class Traces(Struct):
    """The page twice, as `traces` and `events`; the keys in both spellings."""

    traces: list[Trace]
    events: list[Trace]
    total: int
    pagination: Page


class TraceName(Struct):
    trace_name: str
    trace_count: int
    message_count: int
    last_seen: Instant


class TraceNames(Struct):
    trace_names: list[TraceName]
    total: int
    pagination: Page


class FetchEntry(Struct, rename="camel"):
    queue: str
    partition: str | None = None
    offset: Count = 0
    max_bytes: int | None = None


class Fetch(Struct, rename="camel"):
    """Reads by offset, without a lease."""

    entries: list[FetchEntry]
    max_bytes: int | None = None
    min_bytes: int | None = None
    max_wait_ms: int | None = None


class ChangedEntry(Struct):
    queue: str
    since: Instant | None = None
    after: Any = None  # what is no cursor of ours is answered in its entry
    limit: int | None = None


class Changed(Struct):
    """Which partitions were written to since."""

    entries: list[ChangedEntry]


class ChangedPartition(Struct, rename="camel"):
    name: str
    id: str
    last_offset: int
    log_start: int
    last_write_at: Instant | None


class ChangedAnswer(Struct):
    queue: str
    error: str | UnsetType = ABSENT
    partitions: list[ChangedPartition] | UnsetType = ABSENT
    next: str | UnsetType | None = ABSENT


class ChangedAnswers(Struct, rename="camel"):
    safe_time: Instant
    safe_time_degraded: bool
    entries: list[ChangedAnswer]


# -- timers ------------------------------------------------------------------------------------------------------------


class NoTimer(Struct, rename="camel"):
    found: bool
    queue: str
    timer_key: str


class TimerCount(Struct):
    count: int


# -- groups and queues -------------------------------------------------------------------------------------------------


class GroupDeleted(Struct, rename="camel"):
    success: bool
    consumer_group: str
    queue_name: str | None
    deleted_partitions: int
    metadata_deleted: bool
    queues: list[str]


class SeekEnd(Struct, rename="camel"):
    """To the end; a `timestamp` beside it does not count."""

    to_end: Annotated[bool, Meta(extra_json_schema={"const": True})]


class SeekTime(Struct):
    """To an instant."""

    timestamp: Instant


class Sought(Struct, rename="camel"):
    success: bool
    consumer_group: str
    queue_name: str
    partition_name: str | None
    seek_to_end: bool
    target_timestamp: Instant | None
    partitions_updated: int
    updated: bool


class SeekNotFound(Struct, rename="camel"):
    success: bool
    error: str
    consumer_group: str
    queue_name: str
    partitions_updated: int


class Subscription(Struct, rename="camel"):
    subscription_timestamp: Instant


class SubscriptionMoved(Struct, rename="camel"):
    success: bool
    consumer_group: str
    new_timestamp: Instant
    rows_updated: int


class Group(Struct, rename="camel"):
    """A group of one queue; times in seconds."""

    name: str
    topics: list[str]
    queue_name: str
    members: int
    partition_cursors: int
    partitions_with_lag: int
    total_lag: int
    max_time_lag: float
    state: Literal["Lagging", "Stable"]
    storage: str
    kind: str
    subscription_mode: str | None
    subscription_timestamp: Instant | None
    subscription_created_at: Instant | None
    conflation: bool


class GroupPartition(Struct, rename="camel"):
    partition: str
    worker_id: str | None
    last_consumed_at: None
    total_consumed: int
    offset_lag: int
    time_lag_seconds: float
    lease_active: bool


class GroupQueue(Struct):
    conflation: bool
    kind: str
    partitions: list[GroupPartition]


class Lagging(Struct):
    consumer_group: str
    queue_name: str
    partition_name: str
    partition_id: str
    worker_id: str | None
    kind: str
    offset_lag: int
    time_lag_seconds: float
    lag_hours: float
    oldest_unconsumed_at: Instant | None
    last_consumed_at: None

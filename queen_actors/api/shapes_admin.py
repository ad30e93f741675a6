"""More of `shapes.py`: queues as a whole, figures, streaming queries, queues in memory."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET as ABSENT
from msgspec import Raw, Struct, UnsetType

from .shapes import Instant

Options = dict[str, int | bool | str]


class Segments(Struct):
    segments: int
    messages: int


class Counted(Struct, rename="camel"):
    total: int
    pending: int
    processing: int
    completed: int
    dead_letter: int
    failed: int | UnsetType | None = ABSENT


class QueueLine(Struct, rename="camel"):
    id: str
    name: str
    queue: str
    namespace: str
    task: str
    storage: str
    partitions: int
    segments: Segments
    messages: Counted
    retained_bytes: int | None
    options: Options
    created_at: Instant


class Queues(Struct, rename="camel"):
    """Newest first; how many keys and pending timers there are beside them."""

    queues: list[QueueLine]
    kv_rows: int
    kv_bytes: int
    timer_rows: int
    timer_bytes: int


class QueueCursor(Struct, rename="camel"):
    total_consumed: int
    batches_consumed: int


class QueuePartition(Struct, rename="camel"):
    id: str
    name: str
    created_at: Instant
    messages: Counted
    stats: Counted
    cursor: QueueCursor
    last_activity: Instant | None
    oldest_message: Instant | None
    newest_message: Instant | None
    retained_bytes: int | None


class OneQueue(Struct, rename="camel"):
    id: str
    name: str
    namespace: str
    task: str
    created_at: Instant
    options: Options
    partitions: list[QueuePartition]
    segments: Segments
    totals: Counted
    retained_bytes: int | None


class Configured(Struct, rename="camel"):
    """Every option, as it is now."""

    configured: bool
    queue_id: str
    partition_id: None
    queue: str
    namespace: str
    task: str
    storage: str
    options: Options


class QueueDeleted(Struct):
    deleted: bool
    existed: bool
    queue: str
    message: str | UnsetType = ABSENT


class PartitionDepth(Struct):
    partition: str
    pending: int
    processing: int
    ready: int


class Depth(Struct, rename="camel"):
    """A conflating group takes one message of each partition at a time: that is what `effective` counts."""

    queue: str
    group: str
    pending: int
    processing: int
    ready: int
    partitions_pending: int
    partitions_ready: int
    conflation: bool
    effective_pending: int
    effective_ready: int
    partitions: list[PartitionDepth]


class Sizes(Struct):
    """Bytes of what each partition keeps."""

    queue: str
    partitions: Any


class Spread(Struct):
    avg: float
    median: float
    min: float
    max: float


class Lags(Struct):
    time: Spread
    offset: Spread


class Overview(Struct, rename="camel"):
    queues: int
    partitions: int
    namespaces: int
    tasks: int
    messages: Counted
    lag: Lags
    timestamp: Instant
    stats_age: int


class LabelMessages(Struct):
    total: int
    pending: int


class Namespace(Struct):
    namespace: str
    queues: int
    partitions: int
    messages: LabelMessages


class Task(Struct):
    task: str
    queues: int
    partitions: int
    messages: LabelMessages


class Namespaces(Struct):
    namespaces: list[Namespace]


class Tasks(Struct):
    tasks: list[Task]


# -- figures -----------------------------------------------------------------------------------------------------------


class Health(Struct):
    status: str
    engine: str
    version: str


class Rate(Struct):
    total: int
    rate: float


class MessageRate(Rate):
    delivered: int
    duplicate: int


class Memory(Struct):
    rss: int


class Cpu(Struct):
    seconds: float


class Metrics(Struct):
    version: str
    uptime: float
    requests: Rate
    messages: MessageRate
    memory: Memory
    cpu: Cpu
    counters: dict[str, int]
    gauges: dict[str, int]


class ProcessMetrics(Struct):
    timestamp: Instant
    uptime: float
    memory: Memory
    cpu: Cpu
    counters: dict[str, int]
    gauges: dict[str, int]


class Status(Struct):
    status: str
    version: str
    queues: list[QueueLine]
    counters: dict[str, int]
    gauges: dict[str, int]
    timestamp: Instant


class StatusQueues(Struct):
    queues: list[QueueLine]


class StatusOf(Struct, rename="camel"):
    id: str
    name: str
    namespace: str
    task: str
    priority: int
    created_at: Instant
    config: Options


class StatusPartition(Struct):
    id: str
    name: str
    messages: int


class StatusTotals(Struct):
    messages: Counted


class StatusQueue(Struct):
    queue: StatusOf
    partitions: list[StatusPartition]
    totals: StatusTotals


class Point(Struct):
    timestamp: Instant
    messages: int


class Analytics(Struct, rename={"data_points": "dataPoints", "since": "from"}):
    data_points: list[Point]
    interval: Literal["minute", "hour", "day"]
    since: Instant
    to: Instant


class Refreshed(Struct):
    success: bool
    refreshed: bool
    message: str


# -- streaming queries -------------------------------------------------------------------------------------------------


class StreamRegistered(Struct):
    success: bool
    query_id: str
    name: str
    config_hash: str
    fresh: bool
    reset: bool


class StreamMismatch(Struct):
    """The query is registered with another shape."""

    success: bool
    query_id: str
    name: str
    error: str


class StateRow(Struct):
    key: str
    value: Raw
    updated_at: Instant


class StreamState(Struct):
    success: bool
    rows: list[StateRow]


class StreamPushed(Struct, rename="camel"):
    queue_name: str
    message_id: str
    transaction_id: str
    status: str


class StreamAcked(Struct):
    success: bool
    count: int
    lease_released: bool
    dlq: bool


class StreamCycled(Struct):
    success: bool
    query_id: str
    partition_id: str
    queueName: str
    state_ops_applied: int
    push_results: list[StreamPushed]
    ack_result: StreamAcked | None


class StreamRefused(Struct):
    """Nothing of the cycle happened."""

    success: bool
    error: str
    reason: str


# -- queues in memory --------------------------------------------------------------------------------------------------


class Window(Struct):
    ms: int
    count: int


class EphemeralOptions(Struct, rename="camel"):
    max_bytes: int
    max_length: int
    policy: Literal["reject", "dropOldest"]
    ttl_seconds: int
    lease_seconds: int
    retry_limit: int
    window_buffer: Window


class EphemeralConfigured(Struct):
    queue: str
    options: EphemeralOptions
    declared: bool


class EphemeralPushed(Struct):
    pushed: int


class EphemeralMessage(Struct):
    id: str
    partition: str
    attempts: int
    payload: Raw


class EphemeralPopped(Struct):
    queue: str
    messages: list[EphemeralMessage]


class EphemeralOutcome(Struct):
    id: str
    outcome: str


class EphemeralAcked(Struct):
    results: list[EphemeralOutcome]


class EphemeralReset(Struct):
    queue: str
    dropped: int


class EphemeralDeleted(Struct):
    queue: str
    deleted: bool
    declared: bool


class Drops(Struct):
    bounds: int
    ttl: int
    retry: int


class EphemeralLine(Struct):
    queue: str
    tier: Literal["declared", "implicit"]
    depth: int
    bytes: int
    partitions: int
    groups: int
    drops: Drops
    options: EphemeralOptions


class EphemeralQueues(Struct, rename="camel"):
    """`cellBytes`: the memory that all of them take."""

    queues: list[EphemeralLine]
    count: int
    cell_bytes: int


class EphemeralPartition(Struct):
    partition: str
    pending: int
    bytes: int


class EphemeralGroup(Struct):
    group: str
    pending: int
    skipped: int


class EphemeralDepth(Struct, rename="camel"):
    queue: str
    group: str | None
    tier: Literal["declared", "implicit"]
    pending: int
    partitions_pending: int
    bytes: int
    partitions: list[EphemeralPartition]
    groups: list[EphemeralGroup]

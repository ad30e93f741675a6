"""A queue: its options, labels, groups and which of its partitions have something for whom (`wire-messaging.md` 5, 7)."""

from __future__ import annotations

from msgspec import Struct

from .effects import QueueOptions


class Configure(Struct, frozen=True):
    """`wire-messaging.md` 5. `options` holds only what the caller named, by field name of `QueueOptions`;
    `replace`: what is not named goes back to the defaults of a configure."""

    queue: str
    options: dict[str, int | bool | str]
    namespace: str | None = None
    task: str | None = None
    replace: bool = False


CONFIGURE_DEFAULTS = QueueOptions(lease_seconds=300, retention_sink_hold_max_seconds=604_800)
"""What a configure starts from; `QueueOptions()` is what an implicit creation starts from."""


class PartitionView(Struct, frozen=True):
    """Counts of one partition; `pending` and `processing` are those of the worst group."""

    pid: int
    name: str
    created_at: int
    total: int
    pending: int
    processing: int
    completed: int
    dead_letter: int
    last_activity: int | None


class QueueView(Struct, frozen=True):
    """A queue as `resources/queues/:q` and `configure` show it."""

    qid: int
    uid: str
    name: str
    namespace: str
    task: str
    options: QueueOptions
    created_at: int
    partitions: tuple[PartitionView, ...] = ()

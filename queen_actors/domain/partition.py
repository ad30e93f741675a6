"""A partition: an ordered log with a dedup window (`wire-messaging.md`, sections 2, 6 and 21)."""

from __future__ import annotations

from msgspec import Struct


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


class PushOutcome(Struct, frozen=True, gc=False):
    """What became of one item: `status` queued, duplicate (with the original's id and offset) or failed."""

    queue: str
    txn: str
    message_id: str
    offset: int
    status: str
    error: str | None = None

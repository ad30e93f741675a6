"""A cursor: one consumer group in one partition (`wire-messaging.md`, sections 7.4, 8 and 9)."""

from __future__ import annotations

from msgspec import Struct

from .effects import Record


class Ack(Struct, frozen=True):
    """One acknowledgment. `status`: completed, failed, retry or dlq (the wire's other words are already mapped).
    `pid` None: the wire's text was not a partition id. `lease_id` None or empty: unfenced."""

    txn: str
    pid: int | None
    group: str
    status: str = "completed"
    lease_id: str | None = None
    error: str | None = None


class AckOutcome(Struct, frozen=True):
    """`wire-messaging.md` 8: the entry of one acknowledgment."""

    txn: str
    success: bool
    error: str | None = None
    lease_released: bool = False
    dlq: bool = False
    noop: bool = False


class Claim(Struct, frozen=True):
    """Messages of one partition taken for one consumer, in offset order."""

    queue: str
    partition: str
    pid: int
    attempt: int
    records: tuple[Record, ...]


class PopRequest(Struct, frozen=True):
    """`wire-messaging.md` 7.2. Exactly one of `queue` and (`namespace` or `task`); times in microseconds, `wait` 0
    answers at once, `lease` 0 takes the queue's. `session` names the connection that the lease lives with."""

    queue: str | None = None
    partition: str | None = None
    namespace: str | None = None
    task: str | None = None
    group: str = "__QUEUE_MODE__"
    batch: int = 200
    partitions: int | None = None
    wait: int = 0
    auto_ack: bool = False
    lease: int = 0
    subscription_mode: str | None = None
    subscription_from: str | None = None
    conflation: bool = False
    session: str | None = None


class PopReply(Struct, frozen=True):
    """`lease_id` is empty for autoAck and for an empty reply. `conflation`: the group conflates and the caller asked
    for it; `conflict`: the caller asked for it and the registered group does not."""

    lease_id: str
    group: str
    claims: tuple[Claim, ...]
    conflation: bool = False
    conflict: bool = False


class LeaseExtended(Struct, frozen=True):
    """`renewed`: how many leases were extended; `expires_at`: the earliest of them, None when there was none."""

    renewed: int
    expires_at: int | None


class LeaseEnd(Struct, frozen=True):
    """A lease of a session ended: settled by acks, or lost (`reason`: expired, seek, deleted, maxLease)."""

    lease_id: str
    pid: int
    group: str
    messages: int
    reason: str

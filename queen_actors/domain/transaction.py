"""A transaction: what it touches, in which order, all or nothing (`wire-kv-locks-timers-transactions.md`, section 5)."""

from __future__ import annotations

from msgspec import Struct

from .cursor import Ack
from .kv import KvOp, KvResult
from .partition import PushItem
from .timers import TimerOp, TimerResult


class Transaction(Struct, frozen=True):
    """`steps` are the pushes and acks, flattened, in the caller's order; the riders keep their own order."""

    steps: tuple[PushItem | Ack, ...] = ()
    required_leases: tuple[str, ...] = ()
    kv: tuple[KvOp, ...] = ()
    timers: tuple[TimerOp, ...] = ()
    positions: tuple[PositionCommit, ...] = ()
    producer: str | None = None


class PositionCommit(Struct, frozen=True):
    """Move a group's cursor: everything below `offset` is done (None: forget the cursor)."""

    queue: str
    group: str
    partition: str
    offset: int | None


class StepResult(Struct, frozen=True):
    """One pushed item or ack of a committed transaction."""

    kind: str
    txn: str
    message_id: str = ""
    queue: str = ""
    duplicate: bool = False
    dlq: bool = False


class Committed(Struct, frozen=True):
    """All of it happened, in one step of the log."""

    steps: tuple[StepResult, ...]
    kv: tuple[KvResult, ...]
    timers: tuple[TimerResult, ...]
    positions: int = 0


class RolledBack(Struct, frozen=True):
    """None of it happened. `failed_index` is flat (steps, then kv); it and what follows only for kv_precondition."""

    reason: str
    error: str
    failed_index: int | None = None
    kv_reason: str | None = None
    version: int = 0
    value: bytes = b"null"


TransactionReply = Committed | RolledBack

"""A transaction: what it touches, in which order, all or nothing (`wire-kv-locks-timers-transactions.md` 5)."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from .cursor import Ack, AckOutcome
from .kv import KvOp, KvResult, Precondition
from .partition import PushItem, PushOutcome
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


class Committed(Struct, frozen=True):
    """All of it happened, in one step of the log. `steps`: what each pushed item and each ack came to, in their order;
    no push failed, and every ack is a success."""

    steps: tuple[PushOutcome | AckOutcome, ...]
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


def fenced(transaction: Transaction) -> Transaction:
    """The transaction with each ack's fence made explicit (5.6): its own lease; else the one lease that the whole
    bundle names; else none."""
    fences = [step.lease_id for step in transaction.steps if type(step) is Ack]
    if all(fences):
        return transaction
    named = {*transaction.required_leases, *filter(None, fences)}
    if len(named) != 1:
        return transaction
    (lease,) = named
    steps = tuple(
        replace(step, lease_id=lease) if isinstance(step, Ack) and not step.lease_id else step
        for step in transaction.steps
    )
    return replace(transaction, steps=steps)


def empty(transaction: Transaction) -> bool:
    """A bundle with nothing at all is a bad request (5.1)."""
    return not (transaction.steps or transaction.kv or transaction.timers or transaction.positions)


EMPTY = RolledBack("bad_request", "the transaction has no operation, no kv, no timer and no position")
DUPLICATE = RolledBack("duplicate", "QDUP a pushed message is a duplicate; the transaction rolled back")


def rejected_ack(error: str | None) -> RolledBack:
    return RolledBack("rejected_ack", f"QACK {error or 'an acknowledgment was rejected'}; the transaction rolled back")


def lost_precondition(steps: int, lost: Precondition) -> RolledBack:
    """The index is flat: pushed items and acks come first (5.4)."""
    return RolledBack(
        "kv_precondition",
        "QKV a required KV precondition failed; the transaction rolled back",
        steps + lost.failed_index,
        lost.reason,
        lost.version,
        lost.value,
    )

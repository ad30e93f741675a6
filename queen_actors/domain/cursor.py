"""A cursor: one consumer group in one partition (`wire-messaging.md`, sections 7.4, 8 and 9)."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from queen_actors.values import NOTHING

from .effects import CursorPut, QueueOptions, Record


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


class Claim(Struct, frozen=True, gc=False):
    """Messages of one partition taken for one consumer, in offset order."""

    queue: str
    partition: str
    pid: int
    attempt: int
    records: tuple[Record, ...]


FOREVER = 1 << 62
"""A wait without an end."""


class PopRequest(Struct, frozen=True):
    """`wire-messaging.md` 7.2. Exactly one of `queue` and (`namespace` or `task`); times in microseconds, `wait` 0
    answers at once, `lease` 0 takes the queue's. `session` names the connection that the lease lives with. Without
    `create` an unknown queue stays unknown: a subscription does not bring back a queue that was deleted."""

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
    create: bool = True


class PopReply(Struct, frozen=True):
    """`lease_id` is empty for autoAck and for an empty reply. `conflation`: the caller asked for it, and the group
    conflates; `conflict`: the caller asked for it, and the group is registered without it (in one of the queues)."""

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


# --- the rules -------------------------------------------------------------------------------------------------------

STALE_LEASE = "invalid or expired lease"
UNRESOLVABLE = "transaction is unresolvable, already committed, or acknowledgment is stale"
RETRIES_EXHAUSTED = "Retries exhausted"
DELIVERY_LIMIT = "Delivery limit of {limit} reached without an acknowledgment"


def fresh(pid: int, group: str, committed: int) -> CursorPut:
    """The cursor of a group at its first contact with a partition: nothing leased, nothing counted."""
    return CursorPut(pid, group, committed, "", 0, NOTHING, 0, NOTHING, 0, "", False)


def leased(cursor: CursorPut, now: int) -> bool:
    """Is there a live lease? An expired one simply stops blocking."""
    return bool(cursor.lease_id) and cursor.lease_expires > now


def processing(cursor: CursorPut, now: int) -> int:
    """How many messages the live lease covers."""
    return cursor.batch_end - cursor.committed if leased(cursor, now) else 0


def released(cursor: CursorPut) -> CursorPut:
    """Given back without a charge: the next delivery starts where this one did (a lost connection, 7.4)."""
    return replace(cursor, lease_id="", lease_expires=0, batch_end=NOTHING, session=False)


def withdrawn(cursor: CursorPut) -> CursorPut:
    """Given back by a broker that could not hand the messages over (7.4): this was no delivery, and counts as none."""
    return replace(released(cursor), attempts=max(cursor.attempts - 1, 0))


def overtaken(cursor: CursorPut, committed: int) -> CursorPut:
    """Moved on by retention (21): what is gone counts as finished, so that a late ack of it is none that fails. A lease
    of which nothing is left is settled; one of which something is left goes on with that."""
    if cursor.lease_id and cursor.batch_end <= committed:
        return _settled(cursor, committed, 0)
    return replace(cursor, committed=committed, marker=committed + 1 if cursor.lease_id else cursor.marker)


def sought(cursor: CursorPut, committed: int) -> CursorPut:
    """Moved by a seek: a live lease is dropped, and every count starts afresh (section 10)."""
    return fresh(cursor.pid, cursor.group, committed)


def extended(cursor: CursorPut, lease_id: str, now: int, lifetime: int) -> CursorPut | None:
    """The lease lasts until `now + lifetime`, never shorter than it did; None when it is not live (section 9)."""
    if cursor.lease_id != lease_id or cursor.lease_expires <= now:
        return None
    return replace(cursor, lease_expires=max(cursor.lease_expires, now + lifetime))


class Taken(Struct, frozen=True):
    """A claim that may be made: the cursor after it, which attempt it is, and heads that were given up instead."""

    cursor: CursorPut
    attempt: int
    records: tuple[Record, ...]
    dead: tuple[Record, ...]


def take(
    cursor: CursorPut,
    records: Sequence[Record],
    *,
    now: int,
    lease_id: str,
    lifetime: int,
    delivery_limit: int,
    session: bool,
    auto_ack: bool = False,
    span: int | None = None,
) -> Taken:
    """Lease `records`, which are consecutive and start at the cursor's head, or commit them at once (`auto_ack`).

    `span` (conflation) is how far the lease reaches back: the records are then the newest message alone, and the
    head is `cursor.committed + 1` whatever they are. A head whose delivery attempt would pass `delivery_limit`
    (0: no limit) is given up: it is in `dead`, and the claim starts behind it.
    """
    if auto_ack:
        done = replace(released(cursor), committed=records[-1].offset, marker=NOTHING, attempts=0, retries=0)
        return Taken(done, 1, tuple(records), ())
    head = records[0].offset if span is None else span
    attempt = cursor.attempts + 1 if cursor.marker == head else 1
    dead: tuple[Record, ...] = ()
    if delivery_limit and attempt > delivery_limit:
        dead, records = tuple(records[:1]), records[1:]
        cursor = replace(cursor, committed=dead[0].offset, retries=0)
        head, attempt = dead[0].offset + 1, 1
    if not records:
        idle = replace(released(cursor), marker=NOTHING, attempts=0)
        return Taken(idle, attempt, (), dead)
    cursor = replace(
        cursor,
        lease_id=lease_id,
        lease_expires=now + lifetime,
        batch_end=records[-1].offset,
        marker=head,
        attempts=attempt,
        session=session,
    )
    return Taken(cursor, attempt, tuple(records), dead)


class Signal(Struct, frozen=True):
    """One acknowledgment with its offset found; `offset` None: no such message is known."""

    status: str
    offset: int | None
    error: str | None = None


class Acked(Struct, frozen=True):
    """What acks under one lease come to: the cursor after them (the same object when nothing changed), an outcome
    for each, and what is dead-lettered: (offset, error)."""

    cursor: CursorPut
    outcomes: tuple[AckOutcome, ...]
    dead: tuple[tuple[int, str], ...] = ()


_RANK = {"completed": 0, "retry": 1, "failed": 2, "dlq": 3}
"""Where one offset is named twice, and for the head of a request: the graver word counts."""


def graver(entries: Sequence[tuple[str, Signal]]) -> list[tuple[str, Signal]]:
    """Acks of one call by which several messages are meant that have one transaction id: nothing tells which word is
    for which, so that each gets the graver one."""
    named: dict[str, set[int | None]] = {}
    words: dict[str, Signal] = {}
    for txn, signal in entries:
        named.setdefault(txn, set()).add(signal.offset)
        words[txn] = max(words.get(txn, signal), signal, key=lambda word: _RANK[word.status])
    return [
        (txn, replace(words[txn], offset=signal.offset) if len(named[txn]) > 1 else signal) for txn, signal in entries
    ]


def acknowledge(
    cursor: CursorPut,
    entries: Sequence[tuple[str, Signal]],
    lease_id: str,
    now: int,
    options: QueueOptions,
    *,
    repeats: bool = True,
) -> Acked:
    """Acks of one (partition, group) under one lease: `wire-messaging.md` 8.2, table by table.

    `entries` are (transactionId, signal).
    """
    if lease_id and not (cursor.lease_id == lease_id and cursor.lease_expires > now):
        if repeats and cursor.settled_lease == lease_id:
            return Acked(cursor, tuple(_repeat(txn, s, cursor.committed) for txn, s in entries))
        return Acked(cursor, tuple(AckOutcome(txn, False, STALE_LEASE) for txn, _ in entries))
    end = cursor.batch_end if cursor.lease_id else None
    spanned: dict[int, str] = {}
    for _, signal in entries:
        if signal.status != "completed" and not cursor.lease_id:
            continue
        if _within(signal.offset, cursor.committed, end):
            assert signal.offset is not None
            known = spanned.get(signal.offset, "completed")
            spanned[signal.offset] = max(known, signal.status, key=_RANK.__getitem__)
    signalled = [offset for offset, status in spanned.items() if status != "completed"]
    ended: int | None
    if signalled:
        after, dead, ended = _nack(cursor, spanned, min(signalled), entries, options)
    else:
        after, dead, ended = _complete(cursor, spanned)
    filed = {offset for offset, _ in dead}
    outcomes: list[AckOutcome] = []
    for txn, signal in entries:
        outcomes.append(_outcome(txn, signal, cursor, end, ended, filed))
        if signal.offset == ended and outcomes[-1].success:
            ended = None
    return Acked(after, tuple(outcomes), tuple(dead))


def _within(offset: int | None, committed: int, end: int | None) -> bool:
    return offset is not None and offset > committed and (end is None or offset <= end)


def _repeat(txn: str, signal: Signal, committed: int) -> AckOutcome:
    """The client did not see the answer of the ack that settled its batch, and sends it again."""
    if signal.offset is not None and signal.offset <= committed:
        return AckOutcome(txn, True, lease_released=True)
    return AckOutcome(txn, False, STALE_LEASE)


def _outcome(
    txn: str, signal: Signal, before: CursorPut, end: int | None, ended: int | None, filed: set[int]
) -> AckOutcome:
    if _within(signal.offset, before.committed, end):
        if signal.status != "completed" and not before.lease_id:
            return AckOutcome(txn, False, STALE_LEASE)
        dlq = signal.offset in filed and signal.status != "completed"
        return AckOutcome(txn, True, lease_released=signal.offset == ended, dlq=dlq)
    if signal.status == "completed" and signal.offset is not None and signal.offset <= before.committed:
        return AckOutcome(txn, True, noop=True)
    return AckOutcome(txn, False, UNRESOLVABLE)


def _settled(cursor: CursorPut, committed: int, retries: int) -> CursorPut:
    """Released after its work; a lease that was settled whole is remembered, for a client that asks again."""
    whole = cursor.lease_id if committed >= cursor.batch_end else cursor.settled_lease
    return CursorPut(cursor.pid, cursor.group, committed, "", 0, NOTHING, retries, NOTHING, 0, whole, False)


def completed(cursor: CursorPut, highest: int) -> tuple[CursorPut, int | None]:
    """Everything up to `highest`, which a live lease covers, is done; with the offset whose ack ended the lease."""
    if highest >= cursor.batch_end:
        return _settled(cursor, highest, 0), highest
    return replace(cursor, committed=highest, marker=highest + 1), None


def _complete(cursor: CursorPut, spanned: dict[int, str]) -> tuple[CursorPut, list[tuple[int, str]], int | None]:
    """Only completed entries: everything up to the highest of them is committed."""
    if not spanned:
        return cursor, [], None
    highest = max(spanned)
    if not cursor.lease_id:
        return replace(cursor, committed=highest, marker=NOTHING, attempts=0), [], None
    after, ended = completed(cursor, highest)
    return after, [], ended


def _nack(
    cursor: CursorPut,
    spanned: dict[int, str],
    head: int,
    entries: Sequence[tuple[str, Signal]],
    options: QueueOptions,
) -> tuple[CursorPut, list[tuple[int, str]], int]:
    """A signal is present: the lease ends. What happens to its head decides what happens to the rest."""
    word = spanned[head]
    spent = cursor.retries >= options.retry_limit
    below = max((o for o, s in spanned.items() if s == "completed" and o < head), default=cursor.committed)
    if word == "retry" or (word == "failed" and not spent):
        charged = cursor.retries + (word == "failed")
        return replace(released(cursor), committed=below, retries=charged), [], head
    files = options.dead_letter_queue or options.dlq_after_max_retries
    errors = {s.offset: s.error for _, s in entries if s.status != "completed" and s.error}
    first = next(iter(errors.values()), RETRIES_EXHAUSTED)
    dead = [(head, errors.get(head) or first)] if files or word == "dlq" else []
    committed, retries = head, 0
    highest = max((o for o, s in spanned.items() if s == "completed"), default=NOTHING)
    for offset in range(head + 1, cursor.batch_end + 1):
        status = spanned.get(offset)
        if status == "retry" or (status is None and highest < offset):
            break
        if status == "failed" and not spent:
            retries = cursor.retries
            break
        if status == "dlq" or (status == "failed" and files):
            dead.append((offset, errors.get(offset) or RETRIES_EXHAUSTED))
        committed = offset
    return _settled(cursor, committed, retries), dead, head

"""The timers of a queue: commands, replies and the pure rules (`wire-kv-locks-timers-transactions.md`, section 4)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from queen_actors import limits
from queen_actors.errors import Forbidden
from queen_actors.values import DEFAULT_PARTITION, MAX_INSTANT, SECOND

from .effects import TimerDropped, TimerPut
from .ordered import OrderedKeys


class Schedule(Struct, frozen=True):
    """Schedule or move a timer; `payload` decoded JSON text, `delay` in microseconds (negative fires at once)."""

    queue: str
    key: str
    payload: bytes
    delay: int
    txn: str
    partition: str = "Default"
    encrypted: bool = False


class Cancel(Struct, frozen=True):
    queue: str
    key: str
    txn: str | None = None


TimerOp = Schedule | Cancel


class TimerResult(Struct, frozen=True):
    """`status`: scheduled, rescheduled, cancelled or absent; the last two fields only for the first two."""

    status: str
    queue: str
    key: str
    txn: str | None
    message_id: str | None = None
    deliver_at: int | None = None

    @property
    def ok(self) -> bool:
        return self.status != "absent"


class TimerPage(Struct, frozen=True):
    """One page of pending timers in byte order of their keys."""

    rows: tuple[TimerPut, ...]
    truncated: bool
    next_after: str | None


class TimersDecision(Struct, frozen=True):
    """What a call comes to: one result per op, and all its effects or, when it raised, none."""

    results: tuple[TimerResult, ...]
    effects: tuple[TimerPut | TimerDropped, ...]


class TimersState:
    """The pending timers of one queue. Millions may wait for months, so each is kept as one packed `bytes`."""

    __slots__ = ("_keys", "_timers", "queue", "size")

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.size = 0
        """Bytes that they are kept in."""
        self._timers: dict[str, bytes] = {}
        self._keys = OrderedKeys(self._timers)

    def get(self, key: str) -> TimerPut | None:
        """The pending timer of this key."""
        packed = self._timers.get(key)
        return None if packed is None else _unpack(self.queue, key, packed)

    def page(self, after: str | None, limit: int) -> TimerPage:
        """At most `limit` timers whose keys lie behind `after`, in byte order of the keys."""
        keys = list(islice(self._keys.starting("", after), limit + 1))
        truncated = len(keys) > limit
        rows = tuple(_unpack(self.queue, key, self._timers[key]) for key in keys[:limit])
        return TimerPage(rows, truncated, rows[-1].key if truncated else None)

    def count(self, prefix: str) -> int:
        """How many pending timers have keys that start with `prefix`."""
        return self._keys.count(prefix)

    def due_times(self) -> Iterator[tuple[int, str]]:
        """(due, key) of every pending timer, in no order. Not to be held across an `apply`."""
        return ((_due(packed), key) for key, packed in self._timers.items())

    def due(self, key: str) -> int | None:
        """When the timer of this key is due, if it is pending."""
        packed = self._timers.get(key)
        return None if packed is None else _due(packed)

    def apply(self, effect: TimerPut | TimerDropped) -> int | None:
        """Take the effect: the only mutation. Returns when the timer was due that it took the place of, or away."""
        key = effect.key
        before = self._timers.get(key)
        self.size -= 0 if before is None else len(before)
        if isinstance(effect, TimerPut):
            if before is None:
                self._keys.added(key)
            self._timers[key] = _pack(effect)
            self.size += len(self._timers[key])
        elif self._timers.pop(key, None) is not None:
            self._keys.removed(key)
        return None if before is None else _due(before)

    def __len__(self) -> int:
        """How many timers are pending."""
        return len(self._timers)


def decide(
    ops: Sequence[TimerOp],
    timers: Callable[[str], TimersState],
    now: int,
    new_id: Callable[[], str],
    producer: str | None,
    horizon: int,
) -> TimersDecision:
    """What the call comes to at the instant `now`; `new_id` mints message ids, `producer` is who schedules.

    Raises Forbidden, and then nothing of the call holds, when a delay is longer than `horizon` (microseconds).
    """
    if any(isinstance(op, Schedule) and op.delay > horizon for op in ops):
        raise Forbidden(
            f"a timer may be scheduled at most {horizon // SECOND} seconds ahead",
            code="timer_horizon_exceeded",
            reason="timers_horizon",
        )
    results: list[TimerResult] = []
    effects: list[TimerPut | TimerDropped] = []
    written: dict[tuple[str, str], TimerPut | None] = {}
    for op in ops:
        name = (op.queue, op.key)
        pending = written[name] if name in written else timers(op.queue).get(op.key)
        if isinstance(op, Schedule):
            timer = _scheduled(op, pending, now, new_id(), producer)
            written[name] = timer
            effects.append(timer)
            status = "scheduled" if pending is None else "rescheduled"
            results.append(TimerResult(status, op.queue, op.key, op.txn, timer.message_id, timer.due))
        elif pending is not None:
            written[name] = None
            effects.append(TimerDropped(op.queue, op.key, False))
            results.append(TimerResult("cancelled", op.queue, op.key, pending.txn))
        else:
            results.append(TimerResult("absent", op.queue, op.key, op.txn))
    return TimersDecision(tuple(results), tuple(effects))


def due_order(timer: TimerPut) -> tuple[int, str, str]:
    """Timers fire in this order: (due, queue, key) (4.7)."""
    return timer.due, timer.queue, timer.key


def failed(timer: TimerPut, error: str, now: int) -> TimerPut | None:
    """The timer after its message could not be appended: pending again, later by min(1 s * 2**n, 60 s) (4.8). None
    after the last attempt: the message is then dead-lettered."""
    attempts = timer.attempts + 1
    if attempts >= limits.TIMER_ATTEMPTS:
        return None
    due = now + min(SECOND << timer.attempts, _BACKOFF_MAX)
    return replace(timer, due=due, attempts=attempts, last_error=error, updated_at=now)


_BACKOFF_MAX = 60 * SECOND


def _scheduled(op: Schedule, pending: TimerPut | None, now: int, message_id: str, producer: str | None) -> TimerPut:
    """A timer as if nothing had been pending under its key, but for the instant of its creation (4.2)."""
    return TimerPut(
        queue=op.queue,
        key=op.key,
        partition=op.partition,
        due=min(now + max(op.delay, 0), MAX_INSTANT),
        txn=op.txn,
        message_id=message_id,
        payload=op.payload,
        encrypted=op.encrypted,
        producer=producer,
        attempts=0,
        last_error=None,
        created_at=now if pending is None else pending.created_at,
        updated_at=now,
    )


# Beside its payload and its key a TimerPut with its integers and texts takes 419 bytes, packed it takes 94: queue and
# key left out, UUIDs as 16 bytes, the default partition and a second instant of the same value as nothing, and what is
# as it is with nearly every timer left off the end.
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder().decode
_USUAL = (None, False, None, 0, None)
"""updated_at (None: created_at), encrypted, producer, attempts, last_error."""


def _pack(timer: TimerPut) -> bytes:
    partition = None if timer.partition == DEFAULT_PARTITION else timer.partition
    txn, message_id = _pack_uuid(timer.txn), _pack_uuid(timer.message_id)
    updated = None if timer.updated_at == timer.created_at else timer.updated_at
    rest = (updated, timer.encrypted, timer.producer, timer.attempts, timer.last_error)
    usual = () if rest == _USUAL else rest
    return _encode((timer.due, timer.payload, txn, message_id, timer.created_at, partition, *usual))


def _unpack(queue: str, key: str, packed: bytes) -> TimerPut:
    due, payload, txn, message_id, created_at, partition, *rest = _decode(packed)
    updated, encrypted, producer, attempts, last_error = rest or _USUAL
    return TimerPut(
        queue=queue,
        key=key,
        partition=DEFAULT_PARTITION if partition is None else partition,
        due=due,
        txn=_unpack_uuid(txn),
        message_id=_unpack_uuid(message_id),
        payload=payload,
        encrypted=encrypted,
        producer=producer,
        attempts=attempts,
        last_error=last_error,
        created_at=created_at,
        updated_at=created_at if updated is None else updated,
    )


def _due(packed: bytes) -> int:
    due: int = _decode(packed)[0]
    return due


def _pack_uuid(text: str) -> str | bytes:
    """A UUID in its canonical spelling as its 16 bytes; every other text as it is."""
    if len(text) != 36 or _UUID.fullmatch(text) is None:
        return text
    return bytes.fromhex(text.replace("-", ""))


def _unpack_uuid(packed: str | bytes) -> str:
    if isinstance(packed, str):
        return packed
    digits = packed.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")

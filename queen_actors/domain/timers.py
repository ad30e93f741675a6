"""The timers of a queue: commands, replies and the pure rules (`wire-kv-locks-timers-transactions.md`, section 4)."""

from __future__ import annotations

from msgspec import Struct

from .effects import TimerPut


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

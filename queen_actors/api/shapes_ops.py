"""The operations on keys, locks and timers as a caller sends them: each has only the fields that it reads.

What an operation does not read is ignored, whatever it is, except the few names that the wire refuses: so nothing is
said here of another operation's fields. Bounds are the parsers' own, in `wire/`. JSON knows no whole numbers: to a
schema `30.0` is an integer, and the parsers refuse it except where they say so.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET as ABSENT
from msgspec import Meta, Struct, UnsetType

from queen_actors import limits

from .shapes import Count

Ttl = Annotated[int, Meta(ge=1, le=limits.TTL_SECONDS_MAX)]
Text = Annotated[str, Meta(min_length=1)]
Scalar = Text | float | bool
"""A number, `true` and `false` are taken for their text."""


class _Keyed(Struct, rename="camel"):
    ns: Annotated[str, Meta(pattern="^[a-z0-9][a-z0-9._-]{0,63}$")] | float | bool


class KvGet(_Keyed):
    op: Literal["get"]
    key: Scalar


class KvGetMany(_Keyed):
    op: Literal["getMany"]
    keys: list[Scalar] | UnsetType = ABSENT


class KvGetPrefix(_Keyed):
    """`limit` outside of 1 to 1000 counts as the nearest of them."""

    op: Literal["getPrefix"]
    prefix: Scalar
    after: Any = ABSENT
    limit: int | UnsetType = ABSENT
    keys_only: bool | UnsetType = ABSENT


class KvPutOperation(_Keyed):
    """`value`, and exactly one of `ttlSeconds` (`60.0` is read too) and `forever`."""

    op: Literal["put"]
    key: Scalar
    value: Any
    ttl_seconds: Ttl | UnsetType = ABSENT
    forever: bool | UnsetType = ABSENT
    expect: Count | UnsetType = ABSENT
    required: bool | UnsetType = ABSENT


class KvPutIfAbsent(_Keyed):
    """As a put that expects 0: there is no such key."""

    op: Literal["putIfAbsent"]
    key: Scalar
    value: Any
    ttl_seconds: Ttl | UnsetType = ABSENT
    forever: bool | UnsetType = ABSENT
    expect: Literal[0] | UnsetType = ABSENT
    required: bool | UnsetType = ABSENT


class KvDeleteOperation(_Keyed):
    op: Literal["delete"]
    key: Scalar
    expect: Count | UnsetType = ABSENT
    required: bool | UnsetType = ABSENT


class KvIncr(_Keyed):
    """`min` and `max` bound the result; it takes no `expect`."""

    op: Literal["incr"]
    key: Scalar
    delta: float
    min: float | UnsetType = ABSENT
    max: float | UnsetType = ABSENT
    ttl_seconds: Ttl | UnsetType = ABSENT
    forever: bool | UnsetType = ABSENT
    required: bool | UnsetType = ABSENT


class KvCheck(_Keyed):
    """`expect`: the version to find, 0 for none."""

    op: Literal["check"]
    key: Scalar
    expect: Count
    required: bool | UnsetType = ABSENT


KV_RIDERS = (KvGet, KvGetMany, KvPutOperation, KvPutIfAbsent, KvDeleteOperation, KvIncr, KvCheck)
"""Those that a transaction takes."""
KV_OPERATIONS = (*KV_RIDERS, KvGetPrefix)


class KvPut(Struct, rename="camel"):
    """`value`, and exactly one of `ttlSeconds` and `forever`."""

    value: Any
    ttl_seconds: Ttl | UnsetType = ABSENT
    forever: bool | UnsetType = ABSENT
    expect: Count | UnsetType = ABSENT
    required: bool | UnsetType = ABSENT


class KvDelete(Struct):
    expect: Count | UnsetType = ABSENT
    required: bool | UnsetType = ABSENT


class _Named(Struct, rename="camel"):
    name: Annotated[str, Meta(min_length=1, max_length=limits.LOCK_NAME_BYTES)]


_Owner = Annotated[str, Meta(min_length=1, max_length=limits.LOCK_OWNER_BYTES)]
_Token = Annotated[int, Meta(ge=1, le=limits.INT64_MAX)]
_Slot = Annotated[int, Meta(ge=0, le=limits.LOCK_LIMIT_MAX - 1)]


class LockAcquire(_Named):
    """`limit` permits; with 1, the default, it is a lock. There is no `forever`."""

    op: Literal["acquire"]
    ttl_seconds: Ttl
    owner: _Owner | UnsetType | None = ABSENT
    limit: Annotated[int, Meta(ge=1, le=limits.LOCK_LIMIT_MAX)] | UnsetType = ABSENT


class LockRenew(_Named):
    op: Literal["renew"]
    token: _Token
    ttl_seconds: Ttl
    slot: _Slot | UnsetType = ABSENT
    owner: _Owner | UnsetType | None = ABSENT


class LockRelease(_Named):
    op: Literal["release"]
    token: _Token
    slot: _Slot | UnsetType = ABSENT


class LockGet(_Named):
    op: Literal["get"]


LOCK_OPERATIONS = (LockAcquire, LockRenew, LockRelease, LockGet)


class _Timed(Struct, rename="camel"):
    queue: Text
    timer_key: Text


class TimerSchedule(_Timed):
    """`payload` is the message's JSON text in base64; `delayMs` counts from now, and one in the past fires at once."""

    op: Literal["schedule", "reschedule"]
    payload: str
    delay_ms: float
    txn: Text
    partition: Text | UnsetType | None = ABSENT
    encrypted: bool | UnsetType | None = ABSENT
    payload_zstd: bool | UnsetType | None = ABSENT


class TimerCancel(_Timed):
    """With `txn`, only when the timer is still the one of that transactionId."""

    op: Literal["cancel"]
    txn: str | UnsetType | None = ABSENT


TIMER_OPERATIONS = (TimerSchedule, TimerCancel)

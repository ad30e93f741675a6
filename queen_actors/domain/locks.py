"""A lock or semaphore: commands, replies and the pure rules (`wire-kv-locks-timers-transactions.md`, section 3)."""

from __future__ import annotations

from msgspec import Struct


class Acquire(Struct, frozen=True):
    """`ttl` in microseconds."""

    name: str
    ttl: int
    owner: str | None = None
    limit: int = 1


class Renew(Struct, frozen=True):
    name: str
    token: int
    ttl: int
    slot: int = 0
    owner: str | None = None


class Release(Struct, frozen=True):
    name: str
    token: int
    slot: int = 0


class GetLock(Struct, frozen=True):
    name: str


LockOp = Acquire | Renew | Release | GetLock


class Holder(Struct, frozen=True):
    slot: int
    owner: str | None
    token: int
    since: int
    expires_at: int | None
    renewed_at: int


class LockResult(Struct, frozen=True):
    """`op` is the wire's word, `ok` its verdict (acquired, renewed, released, held); `reason` of a refusal."""

    op: str
    name: str
    ok: bool
    slot: int = 0
    token: int = 0
    owner: str | None = None
    already: bool = False
    reason: str | None = None
    holders: tuple[Holder, ...] = ()
    expires_at: int | None = None

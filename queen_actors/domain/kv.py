"""A KV namespace: commands, replies and the pure rules (`wire-kv-locks-timers-transactions.md`, section 2)."""

from __future__ import annotations

from decimal import Decimal

from msgspec import Struct


class Row(Struct, frozen=True, gc=False):
    """One key's value (compact JSON text), version and lifetime; `expires_at` None is for ever."""

    value: bytes
    version: int
    expires_at: int | None
    created_at: int
    updated_at: int


class Get(Struct, frozen=True):
    ns: str
    key: str


class GetMany(Struct, frozen=True):
    ns: str
    keys: tuple[str, ...]


class GetPrefix(Struct, frozen=True):
    ns: str
    prefix: str
    after: str | None = None
    limit: int = 100
    keys_only: bool = False


class Put(Struct, frozen=True):
    """`put`, or `putIfAbsent` when `if_absent` (then `expect` is 0); `ttl` in microseconds, None for ever."""

    ns: str
    key: str
    value: bytes
    ttl: int | None
    expect: int | None = None
    required: bool = False
    if_absent: bool = False


class Delete(Struct, frozen=True):
    ns: str
    key: str
    expect: int | None = None
    required: bool = False


class Incr(Struct, frozen=True):
    ns: str
    key: str
    delta: Decimal
    ttl: int | None
    min: Decimal | None = None
    max: Decimal | None = None
    required: bool = False


class Check(Struct, frozen=True):
    ns: str
    key: str
    expect: int
    required: bool = False


KvOp = Get | GetMany | GetPrefix | Put | Delete | Incr | Check


class KeyRow(Struct, frozen=True):
    """A row as a read gives it."""

    key: str
    row: Row


class GetResult(Struct, frozen=True):
    key: str
    row: Row | None


class GetManyResult(Struct, frozen=True):
    rows: tuple[KeyRow, ...]
    missing: tuple[str, ...]
    truncated: bool


class GetPrefixResult(Struct, frozen=True):
    rows: tuple[KeyRow, ...]
    truncated: bool
    next_after: str | None
    keys_only: bool


class WriteResult(Struct, frozen=True):
    """`op` is the wire's word. `value` None means that the element has no `value` (a held check); JSON null is
    `b"null"`. `reason` is None exactly when it applied."""

    op: str
    key: str
    value: bytes | None
    version: int
    reason: str | None = None

    @property
    def applied(self) -> bool:
        return self.reason is None


KvResult = GetResult | GetManyResult | GetPrefixResult | WriteResult


class Precondition(Struct, frozen=True):
    """A `required` op lost, and nothing of the call was applied (2.9). `failed_index`: which op of the input."""

    failed_index: int
    reason: str
    version: int
    value: bytes

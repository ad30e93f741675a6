"""A KV namespace: commands, replies and the pure rules (`wire-kv-locks-timers-transactions.md`, section 2)."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any

from msgspec import Struct

from queen_actors import limits
from queen_actors.values import MAX_INSTANT

from .effects import KvDropped, KvPut
from .numbers import add, number_text, parse_number
from .ordered import OrderedKeys


class Row(Struct, frozen=True, gc=False):
    """One key's value (compact JSON text), version and lifetime; `expires_at` None is for ever."""

    value: bytes
    version: int
    expires_at: int | None
    created_at: int
    updated_at: int


class Get(Struct, frozen=True):
    """`get` (wire 2.5): one row."""

    ns: str
    key: str


class GetMany(Struct, frozen=True):
    """`getMany` (wire 2.10): several rows of one namespace."""

    ns: str
    keys: tuple[str, ...]


class GetPrefix(Struct, frozen=True):
    """`getPrefix` (wire 2.10): a page of at most `limit` rows, in byte order, behind the key `after`."""

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
    """`delete` (wire 2.5): remove a row, with `expect` only at that version."""

    ns: str
    key: str
    expect: int | None = None
    required: bool = False


class Incr(Struct, frozen=True):
    """`incr` (wire 2.6): add `delta` exactly, within `min` and `max`; `ttl` (microseconds, None for ever) is a new
    row's."""

    ns: str
    key: str
    delta: Decimal
    ttl: int | None
    min: Decimal | None = None
    max: Decimal | None = None
    required: bool = False


class Check(Struct, frozen=True):
    """`check` (wire 2.5): is the row at version `expect` (0: not there)? Writes nothing."""

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
    """The row, or None when it is not there or its lifetime is over."""

    key: str
    row: Row | None


class GetManyResult(Struct, frozen=True):
    """Rows in byte order of their keys, and the keys without one in the order asked. `truncated`: what a call may read
    ran out."""

    rows: tuple[KeyRow, ...]
    missing: tuple[str, ...]
    truncated: bool


class GetPrefixResult(Struct, frozen=True):
    """Rows in byte order. `truncated`: there are more, behind `next_after`."""

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
        """Whether the write happened, or the check held."""
        return self.reason is None


KvResult = GetResult | GetManyResult | GetPrefixResult | WriteResult


class Precondition(Struct, frozen=True):
    """A `required` op lost, and nothing of the call was applied (2.9). `failed_index`: which op of the input."""

    failed_index: int
    reason: str
    version: int
    value: bytes


class KvDecision(Struct, frozen=True):
    """What a call comes to. `versions`: how many numbers its effects took; with a `precondition` there are neither
    results nor effects, and none was taken."""

    results: tuple[KvResult, ...]
    effects: tuple[KvPut | KvDropped, ...]
    precondition: Precondition | None
    versions: int


class NamespaceState:
    """The rows of one namespace. A row whose lifetime is over stays until it is swept or overwritten; no operation
    sees it (2.5)."""

    __slots__ = ("_keys", "_rows", "ns", "size")

    def __init__(self, ns: str) -> None:
        self.ns = ns
        self.size = 0
        """Bytes of all values."""
        self._rows: dict[str, Row] = {}
        self._keys = OrderedKeys(self._rows)

    def live(self, key: str, now: int) -> Row | None:
        """The key's row, unless its lifetime is over at `now`."""
        row = self._rows.get(key)
        return None if row is None or (row.expires_at is not None and row.expires_at <= now) else row

    def row(self, key: str) -> Row | None:
        """The key's row, also when its lifetime is over and it was not swept yet."""
        return self._rows.get(key)

    def prefix(self, prefix: str, after: str | None) -> Iterator[tuple[str, Row]]:
        """The rows, live or not, whose keys start with `prefix` and lie behind `after`, in byte order of the keys.
        Not to be held across an `apply`."""
        rows = self._rows
        return ((key, rows[key]) for key in self._keys.starting(prefix, after))

    def lifetimes(self) -> Iterator[tuple[int, str]]:
        """(expires_at, key) of every row that will expire, in no order. Not to be held across an `apply`."""
        return ((row.expires_at, key) for key, row in self._rows.items() if row.expires_at is not None)

    def apply(self, effect: KvPut | KvDropped) -> None:
        """Take the effect: the only mutation."""
        key = effect.key
        before = self._rows.get(key)
        self.size -= 0 if before is None else len(before.value)
        if isinstance(effect, KvPut):
            self.size += len(effect.value)
            if before is None:
                self._keys.added(key)
            self._rows[key] = Row(effect.value, effect.version, effect.expires_at, effect.created_at, effect.updated_at)
        elif self._rows.pop(key, None) is not None:
            self._keys.removed(key)

    def __len__(self) -> int:
        """How many rows there are, those not swept yet included."""
        return len(self._rows)


def decide(ops: Sequence[KvOp], namespace: Callable[[str], NamespaceState], now: int, version: int) -> KvDecision:
    """What the call comes to at the instant `now`, when `version` is the highest number given out so far.

    All of it or, when a `required` op loses, nothing (2.9). Ops on one key come first, by (namespace, key, place in
    the call), each seeing the writes before it; then the reads of several keys, which see all writes (2.8). Every
    applied write takes the next number, a `delete` too; nothing else takes one (2.7).
    """
    if len(ops) == 1 and (rule := _POINT_RULES.get(type(ops[0]))) is not None:
        return _decide_one(ops[0], rule, namespace, now, version)
    return _decide_many(ops, namespace, now, version)


def expired(state: NamespaceState, keys: Iterable[str], now: int, version: int) -> tuple[KvDropped, ...]:
    """The effects that sweep those of `keys` whose lifetime is over at `now`; `version` is what the counter shows."""
    return tuple(
        KvDropped(state.ns, key, version, True)
        for key in dict.fromkeys(keys)
        if state.row(key) is not None and state.live(key, now) is None
    )


_Step = tuple[GetResult | WriteResult, KvPut | KvDropped | None]
_Rule = Callable[[Any, Row | None, int, int], _Step]
"""What an op on one key comes to: (op, its live row, now, the number that a write would take)."""


def _decide_one(op: Any, rule: _Rule, namespace: Callable[[str], NamespaceState], now: int, version: int) -> KvDecision:
    """The common call: one op on one key."""
    row = namespace(op.ns).live(op.key, now)
    result, effect = rule(op, row, now, version + 1)
    if effect is not None:
        return KvDecision((result,), (effect,), None, 1)
    if (lost := _lost_precondition(op, 0, result, row)) is not None:
        return KvDecision((), (), lost, 0)
    return KvDecision((result,), (), None, 0)


def _decide_many(ops: Sequence[KvOp], namespace: Callable[[str], NamespaceState], now: int, version: int) -> KvDecision:
    view = _View(namespace, now)
    budget = _ReadBudget(limits.KV_READ_BYTES)
    results: dict[int, KvResult] = {}
    effects: list[KvPut | KvDropped] = []
    ranges = [index for index, op in enumerate(ops) if isinstance(op, GetMany | GetPrefix)]
    points = [(op.ns, op.key, index) for index, op in enumerate(ops) if not isinstance(op, GetMany | GetPrefix)]
    for ns, key, index in sorted(points):
        op, row = ops[index], view.live(ns, key)
        result, effect = _POINT_RULES[type(op)](op, row, now, version + len(effects) + 1)
        if effect is not None:
            effects.append(effect)
            view.write(effect)
        elif (lost := _lost_precondition(op, index, result, row)) is not None:
            return KvDecision((), (), lost, 0)
        elif isinstance(result, GetResult) and result.row is not None:
            budget.spend(result.row)
        results[index] = result
    for index in ranges:
        op = ops[index]
        if isinstance(op, GetMany):
            results[index] = _get_many(op, view, budget)
        elif isinstance(op, GetPrefix):
            results[index] = _get_prefix(op, view, budget)
    return KvDecision(tuple(results[index] for index in range(len(ops))), tuple(effects), None, len(effects))


class _View:
    """The live rows at one instant, with the call's own writes over them."""

    __slots__ = ("_namespace", "_now", "_written")

    def __init__(self, namespace: Callable[[str], NamespaceState], now: int) -> None:
        self._namespace = namespace
        self._now = now
        self._written: dict[str, dict[str, Row | None]] = {}

    def live(self, ns: str, key: str) -> Row | None:
        written = self._written.get(ns)
        if written is not None and key in written:
            return written[key]
        return self._namespace(ns).live(key, self._now)

    def write(self, effect: KvPut | KvDropped) -> None:
        row = None
        if isinstance(effect, KvPut):
            row = Row(effect.value, effect.version, effect.expires_at, effect.created_at, effect.updated_at)
        self._written.setdefault(effect.ns, {})[effect.key] = row

    def prefix(self, ns: str, prefix: str, after: str | None) -> Iterator[tuple[str, Row]]:
        """The live rows under `prefix` and behind `after`, in byte order of the keys."""
        state, written = self._namespace(ns), self._written.get(ns, {})
        stored = (
            (key, row)
            for key, row in state.prefix(prefix, after)
            if key not in written and (row.expires_at is None or row.expires_at > self._now)
        )
        own = sorted(
            (key, row)
            for key, row in written.items()
            if row is not None and key.startswith(prefix) and (after is None or key > after)
        )
        return heapq.merge(stored, own, key=_key_of) if own else stored


def _key_of(pair: tuple[str, Row]) -> str:
    return pair[0]


class _ReadBudget:
    """Bytes of values that the reads of one call may still return (2.10)."""

    __slots__ = ("_left",)

    def __init__(self, left: int) -> None:
        self._left = left

    def spend(self, row: Row) -> bool:
        """Whether the row may be returned; the one that goes past the budget still may, those after it not."""
        if self._left <= 0:
            return False
        self._left -= len(row.value)
        return True


def _get_many(op: GetMany, view: _View, budget: _ReadBudget) -> GetManyResult:
    """Each distinct key once: rows in byte order, missing keys in the order asked; a cut row is in neither."""
    rows: list[KeyRow] = []
    missing: set[str] = set()
    truncated = False
    for key in sorted(set(op.keys)):
        row = view.live(op.ns, key)
        if row is None:
            missing.add(key)
        elif budget.spend(row):
            rows.append(KeyRow(key, row))
        else:
            truncated = True
    return GetManyResult(tuple(rows), tuple(key for key in dict.fromkeys(op.keys) if key in missing), truncated)


def _get_prefix(op: GetPrefix, view: _View, budget: _ReadBudget) -> GetPrefixResult:
    """One page. When the budget leaves no row at all, the next page starts where this one did."""
    rows: list[KeyRow] = []
    for key, row in view.prefix(op.ns, op.prefix, op.after):
        if len(rows) >= op.limit or not (op.keys_only or budget.spend(row)):
            return GetPrefixResult(tuple(rows), True, rows[-1].key if rows else op.after, op.keys_only)
        rows.append(KeyRow(key, row))
    return GetPrefixResult(tuple(rows), False, None, op.keys_only)


def _lost_precondition(op: KvOp, index: int, result: KvResult, row: Row | None) -> Precondition | None:
    """The refusal of the whole call, when this op is `required` and lost (2.9). It shows the current row."""
    if not isinstance(result, WriteResult) or result.reason is None:
        return None
    if isinstance(op, Get | GetMany | GetPrefix) or not op.required:
        return None
    return Precondition(index, result.reason, *_current(row))


def _current(row: Row | None) -> tuple[int, bytes]:
    return (0, b"null") if row is None else (row.version, row.value)


def _unmet(row: Row | None, expect: int | None) -> str | None:
    """Why `expect` does not hold, or None when it does (the table of 2.5).

    | live row | none | 0      | N      |
    | no       | -    | -      | absent |
    | at N     | -    | exists | -      |
    | at M     | -    | exists | version |
    """
    if expect is None:
        return None
    if row is None:
        return "absent" if expect else None
    if expect == 0:
        return "exists"
    return None if row.version == expect else "version"


def _get(op: Get, row: Row | None, now: int, version: int) -> _Step:
    return GetResult(op.key, row), None


def _put(op: Put, row: Row | None, now: int, version: int) -> _Step:
    """A put over a live row keeps the row's creation; everything else of it is new, its lifetime too."""
    word, expect = ("putIfAbsent", 0) if op.if_absent else ("put", op.expect)
    if (reason := _unmet(row, expect)) is not None:
        current, value = _current(row)
        return WriteResult(word, op.key, value, current, reason), None
    created_at = now if row is None else row.created_at
    effect = KvPut(op.ns, op.key, op.value, version, expiry(now, op.ttl), created_at, now)
    return WriteResult(word, op.key, op.value, version), effect


def _delete(op: Delete, row: Row | None, now: int, version: int) -> _Step:
    """The answer shows the removed row; the effect carries the number that the removal itself took."""
    reason = _unmet(row, op.expect)
    if row is None and op.expect is None:
        reason = "absent"
    current, value = _current(row)
    result = WriteResult("delete", op.key, value, current, reason)
    return result, KvDropped(op.ns, op.key, version, False) if row is not None and reason is None else None


def _check(op: Check, row: Row | None, now: int, version: int) -> _Step:
    if (reason := _unmet(row, op.expect)) is None:
        return WriteResult("check", op.key, None, op.expect), None
    current, value = _current(row)
    return WriteResult("check", op.key, value, current, reason), None


def _incr(op: Incr, row: Row | None, now: int, version: int) -> _Step:
    """A live row keeps its lifetime and its creation; without one the counter starts at 0 with the op's (2.6)."""
    if row is None:
        start, value, current = _ZERO, b"0", 0
        expires_at, created_at = expiry(now, op.ttl), now
    else:
        number = parse_number(row.value)
        if number is None:
            return WriteResult("incr", op.key, b"0", row.version, "type"), None
        start, value, current = number, row.value, row.version
        expires_at, created_at = row.expires_at, row.created_at
    total = add(start, op.delta)
    if total is None or (op.min is not None and total < op.min) or (op.max is not None and total > op.max):
        return WriteResult("incr", op.key, value, current, "limit"), None
    value = number_text(total)
    effect = KvPut(op.ns, op.key, value, version, expires_at, created_at, now)
    return WriteResult("incr", op.key, value, version), effect


_POINT_RULES: dict[type, _Rule] = {Get: _get, Put: _put, Delete: _delete, Check: _check, Incr: _incr}
_ZERO = Decimal(0)


def expiry(now: int, ttl: int | None) -> int | None:
    """When a lifetime that starts at `now` is over; never later than a date can say. None is for ever."""
    return None if ttl is None else min(now + ttl, MAX_INSTANT)

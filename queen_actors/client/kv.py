"""Key-value calls (wire section 2): every write names its lifetime, and may name the version that it replaces."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from enum import Enum
from typing import Any, Final

from .durations import Duration, lifetime
from .results import KvResult
from .shapes import as_object, results
from .transport import Caller, Start
from .watch import Watch

Number = int | float | Decimal
KvOp = dict[str, Any]

PATH = "/api/v1/kv"


class Unset(Enum):
    """The type of an argument that was not given, where None would be a mistake."""

    UNSET = "unset"


UNSET: Final = Unset.UNSET
Expect = int | Unset
"""The version that must be there; 0: the key must not exist. Not given: whatever is there."""


class KvResults(list[KvResult]):
    """The answers of a batch, in the order of its operations. False when a lost `required` operation refused it
    whole: then it is empty, and the fields tell which one, why, and what is there now (wire 2.9)."""

    def __init__(self, results: Iterable[KvResult] = (), refusal: Mapping[str, Any] | None = None) -> None:
        super().__init__(results)
        told = refusal or {}
        self.ok = refusal is None
        self.reason: str | None = told.get("reason")
        self.failed_index: int | None = told.get("failedIndex")
        self.kv_reason: str | None = told.get("kvReason")
        self.version: int | None = told.get("version")
        self.value: Any = told.get("value")

    def __bool__(self) -> bool:
        return self.ok


class KvOps:
    """The operations as values, for `queen.kv.batch([...])`: `queen.kv.op.put(...)` and the others."""

    @staticmethod
    def get(ns: str, key: str) -> KvOp:
        return {"op": "get", "ns": ns, "key": key}

    @staticmethod
    def get_many(ns: str, keys: Iterable[str]) -> KvOp:
        if isinstance(keys, str):
            raise TypeError("keys is a list of keys; read a single one with get")
        return {"op": "getMany", "ns": ns, "keys": list(keys)}

    @staticmethod
    def get_prefix(
        ns: str, prefix: str, *, after: str | None = None, limit: int | None = None, keys_only: bool = False
    ) -> KvOp:
        op: KvOp = {"op": "getPrefix", "ns": ns, "prefix": prefix}
        if after is not None:
            op["after"] = after
        if limit is not None:
            op["limit"] = limit
        if keys_only:
            op["keysOnly"] = True
        return op

    @staticmethod
    def put(
        ns: str,
        key: str,
        value: Any,
        *,
        ttl: Duration | None = None,
        ttl_seconds: int | None = None,
        until: datetime | None = None,
        forever: bool = False,
        expect: Expect = UNSET,
        required: bool = False,
    ) -> KvOp:
        op: KvOp = {"op": "put", "ns": ns, "key": key, "value": value, **lifetime(ttl, ttl_seconds, until, forever)}
        return _conditional(op, expect, required)

    @staticmethod
    def put_if_absent(
        ns: str,
        key: str,
        value: Any,
        *,
        ttl: Duration | None = None,
        ttl_seconds: int | None = None,
        until: datetime | None = None,
        forever: bool = False,
        required: bool = False,
    ) -> KvOp:
        life = lifetime(ttl, ttl_seconds, until, forever)
        return _conditional({"op": "putIfAbsent", "ns": ns, "key": key, "value": value, **life}, UNSET, required)

    @staticmethod
    def delete(ns: str, key: str, *, expect: Expect = UNSET, required: bool = False) -> KvOp:
        return _conditional({"op": "delete", "ns": ns, "key": key}, expect, required)

    @staticmethod
    def incr(
        ns: str,
        key: str,
        delta: Number = 1,
        *,
        min: Number | None = None,
        max: Number | None = None,
        ttl: Duration | None = None,
        ttl_seconds: int | None = None,
        until: datetime | None = None,
        forever: bool = False,
        required: bool = False,
    ) -> KvOp:
        op: KvOp = {"op": "incr", "ns": ns, "key": key, "delta": _number("delta", delta)}
        op.update((name, _number(name, bound)) for name, bound in (("min", min), ("max", max)) if bound is not None)
        op.update(lifetime(ttl, ttl_seconds, until, forever))
        return _conditional(op, UNSET, required)

    @staticmethod
    def check(ns: str, key: str, *, expect: int, required: bool = False) -> KvOp:
        return _conditional({"op": "check", "ns": ns, "key": key}, expect, required)


def _conditional(op: KvOp, expect: Expect, required: bool) -> KvOp:
    if expect is not UNSET:
        if isinstance(expect, bool) or not isinstance(expect, int):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"expect is a version, or 0 for a key that must not exist, not {expect!r}; leave it out")
        if expect < 0:
            raise ValueError(f"expect is a version, or 0 for a key that must not exist, not {expect}")
        op["expect"] = expect
    if required:
        op["required"] = True
    return op


def _number(name: str, value: Number) -> Number:
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"{name} must be a number, not {value!r}")
    return value


def repeatable(ops: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a batch that is sent twice does and answers what it did and answered once: reads, checks and plain puts.

    The others converge, but the second answer could deny what the first one did (wire 2.12).
    """
    return all(
        op.get("op") in ("get", "getMany", "getPrefix", "check") or (op.get("op") == "put" and "expect" not in op)
        for op in ops
    )


class Kv:
    """`queen.kv`. A missed condition is an answer, not an error: read `applied`, or the truth of the result.

    `ttl` takes a timedelta, seconds, or a text such as `"7d"`; `ttl_seconds`, `until` and `forever=True` are the
    other lifetimes, and a write names exactly one. `required=True` lets a lost condition refuse the whole call.
    """

    op = KvOps

    def __init__(self, caller: Caller, start: Start) -> None:
        self._caller = caller
        self._start = start

    def watch(
        self, ns: str, *, key: str | None = None, prefix: str | None = None, from_version: int | None = None
    ) -> Watch:
        """Changes of one key, or of all keys under a prefix, as they happen: `async with queen.kv.watch("carts",
        prefix="customer-") as changes: async for change in changes`. `changes.rows` are the rows.

        With `from_version` it begins with what has happened since that version instead of with the current rows.
        """
        return Watch(self._start, self._caller.transport, ns, key, prefix, from_version)

    async def batch(self, operations: Iterable[Mapping[str, Any]]) -> KvResults:
        """Several operations in one atomic step, made by `queen.kv.op`; one answer for each, in order."""
        ops = list(operations)
        if not ops:
            return KvResults()
        answer = as_object(await self._caller.call("POST", PATH, {"operations": ops}, repeatable=repeatable(ops)))
        if answer.get("reason") == "kv_precondition":
            return KvResults((), answer)
        return KvResults(map(KvResult, results(answer, len(ops), "KV operations")))

    async def _one(self, op: KvOp) -> KvResult:
        answers = await self.batch((op,))
        if answers:
            return answers[0]
        lost = {"op": op["op"], "key": op["key"], "applied": False, "reason": answers.kv_reason}
        return KvResult({**lost, "version": answers.version, "value": answers.value})

    async def get(self, ns: str, key: str) -> KvResult:
        """One key: `found`, `value`, `version`, `expires_at`. An expired key is not found."""
        return await self._one(KvOps.get(ns, key))

    async def get_many(self, ns: str, keys: Iterable[str]) -> KvResult:
        """Several keys of one namespace: `rows` in byte order, and the `missing` ones."""
        return await self._one(KvOps.get_many(ns, keys))

    async def get_prefix(
        self, ns: str, prefix: str, *, after: str | None = None, limit: int | None = None, keys_only: bool = False
    ) -> KvResult:
        """One page of the keys under a prefix (100 unless told, 1,000 at most): `rows`, `truncated`, `next_after`."""
        return await self._one(KvOps.get_prefix(ns, prefix, after=after, limit=limit, keys_only=keys_only))

    async def list_all(
        self, ns: str, prefix: str, *, limit: int | None = None, max_rows: int | None = None, keys_only: bool = False
    ) -> list[KvResult]:
        """Every row under a prefix, page by page (`limit` rows each), `max_rows` at most. Each page is its own
        snapshot."""
        rows: list[KvResult] = []
        after: str | None = None
        while True:
            page = await self.get_prefix(ns, prefix, after=after, limit=limit, keys_only=keys_only)
            rows += page.rows
            after = page.next_after
            if (max_rows is not None and len(rows) >= max_rows) or not page.truncated or after is None:
                return rows if max_rows is None else rows[:max_rows]

    async def put(
        self,
        ns: str,
        key: str,
        value: Any,
        *,
        ttl: Duration | None = None,
        ttl_seconds: int | None = None,
        until: datetime | None = None,
        forever: bool = False,
        expect: Expect = UNSET,
        required: bool = False,
    ) -> KvResult:
        """Write a value, with `expect` only over that version; refused, the answer has the current value."""
        life: dict[str, Any] = {"ttl": ttl, "ttl_seconds": ttl_seconds, "until": until, "forever": forever}
        return await self._one(KvOps.put(ns, key, value, **life, expect=expect, required=required))

    async def put_if_absent(
        self,
        ns: str,
        key: str,
        value: Any,
        *,
        ttl: Duration | None = None,
        ttl_seconds: int | None = None,
        until: datetime | None = None,
        forever: bool = False,
        required: bool = False,
    ) -> KvResult:
        """Write only when the key does not exist: of several callers, one wins."""
        life: dict[str, Any] = {"ttl": ttl, "ttl_seconds": ttl_seconds, "until": until, "forever": forever}
        return await self._one(KvOps.put_if_absent(ns, key, value, **life, required=required))

    async def once(
        self,
        ns: str,
        key: str,
        value: Any = True,
        *,
        ttl: Duration | None = None,
        ttl_seconds: int | None = None,
        until: datetime | None = None,
        forever: bool = False,
    ) -> KvResult:
        """True for the first caller within the lifetime, false for every other: a marker that a step was done."""
        return await self.put_if_absent(ns, key, value, ttl=ttl, ttl_seconds=ttl_seconds, until=until, forever=forever)

    async def delete(self, ns: str, key: str, *, expect: Expect = UNSET, required: bool = False) -> KvResult:
        """Remove a key; applied, the answer has the removed value."""
        return await self._one(KvOps.delete(ns, key, expect=expect, required=required))

    async def incr(
        self,
        ns: str,
        key: str,
        delta: Number = 1,
        *,
        min: Number | None = None,
        max: Number | None = None,
        ttl: Duration | None = None,
        ttl_seconds: int | None = None,
        until: datetime | None = None,
        forever: bool = False,
        required: bool = False,
    ) -> KvResult:
        """Add to a number, exactly; a result past `min` or `max` is not applied. The lifetime is that of a new key."""
        life: dict[str, Any] = {"ttl": ttl, "ttl_seconds": ttl_seconds, "until": until, "forever": forever}
        return await self._one(KvOps.incr(ns, key, delta, min=min, max=max, **life, required=required))

    async def check(self, ns: str, key: str, *, expect: int, required: bool = False) -> KvResult:
        """Whether a key is at that version (0: does not exist); nothing is written."""
        return await self._one(KvOps.check(ns, key, expect=expect, required=required))

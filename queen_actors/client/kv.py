"""Key-value calls (wire section 2): every write names its lifetime, and may name the version that it replaces."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Concatenate, ParamSpec, Protocol

from . import kv_ops
from .durations import Duration
from .kv_ops import UNSET, Expect, KvOp, KvOps, Number, spoken_as
from .results import KvResult
from .shapes import as_object, results
from .transport import Caller, Start
from .watch import Watch

__all__ = ["UNSET", "Expect", "Kv", "KvOp", "KvOps", "KvResults", "Number", "repeatable"]

PATH = "/api/v1/kv"


P = ParamSpec("P")


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


def repeatable(ops: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a batch that is sent twice does and answers what it did and answered once: reads, checks and plain puts.

    The others converge, but the second answer could deny what the first one did (wire 2.12).
    """
    return all(
        op.get("op") in ("get", "getMany", "getPrefix", "check") or (op.get("op") == "put" and "expect" not in op)
        for op in ops
    )


class _One(Protocol):
    async def one(self, op: KvOp) -> KvResult: ...


def _asks(op: Callable[P, KvOp]) -> Callable[Concatenate[_One, P], Coroutine[Any, Any, KvResult]]:
    async def call(self: _One, /, *args: P.args, **kwargs: P.kwargs) -> KvResult:
        return await self.one(op(*args, **kwargs))

    return spoken_as(op, call, "KvResult")


class Kv:
    """`queen.kv` (wire section 2). A missed condition is an answer, not an error: read `applied`, or the truth of the
    result. Each call raises QueenError when the broker cannot be asked, or refuses what is no operation.

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

    async def one(self, op: KvOp) -> KvResult:
        """One operation by itself; refused as a whole (`required`), the answer is that of the operation."""
        answers = await self.batch((op,))
        if answers:
            return answers[0]
        lost = {"op": op["op"], "key": op["key"], "applied": False, "reason": answers.kv_reason, "value": answers.value}
        return KvResult(lost if answers.version is None else {**lost, "version": answers.version})

    get = _asks(kv_ops.get)
    get_many = _asks(kv_ops.get_many)
    get_prefix = _asks(kv_ops.get_prefix)
    put = _asks(kv_ops.put)
    put_if_absent = _asks(kv_ops.put_if_absent)
    delete = _asks(kv_ops.delete)
    incr = _asks(kv_ops.incr)
    check = _asks(kv_ops.check)

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

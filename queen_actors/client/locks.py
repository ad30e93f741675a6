"""Lock and semaphore calls (wire section 3) as they are on the wire, with no state kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .durations import Duration, whole_seconds
from .results import LockResult
from .shapes import results
from .transport import ANSWER_SECONDS, Caller

PATH = "/api/v1/locks"
LockOp = dict[str, Any]


def acquire_op(name: str, ttl_seconds: int, owner: str | None, limit: int) -> LockOp:
    """`acquire` (wire 3.2): a permit for an owner, one of `limit`, for whole seconds."""
    op: LockOp = {"op": "acquire", "name": name, "ttlSeconds": ttl_seconds}
    if owner is not None:
        op["owner"] = owner
    if limit > 1:
        op["limit"] = limit
    return op


def renew_op(name: str, token: int, slot: int, ttl_seconds: int, owner: str | None) -> LockOp:
    """`renew` (wire 3.2): the lifetime begins again, for whoever knows the token, or is the owner."""
    op: LockOp = {"op": "renew", "name": name, "token": token, "ttlSeconds": ttl_seconds, "slot": slot}
    if owner is not None:
        op["owner"] = owner
    return op


def release_op(name: str, token: int, slot: int) -> LockOp:
    """`release` (wire 3.2): the permit in this slot, if it has this token."""
    return {"op": "release", "name": name, "token": token, "slot": slot}


class Locks:
    """`queen.locks`: for tools and tests. A program holds a lock by its handle, `queen.lock(...)`."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def batch(
        self, operations: Iterable[Mapping[str, Any]], *, seconds: float = ANSWER_SECONDS
    ) -> list[LockResult]:
        """Several independent operations, each on another name; one answer for each, in order.

        An acquire and a renew that name their owner, and a release, may be sent again; the others are not.
        """
        ops = list(operations)
        if not ops:
            return []
        repeatable = all(op.get("op") in ("get", "release") or "owner" in op for op in ops)
        answer = await self._caller.call(
            "POST", PATH, {"operations": ops}, repeatable=repeatable, seconds=min(seconds, ANSWER_SECONDS)
        )
        return [LockResult(one) for one in results(answer, len(ops), "lock operations")]

    async def acquire(self, name: str, *, ttl: Duration, owner: str | None = None, limit: int = 1) -> LockResult:
        """Take a permit, if one of `limit` is free: `slot`, `token` and `guard`, or who holds them."""
        return (await self.batch((acquire_op(name, whole_seconds(ttl, "ttl"), owner, limit),)))[0]

    async def renew(
        self, name: str, *, token: int, ttl: Duration, slot: int = 0, owner: str | None = None
    ) -> LockResult:
        """Replace the rest of a permit's lifetime; the token changes."""
        return (await self.batch((renew_op(name, token, slot, whole_seconds(ttl, "ttl"), owner),)))[0]

    async def release(self, name: str, *, token: int, slot: int = 0) -> LockResult:
        """Give a permit back."""
        return (await self.batch((release_op(name, token, slot),)))[0]

    async def get(self, name: str) -> LockResult:
        """Who holds a lock or semaphore: `held` and `holders`."""
        return (await self.batch(({"op": "get", "name": name},)))[0]

"""The vectors of wire-kv-locks-timers-transactions.md, section 10, that are marked P; each under its number."""

from __future__ import annotations

import asyncio
import os
import time
from datetime import datetime, timedelta
from typing import Any

import pytest
from crash.stopwatch import Stopwatch
from queen import Queen
from queen.errors import LockNotHeldError


async def vector_01_values(queen: Queen) -> None:
    """Every kind of value comes back, and is found."""
    for place, value in enumerate([None, False, 0, "", [], {"a": {"b": [1, None]}}]):
        assert await queen.kv.put("v01", f"k{place}", value, forever=True)
        got = await queen.kv.get("v01", f"k{place}")
        assert got
        assert (got["value"], got["expiresAt"]) == (value, None)


async def vector_02_stale_expect(queen: Queen) -> None:
    """The loser is falsy, with the current value and version."""
    first = await queen.kv.put("v02", "k", 1, forever=True)
    second = await queen.kv.put("v02", "k", 2, forever=True)
    lost = await queen.kv.put("v02", "k", 3, forever=True, expect=first["version"])
    assert not lost
    assert (lost["reason"], lost["value"], lost["version"]) == ("version", 2, second["version"])


async def vector_03_expect_never_creates(queen: Queen) -> None:
    """`absent`, null, 0."""
    lost = await queen.kv.put("v03", "k", 1, forever=True, expect=5)
    assert (lost["applied"], lost["reason"], lost["value"], lost["version"]) == (False, "absent", None, 0)
    assert not await queen.kv.get("v03", "k")


async def vector_04_expect_zero(queen: Queen) -> None:
    """Refused over a live key, applied over an expired one."""
    old = await queen.kv.put("v04", "k", 1, ttl_seconds=3)
    assert (await queen.kv.put("v04", "k", 2, ttl_seconds=1, expect=0))["reason"] == "exists"
    await asyncio.sleep(3.05)
    new = await queen.kv.put("v04", "k", 3, ttl_seconds=1, expect=0)
    assert new
    assert new["version"] > old["version"]


async def vector_06_incr(queen: Queen) -> None:
    """From nothing, past max, and over a text."""
    made = await queen.kv.incr("v06", "n", delta=7, max=10, forever=True)
    assert (made["value"], made["version"] > 0) == (7, True)
    over = await queen.kv.incr("v06", "n", delta=7, max=10, forever=True)
    assert (over["reason"], over["value"], over["version"]) == ("limit", 7, made["version"])
    await queen.kv.put("v06", "s", "text", forever=True)
    odd = await queen.kv.incr("v06", "s", delta=1, forever=True)
    assert (odd["reason"], odd["value"]) == ("type", 0)


async def vector_18_to_20_a_lock(queen: Queen) -> None:
    """Held by one, found again by its owner, renewed, lost with a stale token, released."""
    mine = await queen.locks.acquire("v18", ttl_seconds=30, owner="a")
    refused = await queen.locks.acquire("v18", ttl_seconds=30, owner="b")
    assert not refused
    assert (refused["reason"], refused["holders"]) == ("held", [{"slot": 0, "owner": "a"}])
    again = await queen.locks.acquire("v18", ttl_seconds=30, owner="a")
    assert (again["token"], again["already"]) == (mine["token"], True)
    renewed = await queen.locks.renew("v18", token=mine["token"], ttl_seconds=30, owner="a")
    assert renewed["token"] > mine["token"]
    assert not (await queen.kv.check("queen-locks", "v18#0", expect=mine["token"]))["applied"]
    assert await queen.locks.renew("v18", token=mine["token"], ttl_seconds=30, owner="a")
    lost = await queen.locks.renew("v18", token=mine["token"], ttl_seconds=30)
    assert (lost["renewed"], lost["reason"]) == (False, "lost")
    assert not await queen.locks.release("v18", token=mine["token"])
    (holder,) = (await queen.locks.get("v18"))["holders"]
    assert (await queen.kv.get("queen-locks", "v18#0"))["version"] == holder["token"]
    assert await queen.locks.release("v18", token=holder["token"])
    assert not await queen.locks.get("v18")


async def vector_20_expiry(queen: Queen) -> None:
    """After it, renew and release are lost and nobody holds it."""
    mine = await queen.locks.acquire("v20", ttl_seconds=1, owner="a")
    await asyncio.sleep(1.05)
    renewed = await queen.locks.renew("v20", token=mine["token"], ttl_seconds=1, owner="a")
    assert (renewed["renewed"], renewed["holders"]) == (False, [])
    released = await queen.locks.release("v20", token=mine["token"])
    assert (released["released"], released["holders"]) == (False, [])
    assert (await queen.locks.get("v20"))["held"] is False


async def vector_21_a_semaphore(queen: Queen) -> None:
    """Two slots, a third that waits for its turn, tokens that rise."""
    first, second, third = (queen.semaphore("v21", 2, ttl_seconds=30) for _ in range(3))
    assert await first.acquire()
    assert await second.acquire()
    assert {first.slot, second.slot} == {0, 1}
    assert not await third.acquire()
    before = (first.token or 0, second.token or 0)

    async def later() -> None:
        await asyncio.sleep(0.3)
        await first.release()

    waiting = asyncio.ensure_future(later())
    assert await third.acquire(wait=5)
    await waiting
    assert (third.token or 0) > max(before)


async def vector_25_a_timer_fires(queen: Queen) -> None:
    """Not early, soon after, with the promised ids, in its partition; then it is in no list."""
    made = await queen.timers.schedule("v25", "k", {"n": 1}, delay_ms=300, partition="p", txn="t25")
    assert (made["status"], made["txn"]) == ("scheduled", "t25")
    started, watch = time.monotonic(), Stopwatch(int(os.environ["SERVER_PID"]))
    (message,) = await queen.queue("v25").timeout_millis(5000).pop()
    assert time.monotonic() - started > 0.25
    assert watch.seconds() < 0.8
    assert (message["id"], message["transactionId"]) == (made["messageId"], "t25")
    assert (message["partition"], message["data"]) == ("p", {"n": 1})
    assert datetime.fromisoformat(message["createdAt"]) >= datetime.fromisoformat(made["deliverAt"])
    assert not await queen.timers.peek("v25", "k")
    assert (await queen.timers.list("v25"))["rows"] == []


async def vector_26_reschedule(queen: Queen) -> None:
    """A new message id, the old creation time, one message."""
    first = await queen.timers.schedule("v26", "k", 1, delay_ms=60_000)
    created = (await queen.timers.peek("v26", "k"))["createdAt"]
    second = await queen.timers.schedule("v26", "k", 2, delay_ms=200)
    assert (second["status"], second["messageId"] == first["messageId"]) == ("rescheduled", False)
    assert (await queen.timers.peek("v26", "k"))["createdAt"] == created
    messages = await queen.queue("v26").batch(10).timeout_millis(5000).pop()
    assert [message["data"] for message in messages] == [2]


async def vector_27_cancel(queen: Queen) -> None:
    """With the stored txn; again, with the caller's; odd keys through the path; the fluent builder."""
    made = await queen.timers.schedule("v27", "k", 1, delay_ms=60_000)
    done = await queen.timers.cancel("v27", "k", txn="mine")
    assert done
    assert (done["status"], done["txn"]) == ("cancelled", made["txn"])
    gone = await queen.timers.cancel("v27", "k", txn="mine")
    assert (gone["status"], gone["txn"]) == ("absent", "mine")
    for key in ("order/9137 x?", "a//b", "/lead", "tail/", "%41", "a+b", "é😀"):
        await queen.timer("v27").key(key).payload({"k": key}).after(timedelta(minutes=30)).schedule()
        assert (await queen.timers.peek("v27", key))["timerKey"] == key
        assert (await queen.timers.cancel("v27", key))["status"] == "cancelled"
    await queen.timers.schedule("v27/x", "k", 1, delay_ms=60_000)
    assert (await queen.timers.list("v27/x", limit=1))["rows"][0]["queue"] == "v27/x"


async def vector_31_a_replaced_holder(queen: Queen) -> None:
    """A's commit is falsy and shows B's row; A's handle is lost; nothing was pushed."""
    lost: list[str] = []
    mine = queen.lock("v31", ttl_seconds=30, auto_renew=False).on_lost(lost.append)
    theirs = queen.lock("v31", ttl_seconds=30)
    assert await mine.acquire()
    assert await queen.transaction().guard(mine).queue("v31").push([{"data": 1}]).commit()
    await queen.kv.delete("queen-locks", "v31#0")  # what its expiry would have done
    assert await theirs.acquire()
    result = await queen.transaction().guard(mine).queue("v31").push([{"data": 2}]).commit()
    assert not result
    assert (result["reason"], result["kvReason"]) == ("kv_precondition", "version")
    assert (result["value"]["owner"], result["failedIndex"]) == (theirs.owner, 1)
    assert mine.lost.is_set()
    assert lost == ["guard"]
    assert await queen.transaction().guard(theirs).queue("v31").push([{"data": 3}]).commit()
    assert [m["data"] for m in await queen.queue("v31").batch(10).pop()] == [1, 3]
    with pytest.raises(LockNotHeldError):
        await queen.transaction().guard(mine).queue("v31").push([{"data": 4}]).commit()


async def vector_33_a_renewal_beside_a_commit(queen: Queen) -> None:
    """The token moves after the bundle was built: the SDK sees that it was its own renewal, and sends it again."""
    lock = queen.lock("v33", ttl_seconds=30)
    assert await lock.acquire()
    answers: list[Any] = []
    post = queen._http_client.post

    async def renewed_first(path: str, *args: Any, **options: Any) -> Any:
        if path != "/api/v1/transaction":
            return await post(path, *args, **options)
        if not answers:
            assert await lock.renew()
        answers.append(await post(path, *args, **options))
        return answers[-1]

    queen._http_client.post = renewed_first
    assert await queen.transaction().guard(lock).queue("v33").push([{"data": 1}]).commit()
    refused, committed = answers
    assert (refused["kvReason"], refused["value"]["owner"]) == ("version", lock.owner)
    assert committed["success"]
    assert lock.held
    assert [m["data"] for m in await queen.queue("v33").batch(10).pop()] == [1]

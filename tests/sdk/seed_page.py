"""The Python examples of the vendor's page on keys, locks and timers, word for word, in this order."""

from __future__ import annotations

from datetime import timedelta

from queen import Queen


async def guarded_report(queen: Queen) -> None:
    """The lock, the guarded transaction, the release; then the figure: a holder that was replaced commits nothing."""
    # fmt: off
    lock = queen.lock("daily-report", ttl_seconds=30)  # a lease with a fencing token
    if await lock.acquire():                           # False: another worker has it
        try:
            await (
                queen.transaction()
                .guard(lock)                           # commits only while the lock is ours
                .queue("reports")
                .push([{"transactionId": "report-2026-10-22", "data": {"day": "2026-10-22"}}])
                .commit()
            )
        finally:
            await lock.release()
    # fmt: on
    (message,) = await queen.queue("reports").batch(10).pop()
    assert message["transactionId"] == "report-2026-10-22"
    assert message["data"] == {"day": "2026-10-22"}
    assert not (await queen.locks.get("daily-report"))["held"]


async def keys(queen: Queen) -> None:
    """A lifetime on every write, a conditional write, a counter with a ceiling."""
    # fmt: off
    # Every write names its lifetime: a ttl, or forever.
    await queen.kv.put("carts", "customer-42", {"items": 3}, ttl=timedelta(days=7))
    cart = await queen.kv.get("carts", "customer-42")   # {found, value, version, ...}

    # Write only if nobody wrote since we read it: the version is the condition.
    saved = await queen.kv.put("carts", "customer-42", {"items": 4},
                               ttl=timedelta(days=7), expect=cart["version"])
    print(saved["applied"])                              # False if the version moved

    # A counter with a ceiling: past max, the increment does not apply.
    hit = await queen.kv.incr("limits", "api:customer-42", delta=1, max=100,
                              ttl=timedelta(minutes=1))
    if not hit["applied"]:
        print("over the limit")                          # reason: 'limit'
    # fmt: on
    assert cart["found"]
    assert cart["value"] == {"items": 3}
    assert saved["applied"]
    assert hit["applied"]
    assert hit["value"] == 1
    late = await queen.kv.put("carts", "customer-42", {"items": 5}, ttl=timedelta(days=7), expect=cart["version"])
    assert not late["applied"]
    assert (late["reason"], late["value"], late["version"]) == ("version", {"items": 4}, saved["version"])
    over = await queen.kv.incr("limits", "api:customer-42", delta=100, max=100, ttl=timedelta(minutes=1))
    assert not over["applied"]
    assert over["reason"] == "limit"


async def the_other_operations(queen: Queen) -> None:
    """Each row of the page's table."""
    kv = queen.kv
    assert await kv.put_if_absent("table", "a", 1, forever=True)
    assert not await kv.put_if_absent("table", "a", 2, forever=True)
    await kv.put("table", "b", 2, forever=True)
    many = await kv.get_many("table", ["b", "a", "z"])
    assert [row["key"] for row in many["rows"]] == ["a", "b"]
    assert many["missing"] == ["z"]
    page = await kv.get_prefix("table", "a")
    assert [row["value"] for row in page["rows"]] == [1]
    assert await kv.check("table", "a", expect=page["rows"][0]["version"])
    assert await kv.delete("table", "a")
    assert not (await kv.get("table", "a"))["found"]


async def timers_move_and_cancel(queen: Queen) -> None:
    """Scheduling a key again moves it; a fire is a message like any other; `absent` may mean that it fired."""
    queue = queen.queue("seed-reminders").partition("order-7")
    first = await queen.timers.schedule(
        "seed-reminders", "order-7", {"n": 1}, delay=timedelta(hours=24), partition="order-7"
    )
    assert first["status"] == "scheduled"
    moved = await queen.timers.schedule("seed-reminders", "order-7", {"n": 2}, delay_ms=200, partition="order-7")
    assert moved["status"] == "rescheduled"
    (message,) = await queue.timeout_millis(3000).pop()
    assert (message["data"], message["id"]) == ({"n": 2}, moved["messageId"])
    late = await queen.timers.cancel("seed-reminders", "order-7", txn=moved["txn"])
    assert (late["status"], late["txn"]) == ("absent", moved["txn"])
    assert not late


async def a_semaphore(queen: Queen) -> None:
    """`queen.semaphore(name, n)` allows n holders at once."""
    handles = [queen.semaphore("seed-gpu", 2, ttl_seconds=30) for _ in range(3)]
    assert [await handle.acquire() for handle in handles] == [True, True, False]
    await handles[0].release()
    assert await handles[2].acquire()

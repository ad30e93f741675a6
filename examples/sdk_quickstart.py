"""The published Python SDK of Queen MQ (queen-mq, asyncio), unchanged, against `queen-actors serve`.

    python examples/sdk_quickstart.py

It holds a lock, commits a report under its guard, keeps a cart by version, counts up to a ceiling, schedules a
reminder, and consumes. Consume with `.each()` (or `.batch(1)`): without either the SDK hands its handler a list.
"""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime, timedelta
from typing import Any

from queen import Queen

URL = os.environ.get("QUEEN_URL", "http://127.0.0.1:6632")
NOW = datetime.now(UTC).isoformat(timespec="milliseconds")


async def report(queen: Queen) -> None:
    lock = queen.lock("daily-report", ttl_seconds=30)  # a lease with a fencing token
    if await lock.acquire():  # False: another worker has it
        try:
            committed = await (
                queen.transaction()
                .guard(lock)  # commits only while the lock is ours
                .queue("daily-reports")
                .push([{"transactionId": f"report-{NOW}", "data": {"day": "today"}}])
                .commit()
            )
            print(f"report committed: {bool(committed)}")
        finally:
            await lock.release()


async def cart(queen: Queen) -> None:
    week = timedelta(days=7)
    await queen.kv.put("carts", "customer-42", {"items": 3}, ttl=week)
    seen = await queen.kv.get("carts", "customer-42")
    saved = await queen.kv.put("carts", "customer-42", {"items": 4}, ttl=week, expect=seen["version"])
    stale = await queen.kv.put("carts", "customer-42", {"items": 5}, ttl=week, expect=seen["version"])
    print(f"cart saved: {saved['applied']}, by the stale version: {stale['applied']} ({stale['reason']})")


async def limit(queen: Queen) -> None:
    for _ in range(4):
        hit = await queen.kv.incr("limits", "api:customer-42", delta=1, max=3, ttl=timedelta(minutes=1))
    print(f"fourth of three allowed: {hit['applied']} ({hit['reason']})")


async def reminder(queen: Queen) -> None:
    await (
        queen.timer("daily-reports")
        .key("reminder")
        .payload({"day": "tomorrow"})
        .after(timedelta(milliseconds=200))
        .schedule()
    )


async def consume(queen: Queen) -> None:
    async def handle(message: Any) -> None:
        print(f"consumed: {message['data']['day']}")

    # Both messages: the report, and the reminder when it fires
    await queen.queue("daily-reports").group("readers").subscription_mode("all").limit(2).each().consume(handle)


async def main() -> None:
    async with Queen(URL) as queen:
        await report(queen)
        await cart(queen)
        await limit(queen)
        await reminder(queen)
        await asyncio.wait_for(consume(queen), 20)


if __name__ == "__main__":
    asyncio.run(main())

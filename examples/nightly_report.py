"""One worker at a time: a nightly report on several machines, written once.

    python examples/nightly_report.py 2026-10-22 & python examples/nightly_report.py 2026-10-22

The lock lets one of them work. The guard makes sure of it: a holder that was paused for longer than the lock's lifetime
cannot commit after another one has taken over.
"""

from __future__ import annotations

import os
import sys

import trio

from queen_actors import connect

URL = os.environ.get("QUEEN_URL", "http://127.0.0.1:6632")


async def main(day: str) -> None:
    async with connect(URL) as queen:
        lock = queen.lock("daily-report", ttl_seconds=30)  # a lease with a fencing token, renewed while we hold it
        if not await lock.acquire():
            print("another worker has it")
            return
        try:
            committed = await (
                queen.transaction()
                .guard(lock)  # commits only while the lock is ours
                .once("reports", day, forever=True)  # and only the first time for this day
                .queue("reports")
                .push([{"day": day}])
                .commit()
            )
            print(f"the report of {day} is written" if committed else f"not written: {committed.kv_reason}")
        finally:
            await lock.release()


if __name__ == "__main__":
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else "2026-10-22")

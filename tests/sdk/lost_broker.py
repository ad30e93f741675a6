"""Vector 24: it needs a server that it may stop."""

from __future__ import annotations

import asyncio
import os
import signal

from crash.stopwatch import Stopwatch
from queen import Queen


async def a_handle_outlives_its_lifetime_and_then_the_broker(queen: Queen) -> None:
    """Renewed in the background for three lifetimes of 2 s; then the broker is killed: `on_lost("expired")` in 2 s.

    By its default the SDK asks three times in 3 s, and looks at its clock only after that.
    """
    reasons: list[str] = []
    impatient = Queen({"urls": queen._config["urls"], "retry_attempts": 1})
    lock = impatient.lock("v24", ttl_seconds=2).on_lost(reasons.append)
    assert await lock.acquire()
    token = lock.token or 0
    rival = queen.lock("v24", ttl_seconds=2)
    for _ in range(6):
        await asyncio.sleep(1)
        assert lock.held
        assert not await rival.acquire()
    assert (lock.token or 0) > token
    os.kill(int(os.environ["SERVER_PID"]), signal.SIGKILL)
    watch = Stopwatch()
    await asyncio.wait_for(lock.lost.wait(), 60)
    assert watch.seconds() < 2.2
    assert reasons == ["expired"]
    await impatient.close()

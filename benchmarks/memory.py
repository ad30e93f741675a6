"""What an idle partition costs: bytes of Python objects for each of many that the broker knows and nobody uses."""

from __future__ import annotations

import gc
import tempfile
import time
import tracemalloc
from typing import Any

import trio

from queen_actors.actors.clock import TrioClock
from queen_actors.broker import running
from queen_actors.config import Settings
from queen_actors.domain.partition import PushItem
from queen_actors.domain.queue import Configure
from queen_actors.storage import store_of
from queen_actors.values import SECOND

COUNT, BATCH = 100_000, 1_000


def idle_partitions(payload: bytes = b'{"id":1}') -> dict[str, Any]:
    """Each partition got one message, which lies in a segment; the broker is opened again when all windows are over."""
    with tempfile.TemporaryDirectory(prefix="queen-actors-bench-") as directory:
        trio.run(_fill, directory, payload)
        return trio.run(_weigh, directory)


async def _fill(directory: str, payload: bytes) -> None:
    settings = Settings(data=directory)
    async with running(store_of(settings), settings) as broker:
        # Without a dedup window: ids that must be remembered are the messages' cost, not the partition's
        await broker.configure(Configure("orders", {"dedup_window_seconds": 0}))
        for first in range(0, COUNT, BATCH):
            await broker.push([PushItem("orders", f"customer-{n}", payload) for n in range(first, first + BATCH)])
        await broker.seal()


async def _weigh(directory: str) -> dict[str, Any]:
    settings = Settings(data=directory)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    later = TrioClock(time.time_ns() // 1000 + 7200 * SECOND)
    async with running(store_of(settings), settings, clock=later) as broker:
        await broker.passivate()
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
        statistics = broker.statistics()
    tracemalloc.stop()
    return {
        "partitions": statistics.partitions,
        "active": statistics.partitions_active,
        "bytes_each": round((after - before) / statistics.partitions),
    }

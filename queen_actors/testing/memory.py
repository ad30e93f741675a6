"""A broker in memory for the tests of programs that use one: it can be restarted, crashed, and made to fail."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import trio

from queen_actors.actors.clock import RandomIds, TrioClock
from queen_actors.client import Queen, open_broker
from queen_actors.storage.memory import Faults, MemoryStore

START = 1_700_000_000_000_000
"""When it is, for a broker whose run starts at Trio's time 0: 2023-11-14, microseconds since the epoch."""


class MemoryLog:
    """What a broker in memory has made durable. It outlives the broker, as a data directory would.

    `faults` are switches that a test sets while a broker runs: `full` refuses writes as a full disk does (507), `fail`
    lets the next one fail so that nobody knows what became of it, which ends the broker (`StorageFailed`), and
    `latency` is how many seconds a write takes.
    """

    def __init__(self) -> None:
        self.faults = Faults()
        self._store = MemoryStore(retain=True, faults=self.faults)
        self._opened = 0

    def crash(self) -> None:
        """The process of the broker dies here: what is not durable is gone. The block of `memory_broker` ends with
        StorageFailed at the next write; until then reads of what is in memory may still be answered."""
        self._store.crash()

    def _next(self) -> MemoryStore:
        self._store = self._store.reopen()
        self._opened += 1
        return self._store


@asynccontextmanager
async def memory_broker(log: MemoryLog | None = None, *, seed: int = 0, **settings: Any) -> AsyncGenerator[Queen]:
    """A broker in memory, and a client of it, for as long as the block lasts; a later one on the same `log` finds all
    that this one has answered. Further keywords are the fields of `queen_actors.Settings`.

    It uses no thread and no file, takes its time from Trio's clock, and its ids from `seed`: on a `MockClock` leases
    run out and timers fire as fast as the test can go, and in `testing.run` a test is the same each time.
    """
    log = MemoryLog() if log is None else log
    store = log._next()  # pyright: ignore[reportPrivateUsage]
    clock = TrioClock(START + int(trio.current_time() * 1_000_000))
    ids = RandomIds(seed << 16 | log._opened)  # pyright: ignore[reportPrivateUsage]
    async with open_broker(store=store, clock=clock, ids=ids, **settings) as queen:
        yield queen

"""What the tests of the whole broker share: one on a virtual clock, and short words for its commands."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import trio

from queen_actors.actors.clock import RandomIds, TrioClock
from queen_actors.broker import Broker, running
from queen_actors.config import Settings
from queen_actors.domain.cursor import Ack, PopReply, PopRequest
from queen_actors.domain.effects import CursorPut, Record
from queen_actors.domain.partition import PushItem
from queen_actors.domain.queue import Configure
from queen_actors.domain.timers import Schedule
from queen_actors.storage.memory import MemoryStore

SECOND = 1_000_000
WALL = 1_700_000_000 * SECOND
QUEUE_MODE = "__QUEUE_MODE__"
T = TypeVar("T")


@asynccontextmanager
async def started(store: MemoryStore | None = None, *, seed: int = 1, **settings: Any) -> AsyncIterator[Broker]:
    """A broker on `store` (one that retains what it is given), with seeded ids."""
    store = MemoryStore(retain=True) if store is None else store
    clock, ids = TrioClock(WALL + int(trio.current_time() * SECOND)), RandomIds(seed)
    async with running(store, Settings(**settings), clock=clock, ids=ids) as broker:
        yield broker


async def push(broker: Broker, *txns: str, queue: str = "q", partition: str = "p", payload: bytes = b"1") -> None:
    outcomes = await broker.push([PushItem(queue, partition, payload, txn=txn) for txn in txns])
    assert {outcome.status for outcome in outcomes} <= {"queued", "duplicate"}


async def pop(broker: Broker, queue: str | None = "q", *, wait: float = 0, **fields: Any) -> PopReply:
    """`wait` in seconds."""
    return await broker.pop(PopRequest(queue=queue, wait=int(wait * SECOND), **fields))


async def ack(broker: Broker, reply: PopReply, status: str = "completed", *, fenced: bool = True) -> list[bool]:
    """Acknowledge everything that was popped."""
    lease = reply.lease_id if fenced else None
    acks = [Ack(r.txn, claim.pid, reply.group, status, lease) for claim in reply.claims for r in claim.records]
    return [outcome.success for outcome in await broker.ack(acks)]


async def configure(broker: Broker, queue: str = "q", **options: Any) -> None:
    await broker.configure(Configure(queue, options))


async def schedule(broker: Broker, key: str, delay: float, *, txn: str | None = None, queue: str = "q") -> None:
    await broker.timers([Schedule(queue, key, b'"timed"', int(delay * SECOND), txn or key, "p")])


def txns(reply: PopReply) -> list[str]:
    return [record.txn for record in records(reply)]


def records(reply: PopReply) -> list[Record]:
    return [record for claim in reply.claims for record in claim.records]


def cursor(broker: Broker, group: str = QUEUE_MODE, queue: str = "q", partition: str = "p") -> CursorPut | None:
    found = broker._core.directory.find(queue, partition)
    return None if found is None else found.cursors.get(group)


async def during(do: Callable[[], Awaitable[T]], then: Callable[[], Awaitable[Any]], after: float = 1) -> T:
    """Start `do`, and `after` seconds later `then`; what `do` came to."""
    found: list[T] = []

    async def run() -> None:
        found.append(await do())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await trio.sleep(after)
        await then()
    return found[0]

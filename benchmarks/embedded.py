"""The embedded face: the broker's typed operations in this process, over a durable store."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Any

from faces import LIFETIME_SECONDS, WAIT_SECONDS, Client, Consumer, Message, hold

from queen_actors.broker import Broker, running
from queen_actors.config import Settings
from queen_actors.domain.cursor import Ack, PopRequest
from queen_actors.domain.kv import Get, Incr, Put, WriteResult
from queen_actors.domain.locks import Acquire, Release
from queen_actors.domain.partition import PushItem
from queen_actors.domain.timers import Schedule
from queen_actors.domain.transaction import Committed, Transaction
from queen_actors.storage import store_of
from queen_actors.values import QUEUE_MODE, SECOND


class EmbeddedClient:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def push(self, queue: str, partitions: Sequence[str], payload: bytes) -> None:
        await self._broker.push([PushItem(queue, partition, payload) for partition in partitions])

    async def take(self, queue: str) -> Message:
        reply = await self._broker.pop(PopRequest(queue=queue, batch=1, wait=WAIT_SECONDS * SECOND))
        (claim,) = reply.claims
        return Message(claim.records[0].txn, str(claim.pid), reply.lease_id)

    async def put(self, key: str, value: bytes) -> None:
        await self._broker.kv([Put("a", key, value, LIFETIME_SECONDS * SECOND)])

    async def get(self, key: str) -> None:
        await self._broker.kv([Get("a", key)])

    async def cas(self, key: str, version: int, value: bytes) -> int:
        written = await self._broker.kv([Put("a", key, value, LIFETIME_SECONDS * SECOND, expect=version)])
        return _version(written)

    async def incr(self, key: str, ceiling: int | None) -> None:
        bound = None if ceiling is None else Decimal(ceiling)
        await self._broker.kv([Incr("n", key, Decimal(1), LIFETIME_SECONDS * SECOND, max=bound)])

    async def acquire(self, name: str) -> int:
        result = await self._broker.acquire(Acquire(name, 30 * SECOND), WAIT_SECONDS * SECOND)
        hold(result.ok)
        return result.token

    async def release(self, name: str, token: int) -> None:
        (result,) = await self._broker.locks([Release(name, token)])
        hold(result.ok)

    async def step(self, message: Message, key: str, version: int, partition: str, payload: bytes) -> int:
        reply = await self._broker.transaction(
            Transaction(
                steps=(
                    Ack(message.txn, int(message.pid), QUEUE_MODE, lease_id=message.lease),
                    PushItem("out", partition, payload),
                ),
                kv=(Put("st", key, payload, LIFETIME_SECONDS * SECOND, expect=version, required=True),),
            )
        )
        hold(isinstance(reply, Committed))
        assert isinstance(reply, Committed)
        return _version(reply.kv)

    async def schedule(self, queue: str, delays: Sequence[tuple[str, int]], payload: bytes) -> dict[str, float]:
        results = await self._broker.timers([Schedule(queue, name, payload, ms * 1000, name) for name, ms in delays])
        return {str(result.txn): (result.deliver_at or 0) / SECOND for result in results}


class EmbeddedConsumer:
    def __init__(self, broker: Broker, request: PopRequest) -> None:
        self._broker = broker
        self._request = request

    async def receive(self) -> Sequence[Message]:
        reply = await self._broker.pop(self._request)
        return [
            Message(record.txn, str(claim.pid), reply.lease_id) for claim in reply.claims for record in claim.records
        ]

    async def ack(self, messages: Sequence[Message]) -> int:
        group = self._request.group
        outcomes = await self._broker.ack([Ack(m.txn, int(m.pid), group, lease_id=m.lease) for m in messages])
        hold(all(outcome.success for outcome in outcomes))
        return len(messages)


class EmbeddedFace:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    @asynccontextmanager
    async def clients(self, count: int) -> AsyncGenerator[list[Client]]:
        yield [EmbeddedClient(self._broker) for _ in range(count)]

    @asynccontextmanager
    async def producer(self) -> AsyncGenerator[Client]:
        yield EmbeddedClient(self._broker)

    @asynccontextmanager
    async def consumer(self, queue: str, group: str | None, *, batch: int, partitions: int) -> AsyncGenerator[Consumer]:
        yield EmbeddedConsumer(
            self._broker,
            PopRequest(
                queue=queue,
                group=group or QUEUE_MODE,
                batch=batch,
                partitions=partitions,
                wait=WAIT_SECONDS * SECOND,
                subscription_mode="all",
            ),
        )


def _version(results: Any) -> int:
    (written,) = results
    hold(isinstance(written, WriteResult) and written.applied)
    return int(written.version)


@asynccontextmanager
async def embedded(directory: str) -> AsyncGenerator[EmbeddedFace]:
    """A broker over `directory` in this process."""
    settings = Settings(data=directory)
    async with running(store_of(settings), settings) as broker:
        yield EmbeddedFace(broker)

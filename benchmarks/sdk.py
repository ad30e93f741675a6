"""The face of the published Python SDK of Queen MQ, on asyncio, with a `queen-actors serve` in a process of its own."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from faces import LIFETIME_SECONDS, POLL_SECONDS, WAIT_SECONDS, Client, Consumer, Message, hold
from processes import broker
from queen import Queen

from queen_actors.values import SECOND, parse_instant


class SdkClient:
    """Its documented calls. A payload is decoded once, before the measurement would notice."""

    def __init__(self, queen: Any) -> None:
        self._queen = queen
        self._payloads: dict[bytes, Any] = {}

    def _value(self, payload: bytes) -> Any:
        if payload not in self._payloads:
            self._payloads[payload] = json.loads(payload)
        return self._payloads[payload]

    async def push(self, queue: str, partitions: Sequence[str], payload: bytes) -> None:
        """One call for each partition: the SDK pushes to one at a time."""
        value = self._value(payload)
        for partition in dict.fromkeys(partitions):
            items = [{"data": value}] * partitions.count(partition)
            await self._queen.queue(queue).partition(partition).push(items)

    async def take(self, queue: str) -> Message:
        (message,) = await self.receive(queue, None, 1, 1)
        return message

    async def receive(self, queue: str, group: str | None, batch: int, partitions: int) -> list[Message]:
        asked = self._queen.queue(queue).batch(batch).partitions(partitions).wait(True)
        asked = asked.timeout_millis(WAIT_SECONDS * 1000)
        if group is not None:
            asked = asked.group(group).subscription_mode("all")
        return [Message(m["transactionId"], m["partitionId"], m["leaseId"]) for m in await asked.pop()]

    async def ack(self, messages: Sequence[Message], group: str | None) -> None:
        acks = [
            {"transactionId": message.txn, "partitionId": message.pid, "leaseId": message.lease} for message in messages
        ]
        reply = await self._queen.ack(acks, True, {"group": group} if group is not None else {})
        hold(reply["success"], reply)

    async def put(self, key: str, value: bytes) -> None:
        await self._queen.kv.put("a", key, self._value(value), ttl_seconds=LIFETIME_SECONDS)

    async def get(self, key: str) -> None:
        await self._queen.kv.get("a", key)

    async def cas(self, key: str, version: int, value: bytes) -> int:
        put = await self._queen.kv.put("a", key, self._value(value), ttl_seconds=LIFETIME_SECONDS, expect=version)
        hold(bool(put), put)
        return int(put["version"])

    async def incr(self, key: str, ceiling: int | None) -> None:
        await self._queen.kv.incr("n", key, delta=1, max=ceiling, ttl_seconds=LIFETIME_SECONDS)

    async def acquire(self, name: str) -> int:
        while True:
            got = await self._queen.locks.acquire(name, ttl_seconds=30)
            if got:
                return int(got["token"])
            await asyncio.sleep(POLL_SECONDS)

    async def release(self, name: str, token: int) -> None:
        hold(bool(await self._queen.locks.release(name, token=token)))

    async def step(self, message: Message, key: str, version: int, partition: str, payload: bytes) -> int:
        value = self._value(payload)
        taken = {"transactionId": message.txn, "partitionId": message.pid, "leaseId": message.lease}
        reply = await (
            self._queen.transaction()
            .ack(taken, "completed")
            .kv.put("st", key, value, ttl_seconds=LIFETIME_SECONDS, expect=version, required=True)
            .queue("out")
            .partition(partition)
            .push([{"data": value}])
            .commit()
        )
        hold(reply["success"], reply)
        return int(reply["results"][-1]["version"])

    async def schedule(self, queue: str, delays: Sequence[tuple[str, int]], payload: bytes) -> dict[str, float]:
        timers = self._queen.timers
        encoded = b64encode(payload).decode()
        operations = [
            {"op": "schedule", "queue": queue, "timerKey": name, "payload": encoded, "delayMs": ms, "txn": name}
            for name, ms in delays
        ]
        return {result["txn"]: parse_instant(result["deliverAt"]) / SECOND for result in await timers.batch(operations)}


class SdkConsumer:
    def __init__(self, client: SdkClient, queue: str, group: str | None, batch: int, partitions: int) -> None:
        self._client = client
        self._ask = (queue, group, batch, partitions)

    async def receive(self) -> Sequence[Message]:
        return await self._client.receive(*self._ask)

    async def ack(self, messages: Sequence[Message]) -> int:
        await self._client.ack(messages, self._ask[1])
        return len(messages)


class SdkFace:
    """One client object for all callers, as its documentation has it; consumers have one each."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}"

    @asynccontextmanager
    async def producer(self) -> AsyncGenerator[SdkClient]:
        async with Queen(self._url) as queen:
            yield SdkClient(queen)

    @asynccontextmanager
    async def clients(self, count: int) -> AsyncGenerator[list[Client]]:
        async with self.producer() as client:
            yield [client] * count

    @asynccontextmanager
    async def consumer(self, queue: str, group: str | None, *, batch: int, partitions: int) -> AsyncGenerator[Consumer]:
        async with self.producer() as client:
            yield SdkConsumer(client, queue, group, batch, partitions)


@asynccontextmanager
async def sdk(directory: str) -> AsyncGenerator[SdkFace]:
    with broker(directory) as server:
        yield SdkFace(server.port)

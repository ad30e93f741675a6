"""The faces on the wire, HTTP and WebSocket, of a `queen-actors serve` in a process of its own.

They spell their requests with msgspec and send them over a bare connection, without a client library: what is measured
is the server, and as little as possible of a client.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
import trio
from faces import LIFETIME_SECONDS, POLL_SECONDS, WAIT_SECONDS, Client, Consumer, Message, hold
from msgspec import Raw
from processes import broker
from transports import Http, Pipeline, Socket, Transport, pipeline, upgraded, wire

from queen_actors.values import SECOND, parse_instant


class WireClient:
    """The workloads' operations as the wire spells them, over either transport."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def push(self, queue: str, partitions: Sequence[str], payload: bytes) -> None:
        items = [{"queue": queue, "partition": partition, "payload": Raw(payload)} for partition in partitions]
        await self._transport.call("push", {"items": items})

    async def take(self, queue: str) -> Message:
        (message,) = await self.pop(queue, None, 1, 1)
        return message

    async def pop(self, queue: str, group: str | None, batch: int, partitions: int) -> list[Message]:
        body: dict[str, Any] = {
            "queue": queue,
            "batch": batch,
            "partitions": partitions,
            "wait": "true",
            "timeout": WAIT_SECONDS * 1000,
            "subscriptionMode": "all",
        }
        if group is not None:
            body["consumerGroup"] = group
        reply = await self._transport.call("pop", body)
        return _messages(reply) if reply else []

    async def ack(self, messages: Sequence[Message], group: str | None) -> None:
        entries = await self._transport.call("ack", acknowledgments(messages, group))
        hold(all(entry["success"] for entry in entries))

    async def put(self, key: str, value: bytes) -> None:
        await self._key("put", "a", key, value=Raw(value), ttlSeconds=LIFETIME_SECONDS)

    async def get(self, key: str) -> None:
        await self._key("get", "a", key)

    async def cas(self, key: str, version: int, value: bytes) -> int:
        element = await self._key("put", "a", key, value=Raw(value), ttlSeconds=LIFETIME_SECONDS, expect=version)
        hold(element["applied"])
        return int(element["version"])

    async def incr(self, key: str, ceiling: int | None) -> None:
        bound = {} if ceiling is None else {"max": ceiling}
        await self._key("incr", "n", key, delta=1, ttlSeconds=LIFETIME_SECONDS, **bound)

    async def _key(self, op: str, ns: str, key: str, **fields: Any) -> Any:
        reply = await self._transport.call("kv", {"operations": [{"op": op, "ns": ns, "key": key, **fields}]})
        return reply["results"][0]

    async def acquire(self, name: str) -> int:
        while True:
            element = await self._lock(op="acquire", name=name, ttlSeconds=30)
            if element["acquired"]:
                return int(element["token"])
            await trio.sleep(POLL_SECONDS)

    async def release(self, name: str, token: int) -> None:
        element = await self._lock(op="release", name=name, token=token)
        hold(element["released"])

    async def _lock(self, **op: Any) -> Any:
        reply = await self._transport.call("locks", {"operations": [op]})
        return reply["results"][0]

    async def step(self, message: Message, key: str, version: int, partition: str, payload: bytes) -> int:
        ack = {
            "type": "ack",
            "transactionId": message.txn,
            "partitionId": message.pid,
            "leaseId": message.lease,
            "status": "completed",
        }
        push = {"type": "push", "queue": "out", "partition": partition, "payload": Raw(payload)}
        put = {
            "op": "put",
            "ns": "st",
            "key": key,
            "value": Raw(payload),
            "ttlSeconds": LIFETIME_SECONDS,
            "expect": version,
            "required": True,
        }
        reply = await self._transport.call("transaction", {"operations": [ack, push], "kv": [put]})
        hold(reply["success"])
        return int(reply["results"][-1]["version"])

    async def schedule(self, queue: str, delays: Sequence[tuple[str, int]], payload: bytes) -> dict[str, float]:
        encoded = msgspec.json.decode(msgspec.json.encode(payload))  # bytes are base64 in JSON
        ops = [
            {"op": "schedule", "queue": queue, "timerKey": name, "payload": encoded, "delayMs": ms, "txn": name}
            for name, ms in delays
        ]
        reply = await self._transport.call("timers", {"operations": ops})
        return {element["txn"]: parse_instant(element["deliverAt"]) / SECOND for element in reply["results"]}


class Feed:
    """Messages to take one at a time, pushed by one subscription that all callers of a socket share. A frame has some
    messages of one partition, and is one caller's."""

    AHEAD = 10
    """How many messages a frame may have."""

    def __init__(self, socket: Socket | Pipeline, callers: int) -> None:
        self._socket = socket
        self._callers = callers
        self._subscribed = False

    async def frame(self, queue: str) -> list[Message]:
        if not self._subscribed:
            self._subscribed = True
            terms = {"credit": 2 * self.AHEAD * self._callers, "batch": self.AHEAD, "partitions": 2 * self._callers}
            await self._socket.call("subscribe", {"sub": "s", "queue": queue, "subscriptionMode": "all", **terms})
        return _messages(await self._socket.event("messages"))


class SocketClient(WireClient):
    """What a socket does otherwise: messages are pushed to it, and locks are waited for in their line."""

    def __init__(self, socket: Socket | Pipeline, feed: Feed) -> None:
        super().__init__(socket)
        self._feed = feed
        self._taken: deque[Message] = deque()

    async def take(self, queue: str) -> Message:
        if not self._taken:
            self._taken.extend(await self._feed.frame(queue))
        return self._taken.popleft()

    async def acquire(self, name: str) -> int:
        body = {"name": name, "ttlSeconds": 30, "waitSeconds": WAIT_SECONDS}
        waited = await self._transport.call("lock.acquire", body)
        hold(waited["acquired"], waited)
        return int(waited["token"])


class PoppingConsumer:
    def __init__(self, client: WireClient, queue: str, group: str | None, batch: int, partitions: int) -> None:
        self._client = client
        self._ask = (queue, group, batch, partitions)

    async def receive(self) -> Sequence[Message]:
        return await self._client.pop(*self._ask)

    async def ack(self, messages: Sequence[Message]) -> int:
        await self._client.ack(messages, self._ask[1])
        return len(messages)


class SubscribedConsumer:
    """What has come is taken together, and settled by one request, whatever partitions it is of. Acks go out without
    waiting for their replies, which are checked, and counted, as they come: the credit bounds how many are out."""

    def __init__(self, socket: Socket, group: str | None) -> None:
        self._socket = socket
        self._group = group

    async def receive(self) -> Sequence[Message]:
        return [message for event in await self._socket.events("messages") for message in _messages(event)]

    async def ack(self, messages: Sequence[Message]) -> int:
        await self._socket.tell("ack", acknowledgments(messages, self._group))
        return self._socket.settled()


def acknowledgments(messages: Sequence[Message], group: str | None) -> dict[str, Any]:
    """The body of an ack of these messages."""
    acks = [
        {"transactionId": m.txn, "partitionId": m.pid, "status": "completed", "error": None, "leaseId": m.lease}
        for m in messages
    ]
    return {"acknowledgments": acks, "consumerGroup": group}


def _messages(reply: Any) -> list[Message]:
    return [Message(m["transactionId"], m["partitionId"], reply["leaseId"]) for m in reply["messages"]]


class HttpFace:
    """A connection for each client."""

    def __init__(self, port: int) -> None:
        self._port = port

    @asynccontextmanager
    async def clients(self, count: int) -> AsyncGenerator[list[Client]]:
        async with AsyncExitStack() as stack:
            wires = [await stack.enter_async_context(wire(self._port, alone=count == 1)) for _ in range(count)]
            yield [WireClient(Http(one)) for one in wires]

    @asynccontextmanager
    async def producer(self) -> AsyncGenerator[Client]:
        async with wire(self._port, alone=False) as one:
            yield WireClient(Http(one))

    @asynccontextmanager
    async def consumer(self, queue: str, group: str | None, *, batch: int, partitions: int) -> AsyncGenerator[Consumer]:
        async with wire(self._port, alone=False) as one:
            yield PoppingConsumer(WireClient(Http(one)), queue, group, batch, partitions)


class WebSocketFace:
    """One socket that all clients share; consumers have one each."""

    def __init__(self, port: int) -> None:
        self._port = port

    @asynccontextmanager
    async def clients(self, count: int) -> AsyncGenerator[list[Client]]:
        if count == 1:
            async with wire(self._port, alone=True) as one:
                socket = Socket(one, await upgraded(one))
                yield [SocketClient(socket, Feed(socket, 1))]
        else:
            async with pipeline(self._port) as shared:
                feed = Feed(shared, count)
                yield [SocketClient(shared, feed) for _ in range(count)]

    @asynccontextmanager
    async def producer(self) -> AsyncGenerator[Client]:
        async with wire(self._port, alone=False) as one:
            yield WireClient(Socket(one, await upgraded(one)))

    @asynccontextmanager
    async def consumer(self, queue: str, group: str | None, *, batch: int, partitions: int) -> AsyncGenerator[Consumer]:
        async with wire(self._port, alone=False) as one:
            socket = Socket(one, await upgraded(one))
            subscribe = {
                "sub": "s",
                "queue": queue,
                "group": group,
                "subscriptionMode": "all",
                "batch": batch,
                "credit": max(batch, 2 * batch if batch > 1 else 1),
                "partitions": partitions,
            }
            await socket.call("subscribe", subscribe)
            yield SubscribedConsumer(socket, group)


@asynccontextmanager
async def http(directory: str) -> AsyncGenerator[HttpFace]:
    with broker(directory) as server:
        yield HttpFace(server.port)


@asynccontextmanager
async def websocket(directory: str) -> AsyncGenerator[WebSocketFace]:
    with broker(directory) as server:
        yield WebSocketFace(server.port)

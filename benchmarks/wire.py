"""The faces on the wire, HTTP and WebSocket, of a `queen-actors serve` in a process of its own.

They send prebuilt JSON over a bare connection: what is measured is the server, and as little as possible of a client.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any, Protocol
from urllib.parse import urlencode

import msgspec
import trio
from faces import LIFETIME_SECONDS, POLL_SECONDS, WAIT_SECONDS, Client, Consumer, Message, hold
from httptools import HttpResponseParser
from msgspec import Raw
from trio_websocket import WebSocketConnection, open_websocket_url

from queen_actors.values import SECOND, parse_instant


class Transport(Protocol):
    """One connection, one request at a time."""

    async def call(self, op: str, body: dict[str, Any]) -> Any:
        """The answer's body, decoded; None when it has none."""
        ...


PATHS = {
    "push": "/api/v1/push",
    "ack": "/api/v1/ack/batch",
    "transaction": "/api/v1/transaction",
    "kv": "/api/v1/kv",
    "locks": "/api/v1/locks",
    "timers": "/api/v1/timers",
}


class Http:
    """HTTP/1.1 over one kept connection."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._parser = HttpResponseParser(self)
        self._parts: list[bytes] = []
        self._complete = False

    def on_body(self, part: bytes) -> None:
        self._parts.append(part)

    def on_message_complete(self) -> None:
        self._complete = True

    async def call(self, op: str, body: dict[str, Any]) -> Any:
        if op == "pop":
            queue = body.pop("queue")
            head = f"GET /api/v1/pop/queue/{queue}?{urlencode(body)} HTTP/1.1\r\nHost: localhost\r\n\r\n"
        else:
            return await self.post(PATHS[op], body)
        return await self._exchange(head.encode())

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        """Any other route."""
        content = msgspec.json.encode(body)
        head = (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\n\r\n"
        )
        return await self._exchange(head.encode() + content)

    async def _exchange(self, request: bytes) -> Any:
        await self._stream.send_all(request)
        self._parts, self._complete = [], False
        while not self._complete:
            received = await self._stream.receive_some()
            hold(bool(received))
            self._parser.feed_data(received)
        hold(self._parser.get_status_code() < 300, b"".join(self._parts))
        return msgspec.json.decode(b"".join(self._parts)) if self._parts else None


class WebSocket:
    """One socket. What comes between a request and its reply is kept for `event`."""

    def __init__(self, connection: WebSocketConnection) -> None:
        self._connection = connection
        self._events: deque[Any] = deque()

    async def call(self, op: str, body: dict[str, Any]) -> Any:
        await self._send("call", op, body)
        while True:
            frame = await self._receive()
            if frame.get("id") == "call":
                return frame["body"]

    async def tell(self, op: str, body: dict[str, Any]) -> None:
        """Send a request, and check its reply when it comes, while waiting for something else."""
        await self._send("told", op, body)

    async def event(self, name: str) -> Any:
        """The next event of this name; others are passed over."""
        while True:
            frame = self._events.popleft() if self._events else await self._receive()
            if frame.get("event") == name:
                return frame

    async def _send(self, ident: str, op: str, body: dict[str, Any]) -> None:
        await self._connection.send_message(msgspec.json.encode({"id": ident, "op": op, **body}).decode())

    async def _receive(self) -> Any:
        frame = msgspec.json.decode(await self._connection.get_message())
        if "event" in frame:
            self._events.append(frame)
            return {}
        hold(frame["ok"], frame)
        if frame["id"] == "told":
            hold(all(entry["success"] for entry in frame["body"]))
        return frame


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


class PoppingConsumer:
    def __init__(self, client: WireClient, queue: str, group: str | None, batch: int, partitions: int) -> None:
        self._client = client
        self._ask = (queue, group, batch, partitions)

    async def receive(self) -> Sequence[Message]:
        return await self._client.pop(*self._ask)

    async def ack(self, messages: Sequence[Message]) -> None:
        await self._client.ack(messages, self._ask[1])


class SubscribedConsumer:
    """Acks go out without waiting for their replies, which are checked as they come: the credit bounds how many."""

    def __init__(self, socket: WebSocket, group: str | None) -> None:
        self._socket = socket
        self._group = group

    async def receive(self) -> Sequence[Message]:
        return _messages(await self._socket.event("messages"))

    async def ack(self, messages: Sequence[Message]) -> None:
        await self._socket.tell("ack", acknowledgments(messages, self._group))


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
    def __init__(self, address: str) -> None:
        self._port = int(address.rpartition(":")[2])

    @asynccontextmanager
    async def _client(self) -> AsyncGenerator[WireClient]:
        async with await trio.open_tcp_stream("127.0.0.1", self._port) as stream:
            yield WireClient(Http(stream))

    def client(self) -> AbstractAsyncContextManager[Client]:
        return self._client()

    @asynccontextmanager
    async def consumer(self, queue: str, group: str | None, *, batch: int, partitions: int) -> AsyncGenerator[Consumer]:
        async with self._client() as client:
            yield PoppingConsumer(client, queue, group, batch, partitions)


class WebSocketFace:
    def __init__(self, address: str) -> None:
        self._url = f"ws{address.removeprefix('http')}/api/v1/ws"

    @asynccontextmanager
    async def _socket(self) -> AsyncGenerator[WebSocket]:
        async with open_websocket_url(self._url, subprotocols=["queen.v1"], max_message_size=1 << 24) as connection:
            yield WebSocket(connection)

    @asynccontextmanager
    async def client(self) -> AsyncGenerator[Client]:
        async with self._socket() as socket:
            yield WireClient(socket)

    @asynccontextmanager
    async def consumer(self, queue: str, group: str | None, *, batch: int, partitions: int) -> AsyncGenerator[Consumer]:
        async with self._socket() as socket:
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
async def server(directory: str) -> AsyncGenerator[str]:
    """A server over `directory` on a free port; its address."""
    command = [sys.executable, "-m", "queen_actors", "serve", "--port", "0", "--data", directory]
    async with trio.open_nursery() as nursery:
        process = await nursery.start(partial(trio.run_process, command, stdout=subprocess.PIPE, check=False))
        try:
            line = b""
            with trio.fail_after(30):
                while not line.endswith(b"\n"):
                    part = await process.stdout.receive_some()
                    hold(bool(part))
                    line += part
            found = re.search(r"http://\S+", line.decode())
            assert found is not None
            yield found[0]
        finally:
            process.terminate()


@asynccontextmanager
async def http(directory: str) -> AsyncGenerator[HttpFace]:
    async with server(directory) as address:
        yield HttpFace(address)


@asynccontextmanager
async def websocket(directory: str) -> AsyncGenerator[WebSocketFace]:
    async with server(directory) as address:
        yield WebSocketFace(address)

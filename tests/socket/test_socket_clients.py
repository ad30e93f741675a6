"""The sockets as other people's clients see them, over TCP: trio-websocket, and the `websockets` library.

On real time, so nothing here waits for long.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
from crash.stopwatch import Stopwatch
from msgspec.structs import replace
from socket_peer import acks, frame, items
from trio_websocket import ConnectionClosed, HandshakeError, WebSocketConnection, open_websocket_url
from websockets.exceptions import ConnectionClosed as WebSocketsClosed
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from queen_actors.broker import Broker, running
from queen_actors.config import Settings
from queen_actors.serve.listen import serve
from queen_actors.storage.memory import MemoryStore

SETTINGS = Settings(data=None, port=0, heartbeat_seconds=1, shutdown_seconds=3)


class Server:
    """A broker that listens on the loopback."""

    def __init__(self, broker: Broker, url: str, shutdown: trio.Event) -> None:
        self.broker = broker
        self.url = url
        self.shutdown = shutdown


@asynccontextmanager
async def serving(settings: Settings) -> AsyncIterator[Server]:
    async with running(MemoryStore(), settings) as broker, trio.open_nursery() as nursery:
        shutdown = trio.Event()
        (address,) = await nursery.start(partial(serve, broker, settings, shutdown=shutdown))
        yield Server(broker, address.replace("http://", "ws://") + "/api/v1/ws", shutdown)
        nursery.cancel_scope.cancel()


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async with serving(SETTINGS) as found:
        yield found


@pytest.fixture
async def patient() -> AsyncIterator[Server]:
    """A server whose heartbeat a busy machine does not miss."""
    async with serving(replace(SETTINGS, heartbeat_seconds=20)) as found:
        yield found


class Client:
    """Requests over trio-websocket."""

    def __init__(self, connection: WebSocketConnection) -> None:
        self.connection = connection
        self.events: list[dict[str, Any]] = []
        self._ids = 0

    async def receive(self) -> dict[str, Any]:
        with trio.fail_after(60):
            message: dict[str, Any] = json.loads(await self.connection.get_message())
            return message

    async def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        self._ids += 1
        await self.connection.send_message(json.dumps({"id": self._ids, "op": op, **fields}))
        while True:
            message = await self.receive()
            if message.get("id") == self._ids:
                return message
            self.events.append(message)

    async def event(self, kind: str) -> dict[str, Any]:
        while True:
            message = self.events.pop(0) if self.events else await self.receive()
            if message.get("event") == kind:
                return message


async def test_trio_websocket_pushes_and_consumes(server: Server) -> None:
    """Push, subscribe, get, ack, over trio-websocket."""
    async with open_websocket_url(server.url, subprotocols=["queen.v1"]) as connection:
        client = Client(connection)
        assert connection.subprotocol == "queen.v1"
        assert (await client.event("welcome"))["protocol"] == "queen.v1"
        assert (await client.ask("push", items=items("q", *range(100))))["ok"]
        await client.ask("subscribe", sub="s", queue="q")
        event = await client.event("messages")
        assert [message["data"] for message in event["messages"]] == list(range(100))
        assert all(entry["success"] for entry in (await client.ask("ack", acknowledgments=acks(event)))["body"])
    assert server.broker.statistics().leases == 0


async def test_trio_websocket_takes_large_replies(server: Server) -> None:
    """A reply of megabytes, which comes in fragments."""
    async with open_websocket_url(server.url, max_message_size=1 << 24) as connection:
        client = Client(connection)
        big = "x" * 1_000_000
        for _ in range(5):
            await client.ask("push", items=items("q", big))
        popped = await client.ask("pop", queue="q", batch=5)
        assert [message["data"] for message in popped["body"]["messages"]] == [big] * 5


async def test_websockets_library_in_a_thread(server: Server) -> None:
    """The same from an independent client: subprotocol, fragments, ping and pong, closing."""

    def talk() -> None:
        with connect(server.url, subprotocols=[Subprotocol("queen.v1")], open_timeout=60, close_timeout=60) as client:
            assert client.subprotocol == "queen.v1"
            assert json.loads(client.recv(60))["event"] == "welcome"
            text = json.dumps({"id": 1, "op": "push", "items": items("q", "é" * 1000)})
            client.send(iter([text[:5], text[5:600], text[600:]]))
            assert json.loads(client.recv(60))["ok"]
            assert client.ping().wait(60)
            client.send('{"op":"subscribe","sub":"s","queue":"q"}')
            event = json.loads(client.recv(60))
            assert event["messages"][0]["data"] == "é" * 1000
            client.send(json.dumps({"id": 2, "op": "ack", "acknowledgments": acks(event)}))
            assert json.loads(client.recv(60))["body"][0]["success"]

    with trio.fail_after(120):
        await trio.to_thread.run_sync(talk)


@pytest.mark.parametrize(("sent", "code"), [("[]", 4400), (b"{}", 1003), ("x" * (8 * 1024 * 1024 + 1), 1009)])
async def test_websockets_library_sees_our_close_codes(server: Server, sent: str | bytes, code: int) -> None:
    """A close arrives as a close, also when much was unread, and the connection is over at once."""

    def talk() -> int | None:
        with connect(server.url, open_timeout=60, close_timeout=60) as client:
            client.recv(60)
            client.send(sent)
            with pytest.raises(WebSocketsClosed) as closed:
                client.recv(60)
            assert closed.value.rcvd is not None
            return closed.value.rcvd.code

    watch = Stopwatch()
    assert await trio.to_thread.run_sync(talk) == code
    assert watch.seconds() < 4


async def test_websockets_library_is_refused(server: Server) -> None:
    """An unknown subprotocol is a 400 with a reason."""

    def talk() -> tuple[int, bytes | None]:
        with pytest.raises(InvalidStatus) as refused:
            connect(server.url, subprotocols=[Subprotocol("mqtt")], open_timeout=60)
        return refused.value.response.status_code, refused.value.response.body

    status, body = await trio.to_thread.run_sync(talk)
    assert status == 400
    assert b"queen.v1" in (body or b"")


async def test_an_idle_client_is_kept(server: Server) -> None:
    """A client that answers pings, and says nothing itself, stays; one that does not is dropped."""
    async with open_websocket_url(server.url) as connection:
        await connection.get_message()
        await trio.sleep(2.5)
        await connection.send_message('{"op":"ping"}')
        assert json.loads(await connection.get_message()) == {"event": "pong"}


HEAD = (
    b"GET /api/v1/ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


def bare(url: str) -> socket.socket:
    host, port = url.removeprefix("ws://").partition("/")[0].split(":")
    return socket.create_connection((host, int(port)), timeout=60)


def reset_when_closed(raw: socket.socket) -> None:
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def masked(message: object) -> bytes:
    return frame(1, json.dumps(message).encode())


def lease_and_vanish(url: str, *, reset: bool) -> None:
    """A consumer that takes two messages and acks the first, and is gone without a close."""
    with bare(url) as raw:
        raw.sendall(HEAD)
        received = raw.recv(65536)
        raw.sendall(masked({"op": "subscribe", "sub": "s", "queue": "q", "leaseSeconds": 60}))
        while b'"event":"messages"' not in received or not received.endswith(b"]}"):
            part = raw.recv(65536)
            assert part, received
            received += part
        event = json.loads(received[received.index(b'{"event":"messages"') :])
        raw.sendall(masked({"op": "ack", "acknowledgments": acks(event, 0)}))
        if reset:
            time.sleep(0.05)  # a reset may overtake what was sent just before it
            reset_when_closed(raw)


@pytest.mark.parametrize("reset", [False, True])
async def test_a02_a_consumer_that_vanishes(server: Server, reset: bool) -> None:
    """A02. Lease 60 s, the TCP connection closed, or reset: another consumer has the message in under a second, as
    attempt 2; the ack that was sent before counts."""
    async with open_websocket_url(server.url) as connection:
        client = Client(connection)
        await client.ask("push", items=items("q", 1, 2))
        await trio.to_thread.run_sync(partial(lease_and_vanish, server.url, reset=reset))
        watch = Stopwatch()
        await client.ask("subscribe", sub="s", queue="q")
        event = await client.event("messages")
        assert watch.seconds() < 1
        (message,) = event["messages"]
        assert (message["data"], message["deliveryAttempt"]) == (2, 2)


async def test_resets_harm_nobody(server: Server) -> None:
    """Connections that are reset at any point leave nothing behind."""

    def reset(after: bytes) -> None:
        with bare(server.url) as raw:
            raw.sendall(after)
            reset_when_closed(raw)

    async with open_websocket_url(server.url) as connection:
        client = Client(connection)
        for cut in (0, 10, 40, len(HEAD) - 1, len(HEAD)):
            for _ in range(5):
                await trio.to_thread.run_sync(reset, HEAD[:cut])
        assert (await client.ask("push", items=[]))["ok"]


async def test_a62_shutdown_with_many_sockets(patient: Server) -> None:
    """A62. Every socket gets 1001, parked pops are answered, and the server is gone within its grace period."""
    async with trio.open_nursery() as nursery:
        codes: list[int] = []
        ready = trio.Semaphore(0)

        async def hold(n: int) -> None:
            async with open_websocket_url(patient.url) as connection:
                client = Client(connection)
                await client.event("welcome")
                await client.ask("subscribe", sub="s", queue=f"q{n}")
                await connection.send_message('{"id":"parked","op":"pop","queue":"x","wait":true}')
                ready.release()
                assert (await client.receive())["status"] == 204
                with pytest.raises(ConnectionClosed) as closed:
                    await connection.get_message()
                assert closed.value.reason is not None
                codes.append(closed.value.reason.code)
                await connection._stream.aclose()  # trio-websocket 0.12 leaves it open when the server closes first

        for n in range(20):
            nursery.start_soon(hold, n)
        for _ in range(20):
            await ready.acquire()
        await trio.sleep(0.1)
        watch = Stopwatch()
        patient.shutdown.set()
    assert codes == [1001] * 20
    assert watch.seconds() < 3
    with pytest.raises((HandshakeError, OSError)):
        async with open_websocket_url(patient.url):
            raise AssertionError("the server still listens")

"""Peers that speak HTTP byte by byte, and a server to speak with: over sockets, or over streams in memory."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import h11
import trio
import trio.testing
from crash.stopwatch import Stopwatch

from queen_actors.broker import Broker, running
from queen_actors.config import Settings
from queen_actors.serve.listen import WebSocketHandler, serve
from queen_actors.storage.memory import Faults, MemoryStore

LANE = "fast"
"""The lane of a server whose test names none (conftest.py has each test run on both)."""

Response = tuple[int, dict[str, str], bytes]
"""Status, headers in lower case, body."""


class Peer:
    """One client connection."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._rest = b""

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def receive_some(self) -> bytes:
        """What comes next, behind the responses that were read."""
        if self._rest:
            data, self._rest = self._rest, b""
            return data
        return await self.stream.receive_some(65536)

    async def request(self, method: str, target: str, body: Any = None, headers: str = "") -> Response:
        """Send a request and read its response: status, headers in lower case, body."""
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        length = f"content-length: {len(data)}\r\n" if data else ""
        await self.send(f"{method} {target} HTTP/1.1\r\nhost: x\r\n{length}{headers}\r\n".encode() + data)
        return await self.response(method)

    async def response(self, method: str = "GET") -> Response:
        """The next response on the connection."""
        parser = h11.Connection(h11.CLIENT)
        parser.send(h11.Request(method=method, target="/", headers=[("host", "x")]))
        parser.send(h11.EndOfMessage())
        if self._rest:
            parser.receive_data(self._rest)
        status, headers, body = 0, {}, b""
        while True:
            event = parser.next_event()
            if event is h11.NEED_DATA:
                parser.receive_data(await self.stream.receive_some(65536))
            elif isinstance(event, h11.Response):
                status = event.status_code
                headers = {name.decode(): value.decode() for name, value in event.headers}
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                self._rest = parser.trailing_data[0]
                return status, headers, body
            elif isinstance(event, h11.ConnectionClosed):
                raise EOFError("the server closed the connection")

    async def json(self, method: str, target: str, body: Any = None) -> tuple[int, Any]:
        """The status and the decoded body, None for an empty one."""
        status, headers, data = await self.request(method, target, body)
        if not data:
            return status, None
        assert headers["content-type"] == "application/json"
        return status, json.loads(data)

    async def end(self) -> bytes:
        """What comes until the server's end of the stream, or its reset."""
        data = self._rest
        try:
            while more := await self.stream.receive_some(65536):
                data += more
        except trio.BrokenResourceError:
            pass
        return data


class MemoryListener(trio.abc.Listener[trio.abc.Stream]):
    """Accepts streams in memory."""

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[trio.abc.Stream](math.inf)

    def connect(self, *, lockstep: bool = False, wrap: Callable[[Any], trio.abc.Stream] | None = None) -> Peer:
        """A new connection; `lockstep` has no buffers: a write waits until it is read. `wrap` is put around what the
        server gets."""
        pair = trio.testing.lockstep_stream_pair() if lockstep else trio.testing.memory_stream_pair()
        self._send.send_nowait(pair[0] if wrap is None else wrap(pair[0]))
        return Peer(pair[1])

    async def accept(self) -> trio.abc.Stream:
        return await self._receive.receive()

    async def aclose(self) -> None:
        await self._receive.aclose()


class Running:
    """A server with its broker."""

    def __init__(self, broker: Broker, faults: Faults, listener: MemoryListener | None) -> None:
        self.broker = broker
        self.faults = faults
        self.listener = listener
        self.address = ""
        self.shutdown = trio.Event()
        self.stopped = trio.Event()
        self._peers: list[Peer] = []

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    async def connect(self) -> Peer:
        """A new connection, closed at the end of the test if not before."""
        if self.listener is not None:
            return self.listener.connect()
        return self.adopt(await trio.open_tcp_stream("127.0.0.1", self.port))

    def adopt(self, stream: trio.abc.Stream) -> Peer:
        self._peers.append(Peer(stream))
        return self._peers[-1]

    async def part(self) -> None:
        for peer in self._peers:
            await trio.aclose_forcefully(peer.stream)


@asynccontextmanager
async def server(
    *, memory: bool = False, websocket_handler: WebSocketHandler | None = None, **options: Any
) -> AsyncIterator[Running]:
    """A server for the length of the block; `memory` has it listen to streams in memory. It must come to its end in
    the bounds that it promises, or the test fails."""
    faults = Faults()
    settings = Settings(**{"data": None, "port": 0, "lane": LANE, **options})
    listener = MemoryListener() if memory else None
    async with running(MemoryStore(faults=faults), settings) as broker, trio.open_nursery() as nursery:
        house = Running(broker, faults, listener)

        async def run(task_status: trio.TaskStatus[list[str]]) -> None:
            listeners = None if listener is None else [listener]
            serving = partial(serve, broker, settings, shutdown=house.shutdown, listeners=listeners,
                              websocket_handler=websocket_handler)  # fmt: skip
            await serving(task_status=task_status)
            house.stopped.set()

        addresses = await nursery.start(run)
        house.address = addresses[0] if addresses else ""
        try:
            yield house
        finally:
            faults.latency = 0
            house.shutdown.set()
            began, watch = trio.current_time(), Stopwatch()
            with trio.move_on_after(settings.shutdown_seconds + 60):
                await house.stopped.wait()
            virtual = isinstance(trio.lowlevel.current_clock(), trio.testing.MockClock)
            took = trio.current_time() - began if virtual else watch.seconds()
            with trio.CancelScope(shield=True):
                await house.part()
            nursery.cancel_scope.cancel()
            assert house.stopped.is_set(), "the server did not stop"
            assert took < settings.shutdown_seconds + 3

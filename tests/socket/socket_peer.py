"""A WebSocket client for tests, on wsproto: it says exactly what it is told to, and answers pings only if it should."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import trio
import trio.testing
from loopback import Network
from wsproto import ConnectionType, WSConnection
from wsproto.connection import ConnectionState
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Ping,
    RejectConnection,
    RejectData,
    Request,
    TextMessage,
)

from queen_actors.actors.clock import RandomIds, TrioClock
from queen_actors.api import Api, Authorize
from queen_actors.api.access import open_to_all
from queen_actors.broker import Broker, running
from queen_actors.config import Settings
from queen_actors.serve.listen import serve
from queen_actors.serve.socket import Sockets
from queen_actors.storage.memory import Faults, MemoryStore


class Rejected(Exception):
    """The upgrade was refused."""

    def __init__(self, status: int, body: bytes) -> None:
        super().__init__(status, body)
        self.status = status
        self.body = body


class Peer:
    """One client connection; `received` has every JSON message in order."""

    def __init__(self, stream: trio.abc.Stream, *, answers_pings: bool = True) -> None:
        self.stream = stream
        self.answers_pings = answers_pings
        self.received: list[dict[str, Any]] = []
        self.raw_texts: list[str] = []
        self.closed: tuple[int, str] | None = None
        """The close that the server sent."""
        self.ended = trio.Event()
        """The server's end of stream."""
        self.pings = 0
        self.subprotocol: str | None = None
        self.accepted = trio.Event()
        self.rejected: Rejected | None = None
        self.reading = trio.Event()
        self.reading.set()
        self._body = b""
        self._status = 0
        self._text = ""
        self._ws = WSConnection(ConnectionType.CLIENT)
        self._news = trio.lowlevel.ParkingLot()
        self._replies = 0
        self._writing = trio.StrictFIFOLock()

    async def upgrade(
        self,
        subprotocols: Sequence[str] = ("queen.v1",),
        headers: Sequence[tuple[str, str]] = (),
        path: str = "/api/v1/ws",
        host: str = "localhost",
    ) -> None:
        extra = [(name.encode(), value.encode()) for name, value in headers]
        event = Request(host=host, target=path, subprotocols=list(subprotocols), extra_headers=extra)
        await self.stream.send_all(self._ws.send(event))

    async def run(self) -> None:
        """Read until the server's end of stream."""
        try:
            while True:
                await self.reading.wait()
                data = await self.stream.receive_some(65536)
                if not data:
                    return
                self._ws.receive_data(bytes(data))
                for event in self._ws.events():
                    await self._take(event)
                self._news.unpark_all()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            self.ended.set()
            self._news.unpark_all()
            if self.answers_pings:
                await trio.aclose_forcefully(self.stream)

    async def _take(self, event: object) -> None:
        if isinstance(event, TextMessage):
            self._text += event.data
            if event.message_finished:
                self.received.append(json.loads(self._text))
                self.raw_texts.append(self._text)
                self._text = ""
        elif isinstance(event, Ping):
            self.pings += 1
            if self.answers_pings and self._ws.state is ConnectionState.OPEN:
                await self.raw(self._ws.send(event.response()))
        elif isinstance(event, CloseConnection):
            self.closed = (int(event.code), event.reason or "")
            if self.answers_pings and self._ws.state is ConnectionState.REMOTE_CLOSING:
                await self.raw(self._ws.send(event.response()))
        elif isinstance(event, AcceptConnection):
            self.subprotocol = event.subprotocol
            self.accepted.set()
        elif isinstance(event, RejectConnection):
            self._status = event.status_code
            if not event.has_body:
                self._reject()
        elif isinstance(event, RejectData):
            self._body += event.data
            if event.body_finished:
                self._reject()

    def _reject(self) -> None:
        self.rejected = Rejected(self._status, self._body)
        self.accepted.set()

    async def raw(self, data: bytes) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async with self._writing:
                await self.stream.send_all(data)

    def frame(self, message: object) -> bytes:
        """One message as bytes to send."""
        text = message if isinstance(message, str) else json.dumps(message)
        return self._ws.send(TextMessage(data=text))

    def binary_frame(self, data: bytes) -> bytes:
        return self._ws.send(BytesMessage(data=data))

    async def say(self, *messages: object) -> None:
        """Send messages, all of them in one write."""
        await self.raw(b"".join([self.frame(message) for message in messages]))

    async def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """Send a request and wait for its reply."""
        self._replies += 1
        id = f"r{self._replies}"
        await self.say({"id": id, "op": op, **fields})
        return await self.reply(id)

    async def reply(self, id: Any) -> dict[str, Any]:
        return await self.expect(lambda message: "id" in message and message["id"] == id)

    async def event(self, kind: str, **fields: Any) -> dict[str, Any]:
        """The first event of this kind (with these fields) that was not taken yet."""
        return await self.expect(
            lambda message: message.get("event") == kind and all(message.get(k) == v for k, v in fields.items())
        )

    async def expect(self, wanted: Any, seconds: float = 60) -> dict[str, Any]:
        with trio.fail_after(seconds):
            while True:
                for place, message in enumerate(self.received):
                    if wanted(message):
                        return self.received.pop(place)
                assert not self.ended.is_set(), f"the connection ended ({self.closed}); received {self.received}"
                await self._news.park()

    async def close(self, code: int = 1000) -> None:
        """The closing handshake from this side."""
        await self.raw(self._ws.send(CloseConnection(code=code)))

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [message for message in self.received if message.get("event") == kind]


class House:
    """A broker with the whole server over it, and peers over pairs of sockets (virtual time: loopback.py)."""

    def __init__(self, broker: Broker, settings: Settings, nursery: trio.Nursery, authorize: Authorize) -> None:
        self.broker = broker
        self.settings = settings
        self.shutdown = trio.Event()
        self.api = Api(broker, settings, authorize)
        self.sockets = Sockets(self.api, broker, settings, self.shutdown, authorize)
        self.nursery = nursery
        self._authorize = authorize
        self._streams: list[trio.SocketStream] = []
        self._network = Network()
        self._listener = self._network.listen()

    async def open(self) -> None:
        """Serve; until the nursery is cancelled."""
        serving = partial(serve, self.broker, self.settings, shutdown=self.shutdown, authorize=self._authorize)
        await self.nursery.start(partial(serving, listeners=[self._listener], websocket_handler=self.sockets.serve))

    async def stream(self) -> trio.SocketStream:
        """A new connection, of which nothing has been said yet."""
        opened = await self._network.open_tcp_stream("127.0.0.1", self._listener.port)
        self._streams.append(opened)
        return opened

    def direct(self) -> trio.SocketStream:
        """One of the socket server alone, with nobody before it who judges what a request is."""
        ours, theirs = (trio.SocketStream(trio.socket.from_stdlib_socket(end)) for end in socket.socketpair())
        self._streams.append(ours)
        self.nursery.start_soon(self.sockets.serve, theirs)
        return ours

    async def close(self) -> None:
        """Close what the tests have left open at their end of the connections."""
        for stream in self._streams:
            await trio.aclose_forcefully(stream)

    async def connect(
        self, *, answers_pings: bool = True, stream: trio.abc.Stream | None = None, **upgrade: Any
    ) -> Peer:
        """A peer whose upgrade was accepted. Raises Rejected."""
        peer = Peer(stream or await self.stream(), answers_pings=answers_pings)
        self.nursery.start_soon(peer.run)
        await peer.upgrade(**upgrade)
        with trio.fail_after(60):
            await peer.accepted.wait()
        if peer.rejected is not None:
            raise peer.rejected
        return peer

    async def peer(self, **options: Any) -> Peer:
        """A connected peer that has been welcomed."""
        peer = await self.connect(**options)
        await peer.event("welcome")
        return peer


IN_MEMORY = Settings(data=None)
SOME_DAY = 1_800_000_000_000_000


@asynccontextmanager
async def house(
    settings: Settings = IN_MEMORY,
    *,
    authorize: Authorize = open_to_all,
    faults: Faults | None = None,
    seed: int | None = None,
) -> AsyncGenerator[House, None]:
    """With a `seed`: houses of the same seed that are asked the same give the same ids and the same instants."""
    store = MemoryStore(retain=True, faults=faults)
    clock, ids = (None, None) if seed is None else (TrioClock(SOME_DAY), RandomIds(seed))
    async with running(store, settings, clock=clock, ids=ids) as broker, trio.open_nursery() as nursery:
        opened = House(broker, settings, nursery, authorize)
        await opened.open()
        try:
            yield opened
        finally:
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await opened.close()


class NarrowStream(trio.abc.HalfCloseableStream):
    """A stream whose peer takes `rate` bytes a second; 0: it takes nothing at all."""

    def __init__(self, stream: Any, rate: float) -> None:
        self.stream = stream
        self.rate = rate
        self.sent = 0
        self._moved = trio.Event()

    def set_rate(self, rate: float) -> None:
        self.rate = rate
        self._moved.set()
        self._moved = trio.Event()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        left = memoryview(bytes(data))
        while left:
            while self.rate <= 0:
                await self._moved.wait()
            part = left[: max(1, int(self.rate / 10))]
            await trio.sleep(len(part) / self.rate)
            await self.stream.send_all(bytes(part))
            self.sent += len(part)
            left = left[len(part) :]

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return bytes(await self.stream.receive_some(max_bytes))

    async def send_eof(self) -> None:
        await self.stream.send_eof()

    async def aclose(self) -> None:
        await self.stream.aclose()


async def narrow_peer(hall: House, rate: float, **options: Any) -> tuple[Peer, NarrowStream]:
    """A welcomed peer on a narrow line, which is wide until then."""
    ours, theirs = trio.testing.memory_stream_pair()
    line = NarrowStream(theirs, 1e9)
    hall.nursery.start_soon(hall.sockets.serve, line)
    peer = await hall.peer(stream=ours, **options)
    line.set_rate(rate)
    return peer, line


def items(queue: str, *payloads: Any, partition: str | None = None) -> list[dict[str, Any]]:
    """Push items with these payloads."""
    place = {} if partition is None else {"partition": partition}
    return [{"queue": queue, "payload": payload, **place} for payload in payloads]


def acks(event: dict[str, Any], *indexes: int, status: str = "completed") -> list[dict[str, Any]]:
    """Acknowledgments of a delivery's messages: of all of them, or of those at these indexes."""
    messages = event["messages"]
    chosen = [messages[index] for index in indexes] if indexes else messages
    return [
        {
            "transactionId": message["transactionId"],
            "partitionId": message["partitionId"],
            "leaseId": message["leaseId"],
            "status": status,
        }
        for message in chosen
    ]


def frame(opcode: int, payload: bytes = b"", *, fin: bool = True, rsv: int = 0, masked: bool = True) -> bytes:
    """Any frame at all, with a mask of zeros."""
    size = len(payload)
    head = bytes([(0x80 if fin else 0) | rsv << 4 | opcode])
    bit = 0x80 if masked else 0
    if size < 126:
        head += bytes([bit | size])
    elif size < 1 << 16:
        head += struct.pack("!BH", bit | 126, size)
    else:
        head += struct.pack("!BQ", bit | 127, size)
    return head + (bytes(4) if masked else b"") + payload

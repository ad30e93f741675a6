"""Lean clients: one connection each, JSON over bare HTTP/1.1 or bare WebSocket frames.

What a workload measures should be the server, and as little as possible of its client. A caller that is alone has a
blocking socket, which costs it the least; callers that share a WebSocket pipeline their requests over it, matched
to the replies by id.
"""

from __future__ import annotations

import math
import socket
import struct
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import Any, Protocol
from urllib.parse import urlencode

import msgspec
import trio
from faces import hold
from httptools import HttpResponseParser

JSON = msgspec.json.Encoder()
CHUNK = 1 << 18
PATHS = {
    "push": "/api/v1/push",
    "ack": "/api/v1/ack/batch",
    "transaction": "/api/v1/transaction",
    "kv": "/api/v1/kv",
    "locks": "/api/v1/locks",
    "timers": "/api/v1/timers",
}


class Transport(Protocol):
    """One connection, or a share of one."""

    async def call(self, op: str, body: dict[str, Any]) -> Any:
        """The answer's body, decoded; None when it has none. An answer that is no success ends the run."""
        ...


class Wire(Protocol):
    """Bytes to and from a server."""

    async def send(self, data: bytes) -> None: ...

    async def receive(self) -> bytes: ...


class Blocking:
    """A blocking socket: for a caller that has its thread to itself."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    async def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    async def receive(self) -> bytes:
        received = self._socket.recv(CHUNK)
        hold(bool(received), "the server closed the connection")
        return received

    def close(self) -> None:
        self._socket.close()


class Streaming:
    """A Trio stream."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream

    async def send(self, data: bytes) -> None:
        await self._stream.send_all(data)

    async def receive(self) -> bytes:
        received = bytes(await self._stream.receive_some(CHUNK))
        hold(bool(received), "the server closed the connection")
        return received


@asynccontextmanager
async def wire(port: int, *, alone: bool) -> AsyncGenerator[Wire]:
    """A connection to a server on this machine."""
    if alone:
        blocking = Blocking(port)
        try:
            yield blocking
        finally:
            blocking.close()
    else:
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            yield Streaming(stream)


class Http:
    """HTTP/1.1 over one kept connection, one request at a time."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._parser = HttpResponseParser(self)
        self._parts: list[bytes] = []
        self._complete = False

    def on_body(self, part: bytes) -> None:
        self._parts.append(part)

    def on_message_complete(self) -> None:
        self._complete = True

    async def call(self, op: str, body: dict[str, Any]) -> Any:
        if op != "pop":
            return await self.post(PATHS[op], body)
        queue = body.pop("queue")
        head = f"GET /api/v1/pop/queue/{queue}?{urlencode(body)} HTTP/1.1\r\nHost: localhost\r\n\r\n"
        return await self._exchange(head.encode())

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        """Any other route."""
        content = JSON.encode(body)
        head = (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\n\r\n"
        )
        return await self._exchange(head.encode() + content)

    async def get(self, path: str) -> Any:
        """Any other route that is asked."""
        return await self._exchange(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())

    async def _exchange(self, request: bytes) -> Any:
        await self._wire.send(request)
        self._parts, self._complete = [], False
        while not self._complete:
            self._parser.feed_data(await self._wire.receive())
        hold(self._parser.get_status_code() < 300, b"".join(self._parts))
        return msgspec.json.decode(b"".join(self._parts)) if self._parts else None


def text_frame(payload: bytes) -> bytes:
    """A client's text frame. Its masking key is zero, which leaves the payload as it is."""
    size = len(payload)
    if size < 126:
        head = struct.pack(">BB", 0x81, 0x80 | size)
    elif size < 1 << 16:
        head = struct.pack(">BBH", 0x81, 0x80 | 126, size)
    else:
        head = struct.pack(">BBQ", 0x81, 0x80 | 127, size)
    return head + bytes(4) + payload


class Frames:
    """A server's text messages, out of the bytes as they come. What answers its pings is left in `pongs`."""

    def __init__(self) -> None:
        self._rest = b""
        self._fragments: list[bytes] = []
        self.pongs: list[bytes] = []

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The texts that are whole now."""
        data, at = self._rest + data, 0
        while len(data) - at >= 2:
            size, start = data[at + 1], at + 2
            if size == 126:
                start += 2
                size = int.from_bytes(data[at + 2 : start])
            elif size == 127:
                start += 8
                size = int.from_bytes(data[at + 2 : start])
            if len(data) < start + size or len(data) < start:
                break
            payload = data[start : start + size]
            final, opcode, at = data[at] & 0x80, data[at] & 0x0F, start + size
            if opcode == 0x9:
                self.pongs.append(bytes((0x8A, 0x80 | len(payload))) + bytes(4) + payload)
            elif opcode == 0x8:
                raise ConnectionError(f"the server closed the socket: {payload!r}")
            elif not final:
                self._fragments.append(payload)
            elif self._fragments:
                yield b"".join([*self._fragments, payload])
                self._fragments = []
            else:
                yield payload
        self._rest = data[at:]


async def upgraded(wire: Wire) -> Frames:
    """The frames of `wire` after the handshake and the server's welcome."""
    await wire.send(
        b"GET /api/v1/ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Protocol: queen.v1\r\n\r\n"
    )
    received = b""
    while b"\r\n\r\n" not in received:
        received += await wire.receive()
    head, _, rest = received.partition(b"\r\n\r\n")
    hold(head.startswith(b"HTTP/1.1 101 "), head)
    frames = Frames()
    welcome = list(frames.feed(rest))
    while not welcome:
        welcome = list(frames.feed(await wire.receive()))
    hold(len(welcome) == 1, welcome)
    return frames


class Reply(msgspec.Struct):
    """A reply or an event; of an event everything but its name is read again by who wants it."""

    id: int = 0
    ok: bool = True
    event: str = ""
    body: msgspec.Raw = msgspec.Raw()


_REPLY = msgspec.json.Decoder(Reply)


class Socket:
    """A WebSocket of one task: one request at a time, beside acks whose replies are not waited for; events that come in
    between are kept."""

    def __init__(self, wire: Wire, frames: Frames) -> None:
        self._wire = wire
        self._frames = frames
        self._texts: deque[bytes] = deque()
        self._events: deque[bytes] = deque()
        self._last = 0
        self._settled = 0

    async def call(self, op: str, body: dict[str, Any]) -> Any:
        await self.tell(op, body)
        while True:
            text = await self._text()
            reply = _REPLY.decode(text)
            if reply.event:
                self._events.append(text)
                continue
            hold(reply.ok, text)
            if reply.id == self._last:
                return msgspec.json.decode(reply.body) if reply.body else None
            self._told(reply, text)

    async def tell(self, op: str, body: dict[str, Any]) -> None:
        """An ack whose reply is checked when it comes, while something else is waited for."""
        self._last += 1
        await self._wire.send(text_frame(JSON.encode({"id": self._last, "op": op, **body})))

    def settled(self) -> int:
        """How many messages the replies that came since the last call say are settled."""
        settled, self._settled = self._settled, 0
        return settled

    async def event(self, name: str) -> Any:
        """The next event of this name; others are passed over."""
        while True:
            text = self._events.popleft() if self._events else await self._text()
            if self._is_event(text, name):
                return msgspec.json.decode(text)

    async def events(self, name: str) -> list[Any]:
        """The next event of this name, and those behind it that have come already."""
        found = [await self.event(name)]
        while self._events or self._texts:
            text = self._events.popleft() if self._events else self._texts.popleft()
            if self._is_event(text, name):
                found.append(msgspec.json.decode(text))
        return found

    def _is_event(self, text: bytes, name: str) -> bool:
        reply = _REPLY.decode(text)
        if not reply.event:
            self._told(reply, text)
        return reply.event == name

    def _told(self, reply: Reply, text: bytes) -> None:
        """What `tell` has asked is answered."""
        hold(reply.ok, text)
        entries = msgspec.json.decode(reply.body)
        hold(all(entry["success"] for entry in entries), text)
        self._settled += len(entries)

    async def _text(self) -> bytes:
        while not self._texts:
            self._texts.extend(self._frames.feed(await self._wire.receive()))
            if self._frames.pongs:
                pongs, self._frames.pongs = self._frames.pongs, []
                await self._wire.send(b"".join(pongs))
        return self._texts.popleft()


class Pipeline:
    """A WebSocket that many tasks share: what they ask in one turn of the loop goes out in one write."""

    def __init__(self, wire: Wire, frames: Frames) -> None:
        self._wire = wire
        self._frames = frames
        self._last = 0
        self._outgoing: list[bytes] = []
        self._something = trio.Event()
        self._waiting: dict[int, tuple[trio.Event, list[Reply]]] = {}
        self._events, self._received = trio.open_memory_channel[bytes](math.inf)  # a subscription's credit bounds it

    async def call(self, op: str, body: dict[str, Any]) -> Any:
        self._last += 1
        answered, replies = self._waiting[self._last] = trio.Event(), []
        self._outgoing.append(text_frame(JSON.encode({"id": self._last, "op": op, **body})))
        self._something.set()
        await answered.wait()
        (reply,) = replies
        hold(reply.ok, bytes(reply.body))
        return msgspec.json.decode(reply.body) if reply.body else None

    async def event(self, name: str) -> Any:
        """The next `messages`, to whoever asks first; nothing else is kept."""
        hold(name == "messages", name)
        return msgspec.json.decode(await self._received.receive())

    async def write(self) -> None:
        """Sends what there is, for as long as it is left running."""
        while True:
            await self._something.wait()
            self._something = trio.Event()
            outgoing, self._outgoing = self._outgoing, []
            await self._wire.send(b"".join(outgoing))

    async def read(self) -> None:
        """Gives each reply to who waits for it, for as long as it is left running."""
        while True:
            for text in self._frames.feed(await self._wire.receive()):
                reply = _REPLY.decode(text)
                if reply.event == "messages":
                    self._events.send_nowait(text)
                elif not reply.event:
                    answered, replies = self._waiting.pop(reply.id)
                    replies.append(reply)
                    answered.set()
            if self._frames.pongs:
                self._outgoing += self._frames.pongs
                self._frames.pongs = []
                self._something.set()


@asynccontextmanager
async def pipeline(port: int) -> AsyncGenerator[Pipeline]:
    """A socket to share."""
    async with wire(port, alone=False) as connection, trio.open_nursery() as nursery:
        shared = Pipeline(connection, await upgraded(connection))
        nursery.start_soon(shared.write)
        nursery.start_soon(shared.read)
        yield shared
        nursery.cancel_scope.cancel()

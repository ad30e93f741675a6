"""Connections over streams in memory: a listener that the real server accepts from, and the least HTTP and WebSocket
clients that there can be, so that a simulated client goes through the real wire and stays a function of its seed."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, Protocol
from urllib.parse import urlencode

import msgspec
import trio
from trio.testing import MemoryReceiveStream, MemorySendStream, memory_stream_pair

from .faces import Broken, Unanswered

Stream = trio.StapledStream[MemorySendStream, MemoryReceiveStream]


class MemoryListener(trio.abc.Listener[Stream]):
    """A listener to which this process connects by `dial`."""

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[Stream](1000)

    def dial(self) -> Stream:
        """The client's end of a new connection; one that nobody accepts any more is at its end."""
        ours, theirs = memory_stream_pair()
        try:
            self._send.send_nowait(theirs)
        except (trio.ClosedResourceError, trio.BrokenResourceError):
            theirs.send_stream.close()
        return ours

    async def accept(self) -> Stream:
        return await self._receive.receive()

    async def aclose(self) -> None:
        self._send.close()
        self._receive.close()
        await trio.lowlevel.checkpoint()


Path = Callable[[dict[str, Any]], str]


class Link(Protocol):
    """A connection that carries one request at a time. `call` raises Unanswered when it breaks."""

    async def call(self, op: str, fields: dict[str, Any]) -> tuple[int, bytes]: ...
    def cut(self) -> None: ...


def _lease(fields: dict[str, Any]) -> str:
    return f"/api/v1/lease/{fields.pop('leaseId')}/extend"


def _seek(fields: dict[str, Any]) -> str:
    return f"/api/v1/consumer-groups/{fields.pop('group')}/queues/{fields.pop('queue')}/seek"


def _letter(fields: dict[str, Any]) -> str:
    return f"/api/v1/dlq/{fields.pop('letter')}/replay"


def _asking(path: str) -> Path:
    """A path whose fields are its query."""
    return lambda fields: f"{path}?{urlencode(fields)}"


def _pop(fields: dict[str, Any]) -> str:
    path = "/api/v1/pop"
    for name in ("queue", "partition"):
        if name in fields:
            path += f"/{name}/{fields.pop(name)}"
    return f"{path}?{urlencode(fields)}"


_PATHS: dict[str, tuple[str, Path]] = {
    "push": ("POST", lambda fields: "/api/v1/push"),
    "pop": ("GET", _pop),
    "ack": ("POST", lambda fields: "/api/v1/ack/batch"),
    "extend": ("POST", _lease),
    "kv": ("POST", lambda fields: "/api/v1/kv"),
    "locks": ("POST", lambda fields: "/api/v1/locks"),
    "timers": ("POST", lambda fields: "/api/v1/timers"),
    "transaction": ("POST", lambda fields: "/api/v1/transaction"),
    "configure": ("POST", lambda fields: "/api/v1/configure"),
    "seek": ("POST", _seek),
    "queue.delete": ("DELETE", lambda fields: f"/api/v1/resources/queues/{fields['queue']}"),
    "group.delete": ("DELETE", lambda fields: f"/api/v1/consumer-groups/{fields['group']}/queues/{fields['queue']}"),
    "dead": ("GET", _asking("/api/v1/dlq")),
    "dead.purge": ("DELETE", _asking("/api/v1/dlq")),
    "dead.replay": ("POST", _letter),
    "query": ("POST", lambda fields: "/streams/v1/queries"),
    "cycle": ("POST", lambda fields: "/streams/v1/cycle"),
    "short.push": ("POST", lambda fields: "/api/v1/ephemeral/push"),
    "short.pop": ("GET", _asking("/api/v1/ephemeral/pop")),
}
"""Op -> method and path; `_pop` and the paths of leases, seeks and letters take out of the fields what the path has."""


class _Link:
    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._unread = b""

    def cut(self) -> None:
        """Both directions end at once."""
        self._stream.send_stream.close()
        self._stream.receive_stream.close()

    async def _send(self, data: bytes) -> None:
        try:
            await self._stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise Unanswered("the connection is gone") from None

    async def _more(self) -> None:
        try:
            data = await self._stream.receive_some()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            data = b""
        if not data:
            raise Unanswered("the connection is gone")
        self._unread += data

    async def _head(self) -> bytes:
        while b"\r\n\r\n" not in self._unread:
            await self._more()
        head, _, self._unread = self._unread.partition(b"\r\n\r\n")
        return head

    async def _take(self, size: int) -> bytes:
        while len(self._unread) < size:
            await self._more()
        data, self._unread = self._unread[:size], self._unread[size:]
        return data


class HttpLink(_Link):
    """HTTP/1.1 with keep-alive."""

    async def call(self, op: str, fields: dict[str, Any]) -> tuple[int, bytes]:
        method, path = _PATHS[op]
        target = path(fields)
        body = b"" if method == "GET" else msgspec.json.encode(fields)
        await self._send(
            f"{method} {target} HTTP/1.1\r\nhost: sim\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
        )
        lines = (await self._head()).decode("latin-1").split("\r\n")
        status, length = int(lines[0].split(" ")[1]), 0
        for line in lines[1:]:
            name, _, value = line.partition(": ")
            if name == "content-length":
                length = int(value)
        return status, await self._take(length)


class _Reply(msgspec.Struct, kw_only=True):
    id: int | None = None
    status: int = 0
    body: msgspec.Raw = msgspec.Raw(b"null")
    error: msgspec.Raw = msgspec.Raw(b"null")
    event: str | None = None
    sub: str | None = None
    messages: msgspec.Raw = msgspec.Raw(b"[]")
    leaseId: str | None = None
    partitionId: str | None = None
    text: bytes = b""
    """All of it, of an event."""


class SocketLink(_Link):
    """The WebSocket, read only while a reply or an event is waited for. Its masks are zeros: nothing on the way minds,
    and there is nothing to mask."""

    def __init__(self, stream: Stream) -> None:
        super().__init__(stream)
        self._ids = itertools.count(1)
        self._open = False
        self._text = b""
        self._asked: dict[int, _Reply | None] = {}
        self.events: list[_Reply] = []

    async def call(self, op: str, fields: dict[str, Any]) -> tuple[int, bytes]:
        return await self.reply(await self.ask(op, fields))

    async def ask(self, op: str, fields: dict[str, Any]) -> int:
        """Send a request; returns its number."""
        await self._opened()
        number = next(self._ids)
        self._asked[number] = None
        await self._frame(1, msgspec.json.encode({"id": number, "op": op, **fields}))
        return number

    async def reply(self, number: int) -> tuple[int, bytes]:
        """The reply to that request; events and other replies that come before it are kept."""
        while (found := self._asked[number]) is None:
            reply = await self._message()
            if reply.event is not None:
                self.events.append(reply)
            elif reply.id is not None and self._asked.get(reply.id, reply) is None:
                self._asked[reply.id] = reply
            else:
                raise Broken(f"I17 a reply to what was not asked: {reply}")
        del self._asked[number]
        return found.status, bytes(found.body if found.status < 400 else found.error)

    async def event(self) -> _Reply:
        """The next event; the earliest that came while replies were waited for."""
        while not self.events:
            reply = await self._message()
            if reply.event is None:
                raise Broken(f"I17 a reply to what was not asked: {reply}")
            self.events.append(reply)
        return self.events.pop(0)

    async def _opened(self) -> None:
        if self._open:
            return
        await self._send(
            b"GET /api/v1/ws HTTP/1.1\r\nhost: sim\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
            b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        head = await self._head()
        if not head.startswith(b"HTTP/1.1 101"):
            raise Unanswered(head[:40].decode("latin-1"))
        await self._message()  # the welcome
        self._open = True

    async def _frame(self, opcode: int, payload: bytes) -> None:
        size = len(payload)
        length = bytes([0x80 | size]) if size < 126 else b"\xfe" + size.to_bytes(2, "big")
        await self._send(bytes([0x80 | opcode]) + length + bytes(4) + payload)

    async def _message(self) -> _Reply:
        """The next whole text message; pings are answered on the way. Whoever is cancelled has taken nothing."""
        while True:
            frame = self._whole_frame()
            if frame is None:
                await self._more()
                continue
            first, payload = frame
            if first & 0x0F == 9:
                await self._frame(10, payload)
            elif first & 0x0F == 8:
                raise Unanswered(f"closed with {payload!r}")
            elif first & 0x0F in (0, 1):
                self._text += payload
                if first & 0x80:
                    text, self._text = self._text, b""
                    reply = _reply.decode(text)
                    reply.text = text if reply.event is not None else b""
                    return reply

    def _whole_frame(self) -> tuple[int, bytes] | None:
        """The first byte and the payload of the next frame, if all of it has come."""
        data, start = self._unread, 2
        size = data[1] & 0x7F if len(data) > 1 else 0
        if size > 125:
            start = 4 if size == 126 else 10
            size = int.from_bytes(data[2:start], "big")
        if len(data) < start or len(data) < start + size:
            return None
        self._unread = data[start + size :]
        return data[0], data[start : start + size]


_reply = msgspec.json.Decoder(_Reply)

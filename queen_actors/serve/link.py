"""One WebSocket connection, as trio-websocket speaks it, with our own writer under it.

trio-websocket gets a stream whose writes go into the connection's outbox: so its pongs and closes, and the frames that
we prepare ourselves, leave in one order, many in one write, and no task of it ever waits for a peer that does not read.
What it leaves open is closed here: a protocol error is answered with a close frame, an error in its reader ends this
connection only, and what a peer sent before it saw our close can still be read.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager, suppress

import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, WebSocketRequest, wrap_server_stream
from wsproto.utilities import LocalProtocolError

from queen_actors import limits
from queen_actors.wire.socket import TOO_MANY, close_frame, is_close, is_control, joined_frames, text_frames

from .connection import Replayed
from .outbox import CHUNK_BYTES, CROWDED_BYTES, Outbox
from .texts import TextReader

log = logging.getLogger(__name__)

READ_BYTES = 64 * 1024
UNFINISHED_BYTES = 4 * limits.WS_FRAME_BYTES
"""Bytes without one whole message among them: fragments without an end, or nothing but control frames."""
QUIET_SECONDS = 0.5
"""A peer that has sent nothing for so long will send no more of what it had begun."""
PROTOCOL_ERROR = 1002
_OURS_TO_SAY = {PROTOCOL_ERROR: "protocol error", 1007: "not UTF-8"}
"""Errors at which trio-websocket ends a connection without saying so to the peer."""


_HEAD_END = b"\r\n\r\n"


class NotText(Exception):
    """A message came that is no text."""


class Incoming:
    """What all connections of a server have received of messages that nobody has taken yet, in bytes."""

    def __init__(self) -> None:
        self.held = 0


class _Transport(trio.abc.Stream):
    """The peer's stream as trio-websocket sees it: reads come from the peer, writes go into the outbox."""

    def __init__(self, stream: trio.abc.ReceiveStream, outbox: Outbox, incoming: Incoming) -> None:
        self._stream = stream
        self._outbox = outbox
        self._incoming = incoming
        self._held = 0
        self.unfinished = 0
        self.ended = trio.Event()
        """Nothing more is read: the peer's end of stream, or trio-websocket has had enough."""
        self.said_close = False
        """trio-websocket has sent a close: its answer to the peer's, if it has ended too."""
        self.texts: deque[bytes] = deque()
        """Messages that were taken out of the bytes before trio-websocket saw them."""
        self.arrived = trio.lowlevel.ParkingLot()
        self.taken = trio.lowlevel.ParkingLot()
        self._handshake: bytearray | None = bytearray()
        """The peer's request so far; None when it is over, or is left to trio-websocket."""
        self._behind = b""
        """What the peer has sent behind its request: it is read when the request has been answered."""
        self._answered: trio.Event | None = None
        self._reader: TextReader | None = None

    @property
    def direct(self) -> bool:
        """Will the next message be one of `texts`, not one of trio-websocket's?"""
        return self._reader is not None and self._reader.direct and not self.ended.is_set()

    def answered(self, *, accepted: bool) -> None:
        """The request has its answer. Texts are read here from now on; after a request that was too odd to see its
        end, trio-websocket goes on reading alone."""
        if accepted and self._answered is not None:
            self._reader = TextReader()
        self._handshake = None
        if self._answered is not None:
            self._answered.set()

    def account(self) -> None:
        """Tell the server what this connection holds, now that this has changed."""
        begun = 0 if self._reader is None else self._reader.begun
        held = self.unfinished + begun + sum(map(len, self.texts))
        self._incoming.held += held - self._held
        self._held = held

    def forget(self) -> None:
        """The connection is gone, and what it held."""
        self._incoming.held -= self._held
        self._held = 0

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        if self.ended.is_set():  # it reads once more after it has closed
            await trio.lowlevel.checkpoint()
            return b""
        data = await self._next()
        self.unfinished += len(data)
        if self.unfinished > UNFINISHED_BYTES:
            self._outbox.finish(close_frame(1009, "no whole message among so many bytes"))
            data = b""
        if not self._room():
            data = b""
        if not data:
            self.ended.set()
        self.arrived.unpark_all()
        return data

    def _room(self) -> bool:
        """May the message go on that is being received? If not, the connection is closed."""
        self.account()
        if self._incoming.held <= limits.WS_INCOMING_BYTES or self._held <= READ_BYTES:
            return True
        self._outbox.finish(close_frame(TOO_MANY, "too much is being received; send it again"))
        return False

    async def _next(self) -> bytes | bytearray:
        """What trio-websocket is to read next, once the messages before it have been taken; empty at the end."""
        while True:
            if self._reader is not None:
                self.texts += self._reader.texts()
                while self.texts:
                    self.arrived.unpark_all()
                    await self.taken.park()
                rest = self._reader.rest()
                if rest:
                    return rest
            if self._answered is not None:
                await self._answered.wait()
            data: bytes | bytearray = self._behind
            self._behind = b""
            if not data:
                try:
                    data = await self._read()
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    return b""
            if self._handshake is not None:
                return self._request(data)
            if self._reader is None or not data:
                return data
            self._reader.receive(data)
            if not self._room():
                return b""

    def _request(self, data: bytes | bytearray) -> bytes | bytearray:
        """Of what has come, what belongs to the request; the rest waits for its answer."""
        assert self._handshake is not None
        before = len(self._handshake)
        self._handshake += data
        end = self._handshake.find(_HEAD_END)
        if end >= 0:
            self._answered = trio.Event()
            size = end + len(_HEAD_END) - before
            data, self._behind = data[:size], bytes(data[size:])
        if end >= 0 or before + len(data) > limits.HTTP_HEAD_BYTES:
            self._handshake = None
        return data

    async def _read(self) -> bytes | bytearray:
        if isinstance(self._stream, Replayed):
            return await self._stream.read()
        return await self._stream.receive_some(READ_BYTES)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        frame = bytes(data)
        if is_close(frame):
            self.said_close = True
            self._outbox.finish(frame)
            await trio.lowlevel.checkpoint()
            return
        await self._outbox.room(CROWDED_BYTES)  # a peer that pings and never reads
        self._outbox.put(frame, urgent=is_control(frame))
        await trio.lowlevel.checkpoint()

    async def wait_send_all_might_not_block(self) -> None:
        await self._outbox.room()

    async def aclose(self) -> None:
        self.ended.set()
        self.arrived.unpark_all()
        await trio.lowlevel.checkpoint()


class Link:
    """A connection, from its handshake on."""

    def __init__(self, stream: trio.abc.Stream, incoming: Incoming) -> None:
        self.outbox = Outbox(stream)
        self.request: WebSocketRequest | None = None
        self.code: int | None = None
        """With what we closed the connection, if we did."""
        self._stream = stream
        self._transport = _Transport(stream, self.outbox, incoming)
        self._connection: WebSocketConnection | None = None
        self._handshaken = trio.Event()
        self._gone = trio.Event()
        self._pings = 0
        self._abandoned = False

    async def run(self) -> None:
        """Run trio-websocket's reader to its end. Never raises: what escapes it ends this connection."""
        failed = False
        try:
            async with trio.open_nursery() as nursery, trio.open_nursery() as waiting:
                with trio.move_on_after(limits.HTTP_HEAD_SECONDS) as patience:
                    waiting.start_soon(self._watch_handshake, patience)
                    self.request = await wrap_server_stream(
                        nursery,
                        self._transport,
                        max_message_size=limits.WS_FRAME_BYTES,
                        receive_buffer_size=READ_BYTES,
                    )
                waiting.cancel_scope.cancel()
                if self.request is None:
                    nursery.cancel_scope.cancel()
                self._handshaken.set()
        except* Exception as escaped:  # the boundary: hostile input makes trio-websocket's reader raise all sorts
            failed = True
            log.debug("the reader of a WebSocket failed: %r", escaped.exceptions)
        finally:
            self._end(failed)

    async def _watch_handshake(self, patience: trio.CancelScope) -> None:
        """No request comes from a stream that has ended; `wrap_server_stream` would wait for it for ever."""
        await self._transport.ended.wait()
        patience.cancel()

    def _end(self, failed: bool) -> None:
        closed = None if self._connection is None else self._connection.closed
        if self._connection is None:
            if failed:
                self.outbox.put(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        elif failed or (closed is not None and closed.code in _OURS_TO_SAY):
            code = PROTOCOL_ERROR if closed is None or failed else closed.code
            self.outbox.finish(close_frame(code, _OURS_TO_SAY[code]))
        self._gone.set()
        self._transport.forget()
        self._transport.arrived.unpark_all()
        self._handshaken.set()

    async def handshake(self) -> WebSocketRequest | None:
        """The peer's request; None when it made none that can be understood (it has been answered)."""
        await self._handshaken.wait()
        return self.request

    async def accept(self, subprotocol: str | None) -> bool:
        """Answer the request with 101; False when the peer is gone already."""
        assert self.request is not None
        try:
            self._connection = await self.request.accept(subprotocol=subprotocol)
        except (ConnectionClosed, LocalProtocolError):
            return False
        finally:
            self._transport.answered(accepted=self._connection is not None)
        return True

    async def reject(self, status: int, body: bytes) -> None:
        """Answer the request with an error instead."""
        assert self.request is not None
        headers = [(b"Content-Type", b"application/json"), (b"Connection", b"close")]
        with suppress(ConnectionClosed, LocalProtocolError):
            await self.request.reject(status, extra_headers=headers, body=body)
        self._transport.answered(accepted=False)
        self.outbox.finish()

    async def receive(self) -> bytes | None:
        """The next text message; None when there will be none any more. No checkpoint when one has come already.
        Raises NotText."""
        assert self._connection is not None
        transport = self._transport
        while not transport.texts and transport.direct and not self._gone.is_set():
            await transport.arrived.park()
        if transport.texts:
            text = transport.texts.popleft()
            if not transport.texts:
                transport.taken.unpark_all()
            transport.unfinished = 0
            transport.account()
            return text
        try:
            message = await self._connection.get_message()
        except ConnectionClosed:
            return None
        transport.unfinished = 0
        transport.account()
        if isinstance(message, bytes):
            raise NotText
        return message.encode()

    def send(self, payload: bytes) -> None:
        """Queue a text message; after a close it goes nowhere."""
        for frame in text_frames(payload, CHUNK_BYTES):
            self.outbox.put(frame)

    def send_together(self, payloads: Iterable[bytes]) -> None:
        """Queue text messages, the small ones in as few writes as may be, and write what can be written at once."""
        self.outbox.put_now(joined_frames(payloads, CHUNK_BYTES))

    def close(self, code: int, reason: str, *, drop: bool = False) -> None:
        """Close with this code after what waits to be written, or (`drop`) in place of it. The first close counts."""
        if not self.outbox.finished:
            self.code = code
            self.outbox.finish(close_frame(code, reason), drop=drop)

    def abandon(self) -> None:
        """The peer is dead: nothing more is written, and nothing is waited for."""
        self._abandoned = True
        self.outbox.finish(drop=True)

    async def ping(self) -> bool:
        """Ping, and return True when the pong is there; False when the connection is closing."""
        assert self._connection is not None
        self._pings += 1
        try:
            await self._connection.ping(self._pings.to_bytes(8, "big"))
        except (ConnectionClosed, LocalProtocolError):
            return False
        return True

    async def linger(self, seconds: float) -> None:
        """Give the peer time to read the last frame and to close: a stream that is closed with unread bytes is reset,
        and the close would be lost with it."""
        if self._abandoned:
            return
        self.outbox.finish()
        with trio.move_on_after(seconds):
            await self.outbox.flushed.wait()
            if self.outbox.broken.is_set() or (self.code is None and self._transport.ended.is_set()):
                return
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                if isinstance(self._stream, trio.abc.HalfCloseableStream):
                    await self._stream.send_eof()
                while self._connection is not None:
                    with suppress(NotText):
                        if await self.receive() is None:
                            break
                await self._gone.wait()
                if self._transport.said_close and self._transport.ended.is_set():
                    return  # both have said it: now it is the server that closes
                await self._drain()

    async def _drain(self) -> None:
        """Read until nothing more comes."""
        data: bytes | bytearray = b"."
        while data:
            data = b""
            with trio.move_on_after(QUIET_SECONDS):
                data = await self._stream.receive_some(READ_BYTES)


@asynccontextmanager
async def open_link(stream: trio.abc.Stream, incoming: Incoming) -> AsyncGenerator[Link, None]:
    """A link over the stream, running while the block does; the stream is closed at its end."""
    link = Link(stream, incoming)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run)
            nursery.start_soon(link.outbox.run)
            yield link
            nursery.cancel_scope.cancel()
    finally:
        await trio.aclose_forcefully(stream)

"""One WebSocket connection, as trio-websocket speaks it, with our own writer under it.

trio-websocket gets a stream whose writes go into the connection's outbox: so its pongs and closes, and the frames that
we prepare ourselves, leave in one order, many in one write, and no task of it ever waits for a peer that does not read.
What it leaves open is closed here: a protocol error is answered with a close frame, an error in its reader ends this
connection only, and what a peer sent before it saw our close can still be read.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager, suppress

import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, WebSocketRequest, wrap_server_stream
from wsproto.utilities import LocalProtocolError

from queen_actors import limits
from queen_actors.config import Settings
from queen_actors.wire.socket import close_frame, joined_frames, text_frames

from .arriving import READ_BYTES, Arriving, Incoming
from .outbox import CHUNK_BYTES, Outbox

log = logging.getLogger(__name__)

QUIET_SECONDS = 0.5
"""A peer that has sent nothing for so long will send no more of what it had begun."""
PROTOCOL_ERROR = 1002
_OURS_TO_SAY = {PROTOCOL_ERROR: "protocol error", 1007: "not UTF-8"}
"""Errors at which trio-websocket ends a connection without saying so to the peer."""


class NotText(Exception):
    """A message came that is no text."""


class Link:
    """A connection, from its handshake on."""

    def __init__(self, stream: trio.abc.Stream, incoming: Incoming, settings: Settings) -> None:
        self.outbox = Outbox(stream, settings.ws_peer_bytes)
        self.request: WebSocketRequest | None = None
        self.code: int | None = None
        """With what we closed the connection, if we did."""
        self._stream = stream
        self._arriving = Arriving(stream, self.outbox, incoming, settings.ws_frame_bytes)
        self._frame_bytes = settings.ws_frame_bytes
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
                        self._arriving,
                        max_message_size=self._frame_bytes,
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
        await self._arriving.ended.wait()
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
        self._arriving.forget()
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
            self._arriving.answered(accepted=self._connection is not None)
        return True

    async def reject(self, status: int, body: bytes) -> None:
        """Answer the request with an error instead."""
        assert self.request is not None
        headers = [(b"Content-Type", b"application/json"), (b"Connection", b"close")]
        with suppress(ConnectionClosed, LocalProtocolError):
            await self.request.reject(status, extra_headers=headers, body=body)
        self._arriving.answered(accepted=False)
        self.outbox.finish()

    def take(self) -> bytes | None:
        """The next text message, if it is here already."""
        return self._arriving.text()

    async def receive(self) -> bytes | None:
        """The next text message; None when there will be none any more. No checkpoint when one has come already.
        Raises NotText."""
        assert self._connection is not None
        arriving = self._arriving
        text = arriving.text()
        if text is None:
            text = await arriving.more()
        if text is not None:
            return text
        try:
            message = await self._connection.get_message()
        except ConnectionClosed:
            return None
        arriving.settle()
        if isinstance(message, bytes):
            raise NotText
        return message.encode()

    def away(self, away: bool) -> None:
        """Whether whoever receives has to wait with what he has: what the peer says about the connection is to be
        heard meanwhile."""
        self._arriving.away(away)

    def send(self, payload: bytes) -> None:
        """Queue a text message; after a close it goes nowhere."""
        for frame in text_frames(payload, CHUNK_BYTES):
            self.outbox.put(frame)

    def send_together(self, payloads: Iterable[bytes]) -> None:
        """Queue text messages, the small ones in as few writes as may be, and write what can be written at once."""
        self.outbox.put_now(joined_frames(payloads, CHUNK_BYTES))

    def send_now(self, payload: bytes) -> None:
        """Queue one text message, and write it at once if that can be."""
        self.outbox.put_now(text_frames(payload, CHUNK_BYTES))

    def close(self, code: int, reason: str, *, drop: bool = False) -> None:
        """Close with this code after what waits to be written, or (`drop`) in place of it. The first close counts."""
        if not self.outbox.finished:
            self.code = code
            self.outbox.finish(close_frame(code, reason), drop=drop)

    def abandon(self) -> None:
        """The peer is dead: nothing more is written, and nothing is waited for."""
        self._abandoned = True
        self.outbox.finish(drop=True)

    @property
    def ended(self) -> bool:
        """Nothing more comes from the peer: it has said so, and cannot be asked."""
        return self._arriving.ended.is_set()

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
            if self.outbox.broken.is_set() or (self.code is None and self._arriving.ended.is_set()):
                return
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                if isinstance(self._stream, trio.abc.HalfCloseableStream):
                    await self._stream.send_eof()
                while self._connection is not None:
                    with suppress(NotText):
                        if await self.receive() is None:
                            break
                await self._gone.wait()
                if self._arriving.said_close and self._arriving.ended.is_set():
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
async def open_link(stream: trio.abc.Stream, incoming: Incoming, settings: Settings) -> AsyncGenerator[Link, None]:
    """A link over the stream, running while the block does; the stream is closed at its end."""
    link = Link(stream, incoming, settings)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run)
            nursery.start_soon(link.outbox.run)
            yield link
            nursery.cancel_scope.cancel()
    finally:
        await trio.aclose_forcefully(stream)

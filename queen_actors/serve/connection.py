"""One accepted connection as hypercorn and trio-websocket see it.

Written against `trio.abc.Stream`, so that a stream in memory is served as well as a socket.
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable
from typing import Any

import httptools
import trio

from queen_actors import limits

from .tls import Secured

WEBSOCKET_PATH = b"/api/v1/ws"
READ_BYTES = 64 * 1024
_PLAIN_SOCKETS = os.name == "posix"  # where a socket is a file descriptor, and Trio has made it non-blocking
_UPGRADE = b"GET " + WEBSOCKET_PATH
_HEAD_END = re.compile(rb"\n\r?\n")


class HeadTooLong(Exception):
    """A request's head is over `limits.HTTP_HEAD_BYTES`."""


class _NoSocket:
    """Stands for the socket of a stream that has none: no family that hypercorn knows, and no addresses."""

    family = -1

    def getpeername(self) -> None:
        return None

    def getsockname(self) -> None:
        return None


class Replayed(trio.abc.Stream):
    """A stream that first gives what was already read from it."""

    def __init__(self, stream: trio.abc.Stream, unread: bytes = b"") -> None:
        self._stream = stream
        self._unread: bytes = unread

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        if self._unread:
            await trio.lowlevel.checkpoint()
            data, self._unread = self._unread[:max_bytes], self._unread[max_bytes or len(self._unread) :]
            return data
        return bytes(await self._stream.receive_some(max_bytes))

    @property
    def descriptor(self) -> int | None:
        """Of the socket, when that is all there is to the stream."""
        if _PLAIN_SOCKETS and isinstance(self._stream, trio.SocketStream):
            return self._stream.socket.fileno()
        return None

    def read_now(self) -> bytes | None:
        """What has come, empty at the end, None when nothing has; only of one with a `descriptor`. Raises
        trio.BrokenResourceError."""
        if self._unread:
            data, self._unread = self._unread, b""
            return data
        try:
            return os.read(-1 if self.descriptor is None else self.descriptor, READ_BYTES)
        except BlockingIOError:
            return None
        except OSError as error:
            raise trio.BrokenResourceError from error

    async def read(self) -> bytes:
        """What comes next, empty at the end; for a reader that keeps its own time."""
        if self._unread or not (_PLAIN_SOCKETS and isinstance(self._stream, trio.SocketStream)):
            return await Replayed.receive_some(self, READ_BYTES)
        sock = self._stream.socket
        while True:
            try:
                await trio.lowlevel.wait_readable(sock)
                return os.read(sock.fileno(), READ_BYTES)
            except BlockingIOError:
                continue
            except OSError as error:
                raise trio.BrokenResourceError from error

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    def write_now(self, data: bytes) -> bytes:
        """Send what the kernel takes at once, without a turn of the event loop; returns the rest, for `send_all`.
        Raises trio.BrokenResourceError."""
        if not (_PLAIN_SOCKETS and isinstance(self._stream, trio.SocketStream)):
            return data
        try:
            return data[os.write(self._stream.socket.fileno(), data) :]
        except BlockingIOError:
            return data
        except OSError as error:
            raise trio.BrokenResourceError from error

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self._stream.aclose()


class Connection(Replayed, trio.abc.HalfCloseableStream):
    """The stream that hypercorn serves HTTP on.

    Its writes end when the peer stops reading: hypercorn shields them, so that nothing else would. Its `aclose` only
    says that hypercorn is done; the server closes the stream itself, after what the peer still sends has been read.
    """

    def __init__(self, stream: trio.abc.Stream) -> None:
        super().__init__(stream)
        self.between_requests: Callable[[], Awaitable[bool]] = _never
        """Asked when bytes came that look like an upgrade request: are they the beginning of a request, and has the
        one before it been answered?"""
        self.upgrading = False
        """Between two requests the peer asked for a WebSocket: hypercorn has been told that the stream is at its end,
        and the upgrade request is unread."""
        self._finished = False
        self._reading: trio.CancelScope | None = None

    @property
    def socket(self) -> Any:
        """What hypercorn takes the addresses from."""
        stream = self._stream.stream if isinstance(self._stream, Secured) else self._stream
        return stream.socket if isinstance(stream, trio.SocketStream) else _NoSocket()

    def put_back(self, data: bytes) -> None:
        """Bytes that were read and belong to what reads next."""
        self._unread = data + self._unread

    async def read_head(self) -> bytes | None:
        """Everything up to the end of the first request's head, which stays unread; None when there is none.

        Raises HeadTooLong.
        """
        scanned = 0
        while not _HEAD_END.search(self._unread, scanned):
            if len(self._unread) > limits.HTTP_HEAD_BYTES:
                raise HeadTooLong
            data = bytes(await self._stream.receive_some(READ_BYTES))
            if not data:
                return None
            scanned = max(0, len(self._unread) - 2)
            self._unread += data
        return self._unread

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        if self._finished:
            raise trio.ClosedResourceError("the connection is finished")
        data = None
        with trio.CancelScope() as self._reading:
            data = await super().receive_some(max_bytes)
        if data is None:
            raise trio.ClosedResourceError("the connection is finished")
        if asks_for_websocket(data) and await self.between_requests():
            self.upgrading, self._unread = True, data + self._unread
            return b""
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        if self._finished:
            raise trio.ClosedResourceError("the connection is finished")
        view = memoryview(data)
        for start in range(0, len(view), limits.HTTP_CHUNK_BYTES):
            with trio.move_on_after(limits.HTTP_WRITE_SECONDS) as patience:
                await self._stream.send_all(view[start : start + limits.HTTP_CHUNK_BYTES])
            if patience.cancelled_caught:
                await self.abort()
                raise trio.BrokenResourceError("the peer does not read")

    async def send_eof(self) -> None:
        if not self.upgrading and isinstance(self._stream, trio.abc.HalfCloseableStream):
            await self._stream.send_eof()

    async def aclose(self) -> None:
        if not self.upgrading:
            self._finished = True
            if self._reading is not None:
                self._reading.cancel()
        await trio.lowlevel.checkpoint()

    async def abort(self) -> None:
        """Close the stream at once, whatever waits to be read or written."""
        await trio.aclose_forcefully(self._stream)

    async def linger(self) -> None:
        """Read what the peer still sends, to its end: a socket that is closed with unread bytes resets the connection,
        and the peer would lose the answer that was just written. The caller bounds it."""
        try:
            while await self._stream.receive_some(READ_BYTES):
                pass
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return

    def upgraded(self) -> Replayed:
        """The stream for the WebSocket, beginning with its upgrade request."""
        return Replayed(self._stream, self._unread)


async def _never() -> bool:
    return False


class _Head:
    """What of a request's head tells a WebSocket upgrade (httptools' callbacks)."""

    def __init__(self) -> None:
        self.target = b""
        self.upgrade = b""
        self.complete = False

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"upgrade":
            self.upgrade = value.strip().lower()

    def on_headers_complete(self) -> None:
        self.complete = True


def asks_for_websocket(data: bytes) -> bool:
    """Whether this begins with the whole head of an upgrade request for the WebSocket's path."""
    if not data.startswith(_UPGRADE):
        return False
    head = _Head()
    feed: Callable[[bytes], None] = httptools.HttpRequestParser(head).feed_data
    try:
        feed(data)
    except httptools.HttpParserUpgrade:
        pass
    except httptools.HttpParserError:
        return False
    return head.complete and head.upgrade == b"websocket" and head.target.partition(b"?")[0] == WEBSOCKET_PATH

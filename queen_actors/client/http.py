"""The HTTP transport: a lean pool of keep-alive connections. httptools parses, Trio streams carry.

One request is one write and, as a rule, one read. A call that is cancelled or fails closes its connection, so the
broker learns at once that nobody waits any more.
"""

from __future__ import annotations

import uuid
from collections import deque
from select import POLLERR, POLLHUP, POLLIN, poll

import httptools
import trio

from queen_actors.errors import Unavailable

from .address import Address, Stream, open_stream
from .errors import AnswerTimeout, ConnectionFailed, ProtocolError
from .sharing import SocketFeed, Sockets, SocketStream
from .transport import Answer, Caller, Retry, Start, Talk, Wanted

IDLE_SECONDS = 15.0  # an unused connection is not trusted for longer: the other side may be about to close it
CONNECTIONS = 100  # open at once; further calls wait their turn
READ_BYTES = 65_536
ANSWER_BYTES = 256 << 20  # an answer over this is not one of a broker's: its largest page is far below


class Connection:
    """One keep-alive connection, which carries one call at a time."""

    def __init__(self, stream: Stream, raw: trio.SocketStream) -> None:
        self._stream = stream
        self._raw = raw
        self._idle_since = 0.0
        self.reusable = True

    def rest(self) -> None:
        """It is not used for now."""
        self._idle_since = trio.current_time()

    def fresh(self) -> bool:
        """Whether it can be used after a rest: the other side has not closed it, nor said anything unasked."""
        if trio.current_time() - self._idle_since > IDLE_SECONDS:
            return False
        watch = poll()
        watch.register(self._raw.socket.fileno(), POLLIN | POLLERR | POLLHUP)
        return not watch.poll(0)

    async def exchange(self, request: bytes) -> Answer:
        """Send one request and read its answer. Raises ConnectionFailed, ProtocolError."""
        reading = _Reading()
        try:
            try:
                await self._stream.send_all(request)
            except trio.BrokenResourceError:
                self.reusable = False  # a request that is refused before it was read whole: the answer may be there
            while not reading.complete:
                data = await self._stream.receive_some(READ_BYTES)
                if not data and reading.ends_with_stream():
                    break
                if not data:
                    raise ConnectionFailed("the broker closed the connection before its answer", sent=True)
                reading.feed(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ConnectionFailed("the connection broke before the answer", sent=True) from error
        except httptools.HttpParserError as error:
            raise ProtocolError(f"the answer is not HTTP: {error}") from error
        self.reusable = self.reusable and reading.keep_alive
        return Answer(reading.status, reading.headers, b"".join(reading.body))

    async def aclose(self) -> None:
        """Close it, whatever is under way."""
        await trio.aclose_forcefully(self._stream)

    def abandon(self) -> None:
        """Close a connection that rested, at once."""
        self._raw.socket.close()


class _Reading:
    """One answer as its bytes come. Informational answers (1xx) before it are skipped."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body: list[bytes] = []
        self.keep_alive = False
        self.complete = False
        self._size = 0
        self._head_complete = False
        self._parser = httptools.HttpResponseParser(self)

    def feed(self, data: bytes | bytearray) -> None:
        """Raises HttpParserError, ProtocolError."""
        self._parser.feed_data(bytes(data))
        if self._size > ANSWER_BYTES:
            raise ProtocolError(f"the answer is over {ANSWER_BYTES} bytes")

    def ends_with_stream(self) -> bool:
        """Whether the end of the stream is the end of the answer: it named no length."""
        named = "content-length" in self.headers or "transfer-encoding" in self.headers
        return self._head_complete and not named

    # What the parser calls. Bytes behind the answer belong to nobody: they only make the connection unusable.

    def on_message_begin(self) -> None:
        if self.complete:
            self.keep_alive = False
        else:
            self.headers, self._head_complete = {}, False

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.complete:
            self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if not self.complete:
            self.status = self._parser.get_status_code()
            self._head_complete = self.status >= 200

    def on_body(self, body: bytes) -> None:
        if not self.complete:
            self.body.append(body)
            self._size += len(body)

    def on_message_complete(self) -> None:
        if not self.complete and self.status >= 200:
            self.complete = True
            self.keep_alive = self._parser.should_keep_alive()


class HttpTransport:
    """Calls over a pool of connections; what is told by the broker over WebSockets."""

    def __init__(self, address: Address, retry: Retry | None = None, connections: int = CONNECTIONS) -> None:
        self.retry = retry or Retry()
        self.address = address
        self._idle: deque[Connection] = deque()
        self._slots = trio.CapacityLimiter(connections)
        self._closed = False
        self._sockets = Sockets(address)
        common = {
            "Host": address.authority,
            "Accept": "application/json",
            "User-Agent": "queen-actors-python",
            **address.headers,
        }
        self._head = "".join(f"{name}: {value}\r\n" for name, value in common.items()).encode("ascii")

    def begin(self, start: Start) -> None:
        """As `Transport.begin`."""
        self._sockets.start = start

    def new_id(self) -> str:
        """As `Transport.new_id`: a random UUID."""
        return str(uuid.uuid4())

    async def call(self, method: str, path: str, query: str, body: bytes | None, seconds: float) -> Answer:
        """As `Transport.call`, over a connection of the pool."""
        request = self._request(method, path, query, body)
        async with self._slots:
            connection = self._take() or Connection(*await open_stream(self.address))
            try:
                with trio.fail_after(seconds):
                    answer = await connection.exchange(request)
            except trio.TooSlowError as error:
                await connection.aclose()
                told = f"no answer from {self.address.authority} within {seconds:g} s"
                raise AnswerTimeout(told, sent=True) from error
            except BaseException:
                await connection.aclose()
                raise
            if self._closed or not connection.reusable:
                await connection.aclose()
            else:
                connection.rest()
                self._idle.append(connection)
            return answer

    def _request(self, method: str, path: str, query: str, body: bytes | None) -> bytes:
        target = f"{self.address.prefix}{path}?{query}" if query else f"{self.address.prefix}{path}"
        line = f"{method} {target} HTTP/1.1\r\n".encode("ascii")
        if body is None:
            length = b"" if method == "GET" else b"Content-Length: 0\r\n"
            return b"".join((line, self._head, length, b"\r\n"))
        told = b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        return b"".join((line, self._head, told, body))

    def _take(self) -> Connection | None:
        if self._closed:
            raise Unavailable("the client is closed")
        while self._idle:
            connection = self._idle.pop()  # the one used last: the others can grow old and go
            if connection.fresh():
                return connection
            connection.abandon()
        return None

    def subscribe(self, wanted: Wanted, caller: Caller) -> SocketFeed:
        """As `Transport.subscribe`."""
        return SocketFeed(self._sockets, wanted, self.retry)

    def talk(self, talk: Talk) -> SocketStream:
        """As `Transport.talk`."""
        return SocketStream(self._sockets, talk, self.retry)

    async def aclose(self) -> None:
        """Close the connections that rest; those at work close when they are done."""
        self._closed = True
        while self._idle:
            self._idle.pop().abandon()

"""The server: one listener for everything, and what stands between a hostile connection and all the others.

HTTP/1.1 is served by the fast lane (`serve/fastlane.py`), unless the settings turn it off. What asks for the WebSocket
goes to `serve/socket.py`, everything else (HTTP/2, other upgrades) to hypercorn, which runs inside our own Trio run.
Faults of hypercorn 0.18 on Trio that are fenced here and in the modules that this one uses:

- Hostile input makes it raise, and an exception would end the server: each connection is guarded.
- Its writes are shielded, so that a peer that does not read blocks it, and a shutdown, for ever: `Connection` bounds
  each write by its progress, and the end of a shutdown closes the streams.
- Its keep-alive timer is lost after the first request under quart (`web._Exchange.send`), and keeps a connection that
  its peer has closed until it is over (`_Http`).
- It drops requests under way when it is told to stop: here they have `shutdown_seconds` to finish.
"""

from __future__ import annotations

import logging
import socket
import ssl
import sys
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import h11
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.events import Closed, Event, Updated
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState

from queen_actors import limits
from queen_actors.api import Api, Authorize
from queen_actors.api.auth import authorizer
from queen_actors.broker import Broker
from queen_actors.config import Settings
from queen_actors.wire.frames import encode

from .connection import Connection, HeadTooLong, asks_for_websocket
from .fastlane import FastLane
from .intake import Intake
from .socket import Sockets
from .tls import Secured, server_context
from .web import Web

if sys.platform != "win32":
    import resource

log = logging.getLogger(__name__)

WebSocketHandler = Callable[[trio.abc.Stream], Awaitable[None]]
"""Serves one WebSocket on a stream that begins with its upgrade request, and closes it."""

_REFUSALS_MAX = 32  # refused connections that still get an answer; more are closed without one
_REFUSAL_SECONDS = 1.0
_KEEPALIVE_SECONDS = 15  # of silence, then the kernel asks whether the peer is still there


async def serve(
    broker: Broker,
    settings: Settings,
    *,
    shutdown: trio.Event | None = None,
    listeners: Sequence[trio.abc.Listener[Any]] | None = None,
    websocket_handler: WebSocketHandler | None = None,
    authorize: Authorize | None = None,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve the broker over HTTP and WebSockets until `shutdown` is set, or for ever.

    Started with the addresses that it listens on (`http://127.0.0.1:6632`; none for listeners that are no sockets);
    without `listeners` it opens `settings.host` and `settings.port`, which may raise OSError. Raises ValueError when
    the settings' certificate cannot be used.

    At the shutdown no connection is accepted any more, parked pops answer 204, WebSockets are closed with 1001, and
    requests under way may finish; what is left after `settings.shutdown_seconds` is cancelled. Cancelling `serve`
    ends everything at once.
    """
    shutdown = trio.Event() if shutdown is None else shutdown
    authorize = authorizer(settings) if authorize is None else authorize
    api = Api(broker, settings, authorize)
    websocket = websocket_handler or Sockets(api, broker, settings, shutdown, authorize).serve
    # Files are read in a thread, which a run that is to be repeatable cannot have: see queen_actors.testing
    secure = bool(settings.certfile)
    context = await trio.to_thread.run_sync(server_context, settings) if secure else server_context(settings)
    scheme = "http" if context is None else "https"
    opened: list[trio.abc.Listener[Any]]
    opened = list(listeners) if listeners is not None else [*await open_listeners(settings)]
    server = _Server(api, settings, websocket, context)
    async with trio.open_nursery() as connections:
        connections.start_soon(server.abort_when_cancelled)
        if server.fast is not None:
            connections.start_soon(server.fast.watch)
        async with trio.open_nursery() as accepting:
            accepting.start_soon(server.accept, opened, connections)
            task_status.started([address for listener in opened for address in _addresses(listener, scheme)])
            await shutdown.wait()
            accepting.cancel_scope.cancel()
        with trio.move_on_after(settings.shutdown_seconds):
            await server.stop()
        connections.cancel_scope.cancel()


def connections_allowed() -> int:
    """How many connections are served at a time. Each takes a descriptor, and without one for its files the log cannot
    go on: where the process may not have many (`ulimit -n`), connections leave `limits.DESCRIPTORS_KEPT` of them, or
    three quarters of the few that there are."""
    if sys.platform == "win32":
        return limits.HTTP_CONNECTIONS
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most == resource.RLIM_INFINITY:
        return limits.HTTP_CONNECTIONS
    return min(limits.HTTP_CONNECTIONS, max(most - limits.DESCRIPTORS_KEPT, most // 4))


async def open_listeners(settings: Settings) -> list[trio.SocketListener]:
    """Listening sockets of the settings' address. Accepted ones inherit that the kernel gives up a peer that does not
    acknowledge, or that is gone without a word. Raises OSError."""
    opened = await trio.open_tcp_listeners(settings.port, host=settings.host)
    for listener in opened:
        sock = listener.socket
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(limits.HTTP_WRITE_SECONDS * 1000))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if hasattr(socket, "TCP_KEEPIDLE"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_SECONDS)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_SECONDS)
    return opened


def _addresses(listener: trio.abc.Listener[Any], scheme: str) -> list[str]:
    if not isinstance(listener, trio.SocketListener):
        return []
    host, port = listener.socket.getsockname()[:2]
    return [f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"]


class _Http(TCPServer):
    """hypercorn's side of one connection."""

    def __init__(self, app: ASGIWrapper, config: Config, context: WorkerContext, connection: Connection) -> None:
        stream: Any = connection  # hypercorn names a socket's type, and uses a stream's methods
        super().__init__(app, config, context, ConnectionState({}), stream)
        self._idle = trio.lowlevel.ParkingLot()
        connection.between_requests = self._between_requests

    async def _read_data(self) -> None:
        """The timer of an idle connection would hold the connection after its peer has closed it."""
        await super()._read_data()
        await self.idle_task.stop()

    async def protocol_send(self, event: Event) -> None:
        await super().protocol_send(event)
        if isinstance(event, (Updated, Closed)):
            self._idle.unpark_all()

    async def _between_requests(self) -> bool:
        """Of bytes that have just come: everything before them was whole requests, and each is answered by now. What
        hypercorn's parser has tells it exactly; a guess would take a part of a body for a request."""
        protocol = self.protocol.protocol
        parser = protocol.connection if isinstance(protocol, H11Protocol) else None
        if not isinstance(parser, h11.Connection) or parser.trailing_data[0]:
            return False
        while parser.states[h11.CLIENT] is h11.DONE:
            await self._idle.park()
        return parser.states[h11.CLIENT] is h11.IDLE


class _Server:
    """The connections of one server."""

    def __init__(
        self, api: Api, settings: Settings, websocket: WebSocketHandler, context: ssl.SSLContext | None
    ) -> None:
        self._api = api
        self._tls = context
        self._websocket = websocket
        intake = Intake(api, settings)
        self.fast = FastLane(intake) if settings.lane == "fast" else None
        self._app = ASGIWrapper(Web(intake))
        self._config = _config()
        self._context = WorkerContext(None)
        self._connections: dict[Connection, None] = {}
        """In the order in which they were accepted, in which they are ended as well: a run can be repeated."""
        self._waits: set[trio.CancelScope] = set()
        """Waits for what a peer may send, which a shutdown ends."""
        self._refusals = 0
        self._room = connections_allowed()
        self._stopping = False
        self._changed = trio.lowlevel.ParkingLot()

    async def accept(self, listeners: list[trio.abc.Listener[Any]], nursery: trio.Nursery) -> None:
        """Accept connections until cancelled, which closes the listeners."""
        await trio.serve_listeners(self.handle, listeners, handler_nursery=nursery)

    async def handle(self, stream: trio.abc.Stream) -> None:
        """One connection, to its end. Raises nothing but for cancellation."""
        secured = None if self._tls is None else Secured(stream, self._tls)
        connection = Connection(secured or stream)
        try:
            if len(self._connections) >= self._room:
                await self._refuse(connection)
                return
            self._connections[connection] = None
            if secured is None or await self._shake_hands(secured):
                await self._converse(connection)
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            log.debug("a peer is gone")
        except* Exception as fault:  # the boundary: no connection may harm another, whatever hypercorn makes of it
            log.warning("a connection failed: %r", fault.exceptions)
            log.debug("a connection failed", exc_info=fault)
        finally:
            self._connections.pop(connection, None)
            self._changed.unpark_all()
            await connection.abort()

    async def _shake_hands(self, secured: Secured) -> bool:
        """Whether the peer speaks TLS, in time."""
        with self._wait(limits.HTTP_HEAD_SECONDS):
            await secured.shake_hands()
            return True
        return False

    async def _converse(self, connection: Connection) -> None:
        if self.fast is not None and not await self.fast.serve(connection):
            with self._wait(limits.HTTP_LINGER_SECONDS):
                await connection.linger()
            return
        head = await self._head(connection)
        if head is None:
            return
        if not asks_for_websocket(head):
            await self._http(connection)
            if not connection.upgrading:
                with self._wait(limits.HTTP_LINGER_SECONDS):
                    await connection.linger()
                return
        await self._websocket(connection.upgraded())

    async def _head(self, connection: Connection) -> bytes | None:
        """The first request's head, within its bounds; None when the connection is over without one."""
        with self._wait(limits.HTTP_HEAD_SECONDS):
            try:
                return await connection.read_head()
            except HeadTooLong:
                await _last_words(connection, 431, "Request Header Fields Too Large", "the request's head is too long")
                return None
        if not self._stopping:
            await _last_words(connection, 408, "Request Timeout", "no request arrived in time")
        return None

    @contextmanager
    def _wait(self, seconds: float) -> Generator[None]:
        with trio.move_on_after(seconds) as scope:
            self._waits.add(scope)
            if self._stopping:
                scope.cancel()
            try:
                yield
            finally:
                self._waits.discard(scope)

    async def _http(self, connection: Connection) -> None:
        await _Http(self._app, self._config, self._context, connection).run()

    async def _refuse(self, connection: Connection) -> None:
        if self._refusals >= _REFUSALS_MAX:
            return
        self._refusals += 1
        try:
            await _last_words(connection, 503, "Service Unavailable", "too many connections")
        finally:
            self._refusals -= 1

    async def stop(self) -> None:
        """Return when every connection has come to its end: idle ones now, the others after their requests."""
        self._stopping = True
        self._api.drain()
        if self.fast is not None:
            self.fast.stop()
        for wait in self._waits:
            wait.cancel()
        await self._context.terminated.set()
        while self._connections:
            await self._changed.park()

    async def abort_when_cancelled(self) -> None:
        """hypercorn's writes are shielded from a cancellation; from the end of their stream they are not."""
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                for connection in tuple(self._connections):
                    await connection.abort()


def _config() -> Config:
    config = Config()
    config.errorlog = logging.getLogger("queen_actors.serve.hypercorn")
    config.include_server_header = False
    config.keep_alive_timeout = limits.HTTP_KEEP_ALIVE_SECONDS
    config.keep_alive_max_requests = 1 << 62
    config.h11_max_incomplete_size = limits.HTTP_HEAD_BYTES
    return config


async def _last_words(connection: Connection, status: int, phrase: str, detail: str) -> None:
    """Answer a connection that gets no further, and close it."""
    code = phrase.lower().replace(" ", "_")
    body = encode({"error": detail, "code": code})
    head = f"HTTP/1.1 {status} {phrase}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
    again = "retry-after: 1\r\n" if status == 503 else ""
    with trio.move_on_after(_REFUSAL_SECONDS):
        await connection.send_all(f"{head}{again}connection: close\r\n\r\n".encode() + body)
        await connection.send_eof()
        await connection.linger()

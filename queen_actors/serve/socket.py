"""WebSocket sessions (`websocket.md`): one connection, from its upgrade request to the return of its leases."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import trio
from trio_websocket import WebSocketRequest

from queen_actors import limits
from queen_actors.api import Access, Api, Authorize, Caller, Request
from queen_actors.api.access import open_to_all
from queen_actors.api.errors import error_reply, no_such_route
from queen_actors.broker import Broker
from queen_actors.config import Settings
from queen_actors.errors import BadRequest, Forbidden, QueenError, Unauthorized
from queen_actors.wire import socket as wire

from .arriving import Incoming
from .link import Link, open_link
from .session import Session
from .sharing import Sharing
from .socket_routes import Headers

log = logging.getLogger(__name__)

PATH = "/api/v1/ws"
_FORWARDED = ("authorization", "x-queen-tenant")
"""What of the upgrade request's headers speaks for every request of the connection."""


class Sockets:
    """The WebSocket connections of one server."""

    def __init__(
        self, api: Api, broker: Broker, settings: Settings, shutdown: trio.Event, authorize: Authorize = open_to_all
    ) -> None:
        self._api = api
        self._broker = broker
        self._settings = settings
        self._shutdown = shutdown
        self._authorize = authorize
        self.open = 0
        """How many there are, handshakes and farewells included."""
        self._sessions = 0
        self._sharing = Sharing()
        self._incoming = Incoming()

    async def serve(self, stream: trio.abc.Stream) -> None:
        """Run one connection to its end; `stream` starts with its upgrade request. Never raises (but for
        cancellation): whatever a peer does ends its own connection only."""
        self.open += 1
        try:
            async with open_link(stream, self._incoming, self._settings) as link:
                await self._connection(link)
        except* Exception as fault:  # the boundary: a fault of ours in one connection must not reach another
            log.error("a WebSocket connection failed", exc_info=fault)
        finally:
            self.open -= 1

    async def _connection(self, link: Link) -> None:
        request = await link.handshake()
        session = None if request is None else await self._accept(link, request)
        if session is not None:
            self._sessions += 1
            try:
                await session.run()
            except* Exception as fault:  # as above, while the peer can still be told
                log.error("a WebSocket session failed", exc_info=fault)
                link.close(wire.INTERNAL, "internal error")
            finally:
                self._sessions -= 1
        await link.linger(session.linger_seconds if session is not None else limits.WS_LINGER_SECONDS)

    async def _accept(self, link: Link, request: WebSocketRequest) -> Session | None:
        """Answer the upgrade request (section 1); None when it was refused."""
        try:
            subprotocol, headers = self._examine(request)
            caller = await self._identify(headers)
        except QueenError as refused:
            await link.reject(refused.status, error_reply(refused).body)
            return None
        if request.path.partition("?")[0] != PATH:
            await link.reject(404, no_such_route(request.path.partition("?")[0]).body)
            return None
        if not await link.accept(subprotocol):
            return None
        if self._sessions >= limits.WS_CONNECTIONS:
            link.close(wire.TOO_MANY, "too many connections")
            return None
        about = (self._api, self._broker, self._settings, self._shutdown, self._authorize)
        return Session(link, *about, headers, caller, self._sharing)

    def _examine(self, request: WebSocketRequest) -> tuple[str | None, Headers]:
        """The subprotocol to echo, and the headers that all requests of the connection will have. Raises BadRequest
        and Forbidden."""
        sent = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in request.headers}
        allowed = self._settings.allowed_origins
        if allowed and sent.get("origin", allowed[0]) not in allowed:
            raise Forbidden(f"connections from {sent['origin'][:200]} are not allowed here")
        offered = request.proposed_subprotocols
        if offered and wire.PROTOCOL not in offered:
            raise BadRequest(f"none of the offered subprotocols is known; this is {wire.PROTOCOL}")
        headers = {name: sent[name] for name in _FORWARDED if name in sent}
        tokens = [token for token in map(wire.bearer_of, offered) if token is not None]
        if tokens and "authorization" not in headers:
            headers["authorization"] = f"Bearer {tokens[0]}"
        return wire.PROTOCOL if offered else None, headers

    async def _identify(self, headers: Mapping[str, str]) -> Caller | None:
        """Who connects, None when that is not known: a token that does not hold raises; without one there is still a
        first frame."""
        try:
            return await self._authorize(Request("GET", PATH.encode(), headers=headers), Access.ANY)
        except Unauthorized:
            if "authorization" in headers:
                raise
            return None


async def serve_socket(
    stream: trio.abc.Stream, api: Api, broker: Broker, settings: Settings, shutdown: trio.Event
) -> None:
    """Run one connection to its end, as `Sockets.serve`, for a server that has no others."""
    await Sockets(api, broker, settings, shutdown).serve(stream)

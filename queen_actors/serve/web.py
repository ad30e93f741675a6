"""The web application: every request over HTTP becomes one `Api.handle` (hypercorn, quart-trio).

The routes are the API's own. Quart reads the body within its bounds, ends a request whose peer is gone, and writes the
reply; its router is never asked, so that no path is decoded, merged or redirected on the way.
"""

from __future__ import annotations

from contextlib import suppress
from typing import cast

import trio
from h11 import LocalProtocolError
from hypercorn.typing import ASGIReceiveCallable, ASGIReceiveEvent, ASGISendCallable, ASGISendEvent, HTTPScope, Scope
from quart import Response, request
from quart_trio import QuartTrio
from werkzeug.exceptions import BadRequest, RequestEntityTooLarge, RequestTimeout

from queen_actors import limits
from queen_actors.api import Reply, Request
from queen_actors.api.errors import error_reply
from queen_actors.api.messages import NO_BODY, value_reply
from queen_actors.errors import QueenError, TooLarge

from .intake import Intake, no_room
from .requests import origin_form


class Web:
    """The ASGI application."""

    def __init__(self, intake: Intake) -> None:
        self.intake = intake
        self._quart = QuartTrio("queen_actors", static_folder=None)
        self._quart.config["MAX_CONTENT_LENGTH"] = limits.BODY_BYTES
        self._quart.config["BODY_TIMEOUT"] = limits.HTTP_BODY_SECONDS
        self._quart.config["RESPONSE_TIMEOUT"] = None  # the connection bounds its writes by their progress
        self._quart.before_request(self._answer)

    async def __call__(self, scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        if scope["type"] == "http":
            await self._serve(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._refuse_websocket(receive, send)

    async def _serve(self, scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        exchange = _Exchange(self, scope, receive, send)
        try:
            # Quart gets one path for all: which one it is is read from `raw_path`, and an odd one cannot hurt it
            await self._quart({**scope, "path": "/"}, exchange.receive, exchange.send)
        finally:
            self.intake.give(exchange.body_bytes)
        await exchange.finish()

    async def _answer(self) -> Response:
        scope = cast("HTTPScope", request.scope)
        path = origin_form(scope["raw_path"])
        try:
            body = await request.get_data(cache=False, as_text=False, parse_form_data=False)
        except RequestEntityTooLarge:
            return _response(error_reply(body_too_large()))
        except RequestTimeout:
            detail = f"the body did not arrive within {limits.HTTP_BODY_SECONDS:g} s"
            return _response(value_reply({"error": detail, "code": "timeout"}, 408))
        except BadRequest:  # of the framework, for a body that it cannot read
            return _response(value_reply({"error": "the body cannot be read", "code": "bad_body"}, 400))
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        reply = await self.intake.answer(Request(scope["method"], path, scope["query_string"], headers, body))
        return _response(reply)

    async def _refuse_websocket(self, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """WebSockets are not served by hypercorn: what comes here asks for another path, or for ours on HTTP/2."""
        await receive()
        detail = "no WebSocket here; connect to /api/v1/ws with HTTP/1.1, as the first request or between two"
        reply = value_reply({"error": detail, "code": "no_such_route"}, 404)
        headers = [(name.encode(), value.encode()) for name, value in reply.headers.items()]
        with suppress(LocalProtocolError):  # the peer went on with what is no HTTP, and hypercorn has answered that
            await send({"type": "websocket.http.response.start", "status": reply.status, "headers": headers})
            await send({"type": "websocket.http.response.body", "body": reply.body, "more_body": False})


class _Exchange:
    """One request's events, between hypercorn and quart."""

    def __init__(self, web: Web, scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        self.body_bytes = 0
        self._web = web
        self._closes = scope["http_version"] < "2"  # where a header says that the connection ends with this response
        self._receive = receive
        self._send = send
        self._complete = False
        self._started = False
        self._last: ASGISendEvent | None = None
        self._refusal: QueenError | None = None

    async def receive(self) -> ASGIReceiveEvent:
        """The next event; a body that becomes too much is the end of quart's part (newer ones keep what they get until
        it is complete, whatever its length)."""
        event = await self._receive()
        if event["type"] == "http.request":
            self._complete = not event["more_body"]
            self.body_bytes += len(event["body"])
            room = self._web.intake.take(len(event["body"]))
            if self.body_bytes > limits.BODY_BYTES:
                self._refusal = body_too_large()
            elif not room:
                self._refusal = no_room()
            if self._refusal is not None:
                return {"type": "http.disconnect"}
        return event

    async def send(self, event: ASGISendEvent) -> None:
        """The end of the response waits for `finish`: hypercorn ends the request with it, which makes quart cancel
        itself in the middle of hypercorn's work, and the connection's keep-alive timer would never be started."""
        self._started = True
        if event["type"] == "http.response.body" and not event["more_body"]:
            self._last = event
        else:
            await self._send(event)

    async def finish(self) -> None:
        if self._complete and self._last is not None:
            await self._send(self._last)
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._discard)
            await self._respond()
            nursery.cancel_scope.cancel()

    async def _discard(self) -> None:
        """Take what still comes of the body: hypercorn's reader hands it over, and would wait for that for ever, and
        the end of the response with it."""
        while True:
            await self._receive()

    async def _respond(self) -> None:
        if self._last is not None:
            await self._send(self._last)
        elif self._refusal is not None and not self._started:
            reply = error_reply(self._refusal)
            headers = [(name.encode(), value.encode()) for name, value in reply.headers.items()]
            headers.append((b"content-length", b"%d" % len(reply.body)))
            if self._closes:
                headers.append((b"connection", b"close"))
            await self._send({"type": "http.response.start", "status": reply.status, "headers": headers})
            await self._send({"type": "http.response.body", "body": reply.body, "more_body": False})


def body_too_large() -> TooLarge:
    return TooLarge(f"a body takes at most {limits.BODY_BYTES} bytes", code="payload_too_large")


def _response(reply: Reply) -> Response:
    response = Response(reply.body, reply.status)
    response.headers.clear()
    response.headers.extend(reply.headers)
    if reply.status not in NO_BODY:
        response.headers["content-length"] = str(len(reply.body))
    return response

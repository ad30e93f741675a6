"""`GET /api/v1/ws` as an ordinary request: the WebSocket itself is served on its connection, never through the API."""

from __future__ import annotations

from queen_actors.wire.frames import encode

from .access import Access
from .call import Call, Route
from .messages import JSON, Reply


async def not_upgraded(call: Call) -> Reply:
    """426: a client that does not ask for the upgrade, or asks for it in a way that its connection cannot follow."""
    body = encode({"error": "this is a WebSocket: ask for the upgrade", "code": "upgrade_required"})
    return Reply(426, body, {**JSON, "upgrade": "websocket"})


ROUTES = (Route("GET", "/api/v1/ws", not_upgraded, Access.PUBLIC),)

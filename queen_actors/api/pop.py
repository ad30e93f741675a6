"""The pop routes. An empty pop is a 204, unless conflation was asked for: then the echo must be said (7.3, 7.7)."""

from __future__ import annotations

from queen_actors.wire.pop import parse_pop, render_pop

from .access import Access
from .call import Call, Route
from .messages import NO_CONTENT, Reply, json_reply


async def pop(call: Call) -> Reply:
    """Discovery, wildcard or pinned, by how many names the path has."""
    request = parse_pop(call.query(), *call.names)
    body = render_pop(await call.broker.pop(request), request)
    return NO_CONTENT if body is None else json_reply(body)


ROUTES = (
    Route("GET", "/api/v1/pop", pop, Access.READ_WRITE, waits=True),
    Route("GET", "/api/v1/pop/queue/*queue/partition/*partition", pop, Access.READ_WRITE, waits=True),
    Route("GET", "/api/v1/pop/queue/*queue", pop, Access.READ_WRITE, waits=True),
)

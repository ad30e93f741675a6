"""The pop routes. An empty pop is a 204, unless conflation was asked for: then the echo must be said (7.3, 7.7)."""

from __future__ import annotations

from functools import partial

from queen_actors.actors.log import deferral
from queen_actors.wire.pop import parse_pop, render_pop

from .access import Access
from .call import Call, Route
from .messages import NO_CONTENT, Reply, json_reply


async def pop(call: Call) -> Reply:
    """Discovery, wildcard or pinned, by how many names the path has."""
    request = parse_pop(call.query(), *call.names)
    reply = await call.broker.pop(request)
    later = deferral.get()
    if later is not None and reply.claims:
        later.firm = not reply.lease_id  # what was committed at its delivery cannot be taken back
        later.undo = partial(call.broker.withdraw, reply.lease_id) if reply.lease_id else None
    body = render_pop(reply, request)
    return NO_CONTENT if body is None else json_reply(body)


ROUTES = (
    Route("GET", "/api/v1/pop", pop, Access.READ_WRITE, waits=True),
    Route("GET", "/api/v1/pop/queue/*queue/partition/*partition", pop, Access.READ_WRITE, waits=True),
    Route("GET", "/api/v1/pop/queue/*queue", pop, Access.READ_WRITE, waits=True),
)

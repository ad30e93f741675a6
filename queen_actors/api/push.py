"""`POST /api/v1/push`."""

from __future__ import annotations

from queen_actors.wire.push import parse_push, render_push

from .access import Access
from .call import Call, Route
from .messages import Reply, json_reply


async def push(call: Call) -> Reply:
    call.refuse_binary()
    items = parse_push(call.body)
    outcomes = await call.broker.push(items, producer=call.caller.subject) if items else []
    return json_reply(render_push(outcomes), 201)


ROUTES = (Route("POST", "/api/v1/push", push, Access.WRITE),)

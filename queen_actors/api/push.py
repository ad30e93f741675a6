"""`POST /api/v1/push`."""

from __future__ import annotations

from queen_actors.wire.binary import parse_binary_push, render_counts
from queen_actors.wire.push import parse_push, render_push

from .access import Access
from .call import Call, Route
from .messages import Reply, json_reply


async def push(call: Call) -> Reply:
    items, counts = parse_binary_push(call.body) if call.binary else (parse_push(call.body), False)
    outcomes = await call.broker.push(items, producer=call.caller.subject) if items else []
    return json_reply(render_counts(outcomes) if counts else render_push(outcomes), 201)


ROUTES = (Route("POST", "/api/v1/push", push, Access.WRITE),)

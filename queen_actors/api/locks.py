"""`POST /api/v1/locks`."""

from __future__ import annotations

from queen_actors.wire.locks import parse_locks, render_locks

from .access import Access
from .call import Call, Route
from .messages import Reply, json_reply


async def batch(call: Call) -> Reply:
    ops = parse_locks(call.body)
    results = await call.broker.locks(ops) if ops else []
    return json_reply(render_locks(results))


ROUTES = (Route("POST", "/api/v1/locks", batch, Access.READ_WRITE, "locks"),)

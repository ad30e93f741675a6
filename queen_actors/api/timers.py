"""The timer routes."""

from __future__ import annotations

from queen_actors.domain.timers import Cancel
from queen_actors.wire.frames import encode
from queen_actors.wire.timers import (
    check_timer,
    parse_count,
    parse_list,
    parse_timers,
    render_page,
    render_peek,
    render_timer,
    render_timers,
)

from .access import Access
from .call import Call, Route
from .messages import Reply, json_reply


async def batch(call: Call) -> Reply:
    ops = parse_timers(call.body, call.horizon())
    results = await call.broker.timers(ops, producer=call.caller.subject) if ops else []
    return json_reply(render_timers(results))


async def cancel(call: Call) -> Reply:
    queue, key = check_timer(*call.names)
    (result,) = await call.broker.timers([Cancel(queue, key, call.query().get("txn"))])
    return json_reply(render_timer(result))


async def peek(call: Call) -> Reply:
    queue, key = check_timer(*call.names)
    return json_reply(render_peek(queue, key, await call.broker.timer(queue, key)))


async def read(call: Call) -> Reply:
    """A page of the queue's pending timers, or with `mode=count` how many have a prefix."""
    (queue,) = call.names
    query = call.query()
    if query.get("mode"):
        return json_reply(encode({"count": await call.broker.timer_count(queue, parse_count(query))}))
    after, limit = parse_list(query)
    return json_reply(render_page(await call.broker.timer_page(queue, after, limit)))


ROUTES = (
    Route("POST", "/api/v1/timers", batch, Access.WRITE, "timers"),
    Route("DELETE", "/api/v1/timers/:queue/*key", cancel, Access.READ_WRITE, "timers"),
    Route("GET", "/api/v1/timers/:queue/*key", peek, Access.READ, "timers"),
    Route("GET", "/api/v1/timers/:queue", read, Access.READ, "timers"),
)

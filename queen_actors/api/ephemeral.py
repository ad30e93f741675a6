"""Ephemeral queues. A 404 of this family always has its own code: clients read any other as "not supported here"."""

from __future__ import annotations

from queen_actors.errors import NotFound
from queen_actors.wire.ephemeral import (
    NOT_FOUND,
    check,
    parse_acks,
    parse_configure,
    parse_pop,
    parse_push,
    parse_reset,
    render_acks,
    render_configured,
    render_depth,
    render_pop,
    render_views,
)

from .access import Access
from .call import Call, Route
from .messages import Reply, json_reply, value_reply


async def configure(call: Call) -> Reply:
    return json_reply(render_configured(call.broker.ephemeral.configure(*parse_configure(call.body))), 201)


async def push(call: Call) -> Reply:
    asked = parse_push(call.body)
    pushed = call.broker.ephemeral.push(asked.queue, asked.partition, asked.payloads) if asked.payloads else 0
    return value_reply({"pushed": pushed}, 201)


async def pop(call: Call) -> Reply:
    request = parse_pop(call.query())
    return json_reply(render_pop(request.queue, await call.broker.ephemeral.pop(request)))


def nothing(call: Call) -> Reply:
    """The answer of a pop that is let go because the server stops."""
    return json_reply(render_pop(parse_pop(call.query()).queue, ()))


async def ack(call: Call) -> Reply:
    asked = parse_acks(call.body)
    return json_reply(render_acks(asked, call.broker.ephemeral.ack(asked.queue, asked.group, asked.acks)))


async def reset(call: Call) -> Reply:
    queue = parse_reset(call.body)
    return value_reply({"queue": queue, "dropped": call.broker.ephemeral.reset(queue)})


async def delete(call: Call) -> Reply:
    (queue,) = call.names
    check(queue)
    deleted, declared = call.broker.ephemeral.delete(queue)
    return value_reply({"queue": queue, "deleted": deleted, "declared": declared})


async def queues(call: Call) -> Reply:
    return json_reply(render_views(call.broker.ephemeral.views(), call.broker.ephemeral.cost))


async def depth(call: Call) -> Reply:
    (queue,) = call.names
    group = call.query().get("group") or None
    check(queue, None, group)
    found = call.broker.ephemeral.depth(queue, group)
    if found is None:
        raise NotFound("there is no ephemeral queue of that name", code=NOT_FOUND)
    return json_reply(render_depth(*found, group))


_FAMILY = "/api/v1/ephemeral"
ROUTES = (
    Route("POST", f"{_FAMILY}/configure", configure, Access.READ_WRITE),
    Route("POST", f"{_FAMILY}/push", push, Access.WRITE),
    Route("GET", f"{_FAMILY}/pop", pop, Access.READ_WRITE, waits=True, let_go=nothing),
    Route("POST", f"{_FAMILY}/ack", ack, Access.READ_WRITE),
    Route("POST", f"{_FAMILY}/reset", reset, Access.READ_WRITE),
    Route("DELETE", f"{_FAMILY}/queue/*queue", delete, Access.READ_WRITE),
    Route("GET", f"{_FAMILY}/queues", queues, Access.READ),
    Route("GET", f"{_FAMILY}/queues/*queue/depth", depth, Access.READ),
)

"""Streaming queries. A refused cycle is an answer, which its worker reads; a registration of another shape is a 409."""

from __future__ import annotations

from queen_actors.domain.streams import Mismatch
from queen_actors.wire.streams import (
    parse_cycle,
    parse_register,
    parse_state_read,
    render_cycle,
    render_mismatch,
    render_registered,
    render_state,
)

from .access import Access
from .call import Call, Route
from .messages import Reply, json_reply


async def register(call: Call) -> Reply:
    reply = await call.broker.streams.register(parse_register(call.body))
    if isinstance(reply, Mismatch):
        return json_reply(render_mismatch(reply), 409)
    return json_reply(render_registered(reply))


async def state(call: Call) -> Reply:
    return json_reply(render_state(await call.broker.streams.read(parse_state_read(call.body))))


async def cycle(call: Call) -> Reply:
    step = parse_cycle(call.body)
    reply = await call.broker.streams.cycle(step, producer=call.caller.subject)
    return json_reply(render_cycle(step, reply))


ROUTES = (
    Route("POST", "/streams/v1/queries", register, Access.READ_WRITE),
    Route("POST", "/streams/v1/state/get", state, Access.READ),
    Route("POST", "/streams/v1/cycle", cycle, Access.READ_WRITE),
)

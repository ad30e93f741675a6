"""Acknowledgments and lease extension."""

from __future__ import annotations

from queen_actors.wire.ack import parse_acks, parse_extend, render_acks, render_extend

from .access import Access
from .call import Call, Route
from .messages import Reply, json_reply


async def ack(call: Call) -> Reply:
    """Both routes take one ack or a batch, and answer one entry per ack."""
    acks = parse_acks(call.body)
    outcomes = await call.broker.ack(acks) if acks else ()
    return json_reply(render_acks(outcomes))


async def extend(call: Call) -> Reply:
    (lease_id,) = call.names
    extended = await call.broker.extend(lease_id, parse_extend(call.body))
    return json_reply(render_extend(lease_id, extended))


ROUTES = (
    Route("POST", "/api/v1/ack", ack, Access.READ_WRITE),
    Route("POST", "/api/v1/ack/batch", ack, Access.READ_WRITE),
    Route("POST", "/api/v1/lease/:lease/extend", extend, Access.READ_WRITE),
)

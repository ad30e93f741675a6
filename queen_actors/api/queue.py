"""Queues, dead letters, single messages and traces."""

from __future__ import annotations

from queen_actors.errors import NotFound
from queen_actors.wire.frames import parse_pid
from queen_actors.wire.queue import (
    parse_configure,
    parse_letters,
    parse_trace,
    render_configured,
    render_deleted,
    render_letters,
    render_message,
    render_queue,
)

from .access import Access
from .call import Call, Route
from .messages import Reply, json_reply, value_reply


async def configure(call: Call) -> Reply:
    return json_reply(render_configured(await call.broker.configure(parse_configure(call.body))))


async def read(call: Call) -> Reply:
    view = await call.broker.queue_view(*call.names)
    if view is None:
        raise NotFound("Queue not found")
    return json_reply(render_queue(view))


async def delete(call: Call) -> Reply:
    (queue,) = call.names
    return json_reply(render_deleted(queue, await call.broker.delete_queue(queue)))


async def dead_letters(call: Call) -> Reply:
    asked = parse_letters(call.query())
    letters, total = await call.broker.dead_letters(
        queue=asked.queue,
        group=asked.group,
        partition=asked.partition,
        since=asked.since,
        until=asked.until,
        limit=asked.limit,
        offset=asked.offset,
    )
    return json_reply(render_letters(letters, total, asked))


async def message(call: Call) -> Reply:
    pid_text, txn = call.names
    pid = parse_pid(pid_text)
    view = None if pid is None else await call.broker.message(pid, txn)
    if view is None:
        raise NotFound("Message not found")
    return json_reply(render_message(view))


async def trace(call: Call) -> Reply:
    event = parse_trace(call.body)
    trace_id = await call.broker.trace(
        pid=event.pid,
        txn=event.txn,
        group=event.group,
        names=event.names,
        event=event.event,
        data=event.data,
        worker=event.worker,
    )
    if trace_id is None:
        return value_reply({"success": False, "error": "Partition not found"}, 404)
    return value_reply({"success": True, "traceId": trace_id}, 201)


ROUTES = (
    Route("POST", "/api/v1/configure", configure, Access.READ_WRITE),
    Route("GET", "/api/v1/resources/queues/*queue", read, Access.READ),
    Route("DELETE", "/api/v1/resources/queues/*queue", delete, Access.ADMIN),
    Route("GET", "/api/v1/dlq", dead_letters, Access.READ),
    Route("GET", "/api/v1/messages/:partition/*transaction", message, Access.READ),
    Route("POST", "/api/v1/traces", trace, Access.READ_WRITE),
)

"""Reading by offset, by change and by list; traces."""

from __future__ import annotations

from queen_actors.wire.frames import parse_pid
from queen_actors.wire.reads import (
    parse_changed,
    parse_fetch,
    parse_messages,
    parse_page,
    render_changed,
    render_fetched,
    render_messages,
    render_trace_names,
    render_traces,
)

from .access import Access
from .call import Call, Route
from .messages import Reply, json_reply


async def fetch(call: Call) -> Reply:
    asked = parse_fetch(call.body)
    answers = await call.broker.reads.fetch(asked.entries, asked.max_bytes, asked.min_bytes, asked.wait)
    return json_reply(render_fetched(answers))


async def changed(call: Call) -> Reply:
    entries = parse_changed(call.body)
    wanted = [(entry.queue, entry.since, entry.after, entry.limit) for entry in entries if entry.after is not None]
    found = iter(await call.broker.reads.changed(wanted))
    pages = [None if entry.after is None else next(found) for entry in entries]
    return json_reply(render_changed(entries, pages, call.broker.clock.now()))


async def messages(call: Call) -> Reply:
    wanted = parse_messages(call.query(), call.broker.clock.now())
    return json_reply(render_messages(await call.broker.reads.messages(wanted), wanted))


async def trace_names(call: Call) -> Reply:
    page = parse_page(call.query())
    return json_reply(render_trace_names(await call.broker.reads.trace_names(), page))


async def traces_by_name(call: Call) -> Reply:
    (name,) = call.names
    page = parse_page(call.query())
    return json_reply(render_traces(await call.broker.reads.traces(name=name), page))


async def traces_of_message(call: Call) -> Reply:
    pid_text, txn = call.names
    pid, page = parse_pid(pid_text), parse_page(call.query())
    found = [] if pid is None else await call.broker.reads.traces(pid=pid, txn=txn)
    return json_reply(render_traces(found, page))


ROUTES = (
    Route("POST", "/api/v1/fetch", fetch, Access.READ, waits=True),
    Route("POST", "/api/v1/partitions/changed", changed, Access.READ),
    Route("GET", "/api/v1/messages", messages, Access.READ),
    Route("GET", "/api/v1/traces/names", trace_names, Access.READ),
    Route("GET", "/api/v1/traces/by-name/*name", traces_by_name, Access.READ),
    Route("GET", "/api/v1/traces/:partition/*transaction", traces_of_message, Access.READ),
)

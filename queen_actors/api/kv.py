"""The KV routes: the batch, and the path routes that carry one op."""

from __future__ import annotations

from queen_actors.wire.kv import parse_kv, parse_kv_path
from queen_actors.wire.kv_results import render_kv, render_kv_single

from .access import Access
from .call import Call, Route
from .messages import JSON, Reply, json_reply


async def batch(call: Call) -> Reply:
    ops = parse_kv(call.body)
    results = await call.broker.kv(ops) if ops else []
    return json_reply(render_kv(results))


async def _single(call: Call, word: str) -> Reply:
    ns, key = call.names
    op = parse_kv_path(word, ns, key, call.request.query, call.body)
    body, version = render_kv_single(await call.broker.kv([op]))
    return json_reply(body) if version is None else Reply(200, body, {**JSON, "etag": f'"{version}"'})


async def get(call: Call) -> Reply:
    return await _single(call, "get")


async def put(call: Call) -> Reply:
    return await _single(call, "put")


async def delete(call: Call) -> Reply:
    return await _single(call, "delete")


ROUTES = (
    Route("POST", "/api/v1/kv", batch, Access.READ_WRITE, "kv"),
    Route("GET", "/api/v1/kv/:ns/*key", get, Access.READ, "kv"),
    Route("PUT", "/api/v1/kv/:ns/*key", put, Access.READ_WRITE, "kv"),
    Route("DELETE", "/api/v1/kv/:ns/*key", delete, Access.READ_WRITE, "kv"),
)

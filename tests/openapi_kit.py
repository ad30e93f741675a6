"""Every answer that a test sees is compared with the OpenAPI description: its status, its type, each of its fields."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import jsonschema_rs

from queen_actors.api import Api, Reply, Request
from queen_actors.api.openapi import document, path_of
from queen_actors.api.routes import TABLE, Router
from queen_actors.errors import QueenError

_ROUTER = Router()
_EVERYWHERE = {"": {400, 404, 405}}
"""What a path without a route is answered."""


@cache
def described() -> dict[str, Any]:
    """The document, as a client reads it, with no field allowed that it does not name."""
    from queen_actors.wire.frames import encode

    found = json.loads(encode(document(TABLE)))
    _close(found)
    return dict(found)


def _close(node: Any) -> None:
    if isinstance(node, dict):
        if node.get("type") == "object" and "properties" in node:
            node.setdefault("additionalProperties", False)
        for value in node.values():
            _close(value)
    elif isinstance(node, list):
        for value in node:
            _close(value)


@cache
def _validator(method: str, pattern: str, status: int, media: str) -> Any:
    """A validator of a body, or a text that says what is not described."""
    operation = described()["paths"][path_of(pattern)][method.lower()]
    response = operation["responses"].get(str(status))
    if response is None:
        return f"{status} is not described"
    if "$ref" in response:
        response = described()["components"]["responses"][str(status)]
    content = response.get("content")
    if content is None:
        return None
    if media not in content:
        return f"content type {media!r} is not described"
    if media != "application/json":
        return None
    schema = copy.deepcopy(content[media]["schema"])
    return jsonschema_rs.Draft202012Validator({**schema, "components": described()["components"]})


def difference(method: str, raw_path: bytes, status: int, headers: Mapping[str, str], body: bytes) -> str | None:
    """How an answer differs from its description; None when it does not."""
    try:
        found = _ROUTER.find(method, raw_path)
    except QueenError:
        found = None
    if found is None:
        return None if status in _EVERYWHERE[""] else f"{status} for a path without a route"
    route = found[0]
    validator = _validator(method, route.pattern, status, headers.get("content-type", ""))
    if isinstance(validator, str):
        return validator
    if validator is None:
        return None if method == "HEAD" or not body or "json" not in headers.get("content-type", "") else "a body"
    if "retry-after" not in headers and status in (429, 503):
        return "no Retry-After"
    error = next(validator.iter_errors(json.loads(body)), None)
    return None if error is None else f"{error.message} at {list(error.instance_path)}"


DIFFERENCES: list[str] = []
SEEN: set[tuple[str, str, int]] = set()


def watch() -> None:
    """From now on note every answer of every `Api` that differs from its description."""
    handle = Api.handle

    async def watched(api: Api, request: Request, **options: Any) -> Reply:
        reply = await handle(api, request, **options)
        told = difference(request.method, request.raw_path, reply.status, reply.headers, reply.body)
        if told is not None:
            DIFFERENCES.append(f"{request.method} {request.raw_path!r}: {told}: {reply.status} {reply.body[:300]!r}")
        return reply

    Api.handle = watched  # type: ignore[method-assign]  # that is how it watches

"""The OpenAPI 3.1 description of the HTTP API, made from the route table and the record types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, get_args

import msgspec

from queen_actors import __version__
from queen_actors.wire.binary import CONTENT_TYPE

from .access import Access
from .auth import ROLES
from .call import Route
from .described import DESCRIBED, AnyOf, Body, Described, Fields, ListOf
from .shapes import Error

Schema = dict[str, Any]

_TEMPLATE = "#/components/schemas/{name}"
_JSON = "application/json"
_FAILURES: Mapping[int, str] = {
    400: "The call cannot be understood, or breaks a rule; nothing of it was applied.",
    401: "No token, or none that is valid; only where tokens are turned on.",
    403: "The token's roles do not reach, or a limit that is set by policy is passed.",
    404: "There is none.",
    408: "The request did not arrive in time.",
    409: "It does not fit what is there.",
    413: "A body, a name or a value is over its bound.",
    426: "This is a WebSocket.",
    429: "The broker works at its bound: send it again after `Retry-After` seconds.",
    431: "The request's head is too long.",
    500: "A fault of the broker's; the state is as it was.",
    503: "Not now: starting, stopping, or a deadline passed. Send it again after `Retry-After` seconds.",
    507: "The disk is full: nothing was written, and reads go on.",
}
_SUCCESSES = {
    101: "The WebSocket begins.",
    200: "Done.",
    201: "Done, and durable.",
    204: "Nothing there.",
    304: "As it was.",
}


_ABOUT = (
    "A message broker: partitioned queues, keys, locks, timers, transactions. The status says how the call went; what "
    "an operation found is a field of a 200. A variable piece of a path may hold an escaped slash (`%2F`): it is data. "
    "Any call may also be refused with 405 (the path has other methods, named in `Allow`) and, when it is no HTTP "
    "request, with 400, 408, 417 or 431. The WebSocket protocol is described at `/static/asyncapi.json`."
)


def document(routes: Iterable[Route]) -> dict[str, Any]:
    """The description of these routes, as plain JSON values. Raises KeyError for a route that is not described."""
    schemas = Schemas()
    error = schemas.of(Error)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        described = DESCRIBED[f"{route.method} {route.pattern}"]
        paths.setdefault(path_of(route.pattern), {})[route.method.lower()] = _operation(
            route, described, schemas, error
        )
    return {
        "openapi": "3.1.0",
        "jsonSchemaDialect": "https://spec.openapis.org/oas/3.1/dialect/base",
        "info": {
            "title": "queen_actors",
            "version": __version__,
            "license": {"name": "Apache 2.0", "identifier": "Apache-2.0"},
            "description": _ABOUT,
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": tag} for tag in dict.fromkeys(one.tag for one in DESCRIBED.values())],
        "security": [],
        "paths": paths,
        "components": {
            "schemas": schemas.found,
            "responses": {
                str(status): {"description": said, "content": {_JSON: {"schema": error}}} | _headers(status)
                for status, said in _FAILURES.items()
            },
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "bearerFormat": "JWT",
                    "description": f"With a claim `role`, or `roles`: {', '.join(ROLES)}.",
                }
            },
        },
    }


def path_of(pattern: str) -> str:
    """The route's pattern as a path of the document: `:name` and `*name` are `{name}`."""
    return "/".join(f"{{{piece[1:]}}}" if piece[:1] in (":", "*") else piece for piece in pattern.split("/"))


def _operation(route: Route, described: Described, schemas: Schemas, error: Schema) -> dict[str, Any]:
    pieces = [piece for piece in route.pattern.split("/") if piece[:1] in (":", "*")]
    words = [piece.lstrip(":*") for piece in route.pattern.split("/") if piece not in ("", "api", "v1")]
    operation: dict[str, Any] = {
        "operationId": "-".join([route.method.lower(), *words]),
        "tags": [described.tag],
        "summary": described.summary,
        "parameters": [_path_parameter(piece) for piece in pieces] + _query_parameters(described),
        "responses": {str(status): one for status, one in _responses(route, described, schemas, error)},
    }
    if route.access is not Access.PUBLIC:
        operation["security"] = [{}, {"bearer": []}]
    if described.body is not None:
        operation["requestBody"] = _request_body(described.body, schemas)
    return operation


def _path_parameter(piece: str) -> Schema:
    return {"name": piece[1:], "in": "path", "required": True, "schema": {"type": "string"}}


def _query_parameters(described: Described) -> list[Schema]:
    return [
        {"name": name.rstrip("!"), "in": "query", "required": name.endswith("!"), "schema": dict(schema)}
        for name, schema in described.query.items()
    ]


def _request_body(body: Body, schemas: Schemas) -> Schema:
    schema = schemas.of(body.of)
    if body.empty:
        schema = {"anyOf": [schema, {"type": "array", "maxItems": 0}, {"type": "null"}]}
    content: dict[str, Any] = {_JSON: {"schema": schema}}
    if body.binary:
        content[CONTENT_TYPE] = {"schema": {"description": "The binary form, whose layout the SDKs know."}}
    return {"required": body.required, "content": content}


def _responses(
    route: Route, described: Described, schemas: Schemas, error: Schema
) -> Iterable[tuple[int, dict[str, Any]]]:
    for status, shape in described.answers.items():
        response: dict[str, Any] = {"description": _SUCCESSES[status]}
        if shape is not None:
            response["content"] = {described.media: {"schema": schemas.of(shape)}}
        if status == 200 and route.pattern == "/api/v1/kv/:ns/*key" and route.method == "GET":
            response["headers"] = {"ETag": {"description": "The version.", "schema": {"type": "string"}}}
        yield status, response
    shapes: dict[int, list[Schema]] = {status: [error] for status in _usual(route, described)}
    for status, shape in described.refusals.items():
        one = schemas.of(shape)
        known = shapes.setdefault(status, [])
        if one not in known:
            known.append(one)
    for status, found in sorted(shapes.items()):
        if found == [error] and route.method != "HEAD":
            yield status, {"$ref": f"#/components/responses/{status}"}
            continue
        response = {"description": _FAILURES[status]}
        if route.method != "HEAD":
            response["content"] = {_JSON: {"schema": found[0] if len(found) == 1 else {"anyOf": found}}}
        yield status, response | _headers(status)


def _headers(status: int) -> Schema:
    if status not in (429, 503):
        return {}
    seconds = {"type": "integer", "minimum": 1}
    return {"headers": {"Retry-After": {"description": "Seconds.", "required": True, "schema": seconds}}}


def _usual(route: Route, described: Described) -> Iterable[int]:
    """The statuses of what may go wrong with any such call."""
    if route.pattern.startswith("/static/"):
        return ()
    found = [500, 503]
    named = any(piece[:1] in (":", "*") for piece in route.pattern.split("/"))
    if named or described.query or described.body is not None:
        found += [400, 413]
    if route.access is not Access.PUBLIC:
        found += [401, 403]
    if route.method != "GET" and route.method != "HEAD":
        found += [408, 429, 507]
    elif route.waits:  # a pop writes leases
        found += [429, 507]
    return found


class Schemas:
    """Collects the schemas of record types under their public names."""

    def __init__(self) -> None:
        self.found: dict[str, Schema] = {}

    def of(self, shape: Any) -> Schema:
        """The schema of a type, an `AnyOf`, a `ListOf` or `Fields`; records are references."""
        if isinstance(shape, AnyOf):
            return {"anyOf": [self.of(one) for one in shape.of]}
        if isinstance(shape, ListOf):
            return {"type": "array", "items": self.of(shape.of)}
        if isinstance(shape, Fields):
            properties = {name.rstrip("?"): self.of(one) for name, one in shape.of.items()}
            required = [name for name in shape.of if not name.endswith("?")]
            return {"type": "object", "properties": properties, "required": required}
        (schema,), components = msgspec.json.schema_components([shape], ref_template=_TEMPLATE)
        public = {name: _public(shape, name) for name in components}
        text = msgspec.json.encode([schema, components]).decode()
        for name, other in public.items():
            text = text.replace(f'"{_TEMPLATE.format(name=name)}"', f'"{_TEMPLATE.format(name=other)}"')
        main, renamed = msgspec.json.decode(text, type=tuple[Schema, dict[str, Schema]])
        for name, component in renamed.items():
            self.found[public[name]] = {**component, "title": public[name]}
        return main


def _public(shape: Any, name: str) -> str:
    """The name of a record in the document: a private one is called after its module too, since many have the same."""
    if not name.startswith("_"):
        return name
    modules = {kind.__module__.rpartition(".")[2] for kind in _records(shape) if kind.__name__ == name}
    return f"{'_'.join(sorted(modules))}{name}"


def _records(shape: Any, seen: set[Any] | None = None) -> Iterable[type]:
    """The record types that a type is made of."""
    seen = set() if seen is None else seen
    if shape in seen:
        return
    seen.add(shape)
    if isinstance(shape, type) and issubclass(shape, msgspec.Struct):
        yield shape
        for field in msgspec.structs.fields(shape):
            yield from _records(field.type, seen)
        return
    for part in get_args(shape):
        yield from _records(part, seen)

"""The OpenAPI description: every route is in it, it is valid, and what the server answers is what it says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from openapi_kit import difference
from openapi_spec_validator import OpenAPIV31SpecValidator

from queen_actors.api.call import Route
from queen_actors.api.described import DESCRIBED
from queen_actors.api.openapi import document, path_of
from queen_actors.api.routes import TABLE
from queen_actors.wire.frames import encode

VIRTUAL_TIME = True
DOCUMENT: dict[str, Any] = json.loads(encode(document(TABLE)))


def walk(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
        for value in node.values():
            yield from walk(value)
    elif isinstance(node, list):
        for value in node:
            yield from walk(value)


def test_it_is_valid_openapi() -> None:
    """The validator of the specification has nothing to say."""
    assert list(OpenAPIV31SpecValidator(DOCUMENT).iter_errors()) == []


def test_every_route_is_described_and_nothing_else() -> None:
    """The description's operations are those of the route table, each with an id of its own."""
    routes = {(path_of(route.pattern), route.method.lower()) for route in TABLE}
    operations = {(path, method) for path, item in DOCUMENT["paths"].items() for method in item}
    assert operations == routes
    assert set(DESCRIBED) == {f"{route.method} {route.pattern}" for route in TABLE}
    ids = [operation["operationId"] for item in DOCUMENT["paths"].values() for operation in item.values()]
    assert len(set(ids)) == len(ids)


def test_a_route_that_is_not_described_fails() -> None:
    """The control of the test above: a new route without words breaks the document."""
    route = Route("GET", "/new", TABLE[0].handler, TABLE[0].access)
    with pytest.raises(KeyError, match="GET /new"):
        document([*TABLE, route])


def test_every_reference_leads_somewhere_and_every_schema_is_used() -> None:
    """References stay inside the document, and no schema is left over."""
    used = set()
    for node in walk(DOCUMENT):
        if "$ref" in node:
            used.add(node["$ref"])
            target: Any = DOCUMENT
            for piece in node["$ref"].removeprefix("#/").split("/"):
                target = target[piece]
            assert target
    assert {f"#/components/schemas/{name}" for name in DOCUMENT["components"]["schemas"]} <= used


def test_every_operation_says_what_goes_wrong() -> None:
    """What is guarded has 401 and 403, what writes 507, every variable piece of a path its parameter."""
    for route in TABLE:
        operation = DOCUMENT["paths"][path_of(route.pattern)][route.method.lower()]
        statuses = set(operation["responses"])
        assert ("401" in statuses) == (route.access.name != "PUBLIC"), route.pattern
        if route.method in ("POST", "PUT", "DELETE"):
            assert "507" in statuses, route.pattern
        names = {one["name"] for one in operation["parameters"] if one["in"] == "path"}
        assert names == {piece[1:] for piece in route.pattern.split("/") if piece[:1] in (":", "*")}


async def test_it_is_served(client: Any) -> None:
    """At /static/openapi.json, for everybody, with a tag for who has it already."""
    reply = await client.reply("GET", "/static/openapi.json")
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/json"
    assert json.loads(reply.body) == DOCUMENT
    again = await client.reply("GET", "/static/openapi.json", headers={"if-none-match": reply.headers["etag"]})
    assert again.status == 304


@pytest.mark.parametrize(
    ("status", "media", "body"),
    [
        (418, "application/json", b"{}"),
        (200, "text/plain", b"healthy"),
        (200, "application/json", b'{"status":"healthy"}'),
        (200, "application/json", b'{"status":"healthy","engine":"e","version":1}'),
        (200, "application/json", b'{"status":"healthy","engine":"e","version":"1","more":1}'),
    ],
)
def test_an_answer_that_is_not_described_is_noticed(status: int, media: str, body: bytes) -> None:
    """The control of the check that every test of the API goes through: a status, a type, a field more or less."""
    good = b'{"status":"healthy","engine":"e","version":"1"}'
    assert difference("GET", b"/health", 200, {"content-type": "application/json"}, good) is None
    assert difference("GET", b"/health", status, {"content-type": media}, body) is not None

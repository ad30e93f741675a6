"""The AsyncAPI description holds together: its references, its examples and the record types they stand for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from queen_actors.api.asyncapi import document
from queen_actors.api.protocol import EVENT_RECORDS, EVENTS, OPERATIONS

DOCUMENT: dict[str, Any] = json.loads(msgspec.json.encode(document()))


def walk(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
        for value in node.values():
            yield from walk(value)
    elif isinstance(node, list):
        for value in node:
            yield from walk(value)


@pytest.mark.parametrize("name", EVENT_RECORDS)
def test_examples_of_events_are_their_records(name: str) -> None:
    """What the record type writes of the example is the example."""
    record = msgspec.json.decode(msgspec.json.encode(EVENTS[name].example), type=EVENT_RECORDS[name])
    assert json.loads(msgspec.json.encode(record)) == EVENTS[name].example


def test_every_reference_leads_somewhere() -> None:
    """AsyncAPI documents refer to their own parts."""
    for node in walk(DOCUMENT):
        if "$ref" in node:
            target: Any = DOCUMENT
            for piece in node["$ref"].removeprefix("#/").split("/"):
                target = target[piece]
            assert target


def test_each_message_has_an_example_with_its_fields() -> None:
    """Every required field of a request is in its example, and nothing that the schema does not know."""
    messages = DOCUMENT["components"]["messages"]
    schemas = DOCUMENT["components"]["schemas"]
    for op in OPERATIONS:
        message = messages[f"{op.replace('.', '-')}-request"]
        (example,) = message["examples"]
        parts = message["payload"].get("allOf", [message["payload"]])
        parts = [schemas[one["$ref"].rpartition("/")[2]] if "$ref" in one else one for one in parts]
        fields = set().union(*(one["properties"] for one in parts))
        required = set().union(*(one.get("required", ()) for one in parts))
        assert required <= example["payload"].keys() <= fields, op

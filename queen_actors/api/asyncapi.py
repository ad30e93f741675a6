"""The AsyncAPI 3 description of the WebSocket protocol, made from the record types that the server itself uses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from queen_actors import __version__
from queen_actors.wire import socket

from .protocol import EVENT_RECORDS, EVENTS, OPERATIONS, RECORDS, Operation

Schema = dict[str, Any]

_SCALAR: Schema = {"type": ["string", "number", "boolean"], "description": "The client's own; the reply has it too."}
_ERROR: Schema = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in ("error", "code", "reason", "detail")},
    "required": ["error"],
}
_PLAIN_EVENTS: Mapping[str, Schema] = {
    "pong": {"type": "object", "properties": {"event": {"const": "pong"}, "id": _SCALAR}, "required": ["event"]},
    "error": {
        "type": "object",
        "properties": {
            "event": {"const": "error"},
            "op": {"type": "string"},
            "sub": {"type": "string"},
            "status": {"type": "integer"},
            "error": _ERROR,
        },
        "required": ["event", "status", "error"],
    },
}
_CHANNEL = "#/channels/connection"


def document() -> dict[str, Any]:
    """The description, as plain JSON values."""
    schemas: dict[str, Schema] = {"error": _ERROR}
    messages: dict[str, Any] = {}
    operations: dict[str, Any] = {}
    for op, operation in OPERATIONS.items():
        name = op.replace(".", "-")
        messages[f"{name}-request"] = _request(op, operation, schemas)
        messages[f"{name}-reply"] = _reply(op, operation)
        operations[name] = {
            "action": "receive",
            "summary": operation.summary,
            "channel": {"$ref": _CHANNEL},
            "messages": [_in_channel(f"{name}-request")],
            "reply": {
                "channel": {"$ref": _CHANNEL},
                "messages": [_in_channel("pong" if op == "ping" else f"{name}-reply"), _in_channel("refusal")],
            },
        }
    del messages["ping-reply"]  # it is answered by an event
    operations["ping"]["reply"]["messages"] = [_in_channel("pong")]
    messages["refusal"] = _refusal()
    for name, told in EVENTS.items():
        payload = _PLAIN_EVENTS.get(name) or _record(EVENT_RECORDS[name], f"{name}Event", schemas)
        examples = [{"name": name, "payload": told.example}]
        messages[name] = {"summary": told.summary, "payload": payload, "examples": examples}
    operations["events"] = {
        "action": "send",
        "summary": "What the broker says by itself, the moment that it is durable.",
        "channel": {"$ref": _CHANNEL},
        "messages": [_in_channel(name) for name in EVENTS if name != "pong"],
    }
    return {
        "asyncapi": "3.0.0",
        "info": _info(),
        "defaultContentType": "application/json",
        "servers": _servers(),
        "channels": {
            "connection": {
                "address": "/api/v1/ws",
                "description": f"Subprotocol `{socket.PROTOCOL}`. Frames are text, one JSON object each.",
                "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in messages},
                "bindings": {"ws": {"method": "GET", "bindingVersion": "0.1.0"}},
            }
        },
        "operations": operations,
        "components": {"messages": messages, "schemas": schemas, "securitySchemes": _security()},
    }


def _info() -> dict[str, Any]:
    return {
        "title": "queen_actors",
        "version": __version__,
        "description": (
            "A request names its `op` and an `id`, and is answered by one reply with that `id`. Requests may be sent "
            "without waiting; they take effect in the order in which they were sent. Nothing is said before it is "
            "durable. A verdict, such as a lost condition or a held lock, is an `ok` reply."
        ),
        "license": {"name": "Apache-2.0"},
    }


def _servers() -> dict[str, Any]:
    security = [{"$ref": f"#/components/securitySchemes/{name}"} for name in _security()]
    return {"broker": {"host": "127.0.0.1:6632", "protocol": "ws", "security": security}}


def _security() -> dict[str, Any]:
    return {
        "bearer": {
            "type": "http",
            "scheme": "bearer",
            "bearerFormat": "JWT",
            "description": "Where the broker asks for tokens.",
        },
        "subprotocol": {
            "type": "httpApiKey",
            "in": "header",
            "name": "Sec-WebSocket-Protocol",
            "description": f"For browsers: `{socket.PROTOCOL}, {socket.BEARER}<base64url of the token>`.",
        },
    }


def _in_channel(message: str) -> dict[str, str]:
    return {"$ref": f"{_CHANNEL}/messages/{message}"}


def _request(op: str, operation: Operation, schemas: dict[str, Schema]) -> dict[str, Any]:
    own: Schema = {"type": "object", "properties": {"id": _SCALAR, "op": {"const": op}}, "required": ["op"]}
    for field, kind in operation.fields.items():
        own["properties"][field.rstrip("!")] = {"type": kind}
        if field.endswith("!"):
            own["required"].append(field.rstrip("!"))
    payload = own
    if op in RECORDS:
        payload = {"allOf": [own, _record(RECORDS[op], f"{op}Fields", schemas)]}
    examples = [{"name": op, "payload": {"id": 7, "op": op, **operation.request}}]
    return {"summary": operation.summary, "payload": payload, "examples": examples}


def _reply(op: str, operation: Operation) -> dict[str, Any]:
    payload = {"id": 7, "ok": True, "status": operation.status, "body": operation.body}
    return {
        "summary": f"The answer to `{op}`.",
        "payload": {
            "type": "object",
            "properties": {
                "id": _SCALAR,
                "ok": {"const": True},
                "status": {"type": "integer"},
                "body": {"type": _type_of(operation.body)},
            },
            "required": ["id", "ok", "status", "body"],
        },
        "examples": [{"name": op, "payload": payload}],
    }


def _type_of(body: object) -> list[str]:
    return ["array" if isinstance(body, list) else "object", "null"]


def _refusal() -> dict[str, Any]:
    error = {"error": "kv_bad_request", "reason": "kv_bad_namespace", "detail": "a namespace is lower case"}
    return {
        "summary": "What a request is answered that cannot be done.",
        "payload": {
            "type": "object",
            "properties": {
                "id": _SCALAR,
                "ok": {"const": False},
                "status": {"type": "integer"},
                "error": {"$ref": "#/components/schemas/error"},
            },
            "required": ["id", "ok", "status", "error"],
        },
        "examples": [{"name": "refusal", "payload": {"id": 7, "ok": False, "status": 400, "error": error}}],
    }


def _record(kind: type[Struct], name: str, schemas: dict[str, Schema]) -> dict[str, str]:
    """A reference to the schema of a record type, which goes into `schemas` under this name with what it needs."""
    template = "#/components/schemas/{name}"
    (reference,), found = msgspec.json.schema_components([kind], ref_template=template)
    main = reference["$ref"].rpartition("/")[2]
    public = {one: name if one == main else one.lstrip("_") for one in found}
    text = msgspec.json.encode(found).decode()
    for one, other in public.items():
        text = text.replace(f'"{template.format(name=one)}"', f'"{template.format(name=other)}"')
    for one, schema in msgspec.json.decode(text).items():
        schemas[public[one]] = {**schema, "title": public[one]}
    return {"$ref": template.format(name=name)}

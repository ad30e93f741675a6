"""A request and its reply, as every transport gives and takes them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from msgspec import Struct

from queen_actors.wire.frames import encode

NO_BODY = (204, 304)
"""Statuses whose answers have no body, and do not say how long it is."""
NO_HEADERS: Mapping[str, str] = MappingProxyType({})
JSON: Mapping[str, str] = {"content-type": "application/json"}


class Request(Struct, frozen=True):
    """`raw_path` is as it was sent, percent escapes and all, without the query; header names are in lower case."""

    method: str
    raw_path: bytes
    query: bytes = b""
    headers: Mapping[str, str] = NO_HEADERS
    body: bytes = b""


class Reply(Struct, frozen=True):
    """A body is JSON unless the headers say otherwise, or empty (then the status is one of `NO_BODY`)."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = NO_HEADERS


def json_reply(body: bytes, status: int = 200) -> Reply:
    return Reply(status, body, JSON)


def value_reply(value: Any, status: int = 200) -> Reply:
    """A reply from plain values."""
    return Reply(status, encode(value), JSON)


NO_CONTENT = Reply(204)

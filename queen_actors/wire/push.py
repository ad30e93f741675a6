"""`POST /api/v1/push` (`wire-messaging.md`, section 6)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from queen_actors import limits
from queen_actors.domain.partition import PushItem, PushOutcome
from queen_actors.errors import BadRequest, TooLarge
from queen_actors.values import DEFAULT_PARTITION

from .frames import Malformed, check_names, check_txn, check_utf8, decode, encode, is_uuid


class Item(Struct, rename="camel", gc=False):
    """One pushed item as it lies on the wire; a transaction's items are the same."""

    queue: str
    payload: Raw
    partition: str | None = None
    transaction_id: str | None = None
    trace_id: Any = None


class _Body(Struct):
    items: list[Item]


class _Loose(Struct):
    items: list[Raw]


class _Pushed(Struct, gc=False):
    index: int
    message_id: str
    transaction_id: str
    queueName: str
    status: str
    offset: int | UnsetType = UNSET
    error: str | UnsetType = UNSET


_body = msgspec.json.Decoder(_Body)
_loose = msgspec.json.Decoder(_Loose)


def parse_push(body: bytes) -> list[PushItem]:
    """The items in the caller's order. Raises 400 `bad_body` (not JSON, or without an `items` array), 400
    `bad_request` (an item breaks a rule), 413 `name_too_long` and 413 `too_large` (more items than one call takes)."""
    try:
        check_utf8(body)
        items = decode(_body, body).items
    except Malformed as wrong:
        raise BadRequest(f"the body is not JSON: {wrong}", code="bad_body") from None
    except msgspec.ValidationError as wrong:
        raise _shape_error(body, wrong) from None
    if len(items) > limits.PUSH_ITEMS:
        raise TooLarge(f"{len(items)} items; one push takes at most {limits.PUSH_ITEMS}")
    return push_items(items)


def _shape_error(body: bytes, wrong: msgspec.ValidationError) -> BadRequest:
    try:
        _loose.decode(body)
    except msgspec.DecodeError:
        return BadRequest(f"the body must be an object with an array `items`: {wrong}", code="bad_body")
    return BadRequest(str(wrong))


_check_pair = lru_cache(4096)(check_names)
"""Producers push to the same few places again and again; what breaks a rule is not remembered."""


def push_items(items: Sequence[Item]) -> list[PushItem]:
    """Wire items as commands: names checked, the partition defaulted, a non-UUID trace dropped."""
    commands: list[PushItem] = []
    for item in items:
        queue, partition, txn, trace = item.queue, item.partition or DEFAULT_PARTITION, item.transaction_id, None
        _check_pair(queue, partition)
        if txn:
            check_txn(txn)
        if item.trace_id is not None and is_uuid(item.trace_id):
            trace = item.trace_id
        commands.append(PushItem(queue, partition, bytes(item.payload), txn or None, trace))
    return commands


def render_push(outcomes: Sequence[PushOutcome]) -> bytes:
    """One entry per item, in input order (6.2)."""
    return encode(
        [
            _Pushed(index, one.message_id, one.txn, one.queue, one.status, one.offset)
            if one.error is None
            else _Pushed(index, one.message_id, one.txn, one.queue, one.status, error=one.error)
            for index, one in enumerate(outcomes)
        ]
    )


REQUEST, PUSHED = _Body, list[_Pushed]
"""The records of this module, for the protocol's description."""

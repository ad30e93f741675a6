"""What every route's parser and renderer shares: JSON bodies, names, scalars and instants.

A body must be UTF-8, and its JSON must be correct throughout, also inside a payload that is kept as text: an escape of
half a surrogate pair is refused, and so is what is nested deeper than the decoder's stack (hundreds of levels pass).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, ClassVar, TypeGuard, TypeVar
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec
from msgspec import Raw, Struct

from queen_actors import limits
from queen_actors.errors import BadRequest, TooLarge
from queen_actors.values import MAX_INSTANT, iso_offset, iso_zulu

T = TypeVar("T")

encode = msgspec.json.Encoder().encode
"""A reply as JSON; `Raw` goes in as it is."""

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
"""What a queue, a partition, a group, a lock and an owner may not contain (decisions.md)."""
TXN_TOO_LONG = "transaction_id_too_long"
"""The code of a transactionId over its bound, on every route."""
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\Z")
_NUMBER = re.compile(r"-?[0-9]{1,40}(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,5})?\Z")
_PID_DIGITS = 19  # of the greatest number
_EMPTY = (b"", b"{}", b"[]", b"null")
_QUERY_FIELDS = 64  # the longest query of a client has 13
_MIN_INSTANT = -30_610_224_000_000_000  # the year 1000: earlier ones are not spelled with four digits


class Operations(Struct):
    """The body of the batch routes when it is not a bare array."""

    operations: list[Raw]


_operations: msgspec.json.Decoder[list[Raw] | Operations] = msgspec.json.Decoder(list[Raw] | Operations)
_object: msgspec.json.Decoder[dict[str, Raw]] = msgspec.json.Decoder(dict[str, Raw])
_any: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
_raw: msgspec.json.Decoder[Raw] = msgspec.json.Decoder(Raw)
_fields: msgspec.json.Decoder[dict[str, Any]] = msgspec.json.Decoder(dict[str, Any])


class Malformed(ValueError):
    """A text that is not the JSON that was wanted; the message says where."""


class Unsuccessful(BadRequest):
    """A refusal of the routes whose errors are `{"success": false, "error": ...}` (messaging, section 4)."""

    extra: ClassVar[Mapping[str, object]] = {}

    def body(self) -> bytes:
        return encode({"success": False, "error": self.detail, "code": self.code, **self.extra})


def decode(decoder: msgspec.json.Decoder[T], body: bytes | Raw) -> T:
    """The body as the decoder's type. Raises Malformed, and msgspec.ValidationError when only the shape is wrong."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError as wrong:
        raise Malformed(str(wrong)) from None
    except RecursionError:
        raise Malformed("JSON nested too deeply") from None


def check_utf8(body: bytes) -> None:
    """Raises Malformed. Text that is kept undecoded is never looked at by the JSON decoder."""
    if not body.isascii():
        try:
            body.decode()
        except UnicodeDecodeError as wrong:
            raise Malformed(f"not UTF-8 at byte {wrong.start}") from None


def parse_operations(body: bytes, family: str) -> list[Raw]:
    """The ops of a batch route: `{"operations": [...]}` or a bare array. Raises `<family>_bad_body`."""
    try:
        check_utf8(body)
        parsed = decode(_operations, body)
    except (Malformed, msgspec.ValidationError) as wrong:
        detail = f"the body must be an array of operations, or an object that holds one: {wrong}"
        raise refusal(family, "bad_body", detail) from None
    return parsed if isinstance(parsed, list) else parsed.operations


def parse_object(body: bytes, *, optional: bool = False) -> dict[str, Any]:
    """A JSON object, decoded; with `optional`, a body that is empty, `{}`, `[]` or `null` is an empty one.

    Raises BadRequest `bad_body`.
    """
    if optional and body.strip() in _EMPTY:
        return {}
    try:
        check_utf8(body)
        return decode(_fields, body)
    except (Malformed, msgspec.ValidationError) as wrong:
        raise BadRequest(f"the body must be a JSON object: {wrong}", code="bad_body") from None


def op_fields(raw: Raw) -> dict[str, Any] | None:
    """One op as a plain dictionary, or None when it is no object. A number beyond a double becomes an infinity, so
    that the rule of its own field can refusal it."""
    try:
        return _fields.decode(raw)
    except msgspec.ValidationError:
        try:
            return {name: scalar(value) for name, value in _object.decode(raw).items()}
        except msgspec.ValidationError:
            return None


def scalar(raw: Raw) -> Any:
    """A JSON value as Python's, an infinity for a number (or a structure with one) that is beyond a double."""
    try:
        return _any.decode(raw)
    except msgspec.ValidationError:
        return float("-inf") if bytes(raw).startswith(b"-") else float("inf")


def raw_object(body: bytes | Raw) -> dict[str, Raw]:
    """An object's fields as text. Raises Malformed and msgspec.ValidationError."""
    return decode(_object, body)


def is_json(text: bytes) -> bool:
    """Whether these bytes are one correct JSON text."""
    try:
        check_utf8(text)
        decode(_raw, text)
    except Malformed:
        return False
    return True


def compact(value: Raw) -> bytes:
    """The JSON text without whitespace between its tokens; numbers and strings keep their spelling."""
    return msgspec.json.format(value, indent=-1)


def refusal(family: str, reason: str, detail: str) -> BadRequest:
    """A 400 of one of the families kv, locks and timers, in the first error shape of section 1.3."""
    return BadRequest(detail, code=f"{family}_bad_request", reason=f"{family}_{reason}")


def as_text(value: Any) -> str | None:
    """A scalar as text (1.5): `true`, `12`; None for null, an array or an object, and a number beyond a double."""
    if isinstance(value, str):
        return value
    if isinstance(value, (bool, int)) or (isinstance(value, float) and math.isfinite(value)):
        return encode(value).decode()
    return None


def is_int(value: object) -> TypeGuard[int]:
    """Whether it is a JSON integer that fits the log's 64 bits; `true` is none."""
    return type(value) is int and -limits.INT64_MAX <= value <= limits.INT64_MAX


def is_array(value: object) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def is_uuid(value: object) -> bool:
    return isinstance(value, str) and _UUID.match(value) is not None


def parse_pid(value: Any) -> int | None:
    """A partition id as pop gave it, decimal digits in a string; None for anything else."""
    if isinstance(value, str) and len(value) <= _PID_DIGITS and value.isdecimal() and value.isascii():
        number = int(value)
        return number if number <= limits.INT64_MAX else None
    return value if type(value) is int and 0 <= value <= limits.INT64_MAX else None


def check_name(kind: str, name: str) -> None:
    """Refuses control characters. Everything else is legal, and comes back as it was sent (decisions.md)."""
    if not name.isprintable() and CONTROL.search(name):
        raise BadRequest(f"the {kind} contains a control character: {name[:80]!r}")


def check_budget(queue: str, longest: str) -> None:
    """The name budget: tenant + queue + max(group, partition or timerKey), in bytes. Raises 413 `name_too_long`."""
    if limits.TENANT_BYTES + 4 * (len(queue) + len(longest)) <= limits.NAME_BUDGET_BYTES:
        return
    size = limits.TENANT_BYTES + len(queue.encode()) + len(longest.encode())
    if size > limits.NAME_BUDGET_BYTES:
        raise TooLarge(
            f"the names take {size} bytes with the tenant's; {limits.NAME_BUDGET_BYTES} is the most",
            code="name_too_long",
        )


def check_names(queue: str, partition: str | None = None, group: str | None = None) -> None:
    """The rules of a queue, a partition and a group together."""
    check_name("queue name", queue)
    for kind, name in (("partition name", partition), ("consumer group", group)):
        if name is not None:
            check_name(kind, name)
            check_budget(queue, name)
    check_budget(queue, "")


def check_txn(txn: str) -> None:
    """At most 65,535 bytes. Raises BadRequest."""
    if 4 * len(txn) > limits.TXN_BYTES and len(txn.encode()) > limits.TXN_BYTES:
        raise BadRequest(f"a transactionId takes at most {limits.TXN_BYTES} bytes", code=TXN_TOO_LONG)


def parse_query(query: bytes) -> dict[str, str]:
    """A form-encoded query (`+` is a space); of a repeated field the last one counts. Raises BadRequest."""
    if not query:
        return {}
    try:
        text = query.decode("ascii")
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=_QUERY_FIELDS, errors="strict"))
    except ValueError as wrong:
        raise BadRequest(f"the query string cannot be read: {wrong}") from None


def unescape(segment: bytes) -> str:
    """A piece of a raw path, percent-decoded once; a `+` stays a plus (1.6). Raises BadRequest."""
    try:
        return (unquote_to_bytes(segment) if b"%" in segment else segment).decode()
    except UnicodeDecodeError:
        raise BadRequest("the path is not UTF-8 once its percent escapes are decoded") from None


def query_int(query: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    """A number of the query, clamped to low...high; absent or empty is the default. Raises BadRequest."""
    text = query.get(name)
    if not text:
        return default
    if not _NUMBER.match(text):
        raise BadRequest(f"{name} must be a number: {text[:80]!r}")
    return int(max(low, min(float(text), high)))


def query_bool(query: Mapping[str, str], name: str, default: bool = False) -> bool:
    """`true` or `false` (also `1` and `0`) of the query; absent or empty is the default. Raises BadRequest."""
    text = query.get(name)
    if not text:
        return default
    known = {"true": True, "1": True, "false": False, "0": False}.get(text.lower())
    if known is None:
        raise BadRequest(f"{name} must be true or false: {text[:80]!r}")
    return known


def offset_time(at: int) -> str:
    """The KV and lock spelling of an instant; what lies beyond the year 9999 is spelled as its end."""
    return iso_offset(_date(at))


def zulu_time(at: int) -> str:
    """The messaging and timer spelling of an instant."""
    return iso_zulu(_date(at))


def _date(at: int) -> int:
    return max(_MIN_INSTANT, min(at, MAX_INSTANT))

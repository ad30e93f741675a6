"""The KV routes (`wire-kv-locks-timers-transactions.md`, section 2)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal, DecimalException
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, field

from queen_actors import limits
from queen_actors.domain.kv import Check, Delete, Get, GetMany, GetPrefix, Incr, KvOp, Put
from queen_actors.errors import TooLarge
from queen_actors.values import SECOND

from .frames import (
    Malformed,
    as_text,
    check_utf8,
    compact,
    is_array,
    parse_operations,
    raw_object,
    refusal,
    scalar,
)

_NAMESPACE = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}\Z")
_NAMESPACES = 1024
_PUTS = ("put", "putIfAbsent")
_EXPONENT_MAX = 400  # a double's reach, with room: exact sums of numbers further apart would have endless digits


class Op(Struct):
    """One op as it lies on the wire. What must keep its spelling is text; the rest is checked field by field."""

    op: Any = UNSET
    ns: Any = UNSET
    key: Any = UNSET
    keys: Any = UNSET
    prefix: Any = UNSET
    after: Any = UNSET
    limit: Any = UNSET
    keys_only: Any = field(name="keysOnly", default=UNSET)
    value: Raw | UnsetType = UNSET
    delta: Raw | UnsetType = UNSET
    min: Raw | UnsetType = UNSET
    max: Raw | UnsetType = UNSET
    ttl_seconds: Any = field(name="ttlSeconds", default=UNSET)
    forever: Any = UNSET
    expect: Any = UNSET
    required: Any = UNSET
    tenant: Any = UNSET
    tenant_id: Any = field(name="tenantId", default=UNSET)
    tenant_private: Any = field(name="_tenant", default=UNSET)


_RAW_FIELDS = ("value", "delta", "min", "max")
_NAMES = dict(zip((f.encode_name for f in msgspec.structs.fields(Op)), Op.__struct_fields__, strict=True))
_op: msgspec.json.Decoder[Op] = msgspec.json.Decoder(Op)


class _Bounds(Struct, frozen=True):
    ops: int
    keys: int
    in_transaction: bool


_ROUTE = _Bounds(limits.KV_OPS_PER_CALL, limits.KV_KEYS_PER_CALL, False)
_TRANSACTION = _Bounds(limits.KV_OPS_PER_TRANSACTION, limits.KV_KEYS_PER_TRANSACTION, True)


def parse_kv(body: bytes) -> list[KvOp]:
    """The ops of `POST /api/v1/kv`. Raises the refusals of section 2.3, in its order: op count, key count, value
    size, then op by op, then the duplicate check."""
    return parse_kv_ops(parse_operations(body, "kv"))


def parse_kv_ops(raws: Sequence[Raw], *, in_transaction: bool = False) -> list[KvOp]:
    """Ops that came in a batch or, under its smaller bounds and without getPrefix, in a transaction's `kv`."""
    bounds = _TRANSACTION if in_transaction else _ROUTE
    if len(raws) > bounds.ops:
        raise refusal("kv", "too_many_ops", f"{len(raws)} operations; {bounds.ops} is the most")
    ops = [_decode(raw) for raw in raws]
    keys = sum([_cost(op) for op in ops])
    if keys > bounds.keys:
        raise refusal("kv", "too_many_keys", f"{keys} keys in one call; {bounds.keys} is the most")
    if len(ops) == 1:  # as most calls have it: nothing is there twice
        return [_command(ops[0], _value(ops[0]), bounds)]
    values = [_value(op) for op in ops]
    commands = [_command(op, value, bounds) for op, value in zip(ops, values, strict=True)]
    _check_duplicates(commands)
    return commands


def _decode(raw: Raw) -> Op | None:
    """None when it is no object. A number that no double holds becomes an infinity, for its field's rule to refusal."""
    try:
        return _op.decode(raw)
    except msgspec.ValidationError:
        try:
            fields = raw_object(raw)
        except msgspec.ValidationError:
            return None
    known = {_NAMES[name]: raw for name, raw in fields.items() if name in _NAMES}
    return Op(**{name: raw if name in _RAW_FIELDS else scalar(raw) for name, raw in known.items()})


def _cost(op: Op | None) -> int:
    if op is None:
        return 1
    if op.op == "getMany":
        return len(op.keys) if is_array(op.keys) else 0
    return _page(op.limit) if op.op == "getPrefix" else 1


def _page(limit: Any) -> int:
    return max(1, min(limit, limits.PREFIX_PAGE_MAX)) if type(limit) is int else limits.PREFIX_PAGE_DEFAULT


def _value(op: Op | None) -> bytes:
    """A put's value as compact JSON, which is what its size is counted in. Raises 413 `kv_value_too_large`."""
    if op is None or op.value is UNSET or op.op not in _PUTS:
        return b""
    value = compact(op.value)
    if len(value) > limits.KV_VALUE_BYTES:
        raise TooLarge(
            f"the value takes {len(value)} bytes as compact JSON; {limits.KV_VALUE_BYTES} is the most",
            code="payload_too_large",
            reason="kv_value_too_large",
        )
    return value


def _command(op: Op | None, value: bytes, bounds: _Bounds) -> KvOp:
    if op is None:
        raise refusal("kv", "bad_request", "an operation must be an object")
    if op.tenant is not UNSET or op.tenant_id is not UNSET or op.tenant_private is not UNSET:
        raise refusal("kv", "tenant_not_an_input", "the tenant comes from the connection, never from an operation")
    word = as_text(op.op)
    match word:
        case "put" | "putIfAbsent":
            return _put(op, value, if_absent=word == "putIfAbsent")
        case "get":
            return Get(_ns(op), _key(op.key))
        case "getMany":
            return GetMany(_ns(op), _keys(op.keys))
        case "getPrefix":
            if bounds.in_transaction:
                raise refusal("kv", "get_prefix_not_allowed_in_transaction", "a transaction cannot read by prefix")
            return _get_prefix(op)
        case "delete":
            return Delete(_ns(op), _key(op.key), _expect(op.expect), _flag(op.required, "required"))
        case "incr":
            return _incr(op)
        case "check":
            ns, key, expect = _ns(op), _key(op.key), _expect(op.expect)
            if expect is None:
                raise refusal("kv", "bad_expect", "a check needs `expect`: the version to find, 0 for none")
            return Check(ns, key, expect, _flag(op.required, "required"))
        case _:
            raise refusal("kv", "unknown_op", f"unknown op: {str(word)[:80]!r}")


def _ns(op: Op) -> str:
    return _namespace(as_text(op.ns))


@lru_cache(_NAMESPACES)
def _namespace(ns: str | None) -> str:
    """Calls name the same few again and again; what breaks the rule is not remembered."""
    if ns is None or not _NAMESPACE.match(ns):
        raise refusal("kv", "bad_namespace", "a namespace matches ^[a-z0-9][a-z0-9._-]{0,63}$")
    return ns


def _key(value: Any) -> str:
    key = as_text(value)
    if not key or "\0" in key:
        raise refusal("kv", "bad_key", "a key is a text of at least one character, without NUL")
    if 4 * len(key) > limits.KV_KEY_BYTES and len(key.encode()) > limits.KV_KEY_BYTES:
        raise TooLarge(
            f"the key takes {len(key.encode())} bytes; {limits.KV_KEY_BYTES} is the most",
            code="payload_too_large",
            reason="kv_key_too_large",
        )
    return key


def _keys(value: Any) -> tuple[str, ...]:
    if value is UNSET:
        return ()
    if not is_array(value):
        raise refusal("kv", "bad_request", "`keys` must be an array")
    return tuple(_key(key) for key in value)


def _get_prefix(op: Op) -> GetPrefix:
    ns, prefix = _ns(op), as_text(op.prefix)
    if not prefix:
        raise refusal("kv", "prefix_required", "getPrefix needs a prefix of at least one character")
    if op.limit is not UNSET and type(op.limit) is not int:
        raise refusal("kv", "bad_request", "`limit` must be an integer")
    after = None if op.after is UNSET else as_text(op.after)
    return GetPrefix(ns, prefix, after, _page(op.limit), _flag(op.keys_only, "keysOnly"))


def _put(op: Op, value: bytes, *, if_absent: bool) -> Put:
    ns, key = _ns(op), _key(op.key)
    if op.value is UNSET:
        raise refusal("kv", "bad_request", "`value` is missing; null is a value")
    ttl, expect = _ttl(op), _expect(op.expect)
    if if_absent:
        if expect not in (None, 0):
            raise refusal("kv", "bad_expect", "putIfAbsent expects 0 by itself, and nothing else")
        expect = 0
    return Put(ns, key, value, ttl, expect, _flag(op.required, "required"), if_absent)


def _incr(op: Op) -> Incr:
    ns, key = _ns(op), _key(op.key)
    if op.expect is not UNSET:
        raise refusal("kv", "bad_request", "incr takes no `expect`")
    delta = _number(op.delta, "delta")
    low = None if op.min is UNSET else _number(op.min, "min")
    high = None if op.max is UNSET else _number(op.max, "max")
    return Incr(ns, key, delta, _ttl(op), low, high, _flag(op.required, "required"))


def _number(raw: Raw | UnsetType, name: str) -> Decimal:
    if raw is not UNSET:
        text = bytes(raw)
        if text[:1] in b"-0123456789":
            try:
                number = Decimal(text.decode()) if len(text) <= _EXPONENT_MAX else None
            except DecimalException:
                number = None
            if number is None or abs(number.adjusted()) > _EXPONENT_MAX:
                raise refusal("kv", "bad_request", f"`{name}` is out of range")
            return number
    raise refusal("kv", "bad_request", f"`{name}` must be a number")


def _ttl(op: Op) -> int | None:
    """The lifetime in microseconds, None for ever; exactly one of `ttlSeconds` and `forever: true` is given."""
    if op.forever is not UNSET and not isinstance(op.forever, bool):
        raise refusal("kv", "bad_ttl", "`forever` must be true or false")
    given = op.ttl_seconds is not UNSET
    if given == (op.forever is True):
        raise refusal("kv", "expiry_not_specified", "give exactly one of `ttlSeconds` and `forever: true`")
    if not given:
        return None
    seconds = op.ttl_seconds
    if isinstance(seconds, float) and seconds.is_integer():
        seconds = int(seconds)
    if type(seconds) is not int or not 0 < seconds <= limits.TTL_SECONDS_MAX:
        raise refusal("kv", "bad_ttl", f"`ttlSeconds` must be whole seconds, 1 to {limits.TTL_SECONDS_MAX}")
    return seconds * SECOND


def _expect(value: Any) -> int | None:
    if value is UNSET:
        return None
    if type(value) is not int or not 0 <= value <= limits.INT64_MAX:
        raise refusal("kv", "bad_expect", "`expect` must be an integer, 0 or more")
    return value


def _flag(value: Any, name: str) -> bool:
    if value is UNSET:
        return False
    if not isinstance(value, bool):
        raise refusal("kv", "bad_request", f"`{name}` must be true or false")
    return value


def _check_duplicates(commands: Sequence[KvOp]) -> None:
    touched: set[tuple[str, str]] = set()
    for op in commands:
        if isinstance(op, (Put, Delete, Incr, Check)):
            if (op.ns, op.key) in touched:
                raise refusal(
                    "kv", "duplicate_key_in_call", f"{op.ns}/{op.key[:80]} is written or checked twice in one call"
                )
            touched.add((op.ns, op.key))


def parse_kv_path(word: str, ns: str, key: str, query: bytes, body: bytes) -> KvOp:
    """The op of a path route (2.11); `word` is get, put or delete. Adds the refusals `kv_no_query_string` and
    `kv_field_in_path` to those of the batch."""
    if query:
        raise refusal("kv", "no_query_string", "this route takes no query string")
    fields: dict[str, Raw] = {}
    if word != "get" and not (word == "delete" and body.strip() in (b"", b"null")):
        try:
            check_utf8(body)
            fields = raw_object(body)
        except (Malformed, msgspec.ValidationError) as wrong:
            raise refusal("kv", "bad_body", f"the body must be a JSON object: {wrong}") from None
    for name in ("op", "ns", "namespace", "key"):
        if name in fields:
            raise refusal("kv", "field_in_path", f"`{name}` is in the path, and may not be in the body")
    fields |= {name: Raw(msgspec.json.encode(text)) for name, text in (("op", word), ("ns", ns), ("key", key))}
    return parse_kv_ops([Raw(msgspec.json.encode(fields))])[0]

"""The key-value operations as values (wire 2.2), and methods made of them.

Each is written once: `queen.kv.op.put(...)` is the operation for a batch, `queen.kv.put(...)` asks for it at once, and
`transaction().kv.put(...)` adds it to a transaction, all with the parameters and the words of the one function here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from datetime import datetime
from decimal import Decimal
from enum import Enum
from functools import update_wrapper
from typing import Any, Final, TypeVar

from .durations import Duration, lifetime

Number = int | float | Decimal
KvOp = dict[str, Any]
"""An operation as the wire spells it."""
Method = TypeVar("Method", bound=Callable[..., Any])


class Unset(Enum):
    """The type of an argument that was not given, where None would be a mistake."""

    UNSET = "unset"


UNSET: Final = Unset.UNSET
Expect = int | Unset
"""The version that must be there; 0: the key must not exist. Not given: whatever is there."""


def get(ns: str, key: str) -> KvOp:
    """One key: `found`, `value`, `version`, `expires_at`. An expired key is not found (wire 2.5)."""
    return {"op": "get", "ns": ns, "key": key}


def get_many(ns: str, keys: Iterable[str]) -> KvOp:
    """Several keys of one namespace: `rows` in byte order, and the `missing` ones (wire 2.10). Raises TypeError
    for a single text."""
    if isinstance(keys, str):
        raise TypeError("keys is a list of keys; read a single one with get")
    return {"op": "getMany", "ns": ns, "keys": list(keys)}


def get_prefix(
    ns: str, prefix: str, *, after: str | None = None, limit: int | None = None, keys_only: bool = False
) -> KvOp:
    """One page of the keys under a prefix, in byte order, behind the key `after`: `rows`, `truncated`,
    `next_after` (wire 2.10). `limit` is 100 unless told, 1,000 at most; with `keys_only` rows have no value."""
    op: KvOp = {"op": "getPrefix", "ns": ns, "prefix": prefix}
    if after is not None:
        op["after"] = after
    if limit is not None:
        op["limit"] = limit
    if keys_only:
        op["keysOnly"] = True
    return op


def put(
    ns: str,
    key: str,
    value: Any,
    *,
    ttl: Duration | None = None,
    ttl_seconds: int | None = None,
    until: datetime | None = None,
    forever: bool = False,
    expect: Expect = UNSET,
    required: bool = False,
) -> KvOp:
    """Write a value, any JSON of at most 64 KiB; with `expect` only over that version (0: only where there is
    none). Refused (`reason` version, exists or absent), the answer has the `value` and `version` that are there
    (wire 2.5)."""
    op: KvOp = {"op": "put", "ns": ns, "key": key, "value": value, **lifetime(ttl, ttl_seconds, until, forever)}
    return _conditional(op, expect, required)


def put_if_absent(
    ns: str,
    key: str,
    value: Any,
    *,
    ttl: Duration | None = None,
    ttl_seconds: int | None = None,
    until: datetime | None = None,
    forever: bool = False,
    required: bool = False,
) -> KvOp:
    """Write only when the key does not exist: of several callers, one wins; the others get what it wrote
    (`reason` exists; wire 2.5)."""
    life = lifetime(ttl, ttl_seconds, until, forever)
    return _conditional({"op": "putIfAbsent", "ns": ns, "key": key, "value": value, **life}, UNSET, required)


def delete(ns: str, key: str, *, expect: Expect = UNSET, required: bool = False) -> KvOp:
    """Remove a key, with `expect` only at that version. Applied, the answer has the removed value; a key that is
    not there is not applied (`reason` absent; wire 2.5)."""
    return _conditional({"op": "delete", "ns": ns, "key": key}, expect, required)


def incr(
    ns: str,
    key: str,
    delta: Number = 1,
    *,
    min: Number | None = None,
    max: Number | None = None,
    ttl: Duration | None = None,
    ttl_seconds: int | None = None,
    until: datetime | None = None,
    forever: bool = False,
    required: bool = False,
) -> KvOp:
    """Add to a number, exactly; the answer has the new one as `value`. A result past `min` or `max` is not applied
    (`reason` limit), nor is anything to what is no number (type). The lifetime is that of a new key; a key that
    exists keeps its own (wire 2.6)."""
    op: KvOp = {"op": "incr", "ns": ns, "key": key, "delta": _number("delta", delta)}
    op.update((name, _number(name, bound)) for name, bound in (("min", min), ("max", max)) if bound is not None)
    op.update(lifetime(ttl, ttl_seconds, until, forever))
    return _conditional(op, UNSET, required)


def check(ns: str, key: str, *, expect: int, required: bool = False) -> KvOp:
    """Whether a key is at that version (0: does not exist): true when it is; nothing is written (wire 2.5)."""
    return _conditional({"op": "check", "ns": ns, "key": key}, expect, required)


class KvOps:
    """The operations, for `queen.kv.batch([...])`: `queen.kv.op.put(...)` and the others.

    A write names its lifetime by exactly one of `ttl` (a timedelta, seconds, or a text such as `"7d"`), `ttl_seconds`,
    `until` (an instant) and `forever=True`; else ValueError. A missed condition is an answer, `applied` false with a
    `reason`; with `required=True` it refuses the whole batch, or rolls the transaction back (wire 2.9, 5.8).
    """

    get = staticmethod(get)
    get_many = staticmethod(get_many)
    get_prefix = staticmethod(get_prefix)
    put = staticmethod(put)
    put_if_absent = staticmethod(put_if_absent)
    delete = staticmethod(delete)
    incr = staticmethod(incr)
    check = staticmethod(check)


def _conditional(op: KvOp, expect: Expect, required: bool) -> KvOp:
    if expect is not UNSET:
        if isinstance(expect, bool) or not isinstance(expect, int):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"expect is a version, or 0 for a key that must not exist, not {expect!r}; leave it out")
        if expect < 0:
            raise ValueError(f"expect is a version, or 0 for a key that must not exist, not {expect}")
        op["expect"] = expect
    if required:
        op["required"] = True
    return op


def _number(name: str, value: Number) -> Number:
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"{name} must be a number, not {value!r}")
    return value


def spoken_as(op: Callable[..., KvOp], method: Method, returns: str) -> Method:
    """A method with the name, the docstring and the parameters of an operation."""
    told = inspect.signature(op)
    this = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    update_wrapper(method, op)
    del method.__dict__["__wrapped__"]  # its first parameter would be taken for `self`
    method.__dict__["__signature__"] = told.replace(
        parameters=[this, *told.parameters.values()], return_annotation=returns
    )
    return method

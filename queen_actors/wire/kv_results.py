"""The answers of the KV routes (`wire-kv-locks-timers-transactions.md`, sections 2.4 and 2.9)."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, Raw, Struct, UnsetType

from queen_actors import limits
from queen_actors.domain.kv import (
    GetManyResult,
    GetPrefixResult,
    GetResult,
    KeyRow,
    KvResult,
    Precondition,
    WriteResult,
)

from .frames import encode, offset_time


class _Element(Struct):
    """Every element's place: in the call, and when it is a rider (5.3) also in the transaction's `kv`."""

    index: int
    op: str


class _Got(_Element, rename="camel"):
    found: bool
    key: str
    value: Raw | UnsetType = UNSET
    version: int | UnsetType = UNSET
    expires_at: str | UnsetType | None = UNSET
    updated_at: str | UnsetType = UNSET
    op_index: int | UnsetType = UNSET
    type: str | UnsetType = UNSET


class KvRow(Struct, rename="camel"):
    key: str
    version: int
    expires_at: str | None
    updated_at: str
    value: Raw | UnsetType = UNSET


class _Many(_Element, rename="camel"):
    rows: list[KvRow]
    missing: tuple[str, ...]
    truncated: bool
    op_index: int | UnsetType = UNSET
    type: str | UnsetType = UNSET


class _Page(_Element, rename="camel"):
    rows: list[KvRow]
    truncated: bool
    next_after: str | None
    op_index: int | UnsetType = UNSET
    type: str | UnsetType = UNSET


class _Written(_Element, rename="camel"):
    applied: bool
    key: str
    version: int
    value: Raw | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    op_index: int | UnsetType = UNSET
    type: str | UnsetType = UNSET


KvElement = _Got | _Many | _Page | _Written


class Lost(Struct, rename="camel"):
    """What a lost `required` op says: which one, why, and the current row. A rolled-back transaction has it too."""

    failed_index: int
    kv_reason: str
    version: int
    value: Raw


def lost_detail(failed_index: int, reason: str, version: int, value: bytes) -> Lost | None:
    """None when the detail would be longer than 4096 characters: then the answer goes without it (2.9, 5.4)."""
    lost = Lost(failed_index, reason, version, Raw(value))
    text = encode(lost)
    return lost if len(text.decode()) <= limits.PRECONDITION_VALUE_CHARS else None


class _Refused(Struct, rename="camel"):
    ok: bool
    reason: str
    failed_index: int | UnsetType = UNSET
    kv_reason: str | UnsetType = UNSET
    version: int | UnsetType = UNSET
    value: Raw | UnsetType = UNSET


def render_kv(results: Sequence[KvResult] | Precondition) -> bytes:
    """`{"results": [...]}`, one element per op in input order, or the refusal of a lost `required`."""
    if isinstance(results, Precondition):
        return render_precondition(results)
    return encode({"results": [kv_element(index, result) for index, result in enumerate(results)]})


def render_kv_single(results: Sequence[KvResult] | Precondition) -> tuple[bytes, int | None]:
    """The path routes' answer: the element itself, and the version of a read that hit (its `ETag`)."""
    if isinstance(results, Precondition):
        return render_precondition(results), None
    (result,) = results
    version = result.row.version if isinstance(result, GetResult) and result.row is not None else None
    return encode(kv_element(0, result)), version


def render_precondition(lost: Precondition) -> bytes:
    """200 without `results`: nothing was applied (2.9)."""
    refused = _Refused(False, "kv_precondition")
    detail = lost_detail(lost.failed_index, lost.reason, lost.version, lost.value)
    if detail is not None:
        refused.failed_index, refused.kv_reason = detail.failed_index, detail.kv_reason
        refused.version, refused.value = detail.version, detail.value
    return encode(refused)


def kv_element(index: int, result: KvResult, op_index: int | None = None) -> KvElement:
    """One element of 2.4; with `op_index`, as a transaction's rider (5.3)."""
    element = _written(index, result) if isinstance(result, WriteResult) else _read(index, result)
    if op_index is not None:
        element.op_index, element.type = op_index, "kv"
    return element


def _written(index: int, result: WriteResult) -> _Written:
    value, reason = result.value, result.reason
    written = _Written(index, result.op, reason is None, result.key, result.version)
    if value is not None:
        written.value = Raw(value)
    if reason is not None:
        written.reason = reason
    return written


def _read(index: int, result: GetResult | GetManyResult | GetPrefixResult) -> KvElement:
    if isinstance(result, GetResult):
        if result.row is None:
            return _Got(index, "get", False, result.key)
        row = result.row
        expires = None if row.expires_at is None else offset_time(row.expires_at)
        return _Got(index, "get", True, result.key, Raw(row.value), row.version, expires, offset_time(row.updated_at))
    if isinstance(result, GetManyResult):
        rows = [kv_row(row, keys_only=False) for row in result.rows]
        return _Many(index, "getMany", rows, result.missing, result.truncated)
    rows = [kv_row(row, keys_only=result.keys_only) for row in result.rows]
    return _Page(index, "getPrefix", rows, result.truncated, result.next_after)


def kv_row(found: KeyRow, *, keys_only: bool = False) -> KvRow:
    """A row as a read gives it."""
    row = found.row
    expires = None if row.expires_at is None else offset_time(row.expires_at)
    shown = KvRow(found.key, row.version, expires, offset_time(row.updated_at))
    if not keys_only:
        shown.value = Raw(row.value)
    return shown


ELEMENTS, ROW, LOST = (_Got, _Many, _Page, _Written), KvRow, _Refused
"""The records of this module, for the protocol's description."""

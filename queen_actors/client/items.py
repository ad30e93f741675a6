"""What users push, as items of the wire (messaging 6.1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast
from uuid import UUID

_ENVELOPE = frozenset({"data", "payload", "transactionId", "traceId"})


def as_list(items: object) -> list[Any]:
    """A list or tuple is many items; everything else is one."""
    return list(items) if isinstance(items, (list, tuple)) else [items]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]


def push_items(
    items: Sequence[Any], queue: str, partition: str | None, new_id: Callable[[], str] | None
) -> list[dict[str, Any]]:
    """Items for the wire. With `new_id` each has a `transactionId`, so that a push that is sent twice is stored once;
    without it the broker makes up those that are missing.

    An item with `data` (or `payload`) is an envelope: its value is the payload, and `transactionId` and `traceId` may
    stand beside it. Any other value is the payload itself, whose own `transactionId`, if it has one, names it too.
    Raises ValueError for an envelope with fields that would be lost.
    """
    wired: list[dict[str, Any]] = []
    for item in items:
        one: dict[str, Any] = {"queue": queue}
        if partition is not None:
            one["partition"] = partition
        if isinstance(item, dict):
            _take(one, cast("dict[str, Any]", item))
        else:
            one["payload"] = item
        if new_id is not None and "transactionId" not in one:
            one["transactionId"] = new_id()
        wired.append(one)
    return wired


def _take(one: dict[str, Any], item: dict[str, Any]) -> None:
    """Complete an item of the wire from a user's: an envelope, or a payload that is an object."""
    name = "data" if "data" in item else "payload" if "payload" in item else None
    if name is None:
        one["payload"] = item
    else:
        one["payload"] = item[name]
        if len(item) > 1 and not _ENVELOPE.issuperset(item):
            lost = ", ".join(sorted(str(key) for key in item if key not in _ENVELOPE))
            raise ValueError(
                f"an item with {name!r} is an envelope, and would lose {lost}: push {{'data': <the whole payload>}}"
            )
    transaction_id = item.get("transactionId")
    if isinstance(transaction_id, str) and transaction_id:
        one["transactionId"] = transaction_id
    elif transaction_id and name is not None:
        raise ValueError(f"transactionId must be a text, not {transaction_id!r}")
    trace_id = item.get("traceId")
    if trace_id is not None and _is_uuid(trace_id):
        one["traceId"] = str(trace_id)


def _is_uuid(value: object) -> bool:
    if not isinstance(value, (str, UUID)):
        return False
    try:
        UUID(str(value))
    except ValueError:
        return False
    return True

"""What users push, as items of the wire (messaging 6.1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
        payload, transaction_id, trace_id = _parts(item)
        one: dict[str, Any] = {"queue": queue, "payload": payload}
        if not transaction_id and new_id is not None:
            transaction_id = new_id()
        if transaction_id:
            one["transactionId"] = transaction_id
        if partition is not None:
            one["partition"] = partition
        if trace_id is not None:
            one["traceId"] = trace_id
        wired.append(one)
    return wired


def _parts(item: Any) -> tuple[Any, str | None, str | None]:
    if not isinstance(item, Mapping):
        return item, None, None
    fields = cast("Mapping[str, Any]", item)
    name = "data" if "data" in fields else "payload" if "payload" in fields else None
    if name is not None and not _ENVELOPE.issuperset(fields):
        lost = ", ".join(sorted(str(key) for key in fields if key not in _ENVELOPE))
        raise ValueError(
            f"an item with {name!r} is an envelope, and would lose {lost}: push {{'data': <the whole payload>}}"
        )
    transaction_id = fields.get("transactionId")
    if transaction_id is not None and not isinstance(transaction_id, str):
        if name is not None:
            raise ValueError(f"transactionId must be a text, not {transaction_id!r}")
        transaction_id = None
    trace_id = fields.get("traceId")
    return (
        fields[name] if name is not None else fields,
        transaction_id,
        str(trace_id) if _is_uuid(trace_id) else None,
    )


def _is_uuid(value: object) -> bool:
    if not isinstance(value, (str, UUID)):
        return False
    try:
        UUID(str(value))
    except ValueError:
        return False
    return True

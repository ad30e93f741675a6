"""How long: the spellings of a duration that the client takes, and the wire's whole seconds and milliseconds."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from typing import Any

Duration = timedelta | int | float | str
"""A timedelta, a number of seconds, or a text such as `"250ms"`, `"30s"`, `"15m"`, `"24h"`, `"7d"`."""

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_TEXT = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)")


def seconds_of(value: Duration, what: str = "a duration") -> float:
    """A duration in seconds. Raises TypeError or ValueError and names `what`."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str):
        found = _TEXT.fullmatch(value.strip())
        if found is None:
            raise ValueError(f"{what} must look like '250ms', '30s', '15m', '24h' or '7d', not {value!r}")
        return float(found[1]) * _UNITS[found[2]]
    if isinstance(value, bool) or not isinstance(value, (int, float)):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"{what} must be a timedelta, a number of seconds or a text like '30s', not {value!r}")
    if not math.isfinite(value):
        raise ValueError(f"{what} must be finite, not {value!r}")
    return float(value)


def whole_seconds(value: Duration, what: str) -> int:
    """A lifetime in the wire's whole seconds, rounded up: never shorter than asked for. Raises ValueError."""
    seconds = value if isinstance(value, int) and not isinstance(value, bool) else math.ceil(seconds_of(value, what))
    if seconds <= 0:
        raise ValueError(f"{what} must be longer than nothing, not {value!r}")
    return seconds


def milliseconds(value: Duration, what: str) -> int | float:
    """A delay in the wire's milliseconds; a fraction is kept (the broker counts in microseconds)."""
    delay = value / timedelta(milliseconds=1) if isinstance(value, timedelta) else seconds_of(value, what) * 1000
    return int(delay) if delay == int(delay) else delay


def lifetime(
    ttl: Duration | None, ttl_seconds: int | None, until: datetime | None, forever: bool
) -> dict[str, int | bool]:
    """The wire's lifetime of a key, from exactly one of the four spellings. Raises ValueError otherwise.

    `until` becomes a lifetime here, on this machine's clock: the wire has no absolute instant.
    """
    given = [
        name for name, value in (("ttl", ttl), ("ttl_seconds", ttl_seconds), ("until", until)) if value is not None
    ]
    if forever is True:
        given.append("forever")
    if len(given) != 1:
        raise ValueError(
            "every write names its lifetime: pass exactly one of ttl=, ttl_seconds=, until= and forever=True"
            + (f", not {' and '.join(given)}" if given else "")
        )
    if forever:
        return {"forever": True}
    if until is not None:
        at = until if until.tzinfo is not None else until.replace(tzinfo=UTC)
        return {"ttlSeconds": whole_seconds(at - datetime.now(UTC), "until")}
    asked: Any = ttl if ttl is not None else ttl_seconds
    return {"ttlSeconds": whole_seconds(asked, given[0])}


def instant(at: str | datetime) -> str:
    """An instant for the wire: a text goes as it is, a datetime without an offset is UTC."""
    if isinstance(at, str):
        return at
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")

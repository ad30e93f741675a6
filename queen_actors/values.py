"""The scalar types that every floor shares, and how instants are spelled on the wire.

Instants are integers: microseconds since the Unix epoch, UTC (`Micros`). Lifetimes are microseconds too. The
wire has two spellings of an instant (`wire-kv-locks-timers-transactions.md`, section 1.4); both are here.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import NewType

Micros = NewType("Micros", int)
"""An instant, microseconds since the epoch; never goes back within a log."""
Version = NewType("Version", int)
"""A key's version, and so a permit's token: 1 .. 2**53-1, one counter for the whole log."""
Offset = NewType("Offset", int)
"""A message's place in its partition: 0, 1, 2, ... without a gap."""
PartitionId = NewType("PartitionId", int)
"""A partition's number, never used twice; on the wire a decimal string."""
QueueId = NewType("QueueId", int)
"""One incarnation of a queue: deleted and created again, a name gets a new one."""
Position = NewType("Position", int)
"""A place in the log: how many entries were written up to and with this one."""

QUEUE_MODE = "__QUEUE_MODE__"
"""The reserved group of consumers that name none: the queue's own competing-consumers cursor."""
TIMER_GROUP = "__timer__"
"""The group under which a timer that could not be delivered is dead-lettered."""
DEFAULT_PARTITION = "Default"
LOCKS_NAMESPACE = "queen-locks"
"""The KV namespace in which every permit is a row `<name>#<slot>`."""

SECOND = 1_000_000
MILLISECOND = 1_000
NOTHING = Offset(-1)
"""The committed offset of a cursor that has finished nothing."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MAX_INSTANT = Micros(253_402_300_799_999_999)
"""The last microsecond that a date can hold (the end of the year 9999)."""


def _fields(at: int) -> tuple[str, int]:
    seconds, fraction = divmod(at, SECOND)
    return _second(seconds), fraction


@lru_cache(1024)
def _second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


def iso_offset(at: int) -> str:
    """The KV and lock spelling: offset `+00:00`, trailing zeros of the fraction trimmed, none when it is zero."""
    text, fraction = _fields(at)
    return f"{text}.{fraction:06d}".rstrip("0") + "+00:00" if fraction else text + "+00:00"


def iso_zulu(at: int) -> str:
    """The messaging and timer spelling: `Z`, always six digits, so that comparing texts compares instants."""
    text, fraction = _fields(at)
    return f"{text}.{fraction:06d}Z"


def parse_instant(text: str) -> Micros:
    """An ISO 8601 instant as microseconds; a text without an offset is read as UTC. Raises ValueError."""
    at = datetime.fromisoformat(text)
    if at.tzinfo is None:
        at = at.replace(tzinfo=UTC)
    delta = at - _EPOCH
    return Micros(delta.days * 86_400 * SECOND + delta.seconds * SECOND + delta.microseconds)

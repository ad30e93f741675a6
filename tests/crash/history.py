"""What was asked of the broker and what it said: the only thing that the auditor judges."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

READER = -1
"""The worker number of what is read back between a start and the next load."""


FULL = 507


class Call(msgspec.Struct):
    """One request. Its effect, if it had one, lies between `sent` and `answered` (monotonic seconds)."""

    round: int
    worker: int
    op: str
    body: Any
    sent: float
    answered: float = math.inf
    status: int | None = None
    """None: the connection died before an answer came."""
    answer: Any = None

    @property
    def acknowledged(self) -> bool:
        return self.status is not None and self.status < 300

    @property
    def unknown(self) -> bool:
        """It may have had its effect, or not. A full disk (507) is said before anything happens."""
        return self.status is None or (self.status >= 500 and self.status != FULL)

    @property
    def reading(self) -> bool:
        return self.worker == READER


class History:
    """Calls in the order in which they were sent, over all lives of the process."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.round = 0
        self.pauses: list[tuple[float, float]] = []
        """When the process stood still: from just after it was stopped until just before it was let go on."""
        self.stops: list[tuple[float, float]] = []
        """When it was told to stop under load, and when it had ended."""
        self.refusals: frozenset[int] = frozenset()
        """Statuses by which the broker may refuse, its disk being what it is."""

    def begin(self, worker: int, op: str, body: Any) -> Call:
        call = Call(self.round, worker, op, body, time.monotonic())
        self.calls.append(call)
        return call

    def of(self, *ops: str) -> Iterator[Call]:
        """Calls of these kinds."""
        return (call for call in self.calls if call.op in ops)

    def save(self, path: Path) -> None:
        """One JSON object a line, for a look at a failure."""
        encode = msgspec.json.Encoder().encode
        path.write_bytes(b"\n".join(encode(call) for call in self.calls) + b"\n")

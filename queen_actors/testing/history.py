"""What clients did and saw: the only thing that an auditor looks at."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from msgspec import Struct


class Event(Struct):
    """One call: when it was made and answered (microseconds), by whom, what was asked and what came of it.

    `outcome`: ok; refused (it is certain that nothing was applied); unknown (the answer was lost). `asked` and `found`
    are plain values, their keys given by `op`.
    """

    start: int
    end: int
    client: str
    op: str
    asked: dict[str, Any]
    outcome: str = "unknown"
    found: Any = None

    @property
    def ok(self) -> bool:
        return self.outcome == "ok"


class History:
    """Events in the order in which they ended."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._digest = hashlib.sha256()

    def add(self, event: Event) -> None:
        self.events.append(event)
        fields = (event.start, event.end, event.client, event.op, event.asked, event.outcome, event.found)
        self._digest.update(repr(fields).encode(errors="surrogatepass"))

    def of(self, *ops: str) -> Iterator[Event]:
        return (event for event in self.events if event.op in ops)

    @property
    def digest(self) -> str:
        """Equal for equal histories."""
        return self._digest.hexdigest()

"""What clients did and saw: the only thing that an auditor looks at."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from msgspec import Struct

SLACK = 1_000
"""The broker's clock never says the same twice: it is ahead by as many microseconds as it was asked in one moment."""

COUNTER_MAX = 2
"""The bound that the clients give to each bounded counter."""


class Event(Struct):
    """One call: when it was made and answered (microseconds of true time), by whom, what was asked and what came of it.

    `outcome`: ok; refused (it is certain that nothing was applied); unknown (the answer was lost). `asked` and `found`
    are plain values, their keys given by `op`. `skew` and `skew_after`: how far the broker's clock was ahead of true
    time when the call was made and when it was answered; it changes only where a broker starts with another wall clock.
    """

    start: int
    end: int
    client: str
    op: str
    asked: dict[str, Any]
    outcome: str = "unknown"
    found: Any = None
    skew: int = 0
    skew_after: int = 0

    @property
    def ok(self) -> bool:
        return self.outcome == "ok"

    @property
    def at(self) -> int:
        """The earliest that it can have been made, by the broker's clock, on which lifetimes are counted."""
        return self.start + self.skew - SLACK

    @property
    def until(self) -> int:
        """The latest that it can have been answered, by the broker's clock."""
        return self.end + self.skew_after + SLACK


class History:
    """Events in the order in which they ended."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def add(self, event: Event) -> None:
        self.events.append(event)

    def of(self, *ops: str) -> Iterator[Event]:
        return (event for event in self.events if event.op in ops)

    @property
    def digest(self) -> str:
        """Equal for equal histories."""
        digest = hashlib.sha256()
        for event in self.events:
            digest.update(_line(event).encode(errors="surrogatepass"))
        return digest.hexdigest()

    def render(self) -> str:
        """A line for each event, to be read by whoever looks for the fault."""
        return "\n".join(_line(event) for event in self.events)


def _line(event: Event) -> str:
    came = event.outcome if event.found is None else f"{event.outcome} {event.found!r}"
    skew = f" skew {event.skew / 1e6:+.6f}" if event.skew else ""
    asked = " ".join(f"{name}={value!r}" for name, value in event.asked.items())
    span = f"{event.start / 1e6:.6f}..{event.end / 1e6:.6f}"
    return f"{span}{skew} {event.client} {event.op} {asked}: {came}"

"""What was aimed at that is no row of the workloads' table, and which command prints it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

MIB = 1024 * 1024
HTTP, REQUESTS = "http_lanes.py --aims", "requests.py --only floor"
MEMORY, GROWTH = "memory.py", "growth.py --only log"


class Aim(Struct, frozen=True):
    """`bound` is the least that is wanted, or the most where it says so."""

    what: str
    bound: float
    unit: str
    command: str
    most: bool = False

    def met(self, value: float) -> bool:
        return value <= self.bound if self.most else value >= self.bound

    @property
    def wanted(self) -> str:
        bound = self.bound / MIB if self.unit == "MiB" else self.bound
        return f"{'at most' if self.most else 'at least'} {bound:,g} {self.unit}"

    def spelled(self, value: float) -> str:
        if self.unit == "MiB":
            return f"{value / MIB:,.0f} MiB"
        return f"{self.digits(value)} {self.unit}"

    @staticmethod
    def digits(value: float) -> str:
        return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"

    def row(self, value: float, low: float | None = None, high: float | None = None) -> str:
        """A line of the table; `low` and `high` are the worst and the best of several rounds."""
        spread = "" if low is None or high is None else f" ({self.digits(low)} to {self.digits(high)})"
        verdict = "yes" if self.met(value) else "no"
        if low is not None and high is not None and self.met(low) != self.met(high):
            verdict += ", but within the noise"
        return f"| {self.what} | {self.spelled(value)}{spread} | {self.wanted} | {verdict} | `{self.command}` |"


AIMS = {
    "http-memory-32": Aim("HTTP push of 1, memory, 32 connections, beside a hypercorn hello world", 8, "times", HTTP),
    "http-durable-32": Aim("the same, durable", 2.5, "times", HTTP),
    "http-durable-128": Aim("the same, durable, 128 connections", 5, "times", HTTP),
    "http-durable-100": Aim("HTTP push of 100, durable, 32 connections", 100_000, "messages/s", HTTP),
    "in-process": Aim(
        "one durable push in process, beside a bare append and fdatasync of as many bytes (p50)",
        3,
        "times",
        REQUESTS,
        most=True,
    ),
    "parked": Aim("a parked pop with its HTTP connection", 12 * 1024, "B", MEMORY, most=True),
    "idle": Aim("an idle partition", 300, "B", MEMORY, most=True),
    "million": Aim("1,000,000 partitions, opened again: the process", 400 * MIB, "MiB", MEMORY, most=True),
    "timer": Aim("a pending timer, beyond its payload", 250, "B", MEMORY, most=True),
    "ready": Aim("ready after a crash at 1,000,000 log rows", 5, "s", GROWTH, most=True),
}
COMMANDS = {
    HTTP: ["http_lanes.py", "--aims"],
    REQUESTS: ["requests.py", "--only", "floor"],
    MEMORY: ["memory.py", "--only", "idle,parked,timer,million"],
    GROWTH: ["growth.py", "--only", "log"],
}
"""How `compare.py` gets them, with as little else as possible."""


def tell(key: str, value: float, spread: tuple[float, float] | None = None) -> None:
    """Print the figure as a JSON line."""
    aim = AIMS[key]
    line: dict[str, Any] = {"aim": key, "value": round(value, 3)}
    if spread is not None:
        line |= {"low": round(spread[0], 3), "high": round(spread[1], 3)}
    print(json.dumps(line | {"bound": aim.bound, "met": aim.met(value)}), flush=True)


def table(found: Mapping[str, Mapping[str, float]], keys: Iterable[str] = AIMS) -> str:
    """Aims as Markdown: each with its figure, or with the command that prints it."""
    rows = ["| | seen | aim | | printed by |", "| --- | ---: | ---: | --- | --- |"]
    for key in keys:
        aim, one = AIMS[key], found.get(key)
        if one is None:
            rows.append(f"| {aim.what} | not run | {aim.wanted} | | `{aim.command}` |")
        else:
            rows.append(aim.row(one["value"], one.get("low"), one.get("high")))
    return "\n".join(rows)

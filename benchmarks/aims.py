"""What was aimed at that is no row of the workloads' table, and which command prints it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

MIB = 1024 * 1024
NEAR = 0.25
"""A single measurement that is no farther than this from its bound is no clear verdict."""
HTTP, REQUESTS = "http_lanes.py --aims", "requests.py --only floor"
MEMORY, GROWTH = "memory.py", "growth.py --only log"


def verdict(bound: float, value: float, spread: tuple[float, float] | None, *, most: bool = False) -> str:
    """Yes or no, and what weakens it: `bound` lies between the worst and the best of the rounds (`spread`), or there
    was one round only (None) and its `value` is near."""

    def met(one: float) -> bool:
        return one <= bound if most else one >= bound

    said = "yes" if met(value) else "no"
    if spread is None:
        return said + (", one round" if abs(value / bound - 1) < NEAR else "")
    return said + (", but within the noise" if met(spread[0]) != met(spread[1]) else "")


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
        spread = None if low is None or high is None else (low, high)
        between = "" if spread is None else f" ({self.digits(spread[0])} to {self.digits(spread[1])})"
        said = verdict(self.bound, value, spread, most=self.most)
        return f"| {self.what} | {self.spelled(value)}{between} | {self.wanted} | {said} | `{self.command}` |"


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
    "million": Aim(
        "1,000,000 partitions, opened again by an embedded broker and packed: the process",
        400 * MIB,
        "MiB",
        MEMORY,
        most=True,
    ),
    "timer": Aim("a pending timer, beyond its payload", 250, "B", MEMORY, most=True),
    "ready": Aim("ready after a kill, 1,000,000 log rows over 1,000 partitions", 5, "s", GROWTH, most=True),
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

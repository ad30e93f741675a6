"""What a campaign did and found, for people and, as one line of JSON, for programs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from .history import History

SHOWN = 20
"""So many violations are told; how many there are is told in any case."""


class Summary:
    """Figures of one campaign, or of several that ran at once (`add`)."""

    def __init__(self, column: str, seed: int) -> None:
        self.column = column
        self.seed = seed
        self.counts: Counter[str] = Counter()
        """Rounds, kills, cuts, jumps, ...: what was done, by its name."""
        self.points: Counter[str] = Counter()
        """Named points at which the process died, how often."""
        self.missed: Counter[str] = Counter()
        """Named points that were not reached in time; the process was killed instead."""
        self.ready: list[float] = []
        """Seconds of each start until it was ready."""
        self.violations: list[str] = []
        self.not_run: list[str] = []
        """What could not be done here, and why. It counts as not run, and not as passed."""

    def count(self, history: History) -> None:
        """Add a history's calls."""
        self.counts["operations"] += len(history.calls)
        self.counts["acknowledged"] += sum(call.acknowledged for call in history.calls)
        self.counts["unknown"] += sum(call.unknown for call in history.calls)

    @property
    def deaths(self) -> int:
        return self.counts["kills"] + self.points.total()

    def lines(self) -> list[str]:
        """For people."""
        done = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in self.counts.items())
        points = ", ".join(f"{point} {count}" for point, count in sorted(self.points.items()))
        ready = sorted(self.ready) or [0.0]
        return [
            f"{self.column}: seed {self.seed}: {done or 'nothing was done'}",
            f"points reached: {points or 'none'}",
            *([f"points not reached: {dict(self.missed)}"] if self.missed else []),
            f"ready again: median {ready[len(ready) // 2]:.2f} s, worst {ready[-1]:.2f} s, of {len(self.ready)}",
            *(f"not run: {text}" for text in self.not_run),
            f"violations: {len(self.violations)}",
            *self.violations[:SHOWN],
        ]

    def json(self) -> str:
        """One line."""
        return msgspec.json.encode(self._plain()).decode()

    def _plain(self) -> dict[str, Any]:
        ready = sorted(self.ready)
        return {
            "column": self.column,
            "seed": self.seed,
            "counts": dict(self.counts),
            "points": dict(sorted(self.points.items())),
            "missed": dict(sorted(self.missed.items())),
            "starts": len(ready),
            "ready_median": ready[len(ready) // 2] if ready else None,
            "ready_worst": ready[-1] if ready else None,
            "ready": ready,
            "not_run": self.not_run,
            "violations": self.violations,
        }

    def add(self, told: dict[str, Any]) -> None:
        """Add what another process's campaign told in its line of JSON."""
        self.counts.update(told["counts"])
        self.points.update(told["points"])
        self.missed.update(told["missed"])
        self.ready += told["ready"]
        self.violations += told["violations"]
        self.not_run += [text for text in told["not_run"] if text not in self.not_run]

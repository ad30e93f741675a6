"""What a run of inputs did and found; its last line is JSON, for the table of figures."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field

SHOWN = 20


@dataclass
class Summary:
    """`violations`: sentences, with what repeats them."""

    column: str
    seed: int
    inputs: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    """What came of the inputs: a status, an ending, an error, to how many."""
    figures: dict[str, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    not_run: list[str] = field(default_factory=list)
    """What could not be done here, and why. It counts as not run, and not as passed."""

    def lines(self) -> list[str]:
        """The report, and at its end the line that is read by programs."""
        answers = ", ".join(f"{name} {count}" for name, count in sorted(self.answers.items()))
        told = {
            "column": self.column,
            "seed": self.seed,
            "counts": {"inputs": self.inputs, **self.figures},
            "not_run": self.not_run,
            "violations": self.violations,
        }
        return [
            f"{self.column}: seed {self.seed}: {self.inputs} inputs ({answers})",
            *(f"not run: {text}" for text in self.not_run),
            f"violations: {len(self.violations)}",
            *self.violations[:SHOWN],
            json.dumps(told),
        ]

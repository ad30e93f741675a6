"""Walks the machines, and makes what a walk finds small enough to be read.

A walk is made of lives. A life begins with nothing, is a function of its machine and its seed, and ends after some
hundred steps, so that whatever goes wrong in it can be lived again, step by step.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Protocol

from . import kv, locks, partition, timers
from .kv import Pick


class Pair(Protocol):
    """The rules and a model side by side; what is not the same raises."""

    every: int
    whole: bool
    asked: list[Any]

    def step(self, pick: Pick) -> None: ...
    def compare(self) -> None: ...
    def rebuild(self) -> None: ...


MACHINES: dict[str, type[Pair]] = {
    "kv": kv.Pair,
    "locks": locks.Pair,
    "timers": timers.Pair,
    "partition": partition.Pair,
}
LIFE = 500
"""Steps of one life. An index of a partition's messages has several pages by then."""
REBUILDS = 5
"""How often the state is made again from the log in a life."""
SHRINK_STEPS = 50_000
"""Steps that may be made to leave out what need not be: some seconds, and the same ones each time."""
Draws = list[list[float]]
"""What was drawn in each step, between 0 and 1: a step that is tried after others than before can still be made."""


@dataclass(frozen=True)
class Broken:
    """A life in which the rules and the model parted: at which step, how, and the fewest steps that lead there."""

    machine: str
    seed: int
    step: int
    why: str
    steps: Sequence[str]

    def __str__(self) -> str:
        tail = "\n".join(f"  {number:4} {step}" for number, step in enumerate(self.steps, 1))
        again = f"python -m tests.walks --machine {self.machine} --seed {self.seed} --steps 1"
        return f"{self.machine}, seed {self.seed}, step {self.step}: {self.why}\n{tail}\nagain: {again}"


def live(machine: str, seed: int) -> Broken | None:
    """One life: every reply is compared, the whole state every `Pair.every` steps."""
    pair = MACHINES[machine]()
    pick, step, every = picker(Random(f"{machine} {seed}")), pair.step, pair.every
    try:
        for part in range(LIFE // every):
            pair.whole = False
            for _ in range(every - 1):
                step(pick)
            pair.whole = True
            step(pick)
            pair.compare()
            if not (part + 1) % (LIFE // every // REBUILDS):
                pair.rebuild()
    except Exception as error:  # a rule that raises what no caller expects is broken too
        return examined(machine, seed, error)
    return None


def picker(source: Random) -> Pick:
    """`choice`, at a third of its cost."""
    draw = source.random

    def pick(options: Sequence[Any]) -> Any:
        return options[int(draw() * len(options))]

    return pick


# -- what went wrong ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Failed:
    """Steps of which the last went wrong."""

    draws: Draws
    shown: list[str]
    why: str


def examined(machine: str, seed: int, error: Exception) -> Broken:
    """Live it again with everything looked at after each step, then leave out the steps that need not be."""
    for rebuild in (False, True):  # a state that is always made again may hide what shows in one that lives on
        source = Random(f"{machine} {seed}")
        failed = tried(machine, [source.random] * LIFE, rebuild)
        if failed is not None:
            small = shrunk(machine, failed, rebuild)
            return Broken(machine, seed, len(failed.draws), small.why, small.shown)
    return Broken(machine, seed, 0, told(error), ["not so when everything is looked at after each step"])


def tried(machine: str, sources: Sequence[Callable[[], float]], rebuild: bool) -> Failed | None:
    """Make a step from each source; what went wrong, if anything did."""
    pair = MACHINES[machine]()
    draws: Draws = []
    shown: list[str] = []
    try:
        for source in sources:
            drawn: list[float] = []
            chosen: list[Any] = []
            draws.append(drawn)
            shown.append("")
            try:
                pair.step(_noting(source, drawn, chosen))
            finally:
                shown[-1] = _shown(pair.asked, chosen)
            pair.compare()
            if rebuild:
                pair.rebuild()
        pair.rebuild()
    except Exception as error:  # as in `live`
        return Failed(draws, shown, told(error))
    return None


def shrunk(machine: str, failed: Failed, rebuild: bool) -> Failed:
    """Leave out ever smaller parts, as long as something still goes wrong."""
    left = SHRINK_STEPS
    size = len(failed.draws) // 2
    while size and left > 0:
        at = len(failed.draws) - size
        while at >= 0 and left > 0:
            fewer = failed.draws[:at] + failed.draws[at + size :]
            left -= len(fewer)
            smaller = tried(machine, [_replaying(drawn) for drawn in fewer], rebuild)
            failed = failed if smaller is None else smaller
            at = min(at, len(failed.draws)) - size
        size //= 2
    return failed


def told(error: Exception) -> str:
    """What was raised, and the line that raised it: most assertions say no more than that."""
    at = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} {error} at {Path(at.filename).name}:{at.lineno}: {at.line}"


def _noting(source: Callable[[], float], drawn: list[float], chosen: list[Any]) -> Pick:
    def pick(options: Sequence[Any]) -> Any:
        drawn.append(source())
        chosen.append(options[int(drawn[-1] * len(options))])
        return chosen[-1]

    return pick


def _replaying(drawn: list[float]) -> Callable[[], float]:
    left = iter(drawn)
    return lambda: next(left, 0.0)


def _shown(asked: list[Any], chosen: list[Any]) -> str:
    """What a step was; an action that says no more than its name is told with what it chose."""
    if len(asked) == 1 and isinstance(asked[0], str):
        words = (repr(one) for one in chosen if not callable(one) and not isinstance(one, partition.Pace))
        return f"{asked[0]} {', '.join(words)}"
    return "; ".join(one if isinstance(one, str) else repr(one) for one in asked)

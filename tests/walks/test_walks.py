"""A walk finds what is wrong in a rule, soon, and says which few steps lead there; it finds nothing in the rules."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from . import driver
from .driver import LIFE, MACHINES, Broken, live
from .plants import PLANTS

ROOT = Path(__file__).parents[2]
STEPS = 10_000
"""Within so many of its machine's each planted bug is found; a night makes more than a thousand times as many."""


def walked(machine: str) -> tuple[Broken | None, int]:
    """What is found first, and after how many steps."""
    for seed in range(STEPS // LIFE):
        if (found := live(machine, seed)) is not None:
            return found, seed * LIFE + found.step
    return None, STEPS


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each within its steps, and told by the last of them."""
    machine, plant = PLANTS[name]
    plant(monkeypatch)
    monkeypatch.setattr(driver, "SHRINK_STEPS", 0)
    found, steps = walked(machine)
    assert found is not None
    assert steps <= STEPS
    assert found.why
    assert found.steps[-1]


@pytest.mark.parametrize("machine", MACHINES)
def test_nothing_is_found_in_the_rules_as_they_are(machine: str) -> None:
    """The control: it is the bug that a walk finds."""
    assert walked(machine)[0] is None


def test_what_is_found_is_small() -> None:
    """A bug that needs a few steps is told with a few, of the hundreds that were made."""
    with pytest.MonkeyPatch.context() as patch:
        PLANTS["stale_token_releases"][1](patch)
        found, _ = walked("locks")
    assert found is not None
    assert len(found.steps) <= 3
    assert "Release" in found.steps[-1]
    assert f"--machine locks --seed {found.seed}" in str(found)


def test_a_life_is_a_function_of_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is found once is found again, and told alike."""
    PLANTS["timer_early"][1](monkeypatch)
    first, second = live("timers", 3), live("timers", 3)
    assert first is not None
    assert str(first) == str(second)


def test_the_command_says_what_it_did() -> None:
    """The line that the columns read."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.walks", "--steps", "5000", "--seed", "9"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0
    assert done.stdout.startswith("6000 steps in 3 rounds, 0 broken, ")

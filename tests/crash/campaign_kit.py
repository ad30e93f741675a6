"""What the tests of the campaigns have in common: a broker with a fault, and whether a campaign passed or found it."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from .summary import Summary

PATCHED = """
import sys, time
from queen_actors.{module} import {name}
{patch}
from queen_actors.cli import main
sys.exit(main())
"""
"""A broker in which something is replaced, as a program."""


def passed(summary: Summary) -> str:
    """What it told. Fails when anything was broken or was not run."""
    told = "\n".join(summary.lines())
    print(told)
    assert summary.violations == [], told
    assert summary.not_run == [], told
    return told


async def found(run: Callable[[Path, int], Awaitable[Summary]], tmp_path: Path, *words: str, tries: int = 3) -> None:
    """One of a few campaigns reports it, in one of these words."""
    seed = random.getrandbits(32)
    told = ""
    for number in range(tries):
        place = tmp_path / f"try-{number}"
        place.mkdir()
        summary = await run(place, seed + number)
        told = "\n".join(summary.lines())
        print(told)
        if any(each in violation for violation in summary.violations for each in words or ("",)):
            return
    pytest.fail(f"it was not found: {told}")

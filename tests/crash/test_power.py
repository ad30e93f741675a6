"""Power cuts of the real process, and the control that shows that the rig sees a flush that is missing."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from .power import cuts

CUTS = 6
TRIES = 3
LOST = ("was acknowledged", "it does not start by itself", "is damaged")


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_what_was_acknowledged_survives_a_power_cut(tmp_path: Path) -> None:
    """I1-I12, I14: after each cut it starts from what was flushed alone, and everything acknowledged is there."""
    summary = await cuts(tmp_path, random.getrandbits(32), CUTS)
    told = "\n".join(summary.lines())
    print(told)
    assert summary.violations == [], told
    assert summary.counts["cuts"] + summary.points.total() >= CUTS, told
    assert summary.counts["acknowledged"] > 30 * CUTS, told


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("ignore", ["journal-", "/", "segment-", "snapshot-"])
async def test_a_missing_flush_is_found(tmp_path: Path, ignore: str) -> None:
    """The control: when the flushes of a kind of file, or of the directory, do nothing, one of a few runs misses what
    was acknowledged, or finds no log that can be opened: not every cut falls where it matters."""
    for number in range(TRIES):
        place = tmp_path / f"try-{number}"
        place.mkdir()
        summary = await cuts(place, random.getrandbits(32), 8, ignore)
        told = "\n".join(summary.lines())
        print(told)
        if any(words in violation for violation in summary.violations for words in LOST):
            return
    pytest.fail(told)

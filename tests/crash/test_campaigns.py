"""The campaigns of stops, pauses and clocks in small, and for each a control: a fault planted in the broker or in its
machine, which it reports. Those of networks and disks have files of their own."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from .campaign import KillCampaign, stories
from .campaign_kit import PATCHED, found, passed
from .pauses import PauseCampaign, clock, pauses
from .summary import Summary

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

WALL = PATCHED.format(
    module="actors.clock",
    name="TrioClock",
    patch="TrioClock.now = lambda self: time.time_ns() // 1000",
)
"""A broker whose clock is the wall's."""


async def stops(place: Path, seed: int) -> Summary:
    """A kill and a stop under load."""
    summary = Summary("kills", seed)
    await stories(KillCampaign, place, summary, 1)
    return summary


async def test_a_stop_under_load_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """I20: SIGTERM while it works ends it with status 0, within its time, and all that was acknowledged is there. The
    kill that was asked for comes as well."""
    monkeypatch.setattr(KillCampaign, "stops_per_kill", 2.0)
    summary = await stops(tmp_path, random.getrandbits(32))
    told = passed(summary)
    assert summary.counts["stops"] == 2, told
    assert summary.counts["kills"] >= 1, told
    assert summary.counts["acknowledged"] > 100, told


async def test_a_broker_that_does_not_stop_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A control of stops: one that does not obey SIGTERM."""
    monkeypatch.setattr(KillCampaign, "planted", "a_stop_is_not_heard")
    await found(stops, tmp_path, "a stop under load was not over", tries=1)


async def test_a_stop_that_loses_what_was_answered_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A control of stops: a broker that answers for a while yet when it is told to stop, and writes no more."""
    monkeypatch.setattr(KillCampaign, "planted", "a_stop_writes_nothing_more")
    # Also a roll on its way out, or the next start, may be what notices that the journal is short
    await found(stops, tmp_path, "was acknowledged", "was committed", "a file between them is missing")


async def test_pauses_longer_than_every_lease_break_no_promise(tmp_path: Path) -> None:
    """I19: I1-I12 over pauses of the whole process of up to 8 s, with leases of 1 to 5 s."""
    summary = await pauses(tmp_path, random.getrandbits(32), 3)
    told = passed(summary)
    assert summary.counts["pauses"] >= 3, told
    assert summary.counts["linearized"] > 100, told


async def test_an_ack_that_outlives_its_lease_in_a_pause_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of pauses: a broker that takes an ack under a lease that has run out."""
    monkeypatch.setattr(PauseCampaign, "planted", "dead_lease_settles")
    await found(lambda place, seed: pauses(place, seed, 9), tmp_path, "an ack of")


async def test_jumps_of_the_wall_clock_break_no_promise(tmp_path: Path) -> None:
    """I19: I1-I12 while the wall clock goes an hour and a day forth and back."""
    summary = await clock(tmp_path, random.getrandbits(32), 8)
    told = passed(summary)
    assert summary.counts["jumps"] >= 8, told
    assert summary.counts["linearized"] > 100, told


async def test_a_broker_that_trusts_the_wall_clock_is_found(tmp_path: Path) -> None:
    """The control: the clock does jump for the broker, and leases, lifetimes or timers that follow it are reported."""
    await found(lambda place, seed: clock(place, seed, 16, ["-c", WALL]), tmp_path)


def test_the_command_tells_its_figures_in_its_last_line(tmp_path: Path) -> None:
    """Two processes at once, one summary; a broken promise would be status 1."""
    command = [sys.executable, "-m", "tests.crash", "--kills", "2", "--seed", "5", "--jobs", "2"]
    done = subprocess.run([*command, "--keep", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    told = json.loads(done.stdout.splitlines()[-1])
    assert (told["column"], told["seed"], told["violations"], told["counts"]["rounds"]) == ("kills", 5, [], 2)
    assert told["ready_worst"] > 0

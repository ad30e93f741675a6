"""Each campaign in small, and for each a control: a fault planted in the broker or in its machine, which it reports."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from queen_actors.storage import recovery

from .campaign import KillCampaign, stories
from .churn import churn
from .damage import damages
from .disk import DiskCampaign, disk
from .network import NetworkCampaign
from .node import Node
from .pauses import PauseCampaign, clock, pauses
from .power import build_shim
from .summary import Summary

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PATCHED = """
import sys, time
from queen_actors.{module} import {name}
{patch}
from queen_actors.cli import main
sys.exit(main())
"""
WALL = PATCHED.format(
    module="actors.clock",
    name="TrioClock",
    patch="TrioClock.now = lambda self: time.time_ns() // 1000",
)
"""A broker whose clock is the wall's."""
FORGETFUL = PATCHED.format(
    module="actors.subscription",
    name="Subscription",
    patch="""
async def nothing(self): pass
Subscription.close = nothing
""",
)
"""A broker that keeps what a lost connection has leased."""
LEAKY = PATCHED.format(
    module="serve.listen",
    name="_Server",
    patch="""
handle, kept = _Server.handle, []
async def keeping(self, stream):
    kept.append(b"x" * 16_384)
    await handle(self, stream)
_Server.handle = keeping
""",
)
"""A broker that keeps 16 KiB of each connection."""


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


async def one_network(place: Path, seed: int) -> Summary:
    """One round of it."""
    summary = Summary("network", seed)
    await stories(NetworkCampaign, place, summary, 1)
    return summary


async def test_a_bad_network_breaks_no_promise(tmp_path: Path) -> None:
    """I1-I12 over links that freeze, crawl, are swallowed or cut, with clients that come again."""
    summary = Summary("network", random.getrandbits(32))
    await stories(NetworkCampaign, tmp_path, summary, 2)
    told = passed(summary)
    assert summary.counts["network_faults"] >= 12, told
    assert summary.counts["acknowledged"] > 100, told
    assert summary.counts["leases_lost"] >= 1, told


async def test_a_lease_that_outlives_its_link_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of bad networks: a broker that gives nothing back when a connection ends."""
    monkeypatch.setattr(NetworkCampaign, "planted", "connections_keep_their_leases")

    await found(one_network, tmp_path, "was not given back")


async def test_a_consumer_that_never_reads_is_dropped_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """I18: it costs no more than its credit, delays nobody, and others have what was leased to it."""
    monkeypatch.setattr(NetworkCampaign, "deaf_every", 1)
    summary = await one_network(tmp_path, random.getrandbits(32))
    told = passed(summary)
    assert summary.counts["deaf_consumers"] == 1, told


async def test_a_consumer_that_is_not_dropped_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of I18: a broker that waits for a peer without end."""
    monkeypatch.setattr(NetworkCampaign, "deaf_every", 1)
    monkeypatch.setattr(NetworkCampaign, "planted", "writes_wait_without_end")
    await found(one_network, tmp_path, "never reads was not dropped", tries=1)


async def test_clients_that_come_and_go_leave_nothing(tmp_path: Path) -> None:
    """I20: descriptors and memory are as before, and every lease and permit is free."""
    summary = Summary("network", random.getrandbits(32))
    await churn(tmp_path, summary, 210)
    passed(summary)


async def test_a_lease_that_outlives_its_connection_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: a broker that gives nothing back when a connection ends."""
    monkeypatch.setattr(Node, "program", ("-c", FORGETFUL))

    async def run(place: Path, seed: int) -> Summary:
        summary = Summary("network", seed)
        await churn(place, summary, 70)
        return summary

    await found(run, tmp_path, "lease was not given back", tries=1)


async def test_a_leak_of_some_kibibytes_a_connection_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: 16 KiB stay of each connection."""
    monkeypatch.setattr(Node, "program", ("-c", LEAKY))

    async def run(place: Path, seed: int) -> Summary:
        summary = Summary("network", seed)
        await churn(place, summary, 350)
        return summary

    await found(run, tmp_path, "clients that came and went left", tries=1)


async def test_disk_faults_give_no_wrong_answer(tmp_path: Path) -> None:
    """I15, I16: damage in every kind of file is refused or harmless; a full disk is refused cleanly and survived."""
    summary = await disk(tmp_path, random.getrandbits(32), 30)
    told = passed(summary)
    assert summary.counts["refused"] >= 5, told
    assert summary.counts["harmless"] >= 1, told
    assert sum(summary.counts[kind] for kind in ("full_disks", "failed_write", "failed_flush")) >= 1, told


async def test_a_disk_that_fails_under_load_gives_no_wrong_answer(tmp_path: Path) -> None:
    """I15: one that fills up is refused cleanly and survived; a write or a flush that fails ends the process, and the
    next start has all that was acknowledged."""
    summary = Summary("disk", random.getrandbits(32))
    await stories(partial(DiskCampaign, shim=build_shim(tmp_path)), tmp_path, summary, 4)
    told = passed(summary)
    done = [summary.counts[kind] for kind in ("full_disks", "failed_write", "failed_flush")]
    assert done == [2, 1, 1], told


async def test_a_full_disk_that_is_not_noticed_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of disks that fail: a broker that takes a refused write for written."""
    monkeypatch.setattr(DiskCampaign, "planted", "refused_writes_count_as_written")
    shim = build_shim(tmp_path)

    async def run(place: Path, seed: int) -> Summary:
        summary = Summary("disk", 4 * seed)  # those begin with a full disk
        await DiskCampaign(place, summary.seed, summary, shim=shim).run(1)
        return summary

    await found(run, tmp_path)


async def test_damage_that_is_not_noticed_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: an open that takes every sealed file as it is."""
    monkeypatch.setattr(recovery, "check", lambda _: None)

    async def run(place: Path, seed: int) -> Summary:
        summary = Summary("disk", seed)
        await damages(place, summary, 60)
        return summary

    await found(run, tmp_path, tries=2)


def test_the_command_tells_its_figures_in_its_last_line(tmp_path: Path) -> None:
    """Two processes at once, one summary; a broken promise would be status 1."""
    command = [sys.executable, "-m", "tests.crash", "--kills", "2", "--seed", "5", "--jobs", "2"]
    done = subprocess.run([*command, "--keep", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    told = json.loads(done.stdout.splitlines()[-1])
    assert (told["column"], told["seed"], told["violations"], told["counts"]["rounds"]) == ("kills", 5, [], 2)
    assert told["ready_worst"] > 0

"""The campaigns of disks and of damage in small, each with a control (see `test_campaigns.py`)."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest

from queen_actors.storage import recovery

from . import disk as disk_module
from .campaign import stories
from .campaign_kit import found, passed
from .damage import damages
from .disk import DiskCampaign, disk
from .power import build_shim
from .summary import Summary

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


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
    """The control of disks that fail: a broker that takes a refused write for written. It refuses nothing, however long
    one waits for that."""
    monkeypatch.setattr(DiskCampaign, "planted", "refused_writes_count_as_written")
    monkeypatch.setattr(disk_module, "HANG_SECONDS", 15.0)
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

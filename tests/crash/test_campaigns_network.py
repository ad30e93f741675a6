"""The campaigns of networks and of clients that come and go in small, each with a control (see `test_campaigns.py`)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from .campaign import stories
from .campaign_kit import PATCHED, found, passed
from .churn import churn
from .network import NetworkCampaign
from .node import Node
from .summary import Summary

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

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

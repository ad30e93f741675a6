"""The real process under load, killed at any moment and at named points of its log's work; everything is read back.

QUEEN_ACTORS_KILLS=300 python -m pytest tests/crash     # or python -m tests.crash --kills 300 --seed 1
"""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from .campaign import Campaign, kills
from .history import READER, History
from .node import Node
from .peer import Peer, connected

KILLS = int(os.environ.get("QUEEN_ACTORS_KILLS", "20"))
READY_SECONDS = 5.0
"""A66: how soon it starts by itself, every time."""
TRIES = 4
ROWS = 100_000
ROWS_READY_SECONDS = 3.0


@pytest.mark.slow
@pytest.mark.timeout(300 + 20 * KILLS)
async def test_kills_break_no_promise(tmp_path: Path) -> None:
    """I1-I12, I14, A66: after each death it starts by itself, and everything that was acknowledged is there, whole and
    once; the log rolled, was sealed and was snapshotted meanwhile."""
    seed = random.getrandbits(32)
    summary = await kills(tmp_path, seed, KILLS)
    told = "\n".join(summary.lines())
    print(told)
    assert summary.violations == [], told
    assert summary.deaths >= KILLS, told
    assert summary.points.total() >= KILLS // 4, told
    assert summary.counts["acknowledged"] > 30 * KILLS, told
    assert summary.counts["linearized"] > 30 * KILLS, told
    assert max(summary.ready) < READY_SECONDS, told
    names = [name for _, _, files in os.walk(tmp_path) for name in files]
    assert any(name.startswith("segment-") for name in names), names
    assert any(name.startswith("snapshot-") for name in names), names


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_an_answer_that_is_not_on_disk_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: a broker that answers before its write is durable. One of a few campaigns falls where it matters."""
    monkeypatch.setattr(Campaign, "planted", "answer_before_durable")
    told: list[str] = []
    for number in range(TRIES):
        place = tmp_path / f"try-{number}"
        place.mkdir()
        summary = await kills(place, random.getrandbits(32), 6)
        told += summary.violations
        if any("was acknowledged" in text or "linearizable" in text or "are lost" in text for text in told):
            return
    pytest.fail(f"it was not found: {told}")


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    node = Node(tmp_path)
    yield node
    node.close()


@pytest.mark.slow
async def test_ready_soon_after_a_kill_with_many_rows(node: Node) -> None:
    """At 100,000 rows that no file but the journal holds, it is ready within 3 s of its start, with all of them."""
    await trio.to_thread.run_sync(node.start)
    async with connected(node.port, History(), 0) as peer:
        for first in range(0, ROWS, 1000):
            items = [
                {"queue": "q", "partition": f"p{number % 50}", "transactionId": f"t{number}", "payload": {"n": number}}
                for number in range(first, first + 1000)
            ]
            assert (await peer.call("push", {"items": items})).acknowledged
    node.kill()
    taken = await trio.to_thread.run_sync(node.start)
    async with connected(node.port, History(), READER) as peer:
        assert await _numbers(peer) == list(range(ROWS))
    print(f"ready in {taken:.2f} s at {ROWS} rows")
    assert taken < ROWS_READY_SECONDS


async def _numbers(peer: Peer) -> list[int]:
    """The payloads of all partitions of `q`, in order."""
    found: list[int] = []
    for number in range(50):
        entries = [{"queue": "q", "partition": f"p{number}", "offset": 0}]
        (answer,) = (await peer.call("fetch", {"entries": entries})).answer["entries"]
        found += [record["payload"]["n"] for record in answer["records"]]
    return sorted(found)

"""Partitions that nobody uses leave memory in the end, however large they were when they were looked at."""

from __future__ import annotations

import pytest
import trio
from broker_kit import push, started
from trio.testing import MockClock

from queen_actors.actors import upkeep
from queen_actors.storage.memory import MemoryStore

VIRTUAL_TIME = True
WINDOW = 3600
"""Seconds for which a queue's transaction ids are remembered."""


@pytest.mark.parametrize("room", [1000, 5])
async def test_a_partition_with_many_ids_in_the_window_is_packed_when_that_is_over(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """When it was looked at, and when it was to make room for others, its index was too large to be packed. It counts
    as in use until that has been pruned, and is packed then."""
    monkeypatch.setattr(upkeep, "MOST_ACTIVE", room)
    store = MemoryStore(retain=True, seal_seconds=20)
    async with started(store, record_cache_bytes=0) as broker:
        directory = broker._core.directory
        for number in range(10):
            await push(broker, *[f"{number}-{place}" for place in range(300)], partition=f"p{number}")
        await trio.sleep(WINDOW / 2)
        assert len(directory.active) == 10
        await trio.sleep(WINDOW)
        assert (len(directory.active), len(directory.packed)) == (0, 10)
        await push(broker, "0-0", "1", partition="p0")
        found = directory.find("q", "p0")
        assert found is not None
        assert found.next_offset == 302

"""Retention and size on a real disk: segments that nothing needs go whole, and what was in them is remembered as long
as it must be (wire-messaging.md 21)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import duckdb
import pytest
import trio
from wire_kit import Direct, Wire

from queen_actors.api import Api
from queen_actors.broker import Broker, running
from queen_actors.config import Settings
from queen_actors.storage import DurableStore

KIB = 1024


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[tuple[Wire, Broker]]:
    """A broker over a store that rolls and snapshots all the time."""
    store = DurableStore(str(path), roll_bytes=256 * KIB, snapshot_bytes=256 * KIB)
    settings = Settings(data=str(path), record_cache_bytes=64 * KIB)
    async with running(store, settings) as broker:
        yield Wire(Direct(Api(broker, settings))), broker


def payloads(path: Path) -> int:
    """How many of the churned messages lie in segments."""
    found = 0
    for file in path.glob("segment-*"):
        with duckdb.connect(str(file), read_only=True) as connection:
            (row,) = connection.execute("SELECT count(*) FROM messages").fetchall()
            found += row[0]
    return found


def backlog(path: Path) -> bool:
    """Is there more to seal than what the last moments left?"""
    return len(list(path.glob("journal-*"))) > 2


def busy(path: Path) -> bool:
    """Is there more than what the last moments left?"""
    return len(list(path.glob("segment-*"))) > 3 or backlog(path)


def holds_messages(path: Path) -> bool:
    """`payloads` beside the running broker, which may drop a segment while it is looked at."""
    try:
        return payloads(path) > 0
    except (duckdb.Error, OSError):
        return True


async def push(wire: Wire, round_: int) -> Any:
    """100 messages of half a KiB."""
    items = [
        {"queue": "q", "partition": f"p{n % 5}", "payload": "x" * 500, "transactionId": f"{round_}-{n}"}
        for n in range(100)
    ]
    return await wire.ok("POST", "/api/v1/push", {"items": items}, status=201)


async def tick(wire: Wire, path: Path) -> None:
    """The log goes on, so that it rolls, and no faster than the upkeep seals it."""
    for _ in range(6):
        await wire.put("tick", "y" * 50_000)
    while backlog(path):  # noqa: ASYNC110 (it is the upkeep that seals)
        await trio.sleep(0.1)
    await trio.sleep(0.5)


async def settled(wire: Wire, path: Path) -> None:
    """Until the upkeep has dropped every segment but those of the last moments, and these hold no message."""
    with trio.fail_after(300):  # a busy machine builds a segment in seconds
        while busy(path) or holds_messages(path):
            await tick(wire, path)


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_a_queue_that_is_churned_stays_small(tmp_path: Path) -> None:
    """A megabyte pushed and consumed at a retention of a second: the directory ends with nothing of them, and lag
    is 0 (`benchmarks/soak.py` watches it for longer). Repeats of removed messages are duplicates, also after a restart;
    readers in the removed range are told where the log starts; a batch that was leased there is acked without error."""
    path = tmp_path / "data"
    async with opened(path) as (wire, _):
        await wire.configure("q", dedupWindowSeconds=600)
        first = await push(wire, 0)
        held = await wire.pop("q", consumerGroup="slow", subscriptionMode="all", leaseSeconds=600)
        await wire.configure("q", retentionEnabled=True, retentionSeconds=1, dedupWindowSeconds=600)
        for round_ in range(1, 24):
            await push(wire, round_)
            query = {"consumerGroup": "g", "subscriptionMode": "all", "batch": 500, "partitions": 5}
            await wire.ack(*((message, "completed") for message in await wire.pop("q", **query)), group="g")
            await trio.sleep(0.03)
        await trio.sleep(1.2)
        await settled(wire, path)
        depth = await wire.ok("GET", "/api/v1/resources/queues/q/depth?group=slow")
        assert (depth["pending"], depth["processing"]) == (0, 0)
        (row,) = [r for r in await wire.ok("GET", "/api/v1/consumer-groups") if r["name"] == "slow"]
        assert (row["totalLag"], row["partitionsWithLag"]) == (0, 0)
        entries = await wire.ack(*((message, "completed") for message in held), group="slow")
        assert all(entry["success"] for entry in entries)
        asked = {"entries": [{"queue": "q", "partition": "p0", "offset": 0}]}
        (entry,) = (await wire.ok("POST", "/api/v1/fetch", asked))["entries"]
        assert (entry["error"], entry["logStartOffset"], entry["highWatermark"]) == ("OFFSET_OUT_OF_RANGE", 480, 480)
        assert (await wire.ok("GET", "/api/v1/resources/queues/q/sizes"))["partitions"] == {
            f"p{n}": 0 for n in range(5)
        }
    assert payloads(path) == 0
    async with opened(path) as (wire, _):
        again = await push(wire, 0)
        assert {row["status"] for row in again} == {"duplicate"}
        assert [(row["message_id"], row["offset"]) for row in again] == [
            (row["message_id"], row["offset"]) for row in first
        ]
        late = {name: held[0][name] for name in ("transactionId", "partitionId")}
        (entry,) = await wire.ack({**late, "status": "completed"}, group="slow")
        assert (entry["success"], entry["noop"]) == (True, True)
        assert await wire.pop("q", consumerGroup="new", subscriptionMode="all") == []
        (anew,) = await wire.push("q", 1, partition="p0", txn="after")
        assert anew["offset"] == 480

"""Ephemeral queues through the client, in process and over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta

import pytest
import trio
from client_server import served

from queen_actors import NotFound, Overloaded, connect, open_broker
from queen_actors.client import Queen, Retry

VIRTUAL_TIME = True


@asynccontextmanager
async def in_process() -> AsyncIterator[Queen]:
    async with open_broker() as queen:
        yield queen


@asynccontextmanager
async def over_http() -> AsyncIterator[Queen]:
    async with served() as server, connect(server.url, retry=Retry(overloaded=1)) as queen:
        yield queen


Opens = Callable[[], AbstractAsyncContextManager[Queen]]
both = pytest.mark.parametrize("opens", [in_process, over_http])


@both
async def test_the_round(opens: Opens) -> None:
    """Pushed, popped with what was pushed, settled; each verdict is told."""
    async with opens() as queen:
        assert await queen.ephemeral.push("room", [{"user": "a"}, {"data": [1]}, None], partition="p/1") == 3
        assert await queen.ephemeral.push("room", "hi") == 1
        assert await queen.ephemeral.push("room", []) == 0
        messages = await queen.ephemeral.pop("room", batch=5)
        assert [(m.data, m.partition, m.attempts) for m in messages] == [
            ({"user": "a"}, "p/1", 0),
            ([1], "p/1", 0),
            (None, "p/1", 0),
            ("hi", "Default", 0),
        ]
        assert await queen.ephemeral.ack("room", messages[:2]) == ["acked", "acked"]
        assert await queen.ephemeral.ack("room", messages[2].id, False) == ["redelivered"]
        assert await queen.ephemeral.ack("room", [messages[3], messages[0].id], "retry") == ["redelivered", "unknown"]
        assert await queen.ephemeral.ack("room", []) == []
        again = await queen.ephemeral.pop("room", batch=5, auto_ack=True)
        assert [m.attempts for m in again] == [1, 1]
        assert await queen.ephemeral.pop("room") == []


@both
async def test_waiting_groups(opens: Opens) -> None:
    """Each group gets the message at the push; a wait in any spelling ends at its time."""
    async with opens() as queen:
        got: list[object] = []

        async def wait(group: str) -> None:
            got.extend(m.data for m in await queen.ephemeral.pop("q", group=group, wait=True))

        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                for group in ("a", "b"):
                    nursery.start_soon(wait, group)
                await trio.sleep(0.2)
                await queen.ephemeral.push("q", 1)
        assert got == [1, 1]
        for spelling in (0.05, "50ms", timedelta(milliseconds=50)):
            assert await queen.ephemeral.pop("q", group="a", wait=spelling, partition="x") == []


@both
async def test_queues(opens: Opens) -> None:
    """Declared with their options, listed, measured, emptied and deleted; a full one is Overloaded."""
    async with opens() as queen:
        declared = await queen.ephemeral.configure(
            "a/b", max_length=2, ttl="1h", lease=timedelta(seconds=5), retry_limit=1, window_ms=5, window_count=2
        )
        assert declared["options"] == {
            "maxBytes": 16 << 20,
            "maxLength": 2,
            "policy": "reject",
            "ttlSeconds": 3600,
            "leaseSeconds": 5,
            "retryLimit": 1,
            "windowBuffer": {"ms": 5, "count": 2},
        }
        await queen.ephemeral.push("a/b", [1, 2])
        (row,) = await queen.ephemeral.queues()
        assert (row["queue"], row["tier"], row["depth"]) == ("a/b", "declared", 2)
        assert (await queen.ephemeral.depth("a/b", "g"))["pending"] == 2
        with pytest.raises(NotFound) as missing:
            await queen.ephemeral.depth("none")
        assert missing.value.code == "ephemeral_queue_not_found"
        assert await queen.ephemeral.reset("a/b") == 2
        assert await queen.ephemeral.delete("a/b") == {"queue": "a/b", "deleted": True, "declared": True}
        assert await queen.ephemeral.queues() == []


async def test_a_full_queue() -> None:
    """`queue_full`, after as many tries as the client makes."""
    async with over_http() as queen:
        await queen.ephemeral.configure("q", max_length=1, policy="reject")
        with pytest.raises(Overloaded) as full:
            await queen.ephemeral.push("q", [1, 2])
        assert full.value.code == "queue_full"
        await queen.ephemeral.configure("q", max_length=1, policy="dropOldest")
        await queen.ephemeral.push("q", 1)
        await queen.ephemeral.push("q", 2)
        assert [m.data for m in await queen.ephemeral.pop("q", batch=5)] == [2]

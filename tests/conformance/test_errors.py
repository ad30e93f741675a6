"""Refusals that are not the caller's fault (wire-messaging.md 4; wire-kv-locks-timers-transactions.md 1.3)."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock
from wire_kit import direct, refusal, schedule

from queen_actors.errors import StorageFailed
from queen_actors.storage.memory import Faults, MemoryStore

WRITES: list[tuple[str, Any]] = [
    ("/api/v1/push", {"items": [{"queue": "q", "payload": 2}]}),
    ("/api/v1/configure", {"queue": "q", "options": {"leaseTime": 5}}),
    ("/api/v1/kv", [{"op": "put", "ns": "ns", "key": "k", "value": 2, "forever": True}]),
    ("/api/v1/locks", [{"op": "acquire", "name": "free", "ttlSeconds": 5}]),
    ("/api/v1/timers", [schedule("q", "k", 1, 60_000)]),
    ("/api/v1/transaction", {"operations": [{"type": "push", "queue": "q", "payload": 2}]}),
]


@pytest.mark.parametrize(("path", "body"), WRITES)
async def test_a_full_disk(autojump_clock: MockClock, path: str, body: Any) -> None:
    """507 `storage_full` in the engine's shape, and nothing changed; reads go on, and when there is room again the
    broker finds out by itself."""
    faults = Faults()
    async with direct(MemoryStore(retain=True, faults=faults)) as wire:
        await wire.push("q", 1)
        await wire.put("k", 1)
        before = await wire.state("q")
        faults.full = True
        for _ in range(3):
            answer = await wire.request("POST", path, body)
            assert (answer.status, answer.json["code"]) == (507, "storage_full")
            assert answer.json["error"]
            assert await wire.state("q") == before
            await trio.sleep(5)
        faults.full = False
        await trio.sleep(5)
        assert await wire.state("q") == before
        assert (await wire.request("POST", path, body)).status in (200, 201)
        assert await wire.state("q") != before


async def test_a_disk_that_fills_during_a_pop(autojump_clock: MockClock) -> None:
    """The claim is not delivered, and nobody holds it afterwards: the message comes as attempt 1."""
    faults = Faults()
    async with direct(MemoryStore(retain=True, faults=faults)) as wire:
        await wire.push("q", 1)
        faults.full = True
        assert (await wire.pop_answer("q")).status == 507
        faults.full = False
        await trio.sleep(5)
        (message,) = await wire.pop("q")
        assert message["deliveryAttempt"] == 1


@pytest.mark.parametrize("kept", ["kept", "lost"])
@pytest.mark.parametrize(("path", "body"), WRITES)
async def test_a_storage_that_failed(autojump_clock: MockClock, path: str, body: Any, kept: str) -> None:
    """It is not known whether the write is durable: 503 with `Retry-After`, in the shape of its family; the broker
    stops. The next one knows, and a caller who asks again finds out."""
    faults = Faults()
    store = MemoryStore(retain=True, faults=faults)
    before: list[Any] = []

    async def until_it_stops() -> None:
        async with direct(store) as wire:
            await wire.push("q", 1)
            await wire.put("k", 1)
            before.append(await wire.state("q"))
            faults.fail = "kept" if kept == "kept" else "lost"
            answer = await wire.request("POST", path, body)
            assert (answer.status, answer.headers["retry-after"]) == (503, "1")
            family = path.rsplit("/", 1)[-1]
            if family in ("kv", "locks", "timers"):
                assert refusal(answer)[1] == ("timers_unavailable" if family == "timers" else "kv_unavailable")
            else:
                assert answer.json["code"]
            await trio.sleep_forever()

    with pytest.raises(StorageFailed):
        await until_it_stops()
    faults.fail = None
    async with direct(store.reopen()) as wire:
        assert (await wire.state("q") != before[0]) is (kept == "kept")

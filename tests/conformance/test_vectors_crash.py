"""Vectors 29 and 37 of wire-kv-locks-timers-transactions.md, section 10, and the restart of vector 5: a broker that is
killed, a few times each; the long campaign is in tests/crash."""

from __future__ import annotations

import gc
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from server_process import ServerProcess
from wire_kit import Socket, Wire, schedule

ROUNDS = 4


@asynccontextmanager
async def connected(server: ServerProcess) -> AsyncIterator[Wire]:
    async with httpx.AsyncClient(verify=False, trust_env=False, timeout=60) as client:
        yield Wire(Socket(client, server.url))


async def start(server: ServerProcess) -> None:
    await trio.to_thread.run_sync(server.start)


async def kill(server: ServerProcess) -> None:
    await trio.to_thread.run_sync(server.kill)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ServerProcess]:
    server = ServerProcess(tmp_path / "server.log", tmp_path / "data")
    await start(server)
    yield server
    server.kill()
    with warnings.catch_warnings():
        # a connection whose answer was cut off by the kill: httpx may leave it to the garbage collector, unclosed
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


async def drained(wire: Wire, queue: str) -> list[Any]:
    """All messages of the queue, committed as they are delivered."""
    messages: list[Any] = []
    while found := await wire.pop(queue, autoAck=True, batch=1000, wait=True, timeout=300):
        messages.extend(found)
    return messages


async def test_vector_29_a_timer_that_falls_due_while_the_broker_is_dead(server: ServerProcess) -> None:
    """Killed with timers pending: each is delivered once after the start, with the promised id; one that had fired
    does not fire again, and one that was cancelled does not at all."""
    promised: dict[str, str] = {}
    async with connected(server) as wire:
        for round_ in range(ROUNDS):
            ops = [schedule("q", f"{round_}-{n}", n, 50 * n) for n in range(10)]
            for element in await wire.timers(*ops, schedule("q", f"{round_}-cancelled", 0, 100)):
                promised[element["txn"]] = element["messageId"]
            cancelled = await wire.ok("DELETE", f"/api/v1/timers/q/{round_}-cancelled")
            if cancelled["status"] == "cancelled":
                del promised[cancelled["txn"]]
            await trio.sleep(0.2)
            await kill(server)
            await trio.sleep(0.1)
            await start(server)
        messages: list[Any] = []
        with trio.fail_after(60):
            while len(messages) < len(promised):  # the last ones are due half a second after the start
                messages += await drained(wire, "q")
        messages += await drained(wire, "q")
    delivered = [message["transactionId"] for message in messages]
    assert len(delivered) == len(set(delivered)) == len(promised)
    assert {message["transactionId"]: message["id"] for message in messages} == promised


async def test_vector_37_a_bundle_is_wholly_there_or_wholly_absent(server: ServerProcess) -> None:
    """Killed while bundles are under way: after the start each has its message, its keys and its timer, or none of
    them; every answered one is there, and versions go on above those that were told."""
    answered: set[str] = set()
    asked: set[str] = set()
    versions: list[int] = []

    async def work(wire: Wire, names: list[str]) -> None:
        for name in names:
            asked.add(name)
            put = {"op": "put", "value": name, "forever": True}
            try:
                done = await wire.transaction(
                    operations=[{"type": "push", "queue": "q", "payload": name, "transactionId": name}],
                    kv=[{**put, "ns": "one", "key": name}, {**put, "ns": "two", "key": name}],
                    timers=[schedule("later", name, name, 3_600_000)],
                )
            except httpx.TransportError:
                return
            assert done["success"] is True
            answered.add(name)
            versions.extend(element["version"] for element in done["results"][1:3])

    async with connected(server) as wire:
        for round_ in range(ROUNDS):
            async with trio.open_nursery() as nursery:
                for lane in range(8):
                    nursery.start_soon(work, wire, [f"{round_}-{lane}-{n:03}" for n in range(400)])
                with trio.fail_after(60):
                    while len(answered) <= 16 * (round_ + 1):  # noqa: ASYNC110 (it is the server that answers)
                        await trio.sleep(0.01)
                await trio.sleep(0.05 * round_)
                await kill(server)
            await start(server)
            after = await wire.put("after", round_)
            assert after["version"] > max(versions)
            versions.append(after["version"])
        pushed = {message["data"] for message in await drained(wire, "q")}
        kept: list[set[str]] = []
        for ns in ("one", "two"):
            kept.append(set())
            for round_ in range(ROUNDS):
                for lane in range(8):
                    (page,) = await wire.kv({"op": "getPrefix", "ns": ns, "prefix": f"{round_}-{lane}-", "limit": 1000})
                    kept[-1].update(row["key"] for row in page["rows"])
        timers: set[str] = set()
        after_key = ""
        while True:
            page = await wire.ok("GET", f"/api/v1/timers/later?limit=1000&after={after_key}")
            timers.update(row["timerKey"] for row in page["rows"])
            if not page["truncated"]:
                break
            after_key = page["nextAfter"]
    assert pushed == kept[0] == kept[1] == timers
    assert answered <= pushed <= asked
    assert len(answered) > ROUNDS * 8

"""A02 to A14: what becomes of messages whose consumer is dead, slow, or has not begun yet."""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
from crash.stopwatch import Stopwatch
from socket_peer import House, Peer, acks, items
from trio.testing import MockClock
from wire_kit import Wire, schedule

from queen_actors import open_broker


def data(messages: list[Any]) -> list[Any]:
    return [message["data"] for message in messages]


@asynccontextmanager
async def connected(port: int) -> Any:
    """A WebSocket peer over TCP, and its stream."""
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    async with trio.open_nursery() as nursery:
        peer = Peer(stream)
        nursery.start_soon(peer.run)
        await peer.upgrade(host=f"127.0.0.1:{port}")
        await peer.event("welcome")
        yield peer, stream
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("how", ["close", "fin", "rst"])
async def test_a02_a_dead_connection_gives_its_leases_back_at_once(server: Any, how: str) -> None:
    """A WebSocket consumer holds m1 for 60 s, and its TCP connection ends: by a clean close, by a FIN, by a RST. A
    second consumer, parked over HTTP, has m1 within a second, as attempt 2; the HTTP pop keeps lease semantics."""
    async with server.wire() as wire:
        await wire.configure("q", leaseTime=60)
        await wire.push("q", "m1")
        async with connected(server.port) as (peer, stream):
            await peer.ask("subscribe", sub="s", queue="q", leaseSeconds=60)
            assert data((await peer.event("messages"))["messages"]) == ["m1"]
            assert await wire.pop("q") == []
            found: list[Any] = []

            async def second() -> None:
                found.extend(await wire.pop("q", wait=True, timeout=20_000))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(second)
                await trio.sleep(0.1)
                watch = Stopwatch(server.pid)
                if how == "close":
                    await peer.close()
                elif how == "rst":
                    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    stream.socket.close()
                else:
                    await stream.send_eof()
            assert watch.seconds() < 1
        assert [(message["data"], message["deliveryAttempt"]) for message in found] == [("m1", 2)]
        assert await wire.pop("q") == [], "the HTTP consumer's lease outlives its request"


async def test_a04_a_replay_starts_with_a_fresh_budget(timed: Wire, autojump_clock: MockClock) -> None:
    """`retryLimit` 1: failed into the DLQ and replayed, it is attempt 1, and one failure brings it back."""
    await timed.configure("q", retryLimit=1)
    await timed.push("q", "v")
    for _ in range(2):
        (message,) = await timed.pop("q")
        await timed.ack((message, "failed"))
    (letter,) = await timed.dead_letters("q")
    assert (await timed.ok("POST", f"/api/v1/dlq/{letter['id']}/replay"))["result"] == "moved"
    (again,) = await timed.pop("q")
    assert (again["data"], again["deliveryAttempt"]) == ("v", 1)
    (entry,) = await timed.ack((again, "failed"))
    assert (entry["success"], entry["dlq"]) == (True, False)
    assert (await timed.pop("q"))[0]["deliveryAttempt"] == 2
    assert await timed.dead_letters("q") == []


@pytest.mark.slow
async def test_a05_the_attempt_count_survives_consumers_and_the_broker(server: Any) -> None:
    """Failed by two consumers, and the broker killed: the next delivery is the third, and one failure more
    dead-letters the message with its payload and its error."""
    async with server.wire() as wire:
        await wire.configure("q", retryLimit=2)
        await wire.push("q", {"poison": True})
    for attempt in (1, 2):
        async with server.wire() as consumer:
            (message,) = await consumer.pop("q")
            assert message["deliveryAttempt"] == attempt
            await consumer.ack((message, "failed", f"died {attempt}"))
    await server.kill()
    await server.start()
    async with server.wire() as wire:
        (message,) = await wire.pop("q")
        assert message["deliveryAttempt"] == 3
        (entry,) = await wire.ack((message, "failed", "died 3"))
        assert entry["dlq"] is True
        (letter,) = await wire.dead_letters("q")
        assert (letter["data"], letter["errorMessage"], letter["retryCount"]) == ({"poison": True}, "died 3", 2)


async def test_a09_a_lease_is_renewed_while_a_message_waits_in_the_client(autojump_clock: MockClock) -> None:
    """20 messages prefetched, 0.2 s for each, leases of 1 s: none of 200 is delivered again."""
    async with open_broker(None) as queen:
        orders = queen.queue("q")
        await orders.push([{"data": n} for n in range(200)])
        seen: list[tuple[Any, int]] = []
        async with orders.subscribe(credit=20, batch=20, lease_seconds=1) as messages:
            async for message in messages:
                await trio.sleep(0.2)
                assert (await message.ack()).success
                seen.append((message.data, message.delivery_attempt))
                if len(seen) == 200:
                    break
        assert seen == [(n, 1) for n in range(200)]


WORKER = """
import sys, time, httpx
url = sys.argv[1]
with httpx.Client(trust_env=False, timeout=60) as client:
    popped = client.get(f"{url}/api/v1/pop/queue/q?wait=true&leaseSeconds=2").json()
    print("taken", flush=True)
    while True:
        time.sleep(0.3)
        client.post(f"{url}/api/v1/lease/{popped['leaseId']}/extend", json={"seconds": 2})
"""


@pytest.mark.slow
async def test_a10_a_killed_worker_is_noticed_after_one_short_lease(server: Any) -> None:
    """A worker renews a lease of 2 s for as long as its long job takes, and is killed: another has the message when
    the lease ends, and not before it, although the job would have taken much longer."""
    async with server.wire() as wire:
        await wire.push("q", "long job")
        worker = await trio.to_thread.run_sync(
            partial(subprocess.Popen, [sys.executable, "-c", WORKER, server.url], stdout=subprocess.PIPE)
        )
        try:
            assert await trio.to_thread.run_sync(worker.stdout.readline) == b"taken\n"
            assert await wire.pop("q", wait=True, timeout=2500) == [], (
                "renewed, the lease outlives its first two seconds"
            )
        finally:
            worker.kill()
            await trio.to_thread.run_sync(worker.communicate)
        watch = Stopwatch(server.pid)
        (message,) = await wire.pop("q", wait=True, timeout=10_000)
        assert watch.seconds() < 2.5
        assert (message["data"], message["deliveryAttempt"]) == ("long job", 2)


async def test_a11_liveness_is_the_connections_and_never_a_names(hall: House, autojump_clock: MockClock) -> None:
    """Consumer w1 takes m1 and vanishes without a word; a new w1 connects, subscribes and sends heartbeats: m1 comes
    back to it when the old connection is known to be dead, once."""
    old = await hall.peer(answers_pings=False)
    await old.ask("push", items=items("q", "m1"))
    await old.ask("subscribe", sub="w1", queue="q", group="g")
    await old.event("messages")
    old.reading = trio.Event()  # it reads nothing any more
    new = await hall.peer()
    await new.ask("subscribe", sub="w1", queue="q", group="g")
    began = trio.current_time()
    while not new.events("messages"):
        await new.ask("ping")
        await trio.sleep(1)
        assert trio.current_time() - began < 3 * hall.settings.heartbeat_seconds
    await trio.sleep(120)
    (event,) = new.events("messages")
    assert [(m["data"], m["deliveryAttempt"]) for m in event["messages"]] == [("m1", 2)]


async def test_a12_waiting_is_not_leasing(timed: Wire, autojump_clock: MockClock) -> None:
    """`leaseTime` 1 s, a timer of 3 s and a delay of 3 s: each message is delivered once, when it is due."""
    await timed.configure("timers", leaseTime=1)
    await timed.configure("delayed", leaseTime=1, delayedProcessing=3)
    await timed.timers(schedule("timers", "k", "timer", 3000))
    await timed.push("delayed", "delayed")
    began = trio.current_time()
    seen: list[tuple[str, int, float]] = []

    async def consume(queue: str) -> None:
        while trio.current_time() - began < 20:
            for message in await timed.pop(queue, wait=True, timeout=2000):
                seen.append((message["data"], message["deliveryAttempt"], round(trio.current_time() - began, 1)))
                await timed.ack((message, "completed"))

    async with trio.open_nursery() as nursery:
        for queue in ("timers", "delayed"):
            for _ in range(3):
                nursery.start_soon(consume, queue)
    assert sorted(seen) == [("delayed", 1, 3.0), ("timer", 1, 3.0)]


async def test_a14_a_slow_consumer_hoards_no_more_than_its_credit(hall: House, autojump_clock: MockClock) -> None:
    """A with credit 1 settles nothing, B with credit 10 works: A holds one delivery, B drains all other partitions."""
    slow, busy = await hall.peer(), await hall.peer()
    await slow.ask("subscribe", sub="a", queue="q", credit=1)
    await busy.ask("subscribe", sub="b", queue="q", credit=10)
    for n in range(30):
        await slow.ask("push", items=items("q", n, partition=f"p{n}"))
    worked = 0
    while worked < 29:
        event = await busy.event("messages")
        worked += len(event["messages"])
        await busy.ask("ack", acknowledgments=acks(event))
    await trio.sleep(5)
    held = [message for event in slow.events("messages") for message in event["messages"]]
    assert len(held) == 1
    assert busy.events("messages") == []

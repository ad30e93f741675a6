"""Clients that connect, ask for something, and drop the connection without a word: nothing of them stays."""

from __future__ import annotations

import base64
import contextlib
import os
import random
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import trio

from .deaf import COST_BYTES, Deaf, resident
from .history import History
from .node import Node
from .peer import Lost, connected
from .proxy import RESET
from .sockets import SocketPeer, on_socket
from .stopwatch import Stopwatch
from .summary import Summary

AT_ONCE = 10
SETTLE_SECONDS = 10.0
"""How soon what dropped connections had is closed, by the stopwatch."""
HANG_SECONDS = 60.0
"""What is waited for that, on the clock."""
NOISE_BYTES, CYCLE_BYTES = 1 << 20, 1 << 10
"""What the second half of the cycles may add to the memory that the first half has left: the allocator's noise, and so
much for each of them; what keeps a connection's buffers leaves more."""
DEAF_CYCLES = 480
"""From so many on it is also tried what a consumer that never reads costs, and the stop at the end comes while there is
one: that takes 20 s and more."""


def _descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


class Drop:
    """The ways to come and go."""

    def __init__(self, port: int, chance: random.Random) -> None:
        self._port = port
        self.chance = chance
        self._serial = 0
        self._ways: list[Callable[[], Awaitable[None]]] = [
            self._tcp,
            self._half_request,
            self._unread_answer,
            self._long_poll,
            self._half_upgrade,
            self._upgrade,
            self._session,
        ]

    async def one(self) -> None:
        """Each way in its turn."""
        way = self._ways[self._serial % len(self._ways)]
        self._serial += 1
        with contextlib.suppress(Lost, OSError, trio.BrokenResourceError):
            await way()

    async def _raw(self, sent: bytes, seconds: float) -> None:
        stream = await trio.open_tcp_stream("127.0.0.1", self._port)
        if sent:
            await stream.send_all(sent)
        await trio.sleep(seconds)
        if self.chance.random() < 0.5:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        await trio.aclose_forcefully(stream)

    async def _tcp(self) -> None:
        await self._raw(b"", 0)

    async def _half_request(self) -> None:
        await self._raw(b"POST /api/v1/push HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900\r\n\r\n{", 0.01)

    async def _unread_answer(self) -> None:
        await self._raw(b"GET /api/v1/resources/queues HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20, 0)

    async def _long_poll(self) -> None:
        query = b"wait=true&timeout=20000&consumerGroup=g"
        await self._raw(b"GET /api/v1/pop/queue/empty?" + query + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", 0.02)

    def _handshake(self) -> bytes:
        key = base64.b64encode(self.chance.randbytes(16))
        head = b"GET /api/v1/ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        return head + b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + key + b"\r\n"

    async def _half_upgrade(self) -> None:
        await self._raw(self._handshake(), 0.01)

    async def _upgrade(self) -> None:
        await self._raw(self._handshake() + b"\r\n", 0.02)

    async def _session(self) -> None:
        """A subscription with a lease, a tail, a watch, a permit and a place in a line."""
        owner = f"o{self._serial}"

        async def use(peer: SocketPeer) -> None:
            await peer.call("subscribe", {"sub": "s", "queue": "q", "group": "g", "subscriptionMode": "all"})
            await peer.call("tail", {"sub": "t", "queue": "q", "from": "start"})
            await peer.call("watch", {"watch": "w", "ns": "n", "prefix": ""})
            acquire = {"op": "acquire", "name": "l", "ttlSeconds": 30, "owner": owner}
            await peer.acquire(acquire, session=True, waitSeconds=0.05)

        await on_socket(self._port, History(), 0, use)


async def churn(directory: Path, summary: Summary, cycles: int) -> None:
    """So many cycles, and as many descriptors afterwards as before, and no more memory; its leases and permits are
    free."""
    place = directory / "churn"
    place.mkdir()
    node = Node(place)
    try:
        summary.ready.append(await trio.to_thread.run_sync(node.start))
        drop = Drop(node.port, random.Random(summary.seed))
        async with connected(node.port, History(), 0) as peer:
            # However often it is given back, it is not to go to the dead letters
            await peer.call("configure", {"queue": "q", "options": {"deliveryLimit": 0}})
            items = [{"queue": "q", "partition": "p", "transactionId": "t", "payload": 1}]
            await peer.call("push", {"items": items})
        await _cycles(drop, 70)
        await trio.sleep(1)
        descriptors = _descriptors(node.pid)
        await _cycles(drop, cycles // 2)
        await _settled(node, descriptors)
        memory = resident(node.pid)
        judged = cycles - cycles // 2
        await _cycles(drop, judged)
        if not await _settled(node, descriptors):
            left = _descriptors(node.pid)
            summary.violations.append(f"{cycles} clients came and went, and {left} descriptors are open; {descriptors}")
        grown = resident(node.pid) - memory
        if grown > NOISE_BYTES + judged * CYCLE_BYTES:
            summary.violations.append(f"the second {judged} clients that came and went left {grown} bytes")
        await _nothing_is_held(node, summary)
        summary.counts["connect_and_drop"] += cycles
        summary.counts["memory_grown_kib"] += max(0, grown) // 1024
        if cycles >= DEAF_CYCLES:
            await Deaf(node, summary, drop.chance).run(COST_BYTES)
            await Deaf(node, summary, drop.chance).stop()
        elif wrong := await trio.to_thread.run_sync(node.stop):
            summary.violations.append(f"after {cycles} clients that came and went a stop {wrong}")
    finally:
        node.close()


async def _cycles(drop: Drop, count: int) -> None:
    async def some(number: int) -> None:
        for _ in range(number):
            await drop.one()

    async with trio.open_nursery() as nursery:
        for worker in range(AT_ONCE):
            nursery.start_soon(some, count // AT_ONCE + (worker < count % AT_ONCE))


async def _settled(node: Node, descriptors: int) -> bool:
    """Wait until no more descriptors are open than before."""
    watch = Stopwatch(node.pid)
    with trio.move_on_after(HANG_SECONDS):
        while _descriptors(node.pid) > descriptors:  # noqa: ASYNC110 - another process is waited for
            await trio.sleep(0.1)
        return watch.seconds() <= SETTLE_SECONDS
    return False


async def _nothing_is_held(node: Node, summary: Summary) -> None:
    """What the last sessions held is free at once."""
    async with connected(node.port, History(), 0) as peer:
        body = {"queue": "q", "consumerGroup": "g", "wait": "true", "timeout": 2000, "batch": 1}
        if not (await peer.call("pop", body)).answer:
            summary.violations.append("a dropped subscription's lease was not given back")
        acquire = {"op": "acquire", "name": "l", "ttlSeconds": 1, "owner": "x"}
        if not (await peer.call("locks", {"operations": [acquire]})).answer["results"][0]["acquired"]:
            summary.violations.append("a dropped session's permit was not given back")

"""A consumer that subscribes with a large credit and never reads: what it costs, when it is dropped, and who gets its
messages then."""

from __future__ import annotations

import math
import os
import random
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import trio
from wsproto import ConnectionType, WSConnection
from wsproto.events import Request, TextMessage

from queen_actors.limits import WS_LINGER_SECONDS, WS_PEER_BYTES, WS_WRITE_SECONDS

from .history import History
from .node import Node
from .peer import Peer, connected
from .stopwatch import Stopwatch
from .summary import Summary

MESSAGE_BYTES = 40_000
PARTITIONS, PER_PARTITION = 100, 8
COUNT = PARTITIONS * PER_PARTITION
CREDIT = 300
"""Of its messages; more than what the kernel keeps for a peer, and less than there are."""
RECEIVE_BYTES = 32 << 10
DROP_SECONDS = WS_WRITE_SECONDS + WS_LINGER_SECONDS + 5.0
"""How soon the broker has closed its end, by the stopwatch: the deadline for a write without progress, how long a close
waits for the peer's own, and some slack."""
HANG_SECONDS = 40.0
"""What is waited for that on the clock."""
OTHERS_SECONDS = 5.0
"""How soon another consumer has its message, by the stopwatch; it would have to wait for the deadline else."""
TAKEN_SECONDS = 20.0
"""How soon another consumer has what it has not, and then what it had leased, on the clock."""
COST_BYTES = CREDIT * MESSAGE_BYTES + 2 * WS_PEER_BYTES
"""What the broker's memory may grow by meanwhile: what its credit covers, and what waits to be written to it. It is
judged where there is nothing but this: with small journals under load, sealing and merging take more for a while."""
GROUP = "slow"


def resident(pid: int) -> int:
    """Bytes of memory."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _held(mine: tuple[str, int], port: int) -> bool:
    """Whether the broker has its end of this connection open: one that it has closed belongs to no process."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        local, remote = (int(fields[at].partition(":")[2], 16) for at in (1, 2))
        if (local, remote) == (port, mine[1]):
            return fields[9] != "0"
    return False


async def _heard(stream: trio.SocketStream, client: WSConnection, words: str) -> None:
    """Read until a text has these words."""
    text = ""
    while words not in text:
        client.receive_data(await stream.receive_some(4096) or None)
        text += "".join(_texts(client.events()))


def _texts(events: Iterable[object]) -> list[str]:
    return [event.data for event in events if isinstance(event, TextMessage)]


class Deaf:
    """One such consumer of a queue of its own; what was wrong goes into the summary."""

    def __init__(self, node: Node, summary: Summary, chance: random.Random) -> None:
        self._node = node
        self._summary = summary
        self._queue = f"deaf{chance.getrandbits(32)}"

    async def run(self, most: float = math.inf) -> None:
        """From its messages' push until others have them. `most`: bytes that it may cost. Raises Lost."""
        async with connected(self._node.port, History(), 0) as peer:
            await self._push(peer)
            before = resident(self._node.pid)
            stream = await self._subscribed()
            watch = Stopwatch(self._node.pid)
            try:
                spare = await self._take(peer, COUNT - CREDIT)
                dropped, peak = await self._until_dropped(peer, stream, watch)
            finally:
                await trio.aclose_forcefully(stream)
            if spare < COUNT - CREDIT:
                self._tell(f"holds {COUNT - spare} messages; its credit is {CREDIT}")
            if not dropped:
                self._tell(f"was not dropped within {DROP_SECONDS:.0f} s")
            elif (left := COUNT - spare - await self._take(peer, COUNT - spare)) > 0:
                self._tell(f"was dropped, and {left} of its messages came to nobody else")
            if peak - before > most:
                self._tell(f"cost {peak - before} bytes of memory; its credit is of {CREDIT * MESSAGE_BYTES}")
            await peer.call("delete", {"queue": self._queue})
        self._summary.counts["deaf_consumers"] += 1

    async def stop(self) -> None:
        """The broker is stopped while one has subscribed. Raises Lost."""
        async with connected(self._node.port, History(), 0) as peer:
            await self._push(peer)
            stream = await self._subscribed()
            await self._other(peer, "o")
        try:
            wrong = await trio.to_thread.run_sync(self._node.stop)
        finally:
            await trio.aclose_forcefully(stream)
        if wrong:
            self._tell(f"was there, and a stop {wrong}")
        self._summary.counts["stops_beside_a_deaf_one"] += 1

    async def _subscribed(self) -> trio.SocketStream:
        """A subscription of which nothing is read but the reply."""
        raw = trio.socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
        await raw.connect(("127.0.0.1", self._node.port))
        stream = trio.SocketStream(raw)
        client = WSConnection(ConnectionType.CLIENT)
        await stream.send_all(client.send(Request(host="localhost", target="/api/v1/ws", subprotocols=["queen.v1"])))
        await _heard(stream, client, "welcome")
        terms = {"group": GROUP, "subscriptionMode": "all", "credit": CREDIT, "partitions": 64, "leaseSeconds": 600}
        asked = msgspec.json.encode({"id": 1, "op": "subscribe", "sub": "s", "queue": self._queue, **terms}).decode()
        await stream.send_all(client.send(TextMessage(data=asked)))
        await _heard(stream, client, '"ok":true')
        return stream

    def _tell(self, what: str) -> None:
        self._summary.violations.append(f"a consumer that never reads {what}")

    async def _push(self, peer: Peer) -> None:
        for partition in range(PARTITIONS):
            place = {"queue": self._queue, "partition": f"p{partition}", "payload": "x" * MESSAGE_BYTES}
            items = [{**place, "transactionId": f"t{partition}-{number}"} for number in range(PER_PARTITION)]
            await peer.call("push", {"items": items})

    async def _until_dropped(self, peer: Peer, stream: trio.SocketStream, watch: Stopwatch) -> tuple[bool, int]:
        """Whether it was in time, and the most memory that the broker had meanwhile. Another consumer, of another
        group, gets a message now and then."""
        mine: tuple[str, int] = stream.socket.getsockname()
        peak, number = 0, 0
        with trio.move_on_after(HANG_SECONDS):
            while watch.seconds() <= DROP_SECONDS:
                if not _held(mine, self._node.port):
                    return True, peak
                peak = max(peak, resident(self._node.pid))
                number += 1
                await self._other(peer, f"o{number}")
                await trio.sleep(0.2)
        return False, peak

    async def _other(self, peer: Peer, txn: str) -> None:
        watch = Stopwatch(self._node.pid)
        place: dict[str, Any] = {"queue": f"{self._queue}-other", "partition": "p"}
        await peer.call("push", {"items": [{**place, "transactionId": txn, "payload": 1}]})
        took = {"consumerGroup": "quick", "batch": 1, "autoAck": "true", "wait": "true", "timeout": 1000}
        popped = await peer.call("pop", {**place, **took, "subscriptionMode": "all"})
        if not popped.answer or watch.seconds() > OTHERS_SECONDS:
            self._tell(f"delayed another one by {watch.seconds():.1f} s")

    async def _take(self, peer: Peer, count: int) -> int:
        """Pop so many of its messages for its group, as another consumer; how many that were in the time there is."""
        wanted = {"queue": self._queue, "consumerGroup": GROUP, "batch": 20, "partitions": 64, "autoAck": "true"}
        taken: set[str] = set()
        with trio.move_on_after(TAKEN_SECONDS):
            while len(taken) < count:
                popped = await peer.call("pop", {**wanted, "wait": "true", "timeout": 1000})
                messages: list[dict[str, Any]] = popped.answer["messages"] if popped.answer else []
                taken |= {message["transactionId"] for message in messages}
        return len(taken)

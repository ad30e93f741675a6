"""Reading back, over HTTP, all that a start found; and draining what is left at the end."""

from __future__ import annotations

from typing import Any

import trio

from .history import READER
from .load import Worker, by_partition, entry
from .peer import Peer, connected
from .world import AUTO, CONSUMED, COUNTERS, GROUPS, LATER, LOCKS, PARTITIONS, SOCKET_LOCKS, WORKERS, World, own_keys

OVERLAP = 20
"""How many records that were read before are read again, to see that they are still the same."""
PLACES = [(queue, partition) for queue, partitions in PARTITIONS.items() for partition in partitions]
IDLE_SECONDS = 6
"""Longer than any lease of the load."""
DRAIN_SECONDS = 300.0


async def read_back(world: World, port: int, *, whole: bool = False) -> None:
    """Everything that the auditor needs, into the history. `whole` reads every log from its first record.

    Timers first and logs behind them: a timer that fires meanwhile is seen in one of them, at the least.
    """
    async with connected(port, world.history, READER) as peer:
        for queue in ("fired", "soon", LATER):
            after: str | None = ""
            while after is not None:
                after = (await peer.call("pending", {"queue": queue, "after": after})).answer["nextAfter"]
        await _logs(world, peer, whole)
        for worker in range(WORKERS):
            for ns in ("alpha", "beta"):
                keys = [key for key in own_keys(worker) if (ns == "alpha") == (key[-1] in "024")]
                await peer.call("kv", {"operations": [{"op": "get", "ns": ns, "key": key} for key in keys]})
        counters = [{"op": "get", "ns": "counters", "key": key} for key in COUNTERS]
        await peer.call("kv", {"operations": counters})
        for ns, prefix in (("races", "r"), ("done", "m"), ("guarded", "l"), ("guarded", "s"), ("pairs", "p")):
            await _prefix(peer, ns, prefix)
        for names in (LOCKS, SOCKET_LOCKS):
            await peer.call("locks", {"operations": [{"op": "get", "name": name} for name in names]})
        if whole:
            await _dead_letters(peer)


async def _logs(world: World, peer: Peer, whole: bool) -> None:
    left = {place: 0 if whole else max(0, world.read_to.get(place, 0) - OVERLAP) for place in PLACES}
    while left:
        entries = [{"queue": queue, "partition": name, "offset": at} for (queue, name), at in left.items()]
        call = await peer.call("fetch", {"entries": entries})
        for place, answer in zip(list(left), call.answer["entries"], strict=True):
            records = answer["records"]
            end = 0 if answer.get("error") else answer["highWatermark"]
            if left[place] + len(records) >= end:
                world.read_to[place] = end
                del left[place]
            else:
                left[place] += len(records)


async def _prefix(peer: Peer, ns: str, prefix: str) -> None:
    after: str | None = None
    while True:
        op: dict[str, Any] = {"op": "getPrefix", "ns": ns, "prefix": prefix, "limit": 1000}
        call = await peer.call("kv", {"operations": [op if after is None else {**op, "after": after}]})
        (page,) = call.answer["results"]
        after = page["nextAfter"]
        if after is None:
            return


async def _dead_letters(peer: Peer) -> None:
    place = 0
    while True:
        call = await peer.call("dlq", {"queue": "orders", "limit": 1000, "offset": place})
        place += len(call.answer["messages"])
        if place >= call.answer["total"]:
            return


async def drain(world: World, port: int) -> None:
    """Consume everything that is left, waiting for the leases and timers that the last death left behind. Raises
    trio.TooSlowError when it does not come to an end."""
    with trio.fail_after(DRAIN_SECONDS):
        async with trio.open_nursery() as nursery:
            for queue in CONSUMED:
                for group in GROUPS:
                    nursery.start_soon(_drain, world, port, queue, group)
            nursery.start_soon(_drain, world, port, "events", AUTO)
            nursery.start_soon(_settle, world, port)
        async with connected(port, world.history, READER) as peer:
            for queue in ("fired", "soon"):
                await _until_nothing_pends(peer, queue)


async def _until_nothing_pends(peer: Peer, queue: str) -> None:
    while True:
        if not (await peer.call("pending", {"queue": queue, "after": ""})).answer["rows"]:
            return
        await trio.sleep(0.1)


async def _drain(world: World, port: int, queue: str, group: str) -> None:
    """Until a pop that waits for longer than any lease finds nothing."""
    body = {"queue": queue, "consumerGroup": group, "subscriptionMode": "all", "batch": 300, "partitions": 4}
    body |= {"leaseSeconds": 5, "wait": "true", "timeout": IDLE_SECONDS * 1000}
    if group == AUTO:
        body["autoAck"] = "true"
    async with connected(port, world.history, WORKERS) as peer:
        while messages := by_partition(await peer.call("pop", body)):
            if group != AUTO:
                acks = [entry(message, "completed") for found in messages.values() for message in found]
                await peer.call("ack", {"acknowledgments": acks, "consumerGroup": group})


async def _settle(world: World, port: int) -> None:
    async with connected(port, world.history, WORKERS) as peer:
        worker = Worker(world, WORKERS, peer)
        idle_since = trio.current_time()
        while trio.current_time() - idle_since < IDLE_SECONDS:
            if await worker.settle(20):
                idle_since = trio.current_time()
            else:
                await trio.sleep(0.1)

"""What everything costs while it waits, in resident bytes:

    python benchmarks/memory.py --write                  # all of it, into docs/performance.md: some minutes
    python benchmarks/memory.py --only parked,timer

Each figure is taken in a fresh process: the resident memory of the process that holds the things, after they came
minus before, divided by how many there are. One JSON line a figure, then a Markdown table with the targets beside it.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aims
import trio
from faces import hold
from msgspec import Struct
from pages import PERFORMANCE, replaced
from processes import Process, broker
from transports import Http, Socket, Streaming, upgraded, wire

from queen_actors.actors.clock import TrioClock
from queen_actors.broker import Broker, running
from queen_actors.config import Settings
from queen_actors.domain.kv import Put
from queen_actors.domain.partition import PushItem
from queen_actors.domain.queue import Configure
from queen_actors.domain.timers import Schedule
from queen_actors.storage import store_of
from queen_actors.values import SECOND

KIB, MIB = 1024, 1024 * 1024
MANY, BATCH, WARM, CONNECTIONS, MILLION = 200_000, 1_000, 20_000, 2_000, 1_000_000
FIRST, GROUPS = 100, 10
"""Of connections: how many come before the first weighing, and over how many groups pops and subscribers are spread."""
ORDER = b'{"order":1234567,"customer":"customer-0042","state":"new"}'


class Figure(Struct, frozen=True):
    """One line of the table. `measure` gives bytes of each (or of all, when `each` is false) and what else is told."""

    what: str
    measure: Callable[[], Awaitable[dict[str, Any]]]
    target: int | None = None
    each: bool = True


def resident() -> int:
    """Bytes of this process in memory, after a collection."""
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


@asynccontextmanager
async def embedded(directory: str | None, ahead: int = 0) -> AsyncGenerator[Broker]:
    """A broker in this process, whose clock is `ahead` by so many seconds."""
    settings = Settings(data=directory)
    clock = TrioClock(time.time_ns() // 1000 + ahead * SECOND)
    async with running(store_of(settings), settings, clock=clock) as opened:
        yield opened


async def fill(directory: str, count: int, kind: str) -> None:
    """So many messages, sealed: a partition for each (`idle` without a dedup window, `remembered` with ids of its
    sender's), or all in one (`busy`)."""
    async with embedded(directory) as opened:
        if kind == "idle":
            await opened.configure(Configure("orders", {"dedup_window_seconds": 0}))
        for first in range(0, count, BATCH):
            await opened.push(
                [
                    PushItem(
                        "orders",
                        "all" if kind == "busy" else f"customer-{n}",
                        ORDER,
                        None if kind == "idle" else str(uuid.uuid4()),
                    )
                    for n in range(first, first + BATCH)
                ]
            )
        await opened.seal()


async def reopened(count: int, kind: str) -> dict[str, Any]:
    """What the broker takes for them when it was started again, another process having filled the directory."""
    ahead = 7200 if kind == "idle" else 0
    with tempfile.TemporaryDirectory() as small, tempfile.TemporaryDirectory() as directory:
        child("--fill", small, str(WARM), kind)
        child("--fill", directory, str(count), kind)
        async with embedded(small, ahead):
            pass  # what is imported, and what DuckDB takes, at the first use
        before = resident()
        began = time.perf_counter()
        async with embedded(directory, ahead) as opened:
            ready = time.perf_counter() - began
            await opened.passivate()
            after, statistics = resident(), opened.statistics()
        more = {"n": count, "active": statistics.partitions_active, "ready_s": round(ready, 2)}
        return {"bytes": (after - before) / count, "process": after} | more


async def idle() -> dict[str, Any]:
    return await reopened(MANY, "idle")


async def remembered() -> dict[str, Any]:
    return await reopened(MANY, "remembered")


async def million() -> dict[str, Any]:
    found = await reopened(MILLION, "remembered")
    return found | {"bytes": found["process"]}


async def filling() -> dict[str, Any]:
    """The process that creates the million, while it does and shortly after."""
    with tempfile.TemporaryDirectory(prefix="queen-actors-memory-") as directory:
        most = 0
        began = time.perf_counter()
        async with embedded(directory) as opened:
            for first in range(0, MILLION, BATCH):
                numbers = range(first, first + BATCH)
                await opened.push([PushItem("orders", f"customer-{n}", ORDER, str(uuid.uuid4())) for n in numbers])
                if first % (50 * BATCH) == 0:
                    most = max(most, resident())
            seconds = time.perf_counter() - began
            most = max(most, resident())
        return {"bytes": most, "created_s": round(seconds, 1), "n": MILLION}


async def message() -> dict[str, Any]:
    return await reopened(MANY, "busy")


async def timer() -> dict[str, Any]:
    async with embedded(None) as opened:
        await opened.timers([Schedule("q", "first", b"1", 3600 * SECOND, "first")])
        before = resident()
        for first in range(0, MANY, 250):
            await opened.timers(
                [
                    Schedule("q", f"reminder-{n}", ORDER, (3600 + n) * SECOND, str(uuid.uuid4()))
                    for n in range(first, first + 250)
                ]
            )
        return {"bytes": (resident() - before) / MANY - len(ORDER), "payload": len(ORDER), "n": MANY}


async def key() -> dict[str, Any]:
    async with embedded(None) as opened:
        await opened.kv([Put("ns", "first", b"1", 3600 * SECOND)])
        before = resident()
        for first in range(0, MANY, 250):
            await opened.kv([Put("ns", f"customer-{n}", ORDER, (3600 + n) * SECOND) for n in range(first, first + 250)])
        return {"bytes": (resident() - before) / MANY - len(ORDER), "payload": len(ORDER), "n": MANY}


async def _connected(
    each: Callable[[Streaming, int], Awaitable[None]], proven: Callable[[Http], Awaitable[None]] | None = None
) -> dict[str, Any]:
    """Connections to a server of its own, `each` of which is made to wait; a few first, for what they share. When they
    were weighed, it is `proven`, over another connection, that all of them waited."""
    with tempfile.TemporaryDirectory(prefix="queen-actors-memory-") as directory, broker(directory) as server:
        async with AsyncExitStack() as stack:
            before = 0
            for number in range(FIRST + CONNECTIONS):
                if number == FIRST:
                    before = await settled(server)
                stream = await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", server.port))
                await each(Streaming(stream), number)
            after = await settled(server)
            if proven is not None:
                await proven(Http(await stack.enter_async_context(wire(server.port, alone=False))))
            return {"bytes": (after - before) / CONNECTIONS, "n": CONNECTIONS}


async def settled(server: Process) -> int:
    """The server's resident memory when it has taken in what was sent: it has been at rest for a while."""
    with trio.fail_after(60):
        await trio.sleep(1.0)
        busy = True
        while busy:
            used = server.cpu()
            await trio.sleep(0.5)
            busy = server.cpu() - used > 0.02
    return server.rss()


async def parked() -> dict[str, Any]:
    async def park(wire: Streaming, number: int) -> None:
        path = f"/api/v1/pop/queue/q?batch=10&wait=true&timeout=60000&consumerGroup=g{number % GROUPS}"
        await wire.send(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n".encode())

    return await _connected(park, all_parked)


async def all_parked(http: Http) -> None:
    """By the server's metrics no pop was answered until now, and a message for each of those that were sent, of a
    partition of its own, is delivered at once: so many were waiting."""
    sent = FIRST + CONNECTIONS
    counters = (await http.get("/metrics"))["counters"]
    hold(counters["pops_empty"] == counters["messages_delivered"] == 0, counters)
    items = [{"queue": "q", "partition": f"p{number}", "payload": number} for number in range(sent // GROUPS)]
    await http.post("/api/v1/push", {"items": items})
    with trio.move_on_after(10):
        while counters["messages_delivered"] < sent:
            await trio.sleep(0.1)
            counters = (await http.get("/metrics"))["counters"]
    hold(counters["messages_delivered"] == sent and counters["pops_empty"] == 0, counters)


async def subscriber() -> dict[str, Any]:
    async def subscribe(wire: Streaming, number: int) -> None:
        socket = Socket(wire, await upgraded(wire))
        await socket.call("subscribe", {"sub": "s", "queue": "q", "consumerGroup": f"g{number % GROUPS}"})
        # A new subscription is pinged at once: what is read here answers it, so that nothing waits for a pong
        await socket.call("kv", {"operations": [{"op": "get", "ns": "n", "key": "k"}]})

    return await _connected(subscribe)


async def connection() -> dict[str, Any]:
    async def greet(wire: Streaming, number: int) -> None:
        await wire.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await wire.receive()

    return await _connected(greet)


FIGURES = {
    "idle": Figure("an idle partition, its windows over", idle, 300),
    "remembered": Figure("an idle partition with one message in its dedup window", remembered),
    "million": Figure(
        "1,000,000 partitions, each with one message in its dedup window: the process", million, 400 * MIB, False
    ),
    "filling": Figure("the process that creates those, at most", filling, None, False),
    "message": Figure("a sealed message in its dedup window", message),
    "timer": Figure("a pending timer, beyond its payload", timer, 250),
    "key": Figure("a key that expires, beyond its value", key),
    "connection": Figure("an idle HTTP connection", connection),
    "parked": Figure("a parked pop with its HTTP connection", parked, 12 * KIB),
    "subscriber": Figure("a subscriber with its WebSocket", subscriber),
}


def idle_partitions() -> dict[str, Any]:
    """The figure of that name, from a process of its own."""
    return taken("idle")


def taken(name: str) -> dict[str, Any]:
    """A figure, from a fresh process."""
    found: dict[str, Any] = json.loads(child("--figure", name))
    return found


def child(*arguments: str) -> str:
    return subprocess.run([sys.executable, __file__, *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout


def spelled(size: float, *, each: bool) -> str:
    return f"{size:,.0f} B" if each else f"{size / MIB:,.0f} MiB"


def row(figure: Figure, size: float) -> str:
    target = "" if figure.target is None else f"under {spelled(figure.target, each=figure.each)}"
    met = "" if figure.target is None else "yes" if size < figure.target else "no"
    return f"| {figure.what} | {spelled(size, each=figure.each)} | {target} | {met} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="names of figures: " + ", ".join(FIGURES))
    parser.add_argument("--write", action="store_true", help="the table into docs/performance.md")
    parser.add_argument("--figure", help=argparse.SUPPRESS)
    parser.add_argument("--fill", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.fill:
        directory, count, kind = options.fill
        trio.run(fill, directory, int(count), kind)
    elif options.figure:
        print(json.dumps(trio.run(FIGURES[options.figure].measure)))
    else:
        rows = ["| | resident memory | aim | met |", "| --- | ---: | ---: | --- |"]
        for name in options.only.split(",") if options.only else FIGURES:
            found = taken(name)
            print(json.dumps({"what": name, **found, "bytes": round(found["bytes"])}), flush=True)
            rows.append(row(FIGURES[name], found["bytes"]))
            if name in aims.AIMS:
                aims.tell(name, found["bytes"])
        print("\n".join(["", *rows]))
        if options.write:
            replaced(PERFORMANCE, "memory", "\n".join(rows))


if __name__ == "__main__":
    main()

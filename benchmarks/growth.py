"""How cost grows: what an operation takes with more and more of everything beside it.

    python benchmarks/growth.py --write               # every table, about twenty minutes, into docs/performance.md
    python benchmarks/growth.py --only partitions,log --most 100000

Processor time of the broker's own process, a memory store but for the log: what a disk takes is measured elsewhere, and
other work on the machine moves processor time least. One JSON line a row, each in a process of its own and in a bounded
time, then a Markdown table for each. A column that does not grow with the first one is the point.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import aims
import processes
import trio
import trio.testing
from faces import hold
from pages import PERFORMANCE, replaced
from transports import Http, Socket, Streaming, upgraded, wire

from queen_actors.actors.clock import RandomIds, TrioClock
from queen_actors.broker import Broker, running
from queen_actors.config import Settings
from queen_actors.domain.cursor import Ack, PopRequest
from queen_actors.domain.kv import Get, GetPrefix, Put
from queen_actors.domain.overview import FetchEntry
from queen_actors.domain.partition import PushItem
from queen_actors.domain.timers import Cancel, Schedule
from queen_actors.storage import MemoryStore, store_of
from queen_actors.values import SECOND

PAYLOAD = b'{"order":1234567,"customer":"customer-0042","state":"new"}'
BATCH, ROUNDS, LOG_ROWS, LOG_PARTITIONS = 1_000, 2_000, 1_000_000, 1_000
Row = dict[str, Any]


async def cost(call: Callable[[int], Awaitable[object]], rounds: int = ROUNDS) -> float:
    """Microseconds of processor time that a call takes, of so many."""
    for number in range(20):
        await call(-1 - number)
    began = time.process_time()
    for number in range(rounds):
        await call(number)
    return round((time.process_time() - began) / rounds * 1e6, 1)


async def push_each(broker: Broker, count: int) -> None:
    """A message to each of so many partitions."""
    for first in range(0, count, BATCH):
        numbers = range(first, min(first + BATCH, count))
        await broker.push([PushItem("q", f"customer-{n}", PAYLOAD, f"t{n}") for n in numbers])


async def take_one(broker: Broker, _: int) -> None:
    reply = await broker.pop(PopRequest("q", batch=1, group="g", subscription_mode="all"))
    claim = reply.claims[0]
    await broker.ack([Ack(claim.records[0].txn, claim.pid, "g", lease_id=reply.lease_id)])


async def partitions(count: int) -> Row:
    """Among so many partitions, all of them ready: a push to one, and a pop of one message with its ack; then, when all
    of them are at rest, a push to a partition and the pop of that message."""
    async with running(MemoryStore()) as broker:
        await push_each(broker, count)
        push = await cost(lambda n: broker.push([PushItem("q", f"customer-{n % count}", PAYLOAD, f"u{n}")]))
        ready = await cost(partial(take_one, broker), min(ROUNDS, count))
        while (
            reply := await broker.pop(PopRequest("q", batch=10_000, partitions=64, group="g", subscription_mode="all"))
        ).claims:
            await broker.ack(
                [Ack(r.txn, claim.pid, "g", lease_id=reply.lease_id) for claim in reply.claims for r in claim.records]
            )

        async def there_and_back(number: int) -> None:
            await broker.push([PushItem("q", f"customer-{number % count}", PAYLOAD, f"v{number}")])
            await take_one(broker, number)

        return {"push_us": push, "pop_ack_ready_us": ready, "push_pop_ack_idle_us": await cost(there_and_back)}


async def keys(count: int) -> Row:
    """Among so many keys: a put, a get, a page of ten by prefix."""
    async with running(MemoryStore()) as broker:
        for first in range(0, count, 250):
            await broker.kv(
                [Put("ns", f"customer-{n:07}", PAYLOAD, 3600 * SECOND) for n in range(first, min(first + 250, count))]
            )

        def key(number: int) -> str:
            return f"customer-{number * 7919 % count:07}"

        await broker.kv([GetPrefix("ns", "customer-", None, 10)])  # the first page makes the order
        return {
            "put_us": await cost(lambda n: broker.kv([Put("ns", key(n), PAYLOAD, 3600 * SECOND)])),
            "get_us": await cost(lambda n: broker.kv([Get("ns", key(n))])),
            "page_us": await cost(lambda n: broker.kv([GetPrefix("ns", "customer-", key(n), 10)])),
        }


async def timers(count: int) -> Row:
    """Among so many pending timers: one is scheduled, and cancelled."""
    async with running(MemoryStore()) as broker:
        for first in range(0, count, 250):
            await broker.timers(
                [
                    Schedule("q", f"t{n}", PAYLOAD, (3600 + n % 86_400) * SECOND, f"t{n}")
                    for n in range(first, first + 250)
                ]
            )

        async def come_and_go(number: int) -> None:
            await broker.timers([Schedule("q", f"u{number}", PAYLOAD, 7200 * SECOND, f"u{number}")])
            await broker.timers([Cancel("q", f"u{number}")])

        return {"schedule_cancel_us": await cost(come_and_go)}


async def waiters(count: int) -> Row:
    """While so many pops wait for other partitions of the queue: a push, and the pop that it wakes, with its ack."""
    async with running(MemoryStore()) as broker, trio.open_nursery() as nursery:

        async def wait(partition: str) -> None:
            await broker.pop(PopRequest("q", partition, batch=1, group="g", wait=3600 * SECOND))

        for number in range(count):
            nursery.start_soon(wait, f"other-{number}")
        await trio.testing.wait_all_tasks_blocked()

        async def wake(number: int) -> None:
            async with trio.open_nursery() as pair:
                pair.start_soon(consume)
                await trio.lowlevel.checkpoint()
                await broker.push([PushItem("q", "mine", PAYLOAD, f"t{number}")])

        async def consume() -> None:
            reply = await broker.pop(PopRequest("q", "mine", batch=1, group="g", wait=60 * SECOND))
            claim = reply.claims[0]
            await broker.ack([Ack(claim.records[0].txn, claim.pid, "g", lease_id=reply.lease_id)])

        found = {"wake_us": await cost(wake)}
        nursery.cancel_scope.cancel()
    return found


async def groups(count: int) -> Row:
    """With so many groups that consume the queue: a push."""
    async with running(MemoryStore()) as broker:
        await broker.push([PushItem("q", "p", PAYLOAD, "first")])
        for number in range(count):
            reply = await broker.pop(PopRequest("q", batch=1, group=f"g{number}", subscription_mode="all"))
            await broker.ack([Ack("first", reply.claims[0].pid, f"g{number}", lease_id=reply.lease_id)])
        return {"push_us": await cost(lambda n: broker.push([PushItem("q", "p", PAYLOAD, f"u{n}")]))}


async def subscribers(count: int) -> Row:
    """With so many subscribers of one group, each over a WebSocket of its own: a push over HTTP and its delivery to one
    of them. The processor time is the server's."""
    with tempfile.TemporaryDirectory(prefix="queen-actors-growth-") as directory, processes.broker(directory) as server:
        async with AsyncExitStack() as stack:
            for _ in range(count):
                stream = await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", server.port))
                socket = Socket(Streaming(stream), await upgraded(Streaming(stream)))
                await socket.call("subscribe", {"sub": "s", "queue": "q", "consumerGroup": "g", "credit": 10_000})
            pusher = Http(await stack.enter_async_context(wire(server.port, alone=False)))
            began = 0.0
            for number in range(20 + ROUNDS // 2):
                if number == 20:
                    began = server.cpu()
                items = [{"queue": "q", "partition": f"p{number}", "payload": number, "transactionId": f"t{number}"}]
                await pusher.post("/api/v1/push", {"items": items})
            return {"push_deliver_us": round((server.cpu() - began) / (ROUNDS // 2) * 1e6, 1)}


async def window(count: int) -> Row:
    """A push to a partition that remembers so many messages, which lie in segments: one that is new, and a repeat."""
    with tempfile.TemporaryDirectory(prefix="queen-actors-growth-") as directory:
        settings = Settings(data=directory, record_cache_bytes=0)
        async with running(store_of(settings), settings) as broker:
            for first in range(0, count, BATCH):
                await broker.push([PushItem("q", "p", b"1", f"t{n}") for n in range(first, min(first + BATCH, count))])
            await broker.seal()
            return {
                "new_us": await cost(lambda n: broker.push([PushItem("q", "p", b"1", f"u{n}")]), 500),
                "repeat_us": await cost(lambda n: broker.push([PushItem("q", "p", b"1", f"t{n * 7919 % count}")]), 500),
            }


async def log(count: int) -> Row:
    """A start after a kill: the log has so many rows (messages, over 1,000 partitions, their ids remembered).

    Whoever wrote them must have died by SIGKILL, and every one of them must be there and be readable.
    """
    with tempfile.TemporaryDirectory(prefix="queen-actors-growth-") as directory:
        killed = await trio.run_process([sys.executable, __file__, "--killed", directory, str(count)], check=False)
        hold(killed.returncode == -signal.SIGKILL, killed.returncode)
        settings = Settings(data=directory)
        store = store_of(settings)
        broker = Broker(store, settings, TrioClock(), RandomIds())
        began, used = time.perf_counter(), time.process_time()
        await broker.open()
        found = {"ready_s": round(time.perf_counter() - began, 2), "cpu_s": round(time.process_time() - used, 2)}
        statistics = broker.statistics()
        await all_there(broker, count)
        await store.close()
        return found | {"segments": statistics.store.segments, "partitions": statistics.partitions}


async def all_there(broker: Broker, count: int) -> None:
    """Every message of `fill_and_die`, read from its partition."""
    read = 0
    for number in range(min(count, LOG_PARTITIONS)):
        offset, end = 0, 1
        while offset < end:
            (found,) = await broker.reads.fetch([FetchEntry("q", f"customer-{number}", offset, 1 << 20)], 1 << 20, 0, 0)
            hold(found.error is None and all(record.payload == PAYLOAD for record in found.records), found.entry)
            hold(bool(found.records), found.entry)
            offset, end = offset + len(found.records), found.high_watermark
        read += offset
    hold(read == count, read)


async def fill_and_die(directory: str, count: int) -> None:
    """Push so many messages, and end without a word."""
    settings = Settings(data=directory)
    async with running(store_of(settings), settings) as broker:
        for first in range(0, count, BATCH):
            numbers = range(first, min(first + BATCH, count))
            await broker.push(
                [PushItem("q", f"customer-{n % LOG_PARTITIONS}", PAYLOAD, str(uuid.uuid4())) for n in numbers]
            )
        os.kill(os.getpid(), signal.SIGKILL)


TABLES: dict[str, tuple[Callable[[int], Awaitable[Row]], Sequence[int]]] = {
    "partitions": (partitions, (1, 1_000, 100_000, 1_000_000)),
    "keys": (keys, (1, 1_000, 100_000, 1_000_000)),
    "timers": (timers, (250, 10_000, 1_000_000)),
    "waiters": (waiters, (1, 100, 10_000)),
    "subscribers": (subscribers, (1, 100, 2_000)),
    "groups": (groups, (1, 10, 100)),
    "window": (window, (1, 1_000, 100_000)),
    "log": (log, (1_000, 100_000, LOG_ROWS)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="names of tables: " + ", ".join(TABLES))
    parser.add_argument("--most", type=int, default=1_000_000, help="leave out rows with more than so many")
    parser.add_argument("--row-seconds", type=float, default=1800.0, help="a row that takes longer is given up")
    parser.add_argument("--write", action="store_true", help="the tables into docs/performance.md")
    parser.add_argument("--row", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--killed", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.killed:
        trio.run(fill_and_die, options.killed[0], int(options.killed[1]))
    elif options.row:
        name, count = options.row
        print(json.dumps(trio.run(TABLES[name][0], int(count))))
    else:
        names = options.only.split(",") if options.only else list(TABLES)
        found = [table(name, [n for n in TABLES[name][1] if n <= options.most], options.row_seconds) for name in names]
        if options.write:
            replaced(PERFORMANCE, "growth", "\n\n".join(found))


def table(name: str, counts: Sequence[int], seconds: float) -> str:
    """Each row in a process of its own, printed as JSON, then all of them as Markdown, which is given back too."""
    measure, rows = TABLES[name][0], list[Row]()
    for count in counts:
        arguments = [sys.executable, __file__, "--row", name, str(count)]
        try:
            run = subprocess.run(arguments, check=True, stdout=subprocess.PIPE, text=True, timeout=seconds)
        except subprocess.TimeoutExpired:
            print(json.dumps({"table": name, name: count, "given_up_after_s": seconds}), flush=True)
            break
        found: Row = json.loads(run.stdout)
        rows.append({name: count, **found})
        print(json.dumps({"table": name, **rows[-1]}), flush=True)
        if name == "log" and count == LOG_ROWS:
            aims.tell("ready", found["ready_s"])
    if not rows:
        return ""
    heads = [f"{head.removesuffix('_us')}, us" if head.endswith("_us") else head for head in rows[0]]
    lines = [f"| {' | '.join(head.replace('_', ' ') for head in heads)} |", f"|{' ---: |' * len(heads)}"]
    lines += [f"| {' | '.join(f'{value:,}' for value in row.values())} |" for row in rows]
    told = (measure.__doc__ or "").partition("\n\n")[0]
    text = f"{' '.join(told.split())}\n\n" + "\n".join(lines)
    print(f"\n{text}\n", flush=True)
    return text


if __name__ == "__main__":
    main()

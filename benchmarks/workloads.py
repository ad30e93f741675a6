"""The workloads W1 to W10, over the broker's faces, every answer durable; one JSON line for each.

    python benchmarks/workloads.py                                   # everything, over every face
    python benchmarks/workloads.py --only W1,W8 --face embedded --secs 2

Payloads are JSON of 200 bytes. `embedded` calls the broker in this process; the others talk to `queen-actors serve` in
a process of its own: `http` with a connection for each caller, `websocket` with one that the callers pipeline over,
`sdk` with the published client of Queen MQ, on asyncio. A name is a prefix: W6 is all of W6.
`memory` is not a speed: bytes for each of 200,000 idle partitions.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, redirect_stdout
from functools import partial
from typing import Any

import anyio
from embedded import embedded
from faces import Client, Consumer, Face
from measure import Call, closed_loop, flow, payload, percentile, result
from memory import idle_partitions
from sdk import sdk
from wire import http, websocket

MANY = 32
PAYLOAD = payload()
HUNDRED = 100

Workload = Callable[[Face, float], Awaitable[dict[str, Any]]]
FACES: dict[str, Callable[[str], AbstractAsyncContextManager[Face]]] = {
    "embedded": embedded,
    "http": http,
    "websocket": websocket,
    "sdk": sdk,
}
"""How each face is opened, over a data directory."""


async def push(face: Face, seconds: float, *, callers: int, batch: int) -> dict[str, Any]:
    """W1, W2, W3: push, `batch` messages a call, each caller to a partition of its own."""
    calls: list[Call] = []
    async with face.clients(callers) as everyone:
        for number, client in enumerate(everyone):
            to = [f"p{number}"] * batch
            calls.append(lambda _, client=client, to=to: client.push("s", to, PAYLOAD))  # type: ignore[misc]
        return await closed_loop(calls, seconds, per_call=batch, warm=20 if batch == 1 else 3)


async def latency(face: Face, seconds: float) -> dict[str, Any]:
    """W4: push, receive, ack, one message at a time; the latency is from the push to the receipt."""
    latencies: list[float] = []
    async with AsyncExitStack() as stack:
        producer = await stack.enter_async_context(face.producer())
        consumer = await stack.enter_async_context(face.consumer("s", None, batch=1, partitions=1))
        start = time.perf_counter()
        while (sent := time.perf_counter()) < start + seconds:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(producer.push, "s", ["p"], PAYLOAD)
                messages = await consumer.receive()
                latencies.append(time.perf_counter() - sent)
                await consumer.ack(messages)
        return result(len(latencies), time.perf_counter() - start, latencies, clients=2)


async def throughput(face: Face, seconds: float, *, groups: int, partitions: int = 1) -> dict[str, Any]:
    """W4, W5, W9: batches of 100 from the producer to each group and its ack; `partitions` are walked in turn."""
    async with AsyncExitStack() as stack:
        producer = await stack.enter_async_context(face.producer())
        place = 0

        async def produce() -> int:
            nonlocal place
            to = [f"p{(place + step) % partitions}" for step in range(HUNDRED)]
            place += HUNDRED
            await producer.push("s", to, PAYLOAD)
            return HUNDRED

        names = [None] if groups == 1 else [f"g{number}" for number in range(groups)]
        for first in range(0, partitions if partitions > 1 else 0, 1000):
            await producer.push("s", [f"p{number}" for number in range(first, first + 1000)], PAYLOAD)
        consumes: list[Callable[[], Awaitable[int]]] = []
        for name in names:
            consumer = await stack.enter_async_context(
                face.consumer("s", name, batch=HUNDRED, partitions=min(partitions, 64))
            )

            async def consume(consumer: Consumer = consumer) -> int:
                return await consumer.ack(await consumer.receive())

            consumes.append(consume)
        return await flow(produce, consumes, seconds)


async def keys(face: Face, seconds: float, *, op: str, callers: int) -> dict[str, Any]:
    """W6: one key operation a call: put, get, a conditional put (cas), a counter, a counter with a ceiling."""
    calls: list[Call] = []
    async with face.clients(callers) as everyone:
        for number in range(200):
            await everyone[0].put(f"k{number}", PAYLOAD)
        for number, client in enumerate(everyone):
            calls.append(_key_call(client, op, number))
        return await closed_loop(calls, seconds)


def _key_call(client: Client, op: str, number: int) -> Call:
    versions: dict[str, int] = {}

    async def cas(turn: int) -> None:
        key = f"c{number}-{turn % 50}"
        versions[key] = await client.cas(key, versions.get(key, 0), PAYLOAD)

    table: dict[str, Call] = {
        "put": lambda turn: client.put(f"p{turn % 1000}", PAYLOAD),
        "get": lambda turn: client.get(f"k{turn % 200}"),
        "cas": cas,
        "incr": lambda turn: client.incr(f"n{turn % 100}", None),
        "incr_max": lambda turn: client.incr(f"m{turn % 100}", 10**9),
    }
    return table[op]


async def lock(face: Face, seconds: float, *, callers: int) -> dict[str, Any]:
    """W7: acquire and release one lock; who finds it held tries again after 10 ms."""
    tokens: list[int] = []
    async with face.clients(callers) as everyone:

        async def cycle(client: Client, _: int) -> None:
            token = await client.acquire("a")
            tokens.append(token)
            await client.release("a", token)

        calls: list[Call] = [partial(cycle, client) for client in everyone]
        line = await closed_loop(calls, seconds, warm=1)
    if tokens != sorted(set(tokens)):
        raise AssertionError("a token came twice, or fell")
    return line


async def step(face: Face, seconds: float, *, callers: int) -> dict[str, Any]:
    """W8: take a message; then, in one transaction, ack it, change a key conditionally and push another message."""
    async with face.clients(callers) as everyone:
        # More than the steps that the time allows, spread so that each caller finds a partition that is not leased
        for first in range(0, max(60_000, int(20_000 * seconds)), 1000):
            to = [f"p{number % (2 * callers)}" for number in range(first, first + 1000)]
            await everyone[0].push("in", to, PAYLOAD)

        def caller(client: Client, number: int) -> Call:
            version = 0

            async def once(_: int) -> None:
                nonlocal version
                message = await client.take("in")
                version = await client.step(message, f"st{number}", version, f"p{number}", PAYLOAD)

            return once

        return await closed_loop([caller(client, number) for number, client in enumerate(everyone)], seconds, warm=3)


async def timers(face: Face, seconds: float) -> dict[str, Any]:
    """W10: 100,000 timers pending, 2,000 of them due over 5 s: how late each message is with its consumer."""
    pending, due, span_ms, far_ms = 100_000, 2_000, 5_000, 86_400_000
    lateness: list[float] = []
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(face.producer())
        start = time.perf_counter()
        for first in range(0, pending - due, 256):
            some = range(first, min(first + 256, pending - due))
            await client.schedule("s", [(f"far{number}", far_ms + number) for number in some], PAYLOAD)
        rate = (pending - due) / (time.perf_counter() - start)
        consumer = await stack.enter_async_context(face.consumer("s", None, batch=HUNDRED, partitions=1))
        promised: dict[str, float] = {}
        for first in range(0, due, 250):
            some = range(first, first + 250)
            delays = [(f"due{number}", 500 + span_ms * number // due) for number in some]
            promised |= await client.schedule("s", delays, PAYLOAD)
        with anyio.fail_after(span_ms / 1000 + 15):
            while len(lateness) < due:
                messages = await consumer.receive()
                now = time.time()
                lateness += [now - promised[message.txn] for message in messages]
                await consumer.ack(messages)
    if min(lateness) < 0:
        raise AssertionError(f"a timer fired {-min(lateness):.6f} s early")
    return {
        "clients": 2,
        "p50_ms": percentile(lateness, 0.5),
        "p99_ms": percentile(lateness, 0.99),
        "pending": pending,
        "fired": len(lateness),
        "schedule_s": round(rate),
    }


WORKLOADS: dict[str, Workload] = {
    "W1_push": partial(push, callers=1, batch=1),
    "W2_push_batch100": partial(push, callers=1, batch=HUNDRED),
    "W3_push_32": partial(push, callers=MANY, batch=1),
    "W4_latency": latency,
    "W4_throughput_batch100": partial(throughput, groups=1),
    "W5_fanout10": partial(throughput, groups=10),
    **{
        f"W6_{op}_{callers}": partial(keys, op=op, callers=callers)
        for op in ("put", "get", "cas", "incr", "incr_max")
        for callers in (1, MANY)
    },
    "W7_lock_1": partial(lock, callers=1),
    "W7_lock_32": partial(lock, callers=MANY),
    "W8_step_1": partial(step, callers=1),
    "W8_step_32": partial(step, callers=MANY),
    "W9_10k_partitions": partial(throughput, groups=1, partitions=10_000),
    "W10_timers": timers,
}


def chosen(only: str | None) -> list[str]:
    """The workloads that `only`, names or their beginnings with commas between, asks for."""
    wanted = only.split(",") if only else ["W", "memory"]
    return [
        name
        for name in [*WORKLOADS, "memory"]
        if any(name == want or want == "W" or name.startswith(want + "_") for want in wanted)
    ]


async def measure(face_name: str, name: str, seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="queen-actors-bench-") as directory:
        async with FACES[face_name](directory) as face:
            return await WORKLOADS[name](face, seconds)


def measured(face: str, name: str, seconds: float, rounds: int) -> dict[str, Any]:
    """The median round, by its rate, or by its latency where there is no rate."""
    backend = "asyncio" if face == "sdk" else "trio"
    lines = [anyio.run(measure, face, name, seconds, backend=backend) for _ in range(rounds)]
    return sorted(lines, key=lambda line: float(line.get("ops_s") or line["p50_ms"]))[rounds // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="names or their beginnings, with commas between")
    parser.add_argument("--face", choices=sorted(FACES), action="append", help="may be given again; default: every one")
    parser.add_argument("--secs", type=float, default=1.5, help="how long each workload is measured")
    parser.add_argument("--rounds", type=int, default=1, help="of each workload; the median is printed")
    options = parser.parse_args()
    sys.setswitchinterval(0.0005)  # as `queen-actors serve` does
    for name in chosen(options.only):
        if name == "memory":
            print(json.dumps({"name": name, "face": "embedded", **idle_partitions()}), flush=True)
            continue
        for face in options.face or list(FACES):
            with redirect_stdout(sys.stderr):  # the published SDK prints as it closes
                line = measured(face, name, options.secs, options.rounds)
            print(json.dumps({"name": name, "face": face, **line}), flush=True)


if __name__ == "__main__":
    main()

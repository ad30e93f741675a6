"""How a figure is taken: callers in a closed loop, one latency a call, one JSON line a result."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio

Call = Callable[[int], Awaitable[object]]


def payload(number: int = 0) -> bytes:
    """An order as JSON text, padded to 200 bytes."""
    order = {"id": number, "type": "order.updated", "customer": f"customer-{number % 1_000_000:06d}", "amount": 1234}
    room = 200 - len(json.dumps({**order, "pad": ""}))
    return json.dumps({**order, "pad": "x" * room}).encode()


def result(count: int, seconds: float, latencies: Sequence[float] = (), **more: Any) -> dict[str, Any]:
    """`count` operations in `seconds`; latencies in seconds, told as milliseconds."""
    line: dict[str, Any] = {"ops_s": round(count / seconds, 1), "n": count, "secs": round(seconds, 2)}
    if latencies:
        line |= {"p50_ms": percentile(latencies, 0.50), "p99_ms": percentile(latencies, 0.99)}
    return line | more


def percentile(latencies: Sequence[float], share: float) -> float:
    """In milliseconds; `latencies`, in seconds, is not empty."""
    ordered = sorted(latencies)
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1e3, 3)


async def closed_loop(calls: Sequence[Call], seconds: float, *, per_call: int = 1, warm: int = 20) -> dict[str, Any]:
    """One task for each of `calls`, each calling again as soon as it is answered, until the time is over."""
    latencies: list[float] = []

    async def warm_up(call: Call) -> None:
        for number in range(warm):
            await call(number)

    async def work(call: Call, end: float) -> None:
        number = warm
        while (begin := time.perf_counter()) < end:
            await call(number)
            latencies.append(time.perf_counter() - begin)
            number += 1

    async with anyio.create_task_group() as tasks:
        for call in calls:
            tasks.start_soon(warm_up, call)
    start = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for call in calls:
            tasks.start_soon(work, call, start + seconds)
    return result(len(latencies) * per_call, time.perf_counter() - start, latencies, clients=len(calls))


async def flow(
    produce: Callable[[], Awaitable[int]],
    consumers: Sequence[Callable[[], Awaitable[int]]],
    seconds: float,
    *,
    backlog: int = 5000,
) -> dict[str, Any]:
    """A producer and consumers side by side: messages that every consumer has settled, a second.

    Each call of `produce` and of a consumer says how many messages it moved. The producer stays at most `backlog`
    messages ahead of the slowest consumer. The first 0.3 s do not count.
    """
    pushed, settled = 0, [0] * len(consumers)
    count, elapsed = 0, seconds
    moved = anyio.Event()

    async def producer() -> None:
        nonlocal pushed, moved
        while True:
            pushed += await produce()
            while pushed - min(settled) > backlog:
                moved = anyio.Event()
                await moved.wait()

    async def consumer(place: int) -> None:
        while True:
            settled[place] += await consumers[place]()
            moved.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(producer)
        for place in range(len(consumers)):
            tasks.start_soon(consumer, place)
        await anyio.sleep(0.3)
        before, start = sum(settled), time.perf_counter()
        await anyio.sleep(seconds)
        count, elapsed = sum(settled) - before, time.perf_counter() - start
        tasks.cancel_scope.cancel()
    line = result(count // len(consumers), elapsed, clients=1 + len(consumers))
    return line | {"deliveries_s": round(count / elapsed)} if len(consumers) > 1 else line

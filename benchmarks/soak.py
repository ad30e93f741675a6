"""`python benchmarks/soak.py --minutes 10`: push, consume and retain for a while, and watch what the server takes.

Producers push to many partitions of a queue that keeps messages for some seconds, two groups consume them, keys are
written and timers fire. Resident memory, file descriptors and the size of the data directory are printed every half
minute. The first third of the run is the way to the steady state; when the last third needs more than the second did,
the run ends with 1.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import trio
from faces import hold
from measure import payload
from msgspec import Raw, Struct
from served import Served, serving
from transports import Http
from wire import WireClient, acknowledgments

MIB = 1024 * 1024
SAMPLE_SECONDS, PRINT_SECONDS = 2.0, 30.0
RETENTION_SECONDS, WINDOW_SECONDS = 15, 30
PARTITIONS, BATCH = 200, 100


class Sample(Struct, frozen=True):
    """What the server took at one moment; sizes in bytes."""

    at: float
    rss: int
    descriptors: int
    directory: int
    files: int


class Work(Struct):
    """What was done so far."""

    pushed: int = 0
    settled: int = 0


def item(name: str, number: int) -> dict[str, object]:
    """One message of a producer."""
    return {
        "queue": "soak",
        "partition": f"p{number % PARTITIONS}",
        "payload": Raw(payload(number)),
        "transactionId": f"{name}-{number}",
    }


async def produce(http: Http, name: str, work: Work, rate: int) -> None:
    """Push `rate` messages a second, some of them again, and write a key and a timer now and then; for ever."""
    client = WireClient(http)
    began, number = time.monotonic(), 0
    while True:
        items = [item(name, n) for n in range(number, number + BATCH)]
        await http.call("push", {"items": items})
        await http.call("push", {"items": items[:5]})
        await client.put(f"k{number % 5000}", b'{"seen": true}')
        await client.schedule("soak", [(f"{name}-timer-{number}", 500)], b'"later"')
        number += BATCH
        work.pushed += BATCH
        await trio.sleep(max(0.0, began + number / rate - time.monotonic()))


async def consume(http: Http, work: Work, group: str | None) -> None:
    """Take and settle; for ever."""
    client = WireClient(http)
    while True:
        messages = await client.pop("soak", group, 500, 64)
        if messages:
            entries = await http.call("ack", acknowledgments(messages, group))
            work.settled += sum(entry["success"] for entry in entries)


async def watch(server: Served, samples: list[Sample], work: Work) -> None:
    """Take samples, and print one now and then; for ever."""
    began = time.monotonic()
    printed = -PRINT_SECONDS
    print("seconds  pushed    settled   rss MiB  fds  directory MiB  files", flush=True)
    while True:
        size, files = await trio.to_thread.run_sync(server.size)
        at = time.monotonic() - began
        sample = Sample(at, server.rss(), server.descriptors(), size, files)
        samples.append(sample)
        if at - printed >= PRINT_SECONDS:
            printed = at
            print(
                f"{at:7.0f}  {work.pushed:8}  {work.settled:8}  {sample.rss / MIB:7.1f}  {sample.descriptors:3}  "
                f"{size / MIB:13.1f}  {files:5}",
                flush=True,
            )
        await trio.sleep(SAMPLE_SECONDS)


def verdict(samples: list[Sample]) -> list[str]:
    """What grew from the second third of the run to the last; each with the most that was seen in both."""
    third = samples[-1].at / 3
    second = [sample for sample in samples if third <= sample.at < 2 * third]
    last = [sample for sample in samples if sample.at >= 2 * third]
    grew: list[str] = []
    for name, share, room in (("rss", 1.1, 8 * MIB), ("descriptors", 1.0, 8), ("directory", 1.25, 8 * MIB)):
        before, after = (max(getattr(sample, name) for sample in part) for part in (second, last))
        print(f"{name}: at most {before} in the second third, {after} in the last")
        if after > before * share + room:
            grew.append(name)
    return grew


async def run(minutes: float, rate: int) -> int:
    samples: list[Sample] = []
    work = Work()
    with tempfile.TemporaryDirectory(prefix="queen-actors-soak-") as directory:
        limits = {"journal_roll_bytes": 2 * MIB, "snapshot_bytes": 8 * MIB, "record_cache_bytes": 16 * MIB}
        served = serving(Path(directory), ack_window=WINDOW_SECONDS, **limits)
        async with served as server, trio.open_nursery() as nursery:
            async with server.connect() as admin:
                await configure(admin)
            for place in range(2):
                nursery.start_soon(connected, server, partial(produce, name=f"w{place}", work=work, rate=rate // 2))
                nursery.start_soon(connected, server, partial(consume, work=work, group=f"g{place}"))
            nursery.start_soon(watch, server, samples, work)
            await trio.sleep(minutes * 60)
            nursery.cancel_scope.cancel()
    hold(work.settled > work.pushed)
    grew = verdict(samples)
    told = ", ".join(grew) or "nothing"
    print(f"{work.pushed} messages pushed, {work.settled} settled in {minutes:g} minutes; grew: {told}")
    return 1 if grew else 0


async def configure(http: Http) -> None:
    options = {"retentionEnabled": True, "retentionSeconds": RETENTION_SECONDS, "dedupWindowSeconds": WINDOW_SECONDS}
    await http.post("/api/v1/configure", {"queue": "soak", "options": options})


async def connected(server: Served, work: Callable[[Http], Awaitable[None]]) -> None:
    async with server.connect() as http:
        await work(http)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--rate", type=int, default=2000, help="messages a second")
    options = parser.parse_args()
    sys.exit(trio.run(run, options.minutes, options.rate))

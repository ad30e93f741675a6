"""`python benchmarks/partitions.py`: 1,000,000 partitions, created by pushes over HTTP and listed by page.

Prints the rates, the server's memory, how long it takes to start again on the directory, and its memory then.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from functools import partial
from pathlib import Path

import trio
from faces import hold
from msgspec import Raw
from served import Served, serving

BATCH, PUSHERS, PAGE = 2_000, 4, 1_000
MIB = 1024 * 1024


async def create(server: Served, place: int, count: int) -> None:
    """A message to each partition of this pusher's share."""
    mine = range(place, count, PUSHERS)
    async with server.connect() as http:
        for start in range(0, len(mine), BATCH):
            items = [
                {"queue": "wide", "partition": f"customer-{n}", "payload": Raw(b"1"), "transactionId": f"{n}"}
                for n in mine[start : start + BATCH]
            ]
            await http.post("/api/v1/push", {"items": items})


async def listed(server: Served, count: int) -> float:
    """Every partition, page by page, in the order of their creation; how long that took."""
    names: set[str] = set()
    after: str | None = None
    began = time.perf_counter()
    async with server.connect() as http:
        while True:
            entry = {"queue": "wide", "limit": PAGE} | ({} if after is None else {"after": after})
            reply = await http.post("/api/v1/partitions/changed", {"entries": [entry]})
            (page,) = reply["entries"]
            names.update(row["name"] for row in page["partitions"])
            after = page["next"]
            if after is None:
                hold(len(names) == count)
                return time.perf_counter() - began


async def run(count: int) -> None:
    with tempfile.TemporaryDirectory(prefix="queen-actors-partitions-") as name:
        directory = Path(name)
        began = time.perf_counter()
        async with serving(directory) as server:
            print(f"started empty in {time.perf_counter() - began:.1f} s, {server.rss() / MIB:.0f} MiB", flush=True)
            began = time.perf_counter()
            async with trio.open_nursery() as nursery:
                for place in range(PUSHERS):
                    nursery.start_soon(partial(create, server, place, count))
            seconds = time.perf_counter() - began
            print(f"created {count} partitions in {seconds:.0f} s: {count / seconds:,.0f}/s", flush=True)
            print(f"memory then: {server.rss() / MIB:.0f} MiB", flush=True)
            seconds = await listed(server, count)
            print(f"listed in pages of {PAGE} in {seconds:.0f} s: {count / seconds:,.0f}/s", flush=True)
        print(f"data directory: {server.size()[0] / MIB:.0f} MiB", flush=True)
        began = time.perf_counter()
        async with serving(directory) as server:
            print(f"started again in {time.perf_counter() - began:.1f} s, {server.rss() / MIB:.0f} MiB", flush=True)
            seconds = await listed(server, count)
            print(f"listed in pages of {PAGE} in {seconds:.0f} s: {count / seconds:,.0f}/s", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=1_000_000)
    trio.run(run, parser.parse_args().partitions)

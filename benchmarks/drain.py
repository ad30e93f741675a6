"""`python benchmarks/drain.py`: 100,000 messages over 5,000 partitions, pushed and drained by 8 workers of one group.

Over HTTP, durable. Every partition must come out in order, no message lost and none twice; the rates are printed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from functools import partial
from pathlib import Path

import trio
from faces import hold
from measure import payload
from msgspec import Raw
from served import Served, serving
from wire import acknowledgments

BATCH, WORKERS, PUSHERS = 500, 8, 4


async def push(server: Served, place: int, count: int, partitions: int) -> None:
    """Message n goes to partition n modulo `partitions`; each partition's come from one pusher, so in their order."""
    mine = [n for n in range(count) if n % partitions % PUSHERS == place]
    async with server.connect() as http:
        for start in range(0, len(mine), BATCH):
            items = [
                {
                    "queue": "drain",
                    "partition": f"p{n % partitions}",
                    "payload": Raw(payload(n)),
                    "transactionId": f"{n}",
                }
                for n in mine[start : start + BATCH]
            ]
            answer = await http.post("/api/v1/push", {"items": items})
            hold(all(entry["status"] == "queued" for entry in answer))


async def drain(server: Served, seen: Counter[str], last: dict[str, int]) -> None:
    """Take and settle until the queue stays empty for a while."""
    async with server.connect() as http:
        while True:
            ask = {"queue": "drain", "batch": BATCH, "partitions": 64, "wait": "true", "timeout": 1000}
            reply = await http.call("pop", {**ask, "consumerGroup": "workers", "subscriptionMode": "all"})
            if reply is None:
                return
            for message in reply["messages"]:
                seen[message["transactionId"]] += 1
                number = int(message["transactionId"])
                hold(last.get(message["partition"], -1) < number)
                last[message["partition"]] = number
            entries = await http.call("ack", {**acknowledgments([], "workers"), "acknowledgments": reply["messages"]})
            hold(all(entry["success"] for entry in entries))


async def run(count: int, partitions: int) -> None:
    with tempfile.TemporaryDirectory(prefix="queen-actors-drain-") as directory:
        async with serving(Path(directory)) as server:
            began = time.perf_counter()
            async with trio.open_nursery() as nursery:
                for place in range(PUSHERS):
                    nursery.start_soon(push, server, place, count, partitions)
            pushed = time.perf_counter() - began
            seen: Counter[str] = Counter()
            last: dict[str, int] = {}
            began = time.perf_counter()
            async with trio.open_nursery() as nursery:
                for _ in range(WORKERS):
                    nursery.start_soon(partial(drain, server, seen, last))
            drained = time.perf_counter() - began - 1  # the last pop of each waits for a second
    hold(len(seen) == count and set(seen.values()) == {1} and len(last) == partitions)
    print(f"pushed  {count} messages over {partitions} partitions in {pushed:.1f} s: {count / pushed:,.0f} messages/s")
    print(f"drained {count} messages by {WORKERS} workers in {drained:.1f} s: {count / drained:,.0f} messages/s")
    print("every partition in order, none lost, none twice")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--partitions", type=int, default=5_000)
    chosen = parser.parse_args()
    trio.run(run, chosen.messages, chosen.partitions)
    sys.exit(0)

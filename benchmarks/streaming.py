"""`python benchmarks/streaming.py`: what the WebSocket delivers, beside a plain trio-websocket loop and an echo.

In one run, each against a server process of its own (`queen-actors serve --data`, every push durable), with one lean
client (`lean.py`) for both sides, in this process:

- messages delivered a second to 1 and to 100 subscribers: tails of one queue, and consumer groups of one queue; one
  message a frame (each message of a push goes to another partition) and batched (all of a push to one partition);
  `stored`: the messages are there before, so that delivery alone is measured; `live`: pushed meanwhile, 100 a request;
- from the commit to a subscriber, at 5,000 messages/s, in echo round trips;
- how late timers are with 100,000 pending;
- what a consumer that stops reading does to another one's latency.

JSON lines, and a table at the end. `times` is the multiple of the plain loop's rate, `cpu_times` of its processor time
for a message: that one depends least on what else the machine does. Both servers have the same bytes in a payload; ours
are longer on the wire by what a message carries beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from delays import commit_to_subscriber, slow_consumer, timer_lateness
from faces import hold
from lean import Connection, Consuming, Loop, Pusher, Tailing
from measure import payload
from msgspec import Raw
from processes import Process, broker, plain

PER_PUSH, PARTITIONS = 100, 1_000
"""`live` walks round so many partitions: no commit has two messages of one of them."""
AHEAD = 20_000
"""How many messages the producer may be ahead of the slowest subscriber."""
STORED = {("tail", 1): 100_000, ("tail", 100): 10_000, ("group", 1): 50_000, ("group", 100): 2_000}
"""Messages; one a frame means that each is in a partition of its own, and a fifth of them."""
Line = dict[str, Any]


def bodies(queue: str, partitions: int) -> list[bytes]:
    """Pushes of 100 messages: to one partition, or each message to another one."""
    found: list[bytes] = []
    for first in range(0, partitions, PER_PUSH):
        names = [f"p{(first + place) % partitions}" for place in range(PER_PUSH)]
        items = [
            {"queue": queue, "partition": name, "payload": Raw(payload(place))} for place, name in enumerate(names)
        ]
        found.append(msgspec.json.encode({"items": items}))
    return found


def steady(server: Process, loop: Loop, receivers: Sequence[Connection], seconds: float) -> Line:
    """What arrives in so many seconds, once it flows."""
    loop.run(lambda: min(one.count for one in receivers) > 0)
    loop.run_for(seconds / 4)
    before, cpu = sum(one.count for one in receivers), server.cpu()
    took = loop.run_for(seconds)
    count = sum(one.count for one in receivers) - before
    return figures(count, took, server.cpu() - cpu)


def figures(count: int, seconds: float, cpu: float) -> Line:
    return {"messages": count, "rate": round(count / seconds), "cpu_us": round(cpu / count * 1e6, 2)}


def plain_loop(subscribers: int, seconds: float) -> Line:
    """`send_message` to each connection in turn."""
    with plain("loop", str(subscribers), payload().decode()) as server:
        loop = Loop()
        receivers = [Connection(server.port, "/") for _ in range(subscribers)]
        for one in receivers:
            loop.watch(one.sock, lambda one=one: one.counted())  # type: ignore[misc]  # a default of a lambda has no type
        return steady(server, loop, receivers, seconds)


def subscribe(kind: str, server: Process, number: int, *, start: str, batched: bool) -> Tailing | Consuming:
    if kind == "tail":
        return Tailing(server.port, "s", start)
    return Consuming(server.port, "s", f"g{number}", batch=1_000, partitions=1 if batched else 64, credit=2_000)


def live(kind: str, subscribers: int, seconds: float, *, batched: bool) -> Line:
    """Pushed, made durable and delivered, all at once."""
    with tempfile.TemporaryDirectory(prefix="queen-actors-bench-") as directory, broker(directory) as server:
        loop = Loop()
        pusher = Pusher(loop, server.port, bodies("s", 1 if batched else PARTITIONS), PER_PUSH)
        if not batched:  # partitions are made once
            pusher.may = lambda: pusher.pushed < PARTITIONS
            pusher.start()
            loop.run(lambda: pusher.settled and not pusher.may())
        receivers = [subscribe(kind, server, n, start="now", batched=batched) for n in range(subscribers)]
        base = pusher.pushed
        skipped = 0 if kind == "tail" else base
        pusher.may = lambda: pusher.pushed - base + skipped - min(one.count for one in receivers) < AHEAD

        def readable(one: Tailing | Consuming) -> None:
            one.readable()
            pusher.start()

        for one in receivers:
            loop.watch(one.sock, lambda one=one: readable(one))  # type: ignore[misc]  # a default of a lambda has no type
            one.begin()
        pusher.start()
        return steady(server, loop, receivers, seconds)


def stored(kind: str, subscribers: int, *, batched: bool, quick: bool) -> Line:
    """Delivered from what is there already."""
    count = STORED[kind, subscribers] // (5 if quick else 1) // (1 if batched else 5)
    with tempfile.TemporaryDirectory(prefix="queen-actors-bench-") as directory, broker(directory) as server:
        loop = Loop()
        pusher = Pusher(loop, server.port, bodies("s", 1 if batched else count), PER_PUSH)
        pusher.may = lambda: pusher.pushed < count
        pusher.start()
        loop.run(lambda: pusher.settled and not pusher.may())
        pusher.close()
        receivers = [subscribe(kind, server, n, start="start", batched=batched) for n in range(subscribers)]
        cpu = server.cpu()
        for one in receivers:
            loop.watch(one.sock, one.readable)
            one.begin()
        took = loop.run(lambda: min(one.count for one in receivers) >= count, at_most=120)
        hold(all(one.count == count for one in receivers))
        return figures(count * subscribers, took, server.cpu() - cpu)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="shorter runs, smaller numbers: about a minute")
    parser.add_argument("--secs", type=float, default=None, help="how long each rate is measured (default 3, quick 1)")
    parser.add_argument("--only", default="", help="what a run's name must contain, e.g. `tail 100` or `latency`")
    options = parser.parse_args()
    seconds = options.secs or (1.0 if options.quick else 3.0)
    lines: list[Line] = []

    def run(name: str, measure: Callable[[], Line]) -> Line:
        line = {"name": name, **measure(), "load": round(os.getloadavg()[0], 1)}
        print(json.dumps(line), flush=True)
        lines.append(line)
        return line

    for subscribers in (1, 100):
        runs = throughputs(subscribers, seconds, quick=options.quick)
        runs = {name: measure for name, measure in runs.items() if options.only in name}
        if runs:
            base = run(f"plain loop {subscribers}", lambda: plain_loop(subscribers, seconds))  # noqa: B023
        for name, measure in runs.items():
            run(name, lambda: compared(measure(), base))  # noqa: B023
    for name, measure in {
        "latency": lambda: commit_to_subscriber(quick=options.quick),
        "timers": lambda: timer_lateness(quick=options.quick),
        "slow consumer": lambda: slow_consumer(quick=options.quick),
    }.items():
        if options.only in name:
            run(name, measure)
    print(table(lines))


def throughputs(subscribers: int, seconds: float, *, quick: bool) -> dict[str, Callable[[], Line]]:
    found: dict[str, Callable[[], Line]] = {}
    for kind in ("tail", "group"):
        for batched in (False, True):
            what = f"{kind} {subscribers} {'batched' if batched else 'one a frame'}"
            found[f"{what} stored"] = lambda kind=kind, batched=batched: stored(  # type: ignore[misc]  # a default of a lambda has no type
                kind, subscribers, batched=batched, quick=quick
            )
            found[f"{what} live"] = lambda kind=kind, batched=batched: live(  # type: ignore[misc]  # a default of a lambda has no type
                kind, subscribers, seconds, batched=batched
            )
    return found


def compared(line: Line, base: Line) -> Line:
    return line | {
        "times": round(line["rate"] / base["rate"], 2),
        "cpu_times": round(base["cpu_us"] / line["cpu_us"], 2),
    }


def table(lines: Sequence[Line]) -> str:
    """What was measured, as Markdown."""
    rates = [line for line in lines if "rate" in line]
    rows = [
        "",
        "| | messages/s | times the plain loop | server CPU us a message | times |",
        "| --- | --- | --- | --- | --- |",
    ]
    for line in rates:
        times = f"{line.get('times', 1)} | {line['cpu_us']} | {line.get('cpu_times', 1)}"
        rows.append(f"| {line['name']} | {line['rate']:,} | {times} |")
    for line in lines:
        if line not in rates:
            told = ", ".join(f"{name} {value}" for name, value in line.items() if name != "name")
            rows += ["", f"**{line['name']}**: {told}"]
    return "\n".join(rows)


if __name__ == "__main__":
    main()

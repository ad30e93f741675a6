"""How long streaming takes: from the commit to a subscriber, of a timer to its consumer, and beside a stuck consumer.

For the runs of `streaming.py`. All clocks are of this machine, so that instants of two processes can be compared.
"""

from __future__ import annotations

import bisect
import sys
import tempfile
import time
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from faces import hold
from lean import Connection, Consuming, Loop, Tailing, frame
from measure import payload, percentile
from msgspec import Raw
from processes import HEARTBEAT, Process, broker, plain, started

from queen_actors.values import SECOND, parse_instant

RATE, PER_PUSH = 5_000, 10
PENDING, DUE, SPAN = 100_000, 2_000, 5.0
Line = dict[str, Any]

_PROBE = """
import atexit, sys, time
import msgspec
from queen_actors.actors.tail import Tails
commits = []
told = Tails._committed
def committed(self, position):
    commits.append((time.monotonic(), position))
    told(self, position)
Tails._committed = committed
path = sys.argv.pop(1)
from queen_actors.cli import main
try:
    main()
finally:
    open(path, "wb").write(msgspec.json.encode(commits))
"""
"""The server, which notes when the log came how far: the instant at which a message may be shown."""


def echo(count: int) -> list[float]:
    """Round trips of a payload with trio-websocket's echo, one after the other."""
    with plain("echo") as server:
        connection = Connection(server.port, "/")
        request = frame(payload())
        found: list[float] = []
        for _ in range(count):
            begin = time.perf_counter()
            connection.send(request)
            while not connection.frames():
                pass
            found.append(time.perf_counter() - begin)
        connection.close()
    return found[count // 10 :]


def _check(replies: list[bytes]) -> None:
    for text in replies:
        hold(b'"ok":true' in text[:40] or text.startswith(b'{"event":"welcome"'), text[:300])


class _Noting(Tailing):
    """When each message came: one partition, so that the n-th message is the n-th of the log."""

    def __init__(self, port: int, queue: str) -> None:
        super().__init__(port, queue)
        self.arrivals: list[float] = []

    def readable(self) -> None:
        before = self.count
        super().readable()
        self.arrivals += [time.monotonic()] * (self.count - before)


def commit_to_subscriber(*, quick: bool) -> Line:
    """5,000 messages/s into one partition, 10 a push, at an even pace; a tail gets them. `push_p50_ms` is from the
    sending of a push, through its commit, to the subscriber."""
    seconds = 2.0 if quick else 6.0
    round_trips = echo(500 if quick else 3_000)
    with tempfile.TemporaryDirectory(prefix="queen-actors-bench-") as directory:
        notes = Path(directory) / "commits"
        command = [sys.executable, "-c", _PROBE, str(notes), "serve", "--port", "0", "--data", f"{directory}/data"]
        with started(command, **HEARTBEAT) as server:
            sent, arrivals = _paced(server, seconds)
        commits = msgspec.json.decode(notes.read_bytes())
    positions = [position for _, position in commits]
    base = positions[-1] - len(sent)
    hold(0 < base < 5, base)  # nothing but the pushes, and the one before them
    delays: list[float] = []
    for place, at in enumerate(arrivals):
        entry = base + place // PER_PUSH + 1  # one step of the log for each push
        commit = commits[bisect.bisect_left(positions, entry)]
        delays.append(at - commit[0])
    pushes = [at - sent[place // PER_PUSH] for place, at in enumerate(arrivals)]
    skip = len(delays) // 10
    echo_p50 = percentile(round_trips, 0.5)
    return {
        "rate_asked": RATE,
        "delivered": len(arrivals),
        "p50_ms": percentile(delays[skip:], 0.5),
        "p99_ms": percentile(delays[skip:], 0.99),
        "push_p50_ms": percentile(pushes[skip:], 0.5),
        "push_p99_ms": percentile(pushes[skip:], 0.99),
        "echo_p50_ms": echo_p50,
        "echo_p99_ms": percentile(round_trips, 0.99),
        "echo_round_trips": round(percentile(delays[skip:], 0.5) / echo_p50, 2),
    }


def _paced(server: Process, seconds: float) -> tuple[list[float], list[float]]:
    """When each push was sent, and when each message came."""
    loop = Loop()
    pusher = Connection(server.port)
    items = [{"queue": "s", "partition": "p", "payload": Raw(payload(n))} for n in range(PER_PUSH)]
    pusher.ask({"op": "push", "items": items})
    request = frame({"id": 2, "op": "push", "items": items})
    tail = _Noting(server.port, "s")
    tail.begin()
    loop.watch(tail.sock, tail.readable)
    loop.watch(pusher.sock, lambda: _check(pusher.frames()))
    sent: list[float] = []
    total = int(seconds * RATE / PER_PUSH)
    begin = time.monotonic()
    while len(sent) < total:
        due = begin + len(sent) * PER_PUSH / RATE
        if (now := time.monotonic()) >= due:
            sent.append(now)
            pusher.send(request)
            loop.turn(0)
        else:
            loop.turn(min(due - now, 0.05))
    loop.run(lambda: tail.count >= total * PER_PUSH)
    return sent, tail.arrivals


def timer_lateness(*, quick: bool) -> Line:
    """100,000 timers pending, 2,000 of them due over 5 s: how late each message is with its consumer."""
    pending, due = (20_000, 500) if quick else (PENDING, DUE)
    with tempfile.TemporaryDirectory(prefix="queen-actors-bench-") as directory, broker(directory) as server:
        client = Connection(server.port)
        body = b64encode(payload()).decode()

        def schedule(names: range, delay: Callable[[int], int], prefix: str) -> dict[str, float]:
            fixed = {"op": "schedule", "queue": "s", "payload": body}
            keys = {n: f"{prefix}{n}" for n in names}
            operations = [{**fixed, "timerKey": keys[n], "txn": keys[n], "delayMs": delay(n)} for n in names]
            reply = client.ask({"op": "timers", "operations": operations})
            return {one["txn"]: parse_instant(one["deliverAt"]) / SECOND for one in reply["results"]}

        for first in range(0, pending - due, 250):
            schedule(range(first, min(first + 250, pending - due)), lambda n: 86_400_000 + n, "far")
        consumer = _Dated(server.port, "s", "g", batch=100, partitions=64, credit=1_000)
        consumer.begin()
        promised: dict[str, float] = {}
        for first in range(0, due, 250):
            promised |= schedule(range(first, first + 250), lambda n: 500 + int(SPAN * 1000 * n / due), "due")
        loop = Loop()
        loop.watch(consumer.sock, consumer.readable)
        loop.run(lambda: len(consumer.came) >= due)
    late = [at - promised[txn] for txn, at in consumer.came]
    return {
        "pending": pending,
        "fired": len(late),
        "p50_ms": percentile(late, 0.5),
        "p99_ms": percentile(late, 0.99),
        "max_ms": round(max(late) * 1e3, 3),
        "early": sum(one < 0 for one in late),
    }


class _Dated(Consuming):
    """When each message came, by its transaction id."""

    def __init__(self, port: int, queue: str, group: str, **terms: Any) -> None:
        super().__init__(port, queue, group, **terms)
        self.came: list[tuple[str, float]] = []

    def take(self, frames: list[bytes]) -> None:
        now = time.time()
        for text in frames:
            if text.startswith(b'{"event":"messages"'):
                self.came += [(one["transactionId"], now) for one in msgspec.json.decode(text)["messages"]]
        super().take(frames)


class _Slow(Connection):
    """A consumer that never reads."""

    def __init__(self, port: int, queue: str) -> None:
        super().__init__(port)
        subscribe = {"op": "subscribe", "sub": "s", "queue": queue, "group": "slow", "partitions": 64, "batch": 1_000}
        self.ask({**subscribe, "credit": 100_000})

    def ended(self) -> bool:
        """Read what there is: does the stream end behind it? A live one would go on with pings and messages."""
        self.sock.settimeout(10)
        try:
            while self.sock.recv(1 << 20):
                pass
        except TimeoutError:
            return False
        except ConnectionResetError:
            return True
        return True


def slow_consumer(*, quick: bool) -> Line:
    """200 MB are pushed, 20 kB a message, 400 messages/s; a consumer of one group reads, one of another stops. The
    same again without that one: what it costs in memory (peak of the resident size), and the first one's latency."""
    count = 3_000 if quick else 10_000
    alone, beside = _latencies(count, slow=False), _latencies(count, slow=True)
    return {
        "pushed_mb": count * SLOW_BYTES // 1_000_000,
        "alone_p50_ms": alone["p50_ms"],
        "alone_p99_ms": alone["p99_ms"],
        "beside_p50_ms": beside["p50_ms"],
        "beside_p99_ms": beside["p99_ms"],
        "p99_ratio": round(beside["p99_ms"] / alone["p99_ms"], 2),
        "memory_mb": round((beside["grown"] - alone["grown"]) / 1e6, 1),
        "dropped": beside["ended"],
    }


SLOW_BYTES, SLOW_RATE, SLOW_PARTITIONS = 20_000, 400, 1_000
STUCK_SECONDS = 20.0
"""By then what the kernel takes is full, and the deadline of a write without progress is over."""


def _latencies(count: int, *, slow: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="queen-actors-bench-") as directory, broker(directory) as server:
        loop = Loop()
        pusher = Connection(server.port)
        consumer = _Dated(server.port, "s", "quick", batch=100, partitions=64, credit=1_000)
        consumer.begin()
        loop.watch(consumer.sock, consumer.readable)
        loop.watch(pusher.sock, lambda: _check(pusher.frames()))
        stuck = _Slow(server.port, "s") if slow else None
        body = Raw(b'"' + b"x" * SLOW_BYTES + b'"')
        sent: dict[str, float] = {}
        begin, before, peak = time.monotonic(), server.rss(), 0
        while len(sent) < count:
            due = begin + len(sent) / SLOW_RATE
            if time.monotonic() >= due:
                number = len(sent)
                item = {"queue": "s", "partition": f"p{number % SLOW_PARTITIONS}", "payload": body}
                sent[f"t{number}"] = time.time()
                pusher.send(frame({"id": 2, "op": "push", "items": [{**item, "transactionId": f"t{number}"}]}))
                loop.turn(0)
                if number % 20 == 0:
                    peak = max(peak, server.rss())
            else:
                loop.turn(min(due - time.monotonic(), 0.05) if due > time.monotonic() else 0)
        loop.run(lambda: len(consumer.came) >= count, at_most=300)
        late = [at - sent[txn] for txn, at in consumer.came][count // 10 :]
        if stuck is not None and (left := begin + STUCK_SECONDS - time.monotonic()) > 0:
            loop.run_for(left)
        ended = stuck is not None and stuck.ended()
    return {"p50_ms": percentile(late, 0.5), "p99_ms": percentile(late, 0.99), "grown": peak - before, "ended": ended}

"""The SDK's streams against a server that is killed under them, and comes up again on the same data directory.

A worker reports a failed cycle and goes on; what it had leased comes again when the lease is over.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from queen import Queen
from queen.streams import Stream, token_bucket_gate
from queen.streams.runtime.register import StreamsConfigHashMismatch

PARTITIONS = ("p0", "p1", "p2", "p3")
USERS = ("ann", "bob", "cleo")
WAVE = 40
"""Messages of one partition in one wave."""
LATER = 10_000_000
"""An event time, in milliseconds, at which every window is over."""

Total = dict[tuple[Any, ...], list[int]]


def _url(queen: Queen) -> str:
    url: str = queen._config["urls"][0]
    return url


def _server_pid() -> int:
    return int(Path(os.environ["SERVER_PIDFILE"]).read_text())


async def _kill_the_server(queen: Queen) -> None:
    """As a power cut would have it; somebody starts it again. Returns when it answers."""
    old = _server_pid()
    os.kill(old, signal.SIGKILL)
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        while True:
            await asyncio.sleep(0.05)
            try:
                answer = await client.get(f"{_url(queen)}/health")
            except httpx.TransportError:
                continue
            if answer.status_code == 200 and _server_pid() != old:
                return


async def _until(condition: Callable[[], Awaitable[bool]]) -> None:
    while not await condition():  # noqa: ASYNC110 (it is the server's state)
        await asyncio.sleep(0.05)


async def _drained(queen: Queen, queue: str) -> list[Any]:
    """Everything that a queue has, in the order of its partitions."""
    found: list[Any] = []
    while messages := await queen.queue(queue).batch(500).partitions(8).wait(False).commit_on_delivery().pop():
        found += messages
    return found


def _events(wave: int) -> dict[str, list[dict[str, Any]]]:
    """One event in 500 ms of each partition; every user pauses for 10 s between the waves."""
    start = wave * (WAVE * 500 + 10_000)
    return {
        partition: [
            {"t": start + 500 * n, "user": USERS[(n + place) % 3], "amount": 100 * wave + n + place}
            for n in range(WAVE)
        ]
        for place, partition in enumerate(PARTITIONS)
    }


async def _push(queen: Queen, queue: str, events: dict[str, list[dict[str, Any]]]) -> None:
    for partition, rows in events.items():
        await queen.queue(queue).partition(partition).push([{"data": row} for row in rows])


def _add(total: Total, key: tuple[Any, ...], amount: int) -> None:
    total.setdefault(key, [0, 0])
    total[key][0] += 1
    total[key][1] += amount


def _sum(acc: list[int], row: dict[str, Any]) -> list[int]:
    return [acc[0] + 1, acc[1] + row["amount"]]


def _emit(acc: Any, ctx: dict[str, Any]) -> dict[str, Any]:
    return {"partition": ctx["partition"], "key": ctx["key"], "start": ctx["windowStart"], "acc": acc}


def _time(message: dict[str, Any]) -> int:
    at: int = message["data"]["t"]
    return at


def _user(message: dict[str, Any]) -> str:
    user: str = message["data"]["user"]
    return user


def _expected(waves: int) -> dict[str, Total]:
    """What each query comes to, by the plainest means: [count, sum] by (partition, user or none, start)."""
    totals: dict[str, Total] = {"sliding": {}, "session": {}, "keyed": {}}
    for wave in range(waves):
        for partition, rows in _events(wave).items():
            first: dict[str, int] = {}
            for row in rows:
                at, user, amount = row["t"], row["user"], row["amount"]
                for start in (at // 2000 * 2000, at // 2000 * 2000 - 2000):
                    _add(totals["sliding"], (partition, None, start), amount)
                _add(totals["session"], (partition, user, first.setdefault(user, at)), amount)
                _add(totals["keyed"], (partition, user, at // 10_000 * 10_000), amount)
    return totals


@contextmanager
def _cut_requests() -> Iterator[list[str]]:
    """The requests of this process that got no answer, as they happen. The SDK repeats them by itself, so it need not
    report one."""
    cut: list[str] = []
    send = httpx.AsyncClient.send

    async def counted(client: httpx.AsyncClient, request: httpx.Request, **options: Any) -> httpx.Response:
        try:
            return await send(client, request, **options)
        except httpx.TransportError as error:
            if request.url.path != "/health":  # that is the scenario, which waits for the server
                cut.append(f"{request.method} {request.url.path}: {error!r}")
            raise

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(httpx.AsyncClient, "send", counted)
        yield cut


async def windows_and_reductions(queen: Queen) -> None:
    """A tumbling, a sliding and a session window and a keyed aggregate over one source, through two kills: every
    window comes out once, and its count and sum are exact."""
    url = _url(queen)
    await queen.queue("w-source").config({"leaseTime": 2}).create()
    options = {
        "url": url,
        "batch_size": 7,
        "max_wait_millis": 200,
        "subscription_mode": "all",
    }

    def source() -> Stream:
        return Stream.from_(queen.queue("w-source"))

    sliding = source().window_sliding(size=4, slide=2, event_time=_time, idle_flush_ms=0).reduce(_sum, [0, 0])
    session = source().key_by(_user).window_session(gap=5, event_time=_time, idle_flush_ms=0).reduce(_sum, [0, 0])
    keyed = source().key_by(_user).window_tumbling(seconds=10, event_time=_time, idle_flush_ms=0)
    counted = keyed.aggregate({"count": lambda row: 1, "sum": lambda row: row["amount"]})
    # by the broker's clock, and closed by the idle flush: a cycle without an ack
    tumbling = source().window_tumbling(seconds=1, idle_flush_ms=200).reduce(_sum, [0, 0])
    runners = [
        await stream.map(_emit).to(queen.queue(f"w-{name}")).run(query_id=f"w-{name}", **options)
        for name, stream in (
            ("sliding", sliding),
            ("session", session),
            ("keyed", counted),
            ("tumbling", tumbling),
        )
    ]

    async def progress(cycles: int) -> None:
        async def far_enough() -> bool:
            return all(runner.metrics()["cyclesTotal"] >= cycles for runner in runners)

        await _until(far_enough)

    await _push(queen, "w-source", _events(0))
    await progress(8)
    with _cut_requests() as cut:
        await _kill_the_server(queen)
        await _push(queen, "w-source", _events(1))
        await progress(24)
        await _kill_the_server(queen)
        await _push(queen, "w-source", _events(2))
    closing = {"t": LATER, "user": "nobody", "amount": 0}
    await _push(queen, "w-source", {partition: [closing] for partition in PARTITIONS})

    async def consumed() -> bool:
        return all([await _pending(queen, "w-source", f"streams.{runner.query_id}") == 0 for runner in runners])

    await _until(consumed)
    await asyncio.sleep(1.5)  # the last window of the clock, and its flush
    for runner in runners:
        await runner.stop()
    assert cut, "the kills were felt"
    expected = _expected(3)
    for name, total in expected.items():
        rows = [m["data"] for m in await _drained(queen, f"w-{name}") if m["data"]["start"] < LATER - 10_000]
        found: Total = {}
        for row in rows:
            key = (row["partition"], None if name == "sliding" else row["key"], row["start"])
            acc = row["acc"]
            assert key not in found, f"{name}: a window came out twice"
            found[key] = [acc["count"], acc["sum"]] if name == "keyed" else acc
        assert found == total, name
    by_partition: Counter[str] = Counter()
    sums: Counter[str] = Counter()
    for message in await _drained(queen, "w-tumbling"):
        by_partition[message["data"]["partition"]] += message["data"]["acc"][0]
        sums[message["data"]["partition"]] += message["data"]["acc"][1]
    assert by_partition == dict.fromkeys(PARTITIONS, 3 * WAVE + 1)
    for partition in PARTITIONS:
        assert sums[partition] == sum(row["amount"] for wave in range(3) for row in _events(wave)[partition])


async def _pending(queen: Queen, queue: str, group: str) -> int:
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        answer = await client.get(f"{_url(queen)}/api/v1/resources/queues/{queue}/depth", params={"group": group})
    pending: int = answer.json()["pending"]
    return pending


async def a_gate(queen: Queen) -> None:
    """A token bucket of 5, refilled by 5 a second, before 30 messages, with `leaseTime` 2 and a kill: each gets
    through once, in order, never faster than the bucket allows."""
    await queen.queue("g-source").config({"leaseTime": 2}).create()
    await queen.queue("g-source").push([{"data": {"n": n}} for n in range(30)])
    started = time.time()
    gate = token_bucket_gate(capacity=5, refill_per_sec=5)
    stream = Stream.from_(queen.queue("g-source")).gate(gate).to(queen.queue("g-sink"))
    runner = await stream.run(query_id="g", url=_url(queen), max_wait_millis=200)

    async def first_through() -> bool:
        return runner.metrics().get("gateAllowsTotal", 0) >= 10

    await _until(first_through)
    await _kill_the_server(queen)

    async def consumed() -> bool:
        return await _pending(queen, "g-source", "streams.g") == 0

    await _until(consumed)
    await runner.stop()
    assert runner.metrics()["gateDenialsTotal"] > 0
    messages = await _drained(queen, "g-sink")
    assert [message["data"]["n"] for message in messages] == list(range(30))
    assert time.time() - started > 25 / 5
    assert (await queen.queue("g-source").dlq().get())["total"] == 0


async def registration(queen: Queen) -> None:
    """Another shape under the same name is refused with the SDK's own error; a reset takes it."""

    async def run(seconds: int, reset: bool = False) -> None:
        stream = Stream.from_(queen.queue("r-source")).window_tumbling(seconds=seconds).reduce(_sum, [0, 0])
        options = {"url": _url(queen), "reset": reset, "max_wait_millis": 50}
        runner = await stream.to(queen.queue("r-sink")).run(query_id="r", **options)
        await runner.stop()

    await run(1)
    await run(1)
    with pytest.raises(StreamsConfigHashMismatch, match="reset"):
        await run(2)
    await run(2, reset=True)


async def a_sink_is_drained_while_the_stream_runs(queen: Queen) -> None:
    """By a fresh group, with `batch(1)` and no subscription mode: it gets everything, in order."""
    stream = Stream.from_(queen.queue("d-source")).filter(lambda message: message["data"]["n"] % 2 == 0)
    doubled = stream.map(lambda message: {"n": 2 * message["data"]["n"]}).to(queen.queue("d-sink"))
    runner = await doubled.run(query_id="d", url=_url(queen), max_wait_millis=200)
    seen: list[int] = []
    for n in range(20):
        await queen.queue("d-source").push([{"data": {"n": n}}])
    while len(seen) < 10:
        for message in await queen.queue("d-sink").group("fresh").batch(1).timeout_millis(1000).pop():
            seen.append(message["data"]["n"])
            assert (await queen.ack(message, True, {"group": "fresh"}))["success"]
    await runner.stop()
    assert seen == [2 * n for n in range(0, 20, 2)]
    assert runner.metrics()["errorsTotal"] == 0

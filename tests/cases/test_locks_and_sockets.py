"""Locks, timers and sockets (A37, A40, A49)."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Protocol

import pytest
import trio
from socket_peer import House, Peer
from trio.testing import MockClock

from queen_actors import connect
from queen_actors.api import Request

# -- A37 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["locks", "lock.acquire"])
async def test_a37_the_same_owner_gets_the_same_permit(hall: House, autojump_clock: MockClock, op: str) -> None:
    """The answer to an acquire was lost, and its retry must not be told that the lock is held by itself."""

    async def acquire(peer: Peer, owner: str) -> dict[str, Any]:
        fields = {"name": "job", "ttlSeconds": 30, "owner": owner}
        if op == "locks":
            reply = await peer.ask("locks", operations=[{"op": "acquire", **fields}])
            (answer,) = reply["body"]["results"]
        else:
            answer = (await peer.ask("lock.acquire", **fields))["body"]
        found: dict[str, Any] = answer
        return found

    peer, other = await hall.peer(), await hall.peer()
    first, again = await acquire(peer, "o1"), await acquire(other, "o1")
    assert first["acquired"]
    assert again["acquired"]
    assert again["already"]
    assert (again["token"], again["slot"]) == (first["token"], first["slot"])
    refused = await acquire(other, "o2")
    assert (refused["acquired"], refused["reason"]) == (False, "held")


# -- A40 ---------------------------------------------------------------------------------------------------------------

REPORTER = """
import sys
from queen_actors import LockNotHeldError, TransactionError, blocking

url, name, frozen, ttl = sys.argv[1:]
told = {"auto_renew": False, "clock": lambda: 0.0} if frozen == "frozen" else {}
with blocking.connect(url) as queen:
    lock = queen.lock("daily-report", ttl_seconds=int(ttl), **told)
    if not lock.acquire(wait=60):
        sys.exit("never")
    print("held", flush=True)
    sys.stdin.readline()  # the report is written
    try:
        committed = (
            queen.transaction()
            .guard(lock)
            .queue("reports")
            .push([{"transactionId": "report-2026-10-22", "data": name}])
            .kv.put("reports", name, "2026-10-22", forever=True)
            .timer("reminders").key(name).payload(name).after("1h").schedule()
            .commit()
        )
        print("committed" if committed else committed.reason, flush=True)
    except LockNotHeldError:
        print("not held", flush=True)
    except TransactionError as error:
        print(error.reason, flush=True)
    finally:
        lock.release()
"""


class Server(Protocol):
    """What is needed of the real server."""

    url: str


class Reporter:
    """One of the processes that want to write the report."""

    def __init__(self, process: trio.Process) -> None:
        self.pid = process.pid
        self._process = process
        self._heard = b""

    async def says(self) -> str:
        """Its next line."""
        assert self._process.stdout is not None
        with trio.fail_after(90):
            while b"\n" not in self._heard:
                part = await self._process.stdout.receive_some()
                assert part, "it has ended"
                self._heard += part
        line, _, self._heard = self._heard.partition(b"\n")
        return line.decode()

    async def kill(self) -> None:
        """End it, whatever it does."""
        self._process.kill()
        await self._process.wait()

    async def go_on(self) -> str:
        """The report is written: what became of it."""
        assert self._process.stdin is not None
        await self._process.stdin.send_all(b"\n")
        return await self.says()


@asynccontextmanager
async def reporters(server: Server, first: str) -> AsyncIterator[list[Reporter]]:
    """Three of them, the first of which holds the lock; the others stand in line."""
    ours = {key: value for key, value in os.environ.items() if "proxy" not in key.lower()}
    found: list[Reporter] = []
    try:
        for name in "abc":
            told = [server.url, name, *((first, "1") if name == "a" else ("own", "60"))]
            command = [sys.executable, "-c", REPORTER, *told]
            pipe = subprocess.PIPE
            found.append(Reporter(await trio.lowlevel.open_process(command, stdin=pipe, stdout=pipe, env=ours)))
            if name == "a":
                assert await found[0].says() == "held"
        yield found
    finally:
        with trio.CancelScope(shield=True):
            for one in found:
                await one.kill()


@pytest.mark.parametrize(("clock", "verdict"), [("frozen", "kv_precondition"), ("own", "not held")])
async def test_a40_the_report_is_written_once(server: Server, clock: str, verdict: str) -> None:
    """Three processes run the seed's daily report; the one that holds the lock is stopped past its lifetime and then
    goes on. One report is there, and nothing of the stale one, whose clock may stand still with it: its push, its key
    and its timer are refused together."""
    async with reporters(server, clock) as (a, b, c):
        os.kill(a.pid, signal.SIGSTOP)
        second, third = await first_of(b, c)
        os.kill(a.pid, signal.SIGCONT)
        assert await a.go_on() == verdict
        assert await second.go_on() == "committed"
        assert await third.says() == "held"
        assert await third.go_on() == "duplicate"
    async with connect(server.url) as queen:
        (report,) = await queen.queue("reports").pop(batch=10)
        assert report.data in ("b", "c")
        assert [row.key for row in (await queen.kv.get_many("reports", list("abc"))).rows] == [report.data]
        assert [row.timer_key for row in await queen.timers.list_all("reminders")] == [report.data]


async def first_of(b: Reporter, c: Reporter) -> tuple[Reporter, Reporter]:
    """Who is told that it holds the lock, and who waits on."""
    order: list[Reporter] = []

    async def listen(one: Reporter) -> None:
        assert await one.says() == "held"
        order.append(one)
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(listen, b)
        nursery.start_soon(listen, c)
    return order[0], c if order[0] is b else b


# -- A49 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["timers", "transaction"])
async def test_a49_an_idle_broker_fires_on_time(hall: House, autojump_clock: MockClock, how: str) -> None:
    """Nothing happened for 5 s; a timer of 500 ms, scheduled by itself or in a transaction, wakes a long poll and a
    subscription in under 800 ms."""
    consumer, producer = await hall.peer(), await hall.peer()
    await consumer.ask("subscribe", sub="s", queue="q", group="socket")
    polled: list[tuple[float, Any]] = []

    async def poll() -> None:
        query = b"wait=true&timeout=60000&consumerGroup=poll"
        reply = await hall.api.handle(Request("GET", b"/api/v1/pop/queue/q", query, {}, b""))
        polled.append((trio.current_time(), json.loads(reply.body)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(poll)
        await trio.sleep(5)
        payload = base64.b64encode(b'"due"').decode()
        timer = {"op": "schedule", "queue": "q", "timerKey": "k", "payload": payload, "delayMs": 500, "txn": "t"}
        began = trio.current_time()
        if how == "timers":
            assert (await producer.ask("timers", operations=[timer]))["ok"]
        else:
            assert (await producer.ask("transaction", operations=[], timers=[timer]))["body"]["success"]
        event = await consumer.event("messages")
        assert 0.5 <= trio.current_time() - began < 0.8
    assert [message["data"] for message in event["messages"]] == ["due"]
    ((at, body),) = polled
    assert 0.5 <= at - began < 0.8
    assert [message["data"] for message in body["messages"]] == ["due"]

"""A request of the fast lane that waits for its group commit: it is decided, and nothing of it has been told."""

from __future__ import annotations

import json
from functools import partial

import pytest
import serve_kit
import trio
import trio.testing
from serve_kit import Peer, Running, server

from queen_actors.actors.log import Deferral, Log
from queen_actors.actors.overview import Overview
from queen_actors.domain.effects import Counters, Entry
from queen_actors.domain.kv import Put
from queen_actors.errors import StorageFull
from queen_actors.serve.deferring import durable
from queen_actors.storage.memory import Faults, MemoryStore

SLOW = 2.0
"""Seconds that a commit takes."""
POP = "/api/v1/pop/queue/q?partitions=1"


@pytest.fixture(autouse=True)
def lane() -> str:
    """The default one is the fast one."""
    return "fast"


async def push(peer: Peer, number: int) -> int:
    status, _ = await peer.json("POST", "/api/v1/push", {"items": [{"queue": "q", "payload": number}]})
    return status


async def answered(house: Running, route: str) -> dict[int, int]:
    """How many requests of this route were answered with each status, as the metrics have it."""
    _, _, body = await (await house.connect()).request("GET", "/metrics/prometheus")
    found: dict[int, int] = {}
    for line in body.decode().splitlines():
        if line.startswith("queen_http_requests_total{") and f'route="{route}"' in line:
            found[int(line.partition('status="')[2].partition('"')[0])] = round(float(line.rpartition(" ")[2]))
    return found


async def test_a_refused_commit_is_told_in_the_place_of_the_reply(autojump_clock: trio.testing.MockClock) -> None:
    """507 for all that was pipelined behind it too, and the metrics count what was told; the connection goes on."""
    async with server(memory=True) as house:
        peer = await house.connect()
        assert await push(peer, 1) == 201
        house.faults.latency, house.faults.full = SLOW, True
        statuses = [await push(peer, 2)]
        house.faults.latency, house.faults.full = 0, False
        await trio.sleep(5)
        statuses.append(await push(peer, 3))
        assert statuses == [507, 201]
        assert await answered(house, "/api/v1/push") == {201: 2, 507: 1}


PINNED = "/api/v1/pop/queue/q/partition/p?consumerGroup=g&subscriptionMode="
LONG = {
    "group": f"{PINNED}new&wait=true&timeout=25000",
    "autoAck": f"{PINNED}all&wait=true&timeout=25000&autoAck=true",
    "fetch": "/api/v1/fetch",
}
"""What waits up to 25 s for a message."""


@pytest.mark.parametrize("woken_by", ["p", "another"])
@pytest.mark.parametrize("kind", LONG)
async def test_who_waits_is_not_refused_with_the_push_that_woke_him(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, kind: str, woken_by: str
) -> None:
    """A long poll waits on as of when it came, and is answered, and counted, once; a wait that ends on a full disk ends
    in its time with nothing."""
    monkeypatch.setattr(serve_kit, "MemoryStore", partial(MemoryStore, True))
    answers: list[tuple[int, bytes, float]] = []
    async with server(memory=True) as house:
        waiting, other = await house.connect(), await house.connect()

        async def put(partition: str, payload: int) -> int:
            item = {"queue": "q", "partition": partition, "payload": payload}
            return (await other.json("POST", "/api/v1/push", {"items": [item]}))[0]

        async def poll(offset: int) -> None:
            entry = {"queue": "q", "partition": "p", "offset": offset}
            fetch = {"entries": [entry], "maxWaitMs": 25000, "minBytes": 1} if kind == "fetch" else None
            status, _, body = await waiting.request("GET" if fetch is None else "POST", LONG[kind], fetch)
            answers.append((status, body, trio.current_time()))

        assert await put("p", 1) == 201
        if kind == "autoAck":
            assert (await other.request("GET", f"{PINNED}all&autoAck=true"))[0] == 200
        async with trio.open_nursery() as nursery:
            nursery.start_soon(poll, 1)
            await trio.sleep(1)
            house.faults.full = True
            assert await put(woken_by, 2) == 507
            await trio.sleep(3)
            assert answers == []
            house.faults.full = False
            await trio.sleep(3)
            assert await put("p", 3) == 201
        ((status, body, _),) = answers
        assert status == 200
        assert b'"payload":3' in body or b'"data":3' in body
        assert b":2," not in body.replace(b'"highWatermark":2', b"")
        route = LONG[kind].partition("?")[0].replace("/q/partition/p", "/*queue/partition/*partition")
        assert (await answered(house, route))[200] == 1 + (kind == "autoAck")
        answers.clear()
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(poll, 2)
            await trio.sleep(1)
            house.faults.full = True
            assert await put("p", 4) == 507
        assert answers[0][2] == pytest.approx(began + 25, abs=0.1)


async def test_a_call_that_took_too_long_was_not_answered(autojump_clock: trio.testing.MockClock) -> None:
    """The metrics do not count the reply that nobody was told."""
    async with server(memory=True) as house:
        house.faults.latency = 1000
        assert await push(await house.connect(), 1) == 503
        house.faults.latency = 0
        assert await answered(house, "/api/v1/push") == {}


@pytest.mark.parametrize("memory", [True, False])
async def test_who_hangs_up_during_the_commit_of_his_pop_leases_nothing(memory: bool) -> None:
    """Its messages are the next one's, long before the lease would have been over."""
    async with server(memory=memory) as house:
        other = await house.connect()
        assert await push(other, 1) == 201
        house.faults.latency = SLOW
        gone = await house.connect()
        await gone.send(f"GET {POP} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        await trio.sleep(0.05)
        await gone.stream.aclose()
        await trio.sleep(1)
        house.faults.latency = 0
        with trio.fail_after(20):
            status, reply = await other.json("GET", f"{POP}&wait=true&timeout=10000")
        assert (status, len(reply["messages"])) == (200, 1)


async def test_what_the_kernel_does_not_take_at_once_follows() -> None:
    """A claim of several megabytes, told at its commit; and the connection goes on behind it."""
    text = "x" * 3_000_000
    async with server() as house:
        peer = await house.connect()
        items = [{"queue": "q", "payload": text}, {"queue": "q", "payload": text}]
        assert (await peer.json("POST", "/api/v1/push", {"items": items}))[0] == 201
        status, _, body = await peer.request("GET", f"{POP}&batch=2")
        assert (status, [message["data"] for message in json.loads(body)["messages"]]) == (200, [text, text])
        assert await push(peer, 1) == 201


async def test_pops_behind_one_another_let_others_run() -> None:
    """Those that find nothing, and wait for nothing, are not all answered in one turn of the event loop."""
    pops, turns = 200, 0
    async with server() as house:
        peer = await house.connect()
        assert await push(peer, 1) == 201
        assert (await peer.request("GET", f"{POP}&autoAck=true"))[0] == 200
        async with trio.open_nursery() as nursery:

            async def count() -> None:
                nonlocal turns
                while True:
                    await trio.lowlevel.checkpoint()
                    turns += 1

            await peer.send(f"GET {POP} HTTP/1.1\r\nhost: x\r\n\r\n".encode() * pops)
            nursery.start_soon(count)
            answers = b""
            while answers.count(b"HTTP/1.1 204") < pops:
                answers += await peer.stream.receive_some(65536)
            nursery.cancel_scope.cancel()
        assert turns >= pops // 2


async def test_a_stop_during_a_commit_makes_its_answer_the_last(autojump_clock: trio.testing.MockClock) -> None:
    """It says so, although it did not when it was decided."""
    async with server(memory=True) as house:
        peer = await house.connect()
        house.faults.latency = SLOW
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                status, headers, _ = await peer.request(
                    "POST", "/api/v1/push", {"items": [{"queue": "q", "payload": 1}]}
                )
                assert (status, headers["connection"]) == (201, "close")

            nursery.start_soon(ask)
            await trio.sleep(SLOW / 2)
            house.shutdown.set()
        assert await peer.end() == b""


async def test_it_leaves_a_turn_before_its_task_goes_on(autojump_clock: trio.testing.MockClock) -> None:
    """In the step that ends the commit; a refusal is raised, and nothing leaves."""
    faults = Faults()
    log = Log(MemoryStore(faults=faults))
    order: list[str] = []
    log.on_commit.append(lambda position: order.append(f"commit {position}"))

    async def wait(later: Deferral) -> None:
        later.log, later.position = log, log.append(Entry(1, Counters(), ()))
        await durable(later, lambda: order.append("left"))
        order.append("went on")

    await log._store.open(_Nothing())  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.run)
        await wait(Deferral())
        assert order == ["commit 1", "left", "went on"]
        faults.full = True
        with pytest.raises(StorageFull):
            await wait(Deferral())
        assert order[3:] == []


async def test_somebody_firm_is_told_although_he_is_cancelled(autojump_clock: trio.testing.MockClock) -> None:
    """What was committed at its delivery is nobody else's; anybody else leaves at once, and nothing leaves for him."""
    log = Log(MemoryStore(faults=Faults(latency=SLOW)))
    await log._store.open(_Nothing())  # type: ignore[arg-type]
    for firm, left in ((False, []), (True, [True])):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(log.run)
            later, found = Deferral(), []
            later.log, later.position, later.firm = log, log.append(Entry(1, Counters(), ())), firm
            with trio.CancelScope() as scope:
                scope.cancel()
                await durable(later, lambda found=found: found.append(True))  # type: ignore[misc]
            await trio.sleep(2 * SLOW)
            assert found == left
            nursery.cancel_scope.cancel()


class _Nothing:
    """A recovery of an empty log."""

    def restore(self, effects: object) -> None: ...

    def recent_since(self) -> int:
        return 0

    def sealed(self, runs: object) -> None: ...

    def recent(self, messages: object) -> None: ...

    def entry(self, entry: object) -> None: ...


async def test_a_get_is_not_refused_with_the_write_it_saw(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waits for the write any more when it is refused: the read is answered from what there is, and counted
    once, and the connection goes on."""
    monkeypatch.setattr(serve_kit, "MemoryStore", partial(MemoryStore, True))
    async with server(memory=True) as house:
        peer = await house.connect()

        async def get(key: str) -> tuple[int, object]:
            status, body = await peer.json("POST", "/api/v1/kv", [{"op": "get", "ns": "n", "key": key}])
            return status, body["results"][0]["found"]

        assert await get("k") == (200, False)
        house.faults.latency = SLOW
        for key in ("before", "k"):  # the second waits for the commit of the first
            with trio.move_on_after(0.1):
                await house.broker.kv([Put("n", key, b"1", None)])
        house.faults.full = True
        assert await get("k") == (200, False)
        house.faults.latency, house.faults.full = 0, False
        await trio.sleep(5)
        assert await get("before") == (200, True)
        assert (await answered(house, "/api/v1/kv")) == {200: 3}


async def test_an_overview_is_not_refused_between_its_looks(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its first look saw is refused before the second one is over: it is made again, and counted once."""
    monkeypatch.setattr(serve_kit, "MemoryStore", partial(MemoryStore, True))
    lags = Overview._lags

    async def slow(self: Overview, group: str | None) -> object:
        await trio.sleep(3)
        return await lags(self, group)

    async with server(memory=True) as house:
        peer = await house.connect()
        assert await push(peer, 1) == 201
        monkeypatch.setattr(Overview, "_lags", slow)
        house.faults.latency = SLOW
        for key in ("before", "k"):
            with trio.move_on_after(0.1):
                await house.broker.kv([Put("n", key, b"1", None)])
        house.faults.full = True
        status, body = await peer.json("GET", "/api/v1/resources/overview")
        assert status == 200
        assert body["queues"] == 1
        house.faults.latency, house.faults.full = 0, False
        await trio.sleep(5)
        assert await answered(house, "/api/v1/resources/overview") == {200: 1}

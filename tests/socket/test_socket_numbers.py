"""websocket.md: the numbers that it states, as a client meets them when nobody has said anything else."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from socket_peer import House, acks, house, items, narrow_peer
from test_socket_connecting import authorize

from queen_actors.config import Settings
from queen_actors.domain.cursor import PopReply, PopRequest
from queen_actors.storage.memory import Faults

VIRTUAL_TIME = True
MEGABYTE = "x" * 1_000_000


async def push(hall: House, *payloads: Any, queue: str = "q", partition: str = "p") -> None:
    peer = await hall.peer()
    assert (await peer.ask("push", items=items(queue, *payloads, partition=partition)))["ok"]
    await peer.close()


def told(event: dict[str, Any]) -> list[Any]:
    return [message["data"] for message in event["messages"]]


# -- what a subscription does that says nothing --------------------------------------------------------------------


async def test_a_delivery_has_100_messages_by_default(hall: House) -> None:
    """However much credit there is; the next come when these are settled."""
    await push(hall, *range(250))
    peer = await hall.peer()
    await peer.ask("subscribe", sub="s", queue="q", credit=1000)
    for first in (0, 100, 200):
        event = await peer.event("messages")
        assert told(event) == list(range(first, min(first + 100, 250)))
        await peer.ask("ack", acknowledgments=acks(event, -1))


@pytest.mark.parametrize(("asked", "expected"), [({}, 16), ({"partitions": 3}, 3)])
async def test_a_claim_is_of_16_partitions_by_default(
    hall: House, monkeypatch: pytest.MonkeyPatch, asked: dict[str, int], expected: int
) -> None:
    """So many at once, each under a lease of its own, in a frame of its own; then it claims again."""
    for number in range(40):
        await push(hall, number, partition=f"p{number}")
    claimed: list[int] = []
    pops = hall.broker.pops

    async def watched(request: PopRequest, messages: int) -> list[PopReply]:
        replies = await pops(request, messages)
        claimed.extend(len(reply.claims) for reply in replies)
        return replies

    monkeypatch.setattr(hall.broker, "pops", watched)
    peer = await hall.peer()
    await peer.ask("subscribe", sub="s", queue="q", **asked)
    found = [await peer.event("messages") for _ in range(40)]
    assert sorted(number for event in found for number in told(event)) == list(range(40))
    assert max(claimed) == expected
    assert len({event["partitionId"] for event in found}) == 40


async def test_a_lease_is_of_60_seconds_by_default() -> None:
    """So long it lasts when nothing extends it."""
    async with house(Settings(data=None, heartbeat_seconds=600)) as hall:
        await push(hall, 1)
        peer = await hall.peer(answers_pings=False)
        began = trio.current_time()
        await peer.ask("subscribe", sub="s", queue="q")
        event = await peer.event("messages")
        assert event["leaseId"], "without `autoAck`, which is off by default, there is one"
        lost = await peer.expect(lambda message: message.get("event") == "lease", seconds=100)
        assert (lost["leaseId"], lost["reason"]) == (event["leaseId"], "expired")
        assert 60 <= trio.current_time() - began < 61


async def test_without_a_group_consumers_compete(hall: House) -> None:
    """`group` absent is the queue's own cursor: the one of a pop without a group."""
    await push(hall, 1, 2)
    peer, other = await hall.peer(), await hall.peer()
    await peer.ask("subscribe", sub="s", queue="q")
    event = await peer.event("messages")
    await push(hall, 3)
    assert (await other.ask("pop", queue="q"))["status"] == 204
    await other.ask("ack", acknowledgments=acks(event))
    assert told(await peer.event("messages")) == [3]


async def test_a_task_alone_is_a_source(hall: House) -> None:
    """`queue`, or `namespace`, or `task`: any of them will do."""
    peer = await hall.peer()
    await peer.ask("configure", queue="q", task="mail")
    await push(hall, 1)
    await peer.ask("subscribe", sub="s", task="mail")
    assert told(await peer.event("messages")) == [1]


# -- connections ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seconds", "kept"), [(4.9, True), (5.1, False)])
async def test_a_first_frame_has_5_seconds(seconds: float, kept: bool) -> None:
    """Whatever else was said meanwhile; a token that comes in time is in time."""
    async with house(authorize=authorize) as hall:
        peer = await hall.peer()
        await trio.sleep(seconds - 1)
        assert (await peer.ask("push", items=[]))["status"] == 401
        await trio.sleep(1)
        if kept:
            assert (await peer.ask("auth", token="good"))["ok"]
            await trio.sleep(30)
            assert (await peer.ask("push", items=[]))["ok"]
        else:
            assert peer.ended.is_set()
            assert peer.closed is not None
            assert peer.closed[0] == 4401


async def test_4_mib_wait_for_a_peer_and_no_more(hall: House) -> None:
    """Of messages of a megabyte for a peer that takes nothing: as many are claimed as 4 MiB, and what the kernel and
    the claim that passes the bound have."""
    for number in range(12):
        await push(hall, MEGABYTE, partition=f"p{number}")
    slow, line = await narrow_peer(hall, 1)
    await slow.say({"op": "subscribe", "sub": "s", "queue": "q", "partitions": 1})
    await trio.sleep(5)
    assert 5 <= hall.broker.statistics().leases <= 6
    line.set_rate(1e9)
    for _ in range(12):
        await slow.event("messages")


async def test_a_tail_and_a_watch_read_nothing_ahead(hall: House) -> None:
    """A tail of a peer that takes nothing has read no more than 4 MiB ahead, and resumes where it stopped; a watch has
    kept the latest value only."""
    slow, line = await narrow_peer(hall, 1e9)
    await slow.ask("tail", sub="t", queue="q")
    await slow.ask("watch", watch="w", ns="n", key="k")
    line.set_rate(1)
    writer = await hall.peer()
    for number in range(12):
        await writer.ask("push", items=items("q", f"{number}:{MEGABYTE}"))
    for number in range(3000):
        put = {"op": "put", "ns": "n", "key": "k", "value": number, "forever": True}
        await writer.say({"op": "kv", "operations": [put]})
    await writer.ask("kv", operations=[{"op": "get", "ns": "n", "key": "k"}])
    line.set_rate(1e9)
    found: list[int] = []
    while len(found) < 12:
        found += [int(text.partition(":")[0]) for text in told(await slow.event("messages"))]
    assert found == list(range(12))
    changes: list[dict[str, Any]] = []
    coalesced = False
    while not changes or changes[-1]["value"] != 2999:
        event = await slow.event("kv")
        changes += event["changes"]
        coalesced |= event.get("coalesced", False)
    assert coalesced
    assert len(changes) < 2000


# -- the end -------------------------------------------------------------------------------------------------------


async def test_what_is_in_flight_is_answered_before_the_server_goes() -> None:
    """A write whose commit takes seconds gets its ok, and the close comes behind it; nothing new is delivered."""
    faults = Faults()
    async with house(faults=faults) as hall:
        peer, consumer = await hall.peer(), await hall.peer()
        await consumer.ask("subscribe", sub="s", queue="q")
        faults.latency = 3.0
        await peer.say({"id": 1, "op": "push", "items": items("q", 1)})
        await trio.sleep(0.5)
        hall.shutdown.set()
        await peer.ended.wait()
        assert peer.received == [{"id": 1, "ok": True, "status": 201, "body": peer.received[0]["body"]}]
        assert peer.closed == (1001, "going away")
        await consumer.ended.wait()
        assert consumer.received == []
        faults.latency = 0.0


async def test_the_grace_period_is_10_seconds(hall: House) -> None:
    """By default; a peer that neither reads nor closes has no more than that."""
    await push(hall, MEGABYTE)
    stuck, _ = await narrow_peer(hall, 0, answers_pings=False)
    await stuck.say({"op": "subscribe", "sub": "s", "queue": "q"}, {"id": 1, "op": "pop", "queue": "x", "wait": True})
    await trio.sleep(1)
    hall.shutdown.set()
    began = trio.current_time()
    with trio.move_on_after(60):
        while hall.sockets.open:  # noqa: ASYNC110
            await trio.sleep(0.1)
    assert 0.5 < trio.current_time() - began <= 10
    assert hall.broker.statistics().leases == 0

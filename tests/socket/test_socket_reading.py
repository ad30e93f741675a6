"""A connection that reads its own socket: nothing of it is kept, lost, judged wrongly or told out of order."""

from __future__ import annotations

import gc
from collections import Counter
from typing import Any

import pytest
import trio
from socket_peer import House, frame, house, items, narrow_peer

from queen_actors.config import Settings
from queen_actors.errors import StorageFailed
from queen_actors.serve.link import Link
from queen_actors.serve.outbox import Outbox
from queen_actors.serve.pipeline import Pipeline
from queen_actors.serve.session import ROUND, Session
from queen_actors.storage.memory import Faults

VIRTUAL_TIME = True


def put(id: int) -> dict[str, Any]:
    return {"id": id, "op": "kv", "operations": [{"op": "put", "ns": "n", "key": "a", "value": 1, "forever": True}]}


async def test_connections_that_have_ended_are_forgotten(hall: House) -> None:
    """Readers come and go while nothing is written: nothing waits for a commit on their behalf."""

    async def visit() -> None:
        peer = await hall.peer()
        get = {"id": 2, "op": "kv", "operations": [{"op": "get", "ns": "n", "key": "k"}]}
        await peer.say({"id": 1, "op": "watch", "watch": "w", "ns": "n", "key": "k"}, get)
        await peer.reply(2)
        await peer.close()
        await peer.ended.wait()

    for _ in range(20):
        await visit()
    await trio.sleep(60)
    gc.collect()
    assert sum(isinstance(thing, Session) for thing in gc.get_objects()) <= 1


@pytest.mark.parametrize("how", ["full", "lost"])
@pytest.mark.parametrize("last", ["bad", "get"])
async def test_the_order_of_replies_when_a_commit_is_refused(how: str, last: str) -> None:
    """What is refused together is told in the order in which it was asked."""
    for _ in range(10):
        faults = Faults(latency=0.05)
        replies: list[Any] = []
        try:
            async with house(faults=faults) as hall:
                peer = await hall.peer()
                subscribe = {"id": 1, "op": "subscribe", "sub": "s", "queue": "q", "group": "g"}
                get = {"id": 2, "op": "kv", "operations": [{"op": "get", "ns": "n", "key": "a"}]}
                await peer.say(put(0), subscribe, {"id": 2, "op": "push", "items": 7} if last == "bad" else get)
                if how == "full":
                    faults.full = True
                else:
                    faults.fail = "lost"
                with trio.move_on_after(5):
                    while len(replies) < 3:
                        replies.append(await peer.expect(lambda message: "id" in message))
        except (BaseExceptionGroup, StorageFailed):
            assert how == "lost"  # the broker stops
        assert [reply["id"] for reply in replies] == sorted(reply["id"] for reply in replies)
        assert len(replies) == 3 or how == "lost"


async def test_a_fault_in_telling_always_ends_the_connection(hall: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the commit ends in the very step in which the request is decided."""
    peer = await hall.peer()
    decide = Pipeline.decide

    async def decided_in_time(self: Pipeline, *request: Any) -> None:
        await decide(self, *request)
        log = hall.broker._core.log
        log.committed = log.position
        self._look()

    def broken(*_: object) -> None:
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(Pipeline, "decide", decided_in_time)
    monkeypatch.setattr(Link, "send_now", broken)
    await peer.say(put(1))
    await trio.sleep(5)
    assert peer.ended.is_set()


async def test_pongs_count_for_nothing() -> None:
    """Who only watches, and answers pings for a day, is not taken for a message without an end, and holds nothing."""
    async with house(Settings(data=None, ws_frame_bytes=2048)) as hall:
        peer = await hall.peer()
        assert (await peer.ask("watch", watch="w", ns="n", key="k"))["ok"]
        held = hall.sockets._incoming.held
        await trio.sleep(24 * 3600)
        assert not peer.ended.is_set()
        assert peer.pings > 4000
        assert hall.sockets._incoming.held == held


@pytest.mark.parametrize("kind", ["a ping", "an unknown op", "a bad frame"])
async def test_answers_that_need_no_work_wait_for_room_too(kind: str) -> None:
    """A peer that asks without reading is not asked for more, whatever it asks."""
    gc.collect()
    async with house(Settings(data=None, ws_peer_bytes=100_000)) as hall:
        peer, _ = await narrow_peer(hall, 0)
        id = "i" * 10_000
        message = {
            "a ping": {"op": "ping", "id": id},
            "an unknown op": {"op": "x", "id": id},
            "a bad frame": {"id": id},
        }
        with trio.move_on_after(5):
            for _ in range(2000):
                await peer.say(message[kind])
        await trio.sleep(2)
        assert (
            max(thing.size for thing in gc.get_objects() if isinstance(thing, Outbox) and not thing.finished) < 400_000
        )


async def test_what_came_before_a_break_is_applied(hall: House) -> None:
    """A request waits for a key that is held, another one lies behind it, and the connection breaks: both are done."""
    other, peer = await hall.peer(), await hall.peer()
    await peer.ask("watch", watch="w", ns="x", key="k")
    puts = [{"op": "put", "ns": ns, "key": "a", "value": 1, "forever": True} for ns in ("n", "m")]
    async with hall.broker._core.turns.hold([("kv", "n")]):
        await peer.say(*({"id": number, "op": "kv", "operations": [put]} for number, put in enumerate(puts)))
        await trio.sleep(0.1)
        await trio.aclose_forcefully(peer.stream)
        for value in range(2):  # what is told to it shows that it is gone
            await other.ask("kv", operations=[{"op": "put", "ns": "x", "key": "k", "value": value, "forever": True}])
            await trio.sleep(0.01)
        await trio.sleep(1)
    await trio.sleep(1)
    for ns in ("n", "m"):
        found = await other.ask("kv", operations=[{"op": "get", "ns": ns, "key": "a"}])
        assert found["body"]["results"][0]["found"]


async def test_a_flood_of_refusals_lets_others_run(hall: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many frames come in one read, the event loop has its turn after some of them."""
    peer = await hall.peer()
    turns, said, say = 0, Counter[int](), Session._say

    async def count() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    def counted(self: Session, *words: Any) -> None:
        said[turns] += 1
        say(self, *words)

    monkeypatch.setattr(Session, "_say", counted)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        await peer.raw(frame(1, b'{"op":"x"}') * 3000)
        for _ in range(3000):
            await peer.event("error")
        nursery.cancel_scope.cancel()
    assert said.total() == 3000
    assert max(said.values()) <= 2 * ROUND


async def test_a_half_closed_peer_gets_its_replies() -> None:
    """Everything had come before the end of its stream: it is answered, and nobody waits for a pong."""
    for _ in range(10):
        async with house(faults=Faults(latency=0.05)) as hall:
            other, peer = await hall.peer(), await hall.peer()
            await other.ask("push", items=items("q", "x" * 1_000_000))
            await peer.say(
                {"id": 1, "op": "subscribe", "sub": "s", "queue": "other"},
                {"id": 2, "op": "pop", "queue": "q"},
                {"id": 3, "op": "lock.acquire", "name": "l", "ttlSeconds": 60, "owner": "o"},
            )
            await peer.stream.send_eof()
            await peer.ended.wait()
            assert sorted(message["id"] for message in peer.received if "id" in message) == [1, 2, 3]


async def test_a_slow_peer_is_not_taken_for_dead(hall: House) -> None:
    """30 MB of replies wait for a peer that reads 400 kB a second: the ping that it cannot see yet is no reason to end
    it."""
    pusher = await hall.peer()
    for number in range(10):
        await pusher.ask("push", items=items("q", "x" * 3_000_000, partition=f"p{number}"))
    peer, line = await narrow_peer(hall, 0)
    await peer.say(*[{"id": number, "op": "pop", "queue": "q", "batch": 1} for number in range(10)])
    line.set_rate(400_000)
    await trio.sleep(120)
    assert not peer.ended.is_set()
    assert sum("id" in message for message in peer.received) == 10

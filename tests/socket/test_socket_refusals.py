"""A full disk under connections: what was refused did not happen, and whoever is gone holds nothing (I3, I5, I15)."""

from __future__ import annotations

from contextlib import suppress

import pytest
import trio
from socket_peer import House, Peer, acks, house, items

from queen_actors.api import Access, Caller, Request
from queen_actors.api.access import open_to_all
from queen_actors.domain.locks import Acquire, Release
from queen_actors.errors import Forbidden, QueenError
from queen_actors.storage.memory import Faults
from queen_actors.values import SECOND

VIRTUAL_TIME = True
DELETE = {"op": "delete", "ns": "queen-locks", "key": "l#0"}


async def commit_under_way(faults: Faults, other: Peer) -> None:
    """From here on what is decided waits behind a commit of two seconds, in one group."""
    faults.latency = 2.0
    put = {"op": "put", "ns": "n", "key": "k", "value": 2, "forever": True}
    await other.say({"id": "first", "op": "kv", "operations": [put]})
    await trio.sleep(0.1)


def room_again(faults: Faults) -> None:
    faults.full, faults.latency = False, 0.0


async def refused_over_anothers_permit(hall: House, faults: Faults, peer: Peer, other: Peer) -> None:
    """Somebody without a connection has a permit of 30 s and releases it; `peer` acquires behind that; both are
    refused."""
    (held,) = await hall.broker.locks([Acquire("l", 30 * SECOND, "a")])
    assert held.ok
    await commit_under_way(faults, other)

    async def release() -> None:
        with suppress(QueenError):
            await hall.broker.locks([Release("l", held.token, held.slot)])

    hall.nursery.start_soon(release)
    await trio.sleep(0.1)
    await peer.say({"id": 10, "op": "lock.acquire", "name": "l", "owner": "b", "ttlSeconds": 30, "session": True})
    await trio.sleep(0.1)
    faults.full = True
    assert (await peer.reply(10))["status"] == 507
    room_again(faults)
    await trio.sleep(2)


async def test_a_refused_permit_is_not_the_one_before_it() -> None:
    """A connection whose acquire was refused does not keep the permit alive that stands there instead."""
    faults = Faults()
    async with house(faults=faults) as hall:
        peer, other = await hall.peer(), await hall.peer()
        await refused_over_anothers_permit(hall, faults, peer, other)
        await trio.sleep(30)
        assert (await peer.ask("lock.acquire", name="l", owner="b", ttlSeconds=30, session=True))["body"]["acquired"]


async def test_a_refused_permit_takes_none_away() -> None:
    """A connection whose acquire was refused releases nothing of another's when it ends."""
    faults = Faults()
    async with house(faults=faults) as hall:
        stream = await hall.stream()
        peer, other = await hall.peer(stream=stream), await hall.peer()
        await refused_over_anothers_permit(hall, faults, peer, other)
        await trio.aclose_forcefully(stream)
        await trio.sleep(5)
        assert not (await other.ask("lock.acquire", name="l", owner="c", ttlSeconds=5))["body"]["acquired"]


async def test_a_permit_that_was_granted_again_and_refused_is_what_it_was() -> None:
    """Deleted, and acquired again without `session`, both refused: the permit lives with its connection as before."""
    faults = Faults()
    async with house(faults=faults) as hall:
        peer, other = await hall.peer(), await hall.peer()
        lock = {"name": "l", "owner": "o", "ttlSeconds": 10}
        assert (await peer.ask("lock.acquire", **lock, session=True))["body"]["acquired"]
        await trio.sleep(15)
        await commit_under_way(faults, other)
        await other.say({"id": 9, "op": "kv", "operations": [DELETE]})
        await trio.sleep(0.1)
        await peer.say({"id": 10, "op": "lock.acquire", **lock})
        await trio.sleep(0.1)
        faults.full = True
        assert (await peer.reply(10))["status"] == 507
        room_again(faults)
        await trio.sleep(60)
        assert peer.events("lock") == []
        assert not (await other.ask("lock.acquire", name="l", owner="x", ttlSeconds=5))["body"]["acquired"]


@pytest.mark.parametrize("how", ["released", "deleted"])
async def test_a_permit_whose_end_was_refused_goes_with_its_connection(how: str) -> None:
    """The permit's end is under way when its connection ends, and is refused: it is given back when there is room."""
    faults = Faults()
    async with house(faults=faults) as hall:
        stream = await hall.stream()
        peer, other = await hall.peer(stream=stream), await hall.peer()
        lock = {"name": "l", "owner": "o", "ttlSeconds": 6000, "session": True}
        granted = (await peer.ask("lock.acquire", **lock))["body"]
        await commit_under_way(faults, other)
        if how == "released":
            release = {"op": "release", "name": "l", "token": granted["token"]}
            await peer.say({"id": 9, "op": "locks", "operations": [release]})
        else:
            await other.say({"id": 9, "op": "kv", "operations": [DELETE]})
        await trio.sleep(0.5)
        faults.full = True
        await trio.aclose_forcefully(stream)
        await trio.sleep(5)
        room_again(faults)
        await trio.sleep(5)
        assert (await other.ask("lock.acquire", name="l", owner="x", ttlSeconds=5))["body"]["acquired"]


@pytest.mark.parametrize("how", ["acked", "sought", "held"])
async def test_a_lease_whose_end_was_refused_goes_with_its_connection(how: str) -> None:
    """What gives a lease back, or ended it otherwise, is refused, and its connection is gone: its messages are there
    again as soon as there is room."""
    faults = Faults()
    async with house(faults=faults) as hall:
        stream = await hall.stream()
        peer, other = await hall.peer(stream=stream), await hall.peer()
        await other.ask("push", items=items("q", 1, 2, 3))
        await peer.ask("subscribe", sub="s", queue="q", group="g", leaseSeconds=3000, subscriptionMode="all")
        event = await peer.event("messages")
        await commit_under_way(faults, other)

        async def seek() -> None:
            with suppress(QueenError):
                await hall.broker.seek("g", "q", None, 0)

        if how == "acked":
            settled = acks(event, 0, 1, 2)
            await other.say({"id": 9, "op": "ack", "acknowledgments": settled, "consumerGroup": "g"})
        elif how == "sought":
            hall.nursery.start_soon(seek)
        await trio.sleep(0.5)
        faults.full = True
        await trio.aclose_forcefully(stream)
        await trio.sleep(5)
        room_again(faults)
        again = await other.ask("pop", queue="q", consumerGroup="g", wait=True, timeout=5000)
        assert again["status"] == 200


async def test_who_only_looks_is_not_refused_with_the_write_it_saw() -> None:
    """Reads that were pipelined behind a write, or share its commit: the write is refused, they tell what there is; and
    what comes after them is not answered before them."""
    faults = Faults()
    get = {"op": "kv", "operations": [{"op": "get", "ns": "n", "key": "k"}]}
    peek = {"op": "timer.get", "queue": "q", "timerKey": "t"}
    put = {"op": "kv", "operations": [{"op": "put", "ns": "n", "key": "k", "value": 3, "forever": True}]}
    async with house(faults=faults) as hall:
        peer, other = await hall.peer(), await hall.peer()
        await commit_under_way(faults, other)
        await peer.say(
            {"id": 1, **put},
            {"id": 2, **get},
            {"id": 3, **peek},
            {"id": 4, "op": "locks", "operations": [{"op": "get", "name": "l"}]},
            {"id": 7, **put},
        )
        await other.say({"id": 5, **get}, {"id": 6, **put})
        await trio.sleep(0.1)
        faults.full = True
        told = [await peer.expect(lambda message: "id" in message) for _ in range(5)]
        assert [reply["id"] for reply in told] == [1, 2, 3, 4, 7]
        replies = {reply["id"]: reply for reply in told}
        assert [replies[id]["status"] for id in (1, 2, 3, 4, 7)] == [507, 200, 200, 200, 507]
        assert not replies[3]["body"]["found"]
        for reply in (replies[2], await other.reply(5)):
            assert reply["body"]["results"][0]["value"] == 2
        assert (await other.reply(6))["status"] == 507
        room_again(faults)
        await trio.sleep(2)
        assert (await peer.ask("kv", operations=put["operations"]))["ok"]
        assert (await peer.ask("kv", operations=get["operations"]))["body"]["results"][0]["value"] == 3
        text = await hall.api.handle(Request("GET", b"/metrics/prometheus"))
        counted = [line for line in text.body.decode().splitlines() if 'route="/api/v1/kv"' in line]
        counts = {line.partition('status="')[2][:3]: float(line.rpartition(" ")[2]) for line in counted}
        assert (counts["200"], counts["507"]) == (5, 3)


async def test_what_is_made_again_comes_before_what_came_after_it() -> None:
    """A get that looks again, while an actor is held, knows nothing of a put that was sent later; it is what it was
    when it came, also as to who asked."""
    faults = Faults()
    get = {"op": "kv", "operations": [{"op": "get", "ns": "n", "key": "k"}]}

    def put(value: object) -> dict[str, object]:
        return {"op": "kv", "operations": [{"op": "put", "ns": "n", "key": "k", "value": value, "forever": True}]}

    async def authorize(request: Request, access: Access) -> Caller:
        if request.headers.get("authorization") == "Bearer weak" and request.raw_path != b"/api/v1/ws":
            raise Forbidden("it may do nothing")
        return await open_to_all(request, access)

    async with house(faults=faults, authorize=authorize) as hall:
        peer, other = await hall.peer(), await hall.peer()
        await commit_under_way(faults, other)
        await other.say({"id": 8, **put("refused")})
        await trio.sleep(0.1)
        await peer.say({"id": 1, **get})
        await trio.sleep(0.1)
        faults.full = True

        async def hold() -> None:
            async with hall.broker._core.turns.hold([("kv", "n")]):
                await trio.sleep(8)

        hall.nursery.start_soon(hold)
        await trio.sleep(3)
        room_again(faults)
        await trio.sleep(2)
        await peer.say({"id": 2, **put("later")}, {"id": 3, "op": "auth", "token": "weak"}, {"id": 4, **get})
        replies = [await peer.expect(lambda message: "id" in message) for _ in range(4)]
        statuses = {reply["id"]: reply["status"] for reply in replies}
        assert (replies[0]["id"], statuses) == (1, {1: 200, 2: 200, 3: 200, 4: 403})
        assert replies[0]["body"]["results"][0]["value"] == 2


async def test_a_peer_that_goes_while_its_request_is_made_again() -> None:
    """Nobody waits for it, and the connection ends in its time."""
    faults = Faults()
    get = {"op": "kv", "operations": [{"op": "get", "ns": "n", "key": "k"}]}
    for leaves in (True, False):
        async with house(faults=faults) as hall:
            stream = await hall.stream()
            peer, other = await hall.peer(stream=stream), await hall.peer()
            await commit_under_way(faults, other)
            await other.say({"id": 8, "op": "kv", "operations": [{"op": "incr", "ns": "n", "key": "x", "by": 1}]})
            await peer.say(*({"id": number, **get} for number in range(50)))
            await trio.sleep(0.1)
            faults.full = True
            if leaves:
                await trio.aclose_forcefully(stream)
            else:
                for number in range(50):
                    assert (await peer.reply(number))["status"] == 200
            await trio.sleep(5)
            room_again(faults)
            await trio.sleep(5)
            assert (await other.ask("kv", operations=get["operations"]))["ok"]

"""websocket.md, section 6: locks that wait and that tell."""

from __future__ import annotations

import json
from datetime import datetime
from functools import partial
from typing import Any

import pytest
import trio
from socket_peer import House, Peer, house

from queen_actors import limits
from queen_actors.api import Request
from queen_actors.config import Settings
from queen_actors.domain.locks import Acquire
from queen_actors.storage.memory import Faults

VIRTUAL_TIME = True


async def locks(hall: House, **op: Any) -> dict[str, Any]:
    """One op over HTTP, by somebody else."""
    body = json.dumps({"operations": [{"name": "l", **op}]}).encode()
    reply = await hall.api.handle(Request("POST", b"/api/v1/locks", b"", {}, body))
    assert reply.status == 200, reply
    result: dict[str, Any] = json.loads(reply.body)["results"][0]
    return result


async def get(hall: House, name: str = "l") -> list[dict[str, Any]]:
    """Who holds it."""
    holders: list[dict[str, Any]] = (await locks(hall, op="get", name=name))["holders"]
    return holders


async def acquire(peer: Peer, ttl: int = 30, **fields: Any) -> dict[str, Any]:
    """The body of the reply."""
    reply = await peer.ask("lock.acquire", **{"name": "l", "ttlSeconds": ttl, **fields})
    assert reply["ok"], reply
    body: dict[str, Any] = reply["body"]
    return body


async def wait_in_line(peer: Peer, id: str, seconds: float = 60, ttl: int = 30, **fields: Any) -> None:
    """Ask, and return when the place in line is taken."""
    await peer.say({"id": id, "op": "lock.acquire", "name": "l", "ttlSeconds": ttl, "waitSeconds": seconds, **fields})
    await trio.sleep(0.01)


async def waits(peer: Peer, id: str) -> bool:
    await trio.sleep(0.2)
    return not any(message.get("id") == id for message in peer.received)


# -- waiting -----------------------------------------------------------------------------------------------------------


async def test_an_acquire_as_locks_would_answer(hall: House) -> None:
    """A free lock is granted at once, with the element that `locks` gives; so is a held one refused without a wait."""
    peer = await hall.peer()
    granted = await acquire(peer, owner="w1", waitSeconds=60)
    assert granted == {
        "index": 0,
        "op": "acquire",
        "name": "l",
        "acquired": True,
        "slot": 0,
        "token": granted["token"],
        "owner": "w1",
        "guard": {"op": "check", "ns": "queen-locks", "key": "l#0", "expect": granted["token"], "required": True},
    }
    refused = await acquire(peer, owner="w2")
    assert refused == await locks(hall, op="acquire", ttlSeconds=30, owner="w2")
    assert (refused["acquired"], refused["reason"], refused["holders"]) == (
        *(False, "held"),
        [{"slot": 0, "owner": "w1"}],
    )
    again = await acquire(peer, owner="w1", waitSeconds=60)
    assert (again["already"], again["token"]) == (True, granted["token"])


async def test_the_wait_is_over(hall: House) -> None:
    """When nobody gives it up in time, it is refused as held, with its holders."""
    await locks(hall, op="acquire", ttlSeconds=60, owner="w1")
    peer = await hall.peer()
    began = trio.current_time()
    refused = await acquire(peer, owner="w2", waitSeconds=2.5)
    assert trio.current_time() - began == pytest.approx(2.5)
    assert (refused["acquired"], refused["reason"], refused["holders"]) == (
        *(False, "held"),
        [{"slot": 0, "owner": "w1"}],
    )


async def test_a38_first_come_first_served(hall: House) -> None:
    """A38. Five wait, on as many connections: a release grants to the first of them at once, and to nobody else; so it
    goes on in the order in which they came."""
    held = await locks(hall, op="acquire", ttlSeconds=60, owner="w")
    peers = [await hall.peer() for _ in range(5)]
    for number, peer in enumerate(peers):
        await wait_in_line(peer, "id", owner=f"w{number}")
    for number, peer in enumerate(peers):
        released = trio.current_time()
        assert (await locks(hall, op="release", token=held["token"]))["released"]
        held = (await peer.reply("id"))["body"]
        assert held["acquired"]
        assert trio.current_time() - released < 0.2
        assert [holder["owner"] for holder in await get(hall)] == [f"w{number}"]
        assert all([await waits(later, "id") for later in peers[number + 1 :]])


async def test_a38_a_holder_that_dies(hall: House) -> None:
    """A38. When the holder dies, the next has the lock when its lifetime is over, and within 300 ms."""
    await locks(hall, op="acquire", ttlSeconds=3, owner="dead")
    began = trio.current_time()
    peer = await hall.peer()
    assert (await acquire(peer, owner="w", waitSeconds=60))["acquired"]
    assert 2.9 < trio.current_time() - began < 3.3


async def test_a34_the_lifetime_starts_at_the_grant(hall: House) -> None:
    """A34. After a wait of 3 s a lock with a lifetime of 1 s has all of it before it."""
    held = await locks(hall, op="acquire", ttlSeconds=60, owner="w1")
    peer = await hall.peer()
    await wait_in_line(peer, "id", ttl=1, owner="w2")
    await trio.sleep(3)
    await locks(hall, op="release", token=held["token"])
    assert (await peer.reply("id"))["body"]["acquired"]
    (holder,) = await get(hall)
    left = datetime.fromisoformat(holder["expiresAt"]).timestamp() - hall.broker.clock.now() / 1e6
    assert (holder["owner"], left >= 0.9) == ("w2", True)


async def test_a36_renewals_do_not_add_up(hall: House) -> None:
    """A36. Twenty renewals of 2 s at once are 2 s: another has it 2.3 s later at the latest."""
    held = await locks(hall, op="acquire", ttlSeconds=2, owner="w1")
    for _ in range(20):
        renewed = await locks(hall, op="renew", token=held["token"], ttlSeconds=2, owner="w1")
        assert renewed["renewed"]
    began = trio.current_time()
    peer = await hall.peer()
    assert (await acquire(peer, owner="w2", waitSeconds=10))["acquired"]
    assert trio.current_time() - began <= 2.3


@pytest.mark.parametrize("how", ["kv delete", "transaction"])
async def test_a_deleted_permit_goes_to_the_next(hall: House, how: str) -> None:
    """However a permit goes: an operator who deletes its row frees it for the first in line."""
    await locks(hall, op="acquire", ttlSeconds=600, owner="w1")
    peer = await hall.peer()
    await wait_in_line(peer, "id", owner="w2")
    delete = {"op": "delete", "ns": "queen-locks", "key": "l#0"}
    other = await hall.peer()
    push = {"type": "push", "items": [{"queue": "q", "payload": 1}]}
    if how == "kv delete":
        assert (await other.ask("kv", operations=[delete]))["ok"]
    else:
        assert (await other.ask("transaction", operations=[push], kv=[delete]))["ok"]
    assert (await peer.reply("id"))["body"]["acquired"]


async def test_nobody_jumps_the_line(hall: House) -> None:
    """Who asks over HTTP, or without waiting, in the moment in which the lock is free, comes after those in line."""
    held = await locks(hall, op="acquire", ttlSeconds=60, owner="w1")
    peer = await hall.peer()
    await wait_in_line(peer, "id", owner="w2")
    other = await hall.peer()
    release = {"op": "release", "name": "l", "token": held["token"]}
    jump = {"op": "acquire", "name": "l", "ttlSeconds": 30, "owner": "w3"}
    await other.say(
        {"id": 1, "op": "locks", "operations": [release]},
        {"id": 2, "op": "locks", "operations": [jump]},
        {**jump, "id": 3, "op": "lock.acquire"},
    )
    assert (await other.reply(1))["body"]["results"][0]["released"]
    assert (await other.reply(2))["body"]["results"][0]["holders"] == [{"slot": 0, "owner": "w2"}]
    assert not (await other.reply(3))["body"]["acquired"]
    assert (await peer.reply("id"))["body"]["acquired"]


async def test_a_semaphore(hall: House) -> None:
    """With `limit` so many hold it at once; who asks for a smaller limit does not keep a slot from the one behind that
    it could not have itself."""
    peer = await hall.peer()
    held = [await acquire(peer, limit=2, owner=f"w{number}") for number in range(2)]
    assert sorted(one["slot"] for one in held) == [0, 1]
    await wait_in_line(peer, "narrow", limit=1, owner="narrow")
    await wait_in_line(peer, "wide", limit=2, owner="wide")
    by_slot = {one["slot"]: one["token"] for one in held}
    await locks(hall, op="release", token=by_slot[1], slot=1)
    assert (await peer.reply("wide"))["body"]["slot"] == 1
    assert await waits(peer, "narrow")
    await locks(hall, op="release", token=by_slot[0], slot=0)
    assert (await peer.reply("narrow"))["body"]["slot"] == 0


async def test_two_acquires_of_one_owner(hall: House) -> None:
    """A retry that stands in line beside the first one gets the same permit."""
    held = await locks(hall, op="acquire", ttlSeconds=60, owner="w1")
    peer = await hall.peer()
    await wait_in_line(peer, "first", owner="w2")
    await wait_in_line(peer, "retry", owner="w2")
    await locks(hall, op="release", token=held["token"])
    first, retry = (await peer.reply("first"))["body"], (await peer.reply("retry"))["body"]
    assert first["token"] == retry["token"]
    assert (first.get("already"), retry["already"]) == (None, True)


async def test_other_requests_pass(hall: House) -> None:
    """A waiting acquire does not hold up what the connection asks after it, and has its place before it."""
    peer, other = await hall.peer(), await hall.peer()
    held = await acquire(peer, owner="w1")
    await wait_in_line(peer, "id", owner="w2")
    await wait_in_line(other, "id", owner="w3")
    release = {"op": "release", "name": "l", "token": held["token"]}
    assert (await peer.ask("locks", operations=[release]))["ok"]
    assert (await peer.reply("id"))["body"]["acquired"]
    assert await waits(other, "id")


@pytest.mark.parametrize("end", ["close", "cut", "dead"])
async def test_a_waiter_whose_connection_ends_leaves_the_line(hall: House, end: str) -> None:
    """However its connection ends: the lock goes to the next."""
    held = await locks(hall, op="acquire", ttlSeconds=600, owner="w1")
    gone = await hall.peer(answers_pings=end != "dead")
    await wait_in_line(gone, "id", 600, owner="gone")
    peer = await hall.peer()
    await wait_in_line(peer, "id", 600, owner="w2")
    if end == "close":
        await gone.close()
    elif end == "cut":
        await trio.aclose_forcefully(gone.stream)
    await trio.sleep(50)
    await locks(hall, op="release", token=held["token"])
    assert (await peer.reply("id"))["body"]["acquired"]
    assert [holder["owner"] for holder in await get(hall)] == ["w2"]
    assert not any(message.get("body", {}).get("acquired") for message in gone.received)


async def test_a_cancelled_caller_holds_nothing() -> None:
    """In process: who is cancelled while it waits leaves the line, and what it was granted in that moment is given
    back."""
    async with house(faults=Faults(latency=0.5)) as hall:
        held = await locks(hall, op="acquire", ttlSeconds=600, owner="w1")
        for released in (False, True):
            async with trio.open_nursery() as nursery:
                with trio.CancelScope() as scope:
                    async with trio.open_nursery() as waiting:
                        waiting.start_soon(hall.broker.acquire, Acquire("l", 10_000_000, "w2"), 60_000_000)
                        await trio.sleep(1)
                        if released:
                            nursery.start_soon(partial(locks, hall, op="release", token=held["token"]))
                            await trio.sleep(0.1)  # the grant is on its way to the disk, with the release or behind it
                            assert hall.broker._core.directory.lock("l").slots[0].value == b'{"owner":"w2"}'
                        scope.cancel()
            await trio.sleep(2)
            assert [holder["owner"] for holder in await get(hall)] == ([] if released else ["w1"])
            assert hall.broker._locks._lines == {}


async def test_a_bound_of_waits(hall: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line of a lock is bounded, and so are the waits of a connection: 429."""
    monkeypatch.setattr(limits, "WS_LOCK_WAITS", 2)
    monkeypatch.setattr(limits, "LOCK_WAITERS", 3)
    await locks(hall, op="acquire", ttlSeconds=600, owner="w1")
    peer, other = await hall.peer(), await hall.peer()
    await wait_in_line(peer, "1", 600)
    await wait_in_line(peer, "2", 600)
    assert (await peer.ask("lock.acquire", name="l", ttlSeconds=1, waitSeconds=1))["status"] == 429
    assert not (await acquire(peer))["acquired"]
    await wait_in_line(other, "3", 600)
    assert (await other.ask("lock.acquire", name="l", ttlSeconds=1, waitSeconds=1))["status"] == 429


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"ttlSeconds": 1}, "locks_bad_name"),
        ({"name": "a#1", "ttlSeconds": 1}, "locks_bad_name"),
        ({"name": "l"}, "locks_ttl_required"),
        ({"name": "l", "ttlSeconds": 0}, "locks_bad_ttl"),
        ({"name": "l", "ttlSeconds": 1, "limit": 0}, "locks_bad_limit"),
        ({"name": "l", "ttlSeconds": 1, "owner": ""}, "locks_bad_owner"),
        ({"name": "l", "ttlSeconds": 1, "waitSeconds": -1}, "locks_bad_wait"),
        ({"name": "l", "ttlSeconds": 1, "waitSeconds": 3601}, "locks_bad_wait"),
        ({"name": "l", "ttlSeconds": 1, "waitSeconds": True}, "locks_bad_wait"),
        ({"name": "l", "ttlSeconds": 1, "session": "yes"}, "locks_bad_request"),
    ],
)
async def test_bad_fields(hall: House, fields: dict[str, Any], reason: str) -> None:
    """Refused as `locks` refuses; the connection goes on."""
    peer = await hall.peer()
    reply = await peer.ask("lock.acquire", **fields)
    assert (reply["status"], reply["error"]["error"], reply["error"]["reason"]) == (400, "locks_bad_request", reason)
    assert (await acquire(peer))["acquired"]


async def test_shutdown_answers_who_waits() -> None:
    """Who waits when the server stops is answered, and holds nothing."""
    async with house(Settings(data=None, shutdown_seconds=4)) as hall:
        await locks(hall, op="acquire", ttlSeconds=600, owner="w1")
        peer = await hall.peer()
        await wait_in_line(peer, "id", 600, owner="w2")
        hall.shutdown.set()
        assert (await peer.reply("id"))["body"]["reason"] == "held"
        await peer.ended.wait()
        assert peer.closed == (1001, "going away")


# -- telling -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["lock.acquire", "locks"])
async def test_an_expired_permit_is_told(hall: House, op: str) -> None:
    """A permit acquired on a connection, by whichever op, is watched there: word comes within a second of its end."""
    peer, other = await hall.peer(), await hall.peer()
    began = trio.current_time()
    if op == "locks":
        asked = {"op": "acquire", "name": "l", "ttlSeconds": 2, "owner": "w1"}
        granted = (await peer.ask("locks", operations=[asked]))["body"]["results"][0]
    else:
        granted = await acquire(peer, 2, owner="w1")
    assert await peer.event("lock") == {
        "event": "lock",
        "name": "l",
        "state": "lost",
        "token": granted["token"],
        "slot": 0,
        "reason": "expired",
    }
    assert 2 <= trio.current_time() - began < 3
    assert other.events("lock") == []


async def test_a_deleted_permit_is_told(hall: House) -> None:
    """An operator deleted its row."""
    peer = await hall.peer()
    granted = await acquire(peer, limit=5, owner="w1")
    body = json.dumps({"operations": [{"op": "delete", "ns": "queen-locks", "key": f"l#{granted['slot']}"}]}).encode()
    await hall.api.handle(Request("POST", b"/api/v1/kv", b"", {}, body))
    event = await peer.event("lock")
    assert (event["token"], event["slot"], event["reason"]) == (granted["token"], granted["slot"], "deleted")


async def test_a_permit_released_by_another_is_told(hall: House) -> None:
    """Who released it knows; the holder is told that it is gone."""
    peer = await hall.peer()
    granted = await acquire(peer, owner="w1")
    await locks(hall, op="release", token=granted["token"])
    assert (await peer.event("lock"))["reason"] == "deleted"


async def test_a_taken_permit_is_told(hall: House) -> None:
    """Somebody wrote over its row."""
    peer = await hall.peer()
    granted = await acquire(peer, owner="w1")
    write = {"op": "put", "ns": "queen-locks", "key": "l#0", "value": {"owner": "thief"}, "ttlSeconds": 60}
    assert (await (await hall.peer()).ask("kv", operations=[write]))["ok"]
    event = await peer.event("lock")
    assert (event["token"], event["reason"]) == (granted["token"], "taken")


async def test_an_own_release_is_no_loss(hall: House) -> None:
    """Nor is a renewal; after it the permit has another token, and that one is told when it is lost."""
    peer = await hall.peer()
    granted = await acquire(peer, 2, owner="w1")
    renew = {"op": "renew", "name": "l", "token": granted["token"], "ttlSeconds": 5}
    renewed = (await peer.ask("locks", operations=[renew]))["body"]["results"][0]
    assert renewed["renewed"]
    await trio.sleep(3)
    assert peer.events("lock") == []
    release = {"op": "release", "name": "l", "token": renewed["token"]}
    assert (await peer.ask("locks", operations=[release]))["body"]["results"][0]["released"]
    await trio.sleep(10)
    assert peer.events("lock") == []
    granted = await acquire(peer, 2, owner="w1")
    renewed = await locks(hall, op="renew", token=granted["token"], ttlSeconds=5)
    assert (await peer.event("lock"))["token"] == renewed["token"]


async def test_an_expired_permit_that_is_granted_before_it_is_swept(hall: House) -> None:
    """It expired, whoever has it now."""
    peer = await hall.peer()
    await acquire(peer, 1, owner="w1")
    hall.broker._keys._agenda.discard(("queen-locks", "l#0"))  # the sweep is late
    await trio.sleep(2)
    assert (await locks(hall, op="acquire", ttlSeconds=5, owner="w2"))["acquired"]
    assert (await peer.event("lock"))["reason"] == "expired"


async def test_a_grant_that_the_disk_refused(hall: House) -> None:
    """A grant that could not be written was none, and nothing is told of it; who waited before still waits."""
    faults = Faults()
    async with house(faults=faults) as hall:
        held = await locks(hall, op="acquire", ttlSeconds=600, owner="w1")
        peer, other = await hall.peer(), await hall.peer()
        await wait_in_line(peer, "id", 600, owner="w2")
        faults.full = True
        assert (await other.ask("lock.acquire", name="other", ttlSeconds=30))["status"] == 507
        await trio.sleep(2)
        faults.full = False
        await trio.sleep(2)
        assert await get(hall, "other") == []
        assert [holder["owner"] for holder in await get(hall)] == ["w1"]
        await locks(hall, op="release", token=held["token"])
        assert (await peer.reply("id"))["body"]["acquired"]
        assert other.events("lock") == []


# -- permits that live with the connection -----------------------------------------------------------------------------


async def test_a_session_permit_lives_with_the_connection(hall: House) -> None:
    """It is renewed while the peer answers pings, and keeps its token, so that a guard holds whenever it is sent."""
    peer = await hall.peer()
    granted = await acquire(peer, 1, owner="w1", session=True)
    await trio.sleep(30)
    (holder,) = await get(hall)
    assert (holder["owner"], holder["token"]) == ("w1", granted["token"])
    assert peer.events("lock") == []
    push = {"type": "push", "items": [{"queue": "q", "payload": 1}]}
    assert (await peer.ask("transaction", operations=[push], kv=[granted["guard"]]))["body"]["success"]
    left = datetime.fromisoformat(holder["expiresAt"]).timestamp() - hall.broker.clock.now() / 1e6
    assert left <= 1


@pytest.mark.parametrize("end", ["close", "cut"])
async def test_a_session_permit_is_released_with_the_connection(hall: House, end: str) -> None:
    """When the connection ends, the next has it at once; a permit without `session` stays for its lifetime."""
    peer, other = await hall.peer(), await hall.peer()
    await acquire(peer, 600, owner="w1", session=True)
    await acquire(peer, 600, name="plain", owner="w1")
    await wait_in_line(other, "id", 600, owner="w2")
    if end == "close":
        await peer.close()
    else:
        await trio.aclose_forcefully(peer.stream)
    began = trio.current_time()
    assert (await other.reply("id"))["body"]["acquired"]
    assert trio.current_time() - began < 0.5
    assert [holder["owner"] for holder in await get(hall, "plain")] == ["w1"]


async def test_a_session_permit_of_a_dead_peer(hall: House) -> None:
    """Who does not answer pings does not keep it: its lifetime is over, or it is dropped, whichever comes first."""
    dead = await hall.peer(answers_pings=False)
    await acquire(dead, 5, owner="dead", session=True)
    began = trio.current_time()
    peer = await hall.peer()
    assert (await acquire(peer, owner="w", waitSeconds=60))["acquired"]
    assert trio.current_time() - began <= 5.3


async def test_a_session_permit_of_a_waiter(hall: House) -> None:
    """The grant after a wait is bound too, and so is a permit that the owner had already."""
    held = await locks(hall, op="acquire", ttlSeconds=60, owner="w1")
    peer = await hall.peer()
    await wait_in_line(peer, "id", ttl=1, owner="w2", session=True)
    await locks(hall, op="release", token=held["token"])
    assert (await peer.reply("id"))["body"]["acquired"]
    await locks(hall, op="acquire", name="mine", ttlSeconds=2, owner="w2")
    assert (await acquire(peer, 2, name="mine", owner="w2", session=True))["already"]
    await trio.sleep(10)
    assert [holder["owner"] for holder in await get(hall)] == ["w2"]
    await peer.close()
    await trio.sleep(0.1)
    assert (await get(hall), await get(hall, "mine")) == ([], [])


async def test_two_connections_of_one_owner(hall: House) -> None:
    """A client that connected again holds its permit over the new connection: the end of the old one takes nothing."""
    old, new = await hall.peer(), await hall.peer()
    first = await acquire(old, 60, owner="w1", session=True)
    again = await acquire(new, 60, owner="w1", session=True)
    assert (again["already"], again["token"]) == (True, first["token"])
    await trio.aclose_forcefully(old.stream)
    await trio.sleep(1)
    assert [holder["owner"] for holder in await get(hall)] == ["w1"]
    assert new.events("lock") == []
    await trio.aclose_forcefully(new.stream)
    await trio.sleep(1)
    assert await get(hall) == []


async def test_a_connection_that_ends_leaves_nothing_behind(hall: House) -> None:
    """Nobody is told of its permits any more."""
    peer = await hall.peer()
    await acquire(peer, 60, owner="w1")
    await acquire(peer, 60, name="m", owner="w1", session=True)
    await peer.close()
    await trio.sleep(1)
    assert hall.broker._locks._holders == {}

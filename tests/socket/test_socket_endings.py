"""websocket.md, sections 3, 4 and 6: however something ends, what it held is free, it is counted, and it is said.

Credit and order where leases are lost; the ends of connections and subscriptions; the instants at which locks move.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio
from socket_peer import House, Peer, acks, frame, house, items
from test_socket_connecting import tokens_that_end

from queen_actors import limits
from queen_actors.actors.subscription import Subscription
from queen_actors.config import Settings
from queen_actors.domain.queue import Configure

VIRTUAL_TIME = True


def told(event: dict[str, Any]) -> list[Any]:
    return [message["data"] for message in event["messages"]]


async def quiet(peer: Peer, seconds: float = 5) -> bool:
    await trio.sleep(seconds)
    return not peer.events("messages")


# -- credit and order under leases -------------------------------------------------------------------------------------


async def test_a_later_message_waits_for_the_lease_before_it(hall: House) -> None:
    """Within a partition and a group there is one lease: what is pushed meanwhile comes when it is settled, in order,
    although there is credit."""
    peer, other = await hall.peer(), await hall.peer()
    await peer.ask("subscribe", sub="s", queue="q", group="g")
    await other.ask("push", items=items("q", 1, 2))
    first = await peer.event("messages")
    assert told(first) == [1, 2]
    await other.ask("push", items=items("q", 3))
    assert await quiet(peer)
    await peer.ask("ack", acknowledgments=acks(first, 0), consumerGroup="g")
    assert await quiet(peer)
    await peer.ask("ack", acknowledgments=acks(first, 1), consumerGroup="g")
    assert told(await peer.event("messages")) == [3]


@pytest.mark.parametrize("reason", ["expired", "seek", "deleted", "maxLease"])
async def test_each_lost_lease_gives_its_credit_back_once(reason: str) -> None:
    """However it was lost: so much is delivered anew, and no more. An ack that comes too late gives nothing back."""
    async with house(Settings(data=None, heartbeat_seconds=600)) as hall:
        peer, other = await hall.peer(), await hall.peer()
        await other.ask("push", items=items("q", 1, 2, partition="p"))
        terms = {"leaseSeconds": 10, "maxLeaseSeconds": 10 if reason == "maxLease" else 3600}
        await peer.ask("subscribe", sub="s", queue="q", group="g", credit=3, **terms)
        lost = await peer.event("messages")
        assert told(lost) == [1, 2]
        if reason == "seek":
            await hall.broker.seek("g", "q", None, 0)
        elif reason == "deleted":
            await hall.broker.delete_queue("q")
        elif reason == "expired":
            peer.reading = trio.Event()
            await trio.sleep(20)
            peer.reading.set()
        event = await peer.event("lease")
        assert (event["leaseId"], event["reason"]) == (lost["leaseId"], reason)
        late = await peer.ask("ack", acknowledgments=acks(lost), consumerGroup="g")
        assert not any(entry["success"] for entry in late["body"])
        for number in range(3):
            await other.ask("push", items=items("q", f"new{number}", partition=f"new{number}"))
        await trio.sleep(5)
        found = [message for event in peer.events("messages") for message in event["messages"]]
        assert len(found) == 3
        assert await hall.broker.queue_view("q") is not None


async def test_only_the_head_of_a_batch_is_given_up(hall: House) -> None:
    """`deliveryLimit` dead-letters the message that would be first once more; those behind it go on being delivered."""
    peer = await hall.peer()
    await peer.ask("configure", queue="q", options={"deliveryLimit": 2})
    await peer.ask("push", items=items("q", "poison", "fine", "also"))
    for attempt in (1, 2):
        victim = await hall.peer()
        await victim.ask("subscribe", sub="s", queue="q", group="g")
        event = await victim.event("messages")
        assert told(event) == ["poison", "fine", "also"]
        assert event["messages"][0]["deliveryAttempt"] == attempt
        await trio.aclose_forcefully(victim.stream)
        await victim.ended.wait()
    await peer.ask("subscribe", sub="s", queue="q", group="g")
    assert told(await peer.event("messages")) == ["fine", "also"]
    letters, total = await hall.broker.dead_letters(queue="q")
    assert (total, letters[0].letter.record.payload) == (1, b'"poison"')


async def test_unsubscribe_charges_no_retry(hall: House) -> None:
    """As with a lost connection: with no retries left the message is another's all the same, at once."""
    peer, other = await hall.peer(), await hall.peer()
    await peer.ask("configure", queue="q", options={"retryLimit": 0})
    await peer.ask("push", items=items("q", 1))
    await peer.ask("subscribe", sub="s", queue="q", leaseSeconds=600)
    await peer.event("messages")
    await other.ask("subscribe", sub="s", queue="q")
    began = trio.current_time()
    await peer.ask("unsubscribe", sub="s")
    event = await other.event("messages")
    assert trio.current_time() - began < 1
    assert (told(event), event["messages"][0]["deliveryAttempt"]) == ([1], 2)
    assert (await other.ask("ack", acknowledgments=acks(event)))["body"][0]["success"]


# -- however a connection ends -----------------------------------------------------------------------------------------


BAD = {
    "no object": (frame(1, b"[]"), 4400),
    "binary": (frame(2, b"{}"), 1003),
    "too large": (frame(1, b"x" * (8 * 1024 * 1024 + 1)), 1009),
    "a reserved opcode": (frame(3), 1002),
    "no text": (frame(1, b"\xff"), 1007),
}


@pytest.mark.parametrize("how", [*BAD, "our fault", "the token's end", "shutdown"])
async def test_however_a_connection_ends_its_leases_are_given_back(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when it is the server who ends it: in that moment the messages are free, no retry is charged, and an ack
    that came before counts."""
    async with house(authorize=tokens_that_end(short=30)) as hall:
        peer = await hall.peer(headers=[("Authorization", "Bearer short")])
        await peer.ask("configure", queue="q", options={"retryLimit": 0})
        await peer.ask("push", items=items("q", 1, 2))
        await peer.ask("subscribe", sub="s", queue="q", leaseSeconds=600)
        event = await peer.event("messages")
        await peer.say({"op": "ack", "acknowledgments": acks(event, 0)})
        code = {"our fault": 1011, "the token's end": 4401, "shutdown": 1001}.get(how, 0)
        if how in BAD:
            data, code = BAD[how]
            await peer.raw(data)
        elif how == "our fault":

            async def broken(*args: object) -> None:
                raise ZeroDivisionError

            monkeypatch.setattr(hall.broker, "register", broken)
            await peer.say({"op": "subscribe", "sub": "s2", "queue": "q"})
        elif how == "shutdown":
            hall.shutdown.set()
        else:
            await trio.sleep(29.5)
        began = trio.current_time()
        with trio.move_on_after(10):
            while hall.broker.statistics().leases:  # noqa: ASYNC110
                await trio.sleep(0.01)
        assert trio.current_time() - began < 1
        view = await hall.broker.queue_view("q")
        assert view is not None
        assert view.partitions[0].completed == 1
        await peer.ended.wait()
        assert peer.closed is not None
        assert peer.closed[0] == code
        assert (await hall.broker.dead_letters(queue="q"))[1] == 0


async def test_a_subscription_keeps_its_leases_no_longer_than_it_may(
    hall: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Extended while pings are answered, each by no more than is left of `maxLeaseSeconds`; a lease that was renewed
    over and over ends at the same instant as one that was not."""
    kept: list[float] = []
    keep = Subscription.keep_alive

    async def watched(subscription: Subscription) -> None:
        kept.append(trio.current_time())
        await keep(subscription)

    monkeypatch.setattr(Subscription, "keep_alive", watched)
    peer = await hall.peer()
    await peer.ask("push", items=items("q", 1))
    began = trio.current_time()
    await peer.ask("subscribe", sub="s", queue="q", leaseSeconds=6, maxLeaseSeconds=50)
    await peer.event("messages")
    lost = await peer.event("lease")
    assert lost["reason"] == "maxLease"
    assert 50 <= trio.current_time() - began < 51
    assert len(kept) >= 50 / 6 - 1


# -- tails ---------------------------------------------------------------------------------------------------------


async def test_each_partition_has_its_own_gap(hall: House) -> None:
    """Told before the messages of that partition, and only where something that was asked for is missing."""
    pusher = await hall.peer()
    for partition, count in (("a", 10), ("b", 4)):
        await pusher.ask("push", items=items("q", *range(count), partition=partition))
    await hall.broker.configure(Configure("q", {"retention_enabled": True, "retention_seconds": 1}))
    await trio.sleep(20)
    await hall.broker.configure(Configure("q", {"retention_enabled": False}))
    for partition in "abc":
        await pusher.ask("push", items=items("q", partition, partition=partition))
    peer = await hall.peer()
    await peer.ask("tail", sub="t", queue="q", **{"from": {"a": 3, "b": 4, "c": 0}})
    await trio.sleep(1)
    events = [(event["event"], event["partition"]) for event in peer.received]
    assert sorted(events) == [("gap", "a"), ("messages", "a"), ("messages", "b"), ("messages", "c")]
    assert events.index(("gap", "a")) < events.index(("messages", "a"))
    assert await peer.event("gap") == {"event": "gap", "sub": "t", "partition": "a", "from": 3, "to": 9}


async def test_a_tail_reads_past_every_lease_and_cursor(hall: House) -> None:
    """Messages that are leased, settled or dead-lettered are a tail's all the same, and a tail takes none from them."""
    peer, other = await hall.peer(), await hall.peer()
    await other.ask("push", items=items("q", 1, 2, 3))
    popped = (await other.ask("pop", queue="q", batch=2))["body"]
    await other.ask("ack", acknowledgments=[*acks(popped, 0), *acks(popped, 1, status="dlq")])
    assert (await other.ask("pop", queue="q", batch=1))["body"]["messages"][0]["data"] == 3
    await peer.ask("tail", sub="t", queue="q", **{"from": "start"})
    assert told(await peer.event("messages")) == [1, 2, 3]
    assert (await peer.ask("ack", acknowledgments=[]))["ok"]
    assert hall.broker.statistics().leases == 1


# -- locks ---------------------------------------------------------------------------------------------------------


async def test_a_grant_comes_in_the_instant_of_the_release(hall: House) -> None:
    """No polling: however long somebody has waited, and at whatever instant the permit becomes free."""
    peer, other = await hall.peer(), await hall.peer()
    for number, seconds in enumerate((0.001, 0.777, 3.1415, 17.0001)):
        held = (await other.ask("lock.acquire", name="l", owner=f"o{number}", ttlSeconds=600))["body"]
        await peer.say({"id": number, "op": "lock.acquire", "name": "l", "ttlSeconds": 600, "waitSeconds": 60})
        await trio.sleep(seconds)
        release = {"op": "release", "name": "l", "token": held["token"]}
        released = trio.current_time()
        await other.say({"op": "locks", "operations": [release]})
        granted = (await peer.reply(number))["body"]
        assert granted["acquired"]
        assert trio.current_time() - released < 1e-6
        await peer.ask("locks", operations=[{**release, "token": granted["token"]}])


async def test_who_waits_is_not_looked_after(hall: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """No polling: while a hundred wait, the lock is not looked at once."""
    peer, other = await hall.peer(), await hall.peer()
    await other.ask("lock.acquire", name="l", owner="o", ttlSeconds=600)
    for number in range(limits.WS_LOCK_WAITS):
        await peer.say({"id": number, "op": "lock.acquire", "name": "l", "ttlSeconds": 600, "waitSeconds": 300})
    await trio.sleep(1)
    looked: list[str] = []
    find = hall.broker._core.directory.lock

    def watched(name: str) -> Any:
        looked.append(name)
        return find(name)

    monkeypatch.setattr(hall.broker._core.directory, "lock", watched)
    await trio.sleep(60)
    assert looked == []


@pytest.mark.parametrize("reason", ["deleted", "taken", "expired"])
async def test_a_lost_lock_is_told_in_the_instant_in_which_it_is_lost(hall: House, reason: str) -> None:
    """To its holder, with its token and slot, and to nobody else."""
    peer, other = await hall.peer(), await hall.peer()
    began = trio.current_time()
    fields = {"name": "l", "owner": "o", "limit": 3, "ttlSeconds": 10}
    slots = [(await one.ask("lock.acquire", **fields, session=False))["body"] for one in (peer, other)]
    assert slots[0]["token"] == slots[1]["token"], "one owner has one permit"
    mine = (await peer.ask("lock.acquire", **{**fields, "owner": "p"}))["body"]
    key = f"l#{mine['slot']}"
    if reason == "expired":
        lost = await peer.event("lock", slot=mine["slot"])
        assert 10 <= trio.current_time() - began < 11
    else:
        await trio.sleep(3)
        put = {"op": "put", "ns": "queen-locks", "key": key, "value": {"owner": "x"}, "ttlSeconds": 60}
        delete = {"op": "delete", "ns": "queen-locks", "key": key}
        began = trio.current_time()
        await other.say({"op": "kv", "operations": [put if reason == "taken" else delete]})
        lost = await peer.event("lock")
        assert trio.current_time() - began < 1e-6
        assert other.events("lock") == []
    assert (lost["token"], lost["slot"], lost["reason"]) == (mine["token"], mine["slot"], reason)

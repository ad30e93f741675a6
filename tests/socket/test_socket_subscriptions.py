"""websocket.md, section 3: subscriptions."""

from __future__ import annotations

import base64
import itertools
import json
from datetime import datetime
from typing import Any

import pytest
import trio
from socket_peer import House, Peer, acks, house, items

from queen_actors import limits
from queen_actors.api import Request
from queen_actors.config import Settings
from queen_actors.storage.memory import Faults

VIRTUAL_TIME = True


def data(event: dict[str, Any]) -> list[Any]:
    return [message["data"] for message in event["messages"]]


async def collect(peer: Peer, count: int) -> list[Any]:
    """The payloads of deliveries until there are so many."""
    found: list[Any] = []
    while len(found) < count:
        found += data(await peer.event("messages"))
    return found


async def nothing_more(peer: Peer, seconds: float = 5) -> bool:
    await trio.sleep(seconds)
    return not peer.events("messages")


async def pushed(hall: House, queue: str, *payloads: Any, partition: str | None = None) -> None:
    """Push by somebody else."""
    body = json.dumps({"items": items(queue, *payloads, partition=partition)}).encode()
    assert (await hall.api.handle(Request("POST", b"/api/v1/push", b"", {}, body))).status == 201


# -- subscribe ---------------------------------------------------------------------------------------------------------


async def test_only_sub_and_a_source_are_required(hall: House) -> None:
    """Everything else has a default; the reply says the name and the group."""
    peer = await hall.peer()
    reply = await peer.ask("subscribe", sub="s1", queue="q")
    assert (reply["status"], reply["body"]) == (200, {"sub": "s1", "consumerGroup": "__QUEUE_MODE__"})
    nulls = dict.fromkeys(
        ("group", "partition", "namespace", "task", "subscriptionMode", "subscriptionFrom", "credit", "batch")
    )
    reply = await peer.ask("subscribe", sub="s2", queue="q", partitions=None, autoAck=None, leaseSeconds=None, **nulls)
    assert reply["ok"]


@pytest.mark.parametrize(
    "fields",
    [
        {"sub": "s"},
        {"queue": "q"},
        {"sub": "", "queue": "q"},
        {"sub": "x" * 257, "queue": "q"},
        {"sub": 7, "queue": "q"},
        {"sub": "s", "queue": 7},
        {"sub": "s", "queue": "a\u0001b"},
        {"sub": "s", "partition": "p", "namespace": "n"},
        {"sub": "s", "queue": "q", "credit": -1},
        {"sub": "s", "queue": "q", "credit": 100_001},
        {"sub": "s", "queue": "q", "credit": "many"},
        {"sub": "s", "queue": "q", "batch": 0},
        {"sub": "s", "queue": "q", "partitions": 0},
        {"sub": "s", "queue": "q", "autoAck": "yes"},
        {"sub": "s", "queue": "q", "leaseSeconds": 0},
        {"sub": "s", "queue": "q", "maxLeaseSeconds": 0},
        {"sub": "s", "queue": "q", "group": "g", "subscriptionFrom": "yesterday"},
    ],
)
async def test_a_bad_field_of_subscribe(hall: House, fields: dict[str, Any]) -> None:
    """A bad field is an error reply; the name stays free."""
    peer = await hall.peer()
    reply = await peer.ask("subscribe", **fields)
    assert (reply["ok"], reply["status"]) == (False, 400)
    assert reply["error"]["error"]
    assert (await peer.ask("subscribe", sub="s", queue="q"))["ok"]


async def test_a_name_too_long_is_413(hall: House) -> None:
    """The name budget is that of every route."""
    peer = await hall.peer()
    reply = await peer.ask("subscribe", sub="s", queue="q" * 400, group="g" * 100)
    assert (reply["status"], reply["error"]["code"]) == (413, "name_too_long")


async def test_sub_is_unique_per_connection(hall: House) -> None:
    """A second subscription of one name is refused; another connection may use the name."""
    peer, other = await hall.peer(), await hall.peer()
    assert (await peer.ask("subscribe", sub="s", queue="q"))["ok"]
    assert (await peer.ask("subscribe", sub="s", queue="q2"))["status"] == 409
    assert (await other.ask("subscribe", sub="s", queue="q"))["ok"]


async def test_too_many_subscriptions(hall: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their number on one connection is bounded."""
    monkeypatch.setattr(limits, "WS_SUBSCRIPTIONS", 2)
    peer = await hall.peer()
    for name in ("a", "b"):
        assert (await peer.ask("subscribe", sub=name, queue="q"))["ok"]
    assert (await peer.ask("subscribe", sub="c", queue="q"))["status"] == 429
    assert (await peer.ask("unsubscribe", sub="a"))["ok"]
    assert (await peer.ask("subscribe", sub="c", queue="q"))["ok"]


async def test_a21_what_is_pushed_after_the_reply_is_delivered(hall: House) -> None:
    """A21. The reply is the start of a `new` subscription: what is pushed after it is delivered, what was there before
    is not, also before any credit is granted."""
    peer = await hall.peer()
    await pushed(hall, "q", "old")
    reply = await peer.ask("subscribe", sub="s", queue="q", group="g", subscriptionMode="new", credit=0)
    assert reply["body"] == {"sub": "s", "consumerGroup": "g"}
    await pushed(hall, "q", *range(10))
    assert await nothing_more(peer)
    await peer.ask("credit", sub="s", add=10)
    assert await collect(peer, 10) == list(range(10))


async def test_a21_a_new_subscription_of_one_partition(hall: House) -> None:
    """A21, for a subscription of one partition, which is made only later."""
    peer = await hall.peer()
    await pushed(hall, "q", "old", partition="p")
    for sub, partition in (("s1", "p"), ("s2", "later")):
        await peer.ask(
            "subscribe", sub=sub, queue="q", partition=partition, group="g", subscriptionMode="new", credit=0
        )
    await pushed(hall, "q", 1, partition="p")
    await pushed(hall, "q", 2, partition="later")
    await trio.sleep(5)
    await peer.ask("credit", sub="s1", add=1)
    await peer.ask("credit", sub="s2", add=1)
    assert data(await peer.event("messages", sub="s1")) == [1]
    assert data(await peer.event("messages", sub="s2")) == [2]


async def test_a21_a_new_subscription_by_discovery(hall: House) -> None:
    """A21, for queues found by their labels, one of them made later."""
    peer = await hall.peer()
    await peer.ask("configure", queue="a", namespace="ns")
    await pushed(hall, "a", "old")
    await peer.ask("subscribe", sub="s", namespace="ns", group="g", subscriptionFrom="now", credit=0)
    await pushed(hall, "a", 1)
    await peer.ask("configure", queue="b", namespace="ns")
    await pushed(hall, "b", 2)
    await trio.sleep(5)
    await peer.ask("credit", sub="s", add=10)
    assert sorted(await collect(peer, 2)) == [1, 2]


async def test_mode_new_by_default() -> None:
    """An operator's default of `new` counts as if it had been asked for."""
    async with house(Settings(data=None, subscription_mode="new")) as hall:
        peer = await hall.peer()
        await pushed(hall, "q", "old")
        await peer.ask("subscribe", sub="s", queue="q", group="g")
        await pushed(hall, "q", 1)
        assert await collect(peer, 1) == [1]


async def test_mode_all_and_from_an_instant(hall: House) -> None:
    """`all`, the default, has everything that is kept; an instant has what came at or after it."""
    peer = await hall.peer()
    await pushed(hall, "q", 1)
    await trio.sleep(10)
    middle = (await peer.ask("pop", queue="q", consumerGroup="look"))["body"]["messages"][0]["createdAt"]
    since = datetime.fromisoformat(middle).replace(microsecond=0).isoformat()
    await pushed(hall, "q", 2)
    await peer.ask("subscribe", sub="all", queue="q", group="g1")
    await peer.ask("subscribe", sub="since", queue="q", group="g2", subscriptionFrom=since)
    await peer.ask("subscribe", sub="none", queue="q", group="g3", subscriptionFrom="2100-01-01T00:00:00Z")
    assert data(await peer.event("messages", sub="all")) == [1, 2]
    assert data(await peer.event("messages", sub="since")) == [1, 2]
    assert await nothing_more(peer)


async def test_subscribe_then_push_pipelined(hall: House) -> None:
    """A push behind a `new` subscribe comes after it, without waiting for the reply."""
    peer = await hall.peer()
    await pushed(hall, "q", 0)
    await peer.say(
        {"id": 1, "op": "subscribe", "sub": "s", "queue": "q", "group": "g", "subscriptionMode": "new"},
        {"id": 2, "op": "push", "items": items("q", 1)},
    )
    assert (await peer.reply(1))["ok"]
    assert await collect(peer, 1) == [1]


async def test_the_reply_comes_before_the_first_delivery(hall: House) -> None:
    """Whoever subscribes knows it before messages come."""
    peer = await hall.peer()
    await pushed(hall, "q", 1)
    await peer.say({"id": 1, "op": "subscribe", "sub": "s", "queue": "q"})
    await peer.expect(lambda message: message.get("event") == "messages")
    kinds = [json.loads(text).get("event", "reply") for text in peer.raw_texts]
    assert kinds == ["welcome", "reply", "messages"]


# -- deliveries --------------------------------------------------------------------------------------------------------


async def test_a_delivery_is_shaped_as_pop_shapes_it(hall: House) -> None:
    """Each message is shaped as pop shapes it, in an event of its one partition."""
    peer = await hall.peer()
    await peer.ask("push", items=[{"queue": "q", "partition": "p", "payload": {"a": 1}, "transactionId": "t"}])
    await peer.ask("subscribe", sub="s", queue="q", group="g")
    event = await peer.event("messages")
    popped = (await peer.ask("pop", queue="q", consumerGroup="other"))["body"]
    (message,) = event["messages"]
    assert event == {
        "event": "messages",
        "sub": "s",
        "queue": "q",
        "partition": "p",
        "partitionId": popped["partitionId"],
        "leaseId": event["leaseId"],
        "consumerGroup": "g",
        "messages": [message],
    }
    (expected,) = popped["messages"]
    assert message == {**expected, "leaseId": event["leaseId"], "consumerGroup": "g"}
    assert list(message) == list(expected)
    assert event["leaseId"]


async def test_one_frame_has_one_partition_in_offset_order(hall: House) -> None:
    """One frame holds messages of one partition, in offset order."""
    peer = await hall.peer()
    for partition, n in itertools.product(("a", "b", "c"), range(3)):
        await pushed(hall, "q", f"{partition}{n}", partition=partition)
    await peer.ask("subscribe", sub="s", queue="q")
    seen: dict[str, list[str]] = {}
    for _ in range(3):
        event = await peer.event("messages")
        assert {message["partition"] for message in event["messages"]} == {event["partition"]}
        assert [message["offset"] for message in event["messages"]] == [0, 1, 2]
        seen[event["partition"]] = data(event)
    assert seen == {p: [f"{p}0", f"{p}1", f"{p}2"] for p in "abc"}


async def test_large_claims_are_told_in_several_frames(hall: House) -> None:
    """A claim of megabytes comes as frames that common clients take, still in order and under one lease."""
    peer = await hall.peer()
    await peer.ask("push", items=items("q", *[f"{n}:" + "x" * 100_000 for n in range(20)]))
    await peer.ask("subscribe", sub="s", queue="q")
    found, leases = [], set()
    while len(found) < 20:
        event = await peer.event("messages")
        found += [int(text.partition(":")[0]) for text in data(event)]
        leases.add(event["leaseId"])
    assert found == list(range(20))
    assert len(leases) == 1
    assert max(len(text) for text in peer.raw_texts) < 1 << 20


async def test_a_fired_timer_arrives_with_its_key(hall: House) -> None:
    """A message has `timerKey` in addition when a timer fired it, the moment that it is due (A49)."""
    peer = await hall.peer()
    await peer.ask("subscribe", sub="s", queue="q")
    payload = base64.b64encode(b'{"n":1}').decode()
    timer = {"op": "schedule", "queue": "q", "timerKey": "k/1", "payload": payload, "delayMs": 500, "txn": "t"}
    began = trio.current_time()
    await peer.ask("timers", operations=[timer])
    (message,) = (await peer.event("messages"))["messages"]
    assert (message["timerKey"], message["transactionId"], message["data"]) == ("k/1", "t", {"n": 1})
    assert 0.5 <= trio.current_time() - began < 0.8
    await pushed(hall, "q", 2, partition="other")
    assert "timerKey" not in (await peer.event("messages"))["messages"][0]


async def test_one_lease_per_partition_and_group(hall: House) -> None:
    """The same cursor serves HTTP and WebSocket consumers of one group; another group is not affected."""
    peer, other = await hall.peer(), await hall.peer()
    await peer.ask("subscribe", sub="s", queue="q", group="g")
    await pushed(hall, "q", 1, 2)
    event = await peer.event("messages")
    await other.ask("subscribe", sub="s", queue="q", group="g")
    assert await nothing_more(other)
    assert (await other.ask("pop", queue="q", consumerGroup="g"))["status"] == 204
    assert (await other.ask("pop", queue="q", consumerGroup="g2", batch=5))["body"]["messages"]
    await other.ask("ack", acknowledgments=acks(event, 0), consumerGroup="g")
    await other.ask("ack", acknowledgments=acks(event, 1, status="failed"), consumerGroup="g")
    again = await first_delivery(peer, other)
    assert (data(again), again["messages"][0]["deliveryAttempt"]) == ([2], 2)


async def first_delivery(*peers: Peer) -> dict[str, Any]:
    """The first delivery that one of them gets."""
    found: list[dict[str, Any]] = []

    async def wait(peer: Peer, scope: trio.CancelScope) -> None:
        found.append(await peer.event("messages"))
        scope.cancel()

    async with trio.open_nursery() as nursery:
        for peer in peers:
            nursery.start_soon(wait, peer, nursery.cancel_scope)
    return found[0]


async def test_retry_budget_and_dlq_are_as_for_pop(hall: House) -> None:
    """A message that fails past its budget is dead-lettered, and the next one comes (A19)."""
    peer = await hall.peer()
    await peer.ask("configure", queue="q", options={"retryLimit": 1})
    await peer.ask("subscribe", sub="s", queue="q", batch=1)
    await pushed(hall, "q", "bad", "good")
    for _ in range(2):
        event = await peer.event("messages")
        assert data(event) == ["bad"]
        reply = await peer.ask("ack", acknowledgments=acks(event, status="failed"))
    assert reply["body"][0]["dlq"]
    assert data(await peer.event("messages")) == ["good"]


async def test_nothing_is_delivered_before_it_is_durable() -> None:
    """No push reveals what is not durable yet, neither the message nor its lease."""
    faults = Faults(latency=1)
    async with house(faults=faults) as hall:
        peer, other = await hall.peer(), await hall.peer()
        await peer.ask("subscribe", sub="s", queue="q")
        began = trio.current_time()
        await other.ask("push", items=items("q", 1))
        await peer.event("messages")
        assert trio.current_time() - began >= 1


async def test_by_discovery(hall: House) -> None:
    """Instead of a queue: the queues of a namespace and a task."""
    peer = await hall.peer()
    await peer.ask("configure", queue="a", namespace="ns", task="t")
    await peer.ask("configure", queue="b", namespace="ns", task="other")
    await peer.ask("subscribe", sub="s", namespace="ns", task="t", queue=None)
    await pushed(hall, "b", 1)
    await pushed(hall, "a", 2)
    event = await peer.event("messages")
    assert (event["queue"], data(event)) == ("a", [2])


@pytest.mark.parametrize("how", ["push", "transaction", "timer", "nack", "expiry", "seek", "queue created after"])
async def test_a63_every_way_wakes_a_subscription(hall: House, how: str) -> None:
    """A63. However a message becomes available, the subscriber has it in under half a second."""
    peer, other = await hall.peer(), await hall.peer()
    if how != "queue created after":
        await pushed(hall, "q", 0)
        first = (await other.ask("pop", queue="q", leaseSeconds=10))["body"]
        if how not in ("nack", "expiry"):
            await other.ask("ack", acknowledgments=acks(first))
    await peer.ask("subscribe", sub="s", queue="q")
    await trio.sleep(5)
    began = trio.current_time()
    if how in ("push", "queue created after"):
        await pushed(hall, "q", 1)
    elif how == "transaction":
        await other.ask("transaction", operations=[{"type": "push", "queue": "q", "payload": 1}])
    elif how == "timer":
        timer = {"op": "schedule", "queue": "q", "timerKey": "k", "payload": "MQ==", "delayMs": 0, "txn": "t"}
        await other.ask("timers", operations=[timer])
    elif how == "nack":
        await other.ask("ack", acknowledgments=acks(first, status="failed"))
    elif how == "seek":
        await hall.broker.seek("__QUEUE_MODE__", "q", None, 0)
    else:
        began += 5
    await peer.event("messages")
    assert trio.current_time() - began < 0.5


# -- credit ------------------------------------------------------------------------------------------------------------


async def test_at_most_credit_is_unsettled(hall: House) -> None:
    """At most `credit` delivered messages are unsettled at once."""
    peer = await hall.peer()
    await pushed(hall, "q", *range(20))
    await peer.ask("subscribe", sub="s", queue="q", credit=7, batch=100)
    event = await peer.event("messages")
    assert data(event) == list(range(7))
    assert await nothing_more(peer)


async def test_the_default_credit_is_100(hall: House) -> None:
    """Without a `credit`, 100 messages."""
    peer = await hall.peer()
    await pushed(hall, "q", *range(150))
    await peer.ask("subscribe", sub="s", queue="q", batch=1000)
    assert len(await collect(peer, 100)) == 100
    assert await nothing_more(peer)


async def test_credit_over_several_partitions(hall: House) -> None:
    """It is one credit for all partitions together."""
    peer = await hall.peer()
    for partition in range(10):
        await pushed(hall, "q", *range(5), partition=f"p{partition}")
    await peer.ask("subscribe", sub="s", queue="q", credit=12)
    await collect(peer, 12)
    assert await nothing_more(peer)


@pytest.mark.parametrize("status", ["completed", "failed", "retry", "dlq"])
async def test_an_ack_or_nack_gives_credit_back(hall: House, status: str) -> None:
    """An ack or a nack gives credit back by itself."""
    peer = await hall.peer()
    await pushed(hall, "q", *range(4), partition="a")
    await pushed(hall, "q", *range(4), partition="b")
    await peer.ask("subscribe", sub="s", queue="q", credit=4, partitions=1)
    first = await peer.event("messages")
    assert await nothing_more(peer)
    await peer.ask("ack", acknowledgments=acks(first, status=status))
    assert (await peer.event("messages"))["partition"] != first["partition"]


async def test_a_partial_ack_gives_back_what_it_settles(hall: House) -> None:
    """An ack settles everything below it: so much credit comes back, while the rest stays leased."""
    peer = await hall.peer()
    await pushed(hall, "q", *range(4), partition="a")
    await peer.ask("subscribe", sub="s", queue="q", credit=4)
    first = await peer.event("messages")
    await pushed(hall, "q", *range(10), partition="b")
    assert await nothing_more(peer)
    await peer.ask("ack", acknowledgments=acks(first, 2))
    second = await peer.event("messages")
    assert (second["partition"], data(second)) == ("b", [0, 1, 2])
    assert await nothing_more(peer)
    await peer.ask("ack", acknowledgments=acks(first, 3))
    await peer.ask("ack", acknowledgments=acks(second))
    assert (await collect(peer, 4)) == [3, 4, 5, 6]


async def test_an_ack_by_another_way_gives_credit_back(hall: House) -> None:
    """Over HTTP, in a transaction, on another connection: a settled message is settled."""
    peer, other = await hall.peer(), await hall.peer()
    await pushed(hall, "q", *range(3))
    await peer.ask("subscribe", sub="s", queue="q", credit=1)
    event = await peer.event("messages")
    await other.ask("ack", acknowledgments=acks(event))
    event = await peer.event("messages")
    (ack,) = acks(event)
    await other.ask("transaction", operations=[{"type": "ack", **ack}])
    assert data(await peer.event("messages")) == [2]


async def test_a_lost_lease_gives_credit_back(hall: House) -> None:
    """A lost lease gives credit back by itself."""
    peer = await hall.peer()
    await pushed(hall, "q", 1, 2)
    await peer.ask("subscribe", sub="s", queue="q", credit=2, maxLeaseSeconds=3)
    assert await collect(peer, 2) == [1, 2]
    await trio.sleep(3.5)
    assert await collect(peer, 2) == [1, 2]


async def test_auto_ack_is_durable_and_credit_comes_by_credit(hall: House) -> None:
    """With `autoAck` the cursor is durable before the frame is sent, and credit comes back by `credit` only."""
    peer = await hall.peer()
    await pushed(hall, "q", *range(10))
    await peer.ask("subscribe", sub="s", queue="q", credit=3, autoAck=True)
    event = await peer.event("messages")
    assert (data(event), event["leaseId"], event["messages"][0]["leaseId"]) == ([0, 1, 2], "", "")
    assert await nothing_more(peer)
    reply = await peer.ask("credit", sub="s", add=5)
    assert reply["body"] == {"sub": "s"}
    assert await collect(peer, 5) == [3, 4, 5, 6, 7]
    assert await nothing_more(peer)
    await peer.close()
    await peer.ended.wait()
    other = await hall.peer()
    assert [m["data"] for m in (await other.ask("pop", queue="q", batch=9))["body"]["messages"]] == [8, 9]


async def test_credit_works_on_every_subscription(hall: House) -> None:
    """decisions.md: `credit` works without autoAck too, and a subscription may start with none."""
    peer = await hall.peer()
    await pushed(hall, "q", *range(5))
    await peer.ask("subscribe", sub="s", queue="q", credit=0)
    assert await nothing_more(peer)
    await peer.ask("credit", sub="s", add=2)
    assert await collect(peer, 2) == [0, 1]
    assert await nothing_more(peer)


@pytest.mark.parametrize("fields", [{"sub": "s"}, {"sub": "s", "add": 0}, {"sub": "s", "add": -1}, {"add": 1}])
async def test_a_bad_credit(hall: House, fields: dict[str, Any]) -> None:
    """A bad field is an error reply, an unknown subscription a 404."""
    peer = await hall.peer()
    await peer.ask("subscribe", sub="s", queue="q")
    assert (await peer.ask("credit", **fields))["status"] == 400
    assert (await peer.ask("credit", sub="other", add=1))["status"] == 404


async def test_a14_a_slow_consumer_hoards_nothing(hall: House) -> None:
    """A14. With credit 1 a slow consumer never holds more than one delivery; another one drains the rest."""
    slow, quick = await hall.peer(), await hall.peer()
    await slow.ask("subscribe", sub="s", queue="q", group="g", credit=1)
    await quick.ask("subscribe", sub="s", queue="q", group="g", credit=10)
    for n in range(30):
        await pushed(hall, "q", n, partition=f"p{n}")
    held = await slow.event("messages")
    assert len(held["messages"]) == 1
    done: list[int] = []
    while len(done) < 29:
        event = await quick.event("messages")
        done += data(event)
        await quick.ask("ack", acknowledgments=acks(event), consumerGroup="g")
    assert sorted(done + data(held)) == list(range(30))
    assert slow.events("messages") == []


# -- the lease lives with the connection -------------------------------------------------------------------------------


async def test_a_lease_is_kept_while_the_peer_answers(hall: House) -> None:
    """While the peer answers pings its leases are extended: a slow handler keeps its message."""
    peer, other = await hall.peer(), await hall.peer()
    await pushed(hall, "q", 1)
    await peer.ask("subscribe", sub="s", queue="q", leaseSeconds=60)
    event = await peer.event("messages")
    await trio.sleep(1000)
    assert (await other.ask("pop", queue="q"))["status"] == 204
    assert (await peer.ask("ack", acknowledgments=acks(event)))["body"][0]["success"]
    assert peer.events("lease") == []


async def test_a_peer_is_pinged_no_oftener_while_a_subscription_is_opened() -> None:
    """However long the disk takes for it."""
    faults = Faults()
    async with house(Settings(data=None, heartbeat_seconds=5), faults=faults) as hall:
        peer = await hall.peer()
        faults.latency = 8.0
        await peer.say({"id": 1, "op": "subscribe", "sub": "s", "queue": "q", "leaseSeconds": 6})
        await trio.sleep(5)
        for _ in range(1000):
            await trio.lowlevel.checkpoint()
            assert peer.pings <= 1
        assert (await peer.reply(1))["ok"]
        assert peer.pings <= 3


@pytest.mark.parametrize("seconds", [1, 2, 5])
async def test_a_lease_shorter_than_the_heartbeat_is_kept(hall: House, seconds: int) -> None:
    """Pings come often enough for the shortest lease of the connection."""
    peer, other = await hall.peer(), await hall.peer()
    await trio.sleep(1)
    await peer.ask("subscribe", sub="s", queue="q", leaseSeconds=seconds)
    await trio.sleep(7)
    await pushed(hall, "q", 1)
    event = await peer.event("messages")
    await trio.sleep(100)
    assert (await other.ask("pop", queue="q"))["status"] == 204
    assert (await peer.ask("ack", acknowledgments=acks(event)))["body"][0]["success"]


async def test_a_lease_of_a_frozen_peer_is_not_extended(hall: House) -> None:
    """Only who answers keeps its leases: a frozen peer loses a short one in its time, and until it answers again it
    gets nothing more, lest one message go round until its delivery limit."""
    peer = await hall.peer(answers_pings=False)
    await pushed(hall, "q", 1)
    await peer.ask("subscribe", sub="s", queue="q", leaseSeconds=2)
    await peer.event("messages")
    await trio.sleep(2.1)
    assert peer.events("lease")[0]["reason"] == "expired"
    assert await nothing_more(peer)
    other = await hall.peer()
    popped = await other.ask("pop", queue="q")
    assert popped["body"]["messages"][0]["deliveryAttempt"] == 2


async def test_a_peer_that_thaws_goes_on(hall: House) -> None:
    """A peer that answers late, but in time, gets messages again."""
    peer = await hall.peer()
    await peer.ask("subscribe", sub="s", queue="q", leaseSeconds=2)
    peer.reading = trio.Event()
    await trio.sleep(10)
    await pushed(hall, "q", 1)
    await trio.sleep(5)
    peer.reading.set()
    assert await collect(peer, 1) == [1]


async def test_up_to_max_lease_seconds_after_the_delivery(hall: House) -> None:
    """However alive the peer is, its lease ends `maxLeaseSeconds` after the delivery, and it is told so."""
    peer = await hall.peer()
    await pushed(hall, "q", 1)
    await peer.ask("subscribe", sub="s", queue="q", leaseSeconds=60, maxLeaseSeconds=600)
    event = await peer.event("messages")
    began = trio.current_time()
    lost = await peer.expect(lambda message: message.get("event") == "lease", seconds=700)
    assert 595 <= trio.current_time() - began <= 601
    assert lost == {
        "event": "lease",
        "sub": "s",
        "leaseId": event["leaseId"],
        "state": "lost",
        "reason": "maxLease",
        "partition": "Default",
        "partitionId": event["partitionId"],
    }
    again = await peer.event("messages")
    assert again["messages"][0]["deliveryAttempt"] == 2


async def test_a_lease_longer_than_the_maximum(hall: House) -> None:
    """The first lease is no longer than the maximum either."""
    peer = await hall.peer()
    await pushed(hall, "q", 1)
    await peer.ask("subscribe", sub="s", queue="q", leaseSeconds=60, maxLeaseSeconds=5)
    await peer.event("messages")
    await trio.sleep(4.5)
    assert peer.events("lease") == []
    await trio.sleep(1)
    assert peer.events("lease")[0]["reason"] == "maxLease"


@pytest.mark.parametrize("ending", ["close", "end of stream"])
async def test_a02_leases_are_given_back_when_the_connection_ends(hall: House, ending: str) -> None:
    """A02. The connection is known to be dead: another consumer has the message in under a second, as attempt 2, and
    the retry budget is not charged."""
    peer, other = await hall.peer(), await hall.peer()
    await peer.ask("configure", queue="q", options={"retryLimit": 0})
    await peer.ask("subscribe", sub="s", queue="q", leaseSeconds=60)
    await pushed(hall, "q", 1)
    await peer.event("messages")
    await other.ask("subscribe", sub="s", queue="q")
    began = trio.current_time()
    await (peer.close() if ending == "close" else peer.stream.aclose())
    event = await other.event("messages")
    assert trio.current_time() - began < 1
    assert (data(event), event["messages"][0]["deliveryAttempt"]) == ([1], 2)
    assert (await other.ask("ack", acknowledgments=acks(event)))["body"][0]["success"]


@pytest.mark.parametrize("ending", ["close", "end of stream"])
async def test_acks_before_the_end_are_applied_first(ending: str) -> None:
    """Acks received before the end of the stream are applied first: none is dropped because a close follows it."""
    async with house(faults=Faults(latency=0.05)) as hall:
        peer, other = await hall.peer(), await hall.peer()
        await pushed(hall, "q", 1, 2, 3)
        await peer.ask("subscribe", sub="s", queue="q")
        event = await peer.event("messages")
        await peer.say(
            {"op": "ack", "acknowledgments": acks(event, 0)}, {"op": "ack", "acknowledgments": acks(event, 1)}
        )
        await (peer.close() if ending == "close" else peer.stream.aclose())
        await other.ask("subscribe", sub="s", queue="q")
        again = await other.event("messages")
        assert (data(again), again["messages"][0]["deliveryAttempt"]) == ([3], 2)


async def test_a11_liveness_is_the_connections(hall: House) -> None:
    """A11. A new connection under the same names does not keep what a dead one held: it comes back on time, once."""
    dead = await hall.peer(answers_pings=False)
    await dead.ask("subscribe", sub="w1", queue="q", group="g")
    await pushed(hall, "q", "m1")
    await dead.event("messages")
    reborn = await hall.peer()
    await reborn.ask("subscribe", sub="w1", queue="q", group="g")
    assert await nothing_more(reborn, 10)
    await trio.sleep(35)
    assert dead.ended.is_set()
    event = await reborn.event("messages")
    assert (data(event), event["messages"][0]["deliveryAttempt"]) == (["m1"], 2)
    assert await nothing_more(reborn)


@pytest.mark.parametrize("reason", ["expired", "seek", "deleted"])
async def test_a_lease_that_ends_is_told(hall: House, reason: str) -> None:
    """A lease that ends while the connection lives is told, with its reason."""
    peer = await hall.peer(answers_pings=reason != "expired")
    await pushed(hall, "q", 1)
    await peer.ask("subscribe", sub="s", queue="q", group="g", leaseSeconds=10)
    event = await peer.event("messages")
    if reason == "seek":
        await hall.broker.seek("g", "q", None, None)
    elif reason == "deleted":
        await hall.broker.delete_queue("q")
    lost = await peer.event("lease")
    assert (lost["leaseId"], lost["state"], lost["reason"]) == (event["leaseId"], "lost", reason)


async def test_a_settled_lease_is_not_lost(hall: House) -> None:
    """Whoever acks or nacks knows that the lease is over."""
    peer = await hall.peer()
    await pushed(hall, "q", 1)
    await peer.ask("subscribe", sub="s", queue="q")
    for status in ("failed", "completed"):
        event = await peer.event("messages")
        await peer.ask("ack", acknowledgments=acks(event, status=status))
    await trio.sleep(100)
    assert peer.events("lease") == []


async def test_unsubscribe_gives_back_what_is_leased(hall: House) -> None:
    """`unsubscribe` has the effect of a lost connection, for its subscription only."""
    peer, other = await hall.peer(), await hall.peer()
    await pushed(hall, "q", 1)
    await pushed(hall, "q2", 2)
    await peer.ask("subscribe", sub="s", queue="q")
    await peer.ask("subscribe", sub="kept", queue="q2")
    await peer.event("messages", sub="s")
    kept = await peer.event("messages", sub="kept")
    reply = await peer.ask("unsubscribe", sub="s")
    assert reply["body"] == {"sub": "s"}
    popped = await other.ask("pop", queue="q")
    assert popped["body"]["messages"][0]["deliveryAttempt"] == 2
    await pushed(hall, "q", 3, partition="other")
    assert await nothing_more(peer)
    assert (await peer.ask("ack", acknowledgments=acks(kept)))["body"][0]["success"]
    assert (await peer.ask("unsubscribe", sub="s"))["status"] == 404
    assert peer.events("lease") == []


async def test_subscribe_and_unsubscribe_pipelined(hall: House) -> None:
    """In the order sent: at the end there is the last subscription, and no other."""
    peer = await hall.peer()
    for n in range(10):
        await peer.say(
            {"id": f"a{n}", "op": "subscribe", "sub": "s", "queue": "q"},
            {"id": f"b{n}", "op": "unsubscribe", "sub": "s"},
        )
    await peer.say({"id": "last", "op": "subscribe", "sub": "s", "queue": "q"})
    assert (await peer.reply("last"))["ok"]
    for n in range(10):
        assert (await peer.reply(f"a{n}"))["ok"]
        assert (await peer.reply(f"b{n}"))["ok"]
    await pushed(hall, "q", 1)
    assert await collect(peer, 1) == [1]
    assert await nothing_more(peer)


async def test_an_unsubscribe_waits_for_its_subscribe() -> None:
    """Sent behind a subscribe that is not durable yet, it is answered after it."""
    async with house(faults=Faults(latency=1)) as hall:
        peer = await hall.peer()
        await peer.say(
            {"id": 1, "op": "subscribe", "sub": "s", "queue": "q", "group": "g"},
            {"id": 2, "op": "unsubscribe", "sub": "s"},
        )
        assert (await peer.expect(lambda message: "id" in message))["id"] == 1
        assert (await peer.reply(2))["ok"]


@pytest.mark.parametrize("credit", [1, 100])
@pytest.mark.parametrize("group", [None, "g"])
async def test_a_subscription_outlives_its_queue(hall: House, credit: int, group: str | None) -> None:
    """decisions.md: a subscription whose queue is deleted stays, and follows the queue when it is created again; it
    does not bring the queue back itself."""
    peer = await hall.peer()
    await peer.ask("subscribe", sub="s", queue="q", group=group, subscriptionMode="new", credit=credit)
    await pushed(hall, "q", 1)
    assert await collect(peer, 1) == [1]
    await hall.broker.delete_queue("q")
    assert (await peer.event("lease"))["reason"] == "deleted"
    await trio.sleep(10_000)
    assert await hall.broker.queue_view("q") is None
    await pushed(hall, "q", 2)
    assert await collect(peer, 1) == [2]


async def test_deliveries_resume_when_the_disk_has_room_again() -> None:
    """While the disk is full nothing is leased; when there is room again the subscription goes on by itself."""
    faults = Faults()
    async with house(faults=faults) as hall:
        peer = await hall.peer()
        await peer.ask("subscribe", sub="s", queue="q")
        await pushed(hall, "q", 1)
        event = await peer.event("messages")
        faults.full = True
        assert (await peer.ask("ack", acknowledgments=acks(event)))["status"] == 507
        await trio.sleep(10)
        faults.full = False
        await trio.sleep(5)
        other = await hall.peer()
        await other.ask("push", items=items("q", 2, partition="p2"))
        assert 2 in await collect(peer, 1)

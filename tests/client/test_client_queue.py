"""Queues and messages: the requests on the wire, and what becomes of the answers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from client_fakes import FakeTransport, answer, lost

from queen_actors import open_broker
from queen_actors.client import ProtocolError, PushError, Retry, serving
from queen_actors.errors import NotFound

QUEUED = {"index": 0, "message_id": "m", "transaction_id": "t", "queueName": "orders", "status": "queued", "offset": 17}
POPPED: dict[str, Any] = {
    "success": True,
    "queue": "orders",
    "partition": "p1",
    "partitionId": "7",
    "leaseId": "L1",
    "consumerGroup": "g",
    "messages": [
        {
            "id": "m",
            "transactionId": "t0",
            "traceId": None,
            "data": {"a": 1},
            "producerSub": None,
            "createdAt": "2026-08-01T00:00:00.123Z",
            "partitionId": "7",
            "partition": "p1",
            "leaseId": "L1",
            "consumerGroup": "g",
            "deliveryAttempt": 2,
            "offset": 5,
        }
    ],
    "partitionsClaimed": 1,
}
SETTLED = {"index": 0, "transactionId": "t0", "success": True, "error": None, "leaseReleased": True}
REFUSED = {"index": 0, "transactionId": "t0", "success": False, "error": "invalid or expired lease"}


async def test_a_push_over_a_network_can_be_sent_again(autojump_clock: object) -> None:
    """Each item has an id of its own from the start, so the resend is a duplicate and not a second message."""
    transport = FakeTransport(lost(sent=True), answer([QUEUED], 201), answer([QUEUED, QUEUED], 201))
    async with serving(transport) as queen:
        (pushed,) = await queen.queue("orders").push({"a": 1})
        assert (pushed.status, pushed.offset, pushed.message_id, pushed.duplicate) == ("queued", 17, "m", False)
        await queen.queue("orders").partition("p").push([{"data": 1, "transactionId": "x"}, 2])
    first, again, two = transport.asked
    assert (first.method, first.path) == ("POST", "/api/v1/push")
    assert first.body == again.body == {"items": [{"queue": "orders", "payload": {"a": 1}, "transactionId": "id-1"}]}
    assert two.body["items"] == [
        {"queue": "orders", "payload": 1, "transactionId": "x", "partition": "p"},
        {"queue": "orders", "payload": 2, "transactionId": "id-2", "partition": "p"},
    ]


async def test_refused_items_are_raised_with_every_verdict() -> None:
    """A failed item must not go unnoticed; the others are stored, and told."""
    failed = {"index": 1, "status": "failed", "error": "no"}
    async with serving(FakeTransport(answer([QUEUED, failed], 201))) as queen:
        with pytest.raises(PushError, match="1 of 2 items were refused: no") as caught:
            await queen.queue("orders").push([1, 2])
    assert [bool(one) for one in caught.value.results] == [True, False]


async def test_a_short_answer_is_no_answer() -> None:
    """Results are by position: fewer of them would tell about the wrong items."""
    async with serving(FakeTransport(answer([QUEUED], 201))) as queen:
        with pytest.raises(ProtocolError, match="2 items"):
            await queen.queue("orders").push([1, 2])
        assert await queen.queue("orders").push([]) == []


@pytest.mark.parametrize(
    ("choose", "keywords", "path", "query"),
    [
        (lambda q: q, {}, "/queue/orders", ""),
        (lambda q: q.group("a/b").batch(5), {}, "/queue/orders", "batch=5&consumerGroup=a%2Fb"),
        (
            lambda q: q,
            {"batch": 1, "wait": 0.5, "group": "g"},
            "/queue/orders",
            "batch=1&wait=true&timeout=500&consumerGroup=g",
        ),
        (lambda q: q.wait(), {}, "/queue/orders", "wait=true&timeout=30000"),
        (lambda q: q.wait(timedelta(minutes=5)), {}, "/queue/orders", "wait=true&timeout=60000"),
        (lambda q: q.wait(True), {"wait": False}, "/queue/orders", ""),
        (lambda q: q.partition("p#1?z"), {}, "/queue/orders/partition/p%231%3Fz", ""),
        (
            lambda q: q.auto_ack().partitions(3).lease_seconds(9).subscription_mode("new").conflation(),
            {},
            "/queue/orders",
            "autoAck=true&leaseSeconds=9&subscriptionMode=new&partitions=3&conflation=true",
        ),
        (
            lambda q: q.subscription_from(datetime(2026, 8, 1, 2, tzinfo=timezone(timedelta(hours=2)))),
            {},
            "/queue/orders",
            "subscriptionFrom=2026-08-01T00%3A00%3A00.000000Z",
        ),
    ],
)
async def test_the_requests_of_a_pop(choose: Any, keywords: dict[str, Any], path: str, query: str) -> None:
    """What was chosen step by step or by keyword, and nothing else; names are escaped."""
    transport = FakeTransport(answer(status=204))
    async with serving(transport) as queen:
        assert await choose(queen.queue("orders")).pop(**keywords) == []
    (asked,) = transport.asked
    assert (asked.method, asked.path, asked.query) == ("GET", f"/api/v1/pop{path}", query)


async def test_a_waiting_pop_gets_the_time_it_needs() -> None:
    """Its wait and a margin; a call that does not wait has the ordinary deadline."""
    transport = FakeTransport(answer(status=204), answer(status=204))
    async with serving(transport) as queen:
        await queen.queue("orders").pop(wait=60)
        await queen.queue("orders").pop()
    assert [asked.seconds for asked in transport.asked] == [65, 30]


async def test_discovery_names_no_queue() -> None:
    """By namespace and task."""
    transport = FakeTransport(answer(status=204))
    async with serving(transport) as queen:
        await queen.queue().namespace("ns").task("t").pop()
        with pytest.raises(ValueError, match="needs a queue"):
            await queen.queue().push(1)
    assert (transport.asked[0].path, transport.asked[0].query) == ("/api/v1/pop", "namespace=ns&task=t")


async def test_choosing_leaves_the_queue_as_it_was() -> None:
    """A queue can be kept and shared: a partition chosen here does not show there."""
    transport = FakeTransport(*[answer([QUEUED], 201)] * 2)
    async with serving(transport) as queen:
        orders = queen.queue("orders")
        await orders.partition("p").push(1)
        await orders.push(2)
    assert ["partition" in body["items"][0] for body in transport.bodies] == [True, False]


async def test_a_popped_message_settles_itself() -> None:
    """Under its lease and for the group that it was delivered to."""
    transport = FakeTransport(answer(POPPED), *[answer([SETTLED])] * 4, answer([REFUSED]))
    async with serving(transport) as queen:
        (message,) = await queen.queue("orders").pop(group="g")
        assert message["data"] == message.data == {"a": 1}
        assert (message.queue, message.partition, message.offset, message.delivery_attempt) == ("orders", "p1", 5, 2)
        assert message
        assert (await message.ack()).lease_released
        await message.nack(ValueError("bad"))
        await message.retry()
        await message.dead_letter("poison")
        refused = await message.ack()
        assert not refused
        assert refused.error == "invalid or expired lease"
    acks = [body["acknowledgments"][0] for body in transport.bodies[1:]]
    assert {body["consumerGroup"] for body in transport.bodies[1:]} == {"g"}
    assert {(ack["transactionId"], ack["partitionId"], ack["leaseId"]) for ack in acks} == {("t0", "7", "L1")}
    assert [(ack["status"], ack.get("error")) for ack in acks] == [
        ("completed", None),
        ("failed", "ValueError: bad"),
        ("retry", None),
        ("dlq", "poison"),
        ("completed", None),
    ]


async def test_many_acks_go_in_one_request_for_each_group() -> None:
    """The verdicts come back in the order of the messages; one refusal makes the whole false."""
    one = {**POPPED["messages"][0]}
    two, three = {**one, "transactionId": "t1", "consumerGroup": "h"}, {**one, "transactionId": "t2"}
    transport = FakeTransport(answer([SETTLED, REFUSED]), answer([SETTLED]), answer([SETTLED]))
    async with serving(transport) as queen:
        verdict = await queen.ack([one, two, three], False, error="why")
        assert not verdict
        assert [bool(each) for each in verdict.results] == [True, True, False]
        assert verdict.error == "invalid or expired lease"
        assert await queen.ack([one], True, {"group": "z", "error": "e"})
        assert await queen.ack([]) == {"success": True, "results": []}
    assert [(body["consumerGroup"], len(body["acknowledgments"])) for body in transport.bodies] == [
        ("g", 2),
        ("h", 1),
        ("z", 1),
    ]
    assert transport.bodies[0]["acknowledgments"][0]["status"] == "failed"
    assert transport.bodies[2]["acknowledgments"][0] == {
        "transactionId": "t0",
        "partitionId": "7",
        "status": "completed",
        "error": "e",
        "leaseId": "L1",
    }


async def test_leases_are_renewed_once_each() -> None:
    """Several messages of one lease cost one request."""
    gone = {"leaseId": "L2", "success": False, "renewed": 0, "newExpiresAt": None}
    held = {"leaseId": "L1", "success": True, "renewed": 1, "newExpiresAt": "later"}
    transport = FakeTransport(answer(held), answer(gone), answer(held))
    message = POPPED["messages"][0]
    async with serving(transport) as queen:
        results = await queen.renew([message, {**message, "leaseId": "L2"}, message], 90)
        assert [bool(one) for one in results] == [True, False]
        assert (await queen.renew("L1")).expires_at == "later"
        with pytest.raises(ValueError, match="no lease"):
            await queen.renew({**message, "leaseId": ""})
    assert [(asked.path, asked.body) for asked in transport.asked] == [
        ("/api/v1/lease/L1/extend", {"seconds": 90}),
        ("/api/v1/lease/L2/extend", {"seconds": 90}),
        ("/api/v1/lease/L1/extend", {"seconds": 60}),
    ]


async def test_a_queue_is_configured_by_either_spelling() -> None:
    """`lease_time` and `leaseTime` are one option; only what was named is sent."""
    transport = FakeTransport(*[answer({"configured": True})] * 2, answer({"deleted": True, "existed": True}))
    async with serving(transport) as queen:
        orders = queen.queue("a/b").config({"lease_time": 60}).config({"retryLimit": 5})
        assert (await orders.create())["configured"]
        await orders.namespace("ns").task("t").create(replace=True)
        assert (await orders.delete())["existed"]
    assert transport.bodies[0] == {"queue": "a/b", "options": {"leaseTime": 60, "retryLimit": 5}}
    assert transport.bodies[1] == {**transport.bodies[0], "namespace": "ns", "task": "t", "mode": "replace"}
    assert (transport.asked[2].method, transport.asked[2].path) == ("DELETE", "/api/v1/resources/queues/a%2Fb")


async def test_the_requests_of_administration() -> None:
    """Groups, seeks, subscriptions and dead letters, with every name escaped."""
    transport = FakeTransport(*[answer({"success": True})] * 13)
    at = datetime(2026, 8, 1, tzinfo=UTC)
    async with serving(transport) as queen:
        await queen.delete_consumer_group("g/a b")
        await queen.admin.delete_consumer_group_for_queue("g", "q/1", delete_metadata=False)
        await queen.update_consumer_group_timestamp("g", at)
        await queen.seek("g", "q", to_end=True)
        await queen.seek("g", "q", timestamp="2026-08-01T00:00:00Z", partition="p?1")
        await queen.queue("orders").dlq("g").limit(10).offset(5).from_(at).to("z").get()
        await queen.queue("orders").dlq(limit=3)
        await queen.queue("orders").dlq().replay("D/1")
        await queen.queue("orders").dlq("g").purge()
        await queen.admin.get_message("7", "t/0")
        await queen.admin.get_queue_depth("q", "g")
        await queen.admin.list_messages(queue="q", status="pending")
        await queen.trace({"transactionId": "t", "partitionId": "7", "consumerGroup": "g"}, {"x": 1}, names=["order-1"])
        with pytest.raises(ValueError, match="exactly one of to_end"):
            await queen.seek("g", "q")
    assert [f"{asked.method} {asked.path}?{asked.query}" for asked in transport.asked] == [
        "DELETE /api/v1/consumer-groups/g%2Fa%20b?deleteMetadata=true",
        "DELETE /api/v1/consumer-groups/g/queues/q%2F1?deleteMetadata=false",
        "POST /api/v1/consumer-groups/g/subscription?",
        "POST /api/v1/consumer-groups/g/queues/q/seek?",
        "POST /api/v1/consumer-groups/g/queues/q/partitions/p%3F1/seek?",
        "GET /api/v1/dlq?queue=orders&limit=10&offset=5&consumerGroup=g&from=2026-08-01T00%3A00%3A00.000000Z&to=z",
        "GET /api/v1/dlq?queue=orders&limit=3&offset=0",
        "POST /api/v1/dlq/D%2F1/replay?",
        "DELETE /api/v1/dlq?queue=orders&consumerGroup=g",
        "GET /api/v1/messages/7/t%2F0?",
        "GET /api/v1/resources/queues/q/depth?group=g",
        "GET /api/v1/messages?queue=q&status=pending",
        "POST /api/v1/traces?",
    ]
    bodies = transport.bodies
    assert bodies[2] == {"subscriptionTimestamp": "2026-08-01T00:00:00.000000Z"}
    assert bodies[3] == {"toEnd": True}
    assert bodies[4] == {"timestamp": "2026-08-01T00:00:00Z"}
    assert bodies[12] == {
        "transactionId": "t",
        "partitionId": "7",
        "consumerGroup": "g",
        "traceNames": ["order-1"],
        "eventType": "info",
        "data": {"x": 1},
    }


async def test_a_retry_policy_of_ones_own(autojump_clock: object) -> None:
    """`attempts=1` sends once; such a push leaves the ids to the broker."""
    transport = FakeTransport(answer([QUEUED], 201), retry=Retry(attempts=1))
    async with serving(transport) as queen:
        await queen.queue("orders").push(1)
    assert transport.bodies == [{"items": [{"queue": "orders", "payload": 1}]}]


async def test_a_life_of_a_queue_in_process(autojump_clock: object) -> None:
    """Create, push, pop by group, nack to the dead letter queue, renew, seek, delete."""
    async with open_broker() as queen:
        orders = queen.queue("orders").group("g")
        assert (await orders.config({"retryLimit": 0}).create())["options"]["retryLimit"] == 0
        first, again = await orders.push([{"data": 1, "transactionId": "t"}, {"data": 2, "transactionId": "t"}])
        assert (first.status, again.status) == ("queued", "duplicate")
        assert again.offset == first.offset
        (message,) = await orders.pop()
        assert (await message.nack("poison")).dlq
        dead = await orders.dlq()
        assert dead["total"] == 1
        assert dead["messages"][0]["errorMessage"] == "poison"
        assert await orders.pop() == []
        await orders.push({"data": 2})
        (message,) = await orders.pop(wait=1)
        assert (message.data, message.offset) == (2, 1)
        assert await message.renew(90)
        assert await message.ack()
        assert (await queen.seek("g", "orders", timestamp=datetime(2020, 1, 1)))["success"]
        assert len(await orders.batch(10).pop()) == 2
        assert (await orders.delete())["existed"]
        with pytest.raises(NotFound):
            await queen.admin.get_queue("orders")

"""Push, pop, ack, leases, queues and groups through the API, on a real broker and virtual time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
import trio

if TYPE_CHECKING:
    from conftest import Client

VIRTUAL_TIME = True


async def test_push_pop_ack(client: Client) -> None:
    """The round of every consumer: 201 with one entry per item, 200 with a lease, 200 with one entry per ack, 204."""
    first = await client.push("orders", {"a": 1})
    assert (first[0]["status"], first[0]["offset"], first[0]["queueName"]) == ("queued", 0, "orders")
    status, popped = await client.get("/api/v1/pop/queue/orders?autopilot=true&wait=true&timeout=30000")
    assert status == 200
    (message,) = popped["messages"]
    assert (message["data"], message["deliveryAttempt"], message["transactionId"]) == (
        {"a": 1}, 1, first[0]["transaction_id"],
    )  # fmt: skip
    ack = {name: message[name] for name in ("transactionId", "partitionId", "leaseId")}
    status, answer = await client.post("/api/v1/ack", {**ack, "status": "completed", "error": None})
    assert (status, answer[0]["success"], answer[0]["leaseReleased"]) == (200, True, True)
    assert await client.get("/api/v1/pop/queue/orders") == (204, None)


async def test_every_item_has_its_own_status(client: Client) -> None:
    """A29: new, a known duplicate, new, and a duplicate of this very request; duplicates name the original."""
    item = {"queue": "q", "payload": 1, "transactionId": "old"}
    _, original = await client.post("/api/v1/push", {"items": [item]})
    items = [{**item, "transactionId": name} for name in ("n1", "old", "n2", "n1")]
    status, answer = await client.post("/api/v1/push", {"items": items})
    assert status == 201
    assert [entry["status"] for entry in answer] == ["queued", "duplicate", "queued", "duplicate"]
    assert [entry["index"] for entry in answer] == [0, 1, 2, 3]
    for entry, first in ((answer[1], original[0]), (answer[3], answer[0])):
        assert (entry["message_id"], entry["offset"]) == (first["message_id"], first["offset"])


async def test_empty_pushes_and_acks_are_answered(client: Client) -> None:
    """No items is 201 `[]`, no acks 200 `[]`, no operations `{"results": []}`."""
    assert await client.post("/api/v1/push", {"items": []}) == (201, [])
    assert await client.post("/api/v1/ack/batch", {"acknowledgments": []}) == (200, [])
    for route in ("kv", "locks", "timers"):
        assert await client.post(f"/api/v1/{route}", {"operations": []}) == (200, {"results": []})
        assert await client.post(f"/api/v1/{route}", []) == (200, {"results": []})


async def test_a_long_poll_wakes_on_a_push(client: Client) -> None:
    """The parked pop answers as soon as there is a message, and with 204 when its time is over."""
    started = trio.current_time()
    assert await client.get("/api/v1/pop/queue/q?wait=true&timeout=2000") == (204, None)
    assert trio.current_time() - started == pytest.approx(2, abs=0.1)
    found: list[Any] = []

    async def poll() -> None:
        found.append(await client.get("/api/v1/pop/queue/q?wait=true&timeout=30000"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(poll)
        await trio.testing.wait_all_tasks_blocked()
        started = trio.current_time()
        await client.push("q", 1)
    assert found[0][0] == 200
    assert trio.current_time() - started < 1


async def test_a_drained_api_lets_go_of_its_polls(client: Client) -> None:
    """Parked pops answer 204 at once, later ones too; a conflating one is told to come again instead. No lease."""
    answers: list[Any] = []

    async def poll(target: str) -> None:
        answers.append(await client.reply("GET", target))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(poll, "/api/v1/pop/queue/q?wait=true")
        nursery.start_soon(poll, "/api/v1/pop/queue/c?wait=true&consumerGroup=g&conflation=true")
        await trio.testing.wait_all_tasks_blocked()
        started = trio.current_time()
        client.api.drain()
    assert trio.current_time() - started < 1
    assert sorted(reply.status for reply in answers) == [204, 503]
    assert await client.get("/api/v1/pop/queue/q?wait=true") == (204, None)
    assert client.broker.statistics().leases == 0


NAMES = [
    "Bed&Breakfast",
    "a/b",
    'say "hi"',
    "пример",
    "\U0001f600",
    "a?b#c",
    "%41",
    "x" * 150,
    "a//b",
    "/lead",
    "tail/",
]


@pytest.mark.parametrize("name", NAMES)
async def test_legal_names_round_trip(client: Client, name: str) -> None:
    """A70: a queue, partition, group and transactionId of any legal spelling, where the client escapes them."""
    escaped = quote(name, safe="")
    item = {"queue": name, "partition": name, "payload": name, "transactionId": name}
    _, pushed = await client.post("/api/v1/push", {"items": [item]})
    assert (pushed[0]["queueName"], pushed[0]["transaction_id"]) == (name, name)
    target = f"/api/v1/pop/queue/{escaped}/partition/{escaped}?consumerGroup={escaped}&subscriptionMode=all"
    status, popped = await client.get(target)
    assert status == 200
    (message,) = popped["messages"]
    assert (message["data"], message["partition"], message["consumerGroup"], popped["queue"]) == (name,) * 4
    nack = {name_: message[name_] for name_ in ("transactionId", "partitionId", "leaseId", "consumerGroup")}
    _, answer = await client.post("/api/v1/ack", {**nack, "status": "dlq", "error": name})
    assert (answer[0]["success"], answer[0]["dlq"], answer[0]["transactionId"]) == (True, True, name)
    _, letters = await client.get(f"/api/v1/dlq?queue={escaped}&consumerGroup={escaped}&partition={escaped}")
    assert letters["total"] == 1
    assert letters["messages"][0]["errorMessage"] == name
    status, view = await client.get(f"/api/v1/messages/{message['partitionId']}/{escaped}")
    assert (status, view["transactionId"], view["queue"], view["status"]) == (200, name, name, "dead_letter")
    status, view = await client.get(f"/api/v1/resources/queues/{escaped}")
    assert (status, view["name"], view["partitions"][0]["name"]) == (200, name, name)
    status, gone = await client.delete(f"/api/v1/resources/queues/{escaped}")
    assert (status, gone["existed"], gone["queue"]) == (200, True, name)


async def test_names_whose_slashes_are_not_escaped_are_found_too(client: Client) -> None:
    """The published Python client leaves slashes of a name in the path."""
    await client.push("a/b", 1, partition="a b/c")
    status, popped = await client.get("/api/v1/pop/queue/a/b/partition/a%20b/c")
    assert (status, popped["queue"], popped["partition"]) == (200, "a/b", "a b/c")
    assert (await client.delete("/api/v1/consumer-groups/g/a%20b?deleteMetadata=false"))[1]["consumerGroup"] == "g/a b"
    assert (await client.delete("/api/v1/resources/queues/a/b"))[1]["existed"] is True


NUMBERS = ["9007199254740993", "9223372036854775808", "1" * 30, "1e-7", "0.1", "-0.0", "1E400", "null", '""',
           r'"\u0000"', "[" * 200 + "]" * 200, r'{"b":1,"a":"\u0041\/"}']  # fmt: skip


@pytest.mark.parametrize("payload", NUMBERS)
async def test_payloads_are_given_back_as_sent(client: Client, payload: str) -> None:
    """A71: byte for byte, through a push and a pop."""
    await client.post("/api/v1/push", f'{{"items":[{{"queue":"q","payload":{payload}}}]}}'.encode())
    reply = await client.reply("GET", "/api/v1/pop/queue/q")
    assert f'"data":{payload},'.encode() in reply.body


async def test_half_a_surrogate_pair_is_refused(client: Client) -> None:
    """A71: such text is no Unicode, so nothing of the request is stored."""
    status, answer = await client.post("/api/v1/push", rb'{"items":[{"queue":"q","payload":"\ud800"}]}')
    assert (status, answer["code"]) == (400, "bad_body")


async def test_binary_bodies_that_cannot_be_read(client: Client) -> None:
    """400 `bad_body` at once: no client falls back by itself."""
    for route in ("/api/v1/push", "/api/v1/transaction"):
        answer = await client.call("POST", route, b"QPB1\x04", {"content-type": "application/x-queen-push"})
        assert (answer[0], answer[1]["code"]) == (400, "bad_body")


async def test_configure_and_read_back(client: Client) -> None:
    """What was set shows in the answer and in the read; an empty queue name is legal; a missing queue is 404."""
    status, answer = await client.post(
        "/api/v1/configure", {"queue": "orders", "namespace": "acme", "options": {"leaseTime": 60}}
    )
    assert (status, answer["configured"], answer["options"]["leaseTime"]) == (200, True, 60)
    _, view = await client.get("/api/v1/resources/queues/orders")
    assert (view["id"], view["namespace"], view["options"]["leaseTime"]) == (answer["queueId"], "acme", 60)
    assert (await client.post("/api/v1/configure", {"queue": ""}))[0] == 200
    assert (await client.get("/api/v1/resources/queues/"))[1]["name"] == ""
    assert await client.get("/api/v1/resources/queues/nope") == (404, {"error": "Queue not found"})


async def test_leases_are_extended(client: Client, autojump_clock: trio.testing.MockClock) -> None:
    """Every spelling of an empty body; an unknown lease is a 200 that says false."""
    await client.push("q", 1)
    _, popped = await client.get("/api/v1/pop/queue/q?leaseSeconds=5")
    for body in (None, {}, [], {"seconds": 70}):
        status, answer = await client.post(f"/api/v1/lease/{popped['leaseId']}/extend", body)
        assert (status, answer["success"], answer["renewed"]) == (200, True, 1)
    await trio.sleep(65)
    assert (await client.get("/api/v1/pop/queue/q"))[0] == 204
    status, answer = await client.post("/api/v1/lease/unknown/extend")
    assert (status, answer["success"], answer["newExpiresAt"]) == (200, False, None)


async def test_groups_are_deleted_moved_and_sought(client: Client) -> None:
    """Section 10's calls, on a group that is known and on one that is not."""
    await client.push("q", 1, 2)
    pop = "/api/v1/pop/queue/q?consumerGroup=g&subscriptionMode=all&autoAck=true"
    assert len((await client.get(pop))[1]["messages"]) == 2
    seek = "/api/v1/consumer-groups/g/queues/q/seek"
    status, answer = await client.post(seek, {"timestamp": "2020-01-01T00:00:00Z"})
    assert (status, answer["success"], answer["partitionsUpdated"]) == (200, True, 1)
    assert len((await client.get(pop))[1]["messages"]) == 2
    assert (await client.post(f"{seek}", {"timestamp": "2020-01-01T00:00:00Z"}))[0] == 200
    assert (await client.post(seek))[1]["seekToEnd"] is True
    assert (await client.get(pop))[0] == 204
    one = "/api/v1/consumer-groups/g/queues/q/partitions/Default/seek"
    assert (await client.post(one, {"toEnd": True}))[1]["partitionName"] == "Default"
    status, answer = await client.post("/api/v1/consumer-groups/g/queues/nope/seek")
    assert (status, answer["success"], answer["partitionsUpdated"]) == (404, False, 0)
    status, answer = await client.post(
        "/api/v1/consumer-groups/g/subscription", {"subscriptionTimestamp": "2026-08-01T00:00:00Z"}
    )
    assert (status, answer["success"], answer["rowsUpdated"]) == (200, True, 1)
    assert (await client.post("/api/v1/consumer-groups/g/subscription"))[0] == 400
    status, answer = await client.delete("/api/v1/consumer-groups/g/queues/q?deleteMetadata=true")
    assert (status, answer["deletedPartitions"], answer["metadataDeleted"]) == (200, 1, True)
    status, answer = await client.delete("/api/v1/consumer-groups/unknown")
    assert (status, answer["success"], answer["deletedPartitions"]) == (200, True, 0)


async def test_traces_are_written(client: Client) -> None:
    """201 with an id; an unknown partition is 404 in the route's own shape; no transactionId is 400."""
    await client.push("q", 1)
    _, popped = await client.get("/api/v1/pop/queue/q")
    (message,) = popped["messages"]
    trace = {"transactionId": message["transactionId"], "partitionId": message["partitionId"], "traceNames": ["a"],
             "eventType": "step", "data": {"text": "hi"}}  # fmt: skip
    status, answer = await client.post("/api/v1/traces", trace)
    assert (status, answer["success"]) == (201, True)
    assert answer["traceId"]
    missing = {"success": False, "error": "Partition not found"}
    assert await client.post("/api/v1/traces", {**trace, "partitionId": "999"}) == (404, missing)
    assert await client.post("/api/v1/traces", {**trace, "partitionId": "no id"}) == (404, missing)
    assert (await client.post("/api/v1/traces", {"partitionId": "1"}))[0] == 400


async def test_a_message_is_read_by_its_address(client: Client) -> None:
    """Its status follows its consumers; an address that leads nowhere is 404."""
    await client.post("/api/v1/push", {"items": [{"queue": "q", "payload": {"a": 1}, "transactionId": "t"}]})
    _, popped = await client.get("/api/v1/pop/queue/q")
    pid = popped["partitionId"]
    status, view = await client.get(f"/api/v1/messages/{pid}/t")
    assert (status, view["status"], view["data"], view["queueConfig"]["leaseTime"]) == (200, "processing", {"a": 1}, 60)
    for address in (f"{pid}/nope", "999/t", "0197f0de-0000-7000-8000-00000000aaaa/t"):
        assert await client.get(f"/api/v1/messages/{address}") == (404, {"error": "Message not found"})


async def test_conflation_is_echoed_also_by_an_empty_answer(client: Client) -> None:
    """7.7: 200, not 204; the newest message only; a conflict when the registered group does not conflate."""
    target = "/api/v1/pop/queue/q?consumerGroup=g&subscriptionMode=all&conflation=true"
    status, answer = await client.get(target)
    assert (status, answer["conflation"], answer["messages"]) == (200, True, [])
    await client.push("q", 1, 2, 3)
    status, answer = await client.get(target)
    assert (status, answer["conflation"], [m["data"] for m in answer["messages"]]) == (200, True, [3])
    await client.get("/api/v1/pop/queue/q?consumerGroup=plain&subscriptionMode=all")
    _, answer = await client.get("/api/v1/pop/queue/q?consumerGroup=plain&conflation=true")
    assert answer["conflationConflict"] is True
    assert "conflation" not in answer
    status, answer = await client.get("/api/v1/pop/queue/q?conflation=true")
    assert (status, answer["success"], answer["messages"]) == (400, False, [])
    assert answer["error"].startswith("conflation requires consumerGroup")

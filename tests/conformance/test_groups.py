"""Consumer groups, the routes of group (1) (wire-messaging.md, section 10)."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock
from wire_kit import Wire

ALL = {"consumerGroup": "g", "subscriptionMode": "all"}


def data(messages: list[Any]) -> list[Any]:
    return [message["data"] for message in messages]


async def test_delete_starts_afresh(wire: Wire) -> None:
    """Cursors, leases and the registration are gone in every queue; the log stays; old acks are refused (A16)."""
    for queue in ("q", "r"):
        await wire.push(queue, *range(5))
    messages = await wire.pop("q", **ALL)
    await wire.pop("r", **ALL)
    deleted = await wire.ok("DELETE", "/api/v1/consumer-groups/g?deleteMetadata=true")
    expected = {
        "success": True,
        "consumerGroup": "g",
        "queueName": None,
        "deletedPartitions": 2,
        "metadataDeleted": True,
    }
    assert {name: deleted[name] for name in expected} == expected
    assert sorted(deleted["queues"]) == ["q", "r"]
    for entry in await wire.ack(*((message, "completed") for message in messages), group="g"):
        assert (entry["success"], bool(entry["error"])) == (False, True)
    again = await wire.pop("q", **ALL)
    assert [(message["data"], message["deliveryAttempt"]) for message in again] == [(n, 1) for n in range(5)]


async def test_delete_in_one_queue(wire: Wire) -> None:
    """The other queue's cursor stays."""
    for queue in ("q", "r"):
        await wire.push(queue, 1)
        await wire.pop(queue, autoAck=True, **ALL)
    deleted = await wire.ok("DELETE", "/api/v1/consumer-groups/g/queues/q")
    assert (deleted["queueName"], deleted["deletedPartitions"], deleted["queues"]) == ("q", 1, ["q"])
    assert data(await wire.pop("q", **ALL)) == [1]
    assert await wire.pop("r", **ALL) == []


async def test_delete_without_the_registration(wire: Wire) -> None:
    """`deleteMetadata=false` forgets the cursors only: a group that began as `new` still starts where it began."""
    await wire.push("q", "old")
    assert await wire.pop("q", consumerGroup="g", subscriptionMode="new") == []
    await wire.push("q", "new", txn="n")
    assert data(await wire.pop("q", consumerGroup="g", autoAck=True)) == ["new"]
    deleted = await wire.ok("DELETE", "/api/v1/consumer-groups/g?deleteMetadata=false")
    assert (deleted["deletedPartitions"], deleted["metadataDeleted"]) == (1, False)
    assert data(await wire.pop("q", **ALL)) == ["new"]


async def test_delete_of_an_unknown_group(wire: Wire) -> None:
    """A success with zero counts; a group's name may have slashes, escaped or not."""
    for path in ("nobody", "a/b", "a%2Fb", "nobody/queues/nothing"):
        deleted = await wire.ok("DELETE", f"/api/v1/consumer-groups/{path}")
        assert (deleted["success"], deleted["deletedPartitions"], deleted["queues"]) == (True, 0, [])
    await wire.push("q", 1)
    assert data(await wire.pop("q", consumerGroup="a/b", subscriptionMode="all", autoAck=True)) == [1]
    assert (await wire.ok("DELETE", "/api/v1/consumer-groups/a/b"))["deletedPartitions"] == 1


async def test_seek_by_time(timed: Wire, autojump_clock: MockClock) -> None:
    """The first message at or after the instant is next; a live lease is void, its retries forgotten."""
    await timed.configure("q", retryLimit=1)
    for n in range(4):
        await timed.push("q", n, txn=f"t{n}")
        await trio.sleep(1)
    messages = await timed.pop("q", **ALL)
    await timed.ack((messages[0], "failed"), group="g")
    messages = await timed.pop("q", **ALL)
    at = messages[2]["createdAt"]
    sought = await timed.ok("POST", "/api/v1/consumer-groups/g/queues/q/seek", {"timestamp": at})
    expected = {"success": True, "consumerGroup": "g", "queueName": "q", "partitionName": None, "seekToEnd": False}
    assert sought == {**expected, "targetTimestamp": at, "partitionsUpdated": 1, "updated": True}
    for entry in await timed.ack((messages[0], "completed"), group="g"):
        assert (entry["success"], entry["error"]) == (False, "invalid or expired lease")
    again = await timed.pop("q", **ALL)
    assert [(message["data"], message["deliveryAttempt"]) for message in again] == [(2, 1), (3, 1)]
    assert (await timed.ack((again[0], "failed"), group="g"))[0]["dlq"] is False
    await timed.ok("POST", "/api/v1/consumer-groups/g/queues/q/seek", {"timestamp": "2001-01-01T00:00:00Z"})
    assert data(await timed.pop("q", **ALL)) == [0, 1, 2, 3]


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b"null", b'{"toEnd":true}'])
async def test_seek_to_the_end(wire: Wire, body: bytes) -> None:
    """Also with an empty body of any kind (decisions.md), and for a group that had no cursor yet."""
    await wire.push("q", 1, partition="a")
    await wire.push("q", 2, partition="b")
    answer = await wire.request("POST", "/api/v1/consumer-groups/g/queues/q/seek", body=body)
    said = answer.json
    assert (answer.status, said["seekToEnd"], said["targetTimestamp"], said["partitionsUpdated"]) == (
        200,
        True,
        None,
        2,
    )
    assert await wire.pop("q", partitions=2, **ALL) == []
    await wire.push("q", 3, partition="b", txn="n")
    assert data(await wire.pop("q", partitions=2, **ALL)) == [3]


async def test_seek_of_one_partition(wire: Wire) -> None:
    """The other partitions' cursors stay."""
    for partition in ("a", "b"):
        await wire.push("q", partition, partition=partition)
    said = await wire.ok("POST", "/api/v1/consumer-groups/g/queues/q/partitions/a/seek", {"toEnd": True})
    assert (said["partitionName"], said["partitionsUpdated"]) == ("a", 1)
    assert data(await wire.pop("q", partitions=2, **ALL)) == ["b"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"position":3}', 400),
        (b'{"toEnd":false}', 400),
        (b'{"timestamp":"yesterday"}', 400),
        (b'{"timestamp":7}', 400),
        (b"{", 400),
    ],
)
async def test_a_seek_that_is_refused(wire: Wire, body: bytes, status: int) -> None:
    """`{success: false, error}`, and the cursor stays."""
    await wire.push("q", 1)
    answer = await wire.request("POST", "/api/v1/consumer-groups/g/queues/q/seek", body=body)
    assert (answer.status, answer.json["success"], bool(answer.json["error"])) == (status, False, True)
    if body.startswith((b'{"position', b'{"toEnd')):
        assert answer.json["error"] == "Must specify toEnd=true or a timestamp"
    assert data(await wire.pop("q", **ALL)) == [1]


async def test_a_seek_of_nothing(wire: Wire) -> None:
    """404: an unknown queue, one without partitions, an unknown partition."""
    await wire.configure("empty")
    await wire.push("q", 1)
    base = {"success": False, "consumerGroup": "g", "partitionsUpdated": 0}
    for queue in ("unknown", "empty"):
        answer = await wire.request("POST", f"/api/v1/consumer-groups/g/queues/{queue}/seek", {"toEnd": True})
        assert answer.status == 404
        assert answer.json == {**base, "queueName": queue, "error": "Queue not found or has no partitions"}
    answer = await wire.request("POST", "/api/v1/consumer-groups/g/queues/q/partitions/zz/seek", {"toEnd": True})
    assert (answer.status, answer.json) == (404, {**base, "queueName": "q", "error": "Partition not found"})
    assert (await wire.request("GET", "/api/v1/resources/queues/unknown")).status == 404


async def test_moving_a_subscription(timed: Wire, autojump_clock: MockClock) -> None:
    """It decides where partitions start that the group meets later; the cursors that it has stay."""
    await timed.push("q", "a0", partition="a")
    (first,) = await timed.pop("q", "a", autoAck=True, **ALL)
    await timed.pop("q", **ALL)
    await timed.push("q", "b0", partition="b")
    await trio.sleep(10)
    await timed.push("q", "b1", partition="b", txn="n")
    (_, late) = await timed.pop("q", "b")
    moved = await timed.ok(
        "POST", "/api/v1/consumer-groups/g/subscription", {"subscriptionTimestamp": late["createdAt"]}
    )
    expected = {"success": True, "consumerGroup": "g", "newTimestamp": late["createdAt"], "rowsUpdated": 1}
    assert moved == expected
    assert data(await timed.pop("q", partitions=2, **ALL)) == ["b1"]
    assert first["data"] == "a0"


@pytest.mark.parametrize(
    "body", [b"", b"{}", b'{"subscriptionTimestamp":"soon"}', b'{"subscriptionTimestamp":7}', b"{"]
)
async def test_a_move_that_is_refused(wire: Wire, body: bytes) -> None:
    """400 without an instant."""
    answer = await wire.request("POST", "/api/v1/consumer-groups/g/subscription", body=body)
    assert (answer.status, bool(answer.json["error"])) == (400, True)


async def test_moving_the_subscription_of_an_unknown_group(wire: Wire) -> None:
    """A success that changed no row."""
    body = {"subscriptionTimestamp": "2026-08-01T00:00:00Z"}
    moved = await wire.ok("POST", "/api/v1/consumer-groups/nobody/subscription", body)
    assert (moved["success"], moved["rowsUpdated"]) == (True, 0)

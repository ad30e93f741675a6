"""Dead letters: purge, replay and removal (wire-messaging.md 11 and 14)."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock
from wire_kit import Wire, direct

from queen_actors.storage.memory import MemoryStore


async def dead(wire: Wire, queue: str, value: Any, group: str | None = None, partition: str = "Default") -> Any:
    """Push a message and dead-letter it for the group; the message."""
    await wire.push(queue, value, partition=partition, txn=f"{value}-{group}-")
    query = {} if group is None else {"consumerGroup": group, "subscriptionMode": "all"}
    messages = await wire.pop(queue, partition, **query)
    await wire.ack((messages[-1], "dlq", f"error {value}"), group=group)
    return messages[-1]


def data(rows: list[Any]) -> list[Any]:
    return [row["data"] for row in rows]


async def test_purge(wire: Wire) -> None:
    """A queue's dead letters, or those of one group in it; the queue must be named; a repeat removes nothing."""
    await dead(wire, "q", 1, "g")
    await dead(wire, "q", 2, "h")
    await dead(wire, "other", 3, "g")
    answer = await wire.request("DELETE", "/api/v1/dlq?consumerGroup=g")
    assert (answer.status, bool(answer.json["error"])) == (400, True)
    purged = await wire.ok("DELETE", "/api/v1/dlq?queue=q&consumerGroup=g")
    assert purged == {"success": True, "queue": "q", "consumerGroup": "g", "deleted": 1}
    assert data(await wire.dead_letters("q")) == [2]
    assert await wire.ok("DELETE", "/api/v1/dlq?queue=q") == {
        "success": True,
        "queue": "q",
        "consumerGroup": None,
        "deleted": 1,
    }
    assert (await wire.ok("DELETE", "/api/v1/dlq?queue=q"))["deleted"] == 0
    assert (await wire.ok("DELETE", "/api/v1/dlq?queue=nothing"))["deleted"] == 0
    assert data(await wire.dead_letters("other")) == [3]


async def test_a_replay(wire: Wire) -> None:
    """Every key of 11: a new message with a transaction id that the letter gives, in its own partition; the letter is
    gone, and a second replay too."""
    message = await dead(wire, "q", "v", "g", "p")
    (letter,) = await wire.dead_letters("q")
    moved = await wire.ok("POST", f"/api/v1/dlq/{letter['id']}/replay")
    again = moved["replayedAs"]
    assert moved == {
        "success": True,
        "result": "moved",
        "queue": "q",
        "partition": "p",
        "consumerGroup": "g",
        "dlqId": letter["id"],
        "originalTransactionId": message["transactionId"],
        "replayedAs": {
            "index": 0,
            "message_id": again["message_id"],
            "transaction_id": f"dlq:{letter['id']}",
            "queueName": "q",
            "status": "queued",
            "offset": 1,
        },
        "dlqRowRemoved": True,
    }
    (found,) = await wire.pop("q", "p", consumerGroup="g")
    assert (found["data"], found["id"], found["transactionId"]) == ("v", again["message_id"], again["transaction_id"])
    answer = await wire.request("POST", f"/api/v1/dlq/{letter['id']}/replay")
    assert (answer.status, answer.json) == (404, {"success": False, "result": "gone", "error": "Message not found"})
    answer = await wire.request("POST", "/api/v1/dlq/nonsense/replay")
    assert answer.status == 404


@pytest.mark.parametrize(
    ("body", "place"),
    [
        (b"", ("q", "p")),
        (b"{}", ("q", "p")),
        (b"[]", ("q", "p")),
        (b"null", ("q", "p")),
        (b'{"queue":"repairs"}', ("repairs", "p")),
        (b'{"partition":"other"}', ("q", "other")),
        (b'{"queue":"repairs","partition":"x"}', ("repairs", "x")),
        (b'{"queue":null,"partition":""}', ("q", "p")),
    ],
)
async def test_where_a_replay_goes(timed: Wire, autojump_clock: MockClock, body: bytes, place: tuple[str, str]) -> None:
    """To its own place, or where the caller says; a queue is made if need be; what a timer or a trace gave stays."""
    item = {"queue": "q", "partition": "p", "payload": 1, "traceId": "8f14e45f-ceea-467f-a0e6-9d5f6b0d3f10"}
    await timed.ok("POST", "/api/v1/push", {"items": [item]}, status=201)
    (message,) = await timed.pop("q", "p")
    await timed.ack((message, "dlq"))
    (letter,) = await timed.dead_letters("q")
    answer = await timed.request("POST", f"/api/v1/dlq/{letter['id']}/replay", body=body)
    assert (answer.json["queue"], answer.json["partition"]) == place
    (found,) = await timed.pop(*place)
    assert (found["data"], found["traceId"]) == (1, item["traceId"])


@pytest.mark.parametrize("body", [b"{", b'{"queue":7}', b'{"partition":[]}', b'{"queue":"a\\u0000"}'])
async def test_a_replay_that_is_refused(timed: Wire, autojump_clock: MockClock, body: bytes) -> None:
    """400, and the letter stays."""
    await dead(timed, "q", 1)
    (letter,) = await timed.dead_letters("q")
    assert (await timed.request("POST", f"/api/v1/dlq/{letter['id']}/replay", body=body)).status == 400
    assert len(await timed.dead_letters("q")) == 1


async def test_retry_by_message(timed: Wire, autojump_clock: MockClock) -> None:
    """The newest of a message's dead letters, group by group; 404 when none is left."""
    await timed.push("q", 1)
    for group in "gh":
        (message,) = await timed.pop("q", consumerGroup=group, subscriptionMode="all")
        await timed.ack((message, "dlq"), group=group)
        await trio.sleep(1)
    place = f"/api/v1/messages/{message['partitionId']}/t0"
    groups = [(await timed.ok("POST", f"{place}/retry"))["consumerGroup"] for _ in range(2)]
    assert groups == ["h", "g"]
    answer = await timed.request("POST", f"{place}/retry")
    assert (answer.status, answer.json["result"]) == (404, "gone")
    assert (await timed.request("POST", "/api/v1/messages/nonsense/t0/retry")).status == 404


async def test_removal_takes_every_groups(timed: Wire, autojump_clock: MockClock) -> None:
    """Deleting a message removes its dead letters, whichever groups they belong to; the log keeps the message."""
    await timed.push("q", 1)
    for group in "gh":
        (message,) = await timed.pop("q", consumerGroup=group, subscriptionMode="all")
        await timed.ack((message, "dlq"), group=group)
    deleted = await timed.ok("DELETE", f"/api/v1/messages/{message['partitionId']}/t0")
    assert deleted == {
        "success": True,
        "partitionId": message["partitionId"],
        "transactionId": "t0",
        "deleted": 2,
    }
    assert data(await timed.pop("q", consumerGroup="i", subscriptionMode="all")) == [1]


async def test_a_dead_letter_outlives_its_message(durable: MemoryStore, autojump_clock: MockClock) -> None:
    """It is a copy: retention removes the message, a restart comes between, and it is still read and replayed."""
    async with direct(durable) as wire:
        await wire.configure("q", retentionEnabled=True, retentionSeconds=10)
        message = await dead(wire, "q", {"kept": True}, "g")
        await trio.sleep(60)
        assert (await wire.ok("GET", "/api/v1/messages?queue=q"))["messages"] == []
        assert (await wire.message(message["partitionId"], message["transactionId"]))["status"] == "dead_letter"
    async with direct(durable.reopen()) as wire:
        (letter,) = await wire.dead_letters("q")
        assert (letter["data"], letter["errorMessage"]) == ({"kept": True}, "error {'kept': True}")
        await wire.ok("POST", f"/api/v1/dlq/{letter['id']}/replay")
        assert data(await wire.pop("q", consumerGroup="g")) == [{"kept": True}]


async def test_replays_and_purges_at_once(timed: Wire, autojump_clock: MockClock) -> None:
    """Of 20 letters, replayed by ten callers each while others purge and remove: each is moved or removed, once."""
    for n in range(20):
        await dead(timed, "q", n, "g", f"p{n}")
    letters = await timed.dead_letters("q")
    moved: list[str] = []
    removed: list[int] = []

    async def replay(letter: Any) -> None:
        answer = await timed.request("POST", f"/api/v1/dlq/{letter['id']}/replay")
        moved.extend([letter["id"]] if answer.status == 200 else [])

    async def remove(letter: Any) -> None:
        path = f"/api/v1/messages/{letter['partitionId']}/{letter['transactionId']}"
        answer = await timed.request("DELETE", path)
        removed.extend([answer.json["deleted"]] if answer.status == 200 else [])

    async def purge() -> None:
        removed.append((await timed.ok("DELETE", "/api/v1/dlq?queue=q"))["deleted"])

    async with trio.open_nursery() as nursery:
        for place, letter in enumerate(letters):
            for _ in range(10):
                nursery.start_soon(replay, letter)
            if place % 5 == 0:
                nursery.start_soon(remove, letter)
        nursery.start_soon(purge)
    assert len(moved) == len(set(moved))
    assert len(moved) + sum(removed) == 20
    assert await timed.dead_letters("q") == []
    pushed = await timed.pop("q", batch=100, partitions=64, consumerGroup="h", subscriptionMode="all")
    assert sum(message["transactionId"].startswith("dlq:") for message in pushed) == len(moved)

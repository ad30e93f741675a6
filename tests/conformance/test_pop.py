"""Pop (wire-messaging.md, section 7): routes, answers and claims."""

from __future__ import annotations

import re
from typing import Any

import pytest
import trio
from trio.testing import MockClock
from wire_kit import Wire


def data(messages: list[Any]) -> list[Any]:
    return [message["data"] for message in messages]


# -- 7.1 to 7.3 --------------------------------------------------------------------------------------------------------


async def test_the_answer_of_a_pop(wire: Wire) -> None:
    """Every key of 7.3, at the top and on each message; one lease for all of it."""
    pushed = await wire.push("orders", {"a": 1}, {"a": 2}, partition="p1")
    answer = await wire.pop_answer("orders", consumerGroup="g", subscriptionMode="all")
    assert answer.status == 200
    body = answer.json
    lease, pid = body["leaseId"], body["partitionId"]
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}", lease)
    assert re.fullmatch(r"[0-9]+", pid)
    top = {"success": True, "queue": "orders", "partition": "p1", "partitionId": pid, "leaseId": lease}
    messages = [
        {
            "id": pushed[place]["message_id"],
            "transactionId": f"t{place}",
            "traceId": None,
            "data": {"a": place + 1},
            "producerSub": None,
            "createdAt": body["messages"][place]["createdAt"],
            "partitionId": pid,
            "partition": "p1",
            "leaseId": lease,
            "consumerGroup": "g",
            "deliveryAttempt": 1,
            "offset": place,
        }
        for place in range(2)
    ]
    assert body == {**top, "consumerGroup": "g", "messages": messages, "partitionsClaimed": 1}
    assert body["messages"][0]["createdAt"].endswith("Z")


async def test_an_empty_pop_is_a_204(timed: Wire, autojump_clock: MockClock) -> None:
    """Without a body, waiting or not, on each route."""
    await timed.configure("q")
    for queue, partition in (("q", None), ("q", "p"), ("unknown", "p"), ("new", None)):
        assert await timed.pop(queue, partition) == []
    started = trio.current_time()
    assert await timed.pop("q", wait=True, timeout=2000) == []
    assert 2 <= trio.current_time() - started < 2.1


async def test_what_a_pop_of_an_unknown_queue_creates(wire: Wire) -> None:
    """The wildcard route creates it, with implicit options; the pinned one creates nothing (7.4)."""
    await wire.pop("pinned", "p")
    assert (await wire.request("GET", "/api/v1/resources/queues/pinned")).status == 404
    await wire.pop("wild")
    assert (await wire.ok("GET", "/api/v1/resources/queues/wild"))["options"]["leaseTime"] == 60


async def test_discovery(wire: Wire) -> None:
    """Every queue that has all the labels that were asked for; one of them must be."""
    for queue, namespace, task in (("a", "n", "t"), ("b", "n", "u"), ("c", "m", "t")):
        await wire.ok("POST", "/api/v1/configure", {"queue": queue, "namespace": namespace, "task": task})
        await wire.push(queue, queue)
    assert data(await wire.pop(None, namespace="n", task="u")) == ["b"]
    assert sorted(data(await wire.pop(None, task="t", partitions=5))) == ["a", "c"]
    assert await wire.pop(None, namespace="n", partitions=5) == []
    for query in ({}, {"namespace": "", "task": ""}):
        answer = await wire.pop_answer(None, **query)
        assert answer.status == 400
        assert {
            "success": False,
            "error": "namespace or task is required",
            "messages": [],
        }.items() <= answer.json.items()


async def test_parameters_that_are_declined(wire: Wire) -> None:
    """`autopilot` and `frames` are ignored, and so is what nobody knows; the labels mean nothing beside a queue."""
    for n in range(4):
        await wire.push("q", *range(5), partition=f"p{n}")
    answer = await wire.pop_answer("q", autopilot=True, batch=100, frames=True, namespace="x", task="y", colour="red")
    assert (answer.headers["content-type"], len(answer.json["messages"])) == ("application/json", 5)
    assert answer.json["partitionsClaimed"] == 1


async def test_batch_is_a_cap_over_all_partitions(wire: Wire) -> None:
    """`batch(10).partitions(5)` over 5 x 100 messages is 10 messages under one lease."""
    for n in range(5):
        await wire.push("q", *range(100), partition=f"p{n}")
    messages = await wire.pop("q", batch=10, partitions=5)
    assert len(messages) == 10
    assert len({message["leaseId"] for message in messages}) == 1
    wide = await wire.pop("q", batch=1000, partitions=64, consumerGroup="g", subscriptionMode="all")
    assert len(wide) == 500
    names = [message["partition"] for message in wide]
    assert [name for place, name in enumerate(names) if place == 0 or names[place - 1] != name] == list(
        dict.fromkeys(names)
    )
    for name in set(names):
        assert [message["offset"] for message in wide if message["partition"] == name] == list(range(100))


async def test_the_default_batch_is_200(wire: Wire) -> None:
    """And a pop without `partitions` takes one partition."""
    await wire.push("q", *range(250))
    assert len(await wire.pop("q")) == 200
    assert await wire.pop("q", batch=5) == []


@pytest.mark.parametrize("query", [{"batch": "many"}, {"wait": "perhaps"}, {"subscriptionFrom": "yesterday"}])
async def test_a_parameter_that_cannot_be_read(wire: Wire, query: dict[str, str]) -> None:
    """400 in the route's own shape."""
    answer = await wire.pop_answer("q", **query)
    assert (answer.status, answer.json["success"], answer.json["messages"]) == (400, False, [])
    assert answer.json["error"]


# -- 7.4 ---------------------------------------------------------------------------------------------------------------


async def test_strict_order_within_a_partition(timed: Wire, autojump_clock: MockClock) -> None:
    """Nothing behind a leased span is delivered to the group until it is settled or over; others are not affected."""
    await timed.push("q", *range(4))
    first = await timed.pop("q", batch=2, leaseSeconds=5)
    assert data(first) == [0, 1]
    assert await timed.pop("q") == []
    assert await timed.pop("q", "Default") == []
    assert data(await timed.pop("q", consumerGroup="g", subscriptionMode="all")) == [0, 1, 2, 3]
    await timed.push("q", "other", partition="p")
    assert data(await timed.pop("q")) == ["other"]
    await timed.ack(*((message, "completed") for message in first))
    second = await timed.pop("q", batch=1)
    assert (data(second), second[0]["deliveryAttempt"]) == ([2], 1)


async def test_an_expired_lease_redelivers_and_charges_nothing(timed: Wire, autojump_clock: MockClock) -> None:
    """After ten expiries a failure is still the first: `retryLimit` 1 lets it come again, and the next one is its
    last."""
    await timed.configure("q", leaseTime=1, retryLimit=1)
    await timed.push("q", 1)
    for attempt in range(1, 11):
        (message,) = await timed.pop("q", wait=True, timeout=5000)
        assert message["deliveryAttempt"] == attempt
        await trio.sleep(1.01)
    assert await timed.dead_letters("q") == []
    for dead in (False, True):
        (message,) = await timed.pop("q")
        (entry,) = await timed.ack((message, "failed"))
        assert (entry["success"], entry["dlq"]) == (True, dead)


async def test_lease_lengths(timed: Wire, autojump_clock: MockClock) -> None:
    """`leaseSeconds` of the pop, else `leaseTime` of the queue."""
    await timed.configure("q", leaseTime=10)
    for query, seconds in (({}, 10), ({"leaseSeconds": 0}, 10), ({"leaseSeconds": 3}, 3)):
        group = f"g{seconds}{len(query)}"
        await timed.push("q", 1, txn=group)
        assert await timed.pop("q", consumerGroup=group, subscriptionMode="all", **query)
        await trio.sleep(seconds - 0.01)
        assert await timed.pop("q", consumerGroup=group) == []
        await trio.sleep(0.02)
        assert await timed.pop("q", consumerGroup=group, autoAck=True)


async def test_auto_ack_commits_at_delivery(timed: Wire, autojump_clock: MockClock) -> None:
    """No lease, attempt 1, and never again."""
    await timed.push("q", 1, 2)
    answer = await timed.pop_answer("q", autoAck=True, batch=1)
    assert (answer.json["leaseId"], answer.json["messages"][0]["leaseId"]) == ("", "")
    assert data(await timed.pop("q", autoAck=True)) == [2]
    await trio.sleep(1000)
    assert await timed.pop("q") == []
    pid = answer.json["partitionId"]
    (entry,) = await timed.ack({"transactionId": "t0", "partitionId": pid, "status": "completed"})
    assert (entry["success"], entry["noop"]) == (True, True)


async def test_delayed_processing(timed: Wire, autojump_clock: MockClock) -> None:
    """Invisible until `delayedProcessing` after its push, message by message."""
    await timed.configure("q", delayedProcessing=2)
    await timed.push("q", 1, txn="a")
    await trio.sleep(1)
    await timed.push("q", 2, txn="b")
    assert await timed.pop("q") == []
    await trio.sleep(1.01)
    first = await timed.pop("q")
    assert data(first) == [1]
    await timed.ack((first[0], "completed"))
    started = trio.current_time()
    assert data(await timed.pop("q", wait=True, timeout=5000)) == [2]
    assert 0.9 < trio.current_time() - started < 1.1


async def test_window_buffer(timed: Wire, autojump_clock: MockClock) -> None:
    """Nothing while the last write is younger than the window; then all of it together."""
    await timed.configure("q", windowBuffer=2)
    for n in range(3):
        await timed.push("q", n, txn=f"t{n}")
        await trio.sleep(1)
        assert await timed.pop("q") == []
    started = trio.current_time()
    assert data(await timed.pop("q", wait=True, timeout=5000)) == [0, 1, 2]
    assert 0.9 < trio.current_time() - started < 1.1


async def test_queue_mode_and_groups_are_independent(wire: Wire) -> None:
    """Consuming in one removes nothing for the other."""
    await wire.push("q", 1)
    for group in (None, "g", "h"):
        query = {} if group is None else {"consumerGroup": group, "subscriptionMode": "all"}
        (message,) = await wire.pop("q", **query)
        assert message["consumerGroup"] == (group or "__QUEUE_MODE__")
        assert (await wire.ack((message, "completed"), group=group))[0]["success"] is True


async def test_clamped_parameters(timed: Wire, autojump_clock: MockClock) -> None:
    """`batch` is 1 at least, `partitions` 1 to 64, a long poll ends after 60 s at the most."""
    for n in range(70):
        await timed.push("q", 1, 2, partition=f"p{n}")
    assert len(await timed.pop("q", batch=0, consumerGroup="a", subscriptionMode="all")) == 1
    for asked, given in ((0, 1), (-3, 1), (1000, 64)):
        query = {"consumerGroup": f"g{asked}", "subscriptionMode": "all", "batch": 1000}
        answer = await timed.pop_answer("q", partitions=asked, **query)
        assert answer.json["partitionsClaimed"] == given
    started = trio.current_time()
    assert await timed.pop("empty", wait=True, timeout=600_000) == []
    assert 59 < trio.current_time() - started < 61


async def test_the_bytes_of_one_answer_are_bounded(wire: Wire) -> None:
    """Twelve megabytes come in two answers, in order."""
    for n in range(12):
        await wire.push("q", str(n) + "x" * 1_000_000, txn=f"t{n}-")
    first = await wire.pop("q")
    await wire.ack(*((message, "completed") for message in first))
    second = await wire.pop("q")
    assert 0 < len(first) < 12
    assert [message["offset"] for message in first + second] == list(range(12))


async def test_the_delivery_limit(timed: Wire, autojump_clock: MockClock) -> None:
    """A message that ends every lease unsettled is given up after `deliveryLimit` deliveries, for its group, and what
    is behind it goes on (decisions.md)."""
    await timed.configure("q", deliveryLimit=3, leaseTime=1)
    await timed.push("q", "poison", "good")
    for attempt in (1, 2, 3):
        (message,) = await timed.pop("q", batch=1)
        assert (message["data"], message["deliveryAttempt"]) == ("poison", attempt)
        await trio.sleep(1.01)
    (message,) = await timed.pop("q", wait=True, timeout=1000)
    assert (message["data"], message["deliveryAttempt"]) == ("good", 1)
    (letter,) = await timed.dead_letters("q")
    assert (letter["data"], letter["consumerGroup"]) == ("poison", "__QUEUE_MODE__")
    assert "3" in letter["errorMessage"]
    assert data(await timed.pop("q", consumerGroup="g", subscriptionMode="all")) == ["poison", "good"]

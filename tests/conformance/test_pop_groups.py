"""Subscription modes and conflation (wire-messaging.md, sections 7.6 and 7.7)."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock
from wire_kit import Wire, direct

from queen_actors.config import Settings
from queen_actors.values import iso_zulu, parse_instant


def data(messages: list[Any]) -> list[Any]:
    return [message["data"] for message in messages]


@pytest.mark.parametrize("query", [{"subscriptionMode": "all"}, {"subscriptionMode": "what"}, {}])
async def test_mode_all_starts_at_the_oldest(wire: Wire, query: dict[str, str]) -> None:
    """Also for any other text, and by default (decisions.md)."""
    await wire.push("q", 1)
    assert data(await wire.pop("q", consumerGroup="g", **query)) == [1]


@pytest.mark.parametrize(
    "query",
    [*({"subscriptionMode": m} for m in ("new", "new-only", "new_only", "newonly")), {"subscriptionFrom": "now"}],
    ids=str,
)
async def test_mode_new_starts_at_the_registration(wire: Wire, query: dict[str, str]) -> None:
    """History is skipped; what comes later is delivered, also from partitions that did not exist then."""
    await wire.push("q", "old")
    assert await wire.pop("q", consumerGroup="g", **query) == []
    await wire.push("q", "new", txn="n")
    await wire.push("q", "elsewhere", partition="late")
    found = await wire.pop("q", consumerGroup="g", subscriptionMode="all", partitions=2)
    assert sorted(data(found)) == ["elsewhere", "new"]


async def test_from_an_instant(timed: Wire, autojump_clock: MockClock) -> None:
    """The first message at or after it, to the microsecond."""
    for n in range(4):
        await timed.push("q", n, txn=f"t{n}")
        await trio.sleep(1)
    stamps = [message["createdAt"] for message in await timed.pop("q")]
    at = {"consumerGroup": "g", "subscriptionFrom": stamps[2]}
    assert data(await timed.pop("q", **at)) == [2, 3]
    after = iso_zulu(parse_instant(stamps[2]) + 1)
    assert data(await timed.pop("q", consumerGroup="h", subscriptionFrom=after)) == [3]


async def test_a_registration_is_fixed_until_the_group_is_deleted(wire: Wire) -> None:
    """Later values of the parameters are ignored."""
    await wire.push("q", "old")
    assert await wire.pop("q", consumerGroup="g", subscriptionMode="new") == []
    assert await wire.pop("q", consumerGroup="g", subscriptionMode="all") == []
    await wire.ok("DELETE", "/api/v1/consumer-groups/g")
    assert data(await wire.pop("q", consumerGroup="g", subscriptionMode="all")) == ["old"]


async def test_queue_mode_is_always_all(wire: Wire) -> None:
    """Its mode cannot be chosen."""
    await wire.push("q", 1)
    assert data(await wire.pop("q", subscriptionMode="new", consumerGroup="")) == [1]


async def test_a_pinned_pop_seeds_its_own_partition_only(wire: Wire) -> None:
    """It registers nothing for the rest of the queue."""
    await wire.push("q", "a", partition="a")
    await wire.push("q", "b", partition="b")
    assert await wire.pop("q", "a", consumerGroup="g", subscriptionMode="new") == []
    assert "b" in data(await wire.pop("q", consumerGroup="g", subscriptionMode="all", partitions=2))


async def test_conflation(wire: Wire) -> None:
    """The newest message alone, the whole span under its lease, and the echo also on an empty answer."""
    await wire.push("q", 1, 2, 3)
    asked = {"consumerGroup": "g", "conflation": True, "subscriptionMode": "all"}
    body = (await wire.pop_answer("q", **asked)).json
    assert (data(body["messages"]), body["conflation"], "conflationConflict" in body) == ([3], True, False)
    empty = await wire.pop_answer("q", **asked)
    assert (empty.status, empty.json["messages"], empty.json["conflation"]) == (200, [], True)
    await wire.ack((body["messages"][0], "completed"), group="g")
    assert await wire.committed(body["messages"][0], "g") == 2
    await wire.push("q", 4, txn="n")
    plain = (await wire.pop_answer("q", consumerGroup="g")).json
    assert (data(plain["messages"]), "conflation" in plain) == ([4], False)


async def test_a_conflict_of_conflation(wire: Wire) -> None:
    """The stored value wins, and is told; without a group or with autoAck it cannot be."""
    await wire.push("q", 1, 2)
    await wire.pop("q", consumerGroup="g", subscriptionMode="all", batch=1)
    body = (await wire.pop_answer("q", consumerGroup="g", conflation=True)).json
    assert (body["conflationConflict"], "conflation" in body, body["messages"]) == (True, False, [])
    for query in ({}, {"consumerGroup": "g", "autoAck": True}):
        answer = await wire.pop_answer("q", conflation=True, **query)
        assert (answer.status, answer.json["success"], answer.json["messages"]) == (400, False, [])
        assert answer.json["error"].startswith("conflation requires consumerGroup")


@pytest.mark.parametrize(
    "spelling", ["2026-08-01T00:00:00Z", "2026-08-01T02:00:00%2B02:00", "2026-08-01T00:00:00.123456789Z", "2026-08-01"]
)
async def test_spellings_of_an_instant(wire: Wire, spelling: str) -> None:
    """What the clients of other languages send: offsets, nanoseconds, a bare date."""
    answer = await wire.request("GET", f"/api/v1/pop/queue/q?consumerGroup=g&subscriptionFrom={spelling}")
    assert answer.status == 204
    body = {"timestamp": spelling.replace("%2B", "+")}
    await wire.push("q", 1)
    sought = await wire.ok("POST", "/api/v1/consumer-groups/g/queues/q/seek", body)
    assert sought["targetTimestamp"].startswith("2026-08-01T00:00:00.")


async def test_a_seek_beyond_the_end(wire: Wire) -> None:
    """Nothing is at or after the instant: the group stands at the end."""
    await wire.push("q", 1)
    await wire.ok("POST", "/api/v1/consumer-groups/g/queues/q/seek", {"timestamp": "2999-01-01T00:00:00Z"})
    assert await wire.pop("q", consumerGroup="g", subscriptionMode="all") == []
    await wire.push("q", 2, txn="n")
    assert data(await wire.pop("q", consumerGroup="g")) == [2]


async def test_the_default_mode_is_a_setting() -> None:
    """`new` for brokers whose operator wants it; a mode that is named still counts (decisions.md)."""
    async with direct(settings=Settings(data=None, subscription_mode="new")) as wire:
        await wire.push("q", "old")
        assert await wire.pop("q", consumerGroup="g") == []
        assert data(await wire.pop("q", consumerGroup="h", subscriptionMode="all")) == ["old"]
        assert data(await wire.pop("q")) == ["old"], "queue mode is always all"
        await wire.push("q", "late", txn="n")
        assert data(await wire.pop("q", consumerGroup="g")) == ["late"]


@pytest.mark.parametrize("query", [{}, {"wait": True, "timeout": 50}], ids=["at once", "after a wait"])
@pytest.mark.parametrize(
    ("queue", "partition", "place"),
    [("q", None, {}), ("q", "p", {}), ("unknown", "p", {}), (None, None, {"namespace": "nobody's"})],
    ids=["wildcard", "pinned", "pinned, unknown", "discovery of nothing"],
)
async def test_an_empty_answer_echoes_conflation(
    timed: Wire, autojump_clock: MockClock, queue: str | None, partition: str | None, place: dict[str, str], query: Any
) -> None:
    """7.7: 200 and not 204, with the echo, wherever it was asked; nothing contradicts it where no group is known."""
    answer = await timed.pop_answer(queue, partition, consumerGroup="g", conflation=True, **place, **query)
    assert answer.status == 200
    body = answer.json
    assert (body["conflation"], body["messages"], body["leaseId"]) == (True, [], "")
    assert "conflationConflict" not in body


async def test_conflation_across_claims(timed: Wire, autojump_clock: MockClock) -> None:
    """The newest of each partition, as many partitions as messages were asked for; the ack commits the span; what came
    meanwhile is the next; a nack brings the then newest; a dead letter is the one message that was seen."""
    for n in range(5):
        for partition in "abc":
            await timed.push("q", f"{partition}{n}", partition=partition, txn=f"{n}")
    query = {"consumerGroup": "g", "conflation": True, "subscriptionMode": "all"}
    first = (await timed.pop_answer("q", batch=2, **query)).json
    assert [m["data"] for m in first["messages"]] == ["a4", "b4"]
    assert (first["partitionsClaimed"], first["conflation"], first["messages"][0]["offset"]) == (2, True, 4)
    (third,) = await timed.pop("q", batch=10, **query)
    assert third["data"] == "c4"
    await timed.push("q", "a5", partition="a", txn="5")
    entries = await timed.ack((first["messages"][0], "completed"), (first["messages"][1], "failed"), group="g")
    assert [entry["success"] for entry in entries] == [True, True]
    assert await timed.committed(first["messages"][0], "g") == 4
    await timed.push("q", "b5", partition="b", txn="5")
    again = await timed.pop("q", batch=10, **query)
    assert sorted((m["data"], m["deliveryAttempt"]) for m in again) == [("a5", 1), ("b5", 2)]
    (entry,) = await timed.ack((third, "dlq", "bad"), group="g")
    assert entry["dlq"] is True
    (letter,) = await timed.dead_letters("q")
    assert (letter["data"], letter["offset"]) == ("c4", 4)
    assert (await timed.pop_answer("q", "c", **query)).json["messages"] == []
    conflict = (await timed.pop_answer("q", consumerGroup="plain", subscriptionMode="all", batch=1)).json
    assert "conflation" not in conflict
    conflict = (await timed.pop_answer("q", consumerGroup="plain", conflation=True, batch=1)).json
    assert (conflict["conflationConflict"], "conflation" in conflict) == (True, False)
    stored = (await timed.pop_answer("q", consumerGroup="g", batch=1)).status
    assert stored == 204, "who does not ask is not told"

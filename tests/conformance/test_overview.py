"""Groups and queues as operators read them (wire-messaging.md 10, 13 and 19): every count exact."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock
from wire_kit import Wire, direct

from queen_actors.actors.clock import TrioClock
from queen_actors.storage.memory import MemoryStore
from queen_actors.values import SECOND

ALL = {"subscriptionMode": "all"}
WALL = 1_760_000_000  # 2025-10-09T08:53:20Z


@pytest.fixture
async def dated(autojump_clock: MockClock) -> Any:
    """A broker whose clock starts at a known instant."""
    async with direct(clock=TrioClock(WALL * SECOND)) as wire:
        yield wire


async def two_groups(wire: Wire) -> Any:
    """12 messages over two partitions of `q`; g holds 4 of its first, and has finished 1 before them; h is done."""
    await wire.push("q", *range(8), partition="a", txn="a")
    await wire.push("q", *range(4), partition="b", txn="b")
    first = await wire.pop("q", "a", consumerGroup="g", batch=5, **ALL)
    await wire.ack((first[0], "completed"), group="g")
    for partition in "ab":
        await wire.pop("q", partition, consumerGroup="h", autoAck=True, **ALL)
    return first


async def test_the_list_of_groups(dated: Wire, autojump_clock: MockClock) -> None:
    """A bare array, one row for each group and queue where it has a cursor, in every key of 10."""
    assert await dated.ok("GET", "/api/v1/consumer-groups") == []
    await dated.pop("q", consumerGroup="g", **ALL)  # which registers, at the first second
    await dated.push("q", *range(6))
    await dated.pop("q")
    await trio.sleep(400)
    assert len(await dated.pop("q", consumerGroup="g", batch=2)) == 2
    rows = {row["name"]: row for row in await dated.ok("GET", "/api/v1/consumer-groups")}
    assert set(rows) == {"g", "__QUEUE_MODE__"}
    row = rows["g"]
    behind = row.pop("maxTimeLag")
    assert 400 <= behind < 401
    created = row.pop("subscriptionCreatedAt")
    assert created.startswith("2025-10-09T08:53:20")
    assert row == {
        "name": "g",
        "topics": ["q"],
        "queueName": "q",
        "members": 1,
        "partitionCursors": 1,
        "partitionsWithLag": 1,
        "totalLag": 6,
        "state": "Lagging",
        "storage": "segments",
        "kind": "queen",
        "subscriptionMode": "all",
        "subscriptionTimestamp": None,
        "conflation": False,
    }
    mode = rows["__QUEUE_MODE__"]
    assert (mode["subscriptionMode"], mode["totalLag"], mode["members"]) == (None, 6, 0), "its lease has ended"


@pytest.mark.parametrize(
    ("query", "mode", "at"),
    [
        ({"subscriptionMode": "all"}, "all", None),
        ({"subscriptionMode": "new"}, "new", "2025-10-09T08:53:20"),
        ({"subscriptionFrom": "now"}, "new", "2025-10-09T08:53:20"),
        ({"subscriptionFrom": "2025-01-02T03:04:05Z"}, "timestamp", "2025-01-02T03:04:05"),
        ({}, "all", None),
    ],
)
async def test_how_a_group_subscribed(
    dated: Wire, autojump_clock: MockClock, query: dict[str, str], mode: str, at: str | None
) -> None:
    """Its mode, and since when it wants messages; a moved subscription shows the new one."""
    await dated.pop("q", consumerGroup="g", **query)
    await dated.push("q", 1)
    await dated.ok("POST", "/api/v1/consumer-groups/g/queues/q/seek", {"toEnd": True})
    (row,) = await dated.ok("GET", "/api/v1/consumer-groups")
    told = row["subscriptionTimestamp"]
    assert (row["subscriptionMode"], None if told is None else told[:19]) == (mode, at)
    body = {"subscriptionTimestamp": "2024-05-06T07:08:09Z"}
    assert (await dated.ok("POST", "/api/v1/consumer-groups/g/subscription", body))["rowsUpdated"] == 1
    (row,) = await dated.ok("GET", "/api/v1/consumer-groups")
    assert (row["subscriptionMode"], row["subscriptionTimestamp"][:19]) == ("timestamp", "2024-05-06T07:08:09")


async def test_one_group(dated: Wire, autojump_clock: MockClock) -> None:
    """Keyed by queue, with each of its partitions; 404 for one that nobody knows."""
    answer = await dated.request("GET", "/api/v1/consumer-groups/g")
    assert (answer.status, answer.json) == (404, {"error": "Consumer group not found"})
    first = await two_groups(dated)
    await dated.push("other", 1)
    await dated.pop("other", consumerGroup="g", conflation=True, **ALL)
    await trio.sleep(10)
    detail = await dated.ok("GET", "/api/v1/consumer-groups/g")
    assert set(detail) == {"q", "other"}
    assert (detail["q"]["conflation"], detail["other"]["conflation"]) == (False, True)
    (row,) = detail["q"]["partitions"]
    assert 10 <= row.pop("timeLagSeconds") < 11
    assert row == {
        "partition": "a",
        "workerId": first[0]["leaseId"],
        "lastConsumedAt": None,
        "totalConsumed": 1,
        "offsetLag": 7,
        "leaseActive": True,
    }
    done = (await dated.ok("GET", "/api/v1/consumer-groups/h"))["q"]["partitions"]
    assert [(row["partition"], row["offsetLag"], row["timeLagSeconds"], row["workerId"]) for row in done] == [
        ("a", 0, 0, None),
        ("b", 0, 0, None),
    ]


async def test_who_lags(dated: Wire, autojump_clock: MockClock) -> None:
    """Those whose oldest unfinished message is so old, oldest first; an hour when nothing is said."""
    for n, partition in enumerate("abc"):
        await dated.push("q", n, partition=partition)
        await dated.pop("q", partition, consumerGroup="g", leaseSeconds=10, **ALL)
        await trio.sleep(100)

    async def found(query: str) -> list[str]:
        rows = await dated.ok("GET", f"/api/v1/consumer-groups/lagging{query}")
        return [row["partition_name"] for row in rows]

    assert await found("") == []
    assert await found("?minLagSeconds=0") == ["a", "b", "c"]
    assert await found("?minLagSeconds=150") == ["a", "b"]
    await trio.sleep(3350)
    rows = await dated.ok("GET", "/api/v1/consumer-groups/lagging")
    row = rows[0]
    assert 3650 <= row["time_lag_seconds"] < 3651
    assert row["oldest_unconsumed_at"].startswith("2025-10-09T08:53:20")
    assert {name: row[name] for name in row if name not in ("time_lag_seconds", "oldest_unconsumed_at")} == {
        "consumer_group": "g",
        "queue_name": "q",
        "partition_name": "a",
        "partition_id": row["partition_id"],
        "worker_id": None,
        "kind": "queen",
        "offset_lag": 1,
        "lag_hours": round(row["time_lag_seconds"] / 3600, 3),
        "last_consumed_at": None,
    }
    assert row["partition_id"].isdecimal()
    assert (await dated.request("GET", "/api/v1/consumer-groups/lagging?minLagSeconds=x")).status == 400


async def test_depth(timed: Wire, autojump_clock: MockClock) -> None:
    """pending, processing and ready of a group, in all and by partition, through claim, partial ack, end of a lease,
    retention-free removal by seek, and for a group that nobody has heard of."""
    await two_groups(timed)

    async def depth(query: str = "") -> tuple[Any, ...]:
        found = await timed.ok("GET", f"/api/v1/resources/queues/q/depth{query}")
        parts = {row["partition"]: (row["pending"], row["processing"], row["ready"]) for row in found["partitions"]}
        counts = (found["pending"], found["processing"], found["ready"])
        assert (found["effectivePending"], found["effectiveReady"]) == (found["pending"], found["ready"])
        return counts, (found["partitionsPending"], found["partitionsReady"]), parts

    assert await depth("?group=g") == ((11, 4, 7), (2, 2), {"a": (7, 4, 3), "b": (4, 0, 4)})
    assert await depth("?group=h") == ((0, 0, 0), (0, 0), {"a": (0, 0, 0), "b": (0, 0, 0)})
    assert await depth("?group=nobody") == ((12, 0, 12), (2, 2), {"a": (8, 0, 8), "b": (4, 0, 4)})
    assert await depth() == ((12, 0, 12), (2, 2), {"a": (8, 0, 8), "b": (4, 0, 4)})
    rest = await timed.pop("q", "b", consumerGroup="g", **ALL)
    assert await depth("?group=g") == ((11, 8, 3), (2, 1), {"a": (7, 4, 3), "b": (4, 4, 0)})
    await timed.ack((rest[1], "completed"), group="g")
    assert (await depth("?group=g"))[2]["b"] == (2, 2, 0)
    await trio.sleep(61)
    assert await depth("?group=g") == ((9, 0, 9), (2, 2), {"a": (7, 0, 7), "b": (2, 0, 2)})
    await timed.ok("POST", "/api/v1/consumer-groups/g/queues/q/seek", {"toEnd": True})
    assert await depth("?group=g") == ((0, 0, 0), (0, 0), {"a": (0, 0, 0), "b": (0, 0, 0)})
    await timed.push("q", "one more", partition="b", txn="more")
    assert (await depth("?group=g"))[0] == (1, 0, 1)
    answer = await timed.request("GET", "/api/v1/resources/queues/unknown/depth")
    assert (answer.status, answer.json["error"]) == (404, "Queue not found")


async def test_depth_of_a_new_group_and_of_a_conflating_one(timed: Wire, autojump_clock: MockClock) -> None:
    """Where a registered group will start counts; a conflating one has one message to take of each partition."""
    await timed.push("q", *range(5), partition="a")
    await timed.pop("q", consumerGroup="late", subscriptionMode="new")
    await timed.push("q", *range(3), partition="a", txn="x")
    await timed.push("q", *range(3), partition="b", txn="x")
    late = await timed.ok("GET", "/api/v1/resources/queues/q/depth?group=late")
    assert {row["partition"]: row["pending"] for row in late["partitions"]} == {"a": 3, "b": 3}
    await timed.pop("q", consumerGroup="last", conflation=True, partitions=1, **ALL)
    last = await timed.ok("GET", "/api/v1/resources/queues/q/depth?group=last")
    assert last["conflation"] is True
    assert (last["pending"], last["processing"], last["ready"]) == (11, last["processing"], 11 - last["processing"])
    assert last["processing"] in (8, 3), "the span up to the newest is leased"
    assert (last["effectivePending"], last["effectiveReady"]) == (2, 1)


async def test_the_queues(dated: Wire, autojump_clock: MockClock) -> None:
    """Newest first; each with its labels, options and counts, and how many keys and timers there are beside them."""
    await dated.ok("POST", "/api/v1/configure", {"queue": "old", "namespace": "n", "task": "t"})
    await two_groups(dated)
    await dated.put("k", 1)
    (message,) = await dated.pop("q", "a", batch=1)
    await dated.ack((message, "dlq"))
    listed = await dated.ok("GET", "/api/v1/resources/queues?limit=1&offset=7&search=zzz")
    assert (listed["kvRows"], listed["timerRows"]) == (1, 0)
    assert listed["kvBytes"] > 0
    assert listed["timerBytes"] == 0
    young, old = listed["queues"]
    assert (young["name"], old["name"]) == ("q", "old")
    assert (old["namespace"], old["task"], old["partitions"], old["messages"]["total"]) == ("n", "t", 0, 0)
    assert young["messages"] == {"total": 12, "pending": 7, "processing": 4, "completed": 5, "deadLetter": 1}
    assert young["partitions"] == 2
    assert young["options"]["leaseTime"] == 60
    lanes = await dated.ok("GET", "/api/v1/resources/queues?stats=lanes")
    assert len(lanes["queues"]) == 2
    assert (await dated.ok("GET", "/api/v1/status/queues?limit=5"))["queues"] == listed["queues"]
    status = await dated.ok("GET", "/api/v1/status")
    assert status["queues"] == listed["queues"]
    detail = await dated.ok("GET", "/api/v1/status/queues/q")
    assert (detail["queue"]["name"], detail["queue"]["config"]["retryLimit"]) == ("q", 3)
    assert detail["totals"]["messages"]["total"] == 12
    assert (await dated.request("GET", "/api/v1/status/queues/unknown")).status == 404


async def test_one_queue(dated: Wire, autojump_clock: MockClock) -> None:
    """Every key of 13 is there."""
    await two_groups(dated)
    view = await dated.ok("GET", "/api/v1/resources/queues/q")
    keys = {"id", "name", "namespace", "task", "createdAt", "options", "partitions", "segments", "totals"}
    assert set(view) >= keys | {"retainedBytes"}
    for partition in view["partitions"]:
        assert set(partition) >= {
            *("id", "name", "createdAt", "messages", "stats", "cursor", "lastActivity"),
            *("oldestMessage", "newestMessage", "retainedBytes"),
        }
    assert view["partitions"][0]["newestMessage"].startswith("2025-10-09T08:53:20")
    assert set(view["partitions"][0]["cursor"]) == {"totalConsumed", "batchesConsumed"}


async def test_overview_namespaces_and_tasks(timed: Wire, autojump_clock: MockClock) -> None:
    """Sums over everything; labels of dotted names count like configured ones."""
    await timed.ok("POST", "/api/v1/configure", {"queue": "c", "namespace": "acme", "task": "mail"})
    await timed.push("acme.mail.x", 1, 2)
    await timed.push("acme.sms.x", 1, partition="p")
    await timed.push("plain", 1)
    (message, _) = await timed.pop("acme.mail.x")
    await timed.ack((message, "dlq"))
    found = await timed.ok("GET", "/api/v1/resources/overview")
    assert (found["queues"], found["partitions"], found["namespaces"], found["tasks"]) == (4, 3, 1, 2)
    counts = {"total": 4, "pending": 3, "processing": 0, "completed": 1, "failed": 0, "deadLetter": 1}
    assert found["messages"] == counts
    assert set(found["lag"]) == {"time", "offset"}
    assert set(found["lag"]["offset"]) == {"avg", "median", "min", "max"}
    assert found["lag"]["offset"]["max"] == 1
    assert found["statsAge"] == 0
    names = (await timed.ok("GET", "/api/v1/resources/namespaces"))["namespaces"]
    assert [(row["namespace"], row["queues"], row["partitions"], row["messages"]) for row in names] == [
        ("", 1, 1, {"total": 1, "pending": 1}),
        ("acme", 3, 2, {"total": 3, "pending": 2}),
    ]
    tasks = (await timed.ok("GET", "/api/v1/resources/tasks"))["tasks"]
    assert [(row["task"], row["queues"], row["messages"]["total"]) for row in tasks] == [
        ("", 1, 1),
        ("mail", 2, 2),
        ("sms", 1, 1),
    ]


async def test_sizes(durable: MemoryStore, autojump_clock: MockClock) -> None:
    """Payload bytes that are kept, by partition, sealed and not."""
    async with direct(durable) as wire:
        await wire.push("q", "x" * 98, partition="a")
        await wire.push("q", 1, 22, partition="b")
        await durable.seal()
        await trio.sleep(100)  # packed away
        await wire.push("q", "y" * 8, partition="a", txn="more")
        assert await wire.ok("GET", "/api/v1/resources/queues/q/sizes") == {
            "queue": "q",
            "partitions": {"a": 110, "b": 3},
        }
        assert (await wire.request("GET", "/api/v1/resources/queues/unknown/sizes")).status == 404


async def test_counts_do_not_depend_on_what_is_in_memory(durable: MemoryStore, autojump_clock: MockClock) -> None:
    """The same numbers after sealing and packing, and after a restart."""
    paths = (
        "/api/v1/consumer-groups/g",
        "/api/v1/resources/queues/q/depth?group=g",
        "/api/v1/resources/queues/q/depth?group=fresh",
        "/api/v1/resources/queues/q/sizes",
    )
    clock = TrioClock()

    async def read(wire: Wire) -> list[Any]:
        found = [await wire.ok("GET", path) for path in paths]
        for row in found[0]["q"]["partitions"]:
            del row["timeLagSeconds"]
        return found

    async with direct(durable, clock) as wire:
        await two_groups(wire)
        await trio.sleep(70)
        before = await read(wire)
        await durable.seal()
        await trio.sleep(1000)
        assert await read(wire) == before
    async with direct(durable.reopen(), clock) as wire:
        assert await read(wire) == before


async def test_analytics_and_refresh(dated: Wire, autojump_clock: MockClock) -> None:
    """Messages by the hour (or minute, or day) in which they came; there is nothing to refresh."""
    await dated.push("q", 1, 2)
    await trio.sleep(3600)
    await dated.push("q", 3, txn="later")
    found = await dated.ok("GET", "/api/v1/status/analytics?interval=hour")
    counts = [point["messages"] for point in found["dataPoints"]]
    assert (len(counts), counts[-2:], sum(counts)) == (24, [2, 1], 3)
    assert (found["interval"], found["dataPoints"][-1]["timestamp"][:13]) == ("hour", "2025-10-09T09")
    assert (await dated.ok("GET", "/api/v1/status/analytics?interval=day"))["dataPoints"][-1]["messages"] == 3
    assert (await dated.ok("POST", "/api/v1/stats/refresh"))["success"] is True
    for name in ("system-metrics", "worker-metrics"):
        assert (await dated.ok("GET", f"/api/v1/analytics/{name}"))["memory"]["rss"] > 0

"""Reads without a lease or a cursor: by offset, by change, by list (wire-messaging.md 14, 15 and 16)."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock
from wire_kit import Wire, direct

from queen_actors import limits
from queen_actors.actors.clock import TrioClock
from queen_actors.storage.memory import MemoryStore

START = {"queue": "q", "partition": "Default", "offset": 0}


async def fetch(wire: Wire, *entries: Any, **fields: Any) -> list[Any]:
    found: list[Any] = (await wire.ok("POST", "/api/v1/fetch", {"entries": list(entries), **fields}))["entries"]
    assert len(found) == len(entries)
    return found


def offsets(entry: Any) -> list[int]:
    return [record["offset"] for record in entry["records"]]


# -- 16: fetch ---------------------------------------------------------------------------------------------------------


async def test_fetch(wire: Wire) -> None:
    """One entry for each that was asked, in their order; an unknown queue is an error, an unknown partition empty."""
    await wire.push("q", "a", {"b": 1}, None)
    await wire.pop("q", autoAck=True)
    known, behind, end, partition, queue, again = await fetch(
        wire,
        START,
        {**START, "offset": 2},
        {**START, "offset": 3},
        {**START, "partition": "nobody"},
        {"queue": "nothing", "partition": "p", "offset": 0},
        START,
    )
    assert (known["queue"], known["partition"], known["highWatermark"], known["logStartOffset"]) == (
        "q",
        "Default",
        3,
        0,
    )
    assert "error" not in known
    assert [record["payload"] for record in known["records"]] == ["a", {"b": 1}, None]
    assert set(known["records"][0]) == {"offset", "transactionId", "payload", "ts"}
    assert known["records"][0]["transactionId"] == "t0"
    assert known["records"][0]["ts"].endswith("Z")
    assert (offsets(behind), offsets(end), end["highWatermark"]) == ([2], [], 3)
    assert (partition["records"], partition["highWatermark"], partition["logStartOffset"]) == ([], 0, 0)
    assert "error" not in partition
    assert queue["error"] == "UNKNOWN_TOPIC_OR_PARTITION"
    assert again == known


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"entries": [{**START, "offset": -1}]}, "offset"),
        ({"entries": [{**START, "offset": "0"}]}, "offset"),
        ({"entries": [{"partition": "p", "offset": 0}]}, "queue"),
        ({"entries": {}}, "entries"),
        ({"entries": [START], "maxWaitMs": "x"}, "maxWaitMs"),
        ({}, "entries"),
    ],
)
async def test_a_fetch_that_is_refused(wire: Wire, body: Any, words: str) -> None:
    answer = await wire.request("POST", "/api/v1/fetch", body)
    assert (answer.status, words in answer.json["error"]) == (400, True)


async def test_too_many_entries(wire: Wire) -> None:
    """1024 is the most."""
    await wire.push("q", 1)
    assert len(await fetch(wire, *[START] * limits.FETCH_ENTRIES)) == 1024
    answer = await wire.request("POST", "/api/v1/fetch", {"entries": [START] * 1025})
    assert (answer.status, answer.json["code"]) == (400, "too_large")


async def test_bounds_of_a_fetch(wire: Wire) -> None:
    """`maxBytes` of an entry and of the call; one record at the least, unless another entry got data."""
    await wire.push("q", *["x" * 98] * 10)
    (entry,) = await fetch(wire, {**START, "maxBytes": 250})
    assert offsets(entry) == [0, 1]
    (entry,) = await fetch(wire, {**START, "maxBytes": 1})
    assert offsets(entry) == [0]
    (entry,) = await fetch(wire, START, maxBytes=350)
    assert offsets(entry) == [0, 1, 2]
    entries = await fetch(wire, START, START, START, {**START, "offset": 9}, maxBytes=1050)
    assert [len(entry["records"]) for entry in entries] == [10, 1, 0, 0]
    assert [entry["highWatermark"] for entry in entries] == [10] * 4


async def test_fetch_walks_a_partition_as_the_clients_do(durable: MemoryStore, autojump_clock: MockClock) -> None:
    """From the start to the watermark, sealed and unsealed, in steps: every message once, in order; a call that reads
    something is never empty."""
    async with direct(durable) as wire:
        for part in range(6):
            await wire.push("q", *range(part * 50, part * 50 + 50), txn=f"{part}-")
            if part % 2:
                await durable.seal()
        await trio.sleep(4000)
        await wire.push("q", *range(300, 320), txn="tail")
        at, seen = 0, []
        while True:
            (entry,) = await fetch(wire, {**START, "offset": at, "maxBytes": 100})
            if not entry["records"]:
                break
            seen += [record["payload"] for record in entry["records"]]
            at = entry["records"][-1]["offset"] + 1
        assert seen == list(range(320))
        assert at == entry["highWatermark"] == 320


async def test_out_of_range(timed: Wire, autojump_clock: MockClock) -> None:
    """Below the start after retention, and beyond the end: an error with where the log starts."""
    await timed.configure("q", retentionEnabled=True, retentionSeconds=10)
    await timed.push("q", *range(5))
    await trio.sleep(30)
    await timed.push("q", "young", txn="y")
    low, start, end, beyond = await fetch(timed, *({**START, "offset": at} for at in (4, 5, 6, 7)))
    assert (low["error"], low["records"], low["logStartOffset"], low["highWatermark"]) == (
        "OFFSET_OUT_OF_RANGE",
        [],
        5,
        6,
    )
    assert (offsets(start), offsets(end)) == ([5], [])
    assert beyond["error"] == "OFFSET_OUT_OF_RANGE"


async def test_fetch_waits(timed: Wire, autojump_clock: MockClock) -> None:
    """`maxWaitMs` with `minBytes`: until there is so much, or the time is over; an error does not wait, and no wait is
    longer than 30 s."""
    await timed.push("q", "x" * 98)
    end = {**START, "offset": 1}

    async def waited(*entries: Any, **fields: Any) -> tuple[float, list[list[int]]]:
        began = trio.current_time()
        found = await fetch(timed, *entries, **fields)
        return round(trio.current_time() - began, 2), [offsets(entry) for entry in found]

    async def pushes() -> None:
        for n in range(3):
            await trio.sleep(1)
            await timed.push("q", "x" * 98, txn=f"later{n}-")

    assert await waited(end, maxWaitMs=500) == (0.5, [[]])
    assert await waited(end) == (0, [[]])
    assert await waited({**START, "offset": 9}, maxWaitMs=500) == (0, [[]])
    assert await waited(end, maxWaitMs=999_999) == (30, [[]])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pushes)
        assert await waited(end, maxWaitMs=20_000) == (1, [[1]])
        assert await waited({**START, "offset": 2}, maxWaitMs=20_000, minBytes=150) == (2, [[2, 3]])
    assert await waited({**START, "offset": 2}, maxWaitMs=2000, minBytes=10_000) == (2, [[2, 3]])


async def test_fetch_of_a_queue_that_is_made_meanwhile(timed: Wire, autojump_clock: MockClock) -> None:
    """A reader of a partition that does not exist yet is told when its first message comes."""
    await timed.push("q", 1, partition="other")

    async def push() -> None:
        await trio.sleep(3)
        await timed.push("q", "first")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(push)
        (entry,) = await fetch(timed, START, maxWaitMs=20_000)
    assert [record["payload"] for record in entry["records"]] == ["first"]


# -- 16: partitions/changed --------------------------------------------------------------------------------------------


async def changed(wire: Wire, **entry: Any) -> tuple[Any, Any]:
    """`safeTime`, and the answer to one entry."""
    answer = await wire.ok("POST", "/api/v1/partitions/changed", {"entries": [{"queue": "q", **entry}]})
    assert answer["safeTimeDegraded"] is False
    (found,) = answer["entries"]
    return answer["safeTime"], found


async def test_changed_pages(timed: Wire, autojump_clock: MockClock) -> None:
    """In the order of creation, page by page, each partition once; the last page has no cursor."""
    for n in range(25):
        await timed.push("q", n, partition=f"p{n:02}")
    await timed.push("q", "again", partition="p03", txn="x")
    pages: list[list[Any]] = []
    after: dict[str, Any] = {}
    while True:
        _, page = await changed(timed, limit=10, **after)
        pages.append(page["partitions"])
        if page["next"] is None:
            break
        after = {"after": page["next"]}
    assert [len(page) for page in pages] == [10, 10, 5]
    rows = [row for page in pages for row in page]
    assert [row["name"] for row in rows] == [f"p{n:02}" for n in range(25)]
    assert [row["lastOffset"] for row in rows] == [0, 0, 0, 1] + [0] * 21
    assert {row["logStart"] for row in rows} == {0}
    assert rows[0]["id"].isdecimal()
    _, page = await changed(timed, limit=25)
    assert (len(page["partitions"]), page["next"]) == (25, None)


async def test_changed_since(timed: Wire, autojump_clock: MockClock) -> None:
    """What was written at or after an instant; with the `safeTime` of one answer as the next one's `since` nothing is
    missed, and texts compare as instants do."""
    seen: dict[str, int] = {}
    since: dict[str, str] = {}
    times: list[str] = []
    for round_ in range(6):
        for n in range(3):
            await timed.push("q", round_, partition=f"p{(round_ + n) % 5}", txn=f"{round_}-{n}-")
        safe, page = await changed(timed, **since)
        rows = page["partitions"]
        assert all(since.get("since", "") <= row["lastWriteAt"] <= safe for row in rows)
        if round_:
            assert {row["name"] for row in rows} == {f"p{(round_ + n) % 5}" for n in range(3)}
        seen.update({row["name"]: row["lastOffset"] for row in rows})
        since = {"since": safe}
        times.append(safe)
        await trio.sleep(7)
    assert times == sorted(times)
    assert len({len(text) for text in times}) == 1
    last = {row["name"]: row["lastOffset"] for row in (await changed(timed))[1]["partitions"]}
    assert seen == last
    exact = (await changed(timed))[1]["partitions"][0]["lastWriteAt"]
    assert exact in [row["lastWriteAt"] for row in (await changed(timed, since=exact))[1]["partitions"]]
    assert (await changed(timed, since=since["since"]))[1]["partitions"] == []


async def test_changed_answers_each_entry(wire: Wire) -> None:
    """An unknown queue and a cursor of nobody's are errors of their own entry only."""
    await wire.push("q", 1)
    body = {"entries": [{"queue": "nothing"}, {"queue": "q", "after": "x"}, {"queue": "q"}, {"queue": "q", "after": 7}]}
    answer = await wire.ok("POST", "/api/v1/partitions/changed", body)
    first, second, third, fourth = answer["entries"]
    assert first == {"queue": "nothing", "error": "UNKNOWN_TOPIC_OR_PARTITION"}
    assert second == fourth == {"queue": "q", "error": "BAD_CURSOR"}
    assert len(third["partitions"]) == 1
    for entries in ([{"queue": 7}], [{"queue": "q", "since": "yesterday"}], [{"queue": "q", "limit": "x"}], "x"):
        answer = await wire.request("POST", "/api/v1/partitions/changed", {"entries": entries})
        assert answer.status == 400


# -- 14: the list ------------------------------------------------------------------------------------------------------


async def listed(wire: Wire, query: str = "") -> list[Any]:
    return [row["data"] for row in (await wire.ok("GET", f"/api/v1/messages?queue=q{query}"))["messages"]]


async def test_the_list_of_messages(timed: Wire, autojump_clock: MockClock) -> None:
    """Every key of 14 but the segment's, which nobody reads."""
    await timed.ok(
        "POST", "/api/v1/configure", {"queue": "q", "namespace": "n", "task": "t", "options": {"priority": 4}}
    )
    item = {"queue": "q", "partition": "p", "payload": {"a": 1}, "transactionId": "t1"}
    await timed.ok("POST", "/api/v1/push", {"items": [item]}, status=201)
    (message,) = await timed.pop("q", consumerGroup="g", subscriptionMode="all")
    answer = await timed.ok("GET", "/api/v1/messages")
    (row,) = answer["messages"]
    expected = {
        "id": message["id"],
        "transactionId": "t1",
        "data": {"a": 1},
        "payload": {"a": 1},
        "traceId": None,
        "producerSub": None,
        "createdAt": message["createdAt"],
        "offset": 0,
        "queue": "q",
        "partition": "p",
        "partitionId": message["partitionId"],
        "status": "processing",
        "queueStatus": "processing",
        "busStatus": {"consumedBy": 0, "totalGroups": 1},
        "queuePath": "q/p",
        "namespace": "n",
        "task": "t",
        "queuePriority": 4,
        "payloadAvailable": True,
        "isEncrypted": False,
    }
    assert {name: row[name] for name in expected} == expected
    assert row["leaseExpiresAt"] > row["createdAt"]
    assert (answer["total"], answer["pagination"]) == (1, {"limit": 200, "offset": 0})
    assert answer["mode"] == {"hasQueueMode": False, "busGroupsCount": 1, "type": "bus"}


async def test_the_list_is_filtered_and_paged(timed: Wire, autojump_clock: MockClock) -> None:
    """By partition, labels, status and time; newest first over all partitions."""
    for n in range(10):
        await timed.push("q", n, partition=f"p{n % 3}", txn=f"{n}-")
        await trio.sleep(60)
    await timed.push("n.t.other", "x")
    assert await listed(timed) == [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]
    assert await listed(timed, "&limit=3&offset=2") == [7, 6, 5]
    assert await listed(timed, "&limit=3&offset=9") == [0]
    assert await listed(timed, "&limit=3&offset=10") == []
    assert await listed(timed, "&partition=p1") == [7, 4, 1]
    rows = (await timed.ok("GET", "/api/v1/messages?queue=q"))["messages"]
    middle = rows[4]["createdAt"].replace(":", "%3A")
    assert await listed(timed, f"&from={middle}") == [9, 8, 7, 6, 5]
    assert await listed(timed, f"&to={middle}&limit=2") == [5, 4]
    for query in ("namespace=n", "task=t", "namespace=n&task=t"):
        assert [row["data"] for row in (await timed.ok("GET", f"/api/v1/messages?{query}"))["messages"]] == ["x"]
    assert (await timed.ok("GET", "/api/v1/messages?namespace=n&task=u"))["messages"] == []
    await trio.sleep(3290)
    assert await listed(timed) == [9, 8, 7, 6, 5], "without a start, the last hour"
    assert len(await listed(timed, "&from=2000-01-01")) == 10
    for query in ("status=odd", "from=yesterday", "limit=x", "offset=x"):
        assert (await timed.request("GET", f"/api/v1/messages?{query}")).status == 400


async def test_the_status_of_a_message(timed: Wire, autojump_clock: MockClock) -> None:
    """As its groups are with it, and by it."""
    await timed.push("q", *range(5))
    messages = await timed.pop("q", consumerGroup="g", subscriptionMode="all", batch=3)
    await timed.ack((messages[0], "completed"), group="g")

    async def by_status() -> dict[str, list[Any]]:
        words = ("pending", "processing", "completed", "dead_letter")
        return {word: found for word in words if (found := await listed(timed, f"&status={word}"))}

    assert await by_status() == {"pending": [4, 3], "processing": [2, 1], "completed": [0]}
    await timed.ack((messages[1], "dlq"), group="g")
    assert await by_status() == {"pending": [4, 3, 2], "completed": [0], "dead_letter": [1]}
    await timed.pop("q", autoAck=True, batch=5)
    assert await by_status() == {"pending": [4, 3, 2], "completed": [0], "dead_letter": [1]}, "named groups decide"
    answer = await timed.ok("GET", "/api/v1/messages?queue=q")
    assert answer["mode"] == {"hasQueueMode": True, "busGroupsCount": 1, "type": "hybrid"}
    await timed.pop("q", consumerGroup="h", subscriptionMode="all", autoAck=True)
    rows = (await timed.ok("GET", "/api/v1/messages?queue=q"))["messages"]
    assert [row["busStatus"] for row in rows][-1] == {"consumedBy": 2, "totalGroups": 2}


async def test_a_long_list_is_complete(durable: MemoryStore, autojump_clock: MockClock) -> None:
    """Sealed, packed away and read again: the pages of a list are the whole log, newest first."""
    clock = TrioClock()
    async with direct(durable, clock) as wire:
        for part in range(13):
            await wire.push("q", *range(part * 100, part * 100 + 100), txn=f"{part}-")
        await durable.seal()
        await trio.sleep(100)
        found: list[Any] = []
        for offset in range(0, 1300, 500):
            found += await listed(wire, f"&limit=500&offset={offset}")
    assert found == list(range(1299, -1, -1))


# -- 15: traces --------------------------------------------------------------------------------------------------------


async def test_traces_are_read(timed: Wire, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """By message and by name, newest first, in both spellings, paged; names with how often and when; kept for a while
    (here a minute, not seven days)."""
    monkeypatch.setattr("queen_actors.actors.directory.TRACE_SECONDS", 60)
    await timed.push("q", 1, 2)
    first, second = await timed.pop("q")
    for n, (message, names) in enumerate([(first, ["a"]), (first, ["a", "b"]), (second, ["b"]), (second, None)]):
        body = {"transactionId": message["transactionId"], "partitionId": message["partitionId"], "traceNames": names}
        fields = {"consumerGroup": "g", "eventType": f"e{n}", "data": {"n": n}, "worker": "w"}
        await timed.ok("POST", "/api/v1/traces", {**body, **fields}, status=201)
        await trio.sleep(1)
    names = await timed.ok("GET", "/api/v1/traces/names?limit=1")
    (name,) = names["trace_names"]
    assert {key: name[key] for key in ("trace_name", "trace_count", "message_count")} == {
        "trace_name": "b",
        "trace_count": 2,
        "message_count": 2,
    }
    assert (names["total"], names["pagination"]) == (2, {"limit": 1, "offset": 0})
    by_name = await timed.ok("GET", "/api/v1/traces/by-name/a")
    assert [row["data"] for row in by_name["traces"]] == [{"n": 1}, {"n": 0}]
    assert by_name["events"] == by_name["traces"]
    row = by_name["traces"][0]
    for camel, snake, value in (
        ("transactionId", "transaction_id", "t0"),
        ("partitionId", "partition_id", first["partitionId"]),
        ("consumerGroup", "consumer_group", "g"),
        ("traceNames", "trace_names", ["a", "b"]),
        ("eventType", "event_type", "e1"),
        ("createdAt", "created_at", row["createdAt"]),
        ("traceId", "trace_id", row["id"]),
    ):
        assert row[camel] == row[snake] == value
    of_message = await timed.ok("GET", f"/api/v1/traces/{second['partitionId']}/t1?limit=1&offset=1")
    assert ([row["data"] for row in of_message["traces"]], of_message["total"]) == ([{"n": 2}], 2)
    assert (await timed.ok("GET", "/api/v1/traces/by-name/nobody"))["traces"] == []
    assert (await timed.ok("GET", "/api/v1/traces/nonsense/t1"))["traces"] == []
    await trio.sleep(100)
    body = {"transactionId": "t0", "partitionId": first["partitionId"], "traceNames": ["new"], "eventType": "e"}
    await timed.ok("POST", "/api/v1/traces", {**body, "data": {}}, status=201)
    assert [row["trace_name"] for row in (await timed.ok("GET", "/api/v1/traces/names"))["trace_names"]] == ["new"]

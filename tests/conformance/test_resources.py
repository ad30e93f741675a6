"""Dead letters (wire-messaging.md 11), queue delete and read (12, 13), message read (14), traces (15), errors (4)."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock
from wire_kit import Wire, schedule

# -- 11 ----------------------------------------------------------------------------------------------------------------


async def dead(wire: Wire, queue: str, value: Any, group: str | None = None, partition: str = "Default") -> Any:
    """Push a message and dead-letter it for the group."""
    await wire.push(queue, value, partition=partition, txn=f"{value}-{group}-")
    query = {} if group is None else {"consumerGroup": group, "subscriptionMode": "all"}
    messages = await wire.pop(queue, partition, **query)
    await wire.ack((messages[-1], "dlq", f"error {value}"), group=group)
    return messages[-1]


async def test_a_dead_letter(wire: Wire) -> None:
    """Every key of 11; both payload fields are filled; the cursor has moved past it; other groups are not affected."""
    message = await dead(wire, "q", "v", "g", "p")
    answer = await wire.ok("GET", "/api/v1/dlq?queue=q&limit=100&offset=0")
    (letter,) = answer["messages"]
    assert letter == {
        "id": letter["id"],
        "queue": "q",
        "partition": "p",
        "partitionId": message["partitionId"],
        "createdAt": message["createdAt"],
        "consumerGroup": "g",
        "offset": 0,
        "messageId": message["id"],
        "transactionId": message["transactionId"],
        "data": "v",
        "payload": "v",
        "errorMessage": "error v",
        "retryCount": 0,
        "failedAt": letter["failedAt"],
    }
    assert letter["failedAt"] > letter["createdAt"]
    assert (answer["total"], answer["pagination"]) == (1, {"limit": 100, "offset": 0})
    assert [m["data"] for m in await wire.pop("q", "p", consumerGroup="h", subscriptionMode="all")] == ["v"]
    assert await wire.pop("q", "p", consumerGroup="g") == []


async def test_dead_letters_are_filtered_and_paged(timed: Wire, autojump_clock: MockClock) -> None:
    """Newest first; `total` counts all that match; group, partition and times narrow it."""
    for n in range(5):
        await dead(timed, "q", n, "g" if n % 2 else None, f"p{n}")
        await trio.sleep(10)
    await dead(timed, "other", "x")

    async def found(query: str) -> tuple[list[Any], int]:
        answer = await timed.ok("GET", f"/api/v1/dlq?queue=q{query}")
        return [letter["data"] for letter in answer["messages"]], answer["total"]

    assert await found("") == ([4, 3, 2, 1, 0], 5)
    assert await found("&limit=2&offset=1") == ([3, 2], 5)
    assert await found("&offset=5") == ([], 5)
    assert await found("&limit=0") == ([4], 5)
    assert await found("&limit=99999") == ([4, 3, 2, 1, 0], 5)
    assert await found("&consumerGroup=g") == ([3, 1], 2)
    assert await found("&partition=p3") == ([3], 1)
    letters = await timed.dead_letters("q")
    middle = letters[2]["failedAt"].replace(":", "%3A")
    assert (await found(f"&from={middle}"))[0] == [4, 3, 2]
    assert 4 not in (await found(f"&to={middle}"))[0]
    assert await timed.ok("GET", "/api/v1/dlq?queue=nothing") == {
        "messages": [],
        "total": 0,
        "pagination": {"limit": 100, "offset": 0},
    }
    assert (await timed.request("GET", "/api/v1/dlq?queue=q&from=yesterday")).status == 400


async def test_one_dead_letter_per_group(wire: Wire) -> None:
    """The same message, dead for two groups, has two letters."""
    await wire.push("q", 1)
    for group in ("g", "h"):
        (message,) = await wire.pop("q", consumerGroup=group, subscriptionMode="all")
        await wire.ack((message, "dlq"), group=group)
    letters = await wire.dead_letters("q")
    assert [letter["consumerGroup"] for letter in letters] == ["h", "g"]
    assert len({letter["id"] for letter in letters}) == 2
    assert {letter["messageId"] for letter in letters} == {message["id"]}


# -- 12, 13 ------------------------------------------------------------------------------------------------------------


async def test_delete_takes_everything_with_it(wire: Wire) -> None:
    """Messages, cursors, registrations, options, dead letters and dedup; the next push starts an implicit queue."""
    await wire.configure("q", leaseTime=9)
    message = await dead(wire, "q", "v", "g")
    await wire.push("q", 1, txn="again")
    deleted = await wire.ok("DELETE", "/api/v1/resources/queues/q")
    assert deleted == {"deleted": True, "existed": True, "queue": "q"}
    gone = await wire.ok("DELETE", "/api/v1/resources/queues/q")
    assert (gone["deleted"], gone["existed"], gone["queue"]) == (False, False, "q")
    assert gone["message"]
    assert (await wire.request("GET", "/api/v1/resources/queues/q")).status == 404
    assert await wire.dead_letters("q") == []
    (entry,) = await wire.ack((message, "completed"), group="g")
    assert entry["success"] is False
    (pushed,) = await wire.push("q", 2, txn="again")
    assert (pushed["status"], pushed["offset"]) == ("queued", 0)
    found = await wire.pop("q", consumerGroup="g", subscriptionMode="all")
    assert [m["data"] for m in found] == [2]
    assert found[0]["partitionId"] != message["partitionId"]
    assert (await wire.ok("GET", "/api/v1/resources/queues/q"))["options"]["leaseTime"] == 60


async def test_delete_of_odd_names(wire: Wire) -> None:
    """A slash in the name, escaped or not, is part of it."""
    for raw, name in (("a/b", "a/b"), ("c%2Fd", "c/d"), ("x%20y%3F", "x y?")):
        await wire.push(name, 1)
        assert (await wire.ok("DELETE", f"/api/v1/resources/queues/{raw}"))["existed"] is True


async def test_read_of_a_queue(wire: Wire) -> None:
    """Counts by partition, in the keys of 13; 404 for an unknown one."""
    await wire.push("q", *range(5), partition="p")
    messages = await wire.pop("q", batch=3)
    await wire.ack((messages[0], "completed"))
    view = await wire.ok("GET", "/api/v1/resources/queues/q")
    (partition,) = view["partitions"]
    assert (view["name"], partition["name"], partition["id"]) == ("q", "p", messages[0]["partitionId"])
    counts = {"total": 5, "pending": 4, "processing": 2, "completed": 1, "failed": None, "deadLetter": 0}
    assert partition["messages"] == counts
    assert partition["stats"] == counts
    assert view["totals"]["total"] == 5
    answer = await wire.request("GET", "/api/v1/resources/queues/unknown")
    assert (answer.status, answer.json) == (404, {"error": "Queue not found"})


# -- 14 ----------------------------------------------------------------------------------------------------------------


async def test_read_of_a_message(timed: Wire, autojump_clock: MockClock) -> None:
    """pending, processing, completed, dead_letter: as its groups are with it."""
    await timed.ok("POST", "/api/v1/configure", {"queue": "q", "namespace": "n", "task": "t", "leaseTime": 30})
    await timed.push("q", {"a": 1})
    (message,) = await timed.pop("q", leaseSeconds=5)
    pid = message["partitionId"]

    async def status() -> tuple[str, list[tuple[str, int, bool]]]:
        view = await timed.message(pid, "t0")
        return view["status"], [(g["name"], g["committed"], g["consumed"]) for g in view["consumerGroups"]]

    assert await status() == ("processing", [("__QUEUE_MODE__", -1, False)])
    await trio.sleep(5.1)
    assert (await status())[0] == "pending"
    view = await timed.message(pid, "t0")
    expected = {
        "id": message["id"],
        "transactionId": "t0",
        "data": {"a": 1},
        "payload": {"a": 1},
        "traceId": None,
        "producerSub": None,
        "createdAt": message["createdAt"],
        "partitionId": pid,
        "partition": "Default",
        "queue": "q",
        "namespace": "n",
        "task": "t",
        "errorMessage": None,
        "isEncrypted": False,
    }
    assert {name: view[name] for name in expected} == expected
    assert view["queueConfig"]["leaseTime"] == 30
    assert view["mode"]["type"] == "queue"
    (message,) = await timed.pop("q")
    await timed.ack((message, "completed"))
    assert await status() == ("completed", [("__QUEUE_MODE__", 0, True)])
    (message,) = await timed.pop("q", consumerGroup="g", subscriptionMode="all")
    assert (await status())[0] == "processing"
    assert (await timed.message(pid, "t0"))["mode"]["type"] == "hybrid"
    await timed.ack((message, "dlq", "bad"), group="g")
    view = await timed.message(pid, "t0")
    assert (view["status"], view["errorMessage"]) == ("dead_letter", "bad")


async def test_a_message_that_nobody_knows(wire: Wire) -> None:
    """404 with the body of 14."""
    await wire.push("q", 1)
    (message,) = await wire.pop("q")
    for path in (f"{message['partitionId']}/ghost", "99999/t0", "nonsense/t0"):
        answer = await wire.request("GET", f"/api/v1/messages/{path}")
        assert (answer.status, answer.json["error"]) == (404, "Message not found")


async def test_a_live_message_cannot_be_deleted(wire: Wire) -> None:
    """404: the log is immutable. What is dead is deleted so, and can then be neither retried nor deleted again."""
    await wire.push("q", 1)
    (message,) = await wire.pop("q")
    path = f"/api/v1/messages/{message['partitionId']}/t0"
    answer = await wire.request("DELETE", path)
    assert (answer.status, answer.json["success"], answer.json["error"]) == (404, False, "Message not found")
    await wire.ack((message, "dlq"))
    deleted = await wire.ok("DELETE", path)
    assert (deleted["success"], deleted["transactionId"], bool(deleted["deleted"])) == (True, "t0", True)
    assert await wire.dead_letters("q") == []
    assert (await wire.request("DELETE", path)).status == 404
    assert (await wire.request("POST", f"{path}/retry")).status == 404


async def test_a_replay_is_a_new_message_that_wakes(timed: Wire, autojump_clock: MockClock) -> None:
    """It starts with a fresh budget (A04), wakes a parked poll (A63), and of ten at once one moves it (A72)."""
    await timed.configure("q", retryLimit=1)
    await timed.push("q", "v")
    for _ in range(2):
        (message,) = await timed.pop("q")
        await timed.ack((message, "failed"))
    (letter,) = await timed.dead_letters("q")
    answers: list[int] = []
    found: list[Any] = []

    async def poll() -> None:
        found.extend(await timed.pop("q", wait=True, timeout=20_000))

    async def replay() -> None:
        answers.append((await timed.request("POST", f"/api/v1/dlq/{letter['id']}/replay")).status)

    with trio.fail_after(1.5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(poll)
            await trio.sleep(1)
            for _ in range(10):
                nursery.start_soon(replay)
    assert sorted(answers) == [200, *[404] * 9]
    assert await timed.dead_letters("q") == []
    (again,) = found
    assert (again["data"], again["deliveryAttempt"]) == ("v", 1)
    assert (await timed.ack((again, "failed")))[0]["dlq"] is False
    assert (await timed.pop("q"))[0]["deliveryAttempt"] == 2


# -- 15 ----------------------------------------------------------------------------------------------------------------


async def test_traces(wire: Wire) -> None:
    """201 with an id; both spellings are read; what it is of must exist."""
    await wire.push("q", 1)
    (message,) = await wire.pop("q")
    pid = message["partitionId"]
    sent = {"transactionId": "t0", "partitionId": pid, "consumerGroup": "__QUEUE_MODE__"}
    bodies: list[dict[str, Any]] = [
        {**sent, "traceNames": ["order-1", "cust-2"], "eventType": "step", "data": {"text": "hi"}},
        {**sent, "traceNames": None, "eventType": "step", "data": {}},
        {"transaction_id": "t0", "partition_id": pid, "trace_names": ["n"], "event_type": "step"},
        {"transactionId": "t0", "partitionId": pid, "names": ["n"], "type": "step", "worker": "w1"},
    ]
    ids = set()
    for body in bodies:
        said = await wire.ok("POST", "/api/v1/traces", body, status=201)
        assert said["success"] is True
        ids.add(said["traceId"])
    assert len(ids) == 4
    answer = await wire.request("POST", "/api/v1/traces", {**sent, "partitionId": "99999", "data": {}})
    assert (answer.status, answer.json) == (404, {"success": False, "error": "Partition not found"})
    answer = await wire.request("POST", "/api/v1/traces", {"partitionId": pid, "data": {}})
    assert answer.status == 400
    assert (await wire.request("POST", "/api/v1/traces", body=b"{")).status == 400


# -- 4, and 3.1 --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/v1/nothing"),
        ("POST", "/api/v2/push"),
        ("GET", "/api/v1/kv/ns"),
        ("POST", "/streams/v1/nothing"),
        ("POST", "/api/v1/ephemeral/nothing"),
        ("GET", "/api/v1/resources/partitions"),
        ("POST", "/api/v1/push/"),
    ],
)
async def test_an_unknown_route(wire: Wire, method: str, path: str) -> None:
    """404 `no_such_route`, and no redirect."""
    answer = await wire.request(method, path, body=b"{}" if method == "POST" else b"")
    assert (answer.status, answer.json["code"]) == (404, "no_such_route")
    assert answer.json["error"]


async def test_a_route_with_another_method(wire: Wire) -> None:
    """405, with the methods that it has."""
    answer = await wire.request("GET", "/api/v1/push")
    assert (answer.status, answer.headers["allow"], answer.json["code"]) == (405, "POST", "method_not_allowed")


async def test_health(wire: Wire) -> None:
    """What every harness waits on."""
    assert (await wire.ok("GET", "/health"))["status"] == "healthy"


async def test_an_escape_that_is_not_utf8(wire: Wire) -> None:
    """400, not a crash."""
    for path in ("/api/v1/pop/queue/%FF", "/api/v1/kv/ns/%FF", "/api/v1/timers/q/%FF"):
        answer = await wire.request("GET", path)
        assert (answer.status, bool(answer.json["error"])) == (400, True)


async def test_names_over_the_budget(wire: Wire) -> None:
    """413 `name_too_long` wherever a name comes in: 447 bytes with the tenant's 36."""
    name = "n" * 206
    assert (await wire.push(name, 1, partition="p" * 205))[0]["status"] == "queued"
    for method, path, body in (
        ("POST", "/api/v1/push", {"items": [{"queue": name, "partition": "p" * 206, "payload": 1}]}),
        ("GET", f"/api/v1/pop/queue/{name}?consumerGroup={'g' * 206}", None),
        ("POST", "/api/v1/configure", {"queue": "n" * 412}),
        ("POST", "/api/v1/timers", [schedule(name, "k" * 206, 1, 1000)]),
    ):
        answer = await wire.request(method, path, *(() if body is None else (body,)))
        assert (answer.status, answer.json["code"]) == (413, "name_too_long")


async def test_control_characters_are_refused(wire: Wire) -> None:
    """In queues, partitions and groups, on every route that takes a name."""
    for path in ("pop/queue/a%0Ab", "pop/queue/q/partition/a%00b", "pop/queue/q?consumerGroup=a%7Fb"):
        answer = await wire.request("GET", f"/api/v1/{path}")
        assert (answer.status, "control character" in answer.json["error"]) == (400, True)

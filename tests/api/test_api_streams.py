"""Streams over the API: registration, state rows, and cycles that are one step of the log (messaging 17)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import trio
from trio.testing import MockClock

from queen_actors.broker import Broker, running
from queen_actors.config import Settings
from queen_actors.storage.memory import MemoryStore

if TYPE_CHECKING:
    from conftest import Client

VIRTUAL_TIME = True

SEP = "\u001f"


class Worker:
    """A stream's worker, one request at a time."""

    def __init__(self, client: Client, name: str = "q1", source: str = "orders", group: str | None = None) -> None:
        self.client = client
        self.name = name
        self.source = source
        self.group = group or f"streams.{name}"
        self.id = ""

    async def register(self, config_hash: str = "a" * 64, reset: bool = False, **extra: Any) -> tuple[int, Any]:
        body = {"name": self.name, "source_queue": self.source, "config_hash": config_hash, "reset": reset, **extra}
        status, answer = await self.client.post("/streams/v1/queries", body)
        if status == 200:
            self.id = answer["query_id"]
        return status, answer

    async def pop(self, batch: int = 200) -> list[Any]:
        query = f"batch={batch}&wait=true&timeout=50&consumerGroup={self.group}&partitions=4"
        status, answer = await self.client.get(f"/api/v1/pop/queue/{self.source}?{query}")
        return [] if status == 204 else list(answer["messages"])

    async def state(self, pid: str, **filters: Any) -> dict[str, Any]:
        body = {"query_id": self.id, "partition_id": pid, "keys": [], **filters}
        status, answer = await self.client.post("/streams/v1/state/get", body)
        assert (status, answer["success"]) == (200, True)
        return {row["key"]: row["value"] for row in answer["rows"]}

    async def cycle(self, pid: str, ack: Any = None, **parts: Any) -> Any:
        body = {
            "query_id": self.id,
            "partition_id": pid,
            "consumer_group": self.group,
            "state_ops": [],
            "push_items": [],
            "ack": ack,
            "release_lease": True,
            **parts,
        }
        status, answer = await self.client.post("/streams/v1/cycle", body)
        assert status == 200, answer
        return answer


def done(messages: list[Any], count: int | None = None, **fields: Any) -> dict[str, Any]:
    """The ack of a cycle that is done with the first `count` messages."""
    count = len(messages) if count is None else count
    last = messages[max(count, 1) - 1]
    return {
        "transactionId": last["transactionId"],
        "leaseId": last["leaseId"],
        "status": "completed",
        "count": count,
        **fields,
    }


def upsert(key: str, value: Any) -> dict[str, Any]:
    return {"type": "upsert", "key": key, "value": value}


def delete(key: str) -> dict[str, Any]:
    return {"type": "delete", "key": key}


def emit(payload: Any, queue: str = "sink", **fields: Any) -> dict[str, Any]:
    return {"queue": queue, "payload": payload, **fields}


async def committed(client: Client, queue: str, group: str) -> int:
    """How many of the queue's messages the group has not finished."""
    _, depth = await client.get(f"/api/v1/resources/queues/{queue}/depth?group={group}")
    pending: int = depth["pending"]
    return pending


# -- registration


async def test_a_query_is_registered_once(client: Client) -> None:
    """The first time is fresh; the same shape goes on with the same id and its state."""
    worker = Worker(client)
    status, first = await worker.register(sink_queue="sink")
    assert status == 200
    assert first == {
        "success": True,
        "query_id": worker.id,
        "name": "q1",
        "config_hash": "a" * 64,
        "fresh": True,
        "reset": False,
    }
    (pushed,) = await client.push("orders", 1)
    assert pushed["status"] == "queued"
    (message,) = await worker.pop()
    await worker.cycle(message["partitionId"], done([message]), state_ops=[upsert("k", 1)])
    status, again = await worker.register(sink_queue="elsewhere")
    assert (status, again) == (200, {**first, "fresh": False})
    assert await worker.state(message["partitionId"]) == {"k": 1}


async def test_another_shape_is_a_conflict_until_a_reset(client: Client) -> None:
    """409 names the query; a reset takes the new shape, keeps the id and wipes the state, and only that."""
    worker = Worker(client)
    await worker.register()
    await client.push("orders", 1, 2)
    messages = await worker.pop()
    pid = messages[0]["partitionId"]
    await worker.cycle(pid, done(messages), state_ops=[upsert("k", 1)])
    status, refused = await worker.register("b" * 64)
    assert (status, refused["success"], refused["query_id"], refused["name"]) == (409, False, worker.id, "q1")
    assert "config_hash" in refused["error"]
    assert await worker.state(pid) == {"k": 1}
    before = worker.id
    status, taken = await worker.register("b" * 64, reset=True)
    assert (status, taken["query_id"], taken["fresh"], taken["reset"]) == (200, before, False, True)
    assert await worker.state(pid) == {}
    assert await worker.pop() == [], "the cursor stays where it was"
    assert (await worker.register("a" * 64))[0] == 409


async def test_a_query_keeps_to_its_source(client: Client) -> None:
    """The same name on another queue is a conflict: the rows belong to partitions of the first one."""
    await Worker(client).register()
    status, refused = await Worker(client, source="other").register()
    assert (status, refused["success"]) == (409, False)
    assert "source_queue" in refused["error"]
    assert (await client.get("/api/v1/resources/queues/other"))[0] == 404, "a refused registration creates nothing"
    moved = Worker(client, source="other")
    assert (await moved.register(reset=True))[0] == 200


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        {"name": "q", "source_queue": "s"},
        {"name": "q", "config_hash": "h"},
        {"source_queue": "s", "config_hash": "h"},
        {"name": 1, "source_queue": "s", "config_hash": "h"},
        {"name": "a\u0000", "source_queue": "s", "config_hash": "h"},
    ],
)
async def test_a_malformed_registration(client: Client, body: Any) -> None:
    """400, and nothing is made."""
    status, answer = await client.post("/streams/v1/queries", body)
    assert status == 400
    assert answer["error"]
    assert (await client.get("/api/v1/resources/queues"))[1]["queues"] == []


# -- state


async def test_state_reads(client: Client) -> None:
    """By keys, by prefix, by ripeness, and all of them together; of this query and partition alone."""
    worker = Worker(client)
    await worker.register()
    await client.push("orders", 1, partition="a")
    await client.push("orders", 1, partition="b")
    pids = {message["partition"]: message["partitionId"] for message in await worker.pop()}
    windows = {
        f"tumb:1{SEP}w1{SEP}u": {"acc": 1, "windowEnd": 1000},
        f"tumb:1{SEP}w2{SEP}u": {"acc": 2, "windowEnd": 2000.5},
        f"other{SEP}w1{SEP}u": {"acc": 3, "windowEnd": 1000},
        "__wm__": {"eventTimeMs": 5},
        "text": "windowEnd",
        "odd": {"windowEnd": "1000"},
    }
    await worker.cycle(pids["a"], state_ops=[upsert(key, value) for key, value in windows.items()])
    assert await worker.state(pids["a"]) == windows
    assert await worker.state(pids["b"]) == {}
    assert await worker.state(pids["a"], keys=["text", "nothing"]) == {"text": "windowEnd"}
    assert (await worker.state(pids["a"], key_prefix=f"tumb:1{SEP}")).keys() == {
        f"tumb:1{SEP}w1{SEP}u",
        f"tumb:1{SEP}w2{SEP}u",
    }
    ripe = await worker.state(pids["a"], key_prefix=f"tumb:1{SEP}", ripe_at_or_before=1000)
    assert list(ripe) == [f"tumb:1{SEP}w1{SEP}u"]
    assert len(await worker.state(pids["a"], ripe_at_or_before=2001)) == 3
    body = {"query_id": worker.id, "partition_id": pids["a"], "keys": []}
    rows = (await client.post("/streams/v1/state/get", body))[1]["rows"]
    assert [row["key"] for row in rows] == sorted(windows)
    assert all(row["updated_at"].endswith("Z") for row in rows)


async def test_values_keep_their_spelling(client: Client) -> None:
    """Numbers and text of a state row come back byte for byte."""
    worker = Worker(client)
    await worker.register()
    await client.push("orders", 1)
    (message,) = await worker.pop()
    text = '{"n":1.50e2,"big":123456789012345678901234567890,"s":"\\u00e9 \\/"}'
    body = (
        f'{{"query_id":"{worker.id}","partition_id":"{message["partitionId"]}","ack":null,'
        f'"state_ops":[{{"type":"upsert","key":"k","value":{text}}}]}}'
    )
    assert (await client.post("/streams/v1/cycle", body.encode()))[0] == 200
    asked = f'{{"query_id":"{worker.id}","partition_id":"{message["partitionId"]}"}}'
    reply = await client.reply("POST", "/streams/v1/state/get", asked.encode())
    assert text.encode() in reply.body


@pytest.mark.parametrize("route", ["/streams/v1/state/get", "/streams/v1/cycle"])
async def test_unknown_query_or_partition(client: Client, route: str) -> None:
    """404 for an unknown query, for an unknown partition, for what is no partition id, and for another queue's."""
    worker = Worker(client)
    await worker.register()
    await client.push("orders", 1)
    await client.push("elsewhere", 1)
    (message,) = await worker.pop()
    _, other = await client.get("/api/v1/pop/queue/elsewhere")
    for query, pid in (
        ("0197f0de-0000-7000-8000-000000000000", message["partitionId"]),
        (worker.id, "999"),
        (worker.id, "unknown"),
        (worker.id, other["partitionId"]),
    ):
        assert await client.post(route, {"query_id": query, "partition_id": pid}) == (404, {"error": "not found"})
    for body in ({"partition_id": "1"}, {"query_id": worker.id}):
        assert (await client.post(route, body))[0] == 400


# -- the cycle


async def test_a_cycle_is_one_step(client: Client) -> None:
    """State, pushes and ack happen together; the answer has an entry for each push and says what the ack came to."""
    worker = Worker(client)
    await worker.register()
    await client.push("orders", 1, 2, 3, partition="p")
    messages = await worker.pop()
    pid = messages[0]["partitionId"]
    answer = await worker.cycle(
        pid,
        done(messages),
        state_ops=[upsert("sum", 6), upsert("gone", 1), delete("gone"), delete("never")],
        push_items=[
            emit({"sum": 6}, transactionId="t"),
            emit(7, partition="other"),
            emit({"sum": 7}, transactionId="t"),
        ],
    )
    results = answer.pop("push_results")
    assert answer == {
        "success": True,
        "query_id": worker.id,
        "partition_id": pid,
        "queueName": "orders",
        "state_ops_applied": 4,
        "ack_result": {"success": True, "count": 3, "lease_released": True, "dlq": False},
    }
    assert [(row["queueName"], row["status"]) for row in results] == [
        ("sink", "queued"),
        ("sink", "queued"),
        ("sink", "duplicate"),
    ]
    assert (results[0]["transactionId"], results[2]["messageId"]) == ("t", results[0]["messageId"])
    assert results[1]["transactionId"] == results[1]["messageId"]
    assert await worker.state(pid) == {"sum": 6}
    _, popped = await client.get("/api/v1/pop/queue/sink?partitions=9")
    assert {(m["partition"], str(m["data"])) for m in popped["messages"]} == {("p", "{'sum': 6}"), ("other", "7")}
    assert await worker.pop() == []


async def test_a_lost_lease_applies_nothing(client: Client, autojump_clock: MockClock) -> None:
    """A 200 that says why: state, pushes and cursor are as they were, and the messages come again."""
    worker = Worker(client)
    await client.post("/api/v1/configure", {"queue": "orders", "options": {"leaseTime": 2}})
    await worker.register()
    await client.push("orders", 1, 2)
    messages = await worker.pop()
    pid = messages[0]["partitionId"]
    changes = {"state_ops": [upsert("k", 1)], "push_items": [emit(1)]}
    lost = {"success": False, "error": "invalid or expired lease", "reason": "lease_lost"}
    assert await worker.cycle(pid, done(messages, leaseId="another"), **changes) == lost
    await trio.sleep(2.1)
    assert await worker.cycle(pid, done(messages), **changes) == lost
    assert await worker.state(pid) == {}
    assert (await client.get("/api/v1/resources/queues/sink"))[0] == 404
    again = await worker.pop()
    assert [(m["data"], m["deliveryAttempt"]) for m in again] == [(1, 2), (2, 2)]
    assert (await worker.cycle(pid, done(again), **changes))["success"]
    assert await worker.cycle(pid, done(again), **changes) == lost, "sent again, the cycle does nothing"
    assert len((await client.get("/api/v1/pop/queue/sink"))[1]["messages"]) == 1


async def test_a_gate_lets_some_through(client: Client, autojump_clock: MockClock) -> None:
    """The cursor moves by the count, the lease stays until it ends, and the denied tail comes again in order."""
    worker = Worker(client)
    await client.post("/api/v1/configure", {"queue": "orders", "options": {"leaseTime": 2}})
    await worker.register()
    await client.push("orders", *range(5))
    messages = await worker.pop()
    pid = messages[0]["partitionId"]
    partial = {"release_lease": False, "state_ops": [upsert("c", 2)], "push_items": [emit(0), emit(1)]}
    answer = await worker.cycle(pid, done(messages, 2), **partial)
    assert answer["ack_result"] == {"success": True, "count": 2, "lease_released": False, "dlq": False}
    assert await committed(client, "orders", worker.group) == 3
    assert await worker.pop() == []
    repeated = await worker.cycle(pid, done(messages, 2), **partial)
    assert (repeated["success"], repeated["reason"]) == (False, "already_committed")
    assert len((await client.get("/api/v1/pop/queue/sink?autoAck=true"))[1]["messages"]) == 2
    await trio.sleep(2.1)
    tail = await worker.pop()
    assert [(m["data"], m["deliveryAttempt"]) for m in tail] == [(2, 2), (3, 2), (4, 2)]
    assert (await worker.cycle(pid, done(tail)))["ack_result"]["lease_released"]
    assert await committed(client, "orders", worker.group) == 0


async def test_a_gate_that_always_moves_on_never_reaches_the_delivery_limit(
    client: Client, autojump_clock: MockClock
) -> None:
    """30 leases with one message let through by each: none of the waiting ones is dead-lettered for it."""
    worker = Worker(client)
    await client.post("/api/v1/configure", {"queue": "orders", "options": {"leaseTime": 1}})
    await worker.register()
    await client.push("orders", *range(30))
    passed: list[int] = []
    while len(passed) < 30:
        messages = await worker.pop()
        if messages:
            passed.append(messages[0]["data"])
            answer = await worker.cycle(messages[0]["partitionId"], done(messages, 1), release_lease=False)
            assert answer["success"]
        await trio.sleep(1.1)
    assert passed == list(range(30))
    assert (await client.get("/api/v1/dlq?queue=orders"))[1]["total"] == 0


async def test_without_a_delivery_limit_a_closed_gate_may_stay_closed(
    client: Client, autojump_clock: MockClock
) -> None:
    """`deliveryLimit` 0: a head that is denied again and again waits as long as it takes."""
    worker = Worker(client)
    options = {"leaseTime": 1, "deliveryLimit": 0}
    await client.post("/api/v1/configure", {"queue": "orders", "options": options})
    await worker.register()
    await client.push("orders", 1)
    for attempt in range(1, 30):
        (message,) = await worker.pop()
        assert message["deliveryAttempt"] == attempt
        await trio.sleep(1.1)


@pytest.mark.parametrize(
    ("ack", "release", "reason"),
    [
        ({"count": 4}, False, "position beyond leased batch"),
        ({"leaseId": "x"}, True, "invalid or expired lease"),
        ({"leaseId": None}, None, None),
    ],
)
async def test_positions(client: Client, ack: dict[str, Any], release: bool | None, reason: str | None) -> None:
    """Beyond the span, with another lease, and without one, which asks for whatever lease there is."""
    worker = Worker(client)
    await worker.register()
    await client.push("orders", 1, 2, 3)
    messages = await worker.pop()
    answer = await worker.cycle(messages[0]["partitionId"], {**done(messages), **ack}, release_lease=release)
    assert answer.get("error") == reason
    assert await committed(client, "orders", worker.group) == (3 if reason else 0)


async def test_no_leased_batch(client: Client) -> None:
    """Without a lease id and without a lease there is nothing to settle; nor for a group that was never there."""
    worker = Worker(client)
    await worker.register()
    await client.push("orders", 1)
    (message,) = await worker.pop()
    pid = message["partitionId"]
    await worker.cycle(pid, done([message]))
    unfenced = done([message], leaseId=None)
    refused = {"success": False, "error": "no leased batch", "reason": "no_batch"}
    assert await worker.cycle(pid, unfenced) == refused
    assert await worker.cycle(pid, unfenced, consumer_group="nobody") == refused
    assert (await worker.cycle(pid, done([message]), consumer_group="nobody"))["reason"] == "lease_lost"


async def test_a_count_of_nothing_moves_nothing(client: Client) -> None:
    """`count` 0 keeps cursor and lease; the rest of the cycle happens."""
    worker = Worker(client)
    await worker.register()
    await client.push("orders", 1)
    messages = await worker.pop()
    pid = messages[0]["partitionId"]
    answer = await worker.cycle(pid, done(messages, 0), release_lease=False, state_ops=[upsert("k", 1)])
    assert answer["ack_result"] == {"success": True, "count": 0, "lease_released": False, "dlq": False}
    assert await committed(client, "orders", worker.group) == 1
    assert await worker.state(pid) == {"k": 1}
    assert (await worker.cycle(pid, done(messages)))["success"], "the lease is still there"


async def test_a_failed_ack_gives_the_batch_back(client: Client) -> None:
    """Another status than completed releases the lease and leaves the cursor; no retry is charged."""
    worker = Worker(client)
    await client.post("/api/v1/configure", {"queue": "orders", "options": {"retryLimit": 0}})
    await worker.register()
    await client.push("orders", 1, 2)
    messages = await worker.pop()
    answer = await worker.cycle(messages[0]["partitionId"], done(messages, status="failed"))
    assert answer["ack_result"] == {"success": True, "count": 0, "lease_released": True, "dlq": False}
    assert [m["data"] for m in await worker.pop()] == [1, 2]


async def test_an_idle_flush_happens_once(client: Client) -> None:
    """Without an ack: the rows that it takes must be there, so the same flush sent again pushes nothing."""
    worker = Worker(client)
    await worker.register()
    await client.push("orders", 1)
    messages = await worker.pop()
    pid = messages[0]["partitionId"]
    await worker.cycle(pid, done(messages), state_ops=[upsert("w1", 1), upsert("w2", 2)])
    flush = {"state_ops": [delete("w1")], "push_items": [emit({"sum": 1})]}
    answer = await worker.cycle(pid, **flush)
    assert (answer["success"], answer["ack_result"]) == (True, None)
    again = await worker.cycle(pid, **flush)
    assert (again["success"], again["reason"]) == (False, "state_moved")
    mixed = await worker.cycle(pid, state_ops=[delete("w2"), delete("w1")], push_items=[emit(1)])
    assert not mixed["success"]
    assert await worker.state(pid) == {"w2": 2}
    assert len((await client.get("/api/v1/pop/queue/sink"))[1]["messages"]) == 1


async def test_the_state_of_a_partition_is_bounded(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cycle that would pass the bound is refused whole; one that shrinks the state is not."""
    monkeypatch.setattr("queen_actors.domain.streams.STREAM_STATE_BYTES", 100)
    worker = Worker(client)
    await worker.register()
    await client.push("orders", 1)
    (message,) = await worker.pop()
    pid = message["partitionId"]
    assert (await worker.cycle(pid, state_ops=[upsert("a", "x" * 60)]))["success"]
    refused = await worker.cycle(pid, state_ops=[upsert("b", "x" * 60)], push_items=[emit(1)])
    assert (refused["success"], refused["reason"]) == (False, "state_full")
    assert (await worker.cycle(pid, state_ops=[upsert("b", "x" * 60), delete("a")]))["success"]
    assert (await worker.state(pid)).keys() == {"b"}


@pytest.mark.parametrize(
    "part",
    [
        {"state_ops": [{"type": "merge", "key": "k"}]},
        {"state_ops": [{"type": "upsert", "key": ""}]},
        {"state_ops": [{"type": "upsert", "key": "a\u0000"}]},
        {"state_ops": [{"type": "upsert"}]},
        {"push_items": [{"payload": 1}]},
        {"push_items": [{"queue": "s"}]},
        {"push_items": [{"queue": "s\n", "payload": 1}]},
        {"ack": {"count": -1}},
        {"ack": {"count": "1"}},
        {"ack": []},
        {"consumer_group": "a\u0001"},
    ],
)
async def test_a_malformed_cycle(client: Client, part: dict[str, Any]) -> None:
    """400, and nothing of it happens."""
    worker = Worker(client)
    await worker.register()
    await client.push("orders", 1)
    (message,) = await worker.pop()
    body = {"query_id": worker.id, "partition_id": message["partitionId"], "state_ops": [upsert("k", 1)], **part}
    assert (await client.post("/streams/v1/cycle", body))[0] == 400
    assert await worker.state(message["partitionId"]) == {}


async def test_too_much(client: Client) -> None:
    """A key over its bound and too many ops are a 413."""
    worker = Worker(client)
    await worker.register()
    await client.push("orders", 1)
    (message,) = await worker.pop()
    body = {"query_id": worker.id, "partition_id": message["partitionId"]}
    for ops in ([upsert("é" * 1025, 1)], [delete("k")] * 10_001):
        assert (await client.post("/streams/v1/cycle", {**body, "state_ops": ops}))[0] == 413


# -- what goes with what


async def test_a_query_goes_with_its_queue(client: Client) -> None:
    """Deleting the source ends the query: a worker that is left gets 404, and the name is free for another shape."""
    worker = Worker(client)
    await worker.register()
    await client.push("orders", 1)
    (message,) = await worker.pop()
    await worker.cycle(message["partitionId"], done([message]), state_ops=[upsert("k", 1)])
    await client.delete("/api/v1/resources/queues/orders")
    body = {"query_id": worker.id, "partition_id": message["partitionId"]}
    assert await client.post("/streams/v1/cycle", body) == (404, {"error": "not found"})
    status, fresh = await worker.register("b" * 64)
    assert (status, fresh["fresh"]) == (200, True)
    assert len(client.broker._core.directory.streams) == 1


@pytest.mark.parametrize("target", ["streams.q1", "streams.q1/queues/orders"])
async def test_a_query_goes_with_its_group(client: Client, target: str) -> None:
    """The group's delete takes the query and its state, so that what is read again is not counted on top."""
    worker = Worker(client)
    await worker.register()
    bystander = Worker(client, "q2")
    await bystander.register()
    await client.push("orders", 1)
    (message,) = await worker.pop()
    pid = message["partitionId"]
    for each in (worker, bystander):
        await each.cycle(pid, state_ops=[upsert("k", 1)])
    assert (await client.delete(f"/api/v1/consumer-groups/{target}"))[0] == 200
    assert (await client.post("/streams/v1/state/get", {"query_id": worker.id, "partition_id": pid}))[0] == 404
    assert await bystander.state(pid) == {"k": 1}
    assert (await worker.register())[1]["fresh"]
    assert [m["data"] for m in await worker.pop()] == [1]


async def test_a_group_that_stays_registered_keeps_its_query(client: Client) -> None:
    """`deleteMetadata=false`: the cursors go, and the state with them; the query stays."""
    worker = Worker(client)
    await worker.register()
    await client.push("orders", 1)
    (message,) = await worker.pop()
    pid = message["partitionId"]
    await worker.cycle(pid, done([message]), state_ops=[upsert("k", 1)])
    await client.delete("/api/v1/consumer-groups/streams.q1?deleteMetadata=false")
    assert await worker.state(pid) == {}
    assert [m["data"] for m in await worker.pop()] == [1]


async def test_a_worker_may_read_as_another_group(client: Client) -> None:
    """The query is bound to the group that its cycles ack for."""
    worker = Worker(client, group="mine")
    await worker.register()
    await client.push("orders", 1)
    (message,) = await worker.pop()
    pid = message["partitionId"]
    await worker.cycle(pid, done([message]), state_ops=[upsert("k", 1)])
    await client.delete("/api/v1/consumer-groups/streams.q1")
    assert await worker.state(pid) == {"k": 1}
    await client.delete("/api/v1/consumer-groups/mine")
    assert (await client.post("/streams/v1/state/get", {"query_id": worker.id, "partition_id": pid}))[0] == 404


async def test_a_restart_forgets_nothing(client_of: Callable[[Broker], Client], autojump_clock: MockClock) -> None:
    """Registration, rows, cursor and lease are as they were; a cycle under the old lease goes through, once."""
    store = MemoryStore(retain=True)
    settings = Settings(data=None)
    async with running(store, settings) as broker:
        worker = Worker(client_of(broker))
        await worker.register()
        await worker.client.push("orders", *range(4))
        first = await worker.pop(2)
        pid = first[0]["partitionId"]
        await worker.cycle(pid, done(first), state_ops=[upsert("sum", 1), upsert("gone", 1)])
        second = await worker.pop(2)
        await worker.cycle(pid, state_ops=[delete("gone")])
        await broker.seal()
    async with running(store.reopen(), settings, clock=broker.clock) as broker:
        worker.client = client_of(broker)
        assert (await worker.register())[1]["fresh"] is False
        assert await worker.state(pid) == {"sum": 1}
        assert (await worker.cycle(pid, done(second), state_ops=[upsert("sum", 6)]))["success"]
        assert not (await worker.cycle(pid, done(second), state_ops=[upsert("sum", 11)]))["success"]
        assert await worker.state(pid) == {"sum": 6}
        assert await worker.pop() == []


async def test_encrypted_sources_have_encrypted_state(
    client_of: Callable[[Broker], Client], autojump_clock: MockClock
) -> None:
    """What a query keeps of a queue that is encrypted at rest is encrypted too; its reader sees it in the clear."""
    store = MemoryStore(retain=True)
    settings = Settings(data=None, encryption_key="00" * 32)
    async with running(store, settings) as broker:
        worker = Worker(client_of(broker))
        options = {"encryptionEnabled": True}
        await worker.client.post("/api/v1/configure", {"queue": "orders", "options": options})
        await worker.register()
        await worker.client.push("orders", "secret")
        (message,) = await worker.pop()
        value = {"acc": ["top secret"], "windowEnd": 5}
        await worker.cycle(message["partitionId"], done([message]), state_ops=[upsert("k", value)])
        assert await worker.state(message["partitionId"], ripe_at_or_before=5) == {"k": value}
    assert not any(b"secret" in group for group in store.durable.groups)


async def test_state_counts_in_the_logs_backlog(client: Client) -> None:
    """A large row is as much work for the disk as a large message, and as much reason to hold callers back."""
    worker = Worker(client)
    await worker.register()
    await client.push("orders", 1)
    (message,) = await worker.pop()
    log = client.broker._core.log
    before, value = log.position, "x" * 1_000_000
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: worker.cycle(message["partitionId"], state_ops=[upsert("k", value)]))
        while log.position == before:
            await trio.lowlevel.checkpoint()
        assert log.statistics().backlog > len(value)

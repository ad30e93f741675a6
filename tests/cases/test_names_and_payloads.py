"""A70 to A72: names and payloads come back as they were sent, and a dead letter is moved once."""

from __future__ import annotations

import json
from urllib.parse import quote

import pytest
import trio
from trio.testing import MockClock
from wire_kit import Wire, schedule

NAMES = {
    "ampersand": "Bed&Breakfast",
    "slash": "a/b",
    "quotes": 'say "hi"',
    "cyrillic": "пример",
    "emoji": "\U0001f451\u200d\U0001f41d queen",
    "long": "n" * 150 + "ü" * 25,
    "percent": "100%",
    "percent that looks like an escape": "%2F%41",
    "question mark": "why?now=1",
    "hash": "#1",
    "plus and blank": " a+b ",
    "backslash": "c:\\x",
    "markup": "<b>'bold'</b>",
    "dots": "...",
    "slashes only": "//",
}


def seg(name: str) -> str:
    return quote(name, safe="")


@pytest.fixture(params=NAMES.values(), ids=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


async def test_a70_messages(wire: Wire, name: str) -> None:
    """As queue, partition, group and transaction id: configure, push, both pops, ack, nack, extend, message, fetch,
    changes, dead letters, replay, retry, seek, groups, depth, sizes, traces, and deletes."""
    await wire.configure(name, retryLimit=0)
    item = {"queue": name, "partition": name, "payload": name, "transactionId": name}
    (pushed,) = await wire.ok("POST", "/api/v1/push", {"items": [item]}, status=201)
    assert (pushed["queueName"], pushed["transaction_id"], pushed["status"]) == (name, name, "queued")
    query = {"consumerGroup": name, "subscriptionMode": "all"}
    answer = (await wire.pop_answer(name, name, **query)).json
    (message,) = answer["messages"]
    assert (answer["queue"], answer["partition"], answer["consumerGroup"]) == (name, name, name)
    assert (message["partition"], message["transactionId"], message["consumerGroup"]) == (name, name, name)
    assert message["data"] == name
    pid = message["partitionId"]
    assert await wire.pop(name, **query) == [], "the wildcard pop means the same partition and group"
    extended = await wire.ok("POST", f"/api/v1/lease/{message['leaseId']}/extend")
    assert extended["success"] is True
    view = await wire.message(pid, name)
    assert (view["queue"], view["partition"], view["data"]) == (name, name, name)
    trace = {"transactionId": name, "partitionId": pid, "consumerGroup": name, "traceNames": [name], "eventType": "e"}
    await wire.ok("POST", "/api/v1/traces", {**trace, "data": {"name": name}}, status=201)
    assert (await wire.ok("GET", f"/api/v1/traces/by-name/{seg(name)}"))["traces"][0]["data"] == {"name": name}
    assert (await wire.ok("GET", f"/api/v1/traces/{pid}/{seg(name)}"))["total"] == 1
    assert (await wire.ok("GET", "/api/v1/traces/names"))["trace_names"][0]["trace_name"] == name
    fetched = await wire.ok("POST", "/api/v1/fetch", {"entries": [{"queue": name, "partition": name, "offset": 0}]})
    assert fetched["entries"][0]["records"][0]["payload"] == name
    changed = await wire.ok("POST", "/api/v1/partitions/changed", {"entries": [{"queue": name}]})
    assert [row["name"] for row in changed["entries"][0]["partitions"]] == [name]
    queue = f"/api/v1/resources/queues/{seg(name)}"
    assert (await wire.ok("GET", queue))["partitions"][0]["name"] == name
    assert (await wire.ok("GET", f"{queue}/depth?group={seg(name)}"))["processing"] == 1
    assert (await wire.ok("GET", f"{queue}/sizes"))["partitions"] == {
        name: len(json.dumps(name, ensure_ascii=False).encode())
    }
    assert (await wire.ok("GET", f"/api/v1/status/queues/{seg(name)}"))["queue"]["name"] == name
    (entry,) = await wire.ack((message, "failed", name), group=name)
    assert (entry["success"], entry["dlq"], entry["transactionId"]) == (True, True, name)
    await replays(wire, name, pid)
    groups = await wire.ok("GET", "/api/v1/consumer-groups")
    assert {(row["name"], row["queueName"]) for row in groups} == {(name, name)}
    group = f"/api/v1/consumer-groups/{seg(name)}"
    assert list(await wire.ok("GET", group)) == [name]
    for path in (f"{group}/queues/{seg(name)}", f"{group}/queues/{seg(name)}/partitions/{seg(name)}"):
        sought = await wire.ok("POST", f"{path}/seek", {"toEnd": True})
        assert (sought["consumerGroup"], sought["queueName"], sought["partitionsUpdated"]) == (name, name, 1)
    at = {"subscriptionTimestamp": "2026-01-01T00:00:00Z"}
    assert (await wire.ok("POST", f"{group}/subscription", at))["rowsUpdated"] == 1
    deleted = await wire.ok("DELETE", f"{group}/queues/{seg(name)}")
    assert (deleted["consumerGroup"], deleted["deletedPartitions"]) == (name, 1)
    assert (await wire.request("GET", group)).status == 404
    assert (await wire.ok("DELETE", queue))["existed"] is True


async def replays(wire: Wire, name: str, pid: str) -> None:
    """The message is dead for the group of its name: found, replayed by its id, and retried by its address."""
    filters = "&".join(f"{field}={seg(name)}" for field in ("queue", "partition", "consumerGroup"))
    (letter,) = (await wire.ok("GET", f"/api/v1/dlq?{filters}"))["messages"]
    assert (letter["queue"], letter["partition"], letter["consumerGroup"]) == (name, name, name)
    assert (letter["transactionId"], letter["errorMessage"], letter["payload"]) == (name, name, name)
    moved = await wire.ok("POST", f"/api/v1/dlq/{letter['id']}/replay", {"queue": name, "partition": name})
    assert (moved["result"], moved["queue"], moved["partition"]) == ("moved", name, name)
    assert moved["originalTransactionId"] == name
    (again,) = await wire.pop(name, name, consumerGroup=name)
    await wire.ack((again, "completed"), group=name)
    item = {"queue": name, "partition": name, "payload": name, "transactionId": f"{name}2"}
    await wire.ok("POST", "/api/v1/push", {"items": [item]}, status=201)
    (second,) = await wire.pop(name, name, consumerGroup=name)
    await wire.ack((second, "dlq", name), group=name)
    place = f"/api/v1/messages/{pid}/{seg(name + '2')}"
    assert (await wire.ok("POST", f"{place}/retry"))["result"] == "moved"
    (again,) = await wire.pop(name, name, consumerGroup=name)
    await wire.ack((again, "dlq", name), group=name)
    assert (await wire.ok("DELETE", f"/api/v1/messages/{pid}/{seg(again['transactionId'])}"))["deleted"] == 1
    assert (await wire.ok("DELETE", f"/api/v1/dlq?queue={seg(name)}&consumerGroup={seg(name)}"))["deleted"] == 0


async def test_a70_keys_locks_timers_streams_and_ephemeral_queues(wire: Wire, name: str) -> None:
    """The same names as key, lock, owner, timer key and queue, query, state key, and queue in memory."""
    stored = await wire.put(name, name)
    assert (stored["applied"], stored["key"]) == (True, name)
    found = await wire.ok("GET", f"/api/v1/kv/ns/{seg(name)}")
    assert (found["key"], found["value"]) == (name, name)
    (page,) = await wire.kv({"op": "getPrefix", "ns": "ns", "prefix": name, "limit": 10})
    assert [row["key"] for row in page["rows"]] == [name]
    assert (await wire.ok("DELETE", f"/api/v1/kv/ns/{seg(name)}"))["applied"] is True
    lock = name.replace("#", "")  # which a lock's name may not have: its permits are the keys <name>#<slot>
    held = await wire.lock("acquire", lock, owner=name, ttlSeconds=30)
    assert (held["acquired"], held["name"]) == (True, lock)
    seen = await wire.lock("get", lock)
    assert seen["holders"][0]["owner"] == name
    assert (await wire.lock("release", lock, token=held["token"]))["released"] is True
    timers = f"/api/v1/timers/{seg(name)}"
    await wire.timers(schedule(name, name, name, 3_600_000, partition=name))
    peek = await wire.ok("GET", f"{timers}/{seg(name)}")
    assert (peek["found"], peek["queue"], peek["timerKey"], peek["partition"]) == (True, name, name, name)
    assert [row["timerKey"] for row in (await wire.ok("GET", timers))["rows"]] == [name]
    assert (await wire.ok("DELETE", f"{timers}/{seg(name)}"))["status"] == "cancelled"
    await wire.timers(schedule(name, name, name, 0, partition=name))
    (message,) = await wire.pop(name, name, wait=True, timeout=5000)
    assert (message["data"], message["transactionId"]) == (name, f"fire-{name}")
    query = {"name": name, "source_queue": name, "config_hash": name, "reset": False, "sink_queue": name}
    made = await wire.ok("POST", "/streams/v1/queries", query)
    cycle = {
        "query_id": made["query_id"],
        "partition_id": message["partitionId"],
        "consumer_group": name,
        "state_ops": [{"type": "upsert", "key": name, "value": name}],
        "push_items": [{"queue": name, "partition": name, "payload": name, "transactionId": name}],
        "ack": None,
        "release_lease": False,
    }
    assert (await wire.ok("POST", "/streams/v1/cycle", cycle))["push_results"][0]["transactionId"] == name
    asked = {"query_id": made["query_id"], "partition_id": message["partitionId"], "keys": [name]}
    (row,) = (await wire.ok("POST", "/streams/v1/state/get", asked))["rows"]
    assert (row["key"], row["value"]) == (name, name)
    bundle = await wire.transaction(
        operations=[{"type": "push", "queue": name, "partition": name, "payload": name, "transactionId": f"t{name}"}],
        kv=[{"op": "put", "ns": "ns", "key": name, "value": name, "forever": True}],
        timers=[schedule(name, name, name, 3_600_000, partition=name)],
    )
    assert bundle["success"] is True
    room = {"queue": name, "partition": name, "messages": [{"payload": name}]}
    assert (await wire.ok("POST", "/api/v1/ephemeral/push", room, status=201))["pushed"] == 1
    popped = await wire.ok("GET", f"/api/v1/ephemeral/pop?queue={seg(name)}&group={seg(name)}&batch=5")
    assert [(m["partition"], m["payload"]) for m in popped["messages"]] == [(name, name)]
    assert (await wire.ok("GET", f"/api/v1/ephemeral/queues/{seg(name)}/depth?group={seg(name)}"))["queue"] == name
    assert (await wire.ok("DELETE", f"/api/v1/ephemeral/queue/{seg(name)}"))["deleted"] is True


async def test_a70_errors_are_json(wire: Wire, name: str) -> None:
    """A refusal that tells a name tells it as JSON."""
    for method, path in (
        ("GET", f"/api/v1/resources/queues/{seg(name)}"),
        ("GET", f"/api/v1/consumer-groups/{seg(name)}"),
        ("GET", f"/api/v1/messages/1/{seg(name)}"),
        ("GET", f"/api/v1/{seg(name)}"),
        ("GET", f"/api/v1/pop/queue/{seg(name)}?subscriptionFrom={seg(name)}"),
        ("POST", f"/api/v1/consumer-groups/{seg(name)}/queues/{seg(name)}/seek"),
    ):
        answer = await wire.request(method, path)
        assert 400 <= answer.status < 500
        assert answer.json["error"]


TEXTS = [
    "9007199254740993",
    "9223372036854775808",
    "123456789012345678901234567890",
    "-0.0",
    "0.1",
    "1e-7",
    "1E400",
    "1.10",
    "null",
    '""',
    "true",
    "{}",
    "[]",
    '"\\u0000"',
    '"\\ud83d\\udc51"',
    '"\\u00e9 and é and \\/"',
    '{"b":1,"a":2,"b":3}',
    '{ "spaced" :  [1 , 2]\n}',
    "[" * 200 + "]" * 200,
    json.dumps({"text": "x" * 100_000}),
]


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: text[:30])
async def test_a71_payloads_come_back_as_they_were_sent(wire: Wire, text: str) -> None:
    """Byte for byte: numbers beyond 2^53, exponents, the spelling of escapes, double keys and
    blanks; through push, transaction and timer, and back by pop, fetch, message, list, dead letter and replay."""
    body = '{"items":[{"queue":"q","payload":' + text + ',"transactionId":"t"}]}'
    assert (await wire.request("POST", "/api/v1/push", body=body.encode())).status == 201
    body = '{"operations":[{"type":"push","queue":"q","payload":' + text + ',"transactionId":"x"}]}'
    assert (await wire.request("POST", "/api/v1/transaction", body=body.encode())).json["success"] is True
    answer = await wire.pop_answer("q")
    assert answer.body.count(b'"data":' + text.encode() + b",") == 2
    first, second = json.loads(answer.body)["messages"]
    asked = b'{"entries":[{"queue":"q","partition":"Default","offset":0}]}'
    fetched = await wire.request("POST", "/api/v1/fetch", body=asked)
    assert fetched.body.count(b'"payload":' + text.encode() + b",") == 2
    for path in (f"/api/v1/messages/{first['partitionId']}/t", "/api/v1/messages?queue=q&limit=1"):
        read = await wire.request("GET", path)
        assert b'"data":' + text.encode() + b"," in read.body
        assert b'"payload":' + text.encode() + b"," in read.body
    await wire.ack((first, "completed"), (second, "dlq"))
    (letter,) = await wire.dead_letters("q")
    listed = await wire.request("GET", "/api/v1/dlq?queue=q")
    assert b'"payload":' + text.encode() + b"," in listed.body
    await wire.ok("POST", f"/api/v1/dlq/{letter['id']}/replay")
    assert b'"data":' + text.encode() + b"," in (await wire.pop_answer("q")).body


@pytest.mark.parametrize("text", [t for t in TEXTS if len(t) < 60_000 and " : " not in t], ids=lambda text: text[:30])
async def test_a71_key_values_too(wire: Wire, text: str) -> None:
    """Only `incr` computes with a value; blanks between the tokens are not kept here."""
    body = '{"operations":[{"op":"put","ns":"n","key":"k","value":' + text + ',"forever":true}]}'
    assert (await wire.request("POST", "/api/v1/kv", body=body.encode())).status == 200
    assert b'"value":' + text.encode() in (await wire.request("GET", "/api/v1/kv/n/k")).body


async def test_a71_what_is_no_json_is_refused(wire: Wire) -> None:
    """A lone surrogate, as an escape (of which no reader could make a text) or in UTF-8, NaN, a number with a leading
    zero: 400, and nothing is stored."""
    for text in (b'"\\ud800 alone"', b'"\xed\xa0\x80"', b"NaN", b"01", b'"\x00"', b"'x'"):
        answer = await wire.request("POST", "/api/v1/push", body=b'{"items":[{"queue":"q","payload":' + text + b"}]}")
        assert (answer.status, answer.json["code"]) == (400, "bad_body")
    assert await wire.pop("q") == []


async def test_a72_of_ten_replays_one_moves_the_message(timed: Wire, autojump_clock: MockClock) -> None:
    """All at once, by id and by address: exactly one copy, and the dead letter is gone."""
    await timed.push("q", "v")
    (message,) = await timed.pop("q")
    await timed.ack((message, "dlq"))
    (letter,) = await timed.dead_letters("q")
    answers: list[tuple[int, str]] = []

    async def replay(path: str) -> None:
        answer = await timed.request("POST", path)
        answers.append((answer.status, answer.json["result"]))

    by_address = f"/api/v1/messages/{message['partitionId']}/t0/retry"
    async with trio.open_nursery() as nursery:
        for path in [f"/api/v1/dlq/{letter['id']}/replay", by_address] * 5:
            nursery.start_soon(replay, path)
    assert sorted(answers) == [(200, "moved"), *[(404, "gone")] * 9]
    assert [m["data"] for m in await timed.pop("q", batch=10)] == ["v"]
    assert await timed.dead_letters("q") == []


async def test_a72_a_duplicate_keeps_the_row(timed: Wire, autojump_clock: MockClock) -> None:
    """Somebody pushed the replay's transaction id already: the answer says so, and the letter stays."""
    await timed.push("q", "v")
    (message,) = await timed.pop("q")
    await timed.ack((message, "dlq"))
    (letter,) = await timed.dead_letters("q")
    item = {"queue": "q", "payload": "mine", "transactionId": f"dlq:{letter['id']}"}
    (mine,) = await timed.ok("POST", "/api/v1/push", {"items": [item]}, status=201)
    replayed = await timed.ok("POST", f"/api/v1/dlq/{letter['id']}/replay")
    assert (replayed["result"], replayed["dlqRowRemoved"]) == ("duplicate", False)
    assert replayed["replayedAs"]["message_id"] == mine["message_id"]
    assert len(await timed.dead_letters("q")) == 1
    assert [m["data"] for m in await timed.pop("q")] == ["mine"]


async def test_a70_a_name_of_300_bytes(wire: Wire) -> None:
    """Queue, partition and group share a budget, within which each may be long: 300 bytes, and in two scripts."""
    for long in ("n" * 300, "ж" * 150):
        item = {"payload": 1, "transactionId": long}
        items = [{"queue": long, "partition": "p", **item}, {"queue": "q", "partition": long, **item}]
        await wire.ok("POST", "/api/v1/push", {"items": items}, status=201)
        for queue, partition, group in ((long, "p", "g"), ("q", long, "g"), ("q", long, long)):
            query = {"consumerGroup": group, "subscriptionMode": "all"}
            (message,) = await wire.pop(queue, partition, batch=1, **query)
            assert (message["partition"], message["transactionId"]) == (partition, long)
            (entry,) = await wire.ack((message, "dlq", long), group=group)
            assert entry["success"] is True
            (letter,) = (await wire.ok("GET", f"/api/v1/dlq?queue={seg(queue)}&consumerGroup={seg(group)}"))["messages"]
            moved = await wire.ok("POST", f"/api/v1/dlq/{letter['id']}/replay")
            assert (moved["queue"], moved["partition"]) == (queue, partition)
            again = await wire.pop(queue, partition, consumerGroup=group)
            assert again[-1]["transactionId"] == f"dlq:{letter['id']}"
            await wire.ack((again[-1], "completed"), group=group)
        await wire.ok("DELETE", "/api/v1/resources/queues/q")
        assert (await wire.put(long, long))["applied"] is True
        await wire.timers(schedule("q", long, long, 3_600_000))
        assert (await wire.ok("GET", f"/api/v1/timers/q/{seg(long)}"))["found"] is True
        lock = long[:256]
        lock = lock if len(lock.encode()) <= 256 else lock[:128]
        assert (await wire.lock("acquire", lock, owner="o", ttlSeconds=30))["acquired"] is True

"""Push (wire-messaging.md, section 6) and configure (section 5)."""

from __future__ import annotations

import re
from typing import Any

import pytest
import trio
from trio.testing import MockClock
from wire_kit import Wire

UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}\Z")


async def push(wire: Wire, *items: Any) -> list[Any]:
    results: list[Any] = await wire.ok("POST", "/api/v1/push", {"items": list(items)}, status=201)
    return results


async def test_one_entry_per_item_in_input_order(wire: Wire) -> None:
    """Items of several queues and partitions; the order inside each partition is that of the request."""
    items = [
        {"queue": f"q{n % 2}", "partition": f"p{n % 3}", "payload": n, "transactionId": f"t{n}"} for n in range(12)
    ]
    results = await push(wire, *items)
    for place, (item, entry) in enumerate(zip(items, results, strict=True)):
        assert entry == {
            "index": place,
            "message_id": entry["message_id"],
            "transaction_id": f"t{place}",
            "queueName": item["queue"],
            "status": "queued",
            "offset": place // 6,
        }
        assert UUID7.match(entry["message_id"])
    assert len({entry["message_id"] for entry in results}) == 12
    messages = await wire.pop("q0", "p0")
    assert [(message["data"], message["offset"]) for message in messages] == [(0, 0), (6, 1)]
    assert messages[0]["id"] == results[0]["message_id"]


async def test_defaults_of_an_item(wire: Wire) -> None:
    """No partition or an empty one is Default; a missing transactionId is the text of the message id."""
    first, second, third = await push(
        wire,
        {"queue": "q", "payload": None},
        {"queue": "q", "payload": {}, "partition": ""},
        {"queue": "q", "payload": 1, "partition": None, "transactionId": None},
    )
    assert (first["transaction_id"], second["transaction_id"]) == (first["message_id"], second["message_id"])
    assert [entry["offset"] for entry in (first, second, third)] == [0, 1, 2]
    messages = await wire.pop("q")
    assert [message["data"] for message in messages] == [None, {}, 1]
    assert {message["partition"] for message in messages} == {"Default"}
    assert await push(wire) == []


async def test_duplicates(wire: Wire) -> None:
    """The original's id and offset, within one request and later; another partition is another message."""
    new, dup = {"queue": "q", "payload": 1, "transactionId": "a"}, {"queue": "q", "payload": 2, "transactionId": "a"}
    first, again, other, elsewhere = await push(
        wire, new, dup, {**new, "transactionId": "b"}, {**new, "partition": "p"}
    )
    assert [e["status"] for e in (first, again, other, elsewhere)] == ["queued", "duplicate", "queued", "queued"]
    assert (again["message_id"], again["offset"]) == (first["message_id"], 0)
    assert (elsewhere["offset"], elsewhere["message_id"] == first["message_id"]) == (0, False)
    (later, fresh) = await push(wire, dup, {**new, "transactionId": "c"})
    assert (later["status"], later["message_id"], later["offset"]) == ("duplicate", first["message_id"], 0)
    assert (fresh["status"], fresh["offset"]) == ("queued", 2)
    assert [message["data"] for message in await wire.pop("q", "Default")] == [1, 1, 1]


async def test_the_dedup_window(timed: Wire, autojump_clock: MockClock) -> None:
    """By the original's time; consumed or not; 0 seconds is no dedup."""
    await timed.configure("q", dedupWindowSeconds=10)
    await timed.push("q", 1)
    (message,) = await timed.pop("q")
    await timed.ack((message, "completed"))
    await trio.sleep(9)
    assert (await timed.push("q", 2))[0]["status"] == "duplicate"
    await trio.sleep(1.1)
    assert (await timed.push("q", 3))[0]["status"] == "queued"
    await timed.configure("free", dedupWindowSeconds=0)
    assert [e["status"] for e in await timed.push("free", 1) + await timed.push("free", 1)] == ["queued", "queued"]


TRACE = "8f14e45f-ceea-467f-a0e6-9d5f6b0d3f10"


@pytest.mark.parametrize(("given", "kept"), [(TRACE, TRACE), ("no uuid", None), (None, None), (7, None)])
async def test_a_trace_id_is_kept(wire: Wire, given: Any, kept: str | None) -> None:
    """A UUID is delivered with the message (decisions.md); anything else is dropped. `producerSub` is not believed."""
    await push(wire, {"queue": "q", "payload": 1, "traceId": given, "producerSub": "somebody"})
    (message,) = await wire.pop("q")
    assert (message["traceId"], message["producerSub"]) == (kept, None)


@pytest.mark.parametrize(
    "payload",
    ["9007199254740993", "123456789012345678901234567890", "1e-7", "-0.0", '"\\u0000"', "[" * 200 + "]" * 200],
)
async def test_a_payload_is_delivered_as_it_was_spelled(wire: Wire, payload: str) -> None:
    """The JSON text is kept (decisions.md)."""
    body = '{"items":[{"queue":"q","payload":' + payload + "}]}"
    assert (await wire.request("POST", "/api/v1/push", body=body.encode())).status == 201
    assert f'"data":{payload},' in (await wire.pop_answer("q")).body.decode()


@pytest.mark.parametrize("name", ["Bed&Breakfast", "a/b", 'say "hi"', "пример", "😀", "a?b#c%41", " x ", "n" * 300])
async def test_every_legal_name_comes_back(wire: Wire, name: str) -> None:
    """As queue, partition, group and transactionId, on push, pop and ack, and through the paths (A70)."""
    await push(wire, {"queue": name, "payload": 1, "transactionId": name})
    short = name[:50]
    await push(wire, {"queue": short, "partition": short, "payload": 2, "transactionId": name})
    (message,) = await wire.pop(short, short, consumerGroup=short, subscriptionMode="all")
    assert (message["partition"], message["consumerGroup"], message["transactionId"]) == (short, short, name)
    assert (await wire.message(message["partitionId"], name))["queue"] == short
    assert (await wire.ack((message, "completed"), group=short))[0]["success"] is True
    assert len(await wire.pop(name)) == 1


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "bad_body"),
        (b"{", 400, "bad_body"),
        (b"[]", 400, "bad_body"),
        (b"{}", 400, "bad_body"),
        (b'{"items":{}}', 400, "bad_body"),
        (b'{"items":[{"queue":"q","payload":"\xff"}]}', 400, "bad_body"),
        (b'{"items":[{"payload":1}]}', 400, "bad_request"),
        (b'{"items":[{"queue":"q"}]}', 400, "bad_request"),
        (b'{"items":[{"queue":7,"payload":1}]}', 400, "bad_request"),
        (b'{"items":[{"queue":"q","partition":7,"payload":1}]}', 400, "bad_request"),
        (b'{"items":[{"queue":"q","payload":1,"transactionId":7}]}', 400, "bad_request"),
        (b'{"items":[{"queue":"a\\u0000b","payload":1}]}', 400, "bad_request"),
        (b'{"items":[{"queue":"q","partition":"a\\nb","payload":1}]}', 400, "bad_request"),
        (b'{"items":[{"queue":"%s","payload":1}]}' % (b"q" * 412), 413, "name_too_long"),
        (
            b'{"items":[{"queue":"q","payload":1,"transactionId":"%s"}]}' % (b"t" * 65_536),
            400,
            "transaction_id_too_long",
        ),
    ],
)
async def test_a_push_that_is_refused(wire: Wire, body: bytes, status: int, code: str) -> None:
    """`{error, code}`, and no item of the call was appended."""
    good = b'{"items":[{"queue":"q","payload":1},'
    for text in (body, body.replace(b'{"items":[', good) if b'"items":[{' in body else body):
        answer = await wire.request("POST", "/api/v1/push", body=text)
        assert (answer.status, answer.json["code"]) == (status, code)
        assert answer.json["error"]
    assert (await wire.request("GET", "/api/v1/resources/queues/q")).status == 404


@pytest.mark.parametrize("body", [b"", b"QPB1", b"QPB1\x04\x01\x00\x00\x00\x06\x00ord", b"NOPE\x00\x00\x00\x00\x00"])
async def test_a_binary_push_that_is_cut_short(wire: Wire, body: bytes) -> None:
    """400 `bad_body`, and no queue was made: no client falls back by itself (6.5)."""
    answer = await wire.request("POST", "/api/v1/push", body=body, headers={"content-type": "application/x-queen-push"})
    assert (answer.status, answer.json["code"]) == (400, "bad_body")
    assert (await wire.request("GET", "/api/v1/resources/queues/orders")).status == 404


async def test_the_binary_example_of_6_5(wire: Wire) -> None:
    """The worked example, byte by byte: two items of one partition, one entry each."""
    body = bytes.fromhex(
        "51504231 04 01000000 0600 6f7264657273 0100 70 02000000"
        "0200 7431 07000000 7b2261223a317d 0200 7432 04000000 22c3a922"
    )
    answer = await wire.request("POST", "/api/v1/push", body=body, headers={"content-type": "application/x-queen-push"})
    assert answer.status == 201
    assert [(entry["index"], entry["status"], entry["offset"]) for entry in answer.json] == [
        (0, "queued", 0),
        (1, "queued", 1),
    ]
    messages = await wire.pop("orders", "p")
    assert [(message["transactionId"], message["data"]) for message in messages] == [("t1", {"a": 1}), ("t2", "é")]


async def test_an_implicit_queue(wire: Wire) -> None:
    """A push creates it with the implicit options; a dotted name gives namespace and task (5)."""
    await wire.push("shop.mail.orders", 1)
    queue = await wire.ok("GET", "/api/v1/resources/queues/shop.mail.orders")
    assert (queue["namespace"], queue["task"]) == ("shop", "mail")
    assert (queue["options"]["leaseTime"], queue["options"]["retryLimit"]) == (60, 3)
    await wire.push("two.parts", 1)
    queue = await wire.ok("GET", "/api/v1/resources/queues/two.parts")
    assert (queue["namespace"], queue["task"]) == ("", "")


# -- configure ---------------------------------------------------------------------------------------------------------

DEFAULTS = {
    "leaseTime": 300,
    "retryLimit": 3,
    "retryDelay": 1000,
    "deadLetterQueue": True,
    "dlqAfterMaxRetries": True,
    "delayedProcessing": 0,
    "windowBuffer": 0,
    "retentionEnabled": False,
    "retentionSeconds": 0,
    "completedRetentionSeconds": 0,
    "maxWaitTimeSeconds": 0,
    "dedupWindowSeconds": 3600,
    "minPopWaitTime": 0,
    "priority": 0,
    "maxSize": 0,
    "maxQueueSize": 0,
    "ttl": 3600,
    "encryptionEnabled": False,
    "retentionSinkHold": "",
    "retentionSinkHoldMaxSeconds": 604_800,
}


async def test_configure_answers_every_option(wire: Wire) -> None:
    """The defaults of 5, and the Python SDK's own request with its nulls."""
    sent = {"leaseTime": 60, "priority": 5, "maxSize": 10, "encryptionEnabled": False}
    body = {"queue": "q", "namespace": None, "task": None, "options": sent}
    made = await wire.ok("POST", "/api/v1/configure", body)
    expected = {
        "configured": True,
        "partitionId": None,
        "queue": "q",
        "namespace": "",
        "task": "",
        "storage": "segments",
    }
    assert {name: made[name] for name in expected} == expected
    options = {**DEFAULTS, "leaseTime": 60, "priority": 5, "maxSize": 10, "maxQueueSize": 10}
    assert options.items() <= made["options"].items()
    again = await wire.ok("POST", "/api/v1/configure", {"queue": "q", "retryLimit": 7})
    assert again["queueId"] == made["queueId"]
    assert {**options, "retryLimit": 7}.items() <= again["options"].items()
    shown = await wire.ok("GET", "/api/v1/resources/queues/q")
    assert shown["options"] == again["options"]


async def test_merge_and_replace(wire: Wire) -> None:
    """Merge keeps what is not named and replace resets it; an explicit null is the default."""
    await wire.ok(
        "POST", "/api/v1/configure", {"queue": "q", "namespace": "n", "task": "t", "options": {"leaseTime": 9}}
    )
    for mode in ({}, {"mode": None}, {"mode": "merge"}):
        merged = await wire.ok("POST", "/api/v1/configure", {"queue": "q", "options": {"retryLimit": 1}, **mode})
        assert (merged["options"]["leaseTime"], merged["namespace"], merged["task"]) == (9, "n", "t")
    nulled = await wire.ok("POST", "/api/v1/configure", {"queue": "q", "options": {"retryLimit": None}})
    assert (nulled["options"]["retryLimit"], nulled["options"]["leaseTime"]) == (3, 9)
    replaced = await wire.ok(
        "POST", "/api/v1/configure", {"queue": "q", "options": {"retryLimit": 1}, "mode": "replace"}
    )
    assert (replaced["options"]["leaseTime"], replaced["options"]["retryLimit"]) == (300, 1)


async def test_option_bounds(wire: Wire) -> None:
    """Clamped or refused, as the table says; unknown keys are ignored; an empty queue name is legal."""
    made = await wire.configure("q", dedupWindowSeconds=-5, minPopWaitTime=99_999, unknown="x", leaseTime=5.0)
    options = made["options"]
    assert (options["dedupWindowSeconds"], options["minPopWaitTime"], options["leaseTime"]) == (0, 60_000, 5)
    assert "unknown" not in options
    assert (await wire.configure("", leaseTime=5))["queue"] == ""


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"queue": None}, "queue"),
        ({"queue": 7}, "queue"),
        ({"mode": "update"}, "mode"),
        ({"options": []}, None),
        ({"options": {"leaseTime": "60"}}, "leaseTime must be an integer"),
        ({"options": {"leaseTime": 1.5}}, "leaseTime must be an integer"),
        ({"options": {"leaseTime": True}}, "leaseTime must be an integer"),
        ({"options": {"deadLetterQueue": 1}}, "deadLetterQueue must be a boolean"),
        ({"options": {"retentionSinkHold": "a b"}}, "retentionSinkHold"),
        ({"options": {"retentionSinkHoldMaxSeconds": 59}}, "retentionSinkHoldMaxSeconds"),
        ({"options": {"retentionSinkHoldMaxSeconds": 31_536_001}}, "retentionSinkHoldMaxSeconds"),
        ({"queue": "a\nb"}, "control character"),
    ],
)
async def test_a_configure_that_is_refused(wire: Wire, fields: dict[str, Any], words: str | None) -> None:
    """400 `bad_request` that names the field, and the options stay."""
    before = (await wire.configure("q", leaseTime=9))["options"]
    answer = await wire.request("POST", "/api/v1/configure", {"queue": "q", "options": {"leaseTime": 5}, **fields})
    if words is None:  # no option at all, as PHP's empty array says
        assert answer.status == 200
    else:
        assert (answer.status, answer.json["code"]) == (400, "bad_request")
        assert words in answer.json["error"]
    assert (await wire.ok("GET", "/api/v1/resources/queues/q"))["options"] == before


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"7"])
async def test_a_configure_without_an_object(wire: Wire, body: bytes) -> None:
    """400."""
    assert (await wire.request("POST", "/api/v1/configure", body=body)).status == 400

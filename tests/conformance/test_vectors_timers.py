"""Vectors 25 to 30 of wire-kv-locks-timers-transactions.md, section 10, and section 4: timers.

Vector 29 (a broker that is killed) is in test_vectors_crash.py.
"""

from __future__ import annotations

import base64
import re
from typing import Any

import pytest
import trio
from trio.testing import MockClock
from wire_kit import Wire, direct, refusal, schedule

from queen_actors.actors.clock import TrioClock
from queen_actors.storage.memory import MemoryStore
from queen_actors.values import parse_instant

FIXED = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z\Z")
DAY_MS = 86_400_000


async def peek(wire: Wire, queue: str, key: str) -> Any:
    return await wire.ok("GET", f"/api/v1/timers/{queue}/{key}")


async def listed(wire: Wire, queue: str, query: str = "") -> Any:
    return await wire.ok("GET", f"/api/v1/timers/{queue}{query}")


async def test_vector_25_a_timer_fires(timed: Wire, autojump_clock: MockClock) -> None:
    """Not before its time, with the promised message id and transaction id, in its partition; then it is no timer."""
    (made,) = await timed.timers(schedule("q", "k", {"n": 1}, 300, partition="p"))
    base = {"ok": True, "status": "scheduled", "queue": "q", "timerKey": "k", "txn": "fire-k"}
    assert made == {**base, "messageId": made["messageId"], "deliverAt": made["deliverAt"]}
    assert FIXED.match(made["deliverAt"])
    pending = await peek(timed, "q", "k")
    assert pending["found"] is True
    await trio.sleep(0.299)
    assert await timed.pop("q") == []
    started = trio.current_time()
    (message,) = await timed.pop("q", wait=True, timeout=5000)
    assert trio.current_time() - started < 0.1
    assert (message["id"], message["transactionId"]) == (made["messageId"], "fire-k")
    assert (message["data"], message["partition"], message["traceId"]) == ({"n": 1}, "p", None)
    assert message["createdAt"] >= made["deliverAt"]
    assert await peek(timed, "q", "k") == {"found": False, "queue": "q", "timerKey": "k"}
    assert await listed(timed, "q") == {"rows": [], "truncated": False, "nextAfter": None}
    options = (await timed.ok("GET", "/api/v1/resources/queues/q"))["options"]
    assert (options["leaseTime"], options["retryLimit"], options["dedupWindowSeconds"]) == (60, 3, 3600)


async def test_vector_26_the_same_key_moves_the_timer(timed: Wire, autojump_clock: MockClock) -> None:
    """Whichever verb is used, when it is pending it is moved whole, and one message comes of it."""
    (first,) = await timed.timers(schedule("q", "k", 1, 1000, partition="p"))
    before = await peek(timed, "q", "k")
    await trio.sleep(0.5)
    (second,) = await timed.timers(schedule("q", "k", 2, 1000, txn="second"))
    assert (second["status"], second["txn"]) == ("rescheduled", "second")
    assert second["messageId"] != first["messageId"]
    after = await peek(timed, "q", "k")
    assert after["createdAt"] == before["createdAt"]
    assert after["updatedAt"] > before["updatedAt"]
    assert (after["deliverAt"], after["partition"]) == (second["deliverAt"], "Default")
    await trio.sleep(0.9)
    assert await timed.pop("q") == []
    await trio.sleep(1)
    (message,) = await timed.pop("q")
    assert (message["id"], message["data"], message["partition"]) == (second["messageId"], 2, "Default")
    (fresh,) = await timed.timers({**schedule("q", "new", 3, 1000), "op": "reschedule"})
    assert fresh["status"] == "scheduled"


async def test_vector_27_cancel(timed: Wire, autojump_clock: MockClock) -> None:
    """The stored transaction id when there was a timer, the caller's when there was none."""
    await timed.timers(schedule("q", "k", 1, 1000), schedule("q", "b", 1, 1000))
    cancelled = await timed.ok("DELETE", "/api/v1/timers/q/k?txn=mine")
    base = {"queue": "q", "timerKey": "k"}
    assert cancelled == {"ok": True, "status": "cancelled", **base, "txn": "fire-k"}
    absent = await timed.ok("DELETE", "/api/v1/timers/q/k?txn=mine")
    assert absent == {"ok": False, "status": "absent", **base, "txn": "mine"}
    assert (await timed.ok("DELETE", "/api/v1/timers/q/k"))["txn"] is None
    (batch,) = await timed.timers({"op": "cancel", "queue": "q", "timerKey": "b"})
    assert batch == {"ok": True, "status": "cancelled", "queue": "q", "timerKey": "b", "txn": "fire-b"}
    await trio.sleep(2)
    assert await timed.pop("q") == []


async def test_vector_28_delays(timed: Wire, autojump_clock: MockClock) -> None:
    """Past and fractional delays are legal; over 90 days is refused with its own code."""
    for place, delay in enumerate((-5, 0, 0.5, -1e300)):
        await timed.timers(schedule("q", f"k{place}", place, delay))
    await trio.sleep(0.1)
    assert {message["data"] for message in await timed.pop("q")} == {0, 1, 2, 3}
    assert (await timed.timers(schedule("q", "edge", 1, 90 * DAY_MS)))[0]["ok"] is True
    for delay in (90 * DAY_MS + 1, 1e300):
        answer = await timed.request("POST", "/api/v1/timers", [schedule("q", "far", 1, delay)])
        assert refusal(answer) == (403, "timer_horizon_exceeded", "timers_horizon")


async def test_vector_28_payloads(wire: Wire) -> None:
    """1 MiB decoded fits, one byte more is a 413, and what is not base64 is a 400."""
    largest = base64.b64encode(b'"' + b"x" * ((1 << 20) - 2) + b'"').decode()
    assert (await wire.timers({**schedule("q", "k", 1, 60_000), "payload": largest}))[0]["ok"] is True
    over = base64.b64encode(b'"' + b"x" * ((1 << 20) - 1) + b'"').decode()
    answer = await wire.request("POST", "/api/v1/timers", [{**schedule("q", "over", 1, 60_000), "payload": over}])
    assert refusal(answer) == (413, "payload_too_large", "timers_payload_too_large")
    assert [row["timerKey"] for row in (await listed(wire, "q"))["rows"]] == ["k"]


def changed(**fields: Any) -> dict[str, Any]:
    op = {**schedule("q", "bad", 1, 60_000), **fields}
    return {name: value for name, value in op.items() if value is not ...}


SERVER_OWNED = ("producerSub", "messageId", "tenant", "tenantId", "deliverAt", "delaySeconds", "attempts", "claimToken")
BAD: list[tuple[str, Any]] = [
    ("timers_bad_op", 7),
    ("timers_bad_op", None),
    ("timers_bad_op", changed(op="fire")),
    ("timers_bad_op", changed(op=...)),
    ("timers_server_owned_field", changed(_claimed=1)),
    *(("timers_server_owned_field", changed(**{name: 1})) for name in (*SERVER_OWNED, "claimedUntil", "deliver_at")),
    ("timers_queue_required", changed(queue=...)),
    ("timers_queue_required", changed(queue="")),
    ("timers_queue_required", changed(queue=None)),
    ("timers_delay_required", changed(delayMs=...)),
    ("timers_delay_required", changed(delayMs="5")),
    ("timers_delay_required", changed(delayMs=None)),
    ("timers_delay_required", changed(delayMs=True)),
    ("timers_payload_required", changed(payload=...)),
    ("timers_payload_required", changed(payload={"a": 1})),
    ("timers_payload_not_base64", changed(payload="{}")),
    ("timers_payload_not_base64", changed(payload="YQ")),
    ("timers_payload_not_base64", changed(payload="_-8=")),
    ("timers_bad_op", changed(timerKey=...)),
    ("timers_bad_op", changed(timerKey="")),
    ("timers_bad_op", changed(partition="")),
    ("timers_bad_op", changed(txn=...)),
    ("timers_bad_op", changed(txn="")),
    ("timers_bad_op", changed(txn="x" * 65_536)),
    ("timers_bad_op", changed(timerKey="good")),
    ("timers_queue_required", {"op": "cancel", "timerKey": "k"}),
    ("timers_bad_op", {"op": "cancel", "queue": "q"}),
]


@pytest.mark.parametrize(("reason", "op"), BAD)
async def test_vector_28_one_bad_op_schedules_nothing(wire: Wire, reason: str, op: Any) -> None:
    """400 with its reason (4.5): of three ops with a bad one in the middle, none happened."""
    await wire.timers(schedule("q", "kept", 1, 60_000))
    await wire.push("q", 0)
    before = await wire.state("q")
    ops = [schedule("q", "good", 1, 60_000), op, {"op": "cancel", "queue": "q", "timerKey": "kept"}]
    answer = await wire.request("POST", "/api/v1/timers", {"operations": ops})
    assert refusal(answer) == (400, "timers_bad_request", reason)
    assert await wire.state("q") == before


@pytest.mark.parametrize("body", [b"", b"{", b"1", b"null", b"{}", b'{"operations":{}}'])
async def test_vector_28_a_bad_body(wire: Wire, body: bytes) -> None:
    """Neither an array nor an object with an array of operations."""
    answer = await wire.request("POST", "/api/v1/timers", body=body)
    assert refusal(answer) == (400, "timers_bad_request", "timers_bad_body")


async def test_vector_28_counts(wire: Wire) -> None:
    """256 ops in a call; an empty one has an empty answer; a name over its budget is a 413."""
    ops = [schedule("many", f"k{n}", n, 60_000) for n in range(257)]
    answer = await wire.request("POST", "/api/v1/timers", ops)
    assert refusal(answer) == (400, "timers_bad_request", "timers_too_many_ops")
    assert len(await wire.timers(*ops[:256])) == 256
    assert await wire.ok("POST", "/api/v1/timers", []) == {"results": []}
    assert (await wire.timers(schedule("q", "x" * (447 - 36 - 1), 1, 60_000)))[0]["ok"] is True
    answer = await wire.request("POST", "/api/v1/timers", [schedule("q", "x" * (447 - 36), 1, 60_000)])
    assert (answer.status, answer.json["code"]) == (413, "name_too_long")


@pytest.mark.parametrize(
    ("raw", "queue", "key"),
    [
        ("q/order/9137%20x%3F", "q", "order/9137 x?"),
        ("q/a//b", "q", "a//b"),
        ("q//lead", "q", "/lead"),
        ("q/tail/", "q", "tail/"),
        ("q/%2541", "q", "%41"),
        ("a%2Fb/k", "a/b", "k"),
        ("q/a%2Fb", "q", "a/b"),
        ("q/a+b", "q", "a+b"),
        ("%D0%BF/%F0%9F%98%80", "п", "😀"),
    ],
)
async def test_vector_30_the_raw_path_names_the_timer(wire: Wire, raw: str, queue: str, key: str) -> None:
    """Peek and cancel find it under exactly this key; only an escape inside a segment is data (1.6)."""
    await wire.timers(schedule(queue, key, 1, 60_000, txn="t"))
    found = await wire.ok("GET", f"/api/v1/timers/{raw}")
    assert (found["found"], found["queue"], found["timerKey"]) == (True, queue, key)
    cancelled = await wire.ok("DELETE", f"/api/v1/timers/{raw}?txn=abc")
    assert (cancelled["status"], cancelled["queue"], cancelled["timerKey"]) == ("cancelled", queue, key)
    assert (await wire.ok("DELETE", f"/api/v1/timers/{raw}?txn=a+b%2B"))["txn"] == "a b+"


async def test_peek_and_list_rows(wire: Wire) -> None:
    """A row has every field of 4.6; only a peek has `found` and the payload."""
    (made,) = await wire.timers(schedule("q", "k", {"n": 1}, 60_000, partition="p", encrypted=True))
    shown = await peek(wire, "q", "k")
    row = {
        "queue": "q",
        "timerKey": "k",
        "partition": "p",
        "deliverAt": made["deliverAt"],
        "txn": "fire-k",
        "messageId": made["messageId"],
        "payloadZstd": False,
        "encrypted": True,
        "producerSub": None,
        "attempts": 0,
        "lastError": None,
        "claimed": False,
        "createdAt": shown["createdAt"],
        "updatedAt": shown["createdAt"],
    }
    assert shown == {**row, "found": True, "payload": base64.b64encode(b'{"n": 1}').decode()}
    assert FIXED.match(shown["createdAt"])
    assert (await listed(wire, "q"))["rows"] == [row]


async def test_list_pages(wire: Wire) -> None:
    """In byte order of the key, not by due time; `after` is exclusive, the limit is clamped, or 100 when unreadable."""
    keys = ["Z", "a", "b/c", "é", "\U0001f600"]
    await wire.timers(*(schedule("q", key, 1, 60_000 - place) for place, key in enumerate(keys)))
    first = await listed(wire, "q", "?limit=2")
    assert ([row["timerKey"] for row in first["rows"]], first["truncated"], first["nextAfter"]) == (
        ["Z", "a"],
        True,
        "a",
    )
    rest = await listed(wire, "q", "?limit=2&after=a")
    assert [row["timerKey"] for row in rest["rows"]] == ["b/c", "é"]
    last = await listed(wire, "q", "?limit=99999&after=b%2Fc")
    assert ([row["timerKey"] for row in last["rows"]], last["truncated"], last["nextAfter"]) == (keys[3:], False, None)
    assert len((await listed(wire, "q", "?limit=0"))["rows"]) == 1
    assert len((await listed(wire, "q", "?limit=many"))["rows"]) == 5
    assert await listed(wire, "other") == {"rows": [], "truncated": False, "nextAfter": None}


async def test_count(wire: Wire) -> None:
    """How many keys of the queue have the prefix; the count-mode refusals of 4.5."""
    await wire.timers(*(schedule("q", key, 1, 60_000) for key in ("a/1", "a/2", "b")))
    assert await listed(wire, "q", "?mode=count&prefix=a%2F") == {"count": 2}
    assert await listed(wire, "q", "?mode=count&prefix=zz") == {"count": 0}
    for query, reason in (
        ("mode=count", "timers_count_prefix_required"),
        ("mode=count&prefix=", "timers_count_prefix_required"),
        ("mode=count&prefix=%00", "timers_count_prefix_invalid"),
        (f"mode=count&prefix={'x' * 129}", "timers_count_prefix_too_long"),
        ("mode=count&prefix=a&limit=5", "timers_count_page_parameters"),
        ("mode=count&prefix=a&after=x", "timers_count_page_parameters"),
        ("mode=sum", "timers_read_mode_unknown"),
    ):
        answer = await wire.request("GET", f"/api/v1/timers/q?{query}")
        assert refusal(answer) == (400, "timers_bad_request", reason)


async def test_timers_fire_in_the_order_of_their_time(timed: Wire, autojump_clock: MockClock) -> None:
    """Several of one partition in one step are appended by due time, whatever order they were scheduled in."""
    await timed.timers(*(schedule("q", f"k{n}", n, 1000 - n) for n in range(5)))
    await trio.sleep(2)
    assert [message["data"] for message in await timed.pop("q")] == [4, 3, 2, 1, 0]


async def test_a_known_transaction_id_is_not_appended_again(timed: Wire, autojump_clock: MockClock) -> None:
    """Inside the partition's dedup window the timer is done without a second message."""
    await timed.push("q", "pushed", txn="x")
    await timed.timers(schedule("q", "k", "fired", 100, txn="x0"))
    await trio.sleep(1)
    assert (await peek(timed, "q", "k"))["found"] is False
    assert [message["data"] for message in await timed.pop("q")] == ["pushed"]


async def test_a_fired_message_waits_for_the_queues_delay(timed: Wire, autojump_clock: MockClock) -> None:
    """It goes the way of a push, `delayedProcessing` included (9, point 4)."""
    await timed.configure("q", delayedProcessing=3)
    await timed.timers(schedule("q", "k", 1, 1000))
    await trio.sleep(3.5)
    assert await timed.pop("q") == []
    started = trio.current_time()
    assert len(await timed.pop("q", wait=True, timeout=5000)) == 1
    assert trio.current_time() - started < 1


@pytest.mark.parametrize(
    ("payload", "data"), [(b"plain text", "plain text"), (b"", ""), (b"\xff\xfe", None), (b'{"a" : 1.50}', {"a": 1.5})]
)
async def test_a_payload_that_is_no_json(timed: Wire, autojump_clock: MockClock, payload: bytes, data: Any) -> None:
    """It arrives as a JSON string, or as null when it is not even text (9, point 2)."""
    await timed.timers({**schedule("q", "k", 1, 10), "payload": base64.b64encode(payload).decode()})
    await trio.sleep(0.1)
    assert (await timed.pop("q"))[0]["data"] == data


async def test_timers_survive_a_restart(durable: MemoryStore, autojump_clock: MockClock) -> None:
    """What fell due in the meantime fires at once, oldest first; the rest at its time."""
    clock = TrioClock()
    async with direct(durable, clock) as wire:
        made = await wire.timers(
            *(schedule("q", f"k{n}", n, 5000 - n) for n in range(3)), schedule("q", "z", 9, 60_000)
        )
    await trio.sleep(10)
    async with direct(durable.reopen(), clock) as wire:
        await trio.sleep(0.1)
        messages = await wire.pop("q")
        assert [message["data"] for message in messages] == [2, 1, 0]
        assert {message["id"] for message in messages} == {element["messageId"] for element in made[:3]}
        assert [row["timerKey"] for row in (await listed(wire, "q"))["rows"]] == ["z"]
        assert parse_instant(made[3]["deliverAt"]) > parse_instant(messages[0]["createdAt"])

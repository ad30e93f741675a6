"""Vectors 31 to 40 of wire-kv-locks-timers-transactions.md, section 10, and section 5: transactions.

Vector 37 (a broker that is killed) is in test_vectors_crash.py.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock
from wire_kit import Answer, Wire, schedule

ONCE: dict[str, Any] = {
    "op": "putIfAbsent",
    "ns": "ns",
    "key": "once",
    "value": True,
    "forever": True,
    "required": True,
}
LOSES: dict[str, Any] = {"op": "check", "ns": "ns", "key": "lost", "expect": 7, "required": True}
REPORT: dict[str, Any] = {"queue": "reports", "payload": {"day": "2026-10-22"}, "transactionId": "report-2026-10-22"}


def push(*items: Any) -> dict[str, Any]:
    return {"type": "push", "items": list(items)}


def item(queue: str, txn: str, payload: Any = 1, **fields: Any) -> dict[str, Any]:
    return {"queue": queue, "transactionId": txn, "payload": payload, **fields}


def ack(message: Any, status: str = "completed", lease: bool = True, **fields: Any) -> dict[str, Any]:
    named = {"transactionId": message["transactionId"], "partitionId": message["partitionId"], "status": status}
    return {"type": "ack", **named, **({"leaseId": message["leaseId"]} if lease else {}), **fields}


def rolled_back(answer: Any, reason: str) -> None:
    assert answer["success"] is False
    assert answer["reason"] == reason
    assert answer["error"]
    assert answer["results"] == []
    assert answer["transactionId"]


async def refused(wire: Wire, body: Any, status: int, reason: str) -> Answer:
    """A malformed bundle: the body of 5.4 with the status of 5.5."""
    answer = await wire.request("POST", "/api/v1/transaction", body)
    assert answer.status == status, answer.body
    rolled_back(answer.json, reason)
    return answer


async def test_vector_31_a_guard_keeps_a_replaced_holder_out(timed: Wire, autojump_clock: MockClock) -> None:
    """The seed's example; then B takes the expired lock, and A's guarded bundle is refused with B's row."""
    mine = await timed.lock("acquire", "daily-report", ttlSeconds=30, owner="A")
    done = await timed.transaction(operations=[push(REPORT)], requiredLeases=[], kv=[mine["guard"]])
    pushed, checked = done["results"]
    assert (done["success"], "error" in done) == (True, False)
    base = {"index": 0, "type": "push", "success": True, "transactionId": "report-2026-10-22", "queueName": "reports"}
    assert pushed == {**base, "messageId": pushed["messageId"]}
    row = {"index": 1, "opIndex": 0, "type": "kv", "op": "check", "key": "daily-report#0", "applied": True}
    assert checked == {**row, "version": mine["token"]}
    await trio.sleep(31)
    theirs = await timed.lock("acquire", "daily-report", ttlSeconds=30, owner="B")
    before = await timed.state("reports")
    lost = await timed.transaction(operations=[push({**REPORT, "transactionId": "again"})], kv=[mine["guard"]])
    rolled_back(lost, "kv_precondition")
    assert (lost["ok"], lost["failedIndex"], lost["kvReason"]) == (False, 1, "version")
    assert (lost["version"], lost["value"]) == (theirs["token"], {"owner": "B"})
    assert await timed.state("reports") == before
    assert (await timed.transaction(operations=[push({**REPORT, "transactionId": "b"})], kv=[theirs["guard"]]))[
        "success"
    ]


async def test_vector_32_a_guard_of_an_expired_lock(timed: Wire, autojump_clock: MockClock) -> None:
    """Nobody took it: `absent`, null, 0."""
    mine = await timed.lock("acquire", "job", ttlSeconds=1, owner="A")
    await trio.sleep(1.1)
    lost = await timed.transaction(operations=[push(REPORT)], kv=[mine["guard"]])
    rolled_back(lost, "kv_precondition")
    assert (lost["kvReason"], lost["value"], lost["version"], lost["failedIndex"]) == ("absent", None, 0, 1)
    assert (await timed.request("GET", "/api/v1/resources/queues/reports")).status == 404


async def test_vector_33_a_renewal_in_flight_shows_the_owner(wire: Wire) -> None:
    """The holder's own renewal moved the token: the answer has the owner, so that the SDK sends it again."""
    mine = await wire.lock("acquire", "job", ttlSeconds=30, owner="A")
    renewed = await wire.lock("renew", "job", token=mine["token"], ttlSeconds=30, owner="A")
    lost = await wire.transaction(operations=[push(REPORT)], kv=[mine["guard"]])
    assert (lost["kvReason"], lost["version"], lost["value"]["owner"]) == ("version", renewed["token"], "A")
    assert (await wire.transaction(operations=[push(REPORT)], kv=[renewed["guard"]]))["success"] is True


async def prepared(wire: Wire) -> Any:
    """A leased message of `in`, and something under every name that `state` reads."""
    await wire.push("in", "work", "more")
    (message, _) = await wire.pop("in", leaseSeconds=60)
    await wire.put("kept", 1)
    await wire.timers(schedule("in", "kept", 1, 600_000))
    return message


def everything(message: Any, *kv: Any) -> dict[str, Any]:
    put = {"op": "put", "ns": "ns", "key": "made", "value": 1, "forever": True}
    timers = [schedule("in", "made", 1, 600_000), {"op": "cancel", "queue": "in", "timerKey": "kept"}]
    return {"operations": [push(item("in", "out")), ack(message)], "kv": [put, *kv], "timers": timers}


async def test_vector_34_all_or_nothing(wire: Wire) -> None:
    """A losing `required` leaves nothing of the push, the ack, the key and the timers; then all of it happens."""
    message = await prepared(wire)
    before = await wire.state("in")
    lost = await wire.transaction(**everything(message, LOSES))
    rolled_back(lost, "kv_precondition")
    assert (lost["failedIndex"], lost["kvReason"]) == (3, "absent")
    assert await wire.state("in") == before
    assert await wire.committed(message) == -1
    done = await wire.transaction(**everything(message))
    assert done["success"] is True
    assert await wire.committed(message) == 0
    assert (await wire.get("made"))["found"] is True
    assert [row["timerKey"] for row in (await wire.ok("GET", "/api/v1/timers/in"))["rows"]] == ["made"]
    assert (await wire.message(message["partitionId"], "out"))["offset"] == 2


async def test_vector_35_a_rejected_ack_is_reported_first(timed: Wire, autojump_clock: MockClock) -> None:
    """Acks come before pushes, pushes before keys (5.2); the prose says that it rolled back."""
    await timed.push("in", 1, txn="m")
    (message,) = await timed.pop("in", leaseSeconds=1)
    await timed.kv({**ONCE, "required": False})
    await trio.sleep(1.1)
    duplicate = push(item("in", "m0"))
    lost = await timed.transaction(operations=[duplicate, ack(message)], kv=[ONCE])
    rolled_back(lost, "rejected_ack")
    assert "rolled back" in lost["error"]
    assert "failedIndex" not in lost
    rolled_back(await timed.transaction(operations=[duplicate], kv=[ONCE]), "duplicate")
    rolled_back(await timed.transaction(kv=[ONCE]), "kv_precondition")


async def test_vector_36_duplicates(wire: Wire) -> None:
    """A known transactionId rolls the whole bundle back; a repeat inside the bundle is one message."""
    await wire.push("q", 1, txn="known")
    before = await wire.state("q")
    put = {"op": "put", "ns": "ns", "key": "k", "value": 1, "forever": True}
    rolled_back(await wire.transaction(operations=[push(item("q", "new"), item("q", "known0"))], kv=[put]), "duplicate")
    assert await wire.state("q") == before
    done = await wire.transaction(
        operations=[push(item("q", "x", 1), item("q", "x", 2), item("q", "x", 3, partition="p"))]
    )
    first, second, third = done["results"]
    assert "duplicate" not in first
    assert "duplicate" not in third
    assert (second["duplicate"], second["messageId"]) == (True, first["messageId"])
    messages = await wire.pop("q", partitions=2)
    assert sorted((m["partition"], m["data"]) for m in messages) == [("Default", 1), ("Default", 1), ("p", 3)]


async def test_vector_38_indexes(wire: Wire) -> None:
    """Pushed items and acks in request order, then keys and timers: one flat index, and one among their own kind."""
    message = await prepared(wire)
    done = await wire.transaction(
        operations=[push(item("out", "a"), item("out", "b")), ack(message)],
        kv=[{"op": "get", "ns": "ns", "key": "kept"}, {"op": "getMany", "ns": "ns", "keys": ["kept", "zz"]}],
        timers=[schedule("out", "t", 1, 60_000)],
    )
    results = done["results"]
    assert [element["index"] for element in results] == [0, 1, 2, 3, 4, 5]
    assert [element["type"] for element in results] == ["push", "push", "ack", "kv", "kv", "timer"]
    assert [element.get("opIndex") for element in results] == [None, None, None, 0, 1, 0]
    assert results[2] == {
        "index": 2,
        "type": "ack",
        "success": True,
        "transactionId": message["transactionId"],
        "error": None,
        "dlq": False,
    }
    assert (results[3]["found"], results[4]["missing"], results[5]["status"]) == (True, ["zz"], "scheduled")


PREFIX = {"op": "getPrefix", "ns": "ns", "prefix": "k"}
GET = {"op": "get", "ns": "ns", "key": "k"}


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ({}, 400, "bad_request"),
        ({"operations": [], "requiredLeases": [], "kv": [], "timers": [], "positions": []}, 400, "bad_request"),
        ({"operations": [push()], "requiredLeases": ["x"]}, 400, "bad_request"),
        ([], 400, "bad_request"),
        ({"operations": {}}, 400, "bad_request"),
        ({"operations": [{"type": "pull"}]}, 400, "bad_request"),
        ({"operations": [{"queue": "in", "payload": 1}]}, 400, "bad_request"),
        ({"operations": [{"type": "push", "queue": "in"}]}, 400, "bad_request"),
        ({"operations": [{"type": "push", "payload": 1}]}, 400, "bad_request"),
        ({"operations": [push({"queue": "in", "data": 1})]}, 400, "bad_request"),
        ({"operations": [push({"payload": 1})]}, 400, "bad_request"),
        ({"operations": [{"type": "ack", "partitionId": "1"}]}, 400, "bad_request"),
        ({"operations": [{"type": "ack", "transactionId": "t"}]}, 400, "bad_request"),
        ({"operations": [{"type": "ack", "transactionId": "t", "partitionId": 1}]}, 400, "bad_request"),
        ({"operations": [{"type": "ack", "transactionId": "t", "partitionId": "x1"}]}, 400, "bad_request"),
        ({"kv": [PREFIX]}, 400, "kv_get_prefix_not_allowed_in_transaction"),
        ({"kv": [GET] * 65}, 400, "kv_too_many_ops"),
        ({"kv": [{"op": "getMany", "ns": "ns", "keys": ["k"] * 257}]}, 400, "kv_too_many_keys"),
        ({"kv": [{**GET, "ns": "NS"}]}, 400, "kv_bad_namespace"),
        ({"kv": [LOSES, LOSES]}, 400, "kv_duplicate_key_in_call"),
        ({"kv": [{"op": "put", "ns": "ns", "key": "k", "value": 1}]}, 400, "kv_expiry_not_specified"),
        (
            {"kv": [{"op": "put", "ns": "ns", "key": "k", "value": "v" * 65_536, "forever": True}]},
            413,
            "kv_value_too_large",
        ),
        ({"kv": [{"op": "get", "ns": "ns", "key": "k" * 513}]}, 413, "kv_key_too_large"),
        ({"timers": [schedule("in", "k", 1, 1, deliverAt="x")]}, 400, "timers_server_owned_field"),
        ({"timers": [schedule("in", "k", 1, 1, _x=1)]}, 400, "timers_server_owned_field"),
        ({"timers": [{**schedule("in", "k", 1, 1), "payload": "?"}]}, 400, "bad_request"),
        ({"timers": [{"op": "cancel", "queue": "in"}]}, 400, "bad_request"),
        ({"timers": [schedule("in", "k", 1, 91 * 86_400_000)]}, 403, "timers_horizon"),
        ({"positions": [{"queue": "in", "consumerGroup": "g", "offset": -1}]}, 400, "bad_request"),
        ({"positions": [{"queue": "in"}]}, 400, "bad_request"),
    ],
)
async def test_vector_39_a_malformed_bundle(wire: Wire, body: Any, status: int, reason: str) -> None:
    """The body of a rollback with a status that is not 200 (5.5), and nothing of a good operation beside it."""
    await prepared(wire)
    before = await wire.state("in")
    await refused(wire, body, status, reason)
    whole_in_itself = isinstance(body, dict) and (body.get("kv") or body.get("timers") or body.get("positions"))
    if whole_in_itself:
        await refused(wire, {**body, "operations": [push(item("in", "good"))]}, status, reason)
    assert await wire.state("in") == before


async def test_vector_39_a_body_that_is_no_json(wire: Wire) -> None:
    """400 in the same shape."""
    answer = await wire.request("POST", "/api/v1/transaction", body=b"{")
    assert answer.status == 400
    rolled_back(answer.json, "bad_request")


async def test_vector_39_names_that_are_too_long(wire: Wire) -> None:
    """Over the budget, and over the size of a transactionId, the answer is the shared error shape."""
    for fields, status, code in (
        ({"partition": "p" * 447}, 413, "name_too_long"),
        ({}, 400, "transaction_id_too_long"),
    ):
        txn = "t" if fields else "t" * 65_536
        answer = await wire.request("POST", "/api/v1/transaction", {"operations": [push(item("q", txn, **fields))]})
        assert (answer.status, answer.json["code"]) == (status, code)
        assert answer.json["error"]
    binary = await wire.request(
        "POST", "/api/v1/transaction", body=b"QTB1", headers={"content-type": "application/x-queen-push"}
    )
    assert (binary.status, binary.json["code"]) == (400, "bad_body")


async def test_vector_40_bundles_that_cross(timed: Wire, autojump_clock: MockClock) -> None:
    """A thousand bundles over (A, B) and (B, A), all at once: none waits for ever, and each saw the one before it."""

    async def cross(n: int) -> None:
        names = ("a", "b") if n % 2 else ("b", "a")
        kv = [{"op": "incr", "ns": ns, "key": "n", "delta": 1, "forever": True} for ns in names]
        operations = [push(*(item("q", f"t{n}", n, partition=partition) for partition in names))]
        done = await timed.transaction(operations=operations, kv=kv)
        assert done["success"] is True
        counts = [element["value"] for element in done["results"][2:]]
        assert counts[0] == counts[1]
        seen.add(counts[0])

    seen: set[int] = set()
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for n in range(1000):
                nursery.start_soon(cross, n)
    assert seen == set(range(1, 1001))
    logs = [[m["data"] for m in await timed.pop("q", partition, batch=2000)] for partition in ("a", "b")]
    assert logs[0] == logs[1]
    assert sorted(logs[0]) == list(range(1000))


# -- section 5 ---------------------------------------------------------------------------------------------------------


async def test_an_inline_push_and_a_minted_id(wire: Wire) -> None:
    """One item may stand in the operation itself; its payload may be null; its trace id is kept."""
    trace = "8f14e45f-ceea-467f-a0e6-9d5f6b0d3f10"
    inline = {"type": "push", "queue": "q", "payload": None, "traceId": trace}
    (element,) = (await wire.transaction(operations=[inline]))["results"]
    (message,) = await wire.pop("q")
    assert (message["id"], message["transactionId"]) == (element["messageId"], element["transactionId"])
    assert (message["data"], message["traceId"], message["partition"]) == (None, trace, "Default")
    await wire.transaction(operations=[{**inline, "traceId": "no uuid", "partition": "p"}])
    assert (await wire.pop("q"))[0]["traceId"] is None


async def test_riders_alone_are_a_bundle(wire: Wire) -> None:
    """Keys only, timers only, positions only; absent arrays are empty ones."""
    assert (await wire.transaction(kv=[ONCE]))["results"][0]["applied"] is True
    assert (await wire.transaction(timers=[schedule("q", "k", 1, 60_000)]))["results"][0]["index"] == 0
    await wire.push("q", 1, 2, 3)
    done = await wire.transaction(positions=[{"queue": "q", "consumerGroup": "g", "partition": "Default", "offset": 2}])
    assert done["results"] == [{"index": 0, "opIndex": 0, "type": "position", "success": True}]
    assert [m["data"] for m in await wire.pop("q", consumerGroup="g", subscriptionMode="all")] == [3]


async def test_losers_that_are_not_required_commit(wire: Wire) -> None:
    """`applied: false` in their elements, and the rest happens."""
    done = await wire.transaction(operations=[push(item("q", "t"))], kv=[{**LOSES, "required": False}])
    assert (done["success"], done["results"][1]["applied"], done["results"][1]["reason"]) == (True, False, "absent")
    assert len(await wire.pop("q")) == 1


async def test_the_reported_loser_is_the_first_by_key(wire: Wire) -> None:
    """By namespace and key, its index flat over pushed items and acks (5.8)."""
    lost = await wire.transaction(operations=[push(item("q", "a"), item("q", "b"))], kv=[LOSES, {**LOSES, "key": "a"}])
    assert lost["failedIndex"] == 3


async def test_a_large_current_value_is_left_out(wire: Wire) -> None:
    """The plain rollback body (2.9)."""
    await wire.put("lost", "v" * 5000)
    lost = await wire.transaction(kv=[LOSES])
    rolled_back(lost, "kv_precondition")
    assert lost.keys() == {"transactionId", "success", "reason", "error", "results"}


@pytest.mark.parametrize("fence", ["own", "required", "other ack's"])
async def test_which_lease_fences_an_ack(timed: Wire, autojump_clock: MockClock, fence: str) -> None:
    """Its own lease; else the one distinct lease of the bundle (5.6). Live, it commits; expired, all rolls back."""
    await timed.push("q", 1, 2)
    for live in (False, True):
        messages = await timed.pop("q", leaseSeconds=5)
        first, second = messages
        if fence == "own":
            bundle: dict[str, Any] = {"operations": [ack(first), ack(second)]}
        elif fence == "required":
            operations = [ack(first, lease=False), ack(second, lease=False)]
            bundle = {"operations": operations, "requiredLeases": [first["leaseId"]]}
        else:
            bundle = {"operations": [ack(first, lease=False), ack(second)]}
        if not live:
            await trio.sleep(5.1)
            rolled_back(await timed.transaction(**bundle), "rejected_ack")
            assert await timed.committed(first) == -1
        else:
            assert (await timed.transaction(**bundle))["success"] is True
            assert await timed.committed(first) == 1


async def test_two_leases_leave_an_ack_without_one_unfenced(timed: Wire, autojump_clock: MockClock) -> None:
    """An unfenced `completed` moves the cursor although the lease is over; of an unknown message it is refused."""
    await timed.push("q", 1)
    (message,) = await timed.pop("q", leaseSeconds=1)
    await trio.sleep(1.1)
    bundle = {"operations": [ack(message, lease=False)], "requiredLeases": ["x", "y"]}
    assert (await timed.transaction(**bundle))["success"] is True
    assert await timed.committed(message) == 0
    assert (await timed.transaction(operations=[ack(message, lease=False)]))["success"] is True
    ghost = ack({**message, "transactionId": "ghost"}, lease=False)
    rolled_back(await timed.transaction(operations=[ghost]), "rejected_ack")


async def test_required_leases_fence_nothing_by_themselves(wire: Wire) -> None:
    """Without an ack in the bundle they are not checked."""
    assert (await wire.transaction(operations=[push(item("q", "t"))], requiredLeases=["nobody's"]))["success"] is True


async def test_a_repeat_under_a_settled_lease_is_refused_in_a_bundle(wire: Wire) -> None:
    """Outside a transaction it is a success, inside it is none (5.6)."""
    await wire.push("q", 1)
    (message,) = await wire.pop("q")
    assert (await wire.transaction(operations=[ack(message)]))["success"] is True
    assert (await wire.ack((message, "completed")))[0]["success"] is True
    rolled_back(await wire.transaction(operations=[ack(message)], kv=[ONCE]), "rejected_ack")
    assert (await wire.get("once"))["found"] is False


async def test_acks_of_a_bundle_charge_retries_and_dead_letter(wire: Wire) -> None:
    """`failed` counts, `dlq` files, an unknown word is `failed`; the element says whether it was dead-lettered."""
    await wire.configure("q", retryLimit=1)
    await wire.push("q", 1)
    for status, dlq in (("failed", False), ("nonsense", True)):
        (message,) = await wire.pop("q")
        done = await wire.transaction(operations=[ack(message, status, error="broken")])
        assert (done["success"], done["results"][0]["dlq"]) == (True, dlq)
    (letter,) = await wire.dead_letters("q")
    assert (letter["errorMessage"], letter["data"]) == ("broken", 1)
    await wire.push("q", 2, txn="second")
    _, message = await wire.pop("q", consumerGroup="g", subscriptionFrom="2020-01-01T00:00:00Z")
    done = await wire.transaction(operations=[ack(message, "dlq", consumerGroup="g")])
    assert done["results"][0]["dlq"] is True


async def test_reads_in_a_bundle(wire: Wire) -> None:
    """A get before the write of its key sees the old row, after it the new one; getMany sees the write."""
    put = {"op": "put", "ns": "ns", "key": "k", "value": 1, "forever": True}
    done = await wire.transaction(kv=[GET, {"op": "getMany", "ns": "ns", "keys": ["k"]}, put, GET])
    early, many, _, late = done["results"]
    assert (early["found"], len(many["rows"]), late["value"]) == (False, 1, 1)


async def test_timers_share_the_bundles_fate(timed: Wire, autojump_clock: MockClock) -> None:
    """A schedule that rolls back is no timer; a cancel that rolls back cancels nothing."""
    await timed.timers(schedule("q", "old", "old", 1000))
    timers = [schedule("q", "new", "new", 1000), {"op": "cancel", "queue": "q", "timerKey": "old"}]
    rolled_back(await timed.transaction(timers=timers, kv=[LOSES]), "kv_precondition")
    await trio.sleep(2)
    assert [message["data"] for message in await timed.pop("q")] == ["old"]
    done = await timed.transaction(timers=[schedule("q", "new", "new", 1000)])
    assert done["results"][0]["status"] == "scheduled"
    (message,) = await timed.pop(
        "q", wait=True, timeout=2000, leaseSeconds=1, consumerGroup="g", subscriptionMode="new"
    )
    assert message["data"] == "new"


async def test_a_pushed_bundle_wakes_a_long_poll(timed: Wire, autojump_clock: MockClock) -> None:
    """Once, with all of it."""
    found: list[Any] = []

    async def poll() -> None:
        found.extend(await timed.pop("q", wait=True, timeout=5000))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(poll)
        await trio.sleep(1)
        await timed.transaction(operations=[push(item("q", "a"), item("q", "b"))])
    assert [message["transactionId"] for message in found] == ["a", "b"]
    assert trio.current_time() < 2

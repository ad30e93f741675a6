"""Keys, locks, timers and transactions through the API, on a real broker and virtual time."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
import trio

if TYPE_CHECKING:
    from conftest import Client

VIRTUAL_TIME = True


def b64(value: Any) -> str:
    return base64.b64encode(json.dumps(value).encode()).decode()


async def kv(client: Client, *ops: Any) -> list[Any]:
    status, answer = await client.post("/api/v1/kv", {"operations": list(ops)})
    assert status == 200
    return list(answer["results"])


async def test_the_captured_kv_session(client: Client) -> None:
    """Section 7.2: put, get, a conditional put that wins and one that loses, incr to its bound."""
    key = {"ns": "carts", "key": "customer-42"}
    put = {"op": "put", **key, "value": {"items": 3}, "ttlSeconds": 604_800}
    (stored,) = await kv(client, put)
    version = stored["version"]
    assert stored == {"index": 0, "op": "put", "applied": True, "key": "customer-42", "value": {"items": 3},
                      "version": version}  # fmt: skip
    (got,) = await kv(client, {"op": "get", **key})
    assert (got["found"], got["value"], got["version"]) == (True, {"items": 3}, version)
    (won,) = await kv(client, {**put, "value": {"items": 4}, "expect": version})
    assert won["version"] > version
    (lost,) = await kv(client, {**put, "value": {"items": 5}, "expect": version})
    assert (lost["applied"], lost["reason"], lost["value"], lost["version"]) == (
        False, "version", {"items": 4}, won["version"],
    )  # fmt: skip
    incr = {"op": "incr", "ns": "limits", "key": "api", "delta": 1, "max": 100, "ttlSeconds": 60}
    (one,) = await kv(client, incr)
    (over,) = await kv(client, {**incr, "delta": 100})
    assert (one["value"], over["reason"], over["value"], over["version"]) == (1, "limit", 1, one["version"])


async def test_a_lost_required_op_is_an_answer_without_results(client: Client) -> None:
    """Section 7.4, on the batch and on a path route."""
    put = {"op": "put", "ns": "n", "key": "k", "value": 1, "ttlSeconds": 60, "expect": 5, "required": True}
    expected = {"ok": False, "reason": "kv_precondition", "failedIndex": 0, "kvReason": "absent", "version": 0,
                "value": None}  # fmt: skip
    assert await client.post("/api/v1/kv", [put]) == (200, expected)
    body = {name: put[name] for name in ("value", "ttlSeconds", "expect", "required")}
    assert await client.call("PUT", "/api/v1/kv/n/k", body) == (200, expected)


async def test_path_routes_reach_the_same_key_however_it_is_written(client: Client) -> None:
    """2.11: `a%2Fb` and `a/b` are one key; a hit has an ETag, a miss is 200; a query string is refused."""
    status, stored = await client.call("PUT", "/api/v1/kv/ns/a%2Fb", {"value": 1.50, "forever": True})
    assert (status, stored["index"], stored["op"], stored["key"]) == (200, 0, "put", "a/b")
    reply = await client.reply("GET", "/api/v1/kv/ns/a/b")
    assert reply.headers["etag"] == f'"{stored["version"]}"'
    assert json.loads(reply.body)["key"] == "a/b"
    missed = await client.reply("GET", "/api/v1/kv/ns/a//b")
    assert (missed.status, "etag" in missed.headers) == (200, False)
    assert json.loads(missed.body) == {"index": 0, "op": "get", "found": False, "key": "a//b"}
    status, refused = await client.get("/api/v1/kv/ns/a/b?x=1")
    assert (status, refused["error"], refused["reason"]) == (400, "kv_bad_request", "kv_no_query_string")
    status, gone = await client.call("DELETE", "/api/v1/kv/ns/a/b", {})
    assert (status, gone["applied"], gone["version"]) == (200, True, stored["version"])


@pytest.mark.parametrize("key", ["a/b", "/lead", "a//b", "tail/", "%41", "a b?c", "é", ".", "+"])
async def test_keys_of_any_spelling(client: Client, key: str) -> None:
    """1.6: escaped or raw, split before decoding and decoded once; the same for timers."""
    for target in (quote(key, safe=""), quote(key, safe="/+")):
        await client.call("PUT", f"/api/v1/kv/ns/{target}", {"value": 1, "forever": True})
        (got,) = await kv(client, {"op": "get", "ns": "ns", "key": key})
        assert got["found"]
        status, got = await client.get(f"/api/v1/timers/q%2Fq/{target}")
        assert (status, got) == (200, {"found": False, "queue": "q/q", "timerKey": key})
        status, got = await client.delete(f"/api/v1/timers/q/{target}?txn=a+b%2B")
        assert got == {"ok": False, "status": "absent", "queue": "q", "timerKey": key, "txn": "a b+"}


async def test_the_first_seed_example(client: Client) -> None:
    """Section 7.1: acquire, a guarded commit, release; then a guard of a lock that is gone."""
    _, answer = await client.post(
        "/api/v1/locks", [{"op": "acquire", "name": "daily-report", "ttlSeconds": 30, "owner": "me"}]
    )
    (permit,) = answer["results"]
    assert (permit["acquired"], permit["slot"], permit["guard"]["key"]) == (True, 0, "daily-report#0")
    bundle: dict[str, Any] = {
        "operations": [{"type": "push", "items": [{"queue": "reports", "payload": {"day": 1}, "transactionId": "r1"}]}],
        "requiredLeases": [],
        "kv": [permit["guard"]],
    }
    status, committed = await client.post("/api/v1/transaction", bundle)
    assert (status, committed["success"]) == (200, True)
    assert [entry["type"] for entry in committed["results"]] == ["push", "kv"]
    assert committed["results"][1] == {"index": 1, "op": "check", "applied": True, "key": "daily-report#0",
                                       "version": permit["token"], "opIndex": 0, "type": "kv"}  # fmt: skip
    _, answer = await client.post(
        "/api/v1/locks", [{"op": "release", "name": "daily-report", "token": permit["token"]}]
    )
    assert answer["results"] == [{"index": 0, "op": "release", "name": "daily-report", "released": True, "slot": 0}]
    bundle["operations"][0]["items"][0]["transactionId"] = "r2"
    status, lost = await client.post("/api/v1/transaction", bundle)
    assert (status, lost["success"], lost["reason"], lost["failedIndex"], lost["kvReason"], lost["value"]) == (
        200, False, "kv_precondition", 1, "absent", None,
    )  # fmt: skip
    assert lost["results"] == []
    assert lost["transactionId"] != committed["transactionId"]


async def test_locks_over_the_wire(client: Client) -> None:
    """A semaphore of two: the third is told the holders; names keep their spelling."""
    name = 'say "hi" & пример/1'

    async def acquire(owner: str) -> Any:
        op = {"op": "acquire", "name": name, "ttlSeconds": 30, "owner": owner, "limit": 2}
        return (await client.post("/api/v1/locks", [op]))[1]["results"][0]

    first, second, third = [await acquire(owner) for owner in ("a", "b", "c")]
    assert {first["slot"], second["slot"]} == {0, 1}
    assert (third["acquired"], third["reason"], len(third["holders"])) == (False, "held", 2)
    _, answer = await client.post("/api/v1/locks", [{"op": "get", "name": name}])
    assert (answer["results"][0]["held"], answer["results"][0]["name"]) == (True, name)


async def test_a_timer_is_scheduled_listed_and_fired(client: Client) -> None:
    """Section 7.5's session: schedule, peek, list, count, move, then the promised message at its time."""
    op = {"op": "schedule", "queue": "reminders", "timerKey": "order-9137", "payload": b64({"orderId": 9137}),
          "delayMs": 5000, "txn": "t1", "partition": "p"}  # fmt: skip
    _, answer = await client.post("/api/v1/timers", {"operations": [op]})
    (scheduled,) = answer["results"]
    assert (scheduled["ok"], scheduled["status"], "index" in scheduled) == (True, "scheduled", False)
    _, peeked = await client.get("/api/v1/timers/reminders/order-9137")
    assert (peeked["found"], peeked["deliverAt"], peeked["payload"]) == (True, scheduled["deliverAt"], op["payload"])
    _, page = await client.get("/api/v1/timers/reminders?limit=1")
    assert ([row["timerKey"] for row in page["rows"]], page["truncated"], page["nextAfter"]) == (
        ["order-9137"],
        False,
        None,
    )
    assert await client.get("/api/v1/timers/reminders?mode=count&prefix=order-") == (200, {"count": 1})
    _, answer = await client.post("/api/v1/timers", [{**op, "op": "reschedule", "delayMs": 6000, "txn": "t2"}])
    moved = answer["results"][0]
    assert (moved["status"], moved["messageId"] != scheduled["messageId"]) == ("rescheduled", True)
    started = trio.current_time()
    status, popped = await client.get("/api/v1/pop/queue/reminders?wait=true&timeout=30000")
    assert status == 200
    assert 6 <= trio.current_time() - started < 7
    (message,) = popped["messages"]
    assert (message["id"], message["transactionId"], message["data"], message["partition"]) == (
        moved["messageId"], "t2", {"orderId": 9137}, "p",
    )  # fmt: skip
    _, gone = await client.delete("/api/v1/timers/reminders/order-9137?txn=t2")
    assert (gone["ok"], gone["status"], gone["txn"]) == (False, "absent", "t2")


async def test_timer_refusals_keep_their_envelopes(client: Client) -> None:
    """A horizon is 403, a bad count 400, an empty key 400; nothing of a bad batch is scheduled."""
    op = {"op": "schedule", "queue": "q", "timerKey": "k", "payload": b64(1), "delayMs": 1000, "txn": "t"}
    status, answer = await client.post("/api/v1/timers", [op, {**op, "timerKey": "j", "delayMs": 91 * 86_400_000}])
    assert (status, answer["error"], answer["reason"]) == (403, "timer_horizon_exceeded", "timers_horizon")
    assert (await client.get("/api/v1/timers/q/k"))[1]["found"] is False
    status, answer = await client.get("/api/v1/timers/q?mode=sum")
    assert (status, answer["error"], answer["reason"]) == (400, "timers_bad_request", "timers_read_mode_unknown")
    assert (await client.delete("/api/v1/timers/q/"))[0] == 400


async def test_a_bundle_with_everything(client: Client) -> None:
    """Section 7.6: flat indexes over steps, kv and timers; a lost `once` rolls all of it back."""
    await client.post("/api/v1/push", {"items": [{"queue": "orders", "payload": 1, "transactionId": "paid"}]})
    _, popped = await client.get("/api/v1/pop/queue/orders")
    (message,) = popped["messages"]
    item = {"queue": "receipts", "payload": {"t": 1}, "transactionId": "receipt-7"}
    once = {"op": "putIfAbsent", "ns": "paid", "key": "pay-1", "value": True, "ttlSeconds": 60, "required": True}
    timer = {"op": "schedule", "queue": "reminders", "timerKey": "o", "payload": b64(1), "delayMs": 1000, "txn": "t"}
    bundle = {
        "operations": [
            {
                "type": "ack",
                "transactionId": "paid",
                "partitionId": message["partitionId"],
                "leaseId": message["leaseId"],
            },
            {"type": "push", "items": [item, item]},
        ],
        "requiredLeases": [message["leaseId"]],
        "kv": [{"op": "put", "ns": "orders", "key": "o", "value": 1, "forever": True}, once],
        "timers": [timer],
    }
    status, answer = await client.post("/api/v1/transaction", bundle)
    assert (status, answer["success"]) == (200, True)
    assert [(entry["index"], entry["type"]) for entry in answer["results"]] == [
        (0, "ack"), (1, "push"), (2, "push"), (3, "kv"), (4, "kv"), (5, "timer"),
    ]  # fmt: skip
    assert answer["results"][2]["duplicate"] is True
    lost = {"operations": [{"type": "push", "queue": "x", "payload": 1}], "kv": [once]}
    _, answer = await client.post("/api/v1/transaction", lost)
    assert (answer["success"], answer["reason"], answer["failedIndex"], answer["kvReason"], answer["value"]) == (
        False, "kv_precondition", 1, "exists", True,
    )  # fmt: skip
    assert (await client.get("/api/v1/pop/queue/x"))[0] == 204
    _, answer = await client.post("/api/v1/transaction", {"operations": [{"type": "push", "items": [item]}]})
    assert (answer["success"], answer["reason"], answer["results"]) == (False, "duplicate", [])
    status, answer = await client.post("/api/v1/transaction", bundle)
    assert (status, answer["success"], answer["reason"]) == (200, False, "rejected_ack")


async def test_transaction_refusals_have_two_shapes(client: Client) -> None:
    """5.5: a malformed bundle answers with the rollback's body at 400, 403 or 413; a long name with the engine's."""
    for body, status, reason in (
        (None, 400, "bad_request"),
        ({}, 400, "bad_request"),
        ({"kv": [{"op": "getPrefix", "ns": "n", "prefix": "p"}]}, 400, "kv_get_prefix_not_allowed_in_transaction"),
        ({"kv": [{"op": "put", "ns": "n", "key": "k", "value": "x" * 70_000, "forever": True}]}, 413,
         "kv_value_too_large"),
        ({"timers": [{"op": "schedule", "queue": "q", "timerKey": "k", "payload": b64(1), "txn": "t",
                      "delayMs": 91 * 86_400_000}]}, 403, "timers_horizon"),
    ):  # fmt: skip
        found, answer = await client.post("/api/v1/transaction", body)
        assert (found, answer["success"], answer["reason"], answer["results"]) == (status, False, reason, [])
        assert answer["transactionId"]
    status, answer = await client.post(
        "/api/v1/transaction", {"operations": [{"type": "push", "queue": "q" * 500, "payload": 1}]}
    )
    assert (status, answer["code"], "success" in answer) == (413, "name_too_long", False)

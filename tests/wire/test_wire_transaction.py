"""Section 5: the bundle's shape, the order of its refusals, and its two answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from queen_actors.domain.cursor import Ack, AckOutcome
from queen_actors.domain.kv import Check, Put, WriteResult
from queen_actors.domain.partition import PushItem, PushOutcome
from queen_actors.domain.timers import Cancel, Schedule, TimerResult
from queen_actors.domain.transaction import Committed, PositionCommit, RolledBack, Transaction
from queen_actors.errors import QueenError, StorageFull, Unavailable
from queen_actors.values import parse_instant
from queen_actors.wire.transaction import (
    parse_transaction,
    refusal_reason,
    render_committed,
    render_refusal,
    render_rolled_back,
)

SECOND = 1_000_000
HORIZON = 90 * 86_400 * SECOND
UID = "2b38da79-631b-4657-bcc6-ed64a1c9a187"
TIMER = {"op": "schedule", "queue": "reminders", "timerKey": "k", "payload": "eyJhIjoxfQ==", "delayMs": 5, "txn": "t"}
PUSH = {"type": "push", "items": [{"queue": "q", "payload": 1}]}
ACK = {"type": "ack", "transactionId": "t", "partitionId": "42"}


def body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def test_the_captured_bundle_becomes_a_transaction() -> None:
    """7.6: steps flattened in the caller's order, riders in theirs."""
    item = {"queue": "receipts", "payload": {"t": 1}, "transactionId": "receipt-7", "partition": "customer-123"}
    text = body(
        operations=[
            {"type": "ack", "transactionId": "order-7-paid", "partitionId": "42", "status": "completed",
             "consumerGroup": "billing", "leaseId": "L1"},
            {"type": "push", "items": [item, item]},
            {"type": "push", "queue": "inline", "payload": None, "data": "not read"},
        ],
        requiredLeases=["L1"],
        kv=[{"op": "put", "ns": "orders", "key": "o", "value": {"status": "paid"}, "ttlSeconds": 60},
            {"op": "check", "ns": "queen-locks", "key": "job#0", "expect": 9, "required": True}],
        timers=[TIMER, {"op": "cancel", "queue": "reminders", "timerKey": "z"}],
        positions=[{"queue": "q", "consumerGroup": "g", "offset": None}],
    )  # fmt: skip
    push = PushItem("receipts", "customer-123", b'{"t": 1}', "receipt-7")
    assert parse_transaction(text, HORIZON, "sub") == Transaction(
        steps=(
            Ack("order-7-paid", 42, "billing", "completed", "L1"),
            push,
            push,
            PushItem("inline", "Default", b"null"),
        ),
        required_leases=("L1",),
        kv=(Put("orders", "o", b'{"status":"paid"}', 60 * SECOND), Check("queen-locks", "job#0", 9, True)),
        timers=(Schedule("reminders", "k", b'{"a":1}', 5000, "t"), Cancel("reminders", "z")),
        positions=(PositionCommit("q", "g", "Default", None),),
        producer="sub",
    )


def test_each_part_alone_is_a_bundle() -> None:
    """All five are optional, null counting as absent; the timers' count and size have no bound of their own here."""
    assert len(parse_transaction(body(operations=None, kv=None, timers=[TIMER]), HORIZON).timers) == 1
    many = [{**TIMER, "timerKey": str(i)} for i in range(300)]
    assert len(parse_transaction(body(timers=many), HORIZON).timers) == 300
    large = {**TIMER, "payload": "MTEx" * 500_000}
    (timer,) = parse_transaction(body(timers=[large]), HORIZON).timers
    assert isinstance(timer, Schedule)
    assert len(timer.payload) == 1_500_000
    status = parse_transaction(body(operations=[{**ACK, "status": "weird", "error": {"a": 1}}]), HORIZON).steps[0]
    assert status == Ack("t", 42, "__QUEUE_MODE__", "failed", None, '{"a":1}')


@pytest.mark.parametrize(
    ("text", "status", "reason"),
    [
        (b"", 400, "bad_request"),
        (b"[]", 400, "bad_request"),
        (b"{}", 400, "bad_request"),
        (b'{"operations":[],"requiredLeases":[],"kv":[],"timers":[]}', 400, "bad_request"),
        (b'{"operations":[{"type":"push","queue":"q","payload":"\xff"}]}', 400, "bad_request"),
        (body(operations=7), 400, "bad_request"),
        (body(operations=[7]), 400, "bad_request"),
        (body(operations=[{"type": "pop"}]), 400, "bad_request"),
        (body(operations=[{}]), 400, "bad_request"),
        (body(operations=[{"type": "push"}]), 400, "bad_request"),
        (body(operations=[{"type": "push", "queue": "q"}]), 400, "bad_request"),
        (body(operations=[{"type": "push", "payload": 1}]), 400, "bad_request"),
        (body(operations=[{"type": "push", "items": [{"queue": "q"}]}]), 400, "bad_request"),
        (body(operations=[{"type": "push", "items": [{"queue": "a\n", "payload": 1}]}]), 400, "bad_request"),
        (body(operations=[{"type": "ack", "partitionId": "1"}]), 400, "bad_request"),
        (body(operations=[{**ACK, "partitionId": "a1b2"}]), 400, "bad_request"),
        (body(operations=[{**ACK, "partitionId": 42}]), 400, "bad_request"),
        (body(operations=[PUSH], requiredLeases=[7]), 400, "bad_request"),
        (body(operations=[PUSH], positions=[{"queue": "q"}]), 400, "bad_request"),
        (body(operations=[PUSH], positions=[{"queue": "q", "consumerGroup": "g", "offset": -1}]), 400, "bad_request"),
        (body(operations=[PUSH] * 10_001), 400, "bad_request"),
        (body(kv=[{"op": "getPrefix", "ns": "n", "prefix": "p"}]), 400, "kv_get_prefix_not_allowed_in_transaction"),
        (body(kv=[{"op": "get", "ns": "n", "key": str(i)} for i in range(65)]), 400, "kv_too_many_ops"),
        (body(kv=[{"op": "check", "ns": "queen-locks", "key": "j#0", "expect": 1}] * 2), 400,
         "kv_duplicate_key_in_call"),
        (body(kv=[{"op": "put", "ns": "n", "key": "k", "value": "x" * 70_000, "forever": True}]), 413,
         "kv_value_too_large"),
        (body(kv=[{"op": "get", "ns": "n", "key": "x" * 513}]), 413, "kv_key_too_large"),
        (body(timers=[{**TIMER, "deliverAt": "x"}]), 400, "timers_server_owned_field"),
        (body(timers=[{**TIMER, "delayMs": None}]), 400, "bad_request"),
        (body(timers=[{**TIMER, "delayMs": 91 * 86_400_000}]), 403, "timers_horizon"),
        (body(operations=[{}], timers=[{**TIMER, "_x": 1}]), 400, "bad_request"),
        (body(operations=[{"type": "pop"}], timers=[{**TIMER, "_x": 1}]), 400, "timers_server_owned_field"),
        (body(kv=[{"op": "nope"}], timers=[{**TIMER, "_x": 1}]), 400, "timers_server_owned_field"),
        (body(operations=[{"type": "pop"}], kv=[{"op": "nope"}]), 400, "kv_unknown_op"),
    ],
)  # fmt: skip
def test_a_malformed_bundle_has_a_body_of_its_own(text: bytes, status: int, reason: str) -> None:
    """5.5: the 5.4 body at the error's status; riders are looked at before operations, timers before kv."""
    with pytest.raises(QueenError) as caught:
        parse_transaction(text, HORIZON)
    assert (caught.value.status, refusal_reason(caught.value)) == (status, reason)
    answer = json.loads(render_refusal(caught.value, reason, UID))
    assert answer.pop("error")
    assert answer == {"transactionId": UID, "success": False, "reason": reason, "results": []}


@pytest.mark.parametrize(
    ("text", "status", "code"),
    [
        (body(operations=[{"type": "push", "queue": "q", "payload": 1, "transactionId": "x" * 65_536}]), 400,
         "transaction_id_too_long"),
        (body(operations=[{"type": "push", "queue": "q" * 412, "payload": 1}]), 413, "name_too_long"),
    ],
)  # fmt: skip
def test_what_is_too_long_has_the_shared_envelope(text: bytes, status: int, code: str) -> None:
    """A transactionId or a name over its bound is refused by the engine, in its own shape; so are its failures."""
    with pytest.raises(QueenError) as caught:
        parse_transaction(text, HORIZON)
    assert (caught.value.status, caught.value.code, refusal_reason(caught.value)) == (status, code, None)
    assert refusal_reason(Unavailable("later")) is None
    assert refusal_reason(StorageFull("full")) is None


def test_a_commit_is_rendered_as_captured() -> None:
    """7.6: riders never shift the index of a push or an ack, and know their place among their own kind."""
    reply = Committed(
        steps=(
            AckOutcome("order-7-paid", True),
            PushOutcome("receipts", "receipt-7", "m1", 3, "queued"),
            PushOutcome("receipts", "receipt-7", "m1", 3, "duplicate"),
        ),
        kv=(WriteResult("put", "order-7", b'{"status":"paid"}', 7), WriteResult("check", "job#0", None, 9)),
        timers=(TimerResult("scheduled", "reminders", "order-7", "t", "m2", parse_instant("2026-11-30T14:22:00Z")),),
        positions=1,
    )
    assert json.loads(render_committed(reply, UID)) == {
        "transactionId": UID,
        "success": True,
        "results": [
            {"index": 0, "type": "ack", "success": True, "transactionId": "order-7-paid", "error": None, "dlq": False},
            {"index": 1, "type": "push", "success": True, "transactionId": "receipt-7", "messageId": "m1",
             "queueName": "receipts"},
            {"index": 2, "type": "push", "success": True, "transactionId": "receipt-7", "messageId": "m1",
             "queueName": "receipts", "duplicate": True},
            {"index": 3, "op": "put", "applied": True, "key": "order-7", "value": {"status": "paid"}, "version": 7,
             "opIndex": 0, "type": "kv"},
            {"index": 4, "op": "check", "applied": True, "key": "job#0", "version": 9, "opIndex": 1, "type": "kv"},
            {"ok": True, "status": "scheduled", "queue": "reminders", "timerKey": "order-7", "txn": "t",
             "messageId": "m2", "deliverAt": "2026-11-30T14:22:00.000000Z", "opIndex": 0, "index": 5, "type": "timer"},
            {"index": 6, "opIndex": 0, "type": "position", "success": True},
        ],
    }  # fmt: skip


def test_a_rollback_is_rendered_as_captured() -> None:
    """7.6 and 7.7: the lost precondition names its op and shows the row, so that a holder knows its own renewal."""
    error = "QKV a required KV precondition failed; the transaction rolled back"
    lost = RolledBack("kv_precondition", error, 1, "version", 10, b'{"owner":"me"}')
    assert json.loads(render_rolled_back(lost, UID)) == {
        "transactionId": UID, "success": False, "reason": "kv_precondition", "error": error, "results": [],
        "ok": False, "failedIndex": 1, "kvReason": "version", "version": 10, "value": {"owner": "me"},
    }  # fmt: skip
    plain = RolledBack("duplicate", "QDUP a pushed message is a duplicate; the transaction rolled back")
    assert json.loads(render_rolled_back(plain, UID)) == {
        "transactionId": UID, "success": False, "reason": "duplicate", "error": plain.error, "results": [],
    }  # fmt: skip


def test_an_oversized_current_value_leaves_the_plain_rollback() -> None:
    """5.4: over 4096 characters of detail the five extra fields are missing."""
    lost = RolledBack("kv_precondition", "e", 1, "version", 10, b'"' + b"x" * 5000 + b'"')
    assert json.loads(render_rolled_back(lost, UID)) == {
        "transactionId": UID, "success": False, "reason": "kv_precondition", "error": "e", "results": [],
    }  # fmt: skip

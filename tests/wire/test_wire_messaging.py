"""Push, pop, ack and lease extension (`wire-messaging.md`, sections 6 to 9)."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queen_actors.domain.cursor import Ack, AckOutcome, Claim, LeaseExtended, PopReply, PopRequest
from queen_actors.domain.effects import Record
from queen_actors.domain.partition import PushItem, PushOutcome
from queen_actors.domain.runs import AckRun, RunSettled
from queen_actors.errors import BadRequest, QueenError
from queen_actors.values import parse_instant
from queen_actors.wire.ack import parse_acks, parse_extend, render_acks, render_extend
from queen_actors.wire.frames import parse_query
from queen_actors.wire.pop import BadPop, messages_of, parse_pop, render_pop
from queen_actors.wire.push import parse_push, render_push

TRACE = "8f14e45f-ceea-467f-a0e6-9d5f6b0d3f10"


def push(**item: Any) -> bytes:
    return json.dumps({"items": [item]}).encode()


def test_captured_pushes_become_items() -> None:
    """Appendix A's items; payloads are the JSON text as it was sent."""
    text = (
        b'{"items":[{"queue":"orders","partition":"p1","payload":{"a":1},"transactionId":"t1","traceId":"'
        + TRACE.encode()
        + b'"},{"queue":"orders","payload": null },{"queue":"orders","partition":"","payload":[1, 2.50],'
        b'"transactionId":"","traceId":"not a uuid","producerSub":"ignored"}]}'
    )
    assert parse_push(text) == [
        PushItem("orders", "p1", b'{"a":1}', "t1", TRACE),
        PushItem("orders", "Default", b"null"),
        PushItem("orders", "Default", b"[1, 2.50]"),
    ]


@pytest.mark.parametrize(
    "payload",
    ["9007199254740993", "18446744073709551616", "1" * 30, "1e-7", "0.1", "-0.0", "null", '""', r'"\u0000"',
     r'"\u0041\/"', "[" * 200 + "]" * 200, '"é\U0001f600"', '{"b":1,"a":2,"b":3}'],
)  # fmt: skip
def test_payloads_keep_their_spelling(payload: str) -> None:
    """A71: what was sent is what is stored."""
    (item,) = parse_push(f'{{"items":[{{"queue":"q","payload":{payload}}}]}}'.encode())
    assert item.payload == payload.encode()


@pytest.mark.parametrize(
    "name",
    [
        "Bed&Breakfast",
        "a/b",
        'say "hi"',
        "пример",
        "\U0001f600",
        "<b>",
        "%41",
        "a?b#c",
        "x" * 200,
        "back\\slash",
        "' OR 1",
    ],
)
def test_legal_names_are_kept(name: str) -> None:
    """A70: queue, partition and transactionId come through whatever JSON had to escape."""
    (item,) = parse_push(push(queue=name, partition=name, payload=1, transactionId=name))
    assert (item.queue, item.partition, item.txn) == (name, name, name)
    assert json.loads(render_push([PushOutcome(name, name, "m", 0, "queued")]))[0]["queueName"] == name


@pytest.mark.parametrize(
    ("text", "status", "code"),
    [
        (b"", 400, "bad_body"),
        (b"{}", 400, "bad_body"),
        (b"[]", 400, "bad_body"),
        (b'{"items":7}', 400, "bad_body"),
        (b'{"items":[{"queue":"q","payload":1}', 400, "bad_body"),
        (b'{"items":[{"queue":"q","payload":"\xff"}]}', 400, "bad_body"),
        (b'{"items":[{"queue":"q","payload":"\\udc00"}]}', 400, "bad_body"),
        (b'{"items":[{"queue":"q","payload":01}]}', 400, "bad_body"),
        (b'{"items":[{"queue":"q","payload":' + b"[" * 100_000 + b"]" * 100_000 + b"}]}", 400, "bad_body"),
        (b'{"items":[7]}', 400, "bad_request"),
        (push(payload=1), 400, "bad_request"),
        (push(queue="q"), 400, "bad_request"),
        (push(queue=7, payload=1), 400, "bad_request"),
        (push(queue="q", payload=1, transactionId=7), 400, "bad_request"),
        (push(queue="q", payload=1, partition=7), 400, "bad_request"),
        (push(queue="a\nb", payload=1), 400, "bad_request"),
        (push(queue="q", payload=1, partition="a\0"), 400, "bad_request"),
        (push(queue="q", payload=1, transactionId="x" * 65_536), 400, "transaction_id_too_long"),
        (push(queue="q" * 412, payload=1), 413, "name_too_long"),
        (push(queue="é" * 150, payload=1, partition="é" * 56), 413, "name_too_long"),
        (b'{"items":[' + b",".join([b'{"queue":"q","payload":1}'] * 50_001) + b"]}", 413, "too_large"),
    ],
)
def test_a_malformed_push_is_refused(text: bytes, status: int, code: str) -> None:
    """Nothing of it is pushed, and the code says whose rule it broke."""
    with pytest.raises(QueenError) as caught:
        parse_push(text)
    assert (caught.value.status, caught.value.code) == (status, code)


def test_the_bounds_themselves_are_legal() -> None:
    """447 bytes of names with the tenant's 36, 65,535 bytes of transactionId, an empty queue name."""
    assert len(parse_push(push(queue="q" * 205, partition="p" * 206, payload=1))) == 1
    assert len(parse_push(push(queue="q", payload=1, transactionId="x" * 65_535))) == 1
    assert parse_push(push(queue="", payload=1)) == [PushItem("", "Default", b"1")]


def test_push_answers_are_positional() -> None:
    """A29: every item has its own status; a duplicate carries the original's id and offset; a failed one an error."""
    outcomes = [
        PushOutcome("orders", "t1", "m1", 17, "queued"),
        PushOutcome("orders", "t2", "m0", 3, "duplicate"),
        PushOutcome("orders", "t3", "", -1, "failed", "the partition is full"),
    ]
    assert json.loads(render_push(outcomes)) == [
        {"index": 0, "message_id": "m1", "transaction_id": "t1", "queueName": "orders", "status": "queued",
         "offset": 17},
        {"index": 1, "message_id": "m0", "transaction_id": "t2", "queueName": "orders", "status": "duplicate",
         "offset": 3},
        {"index": 2, "message_id": "", "transaction_id": "t3", "queueName": "orders", "status": "failed",
         "error": "the partition is full"},
    ]  # fmt: skip


SECOND = 1_000_000


@pytest.mark.parametrize(
    ("query", "queue", "partition", "expected"),
    [
        (b"autopilot=true&wait=true&timeout=30000", "orders", None, PopRequest("orders", wait=30 * SECOND)),
        (b"batch=10&wait=true&timeout=30000&partitions=4", "orders", None,
         PopRequest("orders", batch=10, wait=30 * SECOND, partitions=4)),
        (b"autopilot=true&batch=5&consumerGroup=g&subscriptionMode=all", "orders", "p1",
         PopRequest("orders", "p1", group="g", batch=5, subscription_mode="all")),
        (b"consumerGroup=g&subscriptionFrom=2026-08-01T00%3A00%3A00Z", "orders", None,
         PopRequest("orders", group="g", subscription_from="2026-08-01T00:00:00Z")),
        (b"subscriptionFrom=now&consumerGroup=", "orders", None, PopRequest("orders", subscription_from="now")),
        (b"batch=3&namespace=acme&task=mail", None, None, PopRequest(None, namespace="acme", task="mail", batch=3)),
        (b"task=mail", None, None, PopRequest(None, task="mail")),
        (b"autoAck=true&frames=true", "orders", None, PopRequest("orders", auto_ack=True)),
        (b"consumerGroup=g&conflation=true", "orders", None, PopRequest("orders", group="g", conflation=True)),
        (b"batch=0&partitions=900&wait=true&timeout=900000&leaseSeconds=5", "q", None,
         PopRequest("q", batch=1, partitions=64, wait=60 * SECOND, lease=5 * SECOND)),
        (b"batch=999999&wait=true&timeout=0", "q", None, PopRequest("q", batch=10_000, wait=1000)),
        (b"wait=true", "q", None, PopRequest("q", wait=30 * SECOND)),
        (b"namespace=n&task=t&unknown=1", "q", None, PopRequest("q")),
    ],
)  # fmt: skip
def test_captured_pops_become_requests(
    query: bytes, queue: str | None, partition: str | None, expected: PopRequest
) -> None:
    """Appendix A's queries, the defaults and the clamps of 7.2."""
    assert parse_pop(parse_query(query), queue, partition) == expected


@pytest.mark.parametrize(
    ("query", "queue"),
    [
        (b"", None),
        (b"namespace=&task=", None),
        (b"conflation=true", "q"),
        (b"conflation=true&consumerGroup=g&autoAck=true", "q"),
        (b"batch=many", "q"),
        (b"wait=maybe", "q"),
        (b"subscriptionFrom=yesterday", "q"),
        (b"consumerGroup=a%0Ab", "q"),
    ],
)
def test_a_malformed_pop_has_the_routes_own_shape(query: bytes, queue: str | None) -> None:
    """400 `{"success":false,"error":...,"messages":[]}`."""
    with pytest.raises(BadPop) as caught:
        parse_pop(parse_query(query), queue)
    answer = json.loads(caught.value.body())
    assert (caught.value.status, answer["success"], answer["messages"]) == (400, False, [])
    assert answer["error"]


LEASE = "0197f0de-0000-7000-8000-00000000aaaa"
RECORD = Record(0, parse_instant("2026-08-01T00:00:00.123Z"), "id0", "t0", b'{"a": 1.50}')
FIRED = Record(1, parse_instant("2026-08-01T00:00:00.123Z"), "id1", "t1", b"null", TRACE, "sub", "timer-1")


def test_a_pop_is_rendered_as_documented() -> None:
    """7.3: the first claim's names at the top, everything that an ack needs on each message."""
    reply = PopReply(LEASE, "g", (Claim("orders", "p1", 7, 1, (RECORD,)), Claim("orders", "p2", 9, 2, (FIRED,))))
    text = render_pop(reply, PopRequest("orders", group="g"))
    assert text is not None
    assert b'"data":{"a": 1.50}' in text, "payload text is kept"
    common = {"leaseId": LEASE, "consumerGroup": "g", "createdAt": "2026-08-01T00:00:00.123000Z"}
    assert json.loads(text) == {
        "success": True, "queue": "orders", "partition": "p1", "partitionId": "7", "leaseId": LEASE,
        "consumerGroup": "g", "partitionsClaimed": 2,
        "messages": [
            {"id": "id0", "transactionId": "t0", "traceId": None, "data": {"a": 1.5}, "producerSub": None,
             "partitionId": "7", "partition": "p1", "deliveryAttempt": 1, "offset": 0, **common},
            {"id": "id1", "transactionId": "t1", "traceId": TRACE, "data": None, "producerSub": "sub",
             "partitionId": "9", "partition": "p2", "deliveryAttempt": 2, "offset": 1, **common},
        ],
    }  # fmt: skip


def test_the_websocket_learns_which_timer_fired() -> None:
    """`timerKey` is on a fired message only, and only where it is asked for."""
    messages = messages_of(Claim("q", "p", 1, 1, (RECORD, FIRED)), LEASE, "g", timer_keys=True)
    assert "timerKey" not in json.loads(msgspec.json.encode(messages[0]))
    assert json.loads(msgspec.json.encode(messages[1]))["timerKey"] == "timer-1"


def test_an_empty_pop_has_no_body_unless_conflation_is_echoed() -> None:
    """204 for an ordinary pop; with conflation asked for, the echo or the conflict is said (7.7)."""
    request = PopRequest("orders", group="g", conflation=True)
    assert render_pop(PopReply("", "g", ()), PopRequest("orders", group="g")) is None
    echo = json.loads(render_pop(PopReply("", "g", (), conflation=True), request) or b"")
    assert (echo["conflation"], echo["messages"], "conflationConflict" in echo) == (True, [], False)
    conflict = json.loads(render_pop(PopReply("", "g", (), conflict=True), request) or b"")
    assert (conflict["conflationConflict"], "conflation" in conflict) == (True, False)


def test_captured_acks_become_commands() -> None:
    """Both shapes; no group is the queue's own; a batch has one group for all."""
    single = {"transactionId": "t0", "partitionId": "7", "status": "failed", "error": "nope", "consumerGroup": "g",
              "leaseId": LEASE}  # fmt: skip
    assert parse_acks(json.dumps(single).encode()) == [Ack("t0", 7, "g", "failed", LEASE, "nope")]
    batch = {
        "acknowledgments": [
            {"transactionId": "t0", "partitionId": "7", "status": "completed", "error": None, "leaseId": LEASE},
            {"transactionId": "t1", "partitionId": 8, "leaseId": ""},
            {"transactionId": "t2", "partitionId": "seven", "status": "dlq"},
            {"transactionId": "t3"},
        ],
        "consumerGroup": None,
    }
    assert parse_acks(json.dumps(batch).encode()) == [
        Ack("t0", 7, "__QUEUE_MODE__", "completed", LEASE),
        Ack("t1", 8, "__QUEUE_MODE__"),
        Ack("t2", None, "__QUEUE_MODE__", "dlq"),
        Ack("t3", None, "__QUEUE_MODE__"),
    ]
    assert parse_acks(b'{"acknowledgments":[],"consumerGroup":"g"}') == []


@pytest.mark.parametrize(
    ("word", "status"),
    [
        (None, "completed"),
        ("Completed", "completed"),
        ("SUCCESS", "completed"),
        ("acked", "completed"),
        ("ok", "completed"),
        (True, "completed"),
        ("failed", "failed"),
        (False, "failed"),
        ("Retry", "retry"),
        ("DLQ", "dlq"),
        ("whatever", "failed"),
        ("", "failed"),
        (7, "failed"),
    ],
)
def test_status_words(word: Any, status: str) -> None:
    """Any case; absent is completed; an unknown word redelivers (decisions.md)."""
    (ack,) = parse_acks(json.dumps({"transactionId": "t", "partitionId": "1", "status": word}).encode())
    assert ack.status == status


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b"", "bad_body"),
        (b"{", "bad_body"),
        (b'{"transactionId":"\xff"}', "bad_body"),
        (b"{}", "bad_request"),
        (b"[]", "bad_request"),
        (b'{"acknowledgments":7}', "bad_request"),
        (b'{"acknowledgments":[{"partitionId":"7"}]}', "bad_request"),
        (b'{"transactionId":7,"partitionId":"7"}', "bad_request"),
        (b'{"transactionId":"t","partitionId":"7","consumerGroup":"a\\u0000"}', "bad_request"),
    ],
)
def test_a_malformed_ack_is_refused(text: bytes, code: str) -> None:
    """400; a bad partitionId is none of these: that entry fails by itself."""
    with pytest.raises(BadRequest) as caught:
        parse_acks(text)
    assert caught.value.code == code


def test_ack_answers_have_every_key() -> None:
    """One entry per ack, in order, for clients that decode typed structs."""
    outcomes = [AckOutcome("t0", True, lease_released=True), AckOutcome("t1", False, "invalid or expired lease")]
    assert json.loads(render_acks(outcomes)) == [
        {"index": 0, "transactionId": "t0", "success": True, "error": None, "leaseReleased": True, "dlq": False,
         "noop": False},
        {"index": 1, "transactionId": "t1", "success": False, "error": "invalid or expired lease",
         "leaseReleased": False, "dlq": False, "noop": False},
    ]  # fmt: skip


@given(
    txns=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=4), min_size=1, max_size=5),
    released=st.none() | st.integers(0, 4),
    long=st.booleans(),
)
def test_a_run_is_answered_as_its_entries_are(txns: list[str], released: int | None, long: bool) -> None:
    """The answer to acks that were settled together is, to the byte, that to the same acks one by one: whatever the ids
    are, however many, and whichever of them ended the lease."""
    txns = txns * 300 if long else txns
    settled = RunSettled(txns, released if released is None else released % len(txns))
    assert render_acks(settled) == render_acks(list(settled))


@given(st.data())
def test_a_run_is_read_as_its_entries_are(data: st.DataObject) -> None:
    """A batch whose entries are alike is read at once, with what each entry says by itself; one that differs in
    anything, or is not said to be done, is read entry by entry."""
    alike = {
        "partitionId": data.draw(st.sampled_from(["7", "x", 7, None])),
        "status": data.draw(st.sampled_from(["completed", "OK", None, True, "retry", 1])),
        "error": data.draw(st.sampled_from([None, "why", {"a": 1}])),
        "consumerGroup": data.draw(st.sampled_from([None, "", "g"])),
        "leaseId": data.draw(st.sampled_from([LEASE, "", None])),
    }
    entries = [{"transactionId": txn, **alike} for txn in data.draw(st.lists(st.sampled_from("abc"), min_size=1))]
    odd = data.draw(st.dictionaries(st.sampled_from(sorted(alike)), st.sampled_from(["7", "ok", None]), max_size=1))
    entries[data.draw(st.integers(0, len(entries) - 1))] |= odd
    group = data.draw(st.sampled_from([None, "", "h"]))
    alone = [{**entry, "consumerGroup": entry["consumerGroup"] or group} for entry in entries]
    expected = [ack for entry in alone for ack in parse_acks(json.dumps(entry).encode())]
    read = parse_acks(json.dumps({"acknowledgments": entries, "consumerGroup": group}).encode())
    assert list(read) == expected
    whole = alike["leaseId"] == LEASE and alike["partitionId"] == "7" and alike["error"] is None
    if whole and not odd and alike["status"] in ("completed", "OK", None):
        assert isinstance(read, AckRun)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [(b"", 60), (b"{}", 60), (b"[]", 60), (b"null", 60), (b'{"seconds":null}', 60), (b'{"seconds":5}', 5),
     (b'{"seconds":0}', 1), (b'{"seconds":-9}', 1), (b'{"seconds":7.0}', 7), (b'{"seconds":1000000000000}', 10**9)],
)  # fmt: skip
def test_an_extension_defaults_to_a_minute(text: bytes, seconds: int) -> None:
    """The four spellings of an empty body, and the clamp to a second."""
    assert parse_extend(text) == seconds


@pytest.mark.parametrize("text", [b"{", b'{"seconds":"5"}', b'{"seconds":1.5}', b'{"seconds":true}', b"7"])
def test_a_malformed_extension_is_refused(text: bytes) -> None:
    """400."""
    with pytest.raises(BadRequest):
        parse_extend(text)


def test_an_extension_tells_the_earliest_expiry_under_its_three_names() -> None:
    """An unknown lease is a 200 with success false and nulls."""
    at = "2026-08-01T00:00:00.000000Z"
    assert json.loads(render_extend("L", LeaseExtended(2, parse_instant(at)))) == {
        "leaseId": "L", "success": True, "renewed": 2, "newExpiresAt": at, "expiresAt": at, "lease_expires_at": at,
    }  # fmt: skip
    assert json.loads(render_extend("L", LeaseExtended(0, None))) == {
        "leaseId": "L", "success": False, "renewed": 0, "newExpiresAt": None, "expiresAt": None,
        "lease_expires_at": None,
    }  # fmt: skip

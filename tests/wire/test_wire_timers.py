"""Section 4: the rows of 4.5, the answers of 4.4 and 4.6, and what becomes of a payload."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest
import zstandard

from queen_actors.domain.effects import TimerPut
from queen_actors.domain.timers import Cancel, Schedule, TimerPage, TimerResult
from queen_actors.errors import QueenError
from queen_actors.values import parse_instant
from queen_actors.wire.frames import parse_query
from queen_actors.wire.timers import (
    parse_count,
    parse_list,
    parse_timer_ops,
    parse_timers,
    render_page,
    render_peek,
    render_timer,
    render_timers,
    rider_element,
)

DAY = 86_400 * 1_000_000
HORIZON = 90 * DAY


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


OP: dict[str, Any] = {
    "op": "schedule",
    "queue": "reminders",
    "timerKey": "k",
    "payload": b64(b'{"a": 1}'),
    "delayMs": 5,
    "txn": "t",
}


def body(*ops: Any) -> bytes:
    return json.dumps({"operations": list(ops)}).encode()


def schedule(**changes: Any) -> bytes:
    return body({name: value for name, value in {**OP, **changes}.items() if value is not ...})


def refusal(text: bytes) -> tuple[int, str, str | None]:
    with pytest.raises(QueenError) as caught:
        parse_timers(text, HORIZON)
    return caught.value.status, caught.value.code, caught.value.reason


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "timers_bad_body"),
        (b'{"ops":[]}', "timers_bad_body"),
        (b'[{"op":"cancel","queue":"q","timerKey":"\xff"}]', "timers_bad_body"),
        (body(*[{**OP, "timerKey": str(i)} for i in range(257)]), "timers_too_many_ops"),
        (b"[7]", "timers_bad_op"),
        (schedule(_claim=1), "timers_server_owned_field"),
        (schedule(deliverAt="2026-01-01"), "timers_server_owned_field"),
        (schedule(message_id="x"), "timers_server_owned_field"),
        (schedule(tenant="x"), "timers_server_owned_field"),
        (schedule(producerSub="x"), "timers_server_owned_field"),
        (schedule(op="fire"), "timers_bad_op"),
        (schedule(op=...), "timers_bad_op"),
        (schedule(queue=...), "timers_queue_required"),
        (schedule(queue=""), "timers_queue_required"),
        (schedule(queue=7), "timers_queue_required"),
        (schedule(timerKey=...), "timers_bad_op"),
        (schedule(timerKey=""), "timers_bad_op"),
        (schedule(delayMs=...), "timers_delay_required"),
        (schedule(delayMs="5"), "timers_delay_required"),
        (schedule(delayMs=True), "timers_delay_required"),
        (schedule(delayMs=None), "timers_delay_required"),
        (schedule(payload=...), "timers_payload_required"),
        (schedule(payload={"a": 1}), "timers_payload_required"),
        (schedule(payload="***"), "timers_payload_not_base64"),
        (schedule(payload="YQ"), "timers_payload_not_base64"),
        (schedule(payload="YQ==\n"), "timers_payload_not_base64"),
        (schedule(payload="é"), "timers_payload_not_base64"),
        (schedule(partition=""), "timers_bad_op"),
        (schedule(partition=7), "timers_bad_op"),
        (schedule(txn=...), "timers_bad_op"),
        (schedule(txn=""), "timers_bad_op"),
        (schedule(txn="x" * 65_536), "timers_bad_op"),
        (schedule(payloadZstd="yes"), "timers_bad_op"),
        (schedule(payloadZstd=True), "timers_bad_op"),
        (body(OP, {"op": "cancel", "queue": "reminders", "timerKey": "k"}), "timers_bad_op"),
        (body({"op": "cancel", "queue": "q", "timerKey": "k", "txn": 7}), "timers_bad_op"),
    ],
)
def test_a_malformed_call_is_refused_with_the_reason_of_its_row(text: bytes, reason: str) -> None:
    """Status 400, code timers_bad_request, and the reason that section 4.5 has for it; a stable one where the
    reference has prose."""
    assert refusal(text) == (400, "timers_bad_request", reason)


def test_one_bad_op_refuses_the_whole_call() -> None:
    """A batch is validated first: nothing of it is returned when one of three is bad."""
    good = [{**OP, "timerKey": str(i)} for i in range(2)]
    assert refusal(body(good[0], {**OP, "delayMs": "x"}, good[1]))[2] == "timers_delay_required"


def test_the_horizon_is_ninety_days_ahead() -> None:
    """Exactly 90 days pass; more, however large the number, is 403."""
    days_ms = 90 * 86_400 * 1000
    (op,) = parse_timers(schedule(delayMs=days_ms), HORIZON)
    assert isinstance(op, Schedule)
    assert op.delay == HORIZON
    refused = (403, "timer_horizon_exceeded", "timers_horizon")
    assert refusal(schedule(delayMs=days_ms + 1)) == refused
    assert refusal(schedule().replace(b'"delayMs": 5', b'"delayMs": 1e400')) == refused


@pytest.mark.parametrize(
    ("delay_ms", "delay"),
    [("5", 5000), ("0", 0), ("-5", -5000), ("1.5", 1500), ("0.0004", 0), ("0.0006", 1), ("-1e300", -HORIZON),
     ("-1e400", -HORIZON)],
)  # fmt: skip
def test_delays_have_microseconds(delay_ms: str, delay: int) -> None:
    """Fractions of a millisecond count, and what is overdue stays an instant that is a date."""
    (op,) = parse_timers(schedule().replace(b'"delayMs": 5', f'"delayMs": {delay_ms}'.encode()), HORIZON)
    assert isinstance(op, Schedule)
    assert op.delay == delay


def test_a_payload_over_one_mebibyte_is_refused() -> None:
    """1 MiB decoded passes, one byte more is 413; a compressed one is measured as what it becomes."""
    most = b'"' + b"x" * ((1 << 20) - 2) + b'"'
    (op,) = parse_timers(schedule(payload=b64(most)), HORIZON)
    assert isinstance(op, Schedule)
    assert op.payload == most
    refused = (413, "payload_too_large", "timers_payload_too_large")
    assert refusal(schedule(payload=b64(most + b" "))) == refused
    bomb = zstandard.compress(b" " * (1 << 26))
    assert len(bomb) < 10_000
    assert refusal(schedule(payload=b64(bomb), payloadZstd=True)) == refused


def test_a_whole_call_is_bounded_too() -> None:
    """A transaction's timers have no bound of one MiB, but what small frames decompress to is bounded in all."""
    frame = b64(zstandard.compress(b"1" * (40 << 20)))
    ops = [msgspec.Raw(json.dumps({**OP, "timerKey": str(i), "payload": frame, "payloadZstd": True}).encode())
           for i in range(2)]  # fmt: skip
    assert len(parse_timer_ops(ops[:1], HORIZON)) == 1
    with pytest.raises(QueenError) as caught:
        parse_timer_ops(ops, HORIZON)
    assert (caught.value.status, caught.value.reason) == (413, "timers_call_too_large")


@pytest.mark.parametrize(
    ("data", "payload"),
    [
        (b'{"orderId": 9137}', b'{"orderId": 9137}'),
        (b"9007199254740993", b"9007199254740993"),
        (b"hello", b'"hello"'),
        (b"", b'""'),
        (b'{"a":', b'"{\\"a\\":"'),
        (b"\xff\xfe", b"null"),
        (b'"\xff"', b"null"),
    ],
)
def test_a_payload_becomes_json_text(data: bytes, payload: bytes) -> None:
    """JSON is kept byte for byte; other text becomes a JSON string; bytes that are no text become null."""
    (op,) = parse_timers(schedule(payload=b64(data)), HORIZON)
    assert isinstance(op, Schedule)
    assert op.payload == payload


def test_good_ops_become_commands() -> None:
    """Both verbs are one upsert; a compressed payload is stored as what it was."""
    packed = b64(zstandard.compress(b"[1,2]"))
    ops = parse_timers(
        body(
            OP,
            {**OP, "op": "reschedule", "timerKey": "a//b", "partition": "p", "encrypted": True},
            {**OP, "timerKey": "z", "payload": packed, "payloadZstd": True, "partition": None},
            {"op": "cancel", "queue": "q", "timerKey": "\0k"},
            {"op": "cancel", "queue": "q", "timerKey": "k", "txn": "mine", "ignored": 1},
        ),
        HORIZON,
    )
    assert ops == [
        Schedule("reminders", "k", b'{"a": 1}', 5000, "t"),
        Schedule("reminders", "a//b", b'{"a": 1}', 5000, "t", "p", True),
        Schedule("reminders", "z", b"[1,2]", 5000, "t"),
        Cancel("q", "\0k"),
        Cancel("q", "k", "mine"),
    ]


def test_names_have_a_budget() -> None:
    """Tenant, queue and timerKey together over 447 bytes are 413 name_too_long; at the bound they pass."""
    assert len(parse_timers(schedule(queue="q", timerKey="x" * 410), HORIZON)) == 1
    assert refusal(schedule(queue="q", timerKey="x" * 411)) == (413, "name_too_long", None)
    assert refusal(schedule(partition="x" * 411)) == (413, "name_too_long", None)


DUE = parse_instant("2026-11-30T14:22:00.112988Z")
AT = parse_instant("2026-11-29T14:22:00Z")


def test_results_are_rendered_as_captured() -> None:
    """7.5: no `index` on this route, six digits always, the caller's txn echoed when absent."""
    scheduled = TimerResult("scheduled", "reminders", "order-9137", "t", "m", DUE)
    assert json.loads(render_timers([scheduled])) == {
        "results": [
            {"ok": True, "status": "scheduled", "queue": "reminders", "timerKey": "order-9137", "txn": "t",
             "messageId": "m", "deliverAt": "2026-11-30T14:22:00.112988Z"}
        ]
    }  # fmt: skip
    absent = TimerResult("absent", "reminders", "order/9137 x?", None)
    assert json.loads(render_timer(absent)) == {
        "ok": False, "status": "absent", "queue": "reminders", "timerKey": "order/9137 x?", "txn": None,
    }  # fmt: skip
    rider = rider_element(TimerResult("cancelled", "q", "k", "t"), 5, 0)
    assert (rider.index, rider.op_index, rider.type, rider.ok) == (5, 0, "timer", True)


def test_peek_and_list() -> None:
    """A peek has the payload in base64; a row of a list has neither it nor `found`."""
    timer = TimerPut("reminders", "k", "Default", DUE, "t", "m", b'{"a":1}', False, None, 0, None, AT, AT)
    row = {"queue": "reminders", "timerKey": "k", "partition": "Default", "deliverAt": "2026-11-30T14:22:00.112988Z",
           "txn": "t", "messageId": "m", "payloadZstd": False, "encrypted": False, "producerSub": None, "attempts": 0,
           "lastError": None, "claimed": False, "createdAt": "2026-11-29T14:22:00.000000Z",
           "updatedAt": "2026-11-29T14:22:00.000000Z"}  # fmt: skip
    assert json.loads(render_peek("reminders", "k", timer)) == {"found": True, "payload": b64(b'{"a":1}'), **row}
    assert json.loads(render_peek("q", "k", None)) == {"found": False, "queue": "q", "timerKey": "k"}
    page = TimerPage((timer,), True, "k")
    assert json.loads(render_page(page)) == {"rows": [row], "truncated": True, "nextAfter": "k"}


@pytest.mark.parametrize(
    ("query", "after", "limit"),
    [
        (b"", None, 100),
        (b"after=x%2Fy+z&limit=7", "x/y z", 7),
        (b"limit=0", None, 1),
        (b"limit=-3", None, 1),
        (b"limit=99999", None, 1000),
        (b"limit=many", None, 100),
    ],
)
def test_list_parameters(query: bytes, after: str | None, limit: int) -> None:
    """The query is form-encoded; the limit is clamped, and 100 when it cannot be read."""
    assert parse_list(parse_query(query)) == (after, limit)


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        (b"mode=sum&prefix=p", "timers_read_mode_unknown"),
        (b"mode=count", "timers_count_prefix_required"),
        (b"mode=count&prefix=", "timers_count_prefix_required"),
        (b"mode=count&prefix=%00", "timers_count_prefix_invalid"),
        (b"mode=count&prefix=" + b"x" * 129, "timers_count_prefix_too_long"),
        (b"mode=count&prefix=p&limit=3", "timers_count_page_parameters"),
        (b"mode=count&prefix=p&after=x", "timers_count_page_parameters"),
    ],
)
def test_count_mode_refuses(query: bytes, reason: str) -> None:
    """The rows of count mode."""
    with pytest.raises(QueenError) as caught:
        parse_count(parse_query(query))
    assert (caught.value.status, caught.value.code, caught.value.reason) == (400, "timers_bad_request", reason)
    assert parse_count(parse_query(b"mode=count&prefix=" + b"x" * 128)) == "x" * 128

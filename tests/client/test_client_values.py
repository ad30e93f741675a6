"""What goes out and what comes back: JSON, names, durations, items and results."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from urllib.parse import unquote

import pytest

from queen_actors.client import AckResult, KvResult, LockResult, PushResult, TimerResult, TransactionResult
from queen_actors.client.durations import lifetime, milliseconds, seconds_of, whole_seconds
from queen_actors.client.encoding import decode, encode, segment
from queen_actors.client.items import as_list, push_items


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, {"a": [None, math.nan]}])
def test_what_json_cannot_hold_is_refused(value: object) -> None:
    """A NaN or an infinity raises ValueError; it never becomes null on the quiet."""
    with pytest.raises(ValueError, match="JSON compliant"):
        encode(value)


@pytest.mark.parametrize(
    "value", [None, {"a": None}, [], "", 0, False, 2**53 + 1, 10**30, -0.0, 1e-7, "\x00", "\ud800"]
)
def test_every_json_value_comes_back_as_it_went(value: object) -> None:
    """Null, big integers, small floats, a NUL and even half a surrogate pair make the round trip."""
    back = decode(encode(value))
    assert back == value
    assert type(back) is type(value)
    assert str(back) == str(value)


def test_a_decimal_goes_out_as_a_number() -> None:
    """Digits that a float would lose are kept."""
    assert encode(Decimal("0.12345678901234567890")) == b"0.12345678901234567890"


@pytest.mark.parametrize(
    "name",
    ["a/b", "/lead", "tail/", "a//b", "?", "#", "%41", "a b", "a+b", ".", "..", "Bed&Breakfast", "пример", "😀", "~"],
)
def test_a_name_is_one_segment(name: str) -> None:
    """Whatever is in it, it is one ASCII segment without reserved characters, and decodes to itself."""
    escaped = segment(name)
    assert unquote(escaped) == name
    assert escaped.isascii()
    assert not set(escaped) & set("/?#&+ ")
    assert escaped not in (".", "..")


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (timedelta(days=7), 604_800),
        (30, 30),
        (0.25, 0.25),
        ("250ms", 0.25),
        ("30s", 30),
        ("1.5h", 5400),
        ("7d", 604_800),
    ],
)
def test_durations(value: timedelta | float | str, seconds: float) -> None:
    """A timedelta, a number of seconds and a text mean the same."""
    assert seconds_of(value) == seconds


@pytest.mark.parametrize("value", ["30", "s", "", "1 fortnight", "-1s"])
def test_a_text_without_a_unit_is_no_duration(value: str) -> None:
    """It is refused rather than guessed."""
    with pytest.raises(ValueError, match="must look like"):
        seconds_of(value)


@pytest.mark.parametrize("value", [True, None, []])
def test_what_is_no_duration_is_refused(value: object) -> None:
    """A bool is no number of seconds."""
    with pytest.raises(TypeError):
        seconds_of(value)  # type: ignore[arg-type]  # it is wrong on purpose


def test_a_lifetime_is_whole_seconds_and_never_shorter_than_asked() -> None:
    """Fractions are rounded up; big integers stay exact; nothing and less is refused."""
    assert whole_seconds(1.2, "ttl") == 2
    assert whole_seconds(10**30, "ttl") == 10**30
    with pytest.raises(ValueError, match="longer than nothing"):
        whole_seconds(0, "ttl")


def test_a_delay_keeps_its_fraction_of_a_millisecond() -> None:
    """The broker counts in microseconds; a whole number goes out as one."""
    assert milliseconds(timedelta(microseconds=1500), "delay") == 1.5
    assert milliseconds(timedelta(hours=24), "delay") == 86_400_000
    assert isinstance(milliseconds(0.25, "delay"), int)


def test_a_write_names_exactly_one_lifetime() -> None:
    """None, two, and `forever=False` alone are refused; each spelling works."""
    assert lifetime(None, 60, None, False) == {"ttlSeconds": 60}
    assert lifetime(timedelta(minutes=1), None, None, False) == {"ttlSeconds": 60}
    assert lifetime(None, None, None, True) == {"forever": True}
    soon = lifetime(None, None, datetime.now(UTC) + timedelta(minutes=1), False)["ttlSeconds"]
    assert 59 <= soon <= 60
    for given in ((None, None, False), (1, 2, False), (1, None, True)):
        with pytest.raises(ValueError, match="exactly one"):
            lifetime(given[0], given[1], None, given[2])


def test_items_are_payloads_or_envelopes() -> None:
    """`data` or `payload` makes an envelope; everything else is the payload itself, null and lists included."""
    ids = iter(["i1", "i2", "i3", "i4", "i5"])
    trace = "8f14e45f-ceea-467f-a0e6-9d5f6b0d3f10"
    items = [
        {"data": None, "transactionId": "t1", "traceId": trace},
        {"payload": [1], "traceId": "no uuid"},
        {"day": 1, "transactionId": "t2"},
        "text",
        None,
    ]
    assert push_items(items, "q", None, ids.__next__) == [
        {"queue": "q", "payload": None, "transactionId": "t1", "traceId": trace},
        {"queue": "q", "payload": [1], "transactionId": "i1"},
        {"queue": "q", "payload": {"day": 1, "transactionId": "t2"}, "transactionId": "t2"},
        {"queue": "q", "payload": "text", "transactionId": "i2"},
        {"queue": "q", "payload": None, "transactionId": "i3"},
    ]
    assert push_items(["x"], "q", "p", None) == [{"queue": "q", "payload": "x", "partition": "p"}]
    assert as_list((1, 2)) == [1, 2]
    assert as_list("ab") == ["ab"]


def test_an_envelope_never_loses_a_field() -> None:
    """Data beside other fields of its own is refused, not cut."""
    with pytest.raises(ValueError, match="would lose day, total"):
        push_items([{"data": 1, "total": 2, "day": 3}], "q", None, None)
    with pytest.raises(ValueError, match="must be a text"):
        push_items([{"data": 1, "transactionId": 5}], "q", None, None)


def test_a_result_reads_as_a_mapping_and_by_attribute() -> None:
    """The wire's fields are there as they came, and in Python's spelling, a default where the wire has none."""
    hit = KvResult({"op": "get", "found": True, "value": None, "version": 3, "expiresAt": None, "updatedAt": "now"})
    assert hit["version"] == hit.version == 3
    assert "expiresAt" in hit
    assert hit.get("nothing") is None
    assert hit.updated_at == "now"
    assert hit.value is None
    assert hit == {"op": "get", "found": True, "value": None, "version": 3, "expiresAt": None, "updatedAt": "now"}
    assert KvResult({"found": False}).version == 0, "as `expect` has it: it must not exist"
    with pytest.raises(AttributeError):
        hit.nothing  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(KeyError):
        KvResult({"found": False})["version"]


@pytest.mark.parametrize(
    ("result", "verdict"),
    [
        (KvResult({"found": True, "value": None}), True),
        (KvResult({"found": False}), False),
        (KvResult({"applied": False, "reason": "limit", "value": 100}), False),
        (KvResult({"applied": True, "value": 0}), True),
        (KvResult({"rows": [], "missing": []}), True),
        (LockResult({"acquired": False, "holders": []}), False),
        (LockResult({"released": True}), True),
        (LockResult({"held": False, "holders": []}), False),
        (TimerResult({"ok": False, "status": "absent"}), False),
        (TimerResult({"found": True}), True),
        (PushResult({"status": "duplicate"}), True),
        (PushResult({"status": "failed"}), False),
        (AckResult({"success": True, "error": None}), True),
        (AckResult({"success": True, "error": "but"}), False),
        (TransactionResult({"success": False, "reason": "kv_precondition"}), False),
    ],
)
def test_the_truth_of_a_result_is_its_verdict(result: object, verdict: bool) -> None:
    """So `if await queen.kv.delete(...)` asks whether it was deleted."""
    assert bool(result) is verdict


def test_rows_of_a_page_are_results_too() -> None:
    """`page.rows[0].version` works as on a single read."""
    page = KvResult({"rows": [{"key": "a", "value": 1, "version": 2}], "truncated": False, "nextAfter": None})
    assert [row.version for row in page.rows] == [2]
    assert TimerResult({"found": True, "payload": "eyJhIjogMX0="}).data == {"a": 1}

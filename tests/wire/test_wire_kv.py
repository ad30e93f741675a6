"""Every row of section 2.3, and what a good op becomes."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from queen_actors.domain.kv import (
    Check,
    Delete,
    Get,
    GetMany,
    GetManyResult,
    GetPrefix,
    GetPrefixResult,
    GetResult,
    Incr,
    KeyRow,
    Precondition,
    Put,
    Row,
    WriteResult,
)
from queen_actors.errors import QueenError
from queen_actors.values import parse_instant
from queen_actors.wire.kv import parse_kv, parse_kv_ops, parse_kv_path
from queen_actors.wire.kv_results import render_kv, render_kv_single

SECOND = 1_000_000
PUT: dict[str, Any] = {"op": "put", "ns": "carts", "key": "k", "value": 1, "ttlSeconds": 60}


def body(*ops: Any) -> bytes:
    return json.dumps({"operations": list(ops)}).encode()


def put(**changes: Any) -> dict[str, Any]:
    return {name: value for name, value in {**PUT, **changes}.items() if value is not ...}


def refusal(text: bytes) -> tuple[int, str, str | None]:
    with pytest.raises(QueenError) as caught:
        parse_kv(text)
    return caught.value.status, caught.value.code, caught.value.reason


BAD = (400, "kv_bad_request")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "kv_bad_body"),
        (b"null", "kv_bad_body"),
        (b"{}", "kv_bad_body"),
        (b"7", "kv_bad_body"),
        (b'{"operations":null}', "kv_bad_body"),
        (b'{"operations":{}}', "kv_bad_body"),
        (b'[{"op":"get"', "kv_bad_body"),
        (b'[{"op":"get","ns":"n","key":"\xff"}]', "kv_bad_body"),
        (b'[{"op":"put","ns":"n","key":"k","value":"\xff","ttlSeconds":1}]', "kv_bad_body"),
        (b'[{"op":"put","ns":"n","key":"k","value":"\\ud800","ttlSeconds":1}]', "kv_bad_body"),
        (b"[" * 100_000, "kv_bad_body"),
        (b"[7]", "kv_bad_request"),
        (b"[null]", "kv_bad_request"),
        (body(*[{"op": "get", "ns": "n", "key": str(i)} for i in range(257)]), "kv_too_many_ops"),
        (body({"op": "getMany", "ns": "n", "keys": ["k"] * 1025}), "kv_too_many_keys"),
        (body(*[{"op": "getPrefix", "ns": "n", "prefix": "p", "limit": 99_999}] * 2), "kv_too_many_keys"),
        (body({"op": "getPrefix", "ns": "n", "prefix": "p", "limit": 1000}, *[put(key=str(i)) for i in range(25)]),
         "kv_too_many_keys"),
        (body(put(op="upsert")), "kv_unknown_op"),
        (body(put(op=...)), "kv_unknown_op"),
        (body(put(tenant="t")), "kv_tenant_not_an_input"),
        (body(put(tenantId=None)), "kv_tenant_not_an_input"),
        (body(put(_tenant="t")), "kv_tenant_not_an_input"),
        (body(put(ns="A")), "kv_bad_namespace"),
        (body(put(ns="-a")), "kv_bad_namespace"),
        (body(put(ns="")), "kv_bad_namespace"),
        (body(put(ns="a" * 65)), "kv_bad_namespace"),
        (body(put(ns="a\n")), "kv_bad_namespace"),
        (body(put(ns=None)), "kv_bad_namespace"),
        (body(put(ns=...)), "kv_bad_namespace"),
        (body(put(key="")), "kv_bad_key"),
        (body(put(key=None)), "kv_bad_key"),
        (body(put(key=...)), "kv_bad_key"),
        (body(put(key="a\0b")), "kv_bad_key"),
        (body(put(key=["a"])), "kv_bad_key"),
        (body({"op": "getMany", "ns": "n", "keys": ["a", ""]}), "kv_bad_key"),
        (body({"op": "getMany", "ns": "n", "keys": "a"}), "kv_bad_request"),
        (body({"op": "getMany", "ns": "n", "keys": None}), "kv_bad_request"),
        (body({"op": "getPrefix", "ns": "n"}), "kv_prefix_required"),
        (body({"op": "getPrefix", "ns": "n", "prefix": ""}), "kv_prefix_required"),
        (body({"op": "getPrefix", "ns": "n", "prefix": "p", "limit": "5"}), "kv_bad_request"),
        (body({"op": "getPrefix", "ns": "n", "prefix": "p", "limit": 5.0}), "kv_bad_request"),
        (body({"op": "getPrefix", "ns": "n", "prefix": "p", "keysOnly": 1}), "kv_bad_request"),
        (body(put(value=...)), "kv_bad_request"),
        (body(put(required="yes")), "kv_bad_request"),
        (body(put(ttlSeconds=...)), "kv_expiry_not_specified"),
        (body(put(ttlSeconds=..., forever=False)), "kv_expiry_not_specified"),
        (body(put(forever=True)), "kv_expiry_not_specified"),
        (body(put(ttlSeconds=0)), "kv_bad_ttl"),
        (body(put(ttlSeconds=-1)), "kv_bad_ttl"),
        (body(put(ttlSeconds="5")), "kv_bad_ttl"),
        (body(put(ttlSeconds=None)), "kv_bad_ttl"),
        (body(put(ttlSeconds=True)), "kv_bad_ttl"),
        (body(put(ttlSeconds=1.5)), "kv_bad_ttl"),
        (body(put(ttlSeconds=10**12 + 1)), "kv_bad_ttl"),
        (b'[{"op":"put","ns":"n","key":"k","value":1,"ttlSeconds":1e400}]', "kv_bad_ttl"),
        (body(put(expect=None)), "kv_bad_expect"),
        (body(put(expect=-1)), "kv_bad_expect"),
        (body(put(expect=1.0)), "kv_bad_expect"),
        (body(put(expect=True)), "kv_bad_expect"),
        (body(put(expect=2**64)), "kv_bad_expect"),
        (body(put(op="putIfAbsent", expect=3)), "kv_bad_expect"),
        (body({"op": "check", "ns": "n", "key": "k"}), "kv_bad_expect"),
        (body({"op": "incr", "ns": "n", "key": "k", "ttlSeconds": 1}), "kv_bad_request"),
        (body({"op": "incr", "ns": "n", "key": "k", "delta": None, "ttlSeconds": 1}), "kv_bad_request"),
        (body({"op": "incr", "ns": "n", "key": "k", "delta": "1", "ttlSeconds": 1}), "kv_bad_request"),
        (body({"op": "incr", "ns": "n", "key": "k", "delta": 1, "min": None, "ttlSeconds": 1}), "kv_bad_request"),
        (body({"op": "incr", "ns": "n", "key": "k", "delta": 1, "max": [], "ttlSeconds": 1}), "kv_bad_request"),
        (body({"op": "incr", "ns": "n", "key": "k", "delta": 1, "expect": 1, "ttlSeconds": 1}), "kv_bad_request"),
        (b'[{"op":"incr","ns":"n","key":"k","delta":1e999999999,"ttlSeconds":1}]', "kv_bad_request"),
        (b'[{"op":"incr","ns":"n","key":"k","delta":' + b"9" * 500 + b',"ttlSeconds":1}]', "kv_bad_request"),
        (body({"op": "incr", "ns": "n", "key": "k", "delta": 1}), "kv_expiry_not_specified"),
        (body(put(), put()), "kv_duplicate_key_in_call"),
        (body(put(), {"op": "check", "ns": "carts", "key": "k", "expect": 0}), "kv_duplicate_key_in_call"),
        (body({"op": "delete", "ns": "n", "key": "k"},
              {"op": "incr", "ns": "n", "key": "k", "delta": 1, "forever": True}), "kv_duplicate_key_in_call"),
    ],
)  # fmt: skip
def test_a_malformed_call_is_refused_with_the_reason_of_its_row(text: bytes, reason: str) -> None:
    """Status 400, code kv_bad_request, and the reason that section 2.3 has for it."""
    assert refusal(text) == (*BAD, reason)


def test_a_value_is_measured_as_compact_json() -> None:
    """65,536 bytes of compact JSON pass, whatever whitespace was around them; one more is 413."""
    fits = '"' + "x" * (65_536 - 2) + '"'
    (op,) = parse_kv(f'[{{"op":"put","ns":"n","key":"k","value":  {fits}  ,"forever":true}}]'.encode())
    assert isinstance(op, Put)
    assert len(op.value) == 65_536
    padded = "[" + " " * 70_000 + "1]"
    (op,) = parse_kv(f'[{{"op":"put","ns":"n","key":"k","value":{padded},"forever":true}}]'.encode())
    assert isinstance(op, Put)
    assert op.value == b"[1]"
    too_long = body(put(value="x" * (65_536 - 1)))
    assert refusal(too_long) == (413, "payload_too_large", "kv_value_too_large")


def test_a_key_is_measured_in_bytes() -> None:
    """512 bytes of UTF-8 pass, 513 are 413, in every kind of op."""
    (op,) = parse_kv(body({"op": "get", "ns": "n", "key": "é" * 256}))
    assert op == Get("n", "é" * 256)
    for op_body in (
        {"op": "get", "ns": "n", "key": "é" * 256 + "x"},
        {"op": "getMany", "ns": "n", "keys": ["x" * 513]},
        put(key="x" * 513),
    ):
        assert refusal(body(op_body)) == (413, "payload_too_large", "kv_key_too_large")


@pytest.mark.parametrize(
    ("ops", "reason"),
    [
        ([put(ns="BAD")] * 257, "kv_too_many_ops"),
        ([put(ns="BAD"), put(value="x" * 70_000), {"op": "getMany", "ns": "n", "keys": ["k"] * 1025}],
         "kv_too_many_keys"),
        ([put(ns="BAD"), put(value="x" * 70_000)], "kv_value_too_large"),
        ([put(), put(), put(ns="BAD")], "kv_bad_namespace"),
        ([7, put(ns="BAD")], "kv_bad_request"),
        ([put(ns="BAD"), 7], "kv_bad_namespace"),
    ],
)  # fmt: skip
def test_the_first_refusal_is_the_one_of_the_published_order(ops: list[Any], reason: str) -> None:
    """Op count, key count, value size, then op by op in input order, then the duplicate check."""
    assert refusal(body(*ops))[2] == reason


def test_good_ops_become_commands() -> None:
    """Each op with its defaults, lifetimes in microseconds, and its values as compact text."""
    ops = parse_kv(
        body(
            {"op": "get", "ns": "n", "key": "a", "expect": None, "required": "ignored"},
            {"op": "getMany", "ns": "n", "keys": ["a", "b", "a"]},
            {"op": "getMany", "ns": "n"},
            {"op": "getPrefix", "ns": "n", "prefix": "p", "limit": 0},
            {"op": "getPrefix", "ns": "n", "prefix": "p", "after": "pa", "limit": 5, "keysOnly": True},
            put(key="a", value=None, ttlSeconds=60.0),
            put(key="b", ttlSeconds=..., forever=True, expect=0, required=True),
            put(key="c", op="putIfAbsent", value={"b": [1, " "], "a": {}}),
            put(key="d", op="putIfAbsent", expect=0),
            {"op": "delete", "ns": "n", "key": "e", "expect": 7, "required": True},
            {"op": "incr", "ns": "n", "key": "f", "delta": -0.1, "min": -5, "max": 10.0, "ttlSeconds": 5},
            {"op": "check", "ns": "n", "key": "g", "expect": 3, "required": True},
            {"op": "get", "ns": 12, "key": True, "unknown": "ignored"},
        )
    )
    assert ops == [
        Get("n", "a"),
        GetMany("n", ("a", "b", "a")),
        GetMany("n", ()),
        GetPrefix("n", "p", None, 1),
        GetPrefix("n", "p", "pa", 5, True),
        Put("carts", "a", b"null", 60 * SECOND),
        Put("carts", "b", b"1", None, 0, True),
        Put("carts", "c", b'{"b":[1," "],"a":{}}', 60 * SECOND, 0, if_absent=True),
        Put("carts", "d", b"1", 60 * SECOND, 0, if_absent=True),
        Delete("n", "e", 7, True),
        Incr("n", "f", Decimal("-0.1"), 5 * SECOND, Decimal("-5"), Decimal("10.0")),
        Check("n", "g", 3, True),
        Get("12", "true"),
    ]


def test_the_same_key_may_be_read_beside_a_write() -> None:
    """The duplicate rule is for writes and checks, per namespace."""
    other = put(ns="other")
    assert len(parse_kv(body({"op": "get", "ns": "carts", "key": "k"}, put(), other))) == 3


def test_numbers_and_strings_keep_their_spelling() -> None:
    """A71: digits, exponents, signs and escapes of a value are stored byte for byte; only whitespace goes."""
    text = rb"""[ 9007199254740993 , 123456789012345678901234567890, 1e-7, -0.0, 1E5,
                 1.50, "\u0041\/\u0000 \ud83d\ude00" ]"""
    (op,) = parse_kv(b'[{"op":"put","ns":"n","key":"k","forever":true,"value":' + text + b"}]")
    assert isinstance(op, Put)
    kept = rb'[9007199254740993,123456789012345678901234567890,1e-7,-0.0,1E5,1.50,"\u0041\/\u0000 \ud83d\ude00"]'
    assert op.value == kept


def test_deep_nesting_passes_to_a_bound() -> None:
    """200 levels are kept; what is deeper than the decoder's stack is a 400, not a fault."""
    deep = b"[" * 200 + b"]" * 200
    (op,) = parse_kv(b'[{"op":"put","ns":"n","key":"k","forever":true,"value":' + deep + b"}]")
    assert isinstance(op, Put)
    assert op.value == deep


def test_a_transaction_has_smaller_bounds_and_no_prefix_reads() -> None:
    """64 ops, 256 keys, and getPrefix refused, each with its reason."""

    def raws(ops: list[Any]) -> list[msgspec.Raw]:
        return [msgspec.Raw(json.dumps(op).encode()) for op in ops]

    assert len(parse_kv_ops(raws([put(key=str(i)) for i in range(64)]), in_transaction=True)) == 64
    for ops, reason in (
        ([put(key=str(i)) for i in range(65)], "kv_too_many_ops"),
        ([{"op": "getMany", "ns": "n", "keys": ["k"] * 257}], "kv_too_many_keys"),
        ([{"op": "getPrefix", "ns": "n", "prefix": "p"}], "kv_get_prefix_not_allowed_in_transaction"),
    ):
        with pytest.raises(QueenError) as caught:
            parse_kv_ops(raws(ops), in_transaction=True)
        assert caught.value.reason == reason


def test_a_path_route_carries_one_op() -> None:
    """The body of a PUT has no op, ns or key; a DELETE needs none at all."""
    assert parse_kv_path("get", "ns", "a/b", b"", b"") == Get("ns", "a/b")
    stored = parse_kv_path("put", "ns", "a/b", b"", b'{"value": [1, 2.50], "ttlSeconds": 5, "expect": 0}')
    assert stored == Put("ns", "a/b", b"[1,2.50]", 5 * SECOND, 0)
    for empty in (b"", b"null", b"{}", b" {} "):
        assert parse_kv_path("delete", "ns", "k", b"", empty) == Delete("ns", "k")
    assert parse_kv_path("delete", "ns", "k", b"", b'{"expect":4,"required":true}') == Delete("ns", "k", 4, True)


@pytest.mark.parametrize(
    ("word", "key", "query", "text", "reason"),
    [
        ("get", "k", b"x=1", b"", "kv_no_query_string"),
        ("put", "k", b"", b"", "kv_bad_body"),
        ("put", "k", b"", b"[]", "kv_bad_body"),
        ("put", "k", b"", b'{"value":"\xff"}', "kv_bad_body"),
        ("delete", "k", b"", b"[]", "kv_bad_body"),
        ("put", "k", b"", b'{"op":"put"}', "kv_field_in_path"),
        ("put", "k", b"", b'{"ns":"a"}', "kv_field_in_path"),
        ("put", "k", b"", b'{"namespace":"a"}', "kv_field_in_path"),
        ("delete", "k", b"", b'{"key":"k"}', "kv_field_in_path"),
        ("get", "", b"", b"", "kv_bad_key"),
        ("put", "k", b"", b'{"value":1}', "kv_expiry_not_specified"),
    ],
)
def test_a_path_route_refuses(word: str, key: str, query: bytes, text: bytes, reason: str) -> None:
    """Section 2.11's own two reasons beside those of the batch."""
    with pytest.raises(QueenError) as caught:
        parse_kv_path(word, "ns", key, query, text)
    assert (caught.value.status, caught.value.code, caught.value.reason) == (*BAD, reason)


AT = parse_instant("2026-11-29T14:21:59.336954+00:00")
ROW = Row(b'{"items":4}', 3, parse_instant("2026-12-06T14:21:59.423596+00:00"), AT, AT)


def shown(text: bytes) -> Any:
    return json.loads(text)


def test_results_are_rendered_as_captured() -> None:
    """The elements of sections 2.4 and 7.2, 7.3, with their absent fields absent."""
    row = {
        "version": 3,
        "expiresAt": "2026-12-06T14:21:59.423596+00:00",
        "updatedAt": "2026-11-29T14:21:59.336954+00:00",
    }
    results = [
        GetResult("customer-42", ROW),
        GetResult("nope", None),
        GetManyResult((KeyRow("customer-42", ROW),), ("zz",), False),
        GetPrefixResult((KeyRow("customer-42", ROW),), True, "customer-42", False),
        GetPrefixResult((KeyRow("customer-42", Row(b"1", 3, None, AT, AT)),), False, None, True),
        WriteResult("put", "c", b'{"items":3}', 2),
        WriteResult("put", "c", b'{"items":4}', 3, "version"),
        WriteResult("check", "nope", None, 0),
        WriteResult("check", "c2", b"1", 5, "exists"),
        WriteResult("delete", "c2", b"null", 0, "absent"),
    ]
    assert shown(render_kv(results)) == {
        "results": [
            {"index": 0, "op": "get", "found": True, "key": "customer-42", "value": {"items": 4}, **row},
            {"index": 1, "op": "get", "found": False, "key": "nope"},
            {"index": 2, "op": "getMany", "rows": [{"key": "customer-42", "value": {"items": 4}, **row}],
             "missing": ["zz"], "truncated": False},
            {"index": 3, "op": "getPrefix", "rows": [{"key": "customer-42", "value": {"items": 4}, **row}],
             "truncated": True, "nextAfter": "customer-42"},
            {"index": 4, "op": "getPrefix", "rows": [{"key": "customer-42", **row, "expiresAt": None}],
             "truncated": False, "nextAfter": None},
            {"index": 5, "op": "put", "applied": True, "key": "c", "value": {"items": 3}, "version": 2},
            {"index": 6, "op": "put", "applied": False, "reason": "version", "key": "c",
             "value": {"items": 4}, "version": 3},
            {"index": 7, "op": "check", "applied": True, "key": "nope", "version": 0},
            {"index": 8, "op": "check", "applied": False, "reason": "exists", "key": "c2", "value": 1, "version": 5},
            {"index": 9, "op": "delete", "applied": False, "reason": "absent", "key": "c2", "value": None,
             "version": 0},
        ]
    }  # fmt: skip


def test_timestamps_trim_their_fraction() -> None:
    """KV instants have an offset and no trailing zeros; one beyond the calendar is spelled as its end."""
    at = parse_instant("2026-12-06T14:21:59.336950+00:00")
    row = Row(b"1", 1, 2**62, at, parse_instant("2026-12-06T14:21:59+00:00"))
    got = shown(render_kv([GetResult("k", row)]))["results"][0]
    assert got["updatedAt"] == "2026-12-06T14:21:59+00:00"
    assert got["expiresAt"] == "9999-12-31T23:59:59.999999+00:00"
    early = shown(render_kv([GetResult("k", Row(b"1", 1, None, at, -(2**62)))]))["results"][0]
    assert early["updatedAt"] == "1000-01-01T00:00:00+00:00"
    got = shown(render_kv([GetResult("k", Row(b"1", 1, None, at, at))]))["results"][0]
    assert (got["updatedAt"], got["expiresAt"]) == ("2026-12-06T14:21:59.33695+00:00", None)


def test_a_lost_required_op_answers_without_results() -> None:
    """Section 7.4 exactly; with a current value that is too long, only that it was lost."""
    lost = Precondition(0, "version", 3, b'{"items":4}')
    assert shown(render_kv(lost)) == {
        "ok": False,
        "reason": "kv_precondition",
        "failedIndex": 0,
        "kvReason": "version",
        "version": 3,
        "value": {"items": 4},
    }
    long = Precondition(0, "version", 3, b'"' + b"x" * 4096 + b'"')
    assert shown(render_kv(long)) == {"ok": False, "reason": "kv_precondition"}
    wide = Precondition(0, "version", 3, ('"' + "é" * 3900 + '"').encode())
    assert "value" in shown(render_kv(wide)), "the detail is counted in characters"


def test_a_single_element_tells_the_version_of_a_hit() -> None:
    """The path routes' ETag comes from a read that found something, and from nothing else."""
    text, version = render_kv_single([GetResult("k", ROW)])
    assert (shown(text)["found"], version) == (True, 3)
    text, version = render_kv_single([GetResult("k", None)])
    assert (shown(text), version) == ({"index": 0, "op": "get", "found": False, "key": "k"}, None)
    assert render_kv_single([WriteResult("put", "k", b"1", 4)])[1] is None
    assert shown(render_kv_single(Precondition(0, "absent", 0, b"null"))[0])["ok"] is False

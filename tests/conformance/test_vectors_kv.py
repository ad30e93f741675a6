"""Vectors 1 to 17 of wire-kv-locks-timers-transactions.md, section 10: keys."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock
from wire_kit import Wire, direct, refusal

from queen_actors.storage.memory import MemoryStore
from queen_actors.values import parse_instant


@pytest.mark.parametrize("value", [None, False, 0, "", [], {"a": [{"b": None}], "c": {"d": 1.5}}])
async def test_vector_01_every_value_comes_back(wire: Wire, value: Any) -> None:
    """A stored null, false, zero or empty value is found, and is what was put."""
    put = await wire.put("k", value)
    assert (put["applied"], put["key"], put["value"]) == (True, "k", value)
    got = await wire.get("k")
    assert got == {**got, "index": 0, "op": "get", "found": True, "key": "k", "value": value}
    assert got["version"] == put["version"]
    assert got["expiresAt"] is None
    assert got["updatedAt"].endswith("+00:00")


async def test_vector_02_a_stale_expect_is_refused_with_the_current_row(wire: Wire) -> None:
    """The loser is a 200 that says why, and shows what is there."""
    first = await wire.put("k", 1)
    second = await wire.put("k", 2)
    lost = await wire.put("k", 3, expect=first["version"])
    row = {"index": 0, "op": "put", "key": "k"}
    assert lost == {**row, "applied": False, "reason": "version", "value": 2, "version": second["version"]}
    assert (await wire.get("k"))["value"] == 2


async def test_vector_03_a_conditional_put_never_creates(wire: Wire) -> None:
    """Expecting a version of a key that does not exist answers `absent`, and the key still does not exist."""
    lost = await wire.put("k", 1, expect=5)
    row = {"index": 0, "op": "put", "key": "k"}
    assert lost == {**row, "applied": False, "reason": "absent", "value": None, "version": 0}
    assert await wire.get("k") == {"index": 0, "op": "get", "found": False, "key": "k"}


async def test_vector_04_expect_zero_means_must_not_exist(timed: Wire, autojump_clock: MockClock) -> None:
    """It loses against a live key, and wins over an expired one with a higher version than that had."""
    old = await timed.put("k", 1, ttlSeconds=5)
    lost = await timed.put("k", 2, expect=0)
    assert (lost["applied"], lost["reason"], lost["value"]) == (False, "exists", 1)
    assert lost["version"] == old["version"]
    await trio.sleep(5.1)
    new = await timed.put("k", 3, expect=0)
    assert new["applied"] is True
    assert new["version"] > old["version"]


async def test_vector_05_a_version_never_comes_again(durable: MemoryStore) -> None:
    """Also not after a delete, and not after a restart that finds no row left."""
    async with direct(durable) as wire:
        first = (await wire.put("k", 1))["version"]
        await wire.kv1("delete", "ns", "k")
        second = (await wire.put("k", 1))["version"]
        assert second > first
        await wire.kv1("delete", "ns", "k")
    async with direct(durable.reopen()) as wire:
        assert (await wire.get("k"))["found"] is False
        assert (await wire.put("k", 1))["version"] > second


async def test_vector_06_incr(wire: Wire) -> None:
    """From nothing it counts from 0; past `max` or on a text it changes nothing."""
    made = await wire.kv1("incr", "ns", "n", delta=7, max=10, forever=True)
    assert (made["applied"], made["value"]) == (True, 7)
    assert made["version"] > 0
    over = await wire.kv1("incr", "ns", "n", delta=4, max=10, forever=True)
    assert (over["applied"], over["reason"]) == (False, "limit")
    assert (over["value"], over["version"]) == (7, made["version"])
    text = await wire.put("s", "seven")
    odd = await wire.kv1("incr", "ns", "s", delta=1, forever=True)
    assert (odd["applied"], odd["reason"], odd["value"]) == (False, "type", 0)
    assert odd["version"] == text["version"]
    assert (await wire.get("s"))["value"] == "seven"


@pytest.mark.parametrize("value", [True, "1", {}, [], None])
async def test_vector_06_incr_of_what_is_no_number(wire: Wire, value: Any) -> None:
    """`type`, value 0, and the row as it was."""
    row = await wire.put("k", value)
    lost = await wire.kv1("incr", "ns", "k", delta=1, forever=True)
    assert (lost["reason"], lost["value"], lost["version"]) == ("type", 0, row["version"])
    assert (await wire.get("k"))["value"] == value


async def test_vector_06_bounds_hold_on_create(wire: Wire) -> None:
    """An increment that would create outside its bounds creates nothing."""
    for bounds in ({"max": 1}, {"min": 5}):
        lost = await wire.kv1("incr", "ns", "n", delta=2, forever=True, **bounds)
        assert (lost["applied"], lost["reason"], lost["value"], lost["version"]) == (False, "limit", 0, 0)
    assert (await wire.get("n"))["found"] is False


async def test_vector_07_incr_keeps_the_lifetime_of_a_live_row(timed: Wire, autojump_clock: MockClock) -> None:
    """The window is fixed at its first count; the next one starts from 0 with its own lifetime."""
    await timed.kv1("incr", "ns", "n", delta=1, ttlSeconds=5)
    window = (await timed.get("n"))["expiresAt"]
    await trio.sleep(2)
    assert (await timed.kv1("incr", "ns", "n", delta=1, ttlSeconds=60))["value"] == 2
    assert (await timed.get("n"))["expiresAt"] == window
    await trio.sleep(3.1)
    assert (await timed.get("n"))["found"] is False
    assert (await timed.kv1("incr", "ns", "n", delta=1, ttlSeconds=60))["value"] == 1
    got = await timed.get("n")
    assert 59_000_000 < parse_instant(got["expiresAt"]) - parse_instant(got["updatedAt"]) < 61_000_000


@pytest.mark.parametrize(("first", "second", "text"), [(0.1, 0.2, b"0.3"), (9.5, 0.5, b"10")])
async def test_vector_08_incr_is_exact(wire: Wire, first: float, second: float, text: bytes) -> None:
    """Decimal arithmetic, and an integral result is written as an integer."""
    await wire.kv1("incr", "ns", "n", delta=first, forever=True)
    await wire.kv1("incr", "ns", "n", delta=second, forever=True)
    answer = await wire.request("POST", "/api/v1/kv", [{"op": "get", "ns": "ns", "key": "n"}])
    assert b'"value":' + text + b"," in answer.body


@pytest.mark.parametrize(
    ("expiry", "reason"),
    [
        ({}, "kv_expiry_not_specified"),
        ({"ttlSeconds": 5, "forever": True}, "kv_expiry_not_specified"),
        ({"forever": False}, "kv_expiry_not_specified"),
        ({"ttlSeconds": 0}, "kv_bad_ttl"),
        ({"ttlSeconds": -1}, "kv_bad_ttl"),
        ({"ttlSeconds": "5"}, "kv_bad_ttl"),
        ({"ttlSeconds": None}, "kv_bad_ttl"),
        ({"ttlSeconds": 5.5}, "kv_bad_ttl"),
        ({"ttlSeconds": 10**12 + 1}, "kv_bad_ttl"),
    ],
)
async def test_vector_09_exactly_one_lifetime(wire: Wire, expiry: dict[str, Any], reason: str) -> None:
    """A write names its lifetime, once and in whole seconds above 0."""
    before = await wire.state()
    for op in ({"op": "put", "value": 1}, {"op": "putIfAbsent", "value": 1}, {"op": "incr", "delta": 1}):
        answer = await wire.request("POST", "/api/v1/kv", [{**op, "ns": "ns", "key": "k", **expiry}])
        assert refusal(answer) == (400, "kv_bad_request", reason)
    assert await wire.state() == before


async def test_vector_09_an_integral_float_is_a_lifetime(wire: Wire) -> None:
    """5.0 seconds are 5 seconds; `forever: false` beside it counts as not given."""
    assert (await wire.put("k", 1, ttlSeconds=5.0))["applied"] is True
    assert (await wire.put("k", 1, ttlSeconds=5, forever=False))["applied"] is True
    got = await wire.get("k")
    assert parse_instant(got["expiresAt"]) - parse_instant(got["updatedAt"]) == 5_000_000


@pytest.mark.parametrize("ns", ["A", "-a", "x" * 65, "", ".a", "a/b", "a b", "é", None])
async def test_vector_10_namespaces(wire: Wire, ns: Any) -> None:
    """A namespace is 1 to 64 of a-z 0-9 . _ -, and starts with a letter or a digit."""
    answer = await wire.request("POST", "/api/v1/kv", [{"op": "get", "ns": ns, "key": "k"}])
    assert refusal(answer) == (400, "kv_bad_request", "kv_bad_namespace")


async def test_vector_10_sizes(wire: Wire) -> None:
    """A key of 512 bytes and a value of 65,536 fit; one byte more is a 413 and writes nothing."""
    assert (await wire.put("k" * 512, 1, ns="x" * 64))["applied"] is True
    assert (await wire.put("é" * 256, 1))["applied"] is True
    for key in ("k" * 513, "é" * 256 + "k"):
        answer = await wire.request(
            "POST", "/api/v1/kv", [{"op": "put", "ns": "ns", "key": key, "value": 1, "forever": True}]
        )
        assert refusal(answer) == (413, "payload_too_large", "kv_key_too_large")
    assert (await wire.put("full", "v" * 65_534))["applied"] is True
    op = {"op": "put", "ns": "ns", "key": "over", "value": "v" * 65_535, "forever": True}
    assert refusal(await wire.request("POST", "/api/v1/kv", [op])) == (413, "payload_too_large", "kv_value_too_large")
    assert (await wire.get("over"))["found"] is False


async def test_vector_10_a_value_is_measured_as_compact_json(wire: Wire) -> None:
    """Blanks between the tokens of a value do not count."""
    value = b"[" + b" " * 70_000 + b'1 ,"a b"]'
    body = b'[{"op":"put","ns":"ns","key":"k","forever":true,"value":' + value + b"}]"
    assert (await wire.request("POST", "/api/v1/kv", body=body)).status == 200
    assert (await wire.get("k"))["value"] == [1, "a b"]


async def test_vector_11_counts_and_duplicates(wire: Wire) -> None:
    """257 ops are too many, and one key is written or checked once in a call; reading it beside is fine."""
    gets = [{"op": "get", "ns": "ns", "key": "k"}] * 257
    assert refusal(await wire.request("POST", "/api/v1/kv", gets)) == (400, "kv_bad_request", "kv_too_many_ops")
    assert len(await wire.kv(*gets[:256])) == 256
    put = {"op": "put", "ns": "ns", "key": "k", "value": 1, "forever": True}
    before = await wire.state()
    for second in (put, {"op": "check", "ns": "ns", "key": "k", "expect": 0}, {"op": "delete", "ns": "ns", "key": "k"}):
        answer = await wire.request("POST", "/api/v1/kv", [put, second])
        assert refusal(answer) == (400, "kv_bad_request", "kv_duplicate_key_in_call")
    assert await wire.state() == before
    written, got = await wire.kv(put, {"op": "get", "ns": "ns", "key": "k"})
    assert (written["applied"], got["value"]) == (True, 1)


async def test_vector_12_what_a_read_beside_a_write_sees(wire: Wire) -> None:
    """Before the write the old row, after it the new one; getMany and getPrefix see it wherever they stand."""
    get, put = {"op": "get", "ns": "ns", "key": "k"}, {"op": "put", "ns": "ns", "key": "k", "value": 1, "forever": True}
    many, page = {"op": "getMany", "ns": "ns", "keys": ["k"]}, {"op": "getPrefix", "ns": "ns", "prefix": "k"}
    early, _, rows = await wire.kv(get, put, many)
    assert early["found"] is False
    assert [row["value"] for row in rows["rows"]] == [1]
    before, prefixed, _, late = await wire.kv(many, page, {**put, "value": 2}, get)
    assert late["value"] == 2
    assert [row["value"] for row in before["rows"]] == [2]
    assert [row["value"] for row in prefixed["rows"]] == [2]


async def test_vector_13_a_losing_required_applies_nothing(wire: Wire) -> None:
    """200 without `results`, and none of the call's writes happened in either namespace."""
    kept = await wire.put("kept", {"n": 1})
    before = await wire.state()
    lost = await wire.kv_call(
        {"op": "put", "ns": "other", "key": "a", "value": 1, "forever": True},
        {"op": "put", "ns": "ns", "key": "kept", "value": 2, "forever": True, "expect": 99, "required": True},
        {"op": "incr", "ns": "ns", "key": "n", "delta": 1, "forever": True},
    )
    expected = {"ok": False, "reason": "kv_precondition", "failedIndex": 1, "kvReason": "version"}
    assert lost == {**expected, "version": kept["version"], "value": {"n": 1}}
    assert await wire.state() == before


async def test_vector_13_a_large_current_value_is_left_out(wire: Wire) -> None:
    """Over 4096 characters of detail, only the bare refusal is sent."""
    await wire.put("k", "v" * 4096)
    lost = await wire.kv_call({"op": "delete", "ns": "ns", "key": "k", "expect": 99, "required": True})
    assert lost == {"ok": False, "reason": "kv_precondition"}


async def test_vector_14_prefix_pages(wire: Wire) -> None:
    """Five keys by twos: b, d, then the end. The limit is clamped; the prefix may not be empty."""
    await wire.kv(
        *({"op": "put", "ns": "pages", "key": f"p/{x}", "value": x, "forever": True} for x in "abcde"),
    )
    page = {"op": "getPrefix", "ns": "pages", "prefix": "p/"}
    seen, after = [], None
    for _ in range(3):
        (found,) = await wire.kv({**page, "limit": 2} | ({"after": after} if after else {}))
        after = found["nextAfter"]
        seen.append(([row["key"] for row in found["rows"]], found["truncated"], after))
    first, second = (["p/a", "p/b"], True, "p/b"), (["p/c", "p/d"], True, "p/d")
    assert seen == [first, second, (["p/e"], False, None)]
    (one,), (all_five,) = await wire.kv({**page, "limit": 0}), await wire.kv({**page, "limit": 99_999})
    assert [row["key"] for row in one["rows"]] == ["p/a"]
    assert len(all_five["rows"]) == 5
    (bare,) = await wire.kv({**page, "keysOnly": True, "limit": 1})
    assert bare["rows"][0].keys() == {"key", "version", "expiresAt", "updatedAt"}
    answer = await wire.request("POST", "/api/v1/kv", [{**page, "prefix": ""}])
    assert refusal(answer) == (400, "kv_bad_request", "kv_prefix_required")


async def test_vector_15_prefixes_are_literal_and_keys_sort_by_bytes(wire: Wire) -> None:
    """`%`, `_` and `*` match themselves only; upper case sorts before lower, and UTF-8 by its bytes."""
    names = ["a%b", "a_b", "a*b", "axb", "z", "Z", "é", "\uffff", "\U0001f600"]
    await wire.kv(*({"op": "put", "ns": "bytes", "key": f"k{n}", "value": 1, "forever": True} for n in names))
    for prefix in ("ka%", "ka_", "ka*"):
        (found,) = await wire.kv({"op": "getPrefix", "ns": "bytes", "prefix": prefix})
        assert [row["key"] for row in found["rows"]] == [prefix + "b"]
    (found,) = await wire.kv({"op": "getPrefix", "ns": "bytes", "prefix": "k"})
    assert [row["key"] for row in found["rows"]] == sorted((f"k{n}" for n in names), key=str.encode)
    assert [row["key"] for row in found["rows"]][-2:] == ["k\uffff", "k\U0001f600"]


async def test_vector_16_the_path_routes(wire: Wire) -> None:
    """An escaped and a raw slash name the same key; a hit has an ETag, a miss is a 200."""
    put = await wire.ok("PUT", "/api/v1/kv/ns/a%2Fb", {"value": {"n": 1}, "ttlSeconds": 60})
    assert put == {"index": 0, "op": "put", "applied": True, "key": "a/b", "value": {"n": 1}, "version": put["version"]}
    answer = await wire.request("GET", "/api/v1/kv/ns/a/b", headers={"content-type": "application/json"})
    assert answer.headers["etag"] == f'"{put["version"]}"'
    assert (answer.json["found"], answer.json["key"], answer.json["value"]) == (True, "a/b", {"n": 1})
    miss = await wire.request("GET", "/api/v1/kv/ns/nothing")
    assert (miss.status, miss.json) == (200, {"index": 0, "op": "get", "found": False, "key": "nothing"})
    assert "etag" not in miss.headers
    for method, body in (("GET", b""), ("PUT", b'{"value":1,"forever":true}'), ("DELETE", b"")):
        answer = await wire.request(method, "/api/v1/kv/ns/a/b?x=1", body=body)
        assert refusal(answer) == (400, "kv_bad_request", "kv_no_query_string")
    for field in ("op", "ns", "namespace", "key"):
        answer = await wire.request("PUT", "/api/v1/kv/ns/k", {"value": 1, "forever": True, field: "x"})
        assert refusal(answer) == (400, "kv_bad_request", "kv_field_in_path")
    lost = await wire.ok("DELETE", "/api/v1/kv/ns/a/b", {"expect": 999, "required": True})
    assert (lost["ok"], lost["reason"], lost["kvReason"]) == (False, "kv_precondition", "version")
    for body in (b"", b"null", b"{}"):
        await wire.put("gone", 1)
        assert (await wire.request("DELETE", "/api/v1/kv/ns/gone", body=body)).json["applied"] is True


@pytest.mark.parametrize(
    ("raw", "key"), [("a//b", "a//b"), ("/lead", "/lead"), ("tail/", "tail/"), ("%2541", "%41"), ("a+b%20c", "a+b c")]
)
async def test_vector_16_the_raw_path_is_the_key(wire: Wire, raw: str, key: str) -> None:
    """No slash is merged, a plus stays a plus, and escapes are decoded once (1.6)."""
    await wire.ok("PUT", f"/api/v1/kv/ns/{raw}", {"value": 1, "forever": True})
    assert (await wire.get(key))["found"] is True


async def test_vector_17_twenty_at_once(wire: Wire) -> None:
    """One putIfAbsent of twenty wins; twenty compare-and-set loops and twenty increments all count."""
    winners: list[int] = []

    async def claim(n: int) -> None:
        won = await wire.kv1("putIfAbsent", "ns", "claim", value=n, forever=True)
        winners.extend([n] if won["applied"] else [])

    async def compare_and_set() -> None:
        while True:
            row = await wire.get("cas")
            saved = await wire.put("cas", row.get("value", 0) + 1, expect=row.get("version", 0))
            if saved["applied"]:
                return

    async def count() -> None:
        await wire.kv1("incr", "ns", "count", delta=1, forever=True)

    async with trio.open_nursery() as nursery:
        for n in range(20):
            nursery.start_soon(claim, n)
            nursery.start_soon(compare_and_set)
            nursery.start_soon(count)
    assert len(winners) == 1
    assert (await wire.get("claim"))["value"] == winners[0]
    assert (await wire.get("cas"))["value"] == 20
    assert (await wire.get("count"))["value"] == 20

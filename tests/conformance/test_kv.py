"""Keys (wire-kv-locks-timers-transactions.md, section 2): the rows of 2.5, every refusal of 2.3, and the reads."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from trio.testing import MockClock
from wire_kit import Wire, refusal

PUT: dict[str, Any] = {"op": "put", "ns": "ns", "key": "k", "value": 1, "forever": True}
CHECK: dict[str, Any] = {"op": "check", "ns": "ns", "key": "k"}
DELETE: dict[str, Any] = {"op": "delete", "ns": "ns", "key": "k"}
LIVE, OTHER = "live", "other"  # an `expect` that is the row's version, and one that is not


@pytest.mark.parametrize(
    ("op", "live", "expect", "reason"),
    [
        (PUT, True, None, None),
        (PUT, False, None, None),
        (PUT, False, 0, None),
        (PUT, True, 0, "exists"),
        (PUT, False, OTHER, "absent"),
        (PUT, True, LIVE, None),
        (PUT, True, OTHER, "version"),
        (DELETE, True, None, None),
        (DELETE, False, None, "absent"),
        (DELETE, True, LIVE, None),
        (DELETE, True, OTHER, "version"),
        (DELETE, False, OTHER, "absent"),
        (DELETE, False, 0, None),
        (DELETE, True, 0, "exists"),
        (CHECK, True, LIVE, None),
        (CHECK, True, OTHER, "version"),
        (CHECK, False, OTHER, "absent"),
        (CHECK, False, 0, None),
        (CHECK, True, 0, "exists"),
    ],
)
@pytest.mark.parametrize("expired", [False, True])
async def test_the_rows_of_2_5(
    timed: Wire,
    autojump_clock: MockClock,
    op: dict[str, Any],
    live: bool,
    expect: Any,
    reason: str | None,
    expired: bool,
) -> None:
    """Every op against a live row, no row, and an expired row, which is no row."""
    version = 0
    if live or expired:
        version = (await timed.put("k", "old", **({"forever": True} if live else {"ttlSeconds": 1})))["version"]
    if expired and not live:
        await trio.sleep(1.001)
    asked = op if expect is None else {**op, "expect": {LIVE: version, OTHER: version + 100}.get(expect, expect)}
    (element,) = await timed.kv({**asked, "value": "new"} if op is PUT else asked)

    current, at = ("old", version) if live else (None, 0)
    base = {"index": 0, "op": op["op"], "key": "k"}
    if reason is not None:
        assert element == {**base, "applied": False, "reason": reason, "value": current, "version": at}
    elif op is PUT:
        assert element == {**base, "applied": True, "value": "new", "version": element["version"]}
        assert element["version"] > version
    elif op is DELETE:
        assert element == {**base, "applied": True, "value": current, "version": at}
    else:
        assert element == {**base, "applied": True, "version": asked["expect"]}
    row = await timed.get("k")
    if op is PUT and reason is None:
        assert row["value"] == "new"
    elif op is DELETE and reason is None:
        assert row["found"] is False
    else:
        assert (row["found"], row.get("version", 0)) == (live, at)


@pytest.mark.parametrize("if_absent_first", [True, False])
async def test_put_if_absent_is_put_with_expect_zero(wire: Wire, if_absent_first: bool) -> None:
    """One of two wins, the answer names its own op, and `expect: 0` beside it is legal."""
    first = await wire.kv1(
        "putIfAbsent", "ns", "k", value=1, forever=True, **({"expect": 0} if if_absent_first else {})
    )
    assert (first["op"], first["applied"], first["value"]) == ("putIfAbsent", True, 1)
    second = await wire.kv1("putIfAbsent", "ns", "k", value=2, forever=True)
    row = {"index": 0, "op": "putIfAbsent", "key": "k"}
    assert second == {**row, "applied": False, "reason": "exists", "value": 1, "version": first["version"]}


async def test_a_put_replaces_the_lifetime(timed: Wire, autojump_clock: MockClock) -> None:
    """It never inherits the one before it."""
    await timed.put("k", 1, ttlSeconds=1)
    await timed.put("k", 1)
    assert (await timed.get("k"))["expiresAt"] is None
    await trio.sleep(2)
    assert (await timed.get("k"))["found"] is True
    await timed.put("k", 1, ttlSeconds=1)
    await trio.sleep(1.001)
    assert (await timed.get("k"))["found"] is False


BAD_REQUESTS: list[tuple[str, dict[str, Any] | Any]] = [
    ("kv_bad_request", 7),
    ("kv_bad_request", None),
    ("kv_bad_request", {"op": "put", "ns": "ns", "key": "k", "forever": True}),
    ("kv_bad_request", {"op": "putIfAbsent", "ns": "ns", "key": "k", "forever": True}),
    ("kv_bad_request", {"op": "incr", "ns": "ns", "key": "k", "forever": True}),
    ("kv_bad_request", {"op": "incr", "ns": "ns", "key": "k", "forever": True, "delta": None}),
    ("kv_bad_request", {"op": "incr", "ns": "ns", "key": "k", "forever": True, "delta": "1"}),
    ("kv_bad_request", {"op": "incr", "ns": "ns", "key": "k", "forever": True, "delta": True}),
    ("kv_bad_request", {"op": "incr", "ns": "ns", "key": "k", "forever": True, "delta": 1, "min": None}),
    ("kv_bad_request", {"op": "incr", "ns": "ns", "key": "k", "forever": True, "delta": 1, "max": "9"}),
    ("kv_bad_request", {"op": "incr", "ns": "ns", "key": "k", "forever": True, "delta": 1, "expect": 0}),
    ("kv_bad_request", {"op": "getMany", "ns": "ns", "keys": "k"}),
    ("kv_bad_request", {"op": "getMany", "ns": "ns", "keys": None}),
    ("kv_bad_request", {"op": "getPrefix", "ns": "ns", "prefix": "k", "limit": "5"}),
    ("kv_bad_request", {"op": "getPrefix", "ns": "ns", "prefix": "k", "keysOnly": 1}),
    ("kv_bad_request", {**PUT, "required": "yes"}),
    ("kv_unknown_op", {"op": "puts", "ns": "ns", "key": "k"}),
    ("kv_unknown_op", {"ns": "ns", "key": "k"}),
    ("kv_unknown_op", {**PUT, "op": "PUT"}),
    ("kv_tenant_not_an_input", {**PUT, "tenant": "x"}),
    ("kv_tenant_not_an_input", {**PUT, "tenantId": None}),
    ("kv_tenant_not_an_input", {**PUT, "_tenant": "x"}),
    ("kv_bad_namespace", {**PUT, "ns": "Ns"}),
    ("kv_bad_namespace", {"op": "put", "key": "k", "value": 1, "forever": True}),
    ("kv_bad_key", {**PUT, "key": ""}),
    ("kv_bad_key", {**PUT, "key": None}),
    ("kv_bad_key", {**PUT, "key": "a\0b"}),
    ("kv_bad_key", {"op": "get", "ns": "ns"}),
    ("kv_bad_key", {"op": "getMany", "ns": "ns", "keys": ["k", ""]}),
    ("kv_prefix_required", {"op": "getPrefix", "ns": "ns"}),
    ("kv_prefix_required", {"op": "getPrefix", "ns": "ns", "prefix": ""}),
    ("kv_bad_expect", {**PUT, "expect": None}),
    ("kv_bad_expect", {**PUT, "expect": -1}),
    ("kv_bad_expect", {**PUT, "expect": 1.5}),
    ("kv_bad_expect", {**PUT, "expect": "1"}),
    ("kv_bad_expect", CHECK),
    ("kv_bad_expect", {**PUT, "op": "putIfAbsent", "expect": 3}),
]


@pytest.mark.parametrize(("reason", "op"), BAD_REQUESTS)
async def test_a_bad_op_refuses_the_whole_call(wire: Wire, reason: str, op: Any) -> None:
    """400 with its reason (2.3), and nothing of the good op before it was applied."""
    await wire.put("kept", 1)
    before = await wire.state()
    answer = await wire.request("POST", "/api/v1/kv", {"operations": [{**PUT, "key": "good"}, op]})
    assert refusal(answer) == (400, "kv_bad_request", reason)
    assert await wire.state() == before


@pytest.mark.parametrize("body", [b"", b"{", b"7", b"null", b'"ops"', b"{}", b'{"operations":{}}', b'{"operations":1}'])
async def test_a_bad_body(wire: Wire, body: bytes) -> None:
    """Neither an array nor an object with an array of operations."""
    assert refusal(await wire.request("POST", "/api/v1/kv", body=body)) == (400, "kv_bad_request", "kv_bad_body")


async def test_a_bare_array_and_an_empty_call(wire: Wire) -> None:
    """Both shapes of a batch; an empty one has an empty answer."""
    assert await wire.ok("POST", "/api/v1/kv", {"operations": []}) == {"results": []}
    assert await wire.ok("POST", "/api/v1/kv", []) == {"results": []}
    assert (await wire.ok("POST", "/api/v1/kv", [PUT]))["results"][0]["applied"] is True


@pytest.mark.parametrize(
    "ops",
    [
        [{"op": "getMany", "ns": "ns", "keys": ["k"] * 1025}],
        [{"op": "getPrefix", "ns": "ns", "prefix": "k", "limit": 1000}, *[{"op": "get", "ns": "ns", "key": "k"}] * 25],
    ],
)
async def test_too_many_keys(wire: Wire, ops: list[Any]) -> None:
    """1024 keys a call: those of a getMany, the clamped limit of a getPrefix, one for every other op."""
    answer = await wire.request("POST", "/api/v1/kv", [{**PUT, "key": "good"}, *ops])
    assert refusal(answer) == (400, "kv_bad_request", "kv_too_many_keys")
    assert (await wire.get("good"))["found"] is False


async def test_the_order_of_refusals(wire: Wire) -> None:
    """Op count, key count, value size, then op by op, then the duplicate check."""
    bad, large = {"op": "nonsense"}, {**PUT, "value": "v" * 70_000}
    many = {"op": "getMany", "ns": "ns", "keys": ["k"] * 1025}

    async def reason(*ops: Any) -> str:
        return refusal(await wire.request("POST", "/api/v1/kv", list(ops)))[2]

    assert await reason(bad, many, large, *[PUT] * 255) == "kv_too_many_ops"
    assert await reason(bad, large, many) == "kv_too_many_keys"
    assert await reason(bad, large) == "kv_value_too_large"
    assert await reason(PUT, PUT, bad) == "kv_unknown_op"
    assert await reason(PUT, PUT, {**PUT, "ns": "NS"}, bad) == "kv_bad_namespace"
    assert await reason(PUT, PUT) == "kv_duplicate_key_in_call"


async def test_scalars_that_are_not_strings_are_their_text(wire: Wire) -> None:
    """Key 7 is "7", key true is "true"; unknown fields are ignored (1.5)."""
    await wire.kv({**PUT, "key": 7, "colour": "red"}, {**PUT, "ns": 12, "key": True})
    assert (await wire.get("7"))["found"] is True
    assert (await wire.get("true", ns="12"))["found"] is True


@pytest.mark.parametrize(
    "text", ["9007199254740993", "123456789012345678901234567890", "1e-7", "0.1", "-0.0", '"\\u0000"', '{"b":1,"a":2}']
)
async def test_a_value_is_kept_as_it_was_spelled(wire: Wire, text: str) -> None:
    """Numbers and strings come back with the text that they came with (decisions.md)."""
    body = '[{"op":"put","ns":"ns","key":"k","forever":true,"value":' + text + "}]"
    await wire.request("POST", "/api/v1/kv", body=body.encode())
    answer = await wire.request("POST", "/api/v1/kv", [{"op": "get", "ns": "ns", "key": "k"}])
    assert f'"value":{text},' in answer.body.decode()


async def test_get_many(wire: Wire) -> None:
    """Rows in byte order of the key, `missing` in the order of the request, each key once."""
    for key in ("b", "a", "Z"):
        await wire.put(key, key)
    (found,) = await wire.kv({"op": "getMany", "ns": "ns", "keys": ["b", "zz", "a", "b", "Z", "y", "zz"]})
    assert found.keys() == {"index", "op", "rows", "missing", "truncated"}
    assert [row["key"] for row in found["rows"]] == ["Z", "a", "b"]
    assert all(row.keys() == {"key", "value", "version", "expiresAt", "updatedAt"} for row in found["rows"])
    assert (found["missing"], found["truncated"]) == (["zz", "y"], False)
    assert (await wire.kv({"op": "getMany", "ns": "ns"}))[0]["missing"] == []


async def test_the_reads_of_a_call_share_four_mebibytes(wire: Wire) -> None:
    """The row that crosses the budget is still there; later ones are neither rows nor missing."""
    for place in range(0, 70, 10):
        await wire.kv(*({**PUT, "key": f"k{n:02}", "value": "v" * 65_500} for n in range(place, place + 10)))
    keys = [f"k{n:02}" for n in range(70)]
    many, page = await wire.kv(
        {"op": "getMany", "ns": "ns", "keys": [*keys, "nothing"]}, {"op": "getPrefix", "ns": "ns", "prefix": "k"}
    )
    size = sum(len(json.dumps(row["value"])) for row in many["rows"])
    assert many["truncated"] is True
    assert size - 65_502 < 4 << 20 <= size
    assert (page["truncated"], page["rows"]) == (True, [])
    (rest,) = await wire.kv({"op": "getPrefix", "ns": "ns", "prefix": "k"})
    assert rest["truncated"] is True
    assert rest["nextAfter"] == rest["rows"][-1]["key"]
    (last,) = await wire.kv({"op": "getPrefix", "ns": "ns", "prefix": "k", "after": rest["nextAfter"]})
    assert [row["key"] for row in rest["rows"] + last["rows"]] == keys


async def test_the_reported_loser_is_the_first_by_namespace_and_key(wire: Wire) -> None:
    """Not the first of the request (2.8)."""
    lost = await wire.kv_call(
        {"op": "check", "ns": "ns", "key": "b", "expect": 5, "required": True},
        {"op": "check", "ns": "ns", "key": "a", "expect": 5, "required": True},
        {"op": "check", "ns": "other", "key": "a", "expect": 5, "required": True},
    )
    assert (lost["failedIndex"], lost["kvReason"], lost["version"], lost["value"]) == (1, "absent", 0, None)


async def test_losers_without_required_stop_nobody(wire: Wire) -> None:
    """A call is a set of verdicts that are committed together."""
    first, second, third = await wire.kv({**PUT, "key": "a", "expect": 9}, {**PUT, "key": "b"}, {**CHECK, "expect": 1})
    assert [first["applied"], second["applied"], third["applied"]] == [False, True, False]
    assert (await wire.get("b"))["found"] is True


async def test_a_version_rises_with_every_write_and_with_nothing_else(wire: Wire) -> None:
    """Over all keys; a refusal, a read and a held check take none (2.7)."""
    first = (await wire.put("a", 1))["version"]
    await wire.kv({**PUT, "key": "a", "expect": 0}, {"op": "get", "ns": "ns", "key": "a"}, {**CHECK, "expect": 0})
    await wire.kv({**PUT, "key": "b", "expect": 9})
    second = (await wire.put("a", 1))["version"]
    third = (await wire.kv1("incr", "other", "n", delta=0, forever=True))["version"]
    assert first < second < third

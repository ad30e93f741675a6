"""KV: every row of the tables in section 2 of the wire, without I/O."""

from __future__ import annotations

import itertools
from decimal import Decimal

import pytest

from queen_actors import limits
from queen_actors.domain.effects import Counters, Entry, KvDropped, KvPut, decode_entries, encode_entries
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
    KvDecision,
    KvOp,
    KvResult,
    NamespaceState,
    Precondition,
    Put,
    Row,
    WriteResult,
    decide,
    expired,
)
from queen_actors.values import MAX_INSTANT

SECOND = 1_000_000
NOW = 1_700_000_000 * SECOND
OLD, NEW, NULL = b'"old"', b'"new"', b"null"
LIVE = Row(OLD, 7, NOW + 1, NOW - 100, NOW - 50)
EXPIRED = Row(OLD, 7, NOW, NOW - 100, NOW - 50)


class Space:
    """Namespaces, the version counter and everything that was applied."""

    def __init__(self, version: int = 20) -> None:
        self.version = version
        self.now = NOW
        self.states: dict[str, NamespaceState] = {}
        self.effects: list[KvPut | KvDropped] = []

    def state(self, ns: str = "a") -> NamespaceState:
        return self.states.setdefault(ns, NamespaceState(ns))

    def store(self, row: Row, key: str = "k", ns: str = "a") -> None:
        self.apply(KvPut(ns, key, row.value, row.version, row.expires_at, row.created_at, row.updated_at))

    def apply(self, *effects: KvPut | KvDropped) -> None:
        for effect in effects:
            self.state(effect.ns).apply(effect)
            self.effects.append(effect)

    def decide(self, *ops: KvOp) -> KvDecision:
        before = self.rows()
        decision = decide(ops, self.state, self.now, self.version)
        assert self.rows() == before, "decide changes nothing"
        return decision

    def call(self, *ops: KvOp) -> tuple[KvResult, ...]:
        decision = self.decide(*ops)
        assert decision.precondition is None
        self.apply(*decision.effects)
        self.version += decision.versions
        return decision.results

    def write(self, op: KvOp) -> WriteResult:
        (result,) = self.call(op)
        assert isinstance(result, WriteResult)
        return result

    def rows(self) -> dict[tuple[str, str], Row]:
        return {(ns, key): row for ns, state in self.states.items() for key, row in state.prefix("", None)}


def put(key: str = "k", value: bytes = NEW, ttl: int | None = None, *, ns: str = "a", **more: object) -> Put:
    return Put(ns, key, value, ttl, **more)


def incr(delta: str | int, ttl: int | None = None, key: str = "k", **more: object) -> Incr:
    bounds = {name: Decimal(str(more.pop(name))) for name in ("min", "max") if name in more}
    return Incr("a", key, Decimal(str(delta)), ttl, **bounds, **more)


# 2.5: (op, live row?, expect, reason, value, version), the columns of the table; 21 is the next number.
TABLE = [
    ("put", True, None, None, NEW, 21),
    ("put", False, None, None, NEW, 21),
    ("put", False, 0, None, NEW, 21),
    ("put", True, 0, "exists", OLD, 7),
    ("put", False, 5, "absent", NULL, 0),
    ("put", True, 7, None, NEW, 21),
    ("put", True, 5, "version", OLD, 7),
    ("putIfAbsent", False, 0, None, NEW, 21),
    ("putIfAbsent", True, 0, "exists", OLD, 7),
    ("delete", True, None, None, OLD, 7),
    ("delete", False, None, "absent", NULL, 0),
    ("delete", True, 7, None, OLD, 7),
    ("delete", True, 5, "version", OLD, 7),
    ("delete", False, 5, "absent", NULL, 0),
    ("delete", False, 0, None, NULL, 0),
    ("delete", True, 0, "exists", OLD, 7),
    ("check", True, 7, None, None, 7),
    ("check", True, 5, "version", OLD, 7),
    ("check", False, 5, "absent", NULL, 0),
    ("check", False, 0, None, None, 0),
    ("check", True, 0, "exists", OLD, 7),
]


def table_op(word: str, expect: int | None, required: bool = False) -> KvOp:
    if word == "delete":
        return Delete("a", "k", expect, required)
    if word == "check":
        assert expect is not None
        return Check("a", "k", expect, required)
    return Put("a", "k", NEW, 5 * SECOND, expect, required, if_absent=word == "putIfAbsent")


STORED = [(True, LIVE), (True, Row(OLD, 7, None, NOW - 9, NOW - 9)), (False, None), (False, EXPIRED)]
CASES = [
    (word, stored, expect, reason, value, version)
    for word, is_live, expect, reason, value, version in TABLE
    for live, stored in STORED
    if live is is_live
]


@pytest.mark.parametrize(("word", "stored", "expect", "reason", "value", "version"), CASES)
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "in a batch"])
def test_every_row_of_the_table(
    word: str,
    stored: Row | None,
    expect: int | None,
    reason: str | None,
    value: bytes | None,
    version: int,
    beside: bool,
) -> None:
    """2.5: outcome, reason, value and version, an expired row being no row; and the row that is there after it."""
    space = Space()
    if stored is not None:
        space.store(stored)
    op = table_op(word, expect)
    results = space.call(op, GetMany("b", ("x",))) if beside else space.call(op)
    assert results[0] == WriteResult(word, "k", value, version, reason)
    after = space.state().row("k")
    if word in ("put", "putIfAbsent") and reason is None:
        created_at = NOW if stored in (None, EXPIRED) else stored.created_at
        assert after == Row(NEW, 21, NOW + 5 * SECOND, created_at, NOW)
        assert space.version == 21
    elif word == "delete" and reason is None and value != NULL:
        assert after is None
        assert space.effects[-1] == KvDropped("a", "k", 21, False)
        assert space.version == 21
    else:
        assert after == stored
        assert space.version == 20, "only an applied write takes a number"


@pytest.mark.parametrize(("word", "stored", "expect", "reason", "value", "version"), CASES)
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "in a batch"])
def test_every_row_of_the_table_when_it_is_required(
    word: str,
    stored: Row | None,
    expect: int | None,
    reason: str | None,
    value: bytes | None,
    version: int,
    beside: bool,
) -> None:
    """2.9: a required op that loses refuses the call with its reason and the current row; one that wins is as any."""
    space = Space()
    if stored is not None:
        space.store(stored)
    op = table_op(word, expect, required=True)
    decision = space.decide(put("other"), op) if beside else space.decide(op)
    if reason is None:
        assert decision.precondition is None
        assert decision.results[-1] == WriteResult(word, "k", value, version, None)
    else:
        assert value is not None
        lost = Precondition(int(beside), reason, version, value)
        assert decision == KvDecision((), (), lost, 0)


def test_a_row_lives_until_just_before_its_expiry() -> None:
    """A row is live while its expiry is strictly later than now."""
    space = Space()
    space.write(put(ttl=5 * SECOND))
    space.now = NOW + 5 * SECOND - 1
    assert space.call(Get("a", "k")) == (GetResult("k", Row(NEW, 21, NOW + 5 * SECOND, NOW, NOW)),)
    space.now = NOW + 5 * SECOND
    assert space.call(Get("a", "k")) == (GetResult("k", None),)


@pytest.mark.parametrize("ttl", [None, SECOND])
@pytest.mark.parametrize("before", [None, NOW + 9 * SECOND])
def test_a_put_replaces_the_expiry(before: int | None, ttl: int | None) -> None:
    """2.2: a put never inherits the previous expiry, and the row stays the one that was created."""
    space = Space()
    space.store(Row(OLD, 7, before, NOW - 100, NOW - 50))
    space.write(put(ttl=ttl))
    assert space.state().row("k") == Row(NEW, 21, None if ttl is None else NOW + ttl, NOW - 100, NOW)


def test_an_expiry_is_never_later_than_a_date_can_say() -> None:
    """There is no maximum lifetime, but an expiry has to be spelled as a date."""
    space = Space()
    space.write(put(ttl=limits.TTL_SECONDS_MAX * SECOND))
    row = space.state().row("k")
    assert row is not None
    assert row.expires_at == MAX_INSTANT


def test_null_is_a_value() -> None:
    """`null` is stored and found, unlike nothing."""
    space = Space()
    assert space.write(put(value=b"null")).applied
    (result,) = space.call(Get("a", "k"))
    assert result == GetResult("k", Row(b"null", 21, None, NOW, NOW))


# 2.6 incr


@pytest.mark.parametrize(
    ("start", "delta", "total"),
    [
        ("0.1", "0.2", "0.3"),
        ("9.5", "0.5", "10"),
        ("10.0", "0", "10"),
        ("1e3", "1", "1001"),
        ("-0", "0", "0"),
        ("-0.0", "-0", "0"),
        ("5", "-5.0", "0"),
        ("1", "-1.5", "-0.5"),
        ("100", "0", "100"),
        ("1.50", "0", "1.5"),
        ("0.000001", "0.0000001", "0.0000011"),
        ("9007199254740993", "1", "9007199254740994"),
        ("99999999999999999999999999999999999998", "1", "99999999999999999999999999999999999999"),
        ("1e-38", "1e-38", "0.00000000000000000000000000000000000002"),
        ("1.00000000000000000000000000000000000000000000000000", "1", "2"),
        ("1" + "0" * 60, "1" + "0" * 60, "2e+60"),
        ("1e37", "9e37", "1e+38"),
        ("1e-39", "0", "1e-39"),
        ("0.1" + "1" * 40, "0.2", "0.3111111111111111"),
        ("1e300", "1e300", "2e+300"),
        ("1e-400", "1", "1"),
        ("1e400", "-1e400", "0"),
        ("1e-99999999999999999999", "1", "1"),
    ],
)
def test_incr_is_exact_decimal_arithmetic(start: str, delta: str, total: str) -> None:
    """An integral sum is an integer, others are exact decimals; past 38 digits the sum is a double's."""
    space = Space()
    space.write(put(value=start.encode()))
    result = space.write(incr(delta))
    assert result == WriteResult("incr", "k", total.encode(), 22)
    assert space.state().row("k") == Row(total.encode(), 22, None, NOW, NOW)


@pytest.mark.parametrize(
    ("start", "delta"), [("1.7e308", "1e308"), ("1e400", "1"), ("1e99999999999999999999", "1"), ("1e400", "-2e400")]
)
def test_a_sum_that_no_number_can_hold_is_over_the_limit(start: str, delta: str) -> None:
    """What a double cannot hold is refused as past a bound, and the row stays."""
    space = Space()
    space.write(put(value=start.encode()))
    assert space.write(incr(delta)) == WriteResult("incr", "k", start.encode(), 21, "limit")


@pytest.mark.parametrize("stored", [None, EXPIRED], ids=["absent", "expired"])
def test_incr_starts_from_zero_with_its_own_lifetime(stored: Row | None) -> None:
    """Without a live row the counter starts at 0; creation, expiry and version are new."""
    space = Space()
    if stored is not None:
        space.store(stored)
    assert space.write(incr(5, 60 * SECOND)) == WriteResult("incr", "k", b"5", 21)
    assert space.state().row("k") == Row(b"5", 21, NOW + 60 * SECOND, NOW, NOW)


@pytest.mark.parametrize("expires_at", [None, NOW + 5 * SECOND])
def test_incr_keeps_a_live_rows_lifetime_and_creation(expires_at: int | None) -> None:
    """The op's lifetime counts only when it creates the row."""
    space = Space()
    space.store(Row(b"4", 7, expires_at, NOW - 100, NOW - 50))
    assert space.write(incr(1, 60 * SECOND)) == WriteResult("incr", "k", b"5", 21)
    assert space.state().row("k") == Row(b"5", 21, expires_at, NOW - 100, NOW)


@pytest.mark.parametrize(
    ("start", "delta", "bounds", "applied"),
    [
        (99, 1, {"max": 100}, True),
        (100, 1, {"max": 100}, False),
        (100, "0.5", {"max": 100}, False),
        (101, -1, {"max": 100}, True),
        (101, 0, {"max": 100}, False),
        (1, -1, {"min": 0}, True),
        (0, -1, {"min": 0}, False),
        (None, 1, {"max": 0}, False),
        (None, -1, {"min": 0}, False),
        (None, 3, {"min": 3, "max": 3}, True),
        (5, 1, {"min": 0, "max": 6}, True),
        (5, 2, {"min": 0, "max": 6}, False),
    ],
)
def test_bounds_hold_for_the_result_and_do_not_clamp(
    start: int | None, delta: str | int, bounds: dict[str, int], applied: bool
) -> None:
    """min and max are inclusive, are tested on creation too, and a refusal shows the current value."""
    space = Space()
    if start is not None:
        space.store(Row(str(start).encode(), 7, None, NOW, NOW))
    result = space.write(incr(delta, **bounds))
    if applied:
        assert result.applied
        assert result.version == 21
    else:
        current = (b"0", 0) if start is None else (str(start).encode(), 7)
        assert result == WriteResult("incr", "k", *current, "limit")
        assert space.version == 20


@pytest.mark.parametrize("value", [b"true", b"false", b'"5"', b"{}", b"[1]", b"null", b'""'])
def test_incr_of_what_is_no_number_is_refused(value: bytes) -> None:
    """The answer's value is 0, its version that of the row; nothing is written."""
    space = Space()
    space.write(put(value=value))
    assert space.write(incr(1)) == WriteResult("incr", "k", b"0", 21, "type")
    assert space.state().row("k") == Row(value, 21, None, NOW, NOW)


def test_a_required_incr_shows_the_current_row_when_it_loses() -> None:
    """2.9: value and version are those of the current row, null and 0 when there is none."""
    space = Space()
    assert space.decide(incr(1, max=0, required=True)).precondition == Precondition(0, "limit", 0, b"null")
    space.write(put(value=b'"word"'))
    assert space.decide(incr(1, required=True)).precondition == Precondition(0, "type", 21, b'"word"')
    space.write(put(value=b"5"))
    assert space.decide(incr(1, max=5, required=True)).precondition == Precondition(0, "limit", 22, b"5")


def test_max_and_ttl_are_a_fixed_window_limiter() -> None:
    """2.6: three calls a minute pass; the window starts with its first call and ends a minute later."""
    space = Space()
    hit = incr(1, 60 * SECOND, max=3)
    verdicts = []
    for second in (0, 10, 20, 30, 59, 60, 61):
        space.now = NOW + second * SECOND
        verdicts.append(space.write(hit).applied)
    assert verdicts == [True, True, True, False, False, True, True]


# 2.7 versions


def test_versions_of_a_key_only_rise() -> None:
    """A42, I8: over overwriting, deletion, expiry and creation again each write has a higher version than before."""
    space = Space(version=0)
    versions = [space.write(put()).version, space.write(put()).version]
    space.write(Delete("a", "k"))
    versions.append(space.write(put(ttl=SECOND)).version)
    space.now += SECOND
    versions.append(space.write(put(ttl=SECOND, if_absent=True)).version)
    space.now += SECOND
    space.apply(*expired(space.state(), ["k"], space.now, space.version))
    versions.append(space.write(incr(1)).version)
    assert versions == sorted(set(versions))


def test_an_expired_row_is_absent_before_any_sweep() -> None:
    """A42: get misses, putIfAbsent wins, an `expect` of the old version loses, and `exists` is never said."""
    space = Space()
    old = space.write(put(ttl=SECOND, if_absent=True)).version
    space.now += SECOND + 50_000
    assert space.call(Get("a", "k")) == (GetResult("k", None),)
    assert space.write(put(expect=old)) == WriteResult("put", "k", NULL, 0, "absent")
    again = space.write(put(ttl=SECOND, if_absent=True))
    assert again.applied
    assert again.version > old
    assert space.write(put(expect=old)) == WriteResult("put", "k", NEW, again.version, "version")


def test_of_twenty_callers_one_wins() -> None:
    """I9: putIfAbsent has one winner, and the losers see its value."""
    space = Space()
    results = [space.write(put(value=b"%d" % caller, if_absent=True)) for caller in range(20)]
    assert [result.applied for result in results] == [True] + [False] * 19
    assert {result.value for result in results} == {b"0"}


def test_numbers_are_given_in_evaluation_order_and_only_to_writes() -> None:
    """2.7, 2.8: by (namespace, key); refusals, reads, held checks and deletes of nothing take none."""
    space = Space()
    space.store(LIVE, "live")
    results = space.call(
        put("z", ns="b"),
        Get("a", "live"),
        put("y"),
        Delete("a", "nothing"),
        Delete("a", "none", 0),
        Check("a", "live", 7),
        put("x"),
        put("q", expect=4),
        Delete("b", "gone"),
        incr(1, key="w"),
    )
    versions = [r.version for r in results if isinstance(r, WriteResult) and r.applied and r.op in ("put", "incr")]
    assert versions == [24, 23, 22, 21]
    assert space.version == 24
    assert [effect.version for effect in space.effects[1:]] == [21, 22, 23, 24]


# 2.8 order


@pytest.mark.parametrize("many", [GetMany("a", ("k",)), GetPrefix("a", "k")])
def test_reads_and_writes_of_one_call(many: GetMany | GetPrefix) -> None:
    """A get sees what stands before it in the call; reads of several keys see all writes, wherever they stand."""
    space = Space()
    written = Row(NEW, 21, None, NOW, NOW)
    results = space.call(many, Get("a", "k"), put(), Get("a", "k"))
    assert results[1] == GetResult("k", None)
    assert results[3] == GetResult("k", written)
    assert isinstance(results[0], GetManyResult | GetPrefixResult)
    assert results[0].rows == (KeyRow("k", written),)
    after = space.call(many, Delete("a", "k"), Get("a", "k"))
    assert isinstance(after[0], GetManyResult | GetPrefixResult)
    assert after[0].rows == ()
    assert after[2] == GetResult("k", None)


def test_a_page_merges_the_calls_own_writes_in_order() -> None:
    """getPrefix shows stored and just written rows as one order, the overwritten once, the deleted not at all."""
    space = Space()
    for key in "adgj":
        space.write(put(f"p{key}", OLD))
    page, *_ = space.call(
        GetPrefix("a", "p", "pa", 4),
        put("pb"),
        put("pg"),
        put("pz"),
        put("q"),
        put("pa"),
        Delete("a", "pd"),
        put("pc", ttl=SECOND),
    )
    assert isinstance(page, GetPrefixResult)
    assert [(row.key, row.row.value) for row in page.rows] == [("pb", NEW), ("pc", NEW), ("pg", NEW), ("pj", OLD)]
    assert page.truncated
    assert page.next_after == "pj"


def test_the_writes_of_a_call_are_one_step() -> None:
    """A lost condition without `required` stops nothing else: independent verdicts, applied together."""
    space = Space()
    space.store(LIVE, "live")
    first, lost, last = space.call(put("a"), put("live", expect=3), put("z", ns="b"))
    assert isinstance(first, WriteResult)
    assert isinstance(lost, WriteResult)
    assert isinstance(last, WriteResult)
    assert (first.applied, lost.reason, last.applied) == (True, "version", True)
    assert len(space.effects) == 3


# 2.9 required


def test_which_failing_required_op_is_reported() -> None:
    """The first by (namespace, key), not by its place in the call; failed_index is its place."""
    space = Space()
    decision = space.decide(
        Check("b", "a", 1, required=True), Check("a", "z", 2, required=True), Check("a", "y", 3, required=True)
    )
    assert decision.precondition == Precondition(2, "absent", 0, NULL)


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_a_lost_required_op_applies_nothing_of_the_call(order: tuple[int, ...]) -> None:
    """Over two namespaces, whatever the order: no result, no effect, no number."""
    ops: list[KvOp] = [put("x"), put("y", ns="b"), Check("b", "c", 5, required=True), GetMany("a", ("x",))]
    space = Space()
    decision = space.decide(*(ops[index] for index in order))
    assert decision == KvDecision((), (), Precondition(order.index(2), "absent", 0, NULL), 0)


def test_required_that_wins_has_no_effect() -> None:
    """The same results and effects as without it."""
    ops = [put(required=False), put("z", ns="b")]
    must = [put(required=True), put("z", ns="b", required=True)]
    assert Space().decide(*ops) == Space().decide(*must)


# 2.10 reads


def test_get_many_answers_each_distinct_key_once() -> None:
    """Rows in byte order, missing keys in the order asked."""
    space = Space()
    space.call(put("b"), put("a"), put("c", ttl=1))
    space.now += 1
    (result,) = space.call(GetMany("a", ("z", "b", "c", "a", "b", "z", "y")))
    assert isinstance(result, GetManyResult)
    assert [row.key for row in result.rows] == ["a", "b"]
    assert result.missing == ("z", "c", "y")
    assert not result.truncated
    assert space.call(GetMany("a", ())) == (GetManyResult((), (), False),)


def pages(space: Space, prefix: str, limit: int) -> list[list[str]]:
    found: list[list[str]] = []
    after: str | None = None
    while True:
        (page,) = space.call(GetPrefix("a", prefix, after, limit))
        assert isinstance(page, GetPrefixResult)
        found.append([row.key for row in page.rows])
        assert page.truncated == (page.next_after is not None)
        if page.next_after is None:
            return found
        after = page.next_after


def test_pages_of_a_prefix() -> None:
    """5 keys by 2: 2, 2, 1; `next_after` is the last key of the page while there is more behind it."""
    space = Space()
    space.call(*(put(key) for key in ["pc", "pa", "pe", "pb", "pd", "o", "q"]))
    assert pages(space, "p", 2) == [["pa", "pb"], ["pc", "pd"], ["pe"]]
    assert pages(space, "p", 5) == [["pa", "pb", "pc", "pd", "pe"]]
    assert pages(space, "p", 1000) == [["pa", "pb", "pc", "pd", "pe"]]
    assert pages(space, "nothing", 2) == [[]]


def test_a_cursor_before_or_behind_the_prefix() -> None:
    """`after` is exclusive and need not be a key, nor start with the prefix."""
    space = Space()
    space.call(*(put(key) for key in ["pa", "pb", "q"]))
    for after, keys in [
        ("a", ["pa", "pb"]),
        ("p", ["pa", "pb"]),
        ("pa", ["pb"]),
        ("paa", ["pb"]),
        ("q", []),
        ("z", []),
    ]:
        (page,) = space.call(GetPrefix("a", "p", after, 10))
        assert isinstance(page, GetPrefixResult)
        assert [row.key for row in page.rows] == keys


def test_keys_are_in_byte_order_and_a_prefix_is_literal() -> None:
    """`Z` before `a`, UTF-8 by bytes (so U+FFFF before an emoji, unlike UTF-16); %, _ and * mean themselves."""
    space = Space()
    keys = ["a", "Z", "é", "z", "\uffff", "😀", "ÿ", "%", "_", "*", "aa", "a\x01"]
    space.call(*(put("k" + key) for key in keys))
    (page,) = space.call(GetPrefix("a", "k", None, 100))
    assert isinstance(page, GetPrefixResult)
    assert [row.key for row in page.rows] == sorted(("k" + key for key in keys), key=str.encode)
    for prefix in ("k%", "k_", "k*"):
        assert pages(space, prefix, 10) == [[prefix]]


def test_expired_rows_are_in_no_page_and_do_not_truncate_one() -> None:
    """`truncated` speaks of live rows only."""
    space = Space()
    space.call(put("p1"), put("p2", ttl=1), put("p3"), put("p4", ttl=1))
    space.now += 1
    assert pages(space, "p", 2) == [["p1", "p3"]]
    assert pages(space, "p", 1) == [["p1"], ["p3"]]


def test_keys_only_reads_no_values() -> None:
    """keys_only is passed on, and such a page costs nothing of the budget."""
    space = Space()
    big = b'"' + b"x" * (limits.KV_VALUE_BYTES - 2) + b'"'
    for start in range(0, 100, 50):
        space.call(*(put(f"p{n:03}", big) for n in range(start, start + 50)))
    (page,) = space.call(GetPrefix("a", "p", None, 1000, keys_only=True))
    assert isinstance(page, GetPrefixResult)
    assert (len(page.rows), page.keys_only, page.truncated) == (100, True, False)


def test_the_order_of_keys_stays_in_step_once_it_is_made() -> None:
    """Pages show keys that came, went and came back after the first page was read."""
    space = Space()
    space.call(put("pb"), put("pd"))
    assert pages(space, "p", 9) == [["pb", "pd"]]
    space.call(put("pa"), Delete("a", "pb"), put("pc", ttl=1))
    assert pages(space, "p", 9) == [["pa", "pc", "pd"]]
    space.now += 1
    space.apply(*expired(space.state(), ["pc"], space.now, space.version))
    space.call(put("pb"), put("pd"))
    assert pages(space, "p", 9) == [["pa", "pb", "pd"]]


def filled(rows: int, size: int = limits.KV_VALUE_BYTES) -> Space:
    space = Space()
    value = b'"' + b"x" * (size - 2) + b'"'
    for start in range(0, rows, 50):
        space.call(*(put(f"p{n:03}", value) for n in range(start, min(rows, start + 50))))
    return space


def test_a_page_ends_where_the_read_budget_does() -> None:
    """The row that goes past 4 MiB is still there, the next page goes on behind it."""
    fitting = limits.KV_READ_BYTES // 60_000 + 1
    space = filled(100, 60_000)
    (page,) = space.call(GetPrefix("a", "p", None, 1000))
    assert isinstance(page, GetPrefixResult)
    assert len(page.rows) == fitting
    assert page.truncated
    assert page.next_after == page.rows[-1].key
    assert sum(len(keys) for keys in pages(space, "p", 1000)) == 100


def test_cut_keys_of_get_many_are_in_neither_list() -> None:
    """Rows past the budget are not said to be missing; keys that are missing still are."""
    space = filled(70)
    (result,) = space.call(GetMany("a", ("zz", *(f"p{n:03}" for n in range(70)), "yy")))
    assert isinstance(result, GetManyResult)
    assert [row.key for row in result.rows] == [f"p{n:03}" for n in range(64)]
    assert result.missing == ("zz", "yy")
    assert result.truncated


def test_the_reads_of_a_call_share_one_budget() -> None:
    """In evaluation order: single gets first, which are never cut, then the others by their place."""
    space = filled(70)
    gets = [Get("a", f"p{n:03}") for n in range(66)]
    page, *rest, many = space.call(GetPrefix("a", "p", "p001", 5), *gets, GetMany("a", ("p001", "no")))
    assert all(isinstance(result, GetResult) and result.row is not None for result in rest)
    assert page == GetPrefixResult((), True, "p001", False)
    assert many == GetManyResult((), ("no",), True)
    page, many = space.call(GetPrefix("a", "p", None, 63), GetMany("a", ("p065", "p064", "p063")))
    assert isinstance(page, GetPrefixResult)
    assert isinstance(many, GetManyResult)
    assert len(page.rows) == 63
    assert [row.key for row in many.rows] == ["p063"]
    assert many.truncated


# Sweep and replay


def test_a_sweep_drops_what_is_over_and_nothing_else() -> None:
    """Only rows of the asked keys whose lifetime is over; the effect carries the counter as it stands."""
    space = Space()
    space.call(put("a", ttl=1), put("b", ttl=2), put("c"), put("d", ttl=1))
    space.now += 1
    swept = expired(space.state(), ["a", "b", "c", "a", "nothing"], space.now, space.version)
    assert swept == (KvDropped("a", "a", 24, True),)
    space.apply(*swept)
    assert sorted(key for _, key in space.rows()) == ["b", "c", "d"]
    assert len(space.state()) == 3
    assert expired(space.state(), ["a", "b", "c"], space.now, space.version) == ()


def test_replay_gives_the_same_rows() -> None:
    """The effects of every call, through the log's encoding, rebuild equal states; so does dropping them twice."""
    space = Space()
    space.call(put("x", ttl=5), put("y"), incr(3, key="n"), put("z", ns="b"))
    space.call(incr("0.5", key="n"), Delete("a", "y"), put("x", expect=99), put("w"))
    space.now += 6
    space.apply(*expired(space.state(), ["x", "w"], space.now, space.version))
    body = encode_entries([Entry(space.now, Counters(space.version), tuple(space.effects))])
    again = Space()
    for entry in decode_entries(body):
        again.apply(*entry.effects)
        again.apply(*(effect for effect in entry.effects if isinstance(effect, KvDropped)))
    assert again.rows() == space.rows()
    assert [(ns, len(state)) for ns, state in again.states.items()] == [("a", 2), ("b", 1)]


def test_lifetimes_are_those_of_the_rows_that_expire() -> None:
    """One (expires_at, key) for each row that is not for ever, as it was written last, swept or not."""
    space = Space()
    space.call(put("a", ttl=5), put("b", ttl=6), put("c"), put("d", ttl=1))
    space.call(put("a", ttl=9), put("b"))
    space.now += 3
    assert sorted(space.state().lifetimes()) == [(NOW + 1, "d"), (NOW + 9, "a")]

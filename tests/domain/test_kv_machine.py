"""KV against a model that is written from the wire's words alone and shares no code with it (I7, I8, I9).

`QUEEN_ACTORS_STEPS` is how many calls each driver makes: Hypothesis, which shrinks what it finds, and a seeded walk,
which is twenty times as fast and makes five times as many.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

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
    KvOp,
    KvResult,
    NamespaceState,
    Put,
    Row,
    WriteResult,
    decide,
    expired,
)

STEPS = int(os.environ.get("QUEEN_ACTORS_STEPS", "2000"))
Pick = Callable[[Sequence[Any]], Any]
SPACES, KEYS = ("a", "b"), ("k", "ka", "kb", "é", "😀")
VALUES = ("1", '"word"', "null", "-2.50", "99.5", "true")
LIFETIMES = (1, 3, 10, 100)


class Model:
    """The namespaces as the wire tells them: a row is a dict, and a refused call never happened."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], dict[str, Any]] = {}
        self.version = 0
        self.now = 1_000

    def call(self, ops: Sequence[KvOp]) -> list[Any]:
        """The answers in the order of the ops, or the one refusal."""
        rows, version = dict(self.rows), self.version
        answers: list[Any] = [None] * len(ops)
        single = [i for i, op in enumerate(ops) if not isinstance(op, GetMany | GetPrefix)]
        for i in sorted(single, key=lambda i: (ops[i].ns.encode(), ops[i].key.encode(), i)):
            answer = self.single(ops[i])
            answers[i] = answer
            if getattr(ops[i], "required", False) and not answer["applied"]:
                shown = self.live(ops[i].ns, ops[i].key) or {"version": 0, "value": "null"}
                self.rows, self.version = rows, version
                return [{"failed": i, "reason": answer["reason"], "version": shown["version"], "value": shown["value"]}]
        for i, op in enumerate(ops):
            if isinstance(op, GetMany):
                asked = list(dict.fromkeys(op.keys))
                found = sorted((key for key in asked if self.live(op.ns, key)), key=str.encode)
                rows_found = [self.shown(op.ns, key) for key in found]
                answers[i] = {"rows": rows_found, "missing": [k for k in asked if k not in found]}
            elif isinstance(op, GetPrefix):
                keys = [
                    key for ns, key in self.rows if ns == op.ns and key.startswith(op.prefix) and self.live(ns, key)
                ]
                keys = sorted(keys, key=str.encode)
                if op.after is not None:
                    keys = [key for key in keys if key.encode() > op.after.encode()]
                page, more = keys[: op.limit], len(keys) > op.limit
                answers[i] = {"rows": [self.shown(op.ns, k) for k in page], "next": page[-1] if more else None}
        return answers

    def live(self, ns: str, key: str) -> dict[str, Any] | None:
        row = self.rows.get((ns, key))
        if row is None:
            return None
        return row if row["expires"] is None or row["expires"] > self.now else None

    def shown(self, ns: str, key: str) -> tuple[Any, ...]:
        row = self.live(ns, key)
        assert row is not None
        return key, row["value"], row["version"], row["expires"], row["created"], row["updated"]

    def single(self, op: Any) -> Any:
        row = self.live(op.ns, op.key)
        if isinstance(op, Get):
            return None if row is None else self.shown(op.ns, op.key)
        reason = self.reason(op, row)
        if isinstance(op, Incr):
            return self.incr(op, row)
        current = {"value": row["value"], "version": row["version"]} if row else {"value": "null", "version": 0}
        if reason is not None:
            return {"applied": False, "reason": reason, **current}
        if isinstance(op, Check):
            return {"applied": True, "value": None, "version": op.expect}
        if isinstance(op, Delete):
            if row is not None:
                self.version += 1
                del self.rows[op.ns, op.key]
            return {"applied": True, **current}
        return self.write(op, row, op.value.decode(), None if op.ttl is None else self.now + op.ttl)

    def reason(self, op: Any, row: dict[str, Any] | None) -> str | None:
        expect = getattr(op, "expect", None)
        if isinstance(op, Delete) and expect is None and row is None:
            return "absent"
        if expect == 0 and row is not None:
            return "exists"
        if expect and row is None:
            return "absent"
        return "version" if expect and row is not None and row["version"] != expect else None

    def write(self, op: Any, row: dict[str, Any] | None, value: str, expires: int | None) -> dict[str, Any]:
        self.version += 1
        self.rows[op.ns, op.key] = {
            "value": value,
            "version": self.version,
            "expires": expires,
            "created": row["created"] if row else self.now,
            "updated": self.now,
        }
        return {"applied": True, "value": value, "version": self.version}

    def incr(self, op: Incr, row: dict[str, Any] | None) -> dict[str, Any]:
        version = row["version"] if row else 0
        if row and row["value"] in ('"word"', "null", "true"):
            return {"applied": False, "reason": "type", "value": "0", "version": version}
        total = Fraction(row["value"] if row else 0) + Fraction(op.delta)
        low, high = op.min, op.max
        if (low is not None and total < Fraction(low)) or (high is not None and total > Fraction(high)):
            return {"applied": False, "reason": "limit", "value": row["value"] if row else "0", "version": version}
        expires = row["expires"] if row else (None if op.ttl is None else self.now + op.ttl)
        return self.write(op, row, spelled(total), expires)


def spelled(number: Fraction) -> str:
    """A finite decimal without needless zeros."""
    places = 0
    while (number * 10**places).denominator != 1:
        places += 1
    digits = str(abs(int(number * 10**places))).rjust(places + 1, "0")
    whole, fraction = (digits[:-places], digits[-places:]) if places else (digits, "")
    return ("-" if number < 0 else "") + whole + ("." + fraction if fraction else "")


class Pair:
    """The rules and the model side by side; every call is made to both and must come to the same."""

    def __init__(self) -> None:
        self.model = Model()
        self.states = {ns: NamespaceState(ns) for ns in SPACES}
        self.version = 0
        self.log: list[KvPut | KvDropped] = []
        self.highest: dict[tuple[str, str], int] = {}

    def call(self, ops: Sequence[KvOp]) -> None:
        before, now = self.rows(), self.model.now
        decision = decide(ops, self.states.__getitem__, now, self.version)
        assert self.rows() == before
        answers = self.model.call(ops)
        if decision.precondition is not None:
            lost = decision.precondition
            told = {"failed": lost.failed_index, "reason": lost.reason, "version": lost.version}
            assert [{**told, "value": lost.value.decode()}] == answers
            assert (decision.results, decision.effects, decision.versions) == ((), (), 0)
        else:
            assert [plain(result) for result in decision.results] == answers
        self.take(decision.effects)
        self.version += decision.versions
        assert self.version == self.model.version

    def take(self, effects: Sequence[KvPut | KvDropped]) -> None:
        for effect in effects:
            self.states[effect.ns].apply(effect)
            self.log.append(effect)
            place = (effect.ns, effect.key)
            if isinstance(effect, KvPut) or not effect.expired:
                assert effect.version > self.highest.get(place, 0), "a key's version rises with every change (I8)"
            self.highest[place] = effect.version

    def pass_time(self, by: int) -> None:
        self.model.now += by

    def sweep(self, keys: Sequence[str]) -> None:
        """Sweeping is never seen."""
        for state in self.states.values():
            self.take(expired(state, keys, self.model.now, self.version))

    def rebuild(self) -> None:
        """Replay is identity (I14)."""
        body = encode_entries([Entry(self.model.now, Counters(self.version), tuple(self.log))])
        before = self.rows()
        self.states = {ns: NamespaceState(ns) for ns in SPACES}
        for effect in decode_entries(body)[0].effects:
            assert isinstance(effect, KvPut | KvDropped)
            self.states[effect.ns].apply(effect)
        assert self.rows() == before
        self.log = [  # a snapshot, for the next one
            KvPut(ns, key, row.value, row.version, row.expires_at, row.created_at, row.updated_at)
            for (ns, key), row in before.items()
        ]

    def rows(self) -> dict[tuple[str, str], Row]:
        found = ((ns, key, state.row(key)) for ns, state in self.states.items() for key in KEYS)
        return {(ns, key): row for ns, key, row in found if row is not None}

    def compare(self) -> None:
        now = self.model.now
        for ns in SPACES:
            for key in KEYS:
                row = self.states[ns].live(key, now)
                assert (row is None) == (self.model.live(ns, key) is None)
                if row is not None:
                    assert row_of(key, row) == self.model.shown(ns, key)
                    assert row.expires_at is None or row.expires_at > now, "an expired key is never returned (I9)"


def row_of(key: str, row: Row) -> tuple[Any, ...]:
    return key, row.value.decode(), row.version, row.expires_at, row.created_at, row.updated_at


def plain(result: KvResult) -> Any:
    """An answer in the model's spelling."""
    if isinstance(result, GetResult):
        return None if result.row is None else row_of(result.key, result.row)
    if isinstance(result, GetManyResult):
        assert not result.truncated
        return {"rows": [row_of(r.key, r.row) for r in result.rows], "missing": list(result.missing)}
    if isinstance(result, GetPrefixResult):
        assert result.truncated == (result.next_after is not None)
        return {"rows": [row_of(r.key, r.row) for r in result.rows], "next": result.next_after}
    assert isinstance(result, WriteResult)
    told: dict[str, Any] = {"applied": result.applied}
    if result.reason is not None:
        told["reason"] = result.reason
    return {**told, "value": None if result.value is None else result.value.decode(), "version": result.version}


def an_op(pick: Pick, pair: Pair) -> KvOp:
    ns, key = pick(SPACES), pick(KEYS)
    row = pair.states[ns].row(key)
    expect = pick((None, None, 0, 1, row.version if row else 2))
    ttl, required = pick((None, *LIFETIMES)), pick((False, False, False, True))
    match pick(("get", "many", "prefix", "put", "absent", "delete", "incr", "incr", "check")):
        case "get":
            return Get(ns, key)
        case "many":
            return GetMany(ns, tuple(pick(KEYS) for _ in range(pick((0, 1, 3)))))
        case "prefix":
            return GetPrefix(ns, pick(("k", "ka", "😀")), pick((None, *KEYS)), pick((1, 2, 9)), pick((False, True)))
        case "put":
            return Put(ns, key, pick(VALUES).encode(), ttl, expect, required)
        case "absent":
            return Put(ns, key, pick(VALUES).encode(), ttl, 0, required, if_absent=True)
        case "delete":
            return Delete(ns, key, expect, required)
        case "check":
            return Check(ns, key, expect or 0, required)
    low, high = pick((None, None, Decimal(-2), Decimal(0))), pick((None, Decimal(3), Decimal("3.5")))
    return Incr(ns, key, Decimal(pick(("1", "-1", "0", "0.1", "1e2", "-0.25"))), ttl, low, high, required)


def a_call(pick: Pick, pair: Pair) -> list[KvOp]:
    """Ops as the wire lets them through: no key is written or checked twice."""
    ops: list[KvOp] = []
    changed: set[tuple[str, str]] = set()
    for _ in range(pick((1, 1, 1, 2, 3, 6))):
        op = an_op(pick, pair)
        if isinstance(op, Put | Delete | Incr | Check):
            if (op.ns, op.key) in changed:
                continue
            changed.add((op.ns, op.key))
        ops.append(op)
    return ops


class KvMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair()

    @rule(data=st.data())
    def call(self, data: st.DataObject) -> None:
        self.pair.call(a_call(lambda options: data.draw(st.sampled_from(options)), self.pair))

    @rule(by=st.sampled_from(LIFETIMES))
    def pass_time(self, by: int) -> None:
        self.pair.pass_time(by)

    @rule(keys=st.lists(st.sampled_from(KEYS)))
    def sweep(self, keys: list[str]) -> None:
        self.pair.sweep(keys)

    @rule()
    def rebuild(self) -> None:
        self.pair.rebuild()

    @invariant()
    def same(self) -> None:
        self.pair.compare()


TestKvMachine = KvMachine.TestCase
TestKvMachine.settings = settings(
    max_examples=max(1, STEPS // 50),
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


@pytest.mark.parametrize("seed", range(5))
def test_a_seeded_walk(seed: int) -> None:
    """Thousands of calls in one life of the namespaces, with time, sweeps and restarts between them."""
    source = random.Random(seed)
    pair = Pair()
    for step in range(STEPS):
        pair.call(a_call(source.choice, pair))
        if source.random() < 0.3:
            pair.pass_time(source.choice(LIFETIMES))
        if source.random() < 0.1:
            pair.sweep(source.sample(KEYS, 2))
        pair.compare()
        if step % 500 == 499:
            pair.rebuild()

"""KV against a model that is written from the wire's words alone and shares no code with it (I7, I8, I9)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any

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

Pick = Callable[[Sequence[Any]], Any]
SOMETIMES, SELDOM = (True,) * 3 + (False,) * 7, (True,) + (False,) * 9
SPACES, KEYS = ("a", "b"), ("k", "ka", "kb", "é", "😀")
VALUES = (b"1", b'"word"', b"null", b"-2.50", b"99.5", b"true")
DELTAS = tuple(map(Decimal, ("1", "-1", "0", "0.1", "1e2", "-0.25")))
LOWS = (None, None, Decimal(-2), Decimal(0))
HIGHS = (None, Decimal(3), Decimal("3.5"))
RANGES = (GetMany, GetPrefix)
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
        single = [i for i, op in enumerate(ops) if not isinstance(op, RANGES)]
        if len(single) > 1:
            single.sort(key=lambda i: (ops[i].ns.encode(), ops[i].key.encode(), i))
        for i in single:
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
        total = exact(row["value"] if row else "0") + exact(op.delta)
        low, high = op.min, op.max
        if (low is not None and total < exact(low)) or (high is not None and total > exact(high)):
            return {"applied": False, "reason": "limit", "value": row["value"] if row else "0", "version": version}
        expires = row["expires"] if row else (None if op.ttl is None else self.now + op.ttl)
        return self.write(op, row, spelled(total), expires)


@lru_cache(4096)
def exact(number: str | Decimal) -> Fraction:
    return Fraction(number)


@lru_cache(4096)
def spelled(number: Fraction) -> str:
    """A finite decimal without needless zeros."""
    places = 0
    while (number * 10**places).denominator != 1:
        places += 1
    digits = str(abs(int(number * 10**places))).rjust(places + 1, "0")
    whole, fraction = (digits[:-places], digits[-places:]) if places else (digits, "")
    return ("-" if number < 0 else "") + whole + ("." + fraction if fraction else "")


class Pair:
    """The rules and the model side by side; every call is made to both and must come to the same.

    `whole`: whether each decision is also seen to have changed nothing. `asked` is what the latest step was.
    """

    every = 20
    """After how many steps of a walk the whole state is compared."""

    def __init__(self) -> None:
        self.whole = True
        self.asked: list[Any] = []
        self.model = Model()
        self.states = {ns: NamespaceState(ns) for ns in SPACES}
        self.version = 0
        self.log: list[KvPut | KvDropped] = []
        self.highest: dict[tuple[str, str], int] = {}

    def step(self, pick: Pick) -> None:
        """One step of a walk: a call, and perhaps time or a sweep after it."""
        self.asked = []
        self.call(a_call(pick, self))
        if pick(SOMETIMES):
            self.pass_time(pick(LIFETIMES))
        if pick(SELDOM):
            self.sweep((pick(KEYS), pick(KEYS)))

    def call(self, ops: Sequence[KvOp]) -> None:
        self.asked.append(ops)
        now = self.model.now
        before = self.rows() if self.whole else None
        decision = decide(ops, self.states.__getitem__, now, self.version)
        assert before is None or self.rows() == before, "a decision changes nothing"
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
        self.asked.append(f"{by} us pass")
        self.model.now += by

    def sweep(self, keys: Sequence[str]) -> None:
        """Sweeping is never seen."""
        self.asked.append(f"sweep {keys}")
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
            return Put(ns, key, pick(VALUES), ttl, expect, required)
        case "absent":
            return Put(ns, key, pick(VALUES), ttl, 0, required, if_absent=True)
        case "delete":
            return Delete(ns, key, expect, required)
        case "check":
            return Check(ns, key, expect or 0, required)
    return Incr(ns, key, pick(DELTAS), ttl, pick(LOWS), pick(HIGHS), required)


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

"""A lock against a model that is written from the wire's words alone and shares no code with it (I5, I6).

The operator's tool is in it too: `kv.put` and `kv.delete` of a permit's row.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from queen_actors.domain import kv
from queen_actors.domain.effects import Counters, Entry, KvDropped, KvPut, decode_entries, encode_entries
from queen_actors.domain.kv import NamespaceState, Row
from queen_actors.domain.locks import (
    Acquire,
    GetLock,
    Holder,
    LockResult,
    LockState,
    Release,
    Renew,
    decide,
    expired,
)
from queen_actors.values import LOCKS_NAMESPACE

from .kv import SELDOM, SOMETIMES, Pick

START = 1_700_000_000_000_000
OWNERS = (None, "a", "b", "c")
LIFETIMES = (1, 4, 20, 200)
LIMITS = (1, 1, 2, 4)
RARELY = (True,) + (False,) * 19
SLOTS = range(5)


def spelled(at: int) -> str:
    """An instant as KV spells it."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at)
    text = moment.strftime("%Y-%m-%dT%H:%M:%S")
    fraction = f".{moment.microsecond:06}".rstrip("0") if moment.microsecond else ""
    return f"{text}{fraction}+00:00"


class Model:
    """The permits of one lock as the wire tells them: a list of those that are held now."""

    def __init__(self) -> None:
        self.now = START
        self.version = 1
        self.permits: list[dict[str, Any]] = []

    def held(self) -> list[dict[str, Any]]:
        live = [p for p in self.permits if p["expires"] is None or p["expires"] > self.now]
        return sorted(live, key=lambda permit: permit["slot"])

    def at(self, slot: int) -> dict[str, Any] | None:
        return next((permit for permit in self.held() if permit["slot"] == slot), None)

    def place(self, slot: int, **fields: Any) -> int:
        self.version += 1
        self.permits = [permit for permit in self.permits if permit["slot"] != slot]
        self.permits.append({"slot": slot, "token": self.version, **fields})
        return self.version

    def acquire(self, owner: str | None, ttl: int, limit: int, granted: int) -> dict[str, Any]:
        """`granted`: the slot that the rules chose, if they granted one."""
        seen = [permit for permit in self.held() if permit["slot"] < limit]
        mine = [permit for permit in seen if owner is not None and permit["owner"] == owner]
        if mine:
            return {"slot": mine[0]["slot"], "token": mine[0]["token"], "already": True, "expires": mine[0]["expires"]}
        if len(seen) == limit:
            return {"reason": "held", "holders": seen}
        assert granted in range(limit), "only a slot below the limit is granted"
        assert self.at(granted) is None, "only a free slot is granted"
        expires = self.now + ttl
        value = {"owner": owner}
        fields = {"owner": owner, "since": self.now, "renewed": self.now, "expires": expires, "value": value}
        return {"slot": granted, "token": self.place(granted, **fields), "already": False, "expires": expires}

    def renew(self, token: int, ttl: int, slot: int, owner: str | None) -> dict[str, Any]:
        permit = self.at(slot)
        if permit is None:
            return {"reason": "lost", "holders": []}
        if permit["token"] != token and (owner is None or permit["owner"] != owner):
            return {"reason": "lost", "holders": [permit]}
        value = {"owner": permit["owner"], "since": spelled(permit["since"])}
        changed = {"expires": self.now + ttl, "renewed": self.now, "value": value}
        fields = {name: permit[name] for name in ("owner", "since")} | changed
        return {"slot": slot, "token": self.place(slot, **fields), "expires": self.now + ttl}

    def release(self, token: int, slot: int) -> dict[str, Any]:
        permit = self.at(slot)
        if permit is None or permit["token"] != token:
            return {"reason": "lost", "holders": [] if permit is None else [permit]}
        self.version += 1
        self.permits.remove(permit)
        return {"slot": slot}

    def put(self, slot: int, value: Any, ttl: int | None) -> None:
        owner = value.get("owner") if isinstance(value, dict) else None
        expires = None if ttl is None else self.now + ttl
        self.place(slot, owner=owner, since=self.now, renewed=self.now, expires=expires, value=value)

    def delete(self, slot: int) -> None:
        permit = self.at(slot)
        if permit is not None:
            self.version += 1
            self.permits.remove(permit)


class Pair:
    """The rules and the model side by side; every operation is given to both and must come to the same.

    `whole`: whether each decision is also seen to have changed nothing. `asked` is what the latest step was.
    """

    every = 20
    """After how many steps of a walk the whole state is compared."""

    def __init__(self) -> None:
        self.whole = True
        self.asked: list[Any] = []
        self.model = Model()
        self.state = LockState("job")
        self.rows = NamespaceState(LOCKS_NAMESPACE)
        self.version = 1
        self.log: list[KvPut | KvDropped] = []
        self.tokens = [1]  # that number went to something else
        self.highest = 1

    def step(self, pick: Pick) -> None:
        """One step of a walk: an operation, and perhaps time, a sweep or an operator after it."""
        self.asked = []
        self.lock(a_lock_op(pick, self), pick)
        if pick(SOMETIMES):
            self.pass_time(pick(LIFETIMES))
        if pick(SELDOM):
            self.sweep()
        if pick(RARELY):
            self.operator(an_operators_op(pick))

    def lock(self, op: Acquire | Renew | Release | GetLock, pick: Pick) -> None:
        self.asked.append(op)
        before = dict(self.state.slots) if self.whole else None
        decision = decide(op, self.state, self.model.now, self.version, lambda below: pick(range(below)))
        assert before is None or self.state.slots == before, "a decision changes nothing"
        result = decision.result
        told: dict[str, Any]
        match op:
            case Acquire():
                told = self.model.acquire(op.owner, op.ttl, op.limit, result.slot if result.ok else -1)
            case Renew():
                told = self.model.renew(op.token, op.ttl, op.slot, op.owner)
            case Release():
                told = self.model.release(op.token, op.slot)
            case GetLock():
                holders = self.model.held()
                told = {"holders": holders} if holders else {"holders": [], "free": True}
        assert plain(result) == {**told, "holders": [holder_of(p) for p in told.get("holders", [])]}
        self.take(decision.effects)
        self.version += decision.versions
        granted = [effect for effect in decision.effects if isinstance(effect, KvPut)]
        if granted:
            assert result.token == granted[0].version
            assert result.token > self.highest, "a token is higher than every one before it (I6)"
            self.highest = result.token
            self.tokens.append(result.token)

    def operator(self, op: kv.Put | kv.Delete) -> None:
        """A KV write of a permit's row."""
        self.asked.append(op)
        decision = kv.decide([op], lambda _: self.rows, self.model.now, self.version)
        self.take(decision.effects)
        self.version += decision.versions
        slot = int(op.key.partition("#")[2])
        if isinstance(op, kv.Put):
            self.model.put(slot, json.loads(op.value), op.ttl)
        else:
            self.model.delete(slot)

    def take(self, effects: Sequence[KvPut | KvDropped]) -> None:
        for effect in effects:
            self.state.apply(effect)
            self.rows.apply(effect)
            self.log.append(effect)

    def pass_time(self, by: int) -> None:
        self.asked.append(f"{by} us pass")
        self.model.now += by

    def sweep(self) -> None:
        self.asked.append("sweep")
        self.take(expired(self.state, self.model.now, self.version))

    def rebuild(self) -> None:
        """Replay is identity (I14), so a token never falls over a restart."""
        body = encode_entries([Entry(self.model.now, Counters(self.version), tuple(self.log))])
        before, self.state = self.state.slots, LockState("job")
        for effect in decode_entries(body)[0].effects:
            assert isinstance(effect, KvPut | KvDropped)
            self.state.apply(effect)
        assert self.state.slots == before
        self.log = [  # a snapshot, for the next one
            KvPut(LOCKS_NAMESPACE, f"job#{slot}", p.value, p.version, p.expires_at, p.created_at, p.updated_at)
            for slot, p in before.items()
        ]

    def compare(self) -> None:
        assert self.version == self.model.version
        held = self.model.held()
        assert [plain_holder(h) for h in self.state.holders(self.model.now)] == [holder_of(p) for p in held]
        assert len({permit["token"] for permit in held}) == len(held)
        for slot in SLOTS:
            row = self.rows.live(f"job#{slot}", self.model.now)
            assert row == self.state.live(slot, self.model.now), "a permit is its KV row"
            permit = self.model.at(slot)
            assert (permit is None) == (row is None)
            if row is not None and permit is not None:
                self.compare_row(row, permit)
            for token in self.tokens[-4:]:
                guard = kv.Check(LOCKS_NAMESPACE, f"job#{slot}", token, required=True)
                lost = kv.decide([guard], lambda _: self.rows, self.model.now, self.version).precondition
                still = permit is not None and permit["token"] == token
                assert (lost is None) == still, "a guard holds exactly while its token is the permit's (I5)"

    def compare_row(self, row: Row, permit: dict[str, Any]) -> None:
        assert json.loads(row.value) == permit["value"]
        assert (row.version, row.expires_at, row.updated_at) == (permit["token"], permit["expires"], permit["renewed"])


def holder_of(permit: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(permit[name] for name in ("slot", "owner", "token", "since", "expires", "renewed"))


def plain_holder(holder: Holder) -> tuple[Any, ...]:
    return holder.slot, holder.owner, holder.token, holder.since, holder.expires_at, holder.renewed_at


def plain(result: LockResult) -> dict[str, Any]:
    """An answer in the model's spelling."""
    holders = {"holders": [plain_holder(holder) for holder in result.holders]}
    if result.reason is not None:
        assert not result.ok
        return {"reason": result.reason, **holders}
    match result.op:
        case "get":
            assert result.ok == bool(result.holders)
            return holders if result.ok else {**holders, "free": True}
        case "release":
            return {"slot": result.slot, **holders}
        case "renew":
            return {"slot": result.slot, "token": result.token, "expires": result.expires_at, **holders}
    granted = {"slot": result.slot, "token": result.token, "already": result.already}
    return {**granted, "expires": result.expires_at, **holders}


def a_lock_op(pick: Pick, pair: Pair) -> Acquire | Renew | Release | GetLock:
    tokens = [permit["token"] for permit in pair.model.permits] + [pair.tokens[len(pair.tokens) // 2]]
    match pick(("acquire", "acquire", "renew", "renew", "release", "get")):
        case "acquire":
            return Acquire("job", pick(LIFETIMES), pick(OWNERS), pick(LIMITS))
        case "renew":
            return Renew("job", pick(tokens), pick(LIFETIMES), pick(SLOTS), pick(OWNERS))
        case "release":
            return Release("job", pick(tokens), pick(SLOTS))
    return GetLock("job")


def an_operators_op(pick: Pick) -> kv.Put | kv.Delete:
    key = f"job#{pick(SLOTS)}"
    value = pick((b'{"owner":"a"}', b"null", b'"a"', b'{"owner":null,"note":1}'))
    ttl = pick((None, *LIFETIMES))
    return pick((kv.Put(LOCKS_NAMESPACE, key, value, ttl), kv.Delete(LOCKS_NAMESPACE, key)))

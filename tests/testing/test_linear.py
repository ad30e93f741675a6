"""The linearizability checker, judged: good histories pass, planted faults do not, and what it cannot judge it says."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pytest
from linear_plants import BAD, GOOD, get, lost

from queen_actors.testing.linear import Operation, Report, check, judge
from queen_actors.testing.models import (
    Acquire,
    Answer,
    Delete,
    Get,
    Guard,
    Holders,
    Increment,
    KeyModel,
    LockModel,
    Put,
    Release,
    Renew,
    Verdicts,
)

MODELS = {"key": KeyModel(), "lock": LockModel()}


def _judge(operations: Sequence[Operation]) -> Report:
    return judge(operations, MODELS)


@pytest.mark.parametrize("name", GOOD)
def test_what_can_be_explained_passes(name: str) -> None:
    """Each of these has an order in which every answer is right."""
    assert _judge(GOOD[name]).failures == []


@pytest.mark.parametrize("name", BAD)
def test_a_planted_fault_is_found(name: str) -> None:
    """None of these has: it is a violation, and the sentence says where it ends."""
    (verdict,) = _judge(BAD[name]).verdicts
    assert verdict.outcome == "violation"
    assert "is not linearizable" in _judge(BAD[name]).failures[0]


def test_what_cannot_be_judged_is_no_pass() -> None:
    """Twenty lost increments and a sum that no choice of them makes: within a small budget it is undecided."""
    operations = [lost(0, Increment(Decimal(2**number))) for number in range(20)]
    operations.append(get(1, 2, b"0.5", 99))
    verdict = check(operations, KeyModel(), budget=500)
    assert (verdict.outcome, verdict.explored) == ("undecided", 500)
    assert "is undecided" in judge(operations, MODELS, budget=500).failures[0]


def test_keys_are_judged_each_for_itself() -> None:
    """A fault of one key is told with its name, and the others pass."""
    fault = [Operation(("key", "bad"), o.start, o.end, o.steps, o.known) for o in BAD["a stale read"]]
    report = _judge([*GOOD["one after the other"], *fault])
    assert [(verdict.key[1], verdict.outcome) for verdict in report.verdicts] == [
        ("bad", "violation"),
        ("k", "linearizable"),
    ]
    assert report.operations == 7


def test_nothing_to_judge_is_no_pass() -> None:
    """An empty history is not said to be good."""
    with pytest.raises(ValueError, match="at least one"):
        check([], KeyModel())


class Sequential:
    """A key and a lock that do one thing at a time at a known instant: what makes good histories."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.row: tuple[bytes, int, float] | None = None
        self.permits: dict[int, tuple[int, str, float]] = {}
        self.tokens: list[tuple[int, int]] = [(0, 1)]
        self.version = 0

    def next(self) -> int:
        self.version += self.chance.randint(1, 3)
        return self.version

    def key(self, step: Any, now: float) -> Answer:
        row = None if self.row is not None and self.row[2] <= now else self.row
        if isinstance(step, Get):
            return Answer(False) if row is None else Answer(True, row[0], row[1])
        if isinstance(step, Increment):
            value, _, ends = row or (b"0", 0, now + step.ttl)
            if not value.isdigit():
                return Answer(False, b"0", row[1] if row else 0, "type")
            total = Decimal(value.decode()) + step.delta
            if not step.low <= total <= step.high:
                return Answer(False, value, row[1] if row else 0, "limit")
            self.row = (str(total).encode(), self.next(), ends)
            return Answer(True, *self.row[:2])
        version = 0 if row is None else row[1]
        if step.expect is not None and version != step.expect:
            reason = "absent" if row is None else "exists" if step.expect == 0 else "version"
            return Answer(False, row and row[0], version, reason)
        if isinstance(step, Delete):
            if row is None and step.expect is None:
                return Answer(False, None, 0, "absent")
            self.row = None
            self.next()
            return Answer(True, row and row[0], version)
        self.row = (step.value, self.next(), now + step.ttl)
        return Answer(True, *self.row[:2])

    def lock(self, step: Any, now: float) -> Verdicts:
        self.permits = {slot: permit for slot, permit in self.permits.items() if permit[2] > now}
        told = tuple((slot, owner, token) for slot, (token, owner, _) in sorted(self.permits.items()))
        if isinstance(step, Holders):
            return Verdicts(bool(told), holders=told)
        if isinstance(step, Acquire):
            for slot, owner, token in told:
                if owner == step.owner:
                    return Verdicts(True, slot, token, already=True)
            if len(told) >= step.limit:
                return Verdicts(False, holders=tuple((slot, owner, 0) for slot, owner, _ in told))
            slot = self.chance.choice([slot for slot in range(step.limit) if slot not in self.permits])
            return self._grant(slot, str(step.owner), now + step.ttl)
        held = self.permits.get(step.slot)
        owned = isinstance(step, Renew) and held is not None and held[1] == step.owner
        if held is None or (held[0] != step.token and not owned):
            return Verdicts(False)
        if isinstance(step, Renew):
            return self._grant(step.slot, held[1], now + step.ttl)
        if isinstance(step, Release):
            del self.permits[step.slot]
        return Verdicts(True)

    def _grant(self, slot: int, owner: str, ends: float) -> Verdicts:
        token = self.next()
        self.permits[slot] = (token, owner, ends)
        self.tokens.append((slot, token))
        return Verdicts(True, slot, token)

    def key_step(self) -> Any:
        chance = self.chance
        ttl = chance.choice((math.inf, math.inf, 4.0, 12.0))
        expect = chance.choice((None, None, 0, self.row[1] if self.row else 3))
        return chance.choice(
            (
                Get(),
                Get(),
                Put(str(chance.randrange(1000)).encode(), ttl, expect),
                Put(b"text", ttl, expect),
                Delete(expect or None),
                Increment(Decimal(chance.choice((1, 5, 40))), ttl, Decimal(0), Decimal(60)),
            )
        )

    def lock_step(self) -> Any:
        chance = self.chance
        slot, token = chance.choice(self.tokens[-4:])
        ttl, owner = chance.choice((3.0, 20.0)), chance.choice("abcd")
        return chance.choice(
            (
                Acquire(ttl, owner, 3),
                Acquire(ttl, owner, 3),
                Renew(slot, token, ttl, chance.choice((None, owner))),
                Release(slot, token),
                Guard(slot, token),
                Holders(),
            )
        )


def _history(seed: int, kind: str, length: int, lost_share: float = 0.1) -> list[Operation]:
    """A good history: every operation has its instant somewhere between its start and its end; of some the answer is
    lost, and of those some have no effect at all."""
    chance = random.Random(seed)
    world = Sequential(chance)
    does: Callable[[Any, float], Any] = world.key if kind == "key" else world.lock
    found: list[Operation] = []
    now = 0.0
    for _ in range(length):
        now += chance.random()
        step = world.key_step() if kind == "key" else world.lock_step()
        start, end = now - 2 * chance.random(), now + 2 * chance.random()
        if chance.random() < lost_share:
            end = chance.choice((end, math.inf))
            if chance.random() < 0.5:
                does(step, now)
            if not isinstance(step, Get | Guard | Holders):
                found.append(Operation((kind, "k"), start, end, ((step, None),), known=False))
        else:
            found.append(Operation((kind, "k"), start, end, ((step, does(step, now)),)))
    chance.shuffle(found)
    return found


@pytest.mark.parametrize(("kind", "histories"), [("key", 400), ("lock", 150)])
def test_random_good_histories_pass(kind: str, histories: int) -> None:
    """Histories of 40 operations from a model that does one thing at a time, their answers lost here and there."""
    for seed in range(histories):
        (verdict,) = _judge(_history(seed, kind, 40)).verdicts
        assert verdict.outcome == "linearizable", (seed, verdict)


def _tampered(operation: Operation, chance: random.Random) -> Operation | None:
    """The same with an answer that nobody can have got."""
    step, answer = operation.steps[0]
    if isinstance(answer, Answer) and answer.version:
        changed: Any = answer._replace(version=answer.version + 1_000_000 * chance.choice((-1, 1)))
    elif isinstance(answer, Verdicts) and answer.token:
        changed = answer._replace(token=-answer.token)
    else:
        return None
    if isinstance(step, Put | Increment) and answer.ok:
        changed = changed._replace(version=-1)
    return Operation(operation.key, operation.start, operation.end, ((step, changed),))


@pytest.mark.parametrize("kind", MODELS)
def test_one_wrong_number_in_a_good_history_is_found(kind: str) -> None:
    """In 200 good histories one answer's version is made one that cannot be: every time it is a violation."""
    found = 0
    for seed in range(200):
        operations = _history(seed, kind, 30, lost_share=0)
        chance = random.Random(seed)
        places = list(range(len(operations)))
        chance.shuffle(places)
        for place in places:
            changed = _tampered(operations[place], chance)
            if changed is not None:
                operations[place] = changed
                (verdict,) = _judge(operations).verdicts
                assert verdict.outcome == "violation", (seed, changed)
                found += 1
                break
    assert found == 200


def test_a_thousand_operations_are_judged_with_little_search() -> None:
    """A long history with many lost answers costs a few configurations for each operation."""
    (verdict,) = _judge(_history(7, "key", 2000, lost_share=0.02)).verdicts
    assert verdict.outcome == "linearizable"
    assert verdict.explored < 20_000

"""Timers against a model that is written from the wire's words alone and shares no code with it (I10).

`QUEEN_ACTORS_STEPS` as in `test_kv_machine.py`.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from queen_actors.domain.effects import Counters, Entry, TimerDropped, TimerPut, decode_entries, encode_entries
from queen_actors.domain.timers import Cancel, Schedule, TimerOp, TimersState, decide, due_order, failed
from queen_actors.errors import Forbidden

STEPS = int(os.environ.get("QUEEN_ACTORS_STEPS", "2000"))
Pick = Callable[[Sequence[Any]], Any]
QUEUES, KEYS = ("q", "p"), ("k", "k/1", "kk", "Z", "é", "😀")
SECOND, HORIZON = 1_000_000, 1_000_000_000
DELAYS = (-7, 0, 1, 300, SECOND, 5 * SECOND, HORIZON)
TXNS = ("t1", "faca597c-5e82-4d53-acbf-896d11e4e941")


class Model:
    """The timers as the wire tells them, and what became of every message that was ever promised."""

    def __init__(self) -> None:
        self.now = 1_000
        self.timers: list[dict[str, Any]] = []
        self.fate: dict[str, str] = {}

    def find(self, queue: str, key: str) -> dict[str, Any] | None:
        return next((t for t in self.timers if (t["queue"], t["key"]) == (queue, key)), None)

    def end(self, timer: dict[str, Any], fate: str) -> None:
        assert self.fate[timer["id"]] == "pending"
        self.fate[timer["id"]] = fate
        self.timers.remove(timer)

    def schedule(self, op: Schedule, message_id: str, producer: str | None) -> dict[str, Any]:
        assert message_id not in self.fate, "no message id is promised twice"
        old = self.find(op.queue, op.key)
        if old is not None:
            self.end(old, "replaced")
        due = self.now + op.delay if op.delay > 0 else self.now
        fields = {"queue": op.queue, "key": op.key, "partition": op.partition, "due": due, "txn": op.txn}
        payload = {"payload": op.payload, "encrypted": op.encrypted, "producer": producer}
        times = {"attempts": 0, "error": None, "created": old["created"] if old else self.now, "updated": self.now}
        self.timers.append({**fields, **payload, **times, "id": message_id})
        self.fate[message_id] = "pending"
        status = "rescheduled" if old else "scheduled"
        return {"status": status, "txn": op.txn, "id": message_id, "due": due}

    def cancel(self, op: Cancel) -> dict[str, Any]:
        timer = self.find(op.queue, op.key)
        if timer is None:
            return {"status": "absent", "txn": op.txn, "id": None, "due": None}
        self.end(timer, "cancelled")
        return {"status": "cancelled", "txn": timer["txn"], "id": None, "due": None}

    def fail(self, timer: dict[str, Any]) -> bool:
        """One more failed attempt; whether it was the last."""
        if timer["attempts"] == 4:
            self.end(timer, "dead-lettered")
            return True
        wait = [1, 2, 4, 8][timer["attempts"]] * SECOND
        timer.update(due=self.now + wait, attempts=timer["attempts"] + 1, error="full", updated=self.now)
        return False


class Pair:
    """The rules and the model side by side; every call is made to both and must come to the same."""

    def __init__(self) -> None:
        self.model = Model()
        self.states = {queue: TimersState(queue) for queue in QUEUES}
        self.log: list[TimerPut | TimerDropped] = []
        self.minted: list[str] = []

    def new_id(self) -> str:
        self.minted.append(f"0190b6a0-0000-7000-8000-{len(self.minted):012x}")
        return self.minted[-1]

    def call(self, ops: Sequence[TimerOp], producer: str | None) -> None:
        before, minted = self.pending(), len(self.minted)
        try:
            decision = decide(ops, self.states.__getitem__, self.model.now, self.new_id, producer, HORIZON)
        except Forbidden:
            assert any(isinstance(op, Schedule) and op.delay > HORIZON for op in ops)
            assert self.pending() == before
            assert len(self.minted) == minted
            return
        assert not any(isinstance(op, Schedule) and op.delay > HORIZON for op in ops)
        assert self.pending() == before
        for op, result in zip(ops, decision.results, strict=True):
            if isinstance(op, Schedule):
                assert result.message_id is not None
                told = self.model.schedule(op, result.message_id, producer)
            else:
                told = self.model.cancel(op)
            answer = {"status": result.status, "txn": result.txn, "id": result.message_id, "due": result.deliver_at}
            assert answer == told
            assert (result.queue, result.key, result.ok) == (op.queue, op.key, told["status"] != "absent")
        self.take(decision.effects)

    def take(self, effects: Sequence[TimerPut | TimerDropped]) -> None:
        for effect in effects:
            self.states[effect.queue].apply(effect)
            self.log.append(effect)

    def fire(self, limit: int, failing: bool) -> None:
        """The first `limit` of what is due, in order, each delivered or failed once more."""
        now = self.model.now
        due = sorted((timer for timer in self.pending().values() if timer.due <= now), key=due_order)[:limit]
        order = sorted(
            (t for t in self.model.timers if t["due"] <= now), key=lambda t: (t["due"], t["queue"], t["key"])
        )
        assert [timer.message_id for timer in due] == [t["id"] for t in order[:limit]]
        for timer, told in zip(due, order[:limit], strict=True):
            again = failed(timer, "full", now) if failing else None
            if failing:
                assert self.model.fail(told) == (again is None)
            else:
                self.model.end(told, "fired")
            self.take([TimerDropped(timer.queue, timer.key, True) if again is None else again])

    def rebuild(self) -> None:
        """Replay is identity (I14): what is pending survives a restart, what ended stays ended."""
        body = encode_entries([Entry(self.model.now, Counters(), tuple(self.log))])
        before = self.pending()
        self.states = {queue: TimersState(queue) for queue in QUEUES}
        for effect in decode_entries(body)[0].effects:
            assert isinstance(effect, TimerPut | TimerDropped)
            self.states[effect.queue].apply(effect)
        assert self.pending() == before
        self.log = list(before.values())  # a snapshot, for the next one

    def pending(self) -> dict[tuple[str, str], TimerPut]:
        found = (self.states[queue].get(key) for queue in QUEUES for key in KEYS)
        return {(timer.queue, timer.key): timer for timer in found if timer is not None}

    def compare(self) -> None:
        pending = self.pending()
        assert [plain(timer) for _, timer in sorted(pending.items())] == sorted(
            self.model.timers, key=lambda timer: (timer["queue"], timer["key"])
        )
        ids = {timer.message_id for timer in pending.values()}
        assert ids == {message_id for message_id, fate in self.model.fate.items() if fate == "pending"}
        assert set(self.minted) == set(self.model.fate), "each promised message has one fate (I10)"

    def look(self, after: str | None, limit: int, prefix: str) -> None:
        """A page and a count."""
        for queue in QUEUES:
            timers = sorted((t for t in self.model.timers if t["queue"] == queue), key=lambda t: t["key"].encode())
            behind = [t for t in timers if after is None or t["key"].encode() > after.encode()]
            page = self.states[queue].page(after, limit)
            assert [plain(timer) for timer in page.rows] == behind[:limit]
            assert page.truncated == (len(behind) > limit)
            assert page.next_after == (behind[limit - 1]["key"] if len(behind) > limit else None)
            assert self.states[queue].count(prefix) == sum(t["key"].startswith(prefix) for t in timers)
            assert len(self.states[queue]) == len(timers)


def plain(timer: TimerPut) -> dict[str, Any]:
    """A timer in the model's spelling."""
    return {
        "queue": timer.queue,
        "key": timer.key,
        "partition": timer.partition,
        "due": timer.due,
        "txn": timer.txn,
        "payload": timer.payload,
        "encrypted": timer.encrypted,
        "producer": timer.producer,
        "attempts": timer.attempts,
        "error": timer.last_error,
        "created": timer.created_at,
        "updated": timer.updated_at,
        "id": timer.message_id,
    }


def an_op(pick: Pick) -> TimerOp:
    queue, key = pick(QUEUES), pick(KEYS)
    if pick((True, True, False)):
        delay = pick((*DELAYS, *DELAYS, HORIZON + 1))
        return Schedule(queue, key, pick((b"1", b"{}")), delay, pick(TXNS), pick(("Default", "p")), pick((True, False)))
    return Cancel(queue, key, pick((None, *TXNS)))


def a_call(pick: Pick) -> list[TimerOp]:
    return [an_op(pick) for _ in range(pick((1, 1, 2, 4)))]


class TimersMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair()

    @rule(data=st.data(), producer=st.sampled_from((None, "sub")))
    def call(self, data: st.DataObject, producer: str | None) -> None:
        self.pair.call(a_call(lambda options: data.draw(st.sampled_from(options))), producer)

    @rule(limit=st.sampled_from((1, 2, 256)), failing=st.booleans())
    def fire(self, limit: int, failing: bool) -> None:
        self.pair.fire(limit, failing)

    @rule(by=st.sampled_from((1, 300, SECOND, 10 * SECOND)))
    def pass_time(self, by: int) -> None:
        self.pair.model.now += by

    @rule(
        after=st.sampled_from((None, *KEYS, "ka")),
        limit=st.integers(1, 7),
        prefix=st.sampled_from(("", "k", "k/", "é")),
    )
    def look(self, after: str | None, limit: int, prefix: str) -> None:
        self.pair.look(after, limit, prefix)

    @rule()
    def rebuild(self) -> None:
        self.pair.rebuild()

    @invariant()
    def same(self) -> None:
        self.pair.compare()


TestTimersMachine = TimersMachine.TestCase
TestTimersMachine.settings = settings(
    max_examples=max(1, STEPS // 50),
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


@pytest.mark.parametrize("seed", range(5))
def test_a_seeded_walk(seed: int) -> None:
    """Thousands of calls in one life of the timers, with time, fires, failures and restarts between them."""
    source = random.Random(seed)
    pair = Pair()
    for step in range(STEPS):
        pair.call(a_call(source.choice), source.choice((None, "sub")))
        if source.random() < 0.3:
            pair.model.now += source.choice((1, 300, SECOND, 10 * SECOND))
        if source.random() < 0.5:
            pair.fire(source.choice((1, 2, 256)), source.random() < 0.5)
        if source.random() < 0.1:
            pair.look(source.choice((None, *KEYS)), source.randint(1, 7), source.choice(("", "k", "k/")))
        if step % 10 == 0:
            pair.compare()
        if step % 500 == 499:
            pair.rebuild()
    pair.compare()

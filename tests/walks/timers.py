"""Timers against a model that is written from the wire's words alone and shares no code with it (I10)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from queen_actors.domain.effects import Counters, Entry, TimerDropped, TimerPut, decode_entries, encode_entries
from queen_actors.domain.timers import Cancel, Schedule, TimerOp, TimersState, decide, due_order, failed
from queen_actors.errors import Forbidden

from .kv import SELDOM, SOMETIMES, Pick

QUEUES, KEYS = ("q", "p"), ("k", "k/1", "kk", "Z", "é", "😀")
SECOND, HORIZON = 1_000_000, 1_000_000_000
DELAYS = (-7, 0, 1, 300, SECOND, 5 * SECOND, HORIZON)
CHOSEN = (*DELAYS, *DELAYS, HORIZON + 1)
TXNS = ("t1", "faca597c-5e82-4d53-acbf-896d11e4e941")
WAITS, FIRES, PREFIXES = (1, 300, SECOND, 10 * SECOND), (1, 2, 256), ("", "k", "k/", "é")
EITHER = (True, False)


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
    """The rules and the model side by side; every call is made to both and must come to the same.

    `whole`: whether each decision is also seen to have changed nothing. `asked` is what the latest step was.
    """

    every = 20
    """After how many steps of a walk the whole state is compared."""

    def __init__(self) -> None:
        self.whole = True
        self.asked: list[Any] = []
        self.model = Model()
        self.states = {queue: TimersState(queue) for queue in QUEUES}
        self.log: list[TimerPut | TimerDropped] = []
        self.minted: list[str] = []

    def new_id(self) -> str:
        self.minted.append(f"0190b6a0-0000-7000-8000-{len(self.minted):012x}")
        return self.minted[-1]

    def step(self, pick: Pick) -> None:
        """One step of a walk: a call, and perhaps time, timers that fire or fail, and a look after it."""
        self.asked = []
        self.call(a_call(pick), pick((None, "sub")))
        if pick(SOMETIMES):
            self.pass_time(pick(WAITS))
        if pick(EITHER):
            self.fire(pick(FIRES), pick(EITHER))
        if pick(SELDOM):
            self.look(pick((None, *KEYS, "ka")), pick(range(1, 8)), pick(PREFIXES))

    def call(self, ops: Sequence[TimerOp], producer: str | None) -> None:
        self.asked.append(ops)
        before, minted = self.pending() if self.whole else None, len(self.minted)
        try:
            decision = decide(ops, self.states.__getitem__, self.model.now, self.new_id, producer, HORIZON)
        except Forbidden:
            assert any(isinstance(op, Schedule) and op.delay > HORIZON for op in ops)
            assert before is None or self.pending() == before, "a refused call changes nothing"
            assert len(self.minted) == minted
            return
        assert not any(isinstance(op, Schedule) and op.delay > HORIZON for op in ops)
        assert before is None or self.pending() == before, "a decision changes nothing"
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
        self.asked.append(("fail" if failing else "fire", limit))
        now = self.model.now
        due = sorted(self.due(now), key=due_order)[:limit]
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

    def due(self, now: int) -> Iterator[TimerPut]:
        """What is due, found as the broker finds it."""
        for queue in QUEUES:
            state = self.states[queue]
            for at, key in state.due_times():
                assert state.due(key) == at
                if at <= now:
                    timer = state.get(key)
                    assert timer is not None
                    assert timer.due == at
                    yield timer

    def pass_time(self, by: int) -> None:
        self.asked.append(f"{by} us pass")
        self.model.now += by

    def rebuild(self) -> None:
        """Replay is identity (I14): what is pending survives a restart, what ended stays ended."""
        body = encode_entries([Entry(self.model.now, Counters(), tuple(self.log))])
        self.fates()
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

    def fates(self) -> None:
        """What was promised is pending, or has ended in one way."""
        ids = {timer.message_id for timer in self.pending().values()}
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
        payload, partition = pick((b"1", b"{}")), pick(("Default", "p"))
        return Schedule(queue, key, payload, pick(CHOSEN), pick(TXNS), partition, pick(EITHER))
    return Cancel(queue, key, pick((None, *TXNS)))


def a_call(pick: Pick) -> list[TimerOp]:
    return [an_op(pick) for _ in range(pick((1, 1, 2, 4)))]

"""Timers: every state of a timer times every operation (section 4 of the wire), without I/O."""

from __future__ import annotations

import itertools

import pytest
from msgspec.structs import replace

from queen_actors import limits
from queen_actors.domain.effects import Counters, Entry, TimerDropped, TimerPut, decode_entries, encode_entries
from queen_actors.domain.timers import (
    Cancel,
    Schedule,
    TimerOp,
    TimerPage,
    TimerResult,
    TimersDecision,
    TimersState,
    decide,
    due_order,
    failed,
)
from queen_actors.errors import Forbidden
from queen_actors.values import MAX_INSTANT

SECOND = 1_000_000
NOW = 1_700_000_000 * SECOND
HORIZON = limits.TIMER_HORIZON_US
TXN, OTHER_TXN = "faca597c-5e82-4d53-acbf-896d11e4e941", "order-9137"


class Timers:
    """The timers of some queues, and everything that was applied."""

    def __init__(self) -> None:
        self.states: dict[str, TimersState] = {}
        self.now = NOW
        self.ids = (f"0190b6a0-0000-7000-8000-{n:012x}" for n in itertools.count())
        self.minted: list[str] = []
        self.effects: list[TimerPut | TimerDropped] = []

    def state(self, queue: str = "q") -> TimersState:
        return self.states.setdefault(queue, TimersState(queue))

    def new_id(self) -> str:
        self.minted.append(next(self.ids))
        return self.minted[-1]

    def apply(self, *effects: TimerPut | TimerDropped) -> None:
        for effect in effects:
            self.state(effect.queue).apply(effect)
            self.effects.append(effect)

    def pending(self) -> dict[tuple[str, str], TimerPut]:
        pages = (state.page(None, 10_000).rows for state in self.states.values())
        return {(timer.queue, timer.key): timer for rows in pages for timer in rows}

    def decide(self, *ops: TimerOp, producer: str | None = None) -> TimersDecision:
        before = self.pending()
        decision = decide(ops, self.state, self.now, self.new_id, producer, HORIZON)
        assert self.pending() == before, "decide changes nothing"
        return decision

    def call(self, *ops: TimerOp, producer: str | None = None) -> tuple[TimerResult, ...]:
        decision = self.decide(*ops, producer=producer)
        self.apply(*decision.effects)
        return decision.results


def schedule(key: str = "k", delay: int = SECOND, payload: bytes = b'{"a":1}', txn: str = TXN, **more: str) -> Schedule:
    return Schedule(more.pop("queue", "q"), key, payload, delay, txn, **more)


def fresh(message_id: str, **fields: object) -> TimerPut:
    """A timer as a first schedule makes it."""
    return replace(
        TimerPut("q", "k", "Default", NOW + SECOND, TXN, message_id, b'{"a":1}', False, None, 0, None, NOW, NOW),
        **fields,
    )


def in_backoff(timer: TimerPut) -> TimerPut:
    again = failed(timer, "disk", NOW)
    assert again is not None
    return again


@pytest.mark.parametrize("state", ["none", "pending", "in backoff", "fired", "cancelled"])
@pytest.mark.parametrize("what", ["schedule", "cancel", "cancel with txn"])
def test_every_state_of_a_timer_and_every_operation(state: str, what: str) -> None:
    """4.2-4.4: status, txn and message id of the answer, and the timer that is pending after it."""
    timers = Timers()
    if state != "none":
        timers.call(schedule(txn=OTHER_TXN, payload=b"0", partition="p"), producer="them")
    if state == "in backoff":
        timer = timers.state().get("k")
        assert timer is not None
        timers.apply(in_backoff(timer))
    if state in ("fired", "cancelled"):
        timers.apply(TimerDropped("q", "k", state == "fired"))
    pending = state in ("pending", "in backoff")
    timers.now = NOW + 100
    count = len(timers.effects)
    if what == "schedule":
        (result,) = timers.call(schedule(delay=5 * SECOND), producer="us")
        message_id = timers.minted[-1]
        due = NOW + 100 + 5 * SECOND
        assert result == TimerResult("rescheduled" if pending else "scheduled", "q", "k", TXN, message_id, due)
        assert result.ok
        created_at = NOW if pending else NOW + 100
        moved = fresh(message_id, due=due, producer="us", created_at=created_at, updated_at=NOW + 100)
        assert timers.state().get("k") == moved
        return
    txn = TXN if what == "cancel with txn" else None
    (result,) = timers.call(Cancel("q", "k", txn))
    assert timers.state().get("k") is None
    if pending:
        assert result == TimerResult("cancelled", "q", "k", OTHER_TXN)
        assert timers.effects[count:] == [TimerDropped("q", "k", False)]
    else:
        assert result == TimerResult("absent", "q", "k", txn)
        assert not result.ok
        assert timers.effects[count:] == []


def test_a_new_schedule_takes_every_promise_back() -> None:
    """4.2: the pending timer is replaced whole, with a new message id; only its creation stays."""
    timers = Timers()
    first, second = (timers.call(schedule(payload=payload))[0] for payload in (b"1", b"2"))
    assert first.message_id != second.message_id
    assert (first.status, second.status) == ("scheduled", "rescheduled")
    assert len(timers.state()) == 1


def test_rescheduling_is_a_debounce() -> None:
    """A51: ten schedules 100 ms apart leave one timer, the last payload, due 500 ms after the last."""
    timers = Timers()
    for turn in range(10):
        timers.now = NOW + turn * SECOND // 10
        timers.call(schedule(delay=SECOND // 2, payload=b"%d" % turn))
    (timer,) = timers.pending().values()
    assert timer.payload == b"9"
    assert timer.due == timers.now + SECOND // 2
    assert timer.created_at == NOW


@pytest.mark.parametrize(
    ("delay", "due"), [(0, NOW), (-5, NOW), (-(10**18), NOW), (1, NOW + 1), (HORIZON, NOW + HORIZON)]
)
def test_a_timer_is_never_due_before_it_is_scheduled(delay: int, due: int) -> None:
    """A negative delay fires at once."""
    timers = Timers()
    (result,) = timers.call(schedule(delay=delay))
    assert result.deliver_at == due


def test_a_due_time_is_never_later_than_a_date_can_say() -> None:
    """With a horizon that was set to more than that."""
    state = TimersState("q")
    decision = decide([schedule(delay=10**18)], lambda _: state, NOW, lambda: "id", None, 10**19)
    assert decision.results[0].deliver_at == MAX_INSTANT


def test_a_delay_past_the_horizon_refuses_the_whole_call() -> None:
    """403 with the wire's code and reason, nothing scheduled, and no message id spent."""
    timers = Timers()
    with pytest.raises(Forbidden) as refusal:
        timers.call(schedule("a"), schedule("b", HORIZON + 1), Cancel("q", "a"))
    assert (refusal.value.status, refusal.value.code) == (403, "timer_horizon_exceeded")
    assert refusal.value.reason == "timers_horizon"
    assert "7776000 seconds" in refusal.value.detail
    assert timers.pending() == {}
    assert timers.minted == []


def test_the_identity_is_queue_and_key() -> None:
    """The partition is no part of it; another queue's key is another timer."""
    timers = Timers()
    results = timers.call(schedule(partition="p1"), schedule(queue="q2"))
    assert [result.status for result in results] == ["scheduled", "scheduled"]
    (moved,) = timers.call(schedule(partition="p2"))
    assert moved.status == "rescheduled"
    assert {place: timer.partition for place, timer in timers.pending().items()} == {
        ("q", "k"): "p2",
        ("q2", "k"): "Default",
    }


def test_a_batch_is_answered_in_order() -> None:
    """Each op its own verdict; one effect for each that changed something."""
    timers = Timers()
    timers.call(schedule("old", txn=OTHER_TXN))
    results = timers.call(schedule("new"), Cancel("q", "old"), Cancel("q", "none", "x"), schedule("new2", -1))
    assert [result.status for result in results] == ["scheduled", "cancelled", "absent", "scheduled"]
    assert [result.txn for result in results] == [TXN, OTHER_TXN, "x", TXN]
    assert [type(effect).__name__ for effect in timers.effects[1:]] == ["TimerPut", "TimerDropped", "TimerPut"]


def test_ops_on_one_key_see_each_other() -> None:
    """The wire refuses such a batch; decided all the same, it comes to what its ops would one by one."""
    timers = Timers()
    ops = (Cancel("q", "k"), schedule(), schedule(delay=5), Cancel("q", "k", "x"), Cancel("q", "k", "y"))
    results = timers.call(*ops)
    assert [result.status for result in results] == ["absent", "scheduled", "rescheduled", "cancelled", "absent"]
    assert timers.pending() == {}


def test_cancel_is_exact() -> None:
    """A52: of 500 timers whose cancel meets the fire, each is either fired or cancelled, none both."""
    timers = Timers()
    keys = [f"k{n}" for n in range(500)]
    timers.call(*(schedule(key) for key in keys))
    fired = set(keys[::3])
    timers.apply(*(TimerDropped("q", key, True) for key in fired))
    results = timers.call(*(Cancel("q", key) for key in keys))
    cancelled = {result.key for result in results if result.status == "cancelled"}
    assert fired | cancelled == set(keys)
    assert not fired & cancelled
    assert timers.pending() == {}


# 4.7 order, 4.8 failures


def test_timers_fire_by_due_time_then_queue_then_key() -> None:
    """`due_order` sorts them; keys by their bytes."""
    places = [(5, "b", "a"), (5, "a", "b"), (5, "a", "é"), (5, "a", "Z"), (4, "z", "z"), (6, "a", "a")]
    timers = [fresh("id", due=due, queue=queue, key=key) for due, queue, key in places]
    assert [due_order(timer) for timer in sorted(timers, key=due_order)] == [
        (4, "z", "z"),
        (5, "a", "Z"),
        (5, "a", "b"),
        (5, "a", "é"),
        (5, "b", "a"),
        (6, "a", "a"),
    ]


def test_a_timer_that_cannot_be_delivered_backs_off_and_gives_up() -> None:
    """1, 2, 4, 8 seconds; after the fifth attempt it is to be dead-lettered. Until then it stays as it was promised."""
    timer = fresh("id")
    now, waits = NOW, []
    for attempt in range(1, limits.TIMER_ATTEMPTS):
        now += 7
        later = failed(timer, f"error {attempt}", now)
        assert later is not None
        waits.append((later.due - now) / SECOND)
        kept = replace(timer, due=later.due, attempts=attempt, last_error=f"error {attempt}", updated_at=now)
        assert later == kept
        timer = later
    assert waits == [1, 2, 4, 8]
    assert failed(timer, "the last", now) is None


def test_the_backoff_has_a_ceiling(monkeypatch: pytest.MonkeyPatch) -> None:
    """min(1 s * 2**n, 60 s), were there more attempts."""
    monkeypatch.setattr(limits, "TIMER_ATTEMPTS", 100)
    waits = [failed(fresh("id", attempts=n), "", NOW) for n in (5, 6, 50)]
    assert [(timer.due - NOW) // SECOND for timer in waits if timer is not None] == [32, 60, 60]


# Pages and counts


def keys_of(page: TimerPage) -> list[str]:
    return [timer.key for timer in page.rows]


def test_pages_are_in_byte_order_of_the_keys() -> None:
    """Not by due time; `after` is exclusive and need not be a key; `next_after` only while there is more."""
    timers = Timers()
    keys = ["b", "a", "Z", "é", "a/b", "\uffff", "😀", "c d?"]
    timers.call(*(schedule(key, delay=100 - n) for n, key in enumerate(keys)))
    ordered = sorted(keys, key=str.encode)
    state = timers.state()
    whole = state.page(None, 100)
    assert (keys_of(whole), whole.truncated, whole.next_after) == (ordered, False, None)
    first = state.page(None, 3)
    assert (keys_of(first), first.truncated, first.next_after) == (ordered[:3], True, ordered[2])
    second = state.page(first.next_after, 5)
    assert (keys_of(second), second.truncated, second.next_after) == (ordered[3:], False, None)
    assert keys_of(state.page("aa", 2)) == ["b", "c d?"]
    assert keys_of(state.page("😀", 2)) == []
    assert first.rows[0] == state.get("Z")


def test_counts_by_prefix() -> None:
    """A literal prefix; every key when it is empty; the last code point is no special case."""
    timers = Timers()
    keys = ["order-1", "order-2", "order", "orders", "other", "\U0010ffff", "\U0010ffff\U0010ffffx", "\ud7ff", "\ue000"]
    timers.call(*(schedule(key) for key in keys))
    state = timers.state()
    prefixes = ["", "o", "order", "order-", "order-1", "order-1x", "p", "\U0010ffff", "\U0010ffff" * 2, "\ud7ff", "%"]
    for prefix in prefixes:
        assert state.count(prefix) == sum(key.startswith(prefix) for key in keys)
    assert TimersState("empty").count("") == 0


def test_the_order_stays_in_step_once_it_is_made() -> None:
    """Pages and counts see what came, moved and went after the first of them."""
    timers = Timers()
    timers.call(schedule("b"), schedule("d"))
    assert keys_of(timers.state().page(None, 9)) == ["b", "d"]
    timers.call(schedule("a"), schedule("b", 5), Cancel("q", "d"), Cancel("q", "z"), schedule("c"))
    timers.apply(TimerDropped("q", "c", True), TimerDropped("q", "c", True))
    assert keys_of(timers.state().page(None, 9)) == ["a", "b"]
    assert timers.state().count("") == len(timers.state()) == 2


# How they are kept


@pytest.mark.parametrize(
    "timer",
    [
        fresh("0190b6a0-0000-7000-8000-000000000000"),
        fresh("id", txn="x" * 36, partition="", payload=b"", encrypted=True, producer="", attempts=4, last_error=""),
        fresh("FACA597C-5E82-4D53-ACBF-896D11E4E941", txn="faca597c5e824d53acbf896d11e4e941"),
        fresh("{faca597c-5e82-4d53-acbf-896d11e4e9}", txn="faca597c-5e82-4d53-acbf-896d11e4e94\n"),
        fresh("é" * 36, txn="\x00", partition="p/é", payload=b"\xff\x00", producer="sub", last_error="why"),
        fresh("\u0660" * 8 + "-0000-0000-0000-000000000000", due=MAX_INSTANT, created_at=0, updated_at=1),
        fresh("id", payload=b"x" * limits.TIMER_PAYLOAD_BYTES, txn="t" * limits.TXN_BYTES),
    ],
    ids=lambda timer: timer.message_id[:8],
)
def test_a_timer_comes_back_as_it_was_put(timer: TimerPut) -> None:
    """Whatever its ids, texts and bytes are."""
    state = TimersState("q")
    state.apply(timer)
    assert state.get("k") == timer
    assert state.page(None, 1).rows == (timer,)
    assert state.get("other") is None


def test_replay_gives_the_same_timers() -> None:
    """The effects of every call, through the log's encoding, rebuild equal states."""
    timers = Timers()
    timers.call(schedule("a"), schedule("b", txn="t"), schedule("c"), schedule(queue="q2"), producer="sub")
    timers.call(schedule("a", 5), Cancel("q", "b"), schedule("d", -1))
    timer = timers.state().get("a")
    assert timer is not None
    timers.apply(in_backoff(timer), TimerDropped("q", "d", True))
    body = encode_entries([Entry(timers.now, Counters(), tuple(timers.effects))])
    again = Timers()
    for effect in decode_entries(body)[0].effects:
        assert isinstance(effect, TimerPut | TimerDropped)
        again.apply(effect)
    assert again.pending() == timers.pending()
    assert sorted(again.pending()) == [("q", "a"), ("q", "c"), ("q2", "k")]


def test_due_times_are_those_of_what_is_pending() -> None:
    """One (due, key) for each pending timer, as it was moved last."""
    timers = Timers()
    timers.call(schedule("a", 5), schedule("b", 6), schedule("c", 7))
    timers.call(schedule("a", 8), Cancel("q", "b"))
    assert sorted(timers.state().due_times()) == [(NOW + 7, "c"), (NOW + 8, "a")]

"""Timers against the model of `tests/walks/timers.py` (I10). `QUEEN_ACTORS_STEPS` as in `test_kv_machine.py`."""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from walks.timers import KEYS, SECOND, Pair, a_call

STEPS = int(os.environ.get("QUEEN_ACTORS_STEPS", "2000"))


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
        self.pair.fates()


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
    pair.fates()

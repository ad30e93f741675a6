"""A lock against the model of `tests/walks/locks.py` (I5, I6). `QUEEN_ACTORS_STEPS` as in `test_kv_machine.py`."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from walks.locks import LIFETIMES, Pair, a_lock_op, an_operators_op

STEPS = int(os.environ.get("QUEEN_ACTORS_STEPS", "2000"))


class LockMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair()

    @rule(data=st.data())
    def lock(self, data: st.DataObject) -> None:
        def pick(options: Sequence[Any]) -> Any:
            return data.draw(st.sampled_from(options))

        self.pair.lock(a_lock_op(pick, self.pair), pick)

    @rule(data=st.data())
    def operator(self, data: st.DataObject) -> None:
        self.pair.operator(an_operators_op(lambda options: data.draw(st.sampled_from(options))))

    @rule(by=st.sampled_from(LIFETIMES))
    def pass_time(self, by: int) -> None:
        self.pair.model.now += by

    @rule()
    def sweep(self) -> None:
        self.pair.sweep()

    @rule()
    def rebuild(self) -> None:
        self.pair.rebuild()

    @invariant()
    def same(self) -> None:
        self.pair.compare()


TestLockMachine = LockMachine.TestCase
TestLockMachine.settings = settings(
    max_examples=max(1, STEPS // 50),
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


@pytest.mark.parametrize("seed", range(5))
def test_a_seeded_walk(seed: int) -> None:
    """Thousands of operations in one life of the lock, with time, sweeps, an operator and restarts between them."""
    source = random.Random(seed)
    pair = Pair()
    for step in range(STEPS):
        pair.lock(a_lock_op(source.choice, pair), source.choice)
        if source.random() < 0.3:
            pair.model.now += source.choice(LIFETIMES)
        if source.random() < 0.1:
            pair.sweep()
        if source.random() < 0.05:
            pair.operator(an_operators_op(source.choice))
        pair.compare()
        if step % 500 == 499:
            pair.rebuild()

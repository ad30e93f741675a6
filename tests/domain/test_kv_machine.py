"""KV against the model of `tests/walks/kv.py` (I7, I8, I9): Hypothesis, which shrinks what it finds, and seeded walks.

`QUEEN_ACTORS_STEPS` is how many calls each driver makes. `python -m tests.walks` makes millions.
"""

from __future__ import annotations

import os
import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from walks.kv import KEYS, LIFETIMES, Pair, a_call

STEPS = int(os.environ.get("QUEEN_ACTORS_STEPS", "2000"))


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

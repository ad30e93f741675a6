"""A partition and its groups against the model of `tests/walks/partition.py` (I2, I3, I12, I14).

`QUEEN_ACTORS_STEPS` is how many steps are tried, 2000 by default.
"""

from __future__ import annotations

import os
import random

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from walks.partition import Pair

STEPS = int(os.environ.get("QUEEN_ACTORS_STEPS", "2000"))
STEPS_PER_RUN = 50


class PartitionMachine(RuleBasedStateMachine):
    """Hypothesis chooses."""

    def __init__(self) -> None:
        super().__init__()
        self.pair = Pair()

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        self.pair.step(lambda choices: data.draw(st.sampled_from(choices)))
        self.pair.compare()

    def teardown(self) -> None:
        self.pair.rebuild()


TestPartitionMachine = PartitionMachine.TestCase
TestPartitionMachine.settings = settings(
    max_examples=max(1, STEPS // 4 // STEPS_PER_RUN),
    stateful_step_count=STEPS_PER_RUN,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),  # to shrink a run of fifty steps takes minutes
    suppress_health_check=list(HealthCheck),
)


def test_random_walks() -> None:
    """Plain seeds, for length and speed; whatever is to happen at all has happened in them."""
    seen: set[str] = set()
    for seed in range(max(10, STEPS // 40)):
        pair = Pair()
        rng = random.Random(seed)
        for _ in range(200):
            pair.step(rng.choice)
            pair.compare()
        pair.rebuild()
        seen |= pair.seen
    assert seen >= {
        "claim",
        "autoAck",
        "limit",
        "dead",
        "settled",
        "partial",
        "repeat",
        "stale",
        "duplicate",
        "packed",
        "overtaken",
        "twice",
        "run",
    }

"""The broker's clock."""

from __future__ import annotations

import time

import pytest
import trio
from trio.testing import MockClock

from queen_actors.actors.clock import TrioClock
from queen_actors.values import SECOND


@pytest.mark.parametrize("jump", [-3600, 3600])
async def test_a_wall_clock_that_jumps_moves_nothing(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, jump: int
) -> None:
    """I19: read once, it may be set back or forward by an hour; ten seconds are ten seconds, for who sleeps too."""
    clock = TrioClock()
    began = clock.now()
    jumped = time.time_ns() + jump * 1_000_000_000
    monkeypatch.setattr(time, "time_ns", lambda: jumped)
    await trio.sleep(10)
    assert clock.now() - began == pytest.approx(10 * SECOND, abs=10)
    await clock.sleep_until(began + 20 * SECOND)
    assert clock.now() - began == pytest.approx(20 * SECOND, abs=10)


async def test_a_start_that_loses_the_processor(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wall clock is read, and for three seconds the process does not run: the broker's clock is not three seconds
    late for it."""
    wall, stops = 1_700_000_000_000_000_000, [3.0]

    def read() -> int:
        nonlocal wall
        seen = wall
        if stops:
            lost = stops.pop()
            wall += int(lost * 1_000_000_000)
            autojump_clock.jump(lost)
        return seen

    monkeypatch.setattr(time, "time_ns", read)
    assert TrioClock().now() == pytest.approx(wall // 1000, abs=10)

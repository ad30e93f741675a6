"""Runs that can be repeated: what they need of Trio, what the seed decides, and how a run ends in which all wait."""

from __future__ import annotations

from functools import partial
from math import inf

import pytest
import trio
import trio._core._run as scheduler
from trio.testing import MockClock

from queen_actors.testing.determinism import (
    ABORT,
    DETERMINISTIC,
    JUMP,
    SHUFFLE,
    STEPS_AT_ONCE,
    Stuck,
    deterministic,
    run,
)


def test_trio_still_has_the_names_that_determinism_needs() -> None:
    """Private ones: when Trio renames them, this fails first."""
    assert isinstance(scheduler.__dict__[DETERMINISTIC], bool)
    assert {"seed", "getstate", "setstate"} <= set(dir(scheduler.__dict__[SHUFFLE]))
    assert callable(getattr(MockClock, JUMP))
    assert callable(getattr(trio.lowlevel.Task, ABORT))


def test_a_run_in_which_nothing_goes_on_ends() -> None:
    """Tasks that wait for each other, also where no cancellation reaches them; not those that wait for their time."""

    async def stuck() -> None:
        with trio.move_on_after(2):
            await trio.sleep(1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await trio.Event().wait()

    assert run(1, partial(trio.sleep, 3600), alone=True) is None
    with pytest.raises(ExceptionGroup) as found:
        run(1, stuck, alone=True)
    assert found.group_contains(Stuck, match="nothing goes on any more")


def test_a_run_that_goes_round_at_one_instant_ends() -> None:
    """Two tasks that give each other work and never wait for time; not one that does much now and then."""

    async def busy(steps: float, seconds: float) -> None:
        while steps > 0:
            await trio.lowlevel.checkpoint()
            steps -= 1
            if steps % 1000 == 0:
                await trio.sleep(seconds)

    async def endless() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(busy, inf, 0)
            await trio.sleep(1)

    assert run(1, partial(busy, STEPS_AT_ONCE // 100, 0.001), alone=True) is None
    with pytest.raises(Stuck, match="it would go on for ever"):
        run(1, endless, alone=True)


def test_the_scheduler_is_seeded() -> None:
    """Tasks that are runnable together run in an order that the seed decides; afterwards all is as it was."""

    def order(seed: int) -> list[int]:
        seen: list[int] = []

        async def runner(number: int) -> None:
            for _ in range(5):
                await trio.lowlevel.checkpoint()
                seen.append(number)

        async def many() -> None:
            async with trio.open_nursery() as nursery:
                for number in range(10):
                    nursery.start_soon(runner, number)

        run(seed, many)
        return seen

    before = scheduler.__dict__[DETERMINISTIC]
    assert order(1) == order(1)
    assert len({tuple(order(seed)) for seed in range(8)}) > 1
    assert scheduler.__dict__[DETERMINISTIC] is before
    with pytest.raises(ZeroDivisionError), deterministic(1):
        raise ZeroDivisionError
    assert scheduler.__dict__[DETERMINISTIC] is before

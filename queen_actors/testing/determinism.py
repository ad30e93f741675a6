"""Runs that can be repeated: a seeded scheduler and virtual time.

With `MockClock`, seeded ids (`RandomIds`), and a store that runs inline (`MemoryStore`), a run of the whole broker is a
function of its seed, on every supported Python and whatever the hash seed. Threads, sockets and files break that.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from math import inf
from typing import NoReturn, TypeVar

import trio
import trio._core._run as _scheduler
from trio.testing import MockClock

T = TypeVar("T")
DETERMINISTIC, SHUFFLE = "_ALLOW_DETERMINISTIC_SCHEDULING", "_r"
"""The two names, of `trio._core._run`; a test fails when they are gone."""
JUMP, ABORT = "_autojump", "_attempt_abort"
"""The method of `MockClock` that Trio calls when every task waits, and that of a task that ends its waiting whatever it
is shielded from; a test fails when they are gone."""


STEPS_AT_ONCE = 1_000_000
"""So many steps of tasks at one instant are taken for a loop without an end; none of 20,000 seeds came to it."""


class Stuck(Exception):
    """Every task waits, and none of them for a time to come: nothing goes on any more. Or tasks go round without
    waiting for any time: it would go on for ever."""


@contextmanager
def deterministic(seed: int) -> Generator[None]:
    """Trio runs that begin in this block schedule their tasks as `seed` says.

    Trio shuffles what is runnable on purpose, and has two private names for not doing so; they are used here only.
    """
    names = _scheduler.__dict__
    shuffle, before = names[SHUFFLE], names[DETERMINISTIC]
    state = shuffle.getstate()
    names[DETERMINISTIC] = True
    shuffle.seed(seed)
    try:
        yield
    finally:
        names[DETERMINISTIC] = before
        shuffle.setstate(state)


def run(seed: int, main: Callable[[], Awaitable[T]], *, alone: bool = False) -> T:
    """Run `main` on virtual time, scheduled as `seed` says.

    `alone`: no thread, socket or signal will ever wake one of its tasks. When all of them wait for each other, Stuck is
    raised where each of them waits; also when they go round at one instant without an end: `main` is cancelled.
    """
    clock = MockClock(autojump_threshold=0)
    if alone:
        main = _watched(main, clock)
    with deterministic(seed):
        return trio.run(main, clock=clock)


def _watched(main: Callable[[], Awaitable[T]], clock: MockClock) -> Callable[[], Awaitable[T]]:
    jump: Callable[[], None] = getattr(clock, JUMP)

    async def watched() -> T:
        watch = _Watch(jump, trio.lowlevel.current_task())
        setattr(clock, JUMP, watch.jump_or_end)
        trio.lowlevel.add_instrument(watch)
        try:
            with watch.scope:
                return await main()
        finally:
            trio.lowlevel.remove_instrument(watch)
            setattr(clock, JUMP, jump)
        raise Stuck(f"it would go on for ever: {STEPS_AT_ONCE:,} steps of tasks at one instant")

    return watched


class _Watch(trio.abc.Instrument):
    """Ends a run that would not end by itself."""

    def __init__(self, jump: Callable[[], None], main: trio.lowlevel.Task) -> None:
        self.scope = trio.CancelScope()
        self._jump = jump
        self._main = main
        self._steps = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._steps += 1
        if self._steps == STEPS_AT_ONCE:
            self.scope.cancel()

    def jump_or_end(self) -> None:
        self._steps = 0
        if trio.lowlevel.current_statistics().seconds_to_next_deadline < inf:
            self._jump()
            return
        for task in _leaves(self._main):
            getattr(task, ABORT)(_stuck)


def _leaves(task: trio.lowlevel.Task) -> list[trio.lowlevel.Task]:
    """The tasks that wait for something other than their children."""
    children = [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    return [leaf for child in children for leaf in _leaves(child)] if children else [task]


def _stuck() -> NoReturn:
    raise Stuck("nothing goes on any more: every task waits, and none for a time to come")

"""Runs that can be repeated: a seeded scheduler and virtual time.

With `MockClock`, seeded ids (`RandomIds`), and a store that runs inline (`MemoryStore`), a run of the whole broker is a
function of its seed, on every supported Python and whatever the hash seed. Threads, sockets and files break that.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from functools import partial
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


class Stuck(Exception):
    """Every task waits, and none of them for a time to come: nothing goes on any more."""


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
    raised where each of them waits.
    """
    clock = MockClock(autojump_threshold=0)
    if alone:
        main = _watched(main, clock)
    with deterministic(seed):
        return trio.run(main, clock=clock)


def _watched(main: Callable[[], Awaitable[T]], clock: MockClock) -> Callable[[], Awaitable[T]]:
    jump: Callable[[], None] = getattr(clock, JUMP)

    async def watched() -> T:
        setattr(clock, JUMP, partial(_jump_or_end, jump, trio.lowlevel.current_task()))
        try:
            return await main()
        finally:
            setattr(clock, JUMP, jump)

    return watched


def _jump_or_end(jump: Callable[[], None], main: trio.lowlevel.Task) -> None:
    if trio.lowlevel.current_statistics().seconds_to_next_deadline < inf:
        jump()
        return
    for task in _leaves(main):
        getattr(task, ABORT)(_stuck)


def _leaves(task: trio.lowlevel.Task) -> list[trio.lowlevel.Task]:
    """The tasks that wait for something other than their children."""
    children = [child for nursery in task.child_nurseries for child in nursery.child_tasks]
    return [leaf for child in children for leaf in _leaves(child)] if children else [task]


def _stuck() -> NoReturn:
    raise Stuck("nothing goes on any more: every task waits, and none for a time to come")

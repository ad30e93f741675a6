"""Runs that can be repeated: a seeded scheduler and virtual time.

With `MockClock`, seeded ids (`RandomIds`), and a store that runs inline (`MemoryStore`), a run of the whole broker is a
function of its seed, on every supported Python and whatever the hash seed. Threads, sockets and files break that.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import TypeVar

import trio
import trio._core._run as _scheduler
from trio.testing import MockClock

T = TypeVar("T")
DETERMINISTIC, SHUFFLE = "_ALLOW_DETERMINISTIC_SCHEDULING", "_r"
"""The two names, of `trio._core._run`; a test fails when they are gone."""


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


def run(seed: int, main: Callable[[], Awaitable[T]]) -> T:
    """Run `main` on virtual time, scheduled as `seed` says."""
    with deterministic(seed):
        return trio.run(main, clock=MockClock(autojump_threshold=0))

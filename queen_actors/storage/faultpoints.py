"""Named points at which a test can make the process die, or look at the data directory as a crash would leave it.

With `QUEEN_ACTORS_FAULT=point:n` in the environment the process ends at the n-th passage of `point`, as `kill -9`
would end it: nothing is flushed, no `finally` runs, the status is 137. Unset, `armed` is False and a guarded call
site (`if faultpoints.armed: ...`) costs one look at a global.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager

VARIABLE = "QUEEN_ACTORS_FAULT"
STATUS = 137

POINTS = (
    "journal.append.start",
    "journal.append.written",
    "journal.append.synced",
    "journal.create.start",
    "journal.create.synced",
    "journal.create.renamed",
    "journal.create.done",
    "journal.finish.truncated",
    "journal.cut.truncated",
    "position.written",
    "position.synced",
    "segment.start",
    "segment.filled",
    "segment.checkpointed",
    "segment.synced",
    "segment.renamed",
    "segment.published",
    "segment.journal_removed",
    "snapshot.start",
    "snapshot.filled",
    "snapshot.checkpointed",
    "snapshot.synced",
    "snapshot.renamed",
    "snapshot.published",
    "snapshot.old_removed",
    "drop.segment_removed",
    "merge.start",
    "merge.filled",
    "merge.checkpointed",
    "merge.synced",
    "merge.renamed",
    "merge.published",
)
"""Every point, in the order in which the log passes them."""

armed = False
_watch: Callable[[str], None] | None = None
_kill: tuple[str, int] | None = None


def _parse(text: str) -> tuple[str, int]:
    point, _, count = text.partition(":")
    if point not in POINTS or not count.isdecimal() or int(count) < 1:
        raise ValueError(f"{VARIABLE} is to be <point>:<n> with n from 1 on and one of the points {', '.join(POINTS)}.")
    return point, int(count)


def passage(point: str) -> None:
    """The log passes `point`."""
    global _kill
    if _watch is not None:
        _watch(point)
    if _kill is not None and _kill[0] == point:
        if _kill[1] == 1:
            os._exit(STATUS)
        _kill = point, _kill[1] - 1


@contextmanager
def watching(watch: Callable[[str], None]) -> Generator[None]:
    """Inside, `watch` is told of each passage, in the thread that passes; what it raises is raised at the point."""
    global armed, _watch
    before = armed, _watch
    armed, _watch = True, watch
    try:
        yield
    finally:
        armed, _watch = before


if VARIABLE in os.environ:
    _kill = _parse(os.environ[VARIABLE])
    armed = True

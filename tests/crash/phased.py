"""The broker with a slate on which it writes what it is about: run by Python in place of `-m queen_actors`.

A process that dies by SIGKILL leaves its slate, a file that it has mapped, as it was. So it can be told what a death
fell into, and a death can be aimed at one phase. The environment says where the slate is (`CRASH_SLATE`), whether the
broker packs away what nobody used for 50 ms, and all but three partitions (`CRASH_RESTLESS`: it is always about it
then), and which bug is planted in it, for a control (`CRASH_PLANTED`).
"""

from __future__ import annotations

import inspect
import math
import mmap
import os
import sys
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import trio

from queen_actors import cli, limits
from queen_actors.actors import retention, upkeep
from queen_actors.actors.subscription import Subscription
from queen_actors.storage import durable, journal, log
from queen_actors.storage import upkeep as sealing
from queen_actors.storage.fileops import FileOps

PHASES = ("start-up", "commit", "roll", "sealing", "snapshot", "retention", "passivation")
"""In the order of the slate's bytes; each holds how often its phase is under way."""


class Slate:
    """What the broker is about, as a byte for each phase."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._bytes = mmap.mmap(file.fileno(), len(PHASES))

    def begin(self, phase: str) -> None:
        self._bytes[PHASES.index(phase)] = min(self._bytes[PHASES.index(phase)] + 1, 255)

    def end(self, phase: str) -> None:
        self._bytes[PHASES.index(phase)] = max(self._bytes[PHASES.index(phase)] - 1, 0)

    @contextmanager
    def during(self, phase: str) -> Generator[None]:
        self.begin(phase)
        try:
            yield
        finally:
            self.end(phase)

    def around(self, owner: Any, name: str, phase: str) -> None:
        """Every call of this method is the phase."""
        call: Callable[..., Any] = getattr(owner, name)

        @wraps(call)
        def within(*arguments: Any, **options: Any) -> Any:
            with self.during(phase):
                return call(*arguments, **options)

        @wraps(call)
        async def awaited(*arguments: Any, **options: Any) -> Any:
            with self.during(phase):
                return await call(*arguments, **options)

        setattr(owner, name, awaited if inspect.iscoroutinefunction(call) else within)


def watched(slate: Slate) -> None:
    """From now on the slate tells. Each phase is where its files, or its rows, are changed."""
    slate.begin("start-up")
    maintain = durable.DurableStore.maintain

    async def ready(store: durable.DurableStore, evict: Any) -> None:
        slate.end("start-up")
        await maintain(store, evict)

    setattr(durable.DurableStore, "maintain", ready)  # noqa: B010 - as the others
    slate.around(journal.JournalWriter, "append", "commit")
    slate.around(log.Log, "roll", "roll")
    slate.around(sealing.Upkeep, "_build_segment", "sealing")
    slate.around(sealing.Upkeep, "_build_snapshot", "snapshot")
    slate.around(sealing.Upkeep, "_remove_old_snapshots", "snapshot")
    slate.around(sealing.Upkeep, "_merge", "retention")
    slate.around(sealing.Upkeep, "_forget", "retention")
    slate.around(retention.Retention, "_sweep", "retention")
    slate.around(upkeep.Upkeep, "passivate", "passivation")
    slate.around(upkeep.Upkeep, "_relieve", "passivation")


def connections_keep_their_leases() -> None:
    """The bug of a broker that gives nothing back when a connection ends."""

    async def nothing(_: Subscription) -> None: ...

    setattr(Subscription, "close", nothing)  # noqa: B010 - as the others


def refused_writes_count_as_written() -> None:
    """The bug of a broker that does not look at what the disk says."""
    write = FileOps.write

    def blind(ops: FileOps, fd: int, parts: Sequence[bytes], offset: int) -> int:
        try:
            return write(ops, fd, parts, offset)
        except OSError:
            return sum(map(len, parts))

    setattr(FileOps, "write", blind)  # noqa: B010 - as the others


def a_stop_is_not_heard() -> None:
    """The bug of a broker that hangs when it is told to stop."""

    async def deaf(*_: object) -> None:
        await trio.sleep_forever()

    setattr(cli, "_obey", deaf)  # noqa: B010 - as the others


def a_stop_writes_nothing_more() -> None:
    """The bug of a broker that is told to stop, answers for a while yet, and writes no more."""

    def blind(ops: FileOps, fd: int, parts: Sequence[bytes], offset: int) -> int:
        return sum(map(len, parts))

    async def obey(signals: AsyncIterator[int], stop: trio.Event, _: float) -> None:
        await anext(signals)
        setattr(FileOps, "write", blind)  # noqa: B010 - as the others
        await trio.sleep(0.5)
        stop.set()

    setattr(cli, "_obey", obey)  # noqa: B010 - as the others


def writes_wait_without_end() -> None:
    """The bug of a broker that drops no consumer, however long it has not read: neither its own deadline nor the
    kernel's nor an unanswered ping ends it."""
    limits.WS_WRITE_SECONDS, limits.HTTP_WRITE_SECONDS = math.inf, 3600.0
    os.environ["QUEEN_ACTORS_HEARTBEAT_SECONDS"] = "600"


OWN = (
    connections_keep_their_leases,
    refused_writes_count_as_written,
    a_stop_is_not_heard,
    a_stop_writes_nothing_more,
    writes_wait_without_end,
)


def plant(name: str) -> None:
    """One of those above, or one of the simulator's. Raises KeyError for a bug that nobody has."""
    from queen_actors.testing.planted import BUGS  # only here: a start is timed

    bugs = {bug.name: bug.plant for bug in BUGS}
    bugs |= {bug.__name__: bug for bug in OWN}
    bugs[name]()


if __name__ == "__main__":
    if "CRASH_PLANTED" in os.environ:
        plant(os.environ["CRASH_PLANTED"])
    if "CRASH_RESTLESS" in os.environ:
        upkeep.INTERVAL_SECONDS, upkeep.IDLE, upkeep.MOST_ACTIVE = 0.05, 50_000, 3
    watched(Slate(Path(os.environ["CRASH_SLATE"])))
    sys.exit(cli.main())

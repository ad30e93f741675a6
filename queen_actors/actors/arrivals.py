"""Arrivals: who waits for new messages of a queue without consuming it (offset readers, tails)."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager

import trio

from queen_actors.domain.effects import Appended, Effect

from .core import Core


class Watch:
    """One reader's watch over some queues. `clear` before looking, `wait` after: nothing that arrives is missed."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def set(self) -> None:
        self._event.set()

    def clear(self) -> None:
        if self._event.is_set():
            self._event = trio.Event()

    async def wait(self) -> None:
        """Return when something arrived since `clear`. It is applied; `log.durable` says when it is durable."""
        await self._event.wait()


class Arrivals:
    """The watches of one broker; an append sets those of its queue."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._watches: dict[str, set[Watch]] = {}

    def observe(self, effect: Effect) -> None:
        """An effect was applied: tell who watches its queue."""
        if not self._watches or not isinstance(effect, Appended):
            return
        partition = self._core.directory.partition(effect.pid)
        if partition is not None:
            for watch in self._watches.get(self._core.directory.queue_names[partition.qid], ()):
                watch.set()

    def wake_all(self) -> None:
        """Everything may have changed, or the broker stops."""
        for watches in self._watches.values():
            for watch in watches:
                watch.set()

    @contextmanager
    def watch(self, queues: Iterable[str]) -> Generator[Watch]:
        """A watch over these queues, whether they exist yet or not, for as long as the block lasts."""
        watch = Watch()
        names = set(queues)
        for name in names:
            self._watches.setdefault(name, set()).add(watch)
        try:
            yield watch
        finally:
            for name in names:
                watches = self._watches[name]
                watches.discard(watch)
                if not watches:
                    del self._watches[name]

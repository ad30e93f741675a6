"""Turns: who holds an actor, and who waits for it, first come first served.

Most commands are over before anybody else can run. A transaction is not, when it must load something first: it holds
everything that it touches from before it looks until its effects are applied, in one global order, so that two of them
cannot wait for each other. While an actor is held its mail waits here; a mailbox exists only while there is mail.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager

import trio

from queen_actors.errors import Unavailable
from queen_actors.limits import CALL_DEADLINE_SECONDS

Key = tuple[str, str]
"""An actor's address: (kind, name). Kinds: kv, lock, partition, queue, timers."""


class Turns:
    """The holds on actors. `busy` is false almost always, and then nobody need ask further."""

    def __init__(self) -> None:
        self._held: dict[Key, deque[trio.Event]] = {}

    @property
    def busy(self) -> bool:
        return bool(self._held)

    def is_held(self, key: Key) -> bool:
        return key in self._held

    async def clear(self, keys: Iterable[Key]) -> None:
        """Return when none of `keys` is held, without holding them: for a command that is one synchronous turn.

        Raises Unavailable when that takes longer than a call may.
        """
        wanted = list(keys)
        with trio.move_on_after(CALL_DEADLINE_SECONDS):
            while (key := next((key for key in wanted if key in self._held), None)) is not None:
                await self._wait(key)
            return
        raise Unavailable("what the call touches is held by a transaction that does not end; try again", code="timeout")

    @asynccontextmanager
    async def hold(self, keys: Iterable[Key]) -> AsyncGenerator[None]:
        """Hold every one of `keys`, taken in the global order, until the block ends. Raises Unavailable as above."""
        ordered = sorted(set(keys))
        taken: list[Key] = []
        try:
            if self._held and not self._held.keys().isdisjoint(ordered):
                await self._take(ordered, taken)
            else:  # nobody is in the way, which is so almost always: no deadline is needed, and it costs as much again
                for key in ordered:
                    self._held[key] = deque()
                taken = ordered
            yield
        finally:
            for key in reversed(taken):
                self._release(key)

    async def _take(self, ordered: Iterable[Key], taken: list[Key]) -> None:
        """Take one after the other, waiting for those that are held; what was taken is in `taken`, whatever happens."""
        with trio.move_on_after(CALL_DEADLINE_SECONDS):
            for key in ordered:
                while key in self._held:
                    await self._wait(key)
                self._held[key] = deque()
                taken.append(key)
            return
        raise Unavailable("what the transaction touches stays held; try again", code="timeout")

    async def _wait(self, key: Key) -> None:
        """Park until the holder is done. Woken waiters look again, in the order in which they came."""
        event = trio.Event()
        mail = self._held[key]
        mail.append(event)
        try:
            await event.wait()
        finally:
            if not event.is_set():
                mail.remove(event)

    def _release(self, key: Key) -> None:
        for event in self._held.pop(key):
            event.set()

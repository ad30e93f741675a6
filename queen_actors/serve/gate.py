"""The gate of a connection: through it goes whatever claims messages, and only while the peer takes what it gets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import TypeVar

import trio

from queen_actors.actors.log import tell_decided

from .outbox import Outbox

T = TypeVar("T")


class Gate:
    """Claims are let through while the outbox has room. When it fills up, those that still wait for messages are
    withdrawn and made again later; once the gate is closed, nothing is claimed any more (section 7)."""

    def __init__(self, outbox: Outbox) -> None:
        self.closed = False
        self._held = False
        self._outbox = outbox
        self._open = trio.lowlevel.ParkingLot()
        self._claims: set[trio.CancelScope] = set()
        outbox.on_full = self._withdraw

    @property
    def open(self) -> bool:
        """Would a claim be let through at once?"""
        return not self.closed and not self._held and not self._outbox.full

    async def claim(self, ask: Callable[[], Awaitable[T]], *, patient: bool = True) -> T | None:
        """What `ask` returns; None when the gate was closed before it had anything. `ask` must be safe to cancel.

        None also for who is not `patient` while the gate is held: the reader that waits for him would never see the
        pong by which it opens. Who is patient, and has to wait here, lets those behind him pass: his turn comes later.
        """
        while True:
            while self._held and not self.closed:
                if not patient:
                    return None
                tell_decided(parked=True)
                await self._open.park()
            if not self.closed:
                if patient and self._outbox.full:
                    tell_decided(parked=True)
                await self._outbox.room()
            if self.closed:
                return None
            if self._held:
                continue
            with self._claim():
                return await ask()

    async def carry(self, ask: Callable[[], Awaitable[T]], give: Callable[[T], None]) -> None:
        """Claim again and again, and `give` what comes, until the gate is closed. Raises what `ask` raises."""
        while not self.closed:
            if not self.open:
                await (self._open.park() if self._held else self._outbox.room())
                continue
            with self._claim():  # one scope for many claims: each would cost as much as the rest of a small one
                while self.open:
                    give(await ask())

    @contextmanager
    def _claim(self) -> Generator[None]:
        """What is under way in the block can be withdrawn; then the block just ends."""
        with trio.CancelScope() as scope:
            self._claims.add(scope)
            try:
                yield
            finally:
                self._claims.discard(scope)

    def hold(self) -> None:
        """Withdraw every claim that waits, and let no other through until `release`: the peer may be dead."""
        self._held = True
        self._withdraw()

    def release(self) -> None:
        self._held = False
        self._open.unpark_all()

    def close(self) -> None:
        """Withdraw every claim that waits, and let no other through."""
        self.closed = True
        self._open.unpark_all()
        self._withdraw()

    def _withdraw(self) -> None:
        for scope in self._claims:
            scope.cancel()

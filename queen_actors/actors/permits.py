"""The permits that one connection holds: it hears of each that it loses, and some of them live with it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from math import inf
from typing import Protocol

from msgspec import Struct

from queen_actors import limits
from queen_actors.domain.locks import permit_key
from queen_actors.ports import Clock
from queen_actors.values import SECOND


class Permit(Struct):
    """One permit; `ttl` and `expires_at` in microseconds. `session`: it lives with the connection."""

    name: str
    slot: int
    token: int
    ttl: int
    expires_at: int | None
    session: bool
    granted: int = 0
    """The token of its grant, which renewals leave as it is."""

    @property
    def key(self) -> str:
        return permit_key(self.name, self.slot)


class _Locks(Protocol):
    async def extend(self, permits: Sequence[Permit]) -> None: ...

    async def give_back(self, permits: Sequence[Permit]) -> None: ...

    def forget(self, permits: Permits, key: str) -> None: ...

    def stop(self, permits: Permits) -> None: ...


class Permits:
    """What one connection holds. Made by `Broker.permits`; `close` at the end."""

    def __init__(self, locks: _Locks, clock: Clock, lost: Callable[[Permit, str], None]) -> None:
        self.stopped = False
        self._locks = locks
        self._clock = clock
        self._lost: Callable[[Permit, str], None] | None = lost
        self._held: dict[str, Permit] = {}
        self._leaving: list[Permit] = []

    def __len__(self) -> int:
        return len(self._held)

    # -- what `Locks` says -----------------------------------------------------------------------------------------

    def add(self, permit: Permit) -> None:
        """A permit was granted here, or (`already`) asked for again; once bound to the connection, it stays so."""
        known = self._held.get(permit.key)
        if known is not None and known.token == permit.token:
            permit.session |= known.session
            permit.granted = known.granted
        self._held[permit.key] = permit

    def renewed(self, key: str, token: int, expires_at: int | None) -> None:
        self._held[key].token, self._held[key].expires_at = token, expires_at

    def leave(self, key: str) -> Permit:
        """It is this connection's no more, lost or given back, once that is durable: `gone`, or `back`."""
        permit = self._held.pop(key)
        self._leaving.append(permit)
        return permit

    def back(self, permit: Permit) -> bool:
        """What made it leave did not happen. False when nobody is there any more who could have it."""
        self._leaving.remove(permit)
        if self._lost is None:
            return False
        self._held[permit.key] = permit
        return True

    def gone(self, permit: Permit, reason: str | None) -> None:
        """It was lost for a reason (expired, deleted, taken), or given back (None)."""
        self._leaving.remove(permit)
        if reason is not None and self._lost is not None:
            self._lost(permit, reason)

    def over(self, key: str, now: int) -> bool:
        """Is the lifetime over of what it holds under this key?"""
        expires_at = self._held[key].expires_at
        return expires_at is not None and expires_at <= now

    def granted(self, key: str) -> int:
        """The token with which it was granted what it holds under this key."""
        return self._held[key].granted

    def holds(self, permit: Permit) -> bool:
        known = self._held.get(permit.key)
        return known is not None and known.token == permit.token

    # -- its life --------------------------------------------------------------------------------------------------

    @property
    def patience(self) -> float:
        """How often `keep_alive` must be called, seconds; infinite when nothing lives with the connection."""
        bound = (permit for permit in (*self._held.values(), *self._leaving) if permit.session)
        return min((permit.ttl / SECOND / 3 for permit in bound), default=inf)

    async def keep_alive(self) -> None:
        """The holder is alive: renew what lives with it and has used up a third of its life. Raises what
        `Core.commit` raises."""
        now = self._clock.now()
        due = [
            permit
            for permit in self._held.values()
            if permit.session and permit.expires_at is not None and permit.expires_at - now <= permit.ttl * 2 // 3
        ]
        for first in range(0, len(due), limits.LOCK_OPS_PER_CALL):
            await self._locks.extend(due[first : first + limits.LOCK_OPS_PER_CALL])

    def stop(self) -> None:
        """The connection is closing: its acquires that wait are answered."""
        self.stopped = True
        self._locks.stop(self)

    async def close(self) -> None:
        """The connection is gone: nothing is told any more, and what lived with it is given back."""
        self.stop()
        self._lost = None
        bound = [permit for permit in (*self._held.values(), *self._leaving) if permit.session]
        for key in self._held:
            self._locks.forget(self, key)
        self._held.clear()
        if bound:
            await self._locks.give_back(bound)


holding: ContextVar[Permits | None] = ContextVar("holding", default=None)
"""Whose permits are those that a task acquires; None for a caller without a connection."""

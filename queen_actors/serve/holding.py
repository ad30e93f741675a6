"""The permits of one connection, and its acquires that wait (`websocket.md`, section 6)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

import trio
from msgspec import Raw

from queen_actors import limits
from queen_actors.actors.permits import Permit, Permits
from queen_actors.api import Reply
from queen_actors.api.messages import JSON
from queen_actors.domain.locks import Acquire, LockResult
from queen_actors.errors import Overloaded, QueenError
from queen_actors.wire import locks as wire
from queen_actors.wire.frames import encode, op_fields
from queen_actors.wire.socket import Frame

from .link import Link

log = logging.getLogger(__name__)


class Lockable(Protocol):
    """What the holding needs of the broker."""

    async def acquire(self, op: Acquire, wait: int, *, session: bool = False) -> LockResult: ...

    def permits(self, lost: Callable[[Permit, str], None]) -> Permits: ...


class Holding:
    """Acquires, tells what is lost, and gives back."""

    def __init__(self, link: Link, broker: Lockable, changed: trio.lowlevel.ParkingLot) -> None:
        self._link = link
        self._broker = broker
        self._changed = changed
        self._waiting = 0
        self.permits = broker.permits(self._lost)

    @property
    def patience(self) -> float:
        """How often permits must be renewed, seconds; infinite when there are none that live with the connection."""
        return self.permits.patience

    async def acquire(self, frame: Frame) -> Reply:
        op, wait, session = wire.parse_waiting(op_fields(Raw(frame.text)) or {})
        if wait and self._waiting >= limits.WS_LOCK_WAITS:
            raise Overloaded(f"{limits.WS_LOCK_WAITS} acquires wait on this connection already")
        self._waiting += wait > 0
        try:
            result = await self._broker.acquire(op, wait, session=session)
        finally:
            self._waiting -= wait > 0
        if session and result.ok:
            self._changed.unpark_all()
        return Reply(200, encode(wire.lock_element(0, result)), JSON)

    async def keep_alive(self) -> None:
        """The peer has answered a ping: renew what lives with the connection."""
        try:
            await self.permits.keep_alive()
        except QueenError as refused:  # at the next answer again; until then the permits run on
            log.warning("permits of a connection could not be renewed: %s", refused)

    def stop(self) -> None:
        """The connection is closing: who waits is answered."""
        self.permits.stop()

    async def close(self) -> None:
        """The connection is gone: what lived with it is given back."""
        try:
            await self.permits.close()
        except QueenError as refused:  # the broker tries again by itself; until then they end with their lifetime
            log.warning("permits could not be given back yet: %s", refused)

    def _lost(self, permit: Permit, reason: str) -> None:
        self._link.send(wire.render_lock_lost(permit.name, permit.token, permit.slot, reason))

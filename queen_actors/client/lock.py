"""A lock or semaphore handle: one permit, renewed in the background, and word when it is lost (wire 3.7, 3.8).

A permit is a lease. The handle believes in it up to a deadline on this machine's own clock, counted from the moment
at which the call that granted or renewed it was sent, so never later than the broker's deadline. Past the deadline it
holds nothing, whatever the broker says. The belief is not a proof; the guard of a transaction is.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Literal, Self

import trio

from queen_actors.client.cancellation import is_cancellation
from queen_actors.errors import QueenError, Unavailable

from .durations import Duration, seconds_of, whole_seconds
from .errors import LockNotHeldError, ProtocolError
from .hold import Hold
from .locks import Locks, acquire_op, release_op, renew_op
from .results import LockResult
from .transport import Transport

log = logging.getLogger("queen_actors.client")

LostReason = Literal["renew", "guard", "expired", "deleted", "taken"]
"""Why a permit was lost: the broker would not renew it, it refused the guard, its lifetime ran out; or, as the broker
tells who holds it (`hold`), somebody deleted it or wrote over it."""
OnLost = Callable[[LostReason], Awaitable[object] | object]

_TOLD: dict[str, LostReason] = {"expired": "expired", "deleted": "deleted", "taken": "taken"}

RELEASE_SECONDS = 1.0  # for the release at the end of a block; the permit ends by itself
SOONEST_RENEWAL = 0.05  # seconds between attempts to renew when the broker cannot be asked
HELD_MAX = 10_000  # handles of one client that hold a permit at once


def new_owner(unique: str) -> str:
    """Who holds a permit, for people: the machine, the process, and what makes the handle unique."""
    return f"{socket.gethostname()[:128]}:{os.getpid()}:{unique}"


class Held:
    """The handles of one client that hold a permit, how to start a task of that client, and its transport."""

    def __init__(self, start: Callable[..., None], transport: Transport) -> None:
        self.start = start
        self.transport = transport
        self.handles: set[Lock] = set()

    async def release_all(self) -> None:
        """Give back every permit, as far as the broker can be asked. Raises nothing but cancellation."""
        async with trio.open_nursery() as nursery:
            for handle in list(self.handles):
                nursery.start_soon(handle.release_quietly)


class Lock:
    """`queen.lock(name)` and `queen.semaphore(name, n)`. Not to be shared: each worker makes its own.

    `clock` tells the seconds of this machine's time; a test that stops it has a frozen holder, whose guard is sent
    although its lifetime is over.
    """

    def __init__(
        self,
        locks: Locks,
        held: Held,
        name: str,
        *,
        ttl_seconds: Duration,
        owner: str | None,
        unique: str,
        limit: int = 1,
        on_lost: OnLost | None = None,
        auto_renew: bool = True,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.name = name
        self.owner = owner or new_owner(unique)
        self._sole = owner is None
        self.limit = limit
        self.ttl_seconds = whole_seconds(ttl_seconds, "ttl_seconds")
        self.lost = trio.Event()
        """Set when the permit is lost; a new one after each acquire. A release is not a loss."""
        self.lost_reason: LostReason | None = None
        self._locks = locks
        self._held = held
        self._handlers: list[OnLost] = [] if on_lost is None else [on_lost]
        self._auto_renew = auto_renew
        self._clock = clock or trio.current_time
        self._permit: LockResult | None = None
        self._valid_until = 0.0
        self._keeper = trio.CancelScope()
        self._calling = trio.Lock()  # one call about the permit at a time: each changes the token

    def __repr__(self) -> str:
        state = f"token {self.token}" if self.held else "not held"
        return f"<{type(self).__name__} {self.name!r}, {state}>"

    # What it is

    @property
    def held(self) -> bool:
        """Whether a permit was granted and its lifetime is not over on this machine's clock."""
        return self._permit is not None and self._clock() < self._valid_until

    @property
    def token(self) -> int | None:
        """The fencing token, which rises with every grant and renewal; None when not held."""
        return self._permit.token if self._permit is not None and self.held else None

    @property
    def slot(self) -> int | None:
        """Which of the permits it is (0 for a lock); None when not held."""
        return self._permit.slot if self._permit is not None and self.held else None

    @property
    def seconds_left(self) -> float:
        """What is left of the lifetime on this machine's clock; 0 when not held."""
        return max(0.0, self._valid_until - self._clock()) if self._permit is not None else 0.0

    def guard(self) -> dict[str, Any]:
        """The `check` that holds while the permit is this handle's, at the token of now (`transaction().guard(lock)`
        adds it). Raises LockNotHeldError."""
        if self._permit is None or not self.held:
            raise LockNotHeldError(f"the lock {self.name!r} is not held: there is nothing to guard with")
        guard: dict[str, Any] = dict(self._permit["guard"])
        return guard

    def on_lost(self, handler: OnLost) -> Self:
        """Call `handler(reason)`, sync or async, when the permit is lost."""
        self._handlers.append(handler)
        return self

    # Operations

    async def acquire(self, wait: Duration | None = None) -> bool:
        """Take the permit. False: somebody else had it to the end of `wait` (without it: has it now).

        Who waits stands in the broker's line (`websocket.md` 6), first come, first served, and is woken when its turn
        has come. Raises QueenError when the broker cannot be asked.
        """
        deadline = trio.current_time() + (0.0 if wait is None else seconds_of(wait, "wait"))
        try:
            async with self._calling:
                if self.held or await self._acquire_once():
                    return True
        except BaseException as error:
            if is_cancellation(error):
                self.undo_later()
            raise
        while not self.held and (left := deadline - trio.current_time()) > 0:
            if await Hold(self, self._held.transport, left).stand():
                return True
            # Too soon: the longest wait that the broker takes is over, or the broker is about to go
            await trio.sleep(min(self._held.transport.retry.pause, max(0.0, deadline - trio.current_time())))
        return self.held

    def make_room(self) -> None:
        """Raises RuntimeError when the client holds as many permits as it may."""
        if len(self._held.handles) >= HELD_MAX:
            raise RuntimeError(f"this client holds {HELD_MAX} permits already: release some")

    async def _acquire_once(self) -> bool:
        self.make_room()
        sent_at = self._clock()
        (answer,) = await self._locks.batch((acquire_op(self.name, self.ttl_seconds, self.owner, self.limit),))
        if not answer.acquired:
            return False
        if answer.already:
            # The owner held it before, and the broker did not extend it: only a renewal tells how long it lasts.
            sent_at = self._clock()
            (answer,) = await self._locks.batch((self._renewal(answer),))
            if not answer.renewed:
                return False
        self._take(answer, sent_at)
        return True

    def hold(self, wait: Duration | None = None) -> Hold:
        """The permit for as long as a block runs: `async with lock.hold(wait=60): ...`.

        Unlike `acquire` it stands in the broker's line (for an hour at most), first come, first served, and the broker
        tells it when the permit is lost: the block is cancelled then, and leaving raises LockLostError. Raises
        LockNotHeldError when the wait is over.
        """
        return Hold(self, self._held.transport, wait)

    def undo_later(self) -> None:
        """The caller is gone, and the permit may have been granted to nobody: give it back, unless the owner is one
        that somebody else may use too."""
        if self._sole and self._permit is None:
            with suppress(Unavailable):  # the client is closed: the permit ends with its lifetime
                self._held.start(self._undo)

    async def _undo(self) -> None:
        try:
            async with self._calling:
                if self._permit is None:
                    (found,) = await self._locks.batch(({"op": "get", "name": self.name},))
                    mine = [holder for holder in found.holders if holder.get("owner") == self.owner]
                    for holder in mine:
                        await self._locks.batch((release_op(self.name, holder["token"], holder["slot"]),))
        except QueenError as error:
            log.warning("lock %r of a cancelled caller ends with its lifetime: %s", self.name, error)

    def _renewal(self, permit: LockResult) -> dict[str, Any]:
        return renew_op(self.name, permit["token"], permit["slot"], self.ttl_seconds, self.owner)

    async def renew(self) -> bool:
        """Start the lifetime again. False: the permit is gone. Raises QueenError when the broker could not be asked;
        the deadline then stands."""
        async with self._calling:
            return await self._renew_once()

    async def _renew_once(self) -> bool:
        permit = self._permit
        if permit is None:
            return False
        if not self.held:
            self._lose("expired")
            return False
        sent_at = self._clock()
        (answer,) = await self._locks.batch((self._renewal(permit),), seconds=self.seconds_left)
        if self._permit is not permit:  # lost here while the answer was under way
            return False
        if not answer.renewed:
            self._lose("renew")
            return False
        self._believe(answer, sent_at)
        return True

    async def release(self) -> bool:
        """Give the permit back. False: it was not this handle's any more. The handle can acquire again."""
        async with self._calling:
            permit = self._permit
            if permit is None:
                return False
            self._drop()
            (answer,) = await self._locks.batch((release_op(self.name, permit["token"], permit["slot"]),))
            if not answer.released and self._holds(answer):
                # A renewal whose answer never came moved the token: ask for it by owner, and release that.
                (renewed,) = await self._locks.batch((self._renewal(permit),))
                if renewed.renewed:
                    (answer,) = await self._locks.batch((release_op(self.name, renewed["token"], renewed["slot"]),))
            return answer.released

    def _holds(self, answer: LockResult) -> bool:
        return any(holder.get("owner") == self.owner and holder.get("slot") == answer.slot for holder in answer.holders)

    async def release_quietly(self) -> None:
        """Release when leaving: the permit ends by itself if the broker cannot be asked."""
        try:
            await self.release()
        except QueenError as error:
            log.warning("lock %r was not released, it ends with its lifetime: %s", self.name, error)

    async def __aenter__(self) -> Self:
        if not await self.acquire():
            raise LockNotHeldError(f"the lock {self.name!r} is held by somebody else")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.leave()

    async def leave(self) -> None:
        """Release at the end of a block, within a bound: the permit ends by itself."""
        with trio.CancelScope(shield=True), trio.move_on_after(RELEASE_SECONDS):
            await self.release_quietly()
        self._drop()

    # For `hold`

    def start(self, task: Callable[..., Awaitable[object]]) -> None:
        """Run a background task of the client. Raises Unavailable when it is closed."""
        self._held.start(task)

    def now(self) -> float:
        """This machine's time, seconds, as the handle believes in it."""
        return self._clock()

    async def adopt(self, permit: LockResult, since: float) -> bool:
        """Take a permit that was granted to this handle's owner at some time after `since`. False: it is lost."""
        async with self._calling:
            if permit.already or self._clock() - since > self.ttl_seconds / 3:
                since = self._clock()
                (permit,) = await self._locks.batch((self._renewal(permit),))
                if not permit.renewed:
                    return False
            self._take(permit, since)
            return True

    def told_lost(self, reason: str) -> None:
        """The broker says that the permit is lost."""
        if self._permit is not None:
            self._lose(_TOLD.get(reason, "expired"))

    # For transactions

    async def settled(self, token: int | None) -> None:
        """Return when no renewal is under way; if the token is still this one, learn the new one by a renewal."""
        async with self._calling:
            if self.held and self.token == token:
                await self._renew_once()

    def refused(self) -> None:
        """The broker refused the guard: the permit is somebody else's, or gone."""
        if self._permit is not None:
            self._lose("guard")

    # State

    def _believe(self, permit: LockResult, sent_at: float) -> None:
        if permit.token is None or permit.slot is None or permit.guard is None:
            raise ProtocolError(f"the permit has no token, slot or guard: {permit}")
        self._permit, self._valid_until = permit, sent_at + self.ttl_seconds

    def _take(self, permit: LockResult, sent_at: float) -> None:
        self._believe(permit, sent_at)
        self.lost, self.lost_reason = trio.Event(), None
        self._held.handles.add(self)
        self._keeper.cancel()
        self._keeper = trio.CancelScope()
        self._held.start(self._keep, self._keeper)

    def _drop(self) -> None:
        self._permit, self._valid_until = None, 0.0
        self._keeper.cancel()
        self._held.handles.discard(self)

    def _lose(self, reason: LostReason) -> None:
        log.warning("lock %r (owner %s) was lost: %s", self.name, self.owner, reason)
        self._drop()
        self.lost_reason = reason
        self.lost.set()
        for handler in self._handlers:
            self._held.start(self._tell, handler, reason)

    @staticmethod
    async def _tell(handler: OnLost, reason: LostReason) -> None:
        try:
            done = handler(reason)
            if isinstance(done, Awaitable):
                await done
        except Exception:  # the user's code: its failure must not end the client of everybody else
            log.exception("an on_lost handler failed")

    async def _keep(self, scope: trio.CancelScope) -> None:
        """Of one hold: renew every third of the lifetime, and call the permit lost when its lifetime is over."""
        with scope:
            pause = self.ttl_seconds / 3
            while self._permit is not None:
                left = self.seconds_left
                await trio.sleep(min(pause, left) if self._auto_renew else left)
                if not self.held:
                    self._lose("expired")
                    return
                if self._auto_renew:
                    pause = await self._renew_in_background()

    async def _renew_in_background(self) -> float:
        """Seconds to the next attempt: a third of the lifetime, sooner when the broker could not be asked."""
        try:
            with trio.move_on_after(self.seconds_left) as asking:
                await self.renew()
            if not asking.cancelled_caught:
                return self.ttl_seconds / 3
        except QueenError as error:
            log.warning("lock %r could not be renewed yet: %s", self.name, error)
        return max(min(self.seconds_left / 4, self.ttl_seconds / 3), SOONEST_RENEWAL)

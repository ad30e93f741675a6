"""Holding a lock while a block runs: wait in line for it, be stopped when it is lost (`websocket.md`, section 6)."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

import trio

from .durations import Duration, seconds_of
from .errors import LockLostError, LockNotHeldError
from .live import Live
from .locks import acquire_op
from .results import LockResult
from .transport import OPENING_SECONDS, Transport

if TYPE_CHECKING:
    from .lock import Lock

WAIT_SECONDS_MAX = 3600.0  # the broker's bound of one wait


class Hold:
    """`async with queen.lock(name).hold(wait=60) as lock: ...`

    Entering waits in the broker's line, first come, first served, and raises LockNotHeldError when the wait is over.
    When the permit is lost the block is cancelled, and leaving raises LockLostError; leaving releases.
    """

    def __init__(self, lock: Lock, transport: Transport, wait: Duration | None) -> None:
        self.lock = lock
        self.about = f"the lock {lock.name}"
        self._wait = 0.0 if wait is None else min(max(seconds_of(wait, "wait"), 0.0), WAIT_SECONDS_MAX)
        self._deadline = 0.0
        self._live = Live(lock.start, transport.talk(self))
        self._answer: LockResult | None = None
        self._adopted = False
        self._lost_early: str | None = None
        self._scope = trio.CancelScope()
        self._watching = trio.CancelScope()

    @property
    def patience(self) -> float:
        """As `Talk.patience`."""
        return OPENING_SECONDS + self._left

    @property
    def _left(self) -> float:
        """What is left of the wait, seconds; nothing once it is over."""
        return max(0.0, self._deadline - trio.current_time()) if self._answer is None else 0.0

    # What the stream calls (transport.Talk)

    def opening(self) -> dict[str, Any]:
        """As `Talk.opening`; the wait is what is left of it."""
        lock = self.lock
        op = acquire_op(lock.name, lock.ttl_seconds, lock.owner, lock.limit)
        return {**op, "op": "lock.acquire", "waitSeconds": self._left}

    def opened(self, body: dict[str, Any]) -> None:
        """As `Talk.opened`."""
        answer = LockResult(body)
        if self._answer is None:
            self._answer = answer
        elif not answer.already:  # its lifetime was over while there was no connection
            self._lost("expired" if answer.acquired else "taken")
            if answer.acquired:
                self.lock.undo_later()

    def event(self, frame: dict[str, Any]) -> None:
        """As `Talk.event`: the permit is lost."""
        self._lost(str(frame.get("reason")))

    def _lost(self, reason: str) -> None:
        if self._adopted:
            self.lock.told_lost(reason)
        else:
            self._lost_early = reason

    def disconnected(self) -> None:
        """The permit is renewed by calls, so it lives on; until there is a connection again, they tell of a loss."""

    # Its life

    async def take(self) -> None:
        """Wait for the permit. Raises LockNotHeldError, and QueenError when the broker cannot be asked."""
        lock = self.lock
        if lock.held:
            raise RuntimeError(f"this handle holds the lock {lock.name!r} already")
        lock.make_room()
        self._deadline = trio.current_time() + self._wait
        began = lock.now()
        try:
            await self._live.enter()
            answer = self._answer
            if answer is None or not answer.acquired or not await lock.adopt(answer, began):
                raise LockNotHeldError(f"the lock {lock.name!r} is held by somebody else")
        except BaseException as error:
            await self._live.leave()
            if not isinstance(error, LockNotHeldError):
                lock.undo_later()
            raise
        self._adopted = True
        if self._lost_early is not None:
            lock.told_lost(self._lost_early)

    async def stand(self) -> bool:
        """Wait in the line only: whether the lock's handle has the permit now. Nothing is watched after that."""
        try:
            await self.take()
        except LockNotHeldError:
            return False
        self._adopted = False
        await self._live.leave()
        return True

    async def give(self) -> None:
        """Release it, within a bound; nothing is told any more."""
        self._adopted = False
        await self.lock.leave()
        await self._live.leave()

    def check(self) -> None:
        """Raises LockLostError when the permit was lost before it was given back."""
        reason = self.lock.lost_reason
        if reason is not None:
            raise LockLostError(f"the lock {self.lock.name!r} was lost while it was held: {reason}", reason=reason)

    async def __aenter__(self) -> Lock:
        await self.take()
        self.lock.start(self._cancel_when_lost)
        self._scope.__enter__()
        return self.lock

    async def _cancel_when_lost(self) -> None:
        with self._watching:
            await self.lock.lost.wait()
            self._scope.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        stopped = False
        try:
            stopped = bool(self._scope.__exit__(kind, error, trace))
        finally:
            self._watching.cancel()
            await self.give()
        if error is None or stopped:
            self.check()
        return stopped

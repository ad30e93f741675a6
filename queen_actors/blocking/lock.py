"""A lock or semaphore handle, renewed on the Trio thread while the caller's thread works."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Self

import trio

from queen_actors import client
from queen_actors.client.durations import Duration, seconds_of
from queen_actors.client.lock import LostReason

from .face import Face, on_trio, waits
from .portal import Portal

OnLost = Callable[[LostReason], object]
"""Told, on a thread of its own, that a permit is lost. It may use the client."""


class Lost:
    """Whether a permit is lost; `threading.Event` to read."""

    def __init__(self, portal: Portal, event: trio.Event) -> None:
        self._portal = portal
        self._event = event

    def is_set(self) -> bool:
        """Whether it is lost."""
        return self._event.is_set()

    def wait(self, timeout: Duration | None = None) -> bool:
        """Wait until it is lost. False: it was not within the timeout."""
        seconds = None if timeout is None else seconds_of(timeout, "timeout")
        return self._portal.call(partial(_wait, self._event, seconds))


async def _wait(event: trio.Event, seconds: float | None) -> bool:
    with trio.move_on_after(float("inf") if seconds is None else seconds):
        await event.wait()
    return event.is_set()


class Hold(Face[client.Hold]):
    """`with queen.lock(name).hold(wait=60) as lock: ...`: waits in the broker's line, and releases at the end.

    Python cannot stop a thread: a block that must not go on without the lock looks at `lock.held`, or guards what it
    commits. When the permit was lost, leaving raises LockLostError.
    """

    def __enter__(self) -> Lock:
        """Raises LockNotHeldError when the wait is over."""
        self.portal.call(self.wrapped.take)
        return Lock(self.portal, self.wrapped.lock)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.portal.call(self.wrapped.give)
        if error is None:
            self.wrapped.check()


def _hold(portal: Portal, wrapped: client.Hold) -> Hold:
    return Hold(portal, wrapped)


class Lock(Face[client.Lock]):
    """`queen.lock(name)` and `queen.semaphore(name, n)`: `with queen.lock("daily-report"):`.

    One permit, renewed every third of its lifetime in the background. Not to be shared: each worker makes its own.
    """

    acquire = waits(client.Lock.acquire)
    renew = waits(client.Lock.renew)
    release = waits(client.Lock.release)

    @property
    def name(self) -> str:
        """The name of the lock."""
        return self.wrapped.name

    @property
    def owner(self) -> str:
        """Who holds it, as the broker shows it to others."""
        return self.wrapped.owner

    @property
    def limit(self) -> int:
        """How many may hold it at once: 1 for a lock."""
        return self.wrapped.limit

    @property
    def ttl_seconds(self) -> int:
        """The lifetime of the permit, whole seconds, renewed every third."""
        return self.wrapped.ttl_seconds

    @property
    def held(self) -> bool:
        """Whether a permit was granted and its lifetime is not over on this machine's clock."""
        return self.portal.call_sync(lambda: self.wrapped.held)

    @property
    def token(self) -> int | None:
        """The fencing token, which rises with every grant and renewal; None when not held."""
        return self.portal.call_sync(lambda: self.wrapped.token)

    @property
    def slot(self) -> int | None:
        """Which of the permits it is (0 for a lock); None when not held."""
        return self.portal.call_sync(lambda: self.wrapped.slot)

    @property
    def seconds_left(self) -> float:
        """What is left of the lifetime on this machine's clock; 0 when not held."""
        return self.portal.call_sync(lambda: self.wrapped.seconds_left)

    @property
    def lost(self) -> Lost:
        """Set when the permit is lost; a new one after each acquire. A release is not a loss."""
        return Lost(self.portal, self.wrapped.lost)

    @property
    def lost_reason(self) -> LostReason | None:
        """Why it was lost (renew, guard, expired, deleted, taken); None while it is not."""
        return self.wrapped.lost_reason

    hold = on_trio(client.Lock.hold, _hold)
    guard = on_trio(client.Lock.guard, lambda _portal, guard: guard)

    def on_lost(self, handler: OnLost) -> Self:
        """Call `handler(reason)`, on a thread of its own, when the permit is lost."""
        self.wrapped.on_lost(in_thread(handler))
        return self

    def __enter__(self) -> Self:
        """Raises LockNotHeldError when somebody else holds it."""
        self.portal.call(self.wrapped.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.portal.call(partial(self.wrapped.__aexit__, kind, error, trace))

    def __repr__(self) -> str:
        return f"<Lock {self.name!r}>"


def in_thread(handler: OnLost) -> Callable[[LostReason], Any]:
    """The handler as the Trio client takes it; leaving the client does not wait for it."""

    async def told(reason: LostReason) -> None:
        await trio.to_thread.run_sync(handler, reason, abandon_on_cancel=True)

    return told


def lock(portal: Portal, wrapped: client.Lock) -> Lock:
    """The blocking handle of a Trio one."""
    return Lock(portal, wrapped)

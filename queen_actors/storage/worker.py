"""One thread that does blocking work for Trio tasks, one call after the other.

`trio.to_thread.run_sync` takes a limiter, a worker cache and a cancellation dance for every call; a thread of one's
own, fed by a SimpleQueue, answers in about a third of the time, and the calls keep their order. Where there is one, an
eventfd tells that a call has returned, in one read where Trio's own way back from threads takes two and an exception.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar, cast

import outcome
import trio

from queen_actors.errors import StorageFailed

T = TypeVar("T")

_Returned = tuple[trio.lowlevel.Task, "outcome.Outcome[Any]", "Callable[[], None] | None"]
_Job = tuple[Callable[[], Any], "Callable[[], None] | None", trio.lowlevel.Task, "_Eventfd | _Soon"]


class Worker:
    """A daemon thread that runs what `run` is given, in order."""

    def __init__(self, name: str) -> None:
        self._inbox: SimpleQueue[_Job | None] = SimpleQueue()
        self._way: _Eventfd | _Soon | None = None
        self._stopped = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    async def run(
        self, call: Callable[[], T], *, hurry: Callable[[], None] | None = None, then: Callable[[], None] | None = None
    ) -> T:
        """What `call` returns or raises. It is always run, and always waited for: a cancellation in the meantime is
        delivered at the caller's next checkpoint, and `hurry`, which must not raise, is called so that long work can
        end itself sooner.
        `then` is called in Trio's thread when it has returned: a turn of the event loop before the caller goes on.
        Raises StorageFailed after `stop`: nobody is there any more to do it."""
        if self._stopped:
            raise StorageFailed("The store is closed.")

        def abort(_: object) -> trio.lowlevel.Abort:
            if hurry is not None:
                hurry()
            return trio.lowlevel.Abort.FAILED

        way, token = self._way, trio.lowlevel.current_trio_token()
        if way is None or way.token is not token:  # the first call, or the first in another run of Trio's
            way = self._way = _way_back(token)
        self._inbox.put((call, then, trio.lowlevel.current_task(), way))
        return cast(T, await trio.lowlevel.wait_task_rescheduled(abort))

    def stop(self) -> None:
        """Let the thread end behind the calls that were already given."""
        self._stopped = True
        self._inbox.put(None)

    def _work(self) -> None:
        get = self._inbox.get
        while (job := get()) is not None:
            call, then, task, way = job
            result = outcome.capture(call)
            way.back((task, result, then))
            del call, then, task, way, result, job  # an idle thread keeps nothing alive
        if self._way is not None:
            self._way.back(None)


class _Soon:
    """The way back into Trio's thread that Trio has for everybody."""

    def __init__(self, token: trio.lowlevel.TrioToken) -> None:
        self.token = token

    def back(self, returned: _Returned | None) -> None:
        if returned is not None:
            with contextlib.suppress(trio.RunFinishedError):  # the loop has ended, and the task with it
                self.token.run_sync_soon(_go_on, *returned)


class _Eventfd:
    """A way back into Trio's thread with as little on it as there can be.

    When a loop ends, its task here does before others of the system's, and before generators are finalized: what those
    wait for comes back by Trio's own way. Raises OSError when there is no descriptor to be had, RuntimeError when no
    system task begins any more.
    """

    def __init__(self, token: trio.lowlevel.TrioToken) -> None:
        self.token = token
        self._closed = False
        self._soon = _Soon(token)
        self._returned: deque[_Returned | None] = deque()
        self._lock = threading.Lock()
        """Held while the descriptor is used by the other thread, and while it is closed: its number is soon reused."""
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        try:
            trio.lowlevel.spawn_system_task(self._collect, name="queen-actors-collect")
        except RuntimeError:
            os.close(self._fd)
            raise

    def back(self, returned: _Returned | None) -> None:
        """From the other thread: its caller goes on; None: there will be no more."""
        with self._lock:
            if not self._closed:
                self._returned.append(returned)
                os.eventfd_write(self._fd, 1)
                return
        self._soon.back(returned)

    async def _collect(self) -> None:
        try:
            while True:
                await trio.lowlevel.wait_readable(self._fd)
                os.eventfd_read(self._fd)
                while self._returned:
                    returned = self._returned.popleft()
                    if returned is None:
                        return
                    _go_on(*returned)
                    del returned
        finally:
            with self._lock:
                self._closed = True
                os.close(self._fd)
            while self._returned:
                self._soon.back(self._returned.popleft())


_EVENTFD = hasattr(os, "eventfd")  # Linux


def _way_back(token: trio.lowlevel.TrioToken) -> _Eventfd | _Soon:
    """The best way that there is."""
    if _EVENTFD:
        with contextlib.suppress(OSError, RuntimeError):  # out of descriptors, or the loop is about to end
            return _Eventfd(token)
    return _Soon(token)


def _go_on(task: trio.lowlevel.Task, result: outcome.Outcome[Any], then: Callable[[], None] | None) -> None:
    if then is not None and isinstance(result, outcome.Value):
        result = outcome.capture(then)
    trio.lowlevel.reschedule(task, result)

"""A thread that runs Trio, and calls into it from any other thread.

Exceptions come out as they are. A call whose waiting is interrupted (Ctrl-C) is cancelled on the Trio side before the
interrupt goes on, so that nothing is left behind that nobody waits for.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import trio

from queen_actors.client.cancellation import is_cancellation
from queen_actors.errors import Unavailable

log = logging.getLogger("queen_actors.blocking")

R = TypeVar("R")
S = TypeVar("S")

CANCEL_SECONDS = 5.0
"""How long an interrupted call may take to end."""
LEAVE_SECONDS = 10.0
"""How long leaving may take beyond what the block itself promises; and how long, once it is cancelled for that."""


class Portal:
    """Where calls enter the Trio thread. Safe to use from several threads at once."""

    def __init__(self) -> None:
        self._token: trio.lowlevel.TrioToken | None = None
        self._thread = -1
        self._pending: set[Future[Any]] = set()
        self._scopes: set[trio.CancelScope] = set()
        self._quiet = trio.lowlevel.ParkingLot()
        self._lock = threading.Lock()
        self._ended = "the client has not been opened"
        self._failure: BaseException | None = None

    def call(self, function: Callable[[], Awaitable[R]]) -> R:
        """What the async function returns or raises. Raises Unavailable when the client is closed."""
        scope = trio.CancelScope()
        future: Future[R] = Future()
        self._enter(future, partial(self._spawn, function, scope, future))
        try:
            return future.result()
        except BaseException:
            if not future.done():  # interrupted while waiting
                self._soon(scope.cancel)
                with suppress(BaseException):  # also a second interrupt: the first one is on its way
                    future.exception(CANCEL_SECONDS)
            raise

    def call_sync(self, function: Callable[[], R]) -> R:
        """What the function returns or raises, run on the Trio thread. Raises Unavailable when the client is closed."""
        future: Future[R] = Future()
        self._enter(future, partial(_settle, function, future))
        return future.result()

    def _enter(self, future: Future[Any], begin: Callable[[], None]) -> None:
        if threading.get_ident() == self._thread:
            raise RuntimeError("a blocking call on the client's own Trio thread would wait for itself")
        with self._lock:
            if self._token is None:
                raise self._unavailable()
            self._pending.add(future)
        future.add_done_callback(self._forget)
        self._soon(begin)

    def _forget(self, future: Future[Any]) -> None:
        with self._lock:
            self._pending.discard(future)

    def _soon(self, function: Callable[[], object]) -> None:
        token = self._token
        if token is not None:
            with suppress(trio.RunFinishedError):  # then `close` answers for what is pending
                token.run_sync_soon(function)

    def _spawn(self, function: Callable[[], Awaitable[Any]], scope: trio.CancelScope, future: Future[Any]) -> None:
        if self._token is None:  # closed since the call came in
            future.set_exception(self._unavailable())
            return
        self._scopes.add(scope)
        trio.lowlevel.spawn_system_task(self._run, function, scope, future)

    async def _run(self, function: Callable[[], Awaitable[Any]], scope: trio.CancelScope, future: Future[Any]) -> None:
        try:
            with scope:
                try:
                    future.set_result(await function())
                except BaseException as error:  # the boundary: it belongs to the caller's thread
                    if is_cancellation(error):
                        raise
                    future.set_exception(error)
            if not future.done():
                future.set_exception(Unavailable(f"the call was cancelled: {self._ended or 'it was interrupted'}"))
        finally:
            self._scopes.discard(scope)
            if not self._scopes:
                self._quiet.unpark_all()

    # The Trio side

    def open(self) -> None:
        """From here on calls are taken. On the Trio thread."""
        self._thread = threading.get_ident()
        self._ended = ""
        self._token = trio.lowlevel.current_trio_token()

    async def drain(self) -> None:
        """Take no more calls, and cancel those under way. On the Trio thread."""
        self._refuse("the client is closed")
        for scope in self._scopes:
            scope.cancel()
        while self._scopes:
            await self._quiet.park()

    def _refuse(self, why: str, failure: BaseException | None = None) -> None:
        with self._lock:
            self._token, self._ended, self._failure = None, why, failure

    def _unavailable(self) -> Unavailable:
        error = Unavailable(self._ended)
        error.__cause__ = self._failure
        return error

    def close(self, failure: BaseException | None) -> None:
        """The run is over: answer for every call that it did not."""
        self._refuse("the client is closed" if failure is None else f"the client has failed: {failure}", failure)
        self._thread = -1
        with self._lock:
            pending = [future for future in self._pending if not future.done()]
        for future in pending:
            future.set_exception(self._unavailable())


def _settle(function: Callable[[], R], future: Future[R]) -> None:
    try:
        future.set_result(function())
    except BaseException as error:  # the boundary: it belongs to the caller's thread
        future.set_exception(error)


class _Thread:
    """One async context manager, entered on a Trio thread of its own and left there."""

    def __init__(self, opened: Callable[[], AbstractAsyncContextManager[Any]], leave_seconds: float) -> None:
        self.portal = Portal()
        self._leave_seconds = leave_seconds + LEAVE_SECONDS
        self.entered: Future[Any] = Future()
        self.failure: BaseException | None = None
        self._opened = opened
        self._leave = trio.Event()
        self._scope = trio.CancelScope()
        self._token: trio.lowlevel.TrioToken | None = None
        # A daemon: a notebook that ends without leaving the block must not hang on it
        self._thread = threading.Thread(target=self._run, name="queen-actors", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as error:  # the boundary: it belongs to the thread that entered
            self.failure = error
        finally:
            self.portal.close(self.failure)
            if not self.entered.done():
                self.entered.set_exception(self.failure or Unavailable("the client was closed while it opened"))
                self.failure = None

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        with self._scope:
            async with self._opened() as inner:
                self.portal.open()
                self.entered.set_result(inner)
                try:
                    await self._leave.wait()
                finally:
                    with trio.CancelScope(shield=True), trio.move_on_after(CANCEL_SECONDS):
                        await self.portal.drain()

    def leave(self) -> None:
        """Let the block end in good order, and join the thread; both within a bound."""
        try:
            self._soon(self._leave.set)
            self._thread.join(self._leave_seconds)
        finally:
            if self._thread.is_alive():
                self._soon(self._scope.cancel)
                self._thread.join(LEAVE_SECONDS)
        if self._thread.is_alive():
            log.error("the client's thread did not end within its time; it is left behind")

    def _soon(self, function: Callable[[], object]) -> None:
        if self._token is not None:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(function)


@contextmanager
def entered(
    opened: Callable[[], AbstractAsyncContextManager[S]], wrap: Callable[[Portal, S], R], leave_seconds: float
) -> Generator[R]:
    """Enter `opened` on a new Trio thread; what it gave, wrapped. The block's own exception comes out as it is; a
    failure of what was entered comes out when there is none. Leaving it takes `leave_seconds` by its own promise."""
    thread = _Thread(opened, leave_seconds)
    thread.start()
    mine = False
    try:
        yield wrap(thread.portal, thread.entered.result())
    except BaseException:
        mine = True
        raise
    finally:
        thread.leave()
        if thread.failure is not None and not mine:
            raise thread.failure

"""What both kinds of connections need to answer when the log has what they decided (`actors/log.py`: `Deferral`)."""

from __future__ import annotations

import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any, TypeVar, cast

import outcome
from trio.lowlevel import Abort, RaiseCancelT, current_task, reschedule, wait_task_rescheduled

from queen_actors.actors.log import Deferral
from queen_actors.errors import QueenError

T = TypeVar("T")


@types.coroutine
def rest_of(begun: Coroutine[Any, Any, T], trap: Any) -> Generator[Any, Any, T]:
    """The rest of a coroutine that has been begun by hand, and has stopped at this."""
    try:
        while True:
            try:
                value = yield trap
            except BaseException as thrown:  # a cancellation, most of all: it is the coroutine's
                trap = begun.throw(thrown)
            else:
                trap = begun.send(value)
    except StopIteration as done:
        return cast(T, done.value)


async def durable(later: Deferral, leave: Callable[[], None]) -> None:
    """Return when what `later` waits for is durable. `leave`, which must not raise, is called as soon as that is so, a
    turn of the event loop before this task goes on, if no task waits for the same commit: it would be kept waiting, and
    so would the next commit. It is not called for somebody who is cancelled first, as none who is `firm` is.

    Raises StorageFull when it was refused, StorageFailed when its fate is not known. No checkpoint if it is durable
    already, and then `leave` is not called.
    """
    log, position, reloads, task = later.log, later.position, later.reloads, current_task()
    if log is None or log.settled(position, reloads):
        return

    def look() -> bool:
        try:
            if not log.settled(position, reloads):
                return True
        except QueenError as refusal:
            reschedule(task, outcome.Error(refusal))
            return False
        if not log.awaited:  # those who came meanwhile are woken now, and are to be answered together with this one
            leave()
        reschedule(task)
        return False

    def abort(_: RaiseCancelT) -> Abort:
        if later.firm:
            return Abort.FAILED
        log.unlook(look)
        return Abort.SUCCEEDED

    log.look(look)
    await wait_task_rescheduled(abort)

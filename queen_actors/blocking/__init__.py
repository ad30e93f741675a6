"""The client for programs that do not run Trio: scripts, notebooks, threads, and asyncio.

    from queen_actors import blocking

    with blocking.connect("http://127.0.0.1:6632") as queen:
        queen.queue("orders").push({"amount": 120})
        with queen.queue("orders").subscribe(group="billing") as messages:
            for message in messages:
                message.ack()

`connect()` and `open_broker()` take what `queen_actors.connect` and `queen_actors.open_broker` take. Each runs the Trio
client on one thread of its own, where locks are renewed and messages received, and everything here calls into it: the
same surface, and blocking. Any number of threads may share a client. Ctrl-C interrupts a call and cancels it.

In asyncio, keep the loop free: `await asyncio.to_thread(queen.kv.get, "carts", "customer-42")`. In a notebook, a client
for the whole session is `queen = stack.enter_context(blocking.connect())` with a `contextlib.ExitStack()`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import partial, update_wrapper
from typing import ParamSpec

from queen_actors import client, limits
from queen_actors.client.queen import LEAVE_SECONDS

from .families import Admin, Ephemeral, Kv, Locks, TimerBuilder, Timers, Watch
from .lock import Hold, Lock
from .portal import entered
from .queen import Queen, queen
from .queue import DeadLetters, Message, Queue, Subscription, Tail
from .transaction import Transaction

P = ParamSpec("P")

__all__ = [
    "Admin",
    "DeadLetters",
    "Ephemeral",
    "Hold",
    "Kv",
    "Lock",
    "Locks",
    "Message",
    "Queen",
    "Queue",
    "Subscription",
    "Tail",
    "TimerBuilder",
    "Timers",
    "Transaction",
    "Watch",
    "connect",
    "open_broker",
]


def _blocking(
    opened: Callable[P, AbstractAsyncContextManager[client.Queen]],
) -> Callable[P, AbstractContextManager[Queen]]:
    def call(*args: P.args, **kwargs: P.kwargs) -> AbstractContextManager[Queen]:
        promised = kwargs.get("shutdown_seconds", limits.SHUTDOWN_SECONDS)
        seconds = LEAVE_SECONDS + (promised if isinstance(promised, int | float) else 0.0)
        return entered(partial(opened, *args, **kwargs), queen, seconds)

    return update_wrapper(call, opened)


connect = _blocking(client.connect)
open_broker = _blocking(client.open_broker)

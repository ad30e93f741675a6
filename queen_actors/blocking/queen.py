"""The client, blocking: what `connect()` and `open_broker()` give."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import overload

from queen_actors import client
from queen_actors.client.durations import Duration
from queen_actors.client.message import Acknowledgeable
from queen_actors.client.queen import LOCK_SECONDS
from queen_actors.client.results import RenewResult

from .face import Face, gives, on_trio, waits
from .families import Admin, Ephemeral, Kv, Locks, TimerBuilder, Timers
from .lock import Lock, OnLost, in_thread, lock
from .portal import Portal
from .queue import Message, message, queue
from .transaction import transaction


class Queen(Face[client.Queen]):
    """Every call may be made from any thread, and blocks it until it is answered.

    `kv`, `locks`, `timers`, `ephemeral` and `admin` are the families of calls; `queue`, `lock`, `semaphore`, `timer`
    and `transaction` start something.
    """

    def __init__(self, portal: Portal, wrapped: client.Queen) -> None:
        super().__init__(portal, wrapped)
        self.kv = Kv(portal, wrapped.kv)
        self.locks = Locks(portal, wrapped.locks)
        self.timers = Timers(portal, wrapped.timers)
        self.ephemeral = Ephemeral(portal, wrapped.ephemeral)
        self.admin = Admin(portal, wrapped.admin)

    queue = gives(client.Queen.queue, queue)
    ack = waits(client.Queen.ack)
    acknowledge = waits(client.Queen.acknowledge)
    message = gives(client.Queen.message, message)
    trace = waits(client.Queen.trace)

    @overload
    def renew(self, message: str | Acknowledgeable, seconds: int = 60) -> RenewResult: ...
    @overload
    def renew(self, message: list[Message] | list[str], seconds: int = 60) -> list[RenewResult]: ...
    def renew(
        self, message: str | Acknowledgeable | list[Message] | list[str], seconds: int = 60
    ) -> RenewResult | list[RenewResult]:
        """Hold the lease of a message, or of a lease id, for at least that long from now; of several, one answer for
        each distinct lease. False: the lease is gone."""
        if isinstance(message, list):
            ids = [one if isinstance(one, str) else one.lease_id for one in message]
            return self.portal.call(partial(self.wrapped.renew, ids, seconds))
        return self.portal.call(partial(self.wrapped.renew, message, seconds))

    def lock(
        self,
        name: str,
        ttl_seconds: Duration = LOCK_SECONDS,
        owner: str | None = None,
        on_lost: OnLost | None = None,
        *,
        auto_renew: bool = True,
        clock: Callable[[], float] | None = None,
    ) -> Lock:
        """A handle of the lock; `acquire()` takes it, or `with`. It renews itself every third of its lifetime."""
        return self.semaphore(name, 1, ttl_seconds, owner, on_lost, auto_renew=auto_renew, clock=clock)

    def semaphore(
        self,
        name: str,
        n: int,
        ttl_seconds: Duration = LOCK_SECONDS,
        owner: str | None = None,
        on_lost: OnLost | None = None,
        *,
        auto_renew: bool = True,
        clock: Callable[[], float] | None = None,
    ) -> Lock:
        """As `lock`, of which `n` handles can be held at once."""
        told = None if on_lost is None else in_thread(on_lost)
        start = partial(self.wrapped.semaphore, name, n, ttl_seconds, owner, told, auto_renew=auto_renew, clock=clock)
        return lock(self.portal, self.portal.call_sync(start))

    def timer(self, queue: str) -> TimerBuilder:
        """A timer step by step: `.key(k).payload(p).after(timedelta(hours=24)).schedule()`."""
        return self.timers.timer(queue)

    transaction = on_trio(client.Queen.transaction, transaction)
    delete_consumer_group = waits(client.Queen.delete_consumer_group)
    update_consumer_group_timestamp = waits(client.Queen.update_consumer_group_timestamp)
    seek = waits(client.Queen.seek)


def queen(portal: Portal, wrapped: client.Queen) -> Queen:
    """The blocking client of a Trio one."""
    return Queen(portal, wrapped)

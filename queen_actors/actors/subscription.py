"""A subscription: a consumer that is handed messages as long as it has credit (`websocket.md`, section 3).

It stands on pops, as many in one group commit as it has credit and there are messages for, so order, leases, retries
and dead letters are those of every consumer of its group. Its leases live with it: `keep_alive` extends them, and
`close` gives them back at once.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Protocol

import trio
from msgspec import Struct
from msgspec.structs import replace

from queen_actors import limits
from queen_actors.config import Settings
from queen_actors.domain.cursor import FOREVER, Claim, LeaseEnd, LeaseExtended, PopReply, PopRequest
from queen_actors.domain.queue import registration
from queen_actors.domain.subscription import Terms
from queen_actors.errors import QueenError
from queen_actors.ports import Clock
from queen_actors.values import SECOND, iso_zulu

log = logging.getLogger(__name__)

EXTENDS_AT_ONCE = 256
PAUSE_SECONDS = 0.1
"""Before asking again after a pop that came back empty before its time: the broker is stopping."""


class Consumers(Protocol):
    """What a subscription needs of the broker."""

    @property
    def clock(self) -> Clock: ...

    @property
    def settings(self) -> Settings: ...

    async def pops(self, request: PopRequest, messages: int) -> list[PopReply]: ...

    async def extend(self, lease_id: str, seconds: int) -> LeaseExtended: ...

    async def register(
        self, queue: str, group: str, mode: str | None, start: str | None, conflation: bool = False
    ) -> None: ...

    def open_session(self, ended: Callable[[LeaseEnd], None]) -> str: ...

    async def close_session(self, session: str) -> None: ...


class Delivery(Struct, frozen=True):
    """Messages of one partition. `lease_id` is empty with `auto_ack`."""

    lease_id: str
    group: str
    claim: Claim


class Lost(Struct, frozen=True):
    """A lease of one partition ended before its messages were settled (`reason`: expired, seek, deleted, maxLease)."""

    lease_id: str
    partition: str
    pid: int
    reason: str


class _Held(Struct):
    """What is unsettled of one partition under one lease."""

    partition: str
    left: int


class _Lease(Struct):
    """One pop's lease; `until` is how far it may be extended, `capped`: it has been."""

    expires: int
    until: int
    partitions: set[int]
    capped: bool


class SubscriptionStatistics(Struct, frozen=True):
    """`credit`: how many messages may be unsettled at once; `unsettled`: how many are; `leases`: under how many."""

    credit: int
    unsettled: int
    leases: int


class Subscription:
    """One subscriber. `open` first, then `next` again and again, by one task; `close` at the end."""

    def __init__(self, broker: Consumers, terms: Terms, lost: Callable[[Lost], None] | None = None) -> None:
        self.terms = terms
        self._broker = broker
        self._tell = lost
        self._session = ""
        self._lease = min(terms.lease_seconds, terms.max_lease_seconds) * SECOND
        self._credit = terms.credit
        self._unsettled = 0
        self._held: dict[tuple[str, int], _Held] = {}
        self._leases: dict[str, _Lease] = {}
        self._asking = trio.CancelScope()
        self._asked = 0  # for how many messages the pop asked that is under way
        self._ended_early: set[tuple[str, int]] = set()
        self._credit_came = trio.lowlevel.ParkingLot()
        self._request = PopRequest()

    async def open(self) -> None:
        """Fix where it starts: what is pushed once this has returned is delivered, whenever credit is granted.

        Raises BadRequest, and what `Broker.register` raises.
        """
        terms = self.terms
        now = self._broker.clock.now()
        start = terms.subscription_from
        put = registration(0, terms.group, terms.subscription_mode, start, now, self._broker.settings.subscription_mode)
        if terms.queue is not None:
            await self._broker.register(terms.queue, terms.group, terms.subscription_mode, start)
        # queues that come later, and those found by discovery, start for a `new` group where the subscription did
        self._request = PopRequest(
            queue=terms.queue,
            partition=terms.partition,
            namespace=terms.namespace,
            task=terms.task,
            group=terms.group,
            batch=terms.batch,
            partitions=None if terms.partition is not None else terms.partitions,
            wait=FOREVER,
            auto_ack=terms.auto_ack,
            lease=self._lease,
            subscription_mode=terms.subscription_mode,
            subscription_from=iso_zulu(now) if put.mode == "new" else start,
            create=False,
        )
        self._session = self._broker.open_session(self._ended)
        self._request = replace(self._request, session=self._session)

    def statistics(self) -> SubscriptionStatistics:
        return SubscriptionStatistics(self._credit, self._unsettled, len(self._leases))

    # -- deliveries ------------------------------------------------------------------------------------------------

    async def next(self) -> list[Delivery]:
        """Wait for credit and for messages; what it returns is leased, or committed with `auto_ack`.

        Safe to cancel: whoever is cancelled holds nothing. Raises what `Broker.pops` raises.
        """
        while True:
            while self._credit <= self._unsettled:
                await self._credit_came.park()
            asked = trio.current_time()
            credit = self._credit - self._unsettled
            if credit >= self.terms.batch:  # more credit would change nothing
                deliveries = await self._pop(self._request, credit)
            else:
                deliveries = []
                with trio.CancelScope() as self._asking:
                    deliveries = await self._pop(replace(self._request, batch=credit), credit)
                if self._asking.cancelled_caught:
                    continue
            if deliveries:
                return deliveries
            if trio.current_time() < asked + PAUSE_SECONDS:
                await trio.sleep(PAUSE_SECONDS)

    async def _pop(self, request: PopRequest, credit: int) -> list[Delivery]:
        self._asked = request.batch
        try:
            replies = await self._broker.pops(request, credit)
            return [delivery for reply in replies for delivery in self._take(reply)]
        finally:
            self._asked = 0
            self._ended_early.clear()

    def _credited(self) -> None:
        """There is more credit. A pop that waits asked for as much as there was; when it would ask for twice as much
        now, it asks again, so that a partition is not leased for the sake of the one message there was credit for."""
        if not self._asked:
            self._credit_came.unpark_all()
            return
        if self.terms.auto_ack:  # which leases nothing, and must not be disturbed once it has committed
            return
        if self._asked <= min(self.terms.batch, self._credit - self._unsettled) // 2:
            self._asking.cancel()

    def _take(self, reply: PopReply) -> list[Delivery]:
        alive = [claim for claim in reply.claims if (reply.lease_id, claim.pid) not in self._ended_early]
        for claim in alive:
            self._unsettled += len(claim.records)
            if reply.lease_id:
                self._held[(reply.lease_id, claim.pid)] = _Held(claim.partition, len(claim.records))
        if alive and reply.lease_id:
            now = self._broker.clock.now()
            expires, until = now + self._lease, now + self.terms.max_lease_seconds * SECOND
            partitions = {claim.pid for claim in alive}
            self._leases[reply.lease_id] = _Lease(expires, until, partitions, expires >= until)
        return [Delivery(reply.lease_id, reply.group, claim) for claim in alive]

    def grant(self, messages: int) -> None:
        """So many more messages may be unsettled at once; with `auto_ack`, so many more may be delivered."""
        if self.terms.auto_ack:  # settled as they were delivered: count from here
            self._credit -= self._unsettled
            self._unsettled = 0
        self._credit = min(self._credit + messages, limits.WS_CREDIT_MAX)
        self._credited()

    # -- leases ----------------------------------------------------------------------------------------------------

    def _ended(self, end: LeaseEnd) -> None:
        """Some messages of a lease, or all that were left of it, are not this subscription's any more."""
        key = (end.lease_id, end.pid)
        held = self._held.get(key)
        if held is None:
            if self._asked:
                self._ended_early.add(key)
            return
        settled = min(end.messages, held.left)
        held.left -= settled
        self._unsettled -= settled
        lease = self._leases[end.lease_id]
        if held.left <= 0 or end.reason != "settled":
            self._unsettled -= held.left
            del self._held[key]
            lease.partitions.discard(end.pid)
            if not lease.partitions:
                del self._leases[end.lease_id]
        self._credited()
        if end.reason != "settled" and self._tell is not None:
            reason = "maxLease" if end.reason == "expired" and lease.capped else end.reason
            self._tell(Lost(end.lease_id, held.partition, end.pid, reason))

    @property
    def patience(self) -> float:
        """How often `keep_alive` must be called while leases are out, seconds."""
        return self._lease / SECOND / 3

    async def keep_alive(self) -> None:
        """The subscriber is alive: extend the leases that would run out soon, up to `max_lease_seconds` after their
        delivery. Raises what `Broker.extend` raises."""
        now = self._broker.clock.now()
        soon = now + self._lease * 2 // 3
        due = [lease_id for lease_id, lease in self._leases.items() if lease.expires <= soon and not lease.capped]
        for first in range(0, len(due), EXTENDS_AT_ONCE):
            async with trio.open_nursery() as nursery:
                for lease_id in due[first : first + EXTENDS_AT_ONCE]:
                    nursery.start_soon(self._extend, lease_id)

    async def _extend(self, lease_id: str) -> None:
        lease = self._leases.get(lease_id)
        if lease is None:
            return
        now = self._broker.clock.now()
        seconds = min(self._lease, lease.until - now) // SECOND
        expires, capped = now + seconds * SECOND, now + self._lease >= lease.until
        if expires > lease.expires:
            await self._broker.extend(lease_id, seconds)
            lease.expires = expires
        lease.capped = capped

    async def close(self) -> None:
        """Give back what is leased, without a charge; nothing is delivered or told any more."""
        self._tell = None
        if self._session:
            session, self._session = self._session, ""
            await self._broker.close_session(session)


@asynccontextmanager
async def subscribed(
    broker: Consumers, terms: Terms, lost: Callable[[Lost], None] | None = None
) -> AsyncGenerator[Subscription, None]:
    """An open subscription in this process: its leases are kept alive while the block runs, and given back at its
    end."""
    subscription = Subscription(broker, terms, lost)
    await subscription.open()
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_keep_alive, subscription)
            yield subscription
            nursery.cancel_scope.cancel()
    finally:
        with trio.move_on_after(limits.WS_GIVE_BACK_SECONDS, shield=True):
            await subscription.close()


async def _keep_alive(subscription: Subscription) -> None:
    while True:
        await trio.sleep(subscription.patience)
        try:
            await subscription.keep_alive()
        except* QueenError as refused:  # next time again; until then the leases run on
            log.warning("leases could not be extended: %s", refused.exceptions[0])

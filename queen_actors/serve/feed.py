"""The subscriptions of one connection (`websocket.md`, section 3)."""

from __future__ import annotations

import logging
from math import inf

import trio
from msgspec import Struct

from queen_actors import limits
from queen_actors.actors.subscription import Consumers, Delivery, Lost, Subscription
from queen_actors.api import Reply
from queen_actors.api.errors import error_reply
from queen_actors.api.messages import value_reply
from queen_actors.errors import Conflict, NotFound, Overloaded, QueenError
from queen_actors.wire import socket as wire
from queen_actors.wire.socket import Frame

from .gate import Gate
from .link import Link

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
"""After a pop that the broker could not serve: it is overloaded, its disk is full, or it is stopping."""


class _Feed(Struct, eq=False):
    """One subscription under the client's name for it."""

    name: str
    subscription: Subscription
    opened: trio.Event
    scope: trio.CancelScope


class Feeds:
    """Subscribes, delivers, and gives back."""

    def __init__(self, link: Link, broker: Consumers, gate: Gate) -> None:
        self.nursery: trio.Nursery | None = None
        """Where deliveries run; None before the session does and after it."""
        self.changed = trio.lowlevel.ParkingLot()
        """Unparked when there is a new subscription."""
        self._link = link
        self._broker = broker
        self._gate = gate
        self._feeds: dict[str, _Feed] = {}

    @property
    def patience(self) -> float:
        """How often leases must be extended, seconds; infinite when there can be none."""
        leasing = (feed.subscription for feed in self._feeds.values() if not feed.subscription.terms.auto_ack)
        return min((subscription.patience for subscription in leasing), default=inf)

    async def subscribe(self, frame: Frame) -> Reply:
        """When this returns the subscription holds; deliveries start after the reply."""
        name, terms = wire.parse_subscribe(frame)
        if name in self._feeds:
            raise Conflict(f"there is a subscription {name!r} on this connection already")
        if len(self._feeds) >= limits.WS_SUBSCRIPTIONS:
            raise Overloaded(f"a connection has {limits.WS_SUBSCRIPTIONS} subscriptions at the most")
        subscription = Subscription(self._broker, terms, lambda lost: self._lost(name, lost))
        feed = self._feeds[name] = _Feed(name, subscription, trio.Event(), trio.CancelScope())
        try:
            await subscription.open()
        except QueenError:
            if self._feeds.get(name) is feed:
                del self._feeds[name]
            raise
        finally:
            feed.opened.set()
        if self._feeds.get(name) is feed and self.nursery is not None and not self._gate.closed:
            self.nursery.start_soon(self._deliver, feed)
            self.changed.unpark_all()
        return value_reply({"sub": name, "consumerGroup": terms.group})

    async def unsubscribe(self, frame: Frame) -> Reply:
        """What is leased is free again when this returns."""
        feed = self._find(wire.parse_sub(frame))
        del self._feeds[feed.name]
        feed.scope.cancel()
        await feed.opened.wait()
        await feed.subscription.close()
        return value_reply({"sub": feed.name})

    async def credit(self, frame: Frame) -> Reply:
        name, add = wire.parse_credit(frame)
        self._find(name).subscription.grant(add)
        return value_reply({"sub": name})

    async def keep_alive(self) -> None:
        """The peer has answered a ping: extend its leases."""
        for feed in list(self._feeds.values()):
            if feed.opened.is_set():
                try:
                    await feed.subscription.keep_alive()
                except* QueenError as refused:  # at the next answer again; until then the leases run on
                    log.warning("leases of a subscription could not be extended: %s", refused.exceptions[0])

    async def close(self) -> None:
        """The connection is gone: everything that it leased is given back."""
        self.nursery = None
        async with trio.open_nursery() as nursery:
            for feed in self._feeds.values():
                nursery.start_soon(self._give_back, feed)

    async def _give_back(self, feed: _Feed) -> None:
        try:
            await feed.subscription.close()
        except QueenError as refused:  # given back in memory; the log is not well, which others report
            log.warning("the return of leases may not be durable: %s", refused)

    def _find(self, name: str) -> _Feed:
        feed = self._feeds.get(name)
        if feed is None:
            raise NotFound(f"there is no subscription {name[:80]!r} on this connection")
        return feed

    async def _deliver(self, feed: _Feed) -> None:
        with feed.scope:
            while (deliveries := await self._next(feed)) is not None:
                for delivery in deliveries:
                    for event in wire.render_messages(feed.name, delivery.claim, delivery.lease_id, delivery.group):
                        self._link.send(event)

    async def _next(self, feed: _Feed) -> list[Delivery] | None:
        """The next deliveries; None when there will be none."""
        while True:
            try:
                return await self._gate.claim(feed.subscription.next)
            except QueenError as error:
                if error.status < 500 and not isinstance(error, Overloaded):
                    reply = error_reply(error)
                    self._link.send(wire.render_failure("subscribe", reply.status, reply.body, feed.name))
                    return None
            await trio.sleep(RETRY_SECONDS)

    def _lost(self, name: str, lost: Lost) -> None:
        self._link.send(wire.render_lost(name, lost.lease_id, lost.partition, lost.pid, lost.reason))

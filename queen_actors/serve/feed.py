"""The subscriptions and the tails of one connection (`websocket.md`, sections 3 and 4)."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import partial
from math import inf
from typing import Protocol

import trio
from msgspec import Struct

from queen_actors import limits
from queen_actors.actors.log import tell_decided
from queen_actors.actors.subscription import Consumers, Lost, Subscription
from queen_actors.actors.tail import Tail
from queen_actors.api import Reply
from queen_actors.api.messages import value_reply
from queen_actors.domain.subscription import TailTerms
from queen_actors.errors import Conflict, NotFound, Overloaded, QueenError
from queen_actors.wire import socket as wire
from queen_actors.wire.socket import Frame

from .gate import Gate
from .link import Link
from .pipeline import in_turn
from .pump import pump
from .sharing import Sharing

log = logging.getLogger(__name__)


class Readable(Consumers, Protocol):
    """What the feeds need of the broker."""

    def tail(self, terms: TailTerms) -> Tail: ...


class _Feed(Struct, eq=False):
    """One subscription or tail under the client's name for it."""

    name: str
    source: Subscription | Tail
    opened: trio.Event
    scope: trio.CancelScope
    refused: bool = False


class Feeds:
    """Subscribes, delivers, and gives back."""

    def __init__(self, link: Link, broker: Readable, gate: Gate, sharing: Sharing) -> None:
        self.nursery: trio.Nursery | None = None
        """Where deliveries run; None before the session does and after it."""
        self.changed = trio.lowlevel.ParkingLot()
        """Unparked when there is a new subscription."""
        self._link = link
        self._broker = broker
        self._gate = gate
        self._sharing = sharing
        self._feeds: dict[str, _Feed] = {}

    @property
    def patience(self) -> float:
        """How often leases must be extended, seconds; infinite when there can be none."""
        leasing = (one for one in self._subscriptions() if not one.terms.auto_ack)
        return min((subscription.patience for subscription in leasing), default=inf)

    def _subscriptions(self) -> Iterator[Subscription]:
        return (feed.source for feed in self._feeds.values() if isinstance(feed.source, Subscription))

    async def subscribe(self, frame: Frame) -> Reply:
        """When this returns the subscription holds; deliveries start after the reply."""
        name, terms = wire.parse_subscribe(frame)
        subscription = Subscription(self._broker, terms, lambda lost: self._lost(name, lost))
        with self._opening(name, subscription) as feed:
            await subscription.open()
        await self._begin(feed)
        return value_reply({"sub": name, "consumerGroup": terms.group})

    async def tail(self, frame: Frame) -> Reply:
        """When this returns it is fixed where the tail begins; deliveries start after the reply."""
        name, terms = wire.parse_tail(frame)
        tail = self._broker.tail(terms)
        with self._opening(name, tail) as feed:
            positions = await tail.open()
        await self._begin(feed)
        return value_reply({"sub": name, "from": positions})

    @contextmanager
    def _opening(self, name: str, source: Subscription | Tail) -> Generator[_Feed, None, None]:
        """The name is taken while the block opens the source."""
        if name in self._feeds:
            raise Conflict(f"there is a subscription {name!r} on this connection already")
        if len(self._feeds) >= limits.WS_SUBSCRIPTIONS:
            raise Overloaded(f"a connection has {limits.WS_SUBSCRIPTIONS} subscriptions at the most")
        feed = self._feeds[name] = _Feed(name, source, trio.Event(), trio.CancelScope())
        try:
            yield feed
        except QueenError:
            feed.refused = True
            if self._feeds.get(name) is feed:
                del self._feeds[name]
            raise
        finally:
            feed.opened.set()

    async def _begin(self, feed: _Feed) -> None:
        """Deliveries start, unless it was left meanwhile."""
        await in_turn.get()()
        if self._feeds.get(feed.name) is feed and self.nursery is not None and not self._gate.closed:
            self.nursery.start_soon(self._deliver, feed)
            self.changed.unpark_all()

    async def unsubscribe(self, frame: Frame) -> Reply:
        """A subscription or a tail ends; what was leased is free again when this returns."""
        feed = self._find(wire.parse_sub(frame))
        del self._feeds[feed.name]
        feed.scope.cancel()
        await feed.opened.wait()
        if feed.refused:
            raise _unknown(feed.name)
        await _close(feed.source)
        return value_reply({"sub": feed.name})

    async def credit(self, frame: Frame) -> Reply:
        name, add = wire.parse_credit(frame)
        feed = self._find(name)
        feed.source.grant(add)
        tell_decided()
        await feed.opened.wait()
        if feed.refused:
            raise _unknown(name)
        return value_reply({"sub": name})

    async def keep_alive(self) -> None:
        """The peer has answered a ping: extend its leases."""
        for feed in list(self._feeds.values()):
            if feed.opened.is_set() and isinstance(feed.source, Subscription):
                try:
                    await feed.source.keep_alive()
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
            await _close(feed.source)
        except QueenError as refused:  # given back in memory; the log is not well, which others report
            log.warning("the return of leases may not be durable: %s", refused)

    def _find(self, name: str) -> _Feed:
        feed = self._feeds.get(name)
        if feed is None:
            raise _unknown(name)
        return feed

    async def _deliver(self, feed: _Feed) -> None:
        """Send what the feed has until it ends."""
        link, gate, sharing = self._link, self._gate, self._sharing
        with sharing.reader(), feed.scope:
            if isinstance(feed.source, Tail):
                frames = partial(sharing.tailed, feed.name)
                await pump(link, gate, ("tail", feed.name), feed.source.next, frames)
            else:
                delivered = partial(sharing.delivered, feed.name)
                await pump(link, gate, ("subscribe", feed.name), feed.source.next, delivered)

    def _lost(self, name: str, lost: Lost) -> None:
        self._link.send(wire.render_lost(name, lost.lease_id, lost.partition, lost.pid, lost.reason))


def _unknown(name: str) -> NotFound:
    return NotFound(f"there is no subscription {name[:80]!r} on this connection")


async def _close(source: Subscription | Tail) -> None:
    if isinstance(source, Tail):
        source.close()
    else:
        await source.close()

"""What only a WebSocket can do, under load: subscriptions, tails, watches, lines for a lock, and permits that live with
their connection. All of it goes into the history: a delivery as the pop that it is, a permit as the acquire that it is.
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from .history import Call
from .load import entry
from .peer import Lost
from .sockets import Arrival, SocketPeer, on_socket
from .world import AUTO, SOCKET_LOCKS, SUBSCRIBERS, World

SUBSCRIPTIONS = (("orders", "g1"), ("events", "g2"), ("events", AUTO))
TAILS = ("orders", "events", "results")
WATCHES = (("counters", "c"), ("races", "r"))
CREDIT = 40
BEAT_SECONDS = 0.05
"""A subscriber to whom nothing comes for so long asks whether it is alive."""


class SocketUser:
    """One of them, on one connection."""

    def __init__(self, world: World, number: int, life: int, peer: SocketPeer) -> None:
        self.world = world
        self.peer = peer
        self.random = random.Random(f"{world.seed}-{number}-{world.history.round}-{life}")
        self.owner = f"s{number}-{world.history.round}-{life}"

    # -- subscriptions -----------------------------------------------------------------------------------------------

    async def subscription(self, queue: str, group: str) -> None:
        """Consume for a while, settling in one of the ways that there are, and go away in one of those that there
        are."""
        auto = group == AUTO
        lease = self.random.choice((1, 2, 5))
        body = {"sub": "s", "queue": queue, "group": group, "subscriptionMode": "all", "autoAck": auto}
        body |= {"credit": CREDIT, "batch": self.random.randint(1, 20), "partitions": 3, "leaseSeconds": lease}
        began = time.monotonic()  # nothing can have been claimed for it before
        deliveries: list[Call] = []
        try:
            await self.peer.call("subscribe", body)
            until = trio.current_time() + self.random.uniform(0.2, 3.0)
            while trio.current_time() < until:
                event = await self.peer.event("s", min(until - trio.current_time(), BEAT_SECONDS))
                if event is None:
                    await self.peer.beat()
                elif event.frame["event"] == "messages":
                    deliveries.append(self._delivered(queue, group, lease, event, began))
                    await self._settle(event.frame, group)
            self._end(deliveries)
            if self.random.random() < 0.3:
                await self.peer.call("unsubscribe", {"sub": "s"})
        finally:  # what it was not told of may have been committed
            self._end(deliveries)
            if auto:
                body = {"queue": queue, "consumerGroup": group, "batch": CREDIT}
                lost = Call(self.world.history.round, self.peer.worker, "pop", body, began, time.monotonic())
                self.world.history.calls.append(lost)

    def _end(self, deliveries: list[Call]) -> None:
        """Its leases end with it; as long as the broker answered they had not."""
        for call in deliveries:
            call.body.setdefault("until", self.peer.exchanges.alive)

    def _delivered(self, queue: str, group: str, lease: int, event: Arrival, began: float) -> Call:
        """The delivery as a pop, that was sent when it can have been claimed at the earliest."""
        sent, messages = max(began, event.since), event.frame["messages"]
        body = {"queue": queue, "consumerGroup": group, "leaseSeconds": lease, "batch": len(messages)}
        call = Call(self.world.history.round, self.peer.worker, "pop", body, sent, event.at, 200)
        call.answer = {"messages": messages}
        self.world.history.calls.append(call)
        return call

    async def _settle(self, event: dict[str, Any], group: str) -> None:
        messages = event["messages"]
        if group == AUTO:
            await self.peer.call("credit", {"sub": "s", "add": len(messages)})
            return
        way, at = self.random.random(), self.random.randrange(len(messages))
        acks: list[dict[str, Any]] = []
        if way < 0.75:
            acks = [entry(message, "completed") for message in messages]
        elif way < 0.9:
            acks = [*(entry(message, "completed") for message in messages[:at]), entry(messages[at], "failed")]
        if acks:
            await self.peer.call("ack", {"acknowledgments": acks, "consumerGroup": group})

    # -- tails and watches -------------------------------------------------------------------------------------------

    async def tail(self, queue: str, seconds: float | None = None) -> None:
        """Go on where the last one saw the end: no gap, nothing twice. With `seconds` until so long nothing came."""
        places = self.world.tails.setdefault(queue, {})
        start = dict(places) or "start"
        await self.peer.call("tail", {"sub": "t", "queue": queue, "from": start, "credit": 300})
        until = trio.current_time() + self.random.uniform(0.3, 4.0)
        while True:
            left = until - trio.current_time() if seconds is None else seconds
            arrival = await self.peer.event("t", max(left, 0))
            if arrival is None:
                return
            event = arrival.frame
            self._note("tail", {"queue": queue}, event)
            if event["event"] == "messages":
                places[event["partition"]] = event["messages"][-1]["offset"] + 1
                await self.peer.call("credit", {"sub": "t", "add": len(event["messages"])})

    async def watch(self, ns: str, prefix: str, seconds: float | None = None) -> None:
        """Follow keys; the next one goes on behind the version that this one saw."""
        body: dict[str, Any] = {"watch": "w", "ns": ns, "prefix": prefix}
        seen = self.world.watched.get((ns, prefix))
        if seen is not None:
            body["fromVersion"] = seen
        call = await self.peer.call("watch", body)
        self.world.watched[ns, prefix] = max(seen or 0, call.answer["version"] if seen is None else 0)
        until = trio.current_time() + self.random.uniform(0.3, 4.0)
        while True:
            left = until - trio.current_time() if seconds is None else seconds
            arrival = await self.peer.event("w", max(left, 0))
            if arrival is None:
                return
            event = arrival.frame
            self._note("watched", {"ns": ns, "prefix": prefix}, event)
            versions = [change["version"] for change in event.get("changes", ())] + [event.get("version", 0)]
            self.world.watched[ns, prefix] = max(self.world.watched[ns, prefix], *versions)

    def _note(self, op: str, body: dict[str, Any], event: dict[str, Any]) -> None:
        """An event, as a call that was answered when it came."""
        heard = self.peer.heard
        self.world.history.calls.append(
            Call(self.world.history.round, self.peer.worker, op, body, heard, heard, 200, event)
        )

    # -- locks -------------------------------------------------------------------------------------------------------

    async def line(self) -> None:
        """Wait in the line for a lock, hold it for a moment, let it go; sometimes not."""
        for _ in range(self.random.randint(1, 20)):
            acquire = {"op": "acquire", "name": "line", "ttlSeconds": 1, "owner": self.owner}
            call = await self.peer.acquire(acquire, waitSeconds=self.random.choice((0, 0.2, 2)))
            (result,) = call.answer["results"]
            if result["acquired"]:
                await trio.sleep(self.random.choice((0, 0.01, 0.05)))
                if self.random.random() < 0.9:
                    release = {"op": "release", "name": "line", "token": result["token"], "slot": result["slot"]}
                    await self.peer.call("locks", {"operations": [release]})

    async def seat(self) -> None:
        """A permit that lives as long as its connection does."""
        acquire = {"op": "acquire", "name": "seat", "ttlSeconds": 1, "owner": self.owner, "limit": SOCKET_LOCKS["seat"]}
        call = await self.peer.acquire(acquire, session=True, waitSeconds=1)
        (result,) = call.answer["results"]
        try:
            await self.peer.event("lock", self.random.uniform(0.1, 2.5))
        finally:
            if result["acquired"]:
                release = {"op": "release", "name": "seat", "token": result["token"], "slot": result["slot"]}
                history, heard = self.world.history, self.peer.heard
                call.body["until"] = heard
                body = {"operations": [release]}
                history.calls.append(Call(history.round, self.peer.worker, "locks", body, heard, time.monotonic()))


Act = Callable[[SocketUser], Awaitable[object]]


def _acts() -> list[Act]:
    acts: list[Act] = [lambda user, of=of: user.subscription(*of) for of in SUBSCRIPTIONS]
    acts += [lambda user, queue=queue: user.tail(queue) for queue in TAILS]
    acts += [lambda user, of=of: user.watch(*of) for of in WATCHES]
    return [*acts, SocketUser.line, SocketUser.line, SocketUser.seat, SocketUser.seat, SocketUser.seat]


async def socket_load(world: World, port: int, reconnects: bool = False) -> None:
    """All of them, each on one connection after the other, until nobody listens or they are cancelled."""

    async def live(number: int, act: Act) -> None:
        life = 0
        while True:
            life += 1

            async def use(peer: SocketPeer, life: int = life) -> None:
                await act(SocketUser(world, number, life, peer))

            try:
                await on_socket(port, world.history, SUBSCRIBERS + number, use, world.grace)
            except Lost:
                if not reconnects:
                    return
            await trio.sleep(0.01)

    async with trio.open_nursery() as nursery:
        for number, act in enumerate(_acts()):
            nursery.start_soon(live, number, act)


async def catch_up(world: World, port: int) -> None:
    """At the very end: every tail and every watch comes to the end of what there is."""

    async def use(peer: SocketPeer) -> None:
        user = SocketUser(world, 0, 0, peer)
        for queue in TAILS:
            await user.tail(queue, 0.5)
            await peer.call("unsubscribe", {"sub": "t"})
        for ns, prefix in WATCHES:
            await user.watch(ns, prefix, 0.5)
            await peer.call("unwatch", {"watch": "w"})

    await on_socket(port, world.history, SUBSCRIBERS, use)

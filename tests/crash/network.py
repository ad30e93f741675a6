"""A bad network between the load and the broker; and 1,000 clients that come and go."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import ClassVar

import trio

from .campaign import Campaign, stories
from .churn import churn
from .deaf import Deaf
from .history import History
from .peer import Lost, Peer, connected
from .proxy import Proxy
from .sockets import SocketPeer, on_socket
from .summary import Summary

GRACE_SECONDS = 0.5
"""After a cut the broker is done with what it had received by then."""
PER_ROUND = 6
DELIVERY_SECONDS = 5.0
"""What is waited for a delivery over the bad network before the link is cut without one."""
GIVEN_BACK_SECONDS = 10.0
"""How soon what was leased over a link is there for others when it is cut; its lease is of a minute."""
DEAF_EVERY = 8
"""In one of so many rounds there is a consumer that never reads: it takes ten seconds and more to be dropped."""


class NetworkCampaign(Campaign):
    """One data directory's story, told through a proxy: freezes, crawls, cuts and swallowed bytes under load."""

    reconnects: ClassVar[bool] = True
    start_kill_share: ClassVar[float] = 0.0
    deaf_every: ClassVar[int] = DEAF_EVERY

    def __init__(self, directory: Path, seed: int, summary: Summary) -> None:
        super().__init__(directory, seed, summary)
        self._proxy = Proxy(lambda: self.node.port)
        self.world.grace = GRACE_SECONDS

    @property
    def port(self) -> int:
        return self._proxy.port

    async def run(self, rounds: int, points: object = ()) -> None:
        async with trio.open_nursery() as nursery:
            await nursery.start(self._proxy.run)
            await super().run(rounds)
            nursery.cancel_scope.cancel()

    async def trouble(self) -> None:
        async with trio.open_nursery() as nursery:
            if self.summary.counts["rounds"] % self.deaf_every == 0:
                nursery.start_soon(Deaf(self.node, self.summary, self.chance).run)
            await self._faults()

    async def _faults(self) -> None:
        proxy, chance, counts = self._proxy, self.chance, self.summary.counts
        faults = chance.choices(("freeze", "freeze in", "freeze out", "slow", "cut", "black hole"), k=PER_ROUND - 1)
        for fault in chance.sample((*faults, "cut"), PER_ROUND):
            await trio.sleep(chance.uniform(0.1, 0.5))
            match fault:
                case "slow":
                    proxy.rate = chance.choice((2_000, 20_000))
                    await trio.sleep(chance.uniform(0.3, 1.5))
                    proxy.rate = None
                    counts["slow_links"] += 1
                case "cut":
                    await self._lose_a_lease(self._cut)
                case "black hole":  # what was sent into it is never seen, and then the link is gone
                    await self._lose_a_lease(self._swallow)
                case freeze:
                    ways = {"freeze": ("in", "out"), "freeze in": ("in",), "freeze out": ("out",)}[freeze]
                    with proxy.frozen(*ways):  # type: ignore[arg-type]  # a choice of literals
                        await trio.sleep(chance.uniform(0.2, 3.0))
                    counts["freezes"] += 1
            counts["network_faults"] += 1
        await trio.sleep(0.3)

    async def _cut(self) -> None:
        self.summary.counts["links_cut"] += self._proxy.cut()

    async def _swallow(self) -> None:
        with self._proxy.frozen("in", "out"):
            await trio.sleep(self.chance.uniform(0.2, 2.0))
            await self._cut()
        self.summary.counts["black_holes"] += 1

    # -- what a link had leased -------------------------------------------------------------------------------------

    async def _lose_a_lease(self, cut: Callable[[], Awaitable[None]]) -> None:
        """Cut the links while a subscriber has a message: another consumer is to get it then, although its lease is
        not over."""
        place = {"queue": "lost", "partition": f"n{self.world.serial()}"}
        async with connected(self.node.port, History(), 0) as peer:
            await peer.call("push", {"items": [{**place, "transactionId": "t", "payload": 1}]})
            delivered = trio.Event()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._subscriber, place, delivered)
                with trio.move_on_after(DELIVERY_SECONDS):
                    await delivered.wait()
                await cut()
                nursery.cancel_scope.cancel()
            if delivered.is_set():
                await self._judge_given_back(peer, place)

    async def _subscriber(self, place: dict[str, str], delivered: trio.Event) -> None:
        """It has the message, and does nothing with it."""

        async def use(peer: SocketPeer) -> None:
            body = {"sub": "s", **place, "group": "g", "subscriptionMode": "all", "leaseSeconds": 60, "credit": 1}
            await peer.call("subscribe", body)
            if await peer.event("s"):
                delivered.set()
            await trio.sleep_forever()

        with contextlib.suppress(Lost):
            await on_socket(self.port, History(), 0, use)

    async def _judge_given_back(self, peer: Peer, place: dict[str, str]) -> None:
        wait = {"wait": "true", "timeout": int(GIVEN_BACK_SECONDS * 1000)}
        popped = await peer.call("pop", {**place, "consumerGroup": "g", "batch": 1, "autoAck": "true", **wait})
        self.summary.counts["leases_lost"] += 1
        if not popped.answer:
            self.summary.violations.append(
                f"a link was cut, and what a subscriber had leased over it was not given back in {GIVEN_BACK_SECONDS} s"
            )


async def network(directory: Path, seed: int, cycles: int) -> Summary:
    """So many clients that come and go, and a network fault for each ten of them."""
    summary = Summary("network", seed)
    await churn(directory, summary, cycles)
    rounds = max(1, cycles // (10 * PER_ROUND))
    await stories(partial(NetworkCampaign), directory, summary, rounds)
    return summary

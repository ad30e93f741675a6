"""A bad network between the load and the broker; and 1,000 clients that come and go."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import ClassVar

import trio

from .campaign import Campaign, stories
from .churn import churn
from .proxy import Proxy
from .summary import Summary

GRACE_SECONDS = 0.5
"""After a cut the broker is done with what it had received by then."""
PER_ROUND = 6


class NetworkCampaign(Campaign):
    """One data directory's story, told through a proxy: freezes, crawls, cuts and swallowed bytes under load."""

    reconnects: ClassVar[bool] = True
    start_kill_share: ClassVar[float] = 0.0

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
        proxy, chance, counts = self._proxy, self.chance, self.summary.counts
        for _ in range(PER_ROUND):
            await trio.sleep(chance.uniform(0.1, 0.5))
            match chance.choice(("freeze", "freeze in", "freeze out", "slow", "cut", "cut", "black hole")):
                case "slow":
                    proxy.rate = chance.choice((2_000, 20_000))
                    await trio.sleep(chance.uniform(0.3, 1.5))
                    proxy.rate = None
                    counts["slow_links"] += 1
                case "cut":
                    counts["links_cut"] += proxy.cut()
                case "black hole":  # what was sent into it is never seen, and then the link is gone
                    with proxy.frozen("in", "out"):
                        await trio.sleep(chance.uniform(0.2, 2.0))
                        counts["links_cut"] += proxy.cut()
                    counts["black_holes"] += 1
                case freeze:
                    ways = {"freeze": ("in", "out"), "freeze in": ("in",), "freeze out": ("out",)}[freeze]
                    with proxy.frozen(*ways):  # type: ignore[arg-type]  # a choice of literals
                        await trio.sleep(chance.uniform(0.2, 3.0))
                    counts["freezes"] += 1
            counts["network_faults"] += 1
        await trio.sleep(0.3)


async def network(directory: Path, seed: int, cycles: int) -> Summary:
    """So many clients that come and go, and a network fault for each ten of them."""
    summary = Summary("network", seed)
    await churn(directory, summary, cycles)
    rounds = max(1, cycles // (10 * PER_ROUND))
    await stories(partial(NetworkCampaign), directory, summary, rounds)
    return summary

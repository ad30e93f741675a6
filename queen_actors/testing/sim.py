"""The simulator: the whole broker on virtual time, its clients, and everything that can go wrong, from one seed.

    python -m queen_actors.testing.sim --seed 7
    python -m queen_actors.testing.sim --seeds 0..199

prints a digest of each history, equal for equal seeds, or what promise was broken, with the seed that shows it.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar

import trio
from msgspec import Struct

from queen_actors.actors.clock import RandomIds, TrioClock
from queen_actors.broker import Broker, running
from queen_actors.config import Settings
from queen_actors.domain.cursor import Ack, PopRequest
from queen_actors.domain.kv import Get
from queen_actors.domain.queue import Configure
from queen_actors.errors import Overloaded, QueenError, StorageFailed, StorageFull
from queen_actors.storage.memory import Faults, MemoryStore

from . import clients
from .audit import Audit, Violation
from .determinism import run
from .history import Event, History
from .state import state_of

T = TypeVar("T")
SECOND = 1_000_000
WALL = 1_700_000_000 * SECOND
GROUPS, LOOSE, READER = ("g", "h"), "loose", "reader"


class Report(Struct, frozen=True):
    """What a run came to. `starts`: how often the broker was started."""

    seed: int
    events: int
    starts: int
    digest: str


class _Crash(Exception):
    """The process dies here."""


class Simulation:
    """One run. Its whole course is a function of the seed."""

    def __init__(self, seed: int, seconds: float) -> None:
        self.seed = seed
        self.seconds = seconds
        self.random = random.Random(seed)
        self.history = History()
        self.starts = 0
        self.over = False
        self._broker: Broker | None = None
        self._up = trio.Event()
        self._calm = False
        self._before: dict[str, Any] | None = None
        slow = self.random.choice([0.0, 0.002, 0.05])
        self._store = MemoryStore(
            retain=True,
            faults=Faults(
                latency=lambda: 0.0 if self._calm else self.random.random() * slow,
                read_latency=self.random.choice([0.0, 0.01]),
            ),
            seal_seconds=self.random.choice([1.0, 5.0, 30.0]),
        )

    # -- what clients see ----------------------------------------------------------------------------------------------

    async def call(
        self,
        client: str,
        op: str,
        asked: dict[str, Any],
        do: Callable[[Broker], Awaitable[T]],
        note: Callable[[T], Any],
    ) -> tuple[Event, T | None]:
        """See `clients.World`."""
        while self._broker is None:
            await self._up.wait()
        event = Event(self._now(), 0, client, op, asked)
        found: T | None = None
        try:
            found = await do(self._broker)
            event.outcome, event.found = "ok", note(found)
        except (StorageFull, Overloaded):
            event.outcome = "refused"
        except QueenError as error:
            event.found = error.code
        event.end = self._now()
        self.history.add(event)
        return event, found

    def _now(self) -> int:
        return int(trio.current_time() * SECOND)

    # -- the broker's lives --------------------------------------------------------------------------------------------

    async def main(self) -> Report:
        """Live, end, read everything, and be judged. Raises Violation."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._lives)
            async with trio.open_nursery() as people:
                self._start_clients(people)
                await trio.sleep(self.seconds)
                self.over = True
            self._calm = True
            await self._end()
            nursery.cancel_scope.cancel()
        Audit(self.history, GROUPS, READER).judge()
        return Report(self.seed, len(self.history.events), self.starts, self.history.digest)

    def _start_clients(self, nursery: trio.Nursery) -> None:
        for number in range(2):
            nursery.start_soon(clients.producer, self, f"producer{number}")
            nursery.start_soon(clients.keeper, self, f"keeper{number}")
            nursery.start_soon(clients.locker, self, f"locker{number}")
            nursery.start_soon(clients.scheduler, self, f"scheduler{number}")
            nursery.start_soon(clients.transactor, self, f"transactor{number}")
            for group in GROUPS:
                nursery.start_soon(clients.consumer, self, f"consumer{number}.{group}", group)
        nursery.start_soon(lambda: clients.consumer(self, "taker", LOOSE, auto_ack=True))

    async def _lives(self) -> None:
        while True:
            try:
                await self._live()
            except (StorageFailed, _Crash):
                self._before = None
            finally:
                self._down()
            await trio.sleep(self.random.random() * 0.2)
            self._store = self._store.reopen()

    async def _live(self) -> None:
        """One life: it ends in a crash, in a write of unknown fate, or in a clean stop, after which the next one must
        find exactly what was there (I14)."""
        self.starts += 1
        clock = TrioClock(WALL + self._now())
        ids = RandomIds(self.seed << 16 | self.starts)
        settings = Settings(record_cache_bytes=self.random.choice([1, 1 << 20]))
        async with running(self._store, settings, clock=clock, ids=ids) as broker:
            if self._before is not None and state_of(broker) != self._before:
                raise Violation("I14 recovery is identity")
            for queue in clients.QUEUES:
                await broker.configure(Configure(queue, {"retry_limit": 2, "lease_seconds": 3}))
            self._broker = broker
            self._up.set()
            await self._fate(broker)
            self._down()
        self._before = state_of(broker)

    def _down(self) -> None:
        if self._broker is not None:
            self._broker, self._up = None, trio.Event()

    async def _fate(self, broker: Broker) -> None:
        """What happens to the broker until this life ends."""
        rng, faults = self.random, self._store.faults
        until = trio.current_time() + rng.random() * 12
        while trio.current_time() < until or self._calm:
            await trio.sleep(rng.choice([0.05, 0.5, 1.0]))
            if self._calm:
                continue
            what = rng.randrange(8)
            if what == 0:
                faults.full = True
                await trio.sleep(rng.choice([0.01, 0.7, 2.0]))
                faults.full = False
            elif what == 1:
                await broker.passivate()
            elif what == 2:
                await broker.seal()
        end = rng.randrange(4)
        if end == 0:
            self._store.crash(keep=rng.random() < 0.5)
            raise _Crash
        if end == 1:
            faults.fail = rng.choice(["kept", "lost"])
            await trio.sleep(5)
            faults.fail = None

    # -- the end -------------------------------------------------------------------------------------------------------

    async def _end(self) -> None:
        """All faults are over: timers fire, leases run out, every group drains, the whole log and all keys are read."""
        self._store.faults.full = False
        self._store.faults.fail = None
        await trio.sleep(40)
        for group in GROUPS:
            await self._drain(group)
        await self._drain(READER, auto_ack=True)
        keys = {key for event in self.history.of("transaction") for key in event.asked["keys"]}
        for key in sorted(keys):
            await clients.kv(self, "end", "final", {"key": key}, [Get("sim", key)])

    async def _drain(self, group: str, *, auto_ack: bool = False) -> None:
        while True:
            request = PopRequest(
                namespace="sim", group=group, batch=1000, partitions=64, wait=8 * SECOND, auto_ack=auto_ack
            )
            event, reply = await clients.pop(self, "end", request)
            if not event.ok or reply is None or not reply.claims:
                return
            for claim in () if auto_ack else reply.claims:
                acks = [Ack(r.txn, claim.pid, group, "completed", reply.lease_id) for r in claim.records]
                await clients.ack(self, "end", acks)


def simulate(seed: int, seconds: float = 60) -> Report:
    """One run of `seconds` of virtual time. Raises Violation when a promise was broken."""
    return run(seed, lambda: Simulation(seed, seconds).main())


def _seeds(text: str) -> Iterable[int]:
    first, _, last = text.partition("..")
    return range(int(first), int(last or first) + 1)


def main(arguments: list[str] | None = None) -> int:
    """The command line; 1 when a seed broke a promise."""
    parser = argparse.ArgumentParser(prog="python -m queen_actors.testing.sim", description=__doc__)
    parser.add_argument("--seed", "--seeds", dest="seeds", type=_seeds, default=range(1), metavar="N or A..B")
    parser.add_argument("--seconds", type=float, default=60, help="virtual time of each run (default 60)")
    options = parser.parse_args(arguments)
    broken = 0
    for seed in options.seeds:
        try:
            report = simulate(seed, options.seconds)
        except* Violation as group:
            broken += 1
            print(f"seed {seed}: BROKEN {group.exceptions[0]}")
        else:
            print(f"seed {seed}: {report.events} events, {report.starts} starts, digest {report.digest}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())

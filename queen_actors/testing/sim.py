"""The simulator: the whole broker on virtual time, its clients, and everything that can go wrong, from one seed.

    python -m queen_actors.testing.sim --seed 7
    python -m queen_actors.testing.sim --seeds 0..9999 --jobs 2

Of a seed that breaks a promise it prints which one, its options and its history, and it does so again each time. Of the
others it prints what they came to.
"""

from __future__ import annotations

import argparse
import gc
import logging
import multiprocessing
import random
import sys
import time
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import trio
from msgspec import Struct
from msgspec.structs import asdict

from queen_actors.domain.cursor import Ack, PopRequest
from queen_actors.domain.kv import Get
from queen_actors.domain.queue import Configure

from . import clients, clients_more, clients_state, kinds
from .audit import Audit, Violation
from .determinism import Stuck, run
from .faces import Broken, Direct, Face, Refused, Unanswered
from .history import Event, History
from .life import SECOND, Life, Lives, Trouble
from .links import HttpLink, Link, SocketLink
from .remote import Remote

GROUPS, LOOSE, READER = ("g", "h"), "loose", "reader"
FACES = ("direct", "direct", "http", "socket")
SECONDS = 8.0
"""Virtual time of a run before everything must drain: short ones find more in the same time."""

Client = Callable[["Simulation", str], Awaitable[None]]


def _consumer(group: str) -> Client:
    return lambda world, name: clients.consumer(world, name, group)


def _subscriber(group: str) -> Client:
    return lambda world, name: clients_more.subscriber(world, name, group)


def _taker(world: Simulation, name: str) -> Awaitable[None]:
    return clients.consumer(world, name, LOOSE, auto_ack=True)


CLIENTS: dict[str, tuple[Client, int]] = {
    "producer": (clients.producer, 2),
    "consumer.g": (_consumer("g"), 2),
    "consumer.h": (_consumer("h"), 1),
    "taker": (_taker, 1),
    "subscriber.g": (_subscriber("g"), 2),
    "subscriber.h": (_subscriber("h"), 1),
    "soloist": (clients.soloist, 2),
    "churner": (clients_more.churner, 2),
    "streamer": (clients_more.streamer, 1),
    "ephemeral": (clients_more.ephemeral, 1),
    "keeper": (clients_state.keeper, 3),
    "refresher": (clients_state.refresher, 1),
    "onlooker": (clients_state.onlooker, 2),
    "locker": (clients_state.locker, 3),
    "scheduler": (clients_state.scheduler, 2),
    "transactor": (clients_state.transactor, 2),
    "mover": (clients_state.mover, 2),
}
"""Kinds of clients, and how many of each a run may have. One that is there has company that makes it worth while."""
COMPANY = {
    **dict.fromkeys(["consumer.g", "consumer.h", "subscriber.g", "subscriber.h", "taker"], "producer"),
    "onlooker": "refresher",
}
LOCAL = ("streamer", "ephemeral")
"""These call the broker in its process only, but for the worlds of `kinds`."""


class Plan(Struct, frozen=True):
    """What a seed decides before anything runs: how long, which clients by which way in, and what goes wrong."""

    seconds: float
    people: tuple[tuple[str, str], ...]
    """(name, way in) of each client; the name begins with its kind."""
    trouble: Trouble

    @classmethod
    def drawn(cls, rng: random.Random, seconds: float) -> Plan:
        kinds = rng.sample(sorted(CLIENTS), rng.choice([2, 3, 4]))
        kinds = list(dict.fromkeys([*kinds, *(COMPANY[kind] for kind in kinds if kind in COMPANY)]))
        names = [(kind, f"{kind}{n}") for kind in kinds for n in range(rng.randint(1, CLIENTS[kind][1]))]
        people = [(name, "direct" if kind in LOCAL else rng.choice(FACES)) for kind, name in names]
        return cls(seconds, tuple(people), Trouble.drawn(rng, seconds))

    @classmethod
    def of(cls, seed: int, rng: random.Random, seconds: float) -> Plan:
        """What this seed decides; `rng` is the world's."""
        if not kinds.is_later(seed):
            return cls.drawn(rng, seconds)
        draw = random.Random(f"later {seed}")
        others = {kind: ("http",) if kind in LOCAL else FACES for kind in CLIENTS}
        return cls(seconds, tuple(kinds.drawn(draw, others)), Trouble.drawn(draw, seconds))


class Report(Struct, frozen=True):
    """What a run came to. `events`: how many answers were judged; `starts`: how often the broker was started."""

    seed: int
    events: int
    starts: int
    digest: str


class Failure(Struct, frozen=True):
    """A seed that broke a promise."""

    seed: int
    broken: str
    plan: Plan
    history: str


class Simulation:
    """One run. Its whole course is a function of the seed."""

    def __init__(self, seed: int, seconds: float = SECONDS, plan: Plan | None = None) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.plan = plan or Plan.of(seed, self.random, seconds)
        self.history = History()
        self.over = False
        self.ends: list[Callable[[], Awaitable[None]]] = []
        queues = (
            *kinds.queues(self.plan.people, _KEEP),
            *(Configure(name, {"retry_limit": 2, "lease_seconds": 3, **_KEEP}) for name in clients.QUEUES),
            *(
                Configure(f"{clients.SOLO}.{name}", {"delivery_limit": 0, **_KEEP})
                for name, _ in self.plan.people
                if name.startswith("soloist")
            ),
        )
        wire = any(way != "direct" for _, way in self.plan.people)
        self.lives = Lives(seed, self.random, self.plan.trouble, queues, wire=wire)
        self.lives.cut = self._cut
        self.lives.told = lambda what: self.note("broker", what, {})
        self._ways = dict(self.plan.people)
        self._remotes: dict[str, tuple[Life, Remote]] = {}

    # -- what clients see ----------------------------------------------------------------------------------------------

    async def call(self, client: str, op: str, asked: dict[str, Any], do: Callable[[Face], Awaitable[Any]]) -> Event:
        """See `clients.World`."""
        life = await self.lives.living()
        event = Event(self._now(), 0, client, op, asked, skew=life.skew)
        with trio.CancelScope() as scope:
            life.calls.add(scope)
            try:
                found = await do(self._face(client, life))
                if not life.over:
                    event.outcome, event.found = "ok", found
            except Refused as refused:
                event.outcome, event.found = ("unknown" if life.over else "refused"), str(refused)
            except Unanswered as lost:
                event.found = str(lost)
            except trio.Cancelled:  # its client gave up; or its broker's life is over, which the scope catches
                if not scope.cancel_called:
                    self._ended(event)
                raise
            finally:
                life.calls.discard(scope)
        return self._ended(event)

    def _ended(self, event: Event) -> Event:
        event.end, event.skew_after = self._now(), self.lives.skew
        self.history.add(event)
        return event

    def note(self, client: str, op: str, asked: dict[str, Any], found: Any = None, start: int | None = None) -> None:
        """See `clients.World`."""
        now, skew = self._now(), self.lives.skew
        self.history.add(Event(now if start is None else start, now, client, op, asked, "ok", found, skew, skew))

    def afterwards(self, do: Callable[[], Awaitable[None]]) -> None:
        self.ends.append(do)

    def direct(self, client: str) -> bool:
        return self._ways.get(client, "direct") == "direct"

    def _face(self, client: str, life: Life) -> Face:
        if self.direct(client) or life.listener is None:
            return Direct(life.broker)
        known = self._remotes.get(client)
        if known is None or known[0] is not life:
            listener = life.listener
            link = HttpLink if self._ways[client] == "http" else SocketLink

            def dial() -> Link:
                return link(listener.dial())

            known = self._remotes[client] = (life, Remote(dial, socket=link is SocketLink))
        return known[1]

    def _cut(self) -> None:
        """Some client's connection breaks."""
        linked = [name for name, (_, remote) in self._remotes.items() if remote.link is not None]
        if linked:
            name = self.random.choice(linked)
            self._remotes[name][1].hang_up()
            self.note(name, "link.cut", {})

    def _now(self) -> int:
        return int(trio.current_time() * SECOND)

    # -- a run ---------------------------------------------------------------------------------------------------------

    async def main(self) -> Report:
        """Live, end, read everything, and be judged. Raises Violation."""
        with self.lives.wall.installed(), kinds.bounds(self.plan.people):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.lives.run)
                async with trio.open_nursery() as people:
                    for name, _ in self.plan.people:
                        people.start_soon(_client(name), self, name)
                    await trio.sleep(self.plan.seconds)
                    self.over = True
                    self.lives.store.faults.full = False
                self.lives.calm = True
                await self._end()
                nursery.cancel_scope.cancel()
        Audit(self.history, GROUPS, READER).judge()
        return Report(self.seed, len(self.history.events), self.lives.starts, self.history.digest)

    # -- the end -------------------------------------------------------------------------------------------------------

    async def _end(self) -> None:
        """All faults are over: timers fire, leases run out, every group drains, the whole log and all keys are read."""
        self.lives.store.faults.fail = None
        await trio.sleep(15)
        for group in GROUPS:
            await self._drain(group)
        await self._drain(READER, auto_ack=True)
        for name, _ in self.plan.people:
            if name.startswith("soloist"):
                await self._read_all(name, f"{clients.SOLO}.{name}", "solo.end")
            elif name.startswith("mover"):
                await self._read_all(READER, f"moved.{name}.sink", "moved.end")
                await self._read_all(READER, f"moved.{name}", "moved.source")
            elif name.startswith("streamer"):
                await self._read_all(READER, f"stream.{name}.sink", "stream.end")
        keys = {key for event in self.history.of("transaction") for key in event.asked["keys"]}
        for key in sorted(keys):
            await clients_state.kv(self, "end", "final", {"key": key}, [Get("sim", key)])
        for end in self.ends:
            await end()

    async def _drain(self, group: str, *, auto_ack: bool = False) -> None:
        while True:
            request = PopRequest(namespace="sim", group=group, batch=1000, partitions=64, auto_ack=auto_ack)
            event = await clients.pop(self, "end", request)
            if not event.ok or not event.found[1]:
                return
            lease, claims = event.found
            for _, _, pid, _, records in () if auto_ack else claims:
                await clients.ack(self, "end", [Ack(record[1], pid, group, "completed", lease) for record in records])

    async def _read_all(self, group: str, queue: str, op: str) -> None:
        """From the beginning on, whatever the group had read."""
        await self.call("end", f"{op}.seek", {"to": 0}, lambda face: face.seek(group, queue, 0))
        request = PopRequest(queue=queue, group=group, batch=1000, auto_ack=True)
        asked, found = {"queue": queue, "group": group}, True
        while found:
            event = await self.call("end", op, asked, lambda face: face.pop(request))
            found = event.ok and event.found[1]


def _client(name: str) -> Client:
    kind = name.rstrip("0123456789")
    return CLIENTS[kind][0] if kind in CLIENTS else kinds.KINDS[kind].live


BROKER_FAILED = "I17 the broker failed:"
"""How it is told that the broker raised what it never should."""
_KEEP = {"dedup_window_seconds": 30 * 86_400}
"""Ids are remembered for longer than any clock jumps."""


def simulate(seed: int, seconds: float = SECONDS) -> Report:
    """One run of `seconds` of virtual time. Raises Violation when a promise was broken."""
    return run(seed, Simulation(seed, seconds).main, alone=True)


def attempt(seed: int, seconds: float = SECONDS) -> Report | Failure:
    """`simulate`, with what there is to say about a seed that broke a promise, or the broker itself."""
    simulation = Simulation(seed, seconds)
    try:
        with _collected_after():
            return run(seed, simulation.main, alone=True)
    except BaseException as error:  # a broker that raises what it never should is broken too; which one is to be told
        if isinstance(error, KeyboardInterrupt):
            raise
        return Failure(seed, _told(error), simulation.plan, simulation.history.render())


@contextmanager
def _collected_after() -> Generator[None]:
    """Garbage is collected when the block is over, all of a run's at once: a tenth of the time was the collector's."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _told(error: BaseException) -> str:
    """The one thing that went wrong: the exceptions that a nursery has wrapped are its consequences or itself."""
    inside = [_told(one) for one in getattr(error, "exceptions", ())]
    if inside:
        return next((text for text in inside if text.startswith("I")), inside[0])
    if isinstance(error, Stuck):
        return f"I20 {error}"
    return str(error) if isinstance(error, Violation | Broken) else f"{BROKER_FAILED} {error!r}"


def attempts(seeds: Iterable[int], seconds: float, jobs: int) -> Iterator[Report | Failure]:
    """Each seed's outcome, in their order, in so many processes."""
    if jobs <= 1:
        yield from (attempt(seed, seconds) for seed in seeds)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, quiet) as pool:
        yield from pool.imap(partial(attempt, seconds=seconds), seeds, chunksize=8)


def seeds_of(text: str) -> range:
    first, _, last = text.partition("..")
    return range(int(first), int(last or first) + 1)


def quiet() -> None:
    """What the broker has to say of its troubles would bury what the simulator says."""
    logging.getLogger("queen_actors").setLevel(logging.CRITICAL)


def main(arguments: list[str] | None = None) -> int:
    """The command line; 1 when a seed broke a promise."""
    parser = argparse.ArgumentParser(prog="python -m queen_actors.testing.sim", description=__doc__)
    parser.add_argument("--seed", "--seeds", dest="seeds", type=seeds_of, default=range(1), metavar="N or A..B")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"virtual time of each run ({SECONDS:g})")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes (1)")
    parser.add_argument("--quiet", action="store_true", help="only failures, and the sum")
    parser.add_argument("--history", action="store_true", help="also print each history")
    options = parser.parse_args(arguments)
    quiet()
    broken = events = starts = 0
    began = time.perf_counter()
    for found in attempts(options.seeds, options.seconds, options.jobs):
        if isinstance(found, Failure):
            broken += 1
            print(f"seed {found.seed}: BROKEN {found.broken}\n{_options(found.plan)}\n{found.history}", flush=True)
            continue
        events, starts = events + found.events, starts + found.starts
        if not options.quiet:
            print(f"seed {found.seed}: {found.events} events, {found.starts} starts, digest {found.digest}")
    took = time.perf_counter() - began
    rate = len(options.seeds) / took
    print(f"{len(options.seeds)} seeds, {broken} broken, {events} events, {starts} starts, {rate:.1f} seeds/s")
    return 1 if broken else 0


def _options(plan: Plan) -> str:
    people = ", ".join(f"{name} by {way}" for name, way in plan.people)
    trouble = ", ".join(f"{name}={value!r}" for name, value in asdict(plan.trouble).items())
    return f"options: {plan.seconds:g} s; {people}; {trouble}"


if __name__ == "__main__":
    sys.exit(main())

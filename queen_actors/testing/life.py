"""The lives of a simulated broker: it starts, things go wrong, it dies or stops, and it starts again from its log.

A crash is the end of everything at one instant: no call is answered any more, no connection says another byte, and the
store takes nothing. What the wall clock says at a start is the world's affair, too.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from typing import Any

import trio
from msgspec import Struct
from trio.testing import MockClock

from queen_actors.actors.clock import RandomIds, TrioClock
from queen_actors.broker import Broker, running
from queen_actors.config import Settings
from queen_actors.domain.queue import Configure
from queen_actors.errors import QueenError, StorageFailed
from queen_actors.serve.listen import serve
from queen_actors.storage.memory import Faults, MemoryStore

from .faces import Broken
from .links import MemoryListener
from .state import given_back, is_whole, state_of

SECOND = 1_000_000
WALL = 1_700_000_000 * SECOND
JUMPS = (-3600.0, -30.0, -0.5, 0.5, 30.0, 3600.0)
"""By how much the wall clock jumps, seconds."""
PAUSES = (0.1, 3.0, 40.0)
"""For how long the process stands still, seconds."""
STEPS = 400
"""A crash that is to come at one of the next so many steps of the scheduler."""


class Trouble(Struct, frozen=True):
    """What may happen in one run; all of it is drawn from the seed. Seconds."""

    life: float
    """The longest that a broker lives."""
    commit: float
    """The longest that a commit takes."""
    read: float
    seal: float
    cache_bytes: int
    faults: tuple[str, ...]
    ends: tuple[str, ...]
    """How a life ends: a crash when its time is over, at a step of the scheduler or inside of a commit, a write of
    unknown fate, or a clean stop."""

    @classmethod
    def drawn(cls, rng: random.Random, seconds: float) -> Trouble:
        kinds = ("full", "passivate", "seal", "pause", "wall", "cut")
        return cls(
            life=rng.choice([0.3, 1.0, 1.0]) * seconds,
            commit=rng.choice([0.0, 0.002, 0.05, 0.3]),
            read=rng.choice([0.0, 0.01]),
            seal=rng.choice([1.0, 5.0, 30.0]),
            cache_bytes=rng.choice([1, 1 << 20]),
            faults=tuple(kind for kind in kinds if rng.random() < 0.5),
            ends=tuple(rng.sample(["crash", "step", "commit", "unknown", "stop"], 3)),
        )


class WallClock:
    """What a process that asks for the time of day is told: virtual time, and by how much the clock was set."""

    def __init__(self) -> None:
        self.set_by = 0

    def now(self) -> int:
        return WALL + int(trio.current_time() * SECOND) + self.set_by

    @contextmanager
    def installed(self) -> Generator[None]:
        """While the block runs, whoever reads the time of day reads this."""
        before = time.time, time.time_ns
        time.time, time.time_ns = (lambda: self.now() / SECOND), (lambda: self.now() * 1000)
        try:
            yield
        finally:
            time.time, time.time_ns = before


class _Countdown(trio.abc.Instrument):
    """Does something after so many steps of the scheduler."""

    def __init__(self, steps: int, do: Callable[[], None]) -> None:
        self._left = steps
        self._do = do

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self._left -= 1
        if not self._left:
            self._do()


class Life:
    """One life: what clients find while it lasts. `skew`: how far its clock is ahead of true time."""

    def __init__(self, broker: Broker, skew: int, listener: MemoryListener | None) -> None:
        self.broker = broker
        self.skew = skew
        self.listener = listener
        self.over = False
        """It died: what it answers from now on, nobody hears."""
        self.calls: set[trio.CancelScope] = set()


class Lives:
    """One broker after the other on one log, with trouble, until the world is calm."""

    def __init__(
        self, seed: int, rng: random.Random, trouble: Trouble, queues: tuple[Configure, ...], *, wire: bool
    ) -> None:
        self._seed = seed
        self._rng = rng
        self._trouble = trouble
        self._queues = queues
        self._wire = wire
        self.wall = WallClock()
        self.calm = False
        self.starts = 0
        self.life: Life | None = None
        self.skew = 0
        self.cut: Callable[[], None] = lambda: None
        """Cuts some connection."""
        self.told: Callable[[str], None] = lambda what: None
        """Told of the `stop` of a broker, and of its `death`."""
        self._up = trio.Event()
        self._scope = trio.CancelScope()
        self._before: dict[str, Any] | None = None
        self._latest: Life | None = None
        self.store = MemoryStore(
            retain=True,
            faults=Faults(
                latency=lambda: 0.0 if self.calm else rng.random() * trouble.commit, read_latency=trouble.read
            ),
            seal_seconds=trouble.seal,
        )

    async def living(self) -> Life:
        """The broker that is up; waits for the next start if none is."""
        while self.life is None:
            await self._up.wait()
        return self.life

    async def run(self) -> None:
        """Live again and again; for ever."""
        while True:
            with trio.CancelScope() as self._scope:
                try:
                    await self._live()
                except* StorageFailed:
                    self._before = None
            if self._latest is not None:
                self._end(self._latest)
            await trio.sleep(0 if self.calm else self._rng.random() * 0.2)
            self.store = self.store.reopen()

    async def _live(self) -> None:
        """One life. After a clean stop the next one must find exactly what was there (I14)."""
        self.starts += 1
        clock = TrioClock(self.wall.now())
        settings = Settings(record_cache_bytes=self._trouble.cache_bytes, shutdown_seconds=1, data=None)
        async with running(self.store, settings, clock=clock, ids=RandomIds(self._seed << 16 | self.starts)) as broker:
            if self._before is not None and state_of(broker) != given_back(self._before):
                raise Broken("I14 recovery is identity")
            if self.starts == 1:
                for queue in self._queues:
                    await broker.configure(queue)
            self.skew = clock.now() - int(trio.current_time() * SECOND)
            listener = MemoryListener() if self._wire else None
            shutdown = trio.Event()
            async with trio.open_nursery() as nursery:
                if listener is not None:
                    served = partial(serve, listeners=[listener], shutdown=shutdown)
                    await nursery.start(served, broker, settings)
                life = self.life = self._latest = Life(broker, self.skew, listener)
                self._up.set()
                await self._fate(life)
                self.told("stop")
                self._withdraw()
                shutdown.set()
        self._before = state_of(broker) if is_whole(broker) else None

    def _withdraw(self) -> None:
        """No new call finds this broker."""
        self.life, self._up = None, trio.Event()

    def _end(self, life: Life) -> None:
        if not life.over:
            self.told("death")
        life.over = True
        for scope in life.calls:
            scope.cancel()
        if self.life is life:
            self._withdraw()

    def crash(self, life: Life) -> None:
        """The process dies at this very step."""
        if life.over or self.calm:
            return
        self._before = None
        self.store.crash(keep=self._rng.random() < 0.5)
        self._end(life)
        self._scope.cancel()

    # -- trouble ---------------------------------------------------------------------------------------------------

    async def _fate(self, life: Life) -> None:
        """What happens to the broker, until this life is to end with a clean stop."""
        rng, trouble = self._rng, self._trouble
        until = trio.current_time() + rng.random() * trouble.life
        while trio.current_time() < until or self.calm:
            await trio.sleep(60 if self.calm else rng.choice([0.01, 0.05, 0.3, 1.0]))
            if trouble.faults and not self.calm:
                await self._fault(rng.choice(trouble.faults), life)
        end = rng.choice(trouble.ends)
        if end == "crash":
            self.crash(life)
        elif end == "step":
            await self._crash_at_step(life)
        elif end == "commit":
            await self._crash_in_commit(life)
        elif end == "unknown":
            self.store.faults.fail = rng.choice(["kept", "lost"])
            await trio.sleep(5)
            self.store.faults.fail = None

    async def _fault(self, kind: str, life: Life) -> None:
        rng, faults = self._rng, self.store.faults
        if kind == "full":
            faults.full = True
            self.told("full")
            await trio.sleep(rng.choice([0.01, 0.7, 2.0]))
            faults.full = False
        elif kind == "passivate":
            await self._passivate(life.broker)
        elif kind == "seal":
            try:
                await life.broker.seal()
            except QueenError:
                return
        elif kind == "pause":
            clock = trio.lowlevel.current_clock()
            assert isinstance(clock, MockClock)
            clock.jump(rng.choice(PAUSES))
        elif kind == "wall":
            self.wall.set_by += int(rng.choice(JUMPS) * SECOND)
        else:
            self.cut()

    async def _passivate(self, broker: Broker) -> None:
        """Whatever is packed away is still there."""
        before = state_of(broker)
        await broker.passivate()
        if state_of(broker) != before:
            raise Broken("I14 passivation loses nothing")

    async def _crash_at_step(self, life: Life) -> None:
        countdown = _Countdown(self._rng.randrange(1, STEPS), lambda: self.crash(life))
        trio.lowlevel.add_instrument(countdown)
        try:
            await trio.sleep(5)
        finally:
            trio.lowlevel.remove_instrument(countdown)

    async def _crash_in_commit(self, life: Life) -> None:
        """In the middle of a commit that takes its time."""
        rng, latency = self._rng, self.store.faults.latency

        def slow() -> float:
            crash_soon.start_soon(self._crash_after, rng.random() * 0.02, life)
            return 0.02

        async with trio.open_nursery() as crash_soon:
            self.store.faults.latency = slow
            try:
                await trio.sleep(5)
            finally:
                self.store.faults.latency = latency

    async def _crash_after(self, seconds: float, life: Life) -> None:
        await trio.sleep(seconds)
        self.crash(life)

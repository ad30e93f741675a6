"""Rounds of start, reading, audit, load and sudden death on one data directory, and a drained audit at the end."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

import trio

from queen_actors.storage.faultpoints import POINTS

from .audit import audit
from .linear import judge_linear
from .load import load
from .node import FAULT_STATUS, Node, NotReady
from .peer import Lost
from .phased import PHASES
from .readback import drain, read_back
from .socket_load import catch_up, socket_load
from .summary import Summary
from .world import World

LOAD_SECONDS = (0.2, 1.0)
FAULT_SECONDS = 10.0
"""How long a named point is waited for under load before the process is killed anyway."""
START_KILL_SHARE = 0.1
"""Of the random kills, how many come while it starts."""
PER_DIRECTORY = 25
POINT_ROUNDS = 12
"""So many lives a directory has for the points of a merge to be passed: one needs many small segments."""
PASSED_BY_OPENING = ("journal.create", "position")
"""Points that are passed before it is ready: their first passage is in the start itself."""
AIMED_SHARE = 0.7
"""Of the random kills, how many wait for the phase that saw the fewest so far."""
AIM_SECONDS = 1.0
"""How long for: a phase may not come at all."""
PHASED = ("-c", Path(__file__).with_name("phased.py").read_text())
STOP = "stop"
"""In a plan: this life ends by SIGTERM, under load."""
LATE = ("merge", "drop")
"""Points that are passed when there are many small segments."""


def fault_of(chance: random.Random, point: str) -> str:
    """The point, and at which passage of it to die: also in the middle of the load, not only at its first."""
    if point.startswith("journal.append"):
        return f"{point}:{chance.randint(1, 300)}"
    if point.startswith("journal.cut"):
        return f"{point}:1"  # only an opening cuts, and then one file
    if point.startswith(PASSED_BY_OPENING):
        return f"{point}:{chance.randint(1, 4)}"
    return f"{point}:{1 if point.startswith(LATE) else chance.randint(1, 2)}"


def died_in(phase: str) -> str:
    """The name of the count of deaths in this phase."""
    return f"died_in_{phase.replace('-', '_')}"


def settings_of(chance: random.Random) -> dict[str, str]:
    """Limits so small that files roll, are sealed, merged and dropped within seconds."""
    return {
        "journal_roll_bytes": str(chance.choice((50_000, 150_000, 400_000))),
        "journal_roll_seconds": str(chance.choice((0.4, 3600))),
        "snapshot_bytes": str(chance.choice((1, 1, 300_000))),
    }


class Campaign:
    """One data directory's story: kills. The others of its kind do something else to it while it is under load."""

    death: ClassVar[str] = "kills"
    """What a round's sudden end is counted as."""
    load_seconds: ClassVar[tuple[float, float]] = LOAD_SECONDS
    start_kill_share: ClassVar[float] = START_KILL_SHARE
    stops_per_kill: ClassVar[float] = 0.0
    """So many lives more for each random kill, that end by SIGTERM under load."""
    reconnects: ClassVar[bool] = False
    """Whether a client whose connection died has reason to try again."""
    planted: ClassVar[str] = ""
    """The bug that is planted in the broker, for a control."""

    def __init__(self, directory: Path, seed: int, summary: Summary) -> None:
        self.world = World(seed)
        self.summary = summary
        self.chance = self.world.random
        self.directory = directory
        self.node = self.make_node(**settings_of(self.chance))
        self.restless = self.chance.random() < 0.5
        """Whether it packs partitions away all the time."""
        if self.node.program == Node.program:
            self._watch()
        self.may_have_ended = False
        """Whether what happened to it is reason enough to have ended by itself."""

    def _watch(self) -> None:
        """It is to tell what it is about."""
        self.node.program, self.node.slate = PHASED, self.directory.resolve() / "slate"
        if self.restless:
            self.summary.counts["restless_directories"] += 1
            self.node.environment["CRASH_RESTLESS"] = "1"
        if self.planted:
            self.node.environment["CRASH_PLANTED"] = self.planted

    # -- what others do differently --------------------------------------------------------------------------------

    def make_node(self, **settings: str) -> Node:
        return Node(self.directory, **settings)

    @property
    def port(self) -> int:
        """Where the load's clients find it."""
        return self.node.port

    async def trouble(self) -> None:
        """What happens to it while it is under load, until it dies: most deaths are aimed at what few fell into yet."""
        await trio.sleep(self.chance.uniform(*self.load_seconds))
        if self.node.slate is not None and self.chance.random() < AIMED_SHARE:
            phases = [phase for phase in PHASES[1:] if self.restless or phase != "passivation"]
            phase = min(phases, key=lambda phase: self.summary.counts[died_in(phase)])
            await trio.to_thread.run_sync(self.node.strike, phase, AIM_SECONDS)

    async def after_death(self) -> None:
        """What happens to its data directory while it is dead."""

    # -- a story -----------------------------------------------------------------------------------------------------

    async def run(self, rounds: int, points: Sequence[str] = ()) -> None:
        """Kill that often; each of `points` takes the place of one random kill. Violations are in the summary."""
        try:
            for point in self._plan(rounds, points):
                if point == STOP:
                    await self._round(None, stopped=True)
                else:
                    await self._round(None if point is None else fault_of(self.chance, point))
                if self.summary.violations:
                    return
            await self._end()
        except NotReady as failure:
            self.summary.violations.append(f"it does not start by itself: {failure}")
        except Lost as lost:
            self.summary.violations.append(f"it could not be read: {lost}; it said: {self.node.said()[-2000:]}")
        finally:
            self.node.close()
            if "Traceback" in self.node.said():
                self.summary.violations.append(f"it told a traceback: {self.node.said()[-4000:]}")
            self.summary.count(self.world.history)
            self.world.history.save(self.directory / "history.jsonl")

    def _plan(self, rounds: int, points: Sequence[str]) -> list[str | None]:
        """What each round dies of; points that are passed only when there is a lot to tidy up come late."""
        late = [point for point in points if point.startswith(LATE)]
        kills = rounds - len(points)
        plan: list[str | None] = [*(point for point in points if point not in late), *[None] * kills]
        plan += [STOP] * math.ceil(kills * self.stops_per_kill)
        self.chance.shuffle(plan)
        for point in late:
            plan.insert(self.chance.randint(len(plan) * 2 // 3, len(plan)), point)
        return plan

    async def _round(self, fault: str | None, *, stopped: bool = False) -> None:
        """Start, read, judge, load, die; or be stopped, which is no round of those that were asked for."""
        self.world.history.round += 1
        self.summary.counts["stops" if stopped else "rounds"] += 1
        if fault is None and not stopped and self.chance.random() < self.start_kill_share:
            await self._die_starting()
        if fault is not None and not await self._start_to_die(fault):
            return
        if fault is None:
            await self._start()
            await self._judge()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load, self.world, self.port, self.reconnects)
            nursery.start_soon(socket_load, self.world, self.port, self.reconnects)
            await (self._stop_under_load() if stopped else self._die(fault))
            nursery.cancel_scope.cancel()
        await self.after_death()

    async def _start(self) -> None:
        """A start that nothing disturbs: by itself, with nobody's help."""
        self.summary.ready.append(await trio.to_thread.run_sync(self.node.start))

    async def _judge(self, *, drained: bool = False) -> None:
        await read_back(self.world, self.node.port, whole=drained)
        self.summary.violations += await trio.to_thread.run_sync(lambda: audit(self.world.history, drained=drained))

    async def _die_starting(self) -> None:
        self.node.spawn()
        await trio.sleep(self.chance.uniform(0.1, 2.0))
        self.node.kill()
        self._note_death()
        self.summary.counts[self.death] += 1
        self.summary.counts["while_it_started"] += 1
        await self.after_death()

    async def _start_to_die(self, fault: str) -> bool:
        """Start it with a fault; False when it died before it was ready."""
        await trio.to_thread.run_sync(self.node.spawn, fault)
        try:
            await trio.to_thread.run_sync(self.node.ready)
        except NotReady:
            self._died_at(fault)
            await self.after_death()
            return False
        return True

    async def _die(self, fault: str | None) -> None:
        if fault is None:
            self.may_have_ended = False
            await self.trouble()
            if self.node.kill():
                self.summary.counts[self.death] += 1
                self._note_death()
            elif not self.may_have_ended:
                self.summary.violations.append(f"it ended by itself: {self.node.said()[-2000:]}")
            return
        await trio.to_thread.run_sync(self.node.wait, FAULT_SECONDS)
        self._died_at(fault)

    async def _stop_under_load(self) -> None:
        """SIGTERM: what was answered until its end is there after the next start, as after a death."""
        await trio.sleep(self.chance.uniform(*self.load_seconds))
        told = time.monotonic()
        wrong = await trio.to_thread.run_sync(self.node.stop)
        self.world.history.stops.append((told, time.monotonic()))
        if wrong:
            self.summary.violations.append(f"a stop under load {wrong}: {self.node.said()[-2000:]}")

    def _died_at(self, fault: str) -> None:
        """Reap it: it is to have died at its point, and is killed when it has not come there."""
        status = self.node.wait(0)
        point = fault.partition(":")[0]
        self.node.kill()
        if status in (FAULT_STATUS, None):
            self._note_death()
        if status == FAULT_STATUS:
            self.summary.points[point] += 1
        elif status is None:
            self.summary.missed[point] += 1
            self.summary.counts[self.death] += 1
        else:
            self.summary.violations.append(f"it ended by itself with status {status}: {self.node.said()[-2000:]}")

    def _note_death(self) -> None:
        """What it was about when it died."""
        for phase in self.node.about():
            self.summary.counts[died_in(phase)] += 1

    async def _end(self) -> None:
        """Start, drain, judge; stop it cleanly, start and judge again: the same must be there."""
        self.world.history.round += 1
        await self._start()
        await self._judge()
        try:
            await drain(self.world, self.node.port)
            await catch_up(self.world, self.node.port)
        except* trio.TooSlowError:
            self.summary.violations.append("it could not be drained: something never comes back")
        except* Lost as lost:
            self.summary.violations.append(f"it could not be drained: {lost.exceptions}")
        for restart in (False, True):
            if restart:
                wrong = await trio.to_thread.run_sync(self.node.stop)
                if wrong:
                    self.summary.violations.append(f"a clean stop {wrong}")
                await self._start()
            self.world.history.round += 1
            await self._judge(drained=True)
        report = await trio.to_thread.run_sync(judge_linear, self.world.history)
        self.summary.counts["linearized"] += report.operations
        self.summary.violations += report.failures


class KillCampaign(Campaign):
    """One data directory's story of kills, and of stops under load: one in five of the ends that no point names."""

    stops_per_kill: ClassVar[float] = 0.25


Make = Callable[[Path, int, Summary], Campaign]


async def stories(make: Make, directory: Path, summary: Summary, rounds: int, *, points: float = 0.0) -> None:
    """About so many rounds, over fresh data directories with other limits each; stops at the first violation.

    `points`: which share of the rounds dies at named points, all of them in turn.
    """
    chance = random.Random(summary.seed)
    names: list[str] = []
    number = 0
    while summary.counts["rounds"] < rounds and not summary.violations:
        length = min(PER_DIRECTORY, rounds - summary.counts["rounds"])
        if points and len(names) < len(POINTS):
            names += chance.sample(POINTS, len(POINTS))
        share = round(length * points)
        chosen, names = names[:share], names[share:]
        place = directory / f"{number}"
        place.mkdir()
        began = time.monotonic()
        await make(place, chance.getrandbits(32), summary).run(length, chosen)
        print(f"directory {number}: {length} rounds in {time.monotonic() - began:.0f} s", flush=True)
        number += 1


async def kills(directory: Path, seed: int, count: int) -> Summary:
    """SIGKILL at any moment, deaths at named points of the log's work, and some stops (SIGTERM) under load."""
    summary = Summary("kills", seed)
    await stories(KillCampaign, directory, summary, count, points=0.5)
    return summary


async def points(directory: Path, seed: int, passes: int) -> Summary:
    """Every named point so often; one that was not reached is tried again, and in the end told."""
    summary = Summary("points", seed)
    chance = random.Random(seed)
    for number in range(4 * passes):
        left = [point for point in POINTS if summary.points[point] < passes]
        if not left or summary.violations:
            break
        place = directory / f"{number}"
        place.mkdir()
        await Campaign(place, chance.getrandbits(32), summary).run(max(len(left), POINT_ROUNDS), left)
    summary.violations += [f"{point} was never reached" for point in POINTS if not summary.points[point]]
    return summary

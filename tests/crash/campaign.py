"""Rounds of start, reading, audit, load and sudden death on one data directory, and a drained audit at the end."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import trio

from queen_actors.storage.faultpoints import POINTS

from .audit import audit
from .history import History
from .load import load
from .node import FAULT_STATUS, Node, NotReady
from .peer import Lost
from .readback import drain, read_back
from .world import World

LOAD_SECONDS = (0.2, 1.0)
FAULT_SECONDS = 4.0
"""How long a named point is waited for under load before the process is killed anyway."""
START_KILL_SHARE = 0.1
"""Of the random kills, how many come while it starts."""
PASSED_BY_OPENING = ("journal.create", "position")
"""Points that are passed before it is ready: their first passage is in the start itself."""
LATE = ("merge", "drop")
"""Points that are passed when there are many small segments."""


class Summary:
    """What a campaign did and found."""

    def __init__(self) -> None:
        self.rounds = self.kills = self.start_kills = self.operations = self.acknowledged = self.unknown = 0
        self.points: Counter[str] = Counter()
        """Named points at which the process died."""
        self.missed: Counter[str] = Counter()
        """Named points that were not reached in time; the process was killed instead."""
        self.ready: list[float] = []
        self.violations: list[str] = []

    def count(self, history: History) -> None:
        """Add a directory's calls."""
        self.operations += len(history.calls)
        self.acknowledged += sum(call.acknowledged for call in history.calls)
        self.unknown += sum(call.unknown for call in history.calls)

    def lines(self) -> list[str]:
        """For people."""
        ready = sorted(self.ready) or [0.0]
        points = self.points.total()
        kills = f"{self.kills + points}, of which {points} at {len(self.points)} named points"
        return [
            f"rounds        {self.rounds}",
            f"kills         {kills} and {self.start_kills} while it started",
            f"points        {', '.join(sorted(self.points)) or 'none'}",
            f"not reached   {dict(self.missed) or 'none'}",
            f"operations    {self.operations}: {self.acknowledged} acknowledged, {self.unknown} unknown",
            f"ready again   median {ready[len(ready) // 2]:.2f} s, worst {ready[-1]:.2f} s",
            f"violations    {len(self.violations)}",
            *self.violations,
        ]


def fault_of(chance: random.Random, point: str) -> str:
    """The point, and at which passage of it to die: also in the middle of the load, not only at its first."""
    if point.startswith("journal.append"):
        return f"{point}:{chance.randint(1, 300)}"
    if point.startswith("journal.cut"):
        return f"{point}:1"  # only an opening cuts, and then one file
    if point.startswith(PASSED_BY_OPENING):
        return f"{point}:{chance.randint(1, 4)}"
    return f"{point}:{1 if point.startswith(LATE) else chance.randint(1, 2)}"


def settings_of(chance: random.Random) -> dict[str, str]:
    """Limits so small that files roll, are sealed, merged and dropped within seconds."""
    return {
        "journal_roll_bytes": str(chance.choice((50_000, 150_000, 400_000))),
        "journal_roll_seconds": str(chance.choice((0.4, 3600))),
        "snapshot_bytes": str(chance.choice((1, 1, 300_000))),
    }


class Campaign:
    """One data directory's story."""

    def __init__(self, directory: Path, seed: int, summary: Summary) -> None:
        self.world = World(seed)
        self.summary = summary
        self.node = Node(directory, **settings_of(self.world.random))
        self._directory = directory
        self._chance = self.world.random

    async def run(self, rounds: int, points: Sequence[str] = ()) -> None:
        """Kill that often; each of `points` takes the place of one random kill. Violations are in the summary."""
        try:
            for point in self._plan(rounds, points):
                await self._round(None if point is None else fault_of(self._chance, point))
                if self.summary.violations:
                    return
            await self._end()
        except NotReady as failure:
            self.summary.violations.append(f"it does not start by itself: {failure}")
        except Lost as lost:
            self.summary.violations.append(f"it could not be read: {lost}; it said: {self.node.said()[-2000:]}")
        finally:
            self.node.close()
            self.summary.count(self.world.history)
            self.world.history.save(self._directory / "history.jsonl")

    def _plan(self, rounds: int, points: Sequence[str]) -> list[str | None]:
        """What each round dies of; points that are passed only when there is a lot to tidy up come late."""
        late = [point for point in points if point.startswith(LATE)]
        plan: list[str | None] = [*(point for point in points if point not in late), *[None] * (rounds - len(points))]
        self._chance.shuffle(plan)
        for point in late:
            plan.insert(self._chance.randint(len(plan) * 2 // 3, len(plan)), point)
        return plan

    async def _round(self, fault: str | None) -> None:
        """Start, read, judge, load, die."""
        self.world.history.round += 1
        self.summary.rounds += 1
        if fault is None and self._chance.random() < START_KILL_SHARE:
            await self._die_starting()
        if fault is not None and not await self._start_to_die(fault):
            return
        if fault is None:
            await self._start()
            await self._judge()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(load, self.world, self.node.port)
            await self._die(fault)

    async def _start(self) -> None:
        """A start that nothing disturbs: by itself, with nobody's help."""
        self.summary.ready.append(await trio.to_thread.run_sync(self.node.start))

    async def _judge(self, *, drained: bool = False) -> None:
        await read_back(self.world, self.node.port, whole=drained)
        self.summary.violations += await trio.to_thread.run_sync(lambda: audit(self.world.history, drained=drained))

    async def _die_starting(self) -> None:
        self.node.spawn()
        await trio.sleep(self._chance.uniform(0.1, 2.0))
        self.node.kill()
        self.summary.kills += 1
        self.summary.start_kills += 1

    async def _start_to_die(self, fault: str) -> bool:
        """Start it with a fault; False when it died before it was ready."""
        await trio.to_thread.run_sync(self.node.spawn, fault)
        try:
            await trio.to_thread.run_sync(self.node.ready)
        except NotReady:
            self._died_at(fault)
            return False
        return True

    async def _die(self, fault: str | None) -> None:
        if fault is None:
            await trio.sleep(self._chance.uniform(*LOAD_SECONDS))
            self.summary.kills += self.node.kill()
            return
        await trio.to_thread.run_sync(self.node.wait, FAULT_SECONDS)
        self._died_at(fault)

    def _died_at(self, fault: str) -> None:
        """Reap it: it is to have died at its point, and is killed when it has not come there."""
        status = self.node.wait(0)
        point = fault.partition(":")[0]
        self.node.kill()
        if status == FAULT_STATUS:
            self.summary.points[point] += 1
        elif status is None:
            self.summary.missed[point] += 1
            self.summary.kills += 1
        else:
            self.summary.violations.append(f"it ended by itself with status {status}: {self.node.said()[-2000:]}")

    async def _end(self) -> None:
        """Start, drain, judge; stop it cleanly, start and judge again: the same must be there."""
        self.world.history.round += 1
        await self._start()
        await self._judge()
        try:
            await drain(self.world, self.node.port)
        except* trio.TooSlowError:
            self.summary.violations.append("it could not be drained: something never comes back")
        except* Lost as lost:
            self.summary.violations.append(f"it could not be drained: {lost.exceptions}")
        for restart in (False, True):
            if restart:
                status = await trio.to_thread.run_sync(self.node.stop)
                if status != 0:
                    self.summary.violations.append(f"a clean stop ended with status {status}")
                await self._start()
            self.world.history.round += 1
            await self._judge(drained=True)


async def campaign(directory: Path, seed: int, kills: int, per_directory: int = 25) -> Summary:
    """About that many kills, over fresh data directories with other limits each; stops at the first violation."""
    summary = Summary()
    chance = random.Random(seed)
    points: list[str] = []
    number = 0
    while summary.kills + summary.points.total() < kills and not summary.violations:
        rounds = min(per_directory, kills - summary.kills - summary.points.total())
        if len(points) < len(POINTS):
            points += chance.sample(POINTS, len(POINTS))
        chosen, points = points[: rounds // 2], points[rounds // 2 :]
        place = directory / f"{number}"
        place.mkdir()
        began = time.monotonic()
        await Campaign(place, chance.getrandbits(32), summary).run(rounds, chosen)
        print(f"directory {number}: {rounds} rounds in {time.monotonic() - began:.0f} s", flush=True)
        number += 1
    return summary

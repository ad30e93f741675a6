"""The columns of docs/reliability.md: what is tried at each change, in a night, before a release; with its figures.

    python -m tests.columns small            # under three minutes on two idle cores: what `./check` runs
    python -m tests.columns soak --write     # under an hour: `./check --soak`
    python -m tests.columns release --write  # a day: `./check --release`
    python -m tests.columns release --minutes 30 --start 500000  # of a day what there is time for, on seeds of its own

Every step is a command that may be called by itself. It is called again and again, with other seeds, until its target
or its time is reached. Two calls that keep a core busy run at a time, and beside them three that mostly wait; what has
no end of its own, walks and simulation, gets what time the others leave. `--write` puts the figures into
docs/reliability.md. The status is 0 when nothing was violated and every step ran, 1 otherwise: a step that could not
run has not passed. One that ran and fell short of its target is told with its share of it; in the small column, less
than a quarter of it has not passed either.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from queen_actors.storage.faultpoints import POINTS
from queen_actors.testing.planted import BUGS

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "reliability.md"
COLUMNS = ("small", "soak", "release")
BUDGETS = {"small": 165.0, "soak": 3_420.0, "release": 86_000.0}
"""Seconds in which a column is to be over; the first call of a step is made also after that."""
LEAST = {"small": 0.25, "soak": 0.0, "release": 0.0}
"""The share of its target that a step must reach: at each change also a slow machine is to try something."""
LATE_SECONDS = 240.0
"""What one call may take beyond its step's time before it is ended."""
NOT_RUN = 3
PARTS = 10
"""What fills the end of a column is called with so many parts of what it is called with else."""


@dataclass
class Told:
    """What one call did: counts, violations, and what it could not do."""

    counts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    not_run: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Amount:
    """How much a column asks of a step, and the seconds that its calls have for it."""

    target: int
    seconds: float
    chunk: int = 0
    """How many a call is asked for; 0: as the step says."""


@dataclass(frozen=True)
class Step:
    """`command` makes the call of so many at a time, from this place on; `unit` names what is counted.

    `waits`: it mostly waits, for clocks and processes that are killed, and runs beside what keeps a core busy. `fills`:
    several calls of it may run at once, and it has whatever time is left.
    """

    name: str
    invariants: str
    unit: str
    chunk: int
    command: Callable[[int, int], Sequence[str]]
    parse: Callable[[subprocess.CompletedProcess[str], int], Told]
    amounts: dict[str, Amount]
    environment: Callable[[int], dict[str, str]] = lambda count: {}
    waits: bool = False
    fills: bool = False


def python(*words: object) -> list[str]:
    return ["python", *map(str, words)]


# -- reading what the commands say -------------------------------------------------------------------------------------


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""


def campaign(done: subprocess.CompletedProcess[str], count: int) -> Told:
    """The last line of tests.crash and tests.fuzz is JSON."""
    try:
        told = json.loads(_last(done.stdout))
        found = Told(Counter(told["counts"]), list(told["violations"]), list(told["not_run"]))
    except (ValueError, KeyError, TypeError):
        return unread(done)
    points = sum(told.get("points", {}).values())
    found.counts["deaths"] = found.counts["kills"] + points
    found.counts["points"] = points
    found.counts["points_missed"] = sum(told.get("missed", {}).values())
    if "cuts" in found.counts:  # a death at a named point is followed by a cut as well
        found.counts["cuts"] += points
    if done.returncode not in (0, NOT_RUN) and not found.violations:
        found.violations.append(f"ended with {done.returncode}")
    return found


def simulation(done: subprocess.CompletedProcess[str], count: int) -> Told:
    """`20 seeds, 0 broken, 2984 events, 67 starts, 2.0 seeds/s`"""
    found = re.search(r"^(\d+) seeds?, (\d+) broken, (\d+) events, (\d+) starts", done.stdout, re.MULTILINE)
    if found is None:
        return unread(done)
    seeds, broken, events, starts = map(int, found.groups())
    told = Told(Counter(seeds=seeds, events=events, starts=starts))
    told.violations += [f"{broken} seeds broken: {done.stdout[-3000:]}"] if broken or done.returncode else []
    return told


def planted(done: subprocess.CompletedProcess[str], count: int) -> Told:
    """`1 of 1 found`"""
    found = re.search(r"^(\d+) of (\d+) found", done.stdout, re.MULTILINE)
    if found is None:
        return unread(done)
    told = Told(Counter(mutants=int(found[1])))
    told.violations += [f"not found: {done.stdout[-500:]}"] if found[1] != found[2] or done.returncode else []
    return told


def walks(done: subprocess.CompletedProcess[str], count: int) -> Told:
    """`1000000 steps in 500 rounds, 0 broken, 30000 steps/s`"""
    found = re.search(r"^(\d+) steps in (\d+) rounds, (\d+) broken", done.stdout, re.MULTILINE)
    if found is None:
        return unread(done)
    told = Told(Counter(steps=int(found[1]), rounds=int(found[2])))
    told.violations += [done.stdout[-3000:]] if int(found[3]) or done.returncode else []
    return told


def machines(done: subprocess.CompletedProcess[str], count: int) -> Told:
    """pytest: every one passed, and so many steps were tried."""
    passed = re.search(r"^(\d+) passed", done.stdout.replace("\n=", "\n"), re.MULTILINE)
    if passed is None and "failed" not in done.stdout:
        return unread(done)
    told = Told(Counter(steps=count))
    told.violations += [done.stdout[-3000:]] if done.returncode else []
    return told


def unread(done: subprocess.CompletedProcess[str]) -> Told:
    """What ended before it could say anything has not run."""
    if re.search(r"No module named|unrecognized arguments|invalid choice", done.stderr):
        return Told(not_run=[_last(done.stderr)[:300]])
    return Told(violations=[f"ended with {done.returncode} and said nothing: {(done.stderr or done.stdout)[-1500:]}"])


# -- the table ---------------------------------------------------------------------------------------------------------

_MACHINES = [f"tests/domain/test_{name}_machine.py" for name in ("kv", "locks", "timers", "cursor")]
STEPS_A_ROUND = 2_000
"""Steps of the walks for one of their seeds; a test compares it."""
STEPS_EACH = 23
"""Steps that the machines try together for one of QUEEN_ACTORS_STEPS: six in three of them, five in the fourth."""
QUICK = (
    "answer_before_durable", "delivery_before_durable", "apply_before_prepare", "refused_group_stays",
    "counter_not_persisted", "dedup_forgotten", "ack_past_the_lease", "expired_lease_unnoticed",
    "passivation_drops_cursors", "seek_loses", "version_restarts", "batch_not_atomic",
)  # fmt: skip
"""Those that the first seeds show: what the small column has the time for."""
MUTANTS = (*QUICK, *(bug.name for bug in BUGS if bug.name not in QUICK))


Asked = tuple[int, float] | tuple[int, float, int]


def _amounts(small: Asked, soak: Asked, release: Asked) -> dict[str, Amount]:
    return dict(zip(COLUMNS, (Amount(*small), Amount(*soak), Amount(*release)), strict=True))


def _crash(flag: str) -> Callable[[int, int], list[str]]:
    return lambda start, count: python("-m", "tests.crash", f"--{flag}", count, "--seed", start + 1)


def _fuzz(kind: str, what: str) -> Callable[[int, int], list[str]]:
    return lambda start, count: python("-m", "tests.fuzz", kind, f"--{what}", count, "--seed", start + 1)


TABLE: tuple[Step, ...] = (
    Step(
        "H: walks beside a model", "I2 I3 I6 I8 I9 I10 I12 I14", "steps", 1_000_000,
        lambda start, count: python("-m", "tests.walks", "--steps", count, "--seed", start // STEPS_A_ROUND),
        walks,
        _amounts((200_000, 40), (50_000_000, 2_900), (1_000_000_000, 80_000)),
        fills=True,
    ),
    Step(
        "H: the same, by the machines' tests", "I2 I3 I6 I8 I9 I10 I12 I14", "steps", 1_000 * STEPS_EACH,
        lambda start, count: python("-m", "pytest", "-q", "--timeout", 3600, *_MACHINES),
        machines,
        _amounts((23_000, 40), (46_000, 150), (2_300_000, 3_600)),
        environment=lambda count: {"QUEEN_ACTORS_STEPS": str(count // STEPS_EACH)},
    ),
    Step(
        "S: simulation", "I1-I14", "seeds", 1_000,
        lambda start, count: python(
            "-m", "queen_actors.testing.sim", "--seeds", f"{start}..{start + count - 1}", "--quiet"
        ),
        simulation,
        _amounts((200, 40), (100_000, 2_900), (1_000_000, 80_000)),
        fills=True,
    ),
    Step(
        "S: planted bugs", "the simulator itself", "mutants", 1,
        lambda start, count: python(
            "-m", "queen_actors.testing.mutants", "--only", MUTANTS[start % len(MUTANTS)], "--no-control",
            "--seeds", "0..1999",
        ),
        planted,
        _amounts((12, 110), (len(MUTANTS), 900), (len(MUTANTS), 3_600)),
    ),
    Step(
        "K: kill -9", "I1-I12 I14 I20", "deaths", 5, _crash("kills"), campaign,
        _amounts((20, 140), (300, 3_000, 25), (1_000, 7_200, 25)), waits=True,
    ),
    Step(
        "K: named points", "I1-I12 I14", "points", len(POINTS),
        lambda start, count: python("-m", "tests.crash", "--points", 1, "--seed", start + 1), campaign,
        _amounts((0, 0), (len(POINTS), 500), (10 * len(POINTS), 7_200)), waits=True,
    ),
    Step(
        "P: power cuts", "I1 I2 I5-I8 I10-I14", "cuts", 5, _crash("power"), campaign,
        _amounts((20, 140), (200, 3_000, 25), (500, 7_200, 25)), waits=True,
    ),
    Step(
        "T: wall-clock jumps", "I3 I4 I10 I19", "jumps", 10, _crash("clock"), campaign,
        _amounts((10, 30), (200, 600), (500, 3_600)), waits=True,
    ),
    Step(
        "T: pauses", "I3 I4 I19", "pauses", 5, _crash("pauses"), campaign,
        _amounts((5, 30), (100, 1_000, 25), (300, 7_200, 25)), waits=True,
    ),
    Step(
        "D: disk faults", "I1 I14 I15 I16", "disk_faults", 30, _crash("disk"), campaign,
        _amounts((30, 60), (600, 2_000), (2_000, 7_200)), waits=True,
    ),
    Step(
        "N: connections and networks", "I18 I20", "connect_and_drop", 50, _crash("network"), campaign,
        _amounts((50, 20), (1_000, 600, 1_000), (5_000, 3_600, 1_000)), waits=True,
    ),
    Step(
        "F: HTTP", "I17", "inputs", 4_000, _fuzz("http", "inputs"), campaign,
        _amounts((500, 45), (20_000, 1_000), (200_000, 14_400)),
    ),
    Step(
        "F: sockets", "I17", "inputs", 4_000, _fuzz("socket", "inputs"), campaign,
        _amounts((600, 15), (20_000, 600), (200_000, 7_200)),
    ),
    Step(
        "F: decoders", "I17", "seconds", 50, _fuzz("decoders", "seconds"), campaign,
        _amounts((10, 12), (300, 450), (1_800, 2_400)),
    ),
    Step(
        "F: decoders, guided", "I17", "seconds", 60,
        lambda start, count: python(
            "-m", "tests.fuzz", "decoders", "--seconds", count, "--seed", start + 1, "--engine", "atheris"
        ),
        campaign,
        _amounts((0, 0), (60, 300), (1_800, 7_200, 600)),
    ),
)  # fmt: skip


HISTORIES = Step(
    "L: histories of keys and locks", "I5-I7 I9 I11", "linearized", 1, lambda start, count: [], campaign,
    _amounts((2_000, 0), (200_000, 0), (2_000_000, 0)),
)  # fmt: skip
"""Operations whose order was looked for, in what the others recorded."""


# -- running -----------------------------------------------------------------------------------------------------------


@dataclass
class Result:
    """What a step has come to. Only the board's threads change it, under its lock."""

    step: Step
    amount: Amount
    told: Told = field(default_factory=Told)
    done: int = 0
    seconds: float = 0.0
    """Of its calls together."""
    commands: list[str] = field(default_factory=list)
    asked: int = 0
    """What all calls were to do."""
    underway: int = 0
    """What the calls are to do that are not over."""
    calls: int = 0
    slowest: float = 0.0
    """Seconds of the slowest call, or of a whole one at its pace where a step fills what is left."""
    ended: bool = False
    """A call did nothing: another one would not either."""

    @property
    def state(self) -> str:
        if self.told.violations:
            return f"{len(self.told.violations)} VIOLATED"
        if not self.done or self.told.not_run:
            return f"{'in part ' * bool(self.done)}not run: {'; '.join(self.told.not_run) or 'no time'}"
        return "held"

    @property
    def chunk(self) -> int:
        """How many a call is asked for."""
        return self.amount.chunk or self.step.chunk

    @property
    def reached(self) -> str:
        """Whether the target was reached, or how much of it."""
        return "reached" if self.share >= 1 else f"{100 * self.share:.3g} %"

    @property
    def share(self) -> float:
        return self.done / self.amount.target

    def passed(self, column: str) -> bool:
        """Whether it held, and did not try too little for that to mean something."""
        return self.state == "held" and self.share >= LEAST[column]

    def goes_on(self, left: float) -> bool:
        """May it be called, when the column has so many seconds left? A call that would not end in time may not be
        made, but for the first."""
        if self.ended or self.told.violations or self.done + self.underway >= self.amount.target:
            return False
        if self.step.fills:
            return not self.commands or left >= self.slowest / PARTS
        mine = self.amount.seconds - self.seconds
        return not self.calls and (not self.commands or min(left, mine) >= self.slowest)

    @property
    def urgency(self) -> tuple[bool, float]:
        """Less is earlier: what has an end of its own first, the longest of it; then what has least of its target."""
        if self.step.fills:
            return True, (self.done + self.underway) / self.amount.target
        return False, -self.amount.seconds


class Board:
    """What is to be called next: all threads take from it, and bring back what was done."""

    def __init__(self, results: Sequence[Result], start: int, seconds: float) -> None:
        self.results = results
        self._start = start
        self._end = time.monotonic() + seconds
        self._lock = threading.Lock()

    def stop(self) -> None:
        """Begin nothing more."""
        with self._lock:
            for result in self.results:
                result.ended = True

    def work(self, waiting: bool) -> None:
        """Call until there is nothing left for this thread; one that is for what waits takes nothing else."""
        while (taken := self._take(waiting)) is not None:
            result, start, count = taken
            step, began = result.step, time.monotonic()
            command = [str(word) for word in step.command(start, count)]
            environment = step.environment(count)
            shown = shlex.join([*(f"{k}={v}" for k, v in environment.items()), *command])
            result.commands.append(shown)
            left = self._end - began if step.fills else result.amount.seconds - result.seconds
            told = call(step, command, environment, count, max(left, 0) + LATE_SECONDS)
            self._bring(result, count, told, time.monotonic() - began)

    def _take(self, waiting: bool) -> tuple[Result, int, int] | None:
        with self._lock:
            left = self._end - time.monotonic()
            able = [one for one in self.results if one.goes_on(left)]
            mine = [one for one in able if one.step.waits == waiting] or ([] if waiting else able)
            if not mine:
                return None
            result = min(mine, key=lambda one: one.urgency)
            count = min(result.chunk, result.amount.target - result.done - result.underway)
            if result.step.fills and 0 < left < result.slowest:
                count = min(count, result.chunk // PARTS * max(1, int(left / result.slowest * (PARTS - 1))))
            start = self._start + result.asked
            result.asked += count
            result.underway += count
            result.calls += 1
            return result, start, count

    def _bring(self, result: Result, count: int, told: Told, seconds: float) -> None:
        with self._lock:
            unit = result.step.unit
            if unit == "seconds" and not told.violations and not told.not_run:
                told.counts[unit] = count
            result.told.counts += told.counts
            result.told.violations += told.violations
            result.told.not_run += told.not_run
            result.done += told.counts[unit]
            result.ended |= not told.counts[unit]
            result.underway -= count
            result.calls -= 1
            result.seconds += seconds
            whole = result.chunk / count if result.step.fills else 1.0
            result.slowest = max(result.slowest, seconds * whole)
            if not result.calls and (result.ended or result.told.violations or result.done >= result.amount.target):
                print(line(result), flush=True)


def run_step(step: Step, amount: Amount, start: int = 0) -> Result:
    """Call one step until its target or its time is reached."""
    result = Result(step, amount)
    Board([result], start, amount.seconds).work(step.waits)
    return result


CALLS: set[int] = set()
"""The process groups of the calls under way."""


def call(step: Step, command: Sequence[str], environment: dict[str, str], count: int, seconds: float) -> Told:
    """One call, ended with all that it has started when it takes much too long."""
    words = [sys.executable, *command[1:]]
    with subprocess.Popen(
        words,
        cwd=ROOT,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        CALLS.add(process.pid)
        try:
            told, said = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return Told(violations=[f"{shlex.join(command)} did not end within {seconds:.0f} s"])
        finally:
            CALLS.discard(process.pid)
    done = subprocess.CompletedProcess(words, process.returncode, told, said)
    return step.parse(done, count)


def run(column: str, start: int, jobs: int, beside: int, only: str | None, seconds: float) -> list[Result]:
    """Every step, in so many seconds; `jobs` calls at a time that keep a core busy, and `beside` them so many that
    wait."""
    steps = [step for step in TABLE if step.amounts[column].target and (only is None or only in step.name)]
    results = [Result(step, step.amounts[column]) for step in steps]
    board = Board(results, start, seconds)
    threads = [threading.Thread(target=board.work, args=(number >= jobs,)) for number in range(jobs + beside)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except BaseException:  # whoever ends a column ends its calls
        board.stop()
        for group in list(CALLS):
            os.killpg(group, signal.SIGKILL)
        raise
    return [*results, *checked_histories(column, results)]


def checked_histories(column: str, results: Sequence[Result]) -> list[Result]:
    """L has no command of its own: what it checked are the histories of the others."""
    count = sum(one.told.counts["linearized"] for one in results)
    told = Told(Counter(linearized=count))
    return [Result(HISTORIES, HISTORIES.amounts[column], told, count)] if count else []


def line(result: Result) -> str:
    """One step for people."""
    done = f"{result.done:,} of {result.amount.target:,} {result.step.unit.replace('_', ' ')}"
    shown = "".join(f"\n    {text[:2000]}" for text in result.told.violations[:5])
    return f"{result.state:<12} {result.step.name:<30} {done} ({result.reached}), {result.seconds:.0f} s{shown}"


def figures(column: str, results: Sequence[Result], seconds: float, asked: str | None = None) -> str:
    """The table for the document. `asked`: the command's words, if there were others than the column and `--write`."""
    cores, version = os.cpu_count(), platform.python_version()
    ran = f"`python -m tests.columns {asked or f'{column} --write'}`, {datetime.now(UTC):%Y-%m-%d}"
    lines = [
        f"{ran}, {cores} cores, Python {version}, {seconds / 60:.0f} minutes.",
        "",
        "| work | tries | done | target | of it | beside | violations | the first call |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for one in results:
        beside = ", ".join(
            f"{count:,} {name.replace('_', ' ')}"
            for name, count in sorted(one.told.counts.items())
            if name not in (one.step.unit, "slowest_ms") and count
        )
        state = "0" if one.state == "held" else one.state.replace("|", "/").replace("\n", " ")
        unit = one.step.unit.replace("_", " ")
        first = f"`{one.commands[0]}`" if one.commands else "with K, P, T, D, N"
        lines.append(
            f"| {one.step.name} | {one.step.invariants} | {one.done:,} {unit} | {one.amount.target:,} "
            f"| {one.reached} | {beside} | {state} | {first} |"
        )
    return "\n".join(lines)


def write(column: str, text: str, document: Path = DOCUMENT) -> None:
    """Put the table between the column's marks. Raises ValueError when they are not there."""
    begin, end = f"<!-- figures: {column} -->", f"<!-- end of figures: {column} -->"
    before, found, rest = document.read_text().partition(begin)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise ValueError(f"{document} has no place for the figures of the column {column}")
    document.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")


def main() -> int:
    """Run one column."""
    parser = argparse.ArgumentParser(prog="python -m tests.columns", description=__doc__)
    parser.add_argument("column", choices=COLUMNS)
    parser.add_argument("--start", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument("--jobs", type=int, default=2, help="calls at a time that keep a core busy (default 2)")
    parser.add_argument("--beside", type=int, default=3, help="calls at a time that mostly wait (default 3)")
    parser.add_argument("--only", help="steps whose name holds this")
    parser.add_argument("--minutes", type=float, help="end it after so many, with what has been done by then")
    parser.add_argument("--write", action="store_true", help="put the figures into docs/reliability.md")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # with its calls, as by Ctrl-C
    began = time.monotonic()
    budget = BUDGETS[options.column] if options.minutes is None else options.minutes * 60
    results = run(options.column, options.start, options.jobs, options.beside, options.only, budget)
    seconds = time.monotonic() - began
    if options.write:
        write(options.column, figures(options.column, results, seconds, shlex.join(sys.argv[1:])))
    print("\n".join(map(line, results)))
    bad = [result for result in results if not result.passed(options.column)]
    reached = sum(result.reached == "reached" for result in results)
    held = f"{len(results) - len(bad)} of {len(results)} steps held"
    for result in bad:
        if result.state == "held":
            print(f"{result.step.name}: too little was tried")
    print(f"{options.column}: {held}, {reached} of them reached their target, {seconds:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

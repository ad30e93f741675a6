"""The columns of docs/reliability.md: what is tried at each change, in a night, before a release; with its figures.

    python -m tests.columns small            # under three minutes on two idle cores: what `./check` runs
    python -m tests.columns soak --write     # under an hour: `./check --soak`
    python -m tests.columns release --write  # a day: `./check --release`

Every step is a command that may be called by itself. It is called again and again, with other seeds, until its target
or its time is reached; two steps run at a time. `--write` puts the figures into docs/reliability.md. The status is 0
when nothing was violated and every step ran, 1 otherwise: a step that could not run has not passed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import queue
import re
import shlex
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "reliability.md"
COLUMNS = ("small", "soak", "release")
LATE_SECONDS = 240.0
"""What one call may take beyond its step's time before it is ended."""
NOT_RUN = 3


@dataclass
class Told:
    """What one call did: counts, violations, and what it could not do."""

    counts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    not_run: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Amount:
    """How much a column asks of a step, and the seconds that it has for it."""

    target: int
    seconds: float


@dataclass(frozen=True)
class Step:
    """`command` makes the call of so many at a time, from this place on; `unit` names what is counted."""

    name: str
    invariants: str
    unit: str
    chunk: int
    command: Callable[[int, int], Sequence[str]]
    parse: Callable[[subprocess.CompletedProcess[str], int], Told]
    amounts: dict[str, Amount]
    environment: Callable[[int], dict[str, str]] = lambda count: {}


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
    found.counts["deaths"] = found.counts["kills"] + sum(told.get("points", {}).values())
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
STEPS_EACH = 23
"""Steps that the machines try together for one of QUEEN_ACTORS_STEPS: six in three of them, five in the fourth."""
MUTANTS = (
    "answer_before_durable", "read_before_durable", "delivery_before_durable", "apply_before_prepare",
    "refused_group_stays", "counter_not_persisted", "wall_clock", "expiry_at_reply", "dedup_forgotten",
    "dedup_on_rollback", "ack_past_the_lease", "dead_lease_settles", "cancelled_pop_keeps_its_lease",
    "expired_lease_unnoticed", "passivation_drops_cursors", "seek_loses", "version_restarts", "batch_not_atomic",
    "bound_checked_early", "renewal_keeps_the_token", "two_holders", "guard_then_wait", "half_a_transaction",
    "timer_removed_first", "timer_early", "cancelled_timer_fires", "recovery_skips_the_last_entry",
    "retention_early", "retention_unconsumed", "gap_not_told", "tail_skips_one", "watch_before_durable",
    "coalesced_loses_the_last", "watch_forgets_the_gap", "waiter_overtakes", "permit_survives", "loss_not_told",
)  # fmt: skip
"""A test compares these names with those that there are."""


def _amounts(small: tuple[int, float], soak: tuple[int, float], release: tuple[int, float]) -> dict[str, Amount]:
    return dict(zip(COLUMNS, (Amount(*small), Amount(*soak), Amount(*release)), strict=True))


def _crash(flag: str) -> Callable[[int, int], list[str]]:
    return lambda start, count: python("-m", "tests.crash", f"--{flag}", count, "--seed", start + 1)


def _fuzz(kind: str, what: str) -> Callable[[int, int], list[str]]:
    return lambda start, count: python("-m", "tests.fuzz", kind, f"--{what}", count, "--seed", start + 1)


TABLE: tuple[Step, ...] = (
    Step(
        "H: machines against a model", "I2 I3 I6 I8 I9 I10 I12", "steps", 2_000 * STEPS_EACH,
        lambda start, count: python("-m", "pytest", "-q", "--timeout", 3600, *_MACHINES),
        machines,
        _amounts((200_000, 40), (50_000_000, 900), (1_000_000_000, 14_400)),
        environment=lambda count: {"QUEEN_ACTORS_STEPS": str(count // STEPS_EACH)},
    ),
    Step(
        "S: simulation", "I1-I14 I18", "seeds", 100,
        lambda start, count: python(
            "-m", "queen_actors.testing.sim", "--seeds", f"{start}..{start + count - 1}", "--quiet"
        ),
        simulation,
        _amounts((200, 40), (100_000, 1500), (1_000_000, 28_800)),
    ),
    Step(
        "S: planted bugs", "the simulator itself", "mutants", 1,
        lambda start, count: python(
            "-m", "queen_actors.testing.mutants", "--only", MUTANTS[start], "--no-control", "--seeds", "0..1999"
        ),
        planted,
        _amounts((12, 40), (len(MUTANTS), 900), (len(MUTANTS), 3_600)),
    ),
    Step(
        "K: kill -9", "I1-I12 I14 I20", "deaths", 5, _crash("kills"), campaign,
        _amounts((20, 50), (300, 600), (1_000, 3_600)),
    ),
    Step(
        "P: power cuts", "I1 I2 I5-I8 I10-I14", "cuts", 5, _crash("power"), campaign,
        _amounts((20, 45), (200, 600), (500, 3_600)),
    ),
    Step(
        "T: wall-clock jumps", "I3 I4 I10 I19", "jumps", 10, _crash("clock"), campaign,
        _amounts((10, 30), (200, 300), (500, 1_800)),
    ),
    Step(
        "T: pauses", "I3 I4 I19", "pauses", 5, _crash("pauses"), campaign,
        _amounts((5, 30), (100, 600), (300, 3_600)),
    ),
    Step(
        "D: disk faults", "I1 I14 I15 I16", "disk_faults", 30, _crash("disk"), campaign,
        _amounts((30, 35), (600, 600), (2_000, 3_600)),
    ),
    Step(
        "N: connections and networks", "I18 I20", "connect_and_drop", 50, _crash("network"), campaign,
        _amounts((50, 20), (1_000, 300), (5_000, 1_800)),
    ),
    Step(
        "F: HTTP", "I17", "inputs", 500, _fuzz("http", "inputs"), campaign,
        _amounts((500, 45), (20_000, 900), (200_000, 14_400)),
    ),
    Step(
        "F: sockets", "I17 I18", "inputs", 600, _fuzz("socket", "inputs"), campaign,
        _amounts((600, 15), (20_000, 300), (200_000, 3_600)),
    ),
    Step(
        "F: decoders", "I17", "seconds", 10, _fuzz("decoders", "seconds"), campaign,
        _amounts((10, 12), (300, 330), (1_800, 1_900)),
    ),
)  # fmt: skip


# -- running -----------------------------------------------------------------------------------------------------------


@dataclass
class Result:
    """What a step came to."""

    step: Step
    amount: Amount
    told: Told = field(default_factory=Told)
    done: int = 0
    seconds: float = 0.0
    commands: list[str] = field(default_factory=list)

    @property
    def state(self) -> str:
        if self.told.violations:
            return f"{len(self.told.violations)} VIOLATED"
        if not self.done:
            return f"not run: {'; '.join(self.told.not_run) or 'no time'}"
        return "held"


def run_step(step: Step, amount: Amount, start: int = 0) -> Result:
    """Call it until the target or its time is reached; no call begins that would not end in time, but for the first."""
    result = Result(step, amount)
    began, slowest = time.monotonic(), 0.0
    while result.done < amount.target and not result.told.violations:
        left = amount.seconds - (time.monotonic() - began)
        if result.commands and left < slowest:
            break
        count = min(step.chunk, amount.target - result.done)
        command = [str(word) for word in step.command(start, count)]
        environment = step.environment(count)
        result.commands.append(shlex.join([*(f"{k}={v}" for k, v in environment.items()), *command]))
        called = time.monotonic()
        told = call(step, command, environment, count, max(left, 0) + LATE_SECONDS)
        slowest = max(slowest, time.monotonic() - called)
        result.told.counts += told.counts
        result.told.violations += told.violations
        result.told.not_run += told.not_run
        if step.unit == "seconds" and not told.violations and not told.not_run:
            told.counts["seconds"] = count
        if not told.counts[step.unit]:
            break
        result.done += told.counts[step.unit]
        start += max(count, 1)
    result.seconds = time.monotonic() - began
    return result


def call(step: Step, command: Sequence[str], environment: dict[str, str], count: int, seconds: float) -> Told:
    """One call, ended when it takes much too long."""
    try:
        done = subprocess.run(
            [sys.executable, *command[1:]],
            cwd=ROOT,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return Told(violations=[f"{shlex.join(command)} did not end within {seconds:.0f} s"])
    return step.parse(done, count)


def run(column: str, start: int, jobs: int, only: str | None) -> list[Result]:
    """Every step, the longest first, so many at a time."""
    waiting: queue.Queue[Step] = queue.Queue()
    chosen = [step for step in TABLE if only is None or only in step.name]
    for step in sorted(chosen, key=lambda step: -step.amounts[column].seconds):
        waiting.put(step)
    results: dict[str, Result] = {}

    def work() -> None:
        while True:
            try:
                step = waiting.get_nowait()
            except queue.Empty:
                return
            results[step.name] = result = run_step(step, step.amounts[column], start)
            print(line(result), flush=True)

    threads = [threading.Thread(target=work) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[step.name] for step in chosen]


def line(result: Result) -> str:
    """One step for people."""
    done = f"{result.done:,} of {result.amount.target:,} {result.step.unit.replace('_', ' ')}"
    shown = "".join(f"\n    {text[:2000]}" for text in result.told.violations[:5])
    return f"{result.state:<12} {result.step.name:<30} {done}, {result.seconds:.0f} s{shown}"


def figures(column: str, results: Sequence[Result], seconds: float) -> str:
    """The table for the document."""
    cores, version = os.cpu_count(), platform.python_version()
    ran = f"`python -m tests.columns {column} --write`, {datetime.now(UTC):%Y-%m-%d}"
    lines = [
        f"{ran}, {cores} cores, Python {version}, {seconds / 60:.0f} minutes.",
        "",
        "| work | tries | done | target | beside | violations | the first call |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for one in results:
        beside = ", ".join(
            f"{count:,} {name.replace('_', ' ')}"
            for name, count in sorted(one.told.counts.items())
            if name not in (one.step.unit, "slowest_ms") and count
        )
        state = "0" if one.state == "held" else one.state.replace("|", "/").replace("\n", " ")
        unit = one.step.unit.replace("_", " ")
        lines.append(
            f"| {one.step.name} | {one.step.invariants} | {one.done:,} {unit} | {one.amount.target:,} "
            f"| {beside} | {state} | `{one.commands[0] if one.commands else ''}` |"
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
    parser.add_argument("--jobs", type=int, default=2, help="steps at a time (default 2)")
    parser.add_argument("--only", help="steps whose name holds this")
    parser.add_argument("--write", action="store_true", help="put the figures into docs/reliability.md")
    options = parser.parse_args()
    began = time.monotonic()
    results = run(options.column, options.start, options.jobs, options.only)
    seconds = time.monotonic() - began
    if options.write:
        write(options.column, figures(options.column, results, seconds))
    bad = [result for result in results if result.state != "held"]
    print(f"{options.column}: {len(results) - len(bad)} of {len(results)} steps held, {seconds:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

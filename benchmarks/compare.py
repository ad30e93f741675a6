"""The workloads on our faces and on what a user would run instead, in one run on one machine, side by side.

    python benchmarks/compare.py --peers DIR --peers-python PYTHON --write     # all of it: an hour and a quarter
    python benchmarks/compare.py --peers DIR --only W1,W3 --systems http,websocket,redis --rounds 5
    python benchmarks/compare.py --only aims               # what was aimed at beside the workloads: ten minutes
    python benchmarks/compare.py --load all.json --load three-rounds.json --write      # the second laid over the first

`DIR` has the peers' own scripts (`bench_redis.py` and so on; `docs/benchmarks.md` has what they must take and print),
`PYTHON` is an interpreter that has their clients. A peer that cannot start here is reported and left out. A round
measures every system once, one after the other, each on an empty directory; every figure is the median of the rounds,
with its spread beside it, so that what the machine did meanwhile hits all of them and shows. A ratio whose rounds fall
on both sides of what was aimed at is told as noise, and one of a single round that is near it says that. The table is
printed; `--write` puts it into the README and `docs/benchmarks.md`, and a chart beside it. Of files that are loaded,
each workload of a system is the last one's that has it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import aims
from charts import bars
from measure import payload
from msgspec import Struct
from pages import BENCHMARKS, README, replaced
from workloads import FACES, WORKLOADS, chosen

HERE = Path(__file__).parent


class System(Struct, frozen=True):
    """A column."""

    name: str
    promise: str
    """What an answer means."""
    script: str = ""
    """The peer's, if it is one."""
    config: str = ""

    @property
    def networked(self) -> bool:
        return self.name not in ("embedded", "sqlite")


DURABLE, LATER = "on the disk", "in memory; on the disk later"
OURS = [System(face, DURABLE) for face in FACES]
PEERS = [
    System("redis", DURABLE, "bench_redis.py", "always"),
    System("nats", DURABLE, "bench_nats.py", "sync_always"),
    System("rabbitmq", DURABLE, "bench_rabbitmq.py", "classic"),
    System("rabbitmq quorum", DURABLE, "bench_rabbitmq.py", "quorum"),
    System("postgres", DURABLE, "bench_postgres.py", "sync_on"),
    System("etcd", DURABLE, "bench_etcd.py", "default"),
    System("sqlite", DURABLE, "bench_embedded.py", "sqlite_full"),
    System("redis everysec", LATER, "bench_redis.py", "everysec"),
    System("nats default", LATER, "bench_nats.py", "sync_2min"),
]
SAME_WORK = {
    "W1_push_async": "W1_push",
    "W2_push_atomic100": "W2_push_batch100",
    "W3_group_32": "W3_push_32",
    "W8_step_1_statements": "W8_step_1",
    "W8_step_1_function": "W8_step_1",
    "W8_step_32_statements": "W8_step_32",
    "W8_step_32_function": "W8_step_32",
}
"""A peer's other way to do a workload; the better of its ways counts. Ways that do less are not in here (a lock without
a lease and a token), nor load tools that are no Python."""

Results = dict[str, dict[str, dict[str, float]]]
"""By system and workload: the figures of its line, `low` and `high` being the worst and the best of the rounds."""
AIMS = "aims"
"""Under this name the results have what `aims.py` lists: by key, with `value`, `low` and `high`."""


def figures(lines: Iterator[dict[str, object]]) -> dict[str, dict[str, float]]:
    """What the lines say, by workload: the better of two ways to do the same."""
    mine: dict[str, dict[str, float]] = {}
    for line in lines:
        name = str(line.get("workload") or line.get("name"))
        name = SAME_WORK.get(name, name)
        found = {key: float(value) for key, value in line.items() if isinstance(value, int | float)}
        if name in WORKLOADS and ("ops_s" in found or "p50_ms" in found):
            before = mine.get(name)
            if before is None or score(found) > score(before):
                mine[name] = found
    return mine


def score(found: dict[str, float]) -> float:
    """More is better."""
    return found["ops_s"] if "ops_s" in found else 1 / max(found["p50_ms"], 0.001)


def median(rounds: list[dict[str, float]]) -> dict[str, float]:
    """The round in the middle by its score, with the lowest and the highest score beside it."""
    ordered = sorted(rounds, key=score)
    return ordered[(len(ordered) - 1) // 2] | {
        "low": score(ordered[0]),
        "high": score(ordered[-1]),
        "rounds": len(ordered),
    }


def lines_of(command: list[str], environment: dict[str, str]) -> Iterator[dict[str, object]]:
    """What a command prints, line by line, as it prints it."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | environment) as running:
        assert running.stdout is not None
        for line in running.stdout:
            if line.startswith("{"):
                print(line, end="", file=sys.stderr, flush=True)
                yield json.loads(line)
    if running.returncode:
        print(f"{command[1]} ended with {running.returncode}", file=sys.stderr)


def disk(directory: str, seconds: float = 1.0) -> dict[str, float]:
    """A bare append and fdatasync of one payload at a time: what the disk itself allows."""
    latencies: list[float] = []
    line = payload()
    with (Path(directory) / "probe").open("wb", buffering=0) as file:
        end = time.perf_counter() + seconds
        while (begin := time.perf_counter()) < end:
            file.write(line)
            os.fdatasync(file.fileno())
            latencies.append(time.perf_counter() - begin)
    return {"ops_s": len(latencies) / sum(latencies), "p50_ms": statistics.median(latencies) * 1e3}


def asked(names: list[str]) -> list[str]:
    """What a peer's script is asked for: the workloads, and its other ways to do them. A name stands for every one that
    goes on from it behind `_`, and none is asked for twice."""
    others = [other for other, name in SAME_WORK.items() if name in names]
    return names + [other for other in others if not any(other.startswith(f"{name}_") for name in names)]


def command_of(system: System, names: list[str], options: argparse.Namespace) -> list[str]:
    """What measures the workloads of a system once."""
    if system.script:
        script = str(Path(options.peers) / system.script)
        command = [options.peers_python, script, *asked(names), "--config", system.config]
        return [*command, "--secs", str(options.secs), "--reps", "1"]
    command = [sys.executable, str(HERE / "workloads.py"), "--face", system.name]
    return [*command, "--only", ",".join(names), "--secs", str(options.secs), "--rounds", "1"]


def run(options: argparse.Namespace, wanted: list[System]) -> Results:
    names = chosen(options.only or ",".join(WORKLOADS))
    rounds: dict[str, dict[str, list[dict[str, float]]]] = {}
    disks: list[dict[str, float]] = []
    for turn in range(options.rounds if names else 1):
        with tempfile.TemporaryDirectory(prefix="queen-actors-bench-", ignore_cleanup_errors=True) as directory:
            os.chmod(directory, 0o755)  # PostgreSQL runs as a user of its own
            disks.append(disk(directory))
            for system in wanted if names else ():
                print(f"round {turn + 1} of {options.rounds}: {system.name}", file=sys.stderr, flush=True)
                lines = lines_of(command_of(system, names, options), {"BENCH_DATA": directory})
                for name, found in figures(lines).items():
                    rounds.setdefault(system.name, {}).setdefault(name, []).append(found)
    results: Results = {"disk": {"W1_push": median(disks) | {"load": os.getloadavg()[0], "at": time.time()}}}
    results |= {system: {name: median(found) for name, found in mine.items()} for system, mine in rounds.items()}
    if AIMS in (options.only or "").split(",") or not (options.only or options.systems):
        results[AIMS] = aimed()
    return results


def aimed() -> dict[str, dict[str, float]]:
    """What is no workload of the table, from the commands that measure it."""
    found: dict[str, dict[str, float]] = {}
    for script, *arguments in aims.COMMANDS.values():
        for line in lines_of([sys.executable, str(HERE / script), *arguments], {}):
            if "aim" in line:
                numbers = {key: float(value) for key, value in line.items() if isinstance(value, int | float)}
                found[str(line["aim"])] = numbers
    return found


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def cell(found: dict[str, float] | None, *, spread: bool = False) -> str:
    """A rate (or a latency, p50 / p99), and how far its rounds lie apart: half of that, in per cent of the median."""
    if found is None:
        return ""
    text = number(found["ops_s"]) if "ops_s" in found else f"{found['p50_ms']:.1f} / {found['p99_ms']:.1f} ms"
    if spread and found.get("rounds", 1) > 1:
        text += f" ±{(found['high'] - found['low']) / 2 / score(found) * 100:.0f}"
    return text


def table(results: Results, systems: list[System], *, spread: bool = False) -> str:
    """Operations a second (for W10: lateness, p50 / p99), the best networked durable figure of a row in bold."""
    here = [system for system in systems if system.name in results]
    rows = [
        "| | " + " | ".join(system.name for system in here) + " |",
        "| --- |" + " ---: |" * len(here),
        "| an answer means | " + " | ".join(system.promise for system in here) + " |",
    ]
    for name in WORKLOADS:
        found = {system.name: results[system.name].get(name) for system in here}
        if not any(found.values()):
            continue
        rivals = [one for s in here if s.networked and s.promise == DURABLE and (one := found[s.name]) is not None]
        best = max(rivals, key=score, default=None)
        texts = [(cell(one, spread=spread), one is not None and one is best) for one in found.values()]
        rows.append(f"| {name} | " + " | ".join(f"**{text}**" if bold else text for text, bold in texts) + " |")
    return "\n".join(rows)


class Goal(Struct, frozen=True):
    """Ours shall be at least `times` the best of `rivals` in `workload`; None: how near it is, is stated."""

    workload: str
    ours: str
    rivals: tuple[str, ...]
    times: float | None = 1.0


_STRICT = ("nats", "rabbitmq", "rabbitmq quorum", "etcd")
_NETWORKED = ("redis", *_STRICT, "postgres")
_CALLERS = ("http", "websocket")
_LONE = ("W1_push", "W6_put_1", "W6_cas_1", "W7_lock_1", "W8_step_1")
GOALS = [
    *(Goal("W2_push_batch100", face, _NETWORKED) for face in _CALLERS),
    Goal("W3_push_32", "websocket", ("redis",)),
    *(Goal(f"W6_{op}_32", "websocket", ("redis",)) for op in ("put", "cas", "incr_max")),
    Goal("W8_step_32", "websocket", _NETWORKED, 1.5),
    *(Goal(name, face, _STRICT) for name in _LONE for face in _CALLERS),
    *(Goal("W8_step_1", face, ("redis",)) for face in _CALLERS),
    *(
        Goal(name, face, (one,), None)
        for name in _LONE
        for one in ("redis", "postgres")
        for face in _CALLERS
        if (name, one) != ("W8_step_1", "redis")
    ),
    *(Goal("W4_throughput_batch100", face, _NETWORKED) for face in _CALLERS),
    *(Goal("W5_fanout10", face, ("redis",)) for face in _CALLERS),
    *(Goal("W9_10k_partitions", face, _NETWORKED) for face in _CALLERS),
]
LATENESS = (("p50_ms", 2.0), ("p99_ms", 10.0))
"""Of W10, in milliseconds. None early: a run in which one is, ends with an error and has no figure."""


def ratios(results: Results) -> str:
    """What was aimed at in the workloads, and what came of it."""
    rows = [
        "| workload | ours | beside | times | of the rounds | aim | |",
        "| --- | --- | --- | ---: | --- | ---: | --- |",
    ]
    for goal in GOALS:
        ours = results.get(goal.ours, {}).get(goal.workload)
        rivals = {name: one for name in goal.rivals if (one := results.get(name, {}).get(goal.workload))}
        if ours is None or not rivals:
            continue
        rival = max(rivals, key=lambda name: score(rivals[name]))
        times, spread = _times(ours, rivals[rival])
        between = "" if spread is None else f"{spread[0]:.2f} to {spread[1]:.2f}"
        aim = "as near as may be" if goal.times is None else f"{goal.times:g}"
        said = "" if goal.times is None else aims.verdict(goal.times, times, spread)
        rows.append(f"| {goal.workload} | {goal.ours} | {rival} | {times:.2f} | {between} | {aim} | {said} |")
    for face in FACES:
        late = results.get(face, {}).get("W10_timers")
        if late is None or face == "sdk":
            continue
        for key, most in LATENESS:
            seen = late[key]
            spread = (seen, seen) if late.get("rounds", 1) > 1 else None  # which round's p99 was the worst, is not kept
            said = aims.verdict(most, seen, spread, most=True)
            rows.append(
                f"| W10_timers, {key[:3]}, none early | {face} | | {seen:.2f} ms | | under {most:g} ms | {said} |"
            )
    return "\n".join(rows)


def _times(ours: dict[str, float], rival: dict[str, float]) -> tuple[float, tuple[float, float] | None]:
    """The ratio of the medians; then, when both have several rounds, that of our worst round to their best, and of our
    best to their worst."""
    times = score(ours) / score(rival)
    if min(ours.get("rounds", 1), rival.get("rounds", 1)) < 2:
        return times, None
    return times, (ours["low"] / rival["high"], ours["high"] / rival["low"])


def machine(results: Results) -> str:
    bare = results["disk"]["W1_push"]
    load = bare["load"]
    return (
        f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, CPython {platform.python_version()}; a "
        f"bare append and fdatasync of 200 bytes: {number(bare['ops_s'])}/s, p50 {bare['p50_ms']:.2f} ms; load average "
        f"at the end {load:.1f}; {datetime.fromtimestamp(bare.get('at', time.time()), UTC):%Y-%m-%d}. {rounds(results)}"
    )


def rounds(results: Results) -> str:
    """How many rounds the figures are of."""
    every = [one for system, mine in results.items() if system not in ("disk", AIMS) for one in mine.values()]
    counts = sorted({int(one.get("rounds", 1)) for one in every}) or [1]
    several = " or ".join(f"{count}" for count in counts if count > 1)
    if not several:
        return "Each figure is of one round."
    if counts[0] > 1:
        return f"Each figure is the median of {several} rounds."
    return f"A figure is the median of {several} rounds where it has a ± in docs/benchmarks.md, and else of one."


def chart(results: Results, systems: list[System]) -> str:
    """Each workload's rates as bars, of what answers from the disk."""
    here = [system.name for system in systems if system.name in results and system.promise == DURABLE]
    groups: dict[str, dict[str, float]] = {}
    for name in WORKLOADS:
        rates = {one: results[one][name]["ops_s"] for one in here if "ops_s" in results[one].get(name, {})}
        if len(rates) > 1:
            groups[name] = rates
    return bars(groups, title="Operations a second, every answer on the disk", ours=frozenset(FACES))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", help="the directory of the peers' scripts; without it only our faces are run")
    parser.add_argument("--peers-python", default=sys.executable, help="an interpreter with the peers' clients")
    parser.add_argument("--only", help="workloads: names or their beginnings, with commas between; or aims")
    parser.add_argument("--systems", help="columns, with commas between; default: all")
    parser.add_argument("--secs", type=float, default=1.5)
    parser.add_argument("--rounds", type=int, default=3, help="the median of so many is told, and their spread")
    parser.add_argument("--keep", type=Path, help="write the figures here, as JSON")
    parser.add_argument(
        "--load", type=Path, action="append", help="measure nothing: take what --keep has written; again: over it"
    )
    parser.add_argument("--write", action="store_true", help="into README.md and docs/benchmarks.{md,svg}")
    options = parser.parse_args()
    systems = OURS + (PEERS if options.peers or options.load else [])
    names = options.systems.split(",") if options.systems else [system.name for system in systems]
    wanted = [system for system in systems if system.name in names]
    results: Results = {}
    if options.load:
        for path in options.load:
            for system, mine in json.loads(path.read_text()).items():
                results.setdefault(system, {}).update(mine)
    else:
        results = run(options, wanted)
    if options.keep:
        options.keep.write_text(json.dumps(results, indent=1))
    report(results, wanted, options.write)


def report(results: Results, systems: list[System], write: bool) -> None:
    missing = [system.name for system in systems if system.name not in results]
    seen = machine(results) + (f" Not run: {', '.join(missing)}." if missing else "")
    goals = f"{ratios(results)}\n\n{aims.table(results.get(AIMS, {}))}"
    whole = f"{table(results, systems, spread=True)}\n\n{seen}"
    print(f"{whole}\n\n{goals}")
    if write:
        short = [system for system in systems if system.promise == DURABLE]
        replaced(README, "benchmarks", f"{table(results, short)}\n\n{seen}")
        replaced(BENCHMARKS, "figures", whole)
        replaced(BENCHMARKS, "ratios", goals)
        BENCHMARKS.with_suffix(".svg").write_text(chart(results, systems))


if __name__ == "__main__":
    main()

"""The workloads on our faces and on what a user would run instead, in one run on one machine, side by side.

    python benchmarks/compare.py --peers DIR --peers-python PYTHON --write     # all of it: about half an hour
    python benchmarks/compare.py --peers DIR --only W1,W3 --systems http,websocket,redis

`DIR` has the peers' own scripts (`bench_redis.py` and so on, which say what they need), `PYTHON` is an interpreter that
has their clients. A peer that cannot start here is reported and left out. Every figure is the median of the rounds.
The table is printed; `--write` puts it into the README and `docs/benchmarks.md`, and a chart beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from charts import bars
from measure import payload
from msgspec import Struct
from workloads import FACES, WORKLOADS, chosen

ROOT = Path(__file__).parent.parent


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
    "W9_queue_per_key": "W9_10k_partitions",
}
"""A peer's other way to do a workload; the better of its ways counts."""

Results = dict[str, dict[str, dict[str, float]]]
"""By system and workload: the figures of its line."""


def figures(results: Results, system: str, lines: Iterator[dict[str, object]]) -> None:
    """What `lines` say of `system`, the better of two ways to do the same."""
    mine = results.setdefault(system, {})
    for line in lines:
        name = str(line.get("workload") or line.get("name"))
        name = SAME_WORK.get(name, name)
        found = {key: float(value) for key, value in line.items() if isinstance(value, int | float)}
        if name in WORKLOADS and ("ops_s" in found or "p50_ms" in found):
            before = mine.get(name)
            if before is None or score(found) > score(before):
                mine[name] = found


def score(found: dict[str, float]) -> float:
    """More is better."""
    return found["ops_s"] if "ops_s" in found else 1 / max(found["p50_ms"], 0.001)


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


def run(options: argparse.Namespace, wanted: list[System]) -> Results:
    results: Results = {}
    names = chosen(options.only or ",".join(name for name in WORKLOADS))
    with tempfile.TemporaryDirectory(prefix="queen-actors-bench-", ignore_cleanup_errors=True) as directory:
        os.chmod(directory, 0o755)  # PostgreSQL runs as a user of its own
        results["disk"] = {"W1_push": disk(directory)}
        for system in wanted:
            if system.script:
                script = str(Path(options.peers) / system.script)
                command = [options.peers_python, script, *names, "--config", system.config]
                command += ["--secs", str(options.secs), "--reps", str(options.rounds)]
            else:
                command = [sys.executable, str(Path(__file__).parent / "workloads.py"), "--face", system.name]
                command += ["--only", ",".join(names), "--secs", str(options.secs), "--rounds", str(options.rounds)]
            figures(results, system.name, lines_of(command, {"BENCH_DATA": directory}))
    results["disk"]["W1_push"]["load"] = os.getloadavg()[0]
    return {name: found for name, found in results.items() if found}


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def cell(found: dict[str, float] | None) -> str:
    if found is None:
        return ""
    if "ops_s" not in found:
        return f"{found['p50_ms']:.1f} / {found['p99_ms']:.1f} ms"
    return number(found["ops_s"])


def table(results: Results, systems: list[System]) -> str:
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
        cells = [f"**{cell(one)}**" if one is not None and one is best else cell(one) for one in found.values()]
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


class Goal(Struct, frozen=True):
    """Ours shall be at least `times` the best of `rivals` in `workload`."""

    workload: str
    ours: str
    rivals: tuple[str, ...]
    times: float = 1.0


_STRICT = ("nats", "rabbitmq", "rabbitmq quorum", "etcd")
_NETWORKED = ("redis", *_STRICT, "postgres")
GOALS = [
    *(Goal("W2_push_batch100", face, _NETWORKED) for face in ("http", "websocket")),
    Goal("W3_push_32", "websocket", ("redis",)),
    *(Goal(f"W6_{op}_32", "websocket", ("redis",)) for op in ("put", "cas", "incr_max")),
    Goal("W8_step_32", "websocket", _NETWORKED, 1.5),
    *(
        Goal(name, face, _STRICT)
        for name in ("W1_push", "W6_put_1", "W6_cas_1", "W7_lock_1")
        for face in ("http", "websocket")
    ),
    *(Goal("W8_step_1", face, (*_STRICT, "redis")) for face in ("http", "websocket")),
    Goal("W4_throughput_batch100", "websocket", _NETWORKED),
    Goal("W5_fanout10", "websocket", ("redis",)),
    Goal("W9_10k_partitions", "websocket", _NETWORKED),
]


def ratios(results: Results) -> str:
    """What was aimed at, and what came of it."""
    rows = ["| workload | ours | beside | times | aim | |", "| --- | --- | --- | ---: | ---: | --- |"]
    for goal in GOALS:
        ours = results.get(goal.ours, {}).get(goal.workload)
        rivals = {name: one for name in goal.rivals if (one := results.get(name, {}).get(goal.workload))}
        if ours is None or not rivals:
            continue
        rival = max(rivals, key=lambda name: score(rivals[name]))
        times = score(ours) / score(rivals[rival])
        verdict = "yes" if times >= goal.times else "no"
        rows.append(f"| {goal.workload} | {goal.ours} | {rival} | {times:.2f} | {goal.times:g} | {verdict} |")
    return "\n".join(rows)


def machine(results: Results) -> str:
    bare = results["disk"]["W1_push"]
    load = bare["load"]
    return (
        f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, CPython {platform.python_version()}; a "
        f"bare append and fdatasync of 200 bytes: {number(bare['ops_s'])}/s, p50 {bare['p50_ms']:.2f} ms; load average "
        f"at the end {load:.1f}; {datetime.now(UTC):%Y-%m-%d}."
    )


def replaced(path: Path, mark: str, text: str) -> None:
    """`text` between the two comments `<!-- mark -->` and `<!-- /mark -->` of a file."""
    content = path.read_text()
    made, count = re.subn(
        f"(<!-- {mark} -->\n).*?(<!-- /{mark} -->)",
        lambda found: found[1] + text + "\n" + found[2],
        content,
        flags=re.S,
    )
    if count != 1:
        raise SystemExit(f"{path} has no place for {mark}")
    path.write_text(made)


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
    parser.add_argument("--only", help="workloads: names or their beginnings, with commas between")
    parser.add_argument("--systems", help="columns, with commas between; default: all")
    parser.add_argument("--secs", type=float, default=1.5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="write the figures here, as JSON")
    parser.add_argument("--load", type=Path, action="append", help="measure nothing: take what --keep has written")
    parser.add_argument("--write", action="store_true", help="into README.md and docs/benchmarks.{md,svg}")
    options = parser.parse_args()
    systems = OURS + (PEERS if options.peers or options.load else [])
    names = options.systems.split(",") if options.systems else [system.name for system in systems]
    wanted = [system for system in systems if system.name in names]
    results: Results = {}
    if options.load:
        for path in options.load:
            results |= json.loads(path.read_text())
    else:
        results = run(options, wanted)
    if options.keep:
        options.keep.write_text(json.dumps(results, indent=1))
    report(results, wanted, options.write)


def report(results: Results, systems: list[System], write: bool) -> None:
    missing = [system.name for system in systems if system.name not in results]
    seen = machine(results) + (f" Not run: {', '.join(missing)}." if missing else "")
    whole = f"{table(results, systems)}\n\n{seen}"
    print(f"{whole}\n\n{ratios(results)}")
    if write:
        short = [system for system in systems if system.promise == DURABLE]
        replaced(ROOT / "README.md", "benchmarks", f"{table(results, short)}\n\n{seen}")
        replaced(ROOT / "docs" / "benchmarks.md", "figures", whole)
        replaced(ROOT / "docs" / "benchmarks.md", "ratios", ratios(results))
        (ROOT / "docs" / "benchmarks.svg").write_text(chart(results, systems))


if __name__ == "__main__":
    main()

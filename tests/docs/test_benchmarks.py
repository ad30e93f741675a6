"""The benchmarks can be run, and what they report is what they saw. No speed is judged here."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
SCRIPTS = sorted(path.name for path in BENCHMARKS.glob("*.py") if "ArgumentParser(" in path.read_text())


def run(script: str, *arguments: str) -> str:
    command = [sys.executable, str(BENCHMARKS / script), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_says_what_it_does(script: str) -> None:
    """It starts, in an environment with the test extras, and its help has the command that runs it."""
    assert f"benchmarks/{script}" in run(script, "--help")


@pytest.mark.parametrize("page", ["README.md", "benchmarks/README.md", "docs/benchmarks.md", "docs/performance.md"])
def test_commands_of_the_pages_exist(page: str) -> None:
    """Scripts and options that a page tells a reader to use are there."""
    commands = re.findall(r"python benchmarks/(\w+\.py)([^#`\n]*)", (ROOT / page).read_text())
    assert commands
    for script, rest in commands:
        text = (BENCHMARKS / script).read_text()
        assert [option for option in re.findall(r"--[\w-]+", rest) if f'"{option}"' not in text] == [], script


@pytest.mark.parametrize(
    ("page", "mark"),
    [
        ("README.md", "benchmarks"),
        ("docs/benchmarks.md", "figures"),
        ("docs/benchmarks.md", "ratios"),
        ("docs/performance.md", "memory"),
        ("docs/performance.md", "growth"),
    ],
)
def test_each_table_has_its_one_place(page: str, mark: str) -> None:
    """`--write` finds where its table belongs."""
    assert len(re.findall(f"<!-- {mark} -->\n.*?<!-- /{mark} -->", (ROOT / page).read_text(), re.DOTALL)) == 1


def rate(median: float, low: float, high: float) -> dict[str, float]:
    return {"ops_s": median, "p50_ms": 1.0, "p99_ms": 2.0, "low": low, "high": high, "rounds": 3}


def test_verdicts_are_of_the_figures(tmp_path: Path) -> None:
    """Met, missed, or within the noise; lateness by its own bounds; what was not measured is not judged, and the
    command that measures it is named. What a file keeps is what is reported."""
    kept = {
        "disk": {"W1_push": {"ops_s": 5000.0, "p50_ms": 0.2, "load": 0.1}},
        "http": {"W1_push": rate(2000, 1900, 2100), "W6_put_1": rate(1000, 950, 1050)},
        "websocket": {
            "W1_push": rate(1000, 800, 1300),
            "W10_timers": {"p50_ms": 1.5, "p99_ms": 11.0, "low": 0.6, "high": 0.7, "rounds": 3},
        },
        "nats": {"W1_push": rate(1100, 1000, 1150), "W6_put_1": rate(2000, 1900, 2100)},
        "aims": {
            "http-memory-32": {"value": 12.0, "low": 11.0, "high": 13.0},
            "http-durable-32": {"value": 2.6, "low": 2.2, "high": 2.9},
            "million": {"value": 500.0 * 1024 * 1024},
        },
    }
    file = tmp_path / "kept.json"
    file.write_text(json.dumps(kept))
    told = run("compare.py", "--load", str(file)).splitlines()

    def row(*beginning: str) -> list[str]:
        (found,) = [line for line in told if line.startswith("| " + " | ".join(beginning))]
        return [cell.strip() for cell in found.strip("|").split("|")]

    assert row("W1_push", "http", "nats")[3:] == ["1.82", "1.65 to 2.10", "1", "yes"]
    assert row("W1_push", "websocket", "nats")[3:] == ["0.91", "0.70 to 1.30", "1", "no, but within the noise"]
    assert row("W6_put_1", "http", "nats")[3:] == ["0.50", "0.45 to 0.55", "1", "no"]
    assert row("W10_timers, p50")[3:] == ["1.50 ms", "", "under 2 ms", "yes"]
    assert row("W10_timers, p99")[3:] == ["11.00 ms", "", "under 10 ms", "no"]
    assert row("W1_push", "**2,000 ±5**")[1] == "**2,000 ±5**"
    assert row("HTTP push of 1, memory")[3] == "yes"
    assert row("the same, durable", "2.60 times")[3] == "yes, but within the noise"
    assert row("1,000,000 partitions")[1:4] == ["500 MiB", "at most 400 MiB", "no"]
    assert row("a parked pop")[1:] == ["not run", "at most 12,288 B", "", "`memory.py`"]
    commands = {line.rpartition("| `")[2].partition(" ")[0].strip("`| ") for line in told if line.endswith("` |")}
    assert {"http_lanes.py", "requests.py", "memory.py", "growth.py"} == commands
    assert all((BENCHMARKS / command).is_file() for command in commands)

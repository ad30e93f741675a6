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


def once(median: float) -> dict[str, float]:
    return {"ops_s": median, "p50_ms": 1.0, "p99_ms": 2.0, "low": median, "high": median, "rounds": 1}


def cells(told: list[str], *beginning: str) -> list[str]:
    """Of the one row that begins with these cells."""
    (found,) = [line for line in told if line.startswith("| " + " | ".join(beginning))]
    return [cell.strip() for cell in found.strip("|").split("|")]


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
        return cells(told, *beginning)

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
    assert any("Each figure is the median of 3 rounds." in line for line in told)
    commands = {line.rpartition("| `")[2].partition(" ")[0].strip("`| ") for line in told if line.endswith("` |")}
    assert {"http_lanes.py", "requests.py", "memory.py", "growth.py"} == commands
    assert all((BENCHMARKS / command).is_file() for command in commands)


DISK = {"W1_push": {"ops_s": 5000.0, "p50_ms": 0.2, "load": 0.1, "at": 86_400.0}}


def test_one_round_near_an_aim_is_no_clear_verdict(tmp_path: Path) -> None:
    """Within a quarter of the aim the verdict says that it is of one round; farther off it is plain."""
    file = tmp_path / "kept.json"
    kept = {
        "disk": DISK,
        "http": {"W1_push": once(1100), "W6_put_1": once(900), "W6_cas_1": once(1300), "W7_lock_1": once(700)},
        "websocket": {"W10_timers": {"p50_ms": 1.6, "p99_ms": 4.0, "low": 0.6, "high": 0.6, "rounds": 1}},
        "nats": {name: once(1000) for name in ("W1_push", "W6_put_1", "W6_cas_1", "W7_lock_1")},
        "aims": {"parked": {"value": 12_200.0}, "idle": {"value": 200.0}},
    }
    file.write_text(json.dumps(kept))
    told = run("compare.py", "--load", str(file)).splitlines()
    assert [cells(told, name, "http")[3:] for name in ("W1_push", "W6_put_1", "W6_cas_1", "W7_lock_1")] == [
        ["1.10", "", "1", "yes, one round"],
        ["0.90", "", "1", "no, one round"],
        ["1.30", "", "1", "yes"],
        ["0.70", "", "1", "no"],
    ]
    assert cells(told, "W10_timers, p50")[6] == "yes, one round"
    assert cells(told, "W10_timers, p99")[6] == "yes"
    assert cells(told, "a parked pop")[3] == "yes, one round"
    assert cells(told, "an idle partition")[3] == "yes"
    assert any("1970-01-02. Each figure is of one round." in line for line in told)


def test_more_rounds_of_some_workloads_are_laid_over_one_of_all(tmp_path: Path) -> None:
    """The last file that has a workload of a system counts, and the others' stay; what is of several rounds has its
    spread beside it. What is kept then is both."""
    first, second, both = (tmp_path / name for name in ("all.json", "some.json", "both.json"))
    http, nats = {"W1_push": once(1000), "W6_put_1": once(1500)}, {"W1_push": once(1000), "W6_put_1": once(1000)}
    first.write_text(json.dumps({"disk": DISK, "http": http, "nats": nats, "aims": {"idle": {"value": 200.0}}}))
    again = {"http": {"W1_push": rate(1200, 1100, 1300)}, "nats": {"W1_push": rate(1000, 950, 1050)}}
    second.write_text(json.dumps({"disk": DISK, **again}))
    run("compare.py", "--load", str(first), "--load", str(second), "--keep", str(both))
    told = run("compare.py", "--load", str(both)).splitlines()
    assert cells(told, "W1_push", "**")[1:] == ["**1,200 ±8**", "1,000 ±5"]
    assert cells(told, "W6_put_1", "**")[1:] == ["**1,500**", "1,000"]
    assert cells(told, "W1_push", "http")[3:] == ["1.20", "1.05 to 1.37", "1", "yes"]
    assert cells(told, "W6_put_1", "http")[3:] == ["1.50", "", "1", "yes"]
    assert cells(told, "an idle partition")[1] == "200 B"
    assert any("the median of 3 rounds where it has a ±" in line for line in told)


PEER = """
import json, sys
known, names = json.loads(KNOWN), sys.argv[1:sys.argv.index("--config")]
for asked in names:
    found = [name for name in known if name == asked or name.startswith(asked + "_")]
    if not found:
        print(json.dumps({"workload": asked, "supported": False}))
    for name in found:
        with open(SEEN, "a") as seen:
            print(name, file=seen)
        print(json.dumps({"workload": name, "ops_s": known[name], "p50_ms": 1.0, "p99_ms": 2.0}))
"""


def test_every_way_of_a_peer_is_asked_for_once(tmp_path: Path) -> None:
    """A script that takes names and their beginnings is asked for each of its ways to do a workload, and the best of
    them is what is told; one that it does not have is left out."""
    script = "import compare, json; print(json.dumps([compare.SAME_WORK, list(compare.WORKLOADS)]))"
    told = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, cwd=BENCHMARKS).stdout
    same, workloads = json.loads(told)
    assert set(same.values()) <= set(workloads)
    known = {"W1_push": 10.0, "W4_latency": 11.0} | {name: 100.0 + place for place, name in enumerate(same)}
    known["W1_push_async"] = 5.0
    seen = tmp_path / "seen"
    head = f"KNOWN, SEEN = {json.dumps(known)!r}, {str(seen)!r}"
    (tmp_path / "bench_nats.py").write_text(head + PEER)
    rows = run("compare.py", "--peers", str(tmp_path), "--systems", "nats", "--rounds", "1").splitlines()
    assert sorted(seen.read_text().split()) == sorted(known)
    assert cells(rows, "W1_push")[1] == "**10.0**"
    assert cells(rows, "W4_latency")[1] == "**11.0**"
    for name in set(same.values()) - {"W1_push"}:
        best = max(known[other] for other, workload in same.items() if workload == name)
        assert cells(rows, name)[1] == f"**{best:,.0f}**"


SETTLING = """
import json, trio
from faces import Message
from transports import Frames, Socket
from wire import SubscribedConsumer

class Scripted:
    def __init__(self, *texts):
        self.texts = list(texts)
    async def send(self, data):
        pass
    async def receive(self):
        return b"".join(bytes((0x81, len(text))) + text for text in self.texts.pop(0))

event = json.dumps({"event": "messages", "leaseId": "l", "messages": [{"transactionId": "t", "partitionId": "p"}]})
def reply(number, success):
    return json.dumps({"id": number, "ok": True, "body": [{"success": success}] * 2}).encode()

async def main():
    wire = Scripted([event.encode()], [event.encode()], [reply(1, True), event.encode()], [reply(2, False)])
    consumer, told = SubscribedConsumer(Socket(wire, Frames()), None), []
    for _ in range(3):
        told.append(await consumer.ack(await consumer.receive()))
    print(told)
    try:
        await consumer.receive()
    except AssertionError:
        print("refused")

trio.run(main)
"""


def test_what_a_subscription_settles_is_counted_by_the_replies() -> None:
    """Not when the ack is sent: what was not answered does not count, and an ack that is refused ends the run."""
    told = subprocess.run([sys.executable, "-c", SETTLING], check=True, capture_output=True, text=True, cwd=BENCHMARKS)
    assert told.stdout.split("\n")[:2] == ["[0, 0, 2]", "refused"]

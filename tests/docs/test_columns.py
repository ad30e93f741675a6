"""The columns run what they say, count what was done, and take nothing that did not run for a success."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import columns
import pytest
from columns import (
    COLUMNS,
    DOCUMENT,
    HISTORIES,
    MUTANTS,
    STEPS_A_ROUND,
    TABLE,
    Amount,
    Board,
    Result,
    Step,
    Told,
    campaign,
    checked_histories,
    figures,
    machines,
    planted,
    run_step,
    simulation,
    walks,
    write,
)
from walks.driver import LIFE, MACHINES

from queen_actors.testing import mutants

ROOT = Path(__file__).parents[2]


def ended(stdout: str = "", code: int = 0, stderr: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess([], code, stdout, stderr)


def test_every_planted_bug_is_looked_for() -> None:
    """The names are those that the command knows."""
    asked = subprocess.run(
        [sys.executable, "-m", "queen_actors.testing.mutants", "--help"], capture_output=True, text=True, check=True
    )
    known = re.search(r"--only NAME\s+one of (.*?)\s+--no-control", asked.stdout, re.DOTALL)
    assert known is not None
    assert {name.strip() for name in known[1].split(",")} == set(MUTANTS)
    assert mutants.__doc__


def test_every_invariant_has_a_step_and_a_row_with_its_tests() -> None:
    """I1 to I20 are each tried by a step, and the document names tests that there are."""
    text = DOCUMENT.read_text()
    tried: set[int] = set()
    for step in TABLE:
        for first, last in re.findall(r"I(\d+)(?:-I(\d+))?", step.invariants):
            tried |= set(range(int(first), int(last or first) + 1))
    assert tried == set(range(1, 21))
    for number in range(1, 21):
        row = re.search(rf"^\| I{number} \|.*$", text, re.MULTILINE)
        assert row is not None
        named = re.findall(r"`([a-z_]+/[a-z_]+\.py)`", row[0])
        assert named
        for name in named:
            assert (ROOT / "tests" / name).is_file(), name


@pytest.mark.parametrize(
    ("parse", "done", "counts", "violated", "not_run"),
    [
        (campaign, ended('x\n{"counts":{"kills":2},"points":{"p":3},"not_run":[],"violations":[]}'), 5, 0, 0),
        (campaign, ended('{"column":"k","counts":{},"not_run":[],"violations":["lost"]}', 1), 0, 1, 0),
        (campaign, ended('{"column":"k","counts":{},"not_run":["no shim"],"violations":[]}', 3), 0, 0, 1),
        (campaign, ended("", 1, "Traceback\nBoom"), 0, 1, 0),
        (campaign, ended("", 1, "python: No module named tests.crash"), 0, 0, 1),
        (simulation, ended("200 seeds, 0 broken, 29 events, 6 starts, 2.0 seeds/s"), 200, 0, 0),
        (simulation, ended("200 seeds, 3 broken, 29 events, 6 starts, 2.0 seeds/s", 1), 200, 1, 0),
        (planted, ended("1 of 1 found"), 1, 0, 0),
        (planted, ended("0 of 1 found", 1), 0, 1, 0),
        (walks, ended("6000 steps in 3 rounds, 0 broken, 9 steps/s"), 6000, 0, 0),
        (walks, ended("kv, seed 7: x\n2000 steps in 1 rounds, 1 broken, 9 steps/s", 1), 2000, 1, 0),
        (machines, ended("....\n4 passed in 3.21s"), 7, 0, 0),
        (machines, ended("..F.\n1 failed, 3 passed in 3.21s", 1), 7, 1, 0),
    ],
)  # fmt: skip
def test_what_a_command_says_is_read(parse: Any, done: Any, counts: int, violated: int, not_run: int) -> None:
    """Each kind of last line; what says nothing is a violation, what is not there has not run."""
    told = parse(done, 7)
    units = [told.counts[name] for name in ("deaths", "seeds", "mutants", "steps")]
    assert (max(units), len(told.violations), len(told.not_run)) == (counts, violated, not_run)


def step(script: str, target: int, seconds: float = 60) -> tuple[Step, Amount]:
    amount = Amount(target, seconds)
    return Step(
        "x", "I1", "things", 2, lambda start, count: ["python", "-c", script], campaign, {"small": amount}
    ), amount


def test_a_step_goes_on_until_its_target() -> None:
    """Chunk by chunk; the counts are added up."""
    line = json.dumps({"counts": {"things": 2, "more": 5}, "not_run": [], "violations": []})
    result = run_step(*step(f"print({line!r})", 6))
    assert (result.state, result.done, result.told.counts["more"], len(result.commands)) == ("held", 6, 15, 3)


def test_a_step_that_did_nothing_has_not_passed() -> None:
    """Neither one that is missing, nor one that says that it could not."""
    assert run_step(*step("raise SystemExit('No module named x')", 6)).state.startswith("not run")
    line = json.dumps({"counts": {}, "not_run": ["no shim"], "violations": []})
    assert run_step(*step(f"print({line!r})", 6)).state == "not run: no shim"


def test_what_tried_too_little_has_not_passed() -> None:
    """At each change less than a quarter of the target is not enough; in a night it is told."""
    line = json.dumps({"counts": {"things": 2}, "not_run": [], "violations": []})
    script = f"import time; time.sleep(0.3); print({line!r})"
    for target, small in ((8, True), (10, False)):
        result = run_step(*step(script, target, seconds=0.1))
        assert (result.done, result.state) == (2, "held")
        assert (result.passed("small"), result.passed("soak")) == (small, True)


ROWS = {
    "H machine steps (walks)": ("H: walks beside a model",),
    "S seeds": ("S: simulation",),
    "K kills": ("K: kill -9",),
    "K named points": ("K: named points",),
    "P power cuts": ("P: power cuts",),
    "T wall-clock jumps / pauses": ("T: wall-clock jumps", "T: pauses"),
    "D disk faults": ("D: disk faults",),
    "N connect-and-drop cycles": ("N: connections and networks",),
    "L operations of histories checked": (HISTORIES.name,),
    "F HTTP inputs / socket inputs": ("F: HTTP", "F: sockets"),
    "F decoders / guided by atheris, seconds": ("F: decoders", "F: decoders, guided"),
}


@pytest.mark.parametrize("row", ROWS)
def test_the_targets_in_the_document_are_those_of_the_table(row: str) -> None:
    """Column by column; where a column has none, the document has none."""
    found = re.search(rf"^\| {re.escape(row)} \|(.*)\|$", DOCUMENT.read_text(), re.MULTILINE)
    assert found is not None
    told = [[part.strip().replace(",", "") for part in cell.split("/")] for cell in found[1].split("|")]
    steps = {one.name: one for one in (*TABLE, HISTORIES)}
    targets = [[str(steps[name].amounts[column].target or "") for name in ROWS[row]] for column in COLUMNS]
    assert told == targets


def test_what_was_done_in_part_has_not_passed() -> None:
    """A step that did some of it, and says that it could not do the rest."""
    line = json.dumps({"counts": {"things": 2}, "not_run": ["no shim"], "violations": []})
    assert run_step(*step(f"print({line!r})", 2)).state == "in part not run: no shim"


def test_a_cut_after_a_death_at_a_named_point_is_a_cut() -> None:
    """Whatever killed the process, the power was cut then; points are counted, reached and missed."""
    told = campaign(
        ended('{"counts":{"cuts":2,"kills":1},"points":{"p":3},"missed":{"q":1},"violations":[],"not_run":[]}'), 5
    )
    assert {name: told.counts[name] for name in ("cuts", "deaths", "points", "points_missed")} == {
        "cuts": 5,
        "deaths": 4,
        "points": 3,
        "points_missed": 1,
    }


def test_a_call_that_does_not_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what it has started: what it left behind would take the time of the others."""
    monkeypatch.setattr(columns, "LATE_SECONDS", 1.0)
    beside = tmp_path / "pid"
    child = "import os, pathlib, sys, time; pathlib.Path(sys.argv[1]).write_text(str(os.getpid())); time.sleep(600)"
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}, {str(beside)!r}])"
    result = run_step(*step(script, 6, seconds=2))
    assert "did not end within" in result.told.violations[0]
    until = time.monotonic() + 60
    while lives(int(beside.read_text())):
        assert time.monotonic() < until
        time.sleep(0.01)


def lives(pid: int) -> bool:
    """What was killed may be there until its parent has been told."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_violation_ends_its_step() -> None:
    """It is told, and no further call is made."""
    line = json.dumps({"counts": {"things": 2}, "not_run": [], "violations": ["lost"]})
    result = run_step(*step(f"print({line!r})", 6))
    assert (result.state, len(result.commands)) == ("1 VIOLATED", 1)


def kind(name: str, seconds: float, **more: Any) -> Result:
    """A step of two calls, each of which says that it began and ended."""
    line = json.dumps({"counts": {"things": 2}, "not_run": [], "violations": []})
    script = f"import time; time.sleep(0.2); print({line!r})"
    amount = Amount(4, seconds)
    return Result(
        Step(
            name, "I1", "things", 2, lambda start, count: ["python", "-c", script], campaign, {"small": amount}, **more
        ),
        amount,
    )


def test_what_has_an_end_comes_first_and_the_rest_is_filled() -> None:
    """One thread takes the longest first, then what fills; one that is for what waits takes nothing else."""
    short, long, fills, waits = kind("a", 1), kind("b", 9), kind("c", 60, fills=True), kind("d", 5, waits=True)
    board = Board([short, long, fills, waits], 0, 60)
    board.work(True)
    assert [one.done for one in (short, long, fills, waits)] == [0, 0, 0, 4]
    taken = []
    while (one := board._take(False)) is not None:
        result, _, count = one
        taken.append((result.step.name, count))
        if result is not fills:
            board._bring(result, count, Told(Counter(things=count)), 0.0)
    assert taken == [("b", 2), ("b", 2), ("a", 2), ("a", 2), ("c", 2), ("c", 2)]


def test_no_call_begins_that_would_end_too_late() -> None:
    """But the first of each step, whatever the time."""
    fills, own = kind("a", 60, fills=True), kind("b", 60)
    board = Board([fills, own], 0, 0.0)
    board.work(False)
    assert [(one.done, len(one.commands)) for one in (fills, own)] == [(2, 1), (2, 1)]
    assert (fills.state, fills.reached) == ("held", "50 %")


def test_what_is_left_is_filled_with_a_smaller_call() -> None:
    """Both cores are busy to the end: when a whole call would not end in time, a part of one is made."""
    fills = kind("a", 60, fills=True)
    fills = Result(replace(fills.step, chunk=1000), Amount(1_000_000, 60))
    board = Board([fills], 0, 60.0)
    fills.commands, fills.slowest = ["before"], 120.0
    taken = board._take(False)
    assert taken is not None
    assert taken[2] == 400
    fills.slowest = 700.0
    assert board._take(False) is None


def test_the_histories_are_counted() -> None:
    """What was linearized in all steps together is a row of its own, beside its target."""
    results = [kind("a", 1), kind("b", 1)]
    assert checked_histories("small", results) == []
    for one in results:
        one.told.counts["linearized"] = 900
    (found,) = checked_histories("small", results)
    assert (found.step, found.done, found.amount.target, found.reached) == (HISTORIES, 1800, 2000, "90 %")
    assert "| 1,800 linearized | 2,000 | 90 % |" in figures("small", [found], 1)


def test_no_seed_of_the_walks_is_walked_twice() -> None:
    """A seed is as many steps as it is counted for."""
    assert LIFE * len(MACHINES) == STEPS_A_ROUND
    assert all(step.chunk % STEPS_A_ROUND == 0 for step in TABLE if step.parse is walks)


def test_the_figures_have_their_place(tmp_path: Path) -> None:
    """Each column's table stands between its marks, and replaces the one before."""
    document = tmp_path / "r.md"
    document.write_text(DOCUMENT.read_text())
    line = json.dumps({"counts": {"things": 2, "more": 5}, "not_run": [], "violations": []})
    result = run_step(*step(f"print({line!r})", 2))
    for column in COLUMNS:
        for _ in range(2):
            write(column, figures(column, [result], 60), document)
    assert figures("release", [result], 60, "release --minutes 6").startswith(
        "`python -m tests.columns release --minutes 6`"
    )
    text = document.read_text()
    assert text.count("| x | I1 | 2 things | 2 | reached | 5 more | 0 |") == 3
    with pytest.raises(ValueError, match="no place"):
        write("other", "", document)

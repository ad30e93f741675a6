"""Campaigns against the real process. One column a call; the last line of the output is the summary as JSON.

The status is 0 when no promise was broken, 1 when one was, 3 when nothing could be run here (the summary says why).
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

import trio

from .campaign import kills, points
from .disk import disk
from .network import network
from .pauses import clock, pauses
from .power import cuts
from .summary import Summary

NOT_RUN = 3


class Column(NamedTuple):
    """A campaign: (directory, seed, count) -> what it did and found."""

    run: Callable[[Path, int, int], Awaitable[Summary]]
    default: int
    help: str


COLUMNS = {
    "kills": Column(kills, 100, "so many deaths by SIGKILL under load, half of them at named points of the log's work"),
    "points": Column(points, 1, "a death at each named point of the log's work, so many times"),
    "power": Column(cuts, 20, "so many power cuts: what was not flushed to the disk is gone"),
    "clock": Column(clock, 10, "so many jumps of the wall clock, of an hour and more, under load"),
    "pauses": Column(pauses, 6, "so many pauses of the whole process (SIGSTOP), many longer than every lease"),
    "disk": Column(
        disk, 60, "so many disk faults: damage at rest in every file, and full and failing disks under load"
    ),
    "network": Column(network, 300, "so many clients that connect and drop, and a network fault for each ten of them"),
}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    which = parser.add_mutually_exclusive_group()
    for name, column in COLUMNS.items():
        which.add_argument(
            f"--{name}",
            type=int,
            nargs="?",
            const=column.default,
            metavar="N",
            help=f"{column.help} ({column.default})",
        )
    parser.add_argument("--cuts", type=int, metavar="N", help="how many, with --power")
    parser.add_argument("--seed", type=int, help="of the choices (default: any); the timing is the machine's")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="so many campaigns at once, the count shared")
    parser.add_argument("--keep", type=Path, help="keep data directories and histories here (default: a temporary one)")
    return parser.parse_args()


def _column(options: argparse.Namespace) -> tuple[str, int]:
    """Which, and how often."""
    for name in COLUMNS:
        count = getattr(options, name)
        if count is not None:
            return name, options.cuts if name == "power" and options.cuts is not None else count
    return "kills", COLUMNS["kills"].default


def main() -> int:
    """The exit status."""
    options = _options()
    name, count = _column(options)
    seed = random.getrandbits(32) if options.seed is None else options.seed
    print(f"{name}: seed {seed}", flush=True)
    directory = options.keep or Path(tempfile.mkdtemp(prefix="queen-crash-"))
    directory.mkdir(parents=True, exist_ok=True)
    if options.jobs > 1:
        summary = _shared(name, seed, count, options.jobs, directory)
    else:
        summary = trio.run(COLUMNS[name].run, directory, seed, count)
    print("\n".join(summary.lines()))
    if summary.violations:
        print(f"the histories and the data directories are kept in {directory}")
    elif options.keep is None:
        shutil.rmtree(directory)
    print(summary.json(), flush=True)
    if summary.violations:
        return 1
    return NOT_RUN if summary.not_run and not summary.counts["rounds"] else 0


def _shared(name: str, seed: int, count: int, jobs: int, directory: Path) -> Summary:
    """Several processes, each with its share of the count and a seed of its own; a process that fails is told."""
    summary = Summary(name, seed)
    running: list[subprocess.Popen[str]] = []
    for job in range(min(jobs, count)):
        share = count // jobs + (job < count % jobs)
        command = [sys.executable, "-m", "tests.crash", f"--{name}", str(share), "--seed", str(seed + job)]
        command += ["--keep", str(directory / f"job-{job}")]
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    for process in running:
        output, _ = process.communicate()
        try:
            summary.add(json.loads(output.splitlines()[-1]))
        except (IndexError, ValueError, KeyError):
            summary.violations.append(f"a campaign ended with status {process.returncode}: {output[-2000:]}")
    return summary


if __name__ == "__main__":
    sys.exit(main())

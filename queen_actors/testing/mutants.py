"""Does the simulator find bugs? Each bug of `planted` is planted in a process of its own, and looked for.

    python -m queen_actors.testing.mutants --jobs 2

prints at which seed each was found, and whether a broker without any keeps its promises at the same seeds. One is found
where a promise is broken that it is known to break. It fails when one was not found within its seeds, or the broker as
it is breaks a promise: then a bug would prove nothing.
"""

from __future__ import annotations

import argparse
import multiprocessing
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile

from msgspec import Struct

from .planted import BUGS
from .planting import FAULTS, Bug
from .sim import SECONDS, Failure, attempt, quiet, seeds_of

SEEDS = range(2000)
CONTROL = "none"
_NUMBER = re.compile(r"I\d+")


class Found(Struct, frozen=True):
    """What came of one bug: at which seed it was found, if it was, and by which broken promise."""

    name: str
    seed: int | None
    tried: int
    seconds: float
    broken: str = ""


def shows(bug: Bug, broken: str) -> bool:
    """Does this show the bug? A broken promise does that names an invariant which the bug breaks. What else breaks, as
    a fault of the broker itself or an answer of 500, may only say that what was planted does not fit the broker any
    more, which it would say of any piece."""
    return not _named(broken).isdisjoint(bug.breaks.split())


def _named(broken: str) -> set[str]:
    """The invariants with which the promise begins: `I1 I12 what is queued is there, once`."""
    return set(takewhile(_NUMBER.fullmatch, broken.partition(":")[0].split()))


def look_for(name: str, seeds: Sequence[int]) -> Found:
    """Plant the bug in this process, for good, and look for a seed that `shows` it, while nothing that was planted
    raised a fault; `none` plants none, and whatever is wrong counts."""
    quiet()
    bug = next((bug for bug in BUGS if bug.name == name), None)
    assert bug is not None or name == CONTROL, f"there is no bug {name}"
    if bug is not None:
        bug.plant()
    began = time.process_time()
    for tried, seed in enumerate(seeds, 1):
        FAULTS.clear()
        found = attempt(seed, SECONDS)
        if isinstance(found, Failure) and (bug is None or (not FAULTS and shows(bug, found.broken))):
            return Found(name, seed, tried, time.process_time() - began, found.broken)
    return Found(name, None, len(seeds), time.process_time() - began)


def hunt(wanted: Iterable[tuple[str, Sequence[int]]], jobs: int) -> Iterator[Found]:
    """`look_for` each at its seeds, in a process of its own; in their order."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([f"{__package__}.planted", f"{__package__}.sim"])
    with context.Pool(jobs, maxtasksperchild=1) as pool:
        yield from pool.imap(_look, wanted)


def _look(wanted: tuple[str, Sequence[int]]) -> Found:
    return look_for(*wanted)


def main(arguments: list[str] | None = None) -> int:
    """The command line; 1 when a bug was not found, or when there is one that nobody has planted."""
    names = [bug.name for bug in BUGS]
    parser = argparse.ArgumentParser(prog="python -m queen_actors.testing.mutants", description=__doc__)
    parser.add_argument("--seeds", type=seeds_of, default=SEEDS, metavar="A..B", help="where to look (0..1999)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes (1)")
    parser.add_argument("--only", action="append", choices=names, metavar="NAME", help=f"one of {', '.join(names)}")
    parser.add_argument("--no-control", action="store_true", help="do not try the broker as it is")
    options = parser.parse_args(arguments)
    wanted = options.only or names
    found: list[Found] = []
    for one in hunt([(name, options.seeds) for name in wanted], options.jobs):
        found.append(one)
        where = f"seed {one.seed:5d} after {one.tried:5d}" if one.seed is not None else f"NOT FOUND in {one.tried}"
        print(f"{one.name:32} {where} in {one.seconds:6.1f} s  {one.broken[:70]}", flush=True)
    missed = [one.name for one in found if one.seed is None]
    broken = 0
    if not options.no_control:
        last = max([one.seed for one in found if one.seed is not None], default=0)
        seeds = options.seeds[: options.seeds.index(last) + 1] if found else options.seeds
        (control,) = hunt([(CONTROL, seeds)], 1)
        broken = control.seed is not None
        verdict = f"BROKEN {control.broken}" if broken else f"no promise broken in {control.tried} seeds"
        print(f"{'without any':32} {verdict}")
    print(f"{len(found) - len(missed)} of {len(found)} found")
    return 1 if missed or broken else 0


if __name__ == "__main__":
    sys.exit(main())

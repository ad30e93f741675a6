"""Millions of steps of every machine beside its model, and the first one at which they part.

    python -m tests.walks --steps 1000000 --seed 0

A round is a life of each machine; the rounds of a call have the seeds from `--seed` on. The last line says what was
done; of what is found the seed is told, how they parted, and the few steps that lead there. The status is 1 then.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time

from .driver import LIFE, MACHINES, live


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.walks", description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000, help="at least so many, of all machines (100000)")
    parser.add_argument("--seed", type=int, default=0, help="of the first round (0)")
    parser.add_argument("--machine", action="append", choices=MACHINES, help="only this one")
    options = parser.parse_args()
    machines = options.machine or list(MACHINES)
    gc.freeze()
    began, rounds, broken = time.perf_counter(), -(-options.steps // (LIFE * len(machines))), 0
    for seed in range(options.seed, options.seed + rounds):
        for machine in machines:
            found = live(machine, seed)
            if found is not None:
                broken += 1
                print(found, flush=True)
        if broken:
            rounds = seed - options.seed + 1
            break
    steps, seconds = rounds * len(machines) * LIFE, time.perf_counter() - began
    print(f"{steps} steps in {rounds} rounds, {broken} broken, {steps / seconds:.0f} steps/s")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())

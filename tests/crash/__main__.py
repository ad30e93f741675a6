"""python -m tests.crash --kills 300 --seed 1: the campaign, with its figures at the end."""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from pathlib import Path

import trio

from .campaign import campaign


def main() -> int:
    """0 when every promise held."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="how many (default 100)")
    parser.add_argument("--seed", type=int, help="of the choices (default: any); the timing is the machine's")
    parser.add_argument("--keep", type=Path, help="keep data directories and histories here (default: a temporary one)")
    options = parser.parse_args()
    seed = random.getrandbits(32) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    directory = options.keep or Path(tempfile.mkdtemp(prefix="queen-crash-"))
    directory.mkdir(parents=True, exist_ok=True)
    summary = trio.run(campaign, directory, seed, options.kills)
    print("\n".join(summary.lines()))
    if not summary.violations and options.keep is None:
        shutil.rmtree(directory)
    if summary.violations:
        print(f"the history and the data directory are kept in {directory}")
    return 1 if summary.violations else 0


if __name__ == "__main__":
    sys.exit(main())

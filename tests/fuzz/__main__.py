"""python -m tests.fuzz http --inputs 20000 --seed 1: inputs of one kind. The last line is the summary as JSON.

The status is 0 when nothing was harmed, 1 when something was, 3 when it cannot be run here.
"""

from __future__ import annotations

import argparse
import importlib
import random
import sys
import tempfile
from pathlib import Path

NOT_RUN = 3


def main() -> int:
    """Run what the arguments say."""
    sys.path.insert(0, str(Path(__file__).parents[1]))  # the helpers that pytest finds by its pythonpath
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    kinds = parser.add_subparsers(dest="kind", required=True)
    for kind, told in (
        ("http", "requests made from the OpenAPI description, against a server"),
        ("socket", "WebSocket frames, against a server"),
    ):
        one = kinds.add_parser(kind, help=told)
        one.add_argument("--inputs", type=int, default=2000, help="so many (default %(default)s)")
        one.add_argument("--seed", type=int, help="of the inputs (default: any)")
    decoders = kinds.add_parser("decoders", help="bytes, against every decoder in this process")
    decoders.add_argument("--seconds", type=float, default=60, help="how long (default %(default)s)")
    decoders.add_argument("--only", help="one decoder")
    decoders.add_argument("--engine", choices=("own", "atheris"), default="own", help="(default %(default)s)")
    decoders.add_argument("--seed", type=int, help="of the inputs (default: any)")
    options = parser.parse_args()
    seed = random.getrandbits(32) if options.seed is None else options.seed
    try:
        module = importlib.import_module(f"tests.fuzz.{options.kind}")
    except ModuleNotFoundError as missing:
        print(f"not run: {missing}")
        return NOT_RUN
    with tempfile.TemporaryDirectory(prefix="queen-fuzz-") as directory:
        if options.kind == "decoders":
            summary = module.fuzz(seed, options.seconds, only=options.only, engine=options.engine)
        else:
            summary = module.fuzz(Path(directory), seed, options.inputs)
    print("\n".join(summary.lines()))
    if summary.violations:
        return 1
    return NOT_RUN if summary.not_run else 0


if __name__ == "__main__":
    sys.exit(main())

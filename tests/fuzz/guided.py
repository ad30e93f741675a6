"""python -m tests.fuzz.guided SEED SECONDS DECODER...: each decoder under atheris for so long, in a process of its own.

A finding is printed, and ends its process. The product is imported and instrumented once, which takes longer than a
short try: the processes are forks.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[1]))
with atheris.instrument_imports(include=["queen_actors"]):
    from tests.fuzz.decoders import CONTROL, decoders, wrong


def main() -> int:
    """Prints `ENDED status name` after each; what libFuzzer says goes to the error stream."""
    seed, seconds = int(sys.argv[1]), float(sys.argv[2])
    for name in sys.argv[3:]:
        child = os.fork()
        if not child:
            try:
                fuzz(name, seed, seconds)
            finally:
                os._exit(1)  # libFuzzer has ended the process before this
        _, status = os.waitpid(child, 0)
        print(f"ENDED {os.waitstatus_to_exitcode(status)} {name}", flush=True)
    return 0


def fuzz(name: str, seed: int, seconds: float) -> None:
    """Does not return: libFuzzer ends the process."""
    directory = Path(tempfile.mkdtemp(prefix="queen-guided-"))
    decoder = {**decoders(directory), "control": CONTROL}[name]
    corpus = directory / "corpus"
    corpus.mkdir()
    for number, data in enumerate(decoder.seeds):
        (corpus / str(number)).write_bytes(data)

    def one(data: bytes) -> None:
        told = wrong(decoder, data)
        if told is not None:
            print(f"VIOLATION {name}: {told}: {data[:1000]!r}", flush=True)
            raise AssertionError(told)

    limits = [
        f"-max_total_time={max(1, round(seconds))}",
        f"-seed={seed % 2**31}",
        "-max_len=8192",
        "-print_final_stats=1",
    ]
    atheris.Setup([sys.argv[0], *limits, f"-artifact_prefix={directory}/", str(corpus)], one)
    try:
        atheris.Fuzz()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())

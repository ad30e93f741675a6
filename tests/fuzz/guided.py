"""python -m tests.fuzz.guided DECODER SEED SECONDS: one decoder under atheris; a finding is printed, and ends it."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[1]))
with atheris.instrument_imports(include=["queen_actors"]):
    from tests.fuzz.decoders import decoders, wrong


def main() -> None:
    """Does not return: libFuzzer ends the process."""
    name, seed, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    directory = Path(tempfile.mkdtemp(prefix="queen-guided-"))
    decoder = decoders(directory)[name]
    corpus = directory / "corpus"
    corpus.mkdir()
    for number, data in enumerate(decoder.seeds):
        (corpus / str(number)).write_bytes(data)

    def one(data: bytes) -> None:
        told = wrong(decoder, data)
        if told is not None:
            print(f"VIOLATION {told}: {data[:1000]!r}", flush=True)
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
    main()

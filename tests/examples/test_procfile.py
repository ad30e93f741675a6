"""What `honcho start` runs: a broker, a producer and a consumer that one can watch."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from server_process import free_port

ROOT = Path(__file__).parents[2]
PROGRAMS = {"queen-actors": [sys.executable, "-m", "queen_actors"], "python": [sys.executable]}
SECONDS = 120.0


def test_the_procfile(tmp_path: Path) -> None:
    """Its three commands, started at once in any order, ship orders; when the broker is stopped, the consumer says so
    in a line."""
    port = free_port()
    lines = dict(line.split(": ", 1) for line in (ROOT / "Procfile").read_text().splitlines())
    assert list(lines) == ["broker", "producer", "consumer"]
    environ = {**os.environ, "QUEEN_URL": f"http://127.0.0.1:{port}", "PYTHONPATH": str(ROOT), "NO_PROXY": "127.0.0.1"}
    with ExitStack() as stack:
        started: dict[str, subprocess.Popen[str]] = {}
        for name in ("consumer", "producer", "broker"):
            program, *arguments = shlex.split(
                lines[name].replace("6632", str(port)).replace("examples/", f"{ROOT}/examples/")
            )
            process = subprocess.Popen(
                PROGRAMS[program] + arguments,
                cwd=tmp_path,
                env=environ,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            started[name] = stack.enter_context(process)
            stack.callback(process.kill)
        consumer = started["consumer"].stdout
        assert consumer is not None
        shipped = [consumer.readline() for _ in range(2)]
        assert [line.split(" of ")[0] for line in shipped] == [
            f'shipped {{"number": {number}, "amount": {10 + number}}}' for number in range(2)
        ]
        started["broker"].terminate()
        told, _ = started["consumer"].communicate(timeout=SECONDS)
        assert told.splitlines()[-1].startswith("the broker has ended the connection: "), told
        assert "Traceback" not in told
        assert started["broker"].wait(SECONDS) == 0

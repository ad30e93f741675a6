"""The browser's module in node, on a socket and a clock of the test's own: `queen.test.mjs`."""

from __future__ import annotations

import subprocess
from pathlib import Path


def test_the_module_keeps_to_the_protocol() -> None:
    """Every test of the file passes."""
    file = Path(__file__).with_name("queen.test.mjs")
    run = subprocess.run(["node", "--test", str(file)], capture_output=True, text=True, timeout=170)
    assert run.returncode == 0, run.stdout + run.stderr

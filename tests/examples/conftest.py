"""A server process for the examples, over a data directory of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

START_SECONDS = 20.0


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of `queen-actors serve` on a free port; the server is stopped, gracefully, at the end."""
    data = tmp_path_factory.mktemp("data")
    command = [sys.executable, "-m", "queen_actors", "serve", "--port", "0", "--data", str(data)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            found = re.search(r"http://\S+", server.stdout.readline())
            assert found is not None, "the server did not start"
            yield found[0]
        finally:
            server.terminate()
            assert server.wait(START_SECONDS) == 0

"""A server process for the examples."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from server_process import ServerProcess


@pytest.fixture
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a `queen-actors serve` with a data directory of its own."""
    directory = tmp_path_factory.mktemp("server")
    server = ServerProcess(directory / "log", directory / "data")
    server.start()
    try:
        yield server.url
    finally:
        server.stop()

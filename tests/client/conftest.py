"""What the tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator

import client_server
import pytest
import trio
from loopback import Network


@pytest.fixture(autouse=True)
def network(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Network | None]:
    """In such a module, what clients connect to and `served` listens on is a network that virtual time waits for."""
    if not getattr(request.module, "VIRTUAL_TIME", False):
        yield None
        return
    made = Network()
    monkeypatch.setattr(trio, "open_tcp_stream", made.open_tcp_stream)
    monkeypatch.setattr(client_server, "NETWORK", made)
    yield made

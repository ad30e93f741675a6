"""What the tests of this folder share."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import client_server
import pytest
import trio
import trio.testing
from loopback import Network


def _on_virtual_time(main: Any, clock: trio.abc.Clock | None = None, instruments: Sequence[Any] = ()) -> Any:
    return trio.run(main, clock=clock or trio.testing.MockClock(autojump_threshold=0), instruments=instruments)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In a module that says `VIRTUAL_TIME = True`, time passes at once whenever everybody waits."""
    for item in items:
        virtual = getattr(getattr(item, "module", None), "VIRTUAL_TIME", False)
        if virtual and inspect.iscoroutinefunction(getattr(item, "obj", None)):
            item.add_marker(pytest.mark.trio(run=_on_virtual_time), append=False)


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

"""What the tests of this folder share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import trio
import trio.testing
from socket_peer import House, house


def _on_virtual_time(main: Any, clock: trio.abc.Clock | None = None, instruments: Sequence[Any] = ()) -> Any:
    return trio.run(main, clock=clock or trio.testing.MockClock(autojump_threshold=0), instruments=instruments)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In a module that says `VIRTUAL_TIME = True`, time passes at once whenever everybody waits."""
    for item in items:
        if getattr(getattr(item, "module", None), "VIRTUAL_TIME", False):
            item.add_marker(pytest.mark.trio(run=_on_virtual_time), append=False)


@pytest.fixture
async def hall() -> AsyncIterator[House]:
    """A broker in memory and its sockets, with the default settings."""
    async with house() as opened:
        yield opened

"""A fresh broker for each test, behind its wire."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio
from trio.testing import MockClock
from wire_kit import Wire, direct, served

from queen_actors.storage.memory import MemoryStore


@pytest.fixture(params=[direct, served], ids=["api", "socket"])
async def wire(request: pytest.FixtureRequest) -> AsyncIterator[Wire]:
    """The wire on real time, for what does not depend on it: `Api.handle`, and the server behind a socket."""
    async with request.param() as wire:
        yield wire


@pytest.fixture
async def timed(autojump_clock: MockClock) -> AsyncIterator[Wire]:
    """The wire on virtual time: `trio.sleep` passes at once, and the broker's clock with it. The test must ask for
    `autojump_clock` as well, because the clock of a run is looked for among the test's own arguments only."""
    assert trio.lowlevel.current_clock() is autojump_clock
    async with direct() as wire:
        yield wire


@pytest.fixture
async def durable() -> MemoryStore:
    """A store that a second broker can recover from: `direct(store.reopen())`."""
    return MemoryStore(retain=True)

"""A fresh broker for each test, behind its wire."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock
from wire_kit import Direct, Wire

from queen_actors.api import Api
from queen_actors.broker import running
from queen_actors.config import Settings
from queen_actors.ports import Clock
from queen_actors.storage.memory import MemoryStore


@asynccontextmanager
async def direct(store: MemoryStore | None = None, clock: Clock | None = None) -> AsyncIterator[Wire]:
    """A broker, and its wire. Two that shall live one after the other on virtual time share a clock."""
    settings = Settings(data=None)
    async with running(store or MemoryStore(), settings, clock=clock) as broker:
        yield Wire(Direct(Api(broker, settings)))


@pytest.fixture(params=["api"])
async def wire(request: pytest.FixtureRequest) -> AsyncIterator[Wire]:
    """The wire on real time, for what does not depend on it."""
    async with direct() as wire:
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

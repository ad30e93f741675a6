"""Fixtures for pytest with pytest-trio. In a `conftest.py`:

pytest_plugins = ["queen_actors.testing.fixtures"]
"""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest

from queen_actors.client import Queen

from .memory import MemoryLog, memory_broker


@pytest.fixture
def queen_log() -> MemoryLog:
    """What the test's broker makes durable, and the switches that make it fail."""
    return MemoryLog()


@pytest.fixture
async def queen(queen_log: MemoryLog) -> AsyncGenerator[Queen]:
    """A client of a broker in memory. In a test that also asks for `autojump_clock`, of pytest-trio, time is virtual:
    whoever sleeps, waits or lets a lease run out loses none."""
    async with memory_broker(queen_log) as client:
        yield client

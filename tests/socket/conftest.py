"""What the tests of this folder share."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from socket_peer import House, house


@pytest.fixture
async def hall() -> AsyncIterator[House]:
    """A broker in memory and its sockets, with the default settings."""
    async with house() as opened:
        yield opened

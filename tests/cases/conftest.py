"""Cases from the field: each test bears the number of a public report about a system that does this job."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import httpx
import pytest
import trio
from server_process import ServerProcess
from socket_peer import House, house
from trio.testing import MockClock
from wire_kit import Direct, Socket, Wire, direct, served


@pytest.fixture
async def timed(autojump_clock: MockClock) -> AsyncIterator[Wire]:
    """The wire on virtual time; the test asks for `autojump_clock` as well."""
    async with direct() as wire:
        yield wire


@pytest.fixture(params=[direct, served], ids=["api", "socket"])
async def wire(request: pytest.FixtureRequest) -> AsyncIterator[Wire]:
    """The wire on real time: `Api.handle`, and the server behind a socket."""
    async with request.param() as wire:
        yield wire


@pytest.fixture
async def hall(autojump_clock: MockClock) -> AsyncIterator[House]:
    """A broker with its WebSockets over streams in memory, on virtual time; the test asks for `autojump_clock`."""
    async with house() as opened:
        yield opened


@pytest.fixture
def http_of(hall: House) -> Wire:
    """The HTTP routes of the same broker."""
    return Wire(Direct(hall.api))


class Durable:
    """A real server on a data directory, which may be killed and started again."""

    def __init__(self, path: Path) -> None:
        self._process = ServerProcess(path / "server.log", path / "data")
        self.port = self._process.port
        self.url = self._process.url

    @property
    def pid(self) -> int:
        return self._process.pid

    async def start(self) -> None:
        await trio.to_thread.run_sync(self._process.start)

    async def kill(self) -> None:
        """SIGKILL."""
        await trio.to_thread.run_sync(self._process.kill)

    @asynccontextmanager
    async def _wire(self) -> AsyncIterator[Wire]:
        async with httpx.AsyncClient(verify=False, trust_env=False, timeout=60) as client:
            yield Wire(Socket(client, self.url))

    def wire(self) -> AbstractAsyncContextManager[Wire]:
        """Its wire, over connections of one's own."""
        return self._wire()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Durable]:
    """Started, and killed in the end."""
    server = Durable(tmp_path)
    await server.start()
    try:
        yield server
    finally:
        with trio.CancelScope(shield=True):
            await server.kill()

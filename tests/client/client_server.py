"""The server over a broker in memory, on a free loopback port or a network of the test's own, with its WebSockets at
hand to break them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import trio
from loopback import Network
from msgspec import Struct

from queen_actors.api import Api
from queen_actors.api.auth import authorizer
from queen_actors.broker import running
from queen_actors.config import Settings
from queen_actors.serve.listen import serve
from queen_actors.serve.socket import Sockets
from queen_actors.storage.memory import MemoryStore

NETWORK: Network | None = None
"""Where servers listen in a module on virtual time (conftest.py)."""


def network() -> Network:
    """The network of this module's tests, which are on virtual time."""
    assert NETWORK is not None
    return NETWORK


class Server(Struct):
    """Where it listens, and the streams of the WebSockets that it took."""

    url: str
    sockets: list[trio.abc.Stream]

    async def break_socket(self) -> None:
        """The last WebSocket's connection breaks."""
        await trio.aclose_forcefully(self.sockets[-1])


@asynccontextmanager
async def served(**settings: Any) -> AsyncIterator[Server]:
    chosen = Settings(data=None, port=0, **settings)
    shutdown = trio.Event()
    async with running(MemoryStore(), chosen) as broker, trio.open_nursery() as nursery:
        server = Server("", [])
        authorize = authorizer(chosen)
        sockets = Sockets(Api(broker, chosen, authorize), broker, chosen, shutdown, authorize)

        async def websocket(stream: trio.abc.Stream) -> None:
            server.sockets.append(stream)
            await sockets.serve(stream)

        serving = partial(serve, broker, chosen, shutdown=shutdown, websocket_handler=websocket)
        if NETWORK is None:
            (server.url,) = await nursery.start(serving)
        else:
            listener = NETWORK.listen()
            server.url = listener.url
            await nursery.start(partial(serving, listeners=[listener]))
        yield server
        nursery.cancel_scope.cancel()

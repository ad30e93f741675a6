"""The server over a broker in memory, on a free loopback port, with its WebSockets at hand to break them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from msgspec import Struct

from queen_actors.api import Api
from queen_actors.api.auth import authorizer
from queen_actors.broker import running
from queen_actors.config import Settings
from queen_actors.serve.listen import serve
from queen_actors.serve.socket import Sockets
from queen_actors.storage.memory import MemoryStore


class Server(Struct):
    """Where it listens, and the streams of the WebSockets that it took."""

    url: str
    sockets: list[trio.abc.Stream]

    async def break_socket(self) -> None:
        """The last WebSocket's connection breaks."""
        await trio.aclose_forcefully(self.sockets[-1])


@asynccontextmanager
async def served(**settings: object) -> AsyncIterator[Server]:
    chosen = Settings(data=None, port=0, **settings)  # type: ignore[arg-type]
    shutdown = trio.Event()
    async with running(MemoryStore(), chosen) as broker, trio.open_nursery() as nursery:
        server = Server("", [])
        authorize = authorizer(chosen)
        sockets = Sockets(Api(broker, chosen, authorize), broker, chosen, shutdown, authorize)

        async def websocket(stream: trio.abc.Stream) -> None:
            server.sockets.append(stream)
            await sockets.serve(stream)

        async def start(task_status: trio.TaskStatus[list[str]]) -> None:
            await serve(broker, chosen, shutdown=shutdown, websocket_handler=websocket, task_status=task_status)

        (server.url,) = await nursery.start(start)
        yield server
        nursery.cancel_scope.cancel()

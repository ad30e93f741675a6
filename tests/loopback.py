"""A network within one process, for virtual time: connections are pairs of UNIX sockets.

What is sent over such a pair can be read at once, so time that passes only when everybody waits never passes a byte by.
Over TCP the kernel delivers a moment later, when it likes.
"""

from __future__ import annotations

import errno
import math
import os
import socket
from collections.abc import Awaitable, Callable
from itertools import count

import trio

FIRST_PORT = 1


class Listener(trio.abc.Listener[trio.SocketStream]):
    """Accepts the other ends of what connects to `url`, until it is closed."""

    def __init__(self, network: Network, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self._network = network
        self._arrivals, self._accepting = trio.open_memory_channel[trio.SocketStream](math.inf)

    def arrive(self, stream: trio.SocketStream) -> None:
        self._arrivals.send_nowait(stream)

    async def accept(self) -> trio.SocketStream:
        return await self._accepting.receive()

    async def aclose(self) -> None:
        self._network.forget(self.port)
        await self._accepting.aclose()


class Network:
    """Who listens where."""

    def __init__(self) -> None:
        self._listeners: dict[int, Listener] = {}
        self._ports = count(FIRST_PORT)

    def listen(self) -> Listener:
        """On a port that nobody had before."""
        port = next(self._ports)
        self._listeners[port] = Listener(self, port)
        return self._listeners[port]

    def forget(self, port: int) -> None:
        self._listeners.pop(port, None)

    async def open_tcp_stream(self, host: str, port: int) -> trio.SocketStream:
        """In the place of Trio's. Raises OSError where nobody listens."""
        await trio.lowlevel.checkpoint()
        listener = self._listeners.get(port)
        if listener is None:
            raise OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED), f"{host}:{port}")
        ours, theirs = (trio.SocketStream(trio.socket.from_stdlib_socket(end)) for end in socket.socketpair())
        listener.arrive(theirs)
        return ours

    async def serve(
        self,
        handler: Callable[[trio.SocketStream], Awaitable[object]],
        *,
        task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Run the handler for each connection; started with the URL."""
        listener = self.listen()
        try:
            task_status.started(listener.url)
            await trio.serve_listeners(handler, [listener])
        finally:
            self.forget(listener.port)

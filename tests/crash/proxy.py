"""A TCP proxy that makes a bad network of loopback: links that freeze, crawl, swallow or are cut."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import trio

Way = Literal["in", "out"]
"""To the broker, or from it."""
PIECE = 65_536
RESET = struct.pack("ii", 1, 0)


class Proxy:
    """Links between clients and a broker whose port may change. Everything about them is the same for all."""

    def __init__(self, target: Callable[[], int]) -> None:
        self.port = 0
        self.rate: float | None = None
        """Bytes a second and link, either way; None: no limit."""
        self.links = 0
        self._target = target
        self._open: dict[Way, trio.Event] = {"in": _set(), "out": _set()}
        self._scopes: set[trio.CancelScope] = set()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled."""
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = listener.socket.getsockname()[1]
        task_status.started()
        await trio.serve_listeners(self._link, [listener])

    @contextmanager
    def frozen(self, *ways: Way) -> Iterator[None]:
        """Inside, nothing passes in these directions; it passes afterwards."""
        for way in ways:
            self._open[way] = trio.Event()
        try:
            yield
        finally:
            for way in ways:
                self._open[way].set()

    def cut(self) -> int:
        """Reset every link; what is under way in them is gone. How many there were."""
        scopes, self._scopes = self._scopes, set()
        for scope in scopes:
            scope.cancel()
        return len(scopes)

    async def _link(self, client: trio.SocketStream) -> None:
        self.links += 1
        try:
            broker = await trio.open_tcp_stream("127.0.0.1", self._target())
        except OSError:
            _reset(client)
            return
        try:
            with trio.CancelScope() as scope:
                self._scopes.add(scope)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._pump, client, broker, "in", scope)
                    nursery.start_soon(self._pump, broker, client, "out", scope)
            self._scopes.discard(scope)
        finally:  # also when the proxy ends while the link lives
            for stream in (client, broker):
                _reset(stream)

    async def _pump(self, source: trio.SocketStream, sink: trio.SocketStream, way: Way, link: trio.CancelScope) -> None:
        try:
            while received := await source.receive_some(PIECE):
                await self._open[way].wait()
                while received:
                    rate = self.rate
                    piece = received if rate is None else received[: max(1, int(rate / 20))]
                    if rate is not None:
                        await trio.sleep(len(piece) / rate)
                    await sink.send_all(piece)
                    received = received[len(piece) :]
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        link.cancel()  # whoever ends ends both: the broker sees the end as a reset too


def _set() -> trio.Event:
    event = trio.Event()
    event.set()
    return event


def _reset(stream: trio.SocketStream) -> None:
    """Close with a reset."""
    try:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    except (OSError, trio.ClosedResourceError):
        return
    stream.socket.close()

"""What waits to be written to one peer: bounded, written by one task, many frames in one write."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

import trio

from queen_actors import limits

CHUNK_BYTES = 64 * 1024
"""One write: enough for the cost of a system call not to count, little enough to see progress on a slow line."""
CROWDED_BYTES = 2 * limits.WS_PEER_BYTES


class Outbox:
    """Frames in the order in which they were put; each is whole on the wire, or it is not there at all."""

    def __init__(self, stream: trio.abc.SendStream) -> None:
        self.size = 0
        self.finished = False
        self.flushed = trio.Event()
        """Set when the last frame is written, or can never be."""
        self.broken = trio.Event()
        """Set when the peer cannot be written to any more."""
        self.on_full: Callable[[], None] | None = None
        """Called when more waits than may (`WS_PEER_BYTES`)."""
        self._stream = stream
        self._frames: deque[bytes | memoryview] = deque()
        self._begun = False  # the first frame is the rest of one that is partly written
        self._writer = trio.lowlevel.ParkingLot()
        self._room = trio.lowlevel.ParkingLot()
        self._patience = trio.CancelScope()

    @property
    def full(self) -> bool:
        """Is so much waiting that nothing more should be claimed for this peer?"""
        return self.size > limits.WS_PEER_BYTES and not self.finished

    @property
    def crowded(self) -> bool:
        """Is so much waiting that not even requests should be taken from this peer?"""
        return self.size > CROWDED_BYTES and not self.finished

    def put(self, frame: bytes) -> None:
        """Queue one frame. After `finish` it goes nowhere."""
        if self.finished:
            return
        was_full = self.full
        self._frames.append(frame)
        self.size += len(frame)
        self._writer.unpark_all()
        if not was_full and self.full and self.on_full is not None:
            self.on_full()

    def finish(self, frame: bytes = b"", *, drop: bool = False) -> None:
        """Nothing follows `frame`, the close. With `drop`, what waits before it is thrown away, except the rest of a
        frame that is partly written."""
        if self.finished:
            return
        if drop:
            self._keep(1 if self._begun else 0)
        if frame:
            self.put(frame)
        self.finished = True
        self._writer.unpark_all()
        self._room.unpark_all()

    async def room(self, bound: int = limits.WS_PEER_BYTES) -> None:
        """Return when no more than `bound` waits, or when nothing can be put any more."""
        while self.size > bound and not self.finished:
            await self._room.park()

    async def run(self) -> None:
        """Write until finished, or until the peer cannot be written to."""
        try:
            while self._frames or not self.finished:
                if not self._frames:
                    await self._writer.park()
                    continue
                chunk = self._chunk()
                self._patience.deadline = trio.current_time() + limits.WS_WRITE_SECONDS
                await self._stream.send_all(chunk)
                self._patience.deadline = math.inf
                self.size -= len(chunk)
                if self._room and not self.full:
                    self._room.unpark_all()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.finish(drop=True)
            self._keep(0)
            self.broken.set()
        finally:
            self._patience.deadline = math.inf
            self.flushed.set()

    async def stalled(self) -> None:
        """Return when one write has made no progress for `WS_WRITE_SECONDS`. May be awaited once."""
        with self._patience:
            await trio.sleep_forever()

    def _chunk(self) -> bytes | memoryview:
        """The next bytes to write; they still count in `size`."""
        first = self._frames.popleft()
        if len(first) > CHUNK_BYTES:
            view = memoryview(first)
            self._frames.appendleft(view[CHUNK_BYTES:])
            self._begun = True
            return view[:CHUNK_BYTES]
        self._begun = False
        if not self._frames or len(first) + len(self._frames[0]) > CHUNK_BYTES:
            return first
        parts, total = [first], len(first)
        while self._frames and total + len(self._frames[0]) <= CHUNK_BYTES:
            parts.append(self._frames.popleft())
            total += len(parts[-1])
        return b"".join(parts)

    def _keep(self, count: int) -> None:
        while len(self._frames) > count:
            self.size -= len(self._frames.pop())

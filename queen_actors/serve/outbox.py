"""What waits to be written to one peer: bounded, written by one task, many frames in one write."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable

import trio

from queen_actors import limits

from .connection import Replayed

CHUNK_BYTES = 64 * 1024
"""One write: enough for the cost of a system call not to count, little enough to see progress on a slow line."""


class Outbox:
    """Frames in the order in which they were put, urgent ones first; each is whole on the wire, or not there at all.

    No frame is much longer than `CHUNK_BYTES`: longer messages come in fragments, so that a ping is not late on a
    slow line.
    """

    def __init__(self, stream: trio.abc.SendStream, bound: int = limits.WS_PEER_BYTES) -> None:
        self.bound = bound
        """How many bytes may wait; past twice as many no request is taken from the peer."""
        self.size = 0
        self.finished = False
        self.flushed = trio.Event()
        """Set when the last frame is written, or can never be."""
        self.broken = trio.Event()
        """Set when the peer cannot be written to any more."""
        self.on_full: Callable[[], None] | None = None
        """Called when more waits than may (`bound`)."""
        self._stream = stream
        self._frames: deque[bytes] = deque()
        self._urgent: deque[bytes] = deque()
        self._writer = trio.lowlevel.ParkingLot()
        self._room = trio.lowlevel.ParkingLot()
        self._patience = trio.CancelScope()
        self._idle = False
        """Has the writer nothing to do, or not begun with it?"""
        self._rest = b""
        """What the peer's kernel did not take at once: in the middle of a frame, so that nothing comes before it."""

    @property
    def full(self) -> bool:
        """Is so much waiting that nothing more should be claimed for this peer?"""
        return self.size > self.bound and not self.finished

    @property
    def crowded(self) -> bool:
        """Is so much waiting that not even requests should be taken from this peer?"""
        return self.size > 2 * self.bound and not self.finished

    def put(self, frame: bytes, *, urgent: bool = False) -> None:
        """Queue one frame. After `finish` it goes nowhere."""
        if not self.finished:
            self._queue(frame, urgent)
            self._writer.unpark_all()

    def put_now(self, frames: Iterable[bytes]) -> None:
        """Queue frames, and write what waits as far as the peer's kernel takes it at once, without a turn of the event
        loop: the writer has the rest."""
        if self.finished:
            return
        for frame in frames:
            self._queue(frame, False)
        if not self._idle or not isinstance(self._stream, Replayed):
            self._writer.unpark_all()
            return
        while chunk := self._chunk():
            try:
                rest = self._stream.write_now(chunk)
            except trio.BrokenResourceError:
                rest = chunk  # the writer meets the same, and ends
            self.size -= len(chunk) - len(rest)
            if rest:
                self._rest = rest
                self._writer.unpark_all()
                break
        if self._room and not self.full:
            self._room.unpark_all()

    def _queue(self, frame: bytes, urgent: bool) -> None:
        was_full = self.full
        (self._urgent if urgent else self._frames).append(frame)
        self.size += len(frame)
        if not was_full and self.full and self.on_full is not None:
            self.on_full()

    def finish(self, frame: bytes = b"", *, drop: bool = False) -> None:
        """Nothing follows `frame`, the close. With `drop`, what waits before it is thrown away."""
        if self.finished:
            return
        if drop:
            self._drop()
        if frame:
            self.put(frame)
        self.finished = True
        self._writer.unpark_all()
        self._room.unpark_all()

    async def room(self) -> None:
        """Return when it is not `full`."""
        while self.full:
            await self._room.park()

    async def emptier(self) -> None:
        """Return when it is not `crowded`."""
        while self.crowded:
            await self._room.park()

    async def run(self) -> None:
        """Write until finished, or until the peer cannot be written to."""
        try:
            while True:
                chunk = self._chunk()
                if not chunk:
                    if self.finished:
                        return
                    self._idle = True
                    try:
                        await self._writer.park()
                    finally:
                        self._idle = False
                    continue
                self._patience.deadline = trio.current_time() + limits.WS_WRITE_SECONDS
                await self._stream.send_all(chunk)
                self._patience.deadline = math.inf
                self.size -= len(chunk)
                if not self.full:
                    self._room.unpark_all()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.finish(drop=True)
            self._drop()
            self.broken.set()
        finally:
            self._patience.deadline = math.inf
            self.flushed.set()

    async def stalled(self) -> bool:
        """Return when the peer cannot be written to any more: True when one write has made no progress for
        `WS_WRITE_SECONDS`, False when its connection is broken. May be awaited once."""
        with self._patience:
            await self.broken.wait()
        return self._patience.cancelled_caught

    def _chunk(self) -> bytes:
        """The next frames to write, empty when there are none; they still count in `size`."""
        rest, self._rest = self._rest, b""
        parts = [rest] if rest else []
        total = len(rest)
        for frames in (self._urgent, self._frames):
            while frames and (not parts or total + len(frames[0]) <= CHUNK_BYTES):
                parts.append(frames.popleft())
                total += len(parts[-1])
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _drop(self) -> None:
        for frames in (self._urgent, self._frames):
            self.size -= sum([len(frame) for frame in frames])
            frames.clear()

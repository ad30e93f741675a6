"""A tail: every message of a queue as it comes, without a lease (`websocket.md`, section 4)."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Self

import trio
from msgspec import Struct

from .durations import instant
from .live import Live
from .message import Delivered
from .shapes import as_object, as_rows
from .transport import OPENING_SECONDS, Start, Transport

log = logging.getLogger("queen_actors.client")


class Gap(Struct, frozen=True):
    """Messages that were asked for and that retention has removed: offsets `first`..`last` of a partition."""

    partition: str
    first: int
    last: int


Begin = str | datetime | Mapping[str, int]
"""Where a tail begins: `now`, `start`, an instant, or the next offset of each partition."""


class Tail:
    """`async with queue.tail() as messages: async for message in messages: ...`

    A lost connection is opened again, and the tail goes on with the next message. `positions` is where it stands: the
    next offset of each partition, of what was handed out. As the `begin` of another tail it continues exactly there.
    Leaving is prompt, whatever lies unread.
    """

    patience = OPENING_SECONDS

    def __init__(
        self,
        start: Start,
        transport: Transport,
        queue: str,
        partition: str | None,
        begin: Begin,
        credit: int,
        on_gap: Callable[[Gap], object] | None,
    ) -> None:
        self.about = f"the tail of {queue}"
        self.positions: dict[str, int] = {} if isinstance(begin, (str, datetime)) else dict(begin)
        self._queue = queue
        self._partition = partition
        self._begin: str | Mapping[str, int] = instant(begin) if isinstance(begin, (str, datetime)) else begin
        self._credit = credit
        self._on_gap = on_gap
        self._owed = 0
        self._received: dict[str, int] | None = None
        self._buffer: deque[Delivered | Gap] = deque()
        self._live = Live(start, transport.talk(self))

    async def __aenter__(self) -> Self:
        await self._live.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._buffer.clear()
        await self._live.leave()

    # What the stream calls (transport.Talk)

    def opening(self) -> dict[str, Any]:
        """As `Talk.opening`: from where it stands, with the credit that is left."""
        self._owed = 0
        fields: dict[str, Any] = {
            "op": "tail",
            "queue": self._queue,
            "from": self._begin if self._received is None else self._received,
            "credit": max(0, self._credit - sum(isinstance(one, Delivered) for one in self._buffer)),
        }
        if self._partition is not None:
            fields["partition"] = self._partition
        return fields

    def opened(self, body: dict[str, Any]) -> None:
        """As `Talk.opened`."""
        positions = as_object(body.get("from"))
        if self._received is None:
            self.positions.update(positions)
        self._received = {**(self._received or {}), **positions}

    def event(self, frame: dict[str, Any]) -> None:
        """As `Talk.event`: messages, or a gap."""
        partition = str(frame.get("partition"))
        if frame.get("event") == "gap":
            gap = Gap(partition, int(frame.get("from") or 0), int(frame.get("to") or 0))
            self._buffer.append(gap)
            self._moved(partition, gap.last + 1)
        else:
            for message in as_rows(frame.get("messages")):
                delivered = Delivered({**message, "queue": frame.get("queue")})
                self._buffer.append(delivered)
                self._moved(partition, delivered.offset + 1)
        self._live.notify()

    def _moved(self, partition: str, offset: int) -> None:
        assert self._received is not None, "events come after the reply"
        self._received[partition] = offset

    def disconnected(self) -> None:
        """As `Talk.disconnected`: it goes on by offset."""

    # What the user calls

    @property
    def waiting(self) -> int:
        """Messages that are here and not handed out yet."""
        return len(self._buffer)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivered:
        return await self.receive()

    async def receive(self) -> Delivered:
        """The next message; gaps before it are told to `on_gap`, and logged. Raises QueenError when the tail has
        ended."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while True:
            while not self._buffer:
                await self._live.news()
            one = self._buffer.popleft()
            if isinstance(one, Delivered):
                self.positions[one.partition] = one.offset + 1
                self._settle()
                await trio.lowlevel.cancel_shielded_checkpoint()
                return one
            self.positions[one.partition] = one.last + 1
            log.warning("%s misses offsets %d to %d of partition %s", self.about, one.first, one.last, one.partition)
            if self._on_gap is not None:
                self._on_gap(one)

    def _settle(self) -> None:
        """Credit goes back when a quarter of it has gathered: the broker still has most of it then."""
        self._owed += 1
        if self._owed >= max(1, self._credit // 4):
            owed, self._owed = self._owed, 0
            self._live.stream.grant(owed)

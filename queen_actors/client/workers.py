"""Workers: one handler for all messages of a subscription, several at once, in order within each partition."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable

import trio
from msgspec import Struct

from queen_actors.errors import QueenError

from .message import Message
from .subscription import Subscription

log = logging.getLogger("queen_actors.client")

Handler = Callable[[Message], Awaitable[object]]


class _Running(Struct, eq=False):
    """A handler at work; the scope ends it when the lease of its message is lost."""

    message: Message
    scope: trio.CancelScope


class Workers:
    """A handler that returns acks its message, one that raises nacks it. Whose lease is lost meanwhile is cancelled,
    and its message is not settled: it comes again."""

    def __init__(self, messages: Subscription, handler: Handler, limit: int | None) -> None:
        self._messages = messages
        self._handler = handler
        self._left = limit
        self._lanes: dict[str, deque[Message]] = {}
        """What came and waits, by partition; a partition without one is busy or unknown."""
        self._busy: set[str] = set()
        self._running: set[_Running] = set()
        self._receiving = False
        self._moved = trio.lowlevel.ParkingLot()
        self._seeking: set[trio.CancelScope] = set()
        self._failure: QueenError | None = None
        messages.on_lost = self._lost

    async def run(self, workers: int) -> None:
        """Until cancelled, or until the limit is reached. Raises QueenError when the subscription has ended, or a
        message cannot be settled."""
        async with trio.open_nursery() as nursery:
            for _ in range(workers):
                nursery.start_soon(self._work, nursery.cancel_scope)
        if self._failure is not None:
            raise self._failure

    async def _work(self, everybody: trio.CancelScope) -> None:
        try:
            while (message := await self._next()) is not None:
                try:
                    await self._handle(message)
                finally:
                    self._busy.discard(message.partition_id)
                    self._moved.unpark_all()
        except QueenError as error:
            self._failure = self._failure or error
            everybody.cancel()

    async def _next(self) -> Message | None:
        """The next message of a partition that nobody works on; None when there have been enough."""
        with trio.CancelScope() as seeking:
            self._seeking.add(seeking)
            try:
                while self._left is None or self._left > 0:
                    # what is here already comes into its lane first, so that every partition has its turn
                    if self._receiving or not self._messages.waiting:
                        message = self._take()
                        if message is not None:
                            return message
                    await self._more()
            finally:
                self._seeking.discard(seeking)
        return None

    def _take(self) -> Message | None:
        for partition, lane in self._lanes.items():
            if partition not in self._busy:
                message = lane.popleft()
                del self._lanes[partition]
                if lane:
                    self._lanes[partition] = lane  # behind the others: each has its turn
                self._busy.add(partition)
                if self._left is not None:
                    self._left -= 1
                    if not self._left:
                        for seeking in self._seeking:
                            seeking.cancel()
                return message
        return None

    async def _more(self) -> None:
        """Receive one more, or wait until somebody else has, or is done with a partition."""
        if self._receiving:
            await self._moved.park()
            return
        self._receiving = True
        try:
            message = await self._messages.receive()
            self._lanes.setdefault(message.partition_id, deque()).append(message)
        finally:
            self._receiving = False
            self._moved.unpark_all()

    async def _handle(self, message: Message) -> None:
        error: Exception | None = None
        with trio.CancelScope() as scope:
            running = _Running(message, scope)
            self._running.add(running)
            try:
                await self._handler(message)
            except Exception as raised:  # the user's code: a message that fails must not end the consumer
                error = raised
            finally:
                self._running.discard(running)
        if scope.cancel_called:
            reason = self._messages.lost_reason(message)
            log.warning("message %s of %s comes again: %s", message.transaction_id, message.queue, reason)
        elif error is not None:
            log.warning("message %s of %s failed", message.transaction_id, message.queue, exc_info=error)
            self._drop(message.lease_id, message.partition_id)  # the verdict ends the lease: they come again
            await message.nack(error)
        else:
            await message.ack()

    def _lost(self, lease_id: str | None, partition_id: str | None) -> None:
        """A lease is lost, in one partition or (None) in all; or all leases are."""
        for running in self._running:
            message = running.message
            if lease_id in (None, message.lease_id) and partition_id in (None, message.partition_id):
                running.scope.cancel()
        self._drop(lease_id, partition_id)

    def _drop(self, lease_id: str | None, partition_id: str | None) -> None:
        for partition, lane in list(self._lanes.items()):
            if partition_id in (None, partition):
                kept = deque(message for message in lane if lease_id not in (None, message.lease_id))
                if kept:
                    self._lanes[partition] = kept
                else:
                    del self._lanes[partition]

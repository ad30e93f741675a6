"""Workers: one handler for all messages of a subscription, several at once, in order within each partition."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import trio
from msgspec import Struct

from queen_actors.errors import QueenError

from .message import Message

if TYPE_CHECKING:
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
        self._working: dict[int, Message] = {}
        """Messages at work, by their identity: the broker's name for one does not tell two deliveries apart."""
        self._running: set[_Running] = set()
        self._failure: QueenError | None = None

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
            while self._left is None or self._left > 0:
                if self._left is not None:
                    self._left -= 1  # before it is there: no more are asked for than are left
                message = await self._messages.receive()
                self._working[id(message)] = message
                try:
                    await self._handle(message)
                finally:
                    del self._working[id(message)]
                    self._messages.handled(message)
        except QueenError as error:
            self._failure = self._failure or error
            everybody.cancel()

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
            await message.nack(error)
        else:
            await message.ack()

    def works_on(self, message: Message) -> bool:
        """Whether its handler has not ended, settling it included."""
        return id(message) in self._working

    def lost(self, gone: Callable[[Message], bool]) -> None:
        """The leases of some messages are lost."""
        for running in self._running:
            if gone(running.message):
                running.scope.cancel()

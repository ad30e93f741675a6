"""A subscription: messages as they come, one by one or in batches, and settling them.

The transport's feed puts deliveries into a buffer without ever waiting for the user's loop: the credit bounds what can
be in it. So pings are answered and leases are renewed however long the user takes, and leaving is prompt whatever lies
unread.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import trio

from queen_actors.errors import QueenError, Unavailable

from .buffer import Buffer, InOrder, Lanes
from .message import Message, acknowledgment
from .results import AckResult
from .shapes import one_each
from .transport import Wanted
from .workers import Handler, Workers

if TYPE_CHECKING:
    from .queen import Queen

LEAVE_SECONDS = 0.8  # how long the feed may take to end in good order, and then to end at all
LEASES = 1024  # live leases, and lost ones, that are remembered, to know a stale message by

Lease = tuple[str, str]
"""A lease id and a partition id: one lease of a delivery may cover several partitions, each settled by itself."""


class Subscription:
    """`async with queue.subscribe(...) as messages: async for message in messages: ...`

    Entering returns when the broker has the subscription: what is pushed from then on is delivered. Iterating ends
    with the broker's error when the subscription cannot go on.

    With `workers=n`, n tasks may iterate it at once, or one may start a task for each message: at most n are out at
    once, and of each partition the next one when the one before is settled (or its lease is lost), so that each
    partition is handled in order. `each(handler)` runs the workers itself.
    """

    def __init__(self, queen: Queen, wanted: Wanted, workers: int = 1) -> None:
        self.workers = workers
        self._queen = queen
        self._wanted = wanted
        self._feed = queen.caller.transport.subscribe(wanted, queen.caller)
        self._buffer: Buffer = Lanes(workers) if workers > 1 else InOrder()
        self._more = trio.Event()
        self._started = trio.Event()
        self._ended = trio.Event()
        self._running = trio.CancelScope()
        self._failure: QueenError | None = None
        self._live: OrderedDict[Lease, None] = OrderedDict()
        self._lost: OrderedDict[tuple[str, str | None], str] = OrderedDict()
        self._entered = self._left = False
        self._handlers: Workers | None = None
        """Who handles the messages."""

    async def __aenter__(self) -> Self:
        if self._entered:
            raise RuntimeError("a subscription is entered once: ask for another one")
        self._entered = True
        self._queen.start(self._run)
        try:
            await self._started.wait()
        except BaseException:
            await self._leave()
            raise
        if self._failure is not None:
            raise self._failure
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._leave()

    async def _leave(self) -> None:
        self._left = True
        self._buffer.drop(_any)
        self._feed.stop()
        with trio.CancelScope(shield=True):
            with trio.move_on_after(LEAVE_SECONDS):
                await self._ended.wait()
            self._running.cancel()
            with trio.move_on_after(LEAVE_SECONDS):
                await self._ended.wait()

    async def _run(self) -> None:
        try:
            with self._running:
                await self._feed.run(self, self._started.set)
        except QueenError as error:
            self._failure = error
        finally:
            if self._failure is None and not self._left:
                self._failure = Unavailable("the client was closed, and the subscription with it")
            self._started.set()
            self._ended.set()
            self._more.set()

    # What the feed calls (transport.Sink)

    def deliver(self, lease_id: str, partition_id: str, messages: Sequence[dict[str, Any]]) -> None:
        """Take a delivery; its size is within the credit."""
        self._live[lease_id, partition_id] = None
        while len(self._live) > LEASES:
            self._live.popitem(last=False)
        for fields in messages:
            self._buffer.add(Message(fields, self._settle, self._queen.extend, self._settled))
        self._more.set()

    def lost(self, lease_id: str | None, partition_id: str | None, reason: str) -> None:
        """Forget what was delivered under a lease that is gone: it is delivered again."""
        if lease_id is None:
            for lease in self._live:
                self._remember(lease, reason)
            self._live.clear()
        else:
            self._remember((lease_id, partition_id), reason)

        def gone(message: Message) -> bool:
            return lease_id in (None, message.lease_id) and partition_id in (None, message.partition_id)

        self._buffer.drop(gone)
        if self._handlers is not None:
            self._handlers.lost(gone)
        self._buffer.lost(lambda message: gone(message) and not self._is_handled(message))
        self._more.set()

    def _remember(self, lease: tuple[str, str | None], reason: str) -> None:
        self._lost[lease] = reason
        while len(self._lost) > LEASES:
            self._lost.popitem(last=False)

    # What the user calls

    @property
    def waiting(self) -> int:
        """Messages that are here and not handed out yet."""
        return len(self._buffer)

    def lost_reason(self, message: Message) -> str | None:
        """Why the lease of a message was lost (expired, seek, deleted, maxLease, disconnected); None while it holds."""
        return self._lost.get(_lease(message)) or self._lost.get((message.lease_id, None))

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        return await self.receive()

    async def receive(self) -> Message:
        """The next message. Raises QueenError when the subscription has ended."""
        return (await self.receive_batch(1))[0]

    async def receive_batch(self, most: int) -> list[Message]:
        """What is here, at least one message and `most` at most; acknowledging the last of each partition is enough.
        With several workers, a batch is of one partition."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while not self._buffer.ready:
            if self._ended.is_set():
                raise self._failure or Unavailable("the subscription was left")
            if self._more.is_set():
                self._more = trio.Event()
            await self._more.wait()
        taken = self._buffer.take(most)
        await trio.lowlevel.cancel_shielded_checkpoint()
        if self._wanted.auto_ack:
            self._feed.grant(len(taken))
        return taken

    def batches(self, most: int = 1000) -> AsyncIterator[list[Message]]:
        """The messages in batches: `async for batch in messages.batches():`."""
        return _Batches(self, most)

    async def each(self, handler: Handler, *, limit: int | None = None) -> None:
        """Hand each message to `handler`, with as many at once as the subscription has workers, until cancelled or
        after `limit` messages.

        A handler that returns acks its message, one that raises nacks it with the error, and the next one comes. One
        whose message's lease is lost is cancelled before it can ack: the message comes again. Raises QueenError when
        the subscription has ended.
        """
        if self._handlers is not None:
            raise RuntimeError("the messages have a handler already")
        self._handlers = Workers(self, handler, limit)
        try:
            await self._handlers.run(self.workers)
        finally:
            self._handlers = None

    def handled(self, message: Message) -> None:
        """Nobody works on it any more, however that ended: its partition may go on."""
        self._settled(message, "handled")

    async def ack(
        self, messages: Message | Sequence[Message], status: str | bool = "completed", *, error: str | None = None
    ) -> AckResult:
        """Settle one message, or several in one step."""
        many = [messages] if isinstance(messages, Message) else list(messages)
        if not many:
            return AckResult({"success": True, "results": []})
        answers = await self._acknowledge(many, status, error)
        if isinstance(messages, Message):
            return AckResult(answers[0])
        refused = [one for one in answers if not AckResult(one)]
        told = {"error": refused[0].get("error")} if refused else {}
        return AckResult({"success": not refused, "results": answers, **told})

    async def _settle(self, message: Message, status: str, error: str | None) -> AckResult:
        return AckResult((await self._acknowledge([message], status, error))[0])

    async def _acknowledge(
        self, messages: Sequence[Message], status: str | bool, error: str | None
    ) -> list[dict[str, Any]]:
        acks = [acknowledgment(message, status, error) for message in messages]
        word: str = acks[0]["status"]
        if self._wanted.auto_ack:
            return [self._committed(message, word) for message in messages]
        if word != "completed":
            # The verdict ends the lease of the partition: what lies here after it is delivered again.
            ending = {_lease(message) for message in messages}
            self._buffer.drop(lambda message: _lease(message) in ending)
        answers = one_each(await self._feed.acknowledge(acks, self._wanted.group), len(acks), "acknowledgments")
        for message, verdict in zip(messages, answers, strict=True):
            if verdict.get("leaseReleased"):
                self._live.pop(_lease(message), None)
            self._settled(message, word if verdict.get("success") else "refused")
        return answers

    def _committed(self, message: Message, word: str) -> dict[str, Any]:
        """The verdict on what was committed at its delivery: there is nothing to ask the broker."""
        self._settled(message, word)
        if word == "completed":
            return {"transactionId": message.transaction_id, "success": True, "error": None}
        told = "it was committed at its delivery (auto_ack)"
        return {"transactionId": message.transaction_id, "success": False, "error": told}

    def _settled(self, message: Message, word: str) -> None:
        """A message has its verdict, given here or elsewhere; what ends its lease lets the partition go on as well.
        While a handler works on it, the partition waits for the handler."""
        if not self._is_handled(message):
            self._buffer.settled(message, word == "completed")
            self._more.set()

    def _is_handled(self, message: Message) -> bool:
        return self._handlers is not None and self._handlers.works_on(message)


class _Batches:
    """No generator, which Python would have to end behind the user's back."""

    def __init__(self, subscription: Subscription, most: int) -> None:
        self._subscription = subscription
        self._most = most

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Message]:
        return await self._subscription.receive_batch(self._most)


def _any(_message: Message) -> bool:
    return True


def _lease(message: Message) -> Lease:
    return message.lease_id, message.partition_id

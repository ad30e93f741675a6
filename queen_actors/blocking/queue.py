"""A queue, its messages and its subscriptions, blocking."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial, update_wrapper
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import trio

from queen_actors import client
from queen_actors.client.durations import Duration
from queen_actors.client.message import Delivered

from .face import Face, gives, on_trio, waits, waits_for, within
from .portal import Portal

P = ParamSpec("P")
R = TypeVar("R")


class Message(Delivered):
    """One delivered message, which settles itself: the wire's object and its fields as attributes.

    An ack is a commit: it settles this message and every earlier one of its partition. The other verdicts end the
    lease of the partition, so what was delivered after this message comes again.
    """

    __slots__ = ("portal", "wrapped")

    def __init__(self, portal: Portal, wrapped: client.Message) -> None:
        super().__init__(wrapped)
        self.portal = portal
        self.wrapped = wrapped

    def note_settled(self, status: str) -> None:
        """It has this verdict from a transaction; told on the Trio thread."""
        self.wrapped.note_settled(status)

    ack = waits(client.Message.ack)
    nack = waits(client.Message.nack)
    retry = waits(client.Message.retry)
    dead_letter = waits(client.Message.dead_letter)
    renew = waits(client.Message.renew)


def message(portal: Portal, wrapped: client.Message) -> Message:
    """The blocking message of a Trio one."""
    return Message(portal, wrapped)


def messages(portal: Portal, wrapped: list[client.Message]) -> list[Message]:
    """The blocking messages of Trio ones."""
    return [Message(portal, one) for one in wrapped]


class Subscription(Face[client.Subscription]):
    """`with queue.subscribe(...) as messages: for message in messages: ...`

    Entering returns when the broker has the subscription. Iterating ends with the broker's error when the
    subscription cannot go on.
    """

    def __enter__(self) -> Self:
        self.portal.call(self.wrapped.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.portal.call(partial(self.wrapped.__aexit__, kind, error, trace))

    @property
    def waiting(self) -> int:
        """Messages that are here and not handed out yet."""
        return self.wrapped.waiting

    def lost_reason(self, message: Message) -> str | None:
        """Why the lease of a message was lost (expired, seek, deleted, maxLease, disconnected); None while it holds."""
        return self.portal.call_sync(partial(self.wrapped.lost_reason, message.wrapped))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Message:
        return self.receive()

    def receive(self, timeout: Duration | None = None) -> Message:
        """The next message. Raises TimeoutError when there is none in time, QueenError when the subscription has
        ended."""
        return message(self.portal, within(self.portal, timeout, self.wrapped.receive))

    def receive_batch(self, most: int, timeout: Duration | None = None) -> list[Message]:
        """What is here, at least one message and `most` at most; acknowledging the last of each partition is enough.
        Raises TimeoutError and QueenError."""
        return messages(self.portal, within(self.portal, timeout, partial(self.wrapped.receive_batch, most)))

    def batches(self, most: int = 1000) -> Iterator[list[Message]]:
        """The messages in batches: `for batch in messages.batches():`."""
        while True:
            yield self.receive_batch(most)

    @property
    def workers(self) -> int:
        """How many messages are handled at once."""
        return self.wrapped.workers

    def each(self, handler: Callable[[Message], object], *, limit: int | None = None) -> None:
        """Hand each message to `handler`, on as many threads at once as the subscription has workers, until
        interrupted or after `limit` messages.

        A handler that returns acks its message, one that raises nacks it with the error, and the next one comes. Raises
        QueenError when the subscription has ended.
        """
        handle = _on_threads(self.portal, handler, self.wrapped.workers)
        self.portal.call(partial(self.wrapped.each, handle, limit=limit))

    def ack(
        self, messages: Message | Sequence[Message], status: str | bool = "completed", *, error: str | None = None
    ) -> client.AckResult:
        """Settle one message, or several in one step."""
        unwrapped = messages.wrapped if isinstance(messages, Message) else [one.wrapped for one in messages]
        return self.portal.call(partial(self.wrapped.ack, unwrapped, status, error=error))


def _on_threads(
    portal: Portal, handler: Callable[[Message], object], threads: int
) -> Callable[[client.Message], Awaitable[object]]:
    """A blocking handler, which gets each message on a thread, as the Trio client takes it."""
    limiter = trio.CapacityLimiter(max(1, threads))

    async def handle(delivered: client.Message) -> None:
        await trio.to_thread.run_sync(handler, Message(portal, delivered), limiter=limiter)

    return handle


def _subscription(portal: Portal, wrapped: client.Subscription) -> Subscription:
    return Subscription(portal, wrapped)


class Tail(Face[client.Tail]):
    """`with queue.tail() as messages: for message in messages: ...`: every message as it comes, without a lease."""

    def __enter__(self) -> Self:
        self.portal.call(self.wrapped.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.portal.call(partial(self.wrapped.__aexit__, kind, error, trace))

    @property
    def positions(self) -> dict[str, int]:
        """The next offset of each partition, of what was handed out."""
        return self.portal.call_sync(lambda: dict(self.wrapped.positions))

    @property
    def waiting(self) -> int:
        """Messages that are here and not handed out yet."""
        return self.wrapped.waiting

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Delivered:
        return self.receive()

    def receive(self, timeout: Duration | None = None) -> Delivered:
        """The next message. Raises TimeoutError when there is none in time, QueenError when the tail has ended."""
        return within(self.portal, timeout, self.wrapped.receive)


def _tail(portal: Portal, wrapped: client.Tail) -> Tail:
    return Tail(portal, wrapped)


def _dead_letters(portal: Portal, wrapped: client.DeadLetters) -> DeadLetters:
    return DeadLetters(portal, wrapped)


class DeadLetters(Face[client.DeadLetters]):
    """`queue.dlq()`: `.get()` reads a page of dead letters, `.replay(id)` sends one again, `.purge()` removes them."""

    limit = gives(client.DeadLetters.limit, _dead_letters)
    offset = gives(client.DeadLetters.offset, _dead_letters)
    from_ = gives(client.DeadLetters.from_, _dead_letters)
    to = gives(client.DeadLetters.to, _dead_letters)
    get = waits(client.DeadLetters.get)
    replay = waits(client.DeadLetters.replay)
    purge = waits(client.DeadLetters.purge)


def _consumes(
    method: Callable[Concatenate[Any, Callable[[client.Message], Awaitable[object]], P], Awaitable[None]],
) -> Callable[Concatenate[Queue, Callable[[Message], object], P], None]:
    """`consume` with a blocking handler, which gets each message on a worker thread."""

    def consume(self: Queue, handler: Callable[[Message], object], /, *args: P.args, **kwargs: P.kwargs) -> None:
        workers = kwargs.get("workers", 1)
        handle = _on_threads(self.portal, handler, workers if isinstance(workers, int) else 1)
        self.portal.call(partial(method, self.wrapped, handle, *args, **kwargs))

    return update_wrapper(consume, method)


def queue(portal: Portal, wrapped: client.Queue) -> Queue:
    """The blocking queue of a Trio one."""
    return Queue(portal, wrapped)


class Queue(Face[client.Queue]):
    """`queen.queue(name)`: each method that chooses returns a new one, so a queue can be kept and shared."""

    @property
    def name(self) -> str:
        """Raises ValueError for a discovery without a queue name."""
        return self.wrapped.name

    partition = gives(client.Queue.partition, queue)
    namespace = gives(client.Queue.namespace, queue)
    task = gives(client.Queue.task, queue)
    group = gives(client.Queue.group, queue)
    config = gives(client.Queue.config, queue)
    batch = gives(client.Queue.batch, queue)
    partitions = gives(client.Queue.partitions, queue)
    wait = gives(client.Queue.wait, queue)
    timeout_millis = gives(client.Queue.timeout_millis, queue)
    auto_ack = gives(client.Queue.auto_ack, queue)
    lease_seconds = gives(client.Queue.lease_seconds, queue)
    subscription_mode = gives(client.Queue.subscription_mode, queue)
    subscription_from = gives(client.Queue.subscription_from, queue)
    conflation = gives(client.Queue.conflation, queue)

    create = waits(client.Queue.create)
    delete = waits(client.Queue.delete)
    push = waits(client.Queue.push)
    pop = waits_for(client.Queue.pop, messages)
    subscribe = on_trio(client.Queue.subscribe, _subscription)
    tail = on_trio(client.Queue.tail, _tail)
    dlq = gives(client.Queue.dlq, _dead_letters)

    consume = _consumes(client.Queue.consume)

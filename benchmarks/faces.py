"""What every face of the broker must offer a workload: a few operations, each durable when it returns."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from msgspec import Struct

LIFETIME_SECONDS = 3600
WAIT_SECONDS = 30
POLL_SECONDS = 0.01  # between tries for a lock that somebody else holds


class Message(Struct):
    """What is needed to settle a message."""

    txn: str
    pid: str
    lease: str


class Client(Protocol):
    """One caller."""

    async def push(self, queue: str, partitions: Sequence[str], payload: bytes) -> None:
        """One message to each of `partitions`, in one call."""
        ...

    async def take(self, queue: str) -> Message:
        """One message, under a lease, waiting for it."""
        ...

    async def put(self, key: str, value: bytes) -> None: ...

    async def get(self, key: str) -> None: ...

    async def cas(self, key: str, version: int, value: bytes) -> int:
        """Write if the key's version is this one (0: it is not there); the new version."""
        ...

    async def incr(self, key: str, ceiling: int | None) -> None: ...

    async def acquire(self, name: str) -> int:
        """The lock, waiting for it; its token."""
        ...

    async def release(self, name: str, token: int) -> None: ...

    async def step(self, message: Message, key: str, version: int, partition: str, payload: bytes) -> int:
        """Ack `message`, write `key` if its version is this one, push to queue `out`: all or nothing."""
        ...

    async def schedule(self, queue: str, delays: Sequence[tuple[str, int]], payload: bytes) -> dict[str, float]:
        """A timer for each (name, delay in ms); when each is due (seconds since the epoch) by its transaction id."""
        ...


class Consumer(Protocol):
    """One consumer of a queue, for a group or for the queue itself."""

    async def receive(self) -> Sequence[Message]:
        """Messages under a lease, as soon as there are any."""
        ...

    async def ack(self, messages: Sequence[Message]) -> int:
        """Settle them. How many messages, these or earlier ones, are known to be settled that were not told before."""
        ...


class Face(Protocol):
    """A running broker, and how to reach it."""

    def clients(self, count: int) -> AbstractAsyncContextManager[list[Client]]:
        """So many callers, each called by one task. Who is alone may block its thread: nothing else runs in it."""
        ...

    def producer(self) -> AbstractAsyncContextManager[Client]:
        """A caller beside whom others run."""
        ...

    def consumer(
        self, queue: str, group: str | None, *, batch: int, partitions: int
    ) -> AbstractAsyncContextManager[Consumer]: ...


def hold(truth: bool, seen: object = None) -> None:
    """A figure of work that was refused would be worth nothing."""
    if not truth:
        raise AssertionError(f"the broker refused a step of the workload: {seen}")

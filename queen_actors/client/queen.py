"""The client: one surface over every transport, in process or over HTTP and the WebSocket."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, overload

import trio

from queen_actors.errors import Unavailable

from .admin import Admin
from .durations import Duration
from .encoding import segment
from .ephemeral import Ephemeral
from .kv import Kv
from .lock import Held, Lock, OnLost
from .locks import Locks
from .message import Acknowledgeable, Delivered, Message, acknowledgment, group_of, status_word
from .queue import Choices, Queue
from .results import AckResult, RenewResult, Result
from .shapes import one_each
from .timers import TimerBuilder, Timers
from .transaction import Transaction
from .transport import Caller, Transport

LOCK_SECONDS = 30
LEAVE_SECONDS = 3.0  # how long leaving may take to release what is held; the permits end by themselves after


class Queen:
    """What `open_broker()` and `connect()` give. Every call may be made from any task of the same Trio run.

    `kv`, `locks`, `timers`, `ephemeral` and `admin` are the families of calls; `queue`, `lock`, `semaphore`, `timer`
    and `transaction` start something.
    """

    def __init__(self, transport: Transport, nursery: trio.Nursery) -> None:
        self.caller = Caller(transport)
        self.kv = Kv(self.caller, self.start)
        self.locks = Locks(self.caller)
        self.timers = Timers(self.caller)
        self.ephemeral = Ephemeral(self.caller)
        self.admin = Admin(self.caller)
        self._held = Held(self.start, transport)
        self._nursery = nursery
        self._closed = False
        transport.begin(self.start)

    # Queues and messages

    def queue(self, name: str | None = None) -> Queue:
        """A queue, to push to, pop from, subscribe to or configure. Without a name, for discovery by `namespace` and
        `task`."""
        return Queue(self, Choices(queue=name))

    async def ack(
        self,
        message: Acknowledgeable | Sequence[Acknowledgeable],
        status: str | bool = True,
        context: Mapping[str, Any] | None = None,
        *,
        group: str | None = None,
        error: str | None = None,
    ) -> AckResult:
        """Settle one delivered message, or several: True completed, False failed, or `retry`, `dlq`.

        The verdict is the truth of the answer (of several: all accepted, each in `results`). The group is the one
        that a message was delivered to, unless `group` names another. (`context` takes `{"group": ..., "error": ...}`,
        as the published SDK does.)
        """
        told = context or {}
        group, error = group or told.get("group"), error if error is not None else told.get("error")
        if isinstance(message, Mapping):
            return AckResult((await self._acknowledge([message], status, error, group))[0])
        answers = await self._acknowledge(list(message), status, error, group)
        refused = [one for one in answers if not AckResult(one)]
        first = {"error": refused[0].get("error")} if refused else {}
        return AckResult({"success": not refused, "results": answers, **first})

    async def _acknowledge(
        self, messages: Sequence[Acknowledgeable], status: str | bool, error: str | None, group: str | None
    ) -> list[dict[str, Any]]:
        verdicts: list[dict[str, Any]] = [{}] * len(messages)
        for to, indexes in group_of(messages, group):
            acks = [acknowledgment(messages[index], status, error) for index in indexes]
            for index, verdict in zip(indexes, await self.acknowledge(acks, to), strict=True):
                verdicts[index] = verdict
                message = messages[index]
                if isinstance(message, Delivered) and verdict.get("success"):
                    message.note_settled(status_word(status))
        return verdicts

    async def acknowledge(self, acks: Sequence[Mapping[str, Any]], group: str | None) -> list[dict[str, Any]]:
        """The wire's acknowledgments of one group, and the verdict on each, in order."""
        body = {"acknowledgments": acks, "consumerGroup": group}
        answer = await self.caller.call("POST", "/api/v1/ack/batch", body)
        return one_each(answer, len(acks), "acknowledgments")

    def message(self, fields: Mapping[str, Any]) -> Message:
        """A delivered message that settles itself through this client."""
        return Message(fields, self._settle, self.extend)

    async def _settle(self, message: Message, status: str, error: str | None) -> AckResult:
        return await self.ack(message, status, error=error)

    async def extend(self, message: Message, seconds: int) -> RenewResult:
        """As `Message.renew`: hold the lease of a message for at least so many seconds from now (messaging 9)."""
        return await self._renew_lease(message.lease_id, seconds)

    async def _renew_lease(self, lease_id: str, seconds: int) -> RenewResult:
        if not lease_id:
            raise ValueError("there is no lease to renew: the message was committed at its delivery")
        path = f"/api/v1/lease/{segment(lease_id)}/extend"
        return RenewResult(await self.caller.call("POST", path, {"seconds": seconds}) or {"success": False})

    @overload
    async def renew(self, message: str | Acknowledgeable, seconds: int = 60) -> RenewResult: ...
    @overload
    async def renew(self, message: list[Message] | list[str], seconds: int = 60) -> list[RenewResult]: ...
    async def renew(
        self, message: str | Acknowledgeable | list[Message] | list[str], seconds: int = 60
    ) -> RenewResult | list[RenewResult]:
        """Hold the lease of a message, or of a lease id, for at least that long from now; of several, one answer for
        each distinct lease. False: the lease is gone."""
        if isinstance(message, (str, Mapping)):
            return await self._renew_lease(_lease_id(message), seconds)
        leases = dict.fromkeys(_lease_id(one) for one in message)
        return [await self._renew_lease(lease, seconds) for lease in leases]

    async def trace(
        self,
        message: Acknowledgeable,
        data: object = None,
        *,
        event: str = "info",
        names: Iterable[str] = (),
    ) -> Result:
        """Note what happened to a message, findable by the message and by each of the names."""
        body = {
            "transactionId": message["transactionId"],
            "partitionId": message["partitionId"],
            "consumerGroup": message.get("consumerGroup"),
            "traceNames": list(names) or None,
            "eventType": event,
            "data": data,
        }
        return Result(await self.caller.call("POST", "/api/v1/traces", body, repeatable=False) or {})

    # Locks

    def lock(
        self,
        name: str,
        ttl_seconds: Duration = LOCK_SECONDS,
        owner: str | None = None,
        on_lost: OnLost | None = None,
        *,
        auto_renew: bool = True,
        clock: Callable[[], float] | None = None,
    ) -> Lock:
        """A handle of the lock; `acquire()` takes it, or `async with`. It renews itself every third of its lifetime."""
        return self.semaphore(name, 1, ttl_seconds, owner, on_lost, auto_renew=auto_renew, clock=clock)

    def semaphore(
        self,
        name: str,
        n: int,
        ttl_seconds: Duration = LOCK_SECONDS,
        owner: str | None = None,
        on_lost: OnLost | None = None,
        *,
        auto_renew: bool = True,
        clock: Callable[[], float] | None = None,
    ) -> Lock:
        """As `lock`, of which `n` handles can be held at once."""
        return Lock(
            self.locks,
            self._held,
            name,
            ttl_seconds=ttl_seconds,
            owner=owner,
            unique=self.caller.transport.new_id(),
            limit=n,
            on_lost=on_lost,
            auto_renew=auto_renew,
            clock=clock,
        )

    # Timers and transactions

    def timer(self, queue: str) -> TimerBuilder:
        """A timer step by step: `.key(k).payload(p).after(timedelta(hours=24)).schedule()`."""
        return self.timers.timer(queue)

    def transaction(self) -> Transaction:
        """Pushes, acks, keys and timers that happen together or not at all, at its `commit()`."""
        return Transaction(self.caller)

    # Groups

    async def delete_consumer_group(self, group: str, delete_metadata: bool = True) -> Result:
        """Forget where a group stands, on every queue."""
        return await self.admin.delete_consumer_group(group, delete_metadata=delete_metadata)

    async def update_consumer_group_timestamp(self, group: str, timestamp: str | datetime) -> Result:
        """Where the group starts on partitions that it has not seen yet."""
        return await self.admin.move_subscription(group, timestamp)

    async def seek(
        self,
        group: str,
        queue: str,
        *,
        to_end: bool = False,
        timestamp: str | datetime | None = None,
        partition: str | None = None,
    ) -> Result:
        """Move a group's cursors on a queue, or on one partition, to the end or to an instant."""
        return await self.admin.seek_consumer_group(
            group, queue, to_end=to_end, timestamp=timestamp, partition=partition
        )

    # Its own life

    def start(self, task: Callable[..., Awaitable[object]], *arguments: Any) -> None:
        """Run a background task of the client. Raises Unavailable when it is closed."""
        if self._closed:
            raise Unavailable("the client is closed")
        self._nursery.start_soon(task, *arguments)

    async def aclose(self) -> None:
        """Release what is held, within a bound, and start nothing new. The end of the block does it; safe to repeat."""
        self._closed = True
        with trio.CancelScope(shield=True), trio.move_on_after(LEAVE_SECONDS):
            await self._held.release_all()


def _lease_id(message: str | Acknowledgeable) -> str:
    return message if isinstance(message, str) else message.get("leaseId") or ""

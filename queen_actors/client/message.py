"""A delivered message, and settling it: ack, nack, retry, dead letter (messaging 7.3 and 8)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from queen_actors.values import QUEUE_MODE

from .results import AckResult, Field, RenewResult, Result

Settle = Callable[["Message", str, str | None], Awaitable[AckResult]]
Extend = Callable[["Message", int], Awaitable[RenewResult]]
Told = Callable[["Message", str], None]


class Delivered(Result):
    """What was delivered: the wire's object (`message["data"]`) and its fields as attributes (`message.data`)."""

    __slots__ = ()
    id = Field[str]("id", "")
    transaction_id = Field[str]("transactionId", "")
    data = Field[Any]("data", None)
    queue = Field[str | None]("queue", None)
    partition = Field[str]("partition", "")
    partition_id = Field[str]("partitionId", "")
    lease_id = Field[str]("leaseId", "")
    """Empty for a message that was committed at its delivery (`auto_ack`)."""
    consumer_group = Field[str]("consumerGroup", QUEUE_MODE)
    offset = Field[int]("offset", -1)
    created_at = Field[str]("createdAt", "")
    delivery_attempt = Field[int]("deliveryAttempt", 1)
    trace_id = Field[str | None]("traceId", None)
    producer_sub = Field[str | None]("producerSub", None)
    timer_key = Field[str | None]("timerKey", None)
    """The key of the timer that fired it, where the transport tells."""

    def __bool__(self) -> bool:
        return True

    def note_settled(self, status: str) -> None:
        """It has this verdict from elsewhere, as from a transaction: whoever waits for that goes on."""


class Message(Delivered):
    """One delivered message, which settles itself.

    An ack is a commit: it settles this message and every earlier one of its partition. The other verdicts end the
    lease of the partition, so what was delivered after this message comes again.
    """

    __slots__ = ("_extend", "_settle", "_told")

    def __init__(self, fields: Mapping[str, Any], settle: Settle, extend: Extend, told: Told | None = None) -> None:
        super().__init__(fields)
        self._settle = settle
        self._extend = extend
        self._told = told

    def note_settled(self, status: str) -> None:
        """As `Delivered.note_settled`."""
        if self._told is not None:
            self._told(self, status)

    async def ack(self) -> AckResult:
        """It is done, and so is every earlier message of its partition. False: the lease was lost, it comes again."""
        return await self._settle(self, "completed", None)

    async def nack(self, error: str | BaseException | None = None) -> AckResult:
        """It failed: it comes again until the queue's retry limit, then it is dead-lettered with this error."""
        return await self._settle(self, "failed", _text(error))

    async def retry(self) -> AckResult:
        """Give it back undone: it comes again, and its retry limit is not charged."""
        return await self._settle(self, "retry", None)

    async def dead_letter(self, error: str | BaseException | None = None) -> AckResult:
        """Move it to the dead letter queue of its group now."""
        return await self._settle(self, "dlq", _text(error))

    async def renew(self, seconds: int = 60) -> RenewResult:
        """Hold its lease for at least that many seconds from now; every message of the lease gains."""
        return await self._extend(self, seconds)


def _text(error: str | BaseException | None) -> str | None:
    if isinstance(error, BaseException):
        return f"{type(error).__name__}: {error}"
    return error


Acknowledgeable = Mapping[str, Any]
"""What can be acknowledged: a Message, or any mapping with its `transactionId` and `partitionId`."""

_WORDS = {True: "completed", False: "failed"}


def status_word(status: str | bool) -> str:
    """The wire's word of a verdict: True is completed, False is failed."""
    return _WORDS[status] if isinstance(status, bool) else status


def acknowledgment(message: Acknowledgeable, status: str | bool, error: str | None) -> dict[str, Any]:
    """The wire's acknowledgment of one message. Raises ValueError for what was not popped."""
    transaction_id = message.get("transactionId") or message.get("id")
    partition_id = message.get("partitionId")
    if not transaction_id or not partition_id:
        raise ValueError("only a delivered message can be acknowledged: it has a transactionId and a partitionId")
    ack: dict[str, Any] = {"transactionId": transaction_id, "partitionId": partition_id, "status": status_word(status)}
    if error is not None:
        ack["error"] = error
    if message.get("leaseId"):
        ack["leaseId"] = message["leaseId"]
    return ack


def group_of(messages: Iterable[Acknowledgeable], group: str | None) -> list[tuple[str | None, list[int]]]:
    """The indexes of the messages by the group whose cursor they move: `group`, else the one they were delivered to."""
    by_group: dict[str | None, list[int]] = {}
    for index, message in enumerate(messages):
        by_group.setdefault(group or message.get("consumerGroup") or None, []).append(index)
    return list(by_group.items())

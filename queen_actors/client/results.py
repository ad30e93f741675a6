"""What the broker found, as the wire spells it and as Python likes to read it.

A result is the wire's own object: `saved["applied"]`, `"reason" in saved` and `saved.get("value")` read it as it came.
The same fields are attributes in Python's spelling (`saved.applied`, `cart.expires_at`), None where the wire has
none. The truth of a result is its verdict, so `if await queen.kv.delete(...)` asks whether it was deleted.
"""

from __future__ import annotations

from base64 import b64decode
from typing import Any, Generic, TypeVar, overload

from .encoding import decode

T = TypeVar("T")


class Field(Generic[T]):
    """One field of the wire's object as an attribute; `default` where the object does not have it."""

    __slots__ = ("_default", "_key")

    def __init__(self, key: str, default: T) -> None:
        self._key = key
        self._default = default

    @overload
    def __get__(self, result: None, owner: type) -> Field[T]: ...
    @overload
    def __get__(self, result: dict[str, Any], owner: type) -> T: ...
    def __get__(self, result: dict[str, Any] | None, owner: type) -> T | Field[T]:
        if result is None:
            return self
        value: T = result.get(self._key, self._default)
        return value


class Result(dict[str, Any]):
    """The common ground of all results. Equal to a dict with the same fields."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({super().__repr__()})"


class KvResult(Result):
    """The answer to one key-value operation (wire 2.4): true when it was found, or applied, or (pages) was read."""

    __slots__ = ()
    op = Field[str]("op", "")
    key = Field[str | None]("key", None)
    found = Field[bool]("found", False)
    applied = Field[bool]("applied", False)
    reason = Field[str | None]("reason", None)
    """Why a write did not apply: exists, absent, version, limit or type."""
    value = Field[Any]("value", None)
    """What was read or written; for a refused write the value that is there now."""
    version = Field[int]("version", 0)
    """The version that goes with `value`; 0 for a key that is not there, so that `expect=found.version` holds while
    nobody else writes, whether the key was found or not."""
    expires_at = Field[str | None]("expiresAt", None)
    updated_at = Field[str | None]("updatedAt", None)
    missing = Field[list[str]]("missing", [])
    truncated = Field[bool]("truncated", False)
    next_after = Field[str | None]("nextAfter", None)

    @property
    def rows(self) -> list[KvResult]:
        """The rows of a `get_many` or a page, in byte order of their keys."""
        return [KvResult(row) for row in self.get("rows", ())]

    def __bool__(self) -> bool:
        return bool(self.get("applied", self.get("found", self.get("ok", True))))


class LockResult(Result):
    """The answer to one lock operation (wire 3.4): true when acquired, renewed, released, or (`get`) held."""

    __slots__ = ()
    op = Field[str]("op", "")
    name = Field[str]("name", "")
    acquired = Field[bool]("acquired", False)
    renewed = Field[bool]("renewed", False)
    released = Field[bool]("released", False)
    held = Field[bool]("held", False)
    already = Field[bool]("already", False)
    """This owner held the permit before the call, and its lifetime was not extended."""
    reason = Field[str | None]("reason", None)
    slot = Field[int | None]("slot", None)
    token = Field[int | None]("token", None)
    owner = Field[str | None]("owner", None)
    guard = Field[dict[str, Any] | None]("guard", None)
    holders = Field[list[dict[str, Any]]]("holders", [])

    def __bool__(self) -> bool:
        return any(self.get(verdict) is True for verdict in ("acquired", "renewed", "released", "held"))


class TimerResult(Result):
    """The answer to one timer operation (wire 4.4, 4.6): true when scheduled, moved, cancelled, or (`peek`) found."""

    __slots__ = ()
    status = Field[str | None]("status", None)
    """scheduled, rescheduled, cancelled, or absent: no longer pending, perhaps delivered already."""
    found = Field[bool]("found", False)
    queue = Field[str]("queue", "")
    timer_key = Field[str]("timerKey", "")
    partition = Field[str | None]("partition", None)
    txn = Field[str | None]("txn", None)
    message_id = Field[str | None]("messageId", None)
    deliver_at = Field[str | None]("deliverAt", None)
    attempts = Field[int]("attempts", 0)
    last_error = Field[str | None]("lastError", None)
    truncated = Field[bool]("truncated", False)
    next_after = Field[str | None]("nextAfter", None)

    @property
    def data(self) -> Any:
        """The payload that will be delivered; None where the answer has none. `["payload"]` is the wire's base64."""
        return decode(b64decode(self["payload"])) if self.get("payload") else None

    @property
    def rows(self) -> list[TimerResult]:
        """The pending timers of a page, in byte order of their keys."""
        return [TimerResult(row) for row in self.get("rows", ())]

    def __bool__(self) -> bool:
        return bool(self.get("ok", self.get("found", True)))


STORED = frozenset({"queued", "duplicate", "buffered"})
"""The words of a pushed item that is, or will be, in its partition (messaging 6.2)."""


class PushResult(Result):
    """What became of one pushed item (messaging 6.2): true unless it was refused; a duplicate is stored, so true."""

    __slots__ = ()
    status = Field[str]("status", "")
    """queued, or duplicate: it was there already, and `message_id` and `offset` are the original's."""
    message_id = Field[str]("message_id", "")
    transaction_id = Field[str]("transaction_id", "")
    queue = Field[str]("queueName", "")
    offset = Field[int | None]("offset", None)
    error = Field[str | None]("error", None)

    @property
    def duplicate(self) -> bool:
        """Whether it was in the partition already, within the dedup window (messaging 6.2)."""
        return self.get("status") == "duplicate"

    def __bool__(self) -> bool:
        return self.get("status") in STORED


class AckResult(Result):
    """The verdict on one acknowledgment (messaging 8), or on a list of them with one each in `results`."""

    __slots__ = ()
    success = Field[bool]("success", False)
    error = Field[str | None]("error", None)
    transaction_id = Field[str | None]("transactionId", None)
    lease_released = Field[bool]("leaseReleased", False)
    dlq = Field[bool]("dlq", False)
    """The message is in the dead letter queue now."""
    noop = Field[bool]("noop", False)

    @property
    def results(self) -> list[AckResult]:
        """The verdict on each message, in order, when several were acknowledged."""
        return [AckResult(one) for one in self.get("results", ())]

    def __bool__(self) -> bool:
        return self.get("success") is True and not self.get("error")


class RenewResult(Result):
    """What became of one lease that was asked to be extended (messaging 9); false: it is gone."""

    __slots__ = ()
    success = Field[bool]("success", False)
    lease_id = Field[str]("leaseId", "")
    renewed = Field[int]("renewed", 0)
    expires_at = Field[str | None]("newExpiresAt", None)

    def __bool__(self) -> bool:
        return self.get("success") is True


class TransactionResult(Result):
    """A committed transaction, or one that a lost `required` operation rolled back: then it is false, `reason` is
    kv_precondition, and `kv_reason`, `version` and `value` tell what is there now (wire 5.3, 5.4)."""

    __slots__ = ()
    success = Field[bool]("success", False)
    transaction_id = Field[str]("transactionId", "")
    reason = Field[str | None]("reason", None)
    error = Field[str | None]("error", None)
    failed_index = Field[int | None]("failedIndex", None)
    """Which operation lost: pushed items, then acks, in the order of the calls; then guards; then KV operations."""
    kv_reason = Field[str | None]("kvReason", None)
    version = Field[int | None]("version", None)
    value = Field[Any]("value", None)

    @property
    def results(self) -> list[Result]:
        """One element per pushed item and ack, then per KV operation (guards first), then per timer."""
        return [Result(one) for one in self.get("results", ())]

    @property
    def kv(self) -> list[KvResult]:
        """The elements of the KV operations, guards first."""
        return [KvResult(one) for one in self.get("results", ()) if one.get("type") == "kv"]

    @property
    def timers(self) -> list[TimerResult]:
        """The elements of the timer operations."""
        return [TimerResult(one) for one in self.get("results", ()) if one.get("type") == "timer"]

    def __bool__(self) -> bool:
        return self.get("success") is True

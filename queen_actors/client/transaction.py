"""A transaction: pushes, acks, keys and timers that happen together or not at all (wire section 5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Concatenate, ParamSpec, Protocol

from . import kv_ops
from .durations import Duration
from .encoding import decode
from .errors import TransactionError, from_answer
from .items import as_list, push_items
from .kv_ops import KvOp, spoken_as
from .lock import Lock
from .message import Acknowledgeable, Delivered, acknowledgment, status_word
from .results import TransactionResult
from .shapes import as_object
from .timers import TimerOp, TimerParts, cancel_op
from .transport import Answer, Caller

P = ParamSpec("P")

PATH = "/api/v1/transaction"
GUARD_ATTEMPTS = 4  # wire 5.10: how often a commit follows its lock's own renewal


class Transaction:
    """`queen.transaction()`: name what belongs together, then `commit()`.

    Nothing is sent before the commit, which may be repeated after an error: pushes and timers keep their ids.
    """

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._new_id = caller.transport.new_id
        self._operations: list[dict[str, Any]] = []
        self._leases: dict[str, None] = {}
        self._settles: list[tuple[Delivered, str]] = []
        self._guards: list[Lock] = []
        self._kv: list[KvOp] = []
        self._timers: list[TimerOp] = []

    def guard(self, lock: Lock) -> Transaction:
        """Commit only while the permit is this handle's; its token is read when the commit is sent."""
        if lock not in self._guards:
            self._guards.append(lock)
        return self

    def queue(self, name: str) -> TransactionQueue:
        """The queue to push into: `.queue("reports").push([...])`, or `.partition(p)` in between."""
        return TransactionQueue(self, name)

    def ack(
        self,
        messages: Acknowledgeable | Sequence[Acknowledgeable],
        status: str | bool = "completed",
        context: Mapping[str, Any] | None = None,
        *,
        group: str | None = None,
        error: str | None = None,
    ) -> Transaction:
        """Settle delivered messages with the rest: completed, failed, retry or dlq. A lost lease rolls all back.

        The group is the one that a message was delivered to, unless `group` names another. (`context` takes
        `{"consumer_group": ..., "error": ...}`, as the published SDK does.)
        """
        told = context or {}
        group = group or told.get("consumer_group") or told.get("group")
        error = error if error is not None else told.get("error")
        many: Sequence[Acknowledgeable] = [messages] if isinstance(messages, Mapping) else messages
        for message in many:
            operation = {"type": "ack", **acknowledgment(message, status, error)}
            to = group or message.get("consumerGroup")
            if to:
                operation["consumerGroup"] = to
            if isinstance(message, Delivered):
                self._settles.append((message, status_word(status)))
            if "leaseId" in operation:
                self._leases[operation["leaseId"]] = None
            self._operations.append(operation)
        return self

    @property
    def kv(self) -> TransactionKv:
        """Key-value operations that commit with the rest; each returns the transaction."""
        return TransactionKv(self)

    def once(
        self,
        ns: str,
        key: str,
        value: Any = True,
        *,
        ttl: Duration | None = None,
        ttl_seconds: int | None = None,
        until: datetime | None = None,
        forever: bool = False,
    ) -> Transaction:
        """Commit only the first time: the key must not exist, and is written with the rest."""
        return self.kv.put_if_absent(
            ns, key, value, ttl=ttl, ttl_seconds=ttl_seconds, until=until, forever=forever, required=True
        )

    def timer(self, queue: str) -> TransactionTimer:
        """A timer that exists exactly if this commits: `.timer(q).key(k).payload(p).after("24h").schedule()`."""
        return TransactionTimer(self, queue)

    async def commit(self) -> TransactionResult:
        """Send it. True: all of it happened. False: a lost `required` operation (a guard, a `once`) rolled it back.

        Raises LockNotHeldError before anything is sent when a guard's handle holds nothing, TransactionError for any
        other rollback, QueenError when the broker could not be asked.
        """
        if not (self._operations or self._guards or self._kv or self._timers):
            raise ValueError("a transaction needs something to commit")
        attempts = 1
        while True:
            tokens = [lock.token for lock in self._guards]
            result = await self._send()
            if result:
                for message, word in self._settles:
                    message.note_settled(word)
            refused = self._refused_guard(result)
            if refused is None:
                return result
            lock = self._guards[refused]
            if not _moved_by_itself(result, lock):
                lock.refused()
                return result
            if attempts == GUARD_ATTEMPTS:
                return result
            attempts += 1
            await lock.settled(tokens[refused])

    async def _send(self) -> TransactionResult:
        body: dict[str, Any] = {"operations": self._operations, "requiredLeases": list(self._leases)}
        kv = [*(lock.guard() for lock in self._guards), *self._kv]
        if kv:
            body["kv"] = kv
        if self._timers:
            body["timers"] = self._timers
        return _result(await self._caller.send("POST", PATH, body, repeatable=False))

    def _refused_guard(self, result: TransactionResult) -> int | None:
        """Which guard lost, if one did; `failedIndex` counts pushed items and acks first (wire 5.4)."""
        failed = result.failed_index
        if result or failed is None:
            return None
        index = failed - sum(len(one["items"]) if one["type"] == "push" else 1 for one in self._operations)
        return index if 0 <= index < len(self._guards) else None

    # What the parts below add

    def add_push(self, queue: str, partition: str | None, items: Any) -> Transaction:
        """Items for a queue, as `queue(...).push` takes them."""
        self._operations.append(
            {"type": "push", "items": push_items(as_list(items), queue, partition, self._new_id)},
        )
        return self

    def add_kv(self, op: KvOp) -> Transaction:
        """An operation made by `queen.kv.op`."""
        self._kv.append(op)
        return self

    def add_timer(self, op: TimerOp) -> Transaction:
        """A timer operation as the wire has it."""
        self._timers.append(op)
        return self

    def new_id(self) -> str:
        """A text that no other message or timer has."""
        return self._new_id()


def _moved_by_itself(result: TransactionResult, lock: Lock) -> bool:
    """Whether the permit is still this handle's, and only its token has moved (wire 5.10)."""
    value = result.value
    return result.kv_reason == "version" and isinstance(value, dict) and as_object(value).get("owner") == lock.owner


def _result(answer: Answer) -> TransactionResult:
    """The verdict that an answer tells. Raises TransactionError, or the error of another envelope."""
    try:
        told = decode(answer.body) if answer.body else None
    except ValueError:
        told = None
    if not isinstance(told, dict) or "success" not in told:
        raise from_answer(answer.status, answer.headers, answer.body)
    result = TransactionResult(as_object(told))
    if not result and result.reason != "kv_precondition":
        raise TransactionError(
            result.error or f"the transaction rolled back: {result.reason}",
            reason=result.reason,
            status=answer.status if answer.status >= 400 else TransactionError.status,
            answer=result,
        )
    return result


class TransactionQueue:
    """Where a transaction pushes to."""

    def __init__(self, transaction: Transaction, name: str) -> None:
        self._transaction = transaction
        self._name = name
        self._partition: str | None = None

    def partition(self, name: str) -> TransactionQueue:
        """Push to this partition, instead of `Default`."""
        self._partition = name
        return self

    def push(self, items: Any) -> Transaction:
        """Push one item or a list of them with the rest. A `transactionId` that the partition has seen within its
        dedup window rolls everything back (`reason` duplicate)."""
        return self._transaction.add_push(self._name, self._partition, items)


class _Adding(Protocol):
    def add(self, op: KvOp) -> Transaction: ...


def _adds(op: Callable[P, KvOp]) -> Callable[Concatenate[_Adding, P], Transaction]:
    def call(self: _Adding, /, *args: P.args, **kwargs: P.kwargs) -> Transaction:
        return self.add(op(*args, **kwargs))

    return spoken_as(op, call, "Transaction")


class TransactionKv:
    """The operations of `queen.kv` inside a transaction, but for `get_prefix`. Their answers are in `result.kv`.

    A lost condition rolls back only with `required=True`.
    """

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    def add(self, op: KvOp) -> Transaction:
        """An operation made by `queen.kv.op`."""
        return self._transaction.add_kv(op)

    get = _adds(kv_ops.get)
    get_many = _adds(kv_ops.get_many)
    put = _adds(kv_ops.put)
    put_if_absent = _adds(kv_ops.put_if_absent)
    delete = _adds(kv_ops.delete)
    incr = _adds(kv_ops.incr)

    def check(self, ns: str, key: str, *, expect: int, required: bool = True) -> Transaction:
        """Commit only while the key is at that version (0: does not exist)."""
        return self._transaction.add_kv(kv_ops.check(ns, key, expect=expect, required=required))

    def once(
        self,
        ns: str,
        key: str,
        value: Any = True,
        *,
        ttl: Duration | None = None,
        ttl_seconds: int | None = None,
        until: datetime | None = None,
        forever: bool = False,
    ) -> Transaction:
        """Commit only the first time: `transaction().once(...)`."""
        return self._transaction.once(ns, key, value, ttl=ttl, ttl_seconds=ttl_seconds, until=until, forever=forever)


class TransactionTimer(TimerParts):
    """A timer that commits with the rest; `schedule`, `reschedule` and `cancel` return the transaction."""

    def __init__(self, transaction: Transaction, queue: str) -> None:
        super().__init__(queue, transaction.new_id)
        self._transaction = transaction

    def schedule(self) -> Transaction:
        """The timer exists exactly if the transaction commits. Raises ValueError when a part is missing."""
        return self._transaction.add_timer(self.scheduled(again=False))

    def reschedule(self) -> Transaction:
        """As `schedule`: the word says that a timer is there already."""
        return self._transaction.add_timer(self.scheduled(again=True))

    def cancel(self) -> Transaction:
        """The timer is gone exactly if the transaction commits."""
        return self._transaction.add_timer(cancel_op(self._queue, self.named(), self._txn))

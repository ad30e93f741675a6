"""A transaction, blocking: what belongs together is noted here, and sent by `commit()`."""

from __future__ import annotations

from collections.abc import Callable
from functools import update_wrapper
from typing import Any, Concatenate, ParamSpec, Self

from queen_actors import client
from queen_actors.client.transaction import TransactionKv as _Kv
from queen_actors.client.transaction import TransactionQueue as _Queue
from queen_actors.client.transaction import TransactionTimer as _Timer

from .face import chains, waits
from .lock import Lock
from .portal import Portal

P = ParamSpec("P")


class Transaction:
    """`queen.transaction()`: name what belongs together, then `commit()`.

    Nothing is sent before the commit, which may be repeated after an error: pushes and timers keep their ids. Not to
    be shared between threads.
    """

    def __init__(self, portal: Portal, wrapped: client.Transaction) -> None:
        self.portal = portal
        self.wrapped = wrapped

    def guard(self, lock: Lock) -> Self:
        """Commit only while the permit is this handle's; its token is read when the commit is sent."""
        self.wrapped.guard(lock.wrapped)
        return self

    ack = chains(client.Transaction.ack)
    once = chains(client.Transaction.once)

    def queue(self, name: str) -> TransactionQueue:
        """The queue to push into: `.queue("reports").push([...])`, or `.partition(p)` in between."""
        return TransactionQueue(self, self.wrapped.queue(name))

    @property
    def kv(self) -> TransactionKv:
        """Key-value operations that commit with the rest; each returns the transaction."""
        return TransactionKv(self, self.wrapped.kv)

    def timer(self, queue: str) -> TransactionTimer:
        """A timer that exists exactly if this commits: `.timer(q).key(k).payload(p).after("24h").schedule()`."""
        return TransactionTimer(self, self.wrapped.timer(queue))

    commit = waits(client.Transaction.commit)


class _Part:
    """A part of a transaction; what completes it gives the transaction back."""

    def __init__(self, transaction: Transaction, wrapped: Any) -> None:
        self.transaction = transaction
        self.portal = transaction.portal
        self.wrapped = wrapped


def _completes(
    method: Callable[Concatenate[Any, P], client.Transaction],
) -> Callable[Concatenate[_Part, P], Transaction]:
    def call(self: _Part, /, *args: P.args, **kwargs: P.kwargs) -> Transaction:
        self.portal.call_sync(lambda: method(self.wrapped, *args, **kwargs))  # it may take ids of the client
        return self.transaction

    return update_wrapper(call, method)


class TransactionQueue(_Part):
    """Where a transaction pushes to."""

    partition = chains(_Queue.partition)
    push = _completes(_Queue.push)


class TransactionKv(_Part):
    """The operations of `queen.kv` inside a transaction, but for `get_prefix`. Their answers are in `result.kv`.

    A lost condition rolls back only with `required=True`.
    """

    get = _completes(_Kv.get)
    get_many = _completes(_Kv.get_many)
    put = _completes(_Kv.put)
    put_if_absent = _completes(_Kv.put_if_absent)
    delete = _completes(_Kv.delete)
    incr = _completes(_Kv.incr)
    check = _completes(_Kv.check)
    once = _completes(_Kv.once)


class TransactionTimer(_Part):
    """A timer that commits with the rest; `schedule`, `reschedule` and `cancel` return the transaction."""

    key = chains(_Timer.key)
    payload = chains(_Timer.payload)
    after = chains(_Timer.after)
    after_ms = chains(_Timer.after_ms)
    partition = chains(_Timer.partition)
    txn = chains(_Timer.txn)
    schedule = _completes(_Timer.schedule)
    reschedule = _completes(_Timer.reschedule)
    cancel = _completes(_Timer.cancel)


def transaction(portal: Portal, wrapped: client.Transaction) -> Transaction:
    """The blocking transaction of a Trio one."""
    return Transaction(portal, wrapped)

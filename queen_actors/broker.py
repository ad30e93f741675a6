"""The broker: open and close, and the typed operations on which every face stands.

Every operation is safe to cancel, raises only `errors.QueenError`, and returns when what it reports is durable.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, get_args

import trio
from msgspec import Struct
from msgspec.structs import replace

from .actors.acks import Acks
from .actors.arrivals import Arrivals
from .actors.clock import RandomIds, TrioClock
from .actors.coordinator import Coordinator
from .actors.core import Core, Draft
from .actors.counts import COUNTED, Counts
from .actors.ephemeral import Ephemeral
from .actors.groups import Groups
from .actors.kv import Keys
from .actors.letters import Letters
from .actors.locks import Locks
from .actors.log import LogStatistics
from .actors.overview import Overview
from .actors.partition import Producers
from .actors.permits import Permit, Permits
from .actors.pops import Pops
from .actors.reads import Reads
from .actors.retention import Retention
from .actors.streams import Streams
from .actors.tail import Tail, Tails
from .actors.timers import Timers
from .actors.upkeep import Upkeep
from .actors.views import Views
from .actors.watch import Watch, Watches
from .config import Settings
from .domain import cursor as cursor_rules
from .domain.cursor import Ack, AckOutcome, LeaseEnd, LeaseExtended, PopReply, PopRequest
from .domain.effects import (
    Appended,
    CursorDropped,
    CursorPut,
    Effect,
    GroupDropped,
    GroupPut,
    KvDropped,
    KvPut,
    PartitionPut,
    QueueDropped,
    QueuePut,
    TimerDropped,
    TimerPut,
)
from .domain.kv import KvOp, KvResult, Precondition
from .domain.locks import Acquire, LockOp, LockResult
from .domain.partition import PushItem, PushOutcome
from .domain.queue import Configure, DeadLetterView, GroupDeleted, MessageView, QueueView, Replayed, configured
from .domain.subscription import TailTerms
from .domain.timers import TimerOp, TimerPage, TimerResult
from .domain.transaction import Transaction, TransactionReply
from .domain.watch import WatchTerms
from .errors import QueenError, StorageFailed
from .ports import Clock, Ids, Recovered, Store, StoreStatistics

_Observer = Callable[[Any], None]


def _by_kind(
    *observers: tuple[_Observer, tuple[type[Effect], ...]],
) -> dict[type[Effect], tuple[_Observer, ...]]:
    """Who is told of each kind of effect, in this order. A push of a hundred messages has a hundred effects, and each
    observer cares for some kinds only: it is told of no other."""
    kinds: tuple[type[Effect], ...] = get_args(Effect)
    return {kind: tuple(observe for observe, wanted in observers if kind in wanted) for kind in kinds}


class BrokerStatistics(Struct, frozen=True):
    """How much there is of everything, and how the log and the store are doing."""

    queues: int
    partitions: int
    partitions_active: int
    namespaces: int
    locks: int
    timer_queues: int
    leases: int
    log: LogStatistics
    store: StoreStatistics


class Broker:
    """The typed operations. Made by `running`."""

    def __init__(self, store: Store, settings: Settings, clock: Clock, ids: Ids) -> None:
        self.settings = settings
        self.clock = clock
        self.ids = ids
        core = self._core = Core(store, clock, ids, settings)
        self.counts = Counts()
        self._producers = Producers(core)
        self._acks = Acks(core, self._producers)
        self._pops = Pops(core, self._producers, self._acks)
        self._groups = Groups(core, self._producers, self._acks)
        self._keys = Keys(core)
        self._locks = Locks(core)
        self._timers = Timers(core, self._producers)
        self._coordinator = Coordinator(core, self._producers, self._acks, self._keys, self._timers)
        self._views = Views(core, self._producers)
        self._letters = Letters(core, self._producers)
        self.streams = Streams(core, self._producers)
        self.ephemeral = Ephemeral(clock, ids)
        self.overview = Overview(core, self._producers)
        self.arrivals = Arrivals(core)
        self.reads = Reads(core, self._producers, self.arrivals)
        self._tails = Tails(core, self._producers)
        self._watches = Watches(core)
        self._upkeep = Upkeep(core)
        self._retention = Retention(core, self._producers)
        self._observers = _by_kind(
            (self._acks.observe, (CursorPut, CursorDropped, QueueDropped)),
            (self._pops.ready.appended, (Appended,)),
            (self._pops.ready.moved, (CursorPut,)),
            (self._pops.ready.observe, (CursorDropped, GroupPut, GroupDropped, QueueDropped, QueuePut)),
            (self._keys.observe, (KvPut, KvDropped)),
            (self._locks.observe, (KvPut, KvDropped)),
            (self._timers.observe, (TimerPut, TimerDropped)),
            (self._upkeep.observe, (Appended, CursorPut, CursorDropped, PartitionPut)),
            (self._retention.observe, (Appended, QueuePut, QueueDropped)),
            (self.arrivals.observe, (Appended,)),
            (self._tails.observe, (Appended, PartitionPut, QueueDropped)),
            (self._watches.observe, (KvPut, KvDropped)),
            (self.counts.observe, COUNTED),
        )

    # -- messages --------------------------------------------------------------------------------------------------

    async def push(self, items: Sequence[PushItem], *, producer: str | None = None) -> list[PushOutcome]:
        """Append messages, in order within each partition; one outcome per item (wire-messaging 6)."""
        if producer is not None:
            items = [_produced(item, producer) for item in items]
        outcomes = await self._producers.push(items)
        self.counts.pushed(outcomes)
        return outcomes

    async def pop(self, request: PopRequest) -> PopReply:
        """Claim messages for a group, waiting for some as long as asked (7). A cancelled caller holds no lease."""
        reply = await self._pops.pop(request)
        self.counts.popped(reply)
        return reply

    async def pops(self, request: PopRequest, messages: int) -> list[PopReply]:
        """As many pops of `request.batch` messages as find something at once, `messages` in all at the most, and in
        one group commit; waits for the first only. A cancelled caller holds no lease."""
        replies = await self._pops.pops(request, messages)
        for reply in replies:
            self.counts.popped(reply)
        return replies

    async def ack(self, acks: Sequence[Ack]) -> Sequence[AckOutcome]:
        """Settle messages; one outcome per ack, in order (8)."""
        outcomes = await self._acks.ack(acks)
        self.counts.acked(acks, outcomes)
        return outcomes

    async def extend(self, lease_id: str, seconds: int) -> LeaseExtended:
        """Every live lease under this id lasts at least `seconds` from now (9)."""
        return await self._acks.extend(lease_id, seconds)

    async def release(self, lease_id: str) -> int:
        """Give back what is leased under this id; no retry is charged. Returns how many partitions that were."""
        return await self._acks.release(lease_id)

    def withdraw(self, lease_id: str) -> None:
        """A pop's reply could not be told to anybody: its messages are free again, as if never claimed."""
        self._acks.withdraw(lease_id)

    def open_session(self, ended: Callable[[LeaseEnd], None]) -> str:
        """A connection begins; `ended` is told, synchronously, of each of its messages that is no longer its own."""
        return self._acks.open_session(ended)

    async def close_session(self, session: str) -> None:
        """The connection is gone: every lease of it is given back at once."""
        self._acks.close_session(session)
        await self._core.log.durable()

    def tail(self, terms: TailTerms) -> Tail:
        """A reader without a lease or a cursor (websocket.md 4); nothing happens before it is opened."""
        return self._tails.tail(terms)

    # -- keys, locks, timers, transactions -------------------------------------------------------------------------

    async def kv(self, ops: Sequence[KvOp]) -> list[KvResult] | Precondition:
        """One atomic call on keys (wire-kv 2)."""
        return await self._keys.call(ops)

    def watch(self, terms: WatchTerms) -> Watch:
        """A watch over keys (websocket.md 5); nothing happens before it is opened."""
        return self._watches.watch(terms)

    async def locks(self, ops: Sequence[LockOp]) -> list[LockResult]:
        """Independent calls on locks and semaphores (wire-kv 3)."""
        return await self._locks.call(ops)

    async def acquire(self, op: Acquire, wait: int, *, session: bool = False) -> LockResult:
        """An acquire that waits in line for up to `wait` microseconds (websocket.md 6). A cancelled caller holds
        nothing. With `session` the permit lives with the caller's `permits`."""
        return await self._locks.acquire(op, wait, session=session)

    def permits(self, lost: Callable[[Permit, str], None]) -> Permits:
        """What one connection holds. `lost(permit, reason)` is told, synchronously, of each permit that it loses;
        permits are its own that a task acquires in whose context `actors.permits.holding` is set to it."""
        return self._locks.permits(lost)

    async def timers(self, ops: Sequence[TimerOp], *, producer: str | None = None) -> list[TimerResult]:
        """Schedule, move and cancel timers, all or nothing (wire-kv 4)."""
        return await self._timers.call(ops, producer)

    async def timer(self, queue: str, key: str) -> TimerPut | None:
        """The pending timer of that key, or None."""
        found = await self._timers.get(queue, key)
        return found and replace(found, payload=self._core.cipher.open(found.payload))

    async def timer_page(self, queue: str, after: str | None, limit: int) -> TimerPage:
        """Pending timers of a queue in byte order of their keys."""
        return await self._timers.page(queue, after, limit)

    async def timer_count(self, queue: str, prefix: str) -> int:
        """How many pending timers of a queue have keys with this prefix."""
        return await self._timers.count(queue, prefix)

    async def transaction(self, transaction: Transaction) -> TransactionReply:
        """Acks, pushes, keys and timers in one step, or none of it (wire-kv 5). `RolledBack` is an answer."""
        reply = await self._coordinator.commit(transaction)
        self.counts.decided(reply)
        return reply

    # -- queues and groups -----------------------------------------------------------------------------------------

    async def configure(self, command: Configure) -> QueueView:
        """Create a queue or change its options (wire-messaging 5)."""
        core = self._core
        await core.turn()
        draft = Draft(core)
        known = core.directory.queues.get(command.queue)
        if known is None:
            draft.qid += 1
        if command.options.get("encryption_enabled"):
            core.cipher.require()
        put = configured(command, None if known is None else known.put, draft.qid, core.ids.uuid(draft.now), draft.now)
        draft.effects.append(put)
        core.commit(draft)
        await core.log.durable()
        return QueueView(put.qid, put.uid, put.name, put.namespace, put.task, put.options, put.created_at)

    async def delete_queue(self, name: str) -> bool:
        """The queue is gone with everything in it; was there one? (12)"""
        core = self._core
        await core.turn()
        draft = Draft(core)
        known = core.directory.queues.get(name)
        if known is not None:
            draft.effects.append(QueueDropped(known.put.qid, name))
        core.commit(draft)
        await core.log.durable()
        return known is not None

    async def queue_view(self, name: str) -> QueueView | None:
        """The queue with the counts of its partitions (13)."""
        return await self._views.queue(name)

    async def register(
        self, queue: str, group: str, mode: str | None, start: str | None, conflation: bool = False
    ) -> None:
        """A group's first contact with a queue (7.6): the start of a `new` group is the instant of this call."""
        await self._groups.register(queue, group, mode, start, conflation)

    async def seek(self, group: str, queue: str, partition: str | None, to: int | None) -> int | None:
        """Move a group to an instant or to the end; how many partitions moved, or None when there are none (10)."""
        return await self._groups.seek(group, queue, partition, to)

    async def delete_group(self, group: str, queue: str | None, *, metadata: bool) -> GroupDeleted:
        """Forget a group in one queue or in all (10)."""
        return await self._groups.delete(group, queue, metadata=metadata)

    async def move_subscription(self, group: str, to: int) -> int:
        """Where the group's later first contacts start; how many registrations changed (10)."""
        return await self._groups.move_subscription(group, to)

    async def dead_letters(
        self,
        *,
        queue: str | None = None,
        group: str | None = None,
        partition: str | None = None,
        since: int | None = None,
        until: int | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> tuple[list[DeadLetterView], int]:
        """One page of dead letters, newest first, and how many match in all (11)."""
        return await self._views.dead_letters(
            queue=queue, group=group, partition=partition, since=since, until=until, limit=limit, offset=offset
        )

    async def purge_dead_letters(self, queue: str, group: str | None) -> int:
        """Drop the dead letters of a queue, or of one group in it; how many (11)."""
        return await self._letters.purge(queue, group)

    async def remove_dead_letters(self, pid: int, txn: str) -> int:
        """Drop the dead letters of one message; how many (14)."""
        return await self._letters.remove(pid, txn)

    async def replay(self, letter_id: str, queue: str | None, partition: str | None) -> Replayed | None:
        """Push a dead letter again, to its own place or another, and drop it, in one step; None: it is gone (11)."""
        return await self._letters.replay(letter_id, queue, partition)

    async def retry(self, pid: int, txn: str, queue: str | None, partition: str | None) -> Replayed | None:
        """`replay` of the newest dead letter of a message (14)."""
        return await self._letters.retry(pid, txn, queue, partition)

    async def message(self, pid: int, txn: str) -> MessageView | None:
        """One message and how far each group is with it (14)."""
        return await self._views.message(pid, txn)

    async def trace(
        self,
        *,
        pid: int | None,
        txn: str,
        group: str,
        names: tuple[str, ...],
        event: str,
        data: bytes,
        worker: str | None,
    ) -> str | None:
        """Write a trace event; its id, or None when there is no such partition (15)."""
        return await self._views.trace(
            pid=pid, txn=txn, group=group, names=names, event=event, data=data, worker=worker
        )

    # -- replies that leave later ----------------------------------------------------------------------------------

    @property
    def reloads(self) -> int:
        """How often the state was read again from the log: what was deferred before is void."""
        return self._core.log.reloads

    def settled(self, position: int, reloads: int) -> bool:
        """Is it durable what was decided in a task with a `deferral` (`actors/log.py`): its position, and `reloads` at
        that time? Raises StorageFull when it was refused, StorageFailed when its fate is not known."""
        return self._core.log.settled(position, reloads)

    @property
    def awaited(self) -> bool:
        """Does anybody wait until something is durable?"""
        return self._core.log.awaited

    def look(self, look: Callable[[], bool]) -> None:
        """Call `look`, which must not raise, each time that more is `settled`, for as long as it returns True."""
        self._core.log.look(look)

    def unlook(self, look: Callable[[], bool]) -> None:
        self._core.log.unlook(look)

    def reached(self, reloads: int) -> int:
        """The position up to which the log is durable, of those that were given out after so many reloads."""
        return self._core.log.reached(reloads)

    # -- life ------------------------------------------------------------------------------------------------------

    def statistics(self) -> BrokerStatistics:
        directory = self._core.directory
        return BrokerStatistics(
            queues=len(directory.queues),
            partitions=len(directory.active) + len(directory.packed),
            partitions_active=len(directory.active),
            namespaces=len(directory.namespaces),
            locks=len(directory.locks),
            timer_queues=len(directory.timers),
            leases=len(directory.leases),
            log=self._core.log.statistics(),
            store=self._core.store.statistics(),
        )

    async def seal(self) -> None:
        """Roll the journal and seal all of it now, so that SQL over the log is up to the second."""
        await self._core.store.seal()

    async def passivate(self) -> int:
        """Pack away every actor that is idle now, without waiting for its time; returns how many."""
        return self._upkeep.passivate(everything=True)

    async def open(self) -> Recovered:
        """Recover from the store. Raises DataDirectoryError."""
        core = self._core
        core.directory.opened_at = self.clock.now()
        recovered = await core.store.open(core.directory)
        self._recovered(recovered)
        self._release_sessions()
        return recovered

    def _recovered(self, recovered: Recovered) -> None:
        core = self._core
        counters = core.directory.counters
        core.directory.counters = type(counters)(
            max(counters.version, recovered.counters.version),
            max(counters.pid, recovered.counters.pid),
            max(counters.qid, recovered.counters.qid),
        )
        self.clock.advance_to(max(recovered.last_instant, core.directory.last_instant))
        core.log.restart(recovered.position)
        core.directory.observers = self._observers
        self._acks.reset()
        self._pops.ready.reset()
        self._keys.reset()
        self._locks.reset()
        self._timers.reset()
        self._upkeep.reset()
        self._retention.reset()
        self.arrivals.wake_all()
        self._tails.reset()
        self._watches.reset()

    async def run(self) -> None:
        """Write the log, and do the background work, until `close`. Whatever it raises is fatal: the broker stops, and
        the next start recovers from the log. After a refusal by a full disk all of it starts over."""
        core = self._core
        while True:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(core.store.maintain, self._upkeep.evict)
                for work in (
                    *(self._pops.ready, self._keys, self._locks, self._timers),
                    *(self._upkeep, self._retention, self.ephemeral),
                ):
                    nursery.start_soon(work.run)
                if core.log.full:
                    await core.log.probe()
                    self._acks.settle_debts()
                    self._pops.look_again()
                await core.log.run()
                nursery.cancel_scope.cancel()
            if core.log.closing or not core.log.full:
                return
            await self._reload()

    def _release_sessions(self) -> None:
        """Leases that lived with connections of the broker before this one are given back (decisions.md)."""
        lost = self._core.directory.forget_sessions()
        draft = Draft(self._core)
        draft.add(cursor_rules.released(cursor) for cursor in lost)
        self._core.commit(draft)

    async def _reload(self) -> None:
        """The disk refused a group that is applied in memory: read the state again from what is durable."""
        core = self._core
        core.directory.observers = {}
        await core.store.close()
        core.directory.clear()
        core.directory.opened_at = self.clock.now()
        self._recovered(await core.store.open(core.directory))

    def drain(self) -> None:
        """The broker is about to stop: parked pops answer now, and nothing new is parked."""
        self._pops.close()
        self._locks.close()
        self.ephemeral.close()

    async def close(self) -> None:
        """Commit what is pending; nothing is taken in after that. The store is let go of when `run` has ended."""
        self.drain()
        with suppress(QueenError):  # the callers have been told; what was committed stays
            await self._core.log.close()


def _produced(item: PushItem, producer: str) -> PushItem:
    return replace(item, producer=producer)


@asynccontextmanager
async def running(
    store: Store, settings: Settings | None = None, *, clock: Clock | None = None, ids: Ids | None = None
) -> AsyncGenerator[Broker]:
    """A broker on `store` for as long as the block lasts.

    The block's own exception comes out bare. A failure of the broker (its storage) cancels the block and is raised
    instead. Leaving, also by cancellation, commits what is pending, within `settings.shutdown_seconds`.
    """
    settings = settings or Settings()
    broker = Broker(store, settings, clock or TrioClock(), ids or RandomIds())
    mine: Exception | None = None
    failure: Exception | None = None

    works = trio.CancelScope(shield=True)  # whoever is cancelled may have something to give back: the log goes on

    async def work(scope: trio.CancelScope) -> None:
        nonlocal failure
        try:
            with works:
                await broker.run()
        except Exception as error:  # whatever it is, the broker is over, and this is why
            failure = error
            scope.cancel()

    try:
        await broker.open()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work, nursery.cancel_scope)
            try:
                yield broker
            except Exception as error:
                mine = error
            finally:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + settings.shutdown_seconds):
                    await broker.close()
                works.cancel()
                nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        if failure is None:
            raise _only(group) from None
    finally:
        with trio.CancelScope(shield=True):
            await store.close()
    if failure is not None:
        raise _only(failure)
    if mine is not None:
        raise mine


def _only(error: BaseException) -> BaseException:
    """What a nursery's group is about: the one exception inside, or, when a failed store was met in several places,
    its first failure; else the group."""
    inside = [_only(one) for one in getattr(error, "exceptions", ())]
    if len(inside) == 1 or (inside and all(isinstance(one, StorageFailed) for one in inside)):
        return inside[0]
    return error

"""Bugs to be planted: each is what somebody might really get wrong, made by replacing a piece of the running broker.

The broker has no hooks for them. A bug is planted in a process of its own, and stays there for as long as it lives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

import trio
from msgspec import Struct
from msgspec.structs import replace

from queen_actors import broker as broker_module
from queen_actors.actors import coordinator, groups, kv, locks, pops, timers
from queen_actors.actors.acks import Acks
from queen_actors.actors.clock import TrioClock
from queen_actors.actors.core import Core, Draft
from queen_actors.actors.directory import Directory
from queen_actors.actors.log import Log
from queen_actors.domain import cursor as cursor_rules
from queen_actors.domain import effects as fx
from queen_actors.domain import kv as kv_rules
from queen_actors.domain import locks as lock_rules
from queen_actors.domain.cursor import Ack
from queen_actors.domain.partition import PartitionState
from queen_actors.domain.transaction import Committed, RolledBack, fenced
from queen_actors.errors import QueenError
from queen_actors.values import SECOND

# Every one of these reaches into what is private, of classes that it knows to the last line
# pyright: reportPrivateUsage=false


class Bug(Struct, frozen=True):
    """`plant` puts it in; `breaks`: the invariants that it is known to break."""

    plant: Callable[[], None]
    what: str
    breaks: str

    @property
    def name(self) -> str:
        return self.plant.__name__


BUGS: list[Bug] = []


def bug(what: str, breaks: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def note(plant: Callable[[], None]) -> Callable[[], None]:
        BUGS.append(Bug(plant, what, breaks))
        return plant

    return note


def _put(owner: Any, name: str, piece: Any) -> None:
    """Replace a piece of a class or a module, which must be there: a bug that replaces nothing proves nothing."""
    assert hasattr(owner, name), f"{owner} has no {name}"
    setattr(owner, name, piece)


def _of(owner: Any, name: str) -> Any:
    """A piece of a module that is another one's."""
    return getattr(owner, name)


# -- the log -----------------------------------------------------------------------------------------------------------


@bug("an answer leaves before it is durable", "I1 I11 I13")
def answer_before_durable() -> None:
    async def durable(self: Log, position: int | None = None) -> None:
        await trio.lowlevel.checkpoint()

    _put(Log, "durable", durable)


@bug("a read shows what is not durable yet", "I7 I13")
def read_before_durable() -> None:
    call = kv.Keys.call

    async def hasty(self: kv.Keys, ops: Sequence[kv_rules.KvOp]) -> Any:
        if not all(isinstance(op, kv_rules.Get) for op in ops):
            return await call(self, ops)
        await self._core.turn()
        await trio.lowlevel.checkpoint()
        return self.decide(Draft(self._core), ops)

    _put(kv.Keys, "call", hasty)


@bug("messages are delivered before their push is durable", "I2 I13")
def delivery_before_durable() -> None:
    async def deliver(self: pops.Pops, reply: cursor_rules.PopReply) -> cursor_rules.PopReply:
        await trio.lowlevel.checkpoint()
        return reply

    _put(pops.Pops, "_deliver", deliver)


@bug("state is changed before the log has taken the step, and stays so when the log refuses", "I1 I11 I15")
def apply_before_prepare() -> None:
    def commit(self: Core, draft: Draft, *, urgent: bool = False) -> None:
        if not draft.effects:
            return
        entry = fx.Entry(draft.now, fx.Counters(draft.version, draft.pid, draft.qid), tuple(draft.effects))
        self.directory.commit(entry)
        self.log.admit(urgent=urgent)
        self.log.append(entry)

    _put(Core, "commit", commit)


@bug("after a refusal by a full disk the state is not read again", "I1 I2 I15")
def refused_group_stays() -> None:
    async def reload(self: broker_module.Broker) -> None:
        self._core.log.restart(self._core.log.committed)

    _put(broker_module.Broker, "_reload", reload)


@bug("the version counter is not kept over a restart", "I6 I8")
def counter_not_persisted() -> None:
    recovered = broker_module.Broker._recovered

    def forgetful(self: broker_module.Broker, found: Any) -> None:
        recovered(self, found)
        counters = self._core.directory.counters
        self._core.directory.counters = fx.Counters(0, counters.pid, counters.qid)

    _put(broker_module.Broker, "_recovered", forgetful)


# -- time --------------------------------------------------------------------------------------------------------------


@bug("leases, lifetimes and timers go by the wall clock", "I3 I9 I10")
def wall_clock() -> None:
    import time

    def now(self: TrioClock) -> int:
        self._last = max(time.time_ns() // 1000, self._last + 1)
        return self._last

    async def sleep_until(self: TrioClock, at: int) -> None:
        left = at - self.now()
        if left > 0:
            await trio.sleep(left / SECOND)
            await self.sleep_until(at)

    _put(TrioClock, "now", now)
    _put(TrioClock, "sleep_until", sleep_until)


@bug("a key's lifetime is looked at when the answer leaves, not when it was read", "I7 I9")
def expiry_at_reply() -> None:
    call = kv.Keys.call

    async def late(self: kv.Keys, ops: Sequence[kv_rules.KvOp]) -> Any:
        results = await call(self, ops)
        if not isinstance(results, list):
            return results
        now = self._core.clock.now()

        def over(result: Any) -> bool:
            row = result.row if isinstance(result, kv_rules.GetResult) else None
            return row is not None and row.expires_at is not None and row.expires_at <= now

        asked = [op.key if isinstance(op, kv_rules.Get) else "" for op in ops]
        return [
            kv_rules.GetResult(key, None) if over(result) else result
            for key, result in zip(asked, results, strict=True)
        ]

    _put(kv.Keys, "call", late)


# -- messages ----------------------------------------------------------------------------------------------------------


@bug("transaction ids are forgotten at a restart", "I12")
def dedup_forgotten() -> None:
    recovered = broker_module.Broker._recovered
    known = PartitionState.known

    def forgetful(self: broker_module.Broker, found: Any) -> None:
        recovered(self, found)
        for pid in [*self._core.directory.active, *self._core.directory.packed]:
            state = self._core.directory.peek(pid)
            forgotten[pid] = 0 if state is None else state.next_offset

    def young(self: PartitionState, txn: str) -> Any:
        found = known(self, txn)
        return None if found is None or found.offset < forgotten.get(self.pid, 0) else found

    forgotten: dict[int, int] = {}
    _put(broker_module.Broker, "_recovered", forgetful)
    _put(PartitionState, "known", young)


@bug("a transaction that is rolled back leaves its transaction ids behind", "I12")
def dedup_on_rollback() -> None:
    decide = coordinator.Coordinator._decide
    known = PartitionState.known
    remembered: dict[tuple[int, str], fx.Recent] = {}

    def leaky(self: Any, draft: Draft, transaction: Any, acks: Any, loaded: Any) -> Any:
        reply = decide(self, draft, transaction, acks, loaded)
        if isinstance(reply, RolledBack):
            for effect in draft.effects:
                for record in effect.records if isinstance(effect, fx.Appended) else ():
                    entry = fx.Recent(effect.pid, record.offset, record.ts, record.txn, record.id)  # type: ignore[union-attr]
                    remembered[(entry.pid, entry.txn)] = entry
        return reply

    def also(self: PartitionState, txn: str) -> Any:
        return known(self, txn) or remembered.get((self.pid, txn))

    _put(coordinator.Coordinator, "_decide", leaky)
    _put(PartitionState, "known", also)
    _known_always()


def _known_always() -> None:
    """`push` asks `known` only for ids that its index has; here it asks for every one."""
    push = PartitionState.push

    def asking(self: PartitionState, items: Any, now: int, dedup_window: int, new_id: Any) -> Any:
        outcomes, records = push(self, items, now, dedup_window, new_id)
        changed = [self.known(record.txn) for record in records]
        if not any(changed):
            return outcomes, records
        ids = {record.txn: found for record, found in zip(records, changed, strict=True) if found is not None}
        told = [
            replace(o, status="duplicate", offset=ids[o.txn].offset, message_id=ids[o.txn].id) if o.txn in ids else o
            for o in outcomes
        ]
        fresh = [record for record in records if record.txn not in ids]
        first = self.next_offset
        return told, tuple(replace(record, offset=first + place) for place, record in enumerate(fresh))

    _put(PartitionState, "push", asking)


@bug("an ack counts up to its message, also past the end of its lease", "I1 I3")
def ack_past_the_lease() -> None:
    def within(offset: int | None, committed: int, end: int | None) -> bool:
        return offset is not None and offset > committed

    _put(cursor_rules, "_within", within)


@bug("an ack under a lease that has run out still counts", "I3")
def dead_lease_settles() -> None:
    acknowledge = cursor_rules.acknowledge

    def lenient(cursor: Any, entries: Any, lease_id: str, now: int, options: Any, *, repeats: bool = True) -> Any:
        now = min(now, cursor.lease_expires - 1) if cursor.lease_id == lease_id else now
        return acknowledge(cursor, entries, lease_id, now, options, repeats=repeats)

    _put(cursor_rules, "acknowledge", lenient)


@bug("a pop whose caller has gone keeps its lease", "I4")
def cancelled_pop_keeps_its_lease() -> None:
    def withdraw(self: Acks, lease_id: str) -> None:
        return

    _put(Acks, "withdraw", withdraw)


@bug("a lease that has run out is only noticed with the next push", "I4")
def expired_lease_unnoticed() -> None:
    from queen_actors.actors.ready import Ready

    def promote(self: Ready, queue: Any, index: Any, now: int) -> None:
        return

    _put(Ready, "promote", promote)
    claimable_at = _of(pops, "claimable_at")

    def blind(partition: Any, cursor: Any, options: Any, now: int) -> int | None:
        return None if cursor.lease_id else claimable_at(partition, cursor, options, now)

    _put(pops, "claimable_at", blind)


@bug("a partition that is packed away forgets cursors that hold no lease", "I2 I3 I14")
def passivation_drops_cursors() -> None:
    pack = PartitionState.pack

    def lossy(self: PartitionState) -> bytes:
        kept = {group: cursor for group, cursor in self.cursors.items() if cursor.lease_id}
        self.cursors, before = kept, self.cursors
        try:
            return pack(self)
        finally:
            self.cursors = before

    _put(PartitionState, "pack", lossy)


@bug("a seek lands behind the message that it looked for", "I1 I2")
def seek_loses() -> None:
    offset_at = _of(groups, "offset_at")

    def behind(partition: PartitionState, ts: int) -> int | None:
        at = offset_at(partition, ts)
        return at if at is None else min(at + 1, partition.next_offset)

    _put(groups, "offset_at", behind)


# -- keys and locks ----------------------------------------------------------------------------------------------------


@bug("versions of a key start again after it was deleted", "I8")
def version_restarts() -> None:
    put, delete = kv_rules._POINT_RULES[kv_rules.Put], kv_rules._POINT_RULES[kv_rules.Delete]
    deleted: set[tuple[str, str]] = set()

    def lossy_put(op: kv_rules.Put, row: Any, now: int, version: int) -> Any:
        again = row is None and (op.ns, op.key) in deleted
        return put(op, row, now, 1 if again else version)

    def noted_delete(op: kv_rules.Delete, row: Any, now: int, version: int) -> Any:
        deleted.add((op.ns, op.key))
        return delete(op, row, now, version)

    kv_rules._POINT_RULES[kv_rules.Put] = lossy_put
    kv_rules._POINT_RULES[kv_rules.Delete] = noted_delete


@bug("a call on several keys is taken apart, and others come between", "I7")
def batch_not_atomic() -> None:
    call = kv.Keys.call

    async def apart(self: kv.Keys, ops: Sequence[kv_rules.KvOp]) -> Any:
        if len(ops) == 1:
            return await call(self, ops)
        results: list[Any] = []
        for op in ops:
            found = await call(self, [op])
            if not isinstance(found, list):
                return found
            results += found
        return results

    _put(kv.Keys, "call", apart)


@bug("a counter's bound is looked at before a wait, and not again", "I9")
def bound_checked_early() -> None:
    call = kv.Keys.call

    async def early(self: kv.Keys, ops: Sequence[kv_rules.KvOp]) -> Any:
        if not isinstance(ops[0], kv_rules.Incr):
            return await call(self, ops)
        looked = self.decide(Draft(self._core), ops)
        await trio.lowlevel.checkpoint()
        if isinstance(looked, list) and all(isinstance(r, kv_rules.WriteResult) and r.applied for r in looked):
            ops = [replace(op, max=None) if isinstance(op, kv_rules.Incr) else op for op in ops]
        return await call(self, ops)

    _put(kv.Keys, "call", early)


@bug("a renewal keeps the token that it renews", "I6")
def renewal_keeps_the_token() -> None:
    renew = lock_rules._RULES[lock_rules.Renew]

    def same(op: Any, state: Any, now: int, version: int, choose: Any) -> Any:
        return renew(op, state, now, op.token, choose)

    lock_rules._RULES[lock_rules.Renew] = same


@bug("a lock is granted to a second owner while it is held", "I6")
def two_holders() -> None:
    acquire = locks.Locks.acquire

    async def impatient(self: locks.Locks, op: lock_rules.Acquire, wait: int, *, session: bool = False) -> Any:
        state = self._core.directory.lock(op.name)
        result = await acquire(self, op, 0, session=session)
        if not result.ok and wait:
            state.slots.clear()
            result = await acquire(self, op, wait, session=session)
        return result

    _put(locks.Locks, "acquire", impatient)


# -- transactions and timers -------------------------------------------------------------------------------------------


@bug("a transaction's conditions are looked at, then it waits, then it commits", "I5 I11")
def guard_then_wait() -> None:
    commit = coordinator.Coordinator.commit

    async def careless(self: coordinator.Coordinator, transaction: Any) -> Any:
        checks = [op for op in transaction.kv if isinstance(op, kv_rules.Check)]
        if not checks:
            return await commit(self, transaction)
        lost = self._keys.decide(Draft(self._core), checks)
        if isinstance(lost, kv_rules.Precondition):
            return await commit(self, transaction)
        await trio.sleep(self._core.ids.choose(100) / 1000)  # a read of what lies in a segment
        rest = tuple(op for op in transaction.kv if not isinstance(op, kv_rules.Check))
        reply = await commit(self, replace(transaction, kv=rest))
        if isinstance(reply, Committed):
            reply = replace(reply, kv=(*lost, *reply.kv))
        return reply

    _put(coordinator.Coordinator, "commit", careless)


@bug("a transaction is written in two steps", "I11")
def half_a_transaction() -> None:
    async def halved(self: coordinator.Coordinator, transaction: Any) -> Any:
        transaction = fenced(transaction)
        acks = [step for step in transaction.steps if isinstance(step, Ack)]
        async with self._core.turns.hold(self._participants(transaction, acks)):
            await self._core.log.reloaded()
            loaded = await self._acks.load(acks)
            draft = Draft(self._core)
            reply = self._decide(draft, transaction, acks, loaded)
            if isinstance(reply, Committed):
                later = Draft(self._core)
                middle = max(len(draft.effects) - 1, 1)
                later.version, later.pid, later.qid = draft.version, draft.pid, draft.qid
                later.effects, draft.effects = draft.effects[middle:], draft.effects[:middle]
                self._core.commit(draft)
                await self._core.log.durable()
                later.version = max(later.version, self._core.directory.counters.version)
                self._core.commit(later)
        await self._core.log.durable()
        return reply

    _put(coordinator.Coordinator, "commit", halved)


@bug("a timer is removed, and then its message is pushed", "I10")
def timer_removed_first() -> None:
    async def run(self: timers.Timers) -> None:
        while True:
            due = await self._agenda.due(10)
            pending = [self._core.directory.queue_timers(queue).get(key) for queue, key in due]
            firing = [timer for timer in pending if timer is not None and timer.due <= self._core.clock.now()]
            with suppress(QueenError):
                await _in_two_steps(self, firing)

    _put(timers.Timers, "run", run)


async def _in_two_steps(self: timers.Timers, firing: Iterable[fx.TimerPut]) -> None:
    await self._core.turn()
    removed = Draft(self._core)
    removed.add(fx.TimerDropped(timer.queue, timer.key, True) for timer in firing)
    self._core.commit(removed)
    await self._core.log.durable()
    await self._producers.push([timers._message(timer) for timer in firing])


@bug("a timer fires half a second before its time", "I10")
def timer_early() -> None:
    early = SECOND // 2

    def observe(self: timers.Timers, effect: fx.Effect) -> None:
        if isinstance(effect, fx.TimerPut):
            self._agenda.add(effect.due - early, (effect.queue, effect.key))
        elif isinstance(effect, fx.TimerDropped):
            self._agenda.discard((effect.queue, effect.key))

    def fire(self: timers.Timers, due: Sequence[tuple[str, str]]) -> None:
        draft = Draft(self._core)
        for queue, key in due:
            timer = self._core.directory.queue_timers(queue).get(key)
            if timer is not None:
                self._producers.decide(draft, [timers._message(timer)])
                draft.effects.append(fx.TimerDropped(queue, key, True))
                break
        for item in due[1:]:
            self._agenda.add(0, item)
        self._core.commit(draft)

    _put(timers.Timers, "observe", observe)
    _put(timers.Timers, "_fire", fire)


@bug("a timer that is cancelled stays on the list of what fires", "I10")
def cancelled_timer_fires() -> None:
    decide = timers.Timers.decide

    def forgetful(self: timers.Timers, draft: Draft, ops: Any, producer: str | None) -> Any:
        results = decide(self, draft, ops, producer)
        draft.effects[:] = [e for e in draft.effects if not isinstance(e, fx.TimerDropped)]
        return results

    _put(timers.Timers, "decide", forgetful)


@bug("recovery leaves out the newest step of the log", "I1 I14")
def recovery_skips_the_last_entry() -> None:
    entry = Directory.entry
    waiting: list[fx.Entry] = []

    def late(self: Directory, found: fx.Entry) -> None:
        if waiting:
            entry(self, waiting.pop())
        waiting.append(found)

    recovered = broker_module.Broker._recovered

    def forget(self: broker_module.Broker, found: Any) -> None:
        waiting.clear()
        recovered(self, found)

    _put(Directory, "entry", late)
    _put(broker_module.Broker, "_recovered", forget)

"""Planted bugs of keys, locks, transactions, timers and recovery: see `planted`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import trio
from msgspec.structs import replace

from queen_actors import broker as broker_module
from queen_actors.actors import coordinator, kv, locks, timers
from queen_actors.actors.core import Draft
from queen_actors.actors.directory import Directory
from queen_actors.domain import effects as fx
from queen_actors.domain import kv as kv_rules
from queen_actors.domain import locks as lock_rules
from queen_actors.domain.cursor import Ack
from queen_actors.domain.transaction import Committed, fenced
from queen_actors.errors import QueenError
from queen_actors.values import SECOND

from .planted_feeds import BUGS
from .planting import bug, put

__all__ = ["BUGS"]

# Every one of these reaches into what is private, of classes that it knows to the last line
# pyright: reportPrivateUsage=false


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

    put(kv.Keys, "call", apart)


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

    put(kv.Keys, "call", early)


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

    put(locks.Locks, "acquire", impatient)


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

    put(coordinator.Coordinator, "commit", careless)


@bug("a transaction is written in two steps", "I11")
def half_a_transaction() -> None:
    async def halved(self: coordinator.Coordinator, transaction: Any) -> Any:
        transaction = fenced(transaction)
        acks = [step for step in transaction.steps if isinstance(step, Ack)]
        async with self._core.turns.hold(self._participants(transaction, acks)):
            await self._core.log.reloaded()
            loaded = await self._acks.load(acks)
            draft = Draft(self._core)
            reply = self._decide(draft, transaction, self._acks.decide(draft, acks, loaded, repeats=False))
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

    put(coordinator.Coordinator, "commit", halved)


@bug("a timer is removed, and then its message is pushed", "I10")
def timer_removed_first() -> None:
    async def run(self: timers.Timers) -> None:
        while True:
            due = await self._agenda.due(10)
            pending = [self._core.directory.queue_timers(queue).get(key) for queue, key in due]
            firing = [timer for timer in pending if timer is not None and timer.due <= self._core.clock.now()]
            with suppress(QueenError):
                await _in_two_steps(self, firing)

    put(timers.Timers, "run", run)


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

    put(timers.Timers, "observe", observe)
    put(timers.Timers, "_fire", fire)


@bug("a timer that is cancelled stays on the list of what fires", "I10")
def cancelled_timer_fires() -> None:
    decide = timers.Timers.decide

    def forgetful(self: timers.Timers, draft: Draft, ops: Any, producer: str | None) -> Any:
        results = decide(self, draft, ops, producer)
        draft.effects[:] = [e for e in draft.effects if not isinstance(e, fx.TimerDropped)]
        return results

    put(timers.Timers, "decide", forgetful)


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

    put(Directory, "entry", late)
    put(broker_module.Broker, "_recovered", forget)

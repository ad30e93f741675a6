"""Bugs to be planted: each is what somebody might really get wrong, made by replacing a piece of the running broker.

A bug is planted in a process of its own, and stays there for as long as it lives. Here are those of the log, of time
and of messages; `planted_state`,
`planted_feeds` and `planted_queues` have the others, and `BUGS` has all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import trio
from msgspec.structs import replace

from queen_actors import broker as broker_module
from queen_actors.actors import coordinator, groups, kv, pops
from queen_actors.actors.acks import Acks
from queen_actors.actors.clock import TrioClock
from queen_actors.actors.core import Core, Draft
from queen_actors.actors.log import Log
from queen_actors.domain import cursor as cursor_rules
from queen_actors.domain import effects as fx
from queen_actors.domain import kv as kv_rules
from queen_actors.domain.partition import PartitionState
from queen_actors.domain.transaction import RolledBack
from queen_actors.values import SECOND

from .planted_state import BUGS
from .planting import bug, of_module, put

__all__ = ["BUGS"]

# Every one of these reaches into what is private, of classes that it knows to the last line
# pyright: reportPrivateUsage=false


# -- the log -----------------------------------------------------------------------------------------------------------


@bug("an answer leaves before it is durable", "I1 I11 I13")
def answer_before_durable() -> None:
    async def durable(self: Log, position: int | None = None, reloads: int | None = None) -> None:
        await trio.lowlevel.checkpoint()

    put(Log, "durable", durable)


@bug("a read shows what is not durable yet", "I7 I13")
def read_before_durable() -> None:
    call = kv.Keys.call

    async def hasty(self: kv.Keys, ops: Sequence[kv_rules.KvOp]) -> Any:
        if not all(isinstance(op, kv_rules.Get) for op in ops):
            return await call(self, ops)
        await self._core.turn()
        await trio.lowlevel.checkpoint()
        return self.decide(Draft(self._core), ops)

    put(kv.Keys, "call", hasty)


@bug("messages are delivered before their push is durable", "I2 I13")
def delivery_before_durable() -> None:
    async def durable(self: pops.Pops, replies: Sequence[cursor_rules.PopReply]) -> None:
        await trio.lowlevel.checkpoint()

    put(pops.Pops, "_durable", durable)


@bug("state is changed before the log has taken the step, and stays so when the log refuses", "I1 I11 I14 I15")
def apply_before_prepare() -> None:
    def commit(self: Core, draft: Draft, *, urgent: bool = False) -> None:
        if not draft.effects:
            return
        entry = fx.Entry(draft.now, fx.Counters(draft.version, draft.pid, draft.qid), tuple(draft.effects))
        self.directory.commit(entry)
        self.log.admit(urgent=urgent)
        self.log.append(entry)

    put(Core, "commit", commit)


@bug("after a refusal by a full disk the state is not read again", "I1 I2 I7 I14 I15")
def refused_group_stays() -> None:
    async def reload(self: broker_module.Broker) -> None:
        self._core.log.restart(self._core.log.committed)

    put(broker_module.Broker, "_reload", reload)


@bug("the version counter is not kept over a restart", "I6 I8")
def counter_not_persisted() -> None:
    recovered = broker_module.Broker._recovered

    def forgetful(self: broker_module.Broker, found: Any) -> None:
        recovered(self, found)
        counters = self._core.directory.counters
        self._core.directory.counters = fx.Counters(0, counters.pid, counters.qid)

    put(broker_module.Broker, "_recovered", forgetful)


# -- time --------------------------------------------------------------------------------------------------------------


@bug("leases, lifetimes and timers go by the wall clock", "I1 I3 I9 I10")
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

    put(TrioClock, "now", now)
    put(TrioClock, "sleep_until", sleep_until)


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

    put(kv.Keys, "call", late)


# -- messages ----------------------------------------------------------------------------------------------------------


@bug("transaction ids are forgotten at a restart", "I2 I12")
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
    put(broker_module.Broker, "_recovered", forgetful)
    put(PartitionState, "known", young)


@bug("a transaction that is rolled back leaves its transaction ids behind", "I11 I12")
def dedup_on_rollback() -> None:
    decide = coordinator.Coordinator._decide
    known = PartitionState.known
    remembered: dict[tuple[int, str], fx.Recent] = {}

    def leaky(self: Any, draft: Draft, transaction: Any, acked: Any) -> Any:
        reply = decide(self, draft, transaction, acked)
        if isinstance(reply, RolledBack):
            for effect in [effect for effect in draft.effects if isinstance(effect, fx.Appended)]:
                for record in effect.records:
                    entry = fx.Recent(effect.pid, record.offset, record.ts, record.txn, record.id)
                    remembered[(entry.pid, entry.txn)] = entry
        return reply

    def also(self: PartitionState, txn: str) -> Any:
        return known(self, txn) or remembered.get((self.pid, txn))

    put(coordinator.Coordinator, "_decide", leaky)
    put(PartitionState, "known", also)
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

    put(PartitionState, "push", asking)


@bug("an ack counts up to its message, also past the end of its lease", "I1 I3")
def ack_past_the_lease() -> None:
    def within(offset: int | None, committed: int, end: int | None) -> bool:
        return offset is not None and offset > committed

    put(cursor_rules, "_within", within)


@bug("an ack under a lease that has run out still counts", "I3")
def dead_lease_settles() -> None:
    acknowledge = cursor_rules.acknowledge

    def lenient(cursor: Any, entries: Any, lease_id: str, now: int, options: Any, *, repeats: bool = True) -> Any:
        now = min(now, cursor.lease_expires - 1) if cursor.lease_id == lease_id else now
        return acknowledge(cursor, entries, lease_id, now, options, repeats=repeats)

    put(cursor_rules, "acknowledge", lenient)


@bug("a pop whose caller has gone keeps its lease", "I4")
def cancelled_pop_keeps_its_lease() -> None:
    def withdraw(self: Acks, lease_id: str) -> None:
        return

    put(Acks, "withdraw", withdraw)


@bug("a lease that has run out is only noticed with the next push", "I1 I4")
def expired_lease_unnoticed() -> None:
    from queen_actors.actors.ready import Ready

    def promote(self: Ready, queue: Any, index: Any, now: int) -> None:
        return

    put(Ready, "promote", promote)
    claimable_at = of_module(pops, "claimable_at")

    def blind(partition: Any, cursor: Any, options: Any, now: int) -> int | None:
        return None if cursor.lease_id else claimable_at(partition, cursor, options, now)

    put(pops, "claimable_at", blind)


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

    put(PartitionState, "pack", lossy)


@bug("a seek lands behind the message that it looked for", "I1 I2")
def seek_loses() -> None:
    offset_at = of_module(groups, "offset_at")

    def behind(partition: PartitionState, ts: int) -> int | None:
        at = offset_at(partition, ts)
        return at if at is None else min(at + 1, partition.next_offset)

    put(groups, "offset_at", behind)

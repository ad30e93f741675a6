"""Bugs that a walk has to find: pieces of the rules, each replaced by one that breaks a promise in one way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from queen_actors.domain import cursor, kv, locks, ordered, partition, recents, timers
from queen_actors.domain.effects import KvDropped, TimerDropped

from . import partition as partition_walk

Plant = Callable[[pytest.MonkeyPatch], None]
PLANTS: dict[str, tuple[str, Plant]] = {}
"""Name -> the machine in whose walk it shows, and what puts it in."""


def plant(machine: str) -> Callable[[Plant], Plant]:
    def note(put: Plant) -> Plant:
        PLANTS[put.__name__] = (machine, put)
        return put

    return note


# -- keys --------------------------------------------------------------------------------------------------------------


@plant("kv")
def version_restarts(patch: pytest.MonkeyPatch) -> None:
    """A key's version begins again when it is made again (I8)."""

    def put(op: Any, row: Any, now: int, version: int) -> Any:
        return rule(op, row, now, 1 if row is None else version)

    rule = kv._POINT_RULES[kv.Put]
    patch.setitem(kv._POINT_RULES, kv.Put, put)


@plant("kv")
def expired_key_returned(patch: pytest.MonkeyPatch) -> None:
    """A row whose lifetime is over is found until it is swept (I9)."""
    patch.setattr(kv.NamespaceState, "live", lambda self, key, now: self.row(key))


@plant("kv")
def expires_one_too_late(patch: pytest.MonkeyPatch) -> None:
    """A row is found at the very instant at which its lifetime is over (I9)."""

    def live(self: Any, key: str, now: int) -> Any:
        return old(self, key, now - 1)

    old = kv.NamespaceState.live
    patch.setattr(kv.NamespaceState, "live", live)


@plant("kv")
def expired_row_listed(patch: pytest.MonkeyPatch) -> None:
    """A page by prefix shows what is over (I9)."""
    patch.setattr(kv._View, "prefix", lambda self, ns, prefix, after: self._namespace(ns).prefix(prefix, after))


@plant("kv")
def two_winners(patch: pytest.MonkeyPatch) -> None:
    """`putIfAbsent` over a row that is there (I9)."""

    def put(op: Any, row: Any, now: int, version: int) -> Any:
        return rule(replace(op, if_absent=False, expect=None) if op.if_absent else op, row, now, version)

    rule = kv._POINT_RULES[kv.Put]
    patch.setitem(kv._POINT_RULES, kv.Put, put)


@plant("kv")
def counter_passes_its_bound(patch: pytest.MonkeyPatch) -> None:
    """The bound is held against the number before the addition (I9)."""

    def incr(op: Any, row: Any, now: int, version: int) -> Any:
        number = None if row is None else kv.parse_number(row.value)
        within = number is None or op.max is None or number < op.max
        return rule(replace(op, max=None) if within else op, row, now, version)

    rule = kv._POINT_RULES[kv.Incr]
    patch.setitem(kv._POINT_RULES, kv.Incr, incr)


@plant("kv")
def lost_precondition_ignored(patch: pytest.MonkeyPatch) -> None:
    """What a `required` op refuses is applied but for that op (I11)."""
    patch.setattr(kv, "_lost_precondition", lambda op, index, result, row: None)


@plant("kv")
def own_writes_unseen(patch: pytest.MonkeyPatch) -> None:
    """A read does not see what the same call wrote before it."""
    patch.setattr(kv._View, "write", lambda self, effect: None)


@plant("kv")
def page_begins_one_early(patch: pytest.MonkeyPatch) -> None:
    """A page shows the key again that the one before ended with."""

    def starting(self: Any, prefix: str, after: str | None) -> Any:
        found = list(old(self, prefix, None))
        return iter([key for key in found if after is None or key >= after])

    old = ordered.OrderedKeys.starting
    patch.setattr(ordered.OrderedKeys, "starting", starting)


@plant("kv")
def sweep_takes_the_living(patch: pytest.MonkeyPatch) -> None:
    """A sweep removes a row whose lifetime was begun again."""

    def swept(state: Any, keys: Any, now: int, version: int) -> Any:
        gone = [key for key in dict.fromkeys(keys) if (row := state.row(key)) and row.expires_at is not None]
        return tuple(KvDropped(state.ns, key, version, True) for key in gone)

    from . import kv as walk

    patch.setattr(walk, "expired", swept)


# -- locks -------------------------------------------------------------------------------------------------------------


@plant("locks")
def renewal_keeps_the_token(patch: pytest.MonkeyPatch) -> None:
    """The token is not raised by a renewal (I6)."""

    def renew(op: Any, state: Any, now: int, version: int, choose: Any) -> Any:
        row = state.live(op.slot, now)
        return rule(op, state, now, version if row is None else row.version, choose)

    rule = locks._RULES[locks.Renew]
    patch.setitem(locks._RULES, locks.Renew, renew)


@plant("locks")
def grant_repeats_a_token(patch: pytest.MonkeyPatch) -> None:
    """A grant takes the number that was the latest, and no new one (I6)."""

    def acquire(op: Any, state: Any, now: int, version: int, choose: Any) -> Any:
        return rule(op, state, now, version - 1, choose)

    rule = locks._RULES[locks.Acquire]
    patch.setitem(locks._RULES, locks.Acquire, acquire)


@plant("locks")
def one_holder_too_many(patch: pytest.MonkeyPatch) -> None:
    """A semaphore gives out one permit more than its limit."""

    def acquire(op: Any, state: Any, now: int, version: int, choose: Any) -> Any:
        return rule(replace(op, limit=op.limit + 1), state, now, version, choose)

    rule = locks._RULES[locks.Acquire]
    patch.setitem(locks._RULES, locks.Acquire, acquire)


@plant("locks")
def stale_token_releases(patch: pytest.MonkeyPatch) -> None:
    """Whoever names the slot lets its permit go."""

    def release(op: Any, state: Any, now: int, version: int, choose: Any) -> Any:
        row = state.live(op.slot, now)
        return rule(op if row is None else replace(op, token=row.version), state, now, version, choose)

    rule = locks._RULES[locks.Release]
    patch.setitem(locks._RULES, locks.Release, release)


@plant("locks")
def expired_permit_renewed(patch: pytest.MonkeyPatch) -> None:
    """A permit whose lifetime is over can be renewed until it is swept."""

    def renew(op: Any, state: Any, now: int, version: int, choose: Any) -> Any:
        row = state.slots.get(op.slot)
        return rule(op, state, now if row is None else row.updated_at, version, choose)

    rule = locks._RULES[locks.Renew]
    patch.setitem(locks._RULES, locks.Renew, renew)


@plant("locks")
def owner_takes_a_second_slot(patch: pytest.MonkeyPatch) -> None:
    """An owner that holds a permit is given another."""
    patch.setattr(locks, "_owned", lambda owner, permits: None)


# -- timers ------------------------------------------------------------------------------------------------------------


@plant("timers")
def timer_fires_twice(patch: pytest.MonkeyPatch) -> None:
    """A timer that fired is still pending (I10)."""

    def apply(self: Any, effect: Any) -> Any:
        return None if isinstance(effect, TimerDropped) and effect.fired else old(self, effect)

    old = timers.TimersState.apply
    patch.setattr(timers.TimersState, "apply", apply)


@plant("timers")
def timer_early(patch: pytest.MonkeyPatch) -> None:
    """A timer is due one microsecond before its time (I10)."""

    def scheduled(op: Any, *rest: Any) -> Any:
        timer = old(op, *rest)
        return replace(timer, due=timer.due - 1)

    old = timers._scheduled
    patch.setattr(timers, "_scheduled", scheduled)


@plant("timers")
def cancelled_timer_stays(patch: pytest.MonkeyPatch) -> None:
    """A cancel that said `cancelled` leaves the timer where it was (I10)."""

    def apply(self: Any, effect: Any) -> Any:
        return None if isinstance(effect, TimerDropped) and not effect.fired else old(self, effect)

    old = timers.TimersState.apply
    patch.setattr(timers.TimersState, "apply", apply)


@plant("timers")
def failing_timer_lost(patch: pytest.MonkeyPatch) -> None:
    """A timer whose message could not be appended is given up one attempt early (I10)."""
    patch.setattr(timers.limits, "TIMER_ATTEMPTS", 4)


@plant("timers")
def moved_timer_forgets_its_creation(patch: pytest.MonkeyPatch) -> None:
    """A timer that is moved is as if it had been made now."""

    def scheduled(op: Any, pending: Any, *rest: Any) -> Any:
        return old(op, None, *rest)

    old = timers._scheduled
    patch.setattr(timers, "_scheduled", scheduled)


@plant("timers")
def packing_loses_the_attempts(patch: pytest.MonkeyPatch) -> None:
    """A timer that is kept packed is unpacked with no failed attempt."""

    def unpack(queue: str, key: str, packed: bytes) -> Any:
        return replace(old(queue, key, packed), attempts=0)

    old = timers._unpack
    patch.setattr(timers, "_unpack", unpack)


# -- partitions and cursors --------------------------------------------------------------------------------------------


@plant("partition")
def leases_overlap(patch: pytest.MonkeyPatch) -> None:
    """A group takes messages under a lease that is still live (I3)."""

    def claimable(state: Any, cursor_: Any, options: Any, now: int) -> Any:
        return old(state, cursor.released(cursor_), options, now)

    old = partition_walk.claimable_at
    patch.setattr(partition_walk, "claimable_at", claimable)


@plant("partition")
def dead_lease_settles(patch: pytest.MonkeyPatch) -> None:
    """An ack whose lease has run out is taken (I3)."""

    def acknowledge(cursor_: Any, entries: Any, lease: str, now: int, options: Any) -> Any:
        return old(cursor_, entries, lease, 0, options)

    old = cursor.acknowledge
    patch.setattr(cursor, "acknowledge", acknowledge)


@plant("partition")
def ack_past_the_lease(patch: pytest.MonkeyPatch) -> None:
    """What lies behind the leased messages can be acknowledged with them (I3)."""

    def within(offset: int | None, committed: int, end: int | None) -> bool:
        return offset is not None and offset > committed

    patch.setattr(cursor, "_within", within)


@plant("partition")
def ack_of_the_last_with_its_id(patch: pytest.MonkeyPatch) -> None:
    """Of two leased messages with one transaction id the later one is taken for done, and all before it (I3)."""

    def resolve(self: Any, txns: Any, committed: int, end: int | None, leased: Any) -> Any:
        latest = {txn: self.offset_of(txn) for txn in txns}
        inside = {txn: at for txn, at in latest.items() if at is not None and committed < at and (not end or at <= end)}
        return [inside.get(txn, at) for txn, at in zip(txns, old(self, txns, committed, end, leased), strict=True)]

    old = partition.PartitionState.resolve
    patch.setattr(partition.PartitionState, "resolve", resolve)


@plant("partition")
def run_of_the_last_with_their_ids(patch: pytest.MonkeyPatch) -> None:
    """What is settled in one pass does not look whether an id is there twice (I3)."""
    patch.setattr(partition.PartitionState, "unique", lambda self, first: True)


@plant("partition")
def lease_shortened(patch: pytest.MonkeyPatch) -> None:
    """An extension by less than what is left takes from the lease (section 9)."""

    def extended(cursor_: Any, lease: str, now: int, lifetime: int) -> Any:
        after = old(cursor_, lease, now, lifetime)
        return None if after is None else replace(after, lease_expires=now + lifetime)

    old = cursor.extended
    patch.setattr(cursor, "extended", extended)


@plant("partition")
def dedup_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A message that is sealed is not known any more by its transaction id (I12)."""
    patch.setattr(recents.Recents, "find", lambda self, txn, pid: None)


@plant("partition")
def dedup_window_too_long(patch: pytest.MonkeyPatch) -> None:
    """A transaction id is refused as long as the index remembers it (I12)."""

    def push(self: Any, items: Any, now: int, window: int, new_id: Any) -> Any:
        return old(self, items, now, window * 2, new_id)

    old = partition.PartitionState.push
    patch.setattr(partition.PartitionState, "push", push)


@plant("partition")
def index_pruned_too_far(patch: pytest.MonkeyPatch) -> None:
    """The index forgets half of its window too early (I12)."""

    def prune(self: Any, since: int) -> None:
        old(self, since + 45 * partition.SECOND)

    old = partition.PartitionState.prune
    patch.setattr(partition.PartitionState, "prune", prune)


@plant("partition")
def later_pages_not_looked_up(patch: pytest.MonkeyPatch) -> None:
    """An index of more than one page finds what lies in its first (I12)."""

    def find(self: Any, txn: str, pid: int) -> Any:
        found = old(self, txn, pid)
        return None if self._lookup is not None and found is not None and found.offset > 100 else found

    old = recents.Recents.find
    patch.setattr(recents.Recents, "find", find)


@plant("partition")
def offset_used_twice(patch: pytest.MonkeyPatch) -> None:
    """Retention of everything gives the last offset out again (I2)."""

    def cut(self: Any, log_start: int) -> None:
        old(self, log_start)
        self.next_offset -= not self.tail and log_start == self.next_offset and log_start > 0

    old = partition.PartitionState.cut
    patch.setattr(partition.PartitionState, "cut", cut)


@plant("partition")
def packing_drops_a_cursor(patch: pytest.MonkeyPatch) -> None:
    """Where a group stands is lost when its partition is packed (I14)."""

    def unpack(pid: int, packed: bytes) -> Any:
        state = old(pid, packed)
        state.cursors.pop("g", None)
        return state

    old = partition.PartitionState.unpack
    patch.setattr(partition.PartitionState, "unpack", unpack)


@plant("partition")
def repeat_of_a_settled_ack_refused(patch: pytest.MonkeyPatch) -> None:
    """Who asks again after a lost answer is told that the lease is gone (8.2)."""

    def acknowledge(cursor_: Any, entries: Any, lease: str, now: int, options: Any) -> Any:
        return old(cursor_, entries, lease, now, options, repeats=False)

    old = cursor.acknowledge
    patch.setattr(cursor, "acknowledge", acknowledge)


@plant("partition")
def retry_is_not_charged(patch: pytest.MonkeyPatch) -> None:
    """A message that fails again and again never runs out of retries (8.2)."""

    def nack(cursor_: Any, *rest: Any) -> Any:
        after, dead, ended = old(cursor_, *rest)
        return replace(after, retries=0), dead, ended

    old = cursor._nack
    patch.setattr(cursor, "_nack", nack)


@plant("partition")
def delivery_limit_off_by_one(patch: pytest.MonkeyPatch) -> None:
    """A head is given up one delivery late (7.4)."""

    def take(*words: Any, delivery_limit: int, **rest: Any) -> Any:
        return old(*words, delivery_limit=delivery_limit + 1, **rest)

    old = cursor.take
    patch.setattr(cursor, "take", take)

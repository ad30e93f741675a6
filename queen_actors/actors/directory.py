"""The directory: every actor's state by its name, brought into memory on first use and packed away when idle.

`apply` is the only mutation of anything in here, live and at recovery alike, so that what a restart rebuilds is what
was there (`Recovery` in `ports.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from queen_actors.domain import effects as fx
from queen_actors.domain.cursor import fresh
from queen_actors.domain.kv import NamespaceState, Row
from queen_actors.domain.locks import LockState, parse_permit_key
from queen_actors.domain.names import Names
from queen_actors.domain.partition import (
    PartitionState,
    packed_cursors,
    packed_end,
    packed_last,
    packed_name,
    packed_new,
    packed_oldest,
    packed_start,
    packed_tail,
    packed_with_cursor,
    packed_with_recent,
    packed_with_run,
    window_of,
)
from queen_actors.domain.queue import QueueState
from queen_actors.domain.streams import StreamEffect, StreamTable
from queen_actors.domain.timers import TimersState
from queen_actors.limits import TRACE_SECONDS, TRACES
from queen_actors.values import LOCKS_NAMESPACE, SECOND

from .shelf import Shelf

Observer = Callable[[fx.Effect], None]
NEVER = 1 << 63
"""Later than every instant."""


class Directory:
    """What the log says. Reading is free; every change goes through `apply`."""

    def __init__(self) -> None:
        self.observers: Mapping[type[fx.Effect], tuple[Observer, ...]] = {}
        """Who is told of each kind of effect, in this order; nobody while the log is read back."""
        self.opened_at = 0
        self.clear()
        self._apply: dict[type, Callable[[Any], None]] = {
            fx.Appended: self._appended,
            fx.PartitionPut: self._partition_put,
            fx.QueuePut: self._queue_put,
            fx.QueueDropped: self._queue_dropped,
            fx.GroupPut: self._group_put,
            fx.GroupDropped: self._group_dropped,
            fx.CursorPut: self._cursor_put,
            fx.CursorDropped: self._cursor_dropped,
            fx.KvPut: self._kv,
            fx.KvDropped: self._kv,
            fx.TimerPut: self._timer,
            fx.TimerDropped: self._timer,
            fx.DeadLetterPut: self._dead_letter_put,
            fx.DeadLetterDropped: self._dead_letter_dropped,
            fx.TracePut: self._trace,
            fx.StreamPut: self._stream,
            fx.StreamDropped: self._stream,
            fx.StreamRowPut: self._stream,
            fx.StreamRowDropped: self._stream,
        }

    def clear(self) -> None:
        """Forget everything: the log is about to be read from the start."""
        self.counters = fx.Counters()
        self.last_instant = 0
        self.queues: dict[str, QueueState] = {}
        self.queue_names: dict[int, str] = {}
        self.active: dict[int, PartitionState] = {}
        self.packed = Shelf()
        self.woken: list[int] = []
        """Partitions that were brought back into memory; whoever packs them away keeps this short."""
        self.namespaces: dict[str, NamespaceState] = {}
        self.locks: dict[str, LockState] = {}
        self.timers: dict[str, TimersState] = {}
        self.leases: dict[str, set[tuple[int, str]]] = {}
        self.traces: deque[fx.TracePut] = deque(maxlen=TRACES)
        self.replaced: Row | None = None
        """The row that the latest effect on a key took the place of, or took away: for those who observe it."""
        self.was_due: int | None = None
        """When the timer was due that the latest effect on one took the place of, or took away: for its observer."""
        self.streams = StreamTable()
        self._restoring = False
        self._since = NEVER

    # -- reading ---------------------------------------------------------------------------------------------------

    def namespace(self, ns: str) -> NamespaceState:
        """The namespace's state; an empty one when nothing was ever written to it (which is not kept)."""
        return self.namespaces.get(ns) or NamespaceState(ns)

    def lock(self, name: str) -> LockState:
        return self.locks.get(name) or LockState(name)

    def queue_timers(self, queue: str) -> TimersState:
        return self.timers.get(queue) or TimersState(queue)

    def partition(self, pid: int) -> PartitionState | None:
        """The partition, activated if it was packed away; None when there is no such partition."""
        state = self.active.get(pid)
        if state is None:
            packed = self.packed.take(pid)
            if packed is None:
                return None
            state = PartitionState.unpack(pid, packed)
            self._use(state)
            self.woken.append(pid)
        return state

    def _use(self, state: PartitionState) -> None:
        self.active[state.pid] = state
        self.queue_of(state).partitions.use(state.name, state.pid)

    def name_of(self, pid: int) -> str:
        """The name of a partition that there is."""
        state = self.active.get(pid)
        if state is not None:
            return state.name
        packed = self.packed.get(pid)
        assert packed is not None, "a queue's partitions exist"
        return packed_name(packed)

    def peek(self, pid: int) -> PartitionState | None:
        """The partition for reading only: one that is packed away stays so, and a copy is given."""
        state = self.active.get(pid)
        if state is None:
            packed = self.packed.get(pid)
            return None if packed is None else PartitionState.unpack(pid, packed)
        return state

    def consumes(self, pid: int, group: str) -> bool:
        """Has the group a cursor in the partition? One that is packed away stays so."""
        state = self.active.get(pid)
        if state is not None:
            return group in state.cursors
        packed = self.packed.get(pid)
        return packed is not None and any(cursor.group == group for cursor in packed_cursors(packed))

    def at_rest(self, pid: int, group: str, since: int | None = None) -> bool:
        """Is the partition packed away, all of it settled by the group, and nothing leased to it? A group that has not
        come here before wants nothing from before `since`."""
        packed = self.packed.get(pid)
        if packed is None:
            return False
        for cursor in packed_cursors(packed):
            if cursor.group == group:
                return not cursor.lease_id and cursor.committed + 1 >= packed_end(packed)
        return since is not None and packed_last(packed) < since

    def find(self, queue: str, partition: str) -> PartitionState | None:
        state = self.queues.get(queue)
        pid = None if state is None else state.partitions.get(partition)
        return None if pid is None else self.partition(pid)

    def queue_of(self, partition: PartitionState) -> QueueState:
        return self.queues[self.queue_names[partition.qid]]

    # -- changing --------------------------------------------------------------------------------------------------

    def commit(self, entry: fx.Entry) -> None:
        """Apply one step that the log has taken."""
        self.counters = entry.counters
        self.last_instant = entry.now
        apply, observers = self._apply, self.observers
        for effect in entry.effects:
            kind = type(effect)
            apply[kind](effect)
            for observe in observers.get(kind, ()):
                observe(effect)

    def _appended(self, effect: fx.Appended) -> None:
        partition = self.active.get(effect.pid) or self.partition(effect.pid)
        assert partition is not None, "messages are appended to a partition that exists"
        partition.append(effect.records)

    def _partition_put(self, effect: fx.PartitionPut) -> None:
        known = self.partition(effect.pid)
        if known is not None:
            known.cut(effect.log_start)
            return
        name = self.queue_names.get(effect.qid)
        if name is None:
            return  # recovery: the queue was deleted later in the same segment
        self.queues[name].partitions.add(effect.name, effect.pid)
        if self._restoring:
            self.packed.put(effect.pid, packed_new(effect))
        else:
            self._use(PartitionState(effect.pid, effect.qid, effect.name, effect.created_at, effect.log_start))

    def _queue_put(self, effect: fx.QueuePut) -> None:
        known = self.queues.get(effect.name)
        if known is not None and known.put.qid == effect.qid:
            known.put = effect
            return
        if known is not None:  # recovery: the drop between the two incarnations is not told
            self._forget(known)
        self.queues[effect.name] = QueueState(effect, Names(self.name_of))
        self.queue_names[effect.qid] = effect.name

    def _queue_dropped(self, effect: fx.QueueDropped) -> None:
        queue = self.queues.get(effect.name)
        if queue is not None and queue.put.qid == effect.qid:
            self._forget(queue)

    def _forget(self, queue: QueueState) -> None:
        """A queue with everything in it; recovery has partitions of it told after that, which are nobody's."""
        del self.queues[queue.name], self.queue_names[queue.put.qid]
        for pid in queue.partitions.values():
            partition, packed = self.active.pop(pid, None), self.packed.take(pid)
            cursors = () if partition is None else partition.cursors.values()
            for cursor in cursors if packed is None else packed_cursors(packed):
                self._unlease(cursor)
        self.streams.queue_dropped(queue.put.qid)

    def _group_put(self, effect: fx.GroupPut) -> None:
        name = self.queue_names.get(effect.qid)
        if name is not None:
            self.queues[name].groups[effect.group] = effect

    def _group_dropped(self, effect: fx.GroupDropped) -> None:
        name = self.queue_names.get(effect.qid)
        if name is not None:
            self.queues[name].groups.pop(effect.group, None)

    def _cursor_put(self, effect: fx.CursorPut) -> None:
        packed = self.packed.get(effect.pid) if self._restoring else None
        if packed is not None:
            before = next((cursor for cursor in packed_cursors(packed) if cursor.group == effect.group), None)
            self.packed.put(effect.pid, packed_with_cursor(packed, effect))
            self._leased(before, effect)
            return
        partition = self.partition(effect.pid)
        if partition is None:
            return  # recovery: the queue was deleted later in the same segment
        self._leased(partition.cursors.get(effect.group), effect)
        partition.put_cursor(effect)

    def _leased(self, before: fx.CursorPut | None, effect: fx.CursorPut) -> None:
        if before is None or before.lease_id != effect.lease_id:
            if before is not None:
                self._unlease(before)
            if effect.lease_id:
                self.leases.setdefault(effect.lease_id, set()).add((effect.pid, effect.group))

    def _cursor_dropped(self, effect: fx.CursorDropped) -> None:
        partition = self.partition(effect.pid)
        if partition is None:
            return
        before = partition.cursors.get(effect.group)
        if before is not None:
            self._unlease(before)
        partition.drop_cursor(effect.group)

    def _unlease(self, cursor: fx.CursorPut) -> None:
        holders = self.leases.get(cursor.lease_id)
        if holders is not None:
            holders.discard((cursor.pid, cursor.group))
            if not holders:
                del self.leases[cursor.lease_id]

    def _kv(self, effect: fx.KvPut | fx.KvDropped) -> None:
        state = self.namespaces.get(effect.ns)
        if state is None:
            state = self.namespaces[effect.ns] = NamespaceState(effect.ns)
        self.replaced = state.row(effect.key)
        state.apply(effect)
        if not len(state):
            del self.namespaces[effect.ns]
        if effect.ns != LOCKS_NAMESPACE:
            return
        permit = parse_permit_key(effect.key)
        if permit is None:
            return
        lock = self.locks.get(permit[0])
        if lock is None:
            lock = self.locks[permit[0]] = LockState(permit[0])
        lock.apply(effect)
        if not len(lock):
            del self.locks[permit[0]]

    def _timer(self, effect: fx.TimerPut | fx.TimerDropped) -> None:
        state = self.timers.get(effect.queue)
        if state is None:
            state = self.timers[effect.queue] = TimersState(effect.queue)
        self.was_due = state.apply(effect)
        if not len(state):
            del self.timers[effect.queue]

    def _dead_letter_put(self, effect: fx.DeadLetterPut) -> None:
        name = self.queue_names.get(effect.qid)
        if name is not None:
            self.queues[name].dead[effect.id] = effect

    def _dead_letter_dropped(self, effect: fx.DeadLetterDropped) -> None:
        name = self.queue_names.get(effect.qid)
        if name is not None:
            self.queues[name].dead.pop(effect.id, None)

    def _trace(self, effect: fx.TracePut) -> None:
        self.traces.append(effect)
        since = effect.created_at - TRACE_SECONDS * SECOND
        while self.traces and self.traces[0].created_at < since:
            self.traces.popleft()

    def _stream(self, effect: StreamEffect) -> None:
        if isinstance(effect, fx.StreamPut) and effect.qid not in self.queue_names:
            return  # recovery: the queue was deleted later in the same segment
        self.streams.apply(effect)

    # -- recovery (ports.Recovery) ---------------------------------------------------------------------------------

    def restore(self, effects: Sequence[fx.Effect]) -> None:
        self._restoring = True
        try:
            for effect in effects:
                self._apply[type(effect)](effect)
        finally:
            self._restoring = False

    def recent_since(self) -> int:
        windows = [window_of(queue.options) for queue in self.queues.values()]
        self._since = self.opened_at - max(windows, default=0)
        return self._since

    def sealed(self, runs: Sequence[fx.SealedRun]) -> None:
        for run in runs:
            packed = self.packed.get(run.pid)
            if packed is not None:
                # Of a run that lies in the window as a whole each message is told by `recent`: that is enough
                if run.first_ts < self._since or run.first < packed_start(packed):
                    self.packed.put(run.pid, packed_with_run(packed, run))
            elif (partition := self.active.get(run.pid)) is not None:
                partition.restore_run(run)

    def recent(self, messages: Sequence[fx.Recent]) -> None:
        for message in messages:
            packed = self.packed.get(message.pid)
            more = None if packed is None else packed_with_recent(packed, message)
            if more is not None:
                self.packed.put(message.pid, more)
            elif (partition := self.partition(message.pid)) is not None:
                partition.restore_recent(message)

    def entry(self, entry: fx.Entry) -> None:
        self.commit(entry)

    # -- passivation -----------------------------------------------------------------------------------------------

    def passivate(self, pids: Iterable[int], *, light: bool = False) -> int:
        """Pack away those of the partitions that are idle, or `light` at least; returns how many."""
        count = 0
        for pid in pids:
            partition = self.active.get(pid)
            if partition is not None and (partition.idle or (light and partition.light)):
                self.packed.put(pid, partition.pack())
                del self.active[pid]
                self.queue_of(partition).partitions.rest(partition.name)
                count += 1
        return count

    def evict(self, pid: int, last: int) -> None:
        """The partition's messages up to `last` lie in segments now: drop their payloads, packed or not."""
        active, packed = self.active.get(pid), self.packed.get(pid)
        if active is not None:
            active.evict(last)
        elif packed is not None and packed_tail(packed):
            partition = PartitionState.unpack(pid, packed)
            partition.evict(last)
            self.packed.put(pid, partition.pack())

    def prune(self, pid: int, packed: bytes, before: Callable[[int], int]) -> None:
        """Forget what a packed partition remembers from before the instant that `before` gives for its queue."""
        found = packed_oldest(packed)
        if found is not None and found[1] < (since := before(found[0])):
            partition = PartitionState.unpack(pid, packed)
            partition.prune(since)
            self.packed.put(pid, partition.pack())

    def forget_sessions(self) -> list[fx.CursorPut]:
        """Leases that lived with connections of a broker that is gone: what it takes to give them back
        (decisions.md: "given back at start")."""
        found = (self._lease_of(pid, group) for holders in self.leases.values() for pid, group in holders)
        return [cursor for cursor in found if cursor is not None and cursor.session]

    def _lease_of(self, pid: int, group: str) -> fx.CursorPut | None:
        partition = self.partition(pid)
        return None if partition is None else partition.cursors.get(group)

    def cursor(self, partition: PartitionState, group: str) -> fx.CursorPut:
        """The group's cursor, or the one that an unregistered group of mode `all` would start with."""
        known = partition.cursors.get(group)
        return known if known is not None else fresh(partition.pid, group, partition.log_start - 1)

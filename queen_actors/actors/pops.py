"""Pops: claims that wait for messages, and the indexes of what is ready for whom."""

from __future__ import annotations

from collections.abc import Iterator

import trio
from msgspec import Struct

from queen_actors import limits
from queen_actors.domain import cursor as rules
from queen_actors.domain.cursor import Claim, PopReply, PopRequest
from queen_actors.domain.effects import (
    Appended,
    CursorDropped,
    CursorPut,
    DeadLetterPut,
    Effect,
    GroupDropped,
    GroupPut,
    QueueDropped,
    QueuePut,
    Record,
)
from queen_actors.domain.partition import PartitionState
from queen_actors.domain.queue import QueueState, first_wanted, registration
from queen_actors.values import QUEUE_MODE, SECOND

from .acks import Acks
from .agenda import Agenda
from .core import Core, Draft
from .partition import Producers, offset_at
from .queue import GroupIndex, Waiter, Waiters, claimable_at


class _Load(Struct, frozen=True):
    """A pop cannot be decided before these messages are in memory."""

    pid: int
    first: int
    count: int


class _Locate(Struct, frozen=True):
    """A pop cannot be decided before the store has said which offset is the first at or after `ts`."""

    pid: int
    ts: int


class _Fetched(Struct):
    """What one pop has had loaded, by partition."""

    records: dict[int, tuple[int, tuple[Record, ...]]]
    starts: dict[int, int]


class Pops:
    """The pops of one broker, parked and at work."""

    def __init__(self, core: Core, producers: Producers, acks: Acks) -> None:
        self._core = core
        self._producers = producers
        self._acks = acks
        self._indexes: dict[str, dict[str, GroupIndex]] = {}
        self._agenda = Agenda(core.clock)
        self.waiters = Waiters()
        self._closing = False

    # -- pop -------------------------------------------------------------------------------------------------------

    async def pop(self, request: PopRequest) -> PopReply:
        """Claim messages, waiting up to `request.wait` for some. A caller who is cancelled holds no lease."""
        core = self._core
        deadline = trio.current_time() + request.wait / SECOND
        fetched = _Fetched({}, {})
        while True:
            if core.turns.busy:
                await core.turns.clear([("queue", request.queue or "")])
            core.log.admit()
            found = self._attempt(request, fetched)
            if isinstance(found, PopReply):
                if found.claims:
                    return await self._deliver(found)
                if trio.current_time() >= deadline or self._closing:
                    await core.log.durable()
                    return found
                await self._park(request, deadline)
                fetched = _Fetched({}, {})
            else:
                await self._fetch(found, fetched)

    async def _deliver(self, reply: PopReply) -> PopReply:
        """The claim leaves when it is durable; if the caller is gone by then, it is given back without a charge."""
        try:
            await self._core.log.durable()
        except trio.Cancelled:
            self._acks.give_back(reply.lease_id)
            raise
        return reply

    async def _fetch(self, wanted: _Load | _Locate, fetched: _Fetched) -> None:
        partition = self._core.directory.partition(wanted.pid)
        if partition is None:
            return
        if isinstance(wanted, _Load):
            read = self._producers.read(partition, wanted.first, wanted.count, limits.POP_BYTES)
            fetched.records[wanted.pid] = (wanted.first, await read)
            return
        at = await self._core.store.first_offset_at(wanted.pid, wanted.ts)
        fetched.starts[wanted.pid] = partition.base if at is None else at

    async def _park(self, request: PopRequest, deadline: float) -> None:
        waiter = Waiter(request.group, request.queue, request.partition, request.namespace, request.task)
        self.waiters.park(waiter)
        try:
            with trio.move_on_at(deadline):
                await waiter.event.wait()
        except trio.Cancelled:
            if waiter.event.is_set():
                self._pass_on(request)
            raise
        finally:
            self.waiters.leave(waiter)

    def _pass_on(self, request: PopRequest) -> None:
        """A wake-up that nobody used: let the next one look."""
        for queue in self._targets(request):
            self.waiters.wake(queue, request.partition or "", request.group)

    def _targets(self, request: PopRequest) -> list[QueueState]:
        queues = self._core.directory.queues
        if request.queue is not None:
            queue = queues.get(request.queue)
            return [queue] if queue is not None else []
        return [queue for queue in queues.values() if queue.matches(request.namespace, request.task)]

    def _attempt(self, request: PopRequest, fetched: _Fetched) -> PopReply | _Load | _Locate:
        """One synchronous try: claims of up to `partitions` partitions and `batch` messages, in one step of the log."""
        draft = Draft(self._core)
        if request.queue is not None and request.partition is None:
            targets = [draft.queue(request.queue)]
        else:
            targets = self._targets(request)
        lease_id = "" if request.auto_ack else self._core.ids.uuid(draft.now)
        claims: list[Claim] = []
        budget = [request.batch, limits.POP_BYTES]
        conflating = False
        wanted: _Load | _Locate | None = None
        for queue in targets:
            group = self._register(draft, queue, request)
            conflating = conflating or group.conflation
            width = request.partitions or (request.batch if group.conflation else 1)
            for partition in self._candidates(draft, queue, request, group):
                if len(claims) >= width or budget[0] <= 0 or budget[1] <= 0:
                    break
                claim = self._claim(draft, queue, partition, group, request, lease_id, budget, fetched)
                if isinstance(claim, Claim):
                    claims.append(claim)
                elif claim is not None:
                    wanted = wanted or claim
        if wanted is not None and not claims:
            return wanted
        if lease_id and request.session is not None:
            self._acks.hold(request.session, request.group, lease_id, claims)
        self._core.commit(draft)
        if claims and any(self._index(queue, request.group).ready for queue in targets):
            self._pass_on(request)
        asked = request.conflation
        return PopReply(
            lease_id if claims else "", request.group, tuple(claims), asked and conflating, asked and not conflating
        )

    def _register(self, draft: Draft, queue: QueueState, request: PopRequest) -> GroupPut:
        """The group's registration: the stored one, or the one that this first contact makes (7.6)."""
        known = queue.groups.get(request.group)
        if known is not None:
            return known
        group = registration(
            queue.put.qid,
            request.group,
            request.subscription_mode,
            request.subscription_from,
            draft.now,
            self._core.settings.subscription_mode,
            request.conflation,
        )
        if request.partition is None and request.group != QUEUE_MODE:
            draft.effects.append(group)
        return group

    def _candidates(
        self, draft: Draft, queue: QueueState, request: PopRequest, group: GroupPut
    ) -> Iterator[PartitionState]:
        directory = self._core.directory
        index = self._index(queue, request.group)
        index.promote(draft.now)
        if request.partition is not None:
            pinned = directory.find(queue.name, request.partition)
            if pinned is not None:
                yield pinned
            return
        for pid in index.round():
            partition = directory.partition(pid)
            if partition is None:
                index.rest(pid)
            elif not self._core.turns.busy or not self._core.turns.is_held(
                ("partition", f"{queue.name}\x00{partition.name}")
            ):
                yield partition

    def _claim(
        self,
        draft: Draft,
        queue: QueueState,
        partition: PartitionState,
        group: GroupPut,
        request: PopRequest,
        lease_id: str,
        budget: list[int],
        fetched: _Fetched,
    ) -> Claim | _Load | _Locate | None:
        """Take what the group may have of one partition now; None when that is nothing."""
        index, options, now = self._index(queue, group.group), queue.options, draft.now
        cursor = partition.cursors.get(group.group)
        if cursor is None:
            start = self._start(partition, group, fetched)
            if isinstance(start, _Locate):
                return start
            cursor = rules.fresh(partition.pid, group.group, start)
        at = claimable_at(partition, cursor, options, now)
        if at is None:
            index.rest(partition.pid)
            return None
        if at > now:
            index.later(partition.pid, at)
            self._arm(index)
            return None
        head = partition.floor(cursor.committed) + 1
        first = self._newest_visible(partition, head, queue, now) if group.conflation else head
        count = 1 if group.conflation else budget[0]
        records = self._records(partition, first, count, budget[1], fetched)
        if records is None:
            return _Load(partition.pid, max(first, partition.log_start), min(count, limits.POP_BATCH_MAX))
        delay = options.delayed_processing_seconds * SECOND
        if delay and records and records[-1].ts > now - delay:
            records = tuple(record for record in records if record.ts <= now - delay)
        if not records:
            index.rest(partition.pid)
            return None
        taken = rules.take(
            cursor,
            records,
            now=now,
            lease_id=lease_id,
            lifetime=request.lease or options.lease_seconds * SECOND,
            delivery_limit=options.delivery_limit,
            session=request.session is not None,
            auto_ack=request.auto_ack,
            span=head if group.conflation else None,
        )
        reason = rules.DELIVERY_LIMIT.format(limit=options.delivery_limit)
        for record in taken.dead:
            draft.effects.append(self._dead_letter(draft, queue, partition, cursor, record, reason))
        draft.effects.append(taken.cursor)
        if not taken.records:
            return None
        budget[0] -= len(taken.records)
        budget[1] -= sum([len(record.payload) for record in taken.records])
        return Claim(queue.name, partition.name, partition.pid, taken.attempt, taken.records)

    def _start(self, partition: PartitionState, group: GroupPut, fetched: _Fetched) -> int | _Locate:
        """The committed offset with which a group without a cursor starts."""
        since = first_wanted(group)
        if since is None:
            return partition.log_start - 1
        at = offset_at(partition, since)
        if at is None:
            at = fetched.starts.get(partition.pid)
        return _Locate(partition.pid, since) if at is None else at - 1

    @staticmethod
    def _newest_visible(partition: PartitionState, head: int, queue: QueueState, now: int) -> int:
        """For a conflating group: the last message whose delay is over."""
        delay = queue.options.delayed_processing_seconds * SECOND
        if not delay:
            return partition.next_offset - 1
        after = offset_at(partition, now - delay + 1)
        return head if after is None else max(after - 1, head)

    def _records(
        self, partition: PartitionState, first: int, count: int, size: int, fetched: _Fetched
    ) -> tuple[Record, ...] | None:
        found = partition.in_memory(first, count, size)
        if found is not None:
            return found
        asked, loaded = fetched.records.get(partition.pid, (None, ()))
        if asked != max(first, partition.log_start):
            return None
        return loaded[:count]

    def _dead_letter(
        self, draft: Draft, queue: QueueState, partition: PartitionState, cursor: CursorPut, record: Record, error: str
    ) -> DeadLetterPut:
        mid = self._core.ids.uuid(draft.now)
        return DeadLetterPut(mid, queue.put.qid, partition.pid, cursor.group, record, error, cursor.retries, draft.now)

    # -- what is ready ---------------------------------------------------------------------------------------------

    def _index(self, queue: QueueState, group: str) -> GroupIndex:
        """The group's index; at first use every partition of the queue may have something for it."""
        groups = self._indexes.setdefault(queue.name, {})
        index = groups.get(group)
        if index is None:
            index = groups[group] = GroupIndex(queue.name, group)
            for pid in queue.partitions.values():
                index.is_ready(pid)
        return index

    def _arm(self, index: GroupIndex) -> None:
        """See to it that somebody looks when the next of its partitions becomes ready."""
        at = index.next_at
        if at is not None:
            self._agenda.add(at, (index.queue, index.group))

    async def run(self) -> None:
        """Wake parked pops when a lease ends, a delay is over or a quiet window has passed; for ever."""
        while True:
            for name, group in await self._agenda.due(1000):
                now = self._core.clock.now()
                queue = self._core.directory.queues.get(name)
                index = self._indexes.get(name, {}).get(group)
                if queue is None or index is None:
                    continue
                for pid in index.promote(now):
                    partition = self._core.directory.partition(pid)
                    if partition is not None:
                        self._acks.expire(partition, group, now)
                        self.waiters.wake(queue, partition.name, group)
                self._arm(index)

    def observe(self, effect: Effect) -> None:
        """An effect was applied: who may have something to take now?"""
        if isinstance(effect, Appended):
            partition = self._core.directory.active[effect.pid]
            self._ready(partition, None)
        elif isinstance(effect, CursorPut):
            self._moved(effect)
        elif isinstance(effect, CursorDropped):
            dropped = self._core.directory.partition(effect.pid)
            if dropped is not None:
                self._ready(dropped, effect.group)
        elif isinstance(effect, GroupDropped):
            name = self._core.directory.queue_names.get(effect.qid, "")
            self._indexes.get(name, {}).pop(effect.group, None)
        elif isinstance(effect, QueueDropped):
            self._indexes.pop(effect.name, None)
        elif isinstance(effect, QueuePut):
            self._reconsider(self._core.directory.queues[effect.name])

    def _moved(self, cursor: CursorPut) -> None:
        partition = self._core.directory.partition(cursor.pid)
        if partition is None:
            return
        if not cursor.lease_id:
            if partition.floor(cursor.committed) + 1 < partition.next_offset:
                self._ready(partition, cursor.group)
            return
        queue = self._core.directory.queue_of(partition)
        index = self._index(queue, cursor.group)
        index.later(cursor.pid, cursor.lease_expires)
        self._arm(index)

    def _ready(self, partition: PartitionState, group: str | None) -> None:
        queue = self._core.directory.queue_of(partition)
        for name, index in self._indexes.get(queue.name, {}).items():
            if group is None or name == group:
                index.is_ready(partition.pid)
        self.waiters.wake(queue, partition.name, group)

    def _reconsider(self, queue: QueueState) -> None:
        """Options changed: delays and windows may be shorter now."""
        for index in self._indexes.get(queue.name, {}).values():
            for pid in queue.partitions.values():
                index.is_ready(pid)
        self.waiters.wake(queue, "", None)

    def reset(self) -> None:
        """The directory was read again from the log: every index is made anew, and every parked pop looks again."""
        self._indexes.clear()
        self._agenda.replace(())
        self.waiters.wake_all()

    def close(self) -> None:
        """The broker stops: parked pops answer now, with nothing."""
        self._closing = True
        self.waiters.wake_all()

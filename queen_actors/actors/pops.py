"""Pops: claims that wait for messages, and the indexes of what is ready for whom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from math import inf

import trio
from msgspec import Struct
from msgspec.structs import replace

from queen_actors import limits
from queen_actors.domain import cursor as rules
from queen_actors.domain.cursor import Claim, PopReply, PopRequest
from queen_actors.domain.effects import CursorPut, DeadLetterPut, GroupPut, Record
from queen_actors.domain.partition import PartitionState
from queen_actors.domain.queue import QueueState, first_wanted, registration
from queen_actors.errors import QueenError, StorageFull
from queen_actors.values import MILLISECOND, QUEUE_MODE, SECOND

from .acks import Acks
from .core import Core, Draft
from .log import deferral, tell_decided
from .partition import Producers, offset_at
from .queue import GroupIndex, Waiter, claimable_at
from .ready import Ready

LOOKS = 500
"""How many partitions that its group has not seen a pop looks at before others may run: a few milliseconds."""


class _Load(Struct, frozen=True):
    """A pop cannot be decided before these messages are in memory."""

    pid: int
    first: int
    count: int


class _Locate(Struct, frozen=True):
    """A pop cannot be decided before the store has said which offset is the first at or after `ts`."""

    pid: int
    ts: int


_Wanted = _Load | _Locate


class _Call(Struct):
    """One pop under way: since when it asks, and until when it may; for how many bytes of payload there is room; until
    when it waits for a fuller batch; what it has had loaded by partition (and whether it has), its place in the line,
    and whether it owes a wake-up."""

    request: PopRequest
    since: int
    began: float
    deadline: float
    room: int
    held: float | None
    records: dict[int, tuple[int, tuple[Record, ...]]]
    starts: dict[int, int]
    loaded: bool = False
    waiter: Waiter | None = None
    woken: bool = False

    def forget(self) -> None:
        """Time has gone by since it was loaded what was."""
        self.records.clear()
        self.starts.clear()
        self.loaded = False


class _Budget(Struct):
    """What one try of a pop may still take, and how many partitions it may still look at that its group has not seen;
    whether it left some."""

    partitions: int
    messages: int
    size: int
    looks: int = LOOKS
    left: bool = False

    @property
    def spent(self) -> bool:
        return self.partitions <= 0 or self.messages <= 0 or self.size <= 0

    def full(self, *, conflating: bool) -> bool:
        """No later message would fit in: more partitions only matter to a group that takes one message of each."""
        return self.messages <= 0 or self.size <= 0 or (conflating and self.partitions <= 0)

    def take(self, messages: int, size: int) -> None:
        self.partitions -= 1
        self.messages -= messages
        self.size -= size


class Pops:
    """The pops of one broker, parked and at work."""

    def __init__(self, core: Core, producers: Producers, acks: Acks) -> None:
        self._core = core
        self._producers = producers
        self._acks = acks
        self.ready = Ready(core, acks)
        self._closing = False
        self._rounds = 0

    async def pop(self, request: PopRequest) -> PopReply:
        """Claim messages, waiting up to `request.wait` for some. A caller who is cancelled holds no lease.

        A pop that waits, and that finds less than it may take, is held until `minPopWaitTime` of the queue after it
        began (of several queues the longest), so that one answer carries more; never beyond its own wait.
        """
        call = self._call(request, limits.POP_BYTES)
        while True:
            reply = await self._decided(call)
            try:
                await self._durable([reply])
                return reply
            except StorageFull:
                if not request.wait:
                    raise
                call.forget()  # it waits on, whosever write it was that was refused

    async def pops(self, request: PopRequest, messages: int) -> list[PopReply]:
        """A pop as above, of `request.batch` or what is left of `messages`; then more of them, as long as they find
        something at once, are not many bytes, and no other caller looks for it. All of them wait for one commit. A
        caller who is cancelled holds none of their leases."""
        call = self._call(_at_most(request, messages), limits.POP_BYTES)
        while True:
            replies = self._more(request, messages, await self._decided(call))
            try:
                await self._durable(replies)
                return replies
            except StorageFull:
                if not request.wait:
                    raise
                call.forget()

    def _more(self, request: PopRequest, messages: int, first: PopReply) -> list[PopReply]:
        room = limits.POPS_AT_ONCE_BYTES
        replies = [first]
        with suppress(QueenError):  # what it has got, it has; what was refused it is told when it asks again
            while (claims := replies[-1].claims) and len(replies) < limits.POPS_AT_ONCE:
                messages -= sum([len(claim.records) for claim in claims])
                room -= sum([self._producers.size_of(claim.records) for claim in claims])
                others = any(self.ready.waiters.seated(claim.queue, request.group) for claim in claims)
                if others or messages <= 0 or room <= 0:
                    break
                call = self._call(_at_most(request, messages), room)
                found = self._attempt(call)
                if not isinstance(found, PopReply) or call.held is not None:
                    break
                replies.append(found)
        if len(replies) > 1 and not replies[-1].claims:
            replies.pop()
        return replies

    def _call(self, request: PopRequest, room: int) -> _Call:
        since, began = self._core.clock.now(), trio.current_time()
        if request.wait and (later := deferral.get()) is not None:
            since, began = later.asked = later.asked or (since, began)
        deadline = inf if request.wait >= rules.FOREVER else began + request.wait / SECOND
        return _Call(request, since, began, deadline, room, None, {}, {})

    async def _decided(self, call: _Call) -> PopReply:
        """The claims of a pop, which nobody may see before they are durable. No checkpoint behind them."""
        if call.waiter is not None:  # what it had claimed was refused
            self.ready.waiters.enter(call.waiter)
        try:
            while True:
                await self._core.turn()
                found = self._attempt(call)
                if isinstance(found, list):
                    await self._fetch(found, call)
                elif found is None:
                    await trio.lowlevel.checkpoint()
                elif call.held is not None:
                    await self._park(call, call.held)
                    if self._closing:
                        return replace(found, lease_id="", claims=())
                elif found.claims or self._over(call.deadline):
                    return found
                else:
                    await self._park(call, call.deadline)
        except BaseException:
            if call.woken:  # it made no use of its wake-up: let the next one look
                self._pass_on(call.request)
            raise
        finally:
            if call.waiter is not None:
                self.ready.waiters.leave(call.waiter)

    def _over(self, deadline: float) -> bool:
        return self._closing or trio.current_time() >= deadline

    async def _durable(self, replies: Sequence[PopReply]) -> None:
        """Claims leave when they are durable; if the caller is gone by then, they are given back as if never made.

        What was committed at its delivery (autoAck) cannot be given back: a caller who is cancelled gets it first.
        """
        try:
            if replies[0].lease_id or not replies[0].claims:
                await self._core.log.durable()
            else:
                with trio.CancelScope(shield=True):
                    await self._core.log.durable()
        except BaseException:
            for reply in replies:
                self._acks.withdraw(reply.lease_id)
            raise

    async def _fetch(self, wanted: list[_Wanted], call: _Call) -> None:
        room = limits.POP_BYTES
        for want in wanted:
            if isinstance(want, _Locate):
                partition = self._core.directory.partition(want.pid)
                base = 0 if partition is None else partition.base
                at = await self._producers.first_offset_at(want.pid, want.ts)
                # nothing that is sealed is young enough: it begins where what is not sealed does
                call.starts[want.pid] = base if at is None else at
            elif room > 0:
                records = await self._producers.fetch(want.pid, want.first, want.count, room)
                call.records[want.pid] = (want.first, records)
                room -= sum([len(record.payload) for record in records])
        call.loaded = True

    async def _park(self, call: _Call, deadline: float) -> None:
        request, waiters = call.request, self.ready.waiters
        if call.waiter is None:
            waiter = Waiter(request.group, request.queue, request.partition, request.namespace, request.task)
            waiters.enter(waiter)
            call.waiter = waiter
        waiters.park(call.waiter)
        tell_decided(parked=True)
        try:
            if deadline == inf:
                await call.waiter.event.wait()
            else:
                with trio.move_on_at(deadline):
                    await call.waiter.event.wait()
        finally:
            waiters.step_out(call.waiter)
            # one that is held knows of messages: when it goes, the next in line may have them
            call.woken = call.waiter.event.is_set() or call.held is not None
        call.forget()

    def _pass_on(self, request: PopRequest) -> None:
        for queue in self._targets(request):
            self.ready.waiters.wake(queue, request.partition or "", request.group)

    def _targets(self, request: PopRequest) -> list[QueueState]:
        queues = self._core.directory.queues
        if request.queue is not None:
            queue = queues.get(request.queue)
            return [queue] if queue is not None else []
        return [queue for queue in queues.values() if queue.matches(request.namespace, request.task)]

    # -- one try ---------------------------------------------------------------------------------------------------

    def _attempt(self, call: _Call) -> PopReply | list[_Wanted] | None:
        """One synchronous try: claims of up to `partitions` partitions and `batch` messages, in one step of the log.

        A list of what has to be read from the store first, when that is needed for all that it might claim; after one
        reading it takes what it can get, unless that is nothing. None when it only gave messages up (the delivery
        limit), or has not looked everywhere, and is to be made again.
        """
        request, core = call.request, self._core
        call.held = None
        if request.session is not None and not self._acks.is_open(request.session):
            call.deadline = 0.0  # nobody is there to lease for: it ends, and whoever is next may have its wake-up
            if call.woken:
                self._pass_on(request)
            return PopReply("", request.group, ())
        draft = Draft(core)
        lease_id = "" if request.auto_ack else core.ids.uuid(draft.now)
        budget = _Budget(request.partitions or 1, request.batch, call.room)
        claims: list[Claim] = []
        wanted: list[_Wanted] = []
        conflating = conflict = False
        for queue in self._consumed(draft, call):
            group = self._register(draft, queue, call)
            conflict = conflict or not group.conflation
            if group.conflation and not conflating:
                conflating = True
                budget.partitions = request.partitions or request.batch
            wanted += self._from_queue(draft, queue, group, call, lease_id, budget, claims)
        if wanted and not (claims and call.loaded):
            return wanted
        reply = PopReply(
            lease_id if claims else "",
            request.group,
            tuple([self._plain(claim) for claim in claims]),
            request.conflation and not conflict,
            request.conflation and conflict,
        )
        if claims and not budget.full(conflating=conflating):
            call.held = self._hold(call, claims)
            if call.held is not None:
                return reply
        try:
            core.commit(draft)
        except StorageFull:
            if request.wait:  # it waits on: every parked pop looks again when there is room
                return replace(reply, lease_id="", claims=())
            raise
        if claims:
            if lease_id and request.session is not None:
                self._acks.hold(request.session, request.group, lease_id, claims)
            if self.ready.left(request.group, claims):
                self._pass_on(request)
        elif budget.left or any(isinstance(effect, DeadLetterPut) for effect in draft.effects):
            return None
        return reply

    def _plain(self, claim: Claim) -> Claim:
        """The claim with its payloads in the clear. Raises QueenError when the key is missing: what nobody can read,
        nobody takes."""
        if self._producers.clear(claim.records):
            return claim
        return replace(claim, records=self._core.cipher.plain_all(claim.records))

    def _hold(self, call: _Call, claims: Sequence[Claim]) -> float | None:
        """Until when the pop waits for a fuller batch instead of making these claims; None when it makes them now."""
        if not call.request.wait:
            return None
        queues = (self._core.directory.queues.get(claim.queue) for claim in claims)
        pause = max((queue.options.min_pop_wait_ms for queue in queues if queue is not None), default=0)
        until = min(call.began + pause * MILLISECOND / SECOND, call.deadline)
        return None if self._over(until) else until

    def _consumed(self, draft: Draft, call: _Call) -> list[QueueState]:
        """The queues that this try looks at: by discovery, each time with another one first. Who asks makes the queue;
        who has waited does not bring back one that was deleted meanwhile."""
        request = call.request
        if request.queue is not None and request.partition is None and request.create and call.waiter is None:
            return [draft.queue(request.queue)]
        targets = self._targets(request)
        self._rounds += 1
        first = self._rounds % len(targets) if targets else 0
        return targets[first:] + targets[:first]

    def _register(self, draft: Draft, queue: QueueState, call: _Call) -> GroupPut:
        """The group's registration: the stored one, or the one that this first contact makes (7.6).

        The contact is the call, not the try: what came while a pop of one partition was parked, or into a queue that
        was made meanwhile, came after it.
        """
        request = call.request
        known = queue.groups.get(request.group)
        if known is not None:
            return known
        before = request.partition is not None or queue.put.created_at > call.since
        group = registration(
            queue.put.qid,
            request.group,
            request.subscription_mode,
            request.subscription_from,
            call.since if before else draft.now,
            self._core.settings.subscription_mode,
            request.conflation,
        )
        if request.partition is None and request.group != QUEUE_MODE:
            draft.effects.append(group)
        return group

    def _from_queue(
        self,
        draft: Draft,
        queue: QueueState,
        group: GroupPut,
        call: _Call,
        lease_id: str,
        budget: _Budget,
        claims: list[Claim],
    ) -> list[_Wanted]:
        """Claims from one queue, round its ready partitions, and what has to be read before others can be made. Whose
        messages have to be read stays first in line, so that it is not passed over for as long as others come in."""
        pinned = call.request.partition
        index = self.ready.index(queue, group, whole=pinned is None)
        self.ready.promote(queue, index, draft.now)
        wanted: list[_Wanted] = []
        unseen = index.unseen
        for partition in self._candidates(queue, call, index, group, budget.looks):
            if budget.spent:
                break
            claim = self._claim(draft, queue, partition, group, index, call, lease_id, budget)
            index.passed(partition.pid)
            if isinstance(claim, Claim):
                budget.take(len(claim.records), self._producers.size_of(claim.records))
                claims.append(claim)
            elif claim is not None:
                budget.take(claim.count if isinstance(claim, _Load) else 0, 0)
                wanted.append(claim)
        for want in reversed(wanted):
            index.first(want.pid)
        if unseen and pinned is None:
            budget.looks -= unseen - index.unseen
            budget.left = budget.left or index.unseen > 0
        return wanted

    def _candidates(
        self, queue: QueueState, call: _Call, index: GroupIndex, group: GroupPut, looks: int
    ) -> Iterator[PartitionState]:
        """Holds of transactions do not matter here: a claim and a transaction are each decided in one go. What is
        packed away, and has nothing for the group, stays so."""
        directory = self._core.directory
        if call.request.partition is not None:
            found = directory.find(queue.name, call.request.partition)
            if found is not None:
                yield found
            return
        since = first_wanted(group)
        for pid in index.round(looks, dict.fromkeys((*call.starts, *call.records))):
            rests = pid not in directory.active and directory.at_rest(pid, group.group, since)
            partition = None if rests else directory.partition(pid)
            if partition is None:
                index.rest(pid)
            else:
                yield partition

    def _claim(
        self,
        draft: Draft,
        queue: QueueState,
        partition: PartitionState,
        group: GroupPut,
        index: GroupIndex,
        call: _Call,
        lease_id: str,
        budget: _Budget,
    ) -> Claim | _Wanted | None:
        """Take what the group may have of one partition now; None when that is nothing."""
        request, options, now = call.request, queue.options, draft.now
        cursor = partition.cursors.get(group.group)
        if cursor is None:
            start = self._start(partition, group, call)
            if isinstance(start, _Locate):
                return start
            cursor = rules.fresh(partition.pid, group.group, start)
            if request.partition is not None and group.group not in (*queue.groups, QUEUE_MODE):
                draft.effects.append(cursor)  # not registered: the cursor is what remembers where the group began
        at = claimable_at(partition, cursor, options, now)
        if at is None or at > now:
            self.ready.aside(index, partition.pid, at)
            return None
        head = partition.floor(cursor.committed) + 1
        first = self._newest_visible(partition, head, queue, now) if group.conflation else head
        count = 1 if group.conflation else budget.messages
        records = self._records(partition, first, count, budget.size, call)
        if records is None:
            first = max(first, partition.log_start)
            return _Load(partition.pid, first, min(count, partition.next_offset - first, limits.POP_BATCH_MAX))
        visible = now - options.delayed_processing_seconds * SECOND
        if records and records[-1].ts > visible:
            young = next(record.ts for record in records if record.ts > visible)
            records = tuple(record for record in records if record.ts <= visible)
            if not records:
                self.ready.aside(index, partition.pid, now + young - visible)
        if not records:
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
        for record in taken.dead:
            reason = rules.DELIVERY_LIMIT.format(limit=options.delivery_limit)
            draft.effects.append(self._dead_letter(draft, queue, partition, cursor, record, reason))
        draft.effects.append(taken.cursor)
        if not taken.records:
            return None
        if group.conflation and taken.cursor.lease_id and group.group not in queue.groups:
            self._acks.conflated(partition.pid, group.group, lease_id)
        return Claim(queue.name, partition.name, partition.pid, taken.attempt, taken.records)

    def _start(self, partition: PartitionState, group: GroupPut, call: _Call) -> int | _Locate:
        """The committed offset with which a group without a cursor starts."""
        since = first_wanted(group)
        if since is None:
            return partition.log_start - 1
        at = offset_at(partition, since)
        if at is None:
            at = call.starts.get(partition.pid)
        return _Locate(partition.pid, since) if at is None else at - 1

    @staticmethod
    def _newest_visible(partition: PartitionState, head: int, queue: QueueState, now: int) -> int:
        """For a conflating group: the last message whose delay is over. What lies before those that are remembered is
        older than any delay."""
        delay = queue.options.delayed_processing_seconds * SECOND
        if not delay:
            return partition.next_offset - 1
        after = offset_at(partition, now - delay + 1)
        return max((partition.base if after is None else after) - 1, head)

    def _records(
        self, partition: PartitionState, first: int, count: int, size: int, call: _Call
    ) -> tuple[Record, ...] | None:
        found = self._producers.in_memory(partition, first, count, size)
        if found is not None:
            return found
        asked, loaded = call.records.get(partition.pid, (None, ()))
        if asked != max(first, partition.log_start):
            return None
        return loaded[:count]

    def _dead_letter(
        self, draft: Draft, queue: QueueState, partition: PartitionState, cursor: CursorPut, record: Record, error: str
    ) -> DeadLetterPut:
        mid = self._core.ids.uuid(draft.now)
        return DeadLetterPut(mid, queue.put.qid, partition.pid, cursor.group, record, error, cursor.retries, draft.now)

    # -- life ------------------------------------------------------------------------------------------------------

    def look_again(self) -> None:
        """Something that kept every pop from claiming is over."""
        self.ready.waiters.wake_all()

    def close(self) -> None:
        """The broker stops: parked pops answer now, with nothing."""
        self._closing = True
        self.look_again()


def _at_most(request: PopRequest, messages: int) -> PopRequest:
    return request if request.batch <= messages else replace(request, batch=messages)

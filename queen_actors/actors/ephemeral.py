"""Ephemeral queues: the broker's side of `domain/ephemeral.py`. Nothing of them is in the log.

Every call is one synchronous step, so that a caller who is cancelled while it waits holds nothing.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence

import trio

from queen_actors import limits
from queen_actors.domain.ephemeral import (
    Delivery,
    Depth,
    Drops,
    EphemeralAck,
    EphemeralMessage,
    EphemeralPop,
    EphemeralQueue,
    EphemeralView,
    Options,
)
from queen_actors.errors import Overloaded, Unavailable
from queen_actors.ports import Clock, Ids
from queen_actors.values import SECOND

from .agenda import Agenda
from .queue import Lines, Waiter

IDLE = limits.EPHEMERAL_IDLE_SECONDS * SECOND


class Ephemeral:
    """The ephemeral queues of one broker."""

    def __init__(self, clock: Clock, ids: Ids) -> None:
        self._clock = clock
        self._agenda = Agenda(clock)
        self._epoch = f"{ids.choose(1 << 64):016x}"
        """Told apart from that of every other start of a broker: an ack from before is stale."""
        self._queues: OrderedDict[str, EphemeralQueue] = OrderedDict()
        """Least recently used first."""
        self._lines: dict[str, Lines[str | None]] = {}
        self._next = 0
        self._cost = 0
        self._closing = False

    @property
    def cost(self) -> int:
        """The memory that all queues take, in bytes, nearly."""
        return self._cost

    # -- messages --------------------------------------------------------------------------------------------------

    def push(self, name: str, partition: str, payloads: Sequence[bytes]) -> int:
        """Append all messages or none; how many. Raises Overloaded `queue_full` when the queue's bounds refuse them,
        Unavailable `ephemeral_unavailable` when the broker's do."""
        now = self._clock.now()
        queue = self._open(name, now)
        before = queue.cost
        self._settle(queue, now)
        sizes = [len(payload) for payload in payloads]
        excess = queue.excess(sizes)
        if excess is None:
            self._changed(queue, before)
            raise Overloaded("the ephemeral queue is full, by its maxBytes or its maxLength", code="queue_full")
        grows = sum(sizes) + len(sizes) * limits.EPHEMERAL_MESSAGE_COST - queue.freed(excess)
        self._changed(queue, before)
        self._make_room(grows, now, queue)
        before = queue.cost
        queue.push(partition, payloads, self._next, now, excess)
        self._next += len(payloads)
        self._changed(queue, before)
        lines = self._lines.get(name)
        if lines is not None:
            for group in list(lines.groups):
                self._wake(name, [(group, partition)] * min(len(payloads), lines.seats))
        return len(payloads)

    async def pop(self, request: EphemeralPop) -> list[EphemeralMessage]:
        """Messages for a group, which joins the queue by this; waits up to `request.wait` for some, and while it does,
        for as many as the queue's window says. Empty when there were none."""
        await trio.lowlevel.checkpoint()
        deadline = trio.current_time() + request.wait / SECOND
        first = math.inf
        lines: Lines[str | None] | None = None
        try:
            while True:
                now, at = self._clock.now(), trio.current_time()
                queue = self._joined(request, now)
                available = queue.available(request.group, request.partition)
                first = min(first, at) if available else math.inf
                waited = 0 if first == math.inf else round((at - first) * SECOND)
                over = at >= deadline or self._closing
                if over or queue.enough(available, request.batch, waited):
                    return self._take(queue, request, now)
                if lines is None:
                    lines = self._enter(request.queue, request.group)
                window = queue.options.window
                until = first + window / SECOND if available and window else math.inf
                await self._park(lines, request, min(deadline, until))
        finally:
            if lines is not None:
                self._leave(request.queue, request.group, lines)

    def ack(self, name: str, group: str, acks: Sequence[EphemeralAck]) -> list[str]:
        """What became of each: acked, redelivered, stale or unknown."""
        queue = self._queues.get(name)
        if queue is None:
            return [self._verdict(None, group, ack) for ack in acks]
        now, before = self._clock.now(), queue.cost
        self._touch(queue, now)
        self._settle(queue, now)
        outcomes = [self._verdict(queue, group, ack) for ack in acks]
        self._changed(queue, before)
        return outcomes

    def _verdict(self, queue: EphemeralQueue | None, group: str, ack: EphemeralAck) -> str:
        epoch, partition, number = _parts(ack.id)
        if epoch is None or epoch == self._epoch:
            outcome = "unknown" if queue is None else queue.ack(group, partition, number, ack.completed)
            if outcome == "redelivered" and queue is not None:
                self._wake(queue.name, [(group, partition)])
            return outcome
        return "stale"

    # -- queues ----------------------------------------------------------------------------------------------------

    def configure(self, name: str, options: Options) -> EphemeralView:
        """Declare the queue with these options; what is not named goes back to its default."""
        now = self._clock.now()
        queue = self._open(name, now)
        queue.options, queue.declared = options, True
        before = queue.cost
        self._settle(queue, now)
        self._changed(queue, before)
        self._wake_all(name)
        return _view(queue)

    def reset(self, name: str) -> int:
        """Drop every message and lease of the queue; how many messages."""
        queue = self._queues.get(name)
        if queue is None:
            return 0
        before = queue.cost
        count = queue.reset()
        self._touch(queue, self._clock.now())
        self._changed(queue, before)
        return count

    def delete(self, name: str) -> tuple[bool, bool]:
        """The queue is gone with everything in it; was there one, and was it declared?"""
        queue = self._queues.get(name)
        if queue is None:
            return False, False
        self._remove(queue)
        return True, queue.declared

    def views(self) -> list[EphemeralView]:
        """Every queue, by its name."""
        now = self._clock.now()
        for queue in self._queues.values():
            self._settled(queue, now)
        return [_view(self._queues[name]) for name in sorted(self._queues)]

    def depth(self, name: str, group: str | None) -> tuple[EphemeralView, Depth] | None:
        """Counts of one queue, for a group or for the one that is furthest behind; None: there is no such queue."""
        queue = self._queues.get(name)
        if queue is None:
            return None
        self._settled(queue, self._clock.now())
        return _view(queue), queue.depth(group)

    # -- life ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Redeliver what a consumer had too long, drop what is too old, forget what nobody uses; for ever."""
        while True:
            for name, _ in await self._agenda.due(1):
                queue = self._queues.get(name)
                if queue is None:
                    continue
                now = self._clock.now()
                self._settled(queue, now)
                if self._idle(queue, now) and not len(queue):
                    self._remove(queue)

    def close(self) -> None:
        """The broker stops: parked pops answer now."""
        self._closing = True
        for name in list(self._lines):
            self._wake_all(name)

    # -- one step of a queue ---------------------------------------------------------------------------------------

    def _open(self, name: str, now: int) -> EphemeralQueue:
        """The queue, made if there is none, with the groups that wait for it already."""
        queue = self._queues.get(name)
        if queue is None:
            if len(self._queues) >= limits.EPHEMERAL_QUEUES:
                self._forget_idle(now, 1)
                if len(self._queues) >= limits.EPHEMERAL_QUEUES:
                    raise _unavailable(f"{limits.EPHEMERAL_QUEUES} ephemeral queues is the most")
            self._make_room(limits.EPHEMERAL_QUEUE_COST, now, None)
            queue = self._queues[name] = EphemeralQueue(name, now)
            self._cost += queue.cost
            for group in list(self._lines[name].groups)[: limits.EPHEMERAL_GROUPS] if name in self._lines else ():
                queue.join(group)
            self._plan(queue)
        self._touch(queue, now)
        return queue

    def _touch(self, queue: EphemeralQueue, now: int) -> None:
        queue.touched = now
        self._queues.move_to_end(queue.name)

    def _joined(self, request: EphemeralPop, now: int) -> EphemeralQueue:
        queue = self._open(request.queue, now)
        if request.group not in queue.groups and len(queue.groups) >= limits.EPHEMERAL_GROUPS:
            raise Overloaded(
                f"{limits.EPHEMERAL_GROUPS} groups of one ephemeral queue is the most", code="ephemeral_too_many_groups"
            )
        before = queue.cost
        self._settle(queue, now)
        queue.join(request.group)
        self._changed(queue, before)
        return queue

    def _take(self, queue: EphemeralQueue, request: EphemeralPop, now: int) -> list[EphemeralMessage]:
        before = queue.cost
        taken = queue.take(request.group, request.partition, request.batch, now, request.auto_ack)
        self._changed(queue, before)
        return [self._message(delivery) for delivery in taken]

    def _message(self, delivery: Delivery) -> EphemeralMessage:
        mid = f"e:{self._epoch}:{delivery.partition}:{delivery.number}"
        return EphemeralMessage(mid, delivery.partition, delivery.attempts, delivery.payload)

    def _settled(self, queue: EphemeralQueue, now: int) -> None:
        before = queue.cost
        self._settle(queue, now)
        self._changed(queue, before)

    def _settle(self, queue: EphemeralQueue, now: int) -> None:
        self._wake(queue.name, queue.settle(now))

    def _changed(self, queue: EphemeralQueue, before: int) -> None:
        self._cost += queue.cost - before
        self._plan(queue)

    def _plan(self, queue: EphemeralQueue) -> None:
        """Look at the queue again when something of it is due, or when nobody has used it for too long."""
        at = queue.due()
        if not queue.declared and not len(queue):
            at = queue.touched + IDLE
        if at is not None:
            self._agenda.add(at, (queue.name, ""))

    def _idle(self, queue: EphemeralQueue, now: int) -> bool:
        if queue.name in self._lines:
            self._touch(queue, now)
            self._plan(queue)
            return False
        return not queue.declared and queue.touched + IDLE <= now

    def _remove(self, queue: EphemeralQueue) -> None:
        del self._queues[queue.name]
        self._cost -= queue.cost

    # -- the broker's memory ---------------------------------------------------------------------------------------

    def _make_room(self, more: int, now: int, keep: EphemeralQueue | None) -> None:
        """See that so many bytes more may be held: what nobody has used for long goes first, whatever is in it.

        Raises Unavailable.
        """
        if self._cost + more <= limits.EPHEMERAL_BYTES:
            return
        self._forget_idle(now, more, keep)
        if self._cost + more > limits.EPHEMERAL_BYTES:
            raise _unavailable(f"the broker's ephemeral queues hold {self._cost} bytes, and may hold no more")

    def _forget_idle(self, now: int, more: int, keep: EphemeralQueue | None = None) -> None:
        for queue in list(self._queues.values()):
            if queue.touched + IDLE > now:
                return
            if queue is not keep and self._idle(queue, now):
                self._remove(queue)
                if self._cost + more <= limits.EPHEMERAL_BYTES:
                    return

    # -- parked pops -----------------------------------------------------------------------------------------------

    def _enter(self, name: str, group: str) -> Lines[str | None]:
        """A pop is going to wait. Raises Overloaded when more do than may."""
        lines = self._lines.get(name)
        if lines is None:
            lines = self._lines[name] = Lines()
        lines.enter(group)
        return lines

    def _leave(self, name: str, group: str, lines: Lines[str | None]) -> None:
        lines.exit(group)
        if not lines.seats:
            del self._lines[name]

    async def _park(self, lines: Lines[str | None], request: EphemeralPop, until: float) -> None:
        waiter = Waiter(request.group, request.queue, request.partition, None, None)
        lines.park(request.partition, waiter)
        try:
            with trio.move_on_at(until):
                await waiter.event.wait()
        except trio.Cancelled:
            if waiter.event.is_set():  # a wake-up that nobody used: let the next one look
                self._wake(request.queue, [(request.group, request.partition)])
            raise
        finally:
            lines.leave(request.partition, waiter)

    def _wake(self, name: str, places: Sequence[tuple[str, str | None]]) -> None:
        """Wake one pop for each message: of its partition, and of any."""
        lines = self._lines.get(name)
        if lines is None:
            return
        for group, partition in places:
            lines.wake(group, None)
            if partition is not None:
                lines.wake(group, partition)

    def _wake_all(self, name: str) -> None:
        lines = self._lines.get(name)
        if lines is not None:
            lines.wake_all()


def _parts(mid: str) -> tuple[str | None, str, int]:
    """Epoch, partition and number of a message's id; the epoch is None when it is none of ours."""
    head, _, number = mid.rpartition(":")
    mark, epoch, partition = [*head.split(":", 2), "", ""][:3]
    if mark != "e" or not epoch or not (number.isascii() and number.isdigit() and len(number) < 20):
        return None, "", -1
    return epoch, partition, int(number)


def _view(queue: EphemeralQueue) -> EphemeralView:
    drops = Drops(queue.drops.bounds, queue.drops.ttl, queue.drops.retry)
    return EphemeralView(
        queue.name,
        queue.declared,
        len(queue),
        queue.bytes,
        queue.partitions,
        len(queue.groups),
        drops,
        queue.options,
    )


def _unavailable(detail: str) -> Unavailable:
    return Unavailable(detail, code="ephemeral_unavailable")

"""Tails: reading a queue as it grows, without a lease or a cursor (`websocket.md`, section 4).

A tail keeps a position only for partitions that have something it has not delivered. For every other one the next
message to deliver is the next that is appended, so an idle partition costs a tail nothing, and a wake-up costs what was
appended, however many partitions the queue has. A tail that is behind nowhere follows its queue's flow (`flow.py`):
what a commit brought is put together once for all of them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from itertools import islice

import trio
from msgspec import Struct

from queen_actors import limits
from queen_actors.domain.cursor import Claim
from queen_actors.domain.effects import Appended, Effect, Record
from queen_actors.domain.partition import PartitionState
from queen_actors.domain.subscription import TailTerms
from queen_actors.errors import TooLarge

from .core import Core
from .flow import ROUND_MESSAGES, Flow, Round
from .partition import Producers, offset_at

STEP = 500
"""How many partitions are looked at before others may run."""
TOLD_BYTES = 2 * limits.WS_EVENT_BYTES
"""Of payload: what a tail is told at once at the most. What it reads by itself are rounds of `ROUND_MESSAGES` and
`WS_EVENT_BYTES`: a slow tail must not pile up what it cannot send."""
KEPT = 4
"""How many rounds are kept for other tails that begin where one did."""


class Gap(Struct, frozen=True):
    """Messages that the tail was to deliver and that retention has removed: offsets `first`..`last`."""

    partition: str
    pid: int
    first: int
    last: int


class TailStatistics(Struct, frozen=True):
    """`credit`: how many messages may still be delivered; `behind`: partitions with undelivered messages."""

    credit: int
    behind: int


class Kept(Struct, frozen=True, eq=False):
    """What a tail that wanted up to `count` messages of these partitions, each from its position on, has found; where
    it stands after that (None: the partition is gone)."""

    wanted: tuple[tuple[int, int], ...]
    count: int
    found: Sequence[Gap | Claim]
    moves: Sequence[tuple[int, int | None]]


class Tail:
    """One reader. `open` first, then `next` again and again, by one task; `close` at the end."""

    def __init__(self, core: Core, producers: Producers, tails: Tails, terms: TailTerms) -> None:
        self.terms = terms
        self._core = core
        self._producers = producers
        self._tails = tails
        self._credit = terms.credit
        self._behind: OrderedDict[int, int] = OrderedDict()
        self._news = trio.lowlevel.ParkingLot()
        self._waiting = False
        self._told: list[Round] = []
        self._since = terms.start if isinstance(terms.start, int) else None

    def statistics(self) -> TailStatistics:
        return TailStatistics(self._credit, len(self._behind))

    async def open(self) -> dict[str, int]:
        """Fix where it starts; returns the next offset of each partition that there is.

        An offset beyond a partition's end can only be of an earlier queue of this name: the partition is read from its
        start, as one that was created later. Raises TooLarge for a queue whose partitions cannot all be named.
        """
        self._tails.add(self)
        try:
            while True:
                await self._core.turn()
                reloads = self._core.log.reloads
                positions = await self._scan()
                if await self._core.kept(reloads) and reloads == self._core.log.reloads:
                    return positions
                self._behind.clear()
        except TooLarge:
            self.close()
            await self._core.log.durable()
            raise
        except BaseException:
            self.close()
            raise

    async def _scan(self) -> dict[str, int]:
        positions: dict[str, int] = {}
        for place, (name, pid) in enumerate(self._partitions()):
            if place % STEP == STEP - 1:
                await trio.lowlevel.checkpoint()
            partition = self._core.directory.peek(pid)
            if partition is None:
                continue
            begin = await self._start(partition)
            partition = self._core.directory.peek(pid)
            if partition is None:
                continue
            positions[name] = begin
            if begin < partition.next_offset:
                self._behind[pid] = begin
            else:
                self._behind.pop(pid, None)
        return positions

    def _partitions(self) -> list[tuple[str, int]]:
        queue = self._core.directory.queues.get(self.terms.queue)
        if queue is None:
            return []
        if self.terms.partition is not None:
            pid = queue.partitions.get(self.terms.partition)
            return [] if pid is None else [(self.terms.partition, pid)]
        if len(queue.partitions) > limits.WS_TAIL_PARTITIONS:
            raise TooLarge(
                f"the queue has {len(queue.partitions)} partitions, and a tail names up to "
                f"{limits.WS_TAIL_PARTITIONS}: tail its partitions one by one"
            )
        return list(queue.partitions.items())

    async def _start(self, partition: PartitionState) -> int:
        start = self.terms.start
        if start == "now":  # what came since the tail was asked for is behind already
            return self._behind.get(partition.pid, partition.next_offset)
        if start == "start":
            return partition.log_start
        if isinstance(start, int):
            at = offset_at(partition, start)
            if at is None:
                at = await self._producers.first_offset_at(partition.pid, start)
            return max(partition.base if at is None else at, partition.log_start)
        assert not isinstance(start, str)
        at = start.get(partition.name, partition.log_start)
        return at if at <= partition.next_offset else partition.log_start

    # -- what happens ----------------------------------------------------------------------------------------------

    def fall_behind(self, pid: int, offset: int) -> None:
        """It has to read the partition from this offset on, unless it is further behind already."""
        if pid not in self._behind:
            self._behind[pid] = offset
        self._news.unpark_all()

    def tell(self, news: Round) -> bool:
        """Take the round, which is durable, or say that it cannot."""
        if not self._waiting or self._credit < news.messages:
            return False
        if news.size + sum([told.size for told in self._told]) > TOLD_BYTES:
            return False
        self._told.append(news)
        self._credit -= news.messages
        self._news.unpark_all()
        return True

    def reset(self) -> None:
        """The state was read again from the log: what is not durable was never there, its partitions neither."""
        queue = self._core.directory.queues.get(self.terms.queue)
        for pid, position in list(self._behind.items()):
            partition = self._core.directory.peek(pid)
            mine = partition is not None and queue is not None and partition.qid == queue.put.qid
            if partition is None or not mine or position >= partition.next_offset:
                del self._behind[pid]
        self._news.unpark_all()

    def grant(self, messages: int) -> None:
        """So many more messages may be delivered."""
        self._credit = min(self._credit + messages, limits.WS_CREDIT_MAX)
        self._news.unpark_all()

    def close(self) -> None:
        """Nothing is noted for it any more."""
        self._tails.discard(self)
        self._behind.clear()
        self._told.clear()

    # -- deliveries ------------------------------------------------------------------------------------------------

    async def next(self) -> Sequence[Gap | Claim]:
        """Wait for credit and for messages; what it returns is durable, and each message comes once. Tails that are up
        to date get the same object.

        Safe to cancel: whoever is cancelled has not moved on. Raises StorageFailed and Unavailable.
        """
        while True:
            if self._told:
                return self._told.pop(0).claims
            if self._follows() or self._credit <= 0:
                await self._wait()
            elif found := await self._round():
                return found

    def _follows(self) -> bool:
        """Is everything delivered that is durable, so that it can wait to be told of more?"""
        if self._since is not None and (self._behind or self._since > self._core.clock.now()):
            return not self._behind  # a flow does not look at instants
        if self._tails.follow(self, self._behind):
            self._behind.clear()
        return not self._behind

    async def _wait(self) -> None:
        """For news of any kind."""
        self._waiting = True
        try:
            await self._news.park()
        finally:
            self._waiting = False

    async def _round(self) -> Sequence[Gap | Claim]:
        """Read a little of each partition that is behind, the longest waiting first; move on when it is durable."""
        await self._core.turn()
        reloads, losses = self._core.log.reloads, self._tails.losses
        count = min(self._credit, ROUND_MESSAGES)
        wanted = tuple(islice(self._behind.items(), ROUND_MESSAGES))
        shared = self._since is None and self._tails.shared(self.terms.queue)
        kept = self._tails.kept(wanted, count) if shared else None
        if kept is None:
            found, moves = await self._gather(wanted, count)
            kept = Kept(wanted, count, tuple(found) if shared else found, moves)
            if shared and found and losses == self._tails.losses:
                self._tails.keep(self.terms.queue, kept)  # whoever takes it waits as well until it is durable
        if not await self._core.kept(reloads) or self._core.log.reloads != reloads:
            return []
        for pid, after in kept.moves:
            self._move(pid, after)
        self._credit -= sum([len(one.records) for one in kept.found if isinstance(one, Claim)])
        return kept.found

    async def _gather(
        self, wanted: Sequence[tuple[int, int]], count: int
    ) -> tuple[list[Gap | Claim], list[tuple[int, int | None]]]:
        """Up to `count` messages of these partitions, each from its position on; where the tail stands after that."""
        found: list[Gap | Claim] = []
        moves: list[tuple[int, int | None]] = []
        size = limits.WS_EVENT_BYTES
        active = self._core.directory.active
        for pid, position in wanted:
            if count <= 0 or size <= 0:
                break
            partition = active.get(pid)
            records = None if partition is None else _in_memory(partition, position, count, size)
            if partition is None or records is None:
                gap, records, after = await self._read(pid, position, count, size)
                if gap is not None:
                    found.append(gap)
                partition = self._core.directory.peek(pid) if records else None
            else:
                after = records[-1].offset + 1
            moves.append((pid, after))
            claim = None if partition is None else self._claim(partition, records)
            if claim is not None:
                found.append(claim)
                count -= len(claim.records)
                size -= sum([len(record.payload) for record in claim.records])
        return found, moves

    async def _read(
        self, pid: int, position: int, count: int, max_bytes: int
    ) -> tuple[Gap | None, tuple[Record, ...], int | None]:
        """What is missing, what comes next, and where the tail stands after that (None: the partition is gone)."""
        partition = self._core.directory.peek(pid)
        if partition is None:
            return None, (), None
        records = await self._producers.read(partition, position, count, max_bytes)
        if not records:  # nothing is left, or retention took it while it was read
            partition = self._core.directory.peek(pid)
            if partition is None:
                return None, (), None
        first = records[0].offset if records else max(position, partition.log_start)
        gap = Gap(partition.name, pid, position, first - 1) if first > position else None
        return gap, records, records[-1].offset + 1 if records else first

    def _claim(self, partition: PartitionState, records: tuple[Record, ...]) -> Claim | None:
        """Those of the messages that the tail is to deliver; None when there are none."""
        if self._since is not None:
            records = tuple(record for record in records if record.ts >= self._since)
            if not records:
                return None
        plain = self._core.cipher.plain_all(records)
        return Claim(self.terms.queue, partition.name, partition.pid, 1, plain)

    def _move(self, pid: int, position: int | None) -> None:
        """The tail has everything before `position`."""
        if pid not in self._behind:
            return
        partition = self._core.directory.peek(pid)
        if position is None or (partition is not None and position >= partition.next_offset):
            del self._behind[pid]
        else:  # also when the partition is gone by now: that may not be durable yet
            self._behind[pid] = position
            self._behind.move_to_end(pid)


def _in_memory(partition: PartitionState, position: int, count: int, max_bytes: int) -> tuple[Record, ...] | None:
    """What comes next, when it is in memory and nothing is missing before it."""
    if position < partition.log_start:
        return None
    if position == partition.next_offset - 1 and partition.tail:
        return (partition.tail[-1],)  # of a partition that has few messages, or gets them one by one
    return partition.in_memory(position, count, max_bytes)


class Tails:
    """The tails of one broker, by what each reads, whether it exists or not."""

    def __init__(self, core: Core, producers: Producers) -> None:
        self._core = core
        self._producers = producers
        self._open: dict[str, dict[Tail, None]] = {}
        self._flows: dict[tuple[str, str | None], Flow] = {}
        self._kept: OrderedDict[tuple[int, int, int], Kept] = OrderedDict()
        self.losses = 0
        """How often messages may have gone."""
        core.log.on_commit.append(self._committed)

    def __len__(self) -> int:
        return sum(len(tails) for tails in self._open.values())

    def tail(self, terms: TailTerms) -> Tail:
        """A reader on these terms; nothing happens before it is opened."""
        return Tail(self._core, self._producers, self, terms)

    def add(self, tail: Tail) -> None:
        queue, partition = tail.terms.queue, tail.terms.partition
        tails = self._open.setdefault(queue, {})
        if tail not in tails:
            tails[tail] = None
            flow = self._flows.get((queue, partition))
            if flow is None:
                flow = self._flows[(queue, partition)] = Flow(self._core, queue)
            flow.tails += 1

    def follow(self, tail: Tail, behind: Mapping[int, int]) -> bool:
        """From now on it is told what is appended, unless it is behind with what is durable."""
        flow = self._flows.get((tail.terms.queue, tail.terms.partition))
        return flow is not None and flow.join(tail, behind)

    def shared(self, queue: str) -> bool:
        """Do several tails read this queue, so that one may find what another one has read?"""
        return len(self._open.get(queue, ())) > 1

    def kept(self, wanted: tuple[tuple[int, int], ...], count: int) -> Kept | None:
        """What another tail found that wanted the same; nothing has gone since."""
        known = self._kept.get((*wanted[0], count)) if wanted else None
        return known if known is not None and known.wanted == wanted else None

    def keep(self, queue: str, kept: Kept) -> None:
        """Something was found, and nothing has gone since. Not when nobody else reads the queue by now: what goes then
        is not noticed."""
        if not self.shared(queue):
            return
        self._kept[(*kept.wanted[0], kept.count)] = kept
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)

    def discard(self, tail: Tail) -> None:
        queue, partition = tail.terms.queue, tail.terms.partition
        tails = self._open.get(queue)
        if tails is None or tail not in tails:
            return
        del tails[tail]
        flow = self._flows[(queue, partition)]
        flow.followers.pop(tail, None)
        flow.tails -= 1
        if not flow.tails:
            del self._flows[(queue, partition)]
        if not tails:
            del self._open[queue]
        if not self.shared(queue):
            self._kept.clear()

    def observe(self, effect: Effect) -> None:
        """An effect was applied: tell who reads its queue."""
        if not self._open:
            return
        if not isinstance(effect, Appended):
            self._lose()
            return
        directory = self._core.directory
        partition = directory.partition(effect.pid)
        if partition is None:
            return
        queue = directory.queue_names[partition.qid]
        tails = self._open.get(queue)
        if tails is None:
            return
        following = 0
        for name in (None, partition.name):
            flow = self._flows.get((queue, name))
            if flow is not None:
                flow.appended(partition, effect)
                following += len(flow.followers)
        if following == len(tails):
            return
        for tail in tails:
            asked = tail.terms.partition
            if asked is None or asked == partition.name:
                flow = self._flows.get((queue, asked))
                if flow is None or tail not in flow.followers:
                    tail.fall_behind(effect.pid, effect.records[0].offset)

    def _lose(self) -> None:
        """Messages may be gone: what was read before is read anew."""
        self.losses += 1
        self._kept.clear()

    def _committed(self, position: int) -> None:
        for flow in self._flows.values():
            flow.committed(position)

    def reset(self) -> None:
        """The directory was read again from the log."""
        self._lose()
        for flow in self._flows.values():
            flow.reset()
        for tails in self._open.values():
            for tail in tails:
                tail.reset()

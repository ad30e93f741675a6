"""Acks, lease extension, and leases that live with a connection."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Struct

from queen_actors import limits
from queen_actors.domain import cursor as rules
from queen_actors.domain.cursor import Ack, AckOutcome, Claim, LeaseEnd, LeaseExtended, Signal
from queen_actors.domain.effects import CursorDropped, CursorPut, DeadLetterPut, Effect, QueueDropped, Record
from queen_actors.domain.partition import PartitionState
from queen_actors.values import SECOND

from .core import Core, Draft
from .mailbox import Key
from .partition import Producers

NO_PARTITION_ID = "partitionId is not a partition id"
"""wire-messaging.md 8; so is the next."""


def no_partition(pid: int) -> str:
    return f"no partition {pid}"


class _Hold(Struct):
    """A lease that lives with a connection, and how many of its messages are not settled yet."""

    lease_id: str
    session: str
    committed: int
    end: int
    left: int


Loaded = dict[tuple[int, int], Record]
"""Messages by (partition, offset) that were read from the store for a decision."""
_Target = tuple[int, str, str]
"""(partition, group, lease): acks of one target are decided together."""


class Acks:
    """The acks of one broker, and the leases that they settle."""

    def __init__(self, core: Core, producers: Producers) -> None:
        self._core = core
        self._producers = producers
        self._sessions: dict[str, Callable[[LeaseEnd], None]] = {}
        self._held: dict[tuple[int, str], _Hold] = {}
        self._reason = "settled"

    # -- ack -------------------------------------------------------------------------------------------------------

    async def ack(self, acks: Sequence[Ack]) -> list[AckOutcome]:
        """Settle messages; each entry has an outcome of its own, in order. One step of the log."""
        await self._core.turn(self.keys(acks))
        loaded = await self.load(acks)
        draft = Draft(self._core)
        outcomes = self.decide(draft, acks, loaded)
        self._core.commit(draft)
        await self._core.log.durable()
        return outcomes

    def keys(self, acks: Sequence[Ack]) -> set[Key]:
        """The actors that these acks touch."""
        found: set[Key] = set()
        directory = self._core.directory
        for pid in {ack.pid for ack in acks}:
            partition = None if pid is None else directory.partition(pid)
            if partition is not None:
                queue = directory.queue_names[partition.qid]
                found.add(("partition", f"{queue}\x00{partition.name}"))
        return found

    async def load(self, acks: Sequence[Ack]) -> Loaded:
        """Bring into memory what a decision on these acks needs; nothing awaits between its return and the decision."""
        loaded: Loaded = {}
        tried: set[tuple[int, str]] = set()
        place = 0
        while place < len(acks):
            wanted = self._wanted(acks[place], loaded, tried)
            if wanted is None:
                place += 1
                continue
            partition, first, last, group = wanted
            records = await self._producers.read(partition, first, last - first + 1, limits.BODY_BYTES)
            for record in records:
                loaded[(partition.pid, record.offset)] = record
            if group is not None:
                tried.add((partition.pid, group))
                partition.claimed[group] = {record.txn: record.offset for record in reversed(records)}
            place = 0  # the world may have moved meanwhile: look again from the start
        return loaded

    def _wanted(
        self, ack: Ack, loaded: Loaded, tried: set[tuple[int, str]]
    ) -> tuple[PartitionState, int, int, str | None] | None:
        partition = None if ack.pid is None else self._core.directory.partition(ack.pid)
        cursor = None if partition is None else partition.cursors.get(ack.group)
        if partition is None or cursor is None:
            return None
        end = cursor.batch_end if cursor.lease_id else None
        offset = partition.resolve(ack.group, ack.txn, cursor.committed, end)
        if offset is None or offset <= cursor.committed or (end is not None and offset > end):
            known = ack.group in partition.claimed or (partition.pid, ack.group) in tried
            if end is None or known:
                return None
            first = max(cursor.committed + 1, end - limits.POP_BATCH_MAX + 1)
            return partition, first, end, ack.group
        if ack.status not in ("failed", "dlq") or isinstance(partition.entry(offset), Record):
            return None
        return None if (partition.pid, offset) in loaded else (partition, offset, offset, None)

    def decide(self, draft: Draft, acks: Sequence[Ack], loaded: Loaded, *, repeats: bool = True) -> list[AckOutcome]:
        """What each ack comes to; the effects go into the draft. Call `load` just before. `repeats`: a repeat of the
        ack that settled its lease's whole batch is a success (not in a transaction, 5.6)."""
        outcomes: list[AckOutcome | None] = [None] * len(acks)
        targets: dict[_Target, list[int]] = {}
        for place, ack in enumerate(acks):
            if ack.pid is None:
                outcomes[place] = AckOutcome(ack.txn, False, NO_PARTITION_ID)
            elif self._core.directory.partition(ack.pid) is None:
                outcomes[place] = AckOutcome(ack.txn, False, no_partition(ack.pid))
            else:
                targets.setdefault((ack.pid, ack.group, ack.lease_id or ""), []).append(place)
        moved: dict[tuple[int, str], CursorPut] = {}
        for target, places in targets.items():
            found = self._decide_target(draft, target, [acks[place] for place in places], loaded, moved, repeats)
            for place, outcome in zip(places, found, strict=True):
                outcomes[place] = outcome
        return [outcome for outcome in outcomes if outcome is not None]

    def _decide_target(
        self,
        draft: Draft,
        target: _Target,
        acks: Sequence[Ack],
        loaded: Loaded,
        moved: dict[tuple[int, str], CursorPut],
        repeats: bool,
    ) -> Sequence[AckOutcome]:
        pid, group, lease_id = target
        partition = self._core.directory.partition(pid)
        assert partition is not None, "checked by the caller"
        queue = self._core.directory.queue_of(partition)
        cursor = moved.get((pid, group)) or partition.cursors.get(group)
        if cursor is None:
            return [AckOutcome(ack.txn, False, rules.STALE_LEASE) for ack in acks]
        end = cursor.batch_end if cursor.lease_id else None
        entries = [
            (ack.txn, Signal(ack.status, partition.resolve(group, ack.txn, cursor.committed, end), ack.error))
            for ack in acks
        ]
        acked = rules.acknowledge(cursor, entries, lease_id, draft.now, queue.options, repeats=repeats)
        for offset, error in acked.dead:
            known = partition.entry(offset)
            record = known if isinstance(known, Record) else loaded[(pid, offset)]
            mid = self._core.ids.uuid(draft.now)
            draft.effects.append(
                DeadLetterPut(mid, queue.put.qid, pid, group, record, error, cursor.retries, draft.now)
            )
        if acked.cursor is not cursor:
            moved[(pid, group)] = acked.cursor
            draft.effects.append(acked.cursor)
        return acked.outcomes

    # -- leases ----------------------------------------------------------------------------------------------------

    def _cursors(self, lease_id: str) -> list[CursorPut]:
        found: list[CursorPut] = []
        for pid, group in sorted(self._core.directory.leases.get(lease_id, ())):
            partition = self._core.directory.partition(pid)
            if partition is not None and group in partition.cursors:
                found.append(partition.cursors[group])
        return found

    async def extend(self, lease_id: str, seconds: int) -> LeaseExtended:
        """Every live lease under this id lasts `seconds` from now at the least (section 9)."""
        await self._core.turn(())
        draft = Draft(self._core)
        after = [rules.extended(cursor, lease_id, draft.now, seconds * SECOND) for cursor in self._cursors(lease_id)]
        renewed = [cursor for cursor in after if cursor is not None]
        draft.add(renewed)
        self._core.commit(draft)
        await self._core.log.durable()
        return LeaseExtended(len(renewed), min((cursor.lease_expires for cursor in renewed), default=None))

    def give_back(self, lease_id: str) -> int:
        """Release what is leased under this id without a charge, now; durable with the next group."""
        cursors = self._cursors(lease_id)
        if cursors:
            draft = Draft(self._core)
            draft.add(rules.released(cursor) for cursor in cursors)
            self._core.commit(draft)
        return len(cursors)

    async def release(self, lease_id: str) -> int:
        """`give_back`, and return when it is durable: how many partitions were under the lease."""
        await self._core.turn(())
        count = self.give_back(lease_id)
        await self._core.log.durable()
        return count

    # -- leases that live with a connection ------------------------------------------------------------------------

    def open_session(self, ended: Callable[[LeaseEnd], None]) -> str:
        """A connection begins; `ended` is called, synchronously, whenever messages of its leases stop being its own."""
        session = self._core.ids.uuid(self._core.clock.now())
        self._sessions[session] = ended
        return session

    def close_session(self, session: str) -> None:
        """The connection is gone: its leases are given back at once, without a charge."""
        self._sessions.pop(session, None)
        held = [key for key, hold in self._held.items() if hold.session == session]
        leases = {self._held.pop(key).lease_id for key in held}
        for lease_id in sorted(leases):
            self.give_back(lease_id)

    def reset(self) -> None:
        """The directory was read from the log: what a session holds is what the log says that it holds."""
        for (pid, group), hold in list(self._held.items()):
            if (pid, group) not in self._core.directory.leases.get(hold.lease_id, ()):
                self._end(pid, group, hold, "expired")

    def hold(self, session: str, group: str, lease_id: str, claims: Sequence[Claim]) -> None:
        """These claims, about to be committed, belong to the session."""
        for claim in claims:
            first, last = claim.records[0].offset, claim.records[-1].offset
            self._held[(claim.pid, group)] = _Hold(lease_id, session, first - 1, last, len(claim.records))

    def expire(self, partition: PartitionState, group: str, now: int) -> None:
        """The partition became ready for the group at this time: tell the session whose lease has run out."""
        hold = self._held.get((partition.pid, group))
        cursor = partition.cursors.get(group)
        if hold is not None and cursor is not None and cursor.lease_expires <= now:
            self._end(partition.pid, group, hold, "expired")

    def ending(self, reason: str) -> None:
        """Leases that end in the step that is committed next end for this reason."""
        self._reason = reason

    def observe(self, effect: Effect) -> None:
        """An effect was applied: does a session hold fewer messages now?"""
        if not self._held:
            return
        if isinstance(effect, CursorPut):
            hold = self._held.get((effect.pid, effect.group))
            if hold is None:
                return
            if effect.lease_id != hold.lease_id:
                self._end(effect.pid, effect.group, hold, self._reason)
            elif effect.committed > hold.committed:
                settled = min(effect.committed - hold.committed, hold.left)
                hold.committed = effect.committed
                hold.left -= settled
                self._tell(hold, LeaseEnd(hold.lease_id, effect.pid, effect.group, settled, "settled"))
        elif isinstance(effect, CursorDropped):
            hold = self._held.get((effect.pid, effect.group))
            if hold is not None:
                self._end(effect.pid, effect.group, hold, self._reason)
        elif isinstance(effect, QueueDropped):
            directory = self._core.directory
            for (pid, group), hold in list(self._held.items()):
                if directory.partition(pid) is None:
                    self._end(pid, group, hold, "deleted")

    def _end(self, pid: int, group: str, hold: _Hold, reason: str) -> None:
        del self._held[(pid, group)]
        self._tell(hold, LeaseEnd(hold.lease_id, pid, group, hold.left, reason))

    def _tell(self, hold: _Hold, end: LeaseEnd) -> None:
        ended = self._sessions.get(hold.session)
        if ended is not None:
            ended(end)

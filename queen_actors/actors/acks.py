"""Acks, lease extension, and leases that live with a connection."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain

from msgspec import Struct

from queen_actors import limits
from queen_actors.domain import cursor as rules
from queen_actors.domain.cursor import Ack, AckOutcome, Claim, LeaseEnd, LeaseExtended, Signal, graver
from queen_actors.domain.effects import CursorDropped, CursorPut, DeadLetterPut, Effect, QueueDropped, Record
from queen_actors.domain.partition import PartitionState
from queen_actors.domain.queue import QueueState
from queen_actors.domain.runs import AckRun, RunSettled, run_of, settle, settle_one
from queen_actors.errors import QueenError, StorageFull
from queen_actors.values import SECOND

from .core import Core, Draft
from .mailbox import Key
from .partition import Producers

NO_PARTITION_ID = "partitionId is not a partition id"
"""wire-messaging.md 8; so is the next."""


def no_partition(pid: int) -> str:
    return f"no partition {pid}"


class _Hold(Struct):
    """A lease that lives with a connection. `count` messages were delivered, of which the session was told that
    `told` are not its own any more; `seen` is how far its cursor had come."""

    lease_id: str
    session: str
    seen: int
    expires: int
    count: int
    ended: int = 0
    told: int = 0


_HoldKey = tuple[int, str]
"""(partition, group): there is at most one lease of it."""


class _Session(Struct):
    """A connection: who is told of its leases' ends, and which they are."""

    ended: Callable[[LeaseEnd], None]
    holds: set[_HoldKey]


class _News(Struct):
    """An end of a lease that is told when the log is durable up to `position`."""

    position: int
    hold: _Hold
    end: LeaseEnd


class Loaded(Struct):
    """What was read from the store for a decision: messages by (partition, offset), None for one that is gone; and
    of a lease's span, by (partition, group, lease), the offsets by transaction id."""

    records: dict[tuple[int, int], Record | None]
    spans: dict[tuple[int, str, str], Mapping[str, Sequence[int]]]


_Target = tuple[int, str, str]
"""(partition, group, lease): acks of one target are decided together."""
CONFLATED = 10_000
"""Leases of unregistered conflating groups that are known as such."""
SPANS = 256
"""How many leases' spans are remembered: consumers that ack a backlog message by message need theirs again."""


class Acks:
    """The acks of one broker, and the leases that they settle."""

    def __init__(self, core: Core, producers: Producers) -> None:
        self._core = core
        self._producers = producers
        self._sessions: dict[str, _Session] = {}
        self._held: dict[_HoldKey, _Hold] = {}
        self._news: deque[_News] = deque()
        self._owed: dict[str, Callable[[CursorPut], CursorPut]] = {}
        self._owing: deque[tuple[int, str, Callable[[CursorPut], CursorPut]]] = deque()
        """Leases that were given back, as long as that is not durable."""
        self._reason = "settled"
        self._spans: OrderedDict[tuple[int, str, str], Mapping[str, Sequence[int]]] = OrderedDict()
        self._conflated: OrderedDict[tuple[int, str], str] = OrderedDict()
        """Leases of which only the last message was handed out, of groups that are not registered. It is for ids that
        are there twice alone: without it, as after a start, such a message is delivered once more."""
        core.log.on_commit.append(self._tell)

    # -- ack -------------------------------------------------------------------------------------------------------

    async def ack(self, acks: Sequence[Ack]) -> Sequence[AckOutcome]:
        """Settle messages; each entry has an outcome of its own, in order. One step of the log."""
        await self._core.turn(self.keys(acks) if self._core.turns.busy else ())
        draft = Draft(self._core)
        outcomes: Sequence[AckOutcome] | None = self.run(draft, acks)
        if outcomes is None:
            loaded = await self.load(acks)
            draft = Draft(self._core)
            outcomes = self.decide(draft, acks, loaded)
        self._core.commit(draft)
        await self._core.log.durable()
        return outcomes

    def run(self, draft: Draft, acks: Sequence[Ack]) -> Sequence[AckOutcome] | None:
        """What `decide` says, in one pass, of acks that are a run; None, and the draft as it was, where it is asked."""
        if len(acks) == 1 and type(acks) is not AckRun:
            return self._run_of_one(draft, acks[0])
        run = run_of(acks)
        partition = None if run is None else self._core.directory.partition(run.pid)
        found = None if run is None or partition is None else settle(partition, run, draft.now)
        if run is None or found is None:
            return None
        after, released = found
        draft.effects.append(after)
        return RunSettled(run.txns, released)

    def _run_of_one(self, draft: Draft, ack: Ack) -> list[AckOutcome] | None:
        partition = None if ack.pid is None else self._core.directory.partition(ack.pid)
        found = None if partition is None else settle_one(partition, ack, draft.now)
        if found is None:
            return None
        draft.effects.append(found[0])
        return [found[1]]

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

    def loaded(self, acks: Sequence[Ack]) -> Loaded | None:
        """What a decision on these acks needs, if all of it is in memory already."""
        found = Loaded({}, {})
        return found if not acks or self._missing(acks, found) == ({}, {}) else None

    async def load(self, acks: Sequence[Ack]) -> Loaded:
        """Bring into memory what a decision on these acks needs; nothing awaits between its return and the decision."""
        loaded = Loaded({}, {})
        while True:
            spans, records = self._missing(acks, loaded)
            if not spans and not records:
                return loaded
            for span, ends in spans.items():
                loaded.spans[span] = self._spans[span] = await self._producers.index(span[0], *ends)
            while len(self._spans) > SPANS:
                self._spans.popitem(last=False)
            for pid, offsets in records.items():
                found = await self._producers.find_all(pid, sorted(offsets))
                loaded.records.update({(pid, offset): record for offset, record in found.items()})
            await self._core.turn()  # the world may have moved meanwhile: look again

    def _missing(
        self, acks: Sequence[Ack], loaded: Loaded
    ) -> tuple[dict[tuple[int, str, str], tuple[int, int]], dict[int, set[int]]]:
        """Spans of leases that have no index yet, and messages that may be dead-lettered and are not in memory."""
        spans: dict[tuple[int, str, str], tuple[int, int]] = {}
        records: dict[int, set[int]] = {}
        directory = self._core.directory
        for (pid, name, lease_id), places in self._targets(acks).items():
            partition = directory.partition(pid)
            cursor = None if partition is None else partition.cursors.get(name)
            if partition is None or cursor is None or not cursor.lease_id or lease_id not in ("", cursor.lease_id):
                continue
            queue = directory.queue_of(partition)
            span = (pid, name, cursor.lease_id)
            known = self._span(span, loaded)
            after, end = self._delivered_after(queue, cursor), cursor.batch_end
            offsets = partition.resolve([acks[place].txn for place in places], after, end, known or {})
            first = max(partition.floor(after), end - limits.POP_BATCH_MAX) + 1
            unknown = any(offset is None or not cursor.committed < offset <= end for offset in offsets)
            if known is None and (unknown or first < partition.base):
                spans[span] = (first, end)
                continue
            spent = cursor.retries >= queue.options.retry_limit
            grave = {
                acks[place].txn
                for place in places
                if acks[place].status == "dlq" or (acks[place].status == "failed" and spent)
            }
            # Which of several with one id is meant may change with what the call's other acks settle
            for offset in chain(*partition.occurrences(grave, after, end, known or {}).values()) if grave else ():
                held = isinstance(partition.entry(offset), Record) or (pid, offset) in loaded.records
                if not held:
                    records.setdefault(pid, set()).add(offset)
        return spans, records

    def _targets(self, acks: Sequence[Ack]) -> dict[_Target, list[int]]:
        """Where in the call the acks of each target are; those of no partition are nowhere."""
        targets: dict[_Target, list[int]] = {}
        for place, ack in enumerate(acks):
            if ack.pid is not None and self._core.directory.partition(ack.pid) is not None:
                targets.setdefault((ack.pid, ack.group, ack.lease_id or ""), []).append(place)
        return targets

    def conflated(self, pid: int, group: str, lease_id: str) -> None:
        """Only the last message of this lease was handed out, to a group that nothing is kept of but its cursors."""
        self._conflated[pid, group] = lease_id
        self._conflated.move_to_end((pid, group))
        while len(self._conflated) > CONFLATED:
            self._conflated.popitem(last=False)

    def _delivered_after(self, queue: QueueState, cursor: CursorPut) -> int:
        """The offset behind which the leased messages lie: of a conflating group only the last one was delivered."""
        group = queue.groups.get(cursor.group)
        if group is None:
            conflating = bool(cursor.lease_id) and self._conflated.get((cursor.pid, cursor.group)) == cursor.lease_id
        else:
            conflating = group.conflation
        return max(cursor.committed, cursor.batch_end - 1) if conflating else cursor.committed

    def _span(self, span: tuple[int, str, str], loaded: Loaded) -> Mapping[str, Sequence[int]] | None:
        known = loaded.spans.get(span)
        return self._spans.get(span) if known is None else known

    def decide(self, draft: Draft, acks: Sequence[Ack], loaded: Loaded, *, repeats: bool = True) -> list[AckOutcome]:
        """What each ack comes to; the effects go into the draft. Call `load` just before. `repeats`: a repeat of the
        ack that settled its lease's whole batch is a success (not in a transaction, 5.6)."""
        outcomes: list[AckOutcome | None] = [None] * len(acks)
        for place, ack in enumerate(acks):
            if ack.pid is None:
                outcomes[place] = AckOutcome(ack.txn, False, NO_PARTITION_ID)
            elif self._core.directory.partition(ack.pid) is None:
                outcomes[place] = AckOutcome(ack.txn, False, no_partition(ack.pid))
        moved: dict[tuple[int, str], CursorPut] = {}
        for target, places in self._targets(acks).items():
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
        after = self._delivered_after(queue, cursor)
        end = cursor.batch_end if cursor.lease_id else None
        if lease_id and lease_id != cursor.lease_id:
            after, end = cursor.committed, cursor.committed  # too late: all that matters is whether it is done
        leased = self._span((pid, group, cursor.lease_id or cursor.settled_lease), loaded) or {}
        offsets = partition.resolve([ack.txn for ack in acks], after, end, leased)
        entries = [(ack.txn, Signal(ack.status, offset, ack.error)) for ack, offset in zip(acks, offsets, strict=True)]
        if len({ack.txn for ack in acks}) < len(acks):
            entries = graver(entries)
        acked = rules.acknowledge(cursor, entries, lease_id, draft.now, queue.options, repeats=repeats)
        for offset, error in acked.dead:
            known = partition.entry(offset)
            record = known if isinstance(known, Record) else loaded.records.get((pid, offset))
            if record is None:
                continue  # retention removed it while it was leased: nothing is left to keep
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
        await self._core.turn()
        draft = Draft(self._core)
        after = [rules.extended(cursor, lease_id, draft.now, seconds * SECOND) for cursor in self._cursors(lease_id)]
        renewed = [cursor for cursor in after if cursor is not None]
        draft.add(renewed)
        self._core.commit(draft)
        await self._core.log.durable()
        return LeaseExtended(len(renewed), min((cursor.lease_expires for cursor in renewed), default=None))

    async def release(self, lease_id: str) -> int:
        """Give back what is leased under this id, without a charge; returns, when it is durable, how many partitions
        were under the lease."""
        await self._core.turn()
        count = self._give_back(self._cursors(lease_id), rules.released)
        await self._core.log.durable()
        return count

    def withdraw(self, lease_id: str) -> None:
        """The messages of this lease could not be handed over, and nobody is told of it: as if never claimed."""
        if self._core.log.reloading:  # there is no telling what is under it, but for what sessions hold
            keys = [key for key, hold in self._held.items() if hold.lease_id == lease_id]
        else:
            keys = list(self._core.directory.leases.get(lease_id, ()))
        for key in keys:
            self._let_go(key)
        self._owe(lease_id, rules.withdrawn)

    def _give_back(self, cursors: Sequence[CursorPut], rule: Callable[[CursorPut], CursorPut]) -> int:
        if cursors:
            draft = Draft(self._core)
            draft.add(rule(cursor) for cursor in cursors)
            self._core.commit(draft, urgent=True)
        return len(cursors)

    def _owe(self, lease_id: str, rule: Callable[[CursorPut], CursorPut] = rules.released) -> None:
        """Give back now, or, when the disk is full, as soon as there is room."""
        if self._core.log.reloading:
            if lease_id:
                self._owed[lease_id] = rule
            return
        try:
            if self._give_back(self._cursors(lease_id), rule):
                self._owing.append((self._core.log.position, lease_id, rule))
        except StorageFull:
            self._owed[lease_id] = rule
        except QueenError:
            return  # the broker stops: the next start gives back what its sessions held

    def settle_debts(self) -> None:
        """There is room on the disk again: give back what is owed."""
        owed, self._owed = self._owed, {}
        for lease_id, rule in owed.items():
            self._owe(lease_id, rule)

    # -- leases that live with a connection ------------------------------------------------------------------------

    def open_session(self, ended: Callable[[LeaseEnd], None]) -> str:
        """A connection begins; `ended` is called, synchronously, when it is durable that messages of its leases are
        not its own any more: for each lease, the numbers of messages add up to what was delivered under it."""
        session = self._core.ids.uuid(self._core.clock.now())
        self._sessions[session] = _Session(ended, set())
        return session

    def close_session(self, session: str) -> None:
        """The connection is gone, and hears nothing more: its leases are given back at once, without a charge."""
        closed = self._sessions.pop(session, None)
        if closed is None:
            return
        leases = {self._held.pop(key).lease_id for key in closed.holds}
        for lease_id in sorted(leases):
            self._owe(lease_id)

    def is_open(self, session: str) -> bool:
        """Is the connection there still?"""
        return session in self._sessions

    def holds(self) -> list[_HoldKey]:
        """(partition, group) of every lease that lives with a connection."""
        return sorted(self._held)

    def hold(self, session: str, group: str, lease_id: str, claims: Sequence[Claim]) -> None:
        """These claims, just committed, belong to the session."""
        known = self._sessions.get(session)
        if known is None:
            return
        for claim in claims:
            key = (claim.pid, group)
            partition = self._core.directory.partition(claim.pid)
            assert partition is not None, "it was claimed in this very step"
            cursor = partition.cursors[group]
            first = claim.records[0].offset
            self._held[key] = _Hold(lease_id, session, first - 1, cursor.lease_expires, len(claim.records))
            known.holds.add(key)

    def expire(self, partition: PartitionState, group: str, now: int) -> None:
        """Something became due for the group at this time: tell the session whose lease has run out."""
        if not self._held:
            return
        key = (partition.pid, group)
        hold = self._held.get(key)
        if hold is not None and hold.expires <= now:
            self._end(key, hold, "expired")

    @contextmanager
    def ending(self, reason: str) -> Generator[None]:
        """Leases that end in the step that is committed in this block end for this reason."""
        self._reason = reason
        try:
            yield
        finally:
            self._reason = "settled"

    def observe(self, effect: Effect) -> None:
        """An effect was applied: does a session hold fewer messages now?"""
        if not self._held:
            return
        if isinstance(effect, CursorPut):
            key = (effect.pid, effect.group)
            hold = self._held.get(key)
            if hold is None:
                return
            if effect.lease_id != hold.lease_id:
                expired = hold.expires <= self._core.directory.last_instant
                self._end(key, hold, "expired" if expired else self._reason)
                return
            hold.expires = effect.lease_expires
            settled = min(effect.committed - hold.seen, hold.count - hold.ended)
            if settled > 0:
                hold.seen = effect.committed
                self._report(effect.pid, effect.group, hold, settled, "settled")
        elif isinstance(effect, CursorDropped):
            key = (effect.pid, effect.group)
            hold = self._held.get(key)
            if hold is not None:
                self._end(key, hold, self._reason)
        elif isinstance(effect, QueueDropped):
            directory = self._core.directory
            for key, hold in list(self._held.items()):
                if directory.partition(key[0]) is None:
                    self._end(key, hold, "deleted")

    def _end(self, key: _HoldKey, hold: _Hold, reason: str) -> None:
        self._let_go(key)
        self._report(*key, hold, hold.count - hold.ended, reason)

    def _let_go(self, key: _HoldKey) -> None:
        hold = self._held.pop(key, None)
        session = None if hold is None else self._sessions.get(hold.session)
        if session is not None:
            session.holds.discard(key)

    def _report(self, pid: int, group: str, hold: _Hold, messages: int, reason: str) -> None:
        hold.ended += messages
        end = LeaseEnd(hold.lease_id, pid, group, messages, reason)
        self._news.append(_News(self._core.log.position, hold, end))
        self._tell(self._core.log.committed)

    def _tell(self, committed: int) -> None:
        """Tell the sessions what is durable by now, in the order in which it happened."""
        while self._owing and self._owing[0][0] <= committed:
            self._owing.popleft()
        news = self._news
        while news and news[0].position <= committed:
            first = news.popleft()
            first.hold.told += first.end.messages
            session = self._sessions.get(first.hold.session)
            if session is not None:
                session.ended(first.end)

    def reset(self) -> None:
        """The directory was read again from the log. What was not durable did not happen: of what sessions were not
        told, those holds are back that the log still shows; a claim that was refused reached nobody."""
        holds = {(news.end.pid, news.end.group): news.hold for news in self._news}
        self._news.clear()
        self._spans.clear()
        for key, hold in {**self._held, **holds}.items():
            self._let_go(key)
            partition = self._core.directory.partition(key[0])
            cursor = None if partition is None else partition.cursors.get(key[1])
            session = self._sessions.get(hold.session)
            if session is None or cursor is None or cursor.lease_id != hold.lease_id:
                continue
            hold.ended = hold.told
            hold.seen = max(cursor.committed, cursor.batch_end - hold.count)
            hold.expires = cursor.lease_expires
            self._held[key] = hold
            session.holds.add(key)
        self._owed.update({lease_id: rule for _, lease_id, rule in self._owing})
        self._owing.clear()
        if self._core.log.full:  # what ended these may have been refused, when their connection was gone already
            alive = {hold.lease_id for hold in self._held.values()}
            for cursor in self._core.directory.forget_sessions():
                if cursor.lease_id not in alive:
                    self._owed.setdefault(cursor.lease_id, rules.released)

"""The coordinator: guarded commits over many actors, in two phases, in memory.

Every participant is held, in one global order, from before the first decision until the effects of all of them are
applied; nothing can be in doubt on disk, because all of it is one step of the log. Refusals are reported in the wire's
order (acks, pushes, positions, kv, timers), whatever order the participants were asked in.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from queen_actors.domain import cursor as cursor_rules
from queen_actors.domain import transaction as rules
from queen_actors.domain.cursor import Ack, AckOutcome
from queen_actors.domain.effects import CursorDropped
from queen_actors.domain.kv import Precondition
from queen_actors.domain.partition import PushItem, PushOutcome
from queen_actors.domain.runs import RunSettled
from queen_actors.domain.timers import TimerResult
from queen_actors.domain.transaction import (
    Committed,
    PositionCommit,
    RolledBack,
    Transaction,
    TransactionReply,
)
from queen_actors.errors import Forbidden

from . import kv, timers
from .acks import Acks
from .core import Core, Draft
from .kv import Keys
from .mailbox import Key
from .partition import Producers
from .timers import Timers


class Coordinator:
    """The transactions of one broker."""

    def __init__(self, core: Core, producers: Producers, acks: Acks, keys: Keys, timers: Timers) -> None:
        self._core = core
        self._producers = producers
        self._acks = acks
        self._keys = keys
        self._timers = timers

    async def commit(self, transaction: Transaction) -> TransactionReply:
        """All of it in one step, or none of it; durable when it returns."""
        if rules.empty(transaction):
            return rules.EMPTY
        transaction = rules.fenced(transaction)
        acks = [step for step in transaction.steps if type(step) is Ack]
        core = self._core
        reply = None if core.log.reloading or core.turns.busy else self._at_once(transaction, acks)
        if reply is None:
            async with core.turns.hold(self._participants(transaction, acks)):
                await core.log.reloaded()
                loaded = await self._acks.load(acks)
                draft = Draft(core)
                reply = self._step(draft, transaction, self._acks.decide(draft, acks, loaded, repeats=False))
        await core.log.durable()
        return reply

    def _at_once(self, transaction: Transaction, acks: Sequence[Ack]) -> TransactionReply | None:
        """The whole step, if there is nothing to wait for: it is over before anybody could be in the way."""
        draft = Draft(self._core)
        acked = self._acks.run(draft, acks)
        if acked is None:
            loaded = self._acks.loaded(acks)
            if loaded is None:
                return None
            acked = self._acks.decide(draft, acks, loaded, repeats=False)
        return self._step(draft, transaction, acked)

    def _step(self, draft: Draft, transaction: Transaction, acked: Sequence[AckOutcome]) -> TransactionReply:
        """Decide the rest and, unless it is refused, commit, in one go."""
        reply = self._decide(draft, transaction, acked)
        if isinstance(reply, Committed):
            if transaction.positions and not acked:
                with self._acks.ending("seek"):
                    self._core.commit(draft)
            else:
                self._core.commit(draft)
        return reply

    def _participants(self, transaction: Transaction, acks: Sequence[Ack]) -> set[Key]:
        found = self._acks.keys(acks) | kv.keys_of(transaction.kv) | timers.keys_of(transaction.timers)
        for step in transaction.steps:
            if isinstance(step, PushItem):
                found.add(("partition", f"{step.queue}\x00{step.partition}"))
        found.update(("partition", f"{p.queue}\x00{p.partition}") for p in transaction.positions)
        return found

    def _decide(self, draft: Draft, transaction: Transaction, acked: Sequence[AckOutcome]) -> TransactionReply:
        """Ask every other participant; the first refusal, in this order, is the answer (5.2)."""
        if type(acked) is not RunSettled:
            for outcome in acked:
                if not outcome.success:
                    return rules.rejected_ack(outcome.error)
        items = [step for step in transaction.steps if type(step) is PushItem]
        if transaction.producer is not None:
            items = [replace(item, producer=transaction.producer) for item in items]
        pushed = self._producers.decide(draft, items) if items else []
        for place, push in enumerate(pushed):
            if push.status == "duplicate" and self._is_old(push, items[place]):
                return rules.DUPLICATE
        lost = self._move(draft, transaction.positions) if transaction.positions else None
        if lost is not None:
            return lost
        answers = self._keys.decide(draft, transaction.kv) if transaction.kv else []
        if isinstance(answers, Precondition):
            return rules.lost_precondition(len(transaction.steps), answers)
        timed: Sequence[TimerResult] = ()
        if transaction.timers:
            try:
                timed = self._timers.decide(draft, transaction.timers, transaction.producer)
            except Forbidden as refusal:
                return RolledBack(refusal.reason or refusal.code, refusal.detail)
        steps = _in_order(transaction.steps, pushed, acked)
        return Committed(steps, tuple(answers), tuple(timed), len(transaction.positions))

    def _is_old(self, outcome: PushOutcome, item: PushItem) -> bool:
        """Does it repeat a message from before this transaction? A repeat inside the bundle has an offset to come."""
        known = self._core.directory.find(item.queue, item.partition)
        return known is not None and outcome.offset < known.next_offset

    def _move(self, draft: Draft, positions: Sequence[PositionCommit]) -> RolledBack | None:
        for position in positions:
            partition = self._core.directory.find(position.queue, position.partition)
            if partition is None:
                return RolledBack("queue_not_found", f"no partition {position.partition!r} of queue {position.queue!r}")
            if position.offset is None:
                draft.effects.append(CursorDropped(partition.pid, position.group))
                continue
            committed = partition.floor(min(position.offset, partition.next_offset) - 1)
            draft.effects.append(cursor_rules.fresh(partition.pid, position.group, committed))
        return None


def _in_order(
    steps: Sequence[PushItem | Ack], pushed: Sequence[PushOutcome], acked: Sequence[AckOutcome]
) -> tuple[PushOutcome | AckOutcome, ...]:
    """What pushes and acks came to in the order of the request (5.3)."""
    pushes, acks = iter(pushed), iter(acked)
    return tuple([next(pushes) if type(step) is PushItem else next(acks) for step in steps])

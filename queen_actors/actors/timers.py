"""Timers: scheduling, and firing. A fire is a push, in one step of the log with the timer's removal (4.7)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from queen_actors import limits
from queen_actors.domain import timers as rules
from queen_actors.domain.effects import DeadLetterPut, Effect, Record, TimerDropped, TimerPut
from queen_actors.domain.partition import PushItem
from queen_actors.domain.timers import TimerOp, TimerPage, TimerResult
from queen_actors.errors import QueenError
from queen_actors.values import NOTHING, SECOND, TIMER_GROUP

from .agenda import Agenda
from .core import Core, Draft
from .mailbox import Key
from .partition import Producers

RETRY = SECOND
"""A fire that the log does not take now (a full disk, a backlog) is tried again after this, and spends no attempt."""


def keys_of(ops: Iterable[TimerOp]) -> set[Key]:
    return {("timers", op.queue) for op in ops}


class Timers:
    """The timers of one broker."""

    def __init__(self, core: Core, producers: Producers) -> None:
        self._core = core
        self._producers = producers
        self._agenda = Agenda(core.clock, self._due)

    async def call(self, ops: Sequence[TimerOp], producer: str | None) -> list[TimerResult]:
        """Schedule, move and cancel: one step for all. Raises Forbidden when a delay passes the horizon."""
        await self._core.turn(keys_of(ops) if self._core.turns.busy else ())
        draft = Draft(self._core)
        results = self.decide(draft, ops, producer)
        self._core.commit(draft)
        await self._core.log.durable()
        return list(results)

    def decide(self, draft: Draft, ops: Sequence[TimerOp], producer: str | None) -> Sequence[TimerResult]:
        """What the ops come to; the effects go into the draft."""
        core = self._core
        horizon = core.settings.timer_horizon_seconds * SECOND
        decision = rules.decide(
            [self._sealed(op) for op in ops],
            core.directory.queue_timers,
            draft.now,
            lambda: core.ids.uuid(draft.now),
            producer,
            horizon,
        )
        draft.effects.extend(decision.effects)
        return decision.results

    def _sealed(self, op: TimerOp) -> TimerOp:
        """A timer of a queue whose payloads are encrypted waits encrypted."""
        queue = self._core.directory.queues.get(op.queue)
        if isinstance(op, rules.Cancel) or queue is None or not queue.options.encryption_enabled:
            return op
        return replace(op, payload=self._core.cipher.seal(op.payload), encrypted=True)

    async def get(self, queue: str, key: str) -> TimerPut | None:
        """The pending timer of that key."""
        return await self._core.look(lambda: self._core.directory.queue_timers(queue).get(key))

    async def page(self, queue: str, after: str | None, limit: int) -> TimerPage:
        """Pending timers of one queue in byte order of their keys, `after` exclusive."""
        return await self._core.look(lambda: self._core.directory.queue_timers(queue).page(after, limit))

    async def count(self, queue: str, prefix: str) -> int:
        """How many pending timers of the queue have a key that starts with `prefix`."""
        return await self._core.look(lambda: self._core.directory.queue_timers(queue).count(prefix))

    def observe(self, effect: Effect) -> None:
        """An effect was applied: a timer that is pending is on the agenda, and no other."""
        if isinstance(effect, TimerPut):
            self._agenda.add(effect.due, (effect.queue, effect.key), self._core.directory.was_due)
        elif isinstance(effect, TimerDropped):
            self._agenda.discard((effect.queue, effect.key), self._core.directory.was_due)

    def _due(self, item: tuple[str, str]) -> int | None:
        state = self._core.directory.timers.get(item[0])
        return None if state is None else state.due(item[1])

    def reset(self) -> None:
        """The directory was read from the log."""
        states = self._core.directory.timers.values()
        self._agenda.replace((due, (state.queue, key)) for state in states for due, key in state.due_times())

    async def run(self) -> None:
        """Fire what is due, oldest first, one step after the other; for ever."""
        while True:
            due = await self._agenda.due(limits.TIMER_FIRE_COUNT)
            try:
                self._fire(due)
                await self._core.log.durable()
            except QueenError:  # the log takes nothing now; no attempt is spent
                for item in due:
                    self._agenda.add(self._core.clock.now() + RETRY, item)

    def _fire(self, due: Sequence[tuple[str, str]]) -> None:
        draft = Draft(self._core)
        firing: list[TimerPut] = []
        size = 0
        for queue, key in due:
            timer = self._core.directory.queue_timers(queue).get(key)
            if timer is None:
                continue  # cancelled
            if timer.due > draft.now or size > limits.TIMER_FIRE_BYTES:
                self._agenda.add(timer.due, (queue, key))  # moved, or for the next step
                continue
            size += len(timer.payload)
            firing.append(timer)
        firing.sort(key=rules.due_order)
        try:
            self._producers.decide(draft, [_message(timer) for timer in firing])
        except QueenError:
            for timer in firing:  # one of them cannot be delivered: find out which
                self._fire_one(timer)
            return
        draft.add(TimerDropped(timer.queue, timer.key, True) for timer in firing)
        self._core.commit(draft)

    def _fire_one(self, timer: TimerPut) -> None:
        """Deliver one; a permanent refusal puts it off, and the last one dead-letters its message (4.8)."""
        draft = Draft(self._core)
        try:
            self._producers.decide(draft, [_message(timer)])
            draft.effects.append(TimerDropped(timer.queue, timer.key, True))
        except QueenError as refusal:
            draft = Draft(self._core)
            again = rules.failed(timer, refusal.detail, draft.now)
            draft.add([again] if again is not None else self._give_up(draft, timer, refusal.detail))
        self._core.commit(draft)

    def _give_up(self, draft: Draft, timer: TimerPut, error: str) -> list[Effect]:
        queue = draft.queue(timer.queue)
        partition = draft.partition(queue, timer.partition)
        record = Record(NOTHING, draft.now, timer.message_id, timer.txn, timer.payload, None, timer.producer, timer.key)
        mid = self._core.ids.uuid(draft.now)
        letter = DeadLetterPut(
            mid, queue.put.qid, partition.pid, TIMER_GROUP, record, error, timer.attempts + 1, draft.now
        )
        return [letter, TimerDropped(timer.queue, timer.key, True)]


def _message(timer: TimerPut) -> PushItem:
    return PushItem(
        timer.queue,
        timer.partition,
        timer.payload,
        txn=timer.txn,
        id=timer.message_id,
        timer_key=timer.key,
        producer=timer.producer,
        encrypted=timer.encrypted,
    )

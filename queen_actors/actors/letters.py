"""Dead letters: purge, removal, and replay as a new message (`wire-messaging.md` 11)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from queen_actors.domain.effects import DeadLetterDropped, DeadLetterPut
from queen_actors.domain.partition import PushItem
from queen_actors.domain.queue import QueueState, Replayed

from .core import Core, Draft, parts
from .partition import Producers

Found = tuple[QueueState, DeadLetterPut]
Finder = Callable[[], Found | None]


def replay_txn(letter_id: str) -> str:
    """The transaction id of a replay: the same letter, replayed twice, is one message."""
    return f"dlq:{letter_id}"


class Letters:
    """The dead letters of one broker."""

    def __init__(self, core: Core, producers: Producers) -> None:
        self._core = core
        self._producers = producers

    async def purge(self, queue: str, group: str | None) -> int:
        """Drop every dead letter of the queue, or of one group in it; returns how many there were.

        Of more than `limits.STEP_EFFECTS` so many go at a time: when it is refused, or its caller goes away, the first
        may be gone."""
        core, log = self._core, self._core.log
        await core.turn([("queue", queue)])
        state = core.directory.queues.get(queue)
        found = [] if state is None else [d for d in state.dead.values() if group is None or d.group == group]
        count, position, reloads = 0, 0, log.reloads
        for some in parts(found):
            if count:
                await core.between_parts([("queue", queue)])
            log.settled(position, reloads)  # unless those that went before were refused meanwhile
            state = core.directory.queues.get(queue)
            draft = Draft(core)
            if state is not None:
                draft.add(DeadLetterDropped(letter.id, letter.qid) for letter in some if letter.id in state.dead)
            core.commit(draft)
            count, position, reloads = count + len(draft.effects), log.position, log.reloads
        await log.durable()
        return count

    async def remove(self, pid: int, txn: str) -> int:
        """Drop the dead letters of one message, whichever groups they belong to; returns how many there were."""
        await self._core.turn(())
        draft = Draft(self._core)
        found = [letter for _, letter in self._of(pid, txn)]
        draft.add(DeadLetterDropped(letter.id, letter.qid) for letter in found)
        self._core.commit(draft)
        await self._core.log.durable()
        return len(found)

    async def replay(self, letter_id: str, queue: str | None, partition: str | None) -> Replayed | None:
        """Push the letter's message again, into its own partition or where the caller says, and drop the letter: one
        step, so that of two callers one moves it. None when there is no such letter (any more)."""
        return await self._replay(lambda: self._by_id(letter_id), queue, partition)

    async def retry(self, pid: int, txn: str, queue: str | None, partition: str | None) -> Replayed | None:
        """`replay` of the newest dead letter of a message."""
        return await self._replay(
            lambda: max(self._of(pid, txn), key=lambda found: found[1].failed_at, default=None), queue, partition
        )

    async def _replay(self, find: Finder, queue: str | None, partition: str | None) -> Replayed | None:
        while True:
            found = find()
            if found is None:
                await self._core.log.durable()
                return None
            place = self._place(*found, queue, partition)
            await self._core.turn([("partition", "\x00".join(place)), ("queue", found[0].name)])
            if find() == found:
                break
        letter = found[1]
        record = letter.record
        draft = Draft(self._core)
        item = PushItem(
            *place,
            record.payload,
            txn=replay_txn(letter.id),
            trace=record.trace,
            producer=record.producer,
            timer_key=record.timer_key,
            encrypted=record.encrypted,
        )
        (outcome,) = self._producers.decide(draft, [item])
        moved = outcome.status == "queued"
        if moved:
            draft.effects.append(DeadLetterDropped(letter.id, letter.qid))
        self._core.commit(draft)
        await self._core.log.durable()
        return Replayed(*place, letter, outcome, moved)

    def _place(
        self, state: QueueState, letter: DeadLetterPut, queue: str | None, partition: str | None
    ) -> tuple[str, str]:
        own = self._core.directory.partition(letter.pid)
        return queue or state.name, partition or (own.name if own is not None else "Default")

    def _by_id(self, letter_id: str) -> Found | None:
        for state in self._core.directory.queues.values():
            letter = state.dead.get(letter_id)
            if letter is not None:
                return state, letter
        return None

    def _of(self, pid: int, txn: str) -> Iterator[Found]:
        partition = self._core.directory.partition(pid)
        if partition is not None:
            state = self._core.directory.queue_of(partition)
            for letter in state.dead.values():
                if letter.pid == pid and letter.record.txn == txn:
                    yield state, letter

"""Consumer groups: registration, seek, delete, and where a later contact starts (`wire-messaging.md` 10)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from msgspec.structs import replace

from queen_actors.domain import cursor as rules
from queen_actors.domain.effects import CursorDropped, CursorPut, GroupDropped, GroupPut
from queen_actors.domain.partition import PartitionState
from queen_actors.domain.queue import GroupDeleted, QueueState, registration
from queen_actors.domain.streams import without_group
from queen_actors.values import QUEUE_MODE

from .acks import Acks
from .core import Core, Draft
from .partition import Producers, offset_at


class Groups:
    """The consumer groups of one broker."""

    def __init__(self, core: Core, producers: Producers, acks: Acks) -> None:
        self._core = core
        self._producers = producers
        self._acks = acks

    async def register(self, queue: str, group: str, mode: str | None, start: str | None, conflation: bool) -> None:
        """The group's first contact with the queue, which is created if need be. A second one changes nothing."""
        await self._core.turn()
        draft = Draft(self._core)
        state = draft.queue(queue)
        if group != QUEUE_MODE and group not in state.groups:
            default = self._core.settings.subscription_mode
            put = registration(state.put.qid, group, mode, start, draft.now, default, conflation)
            draft.effects.append(put)
        self._core.commit(draft)
        await self._core.log.durable()

    async def seek(self, group: str, queue: str, partition: str | None, to: int | None) -> int | None:
        """Move the group's cursors to the first message at or after `to` (microseconds), or to the end (None).

        Live leases are dropped. Returns how many partitions moved; None when there is no such queue or partition.
        """
        await self._core.turn()
        starts = await self._starts(queue, partition, to) if to is not None else {}
        draft = Draft(self._core)
        moved: list[CursorPut] = []
        state = self._core.directory.queues.get(queue)
        targets: Sequence[PartitionState] = [] if state is None else self._partitions(state, partition)
        for target in targets:
            at = target.next_offset if to is None else offset_at(target, to)
            committed = max(starts.get(target.pid, target.base) if at is None else at, target.log_start) - 1
            cursor = target.cursors.get(group) or rules.fresh(target.pid, group, committed)
            moved.append(rules.sought(cursor, committed))
        draft.add(moved)
        self._commit(draft, "seek")
        await self._core.log.durable()
        return len(moved) or None

    async def _starts(self, queue: str, partition: str | None, to: int) -> dict[int, int]:
        """The first offset at or after `to` of each partition where only the store can tell."""
        found: dict[int, int] = {}
        while True:
            state = self._core.directory.queues.get(queue)
            targets: Sequence[PartitionState] = [] if state is None else self._partitions(state, partition)
            asked = [(p.pid, p.base) for p in targets if p.pid not in found and offset_at(p, to) is None]
            if not asked:
                return found
            for pid, base in asked:
                at = await self._producers.first_offset_at(pid, to)
                found[pid] = base if at is None else at
            await self._core.turn()

    async def delete(self, group: str, queue: str | None, *, metadata: bool) -> GroupDeleted:
        """Forget the group's cursors in one queue or in all; with `metadata` its registrations too, so that the same
        name starts afresh. What was leased is free; the log stays. A streaming query that reads as this group loses its
        state with that."""
        await self._core.turn()
        directory = self._core.directory
        draft = Draft(self._core)
        new_id = partial(self._core.ids.uuid, draft.now)
        names: list[str] = []
        dropped: list[CursorDropped] = []
        registrations: list[GroupDropped] = []
        for state in directory.queues.values():
            if queue is not None and state.name != queue:
                continue
            found = [pid for pid in state.partitions.values() if directory.consumes(pid, group)]
            dropped.extend(CursorDropped(pid, group) for pid in found)
            for stream in directory.streams.reading(state.put.qid):
                if stream.put.group == group:
                    draft.effects.append(without_group(stream.put, not metadata, draft.now, new_id))
            known = metadata and group in state.groups
            if known:
                registrations.append(GroupDropped(state.put.qid, group))
            if found or known:
                names.append(state.name)
        draft.add(dropped)
        draft.add(registrations)
        self._commit(draft, "deleted")
        await self._core.log.durable()
        return GroupDeleted(len(dropped), len(registrations), tuple(names))

    async def move_subscription(self, group: str, to: int) -> int:
        """Later first contacts of the group with a partition start at `to`; cursors that exist stay. Returns how many
        queues' registrations changed."""
        directory = self._core.directory
        await self._core.turn()
        draft = Draft(self._core)
        changed: list[GroupPut] = [
            replace(state.groups[group], mode="timestamp", from_ts=to)
            for state in directory.queues.values()
            if group in state.groups
        ]
        draft.add(changed)
        self._core.commit(draft)
        await self._core.log.durable()
        return len(changed)

    def _commit(self, draft: Draft, reason: str) -> None:
        with self._acks.ending(reason):
            self._core.commit(draft)

    def _partitions(self, queue: QueueState, partition: str | None) -> Sequence[PartitionState]:
        named = None if partition is None else queue.partitions.get(partition)
        pids = queue.partitions.values() if partition is None else () if named is None else (named,)
        found = [self._core.directory.partition(pid) for pid in pids]
        return [state for state in found if state is not None]

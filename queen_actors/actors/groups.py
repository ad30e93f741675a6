"""Consumer groups: registration, seek, delete, and where a later contact starts (`wire-messaging.md` 10)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from msgspec.structs import replace

from queen_actors.domain import cursor as rules
from queen_actors.domain.effects import CursorDropped, GroupDropped, GroupPut
from queen_actors.domain.partition import PartitionState
from queen_actors.domain.queue import GroupDeleted, registration
from queen_actors.domain.streams import without_group
from queen_actors.values import QUEUE_MODE

from .acks import Acks
from .core import Core, Draft, parts
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

        Live leases are dropped. Returns how many partitions moved; None when there is no such queue or partition. Of
        more than `limits.STEP_EFFECTS` partitions so many move at a time: when it is refused, or its caller goes away,
        the first may have moved.
        """
        core, log = self._core, self._core.log
        await core.turn()
        moved, position, reloads = 0, 0, log.reloads
        for some in parts(self._pids(queue, partition)):
            if moved:
                await core.between_parts()
            find = partial(self._partitions, some, queue, partition)
            starts = await self._starts(find, to) if to is not None else {}
            log.settled(position, reloads)  # unless what moved before was refused meanwhile
            draft = Draft(core)
            for target in find():
                at = target.next_offset if to is None else offset_at(target, to)
                committed = max(starts.get(target.pid, target.base) if at is None else at, target.log_start) - 1
                cursor = target.cursors.get(group) or rules.fresh(target.pid, group, committed)
                draft.effects.append(rules.sought(cursor, committed))
            self._commit(draft, "seek")
            moved, position, reloads = moved + len(draft.effects), log.position, log.reloads
        await log.durable()
        return moved or None

    async def _starts(self, find: Callable[[], list[PartitionState]], to: int) -> dict[int, int]:
        """The first offset at or after `to` of each of the partitions where only the store can tell."""
        found: dict[int, int] = {}
        while True:
            asked = [(p.pid, p.base) for p in find() if p.pid not in found and offset_at(p, to) is None]
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

    def _pids(self, queue: str, partition: str | None) -> list[int]:
        state = self._core.directory.queues.get(queue)
        if state is None:
            return []
        if partition is None:
            return list(state.partitions.values())
        named = state.partitions.get(partition)
        return [] if named is None else [named]

    def _partitions(self, pids: Sequence[int], queue: str, partition: str | None) -> list[PartitionState]:
        """Those of them that there are still: a number may have been refused by the disk, and given out again."""
        directory = self._core.directory
        found = [directory.partition(pid) for pid in pids]
        return [
            state
            for state in found
            if state is not None
            and directory.queue_names[state.qid] == queue
            and (partition is None or state.name == partition)
        ]

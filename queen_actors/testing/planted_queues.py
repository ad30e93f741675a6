"""Planted bugs of dead letters, conflation, deletion and seeks: see `planted`."""

from __future__ import annotations

from typing import Any

import trio
from msgspec.structs import replace

from queen_actors.actors import groups, letters, pops
from queen_actors.actors.core import Draft
from queen_actors.actors.log import deferral
from queen_actors.domain import cursor as cursor_rules
from queen_actors.domain import effects as fx

from .planting import BUGS, bug, put

__all__ = ["BUGS"]

# Every one of these reaches into what is private, of classes that it knows to the last line
# pyright: reportPrivateUsage=false


@bug("a dead letter is taken out, and then its message is pushed", "I1 I11")
def letter_lost_on_replay() -> None:
    async def replay(self: letters.Letters, letter_id: str, queue: str | None, partition: str | None) -> Any:
        found = self._by_id(letter_id)
        if found is None:
            await self._core.log.durable()
            return None
        removed = Draft(self._core)
        removed.add([fx.DeadLetterDropped(letter_id, found[1].qid)])
        self._core.commit(removed)
        deferral.set(None)  # whichever way the call came in, these are two commits, and something may be between them
        await self._core.log.durable()
        await trio.sleep(0.1)
        again = Draft(self._core)
        again.add([found[1]])
        self._core.commit(again)
        return await self._replay(lambda: self._by_id(letter_id), queue, partition)

    put(letters.Letters, "replay", replay)


@bug("a dead letter stays where it was moved from", "I11")
def letter_stays() -> None:
    def keep(letter_id: str, qid: int) -> fx.DeadLetterDropped:
        return dropped("", qid)

    dropped = fx.DeadLetterDropped
    put(letters, "DeadLetterDropped", keep)


@bug("a group that conflates is given the message before the newest", "I1")
def conflation_drops_the_newest() -> None:
    newest = pops.Pops._newest_visible

    def older(partition: Any, head: int, queue: Any, now: int) -> int:
        return max(head, newest(partition, head, queue, now) - 1)

    put(pops.Pops, "_newest_visible", staticmethod(older))


@bug("the cursors of a group that is deleted stay", "I1 I3")
def cursor_survives() -> None:
    commit = groups.Groups._commit

    def forgetful(self: groups.Groups, draft: Draft, reason: str) -> None:
        draft.effects[:] = [effect for effect in draft.effects if not isinstance(effect, fx.CursorDropped)]
        commit(self, draft, reason)

    put(groups.Groups, "_commit", forgetful)


@bug("a seek leaves the leases of before alive", "I3")
def lease_survives_a_seek() -> None:
    def sought(cursor: fx.CursorPut, committed: int) -> fx.CursorPut:
        return replace(cursor, committed=committed)

    put(cursor_rules, "sought", sought)

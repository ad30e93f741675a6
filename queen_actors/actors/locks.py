"""Locks and semaphores: calls on their actors. Each op is independent of the others of its call (3.1)."""

from __future__ import annotations

from collections.abc import Sequence

from queen_actors.domain import locks as rules
from queen_actors.domain.locks import LockOp, LockResult

from .core import Core, Draft


class Locks:
    """The locks of one broker."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def call(self, ops: Sequence[LockOp]) -> list[LockResult]:
        """Each op's verdict, in order; the names of a call differ, so no op sees another's effect."""
        core = self._core
        await core.turn([("lock", op.name) for op in ops] if core.turns.busy else ())
        draft = Draft(core)
        results: list[LockResult] = []
        for op in ops:
            state = core.directory.lock(op.name)
            decision = rules.decide(op, state, draft.now, draft.version, core.ids.choose)
            draft.version += decision.versions
            draft.effects.extend(decision.effects)
            results.append(decision.result)
        core.commit(draft)
        await core.log.durable()
        return results

"""Keys: calls on KV namespaces, and the sweeping of keys whose lifetime is over."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from queen_actors.domain import kv as rules
from queen_actors.domain.effects import KvDropped, KvPut
from queen_actors.domain.kv import KvOp, KvResult, Precondition
from queen_actors.domain.locks import parse_permit_key
from queen_actors.errors import QueenError, StorageFull
from queen_actors.values import LOCKS_NAMESPACE, SECOND

from .agenda import Agenda
from .core import Core, Draft
from .log import only_looks
from .mailbox import Key

SWEEP = 1000
"""How many expired keys one step of the log drops: hygiene must not delay a caller."""
SWEEP_RETRY = SECOND


def keys_of(ops: Iterable[KvOp]) -> set[Key]:
    """The actors that a call touches: a permit's row belongs to its lock, every other key to its namespace."""
    found: set[Key] = set()
    for op in ops:
        permit = None
        if op.ns == LOCKS_NAMESPACE and not isinstance(op, rules.GetMany | rules.GetPrefix):
            permit = parse_permit_key(op.key)
        found.add(("kv", op.ns) if permit is None else ("lock", permit[0]))
    return found


class Keys:
    """The KV side of one broker."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._agenda = Agenda(core.clock, self._ends)

    async def call(self, ops: Sequence[KvOp]) -> list[KvResult] | Precondition:
        """One atomic step at one instant: all applied writes of it, or, when a `required` op loses, none (2.8, 2.9)."""
        while True:
            await self._core.turn(keys_of(ops) if self._core.turns.busy else ())
            draft = Draft(self._core)
            reply = self.decide(draft, ops)
            self._core.commit(draft)
            if not draft.effects:
                only_looks()
            try:
                await self._core.log.durable()
                return reply
            except StorageFull:
                if draft.effects:
                    raise  # else what was refused is another's, and was seen: it looks again

    def decide(self, draft: Draft, ops: Sequence[KvOp]) -> list[KvResult] | Precondition:
        """What the call comes to; the effects and the versions that they take go into the draft."""
        decision = rules.decide(ops, self._core.directory.namespace, draft.now, draft.version)
        if decision.precondition is not None:
            return decision.precondition
        draft.version += decision.versions
        draft.effects.extend(decision.effects)
        return list(decision.results)

    def observe(self, effect: KvPut | KvDropped) -> None:
        """An effect was applied: a key that will expire is on the agenda, and no other."""
        replaced = self._core.directory.replaced
        before = None if replaced is None else replaced.expires_at
        if isinstance(effect, KvPut) and effect.expires_at is not None:
            self._agenda.add(effect.expires_at, (effect.ns, effect.key), before)
        elif before is not None:
            self._agenda.discard((effect.ns, effect.key), before)

    def _ends(self, item: Key) -> int | None:
        space = self._core.directory.namespaces.get(item[0])
        row = None if space is None else space.row(item[1])
        return None if row is None else row.expires_at

    def reset(self) -> None:
        """The directory was read from the log."""
        spaces = self._core.directory.namespaces.values()
        self._agenda.replace((at, (space.ns, key)) for space in spaces for at, key in space.lifetimes())

    async def run(self) -> None:
        """Drop keys when their lifetime is over; for ever. Nobody can see them any more: this is hygiene, and news."""
        while True:
            due = await self._agenda.due(SWEEP)
            try:
                self._sweep(due)
                await self._core.log.durable()
            except QueenError:  # the log takes nothing now
                for item in due:
                    self._agenda.add(self._core.clock.now() + SWEEP_RETRY, item)

    def _sweep(self, due: Sequence[tuple[str, str]]) -> None:
        draft = Draft(self._core)
        spaces: dict[str, list[str]] = {}
        for ns, key in due:
            spaces.setdefault(ns, []).append(key)
        for ns, keys in spaces.items():
            space = self._core.directory.namespace(ns)
            for key in keys:
                row = space.row(key)
                if row is not None and row.expires_at is not None and row.expires_at > draft.now:
                    self._agenda.add(row.expires_at, (ns, key))
            draft.add(rules.expired(space, keys, draft.now, draft.version))
        self._core.commit(draft, urgent=True)

"""What a key and a lock are, for the linearizability checker: the promises alone, none of the broker's code.

A lifetime begins somewhere between the start and the end of the operation that wrote it, so that there is a span in
which the row may be there or not; whoever saw that it is over has settled it. A version or token that nobody was told
is only known to be higher than those before it, until somebody is told.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from decimal import Decimal
from typing import NamedTuple

# -- keys --------------------------------------------------------------------------------------------------------------


class Get(NamedTuple):
    """Read. Also a `required` op's refusal, as far as it shows the row."""


class Put(NamedTuple):
    """`value` in any canonical form; `expect` 0 is `putIfAbsent`; `ttl` in the history's unit, infinity: for ever."""

    value: bytes
    ttl: float = math.inf
    expect: int | None = None


class Delete(NamedTuple):
    expect: int | None = None


class Increment(NamedTuple):
    """The bounds are inclusive; a live row keeps its lifetime."""

    delta: Decimal
    ttl: float = math.inf
    low: Decimal = Decimal("-inf")
    high: Decimal = Decimal("inf")


class Check(NamedTuple):
    """Does `expect` hold? Changes nothing."""

    expect: int


KeyStep = Get | Put | Delete | Increment | Check


class Answer(NamedTuple):
    """`ok`: found, applied. The row that was shown: the written one, the removed one, or the one that stands in the
    way; no row is version 0."""

    ok: bool
    value: bytes | None = None
    version: int = 0
    reason: str | None = None


class Cell(NamedTuple):
    """A row. `version` None: above the key's highest, not told yet. It is surely there before `lives_from`, surely
    not behind `lives_to`."""

    value: bytes
    version: int | None
    lives_from: float
    lives_to: float


class Key(NamedTuple):
    """A key's row, and the highest version that anybody was told of it."""

    cell: Cell | None = None
    highest: int = 0


class KeyModel:
    """Keys with put, compare-and-set, put-if-absent, bounded increments, delete and lifetimes (I7, I8, I9)."""

    def __init__(self, slack: float = 0.0) -> None:
        """`slack`: by how much the clock of the lifetimes and the history's may differ."""
        self._slack = slack

    @property
    def initial(self) -> Key:
        return Key()

    def after(self, state: Key, step: KeyStep, answer: Answer | None, start: float, end: float) -> Iterator[Key]:
        cell = state.cell
        if cell is None or end >= cell.lives_from - self._slack:
            yield from self._on(Key(None, state.highest), step, answer, start, end)
        if cell is not None and start <= cell.lives_to + self._slack:
            yield from self._on(state, step, answer, start, end)

    def _on(self, key: Key, step: KeyStep, answer: Answer | None, start: float, end: float) -> Iterator[Key]:
        """The row is `key.cell`, or there is none."""
        if isinstance(step, Get):
            yield from _shown(key, answer, key.cell is not None, None)
            return
        if isinstance(step, Increment):
            yield from self._increment(key, step, answer, start, end)
            return
        for seen, reason in _verdicts(key, step.expect):
            if reason is not None:
                yield from _shown(seen, answer, False, reason)
            elif isinstance(step, Put):
                cell = Cell(step.value, None, start + step.ttl, end + step.ttl)
                if answer is None or answer.value == cell.value:
                    yield from _written(seen, cell, answer)
            elif isinstance(step, Check):
                if answer is None or answer.ok:
                    yield seen
            elif seen.cell is None and step.expect is None:
                yield from _shown(seen, answer, False, "absent")
            else:
                yield from (Key(None, shown.highest) for shown in _shown(seen, answer, True, None))

    def _increment(self, key: Key, step: Increment, answer: Answer | None, start: float, end: float) -> Iterator[Key]:
        cell = key.cell or Cell(b"0", None, start + step.ttl, end + step.ttl)
        try:
            total = Decimal(cell.value.decode()) + step.delta
        except ArithmeticError:
            if answer is None:
                yield key
            elif not answer.ok and answer.reason == "type":
                yield from _pinned(key, answer.version)
            return
        if step.low <= total <= step.high:
            if answer is None or _number(answer.value) == total:
                yield from _written(key, cell._replace(value=_text(total), version=None), answer)
        elif answer is None:
            yield key
        elif not answer.ok and answer.reason == "limit" and _number(answer.value) == _number(cell.value):
            yield from _pinned(key, answer.version)


def _number(value: bytes | None) -> Decimal | None:
    try:
        return None if value is None else Decimal(value.decode())
    except ArithmeticError:
        return None


def _text(number: Decimal) -> bytes:
    return format(number.normalize(), "f").encode()


def _verdicts(key: Key, expect: int | None) -> Iterator[tuple[Key, str | None]]:
    """Why the expectation does not hold, or None; with a version that nobody was told it may be either."""
    cell = key.cell
    if expect is None or (expect == 0 and cell is None):
        yield key, None
    elif cell is None:
        yield key, "absent"
    elif expect == 0:
        yield key, "exists"
    elif cell.version is not None:
        yield key, None if cell.version == expect else "version"
    else:
        if expect > key.highest:
            yield Key(cell._replace(version=expect), expect), None
        yield key, "version"


def _pinned(key: Key, version: int) -> Iterator[Key]:
    """The key, now that its row's version was told; nothing when that cannot be its version."""
    cell = key.cell
    if cell is None:
        if version == 0:
            yield key
    elif cell.version == version:
        yield key
    elif cell.version is None and version > key.highest:
        yield Key(cell._replace(version=version), version)


def _shown(key: Key, answer: Answer | None, ok: bool, reason: str | None) -> Iterator[Key]:
    """An answer that shows the row as it was."""
    if answer is None:
        yield key
    elif (answer.ok, answer.reason) == (ok, reason) and answer.value == (key.cell and key.cell.value):
        yield from _pinned(key, answer.version)


def _written(key: Key, cell: Cell, answer: Answer | None) -> Iterator[Key]:
    """An answer that says that this was written, under a version above all before it."""
    if answer is None:
        yield Key(cell, key.highest)
    elif answer.ok and answer.version > key.highest:
        yield Key(cell._replace(version=answer.version), answer.version)


# -- locks -------------------------------------------------------------------------------------------------------------


class Acquire(NamedTuple):
    """`lives` overrides the lifetime: the permit may be gone from the first instant on, and is gone behind the second
    (a permit that lives with a connection)."""

    ttl: float
    owner: str | None = None
    limit: int = 1
    lives: tuple[float, float] | None = None


class Renew(NamedTuple):
    slot: int
    token: int
    ttl: float
    owner: str | None = None


class Release(NamedTuple):
    slot: int
    token: int


class Guard(NamedTuple):
    """Is the permit still held under this token?"""

    slot: int
    token: int


class Holders(NamedTuple):
    """Who holds it?"""


LockStep = Acquire | Renew | Release | Guard | Holders


class Verdicts(NamedTuple):
    """`ok`: acquired, renewed, released, held under the token. `holders`: (slot, owner, token or 0 where it is not
    told) of all who stand in the way, None when that was not told."""

    ok: bool
    slot: int = 0
    token: int = 0
    already: bool = False
    holders: tuple[tuple[int, str | None, int], ...] | None = None


class Permit(NamedTuple):
    """`token` None: it was not told yet, and is higher than `above`."""

    slot: int
    token: int | None
    owner: str | None
    lives_from: float
    lives_to: float
    above: int = 0


class Lock(NamedTuple):
    """The permits, by slot, and the highest token that anybody was told."""

    permits: tuple[Permit, ...] = ()
    highest: int = 0

    def at(self, slot: int) -> Permit | None:
        return next((permit for permit in self.permits if permit.slot == slot), None)

    def with_permit(self, permit: Permit) -> Lock:
        others = [other for other in self.permits if other.slot != permit.slot]
        return Lock(tuple(sorted([*others, permit])), max(self.highest, permit.token or 0))

    def without(self, slot: int) -> Lock:
        return Lock(tuple(permit for permit in self.permits if permit.slot != slot), self.highest)


class LockModel:
    """Locks and semaphores with renewals, lifetimes and tokens (I5, I6)."""

    def __init__(self, slack: float = 0.0) -> None:
        self._slack = slack

    @property
    def initial(self) -> Lock:
        return Lock()

    def after(self, state: Lock, step: LockStep, answer: Verdicts | None, start: float, end: float) -> Iterator[Lock]:
        for live in self._live(state, start, end):
            if isinstance(step, Acquire):
                yield from self._acquire(live, step, answer, start, end)
            elif isinstance(step, Holders):
                yield from self._holders(live, answer)
            else:
                yield from self._by_token(live, step, answer, start, end)

    def _live(self, lock: Lock, start: float, end: float) -> Iterator[Lock]:
        """The lock without those permits whose lifetimes are over: each of them that may be, is or is not."""
        ways: list[list[Permit | None]] = []
        for permit in lock.permits:
            choices: list[Permit | None] = []
            if end >= permit.lives_from - self._slack:
                choices.append(None)
            if start <= permit.lives_to + self._slack:
                choices.append(permit)
            ways.append(choices)
        for chosen in itertools.product(*ways):
            yield Lock(tuple(permit for permit in chosen if permit is not None), lock.highest)

    def _acquire(self, lock: Lock, step: Acquire, answer: Verdicts | None, start: float, end: float) -> Iterator[Lock]:
        below = [permit for permit in lock.permits if permit.slot < step.limit]
        own = next((permit for permit in below if step.owner is not None and permit.owner == step.owner), None)
        if own is not None:
            if answer is None:
                yield lock
            elif answer.ok and answer.already and answer.slot == own.slot:
                yield from _told(lock, own, answer.token)
            return
        if len(below) >= step.limit:
            if answer is None or (not answer.ok and _fits(below, answer.holders)):
                yield lock
            return
        if answer is not None and (not answer.ok or answer.already or answer.token <= lock.highest):
            return
        lives = step.lives or (start + step.ttl, end + step.ttl)
        taken = {permit.slot for permit in below}
        for slot in range(step.limit) if answer is None else (answer.slot,):
            if slot not in taken and slot < step.limit:
                token = None if answer is None else answer.token
                yield lock.with_permit(Permit(slot, token, step.owner, *lives, above=lock.highest))

    def _by_token(
        self, lock: Lock, step: Renew | Release | Guard, answer: Verdicts | None, start: float, end: float
    ) -> Iterator[Lock]:
        permit = lock.at(step.slot)
        ways: list[tuple[Lock, bool]] = []
        if permit is None:
            ways.append((lock, False))
        else:
            owned = isinstance(step, Renew) and step.owner is not None and step.owner == permit.owner
            if owned or permit.token == step.token:
                ways.append((lock, True))
            else:
                ways += [(seen, True) for seen in _told(lock, permit, step.token)]
            if not owned and permit.token != step.token:
                ways.append((lock, False))
        for seen, ok in ways:
            if answer is not None and answer.ok is not ok:
                continue
            if ok and isinstance(step, Renew):
                yield from self._renewed(seen, step, answer, start, end)
            else:
                yield seen.without(step.slot) if ok and isinstance(step, Release) else seen

    def _renewed(self, lock: Lock, step: Renew, answer: Verdicts | None, start: float, end: float) -> Iterator[Lock]:
        permit = lock.at(step.slot)
        assert permit is not None
        if answer is not None and answer.token <= lock.highest:
            return
        token = None if answer is None else answer.token
        lives_from, lives_to = start + step.ttl, end + step.ttl
        yield lock.with_permit(Permit(step.slot, token, permit.owner, lives_from, lives_to, above=lock.highest))

    def _holders(self, lock: Lock, answer: Verdicts | None) -> Iterator[Lock]:
        if answer is None:
            yield lock
            return
        if not _fits(lock.permits, answer.holders):
            return
        for slot, _, token in answer.holders or ():
            permit = lock.at(slot)
            if permit is not None and permit.token is None and token:
                lock = lock.with_permit(permit._replace(token=token))
        yield lock


def _told(lock: Lock, permit: Permit, token: int) -> Iterator[Lock]:
    """The lock, now that this permit's token was told; nothing when that cannot be its token."""
    if permit.token == token:
        yield lock
    elif permit.token is None and token > permit.above:
        yield lock.with_permit(permit._replace(token=token))


def _fits(permits: list[Permit] | tuple[Permit, ...], holders: tuple[tuple[int, str | None, int], ...] | None) -> bool:
    """Whether these are the holders that were told, as far as it was told."""
    if holders is None:
        return True
    if len(holders) != len(permits):
        return False
    for permit, (slot, owner, token) in zip(permits, sorted(holders, key=lambda told: told[0]), strict=True):
        if (permit.slot, permit.owner) != (slot, owner):
            return False
        if token and (token <= permit.above if permit.token is None else token != permit.token):
            return False
    return True

"""A lock or semaphore: commands, replies and the pure rules (`wire-kv-locks-timers-transactions.md`, section 3)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw, Struct

from queen_actors import limits
from queen_actors.values import LOCKS_NAMESPACE, iso_offset, parse_instant

from .effects import KvDropped, KvPut
from .kv import Row, expiry


class Acquire(Struct, frozen=True):
    """`ttl` in microseconds."""

    name: str
    ttl: int
    owner: str | None = None
    limit: int = 1


class Renew(Struct, frozen=True):
    name: str
    token: int
    ttl: int
    slot: int = 0
    owner: str | None = None


class Release(Struct, frozen=True):
    name: str
    token: int
    slot: int = 0


class GetLock(Struct, frozen=True):
    name: str


LockOp = Acquire | Renew | Release | GetLock


class Holder(Struct, frozen=True):
    slot: int
    owner: str | None
    token: int
    since: int
    expires_at: int | None
    renewed_at: int


class LockResult(Struct, frozen=True):
    """`op` is the wire's word, `ok` its verdict (acquired, renewed, released, held); `reason` of a refusal."""

    op: str
    name: str
    ok: bool
    slot: int = 0
    token: int = 0
    owner: str | None = None
    already: bool = False
    reason: str | None = None
    holders: tuple[Holder, ...] = ()
    expires_at: int | None = None


class LockDecision(Struct, frozen=True):
    """What an op comes to. `versions`: how many numbers its effects took, 0 or 1."""

    result: LockResult
    effects: tuple[KvPut | KvDropped, ...]
    versions: int


class LockState:
    """The permits of one lock: the rows `<name>#<slot>` of `queen-locks` (3.5). A permit whose lifetime is over stays
    until it is swept or granted again; no operation sees it."""

    __slots__ = ("name", "slots")

    def __init__(self, name: str) -> None:
        self.name = name
        self.slots: dict[int, Row] = {}

    def live(self, slot: int, now: int) -> Row | None:
        """The slot's permit, unless its lifetime is over at `now`."""
        row = self.slots.get(slot)
        return None if row is None or (row.expires_at is not None and row.expires_at <= now) else row

    def holders(self, now: int) -> tuple[Holder, ...]:
        """Who holds a permit at `now`, by slot, whatever limit it was asked with."""
        return tuple(_holder(slot, row) for slot in sorted(self.slots) if (row := self.live(slot, now)) is not None)

    def apply(self, effect: KvPut | KvDropped) -> None:
        """Take an effect on a permit of this lock: the only mutation."""
        _, _, digits = effect.key.rpartition("#")
        slot = int(digits)
        if isinstance(effect, KvPut):
            self.slots[slot] = Row(
                effect.value, effect.version, effect.expires_at, effect.created_at, effect.updated_at
            )
        else:
            self.slots.pop(slot, None)

    def __len__(self) -> int:
        """How many permits there are, those not swept yet included."""
        return len(self.slots)


def permit_key(name: str, slot: int) -> str:
    """The key of a permit in `queen-locks`."""
    return f"{name}#{slot}"


def parse_permit_key(key: str) -> tuple[str, int] | None:
    """The (lock, slot) of a permit's key; None for every other key, which is then an ordinary one."""
    if (match := _PERMIT_KEY.fullmatch(key)) is None:
        return None
    name, slot = match[1], int(match[2])
    if slot >= limits.LOCK_LIMIT_MAX or len(name.encode(errors="surrogatepass")) > limits.LOCK_NAME_BYTES:
        return None
    return name, slot


def decide(op: LockOp, state: LockState, now: int, version: int, choose: Callable[[int], int]) -> LockDecision:
    """What the op comes to at the instant `now`, when `version` is the highest number given out so far.

    `choose(n)` gives a number below n: which free slot of a semaphore is granted. A grant, a renewal and a release
    take the next number each; nothing else takes one.
    """
    return _RULES[type(op)](op, state, now, version + 1, choose)


def expired(state: LockState, now: int, version: int) -> tuple[KvDropped, ...]:
    """The effects that sweep the permits whose lifetime is over at `now`; `version` is what the counter shows."""
    return tuple(
        KvDropped(LOCKS_NAMESPACE, permit_key(state.name, slot), version, True)
        for slot in sorted(state.slots)
        if state.live(slot, now) is None
    )


def extended(state: LockState, slot: int, token: int, now: int, ttl: int) -> KvPut | None:
    """The effect that lets a live permit begin its lifetime again and keep its token, for it lives with a connection
    (`websocket.md` 6): guards that hold it must not fail because it lives. None when the permit is gone."""
    row = state.live(slot, now)
    if row is None or row.version != token:
        return None
    key = permit_key(state.name, slot)
    return KvPut(LOCKS_NAMESPACE, key, row.value, token, expiry(now, ttl), row.created_at, now)


_PERMIT_KEY = re.compile(r"([^#\x00-\x1f\x7f-\x9f]+)#(0|[1-9][0-9]{0,3})")


class _Permit(Struct):
    """A permit's value. A foreign put may have stored any JSON, so each member is looked at on its own."""

    owner: Raw = Raw(b"null")
    since: Raw = Raw(b"null")


_decode_permit = msgspec.json.Decoder(_Permit).decode
_decode_text = msgspec.json.Decoder(str).decode


def _permit(row: Row) -> tuple[str | None, int]:
    """Who the permit's value says its owner is, and since when: the row's own instant unless it names one."""
    try:
        permit = _decode_permit(row.value)
    except (msgspec.MsgspecError, RecursionError):
        return None, row.updated_at
    return _text(permit.owner), _since(_text(permit.since), row)


def _text(value: Raw) -> str | None:
    try:
        return _decode_text(value)
    except msgspec.MsgspecError:
        return None


def _since(text: str | None, row: Row) -> int:
    """An instant that a permit's value names, if it is one that lies behind the row's last change."""
    if text is None:
        return row.updated_at
    try:
        since = parse_instant(text)
    except ValueError:
        return row.updated_at
    return since if 0 <= since <= row.updated_at else row.updated_at


def _holder(slot: int, row: Row) -> Holder:
    owner, since = _permit(row)
    return Holder(slot, owner, row.version, since, row.expires_at, row.updated_at)


def _granted(op: Acquire, slot: int, now: int, version: int) -> LockDecision:
    """A new permit: its lifetime starts at the grant, its token is the number that the grant takes."""
    expires_at = expiry(now, op.ttl)
    value = msgspec.json.encode({"owner": op.owner})
    effect = KvPut(LOCKS_NAMESPACE, permit_key(op.name, slot), value, version, expires_at, now, now)
    result = LockResult("acquire", op.name, True, slot, version, op.owner, expires_at=expires_at)
    return LockDecision(result, (effect,), 1)


def _acquire(op: Acquire, state: LockState, now: int, version: int, choose: Callable[[int], int]) -> LockDecision:
    """The owner's own permit as it is, else a free slot below the caller's limit, else refused (3.6)."""
    live = [
        (slot, row) for slot in sorted(state.slots) if slot < op.limit and (row := state.live(slot, now)) is not None
    ]
    if op.owner is not None and (own := _owned(op.owner, live)) is not None:
        slot, row = own
        result = LockResult(
            "acquire", op.name, True, slot, row.version, op.owner, already=True, expires_at=row.expires_at
        )
        return LockDecision(result, (), 0)
    if len(live) >= op.limit:
        holders = tuple(_holder(slot, row) for slot, row in live)
        return LockDecision(LockResult("acquire", op.name, False, reason="held", holders=holders), (), 0)
    taken = {slot for slot, _ in live}
    free = [slot for slot in range(op.limit) if slot not in taken]
    return _granted(op, free[0] if len(free) == 1 else free[choose(len(free))], now, version)


def _owned(owner: str, permits: list[tuple[int, Row]]) -> tuple[int, Row] | None:
    """The first permit of this owner. Only values that may spell the owner are decoded: a semaphore has many."""
    spelled = msgspec.json.encode(owner)
    for slot, row in permits:
        if (spelled in row.value or b"\\" in row.value) and _permit(row)[0] == owner:
            return slot, row
    return None


def _renew(op: Renew, state: LockState, now: int, version: int, choose: Callable[[int], int]) -> LockDecision:
    """A live permit gets a new lifetime and a new token; a stale token is good enough from its owner (3.6)."""
    row = state.live(op.slot, now)
    if row is None:
        return _lost("renew", op, None)
    owner, since = _permit(row)
    if row.version != op.token and (op.owner is None or op.owner != owner):
        return _lost("renew", op, row)
    expires_at = expiry(now, op.ttl)
    value = msgspec.json.encode({"owner": owner, "since": iso_offset(since)})
    key = permit_key(op.name, op.slot)
    effect = KvPut(LOCKS_NAMESPACE, key, value, version, expires_at, row.created_at, now)
    result = LockResult("renew", op.name, True, op.slot, version, owner, expires_at=expires_at)
    return LockDecision(result, (effect,), 1)


def _release(op: Release, state: LockState, now: int, version: int, choose: Callable[[int], int]) -> LockDecision:
    """Only the token counts."""
    row = state.live(op.slot, now)
    if row is None or row.version != op.token:
        return _lost("release", op, row)
    effect = KvDropped(LOCKS_NAMESPACE, permit_key(op.name, op.slot), version, False)
    return LockDecision(LockResult("release", op.name, True, op.slot), (effect,), 1)


def _get(op: GetLock, state: LockState, now: int, version: int, choose: Callable[[int], int]) -> LockDecision:
    holders = state.holders(now)
    return LockDecision(LockResult("get", op.name, bool(holders), holders=holders), (), 0)


def _lost(word: str, op: Renew | Release, row: Row | None) -> LockDecision:
    """The permit is not the caller's any more; the answer shows who holds the slot now."""
    holders = () if row is None else (_holder(op.slot, row),)
    return LockDecision(LockResult(word, op.name, False, op.slot, reason="lost", holders=holders), (), 0)


_RULES: dict[type, Callable[[Any, LockState, int, int, Callable[[int], int]], LockDecision]] = {
    Acquire: _acquire,
    Renew: _renew,
    Release: _release,
    GetLock: _get,
}

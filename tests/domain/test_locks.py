"""Locks and semaphores: every state of a permit times every operation (section 3 of the wire), without I/O."""

from __future__ import annotations

import pytest

from queen_actors import limits
from queen_actors.domain import kv
from queen_actors.domain.effects import Counters, Entry, KvDropped, KvPut, decode_entries, encode_entries
from queen_actors.domain.kv import NamespaceState, Precondition, Row
from queen_actors.domain.locks import (
    Acquire,
    GetLock,
    Holder,
    LockDecision,
    LockOp,
    LockResult,
    LockState,
    Release,
    Renew,
    decide,
    expired,
    parse_permit_key,
    permit_key,
)
from queen_actors.values import LOCKS_NAMESPACE, MAX_INSTANT, iso_offset

SECOND = 1_000_000
NOW = 1_700_000_000 * SECOND
TTL = 30 * SECOND
SINCE = NOW - 10 * SECOND


class Lock:
    """One lock, its rows as KV shows them, and the version counter."""

    def __init__(self, version: int = 20) -> None:
        self.state = LockState("job")
        self.rows = NamespaceState(LOCKS_NAMESPACE)
        self.version = version
        self.now = NOW
        self.effects: list[KvPut | KvDropped] = []
        self.choices: list[int] = []

    def choose(self, below: int) -> int:
        self.choices.append(below)
        return below - 1

    def apply(self, *effects: KvPut | KvDropped) -> None:
        for effect in effects:
            self.state.apply(effect)
            self.rows.apply(effect)
            self.effects.append(effect)

    def store(self, value: bytes, *, slot: int = 0, version: int = 7, expires_at: int | None = NOW + 1) -> None:
        self.apply(KvPut(LOCKS_NAMESPACE, f"job#{slot}", value, version, expires_at, SINCE, SINCE))

    def decide(self, op: LockOp) -> LockDecision:
        before = dict(self.state.slots)
        decision = decide(op, self.state, self.now, self.version, self.choose)
        assert self.state.slots == before, "decide changes nothing"
        assert decision.versions == len(decision.effects)
        return decision

    def call(self, op: LockOp) -> LockResult:
        decision = self.decide(op)
        self.apply(*decision.effects)
        self.version += decision.versions
        return decision.result

    def acquire(self, owner: str | None = "me", ttl: int = TTL, limit: int = 1) -> LockResult:
        return self.call(Acquire("job", ttl, owner, limit))

    def renew(self, token: int, ttl: int = TTL, slot: int = 0, owner: str | None = None) -> LockResult:
        return self.call(Renew("job", token, ttl, slot, owner))

    def release(self, token: int, slot: int = 0) -> LockResult:
        return self.call(Release("job", token, slot))

    def get(self) -> LockResult:
        return self.call(GetLock("job"))


STATES = {
    "free": None,
    "mine": (b'{"owner":"me"}', NOW + 1),
    "another's": (b'{"owner":"you"}', NOW + 1),
    "nobody's": (b'{"owner":null}', NOW + 1),
    "expired": (b'{"owner":"me"}', NOW),
    "for ever": (b'{"owner":"me"}', None),
}
GRANTED, ALREADY, HELD, RENEWED, RELEASED, LOST = "granted", "already", "held", "renewed", "released", "lost"

# One row per op, one column per state of slot 0, whose token is 7.
TABLE = {
    ("acquire", "as me"): (GRANTED, ALREADY, HELD, HELD, GRANTED, ALREADY),
    ("acquire", "as nobody"): (GRANTED, HELD, HELD, HELD, GRANTED, HELD),
    ("renew", "token"): (LOST, RENEWED, RENEWED, RENEWED, LOST, RENEWED),
    ("renew", "token as me"): (LOST, RENEWED, RENEWED, RENEWED, LOST, RENEWED),
    ("renew", "stale token"): (LOST, LOST, LOST, LOST, LOST, LOST),
    ("renew", "stale token as me"): (LOST, RENEWED, LOST, LOST, LOST, RENEWED),
    ("release", "token"): (LOST, RELEASED, RELEASED, RELEASED, LOST, RELEASED),
    ("release", "stale token"): (LOST, LOST, LOST, LOST, LOST, LOST),
    ("release", "other slot"): (LOST, LOST, LOST, LOST, LOST, LOST),
}
OPS: dict[tuple[str, str], LockOp] = {
    ("acquire", "as me"): Acquire("job", TTL, "me"),
    ("acquire", "as nobody"): Acquire("job", TTL),
    ("renew", "token"): Renew("job", 7, TTL),
    ("renew", "token as me"): Renew("job", 7, TTL, 0, "me"),
    ("renew", "stale token"): Renew("job", 6, TTL),
    ("renew", "stale token as me"): Renew("job", 6, TTL, 0, "me"),
    ("release", "token"): Release("job", 7),
    ("release", "stale token"): Release("job", 6),
    ("release", "other slot"): Release("job", 7, 1),
}
CASES = [
    (what, state, verdict) for what, verdicts in TABLE.items() for state, verdict in zip(STATES, verdicts, strict=True)
]


@pytest.mark.parametrize(("what", "state", "verdict"), CASES)
def test_every_state_of_a_permit_and_every_operation(what: tuple[str, str], state: str, verdict: str) -> None:
    """3.6: the answer, the permit after it, and that only a grant, a renewal and a release take a number."""
    lock = Lock()
    stored = STATES[state]
    if stored is not None:
        lock.store(stored[0], expires_at=stored[1])
    before = dict(lock.state.slots)
    owner = {"mine": "me", "another's": "you", "for ever": "me"}.get(state)
    live = stored is not None and state != "expired"
    holder = Holder(0, owner, 7, SINCE, stored[1], SINCE) if live else None
    result = lock.call(OPS[what])
    later = NOW + TTL
    if verdict == GRANTED:
        asked = "me" if what[1] == "as me" else None
        assert result == LockResult("acquire", "job", True, 0, 21, asked, expires_at=later)
        value = b'{"owner":"me"}' if asked else b'{"owner":null}'
        assert lock.state.slots == {0: Row(value, 21, later, NOW, NOW)}
    elif verdict == RENEWED:
        assert result == LockResult("renew", "job", True, 0, 21, owner, expires_at=later)
        assert stored is not None
        value = stored[0][:-1] + b',"since":"' + iso_offset(SINCE).encode() + b'"}'
        assert lock.state.slots == {0: Row(value, 21, later, SINCE, NOW)}
    elif verdict == RELEASED:
        assert result == LockResult("release", "job", True, 0)
        assert lock.state.slots == {}
        assert lock.effects[-1] == KvDropped(LOCKS_NAMESPACE, "job#0", 21, False)
    else:
        assert lock.state.slots == before, "a refused operation leaves the permit as it is"
        assert lock.version == 20
        if verdict == ALREADY:
            assert stored is not None
            again = LockResult("acquire", "job", True, 0, 7, "me", already=True, expires_at=stored[1])
            assert result == again
        else:
            slot = 1 if what[1] == "other slot" else 0
            holders = (holder,) if holder is not None and slot == 0 else ()
            assert result == LockResult(what[0], "job", False, slot, reason=verdict, holders=holders)
            return
    assert lock.version == 20 + (verdict != ALREADY)


@pytest.mark.parametrize("state", STATES)
def test_get_shows_who_holds_it(state: str) -> None:
    """An expired permit is held by nobody."""
    lock = Lock()
    stored = STATES[state]
    if stored is not None:
        lock.store(stored[0], expires_at=stored[1])
    result = lock.get()
    live = stored is not None and state != "expired"
    owner = {"mine": "me", "another's": "you", "for ever": "me"}.get(state)
    holders = (Holder(0, owner, 7, SINCE, stored[1], SINCE),) if live else ()
    assert result == LockResult("get", "job", live, holders=holders)
    assert lock.state.holders(NOW) == holders


def test_a_lifetime_starts_at_the_grant() -> None:
    """A34: whoever waited, the permit has its whole lifetime left when it is granted."""
    lock = Lock()
    lock.acquire("you", ttl=3 * SECOND)
    lock.now += 3 * SECOND
    assert lock.acquire("me", ttl=SECOND).expires_at == lock.now + SECOND


def test_a_renewal_replaces_the_lifetime() -> None:
    """A36: renewals do not add up, and a shorter one shortens."""
    lock = Lock()
    token = lock.acquire(ttl=2 * SECOND).token
    for _ in range(20):
        result = lock.renew(token, ttl=2 * SECOND)
        token = result.token
    assert result.expires_at == NOW + 2 * SECOND
    assert lock.renew(token, ttl=SECOND).expires_at == NOW + SECOND
    lock.now += SECOND
    assert lock.acquire("you").ok


def test_the_same_owner_gets_the_same_permit() -> None:
    """A37: a repeated acquire gives the same token and slot and does not extend; another owner is refused."""
    lock = Lock()
    first = lock.acquire("o1")
    lock.now += 5 * SECOND
    again = lock.acquire("o1", ttl=100 * SECOND)
    assert (again.ok, again.already, again.token, again.slot) == (True, True, first.token, first.slot)
    assert again.expires_at == first.expires_at
    refused = lock.acquire("o2")
    assert (refused.ok, refused.reason) == (False, "held")
    assert [(holder.slot, holder.owner) for holder in refused.holders] == [(0, "o1")]


def test_the_token_rises_with_every_grant_and_renewal() -> None:
    """I6: across release, expiry, sweep and a deletion through KV, no two are equal and none is lower."""
    lock = Lock(version=0)
    tokens = [lock.acquire().token]
    tokens.append(lock.renew(tokens[-1]).token)
    lock.release(tokens[-1])
    tokens.append(lock.acquire("you", ttl=SECOND).token)
    lock.now += SECOND
    tokens.append(lock.acquire("me", ttl=SECOND).token)
    lock.now += SECOND
    lock.apply(*expired(lock.state, lock.now, lock.version))
    tokens.append(lock.acquire().token)
    delete = kv.decide([kv.Delete(LOCKS_NAMESPACE, "job#0")], lambda _: lock.rows, lock.now, lock.version)
    lock.version += delete.versions
    lock.apply(*delete.effects)
    tokens.append(lock.acquire().token)
    assert tokens == sorted(set(tokens))


def test_since_outlives_renewals() -> None:
    """The value names the acquire's instant from the first renewal on, and `get` shows both instants."""
    lock = Lock()
    lock.now = NOW + 336_950
    token = lock.acquire().token
    for _ in range(3):
        lock.now += SECOND
        token = lock.renew(token).token
    row = lock.rows.row("job#0")
    assert row is not None
    assert row.value == b'{"owner":"me","since":"2023-11-14T22:13:20.33695+00:00"}'
    (holder,) = lock.get().holders
    assert holder == Holder(0, "me", token, NOW + 336_950, lock.now + TTL, lock.now)


def test_a_guard_holds_until_the_token_moves() -> None:
    """3.7: a `check` of the token holds, fails with `version` and the row's owner after a renewal, with `absent` after
    the lifetime, with the other's row when another has it."""
    lock = Lock()
    first = lock.acquire(ttl=2 * SECOND)

    def guard(token: int) -> kv.Precondition | None:
        check = kv.Check(LOCKS_NAMESPACE, permit_key("job", 0), token, required=True)
        return kv.decide([check], lambda _: lock.rows, lock.now, lock.version).precondition

    assert guard(first.token) is None
    second = lock.renew(first.token, ttl=2 * SECOND)
    since = iso_offset(NOW).encode()
    moved = Precondition(0, "version", second.token, b'{"owner":"me","since":"' + since + b'"}')
    assert guard(first.token) == moved
    assert guard(second.token) is None
    lock.now += 2 * SECOND
    assert guard(second.token) == Precondition(0, "absent", 0, b"null")
    third = lock.acquire("you")
    assert guard(second.token) == Precondition(0, "version", third.token, b'{"owner":"you"}')


def test_an_expired_holder_cannot_revive_its_permit() -> None:
    """Renew and release answer `lost` without holders; only an acquire helps."""
    lock = Lock()
    token = lock.acquire(ttl=SECOND).token
    lock.now += SECOND
    assert lock.renew(token, owner="me") == LockResult("renew", "job", False, 0, reason="lost")
    assert lock.release(token) == LockResult("release", "job", False, 0, reason="lost")
    assert lock.acquire().token > token


def test_a_lifetime_beyond_all_dates_ends_with_them() -> None:
    """There is no maximum lifetime, but an expiry has to be spelled as a date."""
    lock = Lock()
    ttl = limits.TTL_SECONDS_MAX * SECOND
    granted = lock.acquire(ttl=ttl)
    assert granted.expires_at == MAX_INSTANT
    assert lock.renew(granted.token, ttl=ttl).expires_at == MAX_INSTANT


# Semaphores


def test_a_semaphore_has_as_many_holders_as_its_limit() -> None:
    """Different slots, the next one refused with all holders, and let in when one is given back; tokens rise."""
    lock = Lock()
    permits = [lock.acquire(f"w{n}", limit=3) for n in range(3)]
    assert sorted(permit.slot for permit in permits) == [0, 1, 2]
    assert [permit.token for permit in permits] == [21, 22, 23]
    refused = lock.acquire("w3", limit=3)
    assert (refused.ok, refused.reason) == (False, "held")
    owners = {permit.slot: permit.owner for permit in permits}
    assert [(holder.slot, holder.owner) for holder in refused.holders] == sorted(owners.items())
    assert lock.release(permits[1].token, permits[1].slot).ok
    granted = lock.acquire("w3", limit=3)
    assert (granted.slot, granted.token) == (permits[1].slot, 25)


def test_the_slot_is_chosen_among_the_free_ones() -> None:
    """`choose` decides among the free slots below the limit; a lock, or one slot left, leaves nothing to choose."""
    lock = Lock()
    lock.store(b'{"owner":"x"}', slot=1)
    lock.store(b'{"owner":"y"}', slot=3, expires_at=NOW)
    assert lock.acquire("a", limit=5).slot == 4
    assert lock.acquire("b", limit=5).slot == 3
    assert lock.acquire("c", limit=5).slot == 2
    assert lock.choices == [4, 3, 2]
    assert lock.acquire("d", limit=5).slot == 0
    assert lock.acquire("e", limit=5).reason == "held"
    assert lock.choices == [4, 3, 2]


def test_an_owner_keeps_its_slot_of_a_semaphore() -> None:
    """Asked again it gets its own permit, whichever slot that is, also when all are held."""
    lock = Lock()
    first = lock.acquire("a", limit=2)
    lock.acquire("b", limit=2)
    again = lock.acquire("a", limit=2)
    assert (again.already, again.slot, again.token) == (True, first.slot, first.token)


def test_anonymous_holders_are_all_different() -> None:
    """Without an owner nothing is recognised: each acquire takes a slot of its own."""
    lock = Lock()
    assert {lock.acquire(None, limit=2).slot for _ in range(2)} == {0, 1}
    assert lock.acquire(None, limit=2).reason == "held"


def test_slots_above_the_callers_limit_are_invisible_to_it() -> None:
    """The limit is stored nowhere; `get` lists every slot, and the largest limit governs."""
    lock = Lock()
    lock.store(b'{"owner":"high"}', slot=5)
    refused_at_two = [lock.acquire(owner, limit=2) for owner in ("a", "b", "c")][-1]
    assert refused_at_two.reason == "held"
    assert [holder.slot for holder in refused_at_two.holders] == [0, 1]
    assert not lock.acquire("high", limit=1).already
    assert lock.acquire("high", limit=6).already
    assert [holder.slot for holder in lock.get().holders] == [0, 1, 5]


def test_a_lost_slot_shows_only_its_own_holder() -> None:
    """Another slot's holder says nothing about mine."""
    lock = Lock()
    lock.store(b'{"owner":"me"}', slot=0, expires_at=NOW)
    lock.store(b'{"owner":"you"}', slot=1, version=8)
    assert lock.renew(7, owner="me").holders == ()
    assert [holder.owner for holder in lock.release(7, slot=1).holders] == ["you"]


def test_the_largest_semaphore() -> None:
    """1,024 slots are all granted once."""
    lock = Lock()
    slots = {lock.acquire(None, limit=limits.LOCK_LIMIT_MAX).slot for _ in range(limits.LOCK_LIMIT_MAX)}
    assert slots == set(range(limits.LOCK_LIMIT_MAX))
    assert lock.acquire(None, limit=limits.LOCK_LIMIT_MAX).reason == "held"


# Rows that somebody put through KV


@pytest.mark.parametrize(
    ("value", "owner"),
    [
        (b"null", None),
        (b"5", None),
        (b'"me"', None),
        (b'["me"]', None),
        (b"{}", None),
        (b'{"owner":5}', None),
        (b'{"owner":{"owner":"me"}}', None),
        (b'{"owner":"\\ud800"}', None),
        (b'{"owner":null,"since":5}', None),
        (b'{"owner":"me","more":[1,2]}', "me"),
        (b'{"owner":"\\u006de"}', "me"),
        (b'{"owner":"me","since":"yesterday"}', "me"),
        (b'{"owner":"me","since":"0001-01-01T00:00:00+23:59"}', "me"),
        (b'{"owner":"me","since":"9999-01-01T00:00:00Z"}', "me"),
        (b'{"owner":"me","since":' + b"[" * 30_000 + b"]" * 30_000 + b"}", None),
    ],
)
def test_a_foreign_value_is_a_permit_all_the_same(value: bytes, owner: str | None) -> None:
    """Any JSON counts as held; an owner is only what is a text under `owner`, an unreadable `since` is not used."""
    lock = Lock()
    lock.store(value)
    assert lock.get().holders == (Holder(0, owner, 7, SINCE, NOW + 1, SINCE),)
    assert lock.acquire("another").reason == "held"
    assert lock.acquire("me").already == (owner == "me")
    renewed = lock.renew(7)
    assert (renewed.ok, renewed.owner) == (True, owner)
    assert lock.get().holders == (Holder(0, owner, 21, SINCE, NOW + TTL, NOW),)


def test_a_foreign_since_is_kept() -> None:
    """An instant in any ISO spelling, in the wire's own after a renewal."""
    lock = Lock()
    lock.store(b'{"owner":"me","since":"2023-11-14T23:00:00.5+01:00"}')
    lock.renew(7)
    assert lock.state.slots[0].value == b'{"owner":"me","since":"2023-11-14T22:00:00.5+00:00"}'


# Keys


@pytest.mark.parametrize(
    ("key", "permit"),
    [
        ("daily-report#0", ("daily-report", 0)),
        ("gpu#1023", ("gpu", 1023)),
        ("a b/c?%41é😀#7", ("a b/c?%41é😀", 7)),
        ("é" * 128 + "#1", ("é" * 128, 1)),
        ("é" * 128 + "x#1", None),
        ("x" * 257 + "#1", None),
        ("gpu#1024", None),
        ("gpu#01", None),
        ("gpu#00", None),
        ("gpu#-1", None),
        ("gpu#+1", None),
        ("gpu#1 ", None),
        ("gpu#1\n", None),
        ("gpu#", None),
        ("gpu", None),
        ("#0", None),
        ("a#b#0", None),
        ("gpu#²", None),
        ("gpu#٣", None),
        ("a\x1fb#0", None),
        ("a\x7fb#0", None),
        ("a\x9fb#0", None),
        ("a\xa0b#0", ("a\xa0b", 0)),
        ("", None),
    ],
)
def test_which_keys_are_permits(key: str, permit: tuple[str, int] | None) -> None:
    """`<name>#<slot>`, the slot in canonical decimal below 1,024, the name a legal one; else it is an ordinary key."""
    assert parse_permit_key(key) == permit
    if permit is not None:
        assert permit_key(*permit) == key


# Sweep and replay


def test_a_sweep_drops_expired_permits_only() -> None:
    """The effect carries the counter as it stands; the sweep is not seen."""
    lock = Lock()
    lock.store(b'{"owner":"a"}', slot=0, expires_at=NOW)
    lock.store(b'{"owner":"b"}', slot=1, expires_at=NOW + 1)
    lock.store(b'{"owner":"c"}', slot=2, expires_at=None)
    before = lock.get()
    swept = expired(lock.state, NOW, 30)
    assert swept == (KvDropped(LOCKS_NAMESPACE, "job#0", 30, True),)
    lock.apply(*swept)
    assert len(lock.state) == 2
    assert lock.get() == before


def test_replay_gives_the_same_permits() -> None:
    """The effects of a life, through the log's encoding, rebuild an equal lock."""
    lock = Lock()
    first = lock.acquire("a", limit=3)
    second = lock.acquire("b", ttl=SECOND, limit=3)
    lock.acquire("c", limit=3)
    lock.renew(first.token, slot=first.slot)
    lock.release(second.token, second.slot)
    body = encode_entries([Entry(lock.now, Counters(lock.version), tuple(lock.effects))])
    again = LockState("job")
    for effect in decode_entries(body)[0].effects:
        assert isinstance(effect, KvPut | KvDropped)
        again.apply(effect)
    assert again.slots == lock.state.slots
    assert len(again) == 2

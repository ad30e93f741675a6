"""The rules of a cursor, row by row of `wire-messaging.md` 7.4, 8.2, 8.3 and 9.

One partition holds the messages m0 .. m9; unless a case says otherwise 0 .. 4 are leased as L, attempt 1.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from queen_actors.domain import cursor as rules
from queen_actors.domain.cursor import Acked, Signal, acknowledge, extended, fresh, leased, processing, released, take
from queen_actors.domain.effects import CursorPut, QueueOptions, Record

NOW, LEASE, TTL = 1_000_000, "L", 60_000_000
ONE = QueueOptions(retry_limit=1)
NO_DLQ = QueueOptions(retry_limit=1, dead_letter_queue=False, dlq_after_max_retries=False)


def messages(first: int, last: int) -> tuple[Record, ...]:
    return tuple(Record(offset, offset + 1, f"id{offset}", f"m{offset}", b"1") for offset in range(first, last + 1))


def claimed(
    cursor: CursorPut, first: int, last: int, lease: str = LEASE, now: int = NOW, limit: int = 0
) -> rules.Taken:
    return take(
        cursor,
        messages(first, last),
        now=now,
        lease_id=lease,
        lifetime=TTL,
        delivery_limit=limit,
        session=False,
    )


START = claimed(fresh(1, "g", -1), 0, 4).cursor


def settle(
    cursor: CursorPut,
    words: str,
    *,
    lease: str = LEASE,
    now: int = NOW + 1,
    options: QueueOptions = ONE,
    repeats: bool = True,
) -> Acked:
    """Acknowledge: `words` are an offset and a letter each (c, f, r, d), `x` for a message that is not known."""
    names = {"c": "completed", "f": "failed", "r": "retry", "d": "dlq"}
    entries = [
        (f"m{word[:-1]}", Signal(names[word[-1]], None if word[0] == "x" else int(word[:-1]), f"e{word}"))
        for word in words.split()
    ]
    return acknowledge(cursor, entries, lease, now, options, repeats=repeats)


def state(cursor: CursorPut) -> tuple[int, bool, int]:
    return cursor.committed, bool(cursor.lease_id), cursor.retries


def next_attempt(cursor: CursorPut) -> int:
    """The attempt that the next delivery from the head would be, after whatever lease there is has expired."""
    return claimed(cursor, cursor.committed + 1, 9, "N", NOW + 2 * TTL).attempt


def dead(acked: Acked) -> list[int]:
    return [offset for offset, _ in acked.dead]


# -- what acks come to (8.2, 8.3) --------------------------------------------------------------------------------------

# (case, retries before, request, options) -> (committed, lease kept, retries after, dead letters, next attempt)
TABLE: list[tuple[str, int, str, QueueOptions, tuple[int, bool, int, list[int], int]]] = [
    # 8.3, the worked scenarios
    ("all of it", 0, "4c", ONE, (4, False, 0, [], 1)),
    ("the exact set", 0, "0c 1c 2c 3c 4c", ONE, (4, False, 0, [], 1)),
    ("a prefix", 0, "2c", ONE, (2, True, 0, [], 2)),
    ("done and failed", 0, "0c 1f", ONE, (0, False, 1, [], 1)),
    ("failed above done", 0, "1f 3c", ONE, (-1, False, 1, [], 2)),
    ("the head failed", 0, "0f", ONE, (-1, False, 1, [], 2)),
    ("done and given back", 0, "0c 1r", ONE, (0, False, 0, [], 1)),
    ("dlq in the middle", 0, "2d", ONE, (2, False, 0, [2], 1)),
    ("dlq and done", 0, "2d 4c", ONE, (4, False, 0, [2], 1)),
    ("all failed once", 0, "0f 1f 2f 3f 4f", ONE, (-1, False, 1, [], 2)),
    ("all failed again", 1, "0f 1f 2f 3f 4f", ONE, (4, False, 0, [0, 1, 2, 3, 4], 1)),
    ("failed on a spent budget", 1, "1f", ONE, (1, False, 0, [1], 1)),
    ("the first failure on a budget that others spent", 1, "1c 2f", ONE, (2, False, 0, [2], 1)),
    # 8.2, the head
    ("retry keeps the count", 1, "0r", ONE, (-1, False, 1, [], 2)),
    ("retry is not charged over failed below it", 0, "3r 1f", ONE, (-1, False, 1, [], 2)),
    ("lowest signal leads, whatever the order", 0, "3f 1r", ONE, (-1, False, 0, [], 2)),
    ("one offset twice: dlq over failed", 0, "1f 1d", ONE, (1, False, 0, [1], 1)),
    ("one offset twice: failed over retry", 0, "1r 1f", ONE, (-1, False, 1, [], 2)),
    ("one offset twice: failed over completed", 0, "1c 1f", ONE, (-1, False, 1, [], 2)),
    ("a prefix does not reset the count", 1, "2c", ONE, (2, True, 1, [], 2)),
    ("a whole batch resets the count", 1, "4c", ONE, (4, False, 0, [], 1)),
    ("limit 0: the first failure", 0, "0f", QueueOptions(retry_limit=0), (0, False, 0, [0], 1)),
    ("limit 3: the third is retried", 2, "0f", QueueOptions(), (-1, False, 3, [], 2)),
    ("limit 3: the fourth is dead", 3, "0f", QueueOptions(), (0, False, 0, [0], 1)),
    ("one flag is enough", 1, "0f", QueueOptions(retry_limit=1, dead_letter_queue=False), (0, False, 0, [0], 1)),
    ("without a DLQ the head is dropped", 1, "1f", NO_DLQ, (1, False, 0, [], 1)),
    ("dlq is filed without a DLQ too", 0, "1d", NO_DLQ, (1, False, 0, [1], 1)),
    # 8.2, settle above
    ("above: dlq is filed", 0, "0d 1d 2d", ONE, (2, False, 0, [0, 1, 2], 1)),
    ("above: failed on a budget that is left stops", 0, "0d 1f 2d", ONE, (0, False, 0, [0], 1)),
    ("above: failed stops, and keeps the count", 1, "0d 1f", QueueOptions(retry_limit=2), (0, False, 1, [0], 1)),
    ("above: failed on a spent budget is filed", 1, "0f 1f 2d", ONE, (2, False, 0, [0, 1, 2], 1)),
    ("above: failed without a DLQ is dropped", 1, "0f 1f 2c", NO_DLQ, (2, False, 0, [], 1)),
    ("above: silence below a done one is done", 0, "0d 3c", ONE, (3, False, 0, [0], 1)),
    ("above: silence stops", 0, "0d 2d", ONE, (0, False, 0, [0], 1)),
    ("above: silence below done, then dlq, then silence", 0, "0d 2c 3d", ONE, (3, False, 0, [0, 3], 1)),
    ("above: retry stops", 0, "0d 1r 4c", ONE, (0, False, 0, [0], 1)),
    ("above: to the end", 0, "2d 3c 4d", ONE, (4, False, 0, [2, 4], 1)),
    # not in the span
    ("beyond the lease", 0, "7c", ONE, (-1, True, 0, [], 2)),
    ("unknown", 0, "xc", ONE, (-1, True, 0, [], 2)),
    ("a signal of what is not known signals nothing", 0, "xf 2c", ONE, (2, True, 0, [], 2)),
]


@pytest.mark.parametrize("lease", [LEASE, ""], ids=["fenced", "unfenced"])
@pytest.mark.parametrize(("case", "retries", "request_", "options", "expected"), TABLE, ids=[row[0] for row in TABLE])
def test_acks(
    case: str,
    retries: int,
    request_: str,
    options: QueueOptions,
    expected: tuple[int, bool, int, list[int], int],
    lease: str,
) -> None:
    """Every rule and worked scenario; under a live lease it is all the same whether the acks name it."""
    before = replace(START, retries=retries)
    acked = settle(before, request_, lease=lease, options=options)
    assert (*state(acked.cursor), dead(acked), next_attempt(acked.cursor)) == expected
    kept = expected[1]
    if kept:
        assert (acked.cursor.lease_id, acked.cursor.lease_expires) == (LEASE, START.lease_expires)
        assert acked.cursor.batch_end == 4
    else:
        assert (acked.cursor.lease_id, acked.cursor.lease_expires, acked.cursor.session) == ("", 0, False)


def test_a_refused_ack_leaves_the_cursor_as_it_is() -> None:
    """The very same object: nothing is written."""
    for words, lease in (("4c", "other"), ("xc", LEASE), ("7c", LEASE), ("0f", "other")):
        assert settle(START, words, lease=lease).cursor is START
    assert settle(START, "4c", now=START.lease_expires).cursor is START


@pytest.mark.parametrize(
    ("words", "outcomes"),
    [
        # (success, noop, lease_released, dlq) of each entry
        ("2c", ["+"]),
        ("4c", ["+L"]),
        ("0c 4c 4c 1c", ["+", "+L", "+", "+"]),
        ("0c 1f", ["+", "+L"]),
        ("2d 4c", ["+LD", "+"]),
        ("0d 1d", ["+LD", "+D"]),
        ("xc xf 2c", ["-", "-", "+"]),
        ("9c 9d", ["-", "-"]),
        ("3f 1c", ["+L", "+"]),
    ],
)
def test_outcomes_are_per_entry(words: str, outcomes: list[str]) -> None:
    """8.4: `leaseReleased` on the entry that ended the lease, `dlq` only on what was filed."""
    assert [marks(outcome) for outcome in settle(START, words).outcomes] == outcomes


def marks(outcome: rules.AckOutcome) -> str:
    signs = "+" if outcome.success else "-"
    return (
        signs + "N" * outcome.noop + "L" * outcome.lease_released + "D" * outcome.dlq
        if outcome.success
        else signs + "!" * (outcome.noop or outcome.lease_released or outcome.dlq)
    )


def test_what_is_done_already() -> None:
    """At or below the cursor: completed is a no-op success, every signal is refused in words that clients look for."""
    partial = settle(START, "2c").cursor
    acked = settle(partial, "1c 1f 2r 0d 3c")
    assert [marks(outcome) for outcome in acked.outcomes] == ["+N", "-", "-", "-", "+"]
    assert "unresolvable" in (acked.outcomes[1].error or "")
    assert "committed" in (acked.outcomes[1].error or "")
    assert acked.cursor.committed == 3


# -- leases and repeats ------------------------------------------------------------------------------------------------


def test_a_lease_fences() -> None:
    """Another lease, an expired one and one that is gone: every entry fails, whatever it says."""
    for cursor, lease, now in ((START, "M", NOW), (START, LEASE, START.lease_expires), (released(START), LEASE, NOW)):
        acked = settle(cursor, "0c 1f xd", lease=lease, now=now)
        assert [outcome.error for outcome in acked.outcomes] == [rules.STALE_LEASE] * 3
        assert acked.cursor is cursor


def test_the_last_instant_of_a_lease() -> None:
    """A lease is live until its expiry, exclusive."""
    assert leased(START, START.lease_expires - 1)
    assert not leased(START, START.lease_expires)
    assert processing(START, NOW) == 5
    assert processing(START, START.lease_expires) == 0
    assert settle(START, "4c", now=START.lease_expires - 1).outcomes[0].success


def test_unfenced_acks_work_after_expiry() -> None:
    """No lease named, nothing checked: completed entries advance, and signals act on whatever lease is there."""
    late = START.lease_expires + 5
    assert state(settle(START, "2c", lease="", now=late).cursor) == (2, True, 0)
    assert state(settle(START, "4c", lease="", now=late).cursor) == (4, False, 0)
    assert state(settle(START, "1f", lease="", now=late).cursor) == (-1, False, 1)


def test_unfenced_acks_without_a_lease() -> None:
    """Completed reaches any known message above the cursor; a signal needs a lease."""
    idle = released(settle(START, "0c 1f").cursor)
    acked = settle(idle, "7c 8f", lease="")
    assert [marks(outcome) for outcome in acked.outcomes] == ["+", "-"]
    assert state(acked.cursor) == (7, False, 1)
    assert next_attempt(acked.cursor) == 1
    assert acked.dead == ()


def test_a_repeat_of_the_ack_that_settled_a_lease() -> None:
    """8.2: the client did not see the answer. It succeeds under that lease, also when the next one is out already,
    until the cursor is moved by hand; never in a transaction."""
    done = settle(START, "0c 1c 2c 3c 4c").cursor
    again = settle(done, "0c 1c 2c 3c 4c")
    assert all(outcome.success and outcome.lease_released for outcome in again.outcomes)
    assert again.cursor is done
    busy = claimed(done, 5, 6, "M").cursor
    assert [marks(outcome) for outcome in settle(busy, "4c 5c").outcomes] == ["+L", "-"]
    assert settle(busy, "4c").cursor is busy
    assert not settle(done, "4c", repeats=False).outcomes[0].success
    assert not settle(done, "4c", lease="M").outcomes[0].success
    assert not settle(rules.sought(done, 4), "4c").outcomes[0].success


def test_a_repeat_of_an_ack_that_settled_only_a_part() -> None:
    """A nack gave the rest back: the lease was not settled whole, and its repeat is stale."""
    partial = settle(START, "0c 1f").cursor
    assert settle(partial, "0c 1f").outcomes[0].error == rules.STALE_LEASE


def test_dead_letters_say_why() -> None:
    """Its own error; for the head else the first one that was given; else that the retries are exhausted."""
    spent = replace(START, retries=1)
    assert settle(spent, "0f 1f").dead == ((0, "e0f"), (1, "e1f"))
    entries = [("m0", Signal("failed", 0)), ("m1", Signal("failed", 1, "why")), ("m2", Signal("failed", 2))]
    acked = acknowledge(spent, entries, LEASE, NOW, ONE)
    assert acked.dead == ((0, "why"), (1, "why"), (2, rules.RETRIES_EXHAUSTED))
    assert acknowledge(spent, [("m0", Signal("failed", 0, ""))], LEASE, NOW, ONE).dead == (
        (0, rules.RETRIES_EXHAUSTED),
    )


# -- delivery ----------------------------------------------------------------------------------------------------------


def test_attempts_count_deliveries_of_one_head() -> None:
    """Expiry and a release raise the attempt and charge nothing; another head starts at 1."""
    cursor = START
    for attempt in (2, 3):
        taken = claimed(cursor, 0, 2, f"L{attempt}", cursor.lease_expires)
        assert (taken.attempt, taken.cursor.retries, taken.cursor.batch_end) == (attempt, 0, 2)
        cursor = taken.cursor
    assert claimed(released(cursor), 0, 4).attempt == 4
    assert claimed(settle(cursor, "2c", lease="L3", now=cursor.lease_expires - 1).cursor, 3, 4).attempt == 1


def test_a_delivery_that_was_withdrawn_counts_as_none() -> None:
    """The broker could not hand the messages over (A02's counterpart): the next delivery is the same attempt."""
    assert claimed(rules.withdrawn(START), 0, 4).attempt == 1
    second = claimed(released(START), 0, 4).cursor
    assert claimed(rules.withdrawn(second), 0, 4).attempt == 2
    assert not leased(rules.withdrawn(second), NOW)


def test_auto_ack_commits_at_delivery() -> None:
    """No lease, attempt 1, and a batch that is settled whole: its count starts afresh."""
    before = settle(START, "0f").cursor
    taken = take(
        before,
        messages(0, 3),
        now=NOW,
        lease_id="",
        lifetime=TTL,
        delivery_limit=1,
        session=True,
        auto_ack=True,
    )
    assert (taken.attempt, len(taken.records), taken.dead) == (1, 4, ())
    assert state(taken.cursor) == (3, False, 0)
    assert not taken.cursor.session


def test_the_delivery_limit_gives_the_head_up() -> None:
    """At the attempt past the limit the head is dead, and the claim starts behind it, at attempt 1, with a fresh
    count; when there is nothing behind it there is no lease."""
    cursor = replace(START, attempts=2, retries=1)
    within = claimed(cursor, 0, 4, "M", limit=3)
    assert (within.attempt, within.dead) == (3, ())
    past = claimed(cursor, 0, 4, "M", limit=2)
    assert [record.offset for record in past.dead] == [0]
    assert [record.offset for record in past.records] == [1, 2, 3, 4]
    assert (past.attempt, past.cursor.committed, past.cursor.retries, past.cursor.lease_id) == (1, 0, 0, "M")
    alone = claimed(cursor, 0, 0, "M", limit=2)
    assert (alone.records, alone.cursor.committed, alone.cursor.lease_id) == ((), 0, "")
    assert claimed(alone.cursor, 1, 1, "M", limit=2).attempt == 1
    assert claimed(cursor, 0, 4, "M", limit=0).attempt == 3


def test_conflation_leases_back_to_the_head() -> None:
    """The newest message stands for the span: its ack commits all of it, and a redelivery of the span is attempt 2."""
    newest = messages(4, 4)
    taken = take(
        fresh(1, "g", -1),
        newest,
        now=NOW,
        lease_id=LEASE,
        lifetime=TTL,
        delivery_limit=20,
        session=False,
        span=0,
    )
    assert (taken.attempt, taken.cursor.committed, taken.cursor.batch_end) == (1, -1, 4)
    assert state(settle(taken.cursor, "4c").cursor) == (4, False, 0)
    again = take(
        released(taken.cursor),
        messages(6, 6),
        now=NOW,
        lease_id="M",
        lifetime=TTL,
        delivery_limit=20,
        session=False,
        span=0,
    )
    assert (again.attempt, again.cursor.batch_end) == (2, 6)


def test_extend_never_shortens() -> None:
    """9, and A36: the lifetime is replaced, not added up; only a live lease under this id is extended."""
    longer = extended(START, LEASE, NOW + 10, TTL)
    assert longer is not None
    assert longer.lease_expires == NOW + 10 + TTL
    same = extended(START, LEASE, NOW + 10, 1)
    assert same is not None
    assert same.lease_expires == START.lease_expires
    assert extended(START, "M", NOW, TTL) is None
    assert extended(START, LEASE, START.lease_expires, TTL) is None
    assert extended(released(START), "", NOW, TTL) is None


def test_a_seek_forgets_everything() -> None:
    """10: the lease is dropped, counts are cleared."""
    assert rules.sought(replace(START, retries=2), 7) == fresh(1, "g", 7)


def test_every_request_over_a_batch() -> None:
    """All 5**5 requests over a batch, on a left and a spent budget, with and without a DLQ: the cursor never passes
    the span, never goes back, and never sits on an unfinished lease that it took away; what is dead is committed."""
    seed = ("", "c", "f", "r", "d")
    for number in range(5**5):
        digits = [number // 5**place % 5 for place in range(5)]
        words = " ".join(f"{offset}{seed[digit]}" for offset, digit in enumerate(digits) if digit)
        for retries, options in ((0, ONE), (1, ONE), (1, NO_DLQ)):
            before = replace(START, retries=retries)
            acked = settle(before, words, options=options)
            after = acked.cursor
            assert -1 <= after.committed <= 4
            assert after.retries <= before.retries + 1
            assert all(offset <= after.committed for offset in dead(acked))
            assert dead(acked) == sorted(set(dead(acked)))
            assert all(outcome.success for outcome in acked.outcomes)
            signalled = any(seed[digit] in "frd" for digit in digits if digit)
            assert bool(after.lease_id) == (not signalled and after.committed < 4)
            assert sum(outcome.lease_released for outcome in acked.outcomes) == (not after.lease_id and words != "")
            assert sum(outcome.dlq for outcome in acked.outcomes) == len(acked.dead)
            untouched = [offset for offset in range(5) if not digits[offset] and offset > after.committed]
            assert all(offset not in dead(acked) for offset in untouched)

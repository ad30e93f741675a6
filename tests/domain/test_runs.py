"""Acks of a batch that is done (`domain/runs.py`): settled in one pass, and as if each had been asked about alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from queen_actors.domain import cursor as rules
from queen_actors.domain.cursor import Ack, AckOutcome, Signal
from queen_actors.domain.effects import QueueOptions, Record
from queen_actors.domain.partition import PartitionState
from queen_actors.domain.runs import AckRun, RunSettled, run_of, settle, settle_one

NOW = 1_000
IDS = ("a", "b", "c", "d", "e", "unknown")


def partition(txns: list[str], committed: int, batch_end: int, lease: str, expires: int, sealed: int) -> PartitionState:
    """Messages of these ids, some of them sealed, and the cursor of a group with a lease."""
    found = PartitionState(7, 1, "p", 0)
    found.append([Record(offset, 1, f"m{offset}", txn, b"1") for offset, txn in enumerate(txns)])
    found.evict(sealed - 1)
    cursor = rules.fresh(7, "g", committed)
    found.put_cursor(
        replace(cursor, lease_id=lease, lease_expires=expires, batch_end=batch_end, retries=2, marker=3, attempts=4)
    )
    return found


@given(
    txns=st.lists(st.sampled_from(IDS[:-1]), min_size=1, max_size=8),
    committed=st.integers(-1, 4),
    length=st.integers(0, 5),
    lease=st.sampled_from(["lease", "other", ""]),
    expires=st.sampled_from([NOW, NOW + 1]),
    sealed=st.integers(0, 3),
    acked=st.lists(st.sampled_from(IDS), min_size=1, max_size=8),
)
def test_run_is_settled_as_its_acks_are_one_by_one(
    txns: list[str], committed: int, length: int, lease: str, expires: int, sealed: int, acked: list[str]
) -> None:
    """Whatever the ids, the lease and the cursor are: where a run is settled in one pass, the cursor and every outcome
    are those that the rules give for its acks, with an index of the leased span at hand."""
    state = partition(txns, committed, committed + length, lease, expires, min(sealed, len(txns)))
    found = settle(state, AckRun(7, "g", "lease", acked), NOW)
    if found is None:
        return
    cursor = state.cursors["g"]
    span: dict[str, list[int]] = {}
    for offset in range(committed + 1, min(cursor.batch_end + 1, len(txns))):
        span.setdefault(txns[offset], []).append(offset)
    offsets = state.resolve(acked, committed, cursor.batch_end, span)
    entries = [(txn, Signal("completed", offset)) for txn, offset in zip(acked, offsets, strict=True)]
    expected = rules.acknowledge(cursor, entries, "lease", NOW, QueueOptions())
    after, released = found
    assert after == expected.cursor
    assert list(RunSettled(acked, released)) == list(expected.outcomes)


def test_a_whole_batch_is_settled_in_one_pass() -> None:
    """The usual case takes the short way: every message of the lease, and the last of them ends it."""
    state = partition(["a", "b", "c", "d"], 0, 2, "lease", NOW + 1, 0)
    found = settle(state, AckRun(7, "g", "lease", ["b", "c"]), NOW)
    assert found is not None
    assert (found[0].committed, found[0].lease_id, found[0].settled_lease, found[1]) == (2, "", "lease", 1)
    part = settle(state, AckRun(7, "g", "lease", ["b"]), NOW)
    assert part is not None
    assert (part[0].committed, part[0].lease_id, part[1]) == (1, "lease", None)


@given(
    txns=st.lists(st.sampled_from(IDS[:-1]), min_size=1, max_size=8),
    committed=st.integers(-1, 4),
    length=st.integers(0, 5),
    lease=st.sampled_from(["lease", "other", ""]),
    expires=st.sampled_from([NOW, NOW + 1]),
    sealed=st.integers(0, 3),
    ack=st.builds(
        Ack,
        txn=st.sampled_from(IDS),
        pid=st.just(7),
        group=st.sampled_from("gh"),
        status=st.sampled_from(["completed", "failed", "retry", "dlq"]),
        lease_id=st.sampled_from(["lease", "other", "", None]),
    ),
)
def test_run_of_one_is_settled_as_any_other(
    txns: list[str], committed: int, length: int, lease: str, expires: int, sealed: int, ack: Ack
) -> None:
    """Whether one ack is a run, the cursor after it and its outcome are the same by the way that runs go."""
    state = partition(txns, committed, committed + length, lease, expires, min(sealed, len(txns)))
    run = run_of([ack])
    expected = None if run is None else settle(state, run, NOW)
    found = settle_one(state, ack, NOW)
    if expected is None:
        assert found is None
    else:
        assert found == (expected[0], *RunSettled([ack.txn], expected[1]))


def test_what_is_a_run() -> None:
    """Acks that differ in their transactionId alone, and say that the message is done, under a lease."""
    acks = [Ack(txn, 7, "g", "completed", "lease") for txn in "abc"]
    run = run_of(acks)
    assert run is not None
    assert (run.pid, run.group, run.lease_id, run.txns) == (7, "g", "lease", ["a", "b", "c"])
    assert list(run) == acks
    assert run[1:] == acks[1:]
    assert run_of(run) is run
    others = [
        replace(acks[1], pid=8),
        replace(acks[1], pid=None),
        replace(acks[1], group="h"),
        replace(acks[1], status="retry"),
        replace(acks[1], lease_id="other"),
        replace(acks[1], lease_id=None),
    ]
    for other in others:
        assert run_of([acks[0], other]) is None
        assert run_of([other, acks[0]]) is None
    assert run_of([]) is None


def test_outcomes_of_a_run_are_a_sequence() -> None:
    """Successes, one for each ack, of which one ended the lease."""
    settled = RunSettled(["a", "b"], 1)
    assert list(settled) == [AckOutcome("a", True), AckOutcome("b", True, lease_released=True)]
    assert settled[-1] == AckOutcome("b", True, lease_released=True)
    assert settled[:1] == [AckOutcome("a", True)]
    assert len(settled) == 2

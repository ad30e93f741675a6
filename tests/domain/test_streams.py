"""Streaming queries: registration, the positional ack, state ops, and what a replayed log comes to."""

from __future__ import annotations

from itertools import count

import pytest
from msgspec.structs import replace

from queen_actors.domain import streams
from queen_actors.domain.cursor import Taken, extended, fresh, take
from queen_actors.domain.effects import CursorPut, Record, StreamDropped, StreamPut, StreamRowDropped, StreamRowPut
from queen_actors.domain.streams import (
    CycleRefused,
    Mismatch,
    PositionAck,
    Register,
    Registered,
    Settled,
    StateOp,
    StateRead,
    StateRow,
    StreamState,
    StreamTable,
)

NOW = 1_000_000
LEASE = "lease"
PUT = StreamPut("id", 7, "q", "hash", "sink", "streams.q", "s1", 1, 1)


def registered(known: StreamPut | None, *, shape: str = "hash", qid: int = 7, reset: bool = False):
    numbers = count(1)
    command = Register("q", "orders", shape, "sink", reset)
    return streams.register(known, command, qid, NOW, lambda: f"new{next(numbers)}")


def delivered(messages: int = 5, committed: int = -1) -> CursorPut:
    """A cursor with a live lease on so many messages."""
    records = [Record(committed + 1 + n, 1, f"id{n}", f"t{n}", b"1") for n in range(messages)]
    taken: Taken = take(
        fresh(1, "g", committed),
        records,
        now=NOW,
        lease_id=LEASE,
        lifetime=1000,
        delivery_limit=20,
        session=False,
    )
    return taken.cursor


def settle(cursor: CursorPut | None, n: int, *, release: bool = False, offset: int | None = None, **ack: str):
    position = PositionAck("t", ack.get("lease_id", LEASE), ack.get("status", "completed"), n)
    return streams.settle(cursor, position, release, NOW + 1, offset)


# -- registration


def test_the_first_registration_is_fresh() -> None:
    """It gets an id and a state of its own, and reads as `streams.<name>`."""
    reply, put = registered(None)
    assert reply == Registered("new1", "q", "hash", True, False)
    assert put == StreamPut("new1", 7, "q", "hash", "sink", "streams.q", "new2", NOW, NOW)


def test_the_same_shape_again_changes_nothing() -> None:
    """No effect, so that a fleet of workers that starts writes nothing."""
    assert registered(PUT) == (Registered("id", "q", "hash", False, False), None)


@pytest.mark.parametrize(("shape", "qid", "word"), [("other", 7, "config_hash"), ("hash", 8, "source_queue")])
def test_what_does_not_fit_is_refused(shape: str, qid: int, word: str) -> None:
    """Another shape, another source: a mismatch that says which."""
    reply, put = registered(PUT, shape=shape, qid=qid)
    assert isinstance(reply, Mismatch)
    assert put is None
    assert word in reply.error
    assert (reply.id, reply.name) == ("id", "q")


@pytest.mark.parametrize(("shape", "qid"), [("other", 7), ("hash", 8), ("hash", 7)])
def test_a_reset_takes_anything_and_starts_another_state(shape: str, qid: int) -> None:
    """The id stays, for workers that started earlier; the state is another."""
    reply, put = registered(PUT, shape=shape, qid=qid, reset=True)
    assert reply == Registered("id", "q", shape, False, True)
    assert put == replace(PUT, qid=qid, config_hash=shape, state="new1", updated_at=NOW)


def test_a_group_that_forgets_takes_the_query_or_its_state() -> None:
    """Gone with its registration, else with another state."""
    assert streams.without_group(PUT, False, NOW, lambda: "new") == StreamDropped("id", 7)
    assert streams.without_group(PUT, True, NOW, lambda: "new") == replace(PUT, state="new", updated_at=NOW)


# -- the positional ack


def test_release_commits_the_whole_span_whatever_the_count() -> None:
    """Cursor at the end of the batch, lease gone and remembered, counts afresh."""
    settled = settle(replace(delivered(), retries=2), 3, release=True)
    assert isinstance(settled, Settled)
    assert (settled.count, settled.released) == (3, True)
    assert settled.cursor == replace(fresh(1, "g", 4), settled_lease=LEASE)


@pytest.mark.parametrize("n", range(1, 6))
def test_a_partial_ack_moves_by_count_and_keeps_the_lease(n: int) -> None:
    """Also when it names all of them; the next delivery begins behind it, as a second attempt."""
    before = delivered()
    settled = settle(before, n)
    assert isinstance(settled, Settled)
    assert not settled.released
    after = settled.cursor
    assert after == replace(before, committed=n - 1, marker=n, attempts=1)
    assert extended(after, LEASE, NOW + 1, 1) is not None


def test_partial_acks_under_one_lease_count_from_where_the_last_one_ended() -> None:
    """A worker that goes on under its lease names what is new since."""
    first = settle(delivered(), 2)
    assert isinstance(first, Settled)
    second = settle(first.cursor, 2, offset=3)
    assert isinstance(second, Settled)
    assert second.cursor.committed == 3
    assert settle(second.cursor, 2) == streams.BEYOND_BATCH


def test_progress_behind_a_denial_is_no_further_attempt() -> None:
    """However many deliveries it took, the new head has one behind it."""
    settled = settle(replace(delivered(), attempts=20), 1)
    assert isinstance(settled, Settled)
    assert settled.cursor.attempts == 1


def test_a_count_of_nothing_moves_nothing() -> None:
    """The same cursor, so nothing is written."""
    cursor = delivered()
    assert settle(cursor, 0) == Settled(cursor, 0, False)


def test_beyond_the_span() -> None:
    """Only what was delivered can be settled; with a release the count does not matter."""
    assert settle(delivered(3), 4) == streams.BEYOND_BATCH
    assert isinstance(settle(delivered(3), 4, release=True), Settled)


@pytest.mark.parametrize("offset", [0, 1])
def test_a_partial_cycle_that_is_sent_again_is_told(offset: int) -> None:
    """The message that it names lies at or below the cursor."""
    first = settle(delivered(), 2)
    assert isinstance(first, Settled)
    assert settle(first.cursor, 2, offset=offset) == streams.REPEATED


def test_retention_under_a_lease_does_not_shift_the_count() -> None:
    """The cursor was moved past messages that were delivered; the count is from the first of those all the same."""
    moved = replace(delivered(6), committed=2)
    settled = settle(moved, 5)
    assert isinstance(settled, Settled)
    assert settled.cursor.committed == 4
    behind = settle(moved, 2)
    assert isinstance(behind, Settled)
    assert behind.cursor.committed == 2


@pytest.mark.parametrize("release", [True, False])
def test_leases(release: bool) -> None:
    """Another's, one that has expired, none at all, and a group that was never there."""
    cursor = delivered()
    idle = fresh(1, "g", 4)
    for other in (replace(cursor, lease_id="x"), replace(cursor, lease_expires=NOW + 1), idle, None):
        assert settle(other, 1, release=release) == streams.LEASE_LOST
    assert settle(idle, 1, release=release, lease_id="") == streams.NO_BATCH
    assert settle(None, 1, release=release, lease_id="") == streams.NO_BATCH
    assert isinstance(settle(cursor, 1, release=release, lease_id=""), Settled)


@pytest.mark.parametrize("release", [True, False])
def test_another_status_gives_the_lease_back(release: bool) -> None:
    """The cursor stays, no retry is charged, and the redelivery counts as one more attempt."""
    settled = settle(replace(delivered(), retries=1), 3, release=release, status="failed")
    assert isinstance(settled, Settled)
    assert (settled.count, settled.released) == (0, True)
    after = settled.cursor
    assert (after.committed, after.lease_id, after.retries, after.marker, after.attempts) == (-1, "", 1, 0, 1)


# -- state ops


def state(**rows: bytes) -> StreamState:
    stream = StreamState(PUT)
    for key, value in rows.items():
        stream.set(1, StateRow(key, value, 5))
    return stream


def test_ops_of_one_key_come_to_the_last_of_them() -> None:
    """One effect a key; a delete of what is not there is none."""
    ops = [StateOp("a", b"1"), StateOp("a", b"2"), StateOp("b", b"3"), StateOp("b", None), StateOp("old", None)]
    assert streams.change(state(old=b"0"), 1, [*ops, StateOp("never", None)], NOW, strict=False) == [
        StreamRowPut("s1", 1, "a", b"2", NOW),
        StreamRowDropped("s1", 1, "old"),
    ]


def test_strict_deletes_must_find_their_rows() -> None:
    """In the order of the ops: a row that the same cycle made counts, one that it deleted does not."""
    stream = state(a=b"1")
    assert isinstance(streams.change(stream, 1, [StateOp("a", None)], NOW, strict=True), list)
    made = [StateOp("b", b"1"), StateOp("b", None)]
    assert streams.change(stream, 1, made, NOW, strict=True) == []
    for gone in ([StateOp("b", None)], [StateOp("a", None), StateOp("a", None)]):
        assert streams.change(stream, 1, gone, NOW, strict=True) == streams.STATE_MOVED
    assert streams.change(stream, 2, [StateOp("a", None)], NOW, strict=True) == streams.STATE_MOVED


def test_the_bound_of_a_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and values count; what shrinks a state that is over its bound goes through."""
    monkeypatch.setattr(streams, "STREAM_STATE_BYTES", 10)
    stream = state(aa=b"12345678")
    assert stream.size(1) == 10
    assert isinstance(streams.change(stream, 1, [StateOp("aa", b"87654321")], NOW, strict=False), list)
    assert streams.change(stream, 1, [StateOp("b", b"1")], NOW, strict=False) == streams.STATE_FULL
    swap = [StateOp("aa", None), StateOp("bb", b"12345678")]
    assert isinstance(streams.change(stream, 1, swap, NOW, strict=False), list)
    monkeypatch.setattr(streams, "STREAM_STATE_BYTES", 5)
    assert isinstance(streams.change(stream, 1, [StateOp("aa", b"1234567")], NOW, strict=False), list)
    assert isinstance(streams.change(state(), 2, [StateOp("a", b"1")], NOW, strict=False), list)


def test_sizes_follow_the_rows() -> None:
    """Set, set again, drop, drop again, wipe."""
    stream = state(a=b"1", b=b"22")
    assert stream.size(1) == 5
    stream.set(1, StateRow("a", b"333", 6))
    assert stream.size(1) == 7
    for _ in range(2):
        stream.drop(1, "a")
    stream.drop(2, "a")
    assert (stream.size(1), stream.size(2)) == (3, 0)
    stream.drop(1, "b")
    assert (stream.size(1), stream.rows) == (0, {})
    stream.set(1, StateRow("a", b"1", 6))
    stream.wipe()
    assert (stream.size(1), stream.rows) == (0, {})


def test_ripe_rows() -> None:
    """A number at `windowEnd` of an object, at or before the instant; anything else is not ripe."""
    rows = {
        "at": b'{"windowEnd":10}',
        "before": b'{"acc":[1],"windowEnd":9.5}',
        "behind": b'{"windowEnd":10.5}',
        "text": b'{"windowEnd":"9"}',
        "null": b'{"windowEnd":null}',
        "none": b"{}",
        "list": b"[1]",
        "number": b"9",
    }
    found = state(**rows).read(StateRead("id", 1, ripe_at=10), lambda row: row)
    assert [row.key for row in found] == ["at", "before"]


# -- the log


def test_every_query_is_found_by_what_names_it() -> None:
    """By id, by name, by queue; a drop takes it out of all, and another of the same name stays."""
    table = StreamTable()
    table.apply(PUT)
    table.apply(StreamRowPut("s1", 1, "k", b"1", 5))
    stream = table.get("id")
    assert stream is not None
    assert table.named("q") is stream
    assert table.reading(7) == [stream]
    moved = replace(PUT, qid=8, state="s2")
    table.apply(moved)
    assert (table.reading(7), table.reading(8)) == ([], [stream])
    assert stream.rows == {}, "another state has none of the rows"
    table.apply(StreamRowPut("s1", 1, "k", b"1", 5))
    assert stream.rows == {}, "a row of a state that is gone is none"
    table.apply(StreamRowPut("s2", 1, "k", b"2", 5))
    table.apply(replace(moved, sink="other"))
    assert stream.rows == {1: {"k": StateRow("k", b"2", 5)}}, "the same state stays"
    table.apply(StreamRowDropped("s2", 1, "k"))
    assert stream.rows == {}
    table.apply(StreamDropped("id", 8))
    table.apply(StreamDropped("id", 8))
    assert (len(table), table.get("id"), table.named("q"), table.reading(8)) == (0, None, None, [])


def test_a_dropped_queue_takes_its_queries() -> None:
    """Those that read it, and no others."""
    table = StreamTable()
    table.apply(PUT)
    table.apply(replace(PUT, id="id2", name="q2", state="s2"))
    table.apply(replace(PUT, id="id3", name="q3", state="s3", qid=8))
    table.queue_dropped(7)
    table.queue_dropped(7)
    assert len(table) == 1
    assert table.named("q3") is not None


def test_a_refusal_says_why() -> None:
    """Each has words for people and a reason for programs, all different."""
    refusals = [value for value in vars(streams).values() if isinstance(value, CycleRefused)]
    assert len({refusal.reason for refusal in refusals}) == len({refusal.error for refusal in refusals}) == 6

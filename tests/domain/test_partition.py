"""A partition: offsets, the dedup window, memory and segments, retention, passivation (messaging 2, 6, 21)."""

from __future__ import annotations

from itertools import count

import pytest

from queen_actors.domain.cursor import fresh
from queen_actors.domain.effects import QueueOptions, Recent, Record, SealedRun
from queen_actors.domain.partition import PartitionState, PushItem, PushOutcome, window_of

SECOND = 1_000_000
HOUR = 3600 * SECOND


class Pushing:
    """A partition that is pushed to, one call at each instant."""

    def __init__(self) -> None:
        self.state = PartitionState(1, 1, "p", 5)
        self.ids = (f"id{number}" for number in count())

    def push(self, now: int, *txns: str | None, window: int = HOUR) -> list[PushOutcome]:
        items = [PushItem("q", "p", b"1", txn=txn) for txn in txns]
        outcomes, records = self.state.push(items, now, window, lambda _: next(self.ids))
        if records:
            self.state.append(records)
        return outcomes


def test_a_batch_answers_for_each_item() -> None:
    """A29: new, repeat of history, new, repeat inside the request: each with its own status, the original's id."""
    pushing = Pushing()
    pushing.push(10, "old")
    outcomes = pushing.push(20, "a", "old", "b", "a")
    assert [(o.status, o.offset, o.message_id) for o in outcomes] == [
        ("queued", 1, "id1"),
        ("duplicate", 0, "id0"),
        ("queued", 2, "id2"),
        ("duplicate", 1, "id1"),
    ]
    assert [record.ts for record in pushing.state.tail] == [10, 20, 20]


def test_a_push_of_duplicates_writes_nothing() -> None:
    pushing = Pushing()
    pushing.push(10, "a")
    _, records = pushing.state.push([PushItem("q", "p", b"2", txn="a")], 20, HOUR, lambda _: "x")
    assert records == ()


@pytest.mark.parametrize(("age", "status"), [(0, "duplicate"), (HOUR, "duplicate"), (HOUR + 1, "queued")])
def test_the_dedup_window_is_inclusive(age: int, status: str) -> None:
    """`created_at >= now - window` (6.3)."""
    pushing = Pushing()
    pushing.push(10, "a")
    assert pushing.push(10 + age, "a")[0].status == status


def test_a_window_of_zero_has_no_duplicates() -> None:
    """Neither in history nor within one request."""
    pushing = Pushing()
    assert [o.status for o in pushing.push(10, "a", "a", window=0)] == ["queued"] * 2
    assert pushing.push(11, "a", window=0)[0].offset == 2


def test_a_message_without_a_transaction_id_has_its_own() -> None:
    """Absent or empty: the text of the id that the broker mints."""
    pushing = Pushing()
    assert [(o.txn, o.message_id, o.status) for o in pushing.push(10, None, "", None)] == [
        (f"id{number}", f"id{number}", "queued") for number in range(3)
    ]


def test_a_pushed_again_id_means_the_first_leased_message_or_one_that_is_done() -> None:
    """An ack names a transaction id; of two messages with one id, the first one in the leased span is meant, and by the
    second ack of the call the next. Outside of the span it is one that is done."""
    pushing = Pushing()
    pushing.push(10, "a", "b", window=0)
    pushing.push(20, "a", window=0)
    state = pushing.state
    assert state.resolve(["a"], -1, None, {}) == [0]
    assert state.resolve(["a"], 0, None, {}) == [2]
    assert state.resolve(["a", "b", "a", "a"], -1, 2, {}) == [0, 1, 2, 2]
    assert state.resolve(["a"], -1, 1, {"a": (0,), "b": (1,)}) == [0]
    assert state.resolve(["a", "b"], 1, 1, {}) == [0, 1]
    assert state.resolve(["b"], 1, None, {}) == [1]
    assert state.resolve(["c"], -1, None, {}) == [None]
    for sealed in range(3):
        state.evict(sealed)
        assert state.resolve(["a", "b", "a"], -1, 2, {}) == [0, 1, 2]
        assert state.resolve(["a"], 1, 1, {}) == [0]
    state.prune(30)
    assert state.resolve(["a", "a"], -1, 2, {"a": [0, 2], "b": (1,)}) == [0, 2]


def test_messages_leave_memory_when_they_are_sealed() -> None:
    """Evicted: the index entry stays, so dedup and acks go on; pruned: forgotten."""
    pushing = Pushing()
    for now in (10, 20, 30):
        pushing.push(now, f"t{now}")
    state = pushing.state
    assert state.evict(1) == 2
    assert state.in_memory(0, 9, 1 << 20) is None
    assert [record.offset for record in state.in_memory(2, 9, 1 << 20) or ()] == [2]
    assert pushing.push(40, "t10")[0].status == "duplicate"
    state.prune(11)
    assert state.entry(0) is None
    assert state.base == 1
    assert pushing.push(50, "t10")[0].status == "queued"
    state.prune(1000)
    assert state.base == 2, "what is not sealed stays, however old"


def test_reading_stops_at_the_byte_limit_but_gives_one() -> None:
    pushing = Pushing()
    pushing.push(10, "a", "b", "c")
    assert len(pushing.state.in_memory(0, 3, 2) or ()) == 2
    assert len(pushing.state.in_memory(0, 3, 0) or ()) == 1
    assert pushing.state.in_memory(3, 1, 10) is None


def test_retention_moves_the_start() -> None:
    """What lies below is gone for readers; a cursor behind it counts as passed; offsets never restart."""
    pushing = Pushing()
    pushing.push(10, "a", "b", "c")
    state = pushing.state
    state.put_cursor(fresh(1, "g", -1))
    state.cut(2)
    assert (state.log_start, state.next_offset, state.base) == (2, 3, 2)
    assert state.entry(1) is None
    assert state.in_memory(0, 9, 1 << 20) is None
    assert state.floor(-1) == 1
    state.cut(3)
    assert pushing.push(20, "d")[0].offset == 3
    assert state.entry(3) is not None


def test_retention_does_not_shorten_the_dedup_window() -> None:
    """21: a repeat of a removed message answers with its id and offset, and an ack of it is resolved, until its time
    in the index is over; removed messages are forgotten before those that are only sealed, and packing keeps them."""
    pushing = Pushing()
    pushing.push(10, "a", "b")
    pushing.push(20, "c")
    state = pushing.state
    state.cut(3)
    assert state.tail == []
    assert state.idle
    assert state.remembers
    for again in (state, PartitionState.unpack(1, state.pack())):
        outcomes, records = again.push([PushItem("q", "p", b"1", txn="a")], 30, HOUR, lambda _: "x")
        assert (outcomes[0].status, outcomes[0].offset, outcomes[0].message_id) == ("duplicate", 0, "id0")
        assert records == ()
        assert again.resolve(["b"], 2, None, {}) == [1]
        again.prune(20)
        assert again.known("b") is None
        assert again.known("c") is not None
        again.prune(21)
        assert not again.remembers
        assert again.txns == {}
        assert list(again.index) == []


def test_a_transaction_id_that_was_removed_and_came_again() -> None:
    """Outside the dedup window the id is new; forgetting the old message does not forget the new one."""
    pushing = Pushing()
    pushing.push(10, "a")
    pushing.state.cut(1)
    outcomes, records = pushing.state.push([PushItem("q", "p", b"1", txn="a")], 40, 5, lambda _: "x")
    pushing.state.append(records)
    assert (outcomes[0].status, outcomes[0].offset) == ("queued", 1)
    pushing.state.prune(11)
    known = pushing.state.known("a")
    assert known is not None
    assert known.offset == 1


def test_removed_messages_are_restored_with_gaps() -> None:
    """Recovery: of what lies below the start, only some may still be told."""
    state = PartitionState(1, 1, "p", 5, 40)
    state.restore_run(SealedRun(1, 38, 41, 10, 69))
    for offset in (3, 17, 38, 40, 41):
        state.restore_recent(Recent(1, offset, offset + 10, f"t{offset}", f"id{offset}"))
    assert (state.base, state.next_offset) == (40, 42)
    assert [offset for offset, _ in state.index] == [3, 17, 38, 40, 41]
    for offset in (3, 17, 38, 40, 41):
        known = state.known(f"t{offset}")
        assert known is not None
        assert known.offset == offset


def test_retention_of_what_is_only_in_segments() -> None:
    """A start beyond everything in memory: the window begins there."""
    state = PartitionState(1, 1, "p", 5)
    state.restore_run(SealedRun(1, 0, 99, 10, 109))
    state.cut(40)
    assert (state.log_start, state.next_offset, state.base) == (40, 100, 100)
    state.append((Record(100, 200, "id", "t", b"1"),))
    assert state.entry(100) is not None


def test_a_partition_that_begins_later_is_restored_so() -> None:
    """Recovery: the start first, then runs that may begin below it, then the recent ones, then the tail."""
    state = PartitionState(1, 1, "p", 5, 40)
    state.restore_run(SealedRun(1, 0, 59, 10, 69))
    for offset in range(55, 60):
        state.restore_recent(Recent(1, offset, offset + 10, f"t{offset}", f"id{offset}"))
    state.append((Record(60, 100, "id60", "t60", b"1"),))
    assert (state.base, state.next_offset, state.last_ts) == (55, 61, 100)
    outcomes, _ = state.push([PushItem("q", "p", b"1", txn="t57")], 110, HOUR, lambda _: "x")
    assert (outcomes[0].status, outcomes[0].offset, outcomes[0].message_id) == ("duplicate", 57, "id57")


def test_packed_and_unpacked_is_the_same() -> None:
    """I6's kind for partitions: passivation changes nothing that anybody can see."""
    pushing = Pushing()
    pushing.push(10, "a", "b")
    pushing.push(20, "\U0001f600 c", "")
    state = pushing.state
    assert not state.idle
    state.put_cursor(fresh(1, "g\x01", 1))
    state.evict(3)
    state.prune(15)
    assert state.idle
    again = PartitionState.unpack(1, state.pack())
    for name in set(PartitionState.__slots__) - {"index"}:
        assert getattr(again, name) == getattr(state, name), name
    assert list(again.index) == list(state.index) == [(2, 20), (3, 20)]
    for txn in ("\U0001f600 c", "id3"):
        assert again.known(txn) == state.known(txn) is not None
    assert again.base == state.base == 2


def test_an_append_with_a_gap_is_refused() -> None:
    """I2: an offset is never left out or used twice."""
    state = PartitionState(1, 1, "p", 5)
    with pytest.raises(AssertionError):
        state.append((Record(1, 10, "id", "t", b"1"),))


def test_the_index_outlives_every_use_of_it() -> None:
    """Acks come late even when there is no dedup; a delay is longer than both."""
    assert window_of(QueueOptions(dedup_window_seconds=0)) == 900 * SECOND
    assert window_of(QueueOptions()) == HOUR
    assert window_of(QueueOptions(delayed_processing_seconds=7200)) == 2 * HOUR

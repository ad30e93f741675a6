"""The directory at recovery and over passivation: what the log says, whatever was in memory (I2, I14)."""

from __future__ import annotations

import pytest

from queen_actors.actors.directory import Directory
from queen_actors.actors.shelf import PAGE, Shelf
from queen_actors.domain.cursor import fresh
from queen_actors.domain.effects import (
    Appended,
    Counters,
    CursorDropped,
    CursorPut,
    DeadLetterPut,
    Entry,
    GroupPut,
    PartitionPut,
    QueueDropped,
    QueueOptions,
    QueuePut,
    Recent,
    Record,
    SealedRun,
)
from queen_actors.domain.partition import PartitionState, PushItem, window_of


def queue(qid: int, name: str = "q", **options: int) -> QueuePut:
    return QueuePut(qid, name, f"uid{qid}", "", "", QueueOptions(**options), qid)


def record(offset: int) -> Record:
    return Record(offset, offset + 10, f"id{offset}", f"t{offset}", b"1")


def leased(pid: int, group: str, lease: str) -> CursorPut:
    return CursorPut(pid, group, -1, lease, 99, 3, 0, 0, 1, "", False)


def test_a_queue_that_was_dropped_and_made_again_in_one_segment() -> None:
    """With and without the drop among the rows: what belonged to the first is nobody's, the second is itself."""
    for drop in ([QueueDropped(1, "q")], []):
        directory = Directory()
        directory.restore(
            [
                queue(1),
                PartitionPut(1, 1, "p", 5, 0),
                GroupPut(1, "g", "all", 0, False, 5),
                leased(1, "g", "L"),
                *drop,
                queue(2),
                PartitionPut(2, 2, "p", 6, 0),
                PartitionPut(1, 1, "p", 5, 2),
                leased(1, "h", "M"),
                CursorDropped(1, "g"),
                GroupPut(1, "late", "all", 0, False, 5),
                DeadLetterPut("d", 1, 1, "g", record(0), "e", 0, 9),
            ]
        )
        directory.sealed([SealedRun(1, 0, 3, 10, 13), SealedRun(2, 0, 0, 10, 10)])
        directory.recent([Recent(1, 3, 13, "t3", "id3"), Recent(2, 0, 10, "t0", "id0")])
        directory.entry(Entry(20, Counters(0, 2, 2), (Appended(2, (record(1),)),)))
        assert directory.queues["q"].put.qid == 2
        assert dict(directory.queues["q"].partitions.items()) == {"p": 2}
        assert directory.queues["q"].groups == {}
        assert directory.queues["q"].dead == {}
        assert directory.queue_names == {2: "q"}
        assert directory.partition(1) is None
        assert directory.leases == {}
        found = directory.find("q", "p")
        assert found is not None
        assert (found.next_offset, found.base) == (2, 0)


def test_rows_of_a_queue_that_is_gone_are_nobodys() -> None:
    """Recovery tells of partitions, cursors and messages whose queue was dropped later in the same segment."""
    directory = Directory()
    directory.restore([PartitionPut(7, 3, "p", 5, 0), leased(7, "g", "L"), QueueDropped(3, "q"), queue(4, "other")])
    directory.sealed([SealedRun(7, 0, 3, 10, 13)])
    directory.recent([Recent(7, 3, 13, "t3", "id3")])
    assert directory.partition(7) is None
    assert directory.leases == {}
    assert list(directory.queues) == ["other"]


def test_recovery_leaves_out_what_retention_removed() -> None:
    """Runs and recent messages may reach below the start of their partition; for dedup they are remembered."""
    directory = Directory()
    directory.restore([queue(1), PartitionPut(1, 1, "p", 5, 2)])
    directory.sealed([SealedRun(1, 0, 3, 10, 13)])
    directory.recent([Recent(1, offset, offset + 10, f"t{offset}", f"id{offset}") for offset in range(4)])
    found = directory.find("q", "p")
    assert found is not None
    assert (found.log_start, found.base, found.next_offset) == (2, 2, 4)
    assert found.entry(3) is not None
    outcomes, _ = found.push([PushItem("q", "p", b"1", txn="t1")], 20, 10**9, lambda _: "new")
    assert (outcomes[0].status, outcomes[0].offset) == ("duplicate", 1)


def test_the_windows_of_all_queues_are_asked_for() -> None:
    """The longest that any queue needs, and never less than late acks need."""
    directory = Directory()
    directory.opened_at = 10**13
    directory.restore([queue(1, dedup_window_seconds=0), queue(2, "r", dedup_window_seconds=7200)])
    assert directory.recent_since() == 10**13 - 7200 * 10**6


def test_leases_are_found_by_their_id() -> None:
    """One lease over several partitions and groups; moved, ended and dropped cursors leave nothing behind."""
    directory = Directory()
    directory.restore([queue(1), *(PartitionPut(pid, 1, f"p{pid}", 5, 0) for pid in (1, 2, 3))])
    directory.restore([leased(1, "g", "L"), leased(2, "g", "L"), leased(2, "h", "M"), leased(3, "h", "M")])
    assert directory.leases == {"L": {(1, "g"), (2, "g")}, "M": {(2, "h"), (3, "h")}}
    directory.restore([fresh(1, "g", 3), leased(2, "g", "N"), CursorDropped(2, "h")])
    assert directory.leases == {"N": {(2, "g")}, "M": {(3, "h")}}
    directory.restore([QueueDropped(1, "q")])
    assert directory.leases == {}


def test_passivation_changes_nothing() -> None:
    """Packed away and peeked at, asked for a group, brought back: one state; a busy partition stays."""
    directory = Directory()
    directory.restore([queue(1), PartitionPut(1, 1, "p", 5, 0), PartitionPut(2, 1, "busy", 5, 0), fresh(1, "gé", 2)])
    directory.sealed([SealedRun(1, 0, 3, 10, 13)])
    directory.entry(Entry(20, Counters(0, 2, 1), (Appended(2, (record(0),)),)))
    assert (list(directory.active), list(directory.packed)) == ([2], [1]), "what was only restored stays packed"
    assert directory.partition(1) is not None
    directory.woken.clear()
    assert directory.passivate([1, 2, 99]) == 1
    assert (list(directory.active), list(directory.packed)) == ([2], [1])
    peeked = directory.peek(1)
    assert peeked is not None
    assert peeked.next_offset == 4
    assert directory.consumes(1, "gé")
    assert not directory.consumes(1, "g")
    assert not directory.consumes(99, "g")
    assert list(directory.packed) == [1]
    found = directory.partition(1)
    assert found is not None
    assert found.cursors == peeked.cursors
    assert directory.woken == [1]
    assert list(directory.packed) == []


def test_names_are_found_wherever_their_partitions_are() -> None:
    """Packed or in use, of one queue or another with the same names; unknown ones are not."""
    directory = Directory()
    directory.restore([queue(1), queue(2, "r")])
    directory.restore([PartitionPut(2 * n + 1 + q, 1 + q, f"é\udc80{n}", n, 0) for n in range(500) for q in (0, 1)])
    for n in range(0, 500, 7):
        assert directory.partition(2 * n + 1) is not None
    for q, name in enumerate("qr"):
        partitions = directory.queues[name].partitions
        assert [partitions.get(f"é\udc80{n}") for n in range(500)] == [2 * n + 1 + q for n in range(500)]
        assert list(partitions) == [f"é\udc80{n}" for n in range(500)]
        assert list(partitions.behind(901)) == list(partitions.values())[-50 + (1 - q) :]
        assert (len(partitions), partitions.get("é500"), "é\udc803" in partitions) == (500, None, True)
    assert directory.passivate(range(1002)) == 72
    found = directory.find("q", "é\udc8049")
    assert found is not None
    assert found.pid == 99
    assert directory.find("q", "nobody") is None


@pytest.mark.parametrize("asked", [True, False])
def test_restored_packed_is_restored_in_memory(asked: bool) -> None:
    """I14 for the packed: runs, recent messages, cursors and a later start come to the same, packed or not, and whether
    or not a run that lies in the window as a whole is left to its messages; more recent messages than are packed bring
    the partition into memory."""
    effects = [PartitionPut(1, 1, "p", 5, 0), leased(1, "g", "L"), fresh(1, "h", 1), leased(1, "g", "M")]
    runs = [SealedRun(1, 0, 3, 10, 13), SealedRun(1, 4, 299, 14, 309)]
    recent = [Recent(1, offset, offset + 10, f"t{offset}", f"id{offset}") for offset in range(300)]
    packed, live = Directory(), Directory()
    for directory in (packed, live):
        directory.restore([queue(1)])
        directory.restore(effects)
        if directory is live:
            assert directory.partition(1) is not None
        directory.restore([leased(1, "i", "M")])
        assert directory.leases == {"M": {(1, "g"), (1, "i")}}
        if asked:
            assert directory.recent_since() < runs[0].first_ts
        directory.sealed(runs)
        directory.recent(recent[:40])
    assert (list(packed.active), list(live.active)) == ([], [1])
    for directory in (packed, live):
        directory.recent(recent[40:])
    mine, other = packed.partition(1), live.partition(1)
    assert mine is not None
    assert other is not None
    for name in set(PartitionState.__slots__) - {"index"}:
        assert getattr(mine, name) == getattr(other, name), name
    assert list(mine.index) == list(other.index) == [(message.offset, message.ts) for message in recent]
    assert mine.known("t17") == other.known("t17") == recent[17]
    assert live.passivate([1]) == 0, "an index of several pages is not packed"


@pytest.mark.parametrize("since", [10, 12, 14, 15])
def test_a_run_is_known_wherever_the_window_begins(since: int) -> None:
    """Before a partition's runs, between them, within one and behind them: its end and its last instant are those of
    the last run; so too when retention has taken everything, and nothing is recent."""
    runs = [SealedRun(1, 0, 3, 10, 13), SealedRun(1, 4, 4, 14, 14)]
    directory = Directory()
    options = queue(1, dedup_window_seconds=0)
    directory.restore([options, PartitionPut(1, 1, "p", 5, 0), PartitionPut(2, 1, "emptied", 5, 4)])
    directory.opened_at = since + window_of(options.options)
    assert directory.recent_since() == since
    directory.sealed([*runs, SealedRun(2, 0, 3, 10, 13)])
    directory.recent([Recent(1, n, 10 + n, f"t{n}", f"id{n}") for n in range(5) if 10 + n >= since])
    kept, emptied = directory.partition(1), directory.partition(2)
    assert kept is not None
    assert emptied is not None
    assert (kept.next_offset, kept.last_ts, kept.base) == (5, 14, min(since - 10, 5))
    assert (emptied.next_offset, emptied.last_ts, emptied.base) == (4, 13, 4)


def test_a_shelf_holds_what_was_put_there() -> None:
    """By number, in order, page after page; empty pages are gone."""
    shelf = Shelf()
    for number in (5, 1, 2 * PAGE + 3, 2 * PAGE):
        shelf.put(number, b"%d" % number)
    shelf.put(1, b"one")
    assert list(shelf) == [1, 5, 2 * PAGE, 2 * PAGE + 3]
    assert (len(shelf), shelf.get(1), 6 in shelf, 1 in shelf) == (4, b"one", False, True)
    assert [shelf.after(place) for place in (-1, 0, 1, 2)] == [0, 2, 2, 0]
    assert shelf.page(2) == [(2 * PAGE, b"%d" % (2 * PAGE)), (2 * PAGE + 3, b"%d" % (2 * PAGE + 3))]
    assert [shelf.take(number) for number in (1, 1, 5, 99)] == [b"one", None, b"5", None]
    assert shelf.after(2) == 2
    assert shelf.page(0) == []
    assert [shelf.take(2 * PAGE + at) is None for at in (0, 3)] == [False, False]
    assert (list(shelf), len(shelf), shelf.after(0)) == ([], 0, -1)

"""The index of recent messages, and the lookup in it, against plain dictionaries."""

from __future__ import annotations

import random
import uuid

import pytest

from queen_actors.domain.effects import Recent
from queen_actors.domain.lookup import AVERAGE, Lookup
from queen_actors.domain.recents import Recents, oldest

SPELLINGS = (
    lambda rnd: str(uuid.UUID(int=rnd.getrandbits(128))),
    lambda rnd: str(uuid.UUID(int=rnd.getrandbits(128))).upper(),
    lambda rnd: f"order-{rnd.randrange(400)}",
    lambda rnd: rnd.choice("abc\U0001f600") * rnd.randrange(1, 60),
    lambda rnd: "\ud800" + str(rnd.randrange(9)),
    lambda rnd: "12345678-1234-1234-1234-1234567890 g",
    lambda rnd: "1234567 -1234-1234-1234-1234567890ab",
    lambda rnd: "1234567--1234-1234-1234-1234567890ab",
    lambda rnd: f"{rnd.randrange(10**8):08}-1234-1234-1234-123456789012",
    lambda rnd: "x" * rnd.choice((1, 16, 36, 5000)),
)


class Model:
    """A list of all rows."""

    def __init__(self) -> None:
        self.rows: list[Recent] = []

    def known(self, txn: str) -> Recent | None:
        return next((row for row in reversed(self.rows) if row.txn == txn), None)


def same(index: Recents, model: Model, rnd: random.Random) -> None:
    assert list(index) == [(row.offset, row.ts) for row in model.rows]
    assert bool(index) == bool(model.rows)
    assert index.last == (model.rows[-1].offset if model.rows else -1)
    assert index.first() == (model.rows[0].offset if model.rows else None)
    for row in rnd.sample(model.rows, min(10, len(model.rows))):
        assert index.find(row.txn, 7) == model.known(row.txn)
        assert index.at(row.offset, 7) == row
        assert index.since(row.ts) == next(r.offset for r in model.rows if r.ts >= row.ts)
        assert index.since(row.ts + 1) == next((r.offset for r in model.rows if r.ts > row.ts), None)


def test_pruning_up_to_the_end_of_a_page_keeps_the_next_one() -> None:
    """What is forgotten ends where a page ends: every row behind it is still found, by offset too."""
    index = Recents()
    for offset in range(200):
        index.append(Recent(7, offset, offset, f"t{offset}", f"id{offset}"))
    kept = 200
    while not index.small:
        index.prune(200 - kept)
        kept -= 1
        assert (index.last, index.first()) == (199, 200 - kept - 1)
        assert index.at(199, 7) == Recent(7, 199, 199, "t199", "id199")
    index.prune(200)
    assert (index.last, index.first(), bool(index)) == (-1, None, False)


@pytest.mark.parametrize("seed", range(12))
def test_the_index_is_what_a_list_would_be(seed: int) -> None:
    """Rows of every spelling, over many pages: found by their latest transaction id, by offset and by instant, while
    they are pruned, and when what is small is packed and unpacked in between."""
    rnd = random.Random(seed)
    index, model = Recents(), Model()
    offset = ts = 0
    gone: list[Recent] = []
    for _ in range(rnd.choice((3, 60, 900))):
        for _ in range(rnd.randrange(4)):
            offset += rnd.choice((1, 1, 1, 5))
            ts += rnd.randrange(3)
            mid = str(uuid.UUID(int=rnd.getrandbits(128))) if rnd.random() < 0.8 else f"id{offset}"
            txn = mid if rnd.random() < 0.2 else rnd.choice(SPELLINGS)(rnd)
            row = Recent(7, offset, ts, txn, mid)
            index.append(row)
            model.rows.append(row)
        if rnd.random() < 0.2:
            since = max(0, ts - rnd.choice((0, 3, 200)))
            index.prune(since)
            gone += [row for row in model.rows if row.ts < since]
            model.rows = [row for row in model.rows if row.ts >= since]
        if index.small:
            rows = index.rows
            assert not rows or oldest(rows) == model.rows[0].ts
            index = Recents(rows)
        same(index, model, rnd)
    for row in gone[-50:]:
        assert index.find(row.txn, 7) == model.known(row.txn)
        assert index.at(row.offset, 7) is None
    assert index.find("nobody", 7) is None
    assert index.at(offset + 1, 7) is None


def test_a_busy_index_stays_as_small_as_its_window() -> None:
    """What is pruned leaves nothing behind, neither in the pages nor in the lookup."""
    index = Recents()
    for offset in range(20_000):
        index.append(Recent(1, offset, offset, f"order-{offset}", f"id-{offset}"))
        if offset % 100 == 0:
            index.prune(offset - 500)
    assert 500 <= len(list(index)) <= 600
    assert index._lookup is not None
    assert len(index._lookup) < 4 * 600
    assert len(index._pages) < 25
    index.prune(19_990)
    assert index.small
    assert index._lookup is None


def test_a_lookup_finds_all_and_stays_level() -> None:
    """Every number is among the candidates of its text, in order, however much it has grown; buckets stay short."""
    lookup = Lookup()
    for number in range(20_000):
        lookup.add(f"name-{number}", number)
        lookup.add("twice" if number in (5, 15_000) else f"other-{number}", number + 1_000_000)
    assert len(lookup) == 40_000
    for number in range(20_000):
        assert number in list(lookup.find(f"name-{number}"))
    assert [number for number in lookup.find("twice") if number in (1_000_005, 1_015_000)] == [1_000_005, 1_015_000]
    strangers = sum(len(list(lookup.find(f"stranger-{number}"))) for number in range(2_000))
    assert strangers < 100
    assert max(map(len, lookup._buckets)) < 12 * 6 * AVERAGE


def test_a_lookup_forgets_what_is_outdated() -> None:
    """Entries below the oldest that is still meant go as others come."""
    lookup = Lookup()
    for number in range(50_000):
        lookup.add(f"name-{number}", number, max(0, number - 1_000))
    assert len(lookup) < 5_000
    assert all(number in list(lookup.find(f"name-{number}")) for number in range(49_000, 50_000))

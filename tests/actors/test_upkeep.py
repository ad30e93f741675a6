"""What housekeeping gives back."""

from __future__ import annotations

import sys
from collections import OrderedDict

from queen_actors.actors.upkeep import SLIM_BYTES, slim


def test_an_emptied_table_gives_its_room_back() -> None:
    """A table that held 100,000 entries and holds ten is copied; the entries and their order stay."""
    for table in ({}, OrderedDict[int, float]()):
        table.update((number, float(number)) for number in range(100_000))
        for number in range(99_990):
            del table[number]
        slimmed = slim(table)
        assert sys.getsizeof(slimmed) < SLIM_BYTES < sys.getsizeof(table)
        assert type(slimmed) is type(table)
        assert list(slimmed.items()) == list(table.items())


def test_a_full_table_is_left_alone() -> None:
    """No copy while most of the room is used."""
    table = dict.fromkeys(range(100_000), 0.0)
    assert slim(table) is table

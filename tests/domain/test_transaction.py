"""What a transaction is before anybody is asked: fences, emptiness, refusals (`wire-kv-...` 5.4, 5.6)."""

from __future__ import annotations

import pytest

from queen_actors.domain.cursor import Ack
from queen_actors.domain.kv import Check, Precondition
from queen_actors.domain.partition import PushItem
from queen_actors.domain.timers import Cancel
from queen_actors.domain.transaction import (
    PositionCommit,
    Transaction,
    empty,
    fenced,
    lost_precondition,
    rejected_ack,
)


@pytest.mark.parametrize(
    ("required", "leases", "expected"),
    [
        ((), [None], [None]),
        ((), ["A", None], ["A", "A"]),
        ((), ["A", "B", None], ["A", "B", None]),
        (("A",), [None, None], ["A", "A"]),
        (("A",), ["A", None], ["A", "A"]),
        (("A", "B"), [None], [None]),
        (("A",), ["B", None], ["B", None]),
        (("A", "A"), [None], ["A"]),
    ],
)
def test_which_lease_fences_an_ack(
    required: tuple[str, ...], leases: list[str | None], expected: list[str | None]
) -> None:
    """Its own; else the one that the whole bundle names; else none."""
    push = PushItem("q", "p", b"1")
    acks = tuple(Ack(f"t{place}", 1, "g", lease_id=lease) for place, lease in enumerate(leases))
    after = fenced(Transaction(steps=(push, *acks), required_leases=required))
    assert [step.lease_id for step in after.steps if isinstance(step, Ack)] == expected
    assert after.steps[0] is push


def test_a_bundle_with_nothing_at_all_is_empty() -> None:
    """5.1: leases alone are nothing; any rider alone is something."""
    assert empty(Transaction(required_leases=("A",)))
    for bundle in (
        Transaction(steps=(Ack("t", 1, "g"),)),
        Transaction(kv=(Check("ns", "k", 1),)),
        Transaction(timers=(Cancel("q", "k"),)),
        Transaction(positions=(PositionCommit("q", "g", "p", 1),)),
    ):
        assert not empty(bundle)


def test_refusals_say_what_clients_look_for() -> None:
    """5.4: the index of a lost condition is flat; the prose of a rejected ack contains `rolled back`."""
    lost = lost_precondition(3, Precondition(2, "version", 7, b"{}"))
    assert (lost.failed_index, lost.kv_reason, lost.version, lost.value) == (5, "version", 7, b"{}")
    assert "rolled back" in rejected_ack(None).error

"""A queue: configure, labels, where a group starts (`wire-messaging.md` 5, 7.1, 7.6)."""

from __future__ import annotations

import pytest

from queen_actors.domain.cursor import fresh
from queen_actors.domain.effects import QueueOptions, QueuePut
from queen_actors.domain.queue import (
    CONFIGURE_DEFAULTS,
    Configure,
    QueueState,
    configured,
    first_wanted,
    implicit,
    pending,
    registration,
)
from queen_actors.errors import BadRequest

KNOWN = QueuePut(3, "q", "uid", "ns", "task", QueueOptions(lease_seconds=7, retry_limit=9), 50)


@pytest.mark.parametrize(
    ("name", "labels"),
    [("orders", ("", "")), ("a.b", ("", "")), ("a.b.c", ("a", "b")), ("a.b.c.d", ("a", "b")), ("", ("", ""))],
)
def test_a_dotted_name_gives_labels(name: str, labels: tuple[str, str]) -> None:
    """Only when the queue is made implicitly, or a configure names none."""
    put = implicit(1, "uid", name, 5)
    assert (put.namespace, put.task) == labels
    assert put.options.lease_seconds == 60
    put = configured(Configure(name, {}), None, 1, "uid", 5)
    assert (put.namespace, put.task) == labels


def test_configure_merges_or_replaces() -> None:
    """What is not named stays in merge, and goes back to the defaults of a configure in replace."""
    merged = configured(Configure("q", {"retry_limit": 1}), KNOWN, 9, "other", 99)
    assert (merged.options.retry_limit, merged.options.lease_seconds) == (1, 7)
    assert (merged.qid, merged.uid, merged.created_at, merged.namespace, merged.task) == (3, "uid", 50, "ns", "task")
    replaced = configured(Configure("q", {"retry_limit": 1}, task="t", replace=True), KNOWN, 9, "other", 99)
    assert replaced.options.retry_limit == 1
    assert replaced.options.lease_seconds == CONFIGURE_DEFAULTS.lease_seconds == 300
    assert (replaced.namespace, replaced.task, replaced.qid) == ("", "t", 3)


@pytest.mark.parametrize(
    ("namespace", "task", "found"),
    [("ns", None, True), (None, "task", True), ("ns", "task", True), ("ns", "x", False), ("x", "task", False)],
)
def test_discovery_asks_for_every_label(namespace: str | None, task: str | None, found: bool) -> None:
    assert QueueState(KNOWN).matches(namespace, task) is found


@pytest.mark.parametrize(
    ("mode", "start", "default", "expected"),
    [
        (None, None, "all", ("all", None)),
        (None, None, "new", ("new", 101)),
        ("new", None, "all", ("new", 101)),
        ("NEW-only", None, "all", ("new", 101)),
        ("new_only", None, "all", ("new", 101)),
        ("newonly", None, "all", ("new", 101)),
        ("all", None, "new", ("all", None)),
        ("whatever", None, "new", ("all", None)),
        (None, "now", "all", ("new", 101)),
        ("all", "NOW", "all", ("new", 101)),
        ("new", "1970-01-01T00:00:01Z", "all", ("timestamp", 1_000_000)),
        (None, "1970-01-01T01:00:00+01:00", "all", ("timestamp", 0)),
    ],
)
def test_where_a_group_starts(mode: str | None, start: str | None, default: str, expected: tuple[str, int]) -> None:
    """7.6, row by row: `new` is what is created after the registration, `timestamp` at or after the instant."""
    put = registration(1, "g", mode, start, 100, default)
    assert (put.mode, first_wanted(put)) == expected


def test_queue_mode_is_always_all() -> None:
    put = registration(1, "__QUEUE_MODE__", "new", "now", 100, "new", True)
    assert (put.mode, put.conflation) == ("all", False)


@pytest.mark.parametrize("start", ["yesterday", "2026-13-01", "99", "\x00"])
def test_a_start_that_is_no_instant_is_refused(start: str) -> None:
    with pytest.raises(BadRequest):
        registration(1, "g", None, start, 100, "all")


def test_pending_counts_what_is_kept_and_not_done() -> None:
    """13: retention counts as done."""
    assert pending(10, 4, None) == 6
    assert pending(10, 4, fresh(1, "g", -1)) == 6
    assert pending(10, 4, fresh(1, "g", 7)) == 2
    assert pending(4, 4, fresh(1, "g", 3)) == 0

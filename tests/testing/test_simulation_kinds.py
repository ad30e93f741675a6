"""The auditor of the kinds of clients on the wire: each of its promises, broken in a history that was good."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

import pytest

from queen_actors.testing.audit import Audit, Violation
from queen_actors.testing.audit_feeds import AGE
from queen_actors.testing.determinism import run
from queen_actors.testing.history import Event, History
from queen_actors.testing.kinds import KINDS, TURN, TURNS, is_later, queues
from queen_actors.testing.life import Trouble
from queen_actors.testing.sim import CLIENTS, GROUPS, READER, Plan, Simulation

Change = Callable[[list[Event]], None]
OTHERS = (("producer0", "direct"), ("keeper0", "direct"), ("refresher0", "direct"))
WIRED = (("streamer0", "http"), ("ephemeral0", "http"))
JUDGED = {
    *("tail.read", "aged.gap", "aged.read", "watch.told", "lock.told", "lives.end", "mortal.end"),
    *("dead.replay", "dead.end", "last.pop", "forgot.pop", "seek.pop", "stream.cycle", "short.pop"),
}
"""Every kind has something to be judged by."""


@pytest.fixture(scope="module")
def lived() -> History:
    """A good history to spoil, with clients of every kind: the first in which everything happened that is judged."""
    people = tuple(
        (f"{kind}{number}", one.ways[-1]) for kind, one in KINDS.items() for number in range(max(one.least, 2))
    )
    trouble = Trouble(9, 0.05, 0.0, 5, 1, ("full", "passivate", "pause"), ("crash",))
    for seed in range(14, 44):
        simulation = Simulation(seed, plan=Plan(18, (*people, *OTHERS, *WIRED), trouble))
        run(seed, simulation.main)
        if rich(simulation.history):
            return simulation.history
    raise LookupError("no such history")


def rich(history: History) -> bool:
    try:
        for change in SPOILERS:
            change(copied(history))
    except StopIteration:
        return False
    return {event.op for event in history.events if event.ok and event.found is not None} >= JUDGED


def copied(history: History) -> list[Event]:
    events = [copy(event) for event in history.events]
    for event in events:
        event.asked = dict(event.asked)
    return events


def spoiled(history: History, change: Change) -> None:
    changed = History()
    changed.events = copied(history)
    change(changed.events)
    Audit(changed, GROUPS, READER).judge()


def find(events: list[Event], op: str, fits: Callable[[Event], Any] = lambda event: True) -> Event:
    return next(event for event in events if event.op == op and event.ok and event.found and fits(event))


def lose_a_tailed_message(events: list[Event]) -> None:
    event = find(events, "tail.read")
    event.found = event.found[1:]


def tail_what_is_not_in_the_log(events: list[Event]) -> None:
    event = find(events, "tail.read")
    first = event.found[0]
    event.found = [(first[0], "never", *first[2:]), *event.found[1:]]


def say_nothing_of_a_gap(events: list[Event]) -> None:
    """At the end of all, when everything is gone."""
    gap = [event for event in events if event.op == "aged.gap" and event.client.startswith("ager.any")][-1]
    events[:] = [event for event in events if event is not gap]


def remove_what_is_young(events: list[Event]) -> None:
    """Just pushed, at the first try, and in no time: else it may be old by then."""
    tries: dict[str, Event] = {}
    for event in events:
        if event.op == "aged.push":
            tries.setdefault(event.client, event)
    young = {
        event.client for event in tries.values() if event.client.startswith("ager.any") and event.until < event.at + AGE
    }
    push = find(events, "aged.push", lambda e: e.client in young and e is tries[e.client])
    asked = {"partition": "one"}
    begun = Event(push.end, push.end, push.client, "aged.begun", {"one": 0}, "ok", None, push.skew, push.skew_after)
    gap = Event(push.end, push.end, push.client, "aged.gap", asked, "ok", (0, 0), push.skew, push.skew_after)
    events[events.index(push) + 1 : events.index(push) + 1] = [begun, gap]


def use_an_offset_again(events: list[Event]) -> None:
    event = find(events, "aged.push", lambda e: e.found[0][2] > 0)
    txn, status, _, message_id = event.found[0]
    event.found = [(txn, status, 0, message_id), *event.found[1:]]


def tell_another_value(events: list[Event]) -> None:
    event = find(events, "watch.told", lambda e: any(change[0] == "put" for change in e.found["changes"]))
    changes = [(op, key, b'"never"', version) for op, key, _, version in event.found["changes"]]
    event.found = {**event.found, "changes": changes}


def miss_a_change(events: list[Event]) -> None:
    """A key is there of which the watcher was never told."""
    event = next(event for event in events if event.op == "watch.end")
    event.found = [[*event.found[0], (f"{event.asked['prefix']}~", b"1", 10**9)]]


def overtake(events: list[Event]) -> None:
    """Who was placed in the line before another one asked has the higher token."""
    first = find(events, "acquire", lambda e: e.asked.get("wait") and e.found[0][0])
    asked = {**first.asked, "lock": "other", "limit": 2, "placed": 10**12 + 1, "wait": 10, "owner": "a"}
    later = {**asked, "placed": 10**12 + 3, "owner": "b"}
    events.append(Event(10**12, 10**12 + 9, "x", "acquire", asked, "ok", [(True, 10**6 + 1, False, 0)]))
    events.append(Event(10**12 + 2, 10**12 + 8, "y", "acquire", later, "ok", [(True, 10**6, False, 1)]))


def keep_a_permit_beyond_its_connection(events: list[Event]) -> None:
    event = find(events, "acquire", lambda e: e.asked.get("calm"))
    event.found = [(False, 0, False, 0)]


def lose_a_permit_that_lives(events: list[Event]) -> None:
    event = find(events, "lives.end")
    event.found = (["expired"], event.found[1])


def hear_nothing_of_a_loss(events: list[Event]) -> None:
    event = find(events, "mortal.end")
    event.found = []


def lose_a_letter(events: list[Event]) -> None:
    """One that was put aside last of all is not found."""
    end = next(event for event in events if event.op == "dead.end")
    asked = {"acks": [("planted", "dlq")]}
    buried = Event(end.start - 1, end.start - 1, end.client, "dead.ack", asked, "ok", [(True, False, True, True)])
    events.insert(events.index(end), buried)


def move_a_letter_twice(events: list[Event]) -> None:
    event = find(events, "dead.again", lambda e: e.found[1])
    events.insert(events.index(event), event)


def conflate_to_an_older_one(events: list[Event]) -> None:
    event = find(events, "last.pop", lambda e: e.found[2] and e.found[2][0][0] > 0)
    flag, lease, ((offset, txn, pid),) = event.found
    event.found = (flag, lease, [(offset - 1, txn, pid)])


def say_nothing_of_conflation(events: list[Event]) -> None:
    event = find(events, "last.pop")
    event.found = (False, *event.found[1:])


def go_on_after_a_deletion(events: list[Event]) -> None:
    """The group that was deleted reads from where it was, at its end."""
    event = find(events, "forgot.end", lambda e: e.found[1])
    lease, ((*place, records), *claims) = event.found
    event.found = (lease, [(*place, records[1:]), *claims])


def settle_after_a_seek(events: list[Event]) -> None:
    claim = find(events, "seek.pop", lambda e: e.found[1])
    queue, _, pid, _, records = claim.found[1][0]
    events[:] = [e for e in events if not (e.op == "seek.ack" and e.asked["lease"] == claim.found[0])]
    at = claim.end + 1
    asked = {"lease": claim.found[0], "pid": pid, "group": "s", "acks": [(records[0][1], "completed")]}
    events.append(Event(at, at + 1, "x", "seek.to", {"queue": queue, "to": 0}, "ok", 1, claim.skew, claim.skew))
    ack = Event(at + 2, at + 3, "x", "seek.ack", asked, "ok", [(True, False, False, True)], claim.skew, claim.skew)
    events.append(ack)


SPOILERS: dict[Change, str] = {
    lose_a_tailed_message: "I2 a tail goes on",
    tail_what_is_not_in_the_log: "I13 a tail",
    say_nothing_of_a_gap: "I1",
    remove_what_is_young: "I1 nothing goes before its time",
    use_an_offset_again: "I2 offsets go on",
    tell_another_value: "I7 I13",
    miss_a_change: "I7 the picture",
    overtake: "I6 first come",
    keep_a_permit_beyond_its_connection: "I6",
    lose_a_permit_that_lives: "I5",
    hear_nothing_of_a_loss: "I6 whoever loses a permit",
    lose_a_letter: "I1",
    move_a_letter_twice: "I11",
    conflate_to_an_older_one: "I1 the newest",
    say_nothing_of_conflation: "I1 each answer",
    go_on_after_a_deletion: "I1 a group that was deleted",
    settle_after_a_seek: "I3 a seek",
}


@pytest.mark.parametrize("spoil", SPOILERS, ids=lambda spoil: spoil.__name__)
def test_the_auditor_sees_a_broken_promise(lived: History, spoil: Change) -> None:
    """A checker that cannot fail proves nothing."""
    with pytest.raises(Violation, match=f"^{SPOILERS[spoil]}"):
        spoiled(lived, spoil)


def test_a_good_history_stays_good(lived: History) -> None:
    """The positive control of the above."""
    spoiled(lived, lambda events: None)


def test_queues_into_which_something_is_pushed_again_remember_it() -> None:
    """For longer than any clock jumps: else a second push is another message, which breaks no promise."""
    keep = {"dedup_window_seconds": 30 * 86_400}
    found = queues((("conflater0", "http"), ("ager.any0", "socket")), keep)
    assert {queue.queue for queue in found} == {"last.conflater0", "aged.ager.any0"}
    assert all(keep.items() <= queue.options.items() for queue in found)


def test_which_seeds_have_these_kinds() -> None:
    """Two of ten; the others draw what they always drew."""
    for seed in range(40):
        kinds = {name.rstrip("0123456789") for name, _ in Simulation(seed).plan.people}
        assert bool(kinds & set(KINDS)) is is_later(seed) is (seed % TURN in TURNS)
        assert kinds <= {*KINDS, *CLIENTS}

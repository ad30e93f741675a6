"""The auditor of those who stand in line for a permit, and of permits that live with a connection (`websocket.md` 6).
That permits have one holder and rising tokens (I6) is judged where all locks are."""

from __future__ import annotations

from .audit_kit import FAR, must
from .history import Event, History

SECOND = 1_000_000


def judge_lines(history: History) -> None:
    """First come, first served (I6: the tokens tell the order of the grants); a permit that lives with a connection is
    free when that ends, and is not lost before (I5); nobody hears early that a permit has run out (I9)."""
    acquires = [event for event in history.of("acquire") if "wait" in event.asked]
    for event in acquires:
        if event.asked.get("calm") == "free":
            must(event.ok and event.found[0][0], "I6 what nobody holds is granted", event)
    _order(history, [event for event in acquires if event.ok and event.asked["wait"]])
    _told(history, acquires)
    for event in history.of("lives.end"):
        told, found = event.found
        must(not told and found is not None and found[0][0], "I5 a permit lives as long as its connection", event)
    for event in history.of("mortal.end"):
        must(event.found == ["expired"], "I6 whoever loses a permit hears of it", event)


def _order(history: History, acquires: list[Event]) -> None:
    ends = [event.start for event in history.of("stop", "death")]
    for first in acquires:
        placed = first.asked.get("placed", FAR)
        over = first.end - first.start >= first.asked["wait"] * SECOND
        if not first.found[0][0] or placed >= first.end or over:
            continue  # it was refused, or did not stand in the line, or not to the end
        dead = any(placed <= end <= first.end for end in ends)
        for other in () if dead else acquires:
            same = other.asked["lock"] == first.asked["lock"] and other.client != first.client
            if same and placed < other.start < first.end and other.found[0][0]:
                fair = first.found[0][1] < other.found[0][1]
                must(fair, "I6 first come, first served", first, other)


def _told(history: History, acquires: list[Event]) -> None:
    grants = {
        (event.asked["lock"], event.found[0][1]): event
        for event in acquires
        if event.ok and event.found[0][0] and not event.found[0][2]
    }
    for event in history.of("lock.told"):
        grant = grants.get((event.asked["lock"], event.asked["token"]))
        if grant is not None and event.found == "expired":
            must(event.until >= grant.at + grant.asked["ttl"], "I9 no permit runs out early", event, grant)

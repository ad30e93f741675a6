"""The auditor of keys, locks, timers and transactions: I5 to I11, and of what their readers saw I13."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from .audit_kit import FAR, Ledger, must
from .history import COUNTER_MAX, Event, History

WRITES = ("incr", "once", "cas", "short", "refresh")


def judge_keys(history: History) -> None:
    """I7, I8 and I9, and of every reader I13."""
    writes: dict[str, list[tuple[Event, int]]] = defaultdict(list)
    for event in history.of(*WRITES):
        if event.ok and event.found[0][0]:
            writes[event.asked["key"]].append((event, event.found[0][2]))
    _versions(writes)
    _values(history)
    for event in history.of("once"):
        winners = [row for row in writes[event.asked["key"]] if row[0].op == "once"]
        must(len(winners) <= 1, "I9 putIfAbsent has one winner", winners)
    replaced = [
        (event.asked["key"], event.asked["expect"])
        for event in history.of("cas", "cut", "refresh")
        if event.ok and event.found[0][0] and event.asked["expect"]
    ]
    must(len(replaced) == len(set(replaced)), "I7 a version is replaced once", replaced)
    for counter in {event.asked["key"] for event in history.of("incr")}:
        _counter([event for event in history.of("incr") if event.asked["key"] == counter])
    _expiries(history)
    _chains(history)
    for event in history.of("both"):
        if event.ok:
            seen = list(_pair(event.found))
            must(len(seen) in (0, 2) and len(set(seen)) <= 1, "I7 a call on two keys is atomic to readers", event)


def _versions(writes: dict[str, list[tuple[Event, int]]]) -> None:
    versions = set[int]()
    for key, rows in writes.items():
        for event, version in rows:
            must(version not in versions, "I8 a version is given once", key, version)
            versions.add(version)
            earlier = [v for other, v in rows if other.end < event.start]
            must(version > max(earlier, default=0), "I8 versions rise", key, version, earlier)


def _values(history: History) -> None:
    """A version has one value, whoever shows it: else somebody was shown what a crash took back."""
    known: dict[tuple[str, int], Any] = {}
    for event in history.of("cas", "cut", "get", "refresh", "look"):
        shown = event.found[0] if event.ok else None
        if shown is None:
            continue
        value, version = shown if event.op in ("get", "look") else shown[1:3]
        if version and value is not None and not (event.op in ("cas", "refresh") and not shown[0] and value == b"null"):
            first = known.setdefault((event.asked["key"], version), value)
            must(first == value, "I7 I13 a version has one value", event, first)


def _pair(found: Any) -> Iterator[Any]:
    """The values of the two keys that are there, however they were read."""
    for part in found:
        if part is not None:
            yield from (part[:1] if isinstance(part, tuple) else (row[1] for row in part))


def _counter(calls: list[Event]) -> None:
    sure = [int(event.found[0][1]) for event in calls if event.ok and event.found[0][0]]
    maybe = sum(event.outcome == "unknown" for event in calls)
    must(len(sure) == len(set(sure)), "I7 no increment is lost", sorted(sure))
    must(max(sure, default=0) <= COUNTER_MAX, "I9 a bounded counter keeps its bound", max(sure, default=0))
    must(max(sure, default=0) <= len(sure) + maybe, "I9 a counter counts what was asked", len(sure), maybe)


def _expiries(history: History) -> None:
    for event in history.of("expiry"):
        if event.ok:
            start, end, ttl = event.asked["put"]
            if event.at > end + ttl:
                must(event.found[0] is None, "I9 an expired key is not returned", event)
            if event.until < start + ttl:
                must(event.found[0] is not None, "I9 a live key is", event)


def _chains(history: History) -> None:
    """A key that was always written again before it ran out, each time over the version before, was there all the time:
    from the answer of the first write until the last one's lifetime is over."""
    chains: dict[str, list[tuple[Event, Event]]] = defaultdict(list)
    versions: dict[str, int] = {}
    for event in history.of("refresh"):
        if not event.ok or not event.found[0][0]:
            continue
        key, links = event.asked["key"], chains[event.asked["key"]]
        if links and event.asked["expect"] == versions[key]:
            links[-1] = (links[-1][0], event)
        else:
            links.append((event, event))
        versions[key] = event.found[0][2]
    for event in history.of("look"):
        for first, last in chains[event.asked["key"]] if event.ok and event.found[0] is None else ():
            missed = event.start > first.end and event.until < last.at + last.asked["ttl"]
            # A clock that was set back at a restart gives back what had run out, if nobody had written that down
            missed = missed and last.skew >= event.skew_after
            must(not missed, "I9 a live key is found", event, first, last)


def judge_locks(history: History) -> None:
    """I5 and I6: tokens rise; one holder of a permit at a time, and no more permits than there may be; guarded writes
    go forward."""
    grants: dict[tuple[str, int], list[tuple[Event, int]]] = defaultdict(list)
    ended: dict[tuple[str, int, int], int] = {}
    tokens: dict[str, list[int]] = defaultdict(list)
    for event in history.of("acquire", "renew"):
        if event.ok and event.found[0][0] and not event.found[0][2]:
            _, token, _, slot = event.found[0]
            must(slot < event.asked["limit"], "I6 no more permits than there may be", event)
            grants[(event.asked["lock"], slot)].append((event, token))
            tokens[event.asked["lock"]].append(token)
    for event in history.of("unlock", "renew"):
        key = (event.asked["lock"], event.asked["slot"], event.asked["token"])
        ended[key] = min(ended.get(key, FAR), event.start)
    for lock, given in tokens.items():
        must(len(given) == len(set(given)), "I6 no two grants share a token", lock, given)
    for (lock, slot), rows in grants.items():
        for event, token in rows:
            earlier = [t for other, t in rows if other.end < event.start]
            must(token > max(earlier, default=0), "I6 tokens rise", lock, token, earlier)
            let_go = min(ended.get((lock, slot, token), FAR), _disconnected(history, event))
            for other, taken in rows:
                live = other.end < let_go and other.until < event.at + event.asked["ttl"]
                if other.op == "acquire" and taken > token and live:
                    must(False, "I6 one holder at a time", (event, token), (other, taken))
        _guarded(history, lock, slot)


def _disconnected(history: History, grant: Event) -> int:
    """When the connection may have ended that the permit lives with."""
    if "session" not in grant.asked:
        return FAR
    ends = history.of("link.cut", "hangup", "stop", "death")
    return min((e.start for e in ends if e.end >= grant.start and e.client in ("broker", grant.client)), default=FAR)


def _guarded(history: History, lock: str, slot: int) -> None:
    written = sorted(
        (event.found[1][1][2], event.asked["token"])
        for event in history.of("transaction")
        if event.ok and event.found[0] and event.asked.get("lock") == lock and event.asked.get("slot") == slot
    )
    order = [token for _, token in written]
    must(order == sorted(order), "I5 guarded writes go forward", lock, written)


def judge_timers(history: History, ledger: Ledger) -> None:
    """I10: never early, at most one message each, never lost; what was cancelled does not fire."""
    last: dict[tuple[str, str], Event] = {}
    unsure = {(e.asked["queue"], e.asked["key"]) for e in history.of("cancel") if e.outcome == "unknown"}
    cancelled = dict[tuple[str, str], str]()
    for event in history.of("cancel"):
        if event.ok and event.found[0][0] == "cancelled":
            cancelled[(event.asked["queue"], event.asked["key"])] = event.found[0][1]
    for event in history.of("schedule"):
        key = (event.asked["queue"], event.asked["key"])
        if event.outcome != "refused":
            last[key] = event
        fired = ledger.by_txn.get(event.asked["txn"], [])
        must(len(fired) <= 1, "I10 a timer fires once", event, fired)
        for place in fired if event.ok else ():
            _, message_id, due = event.found[0]
            record = ledger.log[place[0]][place[1]]
            must(record[2] == message_id, "I10 under the promised id", event, record)
            must(record[4] >= due, "I10 a timer is never early", event, record)
            must(ledger.seen_at[place] >= due, "I10 a timer is never early", event, record)
    for key, txn in cancelled.items():
        must(not ledger.by_txn.get(txn), "I10 what was cancelled does not fire", key, txn)
    for key, event in last.items():
        if event.ok and key not in unsure and cancelled.get(key) != event.asked["txn"]:
            must(ledger.by_txn.get(event.asked["txn"]), "I10 no timer is lost", event)


def judge_transactions(history: History, ledger: Ledger) -> None:
    """I11: all of it or nothing; I5: nothing when the guard lost. A bundle may be sent again."""
    keys = {event.asked["key"]: event.found[0] is not None for event in history.of("final")}
    bundles: dict[str, list[Event]] = defaultdict(list)
    for event in history.of("transaction"):
        bundles[event.asked["txns"][0]].append(event)
    for events in bundles.values():
        asked = events[0].asked
        parts = {bool(ledger.by_txn.get(txn)) for txn in asked["txns"]} | {keys[key] for key in asked["keys"]}
        if "timer" in asked:
            parts.add(bool(ledger.by_txn.get(asked["timer"])))
        must(len(parts) == 1, "I11 all or nothing", events, parts)
        _answered(events, parts == {True})
    happened = {key for events in bundles.values() if _present(ledger, events) for key in events[0].asked["keys"]}
    for event in history.of("half"):
        seen = event.ok and event.found[0] is not None
        must(not seen or event.asked["key"] in happened, "I11 I13 nobody sees half of it", event)


def _answered(events: Iterable[Event], happened: bool) -> None:
    """Was it what the answers said?"""
    unsure = False
    for event in events:
        if event.ok and event.found[0]:
            must(happened, "I11 what is answered has happened", event)
            return
        repeated = event.ok and event.found[1] == "duplicate"
        must(unsure or not repeated, "I12 what was rolled back is no duplicate", event)
        unsure = unsure or event.outcome == "unknown"
    must(unsure or not happened, "I11 I15 what is refused is not there", list(events))


def _present(ledger: Ledger, events: list[Event]) -> bool:
    return all(ledger.by_txn.get(txn) for txn in events[0].asked["txns"])

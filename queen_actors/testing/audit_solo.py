"""The auditor of clients that are alone on their queue: what they may be answered is known to the letter (I1 to I4,
I12), and whoever moves messages in transactions moves each of them once (I11)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from .audit_kit import must
from .history import Event, History

SECOND = 1_000_000


class _Lease:
    """`first` and `last` offset; it lasts at least until `sure`, at most until `latest` (the broker's clock)."""

    def __init__(self, event: Event, name: str, last: int) -> None:
        self.name = name
        self.last = last
        self.sure = event.at + event.asked["lease"]
        self.latest = event.until + event.asked["lease"]
        self.over = False
        self.perhaps_over = False
        self.settled = False

    def surely_live(self, event: Event) -> bool:
        """From the call to its answer."""
        return not (self.over or self.perhaps_over) and event.until < self.sure

    def surely_dead(self, event: Event) -> bool:
        return self.over or event.at > self.latest


class _Solo:
    """One partition with its only client; `done` are the offsets up to which it may have finished."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._log: list[str] = []
        self._read: list[str] = []
        self._stamps: dict[int, int] = {}
        self._done = {-1}
        self._lease: _Lease | None = None
        self._ghost = 0
        """Until when a pop whose answer was lost may hold a lease."""
        self._stopped = -1
        """When the broker was last told to stop: it may answer then that there is nothing."""
        self._quit = 0
        """So does one that was given up, if the broker died before it had taken that back, or the disk was full."""
        self._full = -1
        """When the disk last filled up."""

    def see(self, event: Event) -> None:
        judge: dict[str, Callable[[Event], None]] = {
            "solo.push": self._push,
            "solo.pop": self._pop,
            "solo.ack": self._ack,
            "solo.extend": self._extend,
            "solo.release": self._release,
            "solo.seek": self._seek,
            "solo.end": self._end,
            "death": self._death,
            "stop": self._stop,
            "full": self._fill,
        }
        judge[event.op](event)

    def _death(self, event: Event) -> None:
        self._ghost = max(self._ghost, self._quit)

    def _fill(self, event: Event) -> None:
        self._ghost = max(self._ghost, self._quit)
        self._full = event.start

    def _stop(self, event: Event) -> None:
        self._stopped = event.start

    def _push(self, event: Event) -> None:
        for (_, _, txn), found in zip(event.asked["items"], event.found, strict=True) if event.ok else ():
            if txn not in self._log:
                self._log.append(txn)
            must(found[2] == self._log.index(txn), "I2 I12 a lonely producer's offsets are 0, 1, 2, ...", event)

    def _pop(self, event: Event) -> None:
        ends = event.until + event.asked["lease"]
        if not event.ok:
            self._ghost = max(self._ghost, ends if event.outcome == "unknown" else 0)
        elif event.found is None:
            self._quit = max(self._quit, ends)
            taken_back = event.asked["direct"] and not event.start <= self._full <= event.end
            self._ghost = max(self._ghost, 0 if taken_back else ends)
        elif event.found[1]:
            self._claimed(event)
        elif not event.asked["wait"] and event.start > self._stopped:
            free = (self._lease is None or self._lease.surely_dead(event)) and event.at > self._ghost
            behind = all(offset + 1 < len(self._log) for offset in self._done)
            must(not (free and behind), "I4 what nobody holds is delivered", self._group, event, self._done)

    def _claimed(self, event: Event) -> None:
        name: str = event.found[0]
        records: list[Any] = event.found[1][0][4]
        first, last = records[0][0], records[-1][0]
        must(first - 1 in self._done, "I2 I3 a claim starts behind what is done", event, self._done)
        for record in records:
            known = self._log[record[0] : record[0] + 1] or [record[1]]
            must(known == [record[1]], "I2 an offset holds one message", event, record)
            must(self._stamps.setdefault(record[0], record[4]) == record[4], "I2 it has one instant", event, record)
        held = self._lease is not None and self._lease.surely_live(event)
        must(not held, "I3 what is leased is not delivered", event)
        self._lease, self._done, self._ghost = _Lease(event, name, last), {first - 1}, 0

    def _ack(self, event: Event) -> None:
        lease = self._lease
        assert lease is not None, "it acks what it was given"
        offsets = [self._log.index(txn) for txn, _ in event.asked["acks"]]
        word = event.asked["acks"][0][1]
        within = [offset for offset in offsets if offset <= lease.last]
        if event.outcome == "unknown":
            lease.perhaps_over = True
            if word == "completed" and within:
                self._done |= {max(offset, *within) for offset in self._done}
        if not event.ok:
            return
        good = [offset for offset, entry in zip(offsets, event.found, strict=True) if entry[0]]
        must(all(o <= lease.last for o in good), "I3 an ack settles what its lease covers", event, lease.last)
        if word == "completed" and lease.surely_live(event):
            must(good == within, "I3 an ack under a live lease holds", event)
        stale = lease.surely_dead(event) and not (lease.settled or lease.perhaps_over)
        must(not (stale and good), "I3 a dead lease settles nothing", event)
        if good and word == "completed":
            self._done = {max(offset, *good) for offset in self._done}
            lease.settled = lease.settled or max(good) >= lease.last
        if good:
            lease.over = lease.over or lease.settled or word != "completed"

    def _extend(self, event: Event) -> None:
        lease, ends = self._lease, event.asked["seconds"] * SECOND
        assert lease is not None, "it extends what it was given"
        if event.ok:
            must(event.found or not lease.surely_live(event), "I3 a live lease is extended", event)
            must(not event.found or not lease.surely_dead(event), "I3 a dead lease is not extended", event)
            if event.found:
                lease.sure = max(lease.sure, event.at + ends)
        if event.found or event.outcome == "unknown":
            lease.latest = max(lease.latest, event.until + ends)

    def _release(self, event: Event) -> None:
        if self._lease is not None and event.outcome != "refused":
            self._lease.perhaps_over = True
            self._lease.over = self._lease.over or event.ok

    def _seek(self, event: Event) -> None:
        if event.outcome == "refused" or (event.ok and event.found is None):
            return
        targets = set(self._targets(event.asked["to"]))
        self._done = targets if event.ok else self._done | targets
        if self._lease is not None:
            self._lease.perhaps_over = True
            self._lease.over = self._lease.over or event.ok
        self._ghost = 0 if event.ok else self._ghost

    def _targets(self, to: int | None) -> Iterable[int]:
        """Where a seek leads: up to the message before the first one that is young enough."""
        if to is None:
            return [len(self._log) - 1]
        first = min((offset for offset, at in self._stamps.items() if at >= to), default=len(self._log))
        lowest = first
        while lowest and lowest - 1 not in self._stamps:
            lowest -= 1  # nobody has seen when it was pushed
        return range(lowest - 1, first)

    def _end(self, event: Event) -> None:
        must(event.ok, "I15 a calm broker answers", event)
        self._read += [record[1] for *_, records in event.found[1] for record in records]
        if not event.found[1]:
            whole = self._read == self._log
            must(whole, "I1 after a seek to the beginning everything is there", self._group, self._read, self._log)


def judge_soloists(history: History) -> None:
    """Each by itself, in the order of its calls."""
    solos: dict[str, _Solo] = {}
    for event in history.events:
        if event.client == "broker":
            for solo in solos.values():
                solo.see(event)
        elif event.op.startswith("solo.") and event.op != "solo.end.seek":
            name = event.asked["group"] if event.op == "solo.end" else event.client
            solos.setdefault(name, _Solo(name)).see(event)


def judge_movers(history: History) -> None:
    """I11: of each message that was moved there is one copy, made when its ack was; none is lost. A transaction is
    judged by the ids that it alone gives: what it was refused may be moved by a later one, in other company."""
    made: dict[str, Counter[str]] = defaultdict(Counter)
    ids: dict[str, set[str]] = defaultdict(set)
    kept: dict[str, set[str]] = defaultdict(set)
    for event in history.of("moved.end", "moved.source"):
        must(event.ok, "I15 a calm broker answers", event)
        for *_, records in event.found[1]:
            if event.op == "moved.end":
                made[event.asked["queue"]].update(record[3].decode().strip('"') for record in records)
                ids[event.asked["queue"]].update(record[1] for record in records)
            else:
                kept[event.asked["queue"]].update(record[1] for record in records)
    for event in history.of("moved"):
        copies = [made[event.asked["sink"]][txn] for txn in event.asked["of"]]
        must(max(copies) <= 1, "I11 what is moved is moved once", event, copies)
        there = {txn in ids[event.asked["sink"]] for txn in event.asked["made"]}
        must(len(there) == 1, "I11 all or nothing", event, there)
        if event.ok and event.found[0]:
            must(there == {True} and min(copies) == 1, "I11 what is answered has happened", event, copies)
        elif event.outcome != "unknown":
            must(there == {False}, "I11 what is refused has not happened", event)
    for event in history.of("moved.push"):
        for queue, _, txn in event.asked["items"] if event.ok else ():
            must(txn in kept[queue], "I1 what is queued is there", event)

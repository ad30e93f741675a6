"""The auditor of readers on the WebSocket: tails, retention and watches (`websocket.md` 4 and 5, messaging 21)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from .audit_kit import Ledger, must
from .history import Event, History

SECOND = 1_000_000
AGE = 2 * SECOND
"""The limit of the queues whose messages grow old."""


def judge_tails(history: History, ledger: Ledger) -> None:
    """I1, I2 and I13 of a tail: over all its connections it shows each message of the log once, in order, and none that
    is not in the log, for that was not durable."""
    following: dict[tuple[str, int], int] = defaultdict(int)
    for event in history.of("tail.read"):
        pid = event.asked["pid"]
        for record in event.found:
            expected = following[(event.client, pid)]
            must(record[0] == expected, "I2 a tail goes on where it was", event, expected)
            following[(event.client, pid)] += 1
            known = ledger.log[pid].get(record[0])
            must(known == record, "I13 a tail shows what is in the log", event, known)
    must(not any(history.of("tail.gap")), "I1 nothing is missing where nothing is removed", *history.of("tail.gap"))
    places = {claim[2]: claim[0] for event in history.of("pop") if event.client == "end" for claim in event.found[1]}
    for event in history.of("tail.end"):
        for pid, queue in places.items():
            if queue == event.asked["queue"]:
                read = following[(event.client, pid)]
                must(read == len(ledger.log[pid]), "I1 a tail sees everything", event.client, queue, pid, read)


# -- retention ---------------------------------------------------------------------------------------------------------


class _Aged:
    """A queue of one partition whose messages grow old, and its only client.

    I1: nothing goes before its time, or (`done`) before it was consumed; what goes is told as a gap, and stays away.
    I2: offsets go on after all of their messages are gone; one of them holds one message.
    I3: what was acknowledged does not come again. In the end what is too old is gone.
    """

    def __init__(self, name: str, kind: str) -> None:
        self._name = name
        self._kind = kind
        self._log: list[str] = []
        self._born: dict[int, int] = {}
        """The earliest that each can have been pushed, by the broker's clock."""
        self._tried: dict[str, int] = {}
        self._done = {-1}
        self._start = 0
        """What is below is certainly gone."""
        self._at = 0
        self._skipped: list[int] = []
        """What the reader has been told that is missing, or has been given, since it began."""

    def see(self, event: Event) -> None:
        judges: dict[str, Callable[[Event], None]] = {
            "aged.push": self._push,
            "aged.pop": self._pop,
            "aged.ack": self._ack,
            "aged.begun": self._begun,
            "aged.gap": self._gap,
            "aged.read": self._read,
            "aged.end": self._end,
        }
        judges.get(event.op, _nothing)(event)

    def _push(self, event: Event) -> None:
        for _, _, txn in event.asked["items"]:
            self._tried[txn] = min(event.at, self._tried.get(txn, event.at))  # a clock may start lower
        for (_, _, txn), found in zip(event.asked["items"], event.found, strict=True) if event.ok else ():
            if txn not in self._log:
                self._born[len(self._log)] = self._tried[txn]
                self._log.append(txn)
            must(found[2] == self._log.index(txn), "I2 offsets go on behind what is gone", event)

    def _missing(self, offsets: Iterable[int], event: Event) -> None:
        """These are gone: may they be?"""
        for offset in offsets:
            born = self._born.get(offset, event.until)
            must(event.until >= born + AGE, "I1 nothing goes before its time", event, offset)
            if self._kind == "done":
                must(offset <= max(self._done), "I1 nothing goes that was not consumed", event, offset, self._done)
            self._start = max(self._start, offset + 1)

    def _there(self, records: list[Any], event: Event) -> None:
        for record in records:
            must(record[0] >= self._start, "I1 what is gone stays away", event, self._start)
            known = self._log[record[0] : record[0] + 1]
            must(known in ([], [record[1]]), "I2 an offset holds one message", event, record, known)

    def _pop(self, event: Event) -> None:
        if not event.ok or not event.found[1]:
            return
        records = event.found[1][0][4]
        first = records[0][0]
        must(first > min(self._done), "I3 what was acked is not delivered again", event, self._done)
        if first - 1 not in self._done:
            behind = max(done for done in self._done if done < first)
            must(self._kind != "done", "I2 nothing is left out", event, self._done)
            self._missing(range(behind + 1, first), event)
        self._done = {first - 1}
        self._there(records, event)

    def _ack(self, event: Event) -> None:
        last = max((int(txn.rpartition(".")[2]) for txn, _ in event.asked["acks"]), default=-1)
        if event.outcome == "unknown":
            self._done |= {last}
        elif event.ok and all(entry[0] for entry in event.found):
            self._done = {max(last, *self._done)}

    def _begun(self, event: Event) -> None:
        self._at = event.asked["one"]

    def _gap(self, event: Event) -> None:
        first, last = event.found
        must(first == self._at and last >= first, "I1 a gap is what is missing", event, self._at)
        self._missing(range(first, last + 1), event)
        self._at = last + 1

    def _read(self, event: Event) -> None:
        for record in event.found:
            must(record[0] == self._at, "I1 what is missing is told", event, self._at)
            self._at += 1
        self._there(event.found, event)

    def _end(self, event: Event) -> None:
        """It was read from 0, ten seconds and more after the last push."""
        must(self._at == len(self._log), "I1 a reader sees or is told of everything", event, self._at, len(self._log))
        behind = min(self._done) < len(self._log) - 1
        if self._kind == "any" or (self._kind == "wait" and behind and max(self._done) < len(self._log) - 1):
            must(self._start == len(self._log), "I1 what is too old is removed", event, self._start)
        elif self._kind == "done":
            must(self._start > min(self._done), "I1 what is done and old is removed", event, self._start, self._done)


def _nothing(event: Event) -> None:
    return


def judge_agers(history: History) -> None:
    """Each by itself, in the order of its calls."""
    agers: dict[str, _Aged] = {}
    for event in history.events:
        if event.op.startswith("aged."):
            kind = event.client.rstrip("0123456789").partition(".")[2]
            agers.setdefault(event.client, _Aged(event.client, kind)).see(event)


# -- watches -----------------------------------------------------------------------------------------------------------


def judge_watches(history: History) -> None:
    """I7, I8, I9 and I13 of a watch: changes come in the order of their versions, each is one that was made, with its
    value; whoever goes on where another connection ended misses none; no expiry is told early; and in the end the
    picture that was told is what is there."""
    watches: dict[str, _Watched] = {}
    writes = list(_writes(history))
    values: dict[tuple[str, int], Any] = {(key, version): value for key, version, value in writes}
    for event in history.events:
        if event.op.startswith("watch."):
            watches.setdefault(event.client, _Watched(values)).see(event)
    for watched in watches.values():
        watched.missed(writes)
    _early(history)


def _writes(history: History) -> Iterator[tuple[str, int, Any]]:
    """What was certainly written: (key, version, value)."""
    for event in history.of("incr", "once", "cas", "short", "refresh", "scribble"):
        if event.ok and event.found[0][0]:
            applied, value, version, _ = event.found[0]
            assert applied
            yield event.asked["key"], version, event.asked.get("value", value)
    for event in history.of("pair"):
        for place, found in enumerate(event.found if event.ok else ()):
            yield f"pair{place}", found[2], found[1]


class _Watched:
    """One watcher: its picture, and of which versions it was to hear."""

    def __init__(self, values: dict[tuple[str, int], Any]) -> None:
        self._values = values
        self._picture: dict[str, tuple[Any, int]] = {}
        self._prefix = ""
        self._seen = 0
        self._last = 0
        self._told: set[tuple[str, int]] = set()
        self._spans: list[tuple[int, int]] = []
        self._merged: list[tuple[int, int, dict[str, int]]] = []
        """Of which versions only the latest state of each key was told."""

    def see(self, event: Event) -> None:
        if event.op == "watch.begun":
            self._prefix = event.asked["prefix"]
            version, rows = event.found
            if event.asked["from"] is None:
                self._again(version, rows, event)
            else:
                must(event.asked["from"] == self._seen, "I7 a watch goes on where it was", event, self._seen)
                must(rows is None, "I7 a watch that goes on has no rows", event)
            self._last = self._seen
        elif event.op == "watch.told":
            self._hear(event)
        elif event.op == "watch.end":
            self._end(event)

    def _again(self, version: int, rows: list[Any], event: Event) -> None:
        self._picture = {}
        for key, value, row_version in rows:
            self._shown(key, value, row_version, event)
            self._picture[key] = (value, row_version)
        self._seen = version

    def _shown(self, key: str, value: Any, version: int, event: Event) -> None:
        must(key.startswith(self._prefix), "I7 a watch tells of what is watched", event, key)
        known = self._values.setdefault((key, version), value)
        must(known == value, "I7 I13 a version has one value", event, key, version, known)

    def _hear(self, event: Event) -> None:
        found = event.found
        if found["rows"] is not None:
            self._again(found["version"], found["rows"], event)
            self._last = self._seen
        if found["coalesced"] and found["changes"]:
            latest = {key: version for _, key, _, version in found["changes"]}
            self._merged.append((self._seen, max(latest.values()), latest))
        for op, key, value, version in found["changes"]:
            must(version >= self._last, "I8 changes come in the order of their versions", event, self._last)
            self._last = version
            if op == "put":
                self._shown(key, value, version, event)
                self._told.add((key, version))
                self._picture[key] = (value, version)
            else:
                self._picture.pop(key, None)
            if not found["coalesced"]:
                self._spans.append((self._seen, version))
            self._seen = max(self._seen, version)

    def missed(self, writes: list[tuple[str, int, Any]]) -> None:
        for key, version, _ in writes:
            if key.startswith(self._prefix) and any(low < version <= high for low, high in self._spans):
                must((key, version) in self._told, "I1 I7 each change is told", key, version)
            for low, high, latest in self._merged if key.startswith(self._prefix) else ():
                if low < version <= high:
                    must(latest.get(key, 0) >= version, "I7 it is the latest state", key, version, latest)

    def _end(self, event: Event) -> None:
        must(event.ok, "I15 a calm broker answers", event)
        rows = event.found[0]
        whole = len(rows) < 100
        there = {key: (value, version) for key, value, version in rows}
        picture = {key: row for key, row in self._picture.items() if whole or key.encode() <= rows[-1][0].encode()}
        must(picture == there, "I7 the picture that was told is what is there", event, picture)


def _early(history: History) -> None:
    """I9: no key has run out before its time."""
    lives = {event.asked["key"]: event.at + event.asked["ttl"] for event in history.of("short")}
    for event in history.of("watch.told"):
        for op, key, _, _ in event.found["changes"]:
            must(op != "expire" or event.until >= lives.get(key, 0), "I9 no key runs out early", event, key)

"""The auditor of dead letters, conflation, deletion under consumers, and seeks under load (messaging 7.7, 10 to 12)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from .audit_kit import FAR, Ledger, must
from .history import Event, History


def _of_each(history: History, prefix: str) -> dict[str, list[Event]]:
    """The events whose op begins so, by client, in their order."""
    found: dict[str, list[Event]] = defaultdict(list)
    for event in history.events:
        if event.op.startswith(prefix):
            found[event.client].append(event)
    return found


# -- dead letters ------------------------------------------------------------------------------------------------------


def judge_buriers(history: History) -> None:
    """I1 and I11: what was put aside is a dead letter until it is moved or purged, and is moved in one step: it is
    either a letter or a message of the other queue, never both, never neither, and never twice."""
    for events in _of_each(history, "dead.").values():
        _Buried(events).judge()


class _Buried:
    """`sure`: when each was certainly put aside; `maybe`: it may have been."""

    def __init__(self, events: list[Event]) -> None:
        self._events = events
        self._sure: dict[str, int] = {}
        self._maybe: set[str] = set()
        self._moves: dict[str, list[Event]] = defaultdict(list)
        self._purges: list[Event] = []
        self._again: Counter[str] = Counter()

    def judge(self) -> None:
        for event in self._events:
            if event.op == "dead.ack":
                self._acked(event)
            elif event.op == "dead.replay":
                self._moved(event)
            elif event.op == "dead.purge" and event.outcome != "refused":
                self._purges.append(event)
            elif event.op == "dead.again":
                must(event.ok, "I15 a calm broker answers", event)
                self._again.update(record[3].decode().strip('"') for *_, rs in event.found[1] for record in rs)
            elif event.op in ("dead.look", "dead.end") and event.ok:
                self._looked(event)
        end = self._events[-1]
        must(end.op == "dead.end" and end.ok, "I15 a calm broker answers", end)
        self._whole({letter[1] for letter in end.found})

    def _acked(self, event: Event) -> None:
        for place, (txn, word) in enumerate(event.asked["acks"]):
            if word != "dlq" or event.outcome == "refused":
                continue
            self._maybe.add(txn)
            if event.ok and event.found[place][0] and not event.found[place][1]:
                must(event.found[place][2], "I1 what is put aside is said to be", event)
                self._sure.setdefault(txn, event.end)

    def _moved(self, event: Event) -> None:
        before = self._moves[event.asked["txn"]]
        if event.outcome == "refused":
            return
        if event.ok and event.found != "moved":
            lost = any(move.outcome == "unknown" or move.found == "moved" for move in before)
            must(event.found == "gone" and (lost or self._purges), "I1 a dead letter stays until it is moved", event)
        elif event.ok:
            must(all(move.found != "moved" for move in before), "I11 it is moved once", event, before)
        before.append(event)

    def _looked(self, event: Event) -> None:
        shown = Counter(letter[1] for letter in event.found)
        for _, txn, payload in event.found:
            must(txn in self._maybe, "I1 a dead letter was put aside", event, txn)
            must(payload == f'"{txn}"'.encode(), "I1 payloads are as sent", event, txn)
            must(shown[txn] == 1, "I1 there is one dead letter of a message", event, txn)
            moved = any(move.found == "moved" and move.end <= event.start for move in self._moves[txn])
            must(not moved, "I11 what is moved is no letter any more", event, txn)
        for txn, at in self._sure.items():
            touched = self._moves[txn] or any(purge.end >= at for purge in self._purges)
            must(touched or shown[txn], "I1 a dead letter is found", event, txn)

    def _whole(self, letters: set[str]) -> None:
        for txn in {*self._maybe, *self._again, *letters}:
            places = self._again[txn] + (txn in letters)
            must(places <= 1, "I11 moved is moved, and once", txn, places)
            must(not self._again[txn] or self._moves[txn], "I1 nobody moved it", txn)
            if any(move.found == "moved" for move in self._moves[txn]):
                must(self._again[txn] == 1, "I11 what is answered has happened", txn)
            purged = any(purge.end >= self._sure.get(txn, FAR) for purge in self._purges)
            must(places or purged or txn not in self._sure, "I1 no dead letter is lost", txn)


# -- conflation --------------------------------------------------------------------------------------------------------


def judge_conflaters(history: History) -> None:
    """I1 and I3 of a group that conflates: each claim is the newest message alone, each answer says so, what was
    acknowledged is done with all before it, and the newest is delivered in the end."""
    for events in _of_each(history, "last.").values():
        log: list[str] = []
        done = {-1}
        for event in events:
            if event.op == "last.push":
                log += [txn for _, _, txn in event.asked["items"] if event.ok and txn not in log]
            elif event.op == "last.ack":
                offset = log.index(event.asked["acks"][0][0])
                if event.outcome == "unknown":
                    done.add(offset)
                elif event.ok and event.found[0][0]:
                    done = {offset}
            elif event.ok:
                _conflated(event, log, done)
                if event.found[2]:
                    done = {offset for offset in done if offset < event.found[2][0][0]}


def _conflated(event: Event, log: list[str], done: set[int]) -> None:
    conflates, _, messages = event.found
    must(conflates, "I1 each answer says that it conflates", event)
    must(len(messages) <= 1, "I1 a claim is the newest message alone", event)
    for offset, txn, _ in messages:
        must(offset == len(log) - 1 and txn == log[-1], "I1 the newest is delivered", event, log[-3:])
        must(offset > min(done), "I3 what was acked is not delivered again", event, done)
    if event.op == "last.end" and not messages:
        must(len(log) - 1 in done or not log, "I1 the newest is delivered", event, log[-3:], done)


# -- what is deleted ---------------------------------------------------------------------------------------------------

_State = tuple[tuple[str, ...], int, str, str]
"""What may be: the messages of the queue, the last one that is done, the lease (`?`: one that nobody was told), and the
lease that was settled last, whose ack may be repeated."""


class _Forgotten:
    """The only client of a queue. Each call leaves of the states that may be those that explain its answer."""

    def __init__(self) -> None:
        self._states: set[_State] = {((), -1, "", "")}
        self._read: list[str] = []

    def see(self, event: Event) -> None:
        steps: dict[str, Callable[[_State, Event], Iterable[_State]]] = {
            "forgot.push": _pushed,
            "forgot.pop": _popped,
            "forgot.ack": _settled,
            "forgot.group": lambda state, event: [(state[0], -1, "", "")],
            "forgot.queue": lambda state, event: [((), -1, "", "")],
        }
        if event.op in ("forgot.end", "forgot.all"):
            self._end(event)
            return
        if event.outcome == "refused":
            return
        after = {new for state in self._states for new in steps[event.op](state, event)}
        must(after, "I1 I2 I3 what is deleted is gone, and nothing else", event, self._states)
        self._states = after if event.ok else after | self._states

    def _end(self, event: Event) -> None:
        if event.op == "forgot.end":
            must(event.ok, "I15 a calm broker answers", event)
            self._read += [record[1] for *_, records in event.found[1] for record in records]
        else:
            logs = {state[0] for state in self._states}
            must(tuple(self._read) in logs, "I1 a group that was deleted begins again", event, self._read, logs)


def _pushed(state: _State, event: Event) -> Iterable[_State]:
    log, done, lease, settled = state
    ((_, _, txn),) = event.asked["items"]
    log = log if txn in log else (*log, txn)
    if not event.ok or event.found[0][2] == log.index(txn):
        yield log, done, lease, settled


def _popped(state: _State, event: Event) -> Iterable[_State]:
    log, done, lease, settled = state
    if event.ok and not event.found[1]:
        yield state
    elif not event.ok:
        yield log, done, lease or "?", settled
    elif not lease:
        records: list[Any] = event.found[1][0][4]
        first, last = records[0][0], records[-1][0]
        if first == done + 1 and list(log[first : last + 1]) == [record[1] for record in records]:
            yield log, done, event.found[0], settled


def _settled(state: _State, event: Event) -> Iterable[_State]:
    """An ack of all that the lease covers."""
    log, _, lease, settled = state
    mine = lease == event.asked["lease"]
    if mine and (not event.ok or all(entry[0] for entry in event.found)):
        yield log, log.index(event.asked["acks"][-1][0]), "", lease
    repeated = settled == event.asked["lease"]
    if not mine and (not event.ok or repeated or not any(entry[0] for entry in event.found)):
        yield state


def judge_forgetters(history: History) -> None:
    """I1 to I3 over the deletion of a group and of a queue, with a lease or without: an ack under a lease of before
    settles nothing, the group begins again at the first message, the queue at offset 0."""
    for events in _of_each(history, "forgot.").values():
        forgotten = _Forgotten()
        for event in events:
            forgotten.see(event)


# -- seeks -------------------------------------------------------------------------------------------------------------


def judge_seekers(history: History, ledger: Ledger) -> None:
    """I2 and I3 of a group that is moved under its consumers: a seek ends every lease, else there is one at a time; a
    claim is in order; after a seek to the beginning everything is delivered (I1)."""
    seeks = [event for event in history.of("seek.to", "seek.last") if event.outcome != "refused"]
    acks: dict[tuple[str, int], list[Event]] = defaultdict(list)
    for event in history.of("seek.ack"):
        acks[(event.asked["lease"], event.asked["pid"])].append(event)
    claims: dict[int, list[tuple[Event, str]]] = defaultdict(list)
    for event in history.of("seek.pop"):
        for queue, _, pid, _, records in event.found[1] if event.ok else ():
            offsets = [record[0] for record in records]
            must(offsets == list(range(offsets[0], offsets[-1] + 1)), "I2 a claim is in order", event)
            for record in records:
                must(ledger.log[pid].get(record[0]) == record, "I2 I13 an offset holds one message", event, record)
            claims[pid].append((event, queue))
    for pid, rows in claims.items():
        for place, (claim, queue) in enumerate(rows):
            moved = [seek for seek in seeks if seek.asked["queue"] == queue and seek.end >= claim.start]
            mine = acks[(claim.found[0], pid)]
            touched = min((event.start for event in [*moved, *mine]), default=FAR)
            for other, _ in rows[place + 1 :]:
                live = other.start >= claim.end and other.end < touched
                must(not live or other.until >= claim.at + claim.asked["lease"], "I3 one live lease", claim, other)
            over = min((seek.end for seek in moved if seek.ok and seek.start > claim.end), default=FAR)
            for event in mine[:1] if mine and mine[0].start > over and mine[0].ok else ():
                must(not any(entry[0] for entry in event.found), "I3 a seek ends every lease", claim, event)
    _everything(history, ledger)


def _everything(history: History, ledger: Ledger) -> None:
    if not any(history.of("seek.last")):
        return
    read: dict[int, list[int]] = defaultdict(list)
    for event in history.of("seek.last", "seek.end"):
        must(event.ok, "I15 a calm broker answers", event)
        for _, _, pid, _, records in event.found[1] if event.op == "seek.end" else ():
            read[pid] += [record[0] for record in records]
    for pid, log in ledger.log.items():
        must(read[pid] == sorted(log), "I1 after a seek to the beginning everything is there", pid, read[pid])

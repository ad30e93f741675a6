"""The auditor: judges a history by the promises alone. It shares no code with what it judges, and sees only what
clients saw; where an answer was lost it allows for both ends."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from .clients import COUNTER_MAX
from .history import Event, History


class Violation(AssertionError):
    """A promise was broken."""


def must(holds: object, promise: str, *facts: object) -> None:
    if not holds:
        raise Violation(f"{promise}: {' | '.join(map(repr, facts))}")


class Audit:
    """One history. `groups`: those that were to receive everything; `reader`: the group that read the whole log."""

    def __init__(self, history: History, groups: tuple[str, ...], reader: str) -> None:
        self.history = history
        self.groups = groups
        self.reader = reader
        self.log: dict[int, dict[int, tuple[Any, ...]]] = defaultdict(dict)
        self.by_txn: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self.delivered: dict[str, set[tuple[int, int]]] = defaultdict(set)

    def judge(self) -> None:
        """Raises Violation at the first promise that does not hold."""
        self._deliveries()
        self._pushes()
        self._leases()
        self._order()
        self._keys()
        self._locks()
        self._timers()
        self._transactions()

    # -- messages ------------------------------------------------------------------------------------------------------

    def _deliveries(self) -> None:
        """I2: one offset holds one message, for everybody; the reader saw 0, 1, 2, ... of each partition."""
        for event in self.history.of("pop"):
            if not event.ok or event.found is None:
                continue
            for _, _, pid, _, records in event.found[1]:
                for record in records:
                    known = self.log[pid].setdefault(record[0], record)
                    must(known == record, "I2 an offset holds one message", pid, known, record)
                    self.delivered[event.asked["group"]].add((pid, record[0]))
        for pid, records in self.log.items():
            read = sorted(offset for place, offset in self.delivered[self.reader] if place == pid)
            must(read == list(range(len(records))), "I2 offsets are 0, 1, 2, ...", pid, read)
            for offset, record in records.items():
                self.by_txn[record[1]].append((pid, offset))
                must(record[3] in (f'"{record[1]}"'.encode(), b'"timed"', b"1"), "I1 payloads are as sent", record)

    def _pushes(self) -> None:
        """I1 and I12: queued is delivered to every group, refused never; one offset for each transaction id."""
        may, promised = set[str](), dict[str, tuple[int, str]]()
        for event in self.history.of("push"):
            for place, (_, _, txn) in enumerate(event.asked["items"]):
                if event.outcome != "refused":
                    may.add(txn)
                if event.ok:
                    answered, status, offset, message_id = event.found[place]
                    must(answered == txn and status in ("queued", "duplicate"), "I1 a push is answered", event)
                    known = promised.setdefault(txn, (offset, message_id))
                    must(
                        known == (offset, message_id),
                        "I12 a repeat has the original's offset and id",
                        txn,
                        known,
                        event,
                    )
        for txn, (offset, message_id) in promised.items():
            found = self.by_txn.get(txn, [])
            must([place[1] for place in found] == [offset], "I1 I12 what is queued is there, once", txn, offset, found)
            pid = found[0][0]
            must(self.log[pid][offset][2] == message_id, "I1 it has the promised id", txn)
            for group in self.groups:
                must((pid, offset) in self.delivered[group], "I1 it reaches every group", txn, group)
        for event in self.history.of("transaction"):
            if event.outcome != "refused" and not (event.ok and not event.found[0]):
                may.update(event.asked["txns"])
                may.add(event.asked.get("timer", ""))
        may.update(event.asked["txn"] for event in self.history.of("schedule") if event.outcome != "refused")
        for txn, places in self.by_txn.items():
            must(len(places) == 1, "I12 a transaction id is there once", txn, places)
            must(txn in may, "I1 nothing is delivered that was not pushed, or was refused", txn, places)

    def _claims(self) -> dict[tuple[int, str], list[tuple[Event, int, int]]]:
        """Claims under a lease of each (partition, group): (pop, first, last), in the order of their answers."""
        found: dict[tuple[int, str], list[tuple[Event, int, int]]] = defaultdict(list)
        for event in self.history.of("pop"):
            if event.ok and event.found is not None and event.found[0]:
                for _, _, pid, _, records in event.found[1]:
                    found[(pid, event.asked["group"])].append((event, records[0][0], records[-1][0]))
        return found

    def _leases(self) -> None:
        """I3: nobody gets what is certainly leased; dead leases settle nothing; what is done stays done."""
        ends: dict[str, list[Event]] = defaultdict(list)
        for event in self.history.of("ack", "release"):
            ends[event.asked["lease"]].append(event)
        for (pid, group), claims in self._claims().items():
            for place, (claim, first, last) in enumerate(claims):
                lease = claim.found[0]
                touched = min((event.start for event in ends[lease]), default=1 << 62)
                surely_until = min(claim.start + claim.asked["lease"], touched)
                for other, lowest, _ in claims[place + 1 :]:
                    if other.start >= claim.end and other.end < surely_until:
                        must(False, "I3 one live lease", (pid, group), (claim, first, last), (other, lowest))
                self._dead_acks(claim, pid, ends[lease])
            self._done(pid, group, claims)

    def _dead_acks(self, claim: Event, pid: int, ends: list[Event]) -> None:
        """An ack that was made when the lease had certainly run out, and that repeats none, fails."""
        tried = False
        for event in sorted(ends, key=lambda event: event.start):
            if event.op == "ack" and event.asked["pid"] == pid and event.ok and not tried:
                late = event.start > claim.end + claim.asked["lease"]
                must(
                    not late or not any(entry[0] for entry in event.found),
                    "I3 a dead lease settles nothing",
                    claim,
                    event,
                )
            tried = tried or event.op == "release" or event.asked.get("pid") == pid

    def _done(self, pid: int, group: str, claims: list[tuple[Event, int, int]]) -> None:
        offsets = {record[1]: offset for offset, record in self.log[pid].items()}
        done: list[tuple[int, int]] = []
        for event in self.history.of("ack"):
            mine = event.ok and event.asked["pid"] == pid and event.asked["group"] == group
            if mine and all(word == "completed" for _, word in event.asked["acks"]):
                pairs = zip(event.asked["acks"], event.found, strict=True)
                done.extend((event.end, offsets[txn]) for (txn, _), entry in pairs if entry[0])
        for claim, first, last in claims:
            behind = max((offset for at, offset in done if at < claim.start), default=-1)
            must(first > behind, "I3 what was acked is not delivered again", (pid, group), behind, (claim, first, last))

    def _order(self) -> None:
        """I2: a claim is in order, without a gap, and leaves nothing out that the group has not seen."""
        for event in self.history.of("pop"):
            if event.ok and event.found is not None:
                for claim in event.found[1]:
                    offsets = [record[0] for record in claim[4]]
                    must(offsets == list(range(offsets[0], offsets[-1] + 1)), "I2 a claim is in order", claim)
                    stamps = [record[4] for record in claim[4]]
                    must(stamps == sorted(stamps), "I2 time goes on in a partition", claim)
        lost = {
            group: min((e.start for e in self._pops(group) if e.outcome != "ok" or e.found is None), default=1 << 62)
            for group in self.groups
        }
        for (pid, group), claims in self._claims().items():
            for claim, first, _ in claims if group in self.groups else ():
                if claim.end >= lost[group]:
                    break  # somebody may have been handed messages, and acknowledged none of them to our knowledge
                reached = max(
                    (last for other, _, last in claims if other is not claim and other.end <= claim.end), default=-1
                )
                must(first <= reached + 1, "I2 nothing is left out", (pid, group), claim, reached)

    def _pops(self, group: str) -> list[Event]:
        return [event for event in self.history.of("pop") if event.asked["group"] == group]

    # -- keys and locks ------------------------------------------------------------------------------------------------

    def _keys(self) -> None:
        writes: dict[str, list[tuple[Event, int]]] = defaultdict(list)
        versions = set[int]()
        for event in self.history.of("incr", "once", "cas", "short"):
            if event.ok and event.found[0][0]:
                writes[event.asked["key"]].append((event, event.found[0][2]))
        for key, rows in writes.items():
            for event, version in rows:
                must(version not in versions, "I8 a version is given once", key, version)
                versions.add(version)
                earlier = [v for other, v in rows if other.end < event.start]
                must(version > max(earlier, default=0), "I8 versions rise", key, version, earlier)
        for event in self.history.of("once"):
            winners = [row for row in writes[event.asked["key"]] if row[0].op == "once"]
            must(len(winners) <= 1, "I9 putIfAbsent has one winner", winners)
        expectations = [
            (e.asked["key"], e.asked["expect"]) for rows in writes.values() for e, _ in rows if e.op == "cas"
        ]
        must(len(expectations) == len(set(expectations)), "I7 a version is replaced once", expectations)
        self._counter(list(self.history.of("incr")))
        for event in self.history.of("expiry"):
            if event.ok:
                start, end, ttl = event.asked["put"]
                if event.start > end + ttl:
                    must(event.found[0] is None, "I9 an expired key is not returned", event)
                if event.end < start + ttl:
                    must(event.found[0] is not None, "I9 a live key is", event)
        for event in self.history.of("both"):
            if event.ok and event.found[0] is not None:
                first, second = event.found
                must(first[0] == second[0], "I7 a call on two keys is atomic to readers", event)

    def _counter(self, calls: list[Event]) -> None:
        sure = [int(event.found[0][1]) for event in calls if event.ok and event.found[0][0]]
        maybe = sum(event.outcome == "unknown" for event in calls)
        must(len(sure) == len(set(sure)), "I7 no increment is lost", sorted(sure))
        must(max(sure, default=0) <= COUNTER_MAX, "I9 a bounded counter keeps its bound", max(sure, default=0))
        must(max(sure, default=0) <= len(sure) + maybe, "I9 a counter counts what was asked", len(sure), maybe)

    def _locks(self) -> None:
        """I5 and I6: tokens rise; one holder at a time; guarded writes go forward."""
        grants: dict[str, list[tuple[Event, int]]] = defaultdict(list)
        ended: dict[tuple[str, int], int] = {}
        for event in self.history.of("acquire", "renew"):
            if event.ok and event.found[0][0] and not event.found[0][2]:
                grants[event.asked["lock"]].append((event, event.found[0][1]))
        for event in self.history.of("unlock", "renew"):
            key = (event.asked["lock"], event.asked["token"])
            ended[key] = min(ended.get(key, 1 << 62), event.start)
        for lock, rows in grants.items():
            tokens = [token for _, token in rows]
            must(len(tokens) == len(set(tokens)), "I6 no two grants share a token", lock, tokens)
            for event, token in rows:
                earlier = [t for other, t in rows if other.end < event.start]
                must(token > max(earlier, default=0), "I6 tokens rise", lock, token, earlier)
                surely_until = min(event.start + event.asked["ttl"], ended.get((lock, token), 1 << 62))
                for other, taken in rows:
                    if other.op == "acquire" and taken > token and other.end < surely_until:
                        must(False, "I6 one holder at a time", (event, token), (other, taken))
        for lock in grants:
            written = sorted(
                (event.found[1][1][2], event.asked["token"])
                for event in self.history.of("transaction")
                if event.ok and event.found[0] and event.asked.get("lock") == lock
            )
            order = [token for _, token in written]
            must(order == sorted(order), "I5 guarded writes go forward", lock, written)

    # -- timers and transactions ---------------------------------------------------------------------------------------

    def _timers(self) -> None:
        """I10: never early, at most one message each, never lost; what was cancelled does not fire."""
        last: dict[tuple[str, str], Event] = {}
        unsure = {(e.asked["queue"], e.asked["key"]) for e in self.history.of("cancel") if e.outcome == "unknown"}
        cancelled = dict[tuple[str, str], str]()
        for event in self.history.of("cancel"):
            if event.ok and event.found[0][0] == "cancelled":
                cancelled[(event.asked["queue"], event.asked["key"])] = event.found[0][1]
        for event in self.history.of("schedule"):
            key = (event.asked["queue"], event.asked["key"])
            if event.outcome != "refused":
                last[key] = event
            fired = self.by_txn.get(event.asked["txn"], [])
            must(len(fired) <= 1, "I10 a timer fires once", event, fired)
            if not event.ok:
                continue
            _, message_id, due = event.found[0]
            for pid, offset in fired:
                record = self.log[pid][offset]
                must(record[2] == message_id, "I10 under the promised id", event, record)
                must(record[4] >= due, "I10 a timer is never early", event, record)
        for key, txn in cancelled.items():
            must(not self.by_txn.get(txn), "I10 what was cancelled does not fire", key, txn)
        for key, event in last.items():
            if event.ok and key not in unsure and cancelled.get(key) != event.asked["txn"]:
                must(self.by_txn.get(event.asked["txn"]), "I10 no timer is lost", event)

    def _transactions(self) -> None:
        """I11: all of it or nothing; I5: nothing when the guard lost."""
        keys = {event.asked["key"]: event.found[0] is not None for event in self.history.of("final")}
        for event in self.history.of("transaction"):
            parts = {bool(self.by_txn.get(txn)) for txn in event.asked["txns"]}
            parts |= {keys[key] for key in event.asked["keys"]}
            if "timer" in event.asked:
                parts.add(bool(self.by_txn.get(event.asked["timer"])))
            must(len(parts) == 1, "I11 all or nothing", event, parts)
            if event.ok:
                must(parts == {event.found[0]}, "I11 as it was answered", event, parts)
            elif event.outcome == "refused":
                must(parts == {False}, "I15 what is refused is not there", event)

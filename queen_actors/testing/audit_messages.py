"""The auditor of messages: I1, I2, I3 and I12 on the queues that many clients share."""

from __future__ import annotations

from collections import defaultdict

from .audit_kit import FAR, Ledger, must
from .history import Event, History

Claims = dict[tuple[int, str], list[tuple[Event, int, int]]]
"""Claims under a lease of each (partition, group): (pop, first, last), in the order of their answers."""


class Messages:
    """Judges, and fills the ledger for those who judge on."""

    def __init__(self, history: History, groups: tuple[str, ...], reader: str, ledger: Ledger) -> None:
        self._history = history
        self._groups = groups
        self._reader = reader
        self._ledger = ledger
        self._delivered: dict[str, set[tuple[int, int]]] = defaultdict(set)
        self._pops = [event for event in history.of("pop") if event.ok and event.found is not None]
        self._ends = list(history.of("link.cut", "stop", "death"))
        self._claims: Claims = defaultdict(list)
        for event in self._pops:
            if event.found[0]:
                for _, _, pid, _, records in event.found[1]:
                    self._claims[(pid, event.asked["group"])].append((event, records[0][0], records[-1][0]))

    def judge(self) -> None:
        self._deliveries()
        self._pushes()
        self._leases()
        self._order()

    def _deliveries(self) -> None:
        """I2: one offset holds one message, for everybody; the reader saw 0, 1, 2, ... of each partition."""
        log, seen_at = self._ledger.log, self._ledger.seen_at
        for event in self._pops:
            for _, _, pid, _, records in event.found[1]:
                for record in records:
                    known = log[pid].setdefault(record[0], record)
                    must(known == record, "I2 an offset holds one message", pid, known, record)
                    self._delivered[event.asked["group"]].add((pid, record[0]))
                    seen_at.setdefault((pid, record[0]), event.until)
        for pid, kept in log.items():
            read = sorted(offset for place, offset in self._delivered[self._reader] if place == pid)
            must(read == list(range(len(kept))), "I2 offsets are 0, 1, 2, ...", pid, read)
            for offset, record in kept.items():
                self._ledger.by_txn[record[1]].append((pid, offset))
                must(record[3] in (f'"{record[1]}"'.encode(), b'"timed"', b"1"), "I1 payloads are as sent", record)

    def _pushes(self) -> None:
        """I1 and I12: queued is delivered to every group, refused never; one offset for each transaction id."""
        may, promised = set[str](), dict[str, tuple[int, str]]()
        for event in self._history.of("push"):
            for place, (_, _, txn) in enumerate(event.asked["items"]):
                if event.outcome != "refused":
                    may.add(txn)
                if event.ok:
                    answered, status, offset, message_id = event.found[place]
                    must(answered == txn and status in ("queued", "duplicate"), "I1 a push is answered", event)
                    known = promised.setdefault(txn, (offset, message_id))
                    same = known == (offset, message_id)
                    must(same, "I12 a repeat has the original's offset and id", txn, known, event)
        for txn, (offset, message_id) in promised.items():
            found = self._ledger.by_txn.get(txn, [])
            must([place[1] for place in found] == [offset], "I1 I12 what is queued is there, once", txn, offset, found)
            pid = found[0][0]
            must(self._ledger.log[pid][offset][2] == message_id, "I1 it has the promised id", txn)
            for group in self._groups:
                must((pid, offset) in self._delivered[group], "I1 it reaches every group", txn, group)
        for event in self._history.of("transaction"):
            if event.outcome != "refused" and not (event.ok and not event.found[0]):
                may.update(event.asked["txns"])
                may.add(event.asked.get("timer", ""))
        may.update(event.asked["txn"] for event in self._history.of("schedule") if event.outcome != "refused")
        for txn, places in self._ledger.by_txn.items():
            must(len(places) == 1, "I12 a transaction id is there once", txn, places)
            must(txn in may, "I1 nothing is delivered that was not pushed, or was refused", txn, places)

    def _leases(self) -> None:
        """I3: nobody gets what is certainly leased; dead leases settle nothing; what is done stays done."""
        ends: dict[str, list[Event]] = defaultdict(list)
        extended: dict[str, int] = defaultdict(int)
        for event in self._history.of("ack", "release"):
            ends[event.asked["lease"]].append(event)
        for event in self._history.of("extend"):
            if event.outcome != "refused":
                lease, until = event.asked["lease"], event.until + event.asked["seconds"] * 1_000_000
                extended[lease] = max(extended[lease], until)
        for (pid, group), claims in self._claims.items():
            for place, (claim, first, last) in enumerate(claims):
                lease = claim.found[0]
                touched = min((event.start for event in [*ends[lease], *self._lost_with(claim)]), default=FAR)
                surely_until = claim.at + claim.asked["lease"]
                for other, lowest, _ in claims[place + 1 :]:
                    if other.start >= claim.end and other.end < touched and other.until < surely_until:
                        must(False, "I3 one live lease", (pid, group), (claim, first, last), (other, lowest))
                kept = FAR if claim.asked.get("kept") else claim.until + claim.asked["lease"]
                self._dead_acks(claim, pid, ends[lease], max(kept, extended[lease]))
            self._done(pid, group, claims)

    def _lost_with(self, claim: Event) -> list[Event]:
        """The ends of the connection, or of the broker, that the lease of this claim lives with."""
        if not claim.asked.get("kept"):
            return []
        return [
            event for event in self._ends if event.start >= claim.start and event.client in ("broker", claim.client)
        ]

    def _dead_acks(self, claim: Event, pid: int, ends: list[Event], surely_over: int) -> None:
        """An ack that was made when the lease had certainly run out, and that repeats none, fails."""
        tried = False
        for event in sorted(ends, key=lambda event: event.start):
            if event.op == "ack" and event.asked["pid"] == pid and event.ok and not tried:
                settled = event.at > surely_over and any(entry[0] for entry in event.found)
                must(not settled, "I3 a dead lease settles nothing", claim, event)
            tried = tried or event.op == "release" or event.asked.get("pid") == pid

    def _done(self, pid: int, group: str, claims: list[tuple[Event, int, int]]) -> None:
        offsets = {record[1]: offset for offset, record in self._ledger.log[pid].items()}
        done: list[tuple[int, int]] = []
        for event in self._history.of("ack"):
            mine = event.ok and event.asked["pid"] == pid and event.asked["group"] == group
            if mine and all(word == "completed" for _, word in event.asked["acks"]):
                pairs = zip(event.asked["acks"], event.found, strict=True)
                done.extend((event.end, offsets[txn]) for (txn, _), entry in pairs if entry[0])
        for claim, first, last in claims:
            behind = max((offset for at, offset in done if at < claim.start), default=-1)
            must(first > behind, "I3 what was acked is not delivered again", (pid, group), behind, (claim, first, last))

    def _order(self) -> None:
        """I2: a claim is in order, without a gap, and leaves nothing out that the group has not seen."""
        for event in self._pops:
            for claim in event.found[1]:
                offsets = [record[0] for record in claim[4]]
                must(offsets == list(range(offsets[0], offsets[-1] + 1)), "I2 a claim is in order", claim)
                stamps = [record[4] for record in claim[4]]
                must(stamps == sorted(stamps), "I2 time goes on in a partition", claim)
        lost: dict[str, int] = {}
        for event in self._history.of("pop"):
            if not event.ok or event.found is None:
                group = event.asked["group"]
                lost[group] = min(event.start, lost.get(group, FAR))
        for (pid, group), claims in self._claims.items():
            for claim, first, _ in claims if group in self._groups else ():
                if claim.end >= lost.get(group, FAR):
                    break  # somebody may have been handed messages, and acknowledged none of them to our knowledge
                earlier = (last for other, _, last in claims if other is not claim and other.end <= claim.end)
                reached = max(earlier, default=-1)
                must(first <= reached + 1, "I2 nothing is left out", (pid, group), claim, reached)

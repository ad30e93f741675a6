"""What each group was given, against what it had acked, and when."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from .history import Call, History
from .logs import Logs, Place
from .world import AUTO, CONSUMED, GROUPS, PARTITIONS, SCRATCH, SHORT, SUBSCRIBERS, TX


class Delivery(NamedTuple):
    call: Call
    first: int
    last: int
    lease: str
    attempt: int


class Commit(NamedTuple):
    """An ack: what it surely committed (-1: nothing), and what it may have."""

    call: Call
    surely: int
    perhaps: int
    lease: str


MARGIN_SECONDS = 0.05
"""Between two clocks that tell how long a lease lives; and how soon a process that is stopped stands still."""
Seat = tuple[str, str, str]
"""(queue, partition, group)."""


class Deliveries:
    """Pops and acks by queue, partition and group."""

    def __init__(self, history: History, logs: Logs, *, drained: bool) -> None:
        self.violations: list[str] = []
        self._logs = logs
        self.places: dict[str, Place] = {}
        self.delivered: dict[Seat, list[Delivery]] = defaultdict(list)
        self.commits: dict[Seat, list[Commit]] = defaultdict(list)
        self.dead: dict[Seat, set[int]] = defaultdict(set)
        """Offsets whose ack was answered as dead-lettered."""
        self.perhaps_dead: dict[Seat, set[int]] = defaultdict(set)
        self.lost_pops: list[Call] = []
        self._pauses = history.pauses
        self._leased: dict[str, Call] = {}
        """The pops of leases that nobody renews."""
        for call in history.of("pop"):
            if call.unknown:
                self.lost_pops.append(call)
            elif call.body["queue"] != SCRATCH:
                self._deliver(call)
        for call in history.of("ack", "transaction"):
            self._commit(call)
        for seat, found in self.delivered.items():
            self._judge(seat, found)
        if drained:
            self._judge_coverage()
            self._judge_dead_letters(history)

    def _fail(self, text: str) -> None:
        self.violations.append(text)

    # -- gathering -------------------------------------------------------------------------------------------------

    def _deliver(self, call: Call) -> None:
        spans: dict[Seat, list[dict[str, Any]]] = defaultdict(list)
        for message in (call.answer or {}).get("messages", ()):
            place = (call.body["queue"], message["partition"])
            if self.places.setdefault(message["partitionId"], place) != place:
                self._fail(f"partition id {message['partitionId']} is {place} and was something else")
            self._logs.identify(place, message["offset"], message["transactionId"], message["id"])
            if place[0] in PARTITIONS:
                self._logs.judge_presence(call, place, message["transactionId"], message["offset"])
            asked = self._logs.asked.get((*place, message["transactionId"]), ())
            if all(message["data"] != request.payload for request in asked):
                self._fail(f"{place}: {message['transactionId']} was delivered with a payload that nobody pushed")
            spans[*place, call.body["consumerGroup"]].append(message)
        for seat, messages in spans.items():
            offsets = [message["offset"] for message in messages]
            if any(after != before + 1 for before, after in pairwise(offsets)):
                self._fail(f"{seat}: one delivery has the offsets {offsets}")
            head = messages[0]
            attempt = head["deliveryAttempt"]
            lease = head.get("leaseId") or ""
            self.delivered[seat].append(Delivery(call, offsets[0], offsets[-1], lease, attempt))
            if lease and call.worker < SUBSCRIBERS:
                self._leased[lease] = call

    def _commit(self, call: Call) -> None:
        if call.op == "ack":
            entries = [(entry, call.body["consumerGroup"]) for entry in call.body["acknowledgments"]]
            told = call.answer if call.acknowledged else [None] * len(entries)
        else:
            acks = [op for op in call.body["operations"] if op["type"] == "ack"]
            entries = [(op, op["consumerGroup"]) for op in acks]
            if call.acknowledged and not call.answer["success"]:
                return
            told = call.answer["results"][: len(acks)] if call.acknowledged else [None] * len(acks)
        if not call.acknowledged and not call.unknown:
            return
        found: dict[tuple[Seat, str], list[tuple[int, bool]]] = defaultdict(list)
        for (entry, group), result in zip(entries, told, strict=True):
            place = self.places.get(entry["partitionId"])
            if place is None or (result is not None and not result["success"]):
                continue
            offset = self._offset(place, entry["transactionId"])
            seat = (*place, group)
            if result is not None:
                self._judge_late(seat, offset, call, entry["leaseId"])
            dead = entry["status"] == "failed" and (result is None or result["dlq"])
            if dead:
                (self.perhaps_dead if result is None else self.dead)[seat].add(offset)
            settles = entry["status"] == "completed" or dead
            found[seat, entry["leaseId"]].append((offset if settles else -1, result is not None))
        for (seat, lease), offsets in found.items():
            perhaps = max(offset for offset, _ in offsets)
            surely = max((offset for offset, sure in offsets if sure), default=-1)
            self.commits[seat].append(Commit(call, surely, perhaps, lease))

    def _offset(self, place: Place, txn: str) -> int:
        known = self._logs.offsets[place].get(txn)
        if known is not None:
            return known
        found = [key[2] for key, (name, _) in self._logs.ids.items() if key[:2] == place and name == txn]
        return found[0] if found else -1

    # -- judging ---------------------------------------------------------------------------------------------------

    def _judge(self, seat: Seat, deliveries: list[Delivery]) -> None:
        if seat[0] == SHORT:
            self._judge_once(seat, deliveries)
            return
        if seat[2] == AUTO:
            self._judge_once(seat, deliveries)
            self._judge_auto_gaps(seat, deliveries)
            return
        commits = self.commits[seat]
        by_answer = sorted((commit.call.answered, commit.surely) for commit in commits)
        answers = [answered for answered, _ in by_answer]
        floors = list(accumulate((offset for _, offset in by_answer), max, initial=-1))
        by_sent = sorted((commit.call.sent, commit.perhaps) for commit in commits)
        sends = [sent for sent, _ in by_sent]
        ceilings = list(accumulate((offset for _, offset in by_sent), max, initial=-1))
        for delivery in deliveries:
            floor = floors[bisect_left(answers, delivery.call.sent)]
            ceiling = ceilings[bisect_left(sends, delivery.call.answered)]
            if delivery.first <= floor:
                self._fail(f"{seat}: offset {delivery.first} was delivered again; {floor} was acked")
            if delivery.first > ceiling + 1:
                self._fail(f"{seat}: offset {delivery.first} was delivered; only {ceiling} can have been acked")
        self._judge_leases(seat, deliveries)
        self._judge_attempts(seat, deliveries)

    def _judge_late(self, seat: Seat, offset: int, call: Call, lease: str) -> None:
        """An ack that was taken: its lease cannot have been over (I3). Nobody in the load acks a message twice."""
        popped = self._leased.get(lease)
        if popped is None:
            return
        over = popped.answered + popped.body["leaseSeconds"] + MARGIN_SECONDS
        if self._decided(call) > over:
            self._fail(f"{seat}: an ack of {offset} was taken {self._decided(call) - over:.2f} s after its lease")

    def _decided(self, call: Call) -> float:
        """The earliest moment: a process that stands still decides nothing of what is sent to it."""
        for began, ended in self._pauses:
            if began + MARGIN_SECONDS < call.sent < ended:
                return ended
        return call.sent

    def _judge_leases(self, seat: Seat, deliveries: list[Delivery]) -> None:
        """While a lease surely lives, nobody else is given anything (I3)."""
        ends: dict[str, float] = {}
        for commit in self.commits[seat]:
            ends[commit.lease] = min(ends.get(commit.lease, math.inf), commit.call.sent)
        ordered = sorted(deliveries, key=lambda delivery: delivery.call.sent)
        for number, one in enumerate(ordered):
            lives = one.call.sent + one.call.body["leaseSeconds"] - 0.05
            until = min(lives, ends.get(one.lease, math.inf), one.call.body.get("until", math.inf))
            for other in ordered[number + 1 :]:
                if other.call.sent >= until:
                    break
                if other.call.sent > one.call.answered and other.call.answered < until:
                    self._fail(f"{seat}: {other.first} was delivered while {one.first}..{one.last} was leased")

    def _judge_attempts(self, seat: Seat, deliveries: list[Delivery]) -> None:
        """What is delivered again has one attempt more at the least, also when the broker died between (A05)."""
        known: dict[int, Delivery] = {}
        for delivery in sorted(deliveries, key=lambda delivery: delivery.call.answered):
            before = known.get(delivery.first)
            if before and before.call.answered < delivery.call.sent and delivery.attempt <= before.attempt:
                self._fail(f"{seat}: {delivery.first} came with attempt {before.attempt}, then {delivery.attempt}")
            known[delivery.first] = delivery

    def _judge_once(self, seat: Seat, deliveries: list[Delivery]) -> None:
        """Committed at delivery: no offset twice."""
        given: set[int] = set()
        for delivery in deliveries:
            span = set(range(delivery.first, delivery.last + 1))
            if span & given:
                self._fail(f"{seat}: {sorted(span & given)} delivered again after a commit at delivery")
            given |= span

    def _judge_auto_gaps(self, seat: Seat, deliveries: list[Delivery]) -> None:
        """An offset that nobody got was in an answer that was lost."""
        lost = [call for call in self.lost_pops if call.body["queue"] == seat[0] and call.body["consumerGroup"] == AUTO]
        ordered = sorted(deliveries, key=lambda delivery: delivery.first)
        end, since = -1, -math.inf
        for delivery in ordered:
            excuse = sum(
                call.body["batch"] for call in lost if since <= call.answered and call.sent <= delivery.call.answered
            )
            if delivery.first - end - 1 > excuse:
                self._fail(f"{seat}: offsets {end + 1}..{delivery.first - 1} were not delivered")
            end, since = delivery.last, delivery.call.sent

    def _judge_coverage(self) -> None:
        """At the end everything was delivered to everybody."""
        for queue, groups in ((CONSUMED[0], GROUPS), (CONSUMED[1], GROUPS), ("work", (TX,))):
            for partition in PARTITIONS[queue]:
                for group in groups:
                    spans = self.delivered[queue, partition, group]
                    given = {offset for span in spans for offset in range(span.first, span.last + 1)}
                    missing = sorted(set(self._logs.records[queue, partition]) - given)
                    if missing:
                        self._fail(f"{(queue, partition, group)}: offsets {missing[:5]} were never delivered")

    def _judge_dead_letters(self, history: History) -> None:
        """The last reading of the dead letters has those that were answered as such, each once, as they were pushed."""
        pages = [call for call in history.of("dlq") if call.acknowledged and call.round == history.round]
        filed: dict[Seat, set[int]] = defaultdict(set)
        for row in (row for page in pages for row in page.answer["messages"]):
            seat = (row["queue"], row["partition"], row["consumerGroup"])
            record = self._logs.records[seat[:2]].get(row["offset"])
            if record is None or (record.txn, record.payload) != (row["transactionId"], row["payload"]):
                self._fail(f"{seat}: the dead letter of {row['offset']} is not what was pushed")
            if row["offset"] in filed[seat]:
                self._fail(f"{seat}: {row['offset']} was dead-lettered twice")
            filed[seat].add(row["offset"])
        for seat in {*filed, *self.dead}:
            if not self.dead[seat] <= filed[seat]:
                self._fail(f"{seat}: dead letters {sorted(self.dead[seat] - filed[seat])} are lost")
            if not filed[seat] <= self.dead[seat] | self.perhaps_dead[seat]:
                self._fail(f"{seat}: dead letters that nobody made: {sorted(filed[seat])}")

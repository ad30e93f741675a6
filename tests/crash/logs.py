"""The logs as they were read back, what was pushed into them, and whether the two agree."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

from .history import Call, History
from .world import PARTITIONS, SCRATCH

Place = tuple[str, str]
"""(queue, partition)."""
FIRED_INTO = ("fired", "soon")


class Record(NamedTuple):
    offset: int
    txn: str
    payload: Any
    ts: str


class Asked(NamedTuple):
    """Something was asked to put this message there: a push, a transaction, a timer."""

    call: Call
    payload: Any


class Logs:
    """Every record that was read back, and everything that was asked to become one."""

    def __init__(self, history: History) -> None:
        self.violations: list[str] = []
        self.records: dict[Place, dict[int, Record]] = defaultdict(dict)
        self.offsets: dict[Place, dict[str, int]] = defaultdict(dict)
        self.seen: dict[Place, dict[int, int]] = defaultdict(dict)
        """In which reading a record was first seen, as a place in `readings`."""
        self.readings: dict[Place, list[tuple[Call, int]]] = defaultdict(list)
        """Fetches, each with the watermark that it told."""
        self.asked: dict[tuple[str, str, str], list[Asked]] = defaultdict(list)
        self.ids: dict[tuple[str, str, int], tuple[str, str]] = {}
        """The message that anybody ever saw at an offset: its transaction id and its id."""
        for call in history.calls:
            self._ask(call)
            if call.op == "fetch" and call.acknowledged:
                self._read(call)
        self._judge_records()
        self._judge_pushes(history)

    def _fail(self, text: str) -> None:
        self.violations.append(text)

    # -- gathering -------------------------------------------------------------------------------------------------

    def _ask(self, call: Call) -> None:
        if not call.acknowledged and not call.unknown:
            return
        if call.op == "push":
            items = call.body["items"]
        elif call.op == "transaction" and not refused(call):
            items = [item for op in call.body["operations"] if op["type"] == "push" for item in op["items"]]
        else:
            items = []
        for item in items:
            key = (item["queue"], item["partition"], item["transactionId"])
            self.asked[key].append(Asked(call, item["payload"]))
        for op in () if refused(call) else timer_ops(call):
            if op["op"] == "schedule":
                key = (op["queue"], op["partition"], op["txn"])
                self.asked[key].append(Asked(call, {"txn": op["txn"]}))

    def _read(self, call: Call) -> None:
        for asked, answer in zip(call.body["entries"], call.answer["entries"], strict=True):
            place = (asked["queue"], asked["partition"])
            known = self.records[place]
            watermark = 0 if answer.get("error") else answer["highWatermark"]
            if self.readings[place] and watermark < self.readings[place][-1][1]:
                self._fail(f"{place}: its end fell from {self.readings[place][-1][1]} to {watermark}")
            self.readings[place].append((call, watermark))
            for number, found in enumerate(answer.get("records", ())):
                record = Record(found["offset"], found["transactionId"], found["payload"], found["ts"])
                if record.offset != asked["offset"] + number:
                    self._fail(f"{place}: offset {record.offset} where {asked['offset'] + number} was to be read")
                before = known.setdefault(record.offset, record)
                if before != record:
                    self._fail(f"{place}: offset {record.offset} was {before.txn} and is now {record.txn}")
                self.seen[place].setdefault(record.offset, len(self.readings[place]) - 1)

    # -- judging ---------------------------------------------------------------------------------------------------

    def _judge_records(self) -> None:
        for place, records in self.records.items():
            end = self.readings[place][-1][1]
            if sorted(records) != list(range(end)):
                gaps = sorted(set(range(end)) - set(records))
                self._fail(f"{place}: it ends at {end}, and offsets {gaps[:5]} are not there")
            for offset, record in sorted(records.items()):
                first = self.offsets[place].setdefault(record.txn, offset)
                if first != offset:
                    self._fail(f"{place}: {record.txn} is there twice, at {first} and {offset}")
                self._judge_origin(place, record)

    def _judge_origin(self, place: Place, record: Record) -> None:
        asked = self.asked.get((*place, record.txn))
        if not asked:
            self._fail(f"{place}: {record.txn} at {record.offset} was never asked for")
            return
        if all(record.payload != request.payload for request in asked):
            self._fail(f"{place}: the payload of {record.txn} at {record.offset} is not what was pushed")
        number = self.seen[place][record.offset]
        earlier = [call for call, mark in self.readings[place][:number] if mark <= record.offset]
        if place[0] not in FIRED_INTO and earlier and all(asked.call.answered < earlier[-1].sent for asked in asked):
            self._fail(f"{place}: {record.txn} came into being at {record.offset} while nobody pushed it")

    def _judge_pushes(self, history: History) -> None:
        queued: dict[tuple[str, str, str], int] = {}
        ends: dict[Place, list[tuple[float, int]]] = defaultdict(list)
        for call in history.of("push"):
            if not call.acknowledged:
                continue
            latest: dict[Place, int] = {}
            for item, told in zip(call.body["items"], call.answer, strict=True):
                place = (item["queue"], item["partition"])
                if place[0] == SCRATCH:
                    continue
                key = (*place, item["transactionId"])
                if told["status"] not in {"queued", "duplicate"} or told["transaction_id"] != item["transactionId"]:
                    self._fail(f"{place}: the push of {item['transactionId']} was answered {told}")
                    continue
                self.identify(place, told["offset"], item["transactionId"], told["message_id"])
                if queued.setdefault(key, told["offset"]) != told["offset"]:
                    self._fail(f"{place}: {key[2]} was answered with offsets {queued[key]} and {told['offset']}")
                if told["status"] == "queued":
                    if any(asked.call.answered < call.sent and asked.call.acknowledged for asked in self.asked[key]):
                        self._fail(f"{place}: {key[2]} was queued a second time, at {told['offset']}")
                    latest[place] = max(latest.get(place, 0), told["offset"])
                    before = [offset for answered, offset in ends[place][-50:] if answered < call.sent]
                    if before and told["offset"] <= max(before):
                        self._fail(f"{place}: offset {told['offset']} was given out again")
                self.judge_presence(call, place, item["transactionId"], told["offset"])
            for place, offset in latest.items():
                ends[place].append((call.answered, offset))

    def judge_presence(self, call: Call, place: Place, txn: str, offset: int) -> None:
        """What somebody was told is there when it is read afterwards."""
        if not self.readings[place] or self.readings[place][-1][0].sent < call.answered:
            return
        record = self.records[place].get(offset)
        if record is None or record.txn != txn:
            self._fail(f"{place}: {txn} was acknowledged at offset {offset}, and there is {record and record.txn}")

    def identify(self, place: Place, offset: int, txn: str, message_id: str) -> None:
        """Somebody saw this message at this offset."""
        before = self.ids.setdefault((*place, offset), (txn, message_id))
        if before != (txn, message_id):
            self._fail(f"{place}: offset {offset} was {before} and is {(txn, message_id)}")
        record = self.records[place].get(offset)
        if place[0] in PARTITIONS and record is not None and record.txn != txn:
            self._fail(f"{place}: offset {offset} was seen as {txn} and is {record.txn}")


def refused(call: Call) -> bool:
    """A transaction that was answered as rolled back: nothing of it may ever be seen."""
    return call.op == "transaction" and call.acknowledged and not call.answer["success"]


def timer_ops(call: Call) -> list[dict[str, Any]]:
    """The timer operations of a call."""
    if call.op == "timers":
        return list(call.body["operations"])
    return list(call.body.get("timers", ())) if call.op == "transaction" else []

"""Timers, transactions, and a queue that is deleted again and again: what happened once, wholly, or not at all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from .history import Call, History
from .logs import Logs, timer_ops
from .world import LATER, NEVER, PARTITIONS, SCRATCH, TX


class Step(NamedTuple):
    """One operation on a timer's key, in the order of its one writer."""

    call: Call
    op: dict[str, Any]
    status: str | None
    """scheduled, rescheduled, cancelled, absent; None: not known."""
    result: dict[str, Any] | None


class Fired(NamedTuple):
    offset: int
    ts: str
    message_id: str | None


def _steps(history: History) -> dict[tuple[str, str], list[Step]]:
    """By (queue, key)."""
    found: dict[tuple[str, str], list[Step]] = defaultdict(list)
    for call in history.of("timers", "transaction"):
        ops = timer_ops(call)
        results: Sequence[Any] = [None] * len(ops)
        if call.acknowledged and call.op == "timers":
            results = call.answer["results"]
        elif call.acknowledged and call.answer["success"]:
            results = [result for result in call.answer["results"] if result["type"] == "timer"]
        elif not call.unknown:
            continue
        for op, result in zip(ops, results, strict=True):
            found[op["queue"], op["timerKey"]].append(Step(call, op, result and result["status"], result))
    return found


class Timers:
    """Every timer: never early, never lost, at most once, and never after a cancel that said so (I10)."""

    def __init__(self, history: History, logs: Logs, *, drained: bool) -> None:
        self.violations: list[str] = []
        self._drained = drained
        self._fired: dict[str, list[Fired]] = defaultdict(list)
        self.pending: dict[int, set[str]] = defaultdict(set)
        """Transaction ids of the timers that were pending, by the round in which that was read."""
        self._last_reading = 0
        for queue in ("fired", "soon"):
            for partition in PARTITIONS[queue]:
                for offset, record in logs.records[queue, partition].items():
                    seen = logs.ids.get((queue, partition, offset))
                    self._fired[record.txn].append(Fired(offset, record.ts, seen and seen[1]))
        for call in history.of("pending"):
            if call.reading and call.acknowledged:
                self.pending[call.round].update(row["txn"] for row in call.answer["rows"])
                self._last_reading = call.round
        self._read_at = max((call.sent for call in history.of("fetch")), default=0.0)
        for key, steps in _steps(history).items():
            for number, step in enumerate(steps):
                self._judge(key, step, steps[number + 1 :])

    def fired(self, txn: str) -> bool:
        return txn in self._fired

    def _fail(self, text: str) -> None:
        self.violations.append(text)

    def _judge(self, key: tuple[str, str], step: Step, later: Sequence[Step]) -> None:
        if step.op["op"] != "schedule":
            return
        txn = step.op["txn"]
        fires = self._fired.get(txn, [])
        if len(fires) > 1:
            self._fail(f"timer {key}: {txn} fired {len(fires)} times")
        if step.result is None:
            return
        for fire in fires:
            if _instant(fire.ts) < _instant(step.result["deliverAt"]):
                self._fail(f"timer {key}: {txn} fired at {fire.ts}, before {step.result['deliverAt']}")
            if fire.message_id is not None and fire.message_id != step.result["messageId"]:
                self._fail(f"timer {key}: {txn} fired as {fire.message_id}, not {step.result['messageId']}")
        between: list[Step] = []
        for after in later:
            if after.result is not None:
                break
            between.append(after)
        else:
            self._judge_open(key, txn, step, between)
            return
        replaced = after.status in {"rescheduled", "cancelled"}
        if after.status == "cancelled" and after.result is not None and after.result["txn"] == txn and fires:
            self._fail(f"timer {key}: {txn} was cancelled, and fired")
        elif not between and replaced and fires:
            self._fail(f"timer {key}: {txn} was {after.status}, and fired")
        elif not between and not replaced and not fires and self._read_at > after.call.answered:
            self._fail(f"timer {key}: {txn} is lost; then came {after.status}")

    def _judge_open(self, key: tuple[str, str], txn: str, step: Step, between: Sequence[Step]) -> None:
        """Nothing that is known came after it: it is pending or it fired, or what is not known took its place."""
        if self._read_at < step.call.answered or any(after.op["op"] == "cancel" for after in between):
            return
        names = [txn, *(after.op["txn"] for after in between)]
        pending = set() if self._drained and key[0] != LATER else self.pending[self._last_reading]
        if not any(name in self._fired or name in pending for name in names):
            self._fail(f"timer {key}: {txn} is lost")


def _instant(text: str) -> datetime:
    return datetime.fromisoformat(text)


def judge_bundles(history: History, logs: Logs, timers: Timers, *, drained: bool) -> Iterator[str]:
    """A transaction's result, key, timer and ack are all there or none of them (I11), as last read."""
    last = max((call.round for call in history.of("fetch")), default=0)
    read_at = max((call.sent for call in history.of("fetch") if call.round == last), default=0.0)
    began = min((call.sent for call in history.calls if call.round == last and call.reading), default=0.0)
    calls = [call for call in history.of("transaction") if call.body["operations"][0]["type"] == "ack"]
    results = {txn for partition in PARTITIONS["results"] for txn in logs.offsets["results", partition]}
    keys = {
        row["key"]
        for call in history.of("kv")
        if call.reading and call.round == last and call.acknowledged and call.body["operations"][0]["ns"] == "done"
        for row in call.answer["results"][0]["rows"]
    }
    done: set[str] = set()
    for call in calls:
        source = call.body["operations"][0]["transactionId"]
        doomed = any(op["key"] == NEVER for op in call.body["kv"])
        if call.acknowledged and call.answer["success"]:
            if source in done or doomed:
                yield f"work {source} was settled twice, or by a transaction that was to be refused"
            done.add(source)
        elif doomed:
            pass
        elif call.acknowledged and call.answer["reason"] != "rejected_ack":
            yield f"work {source}: the transaction was refused as {call.answer['reason']}: half of one is there"
        if call.answered > began:
            continue
        timer = f"b-{source}"
        there = {
            "result": f"r-{source}" in results,
            "key": source in keys,
            "timer": timers.fired(timer) or timer in timers.pending[last],
        }
        if len(set(there.values())) > 1:
            yield f"work {source}: half a transaction is there: {there}"
        if call.acknowledged and call.answer["success"] and not all(there.values()):
            yield f"work {source}: an acknowledged transaction is lost: {there}"
    work = {txn for partition in PARTITIONS["work"] for txn in logs.offsets["work", partition]}
    yield from _judge_acks(history, logs)
    if drained and read_at > began:
        left = sorted({f"r-{txn}" for txn in work} ^ results)
        if left:
            yield f"work was settled by no transaction, or by one that had no work: {left[:5]}"


def _judge_acks(history: History, logs: Logs) -> Iterator[str]:
    """Work whose result was read back is acked: it is not delivered again."""
    settled: dict[str, float] = {}
    for partition in PARTITIONS["results"]:
        place = ("results", partition)
        for offset, number in logs.seen[place].items():
            settled[logs.records[place][offset].txn[2:]] = logs.readings[place][number][0].answered
    for call in history.of("pop"):
        if call.body.get("consumerGroup") != TX or not call.acknowledged:
            continue
        for message in (call.answer or {}).get("messages", ()):
            if call.sent > settled.get(message["transactionId"], call.sent):
                yield f"work {message['transactionId']} has its result, and was delivered again: half a transaction"


def judge_scratch(history: History) -> Iterator[str]:
    """What a delete removed stays away, also over a death; dedup and offsets begin anew (A17, A26)."""
    lowest, fresh = 0, False
    for call in history.calls:
        if call.op not in {"push", "pop", "delete"}:
            continue
        queue = call.body["items"][0]["queue"] if call.op == "push" else call.body["queue"]
        if queue != SCRATCH:
            continue
        if call.op == "delete":
            if call.acknowledged:
                fresh = True
        elif call.op == "push":
            lowest = max(lowest, call.body["items"][0]["payload"] if fresh else 0)
            if fresh and call.acknowledged:
                told = [(entry["status"], entry["offset"]) for entry in call.answer]
                if told != [("queued", number) for number in range(len(told))]:
                    yield f"scratch: after a delete a push was answered {told}"
            fresh = False
        elif call.acknowledged:
            for message in (call.answer or {}).get("messages", ()):
                if fresh or message["data"] < lowest:
                    yield f"scratch: {message['data']} came back after a delete; {lowest} is the oldest"

"""The history's keys and locks as operations for the linearizability checker.

A pair of keys is one key more, whose value is both values: a call that wrote or read both has one instant for them.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import msgspec

from queen_actors.testing import models
from queen_actors.testing.linear import Operation, Report, judge

from .history import Call, History
from .keys import PairStep, Row, pair_steps

SLACK = 0.1
"""Seconds by which the broker's clock and ours may differ."""
LOCKS = "queen-locks"
READS = (models.Get, models.Check, models.Guard, models.Holders)

Named = tuple[tuple[str, str], Any, Any]
"""((kind, name), step, answer)."""


def judge_linear(history: History) -> Report:
    """Every key, every pair and every lock, over all lives of the process."""
    keys = models.KeyModel(SLACK)
    found = itertools.chain(operations(history), pairs(history))
    return judge(found, {"key": keys, "pair": keys, "lock": models.LockModel(SLACK)})


def operations(history: History) -> Iterator[Operation]:
    """One for each key that a call touched."""
    for call in history.of("kv", "locks", "transaction"):
        if not call.acknowledged and not call.unknown:
            continue
        found: dict[tuple[str, str], list[tuple[Any, Any]]] = defaultdict(list)
        for key, step, answer in _locks(call) if call.op == "locks" else _keys(call):
            if not call.unknown or not isinstance(step, READS):
                found[key].append((step, answer))
        for key, steps in found.items():
            label = f"round {call.round} {call.op} {steps}"
            yield Operation(key, call.sent, call.answered, tuple(steps), not call.unknown, label)


def pairs(history: History) -> Iterator[Operation]:
    """One for each pair that a call touched. A transaction without an answer whose message was read back did happen."""
    there = {
        record["transactionId"]
        for call in history.of("fetch")
        if call.acknowledged
        for entry in call.answer["entries"]
        for record in entry.get("records", ())
    }
    for call in history.of("kv", "transaction"):
        for found in pair_steps(call):
            step, answer = _pair(found)
            pushed = [item["transactionId"] for op in call.body["operations"] for item in op.get("items", ())]
            known = not call.unknown or not there.isdisjoint(pushed)
            if not call.unknown or not isinstance(step, READS):
                label = f"round {call.round} {call.op} {step} {answer}"
                yield Operation(("pair", found.pair), call.sent, call.answered, ((step, answer),), known, label)


def _pair(found: PairStep) -> tuple[models.KeyStep, models.Answer | None]:
    """The version is that of the second key."""
    step: models.KeyStep = models.Get()
    if found.op == "put":
        step = models.Put(_both(((found.value, 1), (found.value, 1))))
    elif found.op == "delete":
        step = models.Delete()
    if found.rows is None:
        return step, None
    value = _both(found.rows) if any(version for _, version in found.rows) else None
    reason = "absent" if value is None and found.op == "delete" else None
    return step, models.Answer(value is not None, value, found.rows[1][1], reason)


def _both(rows: tuple[Row, Row]) -> bytes:
    return b" ".join(value or b"-" for value, _ in rows)


def _frozen(value: Any) -> bytes:
    return msgspec.json.encode(value, order="sorted")


def _row(result: dict[str, Any]) -> tuple[bytes | None, int]:
    """The row that an element shows; none has version 0."""
    version = result.get("version", 0)
    return (_frozen(result["value"]), version) if version else (None, 0)


def _keys(call: Call) -> Iterator[Named]:
    ops = call.body["operations"] if call.op == "kv" else call.body.get("kv", [])
    if call.unknown:
        for op in ops:
            yield from _element(op, None)
    elif call.op == "kv" and "results" in call.answer:
        for op, result in zip(ops, call.answer["results"], strict=True):
            yield from _element(op, result)
    elif call.op == "transaction" and call.answer["success"]:
        results = [result for result in call.answer["results"] if result["type"] == "kv"]
        for op, result in zip(ops, results, strict=True):
            yield from _element(op, result)
    elif "failedIndex" in call.answer:
        yield from _refused(call, ops)


def _refused(call: Call, ops: list[dict[str, Any]]) -> Iterator[Named]:
    """A `required` operation lost: nothing was written, and the row in its way was told."""
    before = [op for op in call.body["operations"] if op.get("type")] if call.op == "transaction" else []
    flat = sum(len(op["items"]) if op["type"] == "push" else 1 for op in before)
    op = ops[call.answer["failedIndex"] - flat]
    told = {"applied": False, "reason": call.answer["kvReason"]}
    yield from _element(op, {**told, "version": call.answer["version"], "value": call.answer["value"]})


def _element(op: dict[str, Any], result: dict[str, Any] | None) -> Iterator[Named]:
    """An operation and its answer: a page of rows is a read of each of them."""
    if op["op"] == "getPrefix":
        for row in result["rows"] if result else ():
            yield ("key", f"{op['ns']}/{row['key']}"), models.Get(), models.Answer(True, *_row(row))
        return
    if op["ns"] == LOCKS:
        name, _, slot = op["key"].rpartition("#")
        answer = result and models.Verdicts(result["applied"])
        yield ("lock", name), models.Guard(int(slot), op["expect"]), answer
        return
    answer = None
    if result is not None and op["op"] == "get":
        answer = models.Answer(result["found"], *_row(result))
    elif result is not None and op["op"] == "check":
        answer = models.Answer(result["applied"], *((None, 0) if result["applied"] else _row(result)))
        answer = answer._replace(reason=result.get("reason"))
    elif result is not None and op["op"] == "incr":  # a counter that is not there shows 0
        answer = models.Answer(result["applied"], _frozen(result["value"]), result["version"], result.get("reason"))
    elif result is not None:
        answer = models.Answer(result["applied"], *_row(result), result.get("reason"))
    yield ("key", f"{op['ns']}/{op['key']}"), _step(op), answer


def _step(op: dict[str, Any]) -> models.KeyStep:
    ttl = op.get("ttlSeconds", math.inf)
    match op["op"]:
        case "get":
            return models.Get()
        case "put":
            return models.Put(_frozen(op["value"]), ttl, op.get("expect"))
        case "putIfAbsent":
            return models.Put(_frozen(op["value"]), ttl, 0)
        case "delete":
            return models.Delete(op.get("expect"))
        case "incr":
            low, high = Decimal(op.get("min", "-inf")), Decimal(op.get("max", "inf"))
            return models.Increment(Decimal(op["delta"]), ttl, low, high)
        case "check":
            return models.Check(op["expect"])
        case other:
            raise ValueError(other)


def _locks(call: Call) -> Iterator[Named]:
    results = [None] * len(call.body["operations"]) if call.unknown else call.answer["results"]
    for op, result in zip(call.body["operations"], results, strict=True):
        yield ("lock", op["name"]), _lock_step(call, op), result and _verdicts(op, result)


def _lock_step(call: Call, op: dict[str, Any]) -> models.LockStep:
    owner = op.get("owner")
    match op["op"]:
        case "acquire":
            # A permit that lives with its connection may be gone from that one's end on, or once it is not renewed
            lives = (call.body["until"], math.inf) if "until" in call.body else None
            return models.Acquire(op["ttlSeconds"], owner, op.get("limit", 1), lives)
        case "renew":
            return models.Renew(op.get("slot", 0), op["token"], op["ttlSeconds"], owner)
        case "release":
            return models.Release(op.get("slot", 0), op["token"])
        case _:
            return models.Holders()


def _verdicts(op: dict[str, Any], result: dict[str, Any]) -> models.Verdicts:
    word = {"acquire": "acquired", "renew": "renewed", "release": "released", "get": "held"}[op["op"]]
    holders = None
    if op["op"] == "get" or (op["op"] == "acquire" and not result[word]):
        told = [(one["slot"], one.get("owner"), one.get("token", 0)) for one in result.get("holders", ())]
        holders = tuple(told) if op["op"] == "get" or told else None
    slot, token = result.get("slot", 0), result.get("token", 0)
    return models.Verdicts(result[word], slot, token, result.get("already", False), holders)

"""The auditor of keys and locks as a whole: is there one order of all calls that explains every answer? (I5 to I9)

Where a broker starts with another wall clock, true time does not tell any more when a lifetime is over; keys and locks
that have one are left to the other parts of the auditor then.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from math import inf
from typing import Any

from . import models
from .audit_kit import must
from .history import COUNTER_MAX, SLACK, Event, History
from .linear import Operation, judge


def judge_linear(history: History) -> None:
    """Raises Violation for a key or a lock whose answers no order explains."""
    skews = [event.skew for event in history.events if event.skew]
    steady = max(skews, default=0) - min(skews, default=0) < SLACK
    operations = [*_keys(history, steady), *(_locks(history) if steady else ())]
    slack = 3.0 * SLACK
    report = judge(operations, {"key": models.KeyModel(slack), "lock": models.LockModel(slack)})
    must(not report.failures, "I7 keys and locks are linearizable", *report.failures)


def _keys(history: History, steady: bool) -> Iterator[Operation]:
    for event in history.of("incr", "once", "cas", "cut", "get", "refresh", "look", "short", "expiry"):
        mortal = event.op in ("refresh", "look", "short", "expiry")
        if event.outcome != "refused" and (steady or not mortal):
            step = _key_step(event)
            answer = _key_answer(event.found[0]) if event.ok else None
            yield _operation(event, ("key", event.asked["key"]), step, answer)


def _operation(event: Event, key: tuple[str, str], step: Any, answer: Any) -> Operation:
    end = float(event.end) if event.ok else inf
    return Operation(key, float(event.start), end, ((step, answer),), event.ok, f"{event.client} {event.op}")


def _key_step(event: Event) -> models.KeyStep:
    asked = event.asked
    match event.op:
        case "incr":
            return models.Increment(Decimal(1), high=Decimal(COUNTER_MAX))
        case "once":
            return models.Put(b"1", expect=0)
        case "cas":
            return models.Put(asked["value"], expect=asked["expect"])
        case "refresh":
            return models.Put(asked["value"], asked["ttl"], asked["expect"])
        case "short":
            return models.Put(b"1", asked["ttl"])
        case "cut":
            return models.Delete(asked["expect"])
        case _:
            return models.Get()


def _key_answer(found: Any) -> models.Answer:
    if found is None:
        return models.Answer(False)
    if len(found) == 2:
        return models.Answer(True, *found)
    applied, value, version, reason = found
    return models.Answer(applied, value if version or applied or reason == "limit" else None, version, reason)


def _locks(history: History) -> Iterator[Operation]:
    for event in history.of("acquire", "renew", "unlock", "transaction"):
        if event.outcome != "refused" and "lock" in event.asked:
            answer = None
            if event.ok and event.op == "transaction":
                answer = models.Verdicts(event.found[0])
            elif event.ok:
                ok, token, already, slot = event.found[0]
                answer = models.Verdicts(ok, slot, token, already)
            yield _operation(event, ("lock", event.asked["lock"]), _lock_step(event), answer)


def _lock_step(event: Event) -> models.LockStep:
    asked = event.asked
    match event.op:
        case "acquire":
            lives = (event.start, inf) if "session" in asked else None
            return models.Acquire(asked["ttl"], asked["owner"], asked["limit"], lives)
        case "renew":
            return models.Renew(asked["slot"], asked["token"], asked["ttl"], asked["owner"])
        case "unlock":
            return models.Release(asked["slot"], asked["token"])
        case _:
            return models.Guard(asked["slot"], asked["token"])

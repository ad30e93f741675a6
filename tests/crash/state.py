"""Counters, races for one key, locks, and the versions of everything."""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from .history import Call, History
from .logs import Logs
from .world import COUNTER_MAX, COUNTER_MIN

WRITES = {"put", "putIfAbsent", "incr"}


class Granted(NamedTuple):
    """A version that a write was given."""

    call: Call
    version: int
    what: str


def kv_pairs(call: Call) -> Iterator[tuple[dict[str, Any], dict[str, Any] | None]]:
    """The key operations of a call, each with its result when it is known and the call was not refused whole."""
    ops: list[dict[str, Any]] = call.body["operations"] if call.op == "kv" else call.body.get("kv", [])
    if call.unknown:
        yield from ((op, None) for op in ops)
    elif call.acknowledged and call.op == "kv":
        yield from zip(ops, call.answer.get("results", ()), strict=False)
    elif call.acknowledged and call.answer["success"]:
        results = [result for result in call.answer["results"] if result["type"] == "kv"]
        yield from zip(ops, results, strict=True)


def judge_state(history: History, logs: Logs) -> list[str]:
    """All of this module's checks."""
    return [
        *judge_counters(history),
        *judge_races(history),
        *judge_versions(history),
        *judge_permits(history),
        *judge_reports(logs),
    ]


def judge_counters(history: History) -> Iterator[str]:
    """Inside the bounds always; after each start between what was acknowledged and what may have been done."""
    base: dict[str, int] = defaultdict(int)
    surely: dict[str, int] = defaultdict(int)
    less: dict[str, int] = defaultdict(int)
    more: dict[str, int] = defaultdict(int)
    for call in history.of("kv"):
        for op, result in kv_pairs(call):
            if op["ns"] != "counters":
                continue
            key = op["key"]
            if op["op"] == "incr":
                delta = op["delta"]
                if result is None:
                    less[key] += min(0, delta)
                    more[key] += max(0, delta)
                elif result["applied"]:
                    surely[key] += delta
                    if not COUNTER_MIN <= result["value"] <= COUNTER_MAX:
                        yield f"counter {key} went to {result['value']}"
                elif COUNTER_MIN <= result["value"] + delta <= COUNTER_MAX:
                    yield f"counter {key} at {result['value']} refused {delta}"
            elif result is not None:
                value = result["value"] if result["found"] else 0
                low, high = base[key] + surely[key] + less[key], base[key] + surely[key] + more[key]
                if not low <= value <= high or not COUNTER_MIN <= value <= COUNTER_MAX:
                    yield f"counter {key} is {value} in round {call.round}; possible are {low}..{high}"
                base[key], surely[key], less[key], more[key] = value, 0, 0, 0


def judge_races(history: History) -> Iterator[str]:
    """Of all who put a key if it is absent one wins, and stays the winner."""
    winners: dict[str, str] = {}
    wanted: dict[str, set[str]] = defaultdict(set)
    applied: dict[str, list[str]] = defaultdict(list)
    for call in history.of("kv"):
        for op, result in kv_pairs(call):
            if op["ns"] != "races":
                continue
            if op["op"] == "putIfAbsent":
                wanted[op["key"]].add(op["value"])
                if result is None:
                    continue
                if result["applied"]:
                    applied[op["key"]].append(op["value"])
                told = {op["key"]: result["value"]}
            else:
                told = {} if result is None else {row["key"]: row["value"] for row in result["rows"]}
            for key, value in told.items():
                if winners.setdefault(key, value) != value:
                    yield f"race {key}: {winners[key]} won, and then it was {value}"
    for key, winner in winners.items():
        if winner not in wanted[key] or any(value != winner for value in applied[key]) or len(applied[key]) > 1:
            yield f"race {key}: {winner} is there, and {applied[key]} were told that they won"


def _granted(history: History) -> Iterator[Granted]:
    for call in history.calls:
        if call.op in {"kv", "transaction"}:
            for op, result in kv_pairs(call):
                if result is not None and op["op"] in WRITES and result["applied"]:
                    yield Granted(call, result["version"], f"{op['ns']}/{op['key']}")
        elif call.op == "locks" and call.acknowledged:
            for result in call.answer["results"]:
                if (result.get("acquired") and not result.get("already")) or result.get("renewed"):
                    yield Granted(call, result["token"], f"queen-locks/{result['name']}#{result['slot']}")


def judge_versions(history: History) -> Iterator[str]:
    """No version, and so no token, is given twice, and none falls: not over a death either."""
    given: dict[int, Granted] = {}
    waiting: list[tuple[float, int]] = []
    highest = 0
    for grant in _granted(history):  # in the order of `sent`
        while waiting and waiting[0][0] < grant.call.sent:
            highest = max(highest, heapq.heappop(waiting)[1])
        if grant.version <= highest:
            yield f"{grant.what} got version {grant.version} in round {grant.call.round}, after {highest}"
        if grant.version in given:
            yield f"version {grant.version} was given to {given[grant.version].what} and to {grant.what}"
        given[grant.version] = grant
        heapq.heappush(waiting, (grant.call.answered, grant.version))


class Hold(NamedTuple):
    """Somebody surely has the permit from `since` to `until`."""

    since: float
    until: float


def judge_permits(history: History) -> Iterator[str]:
    """At most one holder of each permit."""
    holds: dict[tuple[str, int], dict[int, Hold]] = defaultdict(dict)
    grants: list[tuple[Call, tuple[str, int], int]] = []
    for call in history.of("locks"):
        if not call.acknowledged and not call.unknown:
            continue
        for op in call.body["operations"]:
            if "token" in op:  # whoever renews or releases surely holds no longer, by this token, than until here
                permit = (op["name"], op.get("slot", 0))
                held = holds[permit].get(op["token"])
                if held is not None:
                    holds[permit][op["token"]] = held._replace(until=min(held.until, call.sent))
        for op, result in zip(
            call.body["operations"], call.answer["results"] if call.acknowledged else (), strict=False
        ):
            if result.get("acquired") or result.get("renewed"):
                permit, token = (result["name"], result["slot"]), result["token"]
                grants.append((call, permit, token))
                if not result.get("already"):
                    holds[permit][token] = Hold(call.answered, call.sent + op["ttlSeconds"] - 0.05)
    for call, permit, token in grants:
        for other, held in holds[permit].items():
            if other != token and held.since < call.sent and call.answered < held.until:
                yield f"permit {permit}: {token} was granted while {other} was held"


def judge_reports(logs: Logs) -> Iterator[str]:
    """Along what a permit guards its tokens never go back (I5)."""
    for place, records in logs.records.items():
        if place[0] != "reports":
            continue
        before = -math.inf
        for _, record in sorted(records.items()):
            if record.payload["token"] < before:
                yield f"{place}: a report under token {record.payload['token']} lies behind one under {before}"
            before = record.payload["token"]

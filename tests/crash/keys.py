"""Keys with one writer: which states are possible after each call, and whether an answer fits one of them.

And pairs of keys that all write, always both at once: no reader may see one without the other.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import msgspec

from .history import Call, History
from .logs import Logs
from .state import kv_pairs
from .world import PAIRS, PAIRS_NS, pair_keys

SLACK = 0.1
"""Seconds by which the two clocks, and the instants at which they are read, may differ."""
STATES_MAX = 64


class Cell(NamedTuple):
    """What a key may hold. `version` None: not told yet, but above `above`."""

    value: bytes
    version: int | None
    above: int
    expires_from: float
    expires_to: float


class Outcome(NamedTuple):
    """One way in which an operation may go on one cell: what is answered, and what the key holds then."""

    ok: bool
    reason: str | None
    shown: Cell | None
    after: Cell | None


State = dict[tuple[str, str], Cell | None]


def _frozen(value: Any) -> bytes:
    return msgspec.json.encode(value, order="sorted")


class OwnKeys:
    """The keys of one worker. A call is one atomic step: of several keys all change, or none."""

    def __init__(self, worker: int) -> None:
        self.violations: list[str] = []
        self._worker = worker
        self._states: list[State] = [{}]
        self._highest: dict[tuple[str, str], int] = {}
        self._lost = False

    def take(self, call: Call) -> None:
        """The next call, in the order in which its one writer sent them."""
        if self._lost or not (call.acknowledged or call.unknown):
            return
        found: list[State] = []
        for state in self._states:
            if call.unknown:
                found += [state, *self._after(state, call, None)]
            else:
                found += self._after(state, call, call.answer)
        if call.acknowledged:
            self._note_versions(call)
        if not found:
            held = [{"/".join(key): cell for key, cell in state.items()} for state in self._states]
            self.violations.append(
                f"keys of worker {self._worker}, round {call.round}: {call.body['operations']} was answered "
                f"{call.answer}, and they can only have held one of {held}"
            )
            self._lost = True  # nothing can be judged from here on
            return
        unique = {tuple(sorted(state.items())): state for state in found}
        self._states = list(unique.values())[:STATES_MAX]
        if len(unique) > STATES_MAX:
            self.violations.append(f"keys of worker {self._worker}: too many states are possible to go on judging")
            self._lost = True

    def _note_versions(self, call: Call) -> None:
        for op, result in zip(call.body["operations"], call.answer.get("results", ()), strict=False):
            key = (op["ns"], op["key"])
            self._highest[key] = max(self._highest.get(key, 0), result.get("version", 0))

    def _after(self, state: State, call: Call, answer: Any) -> Iterator[State]:
        """The states in which the call may have left this one, given its answer, or any answer when it is None."""
        ops = call.body["operations"]
        ways = [list(self._ways(op, state.get((op["ns"], op["key"])), call)) for op in ops]
        for outcomes in itertools.product(*ways):
            refused = any(op.get("required") and not way.ok for op, way in zip(ops, outcomes, strict=True))
            if refused:
                if answer is None or answer.get("ok") is False:
                    yield state
                continue
            after = dict(state)
            results = [None] * len(ops) if answer is None else answer.get("results", ())
            if len(results) != len(ops):
                continue
            for op, way, result in zip(ops, outcomes, results, strict=True):
                key = (op["ns"], op["key"])
                cell = way.after if result is None else self._fits(op, way, result, self._highest.get(key, 0))
                if isinstance(cell, bool):
                    break
                after[key] = cell
            else:
                yield after

    def _ways(self, op: dict[str, Any], cell: Cell | None, call: Call) -> Iterator[Outcome]:
        if cell is None or call.answered >= cell.expires_from - SLACK:
            yield self._way(op, None, cell, call)
        if cell is not None and call.sent < cell.expires_to + SLACK:
            yield self._way(op, cell, cell, call)

    def _way(self, op: dict[str, Any], live: Cell | None, kept: Cell | None, call: Call) -> Outcome:
        kind, expect = op["op"], 0 if op["op"] == "putIfAbsent" else op.get("expect")
        if kind == "get":
            return Outcome(live is not None, None, live, kept)
        version = 0 if live is None else live.version
        if expect is not None and version != expect:
            reason = "absent" if live is None else "exists" if expect == 0 else "version"
            return Outcome(False, reason, live, kept)
        if kind == "delete":
            if live is None and expect is None:
                return Outcome(False, "absent", None, None)
            return Outcome(True, None, live, None)
        ttl = op.get("ttlSeconds", math.inf)
        above = self._highest.get((op["ns"], op["key"]), 0)
        written = Cell(_frozen(op["value"]), None, above, call.sent + ttl, call.answered + ttl)
        return Outcome(True, None, written, written)

    def _fits(self, op: dict[str, Any], way: Outcome, result: Any, highest: int) -> Cell | Literal[False] | None:
        """What the key holds when this way was taken and answered so; False when that cannot be."""
        if result["op"] != op["op"] or result["key"] != op["key"]:
            return False
        if op["op"] == "get":
            if result["found"] is not way.ok:
                return False
            if way.shown is None:
                return way.after
        elif result["applied"] is not way.ok or result.get("reason") != way.reason:
            return False
        shown = way.shown
        if shown is None:
            return way.after if (result["value"], result["version"]) == (None, 0) else False
        version = result["version"]
        if _frozen(result["value"]) != shown.value:
            return False
        if version != shown.version if shown.version is not None else version <= shown.above:
            return False
        written = way.ok and op["op"] in {"put", "putIfAbsent"}
        if written and version <= highest:
            return False
        return shown._replace(version=version) if way.after == shown else way.after


def judge_own_keys(history: History, workers: int) -> list[str]:
    """Values and versions are those of the last acknowledged write, or of an unknown one; a batch is all or nothing."""
    by_worker = {worker: OwnKeys(worker) for worker in range(workers)}
    for call in history.of("kv"):
        first = call.body["operations"][0]
        if first["ns"] in {"alpha", "beta"}:
            by_worker[int(first["key"][1:].partition("-")[0])].take(call)
    return [text for judge in by_worker.values() for text in judge.violations]


# -- pairs -------------------------------------------------------------------------------------------------------------

Row = tuple[bytes | None, int]
"""A value and its version; no row has version 0."""


class PairStep(NamedTuple):
    """What a call did with both keys of a pair: `get`, `put` or `delete`."""

    pair: str
    op: str
    value: bytes | None
    """What a put wrote into both."""
    rows: tuple[Row, Row] | None
    """What the answer shows of each; None: it is not known."""


def _shown(result: dict[str, Any] | None) -> Row:
    version = (result or {}).get("version", 0)
    return (_frozen(result["value"]), version) if result and version else (None, 0)


def pair_steps(call: Call) -> Iterator[PairStep]:
    """One for each pair that the call touched."""
    both: dict[tuple[str, str], dict[str, tuple[dict[str, Any], dict[str, Any] | None]]] = defaultdict(dict)
    for op, result in kv_pairs(call):
        if op["ns"] != PAIRS_NS:
            continue
        if op["op"] != "getPrefix":
            both[op["key"].partition("-")[0], op["op"]][op["key"]] = (op, result)
        elif result is not None:
            rows = {row["key"]: row for row in result["rows"]}
            for first, second in (pair_keys(pair) for pair in PAIRS):
                if first.startswith(op["prefix"]):
                    shown = (_shown(rows.get(first)), _shown(rows.get(second)))
                    yield PairStep(first.partition("-")[0], "get", None, shown)
    for (pair, kind), found in both.items():
        (op, one), (_, other) = (found[key] for key in pair_keys(pair))
        value = _frozen(op["value"]) if kind == "put" else None
        yield PairStep(pair, kind, value, None if call.unknown else (_shown(one), _shown(other)))


def judge_pairs(history: History, logs: Logs) -> Iterator[str]:
    """Whoever reads a pair sees one value in both keys, which was written, and none older than one seen before; and
    the message of its transaction is there (I7, I11)."""
    steps = [(call, step) for call in history.of("kv", "transaction") for step in pair_steps(call)]
    writers = {(step.pair, step.value): call for call, step in steps if step.op == "put"}
    waiting: dict[str, list[tuple[float, int]]] = defaultdict(list)
    highest: dict[str, int] = defaultdict(int)
    for call, step in steps:  # in the order of `sent`
        if step.rows is None:
            continue
        (value, version), (other, _) = step.rows
        told = f"pair {step.pair} in round {call.round}"
        if value != other:
            yield f"{told}: {step.op} saw {value!r} in one key and {other!r} in the other"
        elif version:
            writer = writers.get((step.pair, value))
            if writer is None or writer.sent > call.answered:
                yield f"{told}: {step.op} saw {value!r}, which nobody had written"
            elif writer.op == "transaction" and not _pushed(writer, call, logs):
                yield f"{told}: {value!r} was there, and the message of its transaction is not: half a transaction"
        passed = waiting[step.pair]
        while passed and passed[0][0] < call.sent:
            highest[step.pair] = max(highest[step.pair], heapq.heappop(passed)[1])
        if 0 < version < highest[step.pair]:
            yield f"{told}: it went back to version {version} after {highest[step.pair]}"
        heapq.heappush(passed, (call.answered, version))


def _pushed(writer: Call, seen: Call, logs: Logs) -> bool:
    """Whether the messages of this transaction are where they were pushed, as far as that was read behind `seen`."""
    items = [item for op in writer.body["operations"] for item in op["items"]]
    places = [((item["queue"], item["partition"]), item["transactionId"]) for item in items]
    return all(
        txn in logs.offsets[place]
        for place, txn in places
        if logs.readings[place] and logs.readings[place][-1][0].sent > seen.answered
    )

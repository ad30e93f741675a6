"""Keys with one writer: which states are possible after each call, and whether an answer fits one of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import msgspec

from .history import Call, History

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

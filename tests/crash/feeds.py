"""What tails and watches told, over all their connections and all lives of the process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import msgspec

from .history import History
from .logs import Logs
from .state import WRITES, kv_pairs


def judge_tails(history: History, logs: Logs, *, drained: bool) -> Iterator[str]:
    """Each partition from its first offset on, without a gap and nothing twice; what was told is there afterwards."""
    following: dict[tuple[str, str], int] = defaultdict(int)
    for call in history.of("tail"):
        if call.answer is None or "event" not in call.answer:
            continue
        queue, event = call.body["queue"], call.answer
        if event["event"] != "messages":
            yield f"tail of {queue}: it was told {event}"
            continue
        place = (queue, event["partition"])
        for message in event["messages"]:
            offset, txn = message["offset"], message["transactionId"]
            if offset != following[place]:
                yield f"tail of {place}: offset {offset} came where {following[place]} was to come"
            following[place] = offset + 1
            logs.identify(place, offset, txn, message["id"])
            logs.judge_presence(call, place, txn, offset)
            if all(message["data"] != asked.payload for asked in logs.asked.get((*place, txn), ())):
                yield f"tail of {place}: {txn} was told with a payload that nobody pushed"
    if drained and following:
        for queue in {queue for queue, _ in following}:
            for place, records in logs.records.items():
                if place[0] == queue and records and following[place] != len(records):
                    yield f"tail of {place}: it came to {following[place]}, and there are {len(records)}"


def judge_watches(history: History, *, drained: bool) -> Iterator[str]:
    """Versions rise along each watch, a version has the value that it has for everybody, and what was told is not
    taken back; at the end the watcher knows what there is."""
    values = _values(history)
    heard: dict[tuple[str, str], int] = defaultdict(int)
    known: dict[tuple[str, str], tuple[int, bytes]] = {}
    for call in history.calls:
        if call.op == "watched":
            ns, name = call.body["ns"], (call.body["ns"], call.body["prefix"])
            for row in call.answer.get("rows") or ():
                known[ns, row["key"]] = (row["version"], _frozen(row["value"]))
            for change in call.answer.get("changes", ()):
                key, version, value = (ns, change["key"]), change["version"], _frozen(change["value"])
                if version <= heard[name]:
                    yield f"watch {name}: version {version} of {key} came after {heard[name]}"
                heard[name] = version
                if change["op"] == "put":
                    known[key] = (version, value)
                    written = values.get((*key, version), value)
                    if written != value:
                        yield f"watch {name}: {key} at {version} was told as {value!r}, and is {written!r}"
        elif call.op == "kv" and call.reading and call.acknowledged:
            for key, (version, value) in _read(call.answer, call.body).items():
                told = known.get(key)
                if told is not None and (told[0] > version or (told[0] == version and told[1] != value)):
                    yield f"watch of {key}: it was told {told}, and then it was {(version, value)}"
                if drained and told is not None and call.round == history.round and told[0] != version:
                    yield f"watch of {key}: it came to {told[0]}, and there is {version}"


def _frozen(value: Any) -> bytes:
    return msgspec.json.encode(value, order="sorted")


def _values(history: History) -> dict[tuple[str, str, int], bytes]:
    """What each version of each key was, as its writer was told."""
    found: dict[tuple[str, str, int], bytes] = {}
    for call in history.of("kv", "transaction"):
        for op, result in kv_pairs(call):
            if result is not None and op["op"] in WRITES and result["applied"]:
                found[op["ns"], op["key"], result["version"]] = _frozen(result["value"])
    return found


def _read(answer: Any, body: Any) -> dict[tuple[str, str], tuple[int, bytes]]:
    """The rows of counters and races in a reading."""
    found: dict[tuple[str, str], tuple[int, bytes]] = {}
    for op, result in zip(body["operations"], answer["results"], strict=True):
        if op["ns"] in {"counters", "races"}:
            rows = result.get("rows") or ([result] if result.get("found") else [])
            for row in rows:
                found[op["ns"], row["key"]] = (row["version"], _frozen(row["value"]))
    return found

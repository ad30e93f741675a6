"""A short history in which every promise is kept, made by hand, to be tampered with."""

from __future__ import annotations

from typing import Any

from .history import READER, Call, History
from .load import entry, pair_page, schedule
from .world import (
    AUTO,
    COUNTERS,
    GROUPS,
    LATER,
    LOCKS,
    PAIRS,
    PAIRS_NS,
    PARTITIONS,
    SCRATCH,
    TX,
    own_keys,
    pair_keys,
)

Json = dict[str, Any]
FIRED_AT = "2026-01-01T00:00:01.000000Z"


def item(queue: str, partition: str, txn: str, **payload: Any) -> Json:
    return {"queue": queue, "partition": partition, "transactionId": txn, "payload": {"txn": txn, **payload}}


def message(txn: str, offset: int, lease: str, pid: str, partition: str, attempt: int = 1) -> Json:
    return {
        "transactionId": txn,
        "id": f"id-{txn}",
        "offset": offset,
        "leaseId": lease,
        "partitionId": pid,
        "partition": partition,
        "data": {"txn": txn},
        "deliveryAttempt": attempt,
    }


class Story:
    """One life of a broker, and what is read back in the next. Each call has a name by which a test finds it."""

    def __init__(self) -> None:
        self.history = History()
        self.named: dict[str, Call] = {}
        self.logs: dict[tuple[str, str], list[Json]] = {}
        """What the reading is to find; so are the next."""
        self.rows: dict[tuple[str, str], tuple[Any, int]] = {}
        self.pending: dict[str, list[str]] = {"fired": [], "soon": [], LATER: []}
        self.dead: list[Json] = []
        self._now = 100.0
        self.history.round = 1
        self._messages()
        self._keys()
        self._timers()
        self._work()
        self._pairs()

    def say(self, name: str, op: str, body: Json, answer: Any, *, worker: int = 0, seconds: float = 0.01) -> Call:
        """A call that was acknowledged, `seconds` after it was sent."""
        call = Call(self.history.round, worker, op, body, self._now, self._now + seconds, 200, answer)
        self._now += 2 * seconds
        self.history.calls.append(call)
        self.named[name] = call
        return call

    def wait(self, seconds: float) -> None:
        """Nobody asks for anything."""
        self._now += seconds

    def pause(self, seconds: float) -> None:
        """The process stands still for so long; what is said next is sent just before it goes on."""
        self.history.pauses.append((self._now, self._now + seconds))
        self._now += seconds - 0.005

    def push(self, name: str, *items: Json, status: str = "queued") -> Call:
        told: list[Json] = []
        for pushed in items:
            log = self.logs.setdefault((pushed["queue"], pushed["partition"]), [])
            if status == "queued":
                log.append(pushed)
            offset = next(at for at, known in enumerate(log) if known["transactionId"] == pushed["transactionId"])
            txn = pushed["transactionId"]
            told.append({"status": status, "offset": offset, "transaction_id": txn, "message_id": f"id-{txn}"})
        return self.say(name, "push", {"items": list(items)}, told)

    def pop(self, name: str, queue: str, group: str, *messages: Json, **options: Any) -> Call:
        body = {"queue": queue, "consumerGroup": group, "batch": 10, "leaseSeconds": 1, **options}
        return self.say(name, "pop", body, {"messages": list(messages)} if messages else None)

    def ack(self, name: str, group: str, *entries: tuple[Json, str], dlq: bool = False) -> Call:
        acks = [entry(acked, status) for acked, status in entries]
        told = [{"success": True, "dlq": dlq and status == "failed"} for _, status in entries]
        return self.say(name, "ack", {"acknowledgments": acks, "consumerGroup": group}, told)

    def tail(self, name: str, queue: str, partition: str, offset: int, *txns: str) -> Call:
        told = [
            {"offset": offset + number, "transactionId": txn, "id": f"id-{txn}", "data": {"txn": txn}}
            for number, txn in enumerate(txns)
        ]
        return self.say(name, "tail", {"queue": queue}, {"event": "messages", "partition": partition, "messages": told})

    def watch(self, name: str, key: str, value: Any, version: int) -> Call:
        """A change of a counter."""
        change = {"op": "put", "key": key, "value": value, "version": version}
        return self.say(name, "watched", {"ns": "counters", "prefix": "c"}, {"event": "kv", "changes": [change]})

    def kv(self, name: str, *pairs: tuple[Json, Json], worker: int = 0) -> Call:
        results = [{"op": op["op"], "key": op.get("key"), **result} for op, result in pairs]
        return self.say(name, "kv", {"operations": [op for op, _ in pairs]}, {"results": results}, worker=worker)

    def put(self, name: str, ns: str, key: str, value: Any, version: int, **more: Any) -> Call:
        self.rows[ns, key] = (value, version)
        op = {"op": "put", "ns": ns, "key": key, "value": value, "forever": True, **more}
        return self.kv(name, (op, {"applied": True, "value": value, "version": version}))

    # -- the first life --------------------------------------------------------------------------------------------

    def _messages(self) -> None:
        self.push("push", item("orders", "a", "m1"), item("orders", "a", "m2"))
        self.push("push again", item("orders", "a", "m1"), status="duplicate")
        first, second = message("m1", 0, "L1", "1", "a"), message("m2", 1, "L1", "1", "a")
        self.pop("pop g1", "orders", "g1", first, second)
        self.ack("ack g1", "g1", (first, "completed"), (second, "completed"))
        first, second = message("m1", 0, "L2", "1", "a"), message("m2", 1, "L2", "1", "a")
        self.pop("pop g2", "orders", "g2", first, second)
        self.ack("nack g2", "g2", (first, "completed"), (second, "failed"))
        again = message("m2", 1, "L3", "1", "a")
        self.pop("pop g2 again", "orders", "g2", again)
        self.ack("dead g2", "g2", (again, "failed"), dlq=True)
        self.dead.append(
            {"queue": "orders", "partition": "a", "consumerGroup": "g2", "offset": 1, "transactionId": "m2"}
        )
        self.tail("tail", "orders", "a", 0, "m1", "m2")
        self.push("events", item("events", "p0", "m5"))
        taken = message("m5", 0, "", "2", "p0")
        self.pop("take", "events", AUTO, taken, autoAck="true")
        for group in GROUPS:
            delivered = message("m5", 0, f"E{group}", "2", "p0")
            self.pop(f"events {group}", "events", group, delivered)
            self.ack(f"events ack {group}", group, (delivered, "completed"))
        self.say("scratch", "push", {"items": [{**item(SCRATCH, "s", "s0"), "payload": 0}]}, [_told("s0", 0)])
        self.say("delete", "delete", {"queue": SCRATCH}, {"deleted": True})
        self.pop("after delete", SCRATCH, "", partition="s")
        self.say("scratch again", "push", {"items": [{**item(SCRATCH, "s", "s0"), "payload": 1}]}, [_told("s0", 0)])

    def _keys(self) -> None:
        self.put("put", "alpha", "w0-k0", {"n": 1}, 1)
        self.put("put again", "alpha", "w0-k0", {"n": 2}, 2)
        del_op = {"op": "delete", "ns": "beta", "key": "w0-k1"}
        self.kv("delete key", (del_op, {"applied": False, "reason": "absent", "value": None, "version": 0}))
        incr = {"op": "incr", "ns": "counters", "key": "c0", "delta": 2, "min": 0, "max": 40, "forever": True}
        self.kv("incr", (incr, {"applied": True, "value": 2, "version": 3}))
        self.rows["counters", "c0"] = (2, 3)
        self.watch("watch", "c0", 2, 3)
        race = {"op": "putIfAbsent", "ns": "races", "key": "r1-0", "forever": True}
        self.kv("won", ({**race, "value": "0-1"}, {"applied": True, "value": "0-1", "version": 4}))
        lost = {"applied": False, "reason": "exists", "value": "0-1", "version": 4}
        self.kv("beaten", ({**race, "value": "1-1"}, lost), worker=1)
        self.rows["races", "r1-0"] = ("0-1", 4)
        acquire: Json = {"op": "acquire", "name": "l0", "ttlSeconds": 2, "owner": "o0"}
        permit: Json = {"name": "l0", "slot": 0}
        self.say("acquire", "locks", {"operations": [acquire]}, {"results": [{**permit, "acquired": True, "token": 5}]})
        renew: Json = {"op": "renew", **permit, "token": 5, "ttlSeconds": 2, "owner": "o0"}
        self.say("renew", "locks", {"operations": [renew]}, {"results": [{**permit, "renewed": True, "token": 6}]})
        other = {**acquire, "owner": "o1"}
        self.say("held", "locks", {"operations": [other]}, {"results": [{"name": "l0", "acquired": False}]}, worker=1)
        for name, version in (("report", 7), ("second report", 8)):
            self._report(name, version)

    def _report(self, name: str, version: int) -> None:
        report = item("reports", "l0#0", name.replace(" ", "-"), token=6)
        self.logs.setdefault(("reports", "l0#0"), []).append(report)
        guard = {"op": "check", "ns": "queen-locks", "key": "l0#0", "expect": 6, "required": True}
        written = {"op": "put", "ns": "guarded", "key": "l0#0", "value": 6, "forever": True}
        self.rows["guarded", "l0#0"] = (6, version)
        results = [
            {"type": "push", "success": True},
            {"type": "kv", "applied": True, "version": 6},
            {"type": "kv", "applied": True, "version": version, "value": 6},
        ]
        body = {"operations": [{"type": "push", "items": [report]}], "kv": [guard, written]}
        self.say(name, "transaction", body, {"success": True, "results": results})

    def _timers(self) -> None:
        for key, txn in (("w0-t0", "t1"), ("w0-t1", "t2"), ("w0-t2", "t3")):
            self._timer(f"schedule {txn}", schedule("fired", "t0", key, txn, 100), "scheduled")
        self._timer("move t3", schedule("fired", "t0", "w0-t2", "t4", 200), "rescheduled")
        cancel = {"op": "cancel", "queue": "fired", "timerKey": "w0-t1", "txn": "asked"}
        self.say("cancel t2", "timers", {"operations": [cancel]}, {"results": [{"status": "cancelled", "txn": "t2"}]})
        self.logs["fired", "t0"] = [item("fired", "t0", "t1"), item("fired", "t0", "t4")]

    def _timer(self, name: str, op: Json, status: str) -> None:
        self.say(name, "timers", {"operations": [op]}, {"results": [_scheduled(op, status)]})

    def _work(self) -> None:
        self.push("work", item("work", "w0", "m8"), item("work", "w0", "m9"))
        for number, source in enumerate(("m8", "m9")):
            taken = message(source, number, f"W{number}", "7", "w0")
            self.pop(f"take {source}", "work", TX, taken)
            result = item("results", "r0", f"r-{source}")
            once = {"op": "putIfAbsent", "ns": "done", "key": source, "value": source, "required": True}
            timer = schedule("soon", "s", f"b-{source}", f"b-{source}", 100)
            ack = {"type": "ack", "consumerGroup": TX, **entry(taken, "completed")}
            results = [
                {"type": "ack", "success": True, "dlq": False},
                {"type": "push", "success": True},
                {"type": "kv", "applied": True, "version": 9 + number, "value": source},
                {"type": "timer", **_scheduled(timer, "scheduled")},
            ]
            body = {"operations": [ack, {"type": "push", "items": [result]}], "kv": [once], "timers": [timer]}
            self.say(f"settle {source}", "transaction", body, {"success": True, "results": results})
            self.logs.setdefault(("results", "r0"), []).append(result)
            self.logs.setdefault(("soon", "s"), []).append(item("soon", "s", f"b-{source}"))
            self.rows["done", source] = (source, 9 + number)

    def _pairs(self) -> None:
        self.see_pair("pair missing", None, None)
        self.put_pair("pair", "m20", 11)
        self.put_pair("pair again", "m21", 13)
        puts = self._puts("m22", 15)
        pushed = item("events", "p1", "m22")
        results: list[Json] = [{"type": "push", "success": True}, *({"type": "kv", **result} for _, result in puts)]
        body = {"operations": [{"type": "push", "items": [pushed]}], "kv": [op for op, _ in puts]}
        self.say("pair in a transaction", "transaction", body, {"success": True, "results": results})
        self.logs["events", "p1"] = [pushed]
        self.see_pair("pair read", ("m22", 15), ("m22", 16))
        self.say("pair page", "kv", pair_page(PAIRS[0]), {"results": [self._page(PAIRS_NS)]}, worker=2)
        taken = message("m22", 0, "", "8", "p1")
        self.pop("take m22", "events", AUTO, taken, autoAck="true")
        for group in GROUPS:
            delivered = message("m22", 0, f"F{group}", "8", "p1")
            self.pop(f"m22 {group}", "events", group, delivered)
            self.ack(f"m22 ack {group}", group, (delivered, "completed"))

    def _puts(self, value: str, version: int) -> list[tuple[Json, Json]]:
        """Both keys of the first pair become this, as the rows do."""
        found: list[tuple[Json, Json]] = []
        for number, key in enumerate(pair_keys(PAIRS[0])):
            op = {"op": "put", "ns": PAIRS_NS, "key": key, "value": value, "forever": True}
            found.append((op, {"applied": True, "value": value, "version": version + number}))
            self.rows[PAIRS_NS, key] = (value, version + number)
        return found

    def put_pair(self, name: str, value: str, version: int) -> Call:
        return self.kv(name, *self._puts(value, version))

    def see_pair(self, name: str, *rows: tuple[str, int] | None) -> Call:
        """Another worker reads both keys of the first pair."""
        seen: list[tuple[Json, Json]] = []
        for key, row in zip(pair_keys(PAIRS[0]), rows, strict=True):
            told = {"found": False} if row is None else {"found": True, "value": row[0], "version": row[1]}
            seen.append(({"op": "get", "ns": PAIRS_NS, "key": key}, told))
        return self.kv(name, *seen, worker=1)

    # -- the reading -----------------------------------------------------------------------------------------------

    def read(self) -> None:
        """A restart, and all that is there."""
        self.history.round += 1
        self._now += 5
        for queue, txns in self.pending.items():
            rows = [{"txn": txn} for txn in txns]
            self._see("pending", {"queue": queue, "after": ""}, {"rows": rows, "nextAfter": None})
        places = [(queue, partition) for queue, partitions in PARTITIONS.items() for partition in partitions]
        asked = [{"queue": queue, "partition": partition, "offset": 0} for queue, partition in places]
        self._see("fetch", {"entries": asked}, {"entries": [self._log(place) for place in places]})
        for ns, last in (("alpha", "024"), ("beta", "13")):
            self._get(ns, [key for key in own_keys(0) if key[-1] in last])
        self._get("counters", COUNTERS)
        for ns in ("races", "done", "guarded"):
            body = {"operations": [{"op": "getPrefix", "ns": ns, "prefix": "x"}]}
            self._see("kv", body, {"results": [self._page(ns)]})
        self._see("kv", pair_page(PAIRS[0]), {"results": [self._page(PAIRS_NS)]})
        self._see(
            "locks",
            {"operations": [{"op": "get", "name": name} for name in LOCKS]},
            {"results": [{"held": False}] * len(LOCKS)},
        )
        dead = [{**letter, "payload": {"txn": letter["transactionId"]}} for letter in self.dead]
        self._see("dlq", {"queue": "orders"}, {"messages": dead, "total": len(dead)})

    def _see(self, op: str, body: Json, answer: Any) -> None:
        self.say(f"read {op}", op, body, answer, worker=READER)

    def _page(self, ns: str) -> Json:
        kept_rows: list[Json] = [
            {"key": key, "value": value, "version": version}
            for (kept, key), (value, version) in sorted(self.rows.items())
            if kept == ns
        ]
        return {"op": "getPrefix", "rows": kept_rows, "nextAfter": None}

    def _log(self, place: tuple[str, str]) -> Json:
        records = [
            {"offset": at, "transactionId": kept["transactionId"], "payload": kept["payload"], "ts": FIRED_AT}
            for at, kept in enumerate(self.logs.get(place, ()))
        ]
        return {"records": records, "highWatermark": len(records)}

    def _get(self, ns: str, keys: Any) -> None:
        ops = [{"op": "get", "ns": ns, "key": key} for key in keys]
        results: list[Json] = []
        for key in keys:
            row = self.rows.get((ns, key))
            found: Json = {"op": "get", "key": key, "found": row is not None}
            results.append(found if row is None else {**found, "value": row[0], "version": row[1]})
        self._see("kv", {"operations": ops}, {"results": results})


def _told(txn: str, offset: int) -> Json:
    return {"status": "queued", "offset": offset, "transaction_id": txn, "message_id": f"id-{txn}"}


def _scheduled(op: Json, status: str) -> Json:
    return {"status": status, "txn": op["txn"], "messageId": f"id-{op['txn']}", "deliverAt": FIRED_AT}

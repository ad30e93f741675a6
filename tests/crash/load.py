"""A mixed load over HTTP: some workers, each doing now this and now that over a connection of its own.

What a worker does is chosen so that the auditor can tell from the history alone whether an answer was right: a key of
its own has one writer, every pushed payload names its transaction id, two keys of a pair are never written one without
the other, every message of `work` is to be settled by one transaction that leaves its name in four places. Some
transactions are asked to fail.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import msgspec
import trio

from .history import READER, Call
from .peer import Lost, Peer, connected
from .sockets import SocketPeer, on_socket
from .world import (
    AUTO,
    CONSUMED,
    COUNTER_MAX,
    COUNTER_MIN,
    COUNTERS,
    DAWDLERS,
    GROUPS,
    LATER,
    LOCKS,
    NEVER,
    OPTIONS,
    PAIRS,
    PAIRS_NS,
    PARTITIONS,
    SCRATCH,
    SHORT,
    SOCKET_WORKERS,
    TX,
    WORKERS,
    World,
    own_keys,
    pair_keys,
)


def schedule(queue: str, partition: str, key: str, txn: str, delay_ms: int) -> dict[str, Any]:
    payload = base64.b64encode(msgspec.json.encode({"txn": txn})).decode()
    return {
        "op": "schedule",
        "queue": queue,
        "partition": partition,
        "timerKey": key,
        "txn": txn,
        "delayMs": delay_ms,
        "payload": payload,
    }


def by_partition(call: Call) -> dict[str, list[dict[str, Any]]]:
    """The messages of a pop, by partition id."""
    found: dict[str, list[dict[str, Any]]] = {}
    for message in (call.answer or {}).get("messages", []):
        found.setdefault(message["partitionId"], []).append(message)
    return found


def entry(message: dict[str, Any], status: str) -> dict[str, Any]:
    """The acknowledgment of one message."""
    return {
        "transactionId": message["transactionId"],
        "partitionId": message["partitionId"],
        "leaseId": message["leaseId"],
        "status": status,
        "error": None if status == "completed" else "not today",
    }


class Worker:
    """One of them, in one life of the process."""

    def __init__(self, world: World, number: int, peer: Peer | SocketPeer, life: int = 0) -> None:
        self.world = world
        self.number = number
        self.random = random.Random(f"{world.seed}-{number}-{world.history.round}-{life}")
        self.peer = peer

    async def run(self) -> None:
        """Do this and that until the connection dies."""
        acts: dict[Callable[[], Awaitable[object]], int] = {
            self.push: 8,
            self.consume: 10,
            self.take: 2,
            self.keys: 6,
            self.churn: 2,
            self.race: 1,
            self.pair: 5,
            self.count: 3,
            self.lock: 3,
            self.timers: 4,
            self.bundle: 6,
            self.short: 1,
        }
        if self.number == 0:
            acts[self.scratch] = 8
        while True:
            (act,) = self.random.choices(list(acts), list(acts.values()))
            await act()

    # -- messages --------------------------------------------------------------------------------------------------

    def item(self, queue: str, partition: str) -> dict[str, Any]:
        """A new message; its payload names it."""
        txn = f"m{self.world.serial()}"
        padding = self.random.choice((0, 40, 200, 200, 5000))
        payload = {"txn": txn, "pad": "x" * padding}
        return {"queue": queue, "partition": partition, "transactionId": txn, "payload": payload}

    async def push(self) -> None:
        items: list[dict[str, Any]] = []
        for _ in range(self.random.randint(1, 6)):
            if self.world.pushed and self.random.random() < 0.1:
                items.append(self.random.choice(self.world.pushed[-3000:]))
                continue
            queue = self.random.choice(CONSUMED)
            items.append(self.item(queue, self.random.choice(PARTITIONS[queue])))
        self.world.pushed += items
        await self.peer.call("push", {"items": items})

    async def consume(self) -> None:
        """Pop for one of the groups, and settle what came in one of the ways that there are."""
        queue = self.random.choice(CONSUMED)
        body = {
            "queue": queue,
            "consumerGroup": self.random.choice(GROUPS),
            "subscriptionMode": "all",
            "batch": self.random.randint(1, 30),
            "leaseSeconds": self.random.choice((1, 1, 2, 2, 5)),
        }
        if self.random.random() < 0.3:
            body["partition"] = self.random.choice(PARTITIONS[queue])
        else:
            body["partitions"] = self.random.randint(1, 3)
        if self.random.random() < 0.2:
            body |= {"wait": "true", "timeout": 50}
        popped = await self.peer.call("pop", body)
        acks: list[dict[str, Any]] = []
        rest: list[dict[str, Any]] = []
        for messages in by_partition(popped).values():
            way, at = self.random.random(), self.random.randrange(len(messages))
            if way < 0.6:
                acks += [entry(message, "completed") for message in messages]
            elif way < 0.92:
                acks += [entry(message, "completed") for message in messages[:at]]
                if way < 0.78:
                    acks.append(entry(messages[at], "failed"))
                elif way < 0.84:
                    acks.append(entry(messages[at], "retry"))
                else:
                    rest += [entry(message, "completed") for message in messages[at:]]
        if acks and self.number in DAWDLERS and self.random.random() < 0.3:
            await trio.sleep(body["leaseSeconds"] * self.random.uniform(0.3, 1.5))
        for part in (acks, rest):
            if part:
                await self.peer.call("ack", {"acknowledgments": part, "consumerGroup": body["consumerGroup"]})

    async def take(self) -> None:
        """Pop with a commit at delivery."""
        batch = self.random.randint(1, 10)
        body = {"queue": "events", "consumerGroup": AUTO, "subscriptionMode": "all", "autoAck": "true", "batch": batch}
        await self.peer.call("pop", body)

    async def short(self) -> None:
        """Messages that live a second, and a group that reads what is left of them."""
        await self.peer.call("push", {"items": [self.item(SHORT, "k") for _ in range(self.random.randint(1, 8))]})
        body = {"queue": SHORT, "consumerGroup": "g1", "subscriptionMode": "all", "autoAck": "true", "batch": 5}
        if self.random.random() < 0.3:
            await self.peer.call("pop", body)

    async def scratch(self) -> None:
        """A queue with one user: filled, read from, given back to, deleted, and read again (A17)."""
        generation = self.world.generation
        items = [
            {"queue": SCRATCH, "partition": "s", "transactionId": f"s{number}", "payload": generation}
            for number in range(self.random.randint(1, 10))
        ]
        await self.peer.call("push", {"items": items})
        body = {"queue": SCRATCH, "partition": "s", "batch": 3, "leaseSeconds": 1}
        popped = await self.peer.call("pop", body)
        given_back = [
            entry(message, "failed") for messages in by_partition(popped).values() for message in messages[:1]
        ]
        if given_back and self.random.random() < 0.5:
            await self.peer.call("ack", {"acknowledgments": given_back, "consumerGroup": None})
            await self.peer.call("pop", body)
        if self.random.random() < 0.4:
            self.world.generation += 1
            await self.peer.call("delete", {"queue": SCRATCH})
            await self.peer.call("pop", body)

    # -- keys and locks --------------------------------------------------------------------------------------------

    async def kv(self, *ops: dict[str, Any]) -> list[dict[str, Any]]:
        """The results, or none when a required operation lost."""
        call = await self.peer.call("kv", {"operations": ops})
        results: list[dict[str, Any]] = (call.answer or {}).get("results", [])
        for op, result in zip(ops, results, strict=False):
            if "version" in result:
                self.world.versions[op["ns"], op["key"]] = result["version"]
        return results

    async def keys(self) -> None:
        """One to four of the worker's own keys in one call, over two namespaces."""
        ops: list[dict[str, Any]] = []
        for key in self.random.sample(own_keys(self.number), self.random.randint(1, 4)):
            ns = "alpha" if key[-1] in "024" else "beta"
            kind = self.random.choice(("put", "put", "put", "delete", "putIfAbsent", "get"))
            op: dict[str, Any] = {"op": kind, "ns": ns, "key": key}
            if kind in {"put", "putIfAbsent"}:
                op["value"] = {"n": self.world.serial(), "pad": "y" * self.random.choice((0, 20, 300))}
                op |= {"ttlSeconds": 1} if "-e" in key else {"forever": True}
            if kind in {"put", "delete"} and self.random.random() < 0.4:
                op["expect"] = self.world.versions.get((ns, key), 0)
            if kind != "get" and self.random.random() < 0.1:
                op["required"] = True
            ops.append(op)
        await self.kv(*ops)

    async def churn(self) -> None:
        """Put, delete and put of one key (A66)."""
        key = self.random.choice(own_keys(self.number)[:5])
        named = {"ns": "alpha" if key[-1] in "024" else "beta", "key": key}
        await self.kv({"op": "put", **named, "value": {"n": self.world.serial()}, "forever": True})
        await self.kv({"op": "delete", **named})
        await self.kv({"op": "put", **named, "value": {"n": self.world.serial()}, "forever": True})

    async def race(self) -> None:
        """All want the same new key."""
        key = f"r{self.world.history.round}-{self.random.randrange(6)}"
        value = f"{self.number}-{self.world.serial()}"
        await self.kv({"op": "putIfAbsent", "ns": "races", "key": key, "value": value, "forever": True})

    async def pair(self) -> None:
        """Read both keys of a pair in one call, or give both one new value: some do it in a call on keys, some in a
        transaction that pushes a message of that name. Whoever reads may be between the two of somebody else."""
        pair = self.random.choice(PAIRS)
        named = [{"ns": PAIRS_NS, "key": key} for key in self.random.sample(pair_keys(pair), 2)]
        way = self.random.random()
        if way < 0.4:
            await self.peer.call("kv", {"operations": [{"op": "get", **one} for one in named]})
            return
        if way < 0.55:
            await self.peer.call("kv", pair_page(pair))
            return
        message = self.item("events", self.random.choice(PARTITIONS["events"]))
        puts = [{"op": "put", **one, "value": message["transactionId"], "forever": True} for one in named]
        if self.number % 2:
            operations = [{"type": "push", "items": [message]}]
            await self.peer.call("transaction", {"operations": operations, "kv": puts})
        elif way < 0.6:
            await self.peer.call("kv", {"operations": [{"op": "delete", **one} for one in named]})
        else:
            await self.peer.call("kv", {"operations": puts})

    async def count(self) -> None:
        bounds = {"min": COUNTER_MIN, "max": COUNTER_MAX, "forever": True}
        delta = self.random.choice((-3, -1, 1, 1, 2, 4))
        await self.kv({"op": "incr", "ns": "counters", "key": self.random.choice(COUNTERS), "delta": delta, **bounds})

    async def lock(self) -> None:
        """Acquire, renew, do guarded work, release or forget."""
        name = self.random.choice(list(LOCKS))
        owner = f"o{self.number}-{self.world.history.round}"
        acquire = {"op": "acquire", "name": name, "ttlSeconds": self.random.choice((1, 2, 5)), "owner": owner}
        if LOCKS[name] > 1:
            acquire["limit"] = LOCKS[name]
        held = await self._permit(acquire)
        for _ in range(self.random.randrange(3)):
            if held is None:
                return
            renew = {"op": "renew", "name": name, "token": held["token"], "slot": held["slot"], "ttlSeconds": 2}
            before, held = held, await self._permit({**renew, "owner": owner})
            if held is not None:
                await self._guarded(name, held if self.random.random() < 0.7 else before)
        if held is not None and self.random.random() < 0.8:
            await self._permit({"op": "release", "name": name, "token": held["token"], "slot": held["slot"]})

    async def _permit(self, op: dict[str, Any]) -> dict[str, Any] | None:
        call = await self.peer.call("locks", {"operations": [op]})
        (result,) = call.answer["results"]
        return result if result.get("acquired") or result.get("renewed") else None

    async def _guarded(self, name: str, held: dict[str, Any]) -> None:
        """A report under the permit's token: those of one permit may never go back, and none is written under a token
        that was replaced (I5)."""
        permit = f"{name}#{held['slot']}"
        report = self.item("reports", permit)
        report["payload"]["token"] = held["token"]
        written = {"op": "put", "ns": "guarded", "key": permit, "value": held["token"], "forever": True}
        operations = [{"type": "push", "items": [report]}]
        await self.peer.call("transaction", {"operations": operations, "kv": [held["guard"], written]})

    # -- timers and transactions -----------------------------------------------------------------------------------

    async def timers(self) -> None:
        """Schedule, move and cancel timers that only this worker knows."""
        ops: list[dict[str, Any]] = []
        for number in self.random.sample(range(5), self.random.randint(1, 2)):
            key = f"w{self.number}-t{number}"
            if self.random.random() < 0.3:
                ops.append({"op": "cancel", "queue": "fired", "timerKey": key, "txn": "asked"})
            else:
                delay = self.random.choice((0, 30, 150, 400, 1200, 2500))
                ops.append(schedule("fired", self.random.choice(PARTITIONS["fired"]), key, self._txn("t"), delay))
        await self.peer.call("timers", {"operations": ops})

    def _txn(self, letter: str) -> str:
        return f"{letter}{self.world.serial()}"

    async def bundle(self) -> None:
        """New work, and a transaction that settles old work."""
        if self.random.random() < 0.6:
            await self.peer.call("push", {"items": [self.item("work", self.random.choice(PARTITIONS["work"]))]})
        await self.settle(self.random.randint(1, 3))

    async def settle(self, batch: int) -> int:
        """Take some of `work`, and settle each of it in a transaction: ack, result, key and timer at once."""
        body = {"queue": "work", "consumerGroup": TX, "subscriptionMode": "all", "batch": batch, "leaseSeconds": 2}
        popped = await self.peer.call("pop", body)
        done = 0
        for messages in by_partition(popped).values():
            for message in messages:
                if not (await self._settle(message)).answer["success"]:
                    break  # to ack what comes behind it would ack it too
                done += 1
        return done

    async def _settle(self, message: dict[str, Any]) -> Call:
        source = message["transactionId"]
        ack = {"type": "ack", "consumerGroup": TX, **entry(message, "completed")}
        result = {
            "queue": "results",
            "partition": self.random.choice(PARTITIONS["results"]),
            "transactionId": f"r-{source}",
            "payload": {"txn": f"r-{source}"},
        }
        once = {"op": "putIfAbsent", "ns": "done", "key": source, "value": source, "forever": True, "required": True}
        queue, delay = self.random.choice((("soon", 100), ("soon", 600), (LATER, 3_600_000)))
        timer = schedule(queue, "s", f"b-{source}", f"b-{source}", delay)
        operations = [ack, {"type": "push", "items": [result]}]
        kv = [once]
        if self.number < WORKERS and self.random.random() < 0.1:  # not while it is drained
            kv.append({"op": "check", "ns": "done", "key": NEVER, "expect": 7, "required": True})
        return await self.peer.call("transaction", {"operations": operations, "kv": kv, "timers": [timer]})


def pair_page(pair: str) -> dict[str, Any]:
    """A call that reads a pair as a page of rows."""
    return {"operations": [{"op": "getPrefix", "ns": PAIRS_NS, "prefix": f"{pair}-", "limit": 10}]}


async def prepare(world: World, peer: Peer) -> None:
    """Configure the queues, and make the groups known; the same every time."""
    for queue, options in OPTIONS.items():
        await peer.call("configure", {"queue": queue, "options": options})


async def _work_on(world: World, number: int, life: int, peer: SocketPeer) -> None:
    await Worker(world, number, peer, life).run()


async def load(world: World, port: int, reconnects: bool = False) -> None:
    """Run the workers until their connections have died; with `reconnects` until they are cancelled."""

    async def work(number: int) -> None:
        life = 0
        while True:
            try:
                if number in SOCKET_WORKERS:
                    worker = partial(_work_on, world, number, life)
                    await on_socket(port, world.history, number, worker, world.grace)
                else:
                    async with connected(port, world.history, number, world.grace) as peer:
                        await Worker(world, number, peer, life).run()
            except Lost:
                if not reconnects:
                    return
                life += 1
                await trio.sleep(0.05)

    try:
        async with connected(port, world.history, 0) as peer:
            await prepare(world, peer)
        async with connected(port, world.history, READER) as peer:  # what the start found, also one with a fault
            for pair in PAIRS:
                await peer.call("kv", pair_page(pair))
    except Lost:
        if not reconnects:
            return
    async with trio.open_nursery() as nursery:
        for number in range(WORKERS):
            nursery.start_soon(work, number)

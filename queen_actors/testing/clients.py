"""The simulation's clients: each does random things of one kind for as long as the run lasts, and writes them down."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from decimal import Decimal
from typing import Any, Protocol, TypeVar

import trio

from queen_actors.broker import Broker
from queen_actors.domain.cursor import Ack, PopReply, PopRequest
from queen_actors.domain.kv import Check, Get, GetResult, Incr, KvOp, KvResult, Precondition, Put, WriteResult
from queen_actors.domain.locks import Acquire, LockOp, LockResult, Release, Renew
from queen_actors.domain.partition import PushItem
from queen_actors.domain.timers import Cancel, Schedule
from queen_actors.domain.transaction import Committed, Transaction

from .history import Event

T = TypeVar("T")
SECOND = 1_000_000
QUEUES = ("sim.a.x", "sim.a.y")
PARTITIONS = ("p0", "p1", "p2")
COUNTER_MAX = 40
LOCKS = ("l0", "l1")


class World(Protocol):
    """Where clients live."""

    random: random.Random

    @property
    def over(self) -> bool: ...

    async def call(
        self,
        client: str,
        op: str,
        asked: dict[str, Any],
        do: Callable[[Broker], Awaitable[T]],
        note: Callable[[T], Any],
    ) -> tuple[Event, T | None]:
        """Make a call on whatever broker is up, and write down what came of it: None when it was not answered."""
        ...


async def pause(world: World, most: float) -> None:
    await trio.sleep(world.random.choice([0.0, 0.001, world.random.random() * most]))


# -- messages ----------------------------------------------------------------------------------------------------------


def item_of(txn: str) -> PushItem:
    """One place and one payload for each transaction id, so that a repeat is a repeat."""
    place = random.Random(txn)
    return PushItem(place.choice(QUEUES), place.choice(PARTITIONS), f'"{txn}"'.encode(), txn=txn)


async def producer(world: World, name: str) -> None:
    """Pushes batches; one whose answer was lost is sent again, the same, until it is answered."""
    number = 0
    while not world.over:
        rng, items = world.random, list[PushItem]()
        for _ in range(rng.choice([1, 1, 2, 5])):
            number += rng.random() < 0.9  # else the same transaction id again
            items.append(item_of(f"{name}.{number}"))
        for _ in range(20):
            event = await push(world, name, items)
            if event.ok or (event.outcome == "refused" and rng.random() < 0.5):
                break
            await pause(world, 1)
        await pause(world, 1)


async def push(world: World, name: str, items: list[PushItem]) -> Event:
    asked = {"items": [(item.queue, item.partition, item.txn) for item in items]}
    event, _ = await world.call(
        name,
        "push",
        asked,
        lambda broker: broker.push(items),
        lambda found: [(o.txn, o.status, o.offset, o.message_id) for o in found],
    )
    return event


async def consumer(world: World, name: str, group: str, *, auto_ack: bool = False) -> None:
    """Pops, and settles what it got in one of many ways, or not at all."""
    while not world.over:
        rng = world.random
        places: list[dict[str, Any]] = [
            {"queue": rng.choice(QUEUES)},
            {"queue": rng.choice(QUEUES), "partition": rng.choice(PARTITIONS)},
            {"namespace": "sim"},
        ]
        request = PopRequest(
            **rng.choice(places),
            group=group,
            batch=rng.choice([1, 3, 20]),
            partitions=rng.choice([None, 1, 3]),
            wait=rng.choice([0, 1, 10]) * SECOND,
            lease=rng.choice([1, 2, 5]) * SECOND,
            auto_ack=auto_ack,
        )
        event, reply = await pop(world, name, request, patience=rng.choice([0.01, 1, 99]))
        if event.ok and reply is not None and reply.lease_id:
            await settle(world, name, reply)
        await pause(world, 0.5)


async def pop(world: World, name: str, request: PopRequest, patience: float = 99) -> tuple[Event, PopReply | None]:
    """A caller that gives up after its `patience` (seconds) leaves no lease behind."""
    asked = {"group": request.group, "lease": request.lease, "autoAck": request.auto_ack}

    async def do(broker: Broker) -> PopReply | None:
        with trio.move_on_after(patience):
            return await broker.pop(request)
        return None

    return await world.call(name, "pop", asked, do, noted)


def noted(reply: PopReply | None) -> Any:
    if reply is None:
        return None
    return reply.lease_id, [
        (c.queue, c.partition, c.pid, c.attempt, [(r.offset, r.txn, r.id, r.payload, r.ts) for r in c.records])
        for c in reply.claims
    ]


async def settle(world: World, name: str, reply: PopReply) -> None:
    """Acknowledges partition by partition: all, a part, with signals, late, or never."""
    rng = world.random
    for claim in reply.claims:
        await pause(world, 3)
        names = [record.txn for record in claim.records]
        if rng.random() < 0.15:
            continue
        words = ["completed"] * len(names)
        if rng.random() < 0.3:
            words = rng.choices(["completed", "failed", "retry", "dlq"], [6, 2, 2, 1], k=len(names))
        count = rng.choice([len(names), len(names), rng.randrange(len(names)) + 1])
        acks = [
            Ack(txn, claim.pid, reply.group, word, reply.lease_id)
            for txn, word in list(zip(names, words, strict=True))[:count]
        ]
        if rng.random() < 0.1:
            await release(world, name, reply.lease_id)
        await ack(world, name, acks)


async def ack(world: World, name: str, acks: list[Ack]) -> Event:
    asked = {
        "group": acks[0].group,
        "pid": acks[0].pid,
        "lease": acks[0].lease_id,
        "acks": [(a.txn, a.status) for a in acks],
    }
    event, _ = await world.call(
        name,
        "ack",
        asked,
        lambda broker: broker.ack(acks),
        lambda found: [(o.success, o.noop, o.dlq, o.lease_released) for o in found],
    )
    return event


async def release(world: World, name: str, lease: str) -> None:
    await world.call(name, "release", {"lease": lease}, lambda broker: broker.release(lease), lambda count: count)


# -- keys, locks, timers, transactions ---------------------------------------------------------------------------------


def noted_kv(found: list[KvResult] | Precondition) -> Any:
    if isinstance(found, Precondition):
        return "precondition"
    return [_noted_result(result) for result in found]


def _noted_result(result: KvResult) -> Any:
    if isinstance(result, WriteResult):
        return result.applied, result.value, result.version
    if isinstance(result, GetResult):
        return None if result.row is None else (result.row.value, result.row.version)
    return None


async def kv(world: World, name: str, op: str, asked: dict[str, Any], ops: list[KvOp]) -> Event:
    event, _ = await world.call(name, op, asked, lambda broker: broker.kv(ops), noted_kv)
    return event


async def keeper(world: World, name: str) -> None:
    """Counters with a bound, compare-and-set, keys that one of many may create, keys that expire."""
    number = 0
    while not world.over:
        rng, number = world.random, number + 1
        key = f"{rng.randrange(4)}"
        what = rng.randrange(5)
        if what == 0:
            op = Incr("sim", "counter", Decimal(1), None, max=Decimal(COUNTER_MAX))
            await kv(world, name, "incr", {"key": "counter"}, [op])
        elif what == 1:
            once = f"once{rng.randrange(30)}"
            await kv(world, name, "once", {"key": once}, [Put("sim", once, b"1", None, if_absent=True)])
        elif what == 2:
            read = await kv(world, name, "get", {"key": key}, [Get("sim", key)])
            if read.ok:
                expect = read.found[0][1] if read.found[0] else 0
                value = f'"{name}.{number}"'.encode()
                await pause(world, 0.1)
                asked = {"key": key, "expect": expect, "value": value}
                await kv(world, name, "cas", asked, [Put("sim", key, value, None, expect=expect)])
        elif what == 3:
            short, ttl = f"short.{name}.{number}", rng.choice([1, 2]) * SECOND
            put = await kv(world, name, "short", {"key": short, "ttl": ttl}, [Put("sim", short, b"1", ttl)])
            await trio.sleep(rng.choice([0.5, 1.5, 2.5]))
            if put.ok:
                await kv(world, name, "expiry", {"key": short, "put": (put.start, put.end, ttl)}, [Get("sim", short)])
        else:
            pair = [Put("sim", f"pair{place}", b"%d" % number, None) for place in (0, 1)]
            await kv(world, name, "pair", {"key": "pair"}, list(pair))
            await kv(world, name, "both", {"key": "pair"}, [Get("sim", "pair0"), Get("sim", "pair1")])
        await pause(world, 1)


def noted_lock(found: list[LockResult]) -> Any:
    return [(result.ok, result.token, result.already) for result in found]


async def lock_call(world: World, name: str, op: str, asked: dict[str, Any], call: LockOp) -> int:
    """The token of a grant or a renewal; 0 when there is none."""
    event, _ = await world.call(name, op, asked, lambda broker: broker.locks([call]), noted_lock)
    return event.found[0][1] if event.ok and event.found[0][0] else 0


async def locker(world: World, name: str) -> None:
    """Takes a lock, does guarded work under it, perhaps for longer than it lasts, and may give it back."""
    number = 0
    while not world.over:
        rng, number = world.random, number + 1
        lock, ttl = rng.choice(LOCKS), rng.choice([1, 3]) * SECOND
        owner = f"{name}.{number}"
        asked: dict[str, Any] = {"lock": lock, "ttl": ttl, "owner": owner}
        token = await lock_call(world, name, "acquire", asked, Acquire(lock, ttl, owner))
        if token:
            await trio.sleep(rng.choice([0.1, 2.0]))
            asked = {"lock": lock, "token": token, "ttl": ttl}
            if rng.random() < 0.3:
                renewal = Renew(lock, token, ttl, 0, owner)
                token = await lock_call(world, name, "renew", asked, renewal) or token
            await guarded(world, name, lock, token, number)
            if rng.random() < 0.7:
                await lock_call(world, name, "unlock", {**asked, "token": token}, Release(lock, token, 0))
        await pause(world, 1)


async def guarded(world: World, name: str, lock: str, token: int, number: int) -> None:
    txn = f"{name}.{number}"
    guard = Check("queen-locks", f"{lock}#0", token, required=True)
    write = Put("sim", f"guarded.{lock}", b"%d" % token, None)
    bundle = Transaction(steps=(item_of(txn),), kv=(guard, write))
    await transact(world, name, {"lock": lock, "token": token, "txns": [txn], "keys": []}, bundle)


async def transact(world: World, name: str, asked: dict[str, Any], bundle: Transaction) -> Event:
    event, _ = await world.call(
        name,
        "transaction",
        asked,
        lambda broker: broker.transaction(bundle),
        lambda found: (True, noted_kv(list(found.kv))) if isinstance(found, Committed) else (False, found.reason),
    )
    return event


async def transactor(world: World, name: str) -> None:
    """Two messages, a key and a timer, all or nothing; now and then with a condition that does not hold."""
    number = 0
    while not world.over:
        number += 1
        txns = [f"{name}.{number}.{place}" for place in (0, 1)]
        key, timer = f"all.{name}.{number}", f"{name}.{number}"
        ops: list[KvOp] = [Put("sim", key, b"1", None)]
        if world.random.random() < 0.3:
            ops.append(Check("sim", "nowhere", 1, required=True))
        bundle = Transaction(
            steps=tuple(item_of(txn) for txn in txns),
            kv=tuple(ops),
            timers=(Schedule(QUEUES[0], timer, b"1", 2 * SECOND, f"{timer}.t", PARTITIONS[0]),),
        )
        await transact(world, name, {"txns": txns, "keys": [key], "timer": f"{timer}.t"}, bundle)
        await pause(world, 2)


async def scheduler(world: World, name: str) -> None:
    """Schedules, moves and cancels timers."""
    number = 0
    while not world.over:
        rng, number = world.random, number + 1
        queue, key = rng.choice(QUEUES), f"{name}.{number}"
        for move in range(rng.choice([1, 1, 2])):
            delay = rng.choice([0, 1, 3, 8]) * SECOND
            timer = Schedule(queue, key, b'"timed"', delay, f"{key}.{move}", rng.choice(PARTITIONS))
            await schedule(world, name, timer)
            await pause(world, 2)
        if rng.random() < 0.4:
            await cancel(world, name, Cancel(queue, key))
        await pause(world, 1)


async def schedule(world: World, name: str, timer: Schedule) -> None:
    await world.call(
        name,
        "schedule",
        {"queue": timer.queue, "key": timer.key, "txn": timer.txn, "delay": timer.delay},
        lambda broker: broker.timers([timer]),
        lambda found: [(r.status, r.message_id, r.deliver_at) for r in found],
    )


async def cancel(world: World, name: str, timer: Cancel) -> None:
    await world.call(
        name,
        "cancel",
        {"queue": timer.queue, "key": timer.key},
        lambda broker: broker.timers([timer]),
        lambda found: [(r.status, r.txn) for r in found],
    )

"""The simulation's clients of keys, locks, timers and transactions."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import trio

from queen_actors.domain.cursor import Ack, PopRequest
from queen_actors.domain.kv import Check, Delete, Get, GetMany, GetPrefix, Incr, KvOp, Put
from queen_actors.domain.locks import Acquire, LockOp, Release, Renew
from queen_actors.domain.partition import PushItem
from queen_actors.domain.timers import Cancel, Schedule
from queen_actors.domain.transaction import Transaction

from .clients import PARTITIONS, QUEUES, SECOND, World, item_of, pause, pop, push
from .history import COUNTER_MAX, Event

LOCKS = ("l0", "l1")
SEMAPHORE, PERMITS = "s0", 2


async def kv(world: World, name: str, op: str, asked: dict[str, Any], ops: list[KvOp]) -> Event:
    return await world.call(name, op, asked, lambda face: face.kv(ops))


async def keeper(world: World, name: str) -> None:
    """Counters with a bound, compare-and-set, deletes, keys that one of many may create, keys that expire."""
    number = 0
    while not world.over:
        rng, number = world.random, number + 1
        what = rng.randrange(6)
        if what == 0:
            await _count(world, name)
        elif what == 1:
            once = f"once{rng.randrange(30)}"
            await kv(world, name, "once", {"key": once}, [Put("sim", once, b"1", None, if_absent=True)])
        elif what in (2, 3):
            await _compare_and_set(world, name, number)
        elif what == 4:
            await _short_lived(world, name, number)
        else:
            await _pair(world, name, number)
        await pause(world, 1)


async def _count(world: World, name: str) -> None:
    """A counter soon at its bound, with the others, at the same moment; there is a new one every half second."""
    now = trio.current_time()
    turn = int(now * 2) + 1
    await trio.sleep(turn / 2 - now)
    op = Incr("sim", f"counter{turn}", Decimal(1), None, max=Decimal(COUNTER_MAX))
    for _ in range(world.random.choice([1, 2])):
        await kv(world, name, "incr", {"key": f"counter{turn}"}, [op])


async def _compare_and_set(world: World, name: str, number: int) -> None:
    """Writes, or deletes, the version that it has just read."""
    key = f"{world.random.randrange(3)}"
    read = await kv(world, name, "get", {"key": key}, [Get("sim", key)])
    if not read.ok:
        return
    expect = read.found[0][1] if read.found[0] else 0
    await pause(world, 0.1)
    if expect and world.random.random() < 0.3:
        await kv(world, name, "cut", {"key": key, "expect": expect}, [Delete("sim", key, expect)])
        return
    value = f'"{name}.{number}"'.encode()
    asked = {"key": key, "expect": expect, "value": value}
    await kv(world, name, "cas", asked, [Put("sim", key, value, None, expect=expect)])


async def _short_lived(world: World, name: str, number: int) -> None:
    rng = world.random
    short, ttl = f"short.{name}.{number}", rng.choice([1, 2]) * SECOND
    put = await kv(world, name, "short", {"key": short, "ttl": ttl}, [Put("sim", short, b"1", ttl)])
    await trio.sleep(rng.choice([0.5, 1.5, 2.5]))
    if put.ok:
        asked = {"key": short, "put": (put.at, put.until, ttl)}
        await kv(world, name, "expiry", asked, [Get("sim", short)])


async def _pair(world: World, name: str, number: int) -> None:
    """Two keys in one call are never seen apart, however they are read."""
    value = f'"{name}.{number}"'.encode()
    await kv(world, name, "pair", {}, [Put("sim", f"pair{place}", value, None) for place in (0, 1)])
    reads: list[list[KvOp]] = [
        [Get("sim", "pair0"), Get("sim", "pair1")],
        [GetMany("sim", ("pair0", "pair1"))],
        [GetPrefix("sim", "pair", None, 10, False)],
    ]
    await kv(world, name, "both", {}, world.random.choice(reads))


async def refresher(world: World, name: str) -> None:
    """Keeps a key alive that would soon expire: whoever reads it meanwhile must find it."""
    key, version, number = f"alive.{name}", 0, 0
    while not world.over:
        number += 1
        value = f'"{number}"'.encode()
        asked = {"key": key, "expect": version, "ttl": SECOND, "value": value}
        put = await kv(world, name, "refresh", asked, [Put("sim", key, value, SECOND, expect=version)])
        if put.ok:
            version = put.found[0][2]
        since = trio.current_time() - put.start / SECOND
        await trio.sleep(max(0.01, world.random.choice([0.7, 0.95, 0.98]) - since))


async def onlooker(world: World, name: str) -> None:
    """Reads such a key again and again."""
    while not world.over:
        key = f"alive.refresher{world.random.randrange(2)}"
        await kv(world, name, "look", {"key": key}, [Get("sim", key)])
        await trio.sleep(world.random.choice([0.02, 0.1, 0.3]))


# -- locks -------------------------------------------------------------------------------------------------------------


async def lock_call(world: World, name: str, op: str, asked: dict[str, Any], call: LockOp) -> tuple[int, int]:
    """The token and the slot of a grant or a renewal; a token of 0 when there is none."""
    event = await world.call(name, op, asked, lambda face: face.locks([call]))
    return (event.found[0][1], event.found[0][3]) if event.ok and event.found[0][0] else (0, 0)


async def locker(world: World, name: str) -> None:
    """Takes a lock, perhaps after waiting for it, does guarded work under it, perhaps for longer than it lasts, and may
    give it back."""
    number = 0
    while not world.over:
        rng, number = world.random, number + 1
        lock, ttl = rng.choice([*LOCKS, SEMAPHORE]), rng.choice([1, 3]) * SECOND
        limit = PERMITS if lock == SEMAPHORE else 1
        owner = f"{name}.{number}"
        asked: dict[str, Any] = {"lock": lock, "ttl": ttl, "limit": limit, "owner": owner}
        token, slot = await _acquire(world, name, asked, Acquire(lock, ttl, owner, limit), rng.choice([0, 0, 2]))
        if token:
            await trio.sleep(rng.choice([0.0, 0.1, ttl / SECOND - 0.02, 2.0]))
            asked = {**asked, "token": token, "slot": slot}
            if rng.random() < 0.3:
                renewed, _ = await lock_call(world, name, "renew", asked, Renew(lock, token, ttl, slot, owner))
                token = renewed or token
            await _work(world, name, (lock, slot, token), number, {**asked, "token": token})
        await pause(world, 1)


async def _work(world: World, name: str, permit: tuple[str, int, int], number: int, asked: dict[str, Any]) -> None:
    """Under the lock; whoever lets go of it does not always wait for what is under way."""
    rng, (lock, slot, token) = world.random, permit
    let_go = Release(lock, token, slot)
    if world.direct(name) and rng.random() < 0.5:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(guarded, world, name, permit, number)
            nursery.start_soon(lock_call, world, name, "unlock", asked, let_go)
        return
    await guarded(world, name, permit, number)
    if rng.random() < 0.7:
        await lock_call(world, name, "unlock", asked, let_go)


async def _acquire(world: World, name: str, asked: dict[str, Any], op: Acquire, seconds: int) -> tuple[int, int]:
    if not seconds:
        return await lock_call(world, name, "acquire", asked, op)
    event = await world.call(name, "acquire", asked, lambda face: face.acquire(op, seconds * SECOND))
    return (event.found[0][1], event.found[0][3]) if event.ok and event.found[0][0] else (0, 0)


async def guarded(world: World, name: str, permit: tuple[str, int, int], number: int) -> None:
    lock, slot, token = permit
    txn = f"{name}.{number}"
    guard = Check("queen-locks", f"{lock}#{slot}", token, required=True)
    write = Put("sim", f"guarded.{lock}.{slot}", b"%d" % token, None)
    bundle = Transaction(steps=(item_of(txn),), kv=(guard, write))
    await transact(world, name, {"lock": lock, "slot": slot, "token": token, "txns": [txn], "keys": []}, bundle)


# -- transactions and timers -------------------------------------------------------------------------------------------


async def transact(world: World, name: str, asked: dict[str, Any], bundle: Transaction) -> Event:
    return await world.call(name, "transaction", asked, lambda face: face.transaction(bundle))


async def transactor(world: World, name: str) -> None:
    """Two messages, a key and a timer, all or nothing; now and then with a condition that does not hold, and then once
    more without it."""
    number = 0
    while not world.over:
        number += 1
        rng = world.random
        txns = [f"{name}.{number}.{place}" for place in (0, 1)]
        key, timer = f"all.{name}.{number}", f"{name}.{number}"
        write: list[KvOp] = [Put("sim", key, b"1", None)]
        lost: list[KvOp] = [Check("sim", "nowhere", 1, required=True)]
        bundle = Transaction(
            steps=tuple(item_of(txn) for txn in txns),
            kv=tuple(write + lost if rng.random() < 0.4 else write),
            timers=(Schedule(QUEUES[0], timer, b"1", 2 * SECOND, f"{timer}.t", PARTITIONS[0]),),
        )
        asked = {"txns": txns, "keys": [key], "timer": f"{timer}.t"}
        event = await transact(world, name, asked, bundle)
        if event.ok and not event.found[0] and event.found[1] == "kv_precondition" and rng.random() < 0.6:
            again = Transaction(steps=bundle.steps, kv=tuple(write), timers=bundle.timers)
            await transact(world, name, {**asked, "again": True}, again)
        elif rng.random() < 0.5:
            await kv(world, name, "half", {"key": key}, [Get("sim", key)])
        await pause(world, 2)


async def mover(world: World, name: str) -> None:
    """Consumes and produces in one step: each message of its source is done when what is made of it is there, once."""
    source, sink, number = f"moved.{name}", f"moved.{name}.sink", 0
    while not world.over:
        rng, number = world.random, number + 1
        txn = f"{name}.{number}"
        if rng.random() < 0.6:
            await push(world, name, [PushItem(source, "one", b"1", txn)], "moved.push")
        request = PopRequest(queue=source, partition="one", group="mover", batch=2, lease=rng.choice([1, 2]) * SECOND)
        event = await pop(world, name, request, op="moved.pop")
        if event.ok and event.found[1]:
            lease, ((_, _, pid, _, records),) = event.found
            await pause(world, 2.5)
            await _move(world, name, (lease, pid, sink), [record[1] for record in records])
        await pause(world, 0.5)


async def _move(world: World, name: str, where: tuple[str, int, str], txns: list[str]) -> None:
    lease, pid, sink = where
    acks = tuple(Ack(txn, pid, "mover", "completed", lease) for txn in txns)
    # Their ids are the transaction's own: it is the ack that keeps a message from being made twice
    made = tuple(PushItem(sink, "one", f'"{txn}"'.encode(), f"{lease}.{txn}") for txn in txns)
    asked = {"sink": sink, "of": txns, "made": [item.txn for item in made]}
    bundle = Transaction(steps=(*acks, *made))
    await world.call(name, "moved", asked, lambda face: face.transaction(bundle))


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
    asked = {"queue": timer.queue, "key": timer.key, "txn": timer.txn, "delay": timer.delay}
    await world.call(name, "schedule", asked, lambda face: face.timers([timer]))


async def cancel(world: World, name: str, timer: Cancel) -> None:
    asked = {"queue": timer.queue, "key": timer.key}
    await world.call(name, "cancel", asked, lambda face: face.timers([timer]))

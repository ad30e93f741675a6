"""The simulation's clients, and those of messages: each does random things of one kind for as long as the run lasts,
and writes them down."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import trio

from queen_actors.domain.cursor import Ack, PopRequest
from queen_actors.domain.partition import PushItem

from .faces import Face
from .history import Event

SECOND = 1_000_000
QUEUES = ("sim.a.x", "sim.a.y")
PARTITIONS = ("p0", "p1", "p2")
FOREVER = 99.0


class World(Protocol):
    """Where clients live."""

    random: random.Random

    @property
    def over(self) -> bool: ...

    def direct(self, client: str) -> bool:
        """Does it call the broker in its own process? Then a call that it gives up is over at once."""
        ...

    def note(self, client: str, op: str, asked: dict[str, Any], found: Any = None, start: int | None = None) -> None:
        """Write down what happened without a call: now, or since `start` (microseconds of true time)."""
        ...

    def afterwards(self, do: Callable[[], Awaitable[None]]) -> None:
        """Have this done when all is calm, after everything has drained."""
        ...

    async def call(self, client: str, op: str, asked: dict[str, Any], do: Callable[[Face], Awaitable[Any]]) -> Event:
        """Make a call on whatever broker is up, by the client's own way in, and write down what came of it."""
        ...


async def pause(world: World, most: float) -> None:
    await trio.sleep(world.random.choice([0.0, 0.001, world.random.random() * most]))


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


async def push(world: World, name: str, items: list[PushItem], op: str = "push") -> Event:
    asked = {"items": [(item.queue, item.partition, item.txn) for item in items]}
    return await world.call(name, op, asked, lambda face: face.push(items))


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
        event = await pop(world, name, request, patience=rng.choice([0.01, 1, FOREVER]))
        if event.ok and event.found is not None and event.found[0]:
            await settle(world, name, group, event.found)
        await pause(world, 0.5)


async def pop(world: World, name: str, request: PopRequest, patience: float = FOREVER, op: str = "pop") -> Event:
    """A caller that gives up after its `patience` (seconds) leaves no lease behind; it found None."""
    asked = {"group": request.group, "lease": request.lease, "wait": request.wait, "direct": world.direct(name)}

    async def do(face: Face) -> Any:
        with trio.move_on_after(patience):
            return await face.pop(request)
        return None

    return await world.call(name, op, asked, do)


async def settle(world: World, name: str, group: str, found: Any) -> None:
    """Acknowledges partition by partition: all, a part, with signals, late, after an extension, or never."""
    rng, (lease, claims) = world.random, found
    for _, _, pid, _, records in claims:
        if rng.random() < 0.2:
            await extend(world, name, lease, rng.choice([1, 3]))
        await pause(world, 3)
        names = [record[1] for record in records]
        if rng.random() < 0.15:
            continue
        words = ["completed"] * len(names)
        if rng.random() < 0.3:
            words = rng.choices(["completed", "failed", "retry", "dlq"], [6, 2, 2, 1], k=len(names))
        count = rng.choice([len(names), len(names), rng.randrange(len(names)) + 1])
        pairs = list(zip(names, words, strict=True))[:count]
        if rng.random() < 0.1:
            await release(world, name, lease)
        await ack(world, name, [Ack(txn, pid, group, word, lease) for txn, word in pairs])


async def ack(world: World, name: str, acks: list[Ack], op: str = "ack") -> Event:
    asked = {
        "group": acks[0].group,
        "pid": acks[0].pid,
        "lease": acks[0].lease_id,
        "acks": [(a.txn, a.status) for a in acks],
    }
    return await world.call(name, op, asked, lambda face: face.ack(acks))


async def release(world: World, name: str, lease: str, op: str = "release") -> Event:
    return await world.call(name, op, {"lease": lease}, lambda face: face.release(lease))


async def extend(world: World, name: str, lease: str, seconds: int, op: str = "extend") -> Event:
    asked = {"lease": lease, "seconds": seconds}
    return await world.call(name, op, asked, lambda face: face.extend(lease, seconds))


# -- a partition of one's own ------------------------------------------------------------------------------------------

SOLO = "solo"


class _Solo:
    """What the only client of a partition and group remembers, to ask for what is worth asking."""

    def __init__(self) -> None:
        self.sent = 0
        self.lease = ""
        self.pid = 0
        self.delivered: list[Any] = []
        self.known: dict[int, Any] = {}


async def soloist(world: World, name: str) -> None:
    """The only producer and the only consumer of one queue: what it may be answered is known to the letter."""
    mine, queue = _Solo(), f"{SOLO}.{name}"
    while not world.over:
        rng = world.random
        what = rng.choice(["push", "pop", "pop", "ack", "ack", "quit", "extend", "release", "seek", "beyond", "late"])
        if what == "push":
            await _push_until_answered(world, name, queue, mine, rng.choice([1, 1, 3]))
        elif what in ("pop", "quit"):
            await _pop_alone(world, name, queue, mine, quit=what == "quit")
        elif what == "seek":
            stamps = sorted({record[4] for record in mine.known.values()})
            to = rng.choice([None, 0, *stamps, *stamps])
            await _seek(world, name, queue, to)
        elif mine.lease:
            await _settle_alone(world, name, mine, what)
        await pause(world, 0.5)
    await _push_until_answered(world, name, queue, mine, 1)


async def _seek(world: World, name: str, queue: str, to: int | None) -> None:
    await world.call(name, "solo.seek", {"to": to}, lambda face: face.seek(name, queue, to))


async def _push_until_answered(world: World, name: str, queue: str, mine: _Solo, count: int) -> None:
    items = [PushItem(queue, "one", b'"%d"' % n, f"{name}.{n}") for n in range(mine.sent, mine.sent + count)]
    mine.sent += count
    while not (await push(world, name, items, "solo.push")).ok:
        await pause(world, 1)


async def _pop_alone(world: World, name: str, queue: str, mine: _Solo, *, quit: bool) -> None:
    rng = world.random
    request = PopRequest(
        queue=queue,
        partition="one",
        group=name,
        batch=rng.choice([1, 2, 5]),
        lease=rng.choice([1, 2]) * SECOND,
        wait=rng.choice([0, 0, 1]) * SECOND,
    )
    event = await pop(world, name, request, rng.choice([0.0, 0.01, 0.05]) if quit else FOREVER, "solo.pop")
    if event.ok and event.found is not None and event.found[1]:
        mine.lease, ((_, _, mine.pid, _, mine.delivered),) = event.found
        mine.known.update((record[0], record) for record in mine.delivered)


async def _settle_alone(world: World, name: str, mine: _Solo, what: str) -> None:
    rng, lease = world.random, mine.lease
    txns = [record[1] for record in mine.delivered]
    if what == "extend":
        await extend(world, name, lease, rng.choice([1, 2]), "solo.extend")
        return
    if what == "release":
        await release(world, name, lease, "solo.release")
        return
    if what == "late":
        await trio.sleep(rng.choice([0.9, 1.1, 2.5]))
    word = "completed"
    if what == "beyond":
        txns = [f"{name}.{mine.sent - 1}"]
    elif rng.random() < 0.15:
        word = "retry"
    elif rng.random() < 0.3:
        txns = txns[: rng.randrange(len(txns)) + 1]
    await ack(world, name, [Ack(txn, mine.pid, name, word, lease) for txn in txns], "solo.ack")

"""The simulation's clients of subscriptions, of queues that come and go, and of streaming queries."""

from __future__ import annotations

from typing import Any

import trio

from queen_actors.domain.cursor import Ack, PopRequest
from queen_actors.domain.partition import PushItem
from queen_actors.domain.streams import Cycle, PositionAck, Register, StateOp
from queen_actors.domain.subscription import Terms

from .clients import QUEUES, SECOND, World, ack, pause, pop, push
from .faces import Face

CHURN = "churn"


async def subscriber(world: World, name: str, group: str) -> None:
    """Subscribes for a while, and settles most of what it is given; at the end of a connection all of it goes back."""
    while not world.over:
        session = _Session(world, name, group)
        await world.call(name, "subscription", {"group": group}, session.run)
        session.end()
        await pause(world, 1)


class _Session:
    """One subscription, from its first message to its last."""

    def __init__(self, world: World, name: str, group: str) -> None:
        rng = world.random
        self._world = world
        self._name = name
        self._terms = Terms(
            queue=rng.choice(QUEUES),
            group=group,
            credit=rng.choice([1, 3, 50]),
            batch=rng.choice([1, 10]),
            lease_seconds=rng.choice([1, 3]),
        )
        self._since = int(trio.current_time() * SECOND)
        self._until = self._since
        self._leases: dict[str, None] = {}

    async def run(self, face: Face) -> None:
        with trio.move_on_after(self._world.random.choice([0.5, 3.0])) as scope:
            self._until = int(scope.deadline * SECOND)
            await face.subscribe(self._terms, self._deal)

    async def _deal(self, lease: str, claims: list[Any]) -> None:
        """A delivery; that it was claimed since the subscription began is all that is known of when."""
        world, name, group, rng = self._world, self._name, self._terms.group, self._world.random
        self._leases[lease] = None
        kept = {"lease": self._terms.lease_seconds * SECOND, "kept": True}
        world.note(name, "pop", {"group": group, **kept}, (lease, claims), self._since)
        for _, _, pid, _, records in claims:
            await pause(world, 0.5)
            count = rng.choice([0, 1, len(records), len(records)])
            if count:
                word = rng.choice(["completed", "completed", "completed", "retry"])
                await ack(world, name, [Ack(record[1], pid, group, word, lease) for record in records[:count]])

    def end(self) -> None:
        """What it had is given back from the moment at which it is told to end; that takes a commit."""
        since = min(self._until, int(trio.current_time() * SECOND))
        for lease in self._leases:
            self._world.note(self._name, "release", {"lease": lease}, start=since)


async def churner(world: World, name: str) -> None:
    """Fills a queue, reads of it, deletes it, and begins again: nothing of the one before is left."""
    queue, number = f"{CHURN}.{name}", 0
    while not world.over:
        rng = world.random
        what = rng.choice(["push", "push", "pop", "delete"])
        if what == "push":
            number += 1
            items = [PushItem(queue, "one", b"1", f"{name}.{number}")]
            await push(world, name, items, "churn.push")
        elif what == "pop":
            request = PopRequest(queue=queue, group="churner", batch=rng.choice([1, 10]), auto_ack=True)
            await pop(world, name, request, op="churn.pop")
        else:
            await world.call(name, "churn.delete", {}, lambda face: face.delete_queue(queue))
        await pause(world, 0.5)


async def streamer(world: World, name: str) -> None:
    """A streaming query that counts: state, pushes and the ack of a batch are one step, however often it is tried."""
    source, sink, number, query = f"stream.{name}", f"stream.{name}.sink", 0, None
    while not world.over:
        number += 1
        items = [PushItem(source, "one", b"1", f"{name}.{number}")]
        await push(world, name, items, "stream.push")
        if query is None:
            query = await _register(world, name, Register(name, source, "shape", sink))
        request = PopRequest(queue=source, partition="one", group=name, batch=3, lease=2 * SECOND)
        event = await pop(world, name, request, op="stream.pop")
        if query is not None and event.ok and event.found[1]:
            lease, ((_, _, pid, _, records),) = event.found
            await pause(world, 2.5)
            await _cycle(world, name, Cycle(query, pid, name, (), (), None, False), lease, [r[1] for r in records])
        await pause(world, 0.5)


async def _register(world: World, name: str, command: Register) -> str | None:
    event = await world.call(name, "stream.register", {}, lambda face: face.register(command))
    return event.found if event.ok else None


async def _cycle(world: World, name: str, empty: Cycle, lease: str, txns: list[str]) -> None:
    made = tuple(PushItem(f"stream.{name}.sink", "one", f'"{txn}"'.encode(), f"{lease}.{txn}") for txn in txns)
    ops = tuple(StateOp(txn, b"1") for txn in txns)
    done = PositionAck(txns[-1], lease, "completed", len(txns))
    cycle = Cycle(empty.query, empty.pid, empty.group, ops, made, done, True)
    for _ in range(world.random.choice([1, 1, 2])):  # sent again, it is refused
        await world.call(name, "stream.cycle", {"of": txns}, lambda face: face.cycle(cycle))


async def ephemeral(world: World, name: str) -> None:
    """Messages that no log keeps: each comes once to a group that settles it, and nothing comes that was not sent."""
    queue, number = f"short.{name}", 0
    while not world.over:
        rng = world.random
        if rng.random() < 0.5:
            number += 1
            payload = f'"{number}"'.encode()
            await _push_short(world, name, queue, payload)
        else:
            await world.call(name, "short.pop", {}, lambda face: face.pop_ephemeral(queue, "e"))
        await pause(world, 0.5)


async def _push_short(world: World, name: str, queue: str, payload: bytes) -> None:
    await world.call(name, "short.push", {"payload": payload}, lambda face: face.push_ephemeral(queue, payload))

"""The simulation's clients of dead letters, of conflation, of groups and queues that are deleted while they are
consumed, and of seeks under load."""

from __future__ import annotations

from typing import Any

import msgspec

from queen_actors.domain.cursor import Ack, PopRequest
from queen_actors.domain.partition import PushItem

from .clients import PARTITIONS, QUEUES, SECOND, World, ack, pause, pop, push

LONG = 10**6 * SECOND
"""A lease that outlives every jump of the clock."""
SEEKERS = "s"
LAST = "last"
"""Queues of which the newest message alone is wanted."""


async def _drained(world: World, name: str, queue: str, op: str, group: str) -> None:
    """The group reads all that is left of a queue."""
    request, found = PopRequest(queue=queue, group=group, batch=1000, partitions=64, auto_ack=True), True
    while found:
        event = await world.call(name, op, {"queue": queue}, lambda face: face.pop(request))
        found = event.ok and event.found[1]


# -- dead letters ------------------------------------------------------------------------------------------------------


class _Burier:
    """Consumes its queue, has some of the messages put aside, looks at them, and moves them to another queue."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name
        self._queue = f"dead.{name}"
        self._sent = 0
        self._letters: list[tuple[str, str]] = []

    async def run(self) -> None:
        world, rng = self._world, self._world.random
        while not world.over:
            what = rng.choice(["push", "push", "bury", "bury", "bury", "look", "look", "replay", "replay", "purge"])
            if what == "push":
                await self._push()
            elif what == "bury":
                await self._bury()
            elif what == "look":
                await self._look("dead.look")
            elif what == "replay" and self._letters:
                await self._replay(*rng.choice(self._letters))
            elif what == "purge" and rng.random() < 0.2:
                await self._purge()
            await pause(world, 0.5)

    async def _push(self) -> None:
        self._sent += 1
        txn = f"{self._name}.{self._sent}"
        await push(self._world, self._name, [PushItem(self._queue, "one", f'"{txn}"'.encode(), txn)], "dead.push")

    async def _bury(self) -> None:
        world, name = self._world, self._name
        request = PopRequest(queue=self._queue, partition="one", group=name, batch=3, lease=2 * SECOND)
        event = await pop(world, name, request, op="dead.pop")
        if event.ok and event.found[1]:
            lease, ((_, _, pid, _, records),) = event.found
            await pause(world, 2.5)
            words = world.random.choices(["completed", "dlq"], [1, 2], k=len(records))
            acks = [Ack(record[1], pid, name, word, lease) for record, word in zip(records, words, strict=True)]
            await ack(world, name, acks, "dead.ack")

    async def _look(self, op: str) -> None:
        fields = {"queue": self._queue, "consumerGroup": self._name, "limit": 1000}
        event = await self._world.call(self._name, op, {}, lambda face: face.ask("dead", fields))
        if event.ok:
            _, body = event.found
            event.found = [
                (letter["id"], letter["transactionId"], msgspec.json.encode(letter["data"]))
                for letter in body["messages"]
            ]
            self._letters = [letter[:2] for letter in event.found]

    async def _purge(self) -> None:
        fields = {"queue": self._queue, "consumerGroup": self._name}
        await self._world.call(self._name, "dead.purge", {}, lambda face: face.ask("dead.purge", fields))

    async def _replay(self, letter: str, txn: str) -> None:
        fields = {"letter": letter, "queue": f"{self._queue}.again", "partition": "one"}
        asked = {"letter": letter, "txn": txn}
        event = await self._world.call(self._name, "dead.replay", asked, lambda face: face.ask("dead.replay", fields))
        if event.ok:
            status, body = event.found
            event.found = body["result"] if status == 200 else "gone"

    async def rest(self) -> None:
        await _drained(self._world, self._name, f"{self._queue}.again", "dead.again", "rest")
        await self._look("dead.end")


async def burier(world: World, name: str) -> None:
    """See `_Burier`."""
    mine = _Burier(world, name)
    world.afterwards(mine.rest)
    await mine.run()


# -- conflation --------------------------------------------------------------------------------------------------------


async def conflater(world: World, name: str) -> None:
    """The only client of a queue whose group wants the latest message only."""
    queue, sent = f"{LAST}.{name}", 0

    async def claim(op: str) -> Any:
        fields = {"queue": queue, "consumerGroup": name, "conflation": "true", "batch": 5, "leaseSeconds": 2}
        event = await world.call(name, op, {}, lambda face: face.ask("pop", fields))
        if not event.ok:
            return None
        body: dict[str, Any] = event.found[1] or {}
        messages = [(m["offset"], m["transactionId"], int(m["partitionId"])) for m in body.get("messages", [])]
        event.found = (body.get("conflation", False), body.get("leaseId", ""), messages)
        return event.found

    async def rest() -> None:
        await claim("last.end")

    world.afterwards(rest)
    while not world.over:
        if world.random.random() < 0.5:
            count = world.random.choice([1, 2, 4])
            items = [PushItem(queue, "one", b'"%d"' % n, f"{name}.{n}") for n in range(sent, sent + count)]
            sent += count
            while not (await push(world, name, items, "last.push")).ok:
                await pause(world, 1)
        elif (found := await claim("last.pop")) and found[2]:
            _, lease, ((_, txn, pid),) = found[0], found[1], found[2][:1]
            await pause(world, 2.5)
            if world.random.random() < 0.8:
                await ack(world, name, [Ack(txn, pid, name, "completed", lease)], "last.ack")
        await pause(world, 0.5)


# -- what is deleted while it is consumed ------------------------------------------------------------------------------


async def forgetter(world: World, name: str) -> None:
    """The only client of a queue: whenever it likes, its group or the whole queue is deleted, whatever is leased."""
    queue, sent, held = f"forgot.{name}", 0, None

    async def forget(op: str) -> None:
        await world.call(name, op, {}, lambda face: face.delete_group(name, queue))

    async def rest() -> None:
        await forget("forgot.group")
        await _drained(world, name, queue, "forgot.end", name)
        world.note(name, "forgot.all", {})

    world.afterwards(rest)
    while not world.over:
        what = world.random.choice(["push", "push", "push", "pop", "pop", "ack", "ack", "group", "queue"])
        if what == "push":
            sent += 1
            await push(world, name, [PushItem(queue, "one", b"1", f"{name}.{sent}")], "forgot.push")
        elif what == "pop":
            request = PopRequest(queue=queue, partition="one", group=name, batch=2, lease=LONG)
            event = await pop(world, name, request, op="forgot.pop")
            held = event.found if event.ok and event.found[1] else held
        elif what == "ack" and held is not None:
            lease, ((_, _, pid, _, records),) = held
            await ack(world, name, [Ack(record[1], pid, name, "completed", lease) for record in records], "forgot.ack")
        elif what == "group":
            await forget("forgot.group")
        elif what == "queue" and world.random.random() < 0.5:
            await world.call(name, "forgot.queue", {}, lambda face: face.delete_queue(queue))
        await pause(world, 0.5)


# -- seeks under load --------------------------------------------------------------------------------------------------


async def seeker(world: World, name: str) -> None:
    """Several consume one group of the shared queues, and each moves it back and forth under the others' leases."""
    stamps = [0]

    async def seek(op: str, queue: str, to: int | None) -> None:
        await world.call(name, op, {"queue": queue, "to": to}, lambda face: face.seek(SEEKERS, queue, to))

    async def rest() -> None:
        for queue in QUEUES if name.endswith("0") else ():
            await seek("seek.last", queue, 0)
            await _drained(world, name, queue, "seek.end", SEEKERS)

    world.afterwards(rest)
    while not world.over:
        rng, queue = world.random, world.random.choice(QUEUES)
        if rng.random() < 0.25:
            await seek("seek.to", queue, rng.choice([None, 0, *stamps]))
        else:
            partition = rng.choice([None, *PARTITIONS])
            lease = rng.choice([1, 3]) * SECOND
            request = PopRequest(queue=queue, partition=partition, group=SEEKERS, batch=rng.choice([1, 5]), lease=lease)
            event = await pop(world, name, request, op="seek.pop")
            for _, _, pid, _, records in event.found[1] if event.ok else ():
                stamps.append(records[0][4])
                await pause(world, 1)
                acks = [Ack(record[1], pid, SEEKERS, "completed", event.found[0]) for record in records]
                await ack(world, name, acks, "seek.ack")
        await pause(world, 0.5)

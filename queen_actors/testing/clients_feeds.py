"""The simulation's readers on the WebSocket: tails over a shared queue and over one whose messages grow old, and
watches over keys. Each goes on, on a new connection, exactly where it was cut off."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import trio

from queen_actors.domain.cursor import Ack, PopRequest
from queen_actors.domain.kv import GetPrefix, KvOp, Put
from queen_actors.domain.partition import PushItem

from .clients import QUEUES, SECOND, World, ack, pause, pop, push
from .clients_state import kv
from .faces import Face
from .remote import instant

AGED = "aged"
AGE_SECONDS = 2
"""What retention leaves of the queues of `ager`: by its three options in turn."""
AGERS = ("any", "done", "wait")
Heard = Callable[[dict[str, Any]], None]


def _records(event: dict[str, Any]) -> list[Any]:
    """A tail's messages as those of a pop."""
    return [
        (m["offset"], m["transactionId"], m["id"], msgspec.json.encode(m["data"]), instant(m["createdAt"]))
        for m in event["messages"]
    ]


class Tail:
    """Reads a queue from its start to now, and on. `next` is what it has not seen, by partition."""

    def __init__(self, world: World, name: str, queue: str, op: str) -> None:
        self._world = world
        self._name = name
        self._queue = queue
        self._op = op
        self.next: dict[str, int] = {}

    async def read(self, seconds: float) -> None:
        """One connection's reading; at its end, however it comes, `next` is what was not seen."""
        credit = self._world.random.choice([2, 10, 1000])
        start = dict(self.next)
        fields = {"sub": "t", "queue": self._queue, "from": start or "start", "credit": credit}

        async def do(face: Face) -> None:
            try:
                with trio.move_on_after(seconds):
                    await face.ask("tail", fields)
                    self._note("begun", start, None)
                    owed = 0
                    while True:
                        owed += self._hear(await face.event())
                        if owed * 2 > credit:
                            await face.ask("credit", {"sub": "t", "add": owed})
                            owed = 0
            finally:
                face.hang_up()

        await self._world.call(self._name, f"{self._op}.session", {"queue": self._queue, "from": start}, do)

    def _note(self, what: str, asked: dict[str, Any], found: Any) -> None:
        self._world.note(self._name, f"{self._op}.{what}", asked, found)

    def _hear(self, event: dict[str, Any]) -> int:
        if event["event"] == "gap":
            self._note("gap", {"partition": event["partition"]}, (event["from"], event["to"]))
            self.next[event["partition"]] = event["to"] + 1
            return 0
        if event["event"] != "messages":
            return 0
        records = _records(event)
        asked = {"partition": event["partition"], "pid": int(event["partitionId"])}
        self._note("read", asked, records)
        self.next[event["partition"]] = records[-1][0] + 1
        return len(records)


async def tailer(world: World, name: str) -> None:
    """Reads a shared queue; it is to see every message of it once, in order, and nothing that is not in the log."""
    tail = Tail(world, name, QUEUES[int(name[-1]) % len(QUEUES)], "tail")

    async def rest() -> None:
        await tail.read(3)
        world.note(name, "tail.end", {"queue": QUEUES[int(name[-1]) % len(QUEUES)]})

    world.afterwards(rest)
    while not world.over:
        await tail.read(world.random.choice([0.2, 1.0, 3.0]))
        await pause(world, 1)


# -- messages that grow old --------------------------------------------------------------------------------------------


def ager(kind: str) -> Callable[[World, str], Awaitable[None]]:
    return lambda world, name: _Ager(world, name, kind).run()


def aged_options(kind: str) -> dict[str, Any]:
    """What the queue of such a client is configured with."""
    return {
        "any": {"retention_enabled": True, "retention_seconds": AGE_SECONDS},
        "done": {"retention_enabled": True, "completed_retention_seconds": AGE_SECONDS},
        "wait": {"max_wait_seconds": AGE_SECONDS},
    }[kind]


class _Ager:
    """The only client of a queue with an age limit: pushes, consumes, and reads again what may be gone."""

    def __init__(self, world: World, name: str, kind: str) -> None:
        self._world = world
        self._name = name
        self._queue = f"{AGED}.{name}"
        self._kind = kind
        self._sent = 0
        world.afterwards(self._rest)

    async def run(self) -> None:
        world = self._world
        while not world.over:
            what = world.random.choice(["push", "push", "consume", "consume", "read", "wait"])
            if what == "push":
                await self._push(world.random.choice([1, 3]))
            elif what == "consume":
                await self._consume()
            elif what == "read":
                await self._read(world.random.randrange(self._sent + 1), 0.3)
            else:
                await trio.sleep(world.random.choice([1, 3]))
            await pause(world, 0.5)
        await self._push(1)

    async def _push(self, count: int) -> None:
        numbers = range(self._sent, self._sent + count)
        items = [PushItem(self._queue, "one", b'"%d"' % n, f"{self._name}.{n}") for n in numbers]
        self._sent += count
        while not (await push(self._world, self._name, items, "aged.push")).ok:
            await pause(self._world, 1)

    async def _consume(self) -> None:
        world, name = self._world, self._name
        batch = world.random.choice([1, 2, 10])
        request = PopRequest(queue=self._queue, partition="one", group=name, batch=batch, lease=2 * SECOND)
        event = await pop(world, name, request, op="aged.pop")
        if event.ok and event.found[1]:
            lease, ((_, _, pid, _, records),) = event.found
            await pause(world, 0.5)
            await ack(world, name, [Ack(record[1], pid, name, "completed", lease) for record in records], "aged.ack")

    async def _read(self, start: int, seconds: float) -> None:
        tail = Tail(self._world, self._name, self._queue, "aged")
        tail.next["one"] = start
        await tail.read(seconds)

    async def _rest(self) -> None:
        await self._read(0, 2)
        self._world.note(self._name, "aged.end", {"kind": self._kind})


# -- keys as they change -----------------------------------------------------------------------------------------------


class _Watch:
    """What is watched, the picture of it that was told, and the version from which the next connection goes on."""

    def __init__(self, world: World, name: str, prefix: str) -> None:
        self._world = world
        self._name = name
        self._prefix = prefix
        self._seen: int | None = None

    async def session(self, seconds: float) -> None:
        since = self._seen if self._world.random.random() < 0.8 else None
        fields: dict[str, Any] = {"watch": "w", "ns": "sim", "prefix": self._prefix}
        if since is not None:
            fields["fromVersion"] = since
        asked = {"prefix": self._prefix, "from": since}

        async def do(face: Face) -> None:
            try:
                with trio.move_on_after(seconds):
                    status, begun = await face.ask("watch", fields)
                    assert status == 200, begun
                    rows = _rows(begun["rows"]) if "rows" in begun else None
                    self._world.note(self._name, "watch.begun", asked, (begun["version"], rows))
                    self._seen = begun["version"] if since is None else since
                    while True:
                        self._hear(await face.event())
            finally:
                face.hang_up()

        await self._world.call(self._name, "watch.session", asked, do)

    def _hear(self, event: dict[str, Any]) -> None:
        if event["event"] != "kv":
            return
        changes = [
            (c["op"], c["key"], None if c["value"] is None else msgspec.json.encode(c["value"]), c["version"])
            for c in event["changes"]
        ]
        rows = _rows(event["rows"]) if event.get("gap") else None
        found = {"changes": changes, "coalesced": event.get("coalesced", False), "rows": rows}
        found["version"] = event.get("version", max((change[3] for change in changes), default=0))
        self._world.note(self._name, "watch.told", {"prefix": self._prefix}, found)
        self._seen = max(self._seen or 0, found["version"])


def _rows(rows: list[dict[str, Any]]) -> list[Any]:
    return [(row["key"], msgspec.json.encode(row["value"]), row["version"]) for row in rows]


async def watcher(world: World, name: str) -> None:
    """Watches keys that others write; in the end the picture that it was told is what is there."""
    prefix = world.random.choice(["many", "many", "alive.", "short.", "pair", "counter", "once"])
    watch = _Watch(world, name, prefix)

    async def rest() -> None:
        await watch.session(3)
        await kv(world, name, "watch.end", {"prefix": prefix}, [GetPrefix("sim", prefix, None, 1000, False)])

    world.afterwards(rest)
    while not world.over:
        await watch.session(world.random.choice([0.5, 2.0, 5.0]))
        await pause(world, 1)


async def scribbler(world: World, name: str) -> None:
    """Writes two keys over and over, many calls at once: whoever watches them falls behind."""
    number = 0
    while not world.over:
        async with trio.open_nursery() as nursery:
            for _ in range(world.random.choice([1, 4, 6])):
                number += 1
                key, value = f"many{world.random.randrange(2)}", f'"{name}.{number}"'.encode()
                ops: list[KvOp] = [Put("sim", key, value, None)]
                nursery.start_soon(kv, world, name, "scribble", {"key": key, "value": value}, ops)
        await pause(world, 1)

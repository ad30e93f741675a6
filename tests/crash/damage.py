"""Damage at rest: a bit, a block, an end, a whole file of a data directory is wrong, and then it is opened.

Either the open refuses, says what can be done, and leaves every file as it is; or everything is there. Of a directory
whose process was killed the last commits may be missing instead, as a torn end would be: that is then the state after
one of the commits before.
"""

from __future__ import annotations

import os
import random
import re
import shutil
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import trio

from queen_actors.api import Api, Request
from queen_actors.broker import Broker, running
from queen_actors.config import Settings
from queen_actors.errors import DataDirectoryError
from queen_actors.storage import DurableStore
from queen_actors.testing.state import state_of

from .summary import Summary

PARTITIONS = 3
SEALED_PARTS = 4
HELPFUL = ("backup", "choose", "version", "give it the name", "doctor")
"""One of these is in every refusal: what to do."""
CUT = re.compile(r"truncate the file to (\d+) bytes, and delete the file POSITION")
DELETE = "delete the file POSITION"

Damage = Callable[[random.Random, Path], None]


class Directory(NamedTuple):
    """A data directory, and what may be found in it: all of it, or after a crash also what was there some commits
    before. `given_up`: what may be there when its newest journal was cut, as a refusal says that one can."""

    path: Path
    whole: bytes
    earlier: frozenset[bytes]
    given_up: frozenset[bytes]


# -- directories -------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _opened(
    path: Path, kind: type[DurableStore] = DurableStore
) -> AsyncGenerator[tuple[DurableStore, Broker, Api]]:
    store, settings = kind(str(path), roll_seconds=3600, memory_limit_mb=128), Settings(data=str(path))
    async with running(store, settings) as broker:
        yield store, broker, Api(broker, settings)


async def _ask(api: Api, path: str, body: Any) -> Any:
    reply = await api.handle(Request("POST", path.encode(), b"", {}, msgspec.json.encode(body)))
    assert reply.status < 300, (path, reply)
    return msgspec.json.decode(reply.body)


async def contents(broker: Broker, api: Api) -> bytes:
    """Everything that is there, the messages by reading them."""
    messages: list[Any] = []
    for number in range(PARTITIONS):
        offset, mark = 0, 1
        while offset < mark:
            entry = {"queue": "q", "partition": f"p{number}", "offset": offset}
            (told,) = (await _ask(api, "/api/v1/fetch", {"entries": [entry]}))["entries"]
            mark = told.get("highWatermark", 0)
            messages += told.get("records", [])
            offset += len(told.get("records", [])) or mark
    return repr(state_of(broker)).encode() + msgspec.json.encode(messages)


class _Writer:
    """A little of everything."""

    def __init__(self) -> None:
        self._serial = 0

    async def one(self, api: Api) -> None:
        """All `steps` of a turn."""
        async for _ in self.steps(api):
            pass

    async def steps(self, api: Api) -> AsyncGenerator[None]:
        """A push of a few messages, a key, sometimes a lock, a timer, a lease and its ack: a commit each."""
        self._serial += 1
        number = self._serial
        items = [
            {"queue": "q", "partition": f"p{place}", "transactionId": f"t{number}-{place}", "payload": "x" * number}
            for place in range(PARTITIONS)
        ]
        keys = [{"op": "put", "ns": "n", "key": f"k{number % 7}", "value": {"n": number}, "forever": True}]
        await _ask(api, "/api/v1/transaction", {"operations": [{"type": "push", "items": items}], "kv": keys})
        yield
        if number % 3 == 0:
            acquire = {"op": "acquire", "name": f"l{number % 2}", "ttlSeconds": 86_000, "owner": "o"}
            await _ask(api, "/api/v1/locks", {"operations": [acquire]})
            yield
            timer = {"op": "schedule", "queue": "later", "timerKey": f"k{number}", "delayMs": 80_000_000}
            await _ask(api, "/api/v1/timers", {"operations": [{**timer, "txn": f"t{number}", "payload": "MQ=="}]})
            yield
        if number % 5 == 0:
            query = b"batch=2&consumerGroup=g&subscriptionMode=all"
            reply = await api.handle(Request("GET", b"/api/v1/pop/queue/q", query, {}, b""))
            yield
            acks = [
                {name: message[name] for name in ("transactionId", "partitionId", "leaseId")} | {"status": "completed"}
                for message in msgspec.json.decode(reply.body)["messages"]
            ]
            await _ask(api, "/api/v1/ack/batch", {"acknowledgments": acks, "consumerGroup": "g"})
            yield


class _Unsealing(DurableStore):
    """It leaves every journal as it is, as a process that dies soon after its start does."""

    async def maintain(self, evict: object) -> None:
        await trio.sleep_forever()


async def directories(place: Path) -> list[Directory]:
    """One that was closed, one that was copied from under a running process, and one of several journals."""
    closed, killed, unsealed = place / "closed", place / "killed", place / "unsealed"
    states: list[bytes] = []
    async with _opened(closed) as (store, broker, api):
        writer = _Writer()
        for part in range(SEALED_PARTS):
            for _ in range(10):
                await writer.one(api)
            await broker.seal()
            if part == SEALED_PARTS // 2:
                assert store._open is not None
                await store._open.upkeep.take_snapshot()
        states.append(await contents(broker, api))  # nothing of the newest journal may be left
        for _ in range(8):
            states += [await contents(broker, api) async for _ in writer.steps(api)]
        shutil.copytree(closed, killed, ignore=shutil.ignore_patterns("spill"))
    shutil.copytree(closed, unsealed, ignore=shutil.ignore_patterns("spill"))
    last: list[bytes] = []
    for _ in range(3):
        async with _opened(unsealed, _Unsealing) as (_, broker, api):
            last = [await contents(broker, api)]
            for _ in range(4):
                last += [await contents(broker, api) async for _ in writer.steps(api)]
    before = frozenset(states)
    return [
        Directory(closed, states[-1], frozenset(), before),
        Directory(killed, states[-1], frozenset(states[:-1]), before),
        Directory(unsealed, last[-1], frozenset(), frozenset(last)),
    ]


# -- damage ------------------------------------------------------------------------------------------------------------


def _change(path: Path, change: Callable[[bytearray], None]) -> None:
    content = bytearray(path.read_bytes())
    change(content)
    path.write_bytes(content)


def _flip(chance: random.Random, path: Path) -> None:
    """One bit, in the bytes that are not the zeros at the end more often than not."""

    def change(content: bytearray) -> None:
        used = len(content.rstrip(b"\0")) if chance.random() < 0.9 else len(content)
        content[chance.randrange(max(used, 1))] ^= 1 << chance.randrange(8)

    _change(path, change)


def _zero(chance: random.Random, path: Path) -> None:
    """A block of zeros."""

    def change(content: bytearray) -> None:
        start = chance.randrange(max(len(content.rstrip(b"\0")), 1))
        length = min(chance.choice((1, 16, 512, 4096)), len(content) - start)
        content[start : start + length] = bytes(length)

    _change(path, change)


def _noise(chance: random.Random, path: Path) -> None:
    """A block of noise."""

    def change(content: bytearray) -> None:
        start = chance.randrange(max(len(content.rstrip(b"\0")), 1))
        length = min(chance.choice((4, 512, 4096)), len(content) - start)
        content[start : start + length] = chance.randbytes(length)

    _change(path, change)


def _cut(chance: random.Random, path: Path) -> None:
    """The end is gone."""

    def change(content: bytearray) -> None:
        used = len(content.rstrip(b"\0"))
        del content[chance.choice((0, chance.randrange(max(used, 1)), chance.randrange(max(len(content), 1)))) :]

    _change(path, change)


def _swap(chance: random.Random, path: Path) -> None:
    """A block is that of another place: a write that went astray."""

    def change(content: bytearray) -> None:
        pages = max(len(content.rstrip(b"\0")) // 512, 1)
        source, target = (512 * chance.randrange(pages) for _ in range(2))
        content[target : target + 512] = content[source : source + 512]

    _change(path, change)


def _remove(_: random.Random, path: Path) -> None:
    path.unlink()


def _grow(chance: random.Random, path: Path) -> None:
    """Noise behind the end."""
    with path.open("ab") as file:
        file.write(chance.randbytes(chance.choice((1, 100, 5000))))


DAMAGES: tuple[Damage, ...] = (_flip, _flip, _flip, _zero, _noise, _cut, _swap, _remove, _grow)


# -- trials ------------------------------------------------------------------------------------------------------------


async def trial(place: Path, directory: Directory, damage: Damage, name: str, chance: random.Random) -> str | None:
    """Open a damaged copy. What was wrong with what came of it, or None; "refused: " in front when it was refused."""
    copy = place / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(directory.path, copy)
    damage(chance, copy / name)
    before = _files(copy)
    try:
        async with _opened(copy) as (_, broker, api):
            found = await contents(broker, api)
    except DataDirectoryError as error:
        told = _judge_refusal(copy, name, before, error.detail)
        return await _followed(copy, name, directory, error.detail) or told
    except BaseException as error:
        return f"the open ended in {error!r}"
    if found == directory.whole or (found in directory.earlier and name == _newest_journal(directory.path)):
        return None
    return "it was opened, and what was in it is something else"


def _newest_journal(path: Path) -> str:
    return max(name for name in os.listdir(path) if name.startswith("journal-"))


def _files(path: Path) -> dict[str, bytes]:
    return {name: (path / name).read_bytes() for name in os.listdir(path) if name not in {"LOCK", "spill"}}


def _judge_refusal(path: Path, name: str, before: dict[str, bytes], told: str) -> str:
    after = _files(path)
    if any(after.get(kept) != content for kept, content in before.items()):
        return f"it was refused, and not every file was kept as it was: {told}"
    if str(path) not in told or not any(word in told.lower() for word in HELPFUL):
        return f"the refusal does not say which file it is and what can be done: {told}"
    return f"refused: {told}"


async def _followed(copy: Path, name: str, directory: Directory, told: str) -> str | None:
    """Do what the refusal says that one can do with the files there are. What is wrong with what comes of it, or None:
    what was not given up is served."""
    cut = CUT.search(told)
    if cut is None and DELETE not in told:
        return None
    if cut is not None:
        os.truncate(copy / name, int(cut[1]))
    (copy / "POSITION").unlink(missing_ok=True)
    try:
        async with _opened(copy) as (_, broker, api):
            found = await contents(broker, api)
    except DataDirectoryError as error:
        return f"it was refused: {told} That was done, and it was refused again: {error.detail}"
    if found == directory.whole or found in directory.given_up:
        return None
    return f"it was refused: {told} That was done, and what was in it then is something else"


async def damages(place: Path, summary: Summary, count: int) -> None:
    """So many trials, over every file of both directories in turn; stops at the first violation."""
    chance = random.Random(summary.seed)
    made = await directories(place)
    targets = [
        (directory, name) for directory in made for name in sorted(os.listdir(directory.path)) if name != "spill"
    ]
    for number in range(count):
        if number % len(targets) == 0:
            chance.shuffle(targets)
        directory, name = targets[number % len(targets)]
        damage = chance.choice(DAMAGES)
        told = await trial(place, directory, damage, name, chance)
        kind = name.partition("-")[0].lower()
        summary.counts["disk_faults"] += 1
        summary.counts[f"damaged_{kind}"] += 1
        if told is None:
            summary.counts["harmless"] += 1
        elif told.startswith("refused: "):
            summary.counts["refused"] += 1
        else:
            what = damage.__name__.strip("_")
            summary.violations.append(f"damage {number} ({what} in {name} of the {directory.path.name} one): {told}")
            return

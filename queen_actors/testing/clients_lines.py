"""The simulation's clients that stand in line for a lock on a WebSocket, and hold permits that live with it."""

from __future__ import annotations

from typing import Any

import trio

from queen_actors.domain.locks import GetLock, LockOp, Release

from .clients import SECOND, World, pause
from .clients_state import lock_call
from .faces import Face
from .history import Event

LINES = {"w0": 1, "w1": 2}
"""Locks that are waited for, and how many permits each has."""


async def waiter(world: World, name: str) -> None:
    """Stands in line for a permit, holds it for a while, hears when it is lost, and lets go of it: by a release, by the
    end of its connection, or not at all."""
    number = 0

    async def rest() -> None:
        await _session_ends(world, name)
        await _session_lives(world, name)
        await _told_when_lost(world, name)

    world.afterwards(rest)
    while not world.over:
        rng, number = world.random, number + 1
        lock = rng.choice(["w0", "w0", "w1"])
        asked: dict[str, Any] = {
            "lock": lock,
            "ttl": rng.choice([1, 2, 5]) * SECOND,
            "limit": LINES[lock],
            "owner": f"{name}.{number}",
            "wait": rng.choice([0, 2, 10]),
        }
        if rng.random() < 0.4:
            asked["session"] = True
        event = await stand_in_line(world, name, asked)
        if event.ok and event.found[0][0]:
            _, token, _, slot = event.found[0]
            held = {**asked, "token": token, "slot": slot}
            ends = rng.choice(["release", "release", "hang up", "stay"])
            await hold(world, name, held, rng.choice([0.0, 0.3, 1.5]), hang_up=ends == "hang up")
            if ends == "release":
                await lock_call(world, name, "unlock", held, Release(lock, token, slot))
        await pause(world, 0.5)


async def stand_in_line(world: World, name: str, asked: dict[str, Any]) -> Event:
    """An acquire; `asked["placed"]` is when it certainly stood in the line."""
    fields = {"name": asked["lock"], "ttlSeconds": asked["ttl"] // SECOND, "owner": asked["owner"]}
    fields |= {"limit": asked["limit"], "waitSeconds": asked["wait"], "session": asked.get("session", False)}

    def placed() -> None:
        asked["placed"] = int(trio.current_time() * SECOND)

    return await world.call(name, "acquire", asked, lambda face: face.in_line(fields, placed))


async def hold(world: World, name: str, held: dict[str, Any], seconds: float, *, hang_up: bool) -> list[Any]:
    """Listen while it is held; returns what was told of its loss."""
    told: list[Any] = []

    async def do(face: Face) -> None:
        with trio.move_on_after(seconds):
            while True:
                event = await face.event()
                if event["event"] == "lock":
                    asked = {"lock": event["name"], "token": event["token"], "slot": event["slot"]}
                    world.note(name, "lock.told", asked, event["reason"])
                    told.append(event["reason"])
        if hang_up:
            face.hang_up()
            world.note(name, "hangup", {})

    await world.call(name, "hold", {}, do)
    return told


# -- when all is calm --------------------------------------------------------------------------------------------------


def _calm(lock: str, ttl: int, owner: str, **more: Any) -> dict[str, Any]:
    return {"lock": lock, "ttl": ttl * SECOND, "limit": 1, "owner": owner, "wait": 0, **more}


async def _session_ends(world: World, name: str) -> None:
    """A permit that lives with a connection is free as soon as the connection is gone."""
    asked = _calm(f"bound.{name}", 60, "first", session=True)
    await stand_in_line(world, name, asked)
    await hold(world, name, asked, 0.1, hang_up=True)
    await trio.sleep(0.5)
    next_one = _calm(f"bound.{name}", 60, "second", calm="free")
    await stand_in_line(world, name, next_one)


async def _session_lives(world: World, name: str) -> None:
    """And it is not lost before, however short its lifetime."""
    lock = f"lives.{name}"
    asked = _calm(lock, 1, "only", session=True, calm="free")
    await stand_in_line(world, name, asked)
    told = await hold(world, name, asked, 3, hang_up=False)
    event = await world.call(name, "lives", {}, lambda face: face.locks([_who(lock)]))
    world.note(name, "lives.end", {"lock": lock}, (told, event.found))


async def _told_when_lost(world: World, name: str) -> None:
    """Whoever holds a permit that runs out hears of it."""
    asked = _calm(f"mortal.{name}", 1, "only", calm="free")
    await stand_in_line(world, name, asked)
    told = await hold(world, name, asked, 2.5, hang_up=True)
    world.note(name, "mortal.end", {"lock": asked["lock"]}, told)


def _who(lock: str) -> LockOp:
    return GetLock(lock)

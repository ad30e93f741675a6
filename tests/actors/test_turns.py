"""Turns: holds in one global order, waiting, cancellation, and the bound on waiting."""

from __future__ import annotations

import random

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from queen_actors.actors.mailbox import Key, Turns
from queen_actors.errors import Unavailable

A, B, C = ("kv", "a"), ("lock", "b"), ("partition", "c")


async def test_a_hold_keeps_others_out(autojump_clock: MockClock) -> None:
    """Whoever needs one of its keys waits; nobody else does."""
    turns, seen = Turns(), list[str]()

    async def holder() -> None:
        async with turns.hold([A, B]):
            seen.append("held")
            await trio.sleep(5)
        seen.append("released")

    async def command(name: str, key: Key) -> None:
        await turns.clear([key])
        seen.append(name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(holder)
        await wait_all_tasks_blocked()
        assert turns.busy
        nursery.start_soon(command, "a", A)
        nursery.start_soon(command, "c", C)
        await wait_all_tasks_blocked()
        assert seen == ["held", "c"]
    assert seen[2:] == ["released", "a"]
    assert not turns.busy


@pytest.mark.parametrize("seed", range(10))
async def test_no_deadlock_whatever_is_held_and_cancelled(autojump_clock: MockClock, seed: int) -> None:
    """Overlapping holds in every order, cancelled while they wait and while they hold: all end, and nothing stays
    held."""
    turns, rng = Turns(), random.Random(seed)
    inside: set[Key] = set()

    async def transaction() -> None:
        keys = rng.sample([A, B, C, ("timers", "d")], rng.randrange(1, 5))
        with trio.move_on_after(rng.choice([0.05, 0.5, 100])):
            async with turns.hold(keys):
                assert not inside & set(keys)
                inside.update(keys)
                try:
                    await trio.sleep(rng.random() * 0.1)
                finally:
                    inside.difference_update(keys)

    async def command() -> None:
        with trio.move_on_after(rng.choice([0.05, 100])):
            key = rng.choice([A, B, C])
            await turns.clear([key])
            assert key not in inside

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for _ in range(200):
                nursery.start_soon(rng.choice([transaction, command]))
                await trio.sleep(rng.random() * 0.02)
    assert not turns.busy


async def test_a_wait_has_a_bound(autojump_clock: MockClock) -> None:
    """A hold that does not end refuses those who need it, after the deadline of a call; what they took is let go."""
    turns = Turns()
    async with turns.hold([B]):
        with pytest.raises(Unavailable):
            await turns.clear([B])
        with pytest.raises(Unavailable):
            async with turns.hold([A, B]):
                pytest.fail("B is held")
        await turns.clear([A])
        assert trio.current_time() == pytest.approx(60)

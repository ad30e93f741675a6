"""An agenda: never early, in order, once; nothing outdated piles up."""

from __future__ import annotations

import random

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from queen_actors.actors.agenda import SLACK, Agenda, Deadlines
from queen_actors.actors.clock import TrioClock

SECOND = 1_000_000


async def test_it_is_never_early_and_keeps_the_order(autojump_clock: MockClock) -> None:
    """Items that are added while it waits count too; one that is asked for twice comes at the earlier instant."""
    clock = TrioClock(0)
    agenda = Agenda(clock)
    rng = random.Random(1)
    wanted: dict[tuple[str, str], int] = {}
    got: list[tuple[int, tuple[str, str]]] = []

    async def take() -> None:
        while True:
            due = await agenda.due(3)
            got.extend((clock.now(), item) for item in due)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        for number in range(200):
            item = ("x", str(rng.randrange(50)))
            at = clock.now() + rng.randrange(20 * SECOND)
            if item not in {i for _, i in got} and number < 150:
                agenda.add(at, item)
                wanted[item] = min(at, wanted.get(item, at))
            await trio.sleep(rng.random() * 0.1)
        await trio.sleep(30)
        nursery.cancel_scope.cancel()
    assert {item for _, item in got} == set(wanted)
    assert len(got) == len(wanted)
    assert all(0 <= at - wanted[item] < 1000 for at, item in got)
    assert [at for at, _ in got] == sorted(at for at, _ in got)


async def test_items_due_together_come_in_order_of_their_names(autojump_clock: MockClock) -> None:
    agenda = Agenda(TrioClock(0))
    agenda.replace((SECOND, ("q", str(number))) for number in (3, 1, 2))
    assert await agenda.due(2) == [("q", "1"), ("q", "2")]
    assert await agenda.due(2) == [("q", "3")]


async def test_what_is_discarded_does_not_come(autojump_clock: MockClock) -> None:
    agenda = Agenda(TrioClock(0))
    agenda.add(SECOND, ("q", "a"))
    agenda.add(2 * SECOND, ("q", "b"))
    agenda.discard(("q", "a"))
    agenda.discard(("q", "never"))
    assert await agenda.due(9) == [("q", "b")]
    assert len(agenda) == 0


async def test_it_lets_others_run(autojump_clock: MockClock) -> None:
    """Taking what is due is always a checkpoint."""
    agenda = Agenda(TrioClock(0))
    agenda.replace((0, ("q", str(number))) for number in range(100))
    turns = 0

    async def other() -> None:
        nonlocal turns
        while len(agenda):
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        for _ in range(100):
            await agenda.due(1)
    await wait_all_tasks_blocked()
    assert turns >= 50


def test_deadlines_stay_small() -> None:
    """However often items come, move and go: no more than twice what is wanted, and a little."""
    deadlines: Deadlines[int] = Deadlines()
    for number in range(20_000):
        deadlines.add(10**9 - number, number % 10)
        if number % 3 == 0:
            deadlines.discard(number % 10)
    assert len(deadlines._heap) <= 2 * 10 + SLACK + 1
    assert deadlines.next_at == 10**9 - 19_999 or deadlines.next_at is None
    taken = deadlines.take(10**9, 100)
    assert len(taken) == len(set(taken))
    assert len(deadlines) == 0

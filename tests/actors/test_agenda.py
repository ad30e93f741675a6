"""An agenda: never early, in order, once; nothing outdated piles up."""

from __future__ import annotations

import random

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from queen_actors.actors.agenda import SHORT, SLACK, SLOT_BITS, Agenda, Deadlines, Far
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


@pytest.mark.parametrize("seed", range(6))
async def test_what_is_far_off_comes_in_time(autojump_clock: MockClock, seed: int) -> None:
    """Items from now to days ahead that move and go in between: each comes at its last instant, never early, in
    order, no later than it takes to be woken, and only those far off are kept as such."""
    clock = TrioClock(0)
    rng = random.Random(seed)
    due: dict[tuple[str, str], int] = {}
    agenda = Agenda(clock, due.get)
    got: list[tuple[int, int, tuple[str, str]]] = []

    async def take() -> None:
        while True:
            for item in await agenda.due(7):
                assert due[item] <= clock.now(), "never early"
                got.append((due.pop(item), clock.now(), item))

    added = gone = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        for _ in range(300):
            for _ in range(rng.choice((1, 1, 20))):
                item = (rng.choice("qr"), str(rng.randrange(200)))
                before = due.get(item)
                if before is not None and rng.random() < 0.3:
                    del due[item]
                    agenda.discard(item, before)
                    gone += 1
                    continue
                added += before is None
                due[item] = clock.now() + rng.choice((1, 60, 3_600, 86_400)) * rng.randrange(1, 20) * SECOND
                agenda.add(due[item], item, before)
            assert len(agenda) == len(due)
            await trio.sleep(rng.choice((0.1, 30, 3_600)))
        assert len(agenda._far) > 10
        await trio.sleep(21 * 86_400)
        nursery.cancel_scope.cancel()
    assert (len(due), len(agenda), len(got)) == (0, 0, added - gone)
    assert max(now - at for at, now, _ in got) < 10_000
    assert [at for at, _, _ in got] == sorted(at for at, _, _ in got)


async def test_a_wait_begins_with_what_is_far_off(autojump_clock: MockClock) -> None:
    """Somebody who waits for nothing is woken in time by the first item, though it is days ahead, and by one nearer."""
    clock = TrioClock(0)
    due: dict[tuple[str, str], int] = {}
    agenda = Agenda(clock, due.get)
    got: list[tuple[str, str]] = []

    async def take() -> None:
        while True:
            got.extend(await agenda.due(1))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take)
        await wait_all_tasks_blocked()
        for name, days in (("late", 9), ("soon", 2), ("sooner", 1)):
            due["q", name] = clock.now() + days * 86_400 * SECOND
            agenda.add(due["q", name], ("q", name))
            await wait_all_tasks_blocked()
        assert agenda._far.next_slot == due["q", "sooner"] >> SLOT_BITS
        await trio.sleep(10 * 86_400)
        nursery.cancel_scope.cancel()
    assert got == [("q", "sooner"), ("q", "soon"), ("q", "late")]


def test_far_items_are_found_again() -> None:
    """Few of a slot or many: each is there once, goes when it is told to, and the emptied slots are gone."""
    far, rng = Far(), random.Random(1)
    items = [(kind, f"{number}é") for kind in "ab" for number in range(3 * SHORT)]
    rng.shuffle(items)
    for item in (*items, *items[:100]):
        far.add(5 << SLOT_BITS | 77, item)
        far.add(9 << SLOT_BITS, item)
    assert (len(far), far.next_slot) == (2 * len(items), 5)
    far.discard(6 << SLOT_BITS, items[0])
    for item in items[100:]:
        far.discard(5 << SLOT_BITS, item)
        far.discard(5 << SLOT_BITS, item)
    taken: list[tuple[str, str]] = []
    while far.next_slot == 5:
        taken += far.take(30)
    assert sorted(taken) == sorted(items[:100])
    assert (len(far), far.next_slot) == (len(items), 9)
    for item in items:
        far.discard(9 << SLOT_BITS, item)
    assert (len(far), far.next_slot, far._slots, far.take(1)) == (0, None, {}, [])

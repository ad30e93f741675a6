"""Parked pops and ready partitions: who is woken, in constant time, and what is kept of whom."""

from __future__ import annotations

import time

import pytest
import trio
from trio.testing import MockClock

from queen_actors.actors.clock import TrioClock
from queen_actors.actors.queue import Bell, GroupIndex, Waiter, Waiters
from queen_actors.domain.effects import QueueOptions, QueuePut
from queen_actors.domain.queue import QueueState


def queue(name: str = "q", namespace: str = "", task: str = "") -> QueueState:
    return QueueState(QueuePut(1, name, "uid", namespace, task, QueueOptions(), 0))


def parked(waiters: Waiters, group: str = "g", **where: str | None) -> Waiter:
    names = {"queue": None, "partition": None, "namespace": None, "task": None, **where}
    waiter = Waiter(group, names["queue"], names["partition"], names["namespace"], names["task"])
    waiters.enter(waiter)
    waiters.park(waiter)
    return waiter


async def test_who_is_woken() -> None:
    """One of each line that may want it: any partition, this one, and each way to discover the queue."""
    waiters = Waiters()
    places: list[dict[str, str | None]] = [
        {"queue": "q"},
        {"queue": "q", "partition": "p"},
        {"queue": "q", "partition": "other"},
        {"queue": "r"},
        {"namespace": "ns"},
        {"namespace": "ns", "task": "t"},
        {"task": "t"},
        {"namespace": "other"},
        {"namespace": "ns", "task": "other"},
    ]
    lines = [(parked(waiters, **place), parked(waiters, **place)) for place in places]
    strangers = [parked(waiters, "h", **place) for place in places]
    waiters.wake(queue("q", "ns", "t"), "p", "g")
    assert [first.event.is_set() for first, _ in lines] == [True, True, False, False, True, True, True, False, False]
    assert not any(second.event.is_set() for _, second in lines)
    assert not any(waiter.event.is_set() for waiter in strangers)
    waiters.wake(queue("q", "ns", "t"), "p")
    assert [second.event.is_set() for _, second in lines] == [first.event.is_set() for first, _ in lines]


async def test_a_queue_without_labels_is_found_by_none() -> None:
    waiters = Waiters()
    waiter = parked(waiters, namespace="ns")
    waiters.wake(queue(), "p")
    assert not waiter.event.is_set()


async def test_leaving_leaves_nothing() -> None:
    """Woken, timed out or cancelled: no line and no count stays."""
    waiters = Waiters()
    everybody = [parked(waiters, f"g{n % 5}", queue=f"q{n % 3}", partition=f"p{n}") for n in range(50)]
    everybody += [parked(waiters, f"g{n % 5}", namespace=f"n{n}") for n in range(50)]
    waiters.wake(queue("q1"), "p1")
    assert len(waiters) == 100
    for waiter in everybody:
        waiters.step_out(waiter)
        waiters.leave(waiter)
    assert len(waiters) == 0
    assert waiters._queues == {}
    assert waiters._discovery.groups == {}


@pytest.mark.parametrize("kind", ["partition", "namespace"])
async def test_a_wake_up_does_not_look_at_everybody(kind: str) -> None:
    """With 15,000 pops parked for other partitions, or other labels, it takes no longer."""
    waiters = Waiters()
    for number in range(15_000):
        parked(waiters, **({"queue": "q", "partition": f"p{number}"} if kind == "partition" else {kind: f"n{number}"}))
    start = time.process_time()
    for _ in range(1000):
        waiters.wake(queue("q", "x", "y"), "none")
    assert time.process_time() - start < 0.5


def test_an_index_serves_round_robin() -> None:
    """Who was looked at goes to the end; who could not be served stays first; who rests is gone."""
    index = GroupIndex("q", "g", (0, 0))
    for pid in range(4):
        index.is_ready(pid)
    seen = []
    for pid in index.round():
        index.passed(pid)
        seen.append(pid)
        if pid == 1:
            break
    assert seen == [0, 1]
    assert next(iter(index.round())) == 2
    index.rest(2)
    assert next(iter(index.round())) == 3
    index.first(1)
    assert list(index.ready) == [1, 3, 0]
    index.first(2)
    assert 2 not in index.ready


def test_an_index_of_many_is_made_as_it_is_looked_at() -> None:
    """Each partition once in a round, whether it was known to be ready or was not looked at yet."""
    index = GroupIndex("q", "g", (0, 0))
    index.is_ready(3)
    index.all_ready(range(5))
    assert index.any
    seen = []
    for pid in index.round():
        index.passed(pid)
        seen.append(pid)
        if pid == 1:
            break
    assert seen == [0, 1]
    seen.clear()
    for pid in index.round():
        index.passed(pid)
        seen.append(pid)
    assert sorted(seen) == [0, 1, 2, 3, 4]
    assert seen[0] == 2
    for pid in index.round():
        index.rest(pid)
    assert not index.any


def test_an_index_knows_when_to_look() -> None:
    """The earliest instant counts; what is due is taken out once."""
    index = GroupIndex("q", "g", (0, 0))
    index.is_ready(1)
    index.later(1, 50)
    index.later(1, 20)
    index.later(2, 30)
    assert (list(index.ready), index.next_at) == ([], 20)
    assert index.due(19, 9) == []
    assert index.due(50, 1) == [1]
    assert index.due(50, 9) == [2]
    assert index.next_at is None
    assert index.due(99, 9) == []


async def test_a_clock_runs_forward(autojump_clock: MockClock) -> None:
    """Each call later than every call before, also over a jump of the log."""
    clock = TrioClock(100)
    first = clock.now()
    clock.advance_to(1_000_000)
    assert clock.now() > 1_000_000 > first
    clock.advance_to(5)
    seen = [clock.now() for _ in range(1000)]
    assert seen == sorted(set(seen))
    await clock.sleep_until(5_000_000)
    assert clock.now() >= 5_000_000


async def test_a_bell_wakes_the_one_who_waits(autojump_clock: MockClock) -> None:
    """Set before or while somebody waits; a wait that is cancelled leaves it as it was, also when it rings at once."""
    bell, woken = Bell(), list[float]()

    async def wait() -> None:
        await bell.wait()
        woken.append(trio.current_time())

    began = trio.current_time()
    with trio.move_on_after(1) as scope:
        await bell.wait()
    assert scope.cancelled_caught
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.sleep(1)
        assert not bell.is_set()
        bell.set()
        bell.set()
    await wait()
    assert bell.is_set()
    assert [at - began for at in woken] == [2, 2]
    with trio.CancelScope() as scope:
        scope.cancel()
        await bell.wait()
    assert scope.cancelled_caught, "always a checkpoint"

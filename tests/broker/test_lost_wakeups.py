"""No wake-up is lost: while a pop is parked nothing that it may have is claimable, whatever was cancelled, timed out,
failed or passivated in between. Seeded, on virtual time (A14, A38, A63, I3)."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import trio
from broker_kit import SECOND, ack, configure, pop, push, started, txns
from trio.testing import MockClock, wait_all_tasks_blocked

from queen_actors.broker import Broker
from queen_actors.domain.cursor import Ack, PopReply
from queen_actors.domain.locks import Acquire, GetLock, LockResult, Release
from queen_actors.domain.transaction import Transaction
from queen_actors.storage.memory import Faults, MemoryStore

GROUPS = ("__QUEUE_MODE__", "g")
QUEUES = ("ns.t.a", "ns.t.b")
PARTITIONS = ("p0", "p1", "p2", "p3")


class Storm:
    """Consumers that come, wait, are cancelled and give up at random, and a world that moves under them."""

    def __init__(self, broker: Broker, store: MemoryStore, seed: int) -> None:
        self.broker = broker
        self.store = store
        self.random = random.Random(seed)
        self.count = 0
        self.delivered: Counter[str] = Counter()
        self.held: list[PopReply] = []

    async def consumer(self) -> None:
        rng = self.random
        fields = rng.choice(
            [
                {"queue": rng.choice(QUEUES)},
                {"queue": rng.choice(QUEUES), "partition": rng.choice(PARTITIONS)},
                {"queue": None, "namespace": "ns"},
                {"queue": None, "task": "t"},
            ]
        )
        group = rng.choice(GROUPS)
        with trio.move_on_after(rng.choice([0.001, 0.5, 3, 100])):
            reply = await pop(
                self.broker,
                wait=rng.choice([0, 2, 50]),
                group=group,
                batch=rng.choice([1, 1, 5]),
                partitions=rng.choice([None, 1, 3]),
                lease=rng.choice([1, 4, 9]) * SECOND,
                auto_ack=rng.random() < 0.2,
                **fields,
            )
            if reply.claims:
                self.delivered.update(f"{group}:{txn}" for txn in txns(reply))
                if reply.lease_id:
                    self.held.append(reply)

    async def act(self) -> None:
        rng, broker = self.random, self.broker
        what = rng.randrange(10)
        if what < 4:
            names = [f"m{self.count + place}" for place in range(rng.choice([1, 1, 4]))]
            self.count += len(names)
            await push(broker, *names, queue=rng.choice(QUEUES), partition=rng.choice(PARTITIONS))
        elif what < 7 and self.held:
            reply = self.held.pop(rng.randrange(len(self.held)))
            await ack(broker, reply, rng.choice(["completed", "completed", "failed", "retry"]))
        elif what == 7 and self.held:
            reply = rng.choice(self.held)
            await rng.choice([broker.release, lambda lease: broker.extend(lease, 3)])(reply.lease_id)
        elif what == 8:
            await broker.seek(rng.choice(GROUPS), rng.choice(QUEUES), rng.choice([None, *PARTITIONS]), 0)
        elif self.held:
            wrong = self.held[0]
            claim = wrong.claims[0]
            acks = (Ack(claim.records[0].txn, claim.pid, wrong.group, lease_id="wrong"),)
            await broker.transaction(Transaction(steps=acks))
        if rng.random() < 0.1:
            await self.store.seal()
            await broker.passivate()

    def claimable(self) -> list[tuple[str, str, str]]:
        """Looked up without the indexes: (queue, partition, group) that have something for somebody."""
        directory, now = self.broker._core.directory, self.broker.clock.now()
        found = []
        for queue in QUEUES:
            for name in PARTITIONS:
                partition = directory.find(queue, name)
                for group in GROUPS if partition is not None else ():
                    cursor = partition.cursors.get(group)
                    leased = cursor is not None and cursor.lease_id and cursor.lease_expires > now
                    committed = -1 if cursor is None else cursor.committed
                    if not leased and committed + 1 < partition.next_offset:
                        found.append((queue, name, group))
        return found

    def waiting(self) -> set[tuple[str | None, str | None, str]]:
        waiters = self.broker._pops.ready.waiters
        found: set[tuple[str | None, str | None, str]] = set()
        for queue, lines in waiters._queues.items():
            for group, places in lines.groups.items():
                found |= {(queue, place, group) for place in places}
        for group in waiters._discovery.groups:
            found |= {(queue, None, group) for queue in QUEUES}
        return found

    def check(self) -> None:
        waiting = self.waiting()
        for queue, partition, group in self.claimable():
            assert (queue, None, group) not in waiting, (queue, partition, group)
            assert (queue, partition, group) not in waiting


@pytest.mark.parametrize("seed", range(25))
async def test_nothing_is_claimable_while_a_pop_is_parked(autojump_clock: MockClock, seed: int) -> None:
    """After every step, when nobody can move any more: who waits, waits with reason."""
    store = MemoryStore(retain=True, faults=Faults(read_latency=0.01 if seed % 3 == 0 else 0))
    async with started(store, seed=seed) as broker, trio.open_nursery() as nursery:
        storm = Storm(broker, store, seed)
        for _ in range(120):
            for _ in range(storm.random.randrange(4)):
                nursery.start_soon(storm.consumer)
            await storm.act()
            await trio.sleep(storm.random.choice([0, 0.001, 0.05, 0.7, 2.3]))
            await trio.sleep(0.2)  # loads of sealed messages end
            await wait_all_tasks_blocked()
            storm.check()
        nursery.cancel_scope.cancel()
    assert storm.delivered


@pytest.mark.parametrize("seed", range(10))
async def test_a_cancelled_pop_leaves_no_lease(autojump_clock: MockClock, seed: int) -> None:
    """Cancelled at any instant of its claim (A02's kind): what it took is free at once, at the same attempt, and a
    parked pop has it."""
    rng = random.Random(seed)
    store = MemoryStore(retain=True, faults=Faults(latency=lambda: rng.choice([0, 0.01, 0.1])))
    async with started(store, seed=seed) as broker:
        for number in range(30):
            await push(broker, f"m{number}")
            async with trio.open_nursery() as nursery:
                with trio.move_on_after(rng.random() * 0.15):
                    await ack(broker, await pop(broker))
                reply = None
                with trio.move_on_after(5):
                    reply = await pop(broker, wait=0.5)
                if reply is not None and reply.claims:
                    assert reply.claims[0].attempt == 1
                    await ack(broker, reply)
                nursery.cancel_scope.cancel()
            assert broker._core.directory.leases == {}


async def test_a_withdrawal_that_is_refused_is_made_up_for(autojump_clock: MockClock) -> None:
    """A pop is cancelled while its claim is being written, and its withdrawal is refused: the message is there again as
    soon as there is room, at the attempt that it had."""
    faults = Faults()
    store = MemoryStore(retain=True, faults=faults)
    async with started(store) as broker:
        await configure(broker, lease_seconds=300)
        await push(broker, "m")
        faults.latency = 2.0
        with trio.move_on_after(0.5):
            await pop(broker)
        faults.full = True
        await trio.sleep(3)
        faults.full, faults.latency = False, 0.0
        reply = await pop(broker, wait=5)
        assert [claim.attempt for claim in reply.claims] == [1]


async def test_an_acquire_that_is_cancelled_as_it_is_granted_holds_nothing(autojump_clock: MockClock) -> None:
    """The permit comes free in the very step of the scheduler in which the one who waits for it is cancelled, a little
    before or a little after, whatever runs first: unless it was answered, it is free at once, and nobody stands in
    line."""
    rng = random.Random(5)
    cancelled = 0
    async with started() as broker:
        for _ in range(60):
            (held,) = await broker.locks([Acquire("l", 900 * SECOND, "w1")])
            answers: list[LockResult] = []
            async with trio.open_nursery() as nursery:
                scope = trio.CancelScope()
                nursery.start_soon(_acquire, broker, scope, answers)
                await wait_all_tasks_blocked()
                nursery.start_soon(broker.locks, [Release("l", held.token)])
                for _ in range(rng.randrange(5)):
                    await trio.lowlevel.checkpoint()
                scope.cancel()
            await trio.sleep(1)
            (lock,) = await broker.locks([GetLock("l")])
            assert [holder.token for holder in lock.holders] == [answer.token for answer in answers]
            assert broker._locks._lines == {}
            cancelled += not answers
            await broker.locks([Release("l", answer.token) for answer in answers])
    assert cancelled > 10


async def _acquire(broker: Broker, scope: trio.CancelScope, answers: list[LockResult]) -> None:
    with scope:
        answers.append(await broker.acquire(Acquire("l", 900 * SECOND, "w2"), 60 * SECOND))

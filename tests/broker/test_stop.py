"""The stop of a broker: whatever it took in is in the log, and what comes later is refused."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

import pytest
import trio
from broker_kit import pop, push, started, txns
from trio.testing import MockClock

from queen_actors.actors.subscription import subscribed
from queen_actors.broker import Broker
from queen_actors.domain.effects import Entry
from queen_actors.domain.subscription import Terms
from queen_actors.errors import Unavailable
from queen_actors.storage.memory import Faults, MemoryStore
from queen_actors.testing import run
from queen_actors.testing.state import state_of


class _Hook(MemoryStore):
    """Does something at the instant at which a commit is durable, before anybody is told."""

    do: Callable[[], None] = staticmethod(lambda: None)

    async def commit(self, entries: Sequence[Entry], done: Callable[[], None] | None = None) -> None:
        def durable() -> None:
            self.do()
            if done is not None:
                done()

        await super().commit(entries, durable)


async def test_who_is_cancelled_as_the_last_commit_ends_holds_nothing(autojump_clock: MockClock) -> None:
    """A pop whose caller goes at the instant at which its claim is durable, and the broker is stopping: what it claimed
    is given back, and the next start finds it so; its delivery does not count."""
    store = _Hook(retain=True, faults=Faults(latency=1))
    scope = trio.CancelScope()

    async def popper(broker: Broker) -> None:
        with scope:
            await pop(broker)

    async with trio.open_nursery() as nursery, started(store) as broker:
        await push(broker, "m")
        nursery.start_soon(popper, broker)
        await trio.sleep(0.5)
        store.do = scope.cancel
    assert scope.cancelled_caught
    async with started(store.reopen()) as again:
        assert state_of(again) == state_of(broker)
        reply = await pop(again)
        assert txns(reply) == ["m"]
        assert reply.claims[0].attempt == 1


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_everything_that_was_taken_in_is_in_the_log(first: int) -> None:
    """Clients go on as long as they are let, some of them cancelled at any instant: at its end the broker's state is
    that which the next start finds, and who comes later is refused."""
    for seed in range(first, first + 10):
        run(seed, partial(_stopped_under_load, random.Random(seed)))


async def _stopped_under_load(rng: random.Random) -> None:
    store = MemoryStore(retain=True, faults=Faults(latency=lambda: rng.choice([0, 0.01, 0.02])))
    refused: dict[str, str | None] = {}

    async def client(broker: Broker, name: str) -> None:
        try:
            for number in range(1000):
                with trio.move_on_after(rng.choice([0.01, 0.02, 1])):
                    await push(broker, f"{name}.{number}")
                    await pop(broker)
        except Unavailable as closed:
            refused[name] = closed.code

    async with trio.open_nursery() as nursery, started(store) as broker:
        for name in "abcde":
            nursery.start_soon(client, broker, name)
        await trio.sleep(rng.choice([0.05, 0.06, 0.1]))
    assert refused == dict.fromkeys("abcde", "closed")
    async with started(store.reopen()) as again:
        assert state_of(again) == state_of(broker)


async def test_who_has_something_to_say_at_the_end_of_a_cancelled_broker_can(autojump_clock: MockClock) -> None:
    """Cancelled from outside while nothing is under way: what is shielded from that, as the claim of an autoAck that
    is decided, is answered like anything else."""
    store = MemoryStore(retain=True)
    with trio.move_on_after(1):
        async with started(store) as broker:
            try:
                await trio.sleep_forever()
            finally:
                with trio.fail_after(1, shield=True):
                    await push(broker, "last")
    async with started(store.reopen()) as again:
        assert txns(await pop(again)) == ["last"]


async def test_a_broker_that_is_cancelled_commits_what_is_pending(autojump_clock: MockClock) -> None:
    """Cancelled from outside, with everything in it: what its consumers give back at their end is committed, and it
    does not wait for what nobody does any more."""
    store = MemoryStore(retain=True, faults=Faults(latency=1))
    start = trio.current_time()
    with trio.move_on_after(10) as outside:
        async with started(store) as broker:
            await push(broker, "m")
            terms = Terms(queue="q", group="g", credit=1, subscription_mode="all")
            async with subscribed(broker, terms) as subscription:
                await subscription.next()
                await trio.sleep_forever()
    assert outside.cancelled_caught
    assert trio.current_time() - start == 11
    log = broker.statistics().log
    assert log.position == log.committed

"""The lock handle against the real broker, on virtual time: renewal, loss, waiting, release."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from client_fakes import Asked, lost, two_clients

from queen_actors import open_broker
from queen_actors.client import ConnectionFailed, LockNotHeldError, Queen, serving
from queen_actors.values import SECOND, parse_instant


async def seconds_left(queen: Queen, name: str) -> float:
    """What is left of a lock's lifetime by the broker's own clock, which a written key tells."""
    await queen.kv.put("clock", "now", None, ttl_seconds=1)
    now = (await queen.kv.get("clock", "now")).updated_at
    (holder,) = (await queen.locks.get(name)).holders
    assert now is not None
    return (parse_instant(holder["expiresAt"]) - parse_instant(now)) / SECOND


async def test_one_holder_at_a_time(autojump_clock: object) -> None:
    """The second handle is told no, without an exception, until the first one releases."""
    async with open_broker() as queen:
        first, second = queen.lock("job"), queen.lock("job")
        assert await first.acquire()
        assert first.held
        assert first.slot == 0
        assert await first.acquire(), "asking again is no harm"
        assert not await second.acquire()
        assert second.token is None
        assert await first.release()
        assert not first.held
        assert not await first.release()
        assert await second.acquire()
        assert second.token is not None


async def test_it_is_renewed_every_third_of_its_lifetime(autojump_clock: object) -> None:
    """Held for ten lifetimes, it is still held, with a higher token after each renewal."""
    async with two_clients() as (queen, between, other):
        lock = queen.lock("job", ttl_seconds=30)
        assert await lock.acquire()
        first = lock.token
        await trio.sleep(300)
        assert lock.held
        assert 29 <= between.ops("locks").count("renew") <= 30
        assert lock.token is not None
        assert first is not None
        assert lock.token >= first + 29
        assert not await other.lock("job").acquire()
        assert not lock.lost.is_set()


async def test_the_lifetime_counts_from_the_moment_of_sending(autojump_clock: object) -> None:
    """An answer that takes 4 s of a 10 s lifetime leaves 6 s: the handle never believes longer than the broker."""
    async with two_clients() as (queen, between, other):
        lock = queen.lock("job", ttl_seconds=10, auto_renew=False)

        async def slow(asked: Asked) -> None:
            await trio.sleep(4)

        between.after = slow
        assert await lock.acquire()
        between.after = None
        assert lock.seconds_left == pytest.approx(6, abs=0.01)
        await trio.sleep(5.9)
        assert lock.held
        await trio.sleep(0.2)
        assert not lock.held
        assert await other.lock("job").acquire(), "and by then it is free at the broker too"


async def test_a_guard_of_a_lapsed_handle_is_refused_before_anything_is_sent(autojump_clock: object) -> None:
    """Its own clock knows that the lifetime is over: LockNotHeldError, and no request."""
    async with two_clients() as (queen, between, _):
        lock = queen.lock("job", ttl_seconds=2, auto_renew=False)
        assert await lock.acquire()
        await trio.sleep(2.5)
        sent = len(between.asked)
        with pytest.raises(LockNotHeldError):
            await queen.transaction().guard(lock).queue("q").push({"a": 1}).commit()
        with pytest.raises(LockNotHeldError):
            lock.guard()
        assert len(between.asked) == sent


async def test_a_lifetime_that_runs_out_is_told(autojump_clock: object) -> None:
    """`on_lost("expired")`, sync or async, and the event, when the broker cannot be asked to the end."""
    async with two_clients() as (queen, between, _):
        told: list[str] = []
        late = trio.Event()

        async def tell_later(reason: str) -> None:
            await trio.sleep(1)
            told.append(f"later {reason}")
            late.set()

        async def down(asked: Asked) -> None:
            raise lost(sent=False)

        lock = queen.lock("job", ttl_seconds=6, on_lost=told.append).on_lost(tell_later)
        assert await lock.acquire()
        between.before = down
        started = trio.current_time()
        await lock.lost.wait()
        assert trio.current_time() - started == pytest.approx(6, abs=0.01)
        assert lock.lost_reason == "expired"
        assert not lock.held
        await late.wait()
        assert told == ["expired", "later expired"]


async def test_an_outage_shorter_than_the_lifetime_loses_nothing(autojump_clock: object) -> None:
    """The renewal comes back sooner until the broker answers again."""
    async with two_clients() as (queen, between, _):
        lock = queen.lock("job", ttl_seconds=9)
        assert await lock.acquire()
        started = trio.current_time()

        async def down_for_a_while(asked: Asked) -> None:
            if trio.current_time() < started + 8:
                raise lost(sent=False)

        between.before = down_for_a_while
        await trio.sleep(60)
        assert lock.held
        assert not lock.lost.is_set()


async def test_a_renewal_that_hangs_does_not_outlive_the_lifetime(autojump_clock: object) -> None:
    """No answer at all: the loss is told at the deadline, not when the answer would have come."""
    async with two_clients() as (queen, between, _):
        lock = queen.lock("job", ttl_seconds=3)
        assert await lock.acquire()

        async def hang(asked: Asked) -> None:
            await trio.sleep(3600)

        between.before = hang
        with trio.fail_after(3.1):
            await lock.lost.wait()
        assert lock.lost_reason == "expired"
        between.before = None


async def test_a_permit_that_the_broker_would_not_renew_is_lost(autojump_clock: object) -> None:
    """An operator broke the lock by deleting its key: `renew` is the reason."""
    async with open_broker() as queen:
        lock = queen.lock("job", ttl_seconds=3)
        assert await lock.acquire()
        assert await queen.kv.delete("queen-locks", "job#0")
        with trio.fail_after(1.1):
            await lock.lost.wait()
        assert lock.lost_reason == "renew"
        assert not await lock.renew()
        assert await lock.acquire(), "and the handle can acquire again"
        assert not lock.lost.is_set()


async def test_a_handler_that_fails_harms_nobody(autojump_clock: object, caplog: pytest.LogCaptureFixture) -> None:
    """Its error is logged; the client and the other handlers go on."""
    async with open_broker() as queen:
        told: list[str] = []

        def fail(reason: str) -> None:
            raise ValueError("mine")

        lock = queen.lock("job", ttl_seconds=2, on_lost=fail, auto_renew=False).on_lost(told.append)
        assert await lock.acquire()
        await trio.sleep(3)
        assert told == ["expired"]
        assert await queen.kv.put("n", "k", 1, forever=True)
    assert "an on_lost handler failed" in caplog.text


async def test_the_same_owner_gets_the_same_permit_and_its_true_lifetime(autojump_clock: object) -> None:
    """A37: acquired again by its owner, the permit is the same and no longer than the broker says: the handle renews
    it at once instead of believing in a lifetime that did not start again."""
    async with open_broker() as queen:
        one = await queen.locks.acquire("job", ttl=10, owner="o1")
        await trio.sleep(8)
        two = await queen.locks.acquire("job", ttl=10, owner="o1")
        assert two.already
        assert (two.token, two.slot) == (one.token, one.slot)
        assert not await queen.locks.acquire("job", ttl=10, owner="o2")
        lock = queen.lock("job", ttl_seconds=10, owner="o1", auto_renew=False)
        assert await lock.acquire()
        await trio.sleep(9)
        assert lock.held
        assert not await queen.lock("job").acquire(), "the broker agrees: it was renewed"


async def test_a_lost_answer_to_an_acquire_does_not_lock_out_its_own_handle(autojump_clock: object) -> None:
    """A37: the broker granted, the answer was lost; the handle's next try gets the permit, not `held`."""
    async with two_clients() as (queen, between, _):
        losses = 1

        async def lose_one(asked: Asked) -> None:
            nonlocal losses
            if losses:
                losses -= 1
                raise lost(sent=True)

        between.after = lose_one
        lock = queen.lock("job")
        with pytest.raises(ConnectionFailed):
            await lock.acquire()
        assert not lock.held
        assert await lock.acquire()
        assert lock.held


async def test_a_lifetime_starts_at_the_grant(autojump_clock: object) -> None:
    """A34: a waiter that waited longer than the lifetime holds all of it when its turn comes."""
    async with open_broker() as queen:
        first = queen.lock("job", ttl_seconds=10)
        assert await first.acquire()
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def release_later() -> None:
                await trio.sleep(2)
                await first.release()

            waiter = queen.lock("job", ttl_seconds=1)
            started = trio.current_time()
            assert await waiter.acquire(wait=3)
            assert trio.current_time() - started >= 2
            assert await seconds_left(queen, "job") >= 0.9
            assert waiter.seconds_left >= 0.9


async def test_a_wait_ends(autojump_clock: object) -> None:
    """Not before its time, and not much after."""
    async with open_broker() as queen:
        assert await queen.lock("job").acquire()
        started = trio.current_time()
        assert not await queen.lock("job").acquire(wait="3s")
        assert 3 <= trio.current_time() - started <= 3.1


async def test_a_renewal_replaces_the_lifetime(autojump_clock: object) -> None:
    """A36: twenty renewals at once do not add up."""
    async with open_broker() as queen:
        lock = queen.lock("job", ttl_seconds=2, auto_renew=False)
        assert await lock.acquire()
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(lock.renew)
        started = trio.current_time()
        assert await queen.lock("job").acquire(wait=10)
        assert 1.9 <= trio.current_time() - started <= 3


async def test_a_semaphore_has_n_permits(autojump_clock: object) -> None:
    """Two get different slots, the third is told no; released, the third gets in."""
    async with open_broker() as queen:
        workers = [queen.semaphore("gpu", 2, ttl_seconds=30) for _ in range(3)]
        assert [await worker.acquire() for worker in workers] == [True, True, False]
        assert {workers[0].slot, workers[1].slot} == {0, 1}
        assert await workers[0].release()
        assert await workers[2].acquire()


async def test_a_block_holds_the_lock(autojump_clock: object) -> None:
    """`async with` acquires and releases, and says so when somebody else has it."""
    async with open_broker() as queen:
        async with queen.lock("job") as lock:
            assert lock.held
            with pytest.raises(LockNotHeldError, match="somebody else"):
                async with queen.lock("job"):
                    pass
        assert not (await queen.locks.get("job")).held


async def test_a_block_releases_also_when_it_is_cancelled(autojump_clock: object) -> None:
    """The permit does not wait out its lifetime."""
    async with open_broker() as queen:
        with trio.move_on_after(1):
            async with queen.lock("job"):
                await trio.sleep_forever()
        assert not (await queen.locks.get("job")).held


async def test_leaving_the_client_releases_what_is_held(autojump_clock: object) -> None:
    """Lock and semaphore permits are free at once for others, whatever ended the client."""
    async with two_clients() as (_, between, other):

        async def work() -> None:
            async with serving(between.real) as leaving:
                assert await leaving.lock("job").acquire()
                assert await leaving.semaphore("gpu", 3).acquire()
                assert await leaving.semaphore("gpu", 3).acquire()
                raise ValueError("mine")

        with pytest.raises(ValueError, match="mine"):
            await work()
        assert not (await other.locks.get("job")).held
        assert not (await other.locks.get("gpu")).held


async def test_leaving_does_not_wait_for_a_broker_that_is_gone(autojump_clock: object) -> None:
    """The permits end by themselves; leaving takes a few seconds at most."""
    async with two_clients() as (_, between, __):
        async with serving(between) as leaving:
            assert await leaving.lock("job").acquire()

            async def hang(asked: Asked) -> None:
                await trio.sleep(3600)

            between.before = hang
            started = trio.current_time()
        assert trio.current_time() - started <= 3.5
        between.before = None


async def test_a_release_finds_the_token_that_a_lost_renewal_moved(autojump_clock: object) -> None:
    """The broker renewed, the answer was lost: the release with the old token is refused, so the handle asks for the
    new one by its owner, and releases that."""
    async with two_clients() as (queen, between, other):
        lock = queen.lock("job", ttl_seconds=30, auto_renew=False)
        assert await lock.acquire()

        async def lose(asked: Asked) -> None:
            raise lost(sent=True)

        between.after = lose
        with pytest.raises(ConnectionFailed):
            await lock.renew()
        between.after = None
        assert lock.held, "not renewed and not known lost: the deadline stands"
        assert await lock.release()
        assert not (await other.locks.get("job")).held


async def test_waiters_all_get_their_turn(autojump_clock: object) -> None:
    """A38: five waiters, one holder at any time, and each waits at most a second longer than it must."""
    async with open_broker() as queen:
        holding = 0
        order: list[int] = []

        async def work(number: int) -> None:
            nonlocal holding
            lock = queen.lock("job", ttl_seconds=5)
            assert await lock.acquire(wait=60)
            holding += 1
            assert holding == 1
            await trio.sleep(0.5)
            order.append(number)
            holding -= 1
            await lock.release()

        started = trio.current_time()
        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(work, number)
                await trio.sleep(0.01)
        assert order == list(range(5)), "first come, first served"
        assert trio.current_time() - started <= 5 * 1.6


async def test_a_lock_name_with_any_legal_character(autojump_clock: object) -> None:
    """Names come back as they went."""
    async with open_broker() as queen:
        for name in ("a/b", 'say "hi"', "пример", "😀", "a b?"):
            lock = queen.lock(name)
            assert await lock.acquire()
            assert (await queen.locks.get(name)).name == name
            assert repr(name) in repr(lock)


async def test_a_caller_who_is_cancelled_leaves_no_permit_behind(autojump_clock: object) -> None:
    """The broker granted while the caller was going: the handle gives it back behind him. A permit of an owner that
    others may use too is left alone."""
    async with two_clients() as (queen, between, other):

        async def slow(asked: Asked) -> None:
            await trio.sleep(2)

        between.after = slow
        lock = queen.lock("job", ttl_seconds=600)
        with trio.move_on_after(1) as cancelled:
            await lock.acquire()
        assert cancelled.cancelled_caught
        assert (await other.locks.get("job")).held
        between.after = None
        await trio.testing.wait_all_tasks_blocked()
        assert not (await other.locks.get("job")).held
        assert not lock.held

        between.after = slow
        with trio.move_on_after(1):
            await queen.lock("job", ttl_seconds=600, owner="shared").acquire()
        between.after = None
        await trio.testing.wait_all_tasks_blocked()
        assert (await other.locks.get("job")).held


async def test_who_waits_does_not_ask_again(autojump_clock: object) -> None:
    """It asks once, then stands in the broker's line: no polling, and no delay when its turn comes."""
    async with two_clients() as (queen, between, other):
        held = other.lock("job", ttl_seconds=100)
        assert await held.acquire()
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def release_later() -> None:
                await trio.sleep(50)
                await held.release()

            started = trio.current_time()
            assert await queen.lock("job").acquire(wait=60)
        assert trio.current_time() - started < 50.01
        assert between.ops("locks") == ["acquire", "renew"], "the renewal says how long it lasts"


async def test_a_renewal_is_no_turn(autojump_clock: object) -> None:
    """A holder that renews keeps its lock however many wait, and who asks without a wait does not pass them."""
    async with open_broker() as queen:
        holder = queen.lock("job", ttl_seconds=3)
        assert await holder.acquire()
        got: list[str] = []

        async def wait(name: str) -> None:
            lock = queen.lock("job")
            assert await lock.acquire(wait=100)
            got.append(name)
            await trio.sleep(1)
            await lock.release()

        async with trio.open_nursery() as nursery:
            for name in "ab":
                nursery.start_soon(wait, name)
                await trio.sleep(0.1)
            await trio.sleep(30)
            assert got == []
            await holder.release()
            assert not await queen.lock("job").acquire()
            assert not await holder.acquire()
        assert got == ["a", "b"]


async def test_a_cancelled_wait_holds_nothing(autojump_clock: object) -> None:
    """It leaves the line: the next one is granted the permit at once."""
    async with open_broker() as queen:
        holder = queen.lock("job")
        assert await holder.acquire()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(queen.lock("job").acquire, 60)
            await trio.sleep(1)
            nursery.cancel_scope.cancel()
        await holder.release()
        assert not (await queen.locks.get("job")).held
        assert await queen.lock("job").acquire()


async def test_a_wait_longer_than_the_brokers_longest(autojump_clock: object) -> None:
    """It stands in line again: two hours are two hours."""
    async with open_broker() as queen:
        holder = queen.lock("job", ttl_seconds=100)
        assert await holder.acquire()
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def release_later() -> None:
                await trio.sleep(5000)
                await holder.release()

            started = trio.current_time()
            assert await queen.lock("job").acquire(wait="2h")
        assert 5000 <= trio.current_time() - started < 5001

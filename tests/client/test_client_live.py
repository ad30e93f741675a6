"""Tails, watches and held locks in the client: one surface over two transports."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
import trio
from client_server import Server, served

from queen_actors import BadRequest, Gap, LockLostError, LockNotHeldError, Retry, Unavailable, connect, open_broker
from queen_actors.client import KvChange, Queen

VIRTUAL_TIME = True


@asynccontextmanager
async def in_process() -> AsyncIterator[Queen]:
    async with open_broker() as queen:
        yield queen


@asynccontextmanager
async def over_http() -> AsyncIterator[Queen]:
    async with served() as server, connect(server.url) as queen:
        yield queen


@asynccontextmanager
async def unsteady() -> AsyncIterator[tuple[Server, Queen]]:
    """Over HTTP, with a server whose WebSockets can be broken."""
    async with served() as server, connect(server.url, retry=Retry(pause=0.01)) as queen:
        yield server, queen


Opens = Callable[[], AbstractAsyncContextManager[Queen]]
both = pytest.mark.parametrize("opens", [in_process, over_http])


def told(change: KvChange) -> tuple[Any, ...]:
    return change.op, change.key, change.value


# -- tails -------------------------------------------------------------------------------------------------------------


@both
async def test_a_tail(opens: Opens) -> None:
    """Every message after now, of all partitions, without a lease; `positions` is where it stands."""
    async with opens() as queen:
        orders = queen.queue("orders")
        await orders.partition("a").push([1, 2])
        async with orders.tail() as messages:
            assert messages.positions == {"a": 2}
            await orders.partition("a").push([3, 4])
            first = await messages.receive()
            assert (first.data, first.queue, first.partition, first.offset) == (3, "orders", "a", 2)
            assert messages.positions == {"a": 3}
            await orders.partition("b").push(5)
            assert {(await messages.receive()).data for _ in range(2)} == {4, 5}
            assert messages.positions == {"a": 4, "b": 1}
        assert len(await orders.pop(partitions=2)) == 5


@both
@pytest.mark.parametrize("begin", ["start", "instant", "positions"])
async def test_where_a_tail_begins(opens: Opens, begin: str) -> None:
    """At the start, at an instant, or at the next offset of each partition; one that is not named: at its start."""
    async with opens() as queen:
        orders = queen.queue("orders")
        await orders.partition("a").push([1, 2, 3])
        await orders.partition("b").push(4)
        at: Any = {"start": "start", "instant": datetime(2020, 1, 1, tzinfo=UTC), "positions": {"a": 1}}[begin]
        async with orders.tail(at) as messages:
            expected = {2, 3, 4} if begin == "positions" else {1, 2, 3, 4}
            assert {(await messages.receive()).data for _ in expected} == expected
        async with orders.partition("b").tail("start") as messages:
            assert (await messages.receive()).data == 4


@both
async def test_a_tail_takes_no_more_than_its_credit(opens: Opens) -> None:
    """What waits for the loop is bounded by the credit, which comes back as the loop goes on; nothing is missed."""
    async with opens() as queen:
        orders = queen.queue("orders").partition("a")
        await orders.push(list(range(50)))
        async with orders.tail("start", credit=4) as messages:
            await trio.sleep(0.3)
            assert messages.waiting == 4
            assert [(await messages.receive()).data for _ in range(50)] == list(range(50))


@both
async def test_a_gap_of_a_tail(opens: Opens) -> None:
    """What retention has removed is told in its place."""
    async with opens() as queen:
        orders = queen.queue("orders").partition("a")
        await orders.push(list(range(5)))
        await queen.queue("orders").config({"retention_enabled": True, "retention_seconds": 1}).create()
        for attempt in range(100):
            if not await orders.pop(batch=1, group=f"g{attempt}"):
                break
            await trio.sleep(0.2)
        await orders.push(5)
        gaps: list[Gap] = []
        async with orders.tail({"a": 2}, on_gap=gaps.append) as messages:
            assert (await messages.receive()).data == 5
            assert gaps == [Gap("a", 2, 4)]
            assert messages.positions == {"a": 6}


@both
async def test_leaving_a_tail_is_prompt(opens: Opens) -> None:
    """Whatever lies unread; and what it refuses is raised on entering."""
    async with opens() as queen:
        await queen.queue("orders").push(list(range(1000)))
        with trio.fail_after(2):
            async with queen.queue("orders").tail("start") as messages:
                await messages.receive()
        with pytest.raises(BadRequest):
            async with queen.queue("orders").tail("yesterday"):
                pass
        with pytest.raises(ValueError, match="credit"):
            queen.queue("orders").tail(credit=0)
        tail = queen.queue("orders").tail()
        async with tail:
            pass
        with pytest.raises(Unavailable):
            await tail.receive()


async def test_a_tail_goes_on_by_offset() -> None:
    """A lost connection is opened again, and the tail goes on: each message once, those pushed meanwhile too."""
    async with unsteady() as (server, queen):
        orders = queen.queue("orders")
        got: list[int] = []
        async with orders.tail(credit=10) as messages:
            for number in range(40):
                await orders.partition("ab"[number % 2]).push(number)
                if number % 8 == 3:
                    await server.break_socket()
                if number % 3 == 0:
                    got.append((await messages.receive()).data)
            while len(got) < 40:
                got.append((await messages.receive()).data)
            with trio.move_on_after(0.3):
                got.append((await messages.receive()).data)
        assert [number for number in got if number % 2 == 0] == list(range(0, 40, 2))
        assert [number for number in got if number % 2] == list(range(1, 40, 2))


# -- watches -----------------------------------------------------------------------------------------------------------


@both
async def test_a_watch(opens: Opens) -> None:
    """The rows, then changes as they happen; `rows` follows what was handed out."""
    async with opens() as queen:
        saved = await queen.kv.put("carts", "c1", {"n": 1}, forever=True)
        async with queen.kv.watch("carts", prefix="c") as changes:
            assert changes.version == saved.version
            assert changes.rows["c1"].value == {"n": 1}
            await queen.kv.put("carts", "c2", 2, ttl=1)
            await queen.kv.delete("carts", "c1")
            assert told(await changes.receive()) == ("put", "c2", 2)
            assert changes.rows.keys() == {"c1", "c2"}
            assert changes.rows["c2"].expires_at is not None
            assert told(await changes.receive()) == ("delete", "c1", None)
            with trio.fail_after(3):
                assert told(await changes.receive()) == ("expire", "c2", None)
            assert changes.rows == {}
        version = changes.version
        await queen.kv.put("carts", "c3", 3, forever=True)
        async with queen.kv.watch("carts", key="c3", from_version=version) as changes:
            async for change in changes:
                assert told(change) == ("put", "c3", 3)
                break
        with pytest.raises(ValueError, match="key or one prefix"):
            queen.kv.watch("carts")
        with pytest.raises(BadRequest):
            async with queen.kv.watch("Not A Namespace", key="k"):
                pass


@both
async def test_a_watch_that_is_read_too_slowly(opens: Opens, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits here is bounded: past it, the latest state of each key."""
    monkeypatch.setattr("queen_actors.client.watch.WAITING", 10)
    async with opens() as queen, queen.kv.watch("carts", prefix="c") as changes:
        changes._bound = 10
        for number in range(100):
            await queen.kv.put("carts", f"c{number % 5}", number, forever=True)
        await trio.sleep(0.2)
        assert changes.waiting <= 11
        seen = [await changes.receive() for _ in range(changes.waiting)]
        assert [change.version for change in seen] == sorted(change.version for change in seen)
        assert {key: row.value for key, row in changes.rows.items()} == {f"c{n}": 95 + n for n in range(5)}


async def test_a_watch_goes_on_by_version() -> None:
    """A lost connection is opened again, and no change is missed, nor told twice."""
    async with unsteady() as (server, queen), queen.kv.watch("carts", prefix="c") as changes:
        for number in range(40):
            await queen.kv.put("carts", "c", number, forever=True)
            if number % 8 == 3:
                await server.break_socket()
        assert [(await changes.receive()).value for _ in range(40)] == list(range(40))
        with trio.move_on_after(0.3):
            assert not await changes.receive()


async def test_a_watch_after_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    """When what happened meanwhile is not known any more, the difference is told as changes."""
    monkeypatch.setattr("queen_actors.limits.KV_HISTORY", 2)
    async with unsteady() as (server, queen):
        for key in ("kept", "changed", "deleted"):
            await queen.kv.put("carts", key, 1, forever=True)
        async with queen.kv.watch("carts", prefix="c") as changes:
            await server.break_socket()
            await queen.kv.put("carts", "changed", 2, forever=True)
            await queen.kv.put("carts", "c-new", 3, forever=True)
            for _ in range(3):
                await queen.kv.put("carts", "other", 1, forever=True)
            assert {told(await changes.receive()) for _ in range(2)} == {("put", "changed", 2), ("put", "c-new", 3)}
            assert {key: row.value for key, row in changes.rows.items()} == {"changed": 2, "c-new": 3}


# -- held locks --------------------------------------------------------------------------------------------------------


@both
async def test_hold_waits_in_line(opens: Opens) -> None:
    """Those who hold a lock with a wait get it in the order in which they came, as soon as it is free; the block
    holds it, and releases at its end."""
    async with opens() as queen:
        order: list[int] = []

        async def work(number: int) -> None:
            async with queen.lock("daily", ttl_seconds=30).hold(wait=20) as lock:
                assert lock.held
                order.append(number)
                await trio.sleep(0.01)

        with trio.fail_after(10):
            async with trio.open_nursery() as nursery, queen.lock("daily").hold():
                for number in range(4):
                    nursery.start_soon(work, number)
                    await trio.sleep(0.1)
        assert order == [0, 1, 2, 3]
        assert not (await queen.locks.get("daily")).held


@both
async def test_acquire_waits_in_line(opens: Opens) -> None:
    """So do those who only acquire, among those who hold: first come, first served; the permit outlives the wait."""
    async with opens() as queen, trio.open_nursery() as nursery:
        order: list[int] = []
        first = queen.lock("job")
        assert await first.acquire()

        async def work(number: int) -> None:
            lock = queen.lock("job")
            if number % 2:
                assert await lock.acquire(wait=60)
                await trio.sleep(1)
                assert lock.held
                assert (await queen.locks.get("job")).held
                order.append(number)
                await lock.release()
            else:
                async with lock.hold(wait=60):
                    order.append(number)

        for number in range(6):
            nursery.start_soon(work, number)
            await trio.sleep(0.1)
        assert order == []
        await first.release()
    assert order == list(range(6))


async def test_a_wait_that_is_cut_off_goes_on() -> None:
    """The connection in which a lock is waited for breaks: the rest of the wait is waited over a new one."""
    async with unsteady() as (server, queen):
        assert await queen.lock("job").acquire()
        started = trio.current_time()
        async with trio.open_nursery() as nursery:

            @nursery.start_soon
            async def break_it() -> None:
                await trio.sleep(4)
                await server.break_socket()

            assert not await queen.lock("job").acquire(wait=10)
        assert 10 <= trio.current_time() - started < 11
        assert len(server.sockets) == 2


@both
async def test_hold_after_the_wait(opens: Opens) -> None:
    """When the wait is over it raises, and the block never runs; the lifetime of a granted lock starts at the grant."""
    async with opens() as queen:
        async with queen.lock("daily").hold():
            with pytest.raises(LockNotHeldError):
                async with queen.lock("daily").hold(wait=0.2):
                    raise AssertionError("never")
            with pytest.raises(LockNotHeldError):
                async with queen.lock("daily").hold():
                    raise AssertionError("never")
        async with trio.open_nursery() as nursery, queen.lock("daily", ttl_seconds=1).hold() as first:
            waiter = queen.lock("daily", ttl_seconds=1)

            async def wait() -> None:
                async with waiter.hold(wait=10) as lock:
                    assert lock.seconds_left > 0.8
                    assert lock.lost_reason is None

            nursery.start_soon(wait)
            await trio.sleep(1.5)
            assert first.held


@both
@pytest.mark.parametrize("how", ["deleted", "taken"])
async def test_a_lost_lock_cancels_the_block(opens: Opens, how: str) -> None:
    """The moment that the broker knows, long before the next renewal; leaving raises LockLostError."""
    async with opens() as queen:
        lock = queen.lock("daily", ttl_seconds=60)

        async def work() -> None:
            async with lock.hold():
                if how == "deleted":
                    await queen.kv.delete("queen-locks", "daily#0")
                else:
                    await queen.kv.put("queen-locks", "daily#0", {"owner": "thief"}, ttl=30)
                await trio.sleep_forever()

        with trio.fail_after(5), pytest.raises(LockLostError) as lost:
            await work()
        assert lost.value.reason == how
        assert (lock.held, lock.lost_reason) == (False, how)


@both
async def test_an_error_of_the_block_comes_out(opens: Opens) -> None:
    """Bare, and the lock is released; a cancellation from outside stays one."""
    async with opens() as queen:
        with pytest.raises(ZeroDivisionError):
            async with queen.lock("daily").hold():
                raise ZeroDivisionError
        with trio.move_on_after(0.2) as scope:
            async with queen.lock("daily").hold():
                await trio.sleep_forever()
        assert scope.cancelled_caught
        lock = queen.lock("daily")
        async with lock.hold():
            with pytest.raises(RuntimeError, match="already"):
                async with lock.hold():
                    pass
        assert not (await queen.locks.get("daily")).held


@both
async def test_a_cancelled_wait_leaves_the_line(opens: Opens) -> None:
    """Who stops waiting is not granted what is free later."""
    async with opens() as queen:
        async with queen.lock("daily").hold():
            with trio.move_on_after(0.3):
                async with queen.lock("daily").hold(wait=20):
                    raise AssertionError("never")
        await trio.sleep(0.2)
        assert not (await queen.locks.get("daily")).held


async def test_a_held_lock_outlives_its_connection() -> None:
    """The permit is renewed by calls; when its WebSocket breaks it is watched over a new one."""
    async with unsteady() as (server, queen):

        async def work() -> None:
            async with queen.lock("daily", ttl_seconds=2).hold() as lock:
                for _ in range(3):
                    await server.break_socket()
                    await trio.sleep(1)
                    assert lock.held
                await queen.kv.delete("queen-locks", "daily#0")
                await trio.sleep_forever()

        with trio.fail_after(8), pytest.raises(LockLostError):
            await work()

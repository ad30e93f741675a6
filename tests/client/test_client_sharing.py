"""One WebSocket for all that a client consumes, tails and watches: what is shared, and what is not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import trio
import trio.testing
from client_server import Server, served

from queen_actors import BadRequest, Retry, connect, limits
from queen_actors.client import Queen, socket

VIRTUAL_TIME = True


@asynccontextmanager
async def client() -> AsyncIterator[tuple[Server, Queen]]:
    async with served() as server, connect(server.url, retry=Retry(pause=0.01)) as queen:
        yield server, queen


async def test_everything_shares_one_connection() -> None:
    """Five subscriptions, a tail and a watch, over one; each gets what is its own."""
    async with client() as (server, queen), AsyncExitStack() as stack:
        subscriptions = [
            await stack.enter_async_context(queen.queue(f"q{number}").subscribe(group="g")) for number in range(5)
        ]
        tail = await stack.enter_async_context(queen.queue("q3").tail())
        watch = await stack.enter_async_context(queen.kv.watch("ns", prefix="k"))
        for number in (4, 3, 2, 1, 0):
            await queen.queue(f"q{number}").push(number)
        await queen.kv.put("ns", "k", 1, forever=True)
        with trio.fail_after(5):
            for number, messages in enumerate(subscriptions):
                message = await messages.receive()
                assert (message.queue, message.data) == (f"q{number}", number)
                assert await message.ack()
            assert (await tail.receive()).data == 3
            assert (await watch.receive()).key == "k"
        assert len(server.sockets) == 1


async def test_leaving_one_leaves_the_others() -> None:
    """What it had is given back at once, and its credit is its own; when the last one leaves, the connection is
    closed, and the next one opens another."""
    async with client() as (server, queen):
        await queen.queue("a").push(list(range(10)))
        async with queen.queue("b").subscribe(group="g") as b:
            async with queen.queue("a").subscribe(group="g") as a:
                await a.receive()
            (again,) = await queen.queue("a").pop(group="g", batch=1)
            assert (again.data, again.delivery_attempt) == (0, 2)
            await queen.queue("b").push("still here")
            with trio.fail_after(5):
                assert await (await b.receive()).ack()
        assert len(server.sockets) == 1
        async with queen.queue("b").subscribe(group="g"):
            assert len(server.sockets) == 2


async def test_a_slow_consumer_stalls_nobody() -> None:
    """Who reads nothing has its credit's worth here, and the others go on."""
    async with client() as (server, queen):
        await queen.queue("slow").push([{"text": "x" * 10_000}] * 1000)
        async with queen.queue("slow").subscribe(group="g", credit=50) as slow:
            async with (
                queen.queue("quick").subscribe(group="g", credit=10) as quick,
                queen.queue("quick").tail() as tail,
            ):
                await queen.queue("quick").push(list(range(500)))
                with trio.fail_after(10):
                    for number in range(500):
                        message = await quick.receive()
                        assert message.data == number
                        await message.ack()
                        assert (await tail.receive()).data == number
            assert slow.waiting == 50
        assert len(server.sockets) == 1


async def test_everything_goes_on_over_one_new_connection() -> None:
    """It breaks: subscriptions get again what was not settled, the tail goes on by offset, the watch by version."""
    async with (
        client() as (server, queen),
        queen.queue("q").subscribe(group="g") as messages,
        queen.queue("r").subscribe(group="g") as others,
        queen.queue("q").tail() as tail,
        queen.kv.watch("ns", prefix="k") as watch,
    ):
        with trio.fail_after(30):
            await queen.queue("q").push([1, 2])
            await queen.kv.put("ns", "ka", 1, forever=True)
            await (await messages.receive()).ack()
            assert (await tail.receive()).data == 1
            assert (await watch.receive()).key == "ka"
            await server.break_socket()
            await queen.queue("q").push(3)
            await queen.queue("r").push(4)
            await queen.kv.put("ns", "kb", 1, forever=True)
            assert [(await messages.receive()).data for _ in range(2)] == [2, 3]
            assert (await others.receive()).data == 4
            assert [(await tail.receive()).data for _ in range(2)] == [2, 3]
            assert (await watch.receive()).key == "kb"
        assert len(server.sockets) == 2


async def test_so_many_share_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Past the bound another connection is opened; a place that becomes free is taken again."""
    monkeypatch.setattr(socket, "MEMBERS", 3)
    async with client() as (server, queen), AsyncExitStack() as stack:
        for number in range(7):
            await stack.enter_async_context(queen.queue(f"q{number}").subscribe(group="g"))
        assert len(server.sockets) == 3
        async with queen.queue("x").subscribe(), queen.queue("y").subscribe():
            assert len(server.sockets) == 3
        async with queen.queue("z").subscribe():
            assert len(server.sockets) == 3


async def test_a_broker_that_allows_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that refuses another subscription on a connection gets it on the next."""
    monkeypatch.setattr(limits, "WS_SUBSCRIPTIONS", 2)
    async with client() as (server, queen), AsyncExitStack() as stack:
        subscriptions = [
            await stack.enter_async_context(queen.queue(f"q{number}").subscribe(group="g")) for number in range(5)
        ]
        assert len(server.sockets) == 3
        for number, messages in enumerate(subscriptions):
            await queen.queue(f"q{number}").push(number)
            with trio.fail_after(5):
                assert (await messages.receive()).data == number


async def test_a_refusal_is_its_own() -> None:
    """What the broker refuses to one is nobody else's error."""
    async with client() as (server, queen), queen.queue("q").subscribe(group="g") as messages:
        with pytest.raises(BadRequest):
            async with queen.queue("q").subscribe(group="h", subscription_from="no instant"):
                pass
        await queen.queue("q").push(1)
        with trio.fail_after(5):
            assert await (await messages.receive()).ack()
        assert len(server.sockets) == 1


@pytest.mark.parametrize("checkpoints", range(1, 12))
async def test_who_is_cancelled_on_entering_leaves_nothing(checkpoints: int) -> None:
    """At whatever moment: what the broker may have given it is free again."""
    async with client() as (_, queen), queen.queue("other").subscribe():
        await queen.queue("q").push(1)

        async def enter() -> None:
            async with queen.queue("q").subscribe(group="g"):
                await trio.sleep_forever()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(enter)
            for _ in range(checkpoints):
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()
        await trio.sleep(1)
        (message,) = await queen.queue("q").pop(group="g")
        assert message.data == 1


async def test_a_wait_for_a_lock_has_its_own_connection() -> None:
    """To end it is the only way out of the line; the others stay."""
    async with client() as (server, queen), queen.queue("q").subscribe():
        first = queen.lock("job")
        assert await first.acquire()
        with trio.move_on_after(1):
            async with queen.lock("job").hold(wait=60):
                raise AssertionError("it is held")
        assert len(server.sockets) == 2
        await first.release()
        await trio.sleep(0.1)
        assert not (await queen.locks.get("job")).held, "who is gone is not granted it"
        async with queen.queue("q").subscribe():
            assert len(server.sockets) == 2


async def test_a_client_that_is_left_closes_its_connection() -> None:
    """Leases of a subscription that nobody left are given back with it."""
    async with served() as server:
        async with connect(server.url) as queen:
            await queen.queue("q").push(1)
            messages = queen.queue("q").subscribe(group="g")
            await messages.__aenter__()
            await messages.receive()
        async with connect(server.url) as queen:
            await trio.sleep(1)
            (message,) = await queen.queue("q").pop(group="g")
            assert message.delivery_attempt == 2

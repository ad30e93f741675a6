"""One surface over two transports: what users write means the same in process and over HTTP and the WebSocket."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import timedelta
from functools import partial

import jwt
import pytest
import trio
from client_server import served

from queen_actors import LockNotHeldError, NotFound, TransactionError, connect, errors, open_broker
from queen_actors.client import ConnectionFailed, Message, Queen, Retry, Subscription

NAMES = [
    "Bed&Breakfast",
    "a/b",
    "a//b",
    "/lead",
    "tail/",
    'say "hi"',
    "пример",
    "😀",
    "p#1?z",
    "%41",
    "a b+c",
    ".",
    "..",
]

VIRTUAL_TIME = True


@asynccontextmanager
async def in_process() -> AsyncIterator[Queen]:
    async with open_broker() as queen:
        yield queen


@asynccontextmanager
async def over_http() -> AsyncIterator[Queen]:
    async with served() as server, connect(server.url) as queen:
        yield queen


Opens = Callable[[], AbstractAsyncContextManager[Queen]]
both = pytest.mark.parametrize("opens", [in_process, over_http])


@both
async def test_the_seeds_lock_example(opens: Opens) -> None:
    """The lock example of the seed page as it is written there. Run again, its `transactionId` is known: the same
    report cannot be pushed twice."""
    async with opens() as queen:

        async def run() -> None:
            lock = queen.lock("daily-report", ttl_seconds=30)  # a lease with a fencing token
            if await lock.acquire():  # False: another worker has it
                try:
                    await (
                        queen.transaction()
                        .guard(lock)  # commits only while the lock is ours
                        .queue("reports")
                        .push([{"transactionId": "report-2026-10-22", "data": {"day": "2026-10-22"}}])
                        .commit()
                    )
                finally:
                    await lock.release()

        await run()
        with pytest.raises(TransactionError) as again:
            await run()
        assert again.value.reason == "duplicate"
        assert not (await queen.locks.get("daily-report")).held
        assert [message.data for message in await queen.queue("reports").pop()] == [{"day": "2026-10-22"}]


@both
async def test_the_seeds_kv_example(opens: Opens, capsys: pytest.CaptureFixture[str]) -> None:
    """The KV example of the seed page as it is written there; then the version has moved, and the limit is reached."""
    async with opens() as queen:
        # Every write names its lifetime: a ttl, or forever.
        await queen.kv.put("carts", "customer-42", {"items": 3}, ttl=timedelta(days=7))
        cart = await queen.kv.get("carts", "customer-42")  # {found, value, version, ...}

        # Write only if nobody wrote since we read it: the version is the condition.
        saved = await queen.kv.put("carts", "customer-42", {"items": 4}, ttl=timedelta(days=7), expect=cart["version"])
        print(saved["applied"])  # False if the version moved

        # A counter with a ceiling: past max, the increment does not apply.
        hit = await queen.kv.incr("limits", "api:customer-42", delta=1, max=100, ttl=timedelta(minutes=1))
        if not hit["applied"]:
            print("over the limit")  # reason: 'limit'
        assert capsys.readouterr().out == "True\n"

        again = await queen.kv.put("carts", "customer-42", {"items": 5}, ttl=timedelta(days=7), expect=cart["version"])
        assert not again["applied"]
        assert (again.reason, again.value, again.version) == ("version", {"items": 4}, saved.version)
        assert await queen.kv.incr("limits", "api:customer-42", delta=99, max=100, ttl=timedelta(minutes=1))
        hit = await queen.kv.incr("limits", "api:customer-42", delta=1, max=100, ttl=timedelta(minutes=1))
        assert not hit["applied"]
        assert (hit.reason, hit.value) == ("limit", 100)


@both
async def test_a_step_that_does_everything(opens: Opens) -> None:
    """What the seed page begins with: a step acks its message, pushes, stores the order's state and schedules the
    reminder, all in one commit."""
    async with opens() as queen:
        await queen.queue("orders").partition("order-7").push({"data": {"id": 7}, "transactionId": "order-7-paid"})
        async with queen.queue("orders").subscribe(group="billing") as messages:
            message = await messages.receive()
            result = await (
                queen.transaction()
                .ack(message)
                .once("paid", "order-7", ttl=timedelta(days=1))
                .queue("receipts")
                .partition("customer-123")
                .push([{"data": {"order": 7}, "transactionId": "receipt-7"}])
                .kv.put("orders", "order-7", {"status": "paid"}, ttl=timedelta(days=30))
                .timer("reminders")
                .key("order-7")
                .payload({"orderId": 7})
                .partition("order-7")
                .after(timedelta(milliseconds=50))
                .schedule()
                .commit()
            )
            assert result
        assert (await queen.kv.get("orders", "order-7")).value == {"status": "paid"}
        (receipt,) = await queen.queue("receipts").pop()
        assert (receipt.data, receipt.partition, receipt.transaction_id) == ({"order": 7}, "customer-123", "receipt-7")
        (reminder,) = await queen.queue("reminders").pop(wait=5)
        assert (reminder.data, reminder.partition) == ({"orderId": 7}, "order-7")
        assert await queen.queue("orders").pop(group="billing") == []


@both
async def test_a_timer_is_moved_and_cancelled(opens: Opens) -> None:
    """Scheduling the same key again moves it; a cancel is exact."""
    async with opens() as queen:
        first = await queen.timers.schedule("q", "order/9137 x?", {"n": 1}, delay=timedelta(hours=24))
        second = await queen.timers.schedule("q", "order/9137 x?", {"n": 2}, delay=timedelta(hours=48))
        assert (first.status, second.status) == ("scheduled", "rescheduled")
        peeked = await queen.timers.peek("q", "order/9137 x?")
        assert peeked
        assert (peeked.data, peeked.message_id, peeked.deliver_at) == ({"n": 2}, second.message_id, second.deliver_at)
        assert [row.timer_key for row in await queen.timers.list_all("q")] == ["order/9137 x?"]
        assert await queen.timers.count("q", "order/") == 1
        cancelled = await queen.timers.cancel("q", "order/9137 x?", txn="mine")
        assert cancelled
        assert cancelled.txn == second.txn
        absent = await queen.timers.cancel("q", "order/9137 x?", txn="mine")
        assert not absent
        assert (absent.status, absent.txn) == ("absent", "mine")


@both
async def test_values_come_back_as_they_went(opens: Opens) -> None:
    """Null, big integers, exact floats, nesting and every alphabet, as a message and as a value."""
    values = [None, False, 0, "", [], {}, 2**53 + 1, 2**63, 10**29 + 1, 1e-7, 0.1, "\x00", "é😀", {"ä": [{"b": None}]}]
    async with opens() as queen:
        await queen.queue("q").push([{"data": value} for value in values])
        assert [message.data for message in await queen.queue("q").pop(batch=100)] == values
        for value in values:
            assert await queen.kv.put("n", "k", value, forever=True)
            got = await queen.kv.get("n", "k")
            assert got.found
            assert got.value == value
            assert type(got.value) is type(value)


@both
@pytest.mark.parametrize("name", NAMES)
async def test_every_name_makes_the_round_trip(opens: Opens, name: str) -> None:
    """A queue, a partition, a group, a transactionId, a key, a lock and a timer of that name come back as they went."""
    async with opens() as queen:
        queue = queen.queue(name).partition(name).group(name)
        await queue.create()
        (pushed,) = await queue.push({"data": name, "transactionId": name})
        assert (pushed.queue, pushed.transaction_id) == (name, name)
        (message,) = await queue.pop()
        assert (message.data, message.partition, message.consumer_group) == (name, name, name)
        assert message.transaction_id == name
        assert (await message.dead_letter(name)).dlq
        dead = (await queue.dlq())["messages"]
        assert [(one["queue"], one["partition"], one["errorMessage"]) for one in dead] == [(name, name, name)]
        assert (await queen.admin.get_queue(name))["name"] == name
        assert await queen.kv.put("n", name, name, forever=True)
        assert [row.key for row in (await queen.kv.get_many("n", [name])).rows] == [name]
        lock_name = name.replace("#", "_")  # the one character that no lock's name has
        assert await queen.lock(lock_name).acquire()
        assert (await queen.kv.get("queen-locks", f"{lock_name}#0")).found
        assert await queen.timers.schedule(name, name, 1, delay=60)
        assert (await queen.timers.peek(name, name)).timer_key == name
        assert (await queen.seek(name, name, to_end=True, partition=name))["success"]
        assert (await queen.delete_consumer_group(name))["consumerGroup"] == name
        assert (await queue.delete())["existed"]
        with pytest.raises(NotFound):
            await queen.admin.get_queue(name)


@both
async def test_errors_are_the_brokers_own(opens: Opens) -> None:
    """The same type, code, reason and status either way."""
    async with opens() as queen:
        with pytest.raises(errors.BadRequest) as bad:
            await queen.kv.put("Not a namespace", "k", 1, forever=True)
        assert (bad.value.code, bad.value.reason, bad.value.status) == ("kv_bad_request", "kv_bad_namespace", 400)
        with pytest.raises(errors.TooLarge) as large:
            await queen.kv.put("n", "k", "x" * 70_000, forever=True)
        assert large.value.reason == "kv_value_too_large"
        with pytest.raises(errors.Forbidden) as far:
            await queen.timers.schedule("q", "k", 1, delay=timedelta(days=91))
        assert (far.value.code, far.value.reason) == ("timer_horizon_exceeded", "timers_horizon")
        with pytest.raises(NotFound):
            await queen.admin.get_queue("missing")
        with pytest.raises(LockNotHeldError):
            await queen.transaction().guard(queen.lock("free")).queue("q").push(1).commit()


@both
async def test_a_pop_that_waits_is_woken(opens: Opens) -> None:
    """By a push, and not at the end of its wait; cancelled, it takes nothing with it."""
    async with opens() as queen:
        with trio.move_on_after(0.05):
            await queen.queue("q").pop(wait=True)
        got: list[Message] = []

        async def wait() -> None:
            got.extend(await queen.queue("q").pop(wait=30))

        with trio.fail_after(5):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait)
                await trio.sleep(0.05)
                await queen.queue("q").push("now")
        assert [(message.data, message.delivery_attempt) for message in got] == [("now", 1)]


@both
async def test_consuming_with_credit(opens: Opens) -> None:
    """300 messages in 7 partitions: each once, in order within its partition, never more than the credit at once."""
    async with opens() as queen:
        for number in range(300):
            await queen.queue("q").partition(f"p{number % 7}").push(number)
        seen: dict[str, list[int]] = {}
        async with queen.queue("q").subscribe(group="g", credit=16, batch=8) as messages:
            for count in range(300):
                message = await messages.receive()
                assert messages.waiting < 16
                seen.setdefault(message.partition, []).append(message.data)
                assert await message.ack(), count
        assert {partition: sorted(data) for partition, data in seen.items()} == seen
        assert sum(map(len, seen.values())) == 300


@both
async def test_batches_are_settled_by_their_last(opens: Opens) -> None:
    """An ack commits everything before it in its partition."""
    async with opens() as queen:
        await queen.queue("q").push(list(range(50)))
        total = 0
        async with queen.queue("q").subscribe(group="g", credit=10) as messages:
            async for batch in messages.batches():
                total += len(batch)
                assert await batch[-1].ack()
                if total == 50:
                    break
        assert await queen.queue("q").pop(group="g") == []


@both
async def test_verdicts(opens: Opens) -> None:
    """A nack comes again and then is dead-lettered; a retry charges nothing; a dead letter is one at once."""
    async with opens() as queen:
        await queen.queue("q").config({"retryLimit": 1}).create()
        await queen.queue("q").push(["poison", "later", "bad"])
        seen: list[tuple[str, int]] = []
        async with queen.queue("q").subscribe(group="g") as messages:
            async for message in messages:
                seen.append((message.data, message.delivery_attempt))
                if message.data == "poison":
                    assert await message.nack("broken")
                elif message.data == "bad":
                    assert (await message.dead_letter("never")).dlq
                    break
                elif seen.count(("later", 1)) and len(seen) < 4:
                    assert await message.retry()
                else:
                    assert await message.ack()
        assert [data for data, _ in seen] == ["poison", "poison", "later", "later", "bad"]
        dead = (await queen.queue("q").dlq("g"))["messages"]
        assert {(one["data"], one["errorMessage"]) for one in dead} == {("poison", "broken"), ("bad", "never")}


@both
async def test_a_handler_for_each_message(opens: Opens) -> None:
    """`consume`: acked when the handler returns, nacked with its error when it raises, until the limit."""
    async with opens() as queen:
        await queen.queue("q").config({"retryLimit": 1}).create()
        await queen.queue("q").push(["good", "poison", "last"])
        seen: list[str] = []

        async def handle(message: Message) -> None:
            seen.append(message.data)
            if message.data == "poison":
                raise ValueError("bad")

        with trio.fail_after(10):
            await queen.queue("q").consume(handle, group="g", limit=4)
        assert seen == ["good", "poison", "poison", "last"]
        dead = (await queen.queue("q").dlq("g"))["messages"]
        assert [(one["data"], one["errorMessage"]) for one in dead] == [("poison", "ValueError: bad")]
        assert await queen.queue("q").pop(group="g") == []


@both
async def test_a61_leaving_with_unread_messages_is_prompt(opens: Opens) -> None:
    """A61: in well under two seconds, and another consumer has them at once."""
    async with opens() as queen:
        await queen.queue("q").push(list(range(100)))
        async with queen.queue("q").subscribe(group="g") as messages:
            assert (await messages.receive()).data == 0
            await trio.sleep(0.05)
            started = trio.current_time()
        assert trio.current_time() - started < 1.5
        with trio.fail_after(1):
            again = await queen.queue("q").pop(group="g", batch=100, wait=1)
        assert [message.data for message in again] == list(range(100))


@both
async def test_work_is_shared_and_survives_a_worker_that_fails(opens: Opens) -> None:
    """Four workers of a group; one dies at random: every message is handled, in order, by somebody."""
    async with opens() as queen:
        for number in range(120):
            await queen.queue("q").partition(f"p{number % 6}").push(number)
        done: dict[str, list[int]] = {}
        chance = random.Random(7)

        async def handle(messages: Subscription) -> None:
            while sum(map(len, done.values())) < 120:
                with trio.move_on_after(0.3):
                    message = await messages.receive()
                    if chance.random() < 0.1:
                        raise ZeroDivisionError
                    if await message.ack():
                        done.setdefault(message.partition, []).append(message.data)

        async def work() -> None:
            while sum(map(len, done.values())) < 120:
                try:
                    async with queen.queue("q").subscribe(group="g", credit=4) as messages:
                        await handle(messages)
                except ZeroDivisionError:
                    pass

        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                for _ in range(4):
                    nursery.start_soon(work)
        assert {partition: sorted(data) for partition, data in done.items()} == done
        assert sum(map(len, done.values())) == 120


@both
async def test_a_lock_is_held_and_lost_over_either(opens: Opens) -> None:
    """A38, A40: contenders get their turn one after the other; an operator can break a lock, and the holder is told."""
    async with opens() as queen:
        inside = 0

        async def work() -> None:
            nonlocal inside
            lock = queen.lock("job", ttl_seconds=5)
            assert await lock.acquire(wait=20)
            inside += 1
            assert inside == 1
            await trio.sleep(0.01)
            inside -= 1
            assert await lock.release()

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(work)
        told = trio.Event()
        lock = queen.lock("job", ttl_seconds=1, on_lost=lambda reason: told.set())
        assert await lock.acquire()
        await queen.kv.delete("queen-locks", "job#0")
        with trio.fail_after(1):
            await told.wait()
        assert lock.lost_reason == "renew"


@both
async def test_every_call_of_administration_is_served(opens: Opens) -> None:
    """None of the helpers asks for a route that the broker does not have."""
    async with opens() as queen:
        admin = queen.admin
        await queen.queue("shop.orders.new").config({"retryLimit": 0}).create()
        queue = queen.queue("shop.orders.new").group("g")
        await queue.push([{"data": number, "transactionId": f"t{number}"} for number in range(4)])
        message, *_ = await queue.batch(1).pop()
        assert (await queen.trace(message, {"step": 1}, names=["order-1"]))["success"]
        assert (await message.nack("bad")).dlq
        assert (await admin.get_overview())["queues"] == 1
        assert [one["name"] for one in (await admin.list_queues())["queues"]] == ["shop.orders.new"]
        assert [one["namespace"] for one in (await admin.get_namespaces())["namespaces"]] == ["shop"]
        assert [one["task"] for one in (await admin.get_tasks())["tasks"]] == ["orders"]
        assert (await admin.get_queue_depth("shop.orders.new", "g"))["pending"] == 3
        assert [one["name"] for one in await admin.list_consumer_groups()] == ["g"]
        assert list(await admin.get_consumer_group("g")) == ["shop.orders.new"]
        assert await admin.get_lagging_consumers() == []
        assert (await admin.list_messages(queue="shop.orders.new", limit=2))["total"] == 2
        assert (await admin.get_message(message.partition_id, "t0"))["status"] == "dead_letter"
        assert (await admin.get_traces_for_message(message.partition_id, "t0"))["total"] == 1
        assert (await admin.get_traces_by_name("order-1"))["total"] == 1
        assert (await admin.get_trace_names())["total"] == 1
        assert (await admin.retry_message(message.partition_id, "t0"))["result"] == "moved"
        with pytest.raises(NotFound):
            await admin.delete_message(message.partition_id, "t0")
        again, *_ = await queue.batch(1).pop(wait=1)
        assert (await again.nack("again")).dlq
        (dead,) = (await queue.dlq())["messages"]
        assert (await queue.dlq().replay(dead["id"], partition="other"))["result"] == "moved"
        assert (await queue.dlq().purge())["deleted"] == 0
        assert (await admin.move_subscription("g", "2026-01-01T00:00:00Z"))["rowsUpdated"] == 1
        assert (await admin.delete_consumer_group_for_queue("g", "shop.orders.new"))["success"]
        assert (await admin.health())["status"] == "healthy"


# What only a network has


async def _first(messages: Subscription) -> Message:
    with trio.fail_after(5):
        return await messages.receive()


async def test_a_broken_connection_is_made_again() -> None:
    """The subscription goes on over a new one: what was not settled comes again, and the old lease's ack is refused."""
    async with served() as server, connect(server.url) as queen:
        await queen.queue("q").push([0, 1, 2])
        async with queen.queue("q").subscribe(group="g", credit=1) as messages:
            one = await _first(messages)
            assert await one.ack()
            two = await _first(messages)
            await server.break_socket()
            again = await _first(messages)
            assert (again.data, again.delivery_attempt) == (1, 2)
            assert messages.lost_reason(two) == "disconnected"
            assert not await two.ack()
            assert await again.ack()
            last = await _first(messages)
            assert last.data == 2
            assert await last.ack()
    assert len(server.sockets) == 2


async def test_a_broker_that_stops_is_told_when_it_does_not_come_back() -> None:
    """After its bounded attempts the loop ends with ConnectionFailed."""
    stop = trio.Event()
    url: list[str] = []

    async def serve(task_status: trio.TaskStatus[None]) -> None:
        async with served() as server:
            url.append(server.url)
            task_status.started()
            await stop.wait()

    async with trio.open_nursery() as nursery:
        await nursery.start(serve)
        async with connect(url[0], retry=Retry(pause=0.001)) as queen:
            async with queen.queue("q").subscribe() as messages:
                stop.set()
                with pytest.raises(ConnectionFailed), trio.fail_after(10):
                    await messages.receive()
            with pytest.raises(ConnectionFailed):
                await queen.kv.get("n", "k")


async def test_a61_a_slow_handler_stays_connected() -> None:
    """A61: a handler that takes many heartbeats neither blocks the pings nor loses its lease, nor those of the messages
    that wait here for their turn."""
    async with served(heartbeat_seconds=0.2) as server, connect(server.url) as queen:
        await queen.queue("q").push(list(range(200)))
        async with queen.queue("q").subscribe(group="g", lease_seconds=1) as messages:
            message = await _first(messages)
            await trio.sleep(1.5)
            assert messages.lost_reason(message) is None
            assert await message.ack()
            await trio.sleep(5)
            assert await messages.ack(await messages.receive_batch(1000))
    assert len(server.sockets) == 1


@both
async def test_a_lost_lease_cancels_its_handler(opens: Opens) -> None:
    """Before it can ack: somebody moves the group, and the message comes again to the same consumer."""
    async with opens() as queen, trio.open_nursery() as nursery:
        await queen.queue("q").push([1, 2])
        began: list[int] = []
        ended: list[int] = []

        async def handle(message: Message) -> None:
            began.append(message.data)
            await trio.sleep(10)
            ended.append(message.data)

        nursery.start_soon(partial(queen.queue("q").consume, handler=handle, group="g", workers=2))
        await trio.sleep(5)
        assert began == [1]
        await queen.seek("g", "q", timestamp="2020-01-01T00:00:00Z")
        await trio.sleep(1)
        assert (began, ended) == ([1, 1], [])
        await trio.sleep(30)
        assert (began, ended) == ([1, 1, 2], [1, 2])
        nursery.cancel_scope.cancel()


@both
async def test_tasks_share_a_subscription(opens: Opens) -> None:
    """Several tasks iterate one subscription with as many workers: everything once, each partition in its order."""
    async with opens() as queen:
        for number in range(120):
            await queen.queue("q").partition(f"p{number % 5}").push(number)
        seen: dict[str, list[int]] = {}
        busy: set[str] = set()

        async def work(messages: Subscription) -> None:
            async for message in messages:
                assert message.partition not in busy
                busy.add(message.partition)
                await trio.sleep(0.01)
                busy.discard(message.partition)
                seen.setdefault(message.partition, []).append(message.data)
                await message.ack()
                if sum(map(len, seen.values())) == 120:
                    nursery.cancel_scope.cancel()

        subscription = queen.queue("q").subscribe(group="g", workers=3)
        with trio.fail_after(60):
            async with subscription as messages, trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(work, messages)
        assert seen == {f"p{first}": list(range(first, 120, 5)) for first in range(5)}


@both
async def test_leaving_a_watch_with_unread_changes_is_prompt(opens: Opens) -> None:
    """A61 for a watch, which is bounded by nobody's credit."""
    async with opens() as queen:
        async with queen.kv.watch("ns", prefix="k") as changes:
            for number in range(50):
                await queen.kv.put("ns", f"k{number}", "x" * 10_000, forever=True)
            await changes.receive()
            started = trio.current_time()
        assert trio.current_time() - started < 0.5


async def test_a_refused_socket_is_told_at_once() -> None:
    """A field that the broker refuses is an error of the subscribe, not a lost connection."""
    async with served() as server, connect(server.url) as queen:
        with pytest.raises(errors.BadRequest), trio.fail_after(5):
            async with queen.queue("q").subscribe(subscription_from="no instant"):
                pass
    assert len(server.sockets) == 1


async def test_a_token_opens_calls_and_subscriptions() -> None:
    """The same one for both; without it, and with one that may too little, the broker's refusal is raised at once."""
    secret = "a secret that is long enough for every one of them"
    async with served(jwt_secret=secret) as server:
        token = jwt.encode({"role": "admin", "sub": "billing"}, secret)
        async with connect(server.url, token) as queen:
            await queen.queue("q").push("hello")
            async with queen.queue("q").subscribe() as messages:
                assert (await _first(messages)).producer_sub == "billing"
        async with connect(server.url) as queen:
            with pytest.raises(errors.Unauthorized):
                await queen.queue("q").push("hello")
            with pytest.raises(errors.Unauthorized), trio.fail_after(10):
                async with queen.queue("q").subscribe():
                    pass
        async with connect(server.url, jwt.encode({"role": "read-only"}, secret)) as queen:
            assert (await queen.admin.get_queue("q"))["name"] == "q"
            with pytest.raises(errors.Forbidden):
                await queen.queue("q").push("hello")


async def test_auto_ack_over_the_socket_gives_credit_back() -> None:
    """More messages than the credit, and none comes again."""
    async with served() as server, connect(server.url) as queen:
        await queen.queue("q").push(list(range(100)))
        async with queen.queue("q").subscribe(group="g", auto_ack=True, credit=7) as messages:
            got = [(await _first(messages)).data for _ in range(100)]
        assert got == list(range(100))
        assert await queen.queue("q").pop(group="g") == []

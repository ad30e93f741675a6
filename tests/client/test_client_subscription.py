"""Subscriptions: the buffer between the feed and the user's loop, and consuming from the broker in process."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing
from client_fakes import FakeTransport

from queen_actors import Unavailable, errors, open_broker
from queen_actors.client import ConnectionFailed, Queen, serving


async def test_what_is_asked_of_the_broker() -> None:
    """What was chosen step by step or by keyword; the rest is left to the broker. A batch is within the credit."""
    transport = FakeTransport()
    async with serving(transport) as queen:
        orders = queen.queue("orders").partition("p").group("x")
        async with orders.subscribe(group="g", batch=50, credit=20, lease_seconds=9, max_lease_seconds=60):
            assert transport.feed is not None
            wanted = transport.feed.wanted
        assert (wanted.queue, wanted.partition, wanted.group) == ("orders", "p", "g")
        assert (wanted.batch, wanted.credit, wanted.partitions) == (20, 20, None)
        assert (wanted.lease_seconds, wanted.max_lease_seconds, wanted.auto_ack) == (9, 60, False)


async def test_messages_come_one_by_one_and_in_batches() -> None:
    """In the order of their delivery; a batch takes what is here."""
    transport = FakeTransport()
    async with serving(transport) as queen, queen.queue("q").subscribe() as messages:
        assert transport.feed is not None
        transport.feed.deliver(0, 1, 2, 3, 4)
        assert (await messages.receive()).data == 0
        assert [message.data for message in await messages.receive_batch(2)] == [1, 2]
        assert messages.waiting == 2
        async for batch in messages.batches():
            assert [message.data for message in batch] == [3, 4]
            break


async def test_every_waiting_task_is_woken(autojump_clock: object) -> None:
    """Several workers may share a subscription."""
    transport = FakeTransport()
    got: list[int] = []

    async def work(messages: Any) -> None:
        with trio.fail_after(5):
            got.append((await messages.receive()).data)

    async with serving(transport) as queen, queen.queue("q").subscribe() as messages, trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(work, messages)
        await trio.testing.wait_all_tasks_blocked()
        assert transport.feed is not None
        transport.feed.deliver(0)
        await trio.testing.wait_all_tasks_blocked()
        transport.feed.deliver(1, 2)
    assert sorted(got) == [0, 1, 2]


async def test_settling_goes_through_the_feed() -> None:
    """With the group of the subscription; a list is one request."""
    transport = FakeTransport()
    async with serving(transport) as queen, queen.queue("q").subscribe(group="g") as messages:
        feed = transport.feed
        assert feed is not None
        feed.deliver(0, 1, 2)
        first = await messages.receive()
        assert await first.ack()
        assert await messages.ack(await messages.receive_batch(2))
        assert await messages.ack([])
    assert [([ack["transactionId"] for ack in acks], group) for acks, group in feed.acks] == [
        (["t0"], "g"),
        (["t1", "t2"], "g"),
    ]


@pytest.mark.parametrize("verdict", ["nack", "retry", "dead_letter"])
async def test_a_verdict_that_ends_the_lease_forgets_what_lies_behind(verdict: str) -> None:
    """The rest of that partition comes again, so it is not handed out now; other partitions go on."""
    transport = FakeTransport()
    async with serving(transport) as queen, queen.queue("q").subscribe() as messages:
        feed = transport.feed
        assert feed is not None
        feed.deliver(0, 1, 2, lease="L1", partition="1")
        feed.deliver(5, lease="L1", partition="2")
        message = await messages.receive()
        await getattr(message, verdict)()
        assert (await messages.receive()).data == 5
        assert messages.waiting == 0
        feed.deliver(0, 1, lease="L2", partition="1")
        assert (await messages.receive()).data == 0


async def test_a_lost_lease_takes_its_messages_along() -> None:
    """What was not handed out is gone, and what was knows why."""
    transport = FakeTransport()
    async with serving(transport) as queen, queen.queue("q").subscribe() as messages:
        feed = transport.feed
        assert feed is not None
        assert feed.sink is not None
        feed.deliver(0, 1, lease="L1", partition="1")
        feed.deliver(2, 3, lease="L1", partition="2")
        one = await messages.receive()
        feed.sink.lost("L1", "1", "seek")
        assert messages.lost_reason(one) == "seek"
        two = await messages.receive()
        assert (two.data, messages.lost_reason(two)) == (2, None)
        feed.sink.lost("L1", None, "expired")
        assert messages.waiting == 0
        assert messages.lost_reason(two) == "expired"
        feed.deliver(9, lease="L9")
        nine = await messages.receive()
        feed.sink.lost(None, None, "disconnected")
        assert messages.lost_reason(nine) == "disconnected"


async def test_the_end_of_the_feed_is_told_after_what_is_here() -> None:
    """The loop ends with the feed's error, not before the messages that came."""
    transport = FakeTransport()
    got: list[int] = []

    async def consume(queen: Queen) -> None:
        async with queen.queue("q").subscribe() as messages:
            assert transport.feed is not None
            transport.feed.deliver(0)
            transport.feed.break_off()
            while True:
                got.append((await messages.receive()).data)

    async with serving(transport) as queen:
        with pytest.raises(ConnectionFailed):
            await consume(queen)
    assert got == [0]


async def test_a_refused_subscription_is_told_at_once() -> None:
    """Entering raises what the broker said."""
    transport = FakeTransport()
    async with serving(transport) as queen:
        subscription = queen.queue("q").subscribe()
        assert transport.feed is not None
        transport.feed.refusal = errors.Forbidden("not yours")
        with pytest.raises(errors.Forbidden, match="not yours"):
            await subscription.__aenter__()


async def test_leaving_does_not_wait_for_a_feed_that_does_not_end(autojump_clock: object) -> None:
    """A61: with unread messages and a deaf feed, leaving takes less than two seconds."""
    transport = FakeTransport()
    async with serving(transport) as queen:
        subscription = queen.queue("q").subscribe()
        assert transport.feed is not None
        transport.feed.deaf = True
        async with subscription:
            transport.feed.deliver(*range(50))
            started = trio.current_time()
        assert trio.current_time() - started < 2
        with pytest.raises(Unavailable, match="was left"):
            await subscription.receive()
        with pytest.raises(RuntimeError, match="entered once"):
            await subscription.__aenter__()


async def test_credit_comes_back_for_what_needs_no_ack() -> None:
    """With `auto_ack`, each message that is handed out gives one back."""
    transport = FakeTransport()
    async with serving(transport) as queen, queen.queue("q").subscribe(auto_ack=True, credit=3) as messages:
        feed = transport.feed
        assert feed is not None
        feed.deliver(0, 1, 2, lease="")
        assert feed.granted == 0
        await messages.receive_batch(2)
        assert feed.granted == 2


# Against the broker, in process


async def test_consuming_in_process(autojump_clock: object) -> None:
    """In order, each once; what is pushed later comes too."""
    async with open_broker() as queen:
        await queen.queue("q").push(list(range(5)))
        got: list[int] = []
        async with queen.queue("q").subscribe(group="g", credit=2) as messages:
            await queen.queue("q").push(list(range(5, 10)))
            async for message in messages:
                got.append(message.data)
                assert message.queue == "q"
                assert await message.ack()
                if len(got) == 10:
                    break
        assert got == list(range(10))
        assert await queen.queue("q").pop(group="g") == []


async def test_a_subscription_starts_when_it_is_entered(autojump_clock: object) -> None:
    """A21: mode `new` delivers what is pushed once the block is entered, and nothing older."""
    async with open_broker() as queen:
        await queen.queue("q").push("old")
        async with queen.queue("q").subscribe(group="g", subscription_mode="new") as messages:
            await queen.queue("q").push(list(range(10)))
            assert [(await messages.receive()).data for _ in range(10)] == list(range(10))


async def test_leaving_gives_back_what_is_not_settled(autojump_clock: object) -> None:
    """Unread and unacknowledged messages are with the next consumer at once, and no retry is charged."""
    async with open_broker() as queen:
        await queen.queue("q").config({"retryLimit": 0}).create()
        await queen.queue("q").push(list(range(20)))
        async with queen.queue("q").subscribe(group="g") as messages:
            assert await (await messages.receive()).ack()
            assert (await messages.receive()).data == 1
            started = trio.current_time()
        assert trio.current_time() == started, "at once: no bound had to end it"
        again = await queen.queue("q").pop(group="g", batch=100)
        assert [message.data for message in again] == list(range(1, 20))
        assert (await queen.queue("q").dlq("g"))["total"] == 0


async def test_a_message_that_failed_comes_again_before_the_later_ones(autojump_clock: object) -> None:
    """Order within the partition holds over a nack, although the later ones were here already."""
    async with open_broker() as queen:
        await queen.queue("q").push(list(range(4)))
        handled: list[int] = []
        async with queen.queue("q").subscribe(group="g") as messages:
            async for message in messages:
                handled.append(message.data)
                if message.data == 1 and handled.count(1) < 3:
                    await message.nack("not yet")
                else:
                    await message.ack()
                if message.data == 3:
                    break
        assert handled == [0, 1, 1, 1, 2, 3]


async def test_leases_are_renewed_while_messages_wait_their_turn(autojump_clock: object) -> None:
    """A09: prefetch 20, a handler of 0.2 s, leases of 1 s: 200 messages, none of them twice."""
    async with open_broker() as queen:
        await queen.queue("q").push(list(range(200)))
        got: list[int] = []
        async with queen.queue("q").subscribe(group="g", credit=20, batch=20, lease_seconds=1) as messages:
            async for message in messages:
                assert message.delivery_attempt == 1
                got.append(message.data)
                await trio.sleep(0.2)
                assert await message.ack()
                if message.data == 199:
                    break
        assert got == list(range(200))


async def test_a_lease_is_not_renewed_for_ever(autojump_clock: object) -> None:
    """Past `max_lease_seconds` the message is another consumer's, and the ack of the slow one is refused."""
    async with open_broker() as queen:
        await queen.queue("q").push("slow")
        async with queen.queue("q").subscribe(group="g", lease_seconds=2, max_lease_seconds=5) as messages:
            message = await messages.receive()
            await trio.sleep(4)
            assert await queen.queue("q").pop(group="g") == []
            assert messages.lost_reason(message) is None
            await trio.sleep(3)
            assert messages.lost_reason(message) == "maxLease"
            again = await messages.receive()
            assert again.delivery_attempt == 2
            assert not await message.ack()
            assert await again.ack()


async def test_a_seek_ends_the_leases_and_delivers_again(autojump_clock: object) -> None:
    """What was here unread is not handed out twice."""
    async with open_broker() as queen:
        await queen.queue("q").push(list(range(3)))
        async with queen.queue("q").subscribe(group="g") as messages:
            first = await messages.receive()
            await queen.seek("g", "q", timestamp="2020-01-01T00:00:00Z")
            assert messages.lost_reason(first) == "seek"
            assert [(await messages.receive()).data for _ in range(3)] == [0, 1, 2]


async def test_acks_in_a_transaction_settle_a_subscriptions_messages(autojump_clock: object) -> None:
    """Credit comes back whichever way a message was acknowledged."""
    async with open_broker() as queen:
        await queen.queue("in").push(list(range(6)))
        async with queen.queue("in").subscribe(group="g", credit=1) as messages:
            for number in range(6):
                message = await messages.receive()
                assert message.data == number
                assert await queen.transaction().ack(message).queue("out").push(number * 2).commit()
        assert [message.data for message in await queen.queue("out").pop()] == [0, 2, 4, 6, 8, 10]


async def test_a_fired_timer_tells_its_key(autojump_clock: object) -> None:
    """Where the transport knows it; never early."""
    async with open_broker() as queen, queen.queue("reminders").subscribe() as messages:
        started = trio.current_time()
        assert await queen.timer("reminders").key("order/1").payload({"id": 1}).after(5).schedule()
        message = await messages.receive()
        assert trio.current_time() - started >= 5
        assert (message.data, message.timer_key) == ({"id": 1}, "order/1")


async def test_auto_ack_needs_nothing_settled(autojump_clock: object) -> None:
    """Committed at the delivery: more than the credit comes through, and nothing comes again."""
    async with open_broker() as queen:
        await queen.queue("q").push(list(range(30)))
        async with queen.queue("q").subscribe(group="g", auto_ack=True, credit=4) as messages:
            with trio.fail_after(60):
                assert [(await messages.receive()).data for _ in range(30)] == list(range(30))
        assert await queen.queue("q").pop(group="g") == []


async def test_leaving_the_client_ends_a_subscription_elsewhere(autojump_clock: object) -> None:
    """A task that outlives the client learns it, and does not wait for ever."""
    failure: list[Exception] = []

    async def consume(queen: Queen, entered: trio.Event) -> None:
        try:
            async with queen.queue("q").subscribe() as messages:
                entered.set()
                await messages.receive()
        except Unavailable as error:
            failure.append(error)

    async with trio.open_nursery() as nursery, open_broker() as queen:
        entered = trio.Event()
        nursery.start_soon(consume, queen, entered)
        await entered.wait()
    assert "closed" in str(failure[0])

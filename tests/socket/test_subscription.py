"""A subscription in process: what the socket stands on, and what a Trio program uses directly."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing
from socket_peer import House, house

from queen_actors.actors.subscription import Delivery, Lost, Subscription, SubscriptionStatistics, subscribed
from queen_actors.broker import Broker
from queen_actors.domain.cursor import Ack, PopReply, PopRequest
from queen_actors.domain.partition import PushItem
from queen_actors.domain.subscription import Terms
from queen_actors.errors import BadRequest, Overloaded
from queen_actors.storage.memory import Faults

VIRTUAL_TIME = True


async def push(broker: Broker, *payloads: int, partition: str = "p") -> None:
    await broker.push([PushItem("q", partition, b"%d" % payload) for payload in payloads])


def payloads(deliveries: list[Delivery]) -> list[int]:
    return [int(record.payload) for delivery in deliveries for record in delivery.claim.records]


async def ack(broker: Broker, delivery: Delivery, *places: int, status: str = "completed") -> None:
    records = delivery.claim.records
    chosen = [records[place] for place in places] if places else records
    await broker.ack([Ack(r.txn, delivery.claim.pid, delivery.group, status, delivery.lease_id) for r in chosen])


async def test_deliveries_acks_and_statistics(hall: House) -> None:
    """What is delivered counts as unsettled until it is settled, message by message."""
    async with subscribed(hall.broker, Terms(queue="q", credit=5)) as subscription:
        await push(hall.broker, 1, 2, 3)
        (delivery,) = await subscription.next()
        assert payloads([delivery]) == [1, 2, 3]
        assert subscription.statistics() == SubscriptionStatistics(credit=5, unsettled=3, leases=1)
        await ack(hall.broker, delivery, 1)
        assert subscription.statistics() == SubscriptionStatistics(credit=5, unsettled=1, leases=1)
        await ack(hall.broker, delivery, 2)
        assert subscription.statistics() == SubscriptionStatistics(credit=5, unsettled=0, leases=0)


async def test_leaving_gives_back(hall: House) -> None:
    """At the end of the block what is leased is free again."""
    await push(hall.broker, 1)
    async with subscribed(hall.broker, Terms(queue="q")) as subscription:
        await subscription.next()
        assert hall.broker.statistics().leases == 1
    assert hall.broker.statistics().leases == 0


async def test_leaving_by_cancellation_gives_back(hall: House) -> None:
    """Also when the block is cancelled."""
    await push(hall.broker, 1)
    with trio.move_on_after(1):
        async with subscribed(hall.broker, Terms(queue="q")) as subscription:
            await subscription.next()
            await trio.sleep_forever()
    assert hall.broker.statistics().leases == 0


async def test_leases_are_kept_alive_in_process(hall: House) -> None:
    """Without a connection whose peer could die, a lease lives as long as the block, up to its maximum."""
    lost: list[Lost] = []
    await push(hall.broker, 1)
    terms = Terms(queue="q", lease_seconds=2, max_lease_seconds=100)
    async with subscribed(hall.broker, terms, lost.append) as subscription:
        (delivery,) = await subscription.next()
        await trio.sleep(98)
        assert lost == []
        await trio.sleep(3)
        assert lost == [Lost(delivery.lease_id, "p", delivery.claim.pid, "maxLease")]


async def test_a_lease_is_never_extended_past_its_maximum(hall: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every extension asks for no more than is left."""
    asked: list[float] = []
    extend = hall.broker.extend

    async def watch(lease_id: str, seconds: int) -> Any:
        asked.append(trio.current_time() + seconds)
        return await extend(lease_id, seconds)

    monkeypatch.setattr(hall.broker, "extend", watch)
    await push(hall.broker, 1)
    began = trio.current_time()
    async with subscribed(hall.broker, Terms(queue="q", lease_seconds=7, max_lease_seconds=20)) as subscription:
        await subscription.next()
        await trio.sleep(60)
    assert asked
    assert max(asked) <= began + 20


async def test_next_is_safe_to_cancel() -> None:
    """Whoever is cancelled holds nothing, at whatever moment it happens, and it counts as no delivery."""
    async with house(faults=Faults(latency=1)) as hall:
        await push(hall.broker, 1)
        async with subscribed(hall.broker, Terms(queue="q")) as subscription:
            for moment in (0, 0.3, 0.9):
                with trio.move_on_after(moment) as scope:
                    await subscription.next()
                assert scope.cancelled_caught
                assert subscription.statistics().unsettled == 0
            await trio.sleep(3)
            (delivery,) = await subscription.next()
            assert (payloads([delivery]), delivery.claim.attempt) == ([1], 1)


async def test_a_pop_that_waits_asks_again_for_more_credit(hall: House) -> None:
    """A pop that was parked for the last bit of credit is made anew when there is much more."""
    async with subscribed(hall.broker, Terms(queue="q", credit=1)) as subscription:
        found: list[list[Delivery]] = []

        async def wait() -> None:
            found.append(await subscription.next())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.sleep(1)
            subscription.grant(49)
            await trio.sleep(1)
            await push(hall.broker, *range(50))
        assert payloads(found[0]) == list(range(50))


async def test_a_lease_that_ends_before_its_delivery_is_not_delivered() -> None:
    """A claim and the seek that takes it away may become durable together: then nothing is delivered, nor counted."""
    async with house(faults=Faults(latency=1)) as hall:
        lost: list[Lost] = []
        found: list[list[Delivery]] = []
        await push(hall.broker, 1, 2)
        async with subscribed(hall.broker, Terms(queue="q", group="g"), lost.append) as subscription:

            async def wait() -> None:
                found.append(await subscription.next())

            async with trio.open_nursery() as nursery:
                nursery.start_soon(push, hall.broker, 0)  # the log is busy with it when the next two come
                await trio.sleep(0.5)
                await hall.broker.seek("g", "q", None, None)
                nursery.start_soon(push, hall.broker, 3)
                await trio.sleep(0.5)
                nursery.start_soon(wait)
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(hall.broker.seek, "g", "q", None, None)
                await trio.sleep(10)
                assert (found, lost, subscription.statistics().unsettled) == ([], [], 0)
                await push(hall.broker, 4)
            assert payloads(found[0]) == [4]


async def test_auto_ack_counts_until_credit_is_granted(hall: House) -> None:
    """With `auto_ack` nothing is leased, and credit comes back by `grant` only."""
    await push(hall.broker, *range(10))
    async with subscribed(hall.broker, Terms(queue="q", credit=4, auto_ack=True)) as subscription:
        (delivery,) = await subscription.next()
        assert (payloads([delivery]), delivery.lease_id) == ([0, 1, 2, 3], "")
        with trio.move_on_after(100) as waited:
            await subscription.next()
        assert waited.cancelled_caught
        subscription.grant(3)
        assert payloads(await subscription.next()) == [4, 5, 6]
        assert subscription.statistics() == SubscriptionStatistics(credit=3, unsettled=3, leases=0)


@pytest.mark.parametrize("moment", [0.2, 0.9, 1.5])
async def test_auto_ack_loses_nothing_to_a_cancellation(moment: float) -> None:
    """What is committed at its delivery is delivered, also to a caller who is cancelled before it is durable."""
    async with house(faults=Faults(latency=1)) as hall:
        await push(hall.broker, 1)
        async with subscribed(hall.broker, Terms(queue="q", auto_ack=True)) as subscription:
            found: list[Delivery] = []
            for _ in range(10):
                with trio.move_on_after(moment):
                    found += await subscription.next()
            assert payloads(found) == [1]


async def test_a_bad_start_is_refused(hall: House) -> None:
    """What `register` refuses, `open` raises, and nothing is left behind."""
    with pytest.raises(BadRequest):
        async with subscribed(hall.broker, Terms(queue="q", group="g", subscription_from="soon")):
            raise AssertionError("not reached")
    assert await hall.broker.queue_view("q") is None


async def test_a_broker_that_cannot_extend_does_not_end_it(hall: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """An extension that is refused is tried again; until then the lease runs on."""
    refusals = [Overloaded("full")]
    extend = hall.broker.extend

    async def sometimes(lease_id: str, seconds: int) -> Any:
        if refusals:
            raise refusals.pop()
        return await extend(lease_id, seconds)

    monkeypatch.setattr(hall.broker, "extend", sometimes)
    await push(hall.broker, 1)
    async with subscribed(hall.broker, Terms(queue="q", lease_seconds=10)) as subscription:
        (delivery,) = await subscription.next()
        await trio.sleep(100)
        assert refusals == []
        assert subscription.statistics().leases == 1
        await ack(hall.broker, delivery)


async def test_a_stopping_broker_is_not_asked_in_a_loop(hall: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pop that comes back empty before its time is not repeated at once, again and again."""
    asked = 0

    async def empty(request: PopRequest, messages: int) -> list[PopReply]:
        nonlocal asked
        asked += 1
        await trio.lowlevel.checkpoint()
        return [PopReply("", request.group, ())]

    monkeypatch.setattr(hall.broker, "pops", empty)
    subscription = Subscription(hall.broker, Terms(queue="q"))
    await subscription.open()
    with trio.move_on_after(10):
        await subscription.next()
    assert asked <= 101
    await subscription.close()

"""Pop (wire-messaging.md, section 7): routes, answers, claims, long polls, subscriptions, conflation."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock
from wire_kit import Wire, direct, schedule

from queen_actors.config import Settings
from queen_actors.values import iso_zulu, parse_instant


def data(messages: list[Any]) -> list[Any]:
    return [message["data"] for message in messages]


# -- 7.1 to 7.3 --------------------------------------------------------------------------------------------------------


async def test_the_answer_of_a_pop(wire: Wire) -> None:
    """Every key of 7.3, at the top and on each message; one lease for all of it."""
    pushed = await wire.push("orders", {"a": 1}, {"a": 2}, partition="p1")
    answer = await wire.pop_answer("orders", consumerGroup="g", subscriptionMode="all")
    assert answer.status == 200
    body = answer.json
    lease, pid = body["leaseId"], body["partitionId"]
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}", lease)
    assert re.fullmatch(r"[0-9]+", pid)
    top = {"success": True, "queue": "orders", "partition": "p1", "partitionId": pid, "leaseId": lease}
    messages = [
        {
            "id": pushed[place]["message_id"],
            "transactionId": f"t{place}",
            "traceId": None,
            "data": {"a": place + 1},
            "producerSub": None,
            "createdAt": body["messages"][place]["createdAt"],
            "partitionId": pid,
            "partition": "p1",
            "leaseId": lease,
            "consumerGroup": "g",
            "deliveryAttempt": 1,
            "offset": place,
        }
        for place in range(2)
    ]
    assert body == {**top, "consumerGroup": "g", "messages": messages, "partitionsClaimed": 1}
    assert body["messages"][0]["createdAt"].endswith("Z")


async def test_an_empty_pop_is_a_204(timed: Wire, autojump_clock: MockClock) -> None:
    """Without a body, waiting or not, on each route."""
    await timed.configure("q")
    for queue, partition in (("q", None), ("q", "p"), ("unknown", "p"), ("new", None)):
        assert await timed.pop(queue, partition) == []
    started = trio.current_time()
    assert await timed.pop("q", wait=True, timeout=2000) == []
    assert 2 <= trio.current_time() - started < 2.1


async def test_what_a_pop_of_an_unknown_queue_creates(wire: Wire) -> None:
    """The wildcard route creates it, with implicit options; the pinned one creates nothing (7.4)."""
    await wire.pop("pinned", "p")
    assert (await wire.request("GET", "/api/v1/resources/queues/pinned")).status == 404
    await wire.pop("wild")
    assert (await wire.ok("GET", "/api/v1/resources/queues/wild"))["options"]["leaseTime"] == 60


async def test_discovery(wire: Wire) -> None:
    """Every queue that has all the labels that were asked for; one of them must be."""
    for queue, namespace, task in (("a", "n", "t"), ("b", "n", "u"), ("c", "m", "t")):
        await wire.ok("POST", "/api/v1/configure", {"queue": queue, "namespace": namespace, "task": task})
        await wire.push(queue, queue)
    assert data(await wire.pop(None, namespace="n", task="u")) == ["b"]
    assert sorted(data(await wire.pop(None, task="t", partitions=5))) == ["a", "c"]
    assert await wire.pop(None, namespace="n", partitions=5) == []
    for query in ({}, {"namespace": "", "task": ""}):
        answer = await wire.pop_answer(None, **query)
        assert answer.status == 400
        assert {
            "success": False,
            "error": "namespace or task is required",
            "messages": [],
        }.items() <= answer.json.items()


async def test_parameters_that_are_declined(wire: Wire) -> None:
    """`autopilot` and `frames` are ignored, and so is what nobody knows; the labels mean nothing beside a queue."""
    for n in range(4):
        await wire.push("q", *range(5), partition=f"p{n}")
    answer = await wire.pop_answer("q", autopilot=True, batch=100, frames=True, namespace="x", task="y", colour="red")
    assert (answer.headers["content-type"], len(answer.json["messages"])) == ("application/json", 5)
    assert answer.json["partitionsClaimed"] == 1


async def test_batch_is_a_cap_over_all_partitions(wire: Wire) -> None:
    """`batch(10).partitions(5)` over 5 x 100 messages is 10 messages under one lease."""
    for n in range(5):
        await wire.push("q", *range(100), partition=f"p{n}")
    messages = await wire.pop("q", batch=10, partitions=5)
    assert len(messages) == 10
    assert len({message["leaseId"] for message in messages}) == 1
    wide = await wire.pop("q", batch=1000, partitions=64, consumerGroup="g", subscriptionMode="all")
    assert len(wide) == 500
    names = [message["partition"] for message in wide]
    assert [name for place, name in enumerate(names) if place == 0 or names[place - 1] != name] == list(
        dict.fromkeys(names)
    )
    for name in set(names):
        assert [message["offset"] for message in wide if message["partition"] == name] == list(range(100))


async def test_the_default_batch_is_200(wire: Wire) -> None:
    """And a pop without `partitions` takes one partition."""
    await wire.push("q", *range(250))
    assert len(await wire.pop("q")) == 200
    assert await wire.pop("q", batch=5) == []


@pytest.mark.parametrize("query", [{"batch": "many"}, {"wait": "perhaps"}, {"subscriptionFrom": "yesterday"}])
async def test_a_parameter_that_cannot_be_read(wire: Wire, query: dict[str, str]) -> None:
    """400 in the route's own shape."""
    answer = await wire.pop_answer("q", **query)
    assert (answer.status, answer.json["success"], answer.json["messages"]) == (400, False, [])
    assert answer.json["error"]


# -- 7.4 ---------------------------------------------------------------------------------------------------------------


async def test_strict_order_within_a_partition(timed: Wire, autojump_clock: MockClock) -> None:
    """Nothing behind a leased span is delivered to the group until it is settled or over; others are not affected."""
    await timed.push("q", *range(4))
    first = await timed.pop("q", batch=2, leaseSeconds=5)
    assert data(first) == [0, 1]
    assert await timed.pop("q") == []
    assert await timed.pop("q", "Default") == []
    assert data(await timed.pop("q", consumerGroup="g", subscriptionMode="all")) == [0, 1, 2, 3]
    await timed.push("q", "other", partition="p")
    assert data(await timed.pop("q")) == ["other"]
    await timed.ack(*((message, "completed") for message in first))
    second = await timed.pop("q", batch=1)
    assert (data(second), second[0]["deliveryAttempt"]) == ([2], 1)


async def test_an_expired_lease_redelivers_and_charges_nothing(timed: Wire, autojump_clock: MockClock) -> None:
    """With `retryLimit` 0 the message would be dead-lettered by one failure; ten expiries do nothing to it."""
    await timed.configure("q", leaseTime=1, retryLimit=0)
    await timed.push("q", 1)
    for attempt in range(1, 11):
        (message,) = await timed.pop("q", wait=True, timeout=5000)
        assert message["deliveryAttempt"] == attempt
        await trio.sleep(1.01)
    assert await timed.dead_letters("q") == []


async def test_lease_lengths(timed: Wire, autojump_clock: MockClock) -> None:
    """`leaseSeconds` of the pop, else `leaseTime` of the queue."""
    await timed.configure("q", leaseTime=10)
    for query, seconds in (({}, 10), ({"leaseSeconds": 0}, 10), ({"leaseSeconds": 3}, 3)):
        group = f"g{seconds}{len(query)}"
        await timed.push("q", 1, txn=group)
        assert await timed.pop("q", consumerGroup=group, subscriptionMode="all", **query)
        await trio.sleep(seconds - 0.01)
        assert await timed.pop("q", consumerGroup=group) == []
        await trio.sleep(0.02)
        assert await timed.pop("q", consumerGroup=group, autoAck=True)


async def test_auto_ack_commits_at_delivery(timed: Wire, autojump_clock: MockClock) -> None:
    """No lease, attempt 1, and never again."""
    await timed.push("q", 1, 2)
    answer = await timed.pop_answer("q", autoAck=True, batch=1)
    assert (answer.json["leaseId"], answer.json["messages"][0]["leaseId"]) == ("", "")
    assert data(await timed.pop("q", autoAck=True)) == [2]
    await trio.sleep(1000)
    assert await timed.pop("q") == []
    pid = answer.json["partitionId"]
    (entry,) = await timed.ack({"transactionId": "t0", "partitionId": pid, "status": "completed"})
    assert (entry["success"], entry["noop"]) == (True, True)


async def test_delayed_processing(timed: Wire, autojump_clock: MockClock) -> None:
    """Invisible until `delayedProcessing` after its push, message by message."""
    await timed.configure("q", delayedProcessing=2)
    await timed.push("q", 1, txn="a")
    await trio.sleep(1)
    await timed.push("q", 2, txn="b")
    assert await timed.pop("q") == []
    await trio.sleep(1.01)
    first = await timed.pop("q")
    assert data(first) == [1]
    await timed.ack((first[0], "completed"))
    started = trio.current_time()
    assert data(await timed.pop("q", wait=True, timeout=5000)) == [2]
    assert 0.9 < trio.current_time() - started < 1.1


async def test_window_buffer(timed: Wire, autojump_clock: MockClock) -> None:
    """Nothing while the last write is younger than the window; then all of it together."""
    await timed.configure("q", windowBuffer=2)
    for n in range(3):
        await timed.push("q", n, txn=f"t{n}")
        await trio.sleep(1)
        assert await timed.pop("q") == []
    started = trio.current_time()
    assert data(await timed.pop("q", wait=True, timeout=5000)) == [0, 1, 2]
    assert 0.9 < trio.current_time() - started < 1.1


async def test_queue_mode_and_groups_are_independent(wire: Wire) -> None:
    """Consuming in one removes nothing for the other."""
    await wire.push("q", 1)
    for group in (None, "g", "h"):
        query = {} if group is None else {"consumerGroup": group, "subscriptionMode": "all"}
        (message,) = await wire.pop("q", **query)
        assert message["consumerGroup"] == (group or "__QUEUE_MODE__")
        assert (await wire.ack((message, "completed"), group=group))[0]["success"] is True


# -- 7.5 ---------------------------------------------------------------------------------------------------------------

Act = Callable[[Wire], Awaitable[Any]]


async def leased(wire: Wire) -> Any:
    await wire.configure("q", leaseTime=40)
    await wire.push("q", 1, txn="first")
    return (await wire.pop("q", batch=1))[0]


async def wakes(wire: Wire, act: Callable[[], Awaitable[Any]], **query: Any) -> list[Any]:
    """What a parked pop of `q` gets within half a second after `act`."""
    found: list[Any] = []
    done = trio.Event()

    async def poll() -> None:
        queue = query.pop("queue", "q")
        found.extend(await wire.pop(queue, query.pop("partition", None), wait=True, timeout=20_000, **query))
        done.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(poll)
        await trio.sleep(1)
        assert not done.is_set()
        await act()
        with trio.fail_after(0.5):
            await done.wait()
    return found


@pytest.mark.parametrize(
    "query",
    [{}, {"partition": "p"}, {"queue": None, "namespace": "n"}, {"queue": None, "task": "t"}],
    ids=["wildcard", "pinned", "namespace", "task"],
)
async def test_a_push_wakes_every_kind_of_pop(timed: Wire, autojump_clock: MockClock, query: dict[str, Any]) -> None:
    """Also the discovery pops (decisions.md)."""
    await timed.ok("POST", "/api/v1/configure", {"queue": "q", "namespace": "n", "task": "t"})
    assert data(await wakes(timed, lambda: timed.push("q", 1, partition="p"), **query)) == [1]


async def test_an_ack_wakes(timed: Wire, autojump_clock: MockClock) -> None:
    """What was behind the leased span is next."""
    message = await leased(timed)
    await timed.push("q", 2, txn="second")
    assert data(await wakes(timed, lambda: timed.ack((message, "completed")))) == [2]


@pytest.mark.parametrize("status", ["failed", "retry"])
async def test_a_nack_wakes(timed: Wire, autojump_clock: MockClock, status: str) -> None:
    """The message comes again at once, as its second attempt."""
    message = await leased(timed)
    (again,) = await wakes(timed, lambda: timed.ack((message, status)))
    assert (again["data"], again["deliveryAttempt"]) == (1, 2)


async def test_the_end_of_a_lease_wakes(timed: Wire, autojump_clock: MockClock) -> None:
    """At its time, and not before."""
    await leased(timed)
    started = trio.current_time()
    (again,) = await timed.pop("q", wait=True, timeout=60_000)
    assert (again["data"], again["deliveryAttempt"]) == (1, 2)
    assert 39.9 < trio.current_time() - started < 40.1


async def test_a_timer_wakes(timed: Wire, autojump_clock: MockClock) -> None:
    """On an idle broker, a long poll gets what a timer brings."""
    await timed.configure("q")
    found = await wakes(timed, lambda: timed.timers(schedule("q", "k", 1, 300)))
    assert data(found) == [1]


async def test_a_seek_wakes(timed: Wire, autojump_clock: MockClock) -> None:
    """A group moved back has messages again."""
    message = await leased(timed)
    await timed.ack((message, "completed"))
    seek = {"timestamp": "2020-01-01T00:00:00Z"}
    path = "/api/v1/consumer-groups/__QUEUE_MODE__/queues/q/seek"
    assert data(await wakes(timed, lambda: timed.ok("POST", path, seek))) == [1]


async def test_a_group_that_is_deleted_wakes(timed: Wire, autojump_clock: MockClock) -> None:
    """Its leases are gone: what it held is delivered to whoever polls in that name."""
    await timed.push("q", 1)
    assert await timed.pop("q", consumerGroup="g", subscriptionMode="all", leaseSeconds=600)
    act = lambda: timed.ok("DELETE", "/api/v1/consumer-groups/g")  # noqa: E731
    assert data(await wakes(timed, act, consumerGroup="g", subscriptionMode="all")) == [1]


@pytest.mark.parametrize("query", [{"partition": "p"}, {"queue": None, "namespace": "n"}], ids=["pinned", "discovery"])
async def test_a_queue_that_is_created_later_wakes(
    timed: Wire, autojump_clock: MockClock, query: dict[str, Any]
) -> None:
    """Polls park for a queue that nobody knows yet."""

    async def create() -> None:
        await timed.ok("POST", "/api/v1/configure", {"queue": "q", "namespace": "n"})
        await timed.push("q", 1, partition="p")

    assert data(await wakes(timed, create, **query)) == [1]


async def test_the_end_of_a_delay_wakes(timed: Wire, autojump_clock: MockClock) -> None:
    """A long poll that began before the delayed push gets it when the delay is over."""
    await timed.configure("q", delayedProcessing=5)
    found: list[Any] = []

    async def poll() -> None:
        found.extend(await timed.pop("q", wait=True, timeout=30_000))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(poll)
        await trio.sleep(1)
        await timed.push("q", 1)
        started = trio.current_time()
    assert data(found) == [1]
    assert 4.9 < trio.current_time() - started < 5.1


async def test_one_message_goes_to_one_of_many_polls(timed: Wire, autojump_clock: MockClock) -> None:
    """The others stay parked, and each later message finds one of them."""
    found: list[Any] = []

    async def poll() -> None:
        found.append(data(await timed.pop("q", wait=True, timeout=10_000)))

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(poll)
        await trio.sleep(1)
        for n in range(4):
            await timed.push("q", n, partition=f"p{n}")
            await trio.sleep(0.1)
            assert len(found) == n + 1
    assert sorted(found) == [[], [], [], [], [], [], [0], [1], [2], [3]]


async def test_a_poll_whose_caller_is_gone_leases_nothing(timed: Wire, autojump_clock: MockClock) -> None:
    """A push right after its end goes to the next poll, at its first attempt."""
    with trio.move_on_after(1):
        await timed.pop("q", wait=True, timeout=20_000)
    await timed.push("q", 1)
    (message,) = await timed.pop("q")
    assert message["deliveryAttempt"] == 1


# -- 7.6 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("query", [{"subscriptionMode": "all"}, {"subscriptionMode": "what"}, {}])
async def test_mode_all_starts_at_the_oldest(wire: Wire, query: dict[str, str]) -> None:
    """Also for any other text, and by default (decisions.md)."""
    await wire.push("q", 1)
    assert data(await wire.pop("q", consumerGroup="g", **query)) == [1]


@pytest.mark.parametrize(
    "query",
    [*({"subscriptionMode": m} for m in ("new", "new-only", "new_only", "newonly")), {"subscriptionFrom": "now"}],
    ids=str,
)
async def test_mode_new_starts_at_the_registration(wire: Wire, query: dict[str, str]) -> None:
    """History is skipped; what comes later is delivered, also from partitions that did not exist then."""
    await wire.push("q", "old")
    assert await wire.pop("q", consumerGroup="g", **query) == []
    await wire.push("q", "new", txn="n")
    await wire.push("q", "elsewhere", partition="late")
    found = await wire.pop("q", consumerGroup="g", subscriptionMode="all", partitions=2)
    assert sorted(data(found)) == ["elsewhere", "new"]


async def test_from_an_instant(timed: Wire, autojump_clock: MockClock) -> None:
    """The first message at or after it, to the microsecond."""
    for n in range(4):
        await timed.push("q", n, txn=f"t{n}")
        await trio.sleep(1)
    stamps = [message["createdAt"] for message in await timed.pop("q")]
    at = {"consumerGroup": "g", "subscriptionFrom": stamps[2]}
    assert data(await timed.pop("q", **at)) == [2, 3]
    after = iso_zulu(parse_instant(stamps[2]) + 1)
    assert data(await timed.pop("q", consumerGroup="h", subscriptionFrom=after)) == [3]


async def test_a_registration_is_fixed_until_the_group_is_deleted(wire: Wire) -> None:
    """Later values of the parameters are ignored."""
    await wire.push("q", "old")
    assert await wire.pop("q", consumerGroup="g", subscriptionMode="new") == []
    assert await wire.pop("q", consumerGroup="g", subscriptionMode="all") == []
    await wire.ok("DELETE", "/api/v1/consumer-groups/g")
    assert data(await wire.pop("q", consumerGroup="g", subscriptionMode="all")) == ["old"]


async def test_queue_mode_is_always_all(wire: Wire) -> None:
    """Its mode cannot be chosen."""
    await wire.push("q", 1)
    assert data(await wire.pop("q", subscriptionMode="new", consumerGroup="")) == [1]


async def test_a_pinned_pop_seeds_its_own_partition_only(wire: Wire) -> None:
    """It registers nothing for the rest of the queue."""
    await wire.push("q", "a", partition="a")
    await wire.push("q", "b", partition="b")
    assert await wire.pop("q", "a", consumerGroup="g", subscriptionMode="new") == []
    assert "b" in data(await wire.pop("q", consumerGroup="g", subscriptionMode="all", partitions=2))


# -- 7.7 ---------------------------------------------------------------------------------------------------------------


async def test_conflation(wire: Wire) -> None:
    """The newest message alone, the whole span under its lease, and the echo also on an empty answer."""
    await wire.push("q", 1, 2, 3)
    asked = {"consumerGroup": "g", "conflation": True, "subscriptionMode": "all"}
    body = (await wire.pop_answer("q", **asked)).json
    assert (data(body["messages"]), body["conflation"], "conflationConflict" in body) == ([3], True, False)
    empty = await wire.pop_answer("q", **asked)
    assert (empty.status, empty.json["messages"], empty.json["conflation"]) == (200, [], True)
    await wire.ack((body["messages"][0], "completed"), group="g")
    assert await wire.committed(body["messages"][0], "g") == 2
    await wire.push("q", 4, txn="n")
    plain = (await wire.pop_answer("q", consumerGroup="g")).json
    assert (data(plain["messages"]), "conflation" in plain) == ([4], False)


async def test_a_conflict_of_conflation(wire: Wire) -> None:
    """The stored value wins, and is told; without a group or with autoAck it cannot be."""
    await wire.push("q", 1, 2)
    await wire.pop("q", consumerGroup="g", subscriptionMode="all", batch=1)
    body = (await wire.pop_answer("q", consumerGroup="g", conflation=True)).json
    assert (body["conflationConflict"], "conflation" in body, body["messages"]) == (True, False, [])
    for query in ({}, {"consumerGroup": "g", "autoAck": True}):
        answer = await wire.pop_answer("q", conflation=True, **query)
        assert (answer.status, answer.json["success"], answer.json["messages"]) == (400, False, [])
        assert answer.json["error"].startswith("conflation requires consumerGroup")


# -- more of 7.2, 7.4 and 7.5 ------------------------------------------------------------------------------------------


async def test_clamped_parameters(timed: Wire, autojump_clock: MockClock) -> None:
    """`batch` is 1 at least, `partitions` 1 to 64, a long poll ends after 60 s at the most."""
    for n in range(70):
        await timed.push("q", 1, 2, partition=f"p{n}")
    assert len(await timed.pop("q", batch=0, consumerGroup="a", subscriptionMode="all")) == 1
    for asked, given in ((0, 1), (-3, 1), (1000, 64)):
        query = {"consumerGroup": f"g{asked}", "subscriptionMode": "all", "batch": 1000}
        answer = await timed.pop_answer("q", partitions=asked, **query)
        assert answer.json["partitionsClaimed"] == given
    started = trio.current_time()
    assert await timed.pop("empty", wait=True, timeout=600_000) == []
    assert 59 < trio.current_time() - started < 61


async def test_parked_polls_share_one_push(timed: Wire, autojump_clock: MockClock) -> None:
    """Ten polls that commit at delivery, and one push of ten messages to one partition: each gets one at once."""
    await timed.configure("q")
    found: list[Any] = []

    async def poll() -> None:
        found.extend(data(await timed.pop("q", wait=True, timeout=20_000, autoAck=True, batch=1)))

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(poll)
        await trio.sleep(1)
        await timed.push("q", *range(10))
        await trio.sleep(0.1)
        assert sorted(found) == list(range(10))


async def test_polls_of_every_group_wake(timed: Wire, autojump_clock: MockClock) -> None:
    """One push wakes one poll of each group, a group that began as `new` on an empty queue included (A21)."""
    found: dict[str, Any] = {}

    async def poll(group: str, mode: str) -> None:
        query = {"consumerGroup": group, "subscriptionMode": mode}
        found[group] = data(await timed.pop("q", wait=True, timeout=20_000, **query))

    async with trio.open_nursery() as nursery:
        for group, mode in (("", "all"), ("a", "all"), ("b", "new"), ("c", "new")):
            nursery.start_soon(poll, group, mode)
        await trio.sleep(1)
        await timed.push("q", 1)
        await trio.sleep(0.1)
        assert found == {"": [1], "a": [1], "b": [1], "c": [1]}


async def test_a_wide_queue_is_drained_by_parked_polls(timed: Wire, autojump_clock: MockClock) -> None:
    """Fifty partitions, five polls that come back at once: every message once, and no partition starves."""
    seen: list[Any] = []

    async def worker() -> None:
        while messages := await timed.pop("q", wait=True, timeout=2000, batch=3, leaseSeconds=30):
            seen.extend((message["partition"], message["data"]) for message in messages)
            entries = await timed.ack(*((message, "completed") for message in messages))
            assert all(entry["success"] for entry in entries)

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(worker)
        for n in range(20):
            await trio.sleep(0.01)
            for p in range(50):
                await timed.push("q", n, partition=f"p{p}", txn=f"t{n}-")
    assert len(seen) == len(set(seen)) == 1000
    for p in range(50):
        assert [value for name, value in seen if name == f"p{p}"] == list(range(20))


async def test_the_bytes_of_one_answer_are_bounded(wire: Wire) -> None:
    """Twelve megabytes come in two answers, in order."""
    for n in range(12):
        await wire.push("q", str(n) + "x" * 1_000_000, txn=f"t{n}-")
    first = await wire.pop("q")
    await wire.ack(*((message, "completed") for message in first))
    second = await wire.pop("q")
    assert 0 < len(first) < 12
    assert [message["offset"] for message in first + second] == list(range(12))


async def test_a_timer_outlives_its_queue(timed: Wire, autojump_clock: MockClock) -> None:
    """A queue that was deleted is made again by the timer that fires into it."""
    await timed.push("q", "old")
    await timed.timers(schedule("q", "k", "fired", 1000))
    await timed.ok("DELETE", "/api/v1/resources/queues/q")
    assert data(await timed.pop("q", wait=True, timeout=5000)) == ["fired"]


@pytest.mark.parametrize(
    "spelling", ["2026-08-01T00:00:00Z", "2026-08-01T02:00:00%2B02:00", "2026-08-01T00:00:00.123456789Z", "2026-08-01"]
)
async def test_spellings_of_an_instant(wire: Wire, spelling: str) -> None:
    """What the clients of other languages send: offsets, nanoseconds, a bare date."""
    answer = await wire.request("GET", f"/api/v1/pop/queue/q?consumerGroup=g&subscriptionFrom={spelling}")
    assert answer.status == 204
    body = {"timestamp": spelling.replace("%2B", "+")}
    await wire.push("q", 1)
    sought = await wire.ok("POST", "/api/v1/consumer-groups/g/queues/q/seek", body)
    assert sought["targetTimestamp"].startswith("2026-08-01T00:00:00.")


async def test_a_seek_beyond_the_end(wire: Wire) -> None:
    """Nothing is at or after the instant: the group stands at the end."""
    await wire.push("q", 1)
    await wire.ok("POST", "/api/v1/consumer-groups/g/queues/q/seek", {"timestamp": "2999-01-01T00:00:00Z"})
    assert await wire.pop("q", consumerGroup="g", subscriptionMode="all") == []
    await wire.push("q", 2, txn="n")
    assert data(await wire.pop("q", consumerGroup="g")) == [2]


async def test_the_default_mode_is_a_setting() -> None:
    """`new` for brokers whose operator wants it; a mode that is named still counts (decisions.md)."""
    async with direct(settings=Settings(data=None, subscription_mode="new")) as wire:
        await wire.push("q", "old")
        assert await wire.pop("q", consumerGroup="g") == []
        assert data(await wire.pop("q", consumerGroup="h", subscriptionMode="all")) == ["old"]
        assert data(await wire.pop("q")) == ["old"], "queue mode is always all"
        await wire.push("q", "late", txn="n")
        assert data(await wire.pop("q", consumerGroup="g")) == ["late"]


async def test_the_delivery_limit(timed: Wire, autojump_clock: MockClock) -> None:
    """A message that ends every lease unsettled is given up after `deliveryLimit` deliveries, for its group, and what
    is behind it goes on (decisions.md)."""
    await timed.configure("q", deliveryLimit=3, leaseTime=1)
    await timed.push("q", "poison", "good")
    for attempt in (1, 2, 3):
        (message,) = await timed.pop("q", batch=1)
        assert (message["data"], message["deliveryAttempt"]) == ("poison", attempt)
        await trio.sleep(1.01)
    (message,) = await timed.pop("q", wait=True, timeout=1000)
    assert (message["data"], message["deliveryAttempt"]) == ("good", 1)
    (letter,) = await timed.dead_letters("q")
    assert (letter["data"], letter["consumerGroup"]) == ("poison", "__QUEUE_MODE__")
    assert "3" in letter["errorMessage"]
    assert data(await timed.pop("q", consumerGroup="g", subscriptionMode="all")) == ["poison", "good"]

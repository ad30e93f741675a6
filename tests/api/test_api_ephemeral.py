"""Ephemeral queues over the API, on the broker's clock (messaging 18)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import pytest
import trio
from trio.testing import MockClock

from queen_actors import limits
from queen_actors.broker import Broker, running
from queen_actors.config import Settings
from queen_actors.storage.memory import MemoryStore

if TYPE_CHECKING:
    from conftest import Client

VIRTUAL_TIME = True

ROUTE = "/api/v1/ephemeral"


async def push(client: Client, queue: str, *payloads: Any, partition: str | None = None) -> tuple[int, Any]:
    body: dict[str, Any] = {"queue": queue, "messages": [{"payload": payload} for payload in payloads]}
    if partition is not None:
        body["partition"] = partition
    return await client.post(f"{ROUTE}/push", body)


async def pop(client: Client, queue: str, **query: Any) -> list[Any]:
    words = {name: str(value).lower() if isinstance(value, bool) else value for name, value in query.items()}
    status, answer = await client.get(f"{ROUTE}/pop?{urlencode({'queue': queue, **words})}")
    assert status == 200, answer
    assert answer["queue"] == queue
    return list(answer["messages"])


async def ack(client: Client, queue: str, *ids: str, group: str | None = None, **fields: Any) -> list[str]:
    body: dict[str, Any] = {"queue": queue, "acks": [{"id": mid, **fields} for mid in ids]}
    if group is not None:
        body["group"] = group
    status, answer = await client.post(f"{ROUTE}/ack", body)
    assert status == 200
    assert [result["id"] for result in answer["results"]] == list(ids)
    return [result["outcome"] for result in answer["results"]]


async def configure(client: Client, queue: str, **options: Any) -> Any:
    status, answer = await client.post(f"{ROUTE}/configure", {"queue": queue, "options": options})
    assert status == 201, answer
    return answer


async def listed(client: Client) -> dict[str, Any]:
    status, answer = await client.get(f"{ROUTE}/queues")
    assert status == 200
    assert answer["count"] == len(answer["queues"])
    queues = client.broker.ephemeral._queues.values()
    assert answer["cellBytes"] == sum(queue.cost for queue in queues), "the sum is kept in step"
    return {row["queue"]: row for row in answer["queues"]}


# -- the round of a consumer


async def test_push_pop_ack(client: Client) -> None:
    """201 with a count, 200 with messages, 200 with outcomes; then it is empty, and a pop is still a 200."""
    assert await push(client, "room", {"user": "a"}, "hi", None) == (201, {"pushed": 3})
    messages = await pop(client, "room", batch=5)
    assert [(m["partition"], m["attempts"], m["payload"]) for m in messages] == [
        ("Default", 0, {"user": "a"}),
        ("Default", 0, "hi"),
        ("Default", 0, None),
    ]
    assert await ack(client, "room", *(m["id"] for m in messages)) == ["acked"] * 3
    assert await pop(client, "room") == []


async def test_payloads_keep_their_spelling(client: Client) -> None:
    """Byte for byte."""
    text = b'{"n":1.50e2,"big":123456789012345678901234567890,"s":"\\u00e9 \\/"}'
    await client.post(f"{ROUTE}/push", b'{"queue":"q","messages":[{"payload":' + text + b"}]}")
    reply = await client.reply("GET", f"{ROUTE}/pop?queue=q")
    assert text in reply.body


async def test_defaults_of_a_pop(client: Client) -> None:
    """One message, queue mode, at once, leased."""
    await push(client, "q", 1, 2)
    (first,) = await pop(client, "q")
    (second,) = await pop(client, "q", group="__QUEUE_MODE__")
    assert (first["payload"], second["payload"]) == (1, 2)


async def test_groups_fan_out_and_no_group_competes(client: Client) -> None:
    """Each group gets everything; consumers of one, or of none, share."""
    for group in ("a", "b"):
        assert await pop(client, "q", group=group) == []
    await push(client, "q", 1, 2)
    assert [m["payload"] for m in await pop(client, "q", batch=9, group="a")] == [1, 2]
    assert [m["payload"] for m in await pop(client, "q", batch=9, group="b")] == [1, 2]
    assert [m["payload"] for _ in range(3) for m in await pop(client, "q")] == [1, 2]


async def test_partitions(client: Client) -> None:
    """In order within each; a pop may name one, and an id may hold any name."""
    await push(client, "q", 1, 2, partition="a:b:7")
    await push(client, "q", 3, partition="c")
    assert [m["payload"] for m in await pop(client, "q", partition="c", batch=5)] == [3]
    messages = await pop(client, "q", batch=5)
    assert [(m["partition"], m["payload"]) for m in messages] == [("a:b:7", 1), ("a:b:7", 2)]
    assert await ack(client, "q", *(m["id"] for m in messages)) == ["acked", "acked"]


@pytest.mark.parametrize("name", ["Bed&Breakfast", "a/b", 'say "hi"', "пример", "🙂", "x" * 300, "a b+c?#%41"])
async def test_every_legal_name(client: Client, name: str) -> None:
    """As queue, in bodies, queries and paths."""
    await push(client, name, 1, partition=name[:40])
    (message,) = await pop(client, name, partition=name[:40], group=name[:40])
    assert await ack(client, name, message["id"], group=name[:40]) == ["acked"]
    path = quote(name, safe="")
    status, depth = await client.get(f"{ROUTE}/queues/{path}/depth")
    assert (status, depth["queue"]) == (200, name)
    assert (await client.delete(f"{ROUTE}/queue/{path}"))[1] == {"queue": name, "deleted": True, "declared": False}


async def test_commit_on_delivery(client: Client) -> None:
    """Nothing to ack, and it does not come back."""
    await push(client, "q", 1)
    (message,) = await pop(client, "q", autoAck=True)
    assert await ack(client, "q", message["id"]) == ["unknown"]
    assert (await listed(client))["q"]["depth"] == 0


@pytest.mark.parametrize("status", ["failed", "retry", "dlq", "nonsense", "FAILED"])
async def test_whatever_is_not_done_comes_again(client: Client, status: str) -> None:
    """At once, with one attempt more."""
    await push(client, "q", 1)
    (message,) = await pop(client, "q")
    assert await ack(client, "q", message["id"], status=status, error="x") == ["redelivered"]
    (again,) = await pop(client, "q")
    assert (again["id"], again["attempts"]) == (message["id"], 1)


async def test_a_lease_lasts_thirty_seconds(client: Client, autojump_clock: MockClock) -> None:
    """Then the message comes again, five times in all, and is dropped and counted."""
    await push(client, "q", 1)
    for attempts in range(6):
        (message,) = await pop(client, "q")
        assert message["attempts"] == attempts
        await trio.sleep(29.9)
        assert await pop(client, "q") == []
        await trio.sleep(0.2)
    assert await pop(client, "q") == []
    assert (await listed(client))["q"]["drops"] == {"bounds": 0, "ttl": 0, "retry": 1}
    assert await ack(client, "q", message["id"]) == ["unknown"]


async def test_acks_of_another_start_are_stale(
    client_of: Callable[[Broker], Client], autojump_clock: MockClock
) -> None:
    """An id says which start of a broker it is of; what is no id at all is unknown, whatever the queue."""
    settings = Settings(data=None)
    async with running(MemoryStore(), settings) as broker:
        client = client_of(broker)
        await push(client, "q", 1)
        (message,) = await pop(client, "q")
    async with running(MemoryStore(), settings) as broker:
        client = client_of(broker)
        assert await pop(client, "q") == [], "contents survive nothing"
        assert await ack(client, "q", message["id"]) == ["stale"]
        assert await ack(client, "none", message["id"]) == ["stale"]
        await push(client, "q", 1)
        (fresh,) = await pop(client, "q")
        prefix = fresh["id"].rsplit(":", 2)[0]
        odd = ["", "x", "e", "e:", "e::p:0", f"{prefix}:p:x", f"{prefix}:p:", f"{prefix}:p:{'9' * 30}", "e:1:p:0"]
        assert await ack(client, "q", *odd) == ["unknown"] * 8 + ["stale"]
        assert await ack(client, "none", fresh["id"]) == ["unknown"]


async def test_an_id_is_never_used_again(client: Client) -> None:
    """Not after a reset, and not by a queue that was deleted and made anew: an old ack settles nothing of it."""
    await push(client, "q", 1)
    (first,) = await pop(client, "q")
    await client.post(f"{ROUTE}/reset", {"queue": "q"})
    await push(client, "q", 2)
    (second,) = await pop(client, "q")
    await client.delete(f"{ROUTE}/queue/q")
    await push(client, "q", 3)
    (third,) = await pop(client, "q")
    assert await ack(client, "q", first["id"], second["id"], third["id"]) == ["unknown", "unknown", "acked"]


# -- waiting


async def test_a_long_poll_wakes_on_a_push(client: Client, autojump_clock: MockClock) -> None:
    """At the instant of the push, for each group; without one it ends at its time."""
    started = trio.current_time()
    assert await pop(client, "q", wait=True, timeout=500) == []
    assert trio.current_time() - started == pytest.approx(0.5)
    got: dict[str, tuple[float, list[Any]]] = {}

    async def wait(group: str) -> None:
        messages = await pop(client, "q", wait=True, timeout=10_000, group=group)
        got[group] = (trio.current_time(), [m["payload"] for m in messages])

    async with trio.open_nursery() as nursery:
        for group in ("a", "b"):
            nursery.start_soon(wait, group)
        await trio.sleep(3)
        at = trio.current_time()
        await push(client, "q", 1)
    assert got == {"a": (at, [1]), "b": (at, [1])}


async def test_a_long_poll_wakes_on_what_comes_back(client: Client, autojump_clock: MockClock) -> None:
    """On a nack at once, and on a lease's end when that is."""
    await configure(client, "q", leaseSeconds=5)
    await push(client, "q", 1)
    (message,) = await pop(client, "q")
    at: list[float] = []

    async def wait() -> None:
        (again,) = await pop(client, "q", wait=True, timeout=20_000)
        assert again["id"] == message["id"]
        at.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.sleep(1)
        nacked = trio.current_time()
        await ack(client, "q", message["id"], status="retry")
    assert at.pop() == nacked
    await wait()
    assert at.pop() == pytest.approx(nacked + 5, abs=0.01)


async def test_one_push_serves_as_many_as_it_has_messages(client: Client, autojump_clock: MockClock) -> None:
    """Two messages, three parked pops of one group: the first two get one each."""
    got: list[tuple[int, list[Any]]] = []

    async def wait(place: int) -> None:
        got.append((place, [m["payload"] for m in await pop(client, "q", wait=True, timeout=1000)]))

    async with trio.open_nursery() as nursery:
        for place in range(3):
            nursery.start_soon(wait, place)
            await trio.testing.wait_all_tasks_blocked()
        await push(client, "q", 1, 2)
    served = dict(got)
    assert sorted(served[0] + served[1]) == [1, 2], "one each, in whatever order they ran"
    assert (len(served[0]), served[2]) == (1, [])


async def test_a_pinned_wait_is_not_woken_by_others(client: Client, autojump_clock: MockClock) -> None:
    """It gets its own partition's message, and one that waits for any gets the other."""
    got: dict[str, list[Any]] = {}

    async def wait(**where: str) -> None:
        messages = await pop(client, "q", wait=True, timeout=1000, **where)
        got[where.get("partition", "any")] = [m["payload"] for m in messages]

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: wait(partition="a"))
        await trio.testing.wait_all_tasks_blocked()
        await push(client, "q", "b", partition="b")
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        await push(client, "q", "a", partition="a")
    assert got == {"any": ["b"], "a": ["a"]}


async def test_a_cancelled_wait_takes_nothing(client: Client, autojump_clock: MockClock) -> None:
    """Also when it was woken already: the message is for the next one, as if nobody had looked."""
    got: list[Any] = []

    async def wait() -> None:
        got.extend(await pop(client, "q", wait=True, timeout=1000))

    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as gone:
            async with trio.open_nursery() as first:
                first.start_soon(wait)
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(wait)
                await trio.testing.wait_all_tasks_blocked()
                await push(client, "q", 1)
                gone.cancel()
    assert [(m["payload"], m["attempts"]) for m in got] == [(1, 0)]


async def test_a_group_that_waits_is_there_from_the_start(client: Client, autojump_clock: MockClock) -> None:
    """A queue that is deleted under its waiting groups, and made by a push: each of them gets the message."""
    got: list[list[Any]] = []

    async def wait(group: str) -> None:
        got.append([m["payload"] for m in await pop(client, "q", wait=True, timeout=1000, group=group, autoAck=True)])

    async with trio.open_nursery() as nursery:
        for group in ("a", "b", "c"):
            nursery.start_soon(wait, group)
        await trio.testing.wait_all_tasks_blocked()
        assert (await client.delete(f"{ROUTE}/queue/q"))[1]["deleted"]
        await push(client, "q", 1)
    assert got == [[1]] * 3


async def test_a_window_fattens_a_batch(client: Client, autojump_clock: MockClock) -> None:
    """A waiting pop stays until there are enough, or its window is over; a plain one takes what there is."""
    await configure(client, "q", windowBuffer={"ms": 2000, "count": 3})

    async def trickle() -> None:
        for n in range(4):
            await push(client, "q", n)
            await trio.sleep(0.5)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trickle)
        started = trio.current_time()
        assert len(await pop(client, "q", batch=10, wait=True, timeout=30_000)) == 3
        assert trio.current_time() - started == pytest.approx(1.0)
        assert len(await pop(client, "q", batch=10, wait=True, timeout=30_000)) == 1
        assert trio.current_time() - started == pytest.approx(3.5)
    await push(client, "q", 1)
    assert len(await pop(client, "q", batch=10)) == 1
    await push(client, "q", 1, 2)
    started = trio.current_time()
    assert len(await pop(client, "q", batch=2, wait=True)) == 2
    assert trio.current_time() == started, "a full batch waits for nothing"
    await push(client, "q", 1)
    assert len(await pop(client, "q", batch=10, wait=True, timeout=300)) == 1
    assert trio.current_time() - started == pytest.approx(0.3), "a window is never longer than the pop"


async def test_a_window_without_a_time(client: Client, autojump_clock: MockClock) -> None:
    """By count alone: until the pop's own time."""
    await configure(client, "q", windowBuffer={"count": 3})
    await push(client, "q", 1)
    started = trio.current_time()
    assert len(await pop(client, "q", batch=10, wait=True, timeout=700)) == 1
    assert trio.current_time() - started == pytest.approx(0.7)


@pytest.mark.parametrize("drain", ["api", "broker"])
async def test_a_stopping_server_lets_go(client: Client, autojump_clock: MockClock, drain: str) -> None:
    """Parked pops answer with an empty list, never with a 204; later ones do not park."""
    with trio.fail_after(1):
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                assert await pop(client, "q", wait=True, timeout=30_000) == []

            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            (client.api if drain == "api" else client.broker).drain()
        assert await pop(client, "q", wait=True, timeout=30_000) == []


async def test_too_many_waits(client: Client, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock) -> None:
    """429 for one more than may be parked on a queue."""
    monkeypatch.setattr("queen_actors.actors.queue.PARKED_POPS_PER_QUEUE", 2)
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(lambda: pop(client, "q", wait=True, timeout=5000))
        await trio.testing.wait_all_tasks_blocked()
        status, answer = await client.get(f"{ROUTE}/pop?queue=q&wait=true")
        assert (status, answer["code"]) == (429, "overloaded")
        nursery.cancel_scope.cancel()
    assert await pop(client, "q", wait=True, timeout=10) == [], "the places are free again"


# -- bounds


async def test_a_full_queue_is_a_429(client: Client) -> None:
    """`queue_full` with a `Retry-After`; nothing of the push is taken."""
    await configure(client, "q", maxLength=2)
    await push(client, "q", 1)
    body = {"queue": "q", "messages": [{"payload": 2}, {"payload": 3}]}
    reply = await client.reply("POST", f"{ROUTE}/push", body)
    assert (reply.status, reply.headers["retry-after"]) == (429, "1")
    assert b'"code":"queue_full"' in reply.body
    assert [m["payload"] for m in await pop(client, "q", batch=9)] == [1]


async def test_a_feed_keeps_the_newest(client: Client) -> None:
    """`dropOldest`: the push is taken, and what went is counted."""
    await configure(client, "q", maxLength=3, policy="dropOldest")
    for n in range(10):
        assert (await push(client, "q", n))[0] == 201
    row = (await listed(client))["q"]
    assert (row["depth"], row["drops"]["bounds"]) == (3, 7)
    assert [m["payload"] for m in await pop(client, "q", batch=9)] == [7, 8, 9]


async def test_bytes_are_a_bound_too(client: Client) -> None:
    """Of the payloads as they were sent."""
    await configure(client, "q", maxBytes=20)
    assert (await push(client, "q", "x" * 8))[0] == 201
    assert (await push(client, "q", "x" * 9))[0] == 429
    assert (await push(client, "q", "x" * 8))[0] == 201
    assert (await listed(client))["q"]["bytes"] == 20


async def test_old_messages_go(client: Client, autojump_clock: MockClock) -> None:
    """By themselves, without anybody looking, and they make room."""
    await configure(client, "q", ttlSeconds=5, maxLength=1)
    await push(client, "q", 1)
    before = client.broker.ephemeral.cost
    await trio.sleep(4.9)
    assert (await push(client, "q", 2))[0] == 429
    await trio.sleep(0.2)
    assert client.broker.ephemeral.cost < before
    assert (await push(client, "q", 2))[0] == 201
    assert (await listed(client))["q"]["drops"]["ttl"] == 1


async def test_the_brokers_own_bound(
    client: Client, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """Past it a push is a 503; what nobody used for 300 s goes first, and what is declared or in use does not."""
    monkeypatch.setattr(limits, "EPHEMERAL_BYTES", 20_000)
    await push(client, "forgotten", "x" * 4000)
    await configure(client, "declared")
    await push(client, "declared", "x" * 4000)
    await trio.sleep(301)
    await push(client, "used", "x" * 4000)
    assert (await push(client, "used", "x" * 4000))[0] == 201
    assert (await listed(client)).keys() == {"declared", "used"}
    status, answer = await push(client, "used", "x" * 4000)
    assert (status, answer["code"]) == (503, "ephemeral_unavailable")
    assert (await push(client, "new", "x" * 4000))[1]["code"] == "ephemeral_unavailable"
    await pop(client, "used", batch=9, autoAck=True)
    assert (await push(client, "used", "x" * 4000))[0] == 201


async def test_a_feed_at_the_brokers_bound_goes_on(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gives back what it takes."""
    await configure(client, "q", maxLength=3, policy="dropOldest")
    await push(client, "q", *["x" * 100] * 3)
    monkeypatch.setattr(limits, "EPHEMERAL_BYTES", client.broker.ephemeral.cost)
    assert (await push(client, "q", "y" * 100))[0] == 201
    assert (await push(client, "q", "y" * 200))[0] == 503


async def test_how_many_queues_and_groups(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """One queue too many is a 503, one group too many a 429."""
    monkeypatch.setattr(limits, "EPHEMERAL_QUEUES", 2)
    monkeypatch.setattr(limits, "EPHEMERAL_GROUPS", 2)
    for name in ("a", "b"):
        await pop(client, "q", group=name)
        await push(client, f"q{name}" if name == "b" else "q", 1)
    assert (await push(client, "third", 1))[1]["code"] == "ephemeral_unavailable"
    status, answer = await client.get(f"{ROUTE}/pop?queue=q&group=c")
    assert (status, answer["code"]) == (429, "ephemeral_too_many_groups")
    assert (await client.get(f"{ROUTE}/pop?queue=q&group=b"))[0] == 200


async def test_queues_that_come_and_go_leave_nothing(client: Client, autojump_clock: MockClock) -> None:
    """Queues that come and go, as inboxes of requests do, cost nothing when they are gone."""
    for n in range(300):
        await push(client, f"inbox-{n}", n)
        await pop(client, f"inbox-{n}", autoAck=True)
    await trio.sleep(301)
    assert await listed(client) == {}
    assert client.broker.ephemeral.cost == 0


# -- queues


async def test_configure_says_what_holds(client: Client) -> None:
    """All options with what they came to: defaults, clamped values, and unnamed ones back at their default."""
    assert await configure(client, "q", maxLength=100, policy="dropOldest", ttlSeconds=5, windowBuffer={"ms": 5}) == {
        "queue": "q",
        "declared": True,
        "options": {
            "maxBytes": 16 << 20,
            "maxLength": 100,
            "policy": "dropOldest",
            "ttlSeconds": 5,
            "leaseSeconds": 30,
            "retryLimit": 5,
            "windowBuffer": {"ms": 5, "count": 0},
        },
    }
    huge = 10**12
    answer = await configure(
        client, "q", maxBytes=huge, maxLength=huge, leaseSeconds=huge, retryLimit=huge, windowBuffer={"count": huge}
    )
    assert answer["options"] == {
        "maxBytes": 256 << 20,
        "maxLength": 1_000_000,
        "policy": "reject",
        "ttlSeconds": 0,
        "leaseSeconds": 86_400,
        "retryLimit": 1000,
        "windowBuffer": {"ms": 0, "count": 10_000},
    }
    nulls = dict.fromkeys(answer["options"])
    zeros = {"maxBytes": 0, "maxLength": 0, "leaseSeconds": 0, "ttlSeconds": 0, "retryLimit": 0}
    status, plain = await client.post(f"{ROUTE}/configure", {"queue": "q"})
    assert (status, await configure(client, "q", **nulls)) == (201, plain)
    assert (await configure(client, "q", **zeros))["options"] == {**plain["options"], "retryLimit": 0}


@pytest.mark.parametrize(
    ("verb", "body"),
    [
        ("configure", b""),
        ("configure", b"{"),
        ("configure", {}),
        ("configure", {"queue": ""}),
        ("configure", {"queue": "a\u0000"}),
        ("configure", {"queue": "q", "options": []}),
        ("configure", {"queue": "q", "options": {"ttlSecond": 1}}),
        ("configure", {"queue": "q", "options": {"ttlSeconds": 1.5}}),
        ("configure", {"queue": "q", "options": {"ttlSeconds": -1}}),
        ("configure", {"queue": "q", "options": {"maxBytes": "1"}}),
        ("configure", {"queue": "q", "options": {"maxBytes": True}}),
        ("configure", {"queue": "q", "options": {"policy": "drop"}}),
        ("configure", {"queue": "q", "options": {"windowBuffer": 5}}),
        ("configure", {"queue": "q", "options": {"windowBuffer": {"seconds": 5}}}),
        ("push", {"queue": "q"}),
        ("push", {"queue": "q", "messages": {}}),
        ("push", {"queue": "q", "messages": [1]}),
        ("push", {"queue": "q", "messages": [{"data": 1}]}),
        ("push", {"messages": [{"payload": 1}]}),
        ("push", {"queue": "q", "partition": "a\n", "messages": [{"payload": 1}]}),
        ("push", {"queue": "q", "messages": [{"payload": 1}] * 10_001}),
        ("ack", {"queue": "q"}),
        ("ack", {"queue": "q", "acks": [{}]}),
        ("ack", {"queue": "q", "acks": [{"id": 5}]}),
        ("ack", {"queue": "q", "acks": [{"id": "x"}] * 10_001}),
        ("ack", {"queue": "q", "group": "a\u0001", "acks": []}),
        ("reset", {}),
        ("reset", b"[]"),
    ],
)
async def test_malformed_bodies(client: Client, verb: str, body: Any) -> None:
    """400 `ephemeral_bad_request`, and no queue is made."""
    status, answer = await client.post(f"{ROUTE}/{verb}", body)
    assert (status, answer["code"]) == (400, "ephemeral_bad_request")
    assert answer["error"]
    assert await listed(client) == {}


@pytest.mark.parametrize(
    "query", ["", "queue=", "queue=q&batch=x", "queue=q&wait=perhaps", "queue=q&autoAck=2", "queue=q&group=%01"]
)
async def test_malformed_pops(client: Client, query: str) -> None:
    """The same for the query of a pop."""
    status, answer = await client.get(f"{ROUTE}/pop?{query}")
    assert (status, answer["code"]) == (400, "ephemeral_bad_request")
    assert await listed(client) == {}


async def test_a_name_over_its_budget(client: Client) -> None:
    """413, as everywhere."""
    status, answer = await push(client, "x" * 448, 1)
    assert (status, answer["code"]) == (413, "name_too_long")


async def test_empty_calls(client: Client) -> None:
    """A push of nothing and an ack of nothing are answered, and make nothing."""
    assert await push(client, "q") == (201, {"pushed": 0})
    assert await ack(client, "q") == []
    assert await listed(client) == {}


async def test_the_list(client: Client) -> None:
    """Every queue by its name, with its tier, its counts, its drops and its options, and the memory of all."""
    await configure(client, "b", maxLength=10)
    await push(client, "b", "xx", "yy", partition="p")
    await pop(client, "b", group="g")
    await push(client, "a", 1)
    status, answer = await client.get(f"{ROUTE}/queues")
    assert (status, answer["count"]) == (200, 2)
    assert answer["cellBytes"] == client.broker.ephemeral.cost > 0
    first, second = answer["queues"]
    assert (first["queue"], first["tier"], first["depth"], first["groups"]) == ("a", "implicit", 1, 0)
    options = second.pop("options")
    assert options["maxLength"] == 10
    assert second == {
        "queue": "b",
        "tier": "declared",
        "depth": 2,
        "bytes": 8,
        "partitions": 1,
        "groups": 1,
        "drops": {"bounds": 0, "ttl": 0, "retry": 0},
    }


async def test_depth(client: Client) -> None:
    """What waits for a group, by partition; 404 with its own code when there is no such queue."""
    await push(client, "q", "x", "y", partition="a")
    await push(client, "q", "z", partition="b")
    await pop(client, "q", group="g", partition="b")
    status, depth = await client.get(f"{ROUTE}/queues/q/depth?group=g")
    assert (status, depth) == (
        200,
        {
            "queue": "q",
            "group": "g",
            "tier": "implicit",
            "pending": 2,
            "partitionsPending": 1,
            "bytes": 9,
            "partitions": [
                {"partition": "a", "pending": 2, "bytes": 6},
                {"partition": "b", "pending": 0, "bytes": 3},
            ],
            "groups": [{"group": "g", "pending": 2, "skipped": 0}],
        },
    )
    assert (await client.get(f"{ROUTE}/queues/q/depth"))[1]["group"] is None
    status, answer = await client.get(f"{ROUTE}/queues/none/depth")
    assert (status, answer["code"]) == (404, "ephemeral_queue_not_found")


async def test_reset_and_delete(client: Client) -> None:
    """How much went; what is not there is told and is no error; a declared queue's options go with the delete alone."""
    await configure(client, "q", maxLength=7)
    await push(client, "q", 1, 2)
    (held,) = await pop(client, "q")
    assert await client.post(f"{ROUTE}/reset", {"queue": "q"}) == (200, {"queue": "q", "dropped": 2})
    assert await ack(client, "q", held["id"]) == ["unknown"]
    assert (await listed(client))["q"]["options"]["maxLength"] == 7
    assert await client.delete(f"{ROUTE}/queue/q") == (200, {"queue": "q", "deleted": True, "declared": True})
    assert await client.delete(f"{ROUTE}/queue/q") == (200, {"queue": "q", "deleted": False, "declared": False})
    assert await client.post(f"{ROUTE}/reset", {"queue": "q"}) == (200, {"queue": "q", "dropped": 0})
    assert await listed(client) == {}


async def test_idle_queues_are_forgotten(client: Client, autojump_clock: MockClock) -> None:
    """300 s after its last use an empty queue that nobody configured; not a declared one, nor one with messages, nor
    one that somebody waits for."""
    await configure(client, "declared")
    await push(client, "full", 1)
    await pop(client, "empty")
    await trio.sleep(200)
    await pop(client, "empty")
    await trio.sleep(299)
    assert (await listed(client)).keys() == {"declared", "full", "empty"}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: pop(client, "waited", wait=True, timeout=300_000))
        await trio.sleep(2)
        assert (await listed(client)).keys() == {"declared", "full", "waited"}
    assert (await listed(client)).keys() == {"declared", "full", "waited"}
    await pop(client, "full", autoAck=True)
    await trio.sleep(301)
    assert (await listed(client)).keys() == {"declared"}


async def test_durable_queues_are_others(client: Client) -> None:
    """The same name in both families: nothing of one shows in the other, and nothing is written to the log."""
    before = client.broker.statistics().log.position
    await push(client, "q", "ephemeral")
    assert (await client.get("/api/v1/resources/queues/q"))[0] == 404
    (message,) = await pop(client, "q")
    await ack(client, "q", message["id"])
    assert client.broker.statistics().log.position == before
    await client.push("q", "durable")
    assert await pop(client, "q") == []
    assert (await client.delete("/api/v1/resources/queues/q"))[1]["deleted"]
    assert "q" in await listed(client)

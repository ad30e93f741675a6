"""websocket.md, section 4: tails."""

from __future__ import annotations

import itertools
import json
from base64 import b64encode
from typing import Any

import pytest
import trio
from socket_peer import House, Peer, house, items, narrow_peer

from queen_actors import limits
from queen_actors.api import Request
from queen_actors.config import Settings
from queen_actors.domain.queue import Configure
from queen_actors.storage.memory import Faults
from queen_actors.values import iso_zulu

VIRTUAL_TIME = True


async def push(hall: House, *payloads: Any, queue: str = "q", partition: str = "p") -> None:
    """Push by somebody else."""
    body = json.dumps({"items": items(queue, *payloads, partition=partition)}).encode()
    assert (await hall.api.handle(Request("POST", b"/api/v1/push", b"", {}, body))).status == 201


async def tailed(peer: Peer, count: int, sub: str = "t") -> list[Any]:
    """The payloads of the next events, until there are so many."""
    found: list[Any] = []
    while len(found) < count:
        found += [message["data"] for message in (await peer.event("messages", sub=sub))["messages"]]
    return found


async def tail(peer: Peer, **fields: Any) -> dict[str, Any]:
    """The body of the reply."""
    reply = await peer.ask("tail", **{"sub": "t", "queue": "q", **fields})
    assert reply["ok"], reply
    body: dict[str, Any] = reply["body"]
    return body


async def silent(peer: Peer, seconds: float = 5) -> bool:
    await trio.sleep(seconds)
    return not peer.events("messages")


async def test_every_message_after_now(hall: House) -> None:
    """A tail from now, the default, has what is pushed after it, of all partitions, in offset order in each; what was
    there before it has not. The reply says the next offset of each partition."""
    await push(hall, 0, 1)
    peer = await hall.peer()
    assert await tail(peer) == {"sub": "t", "from": {"p": 2}}
    for payload in range(2, 20):
        await push(hall, payload, partition="pr"[payload % 2])
    found = await tailed(peer, 18)
    assert [payload for payload in found if payload % 2 == 0] == list(range(2, 20, 2))
    assert [payload for payload in found if payload % 2] == list(range(3, 20, 2))


async def test_an_event_without_a_lease(hall: House) -> None:
    """`messages` events without `leaseId`: nothing is acked, and no cursor moves."""
    peer = await hall.peer()
    await tail(peer)
    await push(hall, {"n": 1.50})
    event = await peer.event("messages")
    (message,) = event.pop("messages")
    assert event == {"event": "messages", "sub": "t", "queue": "q", "partition": "p", "partitionId": "1"}
    assert message.keys() == {
        *("id", "transactionId", "traceId", "data", "producerSub"),
        *("createdAt", "partitionId", "partition", "offset"),
    }
    assert (message["offset"], message["data"]) == (0, {"n": 1.5})
    assert '"data":{"n": 1.5}' in peer.raw_texts[-1]  # as it was sent
    assert hall.broker.statistics().leases == 0
    assert (await peer.ask("pop", queue="q"))["body"]["messages"][0]["data"] == {"n": 1.5}


async def test_a_fired_timer_says_so(hall: House) -> None:
    """A message that a timer fired has its `timerKey`."""
    peer = await hall.peer()
    await tail(peer)
    op = {
        "op": "schedule",
        "queue": "q",
        "timerKey": "k",
        "payload": "MQ==",
        "delayMs": 500,
        "partition": "p",
        "txn": "t",
    }
    assert (await peer.ask("timers", operations=[op]))["ok"]
    assert (await peer.event("messages"))["messages"][0]["timerKey"] == "k"


async def test_from_the_start(hall: House) -> None:
    """`start`: everything that is kept, then what comes."""
    await push(hall, 0, 1)
    peer = await hall.peer()
    assert (await tail(peer, **{"from": "start"}))["from"] == {"p": 0}
    await push(hall, 2)
    assert await tailed(peer, 3) == [0, 1, 2]


async def test_from_an_instant(hall: House) -> None:
    """An instant: what was pushed at or after it."""
    await push(hall, 0)
    await trio.sleep(2)
    at = iso_zulu(hall.broker.clock.now())
    await push(hall, 1)
    await trio.sleep(2)
    peer = await hall.peer()
    assert (await tail(peer, **{"from": at}))["from"] == {"p": 1}
    assert await tailed(peer, 1) == [1]


async def test_from_an_instant_to_come(hall: House) -> None:
    """What is pushed before an instant that has not come yet is not delivered."""
    peer = await hall.peer()
    await tail(peer, **{"from": iso_zulu(hall.broker.clock.now() + 10_000_000)})
    await push(hall, 0)
    assert await silent(peer, 11)
    await push(hall, 1)
    assert await tailed(peer, 1) == [1]


async def test_one_partition(hall: House) -> None:
    """With `partition`, that one only."""
    await push(hall, 0, partition="a")
    await push(hall, 1, partition="b")
    peer = await hall.peer()
    assert (await tail(peer, partition="b", **{"from": "start"}))["from"] == {"b": 0}
    await push(hall, 2, partition="a")
    await push(hall, 3, partition="b")
    assert await tailed(peer, 2) == [1, 3]
    assert await silent(peer)


async def test_partitions_created_later(hall: House) -> None:
    """Partitions that are created later are followed from their start, also those of a queue that was not there; and
    when the client resumes with the offsets of the others."""
    peer = await hall.peer()
    assert (await tail(peer))["from"] == {}
    await push(hall, 0, 1, partition="new")
    assert await tailed(peer, 2) == [0, 1]
    await push(hall, 2, 3, partition="later")
    assert (await tail(peer, sub="again", **{"from": {"new": 2}}))["from"] == {"new": 2, "later": 0}
    assert await tailed(peer, 2, sub="again") == [2, 3]


async def test_resuming_is_exact(hall: House) -> None:
    """The next offset per partition as `from`: exactly the messages that the client has not seen, whenever the
    connection ended."""
    seen: dict[str, list[int]] = {"a": [], "b": []}
    following: dict[str, int] | str = "start"
    count = itertools.count()
    for _ in range(6):
        peer = await hall.peer()
        await tail(peer, credit=3, **{"from": following})
        for _ in range(4):
            number = next(count)
            await push(hall, number, partition="ab"[number % 2])
        await trio.sleep(0.1)
        position = {} if isinstance(following, str) else dict(following)
        for event in peer.events("messages"):
            for message in event["messages"]:
                seen[event["partition"]].append(message["data"])
                position[event["partition"]] = message["offset"] + 1
        following = position
        await trio.aclose_forcefully(peer.stream)
    peer = await hall.peer()
    await tail(peer, **{"from": following})
    left = 24 - len(seen["a"]) - len(seen["b"])
    for payload in await tailed(peer, left):
        seen["ab"[payload % 2]].append(payload)
    assert seen == {"a": list(range(0, 24, 2)), "b": list(range(1, 24, 2))}
    assert await silent(peer)


async def remove_what_is_old(hall: House, queue: str = "q") -> None:
    """Retention takes everything that is there now."""
    await hall.broker.configure(Configure(queue, {"retention_enabled": True, "retention_seconds": 1}))
    await trio.sleep(20)
    await hall.broker.configure(Configure(queue, {"retention_enabled": False}))


async def test_a_gap_is_told(hall: House) -> None:
    """What retention has removed of the messages that were asked for is told first: the first and the last missing
    offset, both inclusive. Then come the others."""
    await push(hall, *range(42))
    await remove_what_is_old(hall)
    await push(hall, 42)
    peer = await hall.peer()
    await tail(peer, **{"from": {"p": 17}})
    assert await peer.event("gap") == {"event": "gap", "sub": "t", "partition": "p", "from": 17, "to": 41}
    assert await tailed(peer, 1) == [42]


async def test_no_gap_when_nothing_asked_for_is_missing(hall: House) -> None:
    """From the start, from an instant and from the first offset that is kept nothing is missing."""
    await push(hall, *range(3))
    await remove_what_is_old(hall)
    await push(hall, 3)
    peer = await hall.peer()
    for sub, start in enumerate(("start", iso_zulu(0), {"p": 3}, {})):
        assert (await tail(peer, sub=str(sub), **{"from": start}))["from"] == {"p": 3}
        assert await tailed(peer, 1, sub=str(sub)) == [3]
    assert peer.events("gap") == []


async def test_a_gap_while_the_peer_was_behind(hall: House) -> None:
    """A tail without credit falls behind; what retention takes from it meanwhile is told too."""
    peer = await hall.peer()
    await tail(peer, credit=1)
    await push(hall, 0, 1, 2)
    assert await tailed(peer, 1) == [0]
    await remove_what_is_old(hall)
    await push(hall, 3)
    await peer.ask("credit", sub="t", add=5)
    assert await peer.event("gap") == {"event": "gap", "sub": "t", "partition": "p", "from": 1, "to": 2}
    assert await tailed(peer, 1) == [3]


async def test_a_gap_to_the_end(hall: House) -> None:
    """When nothing is left, the gap reaches to the end, and what comes then comes."""
    await push(hall, *range(4))
    await remove_what_is_old(hall)
    peer = await hall.peer()
    await tail(peer, **{"from": {"p": 2}})
    assert await peer.event("gap") == {"event": "gap", "sub": "t", "partition": "p", "from": 2, "to": 3}
    await push(hall, 4)
    assert await tailed(peer, 1) == [4]


async def test_credit(hall: House) -> None:
    """At most `credit` messages are delivered; more comes by `credit`. A tail may start without any."""
    peer = await hall.peer()
    await tail(peer, credit=0)
    await push(hall, *range(10))
    assert await silent(peer)
    assert (await peer.ask("credit", sub="t", add=4))["body"] == {"sub": "t"}
    assert await tailed(peer, 4) == [0, 1, 2, 3]
    assert await silent(peer)
    await peer.ask("credit", sub="t", add=100)
    assert await tailed(peer, 6) == [4, 5, 6, 7, 8, 9]


async def test_unsubscribe_ends_a_tail(hall: House) -> None:
    """Its name is free again after that."""
    peer = await hall.peer()
    await tail(peer)
    assert (await peer.ask("unsubscribe", sub="t"))["body"] == {"sub": "t"}
    await push(hall, 1)
    assert await silent(peer)
    assert (await peer.ask("credit", sub="t", add=1))["status"] == 404
    await tail(peer, **{"from": "start"})
    assert await tailed(peer, 1) == [1]


async def test_names_are_shared_with_subscriptions(hall: House) -> None:
    """A `sub` is unique per connection."""
    peer = await hall.peer()
    await tail(peer)
    assert (await peer.ask("subscribe", sub="t", queue="q"))["status"] == 409
    assert (await peer.ask("tail", sub="t", queue="q"))["status"] == 409


async def test_a_queue_made_again_is_followed(hall: House) -> None:
    """A queue that is deleted and created again is followed from the start of its partitions; an offset beyond the end
    can only be of the earlier one."""
    peer = await hall.peer()
    await tail(peer)
    await push(hall, 0, 1, 2)
    assert await tailed(peer, 3) == [0, 1, 2]
    await hall.broker.delete_queue("q")
    await push(hall, 3, 4)
    assert await tailed(peer, 2) == [3, 4]
    assert (await tail(peer, sub="again", **{"from": {"p": 3}}))["from"] == {"p": 0}
    assert await tailed(peer, 2, sub="again") == [3, 4]


async def test_undelivered_messages_of_a_deleted_queue(hall: House) -> None:
    """What was not delivered when its queue was deleted is gone, and is no gap: the partition itself is gone."""
    peer = await hall.peer()
    await tail(peer, credit=1)
    await push(hall, 0, 1)
    assert await tailed(peer, 1) == [0]
    await hall.broker.delete_queue("q")
    await push(hall, 2)
    await peer.ask("credit", sub="t", add=5)
    assert await tailed(peer, 1) == [2]
    assert await silent(peer)
    assert peer.events("gap") == []


@pytest.mark.parametrize(
    "fields",
    [
        {"queue": "q"},
        {"sub": "t"},
        {"sub": "", "queue": "q"},
        {"sub": "t", "queue": ""},
        {"sub": "t", "queue": "a\u0001"},
        {"sub": "t", "queue": "q", "partition": 7},
        {"sub": "t", "queue": "q", "credit": -1},
        {"sub": "t", "queue": "q", "credit": 100_001},
        {"sub": "t", "queue": "q", "from": "yesterday"},
        {"sub": "t", "queue": "q", "from": 7},
        {"sub": "t", "queue": "q", "from": {"p": -1}},
        {"sub": "t", "queue": "q", "from": {"p": "1"}},
        {"sub": "t", "queue": "q", "from": ["p"]},
    ],
)
async def test_bad_fields(hall: House, fields: dict[str, Any]) -> None:
    """A bad field is an error reply, and the connection goes on."""
    peer = await hall.peer()
    reply = await peer.ask("tail", **fields)
    assert (reply["ok"], reply["status"]) == (False, 400)
    assert await tail(peer) == {"sub": "t", "from": {}}


async def test_more_partitions_than_can_be_named(hall: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reply names each partition, so there is a bound to them; one of them can be tailed."""
    monkeypatch.setattr(limits, "WS_TAIL_PARTITIONS", 2)
    for partition in "abc":
        await push(hall, 1, partition=partition)
    peer = await hall.peer()
    assert (await peer.ask("tail", sub="t", queue="q"))["status"] == 413
    assert (await tail(peer, partition="a"))["from"] == {"a": 1}


async def test_a_peer_that_does_not_read_falls_behind(hall: House) -> None:
    """Past what may wait for a peer nothing more is read for it; when it reads again, nothing is missing."""
    peer, line = await narrow_peer(hall, 20_000)
    await tail(peer, credit=100_000)
    big = "x" * 100_000
    for number in range(150):
        await push(hall, [number, big], partition="pr"[number % 2])
    await trio.sleep(1)
    (reader,) = hall.broker._tails._open["q"]
    assert reader.statistics().behind == 2
    line.set_rate(1e9)
    found = [number for number, _ in await tailed(peer, 150)]
    assert [number for number in found if number % 2] == list(range(1, 150, 2))
    assert [number for number in found if number % 2 == 0] == list(range(0, 150, 2))


async def test_nothing_is_shown_that_is_not_durable() -> None:
    """What the disk refuses is never delivered, and its offset is the next message's."""
    faults = Faults()
    async with house(faults=faults) as hall:
        peer = await hall.peer()
        await tail(peer)
        await push(hall, 0)
        assert await tailed(peer, 1) == [0]
        faults.full = True
        body = json.dumps({"items": items("q", 1, partition="p") + items("q", 2, partition="new")}).encode()
        assert (await hall.api.handle(Request("POST", b"/api/v1/push", b"", {}, body))).status == 507
        await trio.sleep(2)
        faults.full = False
        await trio.sleep(2)
        await push(hall, 3, partition="other")
        await push(hall, 4)
        event = await peer.event("messages", partition="other")
        assert [message["data"] for message in event["messages"]] == [3]
        event = await peer.event("messages", partition="p")
        assert [(message["offset"], message["data"]) for message in event["messages"]] == [(1, 4)]
        assert await silent(peer)


async def test_sealed_messages_are_read_from_the_store(hall: House) -> None:
    """A tail from the start reads what is not in memory any more, however much it is, in bounded events."""
    await push(hall, *range(2_500))
    await hall.broker.seal()
    await hall.broker.passivate()
    peer = await hall.peer()
    await tail(peer, credit=100_000, **{"from": "start"})
    assert await tailed(peer, 2_500) == list(range(2_500))


async def test_an_encrypted_queue() -> None:
    """Payloads are encrypted in the log only."""
    async with house(Settings(data=None, encryption_key=b64encode(b"k" * 32).decode())) as secret:
        await secret.broker.configure(Configure("q", {"encryption_enabled": True}))
        peer = await secret.peer()
        await tail(peer)
        await push(secret, {"secret": 1})
        assert await tailed(peer, 1) == [{"secret": 1}]

"""Sentences of the protocol about what holds when nothing is said: defaults, the delivery limit, no compression."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from socket_peer import House, Peer, acks, items

from queen_actors.domain.subscription import Terms
from queen_actors.wire.socket import parse_frame, parse_subscribe

VIRTUAL_TIME = True


async def push(hall: House, queue: str, *payloads: Any, partition: str = "p") -> None:
    peer = await hall.peer()
    assert (await peer.ask("push", items=items(queue, *payloads, partition=partition)))["ok"]
    await peer.close()


def told(event: dict[str, Any]) -> list[Any]:
    return [message["data"] for message in event["messages"]]


def test_the_defaults_of_a_subscription() -> None:
    """The values that the protocol shows are those of a field that is absent, or null."""
    shown = Terms(
        queue="orders",
        partition=None,
        namespace=None,
        task=None,
        group="__QUEUE_MODE__",
        subscription_mode=None,
        subscription_from=None,
        credit=100,
        batch=100,
        partitions=16,
        auto_ack=False,
        lease_seconds=60,
        max_lease_seconds=3600,
    )
    assert parse_subscribe(parse_frame(b'{"op":"subscribe","sub":"s1","queue":"orders"}')) == ("s1", shown)
    nulls = b'"group":null,"partition":null,"batch":null,"leaseSeconds":null,"maxLeaseSeconds":null,"credit":null'
    assert parse_subscribe(parse_frame(b'{"op":"subscribe","sub":"s1","queue":"orders",%s}' % nulls)) == ("s1", shown)


async def test_everything_that_is_kept_by_default(hall: House) -> None:
    """A group that does not say where it starts starts at the beginning: `subscriptionMode` is `all`."""
    await push(hall, "q", 1, 2)
    peer = await hall.peer()
    await peer.ask("subscribe", sub="s", queue="q", group="g")
    assert told(await peer.event("messages")) == [1, 2]


async def test_a_lease_is_kept_for_an_hour_by_default(hall: House) -> None:
    """While the peer answers pings, until `maxLeaseSeconds` after the delivery: 3600."""
    await push(hall, "q", 1)
    peer = await hall.peer()
    await peer.ask("subscribe", sub="s", queue="q", group="g")
    event = await peer.event("messages")
    started = trio.current_time()
    lost = await peer.expect(lambda one: one.get("event") == "lease", seconds=4000)
    assert (lost["leaseId"], lost["reason"]) == (event["leaseId"], "maxLease")
    assert 3600 <= trio.current_time() - started < 3630


async def test_a_tails_credit_is_1000_by_default(hall: House) -> None:
    """So much comes before any `credit`, and no more."""
    peer = await hall.peer()
    await peer.ask("tail", sub="t", queue="q")
    for first in range(0, 1500, 500):
        await push(hall, "q", *range(first, first + 500))
    await trio.sleep(5)
    assert sum(len(event["messages"]) for event in peer.events("messages")) == 1000
    await peer.ask("credit", sub="t", add=1)
    await trio.sleep(5)
    assert [told(event) for event in peer.events("messages")][-1] == [1000]


async def kill_consumers(hall: House, queue: str, most: int) -> list[int]:
    """Consumers that die of their first message, one after the other; the attempts that they saw, until there is
    another message first, or there were so many."""
    attempts: list[int] = []
    while len(attempts) < most:
        victim = await hall.peer()
        await victim.ask("subscribe", sub="s", queue=queue, group="g", batch=1, credit=1)
        event = await victim.event("messages")
        (message,) = event["messages"]
        await victim.stream.aclose()
        await victim.ended.wait()
        if message["data"] != "poison":
            break
        attempts.append(message["deliveryAttempt"])
    return attempts


@pytest.mark.parametrize(("options", "deliveries"), [({"deliveryLimit": 3}, 3), ({}, 20)])
async def test_a_message_that_kills_its_worker_does_not_circle(
    hall: House, options: dict[str, int], deliveries: int
) -> None:
    """`deliveryLimit`, 20 by default: the head whose `deliveryAttempt` would pass it is dead-lettered, and the next
    message comes. A lost connection charges no retry, so nothing else would end it."""
    peer = await hall.peer()
    await peer.ask("configure", queue="q", options={"retryLimit": 3, **options})
    await push(hall, "q", "poison", "fine")
    assert await kill_consumers(hall, "q", 50) == list(range(1, deliveries + 1))
    letters, total = await hall.broker.dead_letters(queue="q")
    assert total == 1
    assert letters[0].letter.record.payload == b'"poison"'


async def test_no_delivery_limit(hall: House) -> None:
    """0: off."""
    peer = await hall.peer()
    await peer.ask("configure", queue="q", options={"deliveryLimit": 0})
    await push(hall, "q", "poison", "fine")
    assert await kill_consumers(hall, "q", 30) == list(range(1, 31))
    assert (await hall.broker.dead_letters(queue="q"))[1] == 0


async def test_frames_are_never_compressed(hall: House) -> None:
    """A client that asks for `permessage-deflate` is served without it: the operator cannot allow it here."""
    ours = await hall.stream()
    peer = Peer(ours)
    await peer.upgrade(headers=[("Sec-WebSocket-Extensions", "permessage-deflate; client_max_window_bits")])
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += bytes(await ours.receive_some())
    head, _, frames = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101 ")
    assert b"sec-websocket-extensions" not in head.lower()
    while len(frames) < 100:
        frames += bytes(await ours.receive_some())
    assert frames[0] == 0x81, "a whole text message, no reserved bit"
    assert b'"event":"welcome"' in frames
    await ours.aclose()


async def test_acks_settle_and_are_answered_one_by_one(hall: House) -> None:
    """The reply to `ack` has one entry for each acknowledgment, in order, whatever becomes of each."""
    await push(hall, "q", 1, 2)
    peer = await hall.peer()
    await peer.ask("subscribe", sub="s", queue="q", group="g")
    event = await peer.event("messages")
    bad = {**acks(event, 0)[0], "transactionId": "nobody"}
    reply = await peer.ask("ack", consumerGroup="g", acknowledgments=[bad, *acks(event, 1)])
    assert [entry["success"] for entry in reply["body"]] == [False, True]

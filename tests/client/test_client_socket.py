"""The subscription's WebSocket against a peer that misbehaves, frame by frame, on virtual time."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from typing import Any

import pytest
import trio
import trio.testing
from client_server import network

from queen_actors import ConnectionFailed, Retry, connect, errors
from queen_actors.client import ProtocolError, Queen

VIRTUAL_TIME = True

QUICK = Retry(attempts=2, pause=0.01)
WELCOME = {"event": "welcome", "protocol": "queen.v1", "heartbeatSeconds": 0.1}
SUBSCRIBED = {"id": 1, "ok": True, "status": 200, "body": {"sub": "s", "consumerGroup": "g"}}
Script = Callable[["Peer"], Awaitable[None]]


class Peer:
    """The other side of one WebSocket, by hand."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.head = b""

    async def take_request(self) -> bytes:
        """The upgrade request; returns the key."""
        while b"\r\n\r\n" not in self.head:
            self.head += await self.stream.receive_some()
        (line,) = [one for one in self.head.split(b"\r\n") if one.lower().startswith(b"sec-websocket-key:")]
        return line.partition(b":")[2].strip()

    async def accept(self) -> None:
        key = await self.take_request() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(key).digest())
        await self.stream.send_all(
            b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Protocol: queen.v1\r\nSec-WebSocket-Accept: " + accept + b"\r\n\r\n"
        )

    async def send(self, *frames: object) -> None:
        for frame in frames:
            await self.raw(json.dumps(frame).encode())

    async def raw(self, text: bytes, kind: int = 1) -> None:
        size = bytes([len(text)]) if len(text) < 126 else b"\x7e" + len(text).to_bytes(2, "big")
        await self.stream.send_all(bytes([0x80 | kind]) + size + text)

    async def subscribed(self, heartbeat: float = 0.1) -> None:
        await self.accept()
        await self.send({**WELCOME, "heartbeatSeconds": heartbeat}, SUBSCRIBED)

    async def read_to_the_end(self) -> None:
        with suppress(trio.BrokenResourceError):
            while await self.stream.receive_some():
                pass


@asynccontextmanager
async def facing(*scripts: Script, token: str | None = None) -> AsyncIterator[tuple[Queen, list[Peer]]]:
    """A client, and a peer that follows the first script on the first connection, and so on."""
    peers: list[Peer] = []

    async def handle(stream: trio.SocketStream) -> None:
        peer = Peer(stream)
        peers.append(peer)
        async with stream:
            with suppress(trio.BrokenResourceError):
                await scripts[min(len(peers), len(scripts)) - 1](peer)

    async with trio.open_nursery() as nursery:
        url = await nursery.start(network().serve, handle)
        async with connect(url, token, retry=QUICK) as queen:
            yield queen, peers
        nursery.cancel_scope.cancel()


async def enter(queen: Queen) -> None:
    with trio.fail_after(5):
        async with queen.queue("q").subscribe(group="g"):
            pass


def delivery(*offsets: int) -> dict[str, object]:
    messages = [
        {"transactionId": f"t{at}", "data": at, "partitionId": "1", "leaseId": "L", "offset": at} for at in offsets
    ]
    return {"event": "messages", "sub": "s", "queue": "q", "partitionId": "1", "leaseId": "L", "messages": messages}


async def test_the_upgrade_request() -> None:
    """The route, the subprotocol and the token, which is never in the address."""
    async with facing(Peer.subscribed, token="tok123") as (queen, peers):
        await enter(queen)
    head = peers[0].head
    assert head.startswith(b"GET /api/v1/ws HTTP/1.1\r\n")
    assert b"Sec-WebSocket-Protocol: queen.v1\r\n" in head
    assert b"Authorization: Bearer tok123\r\n" in head


@pytest.mark.parametrize(
    ("status", "kind"), [(401, errors.Unauthorized), (403, errors.Forbidden), (404, errors.NotFound)]
)
async def test_a_refused_upgrade_is_raised_and_not_tried_again(status: int, kind: type[Exception]) -> None:
    """Whoever may not connect now may not connect in a second."""

    async def refuse(peer: Peer) -> None:
        await peer.take_request()
        body = b'{"error": "no", "code": "x"}'
        await peer.stream.send_all(b"HTTP/1.1 %d No\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body))

    async with facing(refuse) as (queen, peers):
        with pytest.raises(kind):
            await enter(queen)
    assert len(peers) == 1


async def busy(peer: Peer) -> None:
    await peer.take_request()
    await peer.stream.send_all(b"HTTP/1.1 503 Busy\r\nContent-Length: 2\r\n\r\n{}")


async def hang_up(peer: Peer) -> None:
    await peer.take_request()


async def hang_up_at_once(peer: Peer) -> None:
    """Before the request is there: the client's own write breaks."""


async def speak_something_else(peer: Peer) -> None:
    await peer.stream.send_all(b"SSH-2.0-OpenSSH\r\n\r\n")
    await peer.read_to_the_end()


async def hang_up_after_the_handshake(peer: Peer) -> None:
    await peer.accept()


async def break_the_framing(peer: Peer) -> None:
    await peer.accept()
    await peer.stream.send_all(b"\xff\xff\xff\xff")
    await peer.read_to_the_end()


@pytest.mark.parametrize(
    "script", [busy, hang_up, hang_up_at_once, speak_something_else, hang_up_after_the_handshake, break_the_framing]
)
async def test_a_peer_that_is_none_is_given_up_within_bounds(script: Script) -> None:
    """Each attempt fails at once, not at a timeout, and there are as many as allowed."""
    async with facing(script) as (queen, peers):
        started = trio.current_time()
        with pytest.raises(ConnectionFailed):
            await enter(queen)
        assert trio.current_time() - started < 2
    assert len(peers) == 2


async def test_the_second_attempt_may_succeed() -> None:
    """A broker that is starting."""
    async with facing(busy, Peer.subscribed) as (queen, peers):
        await enter(queen)
    assert len(peers) == 2


@pytest.mark.parametrize("frame", [b"{", b"[]", b'{"event":"messages","sub":"s"}'])
async def test_frames_that_are_none(frame: bytes) -> None:
    """ProtocolError: connecting again would not make it better."""

    async def talk(peer: Peer) -> None:
        await peer.subscribed()
        await peer.raw(frame)
        await peer.read_to_the_end()

    async with facing(talk) as (queen, _), queen.queue("q").subscribe() as messages:
        with pytest.raises(ProtocolError), trio.fail_after(5):
            await messages.receive()


async def test_a_refused_subscription() -> None:
    """The broker's error, as on HTTP."""

    async def refuse(peer: Peer) -> None:
        await peer.accept()
        told = {"error": "kv_bad_request", "reason": "why", "detail": "no"}
        await peer.send(WELCOME, {"id": 1, "ok": False, "status": 400, "error": told})
        await peer.read_to_the_end()

    async with facing(refuse) as (queen, _):
        with pytest.raises(errors.BadRequest, match="no") as caught:
            await enter(queen)
    assert caught.value.reason == "why"


@pytest.mark.parametrize(("code", "kind"), [(4401, errors.Unauthorized), (4403, errors.Forbidden)])
async def test_a_connection_that_is_closed_for_good(code: int, kind: type[Exception]) -> None:
    """A token that ran out is no lost connection."""

    async def close(peer: Peer) -> None:
        await peer.subscribed()
        await peer.raw(code.to_bytes(2, "big") + b"expired", kind=8)
        await peer.read_to_the_end()

    async with facing(close) as (queen, peers), queen.queue("q").subscribe() as messages:
        with pytest.raises(kind, match="expired"), trio.fail_after(5):
            await messages.receive()
    assert len(peers) == 1


async def test_a_broker_that_goes_away_is_looked_for_again() -> None:
    """1001, `going away`: a restart. Messages of the old connection are gone with their lease."""
    again = trio.Event()

    async def leave(peer: Peer) -> None:
        await peer.subscribed()
        await peer.send(delivery(0, 1))
        await trio.sleep(0.05)
        await peer.raw((1001).to_bytes(2, "big") + b"going away", kind=8)
        await peer.read_to_the_end()

    async def back(peer: Peer) -> None:
        await peer.subscribed()
        await peer.send(delivery(0))
        again.set()
        await peer.read_to_the_end()

    async with facing(leave, back) as (queen, peers), queen.queue("q").subscribe() as messages:
        with trio.fail_after(5):
            first = await messages.receive()
            await again.wait()
            await trio.testing.wait_all_tasks_blocked(0.01)
        assert messages.waiting == 1
        assert messages.lost_reason(first) == "disconnected"
        assert (await messages.receive()).data == 0
        assert len(peers) == 2


async def test_a_peer_that_answers_no_ping_is_dead() -> None:
    """Within two heartbeats the connection is given up, and another one made."""

    again = trio.Event()

    async def mute(peer: Peer) -> None:
        await peer.subscribed()
        await peer.read_to_the_end()

    async def back(peer: Peer) -> None:
        await peer.subscribed()
        again.set()

    async with facing(mute, back) as (queen, _), queen.queue("q").subscribe():
        with trio.fail_after(5):
            await again.wait()


async def test_an_ack_whose_connection_ends_is_refused_not_raised() -> None:
    """Nobody answers any more; the message comes again if the ack did not arrive. The loop goes on."""

    async def leave(peer: Peer) -> None:
        await peer.subscribed()
        await peer.send(delivery(0))
        await peer.stream.receive_some()
        await trio.sleep(0.05)

    async with facing(leave, Peer.subscribed) as (queen, _), queen.queue("q").subscribe() as messages:
        with trio.fail_after(5):
            message = await messages.receive()
            verdict = await message.ack()
        assert not verdict
        assert "connection ended" in str(verdict.error)


async def test_leaving_says_goodbye_and_does_not_wait_for_an_answer() -> None:
    """A closing frame is sent; a peer that does not answer it costs half a second."""
    closing: list[bytes] = []

    async def ignore(peer: Peer) -> None:
        await peer.subscribed()
        await peer.send(delivery(*range(20)))
        while data := await peer.stream.receive_some():
            closing.append(data)

    async with facing(ignore) as (queen, _):
        async with queen.queue("q").subscribe() as messages:
            await messages.receive()
            started = trio.current_time()
        assert trio.current_time() - started < 1
        await trio.sleep(0.01)
    assert closing[-1][:1] == b"\x88"


async def test_an_error_ends_whom_it_names() -> None:
    """Two share a connection; an error event that names one ends that one, one that names nobody ends nothing."""
    go = trio.Event()

    async def talk(peer: Peer) -> None:
        await peer.subscribed(1000)
        await peer.stream.receive_some()
        await peer.stream.receive_some()  # the second subscribe
        await peer.send({"id": 2, "ok": True, "status": 200, "body": {"sub": "s2"}})
        await go.wait()
        told = {"error": "too_many", "reason": "rows", "detail": "it has become too much"}
        await peer.send(
            {"event": "error", "error": told}, {"event": "error", "sub": "s2", "status": 400, "error": told}
        )
        await peer.send(delivery(0))
        await peer.read_to_the_end()

    async with (
        facing(talk) as (queen, peers),
        queen.queue("q").subscribe() as first,
        queen.queue("q").subscribe() as second,
    ):
        go.set()
        with trio.fail_after(5):
            with pytest.raises(errors.BadRequest, match="too much"):
                await second.receive()
            assert (await first.receive()).data == 0
        assert len(peers) == 1


def requests(data: bytes) -> list[dict[str, Any]]:
    """The requests in what a client sent: its text frames, unmasked."""
    found: list[dict[str, Any]] = []
    while data:
        size, head = data[1] & 0x7F, 2
        if size == 126:
            size, head = int.from_bytes(data[2:4]), 4
        mask, body = data[head : head + 4], data[head + 4 : head + 4 + size]
        if data[0] == 0x81:
            found.append(json.loads(bytes(byte ^ mask[at % 4] for at, byte in enumerate(body))))
        data = data[head + 4 + size :]
    return found


async def test_a_talk_that_is_not_taken_in_time() -> None:
    """It is asked for again within bounds, and what the broker may take of it later is ended; the others stay."""
    asked = b""

    async def talk(peer: Peer) -> None:
        nonlocal asked
        await peer.subscribed(1000)
        while data := await peer.stream.receive_some():
            asked += data

    async with facing(talk) as (queen, peers), queen.queue("q").subscribe():
        with pytest.raises(ConnectionFailed, match="in time"):
            async with queen.queue("r").subscribe():
                pass
        await trio.sleep(1)
        assert len(peers) == 1
        assert [(one["op"], one["sub"]) for one in requests(asked)] == [
            ("subscribe", "s"),
            ("subscribe", "s2"),
            ("unsubscribe", "s2"),
            ("subscribe", "s3"),
            ("unsubscribe", "s3"),
        ]


async def test_who_comes_and_goes_passes_those_who_wait_to_be_heard() -> None:
    """More requests wait to be sent than the connection takes at once: another subscription is opened and left all the
    same, and nothing breaks."""
    go = trio.Event()

    async def talk(peer: Peer) -> None:
        await peer.subscribed(1000)
        await peer.send(delivery(*range(100)))
        await go.wait()
        await peer.read_to_the_end()

    async with (
        facing(talk) as (queen, peers),
        queen.queue("q").subscribe(credit=10_000) as messages,
        trio.open_nursery() as nursery,
    ):
        message = await messages.receive()
        for _ in range(1500):
            nursery.start_soon(message.ack)
        await trio.testing.wait_all_tasks_blocked()
        with trio.move_on_after(1):
            async with queen.queue("r").subscribe():
                pass
        go.set()
        await trio.sleep(0.1)
        assert len(peers) == 1
        assert messages.lost_reason(message) is None
        nursery.cancel_scope.cancel()


async def test_pauses_before_connecting_again_grow_and_are_jittered() -> None:
    """Twice as long each time, down to three quarters of that, up to the bound: a crowd does not come back at once."""
    retry = Retry(pause=0.2, longest=5.0)
    for failures, longest in ((1, 0.2), (2, 0.4), (3, 0.8), (5, 3.2), (6, 5.0), (50, 5.0)):
        pauses = [retry.pause_after(failures) for _ in range(200)]
        assert longest * 0.75 <= min(pauses) < longest * 0.85
        assert longest * 0.9 < max(pauses) <= longest
    came: list[float] = []

    async def hang_up_again(peer: Peer) -> None:
        came.append(trio.current_time())
        if len(came) == 1:
            await peer.subscribed()

    async with facing(hang_up_again) as (queen, _), queen.queue("q").subscribe() as messages:
        with pytest.raises(ConnectionFailed):
            await messages.receive()
    assert len(came) == 8, "eight in a row after one that was good"
    between = [later - earlier for earlier, later in pairwise(came)]
    assert all(0.75 * 0.01 * 2**at <= pause <= 0.01 * 2**at + 0.001 for at, pause in enumerate(between)), between


async def test_leaving_while_it_connects_is_prompt() -> None:
    """The other side does not answer the upgrade request: whoever stops waiting for it is gone at once, and so is the
    connection; who shares it goes on waiting."""
    gone = trio.Event()

    async def mute(peer: Peer) -> None:
        await peer.take_request()
        await peer.read_to_the_end()
        gone.set()

    async def wait(queen: Queen, seconds: float) -> None:
        started = trio.current_time()
        with trio.move_on_after(seconds):
            async with queen.queue("q").subscribe():
                raise AssertionError("nobody answered")
        assert trio.current_time() - started < seconds + 0.6

    async with facing(mute) as (queen, peers):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait, queen, 1)
            nursery.start_soon(wait, queen, 3)
            await trio.sleep(2)
            assert not gone.is_set()
        await trio.testing.wait_all_tasks_blocked()
        assert gone.is_set()
        assert len(peers) == 1

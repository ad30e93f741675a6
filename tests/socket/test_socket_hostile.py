"""Hostile input ends its own connection, with the code that the protocol has for it, and harms nobody (I17)."""

from __future__ import annotations

import logging
import random
import struct
from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing
from socket_peer import House, Peer, acks, frame, house, items

from queen_actors import limits
from queen_actors.serve import arriving

VIRTUAL_TIME = True


TEXT, PING, PONG, CLOSE, CONTINUATION, BINARY = 1, 9, 10, 8, 0, 2
OK = frame(TEXT, b'{"id":"ok","op":"push","items":[]}')
OVER = limits.WS_FRAME_BYTES + 1


@pytest.fixture
async def watched(caplog: pytest.LogCaptureFixture) -> AsyncIterator[House]:
    """A house with a bystander, who must still be served when the test is over; nothing was our fault."""
    async with house() as opened:
        bystander = await opened.peer()
        await bystander.ask("push", items=items("bystander", 1))
        await bystander.ask("subscribe", sub="s", queue="bystander")
        event = await bystander.event("messages")
        yield opened
        await trio.sleep(limits.WS_LINGER_SECONDS + 1)
        assert (await bystander.ask("ack", acknowledgments=acks(event)))["body"][0]["success"]
        assert opened.sockets.open == 1, "everybody else is gone"
        assert len(opened.nursery.child_tasks) <= 2
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def gone(peer: Peer) -> tuple[int, str] | None:
    with trio.fail_after(10):
        await peer.ended.wait()
    return peer.closed


@pytest.mark.parametrize(
    ("name", "data", "code"),
    [
        ("a reserved opcode", frame(3, b"x"), 1002),
        ("a reserved control opcode", frame(11), 1002),
        ("a reserved bit", frame(TEXT, b"{}", rsv=4), 1002),
        ("an unmasked frame", frame(TEXT, b"{}", masked=False), 1002),
        ("a continuation of nothing", frame(CONTINUATION, b"x"), 1002),
        ("a message inside a message", frame(TEXT, b"{", fin=False) + frame(TEXT, b"}"), 1002),
        ("a fragmented ping", frame(PING, b"x", fin=False), 1002),
        ("a long ping", frame(PING, b"x" * 126), 1002),
        ("a close of one byte", frame(CLOSE, b"x"), 1002),
        ("a close with a code that is none", frame(CLOSE, struct.pack("!H", 999)), 1002),
        ("text that is not UTF-8", frame(TEXT, b'{"op":"\xff"}'), 1007),
        ("text that ends inside a character", frame(TEXT, b'{"op":"\xc3'), 1007),
        ("half a surrogate pair", frame(TEXT, b'{"op":"\xed\xa0\x80"}'), 1007),
        ("binary", frame(BINARY, b"{}"), 1003),
        ("no object", frame(TEXT, b"[]"), 4400),
        ("nothing", frame(TEXT), 4400),
        ("a long frame", frame(TEXT, b"x" * OVER), 1009),
        ("a long message in fragments", frame(TEXT, b"x", fin=False) + frame(CONTINUATION, b"x" * OVER), 1009),
        ("a long frame, then a ping", frame(TEXT, b"x" * OVER) + frame(PING), 1009),
        ("two long frames", frame(TEXT, b"x" * OVER) * 2, 1009),
        ("a long frame, then bad bytes", frame(TEXT, b"x" * OVER) + frame(3), 1009),
    ],
)
async def test_a_bad_frame_ends_its_connection(watched: House, name: str, data: bytes, code: int) -> None:
    """What came before it is served; then the close says what was wrong."""
    peer = await watched.peer()
    await peer.raw(OK + data)
    closed = await gone(peer)
    assert closed is not None, name
    assert closed[0] == code
    assert peer.received == [{"id": "ok", "ok": True, "status": 201, "body": []}]


async def test_what_follows_a_bad_frame_is_ignored(watched: House) -> None:
    """After a frame that is no request nothing else of the connection is."""
    peer = await watched.peer()
    push = b'{"op":"push","items":[{"queue":"never","payload":1}]}'
    await peer.raw(frame(TEXT, b"[]") + frame(TEXT, push) * 100)
    assert await gone(peer) is not None
    assert await watched.broker.queue_view("never") is None


async def test_fragments_without_end(watched: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty fragments never make a message too long, but they are not taken for ever."""
    monkeypatch.setattr(arriving, "UNFINISHED_FRAMES", 100_000 / limits.WS_FRAME_BYTES)
    peer = await watched.peer()
    await peer.raw(frame(TEXT, b"", fin=False) + frame(CONTINUATION, b"", fin=False) * 50_000)
    closed = await gone(peer)
    assert closed is not None
    assert closed[0] == 1009


async def test_much_is_no_flood(watched: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any amount of whole messages may come."""
    monkeypatch.setattr(arriving, "UNFINISHED_FRAMES", 200_000 / limits.WS_FRAME_BYTES)
    peer = await watched.peer()
    for _ in range(10):
        await peer.raw(frame(TEXT, b'{"op":"push","items":[],"x":"' + b"x" * 10_000 + b'"}') * 10)
    await peer.raw(OK)
    assert (await peer.reply("ok"))["ok"]
    await peer.close()


async def test_messages_in_many_fragments_are_served(watched: House) -> None:
    """Fragments, down to single bytes, with pings between them, are a message like any other."""
    peer = await watched.peer()
    text = b'{"id":"ok","op":"push","items":[],"x":"\xc3\xa9"}'
    parts = [frame(TEXT, text[:1], fin=False)]
    for byte in text[1:]:
        parts += [frame(PING, b"p"), frame(CONTINUATION, bytes([byte]), fin=False)]
    parts.append(frame(CONTINUATION, b""))
    await peer.raw(b"".join(parts))
    assert (await peer.reply("ok"))["ok"]
    await peer.close()


async def test_byte_by_byte(watched: House) -> None:
    """However the bytes are cut on the way, the same is said."""
    peer = Peer(await watched.stream())
    watched.nursery.start_soon(peer.run)
    head = (
        b"GET /api/v1/ws HTTP/1.1\r\nHost: x\r\nConnection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    await peer.upgrade(subprotocols=[])
    await peer.accepted.wait()
    for byte in OK:
        await peer.raw(bytes([byte]))
    assert (await peer.reply("ok"))["ok"]
    await peer.close()
    stream = await watched.stream()
    for byte in head:
        await stream.send_all(bytes([byte]))
    assert (await stream.receive_some()).startswith(b"HTTP/1.1 101 ")
    await stream.aclose()


HEAD = {
    "Host": "x",
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}


def head(line: str = "GET /api/v1/ws HTTP/1.1", **changes: str | None) -> bytes:
    fields = {**HEAD, **{name.replace("_", "-"): value for name, value in changes.items()}}
    lines = [line, *[f"{name}: {value}" for name, value in fields.items() if value is not None]]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x00\x01\x02\x03\r\n\r\n", 400),
        (b"GET\r\n\r\n", 400),
        (head(Host="\xe9\xff"), 400),
        (head(Host=None), 400),
        (head(Sec_WebSocket_Protocol="\xff\xfe"), 400),
        (head(Connection="\xff"), 400),
        (head(Sec_WebSocket_Extensions="\xff"), 400),
        (head(Sec_WebSocket_Key=None), 400),
        (head(Sec_WebSocket_Version="12"), 426),
        (head(Sec_WebSocket_Version=None), 400),
        (head(Upgrade="h2c"), 400),
        (head(Connection="close"), 400),
        (head("POST /api/v1/ws HTTP/1.1"), 400),
        (head("GET /api/v1/ws"), 400),
        (head("GET /\xff HTTP/1.1"), 400),
        (head("GET /api/v1/ws/ HTTP/1.1"), 404),
        (head(Sec_WebSocket_Protocol="mqtt"), 400),
    ],
)
async def test_a_bad_upgrade_is_refused(watched: House, data: bytes, status: int) -> None:
    """What is no upgrade request of ours is answered as HTTP has it, and its connection closed."""
    stream = watched.direct()
    await stream.send_all(data)
    answer = b""
    with trio.fail_after(5):
        while part := await stream.receive_some():
            answer += part
    assert answer.startswith(b"HTTP/1.1 %d " % status)
    await stream.aclose()


async def test_an_upgrade_that_never_ends(watched: House) -> None:
    """A head has 10 s to arrive."""
    stream = watched.direct()
    await stream.send_all(head()[:-2])
    began = trio.current_time()
    assert await stream.receive_some() == b""
    assert trio.current_time() - began <= limits.HTTP_HEAD_SECONDS + limits.WS_LINGER_SECONDS
    await stream.aclose()


@pytest.mark.parametrize("sent", [b"", b"GET /api/v1/ws HT", head()])
async def test_a_peer_that_leaves_during_the_upgrade(watched: House, sent: bytes) -> None:
    """Whoever leaves at any point of it leaves nothing behind."""
    stream = await watched.stream()
    if sent:
        await stream.send_all(sent)
    await stream.aclose()


async def test_frames_in_the_packet_of_the_upgrade(watched: House) -> None:
    """A client may not send before it is answered; one that does harms itself at the most."""
    stream = await watched.stream()
    await stream.send_all(head() + OK * 3 + frame(CLOSE))
    assert (await stream.receive_some()).startswith(b"HTTP/1.1 101 ")
    await stream.aclose()


@pytest.mark.parametrize("cut", [1, 3, 7, 30])
async def test_the_end_inside_a_frame(watched: House, cut: int) -> None:
    """An end of stream inside a frame: what was whole before it is carried out, the rest is not."""
    peer = await watched.peer()
    push = frame(TEXT, b'{"op":"push","items":[{"queue":"q","payload":1}]}')
    await peer.raw(push + push[:cut])
    await peer.stream.aclose()
    await trio.sleep(1)
    view = await watched.broker.queue_view("q")
    assert view is not None
    assert view.partitions[0].total == 1


async def test_random_bytes(watched: House) -> None:
    """Whatever is said, nobody else is harmed, nothing is left, and nothing of it is our fault."""
    dice = random.Random(17)
    opcodes = [TEXT, TEXT, TEXT, PING, PONG, CLOSE, CONTINUATION, BINARY, *range(16)]
    words = [b'{"id":1,"op":"', b"push", b'"}', b"{}", b"[", b'{"op":"subscribe","sub":"s","queue":"q"}', b"\xff", b"}"]
    for _ in range(300):
        peer = await watched.peer(answers_pings=False)
        for _ in range(dice.randrange(1, 6)):
            match dice.randrange(3):
                case 0:
                    await peer.raw(dice.randbytes(dice.randrange(200)))
                case 1:
                    payload = b"".join(dice.choices(words, k=dice.randrange(4)))
                    fin, rsv = dice.random() < 0.8, dice.choice([0, 0, 0, 0, 1, 7])
                    await peer.raw(frame(dice.choice(opcodes), payload, fin=fin, rsv=rsv, masked=dice.random() < 0.9))
                case _:
                    await peer.raw(OK)
            if dice.random() < 0.3:
                await trio.sleep(0.01)
        await peer.stream.aclose()
    await trio.sleep(1)


async def test_hundreds_of_connections_leave_nothing(watched: House) -> None:
    """I20. Connect, lease something, and drop, again and again: everything returns to what it was."""
    for n in range(300):
        peer = await watched.peer()
        await peer.say(
            {"op": "push", "items": items("q", n)},
            {"op": "subscribe", "sub": "s", "queue": "q"},
            {"op": "pop", "queue": "q2", "wait": True},
        )
        await peer.event("messages")
        await (peer.stream.aclose() if n % 2 else peer.close())
    await trio.sleep(1)
    assert watched.broker.statistics().leases == 1


async def test_a_pop_of_a_peer_that_does_not_answer_pings(hall: House) -> None:
    """A peer whose pong is late gets nothing more; a pop of it that does not wait is answered with nothing, instead of
    stopping the reader, which would never see the pong, nor the end of the connection: it is dropped like any other
    that is dead, and what it had leased is free."""
    pusher = await hall.peer()
    await pusher.ask("push", items=items("q", 1))
    dead = await hall.peer(answers_pings=False)
    await dead.ask("subscribe", sub="s", queue="q", leaseSeconds=3)
    await dead.event("messages")
    await trio.sleep(5)  # a ping is out, and the lease would have run out
    assert (await dead.ask("pop", queue="q"))["status"] == 204
    await trio.sleep(60)
    assert dead.closed is not None or dead.ended.is_set()
    assert len((await pusher.ask("pop", queue="q"))["body"]["messages"]) == 1

"""Frames against the real server's WebSocket: good ones, mutated ones, broken framing, bytes that are nothing."""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import trio

from queen_actors.api.protocol import OPERATIONS

from .mutate import as_json, damaged, mutated, odd_value
from .summary import Summary
from .target import Target

CONNECTIONS = 6
"""At a time."""
INPUTS_MOST = 12
"""Of one connection."""
END_SECONDS = 30.0
"""How long a connection may outlive its own end."""
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10


def frame(random: Random, opcode: int, payload: bytes, *, fin: bool = True, masked: bool = True, rsv: int = 0) -> bytes:
    """One frame as RFC 6455 has it, unless told otherwise."""
    first = (0x80 if fin else 0) | rsv << 4 | opcode
    bit = 0x80 if masked else 0
    size = len(payload)
    if size < 126:
        head = struct.pack("!BB", first, bit | size)
    elif size < 65_536:
        head = struct.pack("!BBH", first, bit | 126, size)
    else:
        head = struct.pack("!BBQ", first, bit | 127, size)
    if not masked:
        return head + payload
    mask = random.randbytes(4)
    return head + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))


def _request(random: Random) -> dict[str, Any]:
    """A request of the protocol's own examples; it may be on a name that is known or on one that is not."""
    op = random.choice(list(OPERATIONS))
    made = {"id": random.randrange(1000), "op": op, **OPERATIONS[op].request}
    if "waitSeconds" in made:
        made["waitSeconds"] = 0.05
    return made


def _good(random: Random) -> bytes:
    return frame(random, TEXT, json.dumps(_request(random)).encode())


def _mutated(random: Random) -> bytes:
    return frame(random, TEXT, as_json(random, mutated(random, _request(random))))


def _value(random: Random) -> bytes:
    return frame(random, TEXT, as_json(random, odd_value(random)))


def _damaged_text(random: Random) -> bytes:
    return frame(random, TEXT, damaged(random, json.dumps(_request(random)).encode()))


def _damaged_frame(random: Random) -> bytes:
    return damaged(random, _good(random))


def noise(random: Random) -> bytes:
    return random.randbytes(random.choice((1, 2, 10, 300)))


def _fragments(random: Random) -> bytes:
    """A good request in pieces, with control frames between them: allowed, and to be answered."""
    data = json.dumps(_request(random)).encode()
    cuts = sorted(random.randrange(len(data)) for _ in range(random.randint(1, 6)))
    pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    made = b""
    for number, piece in enumerate(pieces):
        made += frame(random, TEXT if number == 0 else 0, piece, fin=number == len(pieces) - 1)
        if random.random() < 0.4:
            made += frame(random, random.choice((PING, PONG)), random.randbytes(random.randrange(126)))
    return made


def _broken_order(random: Random) -> bytes:
    """A continuation of nothing, a message inside of another, a control frame in pieces or too long."""
    kinds: list[Callable[[], bytes]] = [
        lambda: frame(random, 0, b"rest"),
        lambda: frame(random, TEXT, b"{", fin=False) + frame(random, TEXT, b"}"),
        lambda: frame(random, PING, b"part", fin=False) + frame(random, 0, b"rest"),
        lambda: frame(random, CLOSE, b"", fin=False),
        lambda: frame(random, PING, bytes(126)),
        lambda: frame(random, CLOSE, bytes(300)),
    ]
    return random.choice(kinds)()


def _broken_head(random: Random) -> bytes:
    """Reserved bits and opcodes, no mask, lengths that lie or are spelled too long."""
    mask = random.randbytes(4)
    kinds: list[Callable[[], bytes]] = [
        lambda: frame(random, TEXT, b"{}", rsv=random.randint(1, 7)),
        lambda: frame(random, random.choice((3, 4, 5, 6, 7, 11, 12, 13, 14, 15)), b"x"),
        lambda: frame(random, TEXT, b"{}", masked=False),
        lambda: struct.pack("!BBQ", 0x81, 0xFF, 1 << 63) + mask,
        lambda: struct.pack("!BBQ", 0x81, 0xFF, (1 << 63) - 1) + mask + b"{}",
        lambda: struct.pack("!BBQ", 0x81, 0xFF, 9 * 1024 * 1024) + mask + b"{}",
        lambda: struct.pack("!BBH", 0x81, 0xFE, 2) + mask + b"{}",
        lambda: struct.pack("!BBQ", 0x81, 0xFF, 2) + mask + b"{}",
        lambda: struct.pack("!BBH", 0x81, 0xFE, 50_000) + mask + b"{}",
    ]
    return random.choice(kinds)()


def _close(random: Random) -> bytes:
    """Ends of every kind, followed by more."""
    codes = (0, 999, 1000, 1001, 1004, 1005, 1006, 1012, 1015, 2999, 3000, 4999, 5000, 65_535)
    reason = random.choice((b"", b"bye", b"\xff\xfe", "é".encode() * 60))
    payload = random.choice((b"", b"\x03", struct.pack("!H", random.choice(codes)) + reason))
    return frame(random, CLOSE, payload[:125]) + (_good(random) if random.random() < 0.5 else b"")


def _binary(random: Random) -> bytes:
    return frame(random, BINARY, random.choice((b"", b"QPB1\x00", random.randbytes(60))))


def _many(random: Random) -> bytes:
    """Many requests in one write."""
    return b"".join(_good(random) if random.random() < 0.8 else _mutated(random) for _ in range(random.randint(5, 40)))


KINDS = (
    (_good, 2),
    (_mutated, 8),
    (_value, 2),
    (_damaged_text, 4),
    (_damaged_frame, 4),
    (noise, 2),
    (_fragments, 3),
    (_broken_order, 2),
    (_broken_head, 3),
    (_close, 2),
    (_binary, 1),
    (_many, 1),
)
_MAKERS, _WEIGHTS = zip(*KINDS, strict=True)


def handshake(random: Random) -> bytes:
    """A good request for the WebSocket."""
    key = base64.b64encode(random.randbytes(16)).decode()
    lines = [
        "GET /api/v1/ws HTTP/1.1",
        "Host: localhost",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Key: {key}",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Protocol: queen.v1",
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def conversation(random: Random) -> tuple[bytes, list[bytes]]:
    """What one connection sends: its handshake, and its inputs."""
    opening = handshake(random)
    if random.random() < 0.1:
        opening = damaged(random, opening)
    makers = random.choices(_MAKERS, _WEIGHTS, k=random.randint(1, INPUTS_MOST))
    return opening, [make(random) for make in makers]


def fuzz(directory: Path, seed: int, inputs: int) -> Summary:
    """Send so many inputs over as many connections as that takes."""
    summary = Summary("socket", seed)
    with Target(directory) as target:
        trio.run(_connections, target.port, seed, inputs, summary)
    summary.violations += target.violations
    summary.figures = {"connections": summary.answers.total(), **target.figures}
    return summary


async def _connections(port: int, seed: int, inputs: int, summary: Summary) -> None:
    numbers = iter(range(10**9))

    async def work() -> None:
        while summary.inputs < inputs:
            number = next(numbers)
            random = Random(f"{seed}:{number}")
            opening, sent = conversation(random)
            summary.inputs += len(sent)
            ending, wrong = await converse(port, opening, sent, random)
            summary.answers[ending] += 1
            summary.violations += [f"connection {number} of seed {seed}: {text}" for text in wrong]

    async with trio.open_nursery() as nursery:
        for _ in range(CONNECTIONS):
            nursery.start_soon(work)


async def converse(port: int, opening: bytes, sent: list[bytes], random: Random) -> tuple[str, list[str]]:
    """Have one conversation; how it ended, and what was wrong."""
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    received = bytearray()
    ended = trio.Event()

    async def read(stream: trio.SocketStream) -> None:
        try:
            async for data in stream:
                received.extend(data)
        except trio.BrokenResourceError:
            pass
        ended.set()

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read, stream)
            try:
                await stream.send_all(opening)
                for data in sent:
                    await stream.send_all(data)
                    await trio.sleep(random.choice((0, 0, 0.001, 0.01)))
                if random.random() < 0.5:
                    await stream.send_all(frame(random, CLOSE, b"\x03\xe8"))
                await stream.send_eof()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass
            with trio.move_on_after(END_SECONDS):
                await ended.wait()
            nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(deadline=-math.inf):
            await stream.aclose()
    if not ended.is_set():
        return "open", [f"it was still open {END_SECONDS:g} s after its end"]
    return judge(bytes(received))


def judge(received: bytes) -> tuple[str, list[str]]:
    """How the server's side of a conversation ended, and what it should not have said."""
    head, found, rest = received.partition(b"\r\n\r\n")
    status = head.split(b" ")[1:2]
    if not found or status != [b"101"]:
        code = int(status[0]) if status and status[0].isdigit() else 0
        return f"refused {code}" if code else "cut off", [f"the upgrade was answered {code}"] if code >= 500 else []
    wrong: list[str] = []
    ending = "without a close"
    for opcode, payload in _frames(rest):
        if opcode == CLOSE:
            code = int.from_bytes(payload[:2], "big") if payload else 1005
            ending = f"close {code}"
            if code == 1011:
                wrong.append(f"it was closed with 1011: {payload[2:]!r}")
        elif opcode == TEXT:
            wrong += _wrong(payload)
    return ending, wrong


def _frames(data: bytes) -> Iterator[tuple[int, bytes]]:
    """A server's frames: never masked, and messages in one piece or in continued ones. An unfinished one is left."""
    at, whole, kind = 0, b"", 0
    while at + 2 <= len(data):
        first, size = data[at], data[at + 1]
        at += 2
        if size == 126:
            size, at = int.from_bytes(data[at : at + 2], "big"), at + 2
        elif size == 127:
            size, at = int.from_bytes(data[at : at + 8], "big"), at + 8
        payload, at = data[at : at + size], at + size
        if len(payload) < size:
            return
        opcode = first & 15
        if opcode >= CLOSE:
            yield opcode, payload
            continue
        whole, kind = (payload, opcode) if opcode else (whole + payload, kind)
        if first & 0x80:
            yield kind, whole


def _wrong(text: bytes) -> list[str]:
    """What a message says that it should not."""
    try:
        told = json.loads(text)
    except ValueError:
        return [f"it sent what is no JSON: {text[:300]!r}"]
    if not isinstance(told, dict) or not ("event" in told or "id" in told):
        return [f"it sent neither an event nor a reply: {text[:300]!r}"]
    status = told.get("status", 200)
    if status >= 500:
        return [f"it answered {status}: {text[:500]!r}"]
    if told.get("ok") is False and not isinstance(told.get("error"), dict):
        return [f"a refusal without its error: {text[:300]!r}"]
    return []

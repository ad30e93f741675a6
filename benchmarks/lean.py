"""A WebSocket client that does as little as possible: it counts, and answers only what a run needs.

One process drives any number of connections through one selector. What arrives is searched for a marker that lies in
every payload, whoever sent it, so that receiving costs the same on both sides of a comparison.
"""

from __future__ import annotations

import os
import re
import selectors
import socket
import struct
import time
from base64 import b64encode
from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

import msgspec
from faces import hold

MARKER = b"order.updated"
"""Once in every payload (`measure.payload`)."""
PING = 0x9
READ_BYTES = 1 << 20
_NO_MASK = bytes(4)


def post(path: str, body: bytes) -> bytes:
    """One HTTP request."""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def frame(message: Any) -> bytes:
    """One text message as a client sends it. A mask of zeros is a mask, and costs nothing."""
    text = message if isinstance(message, bytes) else msgspec.json.encode(message)
    size = len(text)
    if size < 126:
        head = struct.pack("!BB", 0x81, 0x80 | size)
    elif size < 1 << 16:
        head = struct.pack("!BBH", 0x81, 0x80 | 126, size)
    else:
        head = struct.pack("!BBQ", 0x81, 0x80 | 127, size)
    return head + _NO_MASK + text


class Connection:
    """One socket after its handshake. `count` is how often the marker has come."""

    def __init__(self, port: int, path: str = "/api/v1/ws") -> None:
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.count = 0
        self._tail = b""
        self._unread = b""
        head = (
            f"GET {path} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {b64encode(os.urandom(16)).decode()}\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        self.sock.sendall(head.encode())
        got = b""
        while b"\r\n\r\n" not in got:
            got += self._read()
        answer, _, self._unread = got.partition(b"\r\n\r\n")
        hold(answer.startswith(b"HTTP/1.1 101"), answer)

    def _read(self) -> bytes:
        data = self.sock.recv(READ_BYTES)
        hold(bool(data), "the connection ended")
        return data

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def counted(self) -> int:
        """Read once; how many markers came with it."""
        data = self._tail + self.sock.recv(READ_BYTES)
        hold(len(data) > len(self._tail), "the connection ended")
        found = data.count(MARKER)
        self._tail = data[-len(MARKER) + 1 :]
        self.count += found
        return found

    def frames(self) -> list[bytes]:
        """Read once; the whole messages that there are by now (fragments are put together, pings are answered)."""
        self._unread += self._read()
        return self._split()

    def _split(self) -> list[bytes]:
        found: list[bytes] = []
        parts: list[bytes] = []
        data, at, done = self._unread, 0, 0
        while len(data) - at >= 2:
            opcode, size = data[at] & 0x0F, data[at + 1]
            begin = at + 2
            if size == 126:
                size, begin = int.from_bytes(data[begin : begin + 2], "big"), begin + 2
            elif size == 127:
                size, begin = int.from_bytes(data[begin : begin + 8], "big"), begin + 8
            if len(data) < begin + size or begin > len(data):
                break
            if opcode == PING:
                self.send(bytes((0x8A, 0x80 | size)) + bytes(4) + data[begin : begin + size])
            if opcode < 8:
                parts.append(data[begin : begin + size])
                if data[at] & 0x80:
                    found.append(parts[0] if len(parts) == 1 else b"".join(parts))
                    parts.clear()
                    done = begin + size
            at = begin + size
            if not parts:
                done = at
        self._unread = data[done:]
        return found

    def ask(self, message: dict[str, Any]) -> Any:
        """Send a request and wait for its reply; what else comes meanwhile is counted by nobody."""
        self.send(frame({"id": 1, **message}))
        while True:
            for text in self.frames():
                if text.startswith(b'{"id":1,'):
                    told = msgspec.json.decode(text)
                    hold(told["ok"], told)
                    return told["body"]

    def close(self) -> None:
        self.sock.close()


class Tailing(Connection):
    """Reads a queue without leases, from `begin` on; its credit is given back as it counts."""

    CREDIT, GRANT = 100_000, 10_000

    def __init__(self, port: int, queue: str, start: str = "now") -> None:
        super().__init__(port)
        self._granted = 0
        self.ask({"op": "tail", "sub": "t", "queue": queue, "from": start, "credit": 0})

    def begin(self) -> None:
        self.send(frame({"op": "credit", "sub": "t", "add": self.CREDIT}))

    def readable(self) -> None:
        self.counted()
        if self.count - self._granted >= self.GRANT:
            self._granted += self.GRANT
            self.send(frame({"op": "credit", "sub": "t", "add": self.GRANT}))


class Consuming(Connection):
    """One consumer of a group, from `begin` on. Everything that came with one read is settled by one request: the last
    message of each frame stands for those before it."""

    _FIELD = re.compile(rb'"(partitionId|leaseId)":"([^"]*)"')

    def __init__(self, port: int, queue: str, group: str, *, batch: int, partitions: int, credit: int) -> None:
        super().__init__(port)
        self._group = group
        self._credit = credit
        self.acks = 0
        subscribe = {"op": "subscribe", "sub": "s", "queue": queue, "group": group, "subscriptionMode": "all"}
        self.ask({**subscribe, "batch": batch, "partitions": partitions, "credit": 0})

    def begin(self) -> None:
        self.send(frame({"op": "credit", "sub": "s", "add": self._credit}))

    def readable(self) -> None:
        self.take(self.frames())

    def take(self, frames: list[bytes]) -> None:
        acks: list[bytes] = []
        for text in frames:
            if not text.startswith(b'{"event":"messages"'):
                hold(text.startswith(b'{"event"'), text)
                continue
            self.count += text.count(MARKER)
            head = dict(self._FIELD.findall(text, 0, 1000))
            begin = text.rfind(b'"transactionId":"') + 17
            txn = text[begin : text.index(b'"', begin)]
            acks.append(
                b'{"transactionId":"%b","partitionId":"%b","leaseId":"%b","status":"completed"}'
                % (txn, head[b"partitionId"], head[b"leaseId"])
            )
        if acks:
            self.acks += 1
            body = b'{"op":"ack","consumerGroup":"%b","acknowledgments":[%b]}'
            self.send(frame(body % (self._group.encode(), b",".join(acks))))


class Loop:
    """One selector for everything that a run does."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def watch(self, sock: socket.socket, readable: Callable[[], None]) -> None:
        self._selector.register(sock, selectors.EVENT_READ, readable)

    def forget(self, sock: socket.socket) -> None:
        self._selector.unregister(sock)

    def run(self, until: Callable[[], bool], *, at_most: float = 60.0, step: float = 0.05) -> float:
        """Until the condition holds; returns how many seconds that took."""
        begin = time.perf_counter()
        while not until():
            hold(time.perf_counter() - begin < at_most, f"nothing more came within {at_most} s")
            self.turn(step)
        return time.perf_counter() - begin

    def turn(self, seconds: float) -> None:
        """What is there, or comes within so many seconds."""
        for key, _ in self._selector.select(seconds):
            key.data()

    def run_for(self, seconds: float) -> float:
        end = time.perf_counter() + seconds
        return self.run(lambda: time.perf_counter() >= end, at_most=seconds + 60)

    def close(self) -> None:
        self._selector.close()


class Pusher:
    """Pushes over HTTP, one request under way on each of a few connections, while `may` says so."""

    def __init__(self, loop: Loop, port: int, bodies: Sequence[bytes], per_push: int, *, connections: int = 2) -> None:
        self._requests = cycle([post("/api/v1/push", body) for body in bodies])
        self.pushed = 0
        self.may: Callable[[], bool] = lambda: False
        self._per_push = per_push
        self._idle: list[socket.socket] = []
        self._loop = loop
        self._socks: list[socket.socket] = []
        for _ in range(connections):
            sock = socket.create_connection(("127.0.0.1", port))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socks.append(sock)
            self._idle.append(sock)
            loop.watch(sock, lambda sock=sock: self._answered(sock))  # type: ignore[misc]  # a default of a lambda has no type

    def start(self) -> None:
        """Send wherever nothing is under way and `may` allows it."""
        while self._idle and self.may():
            sock = self._idle.pop()
            sock.sendall(next(self._requests))
            self.pushed += self._per_push

    def _answered(self, sock: socket.socket) -> None:
        data = sock.recv(READ_BYTES)
        hold(bool(data), "the connection ended")
        if data.startswith(b"HTTP/1.1"):
            hold(data[9:12] in (b"200", b"201"), data[:300])
        if not data.endswith(b"]"):  # the answer is one array; its end is what the last piece ends with
            return
        self._idle.append(sock)
        self.start()

    @property
    def settled(self) -> bool:
        """Is nothing under way?"""
        return len(self._idle) == len(self._socks)

    def close(self) -> None:
        for sock in self._socks:
            self._loop.forget(sock)
            sock.close()

"""One request at a time and many at once, over HTTP, over a WebSocket and in process, beside the bare disk.

    python benchmarks/requests.py                            # everything, durable: about four minutes
    python benchmarks/requests.py --seconds 3 --only push    # the workloads with this in their names
    python benchmarks/requests.py --only floor               # one call in process beside the bare disk, and no more

`callers` of a WebSocket are requests that are under way on its one connection; of HTTP they are connections. The client
is this process, on plain sockets with prebuilt requests. Beside each rate stands the server's own processor time for
one request, which tells more where something else keeps the machine busy. `append` is the floor of one durable call:
a write of as many bytes as the journal takes for it and an fdatasync, with nothing around them, and `in process` the
broker's own `push`. One JSON object a line.
"""

from __future__ import annotations

import argparse
import base64
import os
import re
import socket
import statistics
import struct
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import aims
import msgspec
import trio
from http_lanes import Line, Result, Server, broker, get, load, post

from queen_actors.broker import running
from queen_actors.config import Settings
from queen_actors.domain.partition import PushItem
from queen_actors.storage import store_of

PAYLOAD = {"order": 12345, "text": "x" * 100}
_ID = re.compile(rb'\{"id":(\d+),"ok":(true|false),"status":(\d+),"(?:body|error)":')
_encode = msgspec.json.encode

Call = tuple[str, Any]
"""An op of the WebSocket, and its fields."""
Next = Callable[[Any], Call]
"""The next call of one caller, from the decoded body of the last one's answer (None before the first)."""


# -- what is asked for -------------------------------------------------------------------------------------------------


def push(number: int, turn: int) -> Next:
    call = ("push", {"items": [{"queue": "bench", "partition": f"p{number}", "payload": PAYLOAD}]})
    return lambda _: call


def push_100(number: int, turn: int) -> Next:
    items = [{"queue": "bench", "partition": f"p{(number + n) % 256}", "payload": PAYLOAD} for n in range(100)]
    return lambda _: ("push", {"items": items})


def key_put(number: int, turn: int) -> Next:
    call = (
        "kv",
        {"operations": [{"op": "put", "ns": "bench", "key": f"put-{number}", "value": PAYLOAD, "forever": True}]},
    )
    return lambda _: call


def key_cas(number: int, turn: int) -> Next:
    def step(reply: Any) -> Call:
        version = 0 if reply is None else reply["results"][0]["version"]
        op = {
            "op": "put",
            "ns": "bench",
            "key": f"cas-{turn}-{number}",
            "value": PAYLOAD,
            "forever": True,
            "expect": version,
        }
        return "kv", {"operations": [op]}

    return step


def key_incr(number: int, turn: int) -> Next:
    op = {"op": "incr", "ns": "bench", "key": f"incr-{number}", "delta": 1, "max": 1_000_000_000, "forever": True}
    return lambda _: ("kv", {"operations": [op]})


def key_get(number: int, turn: int) -> Next:
    return lambda _: ("kv", {"operations": [{"op": "get", "ns": "bench", "key": f"put-{number}"}]})


def lock(number: int, turn: int) -> Next:
    """Acquire and release a lock of one's own: each is a call."""
    name = f"lock-{turn}-{number}"

    def step(reply: Any) -> Call:
        if reply is not None and reply["results"][0]["op"] == "acquire":
            token = reply["results"][0]["token"]
            return "locks", {"operations": [{"op": "release", "name": name, "token": token}]}
        return "locks", {"operations": [{"op": "acquire", "name": name, "ttlSeconds": 60, "owner": f"w{number}"}]}

    return step


def atomic_step(number: int, turn: int) -> Next:
    """Take a message of one's own partition; then, in one transaction, ack it, write a key and push: each is a call."""
    queue, partition = f"steps-{turn}", f"p{number}"
    version = 0

    def step(reply: Any) -> Call:
        nonlocal version
        if reply is None or reply == []:
            item = {"queue": queue, "partition": partition, "payload": PAYLOAD}
            return "push", {"items": [item]}
        if isinstance(reply, list) or "messages" not in reply:
            if not isinstance(reply, list):
                version = reply["results"][-1]["version"]
            return "pop", {"queue": queue, "partition": partition, "batch": 1}
        (message,) = reply["messages"]
        ack = {
            "type": "ack",
            "transactionId": message["transactionId"],
            "partitionId": message["partitionId"],
            "leaseId": message["leaseId"],
            "status": "completed",
        }
        again = {"type": "push", "items": [{"queue": queue, "partition": partition, "payload": PAYLOAD}]}
        key: dict[str, Any] = {
            "op": "put",
            "ns": "bench",
            "key": f"{queue}-{number}",
            "value": PAYLOAD,
            "forever": True,
            "expect": version,
        }
        return "transaction", {"operations": [ack, again], "kv": [{**key, "required": True}]}

    return step


WORKLOADS: dict[str, tuple[int, Callable[[int, int], Next]]] = {
    "push": (1, push),
    "push of 100": (100, push_100),
    "key put": (1, key_put),
    "key cas": (1, key_cas),
    "key incr, bounded": (1, key_incr),
    "key get": (1, key_get),
    "lock": (1, lock),
    "atomic step": (1, atomic_step),
}
"""How many messages a call carries, and what a caller asks for, by his number and the turn of the run."""


# -- the client --------------------------------------------------------------------------------------------------------

_TARGETS = {
    "push": "/api/v1/push",
    "kv": "/api/v1/kv",
    "locks": "/api/v1/locks",
    "transaction": "/api/v1/transaction",
}


def _http(call: Call) -> bytes:
    op, fields = call
    if op == "pop":
        return get(f"/api/v1/pop/queue/{fields['queue']}/partition/{fields['partition']}?batch={fields['batch']}")
    return post(_TARGETS[op], fields)


def http_lines(server: Server, callers: Sequence[Next]) -> list[Line]:
    def line(caller: Next) -> Line:
        def step(body: bytes) -> bytes:
            return _http(caller(msgspec.json.decode(body) if body else []))

        return Line(server.port, _http(caller(None)), step)

    return [line(caller) for caller in callers]


class Socket:
    """One WebSocket with a request of each caller under way."""

    def __init__(self, server: Server, callers: Sequence[Next]) -> None:
        self.sock = socket.create_connection(("127.0.0.1", server.port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        key = base64.b64encode(os.urandom(16)).decode()
        self.sock.sendall(
            b"GET /api/v1/ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: %b\r\n\r\n" % key.encode()
        )
        self._got = b""
        while b"\r\n\r\n" not in self._got:
            self._got += self.sock.recv(65536)
        self._got = self._got.partition(b"\r\n\r\n")[2]
        self._callers = callers
        self._sent = [0.0] * len(callers)
        self._frames: dict[int, bytes] = {}
        self.delays: list[float] = []
        self._send([self._frame(number, caller(None)) for number, caller in enumerate(callers)])
        self.sock.setblocking(False)

    def _frame(self, number: int, call: Call) -> bytes:
        self._sent[number] = time.perf_counter()
        op, fields = call
        text = b'{"id":%d,"op":"%b",%b' % (number, op.encode(), _encode(fields)[1:])
        size = len(text)
        head = struct.pack("!BB", 0x81, 0x80 | size) if size < 126 else struct.pack("!BBH", 0x81, 0xFE, size)
        mask = b"\x5a\x17\xc3\x2e"
        masked = int.from_bytes(text, "little") ^ int.from_bytes((mask * (size // 4 + 1))[:size], "little")
        return head + mask + masked.to_bytes(size, "little")

    def _send(self, frames: list[bytes]) -> None:
        view = memoryview(b"".join(frames))
        while view:
            try:
                view = view[self.sock.send(view) :]
            except BlockingIOError:
                time.sleep(0.0001)

    def receive(self) -> None:
        data = self._got + self.sock.recv(1 << 18)
        at, out = 0, list[bytes]()
        while len(data) - at >= 2:
            size, begin = data[at + 1], at + 2
            if size == 126:
                if len(data) - at < 4:
                    break
                size, begin = int.from_bytes(data[at + 2 : at + 4], "big"), at + 4
            if len(data) < begin + size:
                break
            self._take(data[at], data[begin : begin + size], out)
            at = begin + size
        self._got = data[at:]
        if out:
            self._send(out)

    def _take(self, first: int, text: bytes, out: list[bytes]) -> None:
        found = _ID.match(text)
        if first != 0x81 or found is None:
            if first != 0x89 and b'"welcome"' not in text:
                raise SystemExit(text.decode(errors="replace"))
            return
        if found[2] != b"true":
            raise SystemExit(text.decode(errors="replace"))
        number = int(found[1])
        self.delays.append(time.perf_counter() - self._sent[number])
        caller = self._callers[number]
        body = text[found.end() : -1]
        reply: Any = [] if body == b"null" else msgspec.json.decode(body)
        out.append(self._frame(number, caller(reply)))


def socket_lines(server: Server, callers: Sequence[Next]) -> list[Any]:
    return [Socket(server, callers)]


FACES: dict[str, Callable[[Server, Sequence[Next]], list[Any]]] = {"http": http_lines, "websocket": socket_lines}


# -- one call, without a network ---------------------------------------------------------------------------------------

WARM, STRETCH = 100, 20
"""So many calls of one kind, then of the other: what else the disk does hits both. So many before, for warming up."""


class Bare:
    """A file that is written as the journal is: room allocated ahead, one write and one fdatasync a call."""

    def __init__(self, directory: str, size: int) -> None:
        self._fd = os.open(os.path.join(directory, "append"), os.O_RDWR | os.O_CREAT, 0o640)
        os.posix_fallocate(self._fd, 0, 64 << 20)
        os.fsync(self._fd)
        self._frame = b"x" * size
        self._at = 0

    def append(self) -> None:
        os.pwritev(self._fd, (self._frame,), self._at)
        os.fdatasync(self._fd)
        self._at = (self._at + len(self._frame)) % (32 << 20)


async def floor(directory: str, seconds: float) -> None:
    settings = Settings(data=os.path.join(directory, "embedded"))
    raw: list[float] = []
    ours: list[float] = []
    item = PushItem("bench", "p", _encode(PAYLOAD))
    async with running(store_of(settings), settings) as opened:
        before = opened.statistics().store.journal_bytes
        for _ in range(WARM):
            await opened.push([item])
        size = (opened.statistics().store.journal_bytes - before) // WARM
        bare = Bare(directory, size)
        cpu, end = time.process_time(), time.perf_counter() + seconds
        while time.perf_counter() < end:
            for _ in range(STRETCH):
                began = time.perf_counter()
                bare.append()
                raw.append(time.perf_counter() - began)
            for _ in range(STRETCH):
                began = time.perf_counter()
                await opened.push([item])
                ours.append(time.perf_counter() - began)
        cpu = time.process_time() - cpu
    told = {
        "workload": "one durable push, in process",
        "bytes": size,
        "append_p50_ms": round(statistics.median(raw) * 1000, 3),
        "p50_ms": round(statistics.median(ours) * 1000, 3),
        "times": round(statistics.median(ours) / statistics.median(raw), 2),
        "cpu_us_with_its_append": round(cpu / len(ours) * 1e6, 1),
    }
    print(_encode(told).decode(), flush=True)
    aims.tell("in-process", statistics.median(ours) / statistics.median(raw))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--callers", default="1,32")
    parser.add_argument("--only", default="")
    parser.add_argument("--faces", default="http,websocket")
    parser.add_argument("--memory", action="store_true", help="nothing on disk")
    parser.add_argument("--dir", default=None, help="where the data is kept")
    options = parser.parse_args()
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(dir=options.dir))
        if not options.memory and options.only in ("", "floor"):
            trio.run(floor, directory, options.seconds * options.rounds)
        if options.only == "floor":
            return
        where = ("--memory",) if options.memory else ("--data", f"{directory}/served")
        server = stack.enter_context(broker("broker", "fast", *where))
        turn = 0
        for name, (messages, begin) in WORKLOADS.items():
            if options.only not in name:
                continue
            for count in (int(text) for text in options.callers.split(",")):
                for face in options.faces.split(","):
                    found: list[Result] = []
                    for _ in range(options.rounds):
                        turn += 1
                        callers = [begin(number, turn) for number in range(count)]
                        found.append(load(server, FACES[face](server, callers), options.seconds))
                    tell(name, messages, face, count, found)


def tell(name: str, messages: int, face: str, callers: int, found: Sequence[Result]) -> None:
    rate = statistics.median(result.rate for result in found)
    told = {
        "workload": name,
        "face": face,
        "callers": callers,
        "rate": round(rate),
        "messages": round(rate * messages) if messages > 1 else None,
        "cpu_us": round(statistics.median(result.cpu_us for result in found), 1),
        "p50_ms": round(statistics.median(result.p50_ms for result in found), 3),
        "p99_ms": round(statistics.median(result.p99_ms for result in found), 3),
    }
    print(_encode(told).decode(), flush=True)


if __name__ == "__main__":
    main()

"""HTTP, request by request: the fast lane and the web lane beside a hello world of hypercorn and quart-trio.

    python benchmarks/http_lanes.py                      # every workload at 1, 32 and 128 connections
    python benchmarks/http_lanes.py --seconds 5 --rounds 3 --connections 32
    python benchmarks/http_lanes.py --only "push 1"      # one workload

Each server has a process of its own; the client is this process, with plain non-blocking sockets and prebuilt requests.
All of a workload's servers are measured in turn, round after round, and the median is printed, one JSON object a line:
`rate` is requests a second, `messages` what they carry, `cpu_us` the server's own processor time for one request (which
tells more than the rate where something else keeps the machine busy), `times` the rate as a multiple of the hello
world's at the same number of connections, `cpu_times` the same of the processor time. A reply of a durable server
means that the message is on the disk.
"""

from __future__ import annotations

import argparse
import os
import re
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

TICKS = os.sysconf("SC_CLK_TCK")
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
PARTITIONS = 256

HELLO = """
import sys
import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from quart_trio import QuartTrio

app = QuartTrio("hello")

@app.route("/")
async def hello():
    return "Hello World"

config = Config()
config.bind = ["127.0.0.1:" + sys.argv[1]]
config.keep_alive_max_requests = 1 << 62
trio.run(serve, app, config)
"""


class Server(Struct):
    """One running server."""

    name: str
    port: int
    pid: int

    def cpu(self) -> float:
        """Processor seconds so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS


@contextmanager
def process(name: str, command: list[str], port: int) -> Iterator[Server]:
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        for _ in range(400):
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionRefusedError:
                time.sleep(0.05)
        yield Server(name, port, running.pid)
    finally:
        running.send_signal(signal.SIGTERM)
        running.wait(20)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def hello() -> Any:
    port = free_port()
    return process("hello", [sys.executable, "-c", HELLO, str(port)], port)


def broker(name: str, lane: str, *where: str) -> Any:
    port = free_port()
    command = [sys.executable, "-m", "queen_actors", "serve", "--port", str(port), "--lane", lane, *where]
    return process(name, command, port)


# -- the client --------------------------------------------------------------------------------------------------------

Step = Callable[[bytes], bytes]
"""The next request, from the body of the last answer."""


class Line:
    """One connection that always has one request under way."""

    def __init__(self, port: int, first: bytes, step: Step) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.setblocking(False)
        self._step = step
        self._got = b""
        self._sent = 0.0
        self.delays: list[float] = []
        self.send(first)

    def send(self, request: bytes) -> None:
        self._sent = time.perf_counter()
        view = memoryview(request)
        while view:
            try:
                view = view[self.sock.send(view) :]
            except BlockingIOError:
                time.sleep(0.0001)

    def receive(self) -> None:
        """Take what has come; with a whole answer send the next request."""
        data = self.sock.recv(1 << 18)
        if not data:
            raise SystemExit("the server closed a connection")
        got = self._got = self._got + data if self._got else data
        end = got.find(b"\r\n\r\n")
        if end < 0:
            return
        if not got.startswith((b"HTTP/1.1 200", b"HTTP/1.1 201", b"HTTP/1.1 204")):
            raise SystemExit(got.decode(errors="replace"))
        length = _LENGTH.search(got, 0, end + 2)
        whole = end + 4 + (0 if length is None else int(length[1]))
        if len(got) < whole:
            return
        self._got = b""
        self.delays.append(time.perf_counter() - self._sent)
        self.send(self._step(got[end + 4 : whole]))


class Result(Struct):
    rate: float
    cpu_us: float
    p50_ms: float
    p99_ms: float


def load(server: Server, lines: list[Line], seconds: float) -> Result:
    """All connections busy for so long, and a fifth of it before for warming up."""
    with selectors.DefaultSelector() as selector:
        for line in lines:
            selector.register(line.sock, selectors.EVENT_READ, line.receive)
        _turn(selector, seconds / 5)
        for line in lines:
            line.delays.clear()
        cpu, started = server.cpu(), time.perf_counter()
        _turn(selector, seconds)
        took, spent = time.perf_counter() - started, server.cpu() - cpu
    delays = sorted(delay for line in lines for delay in line.delays)
    for line in lines:
        line.sock.close()
    if not delays:
        raise SystemExit(f"{server.name} has not answered")
    p50, p99 = delays[len(delays) // 2], delays[len(delays) * 99 // 100]
    return Result(len(delays) / took, spent / len(delays) * 1e6, p50 * 1000, p99 * 1000)


def _turn(selector: selectors.BaseSelector, seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for key, _ in selector.select(0.1):
            key.data()


# -- what is sent ------------------------------------------------------------------------------------------------------


def get(target: str) -> bytes:
    return f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def post(target: str, body: Any) -> bytes:
    content = msgspec.json.encode(body)
    head = f"POST {target} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


def push_of(count: int, start: int = 0, queue: str = "bench") -> bytes:
    payload = {"order": 12345, "text": "x" * 100}
    items = [{"queue": queue, "partition": f"p{(start + n) % PARTITIONS}", "payload": payload} for n in range(count)]
    return post("/api/v1/push", {"items": items})


def same(request: bytes) -> Callable[[Server, int, int], Line]:
    return lambda server, number, turn: Line(server.port, request, lambda _: request)


def pushes(count: int) -> Callable[[Server, int, int], Line]:
    def line(server: Server, number: int, turn: int) -> Line:
        request = push_of(count, number)
        return Line(server.port, request, lambda _: request)

    return line


def cycles(server: Server, number: int, turn: int) -> Line:
    """Pop one message, acknowledge it, push it again: three requests of which each counts. Each round has a queue of
    its own, since what the last one had leased at its end stays leased for a while."""
    queue = f"cycle-{turn}"
    again = push_of(1, number, queue)
    pop = get(f"/api/v1/pop/queue/{queue}?batch=1&wait=true&timeout=30000")
    state = "push"

    def step(body: bytes) -> bytes:
        nonlocal state
        if state == "push":
            state = "pop"
            return pop
        if state == "pop":
            if not body:
                return pop
            reply = msgspec.json.decode(body)
            (message,) = reply["messages"]
            state = "ack"
            ack = {
                "transactionId": message["transactionId"],
                "partitionId": message["partitionId"],
                "leaseId": reply["leaseId"],
                "status": "completed",
            }
            return post("/api/v1/ack/batch", {"acknowledgments": [ack]})
        state = "push"
        return again

    return Line(server.port, again, step)


class Workload(Struct):
    name: str
    messages: int
    line: Callable[[Server, int, int], Line]


WORKLOADS = (
    Workload("push 1", 1, pushes(1)),
    Workload("push 100", 100, pushes(100)),
    Workload("pop, ack, push", 1, cycles),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", default="1,32,128")
    parser.add_argument("--only", default="")
    parser.add_argument("--servers", default="web,fast,web durable,fast durable")
    parser.add_argument("--dir", default=None, help="where the durable servers keep their data")
    options = parser.parse_args()
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(dir=options.dir))
        base = stack.enter_context(hello())
        places = {
            "web": ("web", "--memory"),
            "fast": ("fast", "--memory"),
            "web durable": ("web", "--data", f"{directory}/web"),
            "fast durable": ("fast", "--data", f"{directory}/fast"),
        }
        names = options.servers.split(",")
        servers = [stack.enter_context(broker(name, *places[name])) for name in names]
        for connections in (int(count) for count in options.connections.split(",")):
            for workload in WORKLOADS:
                if options.only in ("", workload.name):
                    compare(base, servers, workload, connections, options.seconds, options.rounds)


def compare(
    base: Server, servers: list[Server], workload: Workload, connections: int, seconds: float, rounds: int
) -> None:
    results: dict[str, list[Result]] = {}
    for turn in range(rounds):
        for server in (base, *servers):
            line = same(get("/")) if server is base else workload.line
            lines = [line(server, number, connections * 1000 + turn) for number in range(connections)]
            results.setdefault(server.name, []).append(load(server, lines, seconds))
    hello_rate = statistics.median(result.rate for result in results[base.name])
    hello_cpu = statistics.median(result.cpu_us for result in results[base.name])
    for name, found in results.items():
        rate = statistics.median(result.rate for result in found)
        cpu = statistics.median(result.cpu_us for result in found)
        told = {
            "server": name,
            "workload": "hello world" if name == base.name else workload.name,
            "connections": connections,
            "rate": round(rate),
            "messages": round(rate * workload.messages) if name != base.name else None,
            "times": round(rate / hello_rate, 2),
            "cpu_us": round(cpu, 1),
            "cpu_times": round(hello_cpu / cpu, 2),
            "p50_ms": round(statistics.median(result.p50_ms for result in found), 3),
            "p99_ms": round(statistics.median(result.p99_ms for result in found), 3),
        }
        print(msgspec.json.encode(told).decode(), flush=True)


if __name__ == "__main__":
    main()

"""HTTP, request by request: the fast lane and the web lane beside a hello world of hypercorn and quart-trio.

    python benchmarks/http_lanes.py                      # every workload at 1, 32 and 128 connections
    python benchmarks/http_lanes.py --aims               # what was aimed at, and no more: under two minutes
    python benchmarks/http_lanes.py --client python --only "push 1" --connections 32 --seconds 5 --rounds 5

Each server has a process of its own. The client is `wrk`, where it is installed (`--client auto`), in C and not ours; a
cycle of requests that depend on each other, and everything where there is no wrk, is sent by this process, over plain
non-blocking sockets with prebuilt requests. The hello world is always measured by the same client in the same round.
All of a workload's servers are measured in turn, round after round, and the median is printed, one JSON object a line:
`rate` is requests a second, `messages` what they carry, `cpu_us` the server's own processor time for one request (which
tells more than the rate where something else keeps the machine busy), `times` the rate as a multiple of the hello
world's at the same number of connections, with the lowest and the highest of a round's, `cpu_times` the same of the
processor time. A reply of a durable server means that the message is on the disk. After each run of pushes the server
is asked how many messages it keeps: at least as many as were answered. What was aimed at comes last, as a table.
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
import urllib.request
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import aims
import msgspec
import wrk
from faces import hold
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
def process(name: str, command: list[str], port: int) -> Generator[Server]:
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
    answered: int = 0


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
    return Result(len(delays) / took, spent / len(delays) * 1e6, p50 * 1000, p99 * 1000, len(delays))


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


def items_of(count: int, start: int = 0, queue: str = "bench") -> dict[str, Any]:
    """The body of a push: without transaction ids, so that no message is a repeat."""
    payload = {"order": 12345, "text": "x" * 100}
    items = [{"queue": queue, "partition": f"p{(start + n) % PARTITIONS}", "payload": payload} for n in range(count)]
    return {"items": items}


def push_of(count: int, start: int = 0, queue: str = "bench") -> bytes:
    return post("/api/v1/push", items_of(count, start, queue))


def same(request: bytes) -> Callable[[Server, int, int], Line]:
    return lambda server, number, turn: Line(server.port, request, lambda _: request)


def pushes(count: int) -> Callable[[Server, int, int], Line]:
    def line(server: Server, number: int, turn: int) -> Line:
        request = push_of(count, number)
        return Line(server.port, request, lambda _: request)

    return line


def bodies(count: int) -> list[bytes]:
    """What wrk sends in turn: a body for each partition."""
    return [msgspec.json.encode(items_of(count, number)) for number in range(PARTITIONS)]


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
    bodies: Sequence[bytes] = ()
    """Pushes that do not depend on answers: what wrk can send."""


WORKLOADS = (
    Workload("push 1", 1, pushes(1), bodies(1)),
    Workload("push 100", 100, pushes(100), bodies(100)),
    Workload("pop, ack, push", 1, cycles),
)


# -- a run -------------------------------------------------------------------------------------------------------------


class Plan(Struct):
    """What is measured, and how."""

    base: Server
    seconds: float
    rounds: int
    client: str | None
    """wrk's version, or None."""

    def by(self, workload: Workload) -> str:
        """Which client sends this workload, and the hello world beside it."""
        return self.client if self.client is not None and workload.bodies else "python"

    def take(self, server: Server, workload: Workload, connections: int, turn: int) -> Result:
        hello = server is self.base
        if self.by(workload) == "python":
            line = same(get("/")) if hello else workload.line
            result = load(
                server, [line(server, number, connections * 1000 + turn) for number in range(connections)], self.seconds
            )
        elif hello:
            result = load_by_wrk(server, "/", connections, self.seconds)
        else:
            before = kept(server)
            result = load_by_wrk(server, "/api/v1/push", connections, self.seconds, workload.bodies)
            hold(kept(server) - before >= result.answered * workload.messages, "more was answered than is kept")
        return result


def load_by_wrk(server: Server, target: str, connections: int, seconds: float, bodies: Sequence[bytes] = ()) -> Result:
    """As `load`; the second before it is for warming up."""
    wrk.load(server.port, target, connections, 1, bodies)
    cpu = server.cpu()
    found = wrk.load(server.port, target, connections, seconds, bodies)
    spent = server.cpu() - cpu
    if not found.requests:
        raise SystemExit(f"{server.name} has not answered")
    rate = found.requests / found.seconds
    return Result(rate, spent / found.requests * 1e6, found.p50_ms, found.p99_ms, found.requests)


def kept(server: Server) -> int:
    """How many messages the server has in the queue of the pushes."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/api/v1/resources/queues", timeout=30) as answer:
        queues = msgspec.json.decode(answer.read())["queues"]
    return sum(queue["messages"]["total"] for queue in queues if queue["name"] == "bench")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--connections", default="1,32,128")
    parser.add_argument("--only", default="")
    parser.add_argument("--servers", default="web,fast,web durable,fast durable")
    parser.add_argument("--client", choices=("auto", "wrk", "python"), default="auto")
    parser.add_argument("--aims", action="store_true", help="only what the aims need")
    parser.add_argument("--dir", default=None, help="where the durable servers keep their data")
    options = parser.parse_args()
    client = None if options.client == "python" else wrk.version()
    if options.client == "wrk" and client is None:
        parser.error("wrk is not installed (apt-get install wrk)")
    if options.aims:
        options.servers = "fast,fast durable"
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(dir=options.dir))
        plan = Plan(stack.enter_context(hello()), options.seconds, options.rounds, client)
        places = {
            "web": ("web", "--memory"),
            "fast": ("fast", "--memory"),
            "web durable": ("web", "--data", f"{directory}/web"),
            "fast durable": ("fast", "--data", f"{directory}/fast"),
        }
        names = options.servers.split(",")
        servers = [stack.enter_context(broker(name, *places[name])) for name in names]
        runs = [(w, int(count)) for count in options.connections.split(",") for w in WORKLOADS]
        found: Aimed = {}
        for workload, connections in runs:
            wanted = options.only in ("", workload.name)
            if wanted and (not options.aims or any(aim[1:] == (workload.name, connections) for aim in AIMED)):
                found |= compare(plan, servers, workload, connections)
    for key, (value, low, high) in found.items():
        aims.tell(key, value, (low, high))
    if found:
        seen = {key: {"value": value, "low": low, "high": high} for key, (value, low, high) in found.items()}
        print("\n" + aims.table(seen, [key for key in aims.AIMS if key in seen]))


AIMED = {
    ("fast", "push 1", 32): "http-memory-32",
    ("fast durable", "push 1", 32): "http-durable-32",
    ("fast durable", "push 1", 128): "http-durable-128",
    ("fast durable", "push 100", 32): "http-durable-100",
}
"""Which aim a server, a workload and a number of connections belong to."""
Aimed = dict[str, tuple[float, float, float]]
"""By aim: the median of the rounds, the lowest and the highest."""


def middle(values: Sequence[float]) -> tuple[float, float, float]:
    return statistics.median(values), min(values), max(values)


def compare(plan: Plan, servers: list[Server], workload: Workload, connections: int) -> Aimed:
    """Every server in turn, round after round; prints their lines and gives back what was aimed at."""
    results: dict[str, list[Result]] = {}
    for turn in range(plan.rounds):
        for server in (plan.base, *servers):
            results.setdefault(server.name, []).append(plan.take(server, workload, connections, turn))
    base, aimed = results[plan.base.name], Aimed()
    hello_cpu = statistics.median(result.cpu_us for result in base)
    for name, found in results.items():
        rate = statistics.median(result.rate for result in found)
        cpu = statistics.median(result.cpu_us for result in found)
        times = middle([one.rate / hello.rate for one, hello in zip(found, base, strict=True)])
        told = {
            "server": name,
            "workload": "hello world" if name == plan.base.name else workload.name,
            "client": plan.by(workload),
            "connections": connections,
            "rate": round(rate),
            "messages": round(rate * workload.messages) if name != plan.base.name else None,
            "times": round(times[0], 2),
            "times_low": round(times[1], 2),
            "times_high": round(times[2], 2),
            "cpu_us": round(cpu, 1),
            "cpu_times": round(hello_cpu / cpu, 2),
            "p50_ms": round(statistics.median(result.p50_ms for result in found), 3),
            "p99_ms": round(statistics.median(result.p99_ms for result in found), 3),
        }
        print(msgspec.json.encode(told).decode(), flush=True)
        aim = AIMED.get((name, workload.name, connections))
        if aim is not None:
            rates = [result.rate * workload.messages for result in found]
            aimed[aim] = times if aims.AIMS[aim].unit == "times" else middle(rates)
    return aimed


if __name__ == "__main__":
    main()

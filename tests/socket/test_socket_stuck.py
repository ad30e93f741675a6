"""A consumer that stops reading while 200 MB are pushed, at the real server process (`websocket.md`, section 7).

What it costs in memory, that it is dropped, and who gets its messages then. The deadline to the second is tested on
virtual time, in `test_socket_limits.py`; here the kernel's own would end it after 30 s. The server keeps its log in
memory: with a disk, what the sealing of journals takes for a moment comes and goes by more than all that is measured
here. What a stuck consumer does to another one's latency is measured by `benchmarks/streaming.py`, with a disk.
"""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from server_process import ServerProcess
from socket_peer import acks, frame
from websockets.sync.client import connect

from queen_actors import limits

SIZE, COUNT, PARTITIONS, PER_PUSH = 20_000, 10_000, 1_000, 20
COST_BYTES = 64_000_000
AHEAD = 400  # how many messages the producer may be ahead of the consumer that reads
SLACK_SECONDS = 60.0  # beside the deadline: to take 200 MB, on a busy machine
TEXT = 1

UPGRADE = (
    b"GET /api/v1/ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    found = ServerProcess(tmp_path / "server.log", heartbeat_seconds=600)  # no ping finds it out first
    found.start()
    try:
        yield found
    finally:
        found.stop()


class Reader(threading.Thread):
    """A consumer of the group `quick` that takes and settles everything."""

    def __init__(self, server: ServerProcess) -> None:
        super().__init__(daemon=True)
        self.got = 0
        self.failure: BaseException | None = None
        self.subscribed = threading.Event()
        self._url = server.url.replace("http", "ws") + "/api/v1/ws"
        self._enough = threading.Event()

    def run(self) -> None:
        try:
            with connect(self._url, max_size=None, open_timeout=30, proxy=None) as client:
                client.send('{"op":"subscribe","sub":"s","queue":"q","group":"quick","partitions":64,"id":1}')
                while not self._enough.is_set():
                    try:
                        told: dict[str, Any] = json.loads(client.recv(0.2))
                    except TimeoutError:
                        continue
                    assert told.get("ok", True), told
                    if told.get("event") == "messages":
                        settled = {"op": "ack", "consumerGroup": "quick", "acknowledgments": acks(told, -1)}
                        client.send(json.dumps(settled))
                        self.got += len(told["messages"])
                    elif told.get("id") == 1:
                        self.subscribed.set()
        except BaseException as error:  # for the test's own thread
            self.failure = error

    def stop(self) -> None:
        self._enough.set()
        self.join(30)
        if self.failure is not None:
            raise self.failure


def resident_bytes(pid: int) -> int:
    found = re.search(r"^VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def push_all(server: ServerProcess, client: httpx.Client, reader: Reader) -> int:
    """Push 200 MB, no faster than the reader reads; by how much the server's memory grew meanwhile at the most."""
    payload = "x" * SIZE
    done, peak = reader.got, 0
    before = resident_bytes(server.pid)
    for first in range(0, COUNT, PER_PUSH):
        names = [f"p{(first + n) % PARTITIONS}" for n in range(PER_PUSH)]
        pushed = [{"queue": "q", "partition": name, "payload": payload} for name in names]
        assert client.post("/api/v1/push", json={"items": pushed}).status_code == 201
        until = time.monotonic() + 60
        while first + PER_PUSH - (reader.got - done) > AHEAD:
            assert reader.failure is None, reader.failure
            assert time.monotonic() < until, "the consumer that reads gets nothing any more"
            time.sleep(0.002)
        peak = max(peak, resident_bytes(server.pid))
    return peak - before


def subscribe(raw: socket.socket) -> None:
    """For the group `slow`, to everything from now on; nothing is read but the reply."""
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    terms = {"group": "slow", "subscriptionMode": "new", "credit": 100_000, "batch": 1_000, "partitions": 64}
    raw.sendall(UPGRADE)
    hear(raw, b'"event":"welcome"')
    raw.sendall(frame(TEXT, json.dumps({"id": 1, "op": "subscribe", "sub": "s", "queue": "q", **terms}).encode()))
    hear(raw, b'{"id":1,"ok":true')


def hear(raw: socket.socket, wanted: bytes) -> None:
    heard = b""
    while wanted not in heard:
        part = raw.recv(4096)
        assert part, heard
        heard += part


def take_all(client: httpx.Client, until: float) -> list[int]:
    """Everything that the group `slow` has not had, as other consumers of it get it: which delivery each is."""
    attempts: list[int] = []
    wanted = {"consumerGroup": "slow", "batch": 200, "partitions": 64, "wait": "true", "timeout": 1000}
    while len(attempts) < COUNT and time.monotonic() < until:
        reply = client.get("/api/v1/pop/queue/q", params=wanted)
        if reply.status_code == 200:
            attempts += [message["deliveryAttempt"] for message in reply.json()["messages"]]
    return attempts


def received(raw: socket.socket) -> int:
    """Read to the end of the stream: how many bytes had been sent. A close frame comes only to a peer that wakes up
    soon (`test_a_stuck_peer_that_wakes_up_is_told_4408`)."""
    size = 0
    with suppress(ConnectionResetError):
        while part := raw.recv(1 << 20):
            size += len(part)
    return size


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_consumer_that_stops_reading_while_200_mb_are_pushed(server: ServerProcess) -> None:
    """It costs under 64 MB beside what the same pushes cost without it; it is dropped within its deadline: its
    messages are given back, and another consumer of its group has every one of them, none lost, the second delivery
    of those that it had been sent. The consumer beside it gets everything meanwhile."""
    reader = Reader(server)
    reader.start()
    assert reader.subscribed.wait(30)
    with httpx.Client(base_url=server.url, trust_env=False, timeout=60) as client:
        alone = push_all(server, client, reader)
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as raw:
            subscribe(raw)
            beside = push_all(server, client, reader)
            assert alone > SIZE * COUNT * 0.9, "what is pushed stays in memory: else nothing is measured"
            assert beside - alone < COST_BYTES
            attempts = take_all(client, time.monotonic() + limits.WS_WRITE_SECONDS + SLACK_SECONDS)
            assert len(attempts) == COUNT
            assert set(attempts) == {1, 2}
            assert received(raw) < COST_BYTES
    reader.stop()
    assert reader.got == 2 * COUNT

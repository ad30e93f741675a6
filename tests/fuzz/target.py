"""The server that inputs are sent to, as a process, and a consumer beside them who must not notice."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from types import TracebackType

import httpx
from server_process import ServerProcess
from websockets.sync.client import ClientConnection, connect

BYSTANDER_SECONDS = 15.0
"""How long a message of the bystander's may take on a machine that is busy with inputs."""
SETTLE_SECONDS = 20.0
QUEUE = GROUP = "bystander"
"""No input has this name by chance. One as short as a letter is deleted by a request that may do so."""


class Bystander:
    """Pushes over HTTP and consumes over a WebSocket, and notes whatever is not as it should be."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="bystander")
        self.delivered = 0
        self.slowest = 0.0
        self.complaints: list[str] = []

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End after the message that is under way."""
        self._stop.set()
        self._thread.join(BYSTANDER_SECONDS * 2)
        if self._thread.is_alive():
            self.complaints.append("the bystander did not come to an end")

    def _run(self) -> None:
        try:
            with (
                httpx.Client(base_url=self._url, trust_env=False, timeout=BYSTANDER_SECONDS) as http,
                connect(
                    self._url.replace("http", "ws") + "/api/v1/ws", subprotocols=["queen.v1"], proxy=None
                ) as socket,
            ):
                subscribe = {"id": 0, "op": "subscribe", "sub": "s", "queue": QUEUE, "group": GROUP, "credit": 10}
                socket.send(json.dumps(subscribe))
                number = 0
                while not self._stop.is_set():
                    self._one(http, socket, number)
                    number += 1
                    self._stop.wait(0.02)
        except Exception as error:  # the boundary of a thread: whatever ended it is a finding
            self.complaints.append(f"the bystander was harmed after {self.delivered} messages: {error!r}")

    def _one(self, http: httpx.Client, socket: ClientConnection, number: int) -> None:
        began = time.monotonic()
        item = {"queue": QUEUE, "transactionId": f"b{number}", "payload": number}
        answer = http.post("/api/v1/push", json={"items": [item]})
        if answer.status_code != 201:
            self.complaints.append(f"the bystander's push was answered {answer.status_code}: {answer.text[:200]}")
        while True:
            told = json.loads(socket.recv(BYSTANDER_SECONDS))
            if told.get("event") == "messages":
                break
            if told.get("ok") is False or told.get("event") in ("lease", "error"):
                self.complaints.append(f"the bystander was told {told}")
        got = [message["data"] for message in told["messages"]]
        if got != [number]:
            self.complaints.append(f"the bystander expected {number} and got {got}")
        keys = ("transactionId", "partitionId", "leaseId")
        acks = [{key: message[key] for key in keys} | {"status": "completed"} for message in told["messages"]]
        socket.send(json.dumps({"id": number + 1, "op": "ack", "consumerGroup": GROUP, "acknowledgments": acks}))
        self.delivered += 1
        self.slowest = max(self.slowest, time.monotonic() - began)


class Target:
    """A server and its bystander, for as long as a block lasts; at its end, everything that the inputs left behind."""

    def __init__(self, directory: Path) -> None:
        self._log = directory / "server.log"
        self._server = ServerProcess(self._log, directory / "data")
        self.url = self._server.url
        self.port = self._server.port
        self.violations: list[str] = []
        self.figures: dict[str, int] = {}

    def __enter__(self) -> Target:
        self._server.start()
        self._warm()
        self._descriptors = self._count_descriptors()
        self._bystander = Bystander(self.url)
        self._bystander.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bystander.stop()
        if kind is not None:
            self._server.kill()
            return
        self.violations += self._bystander.complaints
        self.figures = {"bystander": self._bystander.delivered, "slowest_ms": round(1000 * self._bystander.slowest)}
        if self._server.died:
            self.violations.append("the server ended")
        else:
            self._look_at_what_is_left()
            began = time.monotonic()
            self._server.stop()
            if time.monotonic() - began > 12:
                self.violations.append(f"the server took {time.monotonic() - began:.1f} s to stop")
        self._read_log()

    @property
    def delivered(self) -> int:
        """So many messages have come to the bystander."""
        return self._bystander.delivered

    @property
    def complaints(self) -> list[str]:
        """The bystander's, until now."""
        return self._bystander.complaints

    def kill_server(self) -> None:
        """What no input may do."""
        os.kill(self._server.pid, signal.SIGKILL)

    def _warm(self) -> None:
        """One of each kind of request, so that what is opened once and kept is there before the count."""
        with httpx.Client(base_url=self.url, trust_env=False) as http:
            http.get("/static/openapi.json")
            http.post("/api/v1/push", json={"items": [{"queue": "warm", "payload": 1}]})
            http.get("/api/v1/pop/queue/warm")
        with connect(self.url.replace("http", "ws") + "/api/v1/ws", subprotocols=["queen.v1"], proxy=None) as socket:
            socket.send('{"id":1,"op":"ping"}')
            socket.recv(5)

    def _count_descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self._server.pid}/fd"))

    def _look_at_what_is_left(self) -> None:
        """Descriptors are back where they were, and it answers."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while (left := self._count_descriptors()) > self._descriptors and time.monotonic() < deadline:
            time.sleep(0.1)
        if left > self._descriptors:
            self.violations.append(f"{left - self._descriptors} descriptors were left open")
        answer = httpx.get(f"{self.url}/health", trust_env=False)
        if answer.status_code != 200:
            self.violations.append(f"/health is {answer.status_code} afterwards")

    def _read_log(self) -> None:
        """A traceback, or a line above a warning, is a fault that nobody expected."""
        text = self._log.read_text(errors="replace")
        for line in text.splitlines():
            if "Traceback" in line or '"level": "error"' in line or '"level": "critical"' in line:
                self.violations.append(f"the server's log has: {line[:2000]}")

"""A lean HTTP client: one kept connection, every request and its answer in the history."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode

import msgspec
import trio
from httptools import HttpResponseParser

from .history import Call, History

POSTS = {
    "configure": "/api/v1/configure",
    "push": "/api/v1/push",
    "ack": "/api/v1/ack/batch",
    "kv": "/api/v1/kv",
    "locks": "/api/v1/locks",
    "timers": "/api/v1/timers",
    "transaction": "/api/v1/transaction",
    "fetch": "/api/v1/fetch",
}
ANSWER_SECONDS = 60.0


class Lost(Exception):
    """There is nobody to go on with: the connection died, or what answers refuses what it is to do."""


class Peer:
    """One connection, one request at a time."""

    def __init__(self, stream: trio.SocketStream, history: History, worker: int, grace: float = 0.0) -> None:
        self._grace = grace
        self._stream = stream
        self._history = history
        self._worker = worker
        self._parser = HttpResponseParser(self)
        self._parts: list[bytes] = []
        self._complete = False

    def on_body(self, part: bytes) -> None:
        self._parts.append(part)

    def on_message_complete(self) -> None:
        self._complete = True

    async def call(self, op: str, body: Any) -> Call:
        """Send and wait for the answer. Raises Lost, with the call in the history as unknown or as refused."""
        call = self._history.begin(self._worker, op, body)
        try:
            with trio.fail_after(ANSWER_SECONDS):
                status, content = await self._exchange(_request(op, body))
        except trio.Cancelled:  # the process is dead
            call.answered = time.monotonic()
            raise
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError) as error:
            await trio.aclose_forcefully(self._stream)
            try:
                await trio.sleep(self._grace)
            finally:
                call.answered = time.monotonic()
            raise Lost(f"{op}: {error!r}") from error
        call.answered = time.monotonic()
        call.status = status
        call.answer = msgspec.json.decode(content) if content else None
        if not call.acknowledged:
            raise Lost(f"{op} was answered {status} {call.answer}")
        return call

    async def _exchange(self, request: bytes) -> tuple[int, bytes]:
        await self._stream.send_all(request)
        self._parts, self._complete = [], False
        while not self._complete:
            received = await self._stream.receive_some()
            if not received:
                raise trio.BrokenResourceError("it ended in the middle of an answer")
            self._parser.feed_data(received)
        return self._parser.get_status_code(), b"".join(self._parts)


def _request(op: str, body: Any) -> bytes:
    method, path, content = "GET", "", b""
    if op in POSTS:
        method, path, content = "POST", POSTS[op], msgspec.json.encode(body)
    elif op == "pop":
        given = {name: value for name, value in body.items() if name not in {"queue", "partition"}}
        pinned = f"/partition/{body['partition']}" if "partition" in body else ""
        path = f"/api/v1/pop/queue/{body['queue']}{pinned}?{urlencode(given)}"
    elif op == "delete":
        method, path = "DELETE", f"/api/v1/resources/queues/{body['queue']}"
    elif op == "pending":
        path = f"/api/v1/timers/{body['queue']}?{urlencode({'after': body['after'], 'limit': 1000})}"
    elif op == "dlq":
        path = f"/api/v1/dlq?{urlencode(body)}"
    else:
        raise ValueError(op)
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


@asynccontextmanager
async def connected(port: int, history: History, worker: int, grace: float = 0.0) -> AsyncGenerator[Peer]:
    """A connection of its own. `grace`: how long after its end nothing of it can be under way any more. Raises Lost
    when nobody listens."""
    try:
        stream = await trio.open_tcp_stream("127.0.0.1", port)
    except OSError as error:
        raise Lost(f"nobody listens: {error}") from error
    try:
        yield Peer(stream, history, worker, grace)
    finally:
        await trio.aclose_forcefully(stream)

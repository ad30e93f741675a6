"""A broker in memory on virtual time behind its API, and a caller of it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest
import trio
import trio.testing

from queen_actors.api import Api, Reply, Request
from queen_actors.broker import Broker, running
from queen_actors.config import Settings
from queen_actors.storage.memory import MemoryStore


class Client:
    """Calls the API as a transport does, and checks what holds for every reply."""

    def __init__(self, api: Api, broker: Broker) -> None:
        self.api = api
        self.broker = broker

    async def call(
        self, method: str, target: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any]:
        """The status, and the body decoded (None for a 204)."""
        reply = await self.reply(method, target, body, headers)
        if reply.status == 204:
            assert reply.body == b""
            return 204, None
        assert reply.headers["content-type"] == "application/json"
        return reply.status, json.loads(reply.body)

    async def reply(
        self, method: str, target: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        path, _, query = target.partition("?")
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        return await self.api.handle(Request(method, path.encode(), query.encode(), headers or {}, data))

    async def get(self, target: str) -> tuple[int, Any]:
        return await self.call("GET", target)

    async def post(self, target: str, body: Any = None) -> tuple[int, Any]:
        return await self.call("POST", target, body)

    async def delete(self, target: str) -> tuple[int, Any]:
        return await self.call("DELETE", target)

    async def push(self, queue: str, *payloads: Any, partition: str = "Default") -> list[Any]:
        items = [{"queue": queue, "partition": partition, "payload": payload} for payload in payloads]
        status, answer = await self.post("/api/v1/push", {"items": items})
        assert status == 201
        return list(answer)


@pytest.fixture
def client_of() -> Callable[[Broker], Client]:
    """A caller of a broker that the test runs itself."""
    return lambda broker: Client(Api(broker, broker.settings), broker)


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    """Of a module that says `VIRTUAL_TIME = True`."""
    assert isinstance(trio.lowlevel.current_clock(), trio.testing.MockClock)
    settings = Settings(data=None)
    async with running(MemoryStore(), settings) as broker:
        yield Client(Api(broker, settings), broker)

"""Whole exchanges over both lanes of HTTP: what is stored, delivered, settled and refused is told alike."""

from __future__ import annotations

import json
import re
from datetime import datetime
from typing import Any

import pytest
import trio
import trio.testing
from exchange_scripts import BRIEF, LONG, Script
from serve_kit import Peer, Running, server

from queen_actors.values import SECOND

Told = tuple[str, int, dict[str, str], str]
"""What was asked; the status, the headers and the body of the answer."""

_RANDOM = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}|\b[0-9]{13,19}\b")
_TIME = re.compile(r"\b20[0-9]{2}-[01][0-9]-[0-3][0-9]T[0-9:.]+(?:Z|\+00:00)")
_APART = {"date", "content-length"}


@pytest.fixture(autouse=True)
def lane() -> None:
    """Each test here runs both."""


class Names:
    """Names what differs from run to run: an id, a version or an instant in figures after the place where it came up
    first, so that equal ones stay equal and different ones different; a time after the minutes since the beginning."""

    def __init__(self, began: float) -> None:
        self._began = began
        self._names: dict[str, str] = {}

    def put(self, told: Told) -> Told:
        asked, status, headers, body = told
        kept = {name: self._named(value) for name, value in headers.items() if name not in _APART}
        return self._named(asked), status, kept, self._named(body)

    def _named(self, text: str) -> str:
        text = _TIME.sub(lambda found: f"<{self._minutes(found[0])} min>", text)
        return _RANDOM.sub(lambda found: self._names.setdefault(found[0], f"<{len(self._names)}>"), text)

    def _minutes(self, time: str) -> int:
        return round((datetime.fromisoformat(time).timestamp() - self._began) / 60)


class Client:
    """On one connection."""

    def __init__(self, house: Running, peer: Peer, clients: list[Client]) -> None:
        self.told: list[Told] = []
        self._house = house
        self._peer = peer
        self._clients = clients
        clients.append(self)

    async def says(self, status: int, method: str, target: str, body: Any = None) -> Any:
        found, headers, data = await self._peer.request(method, target, body)
        self.told.append((f"{method} {target}", found, headers, data.decode()))
        assert found == status, (method, target, data)
        return json.loads(data) if data else None

    async def post(self, status: int, name: str, body: Any) -> Any:
        return await self.says(status, "POST", f"/api/v1/{name}", body)

    async def pop(self, status: int, target: str) -> list[Any]:
        separator = "" if not target or target.startswith("?") else "/"
        body = await self.says(status, "GET", f"/api/v1/pop{separator}{target}")
        return list(body["messages"]) if status == 200 else []

    async def beside(self) -> Client:
        return Client(self._house, await self._house.connect(), self._clients)


async def told(script: Script, **options: Any) -> list[Told]:
    """All that a server says to this script, client by client."""
    async with server(**options) as house:
        clients, names = list[Client](), Names(house.broker.clock.now() / SECOND)
        with trio.fail_after(7200):
            await script(Client(house, await house.connect(), clients))
        return [names.put(told) for client in clients for told in client.told]


async def alike(script: Script, **options: Any) -> None:
    fast, web = [await told(script, lane=lane, **options) for lane in ("fast", "web")]
    assert fast == web


@pytest.mark.parametrize("script", [*BRIEF, *LONG], ids=lambda script: script.__name__)
async def test_an_exchange_is_answered_alike(script: Script, autojump_clock: trio.testing.MockClock) -> None:
    """Status, headers and body of each answer, over streams in memory."""
    await alike(script, memory=True)


@pytest.mark.parametrize("script", BRIEF, ids=lambda script: script.__name__)
async def test_an_exchange_over_sockets_is_answered_alike(script: Script) -> None:
    """The same over TCP, where the fast lane writes answers itself and watches who waits in another way."""
    await alike(script)

"""Bearer tokens at the door of a real server: HTTP, and the three ways in which a WebSocket may present one."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import jwt
import pytest
import trio
from crash.stopwatch import Stopwatch
from serve_kit import server
from socket_peer import Peer
from trio_websocket import WebSocketConnection, open_websocket_url

SECRET = "a secret of at least thirty-two bytes"


def token(secret: str = SECRET, **claims: Any) -> str:
    return jwt.encode({"role": "read-write", "sub": "w1", **claims}, secret, algorithm="HS256")


@pytest.fixture
async def url() -> AsyncIterator[str]:
    async with server(jwt_secret=SECRET) as house:
        yield house.address


async def ask(connection: WebSocketConnection, op: str, **fields: Any) -> Any:
    """A request and its reply; events between the two are passed over."""
    await connection.send_message(json.dumps({"id": 1, "op": op, **fields}))
    while True:
        frame = json.loads(await connection.get_message())
        if frame.get("id") == 1:
            return frame


async def works(connection: WebSocketConnection) -> None:
    """Push and pop over it; the pushed message carries the token's subject."""
    assert (await ask(connection, "push", items=[{"queue": "q", "payload": 1, "producerSub": "x"}]))["ok"] is True
    popped = await ask(connection, "pop", queue="q", autoAck=True)
    assert [message["producerSub"] for message in popped["body"]["messages"]] == ["w1"]


async def test_http(url: str) -> None:
    """401 without a token, 403 for the wrong role, and health for everybody."""
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        assert (await client.get(f"{url}/health")).status_code == 200
        assert (await client.get(f"{url}/api/v1/pop/queue/q")).status_code == 401
        headers = {"authorization": f"Bearer {token(role='read-only')}"}
        assert (await client.get(f"{url}/api/v1/pop/queue/q", headers=headers)).status_code == 403
        headers = {"authorization": f"Bearer {token()}"}
        assert (await client.get(f"{url}/api/v1/pop/queue/q", headers=headers)).status_code == 204


async def test_a_socket_with_a_header(url: str) -> None:
    headers = [("Authorization", f"Bearer {token()}")]
    async with open_websocket_url(f"{url.replace('http', 'ws')}/api/v1/ws", extra_headers=headers) as connection:
        await works(connection)


async def test_a_socket_for_producing_only(url: str) -> None:
    """A role that may only push connects and pushes; a pop and a tail over the same socket are 403."""
    headers = [("Authorization", f"Bearer {token(role='produce-only')}")]
    async with open_websocket_url(f"{url.replace('http', 'ws')}/api/v1/ws", extra_headers=headers) as connection:
        assert (await ask(connection, "push", items=[{"queue": "q", "payload": 1}]))["ok"] is True
        assert (await ask(connection, "pop", queue="q"))["status"] == 403
        assert (await ask(connection, "tail", sub="t", queue="q"))["status"] == 403


async def test_a_socket_with_a_role_that_is_none(url: str) -> None:
    """A token that holds and grants nothing opens nothing."""
    upgrade = {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA==",
        "authorization": f"Bearer {token(role='guest')}",
    }
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        assert (await client.get(f"{url}/api/v1/ws", headers=upgrade)).status_code == 403


async def test_a_socket_with_a_subprotocol(url: str) -> None:
    """As browsers must; only `queen.v1` is echoed."""
    offered = ["queen.v1", f"bearer.{base64.urlsafe_b64encode(token().encode()).rstrip(b'=').decode()}"]
    async with open_websocket_url(f"{url.replace('http', 'ws')}/api/v1/ws", subprotocols=offered) as connection:
        assert connection.subprotocol == "queen.v1"
        await works(connection)


async def test_a_socket_with_a_first_frame(url: str) -> None:
    """Before it every request is refused, and the connection stays."""
    async with open_websocket_url(f"{url.replace('http', 'ws')}/api/v1/ws") as connection:
        refused = await ask(connection, "push", items=[{"queue": "q", "payload": 1}])
        assert (refused["ok"], refused["status"]) == (False, 401)
        assert (await ask(connection, "auth", token=token()))["ok"] is True
        await works(connection)


@pytest.mark.parametrize("bad", [token("another secret of thirty-two bytes"), token(exp=1), "nonsense"])
async def test_a_token_that_does_not_hold(url: str, bad: str) -> None:
    """401 before the upgrade; by a first frame, close 4401."""
    encoded = base64.urlsafe_b64encode(bad.encode()).rstrip(b"=").decode()
    upgrade = {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-version": "13",
        "sec-websocket-key": base64.b64encode(b"k" * 16).decode(),
    }
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        for more in (
            {"authorization": f"Bearer {bad}"},
            {"sec-websocket-protocol": f"queen.v1, bearer.{encoded}"},
        ):
            answer = await client.get(f"{url}/api/v1/ws", headers={**upgrade, **more})
            assert (answer.status_code, bool(answer.json()["error"])) == (401, True)
    stream = await trio.open_tcp_stream("127.0.0.1", int(url.rpartition(":")[2]))
    async with stream, trio.open_nursery() as nursery:
        peer = Peer(stream)
        nursery.start_soon(peer.run)
        await peer.upgrade()
        await peer.event("welcome")
        await peer.say({"id": 1, "op": "auth", "token": bad})
        watch = Stopwatch()
        with trio.fail_after(60):
            await peer.ended.wait()
        assert watch.seconds() < 5
        assert peer.closed is not None
        assert peer.closed[0] == 4401


async def test_a_role_that_does_not_reach(url: str) -> None:
    """Over the socket each request has its route's level."""
    headers = [("Authorization", f"Bearer {token(role='read-only')}")]
    async with open_websocket_url(f"{url.replace('http', 'ws')}/api/v1/ws", extra_headers=headers) as connection:
        refused = await ask(connection, "push", items=[{"queue": "q", "payload": 1}])
        assert (refused["ok"], refused["status"]) == (False, 403)
        assert (await ask(connection, "timer.list", queue="q"))["ok"] is True

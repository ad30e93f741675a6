"""The end of a server: ordered, bounded, and nothing lost (A62)."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest
import serve_kit
import trio
import trio.testing
from crash.stopwatch import Stopwatch
from serve_kit import MemoryListener, Peer, Running, server
from trio_websocket import ConnectionClosed, WebSocketConnection, open_websocket_url, wrap_client_stream

from queen_actors.broker import running
from queen_actors.config import Settings
from queen_actors.serve.listen import open_listeners, serve
from queen_actors.storage.memory import MemoryStore


def post(target: str, body: bytes) -> bytes:
    return f"POST {target} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


async def test_everything_ends_in_its_way() -> None:
    """A62: 20 WebSockets get 1001, 20 long polls 204, idle connections their end, a transaction under way its answer;
    nobody can connect any more, no lease is left, and the server is done well within its time."""
    closes: list[int | None] = []
    polls: list[int] = []

    async def websocket(house: Running, *, task_status: trio.TaskStatus[None]) -> None:
        stream = (await house.connect()).stream
        async with trio.open_nursery() as reading:
            socket = await wrap_client_stream(reading, stream, "x", "/api/v1/ws", subprotocols=["queen.v1"])
            await socket.get_message()
            task_status.started()
            with pytest.raises(ConnectionClosed) as closed:
                await socket.get_message()
            closes.append(None if closed.value.reason is None else closed.value.reason.code)

    async def poll(peer: Peer) -> None:
        polls.append((await peer.request("GET", "/api/v1/pop/queue/q?wait=true"))[0])

    async with server(shutdown_seconds=5) as house, trio.open_nursery() as nursery:
        idle = [await house.connect() for _ in range(3)]
        for peer in idle[:2]:
            assert (await peer.request("GET", "/health"))[0] == 200
        for _ in range(20):
            await nursery.start(websocket, house)
            nursery.start_soon(poll, await house.connect())
        working = await house.connect()
        await trio.testing.wait_all_tasks_blocked(0.05)
        house.faults.latency = 0.3
        body = json.dumps({"operations": [{"type": "push", "queue": "done", "payload": 1}]}).encode()
        await working.send(
            b"POST /api/v1/transaction HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        )
        await trio.testing.wait_all_tasks_blocked(0.05)
        watch = Stopwatch()
        house.shutdown.set()
        await trio.testing.wait_all_tasks_blocked(0.01)
        with pytest.raises(OSError, match="all attempts to connect"):
            await house.connect()
        for peer in idle:
            assert await peer.end() == b""
        status, _, answer = await working.response()
        assert (status, json.loads(answer)["success"]) == (200, True)
        await house.stopped.wait()
        assert watch.seconds() < 2
        assert house.broker.statistics().leases == 0
    assert polls == [204] * 20
    assert closes == [1001] * 20


async def test_what_does_not_end_is_cancelled_after_the_grace_period(autojump_clock: trio.testing.MockClock) -> None:
    """A request whose commit never comes is cut off, and `serve` returns."""
    async with server(memory=True, shutdown_seconds=7) as house:
        peer = await house.connect()
        house.faults.latency = 1000
        body = b'{"items":[{"queue":"q","payload":1}]}'
        await peer.send(post("/api/v1/push", body))
        await trio.testing.wait_all_tasks_blocked()
        started = trio.current_time()
        house.shutdown.set()
        await house.stopped.wait()
        assert trio.current_time() - started == pytest.approx(7, abs=0.1)
        assert await peer.end() == b""


async def test_a_websocket_that_reads_nothing_leaves_time_for_the_rest(autojump_clock: trio.testing.MockClock) -> None:
    """It is given up well before the end of the grace period: what is pending has to be written in what is left."""
    listener, shutdown = MemoryListener(), trio.Event()
    settings = Settings(data=None, lane=serve_kit.LANE, shutdown_seconds=10)
    async with running(MemoryStore(), settings) as broker, trio.open_nursery() as nursery:
        nursery.start_soon(partial(serve, broker, settings, listeners=[listener], shutdown=shutdown))
        await trio.testing.wait_all_tasks_blocked()
        peer = listener.connect(lockstep=True)  # a write waits for the reader
        await peer.send(REQUEST)
        await trio.testing.wait_all_tasks_blocked()
        began = trio.current_time()
        shutdown.set()
        while nursery.child_tasks:
            await trio.testing.wait_all_tasks_blocked()
            if nursery.child_tasks:
                await trio.sleep(0.1)
    assert 5 < trio.current_time() - began < 8


async def test_cancelling_serve_ends_everything_at_once(autojump_clock: trio.testing.MockClock) -> None:
    """Also a connection whose peer does not read, which hypercorn shields from a cancellation."""
    settings = Settings(data=None, lane=serve_kit.LANE)
    listener = MemoryListener()
    async with running(MemoryStore(), settings) as broker, trio.open_nursery() as nursery:
        await nursery.start(partial(serve, broker, settings, listeners=[listener]))
        peer = listener.connect(lockstep=True)
        await peer.send(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        await trio.testing.wait_all_tasks_blocked()
        started = trio.current_time()
        nursery.cancel_scope.cancel()
    assert trio.current_time() - started < 1
    with pytest.raises((trio.BrokenResourceError, trio.ClosedResourceError)):
        await peer.send(b"x")


async def test_a_port_that_is_taken_is_an_os_error() -> None:
    """Raised before anything is served, for the command line to explain."""
    (listener,) = await open_listeners(Settings(port=0))
    async with listener:
        port = listener.socket.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            await open_listeners(Settings(port=port))


REQUEST = (
    b"GET /api/v1/ws HTTP/1.1\r\nhost: x\r\nconnection: keep-alive, Upgrade\r\nUpgrade: WebSocket\r\n"
    b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n"
)


async def echo(stream: trio.abc.Stream) -> None:
    """A WebSocket handler that tells what it was given."""
    seen = b""
    while not seen.endswith(b"frames"):
        seen += await stream.receive_some(7)
    await stream.send_all(b"seen:" + seen)
    await stream.aclose()


@pytest.mark.parametrize("pieces", [1, 10_000])
async def test_an_upgrade_goes_to_the_websocket_with_all_its_bytes(pieces: int) -> None:
    """Head and frames behind it, in one packet or byte by byte."""
    async with server(websocket_handler=echo) as house:
        peer = await house.connect()
        data = REQUEST + b"frames"
        size = max(1, len(data) // pieces)
        for start in range(0, len(data), size):
            await peer.send(data[start : start + size])
        assert await peer.end() == b"seen:" + data


async def test_a_kept_connection_may_be_upgraded() -> None:
    """A proxy may ask for the WebSocket on a connection on which it has sent requests before."""
    async with server(websocket_handler=echo) as house:
        peer = await house.connect()
        for _ in range(2):
            assert (await peer.request("GET", "/health"))[0] == 200
        await peer.send(REQUEST + b"frames")
        assert await peer.end() == b"seen:" + REQUEST + b"frames"


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /api/v1/ws HTTP/1.1\r\nhost: x\r\n\r\n",
        REQUEST.replace(b"WebSocket", b"h3"),
        REQUEST.replace(b"GET", b"PUT"),
        REQUEST.replace(b"/api/v1/ws", b"/api/v1/wsx"),
        REQUEST.replace(b"/api/v1/ws", b"/api/v1/%77s"),
    ],
)
async def test_what_is_no_upgrade_of_the_path_is_answered_over_http(request_bytes: bytes) -> None:
    """426 without the upgrade, 405 for another method, 404 for another path."""
    async with server(websocket_handler=echo) as house:
        peer = await house.connect()
        await peer.send(request_bytes)
        status, headers, _ = await peer.response()
        assert status in (404, 405, 426)
        assert headers["content-type"] == "application/json"


async def test_the_websocket_is_served_by_default() -> None:
    """Without a handler of its own the server has the protocol of websocket.md."""
    async with server() as house:
        url = house.address.replace("http", "ws") + "/api/v1/ws"
        async with open_websocket_url(url, subprotocols=["queen.v1"]) as socket:
            assert json.loads(await socket.get_message())["event"] == "welcome"
            answer = await ask(socket, {"id": 1, "op": "kv", "operations": []})
            assert (answer["ok"], answer["body"]) == (True, {"results": []})


async def ask(socket: WebSocketConnection, request: Any) -> Any:
    await socket.send_message(json.dumps(request))
    return json.loads(await socket.get_message())

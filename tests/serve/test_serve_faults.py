"""Hostile and unlucky connections: each ends alone, in its bound, and the others do not notice."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Callable

import h2.config
import h2.connection
import pytest
import trio
import trio.testing
from crash.stopwatch import Stopwatch
from serve_kit import Peer, Running, server

from queen_actors import limits

KEY = "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n"
UPGRADE = f"connection: upgrade\r\nupgrade: websocket\r\n{KEY}\r\n"
FRAME = b"\x81\x82\x00\x00\x00\x00hi"


def upgrade_with_a_frame_in_the_same_packet() -> bytes:
    return f"GET /elsewhere HTTP/1.1\r\nhost: x\r\n{UPGRADE}".encode() + FRAME


def h2_request(*headers: tuple[str | bytes, str | bytes]) -> bytes:
    """An HTTP/2 connection with one request whose headers nobody has checked."""
    config = h2.config.H2Configuration(
        client_side=True, validate_outbound_headers=False, normalize_outbound_headers=False, header_encoding=None
    )
    connection = h2.connection.H2Connection(config)
    connection.initiate_connection()
    connection.send_headers(1, list(headers), end_stream=True)
    return connection.data_to_send()


HOSTILE: dict[str, Callable[[], bytes]] = {
    "upgrade with a frame behind it": upgrade_with_a_frame_in_the_same_packet,
    "h2 CONNECT without a path": lambda: h2_request((":method", "CONNECT"), (":authority", "x")),
    "h2 path that is not ASCII": lambda: h2_request(
        (":method", "GET"), (":scheme", "http"), (":authority", "x"), (b":path", "/é".encode())
    ),
    "h2 method that is not ASCII": lambda: h2_request(
        (b":method", "GÉT".encode()), (":scheme", "http"), (":authority", "x"), (":path", "/")
    ),
    "h2c upgrade with settings that are none": lambda: (
        b"GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: a\r\n\r\n"
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_input_ends_its_own_connection_only(name: str) -> None:
    """Fault (a): an exception inside hypercorn; a client that was connected before goes on, and a new one is served."""
    async with server() as house:
        before = await house.connect()
        assert (await before.request("GET", "/health"))[0] == 200
        for _ in range(3):
            peer = await house.connect()
            await peer.send(HOSTILE[name]())
            watch = Stopwatch()
            with trio.fail_after(60):
                await peer.end()
            assert watch.seconds() < 5
            await peer.stream.aclose()
        assert not house.stopped.is_set()
        assert (await before.request("GET", "/health"))[0] == 200
        assert (await (await house.connect()).request("GET", "/health"))[0] == 200


async def test_frames_behind_a_refused_upgrade_end_their_own_connection_only() -> None:
    """Fault (a) too: the upgrade is answered by an HTTP error while frames arrive."""
    async with server() as house:
        before = await house.connect()
        assert (await before.request("GET", "/health"))[0] == 200
        peer = await house.connect()
        status, _, body = await peer.request("GET", "/elsewhere", headers=UPGRADE[:-2])
        assert (status, json.loads(body)["code"]) == (404, "no_such_route")
        for _ in range(50):
            try:
                await peer.send(FRAME)
            except trio.BrokenResourceError:
                break
            await trio.testing.wait_all_tasks_blocked()
        assert (await before.request("GET", "/health"))[0] == 200
        assert (await (await house.connect()).request("GET", "/health"))[0] == 200


async def test_what_hypercorn_raises_is_logged_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """An operator sees that a connection failed, and why, at warning; the traceback is for debugging."""
    caplog.set_level(logging.WARNING, "queen_actors")
    async with server() as house:
        peer = await house.connect()
        await peer.send(HOSTILE["h2 path that is not ASCII"]())
        await peer.end()
    (record,) = [record for record in caplog.records if record.name == "queen_actors.serve.listen"]
    assert "UnicodeDecodeError" in record.getMessage()
    assert record.exc_info is None


async def stalled(house: Running) -> Peer:
    """A peer that asks for much and does not read it."""
    other = await house.connect()
    big = {"items": [{"queue": "q", "payload": "x" * 1_000_000} for _ in range(7)]}
    assert (await other.request("POST", "/api/v1/push", big))[0] == 201
    sock = trio.socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    await sock.connect(("127.0.0.1", house.port))
    peer = house.adopt(trio.SocketStream(sock))
    await peer.send(b"GET /api/v1/pop/queue/q HTTP/1.1\r\nhost: x\r\n\r\n")
    await trio.testing.wait_all_tasks_blocked(0.05)
    return peer


async def test_a_peer_that_does_not_read_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fault (b): a write without progress ends the connection after its bound, while others are served."""
    monkeypatch.setattr(limits, "HTTP_WRITE_SECONDS", 0.3)
    async with server() as house:
        other = await house.connect()
        peer = await stalled(house)
        assert (await other.request("GET", "/health"))[0] == 200
        watch = Stopwatch()
        with trio.fail_after(60):
            while house.broker.statistics().leases == 0:
                await trio.testing.wait_all_tasks_blocked(0.05)
            await trio.sleep(0.4)  # the bound is on real time: it is the kernel that does not take the bytes
            received = await peer.end()
        assert watch.seconds() < 5
        assert len(received) < 7_000_000
        assert (await other.request("GET", "/health"))[0] == 200


async def test_a_peer_that_does_not_read_does_not_hold_a_shutdown() -> None:
    """Fault (b): after the grace period its stream is closed under the shielded write."""
    async with server(shutdown_seconds=0.3) as house:
        peer = await stalled(house)
        started, watch = trio.current_time(), Stopwatch()
        house.shutdown.set()
        await house.stopped.wait()
        assert trio.current_time() - started > 0.25
        assert watch.seconds() < 1.3
        await peer.stream.aclose()


async def test_a_slow_reader_that_makes_progress_is_served(autojump_clock: trio.testing.MockClock) -> None:
    """The bound is on progress, not on the whole answer: one chunk every 20 s arrives whole, in minutes."""
    async with server(memory=True) as house:
        assert house.listener is not None
        other = await house.connect()
        text = "x" * (10 * limits.HTTP_CHUNK_BYTES)
        await other.request("POST", "/api/v1/push", {"items": [{"queue": "q", "payload": text}]})
        peer = house.listener.connect(lockstep=True)
        await peer.send(b"GET /api/v1/pop/queue/q HTTP/1.1\r\nhost: x\r\n\r\n")
        received, started = b"", trio.current_time()
        while len(received) < len(text):
            await trio.sleep(20)
            received += await peer.stream.receive_some(limits.HTTP_CHUNK_BYTES)
        assert trio.current_time() - started >= 200
        assert text.encode() in received + await peer.stream.receive_some(limits.HTTP_CHUNK_BYTES)


async def test_an_idle_connection_is_closed_after_its_time(autojump_clock: trio.testing.MockClock) -> None:
    """Fault (c): also after requests, and a request starts the time anew; a parked pop is no idleness."""
    async with server(memory=True) as house:
        peer = await house.connect()
        for _ in range(3):
            assert (await peer.request("GET", "/health"))[0] == 200
            await trio.sleep(limits.HTTP_KEEP_ALIVE_SECONDS - 5)
        started = trio.current_time()
        assert (await peer.request("GET", "/api/v1/pop/queue/q?wait=true&timeout=60000"))[0] == 204
        assert trio.current_time() - started == pytest.approx(60, abs=1)
        await trio.sleep(limits.HTTP_KEEP_ALIVE_SECONDS - 5)
        assert (await peer.request("GET", "/health"))[0] == 200
        started = trio.current_time()
        with trio.fail_after(2 * limits.HTTP_KEEP_ALIVE_SECONDS):
            assert await peer.end() == b""
        assert trio.current_time() - started == pytest.approx(limits.HTTP_KEEP_ALIVE_SECONDS, abs=1)


async def test_a_connection_ends_with_its_peer(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """The server lets go of a closed connection at once, not when its idle time is over: its place is free again."""
    monkeypatch.setattr(limits, "HTTP_CONNECTIONS", 1)
    async with server(memory=True) as house:
        for _ in range(3):
            peer = await house.connect()
            assert (await peer.request("GET", "/health"))[0] == 200
            await trio.sleep(1)
            await peer.stream.aclose()
            await trio.sleep(1)


async def test_a_head_must_come_in_time(autojump_clock: trio.testing.MockClock) -> None:
    """A connection that says nothing, or drips, is answered 408 after ten seconds; later heads have the idle time."""
    async with server(memory=True) as house:
        silent, dripping, later = await house.connect(), await house.connect(), await house.connect()
        assert (await later.request("GET", "/health"))[0] == 200

        async def drip(peer: Peer) -> None:
            try:
                for byte in b"GET /health HTTP/1.1\r\nx: " + b"x" * 1000:
                    await peer.send(bytes([byte]))
                    await trio.sleep(1)
            except trio.BrokenResourceError:
                pass

        async with trio.open_nursery() as nursery:
            started = trio.current_time()
            for peer in (dripping, later):
                nursery.start_soon(drip, peer)
            for peer in (silent, dripping):
                status, _, body = await peer.response()
                assert (status, json.loads(body)["code"]) == (408, "request_timeout")
            assert trio.current_time() - started == pytest.approx(limits.HTTP_HEAD_SECONDS, abs=0.1)
            assert await later.end() == b""
            assert trio.current_time() - started == pytest.approx(limits.HTTP_KEEP_ALIVE_SECONDS, abs=1)


async def test_a_body_must_come_in_time(autojump_clock: trio.testing.MockClock) -> None:
    """408 after a minute."""
    async with server(memory=True) as house:
        peer = await house.connect()
        started = trio.current_time()
        await peer.send(b"POST /api/v1/push HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n{")
        status, _, body = await peer.response()
        assert (status, json.loads(body)["code"]) == (408, "timeout")
        assert trio.current_time() - started == pytest.approx(limits.HTTP_BODY_SECONDS, abs=1)


async def test_a_head_is_bounded() -> None:
    """431 past 64 KiB; just below it a request is served."""
    async with server() as house:
        peer = await house.connect()
        headers = f"x: {'y' * (limits.HTTP_HEAD_BYTES - 100)}\r\n"
        assert (await peer.request("GET", "/health", headers=headers))[0] == 200
        peer = await house.connect()
        await peer.send(b"GET /health HTTP/1.1\r\nx: " + b"y" * (limits.HTTP_HEAD_BYTES + 1))
        status, _, body = await peer.response()
        assert (status, json.loads(body)["code"]) == (431, "request_header_fields_too_large")


async def test_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """One too many is answered 503 and closed; when one of the others ends there is room again."""
    monkeypatch.setattr(limits, "HTTP_CONNECTIONS", 2)
    async with server() as house:
        first, second = await house.connect(), await house.connect()
        for peer in (first, second):
            assert (await peer.request("GET", "/health"))[0] == 200
        third = await house.connect()
        status, headers, body = await third.request("GET", "/health")
        assert (status, headers["retry-after"], headers["connection"]) == (503, "1", "close")
        assert json.loads(body)["code"] == "service_unavailable"
        assert (await first.request("GET", "/health"))[0] == 200
        await second.stream.aclose()
        await trio.testing.wait_all_tasks_blocked(0.02)
        assert (await (await house.connect()).request("GET", "/health"))[0] == 200

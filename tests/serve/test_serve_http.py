"""HTTP over real sockets: framing, paths, bodies, and peers that go away."""

from __future__ import annotations

import json
import logging
import socket
import struct

import httpx
import pytest
import trio
import trio.testing
from crash.stopwatch import Stopwatch
from serve_kit import Peer, Running, server

from queen_actors import limits
from queen_actors.config import Settings
from queen_actors.serve.listen import open_listeners


async def test_a_connection_is_kept_alive() -> None:
    """Many requests over one connection; JSON has its type and length, a 204 neither, nor a body."""
    async with server() as house:
        peer = await house.connect()
        status, headers, body = await peer.request("GET", "/health")
        assert (status, headers["content-type"], int(headers["content-length"])) == (200, "application/json", len(body))
        assert await peer.json("POST", "/api/v1/push", {"items": []}) == (201, [])
        status, headers, body = await peer.request("GET", "/api/v1/pop/queue/q")
        assert (status, body, headers.keys() & {"content-type", "content-length", "transfer-encoding"}) == (
            204,
            b"",
            set(),
        )
        assert (await peer.request("GET", "/health"))[0] == 200


async def test_head_has_no_body() -> None:
    """HEAD /health tells the length and sends nothing."""
    async with server() as house:
        peer = await house.connect()
        status, headers, body = await peer.request("HEAD", "/health")
        assert (status, body, int(headers["content-length"]) > 0) == (200, b"", True)
        assert (await peer.request("GET", "/health"))[0] == 200


@pytest.mark.parametrize(
    ("target", "key"),
    [
        ("a%2Fb", "a/b"),
        ("a/b", "a/b"),
        ("/lead", "/lead"),
        ("a//b", "a//b"),
        ("tail/", "tail/"),
        ("%2541", "%41"),
        ("a+b%20c%3F", "a+b c?"),
        ("..", ".."),
        ("%D0%BF", "п"),
    ],
)
async def test_paths_arrive_as_they_were_sent(target: str, key: str) -> None:
    """1.6: no slash is merged, nothing is decoded twice, and nothing is ever redirected."""
    async with server() as house:
        peer = await house.connect()
        assert await peer.json("GET", f"/api/v1/kv/ns/{target}") == (
            200, {"index": 0, "op": "get", "found": False, "key": key},
        )  # fmt: skip
        assert (await peer.json("GET", f"http://proxy.example/api/v1/kv/ns/{target}"))[1]["key"] == key


@pytest.mark.parametrize("target", ["//", "/api/v1/push/", "/api//v1/push", "/?x", "/api/v1", "*", "/%00"])
async def test_no_path_is_redirected(target: str) -> None:
    """An unknown path is a 404, as JSON, whatever it resembles."""
    async with server() as house:
        peer = await house.connect()
        status, answer = await peer.json("POST" if target != "*" else "OPTIONS", target)
        assert (status, answer["code"]) == (404, "no_such_route")


async def test_a_body_may_come_in_pieces_and_in_chunks() -> None:
    """Content-Length byte by byte, and chunked transfer coding; `Expect: 100-continue` is answered."""
    push = b'{"items":[{"queue":"q","payload":1}]}'
    async with server() as house:
        peer = await house.connect()
        head = f"POST /api/v1/push HTTP/1.1\r\nhost: x\r\ncontent-length: {len(push)}\r\n\r\n".encode()
        for byte in head + push:
            await peer.send(bytes([byte]))
        assert (await peer.response())[0] == 201
        await peer.send(b"POST /api/v1/push HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        for byte in push:
            await peer.send(b"1\r\n" + bytes([byte]) + b"\r\n")
        await peer.send(b"0\r\n\r\n")
        assert (await peer.response())[0] == 201
        await peer.send(head[:-2] + b"expect: 100-continue\r\n\r\n")
        assert (await peer.stream.receive_some(1000)).startswith(b"HTTP/1.1 100")
        await peer.send(push)
        assert (await peer.response())[0] == 201


async def test_a_body_over_64_mib_is_refused() -> None:
    """413 as JSON at its announcement, before any of it is sent; other connections go on."""
    async with server() as house:
        peer, other = await house.connect(), await house.connect()
        await peer.send(b"POST /api/v1/push HTTP/1.1\r\nhost: x\r\ncontent-length: 67108865\r\n\r\n")
        status, _, body = await peer.response()
        assert (status, json.loads(body)["code"]) == (413, "payload_too_large")
        assert (await other.request("GET", "/health"))[0] == 200


async def test_a_body_of_unknown_length_is_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """413 once what has arrived is too much; the peer that goes on sending still gets the answer."""
    monkeypatch.setattr(limits, "BODY_BYTES", 100_000)
    async with server() as house:
        peer = await house.connect()
        await peer.send(b"POST /api/v1/push HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        watch = Stopwatch()
        with trio.fail_after(60):
            await peer.send((b"100\r\n" + b"x" * 0x100 + b"\r\n") * 4000)
            status, _, body = await peer.response()
            assert (status, json.loads(body)["code"]) == (413, "payload_too_large")
            await peer.send(b"0\r\n\r\n")
            assert await peer.end() == b""
        assert watch.seconds() < 5


async def test_all_bodies_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """429 for the request that passes the bound; what was received for it is forgotten afterwards."""
    monkeypatch.setattr(limits, "HTTP_BODIES_BYTES", 50_000)
    async with server() as house:
        waiting, peer = await house.connect(), await house.connect()
        await waiting.send(b"POST /api/v1/push HTTP/1.1\r\nhost: x\r\ncontent-length: 40001\r\n\r\n" + b" " * 40_000)
        await trio.testing.wait_all_tasks_blocked(0.01)
        status, headers, body = await peer.request("POST", "/api/v1/push", b" " * 20_000)
        assert (status, headers["retry-after"], json.loads(body)["code"]) == (429, "1", "overloaded")
        await waiting.send(b" ")
        assert (await waiting.response())[0] == 400
        again = await house.connect()
        assert (await again.request("POST", "/api/v1/push", b" " * 20_000))[0] == 400


async def test_malformed_requests_end_their_own_connection() -> None:
    """A 400 or a closed stream for what is no HTTP; the server goes on."""
    async with server() as house:
        for junk in (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"GET\r\n\r\n",
                     "GET /é HTTP/1.1\r\nhost: é\r\n\r\n".encode()):  # fmt: skip
            peer = await house.connect()
            await peer.send(junk)
            watch = Stopwatch()
            with trio.fail_after(60):
                assert (await peer.end()).startswith(b"HTTP/1.1 400"), junk
            assert watch.seconds() < 5
        assert (await (await house.connect()).request("GET", "/health"))[0] == 200


def reset(stream: trio.abc.Stream) -> None:
    """Close a socket so that the peer gets a RST."""
    assert isinstance(stream, trio.SocketStream)
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.socket.close()


async def parked(house: Running, target: str) -> Peer:
    peer = await house.connect()
    await peer.send(f"GET {target} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
    await trio.testing.wait_all_tasks_blocked(0.02)
    return peer


@pytest.mark.parametrize("how", ["close", "reset", "half-close"])
async def test_nothing_is_leased_to_a_peer_that_is_gone(how: str) -> None:
    """7.4: a pop whose connection ended while it was parked takes nothing; the next consumer has the message at once,
    as its first delivery."""
    async with server() as house:
        gone = await parked(house, "/api/v1/pop/queue/q?wait=true&timeout=30000")
        if how == "close":
            await gone.stream.aclose()
        elif how == "reset":
            reset(gone.stream)
        else:
            assert isinstance(gone.stream, trio.SocketStream)
            await gone.stream.send_eof()
        await trio.testing.wait_all_tasks_blocked(0.02)
        other = await house.connect()
        assert (await other.json("POST", "/api/v1/push", {"items": [{"queue": "q", "payload": 1}]}))[0] == 201
        status, popped = await other.json("GET", "/api/v1/pop/queue/q")
        assert (status, popped["messages"][0]["deliveryAttempt"]) == (200, 1)


async def test_a_long_poll_over_a_socket_wakes_on_a_push() -> None:
    """The parked pop answers on its connection, which then serves on."""
    async with server() as house:
        peer = await parked(house, "/api/v1/pop/queue/q?wait=true")
        other = await house.connect()
        await other.json("POST", "/api/v1/push", {"items": [{"queue": "q", "payload": "now"}]})
        status, _, body = await peer.response()
        assert (status, json.loads(body)["messages"][0]["data"]) == (200, "now")
        assert (await peer.request("GET", "/health"))[0] == 200


async def test_http_2_with_prior_knowledge() -> None:
    """Requests over cleartext HTTP/2, many at once on one connection."""
    async with (
        server() as house,
        httpx.AsyncClient(base_url=house.address, http1=False, http2=True, timeout=60) as client,
    ):
        answers: list[int] = []

        async def push(number: int) -> None:
            response = await client.post("/api/v1/push", json={"items": [{"queue": "q", "payload": number}]})
            assert response.http_version == "HTTP/2"
            answers.append(response.status_code)

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(push, number)
        assert answers == [201] * 20
        popped = await client.get("/api/v1/pop/queue/q?batch=100")
        assert sorted(message["data"] for message in popped.json()["messages"]) == list(range(20))
        assert (await client.get("/api/v1/kv/ns/a%2Fb//c")).json()["key"] == "a/b//c"
        assert (await client.get("/api/v1/pop/queue/q")).status_code == 204


async def test_the_access_log_has_paths_but_no_queries(caplog: pytest.LogCaptureFixture) -> None:
    """Off by default; on, one line per request without what stands behind the question mark, or any header."""
    caplog.set_level(logging.INFO, "queen_actors.access")
    for on in (False, True):
        async with server(access_log=on) as house:
            peer = await house.connect()
            await peer.request(
                "GET", "/api/v1/pop/queue/q?consumerGroup=s3cret", headers="authorization: Bearer t0ken\r\n"
            )
    (record,) = [record for record in caplog.records if record.name == "queen_actors.access"]
    assert record.__dict__["path"] == "/api/v1/pop/queue/q"
    assert record.__dict__["status"] == 204
    assert "s3cret" not in caplog.text
    assert "t0ken" not in caplog.text


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="an option of Linux")
async def test_accepted_sockets_give_up_dead_peers() -> None:
    """The listening socket's options, which accepted ones inherit."""
    (listener,) = await open_listeners(Settings(port=0))
    async with listener, await trio.testing.open_stream_to_socket_listener(listener):
        stream = await listener.accept()
        timeout = stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        assert timeout == limits.HTTP_WRITE_SECONDS * 1000
        assert stream.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        await stream.aclose()

"""The HTTP transport against a small server that says what a test tells it to, byte by byte, on virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest
import trio
import trio.testing
from client_server import network

from queen_actors.client import ConnectionFailed, ProtocolError, Retry, connect
from queen_actors.client.address import address_of
from queen_actors.client.errors import AnswerTimeout
from queen_actors.client.http import HttpTransport
from queen_actors.client.transport import Answer

VIRTUAL_TIME = True

OK = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 8\r\n\r\n{"a": 1}'
Serve = Callable[[trio.SocketStream, int], Awaitable[None]]
"""What the server does with a connection; the number counts connections from 0."""


@asynccontextmanager
async def server(serve: Serve) -> AsyncIterator[str]:
    """A server on a free port, and its URL."""
    connections = 0

    async def handle(stream: trio.SocketStream) -> None:
        nonlocal connections
        connections += 1
        async with stream:
            with suppress(trio.BrokenResourceError):
                await serve(stream, connections - 1)

    async with trio.open_nursery() as nursery:
        yield await nursery.start(network().serve, handle)
        nursery.cancel_scope.cancel()


async def request(stream: trio.SocketStream) -> bytes:
    """One request, as far as its head and its named length go; empty at the end of the stream."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = await stream.receive_some()
        if not more:
            return b""
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b": ")
        if name.lower() == b"content-length":
            while len(body) < int(value):
                body += await stream.receive_some()
    return head + b"\r\n\r\n" + body


@asynccontextmanager
async def talking(
    serve: Serve, *, retry: Retry | None = None, token: str | None = None
) -> AsyncIterator[HttpTransport]:
    async with server(serve) as url:
        transport = HttpTransport(address_of(url, token, {"X-Extra": "1"}), retry)
        yield transport
        await transport.aclose()


async def get(transport: HttpTransport, seconds: float = 5) -> Answer:
    return await transport.call("GET", "/x", "", None, seconds)


async def test_the_bytes_of_a_request() -> None:
    """One write, a Host, a length, the token, and the headers of one's own; a GET has no body at all."""
    seen: list[bytes] = []

    async def serve(stream: trio.SocketStream, number: int) -> None:
        while asked := await request(stream):
            seen.append(asked)
            await stream.send_all(OK)

    async with talking(serve, token="tok123") as transport:
        await transport.call("POST", "/api/v1/kv", "a=b", b'{"x":1}', 5)
        await transport.call("GET", "/x%2F", "", None, 5)
        await transport.call("DELETE", "/x", "", None, 5)
        host = transport.address.authority.encode()
    common = (
        b"Host: " + host + b"\r\nAccept: application/json\r\nUser-Agent: queen-actors-python\r\n"
        b"Authorization: Bearer tok123\r\nX-Extra: 1\r\n"
    )
    body = b'Content-Type: application/json\r\nContent-Length: 7\r\n\r\n{"x":1}'
    assert seen == [
        b"POST /api/v1/kv?a=b HTTP/1.1\r\n" + common + body,
        b"GET /x%2F HTTP/1.1\r\n" + common + b"\r\n",
        b"DELETE /x HTTP/1.1\r\n" + common + b"Content-Length: 0\r\n\r\n",
    ]


async def test_connections_are_kept_and_used_again() -> None:
    """One after the other over one connection; at the same time over several, each used again later."""
    opened: list[int] = []

    async def serve(stream: trio.SocketStream, number: int) -> None:
        opened.append(number)
        while await request(stream):
            await trio.sleep(0.02)
            await stream.send_all(OK)

    async with talking(serve) as transport:
        for _ in range(3):
            assert (await get(transport)).body == b'{"a": 1}'
        assert len(opened) == 1
        for _ in range(2):
            async with trio.open_nursery() as nursery:
                for _ in range(4):
                    nursery.start_soon(get, transport)
        assert len(opened) == 4


async def test_no_more_connections_than_allowed() -> None:
    """Further calls wait their turn."""
    open_now = most = 0

    async def serve(stream: trio.SocketStream, number: int) -> None:
        nonlocal open_now, most
        open_now += 1
        most = max(most, open_now)
        while await request(stream):
            await trio.sleep(0.005)
            await stream.send_all(OK)
        open_now -= 1

    async with server(serve) as url:
        transport = HttpTransport(address_of(url), connections=3)
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(get, transport)
        await transport.aclose()
    assert most == 3


async def test_a_connection_that_the_server_closed_is_not_used_again() -> None:
    """Without any retry, the next call goes over a new connection and never notices."""

    async def serve(stream: trio.SocketStream, number: int) -> None:
        await request(stream)
        await stream.send_all(OK)

    async with talking(serve) as transport:
        for _ in range(3):
            assert (await get(transport)).status == 200
            await trio.sleep(0.02)


async def test_an_old_connection_is_not_trusted(mock_clock: trio.testing.MockClock) -> None:
    """After a rest of 15 s a new one is opened."""
    opened: list[int] = []

    async def serve(stream: trio.SocketStream, number: int) -> None:
        opened.append(number)
        while await request(stream):
            await stream.send_all(OK)

    async with talking(serve) as transport:
        await get(transport)
        mock_clock.jump(10)
        await get(transport)
        assert opened == [0]
        mock_clock.jump(16)
        await get(transport)
        assert opened == [0, 1]


@pytest.mark.parametrize(
    ("told", "status", "body"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n1\r\n \r\n0\r\n\r\n", 200, b"{} "),
        (b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK, 200, b'{"a": 1}'),
        (b"HTTP/1.1 429 Too Many\r\nRetry-After: 7\r\nContent-Length: 2\r\n\r\n{}", 429, b"{}"),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}", 200, b"{}"),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{}", 200, b"{}"),
        (OK + b"HTTP/1.1 500 Unasked\r\nContent-Length: 3\r\n\r\nbad", 200, b'{"a": 1}'),
    ],
)
@pytest.mark.parametrize("piece", [1, 10_000])
async def test_answers_of_every_kind(told: bytes, status: int, body: bytes, piece: int) -> None:
    """With a length, in chunks, to the end of the stream; after a hint; whole and byte by byte. What comes unasked
    behind an answer belongs to nobody."""

    async def serve(stream: trio.SocketStream, number: int) -> None:
        await request(stream)
        for start in range(0, len(told), piece):
            await stream.send_all(told[start : start + piece])

    async with talking(serve) as transport:
        for _ in range(2):
            answered = await get(transport)
            assert (answered.status, answered.body) == (status, body)
            if status == 429:
                assert answered.headers["retry-after"] == "7"
            await trio.sleep(0.02)  # the server closes the connection: the next call must have seen that


@pytest.mark.parametrize(
    "told", [b"", b"HTTP/1.1 200 OK\r\nContent-Le", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"]
)
async def test_an_answer_that_is_cut_off(told: bytes) -> None:
    """ConnectionFailed: the request may have been done."""

    async def serve(stream: trio.SocketStream, number: int) -> None:
        await request(stream)
        await stream.send_all(told)

    async with talking(serve) as transport:
        with pytest.raises(ConnectionFailed) as caught:
            await get(transport)
    assert caught.value.sent


async def test_what_is_no_http() -> None:
    """Something else listens there."""

    async def serve(stream: trio.SocketStream, number: int) -> None:
        await request(stream)
        await stream.send_all(b"SSH-2.0-OpenSSH\r\n")

    async with talking(serve) as transport:
        with pytest.raises(ProtocolError):
            await get(transport)


async def test_nobody_listens() -> None:
    """ConnectionFailed, and certainly not sent."""
    async with server(_nothing) as url:
        pass
    transport = HttpTransport(address_of(url))
    with pytest.raises(ConnectionFailed) as caught:
        await get(transport)
    assert not caught.value.sent
    assert caught.value.reason == "not_sent"


async def _nothing(stream: trio.SocketStream, number: int) -> None:
    pass


async def test_an_answer_that_does_not_come_in_time() -> None:
    """AnswerTimeout, and the connection is closed, so that the server knows."""
    closed = trio.Event()

    async def serve(stream: trio.SocketStream, number: int) -> None:
        await request(stream)
        assert not await stream.receive_some()
        closed.set()

    async with talking(serve) as transport:
        with pytest.raises(AnswerTimeout, match=r"within 0\.05 s"):
            await get(transport, 0.05)
        with trio.fail_after(2):
            await closed.wait()


async def test_a_cancelled_call_closes_its_connection() -> None:
    """So a broker hands nothing to a poll whose caller is gone; the next call is not harmed."""
    closed = trio.Event()

    async def serve(stream: trio.SocketStream, number: int) -> None:
        await request(stream)
        if number:
            await stream.send_all(OK)
            return
        assert not await stream.receive_some()
        closed.set()

    async with talking(serve) as transport:
        with trio.move_on_after(0.05):
            await get(transport, 60)
        with trio.fail_after(2):
            await closed.wait()
        assert (await get(transport)).status == 200


async def test_a_refusal_that_comes_before_the_request_was_read() -> None:
    """A 413 while the body is still on its way is the answer, not a broken connection."""

    async def serve(stream: trio.SocketStream, number: int) -> None:
        await stream.receive_some(10)
        await stream.send_all(b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
        await stream.send_eof()
        with trio.move_on_after(1):
            while await stream.receive_some():
                pass

    async with talking(serve) as transport:
        assert (await transport.call("POST", "/x", "", b" " * 4_000_000, 5)).status == 413


async def test_the_client_tries_again_what_can_be() -> None:
    """End to end: the first connection breaks, the second answers 503, the third is right."""
    answers = [b"", b"HTTP/1.1 503 No\r\nRetry-After: 1\r\nContent-Length: 2\r\n\r\n{}", OK]

    async def serve(stream: trio.SocketStream, number: int) -> None:
        await request(stream)
        await stream.send_all(answers.pop(0))

    async with server(serve) as url, connect(url, retry=Retry(pause=0.01)) as queen:
        assert await queen.caller.call("GET", "/x") == {"a": 1}
    assert answers == []


@pytest.mark.parametrize(
    ("url", "host", "port", "authority", "prefix"),
    [
        ("http://127.0.0.1:6632", "127.0.0.1", 6632, "127.0.0.1:6632", ""),
        ("localhost", "localhost", 6632, "localhost:6632", ""),
        ("http://queen.example/base/", "queen.example", 80, "queen.example:80", "/base"),
        ("https://queen.example", "queen.example", 443, "queen.example:443", ""),
        ("http://[::1]:9", "::1", 9, "[::1]:9", ""),
    ],
)
def test_addresses(url: str, host: str, port: int, authority: str, prefix: str) -> None:
    """A scheme has its usual port; without one it is the broker's own."""
    address = address_of(url)
    assert (address.host, address.port, address.authority, address.prefix) == (host, port, authority, prefix)
    assert (address.tls is not None) == url.startswith("https")

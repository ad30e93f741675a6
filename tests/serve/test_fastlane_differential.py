"""The two lanes of HTTP, side by side: what one answers, the other answers too, or refuses."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise

import h11
import pytest
import trio
import trio.testing
from request_corpus import DOUBTFUL, HEALTH, HOST, SERVED
from serve_kit import Peer, Running, server

Answer = tuple[int, dict[str, str], bytes]


@pytest.fixture(autouse=True)
def lane() -> None:
    """Each test here runs both."""


@asynccontextmanager
async def lanes() -> AsyncIterator[tuple[Running, Running]]:
    async with AsyncExitStack() as stack:
        fast, web = [await stack.enter_async_context(server(memory=True, lane=lane)) for lane in ("fast", "web")]
        yield fast, web


def answers(methods: list[str], data: bytes) -> list[Answer]:
    """The answers in these bytes, to requests of these methods."""
    found: list[Answer] = []
    for method in methods:
        if not data:
            break
        parser = h11.Connection(h11.CLIENT)
        parser.send(h11.Request(method=method, target="/", headers=[("host", "x")]))
        parser.send(h11.EndOfMessage())
        parser.receive_data(data)
        parser.receive_data(b"")
        status, headers, body = 0, dict[str, str](), b""
        while not isinstance(event := parser.next_event(), h11.EndOfMessage | h11.ConnectionClosed):
            assert event is not h11.NEED_DATA
            if isinstance(event, h11.Response):
                status = event.status_code
                headers = {name.decode(): value.decode() for name, value in event.headers}
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
        data = parser.trailing_data[0]
        found.append((status, headers, body))
    assert not data
    return found


async def ask(house: Running, data: bytes, *cuts: int) -> list[Answer]:
    """Everything that comes back for these bytes and a last request behind them, up to the end of the connection."""
    peer = await house.connect()
    last = HEALTH + HOST + b"Connection: close\r\n\r\n"
    places = [0, *sorted(cuts), len(data)]
    for start, end in pairwise(places):
        await send(peer, data[start:end])
        if cuts:
            await trio.testing.wait_all_tasks_blocked()
    if b"HTTP/1.0\r\n" not in data and b"Connection: close" not in data:  # behind which hypercorn wants nothing to come
        await send(peer, last)
    with trio.fail_after(100):
        received = await peer.end()
    await peer.stream.aclose()
    method = data.lstrip().split(b" ")[0].decode("latin-1")
    return answers([method if method == "HEAD" else "GET", "GET"], received)


async def send(peer: Peer, data: bytes) -> None:
    try:
        await peer.send(data)
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        return  # it has been refused by now


def telling(answer: Answer) -> tuple[int, dict[str, str], bytes]:
    """What of an answer must be the same: all but its time and its transaction's id."""
    status, headers, body = answer
    body = re.sub(rb'"transactionId":"[^"]+"', b"", body)
    return status, {name: value for name, value in headers.items() if name not in {"date", "connection"}}, body


@pytest.mark.parametrize("data", SERVED)
async def test_both_lanes_answer_alike(data: bytes, autojump_clock: trio.testing.MockClock) -> None:
    """Status, headers and body, and the request behind it too, unless the connection ended with the first."""
    async with lanes() as (fast, web):
        ours, theirs = await ask(fast, data), await ask(web, data)
        assert [telling(answer) for answer in ours] == [telling(answer) for answer in theirs]
        assert len(ours) >= 1
        closing = [answer[1].get("connection") == "close" for answer in ours]
        assert closing == [False] * (len(ours) - 1) + [True]


@pytest.mark.parametrize("data", DOUBTFUL)
async def test_what_is_doubtful_is_refused_and_nothing_behind_it_is_served(
    data: bytes, autojump_clock: trio.testing.MockClock
) -> None:
    """One answer, a 4xx as JSON, and the end; whatever the other lane makes of it."""
    async with lanes() as (fast, _):
        ((status, headers, body),) = await ask(fast, data)
        assert (status, headers["content-type"], headers["connection"]) in (
            (400, "application/json", "close"),
            (417, "application/json", "close"),
        )
        assert json.loads(body)["code"] in {"bad_request", "expectation_failed"}


async def test_where_the_bytes_are_cut_makes_no_difference(autojump_clock: trio.testing.MockClock) -> None:
    """Every request, cut at each of its bytes in turn, has the same answer on the fast lane."""
    async with server(memory=True, lane="fast") as house:
        for data in SERVED:
            expected = [telling(answer) for answer in await ask(house, data)]
            for cut in range(1, len(data)):
                assert [telling(answer) for answer in await ask(house, data, cut)] == expected, (data, cut)


async def test_pipelined_requests_have_the_same_answers(autojump_clock: trio.testing.MockClock) -> None:
    """All that keep their connection, one behind the other on one connection."""
    kept = [
        data for data in SERVED if not ({b"close", b"HTTP/1.0", b"67108865"} & set(data.replace(b"\r\n", b" ").split()))
    ]
    methods = [data.split(b" ")[0].decode() for data in kept]
    last = HEALTH + HOST + b"Connection: close\r\n\r\n"
    async with lanes() as (fast, web):
        seen: list[list[Answer]] = []
        for house in (fast, web):
            peer = await house.connect()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(peer.send, b"".join(kept) + last)
                with trio.fail_after(100):
                    received = await peer.end()
            received = received.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"").replace(b"HTTP/1.1 100 \r\n\r\n", b"")
            seen.append(answers([*methods, "GET"], received))
        assert len(seen[0]) == len(kept) + 1
        assert [telling(answer) for answer in seen[0]] == [telling(answer) for answer in seen[1]]

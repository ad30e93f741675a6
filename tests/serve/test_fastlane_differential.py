"""The two lanes of HTTP, side by side, on one corpus: what the web lane answers, the fast lane answers too, or refuses.

The corpus is `request_corpus`, whole and cut in two at each of its bytes (but for the inside of a long run of equal
ones), and requests of it with a byte or two changed: thousands of requests, each over both lanes.
"""

from __future__ import annotations

import json
import random
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
    """The answers in these bytes, to requests of these methods; to a GET where there are more."""
    found: list[Answer] = []
    asked = iter(methods)
    while data:
        parser = h11.Connection(h11.CLIENT)
        parser.send(h11.Request(method=next(asked, "GET"), target="/", headers=[("host", "x")]))
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
    return found


LAST = (b"HTTP/0.9\r\n", b"HTTP/1.0\r\n", b"Connection: close")
"""Of requests that end their connection, behind which hypercorn wants nothing to come."""


async def ask(house: Running, data: bytes, *cuts: int) -> list[Answer]:
    """Everything that comes back for these bytes and a last request behind them, up to the end of the connection."""
    peer = await house.connect()
    last = HEALTH + HOST + b"Connection: close\r\n\r\n"
    places = [0, *sorted(cuts), len(data)]
    for start, end in pairwise(places):
        await send(peer, data[start:end])
        if cuts:
            await trio.testing.wait_all_tasks_blocked()
    if not any(end in data for end in LAST):
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


def refuses(ours: list[Answer]) -> tuple[int, str]:
    """Status and code of the one answer that there is: a 4xx as JSON, and the end."""
    ((status, headers, body),) = ours
    assert (headers["content-type"], headers["connection"]) == ("application/json", "close")
    code = json.loads(body)["code"]
    assert (status, code) in {(400, "bad_request"), (417, "expectation_failed")}
    return status, code


def answered(theirs: list[Answer]) -> None:
    """The web lane has said something, and nothing behind an answer that was its last."""
    statuses = [status for status, _, _ in theirs]
    assert statuses
    assert set(statuses) <= {200, 400, 404, 405, 408, 501}
    assert all(headers.get("connection") != "close" for _, headers, _ in theirs[:-1])


@pytest.mark.parametrize("data", DOUBTFUL)
async def test_what_is_doubtful_is_refused_and_nothing_behind_it_is_served(
    data: bytes, autojump_clock: trio.testing.MockClock
) -> None:
    """By the fast lane, whether the web lane refuses it too or serves it; however it is cut, and so on both."""
    async with lanes() as (fast, web):
        ours, theirs = await ask(fast, data), await ask(web, data)
        expected = refuses(ours)
        answered(theirs)
        for cut in cuts(data):
            assert refuses(await ask(fast, data, cut)) == expected, cut
            assert telling_all(await ask(web, data, cut)) == telling_all(theirs), cut


@pytest.mark.parametrize("data", SERVED)
async def test_where_the_bytes_are_cut_makes_no_difference(data: bytes, autojump_clock: trio.testing.MockClock) -> None:
    """A request, cut at each of its bytes in turn, has the same answer on both lanes."""
    async with lanes() as (fast, web):
        expected = telling_all(await ask(fast, data))
        for cut in cuts(data):
            for house in (fast, web):
                assert telling_all(await ask(house, data, cut)) == expected, (cut, house is fast)


def cuts(data: bytes) -> list[int]:
    """Each place between two bytes; in a run of equal ones the first and the last twenty."""
    return [place for place in range(1, len(data)) if len(set(data[max(0, place - 20) : place + 20])) > 1]


def telling_all(found: list[Answer]) -> list[Answer]:
    return [telling(answer) for answer in found]


CHANGES = 40  # of each request
NOISE = [b"\r", b"\n", b"\r\n", b" ", b"\t", b":", b",", b";", b"0", b"1", b"a", b"Z", b"/", b"\x00", b"\x7f", b"\xff"]

CHANGED = [data for data in SERVED if not (data.startswith(b"HEAD") or any(end in data for end in LAST))]
"""None of HEAD: a refusal of one has a body if its method was not read."""


def changed(data: bytes, chance: random.Random) -> bytes:
    """A byte more, less, twice, in place of another, or two that have changed places."""
    place = chance.randrange(len(data))
    before, byte, after = data[:place], data[place : place + 1], data[place + 1 :]
    noise = chance.choice(NOISE)
    new = chance.choice([b"", noise, byte + noise, byte + byte, after[:1] + byte])
    return before + new + (after[1:] if new == after[:1] + byte else after)


@pytest.mark.parametrize("data", CHANGED)
async def test_what_is_changed_has_the_same_answer_or_is_refused(
    data: bytes, autojump_clock: trio.testing.MockClock
) -> None:
    """A request with a few bytes changed: the fast lane says what the web lane says, up to a 4xx with which it ends."""
    chance = random.Random(data)
    async with lanes() as (fast, web):
        for _ in range(CHANGES):
            odd = changed(data, chance)
            if chance.random() < 0.3:
                odd = changed(odd, chance)
            same_or_stricter(odd, await ask(fast, odd), await ask(web, odd))


def same_or_stricter(data: bytes, ours: list[Answer], theirs: list[Answer]) -> None:
    assert ours, data
    for place, answer in enumerate(ours):
        status, headers, _ = answer
        if place < len(theirs) and telling(answer) == telling(theirs[place]):
            continue
        assert 400 <= status < 500, (data, ours, theirs)
        assert headers["connection"] == "close", (data, ours, theirs)
        assert place == len(ours) - 1, (data, ours, theirs)
        return
    assert len(ours) == len(theirs) or ours[-1][1].get("connection") == "close", (data, ours, theirs)


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

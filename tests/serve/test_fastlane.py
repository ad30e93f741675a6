"""What only the fast lane does, and how: pipelining, peers that go while they wait, other protocols."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import trio
import trio.testing
from serve_kit import Peer, server

from queen_actors import limits

KEEP = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
POLL = b"GET /api/v1/pop/queue/q?wait=true&timeout=30000 HTTP/1.1\r\nhost: x\r\n\r\n"
PUSH = {"items": [{"queue": "q", "payload": 1}]}


@pytest.fixture(autouse=True)
def lane() -> str:
    """The default one is the fast one."""
    return "fast"


def push(number: int) -> bytes:
    body = json.dumps({"items": [{"queue": "q", "payload": number}]}).encode()
    return b"POST /api/v1/push HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


class Counted(trio.abc.HalfCloseableStream):
    """A stream that counts how often it is written to."""

    def __init__(self, stream: trio.abc.HalfCloseableStream) -> None:
        self._stream = stream
        self.writes = 0

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        self.writes += 1
        await self._stream.send_all(data)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return bytes(await self._stream.receive_some(max_bytes))

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()


async def test_pipelined_requests_are_answered_in_their_order_in_few_writes(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """300 requests in one packet: pushes take effect in order, and the answers leave joined."""
    async with server(memory=True) as house:
        assert house.listener is not None
        counted = list[Counted]()

        def count(stream: trio.abc.HalfCloseableStream) -> Counted:
            counted.append(Counted(stream))
            return counted[-1]

        peer = house.listener.connect(wrap=count)
        pop = b"GET /api/v1/pop/queue/q?batch=1000 HTTP/1.1\r\nhost: x\r\n\r\n"
        await peer.send(b"".join(push(number) for number in range(300)) + pop)
        for _ in range(300):
            assert (await peer.response())[0] == 201
        status, _, body = await peer.response()
        assert (status, [message["data"] for message in json.loads(body)["messages"]]) == (200, [*range(300)])
        assert counted[0].writes <= 5


async def test_answers_do_not_wait_for_a_long_poll_behind_them(autojump_clock: trio.testing.MockClock) -> None:
    """What is before a pop that waits is sent at once; what is behind it is kept until the pop is answered."""
    async with server(memory=True) as house:
        peer, other = await house.connect(), await house.connect()
        await peer.send(KEEP + POLL + KEEP)
        started = trio.current_time()
        assert (await peer.response())[0] == 200
        assert trio.current_time() - started < 1
        await trio.sleep(5)
        await other.json("POST", "/api/v1/push", PUSH)
        assert json.loads((await peer.response())[2])["messages"][0]["data"] == 1
        assert (await peer.response())[2].startswith(b'{"status"')


@pytest.mark.parametrize("behind", [b"", KEEP * 10])
async def test_a_peer_that_goes_during_a_long_poll_is_seen_at_once(
    behind: bytes, autojump_clock: trio.testing.MockClock
) -> None:
    """Also when it has sent more requests: nothing is leased to it, and the next consumer has the first delivery."""
    async with server(memory=True) as house:
        for _ in range(2):  # the second time on a connection that has popped before
            gone, other = await house.connect(), await house.connect()
            assert (await gone.request("GET", "/api/v1/pop/queue/q"))[0] == 204
            await gone.send(POLL + behind)
            await trio.testing.wait_all_tasks_blocked()
            await gone.stream.aclose()
            await trio.testing.wait_all_tasks_blocked()
            await other.json("POST", "/api/v1/push", PUSH)
            status, popped = await other.json("GET", "/api/v1/pop/queue/q?autoAck=true")
            assert (status, popped["messages"][0]["deliveryAttempt"]) == (200, 1)


async def test_what_comes_behind_a_long_poll_is_bounded(autojump_clock: trio.testing.MockClock) -> None:
    """Where nobody could see the peer go any more, the connection ends, and the pop with it."""
    async with server(memory=True) as house:
        peer, other = await house.connect(), await house.connect()
        await peer.send(POLL)
        await trio.testing.wait_all_tasks_blocked()
        await peer.send(KEEP * (limits.HTTP_PIPELINE_BYTES // len(KEEP) + 2))
        assert await peer.end() == b""
        await other.json("POST", "/api/v1/push", PUSH)
        assert (await other.request("GET", "/api/v1/pop/queue/q"))[0] == 200


async def test_a_connection_that_polls_sends_large_bodies_too(autojump_clock: trio.testing.MockClock) -> None:
    """Reading ahead bounds what waits, not what is read: 2 MB go through it."""
    async with server(memory=True) as house:
        peer = await house.connect()
        assert (await peer.request("GET", "/api/v1/pop/queue/q"))[0] == 204
        items = {"items": [{"queue": "q", "payload": "x" * 200_000} for _ in range(10)]}
        assert (await peer.request("POST", "/api/v1/push", items))[0] == 201
        _, _, body = await peer.request("GET", "/api/v1/pop/queue/q?batch=100&wait=true")
        assert len(json.loads(body)["messages"]) == 10


async def test_a_half_closed_peer_gets_its_answers(autojump_clock: trio.testing.MockClock) -> None:
    """All that it has asked for before the end of its stream, but for pops, which look for who is there."""
    async with server(memory=True) as house:
        peer = await house.connect()
        await peer.send(push(1) + KEEP)
        assert isinstance(peer.stream, trio.StapledStream)
        await peer.stream.send_eof()
        assert [(await peer.response())[0] for _ in range(2)] == [201, 200]
        assert await peer.end() == b""


async def test_half_a_request_is_nothing(autojump_clock: trio.testing.MockClock) -> None:
    """A stream that ends within a head or a body is closed without a word, and nothing has happened."""
    async with server(memory=True) as house:
        for cut in range(1, len(push(1)), 7):
            peer = await house.connect()
            await peer.send(push(1)[:cut])
            assert isinstance(peer.stream, trio.StapledStream)
            await peer.stream.send_eof()
            assert await peer.end() == b""
        assert (await (await house.connect()).request("GET", "/api/v1/pop/queue/q"))[0] == 204


async def test_a_body_is_asked_for_once_and_only_when_it_is_missing(autojump_clock: trio.testing.MockClock) -> None:
    """`100 Continue` goes out when the head has come alone; with the body behind it there is nothing to ask for."""
    whole = push(1).replace(b"\r\n\r\n", b"\r\nexpect: 100-continue\r\n\r\n")
    end = whole.index(b"\r\n\r\n") + 4
    async with server(memory=True) as house:
        peer = await house.connect()
        await peer.send(whole)
        assert (await peer.response())[0] == 201
        await peer.send(whole[:end])
        assert await peer.stream.receive_some() == b"HTTP/1.1 100 Continue\r\n\r\n"
        for byte in whole[end:]:
            await peer.send(bytes([byte]))
            await trio.testing.wait_all_tasks_blocked()
        assert (await peer.stream.receive_some()).startswith(b"HTTP/1.1 201 Created\r\n")


async def test_a_refusal_comes_behind_the_answers_before_it(autojump_clock: trio.testing.MockClock) -> None:
    """What was well-formed is served, then comes the 400, then the end."""
    async with server(memory=True) as house:
        peer = await house.connect()
        await peer.send(push(1) + b"GET / HTTP/1.1\r\nhost : x\r\n\r\n" + push(2))
        assert [(await peer.response())[0] for _ in range(2)] == [201, 400]
        assert await peer.end() == b""
        popped = (await (await house.connect()).json("GET", "/api/v1/pop/queue/q"))[1]
        assert [message["data"] for message in popped["messages"]] == [1]


@pytest.mark.parametrize("before", [b"", KEEP, push(1) + KEEP])
async def test_http_2_and_upgrades_are_handed_on(before: bytes, autojump_clock: trio.testing.MockClock) -> None:
    """With their bytes, also behind requests that the lane has answered: what hypercorn says of them comes back."""
    answers = before.count(b"HTTP/1.1\r\n")
    async with server(memory=True) as house:
        peer = await house.connect()
        await peer.send(before + b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00")
        for _ in range(answers):
            assert (await peer.response())[0] in {200, 201}
        settings = await peer.receive_some()
        assert settings[3:5] == b"\x04\x00"  # a SETTINGS frame
        peer = await house.connect()
        upgrade = b"GET /elsewhere HTTP/1.1\r\nhost: x\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"
        await peer.send(before + upgrade + KEEP)
        for _ in range(answers):
            assert (await peer.response())[0] in {200, 201}
        status, _, body = await peer.response()
        assert (status, json.loads(body)["code"]) == (404, "no_such_route")


async def test_an_upgrade_behind_a_long_poll_is_handed_on(autojump_clock: trio.testing.MockClock) -> None:
    """What was read ahead while the pop waited goes with the connection."""
    seen = list[bytes]()

    async def websocket(stream: trio.abc.Stream) -> None:
        while len(seen) == 0 or not seen[-1].endswith(b"frames"):
            seen.append(b"".join(seen[-1:]) + await stream.receive_some())
        await stream.send_all(b"done")
        await stream.aclose()

    upgrade = b"GET /api/v1/ws HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n"
    async with server(memory=True, websocket_handler=websocket) as house:
        peer = await house.connect()
        await peer.send(POLL + upgrade + b"fra")
        await trio.testing.wait_all_tasks_blocked()
        await (await house.connect()).json("POST", "/api/v1/push", PUSH)
        assert (await peer.response())[0] == 200
        await peer.send(b"mes")
        assert await peer.end() == b"done"
        assert seen[-1] == upgrade + b"frames"


@pytest.mark.parametrize(
    "data", [b"GET /health HTTP/1.0\r\n\r\n", KEEP.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")]
)
async def test_a_last_request_ends_the_connection(data: bytes, autojump_clock: trio.testing.MockClock) -> None:
    """With its answer, which says so; what is behind it is not served."""
    async with server(memory=True) as house:
        peer = await house.connect()
        await peer.send(data + push(1))
        status, headers, _ = await peer.response()
        assert (status, headers["connection"]) == (200, "close")
        assert await peer.end() == b""
        assert (await (await house.connect()).request("GET", "/api/v1/pop/queue/q"))[0] == 204


async def test_a_stop_lets_requests_finish_and_says_that_they_were_the_last(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A62: a body that is still coming may come; parked pops are let go; idle connections end at once."""
    async with server(memory=True) as house:
        sending, polling, idle = [await house.connect() for _ in range(3)]
        await sending.send(push(1)[:-5])
        await polling.send(POLL)
        assert (await idle.request("GET", "/health"))[0] == 200
        await trio.testing.wait_all_tasks_blocked()
        house.shutdown.set()
        status, headers, _ = await polling.response()
        assert (status, headers["connection"]) == (204, "close")
        assert await idle.end() == b""
        await sending.send(push(1)[-5:])
        status, headers, _ = await sending.response()
        assert (status, headers["connection"]) == (201, "close")
        await house.stopped.wait()


async def test_what_a_connection_held_of_a_body_is_given_back(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """However it ends: with an answer, a refusal, a peer that is gone or that is too slow."""
    monkeypatch.setattr(limits, "HTTP_BODIES_BYTES", 60_000)
    head = b"POST /api/v1/push HTTP/1.1\r\nhost: x\r\ncontent-length: 50001\r\n\r\n"
    async with server(memory=True) as house:

        async def whole(peer: Peer) -> None:
            await peer.send(head + b" " * 50_001)
            assert (await peer.response())[0] == 400

        async def gone(peer: Peer) -> None:
            await peer.send(head + b" " * 50_000)
            await trio.testing.wait_all_tasks_blocked()
            await peer.stream.aclose()

        async def slow(peer: Peer) -> None:
            await peer.send(head + b" " * 50_000)
            assert (await peer.response())[0] == 408

        async def malformed(peer: Peer) -> None:
            chunk = b"c350\r\n" + b" " * 50_000
            await peer.send(head.replace(b"content-length: 50001", b"transfer-encoding: chunked") + chunk + b"xxxx")
            assert (await peer.response())[0] == 400

        endings: list[Callable[[Peer], object]] = [whole, gone, slow, malformed]
        for ending in endings * 2:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ending, await house.connect())
            await trio.testing.wait_all_tasks_blocked()


async def test_a_call_that_takes_too_long_is_ended(autojump_clock: trio.testing.MockClock) -> None:
    """503 with when to come again after 30 s, or half a second later, and the end of the connection."""
    async with server(memory=True) as house:
        peer = await house.connect()
        house.faults.latency = 1000
        await peer.send(push(1) + KEEP)
        started = trio.current_time()
        status, headers, body = await peer.response()
        assert (status, headers["retry-after"], headers["connection"]) == (503, "1", "close")
        assert json.loads(body)["code"] == "timeout"
        assert trio.current_time() - started == pytest.approx(limits.CALL_DEADLINE_SECONDS, abs=0.6)
        assert await peer.end() == b""


async def test_a_body_that_finds_no_room_is_told_when_to_come_again(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """429 with Retry-After while it is still coming, and when it has come whole."""
    monkeypatch.setattr(limits, "HTTP_BODIES_BYTES", 100)
    async with server(memory=True) as house:
        for sent in (199, 200):
            peer = await house.connect()
            await peer.send(b"POST /api/v1/push HTTP/1.1\r\nhost: x\r\ncontent-length: 200\r\n\r\n" + b" " * sent)
            status, headers, body = await peer.response()
            assert (status, headers["retry-after"], json.loads(body)["code"]) == (429, "1", "overloaded")
            assert await peer.end() == b""

"""websocket.md, section 1: connecting."""

from __future__ import annotations

import base64
import time
from datetime import datetime

import pytest
import trio
import trio.testing
from socket_peer import House, Peer, Rejected, frame, house
from wsproto.events import Ping, Pong

from queen_actors import __version__, limits
from queen_actors.api import Access, Authorize, Caller, Request
from queen_actors.config import Settings
from queen_actors.errors import Forbidden, Unauthorized

VIRTUAL_TIME = True


async def test_queen_v1_is_echoed(hall: House) -> None:
    """A client that offers `queen.v1` gets it."""
    peer = await hall.connect(subprotocols=["queen.v1"])
    assert peer.subprotocol == "queen.v1"


async def test_no_subprotocol_is_accepted(hall: House) -> None:
    """A client that offers no subprotocol is accepted too, and none is echoed."""
    peer = await hall.connect(subprotocols=[])
    assert peer.subprotocol is None
    assert (await peer.event("welcome"))["protocol"] == "queen.v1"


@pytest.mark.parametrize("offered", [["mqtt"], ["mqtt", "queen.v2"], ["bearer.dG9r"]])
async def test_only_unknown_subprotocols_get_400(hall: House, offered: list[str]) -> None:
    """One that offers only unknown ones gets 400; a token alone is no protocol that could be echoed."""
    with pytest.raises(Rejected) as refused:
        await hall.connect(subprotocols=offered)
    assert refused.value.status == 400
    assert b"queen.v1" in refused.value.body


async def test_an_unknown_subprotocol_beside_ours(hall: House) -> None:
    """Of several offered, `queen.v1` is the one that is echoed."""
    peer = await hall.connect(subprotocols=["mqtt", "queen.v1"])
    assert peer.subprotocol == "queen.v1"


async def test_another_path_is_404(hall: House) -> None:
    """There is a WebSocket at one path only."""
    with pytest.raises(Rejected) as refused:
        await hall.connect(path="/api/v1/push")
    assert refused.value.status == 404
    assert b"no_such_route" in refused.value.body


async def test_the_first_frame_is_the_welcome(hall: House) -> None:
    """The server's first frame says what it is, and what the client must know."""
    peer = await hall.connect()
    welcome = await peer.expect(lambda first: True)
    now = welcome.pop("now")
    session = welcome.pop("session")
    assert welcome == {
        "event": "welcome",
        "protocol": "queen.v1",
        "version": __version__,
        "heartbeatSeconds": 20,
        "maxFrameBytes": 8 * 1024 * 1024,
    }
    assert now.endswith("Z")
    assert datetime.fromisoformat(now)
    assert session


async def test_each_session_has_its_own_id(hall: House) -> None:
    """Two connections are two sessions."""
    first, second = await hall.connect(), await hall.connect()
    assert (await first.event("welcome"))["session"] != (await second.event("welcome"))["session"]


# -- tokens ------------------------------------------------------------------------------------------------------------


async def authorize(request: Request, access: Access) -> Caller:
    """`good` may do everything, `banned` nothing."""
    token = request.headers.get("authorization", "").removeprefix("Bearer ")
    if token == "banned":
        raise Forbidden("Insufficient permissions")
    if token != "good":
        raise Unauthorized("Authentication required")
    return Caller(subject="alice")


def bearer(token: str) -> str:
    return "bearer." + base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")


async def pushes_as_alice(peer: Peer) -> bool:
    """Whether what the peer pushes is stamped with the token's subject."""
    await peer.ask("push", items=[{"queue": "q", "payload": 1}])
    popped = await peer.ask("pop", queue="q")
    return bool(popped["body"]["messages"][0]["producerSub"] == "alice")


async def test_token_in_a_header() -> None:
    """`Authorization: Bearer T` on the upgrade request speaks for every request of the connection."""
    async with house(authorize=authorize) as hall:
        peer = await hall.peer(headers=[("Authorization", "Bearer good")])
        assert await pushes_as_alice(peer)


async def test_token_in_a_subprotocol_is_never_echoed() -> None:
    """A57. A second offered subprotocol `bearer.<base64url of T>`: only `queen.v1` is echoed."""
    async with house(authorize=authorize) as hall:
        peer = await hall.peer(subprotocols=["queen.v1", bearer("good")])
        assert peer.subprotocol == "queen.v1"
        assert await pushes_as_alice(peer)


async def test_token_in_a_first_frame() -> None:
    """A57. A first frame `auth`: what is asked before it is refused, and what is asked after it is not."""
    async with house(authorize=authorize) as hall:
        peer = await hall.peer()
        early = await peer.ask("push", items=[])
        assert (early["ok"], early["status"]) == (False, 401)
        reply = await peer.ask("auth", token="good")
        assert reply["ok"]
        assert await pushes_as_alice(peer)


def tokens_that_end(**seconds: float) -> Authorize:
    """Each token is valid for so many seconds from now on."""
    now = time.time()

    async def check(request: Request, access: Access) -> Caller:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if token not in seconds:
            raise Unauthorized("Authentication required")
        return Caller(subject="alice", expires=now + seconds[token])

    return check


@pytest.mark.parametrize("how", ["header", "frame"])
async def test_a57_the_connection_ends_with_its_token(how: str) -> None:
    """A57. At the token's `exp` the connection is closed with 4401, however the token came."""
    async with house(authorize=tokens_that_end(short=30)) as hall:
        began = trio.current_time()
        if how == "header":
            peer = await hall.peer(headers=[("Authorization", "Bearer short")])
        else:
            peer = await hall.peer()
            assert (await peer.ask("auth", token="short"))["ok"]
        await peer.ended.wait()
        assert peer.closed == (4401, "the token has expired")
        assert 29 < trio.current_time() - began < 31


async def test_a57_a_new_token_before_the_old_one_ends() -> None:
    """A57. An `auth` frame with a fresh token keeps the connection, as long as that one lasts."""
    async with house(authorize=tokens_that_end(short=30, longer=90)) as hall:
        began = trio.current_time()
        peer = await hall.peer(headers=[("Authorization", "Bearer short")])
        await trio.sleep(20)
        assert (await peer.ask("auth", token="longer"))["ok"]
        await trio.sleep(40)
        assert await pushes_as_alice(peer)
        await peer.ended.wait()
        assert peer.closed == (4401, "the token has expired")
        assert 89 < trio.current_time() - began < 91


async def test_requests_pipelined_behind_auth() -> None:
    """Nobody need wait for the reply to `auth` before the next request."""
    async with house(authorize=authorize) as hall:
        peer = await hall.peer()
        await peer.say({"id": 1, "op": "auth", "token": "good"}, {"id": 2, "op": "push", "items": []})
        assert (await peer.reply(2))["ok"]


async def test_no_token_within_5_seconds() -> None:
    """A57. The first frame has 5 s; then the connection is closed with 4401."""
    async with house(authorize=authorize) as hall:
        peer = await hall.peer()
        began = trio.current_time()
        with trio.fail_after(7):
            await peer.ended.wait()
        assert peer.closed is not None
        assert peer.closed[0] == 4401
        assert trio.current_time() - began >= 4.9


@pytest.mark.parametrize(
    "upgrade",
    [
        {"headers": [("Authorization", "Bearer bad")]},
        {"subprotocols": ["queen.v1", bearer("bad")]},
    ],
)
async def test_wrong_token_at_the_upgrade_is_401(upgrade: dict[str, object]) -> None:
    """A57. A token that does not hold is refused before the upgrade."""
    async with house(authorize=authorize) as hall:
        with pytest.raises(Rejected) as refused:
            await hall.connect(**upgrade)
        assert refused.value.status == 401
        assert refused.value.body == b'{"error":"Authentication required","code":"unauthorized"}'


@pytest.mark.parametrize(("token", "code"), [("bad", 4401), ("banned", 4403)])
async def test_wrong_token_in_a_frame(token: str, code: int) -> None:
    """A57. A token in a frame that does not hold is answered, and closes the connection."""
    async with house(authorize=authorize) as hall:
        peer = await hall.peer()
        assert not (await peer.ask("auth", token=token))["ok"]
        await peer.ended.wait()
        assert peer.closed is not None
        assert peer.closed[0] == code


async def test_a_token_in_the_url_counts_for_nothing() -> None:
    """A57. Never in the URL: URLs end up in logs."""
    async with house(authorize=authorize) as hall:
        peer = await hall.peer(path="/api/v1/ws?token=good&access_token=good")
        assert (await peer.ask("push", items=[]))["status"] == 401


async def test_auth_is_off_by_default(hall: House) -> None:
    """Without authentication a token is asked of nobody, and one that is sent does no harm."""
    peer = await hall.peer(headers=[("Authorization", "Bearer whatever")], subprotocols=["queen.v1", bearer("x")])
    assert (await peer.ask("auth", token="whatever"))["ok"]
    assert (await peer.ask("push", items=[]))["status"] == 201


async def test_a_bearer_that_is_no_base64url(hall: House) -> None:
    """What cannot be read is no token."""
    peer = await hall.peer(subprotocols=["queen.v1", "bearer.%%%"])
    assert (await peer.ask("push", items=[]))["ok"]


# -- origins -----------------------------------------------------------------------------------------------------------


async def test_origin_is_checked_against_the_list() -> None:
    """With an allow-list, a browser may connect from what is on it only; who has no origin is no browser."""
    async with house(Settings(data=None, allowed_origins=("https://a.example",))) as hall:
        with pytest.raises(Rejected) as refused:
            await hall.connect(headers=[("Origin", "https://b.example")])
        assert refused.value.status == 403
        await hall.peer(headers=[("Origin", "https://a.example")])
        await hall.peer()


async def test_any_origin_without_a_list(hall: House) -> None:
    """Without one, from anywhere."""
    peer = await hall.peer(headers=[("Origin", "https://b.example")])
    assert (await peer.ask("push", items=[]))["ok"]


# -- frames ------------------------------------------------------------------------------------------------------------


async def test_binary_frames_close_1003(hall: House) -> None:
    """Frames are text."""
    peer = await hall.peer()
    await peer.raw(peer.binary_frame(b'{"op":"ping"}'))
    await peer.ended.wait()
    assert peer.closed is not None
    assert peer.closed[0] == 1003


@pytest.mark.parametrize("character", ["x", "é"])
async def test_over_8_mib_closes_1009(hall: House, character: str) -> None:
    """The inbound limit is in bytes, whatever the text is made of."""
    peer = await hall.peer()
    filler = character * (limits.WS_FRAME_BYTES // len(character.encode()))
    await peer.say('{"id":1,"op":"ping","x":"' + filler + '"}')
    await peer.ended.wait()
    assert peer.closed is not None
    assert peer.closed[0] == 1009


async def test_just_under_8_mib_is_served(hall: House) -> None:
    """A frame of the limit is a frame like any other."""
    peer = await hall.peer()
    head, tail = '{"id":1,"op":"ping","x":"', '"}'
    await peer.say(head + "x" * (limits.WS_FRAME_BYTES - len(head) - len(tail)) + tail)
    assert (await peer.event("pong"))["id"] == 1


async def test_the_longest_frame_is_set() -> None:
    """QUEEN_ACTORS_WS_FRAME_BYTES: told in the welcome, served up to it, 1009 beyond it, in one frame or several."""
    async with house(Settings(data=None, ws_frame_bytes=1000)) as hall:
        peer = await hall.connect()
        assert (await peer.event("welcome"))["maxFrameBytes"] == 1000
        head, tail = '{"id":1,"op":"ping","x":"', '"}'
        whole = head + "x" * (1000 - len(head) - len(tail)) + tail
        await peer.say(whole)
        assert (await peer.event("pong"))["id"] == 1
        await peer.say(whole + " ")
        await peer.ended.wait()
        assert peer.closed is not None
        assert peer.closed[0] == 1009
        other = await hall.peer()
        await other.raw(frame(1, whole.encode(), fin=False) + frame(0, b" "))
        await other.ended.wait()
        assert other.closed is not None
        assert other.closed[0] == 1009


@pytest.mark.parametrize("text", ["", "[]", '"x"', "7", "null", "{", '{"op":', "{}x", "\ufeff{}", "[" * 100_000])
async def test_not_a_json_object_closes_4400(hall: House, text: str) -> None:
    """A frame that is not a JSON object: close 4400."""
    peer = await hall.peer()
    await peer.say(text)
    await peer.ended.wait()
    assert peer.closed is not None
    assert peer.closed[0] == 4400


# -- liveness ----------------------------------------------------------------------------------------------------------


async def test_a_ping_every_20_seconds(hall: House) -> None:
    """The server pings every 20 s, and a peer that answers stays."""
    peer = await hall.peer()
    await trio.sleep(205)
    assert peer.pings == 10
    assert not peer.ended.is_set()


async def test_a_dead_peer_is_dropped(hall: House) -> None:
    """No pong for another 20 s means that the peer is dead."""
    peer = await hall.peer(answers_pings=False)
    await trio.sleep(39)
    assert not peer.ended.is_set()
    await trio.sleep(2)
    assert peer.ended.is_set()
    assert hall.sockets.open == 0


async def test_a_busy_peer_that_answers_no_ping_is_dropped(hall: House) -> None:
    """A pong is the only sign of life that counts: who keeps asking and never answers is dropped too."""
    peer = await hall.peer(answers_pings=False)
    with trio.move_on_after(60):
        while not peer.ended.is_set():
            await peer.say({"op": "push", "items": []})
            await trio.sleep(0.5)
    assert peer.ended.is_set()


async def test_a56_idle_client_sees_heartbeats() -> None:
    """A56. With a heartbeat of 0.5 s an idle client sees a frame every 0.5 s."""
    async with house(Settings(data=None, heartbeat_seconds=0.5)) as hall:
        peer = await hall.connect()
        assert (await peer.event("welcome"))["heartbeatSeconds"] == 0.5
        await trio.sleep(5.2)
        assert peer.pings == 10


async def test_a56_frozen_peer_is_closed_and_its_leases_return() -> None:
    """A56. A frozen peer is gone within two intervals, and what it held is free."""
    async with house(Settings(data=None, heartbeat_seconds=0.5)) as hall:
        frozen = await hall.peer(answers_pings=False)
        await frozen.ask("push", items=[{"queue": "q", "payload": 1}])
        await frozen.ask("subscribe", sub="s", queue="q")
        await frozen.event("messages")
        await trio.sleep(1.3)
        assert frozen.ended.is_set()
        other = await hall.peer()
        popped = await other.ask("pop", queue="q")
        assert popped["body"]["messages"][0]["deliveryAttempt"] == 2


async def test_op_ping_is_answered_by_a_pong(hall: House) -> None:
    """For browsers, which cannot send WebSocket pings: always a pong, with the id if there was one."""
    peer = await hall.peer()
    await peer.say({"op": "ping"}, {"op": "ping", "id": None}, {"op": "ping", "id": 7}, {"op": "ping", "id": "x"})
    pongs = [await peer.event("pong") for _ in range(4)]
    assert pongs == [{"event": "pong"}, {"event": "pong"}, {"event": "pong", "id": 7}, {"event": "pong", "id": "x"}]


async def test_pings_of_the_client_are_answered(hall: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Liveness is checked both ways: a WebSocket ping gets its pong."""
    peer = await hall.peer()
    seen: list[bytes] = []
    take = peer._take

    async def watch(event: object) -> None:
        if isinstance(event, Pong):
            seen.append(bytes(event.payload))
        await take(event)

    monkeypatch.setattr(peer, "_take", watch)
    await peer.raw(peer._ws.send(Ping(payload=b"are you there")))
    await peer.ask("credit", sub="none", add=1)
    assert seen == [b"are you there"]


@pytest.mark.parametrize("cut", ["at once", "in two", "byte by byte"])
async def test_frames_behind_the_request(hall: House, cut: str) -> None:
    """What a hasty peer sends before the 101 is served once it has been sent, and before what comes later."""
    mine = await hall.stream()
    request = (
        b"GET /api/v1/ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    texts = [b'{"id":1,"op":"ping"}', b'{"id":2,"op":"ping"}']
    frames = b"".join(bytes((0x81, 0x80 | len(text))) + bytes(4) + text for text in texts)
    everything = request + frames
    pieces = {"at once": [everything], "in two": [request, frames], "byte by byte": [bytes((b,)) for b in everything]}
    for piece in pieces[cut]:
        await mine.send_all(piece)
        if cut == "byte by byte":
            await trio.testing.wait_all_tasks_blocked()
    received = b""
    while received.count(b'"pong"') < 2:
        received += await mine.receive_some()
    assert received.startswith(b"HTTP/1.1 101 ")
    assert received.index(b'"welcome"') < received.index(b'"id":1') < received.index(b'"id":2')


async def test_what_is_being_received_is_bounded(hall: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages that are being received take so much on all connections together: past it who has begun a large one is
    closed with 4429, and who sends small ones, or comes later, is served."""
    monkeypatch.setattr(limits, "WS_INCOMING_BYTES", 3_000_000)
    first, second, small = [await hall.peer() for _ in range(3)]
    begun = bytes((0x81, 0xFF)) + (2_500_000).to_bytes(8, "big") + bytes(4) + b'{"id":1,"op":"ping","x":"'
    await first.raw(begun + b"x" * 2_000_000)
    await trio.testing.wait_all_tasks_blocked()
    await second.raw(begun + b"x" * 2_000_000)
    await second.ended.wait()
    assert second.closed is not None
    assert second.closed[0] == 4429
    await small.say('{"id":7,"op":"ping"}')
    assert (await small.event("pong"))["id"] == 7
    third = await hall.peer()
    await third.raw(begun + b"x" * 500_000)
    await trio.testing.wait_all_tasks_blocked()
    await trio.aclose_forcefully(third.stream)
    await trio.sleep(limits.WS_LINGER_SECONDS + 1)
    await first.raw(b"x" * (2_500_000 - 2_000_000 - len('{"id":1,"op":"ping","x":"') - 2) + b'"}')
    assert (await first.event("pong"))["id"] == 1
    assert hall.sockets._incoming.held == 0


async def test_too_many_connections_4429(hall: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Past the bound of connections a new one is told so, and one that leaves makes room."""
    monkeypatch.setattr(limits, "WS_CONNECTIONS", 1)
    first = await hall.peer()
    second = await hall.connect()
    await second.ended.wait()
    assert second.closed is not None
    assert second.closed[0] == 4429
    await first.close()
    await first.ended.wait()
    await trio.sleep(1)
    await hall.peer()

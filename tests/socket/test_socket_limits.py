"""websocket.md, section 7: slow peers, overload, shutdown, close codes."""

from __future__ import annotations

import gc
import json

import pytest
import trio
import trio.testing
from socket_peer import House, NarrowStream, acks, frame, house, items, narrow_peer
from wsproto.events import Ping

from queen_actors import limits
from queen_actors.config import Settings
from queen_actors.serve.outbox import CHUNK_BYTES, Outbox
from queen_actors.wire.socket import close_frame, text_frames

VIRTUAL_TIME = True
BIG = "x" * 1_000_000


async def fill(hall: House, queue: str, count: int) -> None:
    pusher = await hall.peer()
    for n in range(count):
        await pusher.ask("push", items=items(queue, f"{n}:{BIG}", partition=f"p{n}"))
    await pusher.close()


# -- the outbox --------------------------------------------------------------------------------------------------------


async def test_what_waits_for_a_peer_is_bounded(hall: House) -> None:
    """Past 4 MiB nothing more is claimed for it: what it has not been sent is free for others."""
    await fill(hall, "q", 20)
    slow, line = await narrow_peer(hall, 20_000)
    await slow.say({"op": "subscribe", "sub": "s", "queue": "q", "credit": 1000, "partitions": 1})
    await trio.sleep(5)
    claimed = hall.broker.statistics().leases
    assert limits.WS_PEER_BYTES / len(BIG) <= claimed <= limits.WS_PEER_BYTES / len(BIG) + 2
    line.set_rate(1e9)
    got = 0
    while got < 20:
        got += len((await slow.event("messages"))["messages"])


async def test_a_slow_peer_that_takes_something_stays(hall: House) -> None:
    """Slow is not stuck: while a write makes progress, the connection lives, and its leases with it."""
    await fill(hall, "q", 3)
    slow, _ = await narrow_peer(hall, 15_000)
    await slow.say({"op": "subscribe", "sub": "s", "queue": "q", "leaseSeconds": 30})
    for _ in range(3):
        event = await slow.expect(lambda message: message.get("event") == "messages", seconds=500)
        await slow.say({"op": "ack", "acknowledgments": acks(event)})
    await trio.sleep(1)
    assert not slow.ended.is_set()
    other = await hall.peer()
    assert (await other.ask("pop", queue="q"))["status"] == 204


async def test_a_stuck_peer_is_dropped_after_10_seconds(hall: House) -> None:
    """A single write that makes no progress for 10 s ends the connection, and its leases are given back."""
    await fill(hall, "q", 2)
    stuck, _ = await narrow_peer(hall, 0)
    began = trio.current_time()
    await stuck.say({"op": "subscribe", "sub": "s", "queue": "q"})
    other = await hall.peer()
    popped = await other.ask("pop", queue="q", wait=True, timeout=30000)
    assert popped["body"]["messages"][0]["deliveryAttempt"] == 2
    assert 10 <= trio.current_time() - began < 11
    await stuck.ended.wait()
    assert trio.current_time() - began <= 10 + limits.WS_LINGER_SECONDS + 1
    assert hall.sockets.open == 1 + 1  # `other`, and the pusher's farewell or nobody's


async def test_a_stuck_peer_that_wakes_up_is_told_4408(hall: House) -> None:
    """If it reads again soon enough, it gets the rest of the frame that it was reading, and the close code."""
    await fill(hall, "q", 2)
    stuck, line = await narrow_peer(hall, 0)
    await stuck.say({"op": "subscribe", "sub": "s", "queue": "q"})
    await trio.sleep(12)
    line.set_rate(1e9)
    await stuck.ended.wait()
    assert stuck.closed == (4408, "too slow")


async def test_a_stuck_peers_acks_count(hall: House) -> None:
    """What a stuck peer has sent is applied before its leases are given back."""
    await fill(hall, "q", 1)
    peer, line = await narrow_peer(hall, 1e9)
    await peer.ask("subscribe", sub="s", queue="q")
    event = await peer.event("messages")
    line.set_rate(0)
    await peer.say({"id": 1, "op": "ack", "acknowledgments": acks(event)})
    await trio.sleep(20)
    other = await hall.peer()
    assert (await other.ask("pop", queue="q"))["status"] == 204


async def test_a_stuck_peer_delays_nobody(hall: House) -> None:
    """One stuck peer never delays another consumer, nor a commit."""
    await fill(hall, "q", 10)
    stuck, _ = await narrow_peer(hall, 0)
    await stuck.say({"op": "subscribe", "sub": "s", "queue": "q", "group": "g1"})
    other = await hall.peer()
    began = trio.current_time()
    await other.ask("subscribe", sub="s", queue="q", group="g2", credit=1000)
    got = 0
    while got < 10:
        got += len((await other.event("messages"))["messages"])
    for n in range(20):
        await other.ask("push", items=items("q2", n))
    assert trio.current_time() - began < 0.5


async def test_a_parked_pop_is_withdrawn_when_the_outbox_is_full(hall: House) -> None:
    """Past the bound a pop that waits claims nothing; when there is room again it goes on waiting for what is left of
    its time."""
    await fill(hall, "q", 12)
    peer, line = await narrow_peer(hall, 1e9)
    await peer.say({"id": "parked", "op": "pop", "queue": "other", "wait": True, "timeout": 60000})
    await trio.sleep(1)
    line.set_rate(20_000)
    for n in range(6):
        await peer.say({"id": n, "op": "pop", "queue": "q"})
    await trio.sleep(5)
    pusher = await hall.peer()
    await pusher.ask("push", items=items("other", 1))
    assert (await pusher.ask("pop", queue="other"))["body"]["messages"][0]["deliveryAttempt"] == 1
    line.set_rate(1e9)
    await pusher.ask("push", items=items("other", 2, partition="p"))
    assert (await peer.reply("parked"))["body"]["messages"][0]["data"] == 2


async def test_what_may_wait_for_a_peer_is_set() -> None:
    """QUEEN_ACTORS_WS_PEER_BYTES: past it nothing more is claimed for the peer."""
    async with house(Settings(data=None, ws_peer_bytes=2_000_000)) as hall:
        await fill(hall, "q", 10)
        slow, _ = await narrow_peer(hall, 20_000)
        await slow.say({"op": "subscribe", "sub": "s", "queue": "q", "credit": 1000, "partitions": 1})
        await trio.sleep(5)
        assert 2 <= hall.broker.statistics().leases <= 4


async def test_a_peer_that_pings_and_never_reads() -> None:
    """Pongs wait like everything else: the reader stops before they are without bound, and the peer is dropped."""
    gc.collect()
    bound = 200_000
    async with house(Settings(data=None, ws_peer_bytes=bound // 2)) as hall:
        peer, _ = await narrow_peer(hall, 0)
        await peer.raw(peer._ws.send(Ping(payload=b"x" * 125)) * 4000)
        await trio.sleep(5)
        assert bound <= max(outbox.size for outbox in _outboxes()) <= bound + CHUNK_BYTES
        await trio.sleep(limits.WS_WRITE_SECONDS + limits.WS_LINGER_SECONDS)
        assert peer.ended.is_set()


def _outboxes() -> list[Outbox]:
    return [thing for thing in gc.get_objects() if isinstance(thing, Outbox) and not thing.finished]


class Sink(trio.abc.SendStream):
    """Keeps what is written, and takes a moment for it."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await trio.sleep(0.001)
        self.written.append(bytes(data))

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


async def test_many_frames_leave_in_one_write() -> None:
    """Frames that wait are joined, up to a chunk, in the order put, and none is cut."""
    sink = Sink()
    outbox = Outbox(sink)
    frames = [frame for n in range(1000) for frame in text_frames(bytes([65 + n % 26]) * (n % 700), CHUNK_BYTES)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outbox.run)
        for frame in frames:
            outbox.put(frame)
        outbox.finish(close_frame(1000, ""))
    assert b"".join(sink.written) == b"".join(frames) + close_frame(1000, "")
    assert outbox.size == 0
    assert len(sink.written) < 10
    assert max(len(write) for write in sink.written) <= CHUNK_BYTES


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536, 65_537, 131_072, 1_000_001])
async def test_a_message_of_any_size_is_one_message(hall: House, size: int) -> None:
    """Short ones in one frame, long ones in fragments: a client gets the same message."""
    peer = await hall.peer()
    await peer.ask("push", items=items("q", "x" * size))
    popped = await peer.ask("pop", queue="q")
    assert popped["body"]["messages"][0]["data"] == "x" * size


async def test_a_ping_overtakes_what_waits() -> None:
    """An urgent frame is not late because much waits before it, and never cuts a frame."""
    sink = Sink()
    outbox = Outbox(sink)
    frames = list(text_frames(b"a" * 1_000_000, CHUNK_BYTES))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outbox.run)
        for frame in frames:
            outbox.put(frame)
        await trio.sleep(0.0025)
        outbox.put(b"\x89\x00", urgent=True)
        outbox.finish()
    assert sink.written[3].startswith(b"\x89\x00")
    assert b"".join(sink.written).replace(b"\x89\x00", b"", 1) == b"".join(frames)


async def test_dropping_cuts_no_frame() -> None:
    """A close that takes the place of what waits comes behind the frame that is being written."""
    ours, theirs = trio.testing.memory_stream_pair()
    line = NarrowStream(ours, 1000)
    outbox = Outbox(line)
    frames = list(text_frames(b"a" * 300_000, CHUNK_BYTES))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(outbox.run)
        for frame in frames:
            outbox.put(frame)
        await trio.sleep(1)
        outbox.finish(close_frame(4408, "too slow"), drop=True)
        outbox.put(b"never")
        line.set_rate(1e9)
        await outbox.flushed.wait()
    await ours.aclose()
    received = b""
    while part := await theirs.receive_some():
        received += part
    assert received == frames[0] + close_frame(4408, "too slow")


# -- shutdown ----------------------------------------------------------------------------------------------------------


async def test_shutdown_closes_1001(hall: House) -> None:
    """Replies to what is in flight, close 1001 with reason `going away`, within the grace period."""
    peers = [await hall.peer() for _ in range(20)]
    for n, peer in enumerate(peers):
        await peer.say({"id": 1, "op": "pop", "queue": f"q{n}", "wait": True, "timeout": 60000})
    await trio.sleep(1)
    began = trio.current_time()
    hall.shutdown.set()
    for peer in peers:
        assert (await peer.reply(1))["status"] == 204
        await peer.ended.wait()
        assert peer.closed == (1001, "going away")
    await trio.testing.wait_all_tasks_blocked()
    assert hall.sockets.open == 0
    assert trio.current_time() - began < 1


async def test_shutdown_delivers_nothing_more(hall: House) -> None:
    """No new deliveries: what is pushed while the server stops is left for the next start."""
    peer, pusher = await hall.peer(), await hall.peer()
    await peer.ask("subscribe", sub="s", queue="q")
    hall.shutdown.set()
    await pusher.say({"op": "push", "items": items("q", 1)})
    await peer.ended.wait()
    await pusher.ended.wait()
    assert peer.events("messages") == []
    assert hall.broker.statistics().leases == 0


async def test_acks_that_cross_the_close_are_applied(hall: House) -> None:
    """An ack that a peer sent before it saw the close counts."""
    peer = await hall.peer(answers_pings=False)
    await peer.ask("push", items=items("q", 1))
    await peer.ask("subscribe", sub="s", queue="q")
    event = await peer.event("messages")
    hall.shutdown.set()
    await trio.sleep(0.1)
    assert peer.closed is not None
    await peer.raw(frame(1, json.dumps({"op": "ack", "acknowledgments": acks(event)}).encode()))
    await trio.sleep(0.5)
    await peer.stream.aclose()
    await trio.sleep(0.5)
    other = hall.broker.statistics()
    assert other.leases == 0
    view = await hall.broker.queue_view("q")
    assert view is not None
    assert view.partitions[0].completed == 1


async def test_a_peer_that_ignores_the_close_does_not_delay_shutdown() -> None:
    """One stuck peer never delays the broker's shutdown beyond the grace period."""
    async with house(Settings(data=None, shutdown_seconds=4)) as hall:
        deaf = await hall.peer(answers_pings=False)
        await deaf.ask("push", items=items("q", 1))
        await deaf.ask("subscribe", sub="s", queue="q")
        await deaf.event("messages")
        stuck, _ = await narrow_peer(hall, 0, answers_pings=False)
        await fill(hall, "big", 2)
        await stuck.say({"op": "subscribe", "sub": "s", "queue": "big"})
        await trio.sleep(1)
        hall.shutdown.set()
        await trio.sleep(4.1)
        assert hall.sockets.open == 0
        assert hall.broker.statistics().leases == 0


async def test_connecting_while_the_server_stops(hall: House) -> None:
    """A connection that comes through at the last moment is welcomed, and closed at once."""
    hall.shutdown.set()
    peer = await hall.connect(stream=hall.direct())
    await peer.ended.wait()
    assert peer.closed == (1001, "going away")


async def test_cancellation_gives_leases_back() -> None:
    """When the server is cut short, what its connections leased is free all the same."""
    async with house() as hall:
        peer = await hall.peer()
        await peer.ask("push", items=items("q", 1))
        await peer.ask("subscribe", sub="s", queue="q")
        await peer.event("messages")
        assert hall.broker.statistics().leases == 1
        hall.nursery.cancel_scope.cancel()
        with trio.CancelScope(shield=True):
            await trio.sleep(0.1)
            assert hall.broker.statistics().leases == 0


async def test_a_normal_close_is_answered_1000(hall: House) -> None:
    """The close codes are as usual: a peer's close is answered in kind."""
    peer = await hall.peer()
    await peer.close(1000)
    await peer.ended.wait()
    assert peer.closed is not None
    assert peer.closed[0] == 1000


async def test_a_fault_of_ours_closes_1011(hall: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault inside the server ends the one connection with 1011, and is logged; others go on."""
    peer, other = await hall.peer(), await hall.peer()

    async def broken(*args: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(hall.broker, "register", broken)
    await peer.say({"op": "subscribe", "sub": "s", "queue": "q"})
    await peer.ended.wait()
    assert peer.closed is not None
    assert peer.closed[0] == 1011
    assert (await other.ask("push", items=[]))["ok"]

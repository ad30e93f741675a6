"""Requests of one connection whose replies leave together: what happens when the log does not take them."""

from __future__ import annotations

import pytest
import trio
from socket_peer import House, acks, house, items

from queen_actors import limits
from queen_actors.actors.log import Deferral, Log, deferral
from queen_actors.api import Request
from queen_actors.domain.effects import Counters, Entry, QueueDropped
from queen_actors.errors import StorageFull, Unavailable
from queen_actors.serve.link import Link
from queen_actors.storage.memory import Faults, MemoryStore

VIRTUAL_TIME = True


def put(id: int, key: str) -> dict[str, object]:
    return {
        "id": id,
        "op": "kv",
        "operations": [{"op": "put", "ns": "n", "key": key, "value": id, "forever": True}],
    }


async def test_what_was_committed_is_ok_and_what_was_refused_is_not() -> None:
    """The disk fills up between two groups: the first one's replies say ok, the second one's 507, and after there is
    room again requests are answered as ever, from a state without what was refused."""
    delays = iter((1.0, 1.0, *[0.0] * 100))
    faults = Faults(latency=lambda: next(delays))
    async with house(faults=faults) as hall:
        peer = await hall.peer()
        await peer.say(put(1, "a"))
        await trio.sleep(0.5)
        await peer.say(put(2, "b"), put(3, "c"))
        await trio.sleep(0.1)
        faults.full = True
        assert (await peer.reply(1))["status"] == 200
        for id in (2, 3):
            refused = await peer.reply(id)
            assert (refused["ok"], refused["status"]) == (False, 507)
            assert refused["error"]["code"] == "storage_full"
        faults.full = False
        await trio.sleep(5)
        read = await peer.ask("kv", operations=[{"op": "getMany", "ns": "n", "keys": ["a", "b", "c"]}])
        assert [(row["key"], row["value"]) for row in read["body"]["results"][0]["rows"]] == [("a", 1)]
        again = await peer.ask("kv", operations=put(4, "b")["operations"])
        assert again["ok"]


async def test_a_refused_reply_is_counted_as_what_it_was() -> None:
    """The metrics have one 507, and no success that nobody was told of."""
    faults = Faults(full=True)
    async with house(faults=faults) as hall:
        peer = await hall.peer()
        assert (await peer.ask("push", items=items("q", 1)))["status"] == 507
        text = await hall.api.handle(Request("GET", b"/metrics/prometheus"))
        lines = [line for line in text.body.decode().splitlines() if "/api/v1/push" in line and not line.endswith(" 0")]
        assert [line.rpartition(" ")[2] for line in lines] == ["1.0"]
        assert 'status="507"' in lines[0]


async def test_a_reply_waits_for_the_disk_no_longer_than_a_call_may() -> None:
    """A commit that hangs: 503 `timeout` after the deadline, for each request by its own time."""
    faults = Faults(latency=1000.0)
    async with house(faults=faults) as hall:
        peer = await hall.peer()
        began = trio.current_time()
        for id in (1, 2):
            await peer.say({"id": id, "op": "push", "items": items("q", id)})
            await trio.sleep(10)
        late = await peer.reply(1)
        assert (late["status"], late["error"]["code"]) == (503, "timeout")
        assert trio.current_time() - began == pytest.approx(limits.CALL_DEADLINE_SECONDS, abs=0.1)
        assert (await peer.reply(2))["status"] == 503
        assert trio.current_time() - began == pytest.approx(limits.CALL_DEADLINE_SECONDS + 10, abs=0.1)
        faults.latency = 0.0


async def test_a_request_that_waits_for_its_turn_outlives_its_connection(hall: House) -> None:
    """It was received: it is decided when what holds its key is done, although the peer is gone by then."""
    peer = await hall.peer()
    async with hall.broker._core.turns.hold([("kv", "n")]):
        await peer.say(put(1, "a"))
        await trio.sleep(0.1)
        await trio.aclose_forcefully(peer.stream)
        await trio.sleep(2)
    await trio.sleep(0.1)
    other = await hall.peer()
    read = await other.ask("kv", operations=[{"op": "get", "ns": "n", "key": "a"}])
    assert read["body"]["results"][0]["value"] == 1


async def test_what_a_peer_says_is_heard_while_its_request_waits(hall: House) -> None:
    """The reader waits with a request whose key is held; its pongs are seen nevertheless, and keep its leases."""
    peer = await hall.peer()
    await peer.ask("push", items=items("q", 1))
    await peer.ask("subscribe", sub="s", queue="q", leaseSeconds=3)
    event = await peer.event("messages")
    async with hall.broker._core.turns.hold([("kv", "n")]):
        await peer.say(put(1, "a"))
        await trio.sleep(12)
        pings = peer.pings
    assert (await peer.reply(1))["ok"]
    assert pings >= 4, "a lease of 3 s needs them"
    assert [message for message in peer.received if message.get("event") == "lease"] == []
    assert (await peer.ask("ack", acknowledgments=acks(event)))["body"][0]["success"]


async def test_a_fault_in_telling_replies_ends_their_connection_only(
    hall: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They are told by what ends a group commit, which must not end with them: the log goes on, and so do others."""
    other, peer = await hall.peer(), await hall.peer()

    def broken(*_: object) -> None:
        raise RuntimeError("a fault of ours")

    with monkeypatch.context() as patch:
        patch.setattr(Link, "send_now", broken)
        await peer.say(put(1, "a"))
        await peer.ended.wait()
    assert peer.closed == (1011, "internal error")
    assert "a WebSocket session failed" in caplog.text
    assert (await other.ask("kv", operations=put(2, "b")["operations"]))["ok"]


def entry() -> Entry:
    return Entry(1, Counters(), (QueueDropped(1, "q"),))


async def test_a_position_that_was_given_out_twice_is_not_taken_for_the_first_one(nursery: trio.Nursery) -> None:
    """Deferred before a refusal and not durable by then: refused, also when the log is past that number again. What
    was durable by then is durable still."""
    log = Log(store := MemoryStore(faults=(faults := Faults())))
    await store.open(_Nothing())
    later = Deferral()
    token = deferral.set(later)
    log.append(entry())
    await log.durable()
    deferral.reset(token)
    assert (later.position, later.reloads) == (1, 0)
    faults.full = True
    log.append(entry())
    await log.run()
    assert log.full
    assert log.reached(0) == 0
    with pytest.raises(Unavailable):
        await log.durable()
    faults.full = log.full = False
    log.restart(0)
    nursery.start_soon(log.run)
    log.append(entry())
    assert not log.settled(1, log.reloads)
    await log.durable()
    assert log.settled(1, log.reloads)
    with pytest.raises(StorageFull):
        log.settled(later.position, later.reloads)
    await log.close()


class _Nothing:
    """A recovery that wants nothing."""

    def recent_since(self) -> int:
        return 0

    def __getattr__(self, name: str) -> object:
        return lambda *_: None

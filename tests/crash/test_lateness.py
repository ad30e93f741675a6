"""How late the load hears of what was claimed for it changes no verdict: no bound on any delay is in the judgement."""

from __future__ import annotations

import random
import time
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock

from .deliveries import Deliveries
from .history import Call
from .logs import Logs
from .socket_load import BEAT_SECONDS, SocketUser
from .sockets import Exchanges, SocketPeer
from .story import message
from .world import World

CLAIMED, LATE = 1.0, 1.5
"""When the broker claims the delivery, and how long all frames take from then on (seconds)."""


class Chance(random.Random):
    """A subscription that lasts as long as it can, acks nothing and does not say that it goes."""

    def uniform(self, a: float, b: float) -> float:
        return b

    def random(self) -> float:
        return 0.99


class Wire:
    """A broker that answers everything at once, behind a link that from `CLAIMED` on brings everything `LATE`."""

    def __init__(self) -> None:
        self._send, self._receive = trio.open_memory_channel[tuple[float, str]](1000)

    def tell(self, frame: dict[str, Any]) -> None:
        now = trio.current_time()
        self._send.send_nowait((now + LATE if now >= CLAIMED else now, msgspec.json.encode(frame).decode()))

    async def send_message(self, message: str) -> None:
        await trio.sleep(0.001)
        self.tell({"id": msgspec.json.decode(message)["id"], "ok": True, "status": 200, "body": {}})

    async def get_message(self) -> str:
        at, frame = await self._receive.receive()
        await trio.sleep_until(at)
        return frame


async def _heard(monkeypatch: pytest.MonkeyPatch) -> tuple[World, Call]:
    """What a subscriber tells of one delivery that came late."""
    monkeypatch.setattr(time, "monotonic", trio.current_time)
    began, wire, world = trio.current_time(), Wire(), World(1)
    monkeypatch.setattr(f"{__name__}.CLAIMED", began + CLAIMED)
    peer = SocketPeer(wire, world.history, 100, 0.0)
    user = SocketUser(world, 0, 1, peer)
    user.random = Chance()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(peer.read)

        async def claim() -> None:
            await trio.sleep_until(CLAIMED)
            wire.tell({"event": "messages", "sub": "s", "messages": [message("m1", 0, "L1", "1", "a")]})

        nursery.start_soon(claim)
        await user.subscription("orders", "g1")
        nursery.cancel_scope.cancel()
    (call,) = world.history.of("pop")
    return world, call


async def test_a_delivery_that_came_late_was_claimed_long_ago(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is taken as claimed between the last beats before its claim, however long the frame was under way."""
    _, call = await _heard(monkeypatch)
    assert call.answered == pytest.approx(CLAIMED + LATE, abs=0.01)
    assert CLAIMED - 4 * BEAT_SECONDS < call.sent <= CLAIMED


@pytest.mark.parametrize(("after", "fault"), [(1.1, False), (1.8, False), (1.8, True)])
async def test_who_is_given_the_messages_next(
    after: float, fault: bool, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the lease has run out another consumer gets its messages, although the first has only just heard of them;
    that is no fault. While the lease surely lives it is one: here the lease is one of three seconds."""
    world, call = await _heard(monkeypatch)
    call.body["leaseSeconds"] = 3 if fault else 1
    call.body["until"] = CLAIMED + 10  # the connection lives on
    body = {"queue": "orders", "consumerGroup": "g1", "batch": 1, "leaseSeconds": 1}
    answer = {"messages": [message("m1", 0, "L2", "1", "a", 2)]}
    at = CLAIMED + after
    world.history.calls.append(Call(0, 1, "pop", body, at, at + 0.01, 200, answer))
    told = Deliveries(world.history, Logs(world.history), drained=False).violations
    assert any("was leased" in text for text in told) is fault, told


def test_since_when_what_comes_now_was_decided() -> None:
    """Later than a request was sent, when the answer has come to another one that was sent after its answer."""
    exchanges = Exchanges(0.0)
    told: list[tuple[float, float]] = []
    for sent, at in ((1.0, 1.1), (2.0, 2.5), (2.4, 2.6), (2.5, 9.0), (10.0, 10.1)):
        exchanges.answered(sent, at)
        told.append((exchanges.since, exchanges.alive))
    assert told == [(0.0, 1.0), (1.0, 2.0), (1.0, 2.4), (2.0, 2.5), (2.5, 10.0)]

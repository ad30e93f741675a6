"""Sockets of parked requests, all watched by one task."""

from __future__ import annotations

import socket
import sys

import pytest
import trio

from queen_actors.serve.hangups import Hangups

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="epoll is Linux's")


async def test_who_hangs_up_or_speaks_is_looked_at() -> None:
    """Each of many sockets when something comes or its peer goes, and as long as it asks for it; others are not."""
    pairs = [socket.socketpair() for _ in range(20)]
    hangups, seen = Hangups(), list[tuple[int, bytes]]()
    arrived = trio.Event()

    def look(place: int) -> bool:
        data = pairs[place][0].recv(100)
        seen.append((place, data))
        arrived.set()
        return bool(data) and data != b"enough"

    looks = [lambda place=place: look(place) for place in range(20)]

    async def until(count: int) -> None:
        nonlocal arrived
        with trio.fail_after(60):
            while len(seen) < count:
                arrived = trio.Event()
                await arrived.wait()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hangups.run)
        for place, (mine, _) in enumerate(pairs):
            assert hangups.watch(mine.fileno(), looks[place])
        pairs[3][1].send(b"more")
        await until(1)
        pairs[3][1].send(b"enough")
        pairs[7][1].close()
        await until(3)
        pairs[3][1].send(b"unseen")
        hangups.forget(pairs[5][0].fileno(), looks[5])
        pairs[5][1].close()
        pairs[9][1].close()
        await until(4)
        await trio.sleep(0.05)
        nursery.cancel_scope.cancel()
    assert sorted(seen) == [(3, b"enough"), (3, b"more"), (7, b""), (9, b"")]
    for pair in pairs:
        for end in pair:
            end.close()


async def test_a_number_that_became_another_sockets() -> None:
    """A socket that was closed while it was watched is forgotten without harm to the one that has its number now."""
    hangups = Hangups()
    old, far = socket.socketpair()
    number = old.fileno()
    looks = [lambda: True, lambda: False]
    assert hangups.watch(number, looks[0])
    old.close()
    new, other = socket.socketpair()
    assert new.fileno() == number
    assert hangups.watch(number, looks[1])
    hangups.forget(number, looks[0])
    assert hangups._looks == {number: looks[1]}
    new.close()
    hangups.forget(number, looks[1])
    assert hangups._looks == {}
    assert not hangups.watch(new.fileno(), looks[1])
    assert not hangups.watch(None, looks[1])
    for end in (far, other):
        end.close()
    hangups._epoll.close()

"""websocket.md, section 2: what is sent first takes effect first, and what is told is on the disk."""

from __future__ import annotations

from typing import Any

import pytest
from socket_peer import Peer, house, items

from queen_actors.config import Settings

VIRTUAL_TIME = True


async def taken(peer: Peer, id: str) -> list[Any]:
    """The payloads that a pop got."""
    reply = await peer.reply(id)
    return [message["data"] for message in reply["body"]["messages"]]


# -- the order of effects ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stored", [False, True])
async def test_a_pop_that_may_wait_has_its_turn_before_what_follows_it(stored: bool) -> None:
    """What is there for it is its own, and not the next request's, although it need not wait; also when its message
    must be read from the store first."""
    settings = Settings(data=None, record_cache_bytes=1) if stored else Settings(data=None)
    async with house(settings) as hall:
        peer = await hall.peer()
        await peer.ask("push", items=items("q", *range(80)))
        if stored:
            await hall.broker.seal()
            await hall.broker.passivate()
        pop = {"op": "pop", "queue": "q", "batch": 1, "autoAck": True}
        for n in range(0, 80, 2):
            await peer.say({**pop, "id": "first", "wait": True}, {**pop, "id": "second"})
            assert await taken(peer, "first") == [n]
            assert await taken(peer, "second") == [n + 1]

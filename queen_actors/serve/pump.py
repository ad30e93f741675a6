"""What carries events to a peer: asks a source for more while the gate is open, and sends what it gets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

import trio

from queen_actors.api.errors import error_reply
from queen_actors.errors import Overloaded, QueenError
from queen_actors.wire import socket as wire

from .gate import Gate
from .link import Link

T = TypeVar("T")

RETRY_SECONDS = 1.0
"""After a question that the broker could not answer: it is overloaded, its disk is full, or it is stopping."""


async def pump(
    link: Link,
    gate: Gate,
    about: tuple[str, str],
    ask: Callable[[], Awaitable[T]],
    frames: Callable[[T], Iterable[bytes]],
) -> None:
    """Send what `ask` gives, again and again, until the gate is closed or the source refuses: the peer is told then.

    `about` is the op that opened the source, and the client's name for it. `ask` must be safe to cancel; `frames` makes
    whole frames of what it gave, in pieces that one write may take.
    """

    def send(found: T) -> None:
        link.outbox.put_now(frames(found))

    while not gate.closed:
        try:
            await gate.carry(ask, send)
        except QueenError as error:
            if error.status < 500 and not isinstance(error, Overloaded):
                reply = error_reply(error)
                link.send(wire.render_failure(about[0], reply.status, reply.body, about[1]))
                return
            await trio.sleep(RETRY_SECONDS)

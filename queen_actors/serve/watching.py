"""The watches of one connection (`websocket.md`, section 5)."""

from __future__ import annotations

from functools import partial
from typing import Protocol

import trio
from msgspec import Struct

from queen_actors import limits
from queen_actors.actors.watch import Watch
from queen_actors.api import Reply
from queen_actors.api.messages import JSON
from queen_actors.domain.watch import WatchTerms
from queen_actors.errors import Conflict, NotFound, Overloaded, QueenError
from queen_actors.wire import watch as wire
from queen_actors.wire.socket import Frame

from .gate import Gate
from .link import Link
from .pipeline import in_turn
from .pump import pump
from .sharing import Sharing


class Watchable(Protocol):
    """What the watches need of the broker."""

    def watch(self, terms: WatchTerms) -> Watch: ...


class _Watching(Struct, eq=False):
    """One watch under the client's name for it."""

    name: str
    watch: Watch
    opened: trio.Event
    scope: trio.CancelScope


class Watching:
    """Watches, tells, and ends."""

    def __init__(self, link: Link, broker: Watchable, gate: Gate, sharing: Sharing) -> None:
        self.nursery: trio.Nursery | None = None
        """Where events are told; None before the session does and after it."""
        self._link = link
        self._broker = broker
        self._gate = gate
        self._sharing = sharing
        self._watches: dict[str, _Watching] = {}

    async def watch(self, frame: Frame) -> Reply:
        """What changes after the state that the reply shows is told after the reply."""
        name, terms = wire.parse_watch(frame)
        if name in self._watches:
            raise Conflict(f"there is a watch {name!r} on this connection already")
        if len(self._watches) >= limits.WS_WATCHES:
            raise Overloaded(f"a connection has {limits.WS_WATCHES} watches at the most")
        one = self._watches[name] = _Watching(name, self._broker.watch(terms), trio.Event(), trio.CancelScope())
        try:
            begun = await one.watch.open()
        except QueenError:
            if self._watches.get(name) is one:
                del self._watches[name]
            raise
        finally:
            one.opened.set()
        await in_turn.get()()
        if self._watches.get(name) is not one:
            one.watch.close()  # it was left meanwhile
        elif self.nursery is not None and not self._gate.closed:
            self.nursery.start_soon(self._tell, one)
        return Reply(200, wire.render_watched(name, begun), JSON)

    async def unwatch(self, frame: Frame) -> Reply:
        name = wire.parse_unwatch(frame)
        one = self._watches.get(name)
        if one is not None:
            await one.opened.wait()
        if one is None or self._watches.get(name) is not one:
            raise NotFound(f"there is no watch {name[:80]!r} on this connection")
        del self._watches[name]
        one.scope.cancel()
        one.watch.close()
        return Reply(200, wire.render_unwatched(name), JSON)

    def close(self) -> None:
        """The connection is gone."""
        self.nursery = None
        for one in self._watches.values():
            one.watch.close()

    async def _tell(self, one: _Watching) -> None:
        frames = partial(self._sharing.watched, one.name)
        with self._sharing.watch(), one.scope:
            await pump(self._link, self._gate, ("watch", one.name), one.watch.next, frames)
            one.watch.close()

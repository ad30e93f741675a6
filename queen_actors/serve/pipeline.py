"""The requests of one WebSocket that are one call of one route: decided one after the other in the task that reads
them, and answered together when the log has what they decided (`websocket.md`, section 2).

A task for each of them would cost as much again as the request. What has to wait before it can be decided (for a
transaction that holds its keys, for messages that lie on the disk) keeps those behind it waiting, as the order of a
connection's requests wants it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio
from msgspec import Struct

from queen_actors import limits
from queen_actors.actors.log import Deferral, deferral
from queen_actors.api import Api, Reply, Request
from queen_actors.api.app import no_answer
from queen_actors.broker import Broker
from queen_actors.errors import QueenError
from queen_actors.wire.socket import Frame


class Decided(Struct):
    """A request that is decided, and its reply, which may leave when the log has what `later` says."""

    frame: Frame
    request: Request
    reply: Reply
    later: Deferral
    due: float
    """When its time is over, by Trio's clock."""


class Pipeline:
    """The deferred replies of one connection, in the order of their positions."""

    def __init__(self, api: Api, broker: Broker, tell: Callable[[list[Decided]], None]) -> None:
        """`tell` is given what may be answered now."""
        self._api = api
        self._broker = broker
        self._tell = tell
        self._waiting: deque[Decided] = deque()
        self._changed = trio.lowlevel.ParkingLot()
        self.size = 0
        """Bytes of the replies that wait."""

    async def decide(self, frame: Frame, request: Request) -> None:
        """Have the request decided; its reply is told later, or now if it waits for nothing. Whoever is cancelled in
        here finds that nothing has happened: all waiting comes before the decision."""
        later = Deferral()
        before = deferral.set(later)
        try:
            reply = await self._api.handle(request, bounded=True)
        finally:
            deferral.reset(before)
        decided = Decided(frame, request, reply, later, trio.current_time() + limits.CALL_DEADLINE_SECONDS)
        if later.position:
            self._waiting.append(decided)
            self.size += len(reply.body)
            if len(self._waiting) == 1:
                self._changed.unpark_all()
        else:
            self._tell([decided])

    async def run(self) -> None:
        """Tell replies as they become durable; for ever."""
        while True:
            while not self._waiting:
                await self._changed.park()
            await self._settle()
            if not self._waiting:
                self._changed.unpark_all()

    async def drained(self) -> None:
        """Return when no reply waits any more."""
        while self._waiting:
            await self._changed.park()

    async def _settle(self) -> None:
        """Wait for the oldest, and tell whatever can be told then."""
        first = self._waiting[0]
        failure: QueenError | None = None
        with trio.move_on_at(first.due) as patience:
            try:
                await self._broker.settled(first.later.position, first.later.reloads)
            except QueenError as error:
                failure = error
        if patience.cancelled_caught:
            self._revoke(no_answer(), self._take(lambda decided: decided.due <= trio.current_time()))
        elif failure is None:
            reached = self._broker.reached(first.later.reloads)
            reloads = first.later.reloads
            self._tell(self._take(lambda d: d.later.position <= reached and d.later.reloads == reloads))
        elif first.later.reloads != self._broker.reloads:
            self._revoke(failure, self._take(lambda decided: decided.later.reloads == first.later.reloads))
        else:
            self._revoke(failure, self._take(lambda decided: True))

    def _take(self, goes: Callable[[Decided], bool]) -> list[Decided]:
        """Take out those at the front for which it is so."""
        found: list[Decided] = []
        while self._waiting and goes(self._waiting[0]):
            found.append(self._waiting.popleft())
            self.size -= len(found[-1].reply.body)
        return found

    def _revoke(self, failure: QueenError, lost: list[Decided]) -> None:
        for decided in lost:
            decided.reply = self._api.revoke(decided.request, decided.reply, failure)
        self._tell(lost)

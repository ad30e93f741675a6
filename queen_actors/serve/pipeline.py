"""The requests of one WebSocket that are one call of one route: decided one after the other in the task that reads
them, and answered together when the log has what they decided (`websocket.md`, section 2). Requests of other kinds have
tasks of their own, and turns here: no reply overtakes that of a request before it, unless that one is parked.

A task for each of them would cost as much again as the request. What has to wait before it can be decided (for a
transaction that holds its keys, for messages that lie on the disk) keeps those behind it waiting, as the order of a
connection's requests wants it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import partial
from math import inf

import trio
from msgspec import Struct

from queen_actors import limits
from queen_actors.actors.log import Deferral, deferral
from queen_actors.api import Api, Reply, Request
from queen_actors.api.app import no_answer
from queen_actors.broker import Broker
from queen_actors.errors import QueenError, StorageFull
from queen_actors.wire.socket import Frame

from .deferring import rest_of

in_turn: ContextVar[Callable[[], Awaitable[None]]] = ContextVar("in_turn")
"""For a request with a task of its own: to be awaited before what follows its reply is let go."""


class Decided(Struct):
    """A request that is decided, and its reply, which may leave when the log has `position` (see `Deferral`).

    `number` is its place in the order of the connection's requests.
    """

    frame: Frame
    request: Request
    reply: Reply
    position: int
    reloads: int
    looks: bool
    """It changes nothing: when it saw what is refused, it is made again."""
    due: float
    """When its time is over, by Trio's clock."""
    number: int


class Pipeline:
    """The deferred replies of one connection, in the order of their positions."""

    def __init__(
        self,
        api: Api,
        broker: Broker,
        tell: Callable[[list[Decided]], None],
        start: Callable[[Callable[[], Awaitable[None]]], None],
        pause: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """`tell` is given what may be answered now, `start` what is to be run in a task of the connection; within
        `pause` is waited for what a request needs."""
        self._api = api
        self._broker = broker
        self._tell = tell
        self._start = start
        self._pause = pause
        self._waiting: deque[Decided] = deque()
        self._later = Deferral()
        self._time = trio.lowlevel.current_clock().current_time  # `trio.current_time` looks for it each time
        self._taken = 0
        self._turns: dict[int, None] = {}
        """Of requests with tasks of their own: those that are neither answered nor parked."""
        self._turned = trio.lowlevel.ParkingLot()
        self._repeating = 0
        self._repeated = trio.lowlevel.ParkingLot()
        self._looks = False
        self._begun = trio.lowlevel.ParkingLot()
        self._empty = trio.lowlevel.ParkingLot()
        self._fault: Exception | None = None
        self._failed = trio.Event()
        self.size = 0
        """Bytes of the replies that wait."""

    @contextmanager
    def deferring(self) -> Generator[None, None, None]:
        """What this task has decided in here waits for nothing that is to become durable."""
        before = deferral.set(self._later)
        try:
            yield
        finally:
            deferral.reset(before)

    async def decide(self, frame: Frame, request: Request) -> None:
        """Have the request decided; its reply is told later, or now if it waits for nothing. Whoever is cancelled in
        here finds that nothing has happened: all waiting comes before the decision. Only `deferring`, and only in one
        task."""
        later = self._later
        later.position, later.asked = 0, None
        deciding = self._api.handle(request, bounded=True)
        try:
            trap = deciding.send(None)
        except StopIteration as decided_at_once:
            reply: Reply = decided_at_once.value
        else:
            with self._pause():
                reply = await rest_of(deciding, trap)
        position = later.position
        waits = position or self._turns
        due = self._time() + limits.CALL_DEADLINE_SECONDS if waits else 0.0
        self._taken += 1
        looks = later.asked is not None
        decided = Decided(frame, request, reply, position, later.reloads, looks, due, self._taken)
        if waits:
            self._waiting.append(decided)
            self.size += len(reply.body)
            if not self._looks:
                self._looks = True
                self._broker.look(self._look)
            if self._begun:
                self._begun.unpark_all()
        else:
            self._tell([decided])

    async def ready(self) -> None:
        """Return when the next request may be decided: none that came before it is being made again. No checkpoint if
        that is so."""
        while self._repeating:
            with self._pause():
                await self._repeated.park()

    def turn(self) -> int:
        """The place of the next request, which has a task of its own. To be given back in any case: `leave`."""
        self._taken += 1
        self._turns[self._taken] = None
        return self._taken

    async def come(self, turn: int) -> None:
        """Return when everybody with a turn before this one has left. No checkpoint if they have."""
        while next(iter(self._turns), turn) < turn:
            await self._turned.park()

    def leave(self, turn: int) -> None:
        """It is answered; or it is parked, and nobody is to wait for it."""
        if turn in self._turns:
            del self._turns[turn]
            self._turned.unpark_all()
            self._advance()

    async def run(self) -> None:
        """Revoke replies whose time is over, for ever; what comes in time is told by what ends the group commit."""
        try:
            await self._revoke_late()
        finally:
            self._broker.unlook(self._look)

    async def _revoke_late(self) -> None:
        while True:
            while not self._waiting and self._fault is None:
                await self._begun.park()
            if self._fault is not None:
                raise self._fault
            with trio.move_on_at(self._waiting[0].due):
                await self._failed.wait()
            if self._fault is not None:
                raise self._fault
            self._revoke(no_answer(), self._take(lambda decided: decided.due <= trio.current_time()))

    async def drained(self) -> None:
        """Return when no reply waits any more."""
        while self._waiting:
            await self._empty.park()

    def _look(self) -> bool:
        """More is durable, or is known not to be. True: replies wait still."""
        self._looks = self._advance() and bool(self._waiting)
        return self._looks

    def _advance(self) -> bool:
        """Tell what may be told by now. False when that failed."""
        try:
            while self._waiting and self._settle():
                pass
        except Exception as fault:  # the boundary: ours, to end this connection and not the log
            self._fault = fault
            self._failed.set()
            return False
        return True

    def _settle(self) -> bool:
        """Tell whatever can be told with the oldest; False when that must wait."""
        waiting = self._waiting
        position, reloads = waiting[0].position, waiting[0].reloads
        before = next(iter(self._turns), inf)
        if waiting[0].number >= before:
            return False
        reached = self._broker.reached(reloads)
        if position <= reached:
            self._tell(self._take(lambda d: d.position <= reached and d.reloads == reloads and d.number < before))
            return True
        try:
            self._broker.settled(position, reloads)
        except QueenError as failure:
            again = reloads != self._broker.reloads
            self._revoke(failure, self._take(lambda d: (not again or d.reloads == reloads) and d.number < before))
            return True
        return False

    def _take(self, goes: Callable[[Decided], bool]) -> list[Decided]:
        """Take out those at the front for which it is so."""
        found: list[Decided] = []
        while self._waiting and goes(self._waiting[0]):
            found.append(self._waiting.popleft())
            self.size -= len(found[-1].reply.body)
        if self._empty and not self._waiting:
            self._empty.unpark_all()
        return found

    def _revoke(self, failure: QueenError, lost: list[Decided]) -> None:
        """Tell them that it was not to be. One that changed nothing is made again, and those behind it are told after
        it."""
        again: list[Decided] = []
        told: list[Decided] = []
        kept: list[Decided] = []
        for decided in lost:
            if decided.position and decided.looks and isinstance(failure, StorageFull):
                again.append(decided)
            elif decided.position:  # else it has nothing to lose, and waited for its turn only
                decided.reply = self._api.revoke(decided.request, decided.reply, failure)
                decided.position = 0
            (kept if again else told).append(decided)
        if told:
            self._tell(told)
        if again:
            self._waiting.extendleft(reversed(kept))
            self.size += sum(len(decided.reply.body) for decided in kept)
            self._turns = dict.fromkeys(decided.number for decided in again) | self._turns
            self._repeating += 1
            self._start(partial(self._repeat, again))

    async def _repeat(self, found: list[Decided]) -> None:
        """Make these requests again, one after the other, as each has its turn."""
        deferral.set(None)
        try:
            for decided in found:
                reply = await self._api.handle(decided.request)
                before = decided.reply
                if any(other is decided for other in self._waiting):
                    self.size += len(reply.body) - len(before.body)
                    decided.reply, decided.position = reply, 0
                    self._api.unanswered(decided.request, before)
                else:  # its time was over, and it was told so
                    self._api.unanswered(decided.request, reply)
                self.leave(decided.number)
        finally:
            self._repeating -= 1
            self._repeated.unpark_all()

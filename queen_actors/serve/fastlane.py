"""The fast lane: HTTP/1.1 on a Trio stream, without a web framework in between.

It serves every route, as the web lane does, from the same `Intake`. A request for another protocol (HTTP/2, an
upgrade) stays unread, and the connection is handed on with it. Answers leave in the order of their requests, and each
of a peer's waits has its bound: the head, the body, the time between two requests, a write without progress.

A request that is alone is decided without its waiting for the disk (`actors/log.py`: `Deferral`), and its answer is
written by what ends the group commit, a turn of the event loop before the connection's task could.
"""

from __future__ import annotations

import math
import time
from contextlib import suppress
from email.utils import formatdate
from functools import lru_cache, partial
from http import HTTPStatus

import trio

from queen_actors import limits
from queen_actors.actors.log import Deferral, deferral
from queen_actors.api import Reply, Request
from queen_actors.api.app import no_answer
from queen_actors.api.errors import error_reply
from queen_actors.api.messages import JSON, NO_BODY, value_reply
from queen_actors.errors import Overloaded, QueenError, StorageFull

from .connection import Connection
from .deferring import durable, rest_of
from .hangups import AVAILABLE, Hangups
from .intake import Intake, no_room
from .requests import Head, Message, Refused, RequestReader

_WATCH_SECONDS = 0.5
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class FastLane:
    """The lane's connections of one server."""

    def __init__(self, intake: Intake) -> None:
        self.intake = intake
        self.stopping = False
        self.hangups = Hangups() if AVAILABLE else None
        self._talks: set[_Talk] = set()
        self._second = 0
        self._date = b""

    async def serve(self, connection: Connection) -> bool:
        """Serve a connection until it is over, or until it asks for what is not served here: then the result is True,
        and the request is unread. Raises trio.BrokenResourceError when the peer is gone."""
        talk = _Talk(self, connection)
        self._talks.add(talk)
        try:
            return await talk.run()
        finally:
            self._talks.discard(talk)

    async def watch(self) -> None:
        """End each wait whose time is over; for ever. A deadline of Trio's for each of them would cost a tenth of what
        a request costs, so they are all looked at, twice a second."""
        async with trio.open_nursery() as nursery:
            if self.hangups is not None:
                nursery.start_soon(self.hangups.run)
            while True:
                await trio.sleep(_WATCH_SECONDS)
                now = trio.current_time()
                for talk in self._talks:
                    talk.look(now)

    def stop(self) -> None:
        """End each connection after the request that it is at; idle ones now."""
        self.stopping = True
        for talk in self._talks:
            talk.stop()

    def render(self, reply: Reply, *, keeps: bool, bodiless: bool = False) -> bytes:
        """An answer's bytes."""
        second = int(time.time())
        if second != self._second:
            self._second, self._date = second, f"\r\ndate: {formatdate(second, usegmt=True)}\r\n\r\n".encode()
        if reply.headers is JSON:
            start = _json_head(reply.status, keeps)
        else:
            start = _head(reply.status, keeps, tuple(reply.headers.items()))
        if reply.status in NO_BODY:
            return start + self._date[2:]
        body = b"" if bodiless else reply.body
        return b"%bcontent-length: %d%b%b" % (start, len(reply.body), self._date, body)


class _Pump:
    """A task that reads ahead, once there is one."""

    __slots__ = ("arrived", "nursery", "running", "taken")

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.running = False
        self.arrived = trio.lowlevel.ParkingLot()
        self.taken = trio.lowlevel.ParkingLot()


class _Talk:
    """One connection."""

    __slots__ = (
        "_answered_at",
        "_answered_since",
        "_answers",
        "_answers_bytes",
        "_connection",
        "_due",
        "_ended",
        "_first",
        "_held",
        "_idle",
        "_in_body",
        "_lane",
        "_left",
        "_poll",
        "_pump",
        "_reader",
        "_received",
        "_scope",
        "_serving",
        "_unwatched",
    )

    def __init__(self, lane: FastLane, connection: Connection) -> None:
        self._lane = lane
        self._connection = connection
        self._reader = RequestReader()
        self._scope = trio.CancelScope()
        self._idle = False
        self._first = True
        self._in_body = False
        self._held = 0
        self._answers: list[bytes] = []
        self._answers_bytes = 0
        self._answered_since = 0.0
        self._answered_at = 0.0
        self._serving = False
        self._left: bytes | None = None
        """Of an answer that has left already: what the kernel did not take of it."""
        self._unwatched = False
        """A request may wait long, and nobody sees yet whether its peer is gone."""
        self._due = trio.current_time() + limits.HTTP_HEAD_SECONDS
        self._received = b""
        self._ended = False
        self._poll: trio.CancelScope | None = None
        self._pump: _Pump | None = None
        """Reads ahead from what cannot be watched otherwise: TLS, and streams in memory."""

    def look(self, now: float) -> None:
        if self._due <= now:
            self._scope.cancel()
        elif self._unwatched:
            self._watch()

    def stop(self) -> None:
        if self._idle:
            self._scope.cancel()

    async def run(self) -> bool:
        if self._lane.hangups is not None and self._connection.descriptor is not None:
            other_protocol = await self._run()
        else:
            async with trio.open_nursery() as nursery:
                self._pump = _Pump(nursery)
                other_protocol = await self._run()
                nursery.cancel_scope.cancel()
        if other_protocol:
            self._connection.put_back(self._reader.unread + self._received)
        return other_protocol

    async def _run(self) -> bool:
        refusal: Reply | None = None
        try:
            with self._scope:
                return await self._converse()
        except Refused as refused:
            refusal = _refusal(refused.status, refused.code, refused.detail)
        except Overloaded as error:
            refusal = error_reply(error)
        finally:
            self._lane.intake.give(self._held)
        if refusal is None:
            refusal = self._overdue()
        if refusal is not None:
            self._answers.append(self._lane.render(refusal, keeps=False))
        await self._end()
        return False

    def _overdue(self) -> Reply | None:
        """What a peer is told whose time was over, or whose connection is idle when the server stops."""
        if self._serving:
            return error_reply(no_answer())
        if self._in_body:
            return _refusal(408, "timeout", f"the body did not arrive within {limits.HTTP_BODY_SECONDS:g} s")
        if self._first and not self._lane.stopping:
            return _refusal(408, "request_timeout", "no request arrived in time")
        return None

    async def _converse(self) -> bool:
        """Request after request; the result is whether another protocol is asked for. Raises Refused and Overloaded."""
        reader = self._reader
        while True:
            message = reader.next()
            if message is not None:
                if not await self._serve(message):
                    return False
            elif reader.other_protocol:
                await self._flush()
                return True
            elif not await self._more():
                return False

    # -- requests ------------------------------------------------------------------------------------------------------

    async def _serve(self, message: Message) -> bool:
        """Answer a request; False when it was the connection's last one. Raises Overloaded."""
        if self._scope.cancel_called:  # its time was over when it came: nothing has been done
            return False
        lane, head = self._lane, message.head
        started = trio.current_time()
        self._due = started + limits.CALL_DEADLINE_SECONDS
        self._serving = True
        self._first = self._in_body = False
        if not self._hold(len(message.body)):
            raise no_room()
        request = Request(head.method, head.path, head.query, head.headers, message.body)
        api, later, before = lane.intake.api, None, None
        if api.alone:
            later = Deferral()
            before = deferral.set(later)
        try:
            if api.waits(head.method, head.path):
                reply = await self._watched(head, request, later)
            else:
                reply = None
                while reply is None:
                    reply = await api.handle(request, bounded=True)
                    if later is not None and later.position:
                        reply = await self._durable(head, request, reply, later)
        finally:
            if before is not None:
                deferral.reset(before)
        self._serving = False
        self._due = math.inf
        self._hold(0)
        if reply is None:
            return False
        lane.intake.log(request, reply, started)
        keeps = head.keeps and not lane.stopping
        answer, self._left = self._left, None
        if answer is None:
            answer = lane.render(reply, keeps=keeps, bodiless=head.method == "HEAD")
        now = self._answered_at = trio.current_time()
        if not self._answers:
            self._answered_since = now
        if answer:
            self._answers.append(answer)
            self._answers_bytes += len(answer)
        if not keeps:
            await self._end()
            return False
        # What is behind it is served before the answers leave, if that is soon
        if self._answers_bytes >= limits.HTTP_ANSWERS_BYTES or now - self._answered_since > limits.HTTP_ANSWERS_SECONDS:
            await self._flush()
            await trio.lowlevel.checkpoint()
        return True

    async def _durable(self, head: Head, request: Request, reply: Reply, later: Deferral) -> Reply | None:
        """The reply, or what is said in its place, when the log has what it says, or never will have it; None when that
        was refused, and the request is one that waits on, or only looks: it is to be made again."""
        api = self._lane.intake.api
        try:
            await durable(later, partial(self._leave, head, reply))
        except QueenError as refusal:
            if later.asked is not None and isinstance(refusal, StorageFull):
                api.unanswered(request, reply)
                later.again()
                return None
            return api.revoke(request, reply, refusal)
        except trio.Cancelled:
            if later.undo is not None:
                later.undo()
            api.unanswered(request, reply)
            raise
        return reply

    def _leave(self, head: Head, reply: Reply) -> None:
        """The reply may be told: its answer leaves now, if the connection goes on and nothing else is to be answered.
        Whether the peer is gone, the next read tells."""
        if head.keeps and not (self._lane.stopping or self._answers or self._received or self._reader.unread):
            with suppress(trio.BrokenResourceError):
                answer = self._lane.render(reply, keeps=True, bodiless=head.method == "HEAD")
                self._left = self._connection.write_now(answer)

    async def _watched(self, head: Head, request: Request, later: Deferral | None) -> Reply | None:
        """The reply to a request that may wait long; None when the peer has gone away meanwhile, or has sent so much
        more that nobody could see it go."""
        if self._answers:
            await self._flush()
            await trio.lowlevel.checkpoint()  # one that finds nothing may wait for nothing at all
        self._due = math.inf  # how long it may wait is the request's own affair
        if self._ended or len(self._received) > limits.HTTP_PIPELINE_BYTES:
            return None
        self._unwatched = True
        descriptor = self._connection.descriptor
        try:
            with trio.CancelScope() as self._poll:
                answer: Reply | None = None
                while answer is None:
                    polling = self._lane.intake.api.handle(request)
                    try:
                        trap = polling.send(None)
                    except StopIteration as decided_at_once:
                        reply: Reply = decided_at_once.value
                    else:
                        if self._unwatched:
                            self._watch()
                        reply = await rest_of(polling, trap)
                    if later is None or not later.position:
                        return reply
                    answer = await self._durable(head, request, reply, later)
                return answer
        finally:
            self._unwatched = False
            if self._lane.hangups is not None:
                self._lane.hangups.forget(descriptor, self._look_in)
        return None

    def _watch(self) -> None:
        """See from now on whether the peer is gone: what is decided at once, and waits for the disk, needs it only if
        that takes long."""
        self._unwatched = False
        pump, hangups = self._pump, self._lane.hangups
        if pump is None:
            if hangups is not None and not hangups.watch(self._connection.descriptor, self._look_in):
                self._drop_poll()
        elif not pump.running:
            pump.running = True
            pump.nursery.start_soon(self._read_ahead, pump)

    def _drop_poll(self) -> None:
        """The peer of a parked request is gone, or cannot be seen to go."""
        if self._poll is not None:
            self._poll.cancel()

    def _look_in(self) -> bool:
        """Something has come while a request is parked; True to be told again."""
        try:
            data = self._connection.read_now()
        except trio.BrokenResourceError:
            data = b""
        if data is None:
            return True
        self._received += data
        self._ended = not data
        over = self._ended or len(self._received) > limits.HTTP_PIPELINE_BYTES
        if over:
            self._drop_poll()
        return not over

    def _hold(self, size: int) -> bool:
        """Count what this connection holds of a body; False when there is no room for it."""
        room = self._lane.intake.take(size - self._held)
        self._held = size
        return room

    # -- reading -------------------------------------------------------------------------------------------------------

    async def _more(self) -> bool:
        """Read on; False at the end of the stream. Raises Refused and Overloaded."""
        if self._answers:
            await self._flush()
        reader = self._reader
        if reader.head is None:
            if self._lane.stopping:
                return False
            if not self._first:
                self._due = self._answered_at + limits.HTTP_KEEP_ALIVE_SECONDS
            self._idle = True
        elif not self._in_body:
            self._in_body = True
            self._due = trio.current_time() + limits.HTTP_BODY_SECONDS
            self._bound_body()
            if reader.head.expects and not reader.begun:
                self._answers.append(_CONTINUE)
                await self._flush()
        data = await self._receive()
        self._idle = False
        if not data:
            return False
        reader.receive(data)
        if self._in_body:
            self._bound_body()
        return True

    def _bound_body(self) -> None:
        if not self._hold(self._reader.held):
            raise no_room()

    async def _receive(self) -> bytes:
        pump = self._pump if self._pump is not None and self._pump.running else None
        while not self._received:
            if self._ended:
                return b""
            if pump is None:
                return await self._connection.read()
            await pump.arrived.park()
        data, self._received = self._received, b""
        if pump is not None:
            pump.taken.unpark_all()
        return data

    async def _read_ahead(self, pump: _Pump) -> None:
        """Read ahead, so that a peer who goes away while its pop is parked is seen at once."""
        try:
            while data := await self._connection.read():
                self._received += data
                pump.arrived.unpark_all()
                if len(self._received) > limits.HTTP_PIPELINE_BYTES:
                    self._drop_poll()
                while len(self._received) > limits.HTTP_PIPELINE_BYTES:
                    await pump.taken.park()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        self._ended = True
        pump.arrived.unpark_all()
        self._drop_poll()

    # -- writing -------------------------------------------------------------------------------------------------------

    async def _flush(self) -> None:
        answers = self._answers
        if answers:
            self._answers, self._answers_bytes = [], 0
            rest = self._connection.write_now(answers[0] if len(answers) == 1 else b"".join(answers))
            if rest:
                due, self._due = self._due, math.inf  # a write has its own bounds
                await self._connection.send_all(rest)
                self._due = due

    async def _end(self) -> None:
        """Send what is left, and that nothing follows it."""
        await self._flush()
        await self._connection.send_eof()


def _refusal(status: int, code: str, detail: str) -> Reply:
    return value_reply({"error": detail, "code": code}, status)


@lru_cache(1024)
def _json_head(status: int, keeps: bool) -> bytes:
    return _head(status, keeps, tuple(JSON.items()))


@lru_cache(1024)
def _head(status: int, keeps: bool, headers: tuple[tuple[str, str], ...]) -> bytes:
    """The beginning of an answer, up to its length."""
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", *(f"{name}: {value}" for name, value in headers)]
    if not keeps:
        lines.append("connection: close")
    return "\r\n".join([*lines, ""]).encode("latin-1")

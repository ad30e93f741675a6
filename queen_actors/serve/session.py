"""A session: the requests, replies and subscriptions of one accepted WebSocket (`websocket.md`, sections 2, 3 and 7).

Requests are started one after the other, in the order in which they came, and what a request decides it decides before
the next one is started; then each goes its own way, so that replies may overtake each other. The reader stops while as
many are under way as may be. When the connection ends, what was received is finished first; then leases are given back.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from math import inf

import trio

from queen_actors import __version__, limits
from queen_actors.actors.log import decided as when_decided
from queen_actors.actors.log import deferral
from queen_actors.actors.permits import holding
from queen_actors.api import Access, Api, Authorize, Caller, Reply, Request
from queen_actors.api.errors import error_reply
from queen_actors.api.messages import NO_CONTENT, value_reply
from queen_actors.broker import Broker
from queen_actors.config import Settings
from queen_actors.errors import BadRequest, Overloaded, QueenError, Unauthorized
from queen_actors.values import SECOND, iso_zulu
from queen_actors.wire import socket as wire
from queen_actors.wire.socket import Frame

from .feed import Feeds
from .gate import Gate
from .holding import Holding
from .link import Link, NotText
from .pipeline import Decided, Pipeline, in_turn
from .sharing import Sharing
from .socket_routes import ROUTES, Headers, pop_request, pop_timeout_ms
from .watching import Watching

Work = Callable[[Frame], Awaitable[Reply]]

PAUSE_SECONDS = 1.0
"""A reader that stops for less still sees what comes in time."""
ROUND = 64
"""So many requests are decided before others may run: about a millisecond."""
_REFUSED = {401: wire.UNAUTHORIZED, 403: wire.FORBIDDEN}
"""What a connection is closed with when its `auth` is answered with this status."""


class Session:
    """One connection after its handshake."""

    def __init__(
        self,
        link: Link,
        api: Api,
        broker: Broker,
        settings: Settings,
        shutdown: trio.Event,
        authorize: Authorize,
        headers: Headers,
        caller: Caller | None,
        sharing: Sharing,
    ) -> None:
        self._link = link
        self._api = api
        self._broker = broker
        self._settings = settings
        self._shutdown = shutdown
        self._authorize = authorize
        self._headers = headers
        self._known = caller is not None
        self._expires = None if caller is None else caller.expires
        self._identified = trio.Event()
        self._background: trio.Nursery | None = None
        """What watches the connection; None before it runs. A task is several kilobytes: none for what cannot come."""
        self._expiry_watched = False
        self._gate = Gate(link.outbox)
        self._feeds = Feeds(link, broker, self._gate, sharing)
        self._watching = Watching(link, broker, self._gate, sharing)
        self._holding = Holding(link, broker, self._feeds.changed)
        self._reading = trio.CancelScope()
        self._requests: trio.Nursery | None = None
        """Of requests with tasks of their own, while the connection runs."""
        self._under_way = 0
        self._under_way_bytes = 0
        self._pipeline = Pipeline(api, broker, self._tell, self._start, self._pause)
        self._pops = 0
        self._taken = 0
        self._place_free = trio.lowlevel.ParkingLot()
        self._paused_since = inf
        self._read_freely = True  # since the last ping, the reader did not have to stop for long
        self.linger_seconds = limits.WS_LINGER_SECONDS
        self._own: Mapping[str, Work] = {
            "pop": self._pop,
            "subscribe": self._subscribe,
            "tail": self._tail,
            "unsubscribe": self._feeds.unsubscribe,
            "credit": self._feeds.credit,
            "watch": self._watch,
            "unwatch": self._watching.unwatch,
            "lock.acquire": self._acquire,
        }

    async def run(self) -> None:
        """Serve the connection until it ends, then give back what it holds."""
        now = self._broker.clock.now()
        session = self._broker.ids.uuid(now)
        settings = self._settings
        self._link.send(
            wire.render_welcome(
                __version__, session, settings.heartbeat_seconds, settings.ws_frame_bytes, iso_zulu(now)
            )
        )
        try:
            async with trio.open_nursery() as background:
                self._background = background
                for task in (self._heartbeat, self._watch_writes, self._watch_shutdown, self._pipeline.run):
                    background.start_soon(task)
                self._watch_token()
                if not self._known:
                    background.start_soon(self._await_auth)
                async with trio.open_nursery() as requests, trio.open_nursery() as feeds:
                    self._requests = requests
                    self._feeds.nursery = self._watching.nursery = feeds
                    with self._reading, self._pipeline.deferring():
                        await self._read(requests)
                    await self._pipeline.drained()
                    self._gate.close()
                    self._holding.stop()
                    self._feeds.nursery = self._watching.nursery = None
                    feeds.cancel_scope.cancel()
                background.cancel_scope.cancel()
        finally:
            self._watching.close()
            with trio.move_on_after(limits.WS_GIVE_BACK_SECONDS, shield=True):
                await self._feeds.close()
                await self._holding.close()

    # -- requests --------------------------------------------------------------------------------------------------

    async def _read(self, requests: trio.Nursery) -> None:
        """Take requests until the peer is gone, or says something that ends the connection."""
        holding.set(self._holding.permits)
        while True:
            self._taken += 1
            if self._taken % ROUND == 0:
                await trio.lowlevel.checkpoint()
            text = self._link.take()
            if text is None:
                try:
                    text = await self._link.receive()
                except NotText:
                    self._link.close(wire.UNSUPPORTED, "frames are text")
                    return
                if text is None:
                    return
            if len(text) > self._settings.ws_frame_bytes:
                self._link.close(wire.TOO_BIG, f"a frame takes at most {self._settings.ws_frame_bytes} bytes")
                return
            try:
                frame = wire.parse_frame(text)
            except wire.NotAnObject as wrong:
                self._link.close(wire.BAD_FRAME, f"a frame is one JSON object: {wrong}")
                return
            except wire.BadFrame as wrong:
                if self._link.outbox.crowded:
                    await self._place(0)
                self._say(wrong.id, None, error_reply(wrong))
                continue
            if self._link.outbox.crowded:
                await self._place(0)
            await self._begin(requests, frame)

    async def _begin(self, requests: trio.Nursery, frame: Frame) -> None:
        """Start one request; return when its turn is over and the next one may start."""
        op = frame.op
        build = ROUTES.get(op)
        if op == "ping":
            self._link.send(wire.render_pong(frame.id))
            return
        work = self._call if build is not None else self._auth if op == "auth" else self._own.get(op)
        if not self._known and op != "auth":
            self._say(frame.id, op, error_reply(Unauthorized("say who you are first: an `auth` frame")))
            return
        if work is None:
            unknown = BadRequest(f"there is no op {op[:80]!r}", code="unknown_op")
            self._say(frame.id, op, error_reply(unknown))
            return
        size = len(frame.text)
        if self._is_full(size):
            await self._place(size)
        await self._pipeline.ready()
        self._under_way += 1
        self._under_way_bytes += size
        if op == "pop" and not pop_timeout_ms(frame) and self._gate.open:
            build = pop_request
        if build is not None:
            await self._decide(requests, frame, work, build)
            return
        decided = trio.Event()
        requests.start_soon(self._answer, frame, work, decided, self._pipeline.turn())
        await trio.lowlevel.checkpoint()
        if not decided.is_set():
            with self._pause():
                await decided.wait()

    async def _decide(
        self, requests: trio.Nursery, frame: Frame, work: Work, build: Callable[[Frame, Headers], Request]
    ) -> None:
        try:
            await self._pipeline.decide(frame, build(frame, self._headers))
        except QueenError as error:
            self._done(frame)
            self._say(frame.id, frame.op, error_reply(error))
        except trio.Cancelled:  # the reader's time is over, and not that of what has been received
            requests.start_soon(self._answer, frame, work, trio.Event(), self._pipeline.turn())
            raise

    def _tell(self, found: Sequence[Decided]) -> None:
        """Replies of the pipeline that may leave."""
        said: list[bytes] = []
        for decided in found:
            frame, reply = decided.frame, decided.reply
            self._under_way -= 1
            self._under_way_bytes -= len(frame.text)
            if frame.id is not None:
                said.append(wire.render_reply(frame.id, reply.status, reply.body))
            else:
                said += self._said(None, frame.op, reply)
        if self._place_free:
            self._place_free.unpark_all()
        if len(said) == 1:
            self._link.send_now(said[0])
        else:
            self._link.send_together(said)

    def _start(self, work: Callable[[], Awaitable[None]]) -> None:
        assert self._requests is not None, "while a reply waits, the connection runs"
        self._requests.start_soon(work)

    async def _place(self, size: int) -> None:
        """Wait while as much is under way as may be, or the peer does not read its replies."""
        outbox = self._link.outbox
        with self._pause():
            while self._is_full(size):
                await (outbox.room() if outbox.crowded else self._place_free.park())

    @contextmanager
    def _pause(self) -> Generator[None, None, None]:
        """The reader stops: pongs lie unread, and nobody is to be taken for dead for that."""
        self._paused_since = trio.current_time()
        self._link.away(True)
        try:
            yield
        finally:
            self._link.away(False)
            if trio.current_time() - self._paused_since >= PAUSE_SECONDS:
                self._read_freely = False
            self._paused_since = inf

    @property
    def _judged(self) -> bool:
        """Has the reader run since the last ping, so that the pong would have been seen?"""
        return self._read_freely and self._paused_since == inf and not self._link.outbox.crowded

    def _is_full(self, size: int) -> bool:
        count, total = self._under_way, self._under_way_bytes + self._pipeline.size + size
        return (
            count >= limits.WS_PIPELINE or (count > 0 and total > limits.WS_PIPELINE_BYTES) or self._link.outbox.crowded
        )

    async def _answer(self, frame: Frame, work: Work, decided: trio.Event, turn: int) -> None:
        def told(parked: bool) -> None:
            if parked:
                self._pipeline.leave(turn)
            decided.set()

        deferral.set(None)
        when_decided.set(told)
        in_turn.set(partial(self._pipeline.come, turn))
        holding.set(self._holding.permits)
        try:
            try:
                reply = await work(frame)
            except QueenError as error:
                reply = error_reply(error)
            finally:
                decided.set()
            await self._pipeline.come(turn)
            self._say(frame.id, frame.op, reply)
        finally:
            self._pipeline.leave(turn)
            self._done(frame)
        if frame.op == "auth" and reply.status in _REFUSED:
            self._stop(_REFUSED[reply.status], "the token does not hold")

    def _done(self, frame: Frame) -> None:
        """The request has its answer: its place is free."""
        self._under_way -= 1
        self._under_way_bytes -= len(frame.text)
        if self._place_free:
            self._place_free.unpark_all()

    def _say(self, id: bytes | None, op: str | None, reply: Reply) -> None:
        for said in self._said(id, op, reply):
            self._link.send(said)

    def _said(self, id: bytes | None, op: str | None, reply: Reply) -> tuple[bytes, ...]:
        """What a reply is on the wire: nothing, when the request asked for none and did not fail."""
        if id is not None:
            return (wire.render_reply(id, reply.status, reply.body),)
        return (wire.render_failure(op, reply.status, reply.body),) if reply.status >= 400 else ()

    async def _call(self, frame: Frame) -> Reply:
        return await self._api.handle(ROUTES[frame.op](frame, self._headers))

    async def _pop(self, frame: Frame) -> Reply:
        """A pop that waits must not claim for a peer that does not read, nor for one that is gone: it is withdrawn
        then, and asked again with what is left of its time."""
        if self._pops >= limits.WS_POPS:
            raise Overloaded(
                f"{limits.WS_POPS} pops are under way on this connection already; a subscription takes one"
            )
        timeout = pop_timeout_ms(frame)
        until = trio.current_time() + timeout / 1000

        async def ask() -> Reply:
            left = max(1, round((until - trio.current_time()) * 1000)) if timeout else None
            return await self._api.handle(pop_request(frame, self._headers, left))

        self._pops += 1
        try:
            reply = await self._gate.claim(ask, patient=timeout > 0)
        finally:
            self._pops -= 1
        return NO_CONTENT if reply is None else reply

    async def _subscribe(self, frame: Frame) -> Reply:
        request = Request("GET", b"/api/v1/pop", headers=self._headers)
        await self._authorize(request, Access.READ_WRITE)
        return await self._feeds.subscribe(frame)

    async def _tail(self, frame: Frame) -> Reply:
        await self._authorize(Request("GET", b"/api/v1/fetch", headers=self._headers), Access.READ)
        return await self._feeds.tail(frame)

    async def _watch(self, frame: Frame) -> Reply:
        await self._authorize(Request("GET", b"/api/v1/kv", headers=self._headers), Access.READ)
        return await self._watching.watch(frame)

    async def _acquire(self, frame: Frame) -> Reply:
        await self._authorize(Request("POST", b"/api/v1/locks", headers=self._headers), Access.READ_WRITE)
        return await self._holding.acquire(frame)

    async def _auth(self, frame: Frame) -> Reply:
        headers = {**self._headers, "authorization": f"Bearer {wire.parse_token(frame)}"}
        caller = await self._authorize(Request("GET", b"/api/v1/ws", headers=headers), Access.ANY)
        self._headers, self._known, self._expires = headers, True, caller.expires
        self._identified.set()
        self._watch_token()
        return value_reply({"authenticated": True})

    # -- what ends a connection ------------------------------------------------------------------------------------

    def _stop(self, code: int, reason: str, *, drop: bool = False) -> None:
        """Close, and read on only for what has been sent already."""
        self._link.close(code, reason, drop=drop)
        self._end_soon()

    def _end_soon(self, seconds: float = limits.WS_LAST_WORDS_SECONDS) -> None:
        self._gate.close()
        self._holding.stop()
        self._reading.deadline = min(self._reading.deadline, trio.current_time() + seconds)

    async def _heartbeat(self) -> None:
        """Ping, and drop a peer that does not answer within another interval; who answers keeps its leases."""
        interval = self._settings.heartbeat_seconds
        while not self._link.outbox.finished:
            with trio.move_on_after(min(interval, self._feeds.patience, self._holding.patience)):
                await self._feeds.changed.park()
            answered = await self._answered(interval)
            if answered or not self._judged:
                await self._feeds.keep_alive()
                await self._holding.keep_alive()
            elif not self._link.outbox.finished and not self._link.ended:
                self._link.abandon()
                self._end_soon()

    async def _answered(self, seconds: float) -> bool:
        """Whether the peer answers a ping. While it has not answered for so long that leases run out, it gets nothing
        more: what it cannot keep would come back to it, and again, until its delivery limit."""
        self._read_freely = self._paused_since == inf and not self._link.outbox.crowded
        began = trio.current_time()
        with trio.move_on_at(began + seconds):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._hold_after, self._feeds.patience)
                pong = await self._link.ping()
                nursery.cancel_scope.cancel()
                self._gate.release()
                return pong
        return False

    async def _hold_after(self, seconds: float) -> None:
        await trio.sleep(seconds)
        if self._judged:
            self._gate.hold()

    async def _watch_writes(self) -> None:
        if await self._link.outbox.stalled():
            self._stop(wire.TOO_SLOW, "too slow", drop=True)
        else:  # the peer is gone: what it had sent is read to its end, which comes by itself
            self._end_soon(limits.WS_WRITE_SECONDS)

    async def _watch_shutdown(self) -> None:
        """Nothing new is claimed; what is in flight is answered; then the close. A peer that reads nothing is given up
        after three quarters of the grace period: the rest is for what is still to be written to the log."""
        await self._shutdown.wait()
        grace = self._settings.shutdown_seconds
        now = trio.current_time()
        self._gate.close()
        self._holding.stop()
        with trio.move_on_at(now + grace * 0.5):
            while self._under_way:
                await self._place_free.park()
        self._link.close(wire.GOING_AWAY, "going away")
        self._reading.deadline = min(self._reading.deadline, now + grace * 0.65)
        self.linger_seconds = grace * 0.1

    def _watch_token(self) -> None:
        """Watch the expiry from the first token on that has one."""
        if self._expires is not None and not self._expiry_watched and self._background is not None:
            self._expiry_watched = True
            self._background.start_soon(self._watch_expiry)

    async def _watch_expiry(self) -> None:
        """The connection ends with its token, unless another one was sent in an `auth` frame before (A57)."""
        while True:
            self._identified = trio.Event()
            left = inf if self._expires is None else self._expires - self._broker.clock.now() / SECOND
            with trio.move_on_after(max(left, 0)) as patience:
                await self._identified.wait()
            if patience.cancelled_caught:
                self._stop(wire.UNAUTHORIZED, "the token has expired")
                return

    async def _await_auth(self) -> None:
        with trio.move_on_after(limits.WS_AUTH_SECONDS):
            while not self._known:
                await self._place_free.park()
            return
        self._stop(wire.UNAUTHORIZED, "no token within the time for it")

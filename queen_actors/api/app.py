"""`Api`: one request in, one reply out."""

from __future__ import annotations

import logging
import math

import trio

from queen_actors import limits
from queen_actors.broker import Broker
from queen_actors.config import Settings
from queen_actors.errors import InternalError, QueenError, Unavailable

from .access import Authorize, open_to_all
from .call import Call, Route
from .errors import MethodNotAllowed, error_reply, no_such_route
from .messages import NO_CONTENT, Reply, Request
from .routes import Router

log = logging.getLogger(__name__)


class Api:
    """Every operation of a broker behind its route."""

    def __init__(self, broker: Broker, settings: Settings, authorize: Authorize = open_to_all) -> None:
        self._broker = broker
        self._settings = settings
        self._authorize = authorize
        self._router = Router()
        self._polls: set[trio.CancelScope] = set()
        self._draining = False
        self._requests: dict[tuple[str, str, int], int] = {}

    async def handle(self, request: Request, *, bounded: bool = False) -> Reply:
        """The reply to a request. Raises nothing: what goes wrong is a reply too, and what is our fault is logged.

        When the caller is cancelled, so is the operation; a pop then leases nothing to it. A `bounded` caller ends the
        call itself after `limits.CALL_DEADLINE_SECONDS`, if it is none that waits.
        """
        route = None
        try:
            found = self._router.find(request.method, request.raw_path)
            if found is None:
                reply = self._unknown(request)
            else:
                route, names = found
                caller = await self._authorize(request, route.access)
                call = Call(self._broker, self._settings, request, caller, names, self._requests)
                if route.waits:
                    reply = await self._wait(route, call)
                else:
                    reply = await (route.handler(call) if bounded else self._run(route, call))
        except QueenError as error:
            reply = error_reply(error, None if route is None else route.family)
        except Exception as error:  # the boundary: a fault of ours in one request must not reach another
            where = request.raw_path.decode("latin-1")[:200]
            log.exception("request failed", extra={"method": request.method, "path": where, "fault": repr(type(error))})
            fault = InternalError("internal error; the broker's log has more")
            reply = error_reply(fault, None if route is None else route.family)
        self._count(route, reply.status)
        return reply

    def _count(self, route: Route | None, status: int, by: int = 1) -> None:
        counted = ("", "", status) if route is None else (route.pattern, route.method, status)
        count = self._requests.get(counted, 0) + by
        if count:
            self._requests[counted] = count
        else:
            del self._requests[counted]

    def revoke(self, request: Request, reply: Reply, error: QueenError) -> Reply:
        """What is answered in place of `reply`, which has not left, when what it says was not to be."""
        found = self._router.find(request.method, request.raw_path)
        route = None if found is None else found[0]
        refused = error_reply(error, None if route is None else route.family)
        self._count(route, refused.status)
        self.unanswered(request, reply)
        return refused

    def unanswered(self, request: Request, reply: Reply) -> None:
        """Nobody was told of this reply, and nobody will be: it does not count."""
        found = self._router.find(request.method, request.raw_path)
        self._count(None if found is None else found[0], reply.status, -1)

    @property
    def alone(self) -> bool:
        """Will a request that is made now share its group commit with none before it?"""
        return not self._broker.awaited

    def waits(self, method: str, raw_path: bytes) -> bool:
        """May the answer to such a request take long? Then its caller should be watched: when he is gone, so is the
        request."""
        try:
            found = self._router.find(method, raw_path)
        except QueenError:
            return False
        return found is not None and found[0].waits

    def drain(self) -> None:
        """Let go of every parked pop, now and from now on: each is answered as if its wait were over."""
        self._draining = True
        for scope in self._polls:
            scope.cancel()

    async def _run(self, route: Route, call: Call) -> Reply:
        with trio.move_on_after(limits.CALL_DEADLINE_SECONDS):
            return await route.handler(call)
        raise no_answer()

    async def _wait(self, route: Route, call: Call) -> Reply:
        with trio.CancelScope(deadline=math.inf) as scope:
            self._polls.add(scope)
            if self._draining:
                scope.cancel()
            try:
                return await route.handler(call)
            finally:
                self._polls.discard(scope)
        if route.let_go is not None:
            return route.let_go(call)
        if b"conflation=true" in call.request.query:  # whose clients read a 204 as "this broker cannot conflate"
            raise Unavailable("the broker is stopping", code="stopping")
        return NO_CONTENT

    def _unknown(self, request: Request) -> Reply:
        allowed = self._router.methods(request.raw_path)
        if allowed:
            return error_reply(MethodNotAllowed(allowed))
        return no_such_route(request.raw_path.decode("latin-1"))


def no_answer() -> Unavailable:
    """What a call gets that takes too long."""
    return Unavailable(f"no answer within {limits.CALL_DEADLINE_SECONDS:g} s", code="timeout")

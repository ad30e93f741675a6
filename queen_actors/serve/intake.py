"""What both lanes of HTTP share: where requests go, what their bodies may take together, and the access log."""

from __future__ import annotations

import logging

import trio

from queen_actors import limits
from queen_actors.api import Api, Reply, Request
from queen_actors.config import Settings
from queen_actors.errors import Overloaded

access = logging.getLogger("queen_actors.access")


class Intake:
    """One server's requests."""

    def __init__(self, api: Api, settings: Settings) -> None:
        self.api = api
        self._access_log = settings.access_log
        self._bodies = 0

    def take(self, size: int) -> bool:
        """Room for so many more bytes of a body, to be given back in any case; False when there is none."""
        self._bodies += size
        return self._bodies <= limits.HTTP_BODIES_BYTES

    def give(self, size: int) -> None:
        """The bytes of a body are let go."""
        self._bodies -= size

    async def answer(self, request: Request) -> Reply:
        """The reply to a request. Raises nothing but for cancellation."""
        started = trio.current_time()
        reply = await self.api.handle(request)
        self.log(request, reply, started)
        return reply

    def log(self, request: Request, reply: Reply, started: float) -> None:
        """A request has its answer: a line for it, if that is wished for. `started` is by Trio's clock."""
        if not self._access_log:
            return
        took = round((trio.current_time() - started) * 1000, 3)
        path = request.raw_path.decode("latin-1")
        where = {"method": request.method, "path": path, "status": reply.status, "ms": took}
        access.info("%(method)s %(path)s %(status)s %(ms)s ms", where, extra=where)


def no_room() -> Overloaded:
    """What a request gets when the bodies under way take too much."""
    return Overloaded("too much is being received; send it again")

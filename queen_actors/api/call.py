"""What a route function gets, and what a route is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from msgspec import Struct

from queen_actors.broker import Broker
from queen_actors.config import Settings
from queen_actors.values import SECOND
from queen_actors.wire.binary import CONTENT_TYPE
from queen_actors.wire.frames import parse_query

from .access import Access, Caller
from .messages import Reply, Request


class Call(Struct):
    """One request on its way through its route: `names` are the path's variable pieces, decoded."""

    broker: Broker
    settings: Settings
    request: Request
    caller: Caller
    names: tuple[str, ...]
    requests: Mapping[tuple[str, str, int], int]
    """Requests answered so far: (route, method, status) to how many."""

    @property
    def body(self) -> bytes:
        return self.request.body

    def query(self) -> dict[str, str]:
        """The query string, form-decoded. Raises BadRequest."""
        return parse_query(self.request.query)

    def horizon(self) -> int:
        """The longest delay of a timer, in microseconds."""
        return self.settings.timer_horizon_seconds * SECOND

    @property
    def binary(self) -> bool:
        """Is the body the opt-in binary form of push and transaction (6.5, 5.12)?"""
        return self.request.headers.get("content-type", "").startswith(CONTENT_TYPE)


Handler = Callable[[Call], Awaitable[Reply]]


class Route(Struct, frozen=True):
    """`pattern`: `:name` is one piece between slashes, `*name` any number of them. `family` names whose error shape
    the route has; `waits`: a long poll, which has its own deadline and is let go when the server stops, with what
    `let_go` gives, or else with a 204."""

    method: str
    pattern: str
    handler: Handler
    access: Access
    family: str | None = None
    waits: bool = False
    let_go: Callable[[Call], Reply] | None = None

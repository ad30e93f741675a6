"""Who may call what (`wire-messaging.md`, section 20): the levels of the routes, and the hook for a check of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import Enum

from msgspec import Struct

from .messages import Request


class Access(Enum):
    """What a route needs. A caller's role grants some of them; `PUBLIC` needs no caller at all."""

    PUBLIC = "public"
    ANY = "any"
    """A caller with any role: a WebSocket, whose requests each have a level of their own."""
    READ = "read"
    WRITE = "write"
    READ_WRITE = "read_write"
    ADMIN = "admin"


class Caller(Struct, frozen=True):
    """Who calls. `subject` is stamped on what is pushed (`producerSub`); None without authentication."""

    subject: str | None = None
    expires: float | None = None
    """When the token ends, seconds since the epoch by its own clock; None: never."""


Authorize = Callable[[Request, Access], Awaitable[Caller]]
"""Says who calls, or raises errors.Unauthorized or errors.Forbidden. It is asked once per request, after the route is
known and before its body is looked at; the bearer token is in the request's headers."""

_ANYBODY = Caller()


async def open_to_all(request: Request, access: Access) -> Caller:
    """The default: no authentication, everybody may do everything."""
    return _ANYBODY

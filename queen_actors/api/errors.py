"""Errors as the wire has them (`wire-kv-locks-timers-transactions.md` 1.3, `wire-messaging.md` 4)."""

from __future__ import annotations

from queen_actors.errors import NotFound, Overloaded, QueenError
from queen_actors.wire.frames import Unsuccessful, encode

from .messages import JSON, Reply, value_reply

_FAMILIES = {"kv": "kv", "locks": "kv", "timers": "timers"}  # a lock that cannot be served says so as KV does (3.3)
_REASONS = {"timeout": "timeout"}


class MethodNotAllowed(QueenError):
    """The path exists, but not with this method; `allowed` are the ones that it has."""

    status, code = 405, "method_not_allowed"

    def __init__(self, allowed: tuple[str, ...]) -> None:
        super().__init__("Method Not Allowed")
        self.allowed = allowed


def no_such_route(path: str) -> Reply:
    """The 404 of an unknown route."""
    return value_reply({"error": "Not Found", "code": "no_such_route", "path": path}, 404)


def error_reply(error: QueenError, family: str | None = None) -> Reply:
    """The envelope of an error: `{error, reason, detail}` in the families kv, locks and timers, otherwise
    `{error, code}`. Every 503 says when to come again, and so does every 429."""
    headers = dict(JSON)
    if error.status == 503:
        headers["retry-after"] = "1"
    if isinstance(error, Overloaded):
        headers["retry-after"] = str(error.retry_after)
    if isinstance(error, MethodNotAllowed):
        headers["allow"] = ", ".join(error.allowed)
    return Reply(error.status, _body(error, family), headers)


def _body(error: QueenError, family: str | None) -> bytes:
    if isinstance(error, Unsuccessful):
        return error.body()
    code, reason = error.code, error.reason
    if family is not None and reason is None and error.status in (500, 503):
        prefix = _FAMILIES[family]
        if error.status == 500:
            code, reason = f"{prefix}_error", f"{prefix}_error"
        else:
            code, reason = f"{prefix}_unavailable", f"{prefix}_{_REASONS.get(error.code, 'retry')}"
    if reason is not None:
        return encode({"error": code, "reason": reason, "detail": error.detail})
    if isinstance(error, NotFound) and code == NotFound.code:
        return encode({"error": error.detail})
    return encode({"error": error.detail, "code": code})

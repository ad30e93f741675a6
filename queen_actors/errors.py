"""One small error tree. A verdict that the wire calls an answer (a lost `expect`, a held lock, a rolled-back
transaction) is a value, never one of these.

Every error knows its machine `code`, the HTTP `status` it becomes, an optional stable `reason`, and a human
`detail` that says what to do. (`wire-kv-locks-timers-transactions.md` 1.3, `wire-messaging.md` 4)
"""

from __future__ import annotations


class QueenError(Exception):
    """What every operation of the broker may raise; `str()` is the detail."""

    status = 500
    code = "internal"

    def __init__(
        self, detail: str, *, code: str | None = None, reason: str | None = None, status: int | None = None
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.reason = reason
        if code is not None:
            self.code = code
        if status is not None:
            self.status = status


class BadRequest(QueenError):
    """The caller's fault: the call was malformed, and nothing of it was applied."""

    status, code = 400, "bad_request"


class Unauthorized(QueenError):
    """Who is calling is not known: no token, or one that does not hold."""

    status, code = 401, "unauthorized"


class Forbidden(QueenError):
    """Who is calling may not do this, or the call passes a limit that is set by policy."""

    status, code = 403, "forbidden"


class NotFound(QueenError):
    """The entity that the call names does not exist."""

    status, code = 404, "not_found"


class Conflict(QueenError):
    """The call does not fit what is there now."""

    status, code = 409, "conflict"


class TooLarge(QueenError):
    """A body, a name, a key or a value is over its bound (`limits.py`)."""

    status, code = 413, "too_large"


class Overloaded(QueenError):
    """The broker is working at its bound; the same call may be sent again after `retry_after` seconds."""

    status, code = 429, "overloaded"

    def __init__(self, detail: str, *, retry_after: int = 1, code: str | None = None) -> None:
        super().__init__(detail, code=code)
        self.retry_after = retry_after


class Unavailable(QueenError):
    """The broker cannot do it now: it is starting, stopping, or a deadline passed. Nothing was applied."""

    status, code = 503, "unavailable"


class StorageFull(QueenError):
    """The disk is full: the write was refused before it was committed. Reads go on."""

    status, code = 507, "storage_full"


class StorageFailed(QueenError):
    """The outcome of a write is unknown. The broker stops; the next start recovers from the log."""

    status, code = 503, "storage_failed"


class DataDirectoryError(QueenError):
    """The data directory cannot be opened: in use, of another format, or damaged. The detail says what to do."""

    code = "data_directory"


class InternalError(QueenError):
    """Our fault. The command was refused, and the state is as it was before it."""

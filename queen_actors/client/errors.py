"""Errors of the client's own. All others are the broker's, raised again from its answer (`queen_actors.errors`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from queen_actors import errors
from queen_actors.errors import QueenError

from .encoding import decode
from .results import PushResult


class LockNotHeldError(QueenError):
    """The handle holds no permit, as far as its own clock can tell; nothing was sent."""

    status, code = 409, "lock_not_held"


class LockLostError(QueenError):
    """The permit was lost while a block held it, and the block was cancelled; `reason` says how."""

    status, code = 409, "lock_lost"


class TransactionError(QueenError):
    """The transaction rolled back, and nothing of it happened; `reason` says why (wire 5.4).

    A lost `required` operation is not one of these: it is the answer, a false `TransactionResult`.
    """

    status, code = 409, "transaction_rolled_back"

    def __init__(self, detail: str, *, reason: str | None, status: int, answer: Mapping[str, Any]) -> None:
        super().__init__(detail, reason=reason, status=status)
        self.answer = answer


class PushError(QueenError):
    """Items of a push were refused; `results` has the verdict on each, and the others are stored."""

    status, code = 409, "push_failed"

    def __init__(self, detail: str, results: Sequence[PushResult]) -> None:
        super().__init__(detail)
        self.results = results


class ConnectionFailed(QueenError):
    """The broker could not be reached, or the connection ended before its answer. `sent` says whether the request
    may have reached it: if so, whether it was done is not known."""

    status, code = 503, "connection_failed"

    def __init__(self, detail: str, *, sent: bool) -> None:
        super().__init__(detail, reason="outcome_unknown" if sent else "not_sent")
        self.sent = sent


class AnswerTimeout(ConnectionFailed):
    """No answer came in time; whether the request was done is not known."""

    code = "timeout"


class ProtocolError(QueenError):
    """The answer is not one that a broker gives: something else listens there."""

    status, code = 502, "protocol_error"


_KINDS: dict[int, type[QueenError]] = {
    400: errors.BadRequest,
    401: errors.Unauthorized,
    403: errors.Forbidden,
    404: errors.NotFound,
    409: errors.Conflict,
    413: errors.TooLarge,
    500: errors.InternalError,
    503: errors.Unavailable,
    507: errors.StorageFull,
}


def from_answer(status: int, headers: Mapping[str, str], body: bytes) -> QueenError:
    """The error that an answer of 400 or more tells of; both envelopes of wire 1.3 are read."""
    try:
        told = decode(body)
    except ValueError:
        told = None
    envelope = cast("dict[str, Any]", told) if isinstance(told, dict) else {}
    code, said = envelope.get("code"), envelope.get("error")
    if not isinstance(code, str):  # the first shape: `error` is the code, `detail` the prose
        code = said if isinstance(said, str) and "detail" in envelope else None
    detail = next((text for text in (envelope.get("detail"), said) if isinstance(text, str) and text), None)
    detail = detail or f"the broker answered {status}"
    reason = envelope.get("reason") if isinstance(envelope.get("reason"), str) else None
    if status == 429:
        return errors.Overloaded(detail, retry_after=retry_after(headers), code=code)
    kind = errors.StorageFailed if code == "storage_failed" else _KINDS.get(status, QueenError)
    return kind(detail, code=code, reason=reason, status=status)


def retry_after(headers: Mapping[str, str]) -> int:
    """The header `Retry-After` in whole seconds, 1 when it is missing or unreadable."""
    try:
        return max(0, int(float(headers.get("retry-after", "1"))))
    except ValueError:
        return 1

"""`POST /api/v1/ack`, `POST /api/v1/ack/batch` and lease extension (`wire-messaging.md`, sections 8 and 9)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from queen_actors import limits
from queen_actors.domain.cursor import Ack, AckOutcome, LeaseExtended
from queen_actors.domain.runs import AckRun, RunSettled
from queen_actors.errors import BadRequest, TooLarge
from queen_actors.values import QUEUE_MODE

from .frames import Malformed, check_name, check_utf8, decode, encode, parse_object, parse_pid, zulu_time

_STATUS = {
    "completed": "completed",
    "success": "completed",
    "acked": "completed",
    "ok": "completed",
    "retry": "retry",
    "dlq": "dlq",
}
EXTEND_SECONDS = 60
_LEASE_SECONDS_MAX = 10**9  # an instant that is still a date


class _Ack(Struct, rename="camel", gc=False):
    transaction_id: str
    partition_id: Any = None
    status: Any = None
    error: Any = None
    consumer_group: str | None = None
    lease_id: str | None = None


class _Body(Struct, rename="camel"):
    """Both shapes: a batch, or one ack's own fields."""

    acknowledgments: list[_Ack] | None = None
    transaction_id: str | None = None
    partition_id: Any = None
    status: Any = None
    error: Any = None
    consumer_group: str | None = None
    lease_id: str | None = None


class _Entry(Struct, rename="camel", gc=False):
    index: int
    transaction_id: str
    success: bool
    error: str | None
    lease_released: bool
    dlq: bool
    noop: bool


_body = msgspec.json.Decoder(_Body)


def ack_status(word: Any) -> str:
    """The wire's status word, in any case, as one of completed, failed, retry and dlq: absent is completed, and an
    unknown word is failed, which redelivers (decisions.md)."""
    if word is None or word is True:
        return "completed"
    return _STATUS.get(word.lower(), "failed") if isinstance(word, str) else "failed"


def parse_acks(body: bytes) -> Sequence[Ack]:
    """The acks of either route in the caller's order; both routes take both shapes. Acks of a batch that is done, which
    differ in their transactionId alone, are an `AckRun`. Raises 400 `bad_body`, 400 `bad_request` and 413 `too_large`.
    """
    try:
        check_utf8(body)
        parsed = decode(_body, body)
    except Malformed as wrong:
        raise BadRequest(f"the body is not JSON: {wrong}", code="bad_body") from None
    except msgspec.ValidationError as wrong:
        raise BadRequest(f"the body is not an acknowledgment: {wrong}") from None
    if parsed.acknowledgments is not None:
        entries = parsed.acknowledgments
    elif parsed.transaction_id is not None:
        single = (parsed.partition_id, parsed.status, parsed.error, parsed.consumer_group, parsed.lease_id)
        entries = [_Ack(parsed.transaction_id, *single)]
    else:
        raise BadRequest("an acknowledgment needs a transactionId")
    if len(entries) > limits.ACKS_PER_CALL:
        raise TooLarge(f"{len(entries)} acknowledgments; one call takes at most {limits.ACKS_PER_CALL}")
    return _run(entries, parsed.consumer_group) or [_command(entry, parsed.consumer_group) for entry in entries]


def _run(entries: Sequence[_Ack], group: str | None) -> AckRun | None:
    """The entries as a run, if all but the transactionId is the same text in each: it is looked at once."""
    if not entries:
        return None
    first = entries[0]
    pid, lease_id, status, name = first.partition_id, first.lease_id, first.status, first.consumer_group
    if not (lease_id and isinstance(pid, str) and (status is None or isinstance(status, str))):
        return None
    for entry in entries:
        if (
            entry.lease_id != lease_id
            or entry.partition_id != pid
            or entry.status != status
            or entry.consumer_group != name
            or entry.error is not None
        ):
            return None
    command = _command(first, group)
    if command.pid is None or command.status != "completed":
        return None
    return AckRun(command.pid, command.group, lease_id, [entry.transaction_id for entry in entries])


def _command(entry: _Ack, group: str | None) -> Ack:
    name = entry.consumer_group or group or QUEUE_MODE
    if name is not QUEUE_MODE:
        check_name("consumer group", name)
    error = entry.error if entry.error is None or isinstance(entry.error, str) else encode(entry.error).decode()
    return Ack(
        entry.transaction_id,
        parse_pid(entry.partition_id),
        name,
        ack_status(entry.status),
        entry.lease_id or None,
        error or None,
    )


def render_acks(outcomes: Sequence[AckOutcome]) -> bytes:
    """One entry per ack, in order."""
    if isinstance(outcomes, RunSettled):
        return _render_run(outcomes)
    return encode([_entry(index, outcome) for index, outcome in enumerate(outcomes)])


_HEAD = b'{"index":%d,"transactionId":"'
_TAIL = b'","success":true,"error":null,"leaseReleased":%b,"dlq":false,"noop":false}'
_SEAMS = [(_TAIL % b"false" + b"," if place else b"[") + _HEAD % place for place in range(1_000)]
"""What stands before each transactionId of a run, from the one before it on, whose ack does not end the lease."""


def _render_run(settled: RunSettled) -> bytes:
    """What `encode` makes of the entries. The ids are spelled together: where there is no escape, a quote ends one."""
    spelled = encode(settled.txns)
    txns = spelled[2:-2].split(b'","')
    if b"\\" in spelled or len(txns) > len(_SEAMS):
        return encode([_entry(index, outcome) for index, outcome in enumerate(settled)])
    pieces = [b""] * (2 * len(txns))
    pieces[::2] = _SEAMS[: len(txns)]
    pieces[1::2] = txns
    end = settled.released
    if end is not None and end + 1 < len(txns):
        pieces[2 * end + 2] = _TAIL % b"true" + b"," + _HEAD % (end + 1)
    pieces.append(_TAIL % (b"true" if end == len(txns) - 1 else b"false") + b"]")
    return b"".join(pieces)


def _entry(index: int, outcome: AckOutcome) -> _Entry:
    return _Entry(
        index,
        outcome.txn,
        outcome.success,
        outcome.error,
        outcome.lease_released,
        outcome.dlq,
        outcome.noop,
    )


def parse_extend(body: bytes) -> int:
    """The seconds of a lease extension, at least 1; a body without them asks for 60. Raises BadRequest."""
    seconds: Any = parse_object(body, optional=True).get("seconds")
    if seconds is None:
        return EXTEND_SECONDS
    if type(seconds) is not int and not (isinstance(seconds, float) and seconds.is_integer()):
        raise BadRequest("seconds must be an integer")
    return max(1, min(int(seconds), _LEASE_SECONDS_MAX))


def render_extend(lease_id: str, extended: LeaseExtended) -> bytes:
    """The earliest expiry under three names, because the clients read different ones (9)."""
    expires = None if extended.expires_at is None else zulu_time(extended.expires_at)
    return encode(
        {
            "leaseId": lease_id,
            "success": extended.renewed > 0,
            "renewed": extended.renewed,
            "newExpiresAt": expires,
            "expiresAt": expires,
            "lease_expires_at": expires,
        }
    )


BATCH, ONE, SETTLED = _Body, _Ack, list[_Entry]
"""The records of this module, for the protocol's description."""

"""Dead letters: purge, replay and removal (`wire-messaging.md` 11 and 14)."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from queen_actors.domain.queue import Replayed
from queen_actors.errors import BadRequest

from .frames import check_names, encode, parse_object


class Redirect(Struct, frozen=True):
    """Where a replay goes when not to its own place."""

    queue: str | None
    partition: str | None


def parse_redirect(body: bytes) -> Redirect:
    """The optional body of a replay. Raises BadRequest."""
    fields = parse_object(body, optional=True)
    names: dict[str, str | None] = {}
    for name in ("queue", "partition"):
        value = fields.get(name)
        if value is not None and not isinstance(value, str):
            raise BadRequest(f"{name} must be a string")
        names[name] = value or None
    if names["queue"] is not None:
        check_names(names["queue"], names["partition"])
    return Redirect(names["queue"], names["partition"])


def render_purged(queue: str, group: str | None, deleted: int) -> bytes:
    return encode({"success": True, "queue": queue, "consumerGroup": group, "deleted": deleted})


def render_replayed(replayed: Replayed) -> bytes:
    """`result` is moved, or duplicate: its message was pushed before, and the row stays."""
    outcome, letter = replayed.outcome, replayed.letter
    answer: dict[str, Any] = {
        "success": True,
        "result": "moved" if replayed.removed else "duplicate",
        "queue": replayed.queue,
        "partition": replayed.partition,
        "consumerGroup": letter.group,
        "dlqId": letter.id,
        "originalTransactionId": letter.record.txn,
        "replayedAs": {
            "index": 0,
            "message_id": outcome.message_id,
            "transaction_id": outcome.txn,
            "queueName": outcome.queue,
            "status": outcome.status,
            "offset": outcome.offset,
        },
        "dlqRowRemoved": replayed.removed,
    }
    return encode(answer)


GONE: dict[str, Any] = {"success": False, "result": "gone", "error": "Message not found"}
"""The body of a replay's 404: there is no such dead letter, or no longer."""


def render_removed(pid: str, txn: str, deleted: int) -> bytes:
    return encode({"success": True, "partitionId": pid, "transactionId": txn, "deleted": deleted})


def not_removed(pid: str, txn: str) -> dict[str, Any]:
    """The body of the delete's 404 (decisions.md: a live message of the log cannot be deleted)."""
    return {
        "success": False,
        "error": "Message not found",
        "message": "no dead letter of this message exists; the log's own messages are immutable",
        "partitionId": pid,
        "transactionId": txn,
    }

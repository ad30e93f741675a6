"""Consumer groups (`wire-messaging.md`, section 10)."""

from __future__ import annotations

from typing import Any

from queen_actors.domain.queue import GroupDeleted
from queen_actors.errors import BadRequest
from queen_actors.values import parse_instant

from .frames import Unsuccessful, encode, parse_object, zulu_time


def parse_seek(body: bytes) -> int | None:
    """Where to: an instant in microseconds, or None for the end, which a body without fields means too (decisions.md).

    Raises Unsuccessful.
    """
    try:
        fields = parse_object(body, optional=True)
    except BadRequest as wrong:
        raise Unsuccessful(wrong.detail, code=wrong.code) from None
    if not fields or fields.get("toEnd") is True:
        return None
    timestamp = fields.get("timestamp")
    if not isinstance(timestamp, str) or not timestamp:
        raise Unsuccessful("Must specify toEnd=true or a timestamp")
    try:
        return parse_instant(timestamp)
    except ValueError:
        raise Unsuccessful(f"timestamp must be an ISO 8601 instant: {timestamp[:80]!r}") from None


def render_sought(group: str, queue: str, partition: str | None, to: int | None, updated: int) -> bytes:
    return encode(
        {
            "success": True,
            "consumerGroup": group,
            "queueName": queue,
            "partitionName": partition,
            "seekToEnd": to is None,
            "targetTimestamp": None if to is None else zulu_time(to),
            "partitionsUpdated": updated,
            "updated": True,
        }
    )


def render_seek_not_found(group: str, queue: str, partition: str | None) -> bytes:
    """The body of the seek's 404."""
    error = "Queue not found or has no partitions" if partition is None else "Partition not found"
    return encode(
        {"success": False, "error": error, "consumerGroup": group, "queueName": queue, "partitionsUpdated": 0}
    )


def parse_subscription(body: bytes) -> int:
    """The instant from which a group's later first contacts start. Raises BadRequest."""
    timestamp = parse_object(body, optional=True).get("subscriptionTimestamp")
    if not isinstance(timestamp, str):
        raise BadRequest("subscriptionTimestamp is required: an ISO 8601 instant")
    try:
        return parse_instant(timestamp)
    except ValueError:
        raise BadRequest(f"subscriptionTimestamp must be an ISO 8601 instant: {timestamp[:80]!r}") from None


def render_subscription(group: str, to: int, rows: int) -> bytes:
    return encode({"success": True, "consumerGroup": group, "newTimestamp": zulu_time(to), "rowsUpdated": rows})


def render_group_deleted(group: str, queue: str | None, deleted: GroupDeleted) -> bytes:
    """A group that nobody knew is deleted too, with zero counts."""
    answer: dict[str, Any] = {
        "success": True,
        "consumerGroup": group,
        "queueName": queue,
        "deletedPartitions": deleted.partitions,
        "metadataDeleted": deleted.registrations > 0,
        "queues": deleted.queues,
    }
    return encode(answer)

"""Groups and queues as a whole: what operators and dashboards read (`wire-messaging.md` 10, 13 and 19)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from queen_actors.domain.overview import BesideQueues, GroupLine, PartitionLag, QueueDepth, QueueLine
from queen_actors.values import SECOND

from .frames import encode, zulu_time
from .queue import options_of

LAGGING_SECONDS = 300
"""A group whose oldest unfinished message is older than this is lagging (10)."""


def _seconds(now: int, oldest: int | None) -> float:
    return 0 if oldest is None else round(max(now - oldest, 0) / SECOND, 3)


def _time(at: int | None) -> str | None:
    return None if at is None else zulu_time(at)


def render_groups(lines: Iterable[GroupLine], now: int) -> bytes:
    """`GET /api/v1/consumer-groups`: a bare array."""
    return encode([_group(line, now) for line in lines])


def _group(line: GroupLine, now: int) -> dict[str, Any]:
    registered = line.registration
    behind = _seconds(now, line.oldest)
    return {
        "name": line.group,
        "topics": [line.queue],
        "queueName": line.queue,
        "members": line.members,
        "partitionCursors": line.cursors,
        "partitionsWithLag": line.lagging,
        "totalLag": line.lag,
        "maxTimeLag": behind,
        "state": "Lagging" if behind > LAGGING_SECONDS else "Stable",
        "storage": "segments",
        "kind": "queen",
        "subscriptionMode": None if registered is None else registered.mode,
        "subscriptionTimestamp": _time(registered.from_ts) if registered is not None and registered.from_ts else None,
        "subscriptionCreatedAt": None if registered is None else zulu_time(registered.created_at),
        "conflation": registered is not None and registered.conflation,
    }


def render_group(lags: Sequence[PartitionLag], conflating: Sequence[str], now: int) -> bytes:
    """`GET /api/v1/consumer-groups/:g`: keyed by queue."""
    queues: dict[str, dict[str, Any]] = {}
    for lag in lags:
        entry = queues.setdefault(lag.queue, {"conflation": lag.queue in conflating, "kind": "queen", "partitions": []})
        entry["partitions"].append(
            {
                "partition": lag.partition,
                "workerId": lag.lease_id or None,
                "lastConsumedAt": None,
                "totalConsumed": lag.committed + 1,
                "offsetLag": lag.lag,
                "timeLagSeconds": _seconds(now, lag.oldest),
                "leaseActive": lag.leased,
            }
        )
    return encode(queues)


def render_lagging(lags: Iterable[PartitionLag], now: int, seconds: int) -> bytes:
    """`GET /api/v1/consumer-groups/lagging`: what is behind by at least so much, oldest first."""
    behind = [lag for lag in lags if lag.oldest is not None and now - lag.oldest >= seconds * SECOND]
    behind.sort(key=lambda lag: lag.oldest or 0)
    return encode([_lagging(lag, now) for lag in behind])


def _lagging(lag: PartitionLag, now: int) -> dict[str, Any]:
    behind = _seconds(now, lag.oldest)
    return {
        "consumer_group": lag.group,
        "queue_name": lag.queue,
        "partition_name": lag.partition,
        "partition_id": str(lag.pid),
        "worker_id": lag.lease_id or None,
        "kind": "queen",
        "offset_lag": lag.lag,
        "time_lag_seconds": behind,
        "lag_hours": round(behind / 3600, 3),
        "oldest_unconsumed_at": _time(lag.oldest),
        "last_consumed_at": None,
    }


def _messages(line: QueueLine) -> dict[str, int]:
    return {
        "total": line.total,
        "pending": line.pending,
        "processing": line.processing,
        "completed": line.total - line.pending,
        "deadLetter": line.dead_letter,
    }


def queue_line(line: QueueLine, retained: int | None = None) -> dict[str, Any]:
    """A row of `GET /api/v1/resources/queues`."""
    view = line.view
    return {
        "id": view.uid,
        "name": view.name,
        "queue": view.name,
        "namespace": view.namespace,
        "task": view.task,
        "storage": "segments",
        "partitions": line.partitions,
        "segments": {"segments": 0, "messages": line.total},
        "messages": _messages(line),
        "retainedBytes": retained,
        "options": options_of(view.options),
        "createdAt": zulu_time(view.created_at),
    }


def render_queues(lines: Iterable[QueueLine], beside: BesideQueues) -> bytes:
    """`GET /api/v1/resources/queues`, newest first; how many keys and pending timers there are beside them."""
    return encode(
        {
            "queues": [queue_line(line) for line in lines],
            "kvRows": beside.keys,
            "kvBytes": beside.key_bytes,
            "timerRows": beside.timers,
            "timerBytes": beside.timer_bytes,
        }
    )


def render_depth(depth: QueueDepth) -> bytes:
    """`GET /api/v1/resources/queues/:q/depth`. A conflating group takes one message of each partition at a time."""
    waiting = [partition for partition in depth.partitions if partition.pending]
    ready = [partition for partition in depth.partitions if partition.ready]
    pending = sum(partition.pending for partition in waiting)
    available = sum(partition.ready for partition in ready)
    return encode(
        {
            "queue": depth.queue,
            "group": depth.group,
            "pending": pending,
            "processing": sum(partition.processing for partition in waiting),
            "ready": available,
            "partitionsPending": len(waiting),
            "partitionsReady": len(ready),
            "conflation": depth.conflation,
            "effectivePending": len(waiting) if depth.conflation else pending,
            "effectiveReady": len(ready) if depth.conflation else available,
            "partitions": [
                {
                    "partition": partition.name,
                    "pending": partition.pending,
                    "processing": partition.processing,
                    "ready": partition.ready,
                }
                for partition in depth.partitions
            ],
        }
    )


def _spread(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {"avg": 0, "median": 0, "min": 0, "max": 0}
    return {
        "avg": round(sum(values) / len(values), 3),
        "median": median(values),
        "min": min(values),
        "max": max(values),
    }


def render_overview(lines: Sequence[QueueLine], groups: Sequence[GroupLine], now: int) -> bytes:
    """`GET /api/v1/resources/overview`."""
    messages = {name: sum(_messages(line)[name] for line in lines) for name in _messages_of_none}
    return encode(
        {
            "queues": len(lines),
            "partitions": sum(line.partitions for line in lines),
            "namespaces": len({line.view.namespace for line in lines if line.view.namespace}),
            "tasks": len({line.view.task for line in lines if line.view.task}),
            "messages": {**messages, "failed": 0},
            "lag": {
                "time": _spread([_seconds(now, group.oldest) for group in groups]),
                "offset": _spread([group.lag for group in groups]),
            },
            "timestamp": zulu_time(now),
            "statsAge": 0,
        }
    )


_messages_of_none = ("total", "pending", "processing", "completed", "deadLetter")


def render_labels(lines: Iterable[QueueLine], label: str) -> bytes:
    """`GET /api/v1/resources/namespaces` and `/tasks`; `label` is namespace or task."""
    rows: dict[str, dict[str, Any]] = {}
    for line in lines:
        name: str = getattr(line.view, label)
        row = rows.setdefault(name, {label: name, "queues": 0, "partitions": 0, "messages": {"total": 0, "pending": 0}})
        row["queues"] += 1
        row["partitions"] += line.partitions
        row["messages"]["total"] += line.total
        row["messages"]["pending"] += line.pending
    return encode({f"{label}s": [rows[name] for name in sorted(rows)]})

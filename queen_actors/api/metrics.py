"""Metrics and the status pages of the clients' dashboards (`wire-messaging.md` 19)."""

from __future__ import annotations

import resource
import time
from collections.abc import Mapping

from queen_actors import __version__
from queen_actors.broker import Broker
from queen_actors.errors import NotFound
from queen_actors.values import SECOND
from queen_actors.wire.frames import zulu_time
from queen_actors.wire.metrics import Sample, render_json, render_prometheus
from queen_actors.wire.overview import queue_line
from queen_actors.wire.queue import options_of

from .access import Access
from .call import Call, Route
from .messages import Reply, json_reply, value_reply

_STARTED = time.monotonic()
_TEXT = {"content-type": "text/plain; version=0.0.4; charset=utf-8"}


def _rss() -> int:
    """Resident memory in bytes: now where the system tells, else the most it has been. Never waits: what is read is
    no file on a disk."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _gauges(broker: Broker) -> Mapping[str, int]:
    found = broker.statistics()
    return {
        "queues": found.queues,
        "partitions": found.partitions,
        "partitions_active": found.partitions_active,
        "namespaces": found.namespaces,
        "locks": found.locks,
        "leases": found.leases,
        "log_position": found.log.position,
        "log_committed": found.log.committed,
        "log_backlog_bytes": found.log.backlog,
        "log_groups": found.log.groups,
        "log_full": int(found.log.full),
        "journal_bytes": found.store.journal_bytes,
        "segment_bytes": found.store.segment_bytes,
        "segments": found.store.segments,
    }


def _sample(call: Call) -> Sample:
    times = resource.getrusage(resource.RUSAGE_SELF)
    return Sample(
        version=__version__,
        uptime_seconds=time.monotonic() - _STARTED,
        rss_bytes=_rss(),
        cpu_seconds=times.ru_utime + times.ru_stime,
        counters=call.broker.counts.values(),
        gauges=_gauges(call.broker),
        requests=call.requests,
    )


async def metrics(call: Call) -> Reply:
    return json_reply(render_json(_sample(call)))


async def prometheus(call: Call) -> Reply:
    return Reply(200, render_prometheus(_sample(call)), _TEXT)


async def status(call: Call) -> Reply:
    lines = await call.broker.overview.queues()
    return value_reply(
        {
            "status": "healthy",
            "version": __version__,
            "queues": [queue_line(line) for line in lines],
            "counters": call.broker.counts.values(),
            "gauges": _gauges(call.broker),
            "timestamp": zulu_time(call.broker.clock.now()),
        }
    )


async def status_queues(call: Call) -> Reply:
    return value_reply({"queues": [queue_line(line) for line in await call.broker.overview.queues()]})


async def status_queue(call: Call) -> Reply:
    (name,) = call.names
    view = await call.broker.queue_view(name)
    if view is None:
        raise NotFound("Queue not found")
    counts = ("total", "pending", "processing", "completed", "dead_letter")
    totals = {
        "deadLetter" if count == "dead_letter" else count: sum(getattr(part, count) for part in view.partitions)
        for count in counts
    }
    queue = {
        "id": view.uid,
        "name": view.name,
        "namespace": view.namespace,
        "task": view.task,
        "priority": view.options.priority,
        "createdAt": zulu_time(view.created_at),
        "config": options_of(view.options),
    }
    partitions = [{"id": str(part.pid), "name": part.name, "messages": part.total} for part in view.partitions]
    return value_reply({"queue": queue, "partitions": partitions, "totals": {"messages": totals}})


_INTERVALS = {"minute": 60, "hour": 3600, "day": 86_400}


async def analytics(call: Call) -> Reply:
    """Messages kept in the log, by the interval in which they were appended, over the last 24 of them."""
    wanted = call.query().get("interval") or "hour"
    interval = wanted if wanted in _INTERVALS else "hour"
    step = _INTERVALS[interval] * SECOND
    now = call.broker.clock.now()
    first = now // step * step - 23 * step
    counts = await call.broker.reads.appended(first, step, 24)
    points = [{"timestamp": zulu_time(first + place * step), "messages": n} for place, n in enumerate(counts)]
    return value_reply({"dataPoints": points, "interval": interval, "from": zulu_time(first), "to": zulu_time(now)})


async def refresh(call: Call) -> Reply:
    """Every count is exact at all times: there is nothing to refresh."""
    return value_reply({"success": True, "refreshed": False, "message": "counts are always exact here"})


async def process(call: Call) -> Reply:
    """System and worker metrics: there is one process, which is the worker."""
    sample = _sample(call)
    return value_reply(
        {
            "timestamp": zulu_time(call.broker.clock.now()),
            "uptime": round(sample.uptime_seconds, 3),
            "memory": {"rss": sample.rss_bytes},
            "cpu": {"seconds": round(sample.cpu_seconds, 3)},
            "counters": sample.counters,
            "gauges": sample.gauges,
        }
    )


ROUTES = (
    Route("GET", "/metrics", metrics, Access.PUBLIC),
    Route("GET", "/metrics/prometheus", prometheus, Access.PUBLIC),
    Route("GET", "/api/v1/status", status, Access.READ),
    Route("GET", "/api/v1/status/queues", status_queues, Access.READ),
    Route("GET", "/api/v1/status/queues/*queue", status_queue, Access.READ),
    Route("GET", "/api/v1/status/analytics", analytics, Access.READ),
    Route("POST", "/api/v1/stats/refresh", refresh, Access.ADMIN),
    Route("GET", "/api/v1/analytics/system-metrics", process, Access.READ),
    Route("GET", "/api/v1/analytics/worker-metrics", process, Access.READ),
)

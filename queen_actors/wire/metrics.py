"""Metrics: as JSON, which the clients read, and as Prometheus text (`wire-messaging.md` 19)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from .frames import encode

_HELP = {
    "messages_pushed": "Messages appended to partitions, by pushes, transactions, timers and replays",
    "messages_duplicate": "Pushed messages whose transactionId was known",
    "messages_delivered": "Messages handed to consumers, redeliveries included",
    "pops_empty": "Pops that were answered with nothing",
    "acks_completed": "Messages acknowledged as completed",
    "acks_failed": "Messages given back: failed, retry or dlq",
    "acks_rejected": "Acknowledgments that were refused",
    "dead_letters": "Messages dead-lettered",
    "keys_written": "KV writes, permits of locks included",
    "keys_expired": "Keys swept after their lifetime",
    "timers_scheduled": "Timers scheduled or moved",
    "timers_fired": "Timers that became messages",
    "transactions_committed": "Transactions committed",
    "transactions_rolled_back": "Transactions rolled back",
}
_GAUGES = {
    "queues": "Queues",
    "partitions": "Partitions, packed ones included",
    "partitions_active": "Partitions in memory",
    "namespaces": "KV namespaces with keys",
    "locks": "Locks with a permit given out",
    "leases": "Leases on messages",
    "log_position": "Steps decided",
    "log_committed": "Steps durable",
    "log_backlog_bytes": "Bytes that wait for the disk",
    "log_groups": "Group commits since the start",
    "log_full": "1 while the disk is full and writes are refused",
    "journal_bytes": "Size of the journal",
    "segment_bytes": "Size of the segments",
    "segments": "Segments",
}


class Sample(Struct, frozen=True):
    """The state of a broker at one instant. `requests`: (route, method, status) to how many."""

    version: str
    uptime_seconds: float
    rss_bytes: int
    cpu_seconds: float
    counters: Mapping[str, int]
    gauges: Mapping[str, int]
    requests: Mapping[tuple[str, str, int], int]


def render_json(sample: Sample) -> bytes:
    """`GET /metrics`: JSON, as the clients expect it there."""
    total = sum(sample.requests.values())
    counters = sample.counters
    answer: dict[str, Any] = {
        "version": sample.version,
        "uptime": round(sample.uptime_seconds, 3),
        "requests": {"total": total, "rate": round(total / max(sample.uptime_seconds, 1e-3), 3)},
        "messages": {
            "total": counters["messages_pushed"],
            "rate": round(counters["messages_pushed"] / max(sample.uptime_seconds, 1e-3), 3),
            "delivered": counters["messages_delivered"],
            "duplicate": counters["messages_duplicate"],
        },
        "memory": {"rss": sample.rss_bytes},
        "cpu": {"seconds": round(sample.cpu_seconds, 3)},
        "counters": counters,
        "gauges": sample.gauges,
    }
    return encode(answer)


class _Samples(Collector):
    def __init__(self, sample: Sample) -> None:
        self._sample = sample

    def collect(self) -> Iterable[Metric]:
        return self._families()

    def _families(self) -> Iterator[Metric]:
        sample = self._sample
        for name, value in sample.counters.items():
            yield CounterMetricFamily(f"queen_{name}", _HELP[name], value=value)
        for name, value in sample.gauges.items():
            yield GaugeMetricFamily(f"queen_{name}", _GAUGES[name], value=value)
        requests = CounterMetricFamily("queen_http_requests", "Requests answered", labels=("route", "method", "status"))
        for (route, method, status), count in sorted(sample.requests.items()):
            requests.add_metric((route, method, str(status)), count)
        yield requests
        yield GaugeMetricFamily("queen_uptime_seconds", "Seconds since the start", value=sample.uptime_seconds)
        yield GaugeMetricFamily("process_resident_memory_bytes", "Resident memory", value=sample.rss_bytes)
        yield CounterMetricFamily("process_cpu_seconds", "CPU time, user and system", value=sample.cpu_seconds)


def render_prometheus(sample: Sample) -> bytes:
    """`GET /metrics/prometheus`: the text format, version 0.0.4."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Samples(sample))
    return generate_latest(registry)

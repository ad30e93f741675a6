"""`/metrics` and `/metrics/prometheus` (wire-messaging.md 19)."""

from __future__ import annotations

import trio
from prometheus_client.parser import text_string_to_metric_families
from trio.testing import MockClock
from wire_kit import Wire, schedule


async def work(wire: Wire) -> None:
    """Some of everything that is counted."""
    await wire.push("q", 1, 2, 3)
    await wire.push("q", 1)
    first, second, _ = await wire.pop("q")
    await wire.ack((first, "completed"), (second, "dlq"))
    await wire.ack({"transactionId": "ghost", "partitionId": first["partitionId"], "status": "completed"})
    assert await wire.pop("empty") == []
    await wire.put("k", 1)
    await wire.timers(schedule("later", "k", 1, 3_600_000))
    await wire.transaction(operations=[{"type": "push", "queue": "q", "payload": 4}])
    await wire.request("GET", "/api/v1/resources/queues/nothing")
    await wire.request("GET", "/a/path/of/nobody")


async def test_metrics_as_json(wire: Wire) -> None:
    """JSON, because the clients read it; the numbers are those of the work."""
    await work(wire)
    found = await wire.ok("GET", "/metrics")
    assert found["uptime"] > 0
    assert found["memory"]["rss"] > 1_000_000
    assert found["requests"]["total"] > 10
    assert (found["messages"]["total"], found["messages"]["duplicate"], found["messages"]["delivered"]) == (4, 1, 3)
    expected = {
        "messages_pushed": 4,
        "messages_duplicate": 1,
        "messages_delivered": 3,
        "pops_empty": 1,
        "acks_completed": 1,
        "acks_failed": 1,
        "acks_rejected": 1,
        "dead_letters": 1,
        "keys_written": 1,
        "timers_scheduled": 1,
        "timers_fired": 0,
        "transactions_committed": 1,
        "transactions_rolled_back": 0,
    }
    assert {name: found["counters"][name] for name in expected} == expected
    assert (found["gauges"]["queues"], found["gauges"]["leases"]) == (2, 0)
    assert found["gauges"]["partitions"] == 1


async def test_metrics_as_prometheus_text(timed: Wire, autojump_clock: MockClock) -> None:
    """It parses, every family has a help and a type, the numbers are the JSON's, and no name that a caller chose is a
    label: a scanner cannot make series."""
    await work(timed)
    json = await timed.ok("GET", "/metrics")
    answer = await timed.request("GET", "/metrics/prometheus")
    assert (answer.status, answer.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    families = {family.name: family for family in text_string_to_metric_families(answer.body.decode())}
    assert all(family.documentation and family.type in ("counter", "gauge") for family in families.values())
    values = {
        sample.name: sample.value for family in families.values() for sample in family.samples if not sample.labels
    }
    for name, value in json["counters"].items():
        assert values[f"queen_{name}_total"] == value
    for name, value in json["gauges"].items():
        assert values[f"queen_{name}"] == value
    requests = families["queen_http_requests"].samples
    told = {(s.labels["route"], s.labels["method"], s.labels["status"]): s.value for s in requests}
    assert told["/api/v1/push", "POST", "201"] == 2
    assert told["/api/v1/resources/queues/*queue", "GET", "404"] == 1
    assert told["", "", "404"] == 1
    assert not any("nobody" in route or "nothing" in route for route, _, _ in told)
    assert values["process_resident_memory_bytes"] > 1_000_000
    assert values["process_cpu_seconds_total"] > 0


async def test_metrics_wait_for_nothing(timed: Wire, autojump_clock: MockClock) -> None:
    """They are answered in the turn in which they are asked for: no time passes, however busy the machine is."""
    await timed.push("q", 1)
    began = trio.current_time()
    for _ in range(20):
        await timed.ok("GET", "/metrics")
        assert (await timed.request("GET", "/metrics/prometheus")).status == 200
        await timed.ok("GET", "/api/v1/status")
    assert trio.current_time() == began

"""The SDK's operator calls and offset reads, with the broker's part of them asserted."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
from queen import Queen

NAMES = ["Bed&Breakfast", 'say "hi"', "пример", "\U0001f451 queen", "n" * 200, "<b>'bold'</b>"]
"""Those that the SDK can carry in a path: it leaves `/`, `?` and `#` as they are (22, item 12)."""


async def groups(queen: Queen) -> None:
    """List, detail, lagging, delete in one queue, and move the subscription."""
    for name in ("o-a", "o-b"):
        await queen.queue(name).push([{"data": n} for n in range(3)])
        messages = await queen.queue(name).group("o-g").subscription_mode("all").batch(2).pop()
        await queen.ack(messages[0], True, {"group": "o-g"})
    listed: Any = await queen.admin.list_consumer_groups()  # the SDK says that it is an object
    rows = [row for row in listed if row["name"] == "o-g"]
    assert {row["queueName"]: (row["totalLag"], row["members"], row["state"]) for row in rows} == {
        "o-a": (2, 1, "Stable"),
        "o-b": (2, 1, "Stable"),
    }
    detail = await queen.admin.get_consumer_group("o-g")
    assert detail["o-a"]["partitions"][0]["offsetLag"] == 2
    lagging: Any = await queen.admin.get_lagging_consumers(0)
    assert {row["queue_name"] for row in lagging if row["consumer_group"] == "o-g"} == {"o-a", "o-b"}
    lagging = await queen.admin.get_lagging_consumers()
    assert [row for row in lagging if row["consumer_group"] == "o-g"] == []
    deleted = await queen.admin.delete_consumer_group_for_queue("o-g", "o-a")
    assert (deleted["success"], deleted["deletedPartitions"], deleted["queues"]) == (True, 1, ["o-a"])
    assert set(await queen.admin.get_consumer_group("o-g")) == {"o-b"}
    moved = await queen.update_consumer_group_timestamp("o-g", "2026-01-01T00:00:00Z")
    assert moved["rowsUpdated"] == 1


async def resources(queen: Queen) -> None:
    """Overview, namespaces, tasks, queues, one queue, depth, status pages, analytics, metrics."""
    await queen.queue("o-res").namespace("o-ns").task("o-task").create()
    await queen.queue("o-res").push([{"data": n} for n in range(4)])
    assert (await queen.admin.get_overview())["messages"]["total"] >= 4
    names = (await queen.admin.get_namespaces())["namespaces"]
    assert {"o-ns"} <= {row["namespace"] for row in names}
    assert {"o-task"} <= {row["task"] for row in (await queen.admin.get_tasks())["tasks"]}
    listed = (await queen.admin.list_queues(limit=10))["queues"]
    assert next(row for row in listed if row["name"] == "o-res")["messages"]["pending"] == 4
    depth = await queen.admin.get_queue_depth("o-res")
    assert (depth["pending"], depth["ready"]) == (4, 4)
    assert (await queen.admin.get_status())["status"] == "healthy"
    assert any(row["name"] == "o-res" for row in (await queen.admin.get_queue_stats())["queues"])
    assert (await queen.admin.get_queue_detail("o-res"))["totals"]["messages"]["total"] == 4
    assert (await queen.admin.get_analytics(interval="hour"))["dataPoints"]
    metrics: Any = await queen.admin.metrics()
    assert metrics["messages"]["total"] >= 4
    assert (await queen.admin.get_system_metrics())["memory"]["rss"] > 0
    assert (await queen.admin.get_worker_metrics())["cpu"]["seconds"] > 0
    assert (await queen.admin.refresh_consumer_stats())["success"] is True


async def messages_and_dead_letters(queen: Queen) -> None:
    """List, read, retry and delete by message; the DLQ with its filters."""
    for p in ("a", "b"):
        await queen.queue("o-msg").partition(p).push([{"transactionId": f"t{n}", "data": f"{p}{n}"} for n in range(3)])
    listed = await queen.admin.list_messages(queue="o-msg", partition="a", status="pending", limit=2)
    assert [row["data"] for row in listed["messages"]] == ["a2", "a1"]
    for p in ("a", "b"):
        found = await queen.queue("o-msg").partition(p).batch(3).pop()
        await queen.ack(found[:2], "dlq", {"error": f"bad {p}"})  # which ends the lease: the third is delivered again
    dlq = await queen.queue("o-msg").partition("a").dlq().limit(1).get()
    assert (dlq["total"], len(dlq["messages"]), dlq["messages"][0]["errorMessage"]) == (2, 1, "bad a")
    letter = dlq["messages"][0]
    later = await queen.queue("o-msg").dlq().from_(letter["failedAt"]).to(letter["failedAt"]).get()
    assert letter["id"] in [row["id"] for row in later["messages"]]
    retried = await queen.admin.retry_message(letter["partitionId"], letter["transactionId"])
    assert (retried["result"], retried["partition"]) == ("moved", "a")
    assert (await queen.queue("o-msg").dlq().get())["total"] == 3
    other = (await queen.queue("o-msg").partition("b").dlq().get())["messages"][0]
    assert (await queen.admin.delete_message(other["partitionId"], other["transactionId"]))["deleted"] == 1
    assert (await queen.queue("o-msg").dlq().get())["total"] == 2
    again = await queen.queue("o-msg").partition("a").batch(5).pop()
    assert [m["data"] for m in again] == ["a2", letter["data"]]


async def traces(queen: Queen) -> None:
    """Written by a consumer, read by name and by message."""

    async def process(message: Any) -> None:
        await message["trace"]({"traceName": ["o-order", "o-customer"], "eventType": "step", "data": {"text": "hi"}})

    await queen.queue("o-trace").push([{"transactionId": "t", "data": 1}])
    await queen.queue("o-trace").each().limit(1).consume(process)
    by_name = await queen.admin.get_traces_by_name("o-order")
    (row,) = by_name["traces"]
    assert (row["data"], row["transactionId"], row["eventType"]) == ({"text": "hi"}, "t", "step")
    names = {row["trace_name"] for row in (await queen.admin.get_trace_names(limit=100))["trace_names"]}
    assert {"o-order", "o-customer"} <= names
    assert (await queen.admin.get_traces_for_message(row["partitionId"], "t"))["total"] == 1


async def offset_reads(queen: Queen) -> None:
    """`fetch` reads whole partitions without a lease, from an offset, across calls; after retention from what is left;
    `changed_since` names what was written, and its safe time is the next call's start."""
    payload = "x" * 1000
    for p in ("a", "b"):
        await queen.queue("o-read").partition(p).push([{"data": [n, payload]} for n in range(50)])
    read = await queen.queue("o-read").fetch(["a", "b"], max_bytes=8000)
    assert [record["payload"][0] for record in read["a"]["records"]] == list(range(50))
    assert (read["b"]["highWatermark"], read["b"]["logStartOffset"], read["b"]["nextOffset"]) == (50, 0, 50)
    rest = await queen.queue("o-read").fetch("a", offsets={"a": 48})
    assert [record["offset"] for record in rest["a"]["records"]] == [48, 49]
    assert (await queen.queue("o-read").fetch("nobody"))["nobody"]["records"] == []
    changed = await queen.queue("o-read").changed_since()
    assert [row["name"] for row in changed["partitions"]] == ["a", "b"]
    await queen.queue("o-read").partition("b").push([{"data": 1}])
    again = await queen.queue("o-read").changed_since(changed["safeTime"])
    assert [(row["name"], row["lastOffset"]) for row in again["partitions"]] == [("b", 50)]
    await queen.queue("o-old").config({"retentionEnabled": True, "retentionSeconds": 3}).create()
    await queen.queue("o-old").push([{"data": "old"}])
    await asyncio.sleep(3.3)
    await queen.queue("o-old").push([{"data": "young"}])
    kept = (await queen.queue("o-old").fetch("Default"))["Default"]
    assert [record["payload"] for record in kept["records"]] == ["young"]
    assert kept["logStartOffset"] == 1


async def names(queen: Queen) -> None:
    """A70 through the SDK: names with signs, quotes, other scripts and lengths, on everything that takes one."""
    for name in NAMES:
        queue = queen.queue(f"o {name}")
        await queue.config({"retryLimit": 0}).create()
        await queen.queue(f"o {name}").partition(name).push([{"transactionId": name, "data": name}])
        found = await queen.queue(f"o {name}").partition(name).group(name).subscription_mode("all").pop()
        assert [(m["partition"], m["transactionId"], m["data"]) for m in found] == [(name, name, name)]
        assert (await queen.admin.get_queue(f"o {name}"))["partitions"][0]["name"] == name
        assert (await queen.admin.get_queue_depth(f"o {name}", name))["processing"] == 1
        assert (await queen.admin.get_message(found[0]["partitionId"], name))["data"] == name
        await queen.ack(found[0], False, {"group": name, "error": name})
        dlq = await queen.queue(f"o {name}").partition(name).dlq(name).get()
        assert [row["errorMessage"] for row in dlq["messages"]] == [name]
        assert (await queen.admin.retry_message(found[0]["partitionId"], name))["result"] == "moved"
        assert (await queen.kv.put("o-names", name, name, forever=True))["applied"]
        assert (await queen.kv.get("o-names", name))["value"] == name
        async with queen.lock(f"o {name}", ttl_seconds=30) as lock:
            assert lock.held
        await queen.timer(f"o {name}").key(name).payload(name).after_ms(60_000).schedule()
        assert (await queen.admin.seek_consumer_group(name, f"o {name}", {"toEnd": True}))["success"]
        assert (await queen.delete_consumer_group(name))["success"]
        await queen.queue(f"o {name}").delete()


async def binary_with_names_and_duplicates(queen: Queen) -> None:
    """The binary fast path carries names and answers item by item, like JSON; what it cannot carry goes as JSON."""
    for options in ({}, {"push_compression": True}):
        other = Queen(urls=queen._config["urls"], binary_push=True, **options)
        queue = f"o-bin {len(options)} пример"
        items = [{"transactionId": f"{n}", "data": {"n": n, "big": 2**53 + 1, "text": "\U0001f451"}} for n in range(50)]
        first = await other.queue(queue).partition('say "hi"').push(items)
        again = await other.queue(queue).partition('say "hi"').push([*items[:2], {"transactionId": "x", "data": None}])
        assert [row["status"] for row in again] == ["duplicate", "duplicate", "queued"]
        assert again[1]["message_id"] == first[1]["message_id"]
        trace = "8f14e45f-ceea-467f-a0e6-9d5f6b0d3f10"
        await other.queue(queue).push([{"transactionId": "traced", "data": 1, "traceId": trace}])
        found = await queen.queue(queue).partition('say "hi"').batch(100).pop()
        assert [m["data"] for m in found] == [*(item["data"] for item in items), None]
        (traced,) = await queen.queue(queue).batch(5).pop()
        assert traced["traceId"] == trace
        tx = other.transaction().queue(queue).partition("out").push([{"transactionId": "tx", "data": {"from": "tx"}}])
        result = await tx.ack(found[50], "completed").commit()
        assert result
        assert [m["data"] for m in await queen.queue(queue).partition("out").pop()] == [{"from": "tx"}]
        assert await queen.queue(queue).partition('say "hi"').wait(False).pop() == []
        await other.close()


async def odd_bodies(queen: Queen) -> None:
    """What other clients send where nothing is to be said: no body, {}, [] and null, with any content type."""
    await queen.queue("o-odd").push([{"data": 1}])
    (message,) = await queen.queue("o-odd").group("o-odd").subscription_mode("all").pop()
    url = queen._config["urls"][0]
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        for body in (b"", b"{}", b"[]", b"null"):
            for path in (
                f"/api/v1/lease/{message['leaseId']}/extend",
                "/api/v1/consumer-groups/o-odd-2/queues/o-odd/seek",
                "/api/v1/stats/refresh",
            ):
                answer = await client.post(url + path, content=body, headers={"content-type": "application/json"})
                assert answer.status_code == 200, (path, body, answer.text)
                assert answer.json()["success"] is True
        answer = await client.get(f"{url}/api/v1/resources/queues", headers={"content-type": "application/json"})
        assert answer.status_code == 200

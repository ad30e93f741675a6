"""What the reference's live tests check: wire-messaging.md, section 23, one scenario for each row but the streams'
(`stream_queries.py`)."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime, timedelta
from typing import Any

from crash.stopwatch import Stopwatch
from queen import Queen


def _data(messages: list[Any]) -> list[Any]:
    return [message["data"] for message in messages]


async def _consume(queue: Any, **chosen: Any) -> list[Any]:
    """Consume one by one until nothing more comes; the messages. To the SDK, a worker that is slow is idle too."""
    seen: list[Any] = []

    async def process(message: Any) -> None:
        seen.append(message)

    await queue.each().idle_millis(3000).timeout_millis(200).consume(process)
    return seen


async def row_01_push(queen: Queen) -> None:
    """queued; a duplicate in the same partition has the same id and offset, in another one it is queued; null, {} and
    2 MB come back; so does an encrypted payload; a buffered push is invisible before its flush."""
    item = {"transactionId": "same", "data": 1}
    (first,) = await queen.queue("s-push").partition("a").push([item])
    (again,) = await queen.queue("s-push").partition("a").push([item])
    (elsewhere,) = await queen.queue("s-push").partition("b").push([item])
    assert (first["status"], again["status"], elsewhere["status"]) == ("queued", "duplicate", "queued")
    assert (again["message_id"], again["offset"]) == (first["message_id"], first["offset"])
    payloads = [None, {}, {"text": "x" * 2_000_000}]
    await queen.queue("s-payloads").push([{"data": payload} for payload in payloads])
    assert _data(await queen.queue("s-payloads").batch(5).pop()) == payloads
    await queen.queue("s-secret").config({"encryptionEnabled": True}).create()
    await queen.queue("s-secret").push([{"data": {"card": "4111"}}])
    (message,) = await queen.queue("s-secret").pop()
    assert message["data"] == {"card": "4111"}
    buffered = queen.queue("s-buffer").buffer({"message_count": 100, "time_millis": 60_000})
    await buffered.push([{"data": 1}])
    assert await queen.queue("s-buffer").wait(False).pop() == []
    await queen.flush_all_buffers()
    assert _data(await queen.queue("s-buffer").pop()) == [1]


async def row_02_delay_and_window(queen: Queen) -> None:
    """`delayedProcessing` 2 and `windowBuffer` 2: nothing at once; after 2.5 s the message, and all three together."""
    await queen.queue("s-delay").config({"delayedProcessing": 2}).create()
    await queen.queue("s-window").config({"windowBuffer": 2}).create()
    await queen.queue("s-delay").push([{"data": "late"}])
    for n in range(3):
        await queen.queue("s-window").push([{"data": n}])
    assert await queen.queue("s-delay").wait(False).pop() == []
    assert await queen.queue("s-window").batch(5).wait(False).pop() == []
    await asyncio.sleep(2.5)
    assert _data(await queen.queue("s-delay").wait(False).pop()) == ["late"]
    assert _data(await queen.queue("s-window").batch(5).wait(False).pop()) == [0, 1, 2]


async def row_03_pop(queen: Queen) -> None:
    """Empty is []; a long poll wakes on a push; acked, it does not come back; a lease that ends brings it back; queue
    mode sees what a group has consumed."""
    assert await queen.queue("s-pop").wait(False).pop() == []
    poll = asyncio.ensure_future(queen.queue("s-pop").timeout_millis(5000).pop())
    await asyncio.sleep(0.2)
    watch = Stopwatch(int(os.environ["SERVER_PID"]))
    await queen.queue("s-pop").push([{"data": 1}])
    (message,) = await poll
    assert watch.seconds() < 1
    assert (await queen.ack(message))["success"]
    assert await queen.queue("s-pop").wait(False).pop() == []
    await queen.queue("s-lease").config({"leaseTime": 3}).create()
    await queen.queue("s-lease").push([{"data": 1}])
    await queen.queue("s-lease").pop()
    assert await queen.queue("s-lease").wait(False).pop() == []
    await asyncio.sleep(3.2)
    (again,) = await queen.queue("s-lease").wait(False).pop()
    assert again["deliveryAttempt"] >= 2
    await queen.queue("s-both").push([{"data": 1}])
    (mine,) = await queen.queue("s-both").group("g").subscription_mode("all").pop()
    await queen.ack(mine, True, {"group": "g"})
    assert _data(await queen.queue("s-both").wait(False).pop()) == [1]


async def row_04_consume(queen: Queen) -> None:
    """By queue, namespace, task, partition, group, and group with partition; order inside a partition under concurrent
    workers; caps by batch and partitions; one lease id for a wide pop, and each message with its own ids."""
    name = "s-ns.s-task.consume"
    for p in ("a", "b"):
        await queen.queue(name).partition(p).push([{"data": f"{p}{n}"} for n in range(3)])
    everything = {f"{p}{n}" for p in "ab" for n in range(3)}
    *everywhere, pinned, unnamed = await asyncio.gather(
        _consume(queen.queue(name).group("by-queue").subscription_mode("all")),
        _consume(queen.queue().namespace("s-ns").group("by-namespace").subscription_mode("all")),
        _consume(queen.queue().task("s-task").group("by-task").subscription_mode("all")),
        _consume(queen.queue().namespace("s-ns").task("s-task").group("by-both").subscription_mode("all")),
        _consume(queen.queue(name).partition("a").group("by-partition").subscription_mode("all")),
        _consume(queen.queue(name).partition("b")),
    )
    assert [set(_data(found)) for found in everywhere] == [everything] * 4
    assert _data(pinned) == ["a0", "a1", "a2"]
    assert _data(unnamed) == ["b0", "b1", "b2"]
    order: dict[str, list[int]] = {}

    async def process(message: Any) -> None:
        await asyncio.sleep(0.001)
        order.setdefault(message["partition"], []).append(message["data"])

    for p in range(4):
        await queen.queue("s-order").partition(f"p{p}").push([{"data": n} for n in range(15)])
    await queen.queue("s-order").each().concurrency(8).batch(4).idle_millis(3000).timeout_millis(200).consume(process)
    assert order == {f"p{p}": list(range(15)) for p in range(4)}
    for p in range(5):
        await queen.queue("s-wide").partition(f"p{p}").push([{"data": n} for n in range(100)])
    ten = await queen.queue("s-wide").batch(10).partitions(5).pop()
    assert len(ten) == 10
    wide = await queen.queue("s-wide").group("g").subscription_mode("all").batch(500).partitions(5).pop()
    assert (len(wide), len({m["leaseId"] for m in wide}), len({m["partitionId"] for m in wide})) == (500, 1, 5)
    assert len({m["id"] for m in wide}) == 500
    assert {m["consumerGroup"] for m in wide} == {"g"}
    for p in range(4):
        await queen.queue("s-one").partition(f"p{p}").push([{"data": n} for n in range(5)])
    assert len(await queen.queue("s-one").batch(100).pop()) == 5


async def row_05_ack(queen: Queen) -> None:
    """An ack commits what lies below it; part of a batch; an expired lease; below the cursor; ghosts; a whole batch
    nacked on a spent budget."""
    queue = queen.queue("s-ack")
    await queue.config({"leaseTime": 3, "retryLimit": 0}).create()
    await queen.queue("s-ack").push([{"data": n} for n in range(6)])
    messages = await queen.queue("s-ack").batch(6).pop()
    assert (await queen.ack(messages[2], True))["success"], "0 and 1 with it"
    below = await queen.ack(messages[0], True)
    assert below["success"]
    refused = await queen.ack(messages[1], False)
    assert not refused["success"]
    assert "unresolvable" in refused["error"]
    assert "committed" in refused["error"]
    ghost = await queen.ack({**messages[3], "transactionId": "ghost"}, True)
    assert not ghost["success"]
    await asyncio.sleep(3.2)
    late = await queen.ack(messages[3], True)
    assert (late["success"], late["error"]) == (False, "invalid or expired lease")
    again = await queen.queue("s-ack").batch(6).pop()
    assert _data(again) == [3, 4, 5]
    assert (await queen.ack(again, False, {"error": "all of it"}))["success"]
    assert await queen.queue("s-ack").wait(False).pop() == []
    dlq = await queen.queue("s-ack").dlq().limit(10).get()
    assert sorted(_data(dlq["messages"])) == [3, 4, 5]


async def row_06_dlq(queen: Queen) -> None:
    """`retryLimit` 1: after two failed deliveries the message is there with its error; another group is not touched."""
    await queen.queue("s-dlq").config({"retryLimit": 1, "dlqAfterMaxRetries": True}).create()
    await queen.queue("s-dlq").push([{"data": "bad"}])
    await queen.queue("s-dlq").group("other").subscription_mode("all").pop()
    for _ in range(2):
        (message,) = await queen.queue("s-dlq").group("g").subscription_mode("all").pop()
        await queen.ack(message, False, {"group": "g", "error": "it is bad"})
    dlq = await queen.queue("s-dlq").dlq("g").limit(10).get()
    (letter,) = dlq["messages"]
    assert (dlq["total"], letter["data"], letter["errorMessage"]) == (1, "bad", "it is bad")
    assert letter["consumerGroup"] == "g"
    assert (await queen.queue("s-dlq").dlq("other").get())["total"] == 0
    depth = await queen.admin.get_queue_depth("s-dlq", "other")
    assert (depth["pending"], depth["processing"]) == (1, 1)


async def row_07_subscription(queen: Queen) -> None:
    """`new` skips history and gets what comes; `all`; from now; from an instant, at least what came after it."""
    queue = "s-sub"
    await queen.queue(queue).push([{"data": f"old{n}"} for n in range(3)])
    assert await queen.queue(queue).group("new").subscription_mode("new").wait(False).pop() == []
    assert await queen.queue(queue).group("now").subscription_from("now").wait(False).pop() == []
    await asyncio.sleep(0.01)
    between = datetime.now(UTC).isoformat()
    await asyncio.sleep(0.01)
    await queen.queue(queue).push([{"data": f"late{n}"} for n in range(3)])
    late = ["late0", "late1", "late2"]
    assert _data(await queen.queue(queue).group("new").batch(10).pop()) == late
    assert _data(await queen.queue(queue).group("now").batch(10).pop()) == late
    assert _data(await queen.queue(queue).group("at").subscription_from(between).batch(10).pop()) == late
    assert len(await queen.queue(queue).group("all").subscription_mode("all").batch(10).pop()) == 6


async def row_08_group_admin(queen: Queen) -> None:
    """Deleted and made again it starts afresh; sought back one hour it is delivered again, and a live lease is void."""
    await queen.queue("s-group").push([{"data": n} for n in range(3)])
    group = queen.queue("s-group").group("s-g").subscription_mode("all").batch(5)
    await queen.ack(await group.pop(), True, {"group": "s-g"})
    await queen.delete_consumer_group("s-g")
    held = await queen.queue("s-group").group("s-g").subscription_mode("all").batch(5).pop()
    assert _data(held) == [0, 1, 2]
    hour = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    assert (await queen.admin.seek_consumer_group("s-g", "s-group", {"timestamp": hour}))["success"]
    refused = await queen.ack(held, True, {"group": "s-g"})
    assert not refused["success"]
    assert _data(await queen.queue("s-group").group("s-g").batch(5).pop()) == [0, 1, 2]


async def row_09_docs(queen: Queen) -> None:
    """A duplicate answers the first id; a new group of mode `all` replays; after consuming one by one the group is
    empty while queue mode still sees the message."""
    item = {"transactionId": "order-1", "data": 1}
    (first,) = await queen.queue("s-docs").push([item])
    (again,) = await queen.queue("s-docs").push([item])
    assert again["message_id"] == first["message_id"]
    assert _data(await _consume(queen.queue("s-docs").group("g").subscription_mode("all"))) == [1]
    assert await queen.queue("s-docs").group("g").wait(False).pop() == []
    assert _data(await queen.queue("s-docs").group("replay").subscription_mode("all").wait(False).pop()) == [1]
    assert _data(await queen.queue("s-docs").wait(False).pop()) == [1]


async def row_10_retention(queen: Queen) -> None:
    """100 messages are gone when their seconds are over: `retentionSeconds` with its gate, and `maxWaitTimeSeconds`."""
    for name, options in (
        ("s-age", {"retentionEnabled": True, "retentionSeconds": 1}),
        ("s-wait", {"maxWaitTimeSeconds": 1}),
    ):
        await queen.queue(name).config(options).create()
        await queen.queue(name).push([{"data": n} for n in range(100)])
    await asyncio.sleep(1.5)
    for name in ("s-age", "s-wait"):
        assert await queen.queue(name).batch(200).wait(False).pop() == []


async def row_11_semantics(queen: Queen) -> None:
    """Dotted names give namespace and task; order; one lease over partitions, settled by one ack."""
    await queen.queue("s-dot.mail.x").push([{"data": n} for n in range(10)])
    view = await queen.admin.get_queue("s-dot.mail.x")
    assert (view["namespace"], view["task"]) == ("s-dot", "mail")
    assert _data(await queen.queue("s-dot.mail.x").batch(10).pop()) == list(range(10))
    for p in "abc":
        await queen.queue("s-multi").partition(p).push([{"data": n} for n in range(2)])
    messages = await queen.queue("s-multi").batch(10).partitions(3).pop()
    assert len({m["leaseId"] for m in messages}) == 1
    assert (await queen.ack(messages))["success"]
    assert (await queen.admin.get_queue_depth("s-multi"))["pending"] == 0


async def row_12_load(queen: Queen) -> None:
    """Many messages over many partitions, drained by workers of one group in order (`benchmarks/drain.py` has 100,000
    over 5,000)."""
    partitions, each = 200, 20
    for p in range(partitions):
        await queen.queue("s-load").partition(f"p{p}").push([{"data": n} for n in range(each)])
    seen: dict[str, list[int]] = {}

    async def work() -> None:
        while True:
            messages = await queen.queue("s-load").group("g").batch(500).partitions(32).timeout_millis(500).pop()
            if not messages:
                return
            for message in messages:
                seen.setdefault(message["partition"], []).append(message["data"])
            assert (await queen.ack(messages, True, {"group": "g"}))["success"]

    await asyncio.gather(*(work() for _ in range(4)))
    assert seen == {f"p{p}": list(range(each)) for p in range(partitions)}


async def row_14_auth(queen: Queen) -> None:
    """Without a JWT the body's `producerSub` is ignored."""
    item = {"queue": "s-auth", "payload": 1, "producerSub": "somebody"}
    await queen._http_client.post("/api/v1/push", {"items": [item]})
    (message,) = await queen.queue("s-auth").pop()
    assert message["producerSub"] is None

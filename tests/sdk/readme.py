"""What the SDK's README shows, feature by feature, with the broker's part of it asserted."""

from __future__ import annotations

import asyncio
import os
import time
from datetime import UTC, datetime
from typing import Any

from crash.stopwatch import Stopwatch
from queen import Queen


def _data(messages: list[Any]) -> list[Any]:
    return [message["data"] for message in messages]


async def quick_start(queen: Queen) -> None:
    """create, push, consume with `.each()`: acked one by one, and nothing is left."""
    seen: list[Any] = []

    async def process(message: Any) -> None:
        seen.append(message["data"])

    await queen.queue("r-quick").create()
    await queen.queue("r-quick").push([{"data": {"n": n}} for n in range(5)])
    await queen.queue("r-quick").each().limit(5).consume(process)
    assert seen == [{"n": n} for n in range(5)]
    assert await queen.queue("r-quick").wait(False).pop() == []


async def batches(queen: Queen) -> None:
    """A handler of lists, acked as a batch; strict order over the deliveries."""
    sizes: list[int] = []
    seen: list[int] = []

    async def process(messages: list[Any]) -> None:
        sizes.append(len(messages))
        seen.extend(_data(messages))

    await queen.queue("r-batch").push([{"data": n} for n in range(25)])
    await queen.queue("r-batch").batch(10).limit(25).consume(process)
    assert (sizes, seen) == ([10, 10, 5], list(range(25)))


async def a_failing_handler_ends_in_the_dlq(queen: Queen) -> None:
    """`retryLimit` 1: delivered twice, then dead-lettered with the handler's error; the next message goes on."""
    attempts: list[tuple[Any, int]] = []

    async def process(message: Any) -> None:
        attempts.append((message["data"], message["deliveryAttempt"]))
        if message["data"] == "bad":
            raise ValueError("cannot process")

    queue = queen.queue("r-dlq")
    await queue.config({"retryLimit": 1, "dlqAfterMaxRetries": True}).create()
    await queen.queue("r-dlq").push([{"data": "bad"}, {"data": "good"}])
    await queen.queue("r-dlq").each().batch(2).idle_millis(3000).timeout_millis(200).consume(process)
    assert attempts[:2] == [("bad", 1), ("bad", 2)]
    assert ("good", 1) in attempts
    dlq = await queen.queue("r-dlq").dlq().limit(10).get()
    assert dlq["total"] == 1
    (letter,) = dlq["messages"]
    assert (letter["data"], letter["errorMessage"]) == ("bad", "cannot process")


async def dlq_by_ack(queen: Queen) -> None:
    """An ack with `dlq` files it, for its group only."""
    await queen.queue("r-poison").push([{"data": 1}])
    (message,) = await queen.queue("r-poison").group("g").subscription_mode("all").pop()
    done = await queen.ack(message, "dlq", {"group": "g", "error": "poison"})
    assert done["success"]
    dlq = await queen.queue("r-poison").dlq("g").limit(10).get()
    assert (dlq["total"], dlq["messages"][0]["errorMessage"]) == (1, "poison")
    assert (await queen.queue("r-poison").dlq("h").get())["total"] == 0
    assert len(await queen.queue("r-poison").group("h").subscription_mode("all").pop()) == 1


async def groups(queen: Queen) -> None:
    """Two workers of one group share; another group and queue mode each get everything."""
    seen: dict[str, list[int]] = {"a": [], "b": [], "c": []}

    def worker(name: str) -> Any:
        async def process(message: Any) -> None:
            seen[name].append(message["data"])
            await asyncio.sleep(0.01)

        return process

    for n in range(12):
        await queen.queue("r-groups").partition(f"p{n % 4}").push([{"data": n}])
    shared = queen.queue("r-groups").group("workers").subscription_mode("all").each().batch(1)
    other = queen.queue("r-groups").group("analytics").subscription_mode("all").each().limit(12).consume(worker("c"))
    pair = [shared.idle_millis(3000).timeout_millis(150).consume(worker(name)) for name in ("a", "b")]
    await asyncio.gather(*(_wait(one) for one in (*pair, other)))
    assert sorted(seen["a"] + seen["b"]) == list(range(12))
    assert sorted(seen["c"]) == list(range(12))
    assert seen["a"]
    assert seen["b"]
    assert len(await queen.queue("r-groups").batch(20).partitions(4).pop()) == 12


async def _wait(builder: Any) -> None:
    await builder


async def concurrent_workers_keep_the_order(queen: Queen) -> None:
    """Ten at once over five partitions: strict order inside each."""
    seen: dict[str, list[int]] = {}

    async def process(message: Any) -> None:
        await asyncio.sleep(0.001)
        seen.setdefault(message["partition"], []).append(message["data"])

    for p in range(5):
        await queen.queue("r-order").partition(f"p{p}").push([{"data": n} for n in range(20)])
    await queen.queue("r-order").each().concurrency(10).batch(5).idle_millis(3000).timeout_millis(200).consume(process)
    assert seen == {f"p{p}": list(range(20)) for p in range(5)}


async def subscription_modes(queen: Queen) -> None:
    """All by default, `new` skips history, `subscription_from` starts at an instant."""
    queue = "r-modes"
    await queen.queue(queue).push([{"data": "old"}])
    assert _data(await queen.queue(queue).group("default").pop()) == ["old"]
    assert await queen.queue(queue).group("new").subscription_mode("new").wait(False).pop() == []
    assert await queen.queue(queue).group("now").subscription_from("now").wait(False).pop() == []
    await asyncio.sleep(0.01)
    between = datetime.now(UTC).isoformat().replace("+00:00", "Z")
    await asyncio.sleep(0.01)
    await queen.queue(queue).push([{"data": "late"}])
    assert _data(await queen.queue(queue).group("new").pop()) == ["late"]
    assert _data(await queen.queue(queue).group("now").pop()) == ["late"]
    assert _data(await queen.queue(queue).group("replay").subscription_from(between).pop()) == ["late"]
    assert _data(await queen.queue(queue).group("all").subscription_mode("all").batch(5).pop()) == ["old", "late"]


async def buffered_push(queen: Queen) -> None:
    """Invisible before the flush; a flush sends all of it, in order."""
    queue = queen.queue("r-buffer").buffer({"message_count": 500, "time_millis": 60_000})
    for n in range(50):
        result = await queue.push([{"data": n}])
        assert result["buffered"]
    assert await queen.queue("r-buffer").wait(False).pop() == []
    await queen.flush_all_buffers()
    assert _data(await queen.queue("r-buffer").batch(100).pop()) == list(range(50))
    small = queen.queue("r-buffer2").buffer({"message_count": 10, "time_millis": 50})
    for n in range(10):
        await small.push([{"data": n}])
    assert len(await queen.queue("r-buffer2").batch(100).timeout_millis(2000).pop()) == 10


async def duplicates_and_callbacks(queen: Queen) -> None:
    """The original's id, offset and the duplicate callback; null, empty and large payloads come back."""
    told: list[str] = []

    async def on_success(items: Any) -> None:
        told.append("success")

    async def on_duplicate(items: Any, error: Exception) -> None:
        told.append("duplicate")

    item = {"transactionId": "unique-id-123", "data": {"value": 42}}
    (first,) = await queen.queue("r-dup").push([item]).on_success(on_success)
    await queen.queue("r-dup").push([item]).on_duplicate(on_duplicate)
    assert told == ["success", "duplicate"]
    (again,) = await queen.queue("r-dup").push([item])
    assert (again["status"], again["message_id"], again["offset"]) == ("duplicate", first["message_id"], 0)
    (elsewhere,) = await queen.queue("r-dup").partition("other").push([item])
    assert elsewhere["status"] == "queued"
    payloads = [None, {}, "x" * 2_000_000]
    await queen.queue("r-payloads").push([{"data": payload} for payload in payloads])
    assert _data(await queen.queue("r-payloads").batch(3).pop()) == payloads


async def manual_acks(queen: Queen) -> None:
    """pop, ack one, ack many, nack; rejected acks carry the broker's words."""
    await queen.queue("r-acks").config({"leaseTime": 30, "retryLimit": 3}).create()
    await queen.queue("r-acks").push([{"data": n} for n in range(4)])
    messages = await queen.queue("r-acks").batch(4).pop()
    assert (await queen.ack(messages[0], True))["success"]
    assert (await queen.ack(messages[0], True))["success"], "below the cursor: a no-op"
    refused = await queen.ack(messages[0], False)
    assert not refused["success"]
    assert "unresolvable" in refused["error"]
    assert "committed" in refused["error"]
    assert (await queen.ack(messages[1], False, {"error": "again"}))["success"]
    late = await queen.ack(messages[2], True)
    assert (late["success"], late["error"]) == (False, "invalid or expired lease")
    again = await queen.queue("r-acks").batch(4).pop()
    assert [(m["data"], m["deliveryAttempt"]) for m in again] == [(1, 2), (2, 2), (3, 2)]
    done = await queen.ack(again, True)
    assert done["success"]
    assert await queen.queue("r-acks").wait(False).pop() == []


async def leases(queen: Queen) -> None:
    """Expiry redelivers; `renew` keeps it; a consumer that renews holds a long job through a short lease."""
    await queen.queue("r-lease").config({"leaseTime": 3, "retryLimit": 0}).create()
    await queen.queue("r-lease").push([{"data": 1}])
    (message,) = await queen.queue("r-lease").pop()
    (again,) = await queen.queue("r-lease").timeout_millis(9000).pop()
    assert again["deliveryAttempt"] == 2
    renewed = await queen.renew(again)
    assert renewed["success"]
    assert renewed["renewed"] == 1
    assert not (await queen.renew(message["leaseId"]))["success"]
    await asyncio.sleep(3.1)
    assert await queen.queue("r-lease").wait(False).pop() == []
    assert (await queen.ack(again))["success"]

    runs: list[int] = []

    async def slow(message: Any) -> None:
        runs.append(message["deliveryAttempt"])
        await asyncio.sleep(4.5)

    await queen.queue("r-lease").push([{"data": 2}])
    await queen.queue("r-lease").each().batch(1).renew_lease(True, 500).limit(1).consume(slow)
    assert runs == [1]
    assert await queen.queue("r-lease").wait(False).pop() == []


async def many_partitions(queen: Queen) -> None:
    """One lease over several partitions, capped by the batch; no `partitions` is one partition; one renew for all."""
    for p in range(5):
        await queen.queue("r-many").partition(f"p{p}").push([{"data": n} for n in range(20)])
    messages = await queen.queue("r-many").batch(50).partitions(5).pop()
    assert len(messages) == 50
    assert len({m["leaseId"] for m in messages}) == 1
    assert len({m["partitionId"] for m in messages}) == 3
    renewed = await queen.renew(messages)
    assert [one["renewed"] for one in renewed] == [3]
    assert (await queen.ack(messages))["success"]
    for p in range(4):
        await queen.queue("r-one").partition(f"p{p}").push([{"data": n} for n in range(5)])
    assert len(await queen.queue("r-one").batch(100).pop()) == 5


async def commit_on_delivery(queen: Queen) -> None:
    """Nothing to ack, and it does not come back."""
    await queen.queue("r-commit").push([{"data": 1}])
    (message,) = await queen.queue("r-commit").group("g").commit_on_delivery().pop()
    assert (message["data"], message["leaseId"]) == (1, "")
    assert await queen.queue("r-commit").group("g").wait(False).pop() == []


async def long_poll(queen: Queen) -> None:
    """A parked pop gets what is pushed within the instant; an empty one ends at its time."""
    await queen.queue("r-poll").create()
    started, watch = time.monotonic(), Stopwatch(int(os.environ["SERVER_PID"]))
    assert await queen.queue("r-poll").timeout_millis(300).pop() == []
    assert time.monotonic() - started > 0.25
    assert watch.seconds() < 1
    poll = asyncio.ensure_future(_pop(queen, "r-poll"))
    await asyncio.sleep(0.2)
    watch = Stopwatch(int(os.environ["SERVER_PID"]))
    await queen.queue("r-poll").push([{"data": 1}])
    assert _data(await poll) == [1]
    assert watch.seconds() < 0.5


async def _pop(queen: Queen, queue: str) -> list[Any]:
    messages: list[Any] = await queen.queue(queue).timeout_millis(5000).pop()
    return messages


async def a_cancelled_pop_takes_nothing(queen: Queen) -> None:
    """Its connection is gone: the next push goes to the next pop, as attempt 1."""
    await queen.queue("r-cancel").create()
    poll = asyncio.ensure_future(_pop(queen, "r-cancel"))
    await asyncio.sleep(0.2)
    poll.cancel()
    await asyncio.sleep(1)  # a busy server needs a moment to see that
    await queen.queue("r-cancel").push([{"data": 1}])
    (message,) = await _pop(queen, "r-cancel")
    assert message["deliveryAttempt"] == 1


async def discovery(queen: Queen) -> None:
    """Consume by namespace and task, given or taken from a dotted name."""
    await queen.queue("r-disc").namespace("r-ns").task("r-task").create()
    await queen.queue("r-disc").push([{"data": 1}])
    await queen.queue("r-dotted.mail.x").push([{"data": 2}])
    assert _data(await queen.queue().namespace("r-ns").pop()) == [1]
    assert _data(await queen.queue().namespace("r-dotted").task("mail").pop()) == [2]
    seen: list[int] = []

    async def process(message: Any) -> None:
        seen.append(message["data"])

    await queen.queue("r-disc").push([{"data": 3}])
    await queen.queue().task("r-task").group("g").subscription_mode("all").each().limit(2).consume(process)
    assert seen == [1, 3]


async def delays_and_windows(queen: Queen) -> None:
    """`delayedProcessing` hides a message, `windowBuffer` waits for quiet."""
    await queen.queue("r-delay").config({"delayedProcessing": 3}).create()
    await queen.queue("r-window").config({"windowBuffer": 3}).create()
    started = time.monotonic()
    await queen.queue("r-delay").push([{"data": 1}])
    await queen.queue("r-window").push([{"data": n} for n in range(3)])
    for queue in ("r-delay", "r-window"):
        assert await queen.queue(queue).wait(False).pop() == []
    for queue, count in (("r-delay", 1), ("r-window", 3)):
        assert len(await queen.queue(queue).batch(10).timeout_millis(9000).pop()) == count
        assert time.monotonic() - started > 2.95

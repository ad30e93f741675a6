"""What the SDK's README shows beyond push and consume: transactions, keys, locks, groups, administration."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from queen import Queen
from queen.errors import LockNotHeldError


def _data(messages: list[Any]) -> list[Any]:
    return [message["data"] for message in messages]


async def transaction_with_everything(queen: Queen) -> None:
    """ack, push, keys, a gate and a timer commit together; a lost gate is returned and leaves nothing."""
    await queen.queue("r-in").push([{"data": {"id": 7}}])
    (message,) = await queen.queue("r-in").pop()

    def bundle(message: Any) -> Any:
        return (
            queen.transaction()
            .once("r-dedup", "evt:7", ttl_seconds=86_400)
            .queue("r-out")
            .partition("customer-7")
            .push([{"transactionId": f"receipt-{message['transactionId']}", "data": {"receipt": 7}}])
            .ack(message, "completed")
            .kv.put("r-orders", "order-7", {"status": "paid"}, ttl=timedelta(days=30))
            .kv.incr("r-orders", "count", delta=1, forever=True)
            .timer("r-out")
            .key("order:7:expire")
            .payload({"oid": 7})
            .after_ms(300)
            .schedule()
        )

    result = await bundle(message).commit()
    assert result
    kinds = [element["type"] for element in result["results"]]
    assert sorted(kinds) == ["ack", "kv", "kv", "kv", "push", "timer"]
    assert await queen.queue("r-in").wait(False).pop() == []
    assert (await queen.kv.get("r-orders", "order-7"))["value"] == {"status": "paid"}
    (receipt,) = await queen.queue("r-out").partition("customer-7").pop()
    assert receipt["data"] == {"receipt": 7}
    (fired,) = await queen.queue("r-out").timeout_millis(3000).pop()
    assert fired["data"] == {"oid": 7}

    await queen.queue("r-in").push([{"data": {"id": 7}}])
    (message,) = await queen.queue("r-in").pop()
    lost = await bundle(message).commit()
    assert not lost
    assert (lost["reason"], lost["kvReason"], lost["value"]) == ("kv_precondition", "exists", True)
    assert (await queen.kv.get("r-orders", "count"))["value"] == 1
    assert (await queen.ack(message))["success"], "the lease is still ours"


async def a_transaction_that_is_refused(queen: Queen) -> None:
    """Another refusal than a lost gate is raised, with words of the broker; nothing of it happened."""
    await queen.queue("r-ref").push([{"transactionId": "known", "data": 1}])
    tx = queen.transaction().queue("r-ref").push([{"transactionId": "known", "data": 2}])
    tx = tx.kv.put("r-ref", "k", 1, forever=True)
    with pytest.raises(Exception, match="rolled back"):
        await tx.commit()
    assert not await queen.kv.get("r-ref", "k")


async def tracing(queen: Queen) -> None:
    """A consumed message can be traced."""
    said: list[Any] = []

    async def process(message: Any) -> None:
        said.append(await message["trace"]({"traceName": "order-1", "eventType": "info", "data": {"text": "hi"}}))

    await queen.queue("r-trace").push([{"data": 1}])
    await queen.queue("r-trace").each().limit(1).consume(process)
    assert said[0]["success"]


async def delete_and_recreate_a_group(queen: Queen) -> None:
    """It starts afresh; what it had leased is refused."""
    await queen.queue("r-del").push([{"data": n} for n in range(3)])
    old = await queen.queue("r-del").group("r-del-g").subscription_mode("all").batch(10).pop()
    assert len(old) == 3
    await queen.delete_consumer_group("r-del-g")
    assert not (await queen.ack(old, True, {"group": "r-del-g"}))["success"]
    new = await queen.queue("r-del").group("r-del-g").subscription_mode("all").batch(10).pop()
    assert [(m["data"], m["deliveryAttempt"]) for m in new] == [(0, 1), (1, 1), (2, 1)]
    await queen.delete_consumer_group("nobody-ever")


async def seek(queen: Queen) -> None:
    """Back one hour delivers again and voids the lease; to the end delivers nothing old."""
    await queen.queue("r-seek").push([{"data": n} for n in range(3)])
    held = await queen.queue("r-seek").group("r-seek-g").subscription_mode("all").batch(10).pop()
    hour = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    sought = await queen.admin.seek_consumer_group("r-seek-g", "r-seek", {"timestamp": hour})
    assert (sought["success"], sought["partitionsUpdated"]) == (True, 1)
    refused = await queen.ack(held[0], True, {"group": "r-seek-g"})
    assert (refused["success"], refused["error"]) == (False, "invalid or expired lease")
    assert len(await queen.queue("r-seek").group("r-seek-g").batch(10).pop()) == 3
    await queen.admin.seek_consumer_group("r-seek-g", "r-seek", {"toEnd": True})
    assert await queen.queue("r-seek").group("r-seek-g").wait(False).pop() == []
    await queen.admin.seek_consumer_group("r-seek-g", "r-seek", {"timestamp": hour})
    await queen.admin.seek_consumer_group("r-seek-g", "r-seek")  # no options, so no body: to the end
    assert await queen.queue("r-seek").group("r-seek-g").wait(False).pop() == []
    moved = await queen.update_consumer_group_timestamp("r-seek-g", hour)
    assert (moved["success"], moved["rowsUpdated"]) == (True, 1)


async def queue_admin(queen: Queen) -> None:
    """Options are read back, messages have a state, delete takes everything and may be repeated."""
    await queen.queue("r-admin").config({"lease_time": 60, "retryLimit": 2, "priority": 5}).create()
    view = await queen.admin.get_queue("r-admin")
    assert (view["options"]["leaseTime"], view["options"]["retryLimit"]) == (60, 2)
    await queen.queue("r-admin").push([{"transactionId": "t", "data": 1}])
    (message,) = await queen.queue("r-admin").pop()
    assert (await queen.admin.get_message(message["partitionId"], "t"))["status"] == "processing"
    await queen.ack(message)
    assert (await queen.admin.get_message(message["partitionId"], "t"))["status"] == "completed"
    assert (await queen.admin.health())["status"] == "healthy"
    await queen.queue("r-admin").delete()
    await queen.queue("r-admin").delete()
    (pushed,) = await queen.queue("r-admin").push([{"transactionId": "t", "data": 2}])
    assert (pushed["status"], pushed["offset"]) == ("queued", 0)


async def conflation(queen: Queen) -> None:
    """The newest value of a partition; an empty poll echoes too, or the SDK would raise."""
    queue = queen.queue("r-conf").group("g").subscription_mode("all").conflation()
    await queen.queue("r-conf").push([{"data": n} for n in range(5)])
    (message,) = await queue.pop()
    assert message["data"] == 4
    await queen.ack(message, True, {"group": "g"})
    assert await queue.wait(False).pop() == []


async def locks_as_context(queen: Queen) -> None:
    """`async with`, `run` and a waiting acquire; LockNotHeldError when somebody else has it."""
    async with queen.lock("r-ctx", ttl=timedelta(minutes=1)) as lock:
        assert lock.held
        with pytest.raises(LockNotHeldError):
            await queen.lock("r-ctx", ttl_seconds=30).__aenter__()

    async def work(lock: Any) -> str:
        return f"token {lock.token}"

    done = await queen.lock("r-ctx", ttl_seconds=30).run(work)
    assert done["acquired"]
    assert done["value"].startswith("token ")
    assert not (await queen.locks.get("r-ctx"))["held"]


async def walking_keys(queen: Queen) -> None:
    """`list_all` follows the cursor over pages."""
    for start in range(0, 250, 50):
        await queen.kv.batch(
            [
                {"op": "put", "ns": "r-walk", "key": f"saga:{n:03}", "value": n, "forever": True}
                for n in range(start, start + 50)
            ]
        )
    rows = await queen.kv.list_all("r-walk", "saga:")
    assert [row["value"] for row in rows] == list(range(250))


async def supervision(queen: Queen) -> None:
    """A supervised consumer publishes its state through keys."""

    async def process(message: Any) -> None:
        return None

    await queen.queue("r-sup").push([{"data": 1}])
    await queen.queue("r-sup").supervision({"group": "r-sup-prod"}).each().limit(1).consume(process)
    rows = await queen.kv.list_all("queen-supervisor", "r-sup-prod/")
    assert {row["key"].rsplit("/", 1)[-1] for row in rows} >= {"head"}


async def binary_forms(queen: Queen) -> None:
    """Binary pushes and transactions, plain and compressed, and framed pops: the same calls, the same results."""
    for options in ({}, {"push_compression": True, "framed_pop": True}):
        name = f"r-binary{len(options)}"
        other = Queen(urls=queen._config["urls"], binary_push=True, **options)
        items = [{"transactionId": f"t{n}", "data": {"n": n, "text": "é"}} for n in range(20)]
        pushed = await other.queue(name).partition("p").push(items)
        assert [entry["status"] for entry in pushed] == ["queued"] * 20
        again = await other.queue(name).partition("p").push(items[:1])
        assert (again[0]["status"], again[0]["message_id"]) == ("duplicate", pushed[0]["message_id"])
        messages = await other.queue(name).batch(30).pop()
        assert [message["data"] for message in messages] == [item["data"] for item in items]
        assert [message["id"] for message in messages] == [entry["message_id"] for entry in pushed]
        result = await (
            other.transaction()
            .queue(f"{name}-out")
            .push([{"transactionId": "out", "data": 1}])
            .ack(messages[19])
            .once("r-binary", name, ttl_seconds=60)
            .commit()
        )
        assert result
        assert [element["type"] for element in result["results"]] == ["push", "ack", "kv"]
        assert await queen.queue(name).wait(False).pop() == []
        assert _data(await queen.queue(f"{name}-out").pop()) == [1]
        await other.close()

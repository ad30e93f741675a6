"""The SDK's ephemeral API, verb by verb."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import pytest
from crash.stopwatch import Stopwatch
from queen import Queen
from queen.ephemeral import EPHEMERAL_QUEUE_NOT_FOUND
from queen.errors import EphemeralError, EphemeralQueueNotFoundError


def _payloads(answer: dict[str, Any]) -> list[Any]:
    return [message["payload"] for message in answer["messages"]]


async def the_round(queen: Queen) -> None:
    """push, pop, ack; then there is nothing."""
    eph = queen.ephemeral
    assert await eph.push("e-room", [{"user": "a"}, "hi"], partition="p") == {"pushed": 2}
    answer = await eph.pop("e-room", batch=5)
    assert answer["queue"] == "e-room"
    assert [(m["partition"], m["attempts"], m["payload"]) for m in answer["messages"]] == [
        ("p", 0, {"user": "a"}),
        ("p", 0, "hi"),
    ]
    done = await eph.ack("e-room", answer["messages"])
    assert [result["outcome"] for result in done["results"]] == ["acked", "acked"]
    assert await eph.pop("e-room") == {"queue": "e-room", "messages": []}


async def what_is_given_back(queen: Queen) -> None:
    """`False` sends it round again with one attempt more; statuses may be mixed; an ack of another start is stale."""
    eph = queen.ephemeral
    await eph.push("e-again", [1, 2])
    first, second = (await eph.pop("e-again", batch=2))["messages"]
    mixed = await eph.ack("e-again", [{**first, "status": "retry"}, second], status=False, error="x")
    assert [result["outcome"] for result in mixed["results"]] == ["redelivered", "redelivered"]
    again = (await eph.pop("e-again", batch=2))["messages"]
    assert [(m["id"], m["attempts"]) for m in again] == [(first["id"], 1), (second["id"], 1)]
    odd = await eph.ack("e-again", [again[0], first, "e:1:p:0"])
    assert [result["outcome"] for result in odd["results"]] == ["acked", "unknown", "stale"]


async def fan_out(queen: Queen) -> None:
    """Groups that wait each get what is pushed, at once; an empty wait ends at its time."""
    eph = queen.ephemeral
    waits = [asyncio.ensure_future(eph.pop("e-fan", wait=True, timeout=5000, group=group)) for group in "abc"]
    await asyncio.sleep(0.3)
    watch = Stopwatch(int(os.environ["SERVER_PID"]))
    await eph.push("e-fan", {"n": 1})
    assert [_payloads(await wait) for wait in waits] == [[{"n": 1}]] * 3
    assert watch.seconds() < 1
    started, watch = time.monotonic(), Stopwatch(int(os.environ["SERVER_PID"]))
    assert (await eph.pop("e-fan", wait=True, timeout=300, group="a"))["messages"] == []
    assert time.monotonic() - started > 0.25
    assert watch.seconds() < 1.5


async def commit_on_delivery(queen: Queen) -> None:
    """Nothing to ack."""
    await queen.ephemeral.push("e-commit", 1)
    (message,) = (await queen.ephemeral.pop("e-commit", commit_on_delivery=True))["messages"]
    done = await queen.ephemeral.ack("e-commit", message)
    assert done["results"][0]["outcome"] == "unknown"


async def declared_queues(queen: Queen) -> None:
    """configure, queues, depth, reset, delete; the one verb that can tell that a queue is missing."""
    eph = queen.ephemeral
    answer = await eph.configure("e-decl", max_length=3, policy="dropOldest", ttl_seconds=60, window_buffer={"ms": 5})
    assert answer["declared"]
    assert answer["options"]["maxLength"] == 3
    await eph.push("e-decl", [0, 1])
    await eph.push("e-decl", [2, 3])
    assert (await eph.depth("e-decl"))["pending"] == 3
    rows = {row["queue"]: row for row in (await eph.queues())["queues"]}
    assert (rows["e-decl"]["tier"], rows["e-decl"]["depth"], rows["e-decl"]["drops"]["bounds"]) == ("declared", 3, 1)
    assert await eph.reset("e-decl") == {"queue": "e-decl", "dropped": 3}
    assert await eph.delete("e-decl") == {"queue": "e-decl", "deleted": True, "declared": True}
    with pytest.raises(EphemeralQueueNotFoundError) as missing:
        await eph.depth("e-decl")
    assert missing.value.code == EPHEMERAL_QUEUE_NOT_FOUND


async def buffered_push(queen: Queen) -> None:
    """Through the SDK's buffer, which drains into the route of this family."""
    for n in range(20):
        await queen.ephemeral.push("e-buffer", n, buffered={"message_count": 500, "time_millis": 60_000})
    assert (await queen.ephemeral.pop("e-buffer"))["messages"] == []
    await queen.ephemeral.flush("e-buffer")
    assert _payloads(await queen.ephemeral.pop("e-buffer", batch=50)) == list(range(20))


async def a_full_queue_is_waited_for(queen: Queen) -> None:
    """429 `queue_full`: the SDK comes again after a second, and gets in when there is room."""
    eph = queen.ephemeral
    await eph.configure("e-full", max_length=1)
    await eph.push("e-full", 1)
    push = asyncio.ensure_future(eph.push("e-full", 2))
    await asyncio.sleep(0.3)
    assert not push.done()
    (message,) = (await eph.pop("e-full"))["messages"]
    await eph.ack("e-full", message)
    assert await push == {"pushed": 1}


async def refusals(queen: Queen) -> None:
    """An `EphemeralError` with the broker's code, not the one for a broker that is too old."""
    with pytest.raises(EphemeralError) as refused:
        await queen.ephemeral.push("e-bad\n", 1)
    assert refused.value.code == "ephemeral_bad_request"

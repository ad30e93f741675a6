"""Errors as the user of the SDK sees them (wire-kv-locks-timers-transactions.md, sections 5.11 and 6.3)."""

from __future__ import annotations

import base64
from datetime import timedelta
from typing import Any

import httpx
import pytest
from queen import Queen
from queen.errors import KvError, LockError, TimerError


async def a_bad_namespace(queen: Queen) -> None:
    """A `KvError` with code and reason, which is an `httpx.HTTPStatusError`."""
    with pytest.raises(KvError) as caught:
        await queen.kv.put("Bad Namespace", "k", 1, forever=True)
    assert isinstance(caught.value, httpx.HTTPStatusError)
    assert (caught.value.code, caught.value.reason) == ("kv_bad_request", "kv_bad_namespace")


async def a_value_that_is_too_large(queen: Queen) -> None:
    """413 with its reason."""
    with pytest.raises(KvError) as caught:
        await queen.kv.put("e", "k", "v" * 70_000, forever=True)
    assert (caught.value.code, caught.value.reason) == ("payload_too_large", "kv_value_too_large")


async def a_timer_beyond_the_horizon(queen: Queen) -> None:
    """A `TimerError` with its own code."""
    with pytest.raises(TimerError) as caught:
        await queen.timers.schedule("e", "k", 1, delay=timedelta(days=91))
    assert (caught.value.code, caught.value.reason) == ("timer_horizon_exceeded", "timers_horizon")


async def a_bad_lock_call(queen: Queen) -> None:
    """A `LockError`; the SDK's own checks are passed by with a raw batch."""
    with pytest.raises(LockError) as caught:
        await queen.locks.batch([{"op": "acquire", "name": "a#b", "ttlSeconds": 5}])
    assert (caught.value.code, caught.value.reason) == ("locks_bad_request", "locks_bad_name")


async def a_malformed_transaction(queen: Queen) -> None:
    """A plain `httpx.HTTPStatusError`, without a code."""
    await _refused(queen, {"kv": [{"op": "getPrefix", "ns": "e", "prefix": "k"}]})
    payload = base64.b64encode(b"1").decode()
    op = {"op": "schedule", "queue": "e", "timerKey": "k", "payload": payload, "delayMs": 91 * 86_400_000, "txn": "t"}
    await _refused(queen, {"timers": [op]})


async def _refused(queen: Queen, body: dict[str, Any]) -> None:
    with pytest.raises(httpx.HTTPStatusError) as caught:
        await queen._http_client.post("/api/v1/transaction", {"operations": [], **body})
    assert str(caught.value)


async def a_stale_ack_in_a_transaction(queen: Queen) -> None:
    """Raised as a plain exception with the broker's words."""
    await queen.queue("e-stale").push([{"data": 1}])
    (message,) = await queen.queue("e-stale").pop()
    await queen.ack(message, "retry")
    with pytest.raises(Exception, match="rolled back"):
        await queen.transaction().ack(message).queue("e-out").push([{"data": 2}]).commit()


async def a_required_write_outside_a_transaction(queen: Queen) -> None:
    """The answer is as Queen's, without `results`, of which this SDK makes a `kv_result_missing` (decisions.md)."""
    await queen.kv.put("e", "req", 1, forever=True)
    with pytest.raises(KvError) as caught:
        await queen.kv.put("e", "req", 2, forever=True, expect=0, required=True)
    assert caught.value.code == "kv_result_missing"
    assert (await queen.kv.get("e", "req"))["value"] == 1


async def an_unknown_queue_setting(queen: Queen) -> None:
    """A configure that is refused raises with the broker's sentence."""
    with pytest.raises(Exception, match="leaseTime must be an integer"):
        await queen.queue("e-config").config({"leaseTime": "long"}).create()

"""Transactions: the request, the verdicts, and a guard that follows its own lock's renewal."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import trio
import trio.testing
from client_fakes import Asked, FakeTransport, answer, lost, two_clients

from queen_actors import errors, open_broker
from queen_actors.client import ConnectionFailed, LockNotHeldError, TransactionError, serving

MESSAGE = {
    "id": "m",
    "transactionId": "order-7-paid",
    "partitionId": "42",
    "leaseId": "L1",
    "consumerGroup": "billing",
}
COMMITTED = {"transactionId": "x", "success": True, "results": []}


def rolled_back(reason: str = "kv_precondition", **more: Any) -> dict[str, Any]:
    return {"transactionId": "x", "success": False, "reason": reason, "error": "why", "results": [], **more}


async def test_the_request_of_everything_together() -> None:
    """As the published SDK sends it (wire 7.6): operations in order, the riders in arrays of their own."""
    transport = FakeTransport(answer(COMMITTED))
    async with serving(transport) as queen:
        assert await (
            queen.transaction()
            .ack(MESSAGE)
            .queue("receipts")
            .partition("customer-123")
            .push([{"data": {"t": 1}, "transactionId": "receipt-7"}, {"data": {"t": 1}, "transactionId": "receipt-7"}])
            .kv.put("orders", "order-7", {"status": "paid"}, ttl=timedelta(days=30))
            .once("paid", "pay-1", ttl_seconds=60)
            .kv.incr("n", "k", 2, max=9, forever=True)
            .kv.check("n", "other", expect=3)
            .timer("reminders")
            .key("order-7")
            .payload({"orderId": "order-7"})
            .after(timedelta(hours=24))
            .schedule()
            .timer("reminders")
            .key("old")
            .cancel()
            .queue("plain")
            .push("text")
            .commit()
        )
    (asked,) = transport.asked
    assert (asked.method, asked.path) == ("POST", "/api/v1/transaction")
    receipt = {"queue": "receipts", "payload": {"t": 1}, "transactionId": "receipt-7", "partition": "customer-123"}
    assert asked.body == {
        "operations": [
            {
                "type": "ack",
                "transactionId": "order-7-paid",
                "partitionId": "42",
                "status": "completed",
                "consumerGroup": "billing",
                "leaseId": "L1",
            },
            {"type": "push", "items": [receipt, receipt]},
            {"type": "push", "items": [{"queue": "plain", "payload": "text", "transactionId": "id-2"}]},
        ],
        "requiredLeases": ["L1"],
        "kv": [
            {"op": "put", "ns": "orders", "key": "order-7", "value": {"status": "paid"}, "ttlSeconds": 2592000},
            {"op": "putIfAbsent", "ns": "paid", "key": "pay-1", "value": True, "ttlSeconds": 60, "required": True},
            {"op": "incr", "ns": "n", "key": "k", "delta": 2, "max": 9, "forever": True},
            {"op": "check", "ns": "n", "key": "other", "expect": 3, "required": True},
        ],
        "timers": [
            {
                "op": "schedule",
                "queue": "reminders",
                "timerKey": "order-7",
                "payload": "eyJvcmRlcklkIjoib3JkZXItNyJ9",
                "delayMs": 86400000,
                "txn": "id-1",
            },
            {"op": "cancel", "queue": "reminders", "timerKey": "old"},
        ],
    }


async def test_acks_of_other_verdicts_and_groups() -> None:
    """A status, an error and a group can be named, also in the published SDK's way; several messages at once too."""
    transport = FakeTransport(answer(COMMITTED))
    async with serving(transport) as queen:
        await (
            queen.transaction()
            .ack([MESSAGE, {**MESSAGE, "leaseId": "L2"}], "failed", error="bad")
            .ack(MESSAGE, "completed", {"consumer_group": "other"})
            .commit()
        )
    body = transport.asked[0].body
    assert [(op["status"], op.get("error"), op["consumerGroup"], op["leaseId"]) for op in body["operations"]] == [
        ("failed", "bad", "billing", "L1"),
        ("failed", "bad", "billing", "L2"),
        ("completed", None, "other", "L1"),
    ]
    assert body["requiredLeases"] == ["L1", "L2"]


async def test_nothing_to_commit_and_nothing_delivered_are_refused() -> None:
    """ValueError, and no request."""
    transport = FakeTransport()
    async with serving(transport) as queen:
        with pytest.raises(ValueError, match="something to commit"):
            await queen.transaction().commit()
        with pytest.raises(ValueError, match="only a delivered message"):
            queen.transaction().ack({"id": "m"})
        with pytest.raises(LockNotHeldError):
            await queen.transaction().guard(queen.lock("job")).queue("q").push(1).commit()
    assert transport.asked == []


async def test_a_lost_gate_is_an_answer() -> None:
    """kv_precondition: false, with what lost and what is there now; nothing is raised."""
    told = rolled_back(failedIndex=1, kvReason="exists", version=8, value=True)
    async with serving(FakeTransport(answer(told))) as queen:
        result = await queen.transaction().queue("q").push(1).once("paid", "pay-1", ttl=60).commit()
    assert not result
    assert result["reason"] == result.reason == "kv_precondition"
    assert (result.failed_index, result.kv_reason, result.version, result.value) == (1, "exists", 8, True)


@pytest.mark.parametrize(("reason", "status"), [("duplicate", 200), ("rejected_ack", 200), ("bad_request", 400)])
async def test_every_other_rollback_is_raised(reason: str, status: int) -> None:
    """TransactionError, with the reason, and the status if it was an error of the call."""
    async with serving(FakeTransport(answer(rolled_back(reason), status))) as queen:
        with pytest.raises(TransactionError) as caught:
            await queen.transaction().queue("q").push(1).commit()
    assert (caught.value.reason, str(caught.value)) == (reason, "why")
    assert caught.value.status == (status if status >= 400 else 409)
    assert isinstance(caught.value, errors.QueenError)


async def test_an_error_of_the_engine_is_raised_as_such() -> None:
    """Another envelope, another error."""
    refusal = answer({"error": "too long", "code": "name_too_long"}, 413)
    async with serving(FakeTransport(refusal)) as queen:
        with pytest.raises(errors.TooLarge):
            await queen.transaction().queue("q").push(1).commit()


async def test_a_commit_is_not_sent_twice_behind_the_callers_back(autojump_clock: object) -> None:
    """After a lost answer nobody knows; the caller may commit the same transaction again, with the same ids."""
    transport = FakeTransport(lost(sent=True), answer(COMMITTED))
    async with serving(transport) as queen:
        transaction = queen.transaction().queue("q").push(1)
        with pytest.raises(ConnectionFailed):
            await transaction.commit()
        assert await transaction.commit()
    assert transport.bodies[0] == transport.bodies[1]


async def test_a_guard_follows_its_own_renewal(autojump_clock: object) -> None:
    """The lock renews itself while the commit is under way: the token moved, the permit did not; it commits."""
    async with two_clients() as (queen, between, _):
        lock = queen.lock("job", ttl_seconds=30)
        assert await lock.acquire()
        moved = 2

        async def renew_meanwhile(asked: Asked) -> None:
            nonlocal moved
            if asked.path == "/api/v1/transaction" and moved:
                moved -= 1
                await lock.renew()

        between.before = renew_meanwhile
        result = await queen.transaction().guard(lock).queue("q").push({"data": 1, "transactionId": "t"}).commit()
        assert result
        sent = [asked.body for asked in between.asked if asked.path == "/api/v1/transaction"]
        assert len(sent) == 3
        assert len({body["kv"][0]["expect"] for body in sent}) == 3
        assert lock.held
        (message,) = await queen.queue("q").pop()
        assert message.transaction_id == "t"


async def test_a_guard_learns_a_token_that_moved_behind_its_back(autojump_clock: object) -> None:
    """Somebody renewed under the same owner: the handle asks for the token of now instead of repeating the old one."""
    async with two_clients() as (queen, _, other):
        lock = queen.lock("job", ttl_seconds=30, owner="me", auto_renew=False)
        assert await lock.acquire()
        assert lock.token is not None
        assert await other.locks.renew("job", token=lock.token, ttl=30)
        assert await queen.transaction().guard(lock).queue("q").push(1).commit()


async def test_a_guard_does_not_chase_a_token_for_ever(autojump_clock: object) -> None:
    """Four attempts in all, then the refusal is the answer; the permit is not lost by that."""
    async with two_clients() as (queen, between, _):
        lock = queen.lock("job", ttl_seconds=30)
        assert await lock.acquire()

        async def renew_meanwhile(asked: Asked) -> None:
            if asked.path == "/api/v1/transaction":
                await lock.renew()

        between.before = renew_meanwhile
        result = await queen.transaction().guard(lock).queue("q").push(1).commit()
        assert not result
        assert result.kv_reason == "version"
        assert sum(asked.path == "/api/v1/transaction" for asked in between.asked) == 4
        assert lock.held
        between.before = None
        assert await queen.queue("q").pop() == []


async def test_a_frozen_holder_is_kept_out_by_the_guard(autojump_clock: object) -> None:
    """The seed's figure: A is frozen, its clock too, past the lifetime; B takes the lock. A's guarded commit rolls
    back and writes nothing, and A learns that the lock is lost; B's commits."""
    async with open_broker() as queen:
        told: list[str] = []
        frozen_at = trio.current_time()
        a = queen.lock("daily-report", ttl_seconds=30, on_lost=told.append, auto_renew=False, clock=lambda: frozen_at)
        assert await a.acquire()
        await trio.sleep(31)
        b = queen.lock("daily-report", ttl_seconds=30)
        assert await b.acquire()
        assert a.held, "as far as the frozen one can tell"
        stale = (
            queen.transaction()
            .guard(a)
            .queue("reports")
            .push({"data": "A"})
            .kv.put("days", "today", "A", forever=True)
            .timer("reports")
            .key("again")
            .payload("A")
            .after(1)
            .schedule()
        )
        result = await stale.commit()
        assert not result
        assert (result.reason, result.kv_reason) == ("kv_precondition", "version")
        assert result.value["owner"] == b.owner
        assert a.lost.is_set()
        assert a.lost_reason == "guard"
        await trio.testing.wait_all_tasks_blocked()
        assert told == ["guard"]
        assert await queen.transaction().guard(b).queue("reports").push({"data": "B"}).commit()
        assert [message.data for message in await queen.queue("reports").pop()] == ["B"]
        assert not await queen.kv.get("days", "today")
        assert not await queen.timers.peek("reports", "again")


async def test_a_frozen_holder_whose_lock_nobody_took_is_kept_out_too(autojump_clock: object) -> None:
    """The permit merely expired: `absent`, and the handle is lost."""
    async with open_broker() as queen:
        frozen_at = trio.current_time()
        lock = queen.lock("job", ttl_seconds=5, auto_renew=False, clock=lambda: frozen_at)
        assert await lock.acquire()
        await trio.sleep(6)
        result = await queen.transaction().guard(lock).queue("q").push(1).commit()
        assert not result
        assert (result.kv_reason, result.value, result.version) == ("absent", None, 0)
        assert lock.lost_reason == "guard"


async def test_two_guards_say_which_one_lost(autojump_clock: object) -> None:
    """Pushes come before guards in the count: the lost handle is marked, the other one is not."""
    async with open_broker() as queen:
        held = queen.lock("held")
        frozen_at = trio.current_time()
        frozen = queen.lock("frozen", ttl_seconds=5, auto_renew=False, clock=lambda: frozen_at)
        assert await held.acquire()
        assert await frozen.acquire()
        await trio.sleep(6)
        result = await queen.transaction().queue("q").push([1, 2]).guard(held).guard(frozen).guard(held).commit()
        assert not result
        assert result.failed_index == 3
        assert held.held
        assert frozen.lost_reason == "guard"


async def test_a_committed_transaction_tells_everything(autojump_clock: object) -> None:
    """`results` by kind: pushes and acks, keys (guards first), timers."""
    async with open_broker() as queen:
        await queen.queue("in").push({"data": 1, "transactionId": "t1"})
        (message,) = await queen.queue("in").group("g").pop()
        result = await (
            queen.transaction()
            .ack(message)
            .queue("out")
            .push(2)
            .kv.get("n", "missing")
            .kv.put("n", "k", "v", forever=True)
            .timer("out")
            .key("k")
            .payload(3)
            .after("1h")
            .schedule()
            .commit()
        )
        assert result
        assert [one["type"] for one in result.results] == ["ack", "push", "kv", "kv", "timer"]
        assert [one.found if one.op == "get" else one.applied for one in result.kv] == [False, True]
        assert result.timers[0].status == "scheduled"
        assert await queen.queue("in").group("g").pop() == []
        with pytest.raises(TransactionError) as caught:
            await queen.transaction().ack(message).queue("out").push(9).commit()
        assert caught.value.reason == "rejected_ack"
        with pytest.raises(TransactionError) as caught:
            await queen.transaction().queue("in").push({"data": 1, "transactionId": "t1"}).commit()
        assert caught.value.reason == "duplicate"

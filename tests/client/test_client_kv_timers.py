"""Keys and timers: the requests on the wire (wire 7.2 to 7.5) and what becomes of the answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from client_fakes import FakeTransport, answer, lost

from queen_actors.client import ConnectionFailed, ProtocolError, Queen, open_broker, serving


@asynccontextmanager
async def talking(*script: Any) -> AsyncIterator[tuple[Queen, FakeTransport]]:
    """A client whose broker gives these answers."""
    transport = FakeTransport(*script)
    async with serving(transport) as queen:
        yield queen, transport


def results(*elements: dict[str, Any]) -> Any:
    return answer({"results": list(elements)})


WEEK = timedelta(days=7)


async def test_the_requests_of_the_kv_examples() -> None:
    """Byte for byte what the published SDK sends (wire 7.2, 7.3)."""
    async with talking(*[results({"applied": True})] * 12) as (queen, transport):
        await queen.kv.put("carts", "c", {"items": 3}, ttl=WEEK)
        await queen.kv.get("carts", "c")
        await queen.kv.put("carts", "c", {"items": 4}, ttl=WEEK, expect=2)
        await queen.kv.incr("limits", "k", delta=1, max=100, ttl_seconds=60)
        await queen.kv.put_if_absent("carts", "c2", None, forever=True)
        await queen.kv.check("carts", "c2", expect=0)
        await queen.kv.get_many("carts", ["a", "b"])
        await queen.kv.get_prefix("carts", "c", after="c2", limit=1, keys_only=True)
        await queen.kv.delete("carts", "c2", expect=5, required=True)
        await queen.kv.once("carts", "once", ttl=5)
        await queen.kv.incr("limits", "k", Decimal("0.1"), min=-1, forever=True)
    assert {(asked.method, asked.path, asked.query) for asked in transport.asked} == {("POST", "/api/v1/kv", "")}
    assert [body["operations"] for body in transport.bodies] == [
        [{"op": "put", "ns": "carts", "key": "c", "value": {"items": 3}, "ttlSeconds": 604800}],
        [{"op": "get", "ns": "carts", "key": "c"}],
        [{"op": "put", "ns": "carts", "key": "c", "value": {"items": 4}, "ttlSeconds": 604800, "expect": 2}],
        [{"op": "incr", "ns": "limits", "key": "k", "delta": 1, "max": 100, "ttlSeconds": 60}],
        [{"op": "putIfAbsent", "ns": "carts", "key": "c2", "value": None, "forever": True}],
        [{"op": "check", "ns": "carts", "key": "c2", "expect": 0}],
        [{"op": "getMany", "ns": "carts", "keys": ["a", "b"]}],
        [{"op": "getPrefix", "ns": "carts", "prefix": "c", "after": "c2", "limit": 1, "keysOnly": True}],
        [{"op": "delete", "ns": "carts", "key": "c2", "expect": 5, "required": True}],
        [{"op": "putIfAbsent", "ns": "carts", "key": "once", "value": True, "ttlSeconds": 5}],
        [{"op": "incr", "ns": "limits", "key": "k", "delta": 0.1, "min": -1, "forever": True}],
    ]


@pytest.mark.parametrize("expect", [None, -1, 1.0, True, "3"])
async def test_an_expect_that_is_no_version_is_refused_before_anything_is_sent(expect: Any) -> None:
    """An unconditional write would be the worst reading of it."""
    async with talking() as (queen, transport):
        with pytest.raises((TypeError, ValueError), match="expect"):
            await queen.kv.put("carts", "c", 1, forever=True, expect=expect)
    assert transport.asked == []


async def test_numbers_and_keys_that_are_none_are_refused() -> None:
    """A bool is no delta; one text is no list of keys."""
    async with talking() as (queen, _):
        with pytest.raises(TypeError, match="delta must be a number"):
            await queen.kv.incr("n", "k", True, forever=True)
        with pytest.raises(TypeError, match="list of keys"):
            await queen.kv.get_many("n", "key")


async def test_a_lost_required_operation_outside_a_transaction_is_an_answer() -> None:
    """A single call answers as without `required`; a batch is false, empty, and tells which one lost (wire 2.9)."""
    told = {"ok": False, "reason": "kv_precondition", "failedIndex": 1, "kvReason": "version", "version": 3, "value": 4}
    async with talking(answer(told), answer(told)) as (queen, _):
        saved = await queen.kv.put("n", "k", 1, forever=True, expect=1, required=True)
        assert not saved
        assert (saved.applied, saved.reason, saved.version, saved.value) == (False, "version", 3, 4)
        op = queen.kv.op
        both = await queen.kv.batch([op.get("n", "a"), op.put("n", "k", 1, forever=True, expect=1, required=True)])
        assert not both
        assert list(both) == []
        assert (both.failed_index, both.kv_reason, both.version, both.value) == (1, "version", 3, 4)


async def test_a_batch_answers_in_order_and_never_short() -> None:
    """One element for each operation, or an error."""
    async with talking(results({"found": True}, {"applied": False}), results({"found": True})) as (queen, transport):
        ops = [queen.kv.op.get("n", "a"), queen.kv.op.delete("n", "b")]
        one, two = await queen.kv.batch(ops)
        assert (bool(one), bool(two)) == (True, False)
        with pytest.raises(ProtocolError, match="2 KV operations"):
            await queen.kv.batch(ops)
        assert await queen.kv.batch([]) == []
    assert len(transport.asked) == 2


async def test_list_all_follows_the_pages() -> None:
    """Until the last page, or as many rows as asked."""
    pages = [
        results({"rows": [{"key": "a"}, {"key": "b"}], "truncated": True, "nextAfter": "b"}),
        results({"rows": [{"key": "c"}], "truncated": False, "nextAfter": None}),
    ]
    async with talking(*pages) as (queen, transport):
        assert [row.key for row in await queen.kv.list_all("n", "p", limit=2)] == ["a", "b", "c"]
    assert [body["operations"][0].get("after") for body in transport.bodies] == [None, "b"]
    async with talking(*pages) as (queen, transport):
        assert [row.key for row in await queen.kv.list_all("n", "p", max_rows=1)] == ["a"]
    assert len(transport.asked) == 1


async def test_what_could_count_twice_is_not_sent_twice(autojump_clock: object) -> None:
    """A plain put is repeated after a lost answer; incr, once and a conditional put are not: a second answer could
    deny what the first one did."""
    async with talking(lost(sent=True), results({"applied": True})) as (queen, _):
        assert await queen.kv.put("n", "k", 1, forever=True)
    for call in (
        lambda queen: queen.kv.incr("n", "k", forever=True),
        lambda queen: queen.kv.once("n", "k", ttl=60),
        lambda queen: queen.kv.put("n", "k", 1, forever=True, expect=1),
        lambda queen: queen.kv.delete("n", "k"),
    ):
        async with talking(lost(sent=True)) as (queen, transport):
            with pytest.raises(ConnectionFailed):
                await call(queen)
            assert len(transport.asked) == 1


async def test_the_requests_of_the_timer_examples() -> None:
    """The payload goes as base64 of its JSON, the delay in milliseconds, the name escaped (wire 7.5)."""
    scheduled = results({"ok": True, "status": "scheduled", "messageId": "m", "deliverAt": "later"})
    async with talking(*[scheduled] * 4, answer({"ok": False, "status": "absent"}), answer({"found": False})) as (
        queen,
        transport,
    ):
        saved = await queen.timers.schedule(
            "reminders", "order-9137", {"orderId": 9137}, delay=timedelta(hours=24), partition="order-9137"
        )
        assert saved
        assert (saved.status, saved.message_id, saved.deliver_at) == ("scheduled", "m", "later")
        await queen.timers.reschedule("reminders", "k", {"a": 1}, delay_ms=5, txn="mine")
        await queen.timer("reminders").key("k").payload({"a": 1}).after(timedelta(minutes=30)).schedule()
        await queen.timer("reminders").key("k").payload(None).after_ms(-5).partition("p").txn("t").reschedule()
        assert not await queen.timers.cancel("a/b", "order/9137 x?", txn="abc")
        assert not await queen.timers.peek("a/b", "%41")
    assert [body["operations"] for body in transport.bodies[:4]] == [
        [
            {
                "op": "schedule",
                "queue": "reminders",
                "timerKey": "order-9137",
                "payload": "eyJvcmRlcklkIjo5MTM3fQ==",
                "delayMs": 86400000,
                "txn": "id-1",
                "partition": "order-9137",
            }
        ],
        [
            {
                "op": "reschedule",
                "queue": "reminders",
                "timerKey": "k",
                "payload": "eyJhIjoxfQ==",
                "delayMs": 5,
                "txn": "mine",
            }
        ],
        [
            {
                "op": "schedule",
                "queue": "reminders",
                "timerKey": "k",
                "payload": "eyJhIjoxfQ==",
                "delayMs": 1800000,
                "txn": "id-2",
            }
        ],
        [
            {
                "op": "reschedule",
                "queue": "reminders",
                "timerKey": "k",
                "payload": "bnVsbA==",
                "delayMs": -5,
                "txn": "t",
                "partition": "p",
            }
        ],
    ]
    cancelled, peeked = transport.asked[4:]
    assert (cancelled.method, cancelled.path) == ("DELETE", "/api/v1/timers/a%2Fb/order%2F9137%20x%3F")
    assert cancelled.query == "txn=abc"
    assert (peeked.method, peeked.path) == ("GET", "/api/v1/timers/a%2Fb/%2541")


async def test_a_timer_without_its_parts_is_refused() -> None:
    """No key, no delay, two delays: ValueError, and nothing is sent."""
    async with talking() as (queen, transport):
        with pytest.raises(ValueError, match="key"):
            await queen.timer("q").payload(1).after(5).schedule()
        with pytest.raises(ValueError, match="exactly one of delay"):
            await queen.timer("q").key("k").schedule()
        with pytest.raises(ValueError, match="exactly one of delay"):
            await queen.timers.schedule("q", "k", 1, delay=1, delay_ms=1)
    assert transport.asked == []


async def test_timer_pages_and_counts() -> None:
    """`list_all` follows the pages; `count` gives the number."""
    async with talking(
        answer({"rows": [{"timerKey": "a"}], "truncated": True, "nextAfter": "a"}),
        answer({"rows": [{"timerKey": "b"}], "truncated": False, "nextAfter": None}),
        answer({"count": 7}),
    ) as (queen, transport):
        assert [row.timer_key for row in await queen.timers.list_all("q", limit=1)] == ["a", "b"]
        assert await queen.timers.count("q", "pre fix") == 7
    assert [asked.query for asked in transport.asked] == ["limit=1", "after=a&limit=1", "mode=count&prefix=pre+fix"]


async def test_the_version_of_a_missing_key_is_what_a_write_expects() -> None:
    """Read, then write over what was read: the same words, whether the key was there or not."""
    async with open_broker() as queen:
        found = await queen.kv.get("carts", "c")
        assert not found
        first = await queen.kv.put("carts", "c", 1, forever=True, expect=found.version)
        assert first.applied
        late = await queen.kv.put("carts", "c", 2, forever=True, expect=found.version)
        assert (late.applied, late.reason, late.version) == (False, "exists", first.version)
        assert await queen.kv.put("carts", "c", 2, forever=True, expect=late.version)

"""Calls: when one is sent again, how long that takes, and which error comes out."""

from __future__ import annotations

import pytest
import trio
from client_fakes import FakeTransport, answer, lost

from queen_actors import errors
from queen_actors.client import ConnectionFailed, ProtocolError, Retry
from queen_actors.client.errors import AnswerTimeout
from queen_actors.client.transport import Answer, Caller

BUSY = {"error": "slow down", "code": "overloaded"}
KV_BAD = {"error": "kv_bad_request", "reason": "kv_bad_key", "detail": "why"}
DOWN = {"error": "kv_unavailable", "reason": "kv_timeout", "detail": "no answer in time"}


async def test_a_lost_connection_is_tried_again_within_bounds(autojump_clock: object) -> None:
    """A call that can be repeated is sent up to `attempts` times, with growing pauses between."""
    transport = FakeTransport(lost(sent=True), lost(sent=False), answer({"a": 1}))
    assert await Caller(transport).call("GET", "/x") == {"a": 1}
    assert 0.45 <= trio.current_time() <= 0.6
    transport = FakeTransport(*[lost(sent=True) for _ in range(9)])
    with pytest.raises(ConnectionFailed):
        await Caller(transport).call("GET", "/x")
    assert len(transport.asked) == Retry().attempts


async def test_what_cannot_be_repeated_is_sent_again_only_if_it_was_not_sent(autojump_clock: object) -> None:
    """No connection: again. A connection that broke afterwards: the caller must know that nobody knows."""
    transport = FakeTransport(lost(sent=False), lost(sent=True), answer({}))
    with pytest.raises(ConnectionFailed) as caught:
        await Caller(transport).call("POST", "/x", {}, repeatable=False)
    assert caught.value.reason == "outcome_unknown"
    assert len(transport.asked) == 2


async def test_no_answer_in_time_counts_as_a_lost_connection(autojump_clock: object) -> None:
    """And says what it is when the attempts are used up."""
    late = AnswerTimeout("late", sent=True)
    transport = FakeTransport(late, late, late, late, answer({}))
    with pytest.raises(AnswerTimeout, match="late"):
        await Caller(transport).call("GET", "/x")


async def test_a_503_is_tried_again_then_raised(autojump_clock: object) -> None:
    """The broker's last word comes out: its code, reason, status and detail."""
    transport = FakeTransport(*[answer(DOWN, 503) for _ in range(9)])
    with pytest.raises(errors.Unavailable) as caught:
        await Caller(transport).call("POST", "/x", {})
    error = caught.value
    assert (error.code, error.reason, error.status) == ("kv_unavailable", "kv_timeout", 503)
    assert str(error) == "no answer in time"
    assert len(transport.asked) == 4


async def test_a_503_of_what_cannot_be_repeated_is_tried_again_only_if_it_was_not_done(autojump_clock: object) -> None:
    """`unavailable` says that nothing was applied; a timeout does not."""
    transport = FakeTransport(answer({"error": "starting", "code": "unavailable"}, 503), answer({"a": 1}))
    assert await Caller(transport).call("POST", "/x", {}, repeatable=False) == {"a": 1}
    transport = FakeTransport(answer(DOWN, 503), answer({}))
    with pytest.raises(errors.Unavailable):
        await Caller(transport).call("POST", "/x", {}, repeatable=False)
    assert len(transport.asked) == 1


async def test_a_429_waits_as_long_as_the_broker_says(autojump_clock: object) -> None:
    """Nothing of it was done, so any call may be sent again; never sooner than told."""
    transport = FakeTransport(answer(BUSY, 429, {"retry-after": "3"}), answer({"a": 1}))
    assert await Caller(transport).call("POST", "/x", {}, repeatable=False) == {"a": 1}
    assert 3.0 <= trio.current_time() <= 3.6


async def test_a_429_is_not_borne_for_ever(autojump_clock: object) -> None:
    """After ten of them the caller learns of the overload."""
    transport = FakeTransport(*[answer(BUSY, 429, {"retry-after": "1"}) for _ in range(20)])
    with pytest.raises(errors.Overloaded) as caught:
        await Caller(transport).call("GET", "/x")
    assert (caught.value.code, caught.value.retry_after) == ("overloaded", 1)
    assert len(transport.asked) == 10


@pytest.mark.parametrize(
    ("status", "body", "kind", "code", "reason", "detail"),
    [
        (400, KV_BAD, "BadRequest", "kv_bad_request", "kv_bad_key", "why"),
        (400, {"error": "not JSON", "code": "bad_body"}, "BadRequest", "bad_body", None, "not JSON"),
        (401, {"error": "Authentication required"}, "Unauthorized", "unauthorized", None, "Authentication required"),
        (403, {"error": "Insufficient permissions"}, "Forbidden", "forbidden", None, "Insufficient permissions"),
        (404, {"error": "Queue not found"}, "NotFound", "not_found", None, "Queue not found"),
        (409, {"success": False, "error": "refused"}, "Conflict", "conflict", None, "refused"),
        (413, {"error": "too long", "code": "name_too_long"}, "TooLarge", "name_too_long", None, "too long"),
        (507, {"error": "disk", "code": "storage_full"}, "StorageFull", "storage_full", None, "disk"),
        (418, {"error": "teapot"}, "QueenError", "internal", None, "teapot"),
        (400, ["?"], "BadRequest", "bad_request", None, "the broker answered 400"),
    ],
)
async def test_an_error_comes_out_as_what_the_broker_raised(
    status: int, body: object, kind: str, code: str, reason: str | None, detail: str
) -> None:
    """Both envelopes are read, and a 4xx is never tried again; nor is a full disk."""
    transport = FakeTransport(answer(body, status))
    with pytest.raises(errors.QueenError) as caught:
        await Caller(transport).call("POST", "/x", {})
    error = caught.value
    assert type(error).__name__ == kind
    assert (error.status, error.code, error.reason, error.detail) == (status, code, reason, detail)


async def test_an_unknown_outcome_is_told_as_such() -> None:
    """A storage failure is no ordinary 503."""
    transport = FakeTransport(answer({"error": "fsync", "code": "storage_failed"}, 503), retry=Retry(attempts=1))
    with pytest.raises(errors.StorageFailed):
        await Caller(transport).call("POST", "/x", {})


async def test_what_is_not_json_is_no_broker() -> None:
    """An answer of something else raises ProtocolError, whatever its status."""
    transport = FakeTransport(Answer(200, {}, b"<html>"))
    with pytest.raises(ProtocolError, match="not JSON"):
        await Caller(transport).call("GET", "/x")


async def test_an_empty_answer_is_none() -> None:
    """A 204 has no body."""
    assert await Caller(FakeTransport(answer(status=204))).call("GET", "/x") is None


async def test_a_query_is_form_encoded() -> None:
    """None is left out, booleans are true and false, a space is a plus."""
    transport = FakeTransport(answer({}))
    await Caller(transport).call("GET", "/x", query={"a": "x/y z", "b": True, "c": None, "d": 3, "e": "é&"})
    assert transport.asked[0].query == "a=x%2Fy+z&b=true&d=3&e=%C3%A9%26"

"""The route table, access levels, and what becomes of errors, on a broker that fails on purpose."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from queen_actors.api import Access, Api, Caller, Reply, Request
from queen_actors.api.routes import TABLE, Router
from queen_actors.broker import Broker
from queen_actors.config import Settings
from queen_actors.errors import (
    Forbidden,
    InternalError,
    Overloaded,
    QueenError,
    StorageFull,
    Unauthorized,
    Unavailable,
)

VIRTUAL_TIME = True

GET = {"op": "get", "ns": "n", "key": "k"}
BODIES = {
    "/api/v1/kv": [GET],
    "/api/v1/locks": [{"op": "get", "name": "n"}],
    "/api/v1/timers": [{"op": "cancel", "queue": "q", "timerKey": "k"}],
    "/api/v1/push": {"items": [{"queue": "q", "payload": 1}]},
}


class Failing:
    """A broker each of whose operations raises the same error, or never returns."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.producers: list[str | None] = []

    async def push(self, items: Any, *, producer: str | None = None) -> Any:
        self.producers.append(producer)
        await self._fail()

    async def timers(self, items: Any, *, producer: str | None = None) -> Any:
        await self.push(items, producer=producer)

    async def kv(self, ops: Any) -> Any:
        await self._fail()

    async def locks(self, ops: Any) -> Any:
        await self._fail()

    async def _fail(self) -> None:
        if self.error is not None:
            raise self.error
        await trio.sleep_forever()


def api(broker: object, **options: Any) -> Api:
    return Api(cast(Broker, broker), Settings(), **options)


async def post(target: Api, path: str) -> tuple[Reply, Any]:
    reply = await target.handle(Request("POST", path.encode(), body=json.dumps(BODIES[path]).encode()))
    return reply, json.loads(reply.body)


@pytest.mark.parametrize("path", ["/nope", "/", "", "/api/v1/nope", "/streams/v1/nothing", "/api/v1/push/",
                                  "/api//v1/push", "/api/v1/kv/ns", "/API/v1/push", "/healthz"])  # fmt: skip
async def test_an_unknown_route_is_a_404(path: str) -> None:
    """With its code, and never a redirect to a path that looks like it."""
    reply = await api(Failing()).handle(Request("POST", path.encode()))
    answer = json.loads(reply.body)
    assert (reply.status, answer["error"], answer["code"]) == (404, "Not Found", "no_such_route")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/api/v1/push", "POST"),
        ("PATCH", "/api/v1/kv/ns/k", "DELETE, GET, PUT"),
        ("POST", "/api/v1/pop/queue/q", "GET"),
        ("POST", "/health", "GET, HEAD"),
        ("GET", "/api/v1/kv", "POST"),
    ],
)
async def test_a_wrong_method_is_a_405(method: str, path: str, allow: str) -> None:
    """With the methods that the path has."""
    reply = await api(Failing()).handle(Request(method, path.encode()))
    assert (reply.status, reply.headers["allow"]) == (405, allow)
    assert json.loads(reply.body)["code"] == "method_not_allowed"


async def test_a_path_that_is_no_text_is_refused() -> None:
    """Escapes that are not UTF-8 are a 400, as JSON."""
    reply = await api(Failing()).handle(Request("GET", b"/api/v1/pop/queue/%ff"))
    assert (reply.status, json.loads(reply.body)["code"]) == (400, "bad_request")


async def test_health_is_served() -> None:
    """Status, engine and version; also to HEAD."""
    for method in ("GET", "HEAD"):
        reply = await api(Failing()).handle(Request(method, b"/health"))
        answer = json.loads(reply.body)
        assert (reply.status, answer["status"], answer["engine"]) == (200, "healthy", "queen_actors")
        assert answer["version"]


LEVELS = {
    ("GET", "/health"): Access.PUBLIC,
    ("POST", "/api/v1/push"): Access.WRITE,
    ("POST", "/api/v1/timers"): Access.WRITE,
    ("DELETE", "/api/v1/timers/q/k"): Access.READ_WRITE,
    ("GET", "/api/v1/timers/q/k"): Access.READ,
    ("POST", "/api/v1/kv"): Access.READ_WRITE,
    ("GET", "/api/v1/kv/n/k"): Access.READ,
    ("PUT", "/api/v1/kv/n/k"): Access.READ_WRITE,
    ("POST", "/api/v1/locks"): Access.READ_WRITE,
    ("POST", "/api/v1/transaction"): Access.READ_WRITE,
    ("GET", "/api/v1/pop/queue/q"): Access.READ_WRITE,
    ("GET", "/api/v1/pop"): Access.READ_WRITE,
    ("POST", "/api/v1/ack"): Access.READ_WRITE,
    ("POST", "/api/v1/configure"): Access.READ_WRITE,
    ("GET", "/api/v1/dlq"): Access.READ,
    ("GET", "/api/v1/messages/7/t"): Access.READ,
    ("GET", "/api/v1/resources/queues/q"): Access.READ,
    ("DELETE", "/api/v1/resources/queues/q"): Access.ADMIN,
    ("DELETE", "/api/v1/consumer-groups/g"): Access.ADMIN,
    ("DELETE", "/api/v1/consumer-groups/g/queues/q"): Access.ADMIN,
    ("POST", "/api/v1/consumer-groups/g/queues/q/seek"): Access.READ_WRITE,
    ("POST", "/api/v1/traces"): Access.READ_WRITE,
    ("POST", "/api/v1/lease/L/extend"): Access.READ_WRITE,
}


@pytest.mark.parametrize(("method", "path"), LEVELS)
def test_access_levels(method: str, path: str) -> None:
    """Section 20 of the messaging protocol, 1.1 of the other."""
    found = Router().find(method, path.encode())
    assert found is not None
    assert found[0].access is LEVELS[method, path]


def test_every_method_and_pattern_is_in_the_table_once() -> None:
    """A later entry with the same method and pattern would never be reached."""
    keys = [(route.method, route.pattern) for route in TABLE]
    assert len(keys) == len(set(keys))


async def test_the_authorizer_is_asked_before_anything_is_read() -> None:
    """It sees the request and the level; its refusals have the wire's bodies; its caller is stamped on a push."""
    asked: list[tuple[str, Access]] = []

    async def authorize(request: Request, access: Access) -> Caller:
        asked.append((request.headers.get("authorization", ""), access))
        token = request.headers.get("authorization")
        if token is None:
            raise Unauthorized("Authentication required")
        if token != "Bearer good":
            raise Forbidden("Insufficient permissions")
        return Caller("alice")

    broker = Failing(StorageFull("full"))
    target = api(broker, authorize=authorize)
    for headers, status, error in (
        ({}, 401, "Authentication required"),
        ({"authorization": "Bearer bad"}, 403, "Insufficient permissions"),
    ):
        reply = await target.handle(Request("POST", b"/api/v1/push", headers=headers, body=b"not even JSON"))
        assert (reply.status, json.loads(reply.body)["error"]) == (status, error)
    body = json.dumps(BODIES["/api/v1/push"]).encode()
    await target.handle(Request("POST", b"/api/v1/push", headers={"authorization": "Bearer good"}, body=body))
    assert broker.producers == ["alice"]
    assert asked[0] == ("", Access.WRITE)


@pytest.mark.parametrize(
    ("error", "path", "status", "body"),
    [
        (Unavailable("later"), "/api/v1/push", 503, {"error": "later", "code": "unavailable"}),
        (Unavailable("later"), "/api/v1/kv", 503,
         {"error": "kv_unavailable", "reason": "kv_retry", "detail": "later"}),
        (Unavailable("late", code="timeout"), "/api/v1/kv", 503,
         {"error": "kv_unavailable", "reason": "kv_timeout", "detail": "late"}),
        (Unavailable("later"), "/api/v1/locks", 503,
         {"error": "kv_unavailable", "reason": "kv_retry", "detail": "later"}),
        (Unavailable("later"), "/api/v1/timers", 503,
         {"error": "timers_unavailable", "reason": "timers_retry", "detail": "later"}),
        (Overloaded("busy", retry_after=3), "/api/v1/push", 429, {"error": "busy", "code": "overloaded"}),
        (Overloaded("busy"), "/api/v1/kv", 429, {"error": "busy", "code": "overloaded"}),
        (StorageFull("full"), "/api/v1/kv", 507, {"error": "full", "code": "storage_full"}),
        (InternalError("ours"), "/api/v1/push", 500, {"error": "ours", "code": "internal"}),
        (InternalError("ours"), "/api/v1/timers", 500,
         {"error": "timers_error", "reason": "timers_error", "detail": "ours"}),
        (QueenError("odd", code="c", reason="r", status=413), "/api/v1/kv", 413,
         {"error": "c", "reason": "r", "detail": "odd"}),
    ],
)  # fmt: skip
async def test_errors_of_the_broker_become_envelopes(error: QueenError, path: str, status: int, body: Any) -> None:
    """The family's shape where the route has a family; every 503 and 429 says when to come again."""
    reply, answer = await post(api(Failing(error)), path)
    assert (reply.status, answer) == (status, body)
    waits = {503: "1", 429: str(getattr(error, "retry_after", ""))}
    assert reply.headers.get("retry-after") == waits.get(status)
    assert reply.headers["content-type"] == "application/json"


async def test_a_fault_of_ours_is_logged_and_told_without_detail(caplog: pytest.LogCaptureFixture) -> None:
    """500, and in the log the method, the path and the traceback, but neither the body nor a header."""
    target = api(Failing(ZeroDivisionError("boom")))
    body = b'{"items":[{"queue":"q","payload":"s3cret"}]}'
    headers = {"authorization": "Bearer t0ken"}
    with caplog.at_level(logging.ERROR):
        reply = await target.handle(Request("POST", b"/api/v1/push", headers=headers, body=body))
    assert (reply.status, json.loads(reply.body)["code"]) == (500, "internal")
    (record,) = caplog.records
    assert (record.__dict__["method"], record.__dict__["path"]) == ("POST", "/api/v1/push")
    assert "boom" not in reply.body.decode()
    assert "ZeroDivisionError" in caplog.text
    assert "s3cret" not in caplog.text
    assert "t0ken" not in caplog.text


async def test_a_call_without_an_answer_ends_at_its_deadline(autojump_clock: trio.testing.MockClock) -> None:
    """503 after 30 s: no caller waits for ever."""
    started = trio.current_time()
    reply, answer = await post(api(Failing()), "/api/v1/kv")
    assert (reply.status, answer["reason"]) == (503, "kv_timeout")
    assert trio.current_time() - started == pytest.approx(30)


async def test_cancelling_the_caller_cancels_the_operation() -> None:
    """A transport whose peer is gone cancels `handle`, and with it what the broker does for it."""
    ended: list[str] = []

    async def pop(request: Any) -> Any:
        try:
            await trio.sleep_forever()
        finally:
            ended.append("pop")

    with trio.move_on_after(0.01):
        await api(SimpleNamespace(pop=pop)).handle(Request("GET", b"/api/v1/pop/queue/q", b"wait=true"))
    assert ended == ["pop"]

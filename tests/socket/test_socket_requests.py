"""websocket.md, section 2: requests and replies."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
import trio
from socket_peer import House, acks, house, items

from queen_actors import limits
from queen_actors.api import Request
from queen_actors.config import Settings
from queen_actors.storage.memory import Faults

VIRTUAL_TIME = True


async def over_http(hall: House, method: str, path: str, body: object = None, query: bytes = b"") -> tuple[int, Any]:
    """What the HTTP route answers."""
    sent = b"" if body is None else json.dumps(body).encode()
    reply = await hall.api.handle(Request(method, path.encode(), query, {}, sent))
    return reply.status, json.loads(reply.body) if reply.body else None


@pytest.mark.parametrize("id", [7, 0, -1.5, "x", "", "ü\n", True, False, 12345678901234567890123])
async def test_the_id_is_any_scalar_and_comes_back(hall: House, id: object) -> None:
    """The id is any JSON scalar that the client chose."""
    peer = await hall.peer()
    await peer.say({"id": id, "op": "push", "items": []})
    assert await peer.reply(id) == {"id": id, "ok": True, "status": 201, "body": []}


async def test_the_id_comes_back_as_it_was_spelled(hall: House) -> None:
    """A number keeps its digits, whatever a parser would make of it."""
    peer = await hall.peer()
    await peer.say('{"id":1.0000000000000000001e2,"op":"push","items":[]}')
    await peer.expect(lambda message: message.get("ok"))
    assert peer.raw_texts[-1] == '{"id":1.0000000000000000001e2,"ok":true,"status":201,"body":[]}'


@pytest.mark.parametrize("id", [[1], {"a": 1}])
async def test_an_id_that_is_no_scalar(hall: House, id: object) -> None:
    """A bad field is an error, and the connection goes on."""
    peer = await hall.peer()
    await peer.say({"id": id, "op": "push", "items": []})
    assert (await peer.event("error"))["status"] == 400
    assert (await peer.ask("push", items=[]))["ok"]


async def test_an_error_reply_has_the_http_error_body(hall: House) -> None:
    """`error` is exactly the error body that the HTTP route would answer."""
    peer = await hall.peer()
    reply = await peer.ask("kv", operations=[{"op": "get", "ns": "", "key": "k"}])
    status, body = await over_http(hall, "POST", "/api/v1/kv", {"operations": [{"op": "get", "ns": "", "key": "k"}]})
    assert reply == {"id": reply["id"], "ok": False, "status": status, "error": body}
    assert (body["error"], body["reason"]) == ("kv_bad_request", "kv_bad_namespace")


async def test_without_an_id_success_is_silent(hall: House) -> None:
    """A request without an id, or with null, gets no reply when it succeeds."""
    peer = await hall.peer()
    await peer.say(
        {"op": "push", "items": items("q", 1)},
        {"id": None, "op": "push", "items": items("q", 2)},
    )
    popped = await peer.ask("pop", queue="q", batch=10)
    assert [message["data"] for message in popped["body"]["messages"]] == [1, 2]
    assert peer.received == []


async def test_without_an_id_failure_is_told(hall: House) -> None:
    """When it fails, an error event says so. Never silence."""
    peer = await hall.peer()
    await peer.say({"op": "push", "items": "x"}, {"id": None, "op": "nonsense"})
    first, second = await peer.event("error"), await peer.event("error")
    assert (first["op"], first["status"]) == ("push", 400)
    assert first["error"]["error"]
    assert (second["op"], second["status"]) == ("nonsense", 400)


@pytest.mark.parametrize("op", ["", None, 7, [], "nonsense", "PUSH", "tail\u0000"])
async def test_an_unknown_op_is_an_error_reply(hall: House, op: object) -> None:
    """An unknown op: an error reply, and the connection goes on."""
    peer = await hall.peer()
    await peer.say({"id": 1, "op": op})
    reply = await peer.reply(1)
    assert (reply["ok"], reply["status"]) == (False, 400)
    assert reply["error"]["error"]
    await peer.say({"id": 2})
    assert not (await peer.reply(2))["ok"]
    assert (await peer.ask("push", items=[]))["ok"]


async def test_verdicts_are_ok(hall: House) -> None:
    """A lost `expect`, a held lock and a rolled-back transaction are `ok:true`, as on HTTP."""
    peer = await hall.peer()
    lost = await peer.ask(
        "kv", operations=[{"op": "put", "ns": "n", "key": "k", "forever": True, "value": 1, "expect": 9}]
    )
    assert (lost["ok"], lost["status"], lost["body"]["results"][0]["applied"]) == (True, 200, False)
    lock = {"op": "acquire", "name": "l", "ttlSeconds": 30}
    await peer.ask("locks", operations=[{**lock, "owner": "a"}])
    held = await peer.ask("locks", operations=[{**lock, "owner": "b"}])
    assert (held["ok"], held["body"]["results"][0]["acquired"]) == (True, False)
    put = {"op": "put", "ns": "n", "key": "k", "forever": True, "value": 1, "expect": 9, "required": True}
    rolled = await peer.ask("transaction", operations=[{"type": "push", "queue": "q", "payload": 1}], kv=[put])
    assert (rolled["ok"], rolled["body"]["success"], rolled["body"]["reason"]) == (True, False, "kv_precondition")


# -- each op is its route ----------------------------------------------------------------------------------------------


async def test_op_push(hall: House) -> None:
    """`push` is `POST /api/v1/push`."""
    peer = await hall.peer()
    item = {"queue": "q", "partition": "p", "payload": {"n": 1}, "transactionId": "t1"}
    reply = await peer.ask("push", items=[item])
    assert (reply["ok"], reply["status"]) == (True, 201)
    assert reply["body"][0]["status"] == "queued"
    _, again = await over_http(hall, "POST", "/api/v1/push", {"items": [item]})
    assert again[0] == {**reply["body"][0], "status": "duplicate"}


async def test_op_pop(hall: House) -> None:
    """`pop` is `GET /api/v1/pop...`, the query parameters as fields: pinned, wildcard and discovery."""
    peer = await hall.peer()
    await peer.ask("configure", queue="a/b?c", namespace="ns", task="t")
    await peer.ask("push", items=items("a/b?c", 1, 2, partition="p/1") + items("a/b?c", 3, partition="p2"))
    pinned = await peer.ask("pop", queue="a/b?c", partition="p/1", batch=1, consumerGroup="g1")
    assert [m["data"] for m in pinned["body"]["messages"]] == [1]
    wild = await peer.ask("pop", queue="a/b?c", partition=None, partitions=2, consumerGroup="g2", autoAck=True)
    assert sorted(m["data"] for m in wild["body"]["messages"]) == [1, 2, 3]
    assert wild["body"]["leaseId"] == ""
    found = await peer.ask(
        "pop", namespace="ns", task="t", consumerGroup="g3", leaseSeconds="5", subscriptionMode="all"
    )
    assert found["body"]["success"]


async def test_op_pop_empty_is_204(hall: House) -> None:
    """decisions.md: an empty `pop` is `ok:true, status:204, body:null`."""
    peer = await hall.peer()
    reply = await peer.ask("pop", queue="q")
    assert reply == {"id": reply["id"], "ok": True, "status": 204, "body": None}


async def test_op_pop_waits(hall: House) -> None:
    """A pop that waits gets what is pushed meanwhile, or 204 when its time is over."""
    peer = await hall.peer()
    await peer.say({"id": 1, "op": "pop", "queue": "q", "wait": True, "timeout": 5000})
    await trio.sleep(3)
    assert peer.received == []
    await peer.ask("push", items=items("q", 1))
    assert (await peer.reply(1))["body"]["messages"][0]["data"] == 1
    began = trio.current_time()
    await peer.say({"id": 2, "op": "pop", "queue": "q", "wait": True, "timeout": 5000})
    assert (await peer.reply(2))["status"] == 204
    assert trio.current_time() - began == pytest.approx(5, abs=0.1)


async def test_op_pop_with_neither_queue_nor_labels(hall: House) -> None:
    """It fails as the route does."""
    peer = await hall.peer()
    reply = await peer.ask("pop")
    _, body = await over_http(hall, "GET", "/api/v1/pop")
    assert (reply["status"], reply["error"]) == (400, body)


@pytest.mark.parametrize("field", [{"batch": [1]}, {"queue": {}}, {"consumerGroup": []}, {"wait": {}}])
async def test_op_pop_with_a_bad_field(hall: House, field: dict[str, object]) -> None:
    """A bad field: an error reply."""
    peer = await hall.peer()
    assert (await peer.ask("pop", **{"queue": "q", **field}))["status"] == 400


async def test_op_ack(hall: House) -> None:
    """`ack` is `POST /api/v1/ack/batch`."""
    peer = await hall.peer()
    await peer.ask("push", items=items("q", 1, 2))
    popped = await peer.ask("pop", queue="q", consumerGroup="g", subscriptionMode="all")
    reply = await peer.ask("ack", acknowledgments=acks(popped["body"]), consumerGroup="g")
    assert (reply["ok"], reply["status"]) == (True, 200)
    assert [(entry["index"], entry["success"]) for entry in reply["body"]] == [(0, True), (1, True)]
    assert (await peer.ask("pop", queue="q", consumerGroup="g"))["status"] == 204


async def test_op_extend(hall: House) -> None:
    """`extend` is `POST /api/v1/lease/:id/extend`."""
    peer = await hall.peer()
    await peer.ask("push", items=items("q", 1))
    popped = await peer.ask("pop", queue="q", leaseSeconds=2)
    reply = await peer.ask("extend", leaseId=popped["body"]["leaseId"], seconds=100)
    assert (reply["body"]["success"], reply["body"]["renewed"]) == (True, 1)
    await trio.sleep(50)
    assert (await peer.ask("pop", queue="q"))["status"] == 204
    unknown = await peer.ask("extend", leaseId="a/b%?#")
    assert (unknown["ok"], unknown["body"]["leaseId"], unknown["body"]["renewed"]) == (True, "a/b%?#", 0)
    assert (await peer.ask("extend", seconds=5))["status"] == 400


async def test_op_transaction(hall: House) -> None:
    """`transaction` is `POST /api/v1/transaction`, its riders included."""
    peer = await hall.peer()
    payload = base64.b64encode(b"1").decode()
    reply = await peer.ask(
        "transaction",
        operations=[{"type": "push", "queue": "q", "payload": 1, "transactionId": "t1"}],
        requiredLeases=[],
        kv=[{"op": "put", "ns": "n", "key": "k", "forever": True, "value": 2}],
        timers=[{"op": "schedule", "queue": "q", "timerKey": "k", "payload": payload, "delayMs": 9000, "txn": "t2"}],
    )
    assert (reply["ok"], reply["body"]["success"]) == (True, True)
    assert [result["type"] for result in reply["body"]["results"]] == ["push", "kv", "timer"]
    empty = await peer.ask("transaction")
    assert (empty["ok"], empty["status"], empty["error"]["reason"]) == (False, 400, "bad_request")


async def test_op_kv_and_locks(hall: House) -> None:
    """`kv` is `POST /api/v1/kv`, `locks` is `POST /api/v1/locks`."""
    peer = await hall.peer()
    await peer.ask(
        "kv", operations=[{"op": "put", "ns": "n", "key": "k", "forever": True, "value": {"b": 1.50, "a": 2}}]
    )
    read = await peer.ask("kv", operations=[{"op": "get", "ns": "n", "key": "k"}])
    _, body = await over_http(hall, "POST", "/api/v1/kv", {"operations": [{"op": "get", "ns": "n", "key": "k"}]})
    assert read["body"] == body
    lock = {"op": "acquire", "name": "l", "owner": "o", "ttlSeconds": 30}
    assert (await peer.ask("locks", operations=[lock]))["body"]["results"][0]["acquired"]


async def test_op_timers_and_their_reads(hall: House) -> None:
    """`timers` (cancel included), `timer.get` and `timer.list` are the timer routes."""
    peer = await hall.peer()
    queue, key = "a/b", "order/9137 x?"
    payload = base64.b64encode(b'{"n":1}').decode()
    timer = {"op": "schedule", "queue": queue, "timerKey": key, "payload": payload, "delayMs": 60000, "txn": "t"}
    assert (await peer.ask("timers", operations=[timer]))["body"]["results"][0]["status"] == "scheduled"
    got = await peer.ask("timer.get", queue=queue, timerKey=key)
    assert (got["body"]["found"], got["body"]["timerKey"], got["body"]["payload"]) == (True, key, payload)
    missing = await peer.ask("timer.get", queue=queue, timerKey="none")
    assert missing["body"] == {"found": False, "queue": queue, "timerKey": "none"}
    listed = await peer.ask("timer.list", queue=queue, after=None, limit=10)
    assert [row["timerKey"] for row in listed["body"]["rows"]] == [key]
    assert (await peer.ask("timer.list", queue=queue, after=key))["body"]["rows"] == []
    assert (await peer.ask("timer.get", queue=queue))["status"] == 400
    assert (await peer.ask("timer.list"))["status"] == 400
    cancelled = await peer.ask("timers", operations=[{"op": "cancel", "queue": queue, "timerKey": key}])
    assert cancelled["body"]["results"][0]["status"] == "cancelled"


async def test_op_configure(hall: House) -> None:
    """`configure` takes what the route takes."""
    peer = await hall.peer()
    reply = await peer.ask("configure", queue="q", namespace="ns", options={"leaseTime": 7, "deliveryLimit": 3})
    assert (reply["body"]["configured"], reply["body"]["options"]["leaseTime"]) == (True, 7)
    top = await peer.ask("configure", queue="q", leaseTime=8)
    assert (top["body"]["options"]["leaseTime"], top["body"]["namespace"]) == (8, "ns")


async def test_payloads_are_never_decoded(hall: House) -> None:
    """Numbers, escapes and duplicate keys of a payload arrive as they were sent, through both faces."""
    peer = await hall.peer()
    payload = '{"n":9007199254740993,"x":1e-7,"d":0.10,"k":1,"k":2,"s":"\\u00e9\\/"}'
    await peer.say('{"id":1,"op":"push","items":[{"queue":"q","payload":' + payload + "}]}")
    await peer.reply(1)
    await peer.ask("pop", queue="q", autoAck=True)
    assert payload in peer.raw_texts[-1]


async def test_a_reply_is_the_routes_answer_to_the_byte(hall: House) -> None:
    """`body` is exactly what the HTTP route would answer."""
    peer = await hall.peer()
    await peer.ask("kv", operations=[{"op": "put", "ns": "n", "key": "k", "forever": True, "value": [1, {"ü": None}]}])
    operations = [{"op": "get", "ns": "n", "key": "k"}]
    reply = await hall.api.handle(
        Request("POST", b"/api/v1/kv", b"", {}, json.dumps({"operations": operations}).encode())
    )
    await peer.say({"id": 1, "op": "kv", "operations": operations})
    await peer.reply(1)
    assert peer.raw_texts[-1] == '{"id":1,"ok":true,"status":200,"body":' + reply.body.decode() + "}"


# -- order and pipelining ----------------------------------------------------------------------------------------------


async def test_requests_take_effect_in_the_order_sent() -> None:
    """Requests are pipelined without waiting and take effect in order, however long the disk takes."""
    async with house(faults=Faults(latency=0.05)) as hall:
        peer = await hall.peer()
        requests = []
        for n in range(200):
            op = {"op": "put", "ns": "n", "key": "k", "forever": True, "value": n}
            requests.append({"id": f"kv{n}", "op": "kv", "operations": [op]})
            requests.append({"id": f"push{n}", "op": "push", "items": items("q", n)})
        began = trio.current_time()
        await peer.say(*requests)
        versions = [(await peer.reply(f"kv{n}"))["body"]["results"][0]["version"] for n in range(200)]
        offsets = [(await peer.reply(f"push{n}"))["body"][0]["offset"] for n in range(200)]
        assert versions == sorted(versions)
        assert offsets == list(range(200))
        assert trio.current_time() - began < 1, "they shared their commits"


async def test_in_order_although_one_must_be_loaded() -> None:
    """An ack that must read its message from a segment before it can be decided is not overtaken by what follows it."""
    faults = Faults()
    async with house(Settings(data=None, record_cache_bytes=1), faults=faults) as hall:
        peer = await hall.peer()
        await peer.ask("push", items=items("q", 1, 2))
        popped = await peer.ask("pop", queue="q", batch=1)
        await hall.broker.seal()
        faults.read_latency = 1
        await peer.say(
            {"id": 1, "op": "ack", "acknowledgments": acks(popped["body"], status="dlq")},
            {"id": 2, "op": "pop", "queue": "q", "batch": 1},
            {"id": 3, "op": "kv", "operations": [{"op": "get", "ns": "n", "key": "k"}]},
        )
        began = trio.current_time()
        await peer.reply(1)
        assert trio.current_time() - began >= 1, "it had to be read"
        assert [m["data"] for m in (await peer.reply(2))["body"]["messages"]] == [2]


async def test_push_then_pop_sees_the_push() -> None:
    """What is pipelined behind a push sees it."""
    async with house(faults=Faults(latency=0.05)) as hall:
        peer = await hall.peer()
        for n in range(20):
            await peer.say(
                {"id": f"a{n}", "op": "push", "items": items("q", n)},
                {"id": f"b{n}", "op": "pop", "queue": "q", "autoAck": True},
            )
            assert [m["data"] for m in (await peer.reply(f"b{n}"))["body"]["messages"]] == [n]


async def test_a_parked_pop_blocks_nobody(hall: House) -> None:
    """Replies may overtake each other between independent requests: a pop that waits holds up nothing behind it."""
    peer = await hall.peer()
    await peer.say({"id": 1, "op": "pop", "queue": "q", "wait": True}, {"id": 2, "op": "push", "items": items("q", 1)})
    assert (await peer.reply(2))["ok"]
    assert (await peer.reply(1))["body"]["messages"][0]["data"] == 1


async def test_no_ok_before_it_is_durable() -> None:
    """No reply says `ok` before what it reports is durable."""
    faults = Faults(latency=2)
    async with house(faults=faults) as hall:
        peer = await hall.peer()
        await peer.say(
            {"id": 1, "op": "push", "items": items("q", 1)},
            {"id": 2, "op": "kv", "operations": [{"op": "put", "ns": "n", "key": "k", "forever": True, "value": 1}]},
            {"id": 3, "op": "pop", "queue": "q", "autoAck": True},
            {"id": 4, "op": "kv", "operations": [{"op": "get", "ns": "n", "key": "k"}]},
        )
        await trio.sleep(1.9)
        assert peer.received == []
        for id in (1, 2, 3, 4):
            assert (await peer.reply(id))["ok"]


async def test_a_full_disk_is_an_error_reply() -> None:
    """What cannot be stored is refused as over HTTP, and the connection goes on."""
    faults = Faults(full=True)
    async with house(faults=faults) as hall:
        peer = await hall.peer()
        assert (await peer.ask("push", items=items("q", 1)))["status"] == 507
        faults.full = False
        await trio.sleep(5)
        assert (await peer.ask("push", items=items("q", 1)))["status"] == 201


async def test_as_many_under_way_as_may_be(hall: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """Past the bound of requests under way the reader stops reading, until one is answered; none is lost."""
    monkeypatch.setattr(limits, "WS_PIPELINE", 4)
    peer = await hall.peer()
    parked = [{"id": n, "op": "pop", "queue": f"q{n}", "wait": True, "timeout": 10000} for n in range(4)]
    await peer.say(*parked, {"id": "late", "op": "push", "items": items("q9", 1)})
    await trio.sleep(9)
    assert peer.received == []
    for n in range(4):
        assert (await peer.reply(n))["status"] == 204
    assert (await peer.reply("late"))["ok"]


async def test_as_many_bytes_under_way_as_may_be(hall: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the requests under way take in memory is bounded too; one alone may take more."""
    monkeypatch.setattr(limits, "WS_PIPELINE_BYTES", 1000)
    peer = await hall.peer()
    await peer.say({"id": 0, "op": "push", "items": items("q9", "x" * 5000)})
    assert (await peer.reply(0))["ok"]
    await peer.say(
        {"id": 1, "op": "pop", "queue": "q", "wait": True, "timeout": 10000, "padding": "x" * 600},
        {"id": 2, "op": "push", "items": [], "padding": "x" * 200},
        {"id": 3, "op": "push", "items": [], "padding": "x" * 600},
    )
    assert (await peer.reply(2))["ok"]
    await trio.sleep(9)
    assert peer.received == []
    assert (await peer.reply(1))["status"] == 204
    assert (await peer.reply(3))["ok"]


async def test_a_reader_that_had_to_stop_does_not_drop_its_peer(hall: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the reader waits for a place, pongs lie unread: the peer is not taken for dead."""
    monkeypatch.setattr(limits, "WS_PIPELINE", 1)
    peer = await hall.peer()
    await peer.say({"id": 1, "op": "pop", "queue": "q", "wait": True, "timeout": 60000})
    await peer.say({"id": 2, "op": "pop", "queue": "q", "wait": True, "timeout": 60000})
    for n in range(3, 9):
        await peer.say({"id": n, "op": "push", "items": []})
    await trio.sleep(119)
    assert not peer.ended.is_set()
    assert (await peer.reply(8))["ok"]


async def test_too_many_pops_under_way(hall: House) -> None:
    """Each pop may come back with megabytes, so their number is bounded; one too many is refused, the others go on."""
    peer = await hall.peer()
    await peer.say(*[{"id": n, "op": "pop", "queue": "q", "wait": True} for n in range(limits.WS_POPS)])
    refused = await peer.ask("pop", queue="q", wait=True)
    assert (refused["status"], refused["error"]["code"]) == (429, "overloaded")
    await peer.ask("push", items=items("q", 1))
    assert (await peer.expect(lambda message: message.get("status") == 200))["body"]["messages"]


# -- the end -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["close", "end of stream"])
async def test_an_ack_before_the_end_is_applied(ending: str) -> None:
    """A request that was received is carried out, although the connection ends right behind it."""
    async with house(faults=Faults(latency=0.05)) as hall:
        peer = await hall.peer()
        await peer.ask("push", items=items("q", 1, 2))
        popped = await peer.ask("pop", queue="q", batch=1, leaseSeconds=600)
        await peer.say({"op": "ack", "acknowledgments": acks(popped["body"])}, {"op": "push", "items": items("q", 3)})
        if ending == "close":
            await peer.close()
        else:
            await peer.stream.aclose()
        other = await hall.peer()
        await trio.sleep(0.5)
        rest = await other.ask("pop", queue="q", batch=10)
        assert [m["data"] for m in rest["body"]["messages"]] == [2, 3]
        assert hall.sockets.open == 1


async def test_a_parked_pop_of_a_closed_connection_takes_nothing(hall: House) -> None:
    """A pop whose caller is gone claims nothing any more."""
    peer = await hall.peer()
    await peer.say({"id": 1, "op": "pop", "queue": "q", "wait": True, "timeout": 60000})
    await trio.sleep(1)
    await peer.close()
    await peer.ended.wait()
    other = await hall.peer()
    await other.ask("push", items=items("q", 1))
    popped = await other.ask("pop", queue="q")
    assert popped["body"]["messages"][0]["deliveryAttempt"] == 1


async def test_leases_of_the_op_pop_keep_their_time(hall: House) -> None:
    """A02. The op `pop` is the HTTP route: its lease has its time, and does not live with the connection."""
    peer = await hall.peer()
    await peer.ask("push", items=items("q", 1))
    await peer.ask("pop", queue="q", leaseSeconds=30)
    await peer.close()
    other = await hall.peer()
    assert (await other.ask("pop", queue="q", wait=True, timeout=25000))["status"] == 204
    popped = await other.ask("pop", queue="q", wait=True, timeout=10000)
    assert popped["body"]["messages"][0]["deliveryAttempt"] == 2

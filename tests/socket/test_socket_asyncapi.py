"""The AsyncAPI description says what the server does: its examples go to a real one, and the answers are compared."""

from __future__ import annotations

from typing import Any

import jwt
import msgspec
import pytest
import trio
from socket_peer import House, Peer, house, items

from queen_actors.api.auth import authorizer
from queen_actors.api.protocol import EVENT_RECORDS, EVENTS, OPERATIONS
from queen_actors.config import Settings
from queen_actors.serve import socket_routes
from queen_actors.serve.session import Session

VIRTUAL_TIME = True
SECRET = "a secret of at least thirty-two bytes"


def shape(told: Any, example: Any, place: str = "") -> None:
    """All that the example shows is in what was told, with the same JSON types; a null stands for any."""
    if example is None or told is None:
        return
    if isinstance(example, dict):
        assert isinstance(told, dict), place
        assert example.keys() <= told.keys(), (place, told)
        for name, value in example.items():
            shape(told[name], value, f"{place}.{name}")
    elif isinstance(example, list):
        assert isinstance(told, list), place
        assert told, (place, "there is nothing to compare")
        shape(told[0], example[0], f"{place}[0]")
    else:
        kinds = (int, float) if type(example) in (int, float) else (type(example),)
        assert type(told) in kinds, (place, told)


async def test_every_operation_answers_as_its_example(hall: House) -> None:
    """In the order of the table, with the ids that the answers before gave."""
    peer = await hall.peer()
    known: dict[str, Any] = {}

    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: known.get(name, filled(one)) for name, one in value.items()}
        return [filled(one) for one in value] if isinstance(value, list) else value

    for op, operation in OPERATIONS.items():
        if op in ("ping", "auth"):
            continue
        reply = await peer.ask(op, **filled(dict(operation.request)))
        assert (reply["ok"], reply["status"]) == (True, operation.status), (op, reply)
        shape(reply["body"], operation.body, op)
        if op == "pop":
            (message,) = reply["body"]["messages"]
            known = {name: message[name] for name in ("partitionId", "leaseId")}
        elif op == "unwatch":
            await peer.say({"id": 7, "op": "ping"})
            assert await peer.event("pong") == EVENTS["pong"].example


async def test_a_token_is_taken_as_the_example_gives_it() -> None:
    """The first frame of who did not say it before."""
    settings = Settings(data=None, jwt_secret=SECRET)
    async with house(settings, authorize=authorizer(settings)) as hall:
        peer = await hall.peer()
        token = jwt.encode({"role": "admin"}, SECRET, algorithm="HS256")
        reply = await peer.ask("auth", **{**OPERATIONS["auth"].request, "token": token})
        assert reply["body"] == OPERATIONS["auth"].body


async def test_every_event_is_told_as_its_example(hall: House) -> None:
    """Each is brought about, and has the fields of its example and no others."""
    peer = await hall.connect()
    told = {"welcome": await peer.event("welcome")}
    await bring_about(hall, peer, told)
    await peer.say({"id": 7, "op": "ping"})
    told["pong"] = await peer.event("pong")
    await peer.say({"op": "unsubscribe", "sub": "nobody"})
    told["error"] = await peer.event("error")
    assert told.keys() == EVENTS.keys() - {"gap"}  # test_socket_tail.py has retention make one
    for name, event in told.items():
        example = EVENTS[name].example
        assert event.keys() == example.keys() - ({"sub"} if name == "error" else set()), name
        shape({"sub": None, **event}, example, name)
        if name in EVENT_RECORDS:
            msgspec.json.decode(msgspec.json.encode(event), type=EVENT_RECORDS[name])


async def bring_about(hall: House, peer: Peer, told: dict[str, Any]) -> None:
    await peer.ask("push", items=items("orders", {"amount": 120}, partition="customer-42"))
    await peer.ask("subscribe", sub="s1", queue="orders", group="billing", leaseSeconds=5, maxLeaseSeconds=8)
    told["messages"] = await peer.event("messages", sub="s1")
    told["lease"] = await peer.event("lease")
    await peer.ask("tail", sub="t1", queue="orders", **{"from": "start"})
    told["tailMessages"] = await peer.event("messages", sub="t1")
    await peer.ask("watch", watch="w1", ns="carts", prefix="c")
    await peer.ask("kv", operations=[{"op": "put", "ns": "carts", "key": "c", "value": {"items": 1}, "ttlSeconds": 5}])
    told["kv"] = await peer.event("kv")
    await peer.ask("lock.acquire", name="daily-report", ttlSeconds=5, owner="w1")
    await trio.sleep(6)
    told["lock"] = await peer.event("lock")


async def test_no_operation_is_left_out(hall: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a session takes is described, and what is described it takes (the test above)."""
    sessions: list[Session] = []
    run = Session.run

    async def watched(session: Session) -> None:
        sessions.append(session)
        await run(session)

    monkeypatch.setattr(Session, "run", watched)
    await hall.peer()
    assert OPERATIONS.keys() == socket_routes.ROUTES.keys() | sessions[0]._own.keys() | {"ping", "auth"}

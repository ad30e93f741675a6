"""websocket.md, section 5: watches."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from socket_peer import House, Peer, house, narrow_peer

from queen_actors import limits
from queen_actors.api import Request
from queen_actors.domain.watch import WatchTerms
from queen_actors.storage.memory import Faults

VIRTUAL_TIME = True


async def kv(hall: House, *ops: dict[str, Any]) -> list[dict[str, Any]]:
    """A call by somebody else."""
    body = json.dumps({"operations": ops}).encode()
    reply = await hall.api.handle(Request("POST", b"/api/v1/kv", b"", {}, body))
    assert reply.status == 200, reply
    results: list[dict[str, Any]] = json.loads(reply.body)["results"]
    return results


def op_put(key: str, value: Any, ttl: int | None = None, ns: str = "carts") -> dict[str, Any]:
    life: dict[str, Any] = {"forever": True} if ttl is None else {"ttlSeconds": ttl}
    return {"op": "put", "ns": ns, "key": key, "value": value, **life}


async def put(hall: House, key: str, value: Any, ttl: int | None = None, ns: str = "carts") -> int:
    """Returns the version."""
    (result,) = await kv(hall, op_put(key, value, ttl, ns))
    version: int = result["version"]
    return version


async def delete(hall: House, key: str) -> None:
    assert (await kv(hall, {"op": "delete", "ns": "carts", "key": key}))[0]["applied"]


async def watch(peer: Peer, name: str = "w", **fields: Any) -> dict[str, Any]:
    """The body of the reply."""
    reply = await peer.ask("watch", watch=name, ns="carts", **fields)
    assert reply["ok"], reply
    body: dict[str, Any] = reply["body"]
    return body


async def changes(peer: Peer, count: int, name: str = "w") -> list[tuple[Any, ...]]:
    """The next changes, until there are so many."""
    found: list[tuple[Any, ...]] = []
    while len(found) < count:
        event = await peer.event("kv", watch=name)
        found += [(one["op"], one["key"], one["value"]) for one in event["changes"]]
    return found


async def silent(peer: Peer, seconds: float = 5) -> bool:
    await trio.sleep(seconds)
    return not peer.events("kv")


async def test_the_reply_has_the_rows_and_the_version(hall: House) -> None:
    """The current rows as a read gives them, in byte order, and the version; what has expired is none of them."""
    await put(hall, "customer-1", {"items": 1}, 1)
    await put(hall, "customer-3", {"items": 3.0})
    await put(hall, "customer-2", {"items": 2}, 60)
    last = await put(hall, "visitor", 1)
    await trio.sleep(1.5)
    peer = await hall.peer()
    body = await watch(peer, prefix="customer-")
    (read,) = await kv(hall, {"op": "getPrefix", "ns": "carts", "prefix": "customer-"})
    assert body == {"watch": "w", "version": last, "rows": read["rows"]}
    assert [row["key"] for row in body["rows"]] == ["customer-2", "customer-3"]
    assert (await watch(peer, "one", key="visitor"))["rows"][0].keys() == read["rows"][0].keys()
    assert (await watch(peer, "none", key="nobody")) == {"watch": "none", "version": last, "rows": []}


async def test_one_key(hall: House) -> None:
    """With `key` its changes only: a put, a delete, and an increment, which is a put."""
    peer = await hall.peer()
    await watch(peer, key="a")
    version = await put(hall, "a", {"n": 1.50}, 60)
    await put(hall, "ab", 1)
    await put(hall, "a", 1, ns="other")
    event = await peer.event("kv")
    assert event.keys() == {"event", "watch", "changes"}
    (change,) = event["changes"]
    assert change.keys() == {"op", "key", "value", "version", "expiresAt"}
    (read,) = await kv(hall, {"op": "get", "ns": "carts", "key": "a"})
    assert change == {
        "op": "put",
        "key": "a",
        "value": {"n": 1.5},
        "version": version,
        "expiresAt": read["expiresAt"],
    }
    await delete(hall, "a")
    await kv(hall, {"op": "incr", "ns": "carts", "key": "a", "delta": 2, "forever": True})
    event = await peer.event("kv")
    assert event["changes"][0] == {
        "op": "delete",
        "key": "a",
        "value": None,
        "version": version + 3,
        "expiresAt": None,
    }
    assert await changes(peer, 1) == [("put", "a", 2)]
    assert await silent(peer)


async def test_a_prefix(hall: House) -> None:
    """With `prefix` every key under it, in the order of the versions, whichever way they were written."""
    peer = await hall.peer()
    await watch(peer, prefix="c-")
    await watch(peer, "longer", prefix="c-1")
    await kv(hall, op_put("c-2", 1), op_put("c-1", 2), op_put("d", 3))
    transaction = {
        "operations": [{"type": "push", "items": [{"queue": "q", "payload": 1}]}],
        "kv": [op_put("c-3", 3)],
    }
    assert (await peer.ask("transaction", **transaction))["ok"]
    await delete(hall, "c-1")
    found: list[dict[str, Any]] = []
    while len(found) < 4:
        found += (await peer.event("kv", watch="w"))["changes"]
    assert [(one["op"], one["key"]) for one in found] == [
        *(("put", "c-1"), ("put", "c-2"), ("put", "c-3"), ("delete", "c-1"))
    ]
    versions = [one["version"] for one in found]
    assert versions == sorted(versions)
    assert await changes(peer, 2, "longer") == [("put", "c-1", 2), ("delete", "c-1", None)]


async def test_a46_an_expiry_is_told_when_it_happens(hall: House) -> None:
    """A46. A key with a lifetime of 1 s: `put`, then `expire` within a second of its end, though nobody reads."""
    peer = await hall.peer()
    await watch(peer, prefix="customer-")
    version = await put(hall, "customer-1", 1, 1)
    written = trio.current_time()
    assert await changes(peer, 1) == [("put", "customer-1", 1)]
    (change,) = (await peer.event("kv"))["changes"]
    assert change == {"op": "expire", "key": "customer-1", "value": None, "version": version, "expiresAt": None}
    assert 1 <= trio.current_time() - written < 1.5


async def test_a46_resuming_from_a_version(hall: House) -> None:
    """A46. With `fromVersion` the reply has no rows, and all later changes come as events, deletes and expiries too;
    then what comes."""
    peer = await hall.peer()
    await watch(peer, prefix="c")
    await put(hall, "c1", 1, 1)
    version = await put(hall, "c2", 1)
    await peer.close()
    await put(hall, "c2", 2)
    await put(hall, "other", 1)
    await put(hall, "c2", 3)
    await trio.sleep(2)
    last = await put(hall, "c3", 1)
    await delete(hall, "c2")
    again = await hall.peer()
    assert await watch(again, prefix="c", fromVersion=version) == {"watch": "w", "version": last + 1}
    assert await changes(again, 5) == [
        *(("put", "c2", 2), ("put", "c2", 3), ("expire", "c1", None), ("put", "c3", 1), ("delete", "c2", None))
    ]
    await put(hall, "c4", 1)
    assert await changes(again, 1) == [("put", "c4", 1)]
    assert await silent(again)


async def test_resuming_where_nothing_happened(hall: House) -> None:
    """Nothing later: no event, and no gap."""
    version = await put(hall, "c", 1)
    peer = await hall.peer()
    assert await watch(peer, key="c", fromVersion=version) == {"watch": "w", "version": version}
    assert await silent(peer)


async def test_an_expiry_that_took_no_version_is_not_missed(hall: House) -> None:
    """An expiry has no version of its own: who has seen the version that was the last before it is told of it, rather
    twice than never."""
    await put(hall, "a", 1, 1)
    version = await put(hall, "b", 1)
    await trio.sleep(2)
    peer = await hall.peer()
    await watch(peer, prefix="a", fromVersion=version)
    assert await changes(peer, 1) == [("expire", "a", None)]


@pytest.mark.parametrize("how", ["too many", "too large", "of another log"])
async def test_a46_a_gap(hall: House, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """A46. When the later changes are not known any more, or the version is not one of this broker's, a first event
    says so and has the current rows."""
    monkeypatch.setattr(limits, "KV_HISTORY", 10 if how == "too many" else 1000)
    monkeypatch.setattr(limits, "KV_HISTORY_BYTES", 3000 if how == "too large" else 1 << 20)
    version = await put(hall, "c", 0)
    for number in range(1, 20):
        await put(hall, "c", number)
    last = await put(hall, "d", 1)
    peer = await hall.peer()
    asked = last + 10 if how == "of another log" else version
    assert await watch(peer, prefix="c", fromVersion=asked) == {"watch": "w", "version": last}
    event = await peer.event("kv")
    (row,) = event.pop("rows")
    assert event == {"event": "kv", "watch": "w", "changes": [], "coalesced": True, "gap": True, "version": last}
    assert (row["key"], row["value"], row["version"]) == ("c", 19, last - 1)
    await put(hall, "c", 20)
    assert await changes(peer, 1) == [("put", "c", 20)]
    assert await watch(peer, "recent", prefix="c", fromVersion=last - 2) == {"watch": "recent", "version": last + 1}
    assert await changes(peer, 2, "recent") == [("put", "c", 19), ("put", "c", 20)]


async def test_versions_of_the_first_write_on(hall: House) -> None:
    """Version 0 is before everything: on a new broker all changes are known from there."""
    for number in range(3):
        await put(hall, "c", number)
    peer = await hall.peer()
    await watch(peer, key="c", fromVersion=0)
    assert await changes(peer, 3) == [("put", "c", 0), ("put", "c", 1), ("put", "c", 2)]


async def test_an_expired_key_that_is_written_before_it_is_swept(hall: House) -> None:
    """First it expired, then it was written: both are told."""
    peer = await hall.peer()
    await watch(peer, key="c")
    await put(hall, "c", 1, 1)
    hall.broker._keys._agenda.discard(("carts", "c"))  # the sweep is late
    await trio.sleep(3)
    version = await put(hall, "c", 2)
    assert await changes(peer, 1) == [("put", "c", 1)]
    (event,) = [await peer.event("kv")]
    assert [(one["op"], one["version"]) for one in event["changes"]] == [("expire", version - 1), ("put", version)]


async def test_a_reader_that_keeps_up_gets_every_change(hall: House) -> None:
    """Several changes of one key in one group of the log are all told, one by one."""
    peer = await hall.peer()
    await watch(peer, key="c")
    writer = await hall.peer()
    await writer.say(*[{"op": "kv", "operations": [op_put("c", number)]} for number in range(100)])
    found = await changes(peer, 100)
    assert [value for _, _, value in found] == list(range(100))


async def test_a_reader_that_falls_behind(hall: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets the latest state of each key, and `coalesced`; after that every change again."""
    monkeypatch.setattr(limits, "WATCH_QUEUE", 20)
    peer, line = await narrow_peer(hall, 20_000)
    await watch(peer, prefix="c")
    big = "x" * 60_000
    for number in range(300):
        await put(hall, f"c{number % 10}", [number, big])
        await trio.sleep(0.01)
    await delete(hall, "c0")
    line.set_rate(1e9)
    seen: dict[str, Any] = {}
    coalesced, versions = False, list[int]()
    while "c9" not in seen or seen["c9"][0] != 299 or seen["c0"] is not None:
        event = await peer.event("kv")
        coalesced |= event.get("coalesced", False)
        assert len(event["changes"]) <= 20
        for change in event["changes"]:
            seen[change["key"]] = change["value"]
            versions.append(change["version"])
    assert coalesced
    assert versions == sorted(versions)
    assert len(versions) < 250
    assert {key: value and value[0] for key, value in seen.items()} == {
        "c0": None,
        **{f"c{number}": 290 + number for number in range(1, 10)},
    }
    await put(hall, "c1", 1)
    await put(hall, "c1", 2)
    event = await peer.event("kv")
    assert "coalesced" not in event
    assert event["changes"][0]["value"] == 1


async def test_a_reader_that_falls_behind_by_more_keys_than_may_be(
    hall: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is kept for it is bounded by keys too: then it begins again with the current rows."""
    monkeypatch.setattr(limits, "WATCH_QUEUE", 5)
    monkeypatch.setattr(limits, "WATCH_ROWS", 10)
    watching = hall.broker.watch(WatchTerms("carts", None, "c"))
    await watching.open()
    for number in range(20):
        await put(hall, f"c{number}", number)
    for number in range(15):
        await delete(hall, f"c{number}")
    (news,) = await watching.next()
    assert news.rows is not None
    assert [row.key for row in news.rows] == ["c15", "c16", "c17", "c18", "c19"]
    last = await put(hall, "c15", 1)
    (news,) = await watching.next()
    assert [change.version for change in news.changes] == [last]
    watching.close()


async def test_more_rows_than_one_watch_may_have(hall: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch of too much is refused; when it becomes too much for one that must begin again, it ends and says so."""
    monkeypatch.setattr(limits, "WATCH_ROWS", 3)
    monkeypatch.setattr(limits, "WATCH_QUEUE", 0)
    for number in range(3):
        await put(hall, f"c{number}", number)
    peer = await hall.peer()
    await watch(peer, prefix="c")
    await put(hall, "c3", 3)
    assert (await peer.ask("watch", watch="w2", ns="carts", prefix="c"))["error"]["code"] == "watch_too_large"
    assert (await peer.ask("watch", watch="w2", ns="carts", prefix="c", fromVersion=99))["status"] == 413
    peer.received.clear()
    await kv(hall, *[op_put(f"d{number}", 1) for number in range(5)], *[op_put(f"c{n}", 1) for n in range(4, 9)])
    event = await peer.event("error")
    assert (event["op"], event["sub"], event["status"]) == ("watch", "w", 413)
    assert len(hall.broker._watches) == 0


async def test_unwatch(hall: House) -> None:
    """It ends the watch, and the name is free again."""
    peer = await hall.peer()
    await watch(peer, key="c")
    assert (await peer.ask("watch", watch="w", ns="carts", key="d"))["status"] == 409
    assert (await peer.ask("unwatch", watch="w"))["body"] == {"watch": "w"}
    assert (await peer.ask("unwatch", watch="w"))["status"] == 404
    await put(hall, "c", 1)
    assert await silent(peer)
    await watch(peer, key="c")
    assert len(hall.broker._watches) == 1


async def test_a_connection_that_ends_watches_no_more(hall: House) -> None:
    """Nothing is noted for it any more."""
    peer = await hall.peer()
    await watch(peer, key="c")
    await watch(peer, "w2", prefix="c")
    await peer.close()
    await trio.sleep(1)
    assert len(hall.broker._watches) == 0


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"watch": "w", "ns": "carts"}, "kv_bad_key"),
        ({"watch": "w", "ns": "carts", "key": "a", "prefix": "b"}, "kv_bad_request"),
        ({"watch": "w", "key": "a"}, "kv_bad_namespace"),
        ({"watch": "w", "ns": "Carts", "key": "a"}, "kv_bad_namespace"),
        ({"watch": "w", "ns": "carts", "prefix": ""}, "kv_prefix_required"),
        ({"watch": "w", "ns": "carts", "key": "a\0"}, "kv_bad_key"),
        ({"ns": "carts", "key": "a"}, None),
        ({"watch": "", "ns": "carts", "key": "a"}, None),
        ({"watch": "w", "ns": "carts", "key": "a", "fromVersion": -1}, None),
        ({"watch": "w", "ns": "carts", "key": "a", "fromVersion": "1"}, None),
    ],
)
async def test_bad_fields(hall: House, fields: dict[str, Any], reason: str | None) -> None:
    """Namespace, key and prefix are refused as the KV routes refuse them; the connection goes on."""
    peer = await hall.peer()
    reply = await peer.ask("watch", **fields)
    assert (reply["ok"], reply["status"], reply["error"].get("reason")) == (False, 400, reason)
    await watch(peer, key="c")


async def test_permits_are_rows(hall: House) -> None:
    """Who holds a lock can be watched: its permits are rows of `queen-locks`."""
    peer = await hall.peer()
    assert (await peer.ask("watch", watch="w", ns="queen-locks", prefix="daily#"))["ok"]
    acquire = {"op": "acquire", "name": "daily", "ttlSeconds": 2, "owner": "w1"}
    granted = (await peer.ask("locks", operations=[acquire]))["body"]["results"][0]
    (change,) = (await peer.event("kv"))["changes"]
    assert (change["key"], change["value"], change["version"]) == ("daily#0", {"owner": "w1"}, granted["token"])
    assert (await peer.event("kv"))["changes"][0]["op"] == "expire"


async def test_nothing_is_told_that_is_not_durable() -> None:
    """What the disk refuses is never told. The watcher begins again with the rows, as the state did."""
    faults = Faults()
    async with house(faults=faults) as hall:
        await put(hall, "c", 1)
        peer = await hall.peer()
        await watch(peer, key="c")
        faults.full = True
        body = json.dumps({"operations": [op_put("c", 2)]}).encode()
        assert (await hall.api.handle(Request("POST", b"/api/v1/kv", b"", {}, body))).status == 507
        await trio.sleep(2)
        faults.full = False
        await trio.sleep(2)
        version = await put(hall, "c", 3)
        event = await peer.event("kv")
        assert event["gap"]
        assert [row["value"] for row in event["rows"]] == [1]
        (change,) = (await peer.event("kv"))["changes"]
        assert (change["value"], change["version"]) == (3, version)

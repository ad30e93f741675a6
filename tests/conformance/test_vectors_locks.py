"""Vectors 18 to 24 of wire-kv-locks-timers-transactions.md, section 10, and section 3: locks and semaphores.

Vector 24 (the handle that renews in the background) is with the published SDK, in tests/sdk.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock
from wire_kit import Wire, refusal

from queen_actors.values import parse_instant


def guard(name: str, slot: int, token: int) -> dict[str, Any]:
    return {"op": "check", "ns": "queen-locks", "key": f"{name}#{slot}", "expect": token, "required": True}


async def held_by(wire: Wire, name: str) -> list[tuple[int, str | None, int]]:
    got = await wire.lock("get", name)
    assert got["held"] is bool(got["holders"])
    return [(holder["slot"], holder["owner"], holder["token"]) for holder in got["holders"]]


async def test_vector_18_one_holder(timed: Wire, autojump_clock: MockClock) -> None:
    """Another owner learns who holds it; the same owner gets its permit again, which lives no longer for that."""
    mine = await timed.lock("acquire", "job", ttlSeconds=30, owner="a")
    token = mine["token"]
    permit = {"index": 0, "op": "acquire", "name": "job", "acquired": True, "slot": 0, "token": token, "owner": "a"}
    assert mine == {**permit, "guard": guard("job", 0, token)}
    refused = await timed.lock("acquire", "job", ttlSeconds=30, owner="b")
    base = {"index": 0, "op": "acquire", "name": "job", "acquired": False, "reason": "held"}
    assert refused == {**base, "holders": [{"slot": 0, "owner": "a"}]}
    (before,) = (await timed.lock("get", "job"))["holders"]
    await trio.sleep(10)
    assert await timed.lock("acquire", "job", ttlSeconds=30, owner="a") == {**mine, "already": True}
    assert (await timed.lock("get", "job"))["holders"] == [before]
    assert parse_instant(before["expiresAt"]) - parse_instant(before["since"]) == 30_000_000
    assert before["renewedAt"] == before["since"]


async def test_vector_18_without_an_owner(wire: Wire) -> None:
    """Nobody is recognised: the second acquire is refused, and the holder is null."""
    mine = await wire.lock("acquire", "job", ttlSeconds=30)
    assert (mine["acquired"], mine["owner"]) == (True, None)
    again = await wire.lock("acquire", "job", ttlSeconds=30, owner=None)
    assert (again["acquired"], again["holders"]) == (False, [{"slot": 0, "owner": None}])


async def test_vector_19_renew(timed: Wire, autojump_clock: MockClock) -> None:
    """A new, higher token each time; the old guard stops holding at once; a stale token is good with the owner only."""
    first = await timed.lock("acquire", "job", ttlSeconds=30, owner="a")
    await trio.sleep(10)
    second = await timed.lock("renew", "job", token=first["token"], ttlSeconds=60, owner="a")
    assert second["token"] > first["token"]
    base = {"index": 0, "op": "renew", "name": "job", "renewed": True, "slot": 0, "token": second["token"]}
    assert second == {**base, "guard": guard("job", 0, second["token"])}
    (holder,) = (await timed.lock("get", "job"))["holders"]
    assert parse_instant(holder["expiresAt"]) - parse_instant(holder["renewedAt"]) == 60_000_000
    assert parse_instant(holder["renewedAt"]) - parse_instant(holder["since"]) > 9_900_000
    lost = await timed.kv_call(first["guard"])
    assert (lost["kvReason"], lost["version"], lost["value"]["owner"]) == ("version", second["token"], "a")
    assert lost["value"]["since"] == holder["since"]
    assert (await timed.kv(second["guard"]))[0]["applied"] is True
    third = await timed.lock("renew", "job", token=first["token"], ttlSeconds=30, owner="a", slot=0)
    assert third["token"] > second["token"]
    for stale in ({}, {"owner": "b"}):
        lost = await timed.lock("renew", "job", token=first["token"], ttlSeconds=30, **stale)
        assert lost == {
            "index": 0,
            "op": "renew",
            "name": "job",
            "renewed": False,
            "reason": "lost",
            "slot": 0,
            "holders": [{"slot": 0, "owner": "a"}],
        }
    right = await timed.lock("renew", "job", token=third["token"], ttlSeconds=30, owner="b")
    assert right["renewed"] is True
    assert [owner for _, owner, _ in await held_by(timed, "job")] == ["a"]


async def test_renew_replaces_the_lifetime(timed: Wire, autojump_clock: MockClock) -> None:
    """Twenty renewals of 2 seconds still end after 2 seconds."""
    token = (await timed.lock("acquire", "job", ttlSeconds=2, owner="a"))["token"]
    for _ in range(20):
        token = (await timed.lock("renew", "job", token=token, ttlSeconds=2, owner="a"))["token"]
    await trio.sleep(2.1)
    assert (await timed.lock("acquire", "job", ttlSeconds=2, owner="b"))["acquired"] is True


async def test_vector_20_release(timed: Wire, autojump_clock: MockClock) -> None:
    """By the token alone; what has expired is gone for renew, release, guard and get alike."""
    first = await timed.lock("acquire", "job", ttlSeconds=5, owner="a")
    token = (await timed.lock("renew", "job", token=first["token"], ttlSeconds=5, owner="a"))["token"]
    stale = await timed.lock("release", "job", token=first["token"], owner="a")
    base = {"index": 0, "op": "release", "name": "job", "slot": 0}
    assert stale == {**base, "released": False, "reason": "lost", "holders": [{"slot": 0, "owner": "a"}]}
    await trio.sleep(5.1)
    renewed = await timed.lock("renew", "job", token=token, ttlSeconds=5, owner="a")
    assert (renewed["renewed"], renewed["reason"], renewed["holders"]) == (False, "lost", [])
    released = await timed.lock("release", "job", token=token)
    assert released == {**base, "released": False, "reason": "lost", "holders": []}
    assert await timed.lock("get", "job") == {"index": 0, "op": "get", "name": "job", "held": False, "holders": []}
    lost = await timed.kv_call(guard("job", 0, token))
    assert (lost["kvReason"], lost["version"], lost["value"]) == ("absent", 0, None)
    again = await timed.lock("acquire", "job", ttlSeconds=5, owner="b")
    assert again["token"] > token
    assert await timed.lock("release", "job", token=again["token"]) == {**base, "released": True}
    assert await held_by(timed, "job") == []


async def test_vector_21_a_semaphore(timed: Wire, autojump_clock: MockClock) -> None:
    """Two holders in two slots, no third; one that leaves or expires makes room, and tokens rise."""
    first = await timed.lock("acquire", "gpu", ttlSeconds=30, owner="a", limit=2)
    second = await timed.lock("acquire", "gpu", ttlSeconds=10, owner="b", limit=2)
    assert {first["slot"], second["slot"]} == {0, 1}
    third = await timed.lock("acquire", "gpu", ttlSeconds=30, owner="c", limit=2)
    assert (third["acquired"], third["reason"]) == (False, "held")
    assert third["holders"] == sorted(
        ({"slot": permit["slot"], "owner": permit["owner"]} for permit in (first, second)), key=lambda h: h["slot"]
    )
    assert (await timed.lock("acquire", "gpu", ttlSeconds=30, owner="b", limit=2))["already"] is True
    assert (await timed.lock("release", "gpu", token=first["token"], slot=first["slot"]))["released"] is True
    third = await timed.lock("acquire", "gpu", ttlSeconds=30, owner="c", limit=2)
    assert (third["acquired"], third["slot"]) == (True, first["slot"])
    assert third["token"] > second["token"] > first["token"]
    await trio.sleep(10.1)
    fourth = await timed.lock("acquire", "gpu", ttlSeconds=30, owner="d", limit=2)
    assert (fourth["acquired"], fourth["slot"]) == (True, second["slot"])
    assert fourth["token"] > third["token"]
    renewed = await timed.lock("renew", "gpu", token=third["token"], ttlSeconds=30, slot=third["slot"])
    assert renewed["guard"] == guard("gpu", third["slot"], renewed["token"])
    assert {owner for _, owner, _ in await held_by(timed, "gpu")} == {"c", "d"}


async def test_the_limit_is_each_callers_own(wire: Wire) -> None:
    """It is stored nowhere: a smaller limit does not see the slots above it, and `get` lists them all."""
    held = [await wire.lock("acquire", "gpu", ttlSeconds=30, owner=f"o{n}", limit=3) for n in range(3)]
    zero = next(permit for permit in held if permit["slot"] == 0)
    await wire.lock("release", "gpu", token=zero["token"])
    assert (await wire.lock("acquire", "gpu", ttlSeconds=30, owner="plain"))["slot"] == 0
    assert (await wire.lock("acquire", "gpu", ttlSeconds=30, owner="late"))["acquired"] is False
    assert [slot for slot, _, _ in await held_by(wire, "gpu")] == [0, 1, 2]


async def test_vector_22_a_permit_is_a_row(wire: Wire) -> None:
    """Read, deleted and overwritten through the KV routes: a delete frees the lock, a put moves its token."""
    mine = await wire.lock("acquire", "job", ttlSeconds=30, owner="a")
    row = await wire.get("job#0", ns="queen-locks")
    assert (row["value"], row["version"]) == ({"owner": "a"}, mine["token"])
    assert parse_instant(row["expiresAt"]) - parse_instant(row["updatedAt"]) == 30_000_000
    assert (await wire.kv1("delete", "queen-locks", "job#0"))["applied"] is True
    assert await held_by(wire, "job") == []
    theirs = await wire.lock("acquire", "job", ttlSeconds=30, owner="b")
    assert theirs["acquired"] is True
    moved = await wire.put("job#0", {"owner": "b"}, ns="queen-locks", ttlSeconds=30)
    assert await held_by(wire, "job") == [(0, "b", moved["version"])]
    assert (await wire.lock("release", "job", token=theirs["token"]))["released"] is False


BAD: list[tuple[str, Any]] = [
    ("locks_bad_request", 7),
    ("locks_bad_request", None),
    ("locks_unknown_op", {"op": "take", "name": "free", "ttlSeconds": 5}),
    ("locks_unknown_op", {"name": "free"}),
    ("locks_tenant_not_an_input", {"op": "get", "name": "free", "tenant": "x"}),
    ("locks_tenant_not_an_input", {"op": "get", "name": "free", "tenantId": "x"}),
    ("locks_tenant_not_an_input", {"op": "get", "name": "free", "_tenant": "x"}),
    *(
        ("locks_bad_name", {"op": "get", "name": name})
        for name in ("", "a#b", "a\nb", "\x7f", "\x9f", "x" * 257, 7, None)
    ),
    ("locks_bad_name", {"op": "get"}),
    ("locks_ttl_required", {"op": "acquire", "name": "free"}),
    ("locks_ttl_required", {"op": "acquire", "name": "free", "forever": True}),
    ("locks_ttl_required", {"op": "acquire", "name": "free", "ttlSeconds": 5, "forever": True}),
    *(
        ("locks_bad_ttl", {"op": "acquire", "name": "free", "ttlSeconds": ttl})
        for ttl in (30.0, 0, -1, "5", None, True, 10**12 + 1)
    ),
    *(
        ("locks_bad_owner", {"op": "acquire", "name": "free", "ttlSeconds": 5, "owner": owner})
        for owner in ("", "a\nb", "x" * 257, 7)
    ),
    *(
        ("locks_bad_limit", {"op": "acquire", "name": "free", "ttlSeconds": 5, "limit": limit})
        for limit in (0, 1025, 1.5, "2", None)
    ),
    ("locks_token_required", {"op": "renew", "name": "held", "ttlSeconds": 5}),
    ("locks_token_required", {"op": "release", "name": "held"}),
    *(("locks_bad_token", {"op": "release", "name": "held", "token": token}) for token in (0, -1, 1.5, "1", None)),
    *(
        ("locks_bad_slot", {"op": "release", "name": "held", "token": 1, "slot": slot})
        for slot in (-1, 1024, 0.5, "0", None)
    ),
    ("locks_duplicate_in_call", {"op": "get", "name": "good"}),
    ("locks_ttl_required", {"op": "renew", "name": "held", "token": 1}),
]


@pytest.mark.parametrize(("reason", "op"), BAD)
async def test_vector_23_a_bad_op_refuses_the_whole_call(wire: Wire, reason: str, op: Any) -> None:
    """400 with its reason (3.3), and the good op before it took no lock."""
    await wire.lock("acquire", "held", ttlSeconds=600, owner="a")
    before = await wire.state()
    good = {"op": "acquire", "name": "good", "ttlSeconds": 5}
    answer = await wire.request("POST", "/api/v1/locks", {"operations": [good, op]})
    assert refusal(answer) == (400, "locks_bad_request", reason)
    assert await wire.state() == before
    assert await held_by(wire, "good") == []


@pytest.mark.parametrize("body", [b"", b"[", b"3", b"null", b"{}", b'{"operations":"acquire"}'])
async def test_vector_23_a_bad_body(wire: Wire, body: bytes) -> None:
    """Neither an array nor an object with an array of operations."""
    answer = await wire.request("POST", "/api/v1/locks", body=body)
    assert refusal(answer) == (400, "locks_bad_request", "locks_bad_body")


async def test_vector_23_counts(wire: Wire) -> None:
    """64 ops, and 4096 permits to look at: an acquire its limit, a get 1000."""
    gets = [{"op": "get", "name": f"n{n}"} for n in range(65)]
    answer = await wire.request("POST", "/api/v1/locks", gets)
    assert refusal(answer) == (400, "locks_bad_request", "locks_too_many_ops")
    acquires = [{"op": "acquire", "name": f"n{n}", "ttlSeconds": 5} for n in range(64)]
    assert all(element["acquired"] for element in await wire.locks(*acquires))
    heavy = [{"op": "acquire", "name": f"h{n}", "ttlSeconds": 5, "limit": 1024} for n in range(4)]
    assert len(await wire.locks(*heavy)) == 4
    for over in ([*heavy, acquires[0]], gets[:5]):
        answer = await wire.request("POST", "/api/v1/locks", over)
        assert refusal(answer) == (400, "locks_bad_request", "locks_too_many_keys")


async def test_the_ops_of_a_call_are_independent(wire: Wire) -> None:
    """One that loses stops nobody; an empty call has an empty answer; a bare array is a call."""
    await wire.lock("acquire", "held", ttlSeconds=60, owner="a")
    results = await wire.locks(
        {"op": "acquire", "name": "held", "ttlSeconds": 5, "owner": "b"},
        {"op": "acquire", "name": "free", "ttlSeconds": 5, "owner": "b"},
        {"op": "release", "name": "nobody", "token": 1},
    )
    assert [results[0]["acquired"], results[1]["acquired"], results[2]["released"]] == [False, True, False]
    assert await wire.ok("POST", "/api/v1/locks", {"operations": []}) == {"results": []}
    assert await wire.ok("POST", "/api/v1/locks", []) == {"results": []}


async def test_twenty_acquires_at_once_have_one_holder(wire: Wire) -> None:
    """And twenty of a semaphore of five have five, each in a slot of its own."""
    won: list[tuple[str, int]] = []

    async def acquire(name: str, owner: str, limit: int) -> None:
        permit = await wire.lock("acquire", name, ttlSeconds=60, owner=owner, limit=limit)
        if permit["acquired"]:
            won.append((name, permit["slot"]))

    async with trio.open_nursery() as nursery:
        for n in range(20):
            nursery.start_soon(acquire, "one", f"o{n}", 1)
            nursery.start_soon(acquire, "five", f"o{n}", 5)
    assert sorted(won) == [*(("five", slot) for slot in range(5)), ("one", 0)]

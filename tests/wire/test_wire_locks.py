"""Section 3: the rows of 3.3 and the elements of 3.4."""

from __future__ import annotations

import json
from typing import Any

import pytest

from queen_actors.domain.locks import Acquire, GetLock, Holder, LockResult, Release, Renew
from queen_actors.errors import QueenError
from queen_actors.values import parse_instant
from queen_actors.wire.locks import parse_locks, render_locks

SECOND = 1_000_000
ACQUIRE: dict[str, Any] = {"op": "acquire", "name": "job", "ttlSeconds": 30}
RENEW: dict[str, Any] = {"op": "renew", "name": "job", "ttlSeconds": 30, "token": 9}


def body(*ops: Any) -> bytes:
    return json.dumps(list(ops)).encode()


def acquire(**changes: Any) -> bytes:
    return body({name: value for name, value in {**ACQUIRE, **changes}.items() if value is not ...})


def renew(**changes: Any) -> bytes:
    return body({name: value for name, value in {**RENEW, **changes}.items() if value is not ...})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "bad_body"),
        (b'{"operations":7}', "bad_body"),
        (b'[{"op":"get","name":"\xff"}]', "bad_body"),
        (b"[7]", "bad_request"),
        (acquire(op="steal"), "unknown_op"),
        (acquire(op=...), "unknown_op"),
        (acquire(tenant="t"), "tenant_not_an_input"),
        (acquire(tenantId="t"), "tenant_not_an_input"),
        (acquire(_tenant="t"), "tenant_not_an_input"),
        (acquire(name=...), "bad_name"),
        (acquire(name=""), "bad_name"),
        (acquire(name=7), "bad_name"),
        (acquire(name="a#b"), "bad_name"),
        (acquire(name="a\nb"), "bad_name"),
        (acquire(name="a\x85b"), "bad_name"),
        (acquire(name="é" * 129), "bad_name"),
        (acquire(owner=""), "bad_owner"),
        (acquire(owner=7), "bad_owner"),
        (acquire(owner="a\x7f"), "bad_owner"),
        (acquire(owner="x" * 257), "bad_owner"),
        (acquire(limit=0), "bad_limit"),
        (acquire(limit=1025), "bad_limit"),
        (acquire(limit=1.0), "bad_limit"),
        (acquire(limit=True), "bad_limit"),
        (acquire(ttlSeconds=...), "ttl_required"),
        (acquire(forever=True), "ttl_required"),
        (acquire(ttlSeconds=0), "bad_ttl"),
        (acquire(ttlSeconds=30.0), "bad_ttl"),
        (acquire(ttlSeconds="30"), "bad_ttl"),
        (acquire(ttlSeconds=10**12 + 1), "bad_ttl"),
        (b'[{"op":"acquire","name":"a","ttlSeconds":1e400}]', "bad_ttl"),
        (renew(token=...), "token_required"),
        (body({"op": "release", "name": "a"}), "token_required"),
        (renew(token=0), "bad_token"),
        (renew(token="9"), "bad_token"),
        (renew(token=9.0), "bad_token"),
        (renew(slot=-1), "bad_slot"),
        (renew(slot=1024), "bad_slot"),
        (renew(slot="0"), "bad_slot"),
        (body(*[{"op": "get", "name": str(i)} for i in range(65)]), "too_many_ops"),
        (body(ACQUIRE, {"op": "get", "name": "job"}), "duplicate_in_call"),
        (body(*[{"op": "get", "name": str(i)} for i in range(5)]), "too_many_keys"),
        (body(*[{**ACQUIRE, "name": str(i), "limit": 1024} for i in range(5)]), "too_many_keys"),
    ],
)
def test_a_malformed_call_is_refused_with_the_reason_of_its_row(text: bytes, reason: str) -> None:
    """Status 400, code locks_bad_request, and the reason that section 3.3 has for it."""
    with pytest.raises(QueenError) as caught:
        parse_locks(text)
    found = (caught.value.status, caught.value.code, caught.value.reason)
    assert found == (400, "locks_bad_request", f"locks_{reason}")


def test_good_ops_become_commands() -> None:
    """Defaults, lifetimes in microseconds, names of any legal spelling."""
    text = json.dumps(
        {
            "operations": [
                {"op": "acquire", "name": 'Bed&"Breakfast" / é', "ttlSeconds": 30, "owner": None},
                {"op": "acquire", "name": "gpu", "ttlSeconds": 1, "owner": "w", "limit": 2},
                {"op": "renew", "name": "a", "token": 9, "ttlSeconds": 30, "slot": 1, "owner": "w"},
                {"op": "renew", "name": "b", "token": 9, "ttlSeconds": 30},
                {"op": "release", "name": "c", "token": 9, "slot": 3, "owner": 7},
                {"op": "get", "name": "d"},
            ]
        }
    ).encode()
    assert parse_locks(text) == [
        Acquire('Bed&"Breakfast" / é', 30 * SECOND),
        Acquire("gpu", SECOND, "w", 2),
        Renew("a", 9, 30 * SECOND, 1, "w"),
        Renew("b", 9, 30 * SECOND),
        Release("c", 9, 3),
        GetLock("d"),
    ]
    assert parse_locks(b"[]") == []


AT = parse_instant("2026-11-29T14:22:01.091539+00:00")
END = parse_instant("2026-11-29T14:22:31.091538+00:00")


def test_results_are_rendered_as_captured() -> None:
    """The elements of 7.1, 7.7 and 7.9; a refusal lists holders without their tokens, a get with everything."""
    holders = (Holder(0, "w0", 13, AT, END, AT), Holder(1, None, 14, AT, END, AT))
    results = [
        LockResult("acquire", "daily-report", True, slot=0, token=1, owner="vm:1:2"),
        LockResult("acquire", "job", True, slot=0, token=1, owner="me", already=True),
        LockResult("acquire", "gpu", False, reason="held", holders=holders),
        LockResult("renew", "job", True, slot=0, token=10),
        LockResult("renew", "job", False, slot=0, reason="lost"),
        LockResult("release", "job2", True, slot=0),
        LockResult("release", "job2", False, slot=1, reason="lost", holders=holders[1:]),
        LockResult("get", "gpu", True, holders=holders[:1]),
        LockResult("get", "none", False),
    ]
    guard = {"op": "check", "ns": "queen-locks", "required": True}
    assert json.loads(render_locks(results)) == {
        "results": [
            {"index": 0, "op": "acquire", "name": "daily-report", "acquired": True, "slot": 0, "token": 1,
             "owner": "vm:1:2", "guard": {**guard, "key": "daily-report#0", "expect": 1}},
            {"index": 1, "op": "acquire", "name": "job", "acquired": True, "slot": 0, "token": 1, "owner": "me",
             "already": True, "guard": {**guard, "key": "job#0", "expect": 1}},
            {"index": 2, "op": "acquire", "name": "gpu", "acquired": False, "reason": "held",
             "holders": [{"slot": 0, "owner": "w0"}, {"slot": 1, "owner": None}]},
            {"index": 3, "op": "renew", "name": "job", "renewed": True, "slot": 0, "token": 10,
             "guard": {**guard, "key": "job#0", "expect": 10}},
            {"index": 4, "op": "renew", "name": "job", "renewed": False, "reason": "lost", "slot": 0, "holders": []},
            {"index": 5, "op": "release", "name": "job2", "released": True, "slot": 0},
            {"index": 6, "op": "release", "name": "job2", "released": False, "reason": "lost", "slot": 1,
             "holders": [{"slot": 1, "owner": None}]},
            {"index": 7, "op": "get", "name": "gpu", "held": True,
             "holders": [{"slot": 0, "owner": "w0", "token": 13, "since": "2026-11-29T14:22:01.091539+00:00",
                          "expiresAt": "2026-11-29T14:22:31.091538+00:00",
                          "renewedAt": "2026-11-29T14:22:01.091539+00:00"}]},
            {"index": 8, "op": "get", "name": "none", "held": False, "holders": []},
        ]
    }  # fmt: skip

"""Short histories of a key or a lock: some that an order of instants explains, and planted faults that none does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from queen_actors.testing.linear import Operation
from queen_actors.testing.models import (
    Acquire,
    Answer,
    Check,
    Delete,
    Get,
    Guard,
    Holders,
    Increment,
    Put,
    Release,
    Renew,
    Verdicts,
)

LOST = math.inf


def op(start: float, end: float, step: Any, answer: Any, kind: str = "key") -> Operation:
    return Operation((kind, "k"), start, end, ((step, answer),))


def lost(start: float, step: Any, end: float = LOST, kind: str = "key") -> Operation:
    return Operation((kind, "k"), start, end, ((step, None),), known=False)


def put(start: float, end: float, value: bytes, version: int, **more: Any) -> Operation:
    return op(start, end, Put(value, **more), Answer(True, value, version))


def get(start: float, end: float, value: bytes | None, version: int = 0) -> Operation:
    return op(start, end, Get(), Answer(value is not None, value, version))


def lock(start: float, end: float, step: Any, answer: Verdicts) -> Operation:
    return op(start, end, step, answer, "lock")


def grant(start: float, end: float, token: int, slot: int = 0, ttl: float = 100, **more: Any) -> Operation:
    return lock(start, end, Acquire(ttl, **more), Verdicts(True, slot, token))


INCR = Increment(Decimal(2), low=Decimal(0), high=Decimal(5))
CAS = Put(b"new", expect=1)
SEM = {"limit": 2}
HELD = Verdicts(False, holders=((0, None, 0),))

GOOD: dict[str, Sequence[Operation]] = {
    "one after the other": [put(0, 1, b"a", 1), get(2, 3, b"a", 1), put(4, 5, b"b", 2), get(6, 7, b"b", 2)],
    "overlapping reads see old and new": [
        put(0, 1, b"a", 1),
        put(2, 9, b"b", 2),
        get(3, 4, b"a", 1),
        get(5, 6, b"b", 2),
    ],
    "overlapping writes in the other order": [put(0, 9, b"a", 2), put(1, 8, b"b", 1), get(10, 11, b"a", 2)],
    "a lost put that had its effect late": [
        put(0, 1, b"a", 1),
        lost(2, Put(b"b")),
        get(3, 4, b"a", 1),
        get(5, 6, b"b", 2),
    ],
    "a lost put that never had its effect": [put(0, 1, b"a", 1), lost(2, Put(b"b"), 3), get(4, 5, b"a", 1)],
    "two lost puts, the second seen first": [
        lost(0, Put(b"a")),
        lost(0, Put(b"b")),
        get(1, 2, b"b", 4),
        get(3, 4, b"a", 9),
    ],
    "a lost delete": [put(0, 1, b"a", 1), lost(2, Delete()), get(3, 4, b"a", 1), get(5, 6, None)],
    "a lost increment counts": [
        op(0, 1, INCR, Answer(True, b"2", 1)),
        lost(2, INCR),
        op(3, 4, INCR, Answer(False, b"4", 2, "limit")),
    ],
    "an increment refused at the bound": [
        op(0, 1, INCR, Answer(True, b"2", 1)),
        op(2, 3, INCR, Answer(True, b"4", 2)),
        op(4, 5, INCR, Answer(False, b"4", 2, "limit")),
    ],
    "a compare-and-set against a version that was lost": [
        lost(0, Put(b"a"), 1),
        op(2, 3, Put(b"b", expect=7), Answer(True, b"b", 8)),
    ],
    "a compare-and-set beaten": [
        put(0, 1, b"a", 1),
        op(2, 8, CAS, Answer(True, b"new", 2)),
        op(3, 9, Put(b"other", expect=1), Answer(False, b"new", 2, "version")),
    ],
    "an expiry that nobody can date": [put(0, 2, b"a", 1, ttl=5), get(5.5, 6, b"a", 1), get(6.2, 6.9, None)],
    "a put over an expired key": [
        put(0, 1, b"a", 1, ttl=5),
        op(7, 8, Put(b"b", expect=0), Answer(True, b"b", 2)),
    ],
    "several steps at one instant": [
        put(0, 1, b"a", 1),
        Operation(
            ("key", "k"),
            2,
            3,
            ((Delete(), Answer(True, b"a", 1)), (Put(b"b", expect=0), Answer(True, b"b", 3))),
        ),
        get(4, 5, b"b", 3),
    ],
    "a check that holds and one that does not": [
        put(0, 1, b"a", 1),
        op(2, 3, Check(1), Answer(True)),
        op(4, 5, Check(2), Answer(False, b"a", 1, "version")),
        op(6, 7, Check(0), Answer(False, b"a", 1, "exists")),
    ],
    "a lock handed over": [
        grant(0, 1, 1),
        lock(2, 3, Acquire(5), HELD),
        lock(4, 5, Release(0, 1), Verdicts(True)),
        grant(6, 7, 3),
    ],
    "a lock that expires": [grant(0, 1, 1, ttl=5), lock(5.5, 5.8, Acquire(5), HELD), grant(5.9, 6.5, 2)],
    "a renewal and the token before it": [
        grant(0, 1, 1, owner="a"),
        lock(2, 3, Renew(0, 1, 5), Verdicts(True, 0, 2)),
        lock(4, 5, Guard(0, 1), Verdicts(False)),
        lock(6, 7, Guard(0, 2), Verdicts(True)),
        lock(6, 7, Renew(0, 1, 5, "a"), Verdicts(True, 0, 3)),
    ],
    "a lost grant stands in the way": [
        lost(0, Acquire(5, "x"), kind="lock"),
        lock(2, 3, Acquire(5, "y"), Verdicts(False, holders=((0, "x", 0),))),
        lock(3, 4, Holders(), Verdicts(True, holders=((0, "x", 9),))),
        lock(5, 6, Release(0, 9), Verdicts(True)),
    ],
    "a semaphore's permits": [
        grant(0, 1, 1, 1, **SEM),
        grant(0, 1, 2, 0, **SEM),
        lock(2, 3, Acquire(5, None, 2), Verdicts(False, holders=((0, None, 2), (1, None, 1)))),
        lock(4, 5, Release(1, 1), Verdicts(True)),
        grant(6, 7, 4, 1, **SEM),
    ],
    "one's own permit again": [
        grant(0, 1, 1, owner="a"),
        lock(2, 3, Acquire(5, "a"), Verdicts(True, 0, 1, already=True)),
    ],
    "two lost grants told in either order": [
        lost(0, Acquire(50, "x", 2), 1, kind="lock"),
        lost(0, Acquire(50, "y", 2), 1, kind="lock"),
        lock(2, 3, Holders(), Verdicts(True, holders=((0, "x", 9), (1, "y", 8)))),
    ],
    "a permit that ends with its connection": [
        lock(0, 1, Acquire(5, lives=(8, 10)), Verdicts(True, 0, 1)),
        lock(7, 7.5, Acquire(5), HELD),
        grant(8, 9, 2),
    ],
}

BAD: dict[str, Sequence[Operation]] = {
    "a stale read": [put(0, 1, b"a", 1), put(2, 3, b"b", 2), get(4, 5, b"a", 1)],
    "a read of what nobody wrote": [put(0, 1, b"a", 1), get(2, 3, b"z", 1)],
    "an acknowledged put is lost": [put(0, 1, b"a", 1), get(2, 3, None)],
    "an acknowledged delete is lost": [
        put(0, 1, b"a", 1),
        op(2, 3, Delete(), Answer(True, b"a", 1)),
        get(4, 5, b"a", 1),
    ],
    "a refused write is there": [
        put(0, 1, b"a", 1),
        op(2, 3, Put(b"b", expect=9), Answer(False, b"a", 1, "version")),
        get(4, 5, b"b", 2),
    ],
    "reads go back in time": [put(0, 9, b"a", 1), get(1, 2, b"a", 1), get(3, 4, None)],
    "a lost put comes back after it was overwritten": [
        lost(0, Put(b"a"), 1),
        put(2, 3, b"b", 5),
        get(4, 5, b"b", 5),
        get(6, 7, b"a", 4),
    ],
    "a lost put has its effect after its end": [
        lost(0, Put(b"a"), 1),
        get(2, 3, None),
        get(4, 5, b"a", 1),
    ],
    "a lost put has its effect before its start": [get(0, 1, b"a", 1), lost(2, Put(b"a"))],
    "a lost put has its effect twice": [
        lost(0, Put(b"a")),
        get(1, 2, b"a", 1),
        put(3, 4, b"b", 2),
        get(5, 6, b"a", 3),
    ],
    "two win with one expectation": [
        put(0, 1, b"a", 1),
        op(2, 9, CAS, Answer(True, b"new", 2)),
        op(2, 9, Put(b"other", expect=1), Answer(True, b"other", 3)),
    ],
    "two win a put-if-absent": [
        op(0, 9, Put(b"a", expect=0), Answer(True, b"a", 1)),
        op(0, 9, Put(b"b", expect=0), Answer(True, b"b", 2)),
    ],
    "a put-if-absent is refused and there is nothing": [
        op(0, 1, Put(b"a", expect=0), Answer(False, None, 0, "exists"))
    ],
    "a compare-and-set is refused although it holds": [
        put(0, 1, b"a", 1),
        op(2, 3, CAS, Answer(False, b"a", 1, "version")),
    ],
    "an increment is lost": [
        op(0, 1, INCR, Answer(True, b"2", 1)),
        op(2, 3, INCR, Answer(True, b"2", 2)),
    ],
    "two increments see the same": [
        op(0, 9, INCR, Answer(True, b"2", 1)),
        op(0, 9, INCR, Answer(True, b"2", 2)),
    ],
    "an increment passes its bound": [
        op(0, 1, INCR, Answer(True, b"2", 1)),
        op(2, 3, INCR, Answer(True, b"4", 2)),
        op(4, 5, INCR, Answer(True, b"6", 3)),
    ],
    "an increment is refused inside its bounds": [op(0, 1, INCR, Answer(False, b"0", 0, "limit"))],
    "an increment counts twice": [
        op(0, 1, INCR, Answer(True, b"2", 1)),
        get(2, 3, b"4", 2),
    ],
    "a version falls": [put(0, 1, b"a", 5), put(2, 3, b"b", 4)],
    "a version falls over a delete": [
        put(0, 1, b"a", 5),
        op(2, 3, Delete(), Answer(True, b"a", 5)),
        put(4, 5, b"b", 5),
    ],
    "a version changes by itself": [put(0, 1, b"a", 5), get(2, 3, b"a", 6)],
    "an expired key is returned": [put(0, 1, b"a", 1, ttl=5), get(6.5, 7, b"a", 1)],
    "a key expires early": [put(0, 1, b"a", 1, ttl=5), get(2, 3, None)],
    "an expired key comes back": [put(0, 2, b"a", 1, ttl=5), get(5.5, 5.6, None), get(6, 6.1, b"a", 1)],
    "an increment begins a lifetime again": [
        op(0, 1, INCR._replace(ttl=5), Answer(True, b"2", 1)),
        op(2, 3, INCR._replace(ttl=5), Answer(True, b"4", 2)),
        get(6.5, 7, b"4", 2),
    ],
    "half of several steps": [
        put(0, 1, b"a", 1),
        Operation(
            ("key", "k"),
            2,
            3,
            ((Delete(), Answer(True, b"a", 1)), (Put(b"b", expect=0), Answer(False, b"a", 1, "exists"))),
        ),
    ],
    "a check holds that cannot": [put(0, 1, b"a", 1), op(2, 3, Check(2), Answer(True))],
    "two holders of a lock": [grant(0, 1, 1), grant(2, 3, 2)],
    "a lock is held and nobody has it": [lock(0, 1, Acquire(5), HELD)],
    "a lock is held after its release": [
        grant(0, 1, 1),
        lock(2, 3, Release(0, 1), Verdicts(True)),
        lock(4, 5, Acquire(5), HELD),
    ],
    "a lock expires early": [grant(0, 1, 1, ttl=50), grant(20, 21, 2)],
    "a lock does not expire": [grant(0, 1, 1, ttl=5), lock(7, 8, Acquire(5), HELD)],
    "a token is given twice": [
        grant(0, 1, 1),
        lock(2, 3, Release(0, 1), Verdicts(True)),
        grant(4, 5, 1),
    ],
    "a token falls over a renewal": [grant(0, 1, 7), lock(2, 3, Renew(0, 7, 5), Verdicts(True, 0, 6))],
    "a replaced token passes a guard": [
        grant(0, 1, 1),
        lock(2, 3, Renew(0, 1, 5), Verdicts(True, 0, 2)),
        lock(4, 5, Guard(0, 1), Verdicts(True)),
    ],
    "a replaced token releases": [
        grant(0, 1, 1),
        lock(2, 3, Renew(0, 1, 5), Verdicts(True, 0, 2)),
        lock(4, 5, Release(0, 1), Verdicts(True)),
    ],
    "a stranger renews": [
        grant(0, 1, 1, owner="a"),
        lock(2, 3, Renew(0, 1, 5, "a"), Verdicts(True, 0, 2)),
        lock(4, 5, Renew(0, 1, 5, "b"), Verdicts(True, 0, 3)),
    ],
    "a released permit is renewed": [
        grant(0, 1, 1),
        lock(2, 3, Release(0, 1), Verdicts(True)),
        lock(4, 5, Renew(0, 1, 5), Verdicts(True, 0, 3)),
    ],
    "a semaphore grants one too many": [grant(0, 1, 1, 0, **SEM), grant(0, 1, 2, 1, **SEM), grant(2, 3, 3, 1, **SEM)],
    "a semaphore grants a slot past its limit": [grant(0, 1, 1, 2, **SEM)],
    "one owner gets two permits": [
        grant(0, 1, 1, 0, owner="a", **SEM),
        grant(2, 3, 2, 1, owner="a", **SEM),
    ],
    "a holder is told that is none": [
        grant(0, 1, 1, owner="a"),
        lock(2, 3, Acquire(5, "b"), Verdicts(False, holders=((0, "c", 0),))),
    ],
    "a live permit is not told": [grant(0, 1, 1), lock(2, 3, Holders(), Verdicts(False, holders=()))],
    "a lost grant frees itself early": [
        lost(0, Acquire(50, "x"), 1, kind="lock"),
        lock(2, 3, Acquire(5, "y"), Verdicts(False, holders=((0, "x", 0),))),
        lock(4, 5, Acquire(5, "y"), Verdicts(True, 0, 9)),
    ],
}

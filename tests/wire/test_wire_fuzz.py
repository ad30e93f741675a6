"""Whatever a client sends, a parser answers with commands or with an error that has a place on the wire."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from queen_actors.errors import QueenError
from queen_actors.wire.ack import parse_acks, parse_extend
from queen_actors.wire.frames import parse_query
from queen_actors.wire.groups import parse_seek, parse_subscription
from queen_actors.wire.kv import parse_kv, parse_kv_path
from queen_actors.wire.locks import parse_locks
from queen_actors.wire.pop import parse_pop
from queen_actors.wire.push import parse_push
from queen_actors.wire.queue import parse_configure, parse_letters, parse_trace
from queen_actors.wire.timers import parse_timers
from queen_actors.wire.transaction import parse_transaction

HORIZON = 90 * 86_400 * 1_000_000
PARSERS: dict[str, Callable[[bytes], Any]] = {
    "push": parse_push,
    "ack": parse_acks,
    "extend": parse_extend,
    "kv": parse_kv,
    "kv path": lambda body: parse_kv_path("put", "ns", "k", b"", body),
    "locks": parse_locks,
    "timers": lambda body: parse_timers(body, HORIZON),
    "transaction": lambda body: parse_transaction(body, HORIZON),
    "configure": parse_configure,
    "trace": parse_trace,
    "seek": parse_seek,
    "subscription": parse_subscription,
}
WORDS = [
    "acknowledgments", "acquire", "ack", "cancel", "check", "consumerGroup", "data", "delayMs", "delete", "delta",
    "encrypted", "error", "expect", "forever", "get", "getMany", "getPrefix", "incr", "items", "key", "keys",
    "keysOnly", "kv", "leaseId", "leaseTime", "limit", "max", "min", "mode", "name", "ns", "offset", "op", "operations",
    "options", "owner", "partition", "partitionId", "payload", "payloadZstd", "positions", "prefix", "push", "put",
    "putIfAbsent",
    "queue", "release", "renew", "required", "requiredLeases", "schedule", "seconds", "slot", "status",
    "subscriptionTimestamp", "timerKey", "timers", "timestamp", "toEnd", "token", "traceId", "transactionId",
    "ttlSeconds", "txn", "type", "value", "YQ==", "KLUv/QQAAQAAAAA=", "2026-08-01T00:00:00Z",
    "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59", "a\n", "\0", "",
]  # fmt: skip
NUMBERS = st.one_of(
    st.integers(-3, 3),
    st.sampled_from([2**31, 2**53, 2**63, 2**64, 10**30, -(2**63) - 1]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([1e300, -1e300, 5e-324, -0.0]),
)
SCALARS = st.one_of(st.none(), st.booleans(), NUMBERS, st.sampled_from(WORDS), st.text(max_size=5))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
    max_leaves=6,
)
GOOD: dict[str, Any] = {
    "op": "put", "type": "push", "ns": "n", "key": "k", "value": 1, "ttlSeconds": 5, "name": "lock", "token": 3,
    "queue": "q", "timerKey": "t", "payload": "YQ==", "delayMs": 5, "txn": "t", "transactionId": "t",
    "partitionId": "7", "expect": 3, "delta": 1,
}  # fmt: skip
OPS = st.builds(
    lambda kept, changed, kind: {**{name: GOOD[name] for name in kept}, **changed, **kind},
    st.sets(st.sampled_from(sorted(GOOD))),
    st.dictionaries(st.sampled_from(WORDS), VALUES, max_size=4),
    st.fixed_dictionaries({}, optional={"op": st.sampled_from(WORDS), "type": st.sampled_from(["push", "ack"])}),
)
"""An op, an item or an ack with some of its fields good, some missing and some odd."""
BODIES = st.one_of(
    VALUES,
    OPS,
    st.lists(OPS, max_size=3),
    st.dictionaries(
        st.sampled_from(["operations", "items", "acknowledgments", "kv", "timers", "positions"]),
        st.lists(OPS, max_size=3),
    ),
    st.fixed_dictionaries({"queue": st.just("q"), "options": OPS}),
)
FEW = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def refused(call: Callable[[], Any]) -> int | None:
    """The status with which the call was refused; what is no error of the wire goes on up."""
    try:
        call()
    except QueenError as error:
        return error.status if error.code else 0
    return None


@pytest.mark.parametrize("name", PARSERS)
@FEW
@given(value=BODIES, cut=st.integers(0, 20))
def test_a_body_is_parsed_or_refused(name: str, value: Any, cut: int) -> None:
    """Plausible JSON of every wrong shape, whole and cut short; numbers that no double holds among it."""
    body = json.dumps(value).replace("1e+300", "1e400").encode()
    for data in (body, body[: len(body) - cut]):
        assert refused(lambda data=data: PARSERS[name](data)) in (None, 400, 403, 413)


@FEW
@given(data=st.binary(max_size=40))
def test_bytes_that_are_nothing_are_refused(data: bytes) -> None:
    """No bytes make a parser raise what is not an error of the wire."""
    for parse in PARSERS.values():
        assert refused(lambda parse=parse: parse(data)) in (None, 400, 403, 413)


QUERY_NAMES = ["batch", "wait", "timeout", "partitions", "leaseSeconds", "consumerGroup", "autoAck", "subscriptionFrom",
               "subscriptionMode", "conflation", "namespace", "limit", "offset", "from", "to", "queue"]  # fmt: skip


@FEW
@given(query=st.lists(st.tuples(st.sampled_from(QUERY_NAMES), st.text(max_size=8) | NUMBERS.map(str)), max_size=6))
def test_a_query_is_parsed_or_refused(query: list[tuple[str, str]]) -> None:
    """Every parameter with every kind of value."""
    text = "&".join(f"{name}={value}" for name, value in query).encode()
    for parse in (lambda: parse_pop(parse_query(text), "q"), lambda: parse_letters(parse_query(text))):
        assert refused(parse) in (None, 400, 413)

"""Ack (wire-messaging.md, section 8) and lease extension (section 9)."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock
from wire_kit import Wire

from queen_actors.values import parse_instant

LEASE = 100  # seconds


async def five(wire: Wire, **options: Any) -> list[Any]:
    """Offsets 0 to 4 of queue `q`, leased as one batch, attempt 1."""
    await wire.configure("q", **{"leaseTime": LEASE, "retryLimit": 1, **options})
    await wire.push("q", *range(5))
    return await pop_all(wire)


async def pop_all(wire: Wire, **query: Any) -> list[Any]:
    return await wire.pop("q", **query)


def request(messages: list[Any], statuses: dict[int, str]) -> list[Any]:
    """Acks of the messages at these offsets."""
    by_offset = {message["offset"]: message for message in messages}
    return [(by_offset[offset], status) for offset, status in statuses.items()]


ALL_FAILED = dict.fromkeys(range(5), "failed")
SCENARIOS: list[tuple[list[dict[int, str]], int, list[int], list[int], int]] = [
    # requests (a nacked batch is popped again between them), cursor, dead letters, next delivery, its attempt
    ([{4: "completed"}], 4, [], [], 0),
    ([{0: "completed", 1: "failed"}], 0, [], [1, 2, 3, 4], 1),
    ([{0: "completed", 1: "failed"}, {1: "failed"}], 1, [1], [2, 3, 4], 1),
    ([{0: "completed", 1: "failed"}, {1: "completed", 2: "failed"}], 2, [2], [3, 4], 1),
    ([{1: "failed", 3: "completed"}], -1, [], [0, 1, 2, 3, 4], 2),
    ([{0: "failed"}], -1, [], [0, 1, 2, 3, 4], 2),
    ([{0: "completed", 1: "retry"}], 0, [], [1, 2, 3, 4], 1),
    ([{2: "dlq"}], 2, [2], [3, 4], 1),
    ([{2: "dlq", 4: "completed"}], 4, [2], [], 0),
    ([ALL_FAILED, ALL_FAILED], 4, [0, 1, 2, 3, 4], [], 0),
    ([dict.fromkeys(range(5), "completed")], 4, [], [], 0),
    # a retry charges nothing: the one failure after it does not dead-letter
    ([{0: "retry"}, {0: "failed"}], -1, [], [0, 1, 2, 3, 4], 3),
    # settle above: the walk ends at the first that is not named, or that is to be retried
    ([{0: "failed"}, {0: "failed", 1: "failed", 3: "failed"}], 1, [0, 1], [2, 3, 4], 1),
    ([{1: "dlq", 2: "retry", 3: "completed"}], 1, [1], [2, 3, 4], 1),
    ([{0: "dlq", 1: "failed", 2: "completed"}], 0, [0], [1, 2, 3, 4], 1),
]


@pytest.mark.parametrize(("requests", "cursor", "dead", "following", "attempt"), SCENARIOS)
async def test_the_scenarios_of_8_3(
    wire: Wire, requests: list[dict[int, str]], cursor: int, dead: list[int], following: list[int], attempt: int
) -> None:
    """After each row: the cursor, the released lease, the dead letters, and the next delivery with its attempt."""
    messages = await five(wire)
    for place, statuses in enumerate(requests):
        if place:
            messages = await pop_all(wire)
        entries = await wire.ack(*request(messages, statuses))
        assert all(entry["success"] for entry in entries)
        assert sum(entry["leaseReleased"] for entry in entries) == 1
    assert await wire.committed(messages[0]) == cursor
    letters = await wire.dead_letters("q")
    assert sorted(letter["offset"] for letter in letters) == dead
    assert {letter["offset"] for letter in letters} >= {
        int(entry["transactionId"][1:]) for entry in entries if entry["dlq"]
    }
    again = await pop_all(wire)
    assert [message["offset"] for message in again] == following
    assert {message["deliveryAttempt"] for message in again} <= {attempt}


async def test_a_partial_ack_keeps_the_lease(timed: Wire, autojump_clock: MockClock) -> None:
    """The row `2 completed` of 8.3: same lease, same end; then the tail is redelivered as attempt 2."""
    messages = await five(timed)
    await trio.sleep(LEASE / 2)
    (entry,) = await timed.ack((messages[2], "completed"))
    expected = {"index": 0, "transactionId": "t2", "success": True, "error": None}
    assert entry == {**expected, "leaseReleased": False, "dlq": False, "noop": False}
    assert await timed.committed(messages[0]) == 2
    await trio.sleep(LEASE / 2 - 0.1)
    assert await pop_all(timed) == []
    await trio.sleep(0.2)
    again = await pop_all(timed)
    assert [(message["offset"], message["deliveryAttempt"]) for message in again] == [(3, 2), (4, 2)]


async def test_the_tail_is_acked_under_the_same_lease(wire: Wire) -> None:
    """One by one, the last of which ends the lease; a repeat of it is a success too."""
    messages = await five(wire)
    for message in messages:
        (entry,) = await wire.ack((message, "completed"))
        assert (entry["success"], entry["noop"], entry["leaseReleased"]) == (True, False, message is messages[4])
    (entry,) = await wire.ack((messages[4], "completed"))
    assert (entry["success"], entry["leaseReleased"]) == (True, True)


@pytest.mark.parametrize(("limit", "deliveries"), [(0, 1), (1, 2), (3, 4)])
async def test_the_retry_limit(wire: Wire, limit: int, deliveries: int) -> None:
    """That many failed deliveries are retried; the next `failed` dead-letters, with its error and its payload."""
    await wire.configure("q", retryLimit=limit)
    await wire.push("q", {"n": 1})
    for attempt in range(1, deliveries + 1):
        assert await wire.dead_letters("q") == []
        (message,) = await pop_all(wire)
        assert message["deliveryAttempt"] == attempt
        (entry,) = await wire.ack((message, "failed", f"broken {attempt}"))
        assert (entry["success"], entry["dlq"], entry["leaseReleased"]) == (True, attempt == deliveries, True)
    (letter,) = await wire.dead_letters("q")
    assert (letter["errorMessage"], letter["data"]) == (f"broken {deliveries}", {"n": 1})
    assert await pop_all(wire) == []


async def test_without_a_dead_letter_queue_the_exhausted_are_dropped(wire: Wire) -> None:
    """Both flags off: `failed` on a spent budget drops, but an explicit `dlq` still files."""
    messages = await five(wire, retryLimit=0, deadLetterQueue=False, dlqAfterMaxRetries=False)
    entries = await wire.ack((messages[0], "failed"), (messages[1], "failed"))
    assert [(entry["success"], entry["dlq"]) for entry in entries] == [(True, False), (True, False)]
    assert await wire.dead_letters("q") == []
    again = await pop_all(wire)
    assert [message["offset"] for message in again] == [2, 3, 4]
    assert (await wire.ack((again[0], "dlq")))[0]["dlq"] is True
    assert [letter["offset"] for letter in await wire.dead_letters("q")] == [2]


@pytest.mark.parametrize("flags", [{"deadLetterQueue": False}, {"dlqAfterMaxRetries": False}])
async def test_either_flag_is_enough(wire: Wire, flags: dict[str, bool]) -> None:
    """One of the two on: exhausted messages are dead-lettered."""
    messages = await five(wire, retryLimit=0, **flags)
    assert (await wire.ack((messages[0], "failed")))[0]["dlq"] is True


async def test_dead_letter_texts(wire: Wire) -> None:
    """The entry's own error; for the head else the first error of the request; else `Retries exhausted`."""
    messages = await five(wire, retryLimit=0)
    await wire.ack((messages[0], "failed"), (messages[1], "failed", "mine"), (messages[2], "failed"))
    texts = {letter["offset"]: letter["errorMessage"] for letter in await wire.dead_letters("q")}
    assert texts == {0: "mine", 1: "mine", 2: "Retries exhausted"}
    again = await pop_all(wire)
    await wire.ack((again[0], "dlq"))
    assert (await wire.dead_letters("q"))[0]["errorMessage"] == "Retries exhausted"


# -- 8.2, per entry ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "status", "success", "noop"),
    [
        (3, "completed", True, False),
        (3, "failed", True, False),
        (3, "retry", True, False),
        (3, "dlq", True, False),
        (1, "completed", True, True),
        (1, "failed", False, False),
        (1, "retry", False, False),
        (1, "dlq", False, False),
        (None, "completed", False, False),
        (None, "failed", False, False),
        (None, "retry", False, False),
        (None, "dlq", False, False),
    ],
)
async def test_the_outcome_of_an_entry(wire: Wire, offset: int | None, status: str, success: bool, noop: bool) -> None:
    """In the span, at or below the cursor (1), and nowhere: three words for three cases (8.2)."""
    messages = await five(wire)
    await wire.ack((messages[1], "completed"))
    target = {**messages[0], "transactionId": "ghost"} if offset is None else messages[offset]
    (entry,) = await wire.ack((target, status))
    assert (entry["success"], entry["noop"]) == (success, noop)
    if success:
        assert entry["error"] is None
    else:
        assert "unresolvable" in entry["error"]
        assert "committed" in entry["error"]
        assert entry["leaseReleased"] is False
        assert await pop_all(wire) == [], "the lease is still there"


async def test_ghosts_do_not_burn_the_batch(wire: Wire) -> None:
    """Unknown ids fail by themselves, and the good entries of the request count."""
    messages = await five(wire)
    ghost = {**messages[0], "transactionId": "ghost"}
    entries = await wire.ack((ghost, "failed"), (messages[0], "completed"), (ghost, "completed"))
    assert [entry["success"] for entry in entries] == [False, True, False]
    assert await wire.committed(messages[0]) == 0


async def test_an_expired_or_foreign_lease(timed: Wire, autojump_clock: MockClock) -> None:
    """Every entry of the target fails, and nothing moves."""
    messages = await five(timed)
    foreign = [({**message, "leaseId": "0197f0de-0000-7000-8000-00000000aaaa"}, "completed") for message in messages]
    for entry in await timed.ack(*foreign):
        assert (entry["success"], entry["error"]) == (False, "invalid or expired lease")
    await trio.sleep(LEASE + 1)
    for entry in await timed.ack((messages[0], "completed"), (messages[1], "failed")):
        assert (entry["success"], entry["error"]) == (False, "invalid or expired lease")
    assert await timed.committed(messages[0]) == -1
    again = await pop_all(timed)
    assert [message["offset"] for message in again] == [0, 1, 2, 3, 4]
    (late,) = await timed.ack((messages[4], "completed"))
    assert late["success"] is False


async def test_without_a_lease_nothing_is_checked(timed: Wire, autojump_clock: MockClock) -> None:
    """A completed entry moves the cursor even after expiry, and a signal acts on whatever lease is there."""
    messages = await five(timed)
    bare = {"transactionId": "t1", "partitionId": messages[0]["partitionId"]}
    await trio.sleep(LEASE + 1)
    (entry,) = await timed.ack({**bare, "status": "completed"})
    assert entry["success"] is True
    assert await timed.committed(messages[0]) == 1
    again = await pop_all(timed)
    assert [message["offset"] for message in again] == [2, 3, 4]
    (entry,) = await timed.ack({**bare, "transactionId": "t2", "status": "retry"})
    assert (entry["success"], entry["leaseReleased"]) == (True, True)
    assert len(await pop_all(timed)) == 3


async def test_the_wrong_group_addresses_another_cursor(wire: Wire) -> None:
    """A group that never touched the partition fails; nothing happens to the right one."""
    messages = await five(wire)
    (entry,) = await wire.ack((messages[4], "completed"), group="other")
    assert entry["success"] is False
    assert entry["error"]
    assert await wire.committed(messages[0]) == -1


async def test_a_batch_of_many_partitions(wire: Wire) -> None:
    """Partitions, leases and statuses may be mixed; each is settled by itself, in the order of the request."""
    for n in range(3):
        await wire.push("q", *range(2), partition=f"p{n}", txn=f"x{n}-")
    one = await wire.pop("q", partitions=2)
    two = await wire.pop("q")
    messages = sorted(one + two, key=lambda message: (message["partition"], message["offset"]))
    assert len({message["leaseId"] for message in messages}) == 2
    p0, p1, p2 = messages[0:2], messages[2:4], messages[4:6]
    entries = await wire.ack((p2[1], "completed"), (p0[0], "completed"), (p1[0], "retry"), (p0[1], "completed"))
    assert [entry["transactionId"] for entry in entries] == ["x2-1", "x0-0", "x1-0", "x0-1"]
    assert [entry["leaseReleased"] for entry in entries] == [True, False, True, True]
    assert [await wire.committed(part[0]) for part in (p0, p1, p2)] == [1, -1, 1]


@pytest.mark.parametrize(
    ("word", "committed"),
    [
        *((word, 4) for word in ("completed", "success", "acked", "ok", "OK", "Completed", None)),
        *((word, -1) for word in ("failed", "FAILED", "retry", "unknown", "")),
    ],
)
async def test_status_words(wire: Wire, word: str | None, committed: int) -> None:
    """In any case; absent is completed; an unknown word is `failed`, which redelivers (decisions.md)."""
    messages = await five(wire)
    last = {name: messages[4][name] for name in ("transactionId", "partitionId", "leaseId")}
    await wire.ack(last if word is None else {**last, "status": word})
    assert await wire.committed(messages[0]) == committed


async def test_an_unknown_word_charges_a_retry(wire: Wire) -> None:
    """As `failed` does."""
    messages = await five(wire, retryLimit=0)
    assert (await wire.ack((messages[0], "nonsense")))[0]["dlq"] is True


@pytest.mark.parametrize("path", ["/api/v1/ack", "/api/v1/ack/batch"])
async def test_both_routes_take_both_shapes(wire: Wire, path: str) -> None:
    """Always a 200 with one entry per ack; the group of a batch is for all of it."""
    messages = await five(wire)
    lease, pid = messages[0]["leaseId"], messages[0]["partitionId"]
    single = {"transactionId": "t0", "partitionId": pid, "status": "completed", "error": None, "consumerGroup": None}
    entries = await wire.ok("POST", path, {**single, "leaseId": lease})
    assert entries == [
        {
            "index": 0,
            "transactionId": "t0",
            "success": True,
            "error": None,
            "leaseReleased": False,
            "dlq": False,
            "noop": False,
        }
    ]
    acks = [{"transactionId": f"t{n}", "partitionId": pid, "status": "completed", "leaseId": lease} for n in (1, 2)]
    entries = await wire.ok("POST", path, {"acknowledgments": acks, "consumerGroup": ""})
    assert [entry["success"] for entry in entries] == [True, True]
    assert await wire.committed(messages[0]) == 2
    assert await wire.ok("POST", path, {"acknowledgments": []}) == []


async def test_bad_acks(wire: Wire) -> None:
    """A body that is no JSON is a 400; a partition that cannot be is the entry's own failure."""
    for path in ("/api/v1/ack", "/api/v1/ack/batch"):
        for body in (b"", b"{", b"\xff"):
            answer = await wire.request("POST", path, body=body)
            assert (answer.status, answer.json["code"]) == (400, "bad_body")
        assert (await wire.request("POST", path, {"status": "completed"})).status == 400
    entries = await wire.ack(
        {"transactionId": "t", "partitionId": "orders", "status": "completed"},
        {"transactionId": "t", "partitionId": "987654", "status": "completed"},
        {"transactionId": "t", "status": "completed"},
    )
    assert [entry["success"] for entry in entries] == [False, False, False]
    texts = [entry["error"] for entry in entries]
    assert texts[:2] == ["partitionId is not a partition id", "no partition 987654"]
    assert texts[2]


# -- 9 -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "seconds"),
    [
        (b"", 60),
        (b"{}", 60),
        (b"[]", 60),
        (b"null", 60),
        (b'{"seconds":null}', 60),
        (b'{"seconds":7}', 7),
        (b'{"seconds":0}', 1),
    ],
)
async def test_extend(timed: Wire, autojump_clock: MockClock, body: bytes, seconds: int) -> None:
    """60 seconds by default, at least 1, whatever an empty body looks like; every partition of the lease."""
    await timed.configure("q", leaseTime=1)
    await timed.push("q", 1, partition="a")
    await timed.push("q", 2, partition="b")
    messages = await timed.pop("q", partitions=2)
    lease = messages[0]["leaseId"]
    await trio.sleep(0.5)
    started = parse_instant((await timed.push("other", 1) and await timed.pop("other"))[0]["createdAt"])
    answer = await timed.request("POST", f"/api/v1/lease/{lease}/extend", body=body)
    assert answer.status == 200
    said = answer.json
    expires = said["newExpiresAt"]
    times = {"newExpiresAt": expires, "expiresAt": expires, "lease_expires_at": expires}
    assert said == {"leaseId": lease, "success": True, "renewed": 2, **times}
    assert abs(parse_instant(expires) - started - seconds * 1_000_000) < 10_000
    await trio.sleep(seconds - 0.1)
    assert await pop_all(timed, partitions=2) == []
    await trio.sleep(0.2)
    assert len(await pop_all(timed, partitions=2)) == 2


async def test_extend_never_shortens(timed: Wire, autojump_clock: MockClock) -> None:
    """The later of the two ends counts."""
    messages = await five(timed)
    said = await timed.ok("POST", f"/api/v1/lease/{messages[0]['leaseId']}/extend", {"seconds": 1})
    left = parse_instant(said["expiresAt"]) - parse_instant(messages[0]["createdAt"])
    assert left > 99_000_000
    await trio.sleep(LEASE - 1)
    assert await pop_all(timed) == []


async def test_extend_of_what_is_no_live_lease(timed: Wire, autojump_clock: MockClock) -> None:
    """200, nothing renewed: unknown, settled or expired."""
    messages = await five(timed)
    settled = messages[0]["leaseId"]
    await timed.ack((messages[4], "completed"))
    await timed.push("q", 9, txn="late")
    expired = (await pop_all(timed))[0]["leaseId"]
    await trio.sleep(LEASE + 1)
    for lease in ("nonsense", settled, expired):
        said = await timed.ok("POST", f"/api/v1/lease/{lease}/extend")
        times = {"newExpiresAt": None, "expiresAt": None, "lease_expires_at": None}
        assert said == {"leaseId": lease, "success": False, "renewed": 0, **times}
    assert len(await pop_all(timed)) == 1
    answer = await timed.request("POST", f"/api/v1/lease/{expired}/extend", {"seconds": "long"})
    assert answer.status == 400

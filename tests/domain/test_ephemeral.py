"""An ephemeral queue: who gets what, what comes back, and what its bounds and time take."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from queen_actors.domain.ephemeral import Drops, EphemeralQueue, GroupDepth, Options, PartitionDepth
from queen_actors.values import QUEUE_MODE, SECOND

LEASE = 30 * SECOND


class Queue:
    """A queue whose messages are numbered, and whose time is settled before each step."""

    def __init__(self, **options: int | bool) -> None:
        self.now = SECOND
        self.queue = EphemeralQueue("q", self.now)
        self.queue.options = replace(Options(), **options)
        self._next = 0

    def push(self, *payloads: bytes, partition: str = "p") -> bool:
        self.queue.settle(self.now)
        excess = self.queue.excess([len(payload) for payload in payloads])
        if excess is None:
            return False
        self.queue.push(partition, payloads, self._next, self.now, excess)
        self._next += len(payloads)
        return True

    def pop(self, group: str = "g", batch: int = 100, partition: str | None = None, auto_ack: bool = False):
        self.queue.settle(self.now)
        self.queue.join(group)
        return self.queue.take(group, partition, batch, self.now, auto_ack)

    def payloads(self, group: str = "g", batch: int = 100, **how: str | bool) -> list[bytes]:
        return [delivery.payload for delivery in self.pop(group, batch, **how)]

    def ack(self, number: int, completed: bool = True, group: str = "g", partition: str = "p") -> str:
        self.queue.settle(self.now)
        return self.queue.ack(group, partition, number, completed)

    def sleep(self, time: int) -> list[tuple[str, str]]:
        self.now += time
        return self.queue.settle(self.now)


def empty(queue: EphemeralQueue) -> bool:
    return (len(queue), queue.bytes, queue.partitions) == (0, 0, 0) and not any(
        group.cursors or group.turn or group.available for group in queue._groups.values()
    )


def test_messages_wait_for_the_first_group() -> None:
    """As long as nobody has popped, nothing goes; the first group gets all of it, in order."""
    q = Queue()
    q.push(b"1", b"2")
    q.push(b"3")
    assert q.queue.available("g", None) == 3
    assert [(d.number, d.partition, d.attempts, d.payload) for d in q.pop()] == [
        (0, "p", 0, b"1"),
        (1, "p", 0, b"2"),
        (2, "p", 0, b"3"),
    ]
    assert len(q.queue) == 3, "they are with their consumer"
    assert [q.ack(n) for n in (1, 0, 2)] == ["acked"] * 3
    assert empty(q.queue)


def test_groups_each_get_everything() -> None:
    """A message goes when the last of them has finished it; who joins later gets what is still there."""
    q = Queue()
    q.pop("a")
    q.pop("b")
    q.push(b"1", b"2")
    assert q.payloads("a", auto_ack=True) == [b"1", b"2"]
    assert len(q.queue) == 2
    assert q.payloads("b", 1, auto_ack=True) == [b"1"]
    assert len(q.queue) == 1
    assert q.payloads("late") == [b"2"]
    assert q.payloads("b") == [b"2"]
    assert q.ack(1, group="b") == "acked"
    assert len(q.queue) == 1, "the late one has it"
    assert q.ack(1, group="late") == "acked"
    assert empty(q.queue)


def test_consumers_of_one_group_share() -> None:
    """What one holds, another does not get; what it gives back, another does."""
    q = Queue()
    q.push(b"1", b"2", b"3")
    assert q.payloads(batch=1) == [b"1"]
    assert q.payloads(batch=1) == [b"2"]
    assert q.ack(0, completed=False) == "redelivered"
    again = q.pop(batch=5)
    assert [(d.payload, d.attempts) for d in again] == [(b"1", 1), (b"3", 0)], "what comes back goes first"


def test_partitions_take_turns() -> None:
    """A pop of any partition starts where the last one did not; one that names a partition keeps to it."""
    q = Queue()
    for partition in "abc":
        q.push(*(f"{partition}{n}".encode() for n in range(3)), partition=partition)
    assert q.payloads(batch=2) == [b"a0", b"a1"]
    assert q.payloads(batch=4) == [b"b0", b"b1", b"b2", b"c0"]
    assert q.payloads(batch=9, partition="c") == [b"c1", b"c2"]
    assert q.payloads(batch=9, partition="x") == []
    assert q.payloads(batch=9) == [b"a2"]


def test_a_lease_that_ends_redelivers() -> None:
    """After its time, with one attempt more; the first consumer's ack is too late."""
    q = Queue()
    q.push(b"1")
    assert q.pop()[0].attempts == 0
    assert q.queue.due() == q.now + LEASE
    assert q.sleep(LEASE - 1) == []
    assert q.pop() == []
    assert q.sleep(1) == [("g", "p")]
    assert q.ack(0) == "unknown"
    assert q.pop()[0].attempts == 1
    assert q.ack(0) == "acked"
    assert q.queue.due() is None


@pytest.mark.parametrize("limit", [0, 1, 5])
def test_spent_retries_drop(limit: int) -> None:
    """`retryLimit` redeliveries, then it is gone for that group, and counted; other groups still get it."""
    q = Queue(retry_limit=limit)
    q.pop("other")
    q.push(b"1")
    for attempt in range(limit):
        assert q.pop()[0].attempts == attempt
        assert q.ack(0, completed=False) == "redelivered"
    assert q.pop()[0].attempts == limit
    assert q.ack(0, completed=False) == "acked", "the ack was taken; the message is gone"
    assert q.queue.drops == Drops(retry=1)
    assert q.payloads("other", auto_ack=True) == [b"1"]
    assert empty(q.queue)


def test_spent_retries_by_expiry() -> None:
    """A lease that ends counts like a nack."""
    q = Queue(retry_limit=1)
    q.push(b"1")
    q.pop()
    q.sleep(LEASE)
    q.pop()
    assert q.sleep(LEASE) == []
    assert q.queue.drops == Drops(retry=1)
    assert empty(q.queue)


def test_age() -> None:
    """What is older than `ttl` goes, whoever owes it: waiting, coming back, or with a consumer."""
    q = Queue(ttl=10 * SECOND)
    q.pop("other")
    q.push(b"held", b"back", b"waits")
    q.sleep(SECOND)
    q.push(b"young")
    q.pop("g", 2)
    q.ack(1, completed=False)
    assert q.queue.due() == q.now + 9 * SECOND
    q.sleep(9 * SECOND)
    assert q.queue.drops == Drops(ttl=3)
    assert q.ack(0) == "unknown"
    assert q.payloads() == [b"young"]
    assert q.payloads("other") == [b"young"]
    assert [group.skipped for group in q.queue.depth(None).groups] == [3, 2]
    q.sleep(SECOND)
    assert empty(q.queue)


@pytest.mark.parametrize("options", [{"max_length": 3}, {"max_bytes": 30}])
def test_a_full_queue_refuses(options: dict[str, int]) -> None:
    """All of a push or none of it; there is room again when something was finished."""
    q = Queue(**options)
    payload = b"x" * 10
    assert q.push(payload, payload)
    assert not q.push(payload, payload)
    assert len(q.queue) == 2
    assert q.push(payload)
    assert not q.push(payload)
    q.pop()
    assert not q.push(payload), "a lease is not finished"
    q.ack(1)
    assert q.push(payload)
    assert q.queue.drops == Drops()


@pytest.mark.parametrize("options", [{"max_length": 3}, {"max_bytes": 30}])
def test_a_feed_drops_the_oldest(options: dict[str, int]) -> None:
    """Over all partitions; a push that could never fit is refused and drops nothing."""
    q = Queue(drop_oldest=True, **options)
    payloads = [b"%010d" % n for n in range(5)]
    for n, payload in enumerate(payloads[:3]):
        q.push(payload, partition=f"p{n}")
    assert not q.push(*payloads[:4])
    assert q.queue.drops == Drops()
    assert q.payloads(batch=1) == payloads[:1]
    assert q.push(*payloads[3:], partition="p0")
    assert q.queue.drops == Drops(bounds=2)
    assert q.ack(0, partition="p0") == "unknown", "dropped while it was held"
    assert sorted(q.payloads()) == payloads[2:]


def test_unlike_sizes() -> None:
    """As many of the oldest go as bytes need it, no more."""
    q = Queue(drop_oldest=True, max_bytes=100)
    q.push(b"x" * 10, b"x" * 60, b"x" * 20)
    assert q.queue.excess([15]) == 1
    assert q.queue.excess([20]) == 1
    assert q.queue.excess([21]) == 2
    assert q.queue.freed(2) - q.queue.freed(0) == 70 + 2 * (q.queue.freed(1) - 10)
    assert q.queue.excess([101]) is None


def test_acks_of_what_is_not_held() -> None:
    """A number that never was, one that waits, another partition, another group, one that is acked already."""
    q = Queue()
    q.push(b"1", b"2")
    q.pop(batch=1)
    assert q.ack(7) == "unknown"
    assert q.ack(1) == "unknown"
    assert q.ack(0, partition="other") == "unknown"
    assert q.ack(0, group="other") == "unknown"
    assert q.ack(0) == "acked"
    assert q.ack(0) == "unknown"


def test_reset() -> None:
    """Messages and leases go; groups stay, and get what comes after."""
    q = Queue()
    q.pop("other")
    q.push(b"1", b"2")
    q.pop(batch=1)
    assert q.queue.reset() == 2
    assert empty(q.queue)
    assert q.ack(0) == "unknown"
    assert q.queue.due() is None
    q.push(b"3")
    assert (q.payloads(), q.payloads("other")) == ([b"3"], [b"3"])


@pytest.mark.parametrize(
    ("options", "available", "waited", "enough"),
    [
        ({}, 0, 0, False),
        ({}, 1, 0, True),
        ({"window": 5}, 1, 0, False),
        ({"window": 5}, 1, 4, False),
        ({"window": 5}, 1, 5, True),
        ({"window": 5}, 0, 5, False),
        ({"window": 5}, 10, 0, True),
        ({"window_count": 3}, 2, 99, False),
        ({"window_count": 3}, 3, 0, True),
        ({"window": 5, "window_count": 3}, 2, 4, False),
        ({"window": 5, "window_count": 3}, 3, 0, True),
        ({"window": 5, "window_count": 3}, 1, 5, True),
        ({"window_count": 30}, 10, 0, True),
    ],
)
def test_a_window_lets_a_batch_of_ten_grow(options: dict[str, int], available: int, waited: int, enough: bool) -> None:
    """Until there are so many, or so much time has passed, or the batch is full."""
    assert Queue(**options).queue.enough(available, 10, waited) is enough


def _one_of(group: str) -> Callable[[Queue], object]:
    return lambda q: q.pop(group, 1)


@pytest.mark.parametrize(
    ("before", "asked", "pending"),
    [
        ([], None, 3),
        ([], "unknown", 3),
        ([_one_of(QUEUE_MODE)], None, 2),
        ([_one_of(QUEUE_MODE), _one_of("a")], None, 2),
        ([_one_of("a"), _one_of("b"), _one_of("b")], None, 2),
        ([_one_of("a"), _one_of("b"), _one_of("b")], "b", 1),
        ([_one_of(QUEUE_MODE)], "unknown", 3),
    ],
)
def test_depth(before: list[Callable[[Queue], object]], asked: str | None, pending: int) -> None:
    """What is there for a group to take; unasked, for the named one that is furthest behind, else for queue mode."""
    q = Queue()
    q.push(b"1", b"22", b"333")
    for step in before:
        step(q)
    depth = q.queue.depth(asked)
    assert depth.pending == pending
    assert depth.partitions == (PartitionDepth("p", pending, 6),)


def test_depth_by_partition_and_group() -> None:
    """Each partition that has something, each group that has joined."""
    q = Queue()
    q.push(b"1", b"2", partition="a")
    q.push(b"3", partition="b")
    q.pop("g", 2)
    assert q.queue.depth("g").partitions == (PartitionDepth("a", 0, 2), PartitionDepth("b", 1, 1))
    assert q.queue.depth(None).groups == (GroupDepth("g", 1, 0),)


def test_cost_comes_back() -> None:
    """When everything is finished the queue costs what an empty one does."""
    q = Queue()
    q.pop("a")
    q.pop("b")
    base = q.queue.cost
    for partition in "xyz":
        q.push(b"1" * 100, partition=partition)
    assert q.queue.cost > base + 300
    for group in "ab":
        q.pop(group, auto_ack=True)
    assert q.queue.cost == base

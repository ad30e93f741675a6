"""Leases that live with a connection: given back at its end, told when they end, each message once (A02, A14)."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import trio
from broker_kit import QUEUE_MODE, SECOND, ack, configure, cursor, pop, push, records, started, txns
from trio.testing import MockClock

from queen_actors.domain.cursor import Ack, LeaseEnd
from queen_actors.domain.partition import PushItem
from queen_actors.domain.transaction import PositionCommit, Transaction
from queen_actors.errors import QueenError
from queen_actors.storage.memory import Faults, MemoryStore


async def test_a02_the_end_of_a_connection_gives_its_leases_back(autojump_clock: MockClock) -> None:
    """At once, in every partition, without a charge; the attempt rises; leases of others stay."""
    async with started() as broker:
        await broker.push([PushItem("q", f"p{place}", b"1", txn=f"m{place}") for place in range(5)])
        mine = broker.open_session(lambda end: pytest.fail("it hears nothing more"))
        reply = await pop(broker, partitions=3, session=mine, lease=60 * SECOND)
        other = await pop(broker, partitions=1)
        await broker.close_session(mine)
        again = await pop(broker, partitions=9)
        assert sorted(txns(again)) == sorted(
            [*txns(reply), *({"m0", "m1", "m2", "m3", "m4"} - set(txns(reply)) - set(txns(other)))]
        )
        assert sorted({claim.attempt for claim in again.claims}) == [1, 2]
        cursors = [cursor(broker, partition=claim.partition) for claim in again.claims]
        assert {found and found.retries for found in cursors} == {0}
        assert not any(await ack(broker, reply))


async def test_a_restart_gives_the_leases_of_sessions_back(autojump_clock: MockClock) -> None:
    """decisions.md: the connections are gone with the broker; a plain lease lives on."""
    store = MemoryStore(retain=True)
    async with started(store) as broker:
        await push(broker, "m", partition="a")
        await push(broker, "n", partition="b")
        await pop(broker, partition="a", session=broker.open_session(lambda end: None), lease=60 * SECOND)
        await pop(broker, partition="b", lease=60 * SECOND)
    async with started(store.reopen()) as broker:
        session = broker.open_session(lambda end: None)
        reply = await pop(broker, partitions=2, session=session)
        assert txns(reply) == ["m"]
        await trio.sleep(1)
        assert all(await ack(broker, reply))


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("expiry", "expired"),
        ("expiry, and another has it", "expired"),
        ("expiry, and an autoAck has it", "expired"),
        ("seek", "seek"),
        ("position", "seek"),
        ("group", "deleted"),
        ("queue", "deleted"),
        ("ack", "settled"),
        ("nack", "settled"),
        ("release", "settled"),
    ],
)
async def test_what_a_session_hears(autojump_clock: MockClock, how: str, reason: str) -> None:
    """Two of three settled one by one, then the end of the rest, once, with its reason, at its time."""
    async with started() as broker:
        await push(broker, *"abcd")
        ends: list[tuple[LeaseEnd, float]] = []
        start = trio.current_time()
        session = broker.open_session(lambda end: ends.append((end, round(trio.current_time() - start, 3))))
        reply = await pop(broker, batch=3, group="g", session=session, lease=10 * SECOND)
        pid = reply.claims[0].pid
        await broker.ack([Ack("b", pid, "g", lease_id=reply.lease_id)])
        await trio.sleep(1)
        match how:
            case "expiry":
                await trio.sleep(20)
            case "expiry, and another has it":
                assert txns(await pop(broker, group="g", wait=20)) == ["c", "d"]
            case "expiry, and an autoAck has it":
                assert txns(await pop(broker, group="g", wait=20, auto_ack=True)) == ["c", "d"]
            case "seek":
                await broker.seek("g", "q", None, 0)
            case "position":
                await broker.transaction(Transaction(positions=(PositionCommit("q", "g", "p", None),)))
            case "group":
                await broker.delete_group("g", "q", metadata=True)
            case "queue":
                await broker.delete_queue("q")
            case "ack":
                await ack(broker, reply)
            case "nack":
                await broker.ack([Ack("c", pid, "g", "failed", reply.lease_id)])
            case "release":
                await broker.release(reply.lease_id)
        await trio.sleep(30)
        at = 10 if reason == "expired" else 1
        assert [(end.messages, end.reason, when) for end, when in ends] == [(2, "settled", 0), (1, reason, at)]
        assert {(end.lease_id, end.pid, end.group) for end, _ in ends} == {(reply.lease_id, pid, "g")}


async def test_an_extended_lease_is_not_told_as_expired(autojump_clock: MockClock) -> None:
    """Nobody waits and nobody pops: the end is told when it comes, not when it would have come, and not never."""
    async with started() as broker:
        await push(broker, "m")
        ends: list[float] = []
        start = trio.current_time()
        session = broker.open_session(lambda end: ends.append(round(trio.current_time() - start, 3)))
        reply = await pop(broker, session=session, lease=3 * SECOND)
        for _ in range(5):
            await trio.sleep(2)
            await broker.extend(reply.lease_id, 3)
        await trio.sleep(60)
        assert ends == [13]


async def test_a_pop_that_nobody_got_is_nobodys(autojump_clock: MockClock) -> None:
    """Cancelled before its claim was durable: the session hears nothing of messages that it was never handed."""
    store = MemoryStore(retain=True, faults=Faults(latency=1.0))
    async with started(store) as broker:
        await push(broker, "m")
        ends: list[LeaseEnd] = []
        session = broker.open_session(ends.append)
        with trio.move_on_after(0.5):
            await pop(broker, session=session)
        await trio.sleep(5)
        assert ends == []
        assert broker.statistics().leases == 0
        reply = await pop(broker, session=session)
        assert (txns(reply), reply.claims[0].attempt) == (["m"], 1)


@pytest.mark.parametrize("seed", range(15))
async def test_the_ends_add_up_to_what_was_delivered(autojump_clock: MockClock, seed: int) -> None:
    """Whatever ends leases, in whatever order: for each lease and partition the session is told of exactly as many
    messages as it was handed, also over refusals by a full disk."""
    rng = random.Random(seed)
    store = MemoryStore(retain=True, faults=Faults(latency=lambda: rng.choice([0, 0.01])))
    async with started(store, seed=seed) as broker:
        await configure(broker, retry_limit=1, lease_seconds=2)
        delivered: Counter[tuple[str, int]] = Counter()
        ended: Counter[tuple[str, int]] = Counter()

        def told(end: LeaseEnd) -> None:
            assert end.messages >= 0
            ended[(end.lease_id, end.pid)] += end.messages

        sessions = [broker.open_session(told) for _ in range(3)]
        held = []
        for number in range(150):
            try:
                match rng.randrange(8):
                    case 0 | 1:
                        await push(
                            broker, *(f"{number}.{n}" for n in range(rng.randrange(1, 5))), partition=rng.choice("ab")
                        )
                    case 2 | 3:
                        with trio.move_on_after(rng.choice([0.005, 9])):
                            reply = await pop(
                                broker,
                                batch=rng.choice([1, 3]),
                                partitions=2,
                                session=rng.choice([*sessions, None]),
                                auto_ack=rng.random() < 0.1,
                                lease=rng.choice([1, 3]) * SECOND,
                            )
                            held.append(reply)
                    case 4 | 5 if held:
                        reply = rng.choice(held)
                        some = [(c.pid, r.txn) for c in reply.claims for r in c.records if rng.random() < 0.7]
                        word = rng.choice(["completed", "completed", "failed", "retry", "dlq"])
                        lease = rng.choice([reply.lease_id, None])
                        await broker.ack([Ack(txn, pid, QUEUE_MODE, word, lease) for pid, txn in some])
                    case 6:
                        await broker.seek(QUEUE_MODE, "q", rng.choice(["a", None]), rng.choice([0, None]))
                    case 7 if held:
                        await rng.choice([broker.release, lambda lease: broker.extend(lease, 2)])(held[-1].lease_id)
                    case _:
                        await trio.sleep(rng.choice([0.1, 1, 2]))
            except QueenError:
                store.faults.full = False
                await trio.sleep(rng.choice([0, 0.6]))
            else:
                store.faults.full = rng.random() < 0.05
        store.faults.full = False
        await trio.sleep(100)
        mine = set(ended)
        for reply in held:
            for claim in reply.claims:
                if reply.lease_id and (reply.lease_id, claim.pid) in mine:
                    delivered[(reply.lease_id, claim.pid)] += len(claim.records)
        assert ended == delivered
        assert broker._acks.holds() == []
        assert sum(len(records(reply)) for reply in held) > 0

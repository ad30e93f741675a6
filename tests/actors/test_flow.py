"""Flows: what a commit brings is put together once for all tails that are up to date (`actors/flow.py`)."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from queen_actors import limits
from queen_actors.actors import flow
from queen_actors.actors import tail as tails
from queen_actors.actors.tail import Gap, Tail
from queen_actors.broker import Broker, running
from queen_actors.config import Settings
from queen_actors.domain.cursor import Claim
from queen_actors.domain.partition import PushItem
from queen_actors.domain.subscription import TailTerms
from queen_actors.errors import StorageFull
from queen_actors.storage.memory import Faults, MemoryStore

Found = Sequence[Gap | Claim]


class Follower:
    """A tail that is read all the time; `got` is what it found, in order."""

    def __init__(self, tail: Tail) -> None:
        self.tail = tail
        self.got: list[Found] = []

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        await self.tail.open()
        task_status.started()
        while True:
            self.got.append(await self.tail.next())

    @property
    def offsets(self) -> dict[str, list[int]]:
        """What was delivered, by partition."""
        found: dict[str, list[int]] = {}
        for one in (one for some in self.got for one in some):
            assert isinstance(one, Claim)
            found.setdefault(one.partition, []).extend(record.offset for record in one.records)
        return found


@pytest.fixture
async def broker(autojump_clock: MockClock) -> AsyncGenerator[Broker]:
    async with running(MemoryStore(), Settings(data=None)) as found:
        yield found


@asynccontextmanager
async def following(broker: Broker, *terms: TailTerms) -> AsyncGenerator[list[Follower]]:
    """A follower for each, waiting for news."""
    followers = [Follower(broker.tail(one)) for one in terms]
    async with trio.open_nursery() as nursery:
        for one in followers:
            await nursery.start(one.run)
        await wait_all_tasks_blocked()
        yield followers
        nursery.cancel_scope.cancel()
    for one in followers:
        one.tail.close()


async def push(broker: Broker, *partitions: str, size: int = 1) -> None:
    """One call, a message to each."""
    await broker.push([PushItem("q", name, b'"' + b"x" * size + b'"') for name in partitions])
    await wait_all_tasks_blocked()


def tail(credit: int = 1_000, partition: str | None = None) -> TailTerms:
    return TailTerms("q", partition, "now", credit)


async def test_all_who_are_up_to_date_get_the_same_object(broker: Broker) -> None:
    """So that whoever writes it to many peers can spell it once; a partition of which several calls brought something
    is there once, in order."""
    async with following(broker, tail(), tail(), tail()) as followers:
        for _ in range(3):
            await push(broker, "a", "b", "a")
        for one in followers:
            assert len(one.got) == 3
            assert one.offsets == {"a": [0, 1, 2, 3, 4, 5], "b": [0, 1, 2]}
        first, *others = followers
        for other in others:
            assert all(mine is theirs for mine, theirs in zip(first.got, other.got, strict=True))
        assert [len(claim.records) for claim in first.got[0] if isinstance(claim, Claim)] == [2, 1]


async def test_who_has_no_credit_falls_behind_and_comes_back(broker: Broker) -> None:
    """It gets what it has credit for, nothing is missing and nothing comes twice; then it follows again."""
    async with following(broker, tail(), tail(credit=2)) as (quick, slow):
        await push(broker, "a", "a", "b")
        assert slow.offsets == {"a": [0, 1]}
        assert slow.tail.statistics().credit == 0
        await push(broker, "a", "c")
        slow.tail.grant(100)
        await wait_all_tasks_blocked()
        assert slow.offsets == quick.offsets == {"a": [0, 1, 2], "b": [0], "c": [0]}
        await push(broker, "a")
        assert quick.got[-1] is slow.got[-1]
        assert slow.tail.statistics().credit == 96


async def test_who_is_not_waiting_falls_behind(broker: Broker) -> None:
    """A reader that is busy is told nothing, and reads it by itself later."""
    idle = broker.tail(tail())
    await idle.open()
    async with following(broker, tail()) as (quick,):
        await push(broker, "a", "b")
        await push(broker, "a")
        assert idle.statistics().behind == 2
        found = [one for one in await idle.next() if isinstance(one, Claim)]
        assert {claim.partition: [record.offset for record in claim.records] for claim in found} == quick.offsets
    idle.close()


async def test_who_stops_waiting_falls_behind_with_all_that_is_pending(autojump_clock: MockClock) -> None:
    """What is appended when a commit ends, and is not durable yet, is read too; nobody is told of it before."""
    store = MemoryStore(faults=Faults(latency=1.0))
    async with running(store, Settings(data=None)) as broker, following(broker, tail(), tail()) as (quick, stopped):
        await push(broker, "x")
        reader = broker.tail(tail())
        await reader.open()
        with trio.move_on_after(0.5):
            await reader.next()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(broker.push, [PushItem("q", "a", b"1")])
            await trio.sleep(0.5)
            nursery.start_soon(broker.push, [PushItem("q", "b", b"2")])
            await trio.sleep(0.7)
            assert quick.offsets == stopped.offsets == {"x": [0], "a": [0]}
            assert reader.statistics().behind == 2
        await wait_all_tasks_blocked()
        assert quick.offsets == {"x": [0], "a": [0], "b": [0]}
        found = [one.partition for one in await reader.next() if isinstance(one, Claim)]
        assert found == ["a", "b"]
        reader.close()


async def test_a_cancelled_reader_has_not_moved_on(broker: Broker) -> None:
    """Cancelled in the very moment in which it is told, it has what it was told at its next question."""
    one = broker.tail(tail())
    await one.open()
    for number in range(20):
        scope = trio.CancelScope()
        got: list[Found] = []

        async def ask(scope: trio.CancelScope = scope, got: list[Found] = got) -> None:
            with scope:
                got.append(await one.next())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await wait_all_tasks_blocked()
            nursery.start_soon(broker.push, [PushItem("q", "p", b"1")])
            for _ in range(number):
                await trio.lowlevel.checkpoint()
            scope.cancel()
        if not got:
            got.append(await one.next())
        (claim,) = got[0]
        assert isinstance(claim, Claim)
        assert [record.offset for record in claim.records] == [number]
    one.close()


async def test_a_tail_of_one_partition_follows_that_one(broker: Broker) -> None:
    """It is told nothing of the others."""
    async with following(broker, tail(), tail(partition="a"), tail(partition="z")) as (whole, one, other):
        await push(broker, "a", "b")
        await push(broker, "b")
        await push(broker, "a")
        assert whole.offsets == {"a": [0, 1], "b": [0, 1]}
        assert one.offsets == {"a": [0, 1]}
        assert other.got == []


async def test_a_large_commit_comes_in_rounds(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round is bounded in messages and in bytes, and what is too much for one is read in pieces: a slow peer must not
    be handed more than can wait for it."""
    monkeypatch.setattr(flow, "ROUND_MESSAGES", 10)
    async with following(broker, tail()) as (one,):
        async with trio.open_nursery() as nursery:
            for _ in range(30):
                nursery.start_soon(broker.push, [PushItem("q", "p", b"1")] * 3)
        await wait_all_tasks_blocked()
        assert one.offsets == {"p": list(range(90))}
        counts = [sum(len(claim.records) for claim in some if isinstance(claim, Claim)) for some in one.got]
        assert max(counts) <= 10
        await push(broker, *["p"] * 40, size=limits.WS_EVENT_BYTES // 10)
        sizes = [sum(len(r.payload) for c in some if isinstance(c, Claim) for r in c.records) for some in one.got]
        assert max(sizes) <= limits.WS_EVENT_BYTES
        assert one.offsets == {"p": list(range(130))}


async def test_under_load_a_late_reader_catches_up_with_the_flow(broker: Broker) -> None:
    """Messages are appended all the time, so that there is always something that is not durable yet: who has read
    everything else follows all the same."""
    async with following(broker, tail()) as (quick,):
        late = Follower(broker.tail(TailTerms("q", None, "start", 100_000)))
        await push(broker, *["p"] * 50)

        async def load() -> None:
            for _ in range(300):
                await broker.push([PushItem("q", "p", b"1")])

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(load)
            await nursery.start(late.run)
            while quick.offsets["p"][-1] < 800:
                await trio.lowlevel.checkpoint()
            assert any(late.got[-1] is told for told in quick.got[-5:])
            nursery.cancel_scope.cancel()
        late.tail.close()
        assert late.offsets["p"] == list(range(len(late.offsets["p"])))


async def test_what_a_full_disk_refuses_is_told_to_nobody(autojump_clock: MockClock) -> None:
    """It was appended and never durable: its offset is the next message's."""
    faults = Faults()
    store = MemoryStore(retain=True, faults=faults)
    async with running(store, Settings(data=None)) as broker, following(broker, tail(), tail()) as followers:
        await push(broker, "p")
        faults.full = True
        with pytest.raises(StorageFull):
            await broker.push([PushItem("q", "p", b"2")])
        await trio.sleep(2)
        faults.full = False
        await trio.sleep(2)
        await broker.push([PushItem("q", "p", b"3")])
        await wait_all_tasks_blocked()
        for one in followers:
            told = [r.payload for some in one.got for c in some if isinstance(c, Claim) for r in c.records]
            assert told == [b'"x"', b"3"]
            assert one.offsets == {"p": [0, 1]}


async def test_nothing_is_left_of_tails_that_are_closed(broker: Broker) -> None:
    """A flow goes with its last tail."""
    async with following(broker, tail(), tail(partition="a")):
        await push(broker, "a")
        assert len(broker._tails._flows) == 2
    assert not broker._tails._flows
    assert not broker._tails._open


def from_start(credit: int = 1_000) -> TailTerms:
    return TailTerms("q", None, "start", credit)


async def test_who_reads_what_another_one_has_read_gets_the_same_object(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tails that begin at one place, at one time, read each round once for all of them, and miss nothing; who has
    another credit reads rounds of its own."""
    monkeypatch.setattr(tails, "ROUND_MESSAGES", 10)
    await push(broker, *(f"p{number}" for number in range(35)))
    await push(broker, *["p3"] * 25)
    async with following(broker, *[from_start(0)] * 4) as followers:
        first, second, third, poor = followers
        for one in followers:
            one.tail.grant(7 if one is poor else 1_000)
        await wait_all_tasks_blocked()
        wanted = {f"p{number}": [0] for number in range(35)} | {"p3": list(range(26))}
        for one in (first, second, third):
            assert {name: sorted(offsets) for name, offsets in one.offsets.items()} == wanted
            assert one.offsets["p3"] == wanted["p3"], "in order"
        for other in (second, third):
            assert all(mine is theirs for mine, theirs in zip(first.got, other.got, strict=True))
        assert sum(map(len, poor.offsets.values())) == 7
        for _ in range(8):
            poor.tail.grant(7)
            await wait_all_tasks_blocked()
        assert poor.offsets == wanted


async def test_what_was_read_for_others_is_not_told_when_it_has_gone(broker: Broker) -> None:
    """A queue that was deleted, and one of its name: a tail that comes later finds nothing of the old one, although
    another tail has read it a moment ago."""
    await push(broker, "a", "a", "b")
    async with following(broker, from_start(), from_start()):
        late = broker.tail(from_start())
        await late.open()
        await broker.delete_queue("q")
        await push(broker, "a")
        with trio.fail_after(1):
            found = await late.next()
        (claim,) = found
        assert isinstance(claim, Claim)
        assert [record.offset for record in claim.records] == [0]
        assert claim.partition == "a"
        assert late.statistics().behind == 0
        late.close()


async def test_one_tail_alone_keeps_nothing(broker: Broker) -> None:
    """What is kept is for others, and goes with the last of them."""
    await push(broker, "a", "b")
    async with following(broker, from_start()):
        assert not broker._tails._kept
        async with following(broker, from_start(), from_start()):
            assert len(broker._tails._kept) == 1
    assert not broker._tails._kept

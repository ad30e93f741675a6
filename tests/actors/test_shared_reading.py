"""Groups at the same place of a partition are given the same messages, looked up once (`actors/partition.py`)."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from queen_actors.broker import Broker, running
from queen_actors.config import Settings
from queen_actors.domain.cursor import Claim, PopRequest
from queen_actors.domain.partition import PushItem
from queen_actors.errors import StorageFull
from queen_actors.storage.memory import Faults, MemoryStore


async def push(broker: Broker, *texts: str, partition: str = "p") -> None:
    await broker.push([PushItem("q", partition, b'"%b"' % text.encode()) for text in texts])


async def pop(broker: Broker, group: str, *, batch: int = 200, wait: int = 0) -> Claim:
    reply = await broker.pop(PopRequest("q", group=group, batch=batch, wait=wait, subscription_mode="all"))
    (claim,) = reply.claims
    return claim


def texts(claim: Claim) -> list[str]:
    return [record.payload.decode().strip('"') for record in claim.records]


async def test_groups_at_one_place_get_the_same_messages(autojump_clock: MockClock) -> None:
    """And each gets what it asked for: another batch, another place, another partition are looked up anew."""
    async with running(MemoryStore(), Settings(data=None)) as broker:
        first = [f"a{number}" for number in range(20)]
        await push(broker, *first)
        claims = [await pop(broker, f"g{number}") for number in range(3)]
        assert all(claim.records is claims[0].records for claim in claims)
        assert texts(claims[0]) == first
        assert texts(await pop(broker, "ten", batch=10)) == first[:10]
        assert texts(await pop(broker, "eleven", batch=11)) == first[:11]
        more = [f"b{number}" for number in range(20)]
        await push(broker, *more)
        assert texts(await pop(broker, "late")) == first + more
        assert texts(await pop(broker, "later")) == first + more
        other = [f"c{number}" for number in range(40)]
        await push(broker, *other, partition="r")
        found = sorted([texts(await pop(broker, "both")), texts(await pop(broker, "both"))])
        assert found == [first + more, other]


async def test_a_byte_more_than_fits_is_left(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound of a pop's bytes counts what was looked up before as it counts anything: of two partitions the second
    one is taken as far as there is room."""
    monkeypatch.setattr("queen_actors.limits.POP_BYTES", 10 * 102 + 9 * 102 + 50)
    async with running(MemoryStore(), Settings(data=None)) as broker:
        for name in ("p", "r"):
            await push(broker, *["x" * 100] * 10, partition=name)
        for number in range(3):
            request = PopRequest("q", group=f"g{number}", partitions=2, subscription_mode="all")
            reply = await broker.pop(request)
            assert [len(claim.records) for claim in reply.claims] == [10, 9]


async def test_what_was_looked_up_before_a_refusal_is_void(autojump_clock: MockClock) -> None:
    """A full disk refuses messages that a waiting group had claimed already: whoever pops then gets those that took
    their offsets."""
    faults = Faults()
    async with running(MemoryStore(retain=True, faults=faults), Settings(data=None)) as broker:
        await push(broker, "before")
        before = await pop(broker, "g")
        assert texts(before) == ["before"]
        found: list[list[str]] = []

        async def wait_for_some(group: str) -> None:
            while len(found) < 2:
                try:
                    claim = await pop(broker, group, wait=30_000_000)
                except (StorageFull, ValueError):
                    await trio.sleep(0.1)
                else:
                    found.append(texts(claim))
                    return

        async with trio.open_nursery() as nursery:
            for group in ("h", "i"):
                await broker.register("q", group, "new", None)
                nursery.start_soon(wait_for_some, group)
            await wait_all_tasks_blocked()
            faults.full = True
            with pytest.raises(StorageFull):
                await push(broker, *[f"refused{number}" for number in range(10)])
            await trio.sleep(2)
            faults.full = False
            await trio.sleep(2)
            await push(broker, *[f"kept{number}" for number in range(10)])
        assert found == [[f"kept{number}" for number in range(10)]] * 2

"""A queue with many partitions: a group's first pops, and the commands on all of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import pytest
import trio
import trio.lowlevel
from broker_kit import QUEUE_MODE, ack, configure, pop, push, started, txns
from trio.testing import MockClock

from queen_actors import limits
from queen_actors.actors.groups import Groups
from queen_actors.actors.log import decided
from queen_actors.actors.pops import LOOKS
from queen_actors.broker import Broker
from queen_actors.domain.cursor import PopReply
from queen_actors.domain.effects import CursorDropped, CursorPut, DeadLetterDropped, Entry, Record
from queen_actors.domain.partition import PushItem
from queen_actors.errors import StorageFull
from queen_actors.storage.memory import MemoryStore

VIRTUAL_TIME = True
MANY = 6 * LOOKS


async def furnish(broker: Broker) -> None:
    """One message in each of many partitions, which are packed away then."""
    await broker.push([PushItem("q", f"p{number}", b"1", txn=f"m{number}") for number in range(MANY)])
    directory = broker._core.directory
    directory.passivate(list(directory.active), light=True)
    assert not directory.active
    await trio.sleep(1)


async def test_a_pop_that_finds_nothing_lets_others_run_and_unpacks_nothing(autojump_clock: MockClock) -> None:
    """A group that begins at the end looks at every partition, some at a time; what is pushed meanwhile came after it,
    also into a partition that it has looked at."""
    turns = 0
    async with started(MemoryStore()) as broker:
        await furnish(broker)
        directory = broker._core.directory
        replies: list[PopReply] = []

        async def first() -> None:
            replies.append(await pop(broker, group="late", subscription_mode="new"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(first)
            while "late" not in directory.queues["q"].groups:
                await trio.lowlevel.checkpoint()
            nursery.start_soon(push, broker, "during")
            while not replies:
                turns += 1
                await trio.lowlevel.checkpoint()
        assert turns >= MANY // LOOKS - 2
        assert len(directory.active) <= 1
        found = [*txns(replies[0]), *txns(await pop(broker, group="late"))]
        assert found == ["during"]


@pytest.mark.parametrize("group", ["g", QUEUE_MODE])
async def test_what_lies_in_the_last_partition_is_found(autojump_clock: MockClock, group: str) -> None:
    """Behind many that have been settled by the group, in the first pop after the state was read again."""
    store = MemoryStore(retain=True)
    async with started(store) as broker:
        await furnish(broker)
        while (reply := await pop(broker, group=group, batch=MANY, partitions=MANY)).claims:
            await ack(broker, reply)
        await push(broker, "last", partition=f"p{MANY - 1}")
    async with started(store.reopen()) as broker:
        assert txns(await pop(broker, group=group)) == ["last"]
        assert txns(await pop(broker, group=group)) == []


async def test_who_is_cancelled_while_he_looks_leaves_the_rest_to_the_next(autojump_clock: MockClock) -> None:
    """A parked pop was woken to look everywhere, and goes before it has: the next in line does, and finds what there
    is."""
    found: list[tuple[str, list[str]]] = []
    scopes = {"going": trio.CancelScope(), "staying": trio.CancelScope()}

    async def waiting(broker: Broker, name: str) -> None:
        with scopes[name]:
            found.append((name, txns(await pop(broker, group="g", subscription_mode="new", wait=60))))

    async with started(MemoryStore()) as broker:
        await furnish(broker)
        before = broker.clock.now()
        await push(broker, "last", partition=f"p{MANY - 1}")
        await trio.sleep(1)
        async with trio.open_nursery() as nursery:
            for name in scopes:
                nursery.start_soon(waiting, broker, name)
                await trio.sleep(1)
            index = broker._pops.ready._indexes["q"]["g"]
            assert index.unseen == 0
            nursery.start_soon(broker.move_subscription, "g", before)
            while not 0 < index.unseen < MANY:
                await trio.lowlevel.checkpoint()
            scopes["going"].cancel()
        assert found == [("staying", ["last"])]
        assert trio.current_time() < 10


async def test_a_first_pop_reads_no_more_than_it_takes(autojump_clock: MockClock) -> None:
    """Of a sealed queue of which nothing is in memory: what was read for it is looked at before what nobody has looked
    at yet. Each message comes once."""
    store = MemoryStore(retain=True)
    async with started(store, record_cache_bytes=0) as broker:
        sent = [f"m{number}" for number in range(20)]
        await broker.push([PushItem("q", f"p{place % 10}", b"1", txn=txn) for place, txn in enumerate(sent)])
        await store.seal()
        reads, read = 0, store.read

        async def counted(pid: int, first: int, last: int, max_bytes: int) -> list[Record]:
            nonlocal reads
            reads += 1
            return await read(pid, first, last, max_bytes)

        store.read = counted  # type: ignore[method-assign]
        found: list[str] = []
        for pops in range(1, 11):
            reply = await pop(broker, group="g", batch=2)
            assert len(txns(reply)) == 2
            assert reads <= pops
            found += txns(reply)
        assert sorted(found) == sorted(sent)


class Small(MemoryStore):
    """Takes no step that moves or drops more things than one turn has time for."""

    async def commit(self, entries: Sequence[Entry], done: Callable[[], None] | None = None) -> None:
        for entry in entries:
            moved = [e for e in entry.effects if isinstance(e, (CursorPut, CursorDropped, DeadLetterDropped))]
            assert len(moved) <= limits.STEP_EFFECTS
        await super().commit(entries, done)


async def in_turns(call: Callable[[], Awaitable[object]]) -> int:
    """How often others came while it ran; whoever comes after it on its connection had to wait for all of it."""
    turns, over, told = 0, False, []

    async def run() -> None:
        nonlocal over
        decided.set(told.append)
        await call()
        assert told == [False]
        over = True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        while not over:
            turns += 1
            await trio.lowlevel.checkpoint()
    return turns


async def test_a_group_moves_some_partitions_at_a_time(autojump_clock: MockClock) -> None:
    """All of them, in the end; others are served meanwhile, and no step of the log is larger than a turn."""
    async with started(Small()) as broker:
        await furnish(broker)
        directory = broker._core.directory
        pids = list(directory.queues["q"].partitions.values())
        steps = MANY // limits.STEP_EFFECTS
        for to, committed in ((None, 0), (1, -1)):
            moved: list[int | None] = []

            async def seek(to: int | None = to, moved: list[int | None] = moved) -> None:
                moved.append(await broker.seek("g", "q", None, to))

            assert await in_turns(seek) >= steps
            assert moved == [MANY]
            states = [directory.peek(pid) for pid in pids]
            places = {state.cursors["g"].committed for state in states if state is not None}
            assert places == {committed}


async def test_dead_letters_go_some_at_a_time(autojump_clock: MockClock) -> None:
    """Those of one group, and no others."""
    async with started(Small()) as broker:
        await configure(broker, retry_limit=0)
        await furnish(broker)
        for group in ("g", "h"):
            for _ in range(MANY):
                reply = await pop(broker, group=group, batch=500, partitions=500)
                if not reply.claims:
                    break
                await ack(broker, reply, "failed")
        state = broker._core.directory.queues["q"]
        assert len(state.dead) == 2 * MANY
        gone: list[int] = []

        async def purge() -> None:
            gone.append(await broker.purge_dead_letters("q", "g"))

        assert await in_turns(purge) >= MANY // limits.STEP_EFFECTS
        assert gone == [MANY]
        assert {letter.group for letter in state.dead.values()} == {"h"}
        assert await broker.purge_dead_letters("q", None) == MANY


class Fills(MemoryStore):
    """A disk that is full from the second group that moves cursors on, for a second."""

    moving = 0

    async def commit(self, entries: Sequence[Entry], done: Callable[[], None] | None = None) -> None:
        self.moving += any(isinstance(effect, CursorPut) for entry in entries for effect in entry.effects)
        self.faults.full = self.moving == 2 and bool(entries)
        await trio.sleep(0.01)
        await super().commit(entries, done)


@pytest.mark.parametrize("awaits", [False, True])
async def test_a_move_that_is_refused_half_way_says_so(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, awaits: bool
) -> None:
    """Also when the state has been read again, and is whole, before its last part: what came before was refused. Sent
    again, it does all of it. `awaits`: between a part and the next one it asks the store."""
    store = Fills(retain=True)

    async def asked(self: Groups, *_: object) -> dict[int, int]:
        await trio.sleep(1)
        await self._core.turn()
        return {}

    async with started(store) as broker:
        await furnish(broker)
        with monkeypatch.context() as patch:
            if awaits:
                patch.setattr(Groups, "_starts", asked)
            with pytest.raises(StorageFull):
                await broker.seek("g", "q", None, 1 if awaits else None)
        await trio.sleep(2)
        directory = broker._core.directory
        pids = list(directory.queues["q"].partitions.values())
        moved = [directory.consumes(pid, "g") for pid in pids].count(True)
        assert moved in range(limits.STEP_EFFECTS, MANY, limits.STEP_EFFECTS)  # the parts of the first group
        store.moving = 3
        assert await broker.seek("g", "q", None, None) == MANY
        assert all(directory.consumes(pid, "g") for pid in pids)

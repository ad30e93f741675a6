"""Storage faults: a full disk, a write of unknown fate, a crash, commits that take their time (I11, I13, I15, A31)."""

from __future__ import annotations

import inspect
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from broker_kit import QUEUE_MODE, SECOND, ack, configure, pop, push, records, schedule, started, txns
from storage_kit import FaultyOps
from trio.testing import MockClock, wait_all_tasks_blocked

from queen_actors import limits
from queen_actors.broker import Broker, running
from queen_actors.config import Settings
from queen_actors.domain.cursor import Ack, LeaseEnd, PopReply, PopRequest
from queen_actors.domain.kv import Get, Incr, Put, WriteResult
from queen_actors.domain.locks import Acquire, GetLock
from queen_actors.domain.overview import FetchEntry, MessageFilter
from queen_actors.domain.partition import PushItem
from queen_actors.domain.streams import Cycle, Register, Registered, StateRead
from queen_actors.domain.subscription import TailTerms
from queen_actors.domain.timers import Cancel, Schedule
from queen_actors.domain.transaction import Committed, Transaction
from queen_actors.domain.watch import WatchTerms
from queen_actors.errors import NotFound, QueenError, StorageFailed, StorageFull, TooLarge
from queen_actors.storage import DurableStore
from queen_actors.storage.memory import Faults, MemoryStore
from queen_actors.testing.state import state_of

Action = Callable[[Broker], Awaitable[Any]]


def put(key: str, value: bytes = b"1", ttl: int | None = None) -> Put:
    return Put("ns", key, value, ttl)


async def value_of(broker: Broker, key: str) -> bytes | None:
    (result,) = await broker.kv([Get("ns", key)])
    row = getattr(result, "row", None)
    return None if row is None else row.value


WRITES: dict[str, Action] = {
    "push": lambda b: b.push([PushItem("q", "p", b"1", txn="refused")]),
    "pop": lambda b: pop(b),
    "autoAck": lambda b: pop(b, auto_ack=True),
    "pops": lambda b: b.pops(PopRequest("q"), 9),
    "kv": lambda b: b.kv([put("k", b"2")]),
    "lock": lambda b: b.locks([Acquire("l", 9 * SECOND, "other")]),
    "timer": lambda b: schedule(b, "refused", 9),
    "cancel": lambda b: b.timers([Cancel("q", "t")]),
    "configure": lambda b: configure(b, retry_limit=1),
    "delete": lambda b: b.delete_queue("q"),
    "seek": lambda b: b.seek(QUEUE_MODE, "q", None, None),
    "group": lambda b: b.delete_group("g", None, metadata=True),
    "register": lambda b: b.register("q", "new", "new", None),
    "transaction": lambda b: b.transaction(Transaction(steps=(PushItem("x", "p", b"1"),), kv=(put("k", b"3"),))),
    "trace": lambda b: b.trace(pid=1, txn="m", group="g", names=(), event="e", data=b"1", worker=None),
}


async def furnish(broker: Broker) -> None:
    await push(broker, "m", "n")
    await ack(broker, await pop(broker, group="g"))
    await broker.kv([put("k")])
    await schedule(broker, "t", 5000)


@pytest.mark.parametrize("write", WRITES.values(), ids=list(WRITES))
async def test_a_full_disk_refuses_and_nothing_of_it_is_seen(autojump_clock: MockClock, write: Action) -> None:
    """507 for the write; the state is what it was, also for reads meanwhile; with room again the same write holds."""
    store = MemoryStore(retain=True)
    async with started(store) as broker:
        await furnish(broker)
        before = state_of(broker)
        store.faults.full = True
        with pytest.raises(StorageFull):
            await write(broker)
        await trio.sleep(1)
        with pytest.raises(StorageFull):
            await write(broker)
        assert state_of(broker) == before
        assert await value_of(broker, "k") == b"1"
        assert await broker.timer("q", "t") is not None
        view = await broker.queue_view("q")
        assert view is not None
        assert view.options.retry_limit == 3
        assert await broker.timer("q", "refused") is None
        assert (await broker.locks([GetLock("l")]))[0].holders == ()
        assert await broker.message(1, "refused") is None
        store.faults.full = False
        await trio.sleep(1)
        await write(broker)
        after = state_of(broker)
        assert after != before
    async with started(store.reopen()) as broker:
        assert state_of(broker) == after


async def test_a_full_disk_under_the_durable_store(tmp_path: Path) -> None:
    """The same with a real directory, whose disk has no room for anything: it is refused, read, and written again."""
    ops = FaultyOps()
    store = DurableStore(str(tmp_path / "data"), ops=ops)
    async with running(store, Settings()) as broker:
        await broker.kv([put("k")])
        ops.room = 0
        for _ in range(3):
            with pytest.raises(StorageFull):
                await broker.kv([put("k", b"2")])
            assert await value_of(broker, "k") == b"1"
        ops.room = None
        with trio.fail_after(30):
            while True:
                await trio.sleep(0.05)
                with suppress(StorageFull):
                    await broker.kv([put("k", b"3")])
                    break
    async with running(DurableStore(str(tmp_path / "data")), Settings()) as broker:
        assert await value_of(broker, "k") == b"3"


async def test_reads_while_the_state_is_read_again(autojump_clock: MockClock) -> None:
    """They wait, and see all of it: never an empty broker, never half of one."""

    class SlowToOpen(MemoryStore):
        async def open(self, recovery: Any) -> Any:
            class Slow:
                def __getattr__(self, name: str) -> Any:
                    return getattr(recovery, name)

            found = await super().open(Slow())
            await trio.sleep(3)
            return found

    store = SlowToOpen(retain=True)
    async with started(store) as broker:
        await furnish(broker)
        store.faults.full = True
        with pytest.raises(StorageFull):
            await push(broker, "x")
        store.faults.full = False
        start = trio.current_time()
        async with trio.open_nursery() as nursery:
            found: list[Any] = []

            async def see(do: Callable[[], Awaitable[Any]]) -> None:
                found.append(await do())

            nursery.start_soon(see, lambda: value_of(broker, "k"))
            nursery.start_soon(see, lambda: broker.message(1, "m"))
            nursery.start_soon(see, lambda: broker.queue_view("q"))
            nursery.start_soon(see, lambda: broker.timer_count("q", ""))
        assert trio.current_time() - start == pytest.approx(3)
        assert None not in found
        assert 0 not in found


async def test_parked_pops_sit_out_a_full_disk(autojump_clock: MockClock) -> None:
    """Nobody who waits is refused; whoever waits when there is room gets what came meanwhile by itself: here a lease
    that expired."""
    store = MemoryStore(retain=True)
    async with started(store) as broker:
        await push(broker, "m")
        await pop(broker, lease=2 * SECOND)
        replies: list[PopReply] = []

        async def parked(wait: float) -> None:
            replies.append(await pop(broker, wait=wait))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(parked, 3)
            nursery.start_soon(parked, 60)
            await trio.sleep(1)
            store.faults.full = True
            with pytest.raises(StorageFull):
                await push(broker, "n")
            await trio.sleep(4)
            assert [txns(reply) for reply in replies] == [[]]
            store.faults.full = False
        assert txns(replies[1]) == ["m"]


async def test_a_group_commit_is_refused_as_a_whole(autojump_clock: MockClock) -> None:
    """Everything that was decided on top of what is refused goes with it: one lost pile, no half of it."""
    store = MemoryStore(retain=True)
    async with started(store) as broker:
        await broker.kv([Put("ns", "n", b"0", None)])
        store.faults.full = True
        refused = 0

        async def bump(number: int = 99) -> None:
            nonlocal refused
            for _ in range(number % 4):
                await trio.lowlevel.checkpoint()
            try:
                await broker.kv([Incr("ns", "n", Decimal(1), None), put(f"k{number}")])
            except StorageFull:
                refused += 1

        async with trio.open_nursery() as nursery:
            for number in range(50):
                nursery.start_soon(bump, number)
        assert refused == 50
        assert await value_of(broker, "n") == b"0"
        store.faults.full = False
        await trio.sleep(1)
        await bump()
        assert await value_of(broker, "n") == b"1"
        after = state_of(broker)
    async with started(store.reopen()) as broker:
        assert state_of(broker) == after


async def test_background_work_survives_a_full_disk(autojump_clock: MockClock) -> None:
    """Timers, sweeps and give-backs that fall into it are made up for; no attempt is spent, nothing fires twice."""
    store = MemoryStore(retain=True)
    async with started(store) as broker:
        await schedule(broker, "t", 2)
        await broker.kv([put("k", ttl=2 * SECOND)])
        await push(broker, "m", partition="s")
        session = broker.open_session(lambda end: None)
        await pop(broker, partition="s", session=session)
        store.faults.full = True
        with pytest.raises(StorageFull):
            await push(broker, "x")
        await trio.sleep(1)
        await broker.close_session(session)
        await trio.sleep(5)
        pending = await broker.timer("q", "t")
        assert pending is not None
        assert pending.attempts == 0
        assert await value_of(broker, "k") is None
        store.faults.full = False
        await trio.sleep(2)
        assert await broker.timer("q", "t") is None
        assert txns(await pop(broker, partition="p")) == ["t"]
        assert txns(await pop(broker, partition="s")) == ["m"]
        assert broker._core.directory.namespaces == {}


async def test_a_session_over_a_refusal(autojump_clock: MockClock) -> None:
    """An ack that was refused settled nothing: the session still holds its lease, and hears of each message once."""
    store = MemoryStore(retain=True)
    async with started(store) as broker:
        await push(broker, *"abc")
        ends: list[LeaseEnd] = []
        session = broker.open_session(ends.append)
        reply = await pop(broker, session=session, lease=30 * SECOND)
        pid = reply.claims[0].pid
        await broker.ack([Ack("a", pid, QUEUE_MODE, lease_id=reply.lease_id)])
        store.faults.full = True
        for names in ("b", "bc"):
            with pytest.raises(StorageFull):
                await broker.ack([Ack(name, pid, QUEUE_MODE, lease_id=reply.lease_id) for name in names])
            await trio.sleep(1)
        assert [(end.messages, end.reason) for end in ends] == [(1, "settled")]
        store.faults.full = False
        await trio.sleep(1)
        await broker.ack([Ack("b", pid, QUEUE_MODE, lease_id=reply.lease_id)])
        await trio.sleep(60)
        assert [(end.messages, end.reason) for end in ends] == [(1, "settled"), (1, "settled"), (1, "expired")]


@pytest.mark.parametrize("fate", ["kept", "lost"])
async def test_a_write_whose_fate_is_unknown_stops_the_broker(autojump_clock: MockClock, fate: Any) -> None:
    """Every caller gets StorageFailed, no reply leaves, the block ends with it, bare; the next start has all or
    nothing of it."""
    store = MemoryStore(retain=True)
    seen: list[str] = []

    async def client(name: str, do: Callable[[], Awaitable[Any]]) -> None:
        try:
            await do()
            seen.append(f"{name}: ok")
        except StorageFailed:
            seen.append(f"{name}: failed")

    async def scenario() -> None:
        async with started(store) as broker:
            await push(broker, "before")
            store.faults.fail = fate
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client, "push", lambda: push(broker, "unknown"))
                nursery.start_soon(client, "kv", lambda: broker.kv([put("unknown")]))
                nursery.start_soon(client, "pop", lambda: pop(broker, wait=50, queue="empty"))
            await trio.sleep(1)

    with pytest.raises(StorageFailed) as stopped:
        await scenario()
    assert stopped.value.code == "storage_failed"
    assert not any(line.endswith("ok") for line in seen)
    async with started(store.reopen()) as broker:
        kept = [await broker.message(1, "unknown") is not None, await value_of(broker, "unknown") is not None]
        assert kept[0] == (fate == "kept" and kept[0])
        assert await broker.message(1, "before") is not None


async def test_a_failed_store_that_is_met_twice_is_one_failure(autojump_clock: MockClock) -> None:
    """By the writer and by the upkeep at one instant: still one StorageFailed, bare."""
    store = MemoryStore(retain=True, seal_seconds=1.0)

    async def scenario() -> None:
        async with started(store) as broker:
            await push(broker, "m")
            store.faults.latency = 5
            async with trio.open_nursery() as nursery:
                nursery.start_soon(push, broker, "n")
                await trio.sleep(0.5)
                store.crash()
                await trio.sleep(5)

    with pytest.raises(StorageFailed):
        await scenario()


async def test_the_blocks_own_exception_comes_out_bare(autojump_clock: MockClock) -> None:
    """And what is pending is committed first."""
    store = MemoryStore(retain=True)

    async def scenario() -> None:
        async with started(store) as broker:
            await push(broker, "m")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await scenario()
    async with started(store.reopen()) as broker:
        assert txns(await pop(broker)) == ["m"]


async def test_a_store_that_breaks_its_contract_stops_the_broker(autojump_clock: MockClock) -> None:
    """An exception that it may not raise: callers are told, and the broker does not hang at its end."""

    class Broken(MemoryStore):
        async def commit(self, entries: Any, done: Any = None) -> None:
            raise RuntimeError("bug")

    start = trio.current_time()

    async def scenario() -> None:
        async with started(Broken(retain=True)) as broker:
            with pytest.raises(StorageFailed):
                await push(broker, "m")
            await trio.sleep(1)

    with pytest.raises(RuntimeError, match="bug"):
        await scenario()
    assert trio.current_time() - start < 2


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("keep", [False, True])
async def test_a_crash_at_any_commit(autojump_clock: MockClock, seed: int, keep: bool) -> None:
    """I11, I14: what was acknowledged is there after it, and of what was in flight all or nothing."""
    rng = random.Random(seed)
    store = MemoryStore(retain=True, faults=Faults(latency=lambda: rng.choice([0.005, 0.01])))
    acknowledged: set[int] = set()

    async def client(broker: Broker, first: int) -> None:
        for number in range(first, first + 40):
            bundle = Transaction(
                steps=(PushItem("q", f"p{first}", b"1", txn=f"m{number}"), PushItem("r", "p", b"1", txn=f"m{number}")),
                kv=(put(f"k{number}"),),
                timers=(Schedule("t", f"t{number}", b"1", 10**9, f"x{number}"),),
            )
            if isinstance(await broker.transaction(bundle), Committed):
                acknowledged.add(number)

    async def scenario() -> None:
        async with started(store, seed=seed) as broker, trio.open_nursery() as nursery:
            for first in (0, 100, 200):
                nursery.start_soon(client, broker, first)
            await trio.sleep(rng.random() * 0.2)
            store.crash(keep=keep)
            await push(broker, "last")

    with pytest.raises(StorageFailed):
        await scenario()
    async with started(store.reopen()) as broker:
        for number in [*range(40), *range(100, 140), *range(200, 240)]:
            first = number // 100 * 100
            found = broker._core.directory.find("q", f"p{first}")
            other = broker._core.directory.find("r", "p")
            whole = {
                found is not None and found.known(f"m{number}") is not None,
                other is not None and other.known(f"m{number}") is not None,
                await value_of(broker, f"k{number}") is not None,
                await broker.timer("t", f"t{number}") is not None,
            }
            assert len(whole) == 1, "all or nothing"
            assert whole == {True} or number not in acknowledged


SILENT = {"open", "run", "close", "seal", "passivate", "close_session"}
"""Operations of a broker that answer nobody."""


class Noted:
    """A broker or a part of it, and which of its operations were asked for."""

    def __init__(self, noted: Any) -> None:
        self.noted = noted
        self.asked: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self.asked.add(name)
        return getattr(self.noted, name)

    def missed(self) -> set[str]:
        """Operations that were not asked for."""
        there = vars(type(self.noted)).items()
        return {name for name, it in there if inspect.iscoroutinefunction(it) and name[0] != "_"} - self.asked


async def test_nothing_is_told_before_it_is_durable(autojump_clock: MockClock) -> None:
    """I13: while a commit is under way no reply leaves that reveals it, be it of a write or of a read; every operation
    that there is."""
    store = MemoryStore(retain=True, faults=Faults(latency=0))
    async with started(store) as furnished:
        broker: Any = Noted(furnished)
        overview: Any = Noted(furnished.overview)
        reads: Any = Noted(furnished.reads)
        streams: Any = Noted(furnished.streams)
        await furnish(furnished)
        await furnished.locks([Acquire("held", 900 * SECOND, "me")])
        await push(furnished, "dead", "dying", queue="d")
        for _ in range(2):
            await ack(furnished, await pop(furnished, "d", batch=1), "dlq")
        (dying, dead), _ = await furnished.dead_letters(queue="d")
        query = await furnished.streams.register(Register("query", "q", "shape"))
        assert isinstance(query, Registered)
        store.faults.latency = 100.0
        done: list[str] = []

        async def call(name: str, do: Callable[[], Awaitable[Any]]) -> None:
            await do()
            done.append(name)

        async def refused(it: Awaitable[Any], error: type[QueenError]) -> None:
            with pytest.raises(error):
                await it

        calls: dict[str, Callable[[], Awaitable[Any]]] = {
            "push": lambda: push(broker, "x", partition="z"),
            "duplicate": lambda: push(broker, "x", partition="z"),
            "pop": lambda: pop(broker, partition="z"),
            "pops": lambda: broker.pops(PopRequest("q", group="pops", batch=1), 9),
            "empty pop": lambda: pop(broker, partition="z"),
            "get": lambda: broker.kv([Get("ns", "k")]),
            "put": lambda: broker.kv([put("k", b"2")]),
            "read of the put": lambda: broker.kv([Get("ns", "k")]),
            "lock": lambda: broker.locks([Acquire("l", 900 * SECOND, "me")]),
            "lock get": lambda: broker.locks([GetLock("l")]),
            "refused lock": lambda: broker.locks([Acquire("l", SECOND, "you")]),
            "schedule": lambda: schedule(broker, "t2", 500),
            "peek": lambda: broker.timer("q", "t2"),
            "page": lambda: broker.timer_page("q", None, 9),
            "count": lambda: broker.timer_count("q", ""),
            "view": lambda: broker.queue_view("q"),
            "letters": lambda: broker.dead_letters(),
            "message": lambda: broker.message(1, "m"),
            "configure": lambda: configure(broker, retry_limit=5),
            "purge": lambda: broker.purge_dead_letters("q", None),
            "remove": lambda: broker.remove_dead_letters(1, "m"),
            "replay": lambda: broker.replay(dead.letter.id, None, None),
            "replay of nothing": lambda: broker.replay(dead.letter.id, None, None),
            "retry": lambda: broker.retry(dying.letter.pid, "dying", None, None),
            "retry of nothing": lambda: broker.retry(1, "m", None, None),
            "acquire": lambda: broker.acquire(Acquire("w", 900 * SECOND, "me"), 0),
            "refused acquire": lambda: broker.acquire(Acquire("w", SECOND, "you"), 0),
            "lags": lambda: overview.lags(),
            "groups": lambda: overview.groups(),
            "queues": lambda: overview.queues(),
            "both": lambda: overview.queues_and_groups(),
            "depth": lambda: overview.depth("q", "g"),
            "sizes": lambda: overview.sizes("q"),
            "fetch": lambda: reads.fetch([FetchEntry("q", "p", 0, 1000)], 1000, 1, 0),
            "changed": lambda: reads.changed([("q", 0, 0, 10)]),
            "messages": lambda: reads.messages(MessageFilter("q", None, None, None, None, 0, None, 10, 0)),
            "appended": lambda: reads.appended(0, SECOND, 10),
            "traces": lambda: reads.traces(pid=1),
            "trace names": lambda: reads.trace_names(),
            "stream register": lambda: streams.register(Register("other", "q", "shape")),
            "stream state": lambda: streams.read(StateRead(query.id, 1)),
            "stream cycle": lambda: streams.cycle(Cycle(query.id, 1, "s", (), (), None, False)),
            "delete": lambda: broker.delete_queue("q"),
            "delete again": lambda: broker.delete_queue("q"),
            "view of nothing": lambda: broker.queue_view("q"),
            "seek of nothing": lambda: broker.seek("g", "q", None, None),
            "trace of nothing": lambda: broker.trace(
                pid=1, txn="m", group="g", names=(), event="e", data=b"1", worker=None
            ),
            "message of nothing": lambda: broker.message(1, "m"),
            "stream state of nothing": lambda: refused(streams.read(StateRead(query.id, 1)), NotFound),
            "stream cycle of nothing": lambda: refused(
                streams.cycle(Cycle(query.id, 1, "s", (), (), None, False)), NotFound
            ),
            "ack of nothing": lambda: broker.ack([Ack("m", 1, QUEUE_MODE)]),
            "group": lambda: broker.delete_group("g", None, metadata=True),
            "moved": lambda: broker.move_subscription("g", 0),
            "rolled back": lambda: broker.transaction(
                Transaction(kv=(Put("ns", "k", b"1", None, expect=99, required=True),))
            ),
            "extend": lambda: broker.extend("nobody", 9),
            "release": lambda: broker.release("nobody"),
            "register": lambda: broker.register("r", "g", "new", None),
            "register again": lambda: broker.register("r", "g", "new", None),
        }
        async with trio.open_nursery() as nursery:
            for name, do in calls.items():
                nursery.start_soon(call, name, do)
                await wait_all_tasks_blocked()
            assert done == []
            await trio.sleep(350)
            assert sorted(done) == sorted(calls)
        assert broker.missed() == SILENT
        assert overview.missed() | reads.missed() | streams.missed() == set()


async def test_a_watch_or_a_tail_that_is_too_large_says_so_when_that_is_durable(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I13: a refusal that counts rows or partitions waits for those that it counts."""
    monkeypatch.setattr(limits, "WATCH_ROWS", 1)
    monkeypatch.setattr(limits, "WS_TAIL_PARTITIONS", 1)
    store = MemoryStore(faults=Faults(latency=100))
    async with started(store) as broker, trio.open_nursery() as nursery:
        begun = trio.current_time()
        for number in range(2):
            nursery.start_soon(broker.kv, [put(f"k{number}")])
            nursery.start_soon(partial(push, broker, "m", partition=f"p{number}"))
        await wait_all_tasks_blocked()
        refused: list[float] = []

        async def open_it(reader: Any) -> None:
            with pytest.raises(TooLarge):
                await reader.open()
            refused.append(trio.current_time() - begun)

        nursery.start_soon(open_it, broker.watch(WatchTerms("ns")))
        nursery.start_soon(open_it, broker.tail(TailTerms("q")))
        await trio.sleep(99)
        assert refused == []
        await trio.sleep(201)
        assert len(refused) == 2


async def test_a_reader_of_segments_sees_only_what_is_durable(autojump_clock: MockClock) -> None:
    """I13 where a read takes time by itself: what was decided meanwhile, and refused, is not in its answer."""
    store = MemoryStore(retain=True, faults=Faults(read_latency=5))
    async with started(store) as broker:
        await configure(broker, retry_limit=0)
        await push(broker, "m")
        reply = await pop(broker)
        await store.seal()
        await broker.passivate()
        seen: list[Any] = []

        async def look() -> None:
            seen.append(await broker.message(1, "m"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            await trio.sleep(1)
            store.faults.full = True
            store.faults.latency = 0
            with pytest.raises(StorageFull):
                await broker.ack([Ack("m", 1, QUEUE_MODE, "retry", reply.lease_id)])
            store.faults.full = False
        assert seen[0] is None or seen[0].status == "processing"
        await trio.sleep(1)
        assert txns(await pop(broker)) == []
        assert isinstance((await broker.kv([put("z")]))[0], WriteResult)  # type: ignore[index]  # one op: results
        assert records(reply)[0].txn == "m"


LONG_LOOKS: dict[str, Action] = {
    "fetch": lambda b: b.reads.fetch([FetchEntry("q", "hot", 1, 1000), FetchEntry("q", "cold", 0, 1000)], 9000, 1, 0),
    "messages": lambda b: b.reads.messages(MessageFilter("q", None, None, None, None, 0, None, 10, 0)),
    "sizes": lambda b: b.overview.sizes("q"),
}


@pytest.mark.parametrize("look", LONG_LOOKS.values(), ids=list(LONG_LOOKS))
async def test_a_look_that_takes_time_knows_nothing_of_what_was_refused_meanwhile(
    autojump_clock: MockClock, look: Action
) -> None:
    """I13 for lists and overviews: what they saw before a refusal, and never was, is not in their answer, although the
    state has been read again, and is durable, when they are done."""

    class Slow(MemoryStore):
        async def size(self, pid: int, first: int, last: int) -> int:
            await trio.sleep(5)
            return await super().size(pid, first, last)

    store = Slow(retain=True, faults=Faults(read_latency=5))
    async with started(store) as broker:
        for partition in ("hot", "cold"):
            await broker.push([PushItem("q", partition, b"1", txn=partition)])
            await pop(broker, partition=partition, group="g")
        await store.seal()
        await broker.passivate()
        before = await look(broker)
        seen: list[Any] = []

        async def refused() -> None:
            with pytest.raises(StorageFull):
                await broker.push([PushItem("q", "hot", b"22", txn="refused")])

        async def see() -> None:
            seen.append(await look(broker))

        store.faults.latency = 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(broker.kv, [put("k")])
            await trio.sleep(0.1)
            store.faults.full = True
            nursery.start_soon(refused)
            await trio.sleep(0.1)
            nursery.start_soon(see)
            await trio.sleep(1)
            store.faults.full = False
        assert seen == [before]


async def test_a_look_that_stumbles_over_a_state_that_is_gone_looks_again(autojump_clock: MockClock) -> None:
    """What it raised is told only when the state is still the one that it looked at."""
    store = MemoryStore(retain=True)
    looks: list[str | None] = []

    async with started(store) as broker:
        await broker.push([PushItem("q", "p", b"1", txn="kept")])

        async def look() -> str | None:
            before = broker._core.log.reloads
            looks.append(None)
            if len(looks) == 1:
                store.faults.full = True
                with pytest.raises(StorageFull):
                    await broker.push([PushItem("q", "p", b"2", txn="refused")])
                store.faults.full = False
                await trio.sleep(1)
            if broker._core.log.reloads != before:
                raise KeyError("a partition that is gone")
            return "seen"

        assert await broker._core.seen(look) == "seen"
        assert len(looks) == 2

        async def wrong() -> None:
            raise NotFound("there is none")

        with pytest.raises(NotFound):
            await broker._core.seen(wrong)


LETTERS = {"group": None, "partition": None, "since": None, "until": None, "limit": 9, "offset": 0}
READS: dict[str, Action] = {
    "kv": lambda b: value_of(b, "k"),
    "lock": lambda b: b.locks([GetLock("l")]),
    "timer": lambda b: b.timer("q", "t"),
    "timers": lambda b: b.timer_page("q", None, 9),
    "count": lambda b: b.timer_count("q", ""),
    "queue": lambda b: b.queue_view("q"),
    "letters": lambda b: b.dead_letters(queue="q", **LETTERS),
    "message": lambda b: b.message(1, "m"),
    "traces": lambda b: b.reads.traces(pid=1, txn="m"),
    "names": lambda b: b.reads.trace_names(),
    "stream": lambda b: found_or_not(b.streams.read(StateRead("none", 1, (), "", None))),
    "list": lambda b: b.reads.messages(MessageFilter("q", None, None, None, None, 0, None, 10, 0)),
}


async def found_or_not(call: Awaitable[Any]) -> Any:
    try:
        return await call
    except NotFound as missing:
        return missing.detail


@pytest.mark.parametrize("look", READS.values(), ids=list(READS))
async def test_who_only_looks_is_not_refused_with_the_write_it_saw(autojump_clock: MockClock, look: Action) -> None:
    """Reads go on when the disk is full: also one that saw what somebody else had just written, and that was refused.
    It tells what there is instead."""
    store = MemoryStore(retain=True)
    async with started(store) as broker:
        await furnish(broker)
        await configure(broker, retry_limit=0)
        before = await look(broker)
        seen: list[Any] = []

        async def refused() -> None:
            with pytest.raises(StorageFull):
                await broker.transaction(
                    Transaction(steps=(PushItem("q", "p", b"1"),), kv=(put("k", b"3"),), timers=(Cancel("q", "t"),))
                )

        async def see() -> None:
            seen.append(await look(broker))

        writes = [
            refused,
            partial(broker.locks, [Acquire("l", 9 * SECOND, "other")]),
            partial(broker.trace, pid=1, txn="m", group="g", names=("n",), event="e", data=b"1", worker=None),
            partial(broker.ack, [Ack("m", 1, "h", "failed")]),
        ]
        store.faults.latency = 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(broker.kv, [put("first")])
            await trio.sleep(0.1)
            store.faults.full = True
            for write in writes:
                nursery.start_soon(suppressing, write)
            await trio.sleep(0.1)
            nursery.start_soon(see)
            await trio.sleep(1)
            store.faults.full = False
        assert seen == [before]


async def suppressing(call: Callable[[], Awaitable[Any]]) -> None:
    with suppress(StorageFull):
        await call()

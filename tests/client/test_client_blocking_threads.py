"""The blocking client beside the caller's threads: renewals, interrupts, leaving, failing, and asyncio."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import pytest
from blocking_kit import Opens, both, serving

from queen_actors import LockNotHeldError, QueenError, StorageFailed, Unavailable, blocking
from queen_actors.storage.memory import Faults, MemoryStore


def until(what: str, seconds: float = 5.0) -> Iterator[None]:
    """Rounds of a loop that waits for something, as long as that may take."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        yield
        time.sleep(0.01)
    raise AssertionError(f"it took too long: {what}")


@contextmanager
def interrupted(after: float) -> Iterator[None]:
    """Ctrl-C, that much later, unless the block is over by then."""
    timer = threading.Timer(after, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.name == "queen-actors"]


@both
def test_a_lock_is_renewed_while_the_caller_works(opens: Opens) -> None:
    """The caller's thread is busy; the token moves, and nobody else gets the lock. At the end of the block it is
    free."""
    with opens() as queen:
        with queen.lock("busy", ttl_seconds=1) as lock:
            first = lock.token
            assert first is not None
            for _ in until("a renewal"):
                token = lock.token
                if token is not None and token > first:
                    break
            assert lock.held
            assert lock.guard()["expect"] == lock.token
            assert 0 < lock.seconds_left <= 1
            assert not lock.lost.wait(timeout=0)
            with pytest.raises(LockNotHeldError), queen.lock("busy"):
                pass
            assert not queen.lock("busy").acquire(wait="20ms")
        assert not lock.held
        assert not lock.lost.is_set()
        with queen.semaphore("busy", 1) as again:
            assert again.slot == 0


@both
def test_a_lost_lock_is_told_on_a_thread_of_its_own(opens: Opens) -> None:
    """The handler may use the client; `lost` is set, with the reason."""
    told: list[tuple[str, bool, str]] = []
    with opens() as queen:

        def lost(reason: str) -> None:
            held = queen.locks.get("mine").held
            told.append((reason, held, threading.current_thread().name))

        lock = queen.lock("mine", ttl_seconds=1, on_lost=lost)
        assert lock.acquire()
        event, token = lock.lost, lock.token
        assert token is not None
        while not queen.locks.release("mine", token=token).released:
            token = lock.token or 0  # it was renewed in between
        assert event.wait(timeout=5)
        assert event.is_set()
        assert lock.lost_reason == "renew"
        for _ in until("the handler"):
            if told:
                break
        ((reason, held, thread),) = told
        assert (reason, held) == ("renew", False)
        assert thread != "queen-actors"


@both
def test_many_threads_share_a_client(opens: Opens) -> None:
    """Counters add up, and three subscriptions of one group have every message once."""
    with opens() as queen, ThreadPoolExecutor(8) as pool:

        def count(_: int) -> None:
            for _ in range(25):
                assert queen.kv.incr("n", "k", 1, forever=True)

        list(pool.map(count, range(8)))
        assert queen.kv.get("n", "k").value == 200
        for number in range(60):
            queen.queue("q").partition(f"p{number % 6}").push(number)
        seen: list[int] = []

        def consume(_: int) -> None:
            with queen.queue("q").subscribe(group="g", credit=5) as messages, suppress(TimeoutError):
                while len(seen) < 60:
                    message = messages.receive(timeout=0.2)
                    seen.append(message.data)
                    assert message.ack()

        list(pool.map(consume, range(3)))
        assert sorted(seen) == list(range(60))


@both
def test_leaving_ends_the_calls_of_other_threads(opens: Opens) -> None:
    """A pop and a subscription that wait elsewhere end with Unavailable; leaving is prompt, and so is every call after
    it. No thread is left."""
    errors: list[BaseException] = []
    with opens() as queen:
        messages = queen.queue("q").subscribe().__enter__()

        def ends(call: object) -> None:
            try:
                call()  # type: ignore[operator]
            except QueenError as error:
                errors.append(error)

        waiting = [
            threading.Thread(target=ends, args=(call,))
            for call in (lambda: queen.queue("other").pop(wait=30), messages.receive)
        ]
        for thread in waiting:
            thread.start()
        for _ in until("the calls are under way"):
            if len(queen.portal._scopes) == 2:
                break
        started = time.monotonic()
    assert time.monotonic() - started < 4
    for thread in waiting:
        thread.join(2)
        assert not thread.is_alive()
    assert [type(error) for error in errors] == [Unavailable, Unavailable]
    with pytest.raises(Unavailable, match="closed"):
        queen.kv.get("n", "k")
    with pytest.raises(Unavailable, match="closed"):
        queen.lock("a")
    assert threads() == []


@both
def test_an_interrupt_cancels_the_call(opens: Opens) -> None:
    """Ctrl-C in a waiting pop and in a loop over messages comes out at once; no message went to who is gone."""
    with opens() as queen:
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt), interrupted(0.2):
            queen.queue("q").pop(wait=30, group="g")

        def loop() -> None:
            with queen.queue("q").subscribe(group="g") as messages, interrupted(0.2):
                assert not list(messages), "there is no message"

        with pytest.raises(KeyboardInterrupt):
            loop()
        assert time.monotonic() - started < 5
        queen.queue("q").push("for the next one")
        (message,) = queen.queue("q").pop(group="g")
        assert (message.data, message.delivery_attempt) == ("for the next one", 1)


def test_an_interrupt_leaves_the_block_in_good_order() -> None:
    """What was held is released."""
    with serving() as url, blocking.connect(url) as other:

        def block() -> None:
            with blocking.connect(url) as queen, interrupted(0.2):
                assert queen.lock("mine").acquire()
                assert other.locks.get("mine").held
                while True:
                    queen.queue("q").pop(wait=1)

        with pytest.raises(KeyboardInterrupt):
            block()
        assert not other.locks.get("mine").held


@both
def test_in_asyncio(opens: Opens) -> None:
    """With `asyncio.to_thread` the loop stays free, and calls run beside each other."""

    async def main() -> None:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.01)

        with opens() as queen:
            ticking = asyncio.create_task(tick())
            waiting = asyncio.create_task(asyncio.to_thread(queen.queue("q").pop, wait=5))
            await asyncio.sleep(0.1)
            await asyncio.to_thread(queen.queue("q").push, "now")
            assert [message.data for message in await waiting] == ["now"]
            assert await asyncio.gather(*(asyncio.to_thread(queen.kv.put, "n", f"k{i}", i, ttl=60) for i in range(5)))
            assert ticks > 5
            ticking.cancel()

    asyncio.run(main())


def test_a_failed_broker_is_told() -> None:
    """The call gets the broker's error or that the client has failed because of it, later calls the latter; the
    failure comes out of the block."""
    faults = Faults()

    def block() -> None:
        with blocking.open_broker(store=MemoryStore(faults=faults)) as queen:
            assert queen.kv.put("n", "k", 1, forever=True)
            faults.fail = "lost"
            with pytest.raises((StorageFailed, Unavailable)):
                queen.kv.put("n", "k", 2, forever=True)
            for _ in until("the broker is over"):
                if not threads():
                    break
            with pytest.raises(Unavailable, match="the client has failed") as late:
                queen.kv.get("n", "k")
            assert isinstance(late.value.__cause__, StorageFailed)

    with pytest.raises(StorageFailed):
        block()
    assert threads() == []


def test_a_call_on_the_clients_own_thread_is_refused() -> None:
    """It would wait for itself."""
    with blocking.open_broker() as queen:

        def call() -> None:
            queen.kv.get("n", "k")

        with pytest.raises(RuntimeError, match="own Trio thread"):
            queen.portal.call_sync(call)

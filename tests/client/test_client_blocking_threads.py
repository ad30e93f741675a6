"""The blocking client beside the caller's threads: renewals, interrupts, leaving, failing, and asyncio."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress

import pytest
from blocking_kit import Opens, both, serving
from crash.stopwatch import Stopwatch

from queen_actors import LockNotHeldError, QueenError, StorageFailed, Unavailable, blocking
from queen_actors.storage.memory import Faults, MemoryStore


def until(what: str, seconds: float = 60.0) -> Iterator[None]:
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
        with queen.lock("busy", ttl_seconds=3) as lock:
            first = lock.token
            assert first is not None
            for _ in until("a renewal"):
                token = lock.token
                if token is not None and token > first:
                    break
            assert lock.held
            assert lock.guard()["expect"] == lock.token
            assert 0 < lock.seconds_left <= 3
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
        assert event.wait(timeout=60)
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
            with queen.queue("q").subscribe(group="g", credit=5) as messages:
                while len(seen) < 60:
                    with suppress(TimeoutError):
                        message = messages.receive(timeout=0.2)
                        assert message.ack()
                        seen.append(message.data)

        list(pool.map(consume, range(3)))
        assert sorted(seen) == list(range(60))


@both
def test_leaving_ends_the_calls_of_other_threads(opens: Opens) -> None:
    """A pop and a subscription that wait elsewhere end with Unavailable; leaving is prompt, and so is every call after
    it. No thread is left."""
    errors: list[BaseException] = []
    with opens() as queen:
        messages = queen.queue("q").subscribe().__enter__()

        def ends(call: Callable[[], object]) -> None:
            try:
                call()
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
        watch = Stopwatch()
    assert watch.seconds() < 4
    for thread in waiting:
        thread.join(60)
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
        watch = Stopwatch()
        with pytest.raises(KeyboardInterrupt), interrupted(0.2):
            queen.queue("q").pop(wait=30, group="g")

        def loop() -> None:
            with queen.queue("q").subscribe(group="g") as messages, interrupted(0.2):
                assert not list(messages), "there is no message"

        with pytest.raises(KeyboardInterrupt):
            loop()
        assert watch.seconds() < 5
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
def test_threads_share_a_subscription(opens: Opens) -> None:
    """Several threads iterate one subscription with as many workers: everything once, each partition in its order."""
    with opens() as queen:
        for number in range(60):
            queen.queue("q").partition(f"p{number % 4}").push(number)
        seen: dict[str, list[int]] = {}
        left = 60
        count = threading.Lock()

        def work(messages: blocking.Subscription) -> None:
            nonlocal left
            while True:
                try:
                    message = messages.receive("1s")
                except TimeoutError:
                    if left:
                        continue
                    return
                with count:
                    left -= 1
                seen.setdefault(message.partition, []).append(message.data)
                message.ack()

        with queen.queue("q").subscribe(group="g", workers=3) as messages, ThreadPoolExecutor(3) as pool:
            list(pool.map(work, [messages] * 3))
        assert left == 0
        assert seen == {f"p{first}": list(range(first, 60, 4)) for first in range(4)}


@both
def test_each_on_threads(opens: Opens) -> None:
    """As many handlers at once as there are workers, each on a thread; one that returns acks, one that raises nacks."""
    with opens() as queen:
        for number in range(12):
            queen.queue("q").partition(f"p{number % 3}").push(number)
        together = threading.Barrier(3, timeout=60)
        failed: list[int] = []
        done: list[int] = []

        def handle(message: blocking.Message) -> None:
            if message.data < 3:
                together.wait()  # three at once, or it breaks
            if message.data == 5 and not failed:
                failed.append(message.data)
                raise ValueError("at first")
            done.append(message.data)

        with queen.queue("q").subscribe(group="g", workers=3) as messages:
            assert messages.workers == 3
            messages.each(handle, limit=13)
        assert failed == [5]
        assert sorted(done) == list(range(12))
        assert queen.queue("q").pop(group="g") == []


def test_a_transaction_lets_a_partition_go_on() -> None:
    """A message that a blocking transaction acks is settled for the threads that share its subscription."""
    with blocking.open_broker() as queen:
        queen.queue("q").push([1, 2])
        with queen.queue("q").subscribe(group="g", workers=2) as messages:
            first = messages.receive("60s")
            with pytest.raises(TimeoutError):
                messages.receive("50ms")
            assert queen.transaction().ack(first).queue("done").push(1).commit()
            assert messages.receive("60s").data == 2


@both
def test_in_a_notebook(opens: Opens) -> None:
    """A cell runs while a loop of asyncio runs on its own thread: plain calls work there, over as many cells as there
    are, and a subscription too."""

    async def cells() -> None:
        stack = ExitStack()
        queen = stack.enter_context(opens())
        await asyncio.sleep(0)
        queen.queue("q").push([1, 2, 3])
        messages = stack.enter_context(queen.queue("q").subscribe(group="g"))
        await asyncio.sleep(0)
        assert [message.data for message, _ in zip(messages, range(2), strict=False)] == [1, 2]
        await asyncio.sleep(0)
        assert queen.lock("cell").acquire(wait=1)
        stack.close()

    asyncio.run(cells())
    assert threads() == []


@pytest.mark.parametrize("ends", ["", "sys.exit(3)", "os.kill(os.getpid(), signal.SIGINT)"])
def test_in_a_plain_script(ends: str) -> None:
    """A script needs nothing around it, however it ends; one that never leaves its block ends too."""
    script = f"""
import os, signal, sys
from contextlib import ExitStack
from queen_actors import blocking
stack = ExitStack()
queen = stack.enter_context(blocking.open_broker())
queen.queue("q").push("hello")
messages = stack.enter_context(queen.queue("q").subscribe(group="g"))
print(next(iter(messages)).data, flush=True)
{ends}
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "hello\n"
    assert done.returncode == {"": 0, "sys.exit(3)": 3}.get(ends, -signal.SIGINT), done.stderr
    assert "Traceback" not in done.stderr or "KeyboardInterrupt" in done.stderr


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
            waiting = asyncio.create_task(asyncio.to_thread(queen.queue("q").pop, wait=60))
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

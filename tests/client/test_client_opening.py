"""Opening and leaving a client: whose error comes out, and how long it takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import trio
from client_fakes import FakeTransport

import queen_actors
from queen_actors import QueenError, StorageFailed, Unavailable, connect, open_broker
from queen_actors.client import serving
from queen_actors.storage.memory import Faults, MemoryStore


async def test_the_blocks_own_exception_comes_out_bare(autojump_clock: object) -> None:
    """Not inside an ExceptionGroup, over either transport, also with a lock held and a subscription open."""

    async def work() -> None:
        async with open_broker() as queen, queen.queue("q").subscribe():
            assert await queen.lock("job").acquire()
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await work()

    async def connected() -> None:
        async with connect("http://127.0.0.1:1"):
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await connected()


async def test_an_exception_group_of_the_blocks_own_stays_as_it_was(autojump_clock: object) -> None:
    """Two tasks of the user's failed: both are told."""

    async def work() -> None:
        async with open_broker():
            raise ExceptionGroup("two", [ValueError(), KeyError()])

    with pytest.raises(ExceptionGroup) as caught:
        await work()
    assert [type(one) for one in caught.value.exceptions] == [ValueError, KeyError]


async def test_a_cancelled_block_ends_in_good_order(autojump_clock: object) -> None:
    """The cancellation goes on to the scope that it belongs to, after the lock was released."""
    transport = FakeTransport()
    with trio.move_on_after(1) as scope:
        async with serving(transport):
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert transport.closed


async def test_closing_early_releases_and_goes_on(autojump_clock: object) -> None:
    """`aclose` inside the block ends the client and not the block."""
    async with open_broker() as queen:
        assert await queen.lock("job").acquire()
        await queen.aclose()
        await trio.sleep(1)
        assert not (await queen.locks.get("job")).held
        await queen.aclose()


async def test_a_fault_in_the_background_is_not_hidden(autojump_clock: object) -> None:
    """Should a task of the client fail by a fault, the block is cancelled and the fault comes out."""

    async def fail() -> None:
        raise AssertionError("a fault")

    async def work() -> None:
        async with serving(FakeTransport()) as queen:
            queen.start(fail)
            await trio.sleep_forever()

    with pytest.raises(ExceptionGroup) as caught:
        await work()
    assert "a fault" in str(caught.value.exceptions[0])


async def test_a_failure_of_the_storage_is_what_the_user_learns(autojump_clock: object) -> None:
    """The broker stops; the block is cancelled, and the failure comes out bare."""
    faults = Faults()

    async def work() -> None:
        async with open_broker(store=MemoryStore(faults=faults)) as queen:
            assert await queen.kv.put("n", "k", 1, forever=True)
            faults.fail = "lost"
            with pytest.raises(QueenError):
                await queen.kv.put("n", "k", 2, forever=True)
            await trio.sleep_forever()

    with pytest.raises(StorageFailed), trio.fail_after(60):
        await work()


async def test_a_full_disk_is_told_by_the_call_and_ends_nothing(autojump_clock: object) -> None:
    """507: the write was refused, reads go on, and the block too."""
    faults = Faults()
    async with open_broker(store=MemoryStore(retain=True, faults=faults)) as queen:
        assert await queen.kv.put("n", "k", 1, forever=True)
        faults.full = True
        with pytest.raises(queen_actors.StorageFull):
            await queen.kv.put("n", "k", 2, forever=True)
        faults.full = False
        await trio.sleep(5)
        assert (await queen.kv.get("n", "k")).value == 1
        assert await queen.kv.put("n", "k", 3, forever=True)


async def test_a_closed_client_says_so(autojump_clock: object) -> None:
    """A call, a lock and a subscription after the block raise Unavailable."""
    async with open_broker() as queen:
        pass
    with pytest.raises(Unavailable, match="closed"):
        await queen.kv.get("n", "k")
    with pytest.raises(Unavailable, match="closed"):
        await queen.lock("job").acquire()
    with pytest.raises(Unavailable, match="closed"):
        async with queen.queue("q").subscribe():
            pass
    async with connect("http://127.0.0.1:1") as queen:
        pass
    with pytest.raises(Unavailable, match="closed"):
        await queen.kv.get("n", "k")


async def test_what_was_pushed_is_there_when_the_directory_is_opened_again(tmp_path: Path) -> None:
    """Leaving commits; a second broker on the directory meanwhile is refused with a sentence."""
    async with open_broker(tmp_path / "data") as queen:
        await queen.queue("q").push([{"data": number} for number in range(10)])
        assert await queen.lock("job").acquire()
        with pytest.raises(queen_actors.DataDirectoryError):
            async with open_broker(tmp_path / "data"):
                pass
    async with open_broker(str(tmp_path / "data")) as queen:
        assert [message.data for message in await queen.queue("q").pop()] == list(range(10))
        assert await queen.lock("job").acquire(), "it was released when the client left"


async def test_settings_go_by_keyword(autojump_clock: object) -> None:
    """Those of `Settings`; another name is refused."""
    async with open_broker(subscription_mode="new") as queen:
        await queen.queue("q").push(1)
        assert await queen.queue("q").pop(group="g") == []
    with pytest.raises(TypeError):
        async with open_broker(nonsense=1):
            pass


@pytest.mark.parametrize("url", ["ftp://host", "http://", "http://host?x=1", "http://host/#x", "", "http://host:port"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    """Before anything is connected."""
    with pytest.raises(ValueError):  # noqa: PT011 - urllib's own words for a bad port
        connect(url)


def test_a_token_that_would_break_the_request_is_refused() -> None:
    """No header can be smuggled in."""
    with pytest.raises(ValueError, match="printable ASCII"):
        connect("http://host", token="x\r\nX-Evil: 1")


def test_the_public_names() -> None:
    """Every one of them can be had from the package, and connecting loads neither broker nor database engine."""
    for name in queen_actors.__all__:
        assert getattr(queen_actors, name) is not None
    assert set(queen_actors.__all__) <= set(dir(queen_actors))
    with pytest.raises(AttributeError, match="nothing"):
        queen_actors.nothing  # noqa: B018
    code = "import sys, queen_actors; queen_actors.connect; assert not {'duckdb', 'quart'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(queen_actors.__file__).parents[1])

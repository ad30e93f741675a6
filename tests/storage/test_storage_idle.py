"""What upkeep does beside commits and when there are none: notes how far the log reaches, and else nothing."""

from __future__ import annotations

import pathlib
import threading
from collections.abc import Sequence

import pytest
import trio
import trio.testing
from storage_kit import FaultyOps, Model, entry

from queen_actors.storage import DurableStore, durable
from queen_actors.storage.journal import PAGE
from queen_actors.storage.log import Log


class Notes(FaultyOps):
    """A file system that counts the notes of the log's position that are not flushed."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.second = threading.Event()

    def write(self, fd: int, parts: Sequence[bytes], offset: int) -> int:
        written = super().write(fd, parts, offset)
        if offset == PAGE and parts[0].startswith(b"QNACTPOS"):
            self.count += 1
            if self.count == 2:
                self.second.set()
        return written


async def test_the_last_commits_before_an_idle_time_are_noted(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first commit is noted at once; what comes within a second of that is noted when the second is over, with no
    commit behind it, and then nothing is written any more. A lost end is noticed so."""
    monkeypatch.setattr(durable, "NOTE_SECONDS", 0.05)
    ops = Notes()
    store = DurableStore(str(tmp_path), ops=ops)
    await store.open(Model())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.maintain, lambda runs: None)
        await trio.testing.wait_all_tasks_blocked()
        for number in range(3):
            await store.commit([entry(number)])
        assert await trio.to_thread.run_sync(ops.second.wait, 30)
        assert store._open is not None
        assert store._open.directory.noted_position() == (3, 0)
        await trio.sleep(0.2)
        assert ops.count == 2
        nursery.cancel_scope.cancel()
    await store.close()


async def test_an_idle_store_rests(tmp_path: pathlib.Path) -> None:
    """When Trio's thread hears of a commit after the roll that came behind it, the new journal is not taken for one
    that holds something, and upkeep does not go round and round to roll it."""
    store = DurableStore(str(tmp_path), roll_seconds=0.05)
    await store.open(Model())
    opened = store._open
    assert opened is not None
    hold, behind = threading.Event(), threading.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(opened.committer.run, hold.wait)
        for job in (lambda: store.commit([entry(1)]), store.seal, lambda: opened.committer.run(behind.set)):
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(job)
        await trio.testing.wait_all_tasks_blocked()
        hold.set()
        assert behind.wait(60)  # commit and roll are over before this thread hears of the first
    assert opened.writer.end == PAGE
    assert opened.dirty_since is None
    rounds, maintain = 0, store._maintain

    async def counted(opened: Log) -> None:
        nonlocal rounds
        rounds += 1
        await maintain(opened)

    store._maintain = counted  # type: ignore[method-assign]
    with trio.move_on_after(0.5):
        await store.maintain(lambda runs: None)
    assert rounds <= 11
    await store.close()

"""The end of a store: nobody waits for one that was closed, and nothing is kept of an open that was refused."""

from __future__ import annotations

import pathlib
import threading
from typing import Any

import duckdb
import pytest
import trio
import trio.testing
from storage_kit import Model, Workload, entry

from queen_actors.errors import DataDirectoryError, StorageFailed
from queen_actors.storage import DurableStore, duck
from queen_actors.storage.worker import Worker


@pytest.mark.parametrize("again", [False, True])
def test_a_seal_that_waits_for_another_ends_with_the_store(tmp_path: pathlib.Path, again: bool) -> None:
    """It is refused when the store was closed before its turn came, and leaves alone one that was opened since."""
    store, told = DurableStore(str(tmp_path)), []

    async def seal() -> None:
        with pytest.raises(StorageFailed, match="closed"):
            await store.seal()
        told.append("seal")

    async def maintain() -> None:
        with pytest.raises(StorageFailed, match="closed"):
            await store.maintain(lambda runs: None)
        told.append("maintain")

    async def main() -> None:
        await store.open(Model())
        await store.commit([entry(1)])
        async with trio.open_nursery() as nursery, store._sealing:
            nursery.start_soon(seal)
            nursery.start_soon(maintain)
            await trio.testing.wait_all_tasks_blocked()
            await store.close()
            if again:
                await store.open(Model())
        if again:
            await store.commit([entry(2)])
        await store.close()
        told.append("closed")

    # In a thread of its own, so that one that waits for ever fails the test
    loop = threading.Thread(target=trio.run, args=(main,), daemon=True)
    loop.start()
    loop.join(30)
    assert sorted(told) == ["closed", "maintain", "seal"]


async def test_a_stopped_worker_refuses() -> None:
    """What it was given before is done."""
    worker, done = Worker("test"), []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(worker.run, lambda: done.append(1))
        await trio.testing.wait_all_tasks_blocked()
        worker.stop()
    assert done == [1]
    with pytest.raises(StorageFailed, match="closed"):
        await worker.run(lambda: None)


async def test_a_refused_open_lets_go_of_the_files(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever keeps the exception, and tries again, does not run out of descriptors."""
    store = DurableStore(str(tmp_path), snapshot_bytes=1)
    await store.open(Model())
    await store.commit(Workload(1, calm=True).entries(20))
    await store.seal()
    assert store._open is not None
    await store._open.upkeep.take_snapshot()
    await store.close()
    (segment,) = [path for path in tmp_path.iterdir() if path.name.startswith("segment-")]  # noqa: ASYNC240
    segment.unlink()
    made: list[duckdb.DuckDBPyConnection] = []
    connect = duck.connect

    def connected(*arguments: Any) -> duckdb.DuckDBPyConnection:
        made.append(connect(*arguments))
        return made[-1]

    monkeypatch.setattr(duck, "connect", connected)
    with pytest.raises(DataDirectoryError, match="is missing"):
        await store.open(Model())
    (connection,) = made
    with pytest.raises(duckdb.ConnectionException):
        connection.execute("SELECT 1")

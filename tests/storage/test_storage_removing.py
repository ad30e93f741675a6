"""Files that the log does not need any more and that cannot be removed: nothing is built on their absence."""

from __future__ import annotations

import errno
import pathlib

import pytest
from storage_kit import FaultyOps, Model, Workload, assert_same

from queen_actors.errors import Unavailable
from queen_actors.storage import DurableStore


class Keeping(FaultyOps):
    """A file system that removes no journal for a while."""

    keeps = False

    def unlink(self, path: str) -> None:
        if path.endswith(".log") and self.keeps:
            raise OSError(errno.EIO, "no")
        super().unlink(path)


def there(path: pathlib.Path, kind: str) -> int:
    """How many files of this kind there are."""
    return len(list(path.glob(f"{kind}-*")))


async def test_a_sealed_journal_is_removed_in_the_end(tmp_path: pathlib.Path) -> None:
    """Until it is gone no snapshot is made, after which its segment might be dropped or merged, and the next start
    could not tell what the journal is. What is sealed meanwhile is sealed."""
    ops, work, model = Keeping(), Workload(3, calm=True), Model()
    store = DurableStore(str(tmp_path), snapshot_bytes=1, ops=ops)
    await store.open(Model())
    assert store._open is not None
    upkeep = store._open.upkeep
    ops.keeps = True
    for number in (1, 2):
        entries = work.entries(20)
        model.take(entries)
        await store.commit(entries)
        with pytest.raises(Unavailable):
            await store.seal()
        assert (there(tmp_path, "segment"), there(tmp_path, "journal")) == (number, number + 1)
    with pytest.raises(OSError, match="no"):
        await upkeep.take_snapshot()
    assert there(tmp_path, "snapshot") == 0
    ops.keeps = False
    await upkeep.take_snapshot()
    assert (there(tmp_path, "snapshot"), there(tmp_path, "journal")) == (1, 1)
    await store.close()
    recovered = Model()
    await store.open(recovered)
    await assert_same(store, recovered, model)
    await store.close()

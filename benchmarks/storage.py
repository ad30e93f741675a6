"""Measures the durable store by itself: python benchmarks/storage.py [directory on the disk to be measured]

Prints one JSON object per line. Times are milliseconds; `raw` is an append and an fdatasync of the same bytes, taken in
the same run, because the absolute figures of a machine move with whatever else it does.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence

import trio

from queen_actors.domain.effects import (
    Appended,
    Counters,
    Effect,
    Entry,
    PartitionPut,
    QueueOptions,
    QueuePut,
    Record,
    encode_entries,
)
from queen_actors.ports import Recent, SealedRun
from queen_actors.storage import DurableStore

PARTITIONS = 1_000
COMMITS = 3_000
ROWS = 100_000


class Sink:
    """A recovery that counts."""

    def __init__(self) -> None:
        self.entries = self.effects = self.runs = self.recents = 0

    def restore(self, effects: Sequence[Effect]) -> None:
        self.effects += len(effects)

    def recent_since(self) -> int:
        return 0

    def sealed(self, runs: Sequence[SealedRun]) -> None:
        self.runs += len(runs)

    def recent(self, messages: Sequence[Recent]) -> None:
        self.recents += len(messages)

    def entry(self, entry: Entry) -> None:
        self.entries += 1


class Producer:
    """Makes entries of one message each, of 200 bytes, over many partitions."""

    def __init__(self) -> None:
        self._random = random.Random(1)
        self._offsets = [0] * PARTITIONS
        self._now = 1_700_000_000_000_000

    def first(self) -> Entry:
        """The entry that makes the queue and its partitions."""
        effects: list[Effect] = [QueuePut(1, "orders", "uid", "", "", QueueOptions(), self._now)]
        effects += [PartitionPut(pid, 1, f"customer-{pid}", self._now, 0) for pid in range(PARTITIONS)]
        return Entry(self._now, Counters(0, PARTITIONS, 1), tuple(effects))

    def entries(self, count: int) -> list[Entry]:
        """The next entries."""
        made: list[Entry] = []
        for _ in range(count):
            self._now += 7
            pid = self._random.randrange(PARTITIONS)
            offset = self._offsets[pid]
            self._offsets[pid] += 1
            name = f"0192f0c1-7c5a-7000-8000-{self._now % 10**12:012}"
            payload = b'{"order":%d,"text":"%s"}' % (self._now, b"%x" % self._random.getrandbits(640))
            record = Record(offset, self._now, name, name, payload)
            made.append(Entry(self._now, Counters(0, PARTITIONS, 1), (Appended(pid, (record,)),)))
        return made


def report(what: str, **figures: float | int | str) -> None:
    """Print one line."""
    rounded = {name: round(value, 3) if isinstance(value, float) else value for name, value in figures.items()}
    print(json.dumps({"what": what, **rounded}), flush=True)


def quantiles(seconds: list[float]) -> dict[str, float]:
    """The median, the 99th percentile and the worst, in milliseconds."""
    ordered = sorted(seconds)
    return {
        "p50": ordered[len(ordered) // 2] * 1e3,
        "p99": ordered[len(ordered) * 99 // 100] * 1e3,
        "max": ordered[-1] * 1e3,
    }


def raw(directory: str, bodies: Sequence[bytes]) -> list[float]:
    """Append and fdatasync each body to a plain file; how long each took."""
    fd = os.open(os.path.join(directory, "raw"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    taken: list[float] = []
    for body in bodies:
        began = time.perf_counter()
        os.write(fd, body)
        os.fdatasync(fd)
        taken.append(time.perf_counter() - began)
    os.close(fd)
    return taken


async def commits(store: DurableStore, groups: Sequence[Sequence[Entry]]) -> list[float]:
    """Commit group after group; how long each took."""
    taken: list[float] = []
    for group in groups:
        began = time.perf_counter()
        await store.commit(group)
        taken.append(time.perf_counter() - began)
    return taken


async def measure_commits(directory: str, size: int) -> None:
    """Groups of `size` entries, beside a plain file."""
    producer = Producer()
    store = DurableStore(os.path.join(directory, f"commits-{size}"))
    await store.open(Sink())
    await store.commit([producer.first()])
    groups = [producer.entries(size) for _ in range(COMMITS)]
    bodies = [encode_entries(group) for group in groups]
    half = COMMITS // 2
    plain = raw(directory, bodies[:half])
    taken = await commits(store, groups)
    plain += raw(directory, bodies[half:])
    ratio = quantiles(taken)["p50"] / quantiles(plain)["p50"]
    report("commit", entries=size, commits_per_second=COMMITS / sum(taken), **quantiles(taken))
    report(
        "raw", entries=size, commits_per_second=COMMITS / sum(plain), commit_p50_over_raw_p50=ratio, **quantiles(plain)
    )
    await store.close()


async def measure_sealing(directory: str) -> None:
    """One journal of ROWS messages becomes a segment, alone and beside commits; then reads and opens."""
    producer = Producer()
    path = os.path.join(directory, "sealing")
    store = DurableStore(path)
    await store.open(Sink())
    await store.commit([producer.first()])
    for _ in range(ROWS // 1_000):
        await store.commit(producer.entries(1_000))
    journal = store.statistics().journal_bytes
    began = time.perf_counter()
    await store.seal()
    taken = time.perf_counter() - began
    report("seal", rows=ROWS, journal_bytes=journal, segment_bytes=store.statistics().segment_bytes, seconds=taken)
    report("seal_rate", rows_per_second=ROWS / taken)

    for _ in range(ROWS // 1_000):
        await store.commit(producer.entries(1_000))
    groups = [producer.entries(1) for _ in range(20_000)]
    quiet = await commits(store, groups[:1_000])
    busy: list[float] = []
    done = trio.Event()

    async def seal() -> None:
        await store.seal()
        done.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(seal)
        for group in groups[1_000:]:
            busy += await commits(store, [group])
            if done.is_set():
                break
    report("commit_before_sealing", **quantiles(quiet))
    report("commit_while_sealing", commits=len(busy), **quantiles(busy))

    randomness = random.Random(2)
    reads: list[float] = []
    for _ in range(500):
        pid, first = randomness.randrange(PARTITIONS), randomness.randrange(50)
        began = time.perf_counter()
        await store.read(pid, first, first + 99, 1 << 30)
        reads.append(time.perf_counter() - began)
    report("read_up_to_100", **quantiles(reads))
    await store.close()


async def measure_opening(directory: str) -> None:
    """Opening a log of ROWS messages: all of it in the journal, as after a crash, and all of it sealed."""
    producer = Producer()
    path = os.path.join(directory, "opening")
    store = DurableStore(path, roll_bytes=1 << 40)
    await store.open(Sink())
    await store.commit([producer.first()])
    for group in (producer.entries(1) for _ in range(ROWS // 10)):
        await store.commit(group)
    for _ in range(ROWS * 9 // 10 // 100):
        await store.commit(producer.entries(100))
    for name in ("FORMAT", "POSITION"):
        os.makedirs(path + "-crashed", exist_ok=True)
        shutil.copy(os.path.join(path, name), path + "-crashed")
    for name in os.listdir(path):
        if name.startswith("journal-"):
            shutil.copy(os.path.join(path, name), path + "-crashed")
    crashed, sink = DurableStore(path + "-crashed"), Sink()
    began = time.perf_counter()
    await crashed.open(sink)
    report("open_after_crash", entries=sink.entries, seconds=time.perf_counter() - began)
    await crashed.close()
    await store.seal()
    await store.close()
    sink = Sink()
    began = time.perf_counter()
    await store.open(sink)
    report("open_sealed", messages=sink.recents, runs=sink.runs, seconds=time.perf_counter() - began)
    await store.close()


async def main(parent: str | None) -> None:
    """Everything, in a temporary directory that is removed at the end."""
    directory = tempfile.mkdtemp(prefix="queen-actors-", dir=parent)
    try:
        for size in (1, 32):
            await measure_commits(directory, size)
        await measure_sealing(directory)
        await measure_opening(directory)
    finally:
        shutil.rmtree(directory)


if __name__ == "__main__":
    sys.setswitchinterval(0.0005)  # as the server's own entry point does
    trio.run(main, sys.argv[1] if len(sys.argv) > 1 else None)

"""What the storage tests share: a made-up broker's entries, a model of the state they come to, and faulty disks."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Sequence

from queen_actors.domain.effects import (
    Appended,
    Counters,
    CursorDropped,
    CursorPut,
    DeadLetterDropped,
    DeadLetterPut,
    Effect,
    Entry,
    GroupDropped,
    GroupPut,
    KvDropped,
    KvPut,
    PartitionPut,
    QueueDropped,
    QueueOptions,
    QueuePut,
    Record,
    StreamDropped,
    StreamPut,
    StreamRowDropped,
    StreamRowPut,
    TimerDropped,
    TimerPut,
    TracePut,
)
from queen_actors.ports import Recent, SealedRun, Store
from queen_actors.storage.fileops import FileOps
from queen_actors.storage.schema import TABLES, table_of

PUTS = {table.put for table in TABLES}


def record(offset: int, ts: int = 1_000, payload: bytes = b'{"n":1}') -> Record:
    """A message."""
    return Record(offset, ts, f"id-{offset}", f"txn-{offset}", payload)


def entry(now: int, *effects: Effect, version: int = 0) -> Entry:
    """A step of the log."""
    return Entry(now, Counters(version, 1, 1), effects)


def queue(qid: int = 1, name: str = "q") -> QueuePut:
    return QueuePut(qid, name, f"uid-{qid}", "space", "task", QueueOptions(retry_limit=qid), 5)


def cursor(pid: int, group: str, committed: int) -> CursorPut:
    return CursorPut(pid, group, committed, f"lease-{committed}", 9, committed + 1, 0, -1, 1, "", False)


def kv(key: str, version: int, ns: str = "n") -> KvPut:
    return KvPut(ns, key, b'{"v":%d}' % version, version, None, 3, 4)


def dead_letter(number: int, qid: int, pid: int) -> DeadLetterPut:
    return DeadLetterPut(f"dead-{number}", qid, pid, "g", record(number), "no", 3, 7)


class Model:
    """What a sequence of effects comes to, in the plainest way; also a `ports.Recovery`."""

    def __init__(self, since: int = 0) -> None:
        self.things: dict[tuple[str, object], Effect] = {}
        self.messages: dict[int, dict[int, Record | None]] = {}
        """By partition and offset; None for a sealed message of which recovery gave the index entry alone."""
        self.index: dict[int, dict[int, tuple[int, str, str]]] = {}
        """By partition and offset: instant, txn, id."""
        self.runs: list[SealedRun] = []
        self.entries: list[Entry] = []
        self.restored: list[Effect] = []
        self._since = since

    def take(self, entries: Sequence[Entry]) -> None:
        """Apply the effects of entries."""
        for step in entries:
            for effect in step.effects:
                self.apply(effect)

    def apply(self, effect: Effect) -> None:
        """Apply one effect."""
        if isinstance(effect, Appended):
            for message in effect.records:
                self.messages.setdefault(effect.pid, {})[message.offset] = message
                self.index.setdefault(effect.pid, {})[message.offset] = (message.ts, message.txn, message.id)
            return
        table = table_of(effect)
        key = table.name, table.key_of(effect)
        if isinstance(effect, StreamRowPut) and effect.state not in self._states():
            return  # a segment tells the rows of a state that a reset has ended
        if type(effect) in PUTS:
            self.things[key] = effect
        else:
            self.things.pop(key, None)
        if isinstance(effect, QueueDropped):
            self._drop_queue(effect.qid)
        if isinstance(effect, QueueDropped | StreamPut | StreamDropped):
            states = self._states()
            for key, thing in list(self.things.items()):
                if isinstance(thing, StreamRowPut) and thing.state not in states:
                    del self.things[key]

    def _states(self) -> set[str]:
        return {thing.state for thing in self.things.values() if isinstance(thing, StreamPut)}

    def _drop_queue(self, qid: int) -> None:
        pids = {e.pid for e in self.things.values() if isinstance(e, PartitionPut) and e.qid == qid}
        for key, thing in list(self.things.items()):
            if getattr(thing, "qid", None) == qid or (isinstance(thing, CursorPut | TracePut) and thing.pid in pids):
                del self.things[key]

    def log_starts(self) -> dict[int, int]:
        """The partitions there are, with where they begin."""
        return {thing.pid: thing.log_start for thing in self.things.values() if isinstance(thing, PartitionPut)}

    def live_index(self) -> dict[int, dict[int, tuple[int, str, str]]]:
        """The messages that may be read: of partitions that exist, from their log_start on."""
        found = {
            pid: {offset: value for offset, value in sorted(self.index.get(pid, {}).items()) if offset >= start}
            for pid, start in self.log_starts().items()
        }
        return {pid: messages for pid, messages in found.items() if messages}

    # ports.Recovery

    def restore(self, effects: Sequence[Effect]) -> None:
        self.restored += effects
        for effect in effects:
            assert not isinstance(effect, Appended)
            self.apply(effect)

    def recent_since(self) -> int:
        return self._since

    def sealed(self, runs: Sequence[SealedRun]) -> None:
        for run in runs:
            before = [other for other in self.runs if other.pid == run.pid]
            assert not before or before[-1].last < run.first
            self.runs.append(run)

    def recent(self, messages: Sequence[Recent]) -> None:
        for message in messages:
            assert message.ts >= self._since
            index = self.index.setdefault(message.pid, {})
            assert not index or max(index) < message.offset
            index[message.offset] = (message.ts, message.txn, message.id)
            self.messages.setdefault(message.pid, {})[message.offset] = None

    def entry(self, entry: Entry) -> None:
        self.entries.append(entry)
        self.take([entry])


async def assert_same(store: Store, recovered: Model, model: Model) -> None:
    """What was recovered is what the model says, and every live message reads as it was written."""
    assert recovered.things == model.things
    assert recovered.live_index() == model.live_index()
    for pid in model.log_starts():  # the workload is younger than any window, so also what retention removed is known
        assert recovered.index.get(pid, {}) == model.index.get(pid, {})
    for pid, messages in model.live_index().items():
        sealed = [offset for offset in messages if recovered.messages[pid][offset] is None]
        for offset in messages:
            if offset not in sealed:
                assert recovered.messages[pid][offset] == model.messages[pid][offset]
        if sealed:
            read = await store.read(pid, min(sealed), max(sealed), 1 << 30)
            assert read == [model.messages[pid][offset] for offset in sealed]


class Workload:
    """Entries of a busy broker, made from a seed: queues come and go, and so does everything else."""

    def __init__(self, seed: int, payload_bytes: int = 40, *, calm: bool = False) -> None:
        """`calm`: no message goes, by retention or with its queue."""
        self._calm = calm
        self._random = random.Random(seed)
        self._seed = seed
        self._payload_bytes = payload_bytes
        self._now = 1_000
        self._version = self._pid = self._qid = 0
        self._queues: dict[int, str] = {}
        self._partitions: dict[int, PartitionPut] = {}
        self._next: dict[int, int] = {}
        self._states: dict[int, str] = {}
        self.model = Model()

    def entries(self, count: int) -> list[Entry]:
        """The next entries; the model has taken them."""
        made = [self._entry() for _ in range(count)]
        self.model.take(made)
        return made

    def _entry(self) -> Entry:
        self._now += self._random.randint(1, 50)
        effects: list[Effect] = []
        for _ in range(self._random.randint(1, 4)):
            effects += self._effects()
        return Entry(self._now, Counters(self._version, self._pid, self._qid), tuple(effects))

    def _effects(self) -> list[Effect]:
        rng = self._random
        if not self._partitions or rng.random() < 0.05:
            return self._new_partition()
        pid = rng.choice(list(self._partitions))
        qid = self._partitions[pid].qid
        roll = rng.random() * (0.95 if self._calm else 1)
        if roll < 0.45:
            return [Appended(pid, tuple(self._record(pid) for _ in range(rng.randint(1, 5))))]
        if roll < 0.55:
            return [cursor(pid, rng.choice("ab"), self._next[pid] - 1)]
        if roll < 0.57:
            return [CursorDropped(pid, rng.choice("ab"))]
        if roll < 0.62:
            return [GroupPut(qid, rng.choice("ab"), "all", 0, False, self._now)]
        if roll < 0.63:
            return [GroupDropped(qid, rng.choice("ab"))]
        if roll < 0.67:
            return self._stream(qid, pid)
        if roll < 0.73:
            self._version += 1
            return [kv(f"k{rng.randint(0, 9)}", self._version, rng.choice(["n", "m"]))]
        if roll < 0.77:
            self._version += 1
            return [KvDropped(rng.choice(["n", "m"]), f"k{rng.randint(0, 9)}", self._version, rng.random() < 0.5)]
        if roll < 0.82:
            return [self._timer()]
        if roll < 0.85:
            return [TimerDropped("q", f"t{rng.randint(0, 5)}", rng.random() < 0.5)]
        if roll < 0.90:
            return [self._dead_letter(qid, pid)]
        if roll < 0.92:
            return [DeadLetterDropped(f"dead-{rng.randint(0, 20)}", qid)]
        if roll < 0.95:
            name = ("a", "b")[: rng.randint(0, 2)]
            return [TracePut(f"tr-{rng.random()}", pid, "t", "g", name, "info", b"{}", None, self._now)]
        if roll < 0.985:
            return [self._raise_log_start(pid)]
        return self._drop_queue(qid)

    def _new_partition(self) -> list[Effect]:
        effects: list[Effect] = []
        if not self._queues or self._random.random() < 0.3:
            self._qid += 1
            self._queues[self._qid] = f"q{self._random.randint(0, 3)}"
            effects.append(queue(self._qid, self._queues[self._qid]))
        qid = self._random.choice(list(self._queues))
        self._pid += 1
        self._partitions[self._pid] = PartitionPut(self._pid, qid, f"p{self._pid}", self._now, 0)
        self._next[self._pid] = 0
        return [*effects, self._partitions[self._pid]]

    def _record(self, pid: int) -> Record:
        offset = self._next[pid]
        self._next[pid] += 1
        extra = self._random.choice([{}, {"trace": "tr", "producer": "me"}, {"timer_key": "k", "encrypted": True}])
        payload = b'"%s"' % (b"x" * self._random.randint(0, self._payload_bytes))
        return Record(offset, self._now, f"id-{self._seed}-{pid}-{offset}", f"txn-{pid}-{offset}", payload, **extra)

    def _stream(self, qid: int, pid: int) -> list[Effect]:
        """A query of each queue comes, is reset and goes; rows of its state change in between."""
        rng = self._random
        state = self._states.get(qid)
        if state is None or rng.random() < 0.1:
            state = self._states[qid] = f"state-{qid}-{self._now}"
            return [StreamPut(f"s{qid}", qid, f"n{qid}", "hash", "sink", "streams.n", state, 7, self._now)]
        if rng.random() < 0.1:
            del self._states[qid]
            return [StreamDropped(f"s{qid}", qid)]
        key = f"k{rng.randint(0, 3)}"
        if rng.random() < 0.3:
            return [StreamRowDropped(state, pid, key)]
        return [StreamRowPut(state, pid, key, b'{"n":%d}' % self._now, self._now)]

    def _timer(self) -> TimerPut:
        key = f"t{self._random.randint(0, 5)}"
        return TimerPut("q", key, "p", 99, "t", "m", b"1", False, None, 0, None, self._now, self._now)

    def _dead_letter(self, qid: int, pid: int) -> DeadLetterPut:
        number = self._random.randint(0, 20)
        return DeadLetterPut(f"dead-{number}", qid, pid, "a", record(number, self._now), "failed", 3, self._now)

    def _raise_log_start(self, pid: int) -> PartitionPut:
        old = self._partitions[pid]
        start = self._random.randint(old.log_start, self._next[pid])
        self._partitions[pid] = PartitionPut(pid, old.qid, old.name, old.created_at, start)
        return self._partitions[pid]

    def _drop_queue(self, qid: int) -> list[Effect]:
        name = self._queues.pop(qid)
        self._states.pop(qid, None)
        self._partitions = {pid: put for pid, put in self._partitions.items() if put.qid != qid}
        return [QueueDropped(qid, name)]


class FaultyOps(FileOps):
    """A file system with switches; each error is raised as long as its switch is set."""

    def __init__(self) -> None:
        self.room: int | None = None
        """Bytes that can still be written. A write of more is short, and is expected to be taken back; a write when
        there are none is refused."""
        self.write_error: int | None = None
        self.sync_error: int | None = None
        self.truncate_error: int | None = None
        self.rename_error: int | None = None
        self.unlink_error: int | None = None
        self.can_allocate = True
        self.calls: list[str] = []

    def write(self, fd: int, parts: Sequence[bytes], offset: int) -> int:
        self.calls.append("write")
        _fail(self.write_error)
        if self.room is not None:
            data = b"".join(parts)
            taken = min(self.room, len(data))
            if not taken:
                _fail(errno.ENOSPC)
            if taken == len(data):
                self.room -= taken
            return super().write(fd, (data[:taken],), offset)
        return super().write(fd, parts, offset)

    def allocate(self, fd: int, offset: int, length: int) -> bool:
        self.calls.append("allocate")
        if self.room is not None:
            _fail(errno.ENOSPC)
        return self.can_allocate and super().allocate(fd, offset, length)

    def truncate(self, fd: int, length: int) -> None:
        self.calls.append("truncate")
        _fail(self.truncate_error)
        super().truncate(fd, length)

    def sync_data(self, fd: int) -> None:
        self.calls.append("sync_data")
        _fail(self.sync_error)
        super().sync_data(fd)

    def rename(self, source: str, target: str) -> None:
        _fail(self.rename_error)
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        _fail(self.unlink_error)
        super().unlink(path)


def _fail(code: int | None) -> None:
    if code is not None:
        raise OSError(code, os.strerror(code))

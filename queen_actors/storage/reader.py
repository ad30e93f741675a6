"""Reading sealed messages: an index in memory says in which rows of which segment a partition's messages lie."""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import duckdb

from queen_actors.domain.effects import Record
from queen_actors.ports import Recent, SealedRun

from . import duck, schema
from .directory import SegmentFile
from .segments import Pace

T = TypeVar("T")

ATTACHED = 64  # segments attached at a time: a descriptor and a quarter of a MiB each
CHUNK = 2_000  # rows fetched at a time
MAX_OFFSET = (1 << 63) - 1
FIRST_ROWS, MOST_ROWS = 256, 4_096  # what one step of a read asks for, before the payloads' sizes are known

_RECORD = schema.names(schema.MESSAGES[1:])


class Run(NamedTuple):
    """Offsets `first`..`last` lie in the rows from `start` on of the segment."""

    segment: SegmentFile
    first: int
    last: int
    start: int


class RunIndex:
    """The runs of one segment, sorted by partition and offset: 40 bytes each."""

    __slots__ = ("_firsts", "_last_ts", "_lasts", "_pids", "_starts", "last_ts", "messages", "segment")

    def __init__(self, segment: SegmentFile) -> None:
        self.segment = segment
        self.messages = 0
        self.last_ts = 0
        self._pids = array("q")
        self._firsts = array("q")
        self._lasts = array("q")
        self._starts = array("q")
        self._last_ts = array("q")

    def extend(self, rows: Sequence[tuple[int, int, int, int, int, int]]) -> None:
        """Add rows of the table `runs`, in their order."""
        if not rows:
            return
        pids, firsts, lasts, starts, _, last_ts = zip(*rows, strict=True)
        self._pids.extend(pids)
        self._firsts.extend(firsts)
        self._lasts.extend(lasts)
        self._starts.extend(starts)
        self._last_ts.extend(last_ts)
        self.messages += sum(lasts) - sum(firsts) + len(rows)
        self.last_ts = max(self.last_ts, *last_ts)

    def runs(self, pid: int, first: int, last: int) -> Iterator[Run]:
        """Where `first`..`last` of the partition lie in this segment, in offset order."""
        for at in self._of(pid):
            low, high = max(first, self._firsts[at]), min(last, self._lasts[at])
            if low <= high:
                yield Run(self.segment, low, high, self._starts[at] + low - self._firsts[at])

    def first_at(self, pid: int, ts: int) -> Run | None:
        """The first run that ends at or after the instant."""
        for at in self._of(pid):
            if self._last_ts[at] >= ts:
                return Run(self.segment, self._firsts[at], self._lasts[at], self._starts[at])
        return None

    def _of(self, pid: int) -> range:
        begin = bisect_left(self._pids, pid)
        return range(begin, bisect_right(self._pids, pid, begin))


def read_runs(
    connection: duckdb.DuckDBPyConnection, alias: str, index: RunIndex, pace: Pace
) -> Iterator[list[SealedRun]]:
    """Read an attached segment's runs into its index, some at a time."""
    cursor = connection.execute(f"SELECT {schema.names(schema.RUNS)} FROM {duck.name(alias)}.runs ORDER BY start")
    while rows := cursor.fetchmany(CHUNK):
        index.extend(rows)
        yield [SealedRun(pid, first, last, first_ts, last_ts) for pid, first, last, _, first_ts, last_ts in rows]
        pace.give_way()


def read_recent(connection: duckdb.DuckDBPyConnection, source: str, since: int) -> Iterator[list[Recent]]:
    """The rows of an attached table that has the columns of `schema.RECENT`, from this instant on, some at a time."""
    columns = schema.names(schema.RECENT)
    cursor = connection.execute(f'SELECT {columns} FROM {source} WHERE ts >= ? ORDER BY pid, "offset"', [since])
    while rows := cursor.fetchmany(CHUNK):
        yield [Recent(*row) for row in rows]


class Reader:
    """Reads segments with an instance of its own. Its methods are one thread's."""

    def __init__(self, memory_mb: int, spill: str) -> None:
        self._memory_mb = memory_mb
        self._spill = os.path.join(spill, "read")
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._attached: OrderedDict[SegmentFile, str] = OrderedDict()
        self._names = 0
        self.index: list[RunIndex] = []
        """Sorted by position; replaced as a whole, so that another thread sees one or the other."""

    def read(self, pid: int, first: int, last: int, max_bytes: int) -> list[Record]:
        """Messages of a partition, at least one, and no more after `max_bytes`. Raises duckdb.Error, OSError."""
        runs = [run for index in self.index for run in index.runs(pid, first, last)]
        return self._again(lambda: self._records(runs, max_bytes))

    def first_offset_at(self, pid: int, ts: int) -> int | None:
        """The partition's first offset at or after the instant. Raises duckdb.Error, OSError."""
        run = next(filter(None, (index.first_at(pid, ts) for index in self.index)), None)
        if run is None:
            return None
        sql = 'SELECT min("offset") FROM {0}.messages WHERE rowid BETWEEN ? AND ? AND ts >= ?'
        segment, parameters = run.segment, [run.start, run.start + run.last - run.first, ts]
        rows = self._again(lambda: self._execute(segment, sql, parameters).fetchall())
        return int(rows[0][0])

    def find(self, pid: int, txn: str) -> int | None:
        """The partition's last offset with this transaction id. Raises duckdb.Error, OSError."""
        sql = 'SELECT max("offset") FROM {0}.messages WHERE rowid BETWEEN ? AND ? AND txn = ?'
        for run in reversed([run for index in self.index for run in index.runs(pid, 0, MAX_OFFSET)]):
            found = self._one(run, sql, txn)
            if found is not None:
                return found
        return None

    def size(self, pid: int, first: int, last: int) -> int:
        """Payload bytes of messages of a partition. Raises duckdb.Error, OSError."""
        sql = "SELECT coalesce(sum(octet_length(payload)), 0) FROM {0}.messages WHERE rowid BETWEEN ? AND ?"
        runs = [run for index in self.index for run in index.runs(pid, first, last)]
        return sum(self._one(run, sql) or 0 for run in runs)

    def _one(self, run: Run, sql: str, *more: str) -> int | None:
        """One number out of a run's rows."""
        parameters: list[int | str] = [run.start, run.start + run.last - run.first, *more]
        rows = self._again(lambda: self._execute(run.segment, sql, parameters).fetchall())
        return None if rows[0][0] is None else int(rows[0][0])

    def detach(self, segment: SegmentFile) -> None:
        """Let go of a segment that is to be removed."""
        alias = self._attached.pop(segment, None)
        if alias is not None and self._connection is not None:
            duck.detach(self._connection, alias)

    def close(self) -> None:
        """Let go of everything; the next read begins anew."""
        self._attached.clear()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _records(self, runs: Sequence[Run], max_bytes: int) -> list[Record]:
        found: list[Record] = []
        room = max_bytes
        step = FIRST_ROWS
        for run in runs:
            start, end = run.start, run.start + run.last - run.first
            while start <= end:
                until = min(end, start + step - 1)
                sql = f"SELECT {_RECORD} FROM {{0}}.messages WHERE rowid BETWEEN ? AND ? ORDER BY rowid"
                for row in self._execute(run.segment, sql, [start, until]).fetchall():
                    record = Record(*row)
                    room -= len(record.payload)
                    if room < 0 and found:
                        return found
                    found.append(record)
                start, step = until + 1, min(MOST_ROWS, 2 * step)
                if room <= 0:
                    return found
        return found

    def _again(self, read: Callable[[], T]) -> T:
        """What fails once is tried again with a new instance: an error of DuckDB's may outlive its cause in one."""
        try:
            return read()
        except duckdb.Error:
            self.close()
            return read()

    def _execute(self, segment: SegmentFile, sql: str, parameters: Sequence[int | str]) -> duckdb.DuckDBPyConnection:
        if self._connection is None:
            self._connection = duck.connect(self._memory_mb, self._spill)
        alias = self._attached.get(segment)
        if alias is None:
            while len(self._attached) >= ATTACHED:
                _, oldest = self._attached.popitem(last=False)
                duck.detach(self._connection, oldest)
            self._names += 1
            alias = f"segment_{self._names}"
            duck.attach(self._connection, segment.path, alias)
            self._attached[segment] = alias
        else:
            self._attached.move_to_end(segment)
        return self._connection.execute(sql.format(alias), parameters)

"""Segments: a rolled journal as one immutable DuckDB file of typed rows.

The life of such a file, and of a snapshot's: it is built under a temporary name, checkpointed once, flushed, reopened
read-only and checked, and only then given its name, which holds the CRC-32 of its bytes. It is never written again.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import duckdb
import msgspec

from queen_actors.domain.effects import Appended, Counters, Effect, Entry
from queen_actors.errors import StorageFailed

from . import duck, faultpoints, schema
from .directory import DataDirectory, JournalFile, SegmentFile, file_checksum
from .duck import name as quoted
from .fileops import NO_DESCRIPTOR, FileOps
from .journal import JournalReader

PIECE = 200  # rows appended at a time: about half a millisecond under the GIL
FLUSH = 20_000  # rows that an appender may hold
WAITING = 5_000  # first rows of one kind of state that wait in Python
PLAIN = schema.MESSAGES[:6]
"""What most messages have: nothing beyond the payload, and often no transaction id but their own. A value costs an
appender as much when it is null, so that these take two thirds of the time."""
YIELD_SECONDS = 0.0002  # what a piece leaves to the threads that commit and serve

_split: msgspec.msgpack.Decoder[list[msgspec.Raw]] = msgspec.msgpack.Decoder(list[msgspec.Raw])
_fields = msgspec.structs.astuple
_entry: msgspec.msgpack.Decoder[Entry] = msgspec.msgpack.Decoder(Entry)


Inspect = Callable[[SegmentFile, str], None]
"""Is given a finished segment, and the temporary name that it still has."""


class Interrupted(Exception):
    """The work was asked to end before it was done; nothing of it remains."""


class Pace:
    """How a builder shares the interpreter with the threads that serve: it gives way after each piece of work."""

    def __init__(self, hurried: bool = False) -> None:
        """`hurried`: the backlog grows, so do not wait between pieces."""
        self._sleep = 0.0 if hurried else YIELD_SECONDS
        self._done = 0
        self._stopped = False
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._interrupting = threading.Lock()

    def give_way(self, done: int = PIECE) -> None:
        """So many rows were worked on: with the end of a piece, others have their turn. Raises Interrupted."""
        if self._stopped:
            raise Interrupted
        self._done += done
        if self._done >= PIECE:
            self._done = 0
            time.sleep(self._sleep)

    def working_on(self, connection: duckdb.DuckDBPyConnection | None) -> None:
        """Statements run on this connection now. Before it is closed there is to be none: `stop` reaches for it."""
        with self._interrupting:
            self._connection = connection

    def stop(self) -> None:
        """End the work as soon as may be; called from another thread. Never raises: it is called while Trio cancels."""
        self._stopped = True
        with self._interrupting, contextlib.suppress(duckdb.Error):
            if self._connection is not None:
                self._connection.interrupt()


class Meta(NamedTuple):
    """The row of `meta`; see `schema.META`."""

    first: int
    last: int
    version: int
    pid: int
    qid: int
    instant: int
    journal_bytes: int
    rows: str
    checksum: str

    @property
    def counters(self) -> Counters:
        return Counters(self.version, self.pid, self.qid)


NO_META = Meta(0, 0, 0, 0, 0, 0, 0, "", "")


def _as_it_is(*_: object) -> None:
    """Nothing is asked of a file before it is published."""


def build(
    directory: DataDirectory,
    journal: JournalFile,
    connection: duckdb.DuckDBPyConnection,
    pace: Pace,
    inspect: Inspect = _as_it_is,
) -> SegmentFile:
    """Make the journal's segment, durable under its name. The journal is left as it is, and when anything fails, what
    `inspect` raises too, there is no segment.

    Raises StorageFailed when the journal or what was made of it is not right; OSError and duckdb.Error when the disk
    or the memory does not allow it now; Interrupted.
    """
    if faultpoints.armed:
        faultpoints.passage("segment.start")
    connection.execute(f"CREATE OR REPLACE TABLE staging ({schema.definition(schema.MESSAGES)})")
    connection.execute(f"CREATE OR REPLACE TABLE plain ({schema.definition(PLAIN)})")
    reader = JournalReader(journal.path)
    sorter = _Sorter(connection, pace)
    sorter.take(reader)
    if reader.torn:
        raise StorageFailed(f"{journal.path} ends in bytes that are no frame, and did not when it was opened.")

    def fill(alias: str) -> dict[str, int]:
        columns = schema.names(schema.MESSAGES)
        connection.execute(
            f"INSERT INTO {alias}.messages BY NAME "
            f"SELECT * REPLACE (coalesce(txn, id) AS txn), false AS encrypted FROM plain "
            f'UNION ALL BY NAME SELECT {columns} FROM staging ORDER BY pid, "offset"'
        )
        connection.execute("DROP TABLE staging")
        connection.execute("DROP TABLE plain")
        fill_runs(connection, alias)
        sorter.write_state(alias)
        return {"messages": sorter.messages}

    meta = Meta(journal.first, reader.position, *sorter.counters_and_instant(), reader.end, "", "")
    temporary = os.path.join(directory.path, f"segment-{journal.first:020}.duckdb.tmp")
    checksum = make_file(directory.ops, connection, temporary, "segment", meta, reader.end, fill)
    segment = directory.segment_file(journal.first, reader.position, checksum)
    inspect(segment, temporary)
    publish(directory, temporary, segment.path, "segment")
    return segment


class _Sorter:
    """Takes a journal apart: messages into the tables `plain` and `staging`, and of every other thing the first and the
    last effect.

    The last is what holds. The first makes the thing known where it was: what stands between the two may name it. Where
    many things are made, as partitions may be, their first rows wait in DuckDB.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, pace: Pace) -> None:
        self._connection = connection
        self._pace = pace
        self._known: dict[schema.Table, set[Any]] = {table: set() for table in schema.TABLES}
        self._first: dict[schema.Table, list[tuple[Any, ...]]] = {table: [] for table in schema.TABLES}
        self._put_off: set[schema.Table] = set()
        self._latest: dict[schema.Table, dict[Any, tuple[int, Effect]]] = {table: {} for table in schema.TABLES}
        self._last: Entry | None = None
        self.messages = 0

    def take(self, reader: JournalReader) -> None:
        """Read the journal to its end."""
        with (
            Rows(self._connection, "plain", self._pace) as plain,
            Rows(self._connection, "staging", self._pace) as whole,
        ):
            seq = 0
            for _, body in reader.frames():
                for raw in _split.decode(body):
                    entry = _entry.decode(raw)
                    self._last = entry
                    for effect in entry.effects:
                        if isinstance(effect, Appended):
                            self._stage(effect, plain, whole)
                        else:
                            self._note(seq, effect)
                            seq += 1
                    self._pace.give_way(1)

    def _stage(self, effect: Appended, plain: Rows, whole: Rows) -> None:
        pid = effect.pid
        self.messages += len(effect.records)
        for r in effect.records:
            if r.trace is None and r.producer is None and r.timer_key is None and not r.encrypted:
                plain.add((pid, r.offset, r.ts, r.id, None if r.txn == r.id else r.txn, r.payload))
            else:
                whole.add((pid, *_fields(r)))

    def _note(self, seq: int, effect: Effect) -> None:
        table = schema.table_of(effect)
        key = table.key_of(effect)
        known, first = self._known[table], self._first[table]
        if key in known:
            self._latest[table][key] = seq, effect
            return
        known.add(key)
        first.append(table.row(seq, effect))
        if len(first) < WAITING:
            return
        if table not in self._put_off:
            self._put_off.add(table)
            columns = schema.definition(table.segment_columns)
            self._connection.execute(f"CREATE OR REPLACE TABLE first_{table.name} ({columns})")
        append(self._connection, f"first_{table.name}", first, self._pace)
        first.clear()

    def write_state(self, alias: str) -> None:
        """Append the rows of every kind of state."""
        for table in schema.TABLES:
            if table in self._put_off:
                columns, waiting = schema.names(table.segment_columns), f"first_{table.name}"
                self._connection.execute(f"INSERT INTO {alias}.{table.name} SELECT {columns} FROM {waiting}")
                self._connection.execute(f"DROP TABLE {waiting}")
            latest = (table.row(seq, effect) for seq, effect in self._latest[table].values())
            append(self._connection, f"{alias}.{table.name}", chain(self._first[table], latest), self._pace)

    def counters_and_instant(self) -> tuple[int, int, int, int]:
        """Version, pid, qid and instant after the last entry."""
        if self._last is None:
            return 0, 0, 0, 0
        counters = self._last.counters
        return counters.version, counters.pid, counters.qid, self._last.now


class Rows:
    """Appends rows to a table, in small pieces; all of them are in it when the block ends. After an exception the table
    may have some of them."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, table: str, pace: Pace) -> None:
        self._appender = connection.appender(table)
        self._pace = pace
        self._piece: list[tuple[Any, ...]] = []
        self._unflushed = 0

    def __enter__(self) -> Rows:
        return self

    def add(self, row: tuple[Any, ...]) -> None:
        self._piece.append(row)
        if len(self._piece) == PIECE:
            self._appender.append_rows(self._piece)
            self._unflushed += PIECE
            self._piece.clear()
            self._pace.give_way()
            if self._unflushed >= FLUSH:
                self._appender.flush()
                self._unflushed = 0

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._appender.append_rows(self._piece)
                self._appender.flush()
                return
        except BaseException:
            self._appender.clear()
            raise
        self._appender.clear()


def append(connection: duckdb.DuckDBPyConnection, table: str, rows: Iterable[tuple[Any, ...]], pace: Pace) -> None:
    """Append rows in small pieces. After an exception the table may have some of them."""
    with Rows(connection, table, pace) as into:
        for row in rows:
            into.add(row)


def fill_runs(connection: duckdb.DuckDBPyConnection, alias: str) -> None:
    """Write down where each partition's messages lie among the sorted ones; a gap in the offsets begins a new run."""
    connection.execute(
        f"""
        INSERT INTO {alias}.runs
        SELECT pid, min("offset"), max("offset"), min(rowid), min(ts), max(ts)
        FROM {alias}.messages GROUP BY pid, "offset" - rowid ORDER BY min(rowid)
        """
    )


def make_file(
    ops: FileOps,
    connection: duckdb.DuckDBPyConnection,
    path: str,
    kind: str,
    meta: Meta,
    expected_bytes: int,
    fill: Callable[[str], Mapping[str, int]],
) -> int:
    """Build, checkpoint, flush and check a file under its temporary name; the CRC-32 of its bytes.

    `fill` is given the name under which the file is attached, and gives back how many rows some tables must have.
    After any exception the connection is good for nothing but to be closed.
    """
    tables = schema.SNAPSHOT_TABLES if kind == "snapshot" else schema.SEGMENT_TABLES
    alias = f"{kind}_{meta.first}_{meta.last}_new"
    for leftover in (path, path + ".wal"):
        if os.path.exists(leftover):
            ops.unlink(leftover)
    duck.create(connection, path, alias, expected_bytes)
    ops.restrict(path)
    for table, columns in tables.items():
        connection.execute(f"CREATE TABLE {alias}.{table} ({schema.definition(columns)})")
    connection.execute(f"CREATE TABLE {alias}.meta ({schema.definition(schema.META)})")
    expected = fill(alias)
    rows, checksum = _contents(connection, alias, tables)
    for table, count in expected.items():
        if rows[table] != count:
            raise StorageFailed(f"{path} was given {count} rows of {table} and holds {rows[table]}.")
    row = meta._replace(rows=msgspec.json.encode(rows).decode(), checksum=checksum)
    connection.execute(f"INSERT INTO {alias}.meta VALUES ({', '.join('?' * len(row))})", list(row))
    if faultpoints.armed:
        faultpoints.passage(f"{kind}.filled")
    connection.execute(f"CHECKPOINT {alias}")
    duck.detach(connection, alias)
    if faultpoints.armed:
        faultpoints.passage(f"{kind}.checkpointed")
    ops.sync_file(path)
    if faultpoints.armed:
        faultpoints.passage(f"{kind}.synced")
    alias += "_check"
    duck.attach(connection, path, alias)
    if (rows, checksum) != _contents(connection, alias, tables) or read_meta(connection, alias) != row:
        raise StorageFailed(f"{path} does not hold what was written to it.")
    duck.detach(connection, alias)
    return file_checksum(path)


def publish(directory: DataDirectory, temporary: str, path: str, kind: str) -> None:
    """Give a finished file its name, durably.

    Raises OSError when it does not have it, so that it can be made again, and StorageFailed when that is not known: a
    file that the store does not know of would be beside others with the same messages.
    """
    directory.ops.rename(temporary, path)
    if faultpoints.armed:
        faultpoints.passage(f"{kind}.renamed")
    try:
        directory.ops.sync_directory(directory.path)
    except OSError as error:
        try:
            directory.ops.unlink(path)
            directory.ops.sync_directory(directory.path)
        except OSError as second:
            # Without a descriptor nothing was flushed, and that alone says nothing against the disk: what is gone by
            # now may be back after a power cut, where a start sees what it is
            if {error.errno, second.errno} - NO_DESCRIPTOR or os.path.lexists(path):
                raise StorageFailed(f"Making {path} durable under its name failed: {error}.") from error
        raise
    if faultpoints.armed:
        faultpoints.passage(f"{kind}.published")


def read_meta(connection: duckdb.DuckDBPyConnection, alias: str) -> Meta:
    """The meta row of an attached file. Raises StorageFailed."""
    columns = schema.names(schema.META)
    rows = connection.execute(f"SELECT {columns} FROM {quoted(alias)}.meta").fetchall()
    if len(rows) != 1:
        raise StorageFailed(f"A file of the log has {len(rows)} meta rows.")
    return Meta(*rows[0])


def _contents(
    connection: duckdb.DuckDBPyConnection, alias: str, tables: Mapping[str, Sequence[schema.Column]]
) -> tuple[dict[str, int], str]:
    """How many rows each table has, and one sum over the hashes of all."""
    counts: dict[str, int] = {}
    total = 0
    for table, columns in tables.items():
        count, checksum = one(
            connection, f"SELECT count(*), sum(hash({schema.names(columns)})::HUGEINT) FROM {alias}.{table}"
        )
        counts[table] = count
        total += int(checksum or 0)
    return counts, str(total)


def one(connection: duckdb.DuckDBPyConnection, sql: str) -> tuple[Any, ...]:
    """The only row of a query."""
    row = connection.execute(sql).fetchone()
    assert row is not None
    return tuple(row)

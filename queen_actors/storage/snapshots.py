"""Snapshots: the state of everything but the messages, as of one position, made by SQL from what is sealed.

A snapshot's row is the last effect of its thing among the segments since the snapshot before, or else that
snapshot's own row. What was dropped falls away, and with a queue what belonged to it: its partitions and groups,
their cursors and traces, its dead letters, and its streaming queries. A query's state rows fall with the query, with
its reset, and with their partition.

Beside the state stand the index entries of messages that retention has removed and that are still inside their queue's
window: a repeated push answers `duplicate`, and a late ack is one, also when the segment they lay in is gone.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import duckdb

from queen_actors import limits
from queen_actors.domain.effects import Counters, QueuePut
from queen_actors.domain.partition import window_of

from . import duck, faultpoints, schema, segments
from .directory import DataDirectory, SegmentFile, SnapshotFile
from .segments import Meta, Pace

TRACE_MICROS = limits.TRACE_SECONDS * 1_000_000

_WITH_QUEUE = "ANTI JOIN memory.internal.gone_queues USING (qid)"
_WITH_PARTITION = "ANTI JOIN memory.internal.gone_partitions USING (pid)"
_FALLS_WITH = {
    schema.GROUPS: _WITH_QUEUE,
    schema.PARTITIONS: _WITH_QUEUE,
    schema.DEAD_LETTERS: _WITH_QUEUE,
    schema.CURSORS: _WITH_PARTITION,
    schema.TRACES: _WITH_PARTITION,
    schema.STREAMS: _WITH_QUEUE,
    schema.STREAM_ROWS: f"SEMI JOIN memory.internal.live_states USING (state) {_WITH_PARTITION}",
}


def build(
    directory: DataDirectory,
    previous: SnapshotFile | None,
    since: Sequence[SegmentFile],
    behind: Sequence[SegmentFile],
    connection: duckdb.DuckDBPyConnection,
    pace: Pace,
) -> SnapshotFile:
    """Make the snapshot as of the last of the segments `since`, durable under its name.

    `behind` are the segments from before `previous` that are still there. Raises as `segments.build` does.
    """
    if faultpoints.armed:
        faultpoints.passage("snapshot.start")
    source = Source.attach(connection, previous, since)
    last = since[-1].last
    newest = segments.read_meta(connection, source.newest or "")
    journal_bytes = sum(segments.read_meta(connection, alias).journal_bytes for alias in source.segments)
    pace.give_way()

    def fill(alias: str) -> dict[str, int]:
        source.prepare(connection)
        for table in schema.TABLES:
            query, key = source.current(table, newest.instant), ", ".join(map(duck.name, table.key))
            connection.execute(f"INSERT INTO {alias}.{table.name} {query} ORDER BY {key}")
            pace.give_way()
        removed = _Removed(connection, alias, source.snapshot, newest.instant)
        held = [(*segment[:2], _visit(connection, alias, segment, removed)) for segment in (*behind, *since)]
        segments.append(connection, f"{alias}.segments", held, pace)
        return {"segments": len(held)}

    paths = [file.path for file in since] + ([previous.path] if previous else [])
    expected_bytes = sum(map(os.path.getsize, paths))
    meta = Meta(0, last, *_counters(newest.counters), newest.instant, journal_bytes, "", "")
    temporary = os.path.join(directory.path, f"snapshot-{last:020}.duckdb.tmp")
    checksum = segments.make_file(directory.ops, connection, temporary, "snapshot", meta, expected_bytes, fill)
    snapshot = directory.snapshot_file(last, checksum)
    segments.publish(directory, temporary, snapshot.path, "snapshot")
    return snapshot


def _counters(counters: Counters) -> tuple[int, int, int]:
    return counters.version, counters.pid, counters.qid


class _Removed:
    """Fills a snapshot's table `recent`: with what the snapshot before it had, and with what was removed since."""

    def __init__(
        self, connection: duckdb.DuckDBPyConnection, snapshot: str, previous: str | None, instant: int
    ) -> None:
        self._connection = connection
        self._snapshot = snapshot
        queues = connection.execute(f"SELECT {schema.names(schema.QUEUES.columns)} FROM {snapshot}.queues").fetchall()
        puts = [put for put in map(schema.QUEUES.put_effect, queues) if isinstance(put, QueuePut)]
        connection.execute(
            """
            CREATE OR REPLACE TABLE memory.internal.windows AS
            SELECT unnest(?::BIGINT[]) AS qid, unnest(?::BIGINT[]) AS since
            """,
            [[put.qid for put in puts], [instant - window_of(put.options) for put in puts]],
        )
        before = "SELECT NULL::BIGINT AS pid, 0 AS log_start WHERE false"
        if previous is not None:
            before = f"SELECT pid, log_start FROM {previous}.partitions WHERE log_start > 0"
            still = f"JOIN {snapshot}.partitions p USING (pid) JOIN memory.internal.windows w USING (qid)"
            self._add(f"{previous}.recent m {still}")
        connection.execute(
            f"""
            CREATE OR REPLACE TABLE memory.internal.moved AS
            SELECT pid, since, coalesce(b.log_start, 0) AS first, p.log_start - 1 AS last
            FROM {snapshot}.partitions p JOIN memory.internal.windows USING (qid) LEFT JOIN ({before}) b USING (pid)
            WHERE p.log_start > coalesce(b.log_start, 0)
            """
        )

    def take(self, segment: str) -> None:
        """What this attached segment has of the messages that were removed since the snapshot before."""
        moved = 'JOIN memory.internal.moved w ON w.pid = m.pid AND m."offset" BETWEEN w.first AND w.last'
        self._add(f"{segment}.messages m {moved}")

    def _add(self, source: str) -> None:
        columns = ", ".join(f"m.{duck.name(column.name)}" for column in schema.RECENT)
        self._connection.execute(
            f"""
            INSERT INTO {self._snapshot}.recent
            SELECT {columns} FROM {source} WHERE m.ts >= w.since ORDER BY m.pid, m."offset"
            """
        )


def _visit(connection: duckdb.DuckDBPyConnection, snapshot: str, segment: SegmentFile, removed: _Removed) -> int:
    """How many of the segment's messages are at or above the log_start of a partition that the snapshot still has;
    what it has of the others goes into the snapshot's `recent`."""
    alias = f"live_{segment.first}"
    duck.attach(connection, segment.path, alias)
    (live,) = segments.one(
        connection,
        f"""
        SELECT coalesce(sum(runs.last - greatest(runs.first, partitions.log_start) + 1), 0)::BIGINT
        FROM {alias}.runs JOIN {snapshot}.partitions USING (pid) WHERE runs.last >= partitions.log_start
        """,
    )
    removed.take(alias)
    duck.detach(connection, alias)
    return int(live)


class Source:
    """A snapshot and the segments behind it, attached: what the state is made of, by SQL."""

    def __init__(self, snapshot: str | None, segments: Sequence[str]) -> None:
        self.snapshot = snapshot
        self.segments = segments
        self.newest = segments[-1] if segments else snapshot
        """The file whose meta row is that of the end of them all, if there is any."""

    @classmethod
    def attach(
        cls, connection: duckdb.DuckDBPyConnection, snapshot: SnapshotFile | None, since: Sequence[SegmentFile]
    ) -> Source:
        """Attach the files, read-only. Raises duckdb.Error."""
        if snapshot is not None:
            duck.attach(connection, snapshot.path, "base")
        for segment in since:
            duck.attach(connection, segment.path, f"since_{segment.first}")
        return cls("base" if snapshot is not None else None, [f"since_{segment.first}" for segment in since])

    def prepare(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Make the in-memory tables which `current` looks into: the queues and partitions that are gone, the states
        of streaming queries that are not."""
        connection.execute("CREATE SCHEMA IF NOT EXISTS memory.internal")
        dropped = " UNION ".join(
            ["SELECT NULL::BIGINT AS qid WHERE false"]
            + [f"SELECT qid FROM {alias}.queues WHERE dropped" for alias in self.segments]
        )
        connection.execute(f"CREATE OR REPLACE TABLE memory.internal.gone_queues AS {dropped}")
        known = [*self.segments, *([self.snapshot] if self.snapshot else [])]
        pids = " UNION ".join(
            ["SELECT NULL::BIGINT AS pid WHERE false"]
            + [
                f"SELECT pid FROM {alias}.partitions SEMI JOIN memory.internal.gone_queues USING (qid)"
                for alias in known
            ]
        )
        connection.execute(f"CREATE OR REPLACE TABLE memory.internal.gone_partitions AS {pids}")
        states = f"SELECT state FROM ({self.current(schema.STREAMS, 0)})"
        connection.execute(f"CREATE OR REPLACE TABLE memory.internal.live_states AS {states}")

    def current(self, table: schema.Table, instant: int) -> str:
        """The query for what is there of one kind, with the columns of its put effect."""
        columns = schema.names(table.columns)
        key = ", ".join(duck.name(part) for part in table.key)
        nothing = ", ".join(f"NULL::{column.type} AS {duck.name(column.name)}" for column in table.columns)
        effects = " UNION ALL ".join(
            [f"SELECT {nothing}, true AS dropped, 0 AS seq, 0 AS source WHERE false"]
            + [
                f"SELECT {columns}, dropped, seq, {number} AS source FROM {alias}.{table.name}"
                for number, alias in enumerate(self.segments, 1)
            ]
        )
        query = f"""
            SELECT {columns} FROM (
                SELECT *, row_number() OVER (PARTITION BY {key} ORDER BY source DESC, seq DESC) AS place
                FROM ({effects})
            ) WHERE place = 1 AND NOT dropped
        """
        if self.snapshot is not None:
            query += f"""
                UNION ALL
                SELECT {columns} FROM {self.snapshot}.{table.name}
                ANTI JOIN (SELECT {key} FROM ({effects})) USING ({key})
            """
        query = f"SELECT {columns} FROM ({query}) {_FALLS_WITH.get(table, '')}"
        if table is schema.TRACES:
            query += f" WHERE created_at >= {instant - TRACE_MICROS}"
        return query

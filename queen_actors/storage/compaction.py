"""What makes old segments fewer: those without a message that anyone may still read are removed whole, and
neighbours that have become small are merged into one."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

import duckdb

from queen_actors.errors import StorageFailed

from . import duck, faultpoints, schema, segments
from .directory import DataDirectory, SegmentFile, SnapshotFile
from .segments import Inspect, Pace

MERGE_FILES = 8  # so many small neighbours are worth a merge
MERGE_MOST = 64  # files of one merge: each takes a descriptor (limits.DESCRIPTORS_KEPT)


def live_counts(connection: duckdb.DuckDBPyConnection, snapshot: SnapshotFile) -> dict[tuple[int, int], int]:
    """How many messages of each segment behind the snapshot may still be read, by the segment's positions."""
    duck.attach(connection, snapshot.path, "held")
    rows = connection.execute("SELECT first, last, live FROM held.segments").fetchall()
    duck.detach(connection, "held")
    return {(first, last): live for first, last, live in rows}


def groups_to_merge(
    files: Sequence[SegmentFile],
    live: Mapping[tuple[int, int], int],
    totals: Mapping[SegmentFile, int],
    sizes: Mapping[str, int],
    target_bytes: int,
) -> Iterator[list[SegmentFile]]:
    """Neighbours that fit into one file of `target_bytes`: many of them, or such that half a file becomes free.

    `live` and `totals` say how many messages of a segment may still be read, and how many it holds; `sizes` has the
    bytes of each path.
    """
    group: list[SegmentFile] = []
    needed = taken = 0

    def worth_it() -> bool:
        return len(group) >= MERGE_FILES or (bool(group) and taken - needed >= target_bytes // 2)

    for file in files:
        size = sizes[file.path]
        need = size * live.get((file.first, file.last), totals[file]) // max(1, totals[file])
        if group and (needed + need > target_bytes or len(group) == MERGE_MOST):
            if worth_it():
                yield group
            group, needed, taken = [], 0, 0
        group = [*group, file]
        needed += need
        taken += size
    if worth_it():
        yield group


def merge(
    directory: DataDirectory,
    snapshot: SnapshotFile,
    group: Sequence[SegmentFile],
    connection: duckdb.DuckDBPyConnection,
    pace: Pace,
    inspect: Inspect,
) -> SegmentFile:
    """One segment with the messages of the group that the snapshot's partitions still have, durable under its name.
    When anything fails, what `inspect` raises too, there is none.

    All of the group lie behind the snapshot, so the state in them is not needed any more. Raises as `segments.build`.
    """
    if faultpoints.armed:
        faultpoints.passage("merge.start")
    duck.attach(connection, snapshot.path, "base")
    aliases = [f"part_{number}" for number in range(len(group))]
    for file, alias in zip(group, aliases, strict=True):
        duck.attach(connection, file.path, alias)
    meta = segments.read_meta(connection, aliases[-1])._replace(first=group[0].first, journal_bytes=0)
    columns = ", ".join(f"m.{duck.name(column.name)}" for column in schema.MESSAGES)
    kept = " UNION ALL ".join(
        f'SELECT {columns} FROM {alias}.messages m JOIN base.partitions p USING (pid) WHERE m."offset" >= p.log_start'
        for alias in aliases
    )
    (count,) = segments.one(connection, f"SELECT count(*) FROM ({kept})")
    pace.give_way()

    def fill(alias: str) -> dict[str, int]:
        connection.execute(f'INSERT INTO {alias}.messages SELECT * FROM ({kept}) ORDER BY pid, "offset"')
        segments.fill_runs(connection, alias)
        return {"messages": count}

    expected_bytes = sum(os.path.getsize(file.path) for file in group)
    temporary = os.path.join(directory.path, f"merge-{meta.first:020}.duckdb.tmp")
    checksum = segments.make_file(directory.ops, connection, temporary, "merge", meta, expected_bytes, fill)
    if meta.last != group[-1].last:
        raise StorageFailed(f"{group[-1].path} says of itself that it ends at position {meta.last}.")
    merged = directory.segment_file(meta.first, meta.last, checksum)
    inspect(merged, temporary)
    segments.publish(directory, temporary, merged.path, "merge")
    return merged

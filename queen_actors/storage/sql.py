"""SQL over a stopped broker's data directory: what `queen-actors sql` runs.

The views are `messages`, `queues`, `partitions`, `groups`, `cursors`, `kv`, `locks`, `timers`, `dead_letters`,
`traces`, `streams` and `stream_state`, as of the last commit; keys, permits and messages that are gone or have expired
are not among them. Instants are TIMESTAMPs in UTC; payloads and values are JSON text.
"""

from __future__ import annotations

import os
from typing import Any

import duckdb

from queen_actors.errors import BadRequest, DataDirectoryError
from queen_actors.values import LOCKS_NAMESPACE, MAX_INSTANT

from . import duck, recovery, schema, segments
from .directory import DataDirectory
from .fileops import FileOps
from .snapshots import Source
from .tail import JournalTail

_READS = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)


def query(directory: str, sql: str, *, memory_limit_mb: int = 1024) -> tuple[list[str], list[tuple[Any, ...]]]:
    """The column names and the rows of one SELECT. The journal is sealed first, so the directory is written to.

    Raises DataDirectoryError when the directory is in use, or is none; BadRequest, with DuckDB's words, when the
    statement is not one, reads what is no view, or is not a SELECT.
    """
    held = DataDirectory.take(directory, FileOps(), create=False)
    try:
        found = _seal(held, memory_limit_mb)
        connection = duck.connect(memory_limit_mb, os.path.join(held.spill, "sql"))
        try:
            _make_views(connection, found)
            return _run(connection, sql)
        finally:
            connection.close()
    except (OSError, duckdb.Error) as error:
        raise DataDirectoryError(f"The data directory {directory} cannot be read: {error}.") from error
    finally:
        held.release()


def _seal(held: DataDirectory, memory_mb: int) -> recovery.Plan:
    """Make segments of the journals that are there; everything that is sealed after it."""
    listing = held.listing()
    found = recovery.plan(held, listing)
    tail = JournalTail(held, listing.journals, found.position)
    for _ in tail.chunks():
        pass
    tail.finish()
    for file, last in tail.kept:
        connection = duck.connect(memory_mb, os.path.join(held.spill, "build"))
        try:
            segment = segments.build(held, file, connection, segments.Pace(hurried=True))
        finally:
            connection.close()
        if segment.last != last:
            raise DataDirectoryError(f"{file.path} was read to position {segment.last}, and then to {last}.")
        held.ops.unlink(file.path)
    recovery.clear(held, found, tail.superseded)
    held.ops.sync_directory(held.path)
    return recovery.plan(held, held.listing())


def _run(connection: duckdb.DuckDBPyConnection, sql: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Run the statement with nothing within its reach but the views."""
    connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    try:
        statements = connection.extract_statements(sql)
        if len(statements) != 1 or statements[0].type not in _READS:
            raise BadRequest("One SELECT is expected: the data directory can be read, and not changed, by SQL.")
        cursor = connection.execute(sql)
        return [column[0] for column in cursor.description or ()], cursor.fetchall()
    except duckdb.Error as error:
        raise BadRequest(str(error)) from error


def _instant(column: str) -> str:
    # Not `least`: it passes over a NULL, and an expiry that is none would become the last instant there is.
    return f"make_timestamp(CASE WHEN {column} > {MAX_INSTANT} THEN {MAX_INSTANT} ELSE {column} END)"


def _make_views(connection: duckdb.DuckDBPyConnection, found: recovery.Plan) -> None:
    source = Source.attach(connection, found.snapshot, found.since)
    source.prepare(connection)
    instant = segments.read_meta(connection, source.newest).instant if source.newest else 0
    aliases = dict(zip((segment.path for segment in found.since), source.segments, strict=True))
    for segment in found.behind:
        aliases[segment.path] = f"behind_{segment.first}"
        duck.attach(connection, segment.path, aliases[segment.path])
    for table in schema.TABLES:
        connection.execute(f"CREATE VIEW memory.internal.{table.name} AS {source.current(table, instant)}")
    columns = ", ".join(f"NULL::{column.type} AS {duck.name(column.name)}" for column in schema.MESSAGES)
    messages = " UNION ALL ".join(
        [f"SELECT {columns} WHERE false"]
        + [
            f"SELECT {schema.names(schema.MESSAGES)} FROM {aliases[segment.path]}.messages"
            for segment in found.segments
        ]
    )
    connection.execute(f"CREATE VIEW memory.internal.messages AS {messages}")
    for name, body in _VIEWS.items():
        connection.execute(f"CREATE VIEW memory.main.{name} AS {body}")


_PLACES = """(
    SELECT p.pid, p.log_start, p.created_at, p.name AS "partition", q.name AS queue
    FROM internal.partitions p JOIN internal.queues q USING (qid)
)"""
_LIVE_KEYS = "internal.kv WHERE expires_at IS NULL OR make_timestamp(expires_at) > now() AT TIME ZONE 'UTC'"
_VIEWS = {
    "messages": f"""
        SELECT place.queue, place."partition", m."offset", m.id, m.txn AS transaction_id,
            try(decode(m.payload)) AS payload, {_instant("m.ts")} AS created_at, m.trace AS trace_id, m.producer,
            m.timer_key, m.encrypted, m.pid AS partition_id
        FROM internal.messages m JOIN {_PLACES} place USING (pid) WHERE m."offset" >= place.log_start""",
    "queues": f"""
        SELECT name AS queue, uid AS id, namespace, task, options, {_instant("created_at")} AS created_at
        FROM internal.queues""",
    "partitions": f"""
        SELECT queue, "partition", pid AS partition_id, log_start, {_instant("created_at")} AS created_at
        FROM {_PLACES}""",
    "groups": f"""
        SELECT q.name AS queue, g."group" AS consumer_group, g.mode, {_instant("g.from_ts")} AS from_instant,
            g.conflation, {_instant("g.created_at")} AS created_at
        FROM internal.groups g JOIN internal.queues q USING (qid)""",
    "cursors": f"""
        SELECT place.queue, place."partition", c."group" AS consumer_group, c.committed,
            nullif(c.lease_id, '') AS lease_id,
            CASE WHEN c.lease_id <> '' THEN {_instant("c.lease_expires")} END AS lease_expires_at,
            c.batch_end, c.retries, c.attempts, c.session, c.pid AS partition_id
        FROM internal.cursors c JOIN {_PLACES} place USING (pid)""",
    "kv": f"""
        SELECT ns AS namespace, key, try(decode(value)) AS value, version, {_instant("expires_at")} AS expires_at,
            {_instant("created_at")} AS created_at, {_instant("updated_at")} AS updated_at
        FROM {_LIVE_KEYS}""",
    "locks": f"""
        SELECT regexp_replace(key, '#[0-9]+$', '') AS lock, split_part(key, '#', -1)::BIGINT AS slot,
            try(decode(value)::JSON ->> '$.owner') AS owner, version AS token,
            {_instant("expires_at")} AS expires_at, {_instant("updated_at")} AS renewed_at
        FROM (FROM {_LIVE_KEYS}) WHERE ns = '{LOCKS_NAMESPACE}' AND regexp_matches(key, '#[0-9]{{1,18}}$')""",
    "timers": f"""
        SELECT queue, key AS timer_key, "partition", {_instant("due")} AS due, txn AS transaction_id, message_id,
            try(decode(payload)) AS payload, encrypted, producer, attempts, last_error,
            {_instant("created_at")} AS created_at, {_instant("updated_at")} AS updated_at
        FROM internal.timers""",
    "dead_letters": f"""
        SELECT q.name AS queue, p.name AS "partition", d."group" AS consumer_group, d.message_offset AS "offset", d.id,
            d.message_id, d.message_txn AS transaction_id, try(decode(d.message_payload)) AS payload, d.error,
            d.retry_count, {_instant("d.failed_at")} AS failed_at, {_instant("d.message_ts")} AS created_at,
            d.message_trace AS trace_id, d.message_producer AS producer, d.message_encrypted AS encrypted
        FROM internal.dead_letters d LEFT JOIN internal.queues q USING (qid) LEFT JOIN internal.partitions p
            ON p.pid = d.pid""",
    "traces": f"""
        SELECT place.queue, place."partition", t.txn AS transaction_id, t."group" AS consumer_group, t.names, t.event,
            try(decode(t.data)) AS data, t.worker, {_instant("t.created_at")} AS created_at, t.id
        FROM internal.traces t LEFT JOIN {_PLACES} place USING (pid)""",
    "streams": f"""
        SELECT s.name, q.name AS queue, s.sink, s."group" AS consumer_group, s.config_hash, s.id,
            {_instant("s.created_at")} AS created_at, {_instant("s.updated_at")} AS updated_at
        FROM internal.streams s JOIN internal.queues q USING (qid)""",
    "stream_state": f"""
        SELECT s.name AS stream, place.queue, place."partition", r.key, try(decode(r.value)) AS value,
            {_instant("r.updated_at")} AS updated_at
        FROM internal.stream_rows r JOIN internal.streams s USING (state) JOIN {_PLACES} place
            ON place.pid = r.pid""",
}
"""The public views over the tables of `internal`, which have the columns of the effects."""
VIEWS = tuple(_VIEWS)

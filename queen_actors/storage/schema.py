"""The typed tables of segments and snapshots, made from the effects' own definitions, so that the two cannot differ.

Both kinds of file have one table for each kind of state. A snapshot's has the columns of the effect that puts the
thing. A segment's has the first and the last effect of each thing, and more columns: `seq`, the place of the effect
among all of the segment's; `dropped`; and what only the dropping effect carries. A segment alone has `messages`,
sorted by partition and offset, and `runs`, where each partition's messages lie among them.

`FINGERPRINT` is of everything that this decides; `directory.FORMAT_LINE` is to be raised with it.
"""

from __future__ import annotations

import types
import zlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from queen_actors.domain import effects as fx
from queen_actors.domain.effects import Effect, Record

from .duck import name as quoted


class Column(NamedTuple):
    """A column: its name and its SQL type."""

    name: str
    type: str


def _sql_type(hint: Any) -> str:
    if get_origin(hint) in (Union, types.UnionType):
        (hint,) = (part for part in get_args(hint) if part is not type(None))
    if get_origin(hint) is tuple:
        return _sql_type(get_args(hint)[0]) + "[]"
    if isinstance(hint, type) and issubclass(hint, Struct):
        return "VARCHAR"  # an object as JSON text: options are many, and of interest one by one
    return {int: "BIGINT", str: "VARCHAR", bytes: "BLOB", bool: "BOOLEAN"}[hint]


def _columns(kind: type[Struct], prefix: str = "") -> tuple[Column, ...]:
    columns: list[Column] = []
    hints = get_type_hints(kind)
    for field in kind.__struct_fields__:
        if hints[field] is Record:
            columns += _columns(Record, "message_")
        else:
            columns.append(Column(prefix + field, _sql_type(hints[field])))
    return tuple(columns)


def definition(columns: Sequence[Column]) -> str:
    """The columns as CREATE TABLE wants them."""
    return ", ".join(f"{quoted(column.name)} {column.type}" for column in columns)


def names(columns: Sequence[Column]) -> str:
    """The columns as SELECT wants them."""
    return ", ".join(quoted(column.name) for column in columns)


class Table:
    """One kind of state: the effect that puts it, the one that drops it, and what tells one thing from another."""

    def __init__(self, name: str, key: tuple[str, ...], put: type[Effect], drop: type[Effect] | None = None) -> None:
        self.name = name
        self.key = key
        self.put = put
        self.drop = drop
        self.columns = _columns(put)
        have = {column.name for column in self.columns}
        self.extra = tuple(column for column in (_columns(drop) if drop else ()) if column.name not in have)
        self.segment_columns = (Column("seq", "BIGINT"), Column("dropped", "BOOLEAN"), *self.columns, *self.extra)
        self.key_of: Callable[[Any], Any] = _key_reader(key)
        self._pack, self._unpack = _converters(put)

    def row(self, seq: int, effect: Effect) -> tuple[Any, ...]:
        """A segment's row for the effect."""
        if isinstance(effect, self.put):
            return (seq, False, *self._pack(effect), *(None for _ in self.extra))
        return (seq, True, *(getattr(effect, column.name, None) for column in (*self.columns, *self.extra)))

    def put_effect(self, row: Sequence[Any]) -> Effect:
        """The effect that puts what a row with `columns` says."""
        effect: Effect = self._unpack(row)
        return effect

    def segment_effect(self, row: Sequence[Any]) -> Effect:
        """The effect that a segment's row stands for."""
        if not row[1]:
            return self.put_effect(row[2 : 2 + len(self.columns)])
        assert self.drop is not None
        fields = dict(zip((column.name for column in (*self.columns, *self.extra)), row[2:], strict=True))
        return self.drop(*(fields[field] for field in self.drop.__struct_fields__))


def _key_reader(key: tuple[str, ...]) -> Callable[[Any], Any]:
    if len(key) == 1:
        (only,) = key
        return lambda effect: getattr(effect, only)
    return lambda effect: tuple(getattr(effect, field) for field in key)


def _converters(put: type[Any]) -> tuple[Callable[[Any], Sequence[Any]], Callable[[Sequence[Any]], Any]]:
    """How an effect becomes the values of its columns, and back."""
    hints = get_type_hints(put)
    fields = put.__struct_fields__
    if all(hints[field] is not Record and not _converted(hints[field]) for field in fields):
        return msgspec.structs.astuple, lambda row: put(*row)

    def pack(effect: Any) -> list[Any]:
        values: list[Any] = []
        for field in fields:
            value = getattr(effect, field)
            if hints[field] is Record:
                values += msgspec.structs.astuple(value)
            elif not _converted(hints[field]):
                values.append(value)
            elif isinstance(value, Struct):
                values.append(msgspec.json.encode(msgspec.structs.asdict(value)).decode())
            else:
                values.append(list(value))
        return values

    def unpack(row: Sequence[Any]) -> Any:
        values: list[Any] = []
        at = 0
        for field in fields:
            hint = hints[field]
            width = len(Record.__struct_fields__) if hint is Record else 1
            value = row[at]
            if hint is Record:
                value = Record(*row[at : at + width])
            elif get_origin(hint) is tuple:
                value = tuple(value)
            elif _converted(hint):
                value = hint(**msgspec.json.decode(value))
            values.append(value)
            at += width
        return put(*values)

    return pack, unpack


def _converted(hint: Any) -> bool:
    return get_origin(hint) is tuple or (isinstance(hint, type) and issubclass(hint, Struct) and hint is not Record)


QUEUES = Table("queues", ("qid",), fx.QueuePut, fx.QueueDropped)
GROUPS = Table("groups", ("qid", "group"), fx.GroupPut, fx.GroupDropped)
PARTITIONS = Table("partitions", ("pid",), fx.PartitionPut)
CURSORS = Table("cursors", ("pid", "group"), fx.CursorPut, fx.CursorDropped)
KV = Table("kv", ("ns", "key"), fx.KvPut, fx.KvDropped)
TIMERS = Table("timers", ("queue", "key"), fx.TimerPut, fx.TimerDropped)
DEAD_LETTERS = Table("dead_letters", ("id",), fx.DeadLetterPut, fx.DeadLetterDropped)
TRACES = Table("traces", ("id",), fx.TracePut)
STREAMS = Table("streams", ("id",), fx.StreamPut, fx.StreamDropped)
STREAM_ROWS = Table("stream_rows", ("state", "pid", "key"), fx.StreamRowPut, fx.StreamRowDropped)

TABLES = (QUEUES, GROUPS, PARTITIONS, CURSORS, KV, TIMERS, DEAD_LETTERS, TRACES, STREAMS, STREAM_ROWS)
"""In the order in which a snapshot is restored: what is named before what names it."""
_OF: dict[type, Table] = {kind: table for table in TABLES for kind in (table.put, table.drop) if kind is not None}


def table_of(effect: Effect) -> Table:
    """The table in which an effect other than `Appended` has its row."""
    return _OF[type(effect)]


MESSAGES = (Column("pid", "BIGINT"), *_columns(Record))
RUNS = tuple(Column(name, "BIGINT") for name in ("pid", "first", "last", "start", "first_ts", "last_ts"))
"""Offsets `first`..`last` of a partition lie in the rows `start`, `start + 1`, ... of `messages`."""
HELD = (Column("first", "BIGINT"), Column("last", "BIGINT"), Column("live", "BIGINT"))
"""In a snapshot: each segment behind it, and how many of its messages are still above their partition's log_start."""
RECENT = (
    Column("pid", "BIGINT"),
    Column("offset", "BIGINT"),
    Column("ts", "BIGINT"),
    Column("txn", "VARCHAR"),
    Column("id", "VARCHAR"),
)
"""In a snapshot: the index entries of messages that lie below their partition's log_start, and so may be in no segment
any more, but are still inside their queue's window."""
META = (
    Column("first", "BIGINT"),
    Column("last", "BIGINT"),
    Column("version", "BIGINT"),
    Column("pid", "BIGINT"),
    Column("qid", "BIGINT"),
    Column("instant", "BIGINT"),
    Column("journal_bytes", "BIGINT"),
    Column("rows", "VARCHAR"),
    Column("checksum", "VARCHAR"),
)
"""One row: the positions that the file covers, the counters and the instant at its end, the bytes of log that it came
from (0 for a segment that a merge left without state), how many rows each table has (JSON), and the sum of the hashes
of its rows by this DuckDB's `hash`."""

SEGMENT_TABLES: dict[str, tuple[Column, ...]] = {
    "messages": MESSAGES,
    "runs": RUNS,
    **{table.name: table.segment_columns for table in TABLES},
}
SNAPSHOT_TABLES: dict[str, tuple[Column, ...]] = {
    **{table.name: table.columns for table in TABLES},
    "segments": HELD,
    "recent": RECENT,
}

FINGERPRINT = zlib.crc32(
    repr(
        [
            (kind, [tuple(column) for column in columns])
            for kind, columns in (*SEGMENT_TABLES.items(), *SNAPSHOT_TABLES.items())
        ]
    ).encode()
)

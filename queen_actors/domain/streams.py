"""Streaming queries: registration, state rows and the cycle (`wire-messaging.md`, section 17).

The state rows are effects of their own rather than keys of a reserved namespace: a row belongs to its query and to a
partition, and goes with either by what snapshots do anyway for what belongs to a queue, where keys would have to be
found and dropped one by one; versions and lifetimes mean nothing to it; and no KV call, watch, count or SQL view has to
know of keys that are not its caller's.

A query belongs to the queue that it reads, and lives as long as that does; a delete of the group under which it reads
ends it too. So its state and its cursor always start afresh together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from queen_actors.limits import STREAM_STATE_BYTES
from queen_actors.values import NOTHING

from .cursor import STALE_LEASE, released
from .effects import CursorPut, StreamDropped, StreamPut, StreamRowDropped, StreamRowPut
from .partition import PushItem, PushOutcome

NewId = Callable[[], str]
StreamEffect = StreamPut | StreamDropped | StreamRowPut | StreamRowDropped


class Register(Struct, frozen=True):
    """`name` reads the queue `source`; `config_hash` is of the shape of its operators."""

    name: str
    source: str
    config_hash: str
    sink: str | None = None
    reset: bool = False


class Registered(Struct, frozen=True):
    """`fresh`: the name was not known; `reset`: there was a state, and it is wiped."""

    id: str
    name: str
    config_hash: str
    fresh: bool
    reset: bool


class Mismatch(Struct, frozen=True):
    """The name is registered with another shape or source, and no reset was asked for: a 409."""

    id: str
    name: str
    error: str


class StateRead(Struct, frozen=True):
    """Rows of one query and partition: of these keys (none: all), with this prefix, and with a `windowEnd` of at most
    `ripe_at` milliseconds."""

    query: str
    pid: int
    keys: tuple[str, ...] = ()
    prefix: str = ""
    ripe_at: float | None = None


class StateRow(Struct, frozen=True):
    """A row as a read gives it."""

    key: str
    value: bytes
    updated_at: int


class StateOp(Struct, frozen=True):
    """The key gets this value (JSON text), or (None) is deleted."""

    key: str
    value: bytes | None


class PositionAck(Struct, frozen=True):
    """The first `count` messages of the delivery are done. `status` other than completed gives the lease back."""

    txn: str
    lease_id: str
    status: str
    count: int


class Cycle(Struct, frozen=True):
    """One step of a query. A push whose partition is empty goes to one named as the source partition."""

    query: str
    pid: int
    group: str
    ops: tuple[StateOp, ...]
    pushes: tuple[PushItem, ...]
    ack: PositionAck | None
    release: bool


class Settled(Struct, frozen=True):
    """What a cycle's ack comes to: the cursor after it, how many messages it names, and whether the lease ended."""

    cursor: CursorPut
    count: int
    released: bool


class Cycled(Struct, frozen=True):
    """All of the cycle happened; `ack` None when it had none."""

    queue: str
    ops: int
    pushes: tuple[PushOutcome, ...]
    ack: Settled | None


class CycleRefused(Struct, frozen=True):
    """None of the cycle happened."""

    error: str
    reason: str


LEASE_LOST = CycleRefused(STALE_LEASE, "lease_lost")
NO_BATCH = CycleRefused("no leased batch", "no_batch")
BEYOND_BATCH = CycleRefused("position beyond leased batch", "beyond_batch")
REPEATED = CycleRefused("position already committed: this cycle was applied before", "already_committed")
STATE_MOVED = CycleRefused("a state row to delete is gone: what was read has changed, read it again", "state_moved")
STATE_FULL = CycleRefused(
    f"the state of one query and partition takes at most {STREAM_STATE_BYTES} bytes", "state_full"
)


# --- the state -------------------------------------------------------------------------------------------------------


class StreamState:
    """One query: its registration, and its rows by partition and key."""

    __slots__ = ("_sizes", "put", "rows")

    def __init__(self, put: StreamPut) -> None:
        self.put = put
        self.rows: dict[int, dict[str, StateRow]] = {}
        self._sizes: dict[int, int] = {}

    def size(self, pid: int) -> int:
        """The bytes of the partition's keys and values."""
        return self._sizes.get(pid, 0)

    def set(self, pid: int, row: StateRow) -> None:
        rows = self.rows.setdefault(pid, {})
        self._sizes[pid] = self.size(pid) + _size(row.key, row.value) - _row_size(rows.get(row.key))
        rows[row.key] = row

    def drop(self, pid: int, key: str) -> None:
        rows = self.rows.get(pid, {})
        row = rows.pop(key, None)
        if row is not None:
            self._sizes[pid] -= _row_size(row)
            if not rows:
                del self.rows[pid], self._sizes[pid]

    def wipe(self) -> None:
        self.rows.clear()
        self._sizes.clear()

    def read(self, asked: StateRead, plain: Callable[[StateRow], StateRow]) -> list[StateRow]:
        """The rows that were asked for, in the order of their keys; `plain` gives a row with its value in the clear."""
        rows = self.rows.get(asked.pid, {})
        keys = sorted(rows) if not asked.keys else sorted(rows.keys() & set(asked.keys))
        found = [plain(rows[key]) for key in keys if key.startswith(asked.prefix)]
        ripe_at = asked.ripe_at
        return found if ripe_at is None else [row for row in found if _ripe(row.value, ripe_at)]


class StreamTable:
    """Every query, by its id, and under what it is looked for."""

    def __init__(self) -> None:
        self._by_id: dict[str, StreamState] = {}
        self._by_name: dict[str, StreamState] = {}
        self._by_state: dict[str, StreamState] = {}
        self._by_queue: dict[int, dict[str, StreamState]] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, stream_id: str) -> StreamState | None:
        return self._by_id.get(stream_id)

    def named(self, name: str) -> StreamState | None:
        return self._by_name.get(name)

    def reading(self, qid: int) -> list[StreamState]:
        """The queries that read this queue."""
        return list(self._by_queue.get(qid, {}).values())

    def apply(self, effect: StreamEffect) -> None:
        """The only mutation, but for `queue_dropped`. A row of a state that is gone is none (recovery gives those)."""
        if isinstance(effect, StreamPut):
            self._put(effect)
        elif isinstance(effect, StreamDropped):
            self._remove(effect.id)
        else:
            stream = self._by_state.get(effect.state)
            if stream is None:
                return
            if isinstance(effect, StreamRowPut):
                stream.set(effect.pid, StateRow(effect.key, effect.value, effect.updated_at))
            else:
                stream.drop(effect.pid, effect.key)

    def queue_dropped(self, qid: int) -> None:
        for stream in self.reading(qid):
            self._remove(stream.put.id)

    def _put(self, put: StreamPut) -> None:
        stream = self._by_id.get(put.id)
        if stream is None:
            stream = StreamState(put)
        else:
            self._remove(put.id)
            if stream.put.state != put.state:
                stream.wipe()
            stream.put = put
        self._by_id[put.id] = self._by_name[put.name] = self._by_state[put.state] = stream
        self._by_queue.setdefault(put.qid, {})[put.id] = stream

    def _remove(self, stream_id: str) -> None:
        stream = self._by_id.pop(stream_id, None)
        if stream is None:
            return
        put = stream.put
        if self._by_name.get(put.name) is stream:
            del self._by_name[put.name]
        del self._by_state[put.state]
        readers = self._by_queue[put.qid]
        del readers[stream_id]
        if not readers:
            del self._by_queue[put.qid]


# --- the rules -------------------------------------------------------------------------------------------------------


def group_of(name: str) -> str:
    """The group as which a query reads, unless its worker names another."""
    return f"streams.{name}"


def register(
    known: StreamPut | None, command: Register, qid: int, now: int, new_id: NewId
) -> tuple[Registered | Mismatch, StreamPut | None]:
    """The reply, and the registration after it if that changes.

    A query is fenced by its shape and by its source, because its rows mean nothing to another shape and belong to
    partitions of that source. A reset keeps the id, so that workers of the query that started earlier go on.
    """
    if known is None:
        group = group_of(command.name)
        put = StreamPut(new_id(), qid, command.name, command.config_hash, command.sink, group, new_id(), now, now)
        return Registered(put.id, put.name, put.config_hash, True, False), put
    if not command.reset:
        if known.config_hash != command.config_hash:
            return Mismatch(known.id, known.name, "config_hash mismatch: the query has another shape"), None
        if known.qid != qid:
            return Mismatch(known.id, known.name, "source_queue mismatch: the query reads another queue"), None
    put = replace(known, qid=qid, config_hash=command.config_hash, sink=command.sink)
    if command.reset:
        put = replace(put, state=new_id())
    reply = Registered(put.id, put.name, put.config_hash, False, command.reset)
    return reply, None if put == known else replace(put, updated_at=now)


def without_group(known: StreamPut, registered: bool, now: int, new_id: NewId) -> StreamPut | StreamDropped:
    """The query whose group forgets where it stands: its state goes with that, and itself too unless the group stays
    `registered`."""
    return replace(known, state=new_id(), updated_at=now) if registered else StreamDropped(known.id, known.qid)


def settle(
    cursor: CursorPut | None, ack: PositionAck, release: bool, now: int, offset: int | None
) -> Settled | CycleRefused:
    """The positional ack of a cycle: by count, from the head of the delivery.

    `offset` is the place of the message that the ack names by its transactionId, None when that is not known: the
    count decides, but a name at or below the cursor tells a cycle that is sent again from a new one.
    """
    if ack.lease_id and (cursor is None or cursor.lease_id != ack.lease_id or cursor.lease_expires <= now):
        return LEASE_LOST
    if cursor is None or not cursor.lease_id:
        return NO_BATCH
    if ack.status != "completed":
        return Settled(released(cursor), 0, True)
    if release:
        done = replace(
            released(cursor),
            committed=cursor.batch_end,
            retries=0,
            marker=NOTHING,
            attempts=0,
            settled_lease=cursor.lease_id,
        )
        return Settled(done, ack.count, True)
    if ack.count <= 0:
        return Settled(cursor, 0, False)
    if offset is not None and offset <= cursor.committed:
        return REPEATED
    # The marker, not the cursor: retention may have moved that past messages that were delivered.
    upto = cursor.marker + ack.count - 1
    if upto > cursor.batch_end:
        return BEYOND_BATCH
    # One attempt, not one more: what is behind a denial makes progress, and must not run into the delivery limit.
    moved = replace(cursor, committed=max(upto, cursor.committed), marker=upto + 1, attempts=1)
    return Settled(moved, ack.count, False)


def change(
    stream: StreamState, pid: int, ops: Sequence[StateOp], now: int, *, strict: bool
) -> Sequence[StreamRowPut | StreamRowDropped] | CycleRefused:
    """The effects of a cycle's state ops; of several on one key the last one counts.

    `strict`, for a cycle without an ack, which no lease fences: each row that it deletes must be there, or else
    somebody (perhaps the same cycle, sent again) has taken it already, and what it pushes would be pushed twice.
    """
    rows, state = stream.rows.get(pid, {}), stream.put.state
    after: dict[str, bytes | None] = {}
    for op in ops:
        if strict and op.value is None and after.get(op.key, rows.get(op.key)) is None:
            return STATE_MOVED
        after[op.key] = op.value
    size = stream.size(pid)
    effects: list[StreamRowPut | StreamRowDropped] = []
    for key, value in after.items():
        size -= _row_size(rows.get(key))
        if value is not None:
            size += _size(key, value)
            effects.append(StreamRowPut(state, pid, key, value, now))
        elif key in rows:
            effects.append(StreamRowDropped(state, pid, key))
    return STATE_FULL if size > STREAM_STATE_BYTES and size > stream.size(pid) else effects


class _Window(Struct):
    windowEnd: float | None = None


_window = msgspec.json.Decoder(_Window)


def _ripe(value: bytes, at: float) -> bool:
    try:
        end = _window.decode(value).windowEnd
    except msgspec.DecodeError:
        return False
    return end is not None and end <= at


def _size(key: str, value: bytes) -> int:
    return len(key) + len(value)


def _row_size(row: StateRow | None) -> int:
    return 0 if row is None else _size(row.key, row.value)

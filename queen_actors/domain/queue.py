"""A queue: its options, labels, groups and dead letters (`wire-messaging.md` 5, 7.6, 10, 11)."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from queen_actors.errors import BadRequest
from queen_actors.values import QUEUE_MODE, parse_instant

from .effects import CursorPut, DeadLetterPut, GroupPut, QueueOptions, QueuePut, Record
from .names import Names
from .partition import PushOutcome


class Configure(Struct, frozen=True):
    """`wire-messaging.md` 5. `options` holds only what the caller named, by field name of `QueueOptions`;
    `replace`: what is not named goes back to the defaults of a configure."""

    queue: str
    options: dict[str, int | bool | str]
    namespace: str | None = None
    task: str | None = None
    replace: bool = False


CONFIGURE_DEFAULTS = QueueOptions(lease_seconds=300, retention_sink_hold_max_seconds=604_800)
"""What a configure starts from; `QueueOptions()` is what an implicit creation starts from."""


class PartitionView(Struct, frozen=True):
    """Counts of one partition; `pending` and `processing` are those of the group that is furthest behind."""

    pid: int
    name: str
    created_at: int
    total: int
    pending: int
    processing: int
    completed: int
    dead_letter: int
    last_activity: int | None
    oldest: int | None = None
    """When the oldest message that is kept was appended; None when there is none, or it has left the index window."""


class QueueView(Struct, frozen=True):
    """A queue as `resources/queues/:q` and `configure` show it."""

    qid: int
    uid: str
    name: str
    namespace: str
    task: str
    options: QueueOptions
    created_at: int
    partitions: tuple[PartitionView, ...] = ()


class DeadLetterView(Struct, frozen=True):
    """One dead letter with the names that it belongs to."""

    queue: str
    partition: str
    letter: DeadLetterPut


class GroupPosition(Struct, frozen=True):
    """How far one group is with one message."""

    name: str
    committed: int
    consumed: bool
    lease_expires_at: int | None


class MessageView(Struct, frozen=True):
    """One message as the message read shows it (14). `status`: pending, processing, completed or dead_letter."""

    queue: QueueView
    partition: str
    pid: int
    record: Record
    status: str
    error: str | None
    retry_count: int
    groups: tuple[GroupPosition, ...]
    queue_mode: bool


class Replayed(Struct, frozen=True):
    """A dead letter that was pushed again: where to, what the push came to, and whether the letter is gone with it
    (not when the push was a duplicate)."""

    queue: str
    partition: str
    letter: DeadLetterPut
    outcome: PushOutcome
    removed: bool


class GroupDeleted(Struct, frozen=True):
    """What a group delete removed: cursors, registrations, and of which queues."""

    partitions: int
    registrations: int
    queues: tuple[str, ...]


class QueueState:
    """One queue: the options row, its partitions by name, its groups' registrations, and its dead letters by id."""

    __slots__ = ("dead", "groups", "partitions", "put")

    def __init__(self, put: QueuePut, partitions: Names | None = None) -> None:
        self.put = put
        self.partitions = Names() if partitions is None else partitions
        self.groups: dict[str, GroupPut] = {}
        self.dead: dict[str, DeadLetterPut] = {}

    @property
    def name(self) -> str:
        return self.put.name

    @property
    def options(self) -> QueueOptions:
        return self.put.options

    def view(self, partitions: tuple[PartitionView, ...] = ()) -> QueueView:
        put = self.put
        return QueueView(put.qid, put.uid, put.name, put.namespace, put.task, put.options, put.created_at, partitions)

    def matches(self, namespace: str | None, task: str | None) -> bool:
        """Discovery (7.1): every label that was asked for is this queue's."""
        return (not namespace or self.put.namespace == namespace) and (not task or self.put.task == task)


def labels(name: str) -> tuple[str, str]:
    """A dotted name `ns.task.rest` gives namespace and task when a queue is created implicitly."""
    parts = name.split(".")
    return (parts[0], parts[1]) if len(parts) >= 3 else ("", "")


def implicit(qid: int, uid: str, name: str, now: int) -> QueuePut:
    """The queue that a push, a wildcard pop or a timer creates when nobody has configured it."""
    namespace, task = labels(name)
    return QueuePut(qid, name, uid, namespace, task, QueueOptions(), now)


def configured(command: Configure, known: QueuePut | None, qid: int, uid: str, now: int) -> QueuePut:
    """The queue after a configure: merged over what is known, or over the defaults (`replace`, or a new queue)."""
    base = CONFIGURE_DEFAULTS if known is None or command.replace else known.options
    options = replace(base, **command.options)
    if known is not None:
        keep = not command.replace
        namespace = command.namespace or (known.namespace if keep else "")
        task = command.task or (known.task if keep else "")
        return replace(known, options=options, namespace=namespace, task=task)
    implied = labels(command.queue)
    return QueuePut(qid, command.queue, uid, command.namespace or implied[0], command.task or implied[1], options, now)


_NEW = frozenset({"new", "new-only", "new_only", "newonly"})


def registration(
    qid: int, group: str, mode: str | None, start: str | None, now: int, default: str, conflation: bool = False
) -> GroupPut:
    """Where a group starts, decided at its first contact (7.6). Raises BadRequest on a `start` that is no instant."""
    if group == QUEUE_MODE:
        return GroupPut(qid, group, "all", 0, False, now)
    wanted = (mode or "").lower()
    if start and start.lower() != "now":
        try:
            since = parse_instant(start)
        except ValueError:
            raise BadRequest(f"subscriptionFrom is neither 'now' nor an ISO 8601 instant: {start[:64]!r}") from None
        return GroupPut(qid, group, "timestamp", since, conflation, now)
    if start or wanted in _NEW or (not wanted and default == "new"):
        return GroupPut(qid, group, "new", now, conflation, now)
    return GroupPut(qid, group, "all", 0, conflation, now)


def first_wanted(group: GroupPut) -> int | None:
    """The earliest `ts` that the group wants, or None for everything that is kept."""
    if group.mode == "all":
        return None
    return group.from_ts + 1 if group.mode == "new" else group.from_ts


def pending(next_offset: int, log_start: int, cursor: CursorPut | None) -> int:
    """How many messages the group has not finished; without a cursor, all that are kept (13)."""
    committed = log_start - 1 if cursor is None else max(cursor.committed, log_start - 1)
    return next_offset - 1 - committed

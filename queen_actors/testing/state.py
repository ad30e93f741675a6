"""A broker's whole state in plain values, to be compared: recovery must give back what was there (I14)."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from queen_actors.broker import Broker
from queen_actors.domain.effects import CursorPut


def state_of(broker: Broker) -> dict[str, Any]:
    """Everything that the log says, by kind; equal for equal states, whatever is in memory or packed away."""
    directory = broker._core.directory  # pyright: ignore[reportPrivateUsage]
    partitions: dict[int, Any] = {}
    for pid in sorted({*directory.active, *directory.packed}):
        state = directory.peek(pid)
        assert state is not None
        place = (state.qid, state.name, state.created_at, state.log_start, state.next_offset, state.last_ts)
        partitions[pid] = (*place, dict(sorted(state.cursors.items())))
    return {
        "counters": directory.counters,
        "names": dict(sorted(directory.queue_names.items())),
        "queues": {
            name: (queue.put, dict(queue.partitions.items()), dict(sorted(queue.groups.items())), dict(queue.dead))
            for name, queue in sorted(directory.queues.items())
        },
        "partitions": partitions,
        "kv": {ns: list(space.prefix("", None)) for ns, space in sorted(directory.namespaces.items())},
        "locks": {name: dict(sorted(lock.slots.items())) for name, lock in sorted(directory.locks.items())},
        "timers": {name: timers.page(None, 1 << 30).rows for name, timers in sorted(directory.timers.items())},
        "leases": {lease: sorted(holders) for lease, holders in sorted(directory.leases.items())},
        "traces": list(directory.traces),
    }


def is_whole(broker: Broker) -> bool:
    """Is the state that of the log? From a refusal by the disk until it was read again, it is not."""
    return not broker._core.log.reloading  # pyright: ignore[reportPrivateUsage]


def given_back(state: dict[str, Any]) -> dict[str, Any]:
    """The state as the next start makes it: leases that lived with connections of this one are given back."""
    gone = set[str]()
    partitions: dict[int, Any] = {}
    for pid, (*place, cursors) in state["partitions"].items():
        gone |= {cursor.lease_id for cursor in cursors.values() if cursor.session}
        partitions[pid] = (*place, {group: _without_session(cursor) for group, cursor in cursors.items()})
    leases = {lease: holders for lease, holders in state["leases"].items() if lease not in gone}
    return {**state, "partitions": partitions, "leases": leases}


def _without_session(cursor: CursorPut) -> CursorPut:
    if not cursor.session:
        return cursor
    return replace(cursor, lease_id="", lease_expires=0, batch_end=-1, session=False)

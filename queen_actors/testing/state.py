"""A broker's whole state in plain values, to be compared: recovery must give back what was there (I14)."""

from __future__ import annotations

from typing import Any

from queen_actors.broker import Broker


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

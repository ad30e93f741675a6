"""The names that load, reading and audit share, and what the load remembers over the lives of the process."""

from __future__ import annotations

import random
from typing import Any

from .history import History

WORKERS = 8
GROUPS = ("g1", "g2")
AUTO = "auto"
"""The group that commits at delivery, on `events`."""
TX = "tx"
"""The group of `work`, whose messages are acked in transactions and nowhere else."""

PARTITIONS: dict[str, tuple[str, ...]] = {
    "orders": ("a", "b", "c"),
    "events": ("p0", "p1", "p2", "p3"),
    "work": ("w0", "w1"),
    "results": ("r0", "r1"),
    "reports": ("l0#0", "l1#0", "sem#0", "sem#1", "sem#2"),
    "fired": ("t0", "t1"),
    "soon": ("s",),
}
"""Queues whose whole log is read back and judged."""
CONSUMED = ("orders", "events")
"""Queues that both groups drain."""
SHORT, SCRATCH, LATER = "short", "scratch", "later"
"""A queue with a retention of a second; one that is deleted again and again; timers that never become due."""

OPTIONS: dict[str, dict[str, Any]] = {
    "orders": {"leaseTime": 60, "retryLimit": 1},
    "events": {"leaseTime": 60, "retryLimit": 1000},
    SHORT: {"retentionEnabled": True, "retentionSeconds": 1},
}

COUNTERS = ("c0", "c1", "c2")
COUNTER_MIN, COUNTER_MAX = 0, 40
LOCKS = {"l0": 1, "l1": 1, "sem": 3}
SOCKET_LOCKS = {"line": 1, "seat": 2}
"""Locks that are waited for, and permits that live with a connection."""
SOCKET_WORKERS = (5, 6, 7)
"""Workers whose requests go over a WebSocket."""
DAWDLERS = (3, 4)
"""Workers that often ack late, also when the lease is over."""
SUBSCRIBERS = 100
"""The worker number of the first of those who use a WebSocket as nothing else can; their leases are renewed."""
PAIRS_NS, PAIRS = "pairs", ("p0", "p1")
"""Pairs of keys that anybody writes, always both at once and with one value, which names its write."""
NEVER = "never"
"""A key of `done` that does not exist: a transaction that checks for it is refused."""


def own_keys(worker: int) -> list[str]:
    """Keys that only this worker writes; those with an `e` expire."""
    return [*(f"w{worker}-k{number}" for number in range(5)), *(f"w{worker}-e{number}" for number in range(2))]


def pair_keys(pair: str) -> tuple[str, str]:
    """The two keys of a pair."""
    return f"{pair}-a", f"{pair}-b"


class World:
    """What the workers share. `serial` makes every name of theirs new."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.history = History()
        self.pushed: list[dict[str, Any]] = []
        self.versions: dict[tuple[str, str], int] = {}
        self.read_to: dict[tuple[str, str], int] = {}
        self.generation = 0
        self.tails: dict[str, dict[str, int]] = {}
        """The next offset of each partition, of each queue that is tailed."""
        self.watched: dict[tuple[str, str], int] = {}
        """The version behind which the watch of (namespace, prefix) goes on."""
        self.grace = 0.0
        """Seconds after a connection's end until nothing of it can be under way any more."""
        self._serial = 0

    def serial(self) -> int:
        self._serial += 1
        return self._serial

"""What the parts of the auditor share."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

FAR = 1 << 62
"""Later than everything."""


class Violation(AssertionError):
    """A promise was broken."""


def must(holds: object, promise: str, *facts: object) -> None:
    if not holds:
        raise Violation(f"{promise}: {' | '.join(map(repr, facts))}")


class Ledger:
    """What was delivered of the shared queues: by partition and offset, where each transaction id lies, and when the
    first delivery of each was answered (by the broker's clock)."""

    def __init__(self) -> None:
        self.log: dict[int, dict[int, tuple[Any, ...]]] = defaultdict(dict)
        self.by_txn: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self.seen_at: dict[tuple[int, int], int] = {}

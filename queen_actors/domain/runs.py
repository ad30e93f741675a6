"""A run of acks: all of them say `completed` of messages of one partition, for one group, under one lease. That is what
a consumer sends that has done its batch, and what most acks are; it is settled in one pass over the ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

from .cursor import Ack, AckOutcome, completed, leased
from .effects import CursorPut
from .partition import PartitionState


class AckRun(Sequence[Ack]):
    """The acks as a sequence, each made when it is asked for. `lease_id` is not empty."""

    __slots__ = ("group", "lease_id", "pid", "txns")

    def __init__(self, pid: int, group: str, lease_id: str, txns: list[str]) -> None:
        self.pid = pid
        self.group = group
        self.lease_id = lease_id
        self.txns = txns

    def __len__(self) -> int:
        return len(self.txns)

    @overload
    def __getitem__(self, place: int) -> Ack: ...
    @overload
    def __getitem__(self, place: slice) -> list[Ack]: ...
    def __getitem__(self, place: int | slice) -> Ack | list[Ack]:
        if isinstance(place, slice):
            return [self._ack(txn) for txn in self.txns[place]]
        return self._ack(self.txns[place])

    def __iter__(self) -> Iterator[Ack]:
        return map(self._ack, self.txns)

    def _ack(self, txn: str) -> Ack:
        return Ack(txn, self.pid, self.group, "completed", self.lease_id)


class RunSettled(Sequence[AckOutcome]):
    """The outcomes of a run whose every ack is a success. `released`: which of them ended the lease, None when it
    lives on."""

    __slots__ = ("released", "txns")

    def __init__(self, txns: list[str], released: int | None) -> None:
        self.txns = txns
        self.released = released

    def __len__(self) -> int:
        return len(self.txns)

    @overload
    def __getitem__(self, place: int) -> AckOutcome: ...
    @overload
    def __getitem__(self, place: slice) -> list[AckOutcome]: ...
    def __getitem__(self, place: int | slice) -> AckOutcome | list[AckOutcome]:
        if isinstance(place, slice):
            return [self._outcome(at) for at in range(len(self.txns))[place]]
        return self._outcome(range(len(self.txns))[place])

    def __iter__(self) -> Iterator[AckOutcome]:
        return map(self._outcome, range(len(self.txns)))

    def _outcome(self, place: int) -> AckOutcome:
        return AckOutcome(self.txns[place], True, lease_released=place == self.released)


def run_of(acks: Sequence[Ack]) -> AckRun | None:
    """These acks as a run, if they are one."""
    if type(acks) is AckRun:  # an `isinstance` of a Sequence costs as much as all of the rest
        return acks
    if not acks:
        return None
    first = acks[0]
    pid, group, lease_id = first.pid, first.group, first.lease_id
    if pid is None or not lease_id:
        return None
    for ack in acks:
        if ack.status != "completed" or ack.lease_id != lease_id or ack.pid != pid or ack.group != group:
            return None
    return AckRun(pid, group, lease_id, [ack.txn for ack in acks])


def settle_one(partition: PartitionState, ack: Ack, now: int) -> tuple[CursorPut, AckOutcome] | None:
    """`settle` of a run of one ack, as a transaction mostly has it: the cursor after it, and its outcome."""
    cursor, offset = partition.cursors.get(ack.group), partition.txns.get(ack.txn)
    if ack.status != "completed" or not ack.lease_id or cursor is None or offset is None:
        return None
    if cursor.lease_id != ack.lease_id or not leased(cursor, now):
        return None
    if not cursor.committed < offset <= cursor.batch_end or not partition.unique((ack.txn,), cursor.committed + 1):
        return None
    after, ended = completed(cursor, offset)
    return after, AckOutcome(ack.txn, True, lease_released=ended is not None)


def settle(partition: PartitionState, run: AckRun, now: int) -> tuple[CursorPut, int | None] | None:
    """The cursor after a run, and which of its acks ended the lease (None: none did), as `cursor.acknowledge` says.

    None when the rules have to be asked ack by ack: the lease is not that of the run or is over, or an id is not that
    of a message in the leased span and in memory, or perhaps of two.
    """
    cursor = partition.cursors.get(run.group)
    if cursor is None or cursor.lease_id != run.lease_id or not leased(cursor, now):
        return None
    if not partition.unique(run.txns, cursor.committed + 1):
        return None
    known = partition.txns
    try:
        offsets = [known[txn] for txn in run.txns]
    except KeyError:
        return None
    highest = max(offsets)
    if min(offsets) <= cursor.committed or highest > cursor.batch_end:
        return None
    after, ended = completed(cursor, highest)
    return after, None if ended is None else offsets.index(ended)

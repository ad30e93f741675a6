"""Flows: what is appended to a queue, put together once for every tail that is up to date.

A tail that has delivered everything that is durable keeps no position at all. When a commit makes messages durable,
all of these tails are told the same round of them, so that whoever writes it to many peers can spell it once. Who does
not wait for news at that moment, or has no credit for the round, falls behind, and reads by itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct

from queen_actors import limits
from queen_actors.domain.cursor import Claim
from queen_actors.domain.effects import Appended, Record
from queen_actors.domain.partition import PartitionState
from queen_actors.errors import QueenError

from .core import Core

ROUND_MESSAGES = 1_000


class Round(Struct, frozen=True, eq=False):
    """What one commit, or a part of it, brought: in offset order within each partition, each partition once."""

    claims: tuple[Claim, ...]
    messages: int
    size: int
    """Bytes of payload."""


class Follower(Protocol):
    """A tail as a flow sees it."""

    def tell(self, news: Round) -> bool:
        """Take the round, or say that it cannot: it is behind then."""
        ...

    def fall_behind(self, pid: int, offset: int) -> None:
        """It has to read the partition from this offset on, unless it is further behind already."""
        ...


class _Append(Struct, frozen=True):
    """An append that is durable once the log is, up to `position`."""

    position: int
    pid: int
    partition: str
    records: tuple[Record, ...]
    size: int


class Flow:
    """The appends of one queue, or of one partition of it."""

    def __init__(self, core: Core, queue: str) -> None:
        self.followers: dict[Follower, None] = {}
        """Who is to be told; all others are behind."""
        self.tails = 0
        """How many there are in all."""
        self._core = core
        self._queue = queue
        self._pending: deque[_Append] = deque()
        self._firsts: dict[int, int] | None = None

    def join(self, follower: Follower, behind: Mapping[int, int]) -> bool:
        """Let it follow, if what it is behind with (the next offset by partition) is just what is not durable yet."""
        if len(behind) > len(self._pending):
            return False
        if behind and self._firsts is None:
            self._firsts = {}
            for append in self._pending:
                self._firsts.setdefault(append.pid, append.records[0].offset)
        firsts = self._firsts or {}
        if any(firsts.get(pid) != offset for pid, offset in behind.items()):
            return False
        self.followers[follower] = None
        return True

    def appended(self, partition: PartitionState, effect: Appended) -> None:
        """Messages were appended, and are not durable yet."""
        size = sum([len(record.payload) for record in effect.records])
        position = self._core.log.position
        self._pending.append(_Append(position, effect.pid, partition.name, effect.records, size))
        self._firsts = None

    def committed(self, position: int) -> None:
        """The log is durable up to `position`: tell what is."""
        pending = self._pending
        while pending and pending[0].position <= position:
            taken = [pending.popleft()]
            messages, size = len(taken[0].records), taken[0].size
            while pending and pending[0].position <= position:
                messages += len(pending[0].records)
                size += pending[0].size
                if messages > ROUND_MESSAGES or size > limits.WS_EVENT_BYTES:
                    break
                taken.append(pending.popleft())
            self._firsts = None
            if self.followers:
                self._tell(taken)

    def _tell(self, taken: list[_Append]) -> None:
        news = self._round(taken)
        left = [one for one in self.followers if news is None or not one.tell(news)]
        for follower in left:
            del self.followers[follower]
            for append in (*taken, *self._pending):
                follower.fall_behind(append.pid, append.records[0].offset)

    def _round(self, taken: list[_Append]) -> Round | None:
        """None when the messages cannot be read: who asks for them is told why."""
        parts: dict[int, list[_Append]] = {}
        for append in taken:
            parts.setdefault(append.pid, []).append(append)
        try:
            claims = tuple(self._claim(part) for part in parts.values())
        except QueenError:
            return None
        return Round(claims, sum([len(claim.records) for claim in claims]), sum([append.size for append in taken]))

    def _claim(self, part: list[_Append]) -> Claim:
        records = part[0].records if len(part) == 1 else tuple(record for append in part for record in append.records)
        return Claim(self._queue, part[0].partition, part[0].pid, 1, self._core.cipher.plain_all(records))

    def reset(self) -> None:
        """The state was read again from the log: what was not durable was never there."""
        self._pending.clear()
        self._firsts = None

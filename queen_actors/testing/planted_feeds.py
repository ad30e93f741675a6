"""Planted bugs of retention, tails, watches, lines of locks and permits of connections: see `planted`."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from queen_actors.actors import locks, permits, retention, tail, watch
from queen_actors.domain.partition import PartitionState
from queen_actors.domain.watch import Change
from queen_actors.values import SECOND

from .planted_queues import BUGS
from .planting import bug, put

__all__ = ["BUGS"]

# Every one of these reaches into what is private, of classes that it knows to the last line
# pyright: reportPrivateUsage=false


# -- retention and tails -----------------------------------------------------------------------------------------------


@bug("retention takes what is almost as old as its limit", "I1")
def retention_early() -> None:
    start, sealed = retention.Retention._start, retention.Retention._sealed

    def hasty(self: retention.Retention, partition: PartitionState, now: int, told: Mapping[int, int]) -> int:
        return start(self, partition, now + SECOND, told)

    async def asked(self: retention.Retention, pid: int, now: int) -> dict[int, int]:
        return await sealed(self, pid, now + SECOND)

    sweep = retention.Retention._look_again

    async def soon(self: retention.Retention, pid: int, now: int) -> None:
        await sweep(self, pid, now)
        self._agenda.add(now + SECOND // 2, ("partition", str(pid)))

    put(retention.Retention, "_start", hasty)
    put(retention.Retention, "_sealed", asked)
    put(retention.Retention, "_look_again", soon)


@bug("retention of what is consumed takes what is not", "I1")
def retention_unconsumed() -> None:
    bounded = retention.bounded

    def heedless(rule: retention.Rule, partition: Any, at: int) -> int:
        return at if rule is retention.Rule.FINISHED else bounded(rule, partition, at)

    put(retention, "bounded", heedless)


@bug("a tail says nothing of what retention has removed before it", "I1")
def gap_not_told() -> None:
    read = tail.Tail._read

    async def silent(self: tail.Tail, pid: int, position: int, count: int, max_bytes: int) -> Any:
        _, records, after = await read(self, pid, position, count, max_bytes)
        return None, records, after

    put(tail.Tail, "_read", silent)


@bug("a tail that goes on leaves out the first message that it has not seen", "I1 I2")
def tail_skips_one() -> None:
    begin = tail.Tail._start

    async def beyond(self: tail.Tail, partition: Any) -> int:
        at = await begin(self, partition)
        return min(at + 1, partition.next_offset) if isinstance(self.terms.start, dict) else at

    put(tail.Tail, "_start", beyond)


# -- watches -----------------------------------------------------------------------------------------------------------


@bug("a watch tells what is not durable yet", "I7 I13")
def watch_before_durable() -> None:
    async def hasty(self: watch.Watch) -> Any:
        while not (self._taken or self._lost or self._replay or self._queue or self._latest):
            await self._news.park()
        await self._core.turn()
        return [self._take()]

    put(watch.Watch, "next", hasty)


@bug("a watcher that falls behind is told the first state of a key, not the latest", "I7")
def coalesced_loses_the_last() -> None:
    def first(self: watch.Watch, change: Change) -> None:
        self._latest.setdefault(change.key, change)

    put(watch.Watch, "_coalesce", first)


@bug("a watch that goes on is told only what changes from now on", "I1 I7")
def watch_forgets_the_gap() -> None:
    since = watch.History.since

    def nothing(self: watch.History, terms: Any, version: int, latest: int) -> list[Change] | None:
        return None if since(self, terms, version, latest) is None else []

    put(watch.History, "since", nothing)


# -- lines and permits -------------------------------------------------------------------------------------------------


@bug("who came last to the line of a lock is served first", "I6")
def waiter_overtakes() -> None:
    serve = locks.Locks._serve

    def reversed_line(self: locks.Locks, name: str) -> None:
        line = self._lines.get(name)
        if line:
            self._lines[name] = OrderedDict(reversed(line.items()))
        serve(self, name)

    put(locks.Locks, "_serve", reversed_line)


@bug("a permit that lives with a connection survives it", "I6")
def permit_survives() -> None:
    async def close(self: permits.Permits) -> None:
        self.stop()
        for key in self._held:
            self._locks.forget(self, key)
        self._held.clear()

    put(permits.Permits, "close", close)


@bug("a holder is not told that its permit has run out", "I6")
def loss_not_told() -> None:
    gone = permits.Permits.gone

    def quiet(self: permits.Permits, permit: permits.Permit, reason: str | None) -> None:
        gone(self, permit, None)

    put(permits.Permits, "gone", quiet)

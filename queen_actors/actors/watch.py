"""Watches: who is told of changes of keys as they happen (`websocket.md`, section 5).

Every change is kept for a while, whoever watches, so that a watch can go on where another one was cut off. A watcher
that does not keep up costs a bounded queue, then one place per key that changed, then nothing but a note that it has
to begin again with the current rows.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Literal

import trio

from queen_actors import limits
from queen_actors.domain.effects import Effect, KvDropped, KvPut
from queen_actors.domain.kv import KeyRow
from queen_actors.domain.watch import Change, Changes, Watched, WatchTerms
from queen_actors.errors import TooLarge
from queen_actors.values import MAX_INSTANT

from .core import Core

_COST = 200
"""Bytes of a change beside its key and value."""


class History:
    """The latest changes of all keys, in order: as many as `KV_HISTORY`, in `KV_HISTORY_BYTES`."""

    __slots__ = ("_changes", "_floor", "_size")

    def __init__(self) -> None:
        self._changes: deque[Change] = deque()
        self._size = 0
        self._floor = -1

    def begin(self, version: int) -> None:
        """Nothing is known of what happened up to `version`, the highest number given out so far."""
        self._changes.clear()
        self._size = 0
        self._floor = version if version else -1

    def add(self, change: Change) -> None:
        self._changes.append(change)
        self._size += _size_of(change)
        while len(self._changes) > limits.KV_HISTORY or self._size > limits.KV_HISTORY_BYTES:
            oldest = self._changes.popleft()
            self._size -= _size_of(oldest)
            self._floor = max(self._floor, oldest.moment)

    def since(self, terms: WatchTerms, version: int, latest: int) -> list[Change] | None:
        """Everything that `terms` ask for and that is later than `version`; None when that is not known any more, or
        when `version` is not one of this log (`latest` is the last)."""
        if not self._floor < version <= latest:
            return None
        found: list[Change] = []
        for change in reversed(self._changes):
            if change.moment < version:
                break
            if change.later_than(version) and terms.matches(change.ns, change.key):
                found.append(change)
        found.reverse()
        return found


def _size_of(change: Change) -> int:
    return _COST + len(change.key) + len(change.value or b"")


class Watch:
    """One watcher. `open` first, then `next` again and again, by one task; `close` at the end."""

    def __init__(self, core: Core, watches: Watches, terms: WatchTerms) -> None:
        self.terms = terms
        self._core = core
        self._watches = watches
        self._news = trio.lowlevel.ParkingLot()
        self._begin_again()

    def _begin_again(self, *, lost: bool = False) -> None:
        self._replay: deque[Change] = deque()
        self._queue: deque[Change] = deque()
        self._queued = 0
        self._latest: OrderedDict[str, Change] = OrderedDict()
        self._taken: Changes | None = None
        self._lost = lost

    async def open(self) -> Watched:
        """Begin; what changes after the state that is returned is told by `next`. Raises TooLarge when there are more
        rows than one watch may have."""
        core = self._core
        try:
            while True:
                await core.turn()
                reloads = core.log.reloads
                self._begin_again()
                try:
                    begun = self._begin()
                except TooLarge:
                    if await core.kept(reloads):
                        raise
                    continue
                self._watches.add(self)
                if await core.kept(reloads) and core.log.reloads == reloads:
                    return begun
        except BaseException:
            self.close()
            raise

    def _begin(self) -> Watched:
        latest = self._core.directory.counters.version
        if self.terms.from_version is None:
            return Watched(latest, self._rows())
        known = self._watches.history.since(self.terms, self.terms.from_version, latest)
        if known is None:
            self._lost = True
            self._rows()  # more of them than may be: it is better said now
        else:
            self._replay.extend(known)
        return Watched(latest, None)

    def _rows(self) -> tuple[KeyRow, ...]:
        """The live rows, in byte order of their keys."""
        space, terms, now = self._core.directory.namespace(self.terms.ns), self.terms, self._core.clock.now()
        if terms.key is not None:
            row = space.live(terms.key, now)
            return () if row is None else (KeyRow(terms.key, row),)
        found: list[KeyRow] = []
        size = 0
        for key, row in space.prefix(terms.prefix, None):
            if row.expires_at is None or row.expires_at > now:
                found.append(KeyRow(key, row))
                size += len(key) + len(row.value)
            if len(found) > limits.WATCH_ROWS or size > limits.WATCH_BYTES:
                raise TooLarge(
                    f"one watch has up to {limits.WATCH_ROWS} rows and {limits.WATCH_BYTES} bytes of them, and there "
                    "are more: watch a longer prefix",
                    code="watch_too_large",
                )
        return tuple(found)

    def close(self) -> None:
        """Nothing is noted for it any more."""
        self._watches.discard(self)
        self._begin_again()

    # -- what happens ----------------------------------------------------------------------------------------------

    def changed(self, change: Change) -> None:
        """A key that it watches changed."""
        if self._lost:
            pass  # the rows will say it
        elif self._latest:
            self._coalesce(change)
        else:
            self._queue.append(change)
            self._queued += _size_of(change)
            if len(self._queue) > limits.WATCH_QUEUE or self._queued > limits.WATCH_QUEUE_BYTES:
                for one in self._queue:
                    self._coalesce(one)
                self._queue.clear()
                self._queued = 0
        self._news.unpark_all()

    def _coalesce(self, change: Change) -> None:
        self._latest[change.key] = change
        self._latest.move_to_end(change.key)
        if len(self._latest) > limits.WATCH_ROWS:
            self._begin_again(lost=True)

    def reset(self) -> None:
        """The state was read again from the log: what is noted here may not be in it."""
        self._begin_again(lost=True)
        self._news.unpark_all()

    # -- news ------------------------------------------------------------------------------------------------------

    async def next(self) -> list[Changes]:
        """Wait for changes; what it returns is durable. Safe to cancel: nothing is missed for it.

        Raises TooLarge when the watcher must begin again and there are more rows than it may have.
        """
        while True:
            while not (self._taken or self._lost or self._replay or self._queue or self._latest):
                await self._news.park()
            await self._core.turn()
            self._taken = taken = self._taken or self._take()
            kept = await self._core.kept(self._core.log.reloads)
            if kept and self._taken is taken:  # else the state was read again meanwhile
                self._taken = None
                return [taken]

    def _take(self) -> Changes:
        if self._lost:
            self._begin_again()
            return Changes(coalesced=True, rows=self._rows(), version=self._core.directory.counters.version)
        if self._replay:
            return Changes(tuple(_batch(self._replay)))
        if self._queue:
            changes = _batch(self._queue)
            self._queued -= sum(map(_size_of, changes))
            return Changes(tuple(changes))
        latest = deque(self._latest.values())
        changes = _batch(latest)
        for change in changes:
            del self._latest[change.key]
        return Changes(tuple(changes), coalesced=True)


def _batch(changes: deque[Change]) -> list[Change]:
    """Take out as many as one event holds, at least one."""
    taken: list[Change] = []
    size = 0
    while changes and len(taken) < limits.WATCH_EVENT and size < limits.WS_EVENT_BYTES:
        taken.append(changes.popleft())
        size += _size_of(taken[-1])
    return taken


_Watching = dict[Watch, None]
"""A set that keeps its order, so that a run of the broker can be repeated."""


class Watches:
    """The watches of one broker, found by key, and by prefix through the lengths of the prefixes that are watched."""

    def __init__(self, core: Core) -> None:
        self.history = History()
        self._core = core
        self._keys: dict[tuple[str, str], _Watching] = {}
        self._prefixes: dict[str, dict[int, dict[str, _Watching]]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def watch(self, terms: WatchTerms) -> Watch:
        """A watch on these terms; nothing happens before it is opened."""
        return Watch(self._core, self, terms)

    def add(self, watch: Watch) -> None:
        terms = watch.terms
        if terms.key is not None:
            watching = self._keys.setdefault((terms.ns, terms.key), {})
        else:
            lengths = self._prefixes.setdefault(terms.ns, {})
            watching = lengths.setdefault(len(terms.prefix), {}).setdefault(terms.prefix, {})
        self._count += watch not in watching
        watching[watch] = None

    def discard(self, watch: Watch) -> None:
        terms = watch.terms
        if terms.key is not None:
            watching = self._keys.get((terms.ns, terms.key), {})
        else:
            watching = self._prefixes.get(terms.ns, {}).get(len(terms.prefix), {}).get(terms.prefix, {})
        if watch not in watching:
            return
        del watching[watch]
        self._count -= 1
        if watching:
            return
        if terms.key is not None:
            del self._keys[(terms.ns, terms.key)]
            return
        lengths = self._prefixes[terms.ns]
        del lengths[len(terms.prefix)][terms.prefix]
        if not lengths[len(terms.prefix)]:
            del lengths[len(terms.prefix)]
        if not lengths:
            del self._prefixes[terms.ns]

    def observe(self, effect: Effect) -> None:
        """An effect was applied: tell who watches its key."""
        if isinstance(effect, KvPut):
            directory = self._core.directory
            replaced, took = directory.replaced, effect.version
            if replaced is not None and replaced.version == took:  # a permit lives on
                took = directory.counters.version
            elif replaced is not None and (replaced.expires_at or MAX_INSTANT) <= directory.last_instant:
                # its lifetime was over, and nobody had swept it yet
                self._tell(Change("expire", effect.ns, effect.key, None, took - 1, None, took - 1))
            put = Change("put", effect.ns, effect.key, effect.value, effect.version, effect.expires_at, took)
            self._tell(put)
        elif isinstance(effect, KvDropped):
            op: Literal["expire", "delete"] = "expire" if effect.expired else "delete"
            self._tell(Change(op, effect.ns, effect.key, None, effect.version, None, effect.version))

    def _tell(self, change: Change) -> None:
        self.history.add(change)
        if not self._count:
            return
        watching = self._keys.get((change.ns, change.key))
        if watching is not None:
            for watch in watching:
                watch.changed(change)
        lengths = self._prefixes.get(change.ns)
        if lengths is not None:
            for length, prefixes in lengths.items():
                for watch in prefixes.get(change.key[:length], ()):
                    watch.changed(change)

    def reset(self) -> None:
        """The directory was read from the log: nothing is known of how it came about."""
        self.history.begin(self._core.directory.counters.version)
        for watching in self._keys.values():
            for watch in watching:
                watch.reset()
        for lengths in self._prefixes.values():
            for prefixes in lengths.values():
                for watching in prefixes.values():
                    for watch in watching:
                        watch.reset()

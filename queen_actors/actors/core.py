"""What every actor stands on: the directory, the log, turns, a clock and ids; and the draft of one step of the log."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from trio.lowlevel import checkpoint

from queen_actors import limits
from queen_actors.config import Settings
from queen_actors.domain import effects as fx
from queen_actors.domain.partition import PartitionState
from queen_actors.domain.queue import QueueState, implicit
from queen_actors.errors import StorageFull
from queen_actors.ports import Clock, Ids, Store

from .cipher import Cipher
from .directory import Directory
from .log import Log, only_looks
from .mailbox import Key, Turns

T = TypeVar("T")


def parts(things: Sequence[T]) -> Iterator[Sequence[T]]:
    """So many of them at a time as are decided and applied in one turn."""
    for start in range(0, len(things), limits.STEP_EFFECTS):
        yield things[start : start + limits.STEP_EFFECTS]


class Draft:
    """One step under decision: its one `now`, the numbers that it would take, and the effects so far.

    Nothing has happened until `Core.commit`; a draft that is dropped has changed nothing.
    """

    __slots__ = ("_core", "_partitions", "_queues", "effects", "now", "pid", "qid", "version")

    def __init__(self, core: Core) -> None:
        counters = core.directory.counters
        self._core = core
        self.now = core.clock.now()
        self.version = counters.version
        self.pid = counters.pid
        self.qid = counters.qid
        self.effects: list[fx.Effect] = []
        self._queues: dict[str, QueueState] | None = None
        self._partitions: dict[tuple[str, str], PartitionState] | None = None

    def add(self, effects: Iterable[fx.Effect]) -> None:
        self.effects.extend(effects)

    def queue(self, name: str) -> QueueState:
        """The queue, created implicitly in this step when there is none."""
        known = self._core.directory.queues.get(name)
        if known is not None:
            return known
        if self._queues is None:
            self._queues = {}
        made = self._queues.get(name)
        if made is None:
            self.qid += 1
            put = implicit(self.qid, self._core.ids.uuid(self.now), name, self.now)
            self.effects.append(put)
            made = self._queues[name] = QueueState(put)
        return made

    def partition(self, queue: QueueState, name: str) -> PartitionState:
        """The partition of that name, created in this step when there is none."""
        pid = queue.partitions.get(name)
        if pid is not None:
            known = self._core.directory.partition(pid)
            assert known is not None, "a queue's partitions exist"
            return known
        if self._partitions is None:
            self._partitions = {}
        made = self._partitions.get((queue.name, name))
        if made is None:
            self.pid += 1
            self.effects.append(fx.PartitionPut(self.pid, queue.put.qid, name, self.now, 0))
            made = PartitionState(self.pid, queue.put.qid, name, self.now)
            self._partitions[(queue.name, name)] = made
        return made


class Core:
    """Shared by all actors of one broker."""

    def __init__(self, store: Store, clock: Clock, ids: Ids, settings: Settings) -> None:
        self.store = store
        self.clock = clock
        self.ids = ids
        self.settings = settings
        self.cipher = Cipher(settings.encryption_key)
        self.directory = Directory()
        self.log = Log(store)
        self.turns = Turns()

    async def turn(self, keys: Iterable[Key] = ()) -> None:
        """Return when a command on these actors may be decided: nobody holds them, and the state is whole.

        Whoever awaits anything after this, and before its decision, asks again.
        """
        if not (self.log.reloading or self.turns.busy):
            return
        wanted = list(keys)
        while True:
            await self.log.reloaded()
            await self.turns.clear(wanted)
            if not self.log.reloading:
                return

    async def look(self, find: Callable[[], T], keys: Iterable[Key] = ()) -> T:
        """What `find` finds at once, when that is durable; see `seen`."""

        async def look() -> T:
            return find()

        return await self.seen(look, keys)

    async def seen(self, look: Callable[[], Awaitable[T]], keys: Iterable[Key] = ()) -> T:
        """What `look` finds, which may await on its way, when nobody holds these actors and it is durable. When the
        state was read again meanwhile, or has to be, it may have seen what was refused, or have stumbled over what is
        gone: it looks again."""
        only_looks()
        while True:
            await self.turn(keys)
            reloads = self.log.reloads
            try:
                found = await look()
            except Exception:
                if reloads == self.log.reloads:
                    raise
                continue  # whatever it was, it was of a state that is no more
            if await self.kept(reloads):
                return found

    async def between_parts(self, keys: Iterable[Key] = ()) -> None:
        """Let others be served before the next part of a command is decided, which does not wait for those before it to
        be durable, unless much waits for the disk. Raises as `turn` and `Log.durable`."""
        await checkpoint()
        if self.log.crowded:
            await self.log.durable_so_far()
        await self.turn(keys)

    async def kept(self, reloads: int) -> bool:
        """Return True when it is durable what was seen after the state had been read again so often; False when some of
        it was refused, or may have been: who only looks is not refused for that, but looks again after a `turn`."""
        if reloads != self.log.reloads:
            return False
        try:
            await self.log.durable()
        except StorageFull:
            if reloads == self.log.reloads:
                raise
            return False
        return True

    def commit(self, draft: Draft, *, urgent: bool = False) -> None:
        """Hand a decided step to the log and apply it, in one go; `log.durable()` tells when it survives a crash.

        A step without effects is no step, so that reads go on whatever the log says. Raises what `Log.admit` raises,
        and then nothing has happened.
        """
        if not draft.effects:
            return
        self.log.admit(urgent=urgent)
        counters = fx.Counters(draft.version, draft.pid, draft.qid)
        entry = fx.Entry(draft.now, counters, tuple(draft.effects))
        self.log.append(entry)
        self.directory.commit(entry)

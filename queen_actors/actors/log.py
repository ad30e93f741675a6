"""The log: one group commit at a time; a reply leaves when what it reveals is durable.

No timer and no pipelining: whatever was appended during the running commit is the next group.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from copy import copy
from functools import partial

import outcome
import trio
from msgspec import Struct
from trio.lowlevel import Abort, RaiseCancelT, checkpoint, current_task, reschedule, wait_task_rescheduled

from queen_actors import limits
from queen_actors.domain.effects import Appended, Entry, StreamRowPut
from queen_actors.errors import Overloaded, QueenError, StorageFailed, StorageFull, Unavailable
from queen_actors.ports import Store

decided: ContextVar[Callable[[bool], None] | None] = ContextVar("decided", default=None)
"""What a task leaves here is called when its command has been decided, and nothing but the disk is waited for: so a
connection's requests can take effect in order, and still share their commits."""


def tell_decided(*, parked: bool = False) -> None:
    """The command is decided and others may follow it; or it is `parked`: it has its place in a line, and nobody knows
    when its turn comes."""
    tell = decided.get()
    if tell is not None:
        tell(parked)


class Deferral:
    """What a task leaves in `deferral` whose calls are not to wait for the disk: they return when they are decided, and
    nothing of what they returned may be told to anybody before the log is durable up to `position` (`Log.settled`).

    `position` is 0 while there is nothing to wait for; `reloads` is how often the state had been read again by then,
    and `log` which log it is. `undo` takes back what is of no use to a caller who is gone; one who is `firm` must be
    told all the same. A call that waits leaves in `asked` when it came (an instant, and by Trio's clock): when what it
    decided is refused, it is to be made `again`, and waits on. So does one that only looks, and saw what was refused.
    """

    __slots__ = ("asked", "firm", "log", "position", "reloads", "undo")

    def __init__(self) -> None:
        self.log: Log | None = None
        self.position = 0
        self.reloads = 0
        self.undo: Callable[[], None] | None = None
        self.firm = False
        self.asked: tuple[int, float] | None = None

    def again(self) -> None:
        """What was decided is void; the call is made once more, as of when it came."""
        self.position = 0
        self.undo = None
        self.firm = False


deferral: ContextVar[Deferral | None] = ContextVar("deferral", default=None)


def only_looks() -> None:
    """The call changes nothing: when it saw what the disk refuses, it is to be made again."""
    later = deferral.get()
    if later is not None and later.asked is None:
        later.asked = (0, trio.current_time())


PROBE_SECONDS = 0.5
"""How often a full disk is asked whether there is room again."""


class LogStatistics(Struct, frozen=True):
    """`position`: how far the log is decided; `committed`: how far it is durable; `groups`: commits made."""

    position: int
    committed: int
    groups: int
    backlog: int
    waiting: int
    full: bool


class Log:
    """The one writer of the store. `append` never waits; `durable` does."""

    def __init__(self, store: Store, position: int = 0) -> None:
        self._store = store
        self.position = position
        self.committed = position
        self._pending: deque[tuple[Entry, int]] = deque()
        self._backlog = 0
        self._waiting: deque[tuple[int, trio.lowlevel.Task]] = deque()
        self._idle: trio.lowlevel.Task | None = None
        self._groups = 0
        self.full = False
        self.reloading = False
        self.reloads = 0
        """How often the state was read again: what was looked at before is void."""
        self._reloaded = trio.Event()
        self._failure: QueenError | None = None
        self._refusal = StorageFull("the disk is full")
        self._ends: list[int] = []
        """How far the log was durable at each refusal."""
        self._closing = False
        self._closed: QueenError | None = None
        """Nothing is taken in any more, and this is why; what was taken in is on its way still."""
        self._lookers: dict[Callable[[], bool], None] = {}
        self._looking: dict[Callable[[], bool], None] = {}
        """While they are called: those who have looked and will again, and those whose turn is still to come."""
        self.on_commit: list[Callable[[int], None]] = []
        """Told, with the position, each time that more is durable, before anybody's reply leaves."""

    def statistics(self) -> LogStatistics:
        return LogStatistics(self.position, self.committed, self._groups, self._backlog, len(self._waiting), self.full)

    @property
    def awaited(self) -> bool:
        """Does anybody wait for a commit?"""
        return bool(self._waiting or self._lookers)

    @property
    def crowded(self) -> bool:
        """Does much wait for the disk already, so that who has more should wait?"""
        return self._backlog > limits.LOG_BACKLOG_BYTES // 2

    @property
    def closing(self) -> bool:
        return self._closing

    def restart(self, position: int) -> None:
        """The state was read from the store, which is at `position`."""
        self.position = self.committed = position
        self.reloading = False
        self._reloaded.set()

    async def reloaded(self) -> None:
        """Return when the state is whole. Raises Unavailable when that takes longer than a call may, and what `fail`
        was told when it never will be."""
        with trio.move_on_after(limits.CALL_DEADLINE_SECONDS):
            while self.reloading and self._failure is None:
                await self._reloaded.wait()
        if self._failure is not None:
            raise copy(self._failure)
        if self.reloading:
            raise Unavailable("the state is being read again from the log; send the call again", code="retry")

    def admit(self, *, urgent: bool = False) -> None:
        """May a step be appended now? Raises StorageFull, StorageFailed, Unavailable when the log is closed or, unless
        it is `urgent` (the broker's own, which frees rather than adds), Overloaded."""
        refusal = self._failure or self._closed
        if refusal is not None:
            raise copy(refusal)
        if self.full:
            raise StorageFull("the disk is full: the write was refused; make room, the broker resumes by itself")
        if self._backlog > limits.LOG_BACKLOG_BYTES and not urgent:
            raise Overloaded("more is waiting for the disk than may wait; send the call again")

    def append(self, entry: Entry) -> int:
        """Put one decided step into the log; returns the position at which it will be durable."""
        size = 64
        for effect in entry.effects:
            if type(effect) is Appended:
                for record in effect.records:
                    size += 128 + len(record.payload)
            elif type(effect) is StreamRowPut:
                size += len(effect.value) + 256
            else:
                size += 256
        self.position += 1
        self._pending.append((entry, size))
        self._backlog += size
        self._rouse()
        return self.position

    async def durable(self, position: int | None = None, reloads: int | None = None) -> None:
        """Return when everything up to `position` (all that is decided by now) survives a crash. Who has awaited
        anything since it was decided says how often the state had been read again by then: what came later, and was
        refused perhaps, is not his affair.

        Raises StorageFull when it was refused, StorageFailed when its fate is not known. Always a checkpoint, but for
        a task with a `deferral`, which gets the position instead.
        """
        tell_decided()
        wanted = self.position if position is None else position
        if reloads is not None and wanted <= self.reached(reloads):
            await checkpoint()
            return
        if reloads is not None and reloads != self.reloads:
            raise copy(self._refusal)
        if self.reloading:
            raise Unavailable("the state is being read again from the log; send the call again", code="retry")
        if self._failure is not None:
            raise copy(self._failure)
        later = deferral.get()
        if later is not None:
            if later.position and later.reloads != self.reloads:  # what came before is of a numbering that is over
                before, later.position = later.position, 0
                if before > self.reached(later.reloads):
                    raise copy(self._refusal)
            if wanted > self.committed:
                if not later.position:
                    later.log, later.reloads = self, self.reloads
                later.position = max(later.position, wanted)
            return
        if wanted <= self.committed:
            await checkpoint()
            return
        waiter = (wanted, current_task())
        self._waiting.append(waiter)

        def abort(_: RaiseCancelT) -> Abort:
            self._waiting.remove(waiter)
            return Abort.SUCCEEDED

        await wait_task_rescheduled(abort)

    async def durable_so_far(self) -> None:
        """`durable` in the middle of a command, of which more is to be decided: nobody may follow it yet, and it waits
        in any case. Raises the same."""
        told, later = decided.set(None), deferral.set(None)
        try:
            await self.durable()
        finally:
            decided.reset(told)
            deferral.reset(later)

    def settled(self, position: int, reloads: int) -> bool:
        """Is what was deferred durable by now? Raises as `durable` does. It was deferred when the state had been read
        again `reloads` times: since then, positions that were refused may have been given out once more."""
        if position <= self.reached(reloads):
            return True
        if reloads != self.reloads:
            raise copy(self._refusal)
        if self._failure is not None:
            raise copy(self._failure)
        return False

    def look(self, look: Callable[[], bool]) -> None:
        """Call `look` each time that more is durable, or known never to be, for as long as it returns True: what is
        deferred can be told at once, without the turn of the event loop that waking a task takes. It must not raise."""
        self._lookers[look] = None

    def unlook(self, look: Callable[[], bool]) -> None:
        """Whoever looked is gone."""
        self._lookers.pop(look, None)
        self._looking.pop(look, None)

    def reached(self, reloads: int) -> int:
        """Up to where those positions are durable that were given out after so many reloads."""
        return self.committed if reloads == self.reloads else self._ends[reloads]

    async def run(self) -> None:
        """Commit group after group until `close`. A store that fails ends it with StorageFailed.

        Returns early with `full` set when the disk refused a group: the caller reloads the state, then runs it again.
        """
        while True:
            if not self._pending:
                if self._closed is not None:
                    return
                await self._park()
                continue
            group, size = self._take()
            try:
                await self._store.commit(group, partial(self._committed, len(group), size))
            except StorageFull as refusal:
                self._refuse(refusal)
                return
            except StorageFailed as failure:
                self.fail(failure)
                raise
            except Exception:  # a fault of ours in the store: what became of the group is not known
                self.fail(StorageFailed("a write failed, and what became of it is not known; the broker stops"))
                raise

    def _committed(self, entries: int, size: int) -> None:
        """A group is durable: whoever waited for it goes on, all in one go."""
        self._groups += 1
        self._backlog -= size
        self.committed += entries
        for tell in self.on_commit:
            tell(self.committed)
        self._let_look()
        self._wake()

    async def probe(self) -> None:
        """While the disk is full: ask with an empty group until one is taken, then let writes in again."""
        while self.full and not self._closing:
            await trio.sleep(PROBE_SECONDS)
            try:
                await self._store.commit(())
            except StorageFull:
                continue
            self.full = False

    async def close(self) -> None:
        """Commit what is pending, and what comes of that: a caller who is gone by then gives back what it claimed.
        Nothing is taken in after that, so that nothing is decided that the log does not have; `run` and `probe` end.

        Raises what `durable` raises; whoever waits still, or comes later, is told that the broker is closed.
        """
        closed = Unavailable("the broker is closed", code="closed")
        self._closing = True
        try:
            await self.durable()
            await checkpoint()
            self._closed = closed
            await self.durable()
        finally:
            self._closed = closed
            self.fail(closed)
            self._rouse()

    def fail(self, failure: QueenError) -> None:
        """Nothing more is known to become durable: everybody who waits learns it, and so does whoever comes."""
        self._failure = failure
        self._reloaded.set()
        self._drop(failure)

    def _let_look(self) -> None:
        self._looking, self._lookers = self._lookers, {}  # which holds those who come meanwhile: see `awaited`
        for look in list(self._looking):
            if look in self._looking and not look():
                self._looking.pop(look, None)
        self._lookers |= self._looking
        self._looking = {}

    def _take(self) -> tuple[list[Entry], int]:
        group: list[Entry] = []
        total = 0
        while self._pending and len(group) < limits.GROUP_ENTRIES and total < limits.GROUP_BYTES:
            entry, size = self._pending.popleft()
            group.append(entry)
            total += size
        return group, total

    def _wake(self) -> None:
        """Tasks park in the order of their positions, or nearly: `durable` is called right after `append`."""
        later: deque[tuple[int, trio.lowlevel.Task]] = deque()
        for waiter in self._waiting:
            if waiter[0] <= self.committed:
                reschedule(waiter[1])
            else:
                later.append(waiter)
        self._waiting = later

    def _refuse(self, refusal: StorageFull) -> None:
        """Known not to be committed, and so is all that was decided on top of it, but the state holds it: nobody may
        look at that until it has been read again (`restart`)."""
        self.full = True
        self._refusal = refusal
        self._ends.append(self.committed)
        self.reloading = True
        self.reloads += 1
        self._reloaded = trio.Event()
        self._pending.clear()
        self._backlog = 0
        self.position = self.committed
        self._drop(refusal)

    def _drop(self, error: QueenError) -> None:
        self._let_look()
        for _, task in self._waiting:
            reschedule(task, outcome.Error(copy(error)))
        self._waiting.clear()

    def _rouse(self) -> None:
        if self._idle is not None:
            reschedule(self._idle)
            self._idle = None

    async def _park(self) -> None:
        def abort(_: RaiseCancelT) -> Abort:
            self._idle = None
            return Abort.SUCCEEDED

        self._idle = current_task()
        await wait_task_rescheduled(abort)

"""Locks and semaphores: calls on their actors, the lines of those who wait, and word to those who hold.

Each op is independent of the others of its call (wire 3.1). Who waits for a permit stands in one line for each name,
first come, first served (`websocket.md` 6): a permit that becomes free goes to the line before anybody else who asks,
however that one asks. Two who ask with different limits do not wait for each other's slots.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

import trio
from msgspec import Struct

from queen_actors import limits
from queen_actors.domain import locks as rules
from queen_actors.domain.effects import KvDropped, KvPut
from queen_actors.domain.kv import Row
from queen_actors.domain.locks import Acquire, GetLock, LockOp, LockResult, Release, Renew, permit_key
from queen_actors.errors import Overloaded, QueenError, StorageFull, Unavailable
from queen_actors.values import LOCKS_NAMESPACE, SECOND

from .core import Core, Draft
from .log import tell_decided
from .permits import Permit, Permits, holding

RETRY_SECONDS = 0.5
"""After a grant or a return that the log did not take."""


class _Waiter:
    """One place in a line, which `number` gives. `done` is set with `result` when the permit is granted, which the log
    has at `position` (see `Log.durable` for `reloads`); without it when the wait is over before its time."""

    __slots__ = ("done", "number", "op", "permits", "position", "reloads", "result", "session")

    def __init__(self, number: int, op: Acquire, permits: Permits | None, session: bool) -> None:
        self.number = number
        self.op = op
        self.permits = permits
        self.session = session
        self.done = trio.Event()
        self.result: LockResult | None = None
        self.position = 0
        self.reloads = 0


class _End(Struct):
    """A permit that a connection holds no more, from this position of the log on; no reason: it gave it back."""

    position: int
    permits: Permits
    permit: Permit
    reason: str | None


class _Assured(Struct, eq=False):
    """Callers without a connection have asked again for a permit that their owner has: `asking` of them wait for their
    answer, and one that is `told` relies on it. `unwanted`: whom it was granted to wants it no more."""

    token: int
    asking: int = 0
    told: bool = False
    unwanted: Permit | None = None


_Line = OrderedDict[_Waiter, None]


class Locks:
    """The locks of one broker."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._lines: dict[str, _Line] = {}
        self._unsorted: set[str] = set()
        """Names with a line to which some came back, who are to stand where they stood."""
        self._waited = 0
        """How many have asked for a place in a line."""
        self._holders: dict[str, dict[Permits, None]] = {}
        """Who is to be told of the permit of this key."""
        self._assured: dict[str, _Assured] = {}
        """Permits by key of which callers without a connection are told that they hold them already."""
        self._moved: dict[str, None] = {}
        """Names with a line whose permits have changed."""
        self._unclaimed: list[Permit] = []
        """Permits whose holder is gone, and that could not be given back at once."""
        self._ends: deque[_End] = deque()
        """What is not durable yet, and so not told."""
        self._work = trio.lowlevel.ParkingLot()
        self._renewed: set[str] = set()  # of the step that is being committed: keys renewed by their holders' token,
        self._released: set[str] = set()  # and keys given back
        self._caller: Permits | None = None
        self._closed = False
        core.log.on_commit.append(self._tell)

    # -- calls -----------------------------------------------------------------------------------------------------

    async def call(self, ops: Sequence[LockOp]) -> list[LockResult]:
        """Each op's verdict, in order; the names of a call differ, so no op sees another's effect."""
        core = self._core
        keys = [("lock", op.name) for op in ops] if core.turns.busy else ()
        if all(isinstance(op, GetLock) for op in ops):
            return await core.look(lambda: self._step(ops, None), keys)
        await core.turn(keys)
        results = self._step(ops, holding.get())
        with self._telling(ops, results, holding.get()):
            await core.log.durable()
        return results

    async def acquire(self, op: Acquire, wait: int, *, session: bool = False) -> LockResult:
        """As an `acquire` of `call`, but it stands in line for up to `wait` microseconds. The lifetime starts at the
        grant. With `session` the permit lives with the caller's `Permits`. Whoever is cancelled holds nothing.

        Raises Overloaded when too many wait for this lock, and Unavailable when the wait has to end early although the
        lock is free (the broker stops, and its disk has been full).
        """
        core = self._core
        await core.turn([("lock", op.name)])
        deadline = trio.current_time() + wait / SECOND
        (result,) = self._step([op], holding.get(), session=session)
        self._waited += 1
        waiter = _Waiter(self._waited, op, holding.get(), session)
        if not result.ok and wait > 0:
            if len(self._lines.get(op.name, ())) >= limits.LOCK_WAITERS:
                raise Overloaded(f"{limits.LOCK_WAITERS} wait for the lock {op.name!r} already")
            result = await self._wait(waiter, deadline)
        while True:
            try:
                with self._telling([op], [result], waiter.permits):
                    if waiter.result is None:
                        await core.log.durable()
                    else:
                        await core.log.durable(waiter.position, waiter.reloads)
                return result
            except StorageFull:
                if waiter.result is None or trio.current_time() >= deadline:
                    raise
            except trio.Cancelled:
                self._unwanted(op, result, holding.get())
                raise
            waiter.done, waiter.result = trio.Event(), None  # it waits on, whosever write it was that was refused
            self._moved[op.name] = None
            self._work.unpark_all()
            result = await self._wait(waiter, deadline)

    async def _wait(self, waiter: _Waiter, deadline: float) -> LockResult:
        core, op = self._core, waiter.op
        if not self._is_over(waiter):
            self._enter(waiter)
            tell_decided(parked=True)
            try:
                with trio.move_on_at(deadline):
                    await waiter.done.wait()
            except trio.Cancelled:
                self._unwanted(op, waiter.result, waiter.permits)
                raise
            finally:
                self._leave(waiter)
        if waiter.result is not None:
            return waiter.result
        await core.turn([("lock", op.name)])
        if self._is_over(waiter):  # the caller is going: whoever is next shall have it
            state, version = core.directory.lock(op.name), core.directory.counters.version
            verdict = rules.decide(op, state, core.clock.now(), version, core.ids.choose).result
            if not verdict.ok:
                return verdict
            await core.log.durable()
            raise Unavailable("the wait ends early, and nobody holds the lock; send the call again", code="retry")
        return self._step([op], waiter.permits, session=waiter.session)[0]

    def _is_over(self, waiter: _Waiter) -> bool:
        return self._closed or (waiter.permits is not None and waiter.permits.stopped)

    def _enter(self, waiter: _Waiter) -> None:
        """Stand in line, from the next `_serve` on at the place of before if it has stood there."""
        name = waiter.op.name
        line = self._lines.setdefault(name, OrderedDict())
        if line and next(reversed(line)).number > waiter.number:
            self._unsorted.add(name)  # many may come back at once: they are sorted once
        line[waiter] = None

    def _leave(self, waiter: _Waiter) -> None:
        line = self._lines.get(waiter.op.name)
        if line is not None:
            line.pop(waiter, None)
            if not line:
                del self._lines[waiter.op.name]
                self._unsorted.discard(waiter.op.name)

    def _step(self, ops: Sequence[LockOp], permits: Permits | None, *, session: bool = False) -> list[LockResult]:
        """Decide and commit, in one go; those who wait for what is free now come first."""
        core = self._core
        for op in ops:
            if isinstance(op, Acquire):
                self._serve(op.name)
        draft = Draft(core)
        results: list[LockResult] = []
        for op in ops:
            decision = rules.decide(op, core.directory.lock(op.name), draft.now, draft.version, core.ids.choose)
            draft.version += decision.versions
            draft.effects.extend(decision.effects)
            results.append(decision.result)
        done = [(op, result) for op, result in zip(ops, results, strict=True) if result.ok]
        with self._changing(permits, done):
            core.commit(draft)
        for op, result in done:
            if isinstance(op, Acquire):
                self._granted(op, result, permits, session)
        return results

    @contextmanager
    def _changing(self, permits: Permits | None, done: Sequence[tuple[LockOp, LockResult]]) -> Generator[None]:
        """While the step is applied: which permits are renewed, and which are given back by whom."""
        self._caller = permits
        self._renewed = {permit_key(op.name, result.slot) for op, result in done if isinstance(op, Renew)}
        self._released = {permit_key(op.name, result.slot) for op, result in done if isinstance(op, Release)}
        try:
            yield
        finally:
            self._renewed, self._released, self._caller = set(), set(), None

    def _granted(self, op: Acquire, result: LockResult, permits: Permits | None, session: bool) -> None:
        """The caller has a permit: if it is a connection, it hears of it from now on."""
        if permits is None:
            if result.already:
                key = permit_key(op.name, result.slot)
                assured = self._assured.get(key)
                if assured is None or assured.token != result.token:
                    assured = self._assured[key] = _Assured(result.token)
                assured.asking += 1
        else:
            permit = _permit(op, result, session)
            permits.add(permit)
            self._holders.setdefault(permit.key, {})[permits] = None

    @contextmanager
    def _telling(
        self, ops: Sequence[LockOp], results: Sequence[LockResult], permits: Permits | None
    ) -> Generator[None]:
        """While the answer waits for the log. Whoever is not told, relies on nothing."""
        told = False
        try:
            yield
            told = True
        finally:
            if permits is None:
                for op, result in zip(ops, results, strict=True):
                    if isinstance(op, Acquire) and result.ok and result.already:
                        self._answered(permit_key(op.name, result.slot), result.token, told)

    def _answered(self, key: str, token: int, told: bool) -> None:
        """One who asked for a permit that its owner has already was told so, or went away before."""
        assured = self._assured.get(key)
        if assured is None or assured.token != token:
            return  # it is over
        assured.asking -= 1
        assured.told |= told
        if not assured.told and not assured.asking:
            del self._assured[key]
            if assured.unwanted is not None:
                self._unclaimed.append(assured.unwanted)
                self._work.unpark_all()

    # -- lines -----------------------------------------------------------------------------------------------------

    def _serve(self, name: str) -> None:
        """Grant what is free to those who wait, in their order. Nobody holds the lock's actor. Raises what
        `Core.commit` raises."""
        line = self._lines.get(name)
        if not line:
            return
        if name in self._unsorted:
            self._unsorted.discard(name)
            for waiter in sorted(line, key=lambda other: other.number):
                line.move_to_end(waiter)
        core = self._core
        state = core.directory.lock(name)
        owners = {holder.owner for holder in state.holders(core.clock.now())}
        full = 0  # a limit below which no slot is free
        for waiter in list(line):
            if waiter.done.is_set():
                continue  # it is leaving
            if waiter.op.limit <= full and (waiter.op.owner is None or waiter.op.owner not in owners):
                continue
            draft = Draft(core)
            state = core.directory.lock(name)
            decision = rules.decide(waiter.op, state, draft.now, draft.version, core.ids.choose)
            if not decision.result.ok:
                full = max(full, waiter.op.limit)
                continue
            draft.version += decision.versions
            draft.add(decision.effects)
            core.commit(draft)
            owners.add(waiter.op.owner)
            waiter.result, waiter.position, waiter.reloads = decision.result, core.log.position, core.log.reloads
            self._granted(waiter.op, decision.result, waiter.permits, waiter.session)
            self._leave(waiter)
            waiter.done.set()

    async def run(self) -> None:
        """Serve the lines when permits become free, and give back what nobody came for; for ever."""
        while True:
            while not (self._moved or self._unclaimed):
                await self._work.park()
            try:
                if self._unclaimed:
                    await self.give_back([self._unclaimed.pop()])
                    continue
                name = next(iter(self._moved))
                await self._core.turn([("lock", name)])
                self._moved.pop(name, None)
                self._serve(name)
            except QueenError:  # the log takes nothing now
                self._moved.update(dict.fromkeys(self._lines))
                await trio.sleep(RETRY_SECONDS)

    def stop(self, permits: Permits) -> None:
        """Its connection is closing: those who wait for it wait no more."""
        for line in self._lines.values():
            for waiter in line:
                if waiter.permits is permits:
                    waiter.done.set()

    def close(self) -> None:
        """The broker is about to stop: everybody who waits is answered now."""
        self._closed = True
        for line in self._lines.values():
            for waiter in line:
                waiter.done.set()

    # -- permits that live with a connection -----------------------------------------------------------------------

    def permits(self, lost: Callable[[Permit, str], None]) -> Permits:
        """The permits of one connection; `lost(permit, reason)` is told of each that it loses."""
        return Permits(self, self._core.clock, lost)

    async def extend(self, permits: Sequence[Permit]) -> None:
        """Their holder is alive: the lifetimes start again. The tokens stay, so that guards hold."""
        core = self._core
        await core.turn([("lock", permit.name) for permit in permits])
        draft = Draft(core)
        for permit in permits:
            effect = rules.extended(core.directory.lock(permit.name), permit.slot, permit.token, draft.now, permit.ttl)
            if effect is not None:
                draft.effects.append(effect)
        core.commit(draft)
        await core.log.durable()

    async def give_back(self, permits: Sequence[Permit]) -> None:
        """Their holder is gone. A permit that another caller holds too, as the same owner, stays."""
        core = self._core
        try:
            await core.turn([("lock", permit.name) for permit in permits])
            draft = Draft(core)
            for permit in permits:
                if not self._shared(permit):
                    op = Release(permit.name, permit.token, permit.slot)
                    state = core.directory.lock(permit.name)
                    decision = rules.decide(op, state, draft.now, draft.version, core.ids.choose)
                    draft.version += decision.versions
                    draft.add(decision.effects)
            core.commit(draft, urgent=True)
            await core.log.durable()
        except BaseException:
            self._unclaimed += permits
            self._work.unpark_all()
            raise

    def _shared(self, permit: Permit) -> bool:
        assured = self._assured.get(permit.key)
        if not permit.session and assured is not None and assured.token == permit.token:
            assured.unwanted = permit
            return True  # one that lives with a connection ends with it, whoever else asked
        return any(others.holds(permit) for others in self._holders.get(permit.key, {}))

    def _unwanted(self, op: Acquire, result: LockResult | None, permits: Permits | None) -> None:
        """The caller was cancelled: what it was granted is given back by `run`, when the actor is free."""
        if result is None or not result.ok or result.already:
            return
        permit = _permit(op, result, False)
        if permits is not None and permits.holds(permit):
            self.forget(permits, permit.key)
            permits.gone(permits.leave(permit.key), None)
        self._unclaimed.append(permit)
        self._work.unpark_all()

    def forget(self, permits: Permits, key: str) -> None:
        """It wants to hear nothing of this permit any more."""
        holders = self._holders.get(key)
        if holders is not None:
            holders.pop(permits, None)
            if not holders:
                del self._holders[key]

    # -- what happens ----------------------------------------------------------------------------------------------

    def observe(self, effect: KvPut | KvDropped) -> None:
        """An effect was applied: was a permit lost by whom, and is one free for whom?"""
        if effect.ns != LOCKS_NAMESPACE:
            return
        assured = self._assured.get(effect.key) if self._assured else None
        if assured is not None and (isinstance(effect, KvDropped) or effect.version != assured.token):
            del self._assured[effect.key]
        if effect.key in self._holders:
            self._told(effect)
        if self._lines:
            name, _, _ = effect.key.rpartition("#")
            if name in self._lines:
                self._moved[name] = None
                self._work.unpark_all()

    def _told(self, effect: KvPut | KvDropped) -> None:
        directory, key = self._core.directory, effect.key
        before = directory.replaced
        over = before is None or (before.expires_at is not None and before.expires_at <= directory.last_instant)
        if isinstance(effect, KvPut) and not over:
            assert before is not None
            if key in self._renewed or before.version == effect.version:
                for permits in self._holders[key]:
                    permits.renewed(key, effect.version, effect.expires_at)
                return
        if isinstance(effect, KvPut):
            reason = "expired" if over else "taken"
        else:
            reason = "expired" if effect.expired else "deleted"
        for permits in self._holders.pop(key):
            own = key in self._released and permits is self._caller
            self._ends.append(_End(self._core.log.position, permits, permits.leave(key), None if own else reason))
        self._tell(self._core.log.committed)

    def _tell(self, committed: int) -> None:
        """Tell holders what they have lost, as far as it is durable by now."""
        ends = self._ends
        while ends and ends[0].position <= committed:
            end = ends.popleft()
            end.permits.gone(end.permit, end.reason)

    def _row(self, key: str, now: int) -> Row | None:
        """The permit of this key, if it lives."""
        name, _, slot = key.rpartition("#")
        return self._core.directory.lock(name).live(int(slot), now)

    def reset(self) -> None:
        """The directory was read again from the log: permits that were not written never were, and what was not durable
        took none away."""
        now = self._core.clock.now()
        for end in reversed(self._ends):  # of several ends of a key the first one's permit is back
            if end.permits.back(end.permit):
                self._holders.setdefault(end.permit.key, {})[end.permits] = None
        self._ends.clear()
        for key, assured in list(self._assured.items()):
            row = self._row(key, now)
            if row is None or row.version != assured.token:
                del self._assured[key]
        for key in list(self._holders):
            row = self._row(key, now)
            for permits in list(self._holders[key]):
                if row is None or permits.granted(key) > self._core.directory.counters.version:
                    self.forget(permits, key)  # over; or its grant was refused, and the row is another's
                    over = row is None and permits.over(key, now)
                    permits.gone(permits.leave(key), "expired" if over else None)
                else:
                    permits.renewed(key, row.version, row.expires_at)
        self._moved.update(dict.fromkeys(self._lines))
        self._work.unpark_all()


def _permit(op: Acquire, result: LockResult, session: bool) -> Permit:
    return Permit(op.name, result.slot, result.token, op.ttl, result.expires_at, session, result.token)

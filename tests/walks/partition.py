"""A partition and its groups against a model that is written from the wire's words alone (I2, I3, I12, I14)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from queen_actors.actors.queue import claimable_at
from queen_actors.domain import cursor as rules
from queen_actors.domain.cursor import Ack, Signal
from queen_actors.domain.effects import (
    Appended,
    CursorDropped,
    CursorPut,
    Effect,
    PartitionPut,
    QueueOptions,
    Record,
    SealedRun,
)
from queen_actors.domain.partition import PartitionState, PushItem
from queen_actors.domain.runs import AckRun, RunSettled, settle, settle_one

from .kv import Pick

SECOND = 1_000_000
DEDUP = 30 * SECOND
INDEX = 60 * SECOND  # how long the index remembers, at the least
TTL = 10 * SECOND
GROUPS = ("", "g", "c")  # "c" conflates
WORDS = ("completed", "failed", "retry", "dlq")
TXNS = tuple("abcdefgh")


@dataclass(frozen=True)
class Pace:
    """How fast one life goes: the more within a window, the more an index has to hold."""

    waits: tuple[int, ...]
    """Seconds."""
    sizes: tuple[int, ...]
    """Messages of a push."""
    txns: tuple[str | None, ...]
    """None: the message's own id."""
    named: tuple[str | int, ...]
    """How an ack names a message: by its transaction id, or by its distance from the cursor."""


_PLACES = (*range(-2, 6), *range(6))
_MANY = (*(f"t{number}" for number in range(40)), *(f"faca597c-5e82-4d53-acbf-{n:012x}" for n in range(40)))
CALM = Pace((1, 3, 10, 31, 70), (1, 1, 2, 6), (*TXNS, None), (*TXNS, *_PLACES))
BUSY = Pace((1, 1, 1, 3), (2, 6, 20), (*_MANY, None, None), (*_MANY[30:50], *_PLACES))


class GroupModel:
    """What the wire says about one group in one partition: 7.4 and 8.2."""

    def __init__(self, committed: int) -> None:
        self.committed = committed
        self.lease: str | None = None
        self.expires = 0
        self.end = -1
        self.retries = 0
        self.attempts: dict[int, int] = {}  # by first offset; only the last one is remembered
        self.settled: str | None = None

    def free(self) -> None:
        self.lease, self.expires, self.end = None, 0, -1

    def finish(self, committed: int, retries: int = 0) -> None:
        if committed >= self.end:
            self.settled = self.lease
        self.free()
        self.committed, self.retries, self.attempts = committed, retries, {}

    def ack(
        self, named: list[tuple[str, int | None]], lease: str, now: int, limit: int, dlq: bool
    ) -> tuple[list[str], set[int]]:
        """Outcomes as marks, and what is dead. `named`: (word, offset)."""
        if lease and (lease != self.lease or now >= self.expires):
            if lease == self.settled:
                return ["+L" if o is not None and o <= self.committed else "-" for _, o in named], set()
            return ["-"] * len(named), set()
        had, committed, end = self.lease is not None, self.committed, self.end
        inside = {o for _, o in named if o is not None and o > committed and (not had or o <= end)}
        words = {o: {w for w, other in named if other == o} for o in inside}
        grave = {o: next(w for w in ("dlq", "failed", "retry", "completed") if w in words[o]) for o in inside}
        if not had:
            grave = {o: "completed" for o in inside if "completed" in words[o]}
        dead: set[int] = set()
        ended = self._settle(grave, limit, dlq, dead) if grave else None
        marks: list[str] = []
        for word, o in named:
            if o in inside and (had or word == "completed"):
                first = o == ended
                ended = None if first else ended
                marks.append("+" + "L" * first + "D" * (o in dead and word != "completed"))
            else:
                marks.append("+N" if word == "completed" and o is not None and o <= committed else "-")
        return marks, dead

    def _settle(self, grave: dict[int, str], limit: int, dlq: bool, dead: set[int]) -> int | None:
        """Apply the table; which offset ended the lease, if it ended."""
        done = [o for o, word in grave.items() if word == "completed"]
        signals = sorted(set(grave) - set(done))
        if not signals:
            if self.lease is None:
                self.committed, self.attempts = max(done), {}
                return None
            if max(done) == self.end:
                self.finish(self.end)
                return max(done)
            count = next(iter(self.attempts.values()))
            self.committed, self.attempts = max(done), {max(done) + 1: count}
            return None
        head, spent = signals[0], self.retries >= limit
        if grave[head] == "retry" or (grave[head] == "failed" and not spent):
            self.retries += grave[head] == "failed"
            self.committed = max([o for o in done if o < head], default=self.committed)
            self.free()
            return head
        if dlq or grave[head] == "dlq":
            dead.add(head)
        at, kept = head, 0
        while at < self.end:
            word = grave.get(at + 1, "silent")
            if word == "retry" or (word == "silent" and not any(o > at + 1 for o in done)):
                break
            if word == "failed" and not spent:
                kept = self.retries
                break
            if word == "dlq" or (word == "failed" and dlq):
                dead.add(at + 1)
            at += 1
        self.finish(at, kept)
        return head


class Pair:
    """Every step is made on both sides, and must come to the same.

    `whole`: whether each decision is also seen to have changed nothing. `asked` is what the latest step was.
    """

    every = 10
    """After how many steps of a walk the whole state is compared."""

    def __init__(self) -> None:
        self.whole = True
        self.asked: list[Any] = []
        self.pace: Pace | None = None
        self.now = 1_000 * SECOND
        self.options = QueueOptions(retry_limit=2, delivery_limit=2)
        self.state = PartitionState(7, 1, "p", self.now)
        self.effects: list[Effect] = [PartitionPut(7, 1, "p", self.now, 0)]
        self.log: list[Record] = []
        self.start = 0
        self.sealed = 0
        self.groups: dict[str, GroupModel] = {}
        self.leases = ["", "nobody"]
        self.ids = 0
        self.seen: set[str] = set()

    def new(self, word: str) -> str:
        self.ids += 1
        return f"{word}{self.ids}"

    def apply(self, effect: Effect) -> None:
        self.effects.append(effect)
        apply_to(self.state, effect)

    def cursor(self, group: str) -> CursorPut:
        return self.state.cursors.get(group) or rules.fresh(7, group, self.state.log_start - 1)

    def model(self, group: str) -> GroupModel:
        return self.groups.setdefault(group, GroupModel(self.start - 1))

    # -- what may happen -----------------------------------------------------------------------------------------------

    def push(self, pick: Pick) -> None:
        assert self.pace is not None
        txns = [pick(self.pace.txns) for _ in range(pick(self.pace.sizes))]
        self.now += 1
        known = self.recent(DEDUP)  # retention does not shorten the window
        before = self.snapshot() if self.whole else None
        items = [PushItem("q", "p", b"%d" % place, txn=txn) for place, txn in enumerate(txns)]
        outcomes, records = self.state.push(items, self.now, DEDUP, lambda _: self.new("id"))
        assert before is None or self.snapshot() == before, "a decision changes nothing"
        if records:
            self.apply(Appended(7, records))
        assert [record.offset for record in records] == list(range(len(self.log), len(self.log) + len(records)))
        self.log.extend(records)
        fresh = iter(records)
        for txn, outcome in zip(txns, outcomes, strict=True):
            if txn in known:
                first = known[txn]
                self.seen.add("duplicate")
                assert (outcome.status, outcome.offset, outcome.message_id) == ("duplicate", first.offset, first.id)
            else:
                record = next(fresh)
                assert outcome.status == "queued"
                assert (record.offset, record.ts, record.txn) == (outcome.offset, self.now, txn or outcome.message_id)
                known[record.txn] = record
        assert next(fresh, None) is None

    def recent(self, window: int) -> dict[str, Record]:
        """The latest message of each transaction id that was appended so short ago."""
        found: dict[str, Record] = {}
        for record in reversed(self.log):
            if record.ts < self.now - window:
                break
            found.setdefault(record.txn, record)
        return found

    def wait(self, pick: Pick) -> None:
        assert self.pace is not None
        self.now += pick(self.pace.waits) * SECOND

    def configure(self, pick: Pick) -> None:
        delay, window, dlq = pick((0, 0, 5)), pick((0, 0, 4)), pick((True, False))
        self.options = replace(
            self.options,
            delayed_processing_seconds=delay,
            window_buffer_seconds=window,
            dead_letter_queue=dlq,
            dlq_after_max_retries=dlq,
        )

    def claim(self, pick: Pick) -> None:
        group, batch, auto = pick(GROUPS), pick((1, 2, 6)), pick((False, False, False, True))
        self.now += 1
        model, options = self.model(group), self.options
        head = max(model.committed + 1, self.start)
        end, delay = len(self.log), options.delayed_processing_seconds * SECOND
        while end > head and self.log[end - 1].ts + delay > self.now:
            end -= 1
        quiet = not self.log or self.log[-1].ts + options.window_buffer_seconds * SECOND <= self.now
        expected = [] if model.lease and self.now < model.expires else self.log[head : min(end, head + batch)]
        expected = expected if quiet else []
        cursor = self.cursor(group)
        at = claimable_at(self.state, cursor, options, self.now)
        assert (at is not None and at <= self.now) == bool(expected)
        if not expected:
            return
        if group == "c":
            expected = self.log[end - 1 : end]
        assert self.read(expected[0].offset, len(expected)) == expected
        lease = "" if auto else self.new("lease")
        taken = rules.take(
            cursor,
            expected,
            now=self.now,
            lease_id=lease,
            lifetime=TTL,
            delivery_limit=options.delivery_limit,
            session=False,
            auto_ack=auto,
            span=head if group == "c" else None,
        )
        self.apply(taken.cursor)
        self.seen.add("autoAck" if auto else "claim")
        if auto:
            assert (taken.attempt, list(taken.records)) == (1, expected)
            model.free()
            model.committed, model.retries, model.attempts = expected[-1].offset, 0, {}
            return
        self.leases.append(lease)
        attempt = model.attempts.get(head, 0) + 1
        if attempt > options.delivery_limit:
            self.seen.add("limit")
            assert list(taken.dead) == expected[:1]
            model.committed, model.retries, attempt = expected[0].offset, 0, 1
            head, expected = model.committed + 1, expected[1:]
        assert (taken.attempt, list(taken.records)) == (attempt, expected)
        model.free()
        model.attempts = {head: attempt} if expected else {}
        if expected:
            model.lease, model.expires, model.end = lease, self.now + TTL, expected[-1].offset

    def ack(self, pick: Pick) -> None:
        """Messages are named by transaction id, or by their distance from the cursor."""
        assert self.pace is not None
        self.now += 1
        group = pick(GROUPS)
        said = pick((WORDS, WORDS, WORDS[:1]))
        words = [(pick(said), pick(self.pace.named)) for _ in range(pick((1, 2, 3, 6)))]
        if group not in self.groups or group not in self.state.cursors:
            return
        model, cursor = self.model(group), self.state.cursors[group]
        lease = (
            model.lease
            if model.lease and pick((True, True, True, False))
            else pick((*self.leases[-3:], model.settled or "", ""))
        )
        end = model.end if model.lease else len(self.log)
        leased: dict[str, list[int]] = {}
        for record in self.log[max(model.committed + 1, self.start) : end + 1]:
            leased.setdefault(record.txn, []).append(record.offset)
        places = [model.committed + 1 + what if isinstance(what, int) else -1 for _, what in words]
        txns = [
            self.log[place].txn if 0 <= place < len(self.log) else str(what)
            for place, (_, what) in zip(places, words, strict=True)
        ]
        at_hand = leased if max(model.committed + 1, self.start) < self.state.base else {}  # as `Acks` reads them
        found = self.state.resolve(txns, cursor.committed, cursor.batch_end if cursor.lease_id else None, at_hand)
        for place, txn in enumerate(txns):
            offset, nth = found[place], txns[:place].count(txn)
            if txn in leased:
                self.seen.add("twice" if len(leased[txn]) > 1 else "once")
                assert offset == [*leased[txn], *leased[txn][-1:] * nth][nth], "the nth ack means the nth message"
            else:
                assert offset is None or self.log[offset].txn == txn
        named = [(word, offset) for (word, _), offset in zip(words, found, strict=True)]
        entries = [(txn, Signal(word, offset)) for txn, (word, offset) in zip(txns, named, strict=True)]
        files = self.options.dead_letter_queue
        marks, dead = model.ack(named, lease or "", self.now, self.options.retry_limit, files)
        acked = rules.acknowledge(cursor, entries, lease or "", self.now, self.options)
        assert [_marks(outcome) for outcome in acked.outcomes] == marks
        assert {offset for offset, _ in acked.dead} == dead
        if {word for word, _ in words} == {"completed"}:
            self.in_one_pass(group, txns, lease or "", acked)
        if dead:
            self.seen.add("dead")
        if acked.cursor is not cursor:
            self.seen.add("partial" if acked.cursor.lease_id else "settled")
            self.apply(acked.cursor)
        elif lease and acked.outcomes[0].lease_released:
            self.seen.add("repeat")
        elif acked.outcomes[0].error == rules.STALE_LEASE:
            self.seen.add("stale")

    def in_one_pass(self, group: str, txns: list[str], lease: str, expected: rules.Acked) -> None:
        """Where acks are settled without being looked at one by one, they come to the same."""
        run = settle(self.state, AckRun(7, group, lease, txns), self.now) if lease else None
        one = settle_one(self.state, Ack(txns[0], 7, group, "completed", lease), self.now) if len(txns) == 1 else None
        if run is not None:
            self.seen.add("run")
            assert (run[0], tuple(RunSettled(txns, run[1]))) == (expected.cursor, expected.outcomes)
        if one is not None:
            assert (one[0], (one[1],)) == (expected.cursor, expected.outcomes)

    def extend(self, pick: Pick) -> None:
        self.now += 1
        group, seconds = pick(GROUPS), pick((1, 60))
        model = self.model(group)
        lease = model.lease if model.lease and pick((True, False)) else pick(self.leases)
        after = rules.extended(self.cursor(group), lease, self.now, seconds * SECOND)
        live = bool(lease) and lease == model.lease and self.now < model.expires
        assert (after is not None) == live
        if after is not None:
            model.expires = max(model.expires, self.now + seconds * SECOND)
            self.apply(after)

    def seek(self, pick: Pick) -> None:
        group, to = pick(GROUPS), pick(range(40))
        committed = max(min(to, len(self.log)), self.start) - 1
        self.apply(rules.sought(self.cursor(group), committed))
        self.groups[group] = GroupModel(committed)

    def give_back(self, pick: Pick) -> None:
        """A release, or a claim that could not be handed over, which counts as no delivery."""
        group, delivered = pick(GROUPS), pick((True, False))
        model, cursor = self.model(group), self.cursor(group)
        if not cursor.lease_id:
            return
        self.apply(rules.released(cursor) if delivered else rules.withdrawn(cursor))
        model.free()
        if not delivered:
            model.attempts = {head: max(count - 1, 0) for head, count in model.attempts.items()}

    def forget_group(self, pick: Pick) -> None:
        group = pick(GROUPS)
        self.apply(CursorDropped(7, group))
        self.groups.pop(group, None)

    def seal(self, pick: Pick) -> None:
        """The store has sealed the oldest messages, and memory lets go of them."""
        last = min(self.sealed + pick((1, 5, 100)), len(self.log)) - 1
        self.state.evict(last)
        self.sealed = max(self.sealed, last + 1)

    def prune(self, pick: Pick) -> None:
        self.state.prune(self.now - INDEX)

    def passivate(self, pick: Pick) -> None:
        if self.state.idle:
            self.seen.add("packed")
            self.state = PartitionState.unpack(7, self.state.pack())

    def retain(self, pick: Pick) -> None:
        """Retention moves the start; a cursor that is behind it is moved on, and a lease of what is gone is settled."""
        start = min(self.start + pick((1, 3)), len(self.log))
        self.start = start
        self.apply(PartitionPut(7, 1, "p", self.state.created_at, start))
        for group in self.groups.keys() - self.state.cursors.keys():
            self.groups[group] = GroupModel(start - 1)
        for group, cursor in list(self.state.cursors.items()):
            if cursor.committed >= start - 1:
                continue
            self.apply(rules.overtaken(cursor, start - 1))
            model = self.model(group)
            if model.lease and model.end < start:
                self.seen.add("overtaken")
                model.finish(start - 1)
                continue
            model.committed = start - 1
            if model.lease:
                model.attempts = {start: next(iter(model.attempts.values()))}

    # -- what must hold -----------------------------------------------------------------------------------------------

    def read(self, first: int, count: int) -> list[Record]:
        """As a reader does: from memory, and what is not there from the segments."""
        found: list[Record] = []
        while len(found) < count:
            at = first + len(found)
            step = self.state.in_memory(at, count - len(found), 1 << 40)
            if step is None:
                assert at < self.sealed, "what is not sealed is in memory"
                step = tuple(self.log[at : min(self.sealed, first + count)])
            found.extend(step)
        return found

    def snapshot(self) -> tuple[Any, ...]:
        state = self.state
        return (
            state.next_offset,
            state.log_start,
            state.last_ts,
            dict(state.cursors),
            list(state.tail),
            state.base,
            list(state.index),
        )

    def compare(self) -> None:
        assert self.state.next_offset == len(self.log)
        assert self.state.log_start == self.start
        for group, model in self.groups.items():
            cursor = self.cursor(group)
            assert cursor.committed == model.committed or cursor.committed < self.start
            assert (cursor.lease_id or None, cursor.lease_expires) == (model.lease, model.expires)
            assert cursor.retries == model.retries
        for txn, record in self.recent(INDEX).items():
            known = self.state.known(txn)
            assert record.offset < self.start or (known is not None and known.offset == record.offset)

    def step(self, pick: Pick) -> None:
        """One step of a walk."""
        if self.pace is None:
            self.pace = pick((CALM, CALM, BUSY))
        action = pick(_ACTIONS)
        self.asked = [action.__name__]
        action(self, pick)

    def rebuild(self) -> None:
        """Recovery is identity: from the effects alone, and with all that is sealed told as runs."""
        again = PartitionState(7, 1, "p", self.state.created_at)
        for effect in self.effects:
            apply_to(again, effect)
        sealed = PartitionState(7, 1, "p", self.state.created_at, self.start)
        if self.log:
            runs = SealedRun(7, 0, len(self.log) - 1, self.log[0].ts, self.log[-1].ts)
            sealed.restore_run(runs)
        for effect in self.effects:
            if not isinstance(effect, Appended | PartitionPut):
                apply_to(sealed, effect)
        for state in (again, sealed):
            assert (state.next_offset, state.log_start, state.last_ts) == (
                self.state.next_offset,
                self.state.log_start,
                self.state.last_ts,
            )
            assert state.cursors == self.state.cursors


def apply_to(state: PartitionState, effect: Effect) -> None:
    if isinstance(effect, Appended):
        state.append(effect.records)
    elif isinstance(effect, PartitionPut):
        state.cut(effect.log_start)
    elif isinstance(effect, CursorPut):
        state.put_cursor(effect)
    elif isinstance(effect, CursorDropped):
        state.drop_cursor(effect.group)


def _marks(outcome: rules.AckOutcome) -> str:
    if not outcome.success:
        return "-"
    return "+" + "N" * outcome.noop + "L" * outcome.lease_released + "D" * outcome.dlq


_ACTIONS: tuple[Callable[[Pair, Pick], None], ...] = (
    *(Pair.push,) * 6,
    *(Pair.claim,) * 8,
    *(Pair.ack,) * 8,
    *(Pair.wait, Pair.extend, Pair.seal) * 2,
    Pair.configure,
    Pair.seek,
    Pair.give_back,
    Pair.forget_group,
    Pair.prune,
    Pair.passivate,
    Pair.retain,
)

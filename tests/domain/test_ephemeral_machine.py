"""An ephemeral queue against a model that keeps a plain list for each group."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from queen_actors.domain.ephemeral import EphemeralQueue, Options

PARTITIONS = ("a", "b")
GROUPS = ("g", "h")
LEASE, TTL, RETRIES, LENGTH = 10, 25, 2, 6


class Owed:
    """One message as one group sees it."""

    def __init__(self, number: int, partition: str) -> None:
        self.number = number
        self.partition = partition
        self.attempts = 0
        self.held_until: int | None = None


class EphemeralMachine(RuleBasedStateMachine):
    """Messages of one byte; each group's list holds what it has not finished, oldest first."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1
        self.next = 0
        self.queue = EphemeralQueue("q", self.now)
        self.queue.options = replace(
            Options(), lease=LEASE, ttl=TTL, retry_limit=RETRIES, max_length=LENGTH, drop_oldest=True
        )
        self.there: dict[int, tuple[str, int]] = {}
        """Partition and time of every message that somebody owes, or that waits for a first group."""
        self.groups: dict[str, list[Owed]] = {}

    def settle(self) -> None:
        self.queue.settle(self.now)
        for number, (_, at) in list(self.there.items()):
            if at + TTL <= self.now:
                self.lose(number)
        for group in self.groups:
            for owed in list(self.groups[group]):
                if owed.held_until is not None and owed.held_until <= self.now:
                    self.give_back(group, owed)

    def lose(self, number: int) -> None:
        del self.there[number]
        for group in self.groups:
            self.groups[group] = [owed for owed in self.groups[group] if owed.number != number]

    def give_back(self, group: str, owed: Owed) -> bool:
        owed.held_until = None
        owed.attempts += 1
        if owed.attempts > RETRIES:
            self.finish(group, owed)
            return False
        return True

    def finish(self, group: str, owed: Owed) -> None:
        self.groups[group].remove(owed)
        if not any(other.number == owed.number for rest in self.groups.values() for other in rest):
            del self.there[owed.number]

    def waiting(self, group: str, partition: str | None) -> list[Owed]:
        rest = self.groups.get(group, [])
        return [o for o in rest if o.held_until is None and partition in (None, o.partition)]

    @rule(partition=st.sampled_from(PARTITIONS), count=st.integers(1, LENGTH))
    def push(self, partition: str, count: int) -> None:
        self.settle()
        excess = self.queue.excess([1] * count)
        assert excess == max(0, len(self.there) + count - LENGTH)
        for number in list(self.there)[:excess]:
            self.lose(number)
        self.queue.push(partition, [b"x"] * count, self.next, self.now, excess)
        for number in range(self.next, self.next + count):
            self.there[number] = (partition, self.now)
            for rest in self.groups.values():
                rest.append(Owed(number, partition))
        self.next += count

    @rule(
        group=st.sampled_from(GROUPS),
        partition=st.sampled_from((None, *PARTITIONS)),
        batch=st.integers(1, 4),
        auto_ack=st.booleans(),
    )
    def pop(self, group: str, partition: str | None, batch: int, auto_ack: bool) -> None:
        self.settle()
        self.queue.join(group)
        if group not in self.groups:
            self.groups[group] = [Owed(number, name) for number, (name, _) in self.there.items()]
        waiting = self.waiting(group, partition)
        taken = self.queue.take(group, partition, batch, self.now, auto_ack)
        assert len(taken) == min(batch, len(waiting))
        for name in PARTITIONS:
            mine = [delivery for delivery in taken if delivery.partition == name]
            expected = [owed for owed in waiting if owed.partition == name][: len(mine)]
            assert [(d.number, d.attempts) for d in mine] == [(o.number, o.attempts) for o in expected]
            for owed in expected:
                if auto_ack:
                    self.finish(group, owed)
                else:
                    owed.held_until = self.now + LEASE

    @precondition(lambda self: self.groups)
    @rule(data=st.data(), completed=st.booleans())
    def ack(self, data: st.DataObject, completed: bool) -> None:
        self.settle()
        group = data.draw(st.sampled_from(sorted(self.groups)))
        number = data.draw(st.integers(0, max(self.next, 1)))
        partition = data.draw(st.sampled_from(PARTITIONS))
        held = [
            owed
            for owed in self.groups[group]
            if (owed.number, owed.partition) == (number, partition) and owed.held_until is not None
        ]
        outcome = self.queue.ack(group, partition, number, completed)
        if not held:
            assert outcome == "unknown"
        elif completed:
            assert outcome == "acked"
            self.finish(group, held[0])
        else:
            assert outcome == ("redelivered" if self.give_back(group, held[0]) else "acked")

    @rule(time=st.integers(1, 12))
    def pass_time(self, time: int) -> None:
        self.now += time
        self.settle()

    @rule()
    def reset(self) -> None:
        self.settle()
        assert self.queue.reset() == len(self.there)
        self.there.clear()
        for group in self.groups:
            self.groups[group] = []

    @invariant()
    def the_counts_agree(self) -> None:
        assert len(self.queue) == self.queue.bytes == len(self.there)
        assert self.queue.partitions == len({partition for partition, _ in self.there.values()})
        for group in self.groups:
            for partition in (None, *PARTITIONS):
                assert self.queue.available(group, partition) == len(self.waiting(group, partition))

    @invariant()
    def it_is_due_when_something_happens(self) -> None:
        ends = [at + TTL for _, at in self.there.values()]
        ends += [o.held_until for rest in self.groups.values() for o in rest if o.held_until is not None]
        assert self.queue.due() == min(ends, default=None)

    @invariant()
    def nothing_is_left_over(self) -> None:
        for name, group in self.queue._groups.items():
            used = {owed.partition for owed in self.groups[name]}
            assert set(group.cursors) <= used
            assert set(group.turn) == {owed.partition for owed in self.waiting(name, None)}


TestEphemeral = EphemeralMachine.TestCase
TestEphemeral.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)

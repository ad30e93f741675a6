"""What the broker has done since it started: the numbers behind the metrics."""

from __future__ import annotations

from collections.abc import Sequence

from queen_actors.domain.cursor import Ack, AckOutcome, PopReply
from queen_actors.domain.effects import Appended, DeadLetterPut, Effect, KvDropped, KvPut, TimerDropped, TimerPut
from queen_actors.domain.partition import PushOutcome
from queen_actors.domain.runs import RunSettled
from queen_actors.domain.transaction import Committed, TransactionReply

COUNTED = (Appended, KvPut, KvDropped, TimerPut, TimerDropped, DeadLetterPut)
"""The kinds of effects that count for something."""


class Counts:
    """Counters that only rise; they start at 0 with the process. The names are those of the metrics."""

    __slots__ = (
        "acks_completed",
        "acks_failed",
        "acks_rejected",
        "dead_letters",
        "keys_expired",
        "keys_written",
        "messages_delivered",
        "messages_duplicate",
        "messages_pushed",
        "pops_empty",
        "timers_fired",
        "timers_scheduled",
        "transactions_committed",
        "transactions_rolled_back",
    )

    def __init__(self) -> None:
        for name in self.__slots__:
            setattr(self, name, 0)

    messages_pushed: int
    messages_duplicate: int
    messages_delivered: int
    pops_empty: int
    acks_completed: int
    acks_failed: int
    acks_rejected: int
    dead_letters: int
    keys_written: int
    keys_expired: int
    timers_scheduled: int
    timers_fired: int
    transactions_committed: int
    transactions_rolled_back: int

    def values(self) -> dict[str, int]:
        """Every counter by its name."""
        return {name: getattr(self, name) for name in self.__slots__}

    def observe(self, effect: Effect) -> None:
        """An effect was applied."""
        kind = type(effect)
        if kind is Appended:
            assert isinstance(effect, Appended)
            self.messages_pushed += len(effect.records)
        elif kind is KvPut:
            self.keys_written += 1
        elif isinstance(effect, KvDropped):
            self.keys_expired += effect.expired
        elif kind is TimerPut:
            self.timers_scheduled += 1
        elif isinstance(effect, TimerDropped):
            self.timers_fired += effect.fired
        elif kind is DeadLetterPut:
            self.dead_letters += 1

    def pushed(self, outcomes: Sequence[PushOutcome]) -> None:
        """A push answers."""
        for outcome in outcomes:
            if outcome.status == "duplicate":
                self.messages_duplicate += 1

    def popped(self, reply: PopReply) -> None:
        """A pop answers."""
        if reply.claims:
            self.messages_delivered += sum([len(claim.records) for claim in reply.claims])
        else:
            self.pops_empty += 1

    def acked(self, acks: Sequence[Ack], outcomes: Sequence[AckOutcome]) -> None:
        """An ack answers."""
        if isinstance(outcomes, RunSettled):
            self.acks_completed += len(outcomes)
            return
        for ack, outcome in zip(acks, outcomes, strict=True):
            if not outcome.success:
                self.acks_rejected += 1
            elif ack.status == "completed":
                self.acks_completed += 1
            else:
                self.acks_failed += 1

    def decided(self, reply: TransactionReply) -> None:
        """A transaction answers."""
        if isinstance(reply, Committed):
            self.transactions_committed += 1
        else:
            self.transactions_rolled_back += 1

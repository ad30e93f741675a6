"""The auditor: judges a history by the promises alone. It shares no code with what it judges, and sees only what
clients saw; where an answer was lost it allows for both ends. Lifetimes are counted by the broker's clock."""

from __future__ import annotations

from . import kinds
from .audit_kit import Ledger, Violation, must
from .audit_linear import judge_linear
from .audit_messages import Messages
from .audit_more import judge_churners, judge_ephemeral, judge_streamers
from .audit_solo import judge_movers, judge_soloists
from .audit_state import judge_keys, judge_locks, judge_timers, judge_transactions
from .history import History

__all__ = ["Audit", "Violation", "must"]


class Audit:
    """One history. `groups`: those that were to receive everything; `reader`: the group that read the whole log."""

    def __init__(self, history: History, groups: tuple[str, ...], reader: str) -> None:
        self.history = history
        self.groups = groups
        self.reader = reader

    def judge(self) -> None:
        """Raises Violation at the first promise that does not hold."""
        ledger = Ledger()
        Messages(self.history, self.groups, self.reader, ledger).judge()
        judge_soloists(self.history)
        judge_movers(self.history)
        judge_churners(self.history)
        judge_streamers(self.history)
        judge_ephemeral(self.history)
        judge_keys(self.history)
        judge_locks(self.history)
        judge_linear(self.history)
        judge_timers(self.history, ledger)
        judge_transactions(self.history, ledger)
        kinds.judge(self.history, ledger)

"""The auditor: judges a history by what a user was promised, and knows nothing of how the broker keeps it."""

from __future__ import annotations

from collections.abc import Iterator

from queen_actors.limits import CALL_DEADLINE_SECONDS

from .deliveries import Deliveries
from .effects import Timers, judge_bundles, judge_scratch
from .feeds import judge_tails, judge_watches
from .history import Call, History
from .keys import judge_own_keys, judge_pairs
from .logs import Logs
from .state import judge_state
from .world import WORKERS


def audit(history: History, *, drained: bool = False) -> list[str]:
    """What was broken, each as a sentence; empty when every promise held. The history ends in a reading.

    `drained`: everything was consumed and every timer became due before that reading, so that what is missing now is
    lost.
    """
    logs = Logs(history)
    deliveries = Deliveries(history, logs, drained=drained)
    timers = Timers(history, logs, drained=drained)
    tails = list(judge_tails(history, logs, drained=drained))
    return [
        *_judge_statuses(history),
        *tails,
        *judge_watches(history, drained=drained),
        *logs.violations,
        *deliveries.violations,
        *judge_own_keys(history, WORKERS),
        *judge_pairs(history, logs),
        *judge_state(history, logs),
        *timers.violations,
        *judge_bundles(history, logs, timers, drained=drained),
        *judge_scratch(history),
    ]


LATE = 503
"""What a call is answered that could not be answered in time, or that a broker gets that is about to stop."""


def _stood_still(history: History, call: Call) -> bool:
    """Whether the time for an answer went by while the process was stopped: that is told, and it may have been done."""
    if call.answered - call.sent < CALL_DEADLINE_SECONDS:
        return False
    overlaps = (min(end, call.answered) - max(begin, call.sent) for begin, end in history.pauses)
    return max(overlaps, default=0.0) >= CALL_DEADLINE_SECONDS / 2


def _stopping(history: History, call: Call) -> bool:
    """Whether it was still to be answered when the broker was told to stop, or was sent to one that was stopping."""
    return any(call.answered >= told and call.sent <= ended for told, ended in history.stops)


def _judge_statuses(history: History) -> Iterator[str]:
    """Nothing in the load is malformed, and a broker that lives can always do it."""
    for call in history.calls:
        if call.status is None or call.status < 300 or call.status in history.refusals:
            continue
        if not (call.status == LATE and (_stood_still(history, call) or _stopping(history, call))):
            yield f"round {call.round}: {call.op} was answered {call.status} {call.answer}"

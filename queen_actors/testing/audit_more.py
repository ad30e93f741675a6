"""The auditor of queues that come and go, of streaming queries and of ephemeral queues."""

from __future__ import annotations

from collections import Counter, defaultdict

from .audit_kit import must
from .history import Event, History


class _Churned:
    """The only client of a queue that is deleted now and then: `logs` are what may be in it."""

    def __init__(self) -> None:
        self._logs: list[list[str]] = [[]]

    def see(self, event: Event) -> None:
        if event.outcome == "refused":
            return
        if event.op == "churn.delete":
            self._logs = [[]] if event.ok else [*self._logs, []]
        elif event.op == "churn.push":
            self._push(event)
        elif event.ok and event.found is not None:
            self._pop(event)

    def _push(self, event: Event) -> None:
        ((_, _, txn),) = event.asked["items"]
        pushed = [log if txn in log else [*log, txn] for log in self._logs]
        if event.ok:
            ((_, _, offset, _),) = event.found
            pushed = [log for log in pushed if log.index(txn) == offset]
            must(pushed, "I2 I12 a queue begins again at 0 when it was deleted", event, self._logs)
        else:
            pushed += self._logs
        self._logs = [list(log) for log in dict.fromkeys(map(tuple, pushed))]

    def _pop(self, event: Event) -> None:
        for *_, records in event.found[1]:
            fits = [log for log in self._logs if all(log[r[0] : r[0] + 1] == [r[1]] for r in records)]
            must(fits, "I1 nothing is left of a queue that was deleted", event, self._logs)
            self._logs = fits


def judge_churners(history: History) -> None:
    """I1, I2 and I12 over the death of a queue."""
    queues: dict[str, _Churned] = defaultdict(_Churned)
    for event in history.of("churn.push", "churn.pop", "churn.delete"):
        queues[event.client].see(event)


def judge_streamers(history: History) -> None:
    """I11: what a cycle pushed is there once for each message of its source, and when it was answered."""
    made: dict[str, Counter[str]] = defaultdict(Counter)
    for event in history.of("stream.end"):
        must(event.ok, "I15 a calm broker answers", event)
        for *_, records in event.found[1]:
            made[event.asked["queue"]].update(record[3].decode().strip('"') for record in records)
    for event in history.of("stream.cycle"):
        copies = [made[f"stream.{event.client}.sink"][txn] for txn in event.asked["of"]]
        must(max(copies) <= 1, "I11 what is moved is moved once", event, copies)
        if event.ok and event.found is True:
            must(min(copies) == 1, "I11 what is answered has happened", event, copies)


def judge_ephemeral(history: History) -> None:
    """Nothing comes that was not sent; each comes once, in order."""
    sent: dict[str, set[bytes]] = defaultdict(set)
    got: dict[str, list[bytes]] = defaultdict(list)
    for event in history.of("short.push", "short.pop"):
        if event.op == "short.push":
            sent[event.client].add(event.asked["payload"])
        elif event.ok:
            got[event.client] += event.found
    for client, payloads in got.items():
        must(set(payloads) <= sent[client], "I1 nothing comes that was not sent", client, payloads)
        numbers = [int(payload.strip(b'"')) for payload in payloads]
        must(numbers == sorted(set(numbers)), "I2 each comes once, in order", client, numbers)

"""Timer calls (wire section 4): a message scheduled for later, named by its queue and its key."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

from .durations import Duration, milliseconds
from .encoding import encode, segment
from .results import TimerResult
from .shapes import as_object, results
from .transport import Caller

PATH = "/api/v1/timers"
TimerOp = dict[str, Any]


def schedule_op(
    queue: str,
    key: str,
    payload: Any,
    *,
    delay: Duration | None,
    delay_ms: float | None,
    partition: str | None,
    txn: str,
    again: bool = False,
) -> TimerOp:
    """The wire's `schedule` (or `reschedule`, the same upsert). Exactly one of the delays. Raises ValueError."""
    if (delay is None) == (delay_ms is None):
        raise ValueError("a timer needs exactly one of delay= (a timedelta, seconds or '24h') and delay_ms=")
    op: TimerOp = {
        "op": "reschedule" if again else "schedule",
        "queue": queue,
        "timerKey": key,
        "payload": b64encode(encode(payload)).decode("ascii"),
        "delayMs": delay_ms if delay is None else milliseconds(delay, "delay"),
        "txn": txn,
    }
    if partition is not None:
        op["partition"] = partition
    return op


def cancel_op(queue: str, key: str, txn: str | None = None) -> TimerOp:
    """`cancel` (wire 4.3): the timer of this key, with `txn` only if it is that one."""
    op: TimerOp = {"op": "cancel", "queue": queue, "timerKey": key}
    if txn is not None:
        op["txn"] = txn
    return op


class Timers:
    """`queen.timers`. Scheduling a key again replaces its timer; the broker's clock decides when it is due."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self.new_id = caller.transport.new_id

    async def batch(self, operations: Iterable[Mapping[str, Any]]) -> Sequence[TimerResult]:
        """Several operations in one atomic step; one answer for each, in order."""
        ops = list(operations)
        if not ops:
            return []
        repeatable = all(op.get("op") != "cancel" for op in ops)
        answer = await self._caller.call("POST", PATH, {"operations": ops}, repeatable=repeatable)
        return [TimerResult(one) for one in results(answer, len(ops), "timer operations")]

    async def schedule(
        self,
        queue: str,
        key: str,
        payload: Any,
        *,
        delay: Duration | None = None,
        delay_ms: float | None = None,
        partition: str | None = None,
        txn: str | None = None,
    ) -> TimerResult:
        """Deliver `payload` into the queue (and partition) after the delay, never earlier: `message_id`, `deliver_at`.

        `txn` is the `transactionId` of the message to come; the client makes one up, and the answer has it.
        """
        txn = txn or self.new_id()
        op = schedule_op(queue, key, payload, delay=delay, delay_ms=delay_ms, partition=partition, txn=txn)
        return (await self.batch((op,)))[0]

    async def reschedule(
        self,
        queue: str,
        key: str,
        payload: Any,
        *,
        delay: Duration | None = None,
        delay_ms: float | None = None,
        partition: str | None = None,
        txn: str | None = None,
    ) -> TimerResult:
        """The same as `schedule`, named for the reader: the pending timer is replaced whole."""
        txn = txn or self.new_id()
        op = schedule_op(queue, key, payload, delay=delay, delay_ms=delay_ms, partition=partition, txn=txn, again=True)
        return (await self.batch((op,)))[0]

    async def cancel(self, queue: str, key: str, *, txn: str | None = None) -> TimerResult:
        """True when a pending timer was removed. False, `absent`: it is not pending, perhaps delivered already."""
        path = f"{PATH}/{segment(queue)}/{segment(key)}"
        answer = await self._caller.call("DELETE", path, query={"txn": txn}, repeatable=False)
        return TimerResult(answer or {"ok": False})

    async def peek(self, queue: str, key: str) -> TimerResult:
        """The pending timer, its payload as `data`; false when there is none."""
        answer = await self._caller.call("GET", f"{PATH}/{segment(queue)}/{segment(key)}")
        return TimerResult(answer or {"found": False})

    async def list(self, queue: str, *, after: str | None = None, limit: int | None = None) -> TimerResult:
        """One page of a queue's pending timers in byte order of their keys: `rows`, `truncated`, `next_after`."""
        answer = await self._caller.call("GET", f"{PATH}/{segment(queue)}", query={"after": after, "limit": limit})
        return TimerResult(answer or {})

    async def list_all(
        self, queue: str, *, limit: int | None = None, max_rows: int | None = None
    ) -> Sequence[TimerResult]:
        """Every pending timer of a queue, page by page (`limit` rows each), `max_rows` at most."""
        rows: list[TimerResult] = []
        after: str | None = None
        while True:
            page = await self.list(queue, after=after, limit=limit)
            rows += page.rows
            after = page.next_after
            if (max_rows is not None and len(rows) >= max_rows) or not page.truncated or after is None:
                return rows if max_rows is None else rows[:max_rows]

    async def count(self, queue: str, prefix: str) -> int:
        """How many timers of a queue are pending under a prefix of their keys."""
        query = {"mode": "count", "prefix": prefix}
        answer = await self._caller.call("GET", f"{PATH}/{segment(queue)}", query=query)
        return int(as_object(answer)["count"])

    def timer(self, queue: str) -> TimerBuilder:
        """A timer step by step: `.key(k).payload(p).after(timedelta(hours=24)).schedule()`."""
        return TimerBuilder(self, queue)


class TimerParts:
    """What a timer is made of, named one by one; the two builders end it differently."""

    def __init__(self, queue: str, new_id: Callable[[], str]) -> None:
        self._queue = queue
        self._new_id = new_id
        self._key: str | None = None
        self._payload: Any = None
        self._delay: Duration | None = None
        self._delay_ms: float | None = None
        self._partition: str | None = None
        self._txn: str | None = None

    def key(self, key: str) -> Self:
        """The name of the timer, unique in its queue: scheduling it again moves the timer (wire 4.2)."""
        self._key = key
        return self

    def payload(self, payload: Any) -> Self:
        """The `data` of the message to come, any JSON value."""
        self._payload = payload
        return self

    def after(self, delay: Duration) -> Self:
        """When, from the moment of the call: a timedelta, seconds, or a text such as `"24h"`."""
        self._delay, self._delay_ms = delay, None
        return self

    def after_ms(self, delay_ms: float) -> Self:
        """As `after`, in milliseconds."""
        self._delay, self._delay_ms = None, delay_ms
        return self

    def partition(self, partition: str) -> Self:
        """The partition that the message goes to, so that it arrives in order with the entity's other messages."""
        self._partition = partition
        return self

    def txn(self, txn: str) -> Self:
        """The `transactionId` of the message to come."""
        self._txn = txn
        return self

    def named(self) -> str:
        """The key. Raises ValueError when none was given."""
        if self._key is None:
            raise ValueError("a timer is named by its key: .key(...) is missing")
        return self._key

    def scheduled(self, *, again: bool) -> TimerOp:
        """The `schedule` operation. Raises ValueError when a part is missing."""
        return schedule_op(
            self._queue,
            self.named(),
            self._payload,
            delay=self._delay,
            delay_ms=self._delay_ms,
            partition=self._partition,
            txn=self._txn or self._new_id(),
            again=again,
        )


class TimerBuilder(TimerParts):
    """`queen.timer(queue)`."""

    def __init__(self, timers: Timers, queue: str) -> None:
        super().__init__(queue, timers.new_id)
        self._timers = timers

    async def schedule(self) -> TimerResult:
        """Schedule it, or move the one that has its key (wire 4.2). Raises ValueError when a part is missing,
        QueenError."""
        return (await self._timers.batch((self.scheduled(again=False),)))[0]

    async def reschedule(self) -> TimerResult:
        """As `schedule`: the word says that a timer is there already. Raises ValueError, QueenError."""
        return (await self._timers.batch((self.scheduled(again=True),)))[0]

    async def cancel(self) -> TimerResult:
        """Cancel the timer of this key (wire 4.3); false when it is no longer pending. Raises ValueError."""
        return await self._timers.cancel(self._queue, self.named(), txn=self._txn)

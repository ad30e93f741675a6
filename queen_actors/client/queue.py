"""A queue: configure, push, pop, subscribe and its dead letters (messaging 5, 6, 7, 11 and 12)."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from .durations import Duration, instant, seconds_of
from .encoding import segment
from .errors import PushError
from .items import as_list, push_items
from .message import Message
from .results import STORED, PushResult, Result
from .shapes import as_object, one_each
from .subscription import Subscription
from .tail import Begin, Gap, Tail
from .transport import ANSWER_SECONDS, Wanted
from .workers import Handler

if TYPE_CHECKING:
    from .queen import Queen

POP_WAIT_SECONDS = 30.0  # what `wait=True` means, and the longest that one call waits is a minute (messaging 7.2)
POP_WAIT_SECONDS_MAX = 60.0
WAIT_MARGIN_SECONDS = 5.0  # messaging 3.2: a waiting pop may take its wait and that much more
CREDIT, BATCH = 100, 100
TAIL_CREDIT = 1000
DLQ_PAGE = 100


class Choices(Struct, frozen=True):
    """What a queue builder has been told so far; None leaves the choice to the broker."""

    queue: str | None
    partition: str | None = None
    namespace: str | None = None
    task: str | None = None
    group: str | None = None
    options: dict[str, Any] | None = None
    batch: int | None = None
    partitions: int | None = None
    wait: bool | Duration | None = None
    auto_ack: bool = False
    lease_seconds: int | None = None
    subscription_mode: str | None = None
    subscription_from: str | None = None
    conflation: bool = False


class Queue:
    """`queen.queue(name)`: each method that chooses returns a new one, so a queue can be kept and shared."""

    def __init__(self, queen: Queen, choices: Choices) -> None:
        self._queen = queen
        self._chosen = choices

    def __repr__(self) -> str:
        return f"<Queue {self._chosen.queue!r}>"

    def _with(self, **chosen: Any) -> Queue:
        return Queue(self._queen, replace(self._chosen, **chosen))

    @property
    def name(self) -> str:
        """Raises ValueError for a discovery without a queue name."""
        if self._chosen.queue is None:
            raise ValueError("this needs a queue: queen.queue(name)")
        return self._chosen.queue

    # Choosing

    def partition(self, name: str) -> Queue:
        """Push to, pop from, or subscribe to this partition only."""
        return self._with(partition=name)

    def namespace(self, name: str) -> Queue:
        """The label `namespace`: `create` sets it, pop and subscribe find queues by it (messaging 5, 7)."""
        return self._with(namespace=name)

    def task(self, name: str) -> Queue:
        """The label `task`: `create` sets it, pop and subscribe find queues by it (messaging 5, 7)."""
        return self._with(task=name)

    def group(self, name: str) -> Queue:
        """The consumer group whose cursor is read and moved; without one, the queue's own consumers compete."""
        return self._with(group=name)

    def config(self, options: Mapping[str, Any]) -> Queue:
        """Options for `create`, by their wire names or in Python's spelling: `lease_time` is `leaseTime`."""
        return self._with(options={**(self._chosen.options or {}), **_camel(options)})

    def batch(self, messages: int) -> Queue:
        """The most messages of one pop or delivery."""
        return self._with(batch=messages)

    def partitions(self, most: int) -> Queue:
        """The most partitions of one pop or delivery."""
        return self._with(partitions=most)

    def wait(self, wait: bool | Duration = True) -> Queue:
        """How long a pop waits for a message; True: 30 s."""
        return self._with(wait=wait)

    def timeout_millis(self, milliseconds: int) -> Queue:
        """As `wait`, in milliseconds."""
        return self._with(wait=milliseconds / 1000)

    def auto_ack(self, enabled: bool = True) -> Queue:
        """Commit at the delivery: at most once, nothing to acknowledge."""
        return self._with(auto_ack=enabled)

    def lease_seconds(self, seconds: int) -> Queue:
        """How long a pop's lease lasts; without it the queue's `leaseTime`."""
        return self._with(lease_seconds=seconds)

    def subscription_mode(self, mode: str) -> Queue:
        """Where a new group starts: `all`, or `new`."""
        return self._with(subscription_mode=mode)

    def subscription_from(self, start: str | datetime) -> Queue:
        """Where a new group starts: `now`, or an instant."""
        return self._with(subscription_from=instant(start) if isinstance(start, datetime) else start)

    def conflation(self, enabled: bool = True) -> Queue:
        """Deliver only the newest message of each partition to this group."""
        return self._with(conflation=enabled)

    # The queue itself

    async def create(self, *, replace: bool = False) -> Result:
        """Create or change the queue. Options that are not named stay as they are; with `replace` they go back to
        their defaults."""
        chosen = self._chosen
        body: dict[str, Any] = {"queue": self.name, "options": chosen.options or {}}
        body.update(
            (name, value)
            for name, value in (("namespace", chosen.namespace), ("task", chosen.task))
            if value is not None
        )
        if replace:
            body["mode"] = "replace"
        return Result(as_object(await self._queen.caller.call("POST", "/api/v1/configure", body)))

    async def delete(self) -> Result:
        """Drop the queue with everything in it; `["existed"]` says whether it was there."""
        path = f"/api/v1/resources/queues/{segment(self.name)}"
        return Result(as_object(await self._queen.caller.call("DELETE", path)))

    # Messages

    async def push(self, items: Any) -> list[PushResult]:
        """Append one item or a list of them, in order; durable when this returns. One answer for each.

        An item is any JSON value. `{"data": ..., "transactionId": ...}` names the message: pushed again within the
        queue's dedup window it is stored once, and the answer is the original's. Raises PushError for refused items.
        """
        transport = self._queen.caller.transport
        new_id = transport.new_id if transport.retry.attempts > 1 else None
        wired = push_items(as_list(items), self.name, self._chosen.partition, new_id)
        if not wired:
            return []
        answer = await self._queen.caller.call("POST", "/api/v1/push", {"items": wired})
        rows = one_each(answer, len(wired), "items")
        results = list(map(PushResult, rows))
        failed = [one for one in results if one["status"] not in STORED]
        if failed:
            raise PushError(f"{len(failed)} of {len(results)} items were refused: {failed[0].error}", results)
        return results

    async def pop(
        self,
        *,
        batch: int | None = None,
        wait: bool | Duration | None = None,
        group: str | None = None,
        partitions: int | None = None,
        auto_ack: bool | None = None,
        lease_seconds: int | None = None,
        subscription_mode: str | None = None,
        subscription_from: str | None = None,
    ) -> list[Message]:
        """Lease messages; the empty list when there are none. It waits only as long as `wait` says (a minute at most).

        What is not acknowledged before its lease ends is delivered again.
        """
        chosen = self._chosen
        waiting = _wait_seconds(chosen.wait if wait is None else wait)
        query = {
            "batch": batch or chosen.batch,
            "wait": True if waiting else None,
            "timeout": max(1, round(waiting * 1000)) if waiting else None,
            "consumerGroup": group or chosen.group,
            "namespace": chosen.namespace,
            "task": chosen.task,
            "autoAck": True if (chosen.auto_ack if auto_ack is None else auto_ack) else None,
            "leaseSeconds": lease_seconds or chosen.lease_seconds,
            "subscriptionMode": subscription_mode or chosen.subscription_mode,
            "subscriptionFrom": subscription_from or chosen.subscription_from,
            "partitions": partitions or chosen.partitions,
            "conflation": True if chosen.conflation else None,
        }
        seconds = waiting + WAIT_MARGIN_SECONDS if waiting else ANSWER_SECONDS
        answer = await self._queen.caller.call("GET", self._pop_path(), query=query, seconds=seconds)
        if answer is None:
            return []
        popped = as_object(answer)
        queue = {"queue": popped.get("queue")} if popped.get("partitionsClaimed", 1) == 1 else {"queue": chosen.queue}
        return [self._queen.message({**one, **queue}) for one in popped.get("messages", ())]

    def _pop_path(self) -> str:
        if self._chosen.queue is None:
            return "/api/v1/pop"
        path = f"/api/v1/pop/queue/{segment(self._chosen.queue)}"
        return path if self._chosen.partition is None else f"{path}/partition/{segment(self._chosen.partition)}"

    def subscribe(
        self,
        *,
        group: str | None = None,
        batch: int | None = None,
        credit: int | None = None,
        partitions: int | None = None,
        auto_ack: bool | None = None,
        lease_seconds: int | None = None,
        max_lease_seconds: int | None = None,
        subscription_mode: str | None = None,
        subscription_from: str | None = None,
        workers: int = 1,
    ) -> Subscription:
        """Messages as they come: `async with queue.subscribe(group="g") as messages: async for message in messages:`.

        At most `credit` (100) delivered messages are unsettled at once. Their leases are renewed, also while they
        wait their turn here, up to `max_lease_seconds` (an hour). Leaving gives back what is not settled.

        With `workers=n`, n messages are handled at once, those of one partition one after the other in their order:
        by n tasks that iterate, by a task that is started for each message, or by `messages.each(handler)`. A message
        counts as handled when it is settled, so each must be. Raises ValueError for less than one worker.
        """
        if workers < 1:
            raise ValueError(f"workers must be 1 or more, not {workers}")
        chosen = self._chosen
        most = credit or max(CREDIT, workers, batch or chosen.batch or 0)
        fair = max(1, most // workers)  # so that no partition takes the credit of them all
        wanted = Wanted(
            queue=chosen.queue,
            partition=chosen.partition,
            namespace=chosen.namespace,
            task=chosen.task,
            group=group or chosen.group,
            batch=min(batch or chosen.batch or BATCH, fair),
            credit=most,
            partitions=partitions or chosen.partitions,
            auto_ack=chosen.auto_ack if auto_ack is None else auto_ack,
            lease_seconds=lease_seconds or chosen.lease_seconds,
            max_lease_seconds=max_lease_seconds,
            subscription_mode=subscription_mode or chosen.subscription_mode,
            subscription_from=subscription_from or chosen.subscription_from,
        )
        return Subscription(self._queen, wanted, workers)

    def tail(
        self, from_: Begin = "now", *, credit: int = TAIL_CREDIT, on_gap: Callable[[Gap], object] | None = None
    ) -> Tail:
        """Messages as they come, without a lease: `async with queue.tail() as messages: async for message in messages`.

        `from_` is `"now"`, `"start"`, an instant, or the next offset of each partition, as `messages.positions` has
        them: then it is exactly what has not been seen. What retention has removed of that is told to `on_gap`. Up to
        `credit` messages wait here for the loop.
        """
        if credit < 1:
            raise ValueError(f"credit must be 1 or more, not {credit}")
        transport = self._queen.caller.transport
        return Tail(self._queen.start, transport, self.name, self._chosen.partition, from_, credit, on_gap)

    async def consume(
        self,
        handler: Handler,
        *,
        group: str | None = None,
        limit: int | None = None,
        workers: int = 1,
        credit: int | None = None,
        lease_seconds: int | None = None,
    ) -> None:
        """Hand each message to `handler`, until cancelled or after `limit` messages; with `workers`, so many at once,
        those of one partition one after the other in their order.

        A handler that returns acks its message; one that raises nacks it, with the error, and the next one comes. One
        whose message's lease is lost is cancelled before it can ack: the message comes again.
        """
        subscription = self.subscribe(group=group, credit=credit, lease_seconds=lease_seconds, workers=workers)
        async with subscription as messages:
            await messages.each(handler, limit=limit)

    def dlq(self, group: str | None = None, *, limit: int = DLQ_PAGE, offset: int = 0) -> DeadLetters:
        """The queue's dead letters, newest first: `await queue.dlq(limit=10)`; also `.replay(id)` and `.purge()`."""
        query = {
            "queue": self.name,
            "limit": limit,
            "offset": offset,
            "consumerGroup": group or self._chosen.group,
            "partition": self._chosen.partition,
        }
        return DeadLetters(self._queen, query)


class DeadLetters:
    """`queue.dlq()`: read a page of dead letters, replay one, purge them."""

    def __init__(self, queen: Queen, query: dict[str, Any]) -> None:
        self._queen = queen
        self._query = query

    def _with(self, **chosen: Any) -> DeadLetters:
        return DeadLetters(self._queen, {**self._query, **chosen})

    def limit(self, rows: int) -> DeadLetters:
        """At most so many rows, up to 1,000 (100 unless told)."""
        return self._with(limit=rows)

    def offset(self, rows: int) -> DeadLetters:
        """Leave out so many of the newest."""
        return self._with(offset=rows)

    def from_(self, at: str | datetime) -> DeadLetters:
        """Only those that failed at or after this instant."""
        return self._with(**{"from": instant(at)})

    def to(self, at: str | datetime) -> DeadLetters:
        """Only those that failed at or before this instant."""
        return self._with(to=instant(at))

    async def get(self) -> Result:
        """`["messages"]` with `data`, `errorMessage` and `retryCount` each, and `["total"]` of all that match."""
        return Result(as_object(await self._queen.caller.call("GET", "/api/v1/dlq", query=self._query)))

    def __await__(self) -> Generator[Any, Any, Result]:
        return self.get().__await__()

    async def replay(self, dead_letter_id: str, *, queue: str | None = None, partition: str | None = None) -> Result:
        """Push a dead letter again as a new message, with a fresh retry budget, and remove it here."""
        body = {name: value for name, value in (("queue", queue), ("partition", partition)) if value is not None}
        path = f"/api/v1/dlq/{segment(dead_letter_id)}/replay"
        return Result(as_object(await self._queen.caller.call("POST", path, body, repeatable=False)))

    async def purge(self) -> Result:
        """Remove the dead letters of the queue, or of the group that was named: `["deleted"]`."""
        query = {name: self._query[name] for name in ("queue", "consumerGroup")}
        return Result(as_object(await self._queen.caller.call("DELETE", "/api/v1/dlq", query=query)))


def _wait_seconds(wait: bool | Duration | None) -> float:
    if wait is None or wait is False:
        return 0.0
    if wait is True:
        return POP_WAIT_SECONDS
    return min(max(seconds_of(wait, "wait"), 0.0), POP_WAIT_SECONDS_MAX)


def _camel(options: Mapping[str, Any]) -> dict[str, Any]:
    wired: dict[str, Any] = {}
    for name, value in options.items():
        first, *rest = name.split("_")
        wired[first + "".join(word.capitalize() for word in rest)] = value
    return wired

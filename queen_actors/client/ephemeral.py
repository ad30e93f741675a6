"""Ephemeral queues (messaging 18): messages in the broker's memory, for what is worth nothing when it is late."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from .durations import Duration, seconds_of, whole_seconds
from .encoding import segment
from .items import as_list, push_items
from .results import Field, Result
from .shapes import as_object, results
from .transport import ANSWER_SECONDS, Caller

PATH = "/api/v1/ephemeral"
WAIT_SECONDS = 30.0
WAIT_MARGIN_SECONDS = 5.0


class EphemeralMessage(Result):
    """A delivered message; `attempts` were made before."""

    __slots__ = ()
    id = Field[str]("id", "")
    partition = Field[str]("partition", "")
    attempts = Field[int]("attempts", 0)
    data = Field[Any]("payload", None)


class Ephemeral:
    """`queen.ephemeral`. Contents survive nothing, and the options of a queue do not survive the broker's end either.

    A message that is not acknowledged before its lease ends, or is given back, comes again, until its retries are
    spent; then it is gone. Consumers of one group share, each group gets everything, and who names none shares too.
    """

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def configure(
        self,
        queue: str,
        *,
        max_bytes: int | None = None,
        max_length: int | None = None,
        policy: Literal["reject", "dropOldest"] | None = None,
        ttl: Duration | None = None,
        lease: Duration | None = None,
        retry_limit: int | None = None,
        window_ms: int | None = None,
        window_count: int | None = None,
    ) -> Result:
        """Declare a queue; what is not named here has its default. Answers with all `["options"]`.

        A full queue refuses a push (`reject`) or drops its oldest messages. `ttl`: what is older goes, delivered or
        not. A waiting pop stays for `window_count` messages, or `window_ms` after the first.
        """
        window = {"ms": window_ms, "count": window_count}
        options = {
            "maxBytes": max_bytes,
            "maxLength": max_length,
            "policy": policy,
            "ttlSeconds": None if ttl is None else whole_seconds(ttl, "ttl"),
            "leaseSeconds": None if lease is None else whole_seconds(lease, "lease"),
            "retryLimit": retry_limit,
            "windowBuffer": {name: value for name, value in window.items() if value is not None} or None,
        }
        given = {name: value for name, value in options.items() if value is not None}
        answer = await self._caller.call("POST", f"{PATH}/configure", {"queue": queue, "options": given})
        return Result(as_object(answer))

    async def push(self, queue: str, messages: Any, *, partition: str | None = None) -> int:
        """Append one message or a list of them, in order, all or none; how many. The queue is made if need be.

        A message is any JSON value; `{"data": ...}` is an envelope, as in `queen.queue(...).push`. Raises Overloaded
        when the queue is full, Unavailable when the broker's memory for such queues is.
        """
        payloads = [one["payload"] for one in push_items(as_list(messages), queue, None, None)]
        if not payloads:
            return 0
        body: dict[str, Any] = {"queue": queue, "messages": [{"payload": payload} for payload in payloads]}
        if partition is not None:
            body["partition"] = partition
        answer = await self._caller.call("POST", f"{PATH}/push", body, repeatable=False)
        return int(as_object(answer)["pushed"])

    async def pop(
        self,
        queue: str,
        *,
        group: str | None = None,
        partition: str | None = None,
        batch: int | None = None,
        wait: bool | Duration = False,
        auto_ack: bool = False,
    ) -> list[EphemeralMessage]:
        """Messages, of one partition or of all in turn; the empty list when there are none. It waits as long as `wait`
        says: True is 30 s, five minutes is the most. With `auto_ack` there is nothing to acknowledge."""
        waiting = WAIT_SECONDS if wait is True else 0.0 if wait is False else seconds_of(wait, "wait")
        query = {
            "queue": queue,
            "partition": partition,
            "batch": batch,
            "wait": True if waiting else None,
            "timeout": max(1, round(waiting * 1000)) if waiting else None,
            "group": group,
            "autoAck": True if auto_ack else None,
        }
        seconds = waiting + WAIT_MARGIN_SECONDS if waiting else ANSWER_SECONDS
        answer = await self._caller.call("GET", f"{PATH}/pop", query=query, repeatable=not auto_ack, seconds=seconds)
        return [EphemeralMessage(one) for one in as_object(answer or {}).get("messages", ())]

    async def ack(
        self,
        queue: str,
        messages: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]],
        status: bool | str = True,
        *,
        group: str | None = None,
    ) -> list[str]:
        """Settle messages, or their ids: True completed, False (or `retry`) round again. The group is the one that
        popped them. What became of each: acked, redelivered, unknown (it is not with us any more), or stale (the
        broker was started anew)."""
        many = [messages] if isinstance(messages, (str, Mapping)) else list(messages)
        ids = [one if isinstance(one, str) else one["id"] for one in many]
        if not ids:
            return []
        word = {True: "completed", False: "failed"}[status] if isinstance(status, bool) else status
        body: dict[str, Any] = {"queue": queue, "acks": [{"id": mid, "status": word} for mid in ids]}
        if group is not None:
            body["group"] = group
        answer = await self._caller.call("POST", f"{PATH}/ack", body, repeatable=False)
        return [one["outcome"] for one in results(answer, len(ids), "acknowledgments")]

    async def reset(self, queue: str) -> int:
        """Drop every message of a queue; how many."""
        return int(as_object(await self._caller.call("POST", f"{PATH}/reset", {"queue": queue}))["dropped"])

    async def delete(self, queue: str) -> Result:
        """The queue is gone, with its options: `["deleted"]`, and was it `["declared"]`?"""
        answer = await self._caller.call("DELETE", f"{PATH}/queue/{segment(queue)}", repeatable=False)
        return Result(as_object(answer))

    async def queues(self) -> list[Result]:
        """Every queue with its counts, its drops and its options."""
        answer = as_object(await self._caller.call("GET", f"{PATH}/queues"))
        return [Result(row) for row in answer["queues"]]

    async def depth(self, queue: str, group: str | None = None) -> Result:
        """What waits for a group, or for the one that is furthest behind: `["pending"]`. Raises NotFound."""
        answer = await self._caller.call("GET", f"{PATH}/queues/{segment(queue)}/depth", query={"group": group})
        return Result(as_object(answer))

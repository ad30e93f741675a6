"""What an operator asks: queues, groups, messages, dead letters, traces and health (messaging 10 to 15, 19)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from .durations import instant
from .encoding import segment
from .results import Result
from .transport import Caller

GROUPS = "/api/v1/consumer-groups"
RESOURCES = "/api/v1/resources"


class Admin:
    """`queen.admin`. Answers are the wire's own objects; further query parameters go as keywords."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def _get(self, path: str, query: Mapping[str, object] | None = None) -> Result:
        return Result(await self._caller.call("GET", path, query=query) or {})

    async def _list(self, path: str, query: Mapping[str, object] | None = None) -> list[Result]:
        return [Result(row) for row in await self._caller.call("GET", path, query=query) or ()]

    async def _change(
        self, method: str, path: str, body: object = None, query: Mapping[str, object] | None = None
    ) -> Result:
        return Result(await self._caller.call(method, path, body, query=query) or {})

    # Queues

    async def get_overview(self) -> Result:
        """Counts and lags of the whole broker."""
        return await self._get(f"{RESOURCES}/overview")

    async def list_queues(self, /, **query: object) -> Result:
        """`["queues"]`: each with its labels, partitions and counts (messaging 13)."""
        return await self._get(f"{RESOURCES}/queues", query)

    async def get_queue(self, name: str) -> Result:
        """A queue's options, partitions and counts. Raises NotFound."""
        return await self._get(f"{RESOURCES}/queues/{segment(name)}")

    async def get_queue_depth(self, name: str, group: str | None = None) -> Result:
        """How much waits for a group: `pending`, `processing`, `ready`. Raises NotFound."""
        return await self._get(f"{RESOURCES}/queues/{segment(name)}/depth", {"group": group})

    async def get_namespaces(self) -> Result:
        """`["namespaces"]`: each with how many queues and messages it has (messaging 13)."""
        return await self._get(f"{RESOURCES}/namespaces")

    async def get_tasks(self) -> Result:
        """`["tasks"]`: each with how many queues and messages it has (messaging 13)."""
        return await self._get(f"{RESOURCES}/tasks")

    # Consumer groups

    async def list_consumer_groups(self) -> list[Result]:
        """Each group of each queue, with where it stands and its lag (messaging 10)."""
        return await self._list(GROUPS)

    async def get_consumer_group(self, group: str) -> Result:
        """Raises NotFound."""
        return await self._get(f"{GROUPS}/{segment(group)}")

    async def get_lagging_consumers(self, min_lag_seconds: int = 60) -> list[Result]:
        """The groups with a partition whose oldest unread message is at least so old, in seconds (messaging 10)."""
        return await self._list(f"{GROUPS}/lagging", {"minLagSeconds": min_lag_seconds})

    async def delete_consumer_group(self, group: str, *, delete_metadata: bool = True) -> Result:
        """Forget where a group stands, on every queue; with the metadata, also how it was registered."""
        return await self._change("DELETE", f"{GROUPS}/{segment(group)}", query={"deleteMetadata": delete_metadata})

    async def delete_consumer_group_for_queue(self, group: str, queue: str, *, delete_metadata: bool = True) -> Result:
        """Forget where a group stands on one queue; with the metadata, also how it was registered there."""
        path = f"{GROUPS}/{segment(group)}/queues/{segment(queue)}"
        return await self._change("DELETE", path, query={"deleteMetadata": delete_metadata})

    async def seek_consumer_group(
        self,
        group: str,
        queue: str,
        *,
        to_end: bool = False,
        timestamp: str | datetime | None = None,
        partition: str | None = None,
    ) -> Result:
        """Move a group's cursors on a queue, or on one partition, to the end or to an instant. Live leases end.

        Raises NotFound for an unknown queue or partition.
        """
        if to_end == (timestamp is not None):
            raise ValueError("seek needs exactly one of to_end=True and timestamp=")
        body = {"toEnd": True} if timestamp is None else {"timestamp": instant(timestamp)}
        path = f"{GROUPS}/{segment(group)}/queues/{segment(queue)}"
        if partition is not None:
            path += f"/partitions/{segment(partition)}"
        return await self._change("POST", f"{path}/seek", body)

    async def move_subscription(self, group: str, timestamp: str | datetime) -> Result:
        """Where the group starts on partitions that it has not seen yet; its cursors stay."""
        body = {"subscriptionTimestamp": instant(timestamp)}
        return await self._change("POST", f"{GROUPS}/{segment(group)}/subscription", body)

    # Messages and traces

    async def list_messages(self, /, **query: object) -> Result:
        """Newest first, of the last hour unless told: `queue`, `partition`, `status`, `limit`, `offset`."""
        return await self._get("/api/v1/messages", query)

    async def get_message(self, partition_id: str, transaction_id: str) -> Result:
        """Raises NotFound."""
        return await self._get(_message(partition_id, transaction_id))

    async def delete_message(self, partition_id: str, transaction_id: str) -> Result:
        """Remove a message's dead letters; what is live in the log cannot be removed. Raises NotFound."""
        return await self._change("DELETE", _message(partition_id, transaction_id))

    async def retry_message(self, partition_id: str, transaction_id: str) -> Result:
        """Replay a message's dead letter. Raises NotFound."""
        answer = await self._caller.call("POST", f"{_message(partition_id, transaction_id)}/retry", repeatable=False)
        return Result(answer or {})

    async def get_traces_for_message(self, partition_id: str, transaction_id: str) -> Result:
        """`["traces"]` of one message (messaging 15)."""
        return await self._get(f"/api/v1/traces/{segment(partition_id)}/{segment(transaction_id)}")

    async def get_traces_by_name(self, /, name: str, **query: object) -> Result:
        """`["traces"]` that were given this name (messaging 15). Keywords: `limit`, `offset`."""
        return await self._get(f"/api/v1/traces/by-name/{segment(name)}", query)

    async def get_trace_names(self, /, **query: object) -> Result:
        """`["trace_names"]`: the names that traces were given, with how many have each (messaging 15). Keywords:
        `limit`, `offset`."""
        return await self._get("/api/v1/traces/names", query)

    # The broker

    async def health(self) -> Result:
        """`["status"]` is `healthy` while the broker serves (messaging 19). Raises Unavailable when it does not."""
        return await self._get("/health")


def _message(partition_id: str, transaction_id: str) -> str:
    return f"/api/v1/messages/{segment(partition_id)}/{segment(transaction_id)}"

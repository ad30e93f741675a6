"""Consumer groups: delete, seek, move the subscription."""

from __future__ import annotations

from queen_actors.wire.frames import query_bool
from queen_actors.wire.groups import (
    parse_seek,
    parse_subscription,
    render_group_deleted,
    render_seek_not_found,
    render_sought,
    render_subscription,
)

from .access import Access
from .call import Call, Route
from .messages import Reply, json_reply


async def delete(call: Call) -> Reply:
    """In every queue, or in the one that the path names; with the registration, unless `deleteMetadata=false`."""
    group, queue = call.names[0], call.names[1] if len(call.names) > 1 else None
    metadata = query_bool(call.query(), "deleteMetadata", default=True)
    deleted = await call.broker.delete_group(group, queue, metadata=metadata)
    return json_reply(render_group_deleted(group, queue, deleted))


async def seek(call: Call) -> Reply:
    group, queue = call.names[:2]
    partition = call.names[2] if len(call.names) > 2 else None
    to = parse_seek(call.body)
    updated = await call.broker.seek(group, queue, partition, to)
    if updated is None:
        return json_reply(render_seek_not_found(group, queue, partition), 404)
    return json_reply(render_sought(group, queue, partition, to, updated))


async def subscription(call: Call) -> Reply:
    (group,) = call.names
    to = parse_subscription(call.body)
    return json_reply(render_subscription(group, to, await call.broker.move_subscription(group, to)))


_GROUP = "/api/v1/consumer-groups/*group"
ROUTES = (
    Route("POST", f"{_GROUP}/queues/*queue/partitions/*partition/seek", seek, Access.READ_WRITE),
    Route("POST", f"{_GROUP}/queues/*queue/seek", seek, Access.READ_WRITE),
    Route("POST", f"{_GROUP}/subscription", subscription, Access.READ_WRITE),
    Route("DELETE", f"{_GROUP}/queues/*queue", delete, Access.ADMIN),
    Route("DELETE", _GROUP, delete, Access.ADMIN),
)

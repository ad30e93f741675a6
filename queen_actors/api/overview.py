"""Groups and queues as a whole."""

from __future__ import annotations

from queen_actors.errors import NotFound
from queen_actors.values import QUEUE_MODE
from queen_actors.wire.frames import query_int
from queen_actors.wire.overview import (
    render_depth,
    render_group,
    render_groups,
    render_labels,
    render_lagging,
    render_overview,
    render_queues,
)

from .access import Access
from .call import Call, Route
from .messages import Reply, json_reply, value_reply

_LAG_SECONDS_DEFAULT = 3600  # the reference's
_LAG_SECONDS_MAX = 10**9


async def groups(call: Call) -> Reply:
    lines = await call.broker.overview.groups()
    return json_reply(render_groups(lines, call.broker.clock.now()))


async def group(call: Call) -> Reply:
    (name,) = call.names
    lags = await call.broker.overview.lags(name)
    if not lags:
        raise NotFound("Consumer group not found")
    conflating = call.broker.overview.conflating(name)
    return json_reply(render_group(lags, conflating, call.broker.clock.now()))


async def lagging(call: Call) -> Reply:
    seconds = query_int(call.query(), "minLagSeconds", _LAG_SECONDS_DEFAULT, 0, _LAG_SECONDS_MAX)
    lags = await call.broker.overview.lags()
    return json_reply(render_lagging(lags, call.broker.clock.now(), seconds))


async def queues(call: Call) -> Reply:
    lines = await call.broker.overview.queues()
    return json_reply(render_queues(lines, call.broker.overview.rows()))


async def depth(call: Call) -> Reply:
    (queue,) = call.names
    found = await call.broker.overview.depth(queue, call.query().get("group") or QUEUE_MODE)
    if found is None:
        raise NotFound("Queue not found")
    return json_reply(render_depth(found))


async def sizes(call: Call) -> Reply:
    (queue,) = call.names
    found = await call.broker.overview.sizes(queue)
    if found is None:
        raise NotFound("Queue not found")
    return value_reply({"queue": queue, "partitions": found})


async def overview(call: Call) -> Reply:
    queues, groups = await call.broker.overview.queues_and_groups()
    return json_reply(render_overview(queues, groups, call.broker.clock.now()))


async def namespaces(call: Call) -> Reply:
    return json_reply(render_labels(await call.broker.overview.queues(), "namespace"))


async def tasks(call: Call) -> Reply:
    return json_reply(render_labels(await call.broker.overview.queues(), "task"))


ROUTES = (
    Route("GET", "/api/v1/consumer-groups", groups, Access.READ),
    Route("GET", "/api/v1/consumer-groups/lagging", lagging, Access.READ),
    Route("GET", "/api/v1/consumer-groups/*group", group, Access.READ),
    Route("GET", "/api/v1/resources/queues", queues, Access.READ),
    Route("GET", "/api/v1/resources/queues/*queue/depth", depth, Access.READ),
    Route("GET", "/api/v1/resources/queues/*queue/sizes", sizes, Access.READ),
    Route("GET", "/api/v1/resources/overview", overview, Access.READ),
    Route("GET", "/api/v1/resources/namespaces", namespaces, Access.READ),
    Route("GET", "/api/v1/resources/tasks", tasks, Access.READ),
)

"""Dead letters: purge, replay and removal."""

from __future__ import annotations

from queen_actors.domain.queue import Replayed
from queen_actors.errors import BadRequest
from queen_actors.wire.frames import parse_pid
from queen_actors.wire.letters import (
    GONE,
    not_removed,
    parse_redirect,
    render_purged,
    render_removed,
    render_replayed,
)

from .access import Access
from .call import Call, Route
from .messages import Reply, json_reply, value_reply


async def purge(call: Call) -> Reply:
    query = call.query()
    queue, group = query.get("queue"), query.get("consumerGroup") or None
    if not queue:
        raise BadRequest("queue is required: name the queue whose dead letters are to go")
    return json_reply(render_purged(queue, group, await call.broker.purge_dead_letters(queue, group)))


async def replay(call: Call) -> Reply:
    (letter_id,) = call.names
    to = parse_redirect(call.body)
    return _replayed(await call.broker.replay(letter_id, to.queue, to.partition))


async def retry(call: Call) -> Reply:
    pid_text, txn = call.names
    to = parse_redirect(call.body)
    pid = parse_pid(pid_text)
    return _replayed(None if pid is None else await call.broker.retry(pid, txn, to.queue, to.partition))


def _replayed(replayed: Replayed | None) -> Reply:
    return value_reply(GONE, 404) if replayed is None else json_reply(render_replayed(replayed))


async def remove(call: Call) -> Reply:
    pid_text, txn = call.names
    pid = parse_pid(pid_text)
    deleted = 0 if pid is None else await call.broker.remove_dead_letters(pid, txn)
    if not deleted:
        return value_reply(not_removed(pid_text, txn), 404)
    return json_reply(render_removed(pid_text, txn, deleted))


ROUTES = (
    Route("DELETE", "/api/v1/dlq", purge, Access.READ_WRITE),
    Route("POST", "/api/v1/dlq/:letter/replay", replay, Access.READ_WRITE),
    Route("POST", "/api/v1/messages/:partition/*transaction/retry", retry, Access.READ_WRITE),
    Route("DELETE", "/api/v1/messages/:partition/*transaction", remove, Access.READ_WRITE),
)

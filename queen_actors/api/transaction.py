"""`POST /api/v1/transaction`. A rollback is an answer; a malformed bundle has a body of its own (5.5)."""

from __future__ import annotations

from queen_actors.domain.transaction import Committed, Transaction
from queen_actors.errors import QueenError
from queen_actors.wire.binary import parse_binary_transaction, render_committed_counts
from queen_actors.wire.transaction import (
    parse_transaction,
    refusal_reason,
    render_committed,
    render_refusal,
    render_rolled_back,
)

from .access import Access
from .call import Call, Route
from .messages import Reply, json_reply


async def transaction(call: Call) -> Reply:
    uid = call.broker.ids.uuid(call.broker.clock.now())
    try:
        bundle, counts = _parse(call)
    except QueenError as error:
        reason = refusal_reason(error)
        if reason is None:
            raise
        return json_reply(render_refusal(error, reason, uid), error.status)
    reply = await call.broker.transaction(bundle)
    if isinstance(reply, Committed):
        return json_reply(render_committed_counts(reply, uid) if counts else render_committed(reply, uid))
    return json_reply(render_rolled_back(reply, uid))


def _parse(call: Call) -> tuple[Transaction, bool]:
    if call.binary:
        return parse_binary_transaction(call.body, call.horizon(), call.caller.subject)
    return parse_transaction(call.body, call.horizon(), call.caller.subject), False


ROUTES = (Route("POST", "/api/v1/transaction", transaction, Access.READ_WRITE),)

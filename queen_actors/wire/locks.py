"""`POST /api/v1/locks` (`wire-kv-locks-timers-transactions.md`, section 3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import UNSET, Raw, Struct, UnsetType

from queen_actors import limits
from queen_actors.domain.locks import Acquire, GetLock, Holder, LockOp, LockResult, Release, Renew
from queen_actors.values import LOCKS_NAMESPACE, SECOND

from .frames import CONTROL, as_text, encode, is_int, offset_time, op_fields, parse_operations, refusal

_TENANT = ("tenant", "tenantId", "_tenant")
_Fields = dict[str, Any]


class _Guard(Struct):
    op: str
    ns: str
    key: str
    expect: int
    required: bool


class _Holder(Struct, rename="camel"):
    """`token` and the instants are told by `get` only."""

    slot: int
    owner: str | None
    token: int | UnsetType = UNSET
    since: str | UnsetType = UNSET
    expires_at: str | UnsetType | None = UNSET
    renewed_at: str | UnsetType = UNSET


class LockElement(Struct):
    """One element of 3.4; the wire names its verdict by its op."""

    index: int
    op: str
    name: str
    acquired: bool | UnsetType = UNSET
    renewed: bool | UnsetType = UNSET
    released: bool | UnsetType = UNSET
    held: bool | UnsetType = UNSET
    reason: str | UnsetType = UNSET
    slot: int | UnsetType = UNSET
    token: int | UnsetType = UNSET
    owner: str | UnsetType | None = UNSET
    already: bool | UnsetType = UNSET
    guard: _Guard | UnsetType = UNSET
    holders: list[_Holder] | UnsetType = UNSET


def parse_locks(body: bytes) -> list[LockOp]:
    """The ops of one call, each of another lock. Raises the refusals of section 3.3."""
    return parse_lock_ops(parse_operations(body, "locks"))


def parse_lock_ops(raws: Sequence[Raw]) -> list[LockOp]:
    if len(raws) > limits.LOCK_OPS_PER_CALL:
        raise refusal("locks", "too_many_ops", f"{len(raws)} operations; {limits.LOCK_OPS_PER_CALL} is the most")
    commands = [parse_lock_op(op_fields(raw)) for raw in raws]
    if len({op.name for op in commands}) < len(commands):
        raise refusal("locks", "duplicate_in_call", "each operation of a call needs a lock of its own")
    keys = sum(_cost(op) for op in commands)
    if keys > limits.LOCK_KEYS_PER_CALL:
        raise refusal("locks", "too_many_keys", f"{keys} permits in one call; {limits.LOCK_KEYS_PER_CALL} is the most")
    return commands


def _cost(op: LockOp) -> int:
    if isinstance(op, Acquire):
        return op.limit
    return limits.LOCK_GET_COST if isinstance(op, GetLock) else 1


def parse_lock_op(fields: _Fields | None) -> LockOp:
    """One op from its fields, None being what is no object."""
    if fields is None:
        raise refusal("locks", "bad_request", "an operation must be an object")
    if any(name in fields for name in _TENANT):
        raise refusal("locks", "tenant_not_an_input", "the tenant comes from the connection, never from an operation")
    word = as_text(fields.get("op"))
    build = _BUILDERS.get(word or "")
    if build is None:
        raise refusal("locks", "unknown_op", f"unknown op: {str(word)[:80]!r}")
    return build(_name(fields.get("name")), fields)


def _acquire(name: str, fields: _Fields) -> LockOp:
    limit = _integer(fields, "limit", 1, limits.LOCK_LIMIT_MAX, 1)
    return Acquire(name, _ttl(fields), _owner(fields.get("owner")), limit)


def _renew(name: str, fields: _Fields) -> LockOp:
    return Renew(name, _token(fields), _ttl(fields), _slot(fields), _owner(fields.get("owner")))


def _release(name: str, fields: _Fields) -> LockOp:
    return Release(name, _token(fields), _slot(fields))


def _get(name: str, fields: _Fields) -> LockOp:
    return GetLock(name)


_BUILDERS: dict[str, Callable[[str, _Fields], LockOp]] = {
    "acquire": _acquire,
    "renew": _renew,
    "release": _release,
    "get": _get,
}


def _name(value: Any) -> str:
    if not isinstance(value, str) or not 1 <= len(value.encode()) <= limits.LOCK_NAME_BYTES:
        raise refusal("locks", "bad_name", f"a lock's name is a text of 1 to {limits.LOCK_NAME_BYTES} bytes")
    if "#" in value or CONTROL.search(value):
        raise refusal("locks", "bad_name", "a lock's name has no `#` and no control character")
    return value


def _owner(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not 1 <= len(value.encode()) <= limits.LOCK_OWNER_BYTES or CONTROL.search(value):
        raise refusal("locks", "bad_owner", f"an owner is a text of 1 to {limits.LOCK_OWNER_BYTES} printable bytes")
    return value


def _integer(fields: _Fields, name: str, low: int, high: int, default: int) -> int:
    value = fields.get(name, default)
    if type(value) is not int or not low <= value <= high:
        raise refusal("locks", f"bad_{name}", f"`{name}` must be an integer, {low} to {high}")
    return value


def _slot(fields: _Fields) -> int:
    return _integer(fields, "slot", 0, limits.LOCK_LIMIT_MAX - 1, 0)


def _token(fields: _Fields) -> int:
    if "token" not in fields:
        raise refusal("locks", "token_required", "give the token of the permit")
    value = fields["token"]
    if not is_int(value) or value <= 0:
        raise refusal("locks", "bad_token", "`token` must be an integer above 0")
    return int(value)


def _ttl(fields: _Fields) -> int:
    if "ttlSeconds" not in fields or "forever" in fields:
        raise refusal("locks", "ttl_required", "a permit needs `ttlSeconds`; it cannot be held for ever")
    value = fields["ttlSeconds"]
    if type(value) is not int or not 0 < value <= limits.TTL_SECONDS_MAX:
        raise refusal("locks", "bad_ttl", f"`ttlSeconds` must be an integer, 1 to {limits.TTL_SECONDS_MAX}")
    return value * SECOND


class LockEvent(Struct, tag_field="event", tag="lock"):
    """A permit that was acquired on a connection is lost (websocket.md 6)."""

    name: str
    state: str
    token: int
    slot: int
    reason: str


def parse_waiting(fields: _Fields) -> tuple[Acquire, int, bool]:
    """An `acquire` that may wait: the op, how long in microseconds, and whether the permit is to live with the
    connection (websocket.md 6). Raises the refusals of section 3.3."""
    op = parse_lock_op({**fields, "op": "acquire"})
    assert isinstance(op, Acquire)
    wait, session = fields.get("waitSeconds"), fields.get("session")
    if wait is None:
        wait = 0
    if type(wait) not in (int, float) or not 0 <= wait <= limits.LOCK_WAIT_SECONDS_MAX:
        raise refusal("locks", "bad_wait", f"`waitSeconds` must be a number, 0 to {limits.LOCK_WAIT_SECONDS_MAX}")
    if session not in (None, True, False):
        raise refusal("locks", "bad_request", "`session` must be true or false")
    return op, round(wait * SECOND), session is True


def render_lock_lost(name: str, token: int, slot: int, reason: str) -> bytes:
    return encode(LockEvent(name, "lost", token, slot, reason))


def render_locks(results: Sequence[LockResult]) -> bytes:
    """`{"results": [...]}`, index aligned."""
    return encode({"results": [lock_element(index, result) for index, result in enumerate(results)]})


def lock_element(index: int, result: LockResult) -> LockElement:
    """One element of 3.4."""
    element = LockElement(index, result.op, result.name)
    match result.op:
        case "acquire":
            element.acquired = result.ok
        case "renew":
            element.renewed = result.ok
        case "release":
            element.released = result.ok
        case _:
            element.held = result.ok
            element.holders = [_holder(holder) for holder in result.holders]
            return element
    if result.op != "acquire" or result.ok:
        element.slot = result.slot
    if not result.ok:
        element.reason = result.reason or "lost"
        element.holders = [_Holder(holder.slot, holder.owner) for holder in result.holders]
    elif result.op != "release":
        element.token = result.token
        element.guard = _Guard("check", LOCKS_NAMESPACE, f"{result.name}#{result.slot}", result.token, True)
        if result.op == "acquire":
            element.owner = result.owner
            if result.already:
                element.already = True
    return element


def _holder(holder: Holder) -> _Holder:
    return _Holder(
        holder.slot,
        holder.owner,
        holder.token,
        offset_time(holder.since),
        None if holder.expires_at is None else offset_time(holder.expires_at),
        offset_time(holder.renewed_at),
    )

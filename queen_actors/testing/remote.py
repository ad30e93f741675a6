"""A client's way in through the wire: its calls as JSON, and the answers as the plain values of `faces.Face`."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
import trio
from msgspec import Raw

from queen_actors.domain.cursor import Ack, PopRequest
from queen_actors.domain.kv import Check, Delete, Get, GetMany, GetPrefix, Incr, KvOp
from queen_actors.domain.locks import Acquire, LockOp, Release, Renew
from queen_actors.domain.partition import PushItem
from queen_actors.domain.queue import Configure
from queen_actors.domain.streams import Cycle, Register
from queen_actors.domain.subscription import Terms
from queen_actors.domain.timers import Schedule, TimerOp
from queen_actors.domain.transaction import Transaction

from .faces import Broken, Deal, Refused, Unanswered
from .links import Link, SocketLink

SECOND, MILLISECOND = 1_000_000, 1_000


class Message(msgspec.Struct, rename="camel"):
    """One delivered message."""

    id: str
    transaction_id: str
    data: Raw
    created_at: str
    partition_id: str
    partition: str
    delivery_attempt: int
    offset: int


class _Popped(msgspec.Struct, rename="camel"):
    lease_id: str
    messages: list[Message]
    queue: str | None = None


class _Row(msgspec.Struct):
    key: str
    version: int
    value: Raw = Raw(b"null")


class _Element(msgspec.Struct, rename="camel"):
    """An element of a kv answer, alone or in a transaction's."""

    op: str = ""
    type: str = "kv"
    found: bool = False
    applied: bool = False
    value: Raw | msgspec.UnsetType = msgspec.UNSET
    version: int = 0
    reason: str | None = None
    rows: list[_Row] | None = None
    key: str = ""


class _Results(msgspec.Struct):
    results: list[_Element] | None = None
    success: bool = True
    reason: str = ""


_popped, _results = msgspec.json.Decoder(_Popped), msgspec.json.Decoder(_Results)

_messages = msgspec.json.Decoder(list[Message])
_HTTP_ONLY = ("seek", "queue.delete", "group.delete", "query", "cycle", "short.push", "short.pop")


class Remote:
    """One client's calls over connections that it makes when it needs one."""

    def __init__(self, dial: Callable[[], Link], *, socket: bool) -> None:
        self._dial = dial
        self._socket = socket
        self.link: Link | None = None

    async def _ask(self, op: str, fields: dict[str, Any], *, fine: tuple[int, ...] = ()) -> tuple[int, bytes]:
        """Raises what `Face` says. Whoever is cancelled, or gets no answer, has no connection any more."""
        if self._socket and op in _HTTP_ONLY:
            raise Refused("the socket has no such call")
        if self.link is None:
            self.link = self._dial()
        answered = False
        try:
            status, body = await self.link.call(op, fields)
            answered = True
        finally:
            if not answered:
                self.hang_up()
        if status in (507, 429):
            raise Refused(str(status))
        if status == 503:
            raise Unanswered(body.decode())
        if status >= 300 and status not in fine:
            raise Broken(f"I17 no call of these is wrong: {op} {fields} {status} {body!r}")
        return status, body

    async def ask(self, op: str, fields: dict[str, Any]) -> Any:
        status, body = await self._ask(op, dict(fields), fine=(404, 409))
        return status, msgspec.json.decode(body) if body else None

    async def in_line(self, fields: dict[str, Any], placed: Callable[[], None]) -> Any:
        if self.link is None:
            self.link = self._dial()
        link, answered = self.link, False
        assert isinstance(link, SocketLink)
        try:
            acquire = await link.ask("lock.acquire", fields)
            await link.reply(await link.ask("kv", {"operations": [{"op": "get", "ns": "sim", "key": "0"}]}))
            placed()
            status, body = await link.reply(acquire)
            answered = True
        finally:
            if not answered:
                self.hang_up()
        if status in (507, 429):
            raise Refused(str(status))
        if status == 503:
            raise Unanswered(body.decode())
        return [_noted_lock(msgspec.json.decode(body))]

    async def event(self) -> dict[str, Any]:
        if not isinstance(self.link, SocketLink):
            raise Unanswered("the connection is gone")
        answered = False
        try:
            event = await self.link.event()
            answered = True
        except trio.Cancelled:
            answered = True  # nothing of the next one was taken
            raise
        finally:
            if not answered:
                self.hang_up()
        found: dict[str, Any] = msgspec.json.decode(event.text)
        return found

    def hang_up(self) -> None:
        """The connection is cut, if there is one."""
        if self.link is not None:
            self.link.cut()
            self.link = None

    async def push(self, items: Sequence[PushItem]) -> Any:
        _, body = await self._ask("push", {"items": [_item(item) for item in items]})
        return [(e["transaction_id"], e["status"], e["offset"], e["message_id"]) for e in msgspec.json.decode(body)]

    async def pop(self, request: PopRequest) -> Any:
        fields: dict[str, Any] = {"consumerGroup": request.group, "batch": request.batch}
        for name in ("queue", "partition", "namespace", "partitions"):
            if getattr(request, name) is not None:
                fields[name] = getattr(request, name)
        if request.lease:
            fields["leaseSeconds"] = request.lease // SECOND
        if request.wait:
            fields |= {"wait": "true", "timeout": request.wait // MILLISECOND}
        if request.auto_ack:
            fields["autoAck"] = "true"
        status, body = await self._ask("pop", fields)
        if status == 204:
            return "", []
        reply = _popped.decode(body)
        return reply.lease_id, claims_of(reply.messages, reply.queue)

    async def ack(self, acks: Sequence[Ack]) -> Any:
        _, body = await self._ask("ack", {"acknowledgments": [_ack(ack) for ack in acks]})
        return [(e["success"], e["noop"], e["dlq"], e["leaseReleased"]) for e in msgspec.json.decode(body)]

    async def release(self, lease: str) -> Any:
        raise Refused("the wire has no such call")

    async def extend(self, lease: str, seconds: int) -> Any:
        _, body = await self._ask("extend", {"leaseId": lease, "seconds": seconds})
        return msgspec.json.decode(body)["renewed"]

    async def kv(self, ops: Sequence[KvOp]) -> Any:
        _, body = await self._ask("kv", {"operations": [kv_op(op) for op in ops]})
        results = _results.decode(body).results
        return "precondition" if results is None else [_noted(element) for element in results]

    async def locks(self, ops: Sequence[LockOp]) -> Any:
        _, body = await self._ask("locks", {"operations": [_lock_op(op) for op in ops]})
        return [_noted_lock(element) for element in msgspec.json.decode(body)["results"]]

    async def acquire(self, op: Acquire, wait: int) -> Any:
        if not self._socket:
            return await self.locks([op])
        fields = {**_lock_op(op), "waitSeconds": wait / SECOND}
        del fields["op"]
        _, body = await self._ask("lock.acquire", fields)
        return [_noted_lock(msgspec.json.decode(body))]

    async def timers(self, ops: Sequence[TimerOp]) -> Any:
        _, body = await self._ask("timers", {"operations": [_timer_op(op) for op in ops]})
        return [
            (e["status"], e["messageId"], instant(e["deliverAt"])) if "deliverAt" in e else (e["status"], e["txn"])
            for e in msgspec.json.decode(body)["results"]
        ]

    async def transaction(self, bundle: Transaction) -> Any:
        fields = {
            "operations": [
                {"type": "push", "items": [_item(step)]}
                if isinstance(step, PushItem)
                else {"type": "ack", **_ack(step)}
                for step in bundle.steps
            ],
            "kv": [kv_op(op) for op in bundle.kv],
            "timers": [_timer_op(op) for op in bundle.timers],
        }
        _, body = await self._ask("transaction", fields)
        reply = _results.decode(body)
        if not reply.success:
            return False, reply.reason
        return True, [_noted(element) for element in reply.results or () if element.type == "kv"]

    async def configure(self, command: Configure) -> Any:
        raise Refused("left to the broker's own")

    async def delete_queue(self, queue: str) -> Any:
        _, body = await self._ask("queue.delete", {"queue": queue})
        return msgspec.json.decode(body)

    async def seek(self, group: str, queue: str, to: int | None) -> Any:
        where: dict[str, Any] = {"toEnd": True} if to is None else {"timestamp": _spelled(to)}
        status, body = await self._ask("seek", {"group": group, "queue": queue, **where}, fine=(404,))
        return None if status == 404 else msgspec.json.decode(body)

    async def delete_group(self, group: str, queue: str) -> Any:
        _, body = await self._ask("group.delete", {"group": group, "queue": queue})
        return msgspec.json.decode(body)

    async def subscribe(self, terms: Terms, deal: Deal) -> None:
        if not self._socket:
            raise Refused("HTTP has no such call")
        wanted = {"queue": terms.queue, "group": terms.group, "credit": terms.credit, "batch": terms.batch}
        try:
            await self._ask("subscribe", {"sub": "s", **wanted, "leaseSeconds": terms.lease_seconds})
            while True:
                link = self.link
                if not isinstance(link, SocketLink):
                    raise Unanswered("the connection is gone")
                event = await link.event()
                if event.event == "messages" and event.leaseId is not None:
                    await deal(event.leaseId, claims_of(_messages.decode(event.messages), terms.queue))
        finally:
            self.hang_up()

    async def register(self, command: Register) -> Any:
        fields = {"name": command.name, "source_queue": command.source, "config_hash": command.config_hash}
        _, body = await self._ask("query", {**fields, "reset": False, "sink_queue": command.sink})
        return msgspec.json.decode(body)["query_id"]

    async def cycle(self, cycle: Cycle) -> Any:
        fields: dict[str, Any] = {
            "query_id": cycle.query,
            "partition_id": str(cycle.pid),
            "consumer_group": cycle.group,
        }
        fields["state_ops"] = [{"type": "upsert", "key": op.key, "value": Raw(op.value or b"null")} for op in cycle.ops]
        fields["push_items"] = [_item(item) for item in cycle.pushes]
        if cycle.ack is not None:
            ack = cycle.ack
            fields["ack"] = {
                "transactionId": ack.txn,
                "leaseId": ack.lease_id,
                "status": ack.status,
                "count": ack.count,
            }
        _, body = await self._ask("cycle", {**fields, "release_lease": cycle.release})
        reply = msgspec.json.decode(body)
        return True if reply["success"] else reply["reason"]

    async def push_ephemeral(self, queue: str, payload: bytes) -> Any:
        message = {"payload": Raw(payload)}
        _, body = await self._ask("short.push", {"queue": queue, "partition": "one", "messages": [message]})
        return msgspec.json.decode(body)["pushed"]

    async def pop_ephemeral(self, queue: str, group: str) -> Any:
        fields = {"queue": queue, "group": group, "batch": 3, "autoAck": "true"}
        _, body = await self._ask("short.pop", fields)
        return [bytes(message.payload) for message in _shorts.decode(body).messages]


class _Short(msgspec.Struct):
    payload: Raw


class _Shorts(msgspec.Struct):
    messages: list[_Short]


_shorts = msgspec.json.Decoder(_Shorts)


def claims_of(messages: Sequence[Message], queue: str | None) -> list[Any]:
    """Messages as claims; the wire names the queue of the first one only."""
    claims: dict[str, Any] = {}
    for message in messages:
        place = (queue, message.partition, int(message.partition_id), message.delivery_attempt)
        records: list[Any] = claims.setdefault(message.partition_id, (*place, []))[4]
        record = (message.transaction_id, message.id, bytes(message.data), instant(message.created_at))
        records.append((message.offset, *record))
    return list(claims.values())


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def instant(text: str) -> int:
    """Microseconds since the epoch."""
    since = datetime.fromisoformat(text) - _EPOCH
    return (since.days * 86_400 + since.seconds) * SECOND + since.microseconds


def _spelled(at: int) -> str:
    return datetime.fromtimestamp(at // SECOND, UTC).replace(microsecond=at % SECOND).isoformat()


def _item(item: PushItem) -> dict[str, Any]:
    place = {"queue": item.queue, "partition": item.partition, "transactionId": item.txn}
    return {**place, "payload": Raw(item.payload)}


def _ack(ack: Ack) -> dict[str, Any]:
    what = {"transactionId": ack.txn, "partitionId": str(ack.pid), "status": ack.status}
    return {**what, "consumerGroup": ack.group, "leaseId": ack.lease_id}


def _number(value: Decimal) -> Raw:
    return Raw(str(value).encode())


def kv_op(op: KvOp) -> dict[str, Any]:
    """An op as the wire spells it."""
    fields: dict[str, Any] = {"ns": op.ns}
    if isinstance(op, GetMany):
        return {**fields, "op": "getMany", "keys": list(op.keys)}
    if isinstance(op, GetPrefix):
        return {**fields, "op": "getPrefix", "prefix": op.prefix}
    fields["key"] = op.key
    if isinstance(op, Get):
        return {**fields, "op": "get"}
    if op.required:
        fields["required"] = True
    if isinstance(op, Check):
        return {**fields, "op": "check", "expect": op.expect}
    if isinstance(op, Delete):
        return {**fields, "op": "delete"} if op.expect is None else {**fields, "op": "delete", "expect": op.expect}
    fields |= {"forever": True} if op.ttl is None else {"ttlSeconds": op.ttl // SECOND}
    if isinstance(op, Incr):
        bounds = {name: _number(value) for name, value in (("min", op.min), ("max", op.max)) if value is not None}
        return {**fields, "op": "incr", "delta": _number(op.delta), **bounds}
    if op.expect is not None and not op.if_absent:
        fields["expect"] = op.expect
    return {**fields, "op": "putIfAbsent" if op.if_absent else "put", "value": Raw(op.value)}


def _noted(element: _Element) -> Any:
    if element.op == "get":
        return (_text(element.value), element.version) if element.found else None
    if element.rows is not None:
        return [(row.key, bytes(row.value), row.version) for row in element.rows]
    return element.applied, _text(element.value), element.version, element.reason


def _text(value: Raw | msgspec.UnsetType) -> bytes | None:
    return None if isinstance(value, msgspec.UnsetType) else bytes(value)


def _lock_op(op: LockOp) -> dict[str, Any]:
    fields: dict[str, Any] = {"name": op.name}
    if isinstance(op, Acquire):
        return {**fields, "op": "acquire", "ttlSeconds": op.ttl // SECOND, "owner": op.owner, "limit": op.limit}
    if isinstance(op, Renew):
        held = {"token": op.token, "slot": op.slot, "owner": op.owner}
        return {**fields, "op": "renew", "ttlSeconds": op.ttl // SECOND, **held}
    if isinstance(op, Release):
        return {**fields, "op": "release", "token": op.token, "slot": op.slot}
    return {**fields, "op": "get"}


def _noted_lock(element: dict[str, Any]) -> Any:
    ok = any(element.get(word, False) for word in ("acquired", "renewed", "released", "held"))
    return ok, element.get("token", 0), element.get("already", False), element.get("slot", 0)


def _timer_op(op: TimerOp) -> dict[str, Any]:
    fields: dict[str, Any] = {"queue": op.queue, "timerKey": op.key}
    if isinstance(op, Schedule):
        what = {"partition": op.partition, "txn": op.txn, "payload": base64.b64encode(op.payload).decode()}
        return {**fields, "op": "schedule", "delayMs": op.delay // MILLISECOND, **what}
    return {**fields, "op": "cancel"}

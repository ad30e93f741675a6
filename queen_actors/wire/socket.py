"""The frames of `queen.v1` (`websocket.md`): requests, replies and events, and how they are framed (RFC 6455, 5.2).

Bodies go in and out as JSON text: what the HTTP route would answer is embedded as it is, never decoded.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Raw, Struct, field

from queen_actors import limits
from queen_actors.domain.subscription import TailTerms, Terms
from queen_actors.errors import BadRequest
from queen_actors.values import QUEUE_MODE, parse_instant

from .frames import Malformed, check_name, check_names, encode, raw_object

PROTOCOL = "queen.v1"
BEARER = "bearer."
"""What a subprotocol begins with that is a token in disguise, for browsers (section 1)."""

NORMAL, GOING_AWAY, UNSUPPORTED, TOO_BIG, INTERNAL = 1000, 1001, 1003, 1009, 1011
BAD_FRAME, UNAUTHORIZED, FORBIDDEN, TOO_SLOW, TOO_MANY = 4400, 4401, 4403, 4408, 4429
"""Close codes (section 7)."""

T = TypeVar("T")


class NotAnObject(ValueError):
    """A frame that is not one JSON object: the connection is closed with 4400."""


class Frame(Struct):
    """A request. `id` is the JSON text of the client's scalar, None when there is none (null counts as none)."""

    op: str
    id: bytes | None
    fields: dict[str, Raw]
    text: bytes


class BadFrame(BadRequest):
    """A request whose `id` or `op` cannot be read; `id` is its id as far as that is known."""

    def __init__(self, detail: str, id: bytes | None) -> None:
        super().__init__(detail)
        self.id = id


def parse_frame(text: bytes) -> Frame:
    """Raises NotAnObject when there is no object, and BadFrame when it is no request."""
    try:
        fields = _object.decode(text)
    except (msgspec.DecodeError, RecursionError):
        fields = _no_object(text)
    raw_id = fields.get("id")
    id = None if raw_id is None else bytes(raw_id)
    if id == b"null":
        id = None
    if id is not None and id[:1] in b"{[":
        raise BadFrame("id must be a JSON scalar", None)
    raw_op = fields.get("op")
    try:
        op = "" if raw_op is None else _text.decode(raw_op)
    except msgspec.ValidationError:
        op = ""
    if not op:
        raise BadFrame("op must be the name of an operation", id)
    return Frame(op, id, fields, text)


def _no_object(text: bytes) -> dict[str, Raw]:
    try:
        return raw_object(text)
    except (Malformed, msgspec.ValidationError) as wrong:
        raise NotAnObject(str(wrong)) from None


class _Subscribe(Struct, rename="camel"):
    """The fields of a `subscribe` as they may be sent: null is as good as absent."""

    sub: str
    queue: str | None = None
    partition: str | None = None
    namespace: str | None = None
    task: str | None = None
    group: str | None = None
    consumer_group: str | None = None  # the name that it has everywhere else
    subscription_mode: str | None = None
    subscription_from: str | None = None
    credit: int | None = None
    batch: int | None = None
    partitions: int | None = None
    auto_ack: bool | None = None
    lease_seconds: int | None = None
    max_lease_seconds: int | None = None


class _Tail(Struct):
    sub: str
    queue: str
    partition: str | None = None
    start: str | dict[str, int] | None = field(name="from", default=None)
    credit: int | None = None


class _Credit(Struct):
    sub: str
    add: int


class _Named(Struct):
    sub: str


class _Auth(Struct):
    token: str


REQUESTS: Mapping[str, type[Struct]] = {
    "subscribe": _Subscribe,
    "tail": _Tail,
    "unsubscribe": _Named,
    "credit": _Credit,
    "auth": _Auth,
}
"""The fields of the ops that are read here, for the protocol's description."""

_object = msgspec.json.Decoder(dict[str, Raw])
_text = msgspec.json.Decoder(str)
_subscribe = msgspec.json.Decoder(_Subscribe)
_tail = msgspec.json.Decoder(_Tail)
_credit = msgspec.json.Decoder(_Credit)
_named = msgspec.json.Decoder(_Named)
_auth = msgspec.json.Decoder(_Auth)


def _fields(decoder: msgspec.json.Decoder[T], frame: Frame) -> T:
    try:
        return decoder.decode(frame.text)
    except msgspec.ValidationError as wrong:
        raise BadRequest(str(wrong)) from None


_DEFAULT = Terms()


def parse_subscribe(frame: Frame) -> tuple[str, Terms]:
    """The client's name for the subscription, and its terms. Raises BadRequest and TooLarge."""
    asked = _fields(_subscribe, frame)
    check_client_name("sub", asked.sub)
    group = asked.group or asked.consumer_group or QUEUE_MODE
    queue, partition = asked.queue or None, asked.partition or None
    namespace, task = (None, None) if queue else (asked.namespace or None, asked.task or None)
    if queue is not None:
        check_names(queue, partition, group)
    elif namespace is None and task is None:
        raise BadRequest("queue is required, or namespace or task")
    elif partition is not None:
        raise BadRequest("partition needs a queue")
    else:
        check_name("consumer group", group)
    return asked.sub, Terms(
        queue=queue,
        partition=partition,
        namespace=namespace,
        task=task,
        group=group,
        credit=_within("credit", asked.credit, _DEFAULT.credit, 0, limits.WS_CREDIT_MAX),
        batch=_within("batch", asked.batch, _DEFAULT.batch, 1, limits.POP_BATCH_MAX),
        partitions=_within("partitions", asked.partitions, _DEFAULT.partitions, 1, limits.POP_PARTITIONS_MAX),
        auto_ack=bool(asked.auto_ack),
        lease_seconds=_within("leaseSeconds", asked.lease_seconds, _DEFAULT.lease_seconds, 1, _SECONDS_MAX),
        max_lease_seconds=_within(
            "maxLeaseSeconds", asked.max_lease_seconds, _DEFAULT.max_lease_seconds, 1, _SECONDS_MAX
        ),
        subscription_mode=asked.subscription_mode or None,
        subscription_from=_start(asked.subscription_from),
    )


def check_client_name(field: str, name: str) -> None:
    if not 1 <= len(name) <= limits.WS_SUB_CHARS:
        raise BadRequest(f"{field} must be a name of 1 to {limits.WS_SUB_CHARS} characters")


def parse_tail(frame: Frame) -> tuple[str, TailTerms]:
    """The client's name for the tail, and its terms (section 4). Raises BadRequest and TooLarge."""
    asked = _fields(_tail, frame)
    check_client_name("sub", asked.sub)
    if not asked.queue:
        raise BadRequest("queue is required")
    partition = asked.partition or None
    check_names(asked.queue, partition)
    credit = _within("credit", asked.credit, limits.WS_TAIL_CREDIT_DEFAULT, 0, limits.WS_CREDIT_MAX)
    return asked.sub, TailTerms(asked.queue, partition, parse_tail_start(asked.start), credit)


def parse_tail_start(start: str | Mapping[str, int] | None) -> Literal["now", "start"] | int | Mapping[str, int]:
    """A tail's `from`. Raises BadRequest."""
    if start is None or start == "now":
        return "now"
    if start == "start":
        return "start"
    if not isinstance(start, str):
        if any(offset < 0 for offset in start.values()):
            raise BadRequest("from names the next offset of a partition: 0 or more")
        return start
    try:
        return parse_instant(start)
    except ValueError:
        raise BadRequest(
            f"from must be `now`, `start`, an ISO 8601 instant or the next offset of each partition: {start[:80]!r}"
        ) from None


def _start(text: str | None) -> str | None:
    if not text or text == "now":
        return text or None
    try:
        parse_instant(text)
    except ValueError:
        raise BadRequest(f"subscriptionFrom must be `now` or an ISO 8601 instant: {text[:80]!r}") from None
    return text


_SECONDS_MAX = 10**9  # an instant that is still a date


def _within(name: str, value: int | None, default: int, low: int, high: int) -> int:
    if value is None:
        return default
    if not low <= value <= high:
        raise BadRequest(f"{name} must be from {low} to {high}")
    return value


def parse_credit(frame: Frame) -> tuple[str, int]:
    """The subscription's name and how many messages more may be under way. Raises BadRequest."""
    asked = _fields(_credit, frame)
    return asked.sub, _within("add", asked.add, 0, 1, limits.WS_CREDIT_MAX)


def parse_sub(frame: Frame) -> str:
    """The name of the subscription that the request is about. Raises BadRequest."""
    return _fields(_named, frame).sub


def parse_token(frame: Frame) -> str:
    """The token of an `auth` frame. Raises BadRequest."""
    return _fields(_auth, frame).token


def bearer_of(subprotocol: str) -> str | None:
    """The token in a subprotocol `bearer.<base64url without padding>`; None when it is none or cannot be read."""
    if not subprotocol.startswith(BEARER):
        return None
    text = subprotocol[len(BEARER) :]
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


# -- what the server says ----------------------------------------------------------------------------------------------


class _Welcome(Struct, rename="camel", tag_field="event", tag="welcome"):
    protocol: str
    version: str
    session: str
    heartbeat_seconds: float
    max_frame_bytes: int
    now: str


class _Lease(Struct, rename="camel", tag_field="event", tag="lease"):
    sub: str
    lease_id: str
    state: str
    reason: str
    partition: str
    partition_id: str


EVENTS: Mapping[str, type[Struct]] = {
    "welcome": _Welcome,
    "lease": _Lease,
}
"""The events that are told here, for the protocol's description; those with messages are in `delivery.py`."""


def render_reply(id: bytes, status: int, body: bytes) -> bytes:
    """The reply to a request (section 2); an empty body is `null`."""
    if status < 400:
        return b'{"id":%b,"ok":true,"status":%d,"body":%b}' % (id, status, body or b"null")
    return b'{"id":%b,"ok":false,"status":%d,"error":%b}' % (id, status, body or b"null")


def render_failure(op: str | None, status: int, body: bytes, sub: str | None = None) -> bytes:
    """What says that a request without an id failed, or that a subscription did. Never silence."""
    about: dict[str, Any] = {"event": "error", "op": op, "sub": sub, "status": status, "error": Raw(body or b"null")}
    return encode({name: value for name, value in about.items() if value is not None})


def render_pong(id: bytes | None) -> bytes:
    return b'{"event":"pong"}' if id is None else b'{"event":"pong","id":%b}' % id


def render_welcome(version: str, session: str, heartbeat_seconds: float, frame_bytes: int, now: str) -> bytes:
    whole = int(heartbeat_seconds)
    heartbeat = whole if whole == heartbeat_seconds else heartbeat_seconds
    return encode(_Welcome(PROTOCOL, version, session, heartbeat, frame_bytes, now))


def render_lost(sub: str, lease_id: str, partition: str, pid: int, reason: str) -> bytes:
    """A lease of one partition ended before its messages were settled."""
    return encode(_Lease(sub, lease_id, "lost", reason, partition, str(pid)))


# -- framing -----------------------------------------------------------------------------------------------------------

_CONTINUATION, _TEXT, _CLOSE = 0x00, 0x01, 0x08
_LAST = 0x80
CONTROL_BYTES = 125  # what a control frame may carry


def text_frames(payload: bytes, longest: int) -> Iterator[bytes]:
    """One text message as a server sends it: unmasked, in one frame, or in fragments of `longest` bytes each."""
    if len(payload) <= longest:
        yield _head(_LAST | _TEXT, len(payload)) + payload
        return
    for first in range(0, len(payload), longest):
        part = payload[first : first + longest]
        opcode = _CONTINUATION if first else _TEXT
        last = _LAST if first + longest >= len(payload) else 0
        yield _head(last | opcode, len(part)) + part


def joined_frames(payloads: Iterable[bytes], longest: int) -> Iterator[bytes]:
    """Text messages as they are sent, in pieces of whole frames: as many in one piece as `longest` bytes hold."""
    joined: list[bytes] = []
    size = 0
    for payload in payloads:
        head = _head(_LAST | _TEXT, len(payload))
        length = len(head) + len(payload)
        if size + length > longest and joined:
            yield b"".join(joined)
            joined, size = [], 0
        if len(payload) > longest:
            yield from text_frames(payload, longest)
            continue
        joined += (head, payload)
        size += length
    if joined:
        yield b"".join(joined)


def _head(first: int, size: int) -> bytes:
    if size <= CONTROL_BYTES:
        return bytes((first, size))
    return _middle(first, 126, size) if size < 1 << 16 else struct.pack("!BBQ", first, 127, size)


_middle = struct.Struct("!BBH").pack


def close_frame(code: int, reason: str) -> bytes:
    """A close frame; a reason that is too long is cut at a whole character."""
    text = reason.encode()[: CONTROL_BYTES - 2].decode(errors="ignore").encode()
    return struct.pack("!BBH", _LAST | _CLOSE, 2 + len(text), code) + text


def is_close(frame: bytes) -> bool:
    return frame[0] == _LAST | _CLOSE


def is_control(frame: bytes) -> bool:
    """A ping, a pong or a close."""
    return frame[0] & 0xF8 == _LAST | _CLOSE

"""Which HTTP route an op stands for (`websocket.md`, section 2): the answer is that route's, to the byte."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Raw

from queen_actors import limits
from queen_actors.api import Request
from queen_actors.errors import BadRequest
from queen_actors.wire.frames import as_text, query_bool, query_int
from queen_actors.wire.socket import Frame

Headers = dict[str, str]
"""What every request of one connection carries: who is calling."""

_POP_FIELDS = (
    "batch",
    "wait",
    "timeout",
    "consumerGroup",
    "autoAck",
    "leaseSeconds",
    "subscriptionMode",
    "subscriptionFrom",
    "namespace",
    "task",
    "partitions",
    "conflation",
)
"""Without `frames`, which asks for a binary answer, and `autopilot`, which may be ignored (messaging 7.8)."""

_scalar = msgspec.json.Decoder(str | int | float | bool | None)


def _text(fields: Mapping[str, Raw], name: str) -> str | None:
    """A field as a query spells it; None when it is null or absent. Raises BadRequest."""
    raw = fields.get(name)
    if raw is None:
        return None
    try:
        value = _scalar.decode(raw)
    except msgspec.ValidationError:
        raise BadRequest(f"{name} must be a string, a number or a boolean") from None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return bytes(raw).decode()  # a number as it was spelled
    return as_text(value)


def _segment(fields: Mapping[str, Raw], name: str) -> str:
    """A field as one segment of a path. Raises BadRequest when it is missing."""
    text = _text(fields, name)
    if not text:
        raise BadRequest(f"{name} is required")
    return quote(text, safe="")


def _query(fields: Mapping[str, Raw], names: Iterable[str]) -> dict[str, str]:
    texts = ((name, _text(fields, name)) for name in names)
    return {name: text for name, text in texts if text is not None}


def _body(fields: Mapping[str, Raw], names: Iterable[str]) -> bytes:
    """An object of these fields, each as the client spelled it."""
    return b"{" + b",".join([b'"%b":%b' % (n.encode(), bytes(fields[n])) for n in names if n in fields]) + b"}"


def _request(method: str, path: str, headers: Headers, *, query: Mapping[str, str] = {}, body: bytes = b"") -> Request:
    return Request(method, path.encode(), urlencode(query).encode(), headers, body)


def _post(path: bytes, *names: str) -> Callable[[Frame, Headers], Request]:
    """A POST of an object with these fields."""
    heads = [(name, b'"%b":' % name.encode()) for name in names]

    def build(frame: Frame, headers: Headers) -> Request:
        fields = frame.fields
        pieces = [head + fields[name] for name, head in heads if name in fields]
        return Request("POST", path, b"", headers, b"{%b}" % b",".join(pieces))

    return build


def _post_one(path: bytes, name: str) -> Callable[[Frame, Headers], Request]:
    """A POST of an object with this one field, which is what most requests are."""
    spelled = b'{"%b":' % name.encode()

    def build(frame: Frame, headers: Headers) -> Request:
        raw = frame.fields.get(name)
        return Request("POST", path, b"", headers, b"{}" if raw is None else b"%b%b}" % (spelled, raw))

    return build


def _configure(frame: Frame, headers: Headers) -> Request:
    names = [name for name in frame.fields if name not in ("id", "op")]
    body = msgspec.json.encode({name: frame.fields[name] for name in names})
    return _request("POST", "/api/v1/configure", headers, body=body)


def _extend(frame: Frame, headers: Headers) -> Request:
    path = f"/api/v1/lease/{_segment(frame.fields, 'leaseId')}/extend"
    return _request("POST", path, headers, body=_body(frame.fields, ("seconds",)))


def _timer_get(frame: Frame, headers: Headers) -> Request:
    queue, key = _segment(frame.fields, "queue"), _segment(frame.fields, "timerKey")
    return _request("GET", f"/api/v1/timers/{queue}/{key}", headers)


def _timer_list(frame: Frame, headers: Headers) -> Request:
    path = f"/api/v1/timers/{_segment(frame.fields, 'queue')}"
    return _request("GET", path, headers, query=_query(frame.fields, ("after", "limit", "mode", "prefix")))


def pop_request(frame: Frame, headers: Headers, timeout_ms: int | None = None) -> Request:
    """The pop that the fields describe; `timeout_ms` in place of its own `timeout`."""
    fields = frame.fields
    query = _query(fields, _POP_FIELDS)
    if timeout_ms is not None:
        query["timeout"] = str(timeout_ms)
    path = "/api/v1/pop"
    if _text(fields, "queue"):
        path += f"/queue/{_segment(fields, 'queue')}"
        if _text(fields, "partition"):
            path += f"/partition/{_segment(fields, 'partition')}"
    return _request("GET", path, headers, query=query)


def pop_timeout_ms(frame: Frame) -> int:
    """How long the pop may wait, 0 when it does not, or when its fields are wrong (the route will say so)."""
    try:
        query = _query(frame.fields, ("wait", "timeout"))
        if query_bool(query, "wait"):
            return query_int(query, "timeout", limits.POP_WAIT_MS_DEFAULT, 1, limits.POP_WAIT_MS_MAX)
    except BadRequest:
        pass
    return 0


ROUTES: Mapping[str, Callable[[Frame, Headers], Request]] = {
    "push": _post_one(b"/api/v1/push", "items"),
    "ack": _post(b"/api/v1/ack/batch", "acknowledgments", "consumerGroup"),
    "extend": _extend,
    "transaction": _post(b"/api/v1/transaction", "operations", "requiredLeases", "kv", "timers", "positions"),
    "kv": _post_one(b"/api/v1/kv", "operations"),
    "locks": _post_one(b"/api/v1/locks", "operations"),
    "timers": _post_one(b"/api/v1/timers", "operations"),
    "timer.get": _timer_get,
    "timer.list": _timer_list,
    "configure": _configure,
}
"""The ops that are one call of one route. `pop` is too, but it may wait: see `pop_request`."""

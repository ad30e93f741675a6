"""Requests out of the bytes of a connection, without any I/O: what the fast lane reads.

llhttp (httptools) parses; before it, every head is held against the grammar of RFC 9112 as strict as it is written
there. What two parsers could read differently is refused, so that no proxy in front and no lane behind ever sees
other requests than this one: a bare line feed, a folded line, a space before a colon, a length that is no number or
not the only one, a length beside a transfer coding, a target that is no path.
"""

from __future__ import annotations

import re
from functools import lru_cache

import httptools
from msgspec import Struct

from queen_actors import limits

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]"
_HEAD = re.compile(
    _TOKEN + rb"++ (?:/[!\"$-~]*+|https?://[!\"$-~]++|\*) HTTP/1\.[01]\r\n"
    rb"(?:" + _TOKEN + rb"++:[\t -~\x80-\xff]*+\r\n)*+\r\n"
)
_HEAD_END = b"\r\n\r\n"
_NOT_CRLF = re.compile(rb"(?<!\r)\n|\r(?=[^\n])")
_HTTP_2 = b"PRI * HTTP/2.0\r\n\r\n"  # RFC 9113, 3.4: the first bytes of a connection that knows beforehand
_HOST = re.compile(r"[A-Za-z0-9\-._~!$&'()*+,;=%:\[\]]*")
_LENGTH = re.compile(r"[0-9]{1,18}")
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})(?:;[\t -~]*+)?\r\n")
_TRAILER = re.compile(_TOKEN + rb"++:[\t -~\x80-\xff]*+\r\n")
_ONCE = frozenset(("host", "content-length", "transfer-encoding", "authorization", "content-type", "expect"))
_CACHED_BYTES = 1024  # of heads that are remembered
_CACHED_HEADS = 1024


class Refused(Exception):
    """What has come is no request that is served: a status and a sentence. The connection ends with it."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail


class Head(Struct, frozen=True):
    """The head of one request. `path` is raw and has no query; header names are in lower case."""

    method: str
    path: bytes
    query: bytes
    headers: dict[str, str]
    length: int
    """Of the body, in bytes; 0 also when it is chunked."""
    chunked: bool
    keeps: bool
    """The connection goes on after the answer."""
    expects: bool
    """The body comes after a `100 Continue`."""
    upgrades: bool
    """It asks for another protocol, which is not served here."""


class Message(Struct, frozen=True):
    """One whole request."""

    head: Head
    body: bytes


class RequestReader:
    """Takes bytes as they come and gives requests, one after another; each is the same however the bytes were cut."""

    def __init__(self) -> None:
        self.head: Head | None = None
        """Of the request whose body has not come whole."""
        self.other_protocol = False
        """What comes next asks for HTTP/2 or an upgrade: it stays in `unread`."""
        self._data = b""
        self._at = 0
        self._head_bytes = b""
        self._parts: list[bytes] = []
        self._missing = 0
        self._chunks: _Chunks | None = None

    @property
    def unread(self) -> bytes:
        """What no request has taken yet."""
        return self._data[self._at :]

    @property
    def held(self) -> int:
        """How much memory what has come takes, about."""
        if self.head is None:
            return len(self._data) - self._at
        return (
            len(self._data)
            - self._at
            + (self.head.length - self._missing if self._chunks is None else self._chunks.size)
        )

    @property
    def begun(self) -> bool:
        """Has something of the body come?"""
        return self.head is not None and self.held > 0

    def receive(self, data: bytes) -> None:
        """More bytes of the connection."""
        if self._missing:
            taken = data[: self._missing]
            self._parts.append(taken)
            self._missing -= len(taken)
            data = data[len(taken) :]
        self._data = self._data[self._at :] + data if self._at < len(self._data) else data
        self._at = 0

    def next(self) -> Message | None:
        """The next request; None when more must come, or when it is of another protocol. Raises Refused."""
        head = self.head
        if head is None:
            head = self._next_head()
            if head is None:
                return None
            if not head.chunked and not head.length:
                return Message(head, b"")
            self._begin_body(head)
        body = self._whole_body(head)
        if body is None:
            return None
        self.head = self._chunks = None
        self._parts = []
        return Message(head, body)

    def _next_head(self) -> Head | None:
        data, at = self._data, self._at
        end = data.find(_HEAD_END, at)
        if end < 0:
            if len(data) > at:
                self._judge_beginning(data[at:])
            return None
        end += len(_HEAD_END)
        raw = data[at:end] if at or end < len(data) else data
        if raw == _HTTP_2:
            self.other_protocol = True
            return None
        if len(raw) > limits.HTTP_HEAD_BYTES:
            raise _head_too_long()
        head = _remembered(raw) if len(raw) <= _CACHED_BYTES else parse_head(raw)
        if head.upgrades:
            self.other_protocol = True
            return None
        self._at = end
        self._head_bytes = raw
        return head

    def _judge_beginning(self, data: bytes) -> None:
        """What can never become a head is refused now, not when its time is over."""
        if len(data) > limits.HTTP_HEAD_BYTES:
            raise _head_too_long()
        if not re.match(_TOKEN, data) or _NOT_CRLF.search(data):
            raise _malformed("the request's head is malformed")

    def _begin_body(self, head: Head) -> None:
        if head.length > limits.BODY_BYTES:
            raise too_large()
        self.head = head
        if head.chunked:
            self._chunks = _Chunks(self._head_bytes)
            return
        data, start = self._data, self._at
        part = data[start : start + head.length]
        self._parts = [part]
        self._missing = head.length - len(part)
        self._at = start + len(part)

    def _whole_body(self, head: Head) -> bytes | None:
        if self._chunks is None:
            if self._missing:
                return None
            return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._at = self._chunks.take(self._data, self._at)
        return self._chunks.body() if self._chunks.complete else None


class _Chunks:
    """A chunked body: finds where it ends, and has llhttp read it, which must find the same."""

    def __init__(self, head: bytes) -> None:
        self.complete = False
        self.size = 0
        self._parts: list[bytes] = []
        self._left = 0
        """Bytes of this chunk that have not come, its line end included."""
        self._trailer = False
        self._framing = 0
        self._found_end = False
        self._parser = httptools.HttpRequestParser(self)
        self._parser.feed_data(head)

    def on_body(self, part: bytes) -> None:
        self._parts.append(part)

    def on_message_complete(self) -> None:
        self._found_end = True

    def body(self) -> bytes:
        return b"".join(self._parts)

    def take(self, data: bytes, at: int) -> int:
        """Take of the data from `at` on what belongs to the body; returns where it stopped. Raises Refused."""
        start = at
        while not self.complete:
            if self._left:
                step = min(self._left, len(data) - at)
                if not step:
                    break
                self._left -= step
                at += step
                continue
            end = data.find(b"\n", at)
            if end < 0 or end - at >= limits.HTTP_CHUNK_LINE_BYTES:
                if len(data) - at >= limits.HTTP_CHUNK_LINE_BYTES:
                    raise _malformed("a line of the chunked body is too long")
                break
            self._line(data[at : end + 1])
            at = end + 1
        self._feed(data[start:at])
        return at

    def _line(self, line: bytes) -> None:
        self._framing += len(line)
        # Chunks of a byte each cost a hundred times what they carry
        if self._framing > limits.HTTP_CHUNK_FRAMING_BYTES + self.size:
            raise _malformed("the body's chunks are too small")
        if self._trailer:
            if line == b"\r\n":
                self.complete = True
            elif not _TRAILER.fullmatch(line):
                raise _malformed("the chunked body's trailer is malformed")
            return
        found = _CHUNK.fullmatch(line)
        if found is None:
            raise _malformed("the body's chunks are malformed")
        size = int(found[1], 16)
        self.size += size
        if self.size > limits.BODY_BYTES:
            raise too_large()
        self._trailer = size == 0
        self._left = size + 2 if size else 0

    def _feed(self, data: bytes) -> None:
        if not data:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            raise _malformed("the body's chunks are malformed") from None
        if self._found_end != self.complete:
            raise _malformed("the body's chunks are malformed")


class _Lines:
    """What llhttp reads of a head (httptools' callbacks)."""

    def __init__(self) -> None:
        self.target = b""
        self.headers: dict[str, str] = {}
        self.repeated: str | None = None
        self.closes = False
        self.complete = False

    def on_url(self, url: bytes) -> None:
        self.target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        key = name.decode("ascii").lower()
        if key in self.headers and key in _ONCE:
            self.repeated = key
        if key == "connection":  # of which there may be several
            self.closes |= b"close" in [option.strip() for option in value.lower().split(b",")]
        self.headers[key] = value.decode("latin-1").strip(" \t")

    def on_headers_complete(self) -> None:
        self.complete = True


def parse_head(raw: bytes) -> Head:
    """A head with its empty line. Raises Refused."""
    if _HEAD.fullmatch(raw) is None:
        raise _malformed("the request's head is malformed")
    lines = _Lines()
    parser = httptools.HttpRequestParser(lines)
    upgrades = False
    try:
        parser.feed_data(raw)
    except httptools.HttpParserUpgrade:
        upgrades = True
    except httptools.HttpParserError:
        raise _malformed("the request's head is malformed") from None
    if lines.repeated is not None:
        raise _malformed(f"there is more than one {lines.repeated} header")
    headers = lines.headers
    newest = parser.get_http_version() == "1.1"
    if not lines.complete or ("host" not in headers and newest) or not _HOST.fullmatch(headers.get("host", "")):
        raise _malformed("a request has one host header")
    method = parser.get_method().decode("ascii")
    path, _, query = lines.target.partition(b"?")
    if lines.target == b"*" and method != "OPTIONS":
        raise _malformed("the request's target is no path")
    coding = headers.get("transfer-encoding")
    length = headers.get("content-length")
    if coding is not None and (coding.lower() != "chunked" or not newest or length is not None):
        raise _malformed("the request's transfer coding is not understood")
    if length is not None and not _LENGTH.fullmatch(length):
        raise _malformed("the request's length is malformed")
    expected = headers.get("expect", "").lower()
    if expected and expected != "100-continue":
        raise Refused(417, "expectation_failed", "the request expects what is not known here")
    has_body = coding is not None or length not in (None, "0")
    return Head(
        method, origin_form(path), query, headers,
        length=int(length or 0),
        chunked=coding is not None,
        keeps=newest and not lines.closes,
        expects=bool(expected) and newest and has_body,
        upgrades=upgrades or "upgrade" in headers or method == "CONNECT",
    )  # fmt: skip


_remembered = lru_cache(_CACHED_HEADS)(parse_head)
"""Clients send the same few heads again and again."""


def origin_form(target: bytes) -> bytes:
    """The path of a request target; a proxy's absolute form (`http://host/path`) has it after the host."""
    if target.startswith(b"/"):
        return target
    _, separator, rest = target.partition(b"://")
    slash = rest.find(b"/")
    return rest[slash:] if separator and slash >= 0 else target


def too_large() -> Refused:
    """The refusal of a body over the limit."""
    return Refused(413, "payload_too_large", f"a body takes at most {limits.BODY_BYTES} bytes")


def _head_too_long() -> Refused:
    return Refused(431, "request_header_fields_too_large", "the request's head is too long")


def _malformed(detail: str) -> Refused:
    return Refused(400, "bad_request", detail)

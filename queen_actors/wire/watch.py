"""Watches over keys on the WebSocket (`websocket.md`, section 5)."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from queen_actors import limits
from queen_actors.domain.kv import Get, GetPrefix
from queen_actors.domain.watch import Change, Changes, Watched, WatchTerms
from queen_actors.errors import BadRequest

from .frames import encode, offset_time, refusal
from .kv import parse_kv_ops
from .kv_results import KvRow, kv_row
from .socket import Frame, check_client_name


class _Named(Struct):
    watch: str


class _Watch(_Named, rename="camel"):
    from_version: int | None = None


class _Change(Struct, rename="camel"):
    op: str
    key: str
    value: Raw
    version: int
    expires_at: str | None


class _Event(Struct, tag_field="event", tag="kv"):
    watch: str
    changes: list[_Change]
    coalesced: bool | UnsetType = UNSET
    gap: bool | UnsetType = UNSET
    version: int | UnsetType = UNSET
    rows: list[KvRow] | UnsetType = UNSET


class _Begun(Struct):
    watch: str
    version: int
    rows: list[KvRow] | UnsetType = UNSET


REQUESTS: Mapping[str, type[Struct]] = {"watch": _Watch, "unwatch": _Named}
EVENTS: Mapping[str, type[Struct]] = {"kv": _Event}

_named = msgspec.json.Decoder(_Named)
_watch = msgspec.json.Decoder(_Watch)
_NULL = Raw(b"null")


def parse_watch(frame: Frame) -> tuple[str, WatchTerms]:
    """The client's name for the watch, and its terms. Namespace, key and prefix are as in a read. Raises BadRequest
    and TooLarge."""
    try:
        asked = _watch.decode(frame.text)
    except msgspec.ValidationError as wrong:
        raise BadRequest(str(wrong)) from None
    check_client_name("watch", asked.watch)
    if asked.from_version is not None and asked.from_version < 0:
        raise BadRequest("fromVersion must be 0 or more")
    null = Raw(b"null")
    given = {name: raw for name in ("ns", "key", "prefix") if (raw := frame.fields.get(name, null)) != null}
    if "key" in given and "prefix" in given:
        raise refusal("kv", "bad_request", "a watch has a `key` or a `prefix`, not both")
    word = "getPrefix" if "prefix" in given else "get"
    (op,) = parse_kv_ops([Raw(encode({"op": word, **given}))])
    if isinstance(op, GetPrefix):
        return asked.watch, WatchTerms(op.ns, None, op.prefix, asked.from_version)
    assert isinstance(op, Get)
    return asked.watch, WatchTerms(op.ns, op.key, "", asked.from_version)


def parse_unwatch(frame: Frame) -> str:
    """The name of the watch that is to end. Raises BadRequest."""
    try:
        return _named.decode(frame.text).watch
    except msgspec.ValidationError as wrong:
        raise BadRequest(str(wrong)) from None


def render_watched(name: str, begun: Watched) -> bytes:
    """The reply's body: the version counter, and the rows unless the watch goes on from a version."""
    rows = UNSET if begun.rows is None else [kv_row(row) for row in begun.rows]
    return encode(_Begun(name, begun.version, rows))


def render_unwatched(name: str) -> bytes:
    return encode(_Named(name))


class ChangeSpellings:
    """Texts of the changes that were told last, while there is more than one watch that may be told them."""

    def __init__(self) -> None:
        self.watches = 0
        """How many are open; with one, nothing is kept."""
        self._known: dict[int, tuple[Change, bytes]] = {}
        self._size = 0

    def of(self, change: Change) -> bytes:
        """The text of this very change: watches are told the same object."""
        if self.watches < 2:
            return encode(_change(change))
        known = self._known.get(id(change))
        if known is None or known[0] is not change:
            if self._size > limits.WS_SPELLINGS_BYTES or len(self._known) > limits.WATCH_QUEUE:
                self._known, self._size = {}, 0
            known = self._known[id(change)] = (change, encode(_change(change)))
            self._size += len(known[1])
        return known[1]


def render_changes(name: str, news: Changes, spellings: ChangeSpellings | None = None) -> bytes:
    """An event: changes in the order of their versions; or, after a gap, the rows from which the client begins
    again."""
    if spellings is None or news.rows is not None:
        event = _Event(name, [_change(change) for change in news.changes])
        if news.coalesced:
            event.coalesced = True
        if news.rows is not None:
            event.gap, event.version = True, news.version
            event.rows = [kv_row(row) for row in news.rows]
        return encode(event)
    changes = b",".join([spellings.of(change) for change in news.changes])
    coalesced = b',"coalesced":true' if news.coalesced else b""
    return b'{"event":"kv","watch":%b,"changes":[%b]%b}' % (encode(name), changes, coalesced)


def _change(change: Change) -> _Change:
    value = _NULL if change.value is None else Raw(change.value)
    expires = None if change.expires_at is None else offset_time(change.expires_at)
    return _Change(change.op, change.key, value, change.version, expires)

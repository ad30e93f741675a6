"""A watch over keys: changes as they happen (`websocket.md`, section 5)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

import trio

from .live import Live
from .results import Field, KvResult, Result
from .shapes import as_rows
from .transport import OPENING_SECONDS, Start, Transport

WAITING = 1000  # changes that wait for the user one by one; past it the latest of each key


class KvChange(Result):
    """What became of one key."""

    __slots__ = ()
    op = Field[str]("op", "")
    """put, delete or expire."""
    key = Field[str]("key", "")
    value = Field[Any]("value", None)
    version = Field[int]("version", 0)
    expires_at = Field[str | None]("expiresAt", None)


class Watch:
    """`async with queen.kv.watch(ns, prefix="customer-") as changes: async for change in changes: ...`

    `rows` are the keys as they are after the changes that were handed out, `version` is how far that is. A lost
    connection is opened again and the watch goes on from its version. Who reads too slowly gets the latest state of
    each key. Leaving is prompt, whatever lies unread.
    """

    patience = OPENING_SECONDS

    def __init__(
        self, start: Start, transport: Transport, ns: str, key: str | None, prefix: str | None, from_version: int | None
    ) -> None:
        if (key is None) == (prefix is None):
            raise ValueError("watch one key or one prefix: give exactly one of key and prefix")
        self.about = f"the watch of {ns}/{key if key is not None else prefix}"
        self.rows: dict[str, KvResult] = {}
        self.version = from_version
        self._what = {"ns": ns, "key": key} if key is not None else {"ns": ns, "prefix": prefix}
        self._seen: int | None = from_version
        self._known: dict[str, int] = {}
        """The version of each key as it was received: what the broker is believed to have."""
        self._buffer: OrderedDict[int, KvChange] = OrderedDict()
        self._received = 0
        self._bound = WAITING
        self._live = Live(start, transport.talk(self))

    async def __aenter__(self) -> Self:
        await self._live.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._buffer.clear()
        await self._live.leave()

    # What the stream calls (transport.Talk)

    def opening(self) -> dict[str, Any]:
        """As `Talk.opening`: from the version that was seen last."""
        since = {} if self._seen is None else {"fromVersion": self._seen}
        return {"op": "watch", **self._what, **since}

    def opened(self, body: dict[str, Any]) -> None:
        """As `Talk.opened`."""
        version = int(body.get("version") or 0)
        if "rows" in body:
            self.rows = {str(row.get("key")): KvResult(row) for row in as_rows(body["rows"])}
            self.version = version
            self._known = {key: row.version for key, row in self.rows.items()}
            self._seen = version

    def event(self, frame: dict[str, Any]) -> None:
        """As `Talk.event`: changes, or a gap with the rows as they are."""
        if frame.get("gap"):
            self._begin_again(as_rows(frame.get("rows")), int(frame.get("version") or 0))
        self._take(as_rows(frame.get("changes")))
        self._live.notify()

    def _take(self, changes: Iterable[dict[str, Any]]) -> None:
        for fields in changes:
            change = KvChange(fields)
            if change.op == "put":
                self._known[change.key] = change.version
            else:
                self._known.pop(change.key, None)
            self._seen = max(self._seen or 0, change.version)
            self._received += 1
            self._buffer[self._received] = change
        if len(self._buffer) > self._bound:
            self._coalesce()

    def _coalesce(self) -> None:
        latest = {change.key: (at, change) for at, change in self._buffer.items()}
        self._buffer = OrderedDict(sorted(latest.values(), key=lambda pair: pair[0]))
        self._bound = max(WAITING, 2 * len(self._buffer))

    def _begin_again(self, rows: list[dict[str, Any]], version: int) -> None:
        """What happened is not known any more, only what is there: told as changes, so that nobody need care."""
        there = {str(row.get("key")): row for row in rows}
        gone = [key for key in self._known if key not in there]
        news = [row for key, row in there.items() if self._known.get(key) != row.get("version")]
        self._take({"op": "delete", "key": key, "value": None, "version": version, "expiresAt": None} for key in gone)
        self._take({"op": "put", **row} for row in sorted(news, key=lambda row: int(row.get("version") or 0)))
        self._seen = version

    def disconnected(self) -> None:
        """As `Talk.disconnected`: it goes on by version."""

    # What the user calls

    @property
    def waiting(self) -> int:
        """Changes that are here and not handed out yet."""
        return len(self._buffer)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> KvChange:
        return await self.receive()

    async def receive(self) -> KvChange:
        """The next change. Raises QueenError when the watch has ended."""
        await trio.lowlevel.checkpoint_if_cancelled()
        while not self._buffer:
            await self._live.news()
        _, change = self._buffer.popitem(last=False)
        if change.op == "put":
            self.rows[change.key] = KvResult({"found": True, **{k: v for k, v in change.items() if k != "op"}})
        else:
            self.rows.pop(change.key, None)
        self.version = max(self.version or 0, change.version)
        await trio.lowlevel.cancel_shielded_checkpoint()
        return change

"""A watch over keys: its terms, and the changes that it tells (`websocket.md`, section 5)."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from .kv import KeyRow


class WatchTerms(Struct, frozen=True):
    """What is watched: one `key` of a namespace, or all keys under a `prefix`. With `from_version` the watch goes on
    where another one had seen that version; without, it begins with the current rows."""

    ns: str
    key: str | None = None
    prefix: str = ""
    from_version: int | None = None

    def matches(self, ns: str, key: str) -> bool:
        return ns == self.ns and (key == self.key if self.key is not None else key.startswith(self.prefix))


class Change(Struct, frozen=True, gc=False):
    """What became of one key. `version` of a put or a delete is the number that it took. An expiry takes none, and a
    permit that lives on with its connection keeps its own: `moment` is the highest number given out by then."""

    op: Literal["put", "delete", "expire"]
    ns: str
    key: str
    value: bytes | None
    version: int
    expires_at: int | None
    moment: int

    def later_than(self, version: int) -> bool:
        """Is it news to somebody who has seen everything up to `version`? What took no number of its own may be told
        again, for it cannot be known whether it was seen."""
        took_number = self.op != "expire" and self.version == self.moment
        return self.moment > version or (self.moment == version and not took_number)


class Changes(Struct, frozen=True):
    """News of a watch, in the order of their versions. `coalesced`: the watcher is behind, and has the latest state of
    each key only. `rows`: it has missed something, and these are all rows at `version`; what it knew before is void."""

    changes: tuple[Change, ...] = ()
    coalesced: bool = False
    rows: tuple[KeyRow, ...] | None = None
    version: int = 0


class Watched(Struct, frozen=True):
    """What a watch begins with: the version counter, and the rows unless it goes on from an earlier version."""

    version: int
    rows: tuple[KeyRow, ...] | None

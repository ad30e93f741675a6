"""The keys of a mapping in the byte order of their UTF-8, for pages and counts by prefix."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping

from sortedcontainers import SortedList


class OrderedKeys:
    """A view of a mapping's keys in byte order. Code point order, which is that of `str`, is the same order.

    The order is made at the first page or count and kept in step after that, so a mapping that nobody pages through
    pays for none. Its owner calls `added` and `removed` whenever a key comes or goes; an iterator is spent by that.
    """

    __slots__ = ("_keys", "_rows")

    def __init__(self, rows: Mapping[str, object]) -> None:
        self._rows = rows
        self._keys: SortedList[str] | None = None

    def added(self, key: str) -> None:
        """The mapping has this key now, and did not before."""
        if self._keys is not None:
            self._keys.add(key)

    def removed(self, key: str) -> None:
        """The mapping had this key, and does not now."""
        if self._keys is not None:
            self._keys.remove(key)

    def starting(self, prefix: str, after: str | None) -> Iterator[str]:
        """The keys that start with `prefix` and lie behind `after` (exclusive), in order."""
        first, inclusive = (prefix, True) if after is None or after < prefix else (after, False)
        for key in self._ordered().irange(first, None, (inclusive, True)):
            if not key.startswith(prefix):
                return
            yield key

    def count(self, prefix: str) -> int:
        """How many keys start with `prefix`."""
        keys, end = self._ordered(), _end(prefix)
        return (len(keys) if end is None else keys.bisect_left(end)) - keys.bisect_left(prefix)

    def _ordered(self) -> SortedList[str]:
        if self._keys is None:
            self._keys = SortedList(self._rows)
        return self._keys


def _end(prefix: str) -> str | None:
    """The first text behind every text that starts with `prefix`; None when there is none."""
    stem = prefix.rstrip(chr(sys.maxunicode))
    return stem[:-1] + chr(ord(stem[-1]) + 1) if stem else None
